/* Cases of pooling, resampling and windows side by side, for any device; and the geometries that
 * they draw, for convolutions too.
 *
 * Operands are small whole numbers, so that every sum is exact, in 16 bits too, and results are
 * those of the reference to the bit. Geometries are drawn: odd sizes, tails of vectors, strides and
 * dilations with and without a common divisor, paddings wider than the kernel, no images. */
#ifndef TESTS_C_WINDOW_CASES_H
#define TESTS_C_WINDOW_CASES_H

#include "ir/window.h"
#include "tests/c/case.h"

static void case_check(op_case *c);

/* Of what is pooled, folded and resampled. */
static hl_dtype floats = HL_DTYPE_F32;

/* How many geometries of a kind, and the most multiply-adds in one. */
#ifndef WINDOW_CASES
#define WINDOW_CASES 300
#endif
enum {
    DIMS = HL_WINDOW_DIMS,
    N_RANDOM = CHECK_UNDER_SANITIZER ? WINDOW_CASES / 5 : WINDOW_CASES,
    MACS_MAX = 200000
};

typedef struct shape {
    int n; /* spatial dims */
    int64_t N, C, O, groups;
    int64_t in[DIMS], kernel[DIMS], stride[DIMS], dilation[DIMS], before[DIMS], after[DIMS];
    int64_t out[DIMS];
} shape;

/* ---- geometries ------------------------------------------------------------------------------ */

/* Counts the windows; false where one dim has none. */
static bool count_windows(shape *s)
{
    for (int d = 0; d < s->n; d++) {
        int64_t span = s->dilation[d] * (s->kernel[d] - 1) + 1;
        int64_t padded = s->in[d] + s->before[d] + s->after[d];
        if (span > padded) return false;
        s->out[d] = (padded - span) / s->stride[d] + 1;
    }
    return true;
}

static int64_t span_of(const shape *s, const int64_t *dims)
{
    int64_t n = 1;
    for (int d = 0; d < s->n; d++) n *= dims[d];
    return n;
}

static void draw_channels(dice *d, shape *s)
{
    static const int64_t counts[] = {1, 2, 3, 5, 8, 13, 15, 16, 17, 19, 31, 32, 33, 47, 64, 65};
    const int n_counts = sizeof counts / sizeof counts[0];
    s->groups = 1;
    s->C = counts[roll(d, n_counts)], s->O = counts[roll(d, n_counts)];
    switch (roll(d, 6)) {
    case 0: s->O = s->groups = s->C; break;               /* each channel by itself */
    case 1: s->groups = s->C, s->O = 2 * s->C; break;     /* twice */
    case 2: s->groups = 2, s->C *= 2, s->O *= 2; break;   /* groups */
    case 3: s->groups = 3, s->C = 3, s->O = 3 * 5; break; /* of one channel to five */
    default: break;
    }
}

static shape draw_shape(dice *d)
{
    for (;;) {
        shape s = {.n = 1 + roll(d, 3), .N = roll(d, 12) ? 1 + roll(d, 3) : 0};
        draw_channels(d, &s);
        for (int i = 0; i < s.n; i++) {
            s.in[i] = 1 + roll(d, s.n == 1 ? 40 : s.n == 2 ? 17 : 7);
            s.kernel[i] = 1 + roll(d, roll(d, 4) ? 4 : 9);
            s.stride[i] = roll(d, 2) ? 1 : 1 + roll(d, 6);
            s.dilation[i] = roll(d, 3) ? 1 : 1 + roll(d, 4);
            s.before[i] = roll(d, 2) ? 0 : roll(d, 6);
            s.after[i] = roll(d, 2) ? s.before[i] : roll(d, 6);
        }
        if (!count_windows(&s)) continue;
        int64_t macs = s.N * span_of(&s, s.out) * span_of(&s, s.kernel) * s.O * (s.C / s.groups);
        if (macs <= MACS_MAX) return s;
    }
}

