/* Cross-entropy of logits (N,C) and integer targets, and its gradient; by_block as in fold.h, the
 * end of a variant, x1, x4 or x32, as in params.h. class_weight NULL: all are 1. */
#ifndef HL_CUDA_LOSS_H
#define HL_CUDA_LOSS_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* What both read, and how. */
typedef struct hl_cuda_loss_at {
    HL_CUDA_AT(const void) logits;
    HL_CUDA_AT(const void) target;
    HL_CUDA_AT(const void) class_weight;
    HL_CUDA_AT(hl_control) control;
    HL_CUDA_NUMBER fault;
} hl_cuda_loss_at;
typedef struct hl_cuda_loss_rule {
    int64_t N, C, ignored;
    float smoothing;
    int32_t target_dtype, by_block;
} hl_cuda_loss_rule;

typedef struct hl_cuda_cross_entropy_params {
    struct {
        hl_cuda_loss_at in;
        HL_CUDA_AT(void) loss;
        HL_CUDA_AT(void) weight;
    } at;
    hl_cuda_loss_rule rule;
} hl_cuda_cross_entropy_params;

typedef struct hl_cuda_cross_entropy_grad_params {
    struct {
        hl_cuda_loss_at in;
        HL_CUDA_AT(const void) dloss;
        HL_CUDA_AT(void) dlogits;
    } at;
    hl_cuda_loss_rule rule;
    int64_t dloss_step; /* 1, or 0 where all rows have the same gradient */
} hl_cuda_cross_entropy_grad_params;

#endif
