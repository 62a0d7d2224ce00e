"""Every setting does what it says, held against training by hand in NumPy (float64)."""

import itertools
import math
import time

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import (
    check_line,
    classes,
    epochs_of,
    exact,
    mlp,
    mse_gradient,
    quiet,
    regression,
    start,
    weights,
)

X, Y = regression()


def line_run(**fields):
    """A line by SGD: model, data, first weights, result."""
    data = hl.DataModule.from_arrays(X, Y, batch_size=16)
    model = nn.Linear(5, 1)
    W, b = start(model)
    result = hl.train(model, data, exact(**({"max_epochs": 3} | fields)))
    return model, data, W, b, result


def by_hand(data, W, b, epochs=3, lr=0.05, change=lambda step, lr, dW, db: (lr, dW, db)):
    """SGD; ``change`` sees and returns each step's rate and gradients."""
    trail = []
    for step, (x, y) in enumerate(epochs_of(data, epochs)):
        loss, dW, db = mse_gradient(W, b, x, y)
        rate, dW, db = change(step, lr, dW, db)
        W, b = W - rate * dW, b - rate * db
        trail.append((loss, W, b))
    return W, b, trail


def test_plain_sgd() -> None:
    model, data, W, b, result = line_run()
    W, b, trail = by_hand(data, W, b)
    check_line(model, W, b)
    losses = np.array([t[0] for t in trail]).reshape(3, 4).mean(1)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-7)
    assert (result.epochs, result.steps, result.skipped_steps) == (3, 12, 0)
    assert result.stop_reason == "completed"


def test_momentum_and_decay() -> None:
    optimizer = hl.OptimizerConfig("sgd", momentum=0.9, nesterov=True, weight_decay=0.1)
    model, data, W, b, _ = line_run(optimizer=optimizer, decay_norm_and_bias=True)
    mW, mb = np.zeros_like(W), np.zeros_like(b)
    for x, y in epochs_of(data, 3):
        _, dW, db = mse_gradient(W, b, x, y)
        dW, db = dW + 0.1 * W, db + 0.1 * b
        mW, mb = 0.9 * mW + dW, 0.9 * mb + db
        W, b = W - 0.05 * (dW + 0.9 * mW), b - 0.05 * (db + 0.9 * mb)
    check_line(model, W, b)


def test_bias_is_not_decayed() -> None:
    model, data, W, b, _ = line_run(weight_decay=0.3)
    for x, y in epochs_of(data, 3):
        _, dW, db = mse_gradient(W, b, x, y)
        W, b = W - 0.05 * (dW + 0.3 * W), b - 0.05 * db
    check_line(model, W, b)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("k", [1, 3])
def test_sample_weights(k: int, columns: int) -> None:
    """A window's loss is sum(w l) / sum(w), l being a row's mean over its columns; and so is an
    epoch's and validation's.
    """
    X, Y = regression(k=columns)
    weight = np.random.default_rng(3).uniform(0.1, 3.0, 64).astype(np.float32)
    data = hl.DataModule.from_arrays(
        X, Y, val=(X[:20], Y[:20], weight[:20]), sample_weight=weight, batch_size=7
    )
    model = nn.Linear(5, columns)
    W, b = start(model)
    result = hl.train(model, data, exact(max_epochs=2, accumulate_grad_batches=k))
    losses, validated = [], []
    for epoch in range(2):
        batches = list(data.train_batches(epoch))
        total = 0.0
        for at in range(0, len(batches), k):
            x, y, w = (
                np.concatenate([batch[name] for batch in batches[at : at + k]]).astype(np.float64)
                for name in ("x", "y", "weight")
            )
            error = x @ W.T + b - y
            total += (w[:, None] * error**2).sum() / columns
            dW = 2 * (w[:, None] * error).T @ x / w.sum() / columns
            db = 2 * (w[:, None] * error).sum(0) / w.sum() / columns
            W, b = W - 0.05 * dW, b - 0.05 * db
        losses.append(total / weight.astype(np.float64).sum())
        squares = ((X[:20] @ W.T + b - Y[:20]) ** 2).mean(1)
        validated.append(np.average(squares, weights=weight[:20]))
    check_line(model, W, b)
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-7)
    np.testing.assert_allclose(result.history["val_loss"], validated, rtol=1e-7)


