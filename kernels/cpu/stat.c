/* Statistics of channels: x (R,C) is read once, a panel of rows at a time.
 *
 * A panel holds the rows that count, in float64 and less the shift; while they are converted, their
 * least and greatest elements and their sums are taken, a vector of channels at a time, all rows of
 * it in registers. Then the panel times itself is added to the products, by tiles of registers of
 * the triangle that is not mirrored: its rows are what a product by columns wants on both sides, so
 * nothing is packed or transposed. The memory for the next panel is asked for meanwhile.
 *
 * Rows are cut by the shape alone, each part giving a partial result, and a second phase adds these
 * in order and mirrors: the same bits for any number of threads.
 *
 * The walk reads whole vectors, at the end of a row beyond it, and what it makes there is dropped;
 * only the last rows of a part are copied, behind which nobody may read. A NaN is looked for only
 * where sums have become NaN: comparisons of vectors pass it over.
 *
 * Rejected: sums of parts of a row in float32 (they would be those of float32), a triangle of
 * squares (of 50 channels a quarter more is computed), masked rows as rows of zeros (all of them
 * would be computed). */
#include <math.h>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd/double.h"

/* Columns of the triangle that are computed together, and the vectors of a tile of so many: 24
 * sums in registers of 32, or 12 of 16. */
#if HL_ISA_AVX512 || defined(__aarch64__)
enum { GROUP = 8, VECTORS_MAX = 8 };
static const int VECTORS_OF[GROUP + 1] = {0, 8, 8, 8, 6, 4, 4, 3, 3};
#define TILES(X)                                                                                   \
    TILES_8(X, 1)                                                                                  \
    TILES_8(X, 2)                                                                                  \
    TILES_8(X, 3) TILES_6(X, 4) TILES_4(X, 5) TILES_4(X, 6) TILES_3(X, 7) TILES_3(X, 8)
#else
enum { GROUP = 4, VECTORS_MAX = 6 };
static const int VECTORS_OF[GROUP + 1] = {0, 6, 6, 4, 3};
#define TILES(X) TILES_6(X, 1) TILES_6(X, 2) TILES_4(X, 3) TILES_3(X, 4)
#endif
/* X(vectors, columns) for so many columns and 1, 2, ... vectors. */
#define TILES_3(X, n) X(1, n) X(2, n) X(3, n)
#define TILES_4(X, n) TILES_3(X, n) X(4, n)
#define TILES_6(X, n) TILES_4(X, n) X(5, n) X(6, n)
#define TILES_8(X, n) TILES_6(X, n) X(7, n) X(8, n)

enum {
    PANEL_BYTES = 32 * 1024, /* in the first cache, beside what is read */
    PANEL_ROWS = 64,         /* at least, so that a tile's sums are worth their way to memory */
    PANEL_ROWS_MAX = 256,
    LINE = HL_ALIGN / (int)sizeof(double)
};

typedef struct stat_state {
    int64_t R, C;
    int64_t grain, n_partials; /* rows of a part, and parts */
    int64_t width;             /* channels, whole vectors of them */
    int64_t stride, n_rows;    /* of the panel: doubles of a row, and rows */
    int64_t partial;           /* doubles of a partial result */
    hl_dtype dtype;
    bool has_mask, has_products;
} stat_state;

/* ---- a partial result: count, lowest, highest, sums, and products or squares, a group of columns
 * behind the other and each column from its first row to the diagonal, whole vectors of them */

enum { AT_COUNT = 0, AT_LOWEST = LINE };

static int64_t at_highest(const stat_state *s)
{
    return AT_LOWEST + s->width;
}
static int64_t at_sums(const stat_state *s)
{
    return AT_LOWEST + 2 * s->width;
}
static int64_t at_products(const stat_state *s)
{
    return AT_LOWEST + 3 * s->width;
}
/* Vectors of each of a group's columns. */
static int64_t group_vectors(const stat_state *s, int64_t group)
{
    return hl_cpu_ceil_div(hl_cpu_min((group + 1) * GROUP, s->C), HL_VDL);
}
/* Those of the groups before it are whole. */
static int64_t at_group(const stat_state *s, int64_t group)
{
    return at_products(s) + GROUP * GROUP * (group * (group + 1) / 2);
}

