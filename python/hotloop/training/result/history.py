"""History: values by name, one entry per epoch or validation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hotloop.base.messages import counted
from hotloop.base.suggest import did_you_mean

__all__ = ["History"]


def _ends(column: Sequence[float]) -> str:
    """The first and last value that is known, where they differ."""
    known = [value for value in column if not math.isnan(value)] or [math.nan]
    first, last = (f"{value:.4g}" for value in (known[0], known[-1]))
    return last if first == last else f"{first} -> {last}"


class History(dict[str, list[float]]):
    """Values by name, one entry per epoch: ``history["val_accuracy"][-1]``.

    With ``val_check_interval`` each validation within an epoch has an entry as well, whose "epoch"
    says how many were trained, 2.25, and whose training loss is the mean of the epoch so far.
    The last epoch may be one that ``max_steps`` or ``max_time`` cut short. An epoch without a value
    (validation every few epochs) holds NaN, so that all lists have the same length. As text it is
    the first and last value of each; ``dict(history)`` shows all.
    """

    def __missing__(self, name: str) -> list[float]:
        raise KeyError(
            f"history has no {name!r}, got {', '.join(self) or 'no epochs'}"
            f"{did_you_mean(str(name), self)}"
        )

    def __repr__(self) -> str:
        n = len(self.get("epoch", ()))
        if not n:
            return "History(no epochs)"
        whole = all(epoch == int(epoch) for epoch in self["epoch"])
        named = [f"{k} {_ends(column)}" for k, column in self.items() if k != "epoch"]
        return f"History({counted(n, 'epoch' if whole else 'row')}: {', '.join(named)})"

    def append(self, row: dict[str, float]) -> None:
        """Adds a row of values."""
        length = max((len(column) for column in self.values()), default=0)
        for name in {**dict.fromkeys(self), **row}:
            column = self.setdefault(name, [float("nan")] * length)
            column.append(row.get(name, float("nan")))

    def complete(self, values: dict[str, float]) -> None:
        """Adds values to the last row, or sets those that it has."""
        length = max(len(column) for column in self.values())
        for name, value in values.items():
            self.setdefault(name, [float("nan")] * length)[-1] = value

    def rows(self) -> Iterator[dict[str, float]]:
        """One dict per entry."""
        for i in range(len(self.get("epoch", ()))):
            yield {name: column[i] for name, column in self.items()}
