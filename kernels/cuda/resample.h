/* Parameters of the kernel that resamples. */
#ifndef HL_CUDA_RESAMPLE_H
#define HL_CUDA_RESAMPLE_H

#include "kernels/cuda/params.h"

/* x (O,n,I), start (m), weight (m,taps) -> y (O,m,I), of x's type */
typedef struct hl_cuda_resample_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const int64_t) start;
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(void) y;
    } at;
    int64_t O, n, m, I, taps;
} hl_cuda_resample_params;

#endif
