"""A run that is continued has the bits of one that never stopped; what may not differ is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.checkpoints import keeper as keeper_module
from hotloop.training.checkpoints.snapshot import Snapshot

from train.recipes import quiet

N, BATCH, EPOCHS = 100, 10, 5  # 10 steps in an epoch


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All checkpoints of a run stay, and each is written before the next step."""
    monkeypatch.setattr(keeper_module, "_KEPT", 10_000)
    save = keeper_module.Keeper.save

    def save_and_wait(self: Any, *args: Any) -> None:
        save(self, *args)
        self._writer.wait()

    monkeypatch.setattr(keeper_module.Keeper, "save", save_and_wait)


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
        **{f"history.{k}": np.array(v) for k, v in result.history.items() if k != "seconds"},
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
        Net(), data_of(), config.replace(output_dir=tmp_path / "runs", save_every="1 steps")
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
