"""Mutants of python/hotloop/training and python/hotloop/nn: losses, metrics, weights, counters."""

from mutants.mutant import Mutant, python

_TRAINING = "python/hotloop/training/"
_LOSSES = _TRAINING + "scoring/losses.py"
_MATCHING = _TRAINING + "scoring/matching.py"
_STEPS, _PRECISION = _TRAINING + "plans/steps.py", _TRAINING + "plans/precision.py"
_OPTIMIZER_OPS = _TRAINING + "plans/optimizers.py"
_RUNTIME, _INFERENCE = _TRAINING + "plans/runtime.py", _TRAINING + "inference.py"
_PLANNER, _LOOP = _TRAINING + "run/planner.py", _TRAINING + "run/loop.py"
_WEIGHTS = _TRAINING + "run/weights.py"
_STEPPING = _TRAINING + "run/stepping.py"
_SCHEDULE = _TRAINING + "config/schedule.py"
_SAVING, _NORM = _TRAINING + "result/saving.py", "python/hotloop/nn/norm.py"

_TESTS = "tests/train/test_"
_FEATURES, _USING = _TESTS + "features.py::", _TESTS + "using.py::"
_STEPPER, _SAID = _TESTS + "stepper.py::", _TESTS + "said.py::"
_RULES, _JUDGED = _TESTS + "loss_rules.py::", _TESTS + "judgement.py::"
_SCORES, _OPTIMIZERS = _TESTS + "metrics.py::", _TESTS + "optimizers.py"
_OWN = _TESTS + "own_losses.py::"
_OWN_METRICS = _TESTS + "own_metrics.py::"
_POSITIONS, _SEVERAL = _TESTS + "positions.py::", _TESTS + "several_targets.py::"
_CONFIG_SCHEMA = _TRAINING + "config/schema.py"
_WARNINGS = _TESTS + "warnings.py::"
_FITTED, _PREDICT = _TRAINING + "plans/fitted.py", _TESTS + "predict.py::"
_SCALED = _TESTS + "target_scaling.py::"
_BEST = _FEATURES + "test_the_best_epoch_has_its_own_statistics"
_CUT = _USING + "test_a_logit_is_cut_at_zero"
_GOES_ON = _USING + "test_stepper_state_counts_applied_steps_and_attempted_ones"
_IMPURE = "tests/api/test_impure_forward.py::"
_PACE, _ENDS = _TRAINING + "run/pace.py", _TESTS + "ends.py::"
_SCHEDULES = "tests/api/test_schedule.py::"

