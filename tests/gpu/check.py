"""``make gpu-check``: the CUDA backend on this machine's GPU, beside PyTorch, as one JSON file.

    python tests/gpu/check.py [PART] [--results FOLDER] [--emulated]

Parts, the first under three minutes and each other under nine, in this order; without a name all of
them:

first        what a few minutes on a GPU tell most about: a small step under compute-sanitizer, the
             same trainings twice and in every way, bit for bit (step.py), what each kernel takes of
             the GPU (resources.py), products, convolutions and captures against the CPU's
tests        plans for the GPU beside those for its description (described.py); every kernel, op,
             gradient and training test that a GPU can run, CPU against GPU
sanitize     small cases under compute-sanitizer's four tools
bench-small  ratios against PyTorch on the same GPU: models whose time is launches
bench-large  the same: a model whose time is products
bench-resnet, bench-convnext
             the same: models of images, of torchvision and timm, each of which PyTorch compiles for
             minutes
attention    attention alone, forward and backward, beside PyTorch's flash kernels
recurrences  recurrent layers, a step of time, beside PyTorch's by cuDNN

Before each, what is missing of Python's packages comes from the bundle (bundle.py), hotloop is
compiled for the GPU that is there and nothing else, as far as it is not yet, and opens it.

Everything works without a network, with the Python that starts it: that is the one that has
PyTorch. What a part found goes into benchmarks/results/<gpu>.json, beside what other parts found
before; the exit status is 0 when all that ran passed. Ratios below their aims are shown, they do
not fail: no test asserts a time.

--emulated runs the same over the emulated driver of tests/cuda, benchmarks in miniature: it checks
this script, not a GPU. Its file says so and lies in build/gpu-check; no other folder is accepted.

Rejected: a virtual environment for what is missing. One that is made from another does not see that
one's packages, and PyTorch often lies in such a one; a folder on PYTHONPATH does.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gpu.bundle import BUNDLE, PACKAGES  # noqa: E402
from gpu.driver import find_architecture  # noqa: E402
from proof import count  # noqa: E402

from benchmarks.gpu import is_emulated, slug_of  # noqa: E402

PART_SECONDS = 9 * 60 - 15
FIRST_SECONDS = 3 * 60 - 5
EMULATED_SECONDS = 3600  # a GPU of fibers is slower than any
WORK = ROOT / "build" / "gpu-check"
SITE = ROOT / "build" / f"gpu-site-{sys.implementation.cache_tag}"  # of one Python alone
CACHE = WORK / "cache"  # what the first part compiles and measures while it trains
FAKES = ROOT / "build" / "cuda-tests" / "release"
RESULTS = ROOT / "benchmarks" / "results"
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
_FOUND = 86  # compute-sanitizer's exit status when it has something to say
# Of pytest, of the C tests, of compute-sanitizer.
_FAILURE = re.compile(r"(FAILED|ERROR|FAIL) |========= (?!COMPUTE-SANITIZER)")
_LINES_KEPT = 20
_NODES_SHOWN = 10
# Those tests of tests/train/test_gpu.py that a GPU fails first: against the CPU, and every way of
# running a step.
_TELLING = ("test_steps_are_the_cpus", "test_any_way_of_running_gives_the_same_bits")


class CheckError(Exception):
    """A part cannot go on; the text says why."""


@dataclasses.dataclass
class Step:
    """One command of a part: how it ended, and what it is good to know of it."""

    name: str
    command: str
    passed: bool
    seconds: float
    tests: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)
    note: str = ""


class Part:
    """A part while it runs: its steps, its time, and what else goes into the file."""

    def __init__(self, name: str, emulated: bool) -> None:
        self.name = name
        self.emulated = emulated
        self.steps: list[Step] = []
        self.facts: dict[str, Any] = {}
        self._began = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Of the part's time."""
        own = FIRST_SECONDS if self.name == "first" else PART_SECONDS
        return (EMULATED_SECONDS if self.emulated else own) - self.seconds

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def passed(self) -> bool:
        """All steps passed, and there was one."""
        return bool(self.steps) and all(step.passed for step in self.steps)

    def run(
        self, name: str, command: list[str], *, seconds: float | None = None, **env: str
    ) -> tuple[Step, list[str]]:
        """Runs a command to its end or to the end of its time; its output goes on as it comes."""
        limit = max(1.0, min(seconds or self.seconds_left, self.seconds_left))
        print(f"\n==== {self.name}: {name}", flush=True)
        began = time.monotonic()
        lines: list[str] = []
        status = _stream(command, {**environment(self.emulated), **env}, limit, lines)
        failures = [line for line in lines if _FAILURE.match(line)]
        shown = " ".join("python" if part == sys.executable else part for part in command)
        step = Step(
            name,
            shown.replace(str(ROOT) + "/", ""),
            status == 0,
            round(time.monotonic() - began, 1),
            count(lines),
            failures[:_LINES_KEPT],
            "" if status is not None else f"stopped: it was not done after {limit:.0f} s",
        )
        if status and not failures:
            step.failures = [line for line in lines if line.strip()][-3:]
        self.steps.append(step)
        return step, lines

    def note(self, name: str, passed: bool, note: str) -> None:
        """A step without a command."""
        print(f"\n==== {self.name}: {name}: {note}", flush=True)
        self.steps.append(Step(name, "", passed, 0.0, note=note))


