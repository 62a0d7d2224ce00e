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

/* ---- packing ---- */

/* Words (first, second) of two vectors of bfloat16. */
HL_SIMD hl_v interleave(__m256i first, __m256i second)
{
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16);
    return (hl_v)_mm512_or_si512(_mm512_cvtepu16_epi32(first), high);
}
HL_SIMD __m256i load_halves(const uint16_t *at, int64_t lanes)
{
    return _mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1), at);
}
HL_SIMD __m256i round_vector(hl_v x)
{
    uint16_t half[HL_VL];
    hl_v_store_bf16(half, x);
    return _mm256_loadu_si256((const __m256i *)(const void *)half);
}
HL_SIMD __m256i round_lanes(const float *at, int64_t lanes)
{
    return round_vector(lanes >= HL_VL ? hl_v_load(at) : hl_v_load_n(at, lanes));
}

HL_SIMD hl_v load_row_f32(const float *at, int64_t k_stride, int64_t lanes, int64_t left)
{
    __m256i none = _mm256_setzero_si256();
    return interleave(round_lanes(at, lanes), left > 1 ? round_lanes(at + k_stride, lanes) : none);
}
HL_SIMD hl_v load_row_bf16(const uint16_t *at, int64_t k_stride, int64_t lanes, int64_t left)
{
    __m256i none = _mm256_setzero_si256();
    return interleave(load_halves(at, lanes), left > 1 ? load_halves(at + k_stride, lanes) : none);
}

HL_SIMD hl_v load_run_f32(const float *at, int64_t left)
{
    uint16_t half[2 * HL_VL] = {0};
    int64_t first = min64(left, HL_VL), second = min64(left - first, HL_VL);
    hl_v_store_bf16_n(half, hl_v_load_n(at, first), first);
    if (second) hl_v_store_bf16_n(half + HL_VL, hl_v_load_n(at + HL_VL, second), second);
    return (hl_v)_mm512_loadu_si512((const void *)half);
}
HL_SIMD hl_v load_run_bf16(const uint16_t *at, int64_t left)
{
    __mmask32 mask = left >= 2 * HL_VL ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
    return (hl_v)_mm512_maskz_loadu_epi16(mask, at);
}

HL_SIMD hl_v pick_row_f32(const float *at, int64_t k_stride, int64_t n_stride, int64_t lanes,
                          int64_t left)
{
    hl_v second = hl_v_zero();
    if (left > 1) second = pick_lanes(at + k_stride, n_stride, lanes);
    return interleave(round_vector(pick_lanes(at, n_stride, lanes)), round_vector(second));
}
HL_SIMD hl_v pick_row_bf16(const uint16_t *at, int64_t k_stride, int64_t n_stride, int64_t lanes,
                           int64_t left)
{
    uint32_t words[HL_VL] = {0};
    for (int64_t j = 0; j < lanes; j++) {
        words[j] = at[j * n_stride];
        if (left > 1) words[j] |= (uint32_t)at[j * n_stride + k_stride] << 16;
    }
    return (hl_v)_mm512_loadu_si512((const void *)words);
}

#define TERMS 2

#define SOURCE     float
#define PACK(name) name##_f32
#define load_words load_row_f32
#define load_run   load_run_f32
#define pick_words pick_row_f32
#include "kernels/cpu/gemm_pack.h"

#define SOURCE     uint16_t
#define PACK(name) name##_bf16
#define load_words load_row_bf16
#define load_run   load_run_bf16
#define pick_words pick_row_bf16
#include "kernels/cpu/gemm_pack.h"

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
    return (hl_gemm_columns){packed, m * (int64_t)sizeof(hl_gemm_word), false};
}

/* ---- the type ---- */

/* A block of K and a panel of B are 64 KB. */
const hl_gemm_type hl_gemm_bf16 = {
    .bytes = sizeof(uint16_t),
    .terms = TERMS,
    .k_block = 512,
    .tn_block = 128,
    .tiles = {TILES(TILE_ENTRY)},
    .pack_f32 = &packer_f32,
    .pack_bf16 = &packer_bf16,
    .view_columns = view_columns,
};

#endif
