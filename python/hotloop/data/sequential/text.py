"""Text as ids for language models: a vocabulary, and windows of the text with the ids that follow.

The ids of the text lie in memory once, in the smallest dtype that holds them; ids of bytes are the
file itself, mapped. Inputs are windows of this series and targets the same windows, one id later,
so both are views of it (see data/sequential/windows.py), and a window is an address.

Splits are spans of the text, in its order: windows that are drawn from all over it would overlap
with those that a model is measured on.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject, show, whole
from hotloop.data.arrays import read_raw
from hotloop.data.folds import Fold, Wish, walk_forward
from hotloop.data.partition import is_share, read_share
from hotloop.data.split import Field
from hotloop.data.stored.npy import find_files
from hotloop.data.strides import windows_of
from hotloop.data.tables import Table
from hotloop.data.targets import Targets
from hotloop.errors import ConfigError, DataError

__all__ = ["Reading", "SpanOrigin", "Vocabulary", "divide_text", "read_text", "tabulate_text"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


class Vocabulary:
    """What the ids of a text mean.

    Attributes
    ----------
    kind : str
        "bytes", "characters" or "tokenizer".
    tokens : list of str or None
        The characters, by id.
    """

    def __init__(self, kind: str, tokens: Sequence[str] | None, tokenizer: Any = None) -> None:
        self.kind = kind
        self.tokens = None if tokens is None else list(tokens)
        self._tokenizer = tokenizer
        self._codes = None if tokens is None else np.array([ord(c) for c in tokens], np.uint32)

    def __len__(self) -> int:
        if self._codes is not None:
            return len(self._codes)
        return 256 if self.kind == "bytes" else int(self._tokenizer.get_vocab_size())

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind}, {len(self)} ids)"

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The ids of a text.

        Parameters
        ----------
        text : str

        Returns
        -------
        int64 array (n,)

        Raises
        ------
        DataError
            For a character that the vocabulary does not have.
        """
        return _encode(self, text, "text").astype(np.int64)

    def decode(self, ids: Any) -> str:
        """The text of some ids.

        Parameters
        ----------
        ids : array_like (n,)
            From 0 to ``len(vocabulary) - 1``.

        Returns
        -------
        str
            Bytes that are no UTF-8 become the replacement character.

        Raises
        ------
        DataError
            For ids out of range.
        """
        array = read_raw(ids, "ids").reshape(-1)
        if array.size and array.dtype.kind not in "iu":
            raise DataError(f"ids: must be integers, got dtype {array.dtype}")
        if array.size and not (array.min() >= 0 and array.max() < len(self)):
            bad = array.min() if array.min() < 0 else array.max()
            raise DataError(f"ids: must be from 0 to {len(self) - 1}, got {bad}")
        if self.kind == "bytes":
            return array.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
        if self._codes is not None:
            codes = self._codes[array.astype(np.int64)]
            return codes.astype("<u4").tobytes().decode("utf-32-le", errors="surrogatepass")
        return str(self._tokenizer.decode([int(i) for i in array], skip_special_tokens=False))


class Reading(NamedTuple):
    """A text that was read.

    Attributes
    ----------
    ids : integer array (n,)
    vocabulary : Vocabulary
    hint : str
        What may be wrong where the text is too short.
    """

    ids: Array
    vocabulary: Vocabulary
    hint: str = ""


# ---- reading


def read_text(
    source: Any, tokenizer: Any, encoding: str, label: str, known: Vocabulary | None = None
) -> Reading:
    """Reads text and makes ids of it.

    Parameters
    ----------
    source, tokenizer, encoding
        As :meth:`DataModule.from_text` takes them.
    label : str
        For messages.
    known : Vocabulary, optional
        That of the training text.

    Raises
    ------
    ConfigError, DataError
    """
    if known is None:
        kind = _read_kind(tokenizer)
    else:
        kind = known
    paths = _find_texts(source, label)
    is_name = paths is None and len(source) < 256 and "\n" not in source
    hint = f" (there is no file {source!r})" if is_name else ""
    if kind == "bytes" or (isinstance(kind, Vocabulary) and kind.kind == "bytes"):
        vocabulary = kind if isinstance(kind, Vocabulary) else Vocabulary("bytes", None)
        if paths is None:
            return Reading(_encode(vocabulary, source, label), vocabulary, hint)
        return Reading(_map_bytes(paths, label), vocabulary, hint)
    texts = [source] if paths is None else [_decode_file(path, encoding, label) for path in paths]
    if isinstance(kind, Vocabulary):
        vocabulary = kind
    else:
        codes = np.unique(np.concatenate([np.unique(_codes_of(text)) for text in texts]))
        vocabulary = Vocabulary("characters", [chr(code) for code in codes])
    labels = [label] if paths is None else [f"{label}: {path!r}" for path in paths]
    ids = [_encode(vocabulary, text, own) for text, own in zip(texts, labels)]
    return Reading(ids[0] if len(ids) == 1 else np.concatenate(ids), vocabulary, hint)


