/* Softmax over the last axis, its logarithm, and their gradients. */
#include <math.h>

#include "kernels/ref/ref.h"

/* (N,C), C the last axis */
static int64_t count_cols(const hl_ref_call *call)
{
    const hl_shape *shape = &call->in[0].shape;
    return shape->rank > 0 ? shape->dim[shape->rank - 1] : 1;
}

static int64_t count_rows(const hl_ref_call *call)
{
    const hl_shape *shape = &call->in[0].shape;
    return shape->rank > 0 ? hl_shape_span(shape, 0, shape->rank - 1) : 1;
}

hl_ref_row hl_ref_row_make(const double *x, int64_t C)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t c = 0; c < C; c++) largest = fmax(largest, x[c]);
    for (int64_t c = 0; c < C; c++) sum += exp(x[c] - largest);
    return (hl_ref_row){largest, log(sum)};
}

static hl_status launch_log_softmax(const hl_kernel_state *state, void *const *args,
                                    const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    int64_t N = count_rows(state->impl), C = count_cols(state->impl);
    for (int64_t n = 0; n < N; n++) {
        const double *x = (const double *)args[0] + n * C;
        double *y = (double *)args[1] + n * C;
        hl_ref_row row = hl_ref_row_make(x, C);
        for (int64_t c = 0; c < C; c++) y[c] = hl_ref_row_log_softmax(row, x[c]);
    }
    return HL_OK;
}

static hl_status launch_softmax(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    int64_t N = count_rows(state->impl), C = count_cols(state->impl);
    for (int64_t n = 0; n < N; n++) {
        const double *x = (const double *)args[0] + n * C;
        double *y = (double *)args[1] + n * C;
        hl_ref_row row = hl_ref_row_make(x, C);
        for (int64_t c = 0; c < C; c++) y[c] = exp(hl_ref_row_log_softmax(row, x[c]));
    }
    return HL_OK;
}

static hl_status launch_softmax_grad(const hl_kernel_state *state, void *const *args,
                                     const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    int64_t N = count_rows(state->impl), C = count_cols(state->impl);
    for (int64_t n = 0; n < N; n++) {
        const double *dy = (const double *)args[0] + n * C, *y = (const double *)args[1] + n * C;
        double *dx = (double *)args[2] + n * C;
        double sum = 0;
        for (int64_t c = 0; c < C; c++) sum += dy[c] * y[c];
        for (int64_t c = 0; c < C; c++) dx[c] = y[c] * (dy[c] - sum);
    }
    return HL_OK;
}

static hl_status launch_log_softmax_grad(const hl_kernel_state *state, void *const *args,
                                         const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    int64_t N = count_rows(state->impl), C = count_cols(state->impl);
    for (int64_t n = 0; n < N; n++) {
        const double *dy = (const double *)args[0] + n * C, *y = (const double *)args[1] + n * C;
        double *dx = (double *)args[2] + n * C;
        double sum = 0;
        for (int64_t c = 0; c < C; c++) sum += dy[c];
        for (int64_t c = 0; c < C; c++) dx[c] = dy[c] - exp(y[c]) * sum;
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(SOFTMAX, "softmax", hl_ref_query_f64, launch_softmax),
    HL_REF_KERNEL(LOG_SOFTMAX, "log_softmax", hl_ref_query_f64, launch_log_softmax),
    HL_REF_KERNEL(SOFTMAX_GRAD, "softmax_grad", hl_ref_query_f64, launch_softmax_grad),
    HL_REF_KERNEL(LOG_SOFTMAX_GRAD, "log_softmax_grad", hl_ref_query_f64, launch_log_softmax_grad),
};
const hl_ref_family hl_ref_softmax = HL_REF_FAMILY(kernels);
