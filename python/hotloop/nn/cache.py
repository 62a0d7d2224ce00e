"""Keys and values of the rows that a model has seen, kept from step to step.

The cache is state of a plan, in buffers of a fixed length: a step writes its own rows at the
position, reads all, and moves the position on. What lies behind the position is hidden by the
mask. A buffer that is assigned itself with some rows overwritten is changed where it lies, so that
a step writes its rows and nothing more.

Rejected: a cache that grows by a row each step, as each length would be a plan of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import lift
from hotloop.graph.creation import arange
from hotloop.graph.indexing import index_copy
from hotloop.graph.views import reshape
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module
from hotloop.nn.parameter import Buffer
from hotloop.nn.recipes import Constant

__all__ = ["KVCache"]


class KVCache(Module):
    """Keys and values of attention for step-by-step prediction.

    A model that takes one predicts row by row, with :func:`hotloop.generate` or step by step in a
    loop of your own: where ``model(x, cache)`` is called on arrays, the cache keeps its state from
    call to call, and moves on by the rows that were written.

    Parameters
    ----------
    num_layers : int
        Layers of attention that the model has.
    batch_size : int
        Sequences at a time.
    num_kv_heads : int
        Heads of keys and values.
    max_seq_len : int
        Rows that fit.
    head_dim : int
        Width of a head.

    Attributes
    ----------
    position : Buffer
        Rows seen so far, ``()``, int64.

    Raises
    ------
    ConfigError
        For sizes below 1.

    Notes
    -----
    The state lies on the model's device, beside a copy of its weights, and not in the buffers'
    values; ``reset()`` begins anew, and so does a call after values of the model were set, or of
    another model. A call that raises changes nothing, and one whose rows do not fit any more raises
    a ShapeError before anything runs. A cache that is a part of a model is empty in each
    prediction. A subclass with buffers of its own, to which ``forward`` assigns, keeps those from
    call to call too: what is made once and read in each step.

    Examples
    --------
    >>> class Sum(nn.Module):
    ...     def forward(self, x, cache):  # (N, 1, T, 1) and of all rows so far the sum
    ...         seen = cache.mask(x.shape[2])[:, None].float()
    ...         return seen @ cache.update(x, x, 0)[0]
    >>> model, cache = Sum(), nn.KVCache(1, 1, 1, max_seq_len=8, head_dim=1)
    >>> [float(model(np.full((1, 1, 1, 1), x, "float32"), cache)[0, 0, 0, 0]) for x in (1, 2, 3)]
    [1.0, 3.0, 6.0]
    """

    position: Buffer
    _written: dict[str, int]  # rows of each buffer that the step writes

    def __init__(
        self,
        num_layers: Count,
        batch_size: Count,
        num_kv_heads: Count,
        max_seq_len: Count,
        head_dim: Count,
    ) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.batch_size = batch_size
        self.num_kv_heads = num_kv_heads
        self.max_seq_len = max_seq_len
        self.head_dim = head_dim
        shape = (batch_size, num_kv_heads, max_seq_len, head_dim)
        for name in ("k", "v"):
            for i in range(num_layers):
                one = Buffer.of_recipe(shape, Constant(0.0))
                one.persistent = False
                self.register_buffer(f"{name}{i}", one, persistent=False)
        self.register_buffer("position", np.zeros((), np.int64), persistent=False)
        object.__setattr__(self, "_written", {})

    def update(self, key: Any, value: Any, layer: int) -> tuple[Any, Any]:
        """In ``forward``: writes a layer's keys and values of new rows behind those before.

        Parameters
        ----------
        key, value : Tensor
            ``(batch_size, num_kv_heads, T, head_dim)`` of the T new rows.
        layer : int
            From 0 on.

        Returns
        -------
        tuple of Tensor
            Keys and values of all rows, ``(batch_size, num_kv_heads, max_seq_len, head_dim)``:
            what :meth:`mask` hides is not written yet.

        Raises
        ------
        ConfigError
            If there is no such layer.
        ShapeError
            If the rows are more than fit, or of another shape.
        """
        if not 0 <= layer < self.num_layers:
            raise ConfigError(f"KVCache: layer must be below {self.num_layers}, got {layer}")
        both = []
        for name, given in (("k", key), ("v", value)):
            rows = lift(given, what="KVCache.update")
            self._check(rows)
            buffer = getattr(self, f"{name}{layer}")
            written = index_copy(buffer, 2, self._places(rows.shape[2]), rows)
            buffer.assign(written)
            both.append(written)
            self._written[f"{name}{layer}"] = rows.shape[2]
        return both[0], both[1]

    def _check(self, rows: Any) -> None:
        wanted = (self.batch_size, self.num_kv_heads, "T", self.head_dim)
        fits = rows.ndim == 4 and all(
            b in ("T", a) for a, b in zip(rows.shape, wanted, strict=True)
        )
        if not fits:
            shape = ", ".join(map(str, wanted))
            raise ShapeError(f"KVCache.update: key and value must be ({shape}), got {rows.shape}")
        if rows.shape[2] > self.max_seq_len:
            raise ShapeError(
                f"KVCache.update: the sequence must fit the cache's max_seq_len of "
                f"{self.max_seq_len}, got {rows.shape[2]} rows"
            )

    def _places(self, n: int) -> Any:
        return self.position + arange(n)

    def positions(self, n: int) -> Any:
        """In ``forward``: the numbers of n new rows in their sequence, ``(n,)``, int64.

        Parameters
        ----------
        n : int
            New rows.

        Returns
        -------
        Tensor
        """
        return self._places(n)

    def mask(self, n: int) -> Any:
        """In ``forward``: which rows n new ones see: those before, and themselves.

        Parameters
        ----------
        n : int
            New rows.

        Returns
        -------
        Tensor
            ``(n, max_seq_len)`` bools, as ``F.scaled_dot_product_attention`` takes them.
        """
        return arange(self.max_seq_len) <= reshape(self._places(n), (n, 1))

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """In ``forward``: at the block's end the position moves on by the rows that were written
        in it; :func:`hotloop.generate` and calls on arrays do it.

        Returns
        -------
        context manager
        """
        self._written.clear()
        yield
        if self._written:
            self.advance(max(self._written.values()))

    def written(self) -> dict[str, int]:
        """What :meth:`update` wrote in the step that was traced last.

        Returns
        -------
        dict of str to int
            The number of new rows, by the names of the buffers that got them.
        """
        return dict(self._written)

    def advance(self, n: int) -> None:
        """In ``forward``: n rows were written by all layers; :meth:`step` does it.

        Parameters
        ----------
        n : int
            New rows.
        """
        self.position.assign(self.position + n)

    def reset(self) -> KVCache:
        """Empties the cache; outside of ``forward``.

        Returns
        -------
        KVCache
            Itself.
        """
        self.position.copy_(np.zeros((), np.int64))
        return self

    def extra_repr(self) -> str:
        return (
            f"{self.num_layers}, batch_size={self.batch_size}, num_kv_heads={self.num_kv_heads}, "
            f"max_seq_len={self.max_seq_len}, head_dim={self.head_dim}"
        )
