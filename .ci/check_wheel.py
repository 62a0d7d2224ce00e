"""Holds a built wheel against what the README promises of it.

One file for every Python from 3.11 (cp311-abi3), a manylinux tag no newer than 2.34, one shared
object that exports PyInit__core alone and needs no library beyond the C library, under 5 MB, or
under 25 MB with CUDA kernels, without an executable stack or relocations of code. With kernels: a
fatbin of every source, each for every architecture and as PTX for the newest. TurboJPEG is inside,
and the licences are. In an environment of its own, which has what the wheel asks for and nothing
else, neither Pillow nor a TurboJPEG of the system, it decodes JPEG files and trains on the CPU.

Usage: python .ci/check_wheel.py WHEEL [cpu | cuda] [--without-turbojpeg]
(cuda: it must have kernels; cpu: none)
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
import venv
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

# 16 x 16 pixels, the left half of one colour and the right half of another.
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4"
    "UG1RV19iZ2hnPk1xeXBkeFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2Nj"
    "Y2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAQABADAREAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAwX/xAAUEAEA"
    "AAAAAAAAAAAAAAAAAAAA/8QAFwEAAwEAAAAAAAAAAAAAAAAAAQQHBv/EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAMAwEA"
    "AhEDEQA/AJwNIYonwTagmKJ8/9k="
)
COLOURS = (200, 40, 90), (20, 160, 60)

# Says where it was imported from, which architectures it has, and which TurboJPEG.
TRAIN = """
import sys
import hotloop as hl
from hotloop import _core, nn
assert not any(name.split(".")[0] in ("torch", "nvidia") for name in sys.modules)
x, y = hl.load_digits()
data = hl.DataModule.from_arrays(x, y, batch_size=64)
result = hl.train(nn.Linear(64, 10), data, max_epochs=1, accelerator="cpu", logger=None,
                  enable_progress_bar=False)
assert result.stop_reason == "completed" and result.history["loss"][-1] < 2.3
print(hl.__file__)
print(_core.build_info()["cuda"])
print(_core.image_decoder())
"""

DECODE = f"""
import base64, importlib.util, pathlib
import hotloop as hl, numpy as np
from hotloop import _core, nn
assert importlib.util.find_spec("PIL") is None, "Pillow is there, and would decode"
data = base64.b64decode({JPEG!r})
image = _core.decode_image(data).astype(int)
wanted = np.repeat(np.array({COLOURS!r}), 8, 0)[None]
assert image.shape == (16, 16, 3) and abs(image - wanted).max() <= 4, image
for name in ("a", "b"):
    pathlib.Path("images", name).mkdir(parents=True)
    for i in range(4):
        pathlib.Path("images", name, f"{{i}}.jpg").write_bytes(data)
images = hl.DataModule.from_image_folder("images", 16, val=0.25, batch_size=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(768, 2))
assert hl.train(model, images, max_epochs=1, accelerator="cpu", logger=None,
                enable_progress_bar=False).stop_reason == "completed"
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


def run_apart(wheel: Path, *programs: str) -> list[str]:
    """What each program prints where the wheel is installed and what it needs; or why not."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        # Who finds TurboJPEG here, and not inside, finds no file.
        env = {**os.environ, "HOTLOOP_TURBOJPEG_PATH": f"{folder}/none.so"}
        env.pop("PYTHONPATH", None)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "-q", "install", str(wheel))
        printed = []
        for command in (pip, *((python, "-c", program) for program in programs)):
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
            if done.returncode:
                raise RuntimeError(done.stderr.strip()[-2000:])
            printed.append(done.stdout.strip())
    return printed[1:]


def find_use_faults(wheel: Path, fatbins: list[list[str]], turbojpeg: bool) -> list[str]:
    """Installs the wheel, imports it, trains, decodes; its own reader must say what ours says."""
    try:
        said = run_apart(wheel.resolve(), *((TRAIN, DECODE) if turbojpeg else (TRAIN,)))[0]
    except RuntimeError as error:
        return [f"import, training and images: must work, got {error}"]
    home, kernels, decoder = said.splitlines()[-3:]
    faults = []
    if "/site-packages/hotloop/" not in home:
        faults.append(f"import: must find the wheel's package, got {home}")
    if kernels.partition(": ")[2] != ", ".join(fatbins[0] if fatbins else []):
        faults.append(f"build_info: must name the architectures of the wheel, got {kernels}")
    # The path is that of a library that was opened: "" where it is inside.
    is_inside = re.match(r"\{'version': '\d+\.\d+[\d.]*', 'path': '', 'why_not': None\}$", decoder)
    if bool(is_inside) != turbojpeg:
        rule = "must be inside" if turbojpeg else "must not be inside"
        faults.append(f"TurboJPEG: {rule}, got image_decoder {decoder}")
    return faults


def find_licence_faults(wheel: zipfile.ZipFile) -> list[str]:
    """Which licences of the repository the wheel lacks, or has in other words."""
    files = {name: wheel.read(name) for name in wheel.namelist() if "/licenses/" in name}
    wanted = [ROOT / "LICENSE", *sorted((ROOT / "licenses").glob("*.md"))]
    return [
        f"licences: {path.relative_to(ROOT)} must be in .dist-info/licenses as it is, got "
        f"{sorted(files)}"
        for path in wanted
        if not any(
            name.endswith(f".dist-info/licenses/{path.relative_to(ROOT)}")
            and content == path.read_bytes()
            for name, content in files.items()
        )
    ]


def find_layout_faults(library: str) -> list[str]:
    """Memory that would be writable and executable: a loader of a hardened system refuses it."""
    faults = []
    stack = re.search(r"GNU_STACK(?:\s+0x[0-9a-f]+){5}\s+(\S+)", tool("readelf", "-lW", library))
    if stack is None or "E" in stack[1]:
        flags = "none" if stack is None else stack[1]
        faults.append(f"GNU_STACK: must be RW, got {flags}; an object has an executable stack")
    dynamic = tool("readelf", "-dW", library)
    for flag in ("TEXTREL", "STATIC_TLS"):
        if flag in dynamic:
            faults.append(f"{flag}: code must be position-independent (-fPIC), got an object's")
    return faults


def find_faults(wheel: Path, kind: str, turbojpeg: bool) -> list[str]:
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
        faults += find_layout_faults(library)
        faults += find_licence_faults(archive)
    faults += find_use_faults(wheel, fatbins, turbojpeg)
    if not faults:
        kernels = f"{len(fatbins)} fatbins for {', '.join(fatbins[0])}" if fatbins else "no kernels"
        images = "decodes JPEG by the TurboJPEG inside" if turbojpeg else "no TurboJPEG"
        print(
            f"{wheel.name}: {size} bytes, exports PyInit__core alone, {kernels}, trains, {images}"
        )
    return faults


def main() -> int:
    """Prints the faults of the wheel on the command line, or one line that says it is good."""
    without = "--without-turbojpeg"
    wheel, *kinds = (word for word in sys.argv[1:] if word != without)
    faults = find_faults(Path(wheel), "".join(kinds), without not in sys.argv)
    for fault in faults:
        print(f"{Path(wheel).name}: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
