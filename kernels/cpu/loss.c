/* Cross-entropy of integer targets from logits (N,C), row by row.
 *
 * Rows go in groups of a vector's width, so that the logarithm is taken once per group. A target
 * that is no class is a fault; its row and ignored rows give 0 and weigh 0. */
#include "kernels/cpu/rows.h"

typedef struct loss_state {
    hl_rows rows;
    hl_dtype target_dtype;
    bool has_weight, is_shared; /* is_shared: one gradient for all rows */
    float smoothing;
    int64_t ignored;
} loss_state;

static int64_t read_target(const void *target, hl_dtype dtype, int64_t n)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)target)[n];
    case HL_DTYPE_I32: return ((const int32_t *)target)[n];
    case HL_DTYPE_I16: return ((const int16_t *)target)[n];
    case HL_DTYPE_I8: return ((const int8_t *)target)[n];
    default: return ((const uint8_t *)target)[n];
    }
}

/* -1 for a row that gives 0. */
static int64_t take_target(const loss_state *loss, const void *target, int64_t n,
                           const hl_launch *launch)
{
    int64_t t = read_target(target, loss->target_dtype, n);
    if (t == loss->ignored) return -1;
    if (t >= 0 && t < loss->rows.C) return t;
    hl_launch_fault(launch, n, t);
    return -1;
}

/* sum over classes of weight (top - x), the smoothed part's distances without the log. */
static float sum_distances(const float *x, const float *weight, float top, int64_t C)
{
    hl_v t = hl_v_set1(top);
    if (weight) {
        return HL_ROW_SUM(C, i, n, hl_row_load(weight + i, n) * (t - hl_row_load(x + i, n)));
    }
    return HL_ROW_SUM(C, i, n, hl_v_keep(hl_vm_first(n), t - hl_row_load(x + i, n)));
}

static float sum_weights(const loss_state *loss, const float *weight)
{
    if (!weight) return (float)loss->rows.C;
    return HL_ROW_SUM(loss->rows.C, i, n, hl_row_load(weight + i, n));
}

/* Of each of up to HL_VL rows: the largest logit, the sum of e^(x - top), and sum_distances. */
typedef struct row_sums {
    float top[HL_VL], exps[HL_VL], soft[HL_VL];
} row_sums;

static void sum_rows(const loss_state *loss, const float *x, const float *weight, int64_t n,
                     row_sums *out_sums)
{
    int64_t C = loss->rows.C;
    for (int64_t i = 0; i < n; i++) {
        float top = hl_row_max(x + i * C, C);
        out_sums->top[i] = top;
        out_sums->exps[i] = hl_row_exp(x + i * C, top, NULL, C);
        if (loss->smoothing > 0) out_sums->soft[i] = sum_distances(x + i * C, weight, top, C);
    }
    for (int64_t i = n; i < HL_VL; i++) out_sums->exps[i] = 1;
}

/* Rows of few classes take one lane each: a vector per class instead of a vector per row, most of
 * which would be empty, and its steps stay in registers. */
enum { SHORT_ROW = 8 };

static bool is_short(int64_t C)
{
    return C > 0 && C <= SHORT_ROW;
}

/* Where each lane's row begins; lanes beyond the last row repeat it. */
static hl_vi short_rows_at(int64_t n, int64_t C)
{
    hl_vi last = hl_vi_set1((int32_t)(n - 1)), lane = hl_vi_iota();
    return hl_vi_mul(hl_vi_select(hl_vi_lt(lane, last), lane, last), hl_vi_set1((int32_t)C));
}

static void sum_short_rows(const loss_state *loss, const float *x, const float *weight, int64_t n,
                           row_sums *out_sums)
{
    int64_t C = loss->rows.C;
    hl_vi rows = short_rows_at(n, C);
    hl_v value[SHORT_ROW], top = value[0] = hl_v_gather(x, rows);
    for (int64_t c = 1; c < C; c++) {
        value[c] = hl_v_gather(x + c, rows);
        top = hl_v_max(value[c], top);
    }
    hl_v exps = hl_v_zero(), soft = hl_v_zero();
    for (int64_t c = 0; c < C; c++) {
        exps += hl_v_exp(value[c] - top);
        if (loss->smoothing > 0)
            soft += weight ? hl_v_set1(weight[c]) * (top - value[c]) : top - value[c];
    }
    hl_v_store(out_sums->top, top);
    hl_v_store(out_sums->exps, exps);
    hl_v_store(out_sums->soft, soft);
}

