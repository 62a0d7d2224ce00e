/* Division by a number that the host knows before the launch: no division, as by a constant.
 *
 * A divisor d > 1 is three words: a multiplier, d itself, a shift. For i below 2^b, b = 31 or 63,
 * 2^(l - 1) < d <= 2^l and the multiplier ceil(2^(b + l) / d), i / d is (i * multiplier >> (b + 1))
 * >> (l - 1) exactly (Granlund and Montgomery 1994). */
#ifndef HL_CUDA_DIVISOR_H
#define HL_CUDA_DIVISOR_H

#include "kernels/cuda/params.h"

enum { HL_CUDA_DIVISOR_WORDS = 3 };

#ifndef __CUDACC__
/* b: 31 or 63. */
static inline void hl_cuda_divisor_make(int64_t d, int b, uint64_t *out_words)
{
    int log = 1;
    while ((uint64_t)1 << log < (uint64_t)d) log++;
    unsigned __int128 power = (unsigned __int128)1 << (b + log);
    out_words[0] = (uint64_t)((power + (uint64_t)d - 1) / (uint64_t)d);
    out_words[1] = (uint64_t)d;
    out_words[2] = (uint64_t)(log - 1);
}
#endif

#if defined(__CUDACC__) || defined(HL_EMULATE)
/* i / divisor, and the remainder. */
HL_DEVICE uint32_t hl_divide_by(const uint64_t *divisor, uint32_t i, uint32_t *out_rest)
{
    uint32_t quotient = hl_mul_high(i, (uint32_t)divisor[0]) >> (uint32_t)divisor[2];
    *out_rest = i - quotient * (uint32_t)divisor[1];
    return quotient;
}
HL_DEVICE uint64_t hl_divide_by(const uint64_t *divisor, uint64_t i, uint64_t *out_rest)
{
    uint64_t quotient = hl_mul_high(i, divisor[0]) >> (uint32_t)divisor[2];
    *out_rest = i - quotient * divisor[1];
    return quotient;
}
#endif

#endif
