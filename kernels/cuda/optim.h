/* Optimizers over the flat parameter buffer, and the gradient's norm before them. */
#ifndef HL_CUDA_OPTIM_H
#define HL_CUDA_OPTIM_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Elements that each thread of a block takes at a time. */
enum { HL_CUDA_OPTIM_THREADS = 256, HL_CUDA_OPTIM_ELEMENTS = 4 };

/* What every optimizer reads and writes: n parameters in segments (n_segments,5). copy, in bfloat16
 * or float16, may be NULL. */
typedef struct hl_cuda_optim_at {
    HL_CUDA_AT(float) param;
    HL_CUDA_AT(const float) grad;
    HL_CUDA_AT(const double) segments;
    HL_CUDA_AT(const float) grad_scale;
    HL_CUDA_AT(const float) lr;
    HL_CUDA_AT(const hl_control) control;
    HL_CUDA_AT(void) copy;
} hl_cuda_optim_at;
typedef struct hl_cuda_optim_size {
    int64_t n, n_segments;
    int32_t is_apply, is_f16;
} hl_cuda_optim_size;

/* States that the numbers do not need may be NULL. */
typedef struct hl_cuda_sgd_params {
    struct {
        hl_cuda_optim_at all;
        HL_CUDA_AT(float) buffer;
    } at;
    hl_cuda_optim_size size;
    double momentum, dampening;
    int32_t nesterov;
} hl_cuda_sgd_params;

typedef struct hl_cuda_adam_params {
    struct {
        hl_cuda_optim_at all;
        HL_CUDA_AT(float) m;
        HL_CUDA_AT(float) v;
    } at;
    hl_cuda_optim_size size;
    double beta1, beta2, eps;
    int32_t decoupled;
} hl_cuda_adam_params;

typedef struct hl_cuda_rmsprop_params {
    struct {
        hl_cuda_optim_at all;
        HL_CUDA_AT(float) square;
        HL_CUDA_AT(float) buffer;
        HL_CUDA_AT(float) average;
    } at;
    hl_cuda_optim_size size;
    double alpha, eps, momentum;
    int32_t centered;
} hl_cuda_rmsprop_params;

typedef struct hl_cuda_lion_params {
    struct {
        hl_cuda_optim_at all;
        HL_CUDA_AT(float) m;
    } at;
    hl_cuda_optim_size size;
    double beta1, beta2;
} hl_cuda_lion_params;

/* ---- the gradient's norm: of parts where it is long, then of all ---- */

/* Threads of the one block that makes the norm. */
enum { HL_CUDA_NORM_ALONE_THREADS = 1024 };

typedef struct hl_cuda_gradient_norm_parts_params {
    struct {
        HL_CUDA_AT(const float) grad;
        HL_CUDA_AT(float) sums;
    } at;
    int64_t n, part;
} hl_cuda_gradient_norm_parts_params;

/* x: the gradient where it is one part (is_square: its elements are squared), else the parts' sums.
 * scale may be NULL; clip 0: none. Unless control is NULL the kernel goes on with CONTROL_APPLY,
 * which reads the squared norm at next_square. */
typedef struct hl_cuda_gradient_norm_params {
    struct {
        HL_CUDA_AT(const float) x;
        HL_CUDA_AT(const float) factor;
        HL_CUDA_AT(const float) scale;
        HL_CUDA_AT(float) out_square;
        HL_CUDA_AT(float) out_factor;
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_AT(const void) next_square;
    } at;
    int64_t n;
    double beta1, beta2; /* of CONTROL_APPLY */
    float clip;
    int32_t is_square, next_dtype;
} hl_cuda_gradient_norm_params;

#endif
