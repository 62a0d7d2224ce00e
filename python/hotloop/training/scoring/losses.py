"""Which loss a run uses: the default rules, names, modules and functions.

The rule of "auto" (decided by the targets, printed in the header): class ids, bools and strings
give cross-entropy, or binary cross-entropy where the model has one logit; a 0/1 matrix gives
binary cross-entropy per column; floats give the mean squared error.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop.base.suggest import did_you_mean
from hotloop.data.targets import IGNORED, Targets
from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph.build import is_number
from hotloop.graph.loss_parts import with_parts
from hotloop.graph.symbolic import Tensor
from hotloop.graph.trace import Trace, current
from hotloop.nn import functional as F
from hotloop.nn.module import Module
from hotloop.stats.calls import ModuleLoss, running_calls
from hotloop.training.scoring.matching import (
    call_matched,
    check_unmasked,
    class_axis,
    count_classes,
    fix_of_layout,
    match_shape,
    pick_output,
)

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.training.config import TrainingConfig

__all__ = [
    "LOSSES",
    "Loss",
    "Reading",
    "class_weights",
    "doubt_of_link",
    "is_auto",
    "link_of",
    "loss_modules",
    "read_output",
    "resolve_loss",
    "to_logged",
]

# name: function of hotloop.nn.functional
LOSSES: dict[str, str] = {
    "cross_entropy": "cross_entropy",
    "bce": "binary_cross_entropy_with_logits",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "nll": "nll_loss",
    "mse": "mse_loss",
    "l1": "l1_loss",
    "mae": "l1_loss",
    "huber": "huber_loss",
    "smooth_l1": "smooth_l1_loss",
    "kl_div": "kl_div",
    "soft_margin": "soft_margin_loss",
    "multi_margin": "multi_margin_loss",
    "multilabel_soft_margin": "multilabel_soft_margin_loss",
    "poisson_nll": "poisson_nll_loss",
}
# How the outputs that a loss takes become probabilities.
_LINKS = {
    "cross_entropy": "softmax",
    "nll_loss": "exp",
    "binary_cross_entropy_with_logits": "sigmoid",
    "multilabel_soft_margin_loss": "sigmoid",
    "binary_cross_entropy": "identity",
}
_FUNCTIONS = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "BCELoss": "binary_cross_entropy",
    "KLDivLoss": "kl_div",
    "PoissonNLLLoss": "poisson_nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "HuberLoss": "huber_loss",
    "SmoothL1Loss": "smooth_l1_loss",
}
_VALUES = {"mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"}
_CLASS_TARGETS = {"cross_entropy", "nll_loss", "multi_margin_loss"}
_IGNORING = {"cross_entropy", "nll_loss"}  # they have an ignore_index
_SHAPED_TARGETS = {
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "huber_loss",
    "smooth_l1_loss",
    "kl_div",
    "soft_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
}
# Between what the float targets of losses of probabilities and counts lie: outside of it the loss
# has no minimum, or none where outputs are like the targets.
_RANGES = {
    "cross_entropy": (0.0, 1.0),
    "binary_cross_entropy_with_logits": (0.0, 1.0),
    "binary_cross_entropy": (0.0, 1.0),
    "multilabel_soft_margin_loss": (0.0, 1.0),
    "poisson_nll_loss": (0.0, math.inf),
    "kl_div": (0.0, math.inf),
}
# Functions of an output and a target, which compare one output with one target.
_LIBRARY = {*LOSSES.values(), *_FUNCTIONS.values()}


class Reading(NamedTuple):
    """How an output is read beside a target.

    Attributes
    ----------
    kind : str
        Of the target: "class", "multilabel" or "float". A matrix of 0 and 1 whose output has
        classes for each of them holds class ids.
    axis : int or None
        The output's dim of classes; None where it holds one logit for each id, or there are none.
    trouble : Exception or None
        Why there is no such output.
    """

    kind: str
    axis: int | None
    trouble: Exception | None = None


def read_output(
    kind: str,
    target: Sequence[int],
    output: Any,
    name: str,
    names: Sequence[str],
    *,
    is_second: bool,
) -> Reading:
    """How the output for a target is read.

    Parameters
    ----------
    kind : str
        Of the target: "class", "multilabel" or "float".
    target : sequence of int
        The target's shape in the batch that the output is of.
    output : Tensor or structure of them
        What forward returns.
    name, names
        Of the target and of all, as :func:`pick_output` takes them.
    is_second : bool
        Whether classes are in dim 1 where that cannot be told, as in torch.

    Returns
    -------
    Reading
    """
    try:
        shape = pick_output(output, name, names).shape
        wanted = (shape[0] if shape else 0, *target[1:])
        if kind == "multilabel" and len(shape) == len(wanted) + 1:
            axis = class_axis(shape, wanted, is_second=is_second)
            if axis is not None and shape[axis] > 1:
                return Reading("class", axis)
        is_class = kind == "class"
        return Reading(kind, class_axis(shape, wanted, is_second=is_second) if is_class else None)
    except (ConfigError, ShapeError) as error:
        return Reading(kind, 1, error)


class Loss:
    """A loss of ``(output, target)`` with what else it needs.

    Attributes
    ----------
    name : str
        For the header and for messages.
    link : str or None
        How outputs become probabilities: "softmax", "sigmoid", "exp", "identity" (they are
        probabilities) or None.
    compares_values : bool
        Whether it measures how far outputs are from targets, as the mean squared error does.
    uses : set of str
        Which of the configuration's "class_weight" and "label_smoothing" it takes.
    ignored : int or None
        The class id that counts nothing, where it has one.
    is_second : bool
        Whether it has classes in dim 1 whatever the shapes.
    is_sum : bool
        Whether it adds up the rows of a batch, ``reduction="sum"``, which micro-batches change.
    bounds : (float, float) or None
        The least and the largest value of float targets, where it takes probabilities or counts.
    parts : dict of str to Loss
        By the names of several targets, the loss of each.
    """

    def __init__(
        self,
        name: str,
        link: str | None,
        call: Callable[..., Any],
        uses: Collection[str] = (),
        *,
        compares_values: bool = False,
        ignored: int | None = None,
        is_second: bool = False,
        is_sum: bool = False,
        bounds: tuple[float, float] | None = None,
        parts: Mapping[str, Loss] | None = None,
    ) -> None:
        self.name = name
        self.compares_values = compares_values
        self.link = link
        self.uses = frozenset(uses)
        self.ignored = ignored
        self.is_second = is_second
        self.is_sum = is_sum
        self.bounds = bounds
        self.parts = dict(parts or {})
        self._call = call

    def __call__(self, output: Any, target: Any, weight: Tensor | None) -> Any:
        """The loss of a batch: a tensor, or a dict of them."""
        return self._call(output, target, weight)

    def part(self, name: str) -> Loss | None:
        """The loss of a target; None: it has none of its own."""
        return self.parts.get(name) if name else self

    @property
    def saved_name(self) -> str | dict[str, str]:
        """The name, or those of the targets' losses, by which a file says what it was."""
        return {name: part.name for name, part in self.parts.items()} or self.name


