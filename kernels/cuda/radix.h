/* A stable radix sort of pairs as calls of a node: for the families that sort. Its kernels are
 * index.cu's. */
#ifndef HL_KERNELS_CUDA_RADIX_H
#define HL_KERNELS_CUDA_RADIX_H

#include "kernels/cuda/calls.h"

/* Offsets in scratch of n keys, uint32, and values, int32: they go from one half to the other with
 * every digit. */
typedef struct hl_cuda_radix {
    size_t keys[2], values[2], counts, totals, bytes;
    int64_t n, n_tiles;
} hl_cuda_radix;
/* n < 2^31 */
hl_cuda_radix hl_cuda_radix_make(int64_t n);
/* Sorts what is in a half by bits [first, end) of its keys; returns the half where it ends. */
int hl_cuda_radix_call(hl_cuda_calls *calls, const hl_cuda_radix *radix, int half, int first,
                       int end);

#endif
