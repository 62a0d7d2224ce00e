"""Warnings: of the category that says what they are about, at the user's own line, filterable."""

import subprocess
import sys
import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()
RX, RY = regression(64)


def caught(call):
    """The warnings of hotloop's that a call gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [w for w in found if issubclass(w.category, hl.HotloopWarning)]


def only(call, category, words):
    """The one warning of a call, and whether it names this file."""
    (warning,) = caught(call)
    assert warning.category is category
    assert warning.filename == __file__
    assert words in str(warning.message)
    return warning


def explode(**fields):
    data = hl.DataModule.from_arrays(RX, RY, batch_size=8)
    loud = {"optimizer": "sgd", "lr": 1e30, "max_epochs": 5}
    return hl.train(nn.Linear(5, 1), data, quiet(**loud | fields))


def test_a_quiet_run_that_meets_nan_says_so() -> None:
    only(explode, hl.NotFiniteWarning, "not finite at step")
    assert not caught(lambda: explode(lr=1e-3))


def test_a_run_that_is_shown_says_it_in_its_last_line(capfd) -> None:
    assert not caught(lambda: explode(enable_progress_bar="auto"))
    assert "not finite at step" in capfd.readouterr().err


def test_nan_that_raises_does_not_warn() -> None:
    def call():
        with pytest.raises(hl.NotFiniteError):
            explode(on_nan="raise")

    assert not caught(call)


def values(y, loss="auto", x=RX):
    model = nn.Linear(x.shape[1], y.shape[1] if y.ndim == 2 else 1)
    return lambda: hl.train(model, (x, y), quiet(max_epochs=1, loss=loss))


@pytest.mark.parametrize(
    "loss", ["auto", "mse", "huber", nn.MSELoss(), nn.functional.l1_loss, {"a": "mse"}]
)
def test_float_targets_of_zeros_and_ones(loss) -> None:
    y = (RY[:, 0] > 0.5).astype(np.float32)
    only(values(y, loss), hl.DataWarning, "all 0 or 1")


def test_which_zeros_and_ones_are_no_mistake() -> None:
    y = (RY[:, 0] > 0.5).astype(np.float32)
    assert not caught(values(y, "bce"))
    assert not caught(values(np.where(y > 0, y, 0.5)))
    assert not caught(values(np.zeros(64, np.float32)))  # constant
    assert not caught(values(y.astype(np.int64), "bce"))


@pytest.mark.parametrize("loss", ["auto", "l1", nn.SmoothL1Loss()])
@pytest.mark.parametrize("y", [1e6 + 3 * RY, 2000 + RY[:, 0], -500 + RY], ids=["6", "flat", "neg"])
def test_targets_far_from_zero(y, loss) -> None:
    warning = only(values(y.astype(np.float32), loss), hl.DataWarning, "standard deviation")
    assert "write standardize='y'" in str(warning.message)


def test_which_targets_are_not_far_from_zero() -> None:
    assert not caught(values(RY))
    assert not caught(values(3 + RY))
    assert not caught(values(np.full_like(RY, 1e3)))  # constant
    images = np.random.default_rng(0).random((64, 5)).astype(np.float32)
    images[:, 0] = 0.99 + 0.001 * images[:, 0]  # one column alone
    assert not caught(values(images))
    rows = np.r_[0:64]
    data = hl.DataModule.from_arrays(
        RX, np.where(rows < 32, RY[:, 0], 1e6 + RY[:, 0]), val=rows[32:]
    )
    assert not caught(lambda: hl.train(nn.Linear(5, 1), data, quiet(max_epochs=1)))  # validation's


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m(X),
        lambda m: hl.predict(m, X),
        lambda m: hl.evaluate(m, (X, Y)),
    ],
)
def test_batch_norm_that_was_never_trained(use) -> None:
    model = Normed()
    warning = only(lambda: use(model), hl.ModelWarning, "body.1")
    assert "running statistics" in str(warning.message)
    hl.train(model, (X, Y), quiet(max_epochs=1))
    assert not caught(lambda: use(model))
    other = Normed()
    other.load_state_dict(model.state_dict())
    assert not caught(lambda: use(other))
    free = nn.BatchNorm1d(6, track_running_stats=False)
    assert not caught(lambda: free(X))


def test_other_warnings_have_a_category_too() -> None:
    one_hot = np.eye(3, dtype=np.float32)[Y]
    only(lambda: hl.DataModule.from_arrays(X, one_hot), hl.DataWarning, "exactly one 1")
    only(lambda: hl.train(mlp(), (X, Y * 0), quiet(max_epochs=1)), hl.DataWarning, "of class 0")
    ends = nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))
    only(lambda: hl.train(ends, (X, Y), quiet(max_epochs=1)), hl.ModelWarning, "softmax")

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.idle = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.body(x)

    found = caught(lambda: hl.train(Idle(), (X, Y), quiet(max_epochs=1)))
    assert [w.category for w in found] == [hl.ModelWarning]
    assert "idle.weight, idle.bias" in str(found[0].message)
    assert found[0].filename == __file__


def test_each_category_is_filtered_by_itself() -> None:
    for category in (hl.DataWarning, hl.ModelWarning, hl.NotFiniteWarning):
        assert issubclass(category, hl.HotloopWarning)
        assert issubclass(category, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", hl.ModelWarning)
        Normed()(X)
        with pytest.raises(hl.NotFiniteWarning):
            explode()


def test_a_script_sees_its_own_line_and_may_make_errors_of_warnings() -> None:
    code = "import hotloop as hl, numpy as np\nhl.nn.BatchNorm1d(2)(np.ones((3, 2), 'f'))\n"
    run = [sys.executable, "-c", code]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stderr
    assert shown.startswith("<string>:2: ModelWarning: ")
    run.insert(1, "-Werror")
    assert subprocess.run(run, capture_output=True, text=True, check=False).returncode != 0


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (slice(3, 4), "completed, 1 step skipped (loss or gradient not finite), after"),
        (slice(None), "none applied: nothing was learned"),
    ],
)
def test_steps_that_were_skipped_warn_in_a_quiet_run(bad, text) -> None:
    def run():
        poisoned = RX.copy()
        poisoned[bad] = 1e30  # its square is infinite
        data = hl.DataModule.from_arrays(poisoned, RY, batch_size=16)
        return hl.train(nn.Linear(5, 1), data, quiet(max_epochs=1, on_nan="skip"))

    only(run, hl.NotFiniteWarning, text)


def test_steps_that_float16_s_scale_skips_do_not_warn() -> None:
    assert not caught(lambda: hl.train(mlp(), (X, Y), quiet(max_epochs=1, precision="16-mixed")))


def zero_or_one():
    return (X, (Y > 0).astype(np.float32))


def ends_in_softmax():
    return nn.Sequential(mlp(), nn.Softmax(1))


def normed():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize("ask", [hl.evaluate, hl.stepper], ids=["evaluate", "stepper"])
def test_what_train_warns_of_is_said_elsewhere_too(ask) -> None:
    def call(model, data, **fields):
        given = {"data": data} if ask is hl.stepper else {}
        return ask(model, **given, **fields) if given else ask(model, data, **fields)

    only(lambda: call(mlp(c=1), zero_or_one()), hl.DataWarning, "are all 0 or 1")
    softmax = "the model ends in 1, softmax"
    only(lambda: call(ends_in_softmax(), (X, Y), loss="cross_entropy"), hl.ModelWarning, softmax)
    assert not caught(lambda: call(mlp(), (X, Y)))


def test_a_split_is_evaluated_with_a_word_of_its_own_targets() -> None:
    data = hl.DataModule.from_arrays(*zero_or_one(), val=0.2)
    only(lambda: hl.evaluate(mlp(c=1), data, "val"), hl.DataWarning, "are all 0 or 1")


def test_a_stepper_warns_of_parameters_without_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.used(x)

    only(lambda: hl.stepper(Idle(), data=(X, Y)), hl.ModelWarning, "idle.weight, idle.bias get no")


def test_a_stepper_warns_of_norms_before_their_first_step() -> None:
    step = hl.stepper(normed(), data=(X, Y))
    only(lambda: step.evaluate("train"), hl.ModelWarning, "evaluate: the running statistics of 1")
    step.step((X, Y))
    assert not caught(lambda: step.evaluate("train"))


def test_a_monitored_value_that_is_never_finite_is_said() -> None:
    """Early stopping would go by it, and no epoch is the best."""
    x = X.copy()
    x[0] = np.nan
    data = hl.DataModule.from_arrays(X, Y, val=(x[:8], Y[:8]), batch_size=16, allow_nonfinite=True)
    config = quiet(max_epochs=3, early_stopping=1)
    only(lambda: hl.train(mlp(), data, config), hl.NotFiniteWarning, "val_loss, which is monitored")
    assert not caught(lambda: hl.train(mlp(), data.__class__.from_arrays(X, Y, val=0.2), config))


def test_a_model_that_goes_on_without_its_standardisation_is_said() -> None:
    model = mlp()
    hl.train(model, hl.DataModule.from_arrays(X, Y, standardize=True), quiet(max_epochs=1))
    plain = hl.DataModule.from_arrays(X, Y)
    again = quiet(max_epochs=1)
    only(lambda: hl.train(model, plain, again), hl.ModelWarning, "trained on standardised data")
    assert not caught(lambda: hl.train(model, plain, again))
    model.reset()
    assert not caught(lambda: hl.train(model, plain, again))


def test_targets_with_a_large_spread_warn() -> None:
    """Prices around 576,000 with a standard deviation of 110,000 are not far from 0 in those."""
    prices = (5.76e5 + 1.1e5 * RY).astype(np.float32)
    of = "the standard deviation of the targets is 1.8"
    only(lambda: hl.train(nn.Linear(5, 1), (RX, prices), quiet(max_epochs=1)), hl.DataWarning, of)
    scaled = hl.DataModule.from_arrays(RX, prices, standardize="y")
    assert not caught(lambda: hl.train(nn.Linear(5, 1), scaled, quiet(max_epochs=1)))
