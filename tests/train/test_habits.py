"""Habits from other trainers: each works, or is refused by name with what to write instead."""

import dataclasses

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.tools.cli import main
from needs import take_library
from train.recipes import classes, mlp, quiet, same_bits

X, Y = classes()
HAS_GPU = bool(_core.survey("cuda")["devices"])


# ---------------------------------------------------------------------------- .to("cuda")


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU (it runs where there is none)")
def test_a_gpu_that_is_not_there_is_refused_at_once() -> None:
    model = mlp()
    for move in (lambda: model.to("cuda"), model.cuda, lambda: model.to("cuda:1")):
        with pytest.raises(hl.DeviceError, match=r"^to: .*needs a GPU.*; use 'cpu' or 'auto'"):
            move()
    assert model.to("auto").cpu() is model
    assert np.isfinite(hl.predict(model, X)).all()  # it predicts where it did before


# ---------------------------------------------------------------------------- reset


def header(capsys: pytest.CaptureFixture[str], model: nn.Module) -> str:
    capsys.readouterr()
    hl.train(model, (X, Y), max_epochs=1, logger=None)
    return capsys.readouterr().err.partition("epoch 1")[0]


def test_the_header_says_whether_a_model_has_weights_already(capsys) -> None:
    model, again = mlp(), mlp()
    assert "continues" not in header(capsys, model)
    assert "continues from its weights" in header(capsys, model)
    again.load_state_dict(model.state_dict())
    assert "continues from its weights" in header(capsys, again)
    assert "continues" not in header(capsys, model.reset())


def test_reset_forgets_what_training_taught() -> None:
    model = mlp()
    hl.train(model, (X, Y), quiet(max_epochs=1))
    assert len(hl.predict(model, X, labels=True)) == len(X)
    with pytest.raises(hl.ConfigError, match="needs a model trained as a classifier"):
        hl.predict(model.reset(), X, labels=True)


# ---------------------------------------------------------------------------- Lightning's methods


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("validation_step", "metrics="),
        ("test_step", "hl.evaluate"),
        ("predict_step", "hl.predict"),
        ("configure_optimizers", "optimizer="),
        ("optimizer_step", "optimizer="),
        ("lr_scheduler_step", "scheduler="),
        ("configure_gradient_clipping", "gradient_clip_val="),
        ("train_dataloader", "DataModule"),
        ("on_train_epoch_end", "callbacks="),
        ("on_after_backward", "callbacks="),
        ("training_epoch_end", "callbacks="),
        ("configure_callbacks", "callbacks="),
        ("train_step", "training_step"),
    ],
)
def test_methods_that_nothing_calls_are_refused(method: str, instead: str) -> None:
    Model = type("Model", (nn.Linear,), {method: lambda self, *args: None})
    for call in (
        lambda: hl.train(Model(6, 3), (X, Y), quiet(max_epochs=1)),
        lambda: hl.stepper(Model(6, 3), quiet(), (X, Y)),
        lambda: hl.plan(Model(6, 3), (X, Y)),
    ):
        with pytest.raises(hl.ConfigError, match=rf"Model\.{method}: .*not called") as error:
            call()
        assert instead in str(error.value).partition(";")[2]


def test_a_model_may_be_its_own_callback() -> None:
    class Counting(nn.Linear):
        epochs = 0

        def on_epoch_end(self, run):
            type(self).epochs += 1

    model = Counting(6, 3)
    hl.train(model, (X, Y), quiet(max_epochs=2), callbacks=[model])
    assert model.epochs == 2
    with pytest.raises(hl.ConfigError, match=r"on_epoch_end.*callbacks="):
        hl.train(Counting(6, 3), (X, Y), quiet(max_epochs=2))


def test_a_callback_s_method_that_is_not_called_is_refused() -> None:
    class Callback:
        def on_epoch_end(self, run): ...

        def on_train_epoch_end(self, run): ...

    with pytest.raises(hl.ConfigError, match=r"Callback\.on_train_epoch_end: .*not called"):
        hl.train(mlp(), (X, Y), quiet(max_epochs=1), callbacks=[Callback()])


