"""Stochastic weight averaging: rates, the average with its statistics, and what has its weights."""

import os
import signal
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError
from hotloop.training.config.schedule import StepCounts, rates, swa_rates
from hotloop.training.run.averaging import Averaging
from needs import take_library
from train.recipes import Array, classes, mlp, quiet, same_bits, weights

X, Y = classes(120)


def data(**options: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, **({"val": 0.2, "batch_size": 16} | options))


class Trained:
    """Notes the trained weights and buffers at the end of each epoch."""

    def __init__(self) -> None:
        self.values: list[dict[str, Array]] = []

    def on_epoch_end(self, run: Any) -> None:
        session, layout = run.runtime.session, run.runtime.layout
        self.values.append({
            slot.name: session.read(slot.store, "float64", slot.offset, slot.size).reshape(
                slot.owner.shape
            )
            for slot in layout.slots
        })  # fmt: skip


def mean_of(seen: Trained, names: Any, last: int) -> dict[str, Array]:
    return {name: np.mean([one[name] for one in seen.values[-last:]], 0) for name in names}


# ---------------------------------------------------------------------------- the average


@pytest.mark.parametrize("precision", ["64-true", "32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("fields", [{}, {"accumulate_grad_batches": 3, "freeze": "0"}])
def test_the_model_has_the_mean_of_the_last_epochs(precision: str, fields: Any) -> None:
    seen, model = Trained(), mlp(norm=True, dropout=0.2)
    before = weights(model)
    config = quiet(max_epochs=8, swa=0.6, lr=1e-2, precision=precision, **fields)
    result = hl.train(model, data(), config, callbacks=[seen])
    assert len(seen.values) == 8
    learnt = [name for name, _ in model.named_parameters()]
    for name, mean in mean_of(seen, learnt, 4).items():
        np.testing.assert_allclose(weights(model)[name], mean, 1e-6, 1e-7, err_msg=name)
    assert same_bits({"": before["0.weight"]}, {"": weights(model)["0.weight"]}) == bool(fields)
    assert not same_bits({"": seen.values[-1]["4.weight"]}, {"": weights(model)["4.weight"]})
    found = hl.evaluate(result, data(), split="val")["loss"]
    np.testing.assert_allclose(result.history["val_loss"][-1], found, 1e-5)


def test_statistics_are_those_of_the_average() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    frozen = nn.BatchNorm1d(3).eval()
    seen, net = Trained(), nn.Sequential(model, frozen)
    config = quiet(max_epochs=4, swa=0.5, lr=1e-2, precision="64-true")
    whole = data(val=0.0, batch_size=40)
    hl.train(net, whole, config, callbacks=[seen])
    values = weights(net)
    batches = [batch["x"].astype(np.float64) for batch in whole.train_batches(0)]
    hidden = [x @ values["0.0.weight"].T + values["0.0.bias"] for x in batches]
    mean = np.mean([h.mean(0) for h in hidden], 0)
    var = np.mean([h.var(0, ddof=1) for h in hidden], 0)
    np.testing.assert_allclose(values["0.1.running_mean"], mean, 1e-5, 1e-6)
    np.testing.assert_allclose(values["0.1.running_var"], var, 1e-5)
    assert values["0.1.num_batches_tracked"] == 3
    assert seen.values[-1]["0.1.num_batches_tracked"] == 12  # training has its own
    assert (values["1.running_mean"] == 0).all()
    assert values["1.num_batches_tracked"] == 0


def test_training_has_the_bits_that_it_has_without() -> None:
    seen, plain = Trained(), Trained()
    swa = hl.SWAConfig(3, lr=1e-2, anneal_epochs=0)
    fields = {"max_epochs": 5, "lr": 1e-2}
    hl.train(mlp(norm=True, dropout=0.3), data(), quiet(swa=swa, **fields), callbacks=[seen])
    hl.train(mlp(norm=True, dropout=0.3), data(), quiet(**fields), callbacks=[plain])
    assert all(map(same_bits, seen.values, plain.values))


def test_sorted_rows_are_mixed_for_the_statistics() -> None:
    order = np.argsort(Y)
    whole = hl.DataModule.from_arrays(X[order] + 5 * Y[order, None], Y[order], batch_size=40)
    model = mlp(norm=True)
    hl.train(model, whole, quiet(max_epochs=2, swa=0.5, lr=1e-3))
    values = weights(model)
    hidden = (X + 5 * Y[:, None]) @ values["0.weight"].T + values["0.bias"]
    np.testing.assert_allclose(values["1.running_var"], hidden.var(0), 0.1)


def test_a_skipped_step_and_a_training_step_of_its_own() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = mlp(norm=True), nn.BatchNorm1d(6)

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any) -> Any:
            out = self.net(self.other(batch["x"]))
            bad = (batch["x"][:, :1] != X[0, 0]).cast("float32").min()
            return nn.CrossEntropyLoss()(out, batch["y"]) / bad

    seen, model = Trained(), Own()
    config = quiet(max_epochs=4, swa=0.5, on_nan="skip", lr=1e-2)
    result = hl.train(model, data(val=0.0, batch_size=24), config, callbacks=[seen])
    assert result.skipped_steps == 4
    for name, mean in mean_of(seen, ["net.0.weight"], 2).items():
        np.testing.assert_allclose(weights(model)[name], mean, 1e-6, 1e-7)
    assert weights(model)["other.num_batches_tracked"] == 5  # training_step is what runs
    np.testing.assert_allclose(weights(model)["other.running_mean"], X.mean(0), 1e-4, 1e-5)


@pytest.mark.parity
def test_as_torch_does() -> None:
    torch = take_library("torch")
    swa_utils = torch.optim.swa_utils
    model, whole = mlp(norm=True), data(val=0.0)
    theirs = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    )
    theirs.load_state_dict({k: torch.tensor(v) for k, v in model.state_dict().items()})
    theirs = theirs.double()
    fields = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05, "scheduler": "cosine"}
    swa = hl.SWAConfig(0.5, lr=0.02, anneal_epochs=2, anneal_strategy="linear")
    result = hl.train(model, whole, quiet(max_epochs=6, swa=swa, precision="64-true", **fields))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 48)
    average = swa_utils.AveragedModel(theirs)
    for epoch in range(6):
        if epoch == 3:
            schedule = swa_utils.SWALR(optimizer, 0.02, anneal_epochs=16, anneal_strategy="linear")
        for batch in whole.train_batches(epoch):
            optimizer.zero_grad()
            out = theirs(torch.tensor(batch["x"]).double())
            torch.nn.functional.cross_entropy(out, torch.tensor(batch["y"])).backward()
            optimizer.step()
            last = optimizer.param_groups[0]["lr"]
            schedule.step()
        np.testing.assert_allclose(result.history["lr"][epoch], last, 1e-6)
        if epoch >= 3:
            average.update_parameters(theirs)
    rows = whole.train_batches(0)
    swa_utils.update_bn([torch.tensor(batch["x"]).double() for batch in rows], average)
    for name, value in average.module.state_dict().items():
        np.testing.assert_allclose(weights(model)[name], value.numpy(), 1e-5, 1e-6, err_msg=name)


