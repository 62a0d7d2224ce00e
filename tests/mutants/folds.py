"""Mutants of cross-validation: whose rows are predicted, scored and kept."""

from mutants.mutant import Mutant, python

_RUN = "python/hotloop/training/run/folds.py"
_RESULT = "python/hotloop/training/result/folds.py"
_INFERENCE = "python/hotloop/training/inference.py"
_TESTS = "tests/train/test_cross_validation.py::"

MUTANTS = [
    Mutant(
        "folds-are-scored-on-their-training-rows",
        _RUN,
        'evaluate(result.model, fold, "val", config=result.config)',
        'evaluate(result.model, fold, "train", config=result.config)',
        python(_TESTS + "test_folds_are_trainings_of_their_own"),
    ),
    Mutant(
        "folds-predict-test-rows",
        _INFERENCE,
        'name = split or ("val" if data.split("test") is None else "test")',
        'name = "val" if data.split("test") is None else "test"',
        python(_TESTS + "test_folds_are_trainings_of_their_own"),
    ),
    Mutant(
        "folds-predictions-stay-in-the-folds-order",
        _RUN,
        "np.concatenate(column)[order]",
        "np.concatenate(column)",
        python(_TESTS + "test_folds_are_trainings_of_their_own"),
    ),
    Mutant(
        "folds-of-several-seeds",
        _RUN,
        "config = TrainingConfig.resolve(training_config, overrides)\n",
        "config = (training_config or TrainingConfig()).replace(**overrides)\n",
        python(_TESTS + "test_a_seed_that_is_drawn_is_that_of_all_folds"),
    ),
    Mutant(
        "folds-go-on-with-a-trained-model",
        _RUN,
        "if _is_seen(model, seen):",
        "if False:",
        python(_TESTS + "test_what_is_no_way_to_make_models_is_refused"),
    ),
    Mutant(
        "folds-share-trained-layers",
        _RUN,
        "if _is_seen(parameter, seen):",
        "if False:",
        python(_TESTS + "test_what_is_no_way_to_make_models_is_refused"),
    ),
    Mutant(
        "folds-keep-their-plans",
        _RUN,
        "drop_plans(model)\n",
        "pass\n",
        python(_TESTS + "test_memory_is_flat_over_folds"),
    ),
    Mutant(
        "folds-keep-their-state",
        _RUN,
        "result._state = None",
        "pass",
        python(_TESTS + "test_a_folds_result_goes_on_from_its_checkpoint"),
    ),
    Mutant(
        "folds-keep-models-that-nobody-wants",
        "python/hotloop/training/result/result.py",
        "self.model = self._state = self._again = None",
        "self.model = self._state = None",
        python(_TESTS + "test_models_are_kept_or_dropped"),
    ),
    Mutant(
        "folds-end-where-a-callback-stops-one",
        _RUN,
        "        except TrainingInterrupted as error:",
        "            if result.stop_reason == 'interrupted':\n                break\n"
        "        except TrainingInterrupted as error:",
        python(_TESTS + "test_a_callback_that_stops_a_fold_stops_no_other"),
    ),
    Mutant(
        "folds-deviation-is-that-of-all",
        _RESULT,
        "statistics.stdev(values)",
        "statistics.pstdev(values)",
        python(_TESTS + "test_mean_and_deviation"),
    ),
    Mutant(
        "folds-windows-are-aligned-to-their-targets",
        "python/hotloop/data/folding.py",
        '"last": self.last,',
        '"last": self.target,',
        python(_TESTS + "test_windows_are_aligned_to_time_as_a_loop_by_hand_does_it"),
    ),
    Mutant(
        "folds-rows-that-none-predicts-have-numbers",
        _RESULT,
        'None if dtype.kind == "O" else np.nan, dtype',
        'None if dtype.kind == "O" else 0, dtype',
        python(_TESTS + "test_windows_are_aligned_to_time_as_a_loop_by_hand_does_it"),
    ),
    Mutant(
        "folds-train-without-a-class",
        _RUN,
        "_check_classes(data, divide(k))",
        "divide(k)",
        python(
            _TESTS + "test_a_fold_that_would_not_train_on_a_class_is_refused_before_any_is_trained"
        ),
    ),
    Mutant(
        "folds-that-cannot-validate-a-class-say-nothing",
        "python/hotloop/data/folding.py",
        "is_rare = counts < wish.n",
        "is_rare = counts < 1",
        python("tests/data/test_folds.py::test_classes_that_some_folds_cannot_validate_are_named"),
    ),
    Mutant(
        "folds-say-of-each-that-a-class-is-rare",
        _RUN,
        "        with once(told):\n",
        "        with once(set()):\n",
        python(_TESTS + "test_folds_that_do_not_validate_a_class_are_named_once"),
    ),
]
