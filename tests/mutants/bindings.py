"""Mutants of the bindings to CPython, and of what the Python layer takes for a number."""

from mutants.mutant import Mutant, python

_HOSTILE, _SCALARS = "tests/api/test_core_hostile.py::", "tests/api/test_numpy_scalars.py::"

MUTANTS = [
    Mutant(
        "attributes-are-read-from-the-dict-of-the-caller",
        "python/src/graph_step.c",
        "a->attrs = PyDict_Copy(a->given[KEY_attrs]);",
        "a->attrs = Py_NewRef(a->given[KEY_attrs]);",
        python(_HOSTILE + "test_attributes_that_empty_their_dict"),
    ),
    Mutant(
        "a-feed-is-free-before-its-plan-is-destroyed",
        "python/src/plan.c",
        "if (plan->feed) plan->feed->plan = NULL;",
        "if (plan->feed) plan->feed->plan = NULL, plan->feed->session = NULL;",
        python(_HOSTILE + "test_the_feed_of_a_plan_that_waits_to_be_destroyed"),
    ),
    Mutant(
        "arrays-run-the-code-of-their-class",
        "python/src/py_numpy.c",
        "NPY_ARRAY_ENSUREARRAY | ",
        "",
        python(_HOSTILE + "test_the_code_of_an_array_does_not_run"),
    ),
    Mutant(
        "true-of-numpy-is-false",
        "python/src/args.c",
        "*out = truth > 0;",
        "*out = false;",
        python(_SCALARS + "test_the_core"),
    ),
    Mutant(
        "arrays-of-no-dims-are-no-numbers",
        "python/hotloop/base/scalars.py",
        "if is_scalar or (isinstance(value, np.ndarray) and value.ndim == 0):",
        "if is_scalar:",
        python(_SCALARS + "test_rules"),
    ),
]
