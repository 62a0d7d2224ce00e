"""What is generated for the cases of tests/ops compiles with NVIDIA's own NVRTC.

It needs NVRTC (``make cuda`` fetches it; CUDA's toolkit and PyTorch bring it) but no GPU: plans are
made over the emulated driver, which takes machine code and cannot run it. What the kernels compute
is tested with the emulated NVRTC (``make cuda-check``).
"""

import os
import subprocess
import sys
from pathlib import Path

import hotloop as hl
import pytest
from hotloop import _core
from needs import NO_KERNELS
from ops.cases import CASES

PLAN = """
import sys
from hotloop import _core
from ops.cases import CASES
from ops.harness import add_with_gradients, draw_weights, open_session

def lines():
    while (line := _core.log_take()) is not None:
        yield line[1]

def plan(make, inputs, fuse):
    graph = _core.Graph()
    ids = [
        graph.input(f"in{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
        for i, a in enumerate(inputs)
    ]
    for value in make(graph, ids):
        if value is not None:
            graph.output(value)
    _core.Plan(open_session("cuda"), graph, fuse=fuse)
    for line in lines():
        if "interpreted" in line:
            print(f"{case.id}: {line}")

for case in list(CASES.values())[:: int(sys.argv[1])]:
    inputs = case.draw()
    plan(case.add_to, inputs, True)
    plan(case.add_to, inputs, False)
    if case.grad:
        with_weights = inputs + draw_weights(case, inputs)
        plan(lambda graph, ids: add_with_gradients(case, graph, ids), with_weights, True)
"""


def find_nvrtc() -> str:
    """NVIDIA's library, or skips."""
    if not _core.build_info()["cuda"]:
        pytest.skip(NO_KERNELS)
    for library in hl.devices().libraries:
        if library.name == "NVRTC" and library.path and "fake" not in library.path:
            return library.path
    if os.environ.get("HOTLOOP_NVRTC_PATH"):
        pytest.skip("HOTLOOP_NVRTC_PATH names no NVRTC of NVIDIA's (it runs without the variable)")
    pytest.skip("NVRTC was not found (make cuda fetches it)")


def check_sources(fake: Path, folder: Path, arch: int, step: int) -> None:
    """Makes the plans of every step-th case; each program must have been compiled."""
    env = os.environ | {
        "HOTLOOP_CUDA_PATH": str(fake),
        "HOTLOOP_NVRTC_PATH": find_nvrtc(),
        "HOTLOOP_CACHE_PATH": str(folder),
        "HL_FAKE": f"arch={arch},code=1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PLAN, str(step)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout
    assert not done.stdout, done.stdout
    assert len(list(folder.iterdir())) > len(CASES) // step // 8


def test_some_sources(fake: Path, tmp_path: Path) -> None:
    check_sources(fake, tmp_path, 75, 50)


@pytest.mark.long
@pytest.mark.parametrize("arch", [75, 90])
def test_all_sources(fake: Path, tmp_path: Path, arch: int) -> None:
    check_sources(fake, tmp_path, arch, 1)
