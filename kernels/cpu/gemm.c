/* GEMM, fp32: packing, register tiles, and the loops around them.
 *
 * The register tile is `height` rows by `width` vectors of C, kept in registers over a block of K.
 * B comes as vectors from packed panels, A one number at a time, broadcast: so A is read where it
 * lies, by row (a forward pass) or by column (a weight gradient), and only B is packed, once per
 * optimizer step. The bigger the tile, the fewer loads per multiply-add: 14 x 2 vectors fill 28 of
 * AVX-512's 32 registers and 6 x 2 fill 12 of AVX2's 16. Narrow C takes one tile of its own width
 * (1, 3 or, with 32 registers, 4 vectors), so that N = 50 is one pass over A and writes whole rows.
 *
 * K is cut into equal blocks of at most K_BLOCK, so that a panel's block stays in the second-level
 * cache while the rows go by. A is copied first where its row stride would put a tile's rows into
 * the same cache sets.
 *
 * Rejected: packing A in tiles (a transpose per element of A costs 5 % at N = 128), reducing
 * several k in parallel for short tiles (bits would depend on the height), masked loads of B's
 * edge (packing pads it with zeros). */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_tile.h"

enum {
    /* K_BLOCK x HL_GEMM_PANEL floats are 128 KB with AVX-512, and go by in the second-level cache.
     * A copy of A shares it, a pass's rows of COPY_BLOCK numbers. */
    K_BLOCK = 1024,
    COPY_BLOCK = 512,
    M_BLOCK = 10 * HL_GEMM_ROWS_BEST,
    /* Row stride of a copy of A: one cache line off the power of two. */
    COPY_STRIDE = COPY_BLOCK + 16,
    PREFETCH_ROWS = 32,
    PACK_PANELS = 8 /* written side by side: as many streams as a cache set has ways */
};

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

/* For every vector of the tile: i its row, v its place in the row. */
#define EACH_VECTOR                                                                                \
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++)                                      \
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)

/* The row after this one. The compiler must not see through it: it would hold an address for every
 * vector of the tile, on the stack. */
static inline float *next_row(float *row, int64_t ldc)
{
    row += ldc;
    __asm__("" : "+r"(row));
    return row;
}

/* One pass over the registers per step, so that a step not wanted costs one branch per tile. */
HL_SIMD void finish_tile(const int height, const int width, hl_v sum[][4], float *c, int64_t ldc,
                         const tile_end *end)
{
    const int64_t last_lanes = end->last_lanes;
    const float *bias = end->bias;
    const bool relu = end->relu;
    if (end->alpha != 1) {
        hl_v alpha = hl_v_set1(end->alpha);
        EACH_VECTOR sum[i][v] = sum[i][v] * alpha;
    }
#define EACH_ROW                                                                                   \
    float *row = c;                                                                                \
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++, row = next_row(row, ldc))            \
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)
    if (last_lanes == HL_VL) {
        if (end->accumulate) {
            EACH_ROW sum[i][v] = sum[i][v] + hl_v_load(row + v * HL_VL);
        }
        if (bias) EACH_VECTOR sum[i][v] = sum[i][v] + hl_v_load(bias + v * HL_VL);
        if (relu) EACH_VECTOR sum[i][v] = hl_v_max(hl_v_zero(), sum[i][v]);
        EACH_ROW hl_v_store(row + v * HL_VL, sum[i][v]);
        return;
    }
#define LANES (v + 1 < width ? HL_VL : last_lanes)
    if (end->accumulate) {
        EACH_ROW sum[i][v] = sum[i][v] + hl_v_load_n(row + v * HL_VL, LANES);
    }
    if (bias) EACH_VECTOR sum[i][v] = sum[i][v] + hl_v_load_n(bias + v * HL_VL, LANES);
    if (relu) EACH_VECTOR sum[i][v] = hl_v_max(hl_v_zero(), sum[i][v]);
    EACH_ROW
    {
        if (v + 1 < width)
            hl_v_store(row + v * HL_VL, sum[i][v]);
        else
            hl_v_store_n(row + v * HL_VL, sum[i][v], last_lanes);
    }
