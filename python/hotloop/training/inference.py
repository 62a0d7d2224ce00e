"""``predict``, ``evaluate`` and ``model(array)``.

A model keeps one inference runtime with a few plans, one per batch size; parameters are uploaded
again only when they changed. Where modules, parameters or attributes of the model were replaced,
the runtime is made anew.
"""

from __future__ import annotations

import functools
import re
import weakref
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import warn
from hotloop.base.rules import flag, show, whole
from hotloop.base.structure import flatten, unflatten
from hotloop.data.module import DataModule
from hotloop.data.padding import inside_of
from hotloop.data.shorthand import as_datamodule
from hotloop.data.split import Split, padding_of
from hotloop.data.targets import Targets, check_no_names, name_of_target
from hotloop.errors import ConfigError, DataError, ModelWarning, ShapeError, TraceError
from hotloop.graph.outputs import as_outputs
from hotloop.nn.layout import trace_aside
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
    PredictOnly,
    check_model,
    check_nodes,
    exclusive,
    fitted_of,
    warn_of_untrained_norms,
)
from hotloop.training.plans.inputs import Inputs
from hotloop.training.plans.masks import masked_arrays, masked_targets
from hotloop.training.plans.operands import check_operands
from hotloop.training.plans.precision import compute_dtype_of
from hotloop.training.plans.runtime import Runtime, Sums, call_model
from hotloop.training.plans.steps import Steps, graphs_of_parts, run_plans
from hotloop.training.plans.target_scale import scale_of
from hotloop.training.plans.views import View, read_views
from hotloop.training.predictor import Predictor, run_step
from hotloop.training.scoring.losses import LOSSES, link_of
from hotloop.training.scoring.matching import pick_output, put_output
from hotloop.training.scoring.saved import config_of_scoring

Array: TypeAlias = npt.NDArray[Any]

__all__ = [
    "check_placement",
    "drop_plans",
    "empty_cache",
    "evaluate",
    "predict",
    "run_batch",
]

_DEFAULT_BATCH = 1024
# What errors of a step say of a place in the batch, which tells nothing of a row that is named.
_PLACES_IN_BATCH = re.compile(r" (?:for|in|of) row \d+ of the batch| at position \d+$")
_MATRIX_OF_BATCH = re.compile(r"matrix \d+ of the batch")


_predictors: weakref.WeakKeyDictionary[Module, Predictor] = weakref.WeakKeyDictionary()


def empty_cache() -> None:
    """Drops the plans that prediction keeps, their memory, and GPUs that nothing uses.

    The next prediction makes its plan again, which takes some milliseconds.
    """
    _open_host.cache_clear()
    _predictors.clear()  # one that another thread is using goes when it returns
    close_gpus()


def drop_plans(model: Module) -> None:
    """Gives the memory back that the model's own plans of prediction take."""
    _predictors.pop(model, None)


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
    found = _predictors.get(model)
    if found is None:
        found = _predictors[model] = Predictor(model)
    return found  # another thread may have emptied the cache meanwhile


