"""Every case: ref against NumPy, every other device against ref."""

import pytest
from ops.cases import CASES
from ops.harness import FAST, check_fast, check_reference

PLAIN = [name for name in CASES if CASES[name].op != "batch_gather"]


@pytest.mark.parametrize("name", PLAIN)
def test_value(name: str) -> None:
    check_reference(CASES[name])
    for backend, isa in FAST:
        check_fast(CASES[name], backend, isa)
