"""A batch as a picture."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.figures import make_figure
from hotloop.errors import ConfigError

__all__ = ["Drawn", "draw_images"]

_INCHES = 1.6  # of an image's side
_GREY, _RGB = 1, 3
_COVER = 0.55  # how much of a pixel's colour is that of its class


@dataclasses.dataclass
class Drawn:
    """Images, and what is drawn with each of them.

    Attributes
    ----------
    images : array (n, channels, height, width)
        Levels of 0 to 255, or of 0 to 1; of floats in another range by their least and largest.
    titles : list of str
        One for each, or none.
    mask : array (n, height, width) or None
        Class ids; below 0 nothing is drawn.
    n_classes : int or None
        Of the mask, where it is known.
    points : array (n, points, 3) or None
        x and y in pixels, the centre of the first one being (0, 0), and 0 where nothing is drawn.
    """

    images: npt.NDArray[Any]
    titles: list[str] = dataclasses.field(default_factory=list)
    mask: npt.NDArray[Any] | None = None
    n_classes: int | None = None
    points: npt.NDArray[Any] | None = None


def draw_images(drawn: Drawn, columns: int) -> Any:
    """Images beside one another, each below its title and under its mask and points.

    Parameters
    ----------
    drawn : Drawn
    columns : int

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or they are no images.
    """
    images = drawn.images
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
    shown = _levels(images)
    if drawn.mask is not None:
        shown = _cover(shown, drawn.mask, drawn.n_classes)
    titles = drawn.titles or [""] * len(images)
    for i, (axis, image, title) in enumerate(zip(axes, shown, titles)):
        grey = image[0] if len(image) == _GREY else image.transpose(1, 2, 0)
        axis.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0)
        axis.set_title(title, fontsize=8)
        if drawn.points is not None:
            _draw_points(axis, drawn.points[i])
    return figure


def _levels(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """From 0 to 1."""
    low, high = float(images.min()), float(images.max())
    if low >= 0.0 and high <= 1.0:
        return images.astype(np.float32)
    if low >= 0.0 and high <= 255.0:
        return (images / 255.0).astype(np.float32)
    return ((images - low) / max(high - low, 1e-12)).astype(np.float32)


def _colours(n: int) -> npt.NDArray[np.float32]:
    """n colours that differ, (n, 3): those of a small palette, then hues around the circle."""
    import matplotlib

    palette = np.asarray(matplotlib.colormaps["tab10"](np.arange(10)), np.float32)[:, :3]
    if n <= len(palette):
        return palette[:n]
    hues = np.arange(n, dtype=np.float32) * 0.618034 % 1.0  # neighbours lie far apart
    hsv = np.stack([hues, np.full(n, 0.85), np.where(np.arange(n) % 2, 0.65, 0.95)], 1)
    from matplotlib.colors import hsv_to_rgb

    return np.asarray(hsv_to_rgb(hsv), np.float32)


def _cover(
    images: npt.NDArray[np.float32], mask: npt.NDArray[Any], n_classes: int | None
) -> npt.NDArray[np.float32]:
    """RGB images, each class over them in its colour."""
    ids = np.asarray(mask, np.int64)
    colours = _colours(max(n_classes or 0, int(ids.max(initial=0)) + 1))
    over = colours[np.maximum(ids, 0)].transpose(0, 3, 1, 2)
    images = np.broadcast_to(images, over.shape)
    return np.where(ids[:, None] < 0, images, (1 - _COVER) * images + _COVER * over)


def _draw_points(axis: Any, points: npt.NDArray[Any]) -> None:
    counts = points[:, 2] > 0
    axis.scatter(
        points[counts, 0], points[counts, 1], s=14, c=_colours(len(points))[counts],
        edgecolors="white", linewidths=0.6,
    )  # fmt: skip
