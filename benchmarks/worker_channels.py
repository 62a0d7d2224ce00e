"""A side of ``python -m benchmarks.channels``: the statistics of one array of rows.

    python -m benchmarks.worker_channels hotloop|double|single|memory [--threads N]

hotloop's threads are those of HOTLOOP_NUM_THREADS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks.channels import COLUMNS, shape_of
from benchmarks.worker import serve_cases


def draw_rows(case: str) -> np.ndarray:
    """The case's array; the shift is 2 for all channels."""
    rows = np.random.default_rng(0).standard_normal(shape_of(case), np.float32)
    rows += 2
    return rows


def make_hotloop_step(case: str) -> Callable[[], int]:
    """A function that runs the case's plan and returns 1."""
    from hotloop import _core

    rows = draw_rows(case)
    graph = _core.Graph()
    ids = [graph.input("x", "float32", rows.shape), graph.input("shift", "float64", rows.shape[1:])]
    for value in graph.add("channel_statistics", ids):
        graph.output(value)
    plan = _core.Plan(_core.Session(_core.Device("cpu")), graph)
    plan.input(0, rows)
    plan.input(1, np.full(rows.shape[1], 2.0))
    plan.run(1, 60.0)
    return lambda: plan.run(1, 60.0)[1]


def make_torch_step(case: str, home: str) -> Callable[[], int]:
    """A function that does what the side does once and returns 1."""
    import torch

    rows = torch.from_numpy(draw_rows(case))
    shift = torch.full(rows.shape[1:], 2.0)

    def find_double() -> None:
        distances = rows.double() - shift.double()
        distances.sum(0), distances.T @ distances

    def find_single() -> None:
        distances = rows - shift
        distances.sum(0), distances.T @ distances

    run = {"double": find_double, "single": find_single, "memory": rows.sum}[home]

    def step() -> int:
        run()
        return 1

    step()
    return step


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", choices=["hotloop", *COLUMNS])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.home == "hotloop":
        import hotloop as hl

        serve_cases(make_hotloop_step, version=hl.__version__)
    else:
        import torch

        torch.set_num_threads(options.threads)
        serve_cases(lambda case: make_torch_step(case, options.home), version=torch.__version__)


if __name__ == "__main__":
    main()
