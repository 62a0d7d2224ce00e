"""Mutants of metrics: their sums, averages and areas, their names, and what a run makes of them."""

from mutants.mutant import Mutant, python

_SCORING = "python/hotloop/training/scoring/"
_FUNCTIONS, _METRIC = _SCORING + "functions.py", _SCORING + "metric.py"
_CLASSES, _VALUES = _SCORING + "classification.py", _SCORING + "values.py"
_RANKING, _TASKS = _SCORING + "ranking.py", _SCORING + "tasks.py"
_CATALOGUE, _RESOLVED = _SCORING + "catalogue.py", _SCORING + "metrics.py"
_LOOP = "python/hotloop/training/run/loop.py"
_MATRICES = "python/hotloop/training/run/matrices.py"
_TESTS = "tests/train/test_"
_OWN, _SCORES = _TESTS + "own_metrics.py::", _TESTS + "metrics.py::"
_NAMES, _RESULTS = _TESTS + "metric_names.py::", _TESTS + "metric_results.py::"
_POSITIONS, _USING = _TESTS + "positions.py::", _TESTS + "using.py::"
_SKLEARN = _NAMES + "test_values_are_scikit_learns"
_ABSENT = _NAMES + "test_a_class_without_rows_has_no_area"
_NEAR = _RESULTS + "test_points_that_are_near"

_OF_FUNCTIONS = [
    Mutant(
        "probabilities-of-both-classes",
        _FUNCTIONS,
        "return proba[:, 1] if proba.shape[1] == 2 else proba",
        "return proba[:, 0] if proba.shape[1] == 2 else proba",
        python(_OWN + "test_of_two_classes_probabilities_are_those_of_class_1"),
    ),
    Mutant(
        "functions-by-name-get-labels",
        _FUNCTIONS,
        "need = self.needs or _NEEDS.get(_name_of(self.function))",
        "need = self.needs",
        python(_OWN + "test_functions_of_scikit_learn_get_what_they_need"),
    ),
    Mutant(
        "functions-see-columns-cut-at-half",
        _FUNCTIONS,
        '(scores > 0.0).cast("int64")',
        '(scores > 0.5).cast("int64")',
        python(_OWN + "test_yes_or_no_columns"),
    ),
    Mutant(
        "functions-see-ignored-positions",
        _FUNCTIONS,
        "    if ignored is not None:\n        counts",
        "    if False:\n        counts",
        python(_POSITIONS + "test_functions_get_a_row_for_each_position"),
    ),
]

_SUMS = [
    Mutant(
        "probabilities-cut-at-zero",
        _METRIC,
        'return output - 0.5 if link == "identity" else output',
        "return output",
        python(_OWN + "test_outputs_that_are_probabilities_are_cut_at_a_half"),
    ),
    Mutant(
        "metrics-of-one-logit-cut-at-half",
        _METRIC,
        "output.reshape(output.shape[0]) > 0.0",
        "output.reshape(output.shape[0]) > 0.5",
        python(_USING + "test_a_logit_is_cut_at_zero"),
    ),
    Mutant(
        "columns-of-logits-cut-at-half",
        _CLASSES,
        "hits = ((rows.decisions > 0.0) ==",
        "hits = ((rows.decisions > 0.5) ==",
        python(_USING + "test_columns_of_logits_are_cut_at_zero"),
    ),
    Mutant(
        "targets-are-not-centred",
        _VALUES,
        "tensor(rows.centre.reshape(output.shape[1:]))",
        "tensor(0 * rows.centre.reshape(output.shape[1:]))",
        python(_SCORES + "test_r2_of_targets_that_differ_in_their_last_digit"),
    ),
    Mutant(
        "weights-of-rows-left-out-of-accuracy",
        _CLASSES,
        '"hits": (hits * rows.share).sum()',
        '"hits": hits.sum()',
        python(_SCORES + "test_classification"),
    ),
    Mutant(
        "rows-counted-in-float32",
        _CLASSES,
        'zeros((1, n * n), dtype="float64").scatter_add(1, cells, rows.share.reshape(1, m))',
        'zeros((1, n * n)).scatter_add(1, cells, rows.share.cast("float32").reshape(1, m))',
        python(_RESULTS + "test_a_batch_of_more_rows_than_a_float_counts"),
    ),
    Mutant(
        "weights-summed-in-float32",
        _METRIC,
        'return self.weight.cast("float64")',
        "return self.weight",
        python(_SKLEARN),
    ),
    Mutant(
        "the-matrix-is-transposed",
        _CLASSES,
        "rows.ids * n + rows.predicted",
        "rows.predicted * n + rows.ids",
        python(_SKLEARN),
    ),
    Mutant(
        "ties-count-for-the-first-class",
        _CLASSES,
        "(arange(n).reshape(1, n) > ids)",
        "(arange(n).reshape(1, n) < ids)",
        python(_NAMES + "test_of_equal_scores_the_last_classes_come_first"),
    ),
    Mutant(
        "one-class-too-few-among-the-largest",
        _CLASSES,
        "above < float(k)",
        "above < float(k - 1)",
        python(_SKLEARN),
    ),
    Mutant(
        "more-classes-than-there-are",
        _CLASSES,
        "if k > n:",
        "if k > n + 99:",
        python(_NAMES + "test_what_is_refused"),
    ),
    Mutant(
        "log-loss-of-a-certain-mistake-is-infinite",
        _CLASSES,
        "proba = scores.clamp(_EPS, 1.0 - _EPS)",
        "proba = scores",
        python(
            _NAMES + "test_a_certain_mistake_has_a_finite_log_loss_where_outputs_are_probabilities"
        ),
    ),
]

