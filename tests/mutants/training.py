"""Mutants of python/hotloop/training and python/hotloop/nn: losses, metrics, weights, counters."""

from mutants.mutant import Mutant, python

_TRAINING = "python/hotloop/training/"
_LOSSES, _METRICS = _TRAINING + "losses.py", _TRAINING + "metrics.py"
_STEPS, _FIT, _STEPPING = _TRAINING + "steps.py", _TRAINING + "fit.py", _TRAINING + "stepping.py"
_RUNTIME, _INFERENCE = _TRAINING + "runtime.py", _TRAINING + "inference.py"
_SCHEDULE, _PRECISION = _TRAINING + "schedule.py", _TRAINING + "precision.py"
_SAVING, _NORM = _TRAINING + "saving.py", "python/hotloop/nn/norm.py"

_TESTS = "tests/train/test_"
_FEATURES, _USING = _TESTS + "features.py::", _TESTS + "using.py::"
_RULES, _JUDGED = _TESTS + "loss_rules.py::", _TESTS + "judgement.py::"
_SCORES, _OPTIMIZERS = _TESTS + "metrics.py::", _TESTS + "optimizers.py"
_BEST = _FEATURES + "test_the_best_epoch_has_its_own_statistics"
_CUT = _USING + "test_a_logit_is_cut_at_zero"
_GOES_ON = _USING + "test_stepper_state_counts_applied_steps_and_attempted_ones"
_SCHEDULES = "tests/api/test_schedule.py::"

_LOSS = [
    Mutant(
        "weighted-loss-divided-by-rows",
        _LOSSES,
        "(rows * weight).sum(), weight.sum()",
        "(rows * weight).sum(), weight.sum() * 0.0 + float(weight.shape[0])",
        python(_FEATURES + "test_sample_weights"),
    ),
    Mutant(
        "weighted-loss-sums-columns",
        _LOSSES,
        "rows = rows.reshape(rows.shape[0], -1).mean(1)",
        "rows = rows.reshape(rows.shape[0], -1).sum(1)",
        python(_FEATURES + "test_sample_weights"),
    ),
    Mutant(
        "balanced-weights-count-absent-classes",
        _LOSSES,
        "total / (present * count) if count",
        "total / (n * count) if count",
        python(_RULES + "test_balanced_weights_are_these"),
    ),
    Mutant(
        "absent-class-weighs-nothing",
        _LOSSES,
        "if count else 1.0 for count in counts",
        "if count else 0.0 for count in counts",
        python(_RULES + "test_balanced_weights_are_these"),
    ),
    Mutant(
        "positive-weight-inverted",
        _LOSSES,
        "[class_weight[1] / class_weight[0]]",
        "[class_weight[0] / class_weight[1]]",
        python(_RULES + "test_one_logit_weighs_class_1_by_the_weights_ratio"),
    ),
    Mutant(
        "vector-of-logits-is-no-single-logit",
        _LOSSES,
        "one_logit = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)",
        "one_logit = len(shape) == 2 and shape[1] == 1",
        python(_RULES + "test_one_logit_weighs_class_1_by_the_weights_ratio"),
    ),
    Mutant(
        "margin-loss-has-no-link",
        _LOSSES,
        '        "multilabel_soft_margin_loss": "sigmoid",\n',
        "",
        python(_RULES + "test_probabilities_are_those_of_the_loss"),
    ),
    Mutant(
        "log-probabilities-are-softmaxed",
        _LOSSES,
        '"nll_loss": "exp",',
        '"nll_loss": "softmax",',
        python(_RULES + "test_probabilities_are_those_of_the_loss"),
    ),
    Mutant(
        "labels-of-one-logit-cut-at-half",
        _INFERENCE,
        "(flat > 0).astype(np.int64)",
        "(flat > 0.5).astype(np.int64)",
        python(_CUT),
    ),
    Mutant(
        "metrics-of-one-logit-cut-at-half",
        _METRICS,
        "output.reshape(output.shape[0]) > 0.0",
        "output.reshape(output.shape[0]) > 0.5",
        python(_CUT),
    ),
    Mutant(
        "functions-see-one-logit-cut-at-half",
        _METRICS,
        "predicted.reshape(-1) > 0)",
        "predicted.reshape(-1) > 0.5)",
        python(_CUT),
    ),
    Mutant(
        "columns-of-logits-cut-at-half",
        _METRICS,
        "((output > 0.0).cast",
        "((output > 0.5).cast",
        python(_USING + "test_columns_of_logits_are_cut_at_zero"),
    ),
    Mutant(
        "macro-average-over-actual-classes",
        _METRICS,
        "present = (predicted + actual) > 0",
        "present = actual > 0",
        python(_SCORES + "test_scores_of_a_table"),
    ),
    Mutant(
        "recall-of-absent-classes-counts",
        _METRICS,
        "    present = actual > 0\n    return",
        "    present = actual >= 0\n    return",
        python(_SCORES + "test_scores_of_a_table"),
    ),
    Mutant(
        "weights-of-rows-left-out-of-accuracy",
        _METRICS,
        "hits = right if weight is None else right * weight",
        "hits = right",
        python(_SCORES + "test_classification"),
    ),
    Mutant(
        "functions-see-targets-beyond-the-outputs",
        _METRICS,
        'np.concatenate([batch["y"] for batch in batches])[: len(predicted)]',
        'np.concatenate([batch["y"] for batch in batches])',
        python(_FEATURES + "test_overfit_batches_are_the_same_rows_in_each_epoch"),
    ),
]

