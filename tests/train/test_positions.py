"""A class for each position (token, pixel): classes in dim 1 or the last; ids that are ignored."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import quiet

N, T, C = 40, 6, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, T, 4)).astype(np.float32)
Y = RNG.integers(0, C, (N, T))
MASKED = np.where(RNG.random((N, T)) < 0.3, -100, Y)
BY_NAME = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "iou")


class Tokens(nn.Module):
    """Logits (N, C, T) or (N, T, C)."""

    def __init__(self, where: str = "last", c: int = C) -> None:
        super().__init__()
        self.head, self.where = nn.Linear(4, c), where

    def forward(self, x):
        logits = self.head(x)
        return logits.movedim(-1, 1) if self.where == "second" else logits


def train(model, y=Y, x=X, **fields):
    weight = fields.pop("sample_weight", None)
    whole = (x, y) if weight is None else (x, y, weight)
    data = hl.DataModule.from_arrays(x, y, val=whole, sample_weight=weight, batch_size=16)
    return hl.train(model, data, quiet(**({"max_epochs": 1, "lr": 1e-2} | fields)))


def flat_scores(model, y, weight=None):
    """What the same model gives where each position that counts is a row of its own."""
    rows = y.reshape(-1) >= 0
    flat = X.reshape(-1, 4)[rows], y.reshape(-1)[rows]
    if weight is not None:
        flat += (np.repeat(weight, T)[rows],)
    alone = nn.Linear(4, C)
    alone.load_state_dict(model.head.state_dict())
    return hl.evaluate(alone, flat, metrics=BY_NAME, loss="cross_entropy")


@pytest.mark.parametrize("y", [Y, MASKED], ids=["all", "masked"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("where", ["second", "last"])
def test_tokens_are_scored_as_rows(where: str, weighted: bool, y) -> None:
    """Loss and every metric by name, sample weights and ignored positions included."""
    weight = RNG.uniform(0.1, 2, N).astype(np.float32) if weighted else None
    model = Tokens(where)
    result = train(model, y, metrics=BY_NAME, sample_weight=weight)
    want = flat_scores(model, y, weight)
    for name in ("loss", *BY_NAME):
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], rel=1e-5), name


def test_both_orders_train_alike() -> None:
    first, second = Tokens("last"), Tokens("second")
    histories = [train(model, max_epochs=3).history for model in (first, second)]
    assert histories[0]["val_loss"] == pytest.approx(histories[1]["val_loss"], rel=1e-6)
    assert histories[0]["val_accuracy"] == histories[1]["val_accuracy"]


def test_pixels() -> None:
    images = RNG.standard_normal((24, 5, 7, 4)).astype(np.float32)
    ids = RNG.integers(0, C, (24, 5, 7))
    for where in ("second", "last"):
        model = Tokens(where)
        result = train(model, ids, images)
        out = np.asarray(hl.predict(model, images))
        assert out.shape == ((24, C, 5, 7) if where == "second" else (24, 5, 7, C))
        labels = hl.predict(model, images, labels=True)
        assert labels.shape == ids.shape
        assert result.history["val_accuracy"][-1] == pytest.approx((labels == ids).mean())
        proba = hl.predict(model, images, proba=True)
        assert proba.shape == out.shape
        axis = 1 if where == "second" else -1
        np.testing.assert_allclose(proba.sum(axis), 1, rtol=1e-5)
        assert (proba.argmax(axis) == labels).all()


def test_a_mask_of_yes_and_no(tmp_path) -> None:
    """One logit for each pixel: bools and ids of two classes, channels or none."""
    images = RNG.standard_normal((24, 5, 7, 4)).astype(np.float32)
    mask = images[..., 0] > 0
    for y, where in ((mask, "second"), (mask.astype(np.int64), "last")):
        model = Tokens(where, 1)
        result = train(model, y, images, max_epochs=20, lr=0.1, metrics=["accuracy", "f1", "iou"])
        labels = hl.predict(model, images, labels=True)
        assert labels.shape == mask.shape
        assert labels.dtype == y.dtype
        right = (labels == y).mean()
        assert right > 0.9
        assert result.history["val_accuracy"][-1] == pytest.approx(right)
        both = (mask & (labels == 1)).sum()
        assert result.history["val_iou"][-1] == pytest.approx(both / (mask | (labels == 1)).sum())
        result.save(tmp_path / "mask")
        loaded = hl.load(tmp_path / "mask")
        assert (hl.predict(loaded, images, labels=True) == labels).all()


def test_two_classes_at_each_token_are_no_columns() -> None:
    """A matrix of 0 and 1 whose output has two classes for each of them."""
    y = (X[..., 0] > 0).astype(np.int64)
    for where in ("second", "last"):
        model = Tokens(where, 2)
        result = train(model, y, max_epochs=20, lr=0.1, metrics=["accuracy", "f1"])
        labels = hl.predict(model, X, labels=True)
        assert labels.shape == y.shape
        right = (labels == y).mean()
        assert right > 0.9
        assert result.history["val_accuracy"][-1] == pytest.approx(right)


def test_as_many_classes_as_positions_is_refused() -> None:
    """Both readings fit; torch's loss says which is meant."""
    x, y = X[:, :C], Y[:, :C]
    with pytest.raises(hl.ShapeError, match=r"output: the classes may lie in dim 1 or in the last"):
        train(Tokens(), y, x)
    scores = {}
    for where in ("second", "last"):
        model = Tokens(where)
        model.head.weight.copy_(np.eye(C, 4))
        config = quiet(loss=nn.CrossEntropyLoss(), metrics="accuracy")
        scores[where] = hl.evaluate(model, (x, y), config=config)["accuracy"]
        assert scores[where] == pytest.approx((np.asarray(model(x)).argmax(1) == y).mean())
    assert scores["second"] != scores["last"]


