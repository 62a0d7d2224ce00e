"""Images of several shapes: each goes to the bucket whose shape is nearest to its own.

What counts is the ratio of the sides: pixels are resized anyway, and of a photograph in portrait
format a square shows two thirds. Headers say how large images are, so none is decoded for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject
from hotloop.base.scalars import plain
from hotloop.data.images.sources import find_image_size
from hotloop.data.parallel import parallel_map
from hotloop.errors import ConfigError

__all__ = ["find_ratios", "nearest_shape", "read_shapes"]

Rows = npt.NDArray[np.int64]
Shape = tuple[int, int]

_MOST_SHAPES = 8
_LONGEST = 2.0  # of the longer side over the shorter one, where shapes are found
_STEP = 32  # pixels between the longer sides of shapes that are found; less of small images


def is_several(size: Any) -> bool:
    """Whether it is a list of shapes."""
    return isinstance(size, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in size)


def read_shapes(
    size: Any, buckets: Any, ratios: npt.NDArray[np.float64] | None, batch_size: int
) -> list[Any]:
    """The shapes of batches, the largest first; one, as it was given, where there are no buckets.

    Parameters
    ----------
    size : int, (int, int) or list of (int, int)
    buckets : "auto" or None
    ratios : float64 array (n,) or None
        Of the images, for "auto".
    batch_size : int

    Raises
    ------
    ConfigError
    """
    if buckets is not None and not (isinstance(buckets, str) and buckets == "auto"):
        reject("buckets", "must be 'auto' or None; write size=[(height, width), ...]", buckets)
    if is_several(size):
        if buckets is not None:
            raise ConfigError("buckets: size has the shapes already; leave buckets out")
        shapes = [tuple(one) if isinstance(one, (list, tuple)) else (one, one) for one in size]
        if len({*map(repr, shapes)}) < len(shapes):
            reject("size", "must have each shape once", size)
        return shapes if len(shapes) < 2 else sorted(shapes, key=_by_area)
    if buckets is None:
        return [size]
    side = plain(size)
    if not isinstance(side, int) or isinstance(side, bool) or side < 1:
        reject("size", "must be the shorter side in pixels, with buckets='auto'", size)
    assert ratios is not None
    return _find_shapes(side, ratios, batch_size)


def _by_area(shape: Sequence[Any]) -> tuple[Any, ...]:
    if len(shape) != 2 or not all(isinstance(plain(side), int) for side in shape):
        reject("size", "must be (height, width) of each bucket, in pixels", shape)
    return (-shape[0] * shape[1], *shape)


def _find_shapes(side: int, ratios: npt.NDArray[np.float64], batch_size: int) -> list[Shape]:
    """Shapes of one shorter side: those that a batch of images at least is nearest to, 8 at most.

    The shape with the fewest images goes first, and its images to what is left.
    """
    step = _STEP if side >= 4 * _STEP else max(1, side // 8)
    longer = range(side, int(side * _LONGEST) + 1, step)
    shapes = sorted({(side, n) for n in longer} | {(n, side) for n in longer}, key=_by_area)
    while len(shapes) > 1:
        counts = np.bincount(nearest_shape(shapes, ratios), minlength=len(shapes))
        least = int(np.argmin(counts))
        if counts[least] >= batch_size and len(shapes) <= _MOST_SHAPES:
            break
        del shapes[least]
    return shapes


def nearest_shape(shapes: Sequence[Shape], ratios: npt.NDArray[np.float64]) -> Rows:
    """The number of the shape that each image goes to.

    Parameters
    ----------
    shapes : sequence of (int, int)
        Height and width.
    ratios : float64 array (n,)
        Logarithms of width over height.
    """
    own = np.array([math.log(width / height) for height, width in shapes])
    nearest: Rows = np.abs(ratios[:, None] - own[None, :]).argmin(axis=1).astype(np.int64)
    return nearest


def find_ratios(paths: Sequence[str]) -> npt.NDArray[np.float64]:
    """Logarithms of width over height of images, by their headers; 0 for bad ones, which show when
    they are decoded.
    """
    sizes = parallel_map(find_image_size, paths)
    return np.array([math.log(w / h) if h and w else 0.0 for h, w in sizes])
