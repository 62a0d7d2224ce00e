/* Launchers of loss.cu. */
#include "kernels/cuda/loss.h"

#include <stdio.h>

#include "kernels/cuda/calls.h"

/* Where the logits stand: behind the loss' gradient, or first. Target and class weight follow. */
static int find_logits(const hl_node *node)
{
    return node->op == HL_OP_CROSS_ENTROPY_GRAD;
}

static hl_status query_loss(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int logits = find_logits(node);
    hl_dtype dtype = hl_node_in_type(graph, node, logits)->dtype;
    if (!hl_cuda_is_same_float(graph, node, 0, logits + 1, out_why_not) ||
        !hl_cuda_is_dtype(graph, node, logits + 2, node->n_in, dtype, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A thread reads the logits that it overwrites, and no others, in both of its passes. */
    if (node->op == HL_OP_CROSS_ENTROPY_GRAD) out_req->in_place[0] = (uint64_t)1 << logits;
    return HL_OK;
}

void hl_cuda_list_loss(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    int logits = find_logits(node), target = logits + 1;
    const hl_type *type = hl_node_in_type(graph, node, logits);
    hl_cuda_loss_rule rule = {
        .N = type->shape.dim[0],
        .C = type->shape.dim[1],
        .ignored = hl_cross_entropy_attrs(node)->ignore_index,
        .smoothing = (float)hl_cross_entropy_attrs(node)->label_smoothing,
        .target_dtype = (int32_t)hl_node_in_type(graph, node, target)->dtype,
    };
    hl_cuda_shape shape = hl_cuda_shape_coop_groups(calls->device, rule.N, rule.C, &rule.by_block);
    hl_cuda_loss_at in = {hl_cuda_in(calls, logits), hl_cuda_in(calls, target),
                          hl_cuda_in(calls, target + 1), hl_cuda_control_block(),
                          hl_cuda_fault_word(calls)};
    char variant[16];
    snprintf(variant, sizeof variant, "%s_x%d", hl_cuda_suffix(type->dtype),
             hl_cuda_row_keep(rule.C, rule.by_block));
    if (logits == 0)
        HL_CUDA_CALL(calls, cross_entropy, variant, shape, .at.in = in,
                     .at.loss = hl_cuda_out(calls, 0), .at.weight = hl_cuda_out(calls, 1),
                     .rule = rule);
    else
        HL_CUDA_CALL(calls, cross_entropy_grad, variant, shape, .at.in = in,
                     .at.dloss = hl_cuda_in(calls, 0), .at.dlogits = hl_cuda_out(calls, 0),
                     .rule = rule,
                     .dloss_step = hl_node_in_type(graph, node, 0)->shape.dim[0] == rule.N);
}

static hl_status prepare_loss(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_list_loss(&calls, graph, id);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel cross_entropy =
    HL_CUDA_KERNEL_IN_SEQUENCE(CROSS_ENTROPY, "cross_entropy", query_loss, prepare_loss);
static const hl_kernel cross_entropy_grad =
    HL_CUDA_KERNEL_IN_SEQUENCE(CROSS_ENTROPY_GRAD, "cross_entropy_grad", query_loss, prepare_loss);

const hl_kernel *const hl_cuda_loss_kernels[] = {&cross_entropy, &cross_entropy_grad, NULL};
