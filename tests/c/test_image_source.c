/* Image sources: the same batches by any number of threads and whatever is cached, what becomes of
 * bad files, limits, faults. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/threads.h"
#include "data/image_source.h"
#include "tests/c/jpeg_files.h"

enum { N_FILES = 24, SIDE = 16, IMAGE_BYTES = 3 * SIDE * SIDE, PATH_BYTES = 128 };

static char folder[64];
static char paths[N_FILES * PATH_BYTES];
static size_t paths_bytes;
static int64_t labels[N_FILES];

static void name_file(int i, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%d.jpg", folder, i);
}

static void write_file(int i, const void *data, size_t bytes)
{
    char path[PATH_BYTES];
    name_file(i, path);
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes);
    if (file) fclose(file);
}

/* Colour, grey, turned, progressive; a third of them many times as large as the output. */
static void write_good(int i)
{
    static jpeg_file file;
    uint8_t exif[64];
    int scale = i % 3 == 0 ? 8 : 1;
    make_file((20 + i) * scale, (17 + 2 * i) * scale, i % 5 == 4 ? 1 : 3, FILE_420,
              i & 4 ? FILE_PROGRESSIVE : 0, &file);
    if (i & 1) insert_bytes(&file, 2, exif, make_exif(1 + i % 8, i & 2, false, exif));
    write_file(i, file.data, file.bytes);
}

static void write_all(void)
{
    paths_bytes = 0;
    for (int i = 0; i < N_FILES; i++) {
        name_file(i, paths + paths_bytes);
        paths_bytes += strlen(paths + paths_bytes) + 1;
        labels[i] = 100 + i;
        write_good(i);
    }
}

static const hl_augment plain = {
    .height = SIDE, .width = SIDE, .fit = HL_FIT_SQUASH, .filter = HL_FILTER_BILINEAR};
static const hl_augment random_crops = {
    .height = SIDE,
    .width = SIDE,
    .filter = HL_FILTER_BILINEAR,
    .seed = 5,
    .n_steps = 2,
    .steps = {{HL_AUGMENT_RESIZED_CROP, 1, {SIDE, SIDE, 0.3, 1, 0.75, 1.3}},
              {HL_AUGMENT_FLIP_X, 0.5, {0}}}};
static const hl_image_companion label_companion = {{HL_DTYPE_I64, {0, {0}}}, labels};

static hl_image_source_options make_options(const hl_augment *augment)
{
    return (hl_image_source_options){.n = N_FILES,
                                     .paths = paths,
                                     .paths_bytes = paths_bytes,
                                     .channels = 3,
                                     .augment = augment,
                                     .n_companions = 1,
                                     .companions = &label_companion};
}

static hl_image_source *open_source(const hl_image_source_options *options)
{
    hl_image_source *source = NULL;
    CHECK_OK(hl_image_source_create(options, &source));
    return source;
}

typedef struct batch_memory {
    uint8_t images[N_FILES][IMAGE_BYTES];
    float weights[N_FILES];
    int64_t labels[N_FILES];
} batch_memory;

static hl_status fill_rows(const hl_image_source *source, int64_t first, int64_t n, uint64_t epoch,
                           batch_memory *out)
{
    const hl_source *rows = hl_image_source_rows(source);
    int64_t numbers[N_FILES];
    for (int64_t i = 0; i < n; i++) numbers[i] = first + i;
    hl_batch batch = {.rows = numbers, .n = n, .epoch = epoch, .is_training = true};
    void *fields[3] = {out->images, out->labels, NULL};
    if (rows->n_fields == 3) fields[1] = out->weights, fields[2] = out->labels;
    return rows->fill(rows->context, &batch, fields);
}

/* ---- the same bits --------------------------------------------------------------------------- */

typedef struct job {
    const hl_image_source *source;
    int thread, n_threads;
    batch_memory *out; /* all rows; a thread writes its own, one by one */
    uint64_t epoch;
} job;

static void run_job(void *context)
{
    job *j = context;
    batch_memory *one = malloc(sizeof *one);
    for (int row = j->thread; row < N_FILES; row += j->n_threads) {
        CHECK_OK(fill_rows(j->source, row, 1, j->epoch, one));
        memcpy(j->out->images[row], one->images[0], IMAGE_BYTES);
        j->out->labels[row] = one->labels[0];
    }
    free(one);
}

