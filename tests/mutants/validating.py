"""Mutants of validation within an epoch: when it runs, what it judges, what goes on behind it."""

from mutants.mutant import Mutant, python

_RUN = "python/hotloop/training/run/"
_LOOP, _CHECKS = _RUN + "loop.py", _RUN + "checks.py"
_TESTS = "tests/train/test_validation_within.py::"
_RESUMED = "tests/train/test_resume.py::test_every_step"

MUTANTS = [
    Mutant(
        "every-epoch-ends-with-validation",
        _CHECKS,
        "return self._interval is None or self._number(at.batches) > self._checked(at)",
        "return True",
        python(_TESTS + "test_when"),
    ),
    Mutant(
        "intervals-count-steps",
        _CHECKS,
        "return -(-left // self._per_step)",
        "return left",
        python(_TESTS + "test_when"),
    ),
    Mutant(
        "a-training-loss-is-judged-within-an-epoch",
        _LOOP,
        'if k.startswith("val_") and k not in self._logged}',
        "if k not in self._logged}",
        python(_TESTS + "test_plateau_falls_within_an_epoch"),
    ),
    Mutant(
        "a-file-comes-before-the-validation-of-its-step",
        _LOOP,
        "if at.batches < n_batches and not self._validates_within():",
        "if at.batches < n_batches:",
        python(_TESTS + "test_a_file_holds_the_validation_of_its_step"),
    ),
    Mutant(
        "another-interval-loses-validations",
        _CHECKS,
        "return self._number(at.checked * self._parts)",
        "return at.checked // 2",
        python(_TESTS + "test_another_interval_when_a_run_goes_on"),
    ),
    Mutant(
        "what-was-logged-is-judged-twice",
        _RUN + "events.py",
        "        self.new.clear()\n",
        "",
        python("tests/train/test_callbacks.py::test_what_is_logged_is_judged_within_an_epoch"),
    ),
    Mutant(
        "what-is-logged-at-an-epochs-end-is-not-judged",
        _LOOP,
        "            self._heed(epoch, late)\n",
        "",
        python(
            "tests/train/test_callbacks.py::"
            "test_without_validation_what_is_logged_at_an_epochs_end_is_judged"
        ),
    ),
    Mutant(
        "validations-begin-anew-when-a-run-goes-on",
        _RUN + "position.py",
        "known = {field.name for field in dataclasses.fields(cls)}",
        'known = {field.name for field in dataclasses.fields(cls)} - {"checked"}',
        python(_RESUMED),
    ),
    Mutant(
        "best-models-within-epochs-are-forgotten",
        "python/hotloop/training/checkpoints/keeper.py",
        'float(metadata["score"]), float(metadata["epoch"])',
        'float(metadata["score"]), float(int(metadata["epoch"]))',
        python(_TESTS + "test_best_weights_of_a_validation_within"),
    ),
]