@pytest.mark.parametrize("limit", [0.3, 1e-3])
def test_clip_by_norm(limit: float) -> None:
    model, data, W, b, _ = line_run(gradient_clip_val=limit)

    def clip(step, lr, dW, db):
        norm = math.sqrt((dW**2).sum() + (db**2).sum())
        scale = min(1.0, limit / (norm + 1e-6))
        return lr, dW * scale, db * scale

    check_line(model, *by_hand(data, W, b, change=clip)[:2])


def test_clip_by_value() -> None:
    model, data, W, b, _ = line_run(gradient_clip_val=0.2, gradient_clip_algorithm="value")

    def clip(step, lr, dW, db):
        return lr, np.clip(dW, -0.2, 0.2), np.clip(db, -0.2, 0.2)

    check_line(model, *by_hand(data, W, b, change=clip)[:2])


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("ramp", [False, True])
@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_ema(decay: float, ramp: bool, restores: bool) -> None:
    """The result and validation have the average, which starts at the initial weights. To keep it
    as the best, after each epoch here, leaves the weights that learn alone.
    """
    data = hl.DataModule.from_arrays(X, Y, val=(X[:20], Y[:20]), batch_size=16)
    model = nn.Linear(5, 1)
    W, b = start(model)
    ema = decay if ramp else hl.EMAConfig(decay, ramp=False)
    result = hl.train(model, data, exact(max_epochs=3, ema=ema, restore_best=restores))
    aW, ab = W, b
    losses = []
    for i, (_, w, c) in enumerate(by_hand(data, W, b, 3)[2]):
        d = min(decay, (2 + i) / (11 + i)) if ramp else decay
        aW, ab = d * aW + (1 - d) * w, d * ab + (1 - d) * c
        if i % 4 == 3:
            losses.append(mse_gradient(aW, ab, X[:20], Y[:20])[0])
    check_line(model, aW, ab)
    np.testing.assert_allclose(result.history["val_loss"], losses, rtol=1e-6)
    assert result.best_epoch == 3


def test_param_groups() -> None:
    groups = [{"params": "bias", "lr": 0.005}, {"params": "weight", "lr_scale": 2.0}]
    model, data, W, b, _ = line_run(param_groups=groups)
    for x, y in epochs_of(data, 3):
        _, dW, db = mse_gradient(W, b, x, y)
        W, b = W - 0.1 * dW, b - 0.005 * db
    check_line(model, W, b)


def test_group_decay_wins() -> None:
    model, data, W, b, _ = line_run(param_groups=[{"params": "*", "weight_decay": 0.2}])
    for x, y in epochs_of(data, 3):
        _, dW, db = mse_gradient(W, b, x, y)
        W, b = W - 0.05 * (dW + 0.2 * W), b - 0.05 * (db + 0.2 * b)
    check_line(model, W, b)


def test_the_first_group_that_matches_counts() -> None:
    groups = [{"params": "weight", "lr_scale": 2.0}, {"params": "*", "lr_scale": 0.1}]
    model, data, W, b, _ = line_run(param_groups=groups)
    for x, y in epochs_of(data, 3):
        _, dW, db = mse_gradient(W, b, x, y)
        W, b = W - 0.1 * dW, b - 0.005 * db
    check_line(model, W, b)


