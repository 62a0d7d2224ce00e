"""examples/cape against the same in PyTorch: losses, and every gradient of a training step."""

import sys
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from parity import zoo  # noqa: E402
from parity.sequence_zoo import ROOT  # noqa: E402
from parity.twins import check_twins  # noqa: E402

from benchmarks import cape_torch  # noqa: E402


def test_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several supports, points that are hidden here or there; places are of float32 in both."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "cape")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    from model import Cape

    sizes = {
        "width": 32, "heads": 8, "encoder_layers": 1, "support_layers": 2, "decoder_layers": 2,
        "encoder_hidden": 24, "decoder_hidden": 40, "positions": 8, "dropout": 0.0,
        "image_size": 64, "noise": 0.0,
    }  # fmt: skip
    model, twin = Cape(**sizes), cape_torch.Cape(**sizes)
    for parameter in (*model.parameters(), *twin.parameters()):
        parameter.requires_grad_(True)
    state = zoo.random_state(twin)
    state |= {"mean": np.zeros((3, 1, 1), np.float32), "std": np.ones((3, 1, 1), np.float32)}
    assert set(model.state_dict()) == set(state)
    twin.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    model.load_state_dict(state)
    rng = np.random.default_rng(1)
    query = rng.standard_normal((2, 2, 3, 64, 64))
    support, goal = rng.uniform(0, 1, (2, 1, 7, 3)), rng.uniform(0, 1, (2, 2, 7, 3))
    support[0, 0, 5:, 2] = 0  # the end
    support[1, 0, 1, 2] = 0
    goal[:, :, 3, 2] = 0

    def losses(query: Any, support: Any, goal: Any) -> Any:
        return tuple(
            model.training_step({"x": {"query": query, "support_y": support}, "y": goal}).values()
        )

    check_twins(losses, model, twin, twin, [query, support, goal], training=True, rtol=1e-4)
