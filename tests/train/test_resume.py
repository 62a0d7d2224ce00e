"""A run that is continued has the bits of one that never stopped; other data is refused."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.fingerprint import fingerprint
from hotloop.training.checkpoints import keeper as keeper_module
from hotloop.training.checkpoints.snapshot import Snapshot
from hotloop.training.plans import runtime
from hotloop.training.run import fit
from hotloop.training.scoring.names import MEASURED
from needs import plain_permissions
from train.recipes import quiet

N, BATCH, EPOCHS = 100, 10, 5  # 10 steps in an epoch


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is written before the next step."""
    submit = keeper_module.Writer.submit

    def submit_and_wait(self: Any, *args: Any) -> None:
        submit(self, *args)
        self.wait()

    monkeypatch.setattr(keeper_module.Writer, "submit", submit_and_wait)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    """All checkpoints of a run stay besides."""
    monkeypatch.setattr(keeper_module, "_KEPT", 10_000)


def images(n: int = N) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 1, 8, 8)).astype(np.float32)
    x[np.arange(n), 0, y, :] += 2
    return x, y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(256, 3)
        self.register_buffer("calls", np.zeros((), np.float32), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.calls.assign(self.calls + 1)
        x = self.norm(self.conv(x)).relu()
        return self.head(self.drop(x.flatten(1)))


def data_of(**options: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(*images(), val=0.2, batch_size=8, **options)


def final(result: hl.TrainResult) -> dict[str, Any]:
    """All that a run ended with."""
    state = result._state
    if state is None:
        state = Snapshot.read(result.last_path)
    return {
        **state.tensors,
        **{f"model.{k}": v for k, v in result.model.state_dict().items()},
        **{f"history.{k}": np.array(v) for k, v in result.history.items() if k not in MEASURED},
        "control": np.array(list(state.run["control"].values())),
        "best": np.array([result.best_score, result.best_epoch], float),
    }


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].tobytes() == wanted[name].tobytes(), name


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"ema": True},
    "accumulate": {"accumulate_grad_batches": 3},
    "plateau": {"scheduler": {"name": "plateau", "patience": 0, "factor": 0.5}},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "scheduler": "one_cycle"},
    "bf16": {"precision": "bf16-mixed"},
    "mixup": {"mixup": 0.3},
    "swa": {"swa": 0.4, "on_nan": "skip", "accumulate_grad_batches": 2, "restore_best": True},
    "swa-within": {
        "swa": {"start": 3, "lr": 1e-3, "anneal_epochs": 2}, "val_check_interval": 3,
        "scheduler": {"name": "plateau", "patience": 0, "factor": 0.7}, "early_stopping": 20,
    },
    "within": {
        "val_check_interval": 3, "ema": 0.9, "early_stopping": 20, "restore_best": True,
        "scheduler": {"name": "plateau", "patience": 0, "factor": 0.7},
    },
    "judges": {  # the best by accuracy, stopped after the fourth epoch by the loss
        "monitor": "val_accuracy", "mode": "max", "restore_best": True,
        "early_stopping": {"patience": 2, "monitor": "val_loss", "min_delta": 0.2},
        "scheduler": {"name": "plateau", "patience": 0, "monitor": "loss", "threshold": 0.7},
    },
    "phases": {
        "freeze": {"conv": 2, "norm": 4}, "ema": True, "restore_best": True, "mixup": 0.2,
        "accumulate_grad_batches": 3, "scheduler": {"name": "plateau", "patience": 0},
    },
    "phases-swa": {
        "freeze": {"conv": 4, "head": 2}, "unfreeze": {"conv": 2}, "swa": {"start": 2, "lr": 1e-3},
        "restore_best": True, "val_check_interval": 4, "on_nan": "skip",
    },
    "all": {
        "ema": True, "accumulate_grad_batches": 2, "label_smoothing": 0.1, "on_nan": "skip",
        "scheduler": {"name": "plateau", "patience": 0}, "metrics": ["accuracy", "f1"],
        "early_stopping": 10, "param_groups": [{"params": "head", "lr_scale": 0.5}],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_step(name: str, tmp_path: Path, every_step: None) -> None:
    config = quiet(max_epochs=EPOCHS, lr=3e-3, seed=1, **OPTIONS[name])
    plain = hl.train(Net(), data_of(), config)
    wanted = final(plain)
    whole = hl.train(
        Net(),
        data_of(),
        config.replace(
            output_dir=tmp_path / "runs", save_every="1 steps", enable_checkpointing=True
        ),
    )
    assert_same(final(whole), wanted)
    paths = sorted((tmp_path / "runs/1/checkpoints").glob("step-*"))
    assert len(paths) == plain.steps
    assert Path(whole.last_path) == paths[-1]
    for path in paths[:: 1 if name == "all" else 4]:
        again = tmp_path / "again.safetensors"
        shutil.copy(path, again)
        resumed = hl.train(Net(), data_of(), resume=again, output_dir=None, save_every=None)
        assert_same(final(resumed), wanted)
        assert (resumed.steps, resumed.epochs) == (plain.steps, plain.epochs)


# ---- which checkpoint


def config_of(tmp_path: Path, **options: Any) -> hl.TrainingConfig:
    fields = {"max_epochs": 4, "output_dir": tmp_path / "runs", "enable_checkpointing": True}
    return quiet(**(fields | options))


class StopAt:
    """Ends a run after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, run: Any) -> None:
        if run.epoch == self.epoch:
            run.stop()


def stopped(tmp_path: Path, **options: Any) -> hl.TrainResult:
    """A run of 4 epochs that was stopped after 2."""
    return hl.train(mlp_net(), data_of(), config_of(tmp_path, **options), callbacks=[StopAt(2)])


def mlp_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


def test_all_ways_to_name_a_run(tmp_path: Path) -> None:
    first = stopped(tmp_path)
    wanted = final(hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir=None)))
    run = Path(first.last_path).parents[1]
    for number, resume in enumerate(
        [first, first.last_path, Path(first.last_path), run, run.parent, run / "checkpoints"]
    ):
        other = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hl.CheckpointWarning)  # of the callback
            result = hl.train(mlp_net(), data_of(), resume=resume, output_dir=other)
        assert_same(final(result), wanted)
        assert result.last_path.startswith(str(other))
    again = first.resume(output_dir=None)
    assert_same(final(again), wanted)
    there = hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True)
    assert_same(final(there), wanted)
    assert Path(there.last_path).parents[1] == run  # goes on where it was
    assert len(list((run / "checkpoints").glob("step-*"))) == 2
    done = hl.train(mlp_net(), data_of(), config_of(tmp_path), resume="auto")
    assert (done.stop_reason, done.steps) == ("completed", there.steps)
    assert_same(final(done), wanted)


def test_auto_begins_where_there_is_none(tmp_path: Path) -> None:
    result = hl.train(mlp_net(), data_of(), config_of(tmp_path), resume="auto")
    assert (result.epochs, Path(result.last_path).parents[1].name) == (4, "1")
    with pytest.raises(hl.CheckpointError, match=r"no checkpoint in .*nowhere"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir="nowhere"), resume=True)
    for wrong, error in ((5, hl.ConfigError), (tmp_path / "none", hl.CheckpointError)):
        with pytest.raises(error, match="resume: "):
            hl.train(mlp_net(), data_of(), resume=wrong)


def test_a_model_without_its_run(tmp_path: Path) -> None:
    result = stopped(tmp_path)
    for path in (result.best_path, tmp_path / "saved.safetensors"):
        result.save(tmp_path / "saved.safetensors")
        with pytest.raises(hl.CheckpointError, match="holds a model without the run"):
            hl.train(mlp_net(), data_of(), resume=path)


def test_more_epochs(tmp_path: Path) -> None:
    first = hl.train(mlp_net(), data_of(), config_of(tmp_path, max_epochs=2))
    longer = hl.train(mlp_net(), data_of(), resume=first, max_epochs=4)
    assert longer.epochs == 4
    assert longer.history["loss"][:2] == first.history["loss"]
    constant = final(hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir=None)))
    assert_same(final(longer), constant)  # of a constant rate


# ---- what differs


def test_fewer_epochs_than_have_run_are_said(tmp_path: Path) -> None:
    first = stopped(tmp_path)
    with pytest.warns(hl.CheckpointWarning, match=r"nothing is left to train, since .* have run"):
        result = hl.train(mlp_net(), data_of(), resume=first, max_epochs=1)
    assert result.steps == first.steps


def test_a_schedule_that_ends_before_the_epochs_do(tmp_path: Path) -> None:
    """Of larger batches there are fewer steps."""
    first = stopped(tmp_path, scheduler="cosine")
    larger = hl.DataModule.from_arrays(*images(), val=0.2, batch_size=40)
    with pytest.warns(hl.CheckpointWarning, match="20 steps were taken of the 8 of the schedule"):
        hl.train(mlp_net(), larger, resume=first, resume_strict=False)


def test_other_settings(tmp_path: Path) -> None:
    first = stopped(tmp_path)
    with pytest.raises(hl.ConfigError, match=r"other settings, got lr 0.5 \(then 0.001\)"):
        hl.train(mlp_net(), data_of(), resume=first, lr=0.5)
    with pytest.raises(hl.ConfigError, match=r"seed 7.*then 42"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path, seed=7), resume=True)
    result = hl.train(mlp_net(), data_of(), resume=first, lr=0.5, resume_strict=False)
    assert result.history["lr"][-1] == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 10}, r"batch_size 10 \(then 8\)"),
        ({"seed": 3}, r"seed of the data 3 \(then 42\)"),
        ({"val": 0.3}, r"train rows 70 \(then 80\)"),
        ({"shuffle": False, "split": "random"}, r"shuffle False \(then True\)"),
        ({"drop_last": True}, r"drop_last True \(then False\)"),
        ({"sample_weight": np.ones(N)}, "train weight: none then"),
    ],
    ids=["batch_size", "seed", "val", "shuffle", "drop_last", "weight"],
)
def test_other_data(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    first = stopped(tmp_path)
    options = {"val": 0.2, "batch_size": 8} | options
    data = hl.DataModule.from_arrays(*images(), **options)
    before = mlp_net()
    with pytest.raises(hl.ConfigError, match=f"with other data, got .*{words}"):
        hl.train(before, data, resume=first)
    assert hl.train(before, data, resume=first, resume_strict=False).epochs == 4


def test_other_values(tmp_path: Path) -> None:
    first = stopped(tmp_path)
    X, y = images()
    other = hl.DataModule.from_arrays(X + 1, y, val=0.2, batch_size=8)
    with pytest.raises(hl.ConfigError, match="train x: other values"):
        hl.train(mlp_net(), other, resume=first)
    with pytest.raises(hl.CheckpointError, match="of another model"):
        hl.train(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), data_of(), resume=first)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(
        hl.CheckpointError, match=r"1.weight must have shape \(9, 64\), got \(8, 64"
    ):
        hl.train(wider, data_of(), resume=first)


def _pictures(folder: Path, seed: int) -> hl.DataModule:
    rng = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8).tobytes()
            (folder / name / f"{i}.ppm").write_bytes(b"P6 8 8 255\n" + pixels)
    return hl.DataModule.from_image_folder(folder, size=8, batch_size=4)


def _parts(folder: Path, seed: int) -> hl.DataModule:
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for i in range(2):
        np.save(folder / f"{i}.npy", rng.standard_normal((8, 192)).astype(np.float32))
    return hl.DataModule.from_npy(f"{folder}/*.npy", np.arange(16) % 2, batch_size=4)


def _cubes(folder: Path, seed: int) -> hl.DataModule:
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for i in range(16):
        np.save(folder / f"{i}.npy", rng.standard_normal((4, 4, 12)).astype(np.float32))
    return hl.DataModule.from_cubes(f"{folder}/*.npy", labels=np.arange(16) % 2, batch_size=4)


def _mapped(folder: Path, seed: int) -> hl.DataModule:
    return _parts(folder, seed).map(lambda x, y: (2 * x, y))


def _episodes(folder: Path, seed: int) -> hl.DataModule:
    return hl.DataModule.episodes(_parts(folder, seed), 1, 1, ways=2, n=8, n_val=0, n_test=0)


@pytest.mark.parametrize("make", [_pictures, _parts, _cubes, _mapped, _episodes])
def test_rows_that_are_read_of_files(
    make: Callable[[Path, int], hl.DataModule], tmp_path: Path
) -> None:
    """The same files in another folder go on; others of the same names and lengths do not."""
    before = fingerprint(make(tmp_path / "one", 1))
    assert fingerprint(make(tmp_path / "two", 1)) == before
    after = fingerprint(make(tmp_path / "three", 2))
    assert {name for name in after if after[name] != before[name]}


def test_other_files(tmp_path: Path) -> None:
    """A run on some is not continued on others."""
    one, two = _parts(tmp_path / "one", 1), _parts(tmp_path / "two", 2)
    net = nn.Linear(192, 2)
    config = config_of(tmp_path, max_epochs=1)
    hl.train(net, one, config)
    with pytest.raises(hl.ConfigError, match=r"with other data, got .*train x: other values"):
        hl.train(net, two, config, max_epochs=2, resume=True)
    assert hl.train(net, one, config, max_epochs=2, resume=True).epochs == 2


def test_functions_are_given_again(tmp_path: Path) -> None:
    def loss(output: Any, target: Any) -> Any:
        return nn.functional.cross_entropy(output, target)

    first = stopped(tmp_path, loss=nn.CrossEntropyLoss())
    with pytest.raises(hl.ConfigError, match="loss of the run cannot be read"):
        hl.train(mlp_net(), data_of(), resume=first.last_path)
    result = hl.train(mlp_net(), data_of(), resume=first, loss=nn.CrossEntropyLoss())
    assert result.epochs == 4


# ---- damage


def test_a_damaged_file_is_named_and_the_one_before_is_taken(tmp_path: Path) -> None:
    first = stopped(tmp_path, save_every=1, save_top_k=0)
    last, before = sorted((tmp_path / "runs/1/checkpoints").glob("step-*"), reverse=True)
    wanted = final(hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir=None)))
    data = bytearray(last.read_bytes())
    data[-5] ^= 1
    last.write_bytes(data)
    with pytest.raises(hl.CheckpointError, match=f"{last.name} is damaged: the bytes of"):
        hl.train(mlp_net(), data_of(), resume=last)
    with pytest.warns(
        hl.CheckpointWarning, match=f"{last.name} is damaged.*goes on from .*{before.name}"
    ):
        result = hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True)
    assert_same(final(result), wanted)
    assert first.last_path == str(last)


def test_all_are_damaged(tmp_path: Path) -> None:
    stopped(tmp_path, save_every=1, save_top_k=0)
    for path in (tmp_path / "runs/1/checkpoints").glob("step-*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(hl.CheckpointError, match=r"no checkpoint in .* is whole"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True)


# ---- what is kept


def test_best_models(tmp_path: Path) -> None:
    result = hl.train(
        Net(), data_of(), config_of(tmp_path, save_top_k=2, restore_best=True, max_epochs=6)
    )
    best = sorted((tmp_path / "runs/1/checkpoints").glob("best-*"))
    order = np.argsort(result.history["val_loss"])[:2] + 1
    assert {int(path.name.split("-")[1].removeprefix("epoch")) for path in best} == set(order)
    assert f"best-epoch{result.best_epoch}-val_loss" in result.best_path
    loaded = hl.load(result.best_path)
    assert hl.evaluate(loaded, data_of(), split="val")["loss"] == pytest.approx(result.best_score)
    for name, value in loaded.state_dict().items():
        np.testing.assert_array_equal(value, result.model.state_dict()[name])


def test_two_are_kept(tmp_path: Path, at_once: None) -> None:
    result = hl.train(mlp_net(), data_of(), config_of(tmp_path, save_every="7 steps"))
    paths = sorted((tmp_path / "runs/1/checkpoints").glob("step-*"))
    assert [int(path.stem.removeprefix("step-")) for path in paths] == [35, 40]
    assert result.last_path == str(paths[-1])


def test_a_checkpoint_is_a_model(tmp_path: Path) -> None:
    """With the average of the weights, which validation uses, under the model's names."""
    result = hl.train(Net(), data_of(), config_of(tmp_path, ema=0.5, max_epochs=3))
    loaded = hl.load(result.last_path)
    assert set(loaded.state_dict()) == set(result.model.state_dict())
    for name, value in result.model.state_dict().items():
        np.testing.assert_array_equal(value, loaded.state_dict()[name])
    Net().load_state_dict(hl.read_weights(result.last_path))


def test_without_checkpoints(tmp_path: Path) -> None:
    config = config_of(tmp_path, enable_checkpointing=False, logger="csv")
    result = hl.train(mlp_net(), data_of(), config)
    assert (result.last_path, result.best_path) == (None, None)
    assert not (tmp_path / "runs/1/checkpoints").exists()
    assert result.resume(max_epochs=5, save_last=True).epochs == 5


def test_max_disk(tmp_path: Path) -> None:
    one = stopped(tmp_path)
    size = Path(one.last_path).stat().st_size
    config = config_of(
        tmp_path, save_every=1, save_top_k=0, max_disk=int(1.5 * size), output_dir=tmp_path / "b"
    )
    hl.train(mlp_net(), data_of(), config)
    files = list((tmp_path / "b/1/checkpoints").iterdir())
    assert sum(path.stat().st_size for path in files) <= 1.5 * size
    assert len([path for path in files if path.name.startswith("step")]) == 1
    with pytest.raises(hl.ConfigError, match="max_disk: a checkpoint of this run takes"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path, max_disk="1kB"))


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import collections

    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(keeper_module.shutil, "disk_usage", lambda path: usage(10, 10, 0))
    with pytest.raises(hl.CheckpointError, match="output_dir: checkpoints of this run take up to"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path))
    result = hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir=None))
    assert result.epochs == 4  # did not ask for output
    assert "where 0 bytes are free" in capsys.readouterr().err


