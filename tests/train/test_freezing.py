"""What is trained in some epochs alone: `freeze` and `unfreeze` with a number of epochs.

A run with phases has the bits of fits that go on from one another, each with the patterns of its
phase, and of any checkpoint of it; tests/parity compares it with torch.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.run.planner import Planner
from hotloop.training.run.records import Records
from train.recipes import classes, mlp, quiet, same_bits, weights
from train.test_resume import Net, StopAt, assert_same, data_of, final

DATA = classes(n=120)


def net() -> nn.Module:
    return mlp(norm=True, dropout=0.2)


def data(**options: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(*DATA, **({"val": 0.2, "batch_size": 8} | options))


def config_of(**fields: Any) -> hl.TrainingConfig:
    return quiet(**({"max_epochs": 4, "lr": 1e-2} | fields))


class Watching:
    """What is trained at the beginnings and ends of epochs, and the weights there."""

    def __init__(self) -> None:
        self.trained: list[list[str]] = []
        self.weights: list[dict[str, Any]] = []

    def on_epoch_begin(self, run: Any) -> None:
        self.trained.append([slot.name for slot in run.runtime.layout.trainable])

    def on_epoch_end(self, run: Any) -> None:
        self.weights.append(weights(run.model))


# ---- which epochs


def test_each_pattern_holds_for_its_epochs() -> None:
    watching = Watching()
    model = net()
    before = weights(model)
    config = config_of(freeze={"0": 2, "1.bias": 1, "4": True}, unfreeze="4.bias")
    hl.train(model, data(), config, callbacks=[watching])
    common = ["1.weight", "4.bias"]
    assert [set(names) for names in watching.trained] == [
        {*common},
        {*common, "1.bias"},
        {*common, "1.bias", "0.weight", "0.bias"},
        {*common, "1.bias", "0.weight", "0.bias"},
    ]
    at = [before, *watching.weights]
    for name, first in {
        "0.weight": 3,
        "0.bias": 3,
        "1.bias": 2,
        "4.bias": 1,
        "4.weight": 9,
    }.items():
        moved = [bool((at[i][name] != at[i + 1][name]).any()) for i in range(4)]
        assert moved == [epoch >= first for epoch in range(1, 5)], name


def test_an_exception_ends() -> None:
    watching = Watching()
    hl.train(net(), data(), config_of(freeze="4", unfreeze={"4": 3}), callbacks=[watching])
    assert ["4.weight" in names for names in watching.trained] == [True, True, True, False]


def test_frozen_batch_norm_moves_its_statistics() -> None:
    watching = Watching()
    config = config_of(freeze={"1": 2, "0": 2})
    model = net()
    hl.train(model, data(), config, callbacks=[watching])
    means = [at["1.running_mean"] for at in watching.weights]
    assert all((a != b).any() for a, b in itertools.pairwise(means))
    always = Watching()
    hl.train(net(), data(), config_of(freeze=["1", "0"]), callbacks=[always])
    assert same_bits(watching.weights[1], always.weights[1])


# ---- the same as several fits

FITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "restore_best": True},
    "ema": {"ema": 0.9, "restore_best": True, "save_top_k": 0},
    "swa": {"swa": {"start": 2, "lr": 5e-3}},
    "accumulate": {"accumulate_grad_batches": 5, "layer_decay": 0.7, "early_stopping": 9},
    "groups": {"param_groups": [{"params": "0", "lr_scale": 0.1}], "on_nan": "skip"},
    "plateau": {"scheduler": {"name": "plateau", "patience": 0, "factor": 0.5}},
    "within": {"val_check_interval": 4, "restore_best": True},
    "bf16": {"precision": "bf16-mixed", "label_smoothing": 0.1},
    "float64": {"precision": "64-true"},
    "cosine": {"scheduler": "cosine", "warmup": 4, "gradient_clip_val": 0.5, "mixup": 0.2},
}


@pytest.mark.parametrize("name", FITS)
def test_the_same_as_two_fits(name: str) -> None:
    config = config_of(max_epochs=5, metrics=["accuracy"], **FITS[name])
    whole = hl.train(net(), data(), config.replace(freeze={"0": 2, "1": 2}))
    first = hl.train(net(), data(), config.replace(freeze=["0", "1"]), callbacks=[StopAt(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hl.CheckpointWarning)
        second = hl.train(
            net(), data(), config.replace(resume_strict=False), resume=first, callbacks=[]
        )
    assert (whole.epochs, whole.steps) == (second.epochs, second.steps)
    assert whole.epochs > 2
    assert_same(final(whole), final(second))


def test_best_weights_of_an_earlier_phase() -> None:
    """The best epoch is one of the first phase: later ones are made bad by their rate."""

    class Spoil:
        def on_epoch_begin(self, run: Any) -> None:
            if run.epoch == 2:
                run.set_lr(3.0)

    watching = Watching()
    config = config_of(freeze={"0": 2}, restore_best=True, optimizer="sgd")
    result = hl.train(net(), data(), config, callbacks=[watching, Spoil()])
    assert result.best_epoch == 2
    assert same_bits(weights(result.model), watching.weights[1])


def test_the_average_of_swa_is_of_all_its_epochs() -> None:
    """Of what rests in some of them too."""
    ends: list[dict[str, Any]] = []

    class Look:
        def on_epoch_end(self, run: Any) -> None:
            slots = run.runtime.layout.slots
            found = {slot.name: run.runtime.session.read("param", "float64", slot.offset, slot.size)
                     for slot in slots if slot.store == "param"}  # fmt: skip
            ends.append(found)

    config = config_of(max_epochs=6, swa={"start": 2, "lr": 1e-2}, precision="64-true")
    fields = {"freeze": {"4": 2, "0": 5}, "unfreeze": {"0": 3}}
    result = hl.train(net(), data(), config, callbacks=[Look()], **fields)
    for name in ("0.weight", "4.weight"):
        mean = np.mean([end[name] for end in ends[1:]], axis=0)
        found = result.model.state_dict()[name].ravel()
        np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("ema", [False, 0.9])
def test_a_callback_sees_the_weights_at_the_boundary(ema: Any) -> None:
    """What the next phase begins with is what the last one ended with, averaged or not."""
    seen: list[dict[str, Any]] = []

    class Look:
        def on_epoch_begin(self, run: Any) -> None:
            seen.append(weights(run.model))

        def on_epoch_end(self, run: Any) -> None:
            seen.append(weights(run.model))

    hl.train(net(), data(), config_of(freeze={"0": 2}, ema=ema), callbacks=[Look()])
    for end, begin in zip(seen[1:-1:2], seen[2::2], strict=True):
        assert same_bits(end, begin)


def test_the_loss_scale_and_skipped_steps_go_on() -> None:
    X, y = DATA
    X = X.copy()
    X[5, 0] = np.inf
    broken = hl.DataModule.from_arrays(X, y, batch_size=8, allow_nonfinite=True)
    config = config_of(freeze={"0": 2}, on_nan="skip")
    with pytest.warns(hl.errors.NotFiniteWarning):
        result = hl.train(net(), broken, config)
    assert (result.steps, result.skipped_steps) == (4 * 14, 4)
    assert result.not_finite


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_threads_make(workers: int) -> None:
    """Feeds of the first phase end with it, and those of the second have the same order."""
    rows = data(num_workers=workers).map(lambda x, y: (x * np.float32(2), y))
    config = config_of(freeze={"0": 2})
    streamed = hl.train(net(), rows, config)
    X, y = DATA
    plain = hl.train(net(), hl.DataModule.from_arrays(X * 2, y, val=0.2, batch_size=8), config)
    assert same_bits(weights(streamed.model), weights(plain.model))


@pytest.mark.parametrize("logger", ["csv", "jsonl"])
def test_every_step_is_logged_once(logger: str, tmp_path: Path) -> None:
    fields = {"logger": logger, "log_every_n_steps": 1, "output_dir": tmp_path}
    result = hl.train(net(), data(), config_of(freeze={"0": 2, "1": 3}, **fields))
    if logger == "csv":
        rows = (tmp_path / "1/steps.csv").read_text().splitlines()[1:]
        steps = [int(row.partition(",")[0]) for row in rows]
    else:
        lines = map(json.loads, (tmp_path / "1/metrics.jsonl").read_text().splitlines())
        steps = [line["step"] for line in lines if "train/loss_step" in line]
    assert steps == list(range(1, result.steps + 1))


def test_detecting_anomalies_changes_no_bit() -> None:
    config = config_of(freeze={"0": 2})
    plain, detecting = (
        hl.train(net(), data(), config.replace(detect_anomaly=on)) for on in (False, True)
    )
    assert_same(final(detecting), final(plain))


# ---- going on


@pytest.mark.parametrize("epoch", range(1, 6))
def test_going_on_from_the_end_of_an_epoch(epoch: int, tmp_path: Path) -> None:
    """The boundary lies behind epoch 2: what rests from epoch 2 to 4 has its moments in files."""
    fields = {"freeze": {"norm": 2, "head": 4}, "unfreeze": {"head": 1}}
    config = config_of(max_epochs=6, ema=True, restore_best=True, **fields)
    wanted = final(hl.train(Net(), data_of(), config))
    saved = config.replace(output_dir=tmp_path, enable_checkpointing=True)
    first = hl.train(Net(), data_of(), saved, callbacks=[StopAt(epoch)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hl.CheckpointWarning)
        second = hl.train(Net(), data_of(), resume=first.last_path)
    assert_same(final(second), wanted)


def test_more_epochs_reach_the_next_phase(tmp_path: Path) -> None:
    config = config_of(freeze={"0": 3}, output_dir=tmp_path, enable_checkpointing=True)
    first = hl.train(net(), data(), config.replace(max_epochs=3))
    longer = hl.train(net(), data(), resume=first, max_epochs=5)
    whole = hl.train(net(), data(), config.replace(max_epochs=5, output_dir=None))
    assert_same(final(longer), final(whole))


@pytest.mark.parametrize("epoch", [1, 2])
def test_only_what_joins_may_lack_its_moments(epoch: int) -> None:
    config = config_of(freeze={"0": 2})
    first = hl.train(net(), data(), config, callbacks=[StopAt(epoch)])
    del first._state.tensors["hotloop.optimizer.1.4.weight"]
    with pytest.raises(hl.CheckpointError, match=r"lacks hotloop\.optimizer\.1\.4\.weight;"):
        hl.train(net(), data(), config, resume=first)


def test_other_phases_are_other_settings(tmp_path: Path) -> None:
    config = config_of(freeze={"0": 3}, output_dir=tmp_path, enable_checkpointing=True)
    first = hl.train(net(), data(), config, callbacks=[StopAt(1)])
    with pytest.raises(hl.ConfigError, match=r"other settings, got freeze"):
        hl.train(net(), data(), config.replace(freeze={"0": 2}), resume=first)


KILLED = """
import os, signal, sys
import hotloop as hl
from hotloop import nn
from hotloop.training.run.planner import Planner
from hotloop.training.run.records import Records
from train.test_freezing import config_of, data, net

