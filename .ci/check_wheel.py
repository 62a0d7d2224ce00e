"""Holds a built wheel against what the README promises of it.

One file for every Python from 3.11 (cp311-abi3), a manylinux tag no newer than 2.34, one shared
object that exports PyInit__core alone and needs no library beyond the C library, under 5 MB, or
under 25 MB with CUDA kernels.

Usage: python .ci/check_wheel.py WHEEL
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MAX_BYTES = 5_000_000
MAX_BYTES_CUDA = 25_000_000
# A fatbin begins so; its reader has the magic number alone.
FATBIN = bytes.fromhex("50ed55ba01001000")
MAX_GLIBC = (2, 34)
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


def tool(*command: str) -> str:
    """The output of a binutils command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def find_faults(wheel: Path) -> list[str]:
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
        limit = MAX_BYTES_CUDA if FATBIN in Path(library).read_bytes() else MAX_BYTES
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
    return faults


def main() -> int:
    """Prints the faults of the wheel on the command line, or one line that says it is good."""
    wheel = Path(sys.argv[1])
    faults = find_faults(wheel)
    for fault in faults:
        print(f"{wheel.name}: {fault}", file=sys.stderr)
    if not faults:
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, exports PyInit__core alone")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
