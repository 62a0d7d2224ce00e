"""Data in files of arrays that need not fit memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

from hotloop.base.rules import flag, show
from hotloop.data.npy import are_paths, read_npy, read_parts
from hotloop.data.series import SeriesData
from hotloop.errors import DataError

__all__ = ["FileData"]


class FileData(SeriesData):
    """Ways to make a :class:`DataModule` of files that hold arrays."""

    @classmethod
    def from_npy(
        cls,
        X: Any,
        y: Any = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        allow_nonfinite: bool = False,
        **options: Any,
    ) -> Self:
        """A DataModule of arrays in .npy files, which need not fit memory.

        Parameters
        ----------
        X : str, path, list of them, or dict or tuple of these
            Files of one array each, ``(N_i, ...)``, whose rows follow each other; a pattern
            (``"parts/*.npy"``) means its files in the order of their names, with numbers in them by
            value. A dict of them enters forward as a dict, a tuple as separate arguments; several
            files of one array are a list.
        y : array_like, str, path or list of them, optional
            As for :meth:`from_arrays`, or files. Those of several files are read into memory.
        groups, sample_weight : array_like, str, path or list of them, optional
            Likewise.
        allow_nonfinite : bool
            Let NaN and infinities in X and y pass.
        **options
            As for :meth:`from_arrays`: splits, sampling, loading.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            As :meth:`from_arrays`.
        DataError
            For files that are not there, are no .npy files, hold objects, are cut off, or whose
            rows differ in shape or dtype.

        Notes
        -----
        Files are mapped, not read: a batch reads the pages that its rows lie in. One file of a
        usual dtype is an array in place. Rows of several files, and of one in Fortran order or
        another byte order, are gathered by ``num_workers`` threads ["auto": 1]. Files must not be
        shortened while they are in use; the system ends a process that reads beyond a file's end.

        Examples
        --------
        >>> import tempfile
        >>> X, y = hl.load_digits()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(3):
        ...         np.save(f"{folder}/X{i}.npy", X[i::3])
        ...         np.save(f"{folder}/y{i}.npy", y[i::3])
        ...     data = hl.DataModule.from_npy(f"{folder}/X*.npy", f"{folder}/y*.npy", val=0.2)
        ...     result = hl.train(nn.Linear(64, 10), data, max_epochs=1)
        """
        flag("allow_nonfinite", allow_nonfinite)
        inputs = _read_inputs(X, allow_nonfinite)
        make = cast("Any", cls).from_arrays
        made = make(
            inputs,
            read_parts(y, "y"),
            groups=read_parts(groups, "groups"),
            sample_weight=read_parts(sample_weight, "sample_weight"),
            allow_nonfinite=allow_nonfinite,
            **options,
        )
        made._auto_workers = 1
        return cast("Self", made)


def _read_inputs(X: Any, allow_nonfinite: bool) -> Any:
    if isinstance(X, Mapping):
        return {
            key: read_npy(part, f"X[{key!r}]", allow_nonfinite=allow_nonfinite)
            for key, part in X.items()
        }
    if isinstance(X, tuple):
        return tuple(
            read_npy(part, f"X[{i}]", allow_nonfinite=allow_nonfinite) for i, part in enumerate(X)
        )
    if not are_paths(X):
        raise DataError(
            f"X: must be a path, a pattern or a list of them, got {type(X).__name__} {show(X)}; "
            "from_arrays takes arrays, memory-mapped ones too"
        )
    return read_npy(X, "X", allow_nonfinite=allow_nonfinite)
