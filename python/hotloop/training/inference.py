"""``predict``, ``evaluate`` and ``model(array)``.

A model keeps one inference runtime with a few plans, one per batch size; parameters are uploaded
again only when they changed. Where modules, parameters or attributes of the model were replaced,
the runtime is made anew.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import flag, show, whole
from hotloop.base.structure import flatten, unflatten
from hotloop.base.suggest import closest
from hotloop.data.arrays import column_names, to_array
from hotloop.data.module import DataModule, as_datamodule
from hotloop.errors import BusyError, ConfigError, DataError, ShapeError
from hotloop.graph.trace import Trace
from hotloop.nn.edits import attribute_version, latest_edit, structure_version
from hotloop.nn.layout import resolve_lazy
from hotloop.nn.module import Module
from hotloop.training.config import TrainingConfig
from hotloop.training.plans.accelerator import (
    choose_device,
    close_gpus,
    losing_device,
    open_placement,
)
from hotloop.training.plans.fitted import (
    Fitted,
    FittedTarget,
    check_model,
    exclusive,
    fitted_of,
    warn_of_untrained_norms,
)
from hotloop.training.plans.lookups import check_lookups
from hotloop.training.plans.precision import compute_dtype_of
from hotloop.training.plans.runtime import Runtime, Sums, check_output
from hotloop.training.plans.steps import Steps, run_plans
from hotloop.training.scoring.losses import LOSSES
from hotloop.training.scoring.matching import pick_output, put_output

Array: TypeAlias = npt.NDArray[Any]

__all__ = ["Predictor", "check_placement", "empty_cache", "evaluate", "predict", "run_batch"]

_DEFAULT_BATCH = 1024
_MAX_PLANS = 8


class Predictor:
    """Runs a model's forward pass on batches of arrays."""

    def __init__(self, model: Module) -> None:
        self._model = model
        self._runtime: Runtime | None = None
        self._placement = ""
        self._edit = -1
        self._version: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._fitted: Any = None
        self._plans: OrderedDict[Any, tuple[_core.Plan, Any]] = OrderedDict()

    def _ready(self, shapes: list[tuple[str, tuple[int, ...]]]) -> Runtime:
        wanted = self._model.__dict__.get("_placement") or "cpu"
        if self._runtime is None or wanted != self._placement or self._is_stale():
            self.close()
            resolve_lazy(self._model, shapes)
            self._edit, self._version = latest_edit(), _version_of(self._model)
            self._fitted = fitted_of(self._model)
            warn_of_untrained_norms("predict", self._model)
            self._runtime = Runtime(self._model, open_placement(wanted))
            self._placement = wanted
        self._runtime.upload()
        return self._runtime

    def _is_stale(self) -> bool:
        """Whether the model is another than the plans are of."""
        if fitted_of(self._model) is not self._fitted:  # plans hold its transforms
            return True
        edit = latest_edit()
        if edit == self._edit:
            return False
        self._edit = edit
        return _version_of(self._model) != self._version

    def close(self) -> None:
        """Gives the plans' memory back."""
        self._plans.clear()
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def run(self, inputs: list[Array], spec: Any, path: str | None, *, fitted: bool) -> Any:
        """forward on one batch; the output's structure as arrays."""
        runtime = self._ready([(str(a.dtype), a.shape) for a in inputs])
        shapes = tuple((a.shape, str(a.dtype)) for a in inputs)
        numbers = tuple(runtime.last_numbers().items())  # constants of the plan
        key = (shapes, repr(spec), path, fitted, numbers)
        if key not in self._plans:
            self._plans[key] = self._plan(runtime, inputs, spec, path, fitted)
            while len(self._plans) > _MAX_PLANS:
                runtime.drop(self._plans.popitem(last=False)[1][0])
        self._plans.move_to_end(key)
        plan, out_spec = self._plans[key]
        for i, array in enumerate(inputs):
            plan.input(i, array)
        how = "deadline"
        while how == "deadline":
            how, _ = plan.run(1, 0.05)
        n = len(flatten(_placeholders(out_spec))[0])
        return unflatten([plan.output(i) for i in range(n)], out_spec)

    def _plan(
        self, runtime: Runtime, inputs: list[Array], spec: Any, path: str | None, fitted: bool
    ) -> tuple[_core.Plan, Any]:
        def build(trace: Trace) -> Any:
            return trace_forward(
                trace, self._model, [(str(a.dtype), a.shape) for a in inputs], spec, path, fitted
            )

        graph, out_spec = runtime.trace(build, training=False)
        plan = runtime.plan(graph)
        runtime.tune(plan)
        return plan, out_spec


