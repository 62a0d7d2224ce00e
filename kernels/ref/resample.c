/* Resampling along an axis: a banded matrix times every line. */
#include "kernels/ref/ref.h"

/* x (O,n,I), start (m), weight (m,taps) -> y (O,m,I) */
static hl_status launch_resample(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *shape = &call->in[0].shape;
    int axis = (int)call->attrs.axis.axis;
    int64_t O = hl_shape_span(shape, 0, axis), I = hl_shape_span(shape, axis + 1, shape->rank);
    int64_t n = shape->dim[axis], m = call->in[1].shape.dim[0];
    int64_t taps = call->in[2].shape.dim[0] / m;
    const double *x = args[0], *weight = args[2];
    const int64_t *start = args[1];
    double *y = args[5];
    for (int64_t o = 0; o < O; o++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t i = 0; i < I; i++) {
                double sum = 0;
                for (int64_t t = 0; t < taps; t++)
                    if (start[j] >= -t && start[j] < n - t)
                        sum += weight[j * taps + t] * x[(o * n + start[j] + t) * I + i];
                y[(o * m + j) * I + i] = sum;
            }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(RESAMPLE, "resample", hl_ref_query_f64, launch_resample),
};
const hl_ref_family hl_ref_resample = HL_REF_FAMILY(kernels);
