/* The taps of a convolution: which element of the source each of them reads for an element of the
 * result, as pointers to runs of channels.
 *
 * A result is y of x (CONV) or x of y (CONV_TRANSPOSE); both are sums over taps, and pixels are
 * spatial elements of all images. Where a transposed convolution has strides, a result is reached
 * by few taps, the same ones for all results that leave one remainder: pixels are sorted by these
 * classes, taps as well, and a class reads its own taps alone. A convolution is one class.
 *
 * Taps that read padding point at zeros. */
#ifndef HL_KERNELS_CPU_TAPS_H
#define HL_KERNELS_CPU_TAPS_H

#include "ir/window.h"
#include "kernels/cpu/kernel.h"

/* Classes beyond that would be work of their own: their pixels read zeros for what they lack. */
enum { HL_TAPS_CLASSES = 64 };

/* The taps of one class along one dim, first, first + step, ..., and the pixels: the same. Taps
 * stand in the order of what they read; those of a transposed convolution begin with the last. */
typedef struct hl_taps_line {
    int64_t first, step, n;
    int64_t pixel_first, pixel_step, n_pixels;
} hl_taps_line;

typedef struct hl_taps_class {
    hl_taps_line line[HL_WINDOW_DIMS];
    int64_t n_taps, first_tap; /* among the taps of all classes */
    int64_t n_rows, first_row; /* pixels of all images, among those of all classes */
} hl_taps_class;

typedef struct hl_taps {
    bool transposed;
    int64_t N, channels; /* of the source */
    int64_t source[HL_WINDOW_DIMS], result[HL_WINDOW_DIMS];
    hl_window window;
    int64_t n_taps, n_rows;
    int n_classes;
    hl_taps_class classes[HL_TAPS_CLASSES];
} hl_taps;

static inline int64_t hl_taps_gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* The taps t of the kernel with t * dilation = remainder modulo stride. */
static inline void hl_taps_choose(const hl_window *w, int d, int64_t remainder, hl_taps_line *line)
{
    int64_t stride = w->stride[d];
    line->step = stride / hl_taps_gcd(stride, w->dilation[d]);
    line->n = 0;
    for (int64_t t = 0; t < line->step && t < w->kernel[d]; t++) {
        if (t * w->dilation[d] % stride != remainder) continue;
        line->n = hl_cpu_ceil_div(w->kernel[d] - t, line->step);
        line->first = t + (line->n - 1) * line->step;
    }
    line->step = -line->step;
}

/* Class `remainder` along one dim; all: the only class. */
static inline hl_taps_line hl_taps_make_line(const hl_taps *taps, int d, int64_t remainder,
                                             bool all)
{
    const hl_window *w = &taps->window;
    hl_taps_line line = {0, 1, w->kernel[d], 0, 1, taps->result[d]};
    if (taps->transposed) line.first = w->kernel[d] - 1, line.step = -1;
    if (all) return line;
    int64_t stride = w->stride[d];
    hl_taps_choose(w, d, remainder, &line);
    line.pixel_first = (remainder + stride - w->before[d] % stride) % stride;
    line.pixel_step = stride;
    line.n_pixels = hl_cpu_ceil_div(hl_cpu_max(taps->result[d] - line.pixel_first, 0), stride);
    return line;
}

static inline void hl_taps_add_class(hl_taps *taps, const int64_t *remainder, bool all)
{
    hl_taps_class *class = &taps->classes[taps->n_classes++];
    class->n_taps = 1, class->n_rows = taps->N;
    for (int d = 0; d < HL_WINDOW_DIMS; d++) {
        class->line[d] = hl_taps_make_line(taps, d, remainder[d], all);
        class->n_taps *= class->line[d].n;
        class->n_rows *= class->line[d].n_pixels;
    }
    class->first_tap = taps->n_taps, class->first_row = taps->n_rows;
    taps->n_taps += class->n_taps, taps->n_rows += class->n_rows;
}

static inline hl_taps hl_taps_make(const hl_conv *conv, bool transposed)
{
    hl_taps taps = {.transposed = transposed,
                    .N = conv->N,
                    .channels = transposed ? conv->O : conv->C,
                    .window = conv->window};
    const hl_window *w = &taps.window;
    int64_t n_classes = 1, at[HL_WINDOW_DIMS] = {0};
    for (int d = 0; d < HL_WINDOW_DIMS; d++) {
        taps.source[d] = transposed ? w->out[d] : w->in[d];
        taps.result[d] = transposed ? w->in[d] : w->out[d];
        if (n_classes <= HL_TAPS_CLASSES) n_classes *= w->stride[d];
    }
    if (!transposed || n_classes > HL_TAPS_CLASSES) {
        hl_taps_add_class(&taps, at, true);
        return taps;
    }
    for (at[0] = 0; at[0] < w->stride[0]; at[0]++)
        for (at[1] = 0; at[1] < w->stride[1]; at[1]++)
            for (at[2] = 0; at[2] < w->stride[2]; at[2]++) hl_taps_add_class(&taps, at, false);
    return taps;
}

