"""How the columns of a table become what forward takes, and the same again for new rows.

What is learnt of a table (medians, categories, dates' origin, means of the target by category) is
learnt of the training rows alone, and is plain data: it travels with the model, and ``predict``
does the same with a frame's columns by their names. A column costs one pass from its own memory
into one row-major matrix of float32, some thousand rows at a time, so that the strided side of the
pass stays in cache.

Category number 0 is what is missing or was not there in training. One-hot it has a column where
training had missing values, and is a row of zeros elsewhere: a column that is 0 in all of training
would multiply a weight that nobody trained.

Rejected: each column a tensor of its own, encoded inside the graph (a gather for each, and forward
would have to put them together); a median for every column at any price (a pass and a half over
the table, for columns that have no use for it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import named, warn
from hotloop.base.rules import show
from hotloop.base.suggest import name_missing
from hotloop.data.frames.columns import Column, Frame, in_threads
from hotloop.errors import DataError, DataWarning

__all__ = ["NUMBERS", "Encoding", "Feature"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

NUMBERS = "numbers"  # what is one matrix, beside ids
_BLOCK = 2**14  # rows of a pass
_MOST_SHOWN = 5  # categories and columns in a message


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column of a table, and what becomes of it.

    Attributes
    ----------
    name : str
    kind : str
        "number", "date" (days since ``origin``) or "category".
    how : str
        Of categories: "onehot", "ids" or "target".
    fill : float or None
        What stands for a missing number; None: none may be missing, or ``keeps_nan``.
    keeps_nan : bool
        Missing numbers stay NaN.
    has_indicator : bool
        Whether a column of its own says which numbers are missing.
    origin : float
        Of dates: days since 1970-01-01 that are 0.
    categories : tuple
        Texts, numbers or bools that training rows had; the first has number 1.
    has_missing : bool
        Of categories: whether training rows missed some.
    may_miss : bool
        Of categories: whether new rows may.
    means : tuple of tuple of float
        Of "target": what stands for each number of a category.
    n_filled : int
        Training rows that had no value.
    absent : tuple of int
        Numbers of categories, 0 that of missing ones, which have a column or an id by the rows of
        the whole data and that training rows of this part, a fold, lack: they count as unseen, and
        their columns are 0.
    """

    name: str
    kind: str
    how: str = ""
    fill: float | None = None
    keeps_nan: bool = False
    has_indicator: bool = False
    origin: float = 0.0
    categories: tuple[Any, ...] = ()
    has_missing: bool = False
    may_miss: bool = True
    means: tuple[tuple[float, ...], ...] = ()
    n_filled: int = 0
    absent: tuple[int, ...] = ()

    def laid_out_as(self, whole: Feature) -> Feature:
        """This one, learnt of a part of the rows, with the columns and ids of the whole's, so that
        one model's layers take both.
        """
        if self.kind != "category":
            lacks = whole.has_indicator and not self.has_indicator
            absent: tuple[int, ...] = (0,) if lacks else ()
            return dataclasses.replace(self, has_indicator=whole.has_indicator, absent=absent)
        if self.how == "target":
            return self  # has a column for each target, whatever the categories
        absent = tuple(i for i, c in enumerate(whole.categories, 1) if c not in self.categories)
        if whole.has_missing and not self.has_missing:
            absent += (0,)
        return dataclasses.replace(
            self, categories=whole.categories, has_missing=whole.has_missing, absent=absent
        )

    @property
    def made(self) -> list[tuple[str, bool]]:
        """The matrix's columns that are made of it, and whether each is a mark of 0 or 1."""
        if self.how == "ids":
            return []
        if self.how == "onehot":
            missing = [(f"{self.name} missing", True)] if self.has_missing else []
            return [(f"{self.name}={each}", True) for each in self.categories] + missing
        if self.how == "target":
            n = len(self.means[0])
            return [(self.name if n == 1 else f"{self.name} {i}", False) for i in range(n)]
        return [(self.name, False)] + [(f"{self.name} missing", True)] * self.has_indicator

    def describe(self) -> str:
        """A line, without the name."""
        if self.kind == "category":
            listed = [str(each) for each in self.categories[:_MOST_SHOWN]]
            n = len(self.categories)
            if n > len(listed):
                listed.append("...")
            what = {"onehot": "one-hot of", "ids": "ids of", "target": "mean of the target by"}
            n_categories = f"{n} categor{'y' if n == 1 else 'ies'}"
            missing = f", {self.n_filled:,} training rows missing" if self.n_filled else ""
            return f"{what[self.how]} {n_categories}: {', '.join(listed)}{missing}"
        said = []
        if self.kind == "date":
            said.append(f"days since {np.datetime64(int(self.origin), 'D')}")
        if self.fill is not None:
            said.append(f"{self.fill:g} where missing ({self.n_filled:,} training rows)")
        if self.has_indicator:
            said.append("a column that says where")
        return ", ".join(said)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """What becomes of a table's columns.

    Attributes
    ----------
    features : tuple of Feature
        In the order of forward's columns.
    raises_unseen : bool
        Whether a category that training did not have is an error.
    """

    features: tuple[Feature, ...]
    raises_unseen: bool = False

    def laid_out_as(self, whole: Encoding) -> Encoding:
        """This one, learnt of a part of the rows, with the columns and ids of the whole's."""
        pairs = zip(self.features, whole.features)
        return Encoding(tuple(a.laid_out_as(b) for a, b in pairs), self.raises_unseen)

    @property
    def names(self) -> list[str]:
        """Of the table's columns."""
        return [feature.name for feature in self.features]

    @property
    def made(self) -> list[tuple[str, bool]]:
        """The matrix's columns, and whether each is a mark of 0 or 1."""
        return [made for feature in self.features for made in feature.made]

    @property
    def ids(self) -> list[str]:
        """Of the columns that enter forward as ids beside the matrix."""
        return [feature.name for feature in self.features if feature.how == "ids"]

    @property
    def means_target(self) -> bool:
        """Whether training rows are encoded otherwise than others: by means without their own."""
        return any(feature.how == "target" for feature in self.features)

    def to_data(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Encoding:
        """Of what :meth:`to_data` gave, after a file has made lists of its tuples."""
        features = [
            Feature(
                **{
                    **feature,
                    "categories": tuple(feature["categories"]),
                    "means": tuple(tuple(row) for row in feature["means"]),
                    "absent": tuple(feature["absent"]),
                }
            )
            for feature in data["features"]
        ]
        return cls(tuple(features), bool(data["raises_unseen"]))

    def describe(self) -> list[str]:
        """A line for each column of which more is known than its name."""
        known = [(feature.name, feature.describe()) for feature in self.features]
        return [f"{name:<11} {text}" for name, text in known if text]

    # ---- encoding

    def apply(self, frame: Frame, what: str) -> Any:
        """What forward takes of a table's rows.

        Parameters
        ----------
        frame : Frame
            Its columns may have another order, and there may be more.
        what : str
            Who asks, for messages: "predict: X".

        Returns
        -------
        ndarray or dict of ndarray
            ``(rows, columns)`` float32; with ids a dict of that, as "numbers", and int64
            ``(rows,)`` for each column of them.

        Raises
        ------
        DataError
            For columns that are missing or hold something else than in training, values that are
            missing where training could not learn what to fill in, and categories that training
            did not have, if they are to raise.
        """
        missing = [name for name in self.names if name not in frame.names]
        if missing:
            raise DataError(
                f"{what} must have all columns of training, got none for "
                f"{name_missing(missing, frame.names)}"
            )
        columns = [frame.column(name) for name in self.names]
        self._check_kinds(columns, what)
        for feature, column in zip(self.features, columns):
            _check_missing(feature, column, frame, what)
        numbers = [
            self._number(feature, column, frame, what) if feature.kind == "category" else None
            for feature, column in zip(self.features, columns)
        ]
        ids = {f.name: n for f, n in zip(self.features, numbers) if f.how == "ids"}
        if len(ids) == len(self.features):
            return ids
        matrix = self._fill(columns, numbers, frame, what)
        return {NUMBERS: matrix, **ids} if ids else matrix

    def _check_kinds(self, columns: Sequence[Column], what: str) -> None:
        """Refuses columns of another kind than in training, all of them at once."""
        wrong = [
            (feature, column)
            for feature, column in zip(self.features, columns)
            if feature.kind not in ("category", column.kind) and not _is_empty(column)
        ]
        if wrong:
            got = ", ".join(
                f"{_shown(column)} in {column.name!r}, which had {feature.kind}s"
                for feature, column in wrong
            )
            raise DataError(f"{what} must have columns of the kinds of training, got {got}")

    def _number(self, feature: Feature, column: Column, frame: Frame, what: str) -> Rows:
        """The number of each row's category; 0: missing or unseen."""
        column = column.as_category
        assert column.codes is not None  # it is of categories
        categories = enumerate(feature.categories, 1)
        number = {category: i for i, category in categories if i not in feature.absent}
        table = np.zeros(len(column.categories) + 1, np.int64)
        table[:-1] = [number.get(category, 0) for category in column.categories]
        unseen = np.flatnonzero(table[:-1] == 0)
        if unseen.size:
            self._tell_unseen(feature, column, unseen, frame, what)
        return np.asarray(table[column.codes])  # -1: the last

    def _tell_unseen(
        self, feature: Feature, column: Column, unseen: Rows, frame: Frame, what: str
    ) -> None:
        assert column.codes is not None  # it is of categories
        known = column.codes[column.codes >= 0]
        counts = np.bincount(known, minlength=len(column.categories))
        unseen = unseen[counts[unseen] > 0]
        if not unseen.size:
            return
        first = int(np.argmax(column.codes == unseen[0]))
        listed = named([repr(column.categories[i]) for i in unseen], _MOST_SHOWN)
        n = int(counts[unseen].sum())
        text = (
            f"{what}: column {feature.name!r}: training rows had no {listed}, got "
            f"{n:,} such row{'s' * (n != 1)}, the first {frame.place(first)}"
        )
        if self.raises_unseen:
            raise DataError(f"{text}; correct them, or make the data with unseen='warn'")
        warn(f"{text}; counted as missing", DataWarning)

    def _fill(
        self, columns: list[Column], numbers: list[Rows | None], frame: Frame, what: str
    ) -> npt.NDArray[np.float32]:
        """The matrix, in one pass over the columns."""
        matrix = np.zeros((frame.n, len(self.made)), np.float32)
        places = np.cumsum([0, *(len(feature.made) for feature in self.features)])[:-1].tolist()
        parts = list(zip(self.features, columns, numbers, places))

        def fill(begin: int) -> None:
            rows = slice(begin, min(begin + _BLOCK, frame.n))
            with np.errstate(over="raise", invalid="ignore"):
                for part in parts:
                    _fill_block(matrix[rows], rows, *part)

        try:
            in_threads(fill, range(0, frame.n, _BLOCK), frame.n)
        except FloatingPointError:
            self._refuse_large(columns, frame, what)
        for feature, column, _, place in parts:
            if feature.kind != "category" and column.missing.size:
                if feature.fill is not None:
                    matrix[column.missing, place] = feature.fill - feature.origin
                if feature.has_indicator and 0 not in feature.absent:
                    matrix[column.missing, place + 1] = 1.0
        return matrix

    def _refuse_large(self, columns: Sequence[Column], frame: Frame, what: str) -> None:
        """Names the first number that float32 does not hold."""
        limit = float(np.finfo(np.float32).max)
        for column in columns:
            values = column.values
            if values is None or values.dtype.kind != "f":
                continue
            beyond = np.isfinite(values) & (np.abs(values) > limit)
            if beyond.any():
                row = int(np.argmax(beyond))
                raise DataError(
                    f"{what}: values must fit float32 (up to {limit:.3g}), got {values[row]:g} in "
                    f"{frame.place(row)}, column {column.name!r}; scale the column"
                )


def _fill_block(
    matrix: Array, rows: slice, feature: Feature, column: Column, numbers: Rows | None, place: int
) -> None:
    """Some rows of a column, into the matrix's columns from ``place`` on."""
    if numbers is None:
        assert column.values is not None  # it is no category
        values = column.values[rows]
        matrix[:, place] = values - feature.origin if feature.kind == "date" else values
    elif feature.how == "target":
        means = np.asarray(feature.means, np.float32)
        matrix[:, place : place + means.shape[1]] = means[numbers[rows]]
    elif feature.how == "onehot":
        # where category number 0 stands: after the others, or nowhere
        n = len(feature.categories)
        zero = n if feature.has_missing and 0 not in feature.absent else -1
        at = np.where(numbers[rows] > 0, numbers[rows] - 1, zero)
        known = np.flatnonzero(at >= 0)
        matrix[known, place + at[known]] = 1.0


def _is_empty(column: Column) -> bool:
    """Whether no row has a value, so that any kind would do."""
    return column.values is not None and len(column.missing) == len(column.values)


def _shown(column: Column) -> str:
    if column.kind != "category":
        return column.plural
    return f"texts ({show(column.categories[0])})" if column.categories else "categories"


def _check_missing(feature: Feature, column: Column, frame: Frame, what: str) -> None:
    """Refuses missing values of which training could not learn what to fill in."""
    if feature.kind == "category":
        if feature.may_miss or not column.missing.size:
            return
        fix = "correct it, or make the data with missing='fill'"
    else:
        if feature.fill is not None or feature.keeps_nan or not column.missing.size:
            return
        fix = "fill it, or make the data with missing='fill'"
    row = int(column.missing[0])
    n = len(column.missing)
    more = f" ({n:,} such rows)" if n > 1 else ""
    raise DataError(
        f"{what}: column {feature.name!r}: training rows had a value each, got none in "
        f"{frame.place(row)}{more}; {fix}"
    )
