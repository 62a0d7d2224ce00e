/* Kernel parameters that say where elements lie; launchers fill them by layout.c. */
#ifndef HL_CUDA_LAYOUT_H
#define HL_CUDA_LAYOUT_H

#include <stdint.h>

enum { HL_CUDA_RANK = 8 };

/* Element i of a row-major array of `dim` (n elements) lies at the sum of its coordinates times
 * `stride`, in elements; strides may be 0 or negative. */
typedef struct hl_cuda_layout {
    int64_t n;
    int64_t dim[HL_CUDA_RANK], stride[HL_CUDA_RANK];
    int32_t rank;
} hl_cuda_layout;

#ifndef __cplusplus
#include "ir/shape.h"

/* The layout of a shape's elements at these strides, in as few dims as describe it
 * (hl_shape_merge), so that kernels divide less. */
hl_cuda_layout hl_cuda_layout_make(const hl_shape *shape, const int64_t *stride);
/* x broadcast to shape, as NumPy does. */
hl_cuda_layout hl_cuda_layout_broadcast(const hl_shape *shape, const hl_shape *x);
/* Does element i lie at i? */
bool hl_cuda_layout_is_whole(const hl_cuda_layout *layout);
#endif

#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/prim.h"

/* i / n, and the remainder; is_short: both are below 2^32. 64-bit divisions are slow on a GPU. */
HL_DEVICE int64_t hl_divide(int64_t i, int64_t n, bool is_short, int64_t *out_rest)
{
    int64_t quotient = is_short ? (int64_t)((uint32_t)i / (uint32_t)n) : i / n;
    *out_rest = i - quotient * n;
    return quotient;
}
HL_DEVICE bool hl_is_short(int64_t n)
{
    return n <= 0xFFFFFFFF;
}

/* i < layout.n */
HL_DEVICE int64_t hl_layout_offset(const hl_cuda_layout &layout, int64_t i)
{
    bool is_short = hl_is_short(layout.n);
    int64_t at = 0, coordinate;
    for (int d = layout.rank - 1; d > 0; d--) {
        i = hl_divide(i, layout.dim[d], is_short, &coordinate);
        at += coordinate * layout.stride[d];
    }
    return layout.rank > 0 ? at + i * layout.stride[0] : at;
}
#endif

/* One line per size of an element that moves as it is: X(word, bytes). */
#define HL_WORD_TYPES(X) X(uint8_t, 1) X(uint16_t, 2) X(uint32_t, 4) X(uint64_t, 8)

#endif
