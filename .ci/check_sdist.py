"""Holds a source distribution against what it is for: it builds where nothing else is.

It has every file of the repository that the package is built from, and nothing of tests, their
data, benchmarks, earlier builds or git. Unpacked, it makes a wheel; in a fresh environment that
wheel imports from there and trains the demo.

Usage: python .ci/check_sdist.py SDIST   (HL_CUDA and the like act as in setup.py)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_BYTES = 2_000_000  # a slip (data, results) would be more
FOLDERS = ("csrc", "kernels", "python", "docs", "examples", "licenses")
# docs/make_ops.py writes a page of the repository's.
SUFFIXES = {"docs": {".md"}}
FILES = {"LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "pyproject.toml", "setup.py"}
MADE = {"PKG-INFO", "setup.cfg"}  # by setuptools, with a folder .egg-info


def list_wanted() -> set[str]:
    """What must be in it, of what git has."""
    tracked = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return FILES | {
        name
        for name in tracked.stdout.splitlines()
        if Path(name).suffix in SUFFIXES.get(Path(name).parts[0], {Path(name).suffix})
    }


def find_content_faults(names: set[str]) -> list[str]:
    """What is missing, and what should not be there."""
    wanted = list_wanted()
    own = {name for name in names if name in MADE or ".egg-info/" in name}
    faults = [f"{name}: must be in the source distribution" for name in sorted(wanted - names)]
    return faults + [f"{name}: must not be in it" for name in sorted(names - own - wanted)]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command; what it said, when it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return done.stdout


def build_and_train(sdist: Path, folder: Path) -> str:
    """The demo's last lines, by a wheel of the unpacked files, in an environment of its own."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", "-w", folder / "wheels", source, cwd=folder)
    (wheel,) = (folder / "wheels").glob("*.whl")
    run(*pip, "install", wheel, cwd=folder)
    where = run(python, "-c", "import hotloop; print(hotloop.__file__)", cwd=folder).strip()
    if not where.startswith(str(folder / "venv")):
        raise RuntimeError(f"import: must find the wheel's package, got {where}")
    return run(folder / "venv" / "bin" / "hotloop", "demo", cwd=folder)


def main() -> int:
    """Prints the faults of the file on the command line, or one line that says it is good."""
    sdist = Path(sys.argv[1]).resolve()
    with tarfile.open(sdist) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    faults = find_content_faults(set(files))
    if (size := sdist.stat().st_size) >= MAX_BYTES:
        faults.append(f"size: must be below {MAX_BYTES} bytes, got {size}")
    if not faults:
        with tempfile.TemporaryDirectory() as folder:
            try:
                shown = build_and_train(sdist, Path(folder).resolve())
            except RuntimeError as error:
                faults.append(str(error))
    for fault in faults:
        print(f"{sdist.name}: {fault}", file=sys.stderr)
    if not faults:
        print(f"{sdist.name}: {len(files)} files, {size} bytes; its wheel trains: {shown[-200:]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
