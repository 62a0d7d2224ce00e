"""Random calls of the extension end in a result or in one of hotloop's exceptions: see fuzz.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hotloop import _core

SCRIPT = Path(__file__).with_name("fuzz.py")
SECONDS = 240


def play(seed: int, n_rounds: int) -> dict[str, int]:
    """Rounds 0 to n_rounds of a seed; what happened, by name."""
    command = [sys.executable, str(SCRIPT), str(seed), "0", str(n_rounds)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    lines = made.stdout.splitlines() or ["0"]
    assert made.returncode == 0, (
        f"python tests/fault/fuzz.py {seed} {lines[-1]} 1 (exit {made.returncode})\n{made.stderr}"
    )
    found: dict[str, int] = json.loads(lines[-1])
    return found


def test_random_calls() -> None:
    found = play(1, 400)
    assert found["calls"] >= 20_000
    # It has to reach the kernels: every op was accepted, and plans of them ran.
    assert [op["name"] for op in _core.op_table() if not found.get(f"op {op['name']}")] == []
    assert found["run done"] > 500
    assert found["backward of a sum"] > 10
    for error in ("ShapeError", "ConfigError", "TraceError", "DataError", "OutOfMemoryError"):
        assert found[f"raised {error}"] > 0, error


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_random_calls(seed: int) -> None:
    assert play(seed, 1500)["calls"] >= 100_000