def _version_of(model: Module) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return structure_version(model), attribute_version(model)


def trace_forward(
    trace: Trace,
    model: Module,
    inputs: list[tuple[str, tuple[int, ...]]],
    spec: Any,
    path: str | None,
    fitted: bool,
) -> Any:
    """Records forward on new inputs; every leaf of the result becomes an output.

    Returns
    -------
    Any
        The structure of the result.
    """
    known = fitted_of(model) if fitted else None
    tensors = []
    for i, (dtype, shape) in enumerate(inputs):
        tensor = trace.input(f"x{i}", dtype, shape)
        trained = known.fields[i][1] if known is not None and i < len(known.fields) else None
        if trained is not None:
            tensor = tensor.to(trained)
        elif dtype in ("float64", "float16"):
            tensor = tensor.to("float32")
        if known is not None and i < len(known.fields):
            for _, values in known.transforms:
                if known.fields[i][0] in values:
                    mean, std = values[known.fields[i][0]]
                    tensor = (tensor - trace.const(mean)) / trace.const(std)
        tensors.append(tensor)
    x = unflatten(tensors, spec)
    seen: dict[str, Any] = {}
    if path is not None:
        try:
            model.get_submodule(path)
        except AttributeError as error:
            raise ConfigError(f"outputs: must be a module's path, got {path!r}: {error}") from None
        trace.watch(path, seen)
    result = model(*x) if isinstance(x, tuple) else model(x)
    if path is not None:
        if path not in seen:
            raise ConfigError(f"outputs: module {path!r} did not run in forward")
        result = seen[path]
    check_output(model, result)
    leaves, out_spec = flatten(result)
    for leaf in leaves:
        trace.graph.output(leaf.id_in(trace))
    return out_spec


def _placeholders(spec: Any) -> Any:
    """A structure of the spec's form, to count its leaves."""
    if spec is None:
        return 0
    kind, parts = next(iter(spec.items()))
    if kind == "dict":
        return {key: _placeholders(part) for key, part in parts}
    return tuple(_placeholders(part) for part in parts)


_predictors: weakref.WeakKeyDictionary[Module, Predictor] = weakref.WeakKeyDictionary()


def empty_cache() -> None:
    """Drops the plans that prediction keeps, their memory, and GPUs that nothing uses.

    The next prediction makes its plan again, which takes some milliseconds.
    """
    for predictor in list(_predictors.values()):
        with contextlib.suppress(BusyError):  # another thread predicts and frees it later
            predictor.close()
    _predictors.clear()
    close_gpus()


def check_placement(placement: str) -> None:
    """Opens the device of a placement, so that one that cannot be had is refused where it is named.

    Parameters
    ----------
    placement : str
        As :func:`hotloop.nn.placement.placement_of` gives it.

    Raises
    ------
    DeviceError, OutOfMemoryError
    """
    with losing_device():
        open_placement(placement)


def _predictor(model: Module) -> Predictor:
    if model not in _predictors:
        _predictors[model] = Predictor(model)
    return _predictors[model]


def run_batch(model: Module, args: tuple[Any, ...]) -> Any:
    """``model(array)``: forward in evaluation mode on one batch.

    Parameters
    ----------
    model : Module
    args : tuple
        forward's arguments: arrays or structures of them.

    Returns
    -------
    Any
        forward's structure as NumPy arrays.
    """
    leaves, spec = flatten(tuple(args))
    arrays = [as_input(leaf) for leaf in leaves]
    with exclusive(model, "model(...)"), losing_device():
        return _predictor(model).run(arrays, spec, None, fitted=False)


