/* Softmax over the last axis, its logarithm, and their gradients, row by row.
 *
 * The exponentials are computed once: written to the result, then scaled. */
#include "kernels/cpu/rows.h"

static void softmax_row(const float *x, float *y, int64_t C)
{
    if (C <= HL_VL) {
        hl_v e = hl_row_exp_short(x, C);
        hl_v_store_n(y, e * (1 / hl_v_sum(e)), C);
        return;
    }
    float sum = hl_row_exp(x, hl_row_max(x, C), y, C);
    hl_v scale = hl_v_set1(1 / sum);
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_row_store(y + i, hl_row_load(y + i, n) * scale, n);
    }
}

/* At most HL_VL rows: their logarithms are taken together. */
static void log_softmax_rows(const float *x, float *y, int64_t C, int64_t n_rows)
{
    float top[HL_VL], sum[HL_VL], log_sum[HL_VL];
    for (int64_t r = 0; r < n_rows; r++) {
        top[r] = hl_row_max(x + r * C, C);
        sum[r] = hl_row_exp(x + r * C, top[r], NULL, C);
    }
    for (int64_t r = n_rows; r < HL_VL; r++) sum[r] = 1;
    hl_v_store(log_sum, hl_v_log(hl_v_load(sum)));
    for (int64_t r = 0; r < n_rows; r++) {
        hl_v largest = hl_v_set1(top[r]), rest = hl_v_set1(log_sum[r]);
        for (int64_t i = 0; i < C; i += HL_VL) {
            int64_t n = hl_cpu_min(C - i, HL_VL), at = r * C + i;
            hl_row_store(y + at, (hl_row_load(x + at, n) - largest) - rest, n);
        }
    }
}

static void softmax_grad_row(const float *dy, const float *y, float *dx, int64_t C)
{
    float sum = HL_ROW_SUM(C, i, n, hl_row_load(dy + i, n) * hl_row_load(y + i, n));
    hl_v all = hl_v_set1(sum);
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_row_store(dx + i, hl_row_load(y + i, n) * (hl_row_load(dy + i, n) - all), n);
    }
}

static void log_softmax_grad_row(const float *dy, const float *y, float *dx, int64_t C)
{
    hl_v all = hl_v_set1(HL_ROW_SUM(C, i, n, hl_row_load(dy + i, n)));
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_v value = hl_row_load(dy + i, n) - hl_v_exp(hl_row_load(y + i, n)) * all;
        hl_row_store(dx + i, value, n);
    }
}

static void run_softmax(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    (void)launch;
    const hl_rows *rows = state->impl;
    end = hl_cpu_min(end, rows->R);
    const float *x = args[0];
    float *y = args[1];
    for (int64_t r = begin; r < end; r++) softmax_row(x + r * rows->C, y + r * rows->C, rows->C);
}

static void run_log_softmax(const hl_kernel_state *state, void *const *args, int64_t begin,
                            int64_t end, const hl_launch *launch)
{
    (void)launch;
    const hl_rows *rows = state->impl;
    int64_t C = rows->C;
    end = hl_cpu_min(end, rows->R);
    const float *x = args[0];
    float *y = args[1];
    for (int64_t r = begin; r < end; r += HL_VL) {
        log_softmax_rows(x + r * C, y + r * C, C, hl_cpu_min(end - r, HL_VL));
    }
}

static void run_softmax_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                             int64_t end, const hl_launch *launch)
{
    (void)launch;
    const hl_rows *rows = state->impl;
    int64_t C = rows->C;
    end = hl_cpu_min(end, rows->R);
    const float *dy = args[0], *y = args[1];
    float *dx = args[2];
    for (int64_t r = begin; r < end; r++) softmax_grad_row(dy + r * C, y + r * C, dx + r * C, C);
}

static void run_log_softmax_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                                 int64_t end, const hl_launch *launch)
{
    (void)launch;
    const hl_rows *rows = state->impl;
    int64_t C = rows->C;
    end = hl_cpu_min(end, rows->R);
    const float *dy = args[0], *y = args[1];
    float *dx = args[2];
    for (int64_t r = begin; r < end; r++) {
        log_softmax_grad_row(dy + r * C, y + r * C, dx + r * C, C);
    }
}

static hl_status query_softmax(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    hl_rows rows = hl_rows_make(&hl_node_in_type(graph, node, 0)->shape, 1);
    hl_rows_require(&rows, hl_cpu_bits(node->n_in), 1, 1.0, out_req);
    out_req->in_place[0] = hl_cpu_bits(node->n_in);
    return HL_OK;
}

static hl_status prepare_softmax(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    (void)device;
    hl_rows rows = hl_rows_make(&hl_node_in_type(graph, &graph->nodes[id], 0)->shape, 1);
    return hl_cpu_give_state(&rows, sizeof rows, out_state);
}

#define KERNEL(OP, fn)                                                                             \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(#fn),                                                                     \
     .query = query_softmax,                                                                       \
     .prepare = prepare_softmax,                                                                   \
     .block = run_##fn}
static const hl_kernel softmax = KERNEL(SOFTMAX, softmax);
static const hl_kernel log_softmax = KERNEL(LOG_SOFTMAX, log_softmax);
static const hl_kernel softmax_grad = KERNEL(SOFTMAX_GRAD, softmax_grad);
static const hl_kernel log_softmax_grad = KERNEL(LOG_SOFTMAX_GRAD, log_softmax_grad);

const hl_kernel *const HL_ISA_NAME(hl_cpu_softmax_kernels)[] = {
    &softmax, &log_softmax, &softmax_grad, &log_softmax_grad, NULL};
