"""Data in files of arrays that need not fit memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import flag, number, show
from hotloop.data.arrays import read_raw
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.sequential.series import SeriesData
from hotloop.data.stored.cubes import Cubes, read_masks
from hotloop.data.stored.npy import are_paths, read_npy, read_parts
from hotloop.data.streams import make_streams
from hotloop.errors import DataError

__all__ = ["FileData"]


class FileData(SeriesData):
    """Ways to make a :class:`DataModule` of files that hold arrays."""

    metadata: Sequence[Mapping[str, Any]] = ()
    """What each file of :meth:`from_cubes` says: its path, the fields of its header."""

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
        another byte order, are gathered by ``num_workers`` threads ["auto": measured]. Files must
        not be shortened while they are in use; the system ends a process that reads beyond a file's
        end.

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
        options = {"num_workers": "auto", **options}
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
        made._auto = AutoWorkers(1)
        return cast("Self", made)

    @classmethod
    def from_cubes(
        cls,
        files: Any,
        masks: Any = None,
        *,
        labels: Any = None,
        wavelengths: Any = None,
        scale: float | None = None,
        key: str | None = None,
        allow_nonfinite: bool = False,
        **options: Any,
    ) -> Self:
        """A DataModule of hyperspectral cubes, each a file, which need not fit memory.

        Parameters
        ----------
        files : str, path or list of them
            A cube ``(height, width, channels)`` each, all of one shape: .npy files, ENVI headers
            (.hdr, with the data beside them) and HDF5 or MATLAB 7.3 files (with h5py). A pattern
            (``"cubes/*.hdr"``) means its files in the order of their names, with numbers in them by
            value.
        masks : str, path, list of them or array_like (N, height, width), optional
            The target of each cube at each position: integers or bools are classes, floats values.
            Files are read into memory.
        labels : array_like (N,), optional
            The target of each cube, as y of :meth:`from_arrays`. With masks too there are two
            targets, "mask" and "label".
        wavelengths : array_like (channels,), optional
            In nanometres; without it those that ENVI headers have.
        scale : float, optional
            What all numbers are divided by; without it the reflectance scale factor that ENVI
            headers have.
        key : str, optional
            Which array of HDF5 files; needed where there are several of three dims.
        allow_nonfinite : bool
            Let NaN and infinities in cubes pass.
        **options
            As for :meth:`from_arrays`: splits, sampling, loading. ``batch_size`` counts cubes.

        Returns
        -------
        DataModule
            Forward gets a dict: "cube" ``(batch, height, width, channels)``, and "wavelengths"
            ``(batch, channels)`` where there are some; both float32. ``metadata`` has what each
            file says.

        Raises
        ------
        ConfigError
            As :meth:`from_arrays`; for HDF5 files without h5py.
        DataError
            For files that are not there, damaged or cut off, of several shapes, or whose numbers
            are complex. Values that are not finite are found when a batch needs them.

        Notes
        -----
        Cubes are read when a batch needs them, by ``num_workers`` threads ["auto": measured], which
        open a file, read it and close it.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(12):
        ...         np.save(f"{folder}/{i}.npy", np.random.rand(8, 8, 5))
        ...     data = hl.DataModule.from_cubes(
        ...         f"{folder}/*.npy", wavelengths=[450, 550, 650, 750, 850], val=3, batch_size=3
        ...     )
        ...     batch = next(data.train_batches())
        >>> batch["x"]["cube"].shape, batch["x"]["wavelengths"].shape
        ((3, 8, 8, 5), (3, 5))
        """
        divisor = None if scale is None else number(above=0.0)("scale", scale)
        flag("allow_nonfinite", allow_nonfinite)
        cubes = Cubes(files, "files", key=key, scale=divisor, allow_nonfinite=allow_nonfinite)
        options = {"num_workers": "auto", **options}
        n, names = len(cubes.files), [cube.path for cube in cubes.files]
        (stream,) = make_streams(n, [("float32", cubes.shape)], cubes.source(), cubes.digest)
        inputs = {"cube": stream}
        waves = cubes.wavelengths() if wavelengths is None else _read_waves(wavelengths, cubes)
        if waves is not None:
            inputs["wavelengths"] = waves
        if are_paths(masks):
            masks = read_masks(masks, cubes.shape, names, key)
        targets = {"mask": masks, "label": labels}
        given = {name: target for name, target in targets.items() if target is not None}
        y = given if len(given) > 1 else next(iter(given.values()), None)
        made = cast("Any", cls).from_arrays(inputs, y, allow_nonfinite=allow_nonfinite, **options)
        made._auto = AutoWorkers(2)
        made.metadata = [{"path": cube.path, **cube.metadata} for cube in cubes.files]
        return cast("Self", made)


def _read_waves(given: Any, cubes: Cubes) -> npt.NDArray[np.float32]:
    raw = read_raw(given, "wavelengths")
    if raw.shape != cubes.shape[2:] or raw.dtype.kind not in "iuf":
        raise DataError(
            f"wavelengths: must be a number for each of {cubes.shape[2]} channels, got dtype "
            f"{raw.dtype} of shape {raw.shape}"
        )
    return np.tile(raw.astype(np.float32), (len(cubes.files), 1))


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
