/* A product of matrices as kernels and libraries want it: sizes, strides, where batches lie. */
#ifndef HL_KERNELS_CUDA_MATMUL_H
#define HL_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"

/* A block makes a tile of the result, of so many rows and columns. */
enum {
    HL_CUDA_MATMUL_TILE = 64,
    HL_CUDA_MATMUL_F32_THREADS = 256,
    HL_CUDA_MATMUL_REDUCED_THREADS = 128
};

/* A (...,M,K) @ B (...,K,N), strides in elements: of a's rows and K, of b's K and columns. A batch
 * whose right side is one matrix is one product of more rows. */
typedef struct hl_cuda_product {
    int64_t M, N, K, a_row, a_k, b_k, b_col;
    hl_cuda_layout a, b; /* of matrices in the result's batch */
} hl_cuda_product;

/* bias may be NULL. */
typedef struct hl_cuda_matmul_params {
    struct {
        HL_CUDA_AT(const void) a;
        HL_CUDA_AT(const void) b;
        HL_CUDA_AT(const void) bias;
        HL_CUDA_AT(void) c;
    } at;
    hl_cuda_product product;
    int32_t bias_dtype, c_dtype, relu;
} hl_cuda_matmul_params;

/* A number from each thread, which says whether two runs left the same bits; n: words of src. */
enum { HL_CUDA_DIGEST_BLOCKS = 64, HL_CUDA_DIGEST_THREADS = 128 };
enum { HL_CUDA_DIGEST_BYTES = 8 * HL_CUDA_DIGEST_BLOCKS * HL_CUDA_DIGEST_THREADS };
typedef struct hl_cuda_digest_params {
    struct {
        HL_CUDA_AT(const uint16_t) src;
        HL_CUDA_AT(uint64_t) sums;
    } at;
    int64_t n;
} hl_cuda_digest_params;

#ifndef __cplusplus
#include "backend/backend.h"

/* The product of a MATMUL node. */
hl_cuda_product hl_cuda_product_make(const hl_graph *graph, const hl_node *node);

/* Operands of one type that the GPU has products for, else the reason. */
hl_status hl_cuda_matmul_check(const hl_device *device, const hl_graph *graph, hl_node_id node,
                               hl_reason *out_why_not);
/* The plain kernel, last in the family's list. */
extern const hl_kernel hl_cuda_matmul_plain;
#endif

#endif
