"""hl.profile: every node of a step timed, beside what is possible, and nothing changed by it."""

import json
import threading
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.tools.profiling import Profile, measure_peaks
from hotloop.training.plans.accelerator import open_placement
from train.recipes import classes, mlp, quiet, regression, same_bits, weights

X, Y = classes(n=96)
PEAKS = {"float32": 1e11, "bytes": 1e10}


def data(**fields: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, batch_size=16, **fields)


def test_training_after_it_is_as_without_it() -> None:
    with_it, without = (mlp(norm=True, dropout=0.3) for _ in range(2))
    before = weights(with_it)
    hl.profile(with_it, data(), quiet(max_epochs=2), peaks={})
    assert same_bits(before, weights(with_it))
    for model in (with_it, without):
        hl.train(model, data(), quiet(max_epochs=2))
    assert same_bits(weights(with_it), weights(without))


def test_nodes_are_those_of_the_plan() -> None:
    config = quiet(accumulate_grad_batches=3)
    found = hl.profile(mlp(), data(), config, peaks=PEAKS)
    planned = hl.plan(mlp(), data(), config)
    assert found.device == planned.device
    assert all(node.kernel in planned.text for node in found.nodes)
    flops = sum(node.flops for node in found.nodes if node.precision is not None)
    assert flops == planned.info["flops"]
    assert sum(node.share for node in found.nodes) == pytest.approx(1)
    assert {node.n_runs for node in found.nodes if node.segment == "micro"} == {3}
    assert {node.n_runs for node in found.nodes if node.segment == "apply"} == {1}
    assert found.step_seconds > 0
    optimizer = next(node for node in found.nodes if node.op == "sgd" or node.op == "adam")
    assert optimizer.bytes > 0
    assert optimizer.seconds > 0


def test_roofline_is_the_slower_of_both_limits() -> None:
    found = hl.profile(mlp(), data(), quiet(), peaks=PEAKS)
    for node in found.nodes:
        assert node.roofline is not None
        least = max(node.flops / PEAKS["float32"], node.bytes / PEAKS["bytes"])
        assert node.roofline == pytest.approx(least / node.seconds)
    by_bytes = hl.profile(mlp(), data(), quiet(), peaks={"bytes": 1e10})
    assert all(node.roofline is not None for node in by_bytes.nodes)
    unknown = hl.profile(mlp(), data(), quiet(), peaks={})
    assert all(node.roofline is None for node in unknown.nodes)
    assert "peaks: not known" in str(unknown)


def test_the_table_has_the_slowest_first_and_counts_the_rest() -> None:
    found = hl.profile(mlp(), data(), quiet(), peaks=PEAKS)
    slowest = found.slowest(3)
    assert [node.share for node in slowest] == sorted((n.share for n in found.nodes), reverse=True)[
        :3
    ]
    lines = found.table(3).splitlines()
    assert len(lines) == 5
    assert slowest[0].kernel in lines[1]
    assert lines[-1].startswith(f"and {len(found.nodes) - 3} more")
    assert "100 GFLOP/s fp32, 10 GB/s" in str(found)


def test_it_goes_through_json() -> None:
    found = hl.profile(mlp(), data(), quiet(), peaks=PEAKS)
    again = Profile.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.nodes == found.nodes
    assert str(again) == str(found)


def test_validation_can_be_profiled() -> None:
    found = hl.profile(mlp(norm=True), data(val=0.25), quiet(), split="val", peaks={})
    assert not any("adam" in node.op or "sgd" in node.op for node in found.nodes)
    assert any(node.op.startswith("matmul") for node in found.nodes)
    once = [node for node in found.nodes if node.n_runs == 0]
    assert all(node.segment == "begin" and node.share == 0 for node in once)
    with pytest.raises(hl.ConfigError, match="no val split"):
        hl.profile(mlp(), data(val=None), quiet(), split="val")


def test_float64_is_profiled_too() -> None:
    found = hl.profile(mlp(), data(), quiet(precision="64-true"), peaks={"float64": 1e9})
    assert {node.precision for node in found.nodes if node.op == "matmul"} == {"float64"}


def test_peaks_are_measured() -> None:
    peaks = measure_peaks(open_placement("cpu"))
    assert set(peaks) == {"float32", "bytes"}
    assert all(1e6 < rate < 1e15 for rate in peaks.values())


def test_steps_that_are_not_applied_are_refused() -> None:
    x, y = regression()
    model = mlp(5, 1)
    for on_nan in ("stop", "skip"):
        with pytest.raises(hl.NotFiniteError, match="must be applied to be measured"):
            hl.profile(model, (x * np.float32(1e30), y * np.float32(1e30)), quiet(on_nan=on_nan))
    hl.profile(model, (x, y), quiet(), peaks={})


def test_a_model_in_training_is_busy() -> None:
    model = mlp()
    errors: list[BaseException] = []

    class Asks:
        def on_epoch_end(self, run: Any) -> None:
            def ask() -> None:
                try:
                    hl.profile(model, data(), quiet(), peaks={})
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()

    hl.train(model, data(), quiet(max_epochs=1, callbacks=(Asks(),)))
    assert [type(error) for error in errors] == [hl.BusyError]
    hl.profile(model, data(), quiet(), peaks={})
