"""Mutants of stochastic weight averaging: weights, statistics and rates, and who sees them."""

from mutants.mutant import Mutant, python

_AVERAGING = "python/hotloop/training/run/averaging.py"
_WEIGHTS = "python/hotloop/training/run/weights.py"
_LOOP = "python/hotloop/training/run/loop.py"
_PLANNER = "python/hotloop/training/run/planner.py"
_STEPS = "python/hotloop/training/plans/steps.py"
_SNAPSHOT = "python/hotloop/training/checkpoints/snapshot.py"
_KEEPER = "python/hotloop/training/checkpoints/keeper.py"
_SCHEDULE = "python/hotloop/training/config/schedule.py"
_NORM = "python/hotloop/nn/norm.py"
_TESTS = "tests/train/test_swa.py::"
_MEAN = _TESTS + "test_the_model_has_the_mean_of_the_last_epochs"
_STATISTICS = _TESTS + "test_statistics_are_those_of_the_average"
_RESUME = "tests/train/test_resume.py::test_every_step"

MUTANTS = [
    Mutant(
        "an-averaged-epoch-counts-half",
        _WEIGHTS,
        "(mean - before) / (n + 1)",
        "(mean - before) / 2",
        python(_MEAN),
    ),
    Mutant(
        "training-goes-on-from-the-average-of-epochs",
        _WEIGHTS,
        "        finally:\n            self._put(trained)\n        return True\n",
        "        finally:\n            pass\n        return True\n",
        python(_TESTS + "test_training_has_the_bits_that_it_has_without"),
    ),
    Mutant(
        "statistics-of-averages-go-on-from-training",
        _AVERAGING,
        "session.write(slot.store, np.zeros(slot.size), slot.offset)",
        "pass",
        python(_STATISTICS),
    ),
    Mutant(
        "statistics-of-averages-move-by-momentum",
        _NORM,
        "if self.momentum is None or collects:",
        "if self.momentum is None:",
        python(_STATISTICS),
    ),
    Mutant(
        "statistics-of-averages-take-rows-in-order",
        _PLANNER,
        'self.data.feeds("train", groups, training=self._is_shuffled, **self._ring(groups))',
        'self.data.feeds("train", groups, training=False, **self._ring(groups))',
        python(_TESTS + "test_sorted_rows_are_mixed_for_the_statistics"),
    ),
    Mutant(
        "statistics-of-averages-are-those-of-forward",
        _STEPS,
        "                call_step(self._user_step, batch)\n            else:",
        '                call_model(self.runtime.model, batch["x"])\n            else:',
        python(_TESTS + "test_a_skipped_step_and_a_training_step_of_its_own"),
    ),
    Mutant(
        "an-epoch-is-averaged-twice",
        _AVERAGING,
        "if not self.is_on or epoch == self._last:",
        "if not self.is_on:",
        python(_TESTS + "test_an_interrupt_after_the_last_step"),
    ),
    Mutant(
        "an-average-whose-statistics-were-cut-counts",
        _AVERAGING,
        "        return not is_over()\n",
        "        return True\n",
        python(_TESTS + "test_an_interrupt_after_the_last_step"),
    ),
    Mutant(
        "a-stop-after-the-last-step-loses-the-epoch",
        _LOOP,
        "        return is_taken\n",
        '        return self._stop_reason != "interrupted"\n',
        python(_TESTS + "test_a_stop_after_the_last_step_of_an_epoch_leaves_its_average"),
    ),
    Mutant(
        "the-average-begins-at-once-under-max-time",
        _AVERAGING,
        "if steps and share > 0:",
        "if share > 0:",
        python(_TESTS + "test_by_time"),
    ),
    Mutant(
        "the-average-begins-an-epoch-late",
        _AVERAGING,
        "counts.per_epoch + 1e-9)",
        "counts.per_epoch + 1)",
        python(_TESTS + "test_the_first_epoch"),
    ),
    Mutant(
        "the-best-is-one-before-the-average",
        _LOOP,
        "            self._monitor.begin_again()\n",
        "            pass\n",
        python(_TESTS + "test_the_best_is_an_average"),
    ),
    Mutant(
        "the-best-file-is-one-before-the-average",
        _KEEPER,
        "self._best = [(self._worst, path) for _, path in self._best]",
        "pass",
        python(_TESTS + "test_the_best_is_an_average"),
    ),
    Mutant(
        "files-of-before-the-average-are-better-when-a-run-goes-on",
        _KEEPER,
        "score if epoch >= since else self._worst",
        "score",
        python(_TESTS + "test_files_of_before_stay_behind_when_a_run_goes_on"),
    ),
    Mutant(
        "averaged-epochs-are-validated-within",
        _LOOP,
        "        self._checks.leave_out_within()  # the average moves at ends of epochs alone\n",
        "",
        python(_TESTS + "test_epochs_are_validated_at_their_ends"),
    ),
    Mutant(
        "a-plateau-moves-the-rate-of-averaged-epochs",
        _LOOP,
        "if self._at.held_lr is not None or self.averaging.is_on:\n            self.runtime",
        "if self._at.held_lr is not None:\n            self.runtime",
        python(_TESTS + "test_the_rate_that_a_callback_sets_stays_and_a_plateau_does_not_move_it"),
    ),
    Mutant(
        "the-rate-of-averaged-epochs-takes-a-callbacks-place",
        _LOOP,
        "        self.averaging.set_rates()\n        self._set_factor()\n        self._hold_lr()\n",
        "        self.averaging.set_rates()\n        self._set_factor()\n",
        python(_TESTS + "test_the_rate_that_a_callback_sets_stays_and_a_plateau_does_not_move_it"),
    ),
    Mutant(
        "the-rate-of-averaged-epochs-jumps",
        _SCHEDULE,
        "progress = ((steps - begin) / n if n else steps * 0.0 + 1.0)",
        "progress = (steps * 0.0 + 1.0)",
        python(_TESTS + "test_rates", _TESTS + "test_as_torch_does"),
    ),
    Mutant(
        "a-checkpoint-has-the-trained-weights-in-the-averages-place",
        _SNAPSHOT,
        "                    tensors[name] = value\n                else:\n"
        "                    others[_SWA",
        "                    pass\n                else:\n                    others[_SWA",
        python(_TESTS + "test_callbacks_and_checkpoints_have_the_average"),
    ),
    Mutant(
        "the-average-of-epochs-begins-anew-when-a-run-goes-on",
        _SNAPSHOT,
        'session.write(f"swa.{store}", average)',
        "pass",
        python(_RESUME),
    ),
    Mutant(
        "the-rates-of-averaged-epochs-end-when-a-run-goes-on",
        _LOOP,
        "        self._hold_lr()\n        self._follow_averaging()\n",
        "        self._hold_lr()\n",
        python(_RESUME),
    ),
]
