"""The stepper honours its configuration or refuses it, and its state holds all that it needs."""

import signal
import threading

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.plans import runtime
from train.recipes import classes, mlp, quiet, same_bits

X, Y = classes(96)
DATA = hl.DataModule.from_arrays(X, Y, val=0.25, batch_size=24)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accumulate_grad_batches", 4),
        ("max_time", 60),
        ("early_stopping", 3),
        ("monitor", "val_accuracy"),
        ("mode", "max"),
        ("check_val_every_n_epoch", 2),
        ("limit_batches", 2),
        ("overfit_batches", 2),
        ("on_interrupt", "return"),
        ("callbacks", [mlp]),
        ("output_dir", "elsewhere"),
        ("logger", "csv"),
        ("enable_progress_bar", True),
        ("scheduler", "plateau"),
    ],
)
def test_what_a_stepper_cannot_honour_is_refused(field: str, value) -> None:
    with pytest.raises(hl.ConfigError, match=rf"^{field}: .*stepper.*; "):
        hl.stepper(mlp(), quiet(**{field: value}), DATA)


def batches(n: int):
    """The batches of n epochs."""
    return [batch for _ in range(n) for batch in DATA.train_batches()]


def test_the_moving_average_is_evaluated_and_given_to_the_model() -> None:
    """As in train, which has the same steps."""
    config = quiet(max_epochs=3, lr=1e-2, ema=0.8)
    model = mlp()
    result = hl.train(model, DATA, config)
    mine = mlp()
    step = hl.stepper(mine, config, DATA)
    for epoch in range(3):
        for batch in DATA.train_batches(epoch=epoch):
            step.step(batch)
        assert step.evaluate("val")["loss"] == pytest.approx(
            result.history["val_loss"][epoch], 1e-6
        )
    assert same_bits(step.sync().state_dict(), model.state_dict())


@pytest.mark.parametrize("fields", [{"ema": 0.8}, {"precision": "16-mixed"}, {}])
def test_a_state_holds_all_that_a_loop_needs_to_go_on(fields) -> None:
    config = quiet(max_epochs=4, lr=1e-2, **fields)
    whole = hl.stepper(mlp(), config, DATA)
    first = hl.stepper(mlp(), config, DATA)
    for i, batch in enumerate(batches(4)):
        if i == 7:
            if "precision" in fields:
                first._runtime.session.control_set(loss_scale=256.0, good_steps=1999)
                whole._runtime.session.control_set(loss_scale=256.0, good_steps=1999)
            state = first.state_dict()
            first = hl.stepper(mlp(), config, DATA)
            first.load_state_dict(state)
        assert whole.step(batch) == first.step(batch)
    assert same_bits(whole.sync().state_dict(), first.sync().state_dict())
    theirs, ours = (s._runtime.session.control() for s in (whole, first))
    assert (theirs["loss_scale"], theirs["good_steps"]) == (ours["loss_scale"], ours["good_steps"])
    if "precision" in fields:
        assert ours["loss_scale"] == 512.0


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    config = quiet(lr=1e-2)
    step = hl.stepper(mlp(), config, DATA)
    step.step(batches(1)[0])
    before = step.state_dict()
    others = [
        mlp().state_dict(),
        hl.stepper(mlp(), quiet(optimizer="sgd", momentum=0.9), DATA).state_dict(),
        hl.stepper(mlp(), quiet(ema=True), DATA).state_dict(),
        {k: v for k, v in before.items() if not k.startswith("optimizer.")},
        {k: v[:-1] if k.startswith("optimizer.") else v for k, v in before.items()},
    ]
    for state in others:
        with pytest.raises(hl.ConfigError, match=r"load_state_dict: .*must"):
            step.load_state_dict(state)
    after = step.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[k], after[k]) for k in before)


def broken(batch):
    """The batch with a target that makes the loss infinite."""
    return {**batch, "y": np.full_like(batch["y"], np.inf)}


def values_stepper(**fields):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((64, 4)).astype(np.float32)
    data = hl.DataModule.from_arrays(X, X[:, :1], batch_size=16)
    step = hl.stepper(nn.Linear(4, 1), quiet(lr=1e-2, **fields), data)
    return step, list(data.train_batches())


