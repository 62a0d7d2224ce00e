"""Builds hotloop._core: a small build system for one shared object, inside setuptools.

The idea: every output (object or library) has a name made from what is asked for, the SHA-256 of
compiler, flags and source path, and beside it a record of what it was made from, the SHA-256 of
the content of every file that was read (the compiler's own list: source, headers of the project,
of Python, NumPy and the C library). An output is used again exactly when both agree. So a header,
a flag, another compiler or another NumPy rebuilds what depends on it and nothing else, and the
wheel, the editable install, sanitizer and coverage builds share build/objects without ever
mixing.

Rejected: time stamps (wrong after a checkout, a copy or a clock step), setuptools' own compile
step (serial, knows no headers), CMake or Meson (a second description of the project, and one
more thing to install before `pip install .` works).

Adding a file: put it in a folder of core_units(); nothing has to be listed. Files of kernels/cpu
are compiled once per instruction set unless they stand in CPU_ONCE.

Environment: CC CPPFLAGS CFLAGS LDFLAGS as everywhere;
HL_CUDA=auto|0|1      with nvcc where it works | never | or fail
HL_SANITIZE=LIST      address,undefined or thread; assertions on
HL_COVERAGE=1         gcov instrumentation; assertions on
HL_WERROR=1           warnings are errors
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError, SetupError

ROOT = Path(__file__).resolve().parent
OBJECTS = Path("build/objects")

# Each flag leaves IEEE results alone: contraction is off so that a*b+c rounds twice everywhere
# (kernels ask for fma by name); errno and trap bookkeeping, which nobody reads, is given up so
# that sqrt is one instruction and comparisons vectorise.
BASE_FLAGS = [
    *("-std=gnu11", "-fPIC", "-pthread", "-fvisibility=hidden", "-Icsrc", "-I."),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes"),
]
RELEASE_FLAGS = ["-O3", "-DNDEBUG"]
SANITIZE_FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
COVERAGE_FLAGS = ["-O1", "-g", "--coverage", "-fprofile-update=atomic"]
SANITIZERS = {"address", "undefined", "thread"}

# Python.h and NumPy are visible to python/src alone.
EXTENSION_DEFINES = [
    "-DPy_LIMITED_API=0x030B0000",
    "-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION",
    "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION",
]

# The name of a set is a token that kernels paste into their symbols; portable has no -m flags.
INSTRUCTION_SETS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx2", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
    ],
}
# Files of kernels/cpu that choose between the sets and so exist once.
CPU_ONCE = {"device.c"}


class Unit(NamedTuple):
    """One translation unit: a source, relative to the root, and the flags that are its own."""

    source: Path
    flags: tuple[str, ...] = ()
    tag: str = ""


def say(message: str) -> None:
    """One line for the person who builds; pip shows it with -v."""
    print(f"hotloop: {message}", file=sys.stderr, flush=True)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a tool in the root and hands back its output whatever it returned."""
    return subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


# ---------------------------------------------------------------------------- what was asked for


