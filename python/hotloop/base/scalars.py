"""NumPy's scalars where Python's are meant.

A number that was computed with NumPy is a ``np.int64``, a ``np.bool`` or an array of shape ();
users pass it on where an int or a bool belongs, and mean its value. What looks at the kind of a
value (``is True``, ``isinstance(value, int)``) calls :func:`plain` first.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """The bool, int, float or str of a NumPy scalar or array of shape (); others as they are."""
    np = sys.modules.get("numpy")  # a configuration does not need it
    if np is None:
        return value
    is_scalar = isinstance(value, np.generic)
    if is_scalar or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value
