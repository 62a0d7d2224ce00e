"""Wrong input: a sentence of the right class, nothing lost, and the same process trains on.

Every case is held to the same promise (``refused``): the exception's class and the builtin it also
is, a text with names, values and, where there is one, the fix; no weight of the model and no byte
of the user's arrays changed; afterwards a good model trains to the bits that it always has.
"""

import copy
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(0)
Y = np.arange(48) % 3
X = (RNG.standard_normal((48, 4)) + 3 * np.eye(3, 4)[Y]).astype(np.float32)
QUIET = {
    "max_epochs": 2,
    "lr": 0.05,
    "warmup": 0,
    "enable_progress_bar": False,
    "logger": None,
}


class Net(nn.Module):
    """A linear layer and whatever forward a case has: ``forward(self, x)``."""

    def __init__(self, forward: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self._call = forward

    def forward(self, x: Any) -> Any:
        return self._call(self, x) if self._call else self.layer(x)


class Stepping(Net):
    """A model that makes its loss itself."""

    def training_step(self, batch: dict[str, Any]) -> Any:
        assert self._call is not None
        return self._call(self, batch)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in model.state_dict().items()}


def train(model: nn.Module | None = None, data: Any = None, **options: Any) -> hl.TrainResult:
    """A short run without output."""
    model = make_net() if model is None else model
    return hl.train(model, (X, Y) if data is None else data, **{**QUIET, **options})


