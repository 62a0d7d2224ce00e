/* Launcher of resample.cu. */
#include "kernels/cuda/resample.h"

#include "kernels/cuda/calls.h"

static hl_status query_resample(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, 1, out_why_not) ||
        !hl_cuda_is_dtype(graph, node, 2, 3, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_resample(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_shape *x = hl_graph_shape(graph, node->in[0]);
    int axis = (int)hl_axis_attrs(node)->axis;
    int64_t n = hl_shape_numel(hl_graph_shape(graph, node->out));
    int64_t m = hl_graph_shape(graph, node->in[1])->dim[0];
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (n > 0)
        HL_CUDA_CALL(&calls, resample, hl_cuda_suffix(hl_graph_dtype(graph, node->in[0])),
                     hl_cuda_shape_elements(device, n),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_in(&calls, 2),
                            hl_cuda_out(&calls, 0)},
                     .O = hl_shape_span(x, 0, axis), .n = x->dim[axis], .m = m,
                     .I = hl_shape_span(x, axis + 1, x->rank),
                     .taps = hl_graph_shape(graph, node->in[2])->dim[0] / m);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel resample =
    HL_CUDA_KERNEL(RESAMPLE, "resample", query_resample, prepare_resample);

const hl_kernel *const hl_cuda_resample_kernels[] = {&resample, NULL};
