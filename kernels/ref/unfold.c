/* Windows side by side, and back: each element that a tap reads is copied, or added to. */
#include <string.h>

#include "kernels/ref/ref.h"

/* x (N,in,C) -> windows (N,out,taps,C); elements of any dtype */
static hl_status launch_unfold(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *x = &call->in[0].shape;
    hl_window w = hl_unfold_make(&call->attrs.unfold, x, &call->out[0].shape);
    int64_t in = hl_window_span(w.in), out = hl_window_span(w.out);
    int64_t taps = hl_window_span(w.kernel);
    size_t bytes = (size_t)x->dim[x->rank - 1] * hl_dtype_bytes(call->in[0].dtype);
    const unsigned char *from = args[0];
    unsigned char *to = args[1];
    for (int64_t n = 0; n < x->dim[0]; n++)
        for (int64_t pixel = 0; pixel < out; pixel++)
            for (int64_t tap = 0; tap < taps; tap++, to += bytes) {
                int64_t place = hl_ref_find_input(&w, pixel, tap);
                if (place < 0)
                    memset(to, 0, bytes);
                else
                    memcpy(to, from + (size_t)(n * in + place) * bytes, bytes);
            }
    return HL_OK;
}

/* windows (N,out,taps,C) -> x (N,in,C) */
static hl_status launch_fold(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *x = &call->out[0].shape;
    hl_window w = hl_unfold_make(&call->attrs.unfold, x, &call->in[0].shape);
    int64_t in = hl_window_span(w.in), out = hl_window_span(w.out), C = x->dim[x->rank - 1];
    int64_t taps = hl_window_span(w.kernel);
    const double *from = args[0];
    double *to = args[1];
    for (int64_t i = 0; i < x->dim[0] * in * C; i++) to[i] = 0;
    for (int64_t n = 0; n < x->dim[0]; n++)
        for (int64_t pixel = 0; pixel < out; pixel++)
            for (int64_t tap = 0; tap < taps; tap++, from += C) {
                int64_t place = hl_ref_find_input(&w, pixel, tap);
                for (int64_t c = 0; c < C && place >= 0; c++)
                    to[(n * in + place) * C + c] += from[c];
            }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(UNFOLD, "unfold", hl_ref_query_any, launch_unfold),
    HL_REF_KERNEL(FOLD, "fold", hl_ref_query_f64, launch_fold),
};
const hl_ref_family hl_ref_unfold = HL_REF_FAMILY(kernels);
