"""Loss layers; see the functions in :mod:`hotloop.nn.functional` for formulas and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop.base.messages import warn
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import NonNegative, Order, Positive, Power, Probability
from hotloop.nn.functional.deprecated import with_deprecated
from hotloop.nn.functional.reductions import check_reduction
from hotloop.nn.module import Module
from hotloop.nn.parameter import Buffer
from hotloop.nn.shape import PairwiseDistance

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "GaussianNLLLoss", "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss",
    "MarginRankingLoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss",
    "NLLLoss", "NLLLoss2d", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(Module):
    """What losses share: a reduction."""

    def __init__(
        self,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        extra = ("batchmean",) if name == "KLDivLoss" else ()
        check_reduction(name, reduction, extra)
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss with a buffer ``weight``."""

    weight: Buffer | None

    def __init__(
        self,
        weight: Any = None,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)


@with_deprecated
class MSELoss(_Loss):
    """Mean squared error, ``(x - y)²``: the default for float targets.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.mse_loss`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.mse_loss(input, target, reduction=self.reduction)


@with_deprecated
class L1Loss(_Loss):
    """Mean absolute error, ``|x - y|``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.l1_loss`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.l1_loss(input, target, reduction=self.reduction)


@with_deprecated
class SmoothL1Loss(_Loss):
    """``|x - y|``, squared within ``beta`` of 0.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.
    beta : float
        Where the square ends.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.smooth_l1_loss`.
    """

    def __init__(
        self,
        *,
        reduction: str = "mean",
        beta: NonNegative = 1.0,
    ) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, input: Any, target: Any) -> Any:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """``(x - y)² / 2``, linear beyond ``delta``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.
    delta : float
        Where the square ends.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.huber_loss`.
    """

    def __init__(self, reduction: str = "mean", delta: Positive = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Any, target: Any) -> Any:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


@with_deprecated
class CrossEntropyLoss(_WeightedLoss):
    """``-log softmax(x)[y]`` of logits: the default for class targets.

    Parameters
    ----------
    weight : array, optional
        One per class, ``(C,)``.
    ignore_index : int
        Targets of this value count nothing.
    reduction : {"mean", "sum", "none"}
        The mean divides by the sum of the targets' weights.
    label_smoothing : float
        The share spread over all classes, in [0, 1].

    Notes
    -----
    Inputs: ``(N, C)`` or ``(N, C, ...)`` and class numbers without the dim C, or
    probabilities of the same shape.
    The formula: :func:`hotloop.nn.functional.cross_entropy`.
    """

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: Probability = 0.0,
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Any, target: Any) -> Any:
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


@with_deprecated
class NLLLoss(_WeightedLoss):
    """``-x[y]`` of log probabilities and classes.

    Parameters
    ----------
    weight : array, optional
        One per class, ``(C,)``.
    ignore_index : int
        Targets of this value count nothing.
    reduction : {"mean", "sum", "none"}
        The mean divides by the sum of the targets' weights.

    Notes
    -----
    Inputs: ``(N, C)`` or ``(N, C, ...)`` and class numbers without the dim C.
    The formula: :func:`hotloop.nn.functional.nll_loss`.
    """

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Any, target: Any) -> Any:
        return F.nll_loss(
            *(input, target),
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


@with_deprecated
class NLLLoss2d(NLLLoss):
    """:class:`NLLLoss`, whose name this was for images; deprecated in torch.

    Parameters
    ----------
    weight : array, optional
        One per class, ``(C,)``.
    ignore_index : int
        Targets of this value count nothing.
    reduction : {"mean", "sum", "none"}
        The mean divides by the sum of the targets' weights.

    Notes
    -----
    Making one is a FutureWarning.
    """

    def __init__(
        self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        warn(
            "`NLLLoss2d` has been deprecated. Please use `NLLLoss` instead as a drop-in "
            "replacement and see https://pytorch.org/docs/main/nn.html#torch.nn.NLLLoss for more "
            "details.",
            FutureWarning,
        )
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)


@with_deprecated
class BCELoss(_WeightedLoss):
    """Binary cross-entropy of probabilities.

    Parameters
    ----------
    weight : array, optional
        Of each element, broadcast.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.binary_cross_entropy`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