def as_input(value: Any) -> Array:
    """An input as a native, contiguous array of a dtype that the core knows."""
    return to_array(value, "input")


def predict(
    model: Module,
    data: Any,
    batch_size: int | None = None,
    *,
    proba: bool = False,
    labels: bool = False,
    outputs: str | None = None,
) -> Any:
    """Runs a model on data, in order, in evaluation mode.

    Parameters
    ----------
    model : Module, TrainResult or loaded model
        What runs; on the CPU unless ``model.cuda()`` placed it elsewhere.
    data : array, tuple or dict of arrays, or DataModule
        As ``DataModule.from_arrays`` takes them; a dict's columns are found by name. Of a
        DataModule, the test split, else the validation split.
    batch_size : int, optional
        Rows at a time; 1024 by default. It does not change the result.
    proba : bool
        Probabilities, a column per class (one column from a single logit), instead of forward's
        output, which is logits.
    labels : bool
        The likeliest class of each row: its name, or its id where classes have no names.
    outputs : str, optional
        Path of the module whose output is wanted, ``"body.2"``.

    Returns
    -------
    ndarray, or forward's structure of them
        First dim: rows in input order. Without proba and labels ``(rows, ...)`` as forward returns
        it; with proba ``(rows, classes)``; with labels ``(rows,)``, where targets are class ids per
        position (token, pixel) in their shape. Of several targets forward's structure, in which
        outputs that are no classes stay as they are.

    Raises
    ------
    ConfigError
        If proba or labels is asked of a model that was not trained as a classifier.
    DataError
        If a dict lacks a column that training had, or holds floats where training had integers.
    ShapeError
        If the data does not have the shape that the model takes.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> result = hl.train(model, (X, y), max_epochs=2, enable_progress_bar=False)
    >>> hl.predict(model, X[:5]).shape, hl.predict(model, X[:5], proba=True).shape
    ((5, 10), (5, 10))
    >>> hl.predict(model, X[:5], labels=True).shape
    (5,)
    >>> hl.predict(model, X[:5], outputs="1").shape  # what the ReLU gives
    (5, 32)
    """
    model = check_model("predict", getattr(model, "model", model), loaded=True)
    fitted = fitted_of(model)
    proba, labels = flag("proba", proba), flag("labels", labels)
    if proba and labels:
        raise ConfigError("predict: proba=True and labels=True exclude each other; call it twice")
    arrays, spec = _inputs_of(data, fitted)
    n = len(arrays[0])
    if any(len(a) != n for a in arrays):
        raise ShapeError(f"predict: inputs must have equal lengths, got {[len(a) for a in arrays]}")
    _check_fields(arrays, fitted, exactly=hasattr(model, "runner"))
    wanted = _DEFAULT_BATCH if batch_size is None else whole(1)("batch_size", batch_size)
    size = min(wanted, max(n, 1))
    parts: list[list[Array]] = []
    out_spec: Any = None
    with exclusive(model, "predict"), losing_device():
        runner = model.runner if hasattr(model, "runner") else _predictor(model)
        for begin in range(0, max(n, 1), size):
            batch = [a[begin : begin + size] for a in arrays]
            try:
                made = runner.run(batch, spec, outputs, fitted=True)
            except DataError:
                _find_bad_row(runner, batch, spec, outputs, begin)
                raise
            leaves, out_spec = flatten(made)
            parts.append(leaves)
    joined = [np.concatenate(column) if np.ndim(column[0]) else column[0] for column in zip(*parts)]
    result = unflatten(joined, out_spec)
    if outputs is None and (proba or labels):
        return _as_labels(result, fitted, proba=proba, labels=labels)
    return result


