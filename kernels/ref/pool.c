/* Pooling: every window is searched in row-major order. */
#include <math.h>

#include "kernels/ref/ref.h"

/* The place of spatial element `place` of image n's channel c. */
static int64_t find_element(const hl_pool *pool, int64_t span, int64_t n, int64_t c, int64_t place)
{
    if (pool->channels_last) return (n * span + place) * pool->C + c;
    return (n * pool->C + c) * span + place;
}

/* The spatial element that is the largest of a window. */
static int64_t find_largest(const hl_pool *pool, const double *x, int64_t n, int64_t c,
                            int64_t pixel)
{
    const hl_window *w = &pool->window;
    int64_t span = hl_window_span(w->in), best = -1;
    double largest = 0;
    for (int64_t tap = 0; tap < hl_window_span(w->kernel); tap++) {
        int64_t place = hl_ref_find_input(w, pixel, tap);
        if (place < 0) continue;
        double value = x[find_element(pool, span, n, c, place)];
        if (best < 0 || value > largest || (isnan(value) && !isnan(largest)))
            best = place, largest = value;
    }
    return best;
}

/* x -> y, or the index of each of y's elements, or with dy -> dx */
static void run(const hl_pool *pool, const double *x, const double *dy, double *y, int64_t *index,
                double *dx)
{
    int64_t in = hl_window_span(pool->window.in), out = hl_window_span(pool->window.out);
    for (int64_t i = 0; dx && i < pool->N * pool->C * in; i++) dx[i] = 0;
    for (int64_t n = 0; n < pool->N; n++)
        for (int64_t c = 0; c < pool->C; c++)
            for (int64_t pixel = 0; pixel < out; pixel++) {
                int64_t best = find_largest(pool, x, n, c, pixel);
                int64_t from = find_element(pool, in, n, c, best);
                int64_t to = find_element(pool, out, n, c, pixel);
                if (y) y[to] = x[from];
                if (index) index[to] = best;
                if (dx) dx[from] += dy[to];
            }
}

static hl_status launch_max_pool(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    hl_pool pool = hl_pool_make(&call->attrs.pool, &call->in[0].shape, &call->out[0].shape);
    run(&pool, args[0], NULL, args[1], NULL, NULL);
    return HL_OK;
}

static hl_status launch_max_pool_index(const hl_kernel_state *state, void *const *args,
                                       const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    hl_pool pool = hl_pool_make(&call->attrs.pool, &call->in[0].shape, &call->out[0].shape);
    run(&pool, args[0], NULL, NULL, args[1], NULL);
    return HL_OK;
}

static hl_status launch_max_pool_grad(const hl_kernel_state *state, void *const *args,
                                      const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    hl_pool pool = hl_pool_make(&call->attrs.pool, &call->in[1].shape, &call->in[0].shape);
    run(&pool, args[1], args[0], NULL, NULL, args[2]);
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(MAX_POOL, "max_pool", hl_ref_query_f64, launch_max_pool),
    HL_REF_KERNEL(MAX_POOL_INDEX, "max_pool_index", hl_ref_query_f64, launch_max_pool_index),
    HL_REF_KERNEL(MAX_POOL_GRAD, "max_pool_grad", hl_ref_query_f64, launch_max_pool_grad),
};
const hl_ref_family hl_ref_pool = HL_REF_FAMILY(kernels);
