"""Mutants of recurrences: kernels of CPU and GPU, the gradient's nodes, lengths, layers."""

from mutants.mutant import Mutant, c, cuda, host, python

_KERNELS, _OPS = "kernels/cpu/recurrence_nodes.h", "csrc/ops/recurrence.c"
_GPU, _LAUNCHER = "kernels/cuda/recurrence.cu", "kernels/cuda/recurrence.c"
_GPU_TEST, _HOST_TEST = cuda("test_kernels_recurrence"), host("test_device_recurrence")
_LIBRARY = "kernels/cuda/dnn_recurrent.c"
_LAYERS = "tests/api/test_rnn_modules.py"
_BACKWARDS = "tests/ops/test_gradients.py::test_gradient"
_BACKWARDS += "[recurrence-states-gru-5x4x33-reverse-lengths]"

MUTANTS = [
    Mutant(
        "rows-that-wait-have-a-state-of-their-own",
        _KERNELS,
        "for (int64_t copy = 0; copy < c->s->n_copies; copy++)",
        "for (int64_t copy = 0; copy < 1; copy++)",
        python("tests/ops/test_recurrence_16.py::test_units_shared_by_threads"),
    ),
    Mutant(
        "units-read-what-the-same-step-has-made",
        _KERNELS,
        "if (s.by_units) s.n_copies = 2;",
        "",
        python("tests/ops/test_recurrence_16.py::test_units_shared_by_threads"),
    ),
    Mutant(
        "steps-behind-the-end-keep-what-they-had",
        _KERNELS,
        "if (!r->has_projection) clear(at->out, j0, j1);",
        "",
        c("test_cpu_recurrence"),
    ),
    Mutant(
        "last-cell-is-that-of-time",
        _KERNELS,
        "if (ends) at.c = (float *)c->outs[HL_RECURRENCE_C] + n * r->H;",
        "if (t == r->T - 1) at.c = (float *)c->outs[HL_RECURRENCE_C] + n * r->H;",
        c("test_cpu_recurrence"),
    ),
    Mutant(
        "gru-keeps-no-state-in-the-gradient",
        _KERNELS,
        "return dh * update;",
        "return hl_v_zero();",
        c("test_cpu_recurrence"),
    ),
    Mutant(
        "first-step-of-a-short-row-in-reverse",
        _OPS,
        "return hl_build_where(graph, begins, parts[1], *out_id, out_id);",
        "return HL_OK;",
        python(_BACKWARDS),
    ),
    Mutant(
        "order-of-lengths-is-not-asked",
        "csrc/ir/recurrence.h",
        "return r->is_sorted && n > 0 && lengths[n] > lengths[n - 1];",
        "return false;",
        python(_LAYERS + "::test_order_of_packed_sequences"),
    ),
    Mutant(
        "a-layer-apart-has-no-gradient-of-the-states-bias",
        "csrc/ops/recurrent.c",
        ".needs_bias = l.has_state_bias,",
        ".needs_bias = false,",
        c("test_vjp"),
    ),
    Mutant(
        "weights-lie-one-behind-another-in-the-librarys-block",
        _LIBRARY,
        "last->at + last->bytes == piece->at)",
        "last->at < piece->at)",
        host("test_device_recurrent_dnn"),
    ),
    Mutant(
        "layers-whose-lengths-the-step-makes-are-the-librarys",
        _LIBRARY,
        "if (value->kind != HL_VALUE_CONST) return false;",
        "if (value->kind != HL_VALUE_CONST) return true;",
        host("test_device_recurrent_dnn"),
    ),
    Mutant(
        "algorithms-that-no-capture-takes",
        "kernels/cuda/recurrent_dnn.c",
        "if (algo->is_probed) return HL_OK;",
        "return HL_OK;",
        host("test_device_recurrent_dnn"),
    ),
    Mutant(
        "any-workspace-for-a-layer",
        _LIBRARY,
        "return algo->work_bytes > most_workspace(d)",
        "return algo->work_bytes < most_workspace(d) / 4096",
        host("test_device_recurrent_dnn"),
    ),
    Mutant(
        "second-direction-goes-forward",
        "python/hotloop/nn/rnn.py",
        "reverse=way == 1,",
        "reverse=False,",
        python(_LAYERS + "::test_the_second_direction_goes_back"),
    ),
    Mutant(
        "gpu-rows-that-wait-lose-their-state",
        _GPU,
        "E::put(b.operand + b.operand_elements, j, E::row(r), h);",
        "",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-step-reads-the-states-that-it-writes",
        _GPU,
        "T *next = b.operand + (copy ^ 1) * b.operand_elements;",
        "T *next = b.operand + copy * b.operand_elements;",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-steps-without-a-barrier",
        _GPU,
        "copy ^= 1;\n        hl_barrier();",
        "copy ^= 1;",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-gradients-in-one-copy",
        _GPU,
        "        });\n        copy ^= 1;\n    }",
        "        });\n    }",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-gru-keeps-no-state-in-the-gradient",
        _GPU,
        "kept = dh * y[1];",
        "kept = 0;",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-last-state-is-that-of-time",
        _GPU,
        "if (t == (of.is_reverse ? 0 : b.length[r] - 1)) {",
        "if (t == (of.is_reverse ? 0 : of.T - 1)) {",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-first-step-in-reverse-is-that-of-time",
        _GPU,
        "bool begins = t == (of.is_reverse ? b.length[r] - 1 : 0);",
        "bool begins = t == (of.is_reverse ? of.T - 1 : 0);",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-gru-without-its-bias",
        _GPU,
        "if (G == 3 && p.at.bias)",
        "if (false)",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-weight-packed-the-other-way",
        _GPU,
        "int row = is_grad ? term : unit, column = is_grad ? unit : term;",
        "int row = unit, column = term;",
        _GPU_TEST,
    ),
    Mutant(
        "gpu-order-of-lengths-is-not-asked",
        _GPU,
        "(of.is_sorted && n > 0 && length > p.at.lengths[n - 1])",
        "false",
        _HOST_TEST,
    ),
    Mutant(
        "gpu-large-weights-are-read-at-every-step",
        _LAUNCHER,
        "if (n->plan.step_ns > stepwise_ns)",
        "if (n->plan.step_ns < 0)",
        _HOST_TEST,
    ),
]
