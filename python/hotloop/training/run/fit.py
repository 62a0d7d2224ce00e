"""``train``: checks what it is given, has it planned and run, and says how it ended."""

from __future__ import annotations

import functools
import time
from typing import Any

from hotloop import _core
from hotloop.base.messages import counted, format_seconds, show, warn
from hotloop.base.rules import items
from hotloop.data.shorthand import as_datamodule
from hotloop.errors import (
    ConfigError,
    DataWarning,
    NotFiniteWarning,
    TrainingInterrupted,
)
from hotloop.nn.module import Module
from hotloop.nn.parameter import hold, release
from hotloop.training.checkpoints.resuming import (
    Resumed,
    adopt,
    chosen_then,
    find,
    staying,
    with_own_state,
)
from hotloop.training.config import TrainingConfig
from hotloop.training.loggers.loggers import check_loggers
from hotloop.training.plans.accelerator import losing_device, take_autotune_cache
from hotloop.training.plans.fitted import check_model, exclusive, set_metadata
from hotloop.training.plans.methods import check_callbacks
from hotloop.training.plans.precision import wants_scale
from hotloop.training.plans.steps import metadata_of
from hotloop.training.result.history import History
from hotloop.training.result.result import TrainResult
from hotloop.training.run.header import describe_fitted
from hotloop.training.run.loop import TIMINGS, Run
from hotloop.training.run.planner import Planner
from hotloop.training.run.signals import Interrupts, end_as_interrupted, is_interactive
from hotloop.training.run.watch import Stopped, Watch
from hotloop.training.scoring.losses import loss_modules

_MUCH_WAITING = 0.1  # share of training's time
_LONG_WAIT = 1.0  # seconds

__all__ = ["train"]


