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
are compiled once per instruction set unless they stand in CPU_ONCE. The host side of kernels/cuda
is plain C and always there; its .cu files become fatbins, one per file, which build.c beside them
embeds one after the other.

Environment: CC CPPFLAGS CFLAGS LDFLAGS as everywhere;
HL_CUDA=auto|0|1      with nvcc where it works | never | or fail
HL_CUDA_ARCHS=75;90   GPU architectures, or all; unset: those of this machine's GPUs, else 75
HL_SANITIZE=LIST      address,undefined or thread; assertions on
HL_COVERAGE=1         gcov instrumentation; assertions on
HL_TURBOJPEG=FILE     libturbojpeg.a, which goes into the extension; unset: the system's library is
                      looked for when the first JPEG is decoded
HL_SETS=avx2          these instruction sets of kernels/cpu alone: quicker, for this machine only
HL_WERROR=1           warnings are errors
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
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
# A report needs lines; more than -g1 has costs a quarter of the compilation.
SANITIZE_FLAGS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
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

# Turing to Blackwell; the newest also as PTX, for what comes after it.
CUDA_ARCHS = (75, 80, 86, 89, 90, 100, 120)
# Contraction is off as it is for C, and for what NVRTC compiles: kernels ask for fma by name. What
# each kernel takes is kept beside its fatbin, for tests/cuda/resources.py.
CUDA_FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-Icsrc", "-I.", "-Xptxas=-v", "-fatbin"]
CUDA_OLDEST = 12080
CUDA_HOST = Path("kernels/cuda/build.c")
TURBOJPEG_TABLE = Path("csrc/data/turbojpeg.c")
# Embed the files that the .def beside each names.
CUDA_EMBEDDING = (Path("kernels/cuda/headers.c"), Path("kernels/cuda/gpus.c"))


class Unit(NamedTuple):
    """One translation unit: a source, relative to the root, and the flags that are its own."""

    source: Path
    flags: tuple[str, ...] = ()
    tag: str = ""
    inputs: tuple[str, ...] = ()  # files that it reads and the compiler does not list


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