#undef LANES
#undef EACH_ROW
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

/* One strip of columns of C, `width` vectors wide, done in row tiles of nearly equal height. */
typedef struct strip {
    int width;
    const float *b;
    int64_t b_stride, b_pair;
    tile_end end;
} strip;

/* A as a strip reads it: by row, by column, or packed in tiles, column after column. */
typedef enum a_layout { A_ROWS, A_COLUMNS, A_TILES } a_layout;
typedef struct a_view {
    a_layout layout;
    const float *at;
    int64_t stride; /* between rows, between columns; unused in tiles */
} a_view;

/* Floats of a packed tile: the last column's store may run over by less than a vector. */
static int64_t tile_floats(int64_t k, int64_t height)
{
    return k * height + HL_VL;
}

static void run_strip(const strip *s, int64_t rows, int64_t k, const a_view *a, float *c,
                      int64_t ldc)
{
    const tile_fn *run = a->layout == A_ROWS ? RUN_ROWS[s->width] : RUN_COLUMNS[s->width];
    row_split split = split_rows(rows, HEIGHT_OF[a->layout == A_TILES ? 2 : s->width]);
    const float *at = a->at;
    for (int64_t t = 0; t < split.n_tiles; t++) {
        int64_t h = split.height + (t < split.n_taller);
        run[h](k, at, a->layout == A_TILES ? h : a->stride, s->b, s->b_stride, s->b_pair, c, ldc,
               &s->end);
        at += a->layout == A_ROWS ? h * a->stride : a->layout == A_TILES ? tile_floats(k, h) : h;
        c += h * ldc;
    }
}

/* ---- packing ---- */

size_t hl_gemm_pack_bytes(int64_t k, int64_t n)
{
    return (size_t)(hl_gemm_panels(n) * k * HL_GEMM_PANEL) * sizeof(float);
}

/* Asks for n floats some rows ahead: rows are too far apart for the hardware to see the pattern.
 * An address beyond the matrix is harmless. */
HL_SIMD void prefetch_row(const float *row, int64_t stride, int64_t n)
{
    uintptr_t ahead = (uintptr_t)row + (uintptr_t)(PREFETCH_ROWS * stride) * sizeof(float);
    uintptr_t end = ahead + (uintptr_t)n * sizeof(float);
    for (; ahead < end; ahead += 64) __builtin_prefetch((const void *)ahead);
}

/* Whole panels side by side, row by row: memory is read along its rows, whatever their stride. */
static void pack_rows(int64_t k, int64_t panels, const float *b, int64_t row_stride, float *packed)
{
    for (int64_t i = 0; i < k; i++, b += row_stride, packed += HL_GEMM_PANEL) {
        prefetch_row(b, row_stride, panels * HL_GEMM_PANEL);
        for (int64_t p = 0; p < panels; p++) {
            float *to = packed + p * k * HL_GEMM_PANEL;
            hl_v_store(to, hl_v_load(b + p * HL_GEMM_PANEL));
            hl_v_store(to + HL_VL, hl_v_load(b + p * HL_GEMM_PANEL + HL_VL));
        }
    }
}

/* The last panel, padded with zeros. */
static void pack_edge(int64_t k, int64_t lanes, const float *b, int64_t row_stride, float *packed)
{
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
    for (int64_t p = panel0, count; p < panel1; p += count) {
        int64_t lanes = min64(HL_GEMM_PANEL, n - p * HL_GEMM_PANEL);
        const float *from = b + p * HL_GEMM_PANEL * col_stride;
        float *to = packed + p * k * HL_GEMM_PANEL;
        count = 1;
        if (col_stride == 1 && lanes == HL_GEMM_PANEL) {
            count = min64(PACK_PANELS, min64(panel1, n / HL_GEMM_PANEL) - p);
            pack_rows(k, count, from, row_stride, to);
        } else if (col_stride == 1) {
            pack_edge(k, lanes, from, row_stride, to);
        } else if (row_stride == 1) {
            pack_transposed(k, lanes, from, col_stride, to);
        } else {
            pack_strided(k, lanes, from, row_stride, col_stride, to);
        }
    }
}

