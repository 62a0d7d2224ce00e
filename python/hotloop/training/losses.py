"""Which loss a run uses: the default rules, names, modules and functions.

The rule of "auto" (decided by the targets, printed in the header): class ids, bools and strings
give cross-entropy, or binary cross-entropy where the model has one logit; a 0/1 matrix gives
binary cross-entropy per column; floats give the mean squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hotloop._suggest import did_you_mean
from hotloop.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from hotloop.graph.symbolic import Tensor
    from hotloop.training.config import TrainingConfig

__all__ = ["LOSSES", "Loss", "resolve_loss"]

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
        How outputs become probabilities: "softmax", "sigmoid" or None.
    """

    def __init__(self, name: str, link: str | None, call: Callable[..., Any]) -> None:
        self.name = name
        self.link = link
        self._call = call

    def __call__(self, output: Any, target: Any, weight: Tensor | None) -> Any:
        """The loss of a batch: a tensor, or a dict of them."""
        return self._call(output, target, weight)


def _named(name: str, config: TrainingConfig, class_weight: list[float] | None) -> Loss:
    from hotloop.nn import functional as F

    function = getattr(F, name)
    link = {
        "cross_entropy": "softmax",
        "nll_loss": "exp",
        "binary_cross_entropy_with_logits": "sigmoid",
        "multilabel_soft_margin_loss": "sigmoid",
    }.get(name)
    extra: dict[str, Any] = {}
    if name == "cross_entropy" and config.label_smoothing:
        extra["label_smoothing"] = config.label_smoothing

    def call(output: Any, target: Tensor, weight: Tensor | None) -> Any:
        from hotloop.training.metrics import match_shape

        output = _one_tensor(output, name)
        options = dict(extra)
        if name in _CLASS_TARGETS and class_weight is not None:
            options["weight"] = _constant(class_weight)
        if name in _SHAPED_TARGETS:
            target = match_shape(target.cast("float32"), output)
            is_binary = name == "binary_cross_entropy_with_logits"
            if is_binary and class_weight is not None and len(class_weight) == 2:
                options["pos_weight"] = _constant([class_weight[1] / class_weight[0]])
        if weight is None:
            return function(output, target, **options)
        return _weighted(function(output, target, reduction="none", **options), weight)

    return Loss(name, link, call)


def _constant(values: list[float]) -> Tensor:
    import numpy as np

    from hotloop.graph.trace import current

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
    from hotloop.graph.loss_parts import with_parts

    rows = per_element
    if rows.ndim > 1:
        rows = rows.reshape(rows.shape[0], -1).mean(1)
    total, denominator = (rows * weight).sum(), weight.sum()
    return with_parts(total / denominator, total, denominator)


def resolve_loss(
    config: TrainingConfig,
    target_kind: str,
    output: Any,
    class_weight: list[float] | None,
) -> Loss:
    """The loss of a run, given the traced output.

    Parameters
    ----------
    config : TrainingConfig
    target_kind : {"class", "multilabel", "float", "none"}
    output : Tensor or structure of them
        The forward pass's result.
    class_weight : list of float or None
        One per class, resolved.

    Raises
    ------
    ConfigError
        When "auto" has no rule for the targets, or the name is unknown.
    """
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
            return loss(output, target)

        return Loss(name, _link_of(loss), call)
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


def _link_of(loss: Any) -> str | None:
    return {
        "CrossEntropyLoss": "softmax",
        "cross_entropy": "softmax",
        "BCEWithLogitsLoss": "sigmoid",
        "binary_cross_entropy_with_logits": "sigmoid",
        "NLLLoss": "exp",
    }.get(getattr(loss, "__name__", type(loss).__name__))


def _summed(
    losses: Mapping[str, Any], config: TrainingConfig, class_weight: list[float] | None
) -> Loss:
    parts = {
        name: resolve_loss(config.replace(loss=loss), "float", None, class_weight)
        for name, loss in losses.items()
    }

    def call(output: Any, target: Any, weight: Tensor | None) -> dict[str, Any]:
        return {name: part(output, target, weight) for name, part in parts.items()}

    links = [part.link for part in parts.values() if part.link]
    return Loss(" + ".join(parts), links[0] if links else None, call)


def check_scalar(loss: Any, what: str) -> None:
    """Refuses a loss that is no rank-0 float tensor."""
    from hotloop.graph.symbolic import Tensor

    if not isinstance(loss, Tensor):
        raise TraceError(
            f"{what}: must be a tensor or a dict of tensors, got {type(loss).__name__}"
        )
    if loss.ndim or not str(loss.dtype).startswith("float"):
        raise TraceError(
            f"{what}: the loss must be one number, got {loss.dtype} of shape {loss.shape}; "
            "reduce it with .mean() or .sum()"
        )
