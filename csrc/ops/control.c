/* Control block moves and guarded updates of state. They change what they stand for in place, so
 * their output has the type of the operand it replaces. */
#include <math.h>

#include "ops/check.h"
#include "ops/ops.h"

hl_status hl_infer_control(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(hl_check_control(hl_node_in_type(graph, node, 0)));
    out_types[0] = *hl_node_in_type(graph, node, 0);
    const hl_type *other = hl_node_in_type(graph, node, 1);
    if (node->op == HL_OP_CONTROL_BEGIN) {
        hl_type scalar = {HL_DTYPE_COUNT, hl_shape_scalar()};
        scalar.dtype = hl_dtype_attrs(node)->dtype;
        HL_TRY(hl_check_dtype_attr(scalar.dtype));
        HL_TRY(hl_check_float(&scalar, "a scalar"));
        HL_TRY(hl_check_dtype(other, HL_DTYPE_F64, "the tables"));
        return hl_check_rank_exactly(other, 2, "the tables");
    }
    HL_TRY(hl_check_float(other, node->op == HL_OP_CONTROL_MICRO ? "the loss" : "the norm"));
    return hl_check_rank_exactly(other, 0, "a number");
}

hl_status hl_infer_update(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *state = hl_node_in_type(graph, node, 0),
                  *value = hl_node_in_type(graph, node, 1);
    HL_TRY(hl_check_control(hl_node_in_type(graph, node, 2)));
    HL_TRY(hl_check_shape(value, &state->shape, "the value"));
    if (node->op == HL_OP_EMA) {
        double decay = hl_ema_attrs(node)->decay;
        HL_TRY(hl_check_float(state, "the average"));
        if (!(decay >= 0 && decay <= 1))
            return hl_status_set(HL_ERROR_CONFIG, "decay must lie in 0 ... 1, got %g", decay);
        if (!isfinite(hl_ema_attrs(node)->take))
            return hl_status_set(HL_ERROR_CONFIG, "take must be finite, got %g",
                                 hl_ema_attrs(node)->take);
    }
    out_types[0] = *state;
    return HL_OK;
}
