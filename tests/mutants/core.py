"""Mutants of the core and its kernels, in C."""

from mutants.mutant import Mutant, c, host, python

_PASSES, _CPU, _CUDA = "csrc/passes/", "kernels/cpu/", "kernels/cuda/"
_FILES, _PLAN = "csrc/base/os_linux_file.c", "csrc/plan/"
_EPILOGUES = "tests/ops/test_epilogues.py"

_KERNELS = [
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
        "residual-of-the-first-columns",
        _CPU + "matmul_nodes.h",
        "if (part.epilogue.residual) part.epilogue.residual += col;",
        "",
        python(_EPILOGUES),
    ),
    Mutant(
        "residual-is-overwritten-before-it-is-added",
        _CPU + "matmul_nodes.h",
        "    if (hl_gemm_is_one_block(gemm)) out_req->in_place[0]",
        "    out_req->in_place[0]",
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

_TUNING = [
    Mutant(
        "plan-of-what-was-refused-meanwhile",
        _PLAN + "build.c",
        "status != HL_ERROR_DEVICE || n == count_refusals(device);",
        "true || n == count_refusals(device);",
        host("test_device_tune"),
    ),
    Mutant(
        "constants-of-the-plan-before",
        _PLAN + "build.c",
        "    SWAP(a, b, consts);\n",
        "",
        host("test_device_tune"),
    ),
    Mutant(
        "tuned-on-the-models-zeros",
        _PLAN + "tune.c",
        "is_in_arena(o->plan, o->args[i]) ? NULL : find_place",
        "true ? NULL : find_place",
        host("test_device_tune"),
    ),
    Mutant(
        "as-fast-is-fast-enough",
        _CUDA + "matmul_tune.c",
        "MARGIN = 0.97f",
        "MARGIN = 1.0f",
        host("test_device_tune"),
    ),
    Mutant(
        "measured-on-a-cold-clock",
        _CUDA + "matmul_tune.c",
        "WARM_MS = 5,",
        "WARM_MS = 0,",
        host("test_device_tune"),
    ),
    Mutant(
        "kernels-apart-cost-nothing",
        _CUDA + "matmul_tune.c",
        "return product->ms + copy->ms *",
        "return product->ms + 0 * copy->ms *",
        host("test_device_tune"),
    ),
    Mutant(
        "relu-may-drop-nan",
        _CUDA + "matmul_tune.c",
        "*out_found |= !is_nan(sample, type, i);",
        "*out_found &= !is_nan(sample, type, i);",
        host("test_device_tune"),
    ),
    Mutant(
        "sums-may-vary",
        _CUDA + "matmul_tune.c",
        "if (digest[0] != digest[1])",
        "if (!digest[0])",
        host("test_device_tune"),
    ),
    Mutant(
        "measured-in-plans-that-are-not",
        _CUDA + "lt_refusals.c",
        "[HL_LT_COSTS_MORE] = benchmark",
        "[HL_LT_COSTS_MORE] = benchmark | 1",
        host("test_device_tune"),
    ),
    Mutant(
        "bias-at-any-address",
        _CUDA + "lt_product.c",
        "if (least >= ALIGN_BESIDE) return true;",
        "if (least >= 4) return true;",
        host("test_device_cublaslt"),
    ),
]

_RUNS = [
    Mutant(
        "file-is-not-on-the-disk",
        _FILES,
        "fsync(file.descriptor) != 0",
        "0",
        c("test_base_file"),
    ),
    Mutant(
        "name-is-not-on-the-disk",
        _FILES,
        "!error && fsync(directory.descriptor) != 0",
        "error",
        c("test_base_file"),
    ),
    Mutant(
        "loaders-fill-slots-that-are-being-sent",
        _PLAN + "dataset.c",
        "session->queue ? hl_queue_drain_copies(session->queue) : HL_OK",
        "HL_OK",
        c("test_queue"),
    ),
    Mutant(
        "fault-is-of-the-latest-plan",
        _PLAN + "fault.c",
        "plan->number != hl_control_fault_plan(error_code)",
        "plan->number < 0",
        c("test_queue"),
    ),
    Mutant(
        "window-changes-while-it-runs",
        _PLAN + "runner.c",
        '    HL_TRY(hl_session_enter(plan->session, "k"));\n',
        "",
        c("test_plan_run"),
    ),
    Mutant(
        "step-that-was-given-up-is-queued",
        _PLAN + "queue.c",
        "int32_t ok = 1;\n    queue->run = (segment_run){0};",
        "int32_t ok = 1;",
        c("test_runner"),
    ),
    Mutant(
        "launches-are-replayed-in-memory-that-is-gone",
        _PLAN + "bind.c",
        "if (session->queue) hl_queue_drop_captures(session->queue, plan);",
        "",
        c("test_plan_values"),
    ),
    Mutant(
        "kernels-read-the-data-of-before",
        _PLAN + "dataset.c",
        "NULL : (void *)data;\n    plan->generation = -1;",
        "NULL : (void *)data;",
        c("test_plan_values"),
    ),
    Mutant(
        "first-slot-alone-is-cleared",
        _PLAN + "dataset.c",
        "(size_t)(plan->slot_bytes * plan->n_slots), session->compute",
        "(size_t)plan->slot_bytes, session->compute",
        c("test_plan_values"),
    ),
]

_GRAPHS = [
    Mutant(
        "rounded-copy-outlives-an-update",
        _PASSES + "amp.c",
        "s->made[value] == segment ||",
        "true ||",
        c("test_amp"),
    ),
    Mutant(
        "other-results-are-not-replaced",
        _PASSES + "amp.c",
        "bool rounded = ",
        "if (j) break;\n        bool rounded = ",
        c("test_amp"),
    ),
    Mutant(
        "fill-is-hoisted-away-from-its-writer",
        _PASSES + "hoist.c",
        "if (!goes_with_reader(graph, &uses, (hl_node_id)i))",
        "",
        c("test_passes"),
    ),
    Mutant(
        "fill-stands-in-another-segment-than-its-writer",
        _PASSES + "hoist.c",
        "    hl_graph_stand_by(graph, &node);\n",
        "",
        c("test_passes"),
    ),
    Mutant(
        "numbers-alone-are-not-doubles",
        "csrc/ir/program.c",
        "numel(&type->shape) == 1 && n != 1;",
        "numel(&type->shape) == 1;",
        c("test_ir"),
    ),
    Mutant(
        "value-joins-its-copy-behind-a-fence",
        _PASSES + "fuse.c",
        "x->segment == y->segment && x->fence == y->fence",
        "x->segment == y->segment",
        c("test_passes"),
    ),
    Mutant(
        "fence-between-others-keeps-them-apart",
        _PASSES + "fuse.c",
        "    if (x->fence != y->fence) return x->fence < y->fence ? -1 : 1;\n",
        "",
        c("test_passes"),
    ),
    Mutant(
        "split-that-is-hardly-read-stays",
        _PASSES + "lower.c",
        "(!kernel || is_mostly_unread(&uses, &node))",
        "!kernel",
        c("test_passes"),
    ),
    Mutant(
        "split-that-is-read-by-half-stays",
        _PASSES + "lower.c",
        "n_read <= node->n_out - n_read",
        "n_read < node->n_out - n_read",
        c("test_passes"),
    ),
    Mutant(
        "update-misses-a-reader-of-more",
        _PASSES + "schedule.c",
        "same && reads[r - 1].reach > reads[r].end ? reads[r - 1].reach : reads[r].end;",
        "same ? reads[r].end : reads[r].end;",
        c("test_schedule"),
    ),
    Mutant(
        "rows-that-do-not-fit-are-one-chain",
        _PASSES + "schedule.c",
        "return req->rows % rows == 0 || rows % req->rows == 0 ? chain : JOIN_NO;",
        "return chain;",
        c("test_schedule"),
    ),
]

MUTANTS = [*_KERNELS, *_TUNING, *_RUNS, *_GRAPHS]
