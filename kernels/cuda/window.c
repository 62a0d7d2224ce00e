/* Launchers of window.cu. Channels that do not stand last are asked for. */
#include "kernels/cuda/window.h"

#include <stdio.h>

#include "ir/window.h"
#include "kernels/cuda/calls.h"

enum { WIDEST_WORD = 16 };

static hl_cuda_window make_window(const hl_window *from, int64_t N, int64_t C)
{
    hl_cuda_window w = {.N = N,
                        .C = C,
                        .n_in = hl_window_span(from->in),
                        .n_out = hl_window_span(from->out),
                        .n_taps = hl_window_span(from->kernel)};
    for (int d = 0; d < HL_CUDA_WINDOW_DIMS; d++) {
        w.in[d] = from->in[d], w.kernel[d] = from->kernel[d], w.out[d] = from->out[d];
        w.stride[d] = from->stride[d], w.dilation[d] = from->dilation[d];
        w.before[d] = from->before[d];
    }
    return w;
}

/* most: elements of the largest array that a thread's place is counted in. */
static void set_short(hl_cuda_window *w, int64_t most)
{
    bool is_short = most <= UINT32_MAX;
    for (int d = 0; d < HL_CUDA_WINDOW_DIMS; d++)
        is_short = is_short && w->in[d] + w->before[d] <= UINT32_MAX;
    w->is_short = is_short;
}

/* ---- windows side by side -------------------------------------------------------------------- */

static hl_cuda_window find_unfold(const hl_graph *graph, const hl_node *node)
{
    bool is_fold = node->op == HL_OP_FOLD;
    const hl_shape *in = hl_graph_shape(graph, node->in[0]),
                   *out = hl_graph_shape(graph, node->out);
    const hl_shape *x = is_fold ? out : in, *windows = is_fold ? in : out;
    hl_window window = hl_unfold_make(hl_unfold_attrs(node), x, windows);
    hl_cuda_window w = make_window(&window, x->dim[0], x->dim[x->rank - 1]);
    int64_t most = hl_shape_numel(windows), n_x = hl_shape_numel(x);
    set_short(&w, most > n_x ? most : n_x);
    return w;
}

static hl_status query_unfold(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (node->op == HL_OP_FOLD && !hl_cuda_is_same_float(graph, node, 0, 1, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

static void call_unfold(hl_cuda_calls *calls, hl_cuda_window w, size_t bytes, int64_t words)
{
    char variant[8];
    snprintf(variant, sizeof variant, "%zu", bytes * (size_t)words);
    w.C /= words;
    HL_CUDA_CALL(calls, window_unfold, variant,
                 hl_cuda_shape_elements(calls->device, w.N * w.n_out * w.n_taps * w.C),
                 .at = {hl_cuda_in(calls, 0), hl_cuda_out(calls, 0)}, .window = w);
}

/* In the widest words of which a pixel's channels are made. */
static hl_status prepare_unfold(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    size_t bytes = hl_dtype_bytes(hl_graph_dtype(graph, node->in[0]));
    hl_cuda_window w = find_unfold(graph, node);
    int64_t words = WIDEST_WORD / (int64_t)bytes;
    while (w.C % words) words /= 2;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (hl_shape_numel(hl_graph_shape(graph, node->out)) > 0) {
        if (words > 1) {
            call_unfold(&calls, w, bytes, words);
            hl_cuda_call_aligned(&calls, bytes * (size_t)words);
        }
        call_unfold(&calls, w, bytes, 1);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_fold(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int64_t n = hl_shape_numel(hl_graph_shape(graph, node->out));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (n > 0)
        HL_CUDA_CALL(&calls, window_fold, hl_cuda_suffix(hl_graph_dtype(graph, node->in[0])),
                     hl_cuda_shape_elements(device, n),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0)},
                     .window = find_unfold(graph, node));
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- max pooling ----------------------------------------------------------------------------- */

static hl_cuda_window find_pool(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_MAX_POOL_GRAD;
    const hl_shape *x = hl_graph_shape(graph, node->in[is_grad]);
    const hl_shape *y = hl_graph_shape(graph, is_grad ? node->in[0] : node->out);
    hl_pool pool = hl_pool_make(hl_pool_attrs(node), x, y);
    hl_cuda_window w = make_window(&pool.window, pool.N, pool.C);
    int64_t n_x = hl_shape_numel(x), n_y = hl_shape_numel(y);
    set_short(&w, n_x > n_y ? n_x : n_y);
    return w;
}

static hl_status query_pool(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    if (!hl_pool_attrs(node)->channels_last)
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_pool(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int64_t n = hl_shape_numel(hl_graph_shape(graph, node->out));
    const char *suffix = hl_cuda_suffix(hl_graph_dtype(graph, node->in[0]));
    hl_cuda_shape shape = hl_cuda_shape_elements(device, n);
    hl_cuda_window w = find_pool(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word in = hl_cuda_in(&calls, 0), out = hl_cuda_out(&calls, 0);
    if (n == 0) return hl_cuda_calls_end(&calls, out_state);
    switch (node->op) {
    case HL_OP_MAX_POOL:
        HL_CUDA_CALL(&calls, max_pool, suffix, shape, .at = {in, out}, .window = w);
        break;
    case HL_OP_MAX_POOL_INDEX:
        HL_CUDA_CALL(&calls, max_pool_index, suffix, shape, .at = {in, out}, .window = w);
        break;
    default:
        HL_CUDA_CALL(&calls, max_pool_grad, suffix, shape, .at = {in, hl_cuda_in(&calls, 1), out},
                     .window = w);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel unfold = HL_CUDA_KERNEL(UNFOLD, "unfold", query_unfold, prepare_unfold);
static const hl_kernel fold = HL_CUDA_KERNEL(FOLD, "fold", query_unfold, prepare_fold);
static const hl_kernel max_pool = HL_CUDA_KERNEL(MAX_POOL, "max_pool", query_pool, prepare_pool);
static const hl_kernel max_pool_index =
    HL_CUDA_KERNEL(MAX_POOL_INDEX, "max_pool_index", query_pool, prepare_pool);
static const hl_kernel max_pool_grad =
    HL_CUDA_KERNEL(MAX_POOL_GRAD, "max_pool_grad", query_pool, prepare_pool);

const hl_kernel *const hl_cuda_window_kernels[] = {&unfold,         &fold,          &max_pool,
                                                   &max_pool_index, &max_pool_grad, NULL};
