"""``save`` and ``load``: a model as one safetensors file that needs no Python class.

The tensors are the model's parameters and buffers under their state_dict names, so other tools can
read them; after them come the predict graph's constant arrays and the buffers that are not
persistent, each once. The header's metadata holds what else prediction needs, as JSON: the predict
graph for the batch sizes it was recorded at, with constants that are one number, class names, link
and fitted transforms, and the GPU's autotune cache. Loading rebuilds the graph through the same
checked builder that tracing uses; a file is data, and nothing in it is executed.

Files of format 1 have all constants in the metadata, as lists of numbers; those before format 3
have no checksums. A checkpoint is such a file with more tensors (see training/checkpoints).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json
import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import named
from hotloop.base.patterns import OWN_PREFIX
from hotloop.base.rules import path as check_path
from hotloop.base.structure import unflatten
from hotloop.base.suggest import did_you_mean, function_for
from hotloop.data.frames.encoding import Encoding
from hotloop.data.targets import name_of_target
from hotloop.errors import CheckpointError, ConfigError, HotloopError, ShapeError
from hotloop.interop.safetensors_file import read_safetensors, write_safetensors
from hotloop.nn.module import Module
from hotloop.nn.parameter import read_only
from hotloop.nn.placement import placement_of
from hotloop.nn.state import StateDict, state_items
from hotloop.training.inference import predict, run_batch
from hotloop.training.plans.accelerator import (
    losing_device,
    open_placement,
    take_autotune_cache,
)
from hotloop.training.plans.fitted import (
    Fitted,
    PredictOnly,
    check_kept,
    check_nodes,
    exclusive,
    fitted_of,
)
from hotloop.training.plans.runtime import Runtime, run_whole
from hotloop.training.plans.target_scale import scale_of
from hotloop.training.predictor import trace_forward

Array: TypeAlias = npt.NDArray[Any]

__all__ = ["LoadedModel", "describe_model", "load", "save"]

_FORMAT = 3
_FORMATS = (1, 2, 3)  # that load reads
_LAST_WITHOUT_SUMS = 2
_BATCHES = (1, 256)


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes a model to a safetensors file.

    Parameters
    ----------
    model : Module or TrainResult
        A trained model takes along what prediction needs: its graph, class names and
        standardisation. Constant arrays of the graph (masks, tables, the means of standardisation)
        are tensors ``hotloop.constant.<n>`` of the file; ``load_state_dict`` leaves them out. An
        untrained model's file has its tensors only.
    path : path-like
        An existing file is replaced as a whole or not at all.

    Raises
    ------
    ConfigError
        If it is no module, or the path none.
    CheckpointError
        If the file cannot be written; an old one is then as it was.
    BusyError
        While the model is being trained, other than in a callback: it has its weights of before
        until ``train`` returns.

    Examples
    --------
    >>> import os
    >>> X, y = hl.load_digits()
    >>> model = nn.Linear(64, 10)
    >>> result = hl.train(model, (X, y), max_epochs=1, enable_progress_bar=False)
    >>> hl.save(model, "net.safetensors")
    >>> os.path.getsize("net.safetensors") > 2600  # 650 weights of 4 bytes, and the graph
    True
    """
    check_kept("save", model)
    if not isinstance(model, Module):
        model = getattr(model, "model", model)
    if not isinstance(model, Module):
        raise ConfigError(
            f"save: must be a Module or a TrainResult, got {type(model).__name__}; write "
            "save(model, path)"
        )
    path = check_path("save: path", path)
    check_nodes("save", model)
    for value in (*model.parameters(), *model.buffers()):
        value.check_current()
    described, constants = describe_model(model)
    tensors = model.state_dict() | constants
    write_safetensors(path, tensors, {"format": "pt", "hotloop": described})


def describe_model(model: Module, *, with_graph: bool = True) -> tuple[str, dict[str, Array]]:
    """What a model's file has beside its weights.

    Parameters
    ----------
    model : Module
    with_graph : bool
        Whether it has what prediction needs.

    Returns
    -------
    str
        The metadata's entry "hotloop".
    dict of str to array
        Constants of its predict graph, by names that no value of the model has.
    """
    constants = _Constants({name for name, _ in state_items(model)})
    described = _describe(model, constants) if with_graph else _name_model(model)
    return json.dumps(described, allow_nan=False), constants.tensors


