/* What sources of files have in common. */
#include "data/source.h"

#include <string.h>

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