_AVERAGES = [
    Mutant(
        "macro-average-over-actual-classes",
        _CLASSES,
        "occurs = (said + real) > 0",
        "occurs = real > 0",
        python(_SCORES + "test_scores_of_a_table"),
    ),
    Mutant(
        "recall-of-absent-classes-counts",
        _CLASSES,
        "has_rows = real > 0",
        "has_rows = real >= 0",
        python(_SCORES + "test_scores_of_a_table"),
    ),
    Mutant(
        "columns-without-a-yes-are-in-no-mean",
        _CLASSES,
        '        if "hit" in totals:\n            return float(values.mean())\n',
        "",
        python(_NAMES + "test_absent_classes_and_columns"),
    ),
    Mutant(
        "macro-of-two-classes-is-that-of-class-1",
        _CLASSES,
        "if len(hit) == 2 and not how:",
        "if len(hit) == 2:",
        python(_SKLEARN),
    ),
    Mutant(
        "weighted-by-predictions",
        _CLASSES,
        "(values * real).sum() / max(real.sum(), 1e-300)",
        "(values * said).sum() / max(said.sum(), 1e-300)",
        python(_SKLEARN),
    ),
    Mutant(
        "quadratic-kappa-counts-distances",
        _CLASSES,
        ".astype(np.float64) ** 2",
        ".astype(np.float64) ** 1",
        python(_SKLEARN),
    ),
    Mutant(
        "kappa-by-chance-alone-is-1",
        _CLASSES,
        'if by_chance else float("nan")',
        "if by_chance else 1.0",
        python(_NAMES + "test_agreement_by_chance_alone_has_no_kappa"),
    ),
    Mutant(
        "a-tie-counts-as-won",
        _RANKING,
        "(yes * (below + 0.5 * no))",
        "(yes * (below + no))",
        python(_SKLEARN),
    ),
    Mutant(
        "tied-rows-enter-one-by-one",
        _RANKING,
        "ordered[1:] != ordered[:-1]",
        "ordered[1:] == ordered[1:]",
        python(_SKLEARN),
    ),
    Mutant(
        "areas-without-weights",
        _RANKING,
        "share = np.ones(len(order)) if weight is None else weight[order]",
        "share = np.ones(len(order))",
        python(_SKLEARN),
    ),
    Mutant(
        "weights-in-another-order-than-scores",
        _RANKING,
        "else weight[order]",
        "else weight",
        python(_SKLEARN),
    ),
    Mutant(
        "classes-without-an-area-make-the-mean-nan",
        _RANKING,
        "known = ~np.isnan(values)",
        "known = np.isnan(values) | True",
        python(_ABSENT),
    ),
    Mutant(
        "pairs-by-one-direction",
        _RANKING,
        "values.append((both[0] + both[1]) / 2)",
        "values.append(both[0])",
        python(_SKLEARN),
    ),
    Mutant(
        "pairs-count-alike",
        _RANKING,
        'np.array(shares) if how == "weighted" else None',
        "None",
        python(_SKLEARN),
    ),
    Mutant(
        "pairs-without-weights",
        _RANKING,
        "weight = None if rows.weight is None else rows.weight[among]",
        "weight = None",
        python(_NAMES + "test_weights_of_whole_numbers_are_rows_that_come_so_often"),
    ),
    Mutant(
        "class-0-is-ordered-as-class-1",
        _RANKING,
        "(target == 0, -scores)",
        "(target == 0, scores)",
        python(_SKLEARN),
    ),
]

