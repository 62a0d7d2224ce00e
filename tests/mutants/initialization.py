"""Mutants of statistical nodes: which pass fits them, and what follows from a source."""

from mutants.mutant import Mutant, python

_FITTING = "python/hotloop/training/plans/initialization.py"
_STATISTICS = "python/hotloop/stats/statistics.py"
_TESTS = "tests/train/test_initialization.py::test_"

MUTANTS = [
    Mutant(
        "a-range-goes-through-maps-that-mix-channels",
        _FITTING,
        'one.node.needs != "range" or way.is_per_channel',
        "True",
        python(_TESTS + "as_few_passes_as_there_are_levels"),
    ),
    Mutant(
        "nodes-that-wait-are-fitted-at-once",
        _FITTING,
        "if not ways.waits(source):",
        "if True:",
        python(_TESTS + "statistics_are_those_of_what_forward_computes"),
    ),
    Mutant(
        "what-a-pass-finds-is-known-before-it",
        _FITTING,
        "self._graph.depends(value, [*self._data, *self._late])",
        "self._graph.depends(value, self._data)",
        python(_TESTS + "late_shares_are_no_map_yet"),
    ),
    Mutant(
        "nothing-is-shifted",
        _FITTING,
        "name: found.mean if np.isfinite(found.mean).all() else np.zeros(len(found.mean))",
        "name: np.zeros(len(found.mean))",
        python(_TESTS + "numbers_far_from_zero_keep_their_variance"),
    ),
    Mutant(
        "a-failed-fit-leaves-half-of-it",
        _FITTING,
        "variable.set_value(value)",
        "pass",
        python(_TESTS + "a_fit_that_fails_changes_nothing"),
    ),
    Mutant(
        "a-negative-factor-keeps-the-lowest-lowest",
        _STATISTICS,
        "np.where(matrix > 0, matrix * low, matrix * high)",
        "np.where(matrix != 0, matrix * low, matrix * high)",
        python(_TESTS + "ranges_behind_a_negative_factor"),
    ),
    Mutant(
        "resumed-runs-fit-again",
        "python/hotloop/training/run/planner.py",
        "if self._is_resumed or not nodes_to_fit(self.model):",
        "if not nodes_to_fit(self.model):",
        python(_TESTS + "a_run_goes_on"),
    ),
    Mutant(
        "passes-of-the-batches-of-training",
        _FITTING,
        "rows = max(1, min(_BATCH_BYTES // max(row, 1), n))",
        "rows = groups[0].rows",
        python(_TESTS + "batches_of_a_pass_are_small"),
    ),
    Mutant(
        "validation-is-predicted-with-one-slot",
        "python/hotloop/training/run/planner.py",
        'n_slots = self.runtime.ring(self.data.num_workers, rows, **loading)["n_slots"]',
        "n_slots = len(loading) * 0 + 1",
        python(_TESTS + "batches_of_a_pass_are_small"),
    ),
    Mutant(
        "wavelengths-are-not-compared",
        "python/hotloop/training/plans/wavelengths.py",
        "if not off.any():",
        "if is_alike or not off.any():",
        python(_TESTS + "other_wavelengths_than_those_of_the_fit"),
    ),
    Mutant(
        "a-model-after-phase-1-alone-knows-nothing",
        "python/hotloop/training/run/fit.py",
        "set_metadata(model, metadata_of(model, data, planner.config))",
        "metadata_of(model, data, planner.config)",
        python(_TESTS + "phase_1_alone_is_known_to_predict"),
    ),
    Mutant(
        "files-are-known-by-their-names",
        "python/hotloop/data/contents.py",
        "into.update(file.read(_FILE_BYTES))",
        "file.read(_FILE_BYTES)",
        python("tests/train/test_resume.py::test_rows_that_are_read_of_files"),
    ),
]
