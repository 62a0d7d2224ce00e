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

/* PAD: padded coordinate p of a dim stands for p - before. mode as in ops.def. */
typedef struct hl_cuda_pad {
    int64_t n_padded, n_plain;
    int64_t padded[HL_CUDA_RANK], plain[HL_CUDA_RANK], before[HL_CUDA_RANK];
    int32_t rank, mode;
} hl_cuda_pad;

#ifndef __cplusplus
#include "ir/shape.h"

/* Row-major strides of a shape's own dims. */
void hl_cuda_strides(const hl_shape *shape, int64_t *out_stride);
/* The layout of shape's elements at these strides, in as few dims as say the same: those of one
 * element are left out, those that are walked in step are one. So kernels divide less. */
hl_cuda_layout hl_cuda_layout_make(const hl_shape *shape, const int64_t *stride);
/* x broadcast to shape, as NumPy does. */
hl_cuda_layout hl_cuda_layout_broadcast(const hl_shape *shape, const hl_shape *x);
/* Element i lies at i. */
bool hl_cuda_layout_is_whole(const hl_cuda_layout *layout);
#endif

#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/prim.h"

/* i < layout.n. Divisions of 64 bits are long on a GPU: 32 where they do. */
HL_DEVICE int64_t hl_layout_offset(const hl_cuda_layout &layout, int64_t i)
{
    int64_t at = 0;
    if (layout.n <= 0x7FFFFFFF) {
        uint32_t rest = (uint32_t)i;
        for (int d = layout.rank - 1; d >= 0; d--) {
            uint32_t dim = (uint32_t)layout.dim[d], above = rest / dim;
            at += (int64_t)(rest - above * dim) * layout.stride[d];
            rest = above;
        }
        return at;
    }
    for (int d = layout.rank - 1; d >= 0; d--) {
        at += i % layout.dim[d] * layout.stride[d];
        i /= layout.dim[d];
    }
    return at;
}
#endif

/* One line per size of an element that moves as it is: X(word, bytes). */
#define HL_WORD_TYPES(X) X(uint8_t, 1) X(uint16_t, 2) X(uint32_t, 4) X(uint64_t, 8)

#endif
