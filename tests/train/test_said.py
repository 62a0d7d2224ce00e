"""What could go wrong without a word is said, where it is seen, with what to do about it."""

import threading
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()


# ---------------------------------------------------------------------------- predict


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("c", [1, 3])
def test_labels_of_outputs_that_are_not_finite_are_refused(c: int, value: float, tmp_path) -> None:
    model = mlp(c=c)
    result = hl.train(model, (X, Y % 2 if c == 1 else Y), quiet(max_epochs=1))
    bad = X.copy()
    bad[[7, 11], 0] = value
    model[0].weight.copy_(np.abs(model[0].weight.numpy()))
    model[1] = nn.Identity()
    result.save(tmp_path / "m")
    for which in (model, hl.load(tmp_path / "m")):
        with pytest.raises(hl.DataError, match=r"predict: labels=True .*row 7 .*2 rows"):
            hl.predict(which, bad, labels=True)
        assert len(hl.predict(which, X, labels=True)) == len(X)
    assert not np.isfinite(hl.predict(model, bad)[7]).all()


# ---------------------------------------------------------------------------- skipped steps


def test_an_epoch_without_an_applied_step_has_no_loss(capsys) -> None:
    Xr, yr = regression()
    data = hl.DataModule.from_arrays(Xr, yr * np.float32(1e30), batch_size=16)
    result = hl.train(
        nn.Linear(5, 1), data, quiet(max_epochs=2, on_nan="skip", enable_progress_bar="auto")
    )
    assert result.steps == 0
    assert result.skipped_steps == 8
    assert np.isnan(result.history["loss"]).all()
    assert "8 steps skipped" in capsys.readouterr().err.splitlines()[-1]


def test_the_last_line_is_silent_where_nothing_was_skipped(capsys) -> None:
    hl.train(mlp(), (X, Y), quiet(max_epochs=1, enable_progress_bar="auto"))
    assert "skipped" not in capsys.readouterr().err


# ---------------------------------------------------------------------------- threads


class InAnotherThread:
    """Does something to the model in another thread, in the middle of training."""

    def __init__(self, action) -> None:
        self.action, self.error = action, None

    def on_epoch_end(self, run) -> None:
        def act():
            try:
                self.action(run.model)
            except Exception as error:
                self.error = error

        thread = threading.Thread(target=act)
        thread.start()
        thread.join()


