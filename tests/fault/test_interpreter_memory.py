"""Every allocation of the interpreter on behalf of the extension fails: see nomemory.py."""

import subprocess
import sys
from pathlib import Path

import pytest
from hotloop import _core

SCRIPT = Path(__file__).with_name("nomemory.py")


def test_memory_of_the_interpreter() -> None:
    pytest.importorskip("_testcapi", reason="this Python came without CPython's tests (_testcapi)")
    if _core.build_info()["sanitizers"]:
        pytest.skip("PYTHONMALLOC=malloc (sanitizers) has no hook of CPython's (make test runs it)")
    command = [sys.executable, str(SCRIPT)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    points = dict(line.split() for line in made.stdout.splitlines())
    assert int(points["nodes"]) > 40
    assert int(points["tables"]) > 400