_POINTS = [
    Mutant(
        "points-that-are-not-there-count",
        _VALUES,
        "is_there = is_there & (goal[:, :, 2] > 0.0)",
        "pass",
        python(_NEAR),
    ),
    Mutant(
        "the-shorter-side-of-the-box",
        _VALUES,
        "side = box.amax(1)",
        "side = box.amin(1)",
        python(_NEAR),
    ),
    Mutant(
        "points-count-alike-not-samples",
        _VALUES,
        'near = is_near.cast("float64").sum(1) / n_there.clamp(min=1.0)',
        'near = is_near.cast("float64").sum(1)\n'
        '        rows = dataclasses.replace(rows, weight=(n_there * rows.share).cast("float32"))',
        python(_NEAR),
    ),
    Mutant(
        "a-point-alone-counts",
        _VALUES,
        "share = (side > 0.0)",
        "share = (side >= 0.0)",
        python(_NEAR),
    ),
    Mutant(
        "points-at-the-threshold-are-near",
        _VALUES,
        "off < threshold * side.unsqueeze(1)",
        "off <= threshold * side.unsqueeze(1)",
        python(_RESULTS + "test_points_beyond_the_threshold_and_outputs_that_are_nan"),
    ),
    Mutant(
        "points-that-are-nan-are-there",
        _VALUES,
        'is_there = (place == place).cast("float64").sum(2) == 2.0',
        'is_there = (place == place).cast("float64").sum(2) >= 0.0',
        python(_RESULTS + "test_points_in_rows_of_numbers_and_those_that_are_nan"),
    ),
]

_RUN = [
    Mutant(
        "classes-go-by-number",
        _TASKS,
        "names = () if rows.has_columns else self._target.classes or ()",
        "names = ()",
        python(_NAMES + "test_names_stand_in_the_history_as_they_are_written"),
    ),
    Mutant(
        "columns-pass-for-one-class-in-each-row",
        _TASKS,
        'if metric.takes == "ids" and rows.has_columns:',
        "if False:",
        python(_NAMES + "test_what_is_refused"),
    ),
    Mutant(
        "a-warning-of-absent-classes-each-epoch",
        _TASKS,
        "        self._is_warned = True\n        what",
        "        what",
        python(_ABSENT),
    ),
    Mutant(
        "weighted-matrices-are-rounded",
        _TASKS,
        "made = made if self._has_weights else made.astype(np.int64)",
        "made = made.astype(np.int64)",
        python(_RESULTS + "test_weights_are_summed"),
    ),
    Mutant(
        "many-classes-have-a-matrix-unasked",
        _TASKS,
        'self.kind == "class" and n <= _MAX_CLASSES',
        'self.kind == "class"',
        python(_RESULTS + "test_which_runs_have_one"),
    ),
    Mutant(
        "the-matrix-is-that-of-the-last-epoch",
        _MATRICES,
        "found = self._best if has_best else self._last",
        "found = self._last",
        python(_RESULTS + "test_it_is_that_of_the_weights_that_the_model_has"),
    ),
    Mutant(
        "the-matrix-is-that-of-the-best-epoch-always",
        _LOOP,
        "return self.config.restore_best and self._monitor.best is not None",
        "return self._monitor.best is not None",
        python(_RESULTS + "test_it_is_that_of_the_weights_that_the_model_has"),
    ),
    Mutant(
        "checkpoints-have-no-matrix",
        "python/hotloop/training/run/records.py",
        "tensors.update(run.matrices.tensors())",
        "",
        python(_RESULTS + "test_a_run_that_goes_on_has_that_of_an_earlier_epoch"),
    ),
    Mutant(
        "a-run-that-goes-on-has-the-last-matrix",
        _MATRICES,
        "last | {_BEST + name: matrix for name, matrix in self._best.items()}",
        "last",
        python(_RESULTS + "test_a_run_that_goes_on_has_that_of_an_earlier_epoch"),
    ),
    Mutant(
        "areas-need-no-probabilities",
        _RESOLVED,
        'if need == "scores" and not has_order:',
        "if False:",
        python(_NAMES + "test_what_is_refused"),
    ),
    Mutant(
        "log-loss-is-to-grow",
        _CATALOGUE,
        '        "min",\n        group="log_loss",',
        '        "max",\n        group="log_loss",',
        python(_NAMES + "test_what_decides_which_epoch_is_best"),
    ),
    Mutant(
        "other-names-have-no-average",
        _CATALOGUE,
        "NAMES.get(own + name.removeprefix(other)) if name.startswith(other) else None",
        "NAMES.get(own) if name == other else None",
        python(_NAMES + "test_names_stand_in_the_history_as_they_are_written"),
    ),
]

MUTANTS = [*_OF_FUNCTIONS, *_SUMS, *_AVERAGES, *_POINTS, *_RUN]
