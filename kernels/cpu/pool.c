/* Max pooling, vectors along channels, which stand last. A NaN is the largest, and of equal numbers
 * the first in the order of the taps.
 *
 * Forward, a row of the work is a pixel of the result. The gradient searches each window again and
 * adds where the largest was; a row of its work is some channels of one image, so that no two rows
 * add to the same element. */
#include "ir/window.h"
#include "kernels/cpu/rows.h"

enum { CHANNELS = 64 /* of a row of the gradient */ };

typedef struct pool_state {
    hl_pool pool;
    int64_t n_blocks; /* of channels */
} pool_state;

static pool_state make_state(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_MAX_POOL_GRAD;
    const hl_shape *x = hl_graph_shape(graph, node->in[is_grad]),
                   *y = hl_graph_shape(graph, is_grad ? node->in[0] : node->out);
    pool_state s = {.pool = hl_pool_make(hl_pool_attrs(node), x, y)};
    s.n_blocks = hl_cpu_ceil_div(hl_cpu_max(s.pool.C, 1), CHANNELS);
    return s;
}

static hl_status query_pool(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_grad = node->op == HL_OP_MAX_POOL_GRAD;
    if (!hl_rows_is_f32(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    if (!hl_pool_attrs(node)->channels_last) {
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
        return HL_OK;
    }
    pool_state s = make_state(graph, node);
    const hl_window *w = &s.pool.window;
    int64_t n_pixels = hl_window_span(w->out), taps = hl_window_span(w->kernel);
    out_req->rows = hl_cpu_max(s.pool.N * (is_grad ? s.n_blocks : n_pixels), 1);
    out_req->grain = is_grad ? 1 : hl_cpu_line_grain(4 * hl_cpu_min(s.pool.C, 16));
    if (is_grad)
        out_req->row_cost = 0.2 * (double)(n_pixels * taps * CHANNELS);
    else
        out_req->row_cost = 0.1 * (double)(taps * s.pool.C), out_req->row_out = 1;
    return HL_OK;
}

static hl_status prepare_pool(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    pool_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The taps of a window that read the input: [from, to) along each dim, and what `from` reads. */
typedef struct clipped {
    int64_t from[HL_WINDOW_DIMS], to[HL_WINDOW_DIMS], first[HL_WINDOW_DIMS];
} clipped;

static clipped clip_window(const hl_window *w, int64_t pixel)
{
    clipped c;
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        int64_t at = hl_window_at(w, d, pixel % w->out[d], 0), dilation = w->dilation[d];
        c.from[d] = at < 0 ? (-at + dilation - 1) / dilation : 0;
        c.first[d] = at + c.from[d] * dilation;
        int64_t left = w->in[d] - c.first[d]; /* at least 1: every window has an element */
        c.to[d] = hl_cpu_min(w->kernel[d], c.from[d] + (left + dilation - 1) / dilation);
        pixel /= w->out[d];
    }
    return c;
}

/* The taps of a window in their order: BODY sees the place of each among a channel's elements. */
#define FOR_TAPS(w, c, BODY)                                                                       \
    for (int64_t t0 = 0; t0 < (c)->to[0] - (c)->from[0]; t0++)                                     \
        for (int64_t t1 = 0; t1 < (c)->to[1] - (c)->from[1]; t1++)                                 \
            for (int64_t t2 = 0; t2 < (c)->to[2] - (c)->from[2]; t2++) {                           \
                int64_t place = (c)->first[0] + t0 * (w)->dilation[0];                             \
                place = place * (w)->in[1] + (c)->first[1] + t1 * (w)->dilation[1];                \
                place = place * (w)->in[2] + (c)->first[2] + t2 * (w)->dilation[2];                \
                BODY                                                                               \
            }

/* Is a larger than what was the largest so far? */
HL_SIMD hl_vm is_larger(hl_v a, hl_v largest)
{
    return hl_vm_or(hl_v_lt(largest, a),
                    hl_vm_and(hl_v_is_nan(a), hl_vm_not(hl_v_is_nan(largest))));
}

/* The largest of n channels of a window; *out_tap: which of the taps has it. */
HL_SIMD hl_v search(const hl_window *w, const clipped *c, const float *x, int64_t C, int64_t n,
                    hl_vi *out_tap)
{
    int64_t begin = (c->first[0] * w->in[1] + c->first[1]) * w->in[2] + c->first[2];
    hl_v largest = hl_row_load(x + begin * C, n);
    hl_vi best = hl_vi_zero(), tap = hl_vi_zero(), one = hl_vi_set1(1);
    FOR_TAPS(w, c, {
        hl_v a = hl_row_load(x + place * C, n);
        hl_vm larger = is_larger(a, largest);
        largest = hl_v_select(larger, a, largest);
        best = hl_vi_select(larger, tap, best);
        tap = hl_vi_add(tap, one);
    })
    *out_tap = best;
    return largest;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void run_pool(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    const pool_state *s = state->impl;
    const hl_window *w = &s->pool.window;
    int64_t C = s->pool.C, n_pixels = hl_window_span(w->out), image = hl_window_span(w->in) * C;
    end = hl_cpu_min(end, s->pool.N * n_pixels);
    for (int64_t row = begin; row < end; row++) {
        clipped c = clip_window(w, row % n_pixels);
        const float *x = (const float *)args[0] + row / n_pixels * image;
        float *y = (float *)args[1] + row * C;
        for (int64_t i = 0; i < C; i += HL_VL) {
            int64_t n = hl_cpu_min(C - i, HL_VL);
            hl_vi tap;
            hl_row_store(y + i, search(w, &c, x + i, C, n, &tap), n);
        }
    }
}

/* Where in a channel the n-th of a window's taps is. */
static int64_t find_tap(const hl_window *w, const clipped *c, int64_t tap)
{
    int64_t place = 0, scale = 1;
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        int64_t n = c->to[d] - c->from[d];
        place += (c->first[d] + tap % n * w->dilation[d]) * scale;
        scale *= w->in[d];
        tap /= n;
    }
    return place;
}

static void run_index(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    (void)launch;
    const pool_state *s = state->impl;
    const hl_window *w = &s->pool.window;
    int64_t C = s->pool.C, n_pixels = hl_window_span(w->out), image = hl_window_span(w->in) * C;
    end = hl_cpu_min(end, s->pool.N * n_pixels);
    for (int64_t row = begin; row < end; row++) {
        clipped c = clip_window(w, row % n_pixels);
        const float *x = (const float *)args[0] + row / n_pixels * image;
        int64_t *index = (int64_t *)args[1] + row * C;
        for (int64_t i = 0; i < C; i += HL_VL) {
            int64_t n = hl_cpu_min(C - i, HL_VL);
            int32_t taps[HL_VL];
            hl_vi tap;
            search(w, &c, x + i, C, n, &tap);
            memcpy(taps, &tap, sizeof taps);
            for (int64_t k = 0; k < n; k++) index[i + k] = find_tap(w, &c, taps[k]);
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* n channels of one image. */
static void add_gradients(const hl_window *w, const float *dy, const float *x, int64_t C, int64_t n,
                          float *dx)
{
    int64_t n_pixels = hl_window_span(w->out), n_inputs = hl_window_span(w->in);
    for (int64_t i = 0; i < n_inputs; i++) hl_row_store(dx + i * C, hl_v_zero(), n);
    for (int64_t pixel = 0; pixel < n_pixels; pixel++) {
        clipped c = clip_window(w, pixel);
        hl_v gradient = hl_row_load(dy + pixel * C, n);
        hl_vi best, tap = hl_vi_zero(), one = hl_vi_set1(1);
        search(w, &c, x, C, n, &best);
        FOR_TAPS(w, &c, {
            hl_v share = hl_v_keep(hl_vi_eq(tap, best), gradient);
            hl_row_store(dx + place * C, hl_row_load(dx + place * C, n) + share, n);
            tap = hl_vi_add(tap, one);
        })
    }
}

static void run_grad(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    const pool_state *s = state->impl;
    const hl_window *w = &s->pool.window;
    int64_t C = s->pool.C, of_y = hl_window_span(w->out) * C, of_x = hl_window_span(w->in) * C;
    end = hl_cpu_min(end, s->pool.N * s->n_blocks);
    for (int64_t row = begin; row < end; row++) {
        int64_t image = row / s->n_blocks, first = row % s->n_blocks * CHANNELS;
        for (int64_t i = first; i < hl_cpu_min(first + CHANNELS, C); i += HL_VL)
            add_gradients(w, (const float *)args[0] + image * of_y + i,
                          (const float *)args[1] + image * of_x + i, C, hl_cpu_min(C - i, HL_VL),
                          (float *)args[2] + image * of_x + i);
    }
}

#define KERNEL(OP, text, run)                                                                      \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(text),                                                                    \
     .query = query_pool,                                                                          \
     .prepare = prepare_pool,                                                                      \
     .block = run}
static const hl_kernel max_pool = KERNEL(MAX_POOL, "max_pool", run_pool);
static const hl_kernel max_pool_index = KERNEL(MAX_POOL_INDEX, "max_pool_index", run_index);
static const hl_kernel max_pool_grad = KERNEL(MAX_POOL_GRAD, "max_pool_grad", run_grad);

const hl_kernel *const HL_ISA_NAME(hl_cpu_pool_kernels)[] = {&max_pool, &max_pool_index,
                                                             &max_pool_grad, NULL};