# ---------------------------------------------------------------------------- rates and beginnings


def test_rates() -> None:
    config = hl.TrainingConfig(max_epochs=8, lr=0.1, swa=True, scheduler="constant", warmup=0)
    steps = np.arange(60, 100)
    found = swa_rates(config, 60, 0.1, 10)(steps)
    np.testing.assert_allclose(found[[0, 5, 10, 39]], [0.1, 0.075, 0.05, 0.05])
    straight = config.replace(swa={"lr": 0.2, "anneal_epochs": 0})
    np.testing.assert_allclose(swa_rates(straight, 60, 0.1, 10)(steps), 0.2)
    assert (rates(config, StepCounts(10, 80))(steps) == 0.1).all()


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"swa": True}, 8),
        ({"swa": 0.8}, 9),
        ({"swa": {"start": 8}}, 8),
        ({"swa": 0.29, "max_epochs": 100, "max_steps": 600}, 30),
        ({"swa": 0.75, "max_epochs": 100, "max_steps": 60}, 8),
        ({"swa": 0.1, "max_epochs": 1}, 1),
    ],
)
def test_the_first_epoch(fields: dict[str, Any], first: int) -> None:
    epochs: list[int] = []

    class Epochs:
        def on_epoch_end(self, run: Any) -> None:
            epochs.append(run.averaging.first)

    config = quiet(**({"max_epochs": 10, "lr": 1e-3} | fields))
    hl.train(mlp(), data(), config, callbacks=[Epochs()])
    assert next(i for i, at in enumerate(epochs, 1) if at) == first == epochs[-1]


def test_by_time() -> None:
    import time

    class Slow:
        def on_epoch_begin(self, run: Any) -> None:
            time.sleep(0.1)

    config = quiet(max_epochs=1000, max_time=2.0, swa=True, lr=1e-2, scheduler="cosine")
    result = hl.train(mlp(), data(), config, callbacks=[Slow()])
    assert result.stop_reason == "max_time"
    assert 1 <= result._n_averaged <= result.epochs / 2
    assert result.history["lr"][-1] > 0.004


