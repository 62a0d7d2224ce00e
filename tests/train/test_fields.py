"""Every field of TrainingConfig changes something (the plan, what is shown or written, the result),
or is refused by name; the stepper's as well."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from hotloop import nn
from hotloop.training.scoring.names import MEASURED
from train.recipes import classes, mlp

X, Y = classes(120)
BASE = {
    "max_epochs": 3,
    "lr": 1e-2,
    "precision": "32-true",
    "enable_progress_bar": True,
    "enable_model_summary": True,
    "logger": "csv",
    "accelerator": "cpu",
}


class Recorder:
    """A callback that notes what a run is made of."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_train_begin(self, run: Any) -> None:
        runtime = run.runtime
        self.log.append(runtime._plan_options(runtime.compute_dtype))
        self.log.append(sorted(slot.name for slot in runtime.layout.trainable))
        self.log.append([(size, count) for _, size, count in run.train_plans])

    def on_epoch_end(self, run: Any) -> None:
        self.log.append("epoch")


class Interrupting:
    def on_epoch_end(self, run: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)


class NotFinite(nn.Module):
    """Its loss is not finite for one batch of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Any) -> Any:
        return self.inner(x) / (x[:, :1] != 77.0).cast("float32").min()


def poisoned() -> Any:
    X_bad = X.copy()
    X_bad[3, 0] = 77.0
    return X_bad


class HiddenNaN(nn.Module):
    """It makes a NaN of which nothing comes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Any) -> Any:
        return hl.where(x[:, :1] > -1e9, self.net(x), hl.log(-1 - x[:, :1] ** 2))


# Field: a value, and what else must be set for it to show.
FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "max_epochs": (2, {}),
    "max_steps": (4, {}),
    "max_time": (1e-9, {}),
    "optimizer": ("sgd", {}),
    "lr": (1e-3, {}),
    "weight_decay": (0.5, {}),
    "decay_norm_and_bias": (True, {"weight_decay": 0.5}),
    "momentum": (0.9, {"optimizer": "sgd"}),
    "betas": ((0.5, 0.9), {}),
    "scheduler": ("constant", {}),
    "warmup": (5, {}),
    "loss": ("focal", {}),
    "metrics": ("f1", {}),
    "train_metrics": (True, {}),
    "label_smoothing": (0.3, {}),
    "mixup": (0.2, {}),
    "cutmix": (1.0, {}),
    "class_weight": ((1.0, 2.0, 3.0), {}),
    "accelerator": ("gpu", {}),
    "devices": ((3,), {}),
    "strategy": ("ddp", {}),
    "precision": ("bf16-mixed", {}),
    "benchmark": (False, {}),
    "deterministic": (True, {}),
    "seed": (7, {"_model": lambda: mlp(dropout=0.3)}),
    "cuda_graph": (True, {}),
    "device_cache": (True, {}),
    "accumulate_grad_batches": (2, {}),
    "gradient_clip_val": (1e-3, {"optimizer": "sgd"}),
    "gradient_clip_algorithm": ("value", {"optimizer": "sgd", "gradient_clip_val": 1e-3}),
    "param_groups": ([{"params": "0", "lr_scale": 0.1}], {}),
    "layer_decay": (0.5, {}),
    "freeze": ("0", {}),
    "unfreeze": ("0.bias", {"freeze": "0"}),
    "recompute": (True, {}),
    "memory_limit": ("20 kB", {}),
    "on_oom": ("raise", {"_memory": True}),
    "on_nan": ("skip", {"_model": NotFinite}),
    "on_interrupt": ("return", {"callbacks": (Interrupting(),)}),
    "detect_anomaly": (True, {"_model": HiddenNaN}),
    "ema": (True, {}),
    "swa": (True, {}),
    "early_stopping": (1, {"mode": "max"}),
    "monitor": ("loss", {}),
    "mode": ("max", {}),
    "restore_best": (False, {"mode": "max"}),
    "output_dir": ("elsewhere", {}),
    "save_top_k": (3, {"output_dir": "here"}),
    "save_last": (False, {"output_dir": "here"}),
    "save_every": (1, {}),
    "max_disk": ("1kB", {"output_dir": "here"}),
    "resume_strict": (False, {"_resume": True}),
    "check_val_every_n_epoch": (2, {}),
    "val_check_interval": (0.5, {}),
    "log_every_n_steps": (2, {}),
    "limit_batches": (1, {}),
    "overfit_batches": (1, {}),
    "logger": (None, {}),
    "enable_progress_bar": (False, {}),
    "verbose": ("lines", {}),
    "enable_checkpointing": (False, {"output_dir": "here"}),
    "enable_model_summary": (False, {}),
    "callbacks": ((Interrupting(),), {}),
}


