/* What generated kernels take beside operands and the tile iterator: numbers, which are all that a
 * program is not specialised on (generate.c). The words of a program's numbers stand in the order
 * in which its source names them.
 *
 * A generated source defines HL_CUDA_NUMBERS as its program's count before it includes this; for
 * launchers it is the most that a program can have. */
#ifndef HL_CUDA_COMPILED_H
#define HL_CUDA_COMPILED_H

#include "kernels/cuda/params.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/tile_iterator.h"

/* Of 24 inputs seven strides each, of 72 random steps three words each, of eight divisors three. */
#ifndef HL_CUDA_NUMBERS
#define HL_CUDA_NUMBERS 408
#endif

typedef struct hl_cuda_compiled_params {
    struct {
        HL_CUDA_AT(void) operand[HL_CUDA_OPERANDS];
        HL_CUDA_AT(void) scratch;
    } at;
    hl_cuda_tiles tiles;
    uint64_t number[HL_CUDA_NUMBERS];
} hl_cuda_compiled_params;

typedef struct hl_cuda_compiled_parts_params {
    struct {
        HL_CUDA_AT(void) operand[HL_CUDA_PARTS_OPERANDS];
    } at;
    hl_cuda_parts parts;
    uint64_t number[HL_CUDA_PARTS_NUMBERS];
} hl_cuda_compiled_parts_params;

/* A divisor d > 1 is three words: a multiplier, d itself, a shift. For i below 2^b, b = 31 or 63,
 * 2^(l - 1) < d <= 2^l and the multiplier ceil(2^(b + l) / d), i / d is (i * multiplier >> (b + 1))
 * >> (l - 1) exactly (Granlund and Montgomery 1994): no division, as by a constant. */
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

/* A number as registers hold it. */
template <class V> HL_DEVICE V hl_number(uint64_t word)
{
    if constexpr (!hl_pw_math<V>::IS_REAL) return (V)word;
    return sizeof(V) == sizeof(float) ? (V)hl_bits_float((uint32_t)word) : (V)hl_bits_double(word);
}
#endif

#endif
