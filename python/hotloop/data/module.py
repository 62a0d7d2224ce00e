"""DataModule: what to train, validate and test on, and the ways to make it of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import whole
from hotloop.data.fitting import encode_training, fit_encoding, read_wishes
from hotloop.data.frames import read_frame
from hotloop.data.options import read_standardize, refuse_options
from hotloop.data.partition import divide_rows, read_groups
from hotloop.data.sequences import (
    Layout,
    lay_sequences,
    read_buckets,
    read_pad_value,
    read_role,
    read_sequences,
    targets_of,
)
from hotloop.data.splits import SPLITS, DataSplits
from hotloop.data.table_files import read_csv, read_parquet
from hotloop.data.tables import Table, read_table, unpack_dataset
from hotloop.data.tabular import columns_needed, make_table, read_own, read_paths, read_roles
from hotloop.data.targets import ids_of, read_all_targets
from hotloop.data.windows import read_normalize, read_windows
from hotloop.errors import DataError

__all__ = ["DataModule", "GraphDataModule"]

Rows = npt.NDArray[np.int64]


class DataModule(DataSplits):
    """Training, validation and test data with their order and batch size.

    Parameters
    ----------
    train_dataset, val_dataset, test_dataset
        Each ``(X, y)``, ``(X, y, sample_weight)``, an array ``X``, an object with ``.tensors`` or
        ``.arrays`` (as torch's TensorDataset), or a subset of one. X and y are as in
        :meth:`from_arrays`. Datasets that make each sample in Python are not supported yet.
    batch_size : int
        Samples in a step. The last batch of an epoch has what is left.
    num_workers : int or "auto"
        Threads that gather batches ahead for a GPU whose memory the data does not fit; 0: the
        training loop's thread does it. On a CPU batches are gathered within the step, without
        workers. Any number gives the same batches.
    pin_memory : bool or "auto"
        Accepted for code that comes from other libraries: what is sent to a GPU is pinned.
    shuffle : bool
        Whether training sees the rows in a new order every epoch.
    drop_last : bool
        Leave a smaller last batch out of training epochs; never the only one.
    seed : int
        Decides splits and order.
    standardize : bool, {"x", "y", "both"} or sequence of str
        Bring features to mean 0 and standard deviation 1, by the training rows. True, "x": every
        input that forward receives as float, and an X of integers; names: these columns of a dict.
        "y": float targets, "both": features and targets. It is part of the model: the arrays stay
        as they are, ``predict`` does the same with features, and what the model makes of scaled
        targets is scaled back in predictions and metrics. The loss is that of scaled targets. Of
        images each pixel of each channel is a feature, which ties the model to their size; for a
        mean per channel normalise in forward.
    classes : sequence, or dict of them, optional
        Names of the class ids of an integer or bool y, by id; of a y of names their order. Of
        several targets by the targets' names.
    allow_nonfinite : bool
        Let NaN and infinities in X and y pass.
    **unknown
        Refused by name, with the option that is meant.

    Raises
    ------
    ConfigError
        For an option out of its range or a dataset of an unknown kind.
    DataError
        For data that cannot be trained on, by row and column.

    Examples
    --------
    >>> X, y = np.random.rand(100, 4).astype("float32"), np.arange(100) % 3
    >>> data = hl.DataModule.from_arrays(X, y, val=0.2, batch_size=16)
    >>> len(data), data.n_classes
    (80, 3)
    """

    def __init__(
        self,
        train_dataset: Any,
        val_dataset: Any = None,
        test_dataset: Any = None,
        *,
        batch_size: int = 64,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 42,
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        **unknown: Any,
    ) -> None:
        refuse_options(unknown, type(self).__init__)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_standardize(standardize)
        if train_dataset is None:
            raise DataError("train_dataset: data to train on is needed, got None")
        parts: dict[str, tuple[Table, Rows | None]] = {}
        for name, dataset in zip(SPLITS, (train_dataset, val_dataset, test_dataset)):
            if dataset is None:
                continue
            source = unpack_dataset(dataset, f"{name}_dataset")
            table = read_table(
                source.X,
                source.y,
                source.weight,
                prefix=f"{name}_dataset ",
                like=parts["train"][0] if parts else None,
                standardize=wanted,
            )
            parts[name] = table, _check_rows(source.rows, table.n, name)
        self._set_splits(parts, wanted, scales_targets)
        self._name_classes(classes)

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        *,
        val: Any = None,
        test: Any = None,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        gap: int = 0,
        stratify: bool | str = "auto",
        groups: Any = None,
        sample_weight: Any = None,
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> DataModule:
        """A DataModule of arrays in memory.

        Parameters
        ----------
        X : array_like, dict or tuple
            ``(N, ...)`` features: a NumPy array, anything with the buffer protocol, ``__array__``
            or DLPack, a data frame, nested lists. Floats, bools and uint8 enter forward as
            float32, other integers as int64 (ids for embeddings). A dict of columns enters it as
            a dict, a tuple as separate arguments. Native, contiguous arrays are used in place
            and never written to; others are copied once.
        y : array_like, optional
            ``(N,)`` integers, bools or strings: classes; integers are ids from 0, strings are
            numbered in sorted order and kept as names. Floats of any shape: values. A 2-d array
            of 0 and 1: one yes-or-no question per column. Other integers and strings ``(N, ...)``:
            a class at each position, -100 or None where none counts. A dict or tuple of arrays:
            several targets, each of a kind of its own.
        val, test : float, int, tuple or array, optional
            A fraction of all rows, a number of rows, row numbers, a mask, or data of its own:
            ``(X, y)`` or ``(X, y, weight)``. None, 0 and 0.0: no such split.
        batch_size : int
            Samples in a step.
        shuffle : bool
            Whether training sees the rows in a new order every epoch. It decides nothing about
            which rows are held out.
        split : {"random", "time"}, optional
            How rows are drawn where val or test is a fraction or a count. "random" [where training
            is shuffled; else say it]. "time", for time series: the last rows are the test, those
            before them validation, those before these are trained on.
        gap : int
            With ``split="time"``: rows before validation and before the test that are in no split.
            Windows of n rows overlap unless n - 1 are left out.
        stratify : bool or "auto"
            Every class has its share in every split, to within one row. "auto": for classes, when
            each has a row for each split.
        groups : array_like (N,), optional
            Rows of one group (patient, recording, document) never are in two splits; the splits'
            sizes are met as nearly as whole groups allow.
        sample_weight : array_like (N,), optional
            Weights of rows in loss and metrics, at least 0.
        standardize, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            For an option out of its range, or two that contradict.
        DataError
            For lengths that differ, empty data or splits, dtypes that hold no numbers, labels that
            are no class ids. NaN and infinities are found on first use.
        """
        refuse_options(unknown, cls.from_arrays)
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_standardize(standardize)
        table = read_table(X, y, sample_weight, standardize=wanted)
        shares = {"val": val, "test": test}
        own, rows = self._divide(
            table.n, shares, ids_of(table.targets), groups, split, gap, stratify
        )
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name in ("val", "test"):
            if name in own:
                source = unpack_dataset(own[name], name)
                part = read_table(source.X, source.y, source.weight, prefix=f"{name} ", like=table)
                parts[name] = part, None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        self._set_splits(parts, wanted, scales_targets)
        self._name_classes(classes)
        return self

    def _divide(
        self,
        n: int,
        shares: Mapping[str, Any],
        ids: npt.NDArray[Any] | None,
        groups: Any,
        how: str | None,
        gap: Any,
        stratify: bool | str,
    ) -> tuple[dict[str, tuple[Any, ...]], dict[str, Rows | None]]:
        """Of "val" and "test" the data of their own; and the rows of each split that is drawn."""
        own = {name: part for name, part in shares.items() if isinstance(part, tuple)}
        rows = divide_rows(
            n,
            {name: part for name, part in shares.items() if name not in own},
            ids=ids,
            groups=None if groups is None else read_groups(groups, n),
            how=how,
            gap=whole(0)("gap", gap),
            shuffle=self._shuffle,
            stratify=stratify,
            seed=self._seed,
        )
        return own, rows

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
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> DataModule:
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
            As for the class; columns of 0 and 1 that were made here stay as they are.
        batch_size, shuffle, split, gap, stratify
            As for :meth:`from_arrays`.
        classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            ``describe()`` shows what became of the columns.

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
        roles = read_roles(read_frame(frame), target, features, sample_weight, groups)
        rows_of = roles.frame
        targets = {} if roles.y is None else read_all_targets(roles.y, "y", rows_of.n)
        shares = {"val": val, "test": test}
        own = {name: read_own(part, name, target, sample_weight) for name, part in shares.items()}
        drawn = {name: None if own[name] else part for name, part in shares.items()}
        _, rows = self._divide(
            rows_of.n, drawn, ids_of(targets), roles.groups, split, gap, stratify
        )
        encoding = fit_encoding(rows_of, roles.names, rows["train"], wishes, targets)
        X = encode_training(
            encoding, encoding.apply(rows_of, "X"), rows_of, rows["train"], targets, self._seed
        )
        table = make_table(encoding, X, roles.y, roles.weight, standardize=wanted)
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name, other in own.items():
            if other is not None:
                X = encoding.apply(other.frame, f"{name} X:")
                part = make_table(encoding, X, other.y, other.weight, prefix=f"{name} ", like=table)
                parts[name] = part, None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        self._encoding = encoding
        self._set_splits(parts, wanted, scales_targets)
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
    ) -> DataModule:
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
    def from_parquet(
        cls, path: Any, target: str | list[str] | None = None, **options: Any
    ) -> DataModule:
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

    @classmethod
    def from_windows(
        cls,
        series: Any,
        length: int,
        horizon: int = 0,
        stride: int = 1,
        *,
        target: Any = None,
        features: Sequence[str] | None = None,
        time: Any = None,
        groups: Any = None,
        val: Any = None,
        test: Any = None,
        gap: int = 0,
        normalize: str | None = "standard",
        batch_size: int = 64,
        shuffle: bool = True,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> DataModule:
        """A DataModule of sliding windows over a time series; a window is never copied but into
        its batch.

        Parameters
        ----------
        series : array_like (T, ...) or DataFrame
            Rows in the order of time.
        length : int
            Rows of a window: X is ``(length, ...)`` for each sample.
        horizon : int
            The target of a window is that of its last row, or of so many rows later.
        stride : int
            Rows from the begin of a window to that of the next.
        target : array_like (T, ...), str, list of str or callable, optional
            Aligned with the rows: y as for :meth:`from_arrays`, a frame's columns, or a function
            that makes it of the series.
        features : list of str, optional
            Columns of a frame that are X. Without it, all that have no other role.
        time : array_like (T,) or str, optional
            Times of the rows, or a frame's column of them: checked to ascend, within each group
            where there are groups, which are then split at the same times.
        groups : array_like (T,) or str, optional
            Which series a row is of, where there are several below one another. No window reaches
            over two. Without ``time`` each is split on its own.
        val, test : float, int, rows or mask, optional
            Fractions or numbers of the rows (times), of which the test has the last and val those
            before them; or the rows themselves. A window is in a split if all of its rows and that
            of its target are, so that no window crosses from one into the other.
        gap : int
            Rows (times) before val and before the test that are in no split besides.
        normalize : {"standard", "y", "both"} or None
            Standardise inputs, float targets or both by the rows of training windows, as
            standardize of the class does.
        batch_size, shuffle, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Its rows are windows, by the row of the series that they begin with.

        Raises
        ------
        ConfigError
            For an option out of its range, or a column that is not there.
        DataError
            For a series shorter than a window, a split without one, times that do not ascend,
            groups that are mixed, values that are no numbers.

        Examples
        --------
        >>> series = np.cumsum(np.random.rand(200, 3) - 0.5, axis=0)
        >>> up = np.diff(series[:, 0], prepend=0.0) > 0
        >>> data = hl.DataModule.from_windows(series, 20, 1, target=up, val=0.2)
        >>> len(data), data.example_batch()["x"]
        (140, ('float32', (64, 20, 3)))
        """
        refuse_options(unknown, cls.from_windows)
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_normalize(normalize)
        windows = read_windows(
            series,
            length,
            horizon,
            stride,
            target=target,
            features=features,
            time=time,
            groups=groups,
            shares={"val": val, "test": test},
            gap=gap,
            seed=self._seed,
        )
        table = read_table(windows.X, windows.y, None, standardize=wanted)
        rows = windows.rows.items()
        parts: dict[str, tuple[Table, Rows | None]] = {
            name: (table, of) for name, of in rows if of is not None
        }
        self._set_splits(parts, wanted, scales_targets)
        self._name_classes(classes)
        return self

    @classmethod
    def from_sequences(
        cls,
        X: Any,
        y: Any = None,
        *,
        lengths: Any = None,
        buckets: str | int | Sequence[int] = "auto",
        lengths_as: str = "lengths",
        pad_value: float = 0.0,
        val: Any = None,
        test: Any = None,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        stratify: bool | str = "auto",
        groups: Any = None,
        sample_weight: Any = None,
        normalize: str | None = None,
        classes: Sequence[Any] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> DataModule:
        """A DataModule of sequences of several lengths, which are padded in batches alone.

        Each batch has sequences of one bucket: as many rows each as the bucket's length, those
        behind a sequence's end being padding. There is a plan for each bucket, and all of them
        share one memory, as large as the longest bucket needs. The order of batches mixes buckets.

        Parameters
        ----------
        X : list of array_like (T_i, ...), or array_like (rows, ...) with lengths
            A row for each step: features, or integers as ids for embeddings. They are copied once,
            below one another.
        y : array_like (n, ...) or list of array_like (T_i,), optional
            A target for each sequence, as for :meth:`from_arrays`; or a class for each row, of
            which those in padding count nothing in losses and metrics. With lengths, the classes of
            all rows may be one array.
        lengths : array_like (n,), optional
            Rows of each sequence, where X has them below one another.
        buckets : "auto", int or list of int
            Lengths; each sequence goes to the shortest that holds it. One length pads everything to
            it. "auto": as few, up to 8, as leave a tenth of padding, each with a batch's sequences
            at least.
        lengths_as : {"lengths", "padding_mask", "attention_mask"}
            What forward gets as its second argument, ``forward(x, lengths)``: int64 lengths
            ``(batch,)``, as :func:`nn.utils.rnn.pack_padded_sequence` takes them, or bools
            ``(batch, rows)``: True in padding, as ``key_padding_mask`` of attention has it, or True
            in rows of the sequence, as ``attention_mask`` of BERT.
        pad_value : float
            What stands in padding, after standardisation.
        val, test
            A fraction or number of the sequences, their numbers, a mask, or data of its own:
            ``(X, y)``, ``(X, y, weight)``, lists of sequences.
        batch_size : int
            Sequences in a step. Each bucket may have a smaller last batch.
        split, stratify, groups, sample_weight
            As for :meth:`from_arrays`, one for each sequence.
        normalize : {"standard", "y", "both"} or None
            Standardise features by the rows of training sequences, padding left out; float targets;
            or both.
        shuffle, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            For an option out of its range.
        DataError
            For a sequence without rows or longer than all buckets, rows of several shapes, lengths
            that do not add up to the rows, targets that are neither one for each sequence nor one
            for each row.

        Notes
        -----
        A mean over sequences is the same in any bucket. What forward makes of padding is its own:
        a mean over time, attention or a convolution has to leave it out by its second argument, and
        recurrent layers take lengths or a packed sequence. A :class:`nn.BatchNorm1d` over steps
        counts padding.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> X = [rng.random((n, 3)) for n in rng.integers(5, 40, 200)]
        >>> y = [int(x.mean() > 0.5) for x in X]
        >>> data = hl.DataModule.from_sequences(X, y, buckets=[20, 40], val=0.2, batch_size=16)
        >>> model = hl.models.lstm_classifier(3, 2)
        >>> result = hl.train(model, data, max_epochs=2)
        """
        refuse_options(unknown, cls.from_sequences)
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_normalize(normalize)
        role = read_role(lengths_as)
        laid = read_sequences(X, y, lengths, sample_weight, standardize=wanted)
        fill = read_pad_value(pad_value, laid)
        n, shares = len(laid.sequences.lengths), {"val": val, "test": test}
        own, rows = self._divide(n, shares, laid.ids, groups, split, 0, stratify)
        parts = {"train": (laid, rows["train"])}
        for name in ("val", "test"):
            if name in own:
                source = unpack_dataset(own[name], name)
                part = read_sequences(
                    source.X, source.y, None, source.weight, prefix=f"{name} ", like=laid,
                    standardize=wanted,
                )  # fmt: skip
                parts[name] = part, None
            elif rows[name] is not None:
                parts[name] = laid, rows[name]
        known = {id(part): part.sequences.lengths for part, _ in parts.values()}
        found = read_buckets(buckets, np.concatenate(list(known.values())), self._batch_size)
        layout = Layout(found, role, fill)
        splits = {name: lay_sequences(part, of, layout) for name, (part, of) in parts.items()}
        targets = [targets_of(part, splits[name]) for name, (part, _) in parts.items()]
        self._hold(splits, targets, frozenset({"0"} if wanted else ()), scales_targets)
        self._name_classes(classes)
        return self


GraphDataModule = DataModule


def _check_rows(rows: Rows | None, n: int, name: str) -> Rows | None:
    if rows is None:
        return None
    if rows.ndim != 1 or not rows.size:
        raise DataError(f"{name}_dataset: has no rows")
    if rows.min() < 0 or rows.max() >= n:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"{name}_dataset: row numbers must lie between 0 and {n - 1}, got {bad}")
    return np.ascontiguousarray(rows)
