/* Horizontal fusion of pointwise programs: one launch, a range of blocks for each, operands and
 * numbers one after the other. Everything that differs from model to model is a parameter, so that
 * any number of casts, of any sizes, is the same kernel.
 *
 * None of them has sums: those need partials, scratch and launches of their own, and the launch is
 * not all of their time. */
#ifndef HL_CUDA_PARTS_H
#define HL_CUDA_PARTS_H

#include "kernels/cuda/tile_iterator.h"

/* At most: parts; operands of all parts; numbers of all generated programs (compiled.h). */
enum { HL_CUDA_PARTS = 32, HL_CUDA_PARTS_OPERANDS = 128, HL_CUDA_PARTS_NUMBERS = 256 };

typedef struct hl_cuda_parts {
    int64_t n[HL_CUDA_PARTS];               /* elements */
    int32_t first_block[HL_CUDA_PARTS + 1]; /* behind the last part: the number of blocks */
    uint16_t first_number[HL_CUDA_PARTS];
    uint8_t first_operand[HL_CUDA_PARTS];
    uint8_t program[HL_CUDA_PARTS]; /* number in a generated kernel, which has equal ones once */
} hl_cuda_parts;

#if defined(__CUDACC__) || defined(HL_EMULATE)
/* Finds the part of a block by bisection, since each comparison reads memory. */
HL_DEVICE int hl_part_find(const hl_cuda_parts &parts, int block)
{
    int part = 0;
    HL_UNROLL
    for (int half = HL_CUDA_PARTS / 2; half > 0; half /= 2)
        if (block >= parts.first_block[part + half]) part += half;
    return part;
}

/* A program of tile_iterator.h without sums over the elements of a part, by the part's blocks. */
template <class P>
HL_DEVICE void hl_part_iterate(const P &program, const hl_cuda_parts &parts, int part, int block)
{
    typename P::V none[1][P::WIDTH];
    int64_t n = parts.n[part], tile = (int64_t)HL_CUDA_TILE_THREADS * program.width();
    int64_t first = block - parts.first_block[part];
    int64_t stride = (parts.first_block[part + 1] - parts.first_block[part]) * tile;
    bool is_aligned = program.is_aligned();
    for (int64_t i = first * tile + (int64_t)hl_thread() * program.width(); i < n; i += stride) {
        if (is_aligned && n - i >= P::WIDTH) {
            program.template take<P::WIDTH>(i, none);
            continue;
        }
        HL_UNROLL_BY(1)
        for (int64_t k = i; k < i + program.width() && k < n; k++)
            program.template take<1>(k, none);
    }
}
#endif

#endif