def test_a_parameter_without_a_gradient_is_not_decayed() -> None:
    """It lies between two that learn, in one flat buffer with them."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 1)
            self.spare = nn.Linear(5, 4)
            self.last = nn.Linear(5, 1)

        def forward(self, x):
            return self.first(x) + self.last(x)

    model, data = Net(), hl.DataModule.from_arrays(X, Y, batch_size=16)
    before = weights(model)
    hl.train(model, data, exact(max_epochs=2, weight_decay=0.3, decay_norm_and_bias=True))
    after = weights(model)
    W1, b1 = before["first.weight"], before["first.bias"]
    W2, b2 = before["last.weight"], before["last.bias"]
    for x, y in epochs_of(data, 2):
        _, dW, db = mse_gradient(W1 + W2, b1 + b2, x, y)
        W1, b1 = W1 - 0.05 * (dW + 0.3 * W1), b1 - 0.05 * (db + 0.3 * b1)
        W2, b2 = W2 - 0.05 * (dW + 0.3 * W2), b2 - 0.05 * (db + 0.3 * b2)
    for name, value in zip(("first.weight", "first.bias"), (W1, b1)):
        np.testing.assert_allclose(after[name], value, rtol=1e-6, atol=1e-7)
    for name, value in zip(("last.weight", "last.bias"), (W2, b2)):
        np.testing.assert_allclose(after[name], value, rtol=1e-6, atol=1e-7)
    for name in ("spare.weight", "spare.bias"):
        np.testing.assert_array_equal(after[name], before[name])


def test_freeze() -> None:
    model, data, W, b, _ = line_run(freeze="weight")
    first = b
    for x, y in epochs_of(data, 3):
        b = b - 0.05 * mse_gradient(W, b, x, y)[2]
    check_line(model, W, b)
    assert not np.allclose(first, b)


def test_freeze_and_unfreeze() -> None:
    Xc, yc = classes()
    model = mlp()
    before = weights(model)
    hl.train(model, (Xc, yc), exact(max_epochs=2, freeze="*", unfreeze="2.bias"))
    after = weights(model)
    for name in before:
        changed = not np.array_equal(before[name], after[name])
        assert changed == (name == "2.bias"), name


def test_frozen_by_requires_grad() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    before = weights(model)
    hl.train(model, classes(), exact(max_epochs=1))
    after = weights(model)
    assert np.array_equal(before["0.weight"], after["0.weight"])
    assert not np.array_equal(before["2.weight"], after["2.weight"])


# ---------------------------------------------------------------------------- schedules

SCHEDULES = [
    {"scheduler": "constant"},
    {"scheduler": "linear"},
    {"scheduler": "cosine"},
    {"scheduler": "cosine", "warmup": 3},
    {"scheduler": "one_cycle"},
    {"scheduler": hl.SchedulerConfig("step", step_size=1, gamma=0.5)},
    {"scheduler": hl.SchedulerConfig("exponential", gamma=0.7)},
]


@pytest.mark.parametrize("fields", SCHEDULES, ids=str)
def test_schedule_is_what_steps_use(fields) -> None:
    """The rate of every optimizer step is the table's, in the log and in the weights."""
    from hotloop.training.config.schedule import lr_multipliers

    model, data, W, b, result = line_run(**fields)
    config = exact(**({"max_epochs": 3} | fields))
    table = lr_multipliers(config, np.arange(12), 12, 4) * config.lr

    def scheduled(step, lr, dW, db):
        return table[step], dW, db

    W, b, _ = by_hand(data, W, b, change=scheduled)
    check_line(model, W, b)
    np.testing.assert_allclose(result.history["lr"], table[[3, 7, 11]], rtol=1e-12)


def test_plateau_lowers_the_rate() -> None:
    Xr, Yr = regression(seed=3)
    schedule = hl.SchedulerConfig("plateau", patience=0, factor=0.5, threshold=1e9)
    data = hl.DataModule.from_arrays(Xr, Yr, val=(Xr[:10], Yr[:10]), batch_size=16)
    result = hl.train(nn.Linear(5, 1), data, exact(max_epochs=4, scheduler=schedule))
    rates = result.history["lr"]
    assert rates[0] == 0.05
    assert all(b in (a, a / 2) for a, b in itertools.pairwise(rates))
    assert rates[-1] < rates[0]


# ---------------------------------------------------------------------------- ends


def test_max_steps() -> None:
    model, data, W, b, result = line_run(max_steps=7, max_epochs=100)
    assert (result.steps, result.stop_reason) == (7, "max_steps")
    for i, (x, y) in enumerate(epochs_of(data, 2)):
        if i < 7:
            _, dW, db = mse_gradient(W, b, x, y)
            W, b = W - 0.05 * dW, b - 0.05 * db
    check_line(model, W, b)


def test_max_time() -> None:
    began = time.perf_counter()
    result = hl.train(mlp(), classes(3000), quiet(max_epochs=10**6, max_time=0.3, lr=1e-3))
    assert result.stop_reason == "max_time"
    assert time.perf_counter() - began >= 0.3
    assert result.steps > 0


def test_no_epochs_changes_nothing() -> None:
    model, _, W, b, result = line_run(max_epochs=0)
    check_line(model, W, b)
    assert result.epochs == 0


