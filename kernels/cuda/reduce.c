/* Launchers of reduce.cu.
 *
 * Long reductions are cut into parts where there are too few groups to keep a GPU busy. The cut is
 * a rule of the shape alone, made for the largest GPU there is: on a smaller one more blocks wait,
 * and the bits are the same. */
#include "kernels/cuda/reduce.h"

#include <stdio.h>

/* Blocks that the largest GPU has room for, four times over: the last ones to end are a small share
 * of all. Below a least part a block would not pay for its launch; it is above the longest row that
 * one warp takes (hl_cuda_shape_coop_groups). */
enum { MAX_UNITS = 4096, MIN_PART = 4096 };
/* Running sums: a warp a part of a row, a thread a part of a column. */
enum { SCAN_UNITS = 16384, MIN_SCAN = 1024, SCAN_COLUMN_UNITS = 1 << 18, MIN_SCAN_COLUMN = 64 };
/* Above it one warp per group would be slow, and the lowered ops use more of the GPU. */
enum { MAX_PROD_GRAD = 4096 };

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Such that n_groups groups of N give no more than `units` parts, none shorter than `least`. */
static int64_t find_part(int64_t n_groups, int64_t N, int64_t units, int64_t least)
{
    int64_t most = n_groups > 0 ? units / n_groups : 1;
    int64_t part = divide_up(N, most > 0 ? most : 1);
    /* Rows of 16-bit floats are read by eights. */
    part = hl_round_up(part > least ? part : least, 8);
    return part < N ? part : N > 0 ? N : 1;
}

hl_cuda_groups hl_cuda_groups_make(int64_t O, int64_t N, int64_t I)
{
    int64_t width = hl_cuda_groups_width(I), tiles = divide_up(I, width);
    int64_t part = find_part(O * tiles, N, MAX_UNITS, MIN_PART / width);
    return (hl_cuda_groups){O, N, I, part, N > 0 ? divide_up(N, part) : 1};
}

/* A cooperative group a part of a row, or a block a tile of a part's columns. */
static hl_cuda_shape find_shape(const hl_cuda_calls *calls, const hl_cuda_groups *groups,
                                int32_t *out_by_block)
{
    int64_t units = groups->O * groups->n_parts;
    if (groups->I == 1)
        return hl_cuda_shape_coop_groups(calls->device, units, groups->part, out_by_block);
    *out_by_block = 0;
    int64_t tiles = divide_up(groups->I, hl_cuda_groups_width(groups->I));
    return hl_cuda_shape_blocks(calls->device, units * tiles, HL_CUDA_REDUCE_THREADS);
}

/* The reduction of the parts, in one piece. */
static hl_cuda_groups make_second(const hl_cuda_groups *groups)
{
    return (hl_cuda_groups){groups->O, groups->n_parts, groups->I, groups->n_parts, 1};
}

static int64_t count_results(const hl_cuda_groups *groups)
{
    return groups->O * groups->n_parts * groups->I;
}

/* Scratch for the results of parts, where there are several. */
static size_t find_scratch(const hl_cuda_groups *groups, size_t result_bytes)
{
    return groups->n_parts > 1 ? (size_t)count_results(groups) * result_bytes : 0;
}

/* ---- kernels by dtype ------------------------------------------------------------------------ */

static bool is_int(hl_dtype dtype)
{
    return !hl_dtype_is_float(dtype);
}

/* The dtype of the results of parts. */
static hl_dtype find_state(hl_dtype dtype)
{
    return is_int(dtype) ? HL_DTYPE_I64 : dtype == HL_DTYPE_F64 ? HL_DTYPE_F64 : HL_DTYPE_F32;
}

/* A kernel's variant: what it does, "" where the kind says it, and its dtype. */
typedef struct variant {
    char text[24];
} variant;

