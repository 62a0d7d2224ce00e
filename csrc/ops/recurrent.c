/* Recurrent layers: a recurrence with the product that makes what it reads (ir/recurrence.h).
 *
 * What the product and the recurrence are apart is what the layer is lowered to, node for node in
 * the order in which they would have been traced and differentiated. So a device without such a
 * kernel has the plans that it would have if there were no layer.
 *
 * Rejected: finding product and recurrence in a graph and joining them. Their gradients are eight
 * nodes and more, of which passes before move some, so that a search would have to know all of
 * them. */
#include "base/status.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/recurrence.h"

/* ---- types ----------------------------------------------------------------------------------- */

static hl_status check_attrs(const hl_attrs_recurrent *attrs)
{
    if (attrs->cell < 0 || attrs->cell >= HL_CELL_COUNT)
        return hl_status_set(HL_ERROR_CONFIG, "cell must lie in 0 ... %d, got %lld",
                             HL_CELL_COUNT - 1, (long long)attrs->cell);
    if (attrs->has_state_bias && attrs->cell != HL_CELL_GRU)
        return hl_status_set(HL_ERROR_CONFIG, "only a GRU has a bias of the state's, got one");
    if (attrs->has_projection && attrs->cell != HL_CELL_LSTM)
        return hl_status_set(HL_ERROR_CONFIG, "only an LSTM has a projection, got one");
    return HL_OK;
}

/* x and both weights, at the same places in both ops: then sizes can be read. */
static hl_status check_sizes(const hl_graph *graph, const hl_node *node)
{
    const hl_attrs_recurrent *attrs = hl_recurrent_attrs(node);
    const hl_type *x = hl_node_in_type(graph, node, HL_RECURRENT_X),
                  *w = hl_node_in_type(graph, node, HL_RECURRENT_W_HH);
    HL_TRY(check_attrs(attrs));
    HL_TRY(hl_check_float(x, "the input"));
    HL_TRY(hl_check_rank_exactly(x, 3, "the input"));
    HL_TRY(hl_check_dtype(w, x->dtype, "the state's weight"));
    HL_TRY(hl_check_rank_exactly(w, 2, "the state's weight"));
    int64_t G = hl_cell_gates(attrs->cell), rows = w->shape.dim[0], P = w->shape.dim[1];
    if (rows % G || (!attrs->has_projection && rows / G != P))
        return hl_status_set(HL_ERROR_SHAPE,
                             "the state's weight must have %lld rows for each unit and a column "
                             "for each element of the state, got (%lld, %lld)",
                             (long long)G, (long long)rows, (long long)P);
    return HL_OK;
}

typedef struct wanted {
    int at; /* -1: not there */
    hl_type type;
    const char *what;
} wanted;

/* All operands: how many there are, and their types. */
static hl_status check_operands(const hl_graph *graph, const hl_node *node, const wanted *want,
                                int n)
{
    int n_there = 0;
    for (int i = 0; i < n; i++) n_there += want[i].at >= 0;
    if (node->n_in != n_there)
        return hl_status_set(HL_ERROR_TRACE, "there must be %d operands, got %d", n_there,
                             node->n_in);
    for (int i = 0; i < n; i++)
        if (want[i].at >= 0)
            HL_TRY(hl_check_type(hl_node_in_type(graph, node, want[i].at), &want[i].type,
                                 want[i].what));
    return HL_OK;
}

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

hl_status hl_infer_recurrent_layer(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_sizes(graph, node));
    hl_recurrent l = hl_recurrent_of(graph, node);
    const hl_recurrence *r = &l.r;
    hl_dtype dtype = hl_node_in_type(graph, node, HL_RECURRENT_X)->dtype;
    hl_type bias = {dtype, hl_shape_1d(r->G * r->H)};
    const wanted want[] = {
        {HL_RECURRENT_X, hl_type_3d(dtype, r->N, r->T, l.I), "the input"},
        {HL_RECURRENT_W_IH, hl_type_2d(dtype, r->G * r->H, l.I), "the input's weight"},
        {HL_RECURRENT_W_HH, hl_type_2d(dtype, r->G * r->H, r->P), "the state's weight"},
        {HL_RECURRENT_H0, hl_type_2d(dtype, r->N, r->P), "the first state"},
        {HL_RECURRENT_LENGTHS, {HL_DTYPE_I32, hl_shape_1d(r->N)}, "the lengths"},
        {r->c0, hl_type_2d(dtype, r->N, r->H), "the first cell"},
        {l.bias, bias, "the bias"},
        {r->bias, bias, "the state's bias"},
        {r->w_hr, hl_type_2d(dtype, r->P, r->H), "the projection"},
    };
    HL_TRY(check_operands(graph, node, want, COUNT(want)));
    out_types[HL_RECURRENCE_OUT] = hl_type_3d(dtype, r->N, r->T, r->P);
    out_types[HL_RECURRENCE_H] = hl_type_2d(dtype, r->N, r->P);
    out_types[HL_RECURRENCE_C] = hl_type_2d(dtype, r->N, hl_recurrence_c(r));
    out_types[HL_RECURRENCE_GATES] = hl_type_3d(dtype, r->N, r->T, hl_recurrence_gates(r));
    out_types[HL_RECURRENCE_CELLS] = hl_type_3d(dtype, r->N, r->T, hl_recurrence_cells(r));
    return HL_OK;
}