/* The class of a row, which is a pixel in the order of the classes. */
static inline const hl_taps_class *hl_taps_find(const hl_taps *taps, int64_t row)
{
    int c = taps->n_classes - 1;
    while (taps->classes[c].first_row > row) c--;
    return &taps->classes[c];
}

/* Where in the kernel tap i of a class stands, among all of the kernel's elements. */
static inline int64_t hl_taps_place(const hl_taps *taps, const hl_taps_class *class, int64_t i)
{
    int64_t place = 0, scale = 1;
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        const hl_taps_line *line = &class->line[d];
        place += (line->first + i % line->n * line->step) * scale;
        scale *= taps->window.kernel[d];
        i /= line->n;
    }
    return place;
}

/* The image and the pixel of a row of a class. */
static inline int64_t hl_taps_locate(const hl_taps_class *class, int64_t row, int64_t *out_pixel)
{
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        const hl_taps_line *line = &class->line[d];
        out_pixel[d] = line->pixel_first + row % line->n_pixels * line->pixel_step;
        row /= line->n_pixels;
    }
    return row;
}

/* What tap t reads along dim d for a pixel; -1: padding. */
static inline int64_t hl_taps_source(const hl_taps *taps, int d, int64_t pixel, int64_t t)
{
    const hl_window *w = &taps->window;
    int64_t at = hl_window_at(w, d, pixel, t);
    if (taps->transposed) {
        at = pixel + w->before[d] - t * w->dilation[d];
        if (w->stride[d] > 1) { /* divisions are slow */
            if (at < 0 || at % w->stride[d] != 0) return -1;
            at /= w->stride[d];
        }
    }
    return at >= 0 && at < taps->source[d] ? at : -1;
}

/* Elements between what neighbours of a class read, along the last of the window's dims; 0: they
 * do not read evenly. */
static inline int64_t hl_taps_slope(const hl_taps *taps, const hl_taps_class *class)
{
    const int last = taps->window.n - 1;
    int64_t stride = taps->window.stride[last];
    if (!taps->transposed) return stride;
    return class->line[last].pixel_step == stride ? 1 : 0;
}

/* What tap t of the last dim reads for n neighbours, of which the first is `pixel`: to[i] for the
 * i-th. `source` is the first pixel of the line that is read, NULL: padding; `step` bytes a pixel.
 */
static inline void hl_taps_point_line(const hl_taps *taps, int64_t slope, int64_t pixel, int64_t t,
                                      int64_t n, const unsigned char *source, int64_t step,
                                      const void *zeros, const void **to)
{
    const int last = taps->window.n - 1;
    const hl_window *w = &taps->window;
    int64_t at, begin, end;
    if (!taps->transposed)
        at = hl_window_at(w, last, pixel, t);
    else
        at = pixel + w->before[last] - t * w->dilation[last]; /* a multiple of the stride */
    if (taps->transposed && w->stride[last] > 1) at /= w->stride[last];
    begin = at >= 0 ? 0 : slope == 1 ? -at : hl_cpu_ceil_div(-at, slope);
    end = taps->source[last] - at;
    end = end <= 0 ? 0 : slope == 1 ? end : hl_cpu_ceil_div(end, slope);
    begin = source ? hl_cpu_min(begin, n) : n;
    end = hl_cpu_max(hl_cpu_min(end, n), begin);
    for (int64_t i = 0; i < begin; i++) to[i] = zeros;
    for (int64_t i = begin; i < end; i++) to[i] = source + (at + i * slope) * step;
    for (int64_t i = end; i < n; i++) to[i] = zeros;
}

/* The first pixel of the line that tap line `i` of a class reads, for a pixel of an image; NULL:
 * padding. Lines of taps and of pixels are those of the last of the window's dims. */
