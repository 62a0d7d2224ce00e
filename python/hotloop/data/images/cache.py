"""Images on disk: decoded and made smaller once, and read by every later run.

A folder for each way of storing (channels, side, filter, what decodes) has two files: ``pixels``,
to which images are appended and which the core maps, and ``index.sqlite``, which says where they
are. An image is known by a hash of its file's bytes, so a file that was moved or copied is stored
once, and one that was changed anew; paths with size and time of change spare reading what is
known. Several processes share a folder: one of them stores at a time, and looks anew when its turn
comes; reading waits for nobody.

The invariant is that an entry never means pixels that are not there: pixels are written behind the
end that the index knows, flushed to the disk, and only then committed together with the new end.
Whatever interrupts, the next run writes over what was not committed, which nobody can have read.
No byte that was committed is written again, and no file is shortened, so mappings stay valid. What
is damaged all the same is seen by the pixels' length, by the mark that both files have, by a sum of
each entry and by sums of some of the pixels, and makes both files anew.

Rejected: a file for each image, which costs an open, a read and a copy in each epoch; locks around
each image, which several processes that decode the same would spend their time with.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
import stat
import struct
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import counted, format_bytes, show, warn
from hotloop.data.cache_folder import check_space, make_folder
from hotloop.data.images.sources import describe_decoder, find_image_size, read_by_pillow
from hotloop.data.parallel import map_ahead
from hotloop.errors import DataError, DataWarning

__all__ = ["ImageCache", "shrink_image"]

Array = npt.NDArray[Any]
Table = npt.NDArray[np.int64]

_FORMAT = 1  # of the files; another one has another folder
_MARK = b"hotloop images\n\0"  # then 16 random bytes of this file
_MARK_BYTES = 32
_BATCH_BYTES = 8 << 20  # that are committed together: what an interruption costs
_BATCH_SECONDS = 2.0
_CLOSE = 2_000_000_000  # ns: what was just written may be written again in the same tick of a clock
_ASKED = 500  # paths of one query
_SAMPLED = 64  # files whose headers say how much room all need; images whose sums are compared
_FILE_BYTES_MAX = 1 << 30  # HL_IMAGE_FILE_BYTES_MAX
_LONGEST = 16384  # HL_AUGMENT_SIZE_MAX
_WAIT = 0.2  # seconds between two looks at who stores
_FILTERS = ("nearest", "bilinear", "bicubic")  # hl_filter
_SQUASH = 0  # hl_fit
_ENTRY = struct.Struct("<16s6q")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

_SCHEMA = """
CREATE TABLE facts (mark BLOB NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE images (
    hash BLOB PRIMARY KEY, at INTEGER NOT NULL, height INTEGER NOT NULL, width INTEGER NOT NULL,
    src_height INTEGER NOT NULL, src_width INTEGER NOT NULL, pixels INTEGER NOT NULL,
    entry INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE files (
    path BLOB PRIMARY KEY, bytes INTEGER NOT NULL, changed INTEGER NOT NULL,
    seen INTEGER NOT NULL, hash BLOB NOT NULL
) WITHOUT ROWID;
"""
_FIND = """
SELECT f.path, f.bytes, f.changed, f.seen, i.hash, i.at, i.height, i.width, i.src_height,
    i.src_width, i.pixels, i.entry
FROM files f JOIN images i USING (hash) WHERE f.path IN ({})
"""


class _Damaged(Exception):
    """What is there is not what was written."""


class _Image(NamedTuple):
    """A decoded file."""

    path: bytes
    size: int  # bytes of the file
    changed: int  # ns, as the system says
    seen: int  # when it was read
    hash: bytes
    pixels: Array | None  # None: they are stored already
    src_height: int
    src_width: int


# ---- one image


def _fit_shorter(height: int, width: int, side: int) -> tuple[int, int]:
    """The size at which the shorter side has so many pixels, never enlarged."""
    shorter = min(height, width)
    if shorter <= side:
        return height, width
    size = (side * height // shorter, side * width // shorter)
    return size if max(size) <= _LONGEST else (height, width)


def shrink_image(
    data: bytes, channels: int, side: int, smoothing: int
) -> tuple[npt.NDArray[np.uint8], int, int]:
    """An image with its shorter side of at most so many pixels.

    Parameters
    ----------
    data : bytes
        A file's.
    channels : {3, 1}
    side : int
    smoothing : int
        The filter, as the core numbers it.

    Returns
    -------
    array, int, int
        uint8 (height, width, channels), C-contiguous; height and width of the file's image.

    Raises
    ------
    ConfigError, DataError
        As decoding does.
    """
    _, height, width = _core.image_header(data)
    least = _fit_shorter(height, width, side) if height else (0, 0)
    image = _core.decode_image(data, channels, *least, read_by_pillow)
    if not height:
        height, width = image.shape[:2]
    size = _fit_shorter(height, width, side)
    if image.shape[:2] != size:
        resize = (*size, _SQUASH, smoothing, (0,), 0, ())
        planes = _core.augment(image, resize, (0, 0, False))[0]
        image = np.ascontiguousarray(planes.transpose(1, 2, 0))
    return image, height, width


# ---- the cache


class ImageCache:
    """Stored images of one kind.

    Parameters
    ----------
    folder : str
        Of all kinds.
    channels : {3, 1}
    side : int
        Pixels of the shorter side, at most.
    smoothing : int
        The filter, as the core numbers it.

    Attributes
    ----------
    folder : str
        Of this kind.
    n_images, n_bytes, n_made : int
        Images that were found by all calls of :meth:`store`, their bytes, and how many of them it
        decoded.
    """

    def __init__(self, folder: str, channels: int, side: int, smoothing: int) -> None:
        decoder = hashlib.blake2b(describe_decoder().encode(), digest_size=4).hexdigest()
        kind = f"{_FORMAT}-{'grey' if channels == 1 else 'rgb'}-{side}-{_FILTERS[smoothing]}"
        self.folder = os.path.join(folder, f"{kind}-{decoder}")
        self.side = side
        self.n_images = self.n_bytes = self.n_made = 0
        self._channels, self._smoothing = channels, smoothing
        self._index = os.path.join(self.folder, "index.sqlite")
        self._pixels = os.path.join(self.folder, "pixels")

    def describe(self) -> str:
        """How many images there are, how large, and where."""
        made = f", {self.n_made:,} of them made now" if self.n_made else ""
        return (
            f"{counted(self.n_images, 'image')} of {self.side} pixels at most on the shorter side, "
            f"{format_bytes(self.n_bytes)} in {self.folder}{made}"
        )

    def store(
        self, paths: Sequence[str], workers: int, *, raises: bool, progress: bool | str = "auto"
    ) -> tuple[Table, npt.NDArray[np.uint8]]:
        """Stores what is missing, and says where all is.

        Parameters
        ----------
        paths : sequence of str
        workers : int
            Threads.
        raises : bool
            Whether a file that cannot be decoded is an error; else it is not stored.
        progress : bool or "auto"

        Returns
        -------
        table, pixels
            int64 (n, 5), by path: offset (-1: not stored), height, width, and those of the file's
            image; and the mapped pixels, uint8 (bytes,).

        Raises
        ------
        DataError
            For a file that cannot be decoded, a folder that cannot be read or written, a disk
            without room.
        """
        names = [os.fsencode(path) for path in paths]
        found = self._read(names, is_alone=False)
        if found is None or (found[0][:, 0] < 0).any():
            make_folder(self.folder)
            with self._turn():
                found = self._read(names)
                if found is None:
                    self._begin()
                    found = np.full((len(names), 5), -1, np.int64), np.zeros(0, np.uint8)
                missing = [path for path, row in zip(paths, found[0]) if row[0] < 0]
                if missing:
                    self._check_space(missing)
                    self._make(missing, workers, raises, progress)
                    found = self._read(names, is_fresh=True)
            if found is None:
                raise DataError(f"cache: {self.folder} cannot be read back; delete it")
        table, pixels = found
        stored = table[table[:, 0] >= 0]
        self.n_images += len(stored)
        self.n_bytes += int((stored[:, 1] * stored[:, 2]).sum()) * self._channels
        return table, pixels

    # ---- reading

    def _read(
        self, names: Sequence[bytes], *, is_alone: bool = True, is_fresh: bool = False
    ) -> tuple[Table, npt.NDArray[np.uint8]] | None:
        """Where these are; None: there is no cache, or one that is damaged.

        Parameters
        ----------
        names : sequence of bytes
        is_alone : bool
            Whether this process has its turn: then it judges what it cannot read, and sqlite may
            roll back what a process that was killed left behind. Otherwise it looks and no more.
        is_fresh : bool
            Whether the files were read just now.

        Raises
        ------
        DataError
            Where it cannot be looked at.
        """
        try:
            if not os.path.getsize(self._index):
                return None
            with self._connect("rw" if is_alone else "ro") as index:
                table, sums = self._look_up(index, names, is_fresh)
                mark, end = index.execute("SELECT mark, bytes FROM facts").fetchone()
            pixels = self._map(mark, end)
            self._compare(table, sums, pixels)
        except FileNotFoundError:
            return None
        except (OSError, sqlite3.Error, _Damaged, TypeError, ValueError) as error:
            if not is_alone:
                return None
            if isinstance(error, OSError) or not _is_damage(error):
                raise self._refuse(error) from error
            warn(
                f"cache: {self.folder} is damaged ({error}), and its images are made anew",
                DataWarning,
            )
            return None
        return table, pixels

    def _refuse(self, error: Exception) -> DataError:
        why = getattr(error, "strerror", None) or error
        code = getattr(error, "sqlite_errorcode", None)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (
            code == sqlite3.SQLITE_FULL
        ):
            free = shutil.disk_usage(self.folder).free
            return DataError(
                f"cache: the disk of {self.folder} is full, got {free:,} bytes free; delete "
                "something and begin again, which goes on from here, or write another cache_dir=..."
            )
        return DataError(
            f"cache: the files in {self.folder} must be readable and writable, got {str(why)!r}; "
            "delete the folder, or write another cache_dir=..."
        )

    @contextlib.contextmanager
    def _connect(self, mode: str) -> Iterator[sqlite3.Connection]:
        """The index; every statement by itself, unless it begins a transaction."""
        name = f"file:{urllib.parse.quote(self._index)}?mode={mode}"
        index = sqlite3.connect(
            name, timeout=60.0, isolation_level=None, check_same_thread=False, uri=True
        )
        try:
            yield index
        finally:
            index.close()

    def _look_up(
        self, index: sqlite3.Connection, names: Sequence[bytes], is_fresh: bool
    ) -> tuple[Table, npt.NDArray[np.int64]]:
        """The table, and the sum of each row's pixels."""
        table = np.full((len(names), 5), -1, np.int64)
        sums = np.zeros(len(names), np.int64)
        for begin in range(0, len(names), _ASKED):
            some = names[begin : begin + _ASKED]
            entries = {
                entry[0]: entry[1:]
                for entry in index.execute(_FIND.format(",".join("?" * len(some))), some)
            }
            for row, name in enumerate(some, begin):
                entry = entries.get(name)
                if entry is None:
                    continue
                try:
                    facts = os.stat(name)
                except OSError:
                    continue  # its decoding says why
                size, changed, seen, *known, own_sum = entry
                if (facts.st_size, facts.st_mtime_ns) != (size, changed):
                    continue
                if seen - changed < _CLOSE and not is_fresh:
                    continue  # its content is compared
                if _sum_entry(*known) != own_sum:
                    raise _Damaged("an entry of the index has another sum")
                table[row] = known[1:6]
                sums[row] = known[6]
        return table, sums

    def _map(self, mark: bytes, end: int) -> npt.NDArray[np.uint8]:
        with open(self._pixels, "rb") as file:
            begin = file.read(_MARK_BYTES)
            size = os.fstat(file.fileno()).st_size
            if begin != mark:
                raise _Damaged("the pixels are not those of the index")
            if size < end:
                raise _Damaged(f"the pixels are {end:,} bytes, got {size:,}")
            return np.memmap(file, np.uint8, "r", shape=(end,))

    def _compare(
        self, table: Table, sums: npt.NDArray[np.int64], pixels: npt.NDArray[np.uint8]
    ) -> None:
        """Some images with their sums."""
        stored = np.flatnonzero(table[:, 0] >= 0)
        for row in stored[:: max(1, len(stored) // _SAMPLED)]:
            at, height, width = (int(number) for number in table[row, :3])
            bytes_ = height * width * self._channels
            if at + bytes_ > len(pixels) or zlib.crc32(pixels[at : at + bytes_].data) != sums[row]:
                raise _Damaged("an image has another sum")

    # ---- writing

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until no other process stores into this folder; the system ends a turn with its
        process.
        """
        turn = None
        try:
            turn = sqlite3.connect(os.path.join(self.folder, "turn.sqlite"), timeout=_WAIT)
            turn.isolation_level = None
            is_told = False
            while True:
                try:
                    turn.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                if not is_told:
                    show(
                        f"hotloop: waits for another process, which stores images in {self.folder}"
                    )
                    is_told = True
        except sqlite3.Error as error:
            if turn is not None:
                turn.close()
            raise self._refuse(error) from error
        try:
            yield
        finally:
            turn.close()

    def _begin(self) -> None:
        """Makes both files anew. Who has mapped the old ones keeps them."""
        mark = _MARK + secrets.token_bytes(_MARK_BYTES - len(_MARK))
        try:
            for name in (self._index, f"{self._index}-journal", self._pixels):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            with open(self._pixels, "xb") as file:
                file.write(mark)
                _flush(file)
            with self._connect("rwc") as index:
                index.executescript(f"BEGIN; {_SCHEMA}")
                index.execute("INSERT INTO facts VALUES (?, ?)", (mark, _MARK_BYTES))
                index.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise self._refuse(error) from error

    def _check_space(self, missing: Sequence[str]) -> None:
        """By the headers of some of the missing files."""
        some = missing[:: max(1, len(missing) // _SAMPLED)]
        sizes = [_fit_shorter(*find_image_size(path), self.side) for path in some]
        each = float(np.mean([height * width for height, width in sizes])) * self._channels
        what = f"{counted(len(missing), 'image')} that {'is' if len(missing) == 1 else 'are'} new"
        check_space(
            self.folder, int(each * len(missing)), what, f", or cache_size= below {self.side}"
        )

    def _make(
        self, missing: Sequence[str], workers: int, raises: bool, progress: bool | str
    ) -> None:
        """Decodes and stores files, in order."""
        with self._connect("rw") as index:
            writer = _Writer(index, self._pixels)

            def make(path: str) -> _Image:
                return self._decode(path, writer)

            made = map_ahead(make, missing, workers, progress=progress, what="images")
            try:
                with contextlib.closing(made) as results:
                    for _, future in results:
                        try:
                            image = future.result()
                        except DataError:
                            if raises:
                                raise
                            continue
                        writer.add(image)
            except (OSError, sqlite3.Error) as error:
                raise self._refuse(error) from error
            finally:  # what is decoded is kept, whatever ended this
                try:
                    writer.flush()
                except (OSError, sqlite3.Error) as error:
                    raise self._refuse(error) from error
                self.n_made += writer.n_made

    def _decode(self, path: str, writer: _Writer) -> _Image:
        """On a thread."""
        try:
            facts = os.stat(path)  # before it is read: a later change is seen then
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > _FILE_BYTES_MAX:
                raise DataError(
                    f"image {path}: must be a file of {_FILE_BYTES_MAX} bytes at most, got "
                    f"{facts.st_size} bytes"
                )
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise DataError(f"image {path}: must be readable, got {error.strerror!r}") from error
        digest = hashlib.blake2b(data, digest_size=16).digest()
        known = (os.fsencode(path), facts.st_size, facts.st_mtime_ns, time.time_ns(), digest)
        if writer.has(digest):
            return _Image(*known, None, 0, 0)
        try:
            pixels, height, width = shrink_image(data, self._channels, self.side, self._smoothing)
        except DataError as error:
            raise DataError(f"image {path}: {error}") from error
        return _Image(*known, pixels, height, width)


class _Writer:
    """What commits images, some at a time.

    Parameters
    ----------
    index : Connection
    pixels : str
        The file.
    """

    def __init__(self, index: sqlite3.Connection, pixels: str) -> None:
        self.n_made = 0
        self._index, self._pixels = index, pixels
        self._lock = threading.Lock()
        self._waiting: list[_Image] = []
        self._bytes, self._since = 0, time.monotonic()

    def has(self, digest: bytes) -> bool:
        """Whether an image is stored; for any thread."""
        with self._lock:
            return self._is_stored(digest)

    def _is_stored(self, digest: bytes) -> bool:
        found = self._index.execute("SELECT 1 FROM images WHERE hash = ?", (digest,))
        return found.fetchone() is not None

    def add(self, image: _Image) -> None:
        """Commits it, now or with the next ones."""
        self._waiting.append(image)
        self._bytes += 0 if image.pixels is None else image.pixels.nbytes
        if self._bytes >= _BATCH_BYTES or time.monotonic() - self._since >= _BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Commits what waits."""
        if not self._waiting:
            return
        with self._lock:
            self._index.execute("BEGIN IMMEDIATE")
            try:
                n_made = self._write()
                self._index.execute("COMMIT")
            except BaseException:
                if self._index.in_transaction:
                    self._index.execute("ROLLBACK")
                raise
        self.n_made += n_made
        self._waiting, self._bytes, self._since = [], 0, time.monotonic()

    def _write(self) -> int:
        (at,) = self._index.execute("SELECT bytes FROM facts").fetchone()
        entries: dict[bytes, tuple[Any, ...]] = {}
        with open(self._pixels, "r+b") as file:
            file.seek(at)
            for image in self._waiting:
                if image.pixels is None or image.hash in entries or self._is_stored(image.hash):
                    continue
                height, width = image.pixels.shape[:2]
                facts = (at, height, width, image.src_height, image.src_width)
                sum_ = zlib.crc32(image.pixels.data)
                entries[image.hash] = (*facts, sum_, _sum_entry(image.hash, *facts, sum_))
                file.write(image.pixels.data)
                at += image.pixels.nbytes
            _flush(file)
        self._index.executemany(
            "INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(digest, *entry) for digest, entry in entries.items()],
        )
        self._index.executemany(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            [image[:5] for image in self._waiting],
        )
        self._index.execute("UPDATE facts SET bytes = ?", (at,))
        return len(entries)


def _is_damage(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
    return True


def _sum_entry(digest: bytes, *facts: int) -> int:
    return zlib.crc32(_ENTRY.pack(digest, *facts))


def _flush(file: Any) -> None:
    """To the disk."""
    file.flush()
    os.fsync(file.fileno())