@pytest.mark.parametrize("shape", [(T, C + 1, 2), (T + 1, C), (C,)])
def test_outputs_that_are_not_of_the_positions(shape) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.Linear(T * 4, int(np.prod(shape)))

        def forward(self, x):
            return self.all(x.flatten(1)).reshape(-1, *shape)

    words = r"output: must have shape \(rows, classes, 6\) or \(rows, 6, classes\) for class ids"
    with pytest.raises(hl.ShapeError, match=words):
        train(Odd())


# ---- what counts nothing


@pytest.mark.parametrize("where", ["second", "last"])
@pytest.mark.parametrize("ignored", [-100, 0, 255])
def test_a_loss_module_says_what_is_ignored(ignored: int, where: str) -> None:
    """By the metrics as well; the id needs no output."""
    y = np.where(MASKED == -100, ignored, MASKED)
    model = Tokens(where)
    result = train(model, y, loss=nn.CrossEntropyLoss(ignore_index=ignored), metrics=BY_NAME)
    want = flat_scores(model, np.where(y == ignored, -100, y))
    for name in ("loss", *BY_NAME):
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], rel=1e-5), name


def test_ignored_ids_of_rows() -> None:
    model = nn.Linear(4, C)
    y = MASKED[:, 0]
    assert (y == -100).any()
    result = train(model, y, X[:, 0], class_weight="balanced")
    labels = hl.predict(model, X[:, 0], labels=True)
    known = y >= 0
    assert result.history["val_accuracy"][-1] == pytest.approx((labels == y)[known].mean())


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss(ignore_index=0), r"got CrossEntropyLoss with ignore_index 0; use"),
        (nn.BCEWithLogitsLoss(), r"BCEWithLogitsLoss with no ignore_index; use loss='bce'"),
    ],
)
def test_a_loss_that_would_take_an_ignored_id_for_a_class(loss, words) -> None:
    c = 1 if "BCE" in words else C
    with pytest.raises(hl.ConfigError, match=words):
        train(Tokens(c=c), np.minimum(MASKED, c), loss=loss)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_one_logit_leaves_ignored_ids_out(is_weighted: bool) -> None:
    """The loss and the accuracy are those of the other ids, also of ids drawn anew beside them."""
    y = np.minimum(MASKED, 1)
    weight = np.random.default_rng(0).random(N) if is_weighted else None
    data = hl.DataModule.from_arrays(X, y, batch_size=N, sample_weight=weight)
    model = Tokens(c=1)
    history = hl.train(model, data, quiet(max_epochs=1, loss="bce", lr=1e-12)).history
    logits = np.asarray(hl.predict(model, X), np.float64).reshape(y.shape)
    per = np.logaddexp(0, logits) - logits * y
    counts = (y >= 0) * (1.0 if weight is None else weight[:, None])
    assert history["loss"][0] == pytest.approx((per * counts).sum() / counts.sum(), rel=1e-5)
    scores = hl.evaluate(model, data, split="train", metrics=["accuracy"])
    right = (logits > 0) == y
    assert scores["accuracy"] == pytest.approx((right * counts).sum() / counts.sum(), rel=1e-6)


