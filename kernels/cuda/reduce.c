/* Launchers of reduce.cu.
 *
 * Long reductions are cut into parts where there are too few groups to keep a GPU busy. The cut is
 * a rule of the shape alone, made for the largest GPU there is: on a smaller one more blocks wait,
 * and the bits are the same. */
#include "kernels/cuda/reduce.h"

#include <stdio.h>

/* Blocks that the largest GPU has room for, four times over: the last ones to end are a small share
 * of all. Below a least part a block would not pay for its launch; it is above the longest row that
 * one warp takes (hl_cuda_shape_teams). */
enum { MOST_UNITS = 4096, LEAST_PART = 4096, COLUMN_THREADS = 256, COLUMNS = 32 };
/* Running sums: a warp a part of a row, a thread a part of a column. */
enum { SCAN_UNITS = 16384, LEAST_SCAN = 1024, SCAN_COLUMN_UNITS = 1 << 18, LEAST_SCAN_COLUMN = 64 };
/* Beyond it, one warp a group would take long, and what the lowering makes is spread. */
enum { MOST_PROD_GRAD = 4096 };

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

/* Columns side by side in a block, as in reduce.cu. */
static int64_t find_width(int64_t I)
{
    int64_t width = COLUMNS;
    while (width > 1 && width / 2 >= I) width /= 2;
    return width;
}

hl_cuda_groups hl_cuda_groups_make(int64_t O, int64_t N, int64_t I)
{
    int64_t width = find_width(I), tiles = divide_up(I, width);
    int64_t part = find_part(O * tiles, N, MOST_UNITS, LEAST_PART / width);
    return (hl_cuda_groups){O, N, I, part, N > 0 ? divide_up(N, part) : 1};
}

hl_cuda_shape hl_cuda_groups_shape(const hl_device *device, const hl_cuda_groups *groups,
                                   int *out_by_block)
{
    int64_t units = groups->O * groups->n_parts;
    if (groups->I == 1) return hl_cuda_shape_teams(device, units, groups->part, out_by_block);
    *out_by_block = 0;
    int64_t tiles = divide_up(groups->I, find_width(groups->I));
    return hl_cuda_shape_blocks(device, units * tiles, COLUMN_THREADS);
}

/* What reduces the parts: in one piece. */
static hl_cuda_groups make_second(const hl_cuda_groups *groups)
{
    return (hl_cuda_groups){groups->O, groups->n_parts, groups->I, groups->n_parts, 1};
}

static int64_t count_results(const hl_cuda_groups *groups)
{
    return groups->O * groups->n_parts * groups->I;
}

/* For the results of parts, where there are several. */
static size_t find_scratch(const hl_cuda_groups *groups, size_t result_bytes)
{
    return groups->n_parts > 1 ? (size_t)count_results(groups) * result_bytes : 0;
}

static void pass_groups(hl_cuda_calls *calls, const hl_cuda_groups *groups)
{
    HL_CUDA_PASS(calls, int64_t, groups->N);
    HL_CUDA_PASS(calls, int64_t, groups->I);
    HL_CUDA_PASS(calls, int64_t, groups->part);
}

/* ---- kernels by dtype ---- */

static bool is_int(hl_dtype dtype)
{
    return !hl_dtype_is_float(dtype);
}

/* What results of parts are kept in. */
static hl_dtype find_state(hl_dtype dtype)
{
    return is_int(dtype) ? HL_DTYPE_I64 : dtype == HL_DTYPE_F64 ? HL_DTYPE_F64 : HL_DTYPE_F32;
}

/* Kernel and first parameters: x, and its dtype where the kernel serves several. */
static void call_on(hl_cuda_calls *calls, const char *what, hl_dtype dtype, hl_cuda_place x,
                    hl_cuda_shape shape)
{
    char name[64];
    const char *suffix = is_int(dtype)           ? "int"
                         : dtype == HL_DTYPE_F64 ? "f64"
                                                 : hl_cuda_suffix(dtype);
    snprintf(name, sizeof name, "hl_cuda_%s_%s", what, suffix);
    hl_cuda_call_kernel(calls, name, shape);
    hl_cuda_pass_place(calls, x);
    if (is_int(dtype)) HL_CUDA_PASS(calls, int32_t, dtype);
}

