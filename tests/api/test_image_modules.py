"""Modules for images by what defines them: NumPy's padding, the functions that they call, the
statistics that they keep. Their values against torch are in test_nn_functional.py and tests/parity.
"""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import quiet

PADS = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
SIZES = {1: (9,), 2: (7, 6), 3: (5, 6, 4)}


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mode", PADS)
@pytest.mark.parametrize("padding", ["same", "other"])
def test_padding_modes(n: int, mode: str, padding: str) -> None:
    """As a convolution without padding of what NumPy pads; "same" has the odd one behind."""
    kernel, dilation = (4, 3, 2)[:n], (1, 2, 3)[:n]
    layer = getattr(nn, f"Conv{n}d")(
        2, 3, kernel, padding="same" if padding == "same" else (3, 2, 1)[:n], dilation=dilation,
        padding_mode=mode,
    )  # fmt: skip
    pairs = [(p, p) for p in (3, 2, 1)[:n]]
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel)]
        pairs = [(t // 2, t - t // 2) for t in totals]
    x = floats(2, 2, *SIZES[n])
    padded = np.pad(x, [(0, 0), (0, 0), *pairs], PADS[mode])
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    conv = getattr(F, f"conv{n}d")
    np.testing.assert_allclose(layer(x), conv(padded, weight, bias, dilation=dilation), atol=1e-5)
    if padding == "same":
        assert layer(x).shape == (2, 3, *SIZES[n])


@pytest.mark.parametrize("n", SIZES)
def test_transposed_sizes(n: int) -> None:
    """Every size that the stride leaves open can be asked for, and no other."""
    layer = getattr(nn, f"ConvTranspose{n}d")(2, 3, 3, stride=3, padding=1)

    class Sized(nn.Module):
        def __init__(self, size: list[int]) -> None:
            super().__init__()
            self.layer, self.size = layer, size

        def forward(self, x: hl.Tensor) -> hl.Tensor:
            return self.layer(x, output_size=self.size)

    x = floats(1, 2, *(2, 3, 2)[:n])
    least = [(size - 1) * 3 + 1 for size in x.shape[2:]]
    small = Sized(least)(x)
    for extra in range(3):
        size = [low + extra for low in least]
        y = Sized(size)(x)
        assert y.shape == (1, 3, *size)
        np.testing.assert_allclose(y[(..., *(slice(low) for low in least))], small, atol=1e-6)
    for extra in (-1, 3):
        with pytest.raises(ValueError, match="output_size must lie between"):
            Sized([low + extra for low in least])(x)


def test_lazy_layers_are_the_plain_ones() -> None:
    for n, size in SIZES.items():
        for kind in ("Conv", "ConvTranspose"):
            x = floats(2, 4, *size)
            hl.manual_seed(1)
            lazy = getattr(nn, f"Lazy{kind}{n}d")(6, 3, groups=2)
            y = lazy(x)
            hl.manual_seed(1)
            plain = getattr(nn, f"{kind}{n}d")(4, 6, 3, groups=2)
            np.testing.assert_array_equal(y, plain(x))
            assert repr(lazy) == repr(plain)


def test_initial_values() -> None:
    """Uniform up to 1 / sqrt(fan_in), weight and bias."""
    for layer, fan_in in (
        (nn.Conv2d(8, 64, 5, groups=2), 4 * 25), (nn.ConvTranspose2d(64, 8, 5, groups=2), 4 * 25),
    ):  # fmt: skip
        bound = fan_in**-0.5
        for values in (layer.weight.numpy(), layer.bias.numpy()):
            assert abs(values).max() <= bound
        assert abs(layer.weight.numpy()).max() > 0.95 * bound


@pytest.mark.parametrize("kind", ["InstanceNorm2d", "BatchNorm2d"])
def test_running_statistics(kind: str) -> None:
    """They move by momentum towards the batch's mean and unbiased variance; evaluation uses them,
    and so does the frozen norm."""
    norm = getattr(nn, kind)(3, momentum=0.25, track_running_stats=True)
    x, y = floats(8, 3, 4, 5) * 2 + 1, np.arange(8) % 2
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(60, 2)).requires_grad_(False)
    model[2].requires_grad_(True)
    data = hl.DataModule.from_arrays(x, y, batch_size=8, val=None)
    hl.train(model, data, quiet(max_steps=1, precision="32-true"))
    axes = (2, 3) if kind == "InstanceNorm2d" else (0, 2, 3)
    mean, var = x.mean(axes), x.var(axes, ddof=1)
    if kind == "InstanceNorm2d":
        mean, var = mean.mean(0), var.mean(0)
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.75 + 0.25 * var, rtol=1e-5)
    norm.eval()
    shape = (1, 3, 1, 1)
    scale = norm.running_var.numpy().reshape(shape) + norm.eps
    want = (x - norm.running_mean.numpy().reshape(shape)) / np.sqrt(scale)
    np.testing.assert_allclose(norm(x), want, rtol=1e-4, atol=1e-5)
    if kind == "BatchNorm2d":
        frozen = nn.FrozenBatchNorm2d(3)
        frozen.load_state_dict(norm.state_dict())
        frozen.train()
        np.testing.assert_allclose(frozen(x), want, rtol=1e-4, atol=1e-5)


def test_states_of_other_norms() -> None:
    """A frozen norm takes a batch norm's state; older files of torch have no count of batches."""
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sequential(nn.BatchNorm2d(3)))
    frozen = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sequential(nn.FrozenBatchNorm2d(3)))
    state = {k: np.full_like(v, 3) for k, v in model.state_dict().items()}
    frozen.load_state_dict(state)
    for key, value in frozen.state_dict().items():
        np.testing.assert_array_equal(value, state[key])
    old = {k: v for k, v in state.items() if "num_batches" not in k}
    given = dict(old)
    assert model.load_state_dict(old).missing_keys == []
    assert old == given
    assert model.state_dict()["1.0.num_batches_tracked"] == 0
    np.testing.assert_array_equal(model[1][0].running_var.numpy(), [3, 3, 3])
    with pytest.raises(ValueError, match=r"missing keys: 1\.0\.running_var$"):
        model.load_state_dict({k: v for k, v in old.items() if "var" not in k})