class _Goal(NamedTuple):
    """A target, and what forward returns for it."""

    name: str
    target: Targets | None
    output: Any  # as forward returns it, of several targets this one's
    data: DataModule | None
    shape: Sequence[int] = ()  # of the target in the batch that the output is of

    @property
    def label(self) -> str:
        return f"loss[{self.name!r}]" if self.name else "loss"

    @property
    def has_ids(self) -> bool:
        """Whether targets are class ids."""
        return self.target is not None and self.target.kind == "class"

    def read(self, *, is_second: bool) -> Reading:
        assert self.target is not None  # there are targets
        return read_output(
            self.target.kind, self.shape, self.output, "", ("",), is_second=is_second
        )


def _named(name: str, config: TrainingConfig, goal: _Goal) -> Loss:
    function = getattr(F, name)
    axis = None
    if goal.target is not None and goal.target.kind != "float":
        reading = goal.read(is_second=False)
        if name in _CLASS_TARGETS and reading.kind == "class" and reading.trouble is not None:
            raise reading.trouble
        axis = reading.axis
    class_weight = None
    target, data = goal.target, goal.data
    if config.class_weight is not None and data is not None and target and target.n_classes:
        shape = pick_output(goal.output).shape
        class_weight = class_weights(config, data, count_classes(shape, axis), goal.name)
    uses = {"class_weight"} if name in _CLASS_TARGETS else set()
    if name == "binary_cross_entropy_with_logits" and class_weight and len(class_weight) == 2:
        uses = {"class_weight"}
    extra: dict[str, Any] = {}
    if name == "cross_entropy":
        uses.add("label_smoothing")
        if config.label_smoothing:
            extra["label_smoothing"] = config.label_smoothing
    ignored = IGNORED if name in _IGNORING else None
    leaves_out = goal.target is not None and goal.target.has_ignored
    by_weight = name == "binary_cross_entropy_with_logits"  # it has no ignore_index
    if by_weight:
        ignored = IGNORED
    _check_ignored(name, goal, ignored)

    label, has_ids = goal.label, goal.has_ids  # not goal itself, which has the trace's output

    def call(output: Any, target: Tensor, weight: Tensor | None) -> Any:
        output = pick_output(output)
        _check_target(label, name, target, has_ids=has_ids)
        options = dict(extra)
        if name in _CLASS_TARGETS:
            if class_weight is not None:
                options["weight"] = _constant(class_weight)
            if axis is not None:
                target, output = target.cast("int64"), _classes_second(output, axis)
            elif fix := fix_of_layout(output.shape, target.shape):
                raise ShapeError(
                    f"target: must have the output's shape {output.shape}, of probabilities, or "
                    f"hold class ids without its dim 1, got floats of {target.shape}; {fix}"
                )
        if name in _SHAPED_TARGETS:
            target = match_shape(target.cast("float32"), output)
            if "class_weight" in uses and class_weight is not None:
                options["pos_weight"] = _constant([class_weight[1] / class_weight[0]])
        counts = (target != IGNORED).cast("float32") if leaves_out else None
        if counts is not None and by_weight:
            target = target * counts
            weight = counts.new_ones(target.shape[0]) if weight is None else weight
        if weight is None:
            return function(output, target, **options)
        made = function(output, target, reduction="none", **options)
        if counts is not None and by_weight:
            made = made * counts
        return _weighted(made, weight, counts)

    return Loss(
        name,
        _LINKS.get(name),
        call,
        uses,
        compares_values=name in _VALUES,
        ignored=ignored,
        bounds=_RANGES.get(name),
    )