static void fill_by_threads(const hl_image_source *source, int n_threads, uint64_t epoch,
                            batch_memory *out)
{
    hl_thread *threads[8];
    job jobs[8];
    for (int t = 0; t < n_threads; t++) {
        jobs[t] = (job){source, t, n_threads, out, epoch};
        CHECK_OK(hl_thread_start(run_job, &jobs[t], &threads[t]));
    }
    for (int t = 0; t < n_threads; t++) hl_thread_join(threads[t]);
}

static batch_memory want, got;

/* Files by any number of threads, with files in the cache or not; decoded images are kept at full
 * size, and then all are decoded so, wherever the cache ends. */
static void test_same_bits(void)
{
    const int64_t limits[] = {0, 20000, 1 << 30};
    for (int caching = HL_IMAGE_CACHE_NOTHING; caching <= HL_IMAGE_CACHE_IMAGES; caching++) {
        for (int limit = 0; limit < 3; limit++) {
            check_case("caching %d, limit %d", caching, limit);
            hl_image_source_options options = make_options(&random_crops);
            options.caching = caching;
            options.cache_bytes = limits[limit];
            hl_image_source *source = open_source(&options);
            if (limit == 0 && caching != HL_IMAGE_CACHE_FILES)
                CHECK_OK(fill_rows(source, 0, N_FILES, 3, &want));
            for (int round = 0; round < 3; round++) {
                memset(&got, 0, sizeof got);
                fill_by_threads(source, (const int[]){1, 2, 5}[round], 3, &got);
                CHECK(memcmp(got.images, want.images, sizeof got.images) == 0);
                CHECK(memcmp(got.labels, labels, sizeof labels) == 0);
            }
            hl_image_report report;
            hl_image_source_report(source, &report);
            CHECK(report.cached_bytes <= limits[limit]);
            CHECK((report.cached_rows == N_FILES) == (caching != 0 && limit == 2));
            CHECK((report.cached_rows > 0) == (caching != 0 && limit > 0));
            hl_image_source_destroy(source);
        }
    }
    check_case("%s", "");
}

static void test_epochs_differ(void)
{
    hl_image_source_options options = make_options(&random_crops);
    hl_image_source *source = open_source(&options);
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &want));
    CHECK_OK(fill_rows(source, 0, N_FILES, 1, &got));
    CHECK(memcmp(got.images, want.images, sizeof got.images) != 0);
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &got));
    CHECK(memcmp(got.images, want.images, sizeof got.images) == 0);
    hl_image_source_destroy(source);
}

/* What is cached is not read again. */
static void test_cached_files_may_go(void)
{
    char path[PATH_BYTES];
    for (int caching = HL_IMAGE_CACHE_FILES; caching <= HL_IMAGE_CACHE_IMAGES; caching++) {
        hl_image_source_options options = make_options(&plain);
        options.caching = caching;
        options.cache_bytes = 1 << 30;
        hl_image_source *source = open_source(&options);
        CHECK_OK(fill_rows(source, 0, N_FILES, 0, &want));
        name_file(3, path);
        unlink(path);
        CHECK_OK(fill_rows(source, 0, N_FILES, 0, &got));
        CHECK(memcmp(got.images, want.images, sizeof got.images) == 0);
        write_good(3);
        hl_image_source_destroy(source);
    }
}

/* ---- bad files ------------------------------------------------------------------------------- */

static void test_raise(void)
{
    hl_image_source_options options = make_options(&plain);
    hl_image_source *source = open_source(&options);
    write_file(5, "\xFF\xD8\xFF no image", 12);
    CHECK_ERROR(fill_rows(source, 0, N_FILES, 0, &got), HL_ERROR_DATA, "/5.jpg: JPEG: its header");
    CHECK(strncmp(hl_status_message(), "image 5, /", 10) == 0);
    CHECK_OK(fill_rows(source, 6, 4, 0, &got));
    write_good(5); /* a file that was mended is read */
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &got));
    hl_image_source_destroy(source);
}

