"""A run that goes on with other limits, monitors and intervals than it began with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.training.run import loop
from train.test_resume import StopAt, config_of, data_of, mlp_net


@pytest.mark.parametrize(("limit", "by"), [(None, "steps"), (80.0, "time"), (400.0, "steps")])
def test_another_max_time_has_its_own_rates(
    limit: float | None, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 steps each moves the clock by a second: 40 seconds are the schedule of 40 steps."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def tick(run: Any) -> None:
        now[0] += 1.0

    ticks = hl.LambdaCallback(on_train_batch_end=tick)
    config = config_of(tmp_path, max_epochs=10, lr=0.01, scheduler="cosine", warmup=0)
    callbacks = [ticks, StopAt(2)]
    first = hl.train(mlp_net(), data_of(), config, max_time=40.0, callbacks=callbacks)
    assert (first.steps, first.schedule_by) == (20, "time")
    assert first.history["lr"][-1] == pytest.approx(0.005, abs=1e-3)
    result = first.resume(max_time=limit)
    assert (result.schedule_by, result.steps) == (by, 80 if limit == 80 else 100)
    total = 80 if limit == 80 else 100
    wanted = [0.005 * (1 + np.cos(np.pi * (10 * n - 1) / total)) for n in range(3, total // 10 + 1)]
    exact = {"rel": 1e-6} if by == "steps" else {"abs": 5e-4}
    assert result.history["lr"][2:] == pytest.approx(wanted, **exact)


def judged(tmp_path: Path, **fields: Any) -> hl.TrainResult:
    """Three epochs by the loss, which falls, so that by mode="max" each but the first is bad."""
    config = config_of(tmp_path, max_epochs=20, mode="max", **fields)
    return hl.train(mlp_net(), data_of(), config, callbacks=[StopAt(3)])


def test_patience_that_the_run_did_not_have_counts_its_epochs(tmp_path: Path) -> None:
    result = judged(tmp_path).resume(early_stopping=4)
    assert (result.stop_reason, result.epochs) == ("early_stopping", 5)


def test_patience_by_another_value_begins_where_the_run_goes_on(tmp_path: Path) -> None:
    """What the other value was before is not known to it; the best of the run stays."""
    stopping = hl.EarlyStopping(4, monitor="loss", mode="max")
    first = judged(tmp_path, monitor="val_loss", early_stopping=4)
    result = first.resume(early_stopping=stopping)
    assert (result.stop_reason, result.epochs) == ("early_stopping", 8)
    assert (result.monitor, result.best_epoch) == ("val_loss", 1)


def test_a_plateau_by_another_value_forgets_what_was_best(tmp_path: Path) -> None:
    scheduler = {"name": "plateau", "patience": 0, "factor": 0.5, "monitor": "val_accuracy"}
    first = judged(tmp_path, scheduler=scheduler)
    before = first.history["lr"][-1]
    fields = {"scheduler": scheduler | {"monitor": "loss", "mode": "min"}, "max_epochs": 5}
    result = first.resume(resume_strict=False, **fields)
    assert result.history["lr"][4] == result.history["lr"][3] <= before


@pytest.mark.filterwarnings("error::hotloop.errors.NotFiniteWarning")
def test_best_weights_that_were_not_kept_are_no_values_that_are_not_finite(tmp_path: Path) -> None:
    config = config_of(tmp_path, max_epochs=2, restore_best=False)
    result = hl.train(mlp_net(), data_of(), config).resume(restore_best=True)
    assert (result.epochs, result.best_epoch) == (2, None)
