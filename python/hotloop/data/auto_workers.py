"""``num_workers="auto"`` of samples that are made one by one: how many threads make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

__all__ = ["AutoWorkers"]


@dataclasses.dataclass
class AutoWorkers:
    """A choice that the first training of a DataModule makes, for all that share its samples.

    Attributes
    ----------
    threads : int
        How many; until it is measured, how many it would be without.
    is_open : bool
        Whether it is still to be measured.
    is_python : bool
        Whether Python of the user's makes the samples, which may mind threads.
    enter : callable or None
        Begins training's first epoch, which samples may have to be told of.
    words : str
        What was measured, for the header of a run; "": nothing.
    """

    threads: int = 0
    is_open: bool = True
    is_python: bool = False
    enter: Callable[[], None] | None = None
    words: str = ""
