/* GEMM, bfloat16 to float32: packing in pairs, register tiles, and the loops around them.
 *
 * The tiles are gemm.c's: up to 14 x 2 vectors of C in registers, B as vectors from packed panels,
 * A one pair at a time, broadcast; here a step is two k. A^T B needs pairs of rows of A side by
 * side: its block of A is woven into words first, which costs a pass over it per tile of C, of
 * which a row of tiles has few.
 *
 * Rejected: sharing gemm.c's tile by a macro for the multiply (its loops are in floats, these in
 * words of which two make a k; the shared text had more conditions than code), bfloat16 for
 * partial sums (rounds each split). */
#include "kernels/cpu/gemm_bf16.h"

#include "kernels/cpu/gemm_tile.h"

#if HL_ISA_AVX512
#pragma GCC target("avx512bf16")

enum {
    PAIR_BLOCK = 512, /* pairs per pass: a panel's block is 64 KB */
    M_BLOCK = 10 * HL_GEMM_ROWS_BEST,
    COPY_STRIDE = 2 * PAIR_BLOCK + 32, /* bfloat16s: a cache line off the power of two */
    TN_PAIR_BLOCK = 128 /* as many rows of A and B as the float32 plan's blocks have */
};

/* ---- the register tile ---- */

typedef struct tile_end {
    bool accumulate, relu;
    const float *bias;  /* at the tile's first column */
    int64_t last_lanes; /* columns in the last vector */
} tile_end;

typedef void (*tile_fn)(int64_t pairs, const hl_bf16_pair *a, int64_t a_stride,
                        const hl_bf16_pair *b, int64_t b_pair, float *c, int64_t ldc,
                        const tile_end *end);

HL_SIMD hl_v multiply_pairs(hl_bf16_pair y, __m512i x, hl_v sum)
{
    __m512i all = _mm512_set1_epi32((int)y);
    return (hl_v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)x);
}

#define EACH_VECTOR                                                                                \
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++)                                      \
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)

HL_SIMD void finish_tile(const int height, const int width, hl_v sum[][4], float *c, int64_t ldc,
                         const tile_end *end)
{
#define LANES (v + 1 < width ? HL_VL : end->last_lanes)
    float *row = c;
    if (end->accumulate) {
        _Pragma("GCC unroll 14") for (int i = 0; i < height; i++, row += ldc)
            _Pragma("GCC unroll 4") for (int v = 0; v < width; v++) sum[i][v] =
                sum[i][v] + hl_v_load_n(row + v * HL_VL, LANES);
    }
    if (end->bias) EACH_VECTOR sum[i][v] = sum[i][v] + hl_v_load_n(end->bias + v * HL_VL, LANES);
    if (end->relu) EACH_VECTOR sum[i][v] = hl_v_max(hl_v_zero(), sum[i][v]);
    row = c;
    if (end->last_lanes == HL_VL) {
        _Pragma("GCC unroll 14") for (int i = 0; i < height; i++, row += ldc)
        {
            /* The compiler would hold an address for every row. */
            __asm__("" : "+r"(row));
            _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)
                hl_v_store(row + v * HL_VL, sum[i][v]);
        }
        return;
    }
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++, row += ldc)
    {
        __asm__("" : "+r"(row));
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)
            hl_v_store_n(row + v * HL_VL, sum[i][v], LANES);
    }
#undef LANES
}

#define LOAD_B                                                                                     \
    __m512i x[4];                                                                                  \
    _Pragma("GCC unroll 4") for (int v = 0; v < width; v++) x[v] =                                 \
        _mm512_loadu_si512((const void *)(b + v / 2 * b_pair + v % 2 * HL_VL));                    \
    b += HL_GEMM_PANEL

/* A by row, a_stride bfloat16s apart: with an odd stride, rows begin amid a word.
 * Three rows share a pointer, as in gemm.c. */
