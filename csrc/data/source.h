/* Source: a dataset whose rows do not lie in memory. They are made when a batch needs them, by the
 * threads of a feed: images are decoded, Python makes samples.
 *
 * A source makes all fields of a row at once, since an image comes with its mask, and a sample with
 * its target. What it makes is a function of the row, the epoch and what the batch is for, so that
 * every number of threads gives the same batches, and any position can be resumed. */
#ifndef HL_DATA_SOURCE_H
#define HL_DATA_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "ir/graph.h"

/* Rows of a feed's order that become one batch. */
typedef struct hl_batch {
    const int64_t *rows; /* row numbers */
    int64_t n;
    uint64_t epoch;
    bool is_training; /* rows may be augmented */
} hl_batch;

enum { HL_SOURCE_FIELDS_MAX = 64 };

typedef struct hl_source {
    int64_t n_rows;
    int32_t n_fields;
    const hl_type *types; /* of a row in each field, without the dim of rows */
    /* Writes a batch's fields, one row behind another; NULL: nobody wants this field. Runs on
     * several threads at once. Row numbers lie in [0, n_rows). */
    hl_status (*fill)(void *context, const hl_batch *batch, void *const *fields);
    void *context;
} hl_source;

/* The names in a text of n_wanted, one behind another, each with its NUL; ConfigError, with `what`
 * in its words, for another number of them. */
hl_status hl_source_find_paths(const char *what, const char *text, size_t bytes, int64_t n_wanted,
                               const char **out_paths);

#endif