static variant name_variant(const char *what, hl_dtype dtype)
{
    variant name;
    const char *suffix = is_int(dtype)           ? "int"
                         : dtype == HL_DTYPE_F64 ? "f64"
                                                 : hl_cuda_suffix(dtype);
    snprintf(name.text, sizeof name.text, "%s%s%s", what, *what ? "_" : "", suffix);
    return name;
}

/* ---- sum, prod, max, min --------------------------------------------------------------------- */

static const char *find_fold(hl_op op)
{
    switch (op) {
    case HL_OP_SUM: return "sum";
    case HL_OP_PROD: return "prod";
    case HL_OP_MAX: return "max";
    default: return "min";
    }
}

static void call_fold(hl_cuda_calls *calls, const char *what, hl_dtype dtype, hl_cuda_word x,
                      hl_cuda_word out, hl_dtype out_dtype, const hl_cuda_groups *groups)
{
    int32_t by_block;
    hl_cuda_shape shape = find_shape(calls, groups, &by_block);
    HL_CUDA_CALL(calls, fold, name_variant(what, dtype).text, shape, .at = {x, out},
                 .groups = *groups, .dtype = (int32_t)dtype, .out_dtype = (int32_t)out_dtype,
                 .by_block = by_block);
}

/* By the op's axes, or its one axis; false when they do not stand together. */
static bool find_groups(const hl_graph *graph, const hl_node *node, hl_cuda_groups *out_groups)
{
    hl_ints axes = hl_node_axes(node);
    int64_t O, N, I;
    bool together =
        hl_shape_split(&hl_node_in_type(graph, node, 0)->shape, axes.at, axes.n, &O, &N, &I);
    *out_groups = hl_cuda_groups_make(O, N, I);
    return together;
}

static hl_status check_adjacent_axes(const hl_graph *graph, const hl_node *node,
                                     hl_cuda_groups *out_groups, hl_reason *out_why_not)
{
    if (find_groups(graph, node, out_groups)) return HL_OK;
    return hl_reason_set(out_why_not, "needs axes that stand together");
}

/* Like it, but axes in the midst of others it takes as the last ones. */
static hl_status check_axes(const hl_graph *graph, const hl_node *node, hl_kernel_req *out_req,
                            hl_cuda_groups *out_groups, hl_reason *out_why_not)
{
    if (find_groups(graph, node, out_groups)) return HL_OK;
    if (!hl_node_axes_are_inner(graph, node))
        return check_adjacent_axes(graph, node, out_groups, out_why_not);
    out_req->order = hl_node_axes_last(graph, node);
    return HL_OK;
}

