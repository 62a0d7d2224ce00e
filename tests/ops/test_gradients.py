"""Every differentiable case: ref's gradients against central differences, cpu's against ref's."""

import pytest
from ops.cases import GRADIENTS
from ops.harness import ISAS, check_cpu_gradients, check_directions


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    check_directions(GRADIENTS[name])
    for isa in ISAS:
        check_cpu_gradients(GRADIENTS[name], isa)