folder, when = sys.argv[1:]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def dying(method):
    def run(self, *args):
        if when == "before": die()
        method(self, *args)
        die()
    return run
if when == "after":
    Records.begin_phase = dying(Records.begin_phase)
else:
    Planner.begin_phase = dying(Planner.begin_phase)
hl.manual_seed(0)
hl.train(net(), data(), config_of(freeze={"0": 2}, ema=True, output_dir=folder,
                                  enable_checkpointing=True, save_every="3 steps"))
"""


@pytest.mark.parametrize("when", ["before", "planned", "after"])
def test_a_kill_between_two_phases(when: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "runs")
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{KILLED}"]
    ended = subprocess.run([*command, folder, when], capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr.decode()
    hl.manual_seed(0)  # which fixtures of other files may have set
    result = hl.train(net(), data(), resume=folder)
    config = config_of(freeze={"0": 2}, ema=True)
    assert_same(final(result), final(hl.train(net(), data(), config)))


def test_a_phase_that_cannot_be_planned_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised, the model is left alone, and the run goes on from its last epoch."""
    plan = Planner._plan_phase

    def fail(self: Planner, phase: int, watch: Any) -> None:
        if self._snapshot is not None:
            raise hl.OutOfMemoryError("out of memory: another program has it")
        plan(self, phase, watch)

    monkeypatch.setattr(Planner, "_plan_phase", fail)
    config = config_of(freeze={"0": 2}, output_dir=tmp_path, enable_checkpointing=True)
    model = net()
    before = weights(model)
    with pytest.raises(hl.OutOfMemoryError, match="another program has it"):
        hl.train(model, data(), config)
    assert same_bits(weights(model), before)
    monkeypatch.undo()
    result = hl.train(net(), data(), resume=tmp_path)
    whole = hl.train(net(), data(), config.replace(output_dir=None))
    assert_same(final(result), final(whole))
    assert hl.load(result.last_path).predict(DATA[0]).shape == (120, 3)


