"""Data in the order of time: windows of series and of text, sequences of several lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import whole
from hotloop.data.augment_series import read_series_steps
from hotloop.data.folding import FoldedSplits
from hotloop.data.options import refuse_options
from hotloop.data.sequential.sequences import (
    Layout,
    lay_sequences,
    read_buckets,
    read_pad_value,
    read_role,
    read_sequences,
    split_sequences,
    targets_of,
)
from hotloop.data.sequential.text import (
    SpanOrigin,
    Vocabulary,
    divide_text,
    read_text,
    tabulate_text,
)
from hotloop.data.sequential.windows import read_aligned, read_normalize, read_windows
from hotloop.data.stored.npy import are_paths
from hotloop.data.tables import Table, read_table, unpack_dataset
from hotloop.data.targets import ids_of

__all__ = ["SeriesData"]

Rows = npt.NDArray[np.int64]


class SeriesData(FoldedSplits):
    """Ways to make a :class:`DataModule` of what has an order of time."""

    vocabulary: Vocabulary | None = None
    """What ids mean, of a text."""

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
        sample_weight: Any = None,
        val: Any = None,
        test: Any = None,
        gap: int = 0,
        normalize: str | None = "standard",
        augment: Any = "none",
        batch_size: int = 64,
        shuffle: bool = True,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
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
        sample_weight : array_like (T,) or str, optional
            What a window counts in the loss, aligned as targets are, or a frame's column of it.
        val, test : float, int, rows or mask, optional
            Fractions or numbers of the rows (times), of which the test has the last and val those
            before them; or the rows themselves. A window is in a split if all of its rows and that
            of its target are, so that no window crosses from one into the other.
        gap : int
            Rows (times) before val and before the test that are in no split besides.
        normalize : {"standard", "y", "both"} or None
            Standardise inputs, float targets or both by the rows of training windows, as
            standardize of the class does.
        augment : {"none", "basic", "strong"}, step or list of steps
            What happens to training's windows behind that, in the step, by random numbers: Jitter,
            Scaling and TimeMask of :mod:`hl.augment <hotloop.data.augment>`; "basic" is the first
            two, "strong" all.
        weights : array_like (T,), optional
            With ``sampler="weighted"``, aligned as targets are: a window is as likely as the row of
            its target.
        batch_size, shuffle, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        sampler, samples_per_epoch
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Its rows are windows, by the row of the series that they begin with;
            ``rows("test", at="last")`` has those that they end with.

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
            weight=sample_weight,
            shares={"val": val, "test": test},
            gap=gap,
            seed=self._seed,
        )
        table = read_table(windows.X, windows.y, windows.weight, standardize=wanted)
        fields = [
            field if field.is_input else dataclasses.replace(field, first_row=windows.origin.reach)
            for field in table.fields
        ]
        table = dataclasses.replace(table, fields=tuple(fields))
        rows = windows.rows.items()
        parts: dict[str, tuple[Table, Rows | None]] = {
            name: (table, of) for name, of in rows if of is not None
        }
        self._set_splits(parts, wanted, scales_targets)
        self._origin = dataclasses.replace(windows.origin, ids=ids_of(table.targets))
        self._window = (windows.X.shape[1] - 1, windows.origin.reach)
        if weights is not None:
            weights = read_aligned("weights", weights, len(windows.origin.parts))
            weights = weights[windows.origin.reach :]
        self._set_sampling(sampler, weights, samples_per_epoch)
        self.augment_steps = read_series_steps(augment)
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
        augment: Any = "none",
        classes: Sequence[Any] | None = None,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
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
        augment : {"none", "basic", "strong"}, step or list of steps
            As for :meth:`from_windows`; padding stays as it is.
        shuffle, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        sampler, weights, samples_per_epoch
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
        self._buckets = found
        laid_fields = {id(part): lay_sequences(part, layout) for part, _ in parts.values()}
        splits = {
            name: split_sequences(laid_fields[id(part)], of, found)
            for name, (part, of) in parts.items()
        }
        targets = [targets_of(part, splits[name]) for name, (part, _) in parts.items()]
        self._hold(splits, targets, frozenset({"0"} if wanted else ()), scales_targets)
        self._set_sampling(sampler, weights, samples_per_epoch)
        self.augment_steps = read_series_steps(augment)
        self._name_classes(classes)
        return self

    @classmethod
    def from_text(
        cls,
        source: Any,
        length: int,
        stride: int | None = None,
        *,
        tokenizer: Any = "bytes",
        encoding: str = "utf-8",
        val: Any = None,
        test: Any = None,
        gap: int = 0,
        batch_size: int = 64,
        shuffle: bool = True,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """A DataModule of a text for language models: windows of ids, and the ids that follow.

        Parameters
        ----------
        source : str, path or list of paths
            A text, or files of it, which follow each other as one. A str that is the path or the
            pattern of files means them; one without spaces that looks like a path must be one.
        length : int
            Ids of a window: forward gets int64 ``(batch, length)``, and the target is the class at
            each position, the id behind it.
        stride : int, optional
            Ids from the begin of a window to that of the next. Without it ``length``, so that an
            epoch predicts every id once.
        tokenizer : "bytes", "characters", path or Tokenizer
            What an id is: a byte (of UTF-8, of a str); a character, of those that the text has,
            sorted; or what a JSON file of the library tokenizers (which is imported then) or its
            Tokenizer makes of the text, without special tokens.
        encoding : str
            Of files, but for "bytes", which are taken as they are.
        val, test : float, int or path, optional
            Fractions or numbers of the ids, of which the test has the last and val those before
            them; or a text of its own, as files.
        gap : int
            Ids before val and before the test that are in no split.
        samples_per_epoch : int, optional
            With ``sampler="weighted"``: windows of an epoch.
        weights : array_like, optional
            With ``sampler="weighted"``: for each id that a window may begin with.
        batch_size, shuffle, sampler, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Its ``vocabulary`` encodes and decodes text. Of characters the classes have their names,
            which travel with a model: ``predict(labels=True)`` gives characters.

        Raises
        ------
        ConfigError
            For an option out of its range; for a file of tokenizers without that library.
        DataError
            For a text shorter than a window, files that are no text, characters of val or test that
            training lacks.

        Notes
        -----
        Ids lie in memory once, a byte each where there are up to 256, and a file of bytes is mapped
        and not read. No window is copied but into its batch.

        Examples
        --------
        >>> text = "to be, or not to be: that is the question. " * 40
        >>> data = hl.DataModule.from_text(text, 16, tokenizer="characters", val=0.1)
        >>> len(data.vocabulary), data.example_batch()["x"]
        (16, ('int64', (64, 16)))
        >>> batch = next(data.batches_in_order("train"))
        >>> data.vocabulary.decode(batch["x"][0]), data.vocabulary.decode(batch["y"][0])
        ('to be, or not to', 'o be, or not to ')
        """
        refuse_options(unknown, cls.from_text)
        self = cls.__new__(cls)
        self._set_options(batch_size, num_workers, pin_memory, shuffle, drop_last, seed, False)
        length = whole(1)("length", length)
        stride = length if stride is None else whole(1)("stride", stride)
        reading = read_text(source, tokenizer, encoding, "source")
        shares = {"val": val, "test": test}
        own = {name: part for name, part in shares.items() if are_paths(part)}
        table = tabulate_text(reading, length, "source")
        drawn = {name: part for name, part in shares.items() if name not in own}
        spans = divide_text(len(reading.ids), drawn, gap)
        origin = SpanOrigin(len(reading.ids), spans, length, stride, whole(0)("gap", gap))
        parts: dict[str, tuple[Table, Rows | None]] = {}
        for name, rows in origin.windows().items():
            parts[name] = table, rows
        for name, part in own.items():
            of = read_text(part, tokenizer, encoding, name, reading.vocabulary)
            rows = np.arange(0, len(of.ids) - length, stride)
            parts[name] = tabulate_text(of, length, name, f"{name} "), rows
        order = [name for name in ("train", "val", "test") if name in parts]
        self._set_splits({name: parts[name] for name in order}, False, False)
        self._origin = origin
        self._window = (length - 1, length)
        self._set_sampling(sampler, weights, samples_per_epoch)
        self.vocabulary = reading.vocabulary
        return self
