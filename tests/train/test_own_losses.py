"""Losses of one's own: shapes are matched or refused, modules bring values, dicts are named."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import classes, exact, mlp, quiet, regression, same_bits, weights

X, Y = regression(64)  # Y is a column
FLAT = Y[:, 0]


class Flat(nn.Module):
    """A value per row, without a dim of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 1)

    def forward(self, x):
        return self.body(x)[:, 0]


class Column(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 1)

    def forward(self, x):
        return self.body(x)


def by_hand(output, target):
    return ((output - target) ** 2).mean()


def squeezed(output, target):
    return F.mse_loss(output.squeeze(-1), target)


def sliced(output, target):
    return ((output[:, 0] - target) ** 2).mean()


def train(model, y, loss, **fields):
    data = hl.DataModule.from_arrays(X, y, batch_size=64)
    return hl.train(model, data, exact(max_epochs=3, loss=loss, **fields))


@pytest.mark.parametrize("y", [FLAT, Y], ids=["flat targets", "column targets"])
@pytest.mark.parametrize("make", [Flat, Column])
@pytest.mark.parametrize("loss", [by_hand, F.mse_loss, nn.MSELoss(), lambda o, t: F.mse_loss(o, t)])
def test_rows_and_columns_are_matched_as_by_name(loss, make, y) -> None:
    model, named = make(), make()
    result = train(model, y, loss)
    want = train(named, y, "mse")
    np.testing.assert_allclose(result.history["loss"], want.history["loss"], rtol=1e-12)
    assert same_bits(weights(model), weights(named))
    scores = hl.evaluate(result, (X, y))
    assert scores["loss"] == pytest.approx(hl.evaluate(want, (X, y))["loss"], rel=1e-9)


@pytest.mark.parametrize("loss", [squeezed, sliced])
def test_a_loss_that_takes_the_column_apart_has_the_targets_as_they_are(loss) -> None:
    result = train(Column(), FLAT, loss)
    want = train(Column(), FLAT, "mse")
    np.testing.assert_allclose(result.history["loss"], want.history["loss"], rtol=1e-12)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.L1Loss(), "l1"),
        (nn.HuberLoss(), "huber"),
        (nn.SmoothL1Loss(), "smooth_l1"),
        (nn.PoissonNLLLoss(), "poisson_nll"),
        (nn.SoftMarginLoss(), "soft_margin"),
        (F.huber_loss, "huber"),
        ({"a": by_hand}, "mse"),
        ({"a": nn.L1Loss()}, "l1"),
    ],
)
def test_losses_that_compare_values(loss, name) -> None:
    y = np.abs(FLAT)  # counts too
    result, want = train(Column(), y, loss), train(Column(), y, name)
    np.testing.assert_allclose(result.history["loss"], want.history["loss"], rtol=1e-12)


def test_one_logit_and_ids() -> None:
    ids = (FLAT > 0.5).astype(np.int64)
    want = train(Column(), ids, "bce")
    for loss in (nn.BCEWithLogitsLoss(), lambda o, t: F.binary_cross_entropy_with_logits(o, t)):
        result = train(Column(), ids, loss)
        np.testing.assert_allclose(result.history["loss"], want.history["loss"], rtol=1e-12)