def test_what_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    config = config_of(tmp_path, lr=1e30, optimizer="sgd", save_every="1 steps", max_epochs=9)
    result = hl.train(mlp_net(), data_of(), config)
    assert result.stop_reason == "nan"
    for path in (tmp_path / "runs/1/checkpoints").glob("*"):
        state = hl.read_weights(path)
        assert all(np.isfinite(v).all() for k, v in state.items() if not k.startswith("hotloop."))


def test_two_at_once(tmp_path: Path) -> None:
    class Again:
        def on_epoch_end(self, run: Any) -> None:
            if run.epoch == 3:
                with pytest.raises(hl.BusyError, match="another process or call trains in"):
                    hl.train(mlp_net(), data_of(), resume=True, output_dir=tmp_path / "runs")
                run.stop()

    stopped(tmp_path)
    result = hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True, callbacks=[Again()])
    assert result.epochs == 3


# ---- what is put back


def test_best_weights_of_before(tmp_path: Path) -> None:
    """The best epoch lies before the checkpoint, and none after it is better."""
    config = config_of(tmp_path, max_epochs=5, mode="max", restore_best=True)
    whole = hl.train(mlp_net(), data_of(), config.replace(output_dir=None))
    assert whole.best_epoch == 1
    first = hl.train(mlp_net(), data_of(), config, callbacks=[StopAt(3)])
    assert first.best_epoch == 1
    again = first.resume()
    assert_same(final(again), final(whole))


