"""The state of a run as arrays and plain values, and how they stand in a file.

A checkpoint is a model's file, as ``hl.save`` writes it, with the weights that validation uses
under the model's own names: any reader of safetensors finds them, and ``hl.load`` predicts with
them. What only resuming needs stands under names of its own:

    hotloop.trained.<name>              weights that are trained, where those are their average
    hotloop.state.<name>                values that state_dict leaves out, and a loss's
    hotloop.optimizer.<n>.<name>        moments, in the order of the optimizer's
    hotloop.ema.<name>                  the average of a loss's weights
    hotloop.swa.<name>                  the same of swa, of buffers that state_dict leaves out too
    hotloop.best.<name>                 the best weights so far
    hotloop.sum.<name>                  sums of losses and metrics of an epoch that has begun
    hotloop.matrix.last.<target>        the confusion matrix of the last validation
    hotloop.matrix.best.<target>        that of the best epoch

and in the metadata's entry ``run`` as JSON: counters, loss scale, position in the epoch, schedule,
monitor, history, configuration, and by what the data is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import named
from hotloop.errors import CheckpointError
from hotloop.interop.safetensors_file import read_metadata, read_safetensors, write_safetensors

if TYPE_CHECKING:
    from hotloop._core import Graph
    from hotloop.nn.layout import Slot
    from hotloop.training.plans.runtime import Runtime

Array: TypeAlias = npt.NDArray[Any]

__all__ = [
    "Snapshot", "capture", "find_ages", "find_began", "moments_of", "plain", "predict_bytes",
    "read_run", "restore", "snapshot_bytes",
]  # fmt: skip

_VERSION = 1
_TRAINED, _STATE, _BEST = "hotloop.trained.", "hotloop.state.", "hotloop.best."
_MOMENTS = "hotloop.optimizer."
_OF_TRAINED = ("ema", "optimizer.")  # stores
_AVERAGE, _SWA, _SUM = "hotloop.ema.", "hotloop.swa.", "hotloop.sum."
_CONTROL = ("attempted", "applied", "skipped", "skipped_in_row", "loss_scale", "good_steps", "lr")
_SCALE = ("loss_scale", "good_steps")


class Snapshot(NamedTuple):
    """A run between two steps.

    Attributes
    ----------
    tensors : dict of str to array
        By the names that they have in a file; own copies.
    run : dict
        Plain values.
    model : dict of str to str
        Further metadata: what ``hl.load`` needs.
    """

    tensors: dict[str, Array]
    run: dict[str, Any]
    model: dict[str, str]

    def write(self, path: str) -> int:
        """Writes the file; its bytes."""
        run = json.dumps(plain(self.run), allow_nan=False)
        return write_safetensors(path, self.tensors, {"format": "pt", **self.model, "run": run})

    def without_moments(self) -> Snapshot:
        """The same for an optimizer that begins anew."""
        kept = {name: value for name, value in self.tensors.items() if not _is_moment(name)}
        return self._replace(tensors=kept)

    def without_scale(self) -> Snapshot:
        """The same for a loss scale that begins as in a new run."""
        control = {k: v for k, v in self.run["control"].items() if k not in _SCALE}
        return self._replace(run={**self.run, "control": control})

    @classmethod
    def read(cls, path: str) -> Snapshot:
        """The snapshot of a file, whose checksums are checked.

        Raises
        ------
        CheckpointError
            If it is damaged, or holds no run.
        """
        tensors, metadata = read_safetensors(path, "resume")
        run = _parse(path, metadata)
        metadata.pop("run")
        return cls(tensors, run, metadata)


def read_run(path: str) -> dict[str, Any]:
    """The plain values of a checkpoint, without its tensors.

    Raises
    ------
    CheckpointError
    """
    return _parse(path, read_metadata(path, "resume"))


def _parse(path: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("run")
    if text is None:
        raise CheckpointError(
            f"resume: {path} holds a model without the run that made it; continue from a "
            "checkpoint of a run (result.last_path), or train the model again from its weights"
        )
    try:
        run = _revived(json.loads(text))
        version = run["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"resume: {path} is damaged: {error}") from error
    if version != _VERSION or "checksums" not in metadata:
        raise CheckpointError(
            f"resume: {path} has version {version!r} of checkpoints, this hotloop reads {_VERSION}"
        )
    return dict(run)


def plain(value: Any) -> Any:
    """A value of dicts, lists and numbers as JSON has it: infinity and NaN as ``{"float": …}``."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, np.generic):
        return plain(value.item())
    return value


