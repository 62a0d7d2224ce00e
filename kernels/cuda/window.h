/* Parameters of kernels with sliding windows (ir/window.h). Channels stand last. */
#ifndef HL_CUDA_WINDOW_H
#define HL_CUDA_WINDOW_H

#include "kernels/cuda/params.h"

enum { HL_CUDA_WINDOW_DIMS = 3 };

/* hl_window, for N images of C channels: x (N,in,C), results (N,out,C). is_short: the elements of
 * every array are fewer than 2^32. */
typedef struct hl_cuda_window {
    int64_t N, C, n_in, n_out, n_taps; /* n: elements of a channel of one image */
    int64_t in[HL_CUDA_WINDOW_DIMS], kernel[HL_CUDA_WINDOW_DIMS], out[HL_CUDA_WINDOW_DIMS];
    int64_t stride[HL_CUDA_WINDOW_DIMS], dilation[HL_CUDA_WINDOW_DIMS];
    int64_t before[HL_CUDA_WINDOW_DIMS];
    int32_t is_short;
} hl_cuda_window;

/* x (N,in,C) -> windows (N,out,taps,C); a variant is the bytes of the words that move, C of them.
 */
typedef struct hl_cuda_window_unfold_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) windows;
    } at;
    hl_cuda_window window;
} hl_cuda_window_unfold_params;

/* windows (N,out,taps,C) -> x (N,in,C) */
typedef struct hl_cuda_window_fold_params {
    struct {
        HL_CUDA_AT(const void) windows;
        HL_CUDA_AT(void) x;
    } at;
    hl_cuda_window window;
} hl_cuda_window_fold_params;

/* x -> y, of the same type */
typedef struct hl_cuda_max_pool_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) y;
    } at;
    hl_cuda_window window;
} hl_cuda_max_pool_params;

/* x -> where each of y's elements is among those of its channel */
typedef struct hl_cuda_max_pool_index_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(int64_t) index;
    } at;
    hl_cuda_window window;
} hl_cuda_max_pool_index_params;

/* dy, x -> dx */
typedef struct hl_cuda_max_pool_grad_params {
    struct {
        HL_CUDA_AT(const void) dy;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(void) dx;
    } at;
    hl_cuda_window window;
} hl_cuda_max_pool_grad_params;

#endif
