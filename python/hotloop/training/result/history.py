"""History: values by name, one entry per epoch."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["History"]


class History(dict[str, list[float]]):
    """Values by name, one entry per epoch: ``history["val_accuracy"][-1]``.

    The last epoch may be one that ``max_steps`` or ``max_time`` cut short. An epoch without a value
    (validation every few epochs) holds NaN, so that all lists have the same length.
    """

    def append(self, row: dict[str, float]) -> None:
        """Adds an epoch's values."""
        length = max((len(column) for column in self.values()), default=0)
        for name in {**dict.fromkeys(self), **row}:
            column = self.setdefault(name, [float("nan")] * length)
            column.append(row.get(name, float("nan")))

    def rows(self) -> Iterator[dict[str, float]]:
        """One dict per epoch."""
        for i in range(len(self.get("epoch", ()))):
            yield {name: column[i] for name, column in self.items()}
