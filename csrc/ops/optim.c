/* Optimizers over flat buffers: one op per rule, no gradient; the norm that clips before them. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* The powers that Adam reads are those of its own betas. */
static hl_status check_betas(const hl_graph *graph, const hl_node *node)
{
    hl_node_id maker = hl_graph_producer(graph, node->in[node->n_in - 1]);
    if (node->op != HL_OP_ADAM || maker == HL_NONE || graph->nodes[maker].op != HL_OP_CONTROL_APPLY)
        return HL_OK;
    const hl_attrs_betas *kept = hl_betas_attrs(&graph->nodes[maker]);
    const hl_attrs_adam *own = hl_adam_attrs(node);
    if (kept->beta1 == own->beta1 && kept->beta2 == own->beta2) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG,
                         "the control block must keep the powers of its betas %g and %g, got those "
                         "of %g and %g",
                         own->beta1, own->beta2, kept->beta1, kept->beta2);
}

/* in = param, states, grad, segments, grad_scale, lr, control. */
hl_status hl_infer_optimizer(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    int n_state = node->n_out - 1;
    const hl_type *param = hl_node_in_type(graph, node, 0);
    const hl_type *grad = hl_node_in_type(graph, node, n_state + 1);
    const hl_type *segments = hl_node_in_type(graph, node, n_state + 2);
    HL_TRY(hl_check_float(param, "the parameter"));
    HL_TRY(hl_check_rank_exactly(param, 1, "the parameter"));
    hl_shape nothing = hl_shape_1d(0);
    out_types[0] = *param;
    for (int j = 1; j <= n_state; j++) {
        const hl_type *state = hl_node_in_type(graph, node, j);
        HL_TRY(hl_check_dtype(state, param->dtype, "a state"));
        if (!hl_shape_equal(&state->shape, &nothing))
            HL_TRY(hl_check_shape(state, &param->shape, "a state"));
        out_types[j] = *state;
    }
    HL_TRY(hl_check_float(grad, "the gradient"));
    HL_TRY(hl_check_shape(grad, &param->shape, "the gradient"));
    HL_TRY(hl_check_dtype(segments, HL_DTYPE_F64, "the segments"));
    hl_shape table = hl_shape_2d(segments->shape.dim[0], 5);
    HL_TRY(hl_check_shape(segments, &table, "the segments"));
    for (int i = n_state + 3; i < n_state + 5; i++) {
        HL_TRY(hl_check_float(hl_node_in_type(graph, node, i), "grad_scale and lr"));
        HL_TRY(hl_check_rank_exactly(hl_node_in_type(graph, node, i), 0, "grad_scale and lr"));
    }
    HL_TRY(hl_check_dtype(hl_node_in_type(graph, node, n_state + 5), HL_DTYPE_U8,
                          "the control block"));
    return check_betas(graph, node);
}

/* ---- the gradient's norm --------------------------------------------------------------------- */

/* in = grad, factor, loss scale or nothing. */
hl_status hl_infer_gradient_norm(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *grad = hl_node_in_type(graph, node, 0);
    hl_type number = {grad->dtype, hl_shape_scalar()};
    HL_TRY(hl_check_float(grad, "the gradient"));
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 1), &number, "the factor"));
    if (node->n_in > 2)
        HL_TRY(hl_check_type(hl_node_in_type(graph, node, 2), &number, "the loss scale"));
    double clip = hl_gradient_norm_attrs(node)->clip;
    if (!(clip >= 0))
        return hl_status_set(HL_ERROR_CONFIG, "clip must be at least 0, got %g", clip);
    out_types[0] = out_types[1] = number;
    return HL_OK;
}

/* The norm is that of the plain gradient, multiplied afterwards: one pass less over it. */
hl_status hl_lower_gradient_norm(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    hl_id grad = node.in[0], factor = node.in[1], square, ratio;
    if (node.n_in > 2) HL_TRY(hl_build_binary(graph, HL_OP_DIV, factor, node.in[2], &factor));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, grad, grad, &square));
    HL_TRY(hl_build_sum(graph, square, NULL, 0, false, &square));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, square, factor, &square));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, square, factor, &out_values[0]));
    out_values[1] = factor;
    double clip = node.attrs.gradient_norm.clip;
    if (clip == 0) return HL_OK;
    HL_TRY(hl_build_unary(graph, HL_OP_SQRT, out_values[0], &ratio));
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, ratio, 1e-6, &ratio));
    hl_id most;
    HL_TRY(hl_build_number_like(graph, ratio, clip, &most));
    HL_TRY(hl_build_binary(graph, HL_OP_DIV, most, ratio, &ratio));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MINIMUM, ratio, 1, &ratio));
    return hl_build_binary(graph, HL_OP_MUL, factor, ratio, &out_values[1]);
}