def test_ctrl_c_between_two_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Records.begin_phase

    def press(self: Records, snapshot: Any) -> None:
        begin(self, snapshot)
        self._run._interrupts.count += 1

    monkeypatch.setattr(Records, "begin_phase", press)
    config = config_of(freeze={"0": 2}, on_interrupt="return")
    first = hl.train(net(), data(), config)
    assert first.stop_reason == "interrupted"
    assert first.epochs == 2
    monkeypatch.undo()
    second = hl.train(net(), data(), config, resume=first)
    assert_same(final(second), final(hl.train(net(), data(), config)))


# ---- memory


@pytest.mark.parametrize(
    "fields",
    [{"freeze": {"0": 2}}, {"freeze": "0", "unfreeze": {"0": 2}},
     {"freeze": {"0": 3}, "unfreeze": {"0": 1}, "ema": True, "restore_best": True}],
    ids=["later", "no longer", "again"],
)  # fmt: skip
def test_the_peak_is_known(fields: dict[str, Any]) -> None:
    big = nn.Sequential(nn.Linear(6, 3000), nn.ReLU(), nn.Linear(3000, 3))
    result = hl.train(big, data(), config_of(precision="32-true", **fields))
    assert result.peak_bytes <= result.predicted_peak_bytes
    assert result.peak_bytes > 0.9 * result.predicted_peak_bytes


