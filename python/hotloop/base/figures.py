"""Figures of matplotlib, where it is installed, that notebooks show without pyplot."""

from __future__ import annotations

import io
from typing import Any

from hotloop.errors import ConfigError

__all__ = ["make_figure"]


def make_figure(what: str, width: float, height: float) -> Any:
    """An empty figure.

    Parameters
    ----------
    what : str
        Who draws it, for the message.
    width, height : float
        Inches.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"{what}: needs matplotlib, got none installed; pip install matplotlib"
        ) from error
    shown_anywhere = type("Plot", (Figure,), {"_repr_png_": _as_png})
    return shown_anywhere(figsize=(width, height), layout="constrained")


def _as_png(figure: Any) -> bytes:
    """The method by which a notebook shows a value; matplotlib's own needs pyplot."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
