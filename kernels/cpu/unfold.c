/* Windows side by side, and back (csrc/ops/unfold.c). UNFOLD copies runs of channels of any dtype,
 * a row of its work is a window. A row of FOLD's is an element of the input: it adds up what was
 * read from it, in the order of the taps. */
#include "ir/window.h"
#include "kernels/cpu/rows.h"

typedef struct unfold_state {
    hl_window window;
    int64_t N, C, taps;
    size_t bytes; /* of an element */
} unfold_state;

static unfold_state make_state(const hl_graph *graph, const hl_node *node)
{
    bool is_fold = node->op == HL_OP_FOLD;
    const hl_type *in = hl_node_in_type(graph, node, 0), *out = hl_node_out_type(graph, node, 0);
    const hl_shape *x = is_fold ? &out->shape : &in->shape;
    unfold_state s = {
        .window = hl_unfold_make(hl_unfold_attrs(node), x, is_fold ? &in->shape : &out->shape),
        .N = x->dim[0],
        .C = x->dim[x->rank - 1],
        .bytes = hl_dtype_bytes(in->dtype)};
    s.taps = hl_window_span(s.window.kernel);
    return s;
}

static hl_status query_unfold(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_fold = node->op == HL_OP_FOLD;
    if (is_fold && !hl_rows_is_f32(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    unfold_state s = make_state(graph, node);
    int64_t rows = s.N * hl_window_span(is_fold ? s.window.in : s.window.out);
    int64_t row = (is_fold ? s.C : s.taps * s.C) * (int64_t)s.bytes;
    out_req->rows = hl_cpu_max(rows, 1);
    out_req->grain = hl_cpu_line_grain(hl_cpu_min(row, HL_ALIGN));
    out_req->row_out = 1;
    out_req->row_cost = 0.1 * (double)(s.taps * s.C);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_unfold(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    unfold_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* Of a place in row-major order, its coordinates along the dims, and what is left. */
static int64_t locate(int64_t place, const int64_t *dims, int64_t *out_at)
{
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        out_at[d] = place % dims[d];
        place /= dims[d];
    }
    return place;
}

/* x (N,in,C) -> windows (N,out,taps,C) */
static void run_unfold(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    (void)launch;
    const unfold_state *s = state->impl;
    const hl_window *w = &s->window;
    const size_t run = (size_t)s->C * s->bytes;
    end = hl_cpu_min(end, s->N * hl_window_span(w->out));
    for (int64_t row = begin; row < end; row++) {
        int64_t o[HL_WINDOW_DIMS], image = locate(row, w->out, o);
        unsigned char *to = (unsigned char *)args[1] + (size_t)(row * s->taps) * run;
        for (int64_t tap = 0; tap < s->taps; tap++, to += run) {
            int64_t k[HL_WINDOW_DIMS], place = image;
            bool is_inside = true;
            locate(tap, w->kernel, k);
            for (int d = 0; d < HL_WINDOW_DIMS; d++) {
                int64_t at = hl_window_at(w, d, o[d], k[d]);
                is_inside = is_inside && at >= 0 && at < w->in[d];
                place = place * w->in[d] + at;
            }
            if (is_inside)
                memcpy(to, (const unsigned char *)args[0] + (size_t)place * run, run);
            else
                memset(to, 0, run);
        }
    }
}

/* The window that reads element `at` of the input by tap k, along dim d; -1: none does. */
static int64_t find_output(const hl_window *w, int d, int64_t at, int64_t k)
{
    int64_t o = at + w->before[d] - k * w->dilation[d];
    if (o < 0 || o % w->stride[d] != 0 || o / w->stride[d] >= w->out[d]) return -1;
    return o / w->stride[d];
}

static void add_run(const float *from, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i += HL_VL) {
        int64_t lanes = hl_cpu_min(n - i, HL_VL);
        hl_row_store(to + i, hl_row_load(to + i, lanes) + hl_row_load(from + i, lanes), lanes);
    }
}

/* windows (N,out,taps,C) -> x (N,in,C) */
static void run_fold(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    const unfold_state *s = state->impl;
    const hl_window *w = &s->window;
    end = hl_cpu_min(end, s->N * hl_window_span(w->in));
    for (int64_t row = begin; row < end; row++) {
        int64_t at[HL_WINDOW_DIMS], image = locate(row, w->in, at);
        float *to = (float *)args[1] + row * s->C;
        memset(to, 0, (size_t)s->C * sizeof(float));
        for (int64_t tap = 0; tap < s->taps; tap++) {
            int64_t k[HL_WINDOW_DIMS], place = image;
            bool is_read = true;
            locate(tap, w->kernel, k);
            for (int d = 0; d < HL_WINDOW_DIMS; d++) {
                int64_t o = find_output(w, d, at[d], k[d]);
                is_read = is_read && o >= 0;
                place = place * w->out[d] + o;
            }
            if (is_read) add_run((const float *)args[0] + (place * s->taps + tap) * s->C, s->C, to);
        }
    }
}

static const hl_kernel unfold = {.op = HL_OP_UNFOLD,
                                 .name = HL_CPU_NAME("unfold"),
                                 .query = query_unfold,
                                 .prepare = prepare_unfold,
                                 .block = run_unfold};
static const hl_kernel fold = {.op = HL_OP_FOLD,
                               .name = HL_CPU_NAME("fold"),
                               .query = query_unfold,
                               .prepare = prepare_unfold,
                               .block = run_fold};

const hl_kernel *const HL_ISA_NAME(hl_cpu_unfold_kernels)[] = {&unfold, &fold, NULL};
