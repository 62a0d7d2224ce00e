/* Image cache: files, or what was decoded from them, kept in memory by row.
 *
 * What came in stays, up to a limit of bytes: a shuffled epoch reads every row once, so whatever is
 * thrown out is wanted again just as soon. Several threads put and get at once without waiting for
 * each other: a row's entry is one atomic pointer, set once. */
#ifndef HL_DATA_IMAGE_CACHE_H
#define HL_DATA_IMAGE_CACHE_H

#include "data/image.h"

typedef struct hl_image_cache hl_image_cache;

hl_status hl_image_cache_create(int64_t n_rows, int64_t max_bytes, HL_GIVE hl_image_cache **out);
/* NULL is allowed. */
void hl_image_cache_destroy(HL_TAKE hl_image_cache *cache);

/* False: it is not there. What is pointed to lives as long as the cache. */
bool hl_image_cache_get_file(const hl_image_cache *cache, int64_t row, hl_encoded *out_file);
bool hl_image_cache_get_image(const hl_image_cache *cache, int64_t row, hl_image *out_image);
/* Copies it; does nothing where the row is there already, or the limit would be passed. */
hl_status hl_image_cache_put_file(hl_image_cache *cache, int64_t row, const hl_encoded *file);
hl_status hl_image_cache_put_image(hl_image_cache *cache, int64_t row, const hl_image *image);

void hl_image_cache_stats(const hl_image_cache *cache, int64_t *out_rows, int64_t *out_bytes);

#endif
