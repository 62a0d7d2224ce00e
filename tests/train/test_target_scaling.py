"""Standardised targets: the loss compares scaled values; all else is in their own units."""

import copy
import pickle
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4)).astype(np.float32) * 5 + 20
Y = (1e4 + 300 * (X @ [1.0, -2.0, 0.5, 0.1]) / 5 + RNG.standard_normal(300)).astype(np.float32)
TABLE = np.stack([Y, -Y / 1000, np.full(300, 7.0, np.float32)], 1)


def data_of(y: Any = Y, how: Any = "both", **options: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(
        X, y, val=0.2, test=0.2, batch_size=30, standardize=how, **options
    )


def trained(
    model: nn.Module | None = None, data: Any = None, **fields: Any
) -> tuple[hl.TrainResult, hl.DataModule]:
    data = data_of() if data is None else data
    config = quiet(max_epochs=30, lr=0.05, metrics=["rmse", "r2"]).replace(**fields)
    return hl.train(model or nn.Linear(4, 1), data, config), data


def of_split(data: hl.DataModule, name: str) -> Any:
    split = data.split(name)
    return split.arrays()["x"], split.arrays()["y"]


def test_predictions_and_metrics_are_in_the_targets_units(tmp_path) -> None:
    result, data = trained()
    x, y = of_split(data, "val")
    made = hl.predict(result, x).reshape(-1)
    error = np.sqrt(np.mean((made - y) ** 2, dtype=np.float64))
    assert error < 10
    assert result.history["val_rmse"][-1] == pytest.approx(error, rel=1e-3)
    assert result.history["val_r2"][-1] > 0.99
    np.testing.assert_allclose(result.model(x).reshape(-1), made, rtol=1e-6)


def test_the_loss_is_that_of_scaled_targets() -> None:
    result, data = trained(max_epochs=1, lr=1e-30)
    train, val = data.split("train"), data.split("val")
    mean, std = Y[train.rows].mean(dtype=np.float64), Y[train.rows].std(dtype=np.float64)
    made = (hl.predict(result, X[val.rows]).reshape(-1) - mean) / std
    want = np.mean((made - (Y[val.rows] - mean) / std) ** 2)
    assert result.history["val_loss"][0] == pytest.approx(want, rel=1e-3)
    assert result.history["val_loss"][0] < 10


@pytest.mark.parametrize("how", ["y", "both"])
@pytest.mark.parametrize(
    "y", [Y, Y[:, None], TABLE, Y.astype(np.float64)], ids=["flat", "column", "table", "float64"]
)
def test_files_and_copies_undo_it(how: str, y: Any, tmp_path) -> None:
    result, data = trained(nn.Linear(4, y.size // len(y)), data_of(y, how), lr=1e-3)
    x, goal = of_split(data, "test")
    want = hl.predict(result, x)
    assert want.shape == (60, y.size // len(y))
    scores = hl.evaluate(result, data)
    rmse = np.sqrt(np.mean((want - goal.reshape(want.shape)) ** 2, dtype=np.float64))
    assert scores["rmse"] == pytest.approx(rmse, rel=1e-3)
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    for model in (loaded, copy.deepcopy(result.model), pickle.loads(pickle.dumps(result.model))):
        np.testing.assert_allclose(hl.predict(model, x), want, rtol=1e-6)
        again = hl.evaluate(model, data, config=result.config)
        assert again == pytest.approx(scores, rel=1e-3)
        of_arrays = hl.evaluate(model, (x, goal), config=result.config)
        assert of_arrays == pytest.approx(scores, rel=1e-3)
    assert loaded.state_dict().keys() == result.model.state_dict().keys()


def test_functions_as_metrics_get_the_targets_units() -> None:
    def largest(y_true, y_pred):
        assert y_true.mean() > 1000
        return float(np.abs(y_true - y_pred).max())

    result, data = trained(metrics=[largest], mode="min")
    x, y = of_split(data, "val")
    want = np.abs(hl.predict(result, x).reshape(-1) - y).max()
    assert result.history["val_largest"][-1] == pytest.approx(want, rel=1e-3)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        self.log("level", batch["y"].abs().mean())
        return nn.functional.mse_loss(self(batch["x"]).squeeze(1), batch["y"])


def test_training_step_gets_scaled_targets() -> None:
    result, data = trained(Own())
    assert 0.5 < result.history["level"][0] < 1.2
    x, y = of_split(data, "test")
    assert np.abs(hl.predict(result, x).reshape(-1) - y).max() < 30
    assert result.history["val_rmse"][-1] < 10


class Two(nn.Module):
    def __init__(self, *, keyed: bool) -> None:
        super().__init__()
        self.body, self.side, self.keyed = nn.Linear(4, 1), nn.Linear(4, 7), keyed

    def forward(self, x):
        value, more = self.body(x), self.side(x)
        return {"logits": value, "more": more} if self.keyed else (value, more)


def first(output, target):
    value, more = output.values() if isinstance(output, dict) else output
    return nn.functional.mse_loss(value.squeeze(1), target) + (more**2).mean()


@pytest.mark.parametrize("keyed", [True, False])
def test_the_first_output_is_scaled_back(keyed: bool) -> None:
    result, data = trained(Two(keyed=keyed), loss=first, metrics=[])
    x, y = of_split(data, "test")
    made = hl.predict(result, x)
    value, more = made.values() if keyed else made
    assert np.abs(value.reshape(-1) - y).max() < 100
    assert np.abs(more).max() < 10
    assert np.abs(hl.predict(result, x, outputs="body")).max() < 10  # as that module returns it


def test_a_loop_of_ones_own_scores_in_the_same_units() -> None:
    data = data_of()
    step = hl.stepper(nn.Linear(4, 1), quiet(max_epochs=30, lr=0.05, metrics=["rmse"]), data)
    for epoch in range(30):
        for batch in data.train_batches(epoch):
            step.step(batch)
    step.sync()
    x, y = of_split(data, "val")
    made = hl.predict(step.model, x).reshape(-1)
    assert step.evaluate("val")["rmse"] == pytest.approx(
        np.sqrt(((made - y) ** 2).mean()), rel=1e-3
    )
    assert step.evaluate("val")["rmse"] < 10


def test_x_is_what_true_is() -> None:
    for how in (True, "x"):
        assert [name for _, v in data_of(Y, how).transforms for name in v] == ["x"]
    assert [name for _, v in data_of(Y, "both").transforms for name in v] == ["x", "y"]
    assert [name for _, v in data_of(Y, "y").transforms for name in v] == ["y"]
    assert data_of(Y, False).transforms == []


def test_an_autoencoder_standardises_both_alike() -> None:
    data = hl.DataModule.from_arrays(X, X, val=0.2, standardize="both")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    result, _ = trained(model, data, max_epochs=60)
    assert np.abs(hl.predict(result, X) - X).mean() < 1.5


@pytest.mark.filterwarnings("error::hotloop.DataWarning")
def test_far_targets_are_no_doubt_any_more() -> None:
    trained(max_epochs=1)


def test_far_targets_are_told_of_it() -> None:
    with pytest.warns(hl.DataWarning, match="write standardize='y'"):
        trained(data=data_of(Y, "x"), max_epochs=1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda y: y - 1e7, r"y: the mean of the targets is -1e\+07 and the standard deviation "),
        (lambda y: np.stack([y, y + 1000], 1), "y: the mean of column 1 is 1000 and the standard"),
        (lambda y: np.stack([y - 1000, y], 1), "y: the mean of column 0 is -1000 and the standard"),
        (lambda y: {"a": y, "b": y - 1e4}, r"y\['b'\]: the mean of the targets is -1e\+04 and"),
        (
            lambda y: np.stack([y, y, y, y - 1e5], 1).reshape(-1, 2, 2),
            r"y: the mean of position \(1, 1\) is -1e\+05 and the standard",
        ),
    ],
)
def test_the_target_that_is_far_is_named_with_its_own_mean(make, words) -> None:
    y = make(np.random.default_rng(0).standard_normal(len(X)).astype(np.float32))
    targets = y if isinstance(y, dict) else {"": y}
    shapes = {name: np.shape(of)[1:] for name, of in targets.items()}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(4, int(np.prod(s))) for s in shapes.values()])

        def forward(self, x):
            made = [h(x).reshape(-1, *s) for h, s in zip(self.heads, shapes.values())]
            return dict(zip(shapes, made)) if isinstance(y, dict) else made[0]

    with pytest.warns(hl.DataWarning, match=words):
        trained(Net(), hl.DataModule.from_arrays(X, y, val=0.2), max_epochs=1)