def test_sequences_are_matched() -> None:
    """Also where there are as many rows as positions, which would broadcast to (N, N, N)."""

    class PerPosition(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(1, 1)

        def forward(self, x):
            return self.body(x.unsqueeze(-1))

    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    results = [
        hl.train(PerPosition(), (x, 2 * x), exact(max_epochs=2, loss=loss))
        for loss in (by_hand, "mse")
    ]
    a, b = (result.history["loss"] for result in results)
    np.testing.assert_allclose(a, b, rtol=1e-12)


class Many(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.body = nn.Linear(5, n)

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("n", [3, 64])  # 64: as many as rows, which broadcasting would take
@pytest.mark.parametrize("loss", [by_hand, "mse", nn.MSELoss(), F.l1_loss])
def test_what_cannot_be_matched_names_both_shapes(loss, n: int) -> None:
    with pytest.raises(hl.ShapeError, match=rf"\(64, {n}\)") as caught:
        train(Many(n), FLAT, loss)
    assert "(64,)" in str(caught.value)


def test_losses_of_other_shapes_are_not_refused() -> None:
    """Quantiles, weights by target, and pairs of rows."""
    levels = np.array([0.1, 0.5, 0.9])

    def quantiles(output, target):
        error = target.unsqueeze(1) - output
        return hl.maximum(levels * error, (levels - 1) * error).mean()

    def pairs(output, target):
        same = (target.unsqueeze(1) > 0).eq(target > 0).float()
        return (same * (output @ output.T)).mean()

    for n, loss in ((3, quantiles), (64, quantiles), (2, pairs)):
        if n == 64:
            levels = np.linspace(0.01, 0.99, 64)
        result = train(Many(n), FLAT, loss)
        assert np.isfinite(result.history["loss"]).all()
    model = Many(3)
    levels = np.array([0.1, 0.5, 0.9])
    error = FLAT[:, None] - np.asarray(hl.predict(model, X), np.float64)
    want = np.maximum(levels * error, (levels - 1) * error).mean()
    assert train(model, FLAT, quantiles).history["loss"][0] == pytest.approx(want, rel=1e-6)


def test_weights_of_the_target_beside_a_column_are_no_square() -> None:
    def weighted(output, target):
        column = target.unsqueeze(1) if target.ndim == 1 else target
        return ((output - column) ** 2 * (column > 0).squeeze(1).float()).mean()

    with pytest.raises(hl.ShapeError, match=r"loss weighted: .*\(64, 1\).*\(64,\).*unsqueeze"):
        train(Many(1), FLAT, weighted)


class Step(Column):
    def training_step(self, batch):
        return by_hand(self(batch["x"]), batch["y"])


def test_a_training_step_does_not_square_the_batch() -> None:
    with pytest.raises(hl.ShapeError, match=r"training_step: .*\(64, 1\).* \(64,\)"):
        train(Step(), FLAT, "auto")
    got = train(Step(), Y, "auto").history["loss"]
    np.testing.assert_allclose(got, train(Column(), Y, "mse").history["loss"], rtol=1e-12)


# ---------------------------------------------------------------------------- modules with values


CX, CY = classes()


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: {"a": loss}])
def test_a_loss_module_with_class_weights(wrap) -> None:
    weight = [1.0, 2.0, 0.5]
    loss = wrap(nn.CrossEntropyLoss(weight=np.array(weight)))
    got = hl.train(mlp(), (CX, CY), exact(loss=loss, max_epochs=3))
    want = hl.train(mlp(), (CX, CY), exact(class_weight=weight, max_epochs=3))
    np.testing.assert_allclose(got.history["loss"], want.history["loss"], rtol=1e-6)
    np.testing.assert_allclose(got.history["val_loss"], want.history["val_loss"], rtol=1e-6)
    scores = [hl.evaluate(result, (CX, CY))["loss"] for result in (got, want)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_loss_module_with_pos_weight() -> None:
    ids = (CY == 1).astype(np.int64)
    loss = nn.BCEWithLogitsLoss(pos_weight=np.array([3.0]))
    got = hl.train(mlp(c=1), (CX, ids), exact(loss=loss, max_epochs=2))
    want = hl.train(mlp(c=1), (CX, ids), exact(class_weight=[1.0, 3.0], max_epochs=2))
    np.testing.assert_allclose(got.history["loss"], want.history["loss"], rtol=1e-6)


class Uncertain(nn.Module):
    """A loss that learns how far off to expect outputs to be: log variance and precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.zeros(1))  # the model's Linear has a "weight" as well

    def forward(self, output, target):
        return (hl.exp(-self.weight) * (output - target) ** 2 + self.weight).mean()


def test_parameters_of_a_loss_are_trained() -> None:
    loss, model = Uncertain(), nn.Linear(5, 1)
    config = quiet(loss=loss, max_epochs=300, lr=0.05, optimizer="adam")
    result = hl.train(model, hl.DataModule.from_arrays(X, FLAT, batch_size=64), config)
    errors = np.asarray(hl.predict(model, X))[:, 0] - FLAT
    assert float(loss.weight) == pytest.approx(np.log((errors**2).mean()), abs=0.1)
    assert result.history["loss"][-1] < result.history["loss"][0]
    assert set(model.state_dict()) == {"weight", "bias"}


def test_a_stepper_trains_a_loss_as_well() -> None:
    loss = Uncertain()
    data = hl.DataModule.from_arrays(X, FLAT, batch_size=64)
    step = hl.stepper(nn.Linear(5, 1), exact(loss=loss), data)
    for batch in data.train_batches():
        step.step(batch)
    state = step.state_dict()
    assert float(loss.weight) != 0.0
    again, other = Uncertain(), nn.Linear(5, 1)
    after = hl.stepper(other, exact(loss=again), data)
    after.load_state_dict(state)
    after.sync()
    assert float(again.weight) == float(loss.weight)


def test_parameters_of_a_loss_have_groups_and_are_frozen_by_name() -> None:
    loss = Uncertain()
    hl.train(nn.Linear(5, 1), (X, FLAT), exact(loss=loss, max_epochs=1, freeze="loss"))
    assert float(loss.weight) == 0.0
    groups = [{"params": "loss.weight", "lr": 1e-9}]
    hl.train(nn.Linear(5, 1), (X, FLAT), exact(loss=loss, max_epochs=1, param_groups=groups))
    assert 0.0 < abs(float(loss.weight)) < 1e-8


# ---------------------------------------------------------------------------- dicts


class Reports(nn.Module):
    """A training_step that returns what it is told to."""

    def __init__(self, report) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.report = report

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        output = self(batch["x"])
        hits = output.argmax(1) == batch["y"]
        return self.report(F.cross_entropy(output, batch["y"]), output.square().mean(), hits)


def run(report, model=None, **fields):
    data = hl.DataModule.from_arrays(CX, CY, val=(CX[:20], CY[:20]), batch_size=40)
    return hl.train(model or Reports(report), data, exact(**({"max_epochs": 3} | fields)))


def test_the_loss_alone_is_trained_and_the_rest_logged() -> None:
    plain = Reports(lambda ce, size, hits: ce)
    full = Reports(
        lambda ce, size, hits: {
            "loss": ce,
            "size": size,
            "detached": size.detach(),
            "accuracy": hits.float().mean(),
            "n_right": hits.sum(),
            "constant": 3,
        }
    )
    want, got = run(None, plain), run(None, full)
    assert same_bits(weights(plain), weights(full))
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(got.history[name], want.history[name], rtol=1e-12)
    output = np.asarray(hl.predict(full, CX[:20]), np.float64)
    assert got.history["val_size"][-1] == pytest.approx((output**2).mean(), rel=1e-5)
    assert got.history["val_detached"] == got.history["val_size"]
    hits = output.argmax(1) == CY[:20]
    assert got.history["val_accuracy"][-1] == pytest.approx(hits.mean(), rel=1e-6)
    assert got.history["val_n_right"][-1] == pytest.approx(hits.sum(), rel=1e-6)
    assert got.history["constant"] == [3.0] * 3
    assert got.history["val_constant"] == [3.0] * 3
    assert set(hl.evaluate(got, (CX, CY))) >= {"loss", "size", "accuracy", "n_right"}


def test_a_logged_value_can_be_monitored() -> None:
    report = lambda ce, size, hits: {"loss": ce, "accuracy": hits.float().mean()}  # noqa: E731
    result = run(report, monitor="val_accuracy", restore_best=True)
    assert result.best_score == max(result.history["val_accuracy"])


def test_without_a_loss_all_are_summed_and_the_header_says_so(capfd) -> None:
    result = run(
        lambda ce, size, hits: {"ce": ce, "size": size}, enable_progress_bar="auto", max_epochs=1
    )
    assert "loss ce + size (training_step, summed)" in " ".join(capfd.readouterr().err.split())
    assert result.history["loss"][0] == pytest.approx(
        result.history["ce"][0] + result.history["size"][0], rel=1e-12
    )
    run(lambda ce, size, hits: {"loss": ce, "size": size}, enable_progress_bar="auto", max_epochs=1)
    text = " ".join(capfd.readouterr().err.split())
    assert "loss training_step (logs size)" in text
    assert "summed" not in text


@pytest.mark.parametrize(
    "report",
    [
        lambda ce, size, hits: {"ce": ce, "accuracy": hits.float().mean()},
        lambda ce, size, hits: {"ce": ce, "size": size.detach()},
        lambda ce, size, hits: {"ce": ce, "accuracy": hl.zeros(())},
    ],
)
def test_a_value_without_gradient_is_no_loss(report) -> None:
    with pytest.raises(hl.TraceError, match=r"'(accuracy|size)'.*no gradient.*\"loss\""):
        run(report)


@pytest.mark.parametrize(
    "report",
    [
        lambda ce, size, hits: hits.float().mean(),
        lambda ce, size, hits: {"loss": ce.detach(), "size": size},
    ],
)
def test_a_loss_without_gradient_is_refused(report) -> None:
    with pytest.raises(hl.TraceError, match=r"training_step.* no gradient"):
        run(report)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (lambda ce, size, hits: {"loss": ce, "lr": size}, "'lr'.*taken"),
        (lambda ce, size, hits: {"loss": ce, "hits": hits}, r"'hits'.*one number.*\(40,\)"),
        (lambda ce, size, hits: {"loss": ce, "what": "x"}, "'what'.*a tensor or a number, got str"),
        (lambda ce, size, hits: {"ce": ce, "epoch": size}, "'epoch'.*taken"),
        (lambda ce, size, hits: {}, "an empty dict"),
    ],
)
def test_what_cannot_be_logged(report, words) -> None:
    with pytest.raises(hl.HotloopError, match=words):
        run(report)


def test_a_dict_of_losses_has_no_loss_named_loss() -> None:
    with pytest.raises(hl.ConfigError, match=r"'loss'.*the sum"):
        hl.train(mlp(), (CX, CY), exact(loss={"loss": F.cross_entropy, "b": F.cross_entropy}))


def test_names_of_losses_and_metrics_differ() -> None:
    with pytest.raises(hl.ConfigError, match=r"'val_mse'.*taken"):
        train(Column(), Y, {"mse": "mse", "l1": "l1"}, metrics=["mse"])