@with_deprecated
class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross-entropy of logits: the default for one logit and for 0/1 matrices.

    Parameters
    ----------
    weight : array, optional
        Of each element, broadcast.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.
    pos_weight : array, optional
        Of the positive part: one per class, ``(C,)``.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.binary_cross_entropy_with_logits`.
    """

    pos_weight: Buffer | None

    def __init__(
        self,
        weight: Any = None,
        *,
        reduction: str = "mean",
        pos_weight: Any = None,
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Any, target: Any) -> Any:
        return F.binary_cross_entropy_with_logits(
            *(input, target, self.weight),
            reduction=self.reduction,
            pos_weight=self.pos_weight,
        )


@with_deprecated
class KLDivLoss(_Loss):
    """``y (log y - x)``, x being log probabilities.

    Parameters
    ----------
    reduction : {"mean", "batchmean", "sum", "none"}
        "mean" divides by the number of elements, "batchmean" by the rows.
    log_target : bool
        Whether the target holds logarithms.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.kl_div`.
    """

    def __init__(
        self,
        *,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target

    def forward(self, input: Any, target: Any) -> Any:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


@with_deprecated
class HingeEmbeddingLoss(_Loss):
    """``x`` where y is 1, ``max(0, margin - x)`` where it is -1.

    Parameters
    ----------
    margin : float
        Distance of pairs that do not belong together.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.hinge_embedding_loss`.
    """

    def __init__(
        self,
        margin: float = 1.0,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, input: Any, target: Any) -> Any:
        return F.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class _MarginLoss(_Loss):
    """A loss with a margin, 0 by default."""

    def __init__(
        self,
        margin: float = 0.0,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin = margin


@with_deprecated
class MarginRankingLoss(_MarginLoss):
    """``max(0, -y (x1 - x2) + margin)``.

    Parameters
    ----------
    margin : float
        What the higher one is to be ahead by.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(x1, x2, y)`` of one shape.
    The formula: :func:`hotloop.nn.functional.margin_ranking_loss`.
    """

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        return F.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


@with_deprecated
class CosineEmbeddingLoss(_MarginLoss):
    """``1 - cos`` where y is 1, ``max(0, cos - margin)`` where it is -1.

    Parameters
    ----------
    margin : float
        Cosine that pairs which do not belong together shall stay below.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(x1, x2)`` of ``(N, D)``, y ``(N,)``.
    The formula: :func:`hotloop.nn.functional.cosine_embedding_loss`.
    """

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        return F.cosine_embedding_loss(
            input1, input2, target, self.margin, reduction=self.reduction
        )


@with_deprecated
class SoftMarginLoss(_Loss):
    """``log(1 + e**(-y x))``, y being -1 or 1.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.soft_margin_loss`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


@with_deprecated
class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Binary cross-entropy of logits, its mean over the classes taken first.

    Parameters
    ----------
    weight : array, optional
        One per class, ``(C,)``.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Notes
    -----
    Inputs: ``(output, target)``, both ``(N, C)``.
    The formula: :func:`hotloop.nn.functional.multilabel_soft_margin_loss`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.multilabel_soft_margin_loss(
            input, target, weight=self.weight, reduction=self.reduction
        )


@with_deprecated
class MultiLabelMarginLoss(_Loss):
    """Margins between the target classes, a list that -1 ends, and all others.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Notes
    -----
    Inputs: ``(output, target)``, both ``(N, C)``.
    The formula: :func:`hotloop.nn.functional.multilabel_margin_loss`.
    """

    def forward(self, input: Any, target: Any) -> Any:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


