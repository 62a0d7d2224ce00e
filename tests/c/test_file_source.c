/* File sources: rows as files hold them, divided, looked at; files that are cut off, gone or not
 * finite; options, faults. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "data/file_source.h"
#include "tests/c/check.h"

/* A row is some blocks of the source and a part of one. */
enum { N_FILES = 5, SIDE = 600, CHANNELS = 1, N = SIDE * SIDE * CHANNELS, PATH_BYTES = 128 };

static char folder[64];
static char paths[N_FILES * PATH_BYTES];
static size_t paths_bytes;
static int64_t offsets[N_FILES];
static float divisors[N_FILES];
static float row[N], got[N_FILES * N];

static float value_of(int file, int i)
{
    return (float)(file * 1000 + i % 997);
}

static void write_file(int i, int n)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%d", folder, i);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    for (int k = 0; k < N; k++) row[k] = value_of(i, k);
    if (i == 4) row[N - 3] = NAN;
    for (int64_t k = 0; k < offsets[i]; k++) fputc('#', file);
    CHECK(fwrite(row, sizeof *row, (size_t)n, file) == (size_t)n);
    fclose(file);
}

static void write_all(void)
{
    paths_bytes = 0;
    for (int i = 0; i < N_FILES; i++) {
        paths_bytes += (size_t)snprintf(paths + paths_bytes, PATH_BYTES, "%s/%d", folder, i) + 1;
        offsets[i] = 13 * i;
        divisors[i] = i == 2 ? 4 : 1;
        write_file(i, N);
    }
}

static hl_file_source_options make_options(void)
{
    return (hl_file_source_options){.n = N_FILES,
                                    .paths = paths,
                                    .paths_bytes = paths_bytes,
                                    .offsets = offsets,
                                    .divisors = divisors,
                                    .shape = {3, {SIDE, SIDE, CHANNELS}}};
}

static hl_status fill_rows(const hl_file_source_options *options, const int64_t *rows, int64_t n)
{
    hl_file_source *source;
    void *fields[] = {got};
    HL_TRY(hl_file_source_create(options, &source));
    const hl_source *made = hl_file_source_rows(source);
    hl_batch batch = {.rows = rows, .n = n, .is_training = true};
    hl_status status = made->fill(made->context, &batch, fields);
    hl_file_source_destroy(source);
    return status;
}

static void test_rows(void)
{
    const int64_t rows[] = {3, 0, 2, 2};
    hl_file_source_options options = make_options();
    CHECK_OK(fill_rows(&options, rows, 4));
    for (int64_t r = 0; r < 4; r++)
        for (int i = 0; i < N; i++)
            if (got[r * N + i] != value_of((int)rows[r], i) / divisors[rows[r]]) CHECK_INT(i, -1);
}

static void test_wrong_files(void)
{
    const int64_t rows[] = {1, 4};
    hl_file_source_options options = make_options();
    CHECK_ERROR(fill_rows(&options, rows, 2), HL_ERROR_DATA, "must be finite");
    options.allow_nonfinite = true;
    CHECK_OK(fill_rows(&options, rows, 2));
    CHECK(isnan(got[2 * N - 3]));
    write_file(1, N - 1);
    CHECK_ERROR(fill_rows(&options, rows, 1), HL_ERROR_DATA, "cannot be read");
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/4", folder);
    unlink(path);
    write_file(1, N);
    CHECK_ERROR(fill_rows(&options, rows, 2), HL_ERROR_DATA, "/4: cannot be read (No such file");
    write_file(4, N);
}

static void test_options(void)
{
    hl_file_source *source;
    hl_file_source_options options = make_options();
    options.n--;
    CHECK_ERROR(hl_file_source_create(&options, &source), HL_ERROR_CONFIG,
                "paths: must be 4, each with a NUL, got 5");
    CHECK(source == NULL);
    options.n = 0;
    CHECK_ERROR(hl_file_source_create(&options, &source), HL_ERROR_CONFIG, "n: must be at least 1");
    options = make_options();
    offsets[1] = -1;
    CHECK_ERROR(hl_file_source_create(&options, &source), HL_ERROR_CONFIG,
                "offsets: must be at least 0, got -1");
    offsets[1] = 13;
}

static hl_status fill_once(void *context)
{
    const int64_t rows[] = {0, 1, 2};
    return fill_rows(context, rows, 3);
}

static void test_faults(void)
{
    hl_file_source_options options = make_options();
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fill_once, &options) >= 2);
    CHECK(check_walk_faults(CHECK_FAULT_OS, HL_OK, EIO, fill_once, &options) >= 9);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/hl_rows_XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    write_all();
    test_rows();
    test_wrong_files();
    test_options();
    test_faults();
    for (int i = 0; i < N_FILES; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%d", folder, i);
        unlink(path);
    }
    rmdir(folder);
    return CHECK_DONE();
}
