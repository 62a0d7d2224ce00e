/* A matrix product as cuBLASLt describes it. */
#ifndef HL_KERNELS_CUDA_LT_PRODUCT_H
#define HL_KERNELS_CUDA_LT_PRODUCT_H

#include "kernels/cuda/cublaslt.h"

/* The library stores columns, we store rows: what we call C (M,N) is its D (N,M) = op(B) op(A), so
 * its first operand is our b. No pointers, so that equal products have equal texts. */
typedef struct hl_lt_product {
    cublasComputeType_t compute;
    cudaDataType_t operand, result;
    int32_t op_a, op_b; /* of the library's operands: our b, our a */
    int64_t m, n, k, lda, ldb;
    int32_t n_batch;
    int64_t stride_a, stride_b;
    uint32_t align_a, align_b, align_d, align_vector, align_aux;
    uint32_t epilogue, bare; /* bare: what is left of it where the node carries no programs */
    const char *activation;  /* as of hl_problem */
    int64_t apart_bytes;
    int64_t aux_ld;          /* of a mask in bits, of gelu's operand in elements */
    int vector_arg, aux_arg; /* bias or sums; mask or operand: number in args; -1: none */
    hl_saved saved;          /* the aux that it makes */
    uint32_t form_in;        /* of the aux that it reads */
} hl_lt_product;

/* The fusions that products take (hl_kernel.fusions). */
extern const char *const hl_lt_fusions[];
/* Forms of saved values: hl_saved.form. */
enum { HL_CUDA_FORM_RELU_BITS = 1 };

/* False and the reason: cuBLASLt has no such product. */
bool hl_lt_product_make(const hl_device *device, const hl_graph *graph, hl_node_id node,
                        hl_lt_product *out_product, hl_reason *out_why_not);
/* The product without the programs that its node carries. */
hl_lt_product hl_lt_product_bare(const hl_lt_product *product);
/* Its text is all that the library is told, "bf16 bf16 f32 nt 128x64x32 ...". */
hl_problem hl_lt_product_problem(hl_device *device, const hl_lt_product *product);

/* Descriptors of one product; those that are NULL were not made. */
typedef struct hl_lt_descs {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
} hl_lt_descs;
hl_status hl_lt_descs_init(const hl_cublaslt *lt, const hl_lt_product *product,
                           hl_lt_descs *out_descs);
void hl_lt_descs_deinit(const hl_cublaslt *lt, hl_lt_descs *descs);
/* Sets where the vector (bias or sums) and aux (mask or gelu's operand) lie. For the heuristics
 * only their alignment counts. */
hl_status hl_lt_descs_point(const hl_cublaslt *lt, const hl_lt_product *product,
                            const hl_lt_descs *descs, const void *vector, const void *aux);

#endif