/* Rows [first, first + n), n <= HL_VL. */
static void run_group(const loss_state *loss, void *const *args, int64_t first, int64_t n,
                      float all_weights, const hl_launch *launch)
{
    int64_t C = loss->rows.C;
    const float *x = (const float *)args[0] + first * C;
    const float *weight = loss->has_weight ? args[2] : NULL;
    float *out_loss = args[loss->has_weight ? 3 : 2], *out_weight = args[loss->has_weight ? 4 : 3];
    float log_sum[HL_VL], share = loss->smoothing / (float)C;
    row_sums sums;
    if (is_short(C))
        sum_short_rows(loss, x, weight, n, &sums);
    else
        sum_rows(loss, x, weight, n, &sums);
    hl_v_store(log_sum, hl_v_log(hl_v_load(sums.exps)));
    for (int64_t i = 0; i < n; i++) {
        int64_t t = take_target(loss, args[1], first + i, launch);
        float row_weight = t < 0 ? 0 : weight ? weight[t] : 1;
        float distance = t < 0 ? 0 : sums.top[i] - x[i * C + t];
        float value = (1 - loss->smoothing) * row_weight * (distance + log_sum[i]);
        if (loss->smoothing > 0) value += share * (sums.soft[i] + all_weights * log_sum[i]);
        out_loss[first + i] = t < 0 ? 0 : value;
        out_weight[first + i] = row_weight;
    }
}

static void run_loss(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const loss_state *loss = state->impl;
    end = hl_cpu_min(end, loss->rows.R);
    if (begin >= end) return;
    float all_weights = sum_weights(loss, loss->has_weight ? args[2] : NULL);
    for (int64_t r = begin; r < end; r += HL_VL) {
        run_group(loss, args, r, hl_cpu_min(end - r, HL_VL), all_weights, launch);
    }
}

/* dx = dloss ((1 - s) w_t (p - [c = t]) + s / C (p sum(w) - w_c)), p = softmax(x) */
static void run_grad_row(const loss_state *loss, const float *x, const float *weight, float dloss,
                         int64_t t, float all_weights, float *dx)
{
    int64_t C = loss->rows.C;
    hl_v e = {0};
    bool is_short = C <= HL_VL;
    if (is_short) e = hl_row_exp_short(x, C);
    float sum = is_short ? hl_v_sum(e) : hl_row_exp(x, hl_row_max(x, C), dx, C);
    float s = loss->smoothing, share = s / (float)C;
    float hard = (1 - s) * (weight ? weight[t] : 1);
    hl_v scale = hl_v_set1(dloss * (hard + share * all_weights) / sum);
    hl_v even = hl_v_set1(dloss * share), at_target = hl_v_set1(dloss * hard);
    for (int64_t i = 0; i < C; i += HL_VL) {
        int64_t n = hl_cpu_min(C - i, HL_VL);
        hl_v value = (is_short ? e : hl_row_load(dx + i, n)) * scale;
        if (s > 0) value -= weight ? even * hl_row_load(weight + i, n) : even;
        /* In a short row dx[t] would wait for the store of the only vector. */
        if (is_short) value -= hl_v_keep(hl_vi_eq(hl_vi_iota(), hl_vi_set1((int32_t)t)), at_target);
        hl_row_store(dx + i, value, n);
    }
    if (!is_short) dx[t] -= dloss * hard;
}

static float read_gradient(const loss_state *loss, const void *dloss, int64_t n)
{
    return ((const float *)dloss)[loss->is_shared ? 0 : n];
}