def test_other_negative_ids_are_refused() -> None:
    y = np.where(MASKED == -100, -1, Y)
    with pytest.raises(hl.DataError, match=r"y: class ids count .* got -1 .* write -100 where"):
        hl.DataModule.from_arrays(X, y)
    with pytest.raises(hl.DataError, match="got the class id -100 alone"):
        hl.DataModule.from_arrays(X, np.full((N, T), -100))


def test_an_id_without_an_output_is_named() -> None:
    y = MASKED.copy()
    y[7, 3] = C
    with pytest.raises(hl.DataError, match=r"class ids must be below 5, .* got 5 in row 7, col"):
        train(Tokens(), y)


# ---- functions


@pytest.mark.parametrize("where", ["second", "last"])
def test_functions_get_a_row_for_each_position(where: str) -> None:
    seen = {}

    def keep(need):
        def function(y_true, y_pred, sample_weight):
            seen[need] = y_true, y_pred, sample_weight
            return 0.0

        return hl.metric(function, needs=need, mode="max", name=need)

    weight = RNG.uniform(0.1, 2, N).astype(np.float32)
    needs = ("labels", "proba", "output")
    model = Tokens(where)
    train(model, MASKED, sample_weight=weight, metrics=[keep(need) for need in needs])
    rows = MASKED.reshape(-1) >= 0
    logits = np.asarray(hl.predict(model, X))
    flat = (logits if where == "last" else np.moveaxis(logits, 1, -1)).reshape(-1, C)[rows]
    shifted = np.exp(flat - flat.max(1, keepdims=True))
    want = {"labels": flat.argmax(1), "proba": shifted / shifted.sum(1, keepdims=True)}
    for need in needs:
        y_true, y_pred, weights = seen[need]
        np.testing.assert_array_equal(y_true, MASKED.reshape(-1)[rows])
        np.testing.assert_array_equal(weights, np.repeat(weight, T)[rows])
        np.testing.assert_allclose(y_pred, want.get(need, flat), rtol=1e-5, atol=1e-6)


# ---- with the rest


def test_a_saved_model_of_tokens(tmp_path) -> None:
    for where in ("second", "last"):
        model = Tokens(where)
        result = train(model, MASKED)
        result.save(tmp_path / where)
        loaded = hl.load(tmp_path / where)
        for options in ({"labels": True}, {"proba": True}):
            want = hl.predict(model, X, **options)
            np.testing.assert_allclose(hl.predict(loaded, X, **options), want, rtol=1e-6)
        want = hl.evaluate(result, (X, MASKED))
        assert hl.evaluate(loaded, (X, MASKED)) == pytest.approx(want, rel=1e-6)
        y = MASKED.copy()
        y[9, 2] = C
        data = hl.DataModule.from_arrays(X, y, val=[3, 9])
        with pytest.raises(hl.DataError, match=r"got 5 in row 9, column 2"):
            hl.evaluate(loaded, data, "val")


NAMES = np.array(["low", "some", "more", "much", "full"])


