"""Plots of a training run, by matplotlib where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.base.figures import make_figure
from hotloop.training.result.history import History
from hotloop.training.scoring.names import MEASURED

if TYPE_CHECKING:
    import os

__all__ = ["draw_history"]

_NOT_CURVES = {"epoch", "lr", "loss_scale", "skipped", *MEASURED}
# Title, column, and what a value is divided by.
_SMALL = (
    ("learning rate", "lr", 1.0),
    ("samples per second", "samples_per_second", 1.0),
    ("peak memory, MB", "peak_bytes", 1e6),
)
_LOG_FROM = 0.01  # below this ratio of smallest to largest loss the axis is logarithmic


def draw_history(history: History, path: str | os.PathLike[str] | None = None) -> Any:
    """Losses on the left, metrics on the right (if any), below them learning rate, throughput and
    memory; see :meth:`TrainResult.plot`.
    """
    losses = [name for name in history if name == "loss" or name.endswith("_loss")]
    others = [name for name in history if name not in losses and name not in _NOT_CURVES]
    panels = [("loss", losses), ("metrics", others)] if others else [("loss", losses)]
    small = [one for one in _SMALL if one[1] in history]
    figure = make_figure("plot", 5.0 * len(panels), 5.2 if small else 3.5)
    upper, *lower = figure.subfigures(
        1 + bool(small), 1, height_ratios=[2, 1][: 1 + bool(small)], squeeze=False
    )[:, 0]
    axes = upper.subplots(1, len(panels), squeeze=False)[0]
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
    for axis, (title, name, unit) in zip(
        lower[0].subplots(1, len(small), squeeze=False)[0] if small else (), small, strict=True
    ):
        axis.plot(history["epoch"], [value / unit for value in history[name]])
        axis.set_title(title, fontsize="small")
        axis.tick_params(labelsize="small")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        if name != "lr":
            axis.set_ylim(bottom=0)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
