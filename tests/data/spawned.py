"""Datasets that other processes import."""

import os
import signal
import time
from typing import Any

import numpy as np


class Numbers:
    """Sample i is (i, its square), and what happens at one index."""

    def __init__(self, n: int, at: int = -1, what: str = "") -> None:
        self.n, self.at, self.what = n, at, what
        self.epoch = 0

    def __len__(self) -> int:
        return self.n

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, i: int) -> Any:
        if i == self.at and self.what == "raise":
            raise OSError("broken")
        if i == self.at and self.what == "die" and self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)
        if i == self.at and self.what == "wait" and self.epoch:
            time.sleep(60)
        return np.float32([i, self.epoch, os.getpid()]), i % 3


class Sparse:
    """Sample i is (i, i), or (i, its class); some cannot be made."""

    def __init__(self, n: int, bad: set[int], classes: list[int] | None = None) -> None:
        self.n, self.bad, self.classes = n, bad, classes

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i in self.bad:
            raise ValueError("broken")
        return np.float32([i]), np.float32([i]) if self.classes is None else self.classes[i]


class NotThere:
    """Cannot be read by another process."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return np.zeros(3), 1

    def __reduce__(self) -> Any:
        return fail, ()


def fail() -> None:
    """As a class that a notebook has and a module lacks."""
    raise AttributeError("module has no NotThere")
