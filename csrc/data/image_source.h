/* Image source: rows that are image files, decoded and augmented when a batch needs them.
 *
 * A row of a batch goes through read, header, geometry, decode, resample and colours, one after
 * another on the thread that fills the batch; memory for it is kept from row to row and from batch
 * to batch. The header says how large the image is before it is decoded, the geometry how many of
 * its pixels one of the output spans, so a JPEG is decoded no larger than it is looked at. What a
 * row looks like is a function of its file, the epoch and the row number: whatever the threads do,
 * whatever lies in the cache, and wherever a run begins. A row that was decoded and resized
 * beforehand (hl_stored_image) is read where it lies; what is drawn goes by the size of its file,
 * so that it shows the same part as without.
 *
 * Fields: 0 the image, uint8 (channels, height, width); then, where bad samples are skipped, its
 * weight, float32 (), 0 for a bad one; then its mask, class ids (height, width) in hl_mask_dtype,
 * and its points, float32 (n_points, 3), where there are some; then a row of each companion
 * (labels). All of them are those of the file that is really shown, and of a bad one that is
 * skipped an ignored class everywhere and no point. A file is as bad as its mask. */
#ifndef HL_DATA_IMAGE_SOURCE_H
#define HL_DATA_IMAGE_SOURCE_H

#include "data/annotations.h"
#include "data/source.h"

/* What is kept in memory. Decoded images are kept at their full size, since each epoch looks at
 * another part of them, and then those that are not in the cache are decoded at full size as well:
 * otherwise what the cache holds would show in the pixels. */
typedef enum hl_image_caching {
    HL_IMAGE_CACHE_NOTHING,
    HL_IMAGE_CACHE_FILES,
    HL_IMAGE_CACHE_IMAGES
} hl_image_caching;

/* What becomes of a file that cannot be read or decoded. */
typedef enum hl_image_policy {
    HL_IMAGE_RAISE,   /* an error */
    HL_IMAGE_SKIP,    /* black, with weight 0 */
    HL_IMAGE_REPLACE, /* the next good row of its split, with all that belongs to that row */
} hl_image_policy;

/* An array with as many rows as there are files. */
typedef struct hl_image_companion {
    hl_type type; /* of a row */
    const void *data;
} hl_image_companion;

/* An image that was decoded beforehand, and maybe made smaller. */
typedef struct hl_stored_image {
    int64_t offset; /* of its pixels (height, width, channels) in what is stored; -1: it is not */
    int64_t height, width;
    int64_t src_height, src_width; /* of the file's image */
} hl_stored_image;

typedef struct hl_image_source_options {
    int64_t n;
    const char *paths; /* one behind another, each with its NUL; borrowed */
    size_t paths_bytes;
    int32_t channels;          /* 1: grey, 3: RGB */
    const hl_augment *augment; /* copied */
    hl_image_reader reader;    /* of what TurboJPEG does not decode, or NULL */
    hl_image_caching caching;
    int64_t cache_bytes; /* at most */
    hl_image_policy policy;
    int64_t bad_max; /* files that may be bad before it is an error after all */
    hl_annotations annotations;
    int32_t n_companions;
    const hl_image_companion *companions; /* copied; their data borrowed */
    const hl_stored_image *stored;        /* by row, borrowed; NULL: none is */
    const uint8_t *stored_pixels;         /* of all of them, borrowed */
    int64_t stored_bytes;
} hl_image_source_options;

typedef struct hl_image_source hl_image_source;

/* ConfigError for options that make no sense, DataError for a stored image beyond what is stored.
 * No file is looked at yet. */
hl_status hl_image_source_create(const hl_image_source_options *options,
                                 HL_GIVE hl_image_source **out_source);
/* NULL is allowed; nobody fills a batch any more. */
void hl_image_source_destroy(HL_TAKE hl_image_source *source);
/* Lives as long as the source. */
const hl_source *hl_image_source_rows(const hl_image_source *source);

typedef struct hl_image_report {
    int64_t n_bad;                           /* different files, skipped or replaced */
    int64_t cached_rows, cached_bytes;       /* a mask counts as a row */
    char first_bad[HL_STATUS_MESSAGE_BYTES]; /* "" */
} hl_image_report;
/* As it is now; batches may be filled meanwhile. */
void hl_image_source_report(hl_image_source *source, hl_image_report *out_report);
bool hl_image_source_is_bad(const hl_image_source *source, int64_t row);

#endif
