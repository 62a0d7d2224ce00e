"""A function over many items at once, with progress: what is done once before training."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

from hotloop.base.messages import is_notebook
from hotloop.base.rules import flag, optional, show, whole
from hotloop.errors import ConfigError, DataError

__all__ = ["map_ahead", "parallel_map", "submit_ahead"]

Item = TypeVar("Item")
Made = TypeVar("Made")

_AHEAD = 4  # items under way for each worker


def parallel_map(
    fn: Callable[[Item], Made],
    items: Iterable[Item],
    workers: int | None = None,
    *,
    processes: bool = False,
    progress: bool | str = "auto",
) -> list[Made]:
    """``[fn(item) for item in items]`` by several workers, in order.

    Parameters
    ----------
    fn : callable
    items : iterable
        Gone through once, a few items ahead of the workers.
    workers : int, optional
        By default one less than there are processors, at least 1.
    processes : bool
        Threads by default, which is enough for NumPy, Pillow and files: they let other threads run
        meanwhile. For functions that compute in Python other processes; fn, items and results must
        be picklable then, and fn a function of a module.
    progress : bool or "auto"
        Whether a bar is shown; "auto": where there is a terminal or a notebook.

    Returns
    -------
    list
        A result for each item.

    Raises
    ------
    DataError
        When fn raises: names the first item, in order, for which it did, with the exception as its
        cause. What has not begun is left out.
    ConfigError
        For an option out of its range.

    Examples
    --------
    >>> hl.parallel_map(len, ["a", "bb", "ccc"], workers=2)
    [1, 2, 3]
    """
    from hotloop import _core

    if not callable(fn):
        raise ConfigError(f"parallel_map: fn must be a function, got {show(fn)}")
    count = optional(whole(1))("workers", workers)
    n = max(1, int(_core.cpu_info()["threads"]) - 1) if count is None else int(count)
    made: list[Made] = []
    ahead = map_ahead(fn, items, n, processes=processes, progress=progress)
    with contextlib.closing(ahead) as results:
        for item, future in results:
            made.append(_result_of(future, item, len(made)))
    return made


def map_ahead(
    fn: Callable[[Item], Made],
    items: Iterable[Item],
    workers: int,
    *,
    processes: bool = False,
    progress: bool | str = "auto",
    what: str = "",
    sizes: Callable[[Item], int] | None = None,
) -> Generator[tuple[Item, concurrent.futures.Future[Made]]]:
    """Each item with what several workers make of it, in order; closed, it leaves the others out.

    Parameters
    ----------
    fn, items, workers, processes, progress
        As for :func:`parallel_map`. Items are gone through a few ahead of who takes the results.
    what : str
        In front of the bar.
    sizes : callable, optional
        By how much an item moves the bar, where it is not by one.

    Yields
    ------
    (item, Future)
        The future is done; its ``result`` raises what fn raised.
    """
    total = None
    if isinstance(items, Sized):
        total = len(items) if sizes is None else sum(map(sizes, items))
    bar = _make_bar(progress, total, what)
    pool: concurrent.futures.Executor
    if flag("processes", processes):
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context)
    else:
        pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
        for item, future in submit_ahead(pool, fn, items, _AHEAD * workers):
            concurrent.futures.wait([future])
            yield item, future
            if bar is not None:
                bar.update(1 if sizes is None else sizes(item))
    finally:
        pool.shutdown(cancel_futures=True)
        if bar is not None:
            bar.close()


def submit_ahead(
    pool: concurrent.futures.Executor,
    fn: Callable[[Item], Made],
    items: Iterable[Item],
    ahead: int,
) -> Iterator[tuple[Item, concurrent.futures.Future[Made]]]:
    """Each item with what a pool makes of it, in order; so many are under way at once.

    Parameters
    ----------
    pool : Executor
    fn : callable
    items : iterable
        Gone through once, no further than is needed.
    ahead : int
        At least 1.
    """
    under_way: collections.deque[tuple[Item, concurrent.futures.Future[Made]]] = collections.deque()
    for item in items:
        under_way.append((item, pool.submit(fn, item)))
        if len(under_way) == ahead:
            yield under_way.popleft()
    yield from under_way


def _result_of(future: concurrent.futures.Future[Made], item: object, number: int) -> Made:
    try:
        return future.result()
    except concurrent.futures.BrokenExecutor as error:
        raise DataError(
            f"parallel_map: a worker process died at item {number} or near it, got {error}"
        ) from error
    except Exception as error:
        raise DataError(
            f"parallel_map: item {number}, {show(item)}: raised {type(error).__name__}: {error}"
        ) from error


def _make_bar(progress: bool | str, total: int | None, what: str) -> Any:
    is_shown = is_notebook() or sys.stderr.isatty()
    if progress != "auto":
        is_shown = flag("progress", progress)
    if not is_shown:
        return None
    from tqdm import tqdm

    return tqdm(total=total, mininterval=0.5, desc=what or None)
