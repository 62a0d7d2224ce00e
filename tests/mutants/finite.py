"""Mutants of what is not finite in a step: where it began, and that looking changes nothing."""

from mutants.mutant import Mutant, c, python

_FINITE, _RUNNER = "csrc/plan/finite.c", "csrc/plan/runner.c"
_RUN = "python/hotloop/training/run/"
_TESTS = "tests/train/test_not_finite.py::"

MUTANTS = [
    Mutant(
        "every-value-that-is-not-finite-is-nan",
        _FINITE,
        "state->n_nan += is_nan;",
        "state->n_nan += 1;",
        c("test_finite"),
    ),
    Mutant(
        "the-last-element-is-the-first-that-is-not-finite",
        _FINITE,
        "if (!state->n_nan && !state->n_infinite) state->first = i;",
        "state->first = i;",
        c("test_finite"),
    ),
    Mutant(
        "leaves-are-looked-at-in-one-segment",
        _FINITE,
        "f->values[id].seen == f->n_segments)",
        "f->values[id].seen)",
        c("test_finite"),
    ),
    Mutant(
        "what-the-loss-scale-makes-infinite-is-reported",
        _FINITE,
        "return f->is_scaled &&",
        "return f->is_scaled && !f->is_scaled &&",
        c("test_finite"),
    ),
    Mutant(
        "every-micro-batch-is-the-first",
        _FINITE,
        "f->n_micro += segment == HL_SEGMENT_MICRO;",
        "f->n_micro = 0;",
        c("test_finite"),
    ),
    Mutant(
        "a-nan-of-the-data-is-an-anomaly",
        _FINITE,
        "        if (state_of(f, node->in[j])->n_nan) return;\n",
        "        if (state_of(f, node->in[j])->n_nan < 0) return;\n",
        python(_TESTS + "test_what_is_an_anomaly"),
    ),
    Mutant(
        "an-infinite-constant-is-a-beginning",
        _FINITE,
        "if (leaf == HL_NONE && made == HL_NONE && nan_only)",
        "if (leaf == HL_NONE && made == HL_NONE)",
        python(_TESTS + "test_infinite_operands_of_a_constant_are_no_beginning"),
    ),
    Mutant(
        "an-infinity-behind-a-nan-is-not-sought",
        _FINITE,
        "if (f->found.first.reads_infinity) infinite = find_origin(f, false);",
        "",
        python(_TESTS + "test_training_names_the_node"),
    ),
    Mutant(
        "gradients-are-of-no-op",
        "csrc/passes/autodiff.c",
        "graph->gradient_of = info->name;",
        "graph->gradient_of = NULL;",
        python(_TESTS + "test_training_names_the_node"),
    ),
    Mutant(
        "a-step-is-looked-into-as-the-next-one",
        _RUNNER,
        "control.attempted = step - 1;",
        "control.attempted = step;",
        c("test_finite"),
    ),
    Mutant(
        "a-step-that-stopped-is-looked-into-stopped",
        _RUNNER,
        "    control.stopped = 0;\n",
        "",
        c("test_finite"),
    ),
    Mutant(
        "what-looking-changes-stays",
        _RUNNER,
        "    status = hl_backup_restore(&backup, status);\n",
        "",
        c("test_finite"),
    ),
    Mutant(
        "a-step-is-looked-into-as-it-was-captured",
        "csrc/plan/queue.c",
        "!queue->step.refreshes && !queue->finite;",
        "!queue->step.refreshes;",
        c("test_finite"),
    ),
    Mutant(
        "an-epoch-ends-by-time-before-its-stop-is-seen",
        _RUNNER,
        "!is_end_of_epoch(call) && is_over(call, out_end)",
        "is_over(call, out_end)",
        c("test_finite"),
    ),
    Mutant(
        "the-step-behind-the-one-that-stopped-is-looked-into",
        _RUN + "anomaly.py",
        "(step - self._first - 1) * self.k",
        "(step - self._first) * self.k",
        python(_TESTS + "test_the_micro_batch_is_named"),
    ),
    Mutant(
        "a-resumed-run-forgets-its-first-skipped-step",
        _RUN + "anomaly.py",
        "self.text = text if self._skips else None",
        "self.text = None",
        python(_TESTS + "test_a_run_that_is_resumed"),
    ),
    Mutant(
        "an-overflow-of-the-scale-is-warned-of",
        _RUN + "stepping.py",
        'math.isfinite(done["loss"]) and control["loss_scale"] != 1',
        'math.isfinite(done["loss"]) and control["loss_scale"] < 0',
        python(_TESTS + "test_the_scale_of_float16_is_no_anomaly"),
    ),
    Mutant(
        "an-anomaly-ends-training-quietly",
        _RUN + "loop.py",
        'config.on_nan == "raise" or config.detect_anomaly',
        'config.on_nan == "raise"',
        python(_TESTS + "test_what_is_an_anomaly"),
    ),
    Mutant(
        "float16-is-silent-of-a-loss-that-is-not-finite",
        _RUN + "fit.py",
        "is_usual = is_scaled and result.not_finite is None",
        "is_usual = is_scaled",
        python(_TESTS + "test_what_is_said"),
    ),
    Mutant(
        "an-evaluation-ends-a-stop",
        _RUN + "stepping.py",
        "            session.control_set(stopped=stopped)\n",
        "            pass\n",
        python("tests/train/test_stepper.py::test_on_nan_stop_says_that_it_is_stopped"),
    ),
    Mutant(
        "precisions-are-compared-at-other-steps",
        "python/hotloop/training/plans/precision.py",
        "scratch.session.control_set(attempted=0)",
        "pass",
        python("tests/train/test_precision.py::test_the_check_tries_one_step_at_each_scale"),
    ),
]
