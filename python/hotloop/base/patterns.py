"""Patterns that select parameters by their qualified names (freeze, unfreeze, param_groups).

A pattern is a module's or parameter's name and covers all that lies below it, or it holds a
wildcard (``*``, ``?``, ``[...]`` as in :mod:`fnmatch`, where ``*`` also crosses dots). Regular
expressions were rejected: the dots of qualified names mean something else in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError

__all__ = ["OWN_PREFIX", "matches", "select"]

OWN_PREFIX = "hotloop."
"""Of the names of what a file has beside a model's state_dict: constants, the state of a run."""


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern covers a parameter.

    Parameters
    ----------
    pattern : str
        ``"backbone"``, ``"backbone.layer1.0"``, ``"*.bias"``, ``"blocks.[01].*"``.
    name : str
        A parameter's qualified name.

    Examples
    --------
    >>> matches("body.0", "body.0.weight"), matches("body.0", "body.01.weight")
    (True, False)
    """
    from fnmatch import fnmatchcase

    if any(c in pattern for c in "*?["):
        return fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*")
    return name == pattern or name.startswith(pattern + ".")


_SHOWN = 8  # names


def select(field: str, patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that at least one pattern covers, in their own order.

    Parameters
    ----------
    field : str
        The setting that the patterns come from, for the error message.
    patterns : iterable of str
    names : sequence of str
        Qualified names of a model's parameters.

    Returns
    -------
    list of str

    Raises
    ------
    ConfigError
        A pattern covers nothing: it is misspelt, or the model is another one.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = [name for name in names if matches(pattern, name)]
        if not found:
            parents = {name.rpartition(".")[0] for name in names} - {""}
            near = did_you_mean(pattern, [*sorted(parents), *names])
            if not near:
                tops = [*dict.fromkeys(name.partition(".")[0] for name in names)]
                near = f"; it has {', '.join(tops[:_SHOWN])}{', ...' * (len(tops) > _SHOWN)}"
            raise ConfigError(
                f"{field}: must match a parameter of the model, got {pattern!r}{near}"
            )
        chosen.update(found)
    return [name for name in names if name in chosen]
