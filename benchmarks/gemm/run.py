"""Our GEMM core against OpenBLAS, and PyTorch's where it is installed: one thread, side by side.

    python benchmarks/gemm/run.py [--isa avx512 avx2] [--rounds 9] [--json FILE] [--only TEXT]

Every contestant runs in every round, in turn, on the same operands; its time is the best round.
Numbers are GF/s, the ratio to the best rival of the run and the share of the peak that registers
alone reach in the same run. "prepacked" packs B once, as a plan does for weights that several
calls share; "packing" packs it in every call, as the rivals must. Needs numpy, a C compiler and,
for OpenBLAS, the package scipy-openblas32 (or HL_CBLAS=/path/to/a/cblas.so). With --isa avx2
OpenBLAS is told to use its AVX2 kernels (Haswell) as well; otherwise it chooses for itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

ROOT = Path(__file__).resolve().parents[2]
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ],
}
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Icsrc",
    "-I.",
]

# (form, M, N, K): the multilayer perceptrons, recurrent, attention and per-pixel layers of the
# workloads. NN: C = A B. NT: C = A B^T, B stored (N, K). TN: C = A^T B, a weight gradient.
SHAPES = [
    *[
        ("NN", *s)
        for s in (
            (64, 32, 20),
            (512, 128, 29),
            (512, 96, 128),
            (256, 512, 128),
            (5120, 512, 128),
            (5120, 128, 512),
            (15360, 128, 128),
            (4096, 1024, 1024),
            (262144, 20, 50),
            (262144, 50, 20),
            (262144, 10, 20),
        )
    ],
    *[("NT", *s) for s in ((512, 512, 784), (512, 256, 512), (512, 10, 256))],
    *[("NN", *s) for s in ((512, 512, 256), (512, 256, 10), (512, 784, 512))],
    *[("TN", *s) for s in ((512, 784, 512), (256, 512, 512), (10, 256, 512))],
    *[("NT", *s) for s in ((64, 32, 20), (64, 16, 32), (64, 2, 16))],
    *[("NN", *s) for s in ((64, 16, 2), (64, 32, 16), (1, 512, 784))],
    *[("TN", *s) for s in ((32, 20, 64), (16, 32, 64), (2, 16, 64))],
    *[
        ("TN", *s)
        for s in (
            (29, 128, 512),
            (128, 96, 512),
            (128, 512, 5120),
            (512, 128, 5120),
            (128, 128, 15360),
            (1024, 1024, 4096),
            (50, 50, 262144),
            (50, 20, 262144),
        )
    ],
]


def build(isa: str, folder: Path) -> ctypes.CDLL:
    """Compiles the core and the timed loops for one instruction set."""
    library = folder / f"bench_gemm_{isa}.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [
            compiler,
            *FLAGS,
            *ISA_FLAGS[isa],
            f"-DHL_ISA={isa}",
            "kernels/cpu/gemm_core.c",
            "kernels/cpu/gemm_f32.c",
            "benchmarks/gemm/bench_gemm.c",
            "-o",
            str(library),
        ],
        cwd=ROOT,
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    for function in ("bench_peak", "bench_rows", "bench_tn", "bench_cblas"):
        getattr(loaded, function).restype = ctypes.c_double
    return loaded


def find_cblas() -> tuple[str, ctypes.c_void_p] | None:
    """(name, address of sgemm) of the CBLAS to compare with."""
    path = os.environ.get("HL_CBLAS")
    if not path:
        try:
            import scipy_openblas32
        except ImportError:
            return None
        path = str(next(Path(scipy_openblas32.get_lib_dir()).glob("libscipy_openblas*.so")))
    library = ctypes.CDLL(path)
    for prefix in ("scipy_", ""):
        if hasattr(library, prefix + "cblas_sgemm"):
            name = Path(path).stem
            if hasattr(library, prefix + "openblas_get_corename"):
                corename = getattr(library, prefix + "openblas_get_corename")
                corename.restype = ctypes.c_char_p
                name = "OpenBLAS " + corename().decode()
            sgemm = getattr(library, prefix + "cblas_sgemm")
            return name, ctypes.cast(sgemm, ctypes.c_void_p)
    raise SystemExit(f"{path} has no cblas_sgemm")


def make_contestants(bench, cblas, shape, torch):
    """name -> function(reps) -> seconds per run, with operands of its own kind."""
    import numpy as np

    form, m, n, k = shape
    rng = np.random.default_rng(0)
    a = rng.random((k, m) if form == "TN" else (m, k), dtype=np.float32) - 0.5
    b = rng.random((n, k) if form == "NT" else (k, n), dtype=np.float32) - 0.5
    c = np.zeros((m, n), dtype=np.float32)
    i64, pointer = ctypes.c_int64, lambda array: array.ctypes.data_as(ctypes.c_void_p)
    pa, pb, pc = pointer(a), pointer(b), pointer(c)
    out = {}
    if form == "TN":
        out["own"] = lambda reps: bench.bench_tn(i64(m), i64(n), i64(k), pa, pb, pc, i64(reps))
    else:
        for name, pack in (("own", 0), ("own packing", 1)):
            out[name] = lambda reps, pack=pack: bench.bench_rows(
                i64(m), i64(n), i64(k), pa, pb, pc, None, int(form == "NT"), pack, i64(reps)
            )
    if cblas:
        code = {"NN": 0, "NT": 1, "TN": 2}[form]
        out[cblas[0]] = lambda reps: bench.bench_cblas(
            cblas[1], m, n, k, pa, pb, pc, code, i64(reps)
        )
    if torch:
        ta, tb, tc = (torch.from_numpy(array) for array in (a, b, c))
        ta, tb = ta.T if form == "TN" else ta, tb.T if form == "NT" else tb

        def run_torch(reps):
            import time

            torch.mm(ta, tb, out=tc)
            start = time.perf_counter()
            for _ in range(reps):
                torch.mm(ta, tb, out=tc)
            return (time.perf_counter() - start) / reps

        out["torch"] = run_torch
    keep = (a, b, c)
    return out, keep


def measure(bench, cblas, shape, torch, rounds: int) -> dict:
    contestants, keep = make_contestants(bench, cblas, shape, torch)
    _, m, n, k = shape
    reps = max(1, int(0.004 / (2 * m * n * k / 100e9)))
    best = dict.fromkeys(contestants, float("inf"))
    peak = 0.0
    for _ in range(rounds):
        peak = max(peak, bench.bench_peak())
        for name, run in contestants.items():
            best[name] = min(best[name], run(reps))
    del keep
    flops = 2 * m * n * k
    row = {"form": shape[0], "m": m, "n": n, "k": k, "peak_gflops": peak / 1e9}
    row["gflops"] = {name: flops / seconds / 1e9 for name, seconds in best.items()}
    rivals = [v for name, v in row["gflops"].items() if not name.startswith("own")]
    row["ratio"] = row["gflops"]["own"] / max(rivals) if rivals else None
    packing = row["gflops"].get("own packing", row["gflops"]["own"])
    row["ratio_packing"] = packing / max(rivals) if rivals else None
    row["share_of_peak"] = row["gflops"]["own"] * 1e9 / peak
    row["rival_share_of_peak"] = max(rivals) * 1e9 / peak if rivals else None
    return row


def print_row(row: dict) -> None:
    shape = f"{row['form']} {row['m']}x{row['n']}x{row['k']}"
    g = row["gflops"]
    rivals = "  ".join(f"{name} {v:6.1f}" for name, v in g.items() if not name.startswith("own"))
    ratio = (
        "  ratio {:5.2f} packing {:5.2f}".format(row["ratio"], row["ratio_packing"])
        if row["ratio"]
        else ""
    )
    rival_share = f" (rival {row['rival_share_of_peak']:4.0%})" if rivals else ""
    print(
        f"{shape:22s} own {g['own']:6.1f}  packing {g.get('own packing', g['own']):6.1f}  "
        f"{rivals}{ratio}  of peak {row['share_of_peak']:4.0%}{rival_share}",
        flush=True,
    )


def run_isa(isa: str, options: argparse.Namespace) -> list[dict]:
    """In a process of its own: OpenBLAS chooses its kernels once per process."""
    if isa == "avx2":
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        torch = None
    with tempfile.TemporaryDirectory() as folder:
        bench, cblas = build(isa, Path(folder)), find_cblas()
        print(
            f"{isa}, {platform.processor() or platform.machine()}, peak "
            f"{max(bench.bench_peak() for _ in range(5)) / 1e9:.1f} GF/s, against "
            f"{cblas[0] if cblas else 'nothing'}{' and torch' if torch else ''}",
            flush=True,
        )
        rows = []
        for shape in SHAPES:
            if options.only and options.only not in f"{shape[0]} {shape[1]}x{shape[2]}x{shape[3]}":
                continue
            rows.append({"isa": isa, **measure(bench, cblas, shape, torch, options.rounds)})
            print_row(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", nargs="+", choices=ISA_FLAGS, default=["avx512", "avx2"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", help="shapes whose name contains this, such as 'TN 50x'")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if len(options.isa) == 1:
        rows = run_isa(options.isa[0], options)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
        return
    rows = []
    for isa in options.isa:
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "rows.json"
            command = [
                sys.executable,
                __file__,
                "--isa",
                isa,
                "--rounds",
                str(options.rounds),
                "--json",
                str(part),
            ]
            subprocess.run(command + (["--only", options.only] if options.only else []), check=True)
            rows += json.loads(part.read_text())
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
