"""Optimizers alone, on given gradients: the parameter after each of 20 steps.

The loss is sum(p * g_t), g_t being the batch, so the gradient of step t is g_t to the bit. In
float64 the trajectories agree to 20 steps' rounding; in float32 likewise by float32's, relative to
the parameters' size.
"""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import nn  # noqa: E402
from train.recipes import quiet  # noqa: E402

N, STEPS = 67, 20


class Point(nn.Module):
    """A parameter whose gradient is the batch."""

    def __init__(self) -> None:
        super().__init__()
        start = np.random.default_rng(0).standard_normal((1, N)).astype(np.float32)
        self.p = nn.Parameter(start)

    def training_step(self, batch: dict[str, Any]) -> Any:
        return (self.p * batch["x"]).sum()


GRADIENTS = np.random.default_rng(1).standard_normal((STEPS, N)).astype(np.float32)


def run_hotloop(optimizer: Any, precision: str, **fields: Any) -> list[np.ndarray]:
    """The parameter after each step."""
    data = hl.DataModule.from_arrays(GRADIENTS, batch_size=1, shuffle=False)
    model = Point()
    config = quiet(max_epochs=1, optimizer=optimizer, precision=precision, **fields)
    step = hl.stepper(model, config, data)
    trail = []
    for batch in data.train_batches(0):
        step.step(batch)
        values = step._runtime.session.read("param", "float64")
        trail.append(values.copy())
    return trail


def run_torch(make: Any) -> list[np.ndarray]:
    p = torch.nn.Parameter(torch.from_numpy(Point().state_dict()["p"].copy()).double())
    optimizer = make([p])
    trail = []
    for g in GRADIENTS:
        p.grad = torch.from_numpy(g[None].copy()).double()
        optimizer.step()
        trail.append(p.detach().numpy().ravel().copy())
    return trail


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, Algorithm 2, as printed there."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (b1, b2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p.sub_(lr * (torch.sign(c) + decay * p))
                m.copy_(b2 * m + (1 - b2) * p.grad)


optim, C = torch.optim, hl.OptimizerConfig
VARIANTS: dict[str, tuple[Any, Any]] = {
    "sgd": (C("sgd", lr=0.1, weight_decay=0.0), lambda p: optim.SGD(p, 0.1)),
    "sgd momentum": (
        C("sgd", lr=0.1, momentum=0.9, weight_decay=0.0),
        lambda p: optim.SGD(p, 0.1, 0.9),
    ),
    "sgd dampening": (
        C("sgd", lr=0.1, momentum=0.9, dampening=0.4, weight_decay=0.0),
        lambda p: optim.SGD(p, 0.1, 0.9, 0.4),
    ),
    "sgd nesterov decay": (
        C("sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam": (C("adam", lr=0.02, weight_decay=0.0), lambda p: optim.Adam(p, 0.02)),
    "adam betas eps decay": (
        C("adam", lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        lambda p: optim.Adam(p, 0.02, (0.8, 0.95), 1e-3, 0.1),
    ),
    "adamw": (
        C("adamw", lr=0.02, weight_decay=0.1),
        lambda p: optim.AdamW(p, 0.02, weight_decay=0.1),
    ),
    "adamw betas eps": (
        C("adamw", lr=0.02, betas=(0.7, 0.9), eps=1e-4, weight_decay=0.3),
        lambda p: optim.AdamW(p, 0.02, (0.7, 0.9), 1e-4, 0.3),
    ),
    "rmsprop": (C("rmsprop", lr=0.01, weight_decay=0.0), lambda p: optim.RMSprop(p, 0.01)),
    "rmsprop alpha eps decay": (
        C("rmsprop", lr=0.01, alpha=0.8, eps=1e-3, weight_decay=0.1),
        lambda p: optim.RMSprop(p, 0.01, 0.8, 1e-3, 0.1),
    ),
    "rmsprop momentum": (
        C("rmsprop", lr=0.01, momentum=0.9, weight_decay=0.0),
        lambda p: optim.RMSprop(p, 0.01, momentum=0.9),
    ),
    "rmsprop centered": (
        C("rmsprop", lr=0.01, centered=True, weight_decay=0.0),
        lambda p: optim.RMSprop(p, 0.01, centered=True),
    ),
    "rmsprop centered momentum": (
        C("rmsprop", lr=0.01, centered=True, momentum=0.5, weight_decay=0.0),
        lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    ),
    "lion": (
        C("lion", lr=0.01, weight_decay=0.0),
        lambda p: Lion(p, 0.01, (0.9, 0.99), 0.0),
    ),
    "lion decay": (
        C("lion", lr=0.01, betas=(0.8, 0.95), weight_decay=0.2),
        lambda p: Lion(p, 0.01, (0.8, 0.95), 0.2),
    ),
}


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_steps(variant: str, precision: str) -> None:
    config, make = VARIANTS[variant]
    ours = run_hotloop(config, precision, decay_norm_and_bias=True)
    theirs = run_torch(make)
    unit = 2.0**-52 if precision == "64-true" else 2.0**-23
    for t, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(a, b, rtol=0, atol=64 * (t + 1) * unit, err_msg=f"step {t + 1}")


def test_clip_by_norm_is_torchs() -> None:
    ours = run_hotloop("sgd", "64-true", lr=0.1, gradient_clip_val=2.0)

    class Clipped(optim.SGD):
        def step(self) -> None:
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 2.0)
            super().step()

    for a, b in zip(ours, run_torch(lambda p: Clipped(p, 0.1)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


S = hl.SchedulerConfig
L = torch.optim.lr_scheduler
SCHEDULES: dict[str, tuple[Any, Any]] = {
    "constant": ("constant", lambda o: L.ConstantLR(o, 1.0)),
    "exponential": (S("exponential", gamma=0.8), lambda o: L.ExponentialLR(o, 0.8)),
    "step": (S("step", step_size=2, gamma=0.3), lambda o: L.StepLR(o, 2, 0.3)),
    "multistep": (
        S("multistep", milestones=(1, 3), gamma=0.5),
        lambda o: L.MultiStepLR(o, [1, 3], 0.5),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_epoch_schedules(name: str) -> None:
    """Five epochs of four steps; torch's per-epoch schedulers."""
    schedule, make = SCHEDULES[name]
    from hotloop.training.schedule import lr_table

    config = quiet(max_epochs=5, lr=0.5, optimizer="sgd", scheduler=schedule)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5)
    scheduler = make(optimizer)
    want = []
    for _ in range(5):
        want += [optimizer.param_groups[0]["lr"]] * 4
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(lr_table(config, 20, 4) * 0.5, want, rtol=1e-12)
