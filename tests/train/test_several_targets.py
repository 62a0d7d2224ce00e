"""Several targets: a dict or tuple of arrays, each with its output, loss and metrics."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import quiet

N = 60
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4)).astype(np.float32)
KIND = np.array(["ash", "elm", "oak"])[RNG.integers(0, 3, N)]
IDS = np.unique(KIND, return_inverse=True)[1]
SIZE = (X.sum(1) * 2 + 1).astype(np.float32)
Y = {"kind": KIND, "size": SIZE}
LOSS = {"kind": "cross_entropy", "size": "mse"}


class Two(nn.Module):
    """A dict of outputs, or a tuple in the order of the targets."""

    def __init__(self, give=dict) -> None:
        super().__init__()
        self.kind, self.size, self.give = nn.Linear(4, 3), nn.Linear(4, 1), give

    def forward(self, x):
        outputs = {"kind": self.kind(x), "size": self.size(x)}
        return outputs if self.give is dict else tuple(outputs.values())


def train(model, y, x=X, weight=None, **fields):
    whole = (x, y) if weight is None else (x, y, weight)
    data = hl.DataModule.from_arrays(x, y, val=whole, sample_weight=weight, batch_size=16)
    return hl.train(model, data, quiet(**({"max_epochs": 2, "lr": 1e-2} | fields)))


def alone(layer, y, weight=None, **fields):
    """Loss and metrics of one target, by a model of its own."""
    rest = () if weight is None else (weight,)
    copied = nn.Linear(4, layer.weight.shape[0])
    copied.load_state_dict(layer.state_dict())
    return hl.evaluate(copied, (X, y, *rest), **fields)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [LOSS, "auto"], ids=["dict", "auto"])
@pytest.mark.parametrize("give", [dict, tuple])
def test_each_target_has_its_loss_and_metrics(give, loss, weighted: bool) -> None:
    weight = RNG.uniform(0.1, 2, N).astype(np.float32) if weighted else None
    model = Two(give)
    metrics = {"kind": ["accuracy", "f1"], "size": "r2"}
    history = train(model, Y, weight=weight, loss=loss, metrics=metrics).history
    kind = alone(model.kind, KIND, weight, metrics=["accuracy", "f1"])
    size = alone(model.size, SIZE, weight, metrics="r2")
    want = {
        "loss": kind["loss"] + size["loss"],
        "kind_loss": kind["loss"],
        "size_loss": size["loss"],
        "kind_accuracy": kind["accuracy"],
        "kind_f1": kind["f1"],
        "size_r2": size["r2"],
    }
    assert {k.removeprefix("val_") for k in history if k.startswith("val_")} == set(want)
    for name, value in want.items():
        assert history[f"val_{name}"][-1] == pytest.approx(value, rel=1e-5), name
    total = np.add(history["kind_loss"], history["size_loss"])
    np.testing.assert_allclose(history["loss"], total, rtol=1e-6)


def test_the_sum_is_trained() -> None:
    """As one step by hand: both heads move as they do alone."""
    model, single = Two(), nn.Linear(4, 3)
    single.load_state_dict(model.kind.state_dict())
    config = quiet(max_epochs=3, optimizer="sgd", lr=0.1)
    hl.train(model, hl.DataModule.from_arrays(X, Y, batch_size=16), config)
    hl.train(single, hl.DataModule.from_arrays(X, IDS, batch_size=16), config)
    np.testing.assert_allclose(model.kind.weight.numpy(), single.weight.numpy(), rtol=1e-5)


@pytest.mark.parametrize("loss", [["cross_entropy", nn.MSELoss()], ("auto", "mse"), "auto"])
def test_a_tuple_of_targets(loss) -> None:
    model = Two(tuple)
    result = train(model, (IDS, SIZE), loss=loss, metrics=[["accuracy"], ["mae"]])
    last = {name: values[-1] for name, values in result.history.items()}
    kind, size = alone(model.kind, IDS), alone(model.size, SIZE, metrics="mae", loss="mse")
    assert last["val_0_loss"] == pytest.approx(kind["loss"], rel=1e-5)
    assert last["val_0_accuracy"] == pytest.approx(kind["accuracy"])
    assert last["val_1_mae"] == pytest.approx(size["mae"], rel=1e-5)
    labels = hl.predict(result, X, labels=True)
    assert isinstance(labels, tuple)
    assert labels[0].shape == (N,)
    assert labels[1].shape == (N, 1)


def test_a_tuple_of_labels_is_one_target() -> None:
    for y in (tuple(IDS.tolist()), tuple(KIND.tolist())):
        assert hl.DataModule.from_arrays(X, y).target_kind == "class"
    rows = tuple(np.zeros((N, 5), np.float32))
    assert hl.DataModule.from_arrays(X, rows).target_kind == "float"
    assert hl.DataModule.from_arrays(X, (IDS, SIZE)).target_kind == "several"


def test_predict_gives_each_its_own(tmp_path) -> None:
    model = Two()
    result = train(model, Y)
    outputs = hl.predict(model, X)
    assert outputs.keys() == Y.keys()
    result.save(tmp_path / "two")
    for known in (model, hl.load(tmp_path / "two")):
        labels = hl.predict(known, X, labels=True)
        assert set(labels["kind"]) <= {"ash", "elm", "oak"}
        ids = np.asarray(outputs["kind"]).argmax(1)
        assert (labels["kind"] == np.array(["ash", "elm", "oak"])[ids]).all()
        np.testing.assert_array_equal(labels["size"], outputs["size"])
        proba = hl.predict(known, X, proba=True)
        np.testing.assert_allclose(proba["kind"].sum(1), 1, rtol=1e-5)
        np.testing.assert_array_equal(proba["size"], outputs["size"])
    for known in (result, hl.load(tmp_path / "two")):
        assert known.classes == {"kind": ["ash", "elm", "oak"]}


def test_evaluate_finds_classes_by_name(tmp_path) -> None:
    """Also those that are not all there, of a model and of its file."""
    model = Two()
    result = train(model, Y, metrics=["accuracy", "mae"])
    rows = KIND != "ash"
    part = {"kind": KIND[rows], "size": SIZE[rows]}
    scores = hl.evaluate(result, (X[rows], part))
    right = hl.predict(model, X[rows], labels=True)["kind"] == KIND[rows]
    assert scores["kind_accuracy"] == pytest.approx(right.mean())
    assert scores.keys() == {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"}
    result.save(tmp_path / "two")
    loaded = hl.load(tmp_path / "two")
    again = hl.evaluate(loaded, (X[rows], part), metrics=["accuracy", "mae"])
    assert again == pytest.approx(scores, rel=1e-5)
    part["kind"] = np.where(np.arange(rows.sum()) == 7, "yew", part["kind"])
    for known in (model, loaded):
        with pytest.raises(hl.DataError, match=r"y\['kind'\]: .* got 'yew' in row 7"):
            hl.evaluate(known, (X[rows], part))


def test_a_function_gets_all_targets() -> None:
    """Beside it outputs have no link, so that metrics need none."""

    def both(outputs, targets):
        ce = F.cross_entropy(outputs["kind"], targets["kind"])
        return ce + 0.1 * F.mse_loss(outputs["size"].squeeze(1), targets["size"])

    history = train(Two(), Y, loss=both).history
    assert "val_kind_accuracy" in history
    assert "val_kind_loss" not in history


def test_a_weight_of_a_loss_is_a_function() -> None:
    tenth = {"kind": "cross_entropy", "size": lambda output, y: 0.1 * F.mse_loss(output, y)}
    model, history = Two(), None
    history = train(model, Y, loss=tenth).history
    want = alone(model.size, SIZE)["loss"] * 0.1
    assert history["val_size_loss"][-1] == pytest.approx(want, rel=1e-5)
    with pytest.raises(hl.ConfigError, match=r"loss_weights.* 0\.1 \* "):
        hl.TrainingConfig(loss_weights={"size": 0.1})


def test_a_function_metric_of_one_target() -> None:
    def share(y_true, y_pred):
        return (y_true == y_pred).mean()

    model = Two()
    history = train(model, Y, metrics={"kind": share, "size": ["mae", "mse"]}).history
    right = hl.predict(model, X, labels=True)["kind"] == KIND
    assert history["val_kind_share"][-1] == pytest.approx(right.mean())
    assert "val_kind_accuracy" not in history


def test_several_of_many_kinds() -> None:
    """Tokens, columns of yes or no, values; nothing is named."""

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.Linear(4, 12 + 2 + 1)

        def forward(self, x):
            out = self.all(x)
            return {
                "tokens": out[:, :12].reshape(-1, 4, 3),
                "flags": out[:, 12:14],
                "value": out[:, 14],
                "more": out,
            }

    y = {
        "value": SIZE[:, None],
        "tokens": np.where(RNG.random((N, 4)) < 0.2, -100, RNG.integers(0, 3, (N, 4))),
        "flags": RNG.integers(0, 2, (N, 2)),
    }
    model = Three()
    result = train(model, y, metrics=["accuracy", "mse"])
    labels, known = hl.predict(model, X, labels=True), y["tokens"] >= 0
    last = {name: values[-1] for name, values in result.history.items()}
    right = (labels["tokens"] == y["tokens"])[known].mean()
    assert last["val_tokens_accuracy"] == pytest.approx(right)
    assert last["val_flags_accuracy"] == pytest.approx((labels["flags"] == y["flags"]).mean())
    assert last["val_value_mse"] == pytest.approx(last["val_value_loss"], rel=1e-5)
    assert labels["more"].shape == (N, 15)


def test_training_step_gets_the_dict() -> None:
    class Own(Two):
        def training_step(self, batch):
            x, y = batch
            out = self(x)
            return {
                "a": F.cross_entropy(out["kind"], y["kind"]),
                "b": F.mse_loss(out["size"].squeeze(1), y["size"]),
            }

    model = Own()
    history = train(model, Y, metrics=["accuracy"]).history
    want = alone(model.kind, KIND, metrics="accuracy")
    assert history["val_kind_accuracy"][-1] == pytest.approx(want["accuracy"])
    assert history["val_a"][-1] == pytest.approx(want["loss"], rel=1e-5)


def test_a_stepper_and_its_batches() -> None:
    data = hl.DataModule.from_arrays(X, Y, batch_size=20)
    step = hl.stepper(Two(), quiet(lr=0.05, max_epochs=5), data)
    losses = [step.step(b)["loss"] for e in range(5) for b in data.train_batches(e)]
    assert losses[-1] < losses[0]
    assert step.evaluate("train")["kind_accuracy"] > 0.3


def test_what_is_monitored() -> None:
    result = train(Two(), Y, monitor="val_size_loss", early_stopping=1)
    assert result.monitor == "val_size_loss"


def test_balanced_classes_and_smoothing() -> None:
    model = Two()
    fields = {"class_weight": "balanced", "label_smoothing": 0.1}
    history = train(model, Y, loss=LOSS, **fields).history
    config = quiet(**fields)
    want = alone(model.kind, KIND, config=config)["loss"]
    assert history["val_kind_loss"][-1] == pytest.approx(want, rel=1e-5)


def test_the_header_and_the_description_name_the_targets(capsys) -> None:
    def share(y_true, y_pred):
        return 0.0

    train(Two(), Y, enable_progress_bar=True, metrics={"kind": share})
    shown = " ".join(capsys.readouterr().err.split())
    assert "loss kind cross_entropy + size mse_loss" in shown
    assert "kind share(y_true, labels)" in shown
    described = hl.DataModule.from_arrays(X, Y).describe()
    assert "classes kind ash: " in " ".join(described.split())


class One(nn.Module):
    """One tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x)


