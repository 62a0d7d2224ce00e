"""Small cases on the GPU, values and gradients against the reference, one of every op in turn.

    python -m gpu.small [--seconds 60]

For compute-sanitizer, under which everything is slow: the smallest case of every op, then the
second smallest, and so on, until the time is over; it says how many of how many ran.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from ops.cases import CASES
from ops.harness import Case, check_fast, check_fast_gradients


def in_turn() -> Iterator[Case]:
    """All cases, smallest first, one of every op before a second of any."""
    by_op: dict[str, list[Case]] = defaultdict(list)
    for case in CASES.values():
        if case.op != "batch_gather":  # its rows are a feed's: tests/ops/test_batch_gather.py
            by_op[case.op].append(case)
    for cases in by_op.values():
        cases.sort(key=lambda case: sum(array.size for array in case.draw()))
    for number in range(max(map(len, by_op.values()))):
        yield from (cases[number] for cases in by_op.values() if number < len(cases))


def main() -> int:
    """Runs cases until the time is over; 1 when one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    end = time.monotonic() + parser.parse_args().seconds
    cases = list(in_turn())
    n_run, ops, failed = 0, set(), []
    for case in cases:
        if time.monotonic() > end:
            break
        try:
            check_fast(case, "cuda", None)
            if case.grad:
                check_fast_gradients(case, "cuda", None)
        except Exception as error:
            failed.append(f"FAIL {case.id}: {error}")
        n_run += 1
        ops.add(case.op)
    print("\n".join(failed))
    print(f"cases: {n_run} of {len(cases)}, of {len(ops)} ops, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
