"""``devices``: what a run could use on this machine, and why not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

__all__ = ["DeviceInfo", "Devices", "LibraryInfo", "devices"]


@dataclass(frozen=True)
class DeviceInfo:
    """A device as :func:`devices` found it.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
    index : int
        Its number among its kind: ``TrainingConfig(accelerator="gpu", devices=[index])``.
    name, architecture : str
        Such as "NVIDIA H200" and "sm_90".
    memory_bytes, free_bytes : int
        0 where the system does not say.
    why_not : str
        Why it cannot be used; "" when it can.
    """

    kind: str
    index: int
    name: str
    architecture: str
    memory_bytes: int
    free_bytes: int
    why_not: str

    @property
    def usable(self) -> bool:
        """Whether a run can use it."""
        return not self.why_not


@dataclass(frozen=True)
class LibraryInfo:
    """A library of NVIDIA's as :func:`devices` found it; ``why_not`` is "" when it was found."""

    name: str
    version: str
    path: str
    why_not: str


class Devices(list[DeviceInfo]):
    """The devices, the CPU first; print it.

    Attributes
    ----------
    libraries : list of LibraryInfo
        The driver first.
    why_no_gpu : str
        Why there is no GPU; "" when there is one.
    """

    def __init__(
        self, found: list[DeviceInfo], libraries: list[LibraryInfo], why_no_gpu: str
    ) -> None:
        super().__init__(found)
        self.libraries = libraries
        self.why_no_gpu = why_no_gpu

    def __str__(self) -> str:
        return "\n".join(f"{name:<12}  {text}" for name, text in self.rows())

    __repr__ = __str__

    def rows(self) -> list[tuple[str, str]]:
        """What is printed: a name and a text a line."""
        lines = [(f"{item.kind}:{item.index}", _describe(item)) for item in self]
        if self.why_no_gpu:
            lines.append(("gpu", f"none: {self.why_no_gpu}"))
        for library in self.libraries:
            where = f"{library.version or 'of unknown version'}, {library.path}"
            lines.append(
                (library.name, f"not found: {library.why_not}" if library.why_not else where)
            )
        return lines


def _describe(item: DeviceInfo) -> str:
    from hotloop.base.messages import format_bytes

    memory = format_bytes(item.memory_bytes) if item.memory_bytes else "unknown memory"
    if item.free_bytes:
        memory += f" ({format_bytes(item.free_bytes)} free)"
    text = f"{item.name}, {item.architecture}, {memory}"
    return f"{text}: not usable: {item.why_not}" if item.why_not else text


def _find_cpu() -> DeviceInfo:
    from hotloop import _core

    facts = _core.cpu_info()
    names = os.sysconf_names
    if "SC_PHYS_PAGES" in names and "SC_AVPHYS_PAGES" in names:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    else:
        total = free = 0
    return DeviceInfo("cpu", 0, facts["name"], facts["isa"][0], total, free, "")


def devices() -> Devices:
    """Looks for devices and NVIDIA's libraries; each GPU is opened, so it may take a second.

    Returns
    -------
    Devices
        A list with the CPU first. Nothing raises: what cannot be used has its reason.

    Examples
    --------
    >>> hl.devices()[0].kind
    'cpu'
    """
    from hotloop import _core
    from hotloop.errors import HotloopError
    from hotloop.training.plans.accelerator import library_roots, open_gpu

    found: dict[str, Any] = _core.survey("cuda", library_roots())
    gpus: list[DeviceInfo] = []
    kernels = None  # why this version has not all of them: the same for every GPU
    for index, facts in enumerate(found["devices"]):
        why_not = facts["why_not"] or ""
        if not why_not and kernels is None:
            try:
                open_gpu(index)
                kernels = ""
            except HotloopError as error:
                kernels = str(error)
        gpus.append(
            DeviceInfo(
                "gpu",
                index,
                facts["name"],
                facts["architecture"],
                facts["total_bytes"],
                facts["free_bytes"],
                why_not or kernels or "",
            )
        )
    libraries = [
        LibraryInfo(*(library[key] or "" for key in ("name", "version", "path", "why_not")))
        for library in found["libraries"]
    ]
    return Devices([_find_cpu(), *gpus], libraries, found["why_none"] or "")
