"""Mutants of samples of several shapes (padded, in buckets), and of shifts by whole pixels."""

from mutants.mutant import Mutant, c, python

_DATA = "python/hotloop/data/"
_PADDED, _SHAPES = _DATA + "datasets/padded.py", _DATA + "images/buckets.py"
_PADS = "tests/data/test_padded.py::"
_IMAGES = "tests/data/test_image_buckets.py::"
_RESAMPLE = "csrc/data/resample.c"
_CROPS = "tests/data/test_augment_values.py::test_crops_with_padding_are_exact"

MUTANTS = (
    Mutant(
        "padded-samples-go-to-the-longest",
        _PADDED,
        "len(sizes) - 1 - bucket_of(self.buckets, self.lengths[name])",
        "0 * bucket_of(self.buckets, self.lengths[name])",
        python(_PADS + "test_samples_are_padded_to_their_bucket"),
    ),
    Mutant(
        "padded-classes-of-rows-count-in-padding",
        _PADDED,
        'fill = IGNORED if dtype == "int64" else 0.0',
        "fill = 0.0",
        python(_PADS + "test_rows_may_have_classes"),
    ),
    Mutant(
        "padded-masks-are-lengths",
        _DATA + "batching.py",
        "made.astype(field.gathered_dtype, copy=False)",
        "made.astype(field.dtype, copy=False)",
        python(_PADS + "test_samples_are_padded_to_their_bucket"),
    ),
    Mutant(
        "padded-predictions-stand-bucket-by-bucket",
        "python/hotloop/training/inference.py",
        "        leaves = [leaf[back] for leaf in leaves]",
        "        pass",
        python(_PADS + "test_trains_and_predicts_as_sequences_in_memory_do"),
    ),
    Mutant(
        "bucket-rows-are-all-rows",
        _DATA + "split.py",
        "rows[self.bucket_of[rows] == i]",
        "np.flatnonzero(self.bucket_of == i)",
        python(_IMAGES + "test_folds_and_subsets"),
    ),
    Mutant(
        "bucket-of-an-image-by-its-width",
        _SHAPES,
        "math.log(w / h) if h and w",
        "math.log(w) if h and w",
        python(_IMAGES + "test_each_image_goes_to_the_nearest_shape"),
    ),
    Mutant(
        "bucket-of-a-turned-image-as-it-is-stored",
        _DATA + "images/sources.py",
        "                if image.getexif().get(_ORIENTATION, 1) >= 5:",
        "                if False:",
        python(_IMAGES + "test_orientation_counts"),
    ),
    Mutant(
        "bucket-with-fewer-than-a-batch",
        _SHAPES,
        "counts[least] >= batch_size and",
        "counts[least] >= 1 and",
        python(_IMAGES + "test_automatic_shapes_have_a_batch_each"),
    ),
    Mutant(
        "whole-shift-mirrors-within-a-block-alone",
        _RESAMPLE,
        "        half[0] = first;",
        "        (void)first;",
        python(_CROPS),
    ),
    Mutant(
        "whole-shift-of-half-a-pixel",
        _RESAMPLE,
        "a->step == 1 && a->from == floor(a->from)",
        "a->step == 1",
        c("test_augment"),
    ),
)
