"""Optimizers and schedules beside torch as it is installed: what the fast tests have stored is its
own, clipping by norm is its function, and schedules by epochs are its classes.
"""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from train import optimizer_cases  # noqa: E402
from train.recipes import quiet  # noqa: E402
from train.test_optimizers import Point  # noqa: E402


def test_stored_trajectories_are_torchs() -> None:
    stored = dict(np.load(optimizer_cases.STORED))
    given = {name: stored[name] for name in ("start", "gradients")}
    answers = optimizer_cases.answers(given)
    for name, value in (optimizer_cases.draw() | answers).items():
        np.testing.assert_allclose(stored.pop(name), value, rtol=1e-14, atol=1e-15, err_msg=name)
    assert stored.keys() == {"torch_version"}


def test_clip_by_norm_is_torchs() -> None:
    gradients = np.random.default_rng(1).standard_normal((20, optimizer_cases.SIZE))
    data = hl.DataModule.from_arrays(gradients.astype(np.float32), batch_size=1, shuffle=False)
    config = quiet(precision="64-true", optimizer="sgd", lr=0.1, gradient_clip_val=2.0)
    step = hl.stepper(Point(), config.replace(max_epochs=1), data)
    p = torch.nn.Parameter(torch.from_numpy(Point().state_dict()["p"].copy()).double())
    optimizer = torch.optim.SGD([p], 0.1)
    for batch in data.train_batches(0):
        step.step(batch)
        p.grad = torch.from_numpy(batch["x"]).double()
        torch.nn.utils.clip_grad_norm_([p], 2.0)
        optimizer.step()
        ours = step._runtime.session.read("param", "float64")
        np.testing.assert_allclose(ours, p.detach().numpy()[0], rtol=0, atol=1e-13)


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
    from hotloop.training.config.schedule import lr_multipliers

    config = quiet(max_epochs=5, lr=0.5, optimizer="sgd", scheduler=schedule)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5)
    scheduler = make(optimizer)
    want = []
    for _ in range(5):
        want += [optimizer.param_groups[0]["lr"]] * 4
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(lr_multipliers(config, np.arange(20), 20, 4) * 0.5, want, rtol=1e-12)
