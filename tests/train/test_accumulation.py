"""k micro-batches are the full batch: same weights, epoch losses and norms of gradients.

In float64 the order of additions is all that differs; 1e-7 is the rounding of a model's weights,
which are float32, and far below any mistake in a divisor.
"""

import random
import time
import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.batching import Group
from hotloop.training.run.micro import next_split, split_batches
from train.recipes import classes, exact, mlp, quiet, same_bits, weights


def run(X, y, batch: int, k: int, *, config=exact, model=mlp, loss="auto", weight=None, **fields):
    """Two epochs of one window order: unshuffled, so that micro-batches tile the full batch."""
    data = hl.DataModule.from_arrays(
        X, y, batch_size=batch // k, shuffle=False, sample_weight=weight
    )
    net = model()
    steps = []

    class Watch:
        def on_train_end(self, run):
            steps.extend(run.runtime.session.control_log(0))

    result = hl.train(
        net,
        data,
        config(max_epochs=2, accumulate_grad_batches=k, loss=loss, callbacks=(Watch(),), **fields),
    )
    return weights(net), steps, result


def check_same(one, other, tolerance: float) -> None:
    (w1, log1, r1), (w2, log2, r2) = one, other
    assert r1.steps == r2.steps
    for name in w1:
        np.testing.assert_allclose(w2[name], w1[name], rtol=0, atol=tolerance)
    np.testing.assert_allclose([e[2] for e in log2], [e[2] for e in log1], rtol=0, atol=tolerance)
    np.testing.assert_allclose(r2.history["loss"], r1.history["loss"], rtol=0, atol=tolerance)


