"""What is generated for pointwise programs compiles by a real NVRTC.

    HL_FAKE=arch=75 HOTLOOP_CUDA_PATH=.../libcuda_fake.so HOTLOOP_NVRTC_PATH=... \\
        python tests/cuda/check_generated.py [CASES]

Over the emulated driver, which has a GPU's architecture and cannot load its code: so each program
of the ops' cases, forward and back, is generated and compiled as on a GPU, refused by the driver,
and then interpreted. NVRTC needs no GPU; the emulated one of the other tests is a host compiler
and takes what NVRTC may not. CASES: how many, an op's first case before any op's second.
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
    n, refused, wrong = int(sys.argv[1]) if len(sys.argv) > 1 else 120, 0, []
    for case, _ in zip(in_turn(), range(n), strict=False):
        check_fast(case, "cuda", None)
        if case.grad:
            check_fast_gradients(case, "cuda", None)
        for text in take_log():
            refused += REFUSED in text
            wrong += [] if REFUSED in text else [f"FAIL {case.id}: {text}"]
    wrong.append(f"NVRTC {versions['NVRTC']}: {refused} generated programs of {n} cases")
    print("\n".join(wrong))
    return 1 if len(wrong) > 1 or not refused else 0


if __name__ == "__main__":
    sys.exit(main())
