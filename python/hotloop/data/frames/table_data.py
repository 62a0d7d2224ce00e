"""Tables as data: numbers, texts, categories and dates of data frames and of files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hotloop.data.frames.columns import read_frame
from hotloop.data.frames.encoding import Encoding
from hotloop.data.frames.fitting import Wishes, encode_training, fit_encoding, read_wishes
from hotloop.data.frames.table_files import read_csv, read_parquet
from hotloop.data.frames.tabular import (
    Roles,
    columns_needed,
    make_table,
    read_own,
    read_paths,
    read_roles,
)
from hotloop.data.options import read_standardize, refuse_options
from hotloop.data.sequential.series import SeriesData
from hotloop.data.tables import Table
from hotloop.data.targets import Targets, ids_of, read_all_targets

__all__ = ["TableData"]

Rows = npt.NDArray[np.int64]


class _Given(NamedTuple):
    """A table as it was given, of which each division into rows learns anew."""

    roles: Roles
    own: dict[str, Roles]  # splits with data of their own
    standardize: bool | frozenset[str]
    targets: Mapping[str, Targets]
    wishes: Wishes

    def fit(self, rows: Rows | None, whole: Encoding | None = None) -> Encoding:
        """The encoding of these training rows, with the columns of the whole data's."""
        roles = self.roles
        found = fit_encoding(roles.frame, roles.names, rows, self.wishes, self.targets)
        return found if whole is None else found.laid_out_as(whole)

    def encode(self, encoding: Encoding, rows: Rows | None, seed: int) -> Any:
        """What forward takes of all rows."""
        frame = self.roles.frame
        made = encoding.apply(frame, "X")
        return encode_training(encoding, made, frame, rows, self.targets, seed)