X, Y = classes(n=96)
# 96 rows in windows of 32; 84 and 85: a short last window, whole micro-batches or not; 81: the
# last micro-batch has one row
ROWS = (96, 84, 85, 81, 65)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("n", ROWS)
def test_equals_full_batch(n: int, k: int) -> None:
    check_same(run(X[:n], Y[:n], 32, 1), run(X[:n], Y[:n], 32, k), 1e-7)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize(
    "fields",
    [
        {"class_weight": [0.2, 1.0, 3.0]},
        {"class_weight": "balanced", "label_smoothing": 0.1},
        {"loss": nn.CrossEntropyLoss(ignore_index=1)},
        {"optimizer": "adamw", "weight_decay": 0.01, "lr": 1e-2},
        {"optimizer": "sgd", "momentum": 0.9},
        {"gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"ema": 0.9},
        {"loss": lambda output, target: nn.functional.cross_entropy(output, target) * 2.0},
        {"scheduler": "cosine", "warmup": 2},
    ],
    ids=",".join,
)
def test_options(fields, k: int) -> None:
    check_same(run(X[:85], Y[:85], 32, 1, **fields), run(X[:85], Y[:85], 32, k, **fields), 1e-7)


@pytest.mark.parametrize("k", [2, 4])
def test_sample_weights(k: int) -> None:
    weight = np.random.default_rng(0).uniform(0.1, 3, 85).astype(np.float32)
    one = run(X[:85], Y[:85], 32, 1, weight=weight)
    check_same(one, run(X[:85], Y[:85], 32, k, weight=weight), 1e-7)


class Three(nn.Module):
    """Losses with a denominator of data, with a fixed one, and without any."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 3)

    def training_step(self, batch):
        out = self.line(batch["x"]["a"])
        F = nn.functional
        weight = hl.tensor([0.2, 1.0, 3.0])
        return {
            "classes": F.cross_entropy(out, batch["y"], weight),
            "values": F.mse_loss(out, batch["x"]["t"]) * 0.5,
            "size": out.square().mean() * 0.1,
        }


@pytest.mark.parametrize("k", [1, 3])
def test_each_loss_is_divided_by_its_own(k: int) -> None:
    """By hand: windows of 48 and 28 rows, or of 16 and 12."""
    T = np.random.default_rng(2).standard_normal((76, 3)).astype(np.float32)
    data = hl.DataModule.from_arrays({"a": X[:76], "t": T}, Y[:76], batch_size=16, shuffle=False)
    model = Three()
    W, b = weights(model)["line.weight"], weights(model)["line.bias"]
    hl.train(model, data, exact(max_epochs=2, accumulate_grad_batches=k))
    class_weight = np.array([0.2, 1.0, 3.0], np.float32).astype(np.float64)
    for begin in [*range(0, 76, 16 * k)] * 2:
        rows = slice(begin, min(begin + 16 * k, 76))
        x, y, t = X[rows].astype(np.float64), Y[rows], T[rows].astype(np.float64)
        out = x @ W.T + b
        p = np.exp(out) / np.exp(out).sum(1, keepdims=True)
        share = class_weight[y] / class_weight[y].sum()
        dout = share[:, None] * (p - np.eye(3)[y])
        dout += 0.5 * 2 * (out - t) / out.size + 0.1 * 2 * out / out.size
        W, b = W - 0.05 * dout.T @ x, b - 0.05 * dout.sum(0)
    np.testing.assert_allclose(weights(model)["line.weight"], W, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(weights(model)["line.bias"], b, rtol=1e-6, atol=1e-7)


class Deep(nn.Module):
    """Outputs of several layers, each with the loss of the same targets and class weights."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 3) for _ in range(heads)])

    def training_step(self, batch):
        x, weight = self.body(batch["x"]).tanh(), np.array([0.2, 1.0, 3.0], np.float32)
        losses = [nn.functional.cross_entropy(h(x), batch["y"], weight) for h in self.heads]
        return sum(losses[1:], losses[0])


def test_losses_of_the_same_targets_share_a_backward_pass() -> None:
    data = hl.DataModule.from_arrays(X[:76], Y[:76], batch_size=16, shuffle=False)
    work = [hl.plan(Deep(), data, quiet(accumulate_grad_batches=k)).info["flops"] for k in (1, 4)]
    assert work[1] < 1.1 * work[0]
    trained = []
    for k, size in ((1, 48), (3, 16)):  # windows of 48 and 28 rows
        data = hl.DataModule.from_arrays(X[:76], Y[:76], batch_size=size, shuffle=False)
        model = Deep()
        hl.train(model, data, exact(max_epochs=2, accumulate_grad_batches=k))
        trained.append(weights(model))
    for name, value in trained[0].items():
        np.testing.assert_allclose(trained[1][name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("other", ["targets", "weights", "ignored"])
def test_losses_of_other_targets_have_their_own_denominator(other: str) -> None:
    class Two(nn.Module):
        def __init__(self, by_hand: bool) -> None:
            super().__init__()
            self.a, self.b, self.by_hand = nn.Linear(6, 3), nn.Linear(6, 3), by_hand

        def loss(self, out, y, weight, ignored=-100):
            weight = np.array(weight, np.float32)
            F, options = nn.functional, {"weight": weight, "ignore_index": ignored}
            if not self.by_hand:
                return F.cross_entropy(out, y, **options)
            counted = (F.one_hot(y, 3) * hl.tensor(weight)).sum(1) * (y != ignored)
            return F.cross_entropy(out, y, reduction="sum", **options) / counted.sum()

        def training_step(self, batch):
            x, y = batch["x"], batch["y"]
            first = self.loss(self.a(x), y, [0.2, 1.0, 3.0])
            if other == "targets":
                return first + self.loss(self.b(x), (y + 1) % 3, [0.2, 1.0, 3.0])
            if other == "weights":
                return first + self.loss(self.b(x), y, [0.2, 1.0, 2.0])
            return first + self.loss(self.b(x), y, [0.2, 1.0, 3.0], ignored=1)

    trained = []
    for k, size in ((1, 48), (3, 16)):  # windows of 48 and 28 rows
        data = hl.DataModule.from_arrays(X[:76], Y[:76], batch_size=size, shuffle=False)
        model = Two(by_hand=k == 1)
        hl.train(model, data, exact(max_epochs=2, accumulate_grad_batches=k))
        trained.append(weights(model))
    for name, value in trained[0].items():
        np.testing.assert_allclose(trained[1][name], value, rtol=1e-6, atol=1e-8)


def test_float32() -> None:
    """On the CPU the weights agree to fp32's rounding of 32 rows' sums over 6 steps."""
    check_same(
        run(X[:85], Y[:85], 32, 1, config=quiet, optimizer="sgd", lr=0.05),
        run(X[:85], Y[:85], 32, 4, config=quiet, optimizer="sgd", lr=0.05),
        6 * 32 * 2.0**-23,
    )


def test_dropout_masks_are_the_same() -> None:
    """A sample's mask depends on its place in the window, not on the micro-batch it is in."""

    def net():
        return mlp(dropout=0.5)

    check_same(run(X, Y, 32, 1, model=net), run(X, Y, 32, 4, model=net), 1e-7)


def test_ignored_micro_batch() -> None:
    """A micro-batch without a counted row adds nothing and divides nothing."""
    y = Y.copy()
    y[32:40] = -100
    loss = nn.CrossEntropyLoss()
    values = []
    for k in (1, 4):
        data = hl.DataModule.from_arrays({"x": X, "t": y}, batch_size=32 // k, shuffle=False)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = mlp()

            def training_step(self, batch):
                return loss(self.body(batch["x"]["x"]), batch["x"]["t"].long())

        net = Net()
        hl.train(net, data, exact(max_epochs=1, accumulate_grad_batches=k))
        values.append(weights(net))
    for name in values[0]:
        np.testing.assert_allclose(values[1][name], values[0][name], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        {"a": nn.CrossEntropyLoss(), "b": nn.CrossEntropyLoss(reduction="sum")},
    ],
)
def test_sums_over_batches_are_told_of(loss, monkeypatch) -> None:
    """A window is the mean of its batches, which of sums is not the sum over its rows."""
    with pytest.warns(hl.ModelWarning, match="reduction='sum' in steps of 4 batches is the mean"):
        run(X, Y, 32, 4, loss=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(X, Y, 32, 1, loss=loss)
        run(X, Y, 32, 4, loss=nn.CrossEntropyLoss())


def test_a_sum_is_not_cut_into_micro_batches(monkeypatch) -> None:
    """Where memory is short: the steps would be others."""
    from hotloop.training.plans.runtime import Runtime

    make = Runtime.plan

    def plan(self, graph, split=None, feed=None, **options):
        if options.get("k") == 1:
            raise hl.OutOfMemoryError("out of memory")
        return make(self, graph, split, feed, **options)

    monkeypatch.setattr(Runtime, "plan", plan)
    assert hl.train(mlp(), (X, Y), quiet(max_epochs=1), loss=nn.CrossEntropyLoss()).steps == 2
    with pytest.raises(hl.OutOfMemoryError, match="use a smaller batch_size"):
        hl.train(mlp(), (X, Y), quiet(max_epochs=1), loss=nn.CrossEntropyLoss(reduction="sum"))


def test_a_batch_in_equal_parts() -> None:
    assert [next_split(12, n) for n in (1, 2, 3, 4, 6, 12)] == [2, 3, 4, 6, 12, None]
    assert next_split(7, 1) == 7


def test_parts_of_an_epoch_fill_the_same_windows() -> None:
    """As many rows in as many steps, whatever is left at the end."""
    draw = random.Random(5)
    for _ in range(500):
        rows, parts, k = draw.randint(1, 9), draw.randint(2, 6), draw.randint(1, 4)
        size, count = rows * parts, draw.randint(1, 9)
        groups = [Group(size, count)]
        if tail := draw.randint(0, size - 1):
            groups.append(Group(tail, 1))
        split = split_batches(groups, rows)
        assert sum(n * c for n, c, _ in split) == sum(n * c for n, c, _ in groups)
        assert all(0 < n <= rows and c > 0 for n, c, _ in split)
        assert [n for n, _, _ in split] == sorted((n for n, _, _ in split), reverse=True)
        batches, pieces = sum(g.batches for g in groups), sum(g.batches for g in split)
        assert -(-batches // k) == -(-pieces // (k * parts))


def test_less_than_a_part_stays_whole() -> None:
    assert split_batches([Group(3, 1)], 4) == [Group(3, 1)]


def test_parts_of_buckets_stay_in_their_buckets() -> None:
    groups = [Group(8, 3, 0), Group(5, 1, 0), Group(8, 1, 1), Group(3, 1, 2)]
    wanted = [(4, 7, 0), (1, 1, 0), (4, 2, 1), (3, 1, 2)]
    assert [tuple(group) for group in split_batches(groups, 4)] == wanted


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_waits_for_the_rest_of_an_epoch(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last micro-batch has fewer rows, which is another plan, and comes late."""
    monkeypatch.setattr("hotloop.training.run.loop.SLICE_SECONDS", 1e-3)
    X, y = classes(n=85)
    config = quiet(max_epochs=2, accumulate_grad_batches=2)

    def run(seconds: float) -> hl.TrainResult:
        def late(x: object, y: object) -> object:
            time.sleep(seconds)
            return x, y

        rows = hl.DataModule.from_arrays(X, y, batch_size=16, num_workers=workers)
        return hl.train(mlp(), rows.map(late), config)

    found, wanted = run(0.002), run(0)
    assert found.steps == wanted.steps == 6
    assert same_bits(found.model.state_dict(), wanted.model.state_dict())