def test_limit_batches() -> None:
    model, data, W, b, result = line_run(limit_batches=2, max_epochs=1)
    for i, (x, y) in enumerate(epochs_of(data, 1)):
        if i < 2:
            _, dW, db = mse_gradient(W, b, x, y)
            W, b = W - 0.05 * dW, b - 0.05 * db
    check_line(model, W, b)
    assert result.steps == 2


@pytest.mark.parametrize(
    ("rows", "size", "limit", "steps"),
    [
        (64, 16, 0.5, 2),
        (64, 16, 0.74, 2),
        (64, 16, 0.75, 3),
        (64, 16, 0.01, 1),  # never none
        (64, 16, 1.0, 4),
        (64, 16, 99, 4),
        (60, 16, 0.99, 3),  # the last, smaller batch is one of four
        (60, 16, 4, 4),
        (100, 1, 0.29, 29),  # 0.29 * 100 is 28.999999999999996
    ],
)
def test_a_fraction_of_the_batches_is_rounded_down(rows, size, limit, steps) -> None:
    for fields in ({"limit_batches": limit}, {"overfit_batches": limit}):
        data = hl.DataModule.from_arrays(*regression(rows), batch_size=size)
        result = hl.train(nn.Linear(5, 1), data, exact(max_epochs=2, **fields))
        assert result.steps == 2 * steps
        assert result.epochs == 2


def test_overfit_batches_are_the_same_rows_in_each_epoch() -> None:
    """The first of them, in their order; what validates, functions too, sees those alone."""
    seen = []

    def spread(y_true, y_pred):
        seen.append((y_true.copy(), y_pred.copy()))
        return 0.0

    model, data, W, b, result = line_run(overfit_batches=2, metrics=(spread,))
    assert data.shuffle
    losses = []
    for _ in range(3):
        for rows in (slice(0, 16), slice(16, 32)):
            _, dW, db = mse_gradient(W, b, X[rows].astype(np.float64), Y[rows].astype(np.float64))
            W, b = W - 0.05 * dW, b - 0.05 * db
        losses.append(mse_gradient(W, b, X[:32], Y[:32])[0])
    check_line(model, W, b)
    np.testing.assert_allclose(result.history["val_loss"], losses, rtol=1e-6)
    assert len(seen) == 3
    for y_true, _ in seen:
        np.testing.assert_array_equal(y_true, Y[:32])
    np.testing.assert_allclose(seen[-1][1], X[:32] @ W.T + b, rtol=1e-5, atol=1e-6)


def overfitting():
    """Few noisy rows, a wide net: validation soon gets worse."""
    Xc, _ = classes(60, seed=5)
    rng = np.random.default_rng(0)
    noisy = rng.integers(0, 3, 60)
    return hl.DataModule.from_arrays(
        Xc, noisy, val=(Xc[:30], rng.integers(0, 3, 30)), batch_size=16
    )


def test_early_stopping_restores_best() -> None:
    data = overfitting()
    model = mlp()
    result = hl.train(
        model,
        data,
        quiet(max_epochs=200, lr=0.02, optimizer="adam", early_stopping=5, restore_best=True),
    )
    losses = result.history["val_loss"]
    assert result.stop_reason == "early_stopping"
    assert result.epochs == len(losses) == result.best_epoch + 5
    assert result.best_score == min(losses) == losses[result.best_epoch - 1]
    assert hl.evaluate(model, data, split="val")["loss"] == pytest.approx(min(losses), rel=1e-6)


