"""Every case: ref against NumPy, cpu with each instruction set against ref."""

import pytest
from ops.cases import CASES
from ops.harness import ISAS, check_cpu, check_reference

PLAIN = [name for name in CASES if CASES[name].op != "batch_gather"]


@pytest.mark.parametrize("name", PLAIN)
def test_value(name: str) -> None:
    check_reference(CASES[name])
    for isa in ISAS:
        check_cpu(CASES[name], isa)
