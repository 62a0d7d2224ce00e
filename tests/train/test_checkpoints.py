"""When a run is saved, what lies on its disk, and what is said of it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from hotloop import nn
from hotloop.training.checkpoints import keeper as keeper_module
from hotloop.training.checkpoints.snapshot import Snapshot
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


# ---- room on the disk


def wide() -> nn.Module:
    """Of 75 kB, beside which what else stands in its files is small."""
    return nn.Sequential(nn.Linear(6, 2000), nn.ReLU(), nn.Linear(2000, 3))


def sizes_in(folder: Path) -> dict[str, int]:
    files = (folder / "1/checkpoints").iterdir()
    return {path.name: path.stat().st_size for path in files if not path.name.startswith(".")}


def test_a_run_that_fits_the_disk_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has written is replaced, and needs no room again."""
    config = config_of(tmp_path, save_every=1)
    hl.train(wide(), data(), config)
    step = max(size for name, size in sizes_in(tmp_path).items() if name.startswith("step"))
    best = sum(size for name, size in sizes_in(tmp_path).items() if name.startswith("best"))
    total = 3 * step + best + 4096  # all that lies there while another one is written
    usage = namedtuple("usage", "total used free")

    def disk_usage(path: str) -> Any:
        used = sum(one.stat().st_size for one in tmp_path.rglob("*.safetensors"))
        return usage(total, used, total - used)

    monkeypatch.setattr(keeper_module.shutil, "disk_usage", disk_usage)
    asked: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda file, at, n: asked.append(n))
    assert hl.train(wide(), data(), config, resume=True, max_epochs=6).epochs == 6
    assert asked[0] < 1.05 * step
    total -= step // 2
    with pytest.raises(hl.CheckpointError, match="checkpoints of this run take up to"):
        hl.train(wide(), data(), config, resume=True, max_epochs=8)


@pytest.mark.parametrize("share", [1.3, 1.9, 2.6])
def test_max_disk_holds(share: float, tmp_path: Path) -> None:
    """With the best models, one of which alone stays beside the latest checkpoint."""
    hl.train(wide(), data(), config_of(tmp_path / "a", max_epochs=1))
    step = max(sizes_in(tmp_path / "a").values())
    seen: list[int] = []

    def note(run: Any) -> None:
        run._records.keeper.wait()
        seen.append(sum(sizes_in(tmp_path / "b").values()))

    config = config_of(
        tmp_path / "b", save_every=1, save_top_k=2, max_disk=int(share * step), max_epochs=6
    )
    callback = hl.LambdaCallback(on_checkpoint=note, on_epoch_end=note)
    result = hl.train(wide(), data(), config, callbacks=[callback])
    assert max(seen) <= share * step
    assert sum(sizes_in(tmp_path / "b").values()) <= share * step
    assert Path(result.last_path).exists()
    assert result.best_path is not None
    assert f"best-epoch{result.best_epoch}-" in result.best_path


def test_max_disk_has_room_for_the_checkpoint_and_the_best_model(tmp_path: Path) -> None:
    hl.train(wide(), data(), config_of(tmp_path / "a", max_epochs=1))
    step = max(sizes_in(tmp_path / "a").values())
    config = config_of(tmp_path / "b", max_disk=int(1.1 * step))
    with pytest.raises(hl.ConfigError, match=r"max_disk: .* and its best model .*save_top_k=0"):
        hl.train(wide(), data(), config)
    hl.train(wide(), data(), config.replace(save_top_k=0))
    assert sum(sizes_in(tmp_path / "b").values()) <= 1.1 * step


def test_files_that_are_larger_than_was_known_keep_max_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small model's files are headers for the most part, which are not known before."""
    hl.train(mlp(), data(), config_of(tmp_path / "a", max_epochs=1))
    step = next(size for name, size in sizes_in(tmp_path / "a").items() if "step" in name)
    result = hl.train(mlp(), data(), config_of(tmp_path / "b", max_disk=step + 4000))
    assert sum(sizes_in(tmp_path / "b").values()) <= step + 4000
    assert (result.best_path, Path(result.last_path).exists()) == (None, True)
    assert "max_disk: has no room for it beside the latest checkpoint" in capsys.readouterr().err
    result = hl.train(mlp(), data(), config_of(tmp_path / "c", max_disk=step - 1000))
    assert "step-000000040.safetensors" not in sizes_in(tmp_path / "c")
    assert "checkpoint could not be written (once): max_disk: it takes " in capsys.readouterr().err
    assert result.resume(max_epochs=5, max_disk=None).epochs == 5


