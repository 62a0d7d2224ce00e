/* Image source: batches of image files. */
#include "data/image_source.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"
#include "data/image_cache.h"

/* What one thread fills a batch with. */
typedef struct worker {
    struct worker *next; /* in the pool */
    hl_encoded file;
    hl_image image;
    hl_scratch scratch;
} worker;

struct hl_image_source {
    hl_source rows;
    hl_image_source_options options; /* with pointers to what follows */
    hl_augment augment;
    hl_type types[HL_SOURCE_FIELDS_MAX];
    hl_image_companion companions[HL_SOURCE_FIELDS_MAX];
    const char **paths;
    hl_jpeg *jpeg;
    hl_image_cache *cache;
    _Atomic uint8_t *is_bad; /* by row; NULL: bad samples raise */
    _Atomic int64_t n_bad;
    hl_mutex *mutex; /* of the rest */
    worker *pool;
    char first_bad[HL_STATUS_MESSAGE_BYTES];
};

/* ---- workers --------------------------------------------------------------------------------- */

static hl_status take_worker(hl_image_source *source, worker **out)
{
    hl_mutex_lock(source->mutex);
    *out = source->pool;
    if (*out) source->pool = (*out)->next;
    hl_mutex_unlock(source->mutex);
    return *out ? HL_OK : hl_alloc_zero(sizeof **out, (void **)out);
}

/* What a thread keeps for its next row; a larger image takes so long to decode that getting its
 * memory anew does not show, and one of them must not hold a quarter GiB of each thread for good.
 */
enum { KEPT_BYTES = 32 << 20 };

static void give_worker(hl_image_source *source, worker *w)
{
    if (w->image.capacity > KEPT_BYTES) hl_image_deinit(&w->image);
    if (w->file.capacity > KEPT_BYTES) hl_encoded_deinit(&w->file);
    hl_mutex_lock(source->mutex);
    w->next = source->pool;
    source->pool = w;
    hl_mutex_unlock(source->mutex);
}

static void destroy_worker(worker *w)
{
    hl_encoded_deinit(&w->file);
    hl_image_deinit(&w->image);
    hl_scratch_deinit(&w->scratch);
    hl_free(w);
}

/* ---- one image ------------------------------------------------------------------------------- */

/* The pixels of a side that are looked at, when one of the output's spans so many of them. */
static int64_t reduce_side(int64_t side, double reduction)
{
    return reduction > 1 ? (int64_t)ceil((double)side / reduction - 1e-6) : side;
}

/* As large as the geometry wants it; *out_geometry is of the full image. */
static hl_status find_request(const hl_image_source *source, const hl_image_header *header,
                              const hl_augment_key *key, hl_geometry *out_geometry,
                              hl_image_request *out_request)
{
    double down, across;
    HL_TRY(hl_augment_geometry(&source->augment, key, header->height, header->width, out_geometry));
    hl_geometry_reduction(out_geometry, &down, &across);
    out_request->min_height = reduce_side(header->height, down);
    out_request->min_width = reduce_side(header->width, across);
    return HL_OK;
}

/* The file's bytes, from the cache or into the worker's memory. */
static hl_status load_file(hl_image_source *source, worker *w, int64_t row, hl_encoded *out_file)
{
    bool is_cached = source->options.caching == HL_IMAGE_CACHE_FILES;
    if (is_cached && hl_image_cache_get_file(source->cache, row, out_file)) return HL_OK;
    HL_TRY(hl_encoded_read(source->paths[row], HL_IMAGE_FILE_BYTES_MAX, &w->file));
    *out_file = w->file;
    return is_cached ? hl_image_cache_put_file(source->cache, row, &w->file) : HL_OK;
}

/* The image of a file, as large as it is looked at, and where the output lies in it. */
static hl_status load_image(hl_image_source *source, worker *w, int64_t row,
                            const hl_augment_key *key, hl_image *out_image,
                            hl_geometry *out_geometry)
{
    bool is_cached = source->options.caching == HL_IMAGE_CACHE_IMAGES;
    hl_image_decoder decoder = {source->jpeg, source->options.reader};
    hl_image_request request = {source->options.channels, 0, 0};
    hl_image_header header;
    hl_encoded file;
    if (!is_cached || !hl_image_cache_get_image(source->cache, row, out_image)) {
        HL_TRY(load_file(source, w, row, &file));
        HL_TRY(hl_image_header_read(&file, &header));
        bool is_planned = header.height && !is_cached;
        if (is_planned) HL_TRY(find_request(source, &header, key, out_geometry, &request));
        HL_TRY(hl_image_decode(&decoder, source->paths[row], &file, &header, &request, &w->image));
        if (is_cached) HL_TRY(hl_image_cache_put_image(source->cache, row, &w->image));
        *out_image = w->image;
        if (is_planned) return HL_OK;
    }
    return hl_augment_geometry(&source->augment, key, out_image->height, out_image->width,
                               out_geometry);
}

