"""What is generated for pointwise programs compiles by a real NVRTC.

    HL_FAKE=arch=75 HOTLOOP_CUDA_PATH=.../libcuda_fake.so HOTLOOP_NVRTC_PATH=... \\
        python tests/cuda/check_generated.py [CASES]

Over the emulated driver, which has a GPU's architecture and cannot load its code: so each program
of the ops' cases, forward and back, is generated and compiled as on a GPU, refused by the driver,
and then interpreted; and then cases of pointwise ops side by side, whose programs are fused
horizontally into one kernel. NVRTC needs no GPU; the emulated one of the other tests is a host
compiler and takes what NVRTC may not. CASES: how many, an op's first case before any op's second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

REFUSED = "CUDA_ERROR_INVALID_IMAGE"


def take_log() -> list[str]:
    """What the core has to say of programs that it did not compile."""
    from hotloop import _core

    lines = iter(_core.log_take, None)
    return [text for _, text in lines if "a pointwise program is interpreted" in text]


def compile_rows(n_each: int = 12) -> int:
    """How many programs are fused horizontally in graphs of so many cases of pointwise ops each."""
    from hotloop import _core
    from ops import cases_pointwise
    from ops.harness import open_session

    cases, n = cases_pointwise.CASES, 0
    for at in range(0, len(cases), n_each):
        graph = _core.Graph()
        for case in cases[at : at + n_each]:
            types = [("float32" if a.dtype.kind == "f" else str(a.dtype), a) for a in case.draw()]
            ids = [graph.input("x", dtype, array.shape) for dtype, array in types]
            for value in case.add_to(graph, ids):
                graph.output(value)
        plan = _core.Plan(open_session("cuda"), graph)
        n += str(plan).count("with the one before")
    return n


def main() -> int:
    """0 when the driver alone refused, and something."""
    os.environ["HOTLOOP_TEST_GPU"] = "1"
    os.environ["HOTLOOP_CACHE_PATH"] = ""
    from gpu.small import in_turn
    from hotloop import _core
    from ops.harness import check_fast, check_fast_gradients

    if not _core.build_info()["cuda"]:
        print("left out: this build has no kernels, so no GPU is opened")
        return 0
    versions = {item["name"]: item["version"] for item in _core.survey("cuda")["libraries"]}
    n, texts = int(sys.argv[1]) if len(sys.argv) > 1 else 120, []
    for case, _ in zip(in_turn(), range(n), strict=False):
        check_fast(case, "cuda", None)
        if case.grad:
            check_fast_gradients(case, "cuda", None)
        texts += [f"{case.id}: {text}" for text in take_log()]
    n_alone = len(texts)
    n_fused = compile_rows()
    texts += [f"in a row: {text}" for text in take_log()]
    wrong = [f"FAIL {text}" for text in texts if REFUSED not in text]
    print(
        *wrong,
        f"NVRTC {versions['NVRTC']}: {n_alone} generated programs of {n} cases, and "
        f"{len(texts) - n_alone} of cases in rows, where {n_fused} programs are fused horizontally",
        sep="\n",
    )
    return 1 if wrong or not n_alone or not n_fused else 0


if __name__ == "__main__":
    sys.exit(main())
