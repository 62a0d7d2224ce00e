"""Attention beside torch's where a large number is added to all scores of a row, and where heads of
queries share those of keys: values and all gradients, on the reference and a CPU."""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import nn  # noqa: E402
from hotloop.nn import functional as F  # noqa: E402
from parity.twins import check_twins, copy_weights, shake  # noqa: E402

TF = torch.nn.functional
# What each device agrees to: beside 1e9 float64 has 1e-7 of a score.
DEVICES = {"ref": 1e-6, "cpu": 2e-5}
LARGE = [-1e9, 1e9, -1e6, float(np.finfo(np.float32).min)]


def draw(*shape: int) -> Any:
    """Multiples of a quarter, so that scores in float32 are the same in any order of sums."""
    return np.random.default_rng(shape).integers(-4, 5, shape) / 4


def check_function(arrays: list[Any], device: str, **options: Any) -> None:
    check_twins(
        lambda *x: F.scaled_dot_product_attention(*x, **options),
        None,
        lambda *x: TF.scaled_dot_product_attention(*x, **options),
        None,
        arrays,
        rtol=DEVICES[device],
        device=device,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("large", LARGE)
def test_rows_of_large_numbers(large: float, device: str) -> None:
    """The gradient of such a row is that of even weights, its mask's, too."""
    mask = np.zeros((2, 1, 3, 5))
    mask[0, 0, 1] = mask[1, 0, 2] = large
    mask[1, 0, 2, 3] = -np.inf
    arrays = [draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 6), mask]
    check_function(arrays, device, scale=0.25)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("large", LARGE)
def test_a_sample_of_padding(large: float, wanted: bool, device: str) -> None:
    """A mask of floats, of keys, that means to hide all of a sample."""
    model, twin = nn.MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2)
    shake(model, np.random.default_rng(0))
    copy_weights(model, twin)
    mask = np.zeros((2, 5))
    mask[1] = large

    def calls(layer: Any) -> Any:
        def call(x: Any, mask: Any) -> Any:
            made = layer(x, x, x, key_padding_mask=mask, need_weights=wanted)
            return tuple(y for y in made if y is not None)

        return call

    # Of scores beside 1e6 float32 has 0.06, and each library rounds its own.
    rtol = 0.05 if device == "cpu" and abs(large) < 1e9 else DEVICES[device]
    check_twins(
        calls(model), model, calls(twin), twin, [draw(5, 2, 8), mask], rtol=rtol, device=device
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_shared_heads(lead: tuple[int, ...], has_mask: bool, device: str) -> None:
    """The last leading dim has the heads, of a query of three dims the only one."""
    arrays = [draw(*lead, 4, 3, 8), draw(*lead, 2, 5, 8), draw(*lead, 2, 5, 6)]
    if has_mask:
        arrays.append(draw(*lead, 4, 3, 5))
    check_function(arrays, device, enable_gqa=True)
    check_function([*arrays[:3], draw(4, 1, 5)], device, enable_gqa=True)