def test_patience_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, max_epochs=20, mode="max", early_stopping=5)
    whole = hl.train(mlp_net(), data_of(), config.replace(output_dir=None))
    assert (whole.stop_reason, whole.epochs) == ("early_stopping", 6)
    first = hl.train(mlp_net(), data_of(), config, callbacks=[StopAt(4)])
    again = first.resume()
    assert (again.stop_reason, again.epochs) == ("early_stopping", 6)
    done = again.resume()
    assert (done.stop_reason, done.epochs, done.steps) == ("early_stopping", 6, again.steps)
    assert again.resume(early_stopping=7).epochs == 8


def test_rates_beyond_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_TABLE_STEPS", 8)
    config = config_of(tmp_path, scheduler="cosine")
    whole = hl.train(mlp_net(), data_of(), config.replace(output_dir=None))
    again = hl.train(mlp_net(), data_of(), config, callbacks=[StopAt(2)]).resume()
    assert_same(final(again), final(whole))


def test_a_snapshot_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is written when training has gone on."""
    submit = keeper_module.Writer.submit
    gate = threading.Event()

    def submit_behind_gate(self: Any, kind: str, job: Any) -> None:
        submit(self, kind, lambda: gate.wait(30) and job())

    class Open:
        def on_epoch_end(self, run: Any) -> None:
            if run.epoch == 3:
                gate.set()

    monkeypatch.setattr(keeper_module.Writer, "submit", submit_behind_gate)
    config = config_of(tmp_path, save_every="15 steps", save_top_k=0)
    hl.train(mlp_net(), data_of(), config, callbacks=[Open()])
    paths = sorted((tmp_path / "runs/1/checkpoints").glob("step-*"))
    assert [path.name for path in paths] == [f"step-{n:09d}.safetensors" for n in (15, 40)]
    run = Snapshot.read(str(paths[0])).run
    assert (run["epoch"], len(run["history"]["loss"]), run["control"]["applied"]) == (1, 1, 15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hl.CheckpointWarning)
        again = hl.train(mlp_net(), data_of(), resume=paths[0], output_dir=tmp_path / "other")
    assert_same(final(again), final(hl.train(mlp_net(), data_of(), config_of(tmp_path))))


def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, capsys: Any, every_step: None
) -> None:
    class Spoil:
        def on_epoch_begin(self, run: Any) -> None:
            if run.epoch == 2:
                run.runtime.session.write("param", np.full(3, np.inf))

    config = config_of(tmp_path, on_nan="skip", save_top_k=0, save_every=1)
    result = hl.train(mlp_net(), data_of(), config, callbacks=[Spoil()])
    names = [path.name for path in (tmp_path / "runs/1/checkpoints").iterdir()]
    assert sorted(names) == [f"step-{n:09d}.safetensors" for n in (10, 20)]
    assert result.last_path.endswith("020.safetensors")
    said = capsys.readouterr().err
    assert "no checkpoint could be written: 1.weight is not finite" in said


def test_a_file_of_an_epochs_end_has_what_callbacks_set_there(
    tmp_path: Path, every_step: None
) -> None:
    """They do not hear of that epoch again when the run goes on."""

    class Halves:
        def on_epoch_end(self, run: Any) -> None:
            run.set_lr(run.logs["lr"] / 2)
            run.log("late", run.epoch)

    config = config_of(tmp_path, save_every="1 epochs", save_top_k=0)
    whole = hl.train(mlp_net(), data_of(), config, callbacks=[Halves()])
    assert whole.history["late"] == [1, 2, 3, 4]
    first = min((tmp_path / "runs/1/checkpoints").glob("step-*"))
    assert first.name == "step-000000010.safetensors"
    config = config.replace(output_dir=tmp_path / "other")
    again = hl.train(mlp_net(), data_of(), config, resume=first, callbacks=[Halves()])
    assert_same(final(again), final(whole))


def test_each_epoch_that_is_asked_for_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though epochs are shorter than it takes to write one."""
    write = keeper_module.Keeper._write
    written = []

    def write_slowly(self: Any, snapshot: Any, path: str, steps: int) -> str:
        time.sleep(0.3)
        written.append(steps)
        return write(self, snapshot, path, steps)

    monkeypatch.setattr(keeper_module.Keeper, "_write", write_slowly)
    data = hl.DataModule.from_arrays(*images(32), batch_size=8)  # 4 steps in an epoch
    config = config_of(tmp_path, max_epochs=3, save_every=1, save_top_k=0)
    hl.train(mlp_net(), data, config)
    assert written == [4, 8, 12]
    names = sorted(path.name for path in (tmp_path / "runs/1/checkpoints").iterdir())
    assert names == ["step-000000008.safetensors", "step-000000012.safetensors"]