HL_SIMD void run_tile_rows(const int height, const int width, int64_t pairs, const hl_bf16_pair *a,
                           int64_t a_stride, const hl_bf16_pair *b, int64_t b_pair, float *c,
                           int64_t ldc, const tile_end *end)
{
    hl_v sum[HEIGHT_MAX][4];
    const char *row[(HEIGHT_MAX + 2) / 3];
    const int64_t stride = 2 * a_stride; /* bytes */
#pragma GCC unroll 14
    for (int i = 0; i < height; i++) {
        if (i % 3 == 0) row[i / 3] = (const char *)a + i * stride;
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) sum[i][v] = hl_v_zero();
    }
#pragma GCC unroll 4
    for (int64_t t = 0; t < pairs; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_bf16_pair y = *(const hl_bf16_pair *)(const void *)(row[i / 3] + i % 3 * stride);
            if (i % 3 == 2 || i + 1 == height) row[i / 3] += sizeof y;
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = multiply_pairs(y, x[v], sum[i][v]);
        }
    }
    finish_tile(height, width, sum, c, ldc, end);
}

/* A woven: a column of pairs, one word a row, every a_stride words. */
HL_SIMD void run_tile_columns(const int height, const int width, int64_t pairs,
                              const hl_bf16_pair *a, int64_t a_stride, const hl_bf16_pair *b,
                              int64_t b_pair, float *c, int64_t ldc, const tile_end *end)
{
    hl_v sum[HEIGHT_MAX][4];
#pragma GCC unroll 14
    for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int v = 0; v < width; v++) sum[i][v] = hl_v_zero();
#pragma GCC unroll 4
    for (int64_t t = 0; t < pairs; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_bf16_pair y = a[i];
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = multiply_pairs(y, x[v], sum[i][v]);
        }
        a += a_stride;
    }
    finish_tile(height, width, sum, c, ldc, end);
}

#define X(h, w)                                                                                    \
    static void run_rows_##h##x##w(int64_t pairs, const hl_bf16_pair *a, int64_t a_stride,         \
                                   const hl_bf16_pair *b, int64_t b_pair, float *c, int64_t ldc,   \
                                   const tile_end *end)                                            \
    {                                                                                              \
        run_tile_rows(h, w, pairs, a, a_stride, b, b_pair, c, ldc, end);                           \
    }                                                                                              \
    static void run_columns_##h##x##w(int64_t pairs, const hl_bf16_pair *a, int64_t a_stride,      \
                                      const hl_bf16_pair *b, int64_t b_pair, float *c,             \
                                      int64_t ldc, const tile_end *end)                            \
    {                                                                                              \
        run_tile_columns(h, w, pairs, a, a_stride, b, b_pair, c, ldc, end);                        \
    }
TILES(X)
#undef X
#define X(h, w) [w][h] = run_rows_##h##x##w,
static const tile_fn RUN_ROWS[WIDTH_MAX + 1][HEIGHT_MAX + 1] = {TILES(X)};
#undef X
#define X(h, w) [w][h] = run_columns_##h##x##w,
static const tile_fn RUN_COLUMNS[WIDTH_MAX + 1][HEIGHT_MAX + 1] = {TILES(X)};
#undef X

/* Rows of C by pairs [0, pairs) in all strips of n columns; b at the first pair of the block, its
 * panels `b_pair` words apart. by_row: a_stride is in bfloat16s, else in words. */
typedef struct block {
    bool by_row;
    const hl_bf16_pair *a;
    int64_t a_stride;
    const hl_bf16_pair *b;
    int64_t b_pair, pairs, rows, n;
    float *c;
    int64_t ldc;
    tile_end end; /* bias at column 0 */
} block;

static void run_strip(const block *k, int width, const tile_end *end, const hl_bf16_pair *b,
                      float *c)
{
    const tile_fn *run = k->by_row ? RUN_ROWS[width] : RUN_COLUMNS[width];
    row_split split = split_rows(k->rows, HEIGHT_OF[width]);
    const char *a = (const char *)k->a;
    for (int64_t t = 0; t < split.n_tiles; t++) {
        int64_t h = split.height + (t < split.n_taller);
        run[h](k->pairs, (const hl_bf16_pair *)(const void *)a, k->a_stride, b, k->b_pair, c,
               k->ldc, end);
        a += h * (k->by_row ? 2 * k->a_stride : (int64_t)sizeof(hl_bf16_pair));
        c += h * k->ldc;
    }
}

