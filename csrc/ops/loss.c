/* Losses with a kernel of their own: cross-entropy from logits. All others are composed. */
#include "ops/check.h"
#include "ops/ops.h"

/* Logits (N, C), target (N) and class weight (C) stand at `first` and after it. */
static hl_status check_loss(const hl_graph *graph, const hl_node *node, int first)
{
    const hl_type *logits = hl_node_in_type(graph, node, first);
    const hl_type *target = hl_node_in_type(graph, node, first + 1);
    HL_TRY(hl_check_float(logits, "logits"));
    HL_TRY(hl_check_rank_exactly(logits, 2, "logits"));
    hl_shape rows = hl_shape_1d(logits->shape.dim[0]), classes = hl_shape_1d(logits->shape.dim[1]);
    if (target->dtype != HL_DTYPE_BOOL) HL_TRY(hl_check_integer(target, "the target"));
    HL_TRY(hl_check_shape(target, &rows, "the target"));
    if (classes.dim[0] < 1)
        return hl_status_set(HL_ERROR_SHAPE, "there must be a class, got logits of width 0");
    double smoothing = hl_cross_entropy_attrs(node)->label_smoothing;
    if (!(smoothing >= 0 && smoothing <= 1))
        return hl_status_set(HL_ERROR_CONFIG, "label_smoothing must lie in 0 ... 1, got %g",
                             smoothing);
    if (node->n_in <= first + 2) return HL_OK;
    hl_type weight = {logits->dtype, classes};
    return hl_check_type(hl_node_in_type(graph, node, first + 2), &weight, "the class weight");
}

hl_status hl_infer_cross_entropy(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_loss(graph, node, 0));
    const hl_type *logits = hl_node_in_type(graph, node, 0);
    out_types[0] = (hl_type){logits->dtype, hl_shape_1d(logits->shape.dim[0])};
    out_types[1] = out_types[0];
    return HL_OK;
}

hl_status hl_infer_cross_entropy_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_loss(graph, node, 1));
    out_types[0] = *hl_node_in_type(graph, node, 1);
    const hl_type *dloss = hl_node_in_type(graph, node, 0);
    hl_type one = {out_types[0].dtype, hl_shape_1d(1)}, each = one;
    each.shape.dim[0] = out_types[0].shape.dim[0];
    if (hl_type_equal(dloss, &one)) return HL_OK;
    return hl_check_type(dloss, &each, "the loss' gradient");
}

/* What is spread over all rows, as behind a sum, is read as it was before. */
static hl_id find_shared(const hl_graph *graph, hl_id dloss)
{
    hl_node_id producer = hl_graph_producer(graph, dloss);
    if (producer == HL_NONE || graph->nodes[producer].op != HL_OP_EXPAND) return dloss;
    hl_id from = graph->nodes[producer].in[0];
    const hl_shape *shape = hl_graph_shape(graph, from);
    return shape->rank == 1 && shape->dim[0] == 1 ? from : dloss;
}

/* The rows' weights depend on targets and class weights alone: data, so nothing flows back. */
hl_status hl_vjp_cross_entropy(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                               hl_id *din)
{
    if (dout[0] == HL_NONE || !need[0]) return HL_OK;
    hl_node node = graph->nodes[id];
    hl_id in[4] = {find_shared(graph, dout[0])};
    for (int32_t i = 0; i < node.n_in; i++) in[1 + i] = node.in[i];
    return hl_graph_add(graph, HL_OP_CROSS_ENTROPY_GRAD, in, 1 + node.n_in, &node.attrs, &din[0]);
}
