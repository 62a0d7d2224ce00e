/* Parameters of Cholesky factors and triangular systems. */
#ifndef HL_CUDA_LINALG_H
#define HL_CUDA_LINALG_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Columns of a panel, and the floats of one of its rows; a panel of at most so many bytes lies in
 * shared memory. */
enum {
    HL_CUDA_PANEL = 16,
    HL_CUDA_PANEL_STRIDE = HL_CUDA_PANEL + 1,
    HL_CUDA_PANEL_BYTES = 48 * 1024 - 256,
    HL_CUDA_STRIP = 32, /* columns of a right side that a block solves */
    HL_CUDA_LINALG_THREADS = 256
};

/* a (n_matrices,n,n) -> factor; panel: room for (n_matrices,n) rows of a panel, NULL: it is shared
 * memory. */
typedef struct hl_cuda_cholesky_params {
    struct {
        HL_CUDA_AT(const float) a;
        HL_CUDA_AT(float) factor;
        HL_CUDA_AT(float) panel;
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_NUMBER fault;
    } at;
    int64_t n, n_matrices;
} hl_cuda_cholesky_params;

/* a (n_matrices,n,n), b (n_matrices,n,K) -> x; n_strips of K. Row i of the system is row i, or
 * from the end where it is not from_top. */
typedef struct hl_cuda_triangular_solve_params {
    struct {
        HL_CUDA_AT(const float) a;
        HL_CUDA_AT(const float) b;
        HL_CUDA_AT(float) x;
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_NUMBER fault;
    } at;
    int64_t n, K, n_matrices, n_strips;
    int32_t from_top, trans, unitriangular;
} hl_cuda_triangular_solve_params;

#endif