hl_status hl_infer_recurrent_layer_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_sizes(graph, node));
    hl_recurrent l = hl_recurrent_of(graph, node);
    const hl_recurrence *r = &l.r;
    hl_dtype dtype = hl_node_in_type(graph, node, HL_RECURRENT_X)->dtype;
    hl_type x = hl_type_3d(dtype, r->N, r->T, l.I), w_ih = hl_type_2d(dtype, r->G * r->H, l.I),
            w_hh = hl_type_2d(dtype, r->G * r->H, r->P),
            states = hl_type_3d(dtype, r->N, r->T, r->P), state = hl_type_2d(dtype, r->N, r->P),
            c = hl_type_2d(dtype, r->N, hl_recurrence_c(r));
    const wanted want[] = {
        {HL_RECURRENT_GRAD_X, x, "the input"},
        {HL_RECURRENT_GRAD_W_IH, w_ih, "the input's weight"},
        {HL_RECURRENT_GRAD_W_HH, w_hh, "the state's weight"},
        {HL_RECURRENT_GRAD_GATES, hl_type_3d(dtype, r->N, r->T, hl_recurrence_gates(r)),
         "the gates"},
        {HL_RECURRENT_GRAD_CELLS, hl_type_3d(dtype, r->N, r->T, hl_recurrence_cells(r)),
         "the cells"},
        {HL_RECURRENT_GRAD_OUT, states, "the states"},
        {HL_RECURRENT_GRAD_DOUT, states, "the states' gradient"},
        {HL_RECURRENT_GRAD_DH, state, "the last state's gradient"},
        {HL_RECURRENT_GRAD_DC, c, "the last cell's gradient"},
        {HL_RECURRENT_GRAD_H0, state, "the first state"},
        {HL_RECURRENT_GRAD_LENGTHS, {HL_DTYPE_I32, hl_shape_1d(r->N)}, "the lengths"},
        {r->c0, hl_type_2d(dtype, r->N, r->H), "the first cell"},
        {r->w_hr, hl_type_2d(dtype, r->P, r->H), "the projection"},
    };
    HL_TRY(check_operands(graph, node, want, COUNT(want)));
    int64_t rows = r->G * r->H;
    out_types[HL_RECURRENT_GRAD_DX] = x;
    out_types[HL_RECURRENT_GRAD_DW_IH] = w_ih;
    out_types[HL_RECURRENT_GRAD_DW_HH] = w_hh;
    out_types[HL_RECURRENT_GRAD_DH0] = state;
    out_types[HL_RECURRENT_GRAD_DC0] = c;
    out_types[HL_RECURRENT_GRAD_BIAS] =
        (hl_type){dtype, hl_shape_1d(hl_recurrence_if(l.has_bias, rows))};
    out_types[HL_RECURRENT_GRAD_STATE_BIAS] =
        (hl_type){dtype, hl_shape_1d(hl_recurrence_if(l.has_state_bias, rows))};
    out_types[HL_RECURRENT_GRAD_DW_HR] =
        hl_type_2d(dtype, hl_recurrence_if(r->has_projection, r->P), r->H);
    return HL_OK;
}

