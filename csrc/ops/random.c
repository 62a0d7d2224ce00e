/* Random numbers: pure functions of the control block's counters, so they have no data operands. */
#include "ops/need.h"
#include "ops/ops.h"

hl_status hl_infer_random(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_attrs *attrs = &node->attrs; /* i: seed, dtype */
    HL_TRY(hl_need_control(hl_node_in_type(graph, node, 0)));
    if (!attrs->name)
        return hl_status_set(HL_ERROR_CONFIG, "a random stream must have a name, got none");
    if (node->op == HL_OP_DROPOUT_MASK && !(attrs->f[0] >= 0 && attrs->f[0] <= 1))
        return hl_status_set(HL_ERROR_CONFIG, "p must lie in 0 ... 1, got %g", attrs->f[0]);
    if (attrs->n_dims > HL_MAX_RANK)
        return hl_status_set(HL_ERROR_SHAPE, "a shape must have at most 8 dims, got %d",
                             attrs->n_dims);
    out_types[0].shape = hl_shape_make(attrs->n_dims, attrs->dims);
    HL_TRY(hl_need_dtype_attr(attrs, 1, &out_types[0].dtype));
    return hl_need_float(&out_types[0], "the result");
}