static const char *print_shape(const shape *s)
{
    static char text[200];
    int at = snprintf(text, sizeof text, "N %d C %d O %d groups %d;", (int)s->N, (int)s->C,
                      (int)s->O, (int)s->groups);
    for (int d = 0; d < s->n; d++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %d kernel %d/%d*%d pad %d,%d;",
                       (int)s->in[d], (int)s->kernel[d], (int)s->stride[d], (int)s->dilation[d],
                       (int)s->before[d], (int)s->after[d]);
    return text;
}

/* (N,dims,channels) */
static hl_type channels_last(const shape *s, const int64_t *dims, int64_t channels, hl_dtype dtype)
{
    hl_type type = {dtype, {.rank = s->n + 2, .dim = {s->N}}};
    for (int d = 0; d < s->n; d++) type.shape.dim[1 + d] = dims[d];
    type.shape.dim[1 + s->n] = channels;
    return type;
}

static void fill_whole(op_case *c, int i, int most)
{
    case_fill(c, i, -most, most + 1);
    for (int64_t e = 0; e < hl_shape_numel(&c->in[i].shape); e++)
        c->data[i][e] = floor(c->data[i][e]);
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Whether every window has an element of the input, as the op's check wants it. */
static bool has_elements(const shape *s)
{
    for (int d = 0; d < s->n; d++)
        for (int64_t o = 0; o < s->out[d]; o++) {
            bool has = false;
            for (int64_t k = 0; k < s->kernel[d]; k++) {
                int64_t at = o * s->stride[d] - s->before[d] + k * s->dilation[d];
                has |= at >= 0 && at < s->in[d];
            }
            if (!has) return false;
        }
    return true;
}

/* has_special: also numbers that are none, infinities and zeros of both signs */
static void check_pool(hl_op op, const shape *s, bool has_special)
{
    static const double special[] = {NAN, -INFINITY, INFINITY, 0.0, -0.0, -NAN};
    bool is_grad = op == HL_OP_MAX_POOL_GRAD;
    op_case c = {.op = op, .n_in = 1 + is_grad, .n_out = 1};
    c.attrs.pool = (hl_attrs_pool){.kernel = hl_ints_make(s->kernel, s->n),
                                   .stride = hl_ints_make(s->stride, s->n),
                                   .dilation = hl_ints_make(s->dilation, s->n),
                                   .before = hl_ints_make(s->before, s->n),
                                   .after = hl_ints_make(s->after, s->n),
                                   .channels_last = true};
    hl_type x = channels_last(s, s->in, s->C, floats);
    hl_type y = channels_last(s, s->out, s->C, floats);
    c.in[0] = y, c.in[is_grad] = x, c.out[0] = is_grad ? x : y;
    if (op == HL_OP_MAX_POOL_INDEX) c.out[0].dtype = HL_DTYPE_I64;
    for (int i = 0; i < c.n_in; i++) fill_whole(&c, i, 2); /* many are equal */
    for (int64_t e = 0; has_special && e < hl_shape_numel(&x.shape); e++)
        if (dice_draw() > 0.4) c.data[is_grad][e] = special[e % 6];
    check_case("%s of %s, special %d, %s", hl_op_get(op)->name, hl_dtype_name(floats), has_special,
               print_shape(s));
    case_check(&c);
}

static void test_pool(void)
{
    static const hl_op ops[] = {HL_OP_MAX_POOL, HL_OP_MAX_POOL_INDEX, HL_OP_MAX_POOL_GRAD};
    dice d = {.key = hl_rng_key_make(3, "pooling")};
    for (int i = 0; i < N_RANDOM;) {
        shape s = draw_shape(&d);
        if (!has_elements(&s)) continue;
        for (int k = 0; k < 3; k++) check_pool(ops[k], &s, i % 2);
        i++;
    }
    shape whole = {2, 2, 130, 1, 1, {7, 5}, {7, 5}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, {0}};
    CHECK(count_windows(&whole));
    for (int k = 0; k < 3; k++) check_pool(ops[k], &whole, 1);
}

/* ---- windows side by side, and back ---------------------------------------------------------- */

static void check_unfold(const shape *s, hl_dtype dtype)
{
    int64_t dims[DIMS + 1];
    for (int d = 0; d < s->n; d++) dims[d] = s->out[d];
    hl_type x = channels_last(s, s->in, s->C, dtype);
    hl_type windows = channels_last(s, dims, span_of(s, s->kernel), dtype);
    windows.shape.dim[windows.shape.rank++] = s->C;
    op_case c = {.n_in = 1, .n_out = 1};
    c.attrs.unfold = (hl_attrs_unfold){.kernel = hl_ints_make(s->kernel, s->n),
                                       .stride = hl_ints_make(s->stride, s->n),
                                       .dilation = hl_ints_make(s->dilation, s->n),
                                       .before = hl_ints_make(s->before, s->n),
                                       .after = hl_ints_make(s->after, s->n)};
    op_case back = c;
    c.op = HL_OP_UNFOLD, c.in[0] = x, c.out[0] = windows;
    case_fill(&c, 0, dtype == HL_DTYPE_U8 || dtype == HL_DTYPE_BOOL ? 0 : -99,
              dtype == HL_DTYPE_BOOL ? 2 : 99);
    check_case("unfold of %s, %s", hl_dtype_name(dtype), print_shape(s));
    case_check(&c);
    if (dtype != floats) return;
    back.op = HL_OP_FOLD, back.in[0] = windows, back.out[0] = x;
    back.attrs.unfold.size = hl_ints_make(s->in, s->n);
    fill_whole(&back, 0, 2);
    check_case("fold of %s, %s", hl_dtype_name(dtype), print_shape(s));
    case_check(&back);
}

static void test_unfold(void)
{
    const hl_dtype dtypes[] = {floats,      HL_DTYPE_BF16, HL_DTYPE_I64,
                               HL_DTYPE_U8, HL_DTYPE_BOOL, floats};
    dice d = {.key = hl_rng_key_make(5, "unfold")};
    for (int i = 0; i < N_RANDOM; i++) {
        shape s = draw_shape(&d);
        if (s.N * span_of(&s, s.out) * span_of(&s, s.kernel) * s.C > MACS_MAX) continue;
        check_unfold(&s, dtypes[i % 6]);
    }
}

/* ---- resampling ------------------------------------------------------------------------------ */

/* x (O,n,I) to (O,m,I) by `taps` weights each; starts may lead out of x, wholly as well. */
static void check_resample(int64_t O, int64_t n, int64_t I, int64_t m, int64_t taps)
{
    op_case c = {.op = HL_OP_RESAMPLE, .n_in = 5, .n_out = 1, .attrs.axis.axis = 1};
    int64_t dim[] = {O, n, I}, result[] = {O, m, I};
    c.in[0] = (hl_type){floats, hl_shape_make(3, dim)};
    c.in[1] = (hl_type){HL_DTYPE_I64, hl_shape_1d(m)};
    c.in[2] = (hl_type){HL_DTYPE_F32, hl_shape_1d(m * taps)};
    c.in[3] = (hl_type){HL_DTYPE_I64, hl_shape_1d(n)};
    c.in[4] = (hl_type){HL_DTYPE_F32, hl_shape_1d(n)};
    c.out[0] = (hl_type){floats, hl_shape_make(3, result)};
    for (int i = 0; i < 5; i++) fill_whole(&c, i, 5);
    case_fill(&c, 1, (double)(-taps - 1), (double)(n + 2));
    check_case("resample %s (%d,%d,%d) to %d by %d", hl_dtype_name(floats), (int)O, (int)n, (int)I,
               (int)m, (int)taps);
    case_check(&c);
}

static void test_resample(void)
{
    static const int64_t inner[] = {1, 2, 7, 15, 16, 17, 33, 100};
    for (int i = 0; i < 8; i++)
        for (int64_t taps = 1; taps <= 6; taps++)
            for (int64_t n = 1; n <= 13; n += 4) {
                check_resample(3, n, inner[i], n + taps, taps);
                check_resample(19, n, inner[i], 1, taps);
            }
    check_resample(0, 5, 3, 4, 2);
    check_resample(2, 5, 0, 4, 2);
}

#endif