static void run_block(const block *k)
{
    int64_t vectors = ceil_div(k->n, HL_VL);
    int width;
    for (int64_t v = 0; v < vectors; v += width) {
        tile_end end = k->end;
        width = choose_width(vectors - v, k->rows);
        end.last_lanes = min64(HL_VL, k->n - (v + width - 1) * HL_VL);
        if (end.bias) end.bias += v * HL_VL;
        run_strip(k, width, &end, k->b + v / 2 * k->b_pair, k->c + v * HL_VL);
    }
}

/* ---- packing ---- */

static int64_t count_pairs(int64_t k)
{
    return (k + 1) / 2;
}

size_t hl_gemm_bf16_pack_bytes(int64_t k, int64_t n)
{
    return (size_t)(hl_gemm_panels(n) * count_pairs(k) * HL_GEMM_PANEL) * sizeof(hl_bf16_pair);
}

/* Words (first, second) of two vectors of bfloat16. */
HL_SIMD __m512i weave(__m256i first, __m256i second)
{
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(first), high);
}
HL_SIMD __m256i load_lanes(const uint16_t *at, int64_t lanes)
{
    return _mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1), at);
}
HL_SIMD __m256i round_lanes(const float *at, int64_t lanes)
{
    hl_v x = lanes == HL_VL ? hl_v_load(at) : hl_v_load_n(at, lanes);
    uint16_t half[HL_VL];
    hl_v_store_bf16(half, x);
    return _mm256_loadu_si256((const __m256i *)(const void *)half);
}

/* Rows of B are rows in memory: two of them are woven. TYPE, LOAD. */
#define PACK_ROWS(name, TYPE, LOAD)                                                                \
    static void name(int64_t k, int64_t lanes, const TYPE *b, int64_t row_stride,                  \
                     hl_bf16_pair *packed)                                                         \
    {                                                                                              \
        int64_t first = min64(lanes, HL_VL), second = lanes - first;                               \
        __m256i none = _mm256_setzero_si256();                                                     \
        for (int64_t i = 0; i < k; i += 2, b += 2 * row_stride, packed += HL_GEMM_PANEL) {         \
            const TYPE *next = b + row_stride;                                                     \
            bool both = i + 1 < k;                                                                 \
            __m512i low = weave(LOAD(b, first), both ? LOAD(next, first) : none);                  \
            __m512i high = _mm512_setzero_si512();                                                 \
            if (second)                                                                            \
                high = weave(LOAD(b + HL_VL, second), both ? LOAD(next + HL_VL, second) : none);   \
            _mm512_storeu_si512((void *)packed, low);                                              \
            _mm512_storeu_si512((void *)(packed + HL_VL), high);                                   \
        }                                                                                          \
    }
PACK_ROWS(pack_rows_f32, float, round_lanes)
PACK_ROWS(pack_rows, uint16_t, load_lanes)

/* Columns of the panel are rows in memory: their pairs lie side by side, so squares of words are
 * transposed. */
static void transpose_pairs(hl_v square[], int64_t pairs, hl_bf16_pair *packed)
{
    hl_v_transpose(square);
    for (int64_t t = 0; t < pairs; t++)
        hl_v_store((float *)(void *)(packed + t * HL_GEMM_PANEL), square[t]);
}

static inline hl_v load_pairs(const uint16_t *at, int64_t count)
{
    __mmask32 mask = count >= 2 * HL_VL ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1;
    return (hl_v)_mm512_maskz_loadu_epi16(mask, at);
}
static inline hl_v round_pairs(const float *at, int64_t count)
{
    uint16_t half[2 * HL_VL] = {0};
    int64_t first = min64(count, HL_VL);
    hl_v_store_bf16_n(half, hl_v_load_n(at, first), first);
    if (count > HL_VL)
        hl_v_store_bf16_n(half + HL_VL, hl_v_load_n(at + HL_VL, count - HL_VL), count - HL_VL);
    return (hl_v)_mm512_loadu_si512(half);
}