static void test_skip(void)
{
    static const uint8_t black[IMAGE_BYTES];
    hl_image_source_options options = make_options(&plain);
    hl_image_source *source = open_source(&options);
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &want));
    hl_image_source_destroy(source);
    options.policy = HL_IMAGE_SKIP;
    options.bad_max = 2;
    source = open_source(&options);
    CHECK_INT(hl_image_source_rows(source)->n_fields, 3);
    write_file(5, "no image", 8);
    write_file(9, "", 0);
    for (int round = 0; round < 2; round++) { /* files count once */
        memset(&got, 0xFF, sizeof got);
        CHECK_ERROR(fill_rows(source, 5, 1, 0, &got), HL_ERROR_CONFIG, "image 5, /");
        write_file(5, "\xFF\xD8\xFF", 3);
        CHECK_OK(fill_rows(source, 0, N_FILES, 0, &got));
        for (int i = 0; i < N_FILES; i++) {
            bool bad = i == 5 || i == 9;
            CHECK(got.weights[i] == (bad ? 0 : 1));
            CHECK_INT(got.labels[i], labels[i]);
            CHECK(memcmp(got.images[i], bad ? black : want.images[i], IMAGE_BYTES) == 0);
        }
        write_file(5, "no image", 8);
    }
    hl_image_report report;
    hl_image_source_report(source, &report);
    CHECK_INT(report.n_bad, 2);
    CHECK(strstr(report.first_bad, "image 5, /") != NULL);
    CHECK(hl_image_source_is_bad(source, 5) && hl_image_source_is_bad(source, 9));
    CHECK(!hl_image_source_is_bad(source, 6));
    write_good(5);
    write_file(7, "", 0);
    CHECK_ERROR(fill_rows(source, 0, N_FILES, 0, &got), HL_ERROR_DATA,
                "images: at most 2 of 24 files may be bad, got 3, the last of them: image 7, /");
    hl_image_source_destroy(source);
    write_good(7);
    write_good(9);
}

/* A source that replaces bad files, of which there are none yet: want has all that it shows. */
static hl_image_source *open_replacing(void)
{
    hl_image_source_options options = make_options(&plain);
    hl_image_source *source = open_source(&options);
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &want));
    hl_image_source_destroy(source);
    options.policy = HL_IMAGE_REPLACE;
    options.bad_max = N_FILES;
    return open_source(&options);
}

/* The next good file, around the end, with its label; drawn as the row that it stands for. */
static void test_replace(void)
{
    hl_image_source *source = open_replacing();
    const int bad[] = {4, 5, N_FILES - 1};
    for (int i = 0; i < 3; i++) write_file(bad[i], "\xFF\xD8\xFF", 3);
    CHECK_OK(fill_rows(source, 0, N_FILES, 0, &got));
    for (int i = 0; i < N_FILES; i++) {
        int shown = i == 4 || i == 5 ? 6 : i == N_FILES - 1 ? 0 : i;
        CHECK_INT(got.labels[i], labels[shown]);
        CHECK(memcmp(got.images[i], want.images[shown], IMAGE_BYTES) == 0);
    }
    for (int i = 0; i < N_FILES; i++) write_file(i, "\xFF\xD8\xFF", 3);
    CHECK_ERROR(fill_rows(source, 0, 1, 0, &got), HL_ERROR_DATA, "must have a good file, got 24");
    hl_image_source_destroy(source);
    write_all();
}

/* Of several splits, in which every third row is: the next good one of its own, whatever lies
 * between; and a split without a good one has none, though others have. */