hl_cost hl_cost_recurrent_layer(const hl_graph *graph, const hl_node *node)
{
    hl_recurrent l = hl_recurrent_of(graph, node);
    const hl_recurrence *r = &l.r;
    bool is_grad = node->op == HL_OP_RECURRENT_LAYER_GRAD;
    hl_cost cost = hl_cost_bytes(graph, node);
    double of_step = (double)(r->G * r->H) * (double)(l.I + r->P) +
                     (r->has_projection ? (double)r->H * (double)r->P : 0);
    cost.flops = (is_grad ? 4 : 2) * (double)r->N * (double)r->T * of_step;
    cost.side = r->N < r->P ? r->N : r->P;
    return cost;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

static hl_status build_zeros(hl_graph *graph, hl_id like, hl_id *out_id)
{
    hl_type type = graph->values[like].type;
    return hl_build_full(graph, &type, 0, out_id);
}

hl_status hl_vjp_recurrent_layer(hl_graph *graph, hl_node_id id, const hl_id *dout,
                                 const bool *need, hl_id *din)
{
    const hl_node node = graph->nodes[id];
    const hl_recurrent l = hl_recurrent_of(graph, &node);
    hl_id in[HL_RECURRENT_GRAD_INPUTS + 2], grad;
    int32_t n_in = HL_RECURRENT_GRAD_INPUTS;
    if (dout[HL_RECURRENCE_GATES] != HL_NONE || dout[HL_RECURRENCE_CELLS] != HL_NONE)
        return hl_status_set(HL_ERROR_TRACE, "recurrent_layer: gates and cells have no gradient");
    in[HL_RECURRENT_GRAD_X] = node.in[HL_RECURRENT_X];
    in[HL_RECURRENT_GRAD_W_IH] = node.in[HL_RECURRENT_W_IH];
    in[HL_RECURRENT_GRAD_W_HH] = node.in[HL_RECURRENT_W_HH];
    in[HL_RECURRENT_GRAD_GATES] = node.out + HL_RECURRENCE_GATES;
    in[HL_RECURRENT_GRAD_CELLS] = node.out + HL_RECURRENCE_CELLS;
    in[HL_RECURRENT_GRAD_OUT] = node.out + HL_RECURRENCE_OUT;
    for (int i = 0; i < 3; i++) {
        in[HL_RECURRENT_GRAD_DOUT + i] = dout[i];
        if (dout[i] == HL_NONE)
            HL_TRY(build_zeros(graph, node.out + i, &in[HL_RECURRENT_GRAD_DOUT + i]));
    }
    in[HL_RECURRENT_GRAD_H0] = node.in[HL_RECURRENT_H0];
    in[HL_RECURRENT_GRAD_LENGTHS] = node.in[HL_RECURRENT_LENGTHS];
    if (l.r.c0 >= 0) in[n_in++] = node.in[l.r.c0];
    if (l.r.w_hr >= 0) in[n_in++] = node.in[l.r.w_hr];
    HL_TRY(hl_graph_add(graph, HL_OP_RECURRENT_LAYER_GRAD, in, n_in, &node.attrs, &grad));
    const struct {
        int in, out;
    } pairs[] = {{HL_RECURRENT_X, HL_RECURRENT_GRAD_DX},
                 {HL_RECURRENT_W_IH, HL_RECURRENT_GRAD_DW_IH},
                 {HL_RECURRENT_W_HH, HL_RECURRENT_GRAD_DW_HH},
                 {HL_RECURRENT_H0, HL_RECURRENT_GRAD_DH0},
                 {l.r.c0, HL_RECURRENT_GRAD_DC0},
                 {l.bias, HL_RECURRENT_GRAD_BIAS},
                 {l.r.bias, HL_RECURRENT_GRAD_STATE_BIAS},
                 {l.r.w_hr, HL_RECURRENT_GRAD_DW_HR}};
    for (int i = 0; i < COUNT(pairs); i++)
        if (pairs[i].in >= 0 && need[pairs[i].in]) din[pairs[i].in] = grad + pairs[i].out;
    return HL_OK;
}

/* ---- product and recurrence apart ------------------------------------------------------------ */

static hl_attrs find_attrs_apart(const hl_node *node)
{
    const hl_attrs_recurrent *attrs = hl_recurrent_attrs(node);
    return (hl_attrs){.recurrence = {.cell = attrs->cell,
                                     .reverse = attrs->reverse,
                                     .has_bias = attrs->has_state_bias,
                                     .has_projection = attrs->has_projection,
                                     .is_sorted = attrs->is_sorted}};
}

/* x @ w_ih^T and the bias, if there is one. */
static hl_status build_product(hl_graph *graph, const hl_node *node, hl_id bias, hl_id *out_id)
{
    const hl_id in[] = {node->in[HL_RECURRENT_X], node->in[HL_RECURRENT_W_IH], bias};
    hl_attrs attrs = {.matmul = {.trans_b = true, .tf32 = hl_recurrent_attrs(node)->tf32}};
    return hl_graph_add(graph, HL_OP_MATMUL, in, bias == HL_NONE ? 2 : 3, &attrs, out_id);
}

hl_status hl_lower_recurrent_layer(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const hl_node node = graph->nodes[id];
    const hl_recurrent l = hl_recurrent_of(graph, &node);
    hl_id in[HL_RECURRENCE_LENGTHS + 4], out;
    hl_attrs attrs = find_attrs_apart(&node);
    int32_t n_in = HL_RECURRENCE_LENGTHS + 1;
    in[HL_RECURRENCE_W] = node.in[HL_RECURRENT_W_HH];
    HL_TRY(build_product(graph, &node, l.bias >= 0 ? node.in[l.bias] : (hl_id)HL_NONE,
                         &in[HL_RECURRENCE_Z]));
    in[HL_RECURRENCE_H0] = node.in[HL_RECURRENT_H0];
    in[HL_RECURRENCE_LENGTHS] = node.in[HL_RECURRENT_LENGTHS];
    if (l.r.c0 >= 0) in[n_in++] = node.in[l.r.c0];
    if (l.r.bias >= 0) in[n_in++] = node.in[l.r.bias];
    if (l.r.w_hr >= 0) in[n_in++] = node.in[l.r.w_hr];
    HL_TRY(hl_graph_add(graph, HL_OP_RECURRENCE, in, n_in, &attrs, &out));
    for (int j = 0; j < HL_RECURRENCE_OUTPUTS; j++) out_values[j] = out + j;
    return HL_OK;
}

/* What the product's rule gives, of a product that stands in for the one of the forward pass: its
 * own result is read by nobody. */
static hl_status build_product_grads(hl_graph *graph, const hl_node *node, hl_id dz,
                                     hl_id *out_values)
{
    const bool need[3] = {true, true, true};
    hl_id din[3] = {HL_NONE, HL_NONE, HL_NONE}, bias = HL_NONE, z;
    if (hl_recurrent_attrs(node)->has_bias)
        HL_TRY(build_zeros(graph, node->out + HL_RECURRENT_GRAD_BIAS, &bias));
    HL_TRY(build_product(graph, node, bias, &z));
    HL_TRY(hl_vjp_matmul(graph, hl_graph_producer(graph, z), &dz, need, din));
    out_values[HL_RECURRENT_GRAD_DX] = din[0];
    out_values[HL_RECURRENT_GRAD_DW_IH] = din[1];
    out_values[HL_RECURRENT_GRAD_BIAS] = din[2];
    return HL_OK;
}

hl_status hl_lower_recurrent_layer_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const hl_node node = graph->nodes[id];
    const hl_recurrent l = hl_recurrent_of(graph, &node);
    hl_recurrence_grads grads;
    const hl_recurrence_run run = {.attrs = find_attrs_apart(&node),
                                   .r = l.r,
                                   .w = node.in[HL_RECURRENT_GRAD_W_HH],
                                   .h0 = node.in[HL_RECURRENT_GRAD_H0],
                                   .lengths = node.in[HL_RECURRENT_GRAD_LENGTHS],
                                   .c0 = l.r.c0 >= 0 ? node.in[l.r.c0] : (hl_id)HL_NONE,
                                   .w_hr = l.r.w_hr >= 0 ? node.in[l.r.w_hr] : (hl_id)HL_NONE,
                                   .out = node.in[HL_RECURRENT_GRAD_OUT],
                                   .gates = node.in[HL_RECURRENT_GRAD_GATES],
                                   .cells = node.in[HL_RECURRENT_GRAD_CELLS],
                                   .dout = node.in[HL_RECURRENT_GRAD_DOUT],
                                   .dh = node.in[HL_RECURRENT_GRAD_DH],
                                   .dc = node.in[HL_RECURRENT_GRAD_DC],
                                   .needs_w = true,
                                   .needs_bias = l.has_state_bias,
                                   .needs_w_hr = l.r.w_hr >= 0};
    HL_TRY(hl_build_recurrence_grads(graph, &run, &grads));
    out_values[HL_RECURRENT_GRAD_DW_HH] = grads.w;
    out_values[HL_RECURRENT_GRAD_DH0] = grads.dh0;
    out_values[HL_RECURRENT_GRAD_DC0] = grads.dc0;
    out_values[HL_RECURRENT_GRAD_STATE_BIAS] = grads.bias;
    out_values[HL_RECURRENT_GRAD_DW_HR] = grads.w_hr;
    HL_TRY(build_product_grads(graph, &node, grads.dz, out_values));
    for (int j = HL_RECURRENT_GRAD_BIAS; j < HL_RECURRENT_GRAD_OUTPUTS; j++)
        if (out_values[j] == HL_NONE) HL_TRY(build_zeros(graph, node.out + j, &out_values[j]));
    return HL_OK;
}
