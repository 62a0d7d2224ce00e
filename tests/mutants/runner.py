"""Makes each mutant in a copy of the tree, builds what changed and runs the tests that must fail.

The idea: a copy of the tree, with the objects of build/, is built once, and the tests of all
mutants must pass in it: else a failure would say nothing. Each mutant then gets a copy of that
copy, so that no mutant sees another's change, object or file, and the working tree is never
touched. Several run side by side.

A mutant is
    killed   if its tests fail;
    lived    if they pass: a test is missing;
    broken   if it does not compile, is no Python, or its tests cannot be collected: it says
             nothing then, and is to be mended;
    hangs    if its tests do not end in time and the table does not say that they may.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mutants.mutant import Check, Mutant

__all__ = ["ROOT", "Outcome", "find_faults", "run_mutants"]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300
_BUILD_SECONDS = 1800
_SHOWN_LINES = 15
_FAILED_TESTS = 1  # pytest's status; others mean that it could not run them
# What is reused of build/, where it is there: of the module, tests/c and tests/cuda.
_BUILT = ("build/objects", "build/c-tests/release", "build/cuda-tests/release")
_BUILT_FOR = {"python": _BUILT[0], "c": _BUILT[1], "header": _BUILT[1]}


class Outcome(NamedTuple):
    """What became of a mutant, and the end of what its tests said."""

    mutant: Mutant
    what: str
    seconds: float
    output: str


def find_faults(mutants: Iterable[Mutant]) -> list[str]:
    """What is wrong with the table: names that are there twice, texts that are not there once."""
    faults, seen = [], set()
    for mutant in mutants:
        if mutant.name in seen:
            faults.append(f"{mutant.name}: two mutants have this name")
        seen.add(mutant.name)
        path = ROOT / mutant.file
        n = path.read_text().count(mutant.text) if path.is_file() else 0
        if n != 1:
            faults.append(
                f"{mutant.name}: its text must stand once in {mutant.file}, found {n} times: "
                f"{mutant.text!r}"
            )
        if mutant.text == mutant.change:
            faults.append(f"{mutant.name}: changes nothing")
    return faults


# ---------------------------------------------------------------------------- commands


def _environment(tree: Path) -> dict[str, str]:
    """No CUDA kernels, no warnings as errors; the copy's hotloop before an installed one."""
    return {
        **os.environ,
        "HL_CUDA": "0",
        "HL_WERROR": "0",
        "PYTHONPATH": str(tree / "python"),
        "HOTLOOP_PROOF": "",
    }


def _make(folder: str, *words: str) -> list[str]:
    return ["make", "--no-print-directory", "-C", folder, f"PYTHON={sys.executable}", *words]


def _commands(check: Check, tree: Path, *, builds_module: bool) -> tuple[list[str], list[str]]:
    """What builds the tests, [] for nothing, and what runs them."""
    names = f"TESTS={' '.join(check.names)}"
    jobs = f"-j{os.cpu_count()}"
    if check.kind == "python":
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        test = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *check.names]
        return build if builds_module else [], test
    if check.kind in ("c", "header"):
        built, words = tree / "build/c-tests/release", [names, "SETS=one"]
        if check.kind == "c":
            return _make("tests/c", jobs, "all", *words), _make("tests/c", "run", *words)
        as_it_is = ["-o", str(built / "libhotloop.a")]
        return _make("tests/c", jobs, "all", *words, *as_it_is), [str(built / check.names[0])]
    return _make("tests/cuda", jobs, "all", names), _make("tests/cuda", "run", names)


class _Processes:
    """Commands that run, so that all of them can be ended with what they started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def run(self, command: list[str], tree: Path, seconds: float) -> tuple[int | None, str]:
        """Status, None where it did not end in time, and output."""
        with self._lock:
            if self._is_over:
                return None, ""
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=_environment(tree),
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            self._kill(process)
            return None, process.communicate()[0]
        finally:
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        """Ends what runs; no command starts any more."""
        with self._lock:
            self._is_over = True
            for process in self._running:
                self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


# ---------------------------------------------------------------------------- trees


def _copy_sources(tree: Path) -> None:
    """What git knows or would add, and what was built of it, with their times."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for name in _BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True)
    _rename_objects(tree, ROOT)


