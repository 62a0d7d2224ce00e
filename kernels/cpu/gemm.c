/* GEMM, fp32: packing, register tiles, and the loops around them.
 *
 * The register tile is `height` rows by `width` vectors of C, kept in registers over a block of K. B
 * comes as vectors from packed panels, A one number at a time, broadcast: so A is read where it lies,
 * by row (a forward pass) or by column (a weight gradient), and only B is packed, once per optimizer
 * step. The bigger the tile, the fewer loads per multiply-add: 14 x 2 vectors fill 28 of AVX-512's 32
 * registers and 6 x 2 fill 12 of AVX2's 16. Narrow C takes one tile of its own width (1, 3 or 4
 * vectors), so that N = 50 is one pass over A and writes whole rows.
 *
 * K is cut into equal blocks of at most K_BLOCK, so that a panel's block stays in the second-level
 * cache while the rows go by. A is copied first where its row stride would put a tile's rows into the
 * same cache sets.
 *
 * Rejected: packing A in tiles (a transpose per element of A costs 5 % at N = 128), reducing several
 * k in parallel for short tiles (bits would depend on the height), masked loads of B's edge (packing
 * pads it with zeros). */
#include "kernels/cpu/gemm.h"

#if HL_ISA_AVX512 || defined(__aarch64__)
#define REGISTERS_32 1
#else
#define REGISTERS_32 0
#endif

enum {
    /* K_BLOCK x HL_GEMM_PANEL floats are 64 KB with AVX-512; rows of A per pass: their block and
     * the panel share the second-level cache. */
    K_BLOCK = 512,
    M_BLOCK = 10 * HL_GEMM_ROWS_BEST,
    /* Row stride of a copy of A: one cache line off the power of two. */
    COPY_STRIDE = K_BLOCK + 16,
    WIDTH_MAX = REGISTERS_32 ? 4 : 3, /* vectors */
    STRIP_PANELS = (WIDTH_MAX + 1) / 2,
    HEIGHT_MAX = REGISTERS_32 ? 14 : 12
};

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- the register tile ---- */

/* What happens to a finished tile. */
typedef struct tile_end {
    float alpha;
    bool accumulate, relu;
    const float *bias;  /* at the tile's first column */
    int64_t last_lanes; /* columns in the last vector */
} tile_end;

typedef void (*tile_fn)(int64_t k, const float *a, int64_t a_stride, const float *b,
                        int64_t b_stride, int64_t b_pair, float *c, int64_t ldc,
                        const tile_end *end);

HL_SIMD void finish_tile(const int height, const int width, hl_v sum[][4], float *c, int64_t ldc,
                         const tile_end *end)
{
    /* Local copies: a store to C might otherwise change them, for all the compiler knows. */
    const tile_end e = *end;
    const bool whole = e.last_lanes == HL_VL, scale = e.alpha != 1;
    const hl_v alpha = hl_v_set1(e.alpha);
#pragma GCC unroll 4
    for (int v = 0; v < width; v++) {
        int64_t lanes = v + 1 < width ? HL_VL : e.last_lanes;
        bool full = v + 1 < width || whole;
        hl_v bias = hl_v_zero();
        if (e.bias) bias = hl_v_load_n(e.bias + v * HL_VL, lanes);
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            float *at = c + i * ldc + v * HL_VL;
            hl_v y = sum[i][v];
            if (scale) y = y * alpha;
            if (e.accumulate) y = y + (full ? hl_v_load(at) : hl_v_load_n(at, lanes));
            if (e.bias) y = y + bias;
            if (e.relu) y = hl_v_max(hl_v_zero(), y);
            if (full)
                hl_v_store(at, y);
            else
                hl_v_store_n(at, y, lanes);
        }
    }
}

/* Three rows share a pointer: base, base + stride and base + 2 stride are addressing modes. */
HL_SIMD void run_tile_rows(const int height, const int width, int64_t k, const float *a,
                           int64_t a_stride, const float *b, int64_t b_stride, int64_t b_pair,
                           float *c, int64_t ldc, const tile_end *end)
{
    hl_v sum[HEIGHT_MAX][4];
    const float *row[(HEIGHT_MAX + 2) / 3];
#pragma GCC unroll 14
    for (int i = 0; i < height; i++) {
        if (i % 3 == 0) row[i / 3] = a + i * a_stride;
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) sum[i][v] = hl_v_zero();
    }
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        hl_v x[4];
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) x[v] = hl_v_load(b + v / 2 * b_pair + v % 2 * HL_VL);
        b += b_stride;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_v y = hl_v_set1(row[i / 3][i % 3 * a_stride]);
            if (i % 3 == 2 || i + 1 == height) row[i / 3]++;
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = hl_v_fma(y, x[v], sum[i][v]);
        }
    }
    finish_tile(height, width, sum, c, ldc, end);
}

