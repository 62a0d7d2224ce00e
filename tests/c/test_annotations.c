/* Masks and points of an image source: where their image is, by any number of threads and whatever
 * is cached; ids and sizes that are wrong, faults. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/threads.h"
#include "data/image_source.h"
#include "tests/c/check.h"

enum { N = 12, HEIGHT = 20, WIDTH = 24, SIDE = 16, PIXELS = SIDE * SIDE, POINTS = 3 };
enum { PATH_BYTES = 96, FILE_HEAD = 4 };

static char folder[64];
static char images[N * PATH_BYTES], masks[N * PATH_BYTES];
static size_t images_bytes, masks_bytes;
static float points[N][POINTS][HL_POINT_NUMBERS];
static const int32_t partners[POINTS] = {1, 0, 2};

/* ---- files: height, width, channels and their bytes ------------------------------------------ */

static void name_file(const char *kind, int i, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%d.%s", folder, i, kind);
}

static void write_file(const char *kind, int i, const hl_image *image)
{
    char path[PATH_BYTES];
    uint8_t head[FILE_HEAD] = {'#', (uint8_t)image->height, (uint8_t)image->width,
                               (uint8_t)image->channels};
    size_t bytes = (size_t)(image->height * image->width * image->channels);
    name_file(kind, i, path);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(head, 1, FILE_HEAD, file) == FILE_HEAD &&
          fwrite(image->pixels, 1, bytes, file) == bytes);
    if (file) fclose(file);
}

static hl_status read_file(void *context, const char *name, const hl_encoded *file,
                           const hl_image_request *request, hl_image *image)
{
    (void)context, (void)name, (void)request;
    if (file->bytes < FILE_HEAD || file->data[0] != '#')
        return hl_status_set(HL_ERROR_DATA, "no file of this test");
    HL_TRY(hl_image_shape(image, file->data[1], file->data[2], file->data[3]));
    memcpy(image->pixels, file->data + FILE_HEAD, file->bytes - FILE_HEAD);
    return HL_OK;
}

/* A pixel is where it is, and 9; a mask's id of two bytes says it too. */
static void write_row(int i)
{
    static uint8_t pixels[HEIGHT * WIDTH * 3];
    static uint16_t ids[HEIGHT * WIDTH];
    for (int y = 0; y < HEIGHT; y++) {
        for (int x = 0; x < WIDTH; x++) {
            uint8_t *pixel = pixels + 3 * (y * WIDTH + x);
            pixel[0] = (uint8_t)x, pixel[1] = (uint8_t)y, pixel[2] = 9;
            ids[y * WIDTH + x] = (uint16_t)(32 * y + x);
        }
    }
    write_file("image", i, &(hl_image){HEIGHT, WIDTH, 3, pixels, 0});
    write_file("mask", i, &(hl_image){HEIGHT, WIDTH, 2, (uint8_t *)ids, 0});
}

