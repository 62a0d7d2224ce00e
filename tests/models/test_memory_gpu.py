"""Memory of training on a GPU, real or emulated: what is predicted is what is taken.

The plans of the whole zoo are made, which takes all memory that a run has, and not run; small nets
train, with a smaller last batch, validation and the best weights kept.
"""

import os

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from hotloop.data.shorthand import as_datamodule
from hotloop.training.run.planner import Planner
from models.small import ZOO, make_model, make_rows
from needs import NO_GPU
from train.recipes import quiet

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)

QUICK = ("resnet_cifar", "mobilenet_v3_small", "bert")
BATCHES = (2, 3, 5)
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in ZOO]
TRAININGS = [
    pytest.param("mobilenet_v3_small", "32-true"),
    pytest.param("resnet_cifar", "32-true", marks=pytest.mark.long),
    pytest.param("resnet_cifar", "16-mixed", marks=pytest.mark.long),
]


def make(
    name: str, batch: int, n: int, n_val: int = 0, side: int = 32, **fields: object
) -> tuple[hl.nn.Module, hl.DataModule, hl.TrainingConfig]:
    """A model, and rows to train on and to validate."""
    x, y = make_rows(name, n + n_val, side)
    val = (x[n:], y[n:]) if n_val else None
    data = hl.DataModule.from_arrays(x[:n], y[:n], val=val, batch_size=batch)
    usual = {"precision": "32-true", "max_epochs": 1, "lr": 1e-4, "benchmark": False}
    config = quiet(**(usual | {"accelerator": "gpu"} | fields))
    return make_model(name, side), data, config


def memory_of(device: _core.Device) -> dict[str, int]:
    memory = device.memory()
    assert memory is not None
    return memory


def check_plan(gpu: _core.Device, name: str, batch: int, **fields: object) -> None:
    """Of batches of one size: a plan that was only predicted has the bytes of the one made."""
    predicted = hl.plan(*make(name, batch, 2 * batch, **fields))
    before = memory_of(gpu)
    assert before["current_bytes"] == 0  # a prediction takes none
    model, data, config = make(name, batch, 2 * batch, **fields)
    planner = Planner(model, as_datamodule(data), config)
    try:
        planner.prepare()
        made, taken = planner.train_plans[0][0].info(), memory_of(gpu)
        known = planner.predicted_bytes
    finally:
        planner.close()
    of_plan = made.keys() - {"store_bytes"}  # once it is made, those have the best weights too
    assert {k: predicted.info[k] for k in of_plan} == {k: made[k] for k in of_plan}
    assert predicted.peak_bytes == known == taken["current_bytes"] == taken["peak_bytes"]
    if "fake" in os.environ.get("HOTLOOP_CUDA_PATH", ""):  # no one else takes memory there
        assert before["free_bytes"] - taken["free_bytes"] == known


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_takes_what_is_predicted(gpu: _core.Device, name: str) -> None:
    check_plan(gpu, name, 3, optimizer="sgd")


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", QUICK)
def test_so_do_batches_of_any_size(gpu: _core.Device, name: str, batch: int) -> None:
    check_plan(gpu, name, batch, side=16, restore_best=True)


@pytest.mark.parametrize(("name", "precision"), TRAININGS)
def test_training_takes_no_more(gpu: _core.Device, name: str, precision: str) -> None:
    """A step allocates nothing, whichever plan it is of."""
    fields = {"precision": precision, "restore_best": True, "max_epochs": 2}
    result = hl.train(*make(name, 3, 5, 4, side=16, **fields))
    assert len(result.history["val_loss"]) == 2
    taken = memory_of(gpu)
    assert result.peak_bytes == result.predicted_peak_bytes == taken["peak_bytes"]
    assert taken["current_bytes"] == 0


class Attending(hl.nn.Module):
    """A transformer's layer on long sequences."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = hl.nn.TransformerEncoderLayer(32, 4, 32, dropout, batch_first=True)
        self.head = hl.nn.Linear(32, 2)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.layer(x, is_causal=True).mean(1))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_scores_of_attention_have_no_memory(
    gpu: _core.Device, precision: str, dropout: float
) -> None:
    """All that a step takes is less than one matrix of them."""
    n, length = 2, 1024
    x = np.zeros((n, length, 32), "float32")
    data = hl.DataModule.from_arrays(x, np.arange(n) % 2, val=None, batch_size=n)
    config = quiet(accelerator="gpu", precision=precision, max_epochs=1, benchmark=False)
    predicted = hl.plan(Attending(dropout), data, config)
    bytes_of = 4 if precision == "32-true" else 2
    assert predicted.peak_bytes < n * 4 * length * length * bytes_of
    assert "cuda.attention_grad" in predicted.text
    assert f"{length}, {length})" not in predicted.text