def test_a_kill_while_room_is_looked_for_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    allocate = os.posix_fallocate

    def note(file: int, at: int, n: int) -> None:
        allocate(file, at, n)
        seen.append(sorted(os.listdir(tmp_path / "1")))

    monkeypatch.setattr(os, "posix_fallocate", note)
    hl.train(mlp(), data(), config_of(tmp_path, max_epochs=1))
    assert seen == [["config.toml", "environment.json"]]


# ---- a disk that refuses


def test_a_disk_that_refuses_is_said_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, faults = Snapshot.write, [""] * 9

    def fail(self: Snapshot, path: str) -> int:
        if not (fault := faults.pop(0)):
            return write(self, path)
        raise OSError(28, fault, path)  # whose text names another file each time

    monkeypatch.setattr(Snapshot, "write", fail)

    def said(*planned: str) -> list[str]:
        faults[:] = planned
        hl.train(mlp(), data(), config_of(tmp_path, save_every=1, save_top_k=0,
                                          max_epochs=len(planned)))  # fmt: skip
        return [line for line in capsys.readouterr().err.splitlines() if "warning" in line]

    first, last = said("full", "full", "full")
    assert "no checkpoint could be written: [Errno 28] full" in first
    assert "training goes on" in first
    assert "training has ended, and its last checkpoint could not be written (3 times)" in last
    assert "training goes on" not in last
    assert "there is none" in last
    assert "result.save(path)" in last
    assert len(said("full", "full", "")) == 1  # the end is on disk
    assert len(said("full", "quota", "quota", "full", "")) == 3
    _, _, last = said("full", "", "full", "full")
    assert "(2 times)" in last
    assert "the latest is " in last
    assert "step-000000020.safetensors" in last


# ---- going on


@pytest.mark.parametrize(("then", "now"), [("32-true", "16-mixed"), ("16-mixed", "32-true")])
def test_another_precision_begins_with_its_own_loss_scale(
    then: str, now: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, max_epochs=1, precision=then)
    first = hl.train(mlp(), data(), config)
    whole = hl.train(mlp(), data(), config, output_dir=None, precision=now)
    scales = {"16-mixed": 65536.0, "32-true": 1.0}
    seen: list[float] = []
    note = hl.LambdaCallback(
        on_epoch_end=lambda run: seen.append(run.runtime.session.control()["loss_scale"])
    )
    again = hl.train(
        mlp(), data(), resume=first.last_path, precision=now, resume_strict=False, max_epochs=2,
        callbacks=[note],
    )  # fmt: skip
    assert seen == [scales[now]]
    assert ("loss_scale" in again.history) == ("16-mixed" in (then, now))
    if now == "16-mixed":
        assert whole.history["loss_scale"] == again.history["loss_scale"][1:]
    strict = hl.train(mlp(), data(), resume=first.last_path, max_epochs=3, callbacks=[note])
    assert strict.epochs == 3
    assert seen[1:] == [scales[then]] * 2


class Counts:
    """How often it is called for which epoch."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, run: Any) -> None:
        self.epochs.append(run.epoch)


def test_callbacks_beside_a_checkpoint_are_given_again(tmp_path: Path) -> None:
    first = hl.train(mlp(), data(), config_of(tmp_path, max_epochs=1), callbacks=[Counts()])
    again = Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.train(mlp(), data(), resume=first.last_path, callbacks=[again], max_epochs=2)
    assert again.epochs == [2]
    with pytest.warns(hl.CheckpointWarning, match="give callbacks= again"):
        hl.train(mlp(), data(), resume=True, output_dir=tmp_path, max_epochs=3, callbacks=[])


def test_a_callback_that_is_given_twice_is_called_once(tmp_path: Path) -> None:
    counts = Counts()
    config = config_of(tmp_path, max_epochs=1, callbacks=[counts], output_dir=None)
    result = hl.train(mlp(), data(), config, callbacks=[counts])
    assert counts.epochs == [1]
    result = hl.train(mlp(), data(), resume=result, callbacks=[counts], max_epochs=2)
    hl.train(mlp(), data(), resume=result, callbacks=[counts, Counts()], max_epochs=3)
    assert counts.epochs == [1, 2, 3]
