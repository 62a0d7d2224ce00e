"""What a mutant is, and the tests that must fail because of it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Check", "Mutant", "c", "cuda", "header", "host", "python"]


class Check(NamedTuple):
    """Tests of one kind: pytest's ids, or programs of tests/c or tests/cuda."""

    kind: str
    names: tuple[str, ...]


def python(*ids: str) -> Check:
    """Tests of pytest, by id: a file, or ``file::test``."""
    return Check("python", ids)


def c(*programs: str) -> Check:
    """Programs of tests/c, in one instruction set where they are compiled for several."""
    return Check("c", programs)


def header(program: str) -> Check:
    """A program of tests/c whose subject stands in a header: it alone is compiled anew."""
    return Check("header", (program,))


def cuda(*programs: str) -> Check:
    """Programs of tests/cuda that run the emulated kernels."""
    return Check("cuda", programs)


def host(*programs: str) -> Check:
    """Programs of tests/cuda that run the CUDA backend over the emulated driver."""
    return Check("host", programs)


class Mutant(NamedTuple):
    """A change of one place that a test must notice.

    Attributes
    ----------
    name : str
        Words with hyphens, which say what is wrong then.
    file : str
        Relative to the root.
    text : str
        What stands there, exactly once in the file.
    change : str
        What stands there instead.
    check : Check
        The narrowest tests that must fail.
    hangs : bool
        Whether the tests may fail by not ending.
    """

    name: str
    file: str
    text: str
    change: str
    check: Check
    hangs: bool = False