def find_archs() -> set[int]:
    """Architectures of the GPUs in this machine, by nvidia-smi; empty where it does not answer."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return set()
    answer = run([path, "--query-gpu=compute_cap", "--format=csv,noheader"])
    if answer.returncode:
        return set()
    return {
        int(major + minor) for major, minor in re.findall(r"^(\d+)\.(\d)$", answer.stdout, re.M)
    }


def choose_archs(wanted: str, known: set[int]) -> list[int]:
    """The architectures to compile for, oldest first: wanted by name, else present.

    Where no GPU says what is present, the oldest one: newer GPUs translate its PTX, and a build on
    a machine without a GPU takes an eighth of the time that all of them take.
    """
    usual = [arch for arch in CUDA_ARCHS if arch in known]
    if wanted == "all":
        return usual
    names = [name for name in re.split(r"[;,\s]+", wanted) if name]
    if not names:
        present = sorted(find_archs() & known)
        return [arch for arch in present if arch >= CUDA_ARCHS[0]] or usual[:1]
    for name in names:
        if not name.isdigit() or int(name) not in known or int(name) < CUDA_ARCHS[0]:
            raise SetupError(
                "HL_CUDA_ARCHS: must be all or numbers such as 75;90 that this nvcc compiles for "
                f"({', '.join(str(arch) for arch in sorted(known))}), got {name!r}"
            )
    return sorted({int(name) for name in names})


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


def find_turbojpeg(env: dict[str, str]) -> tuple[Path, str] | None:
    """The static TurboJPEG that the extension is to hold, and its version; None: none is named."""
    if not env.get("HL_TURBOJPEG"):
        return None
    archive = Path(env["HL_TURBOJPEG"]).resolve()
    if not archive.is_file():
        raise SetupError(f"HL_TURBOJPEG: must be a file such as libturbojpeg.a, got {archive}")
    found = re.search(rb"libjpeg-turbo version (\d+(?:\.\d+)+)", archive.read_bytes())
    if found is None:
        raise SetupError(f"HL_TURBOJPEG: must be an archive of libjpeg-turbo, got {archive}")
    return archive, found[1].decode()


def with_turbojpeg(units: list[Unit], version: str) -> list[Unit]:
    """The units with a table of TurboJPEG that the linker fills."""
    flag = f'-DHL_TURBOJPEG_STATIC="{version}"'
    return [
        unit._replace(flags=(*unit.flags, flag)) if unit.source == TURBOJPEG_TABLE else unit
        for unit in units
    ]


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
    wanted = os.environ.get("HL_SETS", "").split(",") if os.environ.get("HL_SETS") else list(sets)
    if unknown := [name for name in wanted if name not in sets]:
        raise SetupError(f"HL_SETS: must name some of {', '.join(sets)}, got {unknown[0]!r}")
    return {name: [f"-DHL_ISA={name}", *sets[name]] for name in sets if name in wanted}


def embedded_by(source: Path) -> tuple[str, ...]:
    """Files that a source embeds: the compiler does not list them as read."""
    if source not in CUDA_EMBEDDING:
        return ()
    table = (ROOT / source.with_suffix(".def")).read_text()
    return tuple(re.findall(r'^HL_CUDA_\w+\(\w+, "[^"]+", "([^"]+)"\)$', table, re.M))


def core_units(machine: str, cuda: Unit | None = None) -> list[Unit]:
    """The core and its kernels for a target such as x86_64-linux-gnu.

    `cuda` stands for CUDA_HOST in a build that embeds fatbins.
    """
    sets = instruction_sets(machine)
    folders = ("csrc", "kernels/ref", "kernels/cuda")
    units = [Unit(path, inputs=embedded_by(path)) for folder in folders for path in find(folder)]
    if cuda is not None:
        units = [cuda if unit.source == CUDA_HOST else unit for unit in units]
    for path in find("kernels/cpu"):
        if path.name in CPU_ONCE:
            units.append(Unit(path, tuple(f"-DHL_HAS_{name}" for name in sets)))
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


def write_changed(path: Path, text: str) -> None:
    """Writes a file that does not hold this text; one that does keeps its time."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


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


def draft_of(output: Path) -> Path:
    """Where this process makes an output before it gets its name."""
    return output.with_name(f"{output.name}.{os.getpid()}")


def split_resources(words: str) -> tuple[str, str]:
    """What nvcc says of kernels' registers and memory, and what it says besides."""
    kept, said = [], []
    for line in words.splitlines(keepends=True):
        if re.match(r"ptxas info|    \d+ bytes stack frame", line):
            kept.append("" if "Compile time" in line else line)
        else:
            said.append(line)
    return "".join(kept), "".join(said)


def compile_one(
    what: str,
    command: list[str],
    output: Path,
    target: Path,
    inputs: list[str],
    resources: Path | None = None,
) -> None:
    """Runs a compiler that writes `target`, and gives it the output's name and record.

    `resources` is where nvcc's words on them go.
    """
    (ROOT / output).parent.mkdir(parents=True, exist_ok=True)
    draft = ROOT / draft_of(output)
    depfile = Path(f"{draft}.d")
    began_ns = time.time_ns()
    try:
        result = run([*command, "-MD", "-MF", str(depfile)])
        said = result.stdout
        if resources is not None:
            kept, said = split_resources(said)
            (ROOT / resources).write_text(kept)
        if said:
            sys.stderr.write(said)
        if result.returncode:
            raise CompileError(f"{what}: failed: {shlex.join(command)}")
        publish(output, ROOT / target, read_depfile(depfile) + inputs, began_ns)
    finally:
        draft.unlink(missing_ok=True)
        depfile.unlink(missing_ok=True)