static void write_all(void)
{
    images_bytes = masks_bytes = 0;
    for (int i = 0; i < N; i++) {
        name_file("image", i, images + images_bytes);
        images_bytes += strlen(images + images_bytes) + 1;
        name_file("mask", i, masks + masks_bytes);
        masks_bytes += strlen(masks + masks_bytes) + 1;
        for (int p = 0; p < POINTS; p++) {
            points[i][p][0] = (float)(3 + 6 * p + i % 4);
            points[i][p][1] = (float)(2 + 5 * p);
            points[i][p][2] = p < 2 || i % 2 ? 1 : 0;
        }
        write_row(i);
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

static const hl_augment moves = {
    .height = SIDE,
    .width = SIDE,
    .filter = HL_FILTER_NEAREST,
    .seed = 3,
    .n_steps = 2,
    .steps = {{HL_AUGMENT_CROP, 1, {SIDE, SIDE, 6, 6, 6, 6, 0, 0}}, {HL_AUGMENT_FLIP_X, 0.5, {0}}}};

static hl_image_source_options make_options(void)
{
    return (hl_image_source_options){.n = N,
                                     .paths = images,
                                     .paths_bytes = images_bytes,
                                     .channels = 3,
                                     .augment = &moves,
                                     .reader = {read_file, NULL},
                                     .annotations = {.masks = masks,
                                                     .masks_bytes = masks_bytes,
                                                     .reader = {read_file, NULL},
                                                     .n_classes = 1024,
                                                     .ignored_id = -1,
                                                     .n_points = POINTS,
                                                     .points = &points[0][0][0],
                                                     .partners = partners}};
}

static hl_image_source *open_source(const hl_image_source_options *options)
{
    hl_image_source *source = NULL;
    CHECK_OK(hl_image_source_create(options, &source));
    return source;
}

typedef struct batch_memory {
    uint8_t images[N][3][PIXELS];
    int16_t masks[N][PIXELS];
    float points[N][POINTS][HL_POINT_NUMBERS];
    float weights[N];
} batch_memory;

static hl_status fill_rows(const hl_image_source *source, int64_t first, int64_t n, uint64_t epoch,
                           batch_memory *out)
{
    const hl_source *rows = hl_image_source_rows(source);
    int64_t numbers[N];
    for (int64_t i = 0; i < n; i++) numbers[i] = first + i;
    hl_batch batch = {.rows = numbers, .n = n, .epoch = epoch, .is_training = true};
    void *fields[4] = {out->images, out->masks, out->points, NULL};
    if (rows->n_fields == 4)
        fields[1] = out->weights, fields[2] = out->masks, fields[3] = out->points;
    return rows->fill(rows->context, &batch, fields);
}

static batch_memory want, got;

static void check_points(const batch_memory *batch, int row, bool is_mirrored)
{
    for (int p = 0; p < POINTS; p++) {
        const float *made = batch->points[row][p];
        const float *from = points[row][is_mirrored ? partners[p] : p];
        if (made[2] != 1) {
            CHECK(made[0] == 0 && made[1] == 0 && made[2] == 0);
            for (int i = 0; i < PIXELS && from[2] > 0; i++)
                CHECK(batch->masks[row][i] != 32 * (int)from[1] + (int)from[0]);
            continue;
        }
        int i = (int)made[1] * SIDE + (int)made[0];
        CHECK(from[2] > 0 && batch->masks[row][i] == 32 * (int)from[1] + (int)from[0]);
    }
}

static void test_masks_and_points_are_where_the_image_is(void)
{
    hl_image_source_options options = make_options();
    hl_image_source *source = open_source(&options);
    const hl_source *rows = hl_image_source_rows(source);
    CHECK_INT(rows->n_fields, 3);
    CHECK(rows->types[1].dtype == HL_DTYPE_I16 && rows->types[1].shape.rank == 2);
    CHECK_INT(rows->types[2].shape.dim[0], POINTS);
    int n_mirrored = 0, n_border = 0, n_shown = 0;
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        CHECK_OK(fill_rows(source, 0, N, epoch, &got));
        for (int row = 0; row < N; row++) {
            bool is_mirrored = false;
            for (int i = 0; i < PIXELS; i++) {
                int x = got.images[row][0][i], y = got.images[row][1][i];
                bool is_inside = got.images[row][2][i] == 9;
                CHECK_INT(got.masks[row][i], is_inside ? 32 * y + x : HL_CLASS_IGNORED);
                n_border += !is_inside;
                is_mirrored |= i % SIDE && is_inside && got.images[row][2][i - 1] == 9 &&
                               x < got.images[row][0][i - 1];
            }
            check_points(&got, row, is_mirrored);
            n_mirrored += is_mirrored;
            for (int p = 0; p < POINTS; p++) n_shown += got.points[row][p][2] > 0;
        }
    }
    CHECK(n_mirrored > N && n_mirrored < 3 * N && n_border > 100 && n_shown > 2 * N);
    hl_image_source_destroy(source);
}

typedef struct job {
    const hl_image_source *source;
    int thread, n_threads;
} job;

static void run_job(void *context)
{
    job *j = context;
    batch_memory *one = malloc(sizeof *one);
    for (int row = j->thread; row < N; row += j->n_threads) {
        CHECK_OK(fill_rows(j->source, row, 1, 3, one));
        memcpy(got.images[row], one->images[0], sizeof one->images[0]);
        memcpy(got.masks[row], one->masks[0], sizeof one->masks[0]);
        memcpy(got.points[row], one->points[0], sizeof one->points[0]);
    }
    free(one);
}

static void test_same_bits(void)
{
    const int64_t limits[] = {0, 6000, 1 << 30};
    hl_image_source_options options = make_options();
    hl_image_source *source = open_source(&options);
    memset(&want, 0, sizeof want);
    CHECK_OK(fill_rows(source, 0, N, 3, &want));
    hl_image_source_destroy(source);
    for (int caching = HL_IMAGE_CACHE_NOTHING; caching <= HL_IMAGE_CACHE_IMAGES; caching++) {
        for (int limit = 0; limit < 3; limit++) {
            options.caching = caching;
            options.cache_bytes = limits[limit];
            source = open_source(&options);
            for (int round = 0; round < 3; round++) {
                int n_threads = (const int[]){1, 2, 5}[round];
                hl_thread *threads[8];
                job jobs[8];
                memset(&got, 0, sizeof got);
                for (int t = 0; t < n_threads; t++) {
                    jobs[t] = (job){source, t, n_threads};
                    CHECK_OK(hl_thread_start(run_job, &jobs[t], &threads[t]));
                }
                for (int t = 0; t < n_threads; t++) hl_thread_join(threads[t]);
                CHECK(memcmp(&got, &want, sizeof got) == 0);
            }
            hl_image_report report;
            hl_image_source_report(source, &report);
            CHECK(report.cached_bytes <= limits[limit]);
            CHECK((report.cached_rows == 2 * N) == (caching != 0 && limit == 2));
            hl_image_source_destroy(source);
        }
    }
}

/* What a batch does not ask for is not written, and masks alone are masks. */
static void test_some_fields(void)
{
    hl_image_source_options options = make_options();
    hl_image_source *source = open_source(&options);
    const hl_source *rows = hl_image_source_rows(source);
    const int64_t numbers[] = {4};
    hl_batch batch = {.rows = numbers, .n = 1, .epoch = 3, .is_training = true};
    for (int field = 0; field < 3; field++) {
        void *fields[3] = {NULL};
        memset(&got, 0, sizeof got);
        fields[field] = field == 0   ? got.images[0]
                        : field == 1 ? (void *)got.masks[0]
                                     : got.points[0];
        CHECK_OK(rows->fill(rows->context, &batch, fields));
        CHECK(field != 0 || memcmp(got.images[0], want.images[4], sizeof got.images[0]) == 0);
        CHECK(field != 1 || memcmp(got.masks[0], want.masks[4], sizeof got.masks[0]) == 0);
        CHECK(field != 2 || memcmp(got.points[0], want.points[4], sizeof got.points[0]) == 0);
    }
    hl_image_source_destroy(source);
}

/* ---- ids and sizes --------------------------------------------------------------------------- */

static void test_ids(void)
{
    uint8_t ids[] = {0, 1, 2, 255, 1, 0};
    uint8_t bytes[FILE_HEAD + sizeof ids] = {'#', 2, 3, 1};
    memcpy(bytes + FILE_HEAD, ids, sizeof ids);
    hl_encoded file = {bytes, sizeof bytes, 0};
    hl_annotations of = {
        .masks = "a", .reader = {read_file, NULL}, .n_classes = 3, .ignored_id = 255};
    hl_image raw = {0}, mask = {0};
    const int32_t classes[] = {0, 1, 2, HL_CLASS_IGNORED, 1, 0};
    const int64_t counts[] = {3, 128, 129, 32768, 32769, HL_MASK_CLASSES_MAX};
    const int32_t widths[] = {1, 1, 2, 2, 4, 4};
    for (int k = 0; k < 6; k++) {
        of.n_classes = counts[k];
        CHECK_OK(hl_mask_decode(&of, "a", &file, &raw, &mask));
        CHECK_INT(mask.channels, widths[k]);
        CHECK_INT(hl_dtype_bytes(hl_mask_dtype(counts[k])), (size_t)widths[k]);
        for (int i = 0; i < 6; i++) {
            const void *at = mask.pixels + i * widths[k];
            int32_t wide;
            int16_t half;
            memcpy(&wide, at, widths[k] == 4 ? 4 : 1);
            memcpy(&half, at, widths[k] >= 2 ? 2 : 1);
            CHECK_INT(widths[k] == 1   ? *(const int8_t *)at
                      : widths[k] == 2 ? half
                                       : wide,
                      classes[i]);
        }
    }
    of.n_classes = 2;
    CHECK_ERROR(hl_mask_decode(&of, "a", &file, &raw, &mask), HL_ERROR_DATA,
                "its class ids must be below 2, got 2 at row 0, column 2");
    of.n_classes = 3;
    of.ignored_id = -1;
    CHECK_ERROR(hl_mask_decode(&of, "a", &file, &raw, &mask), HL_ERROR_DATA,
                "must be below 3, got 255 at row 1, column 0");
    bytes[1] = 1, bytes[2] = 2, bytes[3] = 3;
    CHECK_ERROR(hl_mask_decode(&of, "a", &file, &raw, &mask), HL_ERROR_DATA,
                "ids of 1 or 2 bytes, got 3");
    hl_image_deinit(&raw);
    hl_image_deinit(&mask);
}

static void test_bad_masks(void)
{
    uint8_t pixels[HEIGHT * (WIDTH + 1)] = {0};
    hl_image_source_options options = make_options();
    hl_image_source *source = open_source(&options);
    write_file("mask", 5, &(hl_image){HEIGHT, WIDTH + 1, 1, pixels, 0});
    CHECK_ERROR(fill_rows(source, 0, N, 3, &got), HL_ERROR_DATA,
                "5.mask: must have the size of its image, 20 x 24 (height x width), got 20 x 25");
    CHECK(strncmp(hl_status_message(), "image 5, /", 10) == 0);
    hl_image_source_destroy(source);
    options.bad_max = 1;
    options.policy = HL_IMAGE_SKIP;
    source = open_source(&options);
    CHECK_INT(hl_image_source_rows(source)->n_fields, 4);
    memset(&got, 0xFF, sizeof got);
    CHECK_OK(fill_rows(source, 0, N, 3, &got));
    for (int row = 0; row < N; row++) {
        bool is_bad = row == 5;
        CHECK(got.weights[row] == !is_bad);
        for (int i = 0; i < PIXELS; i++)
            CHECK_INT(got.masks[row][i], is_bad ? HL_CLASS_IGNORED : want.masks[row][i]);
        for (int i = 0; i < POINTS * HL_POINT_NUMBERS; i++)
            CHECK((&got.points[row][0][0])[i] == (is_bad ? 0 : (&want.points[row][0][0])[i]));
        CHECK(got.images[row][2][0] == (is_bad ? 0 : want.images[row][2][0]));
    }
    CHECK(hl_image_source_is_bad(source, 5));
    hl_image_source_destroy(source);
    /* The next one, drawn as the row that it stands for. */
    options.policy = HL_IMAGE_REPLACE;
    source = open_source(&options);
    CHECK_OK(fill_rows(source, 0, N, 3, &got));
    CHECK(memcmp(got.masks[5], want.masks[5], sizeof got.masks[5]) == 0);
    CHECK(memcmp(got.masks[6], want.masks[6], sizeof got.masks[6]) == 0);
    bool is_mirrored = false;
    for (int i = 1; i < SIDE; i++)
        is_mirrored |= got.images[5][2][i] == 9 && got.images[5][2][i - 1] == 9 &&
                       got.images[5][0][i] < got.images[5][0][i - 1];
    CHECK(points[5][0][0] != points[6][0][0]);
    for (int p = 0; p < POINTS; p++) {
        const float *from = points[6][is_mirrored ? partners[p] : p], *made = got.points[5][p];
        int i = (int)made[1] * SIDE + (int)made[0];
        if (made[2] > 0) CHECK_INT(got.masks[5][i], 32 * (int)from[1] + (int)from[0]);
    }
    hl_image_source_destroy(source);
    write_row(5);
}

/* ---- options, faults ------------------------------------------------------------------------- */

static void check_refused(hl_image_source_options options, const char *text)
{
    hl_image_source *source;
    CHECK_ERROR(hl_image_source_create(&options, &source), HL_ERROR_CONFIG, text);
    CHECK(source == NULL);
}

static void test_options(void)
{
    static const int32_t wrong[POINTS] = {0, 1, 3};
    hl_image_source_options options = make_options();
    options.annotations.n_classes = 0;
    check_refused(options, "masks: must have 1 to 65536 classes, got 0");
    options = make_options();
    options.annotations.reader.read = NULL;
    check_refused(options, "masks: a reader must be there");
    options = make_options();
    options.annotations.masks_bytes--;
    check_refused(options, "masks: must be 12, each with a NUL, got 11");
    options = make_options();
    options.annotations.partners = wrong;
    check_refused(options, "partners: must be points, from 0 to 2, got 3");
    options = make_options();
    options.annotations.n_points = HL_POINTS_MAX + 1;
    check_refused(options, "points: must be at most 4096, got 4097");
    options = make_options();
    options.n_companions = HL_SOURCE_FIELDS_MAX - 2;
    check_refused(options, "companions: must be 0 to 61, got 62");
}

static hl_status fill_once(void *context)
{
    hl_image_source *source;
    HL_TRY(hl_image_source_create(context, &source));
    hl_status status = fill_rows(source, 0, 2, 0, &got);
    hl_image_source_destroy(source);
    return status;
}

static void test_faults(void)
{
    hl_image_source_options options = make_options();
    for (int caching = HL_IMAGE_CACHE_NOTHING; caching <= HL_IMAGE_CACHE_IMAGES; caching++) {
        options.caching = caching;
        options.cache_bytes = 1 << 30;
        CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_once, &options) >= 8);
    }
    options.policy = HL_IMAGE_SKIP; /* memory that is short makes no file a bad one */
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_once, &options) >= 8);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/hl_masks_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    write_all();
    test_masks_and_points_are_where_the_image_is();
    test_same_bits();
    test_some_fields();
    test_ids();
    test_bad_masks();
    test_options();
    test_faults();
    for (int i = 0; i < N; i++) {
        char path[PATH_BYTES];
        name_file("image", i, path);
        unlink(path);
        name_file("mask", i, path);
        unlink(path);
    }
    rmdir(folder);
    return CHECK_DONE();
}
