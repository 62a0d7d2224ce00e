"""Mutants of loggers: what is logged and when, what is read for it, files that go on, failures."""

from mutants.mutant import Mutant, python

_LOGGERS = "python/hotloop/training/loggers/"
_ALL, _FILES = _LOGGERS + "loggers.py", _LOGGERS + "files.py"
_TRACKERS, _EVENTS = _LOGGERS + "trackers.py", _LOGGERS + "event_file.py"
_TESTS = "tests/train/test_loggers.py::"

MUTANTS = [
    Mutant(
        "the-ring-loses-steps",
        _ALL,
        "return max(first + _RING - 1 - steps, 1)",
        "return max(first + 2 * _RING - steps, 1)",
        python(_TESTS + "test_readings_of_the_device"),
    ),
    Mutant(
        "the-ring-is-read-after-every-step",
        _ALL,
        "if not now and steps < first + _RING - 1 and at - self._read_at < _BETWEEN:",
        "if False:",
        python(_TESTS + "test_readings_of_the_device"),
    ),
    Mutant(
        "all-steps-are-logged",
        _ALL,
        "if self._read < step <= steps and step % self._every == 0:",
        "if self._read < step <= steps:",
        python(_TESTS + "test_names_and_steps"),
    ),
    Mutant(
        "a-step-has-a-value-twice",
        _ALL,
        "if steps == self._logged_step:",
        "if False:",
        python(_TESTS + "test_names_and_steps"),
    ),
    Mutant(
        "values-of-callbacks-get-other-names",
        _ALL,
        "if name in own:",
        "if False:",
        python(_TESTS + "test_names_and_steps"),
    ),
    Mutant(
        "a-failing-logger-is-called-again",
        _ALL,
        "self._live.remove(one)",
        "pass",
        python(_TESTS + "test_a_logger_that_fails"),
    ),
    Mutant(
        "a-failing-logger-ends-training",
        _ALL,
        "except Exception as error:\n            with",
        "except ZeroDivisionError as error:\n            with",
        python(_TESTS + "test_a_logger_that_fails"),
    ),
    Mutant(
        "trackers-log-again-what-they-have",
        _ALL,
        "return self._number(record) <= self._known",
        "return False",
        python(_TESTS + "test_trackers_go_on"),
    ),
    Mutant(
        "other-settings-log-nothing",
        _ALL,
        "goes_on = self._config.resume_strict and bool(self._known)",
        "goes_on = bool(self._known)",
        python(_TESTS + "test_trackers_go_on"),
    ),
    Mutant(
        "trackers-begin-another-run",
        "python/hotloop/training/run/records.py",
        'self.log.load_state_dict(state.get("loggers", {}))',
        "pass",
        python(_TESTS + "test_trackers_go_on"),
    ),
    Mutant(
        "files-keep-what-is-trained-again",
        _FILES,
        "return self._step_of(line) <= self._step",
        "return True",
        python(_TESTS + "test_files_go_on_without_doubled_steps"),
    ),
    Mutant(
        "a-torn-line-stays",
        _FILES,
        'if not line.endswith(b"\\n"):',
        "if False:",
        python(_TESTS + "test_files_go_on_without_doubled_steps"),
    ),
    Mutant(
        "half-a-line-stays",
        _FILES,
        "os.ftruncate(file, before)",
        "pass",
        python(_TESTS + "test_a_line_is_written_whole_or_not"),
    ),
    Mutant(
        "rows-that-wait-are-lost",
        _FILES,
        "if self._waiting:  #",
        "if False:  #",
        python(_TESTS + "test_steps_wait_for_the_folder"),
    ),
    Mutant(
        "a-checkpoint-comes-before-its-steps",
        "python/hotloop/training/run/records.py",
        "self.log.heed_steps(run.steps_attempted, run.epoch + 1, now=True)  # none is lost",
        "pass",
        python(_TESTS + "test_a_checkpoint_has_its_steps_in_the_files"),
    ),
    Mutant(
        "tensorboard-has-steps-twice",
        _EVENTS,
        "self._write(step=start.step + 1, session_log=restart)",
        "pass",
        python(_TESTS + "test_tensorboard_by_its_parts"),
    ),
    Mutant(
        "wandb-is-online",
        _TRACKERS,
        'os.environ.get("WANDB_MODE", "offline")',
        'os.environ.get("WANDB_MODE", "online")',
        python(_TESTS + "test_wandb"),
    ),
    Mutant(
        "a-run-of-the-users-is-finished",
        _TRACKERS,
        "if self._is_own:\n            self._run.finish",
        "if True:\n            self._run.finish",
        python(_TESTS + "test_a_run_of_wandb_that_is_there"),
    ),
    Mutant(
        "parameters-are-set-twice",
        _TRACKERS,
        "if not start.known:",
        "if True:",
        python(_TESTS + "test_trackers_go_on"),
    ),
    Mutant(
        "a-missing-package-is-found-while-training",
        "python/hotloop/training/run/fit.py",
        "check_loggers(config.logger)",
        "pass",
        python(_TESTS + "test_a_missing_package"),
    ),
    Mutant(
        "lines-are-thinned",
        "python/hotloop/training/run/progress.py",
        "if self._lines or number == 1 or",
        "if number == 1 or",
        python(_TESTS + "test_lines"),
    ),
    Mutant(
        "lines-come-with-a-bar",
        "python/hotloop/training/run/progress.py",
        "self._use_bar = bar and not self._quiet and not lines",
        "self._use_bar = bar and not self._quiet",
        python(_TESTS + "test_lines"),
    ),
]
