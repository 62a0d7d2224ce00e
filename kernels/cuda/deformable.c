/* Launchers of deformable.cu. */
#include "kernels/cuda/deformable.h"

#include "kernels/cuda/calls.h"

static bool is_known(const hl_graph *graph, const hl_node *node, int n, hl_reason *out_why_not)
{
    int64_t Lq = hl_graph_shape(graph, node->in[n - 2])->dim[1];
    if (!hl_cuda_is_dtype(graph, node, 0, n, HL_DTYPE_F32, out_why_not)) return false;
    if (Lq <= INT32_MAX) return true;
    hl_reason_set(out_why_not, "needs fewer than 2^31 queries, got %lld", (long long)Lq);
    return false;
}

static hl_status query_deformable(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    if (!is_known(graph, &graph->nodes[id], 3, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status query_deformable_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                       hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    if (!is_known(graph, &graph->nodes[id], 4, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

static int64_t count_tiles(int64_t length)
{
    return (length + HL_CUDA_DEFORMABLE_TILE - 1) / HL_CUDA_DEFORMABLE_TILE;
}

/* first: the operand that is the value */
static hl_cuda_deformable_sizes make_sizes(const hl_graph *graph, const hl_node *node, int first)
{
    const hl_attrs_images *images = hl_images_attrs(node);
    const int64_t *value = hl_graph_shape(graph, node->in[first])->dim;
    const int64_t *location = hl_graph_shape(graph, node->in[first + 1])->dim;
    hl_cuda_deformable_sizes n = {value[0],    value[1],    value[2],    value[3],
                                  location[1], location[3], location[4], .begin = {0}};
    for (int64_t l = 0, begin = 0; l < n.L; l++) {
        n.height[l] = images->heights.at[l], n.width[l] = images->widths.at[l];
        n.begin[l] = begin;
        begin += n.height[l] * n.width[l];
        n.tiles[l + 1] = n.tiles[l] + count_tiles(n.height[l]) * count_tiles(n.width[l]);
    }
    return n;
}

static hl_status prepare_deformable(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int64_t n = hl_shape_numel(hl_graph_shape(graph, node->out));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (n > 0)
        HL_CUDA_CALL(&calls, deformable, NULL, hl_cuda_shape_elements(device, n),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_in(&calls, 2),
                            hl_cuda_out(&calls, 0)},
                     .n = make_sizes(graph, node, 0));
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_deformable_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                         hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    int64_t n_places = hl_shape_numel(hl_graph_shape(graph, node->in[3]));
    hl_cuda_deformable_sizes n = make_sizes(graph, node, 1);
    int64_t n_items = n.N * n.M * n.tiles[n.L] * ((n.D + 31) / 32);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (n_places > 0)
        HL_CUDA_CALL(&calls, deformable_places, NULL, hl_cuda_shape_elements(device, 32 * n_places),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_in(&calls, 2),
                            hl_cuda_in(&calls, 3), hl_cuda_out(&calls, 1), hl_cuda_out(&calls, 2)},
                     .n = n);
    if (n_items > 0)
        HL_CUDA_CALL(&calls, deformable_value, NULL,
                     hl_cuda_shape_blocks(device, n_items, HL_CUDA_DEFORMABLE_THREADS),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 2), hl_cuda_in(&calls, 3),
                            hl_cuda_out(&calls, 0)},
                     .n = n);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel deformable =
    HL_CUDA_KERNEL(DEFORMABLE, "deformable_attention", query_deformable, prepare_deformable);
static const hl_kernel deformable_grad = HL_CUDA_KERNEL(
    DEFORMABLE_GRAD, "deformable_attention_grad", query_deformable_grad, prepare_deformable_grad);

const hl_kernel *const hl_cuda_deformable_kernels[] = {&deformable, &deformable_grad, NULL};
