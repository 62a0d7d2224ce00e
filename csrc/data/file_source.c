/* File source: batches of files. */
#include "data/file_source.h"

#include <string.h>

#include "base/alloc.h"
#include "base/os.h"

/* Large enough that calls do not show, and in the second cache while it is looked at. */
enum { BLOCK_BYTES = 512 << 10 };

struct hl_file_source {
    hl_source rows;
    hl_file_source_options options;
    hl_type type;
    const char **paths;
    size_t row_bytes;
};

static hl_status fail(const hl_file_source *source, int64_t row, int error)
{
    char why[128];
    hl_os_error_text(error, why, sizeof why);
    return hl_status_set(HL_ERROR_DATA, "file %lld, %.200s: cannot be read (%s)", (long long)row,
                         source->paths[row], why);
}

static hl_status open_row(const hl_file_source *source, int64_t row, hl_os_file *out_file)
{
    int64_t bytes, begin = source->options.offsets[row];
    int error = hl_os_file_open(hl_os_directory_current(), source->paths[row], out_file, &bytes);
    if (error) return fail(source, row, error);
    hl_os_file_expect(*out_file, begin, (int64_t)source->row_bytes);
    return HL_OK;
}

/* Whether some number is a NaN or an infinity: its exponent has all bits. */
static bool has_nonfinite(const float *x, size_t n)
{
    const uint32_t exponent = 0x7f800000;
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        found |= (bits & exponent) == exponent;
    }
    return found != 0;
}

static hl_status read_row(const hl_file_source *source, int64_t row, hl_os_file file, float *to)
{
    const hl_file_source_options *options = &source->options;
    const float divisor = options->divisors[row];
    size_t left = source->row_bytes / sizeof *to;
    int64_t at = options->offsets[row];
    while (left > 0) {
        size_t n = left < BLOCK_BYTES / sizeof *to ? left : BLOCK_BYTES / sizeof *to;
        int error = hl_os_file_read_at(file, at, to, n * sizeof *to);
        if (error) return fail(source, row, error);
        if (divisor != 1)
            for (size_t i = 0; i < n; i++) to[i] /= divisor;
        if (!options->allow_nonfinite && has_nonfinite(to, n))
            return hl_status_set(HL_ERROR_DATA, "file %lld, %.200s: must be finite", (long long)row,
                                 source->paths[row]);
        to += n, at += (int64_t)(n * sizeof *to), left -= n;
    }
    return HL_OK;
}

/* The fill of hl_source. */
static hl_status fill(void *context, const hl_batch *batch, void *const *fields)
{
    const hl_file_source *source = context;
    float *to = fields[0];
    hl_os_file file, next = {-1};
    if (!to || batch->n == 0) return HL_OK;
    HL_TRY(open_row(source, batch->rows[0], &file));
    for (int64_t i = 0; i < batch->n; i++, file = next, next.descriptor = -1) {
        hl_status status = HL_OK;
        if (i + 1 < batch->n) status = open_row(source, batch->rows[i + 1], &next);
        if (status == HL_OK) status = read_row(source, batch->rows[i], file, to);
        /* What was read is whole, whatever closing says. */
        (void)hl_os_file_close(file);
        if (status != HL_OK) {
            if (next.descriptor >= 0) (void)hl_os_file_close(next);
            return status;
        }
        to += source->row_bytes / sizeof *to;
    }
    return HL_OK;
}

static hl_status init(hl_file_source *source)
{
    const hl_file_source_options *options = &source->options;
    size_t bytes;
    if (options->n < 1)
        return hl_status_set(HL_ERROR_CONFIG, "n: must be at least 1, got %lld",
                             (long long)options->n);
    for (int64_t i = 0; i < options->n; i++)
        if (options->offsets[i] < 0)
            return hl_status_set(HL_ERROR_CONFIG, "offsets: must be at least 0, got %lld",
                                 (long long)options->offsets[i]);
    source->type = (hl_type){HL_DTYPE_F32, options->shape};
    source->row_bytes = hl_type_bytes(&source->type);
    if (!hl_mul_size((size_t)options->n, sizeof *source->paths, &bytes))
        return hl_status_set(HL_ERROR_SHAPE, "n: must be fewer than %lld", (long long)options->n);
    HL_TRY(hl_alloc(bytes, (void **)&source->paths));
    HL_TRY(hl_source_find_paths("paths", options->paths, options->paths_bytes, options->n,
                                source->paths));
    source->rows = (hl_source){.n_rows = options->n,
                               .n_fields = 1,
                               .types = &source->type,
                               .fill = fill,
                               .context = source};
    return HL_OK;
}

hl_status hl_file_source_create(const hl_file_source_options *options, hl_file_source **out_source)
{
    hl_file_source *source;
    *out_source = NULL;
    HL_TRY(hl_alloc_zero(sizeof *source, (void **)&source));
    source->options = *options;
    hl_status status = init(source);
    if (status == HL_OK)
        *out_source = source;
    else
        hl_file_source_destroy(source);
    return status;
}

void hl_file_source_destroy(hl_file_source *source)
{
    if (!source) return;
    hl_free(source->paths);
    hl_free(source);
}

const hl_source *hl_file_source_rows(const hl_file_source *source)
{
    return &source->rows;
}
