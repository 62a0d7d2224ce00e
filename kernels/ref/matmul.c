/* Matrix products: the definition, one sum per element. */
#include "kernels/ref/ref.h"

/* One of the two operands: a stack of matrices in the result's batch dims. */
typedef struct operand {
    const double *data;
    hl_shape batch;                    /* of the result */
    int64_t batch_stride[HL_MAX_RANK]; /* 0 where this operand is broadcast */
    int64_t row_stride, col_stride;    /* of the matrix as it is multiplied */
} operand;

static operand make_operand(const double *data, const hl_shape *shape, bool is_transposed,
                            const hl_shape *out)
{
    int lead = out->rank - shape->rank;
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(shape, stride);
    operand x = {.data = data, .batch = hl_shape_make(out->rank - 2, out->dim)};
    for (int d = 0; d < shape->rank - 2; d++)
        x.batch_stride[lead + d] = shape->dim[d] == 1 ? 0 : stride[d];
    x.row_stride = stride[is_transposed ? shape->rank - 1 : shape->rank - 2];
    x.col_stride = stride[is_transposed ? shape->rank - 2 : shape->rank - 1];
    return x;
}

/* a (...,M,K) @ b (...,K,N) + bias (N) */
static hl_status launch_matmul(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *a_shape = &call->in[0].shape, *out_shape = &call->out[0].shape;
    bool trans_a = call->attrs.matmul.trans_a, trans_b = call->attrs.matmul.trans_b;
    operand a = make_operand(args[0], a_shape, trans_a, out_shape);
    operand b = make_operand(args[1], &call->in[1].shape, trans_b, out_shape);
    const double *bias = call->n_in == 3 ? args[2] : NULL;
    double *out = args[call->n_in];
    int64_t M = out_shape->dim[out_shape->rank - 2], N = out_shape->dim[out_shape->rank - 1];
    int64_t K = a_shape->dim[a_shape->rank - (trans_a ? 2 : 1)];
    int64_t n_batch = hl_shape_numel(&a.batch);
    for (int64_t s = 0; s < n_batch; s++) {
        const double *a_s = a.data + hl_ref_offset(&a.batch, a.batch_stride, s);
        const double *b_s = b.data + hl_ref_offset(&b.batch, b.batch_stride, s);
        for (int64_t m = 0; m < M; m++) {
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                for (int64_t k = 0; k < K; k++)
                    sum += a_s[m * a.row_stride + k * a.col_stride] *
                           b_s[k * b.row_stride + n * b.col_stride];
                *out++ = sum + (bias ? bias[n] : 0);
            }
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(MATMUL, "matmul", hl_ref_query_f64, launch_matmul),
};
const hl_ref_family hl_ref_matmul = HL_REF_FAMILY(kernels);