def test_the_latest_is_by_commit(tmp_path: Path, every_step: None) -> None:
    """A run that went on from an earlier step has lower numbers than what it left behind."""
    config = config_of(tmp_path, save_every=1, save_top_k=0)
    hl.train(mlp_net(), data_of(), config)
    early = min((tmp_path / "runs/1/checkpoints").glob("step-*"))
    result = hl.train(mlp_net(), data_of(), config, resume=early, callbacks=[StopAt(3)])
    assert result.epochs == 3
    names = [Path(one.path).stem for one in keeper_module.checkpoints_in(str(tmp_path / "runs/1"))]
    assert [int(name.removeprefix("step-")) for name in names] == [30, 20, 40, 10]
    assert hl.train(mlp_net(), data_of(), config, resume=True).epochs == 4


def test_the_autotune_cache_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stopped(tmp_path)
    assert Snapshot.read(first.last_path).run["autotune_cache"] == ""  # of a CPU
    taken: list[str] = []
    monkeypatch.setattr(fit, "take_autotune_cache", taken.append)
    first.resume()
    assert taken == [""]


def test_best_weights_that_were_not_kept(tmp_path: Path) -> None:
    first = hl.train(mlp_net(), data_of(), config_of(tmp_path, restore_best=False, mode="max"))
    result = first.resume(max_epochs=5, restore_best=True)
    assert result.best_epoch == 5
    assert all(np.abs(value).sum() > 0 for value in result.model.state_dict().values())


