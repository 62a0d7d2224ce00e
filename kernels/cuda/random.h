/* Dropout masks and uniform numbers (n_samples, per_sample). */
#ifndef HL_CUDA_RANDOM_H
#define HL_CUDA_RANDOM_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Elements that one counter gives. */
enum { HL_CUDA_COUNTER_ELEMENTS = 8 };

typedef struct hl_cuda_draws {
    int64_t n_samples, per_sample;
    uint32_t key[2];
} hl_cuda_draws;

typedef struct hl_cuda_dropout_mask_params {
    struct {
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(const hl_control) control;
    } at;
    hl_cuda_draws draws;
    uint32_t threshold;
    float scale;
} hl_cuda_dropout_mask_params;

typedef struct hl_cuda_uniform_params {
    struct {
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(const hl_control) control;
    } at;
    hl_cuda_draws draws;
} hl_cuda_uniform_params;

#endif
