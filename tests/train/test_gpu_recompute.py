"""Recomputation on a GPU, real or emulated: the same bits in less of its memory."""

import gc
import os
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from needs import NO_GPU, emulated
from train.recipes import quiet, same_bits
from train.test_gpu import run_alone
from train.test_recompute import images, norms, recurrent, transformer

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


@pytest.fixture(autouse=True)
def alone() -> None:
    """What other tests left in the GPU's memory would count, and might go at any time."""
    hl.empty_cache()
    gc.collect()


def train(made: tuple[nn.Module, Any], **fields: Any) -> tuple[dict[str, Any], Any]:
    """Two epochs of batches and a smaller last one, by kernels that no clock has chosen."""
    model, x = made
    data = hl.DataModule.from_arrays(x[:-3], np.arange(len(x) - 3) % 3, batch_size=16, val=None)
    config = {"max_epochs": 2, "accelerator": "gpu", "deterministic": True, "optimizer": "sgd"}
    result = hl.train(model, data, quiet(**(config | fields)))
    return dict(model.state_dict()) | {"loss": np.asarray(result.history["loss"])}, result


@pytest.mark.parametrize("make", [norms, transformer, recurrent, images])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_weights_are_the_same_to_the_last_bit(gpu: _core.Device, make: Any, precision: str) -> None:
    windows = 2 if precision == "32-true" else 1
    fields = {"precision": precision, "accumulate_grad_batches": windows}
    want, _ = train(make(), recompute=False, **fields)
    for share in (0.5, True):
        got, result = train(make(), recompute=share, **fields)
        assert same_bits(got, want), share
        assert result.peak_bytes == result.predicted_peak_bytes


def wide() -> tuple[nn.Module, Any]:
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())]
    x = np.random.default_rng(0).standard_normal((2048, 64)).astype(np.float32)
    return nn.Sequential(*layers, nn.Linear(64, 3)), x


def in_one_batch(*, of: Any = wide, **fields: Any) -> tuple[dict[str, Any], Any]:
    model, x = of()
    data = hl.DataModule.from_arrays(x, np.arange(len(x)) % 3, batch_size=2048, val=None)
    config = {"max_epochs": 1, "accelerator": "gpu", "deterministic": True, "optimizer": "sgd"}
    config |= {"precision": "32-true"}
    result = hl.train(model, data, quiet(**(config | fields)))
    return dict(model.state_dict()), result


def test_a_limit_is_of_the_gpus_memory(gpu: _core.Device) -> None:
    """By recomputing, and below what that gives by parts of batches."""
    want, free = in_one_batch()
    _, least = in_one_batch(recompute=True)
    limit = (free.peak_bytes + least.peak_bytes) // 2
    assert least.peak_bytes < limit < free.peak_bytes
    got, result = in_one_batch(memory_limit=limit)
    assert result.peak_bytes <= limit
    assert 0 < float(result.config.recompute) <= 1
    assert same_bits(got, want)
    _, result = in_one_batch(memory_limit=least.peak_bytes * 9 // 10)
    assert result.peak_bytes <= least.peak_bytes * 9 // 10
    with pytest.raises(hl.OutOfMemoryError, match="memory_limit: out of memory: must be at least"):
        in_one_batch(memory_limit="100 kB")


class Spoilt(nn.Module):
    """In the second step a logarithm is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.net = wide()[0]

    def forward(self, x: Any) -> Any:
        return self.net(x) + hl.log(hl.scalar("shift", lambda step: 1.0 if step < 1 else -1.0))


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_what_looks_for_a_nan_stays_within_the_limit(gpu: _core.Device) -> None:
    """With each step, before it; and where there is no room for it, it is said."""
    want, free = in_one_batch()
    got, result = in_one_batch(detect_anomaly=True, memory_limit=free.peak_bytes)
    assert result.peak_bytes <= free.peak_bytes
    assert same_bits(got, want)

    def spoilt() -> tuple[nn.Module, Any]:
        return Spoilt(), wide()[1]

    _, result = in_one_batch(of=spoilt, max_epochs=2, memory_limit=free.peak_bytes * 2)
    assert "log (forward) made 1 NaN" in str(result.not_finite)
    _, least = in_one_batch(recompute=True)
    limit = least.peak_bytes + 20_000
    _, looked = in_one_batch(of=spoilt, recompute=True, max_epochs=2)
    _, result = in_one_batch(of=spoilt, recompute=True, max_epochs=2, memory_limit=limit)
    assert result.peak_bytes <= limit
    # Where programs are compiled, the plan without fusion takes no more than that of the step.
    is_within = looked.peak_bytes <= limit
    words = "log (forward) made" if is_within else "looking for where it began failed: memory_limit"
    assert words in str(result.not_finite)


@emulated
def test_memory_that_ends_is_met_by_recomputing_first() -> None:
    """A GPU on which the plan of a whole batch does not fit, unless activations are recomputed."""
    code = """
from train.test_gpu_recompute import in_one_batch
result = in_one_batch(enable_progress_bar="auto")[1]
print("share", result.config.recompute)
"""
    out = " ".join(run_alone(code, f"memory={(64 + 12) << 20}").split())
    assert "trying to recompute activations" in out
    assert "micro-batches" not in out
    assert "| recompute " in out
    assert "share 0.5" in out or "share True" in out
