"""Mutants of checkpoints: what is saved and kept, what is put back, what is noticed."""

from mutants.mutant import Mutant, python

_CHECKPOINTS = "python/hotloop/training/checkpoints/"
_KEEPER, _SNAPSHOT = _CHECKPOINTS + "keeper.py", _CHECKPOINTS + "snapshot.py"
_RESUMING, _LOOP = _CHECKPOINTS + "resuming.py", "python/hotloop/training/run/loop.py"
_RECORDS = "python/hotloop/training/run/records.py"
_FILE = "python/hotloop/interop/safetensors_file.py"
_TESTS, _KILLS = "tests/train/test_resume.py::", "tests/fault/test_checkpoints.py::"
_STEPS = _TESTS + "test_every_step"
_DISK = "tests/train/test_checkpoints.py::"

MUTANTS = [
    Mutant(
        "the-header-has-no-checksum",
        _FILE,
        "_check_header(path, what, raw.read(n))\n",
        "pass\n",
        python(_KILLS + "test_flipped_bits"),
    ),
    Mutant(
        "tensors-are-not-checked",
        _FILE,
        "if _hex(zlib.crc32(flat.data)) != sums[name]:",
        "if False:",
        python(_KILLS + "test_flipped_bits"),
    ),
    Mutant(
        "the-average-goes-on-from-the-weights",
        _SNAPSHOT,
        "return [_AVERAGE + name, name]",
        "return [_TRAINED + name, name]",
        python(_STEPS),
    ),
    Mutant(
        "moments-begin-anew",
        _SNAPSHOT,
        "if n and store.startswith(_OF_TRAINED):",
        'if n and store == "ema":',
        python(_STEPS),
    ),
    Mutant(
        "sums-of-an-epoch-are-lost",
        _SNAPSHOT,
        "session.write(name, sums_then)",
        "pass",
        python(_STEPS),
    ),
    Mutant(
        "the-best-weights-are-lost",
        _SNAPSHOT,
        'session.write(f"best.{store}", best)',
        "pass",
        python(_TESTS + "test_best_weights_of_before"),
    ),
    Mutant(
        "counters-begin-anew",
        _LOOP,
        "self.runtime.session.control_set(**control)",
        "pass",
        python(_TESTS + "test_rates_beyond_the_table"),
    ),
    Mutant(
        "another-max-time-has-the-rates-of-then",
        "python/hotloop/training/run/pace.py",
        'if state.get("max_time") != self._config.max_time:',
        "if False:",
        python("tests/train/test_resume_changed.py::test_another_max_time_has_its_own_rates"),
    ),
    Mutant(
        "patience-begins-anew",
        "python/hotloop/training/run/monitor.py",
        'self.n_judged, self.n_bad = state["n_judged"], state["n_bad"]',
        'self.n_judged = state["n_judged"]',
        python(_TESTS + "test_patience_goes_on"),
    ),
    Mutant(
        "the-history-is-written-as-it-is-later",
        _LOOP,
        '"history": {name: list(column) for name, column in self.history.items()},',
        '"history": dict(self.history),',
        python(_TESTS + "test_a_snapshot_stays_what_it_was"),
    ),
    Mutant(
        "the-newest-is-removed",
        _KEEPER,
        'self._kept = [Kept(path, snapshot.run["commit"], snapshot.run["time"]), *others]',
        'self._kept = [*others, Kept(path, snapshot.run["commit"], snapshot.run["time"])]',
        python(_TESTS + "test_two_are_kept"),
    ),
    Mutant(
        "what-is-not-finite-is-saved",
        _KEEPER,
        "if value is not None and not np.isfinite(value).all():",
        "if False:",
        python(_TESTS + "test_weights_that_are_not_finite_are_not_saved"),
    ),
    Mutant(
        "other-data-is-taken",
        _RESUMING,
        "changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]",
        "changed = []",
        python(_TESTS + "test_other_data"),
    ),
    Mutant(
        "files-are-ordered-by-their-names",
        _KEEPER,
        "return sorted(found, key=lambda kept: -kept.commit)",
        "return found",
        python(_TESTS + "test_the_latest_is_by_commit"),
    ),
    Mutant(
        "max-disk-is-ignored",
        _KEEPER,
        "while sum(sizes.values()) > most and order:",
        "while False:",
        python(_TESTS + "test_max_disk"),
    ),
    Mutant(
        "micro-batches-of-now-are-those-of-then",
        _LOOP,
        "at.batches = batches - batches % per_step if is_between else batches",
        "pass",
        python(_TESTS + "test_other_micro_batches"),
    ),
    Mutant(
        "callbacks-do-not-hear-of-the-last-file",
        _RECORDS,
        "self._tell(self.keeper.poll(is_over=True, has_result=not failed))",
        "pass",
        python(_TESTS + "test_callbacks_hear_of_every_file"),
    ),
    Mutant(
        "a-child-holds-the-folder",
        _CHECKPOINTS + "folder.py",
        "fcntl.flock(self._lock, fcntl.LOCK_UN)",
        "pass",
        python(_TESTS + "test_a_forked_child_does_not_hold_the_folder"),
    ),
    Mutant(
        "other-models-of-the-same-weights-go-on",
        _RECORDS,
        "if model and model != self._model_digest:",
        "if False:",
        python(_TESTS + "test_models_that_compute_something_else"),
    ),
    Mutant(
        "best-models-of-other-branches-count",
        _KEEPER,
        'if scores.get(epoch) == score and metadata.get("monitor") == self._monitor:',
        "if True:",
        python(_TESTS + "test_best_models_of_other_monitors_and_branches"),
    ),
    Mutant(
        "a-damaged-file-is-kept",
        _KEEPER,
        "key=lambda one: one.path in damaged or one.commit < 0",
        "key=lambda one: one.commit < 0",
        python(_TESTS + "test_a_damaged_file_is_the_first_to_go"),
    ),
    Mutant(
        "an-interrupted-script-fails-instead",
        "python/hotloop/training/run/fit.py",
        "            end_as_interrupted()\n",
        "",
        python("tests/fault/test_signals.py::test_a_signal"),
    ),
    Mutant(
        "an-epochs-file-is-one-of-before-its-callbacks",
        _LOOP,
        """            self._call("on_epoch_end")
        finally:
""",
        """            self._records.heed_step(ended_epoch=epoch)
            self._call("on_epoch_end")
        finally:
""",
        python(_TESTS + "test_a_file_of_an_epochs_end_has_what_callbacks_set_there"),
    ),
    Mutant(
        "the-good-steps-of-a-scale-are-forgotten",
        _CHECKPOINTS + "snapshot.py",
        '"loss_scale", "good_steps", "lr"',
        '"loss_scale", "lr"',
        python("tests/train/test_resume_everything.py"),
    ),
    Mutant(
        "an-epoch-that-was-asked-for-has-no-checkpoint",
        _KEEPER,
        'if is_due and self._writer.is_busy and self._unit != "epochs":',
        "if is_due and self._writer.is_busy:",
        python(_TESTS + "test_each_epoch_that_is_asked_for_has_a_checkpoint"),
    ),
    Mutant(
        "a-best-models-file-takes-an-epochs-checkpoint",
        _KEEPER,
        "self._is_owed = was_owed or ended_epoch is not None",
        "pass",
        python(_DISK + "test_an_epoch_whose_model_is_the_best_has_its_checkpoint"),
    ),
    Mutant(
        "models-of-every-epoch-keep-checkpoints-out",
        _KEEPER,
        "if not was_owed or ended_epoch is None or self.best_can_wait:",
        "if True:",
        python(_DISK + "test_models_of_every_epoch_leave_room_for_checkpoints"),
    ),
    Mutant(
        "a-best-model-goes-before-a-checkpoint-that-is-owed",
        _KEEPER,
        "is_free = not self._writer.is_busy and not self._is_owed",
        "is_free = not self._writer.is_busy",
        python(_DISK + "test_a_best_model_waits_for_a_checkpoint_that_is_owed"),
    ),
    Mutant(
        "room-is-asked-twice",
        _KEEPER,
        "max(needed - sum(self._sizes().values()), one)",
        "needed",
        python(_DISK + "test_a_run_that_fits_the_disk_goes_on_there"),
    ),
    Mutant(
        "max-disk-has-room-for-one-of-two",
        _KEEPER,
        "least = last_bytes + best_bytes * (k != 0)",
        "least = max(last_bytes, best_bytes)",
        python(_DISK + "test_max_disk_has_room_for_the_checkpoint_and_the_best_model"),
    ),
    Mutant(
        "the-best-model-stays-beyond-max-disk",
        _KEEPER,
        "[path for _, path in reversed(self._best)]",
        "[path for _, path in reversed(self._best[1:])]",
        python(_DISK + "test_files_that_are_larger_than_was_known_keep_max_disk"),
    ),
    Mutant(
        "a-scale-of-another-precision-is-taken",
        _RESUMING,
        "snapshot = snapshot.without_scale()",
        "pass",
        python(_DISK + "test_another_precision_begins_with_its_own_loss_scale"),
    ),
    Mutant(
        "a-run-that-raises-ends-well",
        _LOOP,
        'self._call("on_exception" if fails else "on_train_end")',
        'self._call("on_train_end")',
        python("tests/train/test_events.py::test_a_run_that_raises_ends_by_an_exception"),
    ),
]