def _name_model(model: Module) -> dict[str, Any]:
    return {"format": _FORMAT, "class": type(model).__name__}


class _Constants:
    """Constant arrays of a model's graphs, each content once.

    Parameters
    ----------
    taken : collection of str
        Names that the file has already.

    Attributes
    ----------
    tensors : dict of str to array
    """

    def __init__(self, taken: Collection[str]) -> None:
        self.tensors: dict[str, Array] = {}
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._free = (
            name
            for name in (f"{OWN_PREFIX}constant.{i}" for i in itertools.count())
            if name not in taken
        )

    def name_of(self, array: Array) -> str:
        """The name of the tensor with this content; a new one where there is none."""
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._names:
            self._names[key] = next(self._free)
            self.tensors[self._names[key]] = array
        return self._names[key]


def _describe(model: Module, constants: _Constants) -> dict[str, Any]:
    fitted = fitted_of(model)
    described = _name_model(model)
    if fitted is None:
        return described
    described["fitted"] = {
        "classes": fitted.classes,
        "target_kind": fitted.target_kind,
        "link": fitted.link,
        "class_axis": fitted.class_axis,
        "fields": fitted.fields,
        "pixels": fitted.pixels,
        "padding": fitted.padding,
        "loss": fitted.loss,
        "scoring": fitted.scoring,
        "columns": fitted.columns,
        "encoding": fitted.encoding.to_data() if fitted.encoding is not None else None,
        "wavelengths": fitted.wavelengths,
        "autotune_cache": fitted.autotune_cache,
        "target_scale": {
            name: [constants.name_of(array) for array in arrays]
            for name, arrays in scale_of(fitted).fitted.items()
        },
        "input_scale": {
            name: [constants.name_of(array) for array in arrays]
            for _, scales in fitted.transforms
            for name, arrays in scales.items()
            if name_of_target(name) is None
        },
    }
    described["graphs"] = [_record(model, fitted, batch, constants) for batch in _BATCHES]
    return described


def _input_spec(fitted: Fitted) -> Any:
    """The structure of forward's arguments, from the fields' names."""
    names = [name for name, _, _ in fitted.fields]
    if names == ["x"]:
        return {"tuple": [None]}
    tails = [name.partition(".")[2] for name in names]
    if all(tail.isdigit() for tail in tails):
        return {"tuple": [None] * len(tails)}
    return {"tuple": [{"dict": [[tail, None] for tail in tails]}]}


def _record(model: Module, fitted: Fitted, batch: int, constants: _Constants) -> dict[str, Any]:
    """The predict graph of a batch size, as data; parameters and constants by their name.

    Buffers that are not persistent, which the file's tensors lack, are constants.
    """
    runtime = Runtime(model, open_placement("cpu"))
    inputs = [(dtype, (batch, *shape)) for _, dtype, shape in fitted.fields]
    spec = _input_spec(fitted)
    graph, out_spec = runtime.trace(
        lambda trace: trace_forward(trace, model, inputs, spec, None), training=False
    )
    saved = {name for name, _ in state_items(model)}
    left_out = {slot.name: slot.owner for slot in runtime.layout.slots if slot.name not in saved}
    leaves = []
    for leaf in graph.leaves():
        entry = {key: leaf[key] for key in ("id", "kind", "name", "dtype", "shape")}
        value = graph.const_value(leaf["id"]) if leaf["kind"] == "const" else None
        if leaf["kind"] == "state" and leaf["name"] in left_out:
            entry["kind"], value = "const", left_out[leaf["name"]].value()
        if value is not None:
            if value.ndim:
                entry["tensor"] = constants.name_of(value)
            else:
                entry["value"] = _write_number(value.item())
        leaves.append(entry)
    nodes = [
        {
            **{key: node[key] for key in ("op", "inputs", "outputs")},
            "attrs": {
                name: _write_number(value)
                for name, value in node["attrs"].items()
                if value is not None  # a text that may be left out: attention's random stream
            },
        }
        for node in graph.nodes()
    ]
    outputs = list(graph.outputs())
    return {
        "batch": batch,
        "in": spec,
        "out": out_spec,
        "leaves": leaves,
        "nodes": nodes,
        "outputs": outputs,
    }


