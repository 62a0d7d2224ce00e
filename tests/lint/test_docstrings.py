"""Docstrings of what is public have numpy's sections, all of them."""

import pytest
from lint import docstrings


def test_sections_of_what_is_public() -> None:
    faults = []
    for path, thing in docstrings.public_things():
        lacks, invented = docstrings.check_sections(thing)
        faults += [f"{path} lacks {section}" for section in lacks]
        faults += [f"{path} has no parameter {name}" for name in invented]
    assert not faults, "\n".join(faults)


def whole(x: int, *, y: int = 0) -> int:
    """Adds.

    Parameters
    ----------
    x, y : int
        Numbers.

    Returns
    -------
    int
        Their sum.

    Raises
    ------
    ValueError
        For negative ones.
    """
    if x < 0:
        raise ValueError
    return x + y


class Pair:
    """Two numbers.

    Parameters
    ----------
    x, y : int
        Numbers.
    """

    def __init__(self, x: int, y: int) -> None: ...


def test_whole_docstrings_pass() -> None:
    assert docstrings.check_sections(whole) == ([], [])
    assert docstrings.check_sections(Pair) == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ("x, y : int", "x : int", ["Parameters: y"]),
        ("Returns\n    -------", "Gives\n    .......", ["Returns"]),
        ("Raises\n    ------", "Errors", ["Raises"]),
    ],
    ids=["parameter", "returns", "raises"],
)
def test_what_is_missing_is_found(monkeypatch, old: str, new: str, lacks: list[str]) -> None:
    assert old in whole.__doc__
    monkeypatch.setattr(whole, "__doc__", whole.__doc__.replace(old, new))
    assert docstrings.check_sections(whole)[0] == lacks


def test_invented_parameters_are_found(monkeypatch) -> None:
    monkeypatch.setattr(Pair, "__doc__", Pair.__doc__.replace("x, y", "x, y, z"))
    assert docstrings.check_sections(Pair) == ([], ["z"])