def test_a_callback_takes_the_run_alone() -> None:
    class Keras:
        def on_epoch_end(self, epoch, logs): ...

    rule = (
        r"Keras\.on_epoch_end: must be on_epoch_end\(self, run\), got the arguments \(epoch, logs"
    )
    with pytest.raises(hl.ConfigError, match=rule):
        hl.train(mlp(), (X, Y), quiet(max_epochs=1), callbacks=[Keras()])
    with pytest.raises(hl.ConfigError, match=r"got <function .*; write a class with on_epoch_end"):
        hl.train(mlp(), (X, Y), quiet(max_epochs=1), callbacks=[lambda run: None])

    class Free:
        def on_epoch_end(self, *args, **kwargs): ...

    hl.train(mlp(), (X, Y), quiet(max_epochs=1), callbacks=[Free()])


@pytest.mark.parametrize(
    "hook",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_backward_hook",
        "register_state_dict_pre_hook",
        "register_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_load_state_dict_post_hook",
    ],
)
def test_hooks_are_refused(hook: str) -> None:
    with pytest.raises(hl.ConfigError, match=f"{hook}: hooks are not run"):
        getattr(mlp(), hook)(lambda *args: None)


# ---------------------------------------------------------------------------- names of others


def test_a_configuration_says_how_it_is_changed() -> None:
    config = hl.TrainingConfig()
    parts = hl.OptimizerConfig("adam"), hl.SchedulerConfig("step", step_size=3), hl.EarlyStopping(3)
    for owner, name in ((config, "lr"), *((part, "patience") for part in parts)):
        with pytest.raises(dataclasses.FrozenInstanceError, match=rf"write .*replace\({name}="):
            setattr(owner, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"replace\(lr="):
        config.learning_rate = 1
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"replace\(lr="):
        del config.lr


def test_a_metric_that_is_monitored_has_to_be_computed() -> None:
    for name in ("val_f1", "f1"):
        with pytest.raises(hl.ConfigError, match=r"monitor: .*; add metrics=\['f1'\]"):
            hl.train(mlp(), hl.DataModule.from_arrays(X, Y, val=0.3), quiet(monitor=name))
    with pytest.raises(hl.ConfigError, match=r"monitor: .*; there is no validation data"):
        hl.train(mlp(), hl.DataModule.from_arrays(X, Y), quiet(monitor="val_accuracy"))
    config = quiet(monitor="accuracy")
    with pytest.raises(hl.ConfigError, match="did you mean 'val_accuracy'"):
        hl.train(mlp(), hl.DataModule.from_arrays(X, Y, val=0.3), config)


def test_compile_is_that_of_torch() -> None:
    model = mlp()
    model.compile(mode="max-autotune", fullgraph=True)
    with pytest.raises(hl.ConfigError, match=r"got loss, optimizer; .*TrainingConfig"):
        model.compile(optimizer="adam", loss="mse")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("predict_proba", r"hl\.predict\(model, X, proba=True\)"),
        ("fit", r"hl\.train\(model, \(X, y\)"),
        ("score", r"hl\.evaluate\(model, \(X, y\)\)"),
        ("evaluate", r"hl\.evaluate\(model, \(X, y\)\)"),
        ("predict", r"hl\.predict\(model, X\)"),
    ],
)
def test_methods_of_other_libraries_are_functions_here(name: str, instead: str, tmp_path) -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    for owner in (result.model, result):
        with pytest.raises(AttributeError, match=instead):
            getattr(owner, name)


def test_a_loaded_model_predicts_and_has_classes(tmp_path) -> None:
    names = np.array(["ant", "bee", "cat"])[Y]
    hl.train(mlp(), (X, names), quiet(max_epochs=1)).save(tmp_path / "m")
    loaded = hl.load(tmp_path / "m")
    assert loaded.classes == ["ant", "bee", "cat"]
    for options in ({}, {"proba": True}, {"labels": True}):
        assert (loaded.predict(X, **options) == hl.predict(loaded, X, **options)).all()
    with pytest.raises(AttributeError, match=r"hl\.predict\(model, X, proba=True\)"):
        loaded.predict_proba(X)


