"""``make bench``: one table of ratios against PyTorch, and a JSON file in benchmarks/results.

    python -m benchmarks [--rounds 10] [--seconds 0.5] [--threads 2] [--only NAME ...] [--out FILE]
    python -m benchmarks --device cuda ...

Columns on the CPU: how many times as fast hotloop is as PyTorch in its default use, behind its
DataLoader, and tuned (fused optimizer, index_select, no .item(), a malloc that keeps its blocks,
the better of one and all threads). MKL, PyTorch's matrix library, takes a slow path on processors
that are not Intel's; the columns with MKL show PyTorch with that path forced open (mkl_path.c).
Rows of images and sequences have PyTorch's three forms, on all threads: default, tuned (images with
channels last), and that compiled; and the slowest nodes of hotloop's step.

Columns on a GPU, in the workload's precision: PyTorch as its users write it, with batches from host
memory; with data on the GPU and a fused optimizer; the better of torch.compile with CUDA graphs and
the whole step captured as one. Then hotloop's share of the rate of PyTorch's largest product in the
same run, and the cores it keeps busy. The nodes of hotloop's step follow, each with its share of
what that product and a large copy of PyTorch's say is possible. --smoke runs everything in
miniature, on an emulated GPU and without PyTorch's too: it shows that it runs, and its file says
that it is no measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.duel import ROOT, Ratio, Side, Slice, clean_environment, compete, ratio_of
from benchmarks.gpu import describe_gpu, slug_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    usable_sets,
    write_results,
)
from benchmarks.workloads import (
    FEEDING,
    IMAGES,
    SEQUENCES,
    TRAINING,
    TRAINING_CUDA,
    Workload,
)

COLUMNS = {
    "default": "default",
    "default_mkl": "default, MKL",
    "loader": "DataLoader",
    "tuned": "tuned",
    "tuned_mkl": "tuned, MKL",
    "compiled": "tuned, compiled",
    "eager": "eager",
    "resident": "eager, data resident",
    "graphs": "compiled, CUDA graphs",
    "peak": "of GEMM peak",
}
# On a GPU: PyTorch's modes that a column takes the best of.
COLUMNS_CUDA = {
    "eager": ("default",),
    "resident": ("tuned",),
    "graphs": ("compiled", "graph"),
    "peak": ("peak",),
}
_PEAKS = {"32-true": "float32", "tf32": "tf32", "16-mixed": "float16", "bf16-mixed": "bfloat16"}
# glibc keeps big blocks instead of giving them back: no page faults after the first steps.
TUNED_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "67108864",
}


# ---------------------------------------------------------------------------- sides


def build_mkl_path(folder: Path) -> Path | None:
    """The preload that opens MKL's fast path, or None without a compiler."""
    library = folder / "mkl_path.so"
    source = ROOT / "benchmarks" / "mkl_path.c"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", str(source), "-o"]
    try:
        subprocess.run([*command, str(library)], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


def sides_of(workload: Workload, threads: int, mkl_path: Path | None) -> Iterator[Side]:
    """hotloop first, then PyTorch in every way."""
    feeding = workload is FEEDING
    yield Side(
        "hotloop",
        ("benchmarks.worker_hotloop", workload.name),
        {"HOTLOOP_NUM_THREADS": str(threads)},
    )
    worker = ("benchmarks.worker_torch", workload.name)
    modes = ["loader", "tuned"] if feeding else ["default", "tuned"]
    if workload.loader:
        modes.append("loader")
    if workload.compiled:
        modes.append("compiled")
    for mode in modes:
        is_tuned = mode in ("tuned", "compiled")
        for n in sorted({1, threads}) if mode == "tuned" and not workload.compiled else [threads]:
            environment = {"OMP_NUM_THREADS": str(n), **(TUNED_MALLOC if is_tuned else {})}
            command = (*worker, mode, "--threads", str(n))
            yield Side(f"{mode}/{n}", command, environment)
            if mkl_path is not None and not (feeding or workload.compiled or mode == "loader"):
                forced = {**environment, "LD_PRELOAD": str(mkl_path)}
                yield Side(f"{mode}_mkl/{n}", command, forced)


def rates_of(slices: list[Slice]) -> list[float]:
    """Samples per second of each round."""
    return [one.rate for one in slices]


def measure(workload: Workload, options: argparse.Namespace, mkl_path: Path | None) -> Row:
    """One workload; of several numbers of threads PyTorch's best counts."""
    sides = [
        side
        for side in sides_of(workload, options.threads, mkl_path)
        if side.name.partition("/")[0] not in options.without
    ]
    slices, absent = compete(sides, options.rounds, options.seconds)
    if absent:
        raise RuntimeError("; ".join(absent.values()))
    rates = {name: rates_of(each) for name, each in slices.items()}
    ratios = {}
    for column in COLUMNS:
        rivals = [r for name, r in rates.items() if name.partition("/")[0] == column]
        if rivals:
            ratios[column] = ratio_of(rates["hotloop"], max(rivals, key=statistics.median))
    profile = None
    if workload.compiled:
        environment = {"HOTLOOP_NUM_THREADS": str(options.threads)}
        profile = profile_step(workload, "cpu", None, environment)
    raw = {"samples_per_second": rates}
    return Row(workload.title, ratios, workload.aims, raw=raw, profile=profile)


def sides_on_gpu(
    workload: Workload, gpu: dict[str, Any], smoke: bool, without: Sequence[str] = ()
) -> Iterator[Side]:
    """hotloop first, then PyTorch in every mode; in a smoke test it may be PyTorch on the CPU."""
    shared = ["--precision", workload.precision, *(["--smoke"] if smoke else [])]
    own = (workload.name, "--device", "cuda", *shared)
    yield Side("hotloop", ("benchmarks.worker_hotloop", *own))
    device = "cuda" if gpu["torch_device"] or not smoke else "cpu"
    columns = {name: modes for name, modes in COLUMNS_CUDA.items() if name not in without}
    for mode in (*(mode for modes in columns.values() for mode in modes), "copy"):
        if mode == "graph" and device == "cpu":
            continue
        command = (workload.name, mode, "--device", device, *shared)
        yield Side(mode, ("benchmarks.worker_torch", *command))


def is_heavy(workload: Workload) -> bool:
    """Whether the products are large enough to ask for their share of the peak."""
    return "peak" in workload.aims


def measure_on_gpu(workload: Workload, options: argparse.Namespace, gpu: dict[str, Any]) -> Row:
    """One workload beside PyTorch on the same GPU."""
    if workload.precision == "bf16-mixed" and int(gpu["architecture"].removeprefix("sm_")) < 80:
        workload = workload.at("16-mixed")  # sm_75 has no bfloat16
    sides = list(sides_on_gpu(workload, gpu, options.smoke, options.without))
    slices, absent = compete(sides, options.rounds, options.seconds)
    rates = {name: rates_of(each) for name, each in slices.items()}
    ratios = {}
    for column, modes in COLUMNS_CUDA.items():
        rivals = [rates[mode] for mode in modes if mode in rates]
        if rivals and (column != "peak" or is_heavy(workload)):
            ours = rates["hotloop"]
            if column == "peak":  # whose samples are operations
                ours = [rate * workload.flops for rate in ours]
            ratios[column] = ratio_of(ours, max(rivals, key=statistics.median))
    cores = statistics.median(one.cores for one in slices["hotloop"])
    notes = [f"hotloop keeps {cores:.1%} of a core busy (aim: at most 5%)"]
    notes += [f"PyTorch's {name} is missing: {why}" for name, why in absent.items()]
    return Row(
        f"{workload.title}, {workload.precision}",
        ratios,
        {} if options.smoke else workload.aims,
        "; ".join(notes),
        {"samples_per_second": rates, "cores": cores, "absent": absent},
        profile_step(workload, "cuda", peaks_of(workload, rates), {}, smoke=options.smoke),
    )


def peaks_of(workload: Workload, rates: dict[str, list[float]]) -> dict[str, float]:
    """What PyTorch's best product and copy say is possible."""
    names = {"peak": _PEAKS[workload.precision], "copy": "bytes"}
    return {names[mode]: max(rates[mode]) for mode in names if mode in rates}


def profile_step(
    workload: Workload,
    device: str,
    peaks: dict[str, float] | None,
    environment: dict[str, str],
    *,
    smoke: bool = False,
) -> dict[str, Any]:
    """The nodes of hotloop's step beside these peaks; None: those that hotloop measures."""
    command = [sys.executable, "-m", "benchmarks.worker_hotloop", workload.name, "--device", device]
    command += ["--precision", workload.precision, *(["--smoke"] if smoke else [])]
    done = subprocess.run(
        [*command, "--profile", json.dumps(peaks)],
        cwd=ROOT,
        env=clean_environment(**environment),
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---------------------------------------------------------------------------- the others


def measure_imports(rounds: int) -> Row:
    """Seconds that the import statement takes in a fresh interpreter, in turn."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    seconds: dict[str, list[float]] = {"hotloop": [], "torch": []}
    for number in range(rounds + 1):
        for name, times in seconds.items():
            command = [sys.executable, "-c", code.format(name)]
            done = subprocess.run(
                command, cwd=ROOT, env=clean_environment(), check=True, capture_output=True
            )
            if number:  # the first time fills the page cache
                times.append(float(done.stdout))
    ratio = ratio_of([1 / s for s in seconds["hotloop"]], [1 / s for s in seconds["torch"]])
    own = statistics.median(seconds["hotloop"]) * 1e3
    note = f"import hotloop: {own:.0f} ms (aim: below 100)"
    return Row("import", {"default": ratio}, {"default": 13.0}, note, {"seconds": seconds})


def measure_gemm(rounds: int) -> Row:
    """Our matrix products against the best rival, over the shapes of the workloads, one thread."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "gemm.json"
        command = [sys.executable, "benchmarks/gemm/run.py", "--rounds", str(rounds)]
        isa = "avx512" if "avx512" in usable_sets() else "avx2"
        subprocess.run(
            [*command, "--isa", isa, "--json", str(found)],
            cwd=ROOT,
            env=clean_environment(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = json.loads(found.read_text())
    ratios = sorted(row["ratio"] for row in rows if row["ratio"] is not None)
    share = sorted(row["share_of_peak"] for row in rows)
    rivals = sorted({name for row in rows for name in row["gflops"] if not name.startswith("own")})
    note = (
        f"{len(rows)} shapes, one thread, {isa}, against the better of {' and '.join(rivals)}; "
        f"median {statistics.median(share):.0%} of the register-only peak"
    )
    ratio = {"tuned": Ratio(statistics.median(ratios), ratios[0], ratios[-1])} if ratios else {}
    return Row("GEMM over shapes (lowest, highest)", ratio, {"tuned": 0.98}, note, {"rows": rows})


# ---------------------------------------------------------------------------- the command


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="compiled, or graphs on a GPU, say: they take minutes",
    )
    parser.add_argument("--smoke", action="store_true", help="everything in miniature, on a GPU")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE.json")
    options = parser.parse_args()
    on_cpu = [*(w.name for w in [*TRAINING, *IMAGES, *SEQUENCES]), FEEDING.name, "import", "gemm"]
    names = {"cpu": on_cpu, "cuda": [w.name for w in TRAINING_CUDA]}[options.device]
    options.only = options.only or names
    if unknown := sorted(set(options.only) - set(names)):
        parser.error(f"--only: must be of {', '.join(names)}, got {', '.join(unknown)}")
    if options.smoke and options.device == "cpu":
        parser.error("--smoke: is for --device cuda")
    return options


def run_on_cpu(options: argparse.Namespace) -> list[Row]:
    """The rows of a CPU."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        mkl_path = build_mkl_path(Path(folder))
        for workload in [*TRAINING, *IMAGES, *SEQUENCES, FEEDING]:
            if workload.name in options.only:
                print(f"{workload.title} ...", file=sys.stderr, flush=True)
                rows.append(measure(workload, options, mkl_path))
    if "import" in options.only:
        rows.append(measure_imports(options.rounds))
    if "gemm" in options.only:
        print("GEMM ...", file=sys.stderr, flush=True)
        rows.append(measure_gemm(options.rounds))
    return rows


def run_on_gpu(options: argparse.Namespace, gpu: dict[str, Any]) -> list[Row]:
    """The rows of a GPU."""
    if not options.smoke:
        if gpu["emulated"]:
            raise RuntimeError(
                "an emulated GPU has no speed to measure; --smoke shows that it runs"
            )
        if gpu["torch_device"] is None:
            raise RuntimeError("PyTorch sees no GPU, so there is nothing to be measured beside")
    rows = []
    for workload in TRAINING_CUDA:
        if workload.name in options.only:
            print(f"{workload.title} ...", file=sys.stderr, flush=True)
            rows.append(measure_on_gpu(workload, options, gpu))
    return rows


def main() -> int:
    """Measures, prints the table, writes the file."""
    options = parse()
    if importlib.util.find_spec("torch") is None:
        print("benchmarks: PyTorch is not installed; make bench installs it", file=sys.stderr)
        return 1
    load = read_load()
    facts = describe_machine()
    name = facts["date"][:10]
    if options.device == "cuda":
        facts["gpu"] = describe_gpu()
        facts["smoke"] = options.smoke
        name += f"-{slug_of(facts['gpu']['name'])}"
        title = facts["gpu"]["name"]
        rows = run_on_gpu(options, facts["gpu"])
    else:
        title = f"{options.threads} threads"
        rows = run_on_cpu(options)
    print(format_table(rows, title, COLUMNS))
    if options.smoke:
        print("a smoke test in miniature: none of these numbers is a measurement")
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds", "threads")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