static inline const unsigned char *hl_taps_find_line(const hl_taps *taps,
                                                     const hl_taps_class *class, int64_t i,
                                                     int64_t image, const int64_t *pixel,
                                                     const void *source, int64_t step)
{
    const int last = taps->window.n - 1;
    int64_t place = image, t[HL_WINDOW_DIMS] = {0};
    for (int d = last - 1; d >= 0; d--) {
        const hl_taps_line *line = &class->line[d];
        t[d] = line->first + i % line->n * line->step;
        i /= line->n;
    }
    for (int d = 0; d < last; d++) {
        int64_t at = hl_taps_source(taps, d, pixel[d], t[d]);
        if (at < 0) return NULL;
        place = place * taps->source[d] + at;
    }
    return (const unsigned char *)source + place * taps->source[last] * step;
}

/* Pointers to the source's channels, of `bytes` bytes each, under each tap of rows [row, row + n)
 * of a class, for taps [tap0, tap1): tap t of row i is pointers[(t - tap0) * ld + i]. `zeros`: as
 * many as there are channels. Rows go by in lines. */
static inline void hl_taps_point(const hl_taps *taps, const hl_taps_class *class, int64_t row,
                                 int64_t n, int64_t tap0, int64_t tap1, const void *source,
                                 int64_t bytes, const void *zeros, const void **pointers,
                                 int64_t ld)
{
    const int last = taps->window.n - 1;
    const hl_taps_line *line = &class->line[last];
    const int64_t slope = hl_taps_slope(taps, class), step = taps->channels * bytes;
    int64_t pixel[HL_WINDOW_DIMS], length;
    for (int64_t i = 0; i < n && tap0 < tap1; i += length) {
        int64_t image = hl_taps_locate(class, row + i, pixel);
        int64_t first = (pixel[last] - line->pixel_first) / line->pixel_step;
        length = slope ? hl_cpu_min(n - i, line->n_pixels - first) : 1;
        const void **to = pointers + i;
        const unsigned char *from = NULL;
        int64_t tap_line = tap0 / line->n, c = tap0 % line->n;
        for (int64_t tap = tap0; tap < tap1; tap++, to += ld) {
            if (tap == tap0 || c == 0)
                from = hl_taps_find_line(taps, class, tap_line, image, pixel, source, step);
            int64_t t = line->first + c * line->step;
            if (slope) {
                hl_taps_point_line(taps, slope, pixel[last], t, length, from, step, zeros, to);
            } else {
                int64_t at = from ? hl_taps_source(taps, last, pixel[last], t) : -1;
                *to = at >= 0 ? from + at * step : zeros;
            }
            if (++c == line->n) c = 0, tap_line++;
        }
    }
}

/* Does the only tap read, for each pixel, the source's pixel in the same place? */
static inline bool hl_taps_are_pixels(const hl_taps *taps)
{
    const hl_window *w = &taps->window;
    bool are_pixels = taps->n_taps == 1;
    for (int d = 0; d < HL_WINDOW_DIMS; d++)
        are_pixels &= w->in[d] == w->out[d] && w->stride[d] == 1 && w->before[d] == 0;
    return are_pixels;
}

/* Do the taps of a line of the kernel read neighbours, so that they are one run? A line is what
 * taps read along the last of the window's dims. */
static inline bool hl_taps_are_runs(const hl_taps *taps)
{
    return !taps->transposed && taps->window.dilation[taps->window.n - 1] == 1;
}

/* All taps of the kernel, in its order. */
static inline hl_taps_class hl_taps_all(const hl_taps *taps)
{
    hl_taps_class all = {.n_taps = 1};
    for (int d = 0; d < HL_WINDOW_DIMS; d++) {
        all.line[d] = (hl_taps_line){0, 1, taps->window.kernel[d], 0, 1, taps->result[d]};
        all.n_taps *= all.line[d].n;
    }
    return all;
}

/* How pixels of 2-byte channels are copied with a zero channel behind those of each: a vector of so
 * many at once, C and D channels each. */
typedef struct hl_taps_spread {
    int64_t C, D, each;
    uint16_t index[32];
    uint32_t kept;
} hl_taps_spread;

static inline hl_taps_spread hl_taps_spread_make(int64_t from_bytes, int64_t to_bytes)
{
    hl_taps_spread s = {.C = from_bytes / 2, .D = to_bytes / 2};
    s.each = 32 / s.D;
    for (int64_t i = 0; i < s.each; i++)
        for (int64_t c = 0; c < s.C; c++) {
            s.index[i * s.D + c] = (uint16_t)(i * s.C + c);
            s.kept |= (uint32_t)1 << (i * s.D + c);
        }
    return s;
}