@pytest.mark.parametrize(
    "action",
    [
        lambda model: model.load_state_dict(mlp().state_dict()),
        lambda model: model.reset(),
        lambda model: model[0].reset(),
        lambda model: model[0].load_state_dict(nn.Linear(6, 16).state_dict()),
        lambda model: model[0].weight.copy_(np.zeros((16, 6))),
        lambda model: nn.init.zeros_(model[0].weight),
        lambda model: hl.save(model, "never"),
        lambda model: nn.Sequential(model, nn.ReLU()).load_state_dict(
            nn.Sequential(mlp(), nn.ReLU()).state_dict()
        ),
    ],
    ids=["load", "reset", "part", "load part", "copy_", "init", "save", "whole"],
)
def test_values_of_a_model_in_training_stay_alone(action, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    callback = InAnotherThread(action)
    model, alone = mlp(), mlp()
    hl.train(alone, (X, Y), quiet(max_epochs=2))
    hl.train(model, (X, Y), quiet(max_epochs=2), callbacks=[callback])
    assert isinstance(callback.error, hl.BusyError), callback.error
    assert "being trained" in str(callback.error)
    assert all((model.state_dict()[k] == v).all() for k, v in alone.state_dict().items())
    action(model)  # when training is over
    assert hl.predict(model, X).shape == (90, 3)


# ---------------------------------------------------------------------------- indices


class OneHot(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.head = n, nn.Linear(n, 3)

    def forward(self, x):
        return self.head(hl.one_hot(x.long()[:, 0], self.n).float())


def test_one_hot_of_a_class_out_of_range_raises() -> None:
    """As PyTorch does, too small and too large, in training and prediction."""
    ids = np.arange(90).reshape(-1, 1) % 5
    assert hl.predict(OneHot(5), ids).shape == (90, 3)
    for bad in (5, -1):
        wrong = ids.copy()
        wrong[4] = bad
        with pytest.raises(hl.DataError, match=f"{bad}"):
            hl.predict(OneHot(5), wrong)
        with pytest.raises(hl.DataError, match=f"got {bad} for row 4|got {bad} in row 4"):
            hl.train(OneHot(5), (wrong, Y), quiet(max_epochs=1))


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.table(x[:, 0] * 10))


def test_an_index_that_forward_computed_is_not_blamed_on_the_data() -> None:
    ids = np.zeros((90, 1), np.int64)
    ids[4] = 5
    with pytest.raises(hl.DataError) as error:
        hl.train(Computed(), (ids, Y), quiet(max_epochs=1))
    text = str(error.value)
    assert "forward computes" in text
    assert "got 50 for row 4" in text
    assert "renumber" not in text


# ---------------------------------------------------------------------------- evaluate


def test_a_trained_model_is_evaluated_as_it_was_trained(tmp_path) -> None:
    """Given the model alone: class weights, metrics, smoothing, loss and precision of the run."""
    data = hl.DataModule.from_arrays(X, Y, val=0.3, batch_size=16)
    config = quiet(
        max_epochs=2,
        loss="cross_entropy",
        metrics=["f1", "balanced_accuracy"],
        class_weight=(1.0, 5.0, 0.1),
        label_smoothing=0.1,
        precision="64-true",
    )
    result = hl.train(mlp(), data, config)
    want = hl.evaluate(result, data, "val")
    assert set(want) == {"loss", "f1", "balanced_accuracy"}
    assert want["loss"] == pytest.approx(result.history["val_loss"][-1], 1e-6)
    assert hl.evaluate(result.model, data, "val") == want
    other = hl.evaluate(result.model, data, "val", config=hl.TrainingConfig())
    assert set(other) == {"loss", "accuracy"}
    assert hl.evaluate(result.model.reset(), data, "val").keys() == {"loss", "accuracy"}


def test_a_loss_of_ones_own_is_not_replaced_by_another() -> None:
    """A model that was copied by pickle may have lost it."""
    import pickle

    def absolute(output, target):
        return (output - target).abs().mean()

    Xr, yr = regression()
    data = hl.DataModule.from_arrays(Xr, yr, val=0.3)
    result = hl.train(nn.Linear(5, 1), data, quiet(max_epochs=1, loss=absolute))
    want = result.history["val_loss"][-1]
    assert hl.evaluate(result.model, data, "val")["loss"] == pytest.approx(want, 1e-6)
    copied = pickle.loads(pickle.dumps(result.model))
    with pytest.raises(hl.ConfigError, match=r"loss 'absolute'.*write evaluate\(\.\.\., loss="):
        hl.evaluate(copied, data, "val")


def test_a_warmup_that_never_ends_is_said() -> None:
    X = np.zeros((40, 3), np.float32)
    data = hl.DataModule.from_arrays(X, np.zeros(40), batch_size=10)
    for length in (9, "3 epochs"):
        with pytest.warns(hl.ModelWarning, match=r"warmup: it has (9|12) steps, and training 8,"):
            hl.train(nn.Linear(3, 1), data, quiet(max_epochs=2, warmup=length))
    hl.train(nn.Linear(3, 1), data, quiet(max_epochs=2, warmup=8))


def test_epochs_between_checkpoints_that_steps_were_meant_for(tmp_path: Path) -> None:
    X = np.zeros((40, 3), np.float32)
    config = quiet(max_epochs=2, save_every=50, output_dir=tmp_path, enable_checkpointing=True)
    with pytest.warns(hl.CheckpointWarning, match=r"50 epochs .* write save_every='50 steps'"):
        hl.train(nn.Linear(3, 1), (X, np.zeros(40)), config)
    with pytest.raises(hl.ConfigError, match=r"must be epochs, steps or a time span, got '50'"):
        quiet(save_every="50")
    with pytest.raises(hl.ConfigError, match=r"every_n_train_steps.*write save_every='500 steps'"):
        quiet(every_n_train_steps=50)