def find_nvcc() -> tuple[str | None, str]:
    """The nvcc that runs, or None, and why: NVCC, then CUDA_HOME and CUDA_PATH, then PATH."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [os.environ.get("NVCC"), *(f"{home}/bin/nvcc" for home in homes if home), "nvcc"]
    for candidate in filter(None, candidates):
        path = shutil.which(candidate)
        if path is None:
            continue
        try:
            version = run([path, "--version"])
        except OSError as error:
            return None, f"{path} cannot be started ({error.strerror})"
        if version.returncode != 0:
            return None, f"{path} --version failed with status {version.returncode}"
        return path, "found"
    return None, "nvcc was not found in NVCC, CUDA_HOME, CUDA_PATH or PATH"


def choose_cuda(mode: str, sources: list[Path]) -> tuple[str | None, str]:
    """The nvcc to build `sources` with, or None for a CPU-only build, and the line that says so."""
    if mode not in ("auto", "0", "1"):
        raise SetupError(f"HL_CUDA: must be auto, 0 or 1, got {mode!r}")
    if mode == "0":
        return None, "HL_CUDA=0: CPU-only"
    if mode == "auto" and not sources:
        return None, "no CUDA sources in this version: CPU-only"
    nvcc, reason = find_nvcc()
    if mode == "1" and nvcc is None:
        raise SetupError(
            f"HL_CUDA=1: {reason}; install the CUDA toolkit (12.8 or newer), put its bin folder "
            "on PATH or set CUDA_HOME, or build CPU-only with HL_CUDA=0"
        )
    if not sources:
        raise SetupError("HL_CUDA=1: no CUDA sources in this version; build with HL_CUDA=auto")
    return nvcc, f"CUDA by {nvcc}" if nvcc else f"{reason}: CPU-only"


def choose_flags(env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Flags for every compilation and for the link, from the HL_* variables."""
    sanitize = [name for name in env.get("HL_SANITIZE", "").split(",") if name]
    if unknown := sorted(set(sanitize) - SANITIZERS):
        raise SetupError(f"HL_SANITIZE: must be of {sorted(SANITIZERS)}, got {unknown}")
    if "thread" in sanitize and "address" in sanitize:
        raise SetupError("HL_SANITIZE: thread and address exclude each other, got both")
    compile_flags, link_flags = list(BASE_FLAGS), ["-shared", "-pthread"]
    if sanitize:
        option = "-fsanitize=" + ",".join(sanitize)
        compile_flags += [*SANITIZE_FLAGS, option]
        link_flags += [option]
    if env.get("HL_COVERAGE", "0") != "0":
        compile_flags += COVERAGE_FLAGS
        link_flags += ["--coverage"]
    if compile_flags == BASE_FLAGS:
        compile_flags += RELEASE_FLAGS
    # Instrumented code draws false "may be used uninitialized" warnings from gcc.
    if env.get("HL_WERROR", "0") != "0" and not sanitize:
        compile_flags += ["-Werror"]
    compile_flags += shlex.split(env.get("CPPFLAGS", "")) + shlex.split(env.get("CFLAGS", ""))
    return compile_flags, link_flags + shlex.split(env.get("LDFLAGS", ""))


def include_flags() -> list[str]:
    """Where Python's and NumPy's headers are, as system headers: their warnings are not ours."""
    import numpy

    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").exists():
        raise SetupError(
            f"Python.h: must be in {python}, found nothing; install this Python's development "
            "headers (Debian and Ubuntu: python3-dev, Fedora: python3-devel)"
        )
    return ["-isystem", str(python), "-isystem", numpy.get_include()]


def find(folder: str, pattern: str = "**/*.c") -> list[Path]:
    """Sources below a folder, relative to the root, in an order that is the same everywhere."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).glob(pattern))


def instruction_sets(machine: str) -> dict[str, list[str]]:
    """The sets kernels/cpu is compiled for on a target, each with all its flags."""
    sets = INSTRUCTION_SETS if machine.startswith("x86_64") else {"portable": []}
    return {name: [f"-DHL_ISA={name}", *flags] for name, flags in sets.items()}


def core_units(machine: str) -> list[Unit]:
    """The core and its CPU kernels for a target such as x86_64-linux-gnu."""
    sets = instruction_sets(machine)
    units = [Unit(path) for folder in ("csrc", "kernels/ref") for path in find(folder)]
    for path in find("kernels/cpu"):
        if path.name in CPU_ONCE:
            units.append(Unit(path))
            continue
        for name, flags in sets.items():
            units.append(Unit(path, tuple(flags), f"-{name}"))
    return units


def extension_units() -> list[Unit]:
    """What makes a Python module of the core."""
    units = [Unit(path, (*EXTENSION_DEFINES, *include_flags())) for path in find("python/src")]
    if not units:
        raise SetupError("python/src: must hold the extension's C sources, found none")
    return units


# ---------------------------------------------------------------------------- outputs and records


@functools.cache
def content_digest(path: str) -> str:
    """SHA-256 of a file's content; of a missing one, a word that no digest equals."""
    try:
        return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
    except OSError:
        return "missing"


