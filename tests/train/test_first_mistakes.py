"""What newcomers do: columns by name, mistakes that must end in a sentence, models after a loop."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import classes, mlp, quiet

X, Y = classes()
N_IN, N_OUT = X.shape[1], int(Y.max()) + 1


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 1)

    def forward(self, x):
        return self.body(hl.stack([x["age"], x["income"]], dim=1))


@pytest.fixture(scope="module")
def by_columns():
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(20, 80, 200), "income": rng.lognormal(10, 1, 200)}
    data = hl.DataModule.from_arrays(columns, columns["age"] / 10, standardize=True)
    return hl.train(Columns(), data, quiet(max_epochs=2)), columns


def test_columns_are_found_by_name(by_columns, tmp_path) -> None:
    result, columns = by_columns
    result.save(tmp_path / "m.safetensors")
    turned = {"extra": columns["age"], **dict(reversed(columns.items()))}
    for model in (result, hl.load(tmp_path / "m.safetensors")):
        want = hl.predict(model, columns)
        assert want.std() > 0
        np.testing.assert_array_equal(hl.predict(model, turned), want)
        lists = {name: column[:3].tolist() for name, column in columns.items()}
        np.testing.assert_allclose(hl.predict(model, lists), want[:3], rtol=1e-5)


@pytest.mark.parametrize("data", [{"age": np.ones(3)}, np.ones((3, 2)), (np.ones(3), np.ones(3))])
def test_missing_columns_are_named(by_columns, data) -> None:
    rule = "columns age, income as in training|all columns of training, got none for 'income'"
    with pytest.raises(hl.DataError, match=rule):
        hl.predict(by_columns[0], data)


def test_standardized_columns_are_standardized(by_columns) -> None:
    result, columns = by_columns
    plain = Columns()
    plain.load_state_dict(dict(result.model.state_dict()))  # values alone
    scaled = {k: ((v - v.mean()) / v.std()).astype(np.float32) for k, v in columns.items()}
    np.testing.assert_allclose(hl.predict(plain, scaled), hl.predict(result, columns), rtol=1e-4)


def test_nested_lists_are_arrays() -> None:
    model = mlp()
    want = hl.predict(model, X[:3])
    np.testing.assert_allclose(hl.predict(model, X[:3].tolist()), want, rtol=1e-5, atol=1e-6)


def test_after_a_loop_of_ones_own_a_model_knows_its_data(tmp_path) -> None:
    names = np.array([f"class {i}" for i in range(N_OUT)])
    data = hl.DataModule.from_arrays(X * 100, names[Y], standardize=True, batch_size=32)
    model = mlp()
    step = hl.stepper(model, quiet(max_epochs=1), data)
    for batch in data.train_batches():
        step.step(batch)
    step.sync()
    labels = hl.predict(model, X * 100, labels=True)
    assert set(labels) <= set(names)
    accuracy = float((labels == names[Y]).mean())
    assert accuracy == pytest.approx(step.evaluate("train")["accuracy"], abs=1e-9)
    hl.save(model, tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(hl.predict(loaded, X * 100, labels=True), labels)


MASK = np.zeros((len(X), 4, 4), np.uint8)
MASK[:, 1, 2] = 255


class NoReturn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(N_IN, N_OUT)

    def forward(self, x):
        self.body(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, N_OUT, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


def of_first(output, target):
    return ((output[:, 0] - target) ** 2).mean()


def train(model, y=Y, x=X, **fields):
    return hl.train(model, (x, y), quiet(**fields))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: train(NoReturn()), hl.TraceError, "forward must return a tensor, .* a return?"),
        (lambda: train(NoReturn), hl.ConfigError, "got the class NoReturn; write NoReturn"),
        (
            lambda: train(train(mlp())),
            hl.ConfigError,
            r"must be a hotloop.nn.Module, got TrainResult; write train\(result.model, data\)",
        ),
        (lambda: hl.train(mlp(), X, Y), hl.ConfigError, r"train\(model, \(X, y\), config\)"),
        (lambda: train(mlp(), Y.astype(float)), hl.ShapeError, "for classes give integers"),
        (
            lambda: train(mlp(), Y.astype(float), loss="cross_entropy"),
            hl.ConfigError,
            r"must be integers, got float32; use .astype\(int\) on the array, or give prob",
        ),
        (
            lambda: hl.train(nn.Embedding(N_OUT, 3), (Y.astype(np.uint8), Y), quiet()),
            hl.TraceError,
            r"got float32 \(uint8 arrays enter the model as float32\); use .astype\(int\)",
        ),
        (
            lambda: train(nn.Linear(N_IN, 1), np.arange(len(X)) % 3),
            hl.DataError,
            "below 2, the classes that the model's last layer has outputs for, got 2 in row",
        ),
        (
            lambda: train(mlp(), param_groups=[{"params": "hed", "lr": 1.0}]),
            hl.ConfigError,
            "param_groups: must match a parameter of the model, got 'hed'",
        ),
        (lambda: train(mlp(), monitor="los"), hl.ConfigError, "did you mean 'loss'"),
        (
            lambda: hl.predict(train(mlp()), X, proba=True, labels=True),
            hl.ConfigError,
            "exclude each other",
        ),
        (lambda: mlp().load_state_dict("m.pt"), hl.ConfigError, r"hl.read_weights\(path\)"),
        (
            lambda: train(mlp(), x=[X, X]),
            hl.DataError,
            r"y: must have one entry per row of X, which has 2, got .*; several inputs are a tuple",
        ),
        (
            lambda: train(nn.Conv2d(3, 2, 1), y=MASK, x=np.ones((len(X), 3, 4, 4))),
            hl.DataError,
            r"got 255 in row 0, index \(1, 2\); of a mask of 0 and 255 write \(y > 127\)",
        ),
        (lambda: quiet(val_split=0.2), hl.ConfigError, r"DataModule.from_arrays\(X, y, val="),
        (lambda: quiet(fast_dev_run=True), hl.ConfigError, "write max_steps=1"),
        (lambda: quiet(ckpt_path="a.ckpt"), hl.ConfigError, r"train\(..., resume="),
        (
            lambda: train(nn.Linear(N_IN, 2), X[:, 0], loss=of_first, metrics=["r2"]),
            hl.ShapeError,
            r"^metrics: r2 must get outputs like the targets: .*needs='output'",
        ),
        (
            lambda: train(Images(), y=Y, x=np.ones((len(X), 8, 8))),
            hl.ShapeError,
            r"got shape \(64, 8, 8\); where dim 0 are rows, without a dim of channels, write",
        ),
        (
            lambda: F.cross_entropy(np.ones((4, 5, 3)), np.ones((4, 5), int)),
            hl.ShapeError,
            r"its classes seem to stand last: write input.movedim\(-1, 1\), or loss=",
        ),
        (lambda: quiet(validation_split=0.2), hl.ConfigError, "val=..."),
    ],
)
def test_mistake_ends_in_a_sentence(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()


def test_loaded_model_is_not_trained(tmp_path) -> None:
    train(mlp(), max_epochs=1).save(tmp_path / "m.safetensors")
    with pytest.raises(hl.ConfigError, match="load_state_dict"):
        hl.train(hl.load(tmp_path / "m.safetensors"), (X, Y))


def test_one_hot_floats_warn() -> None:
    with pytest.warns(UserWarning, match="give y.argmax"):
        hl.DataModule.from_arrays(X, np.eye(N_OUT, dtype=np.float32)[Y])


def test_functions_are_evaluated_too() -> None:
    def share(y_true, y_pred):
        assert len(y_true) == len(y_pred)
        return (y_true == y_pred).mean()

    data = hl.DataModule.from_arrays(X, Y, val=0.2, test=0.3, batch_size=16)
    result = hl.train(mlp(), data, quiet(max_epochs=2, metrics=[share, "accuracy"]))
    for split in ("train", "val", "test"):
        scores = hl.evaluate(result, data, split)
        assert scores["share"] == pytest.approx(scores["accuracy"])
    step = hl.stepper(mlp(), quiet(metrics=[share, "accuracy"]), data)
    scores = step.evaluate("val")
    assert scores["share"] == pytest.approx(scores["accuracy"])


@pytest.mark.parametrize(
    ("n_out", "y", "metric"), [(1, X[:, 0], "accuracy"), (1, X[:, 0], "f1"), (N_OUT, Y, "r2")]
)
def test_metric_of_another_kind_of_targets(n_out, y, metric) -> None:
    with pytest.raises(hl.ConfigError, match=f"metrics: {metric} needs"):
        train(nn.Linear(N_IN, n_out), y, metrics=[metric])


def test_callback_without_a_method_is_refused() -> None:
    with pytest.raises(hl.ConfigError, match="callbacks: must have one of the methods"):
        train(mlp(), callbacks=[print])


def test_parameter_to_numpy_as_in_torch() -> None:
    weight = mlp()[0].weight
    np.testing.assert_array_equal(weight.detach().cpu().numpy(), weight.numpy())


def test_save_of_what_is_no_model(tmp_path) -> None:
    for wrong in ("m.safetensors", mlp().state_dict()):
        with pytest.raises(hl.ConfigError, match=r"write save\(model, path\)"):
            hl.save(wrong, tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: nn.Liner, "did you mean 'Linear'"),
        (lambda: hl.optim, r"TrainingConfig\(optimizer='adam'"),
        (lambda: hl.utils, "DataModule.from_arrays"),
        (lambda: hl.DataLoader, "DataModule.from_arrays"),
        (lambda: hl.fit, r"hl.train\(model, \(X, y\)"),
        (lambda: hl.Trainer, r"hl.train\(model, data, TrainingConfig"),
        (lambda: hl.summary, "hl.train prints layers .* hl.plan"),
        (lambda: hl.seed_everything, r"TrainingConfig\(seed=...\), or hl.manual_seed"),
        (lambda: hl.inference_mode, "hl.predict compute no gradients"),
        (lambda: nn.utils.clip_grad_norm_, r"TrainingConfig\(gradient_clip_val=1.0\)"),
        (lambda: nn.DataParallel, "one device in this version"),
        (lambda: F.reluu, "hotloop.nn.functional.* no attribute 'reluu'; did you mean 'relu'"),
        (
            lambda: mlp().device,
            r"write TrainingConfig\(accelerator=...\), and leave .to\(device\) out",
        ),
        (lambda: mlp().trainer, r"TrainingConfig\(callbacks=\[...\]\)"),
        (lambda: mlp().current_epoch, "hl.scalar"),
    ],
)
def test_torch_names_that_are_not_here(ask, words) -> None:
    with pytest.raises(AttributeError, match=words):
        ask()


def test_asking_whether_a_name_is_there_still_works() -> None:
    assert not hasattr(nn, "DataParallel")
    assert not hasattr(hl, "optim")


def test_training_step_beside_loss_is_refused() -> None:
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(N_IN, N_OUT)

        def training_step(self, batch):
            return nn.functional.cross_entropy(self.body(batch["x"]), batch["y"])

    train(Own(), max_epochs=1)
    with pytest.raises(hl.ConfigError, match="training_step makes the losses"):
        train(Own(), loss="mse")
    with pytest.raises(hl.TraceError, match="must define forward"):
        train(Own(), metrics=["accuracy"])


def test_a_parameter_without_gradient_is_left_alone() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 2)
            self.unused = nn.Linear(4, 2)

        def forward(self, x):
            return self.used(x)

    net = Net()
    before = net.state_dict()
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((64, 4), dtype=np.float32), rng.integers(0, 2, 64)
    hl.train(net, (X, y), max_epochs=2, weight_decay=0.5, enable_progress_bar=False, logger=None)
    after = net.state_dict()
    assert (after["unused.weight"] == before["unused.weight"]).all()
    assert (after["used.weight"] != before["used.weight"]).any()


def gini(y_true, y_pred) -> float:
    """A metric of which nothing says whether more is better."""
    return float((y_true == y_pred).mean())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"monitor": "val_F1"}, r"^monitor: .*; add metrics=\['f1'\] and monitor 'val_f1'$"),
        ({"monitor": "val_f1"}, r"^monitor: .*; add metrics=\['f1'\]$"),
        ({"monitor": "f1"}, r"^monitor: .*; add metrics=\['f1'\] and monitor 'val_f1'$"),
        ({"monitor": "acc"}, r"^monitor: .*; did you mean 'val_accuracy'\?$"),
        ({"monitor": "val_acc"}, r"^monitor: .*; did you mean 'val_accuracy'\?$"),
        (
            {"monitor": "acc", "metrics": ["f1"]},
            r"; add metrics=\['accuracy'\] and monitor 'val_acc",
        ),
        (
            {"monitor": "val_brier"},
            r"; add metrics=\[sklearn.metrics.brier_score_loss\] and monitor "
            r"'val_brier_score_loss'$",
        ),
        ({"metrics": ["acc"]}, r"^metrics: must be one of .*; did you mean 'accuracy'\?$"),
        ({"metrics": ["R2_score"]}, r"^metrics: must be one of .*; did you mean 'r2'\?$"),
        (
            {"metrics": ["mape"]},
            r"^metrics: .*, got 'mape'; write "
            r"metrics=\[sklearn.metrics.mean_absolute_percentage_error\], which is "
            r"'val_mean_absolute_percentage_error' in the history$",
        ),
        ({"metrics": ["cross_entropy"]}, r"^metrics: .*; leave it out: the loss is in the history"),
        ({"metrics": ["gini"]}, r"^metrics: .*, got 'gini'$"),
        ({"monitor": "val_Accuracy"}, r"^monitor: .*; did you mean 'val_accuracy'\?$"),
        (
            {"param_groups": [{"parms": "0", "lr": 0.1}]},
            r"^param_groups\[0\]: must be a dict such as .*; write 'params' in place of 'parms'$",
        ),
        ({"param_groups": ["0"]}, r"^param_groups\[0\]: must be a dict such as .*, got '0'$"),
        (
            {"early_stopping": hl.EarlyStopping(monitor="val_gini"), "metrics": [gini]},
            r"^early_stopping.monitor: ",
        ),
    ],
)
def test_a_wrong_name_says_what_was_meant(fields, message) -> None:
    with pytest.raises(hl.ConfigError, match=message):
        hl.train(mlp(), (X, Y), quiet(**({"max_epochs": 1} | fields)))
