/* Parameters of connectionist temporal classification. */
#ifndef HL_CUDA_CTC_H
#define HL_CUDA_CTC_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

enum { HL_CUDA_CTC_THREADS = 256 };

/* What both read, and how: log_probs (T,N,C), targets (N,S), lengths (N). */
typedef struct hl_cuda_ctc_at {
    HL_CUDA_AT(const float) log_probs;
    HL_CUDA_AT(const void) targets;
    HL_CUDA_AT(const void) input_lengths;
    HL_CUDA_AT(const void) target_lengths;
    HL_CUDA_AT(hl_control) control;
    HL_CUDA_NUMBER fault;
} hl_cuda_ctc_at;
typedef struct hl_cuda_ctc_rule {
    int64_t T, N, C, S, blank;
    int32_t target_dtype, input_dtype, length_dtype, zero_infinity;
} hl_cuda_ctc_rule;

/* loss (N), alpha (N,T,2S+1) */
typedef struct hl_cuda_ctc_loss_params {
    struct {
        hl_cuda_ctc_at in;
        HL_CUDA_AT(float) loss;
        HL_CUDA_AT(float) alpha;
    } at;
    hl_cuda_ctc_rule rule;
} hl_cuda_ctc_loss_params;

/* dloss (N), alpha (N,T,2S+1) -> grad (T,N,C). Scratch: rows of places (N,3,2S+1), and chains
 * (N,S) of targets of one class. */
typedef struct hl_cuda_ctc_loss_grad_params {
    struct {
        hl_cuda_ctc_at in;
        HL_CUDA_AT(const float) dloss;
        HL_CUDA_AT(const float) alpha;
        HL_CUDA_AT(float) rows;
        HL_CUDA_AT(int32_t) chain;
        HL_CUDA_AT(float) grad;
    } at;
    hl_cuda_ctc_rule rule;
} hl_cuda_ctc_loss_grad_params;

#endif