def test_the_rate_that_a_callback_sets_stays_and_a_plateau_does_not_move_it() -> None:
    class Sets:
        def on_epoch_begin(self, run: Any) -> None:
            if run.epoch == 1:
                run.set_lr(0.003)

    config = quiet(max_epochs=4, swa=0.5, lr=1e-2)
    assert hl.train(mlp(), data(), config, callbacks=[Sets()]).history["lr"][1:] == [0.003] * 3
    plateau = {"name": "plateau", "patience": 0, "factor": 0.1, "threshold": 10.0}
    swa = {"start": 0.5, "lr": 0.02, "anneal_epochs": 0}
    found = hl.train(mlp(), data(), config.replace(scheduler=plateau, swa=swa)).history["lr"]
    np.testing.assert_allclose(found, [0.01, 0.01, 0.02, 0.02])


# ---------------------------------------------------------------------------- validation, the best


def best_before(**fields: Any) -> tuple[hl.TrainResult, Trained]:
    """A run whose rate wrecks the weights in its averaged epochs."""
    seen = Trained()
    swa = {"start": 4, "lr": 5.0, "anneal_epochs": 0}
    config = quiet(**({"max_epochs": 7, "lr": 0.1, "swa": swa, "restore_best": True} | fields))
    return hl.train(mlp(norm=True), data(), config, callbacks=[seen]), seen


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_best_is_an_average(top_k: int, tmp_path: Path) -> None:
    files = {"output_dir": tmp_path, "enable_checkpointing": True, "save_top_k": top_k}
    result, seen = best_before(**files)
    losses = result.history["val_loss"]
    assert min(losses[:3]) < min(losses[3:])  # else nothing is shown
    assert result.best_epoch == 4 + int(np.argmin(losses[3:]))
    found = hl.evaluate(result, data(), split="val")["loss"]
    np.testing.assert_allclose(found, min(losses[3:]), 1e-5)
    del seen.values[int(result.best_epoch) :]
    for name, mean in mean_of(seen, ["0.weight"], int(result.best_epoch) - 3).items():
        np.testing.assert_allclose(weights(result.model)[name], mean, 1e-6, 1e-6)
    names = [path.name for path in (tmp_path / "1/checkpoints").glob("best-*")]
    assert len(names) == top_k
    assert all(name[len("best-epoch")] in "4567" for name in names)
    assert same_bits(weights(hl.load(result.best_path)), weights(result.model))


def test_files_of_before_stay_behind_when_a_run_goes_on(tmp_path: Path) -> None:
    files = {"output_dir": tmp_path, "enable_checkpointing": True, "save_top_k": 2}
    first, _ = best_before(**files, max_epochs=4)
    names = {path.name[:11] for path in (tmp_path / "1/checkpoints").glob("best-*")}
    assert "best-epoch4" in names
    assert len(names) == 2  # and one before
    again = hl.train(mlp(norm=True), data(), resume=first, max_epochs=5)
    assert again.best_epoch >= 4
    assert same_bits(weights(hl.load(again.best_path)), weights(again.model))


def test_patience_begins_anew() -> None:
    result, _ = best_before(early_stopping=3, max_epochs=12)
    losses = result.history["val_loss"]
    assert result.epochs >= 7  # the first average is the best so far; three rounds follow
    assert result.epochs == 4 + int(np.argmin(losses[3:])) + 3 or result.epochs == 12


def test_early_stopping_before_leaves_no_average(capsys: pytest.CaptureFixture[str]) -> None:
    config = hl.TrainingConfig(
        max_epochs=40, lr=2.0, swa=True, early_stopping=1, optimizer="sgd", logger=None,
        enable_checkpointing=False,
    )  # fmt: skip
    result = hl.train(mlp(), data(), config)
    assert result.stop_reason == "early_stopping"
    assert result._n_averaged == 0
    assert result.epochs < 31
    assert "stopped early, before the epochs that swa averages" in capsys.readouterr().err


def test_epochs_are_validated_at_their_ends() -> None:
    config = quiet(max_epochs=4, swa=0.5, val_check_interval=2, lr=1e-2)
    found = hl.train(mlp(norm=True), data(), config).history["epoch"]
    assert [epoch for epoch in found if epoch > 2] == [3, 4]
    assert any(epoch % 1 for epoch in found if epoch < 2)


def test_callbacks_and_checkpoints_have_the_average(tmp_path: Path) -> None:
    class Reads:
        def on_epoch_end(self, run: Any) -> None:
            self.last = weights(run.model)

    reads, seen = Reads(), Trained()
    config = quiet(
        max_epochs=4, swa=0.5, lr=1e-2, output_dir=tmp_path, enable_checkpointing=True, save_every=1
    )
    result = hl.train(mlp(norm=True), data(), config, callbacks=[reads, seen])
    assert same_bits(reads.last, weights(result.model))
    assert same_bits(weights(hl.load(result.last_path)), weights(result.model))
    tensors = hl.read_weights(result.last_path)
    trained = np.asarray(tensors["hotloop.trained.0.weight"], np.float64)
    np.testing.assert_array_equal(trained, seen.values[-1]["0.weight"])


