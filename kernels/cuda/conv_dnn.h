/* Parameters of the kernel beside cuDNN's convolutions. */
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

#endif