/* ---- rows of C ---- */

/* Length of the blocks of K: equal ones of `most` at most, rounded up to a cache line of A. */
static int64_t choose_k_block(int64_t k, int64_t most)
{
    int64_t block = ceil_div(k, k > most ? ceil_div(k, most) : 1);
    return min64((block + 15) / 16 * 16, k);
}

/* Whether A is copied: worth it when several strips read it and its rows share cache sets. */
static bool wants_copy(const hl_gemm *gemm)
{
    return gemm->a_col == 1 && gemm->a_row % 1024 == 0 && gemm->n >= 4 * HL_GEMM_PANEL;
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
                      const a_view *a)
{
    bool last = k0 + k == gemm->k;
    int64_t vectors = ceil_div(gemm->n, HL_VL);
    strip s = {.b_stride = HL_GEMM_PANEL, .b_pair = gemm->k * HL_GEMM_PANEL};
    s.end = (tile_end){
        .alpha = gemm->alpha, .accumulate = k0 > 0 || gemm->accumulate, .relu = last && gemm->relu};
    for (int64_t v = 0; v < vectors; v += s.width) {
        s.width = choose_width(vectors - v, m1 - m0);
        s.end.last_lanes = min64(HL_VL, gemm->n - (v + s.width - 1) * HL_VL);
        s.end.bias = last && gemm->bias ? gemm->bias + v * HL_VL : NULL;
        s.b = gemm->b + (v / 2 * gemm->k + k0) * HL_GEMM_PANEL;
        run_strip(&s, m1 - m0, k, a, gemm->c + m0 * gemm->ldc + v * HL_VL, gemm->ldc);
    }
}

/* ---- thin C ---- */

/* Up to this many columns a tile would use one lane in four or fewer. Then lanes run along the
 * rows of C instead: A goes through registers in squares, transposed. Only 16 lanes make up for
 * that. */
enum { THIN_MAX = HL_VL == 16 ? 4 : 0 };

static void finish_thin(const hl_gemm *gemm, int64_t i, int64_t rows, int64_t j, hl_v sum)
{
    float lanes[HL_VL], *at = gemm->c + i * gemm->ldc + j;
    hl_v y = sum * hl_v_set1(gemm->alpha);
    if (gemm->accumulate) {
        for (int64_t r = 0; r < HL_VL; r++) lanes[r] = r < rows ? at[r * gemm->ldc] : 0;
        y = y + hl_v_load(lanes);
    }
    if (gemm->bias) y = y + hl_v_set1(gemm->bias[j]);
    if (gemm->relu) y = hl_v_max(hl_v_zero(), y);
    hl_v_store(lanes, y);
    for (int64_t r = 0; r < rows; r++) at[r * gemm->ldc] = lanes[r];
}

/* HL_VL rows of `width` columns: the same chain in the order of k as in a tile. */
HL_SIMD void run_thin(const int width, const hl_gemm *gemm, int64_t i, int64_t rows)
{
    hl_v sum[4] = {hl_v_zero(), hl_v_zero(), hl_v_zero(), hl_v_zero()};
    const float *a = gemm->a + i * gemm->a_row, *b = gemm->b;
    for (int64_t k = 0; k < gemm->k; k += HL_VL) {
        int64_t count = min64(HL_VL, gemm->k - k);
        hl_v square[HL_VL];
#pragma GCC unroll 16
        for (int64_t r = 0; r < HL_VL; r++)
            square[r] = r < rows ? hl_v_load_n(a + r * gemm->a_row + k, count) : hl_v_zero();
        hl_v_transpose(square);
        if (count == HL_VL) {
#pragma GCC unroll 16
            for (int64_t t = 0; t < HL_VL; t++)
                for (int j = 0; j < width; j++)
                    sum[j] = hl_v_fma(square[t], hl_v_set1(b[t * HL_GEMM_PANEL + j]), sum[j]);
        } else {
            for (int64_t t = 0; t < count; t++)
                for (int j = 0; j < width; j++)
                    sum[j] = hl_v_fma(square[t], hl_v_set1(b[t * HL_GEMM_PANEL + j]), sum[j]);
        }
        b += HL_VL * HL_GEMM_PANEL;
    }
    for (int j = 0; j < width; j++) finish_thin(gemm, i, rows, j, sum[j]);
}