_LOSS = [
    Mutant(
        "the-loss-compares-unscaled-targets",
        _STEPS,
        "batch = self.target_scale.scale(batch)",
        "batch = dict(batch)",
        python(_SCALED + "test_the_loss_is_that_of_scaled_targets"),
    ),
    Mutant(
        "predictions-stay-scaled",
        "python/hotloop/training/predictor.py",
        "result = scale_of(known).undo(result)",
        "pass",
        python(_SCALED + "test_predictions_and_metrics_are_in_the_targets_units"),
    ),
    Mutant(
        "a-file-is-evaluated-unscaled",
        _INFERENCE,
        "return scale.redo(unflatten(outputs, spec))",
        "return unflatten(outputs, spec)",
        python(_SCALED + "test_files_and_copies_undo_it"),
    ),
    Mutant(
        "a-short-run-leaves-a-folder",
        _TRAINING + "checkpoints/folder.py",
        "if not self.is_asked and time.perf_counter() < self._began + UNASKED_AFTER:",
        "if False:",
        python(_TESTS + "log_files.py::test_a_short_run_leaves_no_folder"),
    ),
    Mutant(
        "ctrl-c-while-data-is-checked-goes-on",
        _TRAINING + "run/watch.py",
        "if self.is_over:",
        "if False:",
        python(_TESTS + "checking.py::test_ctrl_c_stops_the_look_at_once"),
    ),
    Mutant(
        "a-batch-is-unpacked-to-names",
        _TRAINING + "plans/batch.py",
        "return iter(self.values())",
        "return iter(self.keys())",
        python(_TESTS + "training_step.py::test_ways_to_take_a_batch"),
    ),
    Mutant(
        "warnings-name-a-line-of-hotloop",
        "python/hotloop/base/messages.py",
        "warnings.warn(text, category, stacklevel=level)",
        "warnings.warn(text, category, stacklevel=1)",
        python(_WARNINGS + "test_float_targets_of_zeros_and_ones"),
    ),
    Mutant(
        "one-column-far-from-zero-warns",
        "python/hotloop/data/scaling.py",
        "if excess.mean() <= 0.0 and",
        "if excess.max() <= 0.0 and",
        python(_WARNINGS + "test_which_targets_are_not_far_from_zero"),
    ),
    Mutant(
        "unknown-monitor-is-minimised",
        _CONFIG_SCHEMA,
        'return "max" if words & _LARGER_IS_BETTER else None',
        'return "max" if words & _LARGER_IS_BETTER else "min"',
        python(_OWN_METRICS + "test_a_monitor_without_a_direction_is_refused"),
    ),
    Mutant(
        "a-metric-has-no-direction-of-its-own",
        _TRAINING + "config/config.py",
        "            return known[name]",
        '            return "min"',
        python(_OWN_METRICS + "test_the_direction_of_a_metric_decides"),
    ),
    Mutant(
        "what-is-logged-is-trained",
        _STEPS,
        'losses = {"loss": values.pop("loss")} if "loss" in values else values',
        "losses = values",
        python(_OWN + "test_the_loss_alone_is_trained_and_the_rest_logged"),
    ),
    Mutant(
        "loss-without-gradient-is-summed",
        _STEPS,
        "if any(grad is not None for t, _, _ in terms for grad in scratch.backward(t, params)):",
        "if terms:",
        python(_OWN + "test_a_value_without_gradient_is_no_loss"),
    ),
    Mutant(
        "own-loss-squares-the-batch",
        _MATCHING,
        'check_rows(f"loss {name}", target.trace, outputs, [form])',
        "",
        python(_OWN + "test_rows_and_columns_are_matched_as_by_name"),
    ),
    Mutant(
        "as-many-outputs-as-rows-pass",
        _MATCHING,
        " or (low in wholes and high in wholes)",
        "",
        python(_OWN + "test_what_cannot_be_matched_names_both_shapes"),
    ),
    Mutant(
        "training-step-squares-the-batch",
        _STEPS,
        'check_rows("training_step", x[0].trace, x, [leaf for part in others for leaf in part])',
        "",
        python(_OWN + "test_a_training_step_does_not_square_the_batch"),
    ),
    Mutant(
        "weighted-loss-divided-by-rows",
        _LOSSES,
        "(rows.mean(1) * weight).sum(), weight.sum()",
        "(rows.mean(1) * weight).sum(), weight.sum() * 0.0 + float(weight.shape[0])",
        python(_FEATURES + "test_sample_weights"),
    ),
    Mutant(
        "weighted-loss-sums-columns",
        _LOSSES,
        "(rows.mean(1) * weight).sum()",
        "(rows.sum(1) * weight).sum()",
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
        "one_logit = reading.axis is None or output.shape[reading.axis] == 1",
        "one_logit = reading.axis is not None and output.shape[reading.axis] == 1",
        python(_RULES + "test_one_logit_weighs_class_1_by_the_weights_ratio"),
    ),
    Mutant(
        "margin-loss-has-no-link",
        _LOSSES,
        '    "multilabel_soft_margin_loss": "sigmoid",\n',
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
        'cut = 0.5 if is_proba or target.link == "identity" else 0.0',
        "cut = 0.5",
        python(_CUT),
    ),
    Mutant(
        "ignored-positions-count-in-metrics",
        _MATCHING,
        "weight = share if weight is None else weight * share",
        "pass",
        python(_POSITIONS + "test_tokens_are_scored_as_rows"),
    ),
    Mutant(
        "ignored-positions-count-in-weighted-losses",
        _LOSSES,
        "leaves_out = goal.target is not None and goal.target.has_ignored",
        "leaves_out = False",
        python(_POSITIONS + "test_tokens_are_scored_as_rows"),
    ),
    Mutant(
        "classes-last-are-taken-for-positions",
        _LOSSES,
        "return output.movedim(-1, 1) if axis == -1 and output.ndim > 2 else output",
        "return output",
        python(_POSITIONS + "test_both_orders_train_alike"),
    ),
    Mutant(
        "as-many-classes-as-positions-are-guessed",
        _MATCHING,
        "and output[1] > 1 and not is_second",
        "and False",
        python(_POSITIONS + "test_as_many_classes_as_positions_is_refused"),
    ),
    Mutant(
        "metrics-take-the-first-of-a-dict",
        _MATCHING,
        'return pick_output(output["logits"])',
        "return pick_output(next(iter(output.values())))",
        python(_POSITIONS + "test_loss_metrics_and_predict_take_the_same_output"),
    ),
    Mutant(
        "no-metrics-are-the-default",
        _TRAINING + "config/schema.py",
        "    if value is None:\n        return ()\n    if isinstance(value, str) and value ==",
        '    if value is None:\n        return "auto"\n    if isinstance(value, str) and value ==',
        python(_POSITIONS + "test_no_metrics_are_none"),
    ),
    Mutant(
        "outputs-of-several-targets-go-by-their-order",
        _MATCHING,
        "return list(names).index(name)",
        "return 0",
        python(_SEVERAL + "test_a_tuple_of_targets"),
    ),
    Mutant(
        "functions-see-targets-beyond-the-outputs",
        "python/hotloop/training/plans/steps.py",
        "self.data.batches_in_order(split, self._eval_groups[split])",
        "self.data.batches_in_order(split)",
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
        "means[_loss_of(key)] = means.get(_loss_of(key), 0.0) + share",
        "means[_loss_of(key)] = share",
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
        "segments[-1][1:] == (begin, scale, decay, began)",
        "segments[-1][2:] == (scale, decay, began)",
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
        _OPTIMIZER_OPS,
        '"beta2": beta2,\n            "eps"',
        '"beta2": beta1,\n            "eps"',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "lion-has-its-betas-swapped",
        _OPTIMIZER_OPS,
        '"lion", {"beta1": beta1, "beta2": beta2}',
        '"lion", {"beta1": beta2, "beta2": beta1}',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "sgd-is-not-dampened",
        _OPTIMIZER_OPS,
        '"dampening": optimizer.dampening,',
        '"dampening": 0.0,',
        python(_OPTIMIZERS),
    ),
    Mutant(
        "adam-decays-as-adamw",
        _OPTIMIZER_OPS,
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
        _PLANNER,
        "max(1, int(n * limit + 1e-9))",
        "max(1, int(n * limit + 1))",
        python(_FEATURES + "test_a_fraction_of_the_batches_is_rounded_down"),
    ),
    Mutant(
        "limit-counts-groups-of-batches",
        "python/hotloop/data/batching.py",
        "upto = [min(end, most) for end in ends]",
        "upto = [min(i + 1, most) for i in range(len(ends))]",
        python(_FEATURES + "test_a_fraction_of_the_batches_is_rounded_down"),
    ),
    Mutant(
        "overfit-batches-are-shuffled",
        _PLANNER,
        "return self.config.overfit_batches is None",
        "return True",
        python(_FEATURES + "test_overfit_batches_are_the_same_rows_in_each_epoch"),
    ),
    Mutant(
        "best-is-restored-without-buffers",
        _WEIGHTS,
        "        for name in self._runtime.layout.stores():\n"
        '            self._runtime.session.copy(name, f"best.{name}")\n',
        '        self._runtime.session.copy("param", "best.param")\n',
        python(_BEST),
    ),
    Mutant(
        "best-is-kept-without-buffers",
        _WEIGHTS,
        "            for name in self._runtime.layout.stores():\n"
        '                self._runtime.session.copy(f"best.{name}", name)\n',
        '            self._runtime.session.copy("best.param", "param")\n',
        python(_BEST),
    ),
    Mutant(
        "average-stays-in-the-place-of-the-weights",
        _WEIGHTS,
        "            yield\n        finally:\n            self._put(trained)\n",
        "            yield\n        finally:\n            pass\n",
        python(_FEATURES + "test_ema"),
    ),
    Mutant(
        "average-begins-at-zero",
        _WEIGHTS,
        '            self._runtime.session.write("ema", self._trained())\n',
        "            pass\n",
        python(_FEATURES + "test_ema"),
    ),
    Mutant(
        "validation-adds-to-the-last-one",
        _LOOP,
        "            sums.clear(session)\n",
        "",
        python(_FEATURES + "test_sample_weights"),
    ),
    Mutant(
        "epochs-have-one-order",
        _LOOP,
        "runner.seek(self.epoch, at.batches, self._order)",
        "runner.seek(0, at.batches, self._order)",
        python(_FEATURES + "test_plain_sgd"),
    ),
    Mutant(
        "max-steps-counts-skipped-steps",
        _LOOP,
        "self._at.not_applied = self._at.attempted - applied",
        "self._at.not_applied = 0",
        python(_JUDGED + "test_max_steps_counts_steps_that_were_applied"),
    ),
    Mutant(
        "result-counts-attempted-steps",
        _LOOP,
        'steps=control["applied"],',
        'steps=control["attempted"],',
        python(_JUDGED + "test_max_steps_counts_steps_that_were_applied"),
    ),
    Mutant(
        "samples-of-one-micro-batch-in-a-step",
        _LOOP,
        "self._count_rows(at.batches + batches)",
        "self._count_rows(at.batches + steps)",
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
        "bool is_end = state->micro == call->k;",
        "bool is_end = state->micro > call->k;",
        python(_TESTS + "accumulation.py::test_equals_full_batch"),
    ),
    Mutant(
        "history-has-no-skipped-steps",
        _LOOP,
        'row["skipped"] = float(control["skipped"])',
        'row["skipped"] = 0.0',
        python(_JUDGED + "test_a_skipped_step_is_logged_with_its_epoch"),
    ),
    Mutant(
        "loss-is-not-scaled",
        _PLANNER,
        "        start_scale(runtime.session, self.config.precision)\n",
        "",
        python(_TESTS + "precision.py::test_history_shows_the_scale"),
    ),
    Mutant(
        "validation-never-ends",
        _LOOP,
        "                feed.seek(0)\n                done = 0\n",
        "                done = 0\n",
        python(_FEATURES + "test_validation_every_few_epochs"),
        hangs=True,
    ),
]

