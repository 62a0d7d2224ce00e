/* Parameters of kernels that copy. A variant is the bytes of the words that move: 1, 2, 4 or 8. */
#ifndef HL_CUDA_COPY_H
#define HL_CUDA_COPY_H

#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"

/* The widest words that elements move as, in bytes. */
enum { HL_CUDA_WIDEST_WORD = 16 };

/* from_*: dst[i] = src[first + layout(i)]; to_*: dst[first + layout(i)] = src[i]. Words may have 16
 * bytes too. */
typedef struct hl_cuda_copy_params {
    struct {
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(void) dst;
    } at;
    int64_t first;
    hl_cuda_layout layout;
} hl_cuda_copy_params;

/* src (B,M,N) -> dst (B,N,M), by tiles of so many rows and columns. */
enum { HL_CUDA_TRANSPOSE_TILE = 32, HL_CUDA_TRANSPOSE_THREADS = 256 };
typedef struct hl_cuda_transpose_params {
    struct {
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(void) dst;
    } at;
    int64_t B, M, N;
} hl_cuda_transpose_params;

/* Coordinate p of a padded dim is coordinate p - before of the plain one. mode: as in ops.def. */
typedef struct hl_cuda_padding {
    int64_t n_padded, n_plain;
    int64_t padded[HL_CUDA_RANK], plain[HL_CUDA_RANK], before[HL_CUDA_RANK];
    int32_t rank, mode;
} hl_cuda_padding;

typedef struct hl_cuda_pad_params {
    struct {
        HL_CUDA_AT(const void) src;
        HL_CUDA_AT(void) dst;
    } at;
    hl_cuda_padding padding;
    double value; /* of padding, in mode constant */
    int32_t dtype;
} hl_cuda_pad_params;

typedef struct hl_cuda_pad_grad_params {
    struct {
        HL_CUDA_AT(const float) dy;
        HL_CUDA_AT(float) dx;
    } at;
    hl_cuda_padding padding;
} hl_cuda_pad_grad_params;

#endif