def key_of(*parts: str) -> str:
    """The part of an output's name that says what was asked for."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def record_of(output: Path) -> Path:
    return ROOT / f"{output}.inputs"


def is_current(output: Path) -> bool:
    """True when `output` was made from exactly what the disk holds now."""
    try:
        inputs = json.loads(record_of(output).read_text())
    except (OSError, ValueError):
        return False
    return (ROOT / output).exists() and all(content_digest(p) == sha for p, sha in inputs.items())


def publish(output: Path, made: Path, inputs: list[str], began_ns: int) -> None:
    """Moves a finished file to its name and writes its record.

    A file that was edited while the compiler ran may have been read in either state: then there
    is no record, and the next build makes the output again.
    """
    record = record_of(output)
    record.unlink(missing_ok=True)
    content_digest_of = {path: content_digest(path) for path in inputs}
    os.replace(made, ROOT / output)
    if all((ROOT / path).stat().st_mtime_ns < began_ns for path in inputs):
        draft = record.with_name(f"{record.name}.{os.getpid()}.{threading.get_ident()}")
        draft.write_text(json.dumps(content_digest_of, indent=0))
        os.replace(draft, record)


def read_depfile(path: Path) -> list[str]:
    """The files a compilation read, from the make rule that -MD wrote."""
    _, _, prerequisites = path.read_text().replace("\\\n", " ").partition(": ")
    return [
        os.path.normpath(name.replace("\0", " "))
        for name in prerequisites.replace("\\ ", "\0").split()
    ]


class Toolchain:
    """A C compiler with the flags of this build; makes objects and links them."""

    def __init__(self, env: dict[str, str]) -> None:
        self.command = shlex.split(env.get("CC") or "gcc")
        found = shutil.which(self.command[0])
        if found is None:
            raise SetupError(
                f"C compiler: {self.command[0]} must be on PATH, found nothing; install gcc "
                "(Debian and Ubuntu: apt install gcc, Fedora: dnf install gcc) or set CC"
            )
        version = run([*self.command, "--version"])
        machine = run([*self.command, "-dumpmachine"])
        if version.returncode or machine.returncode:
            raise SetupError(f"C compiler: {found} must run, got {version.stdout.strip()!r}")
        self.machine = machine.stdout.strip()
        self.identity = f"{found} {shlex.join(self.command[1:])} {version.stdout}"
        self.compile_flags, self.link_flags = choose_flags(env)

    def object_of(self, unit: Unit) -> Path:
        """Where a unit's object stands: readable first, then the key."""
        key = key_of(self.identity, *self.compile_flags, *unit.flags, str(unit.source))
        folder = OBJECTS / unit.source.parent
        return folder / f"{unit.source.stem}{unit.tag}-{key}.o"

    def compile_command(self, unit: Unit, output: Path) -> list[str]:
        flags = [*self.compile_flags, *unit.flags]
        return [*self.command, *flags, "-c", str(unit.source), "-o", str(output)]

    def compile(self, unit: Unit) -> None:
        """Makes one object; raises CompileError with the compiler's words."""
        output = self.object_of(unit)
        (ROOT / output).parent.mkdir(parents=True, exist_ok=True)
        draft = ROOT / f"{output}.{os.getpid()}"
        depfile = Path(f"{draft}.d")
        began_ns = time.time_ns()
        try:
            # gcov finds its notes by the name given here, so coverage builds write it directly.
            target = output if "--coverage" in self.compile_flags else draft
            command = self.compile_command(unit, target)
            result = run([*command, "-MD", "-MF", str(depfile)])
            if result.stdout:
                sys.stderr.write(result.stdout)
            if result.returncode:
                raise CompileError(f"{unit.source}{unit.tag}: failed: {shlex.join(command)}")
            publish(output, ROOT / target, read_depfile(depfile), began_ns)
        finally:
            draft.unlink(missing_ok=True)
            depfile.unlink(missing_ok=True)

    def link(self, objects: list[Path]) -> Path:
        """The shared library of these objects, linked only when one of them changed."""
        inputs = sorted(str(path) for path in objects)
        output = OBJECTS / f"_core-{key_of(self.identity, *self.link_flags, *inputs)}.so"
        if is_current(output):
            return output
        draft = ROOT / f"{output}.{os.getpid()}"
        began_ns = time.time_ns()
        try:
            result = run([*self.command, *self.link_flags, *inputs, "-lm", "-o", str(draft)])
            if result.returncode:
                raise LinkError(f"_core: link failed:\n{result.stdout}")
            publish(output, draft, inputs, began_ns)
        finally:
            draft.unlink(missing_ok=True)
        return output

    def compile_stale(self, units: list[Unit], n_jobs: int) -> list[Path]:
        """Compiles what is stale on n_jobs threads; returns the objects of all."""
        began = time.monotonic()
        stale = [unit for unit in units if not is_current(self.object_of(unit))]
        with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
            jobs = [pool.submit(self.compile, unit) for unit in stale]
            try:
                for job in concurrent.futures.as_completed(jobs):
                    job.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        seconds = time.monotonic() - began
        say(f"compiled {len(stale)} of {len(units)} objects in {seconds:.1f} s")
        return [self.object_of(unit) for unit in units]