def _revived(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"float"}:
            return float(value["float"])
        return {key: _revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_revived(item) for item in value]
    return value


def _is_moment(name: str) -> bool:
    return name.startswith(_MOMENTS)


def _parameter_of(moment: str) -> str:
    return moment.removeprefix(_MOMENTS).partition(".")[2]


def moments_of(snapshot: Snapshot, names: Collection[str]) -> dict[str, Array]:
    """The moments of some parameters, as own copies by the names that they have in a file."""
    return {
        name: value.copy()
        for name, value in snapshot.tensors.items()
        if _is_moment(name) and _parameter_of(name) in names
    }


def find_ages(snapshot: Snapshot) -> dict[str, int]:
    """How many optimizer steps the moments in a snapshot are old, by parameter."""
    steps, ages = snapshot.run["control"]["applied"], snapshot.run.get("ages", {})
    known = map(_parameter_of, filter(_is_moment, snapshot.tensors))
    return {name: ages.get(name, steps) for name in known}


def find_began(snapshot: Snapshot, names: Iterable[str]) -> dict[str, int]:
    """When the moments of a run that goes on began with zeros.

    The optimizer's corrections go by how many steps they are old, which the snapshot says of those
    that are not as old as the run; those that it lacks begin now.

    Parameters
    ----------
    snapshot : Snapshot
    names : iterable of str
        Of the parameters that are trained.

    Returns
    -------
    dict of str to int
        The optimizer steps before, where there were any.
    """
    steps, ages = snapshot.run["control"]["applied"], find_ages(snapshot)
    began = {name: steps - ages.get(name, 0) for name in names}
    return {name: step for name, step in began.items() if step}


# ---- between the session and tensors


def _stores(runtime: Runtime) -> Iterator[tuple[str, str, str, list[Slot], int]]:
    """Store, dtype, prefix of its tensors' names, slots of it, and its size.

    Of a store of moments or of the average the slots are those that are trained.
    """
    slots = runtime.layout.slots
    stores = runtime.session.stores()
    for store in runtime.layout.stores():
        own = [slot for slot in slots if slot.store == store]
        yield store, _dtype(runtime, stores[store][0]), "", own, stores[store][1]
    for store, (dtype, n) in stores.items():
        if n and store.startswith(_OF_TRAINED):  # sgd may have no moments
            yield store, _dtype(runtime, dtype), f"hotloop.{store}.", runtime.layout.trainable, n


def _dtype(runtime: Runtime, dtype: str) -> str:
    """The dtype that a store has on the device."""
    return runtime.device.float_dtype if dtype == "float32" else dtype


def _cut(flat: Array, slots: list[Slot], prefix: str) -> Iterator[tuple[str, Array]]:
    """Views of a store's values by the names of its slots; moments by the first one alone."""
    for slot in slots:
        value = flat[slot.offset : slot.offset + slot.size].reshape(slot.owner.shape)
        for name in slot.names[:1] if prefix.startswith(_MOMENTS) else slot.names:
            yield prefix + name, value


def snapshot_bytes(runtime: Runtime, *, copies: int, n_moments: int) -> int:
    """Bytes of the arrays of a snapshot, with so many copies of all weights beside them, and
    moments of so many elements.
    """
    own = total = 0
    for _, dtype, prefix, _, n in _stores(runtime):
        n_bytes = np.dtype(dtype).itemsize * (n_moments if prefix else n)
        total += n_bytes
        own += 0 if prefix else n_bytes
    return total + own * copies


def predict_bytes(runtime: Runtime, graph: Graph, *, copies: int, n_moments: int) -> int:
    """The same of a session that is to train by this graph, before there are its stores."""
    own = sum(np.dtype(dtype).itemsize * n for dtype, n in runtime.layout.stores().values())
    wide = np.dtype(runtime.device.float_dtype).itemsize
    moments = {
        leaf["store"]
        for leaf in graph.leaves()
        if leaf["kind"] == "state"
        and (leaf["store"] or "").startswith(_OF_TRAINED)
        and math.prod(leaf["shape"])
    }
    return int(own * (1 + copies) + wide * n_moments * len(moments))


