/* What the matrix products of all types share: nodes as arguments of the GEMM core, and which
 * matrices of two broadcast batches meet. */
#ifndef HL_KERNELS_CPU_MATMUL_H
#define HL_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/epilogue.h"

/* A product with n columns and k terms: A has these strides, B is one packed matrix. */
static inline hl_gemm hl_matmul_make_gemm(const hl_gemm_type *type, int64_t n, int64_t k,
                                          int64_t a_row, int64_t a_col)
{
    return (hl_gemm){.type = type,
                     .n = n,
                     .k = k,
                     .a_row = a_row,
                     .a_col = a_col,
                     .n_segments = 1,
                     .b_rows = hl_gemm_count_rows(type, 1, k),
                     .ldc = n,
                     .first = true,
                     .last = true,
                     .epilogue.alpha = 1};
}

/* C (m,n) of k terms, from operands without gaps. */
static inline hl_gemm_tn hl_matmul_make_tn(const hl_gemm_type *type, int64_t m, int64_t n,
                                           int64_t k)
{
    return (hl_gemm_tn){
        .type = type, .m = m, .n = n, .k = k, .lda = m, .ldb = n, .ldc = n, .alpha = 1};
}

/* B (K,N), or (N,K) with trans, that is to be packed. */
static inline hl_gemm_b hl_matmul_make_b(const hl_gemm_type *type, hl_dtype dtype, int64_t K,
                                         int64_t N, bool trans)
{
    return (hl_gemm_b){.type = type,
                       .dtype = dtype,
                       .n_segments = 1,
                       .k = K,
                       .n = N,
                       .k_stride = trans ? 1 : N,
                       .n_stride = trans ? K : 1};
}

/* The weight of a MATMUL_PACK. */
static inline hl_gemm_b hl_matmul_describe_weight(const hl_gemm_type *type, const hl_graph *graph,
                                                  const hl_node *node)
{
    const hl_type *b = hl_node_in_type(graph, node, 0);
    const int64_t *dim = b->shape.dim;
    bool trans = hl_matmul_pack_attrs(node)->trans;
    return hl_matmul_make_b(type, b->dtype, dim[trans], dim[!trans], trans);
}

/* Elements between an operand's matrices along each dim of the batch; 0: broadcast. */
static inline void hl_matmul_batch_strides(const hl_shape *operand, const hl_shape *batch,
                                           int64_t *out_stride)
{
    int lead = batch->rank - (operand->rank - 2);
    for (int d = 0; d < batch->rank; d++) {
        int own = d - lead;
        bool is_held = own < 0 || operand->dim[own] == 1;
        out_stride[d] = is_held ? 0 : hl_shape_span(operand, own + 1, operand->rank);
    }
}

/* Where an operand's part in matrix `matrix` of the result begins. */
static inline int64_t hl_matmul_find(const hl_shape *batch, const int64_t *stride, int64_t matrix)
{
    int64_t offset = 0;
    for (int d = batch->rank - 1; d >= 0; d--) {
        offset += matrix % batch->dim[d] * stride[d];
        matrix /= batch->dim[d];
    }
    return offset;
}

#endif
