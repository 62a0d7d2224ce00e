"""Builds libturbojpeg.a for a wheel: position-independent, with the vector code of libjpeg-turbo.

Distributions have the archive too, but compile turbojpeg.c for programs alone: a shared library
cannot hold it. The sources are those of the tarball that is named, else what apt has of them, with
the distribution's patches; CMake is the environment's. x86 needs NASM, which comes from apt where
it is not on PATH. Nothing is installed: all of it lies in FOLDER.

Usage: python .ci/build_turbojpeg.py FOLDER [TARBALL]
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

APT = Path("/etc/apt")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=1", "-DENABLE_SHARED=0",
    "-DENABLE_STATIC=1", "-DWITH_TURBOJPEG=1", "-DREQUIRE_SIMD=1",
    "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",
)  # fmt: skip


class BuildError(Exception):
    """What is missing, or what a tool said, for the person who builds."""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return done.stdout


class Apt:
    """This machine's packages and their sources, with lists of its own in a folder."""

    def __init__(self, folder: Path, needed_for: str) -> None:
        if shutil.which("apt-get") is None:
            raise BuildError(f"apt-get: must be on PATH, found nothing; {needed_for}")
        self._folder, self._needed_for = folder / "apt", needed_for
        places, lists = self._folder / "sources", self._folder / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        places.mkdir(exist_ok=True)
        for path in [APT / "sources.list", *(APT / "sources.list.d").glob("*")]:
            if path.suffix in (".list", ".sources") and path.is_file():
                text = path.read_text()
                text = re.sub(r"^Types:.*$", "Types: deb deb-src", text, flags=re.M)
                text = re.sub(r"^deb(-src)? (.*)$", r"deb \2\ndeb-src \2", text, flags=re.M)
                (places / path.name).write_text(text)
        self._options = [
            "-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={places}",
            "-o", f"Dir::State::Lists={lists}",
        ]  # fmt: skip
        self._ask("update")

    def _ask(self, *words: str) -> None:
        try:
            run("apt-get", *self._options, *words, cwd=self._folder)
        except BuildError as error:
            raise BuildError(f"{error}\n{self._needed_for}") from None

    def source(self, name: str) -> Path:
        """The folder of a package's sources, patched."""
        for old in self._folder.glob(f"{name}-*/"):
            shutil.rmtree(old)
        self._ask("source", name)
        (found,) = self._folder.glob(f"{name}-*/")
        return found

    def program(self, name: str) -> Path:
        """The program of a package, unpacked."""
        self._ask("download", name)
        (package,) = self._folder.glob(f"{name}_*.deb")
        run("dpkg-deb", "-x", package, self._folder / name, cwd=self._folder)
        return self._folder / name / "usr" / "bin" / name


def take_sources(folder: Path, tarball: Path | None) -> Path:
    """The folder of libjpeg-turbo's sources."""
    if tarball is None:
        return Apt(
            folder,
            "the sources of libjpeg-turbo come from apt (install dpkg-dev); else set "
            "TURBOJPEG_SOURCE=TARBALL, HL_TURBOJPEG=libturbojpeg.a (of position-independent code) "
            "or, for a wheel without TurboJPEG, HL_TURBOJPEG=",
        ).source("libjpeg-turbo")
    rule = "TURBOJPEG_SOURCE: must be a tarball of libjpeg-turbo's sources, got"
    try:
        with tarfile.open(tarball) as archive:
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise BuildError(f"{rule} {tarball}: {error}") from error
    # 3.1 has its sources in src.
    found = [*folder.glob("*/turbojpeg.c"), *folder.glob("*/src/turbojpeg.c")]
    if not found:
        raise BuildError(f"{rule} {tarball}, without turbojpeg.c")
    return folder / found[0].relative_to(folder).parts[0]


def find_assembler(folder: Path) -> list[str]:
    """What CMake is told of NASM, which only x86 needs."""
    if platform.machine() not in ("x86_64", "i686"):
        return []
    found = shutil.which("nasm")
    hint = "install NASM (Debian and Ubuntu: apt install nasm, Fedora: dnf install nasm)"
    return [f"-DCMAKE_ASM_NASM_COMPILER={found or Apt(folder, hint).program('nasm')}"]


def build(folder: Path, tarball: Path | None) -> Path:
    """Makes FOLDER/libturbojpeg.a anew."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    source = take_sources(folder, tarball)
    scripts = sysconfig.get_path("scripts")
    cmake = shutil.which("cmake", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        raise BuildError("cmake: must be there, found nothing; install it with: pip install cmake")
    made = folder / "build"
    run(cmake, "-S", source, "-B", made, *OPTIONS, *find_assembler(folder), cwd=folder)
    jobs = str(len(os.sched_getaffinity(0)))
    run(cmake, "--build", made, "--target", "turbojpeg-static", "-j", jobs, cwd=folder)
    draft = folder / "draft.a"
    shutil.copyfile(made / "libturbojpeg.a", draft)
    draft.replace(archive := folder / "libturbojpeg.a")
    return archive


def main() -> int:
    """Builds what the command line says, or says what is missing."""
    folder = Path(sys.argv[1]).resolve()
    tarball = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    try:
        archive = build(folder, tarball)
    except BuildError as error:
        print(f"libturbojpeg.a: {error}", file=sys.stderr)
        return 1
    print(f"{archive}: {archive.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
