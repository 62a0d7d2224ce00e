/* The kernel that a device runs before it is used: dst[i] for i below n. */
#ifndef HL_CUDA_PROBE_H
#define HL_CUDA_PROBE_H

#include "kernels/cuda/params.h"

enum { HL_CUDA_PROBE_THREADS = 128 };

typedef struct hl_cuda_probe_params {
    struct {
        HL_CUDA_AT(uint32_t) dst;
    } at;
    uint32_t n, seed;
} hl_cuda_probe_params;

/* What dst[i] is then. */
HL_CUDA_BOTH uint32_t hl_cuda_probe_value(uint32_t i, uint32_t seed)
{
    return (i ^ seed) * 2654435761u;
}

#endif