static void run_short_group(const loss_state *loss, void *const *args, int64_t first, int64_t n,
                            float all_weights, const hl_launch *launch)
{
    int64_t C = loss->rows.C;
    const float *x = (const float *)args[1] + first * C;
    const float *weight = loss->has_weight ? args[3] : NULL;
    float *dx = (float *)args[loss->has_weight ? 4 : 3] + first * C;
    float s = loss->smoothing, share = s / (float)C, out[SHORT_ROW][HL_VL];
    float hard[HL_VL] = {0}, scale[HL_VL] = {0}, even[HL_VL] = {0};
    int32_t target[HL_VL];
    for (int64_t i = 0; i < HL_VL; i++) {
        int64_t t = i < n ? take_target(loss, args[2], first + i, launch) : -1;
        target[i] = (int32_t)t;
        if (t < 0) continue;
        float dloss = read_gradient(loss, args[0], first + i);
        hard[i] = dloss * (1 - s) * (weight ? weight[t] : 1);
        scale[i] = hard[i] + dloss * share * all_weights;
        even[i] = dloss * share;
    }
    hl_vi classes = hl_vi_load(target), rows = short_rows_at(n, C);
    hl_vm counts = hl_vi_gt(classes, hl_vi_set1(-1));
    hl_v e[SHORT_ROW], top = hl_v_gather(x, rows), sum = hl_v_zero();
    for (int64_t c = 1; c < C; c++) top = hl_v_max(hl_v_gather(x + c, rows), top);
    for (int64_t c = 0; c < C; c++) {
        e[c] = hl_v_exp(hl_v_gather(x + c, rows) - top);
        sum += e[c];
    }
    hl_v factor = hl_v_load(scale) / sum, one = hl_v_load(hard), rest = hl_v_load(even);
    for (int64_t c = 0; c < C; c++) {
        hl_v value = e[c] * factor - hl_v_keep(hl_vi_eq(classes, hl_vi_set1((int32_t)c)), one);
        if (s > 0) value -= weight ? rest * hl_v_set1(weight[c]) : rest;
        hl_v_store(out[c], hl_v_keep(counts, value));
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < C; c++) dx[i * C + c] = out[c][i];
    }
}

static void run_loss_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                          int64_t end, const hl_launch *launch)
{
    const loss_state *loss = state->impl;
    int64_t C = loss->rows.C;
    const float *logits = args[1];
    const float *weight = loss->has_weight ? args[3] : NULL;
    float *dlogits = args[loss->has_weight ? 4 : 3];
    end = hl_cpu_min(end, loss->rows.R);
    if (begin >= end) return;
    float all_weights = sum_weights(loss, weight);
    for (int64_t r = begin; is_short(C) && r < end; r += HL_VL) {
        run_short_group(loss, args, r, hl_cpu_min(end - r, HL_VL), all_weights, launch);
    }
    for (int64_t r = begin; !is_short(C) && r < end; r++) {
        int64_t t = take_target(loss, args[2], r, launch);
        if (t < 0) {
            memset(dlogits + r * C, 0, (size_t)C * sizeof *dlogits);
        } else {
            run_grad_row(loss, logits + r * C, weight, read_gradient(loss, args[0], r), t,
                         all_weights, dlogits + r * C);
        }
    }
}

static loss_state make_loss(const hl_graph *graph, const hl_node *node)
{
    int logits = node->op == HL_OP_CROSS_ENTROPY_GRAD;
    const hl_shape *first = &hl_node_in_type(graph, node, 0)->shape;
    return (loss_state){.rows = hl_rows_make(&hl_node_in_type(graph, node, logits)->shape, 1),
                        .target_dtype = hl_node_in_type(graph, node, logits + 1)->dtype,
                        .has_weight = node->n_in > logits + 2,
                        .is_shared = logits && first->dim[0] == 1,
                        .smoothing = (float)hl_cross_entropy_attrs(node)->label_smoothing,
                        .ignored = hl_cross_entropy_attrs(node)->ignore_index};
}

static hl_status query_loss(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int target = node->op == HL_OP_CROSS_ENTROPY_GRAD ? 2 : 1;
    bool fits = hl_rows_is_f32(graph, node, 0, target, out_why_not) &&
                hl_rows_is_f32(graph, node, target + 1, node->n_in, out_why_not);
    if (!fits) return HL_ERROR_CONFIG;
    loss_state loss = make_loss(graph, node);
    hl_rows_require(&loss.rows, hl_cpu_bits(target + 1), hl_cpu_bits(node->n_out), 0.8, out_req);
    if (target == 2) out_req->in_place[0] = 1 << 1;
    if (loss.is_shared) out_req->row_in &= ~(uint64_t)1;
    if (target == 1) out_req->grain = hl_cpu_line_grain(sizeof(float));
    return HL_OK;
}

static hl_status prepare_loss(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    loss_state loss = make_loss(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&loss, sizeof loss, out_state);
}

static const hl_kernel loss_kernel = {.op = HL_OP_CROSS_ENTROPY,
                                      .name = HL_CPU_NAME("cross_entropy"),
                                      .query = query_loss,
                                      .prepare = prepare_loss,
                                      .block = run_loss};
static const hl_kernel grad_kernel = {.op = HL_OP_CROSS_ENTROPY_GRAD,
                                      .name = HL_CPU_NAME("cross_entropy_grad"),
                                      .query = query_loss,
                                      .prepare = prepare_loss,
                                      .block = run_loss_grad};

const hl_kernel *const HL_ISA_NAME(hl_cpu_loss_kernels)[] = {&loss_kernel, &grad_kernel, NULL};