def train(
    model: Module | None = None,
    datamodule: Any = None,
    training_config: TrainingConfig | None = None,
    *,
    resume: Any = None,
    callbacks: tuple[Any, ...] = (),
    **overrides: Any,
) -> TrainResult:
    """Trains a model.

    Parameters
    ----------
    model : Module
        Trained in place: it has the new weights when this returns. A model that was trained
        before goes on from its weights; ``model.reset()`` starts over. Where it defines
        ``training_step(self, batch)``, that makes the loss: a tensor, or a dict. Of a dict with
        the key "loss" that one is trained and the others, which may be any numbers, are logged;
        of one without it all are losses, which are summed and logged by name. ``batch`` has "x",
        as ``forward`` takes it, "y" and, with sample weights, "weight", by name or by position.
    datamodule : DataModule, or a tuple (X, y)
        What to train on. Of a tuple with 50 rows or more, a fifth validates. Several targets are a
        dict or tuple as y, with an output of forward for each.
    training_config : TrainingConfig, optional
        How. Without it, the defaults.
    resume : True, "auto", path or TrainResult, optional
        Goes on with an earlier run as if it had never stopped, in the middle of an epoch too: True
        with the latest one in ``output_dir``; "auto" likewise, or begins one where there is none;
        a path with that of a checkpoint or of a run's folder. Without a configuration it is that
        of the run. What decides how a step computes, and the data, must be as they were
        (``resume_strict=False`` allows others); ``max_epochs``, loggers and the device may differ.
    callbacks : sequence
        Beside those of the configuration, each called once. Objects with any of the methods
        ``on_train_begin(run)``, ``on_epoch_begin(run)``,
        ``on_train_batch_end(run)``, ``on_validation_end(run)``, ``on_epoch_end(run)``,
        ``on_checkpoint(run)``, ``on_exception(run)`` and ``on_train_end(run)``. Steps are told one
        by one, or every so many where the callback has an attribute ``every_n_steps``. The run has
        ``epoch``, ``step``, ``logs`` and ``history``, ``config`` and ``model``, with the weights of
        now (with ``ema`` or ``swa`` their average), to be read, copied and saved; ``last_path`` and
        ``best_path``; ``stop(reason)``, ``log(name, value)`` into the epoch's row of the history
        and ``set_lr(rate)`` in the place of the schedule. What a callback logs in
        ``on_validation_end``, without validation data in ``on_epoch_end``, can be the ``monitor``
        where its attribute ``log_names`` has the name.
    **overrides
        Fields of the configuration, ``lr=3e-4``.

    Returns
    -------
    TrainResult
        However training ended: the model, its history by epoch, the reason why it stopped.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        For wrong input, before any weight changes.
    NotFiniteError
        If a loss or gradient is not finite and ``on_nan="raise"``.
    TrainingInterrupted
        On Ctrl-C in a script; its ``result`` is what a notebook would get returned.
    BusyError
        If another thread is training this model.
    OutOfMemoryError
        With what was predicted, asked for and free; a smaller ``batch_size`` may fit.
    DeviceError, DeviceLostError
        If a GPU that is asked for cannot be had; if it fails while it is used.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> result = hl.train(model, (X, y), max_epochs=5, lr=1e-2, enable_progress_bar=False)
    >>> result.stop_reason, len(result.history["val_loss"])
    ('completed', 5)
    >>> result.history["val_accuracy"][-1] > 0.9
    True
    """
    began = time.perf_counter()
    model = check_model("train", model)
    if datamodule is None:
        raise ConfigError(
            "train: data is missing; give a DataModule or a tuple (X, y) as the second argument: "
            "hl.train(model, data)"
        )
    resumed = _find(resume, training_config, overrides)
    added = tuple(items("callbacks", callbacks, "a list of callbacks")) if callbacks else ()
    if resumed is None:
        config = TrainingConfig.resolve(training_config, overrides)
    else:
        config = adopt(resumed, training_config, overrides, callbacks=added)
        resumed = with_own_state(resumed, config)
        take_autotune_cache(
            resumed.snapshot.run["autotune_cache"]
        )  # the same kernels, the same bits
    # One that the configuration has too, such as that of a result that goes on, is called once.
    each = {id(one): one for one in (*config.callbacks, *added)}
    config = config.replace(callbacks=tuple(each.values()))
    config = config.with_settings_of_callbacks()
    check_callbacks(config.callbacks)
    config.check_supported()
    check_loggers(config.logger)
    data = as_datamodule(datamodule)
    with exclusive(model, "train", trains=True), losing_device():
        begins_with = config if resumed is None else chosen_then(resumed, config)
        snapshot = None if resumed is None else resumed.snapshot
        planner = Planner(model, data, begins_with, snapshot=snapshot)
        trained = model, *loss_modules(config.loss).values()
        values = [value for m in trained for value in (*m.parameters(), *m.buffers())]
        hold(values)
        try:
            with Interrupts() as interrupts:
                is_quiet = config.enable_progress_bar is False
                try:
                    watch = Watch(interrupts, is_quiet=is_quiet)
                    planner.prepare(watch)
                    interrupts.preparing = ""
                    blind, error = "", None
                    if planner.is_fitted_alone:
                        seconds = time.perf_counter() - began
                        if not is_quiet:
                            show(f"hotloop: {describe_fitted(planner)}")
                        if planner.fitting is not None:  # else the model stays as it is
                            set_metadata(model, metadata_of(model, data, planner.config))
                        result = _result_of_nothing(planner, seconds, "completed")
                    else:
                        run = Run(planner, interrupts, began, config, resumed)
                        result = run.execute()
                        blind, error = run.monitored_in_vain, run.exception
                        run.exception = None  # or it would hold the run by this frame
                except Stopped:
                    result = _result_of_nothing(planner, time.perf_counter() - began)
                    blind, error = "", None
        finally:
            release(values)
            planner.close()
    if blind and result.steps and result.stop_reason != "nan":
        fix = "look for values that are not finite in the validation rows"
        warn(f"train: {blind}; {fix}", NotFiniteWarning)
    for name, bad in data.bad_samples.items():
        first = next(iter(bad.values()))
        warn(
            f"train: {counted(len(bad), 'bad sample')} of {name} left out or replaced, the first: "
            f"{first}",
            DataWarning,
        )
    result._asked = config
    result._again = functools.partial(train, model, data)
    if error is not None:
        try:
            raise error
        finally:
            del error  # likewise
    return _finish(result, config, by_signal=interrupts.count > 0)


def _find(resume: Any, config: Any, overrides: dict[str, Any]) -> Resumed | None:
    """The checkpoint that is meant."""
    if resume is None or resume is False:
        return None
    output_dir = TrainingConfig.resolve(config, overrides).output_dir
    found = find(resume, output_dir)
    return None if found is None else staying(found, output_dir)


