"""Runs the mutants: `python tests/mutants [--list] [--jobs N] [words of names ...]`.

Each must be killed, which a line per mutant says; the status is 1 where one was not.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.runner import find_faults, run_mutants
from mutants.tables import MUTANTS


def main() -> int:
    """Runs the chosen mutants, all without a choice."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="names and files, and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", help="words of the names; without one, all")
    given = parser.parse_args()
    if faults := find_faults(MUTANTS):
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    chosen = [
        mutant
        for mutant in MUTANTS
        if not given.names or any(words in mutant.name for words in given.names)
    ]
    if not chosen:
        parser.error(f"no mutant has one of {', '.join(given.names)} in its name")
    if given.list:
        for mutant in chosen:
            print(f"{mutant.name:<50} {mutant.file}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutants: ended by a signal"))
    began, ends = time.monotonic(), collections.Counter[str]()
    for outcome in run_mutants(chosen, given.jobs):
        ends[outcome.what] += 1
        mark = "ok  " if outcome.what == "killed" else "FAIL"
        print(f"{mark} {outcome.mutant.name} {outcome.what} {outcome.seconds:.1f} s", flush=True)
        if outcome.what != "killed":
            print(f"{outcome.mutant}\n{outcome.output}\n", flush=True)
    said = ", ".join(f"{n} {what}" for what, n in sorted(ends.items()))
    print(f"{len(chosen)} mutants: {said}; {time.monotonic() - began:.0f} s")
    return int(ends["killed"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
