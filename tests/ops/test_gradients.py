"""Every differentiable case: ref against central differences, other devices against ref."""

import pytest
from ops.cases import GRADIENTS
from ops.harness import FAST, check_directions, check_fast_gradients


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    check_directions(GRADIENTS[name])
    for backend, isa in FAST:
        check_fast_gradients(GRADIENTS[name], backend, isa)