static void run_thin_rows(const hl_gemm *gemm, int64_t m0, int64_t m1)
{
    for (int64_t i = m0; i < m1; i += HL_VL) {
        int64_t rows = min64(HL_VL, m1 - i);
        switch (gemm->n) {
        case 1: run_thin(1, gemm, i, rows); break;
        case 2: run_thin(2, gemm, i, rows); break;
        case 3: run_thin(3, gemm, i, rows); break;
        default: run_thin(4, gemm, i, rows); break;
        }
    }
}

void hl_gemm_rows(const hl_gemm *gemm, int64_t m0, int64_t m1, float *scratch)
{
    bool copy = wants_copy(gemm), by_row = gemm->a_col == 1;
    if (by_row && gemm->n <= THIN_MAX) {
        run_thin_rows(gemm, m0, m1);
        return;
    }
    int64_t k_block = choose_k_block(gemm->k, copy ? COPY_BLOCK : K_BLOCK);
    for (int64_t i = m0; i < m1; i += M_BLOCK) {
        int64_t end = min64(i + M_BLOCK, m1);
        int64_t k0 = 0;
        do { /* once for an empty reduction too: C is still to be written */
            int64_t k = min64(k_block, gemm->k - k0);
            a_view a = {by_row ? A_ROWS : A_COLUMNS, gemm->a + i * gemm->a_row + k0 * gemm->a_col,
                        by_row ? gemm->a_row : gemm->a_col};
            if (copy) {
                copy_rows(end - i, k, a.at, a.stride, scratch);
                a.at = scratch, a.stride = COPY_STRIDE;
            }
            run_block(gemm, i, end, k0, k, &a);
            k0 += k;
        } while (k0 < gemm->k);
    }
}

/* ---- A^T B ---- */

enum {
    TN_K_BLOCK = 512, /* rows of A and B per pass over a tile */
    TN_TILE_M = 512,  /* the largest tile of C: its block of A goes by once per strip of B, from */
    TN_TILE_N = 512,  /* the second-level cache or the one behind it */
    TN_SPLIT_TILE_M = 64, /* K is split only where tiles of this size are fewer than */
    TN_SPLIT_TILE_N = 128,
    TN_SPLIT_TASKS = 16,
    TN_SPLIT_MIN = 1024,   /* rows of K that pay for writing and adding up a partial sum */
    TN_TASK_MIN = 1 << 20, /* multiply-adds that are not cut further: some 20 us */
    TN_PACK_B_TILES = 8,   /* row tiles that pay for packing B */
    TN_PACK_A_STRIPS = 5   /* strips that pay for packing A */
};

static int64_t round_lanes(int64_t n)
{
    return ceil_div(n, HL_VL) * HL_VL;
}

/* Vectors take the dimension that fills them better; a wide enough gain pays for the transposition
 * of the finished tile. */
static bool wants_swap(int64_t m, int64_t n)
{
    return n * round_lanes(m) * 10 < m * round_lanes(n) * 9;
}

/* A is read in place, one line of it per tile and k. Only where its rows lie a multiple of 4 KB
 * apart, all in one cache set, and a tile uses little of each line, packing is faster. */
static bool packs_a(int64_t columns, int64_t lda)
{
    return !REGISTERS_32 && lda % 1024 == 0 && columns >= TN_PACK_A_STRIPS * HL_GEMM_PANEL;
}

/* B is read in place too: a tile of 32 registers is so tall that a line of B comes in time from
 * wherever it lies, unless its rows lie a multiple of 2 KB apart, in two sets of the first-level
 * cache. */