def compile_all(jobs: list[Callable[[], None]], n_jobs: int) -> None:
    """Runs compilations on n_jobs threads; the first that fails ends the rest."""
    with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class CudaToolchain:
    """nvcc with the architectures of this build; makes the fatbins that the library embeds."""

    def __init__(self, nvcc: str, env: dict[str, str]) -> None:
        self.nvcc = nvcc
        self.version = run([nvcc, "--version"]).stdout
        release = re.search(r"release (\d+)\.(\d+)", self.version)
        self.toolkit = 1000 * int(release[1]) + 10 * int(release[2]) if release else 0
        if self.toolkit < CUDA_OLDEST:
            got = release[0] if release else self.version.strip()[:80]
            raise CompileError(f"{nvcc}: must be of CUDA 12.8 or newer, got {got!r}")
        known = {int(n) for n in re.findall(r"compute_(\d+)", self.ask("--list-gpu-arch"))}
        self.archs = choose_archs(env.get("HL_CUDA_ARCHS", ""), known)
        # Of CUDA 12's drivers those before 550 read LZ4 alone; CUDA 13's read zstd, the smaller.
        mode = "size" if self.toolkit >= 13000 else "speed"
        self.flags = [*CUDA_FLAGS, f"--compress-mode={mode}"]
        if env.get("HL_WERROR", "0") != "0":
            self.flags += ["-Werror=all-warnings"]
        for arch in self.archs:
            self.flags += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
        newest = self.archs[-1]
        self.flags += ["-gencode", f"arch=compute_{newest},code=compute_{newest}"]
        self.flags += shlex.split(env.get("NVCCFLAGS", ""))

    def ask(self, option: str) -> str:
        """What nvcc says when it is asked."""
        result = run([self.nvcc, option])
        if result.returncode:
            raise CompileError(f"{self.nvcc} {option}: failed:\n{result.stdout}")
        return result.stdout

    def fatbin_of(self, source: Path) -> Path:
        """Where a source's fatbin stands: readable first, then the key."""
        key = key_of(self.nvcc, self.version, *self.flags, str(source))
        return OBJECTS / source.parent / f"{source.stem}-{key}.fatbin"

    def resources_of(self, source: Path) -> Path:
        """What ptxas said of a source's kernels, where its fatbin is current."""
        return self.fatbin_of(source).with_suffix(".ptxas")

    def compile(self, source: Path) -> None:
        """Makes one fatbin; raises CompileError with the compiler's words."""
        output = self.fatbin_of(source)
        target = draft_of(output)
        command = [self.nvcc, *self.flags, "-o", str(target), str(source)]
        compile_one(str(source), command, output, target, [], self.resources_of(source))

    def embed(self, sources: list[Path], n_jobs: int) -> Unit:
        """CUDA_HOST with the fatbins of these sources in it, compiled where they are stale."""
        began = time.monotonic()
        stale = [source for source in sources if not is_current(self.fatbin_of(source))]
        compile_all([functools.partial(self.compile, source) for source in stale], n_jobs)
        names = ", ".join(f"sm_{arch}" for arch in self.archs)
        seconds = time.monotonic() - began
        say(f"nvcc made {len(stale)} of {len(sources)} fatbins ({names}) in {seconds:.1f} s")
        parts = [self.fatbin_of(source) for source in sources]
        output = OBJECTS / f"kernels-{key_of(*map(str, parts))}.fatbins"
        if not is_current(output):
            began_ns = time.time_ns()
            texts = [(ROOT / part).read_bytes() for part in parts]
            draft = ROOT / draft_of(output)
            draft.write_bytes(b"".join(text + bytes(-len(text) % 64) for text in texts))
            publish(output, draft, [str(part) for part in parts], began_ns)
        flags = (f'-DHL_CUDA_FATBINS="{output}"', f"-DHL_CUDA_TOOLKIT={self.toolkit}")
        return Unit(CUDA_HOST, flags, "-cuda", (str(output),))


