"""Arguments of forward: arrays are data, what is no array is a constant of the plan."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

X = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)


class Scaled(nn.Module):
    """An argument of each kind that Python has."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, mask=None, flag=False, *rest, factor=1, how="plain", sizes=(), **named):
        out = self.layer(x)
        out = out if mask is None else out * mask
        out = out * (2 if flag else 1) * factor
        out = -out if how == "negated" else out
        for value in (*rest, *sizes, *named.values()):
            out = out * value
        return out


@pytest.mark.parametrize(
    ("args", "kwargs", "factor"),
    [
        ((), {"flag": True}, 2),
        ((), {"factor": 5}, 5),
        ((), {"factor": np.float32(5)}, 5),
        ((), {"factor": np.int64(5), "flag": np.True_}, 10),
        ((), {"how": "negated"}, -1),
        ((), {"sizes": (2, 3)}, 6),
        ((), {"sizes": ({"a": 2}["a"], 3.0)}, 6),
        ((), {"anything": 7}, 7),
        ((), {"mask": X, "flag": True}, 2 * X),
        ((), {"mask": None}, 1),
        ((None,), {}, 1),
        ((X,), {}, X),
        ((X, True, 3), {"factor": 2}, 12 * X),
        ((None, False, X), {}, X),
        ((), {"factor": X}, X),
        ((), {"anything": X}, X),
    ],
)
def test_each_argument_is_honoured(args, kwargs, factor) -> None:
    model = Scaled()
    plain = model(X)
    np.testing.assert_allclose(model(X, *args, **kwargs), plain * factor, 1e-5, 1e-6)
    if not args:
        np.testing.assert_allclose(model(x=X, **kwargs), plain * factor, 1e-5, 1e-6)
    np.testing.assert_array_equal(model(X), plain)  # no plan was taken for another


def test_constants_that_are_equal_and_no_others_share_a_plan() -> None:
    class Kind(nn.Module):
        def forward(self, x, k):
            return x * {bool: 2, int: 3, float: 4, str: 5}[type(k)]

    model = Kind()
    for _ in range(2):
        for k, factor in ((True, 2), (1, 3), (1.0, 4), ("1", 5)):
            np.testing.assert_array_equal(model(X, k), X * factor)


def test_a_trained_model_takes_more_arguments_than_training_had() -> None:
    model = Scaled()
    data = hl.DataModule.from_arrays(X, X, standardize="x")
    hl.train(model, data, quiet(max_epochs=1))
    plain = hl.predict(model, X)
    np.testing.assert_allclose(model(X, factor=3), plain * 3, 1e-5, 1e-6)
    np.testing.assert_allclose(hl.predict(model, (X, None, True)), plain * 2, 1e-5, 1e-6)
    np.testing.assert_allclose(hl.predict(model, (X, X), batch_size=7), plain * X, 1e-5, 1e-6)
    np.testing.assert_allclose(model(X, mask=X[:1]), plain * X[:1], 1e-5, 1e-6)


def test_columns_are_found_by_name_beside_a_constant() -> None:
    class Named(nn.Module):
        def forward(self, batch, k=1):
            return (batch["a"] - batch["b"]).reshape(-1, 1) * k + hl.zeros(1, 1)

    class Learns(Named):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, batch, k=1):
            return self.layer(super().forward(batch, k))

    columns = {"a": X[:, 0], "b": X[:, 1]}
    model = Learns()
    hl.train(model, (columns, X[:, 2]), quiet(max_epochs=1))
    other = {"c": X[:, 2], "b": X[:, 1], "a": X[:, 0]}
    np.testing.assert_array_equal(model(other), model(columns))
    np.testing.assert_array_equal(model(other, k=3), model(columns, 3))
    assert abs(model(other, k=3) - model(columns)).max() > 0


def test_layers_that_have_arguments_beside_the_tensor() -> None:
    image = np.ones((1, 3, 8, 8), np.float32)
    up = nn.ConvTranspose2d(3, 3, 2, 2)
    assert up(image, output_size=(16, 17)).shape == (1, 3, 16, 17)
    values, indices = nn.MaxPool2d(2, return_indices=True)(image)
    assert nn.MaxUnpool2d(2)(values, indices, output_size=(9, 9)).shape == (1, 3, 9, 9)


def test_lazy_layers_learn_their_sizes_beside_other_arguments() -> None:
    class Lazy(Scaled):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(3)

    assert Lazy()(X, flag=True, factor=2).shape == (60, 3)


def test_arguments_that_do_not_fit(tmp_path) -> None:
    model = nn.Linear(3, 3)
    hl.train(model, (X, X), quiet(max_epochs=1)).save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded(X), model(X))
    for kwargs, got in (({"k": 3}, "k=3"), ({"mask": X}, "mask=an array")):
        with pytest.raises(hl.DataError, match=f"model from a file .* got {got}; build the module"):
            loaded(X, **kwargs)
    with pytest.raises(hl.DataError, match=r"model from a file .* got None; build the module"):
        loaded(X, None)
    with pytest.raises(hl.TraceError, match=r"its arguments are \(input\), got an unexp.*'flag'$"):
        model(X, flag=True)
    with pytest.raises(hl.DataError, match="an array is needed, got int 5"):
        Scaled()(5, flag=True)


class Judge(nn.Module):
    """forward has another use of the lazy layer's input than training_step."""

    def __init__(self):
        super().__init__()
        self.make, self.judge, self.other = nn.Linear(4, 3), nn.LazyLinear(1), nn.LazyLinear(2)

    def forward(self, x):
        return self.other(self.make(x[:, :4]))

    def training_step(self, batch):
        return self.judge(batch["x"]).square().mean() + self.make(batch["x"][:, :4]).mean()


@pytest.mark.parametrize("use", ["train", "stepper", "plan"])
def test_lazy_layers_learn_their_sizes_of_training_step(use) -> None:
    model, wide = Judge(), np.ones((60, 7), np.float32)
    if use == "train":
        hl.train(model, wide, quiet(max_epochs=1))
    elif use == "stepper":
        hl.stepper(model, quiet(max_epochs=1), wide)
    else:
        hl.plan(model, wide)
    assert model.judge.weight.shape == (1, 7)
    assert model.other.weight.shape == (2, 3)


def test_lazy_layers_learn_their_sizes_of_columns() -> None:
    class OfColumns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LazyLinear(1)

        def forward(self, batch):
            return self.layer(batch["a"])

    model = OfColumns()
    hl.train(model, ({"a": X, "b": X[:, 0]}, X[:, :1]), quiet(max_epochs=1))
    assert model.layer.weight.shape == (1, 3)
