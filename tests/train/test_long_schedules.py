"""Schedules of more steps than the tables hold at a time."""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.config.schedule import lr_multipliers
from hotloop.training.plans import runtime
from train.recipes import quiet, regression

X, Y = regression(64)


class Scaled(nn.Module):
    """A model with a number that moves with the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 1)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.inner(x) * hl.scalar("factor", lambda step: 1.0 + step / 100)


def steps_of(**fields: Any) -> tuple[list[tuple[float, ...]], np.ndarray[Any, Any]]:
    """Logs of all steps, and the weights."""
    hl.manual_seed(3)
    model = Scaled()
    logs: list[tuple[float, ...]] = []

    class Watch:
        def on_epoch_end(self, run: Any) -> None:
            logs[:] = run.runtime.session.control_log(0)

    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16, shuffle=False)
    config = quiet(max_epochs=10, lr=0.01, optimizer="sgd", scheduler="cosine", warmup=5, **fields)
    hl.train(model, data, config, callbacks=(Watch(),))
    return logs, model.inner.weight.numpy().copy()


@pytest.mark.parametrize("fields", [{}, {"accumulate_grad_batches": 2}, {"max_steps": 17}])
def test_tables_move_with_the_steps(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Whatever they hold at a time, each step has its own learning rate and numbers."""
    want_logs, want = steps_of(**fields)
    for columns in (1, 7, 16):
        monkeypatch.setattr(runtime, "_TABLE_STEPS", columns)
        logs, got = steps_of(**fields)
        assert logs == want_logs
        assert got.tobytes() == want.tobytes()


def test_skipped_steps_do_not_move_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a step counts the applied ones, which the device alone knows."""
    x = X.copy()
    x[16:32] = np.nan  # of four batches the second
    data = hl.DataModule.from_arrays(
        x, Y, val=None, batch_size=16, shuffle=False, allow_nonfinite=True
    )
    config = quiet(max_epochs=6, lr=0.01, optimizer="sgd", scheduler="linear", on_nan="skip")
    rates = []
    for columns in (1 << 16, 5):
        monkeypatch.setattr(runtime, "_TABLE_STEPS", columns)
        hl.manual_seed(3)
        model = nn.Linear(5, 1)
        result = hl.train(model, data, config)
        rates.append((result.history["lr"], model.weight.numpy().tobytes()))
    assert rates[0] == rates[1]


def test_a_stepper_moves_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_TABLE_STEPS", 3)
    config = quiet(max_epochs=3, lr=0.5, optimizer="sgd", scheduler="linear")
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    stepper = hl.stepper(nn.Linear(5, 1), config, data)
    state = stepper.state_dict()
    batch = (X[:16], Y[:16])
    rates = [stepper.step(batch)["lr"] for _ in range(14)]
    want = lr_multipliers(config, np.arange(12), 12, 4) * 0.5
    np.testing.assert_allclose(rates, [*want, want[-1], want[-1]], rtol=1e-6)
    stepper.load_state_dict(state)  # back to the first step
    assert stepper.step(batch)["lr"] == rates[0]


def test_planning_does_not_depend_on_max_epochs() -> None:
    """A billion steps that max_time ends: memory for a few of them, and the rate rises."""
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    short = hl.plan(nn.Linear(5, 1), data, quiet(max_epochs=10**5)).info["store_bytes"]
    result = hl.train(
        nn.Linear(5, 1), data, max_epochs=10**9, max_time=0.3, enable_progress_bar=False,
        logger=None, lr=0.01,
    )  # fmt: skip
    plan = hl.plan(nn.Linear(5, 1), data, quiet(max_epochs=10**9))
    assert plan.info["store_bytes"] == short
    assert result.stop_reason == "max_time"
    assert max(result.history["lr"]) > 0.005