class BuildCore(build_ext):
    """setuptools' build_ext with the compilation above in place of its own."""

    def build_extension(self, ext: Extension) -> None:
        cuda_sources = find("kernels/cuda", "**/*.cu")
        _, line = choose_cuda(os.environ.get("HL_CUDA", "auto"), cuda_sources)
        say(line)
        toolchain = Toolchain(dict(os.environ))
        units = core_units(toolchain.machine) + extension_units()
        self.write_compile_commands(toolchain, units)
        n_jobs = self.parallel or len(os.sched_getaffinity(0))
        library = toolchain.link(toolchain.compile_stale(units, n_jobs))
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside, then over: a process that has the old library mapped keeps it.
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(ROOT / library, draft)
        draft.chmod(0o755)
        os.replace(draft, target)

    def get_source_files(self) -> list[str]:
        """For the sdist: MANIFEST.in names the sources, headers included."""
        return []

    @staticmethod
    def write_compile_commands(toolchain: Toolchain, units: list[Unit]) -> None:
        """build/compile_commands.json, for clangd and clang-tidy."""
        entries = [
            {
                "directory": str(ROOT),
                "file": str(unit.source),
                "arguments": toolchain.compile_command(unit, toolchain.object_of(unit)),
            }
            for unit in units
        ]
        path = ROOT / "build/compile_commands.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(entries, indent=1))


class CoreArchive(Command):
    """The core without Python as one static archive, for programs in C (tests/c).

    Beside it, in ARCHIVE.flags, the options it was compiled with: gcc @ARCHIVE.flags test.c
    ARCHIVE -lm. ARCHIVE.flags-SET holds what an instruction set adds. An archive that would hold
    the same objects is left alone, so make sees no change.
    """

    description = "build the C core as a static archive"
    user_options: ClassVar = [("output=", None, "the archive to write, such as build/libhotloop.a")]

    def initialize_options(self) -> None:
        self.output = ""

    def finalize_options(self) -> None:
        self.output = self.output or "build/libhotloop.a"

    def run(self) -> None:
        toolchain = Toolchain(dict(os.environ))
        units = core_units(toolchain.machine)
        inputs = [str(o) for o in toolchain.compile_stale(units, len(os.sched_getaffinity(0)))]
        archive = Path(self.output)
        flags = [*toolchain.compile_flags, *(f for f in toolchain.link_flags if f != "-shared")]
        (ROOT / archive).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / f"{archive}.flags").write_text(shlex.join(flags) + "\n")
        for name, own in instruction_sets(toolchain.machine).items():
            (ROOT / f"{archive}.flags-{name}").write_text(shlex.join(own) + "\n")
        recorded = record_of(archive).read_text() if record_of(archive).exists() else "{}"
        if is_current(archive) and set(json.loads(recorded)) == set(inputs):
            return
        draft = ROOT / f"{archive}.{os.getpid()}"
        began_ns = time.time_ns()
        result = run(["ar", "rcs", str(draft), *inputs])
        if result.returncode:
            raise LinkError(f"{archive}: ar failed:\n{result.stdout}")
        publish(archive, draft, inputs, began_ns)


if __name__ == "__main__":
    setup(
        ext_modules=[Extension("hotloop._core", sources=[], py_limited_api=True)],
        cmdclass={"build_ext": BuildCore, "core_archive": CoreArchive},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
