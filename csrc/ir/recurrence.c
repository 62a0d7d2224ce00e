/* The sizes of recurrences. */
#include "ir/recurrence.h"

#include "ir/op.h"

hl_recurrence hl_recurrence_of(const hl_graph *graph, const hl_node *node)
{
    const hl_attrs_recurrence *attrs = hl_recurrence_attrs(node);
    bool is_grad = node->op == HL_OP_RECURRENCE_GRAD;
    const int64_t *w = hl_node_in_type(graph, node, HL_RECURRENCE_W)->shape.dim;
    int over_time = is_grad ? HL_RECURRENCE_GRAD_OUT : HL_RECURRENCE_Z;
    const int64_t *x = hl_node_in_type(graph, node, over_time)->shape.dim;
    hl_recurrence r = {.cell = (hl_cell)attrs->cell,
                       .is_reverse = attrs->reverse,
                       .has_bias = attrs->has_bias,
                       .has_projection = attrs->has_projection,
                       .is_sorted = attrs->is_sorted,
                       .N = x[0],
                       .T = x[1],
                       .G = hl_cell_gates(attrs->cell),
                       .P = w[1]};
    int at = is_grad ? HL_RECURRENCE_GRAD_INPUTS : HL_RECURRENCE_LENGTHS + 1;
    r.H = w[0] / r.G;
    r.c0 = r.cell == HL_CELL_LSTM ? at++ : -1;
    r.bias = r.has_bias && !is_grad ? at++ : -1;
    r.w_hr = r.has_projection ? at : -1;
    return r;
}

hl_recurrent hl_recurrent_of(const hl_graph *graph, const hl_node *node)
{
    const hl_attrs_recurrent *attrs = hl_recurrent_attrs(node);
    bool is_grad = node->op == HL_OP_RECURRENT_LAYER_GRAD;
    const int64_t *x = hl_node_in_type(graph, node, HL_RECURRENT_X)->shape.dim,
                  *w = hl_node_in_type(graph, node, HL_RECURRENT_W_HH)->shape.dim;
    hl_recurrent l = {.r = {.cell = (hl_cell)attrs->cell,
                            .is_reverse = attrs->reverse,
                            .has_bias = attrs->has_state_bias,
                            .has_projection = attrs->has_projection,
                            .is_sorted = attrs->is_sorted,
                            .N = x[0],
                            .T = x[1],
                            .G = hl_cell_gates(attrs->cell),
                            .P = w[1]},
                      .I = x[2],
                      .has_bias = attrs->has_bias,
                      .has_state_bias = attrs->has_state_bias};
    int at = is_grad ? HL_RECURRENT_GRAD_INPUTS : HL_RECURRENT_INPUTS;
    l.r.H = w[0] / l.r.G;
    l.r.c0 = l.r.cell == HL_CELL_LSTM ? at++ : -1;
    l.bias = l.has_bias && !is_grad ? at++ : -1;
    l.r.bias = l.has_state_bias && !is_grad ? at++ : -1;
    l.r.w_hr = l.r.has_projection ? at : -1;
    return l;
}
