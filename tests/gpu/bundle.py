"""``make gpu-bundle``: what gpu-check needs beside the tree on a machine without a network.

    python tests/gpu/bundle.py [--python 3.12] [--machine x86_64]

build/gpu-bundle gets the wheels of the packages that building and testing take (most machines with
PyTorch have them already; check.py takes what is missing), the data sets of $HOTLOOP_DATA, and
bundle.json: commit, date, and the size and SHA-256 of every file. No headers of NVIDIA's: the
backend is compiled without any, and nvcc brings its own. The whole is at most 64 MiB.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "build" / "gpu-bundle"
MAX_BYTES = 64 * 2**20
# Packages and what they are imported as: hotloop's own, the build's and the tests', all of them.
PACKAGES = {
    "setuptools": "setuptools",
    "numpy": "numpy",
    "safetensors": "safetensors",
    "tomli-w": "tomli_w",
    "tqdm": "tqdm",
    "pytest": "pytest",
    "pluggy": "pluggy",
    "iniconfig": "iniconfig",
    "packaging": "packaging",
    "pygments": "pygments",
    "hypothesis": "hypothesis",
    "sortedcontainers": "sortedcontainers",
}


def fetch_wheels(python: str, machine: str) -> None:
    """Wheels for that Python on Linux, by pip."""
    tags = [f"manylinux_2_{n}_{machine}" for n in (28, 27, 17)] + [f"manylinux2014_{machine}"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    where = BUNDLE / "wheels"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
    chosen = ["--no-deps", "--only-binary=:all:", "--python-version", python]
    subprocess.run([*command, *chosen, *platforms, "-d", str(where), *PACKAGES], check=True)


def copy_data() -> None:
    """The files of $HOTLOOP_DATA, where it is set."""
    name = os.environ.get("HOTLOOP_DATA")
    if not name:
        return
    folder = Path(name)
    for source in (path for path in folder.rglob("*") if path.is_file()):
        target = BUNDLE / "data" / source.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def describe() -> dict[str, object]:
    """Commit, date and files."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {
        str(path.relative_to(BUNDLE)): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(BUNDLE.rglob("*"))
        if path.is_file()
    }
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"commit": commit.strip(), "date": date, "files": files}


def main() -> int:
    """Makes the folder anew; 1 when it is too large."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    parser.add_argument("--machine", default="x86_64")
    options = parser.parse_args()
    shutil.rmtree(BUNDLE, ignore_errors=True)
    BUNDLE.mkdir(parents=True)
    fetch_wheels(options.python, options.machine)
    copy_data()
    (BUNDLE / "bundle.json").write_text(json.dumps(describe(), indent=1) + "\n")
    files = [path for path in BUNDLE.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    where = BUNDLE.relative_to(ROOT)
    print(f"{where}: {len(files)} files, {size / 2**20:.1f} MiB of at most {MAX_BYTES >> 20}")
    return 0 if size <= MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
