"""Dropout layers."""

from __future__ import annotations

from typing import Any

from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Probability
from hotloop.nn.module import Module

__all__ = [
    "AlphaDropout", "DropPath", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
    "FeatureAlphaDropout",
]  # fmt: skip


class _Dropout(Module):
    """What dropout layers share: a probability; ``inplace`` means nothing."""

    def __init__(self, p: Probability = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training: each element 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    p : float
        Probability, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out. In evaluation the input is returned as it is.
    """

    def forward(self, input: Any) -> Any:
        return F.dropout(input, self.p, self.training)


class Dropout1d(_Dropout):
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    p : float
        Probability, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    ``(N, C, L)`` or ``(C, L)`` in, the same out.
    """

    def forward(self, input: Any) -> Any:
        return F.dropout1d(input, self.p, self.training)


class Dropout2d(_Dropout):
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    p : float
        Probability, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    ``(N, C, H, W)`` or, as in torch, ``(N, C, L)`` in, the same out.
    """

    def forward(self, input: Any) -> Any:
        return F.dropout2d(input, self.p, self.training)


class Dropout3d(_Dropout):
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    p : float
        Probability, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    ``(N, C, D, H, W)`` or ``(C, D, H, W)`` in, the same out.
    """

    def forward(self, input: Any) -> Any:
        return F.dropout3d(input, self.p, self.training)


class AlphaDropout(_Dropout):
    """Dropout that keeps SELU's mean and variance.

    Parameters
    ----------
    p : float
        Probability, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    """

    def forward(self, input: Any) -> Any:
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_Dropout):
    """Alpha dropout of whole channels: SELU's mean and variance stay (Klambauer et al. 2017).

    Parameters
    ----------
    p : float
        Probability of SELU's negative limit, in [0, 1]; met to within 2**-16.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    def forward(self, input: Any) -> Any:
        return F.feature_alpha_dropout(input, self.p, self.training)


class DropPath(Module):
    """In training: whole samples 0 with a probability (stochastic depth, Huang et al. 2016).

    Parameters
    ----------
    drop_prob : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    scale_by_keep : bool
        Whether samples that stay are times ``1 / (1 - drop_prob)``.

    Raises
    ------
    ConfigError
        If drop_prob is not in [0, 1].

    Notes
    -----
    ``(N, ...)`` in, the same out: for what a residual branch gives, before it is added. Named as
    in timm; torchvision's StochasticDepth of mode "row" is the same.
    """

    def __init__(self, drop_prob: Probability = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__()
        self.drop_prob = drop_prob
        self.scale_by_keep = scale_by_keep

    def forward(self, input: Any) -> Any:
        return F.drop_path(input, self.drop_prob, self.training, self.scale_by_keep)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob}"