def environment(emulated: bool) -> dict[str, str]:
    """What every command gets: this tree, what the bundle brought, the GPU tests switched on."""
    found = dict(os.environ)
    own = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests"), str(SITE)]
    paths = [*own, found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    found["HOTLOOP_TEST_GPU"] = "1"
    if "HOTLOOP_DATA" not in found and (BUNDLE / "data").is_dir():
        found["HOTLOOP_DATA"] = str(BUNDLE / "data")
    if emulated:
        found["HOTLOOP_CUDA_PATH"] = str(FAKES / "libcuda_fake.so")
    return found


def _stream(command: list[str], env: dict[str, str], limit: float, lines: list[str]) -> int | None:
    """The exit status, or None when its time was over; it ends with all that it started."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        alarm = _Alarm(process, limit)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
        status = process.wait()
        return None if alarm.cancel() else status


class _Alarm:
    """Ends a process and its children when its time is over."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._rang = False
        self._process = process
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True
        self._timer.start()

    def _ring(self) -> None:
        self._rang = True
        os.killpg(self._process.pid, signal.SIGKILL)

    def cancel(self) -> bool:
        """Whether it rang."""
        self._timer.cancel()
        return self._rang


# ---------------------------------------------------------------------------- parts


def install_missing(part: Part) -> None:
    """Packages that this Python lacks, out of the bundle's wheels, into a folder of build/."""
    sys.path.append(str(SITE))
    importlib.invalidate_caches()
    missing = [package for package, name in PACKAGES.items() if not importlib.util.find_spec(name)]
    if not missing:
        part.note("packages", True, f"{', '.join(PACKAGES)}: all there")
        return
    wheels = BUNDLE / "wheels"
    if not wheels.is_dir():
        raise CheckError(
            f"this Python has no {', '.join(missing)}: install them, or make gpu-bundle where "
            f"there is a network and bring {BUNDLE.relative_to(ROOT)}"
        )
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    where = ["--find-links", str(wheels), "--target", str(SITE)]
    step, _ = part.run("packages", [*command, *where, *missing])
    if not step.passed:
        raise CheckError(f"the bundle's wheels do not suit this Python ({', '.join(missing)})")


def compile_all(part: Part) -> None:
    """hotloop for the GPU that is there; only what changed is compiled again."""
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    step, _ = part.run("compile", command, **choose_archs(part.emulated), HL_CUDA="1")
    if not step.passed:
        raise CheckError("hotloop could not be built; what was compiled of it is kept")
    if part.emulated:
        fake = ["make", "-s", "-C", "tests/cuda", "fake"]
        step, _ = part.run("the emulated driver", [*fake, f"PYTHON={sys.executable}"])
        if not step.passed:
            raise CheckError("the emulated driver could not be built")


def choose_archs(emulated: bool) -> dict[str, str]:
    """For setup.py, which asks nvidia-smi: what to compile for where that does not say."""
    if emulated or "HL_CUDA_ARCHS" in os.environ or shutil.which("nvidia-smi"):
        return {}
    arch = find_architecture()
    return {"HL_CUDA_ARCHS": str(arch)} if arch else {}


def describe(part: Part) -> dict[str, Any]:
    """Machine, versions and GPU, asked of the library as it was built."""
    _, lines = part.run("describe", [sys.executable, "-m", "gpu.describe"], seconds=60.0)
    found = next((line for line in reversed(lines) if line.startswith("{")), None)
    if found is None:
        raise CheckError(lines[-1] if lines else "the GPU could not be described")
    facts: dict[str, Any] = json.loads(found)
    if facts["gpu"]["emulated"] != part.emulated:
        raise CheckError(
            f"the GPU is {facts['gpu']['name']}: --emulated is for the emulated driver"
        )
    return facts


def first(part: Part) -> None:
    """The part "first". Nothing that was compiled or measured before is used."""
    if why_not := part.facts["gpu"]["why_not"]:
        part.note("the GPU can be used", False, why_not)
        return
    shutil.rmtree(CACHE, ignore_errors=True)
    env = {"HOTLOOP_CACHE_PATH": str(CACHE)}
    if part.emulated:
        env["HOTLOOP_CUBLASLT_PATH"] = str(FAKES / "libcublasLt_fake.so")
        env["HOTLOOP_CUDNN_PATH"] = str(FAKES / "libcudnn_fake.so")
        env["HOTLOOP_NVRTC_PATH"] = str(FAKES / "libnvrtc_fake.so")
    train = [sys.executable, "-m", "gpu.step"]
    run_under(part, "memcheck", [*train, "--once"], seconds=60.0, **env)
    _, lines = part.run("bit for bit", train, seconds=45.0, **env)
    step, again = part.run("in another process", train, seconds=45.0, **env)
    compare(step, lines, again)
    ask_resources(part, env)
    cases = ["tests/ops/test_values.py", "tests/ops/test_gradients.py", "-k", "matmul"]
    part.run("products", [*pytest_command(), *cases], seconds=60.0, **env)
    cases = ["tests/ops/test_values.py", "tests/train/test_gpu_convolutions.py", "-k", "conv"]
    part.run("convolutions", [*pytest_command(), *cases], seconds=45.0, **env)
    part.run(
        "recurrent layers",
        [*pytest_command(), "tests/train/test_gpu_recurrent.py"],
        seconds=45.0,
        **env,
    )
    cases = [f"tests/train/test_gpu.py::{name}" for name in _TELLING]
    part.run("captures", [*pytest_command(), *cases], **env)


def compare(step: Step, lines: list[str], again: list[str]) -> None:
    """Two processes must have said the same of their trainings."""
    said, said_again = ([line for line in of if line.startswith("step: ")] for of in (lines, again))
    step.note = step.note or "; ".join(said_again)
    if said != said_again:
        step.passed = False
        step.failures += [
            f"FAIL another process: {now}, before: {then}"
            for then, now in zip(said, said_again, strict=False)
            if then != now
        ]


def ask_resources(part: Part, env: dict[str, str]) -> None:
    """Registers, local and shared memory of every kernel; those with local memory are listed."""
    out = WORK / "kernels.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gpu.resources", "--out", str(out)]
    step, lines = part.run("kernels", command, seconds=30.0, **env)
    step.note = step.note or next((line for line in lines if line.startswith("kernels: ")), "")
    part.facts["local_memory"] = [line for line in lines if line.startswith("local memory: ")]
    if out.exists():
        part.facts["kernels"] = json.loads(out.read_text())


