"""Mutants of recomputation: the pass, checkpoints, and what fits a limit."""

from mutants.mutant import Mutant, c, python

_PASS, _PLANS = "csrc/passes/recompute.c", "python/hotloop/training/plans/"
_TESTS = "tests/train/test_recompute.py"
_CHECK = "            self._limit.check_planned(self.predicted_bytes)\n"
_RESOLVE = "            self._resolve()\n"

MUTANTS = [
    Mutant(
        "clone-runs-as-soon-as-it-can",
        _PASS,
        "fence += own > before || s->n_order > first + 1;",
        "fence += own > before;",
        python(f"{_TESTS}::test_gradients_of_parameters_do_not_wait"),
    ),
    Mutant(
        "gradient-of-a-parameter-waits-to-the-end",
        _PASS,
        "if (is_alias_node(graph, node) || hl_uses_by_updates(graph, uses, node)) return true;",
        "if (is_alias_node(graph, node)) return true;",
        python(f"{_TESTS}::test_gradients_of_large_weights_do_not_wait"),
    ),
    Mutant(
        "part-of-a-gradient-waits-for-the-other",
        _PASS,
        "return count_bytes(graph, node->out, node->n_out) * FREED_PART <= read;",
        "return read < 0;",
        python(f"{_TESTS}::test_a_part_of_a_gradient_does_not_wait_for_the_other"),
    ),
    Mutant(
        "value-read-outside-of-its-checkpoint-is-made-again",
        _PASS,
        "                s->is_made[root] = false;\n",
        "                s->is_made[root] = true;\n",
        c("test_recompute"),
    ),
    Mutant(
        "inner-checkpoints-are-kept",
        _PASS,
        "depth <= most; depth++",
        "depth <= (most > 0); depth++",
        python(f"{_TESTS}::test_checkpoints_within_one_another_are_recomputed_twice"),
    ),
    Mutant(
        "boundary-of-a-segment-is-made-again",
        _PASS,
        "if (can_make(s, root) && !is_boundary(c, root))",
        "if (can_make(s, root))",
        c("test_recompute"),
    ),
    Mutant(
        "products-are-made-again-first",
        _PASS,
        "return x->has_products ? 1 : -1;",
        "return x->has_products ? -1 : 1;",
        python(f"{_TESTS}::test_what_costs_least_comes_first"),
    ),
    Mutant(
        "logits-make-all-else-small",
        _PASS,
        "most * SMALL_OF_LARGEST < all * SMALL_OF_ALL",
        "all >= 0",
        python(f"{_TESTS}::test_a_large_vocabulary_does_not_make_all_else_small"),
    ),
    Mutant(
        "fused-node-has-the-first-members-checkpoint",
        "csrc/passes/fuse.c",
        "i < n && !found; i++",
        "i < 1; i++",
        python(f"{_TESTS}::test_a_checkpoint_that_begins_in_a_chain"),
    ),
    Mutant(
        "weight-gradients-wait-behind-a-fence",
        "csrc/passes/schedule.c",
        "if (gradient == HL_NONE && is_late_gradient(s, i)) gradient = i;",
        "",
        python(f"{_TESTS}::test_a_gpus_weight_gradients_wait_for_a_fence_at_most"),
    ),
    Mutant(
        "limit-is-searched-from-above",
        _PLANS + "recomputing.py",
        "high, best, least = middle, middle / n_choices, at",
        "low, best, least = middle, middle / n_choices, at",
        python(f"{_TESTS}::test_the_least_share_is_found_in_few_tries"),
    ),
    Mutant(
        "planning-takes-nothing-of-the-limit",
        _PLANS + "limit.py",
        'return made | {"host_bytes": _core.alloc_stats()["peak_bytes"] - before}',
        'return made | {"host_bytes": 0 * before}',
        python(f"{_TESTS}::test_a_limit_is_kept_with_the_same_bits"),
    ),
    Mutant(
        "share-is-settled-before-the-plan-fits",
        "python/hotloop/training/run/planner.py",
        _CHECK + _RESOLVE,
        _RESOLVE + _CHECK,
        python(f"{_TESTS}::test_what_was_not_predicted_is_met_by_recomputing_more"),
    ),
    Mutant(
        "looking-for-a-nan-knows-no-limit",
        _PLANS + "limit.py",
        "    if needed > room:\n",
        "    if needed > 99 * room:\n",
        python(f"{_TESTS}::test_where_a_nan_began_is_looked_for_within_the_limit"),
    ),
    Mutant(
        "plans-that-look-recompute-nothing",
        _PLANS + "runtime.py",
        'options["recompute"] = 1.0',
        "pass",
        python(f"{_TESTS}::test_each_step_is_looked_into_within_the_limit"),
    ),
    Mutant(
        "checkpoints-by-hand-are-another-model",
        "python/hotloop/training/run/records.py",
        '_CHECKPOINT.sub("", str(trace.graph))',
        "str(trace.graph)",
        python(f"{_TESTS}::test_a_run_goes_on_with_checkpoints_by_hand"),
    ),
    Mutant(
        "precision-is-measured-beyond-the-limit",
        _PLANS + "precision.py",
        "            scratch.recompute = 1.0\n",
        "            pass\n",
        python(f"{_TESTS}::test_a_precision_that_is_measured_stays_within_the_limit"),
    ),
    Mutant(
        "inner-named-module-is-recomputed-twice",
        "python/hotloop/graph/trace.py",
        "        if self._in_recomputed:\n",
        "        if self._in_recomputed and False:\n",
        python(f"{_TESTS}::test_of_named_modules_within_one_another_the_outermost_counts"),
    ),
    Mutant(
        "more-parts-than-are-needed-are-tried",
        "python/hotloop/training/run/planner.py",
        "if (more := next_split(size, parts)) is None:",
        "if (more := next_split(size, size)) is None:",
        python(f"{_TESTS}::test_parts_that_cannot_do_are_not_tried"),
    ),
]
