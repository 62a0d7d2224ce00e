/* Reductions as launchers cut them, for the families that reduce. */
#ifndef HL_CUDA_REDUCE_H
#define HL_CUDA_REDUCE_H

#include "kernels/cuda/calls.h"

/* An array (O,N,I), reduced over N in n_parts parts of `part` elements, the last of the rest. By
 * the shape alone. */
typedef struct hl_cuda_groups {
    int64_t O, N, I, part, n_parts;
} hl_cuda_groups;

hl_cuda_groups hl_cuda_groups_make(int64_t O, int64_t N, int64_t I);
/* A team a part of a row, or a block a tile of a part's columns. */
hl_cuda_shape hl_cuda_groups_shape(const hl_device *device, const hl_cuda_groups *groups,
                                   int *out_by_block);

/* Mean and population variance of input 0, into outputs out_mean and out_mean + 1, by one call or
 * two; takes hl_cuda_moments_bytes of scratch from its beginning on. A > 0: the input is (A,C,S),
 * reduced over A and S, and groups are (C, A S, 1). */
void hl_cuda_moments_call(hl_cuda_calls *calls, hl_dtype dtype, const hl_cuda_groups *groups,
                          int64_t A, int out_mean);
size_t hl_cuda_moments_bytes(const hl_cuda_groups *groups);

/* Outputs 1 and 2 of BATCH_NORM_GRAD, dweight and dbias, by one call or two; takes
 * hl_cuda_moments_bytes of scratch. groups are (1,A,C) where S is 1, else (C, A S, 1). */
void hl_cuda_norm_sums_call(hl_cuda_calls *calls, hl_dtype dtype, const hl_cuda_groups *groups,
                            int64_t S, float eps);

#endif