def _read_kind(tokenizer: Any) -> str | Vocabulary:
    if isinstance(tokenizer, str) and tokenizer in ("bytes", "characters"):
        return tokenizer
    if all(hasattr(tokenizer, name) for name in ("encode", "decode", "get_vocab_size")):
        for name in ("truncation", "padding"):
            if getattr(tokenizer, name, None) is not None:
                reject(
                    "tokenizer", f"must encode the whole text, without {name}",
                    getattr(tokenizer, name), f"call tokenizer.no_{name}()",
                )  # fmt: skip
        return Vocabulary("tokenizer", None, tokenizer)
    rule = "must be 'bytes', 'characters', a file of the library tokenizers, or its Tokenizer"
    if not isinstance(tokenizer, (str, os.PathLike)) or not os.path.isfile(tokenizer):
        reject("tokenizer", rule, tokenizer)
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            "tokenizer: a file of tokenizers needs that library; pip install tokenizers"
        ) from error
    path = os.fspath(tokenizer)
    try:
        read = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises Exception itself
        raise DataError(f"tokenizer: {path!r} is no file of tokenizers ({error})") from error
    read.no_truncation()  # which files keep from the samples that they were made for
    read.no_padding()
    return Vocabulary("tokenizer", None, read)


# What a text of one line hardly is: words without spaces, with separators or a suffix.
_LOOKS_LIKE_PATH = re.compile(r"([\w.~:*?-]*[/\\])+[\w.*?-]*|[\w.*?-]+\.\w{1,5}|.+\.txt")


def _find_texts(source: Any, label: str) -> list[str] | None:
    """The paths of files; None: the source is the text."""
    if isinstance(source, str):
        is_line = len(source) < 4096 and "\n" not in source and "\0" not in source
        is_like_path = len(source) < 256 and _LOOKS_LIKE_PATH.fullmatch(source) is not None
        is_path = is_line and (is_like_path or os.path.isfile(source))
        return find_files(source, label) if is_path else None
    if isinstance(source, (os.PathLike, list, tuple)):
        return find_files(source, label)
    raise DataError(
        f"{label}: must be a text, a path or a list of paths, got {type(source).__name__} "
        f"{show(source)}"
    )


def _map_bytes(paths: Sequence[str], label: str) -> Array:
    parts: list[Array] = []
    for path in paths:
        try:
            if os.path.getsize(path):
                parts.append(np.memmap(path, np.uint8, "r"))
        except OSError as error:
            raise DataError(f"{label}: {path!r} cannot be read ({error.strerror})") from error
    if not parts:
        return np.zeros(0, np.uint8)
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)


def _decode_file(path: str, encoding: str, label: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(encoding)
    except OSError as error:
        raise DataError(f"{label}: {path!r} cannot be read ({error.strerror})") from error
    except LookupError:
        reject("encoding", "must name an encoding of text", encoding, "write encoding='utf-8'")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{label}: {path!r} must be text in {encoding}, got byte "
            f"0x{error.object[error.start]:02x} at {error.start:,}; write encoding=..., or "
            "tokenizer='bytes'"
        ) from error


def _codes_of(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")


def _encode(vocabulary: Vocabulary, text: str, label: str) -> Array:
    if not isinstance(text, str):
        raise DataError(f"{label}: must be a text, got {type(text).__name__} {show(text)}")
    if vocabulary.kind == "bytes":
        return np.frombuffer(text.encode("utf-8"), np.uint8)
    dtype = next(d for d in ("uint8", "int16", "int32") if len(vocabulary) - 1 <= np.iinfo(d).max)
    if vocabulary._codes is None:
        encoding = vocabulary._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype)
    codes = _codes_of(text)
    ids = np.minimum(np.searchsorted(vocabulary._codes, codes), len(vocabulary) - 1)
    unknown = vocabulary._codes[ids] != codes
    if unknown.any():
        at = int(np.argmax(unknown))
        raise DataError(
            f"{label}: characters must be those of the training text, got {text[at]!r} at {at:,}"
        )
    return ids.astype(dtype)