static inline void hl_taps_spread_pixels(const hl_taps_spread *s, const unsigned char *from,
                                         int64_t n, unsigned char *to)
{
#if HL_ISA_AVX512
    const __m512i index = _mm512_loadu_si512(s->index);
    const int64_t from_bytes = s->each * s->C * 2, to_bytes = s->each * s->D * 2;
    __mmask32 read = (__mmask32)(((uint64_t)1 << s->each * s->C) - 1);
    __mmask32 written = (__mmask32)(((uint64_t)1 << s->each * s->D) - 1);
    for (; n > 0; n -= s->each, from += from_bytes, to += to_bytes) {
        if (n < s->each) {
            read = (__mmask32)(((uint64_t)1 << n * s->C) - 1);
            written = (__mmask32)(((uint64_t)1 << n * s->D) - 1);
        }
        __m512i pixels = _mm512_maskz_loadu_epi16(read, from);
        pixels = _mm512_maskz_permutexvar_epi16(s->kept, index, pixels);
        _mm512_mask_storeu_epi16(to, written, pixels);
    }
#else
    for (int64_t i = 0; i < n; i++, from += s->C * 2, to += s->D * 2) {
        memcpy(to, from, (size_t)(s->C * 2));
        memset(to + s->C * 2, 0, (size_t)((s->D - s->C) * 2));
    }
#endif
}

/* Pixels of the source, padding included, that n neighbours of a line of the result read. */
static inline int64_t hl_taps_line_pixels(const hl_taps *taps, int64_t n)
{
    const int last = taps->window.n - 1;
    n = hl_cpu_min(n, taps->result[last]);
    return n > 0 ? (n - 1) * taps->window.stride[last] + taps->window.kernel[last] : 0;
}

/* Lines of the source that n rows read at most. */
static inline int64_t hl_taps_count_lines(const hl_taps *taps, int64_t n)
{
    const int last = taps->window.n - 1;
    int64_t width = hl_cpu_max(taps->result[last], 1);
    int64_t n_results = hl_cpu_min((n + width - 2) / width + 1, n);
    return n_results * (taps->n_taps / taps->window.kernel[last]);
}

/* Pointers to what each line of the kernel reads for rows [row, row + n): for line t of row i,
 * pointers[t * ld + i], in copies of parts of the source's lines that begin line_bytes apart in
 * `lines`. Pixels have source_bytes, and as many or more in the copy. What the results above have
 * copied is not copied again. For taps that are runs. */
static inline void hl_taps_point_lines(const hl_taps *taps, int64_t row, int64_t n,
                                       const void *source, int64_t source_bytes, int64_t bytes,
                                       unsigned char *lines, int64_t line_bytes,
                                       const void **pointers, int64_t ld)
{
    hl_taps_spread spread = {0};
    if (bytes != source_bytes) spread = hl_taps_spread_make(source_bytes, bytes);
    const int last = taps->window.n - 1;
    const int64_t n_lines = taps->n_taps / taps->window.kernel[last];
    const int64_t step = taps->window.stride[last] * bytes;
    /* Kernel line t reads what line t + `shift` of the same plane reads for the results above. */
    const int above = last - 1;
    const int64_t plane = above < 0 ? 1 : taps->window.kernel[above];
    int64_t shift = plane;
    if (above >= 0 && taps->window.stride[above] % taps->window.dilation[above] == 0)
        shift = taps->window.stride[above] / taps->window.dilation[above];
    int64_t pixel[HL_WINDOW_DIMS], length, upper = 0, upper_start = 0, start;
    for (int64_t i = 0; i < n; upper = i, upper_start = start, i += length) {
        int64_t image = hl_taps_locate(&taps->classes[0], row + i, pixel);
        start = pixel[last], length = hl_cpu_min(n - i, taps->result[last] - start);
        int64_t n_pixels = hl_taps_line_pixels(taps, length);
        int64_t begin = hl_window_at(&taps->window, last, start, 0);
        int64_t first = hl_cpu_max(begin, 0), head = hl_cpu_min(hl_cpu_max(-begin, 0), n_pixels);
        int64_t body = hl_cpu_max(hl_cpu_min(taps->source[last] - first, n_pixels - head), 0);
        /* Results above that do not begin their line have copied less of it. */
        bool is_below = i > 0 && above >= 0 && pixel[above] > 0 && upper_start <= start;
        for (int64_t t = 0; t < n_lines; t++) {
            const void **to = pointers + t * ld + i;
            if (is_below && t % plane + shift < plane) {
                const unsigned char *same = pointers[(t + shift) * ld + upper];
                for (int64_t j = 0; j < length; j++) to[j] = same + j * step;
                continue;
            }
            const unsigned char *from =
                hl_taps_find_line(taps, &taps->classes[0], t, image, pixel, source, source_bytes);
            int64_t there = from ? body : 0;
            memset(lines, 0, (size_t)(head * bytes));
            if (there && bytes == source_bytes)
                memcpy(lines + head * bytes, from + first * bytes, (size_t)(there * bytes));
            else if (there)
                hl_taps_spread_pixels(&spread, from + first * source_bytes, there,
                                      lines + head * bytes);
            memset(lines + (head + there) * bytes, 0, (size_t)((n_pixels - head - there) * bytes));
            for (int64_t j = 0; j < length; j++) to[j] = lines + j * step;
            lines += line_bytes;
        }
    }
}

