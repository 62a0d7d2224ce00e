/* GEMM, bfloat16 with float32 sums: the inner loops of gemm_tile.h's tiles, and what packing reads.
 *
 * One instruction multiplies a pair of neighbours in k and adds both products to a float32 lane.
 * So k runs in pairs: a row of A is pairs as it lies, and a word of packed B is the pair (k, k + 1)
 * of a column. An odd run ends with a pair whose second half is zero on both sides: gemm_core.c
 * copies such rows of A. A^T B needs pairs of rows of A side by side: its block of A is interleaved
 * into words first, which costs a pass over it per tile of C, of which a row of tiles has few.
 *
 * Rejected: bfloat16 for partial sums (it rounds each split). */
#include "kernels/cpu/gemm_tile.h"

#if HL_ISA_AVX512
#pragma GCC target("avx512bf16")
#include "kernels/cpu/gemm_pairs.h"

/* Two neighbours in k, the first in the low half. Rows of an odd number of bfloat16 make it
 * unaligned. */
typedef uint32_t pair __attribute__((may_alias, aligned(2)));

/* ---- inner loops: sum += A B ---- */

HL_SIMD hl_v multiply_pairs(pair y, __m512i x, hl_v sum)
{
    __m512i all = _mm512_set1_epi32((int)y);
    return (hl_v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)all, (__m512bh)x);
}

#define LOAD_B                                                                                     \
    __m512i x[4];                                                                                  \
    _Pragma("GCC unroll 4") for (int v = 0; v < width; v++) x[v] =                                 \
        _mm512_loadu_si512((const void *)(b + v / 2 * b_pair + v % 2 * HL_VL));                    \
    b += HL_GEMM_PANEL

/* With an odd stride, rows begin amid a word. Three rows share a pointer, as in gemm_f32.c. */
HL_SIMD void add_rows(const int height, const int width, hl_v sum[][4], const hl_gemm_tile *tile)
{
    const hl_gemm_word *b = tile->b;
    const int64_t k = tile->k, b_pair = tile->b_pair, a_stride = tile->a_stride;
    const char *row[(HEIGHT_MAX + 2) / 3];
#pragma GCC unroll 14
    for (int i = 0; i < height; i += 3) row[i / 3] = (const char *)tile->a + i * a_stride;
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            pair y = *(const pair *)(const void *)(row[i / 3] + i % 3 * a_stride);
            if (i % 3 == 2 || i + 1 == height) row[i / 3] += sizeof y;
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = multiply_pairs(y, x[v], sum[i][v]);
        }
    }
}

/* A column is pairs, one word a row. */
HL_SIMD void add_columns(const int height, const int width, hl_v sum[][4], const hl_gemm_tile *tile)
{
    const hl_gemm_word *b = tile->b;
    const int64_t k = tile->k, b_pair = tile->b_pair, a_stride = tile->a_stride;
    const unsigned char *a = tile->a;
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            pair y = ((const pair *)(const void *)a)[i];
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = multiply_pairs(y, x[v], sum[i][v]);
        }
        a += a_stride;
    }
}

/* A pointer per row, and one index for all of them, as in gemm_f32.c. */
HL_SIMD void add_segments(const int height, const int width, hl_v sum[][4],
                          const hl_gemm_tile *tile)
{
    const hl_gemm_word *b = tile->b;
    const int64_t k = tile->k, b_pair = tile->b_pair;
    const unsigned char *list = tile->a;
    for (int64_t s = 0; s < tile->n_segments; s++, list += tile->a_stride) {
        const void *const *segments = (const void *const *)(const void *)list;
        const pair *row[HEIGHT_MAX];
#pragma GCC unroll 14
        for (int i = 0; i < height; i++)
            row[i] = (const pair *)(const void *)((const char *)segments[i] + tile->segment_offset);
#pragma GCC unroll 4
        for (int64_t t = 0; t < k; t++) {
            LOAD_B;
#pragma GCC unroll 14
            for (int i = 0; i < height; i++) {
                pair y = row[i][t];
#pragma GCC unroll 4
                for (int v = 0; v < width; v++) sum[i][v] = multiply_pairs(y, x[v], sum[i][v]);
            }
        }
    }
}

TILES(TILE_FUNCTION)

/* ---- A^T B ---- */

/* Rows 2t and 2t + 1 of A (k,m) as words (t,m). */
static hl_gemm_columns view_columns(int64_t k, int64_t m, int64_t n, const void *a, int64_t lda,
                                    hl_gemm_word *packed)
{
    (void)n;
    const uint16_t *from = a;
    hl_gemm_word *to = packed;
    for (int64_t t = 0; t < k; t += 2, from += 2 * lda, to += m)
        for (int64_t i = 0; i < m; i += HL_VL) {
            int64_t lanes = min64(HL_VL, m - i);
            hl_v words = load_row_bf16(from + i, lda, lanes, k - t);
            hl_v_store_n((float *)(void *)(to + i), words, lanes);
        }
    return (hl_gemm_columns){.at = packed, .stride = m * (int64_t)sizeof(hl_gemm_word)};
}

/* ---- the type ---- */

/* A block of K and a panel of B are 64 KB. */
const hl_gemm_type hl_gemm_bf16 = {
    .bytes = sizeof(uint16_t),
    .terms = TERMS,
    .rows_best = HL_GEMM_ROWS_BEST,
    .m_block = 10 * HL_GEMM_ROWS_BEST,
    .k_block = 512,
    .tn_block = 128,
    .tiles = {TILES(TILE_ENTRY)},
    .pack_f32 = &packer_f32,
    .pack_bf16 = &packer_bf16,
    .view_columns = view_columns,
};

#endif