def test_a_phase_begins_with_the_memory_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans, graphs and all else of the phase before are gone when the next one is planned."""
    held: list[int] = []
    plan = Planner._plan_phase

    def note(self: Planner, phase: int, watch: Any) -> None:
        held.append(_core.alloc_stats()["current_bytes"])
        plan(self, phase, watch)

    monkeypatch.setattr(Planner, "_plan_phase", note)
    hl.train(net(), data(), config_of(freeze={"0": 1, "1": 2}, ema=True))
    assert len(held) == 5  # three ahead, and two where they begin
    assert max(held) - held[0] < 2000


def test_a_limit_holds_for_each_phase() -> None:
    """All of it is trained in the second phase, which does not fit: known before the first."""
    big = nn.Sequential(nn.Linear(6, 30000), nn.ReLU(), nn.Linear(30000, 3))
    plain = hl.train(big, data(), config_of(max_epochs=1, freeze="0"))
    limit = plain.predicted_peak_bytes + 300_000
    small = config_of(memory_limit=limit, on_oom="raise")
    assert hl.train(big, data(), small.replace(max_epochs=1, freeze="0")).epochs == 1
    before, watching = weights(big), Watching()
    with pytest.raises(hl.OutOfMemoryError, match="memory_limit: out of memory"):
        hl.train(big, data(), small.replace(freeze={"0": 2}), callbacks=[watching])
    assert not watching.trained
    assert same_bits(weights(big), before)


def test_micro_batches_of_the_phase_that_needs_them() -> None:
    """With the wide layer's gradients there is no room for a whole batch."""
    sizes: list[int] = []

    class Look:
        def on_epoch_begin(self, run: Any) -> None:
            sizes.append(run.train_plans[0][1])

    rows = hl.DataModule.from_arrays(*classes(n=4096), batch_size=1024)

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4000), nn.Tanh(), nn.Linear(4000, 4), nn.Linear(4, 3))

    config = config_of(precision="32-true", recompute=False, lr=1e-3)
    plain = hl.train(wide(), rows, config.replace(freeze={"0": 2}))
    frozen = hl.train(wide(), rows, config.replace(freeze="0"))
    limit = (plain.predicted_peak_bytes + frozen.predicted_peak_bytes) // 2
    config = config.replace(freeze={"0": 2}, memory_limit=limit)
    result = hl.train(wide(), rows, config, callbacks=[Look()])
    assert sizes[:2] == [1024, 1024]
    assert sizes[2] == sizes[3] < 1024
    assert result.peak_bytes <= limit
    for name, value in plain.model.state_dict().items():
        np.testing.assert_allclose(result.model.state_dict()[name], value, rtol=2e-3, atol=2e-4)


def test_the_plan_is_that_of_the_largest_phase() -> None:
    config = config_of(max_epochs=9)
    for fields, epoch in (({"freeze": {"0": 2}}, 3), ({"freeze": "0", "unfreeze": {"0": 2}}, 1)):
        report = hl.plan(net(), data(), config, **fields)
        assert report.info["store_bytes"] == hl.plan(net(), data(), config).info["store_bytes"]
        assert report.info["epoch"] == epoch
        assert f"epochs: from {epoch} on" in str(report)
    assert "epochs:" not in str(hl.plan(net(), data(), config, freeze="0"))


# ---- what is said


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(enable_progress_bar=True, freeze={"0": 2, "1": 3})
    hl.train(net(), data(), config)
    said = " ".join(capsys.readouterr().err.split())
    assert "trained 51 parameters, 163 from epoch 3 on, 195 from epoch 4 on |" in said
    assert said.count("trained from now on") == 2
    assert "hotloop: epoch 3: 163 parameters trained from now on" in said