#define PACK_COLUMNS(name, TYPE, LOAD)                                                             \
    static void name(int64_t k, int64_t lanes, const TYPE *b, int64_t col_stride,                  \
                     hl_bf16_pair *packed)                                                         \
    {                                                                                              \
        for (int64_t v = 0; v < HL_GEMM_PANEL; v += HL_VL)                                         \
            for (int64_t i = 0; i < k; i += 2 * HL_VL) {                                           \
                int64_t count = min64(2 * HL_VL, k - i);                                           \
                hl_v square[HL_VL];                                                                \
                for (int64_t j = 0; j < HL_VL; j++)                                                \
                    square[j] =                                                                    \
                        v + j < lanes ? LOAD(b + (v + j) * col_stride + i, count) : hl_v_zero();   \
                transpose_pairs(square, count_pairs(count), packed + i / 2 * HL_GEMM_PANEL + v);   \
            }                                                                                      \
    }
PACK_COLUMNS(pack_columns_f32, float, round_pairs)
PACK_COLUMNS(pack_columns, uint16_t, load_pairs)

#define PACK(name, TYPE, rows, columns)                                                            \
    void name(int64_t k, int64_t n, const TYPE *b, int64_t row_stride, int64_t col_stride,         \
              int64_t panel0, int64_t panel1, hl_bf16_pair *packed)                                \
    {                                                                                              \
        for (int64_t p = panel0; p < panel1; p++) {                                                \
            int64_t lanes = min64(HL_GEMM_PANEL, n - p * HL_GEMM_PANEL);                           \
            const TYPE *from = b + p * HL_GEMM_PANEL * col_stride;                                 \
            hl_bf16_pair *to = packed + p * count_pairs(k) * HL_GEMM_PANEL;                        \
            if (col_stride == 1)                                                                   \
                rows(k, lanes, from, row_stride, to);                                              \
            else                                                                                   \
                columns(k, lanes, from, col_stride, to);                                           \
        }                                                                                          \
    }
PACK(hl_gemm_bf16_pack_f32, float, pack_rows_f32, pack_columns_f32)
PACK(hl_gemm_bf16_pack, uint16_t, pack_rows, pack_columns)

/* ---- rows of C ---- */

/* A is copied where pairs can't be read in place: an odd K's last pair must end in zero, and
 * columns are no rows. And where several strips read rows that share cache sets. */
static bool wants_copy(const hl_gemm_bf16 *gemm)
{
    bool collides = gemm->a_row % 1024 == 0 && gemm->n >= 4 * HL_GEMM_PANEL;
    return gemm->a_col != 1 || gemm->k % 2 || collides;
}

size_t hl_gemm_bf16_scratch_bytes(const hl_gemm_bf16 *gemm)
{
    return wants_copy(gemm) ? (size_t)M_BLOCK * COPY_STRIDE * sizeof(uint16_t) : 0;
}

static void copy_a(const hl_gemm_bf16 *gemm, int64_t m0, int64_t rows, int64_t k0, int64_t k,
                   uint16_t *copy)
{
    for (int64_t i = 0; i < rows; i++, copy += COPY_STRIDE) {
        const uint16_t *from = gemm->a + (m0 + i) * gemm->a_row + k0 * gemm->a_col;
        if (gemm->a_col == 1)
            memcpy(copy, from, (size_t)k * sizeof *copy);
        else
            for (int64_t t = 0; t < k; t++) copy[t] = from[t * gemm->a_col];
        if (k % 2) copy[k] = 0;
    }
}

/* Pairs of a block of the reduction: equal blocks, a cache line of A at least. */
static int64_t choose_block(int64_t pairs)
{
    int64_t block_pairs = ceil_div(pairs, pairs > PAIR_BLOCK ? ceil_div(pairs, PAIR_BLOCK) : 1);
    return min64((block_pairs + 15) / 16 * 16, pairs);
}

