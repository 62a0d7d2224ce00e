"""Pipelines of hyperspectral cubes beside PyTorch, and a JSON file in results.

    python -m benchmarks.cubes [--rounds 5] [--seconds 2] [--only phase1 whole layers] [--smoke]

200 cubes of 128 x 128 pixels and 50 channels, in memory. "phase1": MinMax, two PCAs and RX are
fitted; "whole": the same on 160 of them, then five epochs that keep the PCAs orthogonal, with
validation; "layers": an epoch of gradients through four projections, with validation. Numbers are
how many times as fast hotloop is as PyTorch as such pipelines have it (default), as a good engineer
would write it (tuned), and, of phase 1, as all nodes fitted from one Gram matrix, of float32 or
float64 products.

All sides take their slices in turn; a slice runs a case at least once. Rates are by the clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from benchmarks.duel import Side, compete_in, ratio_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)

COLUMNS = {
    "default": "default", "tuned": "tuned", "onepass": "one pass", "onepass64": "one pass, fp64",
}  # fmt: skip
CASES = {
    "phase1": {"default": 25.0, "onepass": 2.0, "onepass64": 3.0},
    "whole": {"default": 10.0, "tuned": 4.0},
    "layers": {"default": 6.0, "tuned": 3.0},
}
"""Cases with their aims, as in the issue that set them."""


# Threads of NumPy's OpenBLAS wait busily for a tenth of a second after an eigenproblem, which in a
# loop of fits falls into the next one.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


def sides_of(case: str, more: tuple[str, ...]) -> list[Side]:
    """hotloop first."""
    names = ["hotloop", "default", "tuned", *(["onepass", "onepass64"] if case == "phase1" else [])]
    return [Side(name, ("benchmarks.worker_cubes", name, *more), _ENVIRONMENT) for name in names]


def main() -> int:
    """Measures, prints the table, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cubes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a slice")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--smoke", action="store_true", help="40 cubes of 16 x 16 pixels")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-cubes.json")
    options = parser.parse_args()
    load, facts, rows = read_load(), describe_machine(), []
    for case in options.only:
        sides = sides_of(case, ("--smoke",) if options.smoke else ())
        for _, slices in compete_in([case], sides, options.rounds, options.seconds):
            rates = {name: [one.rate for one in each] for name, each in slices.items()}
            busy = {name: [one.rate / one.cores for one in each] for name, each in slices.items()}
            ratios = {name: ratio_of(rates["hotloop"], rates[name]) for name in list(rates)[1:]}
            raw = {"runs_per_second": rates, "runs_per_processor_second": busy}
            rows.append(Row(case, ratios, CASES[case], raw=raw))
            print(format_table(rows[-1:], case, COLUMNS), end="\n\n", flush=True)
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds", "smoke")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    if not options.smoke or options.out:
        write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-cubes.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
