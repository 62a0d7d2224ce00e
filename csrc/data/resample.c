/* Resampling, as resample.h defines it.
 *
 * A resize goes over the output's rows: the source rows under one are added, weighted, into a row
 * of floats (all columns that the box needs, vector code), and of that row come the output's
 * pixels, with the channels of a pixel as the lanes of a vector. The vertical pass first: it works
 * on rows as they lie, and what remains for the horizontal one, whose taps are scattered, is as
 * many rows as the output has. Floats, since the intermediate row needs no rounding then and no
 * filter can overflow. Where each output has one tap (whole shifts, nearest) bytes are copied.
 *
 * Rejected: the horizontal pass first, which does the scattered work for every source row; weights
 * in 16 bits, which save a third of the vertical pass and are too coarse for large reductions;
 * levels between the passes, which cut what a bicubic filter overshoots: where that happens results
 * depend on the order of the passes, by up to 30 levels, and Pillow's order on its version. */
#include "data/resample.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

/* ---- rasters and scratch --------------------------------------------------------------------- */

hl_raster hl_raster_planes(uint8_t *data, int64_t height, int64_t width)
{
    return (hl_raster){data, height, width, width, 1, height * width};
}

hl_raster hl_raster_interleaved(uint8_t *data, int64_t height, int64_t width, int32_t channels)
{
    return (hl_raster){data, height, width, width * channels, channels, 1};
}

hl_status hl_scratch_reserve(hl_scratch *scratch, hl_scratch_part part, size_t bytes)
{
    if (bytes <= scratch->bytes[part]) return HL_OK;
    hl_free(scratch->memory[part]);
    scratch->memory[part] = NULL;
    scratch->bytes[part] = 0;
    HL_TRY(hl_alloc(bytes, &scratch->memory[part]));
    scratch->bytes[part] = bytes;
    return HL_OK;
}

void hl_scratch_deinit(hl_scratch *scratch)
{
    for (int i = 0; i < HL_SCRATCH_PARTS; i++) hl_free(scratch->memory[i]);
    *scratch = (hl_scratch){0};
}

/* ---- borders --------------------------------------------------------------------------------- */

int64_t hl_border_index(int64_t i, int64_t n, hl_border border)
{
    if (i >= 0 && i < n) return i;
    if (border == HL_BORDER_EDGE || n == 1) return i < 0 ? 0 : n - 1;
    int64_t period = border == HL_BORDER_REFLECT ? 2 * n - 2 : 2 * n;
    int64_t place = i % period + (i % period < 0 ? period : 0);
    return place < n ? place : period - place - (border == HL_BORDER_SYMMETRIC);
}

/* ---- axes: which source indices make an output index, and by which weights ------------------- */

typedef struct tap {
    int64_t first;  /* index of the source, may lie beyond it unless the border is a fill */
    int64_t weight; /* index of the first weight */
    int32_t n;      /* 0: fill */
} tap;

typedef struct axis {
    int64_t n_out, n_in;
    double from, step, reach; /* reach: half a filter's width */
    bool is_mirrored;
    bool is_whole; /* a whole shift: outputs have an index of the source each */
    hl_filter filter;
    hl_border border;
    int64_t n_weights;
    int64_t low, high; /* the indices that are needed */
    bool is_single;    /* one tap at most */
    tap *taps;
    float *weights;
} axis;