_STEP = [
    Mutant(
        "mean-loss-not-weighed-by-its-rows",
        _STEPS,
        "scale = 1.0 if term.denominator is not None else float(rows)",
        "scale = 1.0",
        python(_FEATURES + "test_an_epochs_losses_are_means_over_its_rows"),
    ),
    Mutant(
        "factor-of-a-loss-left-out-of-history",
        _STEPS,
        "term.total * (scale * term.weight)",
        "term.total * scale",
        python(_FEATURES + "test_an_epochs_losses_are_means_over_its_rows"),
    ),
    Mutant(
        "history-has-the-last-term-of-a-sum",
        _STEPS,
        "losses[name] = losses.get(name, 0.0) + share",
        "losses[name] = share",
        python(_FEATURES + "test_an_epochs_losses_are_means_over_its_rows"),
    ),
    Mutant(
        "last-group-that-matches-counts",
        _STEPS,
        "decay = decay if group.weight_decay is None else group.weight_decay\n"
        "                    break\n",
        "decay = decay if group.weight_decay is None else group.weight_decay\n",
        python(_FEATURES + "test_the_first_group_that_matches_counts"),
    ),
    Mutant(
        "parameter-without-gradient-is-decayed",
        _STEPS,
        "            if slot.name in self.no_grad:\n                continue\n",
        "",
        python(_FEATURES + "test_a_parameter_without_a_gradient_is_not_decayed"),
    ),
    Mutant(
        "segments-join-over-a-gap",
        _STEPS,
        "segments[-1][1:] == (begin, scale, decay)",
        "segments[-1][2:] == (scale, decay)",
        python(_FEATURES + "test_a_parameter_without_a_gradient_is_not_decayed"),
    ),
    Mutant(
        "biases-are-decayed",
        _STEPS,
        "len(slot.owner.shape) < 2",
        "len(slot.owner.shape) < 1",
        python(_FEATURES + "test_bias_is_not_decayed"),
    ),
    Mutant(
        "adam-has-beta1-twice",
        _STEPS,
        '"beta2": beta2,\n            "eps"',
        '"beta2": beta1,\n            "eps"',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "lion-has-its-betas-swapped",
        _STEPS,
        '"lion", {"beta1": beta1, "beta2": beta2}',
        '"lion", {"beta1": beta2, "beta2": beta1}',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "sgd-is-not-dampened",
        _STEPS,
        '"dampening": optimizer.dampening,',
        '"dampening": 0.0,',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "adam-decays-as-adamw",
        _STEPS,
        'int(name == "adamw")',
        "1",
        python(_OPTIMIZERS),
    ),
    Mutant(
        "two-micro-batches-are-not-accumulated",
        _STEPS,
        '"accumulate": config.accumulate_grad_batches > 1',
        '"accumulate": config.accumulate_grad_batches > 2',
        python(_TESTS + "accumulation.py::test_equals_full_batch"),
    ),
    Mutant(
        "validation-is-shuffled",
        _STEPS,
        "feeds(name, groups, training=False",
        "feeds(name, groups, training=True",
        python(_CUT, _SCORES + "test_python_metric_sees_the_whole_split"),
    ),
]

