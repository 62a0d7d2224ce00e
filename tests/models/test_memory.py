"""Memory of training is known before the first step: what is predicted is what is measured.

Three sizes of batches for each model, a smaller last batch, validation, and the best weights kept.
"""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from hotloop.data.shorthand import as_datamodule
from hotloop.training.run.planner import Planner
from models.small import ZOO, make_model, make_rows
from train.recipes import quiet

BATCHES = (3, 5, 8)
QUICK = ("resnet_cifar", "mobilenet_v3_small", "bert")
CASES = [
    pytest.param(name, batch, marks=[] if name in QUICK else [pytest.mark.long])
    for name in ZOO
    for batch in BATCHES
]


def make(name: str, batch: int) -> tuple[hl.nn.Module, hl.DataModule, hl.TrainingConfig]:
    """A model, two batches and two rows to train on, one and a row to validate."""
    x, y = make_rows(name, 3 * batch + 3)
    data = hl.DataModule.from_arrays(
        x[: 2 * batch + 2], y[: 2 * batch + 2], val=(x[2 * batch + 2 :], y[2 * batch + 2 :]),
        batch_size=batch,
    )  # fmt: skip
    config = quiet(max_epochs=2, precision="32-true", restore_best=True, lr=1e-4)
    return make_model(name), data, config


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_what_is_predicted_is_what_is_measured(name: str, batch: int) -> None:
    """Running allocates nothing, and a plan that was only predicted is the one that is made.

    The copy of what is saved is NumPy's, beside the core's memory.
    """
    predicted = hl.plan(*make(name, batch)).info
    _core.alloc_peak_reset()
    result = hl.train(*make(name, batch))
    assert result.steps == 6
    assert result.peak_bytes == result.predicted_peak_bytes >= _core.alloc_stats()["peak_bytes"]
    model, data, config = make(name, batch)
    planner = Planner(model, as_datamodule(data), config)
    try:
        planner.prepare()
        made = planner.train_plans[0][0].info()
    finally:
        planner.close()
    of_plan = made.keys() - {"store_bytes"}  # a prediction says what the session takes, too
    assert {k: made[k] for k in of_plan} == {k: predicted[k] for k in of_plan}
    # The session's, which all plans share: the best weights and sums of validation are there, too.
    assert predicted["store_bytes"] <= made["store_bytes"] < result.peak_bytes
    assert made["arena_bytes"] < result.peak_bytes


def test_memory_follows_the_batch() -> None:
    """Activations grow by the same bytes for every image."""
    bytes_of = [hl.plan(*make("resnet_cifar", batch)).info["arena_bytes"] for batch in (4, 8, 12)]
    first, second = np.diff(bytes_of)
    assert first > 0
    assert abs(first - second) < 0.1 * first
