"""make gpu-check's own rules: what is a result, what is stopped, what is kept; without a GPU."""

import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from gpu import check, described, resources, small
from gpu.driver import Driver, DriverError, MissingCallError
from hotloop import _core, nn
from needs import NO_KERNELS
from ops.cases import CASES

from benchmarks import __main__ as benchmark
from benchmarks.gpu import is_emulated, slug_of
from benchmarks.models import make_model
from benchmarks.workloads import TRAINING, TRAINING_CUDA

ROOT = Path(__file__).resolve().parents[2]


def part_on(name: str, gpu: str) -> check.Part:
    part = check.Part(name, is_emulated(gpu))
    part.note("ran", True, "")
    part.facts["gpu"] = {"name": gpu, "emulated": is_emulated(gpu)}
    return part


def test_parts_gather_in_the_file_of_their_gpu(tmp_path: Path) -> None:
    for name in ("tests", "first", "tests"):
        path = check.write(part_on(name, "NVIDIA H200"), tmp_path)
    assert path == tmp_path / "nvidia-h200.json"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    found = json.loads(path.read_text())
    assert list(found["parts"]) == ["first", "tests"]
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


class Recorder(check.Part):
    """A part on a real GPU that runs nothing: what it would run, for how long, in which order."""

    def __init__(self, name: str) -> None:
        super().__init__(name, emulated=False)
        self.facts["gpu"] = {"name": "NVIDIA H200", "why_not": ""}
        self.commands: dict[str, list[str]] = {}
        self.limits: dict[str, float | None] = {}

    def run(
        self, name: str, command: list[str], *, seconds: float | None = None, **env: str
    ) -> tuple[check.Step, list[str]]:
        self.commands[name], self.limits[name] = command, seconds
        self.steps.append(check.Step(name, "", True, 0.0))
        return self.steps[-1], []


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit's folder that CUDA_HOME names, without compute-sanitizer; and nothing on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(check, "WORK", tmp_path)
    monkeypatch.setattr(check, "CACHE", tmp_path / "cache")
    return tmp_path


def test_the_first_part_ends_in_three_minutes(toolkit: Path) -> None:
    tool = toolkit / "bin" / "compute-sanitizer"
    tool.touch(mode=0o755)
    part = Recorder("first")
    assert part.seconds_left <= 180
    assert Recorder("tests").seconds_left > 180
    check.first(part)
    steps = list(part.commands)
    assert steps == [
        "memcheck",
        "bit for bit",
        "in another process",
        "kernels",
        "products",
        "convolutions",
        "recurrent layers",
        "captures",
    ]
    assert part.commands["memcheck"][:3] == [str(tool), "--tool", "memcheck"]
    assert all(part.limits[name] for name in steps[:-1])  # the last one has what is left
    assert part.passed


