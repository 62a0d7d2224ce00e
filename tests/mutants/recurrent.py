"""Mutants of recurrences: the CPU's kernels, the gradient's nodes, lengths, layers."""

from mutants.mutant import Mutant, c, python

_KERNELS, _OPS = "kernels/cpu/recurrence_nodes.h", "csrc/ops/recurrence.c"
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
        "second-direction-goes-forward",
        "python/hotloop/nn/rnn.py",
        "reverse=way == 1,",
        "reverse=False,",
        python(_LAYERS + "::test_the_second_direction_goes_back"),
    ),
]
