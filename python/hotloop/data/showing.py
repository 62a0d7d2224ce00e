"""A batch as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.figures import make_figure
from hotloop.errors import ConfigError

__all__ = ["draw_images"]

_INCHES = 1.6  # of an image's side
_GREY, _RGB = 1, 3


def draw_images(images: npt.NDArray[Any], titles: Sequence[str], columns: int) -> Any:
    """Images beside one another, each below its title.

    Parameters
    ----------
    images : array (n, channels, height, width)
        Levels of 0 to 255, or of 0 to 1; of floats in another range by their least and largest.
    titles : sequence of str
        As many, or none.
    columns : int

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or they are no images.
    """
    if images.ndim != 4 or images.shape[1] not in (_GREY, _RGB):
        raise ConfigError(
            "show_batch: shows images (batch, 1 or 3 channels, height, width), got x of shape "
            f"{images.shape}"
        )
    rows = math.ceil(len(images) / columns)
    figure = make_figure("show_batch", _INCHES * columns, _INCHES * 1.15 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for axis, image, title in zip(axes, _levels(images), titles or [""] * len(images)):
        grey = image[0] if len(image) == _GREY else image.transpose(1, 2, 0)
        axis.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0)
        axis.set_title(title, fontsize=8)
    return figure


def _levels(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """From 0 to 1."""
    low, high = float(images.min()), float(images.max())
    if low >= 0.0 and high <= 1.0:
        return images.astype(np.float32)
    if low >= 0.0 and high <= 255.0:
        return (images / 255.0).astype(np.float32)
    return ((images - low) / max(high - low, 1e-12)).astype(np.float32)