def _check_target(label: str, name: str, target: Any, *, has_ids: bool) -> None:
    """Refuses a loss by name beside data that it cannot be of.

    Parameters
    ----------
    label, name : str
        In the configuration, and its own.
    target : Tensor or None
    has_ids : bool
        Whether targets are class ids, of which some may count nothing.

    Raises
    ------
    ConfigError
        If there is no target, or a mask leaves out pixels whose targets are values.
    """
    if target is None:
        raise _no_target(label, name)
    if not has_ids:
        check_unmasked(label, name, target)


def _no_target(label: str, name: str) -> ConfigError:
    return ConfigError(
        f"{label}: {name} compares outputs with targets, and the data has none; give y, or where "
        "the model is to reconstruct X write train(model, (X, X))"
    )


def _check_ignored(name: str, goal: _Goal, ignored: int | None) -> None:
    """Refuses ids that count nothing where the loss would take them for classes.

    Raises
    ------
    ConfigError
    """
    if goal.target is not None and goal.target.has_ignored and ignored != IGNORED:
        other = "no ignore_index" if ignored is None else f"ignore_index {ignored}"
        by_name = "bce" if name.startswith(("BCEWith", "binary_cross")) else "cross_entropy"
        raise ConfigError(
            f"{goal.label}: targets have the class id {IGNORED}, or pixels that x['mask'] leaves "
            f"out, which count nothing in losses with that ignore_index, got {name} with {other}; "
            f"use loss={by_name!r}"
        )


def _constant(values: list[float]) -> Tensor:
    return current("class_weight").const(np.asarray(values, dtype=np.float64), "float32")