void hl_gemm_bf16_rows(const hl_gemm_bf16 *gemm, int64_t m0, int64_t m1, void *scratch)
{
    int64_t pairs = count_pairs(gemm->k), step = choose_block(pairs);
    bool copy = wants_copy(gemm);
    for (int64_t i = m0; i < m1; i += M_BLOCK)
        for (int64_t t = 0; t < pairs; t += step) {
            bool last = t + step >= pairs;
            block k = {.by_row = true, .a_stride = copy ? COPY_STRIDE : gemm->a_row};
            k.rows = min64(i + M_BLOCK, m1) - i;
            k.pairs = min64(step, pairs - t);
            if (copy) copy_a(gemm, i, k.rows, 2 * t, min64(2 * k.pairs, gemm->k - 2 * t), scratch);
            const uint16_t *a = copy ? scratch : gemm->a + i * gemm->a_row + 2 * t;
            k.a = (const hl_bf16_pair *)(const void *)a;
            k.b = gemm->b + t * HL_GEMM_PANEL, k.b_pair = pairs * HL_GEMM_PANEL;
            k.n = gemm->n, k.c = gemm->c + i * gemm->ldc, k.ldc = gemm->ldc;
            k.end = (tile_end){.accumulate = t > 0, .relu = last && gemm->relu};
            if (last) k.end.bias = gemm->bias;
            run_block(&k);
        }
}

/* ---- A^T B ---- */

/* Rows 2t and 2t + 1 of A (k,m) as words (t,m). */
static void weave_rows(int64_t k, int64_t m, const uint16_t *a, int64_t lda, hl_bf16_pair *words)
{
    for (int64_t t = 0; t < k; t += 2, a += 2 * lda, words += m)
        for (int64_t i = 0; i < m; i += HL_VL) {
            int64_t lanes = min64(HL_VL, m - i);
            __m256i second = t + 1 < k ? load_lanes(a + lda + i, lanes) : _mm256_setzero_si256();
            __mmask16 mask = (__mmask16)((1u << lanes) - 1);
            _mm512_mask_storeu_epi32((void *)(words + i), mask,
                                     weave(load_lanes(a + i, lanes), second));
        }
}

/* c (n,m) = the transpose of t (m,n): only where C is narrow, so there is little of it. */
static void store_transposed(int64_t m, int64_t n, const float *t, float *c, int64_t ldc)
{
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < m; i++) c[j * ldc + i] = t[i * n + j];
}

void hl_gemm_bf16_tn_tile(const hl_gemm_bf16_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                          float *partials, float *scratch)
{
    bool swapped = plan->swapped;
    int64_t rows = swapped ? gemm->n : gemm->m, cols = swapped ? gemm->m : gemm->n;
    int64_t j = tile % plan->n_tiles_n * plan->tile_n;
    int64_t i = tile / plan->n_tiles_n % plan->n_tiles_m * plan->tile_m;
    int64_t split = tile / (plan->n_tiles_n * plan->n_tiles_m);
    int64_t m = min64(plan->tile_m, rows - i), n = min64(plan->tile_n, cols - j);
    int64_t lda = rows, ldb = cols, k0 = split * plan->tile_k;
    int64_t k1 = min64(k0 + plan->tile_k, gemm->k);
    float *c = plan->n_splits > 1 ? partials + split * gemm->m * gemm->n : gemm->c;
    block k = {.b_pair = 0, .a_stride = m, .rows = m, .n = n, .c = c + i * gemm->n + j};
    k.ldc = gemm->n;
    if (swapped) {
        k.c = scratch, k.ldc = n;
        scratch += plan->tile_m * plan->tile_n;
    }
    int64_t most = min64(TN_PAIR_BLOCK, count_pairs(k1 - k0));
    hl_bf16_pair *a = (hl_bf16_pair *)(void *)scratch, *b = a + most * m;
    k.a = a, k.b = b;
    for (int64_t t = k0; t < k1; t += 2 * TN_PAIR_BLOCK) {
        int64_t length = min64(2 * TN_PAIR_BLOCK, k1 - t);
        weave_rows(length, m, (swapped ? gemm->b : gemm->a) + t * lda + i, lda, a);
        hl_gemm_bf16_pack(length, n, (swapped ? gemm->a : gemm->b) + t * ldb + j, ldb, 1, 0,
                          hl_gemm_panels(n), b);
        k.pairs = count_pairs(length);
        k.b_pair = k.pairs * HL_GEMM_PANEL;
        k.end = (tile_end){.accumulate = t > k0};
        run_block(&k);
    }
    if (swapped) store_transposed(m, n, k.c, c + j * gemm->n + i, gemm->n);
}

#endif
