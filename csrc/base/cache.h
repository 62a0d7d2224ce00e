/* Results that are worth keeping between processes: compiled code, autotuned algorithms.
 *
 * One small file per result in the user's cache folder: HOTLOOP_CACHE_PATH names it (empty: keep
 * nothing), else hotloop below XDG_CACHE_HOME, else below ~/.cache. A key says everything that the
 * result depends on, versions and devices included, so nothing is ever out of date; it stands in
 * the file, so that two keys of one hash cannot be mistaken for each other, beside a sum of what
 * follows. Files are replaced as a whole.
 *
 * Nothing here fails: a result that cannot be read is made again, one that cannot be written is not
 * kept. Rejected: one file for all (two processes would have to merge), limits of size (results are
 * small, and the folder is the user's to empty). */
#ifndef HL_BASE_CACHE_H
#define HL_BASE_CACHE_H

#include <stdbool.h>

#include "base/status.h"

/* kind: the beginning of the file's name, "matmul". False, *out_data NULL: there is none. The data
 * ends with a 0 that is not counted, so a text is a string; from hl_alloc. */
bool hl_cache_read(const char *kind, const char *key, HL_GIVE void **out_data, size_t *out_bytes);
void hl_cache_write(const char *kind, const char *key, const void *data, size_t bytes);

#endif