static stat_state make_stat(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    int32_t last = x->shape.rank - 1;
    stat_state s = {.R = hl_shape_span(&x->shape, 0, last),
                    .C = x->shape.dim[last],
                    .dtype = x->dtype,
                    .has_mask = node->n_in > 2,
                    .has_products = hl_channel_statistics_attrs(node)->products};
    int64_t least = hl_cpu_max(4 * PANEL_ROWS, s.C);
    int64_t grain = hl_cpu_max(hl_cpu_ceil_div(s.R, HL_CPU_PARTIALS), least);
    s.grain = hl_cpu_ceil_div(grain, PANEL_ROWS) * PANEL_ROWS;
    s.n_partials = hl_cpu_max(hl_cpu_ceil_div(s.R, s.grain), 1);
    int64_t n_lines = hl_cpu_ceil_div(s.C, LINE);
    s.width = n_lines * LINE;
    /* An odd number of lines: columns are spread over the sets of a cache. */
    s.stride = (n_lines | 1) * LINE;
    int64_t rows = PANEL_BYTES / (s.stride * (int64_t)sizeof(double)) / 8 * 8;
    s.n_rows = hl_cpu_min(hl_cpu_max(rows, PANEL_ROWS), PANEL_ROWS_MAX);
    int64_t n_groups = hl_cpu_ceil_div(s.C, GROUP);
    s.partial = s.has_products ? at_group(&s, n_groups) : at_products(&s) + s.width;
    s.partial = hl_cpu_ceil_div(s.partial, LINE) * LINE;
    return s;
}

/* ---- the memory of a thread ---- */

typedef struct room {
    double *shift; /* width, zeros behind the channels */
    double *panel;
    const unsigned char **rows; /* that count, of the panel */
    unsigned char *ends;        /* copies of the last rows, a width each */
} room;

/* Rows behind which there is less than a width. */
static int64_t count_ends(const stat_state *s)
{
    return s->C > 0 ? hl_cpu_ceil_div(s->width, s->C) : 0;
}
static size_t row_bytes(const stat_state *s)
{
    return (size_t)s->C * hl_dtype_bytes(s->dtype);
}

static room make_room(const stat_state *s, void *memory)
{
    double *at = memory;
    room r = {.shift = at, .panel = at + s->width};
    at = r.panel + s->n_rows * s->stride;
    r.rows = (const unsigned char **)(void *)at;
    r.ends = (unsigned char *)(r.rows + s->n_rows);
    return r;
}
static size_t room_bytes(const stat_state *s)
{
    size_t ends = (size_t)(count_ends(s) * s->width) * hl_dtype_bytes(s->dtype);
    return (size_t)(s->width + s->n_rows * s->stride) * sizeof(double) +
           (size_t)s->n_rows * sizeof(unsigned char *) + ends;
}

/* ---- rows ---- */

/* The next rows that count, of those up to `last`, as many as a panel has; *row moves on. */
static int64_t find_rows(const stat_state *s, const unsigned char *x, const uint8_t *mask,
                         int64_t *row, int64_t last, room *to)
{
    int64_t n = 0, r = *row;
    size_t bytes = row_bytes(s);
    for (; r < last && n < s->n_rows; r++) {
        const unsigned char *at = x + (size_t)r * bytes;
        if (mask && !mask[r]) continue;
        if ((last - r) * s->C < s->width) {
            size_t slot = (size_t)((last - r - 1) * s->width) * hl_dtype_bytes(s->dtype);
            at = memcpy(to->ends + slot, at, bytes);
        }
        to->rows[n++] = at;
    }
    *row = r;
    return n;
}

HL_SIMD hl_vd load_channels(const unsigned char *row, const hl_dtype dtype, int64_t c)
{
    const void *at = row;
    switch (dtype) {
    case HL_DTYPE_F64: return hl_vd_load((const double *)at + c);
    case HL_DTYPE_BF16: return hl_vd_load_bf16((const uint16_t *)at + c);
    case HL_DTYPE_F16: return hl_vd_load_f16((const uint16_t *)at + c);
    default: return hl_vd_load_f32((const float *)at + c);
    }
}