static void test_replace_within_a_split(void)
{
    hl_image_source *source = open_replacing();
    const hl_source *rows = hl_image_source_rows(source);
    int64_t split[N_FILES / 3];
    for (int i = 0; i < N_FILES / 3; i++) split[i] = 3 * i + 1;
    const int bad[] = {1, 4, N_FILES - 2};
    const int shown[] = {7, 7, 7};
    hl_batch batch = {.n = 1, .is_training = true, .peers = {split, N_FILES / 3, NULL}};
    void *fields[2] = {got.images, got.labels};
    for (int i = 0; i < 3; i++) write_file(bad[i], "\xFF\xD8\xFF", 3);
    for (int i = 0; i < 3; i++) {
        int64_t row = bad[i];
        batch.rows = &row;
        CHECK_OK(rows->fill(rows->context, &batch, fields));
        CHECK_INT(got.labels[0], labels[shown[i]]);
        CHECK(memcmp(got.images[0], want.images[shown[i]], IMAGE_BYTES) == 0);
    }
    for (int i = 0; i < N_FILES / 3; i++) write_file(3 * i + 1, "\xFF\xD8\xFF", 3);
    batch.rows = split;
    CHECK_ERROR(rows->fill(rows->context, &batch, fields), HL_ERROR_DATA,
                "a split must have a good file, got 8 bad ones");
    hl_image_report report;
    hl_image_source_report(source, &report);
    CHECK_INT(report.n_bad, N_FILES / 3);
    hl_image_source_destroy(source);
    write_all();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t reader_side;

static hl_status read_square(void *context, const char *name, const hl_encoded *file,
                             const hl_image_request *request, hl_image *image)
{
    (void)context, (void)name, (void)file;
    HL_TRY(hl_image_shape(image, reader_side, reader_side, request->channels));
    memset(image->pixels, 77, (size_t)(reader_side * reader_side * request->channels));
    return HL_OK;
}

/* Room for images of a camera is kept from batch to batch, that for a huge one is not. */
static void test_memory_is_given_back(void)
{
    hl_image_source_options options = make_options(&plain);
    hl_alloc_stats stats;
    options.reader.read = read_square;
    hl_image_source *source = open_source(&options);
    write_file(5, "no JPEG", 7);
    hl_alloc_stats_read(&stats);
    int64_t before = stats.current_bytes;
    const int64_t sides[] = {2000, 6000};
    for (int i = 0; i < 2; i++) {
        reader_side = sides[i];
        CHECK_OK(fill_rows(source, 5, 1, 0, &got));
        CHECK_INT(got.images[0][0], 77);
        hl_alloc_stats_read(&stats);
        int64_t image = 3 * sides[i] * sides[i], kept = stats.current_bytes - before;
        CHECK(i == 0 ? kept >= image : kept < image / 4);
    }
    hl_image_source_destroy(source);
    write_good(5);
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
    hl_image_source_options options = make_options(&plain);
    options.n = 0;
    check_refused(options, "must be files");
    options = make_options(&plain);
    options.n--;
    check_refused(options, "paths: must be 23, each with a NUL, got 24");
    options = make_options(&plain);
    options.paths_bytes--;
    check_refused(options, "paths: must be 24, each with a NUL, got 23");
    options = make_options(&plain);
    options.channels = 2;
    check_refused(options, "channels: must be 1 or 3, got 2");
    options = make_options(&plain);
    options.n_companions = HL_SOURCE_FIELDS_MAX;
    check_refused(options, "companions: must be 0 to 63, got 64");
    options = make_options(&plain);
    options.bad_max = -1;
    check_refused(options, "limits must be at least 0");
}

static hl_status fill_once(void *context)
{
    hl_image_source *source;
    HL_TRY(hl_image_source_create(context, &source));
    hl_status status = fill_rows(source, 0, 4, 0, &got);
    hl_image_source_destroy(source);
    return status;
}

static void test_faults(void)
{
    hl_image_source_options options = make_options(&random_crops);
    for (int caching = HL_IMAGE_CACHE_NOTHING; caching <= HL_IMAGE_CACHE_IMAGES; caching++) {
        options.caching = caching;
        options.cache_bytes = 1 << 30;
        CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_once, &options) >= 12);
    }
    options.policy = HL_IMAGE_SKIP; /* memory that is short makes no file a bad one */
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_once, &options) >= 12);
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, EIO, fill_once, &options) >= 12);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/hl_images_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    if (files_open()) {
        write_all();
        test_same_bits();
        test_epochs_differ();
        test_cached_files_may_go();
        test_raise();
        test_skip();
        test_replace();
        test_replace_within_a_split();
        test_memory_is_given_back();
        test_options();
        test_faults();
    }
    files_close();
    for (int i = 0; i < N_FILES; i++) {
        char path[PATH_BYTES];
        name_file(i, path);
        unlink(path);
    }
    rmdir(folder);
    return CHECK_DONE();
}
