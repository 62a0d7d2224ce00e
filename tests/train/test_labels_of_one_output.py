"""One output becomes a label only by what the loss says of it; where it says nothing, no metric
guesses."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import classes, mlp, quiet

X, Y = classes()
TWO = (Y == 1).astype(np.int64)


def own(output, target):
    return ((output.squeeze(-1) - target.float()) ** 2).mean()


def bce_of_probabilities(output, target):
    return F.binary_cross_entropy(output.squeeze(-1), target.float())


def squashed() -> nn.Module:
    return nn.Sequential(mlp(c=1), nn.Sigmoid())


def share(y_true, y_pred):
    return float((y_true == y_pred).mean())


class OwnStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = squashed()

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        return bce_of_probabilities(self(batch["x"]), batch["y"])


UNSAID = {
    "name": (lambda: mlp(c=1), "mse"),
    "other name": (lambda: mlp(c=1), "l1"),
    "module": (lambda: mlp(c=1), nn.MSELoss()),
    "function": (lambda: mlp(c=1), own),
    "function of probabilities": (squashed, bce_of_probabilities),
    "own step": (OwnStep, "auto"),
}


def train(model, y, x=X, **fields):
    data = hl.DataModule.from_arrays(x, y, val=(x, y), batch_size=32)
    return hl.train(model, data, quiet(max_epochs=1, **fields))


@pytest.mark.parametrize("case", UNSAID)
def test_the_default_metric_is_left_out_where_the_loss_does_not_cut(case: str) -> None:
    make, loss = UNSAID[case]
    result = train(make(), TWO, loss=loss)
    assert "val_loss" in result.history
    assert "val_accuracy" not in result.history
    assert list(hl.evaluate(result, (X, TWO))) == ["loss"]


@pytest.mark.parametrize("case", UNSAID)
@pytest.mark.parametrize("metric", ["accuracy", "f1", share], ids=["accuracy", "f1", "function"])
def test_a_metric_that_needs_labels_is_refused_there(case: str, metric) -> None:
    make, loss = UNSAID[case]
    name = getattr(metric, "__name__", metric)
    fix = "return it from training_step" if loss == "auto" else "write loss='bce'"
    with pytest.raises(hl.ConfigError, match=f"metrics: {name}: needs labels.*{fix}.*needs='out"):
        train(make(), TWO, loss=loss, metrics=[metric])


def test_three_classes_of_one_output_have_no_accuracy() -> None:
    assert "val_accuracy" not in train(mlp(c=1), Y, loss="mse").history


@pytest.mark.filterwarnings("ignore:y. float targets are all 0 or 1")
def test_float_targets_are_not_cut_either() -> None:
    with pytest.raises(hl.ConfigError, match="metrics: accuracy: needs labels"):
        train(mlp(c=1), TWO.astype(np.float32), loss="mse", metrics=["accuracy"])


def test_columns_are_not_cut_either() -> None:
    columns = np.stack([Y == 0, Y > 0, Y > 1], 1)
    assert "val_accuracy" not in train(mlp(c=3), columns, loss="mse").history
    with pytest.raises(hl.ConfigError, match="metrics: f1: needs labels"):
        train(mlp(c=3), columns, loss="mse", metrics=["f1"])


def test_of_several_targets_it_goes_by_the_loss_of_each() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = mlp(c=1), mlp(c=1)

        def forward(self, x):
            return {"a": self.a(x), "b": self.b(x)}

    result = train(Heads(), {"a": TWO, "b": TWO}, loss={"a": "mse", "b": "bce"})
    assert "val_b_accuracy" in result.history
    assert "val_a_accuracy" not in result.history


def test_the_largest_of_several_outputs_needs_no_word_of_the_loss() -> None:
    def loss(output, target):
        return F.cross_entropy(output * 2.0, target)

    result = train(mlp(), Y, loss=loss)
    want = (np.asarray(hl.predict(result, X)).argmax(1) == Y).mean()
    assert result.history["val_accuracy"][-1] == pytest.approx(want)


def test_losses_that_differ_in_what_outputs_are_say_nothing() -> None:
    losses = {"logits": "bce", "chances": nn.BCELoss()}
    x = np.abs(X)
    result = train(squashed(), TWO, x, loss=losses)
    assert "val_accuracy" not in result.history


def test_a_function_with_the_name_of_a_loss_is_still_ones_own(tmp_path) -> None:
    def binary_cross_entropy(output, target):
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), target.float())

    result = train(mlp(c=1), TWO, loss=binary_cross_entropy)
    assert "val_accuracy" not in result.history
    result.save(tmp_path / "m")
    with pytest.raises(hl.ConfigError, match="the loss 'own binary_cross_entropy', which a file"):
        hl.evaluate(hl.load(tmp_path / "m"), (X, TWO))
