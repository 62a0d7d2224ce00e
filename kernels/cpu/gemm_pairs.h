/* Words of bfloat16, pairs of neighbours in k: what packing reads, for vectors (gemm_bf16.c) and
 * for tiles (gemm_amx.c), whose words are the same. */
#ifndef HL_KERNELS_CPU_GEMM_PAIRS_H
#define HL_KERNELS_CPU_GEMM_PAIRS_H

#include "kernels/cpu/gemm_tile.h"

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

/* Term e of a run stands in half e % 2 of word e / 2; a goes into the low half, b into the high. */
HL_SIMD hl_v pick_term_pairs(const hl_gemm_word *turned, int64_t a, int64_t b)
{
    __m512i low = _mm512_load_si512(turned + a / 2 * HL_GEMM_PANEL);
    __m512i high = _mm512_load_si512(turned + b / 2 * HL_GEMM_PANEL);
    low = a % 2 ? _mm512_srli_epi32(low, 16) : low;
    high = b % 2 ? high : _mm512_slli_epi32(high, 16);
    return (hl_v)_mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
}

#define TERMS 2

#define SOURCE     float
#define PACK(name) name##_f32
#define load_words load_row_f32
#define load_run   load_run_f32
#define pick_words pick_row_f32
#define pick_term  pick_term_pairs
#include "kernels/cpu/gemm_pack.h"

#define SOURCE     uint16_t
#define PACK(name) name##_bf16
#define load_words load_row_bf16
#define load_run   load_run_bf16
#define pick_words pick_row_bf16
#define pick_term  pick_term_pairs
#include "kernels/cpu/gemm_pack.h"

#endif