def observe(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> Any:
    """All that a run does and shows, apart from its configuration and its times."""
    folder.mkdir()
    os.chdir(folder)
    model = fields.pop("_model", mlp)()
    inputs = poisoned() if isinstance(model, NotFinite) else X
    if fields.pop("_memory", False):
        short_of_memory(monkeypatch)
    log: list[Any] = []
    recorder = Recorder(log)
    data = hl.DataModule.from_arrays(inputs, Y, val=0.2, batch_size=16)
    fields["callbacks"] = (recorder, *fields.get("callbacks", ()))
    of = None
    if fields.pop("_resume", False):
        of = hl.train(mlp(), data, max_epochs=1, lr=1e-5, enable_progress_bar=False)
    capsys.readouterr()
    try:
        result = hl.train(model, data, hl.TrainingConfig(**fields), resume=of)
    except (hl.HotloopError, KeyboardInterrupt) as error:
        return type(error).__name__, str(error)
    finally:
        monkeypatch.undo()
    return {
        "log": log,
        "weights": {k: v.tobytes() for k, v in model.state_dict().items()},
        "history": {k: list(v) for k, v in result.history.items() if k not in MEASURED},
        "result": (result.epochs, result.steps, result.skipped_steps, result.stop_reason),
        "monitor": (result.monitor, result.best_epoch),
        "files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*")),
        "is_shown": shown(capsys.readouterr().err),
    }


def shown(text: str) -> set[str]:
    """Whether header, epochs and the model's layers are shown."""
    return {word for word in ("Using device", "hotloop:", "epoch 1/", "Linear") if word in text}


def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of whole batches does not fit."""
    from hotloop.training.plans.runtime import Runtime

    make = Runtime.plan

    def plan(self: Any, graph: Any, split: Any = None, feed: Any = None, **options: Any) -> Any:
        if options.get("k") == 1:
            raise hl.OutOfMemoryError("out of memory")
        return make(self, graph, split, feed, **options)

    monkeypatch.setattr(Runtime, "plan", plan)


@pytest.fixture
def back() -> Any:
    """Goes back to the folder of before."""
    here = os.getcwd()
    yield
    os.chdir(here)


def test_every_field_is_here() -> None:
    assert list(FIELDS) == [field.name for field in dataclasses.fields(hl.TrainingConfig)]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_counts_or_is_refused(field, tmp_path, capsys, monkeypatch, back) -> None:
    value, needed = FIELDS[field]
    before = observe(tmp_path / "before", capsys, monkeypatch, **(BASE | needed))
    after = observe(tmp_path / "after", capsys, monkeypatch, **(BASE | needed | {field: value}))
    assert isinstance(before, dict) or field in ("on_interrupt", "resume_strict"), before
    assert before != after
    if isinstance(after, tuple) and field not in ("on_oom", "callbacks", "detect_anomaly"):
        assert after[1].startswith(f"{field}: "), after


# Values that a stepper honours by doing what it does: it shows and writes nothing, the weights are
# the last, and memory that is short raises.
HONOURED_BY_NATURE = {
    *("restore_best", "enable_progress_bar", "enable_model_summary", "logger", "on_oom"),
    "enable_checkpointing",
}


def observe_stepper(**fields: Any) -> Any:
    """All that a stepper does, or its error."""
    model = fields.pop("_model", mlp)()
    inputs = poisoned() if isinstance(model, NotFinite) else X
    fields.pop("_memory", None)
    fields.pop("_resume", None)
    data = hl.DataModule.from_arrays(inputs, Y, val=0.2, batch_size=16)
    try:
        step = hl.stepper(model, hl.TrainingConfig(**fields), data)
        done = [step.step(batch) for epoch in range(3) for batch in data.train_batches(epoch)]
    except hl.HotloopError as error:
        return type(error).__name__, str(error)
    runtime = step._runtime
    scores = step.evaluate("val")
    state = {k: repr(v) for k, v in step.state_dict().items()}
    return runtime._plan_options(runtime.compute_dtype), repr(done), scores, state


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_counts_in_a_stepper_or_is_refused(field) -> None:
    value, needed = FIELDS[field]
    needed = {k: v for k, v in needed.items() if k not in ("mode", "callbacks", "output_dir")}
    if field in ("early_stopping", "mode", "callbacks", "monitor"):
        needed = {}
    base = BASE | {"logger": "auto", "enable_progress_bar": "auto"} | needed
    before, after = observe_stepper(**base), observe_stepper(**(base | {field: value}))
    assert (field in HONOURED_BY_NATURE) == (before == after)
    is_refused = isinstance(after[1], str) and isinstance(after[0], str)
    if is_refused and field not in ("on_nan", "detect_anomaly"):
        assert after[1].startswith(f"{field}: "), after
