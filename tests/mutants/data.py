"""Mutants of python/hotloop/data: rows, orders, classes."""

from mutants.mutant import Mutant, python

_DATA = "python/hotloop/data/"
_MODULE, _PARTITION = _DATA + "module.py", _DATA + "partition.py"
_SPLITS, _BATCHING = _DATA + "splits.py", _DATA + "batching.py"
_WINDOWS, _SPLIT = _DATA + "sequential/windows.py", _DATA + "split.py"
_TESTS = "tests/data/test_datamodule.py::"
_OF_WINDOWS = "tests/data/test_windows.py::"

MUTANTS = [
    Mutant(
        "order-does-not-depend-on-the-seed",
        _SPLITS,
        "seed=self._seed,\n            n_slots",
        "seed=0,\n            n_slots",
        python(_TESTS + "test_the_order_is_a_function_of_seed_and_epoch"),
    ),
    Mutant(
        "groups-do-not-depend-on-the-seed",
        _PARTITION,
        "_core.permutation(seed, _STREAM, 0, len(names))",
        "_core.permutation(0, _STREAM, 0, len(names))",
        python("tests/data/test_partition.py::test_groups_are_drawn_by_the_seed"),
    ),
    Mutant(
        "held-out-rows-are-rounded-down",
        _PARTITION,
        "count = round(float(share) * n)",
        "count = int(float(share) * n)",
        python("tests/data/test_partition.py::test_splits_are_disjoint_and_complete"),
    ),
    Mutant(
        "row-beyond-the-data-is-taken",
        _MODULE,
        "rows.max() >= n:",
        "rows.max() > n:",
        python(_TESTS + "test_rows_of_a_subset_lie_in_its_data"),
    ),
    Mutant(
        "weights-of-all-rows-are-looked-at",
        _SPLITS,
        "check_weights(field, split.rows, name)",
        "check_weights(field, None, name)",
        python(_TESTS + "test_weights_of_a_split_are_those_of_its_rows"),
    ),
    Mutant(
        "classes-of-validation-are-numbered-anew",
        _DATA + "targets.py",
        "ids[counts], classes = table[ids[counts]], like.classes",
        "classes = like.classes",
        python(_TESTS + "test_string_classes_are_numbered_in_sorted_order"),
    ),
    Mutant(
        "classes-of-the-model-are-not-counted",
        _SPLITS,
        "self._targets[target], classes=listed, n_classes=len(listed)",
        "self._targets[target], classes=listed",
        python(_TESTS + "test_classes_of_a_model_renumber_the_ids"),
    ),
    Mutant(
        "classes-are-counted-in-all-rows",
        _SPLITS,
        'blocks(field, rows, "counting the classes of")',
        'blocks(field, None, "counting the classes of")',
        python(_TESTS + "test_as_text"),
    ),
    Mutant(
        "subset-of-a-subset-counts-from-the-data",
        _DATA + "tables.py",
        "return rows if inner is None else",
        "return rows if inner is not None else",
        python(_TESTS + "test_datasets"),
    ),
    Mutant(
        "spread-that-float32-lacks-divides-by-zero",
        _DATA + "scaling.py",
        "(deviation <= rounding) | (std == 0.0)",
        "deviation <= rounding",
        python(_TESTS + "test_standardize_divides_by_no_zero"),
    ),
    Mutant(
        "deviation-is-that-of-a-sample",
        _DATA + "scaling.py",
        "count = np.maximum(count, 1.0)",
        "count = np.maximum(count - 1.0, 1.0)",
        python(_TESTS + "test_standardize_by_the_training_rows"),
    ),
    Mutant(
        "tail-of-one-row-adds-a-batch",
        _BATCHING,
        "merged = [(size, count - 1), (size + 1, 1)]",
        "merged = [(size, count), (size + 1, 1)]",
        python(_TESTS + "test_how_an_epoch_is_cut"),
    ),
    Mutant(
        "tenth-input-comes-second",
        _DATA + "split.py",
        "sorted(value, key=int)",
        "sorted(value)",
        python(_TESTS + "test_dict_and_tuple_inputs_keep_their_structure"),
    ),
    Mutant(
        "a-window-reaches-into-the-next-split",
        _WINDOWS,
        "pieces[first] == pieces[first + reach]",
        "pieces[first] == pieces[first]",
        python(_OF_WINDOWS + "test_no_window_crosses_a_boundary"),
    ),
    Mutant(
        "a-target-is-that-of-the-last-row",
        _WINDOWS,
        '_read_goal(read_aligned("target", goal, n), reach)',
        'read_aligned("target", goal, n)[length - 1 : n - horizon]',
        python(_OF_WINDOWS + "test_batches_are_windows_and_the_target_ahead"),
    ),
    Mutant(
        "targets-have-the-numbers-of-their-windows",
        _DATA + "checks.py",
        "    row += field.first_row\n",
        "",
        python(_OF_WINDOWS + "test_wrong_series"),
    ),
    Mutant(
        "rows-before-all-windows-are-targets",
        _WINDOWS,
        "before = goal[reach : reach + 1].repeat(reach, axis=0)",
        "before = goal[:reach]",
        python(_OF_WINDOWS + "test_wrong_series"),
    ),
    Mutant(
        "tokenizers-files-cut-the-text",
        _DATA + "sequential/text.py",
        "    read.no_truncation()",
        "    pass",
        python("tests/data/test_text.py::test_a_tokenizers_file"),
    ),
    Mutant(
        "mixed-groups-are-divided-by-time",
        _DATA + "partition.py",
        "    if not shuffle:\n        begins_of_groups",
        "    if False:\n        begins_of_groups",
        python("tests/data/test_partition.py::test_groups_in_order_keep_the_last_for_test"),
    ),
    Mutant(
        "windows-are-scaled-by-all-rows",
        _SPLIT,
        "is_used = np.zeros(len(series), np.bool_)",
        "is_used = np.ones(len(series), np.bool_)",
        python(_OF_WINDOWS + "test_normalized_by_the_training_rows_alone"),
    ),
    Mutant(
        "windows-are-copied",
        _DATA + "arrays.py",
        "    if window:\n",
        "    if window < 0:\n",
        python(_OF_WINDOWS + "test_views_that_arrays_are_given_as"),
    ),
    Mutant(
        "a-fed-window-begins-windows-apart",
        "csrc/plan/dataset.c",
        "src_bytes = step * (int64_t)",
        "src_bytes = n_row * (int64_t)",
        python("tests/api/test_core_plan.py::test_windows_are_fed_like_rows"),
    ),
]
