"""Mutants of checkpoints: what is saved and kept, what is put back, what is noticed."""

from mutants.mutant import Mutant, python

_CHECKPOINTS = "python/hotloop/training/checkpoints/"
_KEEPER, _SNAPSHOT = _CHECKPOINTS + "keeper.py", _CHECKPOINTS + "snapshot.py"
_RESUMING, _LOOP = _CHECKPOINTS + "resuming.py", "python/hotloop/training/run/loop.py"
_FILE = "python/hotloop/interop/safetensors_file.py"
_TESTS, _KILLS = "tests/train/test_resume.py::", "tests/fault/test_checkpoints.py::"
_STEPS = _TESTS + "test_every_step"

MUTANTS = [
    Mutant(
        "the-header-has-no-checksum",
        _FILE,
        "_check_header(path, what, header)\n",
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
        'if n and (store == "ema" or store.startswith("optimizer.")):',
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
        'self.runtime.session.control_set(**state["control"])',
        "pass",
        python(_TESTS + "test_rates_beyond_the_table"),
    ),
    Mutant(
        "patience-begins-anew",
        "python/hotloop/training/run/monitor.py",
        'self._bad_rounds, self.n_judged = state["bad_rounds"], state["n_judged"]',
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
]