HL_SIMD void run_tile_columns(const int height, const int width, int64_t k, const float *a,
                              int64_t a_stride, const float *b, int64_t b_stride, int64_t b_pair,
                              float *c, int64_t ldc, const tile_end *end)
{
    hl_v sum[HEIGHT_MAX][4];
#pragma GCC unroll 14
    for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) sum[i][v] = hl_v_zero();
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        hl_v x[4];
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) x[v] = hl_v_load(b + v / 2 * b_pair + v % 2 * HL_VL);
        b += b_stride;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_v y = hl_v_set1(a[i]);
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = hl_v_fma(y, x[v], sum[i][v]);
        }
        a += a_stride;
    }
    finish_tile(height, width, sum, c, ldc, end);
}


/* The tiles that fit the registers: HEIGHT_OF[width] rows at most. */
#define HEIGHTS_4(X, w) X(1, w) X(2, w) X(3, w) X(4, w)
#define HEIGHTS_6(X, w) HEIGHTS_4(X, w) X(5, w) X(6, w)
#define HEIGHTS_7(X, w) HEIGHTS_6(X, w) X(7, w)
#define HEIGHTS_9(X, w) HEIGHTS_7(X, w) X(8, w) X(9, w)
#define HEIGHTS_12(X, w) HEIGHTS_9(X, w) X(10, w) X(11, w) X(12, w)
#define HEIGHTS_14(X, w) HEIGHTS_12(X, w) X(13, w) X(14, w)
#if REGISTERS_32
#define TILES(X) HEIGHTS_14(X, 1) HEIGHTS_14(X, 2) HEIGHTS_9(X, 3) HEIGHTS_7(X, 4)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 14, 14, 9, 7};
#else
#define TILES(X) HEIGHTS_12(X, 1) HEIGHTS_6(X, 2) HEIGHTS_4(X, 3)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 12, 6, 4};
#endif

#define X(h, w)                                                                                    \
    static void run_rows_##h##x##w(int64_t k, const float *a, int64_t a_stride, const float *b,    \
                                   int64_t b_stride, int64_t b_pair, float *c, int64_t ldc,        \
                                   const tile_end *end)                                            \
    {                                                                                              \
        run_tile_rows(h, w, k, a, a_stride, b, b_stride, b_pair, c, ldc, end);                     \
    }                                                                                              \
    static void run_columns_##h##x##w(int64_t k, const float *a, int64_t a_stride, const float *b, \
                                      int64_t b_stride, int64_t b_pair, float *c, int64_t ldc,     \
                                      const tile_end *end)                                         \
    {                                                                                              \
        run_tile_columns(h, w, k, a, a_stride, b, b_stride, b_pair, c, ldc, end);                  \
    }
TILES(X)
#undef X
#define X(h, w) [w][h] = run_rows_##h##x##w,
static const tile_fn RUN_ROWS[WIDTH_MAX + 1][HEIGHT_MAX + 1] = {TILES(X)};
#undef X
#define X(h, w) [w][h] = run_columns_##h##x##w,
static const tile_fn RUN_COLUMNS[WIDTH_MAX + 1][HEIGHT_MAX + 1] = {TILES(X)};
#undef X

/* One strip of columns of C, `width` vectors wide: its rows in tiles of nearly equal height. */
typedef struct strip {
    int width;
    int64_t b_stride, b_pair;
    tile_end end;
} strip;

static void run_strip(const strip *s, int64_t rows, int64_t k, const float *a, int64_t a_row,
                      int64_t a_col, const float *b, float *c, int64_t ldc)
{
    const tile_fn *run = a_row == 1 && a_col != 1 ? RUN_COLUMNS[s->width] : RUN_ROWS[s->width];
    int64_t a_stride = a_row == 1 && a_col != 1 ? a_col : a_row;
    int64_t tiles = ceil_div(rows, HEIGHT_OF[s->width]), height = rows / tiles;
    int64_t taller = rows - tiles * height;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t h = height + (t < taller);
        run[h](k, a, a_stride, b, s->b_stride, s->b_pair, c, ldc, &s->end);
        a += h * a_row, c += h * ldc;
    }
}

