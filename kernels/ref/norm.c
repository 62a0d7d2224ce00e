/* Batch normalisation (Ioffe and Szegedy 2015) and layer normalisation (Ba, Kiros and Hinton
 * 2016). */
#include <math.h>

#include "kernels/ref/ref.h"

/* A batch as (N,C,S); channels that stand last have S = 1. */
typedef struct batch {
    int64_t N, C, S;
} batch;

static batch read_batch(const hl_ref_call *call)
{
    const hl_shape *shape = &call->in[0].shape;
    int last = shape->rank - 1;
    if (call->attrs.batch_norm.channels_last)
        return (batch){hl_shape_span(shape, 0, last), shape->dim[last], 1};
    return (batch){shape->dim[0], shape->dim[1], hl_shape_span(shape, 2, shape->rank)};
}

/* x (N,C,S), weight (C), bias (C) -> y (N,C,S), mean (C), var (C) */
static hl_status launch_batch_norm(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const batch of = read_batch(call);
    int64_t N = of.N, C = of.C, S = of.S;
    const double *x = args[0], *weight = args[1], *bias = args[2];
    double *y = args[3], *mean = args[4], *var = args[5], eps = call->attrs.batch_norm.eps;
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < N; n++)
            for (int64_t s = 0; s < S; s++) sum += x[(n * C + c) * S + s];
        mean[c] = sum / (double)(N * S);
        for (int64_t n = 0; n < N; n++)
            for (int64_t s = 0; s < S; s++) {
                double distance = x[(n * C + c) * S + s] - mean[c];
                squares += distance * distance;
            }
        var[c] = squares / (double)(N * S);
        for (int64_t n = 0; n < N; n++)
            for (int64_t s = 0; s < S; s++) {
                int64_t i = (n * C + c) * S + s;
                y[i] = (x[i] - mean[c]) / sqrt(var[c] + eps) * weight[c] + bias[c];
            }
    }
    return HL_OK;
}

/* dy, x (N,C,S), weight, mean, var (C) -> dx (N,C,S), dweight, dbias (C). With z = (x - mean) /
 * std: dx = weight / std (dy - mean(dy) - z mean(dy z)). */
static hl_status launch_batch_norm_grad(const hl_kernel_state *state, void *const *args,
                                        const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const batch of = read_batch(call);
    int64_t N = of.N, C = of.C, S = of.S;
    const double *dy = args[0], *x = args[1], *weight = args[2], *mean = args[3], *var = args[4];
    double *dx = args[5], *dweight = args[6], *dbias = args[7];
    for (int64_t c = 0; c < C; c++) {
        double rstd = 1 / sqrt(var[c] + call->attrs.batch_norm.eps), n = (double)(N * S);
        double sum_g = 0, sum_gz = 0;
        for (int64_t k = 0; k < N * S; k++) {
            int64_t i = (k / S * C + c) * S + k % S;
            sum_g += dy[i];
            sum_gz += dy[i] * (x[i] - mean[c]) * rstd;
        }
        for (int64_t k = 0; k < N * S; k++) {
            int64_t i = (k / S * C + c) * S + k % S;
            double z = (x[i] - mean[c]) * rstd;
            dx[i] = weight[c] * rstd * (dy[i] - sum_g / n - z * sum_gz / n);
        }
        dweight[c] = sum_gz;
        dbias[c] = sum_g;
    }
    return HL_OK;
}

/* x (R,C) -> y (R,C), mean (R), rstd (R); weight (C), bias (C) */
static hl_status launch_layer_norm(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *shape = &call->in[0].shape;
    int first = shape->rank - (int)call->attrs.layer_norm.n_axes;
    int64_t R = hl_shape_span(shape, 0, first), C = hl_shape_span(shape, first, shape->rank);
    const double *weight = call->n_in > 1 ? args[1] : NULL, *bias = call->n_in > 2 ? args[2] : NULL;
    double *mean = args[call->n_in + 1], *rstd = args[call->n_in + 2];
    double eps = call->attrs.layer_norm.eps;
    for (int64_t r = 0; r < R; r++) {
        const double *x = (const double *)args[0] + r * C;
        double *y = (double *)args[call->n_in] + r * C;
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < C; c++) sum += x[c];
        mean[r] = sum / (double)C;
        for (int64_t c = 0; c < C; c++) squares += (x[c] - mean[r]) * (x[c] - mean[r]);
        rstd[r] = 1 / sqrt(squares / (double)C + eps);
        for (int64_t c = 0; c < C; c++)
            y[c] = (x[c] - mean[r]) * rstd[r] * (weight ? weight[c] : 1) + (bias ? bias[c] : 0);
    }
    return HL_OK;
}

/* With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). */
static hl_status launch_layer_norm_grad(const hl_kernel_state *state, void *const *args,
                                        const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *shape = &call->in[0].shape;
    int first = shape->rank - (int)call->attrs.layer_norm.n_axes;
    int64_t R = hl_shape_span(shape, 0, first), C = hl_shape_span(shape, first, shape->rank);
    const double *mean = args[2], *rstd = args[3], *weight = call->n_in > 4 ? args[4] : NULL;
    for (int64_t r = 0; r < R; r++) {
        const double *dy = (const double *)args[0] + r * C, *x = (const double *)args[1] + r * C;
        double *dx = (double *)args[call->n_in] + r * C;
        double sum_g = 0, sum_gz = 0;
        for (int64_t c = 0; c < C; c++) {
            double g = dy[c] * (weight ? weight[c] : 1);
            sum_g += g;
            sum_gz += g * (x[c] - mean[r]) * rstd[r];
        }
        for (int64_t c = 0; c < C; c++) {
            double g = dy[c] * (weight ? weight[c] : 1), z = (x[c] - mean[r]) * rstd[r];
            dx[c] = rstd[r] * (g - sum_g / (double)C - z * sum_gz / (double)C);
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(BATCH_NORM, "batch_norm", hl_ref_query_f64, launch_batch_norm),
    HL_REF_KERNEL(BATCH_NORM_GRAD, "batch_norm_grad", hl_ref_query_f64, launch_batch_norm_grad),
    HL_REF_KERNEL(LAYER_NORM, "layer_norm", hl_ref_query_f64, launch_layer_norm),
    HL_REF_KERNEL(LAYER_NORM_GRAD, "layer_norm_grad", hl_ref_query_f64, launch_layer_norm_grad),
};
const hl_ref_family hl_ref_norm = HL_REF_FAMILY(kernels);