_RUN = [
    Mutant(
        "fraction-of-batches-one-too-many",
        _FIT,
        "max(1, int(n * limit + 1e-9))",
        "max(1, int(n * limit + 1))",
        python(_FEATURES + "test_a_fraction_of_the_batches_is_rounded_down"),
    ),
    Mutant(
        "limit-counts-groups-of-batches",
        _FIT,
        "                    left -= count\n",
        "                    left -= 1\n",
        python(_FEATURES + "test_a_fraction_of_the_batches_is_rounded_down"),
    ),
    Mutant(
        "overfit-batches-are-shuffled",
        _FIT,
        "shuffled = self.config.overfit_batches is None  # the same",
        "shuffled = True  # the same",
        python(_FEATURES + "test_overfit_batches_are_the_same_rows_in_each_epoch"),
    ),
    Mutant(
        "best-is-restored-without-buffers",
        _FIT,
        "        for name in self.runtime.layout.stores():\n"
        '            session.copy(name, f"best.{name}")\n',
        '        session.copy("param", "best.param")\n',
        python(_BEST),
    ),
    Mutant(
        "best-is-kept-without-buffers",
        _FIT,
        "        for name in self.runtime.layout.stores():\n"
        '            session.copy(f"best.{name}", name)\n',
        '        session.copy("best.param", "param")\n',
        python(_BEST),
    ),
    Mutant(
        "average-stays-in-the-place-of-the-weights",
        _FIT,
        '        if average is not None:\n            session.write("param", average)\n',
        "",
        python(_FEATURES + "test_ema"),
    ),
    Mutant(
        "average-begins-at-zero",
        _FIT,
        "        if config.ema:\n"
        '            self.runtime.session.write("ema", self._trainable_values())\n',
        "",
        python(_FEATURES + "test_ema"),
    ),
    Mutant(
        "validation-leaves-the-average",
        _FIT,
        '        if backup is not None:\n            session.write("param", backup)\n',
        "",
        python(_FEATURES + "test_ema"),
    ),
    Mutant(
        "validation-adds-to-the-last-one",
        _FIT,
        "        self._val_sums.clear(session)\n",
        "",
        python(_FEATURES + "test_sample_weights"),
    ),
    Mutant(
        "epochs-have-one-order",
        _FIT,
        "        runner.seek(self.epoch)\n",
        "        runner.seek(0)\n",
        python(_FEATURES + "test_plain_sgd"),
    ),
    Mutant(
        "bad-rounds-add-up-over-improvements",
        _FIT,
        "self._best, self._best_epoch, self._bad_rounds = value, self.epoch, 0",
        "self._best, self._best_epoch = value, self.epoch",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "patience-is-one-longer",
        _FIT,
        "self._bad_rounds >= stopping.patience",
        "self._bad_rounds > stopping.patience",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "min-delta-is-enough",
        _FIT,
        "return gain > min_delta",
        "return gain >= min_delta",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "infinity-is-the-best",
        _FIT,
        "        if not math.isfinite(value):\n            return False\n        if self._best",
        "        if self._best",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "plateau-watches-the-monitor",
        _FIT,
        "row[self._plateau_monitor])",
        "row[self._monitor])",
        python(_JUDGED + "test_a_plateau_watches_its_own"),
    ),
    Mutant(
        "alias-of-a-metric-has-no-direction",
        _TRAINING + "config.py",
        "known if isinstance(known, str) else monitor",
        "monitor",
        python(_JUDGED + "test_a_metric_under_another_name_keeps_its_direction"),
    ),
    Mutant(
        "max-steps-counts-skipped-steps",
        _FIT,
        "self._not_applied = self._attempted - applied",
        "self._not_applied = 0",
        python(_JUDGED + "test_max_steps_counts_steps_that_were_applied"),
    ),
    Mutant(
        "result-counts-attempted-steps",
        _FIT,
        'steps=control["applied"],',
        'steps=control["attempted"],',
        python(_JUDGED + "test_max_steps_counts_steps_that_were_applied"),
    ),
    Mutant(
        "samples-of-one-micro-batch-in-a-step",
        _FIT,
        "self._count_rows(done + batches)",
        "self._count_rows(done + ran)",
        python(_JUDGED + "test_samples_and_seconds"),
    ),
    Mutant(
        "another-plan-of-a-window-opens-it-anew",
        "csrc/plan/runner.c",
        "        enter_step(call, true);\n",
        "        enter_step(call, false);\n",
        python(_TESTS + "accumulation.py::test_equals_full_batch"),
    ),
    Mutant(
        "window-is-a-micro-batch-too-long",
        "csrc/plan/runner.c",
        "bool is_end = ++state->micro == call->k;",
        "bool is_end = ++state->micro > call->k;",
        python(_TESTS + "accumulation.py::test_equals_full_batch"),
    ),
    Mutant(
        "history-has-no-skipped-steps",
        _FIT,
        'row["skipped"] = float(control["skipped"])',
        'row["skipped"] = 0.0',
        python(_JUDGED + "test_a_skipped_step_is_logged_with_its_epoch"),
    ),
    Mutant(
        "loss-is-not-scaled",
        _FIT,
        "        start_scale(self.runtime.session, self.config.precision)\n",
        "",
        python(_TESTS + "precision.py::test_history_shows_the_scale"),
    ),
    Mutant(
        "validation-never-ends",
        _FIT,
        "        for plan, count, feed, _ in self._val_plans:\n            feed.seek(0)\n",
        "        for plan, count, feed, _ in self._val_plans:\n",
        python(_FEATURES + "test_validation_every_few_epochs"),
        hangs=True,
    ),
]

