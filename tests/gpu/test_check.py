"""make gpu-check's own rules: what is a result, what is stopped, what is kept; without a GPU."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu import check, small
from hotloop import _core
from needs import NO_KERNELS
from ops.cases import CASES

from benchmarks import __main__ as benchmark
from benchmarks.gpu import is_emulated, slug_of
from benchmarks.workloads import TRAINING, TRAINING_CUDA

ROOT = Path(__file__).resolve().parents[2]


def part_on(name: str, gpu: str) -> check.Part:
    part = check.Part(name, is_emulated(gpu))
    part.note("ran", True, "")
    part.facts["gpu"] = {"name": gpu, "emulated": is_emulated(gpu)}
    return part


def test_parts_gather_in_the_file_of_their_gpu(tmp_path: Path) -> None:
    for name in ("tests", "build", "tests"):
        path = check.write(part_on(name, "NVIDIA H200"), tmp_path)
    assert path == tmp_path / "nvidia-h200.json"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = json.loads(path.read_text())
    assert list(found["parts"]) == ["build", "tests"]
    assert found["gpu"]["name"] == "NVIDIA H200"
    assert not found["emulated"]
    assert all(
        part["passed"] and part["commit"] and part["date"] for part in found["parts"].values()
    )


def test_an_emulated_gpu_gives_no_result(tmp_path: Path) -> None:
    with pytest.raises(check.CheckError, match="an emulated GPU gives is no result"):
        check.write(part_on("tests", "Emulated GPU"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_committed_results_are_of_real_gpus() -> None:
    for path in check.RESULTS.glob("*.json"):
        found: dict[str, Any] = json.loads(path.read_text())
        if "gpu" in found:
            assert not found.get("emulated", True), path.name
            assert path.stem == slug_of(found["gpu"]["name"])
            assert not any(part.get("smoke") for part in found["parts"].values()), path.name


def test_a_step_that_takes_too_long_is_stopped() -> None:
    part = check.Part("tests", emulated=False)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    step, _ = part.run("endless", [sys.executable, "-c", code], seconds=1.0)
    assert not step.passed
    assert step.seconds < 30
    assert "stopped: it was not done after 1 s" in step.note
    assert not part.passed


def test_a_step_says_what_failed() -> None:
    part = check.Part("tests", emulated=False)
    code = "print('FAILED one'); print('=== 1 failed, 2 passed in 3s ==='); raise SystemExit(1)"
    step, _ = part.run("failing", [sys.executable, "-c", code])
    assert (step.passed, step.failures) == (False, ["FAILED one"])
    assert step.tests == {"failed": 1, "passed": 2}
    assert "FAILED one" in check.summarize([part])


def test_a_sanitizer_may_refuse_the_device_but_not_find_anything() -> None:
    def outcome(*lines: str, status: int) -> check.Step:
        part = check.Part("sanitize", emulated=False)
        code = f"print({chr(10).join(lines)!r}); raise SystemExit({status})"
        step, said = part.run("memcheck", [sys.executable, "-c", code])
        check.judge(step, said)
        return step

    refused = outcome("========= Error: Device not supported.", status=1)
    assert (refused.passed, refused.note) == (True, "not available: Error: Device not supported.")
    clean = outcome("cases: 3 of 9, of 3 ops, 0 failed", status=0)
    assert (clean.passed, clean.note) == (True, "cases: 3 of 9, of 3 ops, 0 failed")
    race = outcome("========= Error: Race reported", "cases: 3 of 9, of 3 ops, 0 failed", status=86)
    assert (race.passed, race.failures) == (False, ["========= Error: Race reported"])
    assert not outcome("Traceback", status=1).passed


def test_ten_nodes_of_a_row_are_shown() -> None:
    nodes = [
        {
            "kernel": f"cuda.k{i}",
            "seconds": 1e-6 * i,
            "n_runs": 2,
            "share": i / 66,
            "roofline": None if i == 11 else i / 20,
        }
        for i in range(12)
    ]
    row: dict[str, Any] = {"title": "tiny", "note": "", "ratios": {}, "aims": {}}
    part = part_on("bench-small", "NVIDIA H200")
    part.facts["rows"] = [{**row, "profile": {"nodes": nodes}}]
    lines = [line for line in check.summarize([part]).splitlines() if "roofline" in line]
    assert len(lines) == 10
    assert lines[0].split() == ["22.0", "us", "16.7%", "?", "of", "the", "roofline", "cuda.k11"]
    assert lines[1].split() == ["20.0", "us", "15.2%", "50%", "of", "the", "roofline", "cuda.k10"]
    part.facts["rows"] = [{**row, "profile": None}]
    assert "roofline" not in check.summarize([part])


def test_a_row_s_nodes_stand_beside_peaks_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.extend(command)
        return subprocess.CompletedProcess(command, 0, stdout=b'a warning\n{"nodes": []}\n')

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    rates = {"hotloop": [1.0], "peak": [2e14, 3e14], "copy": [4e12]}
    large = next(w for w in TRAINING_CUDA if w.name == "large")
    assert benchmark.profile_on_gpu(large, rates, smoke=False) == {"nodes": []}
    peaks = json.loads(asked[asked.index("--profile") + 1])
    assert peaks == {"bfloat16": 3e14, "bytes": 4e12}
    assert asked[asked.index("--precision") + 1] == "bf16-mixed"
    assert "--smoke" not in asked
    sides = list(benchmark.sides_on_gpu(large, {"torch_device": "NVIDIA H200"}, smoke=False))
    assert {"peak", "copy"} <= {side.name for side in sides}


def test_gpu_tests_are_found() -> None:
    assert "tests/train/test_gpu.py" in check.find_gpu_tests()
    assert not any("tests/gpu/" in path for path in check.find_gpu_tests())


def test_small_cases_take_every_op_first() -> None:
    cases = list(small.in_turn())
    ops = {case.op for case in CASES.values() if case.op != "batch_gather"}
    assert {case.op for case in cases[: len(ops)]} == ops
    assert len(cases) == len({case.id for case in cases})


def test_workloads_are_one_on_every_device() -> None:
    cpu = {workload.name: workload for workload in TRAINING}
    for workload in TRAINING_CUDA:
        if workload.name in cpu:
            same = cpu[workload.name]
            assert (workload.rows, workload.batch, workload.hidden) == (
                (same.rows, same.batch, same.hidden)
            )
    large = next(w for w in TRAINING_CUDA if w.name == "large")
    first, middle, last = 784 * 4096, 4096 * 4096, 4096 * 10
    assert large.flops == 2 * (2 * first + 3 * middle + 3 * last)


def test_both_readers_of_fatbins_agree() -> None:
    spec = importlib.util.spec_from_file_location("check_wheel", ROOT / ".ci" / "check_wheel.py")
    check_wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_wheel)
    said = _core.build_info()["cuda"]
    found = list(check_wheel.read_fatbins(Path(_core.__file__).read_bytes()))
    if not said:
        assert not found
        pytest.skip(NO_KERNELS)
    assert len(found) == len(list((ROOT / "kernels" / "cuda").glob("*.cu")))
    assert all(images == found[0] for images in found)
    assert re.fullmatch(r"\d+\.\d: " + re.escape(", ".join(found[0])), said)
