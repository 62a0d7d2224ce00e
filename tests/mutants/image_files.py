"""Mutants of image files: headers, decoding, sources of batches, folders and tables of paths."""

from mutants.mutant import Mutant, c, python

_C, _DATA = "csrc/data/", "python/hotloop/data/"
_IMAGE, _SOURCE = c("test_image"), c("test_image_source")
_IMAGES = "tests/data/test_images.py::"
_SOURCES = "tests/data/test_image_sources.py::"
_FILES = "tests/data/test_image_files.py::"
_MASKS = "tests/data/test_annotations.py::"
_ANNOTATIONS = c("test_annotations")

_HEADERS = [
    Mutant(
        "segment-may-reach-beyond-the-file",
        _C + "jpeg_header.c",
        "if (left_of(r) < length) return fail_end();",
        "if (left_of(r) + 4 < length) return fail_end();",
        _IMAGE,
    ),
    Mutant(
        "exif-is-of-one-byte-order",
        _C + "jpeg_header.c",
        'const char *order = t.big ? "MM" : "II";',
        'const char *order = "II";',
        _IMAGE,
    ),
    Mutant(
        "orientation-nine-is-taken",
        _C + "jpeg_header.c",
        "value >= 1 && value <= 8 ?",
        "value >= 1 && value <= 9 ?",
        _IMAGE,
    ),
    Mutant(
        "second-frame-is-taken",
        _C + "jpeg_header.c",
        "    if (header->components)\n",
        "    if (header->components < 0)\n",
        _IMAGE,
    ),
    Mutant(
        "bytes-before-a-marker-end-the-header",
        _C + "jpeg_header.c",
        "} while (*out_marker == 0); /* an 0xFF of the data */",
        "} while (false);",
        _IMAGE,
    ),
    Mutant(
        "a-bomb-is-a-pixel-larger",
        _C + "image.c",
        "height <= HL_IMAGE_PIXELS_MAX / width) return HL_OK;",
        "height <= HL_IMAGE_PIXELS_MAX / width + 1) return HL_OK;",
        _IMAGE,
    ),
    Mutant(
        "quarter-turns-go-the-other-way",
        _C + "image.c",
        "from_bottom[8] = {0, 0, 1, 1, 0, 1, 1, 0};",
        "from_bottom[8] = {0, 0, 1, 1, 0, 0, 1, 1};",
        _IMAGE,
    ),
]

_DECODING = [
    Mutant(
        "scaled-image-is-smaller-than-asked",
        _C + "jpeg.c",
        "scale_side(header->width, eighths / 2) >= min_width)",
        "scale_side(header->width, eighths / 2) >= min_width - 1)",
        _IMAGE,
    ),
    Mutant(
        "scaled-image-is-larger-than-needed",
        _C + "jpeg.c",
        "while (eighths > 1 &&",
        "while (eighths > 2 &&",
        _IMAGE,
    ),
    Mutant(
        "sides-are-asked-of-the-stored-image",
        _C + "jpeg.c",
        "bool is_swapped = header->orientation >= 5;",
        "bool is_swapped = false;",
        _IMAGE,
    ),
    Mutant(
        "cut-files-are-decoded",
        _C + "jpeg.c",
        'status = hl_status_set(HL_ERROR_DATA, "JPEG: must be whole',
        '(void)hl_status_set(HL_ERROR_DATA, "JPEG: must be whole',
        _IMAGE,
    ),
    Mutant(
        "odd-files-are-errors",
        _C + "jpeg.c",
        "if (strstr(warning, open[i])) return true;",
        "if (!strstr(warning, open[i])) return false;",
        _IMAGE,
    ),
    Mutant(
        "ink-is-light",
        _C + "jpeg.c",
        "in[3] - mul_255(255 - in[c], in[3]);",
        "in[3] - mul_255(in[c], in[3]);",
        _IMAGE,
    ),
    Mutant(
        "channels-of-a-reader-are-not-checked",
        _C + "decode.c",
        "if (image->channels == request->channels)",
        "if (image->channels)",
        _IMAGE,
    ),
    Mutant(
        "upper-bits-are-clipped",
        _DATA + "images/sources.py",
        "grey = (np.asarray(image) >> 8).astype(np.uint8)",
        "grey = np.minimum(np.asarray(image), 255).astype(np.uint8)",
        python(_IMAGES + "test_other_modes"),
    ),
    Mutant(
        "pillow-draws-the-turned-image-too-small",
        _DATA + "images/sources.py",
        "if turned else (min_width, min_height)",
        "if not turned else (min_width, min_height)",
        python(_IMAGES + "test_pillow_reads_jpeg_where_turbojpeg_is_missing"),
    ),
    Mutant(
        "pillow-opens-all-formats",
        _DATA + "images/sources.py",
        "Image.open(file, formats=formats or _list_formats())",
        "Image.open(file)",
        python(_IMAGES + "test_what_cannot_be_decoded_is_a_data_error"),
    ),
]

