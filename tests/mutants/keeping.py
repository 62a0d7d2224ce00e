"""Mutants of what is made once and kept: images on disk, samples that a function makes."""

from mutants.mutant import Mutant, python

_DATA = "python/hotloop/data/"
_CACHE = _DATA + "images/cache.py"
_MAP, _DIGEST = _DATA + "datasets/mapping.py", _DATA + "datasets/digests.py"
_IMAGES = "tests/data/test_image_cache.py::"
_MAPS = "tests/data/test_mapping.py::"

_KEPT_IMAGES = [
    Mutant(
        "kept-image-is-cut-by-its-own-size",
        "csrc/data/image_source.c",
        "source->options.stored[row].src_height,",
        "source->options.stored[row].height,",
        python(_IMAGES + "test_it_shows_the_same_parts_as_without"),
    ),
    Mutant(
        "kept-image-may-begin-at-the-end",
        "csrc/data/image_source.c",
        "stored->offset > options->stored_bytes - bytes",
        "stored->offset > options->stored_bytes",
        python(_IMAGES + "test_the_core_checks_what_is_stored"),
    ),
    Mutant(
        "kept-image-of-a-file-written-in-one-tick",
        _CACHE,
        "if seen - changed < _CLOSE and not is_fresh:",
        "if False:",
        python(_IMAGES + "test_what_was_just_written_is_compared"),
    ),
    Mutant(
        "kept-images-of-copies-lie-twice",
        _CACHE,
        "image.hash in entries or self._is_stored(image.hash)",
        "image.hash in entries",
        python(_IMAGES + "test_copies_are_stored_once"),
    ),
    Mutant(
        "kept-images-are-read-by-another-index",
        _CACHE,
        "            if begin != mark:",
        "            if False:",
        python(_IMAGES + "test_what_is_damaged_is_made_anew"),
    ),
    Mutant(
        "kept-entry-needs-no-sum",
        _CACHE,
        "if _sum_entry(*known) != own_sum:",
        "if False:",
        python(_IMAGES + "test_what_is_damaged_is_made_anew"),
    ),
    Mutant(
        "kept-pixels-need-no-sum",
        _CACHE,
        "zlib.crc32(pixels[at : at + bytes_].data) != sums[row]",
        "False",
        python(_IMAGES + "test_what_is_damaged_is_made_anew"),
    ),
    Mutant(
        "kept-images-are-lost-with-what-ends-it",
        _CACHE,
        "            finally:  # what is decoded is kept, whatever ended this\n",
        "            else:\n",
        python(_IMAGES + "test_a_bad_file_is_an_error_now"),
    ),
    Mutant(
        "kept-images-are-stored-by-several-at-once",
        _CACHE,
        'turn.execute("BEGIN IMMEDIATE")',
        'turn.execute("BEGIN")',
        python(_IMAGES + "test_two_processes_at_once"),
    ),
    Mutant(
        "kept-images-may-be-larger-than-the-disk",
        _DATA + "cache_folder.py",
        "    if needed > free:",
        "    if needed > 2 * free + 10**6:",
        python(_IMAGES + "test_a_disk_without_room"),
    ),
]

_KEPT_SAMPLES = [
    Mutant(
        "mapped-rows-are-there-before-they-are-written",
        _MAP,
        "                for file in files[:-1]:\n                    file.flush()\n"
        "                    os.fsync(file.fileno())\n"
        "                for block in written:",
        "                for block in written:",
        python(_MAPS + "test_rows_are_there_only_when_they_are_written"),
    ),
    Mutant(
        "mapped-rows-are-made-of-no-split",
        _MAP,
        "return np.flatnonzero(needed | is_whole)",
        "return np.arange(len(made))",
        python(_MAPS + "test_only_rows_of_splits_are_made"),
    ),
    Mutant(
        "mapped-rows-of-folds-are-not-made",
        _MAP,
        "        needed[pool] = True",
        "        pass",
        python(_MAPS + "test_folds_groups_subsets_and_sampling"),
    ),
    Mutant(
        "mapped-levels-may-become-floats",
        _MAP,
        "if dtype != _given_dtype(before) or not _broadcasts",
        "if not _broadcasts",
        python(_MAPS + "test_images"),
    ),
    Mutant(
        "mapped-ids-may-be-of-no-class",
        _MAP,
        "        if not n or good.all():",
        "        if True:",
        python(_MAPS + "test_samples_that_are_not_as_others"),
    ),
    Mutant(
        "mapped-data-is-not-looked-at",
        _MAP,
        "            feed_array(into, field.source[0])",
        "            pass",
        python(_MAPS + "test_other_data_and_functions_are_others"),
    ),
    Mutant(
        "mapped-functions-that-fn-calls-do-not-count",
        _DIGEST,
        "                self.feed(fn.__globals__[name], name)",
        "                pass",
        python(_MAPS + "test_digests_of_functions"),
    ),
    Mutant(
        "mapped-rows-are-augmented-and-kept",
        _MAP,
        "if cache is not None and self._is_random:",
        "if False:",
        python(_MAPS + "test_images"),
    ),
    Mutant(
        "integers-wrap-around-in-uint8",
        _DATA + "datasets/samples.py",
        'return dtype == "float32" or np.can_cast(array.dtype, dtype)',
        'return dtype == "float32" or array.dtype.kind != "f"',
        python("tests/data/test_datasets.py::test_integers_do_not_wrap_around"),
    ),
]

MUTANTS = [*_KEPT_IMAGES, *_KEPT_SAMPLES]