def pytest_command() -> list[str]:
    """On some processes where that can be."""
    command = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(4, len(os.sched_getaffinity(0))))]
    return command


def find_gpu_tests() -> list[str]:
    """Test files that look at HOTLOOP_TEST_GPU, and those for a GPU alone; tests/ops goes first."""
    found = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if path.parent.name not in ("ops", "gpu") and "HOTLOOP_TEST_GPU" in path.read_text()
    ]
    return [str(path.relative_to(ROOT)) for path in found]


def tests(part: Part) -> None:
    """The part "tests"."""
    pytest = pytest_command()
    plans = [sys.executable, "-m", "gpu.described"]
    alone = {"HOTLOOP_CUBLASLT_PATH": "none", "HOTLOOP_CUDNN_PATH": "none"}
    part.run("description", plans, seconds=60.0, **alone)
    part.run("description, libraries", plans, seconds=60.0)
    kernels = ["make", "-C", "tests/cuda", "run-gpu"]
    part.run("kernels", [*kernels, f"PYTHON={sys.executable}"], HL_CUDA="1")
    part.run("ops", [*pytest, "tests/ops"])
    if found := find_gpu_tests():
        part.run("training", [*pytest, *found])
    else:
        part.note("training", False, "no test file looks at HOTLOOP_TEST_GPU")