static hl_status query_fold(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    HL_TRY(check_axes(graph, node, out_req, &groups, out_why_not));
    bool is_place = node->op == HL_OP_ARGMAX || node->op == HL_OP_ARGMIN;
    hl_dtype state = is_place ? HL_DTYPE_I64 : find_state(hl_node_in_type(graph, node, 0)->dtype);
    out_req->scratch_bytes = find_scratch(&groups, hl_dtype_bytes(state));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_fold(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype, state = find_state(dtype);
    hl_dtype out_dtype = hl_node_out_type(graph, node, 0)->dtype;
    const char *what = find_fold(node->op);
    hl_cuda_groups groups;
    find_groups(graph, node, &groups);
    hl_cuda_groups second = make_second(&groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word in = hl_cuda_in(&calls, 0), out = hl_cuda_out(&calls, 0);
    if (groups.n_parts == 1) {
        call_fold(&calls, what, dtype, in, out, out_dtype, &groups);
    } else {
        call_fold(&calls, what, dtype, in, hl_cuda_scratch(0), state, &groups);
        call_fold(&calls, what, state, hl_cuda_scratch(0), out, out_dtype, &second);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- argmax, argmin -------------------------------------------------------------------------- */

/* M: elements of a group of x, of which the second call reads those that the first one found. */
static void call_arg(hl_cuda_calls *calls, hl_op op, hl_dtype dtype, hl_cuda_word among,
                     hl_cuda_word out, int64_t M, const hl_cuda_groups *groups)
{
    int32_t by_block;
    hl_cuda_shape shape = find_shape(calls, groups, &by_block);
    variant name = name_variant(op == HL_OP_ARGMAX ? "max" : "min", dtype);
    HL_CUDA_CALL(calls, arg, name.text, shape, .at = {hl_cuda_in(calls, 0), among, out},
                 .groups = *groups, .M = M, .dtype = (int32_t)dtype, .by_block = by_block);
}

static hl_status prepare_arg(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype;
    hl_cuda_groups groups;
    find_groups(graph, node, &groups);
    hl_cuda_groups second = make_second(&groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word none = {0}, out = hl_cuda_out(&calls, 0), found = hl_cuda_scratch(0);
    bool is_cut = groups.n_parts > 1;
    call_arg(&calls, node->op, dtype, none, is_cut ? found : out, groups.N, &groups);
    if (is_cut) call_arg(&calls, node->op, dtype, found, out, groups.N, &second);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- median ---------------------------------------------------------------------------------- */

static hl_status query_median(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    hl_cuda_groups groups;
    HL_TRY(check_adjacent_axes(graph, &graph->nodes[id], &groups, out_why_not));
    if (groups.I != 1) out_req->order = hl_node_axes_last(graph, &graph->nodes[id]);
    if (groups.N > UINT32_MAX)
        return hl_reason_set(out_why_not, "needs rows of fewer than 2^32 elements, got %lld",
                             (long long)groups.N);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_median(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    hl_dtype dtype = hl_node_in_type(graph, &graph->nodes[id], 0)->dtype;
    hl_cuda_groups groups;
    int32_t by_block;
    find_groups(graph, &graph->nodes[id], &groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_shape shape = hl_cuda_shape_coop_groups(device, groups.O, groups.N, &by_block);
    HL_CUDA_CALL(&calls, median, name_variant("", dtype).text, shape,
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0), hl_cuda_out(&calls, 1)},
                 .R = groups.O, .N = groups.N, .dtype = (int32_t)dtype, .by_block = by_block);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- moments --------------------------------------------------------------------------------- */

size_t hl_cuda_moments_bytes(const hl_cuda_groups *groups)
{
    return find_scratch(groups, 2 * sizeof(float));
}

void hl_cuda_moments_call(hl_cuda_calls *calls, hl_dtype dtype, hl_dtype out_dtype,
                          const hl_cuda_groups *groups, int64_t A, int out_mean,
                          const hl_cuda_channels *channels)
{
    int32_t by_block;
    bool is_cut = groups->n_parts > 1;
    hl_cuda_word mean = hl_cuda_out(calls, out_mean), var = hl_cuda_out(calls, out_mean + 1);
    hl_cuda_word means = hl_cuda_scratch(0);
    hl_cuda_word squares = hl_cuda_scratch((size_t)count_results(groups) * sizeof(float));
    hl_cuda_shape shape = find_shape(calls, groups, &by_block);
    hl_cuda_channel_at channel = {{0}, {0}, {0}};
    float eps = channels ? channels->eps : 0;
    if (channels)
        channel = (hl_cuda_channel_at){hl_cuda_in(calls, 1), hl_cuda_in(calls, 2),
                                       hl_cuda_scratch(channels->offset)};
    hl_cuda_moments_params params = {
        .at = {hl_cuda_in(calls, 0), is_cut ? means : mean, is_cut ? squares : var},
        .groups = *groups,
        .S = A > 0 ? groups->N / A : 0,
        .eps = eps,
        .out_dtype = (int32_t)(is_cut ? HL_DTYPE_F32 : out_dtype),
        .by_block = by_block};
    if (!is_cut) params.at.channel = channel;
    if (A > 0)
        HL_CUDA_CALL_WITH(calls, plane_moments, hl_cuda_suffix(dtype), shape, &params);
    else
        HL_CUDA_CALL_WITH(calls, moments, hl_cuda_suffix(dtype), shape, &params);
    if (!is_cut) return;
    hl_cuda_groups second = make_second(groups);
    shape = find_shape(calls, &second, &by_block);
    HL_CUDA_CALL(calls, moments_merge, NULL, shape, .at = {means, squares, mean, var, channel},
                 .groups = *groups, .eps = eps, .out_dtype = (int32_t)out_dtype,
                 .by_block = by_block);
}

void hl_cuda_norm_sums_call(hl_cuda_calls *calls, const char *types, const hl_cuda_groups *groups,
                            int64_t S, hl_cuda_word result, float result_scale,
                            const hl_cuda_channels *channels)
{
    int32_t by_block;
    bool is_cut = groups->n_parts > 1;
    hl_cuda_word dweight = hl_cuda_out(calls, 1), dbias = hl_cuda_out(calls, 2);
    hl_cuda_word mean = hl_cuda_in(calls, 3), var = hl_cuda_in(calls, 4);
    hl_cuda_word part_g = hl_cuda_scratch(0);
    hl_cuda_word part_gc = hl_cuda_scratch((size_t)count_results(groups) * sizeof(float));
    hl_cuda_channel_at channel = {.weight = hl_cuda_in(calls, 2),
                                  .out = hl_cuda_scratch(channels->offset)};
    hl_cuda_shape shape = find_shape(calls, groups, &by_block);
    hl_cuda_batch_norm_sums_params params = {.at = {.dy = hl_cuda_in(calls, 0),
                                                    .x = hl_cuda_in(calls, 1),
                                                    .mean = mean,
                                                    .var = var,
                                                    .result = result,
                                                    .dbias = is_cut ? part_g : dbias,
                                                    .dweight = is_cut ? part_gc : dweight},
                                             .groups = *groups,
                                             .S = S,
                                             .eps = channels->eps,
                                             .result_scale = result_scale,
                                             .by_block = by_block};
    if (!is_cut) params.at.channel = channel;
    HL_CUDA_CALL_WITH(calls, batch_norm_sums, types, shape, &params);
    if (!is_cut) return;
    hl_cuda_groups second = make_second(groups);
    shape = find_shape(calls, &second, &by_block);
    HL_CUDA_CALL(calls, batch_norm_sums_merge, NULL, shape,
                 .at = {part_g, part_gc, mean, var, dbias, dweight, channel}, .groups = second,
                 .n = groups->N, .eps = channels->eps, .by_block = by_block);
}

static hl_status query_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    if (!hl_cuda_is_same_float(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    HL_TRY(check_axes(graph, node, out_req, &groups, out_why_not));
    out_req->scratch_bytes = hl_cuda_moments_bytes(&groups);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    find_groups(graph, node, &groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype;
    hl_cuda_moments_call(&calls, dtype, dtype, &groups, 0, 0, NULL);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- running sums: of parts, of those, and of each part on top of the ones before it --------- */

static void find_scan(const hl_graph *graph, const hl_node *node, hl_cuda_groups *out_groups)
{
    find_groups(graph, node, out_groups);
    hl_cuda_groups *g = out_groups;
    g->part = g->I >= HL_CUDA_REDUCE_COLUMNS
                  ? find_part(g->O * g->I, g->N, SCAN_COLUMN_UNITS, MIN_SCAN_COLUMN)
                  : find_part(g->O * g->I, g->N, SCAN_UNITS, MIN_SCAN);
    g->n_parts = g->N > 0 ? divide_up(g->N, g->part) : 1;
}

static void call_cumsum(hl_cuda_calls *calls, hl_dtype dtype, hl_cuda_word x, hl_cuda_word before,
                        hl_cuda_word out, hl_dtype out_dtype, const hl_cuda_groups *groups,
                        bool is_reverse)
{
    int64_t threads = count_results(groups) * (groups->I >= HL_CUDA_REDUCE_COLUMNS ? 1 : 32);
    HL_CUDA_CALL(calls, cumsum, name_variant("", dtype).text,
                 hl_cuda_shape_elements(calls->device, threads), .at = {x, before, out},
                 .groups = *groups, .dtype = (int32_t)dtype, .out_dtype = (int32_t)out_dtype,
                 .is_reverse = is_reverse);
}

static hl_status query_cumsum(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    find_scan(graph, node, &groups);
    hl_dtype state = find_state(hl_node_in_type(graph, node, 0)->dtype);
    out_req->scratch_bytes = find_scratch(&groups, hl_dtype_bytes(state));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_cumsum(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype, state = find_state(dtype);
    hl_dtype out_dtype = hl_node_out_type(graph, node, 0)->dtype;
    bool is_reverse = hl_scan_attrs(node)->reverse;
    hl_cuda_groups groups;
    find_scan(graph, node, &groups);
    hl_cuda_groups second = make_second(&groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word none = {0}, in = hl_cuda_in(&calls, 0), parts = hl_cuda_scratch(0);
    bool is_cut = groups.n_parts > 1;
    if (is_cut) {
        call_fold(&calls, "sum", dtype, in, parts, state, &groups);
        /* In place: a thread reads an element before it writes it. */
        call_cumsum(&calls, state, parts, none, parts, state, &second, is_reverse);
    }
    call_cumsum(&calls, dtype, in, is_cut ? parts : none, hl_cuda_out(&calls, 0), out_dtype,
                &groups, is_reverse);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- the product's gradient ------------------------------------------------------------------ */

static hl_status query_prod_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    if (!hl_cuda_is_dtype(graph, node, 0, node->n_in, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    HL_TRY(check_adjacent_axes(graph, node, &groups, out_why_not));
    if (groups.N > MAX_PROD_GRAD)
        return hl_reason_set(out_why_not, "needs at most %d factors, got %lld", MAX_PROD_GRAD,
                             (long long)groups.N);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_prod_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_state *out_state)
{
    hl_cuda_groups groups;
    find_groups(graph, &graph->nodes[id], &groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(&calls, prod_grad, NULL, hl_cuda_shape_elements(device, groups.O * groups.I * 32),
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 2), hl_cuda_out(&calls, 0)},
                 .O = groups.O, .N = groups.N, .I = groups.I);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel sum = HL_CUDA_KERNEL(SUM, "sum", query_fold, prepare_fold);
static const hl_kernel prod = HL_CUDA_KERNEL(PROD, "prod", query_fold, prepare_fold);
static const hl_kernel max = HL_CUDA_KERNEL(MAX, "max", query_fold, prepare_fold);
static const hl_kernel min = HL_CUDA_KERNEL(MIN, "min", query_fold, prepare_fold);
static const hl_kernel argmax = HL_CUDA_KERNEL(ARGMAX, "argmax", query_fold, prepare_arg);
static const hl_kernel argmin = HL_CUDA_KERNEL(ARGMIN, "argmin", query_fold, prepare_arg);
static const hl_kernel median = HL_CUDA_KERNEL(MEDIAN, "median", query_median, prepare_median);
static const hl_kernel moments = HL_CUDA_KERNEL(MOMENTS, "moments", query_moments, prepare_moments);
static const hl_kernel cumsum = HL_CUDA_KERNEL(CUMSUM, "cumsum", query_cumsum, prepare_cumsum);
static const hl_kernel prod_grad =
    HL_CUDA_KERNEL(PROD_GRAD, "prod_grad", query_prod_grad, prepare_prod_grad);

const hl_kernel *const hl_cuda_reduce_kernels[] = {
    &sum, &prod, &max, &min, &argmax, &argmin, &median, &moments, &cumsum, &prod_grad, NULL};
