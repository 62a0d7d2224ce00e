"""Mutants of statistical nodes: which pass fits them, and what follows from a source."""

from mutants.mutant import Mutant, python

_FITTING = "python/hotloop/training/plans/initialization.py"
_STATISTICS = "python/hotloop/stats/statistics.py"
_TESTS = "tests/train/test_initialization.py::test_"
_NODE = "python/hotloop/stats/node.py"
_PIXELS = "tests/train/test_pixels.py::test_"

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
    Mutant(
        "variances-of-mixtures-follow-from-variances",
        _FITTING,
        'one.node.needs == "variance" and not way.is_per_channel',
        "False",
        python(_PIXELS + "variances_behind_a_layer_that_mixes_channels"),
    ),
    Mutant(
        "what-is-not-known-is-told",
        _STATISTICS,
        "matrix**2 @ spread if affine.is_per_channel else None",
        "matrix**2 @ spread",
        python(_PIXELS + "a_node_gets_what_it_asks_for"),
    ),
    Mutant(
        "each-images-own-range-is-affine",
        "python/hotloop/stats/normalizers.py",
        "self.is_affine = self.is_per_channel = self.use_running_stats",
        "self.is_affine = self.is_per_channel = True",
        python(_PIXELS + "statistics_behind_each_images_own"),
    ),
    Mutant(
        "masked-pixels-are-seen",
        _NODE,
        "where(mask.unsqueeze(-1), pixels_of(input), 0.0)",
        "pixels_of(input)",
        python(_PIXELS + "pixels_beside_the_mask_count_nowhere"),
    ),
    Mutant(
        "masked-pixels-count",
        _NODE,
        "if mask is None or mask.shape != x.shape[:-1]:",
        "if True:",
        python(_PIXELS + "masked_values"),
    ),
    Mutant(
        "targets-beside-the-mask-count",
        "python/hotloop/training/plans/masks.py",
        "where(mask, y, IGNORED) if is_of_pixels else y",
        "y",
        python(_PIXELS + "masked_values"),
    ),
    Mutant(
        "masked-losses-are-means-of-batches",
        _NODE,
        "return with_parts(total / n, total, n)",
        "return total / n",
        python(_PIXELS + "micro_batches_divide_masked_losses_once"),
    ),
    Mutant(
        "losses-draw-noise-of-their-own",
        "python/hotloop/stats/losses.py",
        "    return shares_of(module)\n",
        "    return module.weights()\n",
        python(_PIXELS + "losses_of_selectors"),
    ),
    Mutant(
        "a-trained-covariance-is-the-fitted-one",
        "python/hotloop/stats/detectors.py",
        'np.linalg.inv(self.fitted("whitening"))',
        'np.linalg.inv(self.statistics["whitening"])',
        python(_PIXELS + "what_was_trained_is_what_is_shown"),
    ),
    Mutant(
        "sensors-counts-stay-whole",
        _NODE,
        'return x.cast("float32") if is_whole else x',
        "return x",
        python(_PIXELS + "whole_numbers_of_sensors"),
    ),
    Mutant(
        "the-centre-moves-first",
        "python/hotloop/stats/svdd.py",
        "return (away * away).sum(-1, keepdim=True)",
        "away = x - self.center\n        return (away * away).sum(-1, keepdim=True)",
        python(_PIXELS + "distances_from_a_centre_that_moves"),
    ),
    Mutant(
        "nothing-left-to-fit-is-a-training",
        "python/hotloop/training/run/planner.py",
        "return has_nodes and self.config.max_epochs == 0 and not self._is_resumed",
        "return self.fitting is not None and self.config.max_epochs == 0",
        python(_PIXELS + "phase_1_again"),
    ),
]