@pytest.mark.parametrize("ema", [False, 0.5])
def test_the_best_epoch_has_its_own_statistics(ema) -> None:
    """BatchNorm on the inputs: its running statistics are functions of the data alone."""
    Xc, yc = classes(90)
    data = hl.DataModule.from_arrays(Xc, yc, val=(Xc[:30], yc[:30]), batch_size=32)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    seen = []

    class Watch:
        def on_epoch_end(self, run):
            source = "ema" if ema else "param"
            read = run.runtime.session.read
            slots = run.runtime.layout.trainable
            seen.append([read(source, "float64", slot.offset, slot.size) for slot in slots])

    # The largest validation loss is the best, which is that of an early epoch.
    config = exact(max_epochs=4, restore_best=True, mode="max", ema=ema, callbacks=(Watch(),))
    result = hl.train(model, data, config)
    best = result.best_epoch
    assert best == 1 + int(np.argmax(result.history["val_loss"])) < 4
    mean, variance = np.zeros(6), np.ones(6)
    for epoch in range(best):
        for batch in data.train_batches(epoch, merge_tail=True):
            x = batch["x"].astype(np.float64)
            mean = 0.9 * mean + 0.1 * x.mean(0)
            variance = 0.9 * variance + 0.1 * x.var(0, ddof=1)
    after = weights(model)
    np.testing.assert_allclose(after["0.running_mean"], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(after["0.running_var"], variance, rtol=1e-6)
    assert after["0.num_batches_tracked"] == 3 * best
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    flat = np.concatenate([after[name].ravel() for name in names])
    np.testing.assert_array_equal(flat, np.concatenate(seen[best - 1]).astype(np.float32))


@pytest.mark.parametrize("momentum", [0.1, 0.4, None])
def test_running_statistics(momentum) -> None:
    """Exponential averages, or plain ones, of each batch's mean and unbiased variance."""
    Xc, yc = classes(70)
    data = hl.DataModule.from_arrays(Xc, yc, batch_size=32)
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 3))
    hl.train(model, data, exact(max_epochs=2))
    mean, variance = np.zeros(6), np.ones(6)
    batches = [x for x, _ in epochs_of(data, 2)]
    for i, x in enumerate(batches):
        share = 1 / (i + 1) if momentum is None else momentum
        mean = (1 - share) * mean + share * x.mean(0)
        variance = (1 - share) * variance + share * x.var(0, ddof=1)
    after = weights(model)
    np.testing.assert_allclose(after["0.running_mean"], mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(after["0.running_var"], variance, rtol=1e-6)
    assert after["0.num_batches_tracked"] == len(batches) == 6


def test_without_restore_best_the_last_weights_stay() -> None:
    data = overfitting()
    model = mlp()
    result = hl.train(model, data, quiet(max_epochs=30, lr=0.02, optimizer="adam"))
    last = result.history["val_loss"][-1]
    assert last != min(result.history["val_loss"])
    assert hl.evaluate(model, data, split="val")["loss"] == pytest.approx(last, rel=1e-6)


def test_early_stopping_mode_and_min_delta() -> None:
    data = overfitting()
    stopping = hl.EarlyStopping(patience=3, min_delta=1e9)
    result = hl.train(mlp(), data, quiet(max_epochs=50, early_stopping=stopping))
    assert result.epochs == 4
    upside_down = hl.EarlyStopping(patience=3, monitor="val_loss", mode="max")
    result = hl.train(mlp(), data, quiet(max_epochs=50, lr=1e-3, early_stopping=upside_down))
    assert result.best_score == max(result.history["val_loss"])


def test_monitor_accuracy() -> None:
    data = overfitting()
    config = quiet(
        max_epochs=10, lr=0.02, optimizer="adam", monitor="val_accuracy", restore_best=True
    )
    result = hl.train(mlp(), data, config)
    assert result.best_score == max(result.history["val_accuracy"])


def test_validation_every_few_epochs() -> None:
    data = overfitting()
    result = hl.train(mlp(), data, quiet(max_epochs=5, check_val_every_n_epoch=2))
    assert [math.isnan(v) for v in result.history["val_loss"]] == [True, False, True, False, True]


# ---------------------------------------------------------------------------- not finite


class Explodes(nn.Module):
    """The loss is infinite where a row's first feature is above 90."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(5, 1)

    def forward(self, x):
        return self.line(x) + hl.exp(x[:, :1])


def spiked():
    Xs, Ys = regression()
    Xs = Xs.copy()
    Xs[37, 0] = 1000.0
    return hl.DataModule.from_arrays(Xs, Ys, batch_size=16, shuffle=False)


def test_on_nan_stop() -> None:
    model = Explodes()
    result = hl.train(model, spiked(), exact(max_epochs=3, on_nan="stop"))
    assert result.stop_reason == "nan"
    assert result.steps == 2
    assert all(np.isfinite(v).all() for v in weights(model).values())


def test_on_nan_raise() -> None:
    model = Explodes()
    with pytest.raises(hl.NotFiniteError, match="step 3"):
        hl.train(model, spiked(), exact(max_epochs=3, on_nan="raise"))
    assert all(np.isfinite(v).all() for v in weights(model).values())


def test_on_nan_skip() -> None:
    """The bad batch changes nothing; the others are trained as if it were not there."""
    model = Explodes()
    W, b = weights(model)["line.weight"], weights(model)["line.bias"]
    data = spiked()
    result = hl.train(model, data, exact(max_epochs=2, on_nan="skip"))
    assert (result.steps, result.skipped_steps) == (6, 2)
    for i, (x, y) in enumerate(epochs_of(data, 2)):
        if i % 4 != 2:
            _, dW, db = mse_gradient(W, b, x, y - np.exp(x[:, :1]))
            W, b = W - 0.05 * dW, b - 0.05 * db
    after = weights(model)
    np.testing.assert_allclose(after["line.weight"], W, rtol=1e-6)
    np.testing.assert_allclose(after["line.bias"], b, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
@pytest.mark.parametrize("cut", [0, 3, 60])
def test_on_nan_skip_ends_where_nothing_is_learned_any_more(cut: int) -> None:
    """Whether or not the run was resumed meanwhile."""
    X = np.zeros((160, 2), np.float32)
    X[2:] = np.inf
    y, options = np.zeros(160), {"shuffle": False, "allow_nonfinite": True}
    data = hl.DataModule.from_arrays(X, y, batch_size=1, **options)
    config = quiet(max_epochs=2, on_nan="skip")
    first = None
    if cut:
        stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.stop("cut"), every_n_steps=cut)
        first = hl.train(nn.Linear(2, 1), data, config, callbacks=[stop])
        assert first.stop_reason == "cut"
    result = hl.train(nn.Linear(2, 1), data, config, resume=first or False)
    assert (result.stop_reason, result.steps, result.skipped_steps) == ("nan", 2, 100)
    assert "row 101 of the data" in result.not_finite


def test_a_good_model_trains_next() -> None:
    hl.train(Explodes(), spiked(), quiet(max_epochs=1))
    model, data, W, b, _ = line_run()
    check_line(model, *by_hand(data, W, b)[:2])


# ---------------------------------------------------------------------------- losses


def cross_entropy_of(model, Xc, yc, weight=None, smoothing=0.0):
    """From the model's own logits, in float64."""
    logits = np.asarray(hl.predict(model, Xc), np.float64)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    n, c = logits.shape
    w = np.ones(c) if weight is None else np.asarray(weight, np.float64)
    hit = -logs[np.arange(n), yc] * w[yc]
    spread = -(logs * w).sum(1) / c
    return (((1 - smoothing) * hit + smoothing * spread).sum()) / w[yc].sum()


@pytest.mark.parametrize(
    ("fields", "oracle"),
    [
        ({}, {}),
        ({"class_weight": [0.5, 1.0, 2.5]}, {"weight": [0.5, 1.0, 2.5]}),
        ({"label_smoothing": 0.2}, {"smoothing": 0.2}),
        ({"class_weight": {0: 3.0}}, {"weight": [3.0, 1.0, 1.0]}),
    ],
    ids=str,
)
def test_classification_loss(fields, oracle) -> None:
    """lr 0 in effect: the epoch's loss is that of the first weights."""
    Xc, yc = classes()
    model = mlp()
    want = cross_entropy_of(model, Xc, yc, **oracle)
    config = exact(max_epochs=1, lr=1e-300, **fields)
    result = hl.train(model, hl.DataModule.from_arrays(Xc, yc, batch_size=32), config)
    assert result.history["loss"][0] == pytest.approx(want, rel=1e-5)


def test_balanced_class_weight() -> None:
    Xc, yc = classes()
    yc = np.where(np.arange(90) % 3 == 0, yc, 0)
    counts = np.bincount(yc)
    model = mlp()
    want = cross_entropy_of(model, Xc, yc, weight=90 / (3 * counts))
    data = hl.DataModule.from_arrays(Xc, yc, batch_size=32)
    result = hl.train(model, data, exact(max_epochs=1, lr=1e-300, class_weight="balanced"))
    assert result.history["loss"][0] == pytest.approx(want, rel=1e-5)


def test_dict_of_losses_is_summed_and_logged() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(5, 1)

        def training_step(self, batch):
            out = self.line(batch["x"])
            return {
                "fit": nn.functional.mse_loss(out, batch["y"]),
                "size": out.square().mean() * 0.1,
            }

    result = hl.train(Net(), regression(), exact(max_epochs=2))
    history = result.history
    np.testing.assert_allclose(np.add(history["fit"], history["size"]), history["loss"], rtol=1e-6)


def test_an_epochs_losses_are_means_over_its_rows() -> None:
    """Of losses with a denominator, of plain numbers, and of sums of both; batches of 16 and 12."""
    F = nn.functional

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(5, 1)

        def training_step(self, batch):
            out = self.line(batch["x"])
            return {
                "fit": 3 * F.mse_loss(out, batch["y"]) + 0.5 * F.l1_loss(out, batch["y"]),
                "size": out.square().mean() * 0.1,
                "both": F.mse_loss(out, batch["y"]) * 0.25 - out.mean(),
            }

    model = Net()
    W, b = weights(model)["line.weight"], weights(model)["line.bias"]
    data = hl.DataModule.from_arrays(X[:60], Y[:60], val=(X[:20], Y[:20]), batch_size=16)
    history = hl.train(model, data, exact(max_epochs=1, lr=1e-300)).history
    for prefix, n in (("", 60), ("val_", 20)):
        out = X[:n].astype(np.float64) @ W.T + b
        error = out - Y[:n]
        want = {
            "fit": 3 * (error**2).mean() + 0.5 * np.abs(error).mean(),
            "size": 0.1 * (out**2).mean(),
            "both": 0.25 * (error**2).mean() - out.mean(),
        }
        want["loss"] = sum(want.values())
        for name, value in want.items():
            assert history[prefix + name][0] == pytest.approx(value, rel=1e-9), prefix + name


def test_unused_parameter_is_named() -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(5, 1)
            self.spare = nn.Linear(5, 1)

        def forward(self, x):
            return self.line(x)

    with pytest.warns(hl.ModelWarning, match=r"spare\.weight"):
        hl.train(Net(), regression(), quiet(max_epochs=1))


@pytest.mark.parametrize("k", [1, 2])
def test_gaps_between_parameters_stay_zero(k) -> None:
    """Parameters begin at multiples of 64 bytes; no optimizer, sum or average fills the gaps."""
    data = hl.DataModule.from_arrays(*classes(), batch_size=16)
    model = nn.Sequential(nn.Linear(6, 29), nn.BatchNorm1d(29), nn.ReLU(), nn.Linear(29, 3))
    model[3].bias.requires_grad_(False)
    stores: dict[str, tuple[np.ndarray, set[int]]] = {}

    class Watch:
        def on_epoch_end(self, run):
            layout, read = run.runtime.layout, run.runtime.session.read
            covered = {i for s in layout.trainable for i in range(s.offset, s.offset + s.size)}
            sums = ["grad.0"] if k > 1 else []
            for name in ("micro_grad.0", *sums, "optimizer.0", "optimizer.1", "ema"):
                stores[name] = (read(name, "float64"), covered)
            frozen = layout.slots[layout.n_trainable]
            covered = covered | set(range(frozen.offset, frozen.offset + frozen.size))
            stores["param"] = (read("param", "float64"), covered)

    config = exact(
        max_epochs=2, optimizer="adamw", ema=0.9, accumulate_grad_batches=k, callbacks=(Watch(),)
    )
    hl.train(model, data, config)
    for name, (values, covered) in stores.items():
        gaps = [i for i in range(len(values)) if i not in covered]
        assert len(gaps) > 10, name
        assert not values[gaps].any(), name
        assert values[sorted(covered)].any(), name


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(hl.tanh(self.first(x)))


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_a_tied_parameter_goes_by_each_of_its_names(name: str) -> None:
    X = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    still = [
        {"freeze": name},
        {"freeze": "*", "unfreeze": ["first.bias", "second.bias"]},
        {"param_groups": [{"params": name, "lr_scale": 0.0}], "weight_decay": 0.0},
    ]
    moves = [{}, {"freeze": "*", "unfreeze": name}]
    for fields in (*still, *moves):
        model = Tied()
        before = model.first.weight.numpy()
        hl.train(model, (X, X), exact(max_epochs=1, **fields))
        assert np.array_equal(model.first.weight.numpy(), before) == (fields in still), fields