/* Vectors of the strip that starts with `left` vectors to go: all when they fit one tile, else two,
 * or three where one would be left over. Few rows take wide strips, to keep enough chains going. */
static int choose_width(int64_t left, int64_t rows)
{
    if (left <= WIDTH_MAX) return (int)left;
    if (rows <= HEIGHT_OF[WIDTH_MAX] && WIDTH_MAX % 2 == 0) return WIDTH_MAX;
    return left == 3 ? 3 : 2;
}

/* ---- packing ---- */

size_t hl_gemm_pack_bytes(int64_t k, int64_t n)
{
    return (size_t)(hl_gemm_panels(n) * k * HL_GEMM_PANEL) * sizeof(float);
}

/* Rows of `lanes` contiguous columns, padded with zeros. */
static void pack_rows(int64_t k, int64_t lanes, const float *b, int64_t row_stride, float *packed)
{
    if (lanes == HL_GEMM_PANEL) {
        for (int64_t i = 0; i < k; i++, b += row_stride, packed += HL_GEMM_PANEL) {
            hl_v_store(packed, hl_v_load(b));
            hl_v_store(packed + HL_VL, hl_v_load(b + HL_VL));
        }
        return;
    }
    int64_t first = min64(lanes, HL_VL), second = lanes - first;
    for (int64_t i = 0; i < k; i++, b += row_stride, packed += HL_GEMM_PANEL) {
        hl_v_store(packed, hl_v_load_n(b, first));
        hl_v_store(packed + HL_VL, second ? hl_v_load_n(b + HL_VL, second) : hl_v_zero());
    }
}

/* Columns of the panel are rows in memory: squares of HL_VL x HL_VL through registers. */
static void pack_transposed(int64_t k, int64_t lanes, const float *b, int64_t col_stride,
                            float *packed)
{
    for (int64_t v = 0; v < HL_GEMM_PANEL; v += HL_VL) {
        int64_t columns = min64(HL_VL, lanes > v ? lanes - v : 0);
        for (int64_t i = 0; i < k; i += HL_VL) {
            int64_t rows = min64(HL_VL, k - i);
            hl_v square[HL_VL];
            for (int64_t j = 0; j < HL_VL; j++) {
                const float *at = b + (v + j) * col_stride + i;
                if (j >= columns)
                    square[j] = hl_v_zero();
                else
                    square[j] = rows == HL_VL ? hl_v_load(at) : hl_v_load_n(at, rows);
            }
            hl_v_transpose(square);
            for (int64_t j = 0; j < rows; j++)
                hl_v_store(packed + (i + j) * HL_GEMM_PANEL + v, square[j]);
        }
    }
}

static void pack_strided(int64_t k, int64_t lanes, const float *b, int64_t row_stride,
                         int64_t col_stride, float *packed)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < HL_GEMM_PANEL; j++)
            *packed++ = j < lanes ? b[i * row_stride + j * col_stride] : 0;
}

void hl_gemm_pack(int64_t k, int64_t n, const float *b, int64_t row_stride, int64_t col_stride,
                  int64_t panel0, int64_t panel1, float *packed)
{
    for (int64_t p = panel0; p < panel1; p++) {
        int64_t lanes = min64(HL_GEMM_PANEL, n - p * HL_GEMM_PANEL);
        const float *from = b + p * HL_GEMM_PANEL * col_stride;
        float *to = packed + p * k * HL_GEMM_PANEL;
        if (col_stride == 1)
            pack_rows(k, lanes, from, row_stride, to);
        else if (row_stride == 1)
            pack_transposed(k, lanes, from, col_stride, to);
        else
            pack_strided(k, lanes, from, row_stride, col_stride, to);
    }
}

/* ---- rows of C ---- */

/* Length of the blocks of K: equal ones, rounded up to a cache line of A. */
static int64_t choose_k_block(int64_t k)
{
    int64_t block = ceil_div(k, k > K_BLOCK ? ceil_div(k, K_BLOCK) : 1);
    return min64((block + 15) / 16 * 16, k);
}

/* Whether A is copied: worth it when several strips read it and its rows share cache sets. */
static bool wants_copy(const hl_gemm *gemm)
{
    return gemm->a_col == 1 && gemm->a_row % 512 == 0 && gemm->n >= 4 * HL_GEMM_PANEL;
}

size_t hl_gemm_scratch_bytes(const hl_gemm *gemm)
{
    return wants_copy(gemm) ? (size_t)M_BLOCK * COPY_STRIDE * sizeof(float) : 0;
}

