/* Launchers of softmax.cu. */
#include "kernels/cuda/softmax.h"

#include <stdio.h>

#include "kernels/cuda/calls.h"

static hl_status query_rows(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A cooperative group has read its row before it writes an element of it, and element c where
     * it writes c.
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
    hl_cuda_shape shape = hl_cuda_shape_coop_groups(device, R, C, &by_block);
    bool is_log = node->op == HL_OP_LOG_SOFTMAX || node->op == HL_OP_LOG_SOFTMAX_GRAD;
    char variant[24];
    snprintf(variant, sizeof variant, "%s%s_x%d", is_log ? "log_" : "", hl_cuda_suffix(type->dtype),
             hl_cuda_row_keep(C, by_block));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (node->n_in == 1)
        HL_CUDA_CALL(&calls, softmax, variant, shape, .at.x = hl_cuda_in(&calls, 0),
                     .at.y = hl_cuda_out(&calls, 0), .R = R, .C = C, .by_block = by_block);
    else
        HL_CUDA_CALL(&calls, softmax_grad, variant, shape, .at.dy = hl_cuda_in(&calls, 0),
                     .at.y = hl_cuda_in(&calls, 1), .at.dx = hl_cuda_out(&calls, 0), .R = R, .C = C,
                     .by_block = by_block);
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
