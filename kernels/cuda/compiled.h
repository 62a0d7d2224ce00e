/* What generated kernels take beside operands and the tile iterator: numbers, which are all that a
 * program is not specialised on (generate.c). The words of a program's numbers stand in the order
 * in which its source names them.
 *
 * A generated source defines HL_CUDA_NUMBERS as its program's count before it includes this; for
 * launchers it is the most that a program can have. */
#ifndef HL_CUDA_COMPILED_H
#define HL_CUDA_COMPILED_H

#include "kernels/cuda/divisor.h"
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

#if defined(__CUDACC__) || defined(HL_EMULATE)
/* A number as registers hold it. */
template <class V> HL_DEVICE V hl_number(uint64_t word)
{
    if constexpr (!hl_pw_math<V>::IS_REAL) return (V)word;
    return sizeof(V) == sizeof(float) ? (V)hl_bits_float((uint32_t)word) : (V)hl_bits_double(word);
}
#endif

#endif