def make_cuda(env: dict[str, str], n_jobs: int) -> Unit | None:
    """What embeds the CUDA kernels, or None for a CPU-only build; says which in one line."""
    mode = env.get("HL_CUDA", "auto")
    sources = find("kernels/cuda", "**/*.cu")
    nvcc, line = choose_cuda(mode, sources)
    say(line)
    if nvcc is None:
        return None
    try:
        return CudaToolchain(nvcc, env).embed(sources, n_jobs)
    except CompileError as error:
        if mode == "1":
            raise
        say(f"{str(error).splitlines()[0]}: CPU-only (HL_CUDA=1 makes it an error)")
        return None


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
        # gcov finds its notes by the name given here, so coverage builds write it directly.
        target = output if "--coverage" in self.compile_flags else draft_of(output)
        command = self.compile_command(unit, target)
        compile_one(f"{unit.source}{unit.tag}", command, output, target, list(unit.inputs))

    def link(self, objects: list[Path], archives: tuple[Path, ...] = ()) -> Path:
        """The shared library of these objects and what they need of the archives, whose symbols
        stay inside; linked only when one of them changed."""
        inputs = [*sorted(str(path) for path in objects), *map(str, archives)]
        output = OBJECTS / f"_core-{key_of(self.identity, *self.link_flags, *inputs)}.so"
        if is_current(output):
            return output
        draft = ROOT / f"{output}.{os.getpid()}"
        began_ns = time.time_ns()
        try:
            flags = [*self.link_flags, *(["-Wl,--exclude-libs,ALL"] if archives else [])]
            result = run([*self.command, *flags, *inputs, "-lm", "-o", str(draft)])
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
        compile_all([functools.partial(self.compile, unit) for unit in stale], n_jobs)
        seconds = time.monotonic() - began
        say(f"compiled {len(stale)} of {len(units)} objects in {seconds:.1f} s")
        return [self.object_of(unit) for unit in units]


def check_python() -> None:
    """Free-threaded Python has no stable ABI that this extension is compiled for, and no GIL."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SetupError(
            f"Python: a build with the GIL is needed, got a free-threaded one ({sys.executable})"
        )


class BuildCore(build_ext):
    """setuptools' build_ext with the compilation above in place of its own."""

    def build_extension(self, ext: Extension) -> None:
        check_python()
        toolchain = Toolchain(dict(os.environ))
        n_jobs = self.parallel or len(os.sched_getaffinity(0))
        cuda = make_cuda(dict(os.environ), n_jobs)
        units = core_units(toolchain.machine, cuda) + extension_units()
        turbojpeg = find_turbojpeg(dict(os.environ))
        archives: tuple[Path, ...] = ()
        if turbojpeg is not None:
            archives = (turbojpeg[0],)
            units = with_turbojpeg(units, turbojpeg[1])
        self.write_compile_commands(toolchain, units)
        library = toolchain.link(toolchain.compile_stale(units, n_jobs), archives)
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
    ARCHIVE -lm. ARCHIVE.flags-SET holds what an instruction set adds. A file that would hold
    the same is left alone, so make sees no change.
    """

    description = "build the C core as a static archive"
    user_options: ClassVar = [("output=", None, "the archive to write, such as build/libhotloop.a")]

    def initialize_options(self) -> None:
        self.output = ""

    def finalize_options(self) -> None:
        self.output = self.output or "build/libhotloop.a"

    def run(self) -> None:
        toolchain = Toolchain(dict(os.environ))
        n_jobs = len(os.sched_getaffinity(0))
        units = core_units(toolchain.machine, make_cuda(dict(os.environ), n_jobs))
        inputs = [str(o) for o in toolchain.compile_stale(units, n_jobs)]
        archive = Path(self.output)
        flags = [*toolchain.compile_flags, *(f for f in toolchain.link_flags if f != "-shared")]
        (ROOT / archive).parent.mkdir(parents=True, exist_ok=True)
        write_changed(ROOT / f"{archive}.flags", shlex.join(flags) + "\n")
        for name, own in instruction_sets(toolchain.machine).items():
            write_changed(ROOT / f"{archive}.flags-{name}", shlex.join(own) + "\n")
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
