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

/* The rows of a split. A source may be that of several: what stands in the place of a row that
 * cannot be made must not come out of another one. */
typedef struct hl_peers {
    const int64_t *rows; /* ascending, each once, borrowed; NULL: all rows of the source */
    int64_t n;
    void *owner; /* what rows lie in, for a fill that hands them on; NULL: nothing */
} hl_peers;

/* Rows of a feed's order that become one batch. */
typedef struct hl_batch {
    const int64_t *rows; /* row numbers */
    int64_t n;
    uint64_t epoch;
    bool is_training; /* rows may be augmented */
    hl_peers peers;   /* of the split that they are rows of */
} hl_batch;

enum { HL_SOURCE_FIELDS_MAX = 64 };

typedef struct hl_source {
    int64_t n_rows;
    int32_t n_fields;
    const hl_type *types; /* of a row in each field, without the dim of rows */
    /* Writes a batch's fields, one row behind another; NULL: nobody wants this field. Runs on
     * several threads at once. Row numbers, those of the peers too, lie in [0, n_rows). */
    hl_status (*fill)(void *context, const hl_batch *batch, void *const *fields);
    void *context;
} hl_source;

/* DataError for a batch whose row numbers, or those of its peers, are none of the source's. */
hl_status hl_source_check_rows(const hl_source *source, const hl_batch *batch);
/* The row behind `row` in the peers, behind the last one the first; of n_rows of the source. */
int64_t hl_peers_next(const hl_peers *peers, int64_t n_rows, int64_t row);

/* The names in a text of n_wanted, one behind another, each with its NUL; ConfigError, with `what`
 * in its words, for another number of them. */
hl_status hl_source_find_paths(const char *what, const char *text, size_t bytes, int64_t n_wanted,
                               const char **out_paths);

#endif
