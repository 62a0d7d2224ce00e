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
    hl_image ids, mask;
    hl_scratch scratch;
} worker;

/* Where a row's parts go; NULL: nobody wants it. */
typedef struct row_parts {
    uint8_t *image;
    void *mask;
    float *points;
} row_parts;

struct hl_image_source {
    hl_source rows;
    hl_image_source_options options; /* with pointers to what follows */
    hl_augment augment;
    hl_type types[HL_SOURCE_FIELDS_MAX];
    hl_image_companion companions[HL_SOURCE_FIELDS_MAX];
    const char **paths;               /* of images, and behind them of their masks */
    int32_t mask_field, points_field; /* 0: there is none */
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
    hl_image *const images[] = {&w->image, &w->ids, &w->mask};
    for (int i = 0; i < 3; i++)
        if (images[i]->capacity > KEPT_BYTES) hl_image_deinit(images[i]);
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
    hl_image_deinit(&w->ids);
    hl_image_deinit(&w->mask);
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

/* The file's bytes, from the cache or into the worker's memory; `at` is its place among paths. */
static hl_status load_file(hl_image_source *source, worker *w, int64_t at, hl_encoded *out_file)
{
    bool is_cached = source->options.caching == HL_IMAGE_CACHE_FILES;
    if (is_cached && hl_image_cache_get_file(source->cache, at, out_file)) return HL_OK;
    HL_TRY(hl_encoded_read(source->paths[at], HL_IMAGE_FILE_BYTES_MAX, &w->file));
    *out_file = w->file;
    return is_cached ? hl_image_cache_put_file(source->cache, at, &w->file) : HL_OK;
}

/* False: the row is not stored. */
static bool find_stored(const hl_image_source *source, int64_t row, hl_image *out_image)
{
    const hl_image_source_options *options = &source->options;
    if (!options->stored || options->stored[row].offset < 0) return false;
    const hl_stored_image *stored = &options->stored[row];
    /* nobody writes to it: its capacity is 0 */
    uint8_t *pixels = (uint8_t *)(uintptr_t)(options->stored_pixels + stored->offset);
    *out_image = (hl_image){stored->height, stored->width, options->channels, pixels, 0};
    return true;
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
    if (find_stored(source, row, out_image))
        return hl_augment_geometry(&source->augment, key, source->options.stored[row].src_height,
                                   source->options.stored[row].src_width, out_geometry);
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

/* The class ids of a mask, at its full size. */
static hl_status load_mask(hl_image_source *source, worker *w, int64_t at, hl_image *out_mask)
{
    bool is_cached = source->options.caching == HL_IMAGE_CACHE_IMAGES;
    hl_encoded file;
    if (is_cached && hl_image_cache_get_image(source->cache, at, out_mask)) return HL_OK;
    HL_TRY(load_file(source, w, at, &file));
    HL_TRY(
        hl_mask_decode(&source->options.annotations, source->paths[at], &file, &w->ids, &w->mask));
    *out_mask = w->mask;
    return is_cached ? hl_image_cache_put_image(source->cache, at, &w->mask) : HL_OK;
}

/* Where the output lies in the image is where it lies in its mask. Without dst the mask is looked
 * at all the same, as an image is: whether it can be done. */
static hl_status make_mask(hl_image_source *source, worker *w, int64_t row,
                           const hl_geometry *geometry, void *dst)
{
    int64_t at = source->options.n + row;
    hl_image mask;
    hl_status status = load_mask(source, w, at, &mask);
    if (status == HL_OK) status = hl_mask_render(geometry, &mask, dst);
    return hl_status_context(status, "mask %s", shorten(source->paths[at]));
}

/* Parts that are NULL: whether it can be done. */
static hl_status make_parts(hl_image_source *source, worker *w, int64_t row,
                            const hl_augment_key *key, const row_parts *parts)
{
    const hl_annotations *annotations = &source->options.annotations;
    hl_geometry geometry;
    hl_image image;
    HL_TRY(load_image(source, w, row, key, &image, &geometry));
    if (parts->image)
        HL_TRY(
            hl_augment_apply(&source->augment, key, &geometry, &image, &w->scratch, parts->image));
    if (annotations->masks) HL_TRY(make_mask(source, w, row, &geometry, parts->mask));
    if (parts->points) hl_points_render(annotations, &geometry, row, parts->points);
    return HL_OK;
}

static hl_status make_row(hl_image_source *source, worker *w, int64_t row,
                          const hl_augment_key *key, const row_parts *parts)
{
    return hl_status_context(make_parts(source, w, row, key, parts), "image %lld, %s",
                             (long long)row, shorten(source->paths[row]));
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
static hl_status choose_row(hl_image_source *source, worker *w, int64_t row, const hl_peers *peers,
                            const hl_augment_key *key, const row_parts *parts, int64_t *out_shown)
{
    int64_t n_rows = peers->rows ? peers->n : source->options.n;
    int64_t n = source->options.policy == HL_IMAGE_REPLACE ? n_rows : 1;
    *out_shown = row;
    for (int64_t i = 0; i < n; i++) {
        if (i) *out_shown = hl_peers_next(peers, source->options.n, *out_shown);
        hl_status status = make_row(source, w, *out_shown, key, parts);
        if (status != HL_ERROR_DATA || source->options.policy == HL_IMAGE_RAISE) return status;
        HL_TRY(note_bad(source, *out_shown));
    }
    *out_shown = -1;
    if (source->options.policy == HL_IMAGE_SKIP) return HL_OK;
    return hl_status_set(HL_ERROR_DATA, "images: a split must have a good file, got %lld bad ones",
                         (long long)n);
}

/* Of row i of the batch. */
static row_parts find_parts(const hl_image_source *source, void *const *fields, int64_t i)
{
    const int32_t numbers[] = {0, source->mask_field, source->points_field};
    void *places[3] = {NULL};
    for (int k = 0; k < 3; k++)
        if ((k == 0 || numbers[k]) && fields[numbers[k]])
            places[k] =
                (char *)fields[numbers[k]] + (size_t)i * hl_type_bytes(&source->types[numbers[k]]);
    return (row_parts){places[0], places[1], places[2]};
}

/* What stands for a row that is skipped. */
static void blank_parts(const hl_image_source *source, const row_parts *parts)
{
    const hl_type *mask = &source->types[source->mask_field];
    if (parts->image) memset(parts->image, 0, hl_type_bytes(&source->types[0]));
    if (parts->mask) hl_mask_blank(mask->dtype, hl_shape_numel(&mask->shape), parts->mask);
    if (parts->points)
        memset(parts->points, 0, hl_type_bytes(&source->types[source->points_field]));
}

/* Row i of the batch. */
static hl_status fill_row(hl_image_source *source, worker *w, const hl_batch *batch, int64_t i,
                          void *const *fields)
{
    const hl_image_source_options *options = &source->options;
    int64_t row = batch->rows[i], shown = row;
    hl_augment_key key = {batch->epoch, row, batch->is_training};
    row_parts parts = find_parts(source, fields, i);
    if (parts.image || parts.mask || parts.points || options->policy != HL_IMAGE_RAISE)
        HL_TRY(choose_row(source, w, row, &batch->peers, &key, &parts, &shown));
    if (shown < 0) blank_parts(source, &parts);
    if (options->policy == HL_IMAGE_SKIP && fields[1]) ((float *)fields[1])[i] = shown >= 0;
    int32_t field = source->rows.n_fields - options->n_companions;
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

/* Rows come out of files that anything may have happened to. */
static hl_status check_stored(const hl_image_source_options *options)
{
    for (int64_t row = 0; options->stored && row < options->n; row++) {
        const hl_stored_image *stored = &options->stored[row];
        if (stored->offset < 0) continue;
        HL_TRY(hl_image_check_size(stored->height, stored->width));
        HL_TRY(hl_image_check_size(stored->src_height, stored->src_width));
        int64_t bytes = stored->height * stored->width * options->channels;
        if (bytes > options->stored_bytes || stored->offset > options->stored_bytes - bytes)
            return hl_status_set(HL_ERROR_DATA,
                                 "stored: image %lld must end within %lld bytes, got %lld from "
                                 "%lld on",
                                 (long long)row, (long long)options->stored_bytes, (long long)bytes,
                                 (long long)stored->offset);
    }
    return HL_OK;
}

static hl_status check_options(const hl_image_source_options *options)
{
    const hl_annotations *annotations = &options->annotations;
    int32_t before = 1 + (options->policy == HL_IMAGE_SKIP) + (annotations->masks != NULL) +
                     (annotations->n_points > 0);
    if (options->n < 1) return hl_status_set(HL_ERROR_CONFIG, "images: must be files, got none");
    if (options->channels != 1 && options->channels != 3)
        return hl_status_set(HL_ERROR_CONFIG, "channels: must be 1 or 3, got %d",
                             options->channels);
    if (options->cache_bytes < 0 || options->bad_max < 0)
        return hl_status_set(
            HL_ERROR_CONFIG, "images: limits must be at least 0, got %lld",
            (long long)(options->cache_bytes < 0 ? options->cache_bytes : options->bad_max));
    if (options->n_companions < 0 || options->n_companions + before > HL_SOURCE_FIELDS_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "companions: must be 0 to %d, got %d",
                             HL_SOURCE_FIELDS_MAX - before, options->n_companions);
    HL_TRY(hl_annotations_check(annotations));
    HL_TRY(check_stored(options));
    return hl_augment_check(options->augment);
}

static void find_types(hl_image_source *source)
{
    const hl_augment *augment = &source->augment;
    const hl_image_source_options *options = &source->options;
    const hl_annotations *annotations = &options->annotations;
    int32_t n = 0;
    source->types[n++] =
        (hl_type){HL_DTYPE_U8, {3, {options->channels, augment->height, augment->width}}};
    if (options->policy == HL_IMAGE_SKIP) source->types[n++] = (hl_type){.dtype = HL_DTYPE_F32};
    if (annotations->masks) {
        source->mask_field = n;
        source->types[n++] = (hl_type){hl_mask_dtype(annotations->n_classes),
                                       {2, {augment->height, augment->width}}};
    }
    if (annotations->n_points) {
        source->points_field = n;
        source->types[n++] =
            (hl_type){HL_DTYPE_F32, {2, {annotations->n_points, HL_POINT_NUMBERS}}};
    }
    for (int32_t c = 0; c < options->n_companions; c++)
        source->types[n++] = options->companions[c].type;
    source->rows = (hl_source){options->n, n, source->types, fill, source};
}

static hl_status init(hl_image_source *source)
{
    const hl_image_source_options *options = &source->options;
    const hl_annotations *annotations = &options->annotations;
    size_t n = (size_t)options->n, n_files = annotations->masks ? 2 * n : n;
    HL_TRY(hl_mutex_create(&source->mutex));
    HL_TRY(hl_alloc(n_files * sizeof *source->paths, (void **)&source->paths));
    HL_TRY(hl_source_find_paths("paths", options->paths, options->paths_bytes, options->n,
                                source->paths));
    if (annotations->masks)
        HL_TRY(hl_source_find_paths("masks", annotations->masks, annotations->masks_bytes,
                                    options->n, source->paths + n));
    HL_TRY(hl_jpeg_create(&source->jpeg));
    if (options->policy != HL_IMAGE_RAISE) HL_TRY(hl_alloc_zero(n, (void **)&source->is_bad));
    if (options->caching == HL_IMAGE_CACHE_NOTHING) return HL_OK;
    return hl_image_cache_create((int64_t)n_files, options->cache_bytes, &source->cache);
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