static void copy_rows(int64_t rows, int64_t k, const float *a, int64_t a_row, float *copy)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(copy + i * COPY_STRIDE, a + i * a_row, (size_t)k * sizeof(float));
}

/* All strips of rows [m0, m1) for block [k0, k0 + k) of the reduction. */
static void run_block(const hl_gemm *gemm, int64_t m0, int64_t m1, int64_t k0, int64_t k,
                      const float *a, int64_t a_row)
{
    bool last = k0 + k == gemm->k;
    int64_t vectors = ceil_div(gemm->n, HL_VL);
    strip s = {.b_stride = HL_GEMM_PANEL, .b_pair = gemm->k * HL_GEMM_PANEL};
    s.end = (tile_end){.alpha = gemm->alpha, .accumulate = k0 > 0 || gemm->accumulate,
                       .relu = last && gemm->relu};
    for (int64_t v = 0; v < vectors; v += s.width) {
        s.width = choose_width(vectors - v, m1 - m0);
        s.end.last_lanes = min64(HL_VL, gemm->n - (v + s.width - 1) * HL_VL);
        s.end.bias = last && gemm->bias ? gemm->bias + v * HL_VL : NULL;
        const float *b = gemm->b + (v / 2 * gemm->k + k0) * HL_GEMM_PANEL;
        run_strip(&s, m1 - m0, k, a, a_row, gemm->a_col, b, gemm->c + m0 * gemm->ldc + v * HL_VL,
                  gemm->ldc);
    }
}

void hl_gemm_rows(const hl_gemm *gemm, int64_t m0, int64_t m1, float *scratch)
{
    bool copy = wants_copy(gemm);
    int64_t k_block = choose_k_block(gemm->k);
    for (int64_t i = m0; i < m1; i += M_BLOCK) {
        int64_t end = min64(i + M_BLOCK, m1);
        int64_t k0 = 0;
        do { /* once for an empty reduction too: C is still to be written */
            int64_t k = min64(k_block, gemm->k - k0);
            const float *a = gemm->a + i * gemm->a_row + k0 * gemm->a_col;
            if (copy) copy_rows(end - i, k, a, gemm->a_row, scratch);
            run_block(gemm, i, end, k0, k, copy ? scratch : a, copy ? COPY_STRIDE : gemm->a_row);
            k0 += k;
        } while (k0 < gemm->k);
    }
}

/* ---- A^T B ---- */

enum {
    TN_K_BLOCK = 256,                  /* reduction rows per pass over a tile's strips */
    TN_TILE_M = 9 * HL_GEMM_ROWS_BEST, /* largest tile of C: stays in the second-level cache */
    TN_TILE_N = 8 * HL_GEMM_PANEL,
    TN_TASKS = 16,        /* enough for balance on the machines at hand */
    TN_SPLIT_MIN = 1024,  /* rows of K that pay for writing and adding up a partial sum */
    TN_PACK_TILES = 4     /* row tiles that pay for packing a strip of B */
};

void hl_gemm_tn_plan_make(int64_t m, int64_t n, int64_t k, hl_gemm_tn_plan *out_plan)
{
    int64_t tile_m = min64(m, TN_TILE_M), tile_n = min64(n, TN_TILE_N), splits = 1;
    int64_t tiles = ceil_div(m, tile_m) * ceil_div(n, tile_n);
    if (tiles < TN_TASKS && k >= 2 * TN_SPLIT_MIN)
        splits = min64(ceil_div(TN_TASKS, tiles), k / TN_SPLIT_MIN);
    while (tiles * splits < TN_TASKS && (tile_m > 2 * HL_GEMM_ROWS_BEST || tile_n > HL_GEMM_PANEL)) {
        if (tile_n >= tile_m && tile_n > HL_GEMM_PANEL)
            tile_n = ceil_div(ceil_div(tile_n, 2), HL_GEMM_PANEL) * HL_GEMM_PANEL;
        else
            tile_m = ceil_div(ceil_div(tile_m, 2), HL_GEMM_ROWS_BEST) * HL_GEMM_ROWS_BEST;
        tiles = ceil_div(m, tile_m) * ceil_div(n, tile_n);
    }
    int64_t tile_k = ceil_div(ceil_div(k, splits), TN_K_BLOCK) * TN_K_BLOCK;
    splits = ceil_div(k, tile_k);
    *out_plan = (hl_gemm_tn_plan){
        .tile_m = tile_m, .tile_n = tile_n, .tile_k = tile_k,
        .n_tiles_m = ceil_div(m, tile_m), .n_tiles_n = ceil_div(n, tile_n), .n_splits = splits,
        .n_tiles = tiles * splits, .n_merges = splits > 1 ? tiles : 0,
        .partial_bytes = splits > 1 ? (size_t)(splits * m * n) * sizeof(float) : 0,
        .scratch_bytes = (size_t)(TN_K_BLOCK * STRIP_PANELS * HL_GEMM_PANEL) * sizeof(float),
    };
}