/* Sets the extremes of channels that are NaN in a row. */
static void find_nan(const stat_state *s, const room *from, int64_t n, int64_t c, double *partial)
{
    for (int64_t k = 0; k < n; k++) {
        hl_vd x;
        switch (s->dtype) {
        case HL_DTYPE_F64: x = load_channels(from->rows[k], HL_DTYPE_F64, c); break;
        case HL_DTYPE_BF16: x = load_channels(from->rows[k], HL_DTYPE_BF16, c); break;
        case HL_DTYPE_F16: x = load_channels(from->rows[k], HL_DTYPE_F16, c); break;
        default: x = load_channels(from->rows[k], HL_DTYPE_F32, c); break;
        }
        for (int i = 0; i < HL_VDL && c + i < s->C; i++) {
            if (x[i] == x[i]) continue;
            partial[AT_LOWEST + c + i] = NAN;
            partial[at_highest(s) + c + i] = NAN;
        }
    }
}

/* Takes in a row's vector: alternate rows have sums of their own, which hides latencies. Without
 * products nothing but this asks for the rows ahead. */
#define TAKE(j, k)                                                                                 \
    do {                                                                                           \
        hl_vd x = load_channels(rows[k], dtype, c), d = x - shift;                                 \
        low[j] = hl_vd_min(x, low[j]);                                                             \
        high[j] = hl_vd_max(x, high[j]);                                                           \
        sum[j] += d;                                                                               \
        if (to_panel)                                                                              \
            hl_vd_store(panel + (k) * stride + c, d);                                              \
        else                                                                                       \
            __builtin_prefetch(at + (k) * bytes), square[j] = hl_vd_fma(d, d, square[j]);          \
    } while (0)

HL_SIMD void take_rows(const stat_state *s, const room *from, int64_t n, const unsigned char *ahead,
                       double *partial, const hl_dtype dtype, const bool to_panel)
{
    const unsigned char *const *rows = from->rows;
    const int64_t stride = s->stride, bytes = (int64_t)row_bytes(s);
    double *panel = from->panel;
    for (int64_t c = 0; c < s->C; c += HL_VDL) {
        const unsigned char *at = ahead + c * (int64_t)hl_dtype_bytes(dtype);
        double *lowest = partial + AT_LOWEST + c, *highest = partial + at_highest(s) + c;
        double *sums = partial + at_sums(s) + c, *squares = partial + at_products(s) + c;
        hl_vd shift = hl_vd_load(from->shift + c), sum[2] = {{0}}, square[2] = {{0}};
        hl_vd low[2] = {hl_vd_set1(INFINITY), hl_vd_set1(INFINITY)};
        hl_vd high[2] = {hl_vd_set1(-INFINITY), hl_vd_set1(-INFINITY)};
        int64_t k = 0;
        for (; k + 2 <= n; k += 2) {
            TAKE(0, k);
            TAKE(1, k + 1);
        }
        if (k < n) TAKE(0, k);
        sum[0] += sum[1];
        /* A NaN of the rows before stays. */
        hl_vd_store(lowest, hl_vd_min(hl_vd_min(low[0], low[1]), hl_vd_load(lowest)));
        hl_vd_store(highest, hl_vd_max(hl_vd_max(high[0], high[1]), hl_vd_load(highest)));
        hl_vd_store(sums, hl_vd_load(sums) + sum[0]);
        if (!to_panel) hl_vd_store(squares, hl_vd_load(squares) + (square[0] + square[1]));
        if (hl_vd_any_nan(sum[0])) find_nan(s, from, n, c, partial);
    }
}

static void take_rows_of(const stat_state *s, const room *from, int64_t n,
                         const unsigned char *ahead, double *partial)
{
#define TAKE_OF(dtype)                                                                             \
    if (s->has_products)                                                                           \
        take_rows(s, from, n, ahead, partial, dtype, true);                                        \
    else                                                                                           \
        take_rows(s, from, n, ahead, partial, dtype, false);                                       \
    break
    switch (s->dtype) {
    case HL_DTYPE_F64: TAKE_OF(HL_DTYPE_F64);
    case HL_DTYPE_BF16: TAKE_OF(HL_DTYPE_BF16);
    case HL_DTYPE_F16: TAKE_OF(HL_DTYPE_F16);
    default: TAKE_OF(HL_DTYPE_F32);
    }
}

/* ---- products ---- */

typedef struct tile_job {
    const double *vectors, *columns; /* of the panel's first row */
    int64_t stride, n_rows;
    double *out;
    int64_t out_stride;
    const char *ahead; /* memory to be asked for, `step` bytes a row */
    int64_t step;
} tile_job;

