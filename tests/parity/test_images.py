"""Modules and functions for images against torch, where an expression and inputs do not say all."""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import nn  # noqa: E402
from hotloop.nn import functional as F  # noqa: E402
from parity.twins import check_twins  # noqa: E402

TF = torch.nn.functional


def floats(*shape: int, seed: int = 0) -> Any:
    n = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(n)
    return ((order - n // 2) * 0.025 + 0.0125).reshape(shape)


def check(ours: Any, theirs: Any, *inputs: Any, rtol: float = 1e-10) -> None:
    check_twins(ours, None, theirs, None, inputs, rtol=rtol)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_unpooling(n: int, whole: bool) -> None:
    size = (5, 7, 6)[:n]
    x = floats(2, 3, *size)
    pooled, index = getattr(TF, f"max_pool{n}d")(torch.tensor(x), 2, return_indices=True)
    given = (pooled.numpy(), index.numpy())
    if not whole:  # the last row and column are dropped: indices count without them
        given = (given[0], np.arange(given[1].size).reshape(given[1].shape) % given[1][0, 0].size)
    output_size = list(size) if whole else None
    mine, twin = (getattr(home, f"MaxUnpool{n}d")(2) for home in (nn, torch.nn))
    assert repr(mine) == repr(twin)
    check(lambda a, i: mine(a, i, output_size), lambda a, i: twin(a, i, output_size), *given)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "size", [{"output_size": 3}, {"output_ratio": (0.6, 0.7, 0.5)}, {"output_size": 1}]
)
def test_fractional_pooling(n: int, size: dict[str, Any]) -> None:
    samples = np.random.default_rng(1).random((2, 3, n))
    size = {k: v[:n] if isinstance(v, tuple) else v for k, v in size.items()}
    mine, twin = (
        lambda x, home=home, r=r: getattr(home, f"fractional_max_pool{n}d_with_indices")(
            x, 2, _random_samples=r, **size
        )
        for home, r in ((F, samples), (TF, torch.tensor(samples)))
    )
    check(mine, twin, floats(2, 3, *(6, 7, 5)[:n]))


def test_fractional_windows_are_drawn() -> None:
    """Each call has windows of its own, all within the image, that cover both its ends."""
    x = floats(64, 1, 9, 9).astype("float32")
    (a, i), (_, j) = (F.fractional_max_pool2d(x, 2, 4, return_indices=True) for _ in range(2))
    assert (i != j).any()
    np.testing.assert_array_equal(np.take_along_axis(x.reshape(64, 81), i.reshape(64, 16), 1),
                                  a.reshape(64, 16))  # fmt: skip
    assert (i // 9)[:, 0, -1].min() >= 7


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("n", [2, 3])
def test_grid_sample(n: int, mode: str, padding_mode: str, align_corners: bool) -> None:
    if n == 3 and mode == "bicubic":
        with pytest.raises(ValueError, match="mode must be one of bilinear, nearest"):
            F.grid_sample(floats(1, 1, 2, 2, 2), floats(1, 1, 1, 1, 3), mode)
        return
    rng = np.random.default_rng(2)
    grid = rng.uniform(-2.4, 2.4, (2, 3, 4, 5, n) if n == 3 else (2, 4, 5, n))
    mine, twin = (
        lambda x, g, home=home: home.grid_sample(x, g, mode, padding_mode, align_corners)
        for home in (F, TF)
    )
    check(mine, twin, floats(2, 3, *(4, 6, 5)[:n]), grid)


def test_grid_of_no_numbers() -> None:
    x, grid = np.ones((1, 2, 3, 3), "float32"), np.full((1, 1, 2, 2), np.nan, "float32")
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding_mode in ("zeros", "border", "reflection"):
            y = F.grid_sample(x, grid, mode, padding_mode)
            assert y.shape == (1, 2, 1, 2)
            assert not y.any()


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 3, 2, 4, 5)])
def test_affine_grid(size: tuple[int, ...], align_corners: bool) -> None:
    n = len(size) - 2
    mine, twin = (
        lambda t, home=home: home.affine_grid(t, list(size), align_corners) for home in (F, TF)
    )
    check(mine, twin, floats(2, n, n + 1))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("zero", [False, True])
def test_lp_pool(p: float, zero: bool) -> None:
    """Where all of a window is 0, so is its gradient."""
    x = abs(floats(2, 3, 5, 7)) * (not zero)
    if zero and p == float("inf"):
        return  # which of equal numbers has the gradient is max pooling's affair
    mine, twin = (
        lambda x, home=home: home.lp_pool2d(x, p, (2, 3), stride=2, ceil_mode=True)
        for home in (F, TF)
    )
    check(mine, twin, x)


def test_frozen_norm() -> None:
    """It stays as it is in training, and is the evaluated batch norm."""
    rng = np.random.default_rng(3)
    frozen, twin = nn.FrozenBatchNorm2d(4), torch.nn.BatchNorm2d(4).eval()
    state = {
        name: rng.uniform(0.5, 2, 4).astype("float32")
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    frozen.load_state_dict(state)
    twin.load_state_dict({k: torch.tensor(v) for k, v in state.items()}, strict=False)
    x = floats(2, 4, 3, 3).astype("float32")
    frozen.train()
    with torch.no_grad():
        np.testing.assert_allclose(frozen(x), twin(torch.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
    assert not list(frozen.parameters())
    for name, value in frozen.state_dict().items():
        np.testing.assert_array_equal(value, state[name])


def test_converted_norms() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sequential(nn.BatchNorm2d(3)), nn.Flatten())
    model[1][0].weight.copy_(np.array([1.0, 2.0, 3.0], "float32"))
    made = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert made is model
    assert type(model[1][0]) is nn.SyncBatchNorm
    np.testing.assert_array_equal(model[1][0].weight.numpy(), [1, 2, 3])
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2)), nn.SyncBatchNorm)


def test_drop_path() -> None:
    """Whole samples go, the others are scaled so that the mean stays; none in evaluation."""
    x = np.ones((4096, 2, 3), "float32")
    y = F.drop_path(x, 0.25, True)
    assert set(np.unique(y.round(5))) == {0.0, np.float32(1 / 0.75).round(5)}
    assert ((y == 0).all((1, 2)) | (y != 0).all((1, 2))).all()
    assert abs(y.mean() - 1) < 0.05
    np.testing.assert_array_equal(nn.DropPath(0.25)(x), x)
    y = F.drop_path(x, 0.25, True, scale_by_keep=False)
    assert set(np.unique(y)) == {0.0, 1.0}


@pytest.mark.parametrize("name", ["dropout2d", "feature_alpha_dropout"])
def test_dropped_channels(name: str) -> None:
    x = np.ones((256, 16, 2, 3), "float32")
    y = getattr(F, name)(x, 0.25, True)
    assert (y == y[:, :, :1, :1]).all()
    twin = getattr(TF, name)(torch.tensor(x), 0.25, True).numpy()
    want = np.unique(twin)
    got, mine = np.unique(y, return_counts=True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mine / y.size, [0.25, 0.75], atol=0.03)


def test_convolution_over_time() -> None:
    mine, twin = (lambda x, w, b, home=home: home.conv_tbc(x, w, b, 1) for home in (F, TF))
    check(mine, twin, floats(7, 2, 3), floats(3, 3, 4, seed=1), floats(4))


def test_shuffled_channels() -> None:
    x = floats(2, 6, 3, 3).astype("float32")
    want = TF.native_channel_shuffle(torch.tensor(x), 3).numpy()
    np.testing.assert_array_equal(F.native_channel_shuffle(x, 3), want)
