"""Lookup layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import lift
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import NonNegative, Order, Size
from hotloop.nn.functional.embeddings import check_dense, padding_row
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter, to_host
from hotloop.nn.recipes import Array, Normal

__all__ = ["Embedding", "EmbeddingBag"]


class _NormalWithZeroRow(Normal):
    """Standard normal with one row of zeros: an embedding's padding."""

    def __init__(self, row: int) -> None:
        super().__init__(0.0, 1.0)
        object.__setattr__(self, "row", row)

    def draw(self, shape: tuple[int, ...], seed: int, stream: str) -> Array:
        """See :class:`hotloop.nn.recipes.Recipe`."""
        values = super().draw(shape, seed, stream).copy()
        values[self.__dict__["row"]] = 0.0
        return values


def _padding(what: str, padding_idx: int | None, n: int) -> int | None:
    return None if padding_idx is None else padding_row(what, padding_idx, n)


def _recipe(padding_idx: int | None) -> Normal:
    return Normal(0.0, 1.0) if padding_idx is None else _NormalWithZeroRow(padding_idx)


def _table(what: str, shape: tuple[int, int], padding_idx: int | None, weight: Any) -> Parameter:
    """A table of given rows, or of a recipe."""
    if weight is not None:
        if np.shape(weight) != shape:
            raise ShapeError(f"{what}: the weight must be {shape}, got {np.shape(weight)}")
        return Parameter(weight)
    return Parameter.of_recipe(shape, _recipe(padding_idx))


def _limits(layer: Embedding | EmbeddingBag) -> str:
    text = "" if layer.max_norm is None else f", max_norm={layer.max_norm}"
    return text + ("" if layer.norm_type == 2 else f", norm_type={layer.norm_type}")


def _given_table(embeddings: Any) -> Array:
    table = to_host(embeddings)
    if table.ndim != 2:
        raise ShapeError(f"from_pretrained: embeddings must have 2 dims, got {table.shape}")
    return table


class Embedding(Module):
    """A table of vectors, looked up by number.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows of the table and their length.
    padding_idx : int, optional
        A row that is zero at first and gets no gradient.
    max_norm : float, optional
        Rows that are longer are scaled to this length when they are looked up, in the table too:
        in training, before the optimizer's step. Prediction scales what it looks up, and leaves the
        table as it is.
    norm_type : float
        Which norm max_norm is of.
    sparse : bool
        Must be False.
    scale_grad_by_freq : bool
        Divides the gradient of a row by the number of times that it is looked up.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(num_embeddings, embedding_dim)``, standard normal.

    Raises
    ------
    ConfigError
        For an argument that must have torch's default, or a padding_idx outside of the table.

    Notes
    -----
    Integers of any shape in, ``(*input.shape, embedding_dim)`` out. An id outside of the table is a
    DataError in the step, which names the row.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: Size,
        embedding_dim: Size,
        padding_idx: int | None = None,
        max_norm: NonNegative | None = None,
        norm_type: Order = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_dense("Embedding", sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm, self.norm_type = max_norm, norm_type
        self.padding_idx = _padding("Embedding", padding_idx, num_embeddings)
        self.scale_grad_by_freq = scale_grad_by_freq
        shape = (num_embeddings, embedding_dim)
        self.weight = _table("Embedding", shape, self.padding_idx, _weight)
        self.weight.requires_grad = not _freeze

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: NonNegative | None = None,
        norm_type: Order = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A layer of given vectors.

        Parameters
        ----------
        embeddings : array
            ``(num_embeddings, embedding_dim)``; copied.
        freeze : bool
            Whether they keep their values in training.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
            As for the layer.

        Returns
        -------
        Embedding
            With these vectors as its weight.

        Raises
        ------
        ShapeError
            If the embeddings are no matrix.
        """
        table = _given_table(embeddings)
        rows, width = table.shape
        return cls(
            rows, width, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, table,
            freeze,
        )  # fmt: skip

    def reset_parameters(self) -> None:
        """torch's initial values again, in the place of given ones too."""
        self.weight.set_recipe(_recipe(self.padding_idx))

    def forward(self, input: Any) -> Any:
        return F.embedding(
            lift(input, what="Embedding"),
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        text += _limits(self)
        return text + (", scale_grad_by_freq=True" if self.scale_grad_by_freq else "")


class EmbeddingBag(Module):
    """Sums, means or maxima of bags of vectors, looked up by number in a table.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows of the table and their length.
    max_norm : float, optional
        Rows that are longer are scaled to this length when they are looked up, in the table too:
        in training, before the optimizer's step. Prediction scales what it looks up, and leaves the
        table as it is.
    norm_type : float
        Which norm max_norm is of.
    sparse : bool
        Must be False.
    scale_grad_by_freq : bool
        Divides the gradient of a row by the number of times that it is looked up.
    mode : {"mean", "sum", "max"}
        How a bag becomes one vector.
    include_last_offset : bool
        Whether offsets have one more at the end, the number of indices.
    padding_idx : int, optional
        A row that is zero at first, gets no gradient and counts in no bag.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(num_embeddings, embedding_dim)``, standard normal.

    Raises
    ------
    ConfigError
        For an argument that must have torch's default, another mode, or a padding_idx outside of
        the table.

    Notes
    -----
    Integers ``(B, N)``, B bags of N, in, or ``(n,)`` with offsets ``(B,)`` at which each bag
    begins; with mode="sum" also ``per_sample_weights`` of the input's shape. ``(B, embedding_dim)``
    out; an empty bag is 0.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: Size,
        embedding_dim: Size,
        max_norm: NonNegative | None = None,
        norm_type: Order = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_dense("EmbeddingBag", sparse)
        if mode not in ("mean", "sum", "max"):
            raise ConfigError(f"EmbeddingBag: mode must be 'mean', 'sum' or 'max', got {mode!r}")
        if scale_grad_by_freq and mode == "max":
            raise ConfigError(
                "EmbeddingBag: scale_grad_by_freq goes with 'sum' and 'mean', got mode='max'"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = _padding("EmbeddingBag", padding_idx, num_embeddings)
        shape = (num_embeddings, embedding_dim)
        self.weight = _table("EmbeddingBag", shape, self.padding_idx, _weight)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Any,
        freeze: bool = True,
        max_norm: NonNegative | None = None,
        norm_type: Order = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """A layer of given vectors.

        Parameters
        ----------
        embeddings : array
            ``(num_embeddings, embedding_dim)``; copied.
        freeze : bool
            Whether they keep their values in training.
        max_norm, norm_type, scale_grad_by_freq, mode, sparse, include_last_offset, padding_idx
            As for the layer.

        Returns
        -------
        EmbeddingBag
            With these vectors as its weight.

        Raises
        ------
        ShapeError
            If the embeddings are no matrix.
        """
        table = _given_table(embeddings)
        rows, width = table.shape
        made = cls(
            rows, width, max_norm, norm_type, scale_grad_by_freq, mode, sparse, table,
            include_last_offset, padding_idx,
        )  # fmt: skip
        made.weight.requires_grad = not freeze
        return made

    def reset_parameters(self) -> None:
        """torch's initial values again, in the place of given ones too."""
        self.weight.set_recipe(_recipe(self.padding_idx))

    def forward(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        return F.embedding_bag(
            lift(input, what="EmbeddingBag"),
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}{_limits(self)}"
        text += ", scale_grad_by_freq=True" if self.scale_grad_by_freq else ""
        text += f", mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"