def test_columns_that_are_missing_are_named_alone() -> None:
    columns = {name: X[:, i] for i, name in enumerate(("age", "income", "height", "weight"))}

    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x):
            return self.body(hl.stack(list(x.values()), dim=1))

    model = Columns()
    hl.train(model, (columns, Y), quiet(max_epochs=1))
    given = {"age": X[:, 0], "Income": X[:, 1], "height": X[:, 2]}
    with pytest.raises(hl.DataError) as error:
        hl.predict(model, given)
    text = str(error.value)
    assert "'income' (did you mean 'Income'?), 'weight'" in text
    assert "'age'" not in text


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("random_state", "seed="),
        ("wd", "weight_decay="),
        ("criterion", "loss="),
        ("grad_clip", "gradient_clip_val="),
        ("num_threads", "HOTLOOP_NUM_THREADS"),
        ("val", "from_arrays(X, y, val="),
        ("verbose", "enable_progress_bar="),
        ("bs", "batch_size="),
        ("fp16", "precision='16-mixed'"),
        ("bf16", "precision='bf16-mixed'"),
        ("gpus", "accelerator='gpu'"),
        ("workers", "num_workers="),
        ("log_dir", "output_dir="),
        ("dropout", "nn.Dropout"),
        ("tol", "min_delta="),
        ("checkpoint_path", "result.save"),
    ],
)
def test_settings_by_the_names_of_others(key: str, instead: str) -> None:
    with pytest.raises(hl.ConfigError) as error:
        hl.TrainingConfig(**{key: 1})
    assert instead in str(error.value)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("batchsize", "did you mean 'batch_size'"),
        ("standardise", "did you mean 'standardize'"),
        ("random_state", "seed="),
        ("test_size", "test="),
        ("val_split", "val="),
        ("bs", "batch_size="),
        ("zzz", "; it has"),
    ],
)
def test_options_of_the_data_by_other_names(key: str, instead: str) -> None:
    with pytest.raises(hl.ConfigError) as error:
        hl.DataModule.from_arrays(X, Y, **{key: 1})
    assert f"there is no option {key!r}" in str(error.value)
    assert instead in str(error.value)
    with pytest.raises(hl.ConfigError, match=f"there is no option '{key}'"):
        hl.DataModule((X, Y), **{key: 1})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_weights_under_a_prefix(prefix: str) -> None:
    model, other = mlp(), mlp(norm=True)
    state = {f"{prefix}{k}": v for k, v in mlp().state_dict().items()}
    with pytest.raises(hl.ConfigError, match=rf"write strip_prefix='{prefix}'"):
        model.load_state_dict(state)
    values = {k: np.full_like(v, 3) for k, v in state.items()}
    assert model.load_state_dict(values, strip_prefix=prefix) == ([], [])
    assert all((v == 3).all() for v in model.state_dict().values())
    with pytest.raises(hl.ConfigError) as error:
        other.load_state_dict({"a": np.ones(1)})
    assert "strip_prefix" not in str(error.value)


def test_evaluate_takes_fields_and_says_how_targets_are_given() -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    assert set(hl.evaluate(result, (X, Y), metrics=["f1", "recall"])) == {"loss", "f1", "recall"}
    with pytest.raises(hl.ConfigError, match=r"write evaluate\(model, \(X, y\)\)"):
        hl.evaluate(result, X, Y)
    with pytest.raises(hl.ConfigError, match="there is no setting 'metric'; did you mean"):
        hl.evaluate(result, (X, Y), metric="f1")


# ---------------------------------------------------------------------------- run.toml