HL_SIMD void add_tile(const int n_vectors, const int n_columns, const tile_job *job)
{
    const double *vectors = job->vectors, *columns = job->columns;
    const char *ahead = job->ahead;
    hl_vd sum[GROUP][VECTORS_MAX];
#pragma GCC unroll 8
    for (int j = 0; j < n_columns; j++)
#pragma GCC unroll 8
        for (int i = 0; i < n_vectors; i++) sum[j][i] = hl_vd_zero();
    for (int64_t k = job->n_rows; k > 0; k--) {
        hl_vd x[VECTORS_MAX];
        __builtin_prefetch(ahead);
#pragma GCC unroll 8
        for (int i = 0; i < n_vectors; i++) x[i] = hl_vd_load(vectors + i * HL_VDL);
#pragma GCC unroll 8
        for (int j = 0; j < n_columns; j++) {
            hl_vd y = hl_vd_set1(columns[j]);
#pragma GCC unroll 8
            for (int i = 0; i < n_vectors; i++) sum[j][i] = hl_vd_fma(x[i], y, sum[j][i]);
        }
        vectors += job->stride, columns += job->stride, ahead += job->step;
    }
    double *out = job->out;
#pragma GCC unroll 8
    for (int j = 0; j < n_columns; j++, out += job->out_stride) {
#pragma GCC unroll 8
        for (int i = 0; i < n_vectors; i++)
            hl_vd_store(out + i * HL_VDL, hl_vd_load(out + i * HL_VDL) + sum[j][i]);
    }
}

#define DEFINE(vectors, columns)                                                                   \
    static void add_##vectors##x##columns(const tile_job *job)                                     \
    {                                                                                              \
        add_tile(vectors, columns, job);                                                           \
    }
TILES(DEFINE)
#undef DEFINE
typedef void (*tile_fn)(const tile_job *job);
#define ENTRY(vectors, columns) [columns][vectors] = add_##vectors##x##columns,
static const tile_fn TILE[GROUP + 1][VECTORS_MAX + 1] = {TILES(ENTRY)};
#undef ENTRY

/* Adds the products of a panel of n rows; [ahead, ahead_end) is what comes next. */
static void add_products(const stat_state *s, const double *panel, int64_t n, double *partial,
                         const unsigned char *ahead, const unsigned char *ahead_end)
{
    tile_job job = {.stride = s->stride, .n_rows = n, .ahead = (const char *)ahead};
    const char *end = (const char *)ahead_end;
    for (int64_t group = 0; group * GROUP < s->C; group++) {
        int64_t n_columns = hl_cpu_min(GROUP, s->C - group * GROUP);
        int64_t n_vectors = group_vectors(s, group);
        int64_t n_tiles = hl_cpu_ceil_div(n_vectors, VECTORS_OF[n_columns]);
        job.columns = panel + group * GROUP;
        job.out_stride = n_vectors * HL_VDL;
        for (int64_t t = 0; t < n_tiles; t++) {
            int64_t first = t * n_vectors / n_tiles, next = (t + 1) * n_vectors / n_tiles;
            job.vectors = panel + first * HL_VDL;
            job.out = partial + at_group(s, group) + first * HL_VDL;
            job.step = job.ahead < end ? HL_ALIGN : 0;
            TILE[n_columns][next - first](&job);
            job.ahead += n * job.step;
        }
    }
}

/* ---- the first phase: parts of the rows ---- */

static void fill_partial(const stat_state *s, void *const *args, int64_t first, int64_t last,
                         room *own, double *partial)
{
    const unsigned char *x = args[0];
    const uint8_t *mask = s->has_mask ? args[2] : NULL;
    int64_t row = first, n, count = 0;
    for (int64_t i = 0; i < s->partial; i++) partial[i] = 0;
    for (int64_t c = 0; c < s->width; c++) {
        partial[AT_LOWEST + c] = INFINITY;
        partial[at_highest(s) + c] = -INFINITY;
    }
    while ((n = find_rows(s, x, mask, &row, last, own)) > 0) {
        const unsigned char *ahead = x + (size_t)row * row_bytes(s);
        int64_t next = hl_cpu_min(row + s->n_rows, last);
        take_rows_of(s, own, n, ahead, partial);
        if (s->has_products)
            add_products(s, own->panel, n, partial, ahead, x + (size_t)next * row_bytes(s));
        count += n;
    }
    partial[AT_COUNT] = (double)count;
}