def _weighted(per_element: Tensor, weight: Tensor, counts: Tensor | None) -> Any:
    """Weighted mean over rows with its parts, so that windows divide once; ``counts`` (0 or 1) says
    which elements are in it.
    """
    n = per_element.shape[0]
    rows = per_element.reshape(n, -1)
    if counts is None:
        total, denominator = (rows.mean(1) * weight).sum(), weight.sum()
    else:
        total = (rows.sum(1) * weight).sum()
        denominator = (counts.reshape(n, -1).sum(1) * weight).sum()
    return with_parts(total / denominator, total, denominator)


def resolve_loss(
    config: TrainingConfig,
    data: DataModule,
    targets: Mapping[str, Targets],
    output: Any,
    shapes: Mapping[str, Sequence[int]],
) -> Loss:
    """The loss of a run, given the traced output.

    Parameters
    ----------
    config : TrainingConfig
    data : DataModule
        Its classes count.
    targets : dict of str to Targets
        The data's.
    output : Tensor or structure of them
        The forward pass's result.
    shapes : dict
        Of the targets in its batch, by name.

    Returns
    -------
    Loss
        Of several targets one that gives a dict, ``<target>_loss``.

    Raises
    ------
    ConfigError
        When "auto" has no rule for the targets, the name is unknown, the loss does not take the
        configuration's class_weight or label_smoothing, or losses and targets have other names.
    """
    if data.target_kind == "several":
        found = _of_several(config, data, targets, output, shapes)
    else:
        goal = _Goal("", targets.get(""), output, data, shapes.get("", ()))
        found = _resolve(config, config.loss, goal)
    if config.class_weight is not None and not any(t.n_classes for t in data.targets.values()):
        raise ConfigError(
            f"class_weight: needs class targets, got {data.target_kind} targets; leave it out"
        )
    for field, given in (
        ("class_weight", config.class_weight is not None),
        ("label_smoothing", bool(config.label_smoothing)),
    ):
        if given and field not in found.uses:
            raise ConfigError(
                f"{field}: the loss {found.name} does not take it, got {getattr(config, field)!r}; "
                "use loss='cross_entropy', or leave it out and let the loss have its own"
            )
    return found


def _of_several(
    config: TrainingConfig,
    data: DataModule,
    targets: Mapping[str, Targets],
    output: Any,
    shapes: Mapping[str, Sequence[int]],
) -> Loss:
    """A loss for each of several targets; a single function gets all of them."""
    loss, names = config.loss, list(targets)
    if callable(loss) and _function_of(loss) not in _LIBRARY:
        return _called(loss, _Goal("", None, output, data))
    if isinstance(loss, Mapping) and set(loss) != set(names):
        raise ConfigError(
            f"loss: must have an entry for each of the targets {', '.join(names)}, got "
            f"{', '.join(loss)}; name them as in the data"
        )
    if config.class_weight is not None and config.class_weight != "balanced":
        classes = [name for name, target in targets.items() if target.n_classes is not None]
        if len(classes) > 1:
            raise ConfigError(
                f"class_weight: must be 'balanced' for several targets with classes "
                f"({', '.join(classes)}), got {config.class_weight!r}; give them losses with "
                "weights of their own, loss={...: nn.CrossEntropyLoss(weight=...)}"
            )
    parts = {}
    for name, target in targets.items():
        goal = _Goal(name, target, pick_output(output, name, names), data, shapes[name])
        parts[name] = _resolve(config, loss[name] if isinstance(loss, Mapping) else loss, goal)

    def call(output: Any, target: Any, weight: Tensor | None) -> dict[str, Any]:
        values = dict(zip(names, target, strict=True)) if isinstance(target, tuple) else target
        return {
            f"{name}_loss": part(pick_output(output, name, names), values[name], weight)
            for name, part in parts.items()
        }

    return Loss(
        " + ".join(f"{name} {part.name}" for name, part in parts.items()),
        None,
        call,
        {field for part in parts.values() for field in part.uses},
        compares_values=any(part.compares_values for part in parts.values()),
        is_sum=any(part.is_sum for part in parts.values()),
        parts=parts,
    )


