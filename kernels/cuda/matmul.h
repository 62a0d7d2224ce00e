/* A product of matrices as kernels and libraries want it: sizes, strides, where batches lie. */
#ifndef HL_KERNELS_CUDA_MATMUL_H
#define HL_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/windows.h"

/* A block makes a tile of the result, of so many rows and columns. */
enum {
    HL_CUDA_MATMUL_TILE = 64,
    HL_CUDA_MATMUL_F32_THREADS = 256,
    HL_CUDA_MATMUL_REDUCED_THREADS = 128,
    HL_CUDA_MATMUL_SMALL_TILE = 32,
    HL_CUDA_MATMUL_SMALL_THREADS = 256
};

/* A (...,M,K) @ B (...,K,N), strides in elements: of a's rows and K, of b's K and columns. A batch
 * whose right side is one matrix is one product of more rows. */
typedef struct hl_cuda_product {
    int64_t M, N, K, a_row, a_k, b_k, b_col;
    hl_cuda_layout a, b; /* of matrices in the result's batch */
} hl_cuda_product;

/* What a kernel does with one matrix by one. sums: HL_CUDA_SUMS_A also adds up each row of a over
 * K, HL_CUDA_SUMS_B each column of b. */
enum { HL_CUDA_SUMS_NONE, HL_CUDA_SUMS_A, HL_CUDA_SUMS_B };
typedef struct hl_cuda_matrix_product {
    int64_t M, N, K, a_row, a_k, b_k, b_col;
    int32_t bias_dtype, c_dtype;
    int16_t relu, sums;
} hl_cuda_matrix_product;

/* bias and sums may be NULL. */
typedef struct hl_cuda_matmul_at {
    HL_CUDA_AT(const void) a;
    HL_CUDA_AT(const void) b;
    HL_CUDA_AT(const void) bias;
    HL_CUDA_AT(void) c;
    HL_CUDA_AT(float) sums;
} hl_cuda_matmul_at;

typedef struct hl_cuda_matmul_params {
    hl_cuda_matmul_at at;
    hl_cuda_matrix_product of;
    hl_cuda_layout a, b; /* of matrices in the result's batch */
} hl_cuda_matmul_params;

typedef struct hl_cuda_matmul_small_params {
    hl_cuda_matmul_at at;
    hl_cuda_matrix_product of;
} hl_cuda_matmul_small_params;

/* Independent small products, each with a range of blocks: those from first_block[i] on are of
 * number i, up to first_block[i + 1]. */
enum { HL_CUDA_PRODUCTS = 32 };
typedef struct hl_cuda_matmul_list_params {
    struct {
        hl_cuda_matmul_at of[HL_CUDA_PRODUCTS];
    } at;
    hl_cuda_matrix_product of[HL_CUDA_PRODUCTS];
    int32_t first_block[HL_CUDA_PRODUCTS + 1];
    int32_t n;
} hl_cuda_matmul_list_params;

/* ---- convolutions: products with windows (windows.h) ----------------------------------------- */

/* c = windows(x) w + bias, of each group: w (groups, taps, in, out), M pixels, N results, K taps
 * and channels. A group's channels in x are `in`, in c and bias N. */
typedef struct hl_cuda_conv_params {
    struct {
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(const void) w;
        HL_CUDA_AT(const void) bias;
        HL_CUDA_AT(void) c;
    } at;
    hl_cuda_matrix_product of;
    hl_cuda_windows windows;
    int64_t groups, in;
    int64_t first; /* element of c that the first pixel of the first group is */
    hl_cuda_layout rows;
} hl_cuda_conv_params;

/* Parts (shares, groups, out, taps, in): y^T windows(x), of a share of the pixels each. M results,
 * N taps and channels, K pixels of a share. */
typedef struct hl_cuda_conv_weight_grad_params {
    struct {
        HL_CUDA_AT(const void) y;
        HL_CUDA_AT(const void) x;
        HL_CUDA_AT(float) parts;
    } at;
    hl_cuda_matrix_product of;
    hl_cuda_windows windows;
    int64_t groups, in, shares;
} hl_cuda_conv_weight_grad_params;

/* Where groups have few channels, a tile would be empty but for some columns: a thread an element.
 * The same, but w (taps, in, groups, out) and parts (shares, taps, in, groups, out). */
typedef hl_cuda_conv_params hl_cuda_conv_grouped_params;
typedef hl_cuda_conv_weight_grad_params hl_cuda_conv_grouped_weight_grad_params;

/* Element i of w is the sum of element weight(i) of all parts, of n elements each. */
typedef struct hl_cuda_conv_merge_params {
    struct {
        HL_CUDA_AT(const float) parts;
        HL_CUDA_AT(void) w;
    } at;
    hl_cuda_layout weight;
    int64_t n, shares;
    int32_t dtype;
} hl_cuda_conv_merge_params;

/* ---- digests --------------------------------------------------------------------------------- */

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
/* It has a way for so few tiles that a library may be no faster. */
bool hl_cuda_matmul_is_small(const hl_graph *graph, hl_node_id node);
#endif

#endif