def test_the_driver_names_the_architecture_where_nothing_else_does(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HL_CUDA_ARCHS", raising=False)
    monkeypatch.setattr(check, "find_architecture", lambda: 90)
    assert check.choose_archs(emulated=False) == {"HL_CUDA_ARCHS": "90"}
    assert check.choose_archs(emulated=True) == {}
    (toolkit / "nvidia-smi").touch(mode=0o755)
    assert check.choose_archs(emulated=False) == {}
    (toolkit / "nvidia-smi").unlink()
    monkeypatch.setenv("HL_CUDA_ARCHS", "75;90")
    assert check.choose_archs(emulated=False) == {}


def test_a_missing_sanitizer_is_said(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_sanitizer", lambda: None)
    for name, run in (("first", check.first), ("sanitize", check.sanitize)):
        part = Recorder(name)
        run(part)
        assert "memcheck" not in part.commands
        notes = {step.name: step.note for step in part.steps}
        assert notes["memcheck"] == "not available: compute-sanitizer was not found"


def test_a_gpu_that_cannot_be_used_ends_the_first_part() -> None:
    part = Recorder("first")
    part.facts["gpu"]["why_not"] = "cuda: a sentence"
    check.first(part)
    assert not part.commands
    assert [(step.passed, step.note) for step in part.steps] == [(False, "cuda: a sentence")]


def test_two_processes_must_train_alike() -> None:
    def outcome(*again: str) -> check.Step:
        step = check.Step("in another process", "", True, 0.0)
        check.compare(step, ["noise", "step: a, 1", "step: b, 2"], list(again))
        return step

    assert outcome("other noise", "step: a, 1", "step: b, 2").passed
    other = outcome("step: a, 1", "step: b, 3")
    assert (other.passed, len(other.failures)) == (False, 1)
    assert not outcome("step: a, 1").passed


def test_kernels_are_read_and_judged(tmp_path: Path) -> None:
    kernels = {
        "plain": resources.Kernel(32, 0, 1024, 256),
        "spills": resources.Kernel(255, 48, 0, 256),
        "wide": resources.Kernel(96, 0, 0, 1024),
        "one": resources.Kernel(255, 0, 0, 1),
        "shared": resources.Kernel(32, 8, 50000, 128),
    }
    unfit = resources.find_unfit(kernels, 65536, 49152)
    assert unfit == ["wide", "shared"]
    lines = resources.summarize(kernels, unfit)
    assert [line.split(":")[0] for line in lines[:2]] == ["FAIL wide", "FAIL shared"]
    assert lines[2] == "local memory: spills: 255 registers, 256 threads, 0 B shared, 48 B local"
    assert lines[3].startswith("local memory: shared")
    assert lines[4:] == [
        "kernels: 5, at most 255 registers, 2 with local memory, 2 that do not fit"
    ]
    (tmp_path / "kernel-1").write_bytes(b"head and key\x7fELFcode")
    (tmp_path / "kernel-2").write_bytes(b"head and key//\n// Generated by NVIDIA NVVM Compiler")
    (tmp_path / "matmul-3").write_bytes(b"\x7fELF")
    code = list(resources.read_cached(tmp_path))
    assert [text[:4] for text in code] == [b"\x7fELF", b"//\n/"]


def test_an_old_driver_enumerates_no_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> Any:
        raise error

    monkeypatch.setattr(sys, "argv", ["resources"])
    for error, said in (
        (MissingCallError("this driver has no cuX"), "kernels: not available: this driver has no"),
        (DriverError("hl_cuda_x: error 209"), "FAIL kernels: hl_cuda_x: error 209"),
    ):
        monkeypatch.setattr(resources, "Driver", lambda error=error: fail(error))
        assert resources.main() == (0 if said.startswith("kernels") else 1)
        assert capsys.readouterr().out.startswith(said)
    old = Driver.__new__(Driver)
    old._library = types.SimpleNamespace()
    with pytest.raises(MissingCallError, match="this driver has no cuLibraryGetKernelCount"):
        old.call("cuLibraryGetKernelCount")


def test_the_first_steps_over_the_emulated_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step and the kernels' resources for real; the kernels that NVRTC compiled among them."""
    if not _core.build_info()["cuda"]:
        pytest.skip(NO_KERNELS)
    monkeypatch.setattr(check, "WORK", tmp_path)
    env = {
        "HOTLOOP_CACHE_PATH": str(tmp_path),
        "HOTLOOP_NVRTC_PATH": str(check.FAKES / "libnvrtc_fake.so"),
    }
    part = check.Part("first", emulated=True)
    check.run_under(part, "memcheck", [sys.executable, "-m", "gpu.step", "--once"], **env)
    check.ask_resources(part, env)
    assert part.passed, check.summarize([part])
    assert re.match(
        r"step: ids, 32-true, once, loss 1\..*; step: images, 32-true, once, loss 1\.",
        part.steps[0].note,
    )
    assert re.match(r"kernels: \d+, at most 32 registers, 0 with", part.steps[1].note)
    names = part.facts["kernels"]
    assert {"hl_cuda_adam", "hl_cuda_probe"} < set(names)
    assert any(name.startswith(("hl_pw_", "hl_sequence_")) for name in names)
    assert names["hl_cuda_probe"] == "32 registers, 128 threads, 0 B shared, 0 B local"
    assert part.facts["local_memory"] == []


def test_plans_are_held_against_the_description(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    t4, a100 = (_core.Device("cuda", gpu=name) for name in ("T4", "A100"))
    monkeypatch.setattr(described, "NETS", ("tabular",))
    assert described.name_of(described.find_description(a100)) == described.name_of(a100)
    lines = described.compare(t4, t4, exact=True)
    assert len(lines) == 6
    assert all(line.startswith("described: tabular, ") for line in lines)
    assert any(line.startswith("FAIL") for line in described.compare(a100, t4, exact=True))
    assert not any(line.startswith("FAIL") for line in described.compare(t4, t4, exact=False))
    small_plan, large_plan = (described.predict(t4, "tabular", n, "32-true") for n in (2, 900))
    assert described.check("", large_plan, small_plan, exact=False)[0].startswith("FAIL")
    monkeypatch.setattr(described, "open_gpu", lambda: _core.Device("cpu"))
    assert described.main() == 0
    assert capsys.readouterr().out.rstrip().endswith(", but of T4, A100, H200")


def test_kernels_with_local_memory_are_listed() -> None:
    code = "print('local memory: a: 48 B local'); print('kernels: 2, 1 with local memory')"

    class Printing(check.Part):
        def run(self, name: str, command: list[str], **fields: Any) -> Any:
            return super().run(name, [sys.executable, "-c", code], **fields)

    part = Printing("first", emulated=False)
    check.ask_resources(part, {})
    assert part.steps[0].note == "kernels: 2, 1 with local memory"
    assert "       local memory: a: 48 B local" in check.summarize([part]).splitlines()


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
    peaks = benchmark.peaks_of(large, rates)
    assert benchmark.profile_step(large, "cuda", peaks, {}) == {"nodes": []}
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


def test_every_workload_of_a_gpu_has_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(check, "bench", lambda part, names: asked.extend(names))
    for name in check.PARTS:
        if name.startswith("bench-"):
            check.PARTS[name](Recorder(name))
    assert sorted(asked) == sorted(workload.name for workload in TRAINING_CUDA)


def test_workloads_of_images_are_the_zoo_s() -> None:
    """The aims are those of the issue; in miniature they are small images of the same model."""
    rows = {workload.name: workload for workload in TRAINING_CUDA if workload.image}
    wanted = {
        "resnet50-b128": (128, 25_557_032, {"eager": 1.4, "graphs": 1.15}),
        "convnext_small-b64": (64, 50_223_688, {"eager": 1.5, "graphs": 1.1}),
    }
    assert list(rows) == list(wanted)
    for name, (batch, n_parameters, aims) in wanted.items():
        row = rows[name]
        assert (row.batch, row.image, row.precision) == (batch, 224, "bf16-mixed")
        assert row.rows % row.batch == 0
        assert row.aims == aims
        model = make_model(nn, row)
        assert sum(p.numel() for p in model.parameters()) == n_parameters
        mini = row.at("32-true", smoke=True)
        assert (mini.rows, mini.batch, mini.shape) == (4, 2, (3, 32, 32))


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
