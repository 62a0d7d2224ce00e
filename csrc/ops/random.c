/* Random numbers: pure functions of the control block's counters, so they have no data operands. */
#include "ops/check.h"
#include "ops/ops.h"

hl_status hl_infer_random(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    bool drops = node->op == HL_OP_DROPOUT_MASK;
    const hl_ints *shape = drops ? &node->attrs.dropout_mask.shape : &node->attrs.uniform.shape;
    const char *stream = drops ? node->attrs.dropout_mask.stream : node->attrs.uniform.stream;
    double p = drops ? node->attrs.dropout_mask.p : 0;
    HL_TRY(hl_check_control(hl_node_in_type(graph, node, 0)));
    if (!stream)
        return hl_status_set(HL_ERROR_CONFIG, "a random stream must have a name, got none");
    if (!(p >= 0 && p <= 1))
        return hl_status_set(HL_ERROR_CONFIG, "p must lie in 0 ... 1, got %g", p);
    out_types[0].shape = hl_shape_make(shape->n, shape->at);
    out_types[0].dtype = drops ? node->attrs.dropout_mask.dtype : node->attrs.uniform.dtype;
    HL_TRY(hl_check_dtype_attr(out_types[0].dtype));
    return hl_check_float(&out_types[0], "the result");
}