def test_again_and_again_with_a_configuration(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        config = config_of(tmp_path, max_epochs=n, precision="auto")
        assert hl.train(mlp_net(), data_of(), config, resume="auto").epochs == n


# ---- what a reading of it found


class Odd(nn.Module):
    """Cannot be recorded for prediction: it has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def training_step(self, batch: Any) -> Any:
        x = batch["x"].flatten(1)
        return (self.layer(x) - x).square().mean()


def test_a_model_that_cannot_be_recorded_is_trained_and_saved(tmp_path: Path, capsys: Any) -> None:
    config = config_of(tmp_path, restore_best=True)
    result = hl.train(Odd(), data_of(), config)
    assert "hl.load refuses them" in capsys.readouterr().err
    assert result.epochs == 4
    for path in (result.last_path, result.best_path):
        with pytest.raises(hl.CheckpointError, match="without its predict graph"):
            hl.load(path)
        Odd().load_state_dict(hl.read_weights(path))
    whole = hl.train(Odd(), data_of(), config.replace(output_dir=None, max_epochs=6))
    assert_same(final(hl.train(Odd(), data_of(), resume=True, max_epochs=6,
                               output_dir=tmp_path / "runs")), final(whole))  # fmt: skip


def test_other_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory was short then, and is not now: no rows are left out, none are trained on twice."""
    plan = runtime.Runtime.plan

    def short(self: Any, graph: Any, split: Any = None, feed: Any = None, **options: Any) -> Any:
        if options.get("k") == 1:
            raise hl.OutOfMemoryError("no memory")
        return plan(self, graph, split, feed, **options)

    config = config_of(tmp_path, optimizer="sgd")
    whole = hl.train(mlp_net(), data_of(), config.replace(output_dir=None))
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.stop() if run.step == 7 else None)
    for short_first in (True, False):
        folder = tmp_path / str(short_first)
        with monkeypatch.context() as patch:
            if short_first:
                patch.setattr(runtime.Runtime, "plan", short)
            hl.train(mlp_net(), data_of(), config, output_dir=folder, callbacks=[stop])
        with monkeypatch.context() as patch:
            if not short_first:
                patch.setattr(runtime.Runtime, "plan", short)
            result = hl.train(mlp_net(), data_of(), config, output_dir=folder, resume=True)
        assert result.steps == whole.steps
        for name, value in whole.model.state_dict().items():
            np.testing.assert_allclose(result.model.state_dict()[name], value, 1e-4, 1e-6)