def train_good() -> dict[str, bytes]:
    """The weights of a good run, which are the same in every process."""
    hl.manual_seed(1)
    result = train(max_epochs=8)
    assert np.mean(hl.predict(result.model, X, labels=True) == Y) > 0.8
    return weights(result.model)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Initial values that were not drawn yet would follow the seed of the good run."""
    hl.manual_seed(1)


@pytest.fixture(scope="module")
def good() -> dict[str, bytes]:
    return train_good()


def arrays_in(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [a for v in value for a in arrays_in(v)] if isinstance(value, tuple | list) else []


def refused(
    good: dict[str, bytes],
    error: type[BaseException],
    text: str,
    call: Callable[[], Any],
    model: nn.Module | None = None,
    data: Any = (),
) -> None:
    before = weights(model) if model is not None else {}
    kept = [a.tobytes() if a.dtype != object else list(a.flat) for a in arrays_in(data)]
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value, hl.HotloopError)
    if model is not None:
        assert weights(model) == before
    assert [a.tobytes() if a.dtype != object else list(a.flat) for a in arrays_in(data)] == kept
    assert train_good() == good


# ---------------------------------------------------------------------------- data


def with_value(array: Array, place: tuple[int, ...], value: Any) -> Array:
    array = array.copy()
    array[place] = value
    return array


BAD_DATA: dict[str, tuple[Any, type[BaseException], str]] = {
    "nan": (
        (with_value(X, (33, 2), np.nan), Y), hl.DataError,
        r"X: must be finite, got nan in row 33, column 2; .*allow_nonfinite=True",
    ),
    "inf": ((with_value(X, (7, 0), -np.inf), Y), hl.DataError, "got -inf in row 7, column 0"),
    "nan in float64": (
        (with_value(X.astype(np.float64), (1, 1), np.nan), Y), hl.DataError, "nan in row 1, column",
    ),
    "beyond float32": (
        (with_value(X.astype(np.float64), (5, 3), 1e300), Y), hl.DataError,
        r"must fit float32 .*got 1e\+300 in row 5, column 3; scale",
    ),
    "nan in a strided view": ((with_value(X, (0, 1), np.nan)[::-1], Y), hl.DataError, "row 47"),
    "nan in y": ((X, with_value(X, (9, 1), np.nan)), hl.DataError, "y: must be finite, .* row 9"),
    "empty": ((X[:0], Y[:0]), hl.DataError, r"X: has no rows, got shape \(0, 4\)"),
    "no columns": ((X[:, :0], Y), hl.DataError, r"have no values, got shape \(48, 0\)"),
    "lengths": ((X, Y[:-1]), hl.DataError, "y: must have one entry per row of X, .*48, got 47"),
    "lengths of columns": (({"a": X, "b": X[1:]}, Y), hl.DataError, "48.* got 47"),
    "label below 0": (
        (X, with_value(Y, (5,), -3)), hl.DataError,
        r"y: class ids count from 0, got -3 in row 5; np\.unique",
    ),
    "labels of -1 and 1": ((X, np.where(Y, 1, -1)), hl.DataError, r"\(y > 0\)\.astype\(int\)"),
    "label beyond the outputs": (
        (X, with_value(Y, (11,), 7)), hl.DataError, "y: class ids .* 3.* got 7 in row 11",
    ),
    "objects": (
        (with_value(X.astype(object), (4, 1), "a"), Y), hl.DataError,
        r"got dtype object: the value at \[4, 1\] is str 'a'",
    ),
    "complex": ((X.astype(np.complex64), Y), hl.DataError, "dtype complex64; give real and imag"),
    "dates": ((X.astype("M8[s]"), Y), hl.DataError, r"dtype datetime64\[s\]"),
    "texts": ((np.array([["a"] * 4] * 48), Y), hl.DataError, "X: must hold numbers"),
    "ints beyond 64 bits": (([[2**70, 1, 1, 1]] * 48, Y), hl.DataError, "X: must hold numbers"),
    "labels beyond 64 bits": ((X, [2**70] * 48), hl.DataError, "y: must"),
    "ragged": (([[1.0], [1.0, 2.0]] * 24, Y), hl.DataError, "X: the rows of a list must have one"),
    "a text": ("X.csv", hl.ConfigError, "data: .* got the path 'X.csv'; read the file first"),
    "a path": (Path("X.csv"), hl.ConfigError, "data: .* got the path 'X.csv'; read the file first"),
    "several inputs to one": (
        ((X, X), Y), hl.TraceError, r"Sequential\.forward: too many positional arguments, got 2",
    ),
    "a number": (3, hl.HotloopError, "data"),
    "no targets": ((X,), hl.ConfigError, "data without targets has no default loss; where"),
    "one row": ((X[:1], Y[:1]), hl.DataError, "one sample with BatchNorm: .* two rows, got 1"),
    "column instead of a matrix": (
        (X[:, 0], Y), hl.ShapeError, r"Linear\(in_features=4, .*last dim must be in_features=4",
    ),
    "fewer columns": (
        (X[:, :3], Y), hl.ShapeError,
        r"0, Linear\(in_features=4, .*got input of shape \(\d+, 3\) and weight of shape \(6, 4\)",
    ),
    "float targets of one column": (
        (X, X[:, 0]), hl.ShapeError, r"target: .* shape \(\d+, 3\), got \(\d+,\)",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:y. all 1 training rows")
@pytest.mark.parametrize("name", BAD_DATA)
def test_data(name: str, good: dict[str, bytes]) -> None:
    data, error, text = BAD_DATA[name]
    model = make_net()
    refused(good, error, text, lambda: train(model, data), model, data)


def test_nonfinite_may_be_allowed(good: dict[str, bytes]) -> None:
    X_nan = with_value(X, (33, 2), np.nan)
    data = hl.DataModule.from_arrays(X_nan, Y, allow_nonfinite=True)
    assert train(Net(lambda self, x: self.layer(hl.nan_to_num(x))), data).stop_reason == "completed"
    model = make_net()
    result = train(model, data)
    assert result.stop_reason == "nan"  # noticed in the step, and no weight took it
    assert all(np.isfinite(array).all() for array in model.state_dict().values())
    refused(good, hl.NotFiniteError, "not finite", lambda: train(model, data, on_nan="raise"))


def test_a_split_of_its_own_is_looked_through(good: dict[str, bytes]) -> None:
    bad = with_value(X, (3, 1), np.inf)
    data = hl.DataModule.from_arrays(X, Y, val=(bad, Y))
    refused(good, hl.DataError, "val X: .*got inf in row 3, column 1", lambda: train(None, data))


# ---------------------------------------------------------------------------- arrays of any kind


@pytest.mark.parametrize("kind", ["big-endian", "read-only", "negative strides", "fortran", "gaps"])
def test_arrays_of_any_layout(kind: str, good: dict[str, bytes]) -> None:
    def as_kind(array: Array) -> Array:
        if kind == "big-endian":
            return array.astype(array.dtype.newbyteorder(">"))
        if kind == "fortran":
            return np.asfortranarray(array)
        if kind == "negative strides":
            return array[::-1].copy()[::-1]
        if kind == "gaps":
            return np.repeat(array, 2, axis=0)[::2]
        array = array.copy()
        array.setflags(write=False)
        return array

    given = as_kind(X), as_kind(Y)
    kept = [array.tobytes() for array in given]
    hl.manual_seed(1)
    result = train(None, given, max_epochs=8)
    assert weights(result.model) == good
    assert np.array_equal(hl.predict(result.model, given[0]), hl.predict(result.model, X))
    assert [array.tobytes() for array in given] == kept


def test_nothing_to_predict() -> None:
    assert hl.predict(make_net(), X[:0]).shape == (0, 3)


# ---------------------------------------------------------------------------- settings

BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"max_epoch": 3}, "no setting 'max_epoch'; did you mean 'max_epochs'"),
    "spellings": ({"epochs": 3}, "two spellings of max_epochs disagree, max_epochs=2 and epochs=3"),
    "lr 0": ({"lr": 0}, "lr: must be greater than 0, got 0"),
    "lr below 0": ({"lr": -1e-3}, "lr: must be greater than 0, got -0.001"),
    "lr nan": ({"lr": float("nan")}, "lr: .*must be finite, got nan"),
    "lr text": ({"lr": "fast"}, "lr: .*'fast'"),
    "decay inf": ({"weight_decay": float("inf")}, "weight_decay: .*finite, got inf"),
    "clip nan": ({"gradient_clip_val": float("nan")}, "gradient_clip_val: .*nan"),
    "time": ({"max_time": float("nan")}, "max_time: .*nan"),
    "epochs": ({"max_epochs": -1}, "max_epochs: must be at least 0, got -1"),
    "too many epochs": ({"max_epochs": 2**70}, "max_epochs: must be at most .*got 1180591620717"),
    "seed": ({"seed": 2**70}, "seed: must be at most"),
    "windows": ({"accumulate_grad_batches": 0}, "accumulate_grad_batches: must be at least 1"),
    "metric": ({"metrics": ("acuracy",)}, "metrics: .*accuracy, .*'acuracy'; did you mean 'accur"),
    "optimizer": ({"optimizer": "adm"}, "optimizer: .*'sgd', .*got 'adm'; did you mean 'adam'"),
    "loss": ({"loss": "crossentropy"}, "loss: .*mse, .*'crossentropy'; did you mean 'cross_entr"),
    "scheduler": ({"scheduler": "cosin"}, "scheduler: .*'cosin'.*'cosine'"),
    "monitor": ({"monitor": "val_los"}, "monitor: must be one of .*loss.*got 'val_los'"),
    "batch size": ({"batch_size": 0}, "batch_size.*belongs to the data"),
    "weights of classes": ({"class_weight": [1, 2]}, "class_weight: must have 3 weights.*got 2"),
    "weight below 0": ({"class_weight": [1, 2, -1]}, r"class_weight\[2\]: must be at least 0"),
    "weight nan": ({"class_weight": [1, 2, float("nan")]}, r"class_weight\[2\]: .*finite, got nan"),
    "class": ({"class_weight": {"cat": 2.0}}, "class_weight: classes are 0, 1, 2, got 'cat'"),
    "callbacks": ({"callbacks": 3}, "callbacks: must be a list"),
    "resume": ({"resume": 5}, "resume: .*got 5"),
    "precision": (
        {"precision": "tf32", "accelerator": "cpu"},
        "precision: 'tf32' .*this run is on the CPU",
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options(name: str, good: dict[str, bytes]) -> None:
    options, text = BAD_OPTIONS[name]
    model = make_net()
    refused(good, hl.ConfigError, text, lambda: train(model, **options), model, (X, Y))


@pytest.mark.parametrize("size", [0, -1, 2.5, "64", float("nan"), 2**70])
def test_batch_sizes(size: Any, good: dict[str, bytes]) -> None:
    text = "batch_size: "
    refused(good, hl.ConfigError, text, lambda: hl.DataModule.from_arrays(X, Y, batch_size=size))
    if size != 2**70:  # as many rows as there are
        refused(good, hl.ConfigError, text, lambda: hl.predict(make_net(), X, batch_size=size))


def test_one_row_to_a_batch(good: dict[str, bytes]) -> None:
    data = hl.DataModule.from_arrays(X, Y, batch_size=1)
    text = "one sample with BatchNorm: .*48 rows in batches of 1; use a larger batch_size"
    refused(good, hl.DataError, text, lambda: train(None, data))


def test_targets_of_the_wrong_kind(good: dict[str, bytes]) -> None:
    for y, loss, error in (
        (X[:, 0], "cross_entropy", hl.ConfigError),
        (Y, "mse", hl.ShapeError),
        (np.array(list("abc"))[Y], "mse", hl.ShapeError),
    ):
        model = make_net()
        data = (X, y)
        refused(good, error, ".", lambda: train(model, data, loss=loss), model, data)  # noqa: B023


def test_a_gpu_that_is_not_there(good: dict[str, bytes]) -> None:
    if not hl._core.survey("cuda", probe=False)["absent"]:
        pytest.skip("this machine has an NVIDIA GPU (it runs where HOTLOOP_TEST_GPU is not set)")
    for options in ({"accelerator": "gpu"}, {"device": "cuda:0"}):
        text = "accelerator: 'gpu' needs a GPU that can be used; cuda: .* got none.*; use accel"
        refused(good, hl.DeviceError, text, lambda: train(**options))  # noqa: B023


# ---------------------------------------------------------------------------- models


def branch(self: Any, x: Any) -> Any:
    return self.layer(x) if x.sum() > 0 else self.layer(-x)


def count_calls(self: Any, x: Any) -> Any:
    self.n_calls = getattr(self, "n_calls", 0) + 1
    return self.layer(x) * self.n_calls


def set_row(self: Any, x: Any) -> Any:
    h = self.layer(x)
    h[0] = 0.0
    return h


FOREIGN = nn.Linear(4, 3)
BAD_FORWARDS: dict[str, tuple[Callable[[Any, Any], Any], type[BaseException], str]] = {
    "if": (branch, hl.TraceError, r"Net: bool\(tensor\).*use hl.where\(condition, a, b\)"),
    "float": (lambda s, x: s.layer(x) * float(x.mean()), hl.TraceError, r"float\(tensor\)"),
    "loop": (lambda s, x: list(x.sum()), hl.TraceError, "Net: "),
    "random": (
        lambda s, x: s.layer(x) * random.random(), hl.TraceError,
        "must do the same each time.*a constant made in forward that was 0.*use hl.rand, hl.randn",
    ),
    "counter": (count_calls, hl.TraceError, "must do the same each time"),
    "in place": (lambda s, x: s.layer(x).add_(1), hl.TraceError, r"add_\(\): .*use x = x.add"),
    "item": (set_row, hl.TraceError, r"x\[\.\.\.\] = value: a tensor cannot be changed in place"),
    "numpy": (lambda s, x: np.tanh(s.layer(x).numpy()), hl.TraceError, "numpy"),
    "other model": (
        lambda s, x: s.layer(x) + FOREIGN(np.zeros((1, 4), np.float32)), hl.TraceError,
        r"Parameter of shape \(3, 4\): must be registered.*nn.ModuleList",
    ),
    "nothing": (lambda s, x: None, hl.TraceError, "Net: forward must return .*got NoneType; has"),
    "array": (lambda s, x: np.zeros((48, 3)), hl.TraceError, "Net: forward must .*got ndarray"),
    "dict of None": (lambda s, x: {"a": None}, hl.TraceError, "forward must return .*NoneType"),
    "empty": (lambda s, x: (), hl.TraceError, "forward must return"),
    "itself": (lambda s, x: s(x), hl.TraceError, "must come to an end, got a module that calls"),
    "shapes": (
        lambda s, x: s.layer(x) + hl.zeros(7), hl.ShapeError, r"Net: .*(\d, 3\).*\(7,|\(7,.*\d, 3)",
    ),
    "int64": (lambda s, x: s.layer(x) + hl.zeros(2**62, 8), hl.ShapeError, "must fit in 63 bits"),
    "reshape": (lambda s, x: s.layer(x).reshape(2**62, 4), hl.ShapeError, "must keep the"),
    "index": (lambda s, x: s.layer(x)[2**70], hl.ShapeError, r"^Net: x\[...\]: index must"),
    "number": (lambda s, x: s.layer(x) + 10**400, hl.DataError, "constant: a number must fit"),
    "int number": (lambda s, x: s.layer(x) + (hl.arange(3) + 2**70), hl.DataError, "constant"),
    "hook": (lambda s, x: s.layer(x).register_hook(print), hl.ConfigError, "hooks are not run"),
    "text": (lambda s, x: s.layer(x) + "a", hl.TraceError, "'a'"),
    "backward": (lambda s, x: s.layer(x).sum().backward(), hl.TraceError, "hl.train"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FORWARDS)
def test_forward(name: str, good: dict[str, bytes]) -> None:
    forward, error, text = BAD_FORWARDS[name]
    model = Net(forward)
    refused(good, error, text, lambda: train(model), model, (X, Y))
    refused(good, error, text, lambda: hl.predict(model, X), model, (X,))


BAD_LOSSES: dict[str, tuple[Any, str]] = {
    "per row": (
        lambda output, target: nn.functional.cross_entropy(output, target, reduction="none"),
        r"must be one number, got float32 of shape \(\d+,\); reduce it with .mean\(\) or .sum\(\)",
    ),
    "a number": (lambda output, target: 3.0, "must be a tensor or a dict of tensors, got float"),
    "nothing": (lambda output, target: None, "got NoneType"),
    "integers": (lambda output, target: target.sum(), "one number, got int64"),
}


@pytest.mark.parametrize("name", BAD_LOSSES)
def test_losses(name: str, good: dict[str, bytes]) -> None:
    loss, text = BAD_LOSSES[name]
    model = make_net()
    refused(good, hl.TraceError, text, lambda: train(model, loss=loss), model, (X, Y))
    model = Stepping(lambda self, batch: loss(self(batch["x"]), batch["y"]))
    refused(good, hl.TraceError, text, lambda: train(model), model, (X, Y))


def test_a_parameter_without_gradient_is_named() -> None:
    model = Net()
    model.idle = nn.Linear(2, 2)
    before = weights(model)
    with pytest.warns(hl.ModelWarning, match=r"^parameters idle.weight, idle.bias get no gradient"):
        train(model, weight_decay=0)
    assert weights(model)["idle.weight"] == before["idle.weight"]


def test_modules(good: dict[str, bytes]) -> None:
    net = make_net()

    def add_itself() -> None:
        net.add_module("me", net)

    def twice() -> None:
        module = nn.Module()
        module.register_buffer("a", np.zeros(3))
        module.register_parameter("a", nn.Parameter(np.zeros(3)))

    for error, text, call in (
        (hl.ConfigError, "me: a module must not contain itself", add_itself),
        (hl.ConfigError, "has an attribute 'a' already", twice),
        (hl.ConfigError, "without dots, got 'a.b'", lambda: net.add_module("a.b", net[0])),
        (hl.ConfigError, "hooks are not run", lambda: net.register_forward_hook(print)),
        (hl.ConfigError, "hooks are not run", lambda: net.register_forward_pre_hook(print)),
        (hl.ConfigError, "hooks are not run", lambda: net.register_full_backward_hook(print)),
        (hl.ConfigError, "hooks are not run", lambda: net[0].weight.register_hook(print)),
        (hl.ConfigError, "in_features must be an integer >= 0, got -1", lambda: nn.Linear(-1, 3)),
        (hl.ConfigError, "in_features must be .*got 2.5", lambda: nn.Linear(2.5, 3)),
    ):
        refused(good, error, text, call, net)


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, 2**70])
def test_layers_beyond_memory(size: int, good: dict[str, bytes]) -> None:
    def call() -> None:
        train(nn.Sequential(nn.Linear(4, size), nn.Linear(size, size), nn.Linear(size, 3)))

    refused(good, hl.HotloopError, ".", call)


def test_calls_of_a_model(good: dict[str, bytes]) -> None:
    model = make_net()
    for error, text, call in (
        (hl.DataError, "input: an array is needed, got NoneType", lambda: model(None)),
        (hl.DataError, "input: an array is needed, got str", lambda: model("x")),
        (hl.DataError, "one row per sample", lambda: model(np.float32(3))),
        (hl.DataError, "dtype complex128", lambda: model(X.astype(complex))),
        (hl.ShapeError, r"got input of shape \(48, 3\)", lambda: model(X[:, :3])),
        (hl.ConfigError, "'nope'", lambda: hl.predict(model, X, outputs="nope")),
        (hl.ConfigError, "trained as a classifier", lambda: hl.predict(model, X, labels=True)),
        (hl.TraceError, r"too many .*dim 0 .* differs", lambda: hl.predict(model, (X, X[1:]))),
        (hl.ConfigError, "split: .*'tset'",
         lambda: hl.evaluate(model, hl.DataModule.from_arrays(X, Y), split="tset")),
        (hl.DataError, "one entry per row of X", lambda: hl.evaluate(model, (X, Y[:-1]))),
        (hl.DataError, "y: class ids must be below 3, .* got 5 in row 7",
         lambda: hl.evaluate(model, (X, with_value(Y, (7,), 5)))),
        (hl.TraceError, r"0, Linear\(.*\): inputs must be tensors, got tup", lambda: model((X, X))),
        (hl.ConfigError, "predict: model must be .* class Net; write", lambda: hl.predict(Net, X)),
        (hl.ConfigError, "evaluate: model must be", lambda: hl.evaluate(None, (X, Y))),
        (hl.ConfigError, "stepper: model must be", lambda: hl.stepper("net", None, (X, Y))),
        (hl.ConfigError, "plan: model must be", lambda: hl.plan(3, (X, Y))),
        (hl.ConfigError, "profile: model must be", lambda: hl.profile(3, (X, Y))),
        (hl.ConfigError, "split: must be 'train' or 'val', got 'test'",
         lambda: hl.profile(model, (X, Y), split="test")),
        (hl.ConfigError, "peaks: must be of .* got 'fp32'",
         lambda: hl.profile(model, (X, Y), peaks={"fp32": 1.0})),
        (hl.ConfigError, "peaks: bytes must be a number above 0, got 0",
         lambda: hl.profile(model, (X, Y), peaks={"bytes": 0})),
        (hl.DataError, "step: a batch must be .* got str",
         lambda: hl.stepper(model, None, (X, Y)).step("x")),
        (hl.ConfigError, "must be a hotloop.nn.Module", lambda: hl.train(3, (X, Y))),
        (hl.ConfigError, "data is missing", lambda: hl.train(model)),
    ):  # fmt: skip
        refused(good, error, text, call, model, (X, Y))


# ---------------------------------------------------------------------------- found while running


def test_a_tensor_that_forward_kept(good: dict[str, bytes]) -> None:
    class Keeps(Net):
        def forward(self, x: Any) -> Any:
            self.kept = self.layer(x)
            return self.kept

    model = Keeps()
    train(model)
    with pytest.raises(hl.TraceError, match="must come from this call of forward"):
        model.kept.sum()
    twins = copy.deepcopy(model), Keeps()
    twins[1].__dict__.update(pickle.loads(pickle.dumps(model.__getstate__())))
    after = weights(train(model).model)
    assert [weights(train(twin).model) for twin in twins] == [after, after]
    assert train_good() == good


def test_an_id_beyond_an_embedding(good: dict[str, bytes]) -> None:
    ids = with_value(np.arange(48).reshape(48, 1) % 10, (17, 0), 12)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4, 3))
    named = r"X: ids must be .* below 10, .*Embedding '0' has, got 12 in row 17, column 0; renumber"
    met = "0: index_select: index out of range, must be at least 0 and below 10, got 12"
    below = "X: ids must .* got -13 in row 0, column 0"
    own = hl.DataModule.from_arrays(ids % 10, Y, val=(ids, Y))
    for call, text in (
        (lambda: train(model, (ids, Y)), named),
        (lambda: train(model, (ids - 13, Y)), below),
        (lambda: train(model, own), "val " + named),
        (lambda: hl.evaluate(model, (ids, Y)), named),
        (lambda: hl.predict(model, ids, batch_size=5), f"predict: row 17: {met}"),
        (lambda: model(ids), met),
    ):
        refused(good, hl.DataError, text, call, model, ids)
    assert hl.predict(model, ids % 10).shape == (48, 3)  # the same plan, the next batch


class Lookup(nn.Module):
    """A table of 10 rows and a way from x to its index."""

    def __init__(self, index: Callable[[Any], Any]) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("offsets", np.array([0, 5]))
        self.index = index

    def forward(self, x: Any) -> Any:
        found = self.table(self.index(self, x)).reshape(-1, 2, 4)
        return self.head(found.sum(1))


def second_twice(self: Any, x: Any) -> Any:
    return hl.stack([x[:, 1], x[:, 1]], 1)


def transposed(self: Any, x: Any) -> Any:
    return x.transpose(0, 1)


def offset(self: Any, x: Any) -> Any:
    return x + self.offsets


def from_floats(self: Any, x: Any) -> Any:
    return (x * 1.0).long()


def wrapped(self: Any, x: Any) -> Any:
    return hl.where(x < 0, x + 10, x)


@pytest.mark.parametrize(
    ("index", "at", "value", "said"),
    [
        (lambda self, x: x, (901, 1), 10, "X: .* got 10 in row 901, column 1"),
        (second_twice, (901, 1), 99, "X: .* got 99 in row 901, column 1"),
        (second_twice, (901, 0), 99, None),  # no lookup sees it
        (transposed, (77, 0), -2, "X: .* got -2 in row 77, column 0"),
        (offset, (500, 1), 5, "forward computes of X .* got 10 for row 500;"),
        (offset, (500, 0), 9, None),
        (from_floats, (999, 0), 40, "X: .* got 40 in row 999, column 0"),
        (wrapped, (3, 1), -10, None),
        (wrapped, (3, 1), -11, "forward computes of X .* got -1 for row 3;"),
    ],
)
def test_ids_are_named_by_the_row_of_the_data(
    index: Any, at: tuple[int, int], value: int, said: str | None, good: dict[str, bytes]
) -> None:
    X = with_value(np.arange(2000).reshape(1000, 2) % 5, at, value)
    if index is from_floats:
        X = X.astype(np.float32)
    data = hl.DataModule.from_arrays(X, np.arange(1000) % 3, val=[3, *range(898, 905)])
    model = Lookup(index)
    if said is None:
        assert train(model, data, max_epochs=1).stop_reason == "completed"
    else:
        refused(good, hl.DataError, said, lambda: train(model, data), model, X)


def test_two_threads(good: dict[str, bytes]) -> None:
    model, errors, running = make_net(), [], threading.Event()

    class Wait:
        def on_train_begin(self, run: Any) -> None:
            running.set()
            done.wait(20)

    done = threading.Event()
    thread = threading.Thread(target=lambda: train(model, callbacks=(Wait(),)))
    thread.start()
    assert running.wait(20)
    for call in (
        lambda: train(model),
        lambda: hl.predict(model, X),
        lambda: model(X),
        lambda: hl.evaluate(model, (X, Y)),
    ):
        try:
            call()
        except hl.BusyError as error:
            errors.append(str(error))
    done.set()
    thread.join()
    assert len(errors) == 4
    assert all("another thread" in error and "copy.deepcopy(model)" in error for error in errors)
    copy.deepcopy(model)
    train(model)
    assert train_good() == good


def test_off_the_main_thread(good: dict[str, bytes]) -> None:
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(train_good())) for _ in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [good]


# ---------------------------------------------------------------------------- files


def saved(path: Any) -> tuple[bytes, bytes]:
    """A model's file and what it predicts."""
    hl.manual_seed(1)
    result = train(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 3)))
    result.save(path)
    return path.read_bytes(), hl.predict(hl.load(path), X[:3]).tobytes()