static bool packs_b(int64_t rows, int64_t ldb)
{
    return (!REGISTERS_32 || ldb % 512 == 0) && rows >= TN_PACK_B_TILES * HL_GEMM_ROWS_BEST;
}

/* Rows of K per split: decides bits, so it knows the shape only. */
static int64_t choose_tile_k(int64_t rows, int64_t cols, int64_t k)
{
    int64_t tiles = ceil_div(rows, TN_SPLIT_TILE_M) * ceil_div(cols, TN_SPLIT_TILE_N), splits = 1;
    if (tiles < TN_SPLIT_TASKS && k >= 2 * TN_SPLIT_MIN)
        splits = min64(ceil_div(TN_SPLIT_TASKS, tiles), k / TN_SPLIT_MIN);
    return ceil_div(ceil_div(k, splits), TN_K_BLOCK) * TN_K_BLOCK;
}

void hl_gemm_tn_plan_make(int64_t m, int64_t n, int64_t k, int64_t n_tasks_min,
                          hl_gemm_tn_plan *out_plan)
{
    bool swapped = wants_swap(m, n);
    int64_t rows = swapped ? n : m, cols = swapped ? m : n, tile_k = choose_tile_k(rows, cols, k);
    int64_t splits = k > 0 ? ceil_div(k, tile_k) : 1;
    int64_t tiles_m = ceil_div(rows, TN_TILE_M), tiles_n = ceil_div(cols, TN_TILE_N);
    int64_t tile_m = 0, tile_n = 0;
    for (;;) {
        tile_m = ceil_div(rows, tiles_m);
        tile_n = hl_gemm_panels(ceil_div(cols, tiles_n)) * HL_GEMM_PANEL;
        tiles_m = ceil_div(rows, tile_m), tiles_n = ceil_div(cols, tile_n);
        if (tiles_m * tiles_n * splits >= n_tasks_min) break;
        if (tile_m * tile_n * min64(tile_k, k) < TN_TASK_MIN) break;
        if (tile_n >= 2 * HL_GEMM_PANEL && tile_n >= tile_m)
            tiles_n *= 2;
        else if (tile_m >= 2 * HL_GEMM_ROWS_BEST)
            tiles_m *= 2;
        else
            break;
    }
    int64_t block = min64(k, TN_K_BLOCK), tiles = tiles_m * tiles_n;
    int64_t floats = block * tile_n + tile_m * (block + HL_VL);
    if (swapped) floats += tile_m * tile_n;
    *out_plan = (hl_gemm_tn_plan){
        .tile_m = tile_m,
        .tile_n = tile_n,
        .tile_k = tile_k,
        .n_tiles_m = tiles_m,
        .n_tiles_n = tiles_n,
        .n_splits = splits,
        .n_tiles = tiles * splits,
        .n_merges = splits > 1 ? tiles : 0,
        .swapped = swapped,
        .partial_bytes = splits > 1 ? (size_t)(splits * m * n) * sizeof(float) : 0,
        .scratch_bytes = (size_t)floats * sizeof(float),
    };
}

/* Rows of A into tiles, column after column within a tile. Whole vectors are stored, each over
 * what the one before wrote too much: masked stores are slow on AMD. */
static void pack_tiles(int64_t k, int64_t rows, const float *a, int64_t lda, float *packed)
{
    row_split split = split_rows(rows, HEIGHT_OF[2]);
    for (int64_t i = 0; i < k; i++, a += lda) {
        const float *from = a;
        float *tile = packed;
        prefetch_row(a, lda, rows);
        for (int64_t t = 0; t < split.n_tiles; t++) {
            int64_t h = split.height + (t < split.n_taller);
            for (int64_t v = 0; v < h; v += HL_VL)
                hl_v_store(tile + i * h + v, hl_v_load_n(from + v, min64(HL_VL, h - v)));
            from += h, tile += tile_floats(k, h);
        }
    }
}