static void run_parts(const stat_state *s, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const double *shift = args[1];
    room own = make_room(s, launch->thread_scratch);
    for (int64_t c = 0; c < s->width; c++) own.shift[c] = c < s->C ? shift[c] : 0;
    /* Of no rows there is one part. */
    for (int64_t first = begin; first < end; first += s->grain) {
        double *partial = (double *)launch->scratch + first / s->grain * s->partial;
        int64_t last = hl_cpu_min(s->R, hl_cpu_min(end, first + s->grain));
        fill_partial(s, args, first, last, &own, partial);
    }
}

/* ---- the second phase: channels of the sum of all parts ---- */

static double add_parts(const stat_state *s, const double *partials, int64_t at)
{
    double sum = 0;
    for (int64_t p = 0; p < s->n_partials; p++) sum += partials[p * s->partial + at];
    return sum;
}

/* The extremes of channel c; a NaN stays. */
static void merge_extremes(const stat_state *s, const double *partials, int64_t c, double *lowest,
                           double *highest)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t p = 0; p < s->n_partials; p++) {
        double x = partials[p * s->partial + AT_LOWEST + c];
        double y = partials[p * s->partial + at_highest(s) + c];
        low = low != low || low < x ? low : x;
        high = high != high || high > y ? high : y;
    }
    lowest[c] = low, highest[c] = high;
}

/* The products of channel j with those up to it, and their mirror image. */
static void merge_products(const stat_state *s, const double *partials, int64_t j, double *products)
{
    int64_t C = s->C, group = j / GROUP, width = group_vectors(s, group) * HL_VDL;
    const double *column = partials + at_group(s, group) + j % GROUP * width;
    for (int64_t i = 0; i <= j; i += HL_VDL) {
        hl_vd sum = hl_vd_zero();
        for (int64_t p = 0; p < s->n_partials; p++) sum += hl_vd_load(column + p * s->partial + i);
        for (int k = 0; k < HL_VDL && i + k <= j; k++) {
            products[j * C + i + k] = sum[k];
            products[(i + k) * C + j] = sum[k];
        }
    }
}

static void merge_parts(const stat_state *s, void *const *args, int64_t begin, int64_t end,
                        const double *partials)
{
    void *const *out = args + (s->has_mask ? 3 : 2);
    double *count = out[0], *sums = out[3], *products = out[4];
    if (begin == 0) *count = add_parts(s, partials, AT_COUNT);
    end = hl_cpu_min(end, s->C);
    for (int64_t c = begin; c < end; c++) {
        merge_extremes(s, partials, c, out[1], out[2]);
        sums[c] = add_parts(s, partials, at_sums(s) + c);
        if (s->has_products)
            merge_products(s, partials, c, products);
        else
            products[c] = add_parts(s, partials, at_products(s) + c);
    }
}

/* ---- the kernel ---- */

static void run_channel_statistics(const hl_kernel_state *state, void *const *args, int64_t begin,
                                   int64_t end, const hl_launch *launch)
{
    if (launch->phase == 0)
        run_parts(state->impl, args, begin, end, launch);
    else
        merge_parts(state->impl, args, begin, end, launch->scratch);
}

static hl_status query_channel_statistics(hl_device *device, const hl_graph *graph, hl_node_id id,
                                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    stat_state s = make_stat(graph, &graph->nodes[id]);
    double C = (double)s.C;
    out_req->rows = hl_cpu_max(s.R, 1);
    out_req->grain = s.grain;
    out_req->row_in = 1 | 1 << 2;
    out_req->row_cost = 5 + 0.5 * C + (s.has_products ? 0.02 * C * C : 0);
    out_req->scratch_bytes = (size_t)(s.n_partials * s.partial) * sizeof(double);
    out_req->thread_scratch_bytes = room_bytes(&s);
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(s.C, 1);
    out_req->phase_row_cost = (20 + (s.has_products ? 0.2 * C : 0)) * (double)s.n_partials;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_channel_statistics(hl_device *device, const hl_graph *graph, hl_node_id id,
                                            hl_kernel_state *out_state)
{
    (void)device;
    stat_state state = make_stat(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

static const hl_kernel channel_statistics = {.op = HL_OP_CHANNEL_STATISTICS,
                                             .name = HL_CPU_NAME("channel_statistics"),
                                             .query = query_channel_statistics,
                                             .prepare = prepare_channel_statistics,
                                             .block = run_channel_statistics};

const hl_kernel *const HL_ISA_NAME(hl_cpu_stat_kernels)[] = {&channel_statistics, NULL};