def _finish(result: TrainResult, config: TrainingConfig, *, by_signal: bool) -> TrainResult:
    if by_signal:
        raises = config.on_interrupt == "raise" or (
            config.on_interrupt == "auto" and not is_interactive()
        )
        if raises:
            error = TrainingInterrupted("training was interrupted; .result holds what was reached")
            error.result = result
            end_as_interrupted()
            raise error
    if by_signal or config.enable_progress_bar is not False:
        show(f"hotloop: {_last_words(result, config)}")
    elif result.stop_reason == "nan" or _skipped_for_nan(result):
        warn(f"train: {_last_words(result, config)}", NotFiniteWarning)
    return result


def _skipped_for_nan(result: TrainResult) -> bool:
    """Whether batches were left out, by more than float16's scale, which is a matter of course and
    of which no node is named.
    """
    is_scaled = wants_scale(result.config.precision) and result.steps > 0
    is_usual = is_scaled and result.not_finite is None
    return result.skipped_steps > 0 and not is_usual


def _last_words(result: TrainResult, config: TrainingConfig) -> str:
    """How training ended, and which weights the model has."""
    if result.stop_reason == "completed" and not config.max_epochs and not result.steps:
        return f"completed after {format_seconds(result.seconds)}"
    how = {
        "early_stopping": "stopped early",
        "max_time": "stopped at max_time",
        "max_steps": "stopped at max_steps",
        "nan": f"stopped: loss or gradient not finite at step {result.steps + 1}",
    }.get(result.stop_reason, result.stop_reason)
    skipped = result.skipped_steps - (result.stop_reason == "nan")
    gave_up = result.stop_reason == "nan" and config.on_nan == "skip"
    if gave_up:
        how = f"stopped: {result.skipped_steps} steps skipped, the last ones in a row "
        how += "(loss or gradient not finite),"
    elif skipped:
        plural = "" if skipped == 1 else "s"
        how += f", {skipped} step{plural} skipped (loss or gradient not finite),"
        if not result.steps:
            how += " none applied: nothing was learned,"
    weights, n = "the last weights", result._n_averaged
    if n:
        weights = f"the average of {counted(n, 'epoch')}"
    elif config.swa:
        how += ", before the epochs that swa averages,"
    if config.restore_best and result.best_score is not None:
        weights = (
            f"the {'average' if n else 'weights'} of epoch {result.best_epoch:g} "
            f"(best {result.monitor}, {result.best_score:.4g})"
        )
    elif result.stop_reason == "nan" and not n:
        weights = "the last finite weights"
    elif not result.steps and (skipped or result.stop_reason == "interrupted"):
        weights = "the weights that it had"
    words = f"{how} after {format_seconds(result.seconds)}; the model has {weights}"
    if result.not_finite is not None:
        which = "the last: " if gave_up else "the first: " if skipped else ""
        words += f"; {which}{result.not_finite}"
    share = result.data_wait / max(result.timings["train"], 1e-9)
    if share >= _MUCH_WAITING and result.data_wait >= _LONG_WAIT:
        words += (
            f"; training waited {share:.0%} of its time for data: more num_workers, or samples "
            "that are made ahead and kept, would make it faster"
        )
    return words


def _result_of_nothing(
    planner: Planner, seconds: float, stop_reason: str = "interrupted"
) -> TrainResult:
    """The result of a run that ended before its first step, so many seconds after ``train`` was
    called: "completed" where statistical nodes alone were to be fitted.
    """
    looked = planner.looking_seconds
    device = getattr(planner, "device", None)
    return TrainResult(
        model=planner.model,
        history=History(),
        config=planner.config,
        device="no device" if device is None else device.name,
        state=None,
        best_path=None,
        last_path=None,
        written=(),
        plan="",
        log_path=None,
        confusion_matrix=None,
        monitor=None,
        best_score=None,
        best_epoch=None,
        stop_reason=stop_reason,
        epochs=0,
        steps=0,
        skipped_steps=0,
        not_finite=None,
        schedule_by="steps",
        seconds=seconds,
        timings=dict.fromkeys(TIMINGS, 0.0) | {"statistics": looked, "plan": seconds - looked},
        data_wait=0.0,
        samples_per_second=0.0,
        n_averaged=0,
        peak_bytes=_core.alloc_stats()["peak_bytes"] if device is None else planner.peak_bytes(),
        predicted_peak_bytes=planner.predicted_bytes,
    )