# ---- windows


def tabulate_text(reading: Reading, length: int, label: str, prefix: str = "") -> Table:
    """Windows of ids, and the ids that follow them.

    Raises
    ------
    DataError
        If the text is shorter than a window.
    """
    ids, n_ids = reading.ids, len(reading.vocabulary)
    if len(ids) <= length:
        raise DataError(
            f"{label}: must have more ids than a window of {length}, got {len(ids)}; give a longer "
            f"text or a smaller length{reading.hint}"
        )
    n = len(ids) - length
    x, y = windows_of(ids[:-1], length), windows_of(ids[1:], length)
    known = Targets(y, "class", "int64", classes=reading.vocabulary.tokens, n_classes=n_ids)
    fields = (
        Field("x", x, "int64", f"{prefix}ids"),
        Field("y", y, "int64", f"{prefix}next ids"),
    )
    return Table(fields, {"": known}, n)


@dataclasses.dataclass(frozen=True, eq=False)
class SpanOrigin:
    """What windows of a text are drawn from: a span of it for each split.

    Attributes
    ----------
    n_ids : int
        Of the text.
    spans : dict of str to (int, int)
        The first id of each split, and that behind its last.
    length, stride : int
        Ids of a window, and from its first to that of the next.
    gap : int
        Ids between two splits.
    pool : int64 array or None
        Windows that there are, by the id that they begin with; None: all.
    """

    n_ids: int
    spans: Mapping[str, tuple[int, int]]
    length: int
    stride: int
    gap: int
    pool: Rows | None = None

    @property
    def n(self) -> int:
        """Windows that begin with any id."""
        return self.n_ids - self.length

    @property
    def ids(self) -> None:
        """Classes of windows: they have none."""
        return

    def windows(self, spans: Mapping[str, tuple[int, int]] | None = None) -> dict[str, Rows]:
        """The ids that windows of each split begin with.

        Raises
        ------
        DataError
            For a split without one.
        """
        found = {}
        for name, (begin, end) in (self.spans if spans is None else spans).items():
            rows = np.arange(begin, end - self.length, self.stride)
            rows = rows if self.pool is None else np.intersect1d(rows, self.pool)
            if not len(rows):
                raise DataError(
                    f"{name}: its {end - begin} ids hold no window of {self.length} and the id "
                    "behind it; give it more, or windows fewer"
                )
            found[name] = rows
        return found

    def keep(self, rows: Rows) -> SpanOrigin:
        """The same with these windows alone."""
        kept = rows if self.pool is None else np.intersect1d(self.pool, rows)
        return dataclasses.replace(self, pool=kept)

    def fold(self, k: int, wish: Wish) -> Fold:
        """The k-th fold, by position.

        Raises
        ------
        ConfigError, DataError
        """
        if wish.how == "random":
            raise ConfigError(
                "split: windows of a text share ids with their neighbours and are divided by "
                "position, got split='random'; leave it out"
            )
        gap = self.gap if wish.gap is None else wish.gap
        end = self.spans["test"][0] - self.gap if "test" in self.spans else self.n_ids
        stop, begin, last = walk_forward(end, wish.n, gap, "ids")[k]
        found = self.windows({"train": (0, stop), "val": (begin, last)})
        return Fold(found["train"], found["val"])


def divide_text(n: int, shares: Mapping[str, Any], gap: Any) -> dict[str, tuple[int, int]]:
    """A span of n ids for each split: the test last, validation before it.

    Parameters
    ----------
    n : int
    shares : mapping
        "val" and "test": fractions or numbers of ids, or None.
    gap : int
        Ids between two of them.

    Raises
    ------
    ConfigError, DataError
    """
    gap = whole(0)("gap", gap)
    spans, end = {}, n
    for name in ("test", "val"):
        share = shares.get(name)
        if not is_share(share):
            if share is not None and (np.ndim(share) or share):
                reject(name, "must be a fraction or a number of ids, or a path", share)
            continue
        count = read_share(name, share, n)
        spans[name] = (end - count, end)
        end -= count + gap
    if gap and not spans:
        raise ConfigError(f"gap: is between splits, got gap={gap} without val or test")
    if end < 1:
        raise DataError(f"val and test: leave no id of {n:,} to train on; hold out fewer")
    return {"train": (0, end), **spans}
