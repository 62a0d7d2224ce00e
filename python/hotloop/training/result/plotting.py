"""Plots of a training run, by matplotlib where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.base.figures import make_figure
from hotloop.training.result.history import History

if TYPE_CHECKING:
    import os

__all__ = ["draw_history"]

_NOT_CURVES = {"epoch", "lr", "seconds"}
_LOG_FROM = 0.01  # below this ratio of smallest to largest loss the axis is logarithmic


def draw_history(history: History, path: str | os.PathLike[str] | None = None) -> Any:
    """Losses on the left, metrics on the right (if any); see :meth:`TrainResult.plot`."""
    losses = [name for name in history if name == "loss" or name.endswith("_loss")]
    others = [name for name in history if name not in losses and name not in _NOT_CURVES]
    panels = [("loss", losses), ("metrics", others)] if others else [("loss", losses)]
    figure = make_figure("plot", 5.0 * len(panels), 3.5)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, names) in zip(axes, panels, strict=True):
        for name in names:
            values = [
                (epoch, value)
                for epoch, value in zip(history["epoch"], history[name], strict=True)
                if value == value
            ]
            style = "-" if name.startswith("val_") else "--"
            axis.plot(*zip(*values, strict=True), style, label=name) if values else None
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(title)
        shown = [value for name in names for value in history[name] if value == value]
        if title == "loss" and shown and 0 < min(shown) < _LOG_FROM * max(shown):
            axis.set_yscale("log")
        axis.legend()
        axis.grid(alpha=0.3)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