@with_deprecated
class MultiMarginLoss(_WeightedLoss):
    """Margins between the right class and all others.

    Parameters
    ----------
    p : {1, 2}
        The power of each margin.
    margin : float
        What the right class is to be ahead by.
    weight : array, optional
        One per class, ``(C,)``.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Notes
    -----
    Inputs: ``(N, C)`` and class numbers ``(N,)``.
    The formula: :func:`hotloop.nn.functional.multi_margin_loss`.
    """

    def __init__(
        self,
        p: Power = 1,
        margin: float = 1.0,
        weight: Any = None,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.p = p
        self.margin = margin

    def forward(self, input: Any, target: Any) -> Any:
        return F.multi_margin_loss(
            *(input, target, self.p, self.margin, self.weight), reduction=self.reduction
        )


@with_deprecated
class TripletMarginLoss(_Loss):
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)``.

    Parameters
    ----------
    margin : float
        What the negative is to be farther by.
    p, eps : float
        Of :class:`hotloop.nn.PairwiseDistance`.
    swap : bool
        Whether the nearer of anchor and positive counts for the negative.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Notes
    -----
    Inputs: ``(anchor, positive, negative)``, each ``(N, D)``.
    The formula: :func:`hotloop.nn.functional.triplet_margin_loss`.
    """

    def __init__(
        self,
        margin: Positive = 1.0,
        p: Order = 2.0,
        eps: NonNegative = 1e-6,
        swap: bool = False,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any:
        return F.triplet_margin_loss(
            *(anchor, positive, negative, self.margin, self.p, self.eps, self.swap),
            reduction=self.reduction,
        )


class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with a distance of one's own.

    Parameters
    ----------
    distance_function : callable, optional
        Two tensors to one, ``(N,)``; PairwiseDistance by default.
    margin : float
        What the negative is to be farther by.
    swap : bool
        Whether the nearer of anchor and positive counts for the negative.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Notes
    -----
    Inputs: ``(anchor, positive, negative)``, each ``(N, D)``.
    The formula: :func:`hotloop.nn.functional.triplet_margin_with_distance_loss`.
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Any, Any], Any] | None = None,
        margin: Positive = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.distance_function = distance_function or PairwiseDistance()
        self.margin = margin
        self.swap = swap

    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any:
        return F.triplet_margin_with_distance_loss(
            *(anchor, positive, negative),
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


@with_deprecated
class PoissonNLLLoss(_Loss):
    """``e**x - y x``, x being the log rate of counts.

    Parameters
    ----------
    log_input : bool
        False: the input is the rate itself.
    full : bool
        Adds Stirling's approximation of ``log(y!)``.
    eps : float
        Keeps the logarithm of a rate of 0 finite.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(output, target)`` of one shape.
    The formula: :func:`hotloop.nn.functional.poisson_nll_loss`.
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        *,
        eps: NonNegative = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Any, target: Any) -> Any:
        return F.poisson_nll_loss(
            *(log_input, target, self.log_input, self.full),
            eps=self.eps,
            reduction=self.reduction,
        )


class GaussianNLLLoss(_Loss):
    """``(log var + (x - y)² / var) / 2``.

    Parameters
    ----------
    full : bool
        Adds the constant ``log(2π) / 2``.
    eps : float
        The least variance.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Notes
    -----
    Inputs: ``(mean, target, var)`` of one shape.
    The formula: :func:`hotloop.nn.functional.gaussian_nll_loss`.
    """

    def __init__(
        self, *, full: bool = False, eps: NonNegative = 1e-6, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Any, target: Any, var: Any) -> Any:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class CTCLoss(_Loss):
    """Connectionist temporal classification (Graves et al. 2006).

    Parameters
    ----------
    blank : int
        The class that stands for no target.
    reduction : {"mean", "sum", "none"}
        "mean" divides each loss by the number of its targets, at least 1, and then by N.
    zero_infinity : bool
        Makes loss and gradient 0 where no alignment is short enough for its times.

    Notes
    -----
    Inputs: ``(log_probs, targets, input_lengths, target_lengths)`` of shapes ``(T, N, C)``,
    ``(N, S)``, ``(N,)``, ``(N,)``.
    The formula: :func:`hotloop.nn.functional.ctc_loss`.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        return F.ctc_loss(
            *(log_probs, targets, input_lengths, target_lengths, self.blank),
            reduction=self.reduction,
            zero_infinity=self.zero_infinity,
        )
