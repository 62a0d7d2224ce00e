/* What the matrix products of all types share: how a weight lies that is packed, which matrices of
 * two broadcast batches meet, and the product of nothing. */
#ifndef HL_KERNELS_CPU_MATMUL_H
#define HL_KERNELS_CPU_MATMUL_H

#include "kernels/cpu/kernel.h"

/* C (M,N) of an empty sum: the bias or zero. */
static inline void hl_matmul_fill_bias(float *c, const float *bias, int64_t n_rows, int64_t N,
                                       bool relu)
{
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t j = 0; j < N; j++) {
            float value = bias ? bias[j] : 0;
            c[r * N + j] = relu && value < 0 ? 0 : value;
        }
}

/* A weight b (K,N), or (N,K) with trans, that is to be packed. */
typedef struct hl_matmul_pack {
    int64_t K, N, row_stride, col_stride;
    hl_dtype from;
} hl_matmul_pack;

static inline hl_matmul_pack hl_matmul_pack_make(const hl_graph *graph, const hl_node *node)
{
    const hl_type *b = hl_node_in_type(graph, node, 0);
    const int64_t *dim = b->shape.dim;
    if (hl_matmul_pack_attrs(node)->trans)
        return (hl_matmul_pack){dim[1], dim[0], 1, dim[1], b->dtype};
    return (hl_matmul_pack){dim[0], dim[1], dim[1], 1, b->dtype};
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
