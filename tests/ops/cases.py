"""All cases, of ops and of compositions, by id."""

from ops import (
    cases_attention,
    cases_chains,
    cases_conv,
    cases_ctc,
    cases_deformable,
    cases_functional,
    cases_linalg,
    cases_norm,
    cases_pointwise,
    cases_pool,
    cases_recurrence,
    cases_recurrent,
    cases_reduce,
    cases_sort,
    cases_stat,
    cases_view,
)
from ops.harness import Case

CASES: dict[str, Case] = {}
for _module in (
    cases_attention,
    cases_chains,
    cases_recurrence,
    cases_recurrent,
    cases_conv,
    cases_deformable,
    cases_pointwise,
    cases_pool,
    cases_reduce,
    cases_view,
    cases_norm,
    cases_functional,
    cases_ctc,
    cases_linalg,
    cases_sort,
    cases_stat,
):
    for _case in _module.CASES:
        assert _case.id not in CASES, f"two cases are called {_case.id}"
        CASES[_case.id] = _case
GRADIENTS = {name: case for name, case in CASES.items() if case.grad}
