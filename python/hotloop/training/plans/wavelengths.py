"""Wavelengths of cubes: what is fitted to channels holds for channels of the same light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import DataError
from hotloop.stats import BandpassByWavelength
from hotloop.stats.node import PixelNode

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module

__all__ = ["FIELD", "check_wavelengths", "wavelengths_of"]

FIELD = "x.wavelengths"  # (samples, channels), in nanometres, beside the cubes

_Waves = npt.NDArray[np.float32]


def wavelengths_of(model: Module, data: DataModule) -> list[float] | None:
    """The wavelengths of a model's training cubes, if it has nodes of :mod:`hotloop.stats`.

    Parameters
    ----------
    model : Module
    data : DataModule

    Returns
    -------
    list of float or None
        None: there are no such nodes, or nothing says the wavelengths.

    Raises
    ------
    DataError
        If cubes differ in them, or are others than those of a BandpassByWavelength.
    """
    modules = list(model.named_modules())
    if not any(isinstance(module, PixelNode) for _, module in modules):
        return None
    found: _Waves | None = None
    for name in ("train", "val"):
        split = data.split(name)
        field = next((f for f in split.fields if f.name == FIELD), None) if split else None
        if split is None or field is None:
            continue
        rows = np.arange(len(field.array)) if split.rows is None else split.rows
        waves = np.asarray(field.array[rows], np.float32)
        if found is None and len(waves):
            found = waves[0]
            for path, module in modules:
                if isinstance(module, BandpassByWavelength):
                    own = module.wavelengths.astype(np.float32)
                    _compare(f"{path}: BandpassByWavelength has", own, found[None], "the cubes")
        if found is not None:
            label = f"{field.label}: the first cube has"
            _compare(label, found, waves, f"row {{}} of {name}", rows)
    return None if found is None else found.tolist()


def check_wavelengths(what: str, fitted: list[float], given: Any) -> None:
    """Refuses cubes of other wavelengths than those that a model was fitted to.

    Parameters
    ----------
    what : str
        Who asks, for messages.
    fitted : list of float
    given : array (samples, channels)

    Raises
    ------
    DataError
    """
    waves = np.asarray(given, np.float32)
    if waves.ndim != 2:
        raise DataError(
            f"{what}: wavelengths must be (cubes, channels), a row for each cube, got shape "
            f"{waves.shape}; write np.tile(wavelengths, (len(cubes), 1))"
        )
    _compare(f"{what}: the model was fitted to", np.array(fitted, np.float32), waves, "row {}")


def _compare(begin: str, wanted: _Waves, given: _Waves, where: str, rows: Any = None) -> None:
    """Refuses the first row of ``given`` that is not as ``wanted``.

    ``where`` says in which, by its number in ``rows``.
    """
    is_alike = wanted.shape == given.shape[1:]
    off = ~np.isclose(given, wanted, rtol=1e-6, atol=0) if is_alike else np.ones(given.shape, bool)
    if not off.any():
        return
    row = int(np.argmax(off.any(1)))
    one, differs = given[row], ""
    if is_alike:
        at = int(np.argmax(off[row]))
        differs = f", at channel {at} {one[at]:g} for {wanted[at]:g} nm"
    raise DataError(
        f"{begin} {_describe(wanted)}, got {_describe(one)} in "
        f"{where.format(row if rows is None else rows[row])}{differs}; resample the cubes to the "
        "same wavelengths"
    )


def _describe(waves: _Waves) -> str:
    return f"{len(waves)} channels of {waves[0]:g} to {waves[-1]:g} nm"