/* The end of a path that is too long for a message. */
static const char *shorten(const char *path)
{
    enum { SHOWN = 400 };
    size_t n = strlen(path);
    return n > SHOWN ? path + n - SHOWN : path;
}

/* dst NULL: whether it can be done. */
static hl_status make_image(hl_image_source *source, worker *w, int64_t row,
                            const hl_augment_key *key, uint8_t *dst)
{
    hl_geometry geometry;
    hl_image image;
    hl_status status = load_image(source, w, row, key, &image, &geometry);
    if (status == HL_OK && dst)
        status = hl_augment_apply(&source->augment, key, &geometry, &image, &w->scratch, dst);
    return hl_status_context(status, "image %lld, %s", (long long)row, shorten(source->paths[row]));
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Counts a file once. An error where there are too many of them, each time that one is met. */
static hl_status note_bad(hl_image_source *source, int64_t row)
{
    bool is_new = !atomic_exchange(&source->is_bad[row], 1);
    int64_t n = is_new ? atomic_fetch_add(&source->n_bad, 1) + 1 : atomic_load(&source->n_bad);
    hl_mutex_lock(source->mutex);
    if (!*source->first_bad)
        hl_text_copy(source->first_bad, sizeof source->first_bad, hl_status_message());
    hl_mutex_unlock(source->mutex);
    if (n <= source->options.bad_max) return HL_OK;
    return hl_status_context(HL_ERROR_DATA,
                             "images: at most %lld of %lld files may be bad, got %lld, the last "
                             "of them",
                             (long long)source->options.bad_max, (long long)source->options.n,
                             (long long)n);
}

/* Finds the row that is shown in place of `row`, itself if it is good; *out_shown -1: none. */
static hl_status choose_row(hl_image_source *source, worker *w, int64_t row,
                            const hl_augment_key *key, uint8_t *dst, int64_t *out_shown)
{
    int64_t n = source->options.policy == HL_IMAGE_REPLACE ? source->options.n : 1;
    for (int64_t i = 0; i < n; i++) {
        *out_shown = (row + i) % source->options.n;
        hl_status status = make_image(source, w, *out_shown, key, dst);
        if (status != HL_ERROR_DATA || source->options.policy == HL_IMAGE_RAISE) return status;
        HL_TRY(note_bad(source, *out_shown));
    }
    *out_shown = -1;
    if (source->options.policy == HL_IMAGE_SKIP) return HL_OK;
    return hl_status_set(HL_ERROR_DATA, "images: must hold a good file, got %lld bad ones",
                         (long long)n);
}

/* Row i of the batch. */
static hl_status fill_row(hl_image_source *source, worker *w, const hl_batch *batch, int64_t i,
                          void *const *fields)
{
    const hl_image_source_options *options = &source->options;
    int64_t row = batch->rows[i], shown = row;
    hl_augment_key key = {batch->epoch, row, batch->is_training};
    size_t bytes = hl_type_bytes(&source->types[0]);
    uint8_t *dst = fields[0] ? (uint8_t *)fields[0] + (size_t)i * bytes : NULL;
    if (dst || options->policy != HL_IMAGE_RAISE)
        HL_TRY(choose_row(source, w, row, &key, dst, &shown));
    if (shown < 0 && dst) memset(dst, 0, bytes);
    int32_t field = 1;
    if (options->policy == HL_IMAGE_SKIP) {
        if (fields[field]) ((float *)fields[field])[i] = shown >= 0;
        field++;
    }
    for (int32_t c = 0; c < options->n_companions; c++, field++) {
        size_t step = hl_type_bytes(&source->types[field]);
        const char *from = (const char *)options->companions[c].data;
        if (!fields[field]) continue;
        memcpy((char *)fields[field] + (size_t)i * step,
               from + (size_t)(shown < 0 ? row : shown) * step, step);
    }
    return HL_OK;
}

static hl_status fill(void *context, const hl_batch *batch, void *const *fields)
{
    hl_image_source *source = context;
    worker *w;
    HL_TRY(take_worker(source, &w));
    hl_status status = HL_OK;
    for (int64_t i = 0; i < batch->n && status == HL_OK; i++)
        status = fill_row(source, w, batch, i, fields);
    give_worker(source, w);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static hl_status check_options(const hl_image_source_options *options)
{
    bool skips = options->policy == HL_IMAGE_SKIP;
    if (options->n < 1) return hl_status_set(HL_ERROR_CONFIG, "images: must be files, got none");
    if (options->channels != 1 && options->channels != 3)
        return hl_status_set(HL_ERROR_CONFIG, "channels: must be 1 or 3, got %d",
                             options->channels);
    if (options->cache_bytes < 0 || options->bad_max < 0)
        return hl_status_set(
            HL_ERROR_CONFIG, "images: limits must be at least 0, got %lld",
            (long long)(options->cache_bytes < 0 ? options->cache_bytes : options->bad_max));
    if (options->n_companions < 0 || options->n_companions + 1 + skips > HL_SOURCE_FIELDS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "companions: must be 0 to %d, got %d",
                             HL_SOURCE_FIELDS_MAX - 1 - skips, options->n_companions);
    return hl_augment_check(options->augment);
}

/* The beginning of each path. */
static hl_status find_paths(hl_image_source *source)
{
    const char *at = source->options.paths, *end = at + source->options.paths_bytes;
    HL_TRY(hl_alloc((size_t)source->options.n * sizeof *source->paths, (void **)&source->paths));
    int64_t n = 0;
    for (const char *stop; at < end && (stop = memchr(at, '\0', (size_t)(end - at))); n++) {
        if (n < source->options.n) source->paths[n] = at;
        at = stop + 1;
    }
    if (n == source->options.n && at == end) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG, "paths: must be %lld, each with a NUL, got %lld",
                         (long long)source->options.n, (long long)n);
}

static void find_types(hl_image_source *source)
{
    const hl_augment *augment = &source->augment;
    const hl_image_source_options *options = &source->options;
    int32_t n = 0;
    source->types[n++] =
        (hl_type){HL_DTYPE_U8, {3, {options->channels, augment->height, augment->width}}};
    if (options->policy == HL_IMAGE_SKIP) source->types[n++] = (hl_type){.dtype = HL_DTYPE_F32};
    for (int32_t c = 0; c < options->n_companions; c++)
        source->types[n++] = options->companions[c].type;
    source->rows = (hl_source){options->n, n, source->types, fill, source};
}

static hl_status init(hl_image_source *source)
{
    const hl_image_source_options *options = &source->options;
    size_t n = (size_t)options->n;
    HL_TRY(hl_mutex_create(&source->mutex));
    HL_TRY(find_paths(source));
    HL_TRY(hl_jpeg_create(&source->jpeg));
    if (options->policy != HL_IMAGE_RAISE) HL_TRY(hl_alloc_zero(n, (void **)&source->is_bad));
    if (options->caching == HL_IMAGE_CACHE_NOTHING) return HL_OK;
    return hl_image_cache_create(options->n, options->cache_bytes, &source->cache);
}

hl_status hl_image_source_create(const hl_image_source_options *options,
                                 hl_image_source **out_source)
{
    hl_image_source *source;
    *out_source = NULL;
    HL_TRY(check_options(options));
    HL_TRY(hl_alloc_zero(sizeof *source, (void **)&source));
    source->options = *options;
    source->augment = *options->augment;
    for (int32_t c = 0; c < options->n_companions; c++)
        source->companions[c] = options->companions[c];
    source->options.augment = &source->augment;
    source->options.companions = source->companions;
    find_types(source);
    hl_status status = init(source);
    if (status == HL_OK)
        *out_source = source;
    else
        hl_image_source_destroy(source);
    return status;
}

void hl_image_source_destroy(hl_image_source *source)
{
    if (!source) return;
    for (worker *w = source->pool, *next; w; w = next) {
        next = w->next;
        destroy_worker(w);
    }
    hl_image_cache_destroy(source->cache);
    hl_jpeg_destroy(source->jpeg);
    hl_mutex_destroy(source->mutex);
    hl_free((void *)source->is_bad);
    hl_free(source->paths);
    hl_free(source);
}

const hl_source *hl_image_source_rows(const hl_image_source *source)
{
    return &source->rows;
}

void hl_image_source_report(hl_image_source *source, hl_image_report *out_report)
{
    *out_report = (hl_image_report){.n_bad = atomic_load(&source->n_bad)};
    if (source->cache)
        hl_image_cache_stats(source->cache, &out_report->cached_rows, &out_report->cached_bytes);
    hl_mutex_lock(source->mutex);
    hl_text_copy(out_report->first_bad, sizeof out_report->first_bad, source->first_bad);
    hl_mutex_unlock(source->mutex);
}

bool hl_image_source_is_bad(const hl_image_source *source, int64_t row)
{
    return source->is_bad && atomic_load(&source->is_bad[row]);
}
