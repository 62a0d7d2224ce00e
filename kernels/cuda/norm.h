/* Layer norm on rows (R,C), batch norm on (A,C,S), and their gradients. Parameters and statistics
 * are float32. A variant is the dtypes of x and y, f32_bf16, or of dy, x and dx, bf16_bf16_f32:
 * float32, or one that has 16 bits. `result` has dx's. weight and bias of a layer norm may be NULL.
 */
#ifndef HL_CUDA_NORM_H
#define HL_CUDA_NORM_H

#include "ir/control.h"
#include "kernels/cuda/channel.h"
#include "kernels/cuda/divisor.h"

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
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(const float) bias;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(float) mean;
        HL_CUDA_AT(float) rstd;
    } at;
    int64_t R, C;
    float eps;
    int32_t by_block;
} hl_cuda_layer_norm_params;

typedef struct hl_cuda_layer_norm_grad_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const float) mean;
        HL_CUDA_AT(const float) rstd;
        HL_CUDA_AT(const float) weight;
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

/* An array (A,C,S) in windows: so many neighbours of a sample as a random counter has numbers,
 * which a thread takes together; a sample's last window has what is left. */
enum { HL_CUDA_NORM_WINDOW = 8 };
typedef struct hl_cuda_norm_windows {
    int64_t n, C, S;  /* n: windows of all samples */
    int32_t is_whole; /* windows begin at multiples of their length, and all have it */
    /* By the windows of a sample, by S (divisor.h; the divisor itself alone counts where it is 1).
     */
    uint64_t per_sample[HL_CUDA_DIVISOR_WORDS], per_plane[HL_CUDA_DIVISOR_WORDS];
} hl_cuda_norm_windows;

#ifndef __CUDACC__
static inline hl_cuda_norm_windows hl_cuda_norm_windows_make(int64_t A, int64_t C, int64_t S)
{
    int64_t n = (C * S + HL_CUDA_NORM_WINDOW - 1) / HL_CUDA_NORM_WINDOW;
    hl_cuda_norm_windows windows = {A * n, C, S, C * S % HL_CUDA_NORM_WINDOW == 0, {0}, {0}};
    hl_cuda_divisor_make(n, 63, windows.per_sample);
    hl_cuda_divisor_make(S, 63, windows.per_plane);
    return windows;
}
#endif

/* Results by what the statistics made of the channels (C). control is read for dropout alone. */
typedef struct hl_cuda_batch_norm_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const hl_cuda_channel) channels;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(const hl_control) control;
    } at;
    hl_cuda_norm_windows windows;
    hl_cuda_norm_epilogue epilogue;
} hl_cuda_batch_norm_params;

/* The input gradient by what the sums made of the channels (C). result: of relu, and of dropout
 * after it, or NULL; where it is given, dy counts where it is positive, times result_scale. */
typedef struct hl_cuda_batch_norm_dx_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const hl_cuda_channel) channels;
        HL_CUDA_AT(const void) result;
        HL_CUDA_AT(void) dx;
    } at;
    hl_cuda_norm_windows windows;
    float result_scale;
} hl_cuda_batch_norm_dx_params;

/* Statistics and results, or all gradients, on (A,C) in one launch, A being at most HELD. */
typedef struct hl_cuda_batch_norm_columns_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(const float) bias;
        HL_CUDA_AT(void) y;
        HL_CUDA_AT(float) mean;
        HL_CUDA_AT(float) var;
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
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(const float) mean;
        HL_CUDA_AT(const float) var;
        HL_CUDA_AT(const void) result;
        HL_CUDA_AT(void) dx;
        HL_CUDA_AT(float) dweight;
        HL_CUDA_AT(float) dbias;
    } at;
    int64_t A, C;
    float eps, result_scale;
} hl_cuda_batch_norm_grad_columns_params;

#endif
