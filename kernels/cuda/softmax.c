/* Launchers of softmax.cu. */
#include <stdio.h>

#include "kernels/cuda/calls.h"

static hl_status query_rows(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_low_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A team has read its row before it writes an element of it, and element c where it writes c.
     */
    out_req->in_place[0] = ((uint64_t)1 << node->n_in) - 1;
    return HL_OK;
}

static hl_status prepare_rows(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *type = hl_node_in_type(graph, node, 0);
    int last = type->shape.rank - 1, by_block;
    int64_t R = hl_shape_span(&type->shape, 0, last),
            C = hl_shape_span(&type->shape, last, last + 1);
    hl_cuda_shape shape = hl_cuda_shape_teams(device, R, C, &by_block);
    char name[64];
    snprintf(name, sizeof name, "hl_cuda_%s_%s", hl_op_get(node->op)->name,
             hl_cuda_suffix(type->dtype));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_kernel(&calls, name, shape);
    for (int i = 0; i < node->n_in; i++) hl_cuda_pass_in(&calls, i);
    hl_cuda_pass_out(&calls, 0);
    HL_CUDA_PASS(&calls, int64_t, R);
    HL_CUDA_PASS(&calls, int64_t, C);
    HL_CUDA_PASS(&calls, int, by_block);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel softmax = HL_CUDA_KERNEL(SOFTMAX, "softmax", query_rows, prepare_rows);
static const hl_kernel log_softmax =
    HL_CUDA_KERNEL(LOG_SOFTMAX, "log_softmax", query_rows, prepare_rows);
static const hl_kernel softmax_grad =
    HL_CUDA_KERNEL(SOFTMAX_GRAD, "softmax_grad", query_rows, prepare_rows);
static const hl_kernel log_softmax_grad =
    HL_CUDA_KERNEL(LOG_SOFTMAX_GRAD, "log_softmax_grad", query_rows, prepare_rows);

const hl_kernel *const hl_cuda_softmax_kernels[] = {&softmax, &log_softmax, &softmax_grad,
                                                    &log_softmax_grad, NULL};
