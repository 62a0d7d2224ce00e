"""CrossValidation: what ``cross_validate`` returns, and how it is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted, format_seconds
from hotloop.base.structure import flatten, unflatten
from hotloop.base.tables import as_html, as_text
from hotloop.data.folding import Places
from hotloop.errors import ConfigError, DataError
from hotloop.training.result.result import TrainResult

__all__ = ["CrossValidation"]

_MAX_COLUMNS = 6  # of scores that the table shows


class CrossValidation:
    """The folds of a cross-validation: scores, models, and predictions of rows not trained on.

    As text, and in a notebook as HTML, it is a table of the folds with mean and standard deviation.

    Attributes
    ----------
    results : list of TrainResult
        One for each fold, in the order of the folds; ``results[k].model`` is its model, None where
        the models were not kept. Their state for resuming is not kept in memory.
    scores : dict of str to list of float
        ``val_loss`` and metrics (``val_accuracy``) of each fold's final model on the fold's
        validation rows.
    mean, std : dict of str to float
        Of the scores over folds; the standard deviation is that of a sample, divided by the number
        of folds less one, and NaN of a single fold.
    rows : int64 array (n,)
        Ascending numbers of the rows that some fold validated on, as ``DataModule.rows`` has them:
        all but test rows; by time those of the first block are missing too. Windows go by the row
        of the series that they begin with; :meth:`aligned` puts them where they end.
    fold : int64 array (n,)
        For each of these rows the fold, from 0, that validated on it.
    predictions : ndarray (n, ...), structure of them, list, or None
        For each of these rows, what the model of a fold that did not train on it predicts: of class
        targets probabilities, as ``predict(proba=True)``, else forward's outputs in the targets'
        units. None where they were not asked for.
    labels : ndarray (n, ...), structure of them, list, or None
        Of class targets likewise the likeliest class, by its name.
    classes : list, dict of them, or None
        Names by class id, as those of a result.
    confusion_matrix : ndarray (C, C), dict of them, or None
        The sum of those of the folds' results.
    seed : int
        That of all folds' trainings: dropout, and initial weights unless ``hl.manual_seed`` says
        another.
    data_seed : int
        That of the folds themselves, and of the order of training.
    n_folds : int
        How many were asked for; results has fewer where it was interrupted.
    """

    def __init__(
        self,
        *,
        results: Sequence[TrainResult],
        scores: Sequence[Mapping[str, float]],
        rows: Sequence[npt.NDArray[np.int64]],
        predictions: Any,
        labels: Any,
        classes: Any,
        seed: int,
        data_seed: int,
        n_folds: int,
        places: Places,
    ) -> None:
        self.results = list(results)
        names = dict.fromkeys(name for one in scores for name in one)
        self.scores: dict[str, list[float]] = {
            name: [one.get(name, math.nan) for one in scores] for name in names
        }
        self.mean = {name: statistics.fmean(values) for name, values in self.scores.items()}
        self.std = {name: _deviation(values) for name, values in self.scores.items()}
        every = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        order = np.argsort(every, kind="stable")
        self.rows: npt.NDArray[np.int64] = every[order]
        numbers = np.repeat(np.arange(len(rows)), [len(one) for one in rows])
        self.fold: npt.NDArray[np.int64] = numbers[order].astype(np.int64)
        self.predictions = predictions
        self.labels = labels
        self.classes: list[Any] | dict[str, Any] | None = classes
        self.seed = seed
        self.data_seed = data_seed
        self.n_folds = n_folds
        self._places = places

    def aligned(self, values: Any = None, at: str = "last") -> Any:
        """Predictions beside the rows of the data, with NaN where no fold predicted.

        Parameters
        ----------
        values : array (n, ...) or structure of them, optional
            One for each of ``rows``: ``found.labels``, ``found.fold``. Without it the predictions.
        at : {"first", "last", "target"}
            Of windows, at which row of the series: the one that a window begins with, its last one,
            behind which it can be predicted, or that of its target, ``horizon`` rows later.

        Returns
        -------
        ndarray (N, ...) or structure of them
            For all N rows of the data (of windows, of the series) the prediction or NaN: test rows,
            by time the first block, and rows that no window ends with. Integers become float64;
            texts objects, with None.

        Raises
        ------
        ConfigError
            If there are no predictions, or an array for each sequence.
        DataError
            If values are not one for each of ``rows``.

        Examples
        --------
        >>> series = np.cumsum(np.random.rand(200, 3) - 0.5, axis=0)
        >>> up = np.diff(series[:, 0], prepend=0.0) > 0
        >>> data = hl.DataModule.from_windows(series, 20, 1, target=up, batch_size=16)
        >>> found = hl.cross_validate(lambda: hl.models.mlp(60, 2), data, folds=2, max_epochs=1)
        >>> p = found.aligned()
        >>> p.shape, int(np.isnan(p[:, 0]).sum()) == 200 - len(found.rows)
        ((200, 2), True)
        """
        if values is None:
            values = self.predictions
        if values is None:
            raise ConfigError("aligned: needs predictions, got none; write predictions=True")
        if isinstance(values, list):
            if any(map(np.ndim, values)):
                raise ConfigError(
                    "aligned: puts one value at each row, got a list of arrays, one for each "
                    "sequence; rows has the numbers of the sequences"
                )
            values = np.asarray(values)
        rows = self._places.of(self.rows, at)
        leaves, spec = flatten(values)
        return unflatten([_spread(leaf, rows, self._places.n) for leaf in leaves], spec)

    @property
    def confusion_matrix(self) -> Any:
        """The sum of the folds' matrices, of several targets a dict; None where there are none."""
        found = [result.confusion_matrix for result in self.results]
        if not found or any(one is None for one in found):
            return None
        if isinstance(found[0], dict):
            return {name: sum(one[name] for one in found) for name in found[0]}
        return sum(found)

    def __str__(self) -> str:
        head, rows = self._table()
        return f"{self._title()}\n{as_text([head, *rows])}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(*self._table(), caption=self._title())

    def _title(self) -> str:
        done = len(self.results)
        whole = counted(self.n_folds, "fold")
        which = whole if done == self.n_folds else f"{done} of {whole}, then interrupted"
        return (
            f"cross-validation: {which}, {counted(len(self.rows), 'row')} predicted; seed "
            f"{self.seed}, folds by seed {self.data_seed}"
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of the table, as text."""
        # Of a value for each class, f1[cat], there may be hundreds; scores has them all.
        names = [name for name in self.scores if not name.endswith("]")][:_MAX_COLUMNS]
        head = ["fold", "rows", *names, "epoch", "seconds", "ended"]
        sizes = np.bincount(self.fold, minlength=len(self.results))
        rows = [
            [
                str(k + 1),
                f"{sizes[k]:,}",
                *(f"{self.scores[name][k]:.4g}" for name in names),
                str(result.best_epoch if _is_best(result) else result.epochs),
                format_seconds(result.seconds),
                result.stop_reason,
            ]
            for k, result in enumerate(self.results)
        ]
        for label, values in (("mean", self.mean), ("± sd", self.std)):
            rows.append([label, "", *(f"{values[name]:.4g}" for name in names), "", "", ""])
        return head, rows


def _spread(values: Any, rows: npt.NDArray[np.int64], n: int) -> npt.NDArray[Any]:
    """Values at these of n rows; NaN, or None beside what are no numbers, at the others."""
    given = np.asarray(values)
    if given.ndim == 0 or len(given) != len(rows):
        raise DataError(
            f"aligned: values must be one for each of the {len(rows):,} rows that were predicted, "
            f"got shape {given.shape}"
        )
    kind = given.dtype.kind
    dtype = given.dtype if kind == "f" else np.dtype("f8" if kind in "biu" else "O")
    made = np.full((n, *given.shape[1:]), None if dtype.kind == "O" else np.nan, dtype)
    made[rows] = given
    return made


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; NaN where there is none."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values)


def _is_best(result: TrainResult) -> bool:
    """Whether the model has the weights of its best epoch."""
    return result.config.restore_best and result.best_epoch is not None