class Other(Two):
    def forward(self, x):
        return {"kind": self.kind(x), "weight": self.size(x)}


REFUSED = [
    (Two(), Y, {"loss": {"kind": "auto"}}, r"loss: must .* targets kind, size, got kind; name"),
    (Two(), Y, {"loss": {**LOSS, "tree": "mse"}}, r"targets kind, size, got kind, size, tree"),
    (Two(), Y, {"metrics": {"tree": "mse"}}, r"metrics: .* targets kind, size, got tree; name"),
    (Two(), Y, {"metrics": {"size": "f1"}}, r"metrics: f1 needs class targets, got float"),
    (Two(), {"size": SIZE, "b": SIZE}, {"metrics": "f1"}, r"f1 fits none .* size \(float\), b"),
    (Two(), Y, {"metrics": [lambda a, b: 0.0]}, r"compares one target .* metrics={'kind': ...}"),
    (Other(), Y, {}, r"forward: .* targets kind, size, got a dict of kind, weight; return"),
    (One(), Y, {}, r"forward: .* a dict .* targets kind, size, got one output of shape \(16, 3\)"),
    (Two(tuple), {**Y, "c": SIZE}, {}, r"forward: .* targets kind, size, c, got 2 outputs"),
    (Two(), (IDS, SIZE), {}, r"forward: must return 2 outputs in a tuple, .* got a dict of kind"),
    (Two(), {"a": KIND, "b": KIND}, {"class_weight": [1, 2, 3]}, r"class_weight: .* 'balanced'"),
    (One(), IDS, {"loss": ["cross_entropy", "mse"]}, r"loss: a list has .* got 2 for one target"),
    (One(), IDS, {"metrics": {"a": ["f1", "iou"]}}, r"metrics: a list of metrics for 'a' is for"),
]