def test_groups_of_what_is_trained_later(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [{"params": "0", "lr_scale": 0.1}]
    config = config_of(enable_progress_bar=True, freeze={"0": 2}, param_groups=groups)
    hl.train(net(), data(), config)
    assert "groups 0: lr 0.001 (2 tensors)" in " ".join(capsys.readouterr().err.split())


def test_warnings_come_once() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
            self.spare = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x).relu())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hl.train(Unused(), data(), config_of(freeze={"a": 2}))
    assert len([one for one in caught if "get no gradient" in str(one.message)]) == 1


def test_more_epochs_than_there_are_warn() -> None:
    with pytest.warns(hl.ModelWarning, match=r"freeze: '0' holds for 9 epochs, got max_epochs=4"):
        hl.train(net(), data(), config_of(freeze={"0": 9}))


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"freeze": {"0": 0}}, r"freeze\['0'\]: must be at least 1, got 0; write the number of ep"),
        ({"freeze": {"0": 1.5}}, r"freeze\['0'\]: a whole number is needed, got 1.5"),
        ({"freeze": {"0": False}}, r"freeze\['0'\]: a whole number is needed, got False"),
        ({"freeze": {"0": "5"}}, r"freeze\['0'\]: a whole number is needed, not a string, got '5'"),
        ({"unfreeze": {"0": None}}, r"unfreeze\['0'\]: a whole number is needed, got None"),
        ({"freeze": {}}, "freeze: must hold at least one pattern, got {}; write freeze=None"),
        ({"freeze": {3: 1}}, "freeze: "),
    ],
)  # fmt: skip
def test_settings_that_are_none(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(hl.ConfigError, match=words):
        config_of(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"freeze": {"5": 2}}, r"freeze: must match a parameter of the model, got '5'; it has \w+"),
        ({"freeze": {"*": 2}}, "freeze: must leave a parameter to be trained in each epoch, got"),
        (
            {"freeze": "*", "unfreeze": {"0": 2}},
            "freeze: must leave a parameter to be trained in each epoch, got none from epoch 3 on",
        ),
        (
            {"freeze": {"0": 2, "0.weight": 1}},
            "freeze: must change what is trained where it ends, got '0.weight' for 1 epoch",
        ),
        (
            {"freeze": {"0": 2}, "unfreeze": {"0": 3}},
            "freeze: must change what is trained where it ends, got '0' for 2 epochs",
        ),
        (
            {"freeze": {"0": 2}, "unfreeze": {"0": 2}},
            "freeze: must change what is trained where it ends, got '0' for 2 epochs",
        ),
        (
            {"unfreeze": {"0": 2}},
            "unfreeze: must change what is trained where it ends, got '0' for 2 epochs",
        ),
    ],
)
def test_patterns_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    model = net()
    before = weights(model)
    for call in (hl.train, hl.plan):
        with pytest.raises(hl.ConfigError, match=words):
            call(model, data(), config_of(**fields))
    assert same_bits(weights(model), before)


def test_what_requires_no_grad_stays_frozen() -> None:
    model = net()
    model[0].requires_grad_(False)
    with pytest.raises(hl.ConfigError, match="by another pattern or requires_grad"):
        hl.train(model, data(), config_of(freeze={"0": 2}))


def test_a_stepper_knows_no_epochs() -> None:
    for fields in ({"freeze": {"0": 2}}, {"freeze": "0", "unfreeze": {"0": 2}}):
        with pytest.raises(hl.ConfigError, match=r"freeze: may hold for a number of epochs in tra"):
            hl.stepper(net(), config_of(**fields), data())
    step = hl.stepper(net(), config_of(freeze={"0": True}), data())
    assert {slot.name for slot in step._runtime.layout.trainable}.isdisjoint({"0.weight"})


def test_the_canonical_form() -> None:
    config = config_of(freeze={"a": 5, "b": np.int64(2), "c": True})
    assert config.freeze == {"a": 5, "b": 2, "c": True}
    assert hl.TrainingConfig.from_toml(config.to_toml()) == config
    assert "[freeze]" in config.to_toml()
    assert "c = true" in config.to_toml()
    both = config.replace(freeze={"a": True, "b": np.True_})
    assert both == config.replace(freeze=["a", "b"])
    assert hash(config) != hash(config.replace(freeze={"a": 5}))
