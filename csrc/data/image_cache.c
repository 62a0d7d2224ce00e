/* Image cache: an array of atomic pointers and a count of bytes. */
#include "data/image_cache.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"

/* Of a file: 1 x bytes, 1 channel. */
typedef struct entry {
    int64_t height, width;
    int32_t channels;
    size_t bytes;
    uint8_t data[];
} entry;

struct hl_image_cache {
    int64_t n_rows, max_bytes;
    _Atomic int64_t n_cached, n_bytes; /* n_bytes: asked for, before an entry is made */
    _Atomic(entry *) *entries;
};

hl_status hl_image_cache_create(int64_t n_rows, int64_t max_bytes, hl_image_cache **out)
{
    hl_image_cache *cache;
    *out = NULL;
    HL_TRY(hl_alloc_zero(sizeof *cache, (void **)&cache));
    cache->n_rows = n_rows;
    cache->max_bytes = max_bytes;
    hl_status status =
        hl_alloc_zero((size_t)n_rows * sizeof *cache->entries, (void **)&cache->entries);
    if (status == HL_OK)
        *out = cache;
    else
        hl_free(cache);
    return status;
}

void hl_image_cache_destroy(hl_image_cache *cache)
{
    if (!cache) return;
    for (int64_t i = 0; i < cache->n_rows; i++) hl_free(atomic_load(&cache->entries[i]));
    hl_free(cache->entries);
    hl_free(cache);
}

static entry *find_entry(const hl_image_cache *cache, int64_t row)
{
    return atomic_load_explicit(&cache->entries[row], memory_order_acquire);
}

bool hl_image_cache_get_file(const hl_image_cache *cache, int64_t row, hl_encoded *out_file)
{
    entry *found = find_entry(cache, row);
    if (found) *out_file = (hl_encoded){found->data, found->bytes, 0};
    return found;
}

bool hl_image_cache_get_image(const hl_image_cache *cache, int64_t row, hl_image *out_image)
{
    entry *e = find_entry(cache, row);
    if (e) *out_image = (hl_image){e->height, e->width, e->channels, e->data, 0};
    return e;
}

/* Room for so many bytes more, which is given back if they are not kept. */
static bool reserve(hl_image_cache *cache, int64_t bytes)
{
    if (atomic_fetch_add(&cache->n_bytes, bytes) <= cache->max_bytes - bytes) return true;
    atomic_fetch_sub(&cache->n_bytes, bytes);
    return false;
}

static hl_status put(hl_image_cache *cache, int64_t row, const entry *what, const uint8_t *data)
{
    entry *made, *none = NULL;
    size_t bytes = sizeof *made + what->bytes;
    if (find_entry(cache, row) || !reserve(cache, (int64_t)bytes)) return HL_OK;
    hl_status status = hl_alloc(bytes, (void **)&made);
    if (status == HL_OK) {
        *made = *what;
        memcpy(made->data, data, what->bytes);
        if (atomic_compare_exchange_strong(&cache->entries[row], &none, made)) {
            atomic_fetch_add(&cache->n_cached, 1);
            return HL_OK;
        }
        hl_free(made); /* another thread was quicker */
    }
    atomic_fetch_sub(&cache->n_bytes, (int64_t)bytes);
    return status;
}

hl_status hl_image_cache_put_file(hl_image_cache *cache, int64_t row, const hl_encoded *file)
{
    return put(cache, row, &(entry){1, (int64_t)file->bytes, 1, file->bytes}, file->data);
}

hl_status hl_image_cache_put_image(hl_image_cache *cache, int64_t row, const hl_image *image)
{
    size_t bytes = (size_t)(image->height * image->width * image->channels);
    return put(cache, row, &(entry){image->height, image->width, image->channels, bytes},
               image->pixels);
}

void hl_image_cache_stats(const hl_image_cache *cache, int64_t *out_rows, int64_t *out_bytes)
{
    *out_rows = atomic_load(&cache->n_cached);
    *out_bytes = atomic_load(&cache->n_bytes);
}