def test_models_that_compute_something_else(tmp_path: Path) -> None:
    stopped(tmp_path)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(hl.ConfigError, match="the model must be the one that the run began with"):
        hl.train(other, data_of(), config_of(tmp_path), resume=True)
    frozen = mlp_net()
    frozen[1].weight.requires_grad_(False)
    with pytest.raises(hl.ConfigError, match=r"1\.weight, which was trained then"):
        hl.train(frozen, data_of(), config_of(tmp_path), resume=True)


def test_data_that_is_changed_otherwise(tmp_path: Path) -> None:
    X, y = images()
    X = X.reshape(len(X), -1)
    model = nn.Linear(64, 3)

    def of(**options: Any) -> hl.DataModule:
        return hl.DataModule.from_arrays(X, y, val=0.2, batch_size=8, **options)

    pairs = [
        (of(standardize=True), of(), "standardize of x: none now"),
        (of().map(lambda x, y: (x + 1, y)), of().map(lambda x, y: (x + 2, y)), "augment "),
    ]
    for i, (first, then, words) in enumerate(pairs):
        config = config_of(tmp_path, output_dir=tmp_path / str(i), max_epochs=2)
        hl.train(model, first, config)
        with pytest.raises(hl.ConfigError, match=words):
            hl.train(model, then, config.replace(max_epochs=3), resume=True)


