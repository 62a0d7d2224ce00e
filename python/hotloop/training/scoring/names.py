"""The names that a history row gets, from losses, logged values and metrics: each from one of them.

A row has what training computes by its name, and what validation computes as ``val_<name>``;
``evaluate`` gives the latter without the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.base.rules import show
from hotloop.errors import ConfigError

__all__ = ["COLUMNS", "MEASURED", "check_names"]

# Of each row: what clocks and memory say, which no rerun repeats.
MEASURED = ("samples_per_second", "data_wait", "peak_bytes", "seconds")
COLUMNS = ("epoch", "lr", "loss_scale", "skipped", *MEASURED)  # of each row, beside values


def check_names(
    losses: Iterable[str],
    returned: Iterable[str],
    logged: Iterable[str],
    metrics: Iterable[tuple[str, str]],
) -> None:
    """Refuses two values of one name, of which a row would have the last.

    Parameters
    ----------
    losses : iterable of str
        Losses beside their sum, which is "loss".
    returned : iterable of str
        What training_step returns beside the loss.
    logged : iterable of str
        What ``self.log`` was given.
    metrics : iterable of (str, str)
        Name in the history without ``val_``, and the metric's own.

    Raises
    ------
    ConfigError
        With both sources of the name.
    """
    taken = dict.fromkeys(COLUMNS, "a column that every epoch has")

    def take(name: str, source: str) -> None:
        if name in taken:
            raise ConfigError(
                f"history: the name {name!r} is taken twice, by {taken[name]} and by {source}; "
                "rename one of them"
            )
        taken[name] = source

    valued = [("loss", "the loss"), *((name, f"the loss {name!r}") for name in losses)]
    valued += [(name, f"{name!r} of what training_step returns") for name in returned]
    valued += [(name, f"the value of self.log({name!r}, ...)") for name in logged]
    for name, source in valued:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"history: a name must be a text with at least one character, got {show(name)} "
                f"for {source}"
            )
        take(name, source)
    for name, source in valued:
        take(f"val_{name}", f"{source} on validation")
    for label, metric in metrics:
        take(f"val_{label}", f"the metric {metric!r}")