# ---------------------------------------------------------------------------- interrupts, resuming


@pytest.mark.parametrize("place", ["statistics", "validation"])
def test_an_interrupt_after_the_last_step(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = quiet(max_epochs=4, swa=0.5, lr=1e-2, on_interrupt="return")
    whole = hl.train(mlp(norm=True, dropout=0.2), data(), config)
    collect, calls = Averaging._collect, []

    def interrupt(self: Averaging, is_over: Any) -> bool:
        calls.append(place)
        done = place == "validation" and collect(self, is_over)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return done or collect(self, is_over)

    with monkeypatch.context() as patch:
        patch.setattr(Averaging, "_collect", interrupt)
        cut = hl.train(mlp(norm=True, dropout=0.2), data(), config)
    assert (cut.stop_reason, cut.epochs) == ("interrupted", 3)
    assert cut._n_averaged == (1 if place == "statistics" else 2)
    again = hl.train(mlp(norm=True, dropout=0.2), data(), config, resume=cut)
    assert same_bits(weights(again.model), weights(whole.model))
    assert again.history["val_loss"] == whole.history["val_loss"]


def test_an_epoch_cut_by_max_steps_counts_and_goes_on(tmp_path: Path) -> None:
    fields = {"max_epochs": 4, "swa": {"start": 2}, "lr": 1e-2, "enable_checkpointing": True}
    whole = hl.train(mlp(norm=True), data(), quiet(**fields, output_dir=tmp_path / "whole"))
    cut = quiet(**fields, max_steps=15, output_dir=tmp_path / "cut")
    first = hl.train(mlp(norm=True), data(), cut)
    assert (first.epochs, first._n_averaged) == (3, 2)
    again = hl.train(
        mlp(norm=True), data(), resume=True, max_steps=None, output_dir=tmp_path / "cut"
    )
    assert again._n_averaged == 3
    assert same_bits(weights(again.model), weights(whole.model))


# ---------------------------------------------------------------------------- the configuration


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^swa: excludes ema, .*; keep one$"):
        hl.TrainingConfig(swa=True, ema=True)
    with pytest.raises(ConfigError, match=r"^swa\.start: must be an epoch of the training, got 11"):
        hl.TrainingConfig(swa={"start": 11}, max_epochs=10)
    with pytest.raises(ConfigError, match=r"^swa: is the loop's"):
        hl.stepper(mlp(), quiet(swa=True), data())
    result = hl.train(mlp(), data(), quiet(max_epochs=2, swa=0.5, lr=1e-2))
    with pytest.raises(ConfigError, match=r"resume: .* swa "):
        hl.train(mlp(), data(), quiet(max_epochs=4, swa=0.6, lr=1e-2), resume=result)


def test_a_file_has_it() -> None:
    config = hl.TrainingConfig(swa=hl.SWAConfig(0.8, lr=0.01, anneal_epochs=2))
    assert hl.TrainingConfig.from_toml(config.to_toml()) == config


def test_the_plan_and_the_limit_count_it() -> None:
    plain = hl.train(mlp(norm=True), data(), quiet(max_epochs=2, lr=1e-2))
    result = hl.train(mlp(norm=True), data(), quiet(max_epochs=2, lr=1e-2, swa=0.5))
    assert result.predicted_peak_bytes > plain.predicted_peak_bytes
    assert result.peak_bytes <= result.predicted_peak_bytes
    limited = quiet(max_epochs=2, lr=1e-2, swa=0.5, memory_limit="1 GB")
    assert same_bits(weights(hl.train(mlp(norm=True), data(), limited).model),
                     weights(result.model))  # fmt: skip


def test_a_stop_after_the_last_step_of_an_epoch_leaves_its_average() -> None:
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.step == 18 and run.stop())
    config = quiet(max_epochs=4, swa=0.5, lr=1e-2, restore_best=True)  # 6 steps in an epoch
    result = hl.train(mlp(), data(), config, callbacks=[stop])
    assert (result.stop_reason, result.epochs, result._n_averaged) == ("interrupted", 3, 1)
    assert (result.history["epoch"], result.best_epoch) == ([1, 2, 3], 3)
    found = hl.evaluate(result, data(), split="val")["loss"]
    np.testing.assert_allclose(result.history["val_loss"][-1], found, 1e-5)


@pytest.mark.filterwarnings("error::hotloop.errors.NotFiniteWarning")
def test_an_average_that_was_not_validated_is_no_value_that_is_not_finite() -> None:
    """What was judged before it is forgotten."""
    config = quiet(max_epochs=5, swa=True, check_val_every_n_epoch=3, restore_best=True)
    result = hl.train(mlp(), data(), config)
    assert (result.best_epoch, result._n_averaged) == (None, 2)
