/* Optimizers over flat buffers: one op per rule, no gradient. */
#include "ops/need.h"
#include "ops/ops.h"

/* in = param, states, grad, segments, grad_scale, lr, control. */
hl_status hl_infer_optimizer(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    int n_state = node->n_out - 1;
    const hl_type *param = hl_node_in(graph, node, 0);
    const hl_type *grad = hl_node_in(graph, node, n_state + 1);
    const hl_type *segments = hl_node_in(graph, node, n_state + 2);
    HL_TRY(hl_need_float(param, "the parameter"));
    HL_TRY(hl_need_rank_exactly(param, 1, "the parameter"));
    hl_shape nothing = hl_shape_1d(0);
    out_types[0] = *param;
    for (int j = 1; j <= n_state; j++) {
        const hl_type *state = hl_node_in(graph, node, j);
        HL_TRY(hl_need_dtype(state, param->dtype, "a state"));
        if (!hl_shape_equal(&state->shape, &nothing))
            HL_TRY(hl_need_shape(state, &param->shape, "a state"));
        out_types[j] = *state;
    }
    HL_TRY(hl_need_float(grad, "the gradient"));
    HL_TRY(hl_need_shape(grad, &param->shape, "the gradient"));
    HL_TRY(hl_need_dtype(segments, HL_DTYPE_F64, "the segments"));
    hl_shape table = hl_shape_2d(segments->shape.dim[0], 4);
    HL_TRY(hl_need_shape(segments, &table, "the segments"));
    for (int i = n_state + 3; i < n_state + 5; i++) {
        HL_TRY(hl_need_float(hl_node_in(graph, node, i), "grad_scale and lr"));
        HL_TRY(hl_need_rank_exactly(hl_node_in(graph, node, i), 0, "grad_scale and lr"));
    }
    return hl_need_dtype(hl_node_in(graph, node, n_state + 5), HL_DTYPE_U8, "the control block");
}