def test_callbacks_hear_of_every_file(tmp_path: Path) -> None:
    seen: list[tuple[Any, Any]] = []
    note = hl.LambdaCallback(on_checkpoint=lambda run: seen.append((run.last_path, run.best_path)))
    slow = hl.LambdaCallback(on_epoch_end=lambda run: time.sleep(0.1))
    config = config_of(tmp_path, save_every=1, save_top_k=0)
    result = hl.train(mlp_net(), data_of(), config, callbacks=[note, slow])
    assert len(seen) == 4
    assert seen[-1] == (result.last_path, None)
    seen.clear()
    result = hl.train(
        mlp_net(), data_of(), config_of(tmp_path, restore_best=True), callbacks=[note]
    )
    assert seen[-1] == (result.last_path, result.best_path)


def test_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = hl.train(mlp_net(), data_of(), config_of(tmp_path, output_dir="runs"))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    again = hl.train(mlp_net(), data_of(), resume=first.last_path, max_epochs=5)
    assert Path(again.last_path).parent == Path(first.last_path).parent
    monkeypatch.chdir(tmp_path / "runs/1")
    for name in ("checkpoints", "./checkpoints", "."):
        assert hl.train(mlp_net(), data_of(), resume=name).epochs == 5


def test_the_rate_of_an_epoch_whose_validation_alone_is_left(tmp_path: Path) -> None:
    def fail(run: Any) -> None:
        raise ValueError("mine")

    config = config_of(tmp_path, scheduler="cosine")
    whole = hl.train(mlp_net(), data_of(), config.replace(output_dir=None))
    failing = hl.LambdaCallback(on_validation_end=fail)
    with pytest.raises(ValueError, match="mine"):
        hl.train(mlp_net(), data_of(), config, callbacks=[failing])
    assert_same(final(hl.train(mlp_net(), data_of(), config, resume=True)), final(whole))