@pytest.mark.parametrize("y", [Y, MASKED], ids=["all", "masked"])
def test_names_at_each_position(y, tmp_path) -> None:
    """As ids, in the order of their names; None where an id would be -100."""
    named = np.where(y == -100, None, NAMES[np.maximum(y, 0)].astype(object))
    named = named if (y == -100).any() else named.astype(str)
    order = np.argsort(np.argsort(NAMES))
    ids = np.where(y == -100, -100, order[np.maximum(y, 0)])
    want, got = train(Tokens(), ids, metrics=BY_NAME), train(Tokens(), named, metrics=BY_NAME)
    for column in ("loss", *(f"val_{name}" for name in BY_NAME)):
        assert got.history[column] == want.history[column]
    assert got.classes == sorted(NAMES)
    labels = hl.predict(got, X, labels=True)
    np.testing.assert_array_equal(labels, np.sort(NAMES)[hl.predict(want, X, labels=True)])
    got.save(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(
        hl.load(tmp_path / "m.safetensors").predict(X, labels=True), labels
    )
    part = hl.DataModule.from_arrays(X[:9], named[:9]).arrays("train")[1]
    np.testing.assert_array_equal(part, named[:9])


@pytest.mark.parametrize("y", [Y, MASKED], ids=["all", "masked"])
def test_names_in_another_order_mean_the_same(y) -> None:
    data = hl.DataModule.from_arrays(X, y, classes=list(NAMES))
    result = hl.train(Tokens(), data, quiet(max_epochs=1, lr=1e-2))
    turned = np.where(y == -100, -100, C - 1 - y)
    same = hl.DataModule.from_arrays(X, turned, classes=list(NAMES[::-1]))
    assert hl.evaluate(result, same, split="train") == hl.evaluate(result, data, split="train")
    other = hl.DataModule.from_arrays(X, turned, classes=[*NAMES[:0:-1], "none"])
    with pytest.raises(
        hl.DataError, match=r"classes must be those of training, .*got 'none' in row"
    ):
        hl.evaluate(result, other, split="train")


def test_names_that_are_none() -> None:
    with pytest.raises(hl.DataError, match="y: must be all numbers or all strings, got NoneType"):
        hl.DataModule.from_arrays(X, np.full((N, T), None))
    with pytest.raises(hl.DataError, match="y: must be all numbers or all strings, got NoneType"):
        hl.DataModule.from_arrays(X, np.array(["a", None] * (N // 2), dtype=object))
    with pytest.raises(hl.DataError, match=r"got NoneType None in row 1$"):
        hl.DataModule.from_arrays(X, np.array([2, None] * (N // 2), dtype=object))
    mixed = NAMES[Y].astype(object)
    mixed[3, 2] = 7
    with pytest.raises(hl.DataError, match="got int 7 in row 3"):
        hl.DataModule.from_arrays(X, mixed)


def test_metrics_beside_a_training_step() -> None:
    class Own(Tokens):
        def training_step(self, batch):
            logits = self(batch["x"])
            return F.cross_entropy(logits.reshape(-1, C), batch["y"].reshape(-1))

    model = Own()
    result = train(model, MASKED, metrics=["accuracy", "f1"])
    want = flat_scores(model, MASKED)
    for name in ("accuracy", "f1"):
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], rel=1e-5)


def test_a_stepper_of_tokens() -> None:
    step = hl.stepper(Tokens(), quiet(lr=0.1, max_epochs=20), (X, MASKED))
    losses = [step.step((X[:16], MASKED[:16]))["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert 0 < step.evaluate("train")["accuracy"] < 1


# ---- the default


@pytest.mark.parametrize("none", [[], None, ()])
def test_no_metrics_are_none(none) -> None:
    """Without the argument classes have accuracy."""
    x, y = X[:, 0], Y[:, 0]
    assert "val_accuracy" in train(nn.Linear(4, C), y, x).history
    assert set(train(nn.Linear(4, C), y, x, metrics=none).history) >= {"val_loss"}
    assert "val_accuracy" not in train(nn.Linear(4, C), y, x, metrics=none).history
    config = hl.TrainingConfig(metrics=none)
    assert hl.TrainingConfig.from_toml(config.to_toml()) == config != hl.TrainingConfig()


class Named(nn.Module):
    """A dict whose first entry is no prediction."""

    def __init__(self, key: str = "logits") -> None:
        super().__init__()
        self.body, self.head, self.key = nn.Linear(4, 8), nn.Linear(8, C), key

    def forward(self, x):
        hidden = F.tanh(self.body(x))
        return {"hidden": hidden, self.key: self.head(hidden)}


def test_loss_metrics_and_predict_take_the_same_output() -> None:
    x, y = X[:, 0], Y[:, 0]
    model = Named()
    result = train(model, y, x, metrics=["accuracy", hl.metric(np_share, needs="labels")])
    logits = np.asarray(hl.predict(model, x)["logits"])
    right = (logits.argmax(1) == y).mean()
    assert result.history["val_accuracy"][-1] == pytest.approx(right)
    assert result.history["val_np_share"][-1] == pytest.approx(right)
    assert (hl.predict(model, x, labels=True) == logits.argmax(1)).all()
    assert hl.predict(model, x, proba=True).shape == (N, C)


def np_share(y_true, y_pred):
    return (y_true == y_pred).mean()


def test_a_dict_that_does_not_say_which_output_is_meant() -> None:
    """By names of losses and metrics an error; a function of its own needs no metric."""
    x, y = X[:, 0], Y[:, 0]
    words = r"one target is compared with one output, got a dict of hidden, scores"
    with pytest.raises(hl.ConfigError, match=words):
        train(Named("scores"), y, x)

    def loss(output, target):
        return F.cross_entropy(output["scores"], target)

    history = train(Named("scores"), y, x, loss=loss).history
    assert "val_accuracy" not in history
    with pytest.raises(hl.ConfigError, match=f"metrics: forward: {words}"):
        train(Named("scores"), y, x, loss=loss, metrics="accuracy")


def test_a_tuple_s_first_output() -> None:
    class Pair(Named):
        def forward(self, x):
            both = super().forward(x)
            return both["logits"], both["hidden"]

    x, y = X[:, 0], Y[:, 0]
    for loss in ("cross_entropy", nn.CrossEntropyLoss()):
        model = Pair()
        result = train(model, y, x, loss=loss)
        right = (np.asarray(hl.predict(model, x)[0]).argmax(1) == y).mean()
        assert result.history["val_accuracy"][-1] == pytest.approx(right)


def test_a_training_step_alone_leaves_where_the_classes_are() -> None:
    """What is kept for prediction, where the loss's name says how outputs become probabilities."""

    class Own(Tokens):
        def training_step(self, batch):
            logits = self(batch["x"])
            logits = logits if self.where == "second" else logits.movedim(-1, 1)
            return F.cross_entropy(logits, batch["y"])

    for where, axis in (("second", 1), ("last", -1)):
        model = Own(where)
        train(model)
        labels = hl.predict(model, X, labels=True, loss="cross_entropy")
        assert (labels == np.asarray(hl.predict(model, X)).argmax(axis)).all()


# ---- floats that say classes


def test_float_masks_are_scored_at_each_pixel() -> None:
    images = RNG.standard_normal((24, 5, 7, 4)).astype(np.float32)
    mask = images[..., :1].transpose(0, 3, 1, 2) > 0
    metrics = ["accuracy", "iou", "f1", "mse"]
    model = Tokens("second", 1)
    result = train(model, mask.astype(np.float32), images, loss="bce", metrics=metrics)
    said = np.asarray(hl.predict(model, images)) > 0
    assert (hl.predict(model, images, labels=True) == said).all()
    assert result.history["val_accuracy"][-1] == pytest.approx((said == mask).mean())
    iou = (said & mask).sum() / (said | mask).sum()
    assert result.history["val_iou"][-1] == pytest.approx(iou)


def test_float_targets_of_probabilities_are_cut_at_a_half() -> None:
    y = (X[:, 0, :1] > 0).astype(np.float32)
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    result = train(model, y, X[:, 0], loss=nn.BCELoss(), metrics=["accuracy", "mse"])
    p = np.asarray(hl.predict(model, X[:, 0]))
    assert 0 < ((p > 0.5) == y).mean() < 1
    assert result.history["val_accuracy"][-1] == pytest.approx(((p > 0.5) == y).mean())
    assert result.history["val_mse"][-1] == pytest.approx(((p - y) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("tokens", [False, True])
def test_shares_of_classes_count_as_the_likeliest(tokens: bool) -> None:
    """One-hot floats, or softened ones, beside cross-entropy."""
    y = np.eye(C, dtype=np.float32)[Y] * 0.8 + 0.2 / C
    x, model = X, Tokens("second")
    y = y.transpose(0, 2, 1)
    if not tokens:
        x, y, model = X[:, 0], y[:, :, 0], nn.Linear(4, C)
    result = train(model, y, x, loss="cross_entropy", metrics=["accuracy", "f1"])
    labels = hl.predict(model, x, labels=True)
    assert labels.shape == ((N, T) if tokens else (N,))
    right = (labels == (Y if tokens else Y[:, 0])).mean()
    assert result.history["val_accuracy"][-1] == pytest.approx(right)


def test_a_mask_with_a_channel_beside_two_classes() -> None:
    mask = RNG.integers(0, 2, (N, 1, T))
    with pytest.raises(hl.ShapeError, match=r"y\.squeeze\(1\) as targets"):
        train(Tokens("second", 2), mask)
