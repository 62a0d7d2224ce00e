/* Layer normalisation (Ba, Kiros and Hinton 2016) and its gradient, row by row. The variance is the
 * mean square distance from the mean, in a second pass over a row that is in cache by then. */
#include "kernels/cpu/rows.h"

typedef struct norm_state {
    hl_rows rows;
    int n_in;
    float eps;
} norm_state;

HL_SIMD hl_v square(hl_v a)
{
    return a * a;
}

static void norm_row(const norm_state *norm, const float *x, const float *weight, const float *bias,
                     float *y, float *out_mean, float *out_rstd)
{
    int64_t C = norm->rows.C;
    float mean = HL_ROW_SUM(C, i, n, hl_row_load(x + i, n)) / (float)C;
    hl_v m = hl_v_set1(mean);
    float squares =
        HL_ROW_SUM(C, i, n, hl_v_keep(hl_vm_first(n), square(hl_row_load(x + i, n) - m)));
    float rstd = 1 / sqrtf(squares / (float)C + norm->eps);
    hl_v scale = hl_v_set1(rstd);
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_v z = (hl_row_load(x + i, n) - m) * scale;
        if (weight) z = z * hl_row_load(weight + i, n);
        if (bias) z = z + hl_row_load(bias + i, n);
        hl_row_store(y + i, z, n);
    }
    *out_mean = mean, *out_rstd = rstd;
}

static void run_norm(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    const norm_state *norm = state->impl;
    int64_t C = norm->rows.C;
    const float *x = args[0], *weight = norm->n_in > 1 ? args[1] : NULL;
    const float *bias = norm->n_in > 2 ? args[2] : NULL;
    float *y = args[norm->n_in], *mean = args[norm->n_in + 1], *rstd = args[norm->n_in + 2];
    end = hl_cpu_min(end, norm->rows.R);
    for (int64_t r = begin; r < end; r++) {
        norm_row(norm, x + r * C, weight, bias, y + r * C, mean + r, rstd + r);
    }
}

/* With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). */
static void grad_row(const float *dy, const float *x, float mean, float rstd, const float *weight,
                     float *dx, int64_t C)
{
    hl_v m = hl_v_set1(mean), scale = hl_v_set1(rstd), sum_g = {0}, sum_gz = {0};
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_v g = hl_row_load(dy + i, n);
        if (weight) g = g * hl_row_load(weight + i, n);
        sum_g += g;
        sum_gz += g * ((hl_row_load(x + i, n) - m) * scale);
    }
    hl_v mean_g = hl_v_set1(hl_v_sum(sum_g) / (float)C);
    hl_v mean_gz = hl_v_set1(hl_v_sum(sum_gz) / (float)C);
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_v g = hl_row_load(dy + i, n), z = (hl_row_load(x + i, n) - m) * scale;
        if (weight) g = g * hl_row_load(weight + i, n);
        hl_row_store(dx + i, scale * ((g - mean_g) - z * mean_gz), n);
    }
}

static void run_norm_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                          int64_t end, const hl_launch *launch)
{
    (void)launch;
    const norm_state *norm = state->impl;
    int64_t C = norm->rows.C;
    const float *dy = args[0], *x = args[1], *mean = args[2], *rstd = args[3];
    const float *weight = norm->n_in > 4 ? args[4] : NULL;
    float *dx = args[norm->n_in];
    end = hl_cpu_min(end, norm->rows.R);
    for (int64_t r = begin; r < end; r++) {
        grad_row(dy + r * C, x + r * C, mean[r], rstd[r], weight, dx + r * C, C);
    }
}

static norm_state make_norm(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    return (norm_state){.rows = hl_rows_make(shape, (int)hl_layer_norm_attrs(node)->n_axes),
                        .n_in = node->n_in,
                        .eps = (float)hl_layer_norm_attrs(node)->eps};
}

static hl_status query_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    if (hl_graph_dtype(graph, node->out) != HL_DTYPE_F32) {
        hl_reason_set(out_why_not, "gives float32, asked for %s",
                      hl_dtype_name(hl_graph_dtype(graph, node->out)));
        return HL_ERROR_CONFIG;
    }
    norm_state norm = make_norm(graph, node);
    bool is_grad = node->op == HL_OP_LAYER_NORM_GRAD;
    hl_rows_require(&norm.rows, is_grad ? 15 : 1, hl_cpu_bits(node->n_out), 0.3, out_req);
    out_req->in_place[0] = is_grad ? 3 : 1;
    /* mean and rstd of neighbouring rows share cache lines. */
    if (!is_grad) out_req->grain = hl_cpu_line_grain(sizeof(float));
    return HL_OK;
}

static hl_status prepare_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    norm_state norm = make_norm(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&norm, sizeof norm, out_state);
}

static const hl_kernel norm_kernel = {.op = HL_OP_LAYER_NORM,
                                      .name = HL_CPU_NAME("layer_norm"),
                                      .query = query_norm,
                                      .prepare = prepare_norm,
                                      .block = run_norm};
static const hl_kernel grad_kernel = {.op = HL_OP_LAYER_NORM_GRAD,
                                      .name = HL_CPU_NAME("layer_norm_grad"),
                                      .query = query_norm,
                                      .prepare = prepare_norm,
                                      .block = run_norm_grad};

const hl_kernel *const HL_ISA_NAME(hl_cpu_norm_kernels)[] = {&norm_kernel, &grad_kernel, NULL};
