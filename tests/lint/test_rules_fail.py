"""Each rule fails on a text that breaks it and passes on the nearest one that does not."""

import pytest
from lint import rules

CLEAN = """
hl_status hl_thing_make(void)
{
    hl_status status = HL_OK;
    HL_GOTO(hl_alloc(4, &ptr));
    HL_GOTO(fill(ptr));
cleanup:
    return status;
}
"""
EARLY = CLEAN.replace("HL_GOTO(fill(ptr))", "if (bad) return HL_ERROR_DATA")
LATE_TRY = CLEAN.replace("HL_GOTO(fill(ptr))", "HL_TRY(fill(ptr))")
NO_LABEL = CLEAN.replace("cleanup:\n", "")
NO_GOTO = NO_LABEL.replace("HL_GOTO", "HL_TRY")
TWO_RETURNS = CLEAN.replace("    return", "    if (ptr) return HL_OK;\n    return")

# name, rule, a text that breaks it, the nearest text that does not
CASES = [
    ("return early", rules.check_cleanup, EARLY, CLEAN),
    ("try late", rules.check_cleanup, LATE_TRY, CLEAN),
    ("no label", rules.check_cleanup, NO_LABEL, NO_GOTO),
    ("two returns", rules.check_cleanup, TWO_RETURNS, CLEAN),
    ("printf", rules.check_no_output, "    printf(\"x\");\n", "    snprintf(b, 4, \"printf(\");\n"),
    ("exit", rules.check_no_output, "    exit (1);\n", "    /* exit(1) */ on_exit_begin(1);\n"),
    ("abort", rules.check_no_output, "abort();", "hl_abort_flag();"),
    ("static object", rules.check_no_static_objects, "static PyObject *cache = NULL;\n",
     "static PyObject *make_cache(PyObject *self)\n{\n    PyObject *a = 0;\n}\n"),
    ("static type", rules.check_no_static_objects, "static PyTypeObject graph_type = {\n",
     "static PyType_Spec graph_spec = {\n"),
    ("columns", rules.check_layout, "x" * 101 + "\n", "x" * 100 + "\n"),
    ("lines", rules.check_layout, "x\n" * 901, "x\n" * 900),
    ("tab", rules.check_layout, "\tx\n", "    x\n"),
    ("blanks", rules.check_layout, "x \n", "x\n"),
    ("todo", rules.check_finished, "/* TODO: later */", "/* todos are not marks */"),
    ("fixme", rules.check_finished, "# FIXME", "# fix me"),
    ("path", rules.check_machine_paths, "open('/" + "work/x')", "open('docs/" + "work/x')"),
    ("home", rules.check_machine_paths, "cd /home/" + "somebody/x", "cd ${HOME}/x"),
    ("function", rules.check_docstrings, "def f():\n    pass\n", 'def f():\n    """F."""\n'),
    ("class", rules.check_docstrings, "class A:\n    x = 1\n", "class _A:\n    x = 1\n"),
    ("method", rules.check_docstrings, 'class A:\n    """A."""\n    def f(self): pass\n',
     'class A:\n    """A."""\n    def forward(self): pass\n    def _f(self): pass\n'),
    ("lambda id", rules.check_test_ids, "t.py::f[<function <lambda> at 0x7f4e2ad7a0c0>-2]",
     "t.py::f[<function <lambda>>-2]"),
    ("object id", rules.check_test_ids, "t.py::f\nt.py::f[<a.B object at 0x7f4e2ad7a0c0>]",
     "t.py::f\nt.py::f[at 0x7F]"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "bad", "good"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_rule_tells_bad_from_good(rule, bad: str, good: str) -> None:
    assert rule(bad), "the rule let this pass"
    assert not rule(good), "the rule refused this"


INCLUDES = [
    ("csrc/base/a.c", '#include "ir/graph.h"', '#include "base/status.h"'),
    ("csrc/ir/a.c", '#include "ops/infer.h"', '#include "base/arena.h"'),
    ("csrc/ops/a.c", '#include "passes/passes.h"', '#include "ir/ops.def"'),
    ("csrc/passes/a.c", '#include "plan/plan.h"', '#include "ops/vjp.h"'),
    ("csrc/backend/a.c", '#include "plan/plan.h"', '#include "ir/graph.h"'),
    ("csrc/plan/a.c", '#include "kernels/cpu/device.h"', '#include "backend/backend.h"'),
    ("csrc/plan/b.c", "#include <Python.h>", "#include <string.h>"),
    ("csrc/ir/b.c", '  # include "plan/plan.h"', '/* #include "plan/plan.h" */'),
    ("kernels/cpu/a.c", '#include "plan/plan.h"', '#include "backend/backend.h"'),
    ("kernels/cpu/b.c", '#include "kernels/ref/ref.h"', '#include "kernels/cpu/simd/vec.h"'),
    ("kernels/ref/a.c", '#include "ops/infer.h"', '#include "ref.h"'),
    ("kernels/ref/b.c", "#include <numpy/arrayobject.h>", "#include <math.h>"),
]


@pytest.mark.parametrize(("path", "bad", "good"), INCLUDES)
def test_includes(path: str, bad: str, good: str) -> None:
    assert rules.check_includes(path, bad + "\n"), "the rule let this pass"
    assert not rules.check_includes(path, good + "\n"), "the rule refused this"


PYTHON_IMPORTS = [
    ("base/a", "from hotloop.graph import trace", "from hotloop.errors import ShapeError"),
    ("data/a", "from hotloop.training.config import b", "from hotloop.base.rules import show"),
    ("nn/a", "def f():\n    import hotloop.data.module", "def f():\n    from hotloop import _core"),
    ("nn/module", "from hotloop.training.run import b", "from hotloop.training.inference import b"),
    ("nn/b", "from hotloop.training.inference import b", "from hotloop.graph.build import lift"),
    ("graph/a", "from hotloop import ops", "from hotloop.graph import dtypes"),
    ("graph/b", "from ..nn import module", "import numpy"),
    ("training/config/a", "if TYPE_CHECKING:\n    from hotloop.nn import Module", "import os"),
    ("training/plans/a", "from hotloop.training.run.fit import train",
     "from hotloop.training.scoring.losses import Loss"),
    ("training/inference", "from hotloop.training.result import saving",
     "from hotloop.training.plans.steps import Steps"),
    ("training/run/a", "import hotloop", "from hotloop.training.result.history import History"),
]  # fmt: skip


@pytest.mark.parametrize(("stem", "bad", "good"), PYTHON_IMPORTS)
def test_python_imports(stem: str, bad: str, good: str) -> None:
    path = f"python/hotloop/{stem}.py"
    assert rules.check_python_imports(path, bad + "\n"), "the rule let this pass"
    assert not rules.check_python_imports(path, good + "\n"), "the rule refused this"
    assert not rules.check_python_imports("python/hotloop/tools/a.py", bad + "\n")


def test_python_circles() -> None:
    texts = {
        "python/hotloop/graph/__init__.py": "from hotloop.graph import a",
        "python/hotloop/graph/a.py": "from hotloop.graph.b import c",
        "python/hotloop/graph/b.py": "if TYPE_CHECKING:\n    from hotloop.graph.a import d",
    }
    assert not rules.check_python_circles(texts)
    for name in ("graph.a import d", "graph import a"):
        texts["python/hotloop/graph/b.py"] = f"def f():\n    from hotloop.{name}"
        (fault,) = rules.check_python_circles(texts)
        assert fault.startswith("a circle of imports: hotloop.graph")


def test_op_names() -> None:
    named = "    if (node->op == HL_OP_MATMUL) return;\n"
    for bad in (named, "if (hl_matmul_attrs(node)->trans_b)", "hl_pw_of_op(op) == HL_PW_RELU_GRAD"):
        for folder in ("plan", "backend", "data", "passes"):
            assert rules.check_op_names(f"csrc/{folder}/a.c", bad)
        assert not rules.check_op_names("csrc/ops/matmul.c", bad)
    assert not rules.check_op_names("csrc/passes/pack.c", named)
    assert not rules.check_op_names("csrc/plan/a.c", "if (flags & HL_OP_VIEW || op < HL_OP_COUNT)")


@pytest.mark.parametrize(
    "bad", ["#include <pthread.h>\n", "#include <sys/mman.h>\n", "    pthread_mutex_lock(&m);\n"]
)
def test_os_calls(bad: str) -> None:
    assert rules.check_os_calls("csrc/plan/run.c", bad)
    assert rules.check_os_calls("kernels/cpu/pool.c", bad)
    assert not rules.check_os_calls("csrc/base/os_linux.c", bad)
    assert not rules.check_os_calls("csrc/plan/run.c", "/* pthread_create */\n")


HEADER_OF = '#include "kernels/cuda/{}.h"\n'
CIRCLES = [
    ("header", {"b.h": "a"}, {"b.c": "c"}),
    ("source", {"b.c": "a"}, {"b.c": "b"}),
    ("kernel", {"b.cu": "a"}, {"a.cu": "b"}),
    ("through another", {"b.h": "c", "c.c": "a"}, {"b.h": "c", "d.c": "a"}),
    ("beside it", {"b.h": "c", "c.c": "b"}, {"b.h": "c"}),
]


@pytest.mark.parametrize(("bad", "good"), [c[1:] for c in CIRCLES], ids=[c[0] for c in CIRCLES])
def test_circles(bad: dict[str, str], good: dict[str, str]) -> None:
    def fill(own: dict[str, str]) -> dict[str, str]:
        empty = {f"kernels/cuda/{name}.h": "" for name in "abc"}
        texts = {f"kernels/cuda/{name}": HEADER_OF.format(target) for name, target in own.items()}
        return {**empty, "kernels/cuda/a.c": HEADER_OF.format("b"), **texts}

    assert rules.check_circles(fill(bad)), "the rule let this pass"
    assert not rules.check_circles(fill(good)), "the rule refused this"


def test_circle_is_found_however_it_is_included() -> None:
    for own in ('"graph.h"', '"ir/graph.h"', '"csrc/ir/graph.h"'):
        texts = {"csrc/ir/op.h": f"#include {own}\n", "csrc/ir/graph.h": '  # include "ir/op.h"\n'}
        assert rules.check_circles(texts) == [
            "a circle of includes: csrc/ir/graph -> csrc/ir/op -> csrc/ir/graph"
        ]
