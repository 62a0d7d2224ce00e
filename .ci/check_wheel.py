"""Holds a built wheel against what the README promises of it.

One file for every Python from 3.11 (cp311-abi3), a manylinux tag no newer than 2.34, one shared
object that exports PyInit__core alone and needs no library beyond the C library, under 5 MB, or
under 25 MB with CUDA kernels. With kernels: a fatbin of every source, each for every architecture
and as PTX for the newest. And it imports and trains on the CPU, here and now.

Usage: python .ci/check_wheel.py WHEEL [cpu | cuda]   (cuda: it must have kernels; cpu: none)
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 5_000_000
MAX_BYTES_CUDA = 25_000_000
MAX_GLIBC = (2, 34)
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
ARCHS = (75, 80, 86, 89, 90, 100, 120)
IMAGES = [*(f"sm_{arch}" for arch in ARCHS), f"compute_{ARCHS[-1]}"]
# A fatbin begins so; kernels/cuda/fatbin.c has the format, and the magic number alone.
FATBIN = bytes.fromhex("50ed55ba01001000")

TRAIN = """
import sys
sys.path.insert(0, {folder!r})
import hotloop as hl
from hotloop import _core, nn
assert hl.__file__.startswith({folder!r}), hl.__file__
assert not any(name.split(".")[0] in ("torch", "nvidia") for name in sys.modules)
x, y = hl.load_digits()
data = hl.DataModule.from_arrays(x, y, batch_size=64)
result = hl.train(nn.Linear(64, 10), data, max_epochs=1, accelerator="cpu", logger=None,
                  enable_progress_bar=False)
assert result.stop_reason == "completed" and result.history["loss"][-1] < 2.3
print(_core.build_info()["cuda"])
"""


def tool(*command: str) -> str:
    """The output of a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_fatbins(content: bytes) -> Iterator[list[str]]:
    """The images of every fatbin in a file: "sm_90" for machine code, "compute_90" for PTX."""
    at = content.find(FATBIN)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", content, at + 6)
        image, end = at + header, at + header + size
        names = []
        while image < end:
            kind, head_bytes, n_bytes = struct.unpack_from("<HxxIQ", content, image)
            (arch,) = struct.unpack_from("<I", content, image + 28)
            names.append(f"{'compute' if kind == 1 else 'sm'}_{arch}")
            image += head_bytes + n_bytes
        yield names
        at = content.find(FATBIN, end)


def find_kernel_faults(fatbins: list[list[str]]) -> list[str]:
    """What is wrong with the kernels of a wheel that has some."""
    faults = []
    n_sources = len(list((ROOT / "kernels" / "cuda").glob("*.cu")))
    if len(fatbins) != n_sources:
        faults.append(f"fatbins: must be one of each of {n_sources} sources, got {len(fatbins)}")
    for number, images in enumerate(fatbins):
        if sorted(images) != sorted(IMAGES):
            faults.append(f"fatbin {number}: must be for {IMAGES}, got {images}")
    return faults


def find_import_faults(wheel: zipfile.ZipFile, fatbins: list[list[str]]) -> list[str]:
    """Unpacks the wheel, imports it, trains; its own reader must say what ours says."""
    with tempfile.TemporaryDirectory() as folder:
        wheel.extractall(folder)
        command = [sys.executable, "-c", TRAIN.format(folder=folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ)
    if done.returncode:
        return [f"import and training: must work, got {done.stderr.strip()[-2000:]}"]
    said = done.stdout.strip().splitlines()[-1]
    if said.partition(": ")[2] != ", ".join(fatbins[0] if fatbins else []):
        return [f"build_info: must name the architectures of the wheel, got {said}"]
    return []


def find_faults(wheel: Path, kind: str) -> list[str]:
    """What is wrong with the wheel, one sentence each."""
    faults = []
    tag = re.search(r"-cp311-abi3-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)
    if tag is None:
        faults.append(f"name: must be cp311-abi3-manylinux_X_Y, got {wheel.name}")
    elif (int(tag[1]), int(tag[2])) > MAX_GLIBC:
        faults.append(f"glibc: must be at most {MAX_GLIBC}, got {tag[1]}.{tag[2]}")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        if libraries != ["hotloop/_core.abi3.so"]:
            return [*faults, f"libraries: must be hotloop/_core.abi3.so, got {libraries}"]
        if "hotloop/py.typed" not in archive.namelist():
            faults.append("py.typed: must be in the wheel, got no such file")
        library = archive.extract(libraries[0], folder)
        fatbins = list(read_fatbins(Path(library).read_bytes()))
        if kind and bool(fatbins) != (kind == "cuda"):
            faults.append(f"kernels: must be a wheel for {kind}, got {len(fatbins)} fatbins")
        if fatbins:
            faults += find_kernel_faults(fatbins)
        limit = MAX_BYTES_CUDA if fatbins else MAX_BYTES
        if (size := wheel.stat().st_size) >= limit:
            faults.append(f"size: must be below {limit} bytes, got {size}")
        exports = {
            line.split()[-1] for line in tool("nm", "-D", "--defined-only", library).splitlines()
        }
        if exports != {"PyInit__core"}:
            faults.append(f"exports: must be PyInit__core alone, got {sorted(exports)}")
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", tool("readelf", "-d", library)))
        if extra := needed - SYSTEM_LIBRARIES - {name for name in needed if name.startswith("ld-")}:
            faults.append(f"libraries needed: must be the C library's, got {sorted(extra)} too")
        faults += find_import_faults(archive, fatbins)
    if not faults:
        kernels = f"{len(fatbins)} fatbins for {', '.join(fatbins[0])}" if fatbins else "no kernels"
        print(f"{wheel.name}: {size} bytes, exports PyInit__core alone, {kernels}, trains")
    return faults


def main() -> int:
    """Prints the faults of the wheel on the command line, or one line that says it is good."""
    wheel, kind = Path(sys.argv[1]), "".join(sys.argv[2:])
    faults = find_faults(wheel, kind)
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