def test_on_nan_stop_says_that_it_is_stopped() -> None:
    step, made = values_stepper()
    step.step(made[0])
    weights = step.sync().state_dict()
    done = step.step(broken(made[1]))
    assert not done["applied"]
    assert not np.isfinite(done["loss"])
    for _ in range(2):
        with pytest.raises(hl.NotFiniteError, match=r"stopped.*on_nan='skip'"):
            step.step(made[2])
    assert same_bits(step.sync().state_dict(), weights)
    found = step.evaluate("train")  # which a stop does not keep waiting, and which ends no stop
    assert found == hl.evaluate(step.model, step._data, "train", loss="mse")
    with pytest.raises(hl.NotFiniteError, match="stopped"):
        step.step(made[2])
    step.load_state_dict(step.state_dict())
    assert step.step(made[2])["applied"]


def test_on_nan_raise_raises_and_can_go_on() -> None:
    step, made = values_stepper(on_nan="raise")
    step.step(made[0])
    with pytest.raises(hl.NotFiniteError, match="not finite at step 2"):
        step.step(broken(made[1]))
    assert step.step(made[2])["applied"]


def test_on_nan_skip_goes_on() -> None:
    step, made = values_stepper(on_nan="skip")
    assert not step.step(broken(made[1]))["applied"]
    assert step.step(made[2])["step"] == 1


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_on_nan_skip_ends_where_nothing_is_learned_any_more() -> None:
    step, made = values_stepper(on_nan="skip")
    for _ in range(100):
        step.step(broken(made[1]))
    with pytest.raises(hl.NotFiniteError, match=r"100 steps in a row were skipped; load_state"):
        step.step(made[2])


def cut_short(call, monkeypatch) -> None:
    """Ctrl-C in the middle of a run; a shell's jobs in the background are born ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "SLICE_SECONDS", 1e-6)
            patch.setattr(runtime, "pause", lambda: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                call()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_step_that_ctrl_c_cut_short_is_forgotten(monkeypatch) -> None:
    """The next one would go on with it, and with rows of its own."""
    first, second, third = batches(1)[:3]
    ends = []
    for is_cut in (False, True):
        model = mlp(dropout=0.0)
        step = hl.stepper(model, quiet(), DATA)
        step.step(first)
        if is_cut:
            cut_short(lambda step=step: step.step(second), monkeypatch)
            assert repr(step).startswith("Stepper(Sequential, 1 of ")
        ends.append((step.step(third)["loss"], step.sync().state_dict()))
    assert ends[0][0] == ends[1][0]
    assert same_bits(ends[0][1], ends[1][1])


class Centred(nn.Module):
    """Rows meet, so that the plan cannot be one region."""

    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(3, 3)

    def forward(self, x):
        h = self.body(x)
        for _ in range(3):
            h = self.head(h - h.mean(0))
        return h


def test_a_prediction_that_ctrl_c_cut_short_is_forgotten(monkeypatch, tmp_path) -> None:
    model = Centred()
    hl.train(model, (X, Y), quiet(max_epochs=1)).save(tmp_path / "m.safetensors")
    for each in (model, hl.load(tmp_path / "m.safetensors")):
        want = hl.predict(each, X[:40])
        cut_short(lambda each=each: hl.predict(each, -X[:40]), monkeypatch)
        np.testing.assert_array_equal(hl.predict(each, X[:40]), want)
        cut_short(lambda each=each: hl.predict(each, -X[:40]), monkeypatch)
        hl.predict(each, X[:7])  # another plan
        np.testing.assert_array_equal(hl.predict(each, X[:40]), want)


def test_a_stepper_is_shown_while_a_thread_steps() -> None:
    X2 = np.random.default_rng(0).standard_normal((2048, 512)).astype(np.float32)
    step = hl.stepper(
        nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 3)), quiet(), (X2, np.arange(2048) % 3)
    )
    batch = {"x": X2[:64], "y": np.arange(64) % 3}
    worker = threading.Thread(target=lambda: [step.step(batch) for _ in range(60)])
    worker.start()
    shown = []
    while worker.is_alive():
        shown.append(repr(step))
    worker.join()
    counts = [int(text.split()[1]) for text in shown]
    assert counts == sorted(counts)
    assert repr(step).startswith("Stepper(Sequential, 60 of ")


def test_threads_may_share_a_stepper() -> None:
    """What uses the plan's memory waits for the others."""
    step = hl.stepper(mlp(), quiet(max_epochs=9), DATA)
    batch = next(iter(DATA.train_batches()))
    errors = []

    def use(call) -> None:
        try:
            for _ in range(8):
                call()
        except BaseException as error:
            errors.append(error)

    calls = (
        lambda: step.step(batch),
        lambda: step.evaluate("val"),
        lambda: step.load_state_dict(step.state_dict()),
        step.sync,
    )
    threads = [threading.Thread(target=use, args=(call,)) for call in (*calls, *calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
