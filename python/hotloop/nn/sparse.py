"""Lookup layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import lift
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Order, Size
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter, to_host
from hotloop.nn.recipes import Array, Normal

__all__ = ["Embedding"]


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


class Embedding(Module):
    """A table of vectors, looked up by number.

    Parameters
    ----------
    num_embeddings, embedding_dim : int
        Rows of the table and their length.
    padding_idx : int, optional
        A row that is zero at first and gets no gradient.
    max_norm, norm_type, scale_grad_by_freq, sparse
        Only torch's defaults.
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
        max_norm: float | None = None,
        norm_type: Order = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        for name, given, default in (
            ("max_norm", max_norm, None),
            ("scale_grad_by_freq", scale_grad_by_freq, False),
            ("sparse", sparse, False),
        ):
            if given != default:
                raise ConfigError(f"Embedding: {name} must be {default}, got {given!r}: not built")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ConfigError(
                f"Embedding: padding_idx must lie within {num_embeddings} rows, got {padding_idx}"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        shape = (num_embeddings, embedding_dim)
        if _weight is not None:
            if np.shape(_weight) != shape:
                raise ShapeError(f"Embedding: the weight must be {shape}, got {np.shape(_weight)}")
            self.weight = Parameter(_weight)
        elif self.padding_idx is None:
            self.weight = Parameter.of_recipe(shape, Normal(0.0, 1.0))
        else:
            self.weight = Parameter.of_recipe(shape, _NormalWithZeroRow(self.padding_idx))
        self.weight.requires_grad = not _freeze

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """A layer of given vectors.

        Parameters
        ----------
        embeddings : array
            ``(num_embeddings, embedding_dim)``; copied.
        freeze : bool
            Whether they keep their values in training.
        padding_idx : int, optional
            A row that gets no gradient.

        Returns
        -------
        Embedding
            With these vectors as its weight.

        Raises
        ------
        ShapeError
            If the embeddings are no matrix.
        """
        table = to_host(embeddings)
        if table.ndim != 2:
            raise ShapeError(f"from_pretrained: embeddings must have 2 dims, got {table.shape}")
        rows, width = table.shape
        return cls(rows, width, padding_idx=padding_idx, _weight=table, _freeze=freeze)

    def forward(self, input: Any) -> Any:
        return F.embedding(lift(input, what="Embedding"), self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"