@pytest.mark.parametrize(("model", "y", "fields", "words"), REFUSED)
def test_what_does_not_fit_names_both_sides(model, y, fields, words) -> None:
    with pytest.raises(hl.ConfigError, match=words):
        train(model, y, **fields)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ({"a": IDS, "b": SIZE[:-1]}, r"y\['b'\]: must have one entry per row of X, .* 60, got 59"),
        ((IDS, SIZE[:-1]), r"y\[1\]: must have one entry per row of X, which has 60, got 59"),
        ({"a": IDS - 1}, r"y\['a'\]: class ids count from 0, got -1"),
        ({0: IDS}, r"y: the names of columns must be strings, got 0"),
        ({}, r"y: has no targets"),
    ],
)
def test_targets_that_are_refused(y, words) -> None:
    with pytest.raises(hl.DataError, match=words):
        hl.DataModule.from_arrays(X, y)


def test_validation_has_the_targets_of_training() -> None:
    with pytest.raises(hl.DataError, match=r"val y: .*'kind', 'size', got 'kind'"):
        hl.DataModule.from_arrays(X, Y, val=(X, {"kind": KIND}))
    with pytest.raises(hl.DataError, match=r"val y: .*'kind', 'size', got one array"):
        hl.DataModule.from_arrays(X, Y, val=(X, SIZE))
    mixed = {"size": SIZE, "kind": KIND}  # in another order
    assert len(hl.DataModule.from_arrays(X, Y, val=(X, mixed)).targets) == 2


def test_a_wrong_label_and_nan_are_named() -> None:
    bad = SIZE.copy()
    bad[4] = np.nan
    with pytest.raises(hl.DataError, match=r"y\['size'\]: must be finite, got nan in row 4"):
        train(Two(), {"kind": IDS, "size": bad})
    ids = IDS.copy()
    ids[5] = 9
    with pytest.raises(hl.DataError, match=r"y\['kind'\]: class ids must be below 3, .* row 5"):
        train(Two(), {"kind": ids, "size": SIZE})
