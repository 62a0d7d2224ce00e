"""``evaluate``: modules and loaded models give the same numbers, classes go by their names."""

import pickle
from collections import OrderedDict

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn, stats
from hotloop.nn import functional as F
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()
NAMES = np.array(["ant", "bee", "cat"])


class Several(nn.Module):
    """A dict of outputs, of which "logits" is the loss's; two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, a, b):
        h = hl.cat([a, b], 1)
        return {"logits": self.body(h), "rest": (h, h.sum(1))}


def share(y_true, y_pred):
    return (y_true == y_pred).mean()


Xr, Yr = regression(90, 6, 1)
RNG = np.random.default_rng(0)
WEIGHT = RNG.uniform(0.1, 2, 90)
CASES = {
    "classes": (mlp, (X, Y), {}),
    "names": (mlp, (X, NAMES[Y]), {}),
    "one logit": (lambda: mlp(c=1), (X, Y > 0), {}),
    "columns": (lambda: mlp(c=3), (X, np.eye(3, dtype=bool)[Y]), {}),
    "values": (lambda: mlp(c=1), (Xr, Yr), {"metrics": ("r2", "mae")}),
    "named loss": (lambda: mlp(c=1), (Xr, Yr), {"loss": "huber"}),
    "weights": (mlp, (X, Y, WEIGHT), {}),
    "functions": (mlp, (X, Y), {"metrics": (share, "f1")}),
    "settings": (mlp, (X, Y), {"class_weight": "balanced", "label_smoothing": 0.1}),
    "structures": (Several, ((X[:, :2], X[:, 2:]), Y), {}),
}


@pytest.mark.filterwarnings("ignore:y. every row has exactly one 1")
@pytest.mark.parametrize("name", CASES)
def test_loaded_models_are_evaluated_as_modules(name: str, tmp_path) -> None:
    make, data, fields = CASES[name]
    config = quiet(max_epochs=2, lr=1e-2, **fields)
    data = hl.DataModule.from_arrays(
        *data[:2], sample_weight=data[2] if data[2:] else None, val=0.2, test=0.3, batch_size=16
    )
    result = hl.train(make(), data, config)
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    for split in ("train", "val", "test"):
        want = hl.evaluate(result, data, split)
        got = hl.evaluate(loaded, data, split, config=config)
        assert got == pytest.approx(want, rel=1e-5)
        if not set(fields) - {"loss"}:  # what the model itself knows
            assert hl.evaluate(loaded, data, split) == pytest.approx(want, rel=1e-5)
            assert hl.evaluate(result.model, data, split) == pytest.approx(want, rel=1e-5)


def test_a_loaded_model_without_a_named_loss_asks_for_one(tmp_path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 3)

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch):
            return F.cross_entropy(self(batch["x"]), batch["y"])

    def mine(output, target):
        return F.cross_entropy(output, target)

    for model, fields, name in ((Own(), {}, "training_step"), (mlp(), {"loss": mine}, "mine")):
        result = hl.train(model, (X, Y), quiet(max_epochs=1, **fields))
        result.save(tmp_path / "m.safetensors")
        loaded = hl.load(tmp_path / "m.safetensors")
        with pytest.raises(hl.ConfigError, match=rf"loss '{name}', .* write evaluate"):
            hl.evaluate(loaded, (X, Y))
        got = hl.evaluate(loaded, (X, Y), config=hl.TrainingConfig(loss="cross_entropy"))
        assert got["loss"] == pytest.approx(hl.evaluate(result, (X, Y))["loss"], rel=1e-5)


# ---------------------------------------------------------------------- what a file keeps of a run


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x):
        return {"a": self.a(x), "b": self.b(x)}


KEPT = {
    "weights in order": (mlp, Y, {"class_weight": [1, 2, 3]}),
    "weights by id": (mlp, Y, {"class_weight": {0: 3.0, 2: 0.5}}),
    "weights by name": (mlp, NAMES[Y], {"class_weight": {"bee": 3.0}}),
    "balanced": (mlp, np.where(Y == 2, 1, Y), {"class_weight": "balanced"}),
    "smoothed": (mlp, Y, {"label_smoothing": 0.2}),
    "metrics of classes": (mlp, Y, {"metrics": ["f1", "accuracy"]}),
    "no metrics": (mlp, Y, {"metrics": []}),
    "renamed metric": (mlp, Y, {"metrics": {"share": "accuracy"}}),
    "metrics of values": (lambda: mlp(c=1), Yr, {"metrics": ["r2"]}),
    "several targets": (
        Two,
        {"a": Y, "b": Yr},
        {"metrics": {"a": ["f1"], "b": "r2"}, "class_weight": "balanced"},
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_file_keeps_how_the_run_was_scored(case: str, tmp_path) -> None:
    make, y, fields = KEPT[case]
    data = hl.DataModule.from_arrays(X, y, val=range(10), test=range(50, 90), batch_size=16)
    result = hl.train(make(), data, quiet(max_epochs=1, **fields))
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    for given, split in (((X, y), "test"), (data, "train"), (data, "test")):
        assert hl.evaluate(loaded, given, split) == pytest.approx(
            hl.evaluate(result, given, split), rel=1e-5
        )


def test_what_a_file_cannot_keep_is_said(tmp_path) -> None:
    def local(y_true, y_pred):
        return 0.5

    metrics = ["f1", local]
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1, class_weight=[1, 2, 3], metrics=metrics))
    result.save(tmp_path / "m.safetensors")
    want = hl.evaluate(result, (X, Y))
    del want["local"]
    for model in (hl.load(tmp_path / "m.safetensors"), pickle.loads(pickle.dumps(result.model))):
        with pytest.warns(hl.ModelWarning, match=r"evaluate: metrics local are functions"):
            assert hl.evaluate(model, (X, Y)) == pytest.approx(want, rel=1e-5)
        assert hl.evaluate(model, (X, Y), metrics=metrics)["local"] == 0.5


# ---------------------------------------------------------------------------- classes by name


@pytest.fixture(scope="module")
def named():
    return hl.train(mlp(), (X, NAMES[Y]), quiet(max_epochs=30, lr=1e-2, optimizer="adam"))


@pytest.mark.parametrize("kept", [(1, 2), (2,), (0, 2), (0, 1, 2)])
def test_fewer_classes_keep_their_meaning(kept, named, tmp_path) -> None:
    rows = np.isin(Y, kept)
    right = hl.predict(named, X[rows], labels=True) == NAMES[Y[rows]]
    named.save(tmp_path / "m.safetensors")
    for model in (named, named.model, hl.load(tmp_path / "m.safetensors")):
        with_names = hl.evaluate(model, (X[rows], NAMES[Y[rows]]))
        assert with_names["accuracy"] == pytest.approx(right.mean())
        assert with_names == pytest.approx(hl.evaluate(model, (X[rows], Y[rows])))


def test_a_class_that_training_did_not_have_is_named(named) -> None:
    y = NAMES[Y].astype(object)
    y[41] = "dog"
    with pytest.raises(hl.DataError, match=r"y: .*'ant', 'bee', 'cat'.*, got 'dog' in row 41"):
        hl.evaluate(named, (X, y))
    data = hl.DataModule.from_arrays(X, y, test=[1, 2, 3])  # row 41 is not of this split
    with pytest.raises(hl.DataError, match="'dog'"):
        hl.evaluate(named, data, split="test")


def test_losses_that_read_modules_want_the_module(tmp_path) -> None:
    def make() -> nn.Sequential:
        layers = {"ends": stats.MinMaxNormalizer(), "pca": stats.TrainablePCA(2)}
        return nn.Sequential(OrderedDict(layers))

    cubes = np.random.default_rng(0).standard_normal((8, 4, 4, 5)).astype(np.float32)
    data = hl.DataModule.from_arrays(cubes, val=0.25, batch_size=2)
    losses = [(stats.OrthogonalityLoss("pca"), 0.1)]
    model = make()
    result = hl.train(model, data, quiet(losses=losses, unfreeze=["pca"], max_epochs=1))
    result.save(tmp_path / "model.safetensors")
    loaded, anew = hl.load(tmp_path / "model.safetensors"), make()
    anew.load_state_dict(loaded.state_dict())
    with pytest.raises(hl.ConfigError, match=r"does not hold; write evaluate.*build it and write"):
        hl.evaluate(loaded, data, split="val")
    with pytest.raises(
        hl.ConfigError, match=r"'pca', as the model has none.*build the module anew"
    ):
        hl.evaluate(loaded, data, split="val", losses=losses)
    got = hl.evaluate(anew, data, split="val", losses=losses)["loss"]
    assert got == pytest.approx(hl.evaluate(result, data, split="val")["loss"], rel=1e-6)