static double weigh(hl_filter filter, double x)
{
    x = fabs(x);
    if (filter == HL_FILTER_BILINEAR) return x < 1 ? 1 - x : 0;
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double axis_scale(const axis *a)
{
    return a->step > 1 ? a->step : 1;
}

static double axis_centre(const axis *a, int64_t i)
{
    double place = (double)(a->is_mirrored ? a->n_out - 1 - i : i) + 0.5;
    return a->from + place * a->step;
}

/* The indices under output i: [*out_first, *out_end), none for the fill. */
static void find_taps(const axis *a, int64_t i, int64_t *out_first, int64_t *out_end)
{
    double centre = axis_centre(a, i);
    *out_first = *out_end = 0;
    if (a->border == HL_BORDER_FILL && !(centre >= 0 && centre < (double)a->n_in)) return;
    if (a->filter == HL_FILTER_NEAREST || a->is_whole) {
        *out_first = (int64_t)floor(centre);
        *out_end = *out_first + 1;
        return;
    }
    /* Those whose centres lie within the filter, of which the first and the last may weigh 0. */
    *out_first = (int64_t)floor(centre - a->reach + 0.5);
    *out_end = (int64_t)floor(centre + a->reach + 0.5);
    if (a->border == HL_BORDER_FILL) {
        if (*out_first < 0) *out_first = 0;
        if (*out_end > a->n_in) *out_end = a->n_in;
    }
    double scale = axis_scale(a);
    while (*out_end - *out_first > 1 &&
           weigh(a->filter, ((double)*out_first + 0.5 - centre) / scale) == 0)
        ++*out_first;
    while (*out_end - *out_first > 1 &&
           weigh(a->filter, ((double)*out_end - 0.5 - centre) / scale) == 0)
        --*out_end;
}

/* What the axis needs, without its tables. */
static void axis_measure(axis *a)
{
    static const double support[HL_FILTER_COUNT] = {0, 1, 2};
    a->is_whole = a->step == 1 && a->from == floor(a->from);
    a->reach = support[a->filter] * axis_scale(a);
    a->n_weights = 0;
    a->low = INT64_MAX;
    a->high = INT64_MIN;
    a->is_single = true;
    for (int64_t i = 0; i < a->n_out; i++) {
        int64_t first, end;
        find_taps(a, i, &first, &end);
        if (end == first) continue;
        a->n_weights += end - first;
        if (end - first > 1) a->is_single = false;
        if (first < a->low) a->low = first;
        if (end > a->high) a->high = end;
    }
    if (a->low > a->high) a->low = a->high = 0;
}

static void axis_fill(axis *a)
{
    int64_t at = 0;
    double scale = axis_scale(a);
    for (int64_t i = 0; i < a->n_out; i++) {
        int64_t first, end;
        double sum = 0, centre = axis_centre(a, i);
        find_taps(a, i, &first, &end);
        a->taps[i] = (tap){first, at, (int32_t)(end - first)};
        if (end - first == 1) {
            a->weights[at++] = 1;
            continue;
        }
        for (int64_t k = first; k < end; k++) {
            double weight = weigh(a->filter, ((double)k + 0.5 - centre) / scale);
            a->weights[at + k - first] = (float)weight;
            sum += weight;
        }
        for (int64_t k = first; k < end; k++, at++) a->weights[at] *= (float)(1 / sum);
    }
}

/* ---- whole shifts and nearest ---------------------------------------------------------------- */

static void fill_pixel(const hl_raster *dst, int32_t channels, const uint8_t *fill, int64_t y,
                       int64_t x)
{
    uint8_t *to = dst->data + y * dst->row + x * dst->pixel;
    for (int32_t c = 0; c < channels; c++) to[c * dst->channel] = fill[c];
}

/* n columns from x on. */
static void fill_run(const hl_raster *dst, int32_t channels, const uint8_t *fill, int64_t y,
                     int64_t x, int64_t n)
{
    for (int64_t end = x + n; x < end; x++) fill_pixel(dst, channels, fill, y, x);
}

static void fill_row(const hl_raster *dst, int32_t channels, const uint8_t *fill, int64_t y)
{
    fill_run(dst, channels, fill, y, 0, dst->width);
}

enum { BLOCK = 16 }; /* pixels whose channels are split at once */
typedef uint8_t block __attribute__((vector_size(BLOCK)));

/* The bytes of a low half and of another half in turn. */
static inline block weave(block a, block b)
{
    return __builtin_shuffle(a, b, (block){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}

static inline block take_high(block a)
{
    return __builtin_shuffle(a,
                             (block){8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15});
}

/* 16 pixels of three channels into three blocks. A round weaves the first 24 bytes with the last
 * 24: byte i goes to 2 i mod 47. After four byte 3 k + c is at 16 (3 k + c) = k + 16 c mod 47. */
static inline void split_block(const uint8_t *from, block out[3])
{
    memcpy(out, from, 3 * sizeof *out);
    for (int round = 0; round < 4; round++) {
        block a = out[0], b = out[1], c = out[2];
        out[0] = weave(a, take_high(b));
        out[1] = weave(take_high(a), c);
        out[2] = weave(b, take_high(c));
    }
}

static inline void store_block(uint8_t *to, const block *from, bool is_mirrored)
{
    uint64_t half[2];
    memcpy(half, from, sizeof half);
    if (is_mirrored) {
        uint64_t first = __builtin_bswap64(half[1]);
        half[1] = __builtin_bswap64(half[0]);
        half[0] = first;
    }
    memcpy(to, half, sizeof half);
}

/* Three channels into planes, beside each other or mirrored: most images of a batch. */
static void copy_into_planes(uint8_t *to, int64_t plane, int64_t n, const uint8_t *from,
                             int64_t step)
{
    int64_t i = 0;
    if (step == 3 || step == -3)
        for (; i + BLOCK <= n; i += BLOCK, to += BLOCK, from += step * BLOCK) {
            block split[3];
            split_block(step > 0 ? from : from + step * (BLOCK - 1), split);
            for (int c = 0; c < 3; c++) store_block(to + c * plane, &split[c], step < 0);
        }
    for (; i < n; i++, to++, from += step)
        for (int c = 0; c < 3; c++) to[c * plane] = from[c];
}

/* Pixels of n columns from `from` on (step: bytes to the next one) to output columns from x on. */
static void copy_run(const hl_raster *dst, int32_t channels, int64_t y, int64_t x, int64_t n,
                     const uint8_t *from, int64_t step)
{
    if (channels == 3 && dst->pixel == 1) {
        copy_into_planes(dst->data + y * dst->row + x, dst->channel, n, from, step);
        return;
    }
    for (int32_t c = 0; c < channels; c++) {
        uint8_t *to = dst->data + y * dst->row + x * dst->pixel + c * dst->channel;
        if (dst->pixel == 1)
            for (int64_t i = 0; i < n; i++) to[i] = from[i * step + c];
        else
            for (int64_t i = 0; i < n; i++) to[i * dst->pixel] = from[i * step + c];
    }
}

/* How many output columns from x on are fill alike, or columns of the source at equal distances;
 * *out_step: columns from one to the next. */
static int64_t measure_run(const axis *across, int64_t x, int64_t *out_step)
{
    const tap *at = across->taps + x;
    int64_t n = 1, n_in = across->n_in, rest = across->n_out - x;
    *out_step = 1;
    if (!at->n) {
        while (n < rest && !at[n].n) n++;
        return n;
    }
    if (at->first < 0 || at->first >= n_in) return 1;
    if (rest > 1) *out_step = at[1].first - at->first;
    while (n < rest && at[n].n && at[n].first >= 0 && at[n].first < n_in &&
           at[n].first == at->first + n * *out_step)
        n++;
    return n;
}

static void copy_pixels(const hl_image *src, const axis *across, const axis *down,
                        const hl_resampling *how, const hl_raster *dst)
{
    int32_t channels = src->channels;
    for (int64_t x = 0, n; x < dst->width; x += n) {
        int64_t step, column = 0;
        n = measure_run(across, x, &step);
        bool is_fill = !across->taps[x].n;
        if (!is_fill) column = hl_border_index(across->taps[x].first, src->width, how->border);
        for (int64_t y = 0; y < dst->height; y++) {
            if (is_fill || !down->taps[y].n) {
                fill_run(dst, channels, how->fill, y, x, n);
                continue;
            }
            int64_t row = hl_border_index(down->taps[y].first, src->height, how->border);
            copy_run(dst, channels, y, x, n, src->pixels + (row * src->width + column) * channels,
                     step * channels);
        }
    }
}

/* ---- filters --------------------------------------------------------------------------------- */

/* sum[i] (+)= weights of up to four rows: each of them is read once, the sum as seldom. */
static void add_rows(float *restrict sum, const uint8_t *const *rows, const float *w, int n_rows,
                     bool is_first, int64_t n)
{
    const uint8_t *restrict a = rows[0], *restrict b = rows[n_rows > 1 ? 1 : 0];
    const uint8_t *restrict c = rows[n_rows > 2 ? 2 : 0], *restrict d = rows[n_rows > 3 ? 3 : 0];
    float wa = w[0], wb = n_rows > 1 ? w[1] : 0, wc = n_rows > 2 ? w[2] : 0;
    float wd = n_rows > 3 ? w[3] : 0;
    if (n_rows == 1 && is_first)
        for (int64_t i = 0; i < n; i++) sum[i] = wa * (float)a[i];
    else if (n_rows == 2 && is_first)
        for (int64_t i = 0; i < n; i++) sum[i] = wa * (float)a[i] + wb * (float)b[i];
    else if (n_rows == 3 && is_first)
        for (int64_t i = 0; i < n; i++)
            sum[i] = wa * (float)a[i] + wb * (float)b[i] + wc * (float)c[i];
    else if (is_first)
        for (int64_t i = 0; i < n; i++)
            sum[i] = wa * (float)a[i] + wb * (float)b[i] + wc * (float)c[i] + wd * (float)d[i];
    else
        for (int64_t i = 0; i < n; i++)
            sum[i] += wa * (float)a[i] + wb * (float)b[i] + wc * (float)c[i] + wd * (float)d[i];
}

/* The row of floats of columns [across->low, across->high) that output row y is made of. */
static void make_row(const hl_image *src, const axis *across, const axis *down, int64_t y,
                     float *row)
{
    int32_t channels = src->channels;
    const tap *at = down->taps + y;
    int64_t low = across->low > 0 ? across->low : 0;
    int64_t high = across->high < src->width ? across->high : src->width;
    if (high <= low) return; /* every column is the fill */
    float *inside = row + (across->low < low ? low - across->low : 0) * channels;
    for (int32_t k = 0; k < at->n; k += 4) {
        const uint8_t *rows[4];
        int n_rows = at->n - k < 4 ? at->n - k : 4;
        for (int r = 0; r < n_rows; r++)
            rows[r] =
                src->pixels +
                (hl_border_index(at->first + k + r, src->height, down->border) * src->width + low) *
                    channels;
        add_rows(inside, rows, down->weights + at->weight + k, n_rows, k == 0,
                 (high - low) * channels);
    }
}

/* The sums of one pixel's channels; a row of floats has so many more behind its end. */
enum { LANES = 4 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef float loose_lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t lanes_i32 __attribute__((vector_size(LANES * sizeof(int32_t))));
/* One output pixel of its taps. */
static inline __attribute__((always_inline)) lanes_i32 sum_pixel(const float *from, const float *w,
                                                                 int32_t n, int32_t channels)
{
    lanes sum = {0.5f, 0.5f, 0.5f, 0.5f};
    for (int32_t k = 0; k < n; k++, from += channels) sum += w[k] * *(const loose_lanes *)from;
    return __builtin_convertvector(sum, lanes_i32);
}

/* Output row y of a row of floats. */
static inline __attribute__((always_inline)) void sum_taps(const float *row, const axis *across,
                                                           int32_t channels,
                                                           const hl_resampling *how,
                                                           const hl_raster *dst, int64_t y)
{
    const tap *taps = across->taps;
    const float *weights = across->weights;
    bool may_exceed = how->filter == HL_FILTER_BICUBIC;
    int64_t channel = dst->channel, pixel = dst->pixel, width = dst->width;
    uint8_t *to = dst->data + y * dst->row;
    for (int64_t x = 0; x < width; x++, to += pixel) {
        int32_t n = taps[x].n;
        if (!n) {
            fill_pixel(dst, channels, how->fill, y, x);
            continue;
        }
        lanes_i32 level = sum_pixel(row + (taps[x].first - across->low) * channels,
                                    weights + taps[x].weight, n, channels);
        if (may_exceed)
            for (int c = 0; c < LANES; c++)
                level[c] = level[c] < 0 ? 0 : level[c] > 255 ? 255 : level[c];
        for (int32_t c = 0; c < channels; c++) to[c * channel] = (uint8_t)level[c];
    }
}

/* The same; the number of channels as a constant makes loops over them straight code. */
static void make_output(const float *row, const axis *across, int32_t channels,
                        const hl_resampling *how, const hl_raster *dst, int64_t y)
{
    if (channels == 3)
        sum_taps(row, across, 3, how, dst, y);
    else if (channels == 1)
        sum_taps(row, across, 1, how, dst, y);
    else
        sum_taps(row, across, channels, how, dst, y);
}

/* Columns beyond the source, of the row's own. */
static void extend_row(const axis *across, int32_t channels, float *row)
{
    int64_t n = across->n_in;
    for (int64_t x = across->low; x < across->high; x++) {
        if (x >= 0 && x < n) continue;
        int64_t from = hl_border_index(x, n, across->border);
        memcpy(row + (x - across->low) * channels, row + (from - across->low) * channels,
               (size_t)channels * sizeof *row);
    }
}

static void filter_pixels(const hl_image *src, const axis *across, const axis *down,
                          const hl_resampling *how, const hl_raster *dst, float *row)
{
    for (int64_t y = 0; y < dst->height; y++) {
        if (!down->taps[y].n) {
            fill_row(dst, src->channels, how->fill, y);
            continue;
        }
        make_row(src, across, down, y, row);
        if (across->low < 0 || across->high > src->width) extend_row(across, src->channels, row);
        make_output(row, across, src->channels, how, dst, y);
    }
}

/* ---- resize ---------------------------------------------------------------------------------- */

static hl_status check_resize(const hl_image *src, const hl_box *box, hl_border border,
                              const hl_raster *dst)
{
    if (dst->height < 1 || dst->width < 1)
        return hl_status_set(HL_ERROR_SHAPE,
                             "resize: height and width must be at least 1, got %lld and %lld",
                             (long long)dst->height, (long long)dst->width);
    /* With a fill what lies beyond the source takes neither memory nor time. */
    double reach = border == HL_BORDER_FILL ? 0x1p50 : HL_RESAMPLE_REACH;
    if (!(box->x0 < box->x1 && box->y0 < box->y1 && box->x0 >= -reach && box->y0 >= -reach &&
          box->x1 <= (double)src->width + reach && box->y1 <= (double)src->height + reach))
        return hl_status_set(
            HL_ERROR_SHAPE,
            "resize: the box must not be empty nor far from the image, got x %g to "
            "%g and y %g to %g of %lld x %lld pixels",
            box->x0, box->x1, box->y0, box->y1, (long long)src->width, (long long)src->height);
    return HL_OK;
}

/* Columns of the source that filters read must all be in the row, for what is continued: a whole
 * row then. */
static void widen_axis(axis *a)
{
    if (a->low >= 0 && a->high <= a->n_in) return;
    if (a->low > 0) a->low = 0;
    if (a->high < a->n_in) a->high = a->n_in;
}

/* Offsets of the parts of one block of memory. */
static size_t take_bytes(size_t *total, int64_t n, size_t element_bytes)
{
    size_t at = *total;
    *total += (size_t)hl_round_up(n * (int64_t)element_bytes, HL_ALIGN);
    return at;
}

static void make_axes(const hl_image *src, const hl_box *box, const hl_resampling *how,
                      const hl_raster *dst, axis *out_across, axis *out_down)
{
    *out_across = (axis){.n_out = dst->width,
                         .n_in = src->width,
                         .from = box->x0,
                         .step = (box->x1 - box->x0) / (double)dst->width,
                         .is_mirrored = box->mirror_x,
                         .filter = how->filter,
                         .border = how->border};
    *out_down = (axis){.n_out = dst->height,
                       .n_in = src->height,
                       .from = box->y0,
                       .step = (box->y1 - box->y0) / (double)dst->height,
                       .is_mirrored = box->mirror_y,
                       .filter = how->filter,
                       .border = how->border};
    axis_measure(out_across);
    axis_measure(out_down);
    widen_axis(out_across);
}

static hl_status resize_axes(const hl_image *src, axis *across, axis *down,
                             const hl_resampling *how, hl_scratch *scratch, const hl_raster *dst)
{
    size_t bytes = 0;
    int64_t n_floats = (across->high - across->low) * src->channels;
    size_t taps_across = take_bytes(&bytes, dst->width, sizeof(tap));
    size_t taps_down = take_bytes(&bytes, dst->height, sizeof(tap));
    size_t weights_across = take_bytes(&bytes, across->n_weights, sizeof(float));
    size_t weights_down = take_bytes(&bytes, down->n_weights, sizeof(float));
    size_t row = take_bytes(&bytes, n_floats + LANES, sizeof(float));
    HL_TRY(hl_scratch_reserve(scratch, HL_SCRATCH_TABLES, bytes));
    char *memory = scratch->memory[HL_SCRATCH_TABLES];
    across->taps = (tap *)(memory + taps_across);
    down->taps = (tap *)(memory + taps_down);
    across->weights = (float *)(memory + weights_across);
    down->weights = (float *)(memory + weights_down);
    axis_fill(across);
    axis_fill(down);
    if (across->is_single && down->is_single) {
        copy_pixels(src, across, down, how, dst);
        return HL_OK;
    }
    float *floats = (float *)(memory + row);
    memset(floats + n_floats, 0, LANES * sizeof *floats);
    filter_pixels(src, across, down, how, dst, floats);
    return HL_OK;
}

hl_status hl_image_resize(const hl_image *src, const hl_box *box, const hl_resampling *how,
                          hl_scratch *scratch, const hl_raster *dst)
{
    axis across, down;
    HL_TRY(check_resize(src, box, how->border, dst));
    make_axes(src, box, how, dst, &across, &down);
    return resize_axes(src, &across, &down, how, scratch, dst);
}

/* ---- warp ------------------------------------------------------------------------------------ */

typedef struct place {
    double x, y;
} place;

/* Of an output pixel's centre; false: where there is no source. */
static inline bool find_place(const double m[9], int64_t column, int64_t row, place *out)
{
    double x = (double)column + 0.5, y = (double)row + 0.5;
    double w = m[6] * x + m[7] * y + m[8];
    out->x = m[0] * x + m[1] * y + m[2];
    out->y = m[3] * x + m[4] * y + m[5];
    if (w != 1) { /* a perspective */
        out->x /= w;
        out->y /= w;
    }
    return w > 0;
}

/* Whether this is a place of the source, or of one that is continued. */
static inline bool is_usable(const place *at, int64_t width, int64_t height, hl_border border)
{
    if (border == HL_BORDER_FILL)
        return at->x >= 0 && at->x < (double)width && at->y >= 0 && at->y < (double)height;
    return fabs(at->x) < HL_RESAMPLE_REACH && fabs(at->y) < HL_RESAMPLE_REACH;
}

/* The library's floor is a call on the oldest processors. */
static inline int64_t floor_place(double x)
{
    int64_t i = (int64_t)x;
    return i - (x < (double)i);
}

/* The index beside i, of the continued image; with a fill the edge's pixel, as in Pillow. */
static int64_t map_tap(int64_t i, int64_t n, hl_border border)
{
    return hl_border_index(i, n, border == HL_BORDER_FILL ? HL_BORDER_EDGE : border);
}

static inline __attribute__((always_inline)) void blend_four(const hl_image *src, int32_t channels,
                                                             const place *at, hl_border border,
                                                             uint8_t *to, int64_t channel)
{
    double x = at->x - 0.5, y = at->y - 0.5;
    int64_t x0 = floor_place(x), y0 = floor_place(y), x1 = x0 + 1, y1 = y0 + 1;
    float dx = (float)(x - (double)x0), dy = (float)(y - (double)y0);
    if (x0 < 0 || x1 >= src->width)
        x0 = map_tap(x0, src->width, border), x1 = map_tap(x1, src->width, border);
    if (y0 < 0 || y1 >= src->height)
        y0 = map_tap(y0, src->height, border), y1 = map_tap(y1, src->height, border);
    const uint8_t *upper = src->pixels + y0 * src->width * channels;
    const uint8_t *lower = src->pixels + y1 * src->width * channels;
    const uint8_t *a = upper + x0 * channels, *b = upper + x1 * channels;
    const uint8_t *c = lower + x0 * channels, *d = lower + x1 * channels;
    float wa = (1 - dx) * (1 - dy), wb = dx * (1 - dy), wc = (1 - dx) * dy, wd = dx * dy;
    for (int32_t k = 0; k < channels; k++) {
        float sum = wa * (float)a[k] + wb * (float)b[k] + wc * (float)c[k] + wd * (float)d[k];
        to[k * channel] = (uint8_t)(int32_t)(sum + 0.5f);
    }
}

static void take_one(const hl_image *src, const place *at, hl_border border, uint8_t *to,
                     int64_t channel)
{
    int64_t x = hl_border_index(floor_place(at->x), src->width, border);
    int64_t y = hl_border_index(floor_place(at->y), src->height, border);
    const uint8_t *from = src->pixels + (y * src->width + x) * src->channels;
    for (int32_t k = 0; k < src->channels; k++) to[k * channel] = from[k];
}

static inline __attribute__((always_inline)) void warp_pixels(const hl_image *src, int32_t channels,
                                                              const double matrix[9],
                                                              const hl_resampling *how,
                                                              const hl_raster *dst)
{
    for (int64_t y = 0; y < dst->height; y++) {
        uint8_t *to = dst->data + y * dst->row;
        for (int64_t x = 0; x < dst->width; x++, to += dst->pixel) {
            place at;
            if (!find_place(matrix, x, y, &at) ||
                !is_usable(&at, src->width, src->height, how->border))
                for (int32_t c = 0; c < channels; c++) to[c * dst->channel] = how->fill[c];
            else if (how->filter == HL_FILTER_NEAREST)
                take_one(src, &at, how->border, to, dst->channel);
            else
                blend_four(src, channels, &at, how->border, to, dst->channel);
        }
    }
}

void hl_image_warp(const hl_image *src, const double matrix[9], const hl_resampling *how,
                   const hl_raster *dst)
{
    if (src->channels == 3) /* a constant makes loops over channels straight code */
        warp_pixels(src, 3, matrix, how, dst);
    else
        warp_pixels(src, src->channels, matrix, how, dst);
}

void hl_labels_warp(const hl_labels *src, const double matrix[9], hl_border border,
                    const void *fill, const hl_labels *dst)
{
    size_t bytes = src->element_bytes;
    char *to = dst->data;
    for (int64_t y = 0; y < dst->height; y++) {
        for (int64_t x = 0; x < dst->width; x++, to += bytes) {
            place at;
            const char *from = fill;
            if (find_place(matrix, x, y, &at) && is_usable(&at, src->width, src->height, border)) {
                int64_t i = hl_border_index((int64_t)floor(at.y), src->height, border);
                int64_t j = hl_border_index((int64_t)floor(at.x), src->width, border);
                from = (const char *)src->data + (size_t)(i * src->width + j) * bytes;
            }
            if (bytes == 1)
                *to = *from;
            else
                memcpy(to, from, bytes);
        }
    }
}