_STATE = [
    Mutant(
        "applied-restored-from-attempted",
        _STEPPING,
        '"steps": ("attempted", "applied"),',
        '"steps": ("applied", "applied"),',
        python(_GOES_ON),
    ),
    Mutant(
        "attempted-restored-from-applied",
        _STEPPING,
        "for field, value in zip(fields, state[name], strict=True)",
        "for field, value in zip(fields, state[name][::-1], strict=True)",
        python(_GOES_ON),
    ),
    Mutant(
        "moments-are-not-restored",
        _STEPPING,
        "            session.write(name, np.asarray(state[name]))\n",
        "            pass\n",
        python(_USING + "test_stepper_state_goes_on"),
    ),
    Mutant(
        "stepper-evaluates-without-the-average",
        _STEPPING,
        "with self._weights.averaged(), self._not_stopped():",
        "with self._not_stopped():",
        python(_STEPPER + "test_the_moving_average_is_evaluated_and_given_to_the_model"),
    ),
    Mutant(
        "state-of-a-stepper-has-the-average-for-weights",
        _STEPPING,
        "            self._runtime.download()\n            state",
        "            self._sync()\n            state",
        python(_STEPPER + "test_a_state_holds_all_that_a_loop_needs_to_go_on"),
    ),
    Mutant(
        "stepper-stays-stopped-after-loading",
        _STEPPING,
        "session.control_set(stopped=0, **values)",
        "session.control_set(**values)",
        python(_STEPPER + "test_on_nan_stop_says_that_it_is_stopped"),
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
        "            sums.clear(self._runtime.session)\n",
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
        "min(max(step - 1, 0), self._total_steps - 1)",
        "min(step, self._total_steps - 1)",
        python(_TESTS + "numbers.py::test_in_a_loop_of_ones_own_a_number_moves_too"),
    ),
    Mutant(
        "best-weights-with-the-last-numbers",
        "python/hotloop/training/run/loop.py",
        "step = self._best_step if self.has_best else None",
        "step = None",
        python(_TESTS + "numbers.py::test_the_best_weights_have_the_number_of_their_epoch"),
    ),
    Mutant(
        "denominator-of-other-targets",
        "python/hotloop/nn/functional/class_losses.py",
        "[y] if w is None else [y, w]",
        "[y]",
        python(_TESTS + "accumulation.py::test_losses_of_other_targets_have_their_own_denominator"),
    ),
    Mutant(
        "skipping-for-ever",
        "python/hotloop/training/checkpoints/snapshot.py",
        '"skipped", "skipped_in_row", ',
        '"skipped", ',
        python(_TESTS + "features.py::test_on_nan_skip_ends_where_nothing_is_learned_any_more"),
    ),
    Mutant(
        "ema-without-its-ramp",
        "python/hotloop/training/plans/steps.py",
        "ema is not None and ema.ramp",
        "False",
        python(_TESTS + "features.py::test_ema"),
    ),
    Mutant(
        "skipped-steps-move-the-tables",
        "python/hotloop/training/run/loop.py",
        "            self._count_applied()\n            runtime.move_tables",
        "            runtime.move_tables",
        python("tests/train/test_long_schedules.py"),
    ),
    Mutant(
        "plan-made-between-steps-keeps-its-numbers",
        _RUNTIME,
        "self._rate_at is not None and not training",
        "self._rate_at is not None",
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
        "transforms = known.transforms if known is not None else None",
        "transforms = None",
        python(_USING + "test_training_sees_standardized_inputs"),
    ),
    Mutant(
        "prediction-standardises-by-the-mean-alone",
        "python/hotloop/training/predictor.py",
        "tensor = (tensor - trace.const(mean)) / trace.const(std)",
        "tensor = tensor - trace.const(mean)",
        python(_USING + "test_training_sees_standardized_inputs"),
    ),
    Mutant(
        "plan-used-last-is-dropped",
        "python/hotloop/training/predictor.py",
        "self._plans.popitem(last=False)",
        "self._plans.popitem(last=True)",
        python(_USING + "test_predict_keeps_the_plans_used_last"),
    ),
    Mutant(
        "row-is-counted-from-its-batch",
        _INFERENCE,
        'f"{what}: row {first + i}: {why}"',
        'f"{what}: row {i}: {why}"',
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
        "(steps[:n] + 1) / max(ramp, 1)",
        "steps[:n] / max(ramp, 1)",
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
        "python/hotloop/interop/safetensors_file.py",
        'b" " * (-len(text) % 8)',
        'b" " * (len(text) % 8)',
        python(_TESTS + "saving.py::test_tensors_are_aligned"),
    ),
    Mutant(
        "values-of-a-model-in-training-change",
        "python/hotloop/nn/parameter.py",
        "        if self._is_held:\n",
        "        if False:\n",
        python(_SAID + "test_values_of_a_model_in_training_stay_alone"),
    ),
    Mutant(
        "labels-of-outputs-that-are-nan",
        _INFERENCE,
        "    _check_finite(logits, axis)\n",
        "",
        python(_SAID + "test_labels_of_outputs_that_are_not_finite_are_refused"),
    ),
    Mutant(
        "evaluate-knows-nothing-of-the-run",
        _INFERENCE,
        "    if known.config is not None:\n",
        "    if False:\n",
        python(_SAID + "test_a_trained_model_is_evaluated_as_it_was_trained"),
    ),
    Mutant(
        "constants-are-saved-for-each-graph",
        _SAVING,
        "        if key not in self._names:\n",
        "        if True:\n",
        python(_TESTS + "saving.py::test_constants_are_tensors_of_the_file"),
    ),
    Mutant(
        "values-of-a-loaded-model-are-its-own",
        _SAVING,
        "StateDict((name, read_only(array)) for name, array in self._state().items())",
        "StateDict(self._state())",
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

_RECORDED = [
    Mutant(
        "constants-of-two-recordings-not-compared",
        "python/hotloop/graph/trace.py",
        "if repr(was[1]) != repr(now[1]):",
        "if False:",
        python(_IMPURE + "test_the_refusal_names_the_module_and_the_element"),
    ),
    Mutant(
        "plans-outlive-a-changed-model",
        "python/hotloop/training/predictor.py",
        "return _version_of(model) != self._version",
        "return False",
        python("tests/api/test_model_changes.py::test_a_head_is_replaced_for_another_task"),
    ),
    Mutant(
        "schedule-by-time-from-the-start",
        _PACE,
        "if total < self._counts.total:",
        "if True:",
        python(_ENDS + "test_max_time_that_is_not_met_changes_nothing"),
    ),
    Mutant(
        "planning-is-charged-to-max-time",
        _LOOP,
        "seconds = time.perf_counter() - self._trains_since",
        "seconds = time.perf_counter() - self._began",
        python(_ENDS + "test_max_time_begins_with_the_first_epoch"),
    ),
]

_PREDICTED = [
    Mutant(
        "a-part-named-model-predicts-in-its-place",
        _FITTED,
        'inner = getattr(model, "model", None) if loaded else None',
        "inner = None",
        python(_PREDICT + "test_evaluate_of_habit"),
    ),
    Mutant(
        "whoever-came-last-uses-a-model-first",
        _FITTED,
        "queue.append(mine)",
        "queue.insert(min(1, len(queue)), mine)",
        python(_PREDICT + "test_threads_use_a_model_in_the_order_in_which_they_came"),
    ),
    Mutant(
        "a-child-waits-for-its-parents-threads",
        _FITTED,
        "if user.thread == threading.get_ident()]",
        "if user.thread]",
        python(_PREDICT + "test_a_forked_child_predicts_whatever_the_parents_threads_do"),
    ),
    Mutant(
        "a-runtime-keeps-its-model-alive",
        _RUNTIME,
        "self._model = weakref.ref(model)",
        "self._model = lambda: model",
        python(_PREDICT + "test_a_model_that_predicted_is_freed"),
    ),
    Mutant(
        "outputs-without-rows-are-put-together",
        _INFERENCE,
        "if output.shape[:1] != (rows,):",
        "if output.shape[:1] == (0,):",
        python(_PREDICT + "test_outputs_without_rows_are_not_put_together"),
    ),
    Mutant(
        "a-row-alone-keeps-a-dim",
        _TRAINING + "plans/inputs.py",
        "self._is_row = True",
        "self._is_row = False",
        python(_PREDICT + "test_predict_takes_what_the_model_takes"),
    ),
    Mutant(
        "a-part-in-evaluation-mode-is-warned-of",
        "python/hotloop/nn/module.py",
        "trace.reads_mode |= is_set",
        "trace.reads_mode = True",
        python(_PREDICT + "test_train_mode_without_an_effect_is_not_warned_of"),
    ),
    Mutant(
        "dims-of-outputs-are-dropped",
        "python/hotloop/graph/outputs.py",
        "kwargs[numpys] = kwargs.pop(torchs)",
        "kwargs.pop(torchs)",
        python(_PREDICT + "test_outputs_have_what_scripts_use"),
    ),
    Mutant(
        "checkpoints-count-as-training",
        _LOOP,
        'other = self._timings["validate"] + self._records.seconds - self._epoch_other',
        "other = 0.0",
        python(_TESTS + "progress.py::test_the_time_of_checkpoints_is_their_own"),
    ),
    Mutant(
        "waiting-of-all-epochs-is-that-of-one",
        _LOOP,
        "at.epoch_wait += self._planner.data_wait - self._epoch_waited",
        "at.epoch_wait += 0.0",
        python("tests/data/test_datasets.py::test_waiting_is_said"),
    ),
    Mutant(
        "a-table-is-not-escaped",
        "python/hotloop/base/tables.py",
        """made.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')""",
        """made.append(f'<{tag} style="{style}">{cell}</{tag}>')""",
        python(_TESTS + "cross_validation.py::test_names_are_escaped"),
    ),
    Mutant(
        "a-notebook-shows-the-first-epochs-alone",
        _TRAINING + "run/notebook.py",
        "        self._rows.append(cells)\n",
        "        self._rows = self._rows or [cells]\n",
        python(_TESTS + "progress.py::test_a_notebook_has_a_table_of_epochs"),
    ),
]

MUTANTS = [*_LOSS, *_STEP, *_RUN, *_STATE, *_RECORDED, *_PREDICTED]