def _resolve(config: TrainingConfig, loss: Any, goal: _Goal) -> Loss:
    if isinstance(loss, str) and loss != "auto":
        if loss not in LOSSES and loss not in LOSSES.values():
            raise ConfigError(
                f"{goal.label}: must be one of {', '.join(LOSSES)}, a loss module or a function "
                f"(output, target), got {loss!r}{did_you_mean(loss, LOSSES)}"
            )
        return _named(LOSSES.get(loss, loss), config, goal)
    if isinstance(loss, Mapping):
        return _summed(loss, config, goal)
    if isinstance(loss, tuple):
        return _scaled(_resolve(config, loss[0], goal), loss[1])
    if isinstance(loss, ModuleLoss):
        return _of_modules(loss)
    if callable(loss):
        return _called(loss, goal)
    if goal.target is None:
        raise ConfigError(
            "loss: data without targets has no default loss; where the model is to reconstruct X "
            "write train(model, (X, X)), for losses of modules losses=[...], else override "
            "training_step(self, batch)"
        )
    if goal.target.kind == "float":
        return _named("mse_loss", config, goal)
    output = pick_output(goal.output)
    reading = goal.read(is_second=False)
    if reading.kind == "class" and reading.trouble is not None:
        raise reading.trouble
    one_logit = reading.axis is None or output.shape[reading.axis] == 1
    name = "binary_cross_entropy_with_logits" if one_logit else "cross_entropy"
    return _named(name, config, goal)


def _scaled(loss: Loss, weight: float) -> Loss:
    """A loss with a weight in the sum."""
    made = copy.copy(loss)
    made._call = lambda output, target, weights: loss(output, target, weights) * weight
    return made


def _of_modules(loss: ModuleLoss) -> Loss:
    """A loss that reads modules of the model."""

    def call(output: Any, target: Any, weight: Tensor | None) -> Any:
        if weight is not None:
            raise ConfigError(
                f"loss: {type(loss).__name__} takes no sample weights, got data with some; leave "
                "them out"
            )
        try:
            return loss.compute(running_calls())
        except ConfigError as error:
            raise ConfigError(f"{type(loss).__name__}: {error}") from None

    return Loss(loss.name, None, call)


def _name_of(loss: Callable[..., Any]) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _function_of(loss: Callable[..., Any]) -> str:
    """The library's function that a loss module or function is; "": it is one of the user's, which
    may have the name of a library's.
    """
    name = _name_of(loss)
    if isinstance(loss, Module):
        is_own = not type(loss).__module__.startswith("hotloop.")
    else:
        is_own = getattr(F, name, None) is not loss
    return "" if is_own else _FUNCTIONS.get(name, name)


def _classes_second(output: Tensor, axis: int) -> Tensor:
    """The output with its classes in dim 1, where torch's losses have them."""
    return output.movedim(-1, 1) if axis == -1 and output.ndim > 2 else output


def _weighing(known: str) -> str:
    """What to write in place of a loss without sample weights, the library's function or not."""
    names = [name for name, function in LOSSES.items() if function == known]
    by_name = f"write loss={names[0]!r}, which takes them, or " if names else "write "
    return (
        f"{by_name}a training_step(self, batch) in the model, where batch['weight'] (rows,) has "
        "them: return (losses * batch['weight']).sum() / batch['weight'].sum()"
    )


def _called(loss: Callable[..., Any], goal: _Goal) -> Loss:
    """A module or function."""
    name, known = _name_of(loss), _function_of(loss)
    if not known and name in _LIBRARY:
        name = f"own {name}"  # a file must not take it for the library's
    axis, ignored = None, None
    if known in _IGNORING:
        ignored = getattr(loss, "ignore_index", IGNORED)
        if goal.target is not None and goal.target.kind != "float":
            axis = goal.read(is_second=True).axis
    if known in _LIBRARY:
        _check_ignored(name, goal, ignored)

    label = goal.label  # not goal itself, which has the trace's output

    def call(output: Any, target: Any, weight: Tensor | None) -> Any:
        if weight is not None:
            raise ConfigError(
                f"{label}: {name} takes no sample weights, got data with some (sample_weight, "
                f"or the 0 of what on_bad_sample='skip' leaves out); {_weighing(known)}"
            )
        if known in _LIBRARY:
            output = pick_output(output)
        if target is None and known in _LIBRARY:
            raise _no_target(label, name)
        if known not in _IGNORING:
            check_unmasked(label, name, target)
        if axis is not None:
            target, output = target.cast("int64"), _classes_second(output, axis)
        return call_matched(name, loss, output, target)

    return Loss(
        name,
        _LINKS.get(known),
        call,
        compares_values=known in _VALUES,
        ignored=ignored,
        is_second=known in _IGNORING,
        bounds=None if getattr(loss, "log_target", False) else _RANGES.get(known),
        is_sum=known in _LIBRARY and getattr(loss, "reduction", "mean") == "sum",
    )