def capture(
    runtime: Runtime,
    known: Collection[str],
    sums: Sequence[str],
    *,
    with_best: bool,
    with_average: bool,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The session's values as tensors of a checkpoint, and what the control block counts.

    Parameters
    ----------
    runtime : Runtime
        Between two steps.
    known : collection of str
        Names of the model's ``state_dict``.
    sums : sequence of str
        Stores of an epoch's sums.
    with_best : bool
        Whether there are best weights.
    with_average : bool
        Whether there is an average of ``swa``.

    Returns
    -------
    tensors : dict of str to array
    control : dict of str to number
    """
    session = runtime.session
    tensors: dict[str, Array] = {}
    others: dict[str, Array] = {}
    for store, dtype, prefix, slots, _ in _stores(runtime):
        own = dict(_cut(session.read(store, dtype), slots, prefix))
        for name, value in own.items():
            if prefix == _AVERAGE and (plain_name := name.removeprefix(_AVERAGE)) in known:
                others[_TRAINED + plain_name] = tensors[plain_name]
                tensors[plain_name] = value
            elif prefix or name in known:
                (others if prefix else tensors)[name] = value
            else:
                others[_STATE + name] = value
        if with_average and not prefix:
            averaged = session.read(f"swa.{store}", dtype)
            for name, value in _cut(averaged, slots, prefix):
                if name in known:
                    others[_TRAINED + name] = tensors[name]
                    tensors[name] = value
                else:
                    others[_SWA + name] = value
        if with_best and not prefix:
            others.update(_cut(session.read(f"best.{store}", dtype), slots, _BEST))
    others.update((_SUM + name, session.read(name, "float64")) for name in sums)
    control = session.control()
    return {**tensors, **others}, {field: control[field] for field in _CONTROL}


def restore(
    runtime: Runtime,
    snapshot: Snapshot,
    sums: Mapping[str, int],
    *,
    strict: bool,
    joining: Collection[str] = (),
) -> list[str]:
    """Puts a snapshot's values into the session; the names of those that the snapshot lacks.

    Parameters
    ----------
    runtime : Runtime
        With its plans, before the first step.
    snapshot : Snapshot
    sums : mapping of str to int
        Stores of an epoch's sums, and their sizes.
    strict : bool
        Whether a missing one raises; else moments and sums begin with zeros.
    joining : collection of str
        Parameters that are trained from now on: their moments begin with zeros in any case.

    Raises
    ------
    CheckpointError
        If a weight or buffer of the model is missing or has another shape.
    """
    tensors, session = snapshot.tensors, runtime.session
    missing: list[str] = []
    for store, dtype, prefix, slots, n in _stores(runtime):
        flat, best, average = (np.zeros(n, dtype) for _ in range(3))
        has_average = not prefix and f"swa.{store}" in session.stores()
        for slot in slots:
            name = slot.names[0]
            for places, values in (
                (_places(prefix, name), flat),
                ([] if prefix else [_BEST + name], best),
                ([_SWA + name, name] if has_average else [], average),
            ):
                found = next((place for place in places if place in tensors), None)
                if found is None:
                    is_new = _is_moment(prefix) and name in joining
                    missing += places[-1:] if values is flat and not is_new else []
                    continue
                if tensors[found].shape != tuple(slot.owner.shape):
                    raise CheckpointError(
                        f"resume: {found} must have shape {slot.owner.shape}, got "
                        f"{tensors[found].shape} in the checkpoint; it is of another model"
                    )
                values[slot.offset : slot.offset + slot.size] = tensors[found].reshape(-1)
        session.write(store, flat)
        if not prefix and f"best.{store}" in session.stores():
            session.write(f"best.{store}", best)
        if has_average:  # that of no epoch yet is read by no one
            session.write(f"swa.{store}", average)
    for name, n in sums.items():
        sums_then = tensors.get(_SUM + name)
        if sums_then is None or sums_then.size != n:
            missing.append(_SUM + name)
        else:
            session.write(name, sums_then)
    lacking = [name for name in missing if not name.startswith("hotloop.")]
    if lacking or (missing and strict):
        raise CheckpointError(
            f"resume: the checkpoint lacks {named(lacking or missing)}; it is of another model, "
            "optimizer or loss"
        )
    return missing


def _places(prefix: str, name: str) -> list[str]:
    """Where a value may stand in a file, the first that is there; the last is where it belongs."""
    if prefix == _AVERAGE:
        return [_AVERAGE + name, name]
    return [prefix + name] if prefix else [_TRAINED + name, _STATE + name, name]
