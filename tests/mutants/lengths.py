"""Mutants of sequences of several lengths: buckets, padding, the order of batches."""

from mutants.mutant import Mutant, c, python

_DATA, _OF = "python/hotloop/data/", "tests/data/test_sequences.py::"
_TRAINED = "tests/train/test_lengths.py::"
_MODELS = "tests/models/test_sequences.py::"

MUTANTS = [
    Mutant(
        "padding-is-the-sequence-behind",
        _DATA + "padding.py",
        "padded[name] = where(inside, value, padding.fill)",
        "padded[name] = value",
        python(_OF + "test_batches"),
    ),
    Mutant(
        "statistics-of-the-sequences-behind",
        _DATA + "split.py",
        "begins = begins[sequences.left[begins] > i]",
        "pass",
        python(_OF + "test_statistics_are_of_training_rows_alone"),
    ),
    Mutant(
        "buckets-follow-one-another",
        _DATA + "batching.py",
        "return [turns[i] for i in _core.permutation(seed, _STREAM, epoch, len(turns))]",
        "return turns",
        python(_OF + "test_batches[lengths]"),
    ),
    Mutant(
        "epochs-mix-buckets-alike",
        _DATA + "batching.py",
        "_core.permutation(seed, _STREAM, epoch, len(turns))",
        "_core.permutation(seed, _STREAM, 0, len(turns))",
        python(_OF + "test_the_order_is_decided_by_seed_and_epoch"),
    ),
    Mutant(
        "an-epoch-keeps-the-runners-first-order",
        "python/hotloop/training/run/loop.py",
        "runner.seek(self.epoch, at.batches, self._order)",
        "runner.seek(self.epoch)",
        python(_TRAINED + "test_epochs_have_orders_of_their_own"),
    ),
    Mutant(
        "a-bucket-ends-below-its-length",
        _DATA + "padding.py",
        "np.searchsorted(np.asarray(buckets), lengths)",
        'np.searchsorted(np.asarray(buckets), lengths, side="right")',
        python(_OF + "test_batches[lengths]"),
    ),
    Mutant(
        "buckets-are-as-many-as-may-be",
        _DATA + "padding.py",
        "        if best <= allowed:\n",
        "        if best <= 0:\n",
        python(_OF + "test_no_buckets_of_that_number_have_less_padding"),
    ),
    Mutant(
        "rows-in-padding-have-a-class",
        _DATA + "sequential/sequences.py",
        'fill = IGNORED if field.dtype == "int64" else 0.0',
        "fill = 0.0",
        python(_TRAINED + "test_classes_of_rows_leave_padding_out"),
    ),
    Mutant(
        "padding-is-standardised-in-prediction",
        "python/hotloop/training/predictor.py",
        "tensors[0] = where(inside, tensors[0], fill)",
        "pass",
        python(_TRAINED + "test_standardised_padding_is_what_it_is_said_to_be"),
    ),
    Mutant(
        "attention-over-time-sees-padding",
        "python/hotloop/models/recurrent.py",
        "hidden = ~inside & (lengths[:, None, None] > 0)",
        "hidden = inside & ~inside",
        python(_MODELS + "test_a_row_of_padding_alone_is_zero"),
    ),
    Mutant(
        "another-order-goes-on-in-the-middle",
        "csrc/plan/runner.c",
        "    runner->at = runner->done = 0;\n",
        "",
        c("test_runner"),
    ),
    Mutant(
        "an-order-of-other-plans",
        "csrc/plan/runner.c",
        "if (!has_plan(runner, order[i].plan))\n            return hl_status_set",
        "if (false)\n            return hl_status_set",
        c("test_runner"),
    ),
    Mutant(
        "an-expanded-shape-is-lost",
        "csrc/passes/broadcast.c",
        "!hl_shape_equal(&shape, hl_graph_shape(graph, node->out))",
        "false",
        c("test_hoist"),
    ),
    Mutant(
        "expanded-numbers-stay-in-memory",
        "csrc/passes/broadcast.c",
        "((hl_id *)node->in)[j] = source;",
        "(void)source;",
        c("test_hoist"),
    ),
    Mutant(
        "tcn-takes-any-length",
        "python/hotloop/models/tcn.py",
        "return lengths + check_below(where(lengths == 0, -1, lengths), steps + 1)",
        "return lengths",
        python(_MODELS + "test_tcn_refuses_lengths_that_there_are_not"),
    ),
    Mutant(
        "tcn-takes-an-empty-sequence",
        "python/hotloop/models/tcn.py",
        "check_below(where(lengths == 0, -1, lengths), steps + 1)",
        "check_below(lengths, steps + 1)",
        python(_MODELS + "test_tcn_refuses_lengths_that_there_are_not"),
    ),
    Mutant(
        "mean-of-padding-alone-is-divided-by-nothing",
        "python/hotloop/models/transformer.py",
        "maximum(seen.sum(1), 1)",
        "maximum(seen.sum(1), 0)",
        python(_MODELS + "test_a_row_of_padding_alone_is_zero"),
    ),
    Mutant(
        "empty-sequence-has-weights",
        "python/hotloop/models/recurrent.py",
        "weights = where(inside, F.softmax(where(hidden, -np.inf, scores), 1), 0.0)",
        "weights = F.softmax(where(hidden, -np.inf, scores), 1)",
        python(_MODELS + "test_a_row_of_padding_alone_is_zero"),
    ),
    Mutant(
        "pixels-have-a-channel-of-the-next-one",
        "kernels/cpu/conv_nodes.h",
        "int64_t run = s->is_matrix ? s->in : s->run;",
        "int64_t run = s->run;",
        python("tests/ops/test_conv_16.py::test_infinity_stays_in_its_windows"),
    ),
    Mutant(
        "the-bell-of-gelu-is-twice-as-narrow",
        "csrc/ir/pointwise_functions.def",
        "REAL bell = F(exp)(F(neg)(x * x * half))",
        "REAL bell = F(exp)(F(neg)(x * x))",
        python("tests/ops/test_values.py"),
    ),
    Mutant(
        "matrices-of-several-rows-tried-by-one",
        "python/hotloop/training/plans/operands.py",
        "or _is_by_row(graph, operand, rows)",
        "or True",
        python(
            "tests/train/test_bad_operands.py::test_a_matrix_of_several_rows_is_left_to_the_step"
        ),
    ),
    Mutant(
        "lengths-of-the-data-found-by-the-step",
        "python/hotloop/training/plans/operands.py",
        "for at, kind, sized, dim, of in _LENGTHS.get(op, ()):",
        "for at, kind, sized, dim, of in ():",
        python("tests/train/test_bad_operands.py::test_lengths_of_recurrent_layers"),
    ),
    Mutant(
        "a-row-named-for-another-reason",
        "python/hotloop/training/inference.py",
        "if _without_place(error) == why:",
        "if True:",
        python(
            "tests/train/test_bad_operands.py::test_lengths_of_ctc_that_do_not_add_up_in_the_step"
        ),
    ),
]