_STATE = [
    Mutant(
        "applied-restored-from-attempted",
        _STEPPING,
        "applied=int(applied))",
        "applied=int(attempted))",
        python(_GOES_ON),
    ),
    Mutant(
        "attempted-restored-from-applied",
        _STEPPING,
        "attempted=int(attempted),",
        "attempted=int(applied),",
        python(_GOES_ON),
    ),
    Mutant(
        "moments-are-not-restored",
        _STEPPING,
        "                session.write(name, value)\n",
        "                pass\n",
        python(_USING + "test_stepper_state_goes_on"),
    ),
    Mutant(
        "step-says-attempted-for-applied",
        _STEPPING,
        '"step": done["applied"],',
        '"step": done["attempted"],',
        python(_GOES_ON),
    ),
    Mutant(
        "evaluation-of-a-stepper-adds-up",
        _STEPPING,
        "        sums.clear(self._runtime.session)\n",
        "",
        python(_USING + "test_stepper_evaluate"),
    ),
    Mutant(
        "loss-of-a-stepper-is-not-scaled",
        _STEPPING,
        "        start_scale(self._runtime.session, self.config.precision)\n",
        "",
        python(_TESTS + "precision.py::test_a_stepper_scales_the_loss_as_train_does"),
    ),
    Mutant(
        "number-of-the-next-step",
        _RUNTIME,
        'int(self.session.control()["applied"]) - 1, 0)',
        'int(self.session.control()["applied"]), 0)',
        python(_TESTS + "numbers.py::test_in_a_loop_of_ones_own_a_number_moves_too"),
    ),
    Mutant(
        "plan-made-between-steps-keeps-its-numbers",
        _RUNTIME,
        "self._tables is not None and not training",
        "self._tables is not None",
        python(_TESTS + "numbers.py::test_in_a_loop_of_ones_own_a_number_moves_too"),
    ),
    Mutant(
        "standardised-by-multiplication",
        _RUNTIME,
        "(fields[name] - trace.const(mean)) / trace.const(std)",
        "(fields[name] - trace.const(mean)) * trace.const(std)",
        python(_USING + "test_training_sees_standardized_inputs"),
    ),
    Mutant(
        "other-data-is-not-standardised",
        _INFERENCE,
        "transforms=known.transforms if known else None",
        "transforms=None",
        python(_USING + "test_training_sees_standardized_inputs"),
    ),
    Mutant(
        "forward-takes-the-plan-of-predict",
        _INFERENCE,
        "key = (shapes, repr(spec), path, fitted, numbers)",
        "key = (shapes, repr(spec), path, numbers)",
        python(_USING + "test_training_sees_standardized_inputs"),
    ),
    Mutant(
        "plan-used-last-is-dropped",
        _INFERENCE,
        "self._plans.popitem(last=False)",
        "self._plans.popitem(last=True)",
        python(_USING + "test_predict_keeps_the_plans_used_last"),
    ),
    Mutant(
        "row-is-counted-from-its-batch",
        _INFERENCE,
        'f"predict: row {first + i}: {what}"',
        'f"predict: row {i}: {what}"',
        python(_USING + "test_a_wrong_id_is_named_by_its_row"),
    ),
    Mutant(
        "restart-comes-an-epoch-late",
        _SCHEDULE,
        "while begins[-1] + lengths[-1] <= last:",
        "while begins[-1] + lengths[-1] < last:",
        python(_SCHEDULES + "test_warm_restarts"),
    ),
    Mutant(
        "warmup-begins-at-zero",
        _SCHEDULE,
        "np.arange(1, ramp + 1) / max(ramp, 1)",
        "np.arange(ramp) / max(ramp, 1)",
        python(_SCHEDULES + "test_plateau_table_is_warmup_only"),
    ),
    Mutant(
        "plateau-forgets-its-cooldown",
        _SCHEDULE,
        'self.cooling = int(state["cooling"] or 0)',
        "self.cooling = 0",
        python(_SCHEDULES + "test_plateau_state"),
    ),
    Mutant(
        "nan-agrees-with-float32",
        _PRECISION,
        "not abs(value - exact) <= allowed",
        "abs(value - exact) > allowed",
        python(_TESTS + "precision.py::test_what_counts_as_agreement"),
    ),
    Mutant(
        "tensors-of-a-file-are-not-aligned",
        _SAVING,
        'b" " * (-len(text) % 8)',
        'b" " * (len(text) % 8)',
        python(_TESTS + "saving.py::test_tensors_are_aligned"),
    ),
    Mutant(
        "values-of-a-loaded-model-are-its-own",
        _SAVING,
        "{name: array.copy() for name, array in self._tensors.items()}",
        "dict(self._tensors)",
        python(_TESTS + "saving.py::test_round_trip"),
    ),
    Mutant(
        "plain-average-has-the-initial-statistics",
        _NORM,
        "momentum = 1.0 / count.float()",
        "momentum = 1.0 / (count.float() + 1.0)",
        python(_FEATURES + "test_running_statistics"),
    ),
    Mutant(
        "batches-are-counted-twice",
        _NORM,
        "count = self.num_batches_tracked + 1",
        "count = self.num_batches_tracked + 2",
        python(_FEATURES + "test_running_statistics"),
    ),
]

MUTANTS = [*_LOSS, *_STEP, *_RUN, *_STATE]