/* What a task works on: C[m, n] += A^T B over rows [k0, k1), A and B possibly exchanged. */
typedef struct tn_task {
    int64_t m, n, k0, k1;
    const float *a, *b; /* at the tile's first column */
    int64_t lda, ldb;
    float *c;
    int64_t ldc;
    float alpha;
    bool accumulate;
} tn_task;

/* One block of the reduction into all strips of the tile. */
static void run_tn_block(const tn_task *task, int64_t k0, int64_t k, float *scratch)
{
    float *packed_b = scratch, *packed_a = scratch + hl_gemm_panels(task->n) * k * HL_GEMM_PANEL;
    a_view a = {A_COLUMNS, task->a + k0 * task->lda, task->lda};
    if (packs_a(task->n, task->lda)) {
        pack_tiles(k, task->m, a.at, task->lda, packed_a);
        a = (a_view){A_TILES, packed_a, 0};
    }
    const float *b = task->b + k0 * task->ldb;
    bool pack_b = packs_b(task->m, task->ldb);
    if (pack_b) hl_gemm_pack(k, task->n, b, task->ldb, 1, 0, hl_gemm_panels(task->n), packed_b);
    int64_t vectors = ceil_div(task->n, HL_VL);
    strip s = {.end = {.alpha = task->alpha, .accumulate = task->accumulate || k0 > task->k0}};
    for (int64_t v = 0; v < vectors; v += s.width) {
        s.width = choose_width(vectors - v, task->m);
        if (a.layout == A_TILES) s.width = (int)min64(2, vectors - v);
        int64_t lanes = min64(s.width * HL_VL, task->n - v * HL_VL);
        s.end.last_lanes = lanes - (s.width - 1) * HL_VL;
        if (pack_b || s.end.last_lanes < HL_VL) {
            float *to = packed_b + v / 2 * k * HL_GEMM_PANEL;
            if (!pack_b)
                hl_gemm_pack(k, lanes, b + v * HL_VL, task->ldb, 1, 0, ceil_div(s.width, 2), to);
            s.b = to, s.b_stride = HL_GEMM_PANEL, s.b_pair = k * HL_GEMM_PANEL;
        } else {
            s.b = b + v * HL_VL, s.b_stride = task->ldb, s.b_pair = HL_GEMM_PANEL;
        }
        run_strip(&s, task->m, k, &a, task->c + v * HL_VL, task->ldc);
    }
}

static void run_tn_task(const tn_task *task, float *scratch)
{
    int64_t k0 = task->k0;
    do {
        int64_t k = min64(TN_K_BLOCK, task->k1 - k0);
        run_tn_block(task, k0, k, scratch);
        k0 += k;
    } while (k0 < task->k1);
}

/* c (cols,rows) (+)= the transpose of t (rows,cols), at most HL_VL x HL_VL */
static void add_square(int64_t rows, int64_t cols, const float *t, int64_t ldt, float *c,
                       int64_t ldc, bool accumulate)
{
    hl_v square[HL_VL];
    for (int64_t r = 0; r < HL_VL; r++)
        square[r] = r < rows ? hl_v_load_n(t + r * ldt, cols) : hl_v_zero();
    hl_v_transpose(square);
    for (int64_t r = 0; r < cols; r++) {
        float *at = c + r * ldc;
        hl_v y = square[r];
        if (accumulate) y = hl_v_load_n(at, rows) + y;
        if (rows == HL_VL)
            hl_v_store(at, y);
        else
            hl_v_store_n(at, y, rows);
    }
}

/* The same for few rows, by fewer exchanges. */
enum { FEW_ROWS = 4 };
static void add_few_rows(int64_t rows, int64_t cols, const float *t, int64_t ldt, float *c,
                         int64_t ldc, bool accumulate)
{
    hl_v woven[FEW_ROWS];
    float columns[HL_VL][FEW_ROWS];
    for (int64_t r = 0; r < FEW_ROWS; r++)
        woven[r] = r < rows ? hl_v_load_n(t + r * ldt, cols) : hl_v_zero();
    hl_v_weave(woven, FEW_ROWS);
    for (int64_t v = 0; v < FEW_ROWS; v++) hl_v_store(columns[0] + v * HL_VL, woven[v]);
    for (int64_t r = 0; r < cols; r++) {
        float *at = c + r * ldc;
        if (rows == FEW_ROWS && !accumulate)
            memcpy(at, columns[r], sizeof columns[r]);
        else
            for (int64_t i = 0; i < rows; i++)
                at[i] = accumulate ? at[i] + columns[r][i] : columns[r][i];
    }
}