class LoadedModel(PredictOnly):
    """A model from a file: it predicts, without its Python class.

    ``predict(loaded, data, proba=..., labels=...)``, ``evaluate(loaded, data)`` and
    ``loaded(array)`` work as on the model, on the CPU or, after ``loaded.cuda()``, on a GPU; to
    train on, build the module and ``load_state_dict(loaded.state_dict())``.

    Attributes
    ----------
    class_name : str
        Of the module that was saved.
    device : Device
        Where it predicts.
    """

    def __init__(self, tensors: dict[str, Array], described: dict[str, Any]) -> None:
        self.class_name: str = str(described.get("class", "Module"))
        self._tensors = tensors
        fitted = described["fitted"]
        scales = dict(fitted.get("target_scale", {}))  # not in older files
        scaled = {field: tuple(tensors[k] for k in keys) for field, keys in scales.items()}
        encoding = fitted.get("encoding")  # not in older files
        of_inputs = dict(fitted.get("input_scale", {}))  # nor this; the graphs have them applied
        self._input_scale = {
            field: tuple(tensors[k] for k in keys) for field, keys in of_inputs.items()
        }
        self._fitted = Fitted(
            classes=fitted["classes"],
            target_kind=fitted["target_kind"],
            link=fitted["link"],
            transforms=[("standardize", scaled)] if scaled else [],
            fields=[(name, dtype, tuple(shape)) for name, dtype, shape in fitted["fields"]],
            loss=fitted["loss"],
            class_axis=fitted.get("class_axis", 1),
            columns=fitted["columns"],
            scoring=dict(fitted.get("scoring", {})),  # not in older files
            pixels=dict(fitted.get("pixels", {})),  # not in older files
            padding=tuple(fitted["padding"]) if fitted.get("padding") else None,
            encoding=Encoding.from_data(encoding) if encoding is not None else None,
            wavelengths=fitted.get("wavelengths"),
        )
        lines = fitted.get("autotune_cache", fitted.get("choices", ""))  # choices: in older files
        take_autotune_cache(str(lines))
        self._recorded = described["graphs"]
        leaves = [leaf for graph in self._recorded for leaf in graph["leaves"]]
        self._constants = {leaf["tensor"] for leaf in leaves if "tensor" in leaf}
        for fitted_by in (scales, of_inputs):
            self._constants.update(key for keys in fitted_by.values() for key in keys)
        self._placement = "cpu"
        self._place(open_placement(self._placement))

    def _place(self, device: _core.Device) -> None:
        self.device = device
        self._pid = os.getpid()
        session = _core.Session(device)
        self._graphs = [Recorded(session, self._tensors, graph) for graph in self._recorded]
        self._graphs.sort(key=lambda graph: graph.batch)

    def to(self, device: Any) -> LoadedModel:
        """Predicts on another device from now on: "cpu", "cuda", "cuda:1" or "auto".

        Raises
        ------
        ConfigError
            For another name.
        DeviceError, OutOfMemoryError
            If there is no GPU that can be used; it predicts where it did before.
        """
        with exclusive(self, "to"), losing_device():
            placement = placement_of(device)
            self._place(open_placement(placement))
            self._placement = placement
        return self

    def cuda(self, device: Any = None) -> LoadedModel:
        """Predicts on a GPU from now on, the first if no number is given."""
        return self.to("cuda" if device is None else device)

    def cpu(self) -> LoadedModel:
        """Predicts on the CPU from now on."""
        return self.to("cpu")

    def __repr__(self) -> str:
        n = sum(array.size for array in self._state().values())
        return f"LoadedModel({self.class_name}, {n:,} values)"

    @property
    def classes(self) -> Any:
        """Names by class id, of several targets a dict; None where classes had no names."""
        return copy.copy(self._fitted.classes)

    def predict(self, data: Any, batch_size: int | None = None, **options: Any) -> Any:
        """As :func:`hotloop.predict` of this model.

        Parameters
        ----------
        data, batch_size, **options
            As there: ``proba=True``, ``labels=True``.

        Returns
        -------
        ndarray, or forward's structure of them
        """
        return predict(cast("Any", self), data, batch_size, **options)

    if not TYPE_CHECKING:  # a type checker should still see that an attribute is wrong

        def __getattr__(self, name: str) -> Any:
            near = did_you_mean(name, dir(type(self)))
            raise AttributeError(f"LoadedModel has no {name!r}{function_for(name) or near}")

    def state_dict(self) -> dict[str, Array]:
        """Parameters and buffers by name, as read-only arrays, and what training found of the data,
        as :meth:`hotloop.nn.Module.state_dict` has it.
        """
        state = StateDict((name, read_only(array)) for name, array in self._state().items())
        scales = {key: of for _, values in self._fitted.transforms for key, of in values.items()}
        scales |= self._input_scale
        transforms = [("standardize", scales)] if scales else []
        state.metadata = dataclasses.replace(self._fitted, transforms=transforms)
        return state

    def _state(self) -> dict[str, Array]:
        """Parameters and buffers."""
        return {
            name: array
            for name, array in self._tensors.items()
            if name not in self._constants and not name.startswith(OWN_PREFIX)
        }

    def recorded(self, rows: int) -> Recorded:
        """The graph of the smallest batch that holds the rows, else of the largest."""
        return next((g for g in self._graphs if g.batch >= rows), self._graphs[-1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """forward on one batch of arrays; other arguments are those of training."""
        return run_batch(self, args, kwargs)

    def run(self, inputs: list[Array], spec: Any, path: str | None) -> Any:
        """One batch, padded to a recorded size and cut back."""
        if path is not None:
            raise ConfigError(
                "outputs: a model loaded from a file has no modules; build the module and "
                "load_state_dict"
            )
        if self._pid != os.getpid():
            # In a forked child: a thread of the parent may have been running these plans.
            self._place(open_placement(self._placement))
        n = len(inputs[0])
        parts = []
        out_spec: Any = None
        at = 0
        while at < max(n, 1):
            recorded = self.recorded(n - at)
            batch = [array[at : at + recorded.batch] for array in inputs]
            made, out_spec = recorded.run(batch)
            parts.append(made)
            at += recorded.batch
        return unflatten([np.concatenate(column) for column in zip(*parts)], out_spec)


class Recorded:
    """One recorded predict graph, planned when it is first used.

    Attributes
    ----------
    batch : int
        Its rows.
    """

    def __init__(
        self, session: _core.Session, tensors: dict[str, Array], data: dict[str, Any]
    ) -> None:
        self.batch = int(data["batch"])
        self._session = session
        self._out = data["out"]
        self._graph = _rebuild(data, tensors, session)
        self._n_outputs = len(data["outputs"])

    @functools.cached_property
    def plan(self) -> _core.Plan:
        """What runs it."""
        return _core.Plan(self._session, self._graph)

    def predict(self, device: _core.Device) -> dict[str, Any]:
        """``info()`` and "text" of its plan on another device, of which nothing is taken."""
        return _core.predict(device, self._graph)

    def run(self, inputs: list[Array]) -> tuple[list[Array], Any]:
        """Up to ``batch`` rows: the outputs and their structure."""
        n = len(inputs[0])
        for i, array in enumerate(inputs):
            if n < self.batch:
                padded = np.zeros((self.batch, *array.shape[1:]), array.dtype)
                padded[:n] = array
                array = padded
            self.plan.input(i, array)
        run_whole(self.plan)
        outputs = [self.plan.output(i) for i in range(self._n_outputs)]
        for output in outputs:
            if output.shape[:1] != (self.batch,):
                raise ShapeError(
                    "predict: an output of a model from a file must have one row for each row of "
                    f"the data, got {output.shape} for {self.batch} rows; build the module and "
                    "load_state_dict(loaded.state_dict())"
                )
        return [output[:n] for output in outputs], self._out


def _rebuild(
    data: dict[str, Any], tensors: dict[str, Array], session: _core.Session
) -> _core.Graph:
    """A graph from its description; every step is checked by the builder."""
    graph = _core.Graph()
    ids: dict[int, int] = {}
    for leaf in data["leaves"]:
        kind, shape, dtype = leaf["kind"], tuple(leaf["shape"]), leaf["dtype"]
        if kind == "input":
            made = graph.input(leaf["name"], dtype, shape)
        elif kind == "const":
            if "tensor" in leaf:
                made = graph.const(_tensor_of(tensors, leaf["tensor"], shape, dtype))
            else:
                value = _read_number(leaf["value"])
                made = graph.const(np.asarray(value, dtype).reshape(shape))
        elif kind in ("param", "state") and leaf["name"] in tensors:
            array = _tensor_of(tensors, leaf["name"], shape)
            store = f"model.{leaf['name']}"
            session.store(store, dtype, array.size)
            session.write(store, array)
            graph.store(store, dtype, array.size)
            make = graph.param if kind == "param" else graph.state
            made = make(leaf["name"], dtype, shape, store, 0)
        elif kind == "scalar" or leaf["name"] == "control":
            continue  # the control block: every graph has one, and prediction does not read it
        else:
            raise CheckpointError(f"load: leaf {leaf['name']!r} of kind {kind!r} is unknown")
        ids[leaf["id"]] = made
    for node in data["nodes"]:
        outputs = graph.add(node["op"], [ids[i] for i in node["inputs"]], **_read_attrs(node))
        ids.update(zip(node["outputs"], outputs, strict=True))
    for value in data["outputs"]:
        graph.output(ids[value])
    return graph


def _tensor_of(
    tensors: dict[str, Array], name: str, shape: tuple[int, ...], dtype: str | None = None
) -> Array:
    """A tensor of the file that a leaf names; refuses one that does not fit the leaf."""
    array = tensors[name]
    if array.shape != shape:
        raise CheckpointError(f"load: {name} must have shape {shape}, got {array.shape}")
    if dtype is not None and str(array.dtype) != dtype:
        raise CheckpointError(f"load: {name} must be of dtype {dtype}, got {array.dtype}")
    return array


def _write_number(value: Any) -> Any:
    """A value as it is, but infinity and NaN, which JSON does not have, as ``{"float": "inf"}``."""
    is_special = isinstance(value, float) and not math.isfinite(value)
    return {"float": str(value)} if is_special else value


def _read_number(value: Any) -> Any:
    return float(value["float"]) if isinstance(value, dict) else value


def _read_attrs(node: dict[str, Any]) -> dict[str, Any]:
    """A node's attributes, by their present names where an older file has others."""
    attrs = {name: _read_number(value) for name, value in dict(node["attrs"]).items()}
    if "wide" in attrs:
        attrs["float32_out"] = attrs.pop("wide")
    if "pads" in attrs:
        pads = attrs.pop("pads")
        attrs["before"], attrs["after"] = pads[::2], pads[1::2]
    if node["op"] == "matmul":
        attrs.pop("end", None)  # 0 in every file
    return attrs


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Reads a model that :func:`save` wrote.

    Parameters
    ----------
    path : path-like
        A safetensors file; nothing in it is executed.

    Returns
    -------
    LoadedModel
        Predicts without the Python class, rows of the shape that training had.

    Raises
    ------
    CheckpointError
        If the file is missing, cut short, altered in its structure, or holds no predict graph.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> model = nn.Linear(64, 10)
    >>> hl.train(model, (X, y), max_epochs=1, enable_progress_bar=False).save("net.safetensors")
    >>> loaded = hl.load("net.safetensors")
    >>> bool((hl.predict(loaded, X, labels=True) == hl.predict(model, X, labels=True)).all())
    True
    """
    path = check_path("load: path", path)
    tensors, metadata = read_safetensors(path)
    if "hotloop" not in metadata:
        raise CheckpointError(
            f"load: {path} was not written by hotloop; build the module and "
            "load_state_dict(hl.read_weights(path))"
        )
    try:
        described = json.loads(metadata["hotloop"])
        if described.get("format") not in _FORMATS:
            raise CheckpointError(
                f"load: {path} has format {described.get('format')!r}, this version reads "
                f"{named(list(map(str, _FORMATS)))}; a newer hotloop wrote it"
            )
        if described["format"] > _LAST_WITHOUT_SUMS and "checksums" not in metadata:
            raise CheckpointError(f"load: {path} is damaged: it has no checksums")
        if "graphs" not in described:
            raise CheckpointError(
                f"load: {path} holds a model's values without its predict graph; build the module "
                "and load_state_dict"
            )
        return LoadedModel(tensors, described)
    except (CheckpointError, MemoryError):
        raise
    except (HotloopError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"load: {path} is damaged: {error}") from error