def run_batch(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """``model(array)``: forward in evaluation mode on one batch.

    Parameters
    ----------
    model : Module or PredictOnly
    args, kwargs : tuple, dict
        forward's arguments: arrays or structures of them, as :func:`predict` takes them, what
        is no array and so a constant of the plan, and an ``nn.KVCache``, which keeps its state.

    Returns
    -------
    Any
        forward's structure as NumPy arrays, :class:`hotloop.graph.outputs.OutputArray`.
    """
    if any(isinstance(value, Module) for value in (*args, *(kwargs or {}).values())):
        return run_step(model, args, kwargs or {})
    is_alone = len(args) == 1 and not kwargs and not isinstance(args[0], tuple)
    inputs = Inputs("model(...)", args[0] if is_alone else args, model, kwargs)
    result = _run("model(...)", model, inputs, None, None)
    if isinstance(model, Module) and model.__dict__.get("_training"):  # train() was called
        _warn_of_mode(model)
    return as_outputs(inputs.give(result))


def _warn_of_mode(model: Module) -> None:
    """Warns, once, that a forward pass was not that of training which ``train()`` asked for."""
    if not _predictor(model).reads_mode:
        return
    for module in model.modules():
        if module.__dict__["_training"]:
            object.__setattr__(module, "_training", None)  # as it was made
    warn(
        "model(...): model.train() was called, and model(array) evaluates always: dropout drops "
        "nothing, batch norm takes its running statistics. hl.train and hl.stepper train in the "
        "right mode by themselves: leave model.train() out, or write model.eval() before this call",
        ModelWarning,
    )


def predict(
    model: Module,
    data: Any,
    batch_size: int | None = None,
    *,
    proba: bool = False,
    labels: bool = False,
    outputs: str | None = None,
    loss: Any = None,
    split: str | None = None,
    tta: str | None = None,
) -> Any:
    """Runs a model on data, in order, in evaluation mode.

    Parameters
    ----------
    model : Module, TrainResult or loaded model
        What runs; on the CPU unless ``model.cuda()`` placed it elsewhere.
    data : array, tuple or dict of arrays, or DataModule
        As ``DataModule.from_arrays`` takes them; a dict's columns are found by name. Of a
        DataModule, the test split, else the validation split. What ``model(data)`` takes is taken
        here: after training one row without the dim of rows too, whose output then has none
        either; in a tuple what is no array (None, a bool, number or string), as a constant.
        After training on sequences of several lengths, a list of such; where each row has a target,
        so has each row of the result, a list of arrays.
    batch_size : int, optional
        Rows at a time; 1024 by default, of a DataModule whose samples are made batch by batch
        (images, datasets) its own batch size. It changes the result where forward draws random
        numbers, which are the same in each batch; else in the last bits at most, where the kernels
        for another number of rows add in another order.
    proba : bool
        Probabilities, a column per class (one column from a single logit), instead of forward's
        output, which is logits.
    labels : bool
        The likeliest class of each row: its name, or its id where classes have no names.
    outputs : str, optional
        Path of the module whose output is wanted, ``"body.2"``.
    loss : str, module or function, optional
        What the model was trained with, by which ``proba`` and ``labels`` read its outputs; needed
        where hotloop did not train it. As in the configuration: "cross_entropy", "bce".
    split : {"test", "val", "train"}, optional
        Of a DataModule, in the order of its ``rows(split)``.
    tta : {"hflip", "vflip", "flips", "d4"}, optional
        Test-time augmentation of images ``(rows, channels, height, width)``: the mean over each
        image and its mirror image from left to right ("hflip") or top to bottom ("vflip"), over
        both and their combination ("flips", 4 views), or over these turned by 90 degrees as well
        ("d4", 8 views of a square). Of probabilities with ``proba`` and ``labels``, else of
        outputs. Outputs ``(rows, classes)`` are to be the same for a mirrored image; those of each
        pixel, ``(rows, classes, height, width)``, are mirrored back first.

    Returns
    -------
    ndarray, or forward's structure of them
        First dim: rows in input order. Without proba and labels ``(rows, ...)`` as forward returns
        it; with proba ``(rows, classes)``; with labels ``(rows,)``. Where targets are class ids per
        position (token, pixel), proba has the shape of forward's output and labels that of the
        targets. Of several targets forward's structure, in which outputs that are no classes stay
        as they are.

    Raises
    ------
    BusyError
        While another thread trains the model. For one that predicts, this one waits.
    ConfigError
        If proba or labels is asked of a model that was not trained as a classifier, and no loss is
        given; for a name that tta does not know.
    DataError
        If a dict lacks a column that training had, or holds floats where training had integers.
    ShapeError
        If the data does not have the shape that the model takes, or the model gives something else
        than a row for each row and there is more than one batch; with tta, if the data are no
        images, or of an output it is not known what a mirror does to it, as to points.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> hl.predict(model, X[:5], proba=True, loss="cross_entropy").shape  # weights from elsewhere
    (5, 10)
    >>> result = hl.train(model, (X, y), max_epochs=2, enable_progress_bar=False)
    >>> hl.predict(model, X[:5]).shape, hl.predict(model, X[:5], proba=True).shape
    ((5, 10), (5, 10))
    >>> hl.predict(model, X[:5], labels=True).shape
    (5,)
    >>> hl.predict(model, X[:5], outputs="1").shape  # what the ReLU gives
    (5, 32)
    """
    model = check_model("predict", model, loaded=True)
    proba, labels = flag("proba", proba), flag("labels", labels)
    if proba and labels:
        raise ConfigError("predict: proba=True and labels=True exclude each other; call it twice")
    if outputs is not None and (proba or labels):
        raise ConfigError(
            "predict: proba=True and labels=True read what forward returns, got "
            f"outputs={outputs!r} as well; leave one of them out"
        )
    if loss is not None and not (proba or labels):
        raise ConfigError(
            f"predict: loss says how proba=True or labels=True read the outputs, got loss={loss!r} "
            "and neither; evaluate(model, (X, y), loss=...) computes a loss"
        )
    is_encoded = False
    if isinstance(data, DataModule):
        name = split or ("val" if data.split("test") is None else "test")
        part = data.split(name)
        if part is None:
            lacks = f"no {split}" if split else "neither a test nor a validation"
            raise ConfigError(
                f"predict: the DataModule has {lacks} split; where all of its rows are to be "
                "predicted, write split='train'"
            )
        if part.is_streamed:
            options = {"proba": proba, "labels": labels, "outputs": outputs, "loss": loss}
            options["tta"] = tta
            size = data.batch_size if batch_size is None else whole(1)("batch_size", batch_size)
            found = _predict_streamed(model, part, data.num_workers, size, options)
            data.warn_of_bad(name, "predict")
            return found
        known = fitted_of(model)
        if known is not None:
            known.check_encoding("predict", data.encoding)
        is_encoded = data.encoding is not None
        is_cut = part.buckets and known is not None and known.padding is not None
        data = part.sequences("x.0") if is_cut else part.arrays()["x"]
    elif split is not None:
        raise ConfigError(f"predict: split is of a DataModule, got split={split!r} beside arrays")
    inputs = Inputs("predict", data, model, is_encoded=is_encoded)
    size = _DEFAULT_BATCH if batch_size is None else whole(1)("batch_size", batch_size)
    by = _read_by(loss, fitted_of(model)) if proba or labels else None
    if proba or labels:
        _check_link(by, "labels" if labels else "proba")
    if tta is not None:
        result = _average_views(model, inputs, size, outputs, tta, by, proba=proba, labels=labels)
        return inputs.give(result)
    try:
        result = _run("predict", model, inputs, size, outputs)
    except ShapeError:
        if batch_size is not None or not inputs.may_be_row:
            raise
        result = _run("predict", model, inputs, None, outputs)
    if proba or labels:
        result = _as_labels(result, by, labels=labels)
    if inputs.lengths is not None and outputs is None:
        result = _cut_padding(result, fitted_of(model), inputs.lengths, is_label=labels)
    return inputs.give(result)


def _average_views(
    model: Any,
    inputs: Inputs,
    size: int,
    path: str | None,
    name: str,
    by: Fitted | None,
    *,
    proba: bool,
    labels: bool,
) -> Any:
    """The mean over views of the images: of probabilities, from which labels are read, or of what
    forward gives.
    """
    views, shape = read_views(name, inputs.arrays)
    total: list[Array] = []
    for view in views:
        result = _run("predict", model, inputs, size, path, view)
        if proba or labels:
            result = _as_labels(result, by, labels=False)
        leaves, spec = flatten(result)
        shown = [view.undo(leaf, shape) for leaf in leaves]
        total = [a + b for a, b in zip(total, shown, strict=True)] if total else shown
    mean = unflatten([leaf / np.float32(len(views)) for leaf in total], spec)
    return _as_labels(mean, by, labels=True, is_proba=True) if labels else mean


def _predict_streamed(
    model: Any, split: Split, workers: int, size: int, options: dict[str, Any]
) -> Any:
    """``predict`` of rows that are made in blocks, which need not fit into memory at once."""
    known = fitted_of(model)
    made: list[list[Array]] = []
    by_sample: list[Any] = []  # outputs of rows of sequences, each of its own length
    spec: Any = None
    for part in split.parts:
        for block in part.blocks(size, workers):
            x = block["x"]
            if known is not None and known.padding is not None and part.has_shapes:
                inside = inside_of(known.padding[0], x[1], x[0].shape[1])
                x = [row[:n] for row, n in zip(x[0], inside.sum(axis=1))]
            found = predict(model, x, size, **options)
            if isinstance(found, list):
                by_sample += found
            else:
                leaves, spec = flatten(found)
                made.append(leaves)
    back = np.argsort(split.row_order, kind="stable")
    if by_sample:
        return [by_sample[i] for i in back]
    shapes = {tuple(leaf.shape[1:] for leaf in leaves) for leaves in made}
    if len(shapes) > 1:
        raise DataError(
            "predict: outputs must have one shape in all buckets of the data, got "
            f"{' and '.join(map(str, sorted(shapes)))}; predict the images of one size at a time"
        )
    leaves = [np.concatenate(parts) for parts in zip(*made, strict=True)]
    if split.buckets:
        leaves = [leaf[back] for leaf in leaves]
    return unflatten(leaves, spec)


def _run(
    what: str,
    model: Any,
    inputs: Inputs,
    size: int | None,
    path: str | None,
    view: View | None = None,
) -> Any:
    """forward on all rows, ``size`` of them at a time, None: on the inputs as a whole; in a view
    where they are images.
    """
    arrays, spec = inputs.arrays, inputs.spec
    n = len(arrays[0]) if arrays else 0
    step = n if size is None else min(n, size)
    cut = step < n
    if cut and any(len(a) != n for a in arrays):
        lengths = [len(a) for a in arrays]
        raise ShapeError(f"{what}: inputs must have equal lengths, got {lengths}")
    parts: list[list[Array]] = []
    out_spec: Any = None
    with exclusive(model, what), losing_device():
        runner = model if isinstance(model, PredictOnly) else _predictor(model)
        for begin in range(0, max(n, 1), max(step, 1)):
            batch = [a[begin : begin + step] for a in arrays] if cut else arrays
            if view is not None:
                batch = [view.show(array) for array in batch]
            try:
                made = runner.run(batch, spec, path)
            except DataError as error:
                _find_bad_row(what, runner, batch, spec, path, begin, error)
                raise
            except (ShapeError, TraceError) as error:
                inputs.explain(error)
                if isinstance(error, ShapeError) and _takes_rows(model, inputs):
                    error.args = (
                        f"{error}; what is given seems to be one row: give a batch of it, x[None]",
                    )
                raise
            leaves, out_spec = flatten(made)
            if cut:
                _check_cut(what, leaves, batch)
            parts.append(leaves)
    if not cut:
        return made
    return unflatten([np.concatenate(column) for column in zip(*parts)], out_spec)


def _takes_rows(model: Any, inputs: Inputs) -> bool:
    """Whether a model of which no training knows the shapes takes a batch of what it refused."""
    if isinstance(model, PredictOnly) or fitted_of(model) is not None:
        return False
    batch = [
        ("float32" if array.dtype.kind == "f" else str(array.dtype), (1, *array.shape))
        for array in inputs.arrays
    ]
    try:
        trace_aside(batch, lambda *given: call_model(model, unflatten(given, inputs.spec)))
    except Exception:  # whatever forward raises: then that was not it
        return False
    return True


def _check_cut(what: str, outputs: list[Array], batch: list[Array]) -> None:
    """Refuses outputs that cannot be put together again."""
    rows = len(batch[0])
    for output in outputs:
        if output.shape[:1] != (rows,):
            raise ShapeError(
                f"{what}: an output must have one row for each row of the data to be computed in "
                f"batches, got {output.shape} for {rows} rows; give a larger batch_size, or call "
                "model(data), which runs forward once"
            )


def _find_bad_row(
    what: str,
    runner: Any,
    batch: list[Array],
    spec: Any,
    path: str | None,
    first: int,
    refused: DataError,
) -> None:
    """Runs a batch that was refused again with each of its rows alone, to name the row: one that is
    refused for the same reason. Where rows are mixed there may be none.
    """
    if len({len(array) for array in batch}) != 1:
        return
    why = _without_place(refused)
    for i in range(len(batch[0])):
        alone = [np.repeat(array[i : i + 1], len(array), axis=0) for array in batch]
        try:
            runner.run(alone, spec, path)
        except DataError as error:
            if _without_place(error) == why:
                raise DataError(f"{what}: row {first + i}: {why}") from None


def _without_place(error: DataError) -> str:
    """What a step says, but for the place in the batch."""
    return _MATRIX_OF_BATCH.sub("its matrix", _PLACES_IN_BATCH.sub("", str(error)))


def _read_by(loss: Any, fitted: Fitted | None) -> Fitted | None:
    """Metadata by which outputs are read where the user names the loss."""
    if loss is None:
        return fitted
    config = TrainingConfig.resolve(None, {"loss": loss})
    link = link_of(config)
    if link is None:
        raise ConfigError(
            "predict: loss must be one whose outputs are classes, such as 'cross_entropy', 'bce' "
            f"or 'nll', for proba=True and labels=True, got {config.loss!r}"
        )
    classes = fitted.classes if fitted is not None and fitted.target_kind == "class" else None
    one_of_many = link in ("softmax", "exp") or (classes is not None and len(classes) == 2)
    return Fitted(
        classes=classes if one_of_many else None,
        target_kind="class" if one_of_many else "multilabel",
        link=link,
        transforms=[],
        fields=[],
        class_axis=fitted.of("").class_axis if fitted is not None else 1,
    )


def _cut_padding(
    result: Any, fitted: Fitted | None, lengths: npt.NDArray[np.int64], *, is_label: bool
) -> Any:
    """Where each row of a sequence has a target, the output of each sequence without padding."""
    if fitted is None or fitted.padding is None or not fitted.padding[2]:
        return result
    output = pick_output(result, "", [""])
    is_last = not is_label and fitted.class_axis == 1 and output.ndim > 2  # classes, then rows
    cut = [row[..., :n] if is_last else row[:n] for row, n in zip(output, lengths)]
    return put_output(result, cut, "", [""])


def _check_link(fitted: Fitted | None, what: str) -> None:
    """Refuses a model of which nothing says how outputs become probabilities."""
    links = fitted.link if fitted is not None else None
    if not (any(links.values()) if isinstance(links, dict) else links):
        raise ConfigError(
            f"predict: {what}=True needs a model trained as a classifier, or the loss that it was "
            f"trained with elsewhere; write predict(model, X, {what}=True, loss='cross_entropy'), "
            "or use the outputs that predict(model, X) gives"
        )


def _as_labels(result: Any, fitted: Any, *, labels: bool, is_proba: bool = False) -> Any:
    """The outputs of classes as labels or probabilities; ``is_proba``: they are these already."""
    names = list(fitted.link) if isinstance(fitted.link, dict) else [""]
    for name in names:
        target = fitted.of(name)
        if target.link is None:
            continue  # values beside classes stay what they are
        picked = pick_output(result, name, names)
        if not is_proba:
            target.check_outputs(picked.shape)
        answer = (
            _find_labels(picked, target, is_proba=is_proba)
            if labels
            else _find_proba(picked, target)
        )
        result = put_output(result, answer, name, names)
    return result


def _find_labels(logits: Array, target: FittedTarget, *, is_proba: bool) -> Array:
    """The likeliest class at each position, by its name where it has one."""
    axis = target.class_axis
    if logits.shape[1:] == (1,):
        logits = logits[:, 0]  # a logit for each row
    if target.kind == "multilabel" or logits.ndim < 2:
        axis = None
    if axis is not None and logits.shape[axis] == 1:
        logits, axis = logits.squeeze(axis), None
    _check_finite(logits, axis)
    cut = 0.5 if is_proba or target.link == "identity" else 0.0
    ids: Array = (logits > cut).astype(np.int64) if axis is None else np.argmax(logits, axis)
    if target.classes is None or target.kind == "multilabel":
        return ids
    if ids.size and ids.max() >= len(target.classes):
        target.refuse_outputs(1 if axis is None else logits.shape[axis])
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
    is_bad = ~np.isfinite(deciding).all(axis=tuple(range(1, deciding.ndim)))
    if is_bad.any():
        rows = np.flatnonzero(is_bad)
        raise DataError(
            f"predict: labels=True needs outputs that are finite, got {show(logits[rows[0]])} "
            f"in row {rows[0]} ({len(rows)} rows in all); look for NaN or infinity in the inputs"
        )


@functools.cache
def _open_host() -> _core.Device:
    """The CPU, opened once: that takes longer than what is done with it here."""
    return _core.Device("cpu")


def apply_op(op: str, array: Array) -> Array:
    """One op of the core on an array."""
    session = _core.Session(_open_host())
    graph = _core.Graph()
    (out,) = graph.add(op, [graph.input("x", str(array.dtype), array.shape)])
    graph.output(out)
    plan = _core.Plan(session, graph)
    plan.input(0, array)
    plan.run(1, 1e9)
    return plan.output(0)


def evaluate(
    model: Module, data: Any, split: str = "test", *, config: Any = None, **overrides: Any
) -> dict[str, Any]:
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
        the run that trained the model; a file has no precision, no functions, of which metrics are
        left out with a warning, and no loss without a name. A model that was not trained gets the
        defaults.

    **overrides
        Fields of the configuration, ``metrics=["f1"]``.

    Returns
    -------
    dict of str to float
        ``loss`` and metrics by name; with "confusion_matrix" among the metrics that matrix too,
        (C, C), rows true and columns predicted.

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
    given, model = model, check_model("evaluate", model, loaded=True)
    check_nodes("evaluate", model)
    if config is None and given is not model:  # a result has the configuration of its run
        config = getattr(given, "config", None)
    known = fitted_of(model)
    if config is None and not {"loss", "losses"}.isdisjoint(overrides):
        config = TrainingConfig()
    if config is None:
        config = _config_of(model, known, has_metrics="metrics" in overrides)
    config = TrainingConfig.resolve(config, overrides)
    if known is not None and isinstance(data, DataModule):
        known.check_encoding("evaluate", data.encoding)
    elif known is not None and isinstance(data, tuple) and data:
        encoded = known.encode("evaluate", data[0])
        data = data if encoded is None else (encoded, *data[1:])
    if not isinstance(data, DataModule):
        data, split = as_datamodule(data, val=None), "train"
    if known is not None and known.classes is not None:
        data = data.with_classes(known.classes)
    part = data.split(split)
    if part is None:
        raise ConfigError(
            f"evaluate: the data has no {split} split; where all of it is to be evaluated, write "
            f"split='train'; else give {split}=0.2 where it is made"
        )
    padding = padding_of(part.fields)
    trained = known.padding if known is not None else None
    if trained is not None and padding is not None and padding[0] != trained[0]:
        raise ConfigError(f"lengths_as: must be {trained[0]!r} as in training, got {padding[0]!r}")
    if known is not None:
        for field in part.fields:
            name = name_of_target(field.name)
            if name is not None and known.of(name)[:2] == (None, "class"):
                check_no_names(field, data.targets[name])
    data.check(split)
    if isinstance(model, PredictOnly):
        return _evaluate_loaded(model, data, split, config)
    if known is not None:
        for field in part.fields:
            known.check_input("evaluate", field.name, field.array)
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
) -> dict[str, Any]:
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
            steps.warn_of_evaluation(split)
            runtime.upload()
            for traced in graphs_of_parts(plan.traced for plan in plans):
                check_operands(runtime, *traced)
            steps.check_labels(checked, checked_split)
            outputs = run_plans(plans, collect=steps.n_collected)
            totals = sums.read(runtime.session)
        finally:
            runtime.close()
    values = steps.values(totals) | steps.collected_values(split, outputs)
    return values | steps.matrices(totals, asked=True)


