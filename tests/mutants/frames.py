"""Mutants of tables: what is learnt of which rows, how columns are read, what a file says."""

from mutants.mutant import Mutant, python

_DATA = "python/hotloop/data/"
_ENCODING, _FITTING = _DATA + "frames/encoding.py", _DATA + "frames/fitting.py"
_FRAMES, _FILES = _DATA + "frames/columns.py", _DATA + "frames/table_files.py"
_TABULAR, _MODULE = _DATA + "frames/tabular.py", _DATA + "frames/table_data.py"
_T, _F = "tests/data/test_tables.py::", "tests/data/test_table_files.py::"
_OF_FOLDS = "tests/data/test_table_folds.py::"
_LEAKS = python(_T + "test_nothing_is_learnt_of_held_out_rows")
_BY_HAND = python(_T + "test_every_kind_of_column_by_hand")
_SAVED = python(_T + "test_a_model_encodes_new_rows_before_and_after_saving")

MUTANTS = [
    Mutant(
        "folds-have-columns-of-their-own",
        _DATA + "frames/table_data.py",
        "return found if whole is None else found.laid_out_as(whole)",
        "return found",
        python(_OF_FOLDS + "test_models_of_all_folds_have_the_same_inputs"),
    ),
    Mutant(
        "folds-know-the-categories-of-others",
        _ENCODING,
        " if i not in feature.absent}",
        "}",
        python(_OF_FOLDS + "test_models_of_all_folds_have_the_same_inputs"),
    ),
    Mutant(
        "folds-mark-what-they-never-missed",
        _ENCODING,
        "if feature.has_indicator and 0 not in feature.absent:",
        "if feature.has_indicator:",
        python(_OF_FOLDS + "test_models_of_all_folds_have_the_same_inputs"),
    ),
    Mutant(
        "medians-are-of-all-rows",
        _FITTING,
        "values = column.values if rows is None else column.values[rows]\n        median",
        "values, lost = column.values, missing\n        median",
        _LEAKS,
    ),
    Mutant(
        "categories-are-of-all-rows",
        _FITTING,
        "codes = column.codes if rows is None else column.codes[rows]\n    counts",
        "codes = column.codes\n    counts",
        python(_T + "test_held_out_rows_may_have_categories_of_their_own"),
    ),
    Mutant(
        "the-first-day-is-of-all-rows",
        _FITTING,
        "values = column.values if rows is None else column.values[rows]\n        feature",
        "values = column.values\n        feature",
        _LEAKS,
    ),
    Mutant(
        "means-of-the-target-are-of-all-rows",
        _FITTING,
        "values = _target_values(targets, rows, column.name)\n    means = _means(table[codes],",
        "values = _target_values(targets, None, column.name)\n"
        "    means = _means(table[column.codes],",
        _LEAKS,
    ),
    Mutant(
        "training-rows-know-their-own-target",
        _FITTING,
        "means = _smooth(counts - fewer, sums - less)",
        "means = _smooth(counts, sums)",
        python(_T + "test_a_training_row_is_not_encoded_by_its_own_target"),
    ),
    Mutant(
        "means-of-the-target-are-not-smoothed",
        _FITTING,
        "_SMOOTHING = 10.0",
        "_SMOOTHING = 1e-9",
        python(_T + "test_means_of_the_target_by_hand"),
    ),
    Mutant(
        "the-median-is-one-below",
        _FITTING,
        "(n - 1) // 2, n // 2",
        "(n - 1) // 2, (n - 1) // 2",
        python(_T + "test_the_median_is_the_median"),
    ),
    Mutant(
        "the-median-is-where-the-sample-has-it",
        _FITTING,
        "if n_below <= middle[0] and middle[1] < n_below + len(near):",
        "if len(near):",
        python(_T + "test_the_median_is_the_median"),
    ),
    Mutant(
        "texts-among-numbers-are-categories",
        _FITTING,
        "if 2 * n < len(known)",
        "if 2 * n < 9 * len(known)",
        python(_T + "test_wrong_tables"),
    ),
    Mutant(
        "any-number-of-columns-is-made-of-texts",
        _FITTING,
        'if how == "auto" and len(present) > _MOST_ONE_HOT:',
        'if how == "auto" and len(present) > 65:',
        python(_T + "test_many_categories_are_asked_about"),
    ),
    Mutant(
        "holes-are-filled-without-a-word",
        _FITTING,
        'if wishes.missing == "auto":\n        _warn_of_missing',
        'if wishes.missing == "never":\n        _warn_of_missing',
        python(_T + "test_missing_numbers_are_said_or_asked_for"),
    ),
    Mutant(
        "every-hole-of-new-rows-passes",
        _ENCODING,
        "if feature.fill is not None or feature.keeps_nan or not column.missing.size:",
        "if column.kind or not column.missing.size:",
        python(_T + "test_what_new_rows_may_lack"),
    ),
    Mutant(
        "an-unseen-category-is-the-first",
        _ENCODING,
        "number.get(category, 0)",
        "number.get(category, 1)",
        python(_T + "test_unseen_categories_count_as_missing_and_are_told"),
    ),
    Mutant(
        "an-unseen-category-never-raises",
        _ENCODING,
        "if self.raises_unseen:",
        "if self.raises_unseen is None:",
        python(_T + "test_unseen_categories_count_as_missing_and_are_told"),
    ),
    Mutant(
        "dates-count-from-1970",
        _ENCODING,
        'values - feature.origin if feature.kind == "date" else values',
        "values",
        _BY_HAND,
    ),
    Mutant(
        "a-missing-date-is-the-first-day",
        _ENCODING,
        "= feature.fill - feature.origin",
        "= feature.fill - feature.fill",
        python(_T + "test_kinds_of_numbers_and_dates"),
    ),
    Mutant(
        "columns-go-by-position",
        _ENCODING,
        "columns = [frame.column(name) for name in self.names]",
        "columns = [frame.column(name) for name in frame.names[: len(self.names)]]",
        _SAVED,
    ),
    Mutant(
        "marks-are-standardised",
        _DATA + "scaling.py",
        "if field.marks:",
        "if field.marks is None:",
        _BY_HAND,
    ),
    Mutant(
        "a-file-forgets-how-a-table-was-encoded",
        "python/hotloop/training/result/saving.py",
        "encoding=Encoding.from_data(encoding) if encoding is not None else None",
        "encoding=None",
        _SAVED,
    ),
    Mutant(
        "encoded-ids-are-encoded-again",
        "python/hotloop/training/inference.py",
        'Inputs("predict", x, loaded, is_encoded=True)',
        'Inputs("predict", x, loaded)',
        python(_T + "test_a_model_of_ids_alone_evaluates_after_loading"),
    ),
    Mutant(
        "data-of-another-encoding-is-evaluated",
        "python/hotloop/training/inference.py",
        'known.check_encoding("evaluate", data.encoding)',
        "pass",
        python(_T + "test_data_encoded_by_rows_of_its_own_is_refused"),
    ),
    Mutant(
        "folds-share-what-the-whole-has-learnt",
        _MODULE,
        'if self._given is None or "train" not in rows:',
        "if self._given or not rows:",
        python(_OF_FOLDS + "test_each_fold_learns_of_its_own_training_rows"),
    ),
    Mutant(
        "folds-share-means-of-the-target",
        _MODULE,
        "if encoding == self._encoding and not encoding.means_target:",
        "if encoding == self._encoding or encoding.means_target:",
        python(_OF_FOLDS + "test_each_fold_learns_of_its_own_training_rows"),
    ),
    Mutant(
        "codes-of-arrow-lose-what-is-missing",
        _FRAMES,
        "fill_null(-1)",
        "fill_null(0)",
        _BY_HAND,
    ),
    Mutant(
        "nanoseconds-are-days",
        _FRAMES,
        'array.astype("datetime64[us]").view("int64")',
        'array.view("int64")',
        python(_T + "test_kinds_of_numbers_and_dates"),
    ),
    Mutant(
        "a-missing-target-is-the-last-class",
        _TABULAR,
        "if column.missing.size and not (column.codes is None and takes_nan):",
        "if column.missing.size and takes_nan:",
        python(_T + "test_targets_of_every_kind"),
    ),
    Mutant(
        "the-target-may-be-a-feature",
        _TABULAR,
        "if name in taken:",
        "if name in taken[1:]:",
        python(_T + "test_wrong_tables"),
    ),
    Mutant(
        "columns-that-are-not-named-are-standardised",
        _TABULAR,
        "is_mark or not (isinstance(standardize, bool) or feature.name in standardize)",
        "is_mark",
        python(_OF_FOLDS + "test_columns_are_standardised_by_name"),
    ),
    Mutant(
        "a-row-that-is-too-short-is-filled",
        _FILES,
        "if len(row) != n:",
        "if len(row) > n:",
        python(_F + "test_files_that_are_no_tables"),
    ),
    Mutant(
        "a-row-is-a-header",
        _FILES,
        "elif _looks_like_a_row(first):",
        "elif not first:",
        python(_F + "test_files_that_are_no_tables"),
    ),
    Mutant(
        "files-are-joined-by-position",
        _FILES,
        "tables = [_select(table, names) for table in tables]",
        "tables = [table for table in tables]",
        python(_F + "test_several_files_are_one_table"),
    ),
    Mutant(
        "rows-of-files-are-counted-through",
        _FRAMES,
        "if row < first + n:",
        "if row < first:",
        python(_F + "test_missing_values_are_named_by_file_and_row"),
    ),
]