static void pass_out(hl_cuda_calls *calls, hl_cuda_place out, hl_dtype dtype)
{
    hl_cuda_pass_place(calls, out);
    HL_CUDA_PASS(calls, int32_t, dtype);
}

static const hl_cuda_place IN = {HL_CUDA_IN, 0}, OUT = {HL_CUDA_OUT, 0},
                           SCRATCH = {HL_CUDA_SCRATCH, 0};

/* ---- sum, prod, max, min ---- */

static const char *find_fold(hl_op op)
{
    switch (op) {
    case HL_OP_SUM: return "sum";
    case HL_OP_PROD: return "prod";
    case HL_OP_MAX: return "max";
    default: return "min";
    }
}

static void call_fold(hl_cuda_calls *calls, const char *what, hl_dtype dtype, hl_cuda_place x,
                      hl_cuda_place out, hl_dtype out_dtype, const hl_cuda_groups *groups)
{
    int by_block;
    hl_cuda_shape shape = hl_cuda_groups_shape(calls->device, groups, &by_block);
    call_on(calls, what, dtype, x, shape);
    pass_out(calls, out, out_dtype);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    pass_groups(calls, groups);
    HL_CUDA_PASS(calls, int, by_block);
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

static hl_status need_together(const hl_graph *graph, const hl_node *node,
                               hl_cuda_groups *out_groups, hl_reason *out_why_not)
{
    if (find_groups(graph, node, out_groups)) return HL_OK;
    return hl_reason_set(out_why_not, "needs axes that stand together");
}

static hl_status query_fold(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    HL_TRY(need_together(graph, node, &groups, out_why_not));
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
    if (groups.n_parts == 1) {
        call_fold(&calls, what, dtype, IN, OUT, out_dtype, &groups);
    } else {
        call_fold(&calls, what, dtype, IN, SCRATCH, state, &groups);
        call_fold(&calls, what, state, SCRATCH, OUT, out_dtype, &second);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- argmax, argmin ---- */

/* M: elements of a group of x, of which the second call reads those that the first one found. */
static void call_arg(hl_cuda_calls *calls, hl_op op, hl_dtype dtype, bool among, hl_cuda_place out,
                     int64_t M, const hl_cuda_groups *groups)
{
    int by_block;
    hl_cuda_shape shape = hl_cuda_groups_shape(calls->device, groups, &by_block);
    call_on(calls, op == HL_OP_ARGMAX ? "argmax" : "argmin", dtype, IN, shape);
    if (among)
        hl_cuda_pass_place(calls, SCRATCH);
    else
        hl_cuda_pass_null(calls);
    hl_cuda_pass_place(calls, out);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    HL_CUDA_PASS(calls, int64_t, M);
    pass_groups(calls, groups);
    HL_CUDA_PASS(calls, int, by_block);
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
    bool is_cut = groups.n_parts > 1;
    call_arg(&calls, node->op, dtype, false, is_cut ? SCRATCH : OUT, groups.N, &groups);
    if (is_cut) call_arg(&calls, node->op, dtype, true, OUT, groups.N, &second);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- moments ---- */

size_t hl_cuda_moments_bytes(const hl_cuda_groups *groups)
{
    return find_scratch(groups, 2 * sizeof(float));
}

void hl_cuda_moments_call(hl_cuda_calls *calls, hl_dtype dtype, const hl_cuda_groups *groups,
                          int64_t A, int out_mean)
{
    char name[64];
    int by_block;
    bool is_cut = groups->n_parts > 1;
    hl_cuda_place mean = {HL_CUDA_OUT, (size_t)out_mean}, var = {HL_CUDA_OUT, mean.at + 1};
    hl_cuda_place squares = {HL_CUDA_SCRATCH, (size_t)count_results(groups) * sizeof(float)};
    hl_cuda_shape shape = hl_cuda_groups_shape(calls->device, groups, &by_block);
    snprintf(name, sizeof name, "hl_cuda_moments_%s%s", A > 0 ? "planes_" : "",
             hl_cuda_suffix(dtype));
    hl_cuda_call_kernel(calls, name, shape);
    hl_cuda_pass_in(calls, 0);
    hl_cuda_pass_place(calls, is_cut ? SCRATCH : mean);
    pass_out(calls, is_cut ? squares : var, is_cut ? HL_DTYPE_F32 : dtype);
    if (A > 0) {
        HL_CUDA_PASS(calls, int64_t, A);
        HL_CUDA_PASS(calls, int64_t, groups->O);
        HL_CUDA_PASS(calls, int64_t, groups->N / A);
        HL_CUDA_PASS(calls, int64_t, groups->part);
    } else {
        HL_CUDA_PASS(calls, int64_t, groups->O);
        pass_groups(calls, groups);
    }
    HL_CUDA_PASS(calls, int, by_block);
    if (!is_cut) return;
    hl_cuda_groups second = make_second(groups);
    shape = hl_cuda_groups_shape(calls->device, &second, &by_block);
    hl_cuda_call_kernel(calls, "hl_cuda_moments_merge", shape);
    hl_cuda_pass_place(calls, SCRATCH);
    hl_cuda_pass_place(calls, squares);
    hl_cuda_pass_place(calls, mean);
    pass_out(calls, var, dtype);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    pass_groups(calls, groups);
    HL_CUDA_PASS(calls, int, by_block);
}

void hl_cuda_norm_sums_call(hl_cuda_calls *calls, hl_dtype dtype, const hl_cuda_groups *groups,
                            int64_t S, float eps)
{
    char name[64];
    int by_block;
    bool is_cut = groups->n_parts > 1;
    hl_cuda_place dweight = {HL_CUDA_OUT, 1}, dbias = {HL_CUDA_OUT, 2};
    hl_cuda_place part_gc = {HL_CUDA_SCRATCH, (size_t)count_results(groups) * sizeof(float)};
    hl_cuda_shape shape = hl_cuda_groups_shape(calls->device, groups, &by_block);
    snprintf(name, sizeof name, "hl_cuda_batch_norm_sums_%s", hl_cuda_suffix(dtype));
    hl_cuda_call_kernel(calls, name, shape);
    hl_cuda_pass_in(calls, 0);
    hl_cuda_pass_in(calls, 1);
    hl_cuda_pass_in(calls, 3);
    hl_cuda_pass_in(calls, 4);
    hl_cuda_pass_place(calls, is_cut ? SCRATCH : dbias);
    pass_out(calls, is_cut ? part_gc : dweight, is_cut ? HL_DTYPE_F32 : dtype);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    HL_CUDA_PASS(calls, int64_t, groups->N);
    HL_CUDA_PASS(calls, int64_t, groups->I);
    HL_CUDA_PASS(calls, int64_t, S);
    HL_CUDA_PASS(calls, int64_t, groups->part);
    HL_CUDA_PASS(calls, float, eps);
    HL_CUDA_PASS(calls, int, by_block);
    if (!is_cut) return;
    hl_cuda_groups second = make_second(groups);
    shape = hl_cuda_groups_shape(calls->device, &second, &by_block);
    hl_cuda_call_kernel(calls, "hl_cuda_batch_norm_sums_merge", shape);
    hl_cuda_pass_place(calls, SCRATCH);
    hl_cuda_pass_place(calls, part_gc);
    hl_cuda_pass_in(calls, 4);
    hl_cuda_pass_place(calls, dbias);
    pass_out(calls, dweight, dtype);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    HL_CUDA_PASS(calls, int64_t, groups->n_parts);
    HL_CUDA_PASS(calls, int64_t, groups->I);
    HL_CUDA_PASS(calls, float, eps);
    HL_CUDA_PASS(calls, int, by_block);
}

static hl_status query_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    if (!hl_cuda_is_low_float(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    HL_TRY(need_together(graph, node, &groups, out_why_not));
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
    hl_cuda_moments_call(&calls, hl_node_in_type(graph, node, 0)->dtype, &groups, 0, 0);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- running sums: of parts, of those, and of each part on top of the ones before it ---- */

static void find_scan(const hl_graph *graph, const hl_node *node, hl_cuda_groups *out_groups)
{
    find_groups(graph, node, out_groups);
    hl_cuda_groups *g = out_groups;
    g->part = g->I >= COLUMNS ? find_part(g->O * g->I, g->N, SCAN_COLUMN_UNITS, LEAST_SCAN_COLUMN)
                              : find_part(g->O * g->I, g->N, SCAN_UNITS, LEAST_SCAN);
    g->n_parts = g->N > 0 ? divide_up(g->N, g->part) : 1;
}

static void call_cumsum(hl_cuda_calls *calls, hl_dtype dtype, hl_cuda_place x,
                        const hl_cuda_place *before, hl_cuda_place out, hl_dtype out_dtype,
                        const hl_cuda_groups *groups, int is_reverse)
{
    int64_t threads = count_results(groups) * (groups->I >= COLUMNS ? 1 : 32);
    call_on(calls, "cumsum", dtype, x, hl_cuda_shape_elements(calls->device, threads));
    if (before)
        hl_cuda_pass_place(calls, *before);
    else
        hl_cuda_pass_null(calls);
    pass_out(calls, out, out_dtype);
    HL_CUDA_PASS(calls, int64_t, groups->O);
    pass_groups(calls, groups);
    HL_CUDA_PASS(calls, int, is_reverse);
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
    int is_reverse = hl_scan_attrs(node)->reverse;
    hl_cuda_groups groups;
    find_scan(graph, node, &groups);
    hl_cuda_groups second = make_second(&groups);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    bool is_cut = groups.n_parts > 1;
    if (is_cut) {
        call_fold(&calls, "sum", dtype, IN, SCRATCH, state, &groups);
        /* In place: a thread reads an element before it writes it. */
        call_cumsum(&calls, state, SCRATCH, NULL, SCRATCH, state, &second, is_reverse);
    }
    call_cumsum(&calls, dtype, IN, is_cut ? &SCRATCH : NULL, OUT, out_dtype, &groups, is_reverse);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- the product's gradient ---- */

static hl_status query_prod_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_cuda_groups groups;
    if (!hl_cuda_is_dtype(graph, node, 0, node->n_in, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    HL_TRY(need_together(graph, node, &groups, out_why_not));
    if (groups.N > MOST_PROD_GRAD)
        return hl_reason_set(out_why_not, "needs at most %d factors, got %lld", MOST_PROD_GRAD,
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
    hl_cuda_call_kernel(&calls, "hl_cuda_prod_grad",
                        hl_cuda_shape_elements(device, groups.O * groups.I * 32));
    hl_cuda_pass_in(&calls, 0);
    hl_cuda_pass_in(&calls, 2);
    hl_cuda_pass_out(&calls, 0);
    HL_CUDA_PASS(&calls, int64_t, groups.O);
    HL_CUDA_PASS(&calls, int64_t, groups.N);
    HL_CUDA_PASS(&calls, int64_t, groups.I);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel sum = HL_CUDA_KERNEL(SUM, "sum", query_fold, prepare_fold);
static const hl_kernel prod = HL_CUDA_KERNEL(PROD, "prod", query_fold, prepare_fold);
static const hl_kernel max = HL_CUDA_KERNEL(MAX, "max", query_fold, prepare_fold);
static const hl_kernel min = HL_CUDA_KERNEL(MIN, "min", query_fold, prepare_fold);
static const hl_kernel argmax = HL_CUDA_KERNEL(ARGMAX, "argmax", query_fold, prepare_arg);
static const hl_kernel argmin = HL_CUDA_KERNEL(ARGMIN, "argmin", query_fold, prepare_arg);
static const hl_kernel moments = HL_CUDA_KERNEL(MOMENTS, "moments", query_moments, prepare_moments);
static const hl_kernel cumsum = HL_CUDA_KERNEL(CUMSUM, "cumsum", query_cumsum, prepare_cumsum);
static const hl_kernel prod_grad =
    HL_CUDA_KERNEL(PROD_GRAD, "prod_grad", query_prod_grad, prepare_prod_grad);

const hl_kernel *const hl_cuda_reduce_kernels[] = {&sum,    &prod,    &max,    &min,       &argmax,
                                                   &argmin, &moments, &cumsum, &prod_grad, NULL};
