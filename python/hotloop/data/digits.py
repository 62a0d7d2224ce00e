"""The digits set that ships with the package, so that a first model trains without a download.

1,797 real images of 8x8 pixels, 45 kB. Source, authors and licence (CC BY 4.0) stand beside the
data in files/digits.txt.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["load_digits"]

_FILE = Path(__file__).parent / "files" / "digits.npz"
_LEVELS = 16


def load_digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """1,797 handwritten digits, ready to train on.

    Returns
    -------
    X : float32 array (1797, 64)
        Images of 8x8 pixels, row by row: ``X[i].reshape(8, 8)``. From 0 (paper) to 1 (ink), in
        steps of 1/16.
    y : int64 array (1797,)
        The digit, 0 to 9.

    Notes
    -----
    The test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI
    Machine Learning Repository, 1998, doi:10.24432/C50P49, under CC BY 4.0; the set that
    scikit-learn's ``load_digits`` returns, there from 0 to 16.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> X.shape, int(y[0])
    ((1797, 64), 0)
    """
    import numpy as np

    with np.load(_FILE) as stored:
        images, labels = stored["images"], stored["labels"]
    X = images.reshape(len(images), -1).astype(np.float32) / _LEVELS
    return X, labels.astype(np.int64)
