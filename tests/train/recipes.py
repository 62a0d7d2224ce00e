"""Small data, small nets, quiet configurations; and a trainer in NumPy to hold hotloop against."""

from collections.abc import Iterator
from typing import Any

import hotloop as hl
import numpy as np
from hotloop import nn

Array = np.ndarray[Any, Any]


def quiet(**fields: Any) -> hl.TrainingConfig:
    """A bare configuration that prints and writes nothing: constant lr, no clip, no decay."""
    silent = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": None,
        "enable_checkpointing": False,
        "restore_best": False,
    }
    return hl.TrainingConfig.bare().replace(**(silent | fields))


def exact(**fields: Any) -> hl.TrainingConfig:
    """The same in float64, with SGD: every step can be computed by hand."""
    return quiet(**({"precision": "64-true", "optimizer": "sgd", "lr": 0.05} | fields))


def regression(n: int = 64, d: int = 5, k: int = 1, seed: int = 0) -> tuple[Array, Array]:
    """Linear data with noise; float32 values."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    y = X @ rng.standard_normal((d, k)) + 0.1 * rng.standard_normal((n, k)) + 0.5
    return X, y.astype(np.float32)


def classes(n: int = 90, d: int = 6, c: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Gaussian blobs."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % c)
    X = rng.standard_normal((c, d))[y] * 1.5 + rng.standard_normal((n, d))
    return X.astype(np.float32), y.astype(np.int64)


def mlp(d: int = 6, c: int = 3, *, norm: bool = False, dropout: float = 0.0) -> nn.Module:
    """A small classifier."""
    layers: list[nn.Module] = [nn.Linear(d, 16)]
    if norm:
        layers.append(nn.BatchNorm1d(16))
    layers.append(nn.Tanh())
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(16, c))


def weights(model: nn.Module) -> dict[str, Array]:
    """Copies of all values, in float64."""
    return {name: np.asarray(value, np.float64) for name, value in model.state_dict().items()}


def same_bits(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Whether two state dicts hold the same bytes, in arrays of the same dtypes and shapes."""
    return a.keys() == b.keys() and all(
        (a[k].dtype, a[k].shape, a[k].tobytes()) == (b[k].dtype, b[k].shape, b[k].tobytes())
        for k in a
    )


# ---------------------------------------------------------------------------- by hand


def mse_gradient(W: Array, b: Array, x: Array, y: Array) -> tuple[float, Array, Array]:
    """Loss and gradients of mean((x W' + b - y)**2)."""
    error = x @ W.T + b - y
    scale = 2 / error.size
    return float((error**2).mean()), scale * error.T @ x, scale * error.sum(0)


def epochs_of(data: hl.DataModule, n: int) -> Iterator[tuple[Array, Array]]:
    """The batches of n epochs in float64."""
    for epoch in range(n):
        for batch in data.train_batches(epoch):
            yield batch["x"].astype(np.float64), batch["y"].astype(np.float64)


def start(model: nn.Module) -> tuple[Array, Array]:
    """Weight and bias of a Linear, in float64."""
    values = weights(model)
    return values["weight"], values["bias"]


def check_line(model: nn.Module, W: Array, b: Array, rtol: float = 1e-6) -> None:
    """A Linear's weights against those by hand: equal but for the rounding to float32."""
    np.testing.assert_allclose(weights(model)["weight"], W, rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(weights(model)["bias"], b, rtol=rtol, atol=1e-7)
