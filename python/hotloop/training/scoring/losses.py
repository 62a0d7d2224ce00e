"""Which loss a run uses: the default rules, names, modules and functions.

The rule of "auto" (decided by the targets, printed in the header): class ids, bools and strings
give cross-entropy, or binary cross-entropy where the model has one logit; a 0/1 matrix gives
binary cross-entropy per column; floats give the mean squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.structure import flatten
from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError, TraceError
from hotloop.graph.build import is_number
from hotloop.graph.loss_parts import with_parts
from hotloop.graph.symbolic import Tensor
from hotloop.graph.trace import Trace, current
from hotloop.nn import functional as F
from hotloop.nn.module import Module
from hotloop.training.scoring.matching import call_matched, match_shape

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.training.config import TrainingConfig

__all__ = [
    "LOSSES",
    "Loss",
    "class_weights",
    "count_outputs",
    "doubt_of_link",
    "link_of",
    "loss_modules",
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
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "HuberLoss": "huber_loss",
    "SmoothL1Loss": "smooth_l1_loss",
}
_VALUES = {"mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"}
_CLASS_TARGETS = {"cross_entropy", "nll_loss", "multi_margin_loss"}
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
    """

    def __init__(
        self,
        name: str,
        link: str | None,
        call: Callable[..., Any],
        uses: Collection[str] = (),
        *,
        compares_values: bool = False,
    ) -> None:
        self.name = name
        self.compares_values = compares_values
        self.link = link
        self.uses = frozenset(uses)
        self._call = call

    def __call__(self, output: Any, target: Any, weight: Tensor | None) -> Any:
        """The loss of a batch: a tensor, or a dict of them."""
        return self._call(output, target, weight)


def _named(name: str, config: TrainingConfig, class_weight: list[float] | None) -> Loss:
    function = getattr(F, name)
    uses = {"class_weight"} if name in _CLASS_TARGETS else set()
    if name == "binary_cross_entropy_with_logits" and class_weight and len(class_weight) == 2:
        uses = {"class_weight"}
    extra: dict[str, Any] = {}
    if name == "cross_entropy":
        uses.add("label_smoothing")
        if config.label_smoothing:
            extra["label_smoothing"] = config.label_smoothing

    def call(output: Any, target: Tensor, weight: Tensor | None) -> Any:
        output = _one_tensor(output, name)
        options = dict(extra)
        if name in _CLASS_TARGETS and class_weight is not None:
            options["weight"] = _constant(class_weight)
        if name in _SHAPED_TARGETS:
            target = match_shape(target.cast("float32"), output)
            if "class_weight" in uses and class_weight is not None:
                options["pos_weight"] = _constant([class_weight[1] / class_weight[0]])
        if weight is None:
            return function(output, target, **options)
        return _weighted(function(output, target, reduction="none", **options), weight)

    return Loss(name, _LINKS.get(name), call, uses, compares_values=name in _VALUES)


def _constant(values: list[float]) -> Tensor:
    return current("class_weight").const(np.asarray(values, dtype=np.float64), "float32")


def _one_tensor(output: Any, name: str) -> Any:
    """The output that the loss is about: a tuple's first, a dict's "logits" or only entry."""
    if isinstance(output, (tuple, list)):
        return output[0]
    if isinstance(output, Mapping):
        if "logits" in output:
            return output["logits"]
        if len(output) == 1:
            return next(iter(output.values()))
        raise ConfigError(
            f"loss: {name} needs one output, got a dict of {', '.join(map(str, output))}; give "
            "loss a function (output, target) or override training_step"
        )
    return output


def _weighted(per_element: Tensor, weight: Tensor) -> Any:
    """Weighted mean over rows with its parts, so that windows divide once."""
    rows = per_element
    if rows.ndim > 1:
        rows = rows.reshape(rows.shape[0], -1).mean(1)
    total, denominator = (rows * weight).sum(), weight.sum()
    return with_parts(total / denominator, total, denominator)


def resolve_loss(config: TrainingConfig, data: DataModule, output: Any) -> Loss:
    """The loss of a run, given the traced output.

    Parameters
    ----------
    config : TrainingConfig
    data : DataModule
        Its targets and classes count.
    output : Tensor or structure of them
        The forward pass's result.

    Raises
    ------
    ConfigError
        When "auto" has no rule for the targets, the name is unknown, or the loss does not take the
        configuration's class_weight or label_smoothing.
    """
    class_weight = class_weights(config, data, output)
    found = _resolve(config, data.target_kind, output, class_weight)
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