def read(path: Any, data: bytes) -> bytes | None:
    """What the file predicts; None where it was refused by a CheckpointError."""
    path.write_bytes(data)
    try:
        return bytes(hl.predict(hl.load(path), X[:3]).tobytes())
    except hl.CheckpointError:
        return None


def test_truncated_files(tmp_path: Any) -> None:
    path = tmp_path / "net.safetensors"
    whole, _ = saved(path)
    body = 8 + int.from_bytes(whole[:8], "little")
    points = {*range(300), *range(300, body, 97), *range(body - 40, len(whole))}
    for n in sorted(points):
        assert read(path, whole[:n]) is None, n
    assert read(path, whole + b"\0") is None
    assert read(path, whole) is not None


@pytest.mark.parametrize("seed", range(4))
def test_bits_of_the_header_flipped(seed: int, tmp_path: Any) -> None:
    path = tmp_path / "net.safetensors"
    whole, _ = saved(path)
    body = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(seed)
    n_refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for at in rng.integers(0, body, int(rng.integers(1, 4))):
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            hl.predict(hl.load(path), X[:3], labels=True)
        except hl.HotloopError:
            n_refused += 1
    assert n_refused > 50


def test_files_that_are_none(tmp_path: Any, good: dict[str, bytes]) -> None:
    path = tmp_path / "net.safetensors"
    for data in (b"", b"\0" * 8, b"\xff" * 64, b"{}", (2**62).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        refused(good, hl.CheckpointError, "net.safetensors", lambda: hl.load(path))
    refused(good, hl.CheckpointError, "missing", lambda: hl.load(tmp_path / "missing"))
    refused(good, hl.CheckpointError, str(tmp_path), lambda: hl.load(tmp_path))
    model = make_net()
    refused(good, hl.CheckpointError, "nowhere", lambda: hl.save(model, tmp_path / "nowhere" / "a"))


def test_every_class_is_caught_by_its_builtin() -> None:
    for call, builtin in (
        (lambda: train(lr=0), ValueError),
        (lambda: train(Net(branch)), TypeError),
        (lambda: hl.load("/nonexistent"), OSError),
    ):
        with pytest.raises(builtin):
            call()


@pytest.mark.parametrize("path", [None, 3, ""])
def test_paths(path: Any) -> None:
    for call, name in (
        (lambda: hl.save(make_net(), path), "save"),
        (lambda: hl.load(path), "load"),
        (lambda: hl.read_weights(path), "read_weights"),
    ):
        with pytest.raises(hl.ConfigError, match=f"^{name}: path: must be a path, got"):
            call()
