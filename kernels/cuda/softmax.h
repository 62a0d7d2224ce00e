/* Softmax, its logarithm (variants log_*) and their gradients on rows (R,C); by_block as in fold.h,
 * the end of a variant, x1, x4 or x32, as in params.h. */
#ifndef HL_CUDA_SOFTMAX_H
#define HL_CUDA_SOFTMAX_H

#include "kernels/cuda/params.h"

typedef struct hl_cuda_softmax_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) y;
    } at;
    int64_t R, C;
    int32_t by_block;
} hl_cuda_softmax_params;

typedef struct hl_cuda_softmax_grad_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) y;
        HL_CUDA_AT(void) dx;
    } at;
    int64_t R, C;
    int32_t by_block;
} hl_cuda_softmax_grad_params;

#endif