def link_of(config: TrainingConfig) -> str | None:
    """How outputs that were trained with the configuration's loss become probabilities."""
    loss = config.loss
    if isinstance(loss, Mapping):  # "auto" says nothing without targets
        loss = {name: part for name, part in loss.items() if part != "auto"} or "auto"
    if loss == "auto":
        return None
    return _resolve(config, loss, _Goal("", None, None, None)).link


def is_auto(loss: Any, target: str) -> bool:
    """Whether the targets choose the loss of one of them, or a part of it.

    Parameters
    ----------
    loss : "auto", str, callable or dict of them
        As the configuration has it.
    target : str
        Its name; "" where there is one.
    """
    if isinstance(loss, Mapping):
        return loss.get(target) == "auto" if target else "auto" in list(loss.values())
    return bool(loss == "auto")


def loss_modules(loss: Any) -> dict[str, Module]:
    """The modules among a configuration's losses, whose parameters and buffers a run needs.

    Returns
    -------
    dict of str to Module
        By the prefix of their values' names: "loss", or "loss.<name>" of a dict of losses.
    """
    losses = loss.items() if isinstance(loss, Mapping) else [("", loss)]
    alone = [(name, part[0] if isinstance(part, tuple) else part) for name, part in losses]
    return {
        f"loss.{name}" if name else "loss": part for name, part in alone if isinstance(part, Module)
    }


def _summed(losses: Mapping[str, Any], config: TrainingConfig, goal: _Goal) -> Loss:
    """Several losses of one target."""
    if "loss" in losses:
        raise ConfigError(
            "loss: 'loss' is the name of the sum, got a dict with a loss of that name; choose "
            "another"
        )
    if all(name.isdigit() for name in losses):
        raise ConfigError(
            f"{goal.label}: a list has a loss for each of several targets, got {len(losses)} for "
            "one target; write a dict from names to losses for their sum"
        )
    parts = {name: _resolve(config, loss, goal) for name, loss in losses.items()}

    def call(output: Any, target: Any, weight: Tensor | None) -> dict[str, Any]:
        return {name: part(output, target, weight) for name, part in parts.items()}

    links = list({part.link for part in parts.values() if part.link})
    ignored = [part.ignored for part in parts.values() if part.ignored is not None]
    bounds = [part.bounds for part in parts.values() if part.bounds is not None]
    return Loss(
        " + ".join(parts),
        links[0] if len(links) == 1 else None,  # losses that differ say nothing
        call,
        {field for part in parts.values() for field in part.uses},
        compares_values=any(part.compares_values for part in parts.values()),
        ignored=ignored[0] if ignored else None,
        is_second=any(part.is_second for part in parts.values()),
        is_sum=any(part.is_sum for part in parts.values()),
        bounds=min(bounds, key=lambda pair: pair[1], default=None),  # all begin at 0
    )


# The output of this op is no logit; a loss with that link would apply the op again.
_LAST_OPS = {
    "softmax": ("softmax", "probabilities where it needs logits"),
    "sigmoid": ("sigmoid", "probabilities where it needs logits"),
    "exp": ("softmax", "probabilities where it needs their logarithms"),
}