def _copy_base(base: Path, tree: Path, mutant: Mutant) -> None:
    """A copy for a mutant, with what is built again for its tests and not what others need."""
    kept = "" if mutant.file.endswith(".py") else _BUILT_FOR.get(mutant.check.kind, _BUILT[2])
    left_out = {base / name for name in _BUILT if name != kept}

    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) / name in left_out]

    shutil.copytree(base, tree, symlinks=True, ignore=leave_out)
    _rename_objects(tree, base)


def _rename_objects(tree: Path, source: Path) -> None:
    """Lists of headers name objects by their absolute paths: those of the copy from now on."""
    for name in _BUILT:
        for path in (tree / name).rglob("*.d"):
            text = path.read_text()
            if f"{source}/" in text:
                path.write_text(text.replace(f"{source}/", f"{tree}/"))


def _grouped(mutants: list[Mutant]) -> Iterator[Check]:
    """All checks of a kind as one; the core is there before a program is compiled without it."""
    kinds: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        kind = "c" if mutant.check.kind == "header" else mutant.check.kind
        kinds.setdefault(kind, {}).update(dict.fromkeys(mutant.check.names))
    for kind, names in kinds.items():
        yield Check(kind, tuple(names))


def _prepare(tree: Path, mutants: list[Mutant], processes: _Processes) -> None:
    """The tree without a change, built; its tests must pass."""
    _copy_sources(tree)
    for check in _grouped(mutants):
        for command in _commands(check, tree, builds_module=True):
            if "pytest" in command:
                command += ["-n", str(os.cpu_count() or 1)]  # thousands, not a few
            status, output = processes.run(command, tree, _BUILD_SECONDS)
            if status != 0:
                raise SystemExit(
                    f"mutants: without any change this must succeed: {' '.join(command)}\n{output}"
                )


# ---------------------------------------------------------------------------- one mutant


def _is_python(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _change(mutant: Mutant, tree: Path) -> bool:
    """Makes the change; whether the file may still be Python, if it is that."""
    path = tree / mutant.file
    text = path.read_text().replace(mutant.text, mutant.change)
    path.write_text(text)
    return path.suffix != ".py" or _is_python(text)


def _try_mutant(mutant: Mutant, tree: Path, processes: _Processes) -> tuple[str, str]:
    if not _change(mutant, tree):
        return "broken", "it is no Python any more"
    is_built = not mutant.file.endswith(".py")
    build, test = _commands(mutant.check, tree, builds_module=is_built)
    if build and is_built:
        status, output = processes.run(build, tree, _BUILD_SECONDS)
        if status != 0:
            return "broken", output
    status, output = processes.run(test, tree, LIMIT_SECONDS)
    if status is None:
        return "killed" if mutant.hangs else "hangs", output
    if status == 0:
        return "lived", output
    if mutant.check.kind == "python" and status != _FAILED_TESTS and status > 0:
        return "broken", output
    return "killed", output


def run_mutants(mutants: list[Mutant], jobs: int) -> Iterator[Outcome]:
    """Runs mutants and yields each as it is known.

    Parameters
    ----------
    mutants : list of Mutant
        Without faults (`find_faults`).
    jobs : int
        Mutants side by side.
    """
    processes = _Processes()
    with (
        tempfile.TemporaryDirectory(prefix="hotloop-mutants-") as folder,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        base = Path(folder) / "base"
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            free.put(Path(folder) / str(number))

        def work(mutant: Mutant) -> Outcome:
            tree, began = free.get(), time.monotonic()
            try:
                _copy_base(base, tree, mutant)
                what, output = _try_mutant(mutant, tree, processes)
                shown = "\n".join(output.splitlines()[-_SHOWN_LINES:])
                return Outcome(mutant, what, time.monotonic() - began, shown)
            finally:
                shutil.rmtree(tree, ignore_errors=True)
                free.put(tree)

        try:
            _prepare(base, mutants, processes)
            futures = [pool.submit(work, mutant) for mutant in mutants]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