/* Runs are short: copying in vectors, the last over what the one before it wrote, takes less than a
 * call. */
static inline void hl_taps_copy_run(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    enum { VECTOR = 16 };
    if (bytes < VECTOR) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t at = 0; at + VECTOR <= bytes; at += VECTOR) memcpy(to + at, from + at, VECTOR);
    memcpy(to + bytes - VECTOR, from + bytes - VECTOR, VECTOR);
}

/* What the taps of one line read for n neighbours, of which the first is `pixel`, row_bytes apart.
 * `source` is the first pixel of the line that is read, NULL: padding. */
static inline void hl_taps_copy_line(const hl_taps *taps, int64_t pixel, int64_t n,
                                     const unsigned char *source, int64_t pixel_bytes,
                                     unsigned char *to, int64_t row_bytes)
{
    const hl_window *w = &taps->window;
    const int last = w->n - 1;
    const int64_t kernel = w->kernel[last], width = kernel * pixel_bytes;
    int64_t begin = hl_window_at(w, last, pixel, 0);
    for (int64_t i = 0; i < n; i++, begin += w->stride[last], to += row_bytes) {
        if (source && begin >= 0 && begin + kernel <= w->in[last]) {
            hl_taps_copy_run(to, source + begin * pixel_bytes, width);
            continue;
        }
        int64_t head = hl_cpu_min(hl_cpu_max(-begin, 0), kernel);
        int64_t end = hl_cpu_min(kernel, w->in[last] - begin);
        memset(to, 0, (size_t)width);
        if (source && head < end)
            memcpy(to + head * pixel_bytes, source + (begin + head) * pixel_bytes,
                   (size_t)((end - head) * pixel_bytes));
    }
}

/* What the taps of lines [line0, line1) of the kernel read for rows [row, row + n), side by side
 * and zeros behind them, row_bytes in all. For taps that are runs. */
static inline void hl_taps_copy_lines(const hl_taps *taps, int64_t row, int64_t n, int64_t line0,
                                      int64_t line1, const void *source, int64_t bytes, void *rows,
                                      int64_t row_bytes)
{
    const hl_taps_class *class = &taps->classes[0];
    const int last = taps->window.n - 1;
    const int64_t pixel_bytes = taps->channels * bytes;
    const int64_t width = taps->window.kernel[last] * pixel_bytes;
    const int64_t used = (line1 - line0) * width;
    int64_t pixel[HL_WINDOW_DIMS], length;
    for (int64_t i = 0; i < n; i += length) {
        unsigned char *to = (unsigned char *)rows + i * row_bytes;
        int64_t image = hl_taps_locate(class, row + i, pixel);
        length = hl_cpu_min(n - i, class->line[last].n_pixels - pixel[last]);
        for (int64_t line = line0; line < line1; line++, to += width) {
            const unsigned char *from =
                hl_taps_find_line(taps, class, line, image, pixel, source, pixel_bytes);
            hl_taps_copy_line(taps, pixel[last], length, from, pixel_bytes, to, row_bytes);
        }
    }
    for (int64_t i = 0; i < n && used < row_bytes; i++)
        memset((unsigned char *)rows + i * row_bytes + used, 0, (size_t)(row_bytes - used));
}

/* The place in the result, among the pixels of all images, of a row of a class. */
static inline int64_t hl_taps_result(const hl_taps *taps, const hl_taps_class *class, int64_t row)
{
    int64_t pixel[HL_WINDOW_DIMS], image = hl_taps_locate(class, row, pixel);
    return ((image * taps->result[0] + pixel[0]) * taps->result[1] + pixel[1]) * taps->result[2] +
           pixel[2];
}

#endif