def test_header_says_it(capsys) -> None:
    trained(max_epochs=1, enable_progress_bar="auto")
    assert "loss mse_loss of standardised y |" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: data_of(Y, "z"), hl.ConfigError, "'x', 'y', 'both' or names of columns.*got 'z'"),
        (
            lambda: data_of(np.arange(300) % 3, "y"),
            hl.ConfigError,
            "standardize: y must be float targets, got class targets; write standardize='x'",
        ),
        (
            lambda: hl.DataModule.from_arrays(X, standardize="both"),
            hl.ConfigError,
            "standardize: y must be float targets, got none",
        ),
        (
            lambda: trained(loss="bce", data=data_of((Y > 1e4).astype(np.float32), "y")),
            hl.ConfigError,
            "standardize: y is scaled for losses that compare values .* got the loss binary_cross",
        ),
        (
            lambda: trained(nn.Linear(4, 2), loss=lambda o, t: (o.mean(1) - t).square().mean()),
            hl.ShapeError,
            r"standardize: .* shape of the targets, \(rows,\), to be scaled back, got \(\d+, 2\)",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused(call: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


class Heads(nn.Module):
    def __init__(self, *, keyed: bool) -> None:
        super().__init__()
        self.value, self.kind, self.keyed = nn.Linear(4, 1), nn.Linear(4, 3), keyed

    def forward(self, x):
        made = {"kind": self.kind(x), "value": self.value(x)}
        return made if self.keyed else tuple(made.values())


@pytest.mark.parametrize("keyed", [True, False])
def test_of_several_targets_the_values_are_scaled(keyed: bool, tmp_path) -> None:
    kinds = np.digitize(Y, np.quantile(Y, [0.3, 0.6]))
    y = {"kind": kinds, "value": Y}
    data = data_of(y if keyed else tuple(y.values()), "both")
    name = "value" if keyed else "1"
    config = quiet(max_epochs=30, lr=0.05, metrics={name: ["rmse"]})
    result = hl.train(Heads(keyed=keyed), data, config)
    x, _ = data.arrays("test")
    made = hl.predict(result, x)
    value = made["value"] if keyed else made[1]
    goal = Y[data.split("test").rows]
    assert np.abs(value.reshape(-1) - goal).max() < 50
    assert result.history[f"val_{name}_rmse"][-1] < 20
    scores = hl.evaluate(result, data)
    assert scores[f"{name}_rmse"] == pytest.approx(
        np.sqrt(np.mean((value.reshape(-1) - goal) ** 2, dtype=np.float64)), rel=1e-3
    )
    result.save(tmp_path / "m")
    loaded = hl.load(tmp_path / "m")
    again = hl.predict(loaded, x)
    np.testing.assert_allclose(again["value"] if keyed else again[1], value, rtol=1e-6)
    assert hl.evaluate(loaded, data, config=result.config) == pytest.approx(scores, rel=1e-3)