def _find_bad_row(
    runner: Any, batch: list[Array], spec: Any, outputs: str | None, first: int
) -> None:
    """Runs a batch that was refused again with each of its rows alone, to name the row."""
    for i in range(len(batch[0])):
        alone = [np.repeat(array[i : i + 1], len(array), axis=0) for array in batch]
        try:
            runner.run(alone, spec, outputs, fitted=True)
        except DataError as error:
            what = str(error).partition(" at position ")[0]
            raise DataError(f"predict: row {first + i}: {what}") from None


def _inputs_of(data: Any, fitted: Any) -> tuple[list[Array], Any]:
    """Arrays of forward's inputs, and their structure as a tuple of arguments."""
    if isinstance(data, DataModule):
        split = data.split("test") or data.split("val")
        if split is None:
            raise ConfigError("predict: the DataModule has neither a test nor a validation split")
        data = split.arrays()["x"]
    data = _find_columns(data, fitted)
    known = [name.partition(".")[2] for name, _, _ in fitted.fields] if fitted is not None else []
    if isinstance(data, Mapping):
        data = (_columns_of(data, known),)
    elif known and known[0] and not known[0].isdigit():
        raise DataError(
            f"predict: x must be a dict of the columns {', '.join(known)} as in training, got "
            f"{type(data).__name__}"
        )
    elif not isinstance(data, tuple):
        data = (data,)
    leaves, spec = flatten(_lists_as_arrays(data))
    return [as_input(leaf) for leaf in leaves], spec


def _find_columns(data: Any, fitted: Any) -> Any:
    """Of a data frame, the columns that training had, in its order."""
    given, wanted = column_names(data), fitted.columns if fitted is not None else None
    if given is None or wanted is None or list(given) == wanted:
        return data
    missing = [name for name in wanted if name not in given]
    if missing:
        raise DataError(_lacks("X", missing, given))
    return data[wanted]


def _lacks(what: str, missing: list[str], given: Iterable[str]) -> str:
    """The sentence about columns that training had, each with the one that may be meant."""
    unused = list(given)
    named = []
    for name in missing:
        near = closest(name, unused)
        named.append(repr(name) + (f" (did you mean {near!r}?)" if near else ""))
    return f"predict: {what} must have all columns of training, got none for {', '.join(named)}"


