"""Mutants of the core and its kernels, in C."""

from mutants.mutant import Mutant, c, host, python

_PASSES, _CPU, _CUDA = "csrc/passes/", "kernels/cpu/", "kernels/cuda/"
_EPILOGUES = "tests/ops/test_epilogues.py"

MUTANTS = [
    Mutant(
        "view-of-a-constant-is-run",
        _PASSES + "schedule.c",
        "if (is_view(graph, id)) return false;",
        "",
        python("tests/null/test_planning.py::test_a_view_of_a_constant_is_nothing_to_run"),
    ),
    Mutant(
        "epilogue-changes-the-kernel",
        _PASSES + "epilogue.c",
        "*out_taken = kernel && kernel == own;",
        "*out_taken = kernel != NULL;",
        python(_EPILOGUES),
    ),
    Mutant(
        "residual-is-any-type",
        _CPU + "matmul_nodes.h",
        "if (!hl_type_equal(residual, hl_node_out_type(graph, node, 0)))",
        "if (hl_node_out_type(graph, node, 0) == NULL)",
        python(_EPILOGUES),
    ),
    Mutant(
        "residual-of-the-first-matrix",
        _CPU + "matmul_nodes.h",
        "if (gemm.epilogue.residual) gemm.epilogue.residual += matrix * size;",
        "",
        python(_EPILOGUES),
    ),
    Mutant(
        "operand-of-any-form",
        "csrc/backend/backend.c",
        "if (form != read)",
        "if (form && !read)",
        c("test_backend"),
    ),
    Mutant(
        "programs-for-any-kernel",
        "csrc/backend/backend.c",
        "if (hl_fusion_find(node, kernel->fusions) >= 0) return HL_OK;",
        "return HL_OK;",
        c("test_backend"),
    ),
    Mutant(
        "dropped-gradient-is-not-scaled",
        _CUDA + "norm.c",
        "return scale ? (float)scale->number : 1.0f;",
        "return 1.0f;",
        host("test_device_epilogues"),
    ),
    Mutant(
        "mask-of-the-next-row",
        _CUDA + "norm.cu",
        "lane / DRAWN * DRAWN + j - j0",
        "lane / DRAWN * DRAWN + (j - j0 + 1) % DRAWN",
        host("test_device_epilogues"),
    ),
    Mutant(
        "entry-of-a-region-is-rewritten",
        _PASSES + "layout.c",
        "if (s->is_entry[node.out]) continue;",
        "",
        python("tests/ops/test_layout.py"),
    ),
    Mutant(
        "epilogues-look-at-every-node",
        _PASSES + "epilogue.c",
        "    if (value >= s->n_used) return;",
        "    for (int64_t i = 0; i < graph->n_nodes; i++)\n"
        "        replace_operands(s, (hl_node_id)i, from, to);\n"
        "    if (value >= s->n_used) return;",
        python("tests/null/test_planning.py::test_a_loop_over_steps_is_planned_in_linear_time"),
    ),
    Mutant(
        "order-is-its-own-inverse",
        "csrc/ops/permute.c",
        "invert(&out_order, back.at);",
        "back = out_order;",
        c("test_vjp"),
    ),
    Mutant(
        "followers-of-float32-round-norms",
        _PASSES + "amp.c",
        "if (in != value && hl_op_role_in(node->op, i) == 'f' && !is_drawn &&",
        "if (in == HL_NONE && hl_op_role_in(node->op, i) == 'f' && !is_drawn &&",
        c("test_amp"),
    ),
    Mutant(
        "dropout-rounds-before-it-scales",
        _PASSES + "epilogue.c",
        "if (node->op != HL_OP_CAST || s->rounds_to == HL_DTYPE_COUNT) return false;",
        "if (node->op == HL_OP_CAST || s->rounds_to == HL_DTYPE_COUNT) return false;",
        host("test_device_epilogues"),
    ),
    Mutant(
        "failing-driver-is-a-refusal",
        _CUDA + "lt_heuristics.c",
        "    HL_TRY(hl_cuda_enter(base));\n    hl_mutex_lock(&device->library_lock);",
        '    if (hl_cuda_enter(base) != HL_OK) return hl_reason_set(out_why_not, "?");\n'
        "    hl_mutex_lock(&device->library_lock);",
        host("test_device_cublaslt"),
    ),
    Mutant(
        "relu-of-what-dropout-left-is-any",
        _PASSES + "relu.c",
        "if (find_factor(node, factor) == mask)",
        "if (find_factor(node, factor) != HL_NONE)",
        host("test_device_epilogues"),
    ),
    Mutant(
        "phases-see-the-first-alone",
        "csrc/plan/run.c",
        "launch.phase = run->phase;",
        "launch.phase = 1 - 1;",
        c("test_plan"),
    ),
    Mutant(
        "gelu-without-its-cube",
        "csrc/ir/pointwise_functions.def",
        "REAL t = F(tanh)((x + x * x * x * cube) * slope);",
        "REAL t = F(tanh)((x + x * x * cube) * slope);",
        python("tests/ops/test_values.py"),
    ),
]
