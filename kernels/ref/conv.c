/* Convolutions: every product of an input, a weight and an output, added to the one that is asked
 * for. */
#include "kernels/ref/ref.h"

/* Element (a, b, place) of an array whose first dim is a, with channels b. */
typedef struct array {
    double *data;
    int64_t channels, span; /* elements of a channel */
    bool channels_last;
} array;

static double *at(const array *x, int64_t a, int64_t b, int64_t place)
{
    if (x->channels_last) return &x->data[(a * x->span + place) * x->channels + b];
    return &x->data[(a * x->channels + b) * x->span + place];
}

typedef enum result { RESULT_Y, RESULT_X, RESULT_W } result;

static void add_product(result wanted, double *x, double *w, double *y)
{
    if (wanted == RESULT_Y) *y += *x * *w;
    if (wanted == RESULT_X) *x += *y * *w;
    if (wanted == RESULT_W) *w += *y * *x;
}

static void add_products(const hl_conv *conv, result wanted, const array *x, const array *w,
                         const array *y)
{
    int64_t in = conv->C / conv->groups, out = conv->O / conv->groups;
    for (int64_t n = 0; n < conv->N; n++)
        for (int64_t o = 0; o < conv->O; o++)
            for (int64_t pixel = 0; pixel < y->span; pixel++)
                for (int64_t tap = 0; tap < w->span; tap++) {
                    int64_t place = hl_ref_find_input(&conv->window, pixel, tap);
                    for (int64_t c = 0; c < in && place >= 0; c++)
                        add_product(wanted, at(x, n, o / out * in + c, place), at(w, o, c, tap),
                                    at(y, n, o, pixel));
                }
}

/* Zero, or the bias of the channel. */
static void start(const array *to, int64_t n, const double *bias)
{
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = 0; b < to->channels; b++)
            for (int64_t place = 0; place < to->span; place++)
                *at(to, a, b, place) = bias ? bias[b] : 0;
}

static void run(const hl_ref_call *call, result wanted, const hl_type *x_type,
                const hl_type *w_type, const hl_type *y_type, void *const *xwy, const double *bias)
{
    hl_conv conv = hl_conv_make(&call->attrs.conv, &x_type->shape, &w_type->shape, &y_type->shape);
    const hl_window *window = &conv.window;
    bool last = conv.channels_last;
    array x = {xwy[0], conv.C, hl_window_span(window->in), last};
    array w = {xwy[1], conv.C / conv.groups, hl_window_span(window->kernel), false};
    array y = {xwy[2], conv.O, hl_window_span(window->out), last};
    if (wanted == RESULT_Y) start(&y, conv.N, bias);
    if (wanted == RESULT_X) start(&x, conv.N, bias);
    if (wanted == RESULT_W) start(&w, conv.O, NULL);
    add_products(&conv, wanted, &x, &w, &y);
}

/* x, w, bias -> y */
static hl_status launch_conv(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    void *xwy[] = {args[0], args[1], args[call->n_in]};
    run(call, RESULT_Y, &call->in[0], &call->in[1], &call->out[0], xwy,
        call->n_in == 3 ? args[2] : NULL);
    return HL_OK;
}

/* y, w, bias -> x */
static hl_status launch_conv_transpose(const hl_kernel_state *state, void *const *args,
                                       const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    void *xwy[] = {args[call->n_in], args[1], args[0]};
    run(call, RESULT_X, &call->out[0], &call->in[1], &call->in[0], xwy,
        call->n_in == 3 ? args[2] : NULL);
    return HL_OK;
}

/* y, x -> w */
static hl_status launch_conv_weight_grad(const hl_kernel_state *state, void *const *args,
                                         const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    void *xwy[] = {args[1], args[2], args[0]};
    run(call, RESULT_W, &call->in[1], &call->out[0], &call->in[0], xwy, NULL);
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(CONV, "conv", hl_ref_query_f64, launch_conv),
    HL_REF_KERNEL(CONV_TRANSPOSE, "conv_transpose", hl_ref_query_f64, launch_conv_transpose),
    HL_REF_KERNEL(CONV_WEIGHT_GRAD, "conv_weight_grad", hl_ref_query_f64, launch_conv_weight_grad),
};
const hl_ref_family hl_ref_conv = HL_REF_FAMILY(kernels);
