"""When a run is saved, and which of its files stay.

There are two kinds of files. ``step-000001200.safetensors`` is a checkpoint, from which the run
can be continued; the two latest are kept, the second as what is left when the first is damaged
later. ``best-epoch7-val_loss0.1234.safetensors`` is the model alone, as it was at one of its best
epochs. Both are written by a thread from a copy of the values, verified by reading them again, and
only then are those removed that have to go: no instant has fewer good files than before.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hotloop.base.messages import format_bytes
from hotloop.errors import CheckpointError, ConfigError
from hotloop.interop.safetensors_file import read_metadata, read_safetensors, write_safetensors
from hotloop.training.checkpoints.folder import RunFolder
from hotloop.training.checkpoints.snapshot import Array, Snapshot, read_run
from hotloop.training.checkpoints.writer import Writer
from hotloop.training.config.schema import parse_save_every

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig

__all__ = ["CHECKPOINTS", "Keeper", "Kept", "checkpoints_in", "names_in"]

CHECKPOINTS = "checkpoints"
_KEPT = 2  # checkpoints from which the run can be continued
_KINDS = {"last": "checkpoint", "best": "file of the best model"}  # of the writer's jobs
_NUMBER = re.compile(r"\d+")
_STEP = re.compile(r"step-(\d+)\.safetensors")
_BETWEEN = 10.0  # seconds between saves that were not asked for, at least
_WITHIN_EPOCH = 300.0  # and at most, within a long epoch
_SHARE = 0.02  # of the time that saving takes at most, where it was not asked for
_VERIFIED_BYTES = 1 << 30  # larger files are not read again


class Kept(NamedTuple):
    """A checkpoint on disk.

    Attributes
    ----------
    path : str
    commit : int
        Counts the checkpoints of a run; -1: its header is damaged.
    time : float
        When it was written, in seconds since 1970.
    """

    path: str
    commit: int
    time: float


def checkpoints_in(folder: str) -> list[Kept]:
    """Checkpoints of a run's folder, the latest first; damaged ones last.

    The names of files do not order them: a run that went on from an earlier step has lower numbers
    than what it left behind. Nor do the times of files, which copies change.
    """
    directory = os.path.join(folder, CHECKPOINTS)
    names = sorted(names_in(directory), reverse=True)
    found = []
    for name in names:
        if not _STEP.fullmatch(name):
            continue
        path = os.path.join(directory, name)
        try:
            run = read_run(path)
            found.append(Kept(path, int(run["commit"]), float(run["time"])))
        except (CheckpointError, KeyError, TypeError, ValueError):
            found.append(Kept(path, -1, 0.0))
    return sorted(found, key=lambda kept: -kept.commit)


def names_in(directory: str) -> list[str]:
    """Names of what lies in a folder; of one that is not there none.

    Raises
    ------
    CheckpointError
        If it cannot be read.
    """
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"resume: {directory} cannot be read: {error}") from error


class Keeper:
    """Saves one run.

    Parameters
    ----------
    config : TrainingConfig
    folder : RunFolder
    say : callable
        Shows a line.
    monitor : str
        Name of the value that says which epochs are the best.
    larger_is_better : bool
        Of that value.

    Attributes
    ----------
    last_path, best_path : str or None
        The latest files that are on disk.
    handed_at, saved_at : int
        The number of steps (attempted ones) of the latest checkpoint that was handed to the thread
        and that is on disk; -1: none.
    """

    def __init__(
        self,
        config: TrainingConfig,
        folder: RunFolder,
        say: Callable[[str], None],
        *,
        monitor: str,
        larger_is_better: bool,
    ) -> None:
        self._monitor = monitor
        self._config, self._folder, self._say = config, folder, say
        self._sign = -1.0 if larger_is_better else 1.0
        self._writer = Writer()
        self._unit, self._every = parse_save_every(config.save_every)
        self.last_path: str | None = None
        self.best_path: str | None = None
        self.saved_at = self.handed_at = -1
        self._saved_time = self._best_time = time.perf_counter()
        self._epoch = 0
        self._cost = 0.0
        self._kept: list[Kept] = []
        self._best: list[tuple[float, str]] = []  # (score, path), the best first
        self._commit = 0
        self._failed: dict[str, list[str]] = {}  # by kind, why, since the last that was written
        self._is_owed = False  # an epoch's end wanted a checkpoint while another file was written

    # ---- before the first step

    def begin(
        self,
        n_bytes: int,
        best_bytes: int,
        steps: int,
        epoch: int,
        scores: Mapping[float, float],
        damaged: Collection[str] = (),
        since: int = 0,
    ) -> None:
        """Looks whether there is room, and what the folder holds already.

        Parameters
        ----------
        n_bytes, best_bytes : int
            Of a checkpoint and of a model's file, about.
        steps, epoch : int
            At which the run begins; epochs that have ended.
        scores : mapping of float to float
            From epoch to the value of what is monitored, of a run that goes on.
        damaged : collection of str
            Checkpoints that were found not to be whole: the first ones to go.
        since : int
            The epoch before which any is worse than those to come.

        Raises
        ------
        ConfigError
            If ``max_disk`` has no room for a checkpoint and the best model side by side.
        CheckpointError
            If output was asked for and the disk has no room for it.
        """
        self.handed_at, self._epoch = steps, epoch
        if not self._config.enable_checkpointing:
            return
        last_bytes = n_bytes * self._config.save_last
        k = self._config.save_top_k
        least = last_bytes + best_bytes * (k != 0)
        most = self._config.max_disk
        if most is not None and least > most:
            best = f" and its best model {format_bytes(best_bytes)}" if k != 0 else ""
            raise ConfigError(
                f"max_disk: a checkpoint of this run takes {format_bytes(last_bytes)}{best}, got "
                f"{format_bytes(most)}; allow more, or write "
                f"{'save_top_k=0 or ' * bool(best)}enable_checkpointing=False"
            )
        if (continued := self._folder.continued) is not None:
            self._find_files(continued, scores, damaged, since)
        needed = last_bytes * (_KEPT + 1) + best_bytes * max(k, 0)
        needed = needed if most is None else min(needed, most + n_bytes)
        # What lies there goes when new files have come, each of which is written beside it.
        one = max(last_bytes, best_bytes * (k != 0))
        self._check_room(max(needed - sum(self._sizes().values()), one))
        if self._folder.is_asked and (path := self._folder.open(announce=False)) is not None:
            # Once more, as another process may have gone on there until the folder was this one's.
            self._find_files(path, scores, damaged, since)

    def _find_files(
        self, folder: str, scores: Mapping[float, float], damaged: Collection[str], since: int
    ) -> None:
        """The checkpoints and best models that lie in a folder already."""
        known = checkpoints_in(folder)
        self._commit = max((one.commit for one in known), default=0)
        self._kept = sorted(known, key=lambda one: one.path in damaged or one.commit < 0)
        self.last_path = self._kept[0].path if self._kept else None
        self._find_best(folder, scores, since)

    def _find_best(self, folder: str, scores: Mapping[float, float], since: int) -> None:
        """The models of this run's epochs: those of another monitor, or of epochs that a run which
        went another way had, are left where they are.
        """
        directory, self._best = os.path.join(folder, CHECKPOINTS), []
        for name in names_in(directory):
            if not name.startswith("best-"):
                continue
            path = os.path.join(directory, name)
            try:
                metadata = read_metadata(path)
                score, epoch = float(metadata["score"]), float(metadata["epoch"])
            except (CheckpointError, KeyError, ValueError):
                continue
            if scores.get(epoch) == score and metadata.get("monitor") == self._monitor:
                self._best.append((score if epoch >= since else self._worst, path))
        self._sort_best()

    def _check_room(self, needed: int) -> None:
        """Whether the disk has so many bytes free: tried, where output was asked for."""
        parent = self._folder.parent
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        free = shutil.disk_usage(parent).free
        text = (
            f"checkpoints of this run take up to {format_bytes(needed)} in "
            f"{self._folder.parent}, where {format_bytes(free)} are free"
        )
        fix = "free some, write another output_dir, or enable_checkpointing=False"
        if not self._folder.is_asked:
            if free < needed:
                self._say(f"hotloop: warning: {text}; {fix}")
            return
        if free < needed:
            raise CheckpointError(f"output_dir: {text}; {fix}")
        if (path := self._folder.open(announce=False, before_training=True)) is None:
            return
        try:
            with tempfile.TemporaryFile(dir=path) as file:  # has no name: a kill leaves nothing
                os.posix_fallocate(file.fileno(), 0, max(needed, 1))
        except OSError as error:  # a quota, for one, which disk_usage does not know
            raise CheckpointError(f"output_dir: {text}, got: {error}; {fix}") from error

    @property
    def mark(self) -> tuple[int, float]:
        """Commit and time of the latest checkpoint, by which its file is known again."""
        return self._kept[0].commit, self._kept[0].time

    # ---- when

    @property
    def saves_last(self) -> bool:
        """Whether checkpoints are written."""
        return self._config.enable_checkpointing and self._config.save_last

    def steps_until_due(self, steps: int) -> int:
        """Steps that may be run before a checkpoint is due; 1 where one waits for a step's end."""
        if not self.saves_last or self._writer.is_busy:
            return sys.maxsize
        if self._is_owed:
            return 1
        if self._unit == "steps":
            return max(self.handed_at + int(self._every) - steps, 1)
        since = time.perf_counter() - self._saved_time
        limit = {"seconds": self._every, "epochs": math.inf}.get(self._unit, _WITHIN_EPOCH)
        return 1 if since >= max(limit, self._rest * (not self._unit)) else sys.maxsize

    def is_due(self, steps: int, *, ended_epoch: int | None = None) -> bool:
        """Whether a checkpoint is to be written now.

        While a file is being written none is due by steps or time: the next one comes later. An
        epoch's end that wants one then, as one that was the best and whose model is being written
        does, is owed it: it is due after the first step that finds the writer free. Where models
        take the writer at every epoch's end, the second end that is owed one waits for it. Epochs
        that were asked for have one each, and saving waits for the writer.

        Parameters
        ----------
        steps : int
            That were attempted.
        ended_epoch : int, optional
            The epoch that has just ended; within one None.
        """
        if not self.saves_last or steps <= self.handed_at:
            return False
        since = time.perf_counter() - self._saved_time
        if self._unit == "steps":
            is_due = steps - self.handed_at >= self._every
        elif self._unit == "seconds":
            is_due = since >= self._every
        elif self._unit == "epochs":
            is_due = ended_epoch is not None and ended_epoch - self._epoch >= self._every
        else:
            is_late = ended_epoch is not None or since >= _WITHIN_EPOCH
            is_due = self._is_owed or (since >= self._rest and is_late)
        if is_due and self._writer.is_busy and self._unit != "epochs":
            was_owed = self._is_owed
            self._is_owed = was_owed or ended_epoch is not None
            if not was_owed or ended_epoch is None or self.best_can_wait:
                return False
        if is_due and self._folder.open() is None:
            is_due = self._is_owed = False
        return is_due

    @property
    def _rest(self) -> float:
        return max(_BETWEEN, self._cost / _SHARE)

    @property
    def best_can_wait(self) -> bool:
        """Whether a best model may be written later: the run keeps its weights until it ends."""
        return self._config.restore_best and self._config.save_top_k == 1

    def is_best_due(self) -> bool:
        """Whether a best model is to be written at once; else it is when the run ends.

        A checkpoint that is owed goes first: it has the best weights too.
        """
        if not self._config.enable_checkpointing or self._config.save_top_k == 0:
            return False
        if self._folder.open() is None:
            return False
        if not self.best_can_wait:
            return True
        is_free = not self._writer.is_busy and not self._is_owed
        return is_free and time.perf_counter() - self._best_time >= self._rest

    def is_wanted(self, score: float) -> bool:
        """Whether an epoch with such a score is among those whose models are kept."""
        k = self._config.save_top_k
        if not self._config.enable_checkpointing or k == 0:
            return False
        if k < 0 or len(self._best) < k:
            return True
        return self._sign * score < self._sign * self._best[k - 1][0]

    def begin_again(self) -> None:
        """Ranks the models that are kept behind all those to come."""
        self.wait()
        self._best = [(self._worst, path) for _, path in self._best]

    @property
    def _worst(self) -> float:
        return self._sign * math.inf

    # ---- saving

    def save(self, snapshot: Snapshot, steps: int, epoch: int) -> None:
        """Hands a checkpoint to the thread that writes it.

        Parameters
        ----------
        snapshot : Snapshot
        steps, epoch : int
            That were attempted; that have ended.
        """
        folder = self._folder.open()
        if folder is None:
            return
        self._commit += 1
        snapshot.run["commit"], snapshot.run["time"] = self._commit, time.time()
        path = os.path.join(folder, CHECKPOINTS, f"step-{steps:09d}.safetensors")
        self.handed_at, self._epoch, self._is_owed = steps, epoch, False
        self._saved_time = time.perf_counter()
        self._writer.submit("last", lambda: self._write(snapshot, path, steps))

    def _write(self, snapshot: Snapshot, path: str, steps: int) -> str:
        began = time.perf_counter()
        for name in snapshot.run["trainable"]:  # of a run that went wrong nothing is saved
            value = snapshot.tensors.get(name)
            if value is not None and not np.isfinite(value).all():
                raise CheckpointError(f"{name} is not finite; the checkpoints before it stay")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        n_bytes, most = snapshot.write(path), self._config.max_disk
        if most is not None and n_bytes > most:  # the arrays alone were known before
            _remove(path)
            raise CheckpointError(
                f"max_disk: it takes {format_bytes(n_bytes)}, got {format_bytes(most)}"
            )
        if n_bytes < _VERIFIED_BYTES:
            read_safetensors(path, "checkpoint")
        others = [kept for kept in self._kept if kept.path != path]
        self._kept = [Kept(path, snapshot.run["commit"], snapshot.run["time"]), *others]
        for kept in self._kept[_KEPT:]:
            _remove(kept.path)
        del self._kept[_KEPT:]
        self._keep_within()
        self._cost = time.perf_counter() - began
        self.saved_at = steps
        return path

    def save_best(
        self,
        tensors: Mapping[str, Array],
        metadata: Mapping[str, str],
        epoch: float,
        score: float,
    ) -> None:
        """Hands a model to the thread that writes it.

        Parameters
        ----------
        tensors, metadata : mapping
            Of its file; own copies.
        epoch : float
            From 1; of a validation within one, how many were trained.
        score : float
            Of what is monitored.
        """
        folder = self._folder.open()
        if folder is None:
            return
        value = re.sub(r"[^\w.=@+-]+", "_", f"{self._monitor}{score:.4g}")
        path = os.path.join(folder, CHECKPOINTS, f"best-epoch{epoch:g}-{value}.safetensors")
        own = {"monitor": self._monitor, "score": repr(score), "epoch": repr(epoch)}
        self._best_time = time.perf_counter()
        self._writer.submit(
            "best", lambda: self._write_best(tensors, {**metadata, **own}, path, score)
        )

    def _write_best(
        self, tensors: Mapping[str, Array], metadata: Mapping[str, str], path: str, score: float
    ) -> str:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        n_bytes = write_safetensors(path, tensors, metadata)
        if n_bytes < _VERIFIED_BYTES:
            read_safetensors(path, "checkpoint")
        self._best = [(score, path), *(one for one in self._best if one[1] != path)]
        self._sort_best()
        k = self._config.save_top_k
        for _, other in self._best[k:] if k >= 0 else ():
            _remove(other)
        if k >= 0:
            del self._best[k:]
        self._keep_within()
        if self.best_path is None:
            raise CheckpointError("max_disk: has no room for it beside the latest checkpoint")
        return path

    def _sort_best(self) -> None:
        self._best.sort(key=lambda one: self._sign * one[0])
        self.best_path = self._best[0][1] if self._best else None

    def _sizes(self) -> dict[str, int]:
        """Bytes of the files that are kept, by path."""
        paths = [kept.path for kept in self._kept] + [path for _, path in self._best]
        return {path: os.path.getsize(path) for path in paths if os.path.exists(path)}

    def _keep_within(self) -> None:
        """Removes what ``max_disk`` has no room for: older checkpoints, then the worst models, and
        the best one last. The latest checkpoint stays.
        """
        most = self._config.max_disk
        if most is None:
            return
        order = [kept.path for kept in self._kept[1:]] + [path for _, path in reversed(self._best)]
        sizes = self._sizes()
        while sum(sizes.values()) > most and order:
            path = order.pop(0)
            if path not in sizes:
                continue
            _remove(path)
            del sizes[path]
            self._kept = [kept for kept in self._kept if kept.path != path]
            self._best = [one for one in self._best if one[1] != path]
        self._sort_best()

    def poll(self, *, is_over: bool = False, has_result: bool = True) -> list[str]:
        """The files that were written since the last time.

        What failed is said: the first of several that fail for one reason, and at the end what is
        not on disk for it.

        Parameters
        ----------
        is_over : bool
            Whether nothing is written any more.
        has_result : bool
            Whether training returns then, with what was reached.
        """
        written = []
        for done in self._writer.take_done():
            if done.path is not None:
                self._failed.pop(done.kind, None)
                written.append(done.path)
                if done.kind == "last":
                    self.last_path = done.path
                continue
            failed = self._failed.setdefault(done.kind, [])
            failed.append(done.error)
            reasons = {_NUMBER.sub("", error) for error in failed[-2:]}  # names of files have some
            if not is_over and (len(failed) == 1 or len(reasons) > 1):
                self._say(
                    f"hotloop: warning: no {_KINDS[done.kind]} could be written: {done.error}; "
                    "training goes on, and the next one is tried when it is due"
                )
        for kind, failed in self._failed.items() if is_over else ():
            latest = self.last_path if kind == "last" else self.best_path
            lies = "there is none" if latest is None else f"the latest is {latest}"
            tries = "once" if len(failed) == 1 else f"{len(failed)} times"
            keeps = kind == "last" and has_result
            held = ", and the result alone has what was reached: result.save(path)" * keeps
            self._say(
                f"hotloop: warning: training has ended, and its last {_KINDS[kind]} could not be "
                f"written ({tries}): {failed[-1]}; {lies}{held}"
            )
        return written

    def wait(self) -> None:
        """Waits until everything is on disk."""
        self._writer.wait()

    def close(self) -> None:
        """Ends the thread."""
        self._writer.close()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # gone already, or not to be removed: nothing depends on it
        os.unlink(path)
