/* Resampling along an axis by a banded matrix: x seen as (O,n,I), a row of the work is a line of
 * length I of the result, or where I is 1 a whole line of the axis. What a start leads to outside
 * of x counts as 0. */
#include "kernels/cpu/rows.h"

typedef struct resample_state {
    int64_t O, n, m, I, taps;
} resample_state;

static resample_state make_state(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *x = hl_graph_shape(graph, node->in[0]);
    int axis = (int)hl_axis_attrs(node)->axis;
    resample_state s = {.O = hl_shape_span(x, 0, axis),
                        .n = x->dim[axis],
                        .m = hl_graph_shape(graph, node->in[1])->dim[0],
                        .I = hl_shape_span(x, axis + 1, x->rank)};
    s.taps = hl_graph_shape(graph, node->in[2])->dim[0] / s.m;
    return s;
}

static hl_status query_resample(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    resample_state s = make_state(graph, node);
    bool by_line = s.I == 1;
    double elements = (double)(by_line ? s.m : s.I);
    out_req->rows = hl_cpu_max(by_line ? s.O : s.O * s.m, 1);
    out_req->grain = hl_cpu_line_grain(4 * hl_cpu_min(by_line ? s.m : s.I, 16));
    out_req->row_in = by_line;
    out_req->row_out = 1;
    out_req->row_cost = (by_line ? 1.0 : 0.1) * (double)s.taps * elements;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_resample(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_state *out_state)
{
    (void)device;
    resample_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* The taps [*out_from, *out_to) that read x for a start. */
static void clip_taps(const resample_state *s, int64_t start, int64_t *out_from, int64_t *out_to)
{
    *out_from = *out_to = 0;
    if (start >= s->n || start <= -s->taps) return;
    *out_from = hl_cpu_max(-start, 0);
    *out_to = hl_cpu_min(s->taps, s->n - start);
}

/* y (I) = sum of weights times lines of x (n,I) */
static void add_lines(const resample_state *s, const float *x, int64_t start, const float *weight,
                      float *y)
{
    int64_t from, to;
    clip_taps(s, start, &from, &to);
    for (int64_t i = 0; i < s->I; i += HL_VL) {
        int64_t lanes = hl_cpu_min(s->I - i, HL_VL);
        hl_v sum = hl_v_zero();
        for (int64_t t = from; t < to; t++)
            sum =
                hl_v_fma(hl_v_set1(weight[t]), hl_row_load(x + (start + t) * s->I + i, lanes), sum);
        hl_row_store(y + i, sum, lanes);
    }
}

/* y (m) from x (n) */
static void run_line(const resample_state *s, const float *x, const int64_t *start,
                     const float *weight, float *y)
{
    for (int64_t j = 0; j < s->m; j++) {
        int64_t from, to;
        float sum = 0;
        clip_taps(s, start[j], &from, &to);
        for (int64_t t = from; t < to; t++) sum += weight[j * s->taps + t] * x[start[j] + t];
        y[j] = sum;
    }
}

static void run_resample(const hl_kernel_state *state, void *const *args, int64_t begin,
                         int64_t end, const hl_launch *launch)
{
    (void)launch;
    const resample_state *s = state->impl;
    const float *x = args[0], *weight = args[2];
    const int64_t *start = args[1];
    float *y = args[5];
    end = hl_cpu_min(end, s->I == 1 ? s->O : s->O * s->m);
    for (int64_t row = begin; row < end; row++) {
        if (s->I == 1) {
            run_line(s, x + row * s->n, start, weight, y + row * s->m);
        } else {
            int64_t o = row / s->m, j = row % s->m;
            add_lines(s, x + o * s->n * s->I, start[j], weight + j * s->taps, y + row * s->I);
        }
    }
}

static const hl_kernel resample = {.op = HL_OP_RESAMPLE,
                                   .name = HL_CPU_NAME("resample"),
                                   .query = query_resample,
                                   .prepare = prepare_resample,
                                   .block = run_resample};

const hl_kernel *const HL_ISA_NAME(hl_cpu_resample_kernels)[] = {&resample, NULL};
