"""Every kernel compiles with the oldest compiler that is supported, CUDA 12.8's, without a warning.

    python tests/cuda/check_nvrtc.py FOLDER [--archs 75 80 ...]

FOLDER holds NVIDIA's wheels of CUDA 12.8, unpacked: nvidia-cuda-nvrtc-cu12, and for the headers of
the 16-bit types nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12 (``make cuda-oldest`` fetches
them). No package index has nvcc itself of that release; NVRTC of the same release is the same front
end, optimizer and assembler for device code, and our sources have no other. What it lacks are
the C library's headers: kernels/cuda/rtc.h has the types, and here are more limits. Where nvcc 12.8
is installed, it is asked by
``make -C tests/cuda nvcc NVCC=... ARCHS="75 80 86 89 90 100 120"``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = (12, 8)
ARCHS = (75, 80, 86, 89, 90, 100, 120)

_LIMITS = {
    "INT8_MIN": "(-128)",
    "INT8_MAX": "127",
    "INT16_MIN": "(-32767 - 1)",
    "INT16_MAX": "32767",
    "INT32_MIN": "(-2147483647 - 1)",
    "INT32_MAX": "2147483647",
    "UINT8_MAX": "255",
    "UINT16_MAX": "65535",
    "UINT32_MAX": "4294967295u",
    "UINT64_MAX": "18446744073709551615ull",
}
HEADERS = {
    "stdint.h": (ROOT / "kernels/cuda/rtc.h").read_text()
    + "".join(f"#define {name} {value}\n" for name, value in _LIMITS.items()),
    **dict.fromkeys(("math.h", "stdarg.h", "stdbool.h", "stddef.h", "string.h"), ""),
}


def _strings(values: list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


class Nvrtc:
    """The library of one folder of wheels."""

    def __init__(self, folder: Path) -> None:
        found = sorted(folder.glob("nvidia/cuda_nvrtc/lib/libnvrtc.so.*"))
        if not found:
            raise FileNotFoundError(f"{folder} holds no nvidia/cuda_nvrtc/lib/libnvrtc.so")
        self._library = ctypes.CDLL(str(found[0]))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self._includes = [
            f"-I{path}" for path in sorted(folder.glob("nvidia/cuda_*/include")) if path.is_dir()
        ]

    def compile(self, source: Path, arch: int) -> str:
        """What there is to complain about; "" when nothing."""
        program = ctypes.c_void_p()
        create, names = self._library.nvrtcCreateProgram, list(HEADERS)
        text = (ROOT / source).read_bytes()
        texts = _strings(list(HEADERS.values()))
        name = str(source).encode()
        if create(ctypes.byref(program), text, name, len(names), texts, _strings(names)):
            return "nvrtcCreateProgram failed"
        options = [
            *(f"--gpu-architecture=sm_{arch}", "--std=c++17", f"-I{ROOT}", f"-I{ROOT / 'csrc'}"),
            "-default-device",  # prototypes of host functions stand in shared headers
            *self._includes,
        ]
        status = self._library.nvrtcCompileProgram(program, len(options), _strings(options))
        size = ctypes.c_size_t()
        self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value or 1)
        self._library.nvrtcGetProgramLog(program, log)
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        words = log.value.decode(errors="replace").strip()
        return words or (f"nvrtcCompileProgram: status {status}" if status else "")


def main() -> int:
    """Compiles all, prints what is wrong; the exit status is the number of faults, at most 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--archs", type=int, nargs="+", default=ARCHS)
    options = parser.parse_args()
    nvrtc = Nvrtc(options.folder)
    if nvrtc.version != RELEASE:
        print(f"check_nvrtc: must be of CUDA {RELEASE}, got {nvrtc.version}", file=sys.stderr)
        return 1
    sources = sorted(path.relative_to(ROOT) for path in (ROOT / "kernels/cuda").glob("*.cu"))
    jobs = [(source, arch) for arch in options.archs for source in sources]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        logs = list(pool.map(lambda job: nvrtc.compile(*job), jobs))
    faults = [(source, arch, log) for (source, arch), log in zip(jobs, logs, strict=True) if log]
    for source, arch, log in faults:
        print(f"{source} for sm_{arch}: {log}", file=sys.stderr)
    names = ", ".join(f"sm_{arch}" for arch in options.archs)
    print(f"{len(sources)} sources for {names} by CUDA 12.8's compiler: {len(faults)} with faults")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