def _resolve(
    config: TrainingConfig, target_kind: str, output: Any, class_weight: list[float] | None
) -> Loss:
    loss = config.loss
    if isinstance(loss, str) and loss != "auto":
        if loss not in LOSSES and loss not in LOSSES.values():
            raise ConfigError(
                f"loss: must be one of {', '.join(LOSSES)}, a loss module or a function "
                f"(output, target), got {loss!r}{did_you_mean(loss, LOSSES)}"
            )
        return _named(LOSSES.get(loss, loss), config, class_weight)
    if isinstance(loss, Mapping):
        return _summed(loss, config, class_weight)
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)

        def call(output: Any, target: Any, weight: Tensor | None) -> Any:
            if weight is not None:
                raise ConfigError(
                    f"loss: {name} takes no sample weights; use a loss by name, or put the "
                    "weights into the batch and override training_step"
                )
            return call_matched(name, loss, output, target)

        known = _FUNCTIONS.get(name, name)
        return Loss(name, _LINKS.get(known), call, compares_values=known in _VALUES)
    if target_kind == "none":
        raise ConfigError(
            "loss: data without targets has no default loss; give loss a function "
            "(output, target), or override training_step(self, batch)"
        )
    if target_kind == "float":
        return _named("mse_loss", config, class_weight)
    if target_kind == "multilabel":
        return _named("binary_cross_entropy_with_logits", config, class_weight)
    shape = _one_tensor(output, "auto").shape
    one_logit = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
    name = "binary_cross_entropy_with_logits" if one_logit else "cross_entropy"
    return _named(name, config, class_weight)


def link_of(config: TrainingConfig) -> str | None:
    """How outputs that were trained with the configuration's loss become probabilities."""
    return _resolve(config, "float", None, None).link


def loss_modules(loss: Any) -> dict[str, Module]:
    """The modules among a configuration's losses, whose parameters and buffers a run needs.

    Returns
    -------
    dict of str to Module
        By the prefix of their values' names: "loss", or "loss.<name>" of a dict of losses.
    """
    losses = loss.items() if isinstance(loss, Mapping) else [("", loss)]
    return {
        f"loss.{name}" if name else "loss": part
        for name, part in losses
        if isinstance(part, Module)
    }


def _summed(
    losses: Mapping[str, Any], config: TrainingConfig, class_weight: list[float] | None
) -> Loss:
    if "loss" in losses:
        raise ConfigError(
            "loss: 'loss' is the name of the sum, got a dict with a loss of that name; choose "
            "another"
        )
    parts = {
        name: _resolve(config.replace(loss=loss), "float", None, class_weight)
        for name, loss in losses.items()
    }

    def call(output: Any, target: Any, weight: Tensor | None) -> dict[str, Any]:
        return {name: part(output, target, weight) for name, part in parts.items()}

    links = [part.link for part in parts.values() if part.link]
    uses = {field for part in parts.values() for field in part.uses}
    compares_values = any(part.compares_values for part in parts.values())
    name, link = " + ".join(parts), links[0] if links else None
    return Loss(name, link, call, uses, compares_values=compares_values)


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
    last = _one_tensor(output, loss.name)
    op, what = _LAST_OPS[loss.link]
    made_by = {value: node for node in last.trace.graph.nodes() for value in node["outputs"]}
    node = made_by.get(last.id)
    while node is not None and node["op"] in ("reshape", "permute", "cast"):
        node = made_by.get(node["inputs"][0])
    if node is None or node["op"] != op:
        return ""
    where = f"{node['scope']}, " if node["scope"] else ""
    fix = "end it in log_softmax" if loss.link == "exp" else f"leave the {op} out"
    return (
        f"the model ends in {where}{op}, which gives the loss {loss.name} {what}; {fix} "
        "(predict(..., proba=True) gives probabilities)"
    )


# ---- class weights


def class_weights(config: TrainingConfig, data: DataModule, output: Any) -> list[float] | None:
    """The configuration's class weights, one per output of the model (2 of a single logit).

    "balanced" is N / (K count) of the N training rows, which are of K classes; a class without
    rows has weight 1, as have those that a dict leaves out.

    Raises
    ------
    ConfigError
        If the targets are no classes, a class is unknown, or there is not one weight per output.
    """
    wanted = config.class_weight
    if wanted is None:
        return None
    if data.n_classes is None:
        raise ConfigError(
            f"class_weight: needs class targets, got {data.target_kind} targets; leave it out"
        )
    n = count_outputs(output) or data.n_classes
    if wanted == "balanced":
        counts = (data.class_counts() + [0] * n)[:n]
        total, present = sum(counts), sum(count > 0 for count in counts)
        return [total / (present * count) if count else 1.0 for count in counts]
    if isinstance(wanted, Mapping):
        names = {name: i for i, name in enumerate(data.classes or range(n))}
        weights = [1.0] * n
        for key, weight in wanted.items():
            if key not in names:
                raise ConfigError(
                    f"class_weight: classes are {', '.join(map(str, names))}, got {key!r}"
                )
            weights[names[key]] = float(weight)
        return weights
    weights = [float(w) for w in wanted]
    if len(weights) != n:
        raise ConfigError(
            f"class_weight: must have {n} weights, one for each output of the model, "
            f"got {len(weights)}"
        )
    return weights


def count_outputs(output: Any) -> int | None:
    """How many classes a traced output has: 2 of one logit; None where that is unknown."""
    shape = flatten(output)[0][0].shape
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        return 2
    return int(shape[1]) if len(shape) > 1 else None


def check_scalar(loss: Any, what: str) -> None:
    """Refuses a loss that is no rank-0 float tensor."""
    if not isinstance(loss, Tensor):
        raise TraceError(
            f"{what}: must be a tensor or a dict of tensors, got {type(loss).__name__}"
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