_BATCHES = [
    Mutant(
        "augmentation-does-not-know-the-row",
        _C + "image_source.c",
        "hl_augment_key key = {batch->epoch, row, batch->is_training};",
        "hl_augment_key key = {batch->epoch, i, batch->is_training};",
        _SOURCE,
    ),
    Mutant(
        "what-the-cache-holds-shows-in-the-pixels",
        _C + "image_source.c",
        "bool is_planned = header.height && !is_cached;",
        "bool is_planned = header.height != 0;",
        _SOURCE,
    ),
    Mutant(
        "cache-grows-beyond-its-limit",
        _C + "image_cache.c",
        "<= cache->max_bytes - bytes) return true;",
        "<= cache->max_bytes) return true;",
        _SOURCE,
    ),
    Mutant(
        "bad-files-count-each-time",
        _C + "image_source.c",
        "bool is_new = !atomic_exchange(&source->is_bad[row], 1);",
        "bool is_new = atomic_exchange(&source->is_bad[row], 1) < 2;",
        _SOURCE,
    ),
    Mutant(
        "one-bad-file-more-than-allowed",
        _C + "image_source.c",
        "if (n <= source->options.bad_max) return HL_OK;",
        "if (n <= source->options.bad_max + 1) return HL_OK;",
        _SOURCE,
    ),
    Mutant(
        "labels-are-those-of-the-bad-file",
        _C + "image_source.c",
        "(size_t)(shown < 0 ? row : shown) * step, step);",
        "(size_t)row * step, step);",
        _SOURCE,
    ),
    Mutant(
        "short-memory-makes-a-file-bad",
        _C + "image_source.c",
        "if (status != HL_ERROR_DATA ||",
        "if (status == HL_OK ||",
        _SOURCE,
    ),
    Mutant(
        "skipped-rows-keep-old-pixels",
        _C + "image_source.c",
        "if (shown < 0) blank_parts(source, &parts);",
        "if (shown < -1) blank_parts(source, &parts);",
        _SOURCE,
    ),
    Mutant(
        "file-of-another-split-stands-in-for-a-bad-one",
        _C + "image_source.c",
        "*out_shown = hl_peers_next(peers, source->options.n, *out_shown);",
        "*out_shown = (*out_shown + 1) % source->options.n;",
        _SOURCE,
    ),
    Mutant(
        "cause-of-a-bad-file-is-lost",
        "python/src/errors.c",
        "strcmp(message + n - n_said, said) == 0);",
        "strcmp(message, said) == 0);",
        python(_SOURCES + "test_raise", _IMAGES + "test_the_cause_with_a_path_in_front"),
    ),
]

_ANNOTATED = [
    Mutant(
        "points-keep-their-places-in-a-mirror",
        _C + "annotations.c",
        "is_mirrored ? annotations->partners[i]",
        "is_mirrored ? i",
        _ANNOTATIONS,
    ),
    Mutant(
        "two-flips-are-a-mirror",
        _C + "geometry.c",
        "return determinant(geometry->matrix) < 0;",
        "return geometry->matrix[0] < 0;",
        python(_MASKS + "test_pairs_change_places_in_a_mirror"),
    ),
    Mutant(
        "masks-of-any-height-fit",
        _C + "annotations.c",
        "if (mask->height != geometry->src_height || mask->width",
        "if (mask->width",
        python(_MASKS + "test_bad_masks"),
    ),
    Mutant(
        "ids-of-masks-may-be-one-more",
        _C + "annotations.c",
        "if (!is_ignored && id >= annotations->n_classes)",
        "if (!is_ignored && id > annotations->n_classes)",
        _ANNOTATIONS,
    ),
    Mutant(
        "grey-of-few-bits-is-levels",
        _DATA + "images/sources.py",
        "ids //= 255 // (2**depth - 1)",
        "ids //= 1",
        python(_MASKS + "test_ids_are_the_numbers_that_are_stored"),
    ),
    Mutant(
        "points-may-lie-beside-their-image",
        _DATA + "images/annotations.py",
        "(np.minimum(x, y)[rows] < -1) | (x[rows] > width) | (y[rows] > height)",
        "(np.minimum(x, y)[rows] < -1) | (x[rows] > width)",
        python(_MASKS + "test_points_outside_their_image_are_warned_of"),
    ),
]

_NAMES = [
    Mutant(
        "links-may-lead-to-a-sibling-of-the-root",
        _DATA + "images/files.py",
        "path.startswith(top.rstrip(os.sep) + os.sep)",
        "path.startswith(top)",
        python(_FILES + "test_a_folder_whose_name_begins_like_the_root"),
    ),
    Mutant(
        "order-is-that-of-the-file-system",
        _DATA + "images/files.py",
        "sorted(entries, key=lambda entry: entry.name):",
        "sorted(entries, key=lambda entry: entry.name, reverse=True):",
        python(_FILES + "test_a_folder"),
    ),
    Mutant(
        "empty-class-is-taken",
        _DATA + "images/files.py",
        "        if not found:\n",
        "        if found is None:\n",
        python(_FILES + "test_not_a_folder_of_classes"),
    ),
    Mutant(
        "paths-of-a-table-may-lead-out",
        _DATA + "images/files.py",
        "is_inside = os.path.isabs(given) or",
        "is_inside = True or",
        python(_FILES + "test_paths_out_of_the_root"),
    ),
    Mutant(
        "row-without-a-label-is-taken",
        _DATA + "images/files.py",
        "if _is_missing(value):",
        "if value is None:",
        python(_FILES + "test_rows_that_are_wrong"),
    ),
    Mutant(
        "pipes-are-read",
        _DATA + "images/files.py",
        "if not (entry.is_dir() or entry.is_file()):",
        "if False:",
        python(_FILES + "test_pipes[dog/pipe.png]"),
    ),
    Mutant(
        "texts-become-one-class",
        _DATA + "images/files.py",
        "fit.min <= n <= fit.max and str(n) == t for",
        "fit.min <= n <= fit.max for",
        python(_FILES + "test_texts_that_are_numbers"),
    ),
    Mutant(
        "grey-maps-are-not-wide",
        _DATA + "images/sources.py",
        'is_wide = image.mode == "I" and image.format in _WIDE_FORMATS',
        "is_wide = False",
        python(_IMAGES + "test_grey_maps_of_more_than_8_bits"),
    ),
]

MUTANTS = [*_HEADERS, *_DECODING, *_BATCHES, *_ANNOTATED, *_NAMES]
