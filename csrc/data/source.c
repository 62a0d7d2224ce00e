/* What sources have in common. */
#include "data/source.h"

#include <string.h>

static hl_status check_row(const hl_source *source, int64_t row)
{
    if (row >= 0 && row < source->n_rows) return HL_OK;
    return hl_status_set(HL_ERROR_DATA, "rows: must be at least 0 and below %lld, got %lld",
                         (long long)source->n_rows, (long long)row);
}

hl_status hl_source_check_rows(const hl_source *source, const hl_batch *batch)
{
    const hl_peers *peers = &batch->peers;
    for (int64_t i = 0; i < batch->n; i++) HL_TRY(check_row(source, batch->rows[i]));
    if (!peers->rows) return HL_OK;
    HL_TRY(check_row(source, peers->rows[0])); /* they ascend */
    return check_row(source, peers->rows[peers->n - 1]);
}

int64_t hl_peers_next(const hl_peers *peers, int64_t n_rows, int64_t row)
{
    if (!peers->rows) return (row + 1) % n_rows;
    int64_t begin = 0, end = peers->n; /* the first one above it lies in [begin, end] */
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (peers->rows[middle] > row)
            end = middle;
        else
            begin = middle + 1;
    }
    return peers->rows[begin % peers->n];
}

hl_status hl_source_find_paths(const char *what, const char *text, size_t bytes, int64_t n_wanted,
                               const char **out_paths)
{
    const char *at = text, *end = text + bytes;
    int64_t n = 0;
    for (const char *stop; at < end && (stop = memchr(at, '\0', (size_t)(end - at))); n++) {
        if (n < n_wanted) out_paths[n] = at;
        at = stop + 1;
    }
    if (n == n_wanted && at == end) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "%s: must be %lld, each with a NUL, got %lld", what,
                         (long long)n_wanted, (long long)n);
}