def test_best_models_of_other_monitors_and_branches(tmp_path: Path) -> None:
    config = config_of(tmp_path, metrics=["accuracy"], restore_best=True, max_epochs=3)
    first = hl.train(mlp_net(), data_of(), config, monitor="val_accuracy")
    assert "val_accuracy" in first.best_path
    result = first.resume(max_epochs=4, monitor="val_loss", resume_strict=False)
    assert (result.best_epoch, result.monitor) == (4, "val_loss")
    assert "val_loss" in result.best_path
    config = config.replace(output_dir=tmp_path / "b", lr=0.01, max_epochs=6)
    whole = hl.train(mlp_net(), data_of(), config)
    early = hl.train(mlp_net(), data_of(), config, output_dir=tmp_path / "c", max_steps=20)
    other = hl.train(mlp_net(), data_of(), resume=early, lr=1e-6, max_steps=None,
                     resume_strict=False)  # fmt: skip
    loaded = hl.load(other.best_path)
    assert hl.evaluate(loaded, data_of(), split="val")["loss"] == pytest.approx(other.best_score)
    assert whole.best_score < other.best_score


def test_a_best_model_that_was_not_written_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    write = keeper_module.write_safetensors
    tries = []

    def fail_once(*args: Any) -> int:
        tries.append(args[0])
        if len(tries) == 1:
            raise hl.CheckpointError("no room")
        return write(*args)

    monkeypatch.setattr(keeper_module, "write_safetensors", fail_once)
    monkeypatch.setattr(keeper_module, "_BETWEEN", 0.0)
    config = config_of(
        tmp_path, mode="max", restore_best=True, save_last=False
    )  # the first is best
    result = hl.train(mlp_net(), data_of(), config)
    assert (result.best_epoch, len(tries)) == (1, 2)
    assert "best-epoch1-" in result.best_path


@pytest.mark.parametrize("method", ["on_train_begin", "on_epoch_begin", "on_checkpoint"])
def test_errors_of_callbacks_let_the_folder_go(method: str, tmp_path: Path) -> None:
    def fail(run: Any) -> None:
        raise ValueError("mine")

    def fail_too(run: Any) -> None:
        raise KeyError("mine too")

    first = stopped(tmp_path)
    both = hl.LambdaCallback(**{method: fail}, on_exception=fail_too)
    kept = None
    try:
        first.resume(callbacks=[both], save_every=1)
    except (KeyError, ValueError) as error:
        kept = error  # as a notebook keeps it, with its frames
    assert kept is not None
    assert hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True).epochs == 4


def test_a_forked_child_does_not_hold_the_folder(tmp_path: Path) -> None:
    child = []

    def fork(run: Any) -> None:
        if run.epoch == 1:
            if (pid := os.fork()) == 0:
                time.sleep(5)
                os._exit(0)
            child.append(pid)

    config = config_of(tmp_path, max_epochs=2)
    result = hl.train(
        mlp_net(), data_of(), config, callbacks=[hl.LambdaCallback(on_epoch_end=fork)]
    )
    try:
        assert result.resume(max_epochs=3, callbacks=[]).epochs == 3
    finally:
        os.kill(child[0], signal.SIGKILL)
        os.waitpid(child[0], 0)


def test_results_whose_files_are_others_now(tmp_path: Path) -> None:
    a = hl.train(mlp_net(), data_of(), config_of(tmp_path, max_epochs=1))
    b = a.resume(max_epochs=2)
    hl.train(mlp_net(), data_of(), resume=a, max_epochs=2, lr=1e-7, resume_strict=False)
    with pytest.raises(hl.CheckpointError, match="was written again by a run"):
        b.resume(max_epochs=3)
    c = hl.train(mlp_net(), data_of(), config_of(tmp_path, lr=1e-7), resume=True)
    c.resume(max_epochs=5)
    with pytest.raises(hl.CheckpointError, match="is gone, as runs that went on"):
        a.resume(max_epochs=2)


def test_a_damaged_file_is_the_first_to_go(tmp_path: Path) -> None:
    first = hl.train(mlp_net(), data_of(), config_of(tmp_path, max_epochs=1))
    second = first.resume(max_epochs=2)
    damaged = Path(second.last_path)
    data = bytearray(damaged.read_bytes())
    data[-5] ^= 1
    damaged.write_bytes(data)
    with pytest.warns(hl.CheckpointWarning, match="is damaged"):
        third = hl.train(mlp_net(), data_of(), config_of(tmp_path, max_epochs=3), resume=True)
    names = sorted(path.name for path in damaged.parent.glob("step-*"))
    assert names == [Path(path).name for path in (first.last_path, third.last_path)]


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    stopped(tmp_path)
    (tmp_path / "runs/1/checkpoints").chmod(0)
    with plain_permissions(), pytest.raises(hl.CheckpointError, match="cannot be read"):
        hl.train(mlp_net(), data_of(), config_of(tmp_path), resume=True)
    (tmp_path / "runs/1/checkpoints").chmod(0o755)