def doubt_of_link(loss: Loss, output: Any) -> str:
    """Says that the model ends in the softmax that the loss has built in, and where; else "".

    Such a model trains slowly and ends worse, without any other sign. log_softmax before
    cross-entropy changes nothing (it is idempotent) and passes.
    """
    if loss.link not in _LAST_OPS:
        return ""
    last = pick_output(output)
    op, what = _LAST_OPS[loss.link]
    made_by = {value: node for node in last.trace.graph.nodes() for value in node["outputs"]}
    node = made_by.get(last.id)
    while node is not None and node["op"] in ("reshape", "permute", "cast"):
        node = made_by.get(node["inputs"][0])
    if node is None or node["op"] != op:
        if loss.link != "exp" or _has_logarithm(last.id, made_by):
            return ""
        return (
            f"the loss {loss.name} takes logarithms of probabilities, and no logarithm is among "
            "what the model computes; end it in log_softmax, or write loss='cross_entropy', which "
            "takes logits"
        )
    where = f"{node['scope']}, " if node["scope"] else ""
    fix = "end it in log_softmax" if loss.link == "exp" else f"leave the {op} out"
    return (
        f"the model ends in {where}{op}, which gives the loss {loss.name} {what}; {fix} "
        "(predict(..., proba=True) gives probabilities)"
    )


def _has_logarithm(value: int, made_by: Mapping[int, Any]) -> bool:
    """Whether an op that a value is made of takes a logarithm."""
    left, seen = [value], set()
    while left:
        node = made_by.get(left.pop())
        if node is None or id(node) in seen:
            continue
        if node["op"] in ("log", "log1p", "log_softmax", "logaddexp", "softplus"):
            return True
        seen.add(id(node))
        left += node["inputs"]
    return False


# ---- class weights


def class_weights(
    config: TrainingConfig, data: DataModule, n: int, target: str = ""
) -> list[float]:
    """The configuration's class weights, one per output of the model (2 of a single logit).

    "balanced" is N / (K count) of the N training rows, or positions, which are of K classes; a
    class without rows has weight 1, as have those that a dict leaves out.

    Parameters
    ----------
    config : TrainingConfig
        With class weights.
    data : DataModule
    n : int
        Outputs of the model.
    target : str
        Its name, where there are several.

    Raises
    ------
    ConfigError
        If a class is unknown, or there is not one weight per output.
    """
    wanted, known = config.class_weight, data.targets[target]
    if wanted == "balanced":
        counts = (data.class_counts(target) + [0] * n)[:n]
        total, present = sum(counts), sum(count > 0 for count in counts)
        return [total / (present * count) if count else 1.0 for count in counts]
    if isinstance(wanted, Mapping):
        names = {name: i for i, name in enumerate(known.classes or range(n))}
        weights = [1.0] * n
        for key, weight in wanted.items():
            if key not in names:
                raise ConfigError(
                    f"class_weight: classes are {', '.join(map(str, names))}, got {key!r}"
                )
            weights[names[key]] = float(weight)
        return weights
    weights = [float(w) for w in wanted or ()]
    if len(weights) != n:
        raise ConfigError(
            f"class_weight: must have {n} weights, one for each output of the model, "
            f"got {len(weights)}"
        )
    return weights


def check_scalar(loss: Any, what: str) -> None:
    """Refuses a loss that is no rank-0 float tensor."""
    if not isinstance(loss, Tensor):
        fix = ""
        if loss is None:
            fix = "; has it a return?"
        elif isinstance(loss, tuple):
            fix = '; write return {"loss": loss, "name": value}, of which "loss" is trained'
        raise TraceError(
            f"{what}: must be a tensor or a dict of tensors, got {type(loss).__name__}{fix}"
        )
    if loss.ndim or not str(loss.dtype).startswith("float"):
        raise TraceError(
            f"{what}: the loss must be one number, got {loss.dtype} of shape {loss.shape}; "
            "reduce it with .mean() or .sum()"
        )


def to_logged(name: str, value: Any, trace: Trace) -> Tensor:
    """A value that is logged and not trained: one number, of any dtype.

    Raises
    ------
    TraceError
    """
    if is_number(value):
        return trace.number("float32", value)
    if not isinstance(value, Tensor):
        raise TraceError(f"log {name!r}: must be a tensor or a number, got {type(value).__name__}")
    if value.ndim:
        raise TraceError(
            f"log {name!r}: what is logged must be one number, got {value.dtype} of "
            f"shape {value.shape}; reduce it with .mean() or .sum()"
        )
    return value if value.dtype.is_floating_point else value.cast("float32")
