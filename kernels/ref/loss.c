/* Cross-entropy of integer targets, as torch.nn.functional.cross_entropy without the reduction.
 *
 * With logp = log_softmax(logits), class weights w (1 without) and smoothing s, row n's loss is
 *   (1 - s) w[t] (-logp[t]) + s / C sum_c w[c] (-logp[c])
 * and its weight, by which the reduced loss is divided, is w[t]. */
#include <math.h>

#include "kernels/ref/ref.h"

/* What both directions read. */
typedef struct loss_rows {
    int64_t N, C;
    const double *logits, *weight; /* (N,C), (C) or NULL */
    const void *target;            /* (N) */
    hl_dtype target_dtype;
    double smoothing;
    int64_t ignored;
} loss_rows;

/* first: the place of the logits among the inputs. */
static loss_rows make_rows(const hl_ref_call *call, void *const *args, int first)
{
    const hl_shape *shape = &call->in[first].shape;
    return (loss_rows){.N = shape->dim[0],
                       .C = shape->dim[1],
                       .logits = args[first],
                       .weight = call->n_in > first + 2 ? args[first + 2] : NULL,
                       .target = args[first + 1],
                       .target_dtype = call->in[first + 1].dtype,
                       .smoothing = call->attrs.cross_entropy.label_smoothing,
                       .ignored = call->attrs.cross_entropy.ignore_index};
}

/* False for a row that gives 0: ignored, or with a target that is no class, which is a fault. */
static bool take_target(const loss_rows *rows, int64_t n, const hl_launch *launch, int64_t *out_t)
{
    *out_t = hl_ref_load_int(rows->target, rows->target_dtype, n);
    if (*out_t == rows->ignored) return false;
    if (*out_t >= 0 && *out_t < rows->C) return true;
    hl_launch_fault(launch, n, *out_t);
    return false;
}

static double weigh_class(const loss_rows *rows, int64_t c)
{
    return rows->weight ? rows->weight[c] : 1;
}

static hl_status launch_cross_entropy(const hl_kernel_state *state, void *const *args,
                                      const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    loss_rows rows = make_rows(call, args, 0);
    double *loss = args[call->n_in], *weight = args[call->n_in + 1], s = rows.smoothing;
    for (int64_t n = 0; n < rows.N; n++) {
        const double *x = rows.logits + n * rows.C;
        int64_t t;
        loss[n] = weight[n] = 0;
        if (!take_target(&rows, n, launch, &t)) continue;
        hl_ref_row row = hl_ref_row_make(x, rows.C);
        weight[n] = weigh_class(&rows, t);
        loss[n] = -(1 - s) * weight[n] * hl_ref_row_log_softmax(row, x[t]);
        if (s == 0) continue;
        double soft = 0;
        for (int64_t c = 0; c < rows.C; c++)
            soft -= weigh_class(&rows, c) * hl_ref_row_log_softmax(row, x[c]);
        loss[n] += s / (double)rows.C * soft;
    }
    return HL_OK;
}

/* d(-logp[c]) / dx[j] = p[j] - [j = c] */
static hl_status launch_cross_entropy_grad(const hl_kernel_state *state, void *const *args,
                                           const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    loss_rows rows = make_rows(call, args, 1);
    const double *dloss = args[0];
    int64_t step = call->in[0].shape.dim[0] == rows.N; /* 0: one for all rows */
    double s = rows.smoothing, all_weights = 0;
    for (int64_t c = 0; c < rows.C; c++) all_weights += weigh_class(&rows, c);
    for (int64_t n = 0; n < rows.N; n++) {
        const double *x = rows.logits + n * rows.C;
        double *dx = (double *)args[call->n_in] + n * rows.C;
        int64_t t;
        bool counts = take_target(&rows, n, launch, &t);
        hl_ref_row row = hl_ref_row_make(x, rows.C);
        for (int64_t j = 0; j < rows.C; j++) {
            dx[j] = 0;
            if (!counts) continue;
            double p = exp(hl_ref_row_log_softmax(row, x[j]));
            double hard = weigh_class(&rows, t) * (p - (j == t));
            double soft = (p * all_weights - weigh_class(&rows, j)) / (double)rows.C;
            dx[j] = dloss[n * step] * ((1 - s) * hard + s * soft);
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(CROSS_ENTROPY, "cross_entropy", hl_ref_query_f64, launch_cross_entropy),
    HL_REF_KERNEL(CROSS_ENTROPY_GRAD, "cross_entropy_grad", hl_ref_query_f64,
                  launch_cross_entropy_grad),
};
const hl_ref_family hl_ref_loss = HL_REF_FAMILY(kernels);
