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
