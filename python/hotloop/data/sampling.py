"""How often training sees a row: each once an epoch, or drawn with replacement by weights.

A draw is a function of (seed, epoch, position), as the order of shuffled rows is, so that any
position can be resumed and any number of threads gives the same batches (csrc/data/sampler.c).
Balanced sampling is weighted by 1 over the number of rows of a class; rows whose class is ignored
have none. Sequences in buckets are
drawn bucket by bucket, each as often as its weights are of all weights, to within a sequence.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject, whole
from hotloop.base.scalars import plain
from hotloop.data.arrays import read_raw
from hotloop.data.split import Split
from hotloop.errors import ConfigError, DataError

__all__ = ["Sampling", "draw_rows", "read_sampling"]

Weights = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling:
    """How training rows are drawn.

    Attributes
    ----------
    weights : float64 array (N,) or None
        Of all rows of the data; None: every class is as likely.
    n_draws : int or None
        Samples of an epoch; None: as many as there are training rows.
    """

    weights: Weights | None
    n_draws: int | None


def read_sampling(sampler: Any, weights: Any, n_draws: Any, *, shuffle: bool) -> Sampling | None:
    """What a user wishes; None: every row once.

    Raises
    ------
    ConfigError
        For wishes that contradict.
    DataError
        For weights that are none.
    """
    if sampler is None:
        given = {"weights": weights, "samples_per_epoch": n_draws}
        for name, value in given.items():
            if value is not None:
                fix = "write sampler='weighted'" + (" or 'balanced'" if name != "weights" else "")
                reject(name, "is for rows drawn with replacement, without sampler", value, fix)
        return None
    if not isinstance(sampler, str) or sampler not in ("balanced", "weighted"):
        reject("sampler", "must be 'balanced', 'weighted' or None", sampler)
    if not shuffle:
        raise ConfigError(
            f"sampler: {sampler!r} draws rows at random, got shuffle=False; leave one out"
        )
    if n_draws is not None:
        n_draws = whole(1)("samples_per_epoch", plain(n_draws))
    if sampler == "balanced":
        if weights is not None:
            raise ConfigError("weights: are those of sampler='weighted', got sampler='balanced'")
        return Sampling(None, n_draws)
    if weights is None:
        raise ConfigError(
            "weights: sampler='weighted' needs one for each row, got None; sampler='balanced' "
            "draws every class as often"
        )
    return Sampling(_read_weights(weights), n_draws)


def _read_weights(weights: Any) -> Weights:
    raw = read_raw(weights, "weights")
    if raw.ndim != 1 or raw.dtype.kind not in "biuf":
        raise DataError(
            f"weights: must be numbers, one for each row, got dtype {raw.dtype} of shape "
            f"{raw.shape}"
        )
    found = np.ascontiguousarray(raw, np.float64)
    bad = ~((found >= 0) & np.isfinite(found))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"weights: must be finite and at least 0, got {found[row]:g} in row {row}")
    return found


def draw_rows(
    split: Split,
    numbers: npt.NDArray[np.int64],
    sampling: Sampling,
    ids: npt.NDArray[Any] | None,
    n: int,
) -> Split:
    """A training split whose rows are drawn.

    Parameters
    ----------
    split : Split
    numbers : int64 array (n,)
        Of its samples, among all that ``ids`` and the weights are of.
    sampling : Sampling
    ids : integer array (N,) or None
        Class ids, where every class is to be as likely; rows of an ignored one are never drawn.
    n : int
        Rows of the data.

    Raises
    ------
    ConfigError, DataError
        Without classes or weights to draw by.
    """
    if sampling.weights is not None:
        if len(sampling.weights) != n:
            raise DataError(
                f"weights: must have one entry for each of the {n} rows, got "
                f"{len(sampling.weights)}"
            )
        weights = sampling.weights[numbers]
        if not weights.any():
            raise DataError("weights: all weights of the train rows are 0; give some a weight")
    else:
        if ids is None or ids.ndim != 1:
            raise ConfigError("sampler: 'balanced' needs one class for each row in y, got none")
        found, codes, counts = np.unique(ids[numbers], return_inverse=True, return_counts=True)
        shares = np.where(found < 0, 0.0, 1.0 / counts)  # an ignored class counts nothing
        weights = shares[codes.reshape(-1)]
        if not weights.any():
            raise DataError(
                f"sampler: 'balanced' draws rows that have a class, got {found[0]} in all train "
                "rows; give some a class"
            )
    n_draws = split.n if sampling.n_draws is None else sampling.n_draws
    if split.is_streamed:  # what is never drawn stands in no other row's place either
        all_rows = np.arange(split.n) if split.rows is None else split.rows
        within = np.unique(all_rows[weights > 0])
        buckets = tuple(dataclasses.replace(part, within=within) for part in split.buckets)
        split = dataclasses.replace(split, within=within, buckets=buckets)
    if not split.buckets:
        return dataclasses.replace(split, weights=weights, n_draws=n_draws)
    rows = np.arange(split.n) if split.rows is None else split.rows
    of_part = [
        weights[np.searchsorted(rows, part.rows)]
        for part in split.buckets
        if part.rows is not None  # as those of buckets are
    ]
    shares = np.array([part.sum() for part in of_part]) / weights.sum() * n_draws
    draws = np.floor(shares).astype(np.int64)
    draws[np.argsort(draws - shares, kind="stable")[: n_draws - draws.sum()]] += 1
    buckets = tuple(
        dataclasses.replace(part, weights=own, n_draws=int(n))
        for part, own, n in zip(split.buckets, of_part, draws)
    )
    return dataclasses.replace(split, buckets=buckets, weights=weights, n_draws=n_draws)
