"""``train(resume=...)``: which checkpoint is meant, and whether the run may go on from it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from hotloop.base.messages import named, warn
from hotloop.base.rules import path as check_path
from hotloop.base.rules import show
from hotloop.errors import CheckpointError, CheckpointWarning, ConfigError
from hotloop.training.checkpoints.folder import DIRECTORY
from hotloop.training.checkpoints.keeper import CHECKPOINTS, checkpoints_in, names_in
from hotloop.training.checkpoints.snapshot import Snapshot
from hotloop.training.config import TrainingConfig
from hotloop.training.config.spelling import ALIASES
from hotloop.training.plans.precision import wants_scale

__all__ = [
    "Resumed", "adopt", "check_same_data", "chosen_then", "find", "staying", "with_own_state",
]  # fmt: skip

# Settings that may be others when a run goes on: they decide how long it takes, where, and what is
# seen and kept of it, and not what a step computes.
_FREE = frozenset((
    "max_epochs", "max_steps", "max_time", "accelerator", "devices", "strategy", "benchmark",
    "cuda_graph", "device_cache", "recompute", "memory_limit", "on_oom", "on_nan", "on_interrupt",
    "detect_anomaly", "early_stopping", "restore_best", "output_dir", "save_top_k", "save_last",
    "save_every", "max_disk", "resume_strict", "check_val_every_n_epoch", "val_check_interval",
    "log_every_n_steps", "logger", "enable_progress_bar", "enable_checkpointing",
    "enable_model_summary", "verbose", "callbacks",
))  # fmt: skip

_SAME_MOMENTS = {"adamw": "adam"}


class Resumed(NamedTuple):
    """What a run goes on from.

    Attributes
    ----------
    snapshot : Snapshot
    asked : TrainingConfig
        The configuration as it was given.
    path : str or None
        Its file; None: a result had it in memory.
    folder : str or None
        Of the run, where the file lies in one and it goes on there.
    damaged : tuple of str
        Checkpoints there that are not whole.
    """

    snapshot: Snapshot
    asked: TrainingConfig
    path: str | None
    folder: str | None
    damaged: tuple[str, ...] = ()


def find(resume: Any, output_dir: str | None) -> Resumed | None:
    """The latest checkpoint that can be read; None: there is none and none is needed.

    Parameters
    ----------
    resume : "auto", True, path or TrainResult
    output_dir : str, optional
        Where runs lie, for "auto" and True.

    Raises
    ------
    ConfigError
        For anything else.
    CheckpointError
        If there is none, or none is whole. One that is damaged is left out with a warning.
    """
    if resume is None or resume is False:
        return None
    state = getattr(resume, "_state", ...)
    if state is not ...:
        if state is None and resume.last_path is None:
            raise ConfigError(
                "resume: the result has no state to go on from, as it ended by NaN or is of a fold "
                "of cross_validate that wrote no checkpoint"
            )
        if state is not None:
            return Resumed(state, resume._asked, None, _folder_of(resume.last_path))
        return _read_of_result(resume)
    parent = DIRECTORY if output_dir is None else output_dir
    if resume == "auto" or resume is True:
        folders = _runs_in(parent)
        if not folders and resume == "auto":
            return None
        if not folders:
            raise CheckpointError(
                f"resume: there is no checkpoint in {parent}; write output_dir= or the path of one,"
                " or resume='auto' to begin a run where there is none"
            )
        return _latest(folders[0])
    path = os.path.abspath(check_path("resume", resume))
    if os.path.isdir(path):
        if checkpoints_in(path):
            return _latest(path)
        if os.path.basename(path) == CHECKPOINTS:
            return find(os.path.dirname(path), output_dir)
        folders = _runs_in(path)
        if not folders:
            raise CheckpointError(f"resume: there is no checkpoint in {path}")
        return _latest(folders[0])
    if not os.path.exists(path):
        raise CheckpointError(f"resume: {path} does not exist")
    return _read(path)


def _read(path: str) -> Resumed:
    snapshot = Snapshot.read(path)
    asked = TrainingConfig.from_toml(snapshot.run["asked"])
    return Resumed(snapshot, asked, path, _folder_of(path))


def _read_of_result(result: Any) -> Resumed:
    """What a result wrote last, unless later runs took its place."""
    path = result.last_path
    fix = "go on from the latest result of that folder, or from a file by its path"
    if not os.path.exists(path):
        raise CheckpointError(
            f"resume: {path}, where this result ended, is gone, as runs that went on from it keep "
            f"two checkpoints; {fix}"
        )
    found = _read(path)
    if [found.snapshot.run["commit"], found.snapshot.run["time"]] != list(result._written):
        raise CheckpointError(
            f"resume: {path}, where this result ended, was written again by a run that went on "
            f"from elsewhere; {fix}"
        )
    return found._replace(asked=result._asked)  # with its functions and callbacks


def _folder_of(path: str | None) -> str | None:
    """The folder of the run whose checkpoint lies there."""
    if path is None:
        return None
    directory = os.path.dirname(os.path.abspath(path))
    return os.path.dirname(directory) if os.path.basename(directory) == CHECKPOINTS else None


def _runs_in(parent: str) -> list[str]:
    """Folders of runs with checkpoints, that with the latest one first."""
    names = [name for name in names_in(parent) if name.isdecimal()]
    found = []
    for name in names:
        folder = os.path.join(parent, name)
        if kept := checkpoints_in(folder):
            found.append((max(one.time for one in kept), int(name), folder))
    return [folder for _, _, folder in sorted(found, reverse=True)]


def _latest(folder: str) -> Resumed:
    """The latest whole checkpoint of a run; damaged ones are named."""
    faults: dict[str, str] = {}
    kept = checkpoints_in(folder)
    for one in sorted(kept, key=lambda one: one.commit >= 0):  # damaged ones first, to be named
        try:
            found = _read(one.path)
        except CheckpointError as error:
            faults[one.path] = str(error).removeprefix("resume: ")
            continue
        for fault in faults.values():
            warn(f"resume: {fault}; training goes on from {one.path}", CheckpointWarning)
        return found._replace(damaged=tuple(faults))
    texts = "; ".join(faults.values())
    raise CheckpointError(f"resume: no checkpoint in {folder} is whole: {texts}")


def staying(resumed: Resumed, output_dir: str | None) -> Resumed:
    """The same, without its folder where another ``output_dir`` was written."""
    if resumed.folder is None or output_dir is None:
        return resumed
    parent, folder = os.path.realpath(output_dir), os.path.realpath(resumed.folder)
    return resumed if parent in (folder, os.path.dirname(folder)) else resumed._replace(folder=None)


def adopt(
    resumed: Resumed,
    config: Any,
    overrides: Mapping[str, Any],
    *,
    callbacks: Collection[Any] = (),
) -> TrainingConfig:
    """The configuration that the run goes on with.

    Without one it is the checkpoint's, with overrides on top.

    Parameters
    ----------
    resumed : Resumed
    config : TrainingConfig, dict or None
    overrides : mapping
    callbacks : collection
        That are given beside the configuration.

    Raises
    ------
    ConfigError
        If a setting differs that decides what a step computes, and ``resume_strict`` is True.
    """
    run = resumed.snapshot.run
    asked, unwritten = resumed.asked, run["unwritten"]
    if config is None:
        is_from_file = not asked.unwritable()  # else the objects are there
        named_again = {ALIASES.get(name, name) for name in overrides}
        named_again |= {"callbacks"} if callbacks else set()
        lost = [name for name in unwritten if is_from_file and name not in named_again]
        for name, what in (("callbacks", "callbacks"), ("logger", "loggers that are objects")):
            if name in lost:
                lost.remove(name)
                warn(
                    f"resume: {what} are no part of a checkpoint; give {name}= again where they "
                    "are needed",
                    CheckpointWarning,
                )
        if lost:
            raise ConfigError(
                f"resume: {named(lost)} of the run cannot be read from a file (a function or a "
                "module); give the configuration, or these settings, again"
            )
        made = TrainingConfig.resolve(asked, overrides)
    else:
        given = TrainingConfig.resolve(config, {"seed": asked.seed, **overrides})
        made = TrainingConfig.resolve(config, overrides)
        made = given if getattr(config, "seed", 0) is None else made
    chosen = TrainingConfig.from_toml(run["config"])
    same = {*_FREE, *unwritten}  # functions cannot be compared
    changed = {
        name: pair
        for name, pair in made.diff(asked).items()
        if name not in same and name in made.diff(chosen)
    }
    if changed and made.resume_strict:
        texts = [f"{name} {show(now)} (then {show(then)})" for name, (now, then) in changed.items()]
        raise ConfigError(
            f"resume: the run cannot go on exactly with other settings, got {'; '.join(texts)}; "
            "write those of then, or resume_strict=False to go on with these"
        )
    return made


def chosen_then(resumed: Resumed, asked: TrainingConfig) -> TrainingConfig:
    """The configuration with what was chosen when the run began, where it says "auto"."""
    chosen = TrainingConfig.from_toml(resumed.snapshot.run["config"])
    return asked.replace(precision=chosen.precision) if asked.precision == "auto" else asked


def with_own_state(resumed: Resumed, config: TrainingConfig) -> Resumed:
    """The same, without what means something else now: the moments of another optimizer, and the
    loss scale where one precision has one and the other none.
    """
    snapshot = resumed.snapshot
    chosen = TrainingConfig.from_toml(snapshot.run["config"])
    config = chosen_then(resumed, config)
    then, now = (_SAME_MOMENTS.get(one.optimizer_config.name) or one.optimizer_config.name
                 for one in (chosen, config))  # fmt: skip
    if then != now:
        snapshot = snapshot.without_moments()
    if wants_scale(chosen.precision) != wants_scale(config.precision):
        snapshot = snapshot.without_scale()
    return resumed._replace(snapshot=snapshot)


def check_same_data(resumed: Resumed, now: Mapping[str, Any], *, strict: bool) -> None:
    """Refuses other data than the run had.

    Raises
    ------
    ConfigError
        Names what differs.
    """
    then = resumed.snapshot.run["data"]
    changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
    if not changed or not strict:
        return
    texts = [_describe_change(key, then.get(key), now.get(key)) for key in changed[:3]]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    raise ConfigError(
        f"resume: the run cannot go on exactly with other data, got {'; '.join(texts)}{more}; give "
        "the data of then, or write resume_strict=False to go on with these"
    )


def _describe_change(key: str, then: Any, now: Any) -> str:
    if then is None or now is None:
        return f"{key}: {'none then' if then is None else 'none now'}"
    if isinstance(then, list) and isinstance(now, list):
        if then[:2] == now[:2]:
            return f"{key}: other values"
        then, now = (f"{one[0]} {tuple(one[1])}" for one in (then, now))
    return f"{key} {show(now)} (then {show(then)})"
