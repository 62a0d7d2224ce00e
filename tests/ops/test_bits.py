"""The same bits: again, at 1, 2 and 7 threads, with and without chains, fused and unfused.

A fused pointwise program does the same float32 operations as its ops one by one, so fusion keeps
the bits, but for sums at the end of a chain, which are cut by other rules than the reduction's own.
"""

import pytest
from ops.cases import CASES
from ops.harness import ISAS, check_same_bits

PLAIN = [name for name in CASES if CASES[name].op != "batch_gather"]


@pytest.mark.parametrize("name", PLAIN)
def test_bits(name: str) -> None:
    check_same_bits(CASES[name], ISAS[0])
