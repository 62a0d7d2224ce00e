/* Statistics of channels: a row after the other. */
#include <math.h>

#include "kernels/ref/ref.h"

static double least(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}

static double greatest(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* x (R,C), shift (C), mask (R) -> count, lowest (C), highest (C), sums (C), products (C,C) or (C)
 */
static hl_status launch_channel_statistics(const hl_kernel_state *state, void *const *args,
                                           const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *shape = &call->in[0].shape;
    int64_t R = hl_shape_span(shape, 0, shape->rank - 1), C = shape->dim[shape->rank - 1];
    bool all = call->attrs.channel_statistics.products;
    const double *shift = args[1];
    const uint8_t *mask = call->n_in > 2 ? args[2] : NULL;
    void *const *out = args + call->n_in;
    double *count = out[0], *lowest = out[1], *highest = out[2], *sums = out[3], *products = out[4];
    *count = 0;
    for (int64_t c = 0; c < C; c++) lowest[c] = INFINITY, highest[c] = -INFINITY, sums[c] = 0;
    for (int64_t i = 0; i < (all ? C * C : C); i++) products[i] = 0;
    for (int64_t r = 0; r < R; r++) {
        const double *x = (const double *)args[0] + r * C;
        if (mask && !mask[r]) continue;
        *count += 1;
        for (int64_t c = 0; c < C; c++) {
            double distance = x[c] - shift[c];
            lowest[c] = least(lowest[c], x[c]);
            highest[c] = greatest(highest[c], x[c]);
            sums[c] += distance;
            if (!all) products[c] += distance * distance;
            for (int64_t d = 0; all && d < C; d++)
                products[c * C + d] += distance * (x[d] - shift[d]);
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(CHANNEL_STATISTICS, "channel_statistics", hl_ref_query_f64,
                  launch_channel_statistics),
};
const hl_ref_family hl_ref_stat = HL_REF_FAMILY(kernels);