def sanitize(part: Part) -> None:
    """The part "sanitize": our own kernels, so without NVIDIA's libraries."""
    cases = [sys.executable, "-m", "gpu.small", "--seconds"]
    if part.emulated or find_sanitizer() is None:
        run_under(part, "memcheck", [*cases, "60"])
        return
    for number, tool in enumerate(SANITIZERS):
        seconds = part.seconds_left / (len(SANITIZERS) - number)
        # It begins no case after half of that.
        run_under(part, tool, [*cases, str(int(seconds / 2))], seconds=seconds)


def find_sanitizer() -> str | None:
    """compute-sanitizer: on PATH, else where the toolkit is, by its variables or beside nvcc."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in [*homes, "/usr/local/cuda"] if home]
    folders += [os.path.dirname(os.path.realpath(nvcc))] if nvcc else []
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(folders)
    )


def run_under(
    part: Part, tool: str, command: list[str], *, seconds: float | None = None, **env: str
) -> None:
    """A command under a tool of compute-sanitizer, without NVIDIA's products."""
    if part.emulated:
        judge(*part.run(f"{tool}: no tool for an emulated GPU", command, **env))
        return
    sanitizer = find_sanitizer()
    if sanitizer is None:
        part.note(tool, True, "not available: compute-sanitizer was not found")
        return
    options = ["--tool", tool, "--error-exitcode", str(_FOUND)]
    if tool == "memcheck":  # a name that is looked for in several fatbins is no mistake
        options += ["--report-api-errors", "no"]
    own = env | {"HOTLOOP_CUBLASLT_PATH": "/dev/null", "HOTLOOP_CUDNN_PATH": "/dev/null"}
    judge(*part.run(tool, [sanitizer, *options, *command], seconds=seconds, **own))


def judge(step: Step, lines: list[str]) -> None:
    """A tool that refuses the device is not available; else it says what it saw."""
    refused = [line for line in lines if re.search(r"not supported", line, re.IGNORECASE)]
    ran = [line for line in lines if line.startswith(("cases: ", "step: "))]
    if ran:
        step.note = "; ".join(ran)
    elif refused:
        step.passed, step.failures = True, []
        step.note = f"not available: {refused[0].strip('= ')}"


def bench(part: Part, names: list[str]) -> None:
    """The parts "bench-...": rows of the benchmark, each with the nodes of its step."""
    quick = ["--smoke", "--rounds", "1", "--seconds", "0.2"] if part.emulated else []
    measure(part, ["benchmarks", "--device", "cuda", *quick, "--only", *names])


def attention(part: Part) -> None:
    """The part "attention"."""
    measure(part, ["benchmarks.attention", *(["--smoke", "--rounds", "1"] * part.emulated)])


def recurrences(part: Part) -> None:
    """The part "recurrences"."""
    measure(part, ["benchmarks.recurrences", *(["--smoke", "--rounds", "1"] * part.emulated)])


def measure(part: Part, module: list[str]) -> None:
    """Runs a benchmark, whose rows go into the file."""
    if importlib.util.find_spec("torch") is None:
        part.note("PyTorch", False, "it is not installed: there is nothing to measure beside")
        return
    out = WORK / f"{part.name}.json"
    out.unlink(missing_ok=True)
    name, *options = module
    command = [sys.executable, "-m", name, "--out", str(out), *options]
    step, _ = part.run("beside PyTorch", command)
    if step.passed:
        found = json.loads(out.read_text())
        part.facts |= {key: found[key] for key in ("rows", "smoke", "options", "load_before")}


PARTS: dict[str, Callable[[Part], None]] = {
    "first": first,
    "tests": tests,
    "sanitize": sanitize,
    "bench-small": lambda part: bench(part, ["mlp", "tiny", "lstm-b256", "transformer-b256"]),
    "bench-large": lambda part: bench(part, ["large"]),
    "bench-resnet": lambda part: bench(part, ["resnet50-b128"]),
    "bench-convnext": lambda part: bench(part, ["convnext_small-b64"]),
    "attention": attention,
    "recurrences": recurrences,
}


# ---------------------------------------------------------------------------- the file


