/* Layer norm on rows (R,C), batch norm on (A,C,S), and their gradients. A variant is the dtype of
 * all operands and results, f32, or two, f32_bf16: then y, dx and `result` have the second. weight
 * and bias of a layer norm may be NULL. */
#ifndef HL_CUDA_NORM_H
#define HL_CUDA_NORM_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Threads of a block at most, which leaves 64 registers a thread. */
enum { HL_CUDA_NORM_THREADS = 1024 };
/* A block of the *_columns kernels keeps its columns in registers: columns, rows of threads, rows
 * per thread; a block holds at most HELD rows. */
enum {
    HL_CUDA_NORM_COLUMNS = 32,
    HL_CUDA_NORM_ROWS = HL_CUDA_NORM_THREADS / HL_CUDA_NORM_COLUMNS,
    HL_CUDA_NORM_KEEP = 32,
    HL_CUDA_NORM_HELD = HL_CUDA_NORM_ROWS * HL_CUDA_NORM_KEEP
};

typedef struct hl_cuda_layer_norm_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(const void) bias;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(void) mean;
        HL_CUDA_AT(void) rstd;
    } at;
    int64_t R, C;
    float eps;
    int32_t by_block;
} hl_cuda_layer_norm_params;

typedef struct hl_cuda_layer_norm_grad_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) mean;
        HL_CUDA_AT(const void) rstd;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(void) dx;
    } at;
    int64_t R, C;
    int32_t by_block;
} hl_cuda_layer_norm_grad_params;

/* What a batch norm does with its result: relu, then dropout of samples of `C S` elements. */
typedef struct hl_cuda_norm_epilogue {
    int32_t has_relu, has_dropout;
    uint32_t key[2], threshold;
    float scale;
} hl_cuda_norm_epilogue;

/* Results by given statistics; n = A C S. control is read for dropout alone. */
typedef struct hl_cuda_batch_norm_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) mean;
        HL_CUDA_AT(const void) var;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(const void) bias;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(const hl_control) control;
    } at;
    int64_t n, C, S;
    float eps;
    hl_cuda_norm_epilogue epilogue;
} hl_cuda_batch_norm_params;

/* The input gradient by given sums, dweight and dbias. result: of relu, and of dropout after it, or
 * NULL; where it is given, dy counts where it is positive, times result_scale. */
typedef struct hl_cuda_batch_norm_dx_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(const void) mean;
        HL_CUDA_AT(const void) var;
        HL_CUDA_AT(const void) dweight;
        HL_CUDA_AT(const void) dbias;
        HL_CUDA_AT(const void) result;
        HL_CUDA_AT(void) dx;
    } at;
    int64_t A, C, S;
    float eps, result_scale;
} hl_cuda_batch_norm_dx_params;

/* Statistics and results, or all gradients, on (A,C) in one launch, A being at most HELD. */
typedef struct hl_cuda_batch_norm_columns_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(const void) bias;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(void) mean;
        HL_CUDA_AT(void) var;
        HL_CUDA_AT(const hl_control) control;
    } at;
    int64_t A, C;
    float eps;
    hl_cuda_norm_epilogue epilogue;
} hl_cuda_batch_norm_columns_params;

typedef struct hl_cuda_batch_norm_grad_columns_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) weight;
        HL_CUDA_AT(const void) mean;
        HL_CUDA_AT(const void) var;
        HL_CUDA_AT(const void) result;
        HL_CUDA_AT(void) dx;
        HL_CUDA_AT(void) dweight;
        HL_CUDA_AT(void) dbias;
    } at;
    int64_t A, C;
    float eps, result_scale;
} hl_cuda_batch_norm_grad_columns_params;

#endif