def _config_of(model: Any, known: Fitted | None, *, has_metrics: bool) -> TrainingConfig:
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
        if known.scoring.get("left_out") and not has_metrics:
            warn(
                f"evaluate: metrics {', '.join(known.scoring['left_out'])} are functions, which a "
                "file or a pickle does not hold, and are left out; give metrics=[...] to have them",
                ModelWarning,
            )
        return config_of_scoring(known.loss, known.scoring)
    if known.loss == "training_step" and hasattr(model, "training_step"):
        return TrainingConfig()
    raise ConfigError(
        f"evaluate: the model was trained with the loss {known.loss!r}, which a file or a pickle "
        "does not hold; write evaluate(..., loss=...) or losses=[...]; what reads modules, as "
        "losses of hotloop.stats and a training_step do, wants the module: build it and write "
        "load_state_dict(model.state_dict())"
    )


def _evaluate_loaded(
    loaded: Any, data: DataModule, split: str, config: TrainingConfig
) -> dict[str, Any]:
    """The outputs as the data of a model that hands them through."""
    part = data.split(split)
    assert part is not None  # evaluate has checked
    arrays = part.arrays()
    x, y = masked_arrays(arrays["x"], arrays.get("y"), data)
    inputs = Inputs("predict", x, loaded, is_encoded=True)
    leaves, spec = flatten(inputs.give(_run("predict", loaded, inputs, data.batch_size, None)))

    known = fitted_of(loaded)
    assert known is not None  # a file has it
    scale = scale_of(known)

    class Handed(DataModule):
        """Its targets and counts are the user's: class weights go by names and training rows."""

        @property
        def targets(self) -> dict[str, Targets]:
            return masked_targets(data)[0]

        def class_counts(self, target: str = "") -> list[int]:
            return data.class_counts(target)

    class Outputs(Module):
        def forward(self, *outputs: Any) -> Any:
            return scale.redo(unflatten(outputs, spec))

    handed = Handed.from_arrays(
        tuple(leaves),
        y,
        sample_weight=arrays.get("weight"),
        batch_size=data.batch_size,
        allow_nonfinite=True,
    )
    return _score(Outputs(), handed, "train", config, known.transforms, data, split)
