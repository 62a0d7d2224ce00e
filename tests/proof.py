"""``make proof``: every stage to its end, and what it proved as JSON.

    python tests/proof.py [--out FILE] [--only WORDS]

A stage is a command of the Makefile. The file says for each: what was run, of which commit, how it
ended, how long it took, and what passed, failed and was skipped; with the machine and the versions.
It is written after every stage, so that a stopped proof is on record too. --only runs the stages
whose name has these words, again perhaps, and leaves the others in the file as they are.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.__main__ import describe_machine  # noqa: E402

STAGES = {
    "C under sanitizers, full counts": ["make", "sanitize-c"],
    "Python under sanitizers": ["make", "sanitize-python"],
    "mutants": [sys.executable, "tests/mutants"],
    "CUDA kernels, emulated": ["make", "cuda-check"],
    "kernels by the oldest compiler": ["make", "cuda-oldest"],
    "wheels": ["make", "wheel", "wheel-cpu", "sdist"],
    "all tests, long ones too": [
        *(sys.executable, "-m", "pytest", "tests", "--long"),
        *("-n", "auto", "--maxprocesses=4", "--dist=worksteal"),
    ],
}
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected|xfailed|xpassed)")
_PROGRAM = re.compile(r"^(ok|FAIL|SKIP) +(\S+)")


def count(lines: list[str]) -> dict[str, int]:
    """Tests by how they ended: programs of tests/c by their lines, pytest's by its last one."""
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        if program := _PROGRAM.match(line):
            found[{"ok": "passed", "FAIL": "failed", "SKIP": "skipped"}[program[1]]] += 1
        elif line.startswith("=") and " in " in line:
            for number, word in _SUMMARY.findall(line):
                found[word] += int(number)
    return dict(found)


def run(command: list[str]) -> dict[str, Any]:
    """One stage: its output goes on as it comes."""
    began = time.monotonic()
    lines: list[str] = []
    # What make was called with (ARGS=--only ...) is not for the makes of the stages.
    mine = ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in mine}
    environment = {**kept, "HOTLOOP_PROOF": "1"}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    shown = ["python" if part == sys.executable else part for part in command]
    return {
        "command": " ".join(shown),
        "status": process.returncode,
        "seconds": round(time.monotonic() - began),
        "tests": count(lines),
    }


def ask_git(*words: str) -> str:
    """What git says."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    """Runs the stages, whatever the ones before said."""
    parser = argparse.ArgumentParser(description="Runs everything that there is to run.")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "results" / "proof.json")
    parser.add_argument("--only", default="")
    out, only = parser.parse_args().out, parser.parse_args().only
    commit = ask_git("describe", "--always", "--abbrev=12", "--exclude=*")
    own = f":(exclude){os.path.relpath(out, ROOT)}"  # what the proof itself writes
    if ask_git("status", "--porcelain", "-uno", "--", ".", own):
        commit += "-dirty"
    known = json.loads(out.read_text())["stages"] if only and out.exists() else {}
    proof = describe_machine() | {"stages": known}
    out.parent.mkdir(parents=True, exist_ok=True)
    for name, command in STAGES.items():
        if only not in name:
            continue
        proof["stages"][name] = {"commit": commit} | run(command)
        out.write_text(json.dumps(proof, indent=1) + "\n")
    print(json.dumps(proof["stages"], indent=1), f"\nwritten to {os.path.relpath(out)}")
    return int(any(stage["status"] for stage in proof["stages"].values()))


if __name__ == "__main__":
    sys.exit(main())
