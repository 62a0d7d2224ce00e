"""Test-time augmentation: views of images, mirrored and turned, and the mean of what they give.

A view swaps the two axes of an image or not and then mirrors either: the eight symmetries of a
square. An output of the image as a whole is to be the same for all of them, one of each pixel goes
the way back; of any other output (points, boxes) nobody here knows where a mirror puts it, and it
is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import choice
from hotloop.errors import ShapeError

__all__ = ["View", "read_views"]

Array = npt.NDArray[Any]


class View(NamedTuple):
    """How an image is shown.

    Attributes
    ----------
    is_turned : bool
        Whether its axes are swapped, before it is mirrored.
    is_upside_down, is_mirrored : bool
        Whether its rows, and its columns, stand in reverse order.
    """

    is_turned: bool
    is_upside_down: bool
    is_mirrored: bool

    def show(self, array: Array) -> Array:
        """Images ``(rows, channels, height, width)`` in this view; what is none as it is."""
        if array.ndim != 4:
            return array
        turned = array.swapaxes(-1, -2) if self.is_turned else array
        return np.ascontiguousarray(self._mirror(turned))

    def undo(self, output: Array, size: tuple[int, int]) -> Array:
        """An output of this view as one of the images.

        Parameters
        ----------
        output : array
        size : (int, int)
            Height and width of the images.

        Raises
        ------
        ShapeError
            For an output that is neither of whole images nor of their pixels, or no float.
        """
        if output.dtype.kind != "f":
            raise ShapeError(
                f"tta: outputs must be floats, of which there is a mean, got {output.dtype}; leave "
                "tta out"
            )
        if output.ndim <= 2:
            return output
        if output.shape[-2:] != (size[::-1] if self.is_turned else size):
            raise ShapeError(
                "tta: outputs must be of whole images, (rows,) or (rows, outputs), or end in the "
                f"images' height and width, {size[0]} and {size[1]}, got shape {output.shape}, of "
                "which it is not known what a mirror does to it; leave tta out, or predict the "
                "mirrored images and mirror what that gives"
            )
        mirrored = self._mirror(output)
        return mirrored.swapaxes(-1, -2) if self.is_turned else mirrored

    def _mirror(self, array: Array) -> Array:
        if self.is_upside_down:
            array = array[..., ::-1, :]
        return array[..., ::-1] if self.is_mirrored else array


_BOTH = (False, True)
_VIEWS = {
    "hflip": tuple(View(False, False, mirrored) for mirrored in _BOTH),
    "vflip": tuple(View(False, upside_down, False) for upside_down in _BOTH),
    "flips": tuple(View(False, *both) for both in itertools.product(_BOTH, _BOTH)),
    "d4": tuple(View(*all_three) for all_three in itertools.product(_BOTH, _BOTH, _BOTH)),
}
_read_name = choice(*_VIEWS)


def read_views(name: str, arrays: Sequence[Array]) -> tuple[tuple[View, ...], tuple[int, int]]:
    """The views of a name, the images as they are first, and the images' height and width.

    Parameters
    ----------
    name : str
        "hflip", "vflip", "flips" or "d4".
    arrays : sequence of array
        What forward takes: images, and perhaps numbers beside them.

    Raises
    ------
    ConfigError
        For another name.
    ShapeError
        For arrays that are no images, images of several sizes, and ones that cannot be turned.
    """
    views = _VIEWS[_read_name("tta", name)]
    sizes = {array.shape[2:] for array in arrays if array.ndim == 4}
    shapes = ", ".join(str(array.shape) for array in arrays)
    if not sizes or any(array.ndim not in (1, 2, 4) for array in arrays):
        raise ShapeError(
            "tta: the data must be images (rows, channels, height, width), beside which there may "
            f"be numbers (rows, n), got {shapes or 'none'}; leave tta out"
        )
    if len(sizes) > 1:
        raise ShapeError(f"tta: images must have one height and width, got {shapes}; leave it out")
    ((height, width),) = sizes
    if height != width and any(view.is_turned for view in views):
        raise ShapeError(
            f"tta: {name!r} turns images, which must be square, got {height} x {width}; write "
            "'flips'"
        )
    return views, (height, width)
