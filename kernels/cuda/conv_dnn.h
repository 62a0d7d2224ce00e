/* Parameters of the kernels beside cuDNN's convolutions. */
#ifndef HL_CUDA_CONV_DNN_H
#define HL_CUDA_CONV_DNN_H

#include "kernels/cuda/params.h"

/* src (O,M,N), of a 16-bit type -> dst (O,N,M) */
typedef struct hl_cuda_conv_widen_params {
    struct {
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(float) dst;
    } at;
    int64_t O, M, N;
} hl_cuda_conv_widen_params;

/* Mean and population variance of the columns of x (R,C), float32 or of a 16-bit type, of the sums
 * of each column (C) and of its squares (C). */
typedef struct hl_cuda_conv_moments_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const float) sums;
        HL_CUDA_AT(const float) squares;
        HL_CUDA_AT(float) mean;
        HL_CUDA_AT(float) var;
    } at;
    int64_t R, C;
    int32_t by_block;
} hl_cuda_conv_moments_params;

#endif
