"""Optimizers alone, on given gradients, and torch's trajectories.

A case is an optimizer's settings in hotloop and in torch. A parameter starts at `start`; its
gradient in step t is `gradients[t]` and the learning rate that of the case times `rates[t]`, which
falls, so that a rate that enters a moment is seen. What torch makes of it in float64, the parameter
after each step, is stored in optimizer_cases.npz with torch's version. Run as a script in an
environment with torch, this file writes it anew; tests/parity holds it to torch.

torch has no Lion: its case is Algorithm 2 of Chen et al. 2023 (arXiv 2302.06675), computed here.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

STORED = Path(__file__).with_suffix(".npz")
STEPS, SIZE = 20, 19  # a vector of 16 and a rest

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """Settings of hotloop's OptimizerConfig, and torch's class with its own."""

    ours: dict[str, Any]
    torch: str
    theirs: dict[str, Any]


CASES = {
    "sgd": Case({}, "SGD", {}),
    "sgd decay": Case({"weight_decay": 0.2}, "SGD", {"weight_decay": 0.2}),
    "sgd momentum": Case({"momentum": 0.9}, "SGD", {"momentum": 0.9}),
    "sgd dampening": Case(
        {"momentum": 0.8, "dampening": 0.4, "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.8, "dampening": 0.4, "weight_decay": 0.1},
    ),
    "sgd nesterov": Case(
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": Case({}, "Adam", {}),
    "adam betas eps decay": Case(
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
        "Adam",
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adamw": Case({}, "AdamW", {"weight_decay": 0.0}),
    "adamw betas eps decay": Case(
        {"betas": (0.7, 0.9), "eps": 1e-4, "weight_decay": 0.3},
        "AdamW",
        {"betas": (0.7, 0.9), "eps": 1e-4, "weight_decay": 0.3},
    ),
    "rmsprop": Case({}, "RMSprop", {}),
    "rmsprop alpha eps decay": Case(
        {"alpha": 0.8, "eps": 1e-3, "weight_decay": 0.1},
        "RMSprop",
        {"alpha": 0.8, "eps": 1e-3, "weight_decay": 0.1},
    ),
    "rmsprop momentum": Case({"momentum": 0.9}, "RMSprop", {"momentum": 0.9}),
    "rmsprop centered": Case({"centered": True}, "RMSprop", {"centered": True}),
    "rmsprop centered momentum": Case(
        {"alpha": 0.9, "centered": True, "momentum": 0.5, "weight_decay": 0.1},
        "RMSprop",
        {"alpha": 0.9, "centered": True, "momentum": 0.5, "weight_decay": 0.1},
    ),
    "lion": Case({}, "", {"betas": (0.9, 0.99), "weight_decay": 0.0}),
    "lion betas decay": Case(
        {"betas": (0.8, 0.95), "weight_decay": 0.2}, "", {"betas": (0.8, 0.95), "weight_decay": 0.2}
    ),
}
LRS = {"sgd": 0.1, "adam": 0.02, "adamw": 0.02, "rmsprop": 0.01, "lion": 0.01}


def optimizer_of(name: str) -> str:
    """The optimizer that a case is of."""
    return name.partition(" ")[0]


def rates() -> Array:
    """What the learning rate is multiplied by in each step: from 1 towards 1/2."""
    return 1.0 - np.arange(STEPS) / (2 * STEPS)


def draw() -> dict[str, Array]:
    """Where the parameter starts and its gradients, some elements' a hundred times others'."""
    rng = np.random.default_rng(5)
    scale = 10.0 ** rng.uniform(-1.5, 0.5, SIZE)
    return {
        "start": rng.standard_normal(SIZE).astype(np.float32),
        "gradients": (rng.standard_normal((STEPS, SIZE)) * scale).astype(np.float32),
    }


def run_lion(name: str, start: Array, gradients: Array) -> Array:
    """Algorithm 2 as printed: interpolate, update by the sign, then track the momentum."""
    (beta1, beta2), decay = CASES[name].theirs["betas"], CASES[name].theirs["weight_decay"]
    p, m, trail = start.astype(np.float64), np.zeros(SIZE), []
    for rate, g in zip(LRS["lion"] * rates(), gradients.astype(np.float64), strict=True):
        c = beta1 * m + (1 - beta1) * g
        p = p - rate * (np.sign(c) + decay * p)
        m = beta2 * m + (1 - beta2) * g
        trail.append(p)
    return np.array(trail)


def run_torch(name: str, start: Array, gradients: Array) -> Array:
    """The parameter after each step by torch, in float64."""
    import torch

    _, kind, settings = CASES[name]
    p = torch.nn.Parameter(torch.from_numpy(start.astype(np.float64)))
    lr = LRS[optimizer_of(name)]
    optimizer = getattr(torch.optim, kind)([p], lr, **settings)
    trail = []
    for rate, g in zip(rates(), gradients.astype(np.float64), strict=True):
        optimizer.param_groups[0]["lr"] = lr * rate
        p.grad = torch.from_numpy(g)
        optimizer.step()
        trail.append(p.detach().numpy().copy())
    return np.array(trail)


def answers(given: dict[str, Array]) -> dict[str, Array]:
    """Every case's trajectory on given data."""
    return {
        name: (run_torch if case.torch else run_lion)(name, given["start"], given["gradients"])
        for name, case in CASES.items()
    }


if __name__ == "__main__":
    import torch

    given = draw()
    version = np.array(torch.__version__.partition("+")[0])
    np.savez_compressed(STORED, torch_version=version, **given, **answers(given))
