/* File source: float32 rows that lie in files of their own, as a batch has them.
 *
 * A row is read straight into the batch, a block at a time, and looked at while the block is in the
 * cache; the system is told of the next row's file meanwhile, so that it is on its way. Files are
 * opened, read and closed: there may be more of them than a process may hold. */
#ifndef HL_DATA_FILE_SOURCE_H
#define HL_DATA_FILE_SOURCE_H

#include "data/source.h"

typedef struct hl_file_source_options {
    int64_t n;
    const char *paths; /* one behind another, each with its NUL; borrowed */
    size_t paths_bytes;
    const int64_t *offsets; /* where each file's numbers begin; borrowed */
    const float *divisors;  /* of each file's numbers; borrowed */
    hl_shape shape;         /* of a row */
    bool allow_nonfinite;   /* else a NaN or an infinity is a DataError */
} hl_file_source_options;

typedef struct hl_file_source hl_file_source;

/* ConfigError for options that make no sense. No file is looked at yet. */
hl_status hl_file_source_create(const hl_file_source_options *options,
                                HL_GIVE hl_file_source **out_source);
/* NULL is allowed; nobody fills a batch any more. */
void hl_file_source_destroy(HL_TAKE hl_file_source *source);
/* Lives as long as the source. */
const hl_source *hl_file_source_rows(const hl_file_source *source);

#endif
