"""When a run is saved, what lies on its disk, and what is said of it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from hotloop.training.checkpoints import keeper as keeper_module
from hotloop.training.checkpoints.keeper import checkpoints_in
from train.recipes import classes, mlp, quiet

X, Y = classes(100)


def data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=8)  # 10 steps in an epoch


def config_of(folder: Path, **options: Any) -> hl.TrainingConfig:
    fields = {"max_epochs": 4, "output_dir": folder, "enable_checkpointing": True, "lr": 1e-3}
    return quiet(**(fields | {"restore_best": True} | options))


def steps_in(folder: Path) -> list[int]:
    """The checkpoints of a folder's first run, by their steps."""
    names = (path.stem for path in (folder / "1/checkpoints").glob("step-*"))
    return sorted(int(name.removeprefix("step-")) for name in names)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for is due at once, and not after ten seconds."""
    monkeypatch.setattr(keeper_module, "_BETWEEN", 0.0)
    monkeypatch.setattr(keeper_module, "_SHARE", float("inf"))


# ---- a checkpoint beside the best models


def test_an_epoch_whose_model_is_the_best_has_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    """By default, as soon as the model's file is written: a notebook may die before the next."""
    write, gate = keeper_module.write_safetensors, threading.Event()

    def write_late(*args: Any) -> int:
        assert gate.wait(30)
        return write(*args)

    monkeypatch.setattr(keeper_module, "write_safetensors", write_late)
    seen: list[list[int]] = []

    def at_step(run: Any) -> None:
        if run.step == 15:
            assert not steps_in(tmp_path)
            gate.set()
            run._records.keeper.wait()

    def at_end(run: Any) -> None:
        if gate.is_set():
            run._records.keeper.wait()
        seen.append(steps_in(tmp_path))

    note = hl.LambdaCallback(on_train_batch_end=at_step, on_epoch_end=at_end)
    result = hl.train(mlp(), data(), config_of(tmp_path, max_epochs=2), callbacks=[note])
    assert result.best_epoch == 2  # so was the first one before
    assert [bool(one) for one in seen] == [False, True]
    assert 15 <= seen[1][0] < 20


@pytest.mark.parametrize("options", [{"save_top_k": 3}, {"restore_best": False}])
def test_models_of_every_epoch_leave_room_for_checkpoints(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    """Though epochs are shorter than it takes to write one."""
    write = keeper_module.write_safetensors

    def write_slowly(*args: Any) -> int:
        time.sleep(0.2)
        return write(*args)

    monkeypatch.setattr(keeper_module, "write_safetensors", write_slowly)
    seen: list[list[int]] = []
    note = hl.LambdaCallback(on_epoch_end=lambda run: seen.append(steps_in(tmp_path)))
    hl.train(mlp(), data(), config_of(tmp_path, **options), callbacks=[note])
    assert seen[2] == [20]


def test_a_best_model_waits_for_a_checkpoint_that_is_owed(tmp_path: Path, soon: None) -> None:
    keeper = keeper_module.Keeper(
        config_of(tmp_path), _Folder(tmp_path), print, monitor="val_loss", larger_is_better=False
    )
    gate = threading.Event()
    keeper._writer.submit("best", lambda: str(gate.wait(30)))
    assert not keeper.is_due(10, ended_epoch=1)
    assert not keeper.is_due(20, ended_epoch=2)  # a slow disk holds up nothing
    assert keeper.steps_until_due(20) > 1
    gate.set()
    keeper.wait()
    assert keeper.steps_until_due(20) == 1
    assert not keeper.is_best_due()
    assert keeper.is_due(21)
    keeper.close()


class _Folder:
    """A folder of a run that is open."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def open(self) -> str:
        return self._path