class TableData(SeriesData):
    """Ways to make a :class:`DataModule` of tables."""

    _given: _Given | None = None

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        target: str | list[str] | None = None,
        *,
        features: Sequence[str] | None = None,
        categorical: str | Mapping[str, str] = "auto",
        missing: str = "auto",
        unseen: str = "warn",
        val: Any = None,
        test: Any = None,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        gap: int = 0,
        stratify: bool | str = "auto",
        groups: Any = None,
        sample_weight: Any = None,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """A DataModule of a table's columns: numbers, texts, categories and dates.

        What has to be learnt of the columns (categories, medians, means) is learnt of the training
        rows and becomes part of the model: ``predict(model, frame)`` does the same with the columns
        of new rows, which it finds by name, before and after ``save``.

        Parameters
        ----------
        frame : DataFrame or table
            Of pandas, polars or pyarrow, or what gives an Arrow stream (``__arrow_c_stream__``).
        target : str or list of str, optional
            Column of y; several are the columns of one array. Texts are classes, in sorted order;
            integers and bools are class ids, floats values, as for :meth:`from_arrays`.
        features : list of str, optional
            Columns of X, in this order. Without it, all that have no other role. They enter forward
            as one float32 array ``(batch, columns)``, unless ``categorical`` says otherwise.
            Integers alone stay integers, ids for embeddings. A date is the days since the training
            rows' first day, a duration is days; weekdays and seasons need columns of their own,
            ``frame.date.dt.dayofweek``.
        categorical : {"auto", "onehot", "ids", "target"}, or dict of them by column
            What texts and categories become, and numbers that the dict names.

            - "onehot": a column of 0 and 1 for each category of the training rows, and one for
              missing values if they have some. What is missing or unknown has 0 in all others.
            - "ids": forward gets a dict, x["numbers"] of all other columns as float32
              ``(batch, columns)`` and x["<column>"], int64 ``(batch,)``, for an embedding of n + 1
              rows: 1 to n are the categories in order, 0 is what is missing or unknown.
            - "target": the mean of the target by category (of several classes a column each), drawn
              towards the mean of all by 10 rows' weight. A training row's is made of other rows.
            - "auto": "onehot" of up to 64 categories; more are an error.
        missing : {"auto", "fill", "indicator", "raise"}
            Missing numbers and dates become the median of the training rows. "auto" says so in a
            warning, and new rows may lack what some row of this frame lacked; with "fill" they may
            lack any; "indicator": as "fill", and a column of 0 and 1 for each column that training
            rows lack values of; "raise": nothing may be missing. Missing texts and categories are
            a category of their own. With allow_nonfinite and "auto", NaN stays NaN.
        unseen : {"warn", "raise"}
            What a category does that no training row has: count as missing and warn, or raise.
        val, test : float, int, rows, mask, DataFrame or tuple, optional
            As for :meth:`from_arrays`. Data of its own is a frame with the same columns, or
            ``(frame, y)``.
        groups, sample_weight : str or array_like, optional
            A column's name, or as for :meth:`from_arrays`.
        standardize : bool, {"x", "y", "both"} or sequence of str
            As for the class, or names of columns; those of 0 and 1 that were made here stay as
            they are.
        batch_size, shuffle, split, gap, stratify
            As for :meth:`from_arrays`.
        sampler, weights, samples_per_epoch
            As for the class.
        classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            ``describe()`` shows what became of the columns. The frame's memory is kept, since folds
            learn anew.

        Raises
        ------
        ConfigError
            For a column that is not there, or an option out of its range.
        DataError
            For what is no data frame, columns of values of several kinds, a text among numbers,
            columns that are missing in all training rows, more categories than "auto" takes.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [20.0, np.nan, 40.0] * 40, "city": ["Bonn", "Ulm"] * 60})
        >>> table["buys"] = ["no", "no", "yes"] * 40
        >>> data = hl.DataModule.from_pandas(table, "buys", missing="fill", val=0.2)
        >>> result = hl.train(nn.Linear(3, 2), data, max_epochs=1, enable_progress_bar=False)
        >>> hl.predict(result, table.head(2), labels=True).shape
        (2,)
        """
        refuse_options(unknown, cls.from_pandas)
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_standardize(standardize)
        wishes = read_wishes(categorical, missing, unseen, self._allow_nonfinite)
        nan = self._allow_nonfinite
        roles = read_roles(
            read_frame(frame), target, features, sample_weight, groups, takes_nan=nan
        )
        n = roles.frame.n
        targets = {} if roles.y is None else read_all_targets(roles.y, "y", n)
        shares = {"val": val, "test": test}
        own = {
            name: read_own(part, name, target, sample_weight, takes_nan=nan)
            for name, part in shares.items()
        }
        drawn = {name: None if own[name] else part for name, part in shares.items()}
        _, rows = self._divide(n, drawn, ids_of(targets), roles.groups, split, gap, stratify)
        others = {name: part for name, part in own.items() if part is not None}
        self._given = given = _Given(roles, others, wanted, targets, wishes)
        self._encoding = encoding = given.fit(rows["train"])
        X = given.encode(encoding, rows["train"], self._seed)
        table = make_table(encoding, X, roles.y, roles.weight, standardize=wanted)
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name in shares:
            if name in others:
                parts[name] = _make_own(encoding, others[name], name, table), None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        self._set_splits(parts, bool(wanted), scales_targets)
        self._set_sampling(sampler, weights, samples_per_epoch)
        self._name_classes(classes)
        return self

    @classmethod
    def from_csv(
        cls,
        path: Any,
        target: str | list[str] | None = None,
        *,
        delimiter: str = ",",
        names: Sequence[str] | None = None,
        **options: Any,
    ) -> Self:
        """A DataModule of the columns of a CSV file, or of several below one another.

        Files are read by pyarrow, else by pandas, else by polars: ``pip install 'hotloop[tables]'``
        for the first.

        Parameters
        ----------
        path : path-like, or list of them
            A file, a pattern such as ``"data/*.csv"``, or a folder of .csv files, in the order of
            their names. UTF-8, as it is or in .gz and .bz2. The first line names the columns.
        target : str or list of str, optional
            As for :meth:`from_pandas`.
        delimiter : str
            Between fields.
        names : list of str, optional
            Of the columns, where the first line is a row already.
        **options
            As for :meth:`from_pandas`; ``val`` and ``test`` may be paths too.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            If no library is installed that reads CSV; and as for :meth:`from_pandas`.
        DataError
            By file and row: for an empty file, a first line that names no columns, names that are
            there twice, rows with fewer or more fields; and as for :meth:`from_pandas`.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": np.arange(100.0), "city": ["Bonn", "Ulm"] * 50})
        >>> table.assign(buys=table.age > 50).to_csv("people.csv", index=False)
        >>> data = hl.DataModule.from_csv("people.csv", "buys", val=0.2)
        >>> len(data), data.classes
        (80, [False, True])
        """

        def read(where: Any) -> Any:
            return read_csv(where, delimiter, names, columns_needed(target, options))

        return cls.from_pandas(read(path), target, **read_paths(options, read))

    @classmethod
    def from_parquet(cls, path: Any, target: str | list[str] | None = None, **options: Any) -> Self:
        """A DataModule of the columns of a Parquet file, or of several below one another.

        Files are read by pyarrow, else by polars or pandas: ``pip install 'hotloop[tables]'``.

        Parameters
        ----------
        path : path-like, or list of them
            A file, a pattern such as ``"data/*.parquet"``, or a folder of .parquet files, in the
            order of their names. With ``features`` the other columns are not read.
        target : str or list of str, optional
            As for :meth:`from_pandas`.
        **options
            As for :meth:`from_pandas`; ``val`` and ``test`` may be paths too.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            If no library is installed that reads Parquet; and as for :meth:`from_pandas`.
        DataError
            For what is no Parquet file, and files whose columns differ; and as for
            :meth:`from_pandas`.
        """

        def read(where: Any) -> Any:
            return read_parquet(where, columns_needed(target, options))

        return cls.from_pandas(read(path), target, **read_paths(options, read))

    def _with_rows(self, rows: Mapping[str, Rows]) -> Self:
        made = super()._with_rows(rows)
        if self._given is None or "train" not in rows:
            return made
        given = self._given._replace(wishes=self._given.wishes._replace(is_quiet=True))
        encoding = given.fit(made.rows("train"), self._encoding)
        if encoding == self._encoding and not encoding.means_target:
            return made  # of the same arrays
        X = given.encode(encoding, made.rows("train"), made._seed)
        table = make_table(encoding, X, None, None, standardize=given.standardize)
        made._encoding, made._good, made._checked = encoding, [], set()
        for name, split in made._splits.items():
            inputs = table
            if name in given.own:
                inputs = _make_own(
                    encoding, given.own[name]._replace(y=None, weight=None), name, table
                )
            kept = tuple(field for field in split.fields if not field.is_input)
            made._splits[name] = dataclasses.replace(split, fields=(*inputs.fields, *kept))
        standardized = {field.name for field in made._standardized}
        fields = made._splits["train"].fields
        made._standardized = [field for field in fields if field.name in standardized]
        return made


def _make_own(encoding: Encoding, roles: Roles, name: str, like: Table) -> Table:
    """The table of a split with data of its own."""
    X = encoding.apply(roles.frame, f"{name} X")
    return make_table(encoding, X, roles.y, roles.weight, prefix=f"{name} ", like=like)
