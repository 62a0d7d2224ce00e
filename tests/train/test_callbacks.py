"""What callbacks read of the model is the model of now, and reading changes nothing."""

from __future__ import annotations

import copy
import pathlib
import threading
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import BusyError
from train.recipes import classes, mlp, quiet, same_bits

X, Y = classes()


class Reads:
    """Notes the weights that it reads after each epoch."""

    def __init__(self, read: Any = lambda model: model.state_dict()) -> None:
        self.read = read
        self.before: Any = None
        self.seen: list[Any] = []

    def on_train_begin(self, run: Any) -> None:
        self.before = self.read(run.model)

    def on_epoch_end(self, run: Any) -> None:
        self.seen.append(self.read(run.model))


@pytest.mark.parametrize("ema", [False, True], ids=["trained", "averaged"])
@pytest.mark.parametrize(
    "read",
    [lambda m: m.state_dict(), lambda m: {k: p.numpy() for k, p in m.named_parameters()}],
    ids=["state_dict", "numpy"],
)
def test_a_callback_reads_the_weights_of_now(ema: bool, read: Any) -> None:
    config = quiet(max_epochs=3, ema=ema, restore_best=False)
    reads = Reads(read)
    model = mlp()
    start = read(model)
    result = hl.train(model, (X, Y), config, callbacks=(reads,))
    assert same_bits(reads.before, start)
    assert not same_bits(reads.seen[0], start)
    assert not same_bits(reads.seen[0], reads.seen[1])
    assert same_bits(reads.seen[-1], read(result.model))
    plain = hl.train(mlp(), (X, Y), config)
    assert same_bits(plain.model.state_dict(), result.model.state_dict())
    assert plain.history["loss"] == result.history["loss"]


@pytest.mark.parametrize("ema", [False, True], ids=["trained", "averaged"])
def test_a_copy_in_a_callback_scores_as_validation_did(ema: bool) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=0.25, standardize=True)
    scores = []

    class Scores:
        def on_epoch_end(self, run: Any) -> None:
            twin = copy.deepcopy(run.model)
            assert not any(parameter.is_initial for parameter in twin.parameters())
            scores.append(hl.evaluate(twin, data, split="val")["loss"])

    result = hl.train(mlp(norm=True), data, quiet(max_epochs=2, ema=ema), callbacks=(Scores(),))
    assert scores == pytest.approx(result.history["val_loss"], rel=1e-6)


def test_a_checkpoint_of_a_callback_is_the_model_of_then(tmp_path: pathlib.Path) -> None:
    data = hl.DataModule.from_arrays(X, np.array(["no", "yes", "so"])[Y], standardize=True)

    class Saves:
        def on_epoch_end(self, run: Any) -> None:
            hl.save(run.model, tmp_path / f"{run.epoch}.safetensors")

    config = quiet(max_epochs=2, restore_best=False)
    result = hl.train(mlp(), data, config, callbacks=(Saves(),))
    first, last = (hl.load(tmp_path / f"{epoch}.safetensors") for epoch in (1, 2))
    assert same_bits(last.state_dict(), result.model.state_dict())
    assert not same_bits(first.state_dict(), last.state_dict())
    np.testing.assert_array_equal(hl.predict(last, X), hl.predict(result, X))
    assert set(hl.predict(first, X, labels=True)) <= {"no", "yes", "so"}


def test_a_part_of_the_model_predicts_in_a_callback_as_it_is_now() -> None:
    reads = Reads(lambda model: hl.predict(model[0], X[:3]))
    model = mlp()
    hl.train(model, (X, Y), quiet(max_epochs=3, restore_best=False), callbacks=(reads,))
    assert not np.array_equal(reads.seen[0], reads.seen[1])
    np.testing.assert_array_equal(reads.seen[-1], hl.predict(model[0], X[:3]))


def test_what_a_callback_writes_raises() -> None:
    loss = nn.CrossEntropyLoss(weight=np.ones(3, np.float32))

    def refused(model: Any) -> None:
        for value in (model[0].weight, *loss.buffers()):
            with pytest.raises(BusyError, match="its model is being trained"):
                value.copy_(value.numpy() * 0)
        with pytest.raises(BusyError):
            model.load_state_dict(model.state_dict())

    hl.train(mlp(), (X, Y), quiet(max_epochs=1, loss=loss), callbacks=(Reads(refused),))
    loss.weight.copy_(np.ones(3))


def test_a_training_that_fails_leaves_the_model_as_it_was() -> None:
    class Breaks:
        def on_epoch_end(self, run: Any) -> None:
            run.model.state_dict()
            raise KeyError("mine")

    model = mlp()
    before = model.state_dict()
    with pytest.raises(KeyError, match="mine"):
        hl.train(model, (X, Y), quiet(max_epochs=2), callbacks=(Breaks(),))
    assert same_bits(model.state_dict(), before)


def test_in_another_thread_the_model_is_the_one_of_before() -> None:
    seen = []

    def elsewhere(model: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(model.state_dict()))
        thread.start()
        thread.join()

    model = mlp()
    before = model.state_dict()
    hl.train(model, (X, Y), quiet(max_epochs=1), callbacks=(Reads(elsewhere),))
    assert all(same_bits(values, before) for values in seen)