def _lists_as_arrays(value: Any) -> Any:
    """Nested lists are arrays, as in training; tuples and dicts are structure."""
    if isinstance(value, list):
        return as_input(value)
    if isinstance(value, tuple):
        return tuple(_lists_as_arrays(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _lists_as_arrays(item) for key, item in value.items()}
    return value


def _columns_of(columns: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """The columns that training had, in its order: what was fitted goes by position."""
    if not any(known):
        return dict(columns)
    missing = [name for name in known if name not in columns]
    if missing:
        raise DataError(_lacks("x", missing, [str(name) for name in columns]))
    return {name: columns[name] for name in known}


def _check_fields(arrays: list[Array], fitted: Any, *, exactly: bool) -> None:
    if fitted is None:
        return
    if len(arrays) != len(fitted.fields):
        if exactly:
            names = ", ".join(name for name, _, _ in fitted.fields)
            raise ShapeError(
                f"predict: must get one array for each of {names} as in training, got {len(arrays)}"
            )
        return
    for array, (name, dtype, shape) in zip(arrays, fitted.fields):
        if array.shape[1:] != shape:
            raise ShapeError(
                f"predict: {name} must have shape (rows, {', '.join(map(str, shape))}) as in "
                f"training, got {array.shape}"
            )
        if dtype == "int64" and array.dtype.kind == "f":
            raise DataError(
                f"predict: {name} must hold integers as in training, got {array.dtype}; use "
                ".astype(np.int64) if they are whole"
            )


def _as_labels(result: Any, fitted: Any, *, proba: bool, labels: bool) -> Any:
    what = "proba" if proba else "labels"
    links = fitted.link if fitted is not None else None
    if not (any(links.values()) if isinstance(links, dict) else links):
        raise ConfigError(
            f"predict: {what}=True needs a model trained as a classifier; call "
            "predict(model, data) and use the outputs"
        )
    names = list(fitted.link) if isinstance(fitted.link, dict) else [""]
    for name in names:
        target = fitted.of(name)
        if target.link is None:
            continue  # values beside classes stay what they are
        found = _find_labels if labels else _find_proba
        answer = found(pick_output(result, name, names), target)
        result = put_output(result, answer, name, names)
    return result


def _find_labels(logits: Array, target: FittedTarget) -> Array:
    """The likeliest class at each position, by its name where it has one."""
    axis = target.class_axis
    if target.kind == "multilabel" or logits.ndim < 2:
        axis = None
    if axis is not None and logits.shape[axis] == 1:
        logits, axis = logits.squeeze(axis), None
    _check_finite(logits, axis)
    cut = 0.5 if target.link == "identity" else 0.0
    ids: Array = (logits > cut).astype(np.int64) if axis is None else np.argmax(logits, axis)
    if target.classes is None or target.kind == "multilabel":
        return ids
    return np.asarray(np.asarray(target.classes)[ids])


def _find_proba(logits: Array, target: FittedTarget) -> Array:
    """Probabilities, in the shape of the outputs."""
    link, axis = target.link, target.class_axis
    assert link is not None  # the caller has checked
    if link == "identity":
        return logits
    if link != "softmax" or axis is None or axis in (-1, logits.ndim - 1):
        return apply_op(link, logits)
    last = np.ascontiguousarray(np.moveaxis(logits, axis, -1))
    return np.ascontiguousarray(np.moveaxis(apply_op(link, last), -1, axis))


def _check_finite(logits: Array, axis: int | None) -> None:
    """Refuses rows whose likeliest class is not known."""
    deciding = logits if axis is None else logits.max(axis)  # -inf for a class is an answer
    is_bad = ~np.isfinite(deciding).reshape(len(logits), -1).all(1)
    if is_bad.any():
        rows = np.flatnonzero(is_bad)
        raise DataError(
            f"predict: labels=True needs outputs that are finite, got {show(logits[rows[0]])} "
            f"in row {rows[0]} ({len(rows)} rows in all); look for NaN or infinity in the inputs"
        )


def apply_op(op: str, array: Array) -> Array:
    """One op of the core on an array."""
    session = _core.Session(_core.Device("cpu"))
    graph = _core.Graph()
    (out,) = graph.add(op, [graph.input("x", str(array.dtype), array.shape)])
    graph.output(out)
    plan = _core.Plan(session, graph)
    plan.input(0, array)
    plan.run(1, 1e9)
    return plan.output(0)


def evaluate(
    model: Module, data: Any, split: str = "test", *, config: Any = None, **overrides: Any
) -> dict[str, float]:
    """Loss and metrics of a model on a split.

    Parameters
    ----------
    model : Module, TrainResult or loaded model
        Of a loaded model, which has no ``training_step``, loss and metrics compare its outputs with
        the targets.
    data : DataModule, or a tuple (X, y)
        A tuple is evaluated as a whole. Classes are found by their names, in whatever order and
        number they come here.
    split : {"test", "val", "train"}
        Of a DataModule.
    config : TrainingConfig, optional
        Its loss, metrics, label smoothing, class weights and precision count. Without one, those of
        the run that trained the model; a file has the loss alone, where that has a name. A model
        that was not trained gets the defaults.

    **overrides
        Fields of the configuration, ``metrics=["f1"]``.

    Returns
    -------
    dict of str to float
        ``loss`` and metrics by name.

    Raises
    ------
    ConfigError
        If the data has no such split, or a loaded model was trained with a loss that has no name.
    DataError
        For a class that training did not have, and as in training.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> data = hl.DataModule.from_arrays(X, y, val=0.2, test=0.2)
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> result = hl.train(model, data, max_epochs=2, metrics="f1", enable_progress_bar=False)
    >>> sorted(hl.evaluate(result, data, split="test"))
    ['f1', 'loss']
    """
    if not isinstance(split, str):
        raise ConfigError(
            f"evaluate: split must be 'test', 'val' or 'train', got {type(split).__name__}; inputs "
            "and targets go together: write evaluate(model, (X, y))"
        )
    config = config or getattr(model, "config", None)
    model = check_model("evaluate", getattr(model, "model", model), loaded=True)
    known = fitted_of(model)
    if config is None and "loss" in overrides:
        config = TrainingConfig()
    config = TrainingConfig.resolve(config or _config_of(model, known), overrides)
    if not isinstance(data, DataModule):
        data, split = as_datamodule(data, val=None), "train"
    if known is not None and known.classes is not None:
        data = data.with_classes(known.classes)
    part = data.split(split)
    if part is None:
        raise ConfigError(
            f"evaluate: the data has no {split} split; give from_arrays {split}=0.2 or choose "
            "another split"
        )
    data.check(split)
    if hasattr(model, "runner"):
        return _evaluate_loaded(model, data, split, config)
    warn_of_untrained_norms("evaluate", model)
    transforms = known.transforms if known is not None else None
    return _score(model, data, split, config, transforms, data, split)


def _score(
    model: Module,
    data: DataModule,
    split: str,
    config: TrainingConfig,
    transforms: list[Any] | None,
    checked: DataModule,
    checked_split: str,
) -> dict[str, float]:
    """Loss and metrics; ``checked`` is the user's data, by whose rows a wrong label is named."""
    with exclusive(model, "evaluate"), losing_device():
        device, _ = choose_device(config.accelerator, config.precision, config.devices)
        runtime = Runtime(model, device, seed=config.seed, loss=config.loss)
        try:
            runtime.compute_dtype = compute_dtype_of(config.precision)
            steps = Steps(runtime, data, config, transforms=transforms)
            sums = Sums("eval")
            groups = data.batches(split, training=False, merge_tail=False)
            plans = steps.eval_plans(split, groups, sums)
            runtime.upload()
            check_lookups(runtime, *plans[0].traced)
            steps.check_labels(checked, checked_split)
            outputs = run_plans(plans, collect=steps.n_collected)
            values = steps.values(sums.read(runtime.session))
        finally:
            runtime.close()
    return values | steps.function_values(split, outputs)


def _config_of(model: Any, known: Fitted | None) -> TrainingConfig:
    """What a model that was trained is scored by.

    Raises
    ------
    ConfigError
        If it was trained with a loss that neither its metadata nor a file can hold.
    """
    if known is None:
        return TrainingConfig()
    if known.config is not None:
        return known.config
    losses = known.loss.values() if isinstance(known.loss, dict) else [known.loss]
    if set(losses) <= set(LOSSES.values()):
        return TrainingConfig(loss=known.loss)
    if known.loss == "training_step" and hasattr(model, "training_step"):
        return TrainingConfig()
    raise ConfigError(
        f"evaluate: the model was trained with the loss {known.loss!r}, which a file or a pickle "
        "does not hold; give config=TrainingConfig(loss=...), or, for training_step, build the "
        "module and load_state_dict(model.state_dict())"
    )


def _evaluate_loaded(
    loaded: Any, data: DataModule, split: str, config: TrainingConfig
) -> dict[str, float]:
    """The outputs as the data of a model that hands them through."""
    part = data.split(split)
    assert part is not None  # evaluate has checked
    arrays = part.arrays()
    leaves, spec = flatten(predict(loaded, arrays["x"], data.batch_size))

    class Outputs(Module):
        def forward(self, *outputs: Any) -> Any:
            return unflatten(outputs, spec)

    handed = DataModule.from_arrays(
        tuple(leaves),
        arrays.get("y"),
        sample_weight=arrays.get("weight"),
        batch_size=data.batch_size,
        allow_nonfinite=True,
    )
    return _score(Outputs(), handed, "train", config, None, data, split)
