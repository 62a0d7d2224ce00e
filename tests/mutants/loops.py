"""Mutants of what a loop of one's own, arguments of forward and targets must not do silently."""

from mutants.mutant import Mutant, python

_TRAINING = "python/hotloop/training/"
_STEPPING, _RUNTIME = _TRAINING + "run/stepping.py", _TRAINING + "plans/runtime.py"
_TESTS = "tests/train/test_"
_SHARED, _ARGUMENTS = _TESTS + "shared_weights.py::", _TESTS + "arguments.py::"
_TARGETS, _ROWS = _TESTS + "targets_that_fit.py::", _TESTS + "batches_of_one_row.py::"

MUTANTS = [
    Mutant(
        "a-step-misses-weights-that-were-set",
        _STEPPING,
        'self._follow_model("step")',
        "pass",
        python(_SHARED + "test_two_steppers_play_against_each_other_as_two_optimizers_do"),
    ),
    Mutant(
        "a-sync-reverts-weights-that-were-set",
        _STEPPING,
        'self._follow_model("sync")',
        "pass",
        python(_SHARED + "test_weights_that_were_set_are_those_of_the_next_step"),
    ),
    Mutant(
        "the-average-forgets-weights-that-were-set",
        _STEPPING,
        "self._weights.set_average(changed)",
        "pass",
        python(_SHARED + "test_weights_that_were_set_are_those_of_the_next_step"),
    ),
    Mutant(
        "a-sync-writes-what-it-did-not-train",
        _RUNTIME,
        "if variable.is_drawn and _same_bits(variable.value(), values):",
        "if False:",
        python(_SHARED + "test_a_sync_leaves_alone_what_the_stepper_did_not_train"),
    ),
    Mutant(
        "a-trained-value-is-drawn-anew",
        _STEPPING,
        "slot.owner.keep()",
        "pass",
        python(
            _SHARED + "test_weights_that_were_drawn_keep_their_trained_values_under_another_name"
        ),
    ),
    Mutant(
        "arguments-by-name-are-dropped",
        _RUNTIME,
        "return model(*x[:-1], **x[-1])",
        "return model(*x[:-1])",
        python(_ARGUMENTS + "test_each_argument_is_honoured"),
    ),
    Mutant(
        "constants-are-no-part-of-the-key",
        _TRAINING + "predictor.py",
        "key = (shapes, repr(spec), path, numbers)",
        "key = (shapes, path, numbers)",
        python(_ARGUMENTS + "test_constants_that_are_equal_and_no_others_share_a_plan"),
    ),
    Mutant(
        "channels-last-are-reshaped",
        _TRAINING + "scoring/matching.py",
        "and (not ends_a - ends_b or not ends_b - ends_a)",
        "and True",
        python(_TARGETS + "test_channels_last_is_no_other_shape_of_channels_first"),
    ),
    Mutant(
        "targets-of-255-are-probabilities",
        "python/hotloop/data/checks.py",
        "bad = (values < low) | (values > high)",
        "bad = values < low",
        python(_TARGETS + "test_targets_of_losses_of_probabilities_and_counts"),
    ),
    Mutant(
        "names-are-numbered-for-a-model-of-ids",
        "python/hotloop/data/targets.py",
        "if target.has_names:",
        "if False:",
        python(_TARGETS + "test_names_for_a_model_of_ids"),
    ),
    Mutant(
        "one-image-is-no-batch",
        _RUNTIME,
        "least < 4",
        "least < 99",
        python(_ROWS + "test_images_one_at_a_time_as_in_torch"),
    ),
]