RUN = 'model = "net.py:Net"\n[data]\nx = "x.npy"\ny = "y.npy"\n[training]\nmax_epochs = 1\n'
NET = "from hotloop import nn\nclass Net(nn.Linear):\n    def __init__(self):\n"
NET += "        super().__init__(6, 3)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def test_the_plan_of_a_run_that_is_written_down(folder, capsys) -> None:
    assert main(["plan", "run.toml", "--instructions"]) == 0
    shown = capsys.readouterr().out
    assert "matmul" in shown
    assert "adam" in shown
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) in ([], ["__pycache__"])


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("net.py:Net", "net.py:Nett", "did you mean 'Net'"),
        ("x.npy", "x.csv", 'write table = "x.csv" and target'),
        ("x.npy", "objects.npy", "holds Python objects"),
    ],
)
def test_what_a_run_file_cannot_have(old, new, text, folder, capsys) -> None:
    (folder / "x.csv").write_text("a,b\n1,2\n")
    np.save("objects.npy", np.array([{}, None], object), allow_pickle=True)
    (folder / "run.toml").write_text(RUN.replace(old, new))
    assert main(["train", "run.toml"]) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert "__name__" not in shown


# ---------------------------------------------------------------------------- ensembles


def test_a_seed_of_none_is_drawn_and_told(capsys, monkeypatch) -> None:
    monkeypatch.setattr("hotloop.graph.seeds._State.seed", None)  # manual_seed's goes first

    def train(seed):
        return hl.train(mlp(), (X, Y), max_epochs=1, seed=seed, logger=None)

    first, second = train(None), train(None)
    assert isinstance(first.config.seed, int)
    assert first.config.seed != second.config.seed
    assert f"seed {second.config.seed}" in capsys.readouterr().err
    assert not same_bits(first.model.state_dict(), second.model.state_dict())
    again = train(first.config.seed)
    assert same_bits(first.model.state_dict(), again.model.state_dict())


def test_a_data_frame_of_strings_as_targets() -> None:
    pandas = take_library("pandas")
    names = np.array(["ant", "bee", "cat"])[Y]
    want = hl.predict(hl.train(mlp(), (X, names), quiet(max_epochs=1)), X, labels=True)
    for y in (pandas.DataFrame({"kind": names}), pandas.Series(names)):
        result = hl.train(mlp(), (X, y), quiet(max_epochs=1))
        assert (hl.predict(result, X, labels=True) == want).all()


def deep(method, name="validation_step"):
    """A model whose part defines a method."""
    part = type("Part", (nn.Linear,), {name: method})(6, 6)
    return nn.Sequential(nn.Sequential(part), mlp())


def on_the_instance():
    model = mlp()
    model.validation_step = lambda batch: batch["x"].sum()
    return model


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: deep(lambda self, batch, batch_idx: None), "Part.validation_step"),
        (lambda: deep(lambda self: None, "on_train_epoch_end"), "Part.on_train_epoch_end"),
        (lambda: deep(lambda self, stage=None: None, "setup"), "Part.setup"),
        (lambda: deep(lambda self, stage: None, "teardown"), "Part.teardown"),
        (lambda: deep(lambda self, optimizer: None, "toggle_optimizer"), "toggle_optimizer"),
        (on_the_instance, "Sequential.validation_step"),
    ],
)
def test_a_method_that_is_not_called_is_refused_wherever_it_is(make, name) -> None:
    with pytest.raises(hl.ConfigError, match=rf"{name}: .* is not called; "):
        hl.train(make(), (X, Y), quiet(max_epochs=1))


class OwnNames(nn.Module):
    """Parts and helpers of its own that happen to have such names."""

    def __init__(self) -> None:
        super().__init__()
        self.setup(6)
        self.on = nn.Linear(6, 3)

    def setup(self, width: int) -> None:
        self.backward, self.setup_done = nn.Linear(width, 6), True

    def forward(self, x):
        return self.on(self.backward(x))


def test_parts_and_helpers_with_such_names_are_the_model_s_own() -> None:
    assert hl.train(OwnNames(), (X, Y), quiet(max_epochs=1)).epochs == 1