/* One strip of a block: rows [k0, k0 + k) of A and B into columns [j, j + width vectors) of C. */
static void run_tn_strip(const hl_gemm_tn *gemm, strip *s, int64_t m0, int64_t m1, int64_t j,
                         int64_t lanes, int64_t k0, int64_t k, float *c, int64_t ldc,
                         float *scratch)
{
    const float *b = gemm->b + k0 * gemm->ldb + j;
    bool whole = lanes == s->width * HL_VL;
    s->end.last_lanes = lanes - (s->width - 1) * HL_VL;
    s->b_stride = gemm->ldb, s->b_pair = HL_GEMM_PANEL;
    if (!whole || m1 - m0 >= TN_PACK_TILES * HEIGHT_OF[s->width]) {
        int64_t panels = ceil_div(s->width, 2);
        hl_gemm_pack(k, lanes, b, gemm->ldb, 1, 0, panels, scratch);
        b = scratch, s->b_stride = HL_GEMM_PANEL, s->b_pair = k * HL_GEMM_PANEL;
    }
    run_strip(s, m1 - m0, k, gemm->a + k0 * gemm->lda + m0, 1, gemm->lda, b, c, ldc);
}

void hl_gemm_tn_tile(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                     float *partials, float *scratch)
{
    int64_t tj = tile % plan->n_tiles_n, ti = tile / plan->n_tiles_n % plan->n_tiles_m;
    int64_t split = tile / (plan->n_tiles_n * plan->n_tiles_m);
    int64_t m0 = ti * plan->tile_m, m1 = min64(m0 + plan->tile_m, gemm->m);
    int64_t n0 = tj * plan->tile_n, n1 = min64(n0 + plan->tile_n, gemm->n);
    int64_t k0 = split * plan->tile_k, k1 = min64(k0 + plan->tile_k, gemm->k);
    bool partial = plan->n_splits > 1;
    int64_t ldc = partial ? gemm->n : gemm->ldc, vectors = ceil_div(n1 - n0, HL_VL);
    float *c = partial ? partials + split * gemm->m * gemm->n : gemm->c;
    strip s = {.end = {.alpha = gemm->alpha}};
    for (int64_t at = k0; at < k1; at += TN_K_BLOCK) {
        s.end.accumulate = at > k0 || (!partial && gemm->accumulate);
        for (int64_t v = 0; v < vectors; v += s.width) {
            s.width = choose_width(vectors - v, m1 - m0);
            int64_t j = n0 + v * HL_VL, lanes = min64(s.width * HL_VL, n1 - j);
            run_tn_strip(gemm, &s, m0, m1, j, lanes, at, min64(TN_K_BLOCK, k1 - at),
                         c + m0 * ldc + j, ldc, scratch);
        }
    }
}

/* Sum of the partials [first, first + count) of one vector: halves onto halves, a tree that the
 * number of splits fixes. */
static hl_v sum_partials(const float *at, int64_t stride, int64_t count, int64_t lanes)
{
    if (count == 1) return hl_v_load_n(at, lanes);
    int64_t half = (count + 1) / 2;
    hl_v low = sum_partials(at, stride, half, lanes);
    return low + sum_partials(at + half * stride, stride, count - half, lanes);
}

void hl_gemm_tn_merge(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t merge,
                      const float *partials)
{
    int64_t tj = merge % plan->n_tiles_n, ti = merge / plan->n_tiles_n;
    int64_t m1 = min64((ti + 1) * plan->tile_m, gemm->m);
    int64_t n0 = tj * plan->tile_n, n1 = min64(n0 + plan->tile_n, gemm->n);
    for (int64_t i = ti * plan->tile_m; i < m1; i++)
        for (int64_t j = n0; j < n1; j += HL_VL) {
            int64_t lanes = min64(HL_VL, n1 - j);
            float *c = gemm->c + i * gemm->ldc + j;
            hl_v sum = sum_partials(partials + i * gemm->n + j, gemm->m * gemm->n, plan->n_splits,
                                    lanes);
            if (gemm->accumulate) sum = hl_v_load_n(c, lanes) + sum;
            hl_v_store_n(c, sum, lanes);
        }
}