def find_commit() -> str:
    """Of the tree: by git, else as the bundle was made from."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        asked = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        return asked.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        manifest = BUNDLE / "bundle.json"
        if manifest.exists():
            return str(json.loads(manifest.read_text())["commit"])
        return "unknown"


def run_part(name: str, emulated: bool) -> Part:
    """One part, with what it stands on: packages, a current build and a GPU."""
    part = Part(name, emulated)
    try:
        install_missing(part)
        compile_all(part)
        part.facts |= describe(part)
        PARTS[name](part)
    except CheckError as error:
        part.note("stopped", False, str(error))
    return part


def record(part: Part) -> dict[str, Any]:
    """What the file says of a part."""
    facts = {key: value for key, value in part.facts.items() if key != "gpu"}
    return {
        "passed": part.passed,
        "seconds": round(part.seconds, 1),
        "commit": find_commit(),
        **facts,
        "steps": [dataclasses.asdict(step) for step in part.steps],
    }


def write(part: Part, folder: Path) -> Path:
    """Puts a part into the GPU's file, beside the other parts; returns the file."""
    gpu = part.facts["gpu"]
    if is_emulated(gpu["name"]) and folder.resolve() != WORK:
        raise CheckError(f"{folder}: what an emulated GPU gives is no result")
    path = folder / f"{slug_of(gpu['name'])}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    parts = {**found["parts"], part.name: {"date": date, **record(part)}}
    ordered = {name: parts[name] for name in PARTS if name in parts}
    content = {"emulated": gpu["emulated"], "gpu": gpu, "parts": ordered}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)
    return path


def slowest(row: dict[str, Any]) -> list[str]:
    """Of a step's nodes those ten that take most of its time, and their shares of the roofline."""
    nodes = sorted((row.get("profile") or {"nodes": []})["nodes"], key=lambda node: -node["share"])
    lines = []
    for node in nodes[:_NODES_SHOWN]:
        reach = "?" if node["roofline"] is None else f"{node['roofline']:.0%}"
        time = f"{1e6 * node['seconds'] * node['n_runs']:9.1f} us {node['share']:6.1%}"
        lines.append(f"         {time}  {reach:>5} of the roofline  {node['kernel']}")
    return lines


def summarize(parts: list[Part]) -> str:
    """A line a step, and under it what failed."""
    lines = [""]
    for part in parts:
        verdict = "passed" if part.passed else "FAILED"
        lines.append(f"{part.name}: {verdict} in {part.seconds:.0f} s")
        for step in part.steps:
            tests = ", ".join(f"{n} {word}" for word, n in step.tests.items())
            words = "; ".join(filter(None, [tests, step.note]))
            lines.append(f"  {'ok  ' if step.passed else 'FAIL'} {step.name:<20} {words}")
            if not step.passed:
                lines += [f"         {line}" for line in step.failures[:5]]
        lines += [f"       {line}" for line in part.facts.get("local_memory", [])]
        for row in [] if part.facts.get("smoke") else part.facts.get("rows", []):
            lines.append(f"       {row['title']}: {row['note']}")
            lines += slowest(row)
            for column, aim in row["aims"].items():
                ratio = row["ratios"].get(column)
                got = f"{ratio['median']:.2f}" if ratio else "not measured"
                lines.append(f"         {column}: {got} (aim {aim:g})")
        if part.facts.get("smoke"):
            lines.append("       in miniature, on an emulated GPU: no measurement")
    return "\n".join(lines)


def main() -> int:
    """Runs the parts; 0 when all passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--results", type=Path, help="default: benchmarks/results")
    parser.add_argument("--emulated", action="store_true", help="over the emulated driver")
    options = parser.parse_args()
    folder = options.results or (WORK if options.emulated else RESULTS)
    if options.emulated and folder.resolve() != WORK:
        parser.error(f"--results: an emulated GPU's file belongs into {WORK.relative_to(ROOT)}")
    WORK.mkdir(parents=True, exist_ok=True)
    done: list[Part] = []
    written = None
    for name in [options.part] if options.part else PARTS:
        part = run_part(name, options.emulated)
        done.append(part)
        if "gpu" not in part.facts:
            break  # without a build or a GPU nothing else can run
        written = write(part, folder)
    print(summarize(done))
    if written is not None:
        print(f"written to {os.path.relpath(written)}")
    return 0 if all(part.passed for part in done) else 1


if __name__ == "__main__":
    sys.exit(main())