/* c (n,m) (+)= the transpose of t (m,n) */
static void add_transposed(int64_t m, int64_t n, const float *t, float *c, int64_t ldc,
                           bool accumulate)
{
    for (int64_t i = 0; i < m; i += HL_VL)
        for (int64_t j = 0; j < n; j += HL_VL) {
            int64_t rows = min64(HL_VL, m - i), cols = min64(HL_VL, n - j);
            const float *from = t + i * n + j;
            float *to = c + j * ldc + i;
            if (rows <= FEW_ROWS)
                add_few_rows(rows, cols, from, n, to, ldc, accumulate);
            else
                add_square(rows, cols, from, n, to, ldc, accumulate);
        }
}

void hl_gemm_tn_tile(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                     float *partials, float *scratch)
{
    int64_t rows = plan->swapped ? gemm->n : gemm->m, cols = plan->swapped ? gemm->m : gemm->n;
    int64_t j = tile % plan->n_tiles_n * plan->tile_n;
    int64_t i = tile / plan->n_tiles_n % plan->n_tiles_m * plan->tile_m;
    int64_t split = tile / (plan->n_tiles_n * plan->n_tiles_m);
    bool partial = plan->n_splits > 1, swapped = plan->swapped;
    int64_t ldc = partial ? gemm->n : gemm->ldc;
    float *c = partial ? partials + split * gemm->m * gemm->n : gemm->c;
    tn_task task = {
        .m = min64(plan->tile_m, rows - i),
        .n = min64(plan->tile_n, cols - j),
        .k0 = split * plan->tile_k,
        .k1 = min64((split + 1) * plan->tile_k, gemm->k),
        .a = (swapped ? gemm->b : gemm->a) + i,
        .lda = swapped ? gemm->ldb : gemm->lda,
        .b = (swapped ? gemm->a : gemm->b) + j,
        .ldb = swapped ? gemm->lda : gemm->ldb,
        .c = swapped ? scratch : c + i * ldc + j,
        .ldc = ldc,
        .alpha = gemm->alpha,
        .accumulate = !partial && gemm->accumulate,
    };
    if (!swapped) {
        run_tn_task(&task, scratch);
        return;
    }
    task.ldc = task.n, task.accumulate = false;
    run_tn_task(&task, scratch + plan->tile_m * plan->tile_n);
    add_transposed(task.m, task.n, scratch, c + j * ldc + i, ldc, !partial && gemm->accumulate);
}

/* Sum of `count` partials of one vector, halves onto halves: a tree that the count fixes. */
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
    int64_t m0 = ti * plan->tile_m, m1 = m0 + plan->tile_m;
    int64_t n0 = tj * plan->tile_n, n1 = n0 + plan->tile_n;
    if (plan->swapped) {
        m0 = tj * plan->tile_n, m1 = m0 + plan->tile_n;
        n0 = ti * plan->tile_m, n1 = n0 + plan->tile_m;
    }
    m1 = min64(m1, gemm->m), n1 = min64(n1, gemm->n);
    for (int64_t i = m0; i < m1; i++)
        for (int64_t j = n0; j < n1; j += HL_VL) {
            int64_t lanes = min64(HL_VL, n1 - j);
            float *c = gemm->c + i * gemm->ldc + j;
            hl_v sum =
                sum_partials(partials + i * gemm->n + j, gemm->m * gemm->n, plan->n_splits, lanes);
            if (gemm->accumulate) sum = hl_v_load_n(c, lanes) + sum;
            hl_v_store_n(c, sum, lanes);
        }
}
