/* Softmax over the last axis. The gradients are ops of their own: a kernel reads each row once. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

hl_status hl_infer_softmax(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_check_float(&out_types[0], "the input"));
    return hl_check_rank(&out_types[0], 1, "the input");
}

hl_status hl_infer_softmax_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(hl_infer_softmax(graph, node, out_types));
    return hl_check_type(hl_node_in_type(graph, node, 1), &out_types[0], "the softmax");
}

static hl_status build_grad(hl_graph *graph, hl_op op, hl_node_id id, const hl_id *dout, hl_id *din)
{
    return hl_build_binary(graph, op, dout[0], graph->nodes[id].out, &din[0]);
}

hl_status hl_vjp_softmax(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    (void)need;
    return build_grad(graph, HL_OP_SOFTMAX_GRAD, id, dout, din);
}

hl_status hl_vjp_log_softmax(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                             hl_id *din)
{
    (void)need;
    return build_grad(graph, HL_OP_LOG_SOFTMAX_GRAD, id, dout, din);
}
