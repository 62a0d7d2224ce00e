/* Recurrences: what a layer of torch.nn.RNN, LSTM or GRU does over time, in one direction
 * (ir/recurrence.h). The products with the input are one product for all steps before the op, and
 * the gradients of the weights are products for all steps behind that of the op. */
#include "ops/recurrence.h"

#include <stdio.h>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- types ----------------------------------------------------------------------------------- */

static hl_status check_operand(const hl_graph *graph, const hl_node *node, int i, hl_type want,
                               const char *what)
{
    return hl_check_type(hl_node_in_type(graph, node, i), &want, what);
}

static hl_status check_attrs(const hl_attrs_recurrence *attrs)
{
    if (attrs->cell < 0 || attrs->cell >= HL_CELL_COUNT)
        return hl_status_set(HL_ERROR_CONFIG, "cell must lie in 0 ... %d, got %lld",
                             HL_CELL_COUNT - 1, (long long)attrs->cell);
    if (attrs->has_bias && attrs->cell != HL_CELL_GRU)
        return hl_status_set(HL_ERROR_CONFIG, "only a GRU has a bias of its own, got one");
    if (attrs->has_projection && attrs->cell != HL_CELL_LSTM)
        return hl_status_set(HL_ERROR_CONFIG, "only an LSTM has a projection, got one");
    return HL_OK;
}

/* The weight, (G H,P), and what is over time at operand `at`, `columns` of a unit: then sizes can
 * be read. */
static hl_status check_sizes(const hl_graph *graph, const hl_node *node, int at, const char *what)
{
    const hl_attrs_recurrence *attrs = hl_recurrence_attrs(node);
    const hl_type *w = hl_node_in_type(graph, node, HL_RECURRENCE_W),
                  *x = hl_node_in_type(graph, node, at);
    HL_TRY(check_attrs(attrs));
    HL_TRY(hl_check_float(w, "the weight"));
    HL_TRY(hl_check_rank_exactly(w, 2, "the weight"));
    HL_TRY(hl_check_float(x, what));
    HL_TRY(hl_check_rank_exactly(x, 3, what));
    int64_t G = hl_cell_gates(attrs->cell), rows = w->shape.dim[0], P = w->shape.dim[1];
    if (rows % G || (!attrs->has_projection && rows / G != P))
        return hl_status_set(HL_ERROR_SHAPE,
                             "the weight must have %lld rows for each unit and a column for each "
                             "element of the state, got (%lld, %lld)",
                             (long long)G, (long long)rows, (long long)P);
    if (!hl_dtype_is_16_bit(w->dtype) || x->dtype == HL_DTYPE_F64)
        HL_TRY(hl_check_dtype(w, x->dtype, "the weight"));
    return HL_OK;
}

static hl_status check_count(const hl_node *node, int want)
{
    if (node->n_in == want) return HL_OK;
    return hl_status_set(HL_ERROR_TRACE, "there must be %d operands, got %d", want, node->n_in);
}

static hl_status check_lengths(const hl_graph *graph, const hl_node *node, int at,
                               const hl_recurrence *r)
{
    hl_type want = {HL_DTYPE_I32, hl_shape_1d(r->N)};
    return check_operand(graph, node, at, want, "the lengths");
}

static int count_optional(const hl_recurrence *r)
{
    return (r->c0 >= 0) + (r->bias >= 0) + (r->w_hr >= 0);
}

static hl_status check_optional(const hl_graph *graph, const hl_node *node, const hl_recurrence *r,
                                hl_dtype dtype)
{
    hl_type bias = {dtype, hl_shape_1d(r->G * r->H)};
    if (r->c0 >= 0)
        HL_TRY(check_operand(graph, node, r->c0, hl_type_2d(dtype, r->N, r->H), "the first cell"));
    if (r->bias >= 0) HL_TRY(check_operand(graph, node, r->bias, bias, "the bias"));
    if (r->w_hr >= 0)
        HL_TRY(
            check_operand(graph, node, r->w_hr, hl_type_2d(dtype, r->P, r->H), "the projection"));
    return HL_OK;
}

hl_status hl_infer_recurrence(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_sizes(graph, node, HL_RECURRENCE_Z, "the input"));
    hl_recurrence r = hl_recurrence_of(graph, node);
    hl_dtype dtype = hl_node_in_type(graph, node, HL_RECURRENCE_Z)->dtype;
    hl_type z = hl_type_3d(dtype, r.N, r.T, r.G * r.H);
    HL_TRY(check_count(node, HL_RECURRENCE_LENGTHS + 1 + count_optional(&r)));
    HL_TRY(check_operand(graph, node, HL_RECURRENCE_Z, z, "the input"));
    HL_TRY(check_operand(graph, node, HL_RECURRENCE_H0, hl_type_2d(dtype, r.N, r.P),
                         "the first state"));
    HL_TRY(check_lengths(graph, node, HL_RECURRENCE_LENGTHS, &r));
    HL_TRY(check_optional(graph, node, &r, dtype));
    out_types[HL_RECURRENCE_OUT] = hl_type_3d(dtype, r.N, r.T, r.P);
    out_types[HL_RECURRENCE_H] = hl_type_2d(dtype, r.N, r.P);
    out_types[HL_RECURRENCE_C] = hl_type_2d(dtype, r.N, hl_recurrence_c(&r));
    out_types[HL_RECURRENCE_GATES] = hl_type_3d(dtype, r.N, r.T, hl_recurrence_gates(&r));
    out_types[HL_RECURRENCE_CELLS] = hl_type_3d(dtype, r.N, r.T, hl_recurrence_cells(&r));
    return HL_OK;
}

hl_status hl_infer_recurrence_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_sizes(graph, node, HL_RECURRENCE_GRAD_OUT, "the states"));
    hl_recurrence r = hl_recurrence_of(graph, node);
    hl_dtype dtype = hl_node_in_type(graph, node, HL_RECURRENCE_GRAD_OUT)->dtype;
    hl_type states = hl_type_3d(dtype, r.N, r.T, r.P), state = hl_type_2d(dtype, r.N, r.P);
    const struct {
        int at;
        hl_type type;
        const char *what;
    } want[] = {
        {HL_RECURRENCE_GRAD_DOUT, states, "the states' gradient"},
        {HL_RECURRENCE_GRAD_DH, state, "the last state's gradient"},
        {HL_RECURRENCE_GRAD_DC, hl_type_2d(dtype, r.N, hl_recurrence_c(&r)),
         "the last cell's gradient"},
        {HL_RECURRENCE_GRAD_OUT, states, "the states"},
        {HL_RECURRENCE_GRAD_GATES, hl_type_3d(dtype, r.N, r.T, hl_recurrence_gates(&r)),
         "the gates"},
        {HL_RECURRENCE_GRAD_CELLS, hl_type_3d(dtype, r.N, r.T, hl_recurrence_cells(&r)),
         "the cells"},
        {HL_RECURRENCE_GRAD_H0, state, "the first state"},
    };
    HL_TRY(check_count(node, HL_RECURRENCE_GRAD_INPUTS + count_optional(&r)));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        HL_TRY(check_operand(graph, node, want[i].at, want[i].type, want[i].what));
    HL_TRY(check_lengths(graph, node, HL_RECURRENCE_GRAD_LENGTHS, &r));
    HL_TRY(check_optional(graph, node, &r, dtype));
    out_types[HL_RECURRENCE_GRAD_DZ] = hl_type_3d(dtype, r.N, r.T, r.G * r.H);
    out_types[HL_RECURRENCE_GRAD_DH0] = state;
    out_types[HL_RECURRENCE_GRAD_DC0] = hl_type_2d(dtype, r.N, hl_recurrence_c(&r));
    out_types[HL_RECURRENCE_GRAD_HIDDEN] =
        hl_type_3d(dtype, r.N, r.T, hl_recurrence_if(r.cell == HL_CELL_GRU, r.G * r.H));
    out_types[HL_RECURRENCE_GRAD_STATES] =
        hl_type_3d(dtype, r.N, r.T, hl_recurrence_if(r.has_projection, r.P));
    return HL_OK;
}

/* `row` of the lengths, which is out of range, or in range and out of order. */
void hl_fault_recurrence(const hl_graph *graph, const hl_node *node, int64_t row, int64_t value,
                         char *out_text, size_t bytes)
{
    bool is_layer = hl_op_get(node->op)->flags & HL_OP_WHOLE;
    int64_t T = is_layer ? hl_recurrent_of(graph, node).r.T : hl_recurrence_of(graph, node).T;
    if (value >= 0 && value <= T)
        snprintf(
            out_text, bytes,
            "lengths must be sorted, none more than the one before it, got %lld for row %lld of "
            "the batch; pass enforce_sorted=False",
            (long long)value, (long long)row);
    else
        snprintf(out_text, bytes,
                 "lengths must lie in 0 ... %lld, got %lld for row %lld of the batch", (long long)T,
                 (long long)value, (long long)row);
}

hl_cost hl_cost_recurrence(const hl_graph *graph, const hl_node *node)
{
    hl_recurrence r = hl_recurrence_of(graph, node);
    hl_cost cost = hl_cost_bytes(graph, node);
    double of_state = (double)(r.G * r.H) * (double)r.P,
           of_projection = r.has_projection ? (double)r.H * (double)r.P : 0;
    cost.flops = 2 * (double)r.N * (double)r.T * (of_state + of_projection);
    cost.side = r.N < r.P ? r.N : r.P;
    return cost;
}

/* ---- the gradient ---------------------------------------------------------------------------- */

static hl_status build_zeros(hl_graph *graph, hl_id like, hl_id *out_id)
{
    hl_type type = graph->values[like].type;
    return hl_build_full(graph, &type, 0, out_id);
}

/* (N,K) as (N,1,K), or (N,T,K) as (N T,K). */
static hl_status build_as_step(hl_graph *graph, hl_id x, hl_id *out_id)
{
    const int64_t *dim = hl_graph_shape(graph, x)->dim;
    hl_shape shape = {3, {dim[0], 1, dim[1]}};
    return hl_build_reshape(graph, x, &shape, out_id);
}

static hl_status build_as_rows(hl_graph *graph, hl_id x, hl_id *out_id)
{
    const int64_t *dim = hl_graph_shape(graph, x)->dim;
    hl_shape shape = {2, {dim[0] * dim[1], dim[2]}};
    return hl_build_reshape(graph, x, &shape, out_id);
}

static hl_status build_concat(hl_graph *graph, const hl_id *parts, int n, int axis, hl_id *out_id)
{
    hl_attrs attrs = {.axis = {axis}};
    return hl_graph_add(graph, HL_OP_CONCAT, parts, n, &attrs, out_id);
}

/* 0, 1, ... T - 1 as (1,T,1) of int32. */
static hl_status build_times(hl_graph *graph, int64_t T, hl_id *out_id)
{
    hl_type type = {HL_DTYPE_I32, {3, {1, T, 1}}};
    hl_attrs attrs = {.scan = {.axis = 1}};
    hl_id ones;
    HL_TRY(hl_build_full(graph, &type, 1, &ones));
    HL_TRY(hl_graph_add(graph, HL_OP_CUMSUM, &ones, 1, &attrs, out_id));
    return hl_build_binary(graph, HL_OP_SUB, *out_id, ones, out_id);
}

/* The state before each step (N,T,P), of the states behind it. Where a row is shorter than T and
 * goes from its end, its first step is not the last of all. */
static hl_status build_states_before(hl_graph *graph, const hl_recurrence *r, hl_id out, hl_id h0,
                                     hl_id lengths, hl_id *out_id)
{
    hl_id parts[2], times, last, begins;
    hl_shape per_row = {3, {r->N, 1, 1}};
    HL_TRY(build_as_step(graph, h0, &parts[r->is_reverse]));
    if (r->T == 1) return *out_id = parts[r->is_reverse], HL_OK;
    HL_TRY(hl_build_slice(graph, out, 1, r->is_reverse, r->T - !r->is_reverse,
                          &parts[!r->is_reverse]));
    HL_TRY(build_concat(graph, parts, 2, 1, out_id));
    if (!r->is_reverse) return HL_OK;
    HL_TRY(build_times(graph, r->T, &times));
    HL_TRY(hl_build_reshape(graph, lengths, &per_row, &last));
    HL_TRY(hl_build_binary_number(graph, HL_OP_SUB, last, 1, &last));
    HL_TRY(hl_build_binary(graph, HL_OP_EQ, times, last, &begins));
    return hl_build_where(graph, begins, parts[1], *out_id, out_id);
}

/* a^T b, summed over rows and steps, of (N,T,.) both. */
static hl_status build_weight_grad(hl_graph *graph, hl_id a, hl_id b, hl_id weight, hl_id *out_id)
{
    HL_TRY(build_as_rows(graph, a, &a));
    HL_TRY(build_as_rows(graph, b, &b));
    HL_TRY(hl_build_matmul(graph, a, b, true, false, out_id));
    return hl_build_grad_for(graph, *out_id, weight, out_id);
}

/* o tanh(c), what an LSTM's projection gets: (N,T,H). */
static hl_status build_unprojected(hl_graph *graph, const hl_recurrence *r, hl_id gates,
                                   hl_id cells, hl_id *out_id)
{
    hl_id o;
    HL_TRY(hl_build_slice(graph, gates, 2, 3 * r->H, 4 * r->H, &o));
    HL_TRY(hl_build_unary(graph, HL_OP_TANH, cells, out_id));
    return hl_build_binary(graph, HL_OP_MUL, o, *out_id, out_id);
}

hl_status hl_build_recurrence_grads(hl_graph *graph, const hl_recurrence_run *run,
                                    hl_recurrence_grads *out_grads)
{
    const hl_recurrence *r = &run->r;
    const int64_t rows[] = {0, 1};
    hl_id in[HL_RECURRENCE_GRAD_INPUTS + 2] = {[HL_RECURRENCE_GRAD_W] = run->w,
                                               [HL_RECURRENCE_GRAD_DOUT] = run->dout,
                                               [HL_RECURRENCE_GRAD_DH] = run->dh,
                                               [HL_RECURRENCE_GRAD_DC] = run->dc,
                                               [HL_RECURRENCE_GRAD_OUT] = run->out,
                                               [HL_RECURRENCE_GRAD_GATES] = run->gates,
                                               [HL_RECURRENCE_GRAD_CELLS] = run->cells,
                                               [HL_RECURRENCE_GRAD_H0] = run->h0,
                                               [HL_RECURRENCE_GRAD_LENGTHS] = run->lengths};
    hl_id grad, before, full;
    int32_t n_in = HL_RECURRENCE_GRAD_INPUTS;
    hl_attrs attrs = run->attrs;
    attrs.recurrence.has_bias = false;
    if (run->c0 != HL_NONE) in[n_in++] = run->c0;
    if (run->w_hr != HL_NONE) in[n_in++] = run->w_hr;
    HL_TRY(hl_graph_add(graph, HL_OP_RECURRENCE_GRAD, in, n_in, &attrs, &grad));
    hl_id hidden =
        grad + (r->cell == HL_CELL_GRU ? HL_RECURRENCE_GRAD_HIDDEN : HL_RECURRENCE_GRAD_DZ);
    *out_grads = (hl_recurrence_grads){.dz = grad + HL_RECURRENCE_GRAD_DZ,
                                       .dh0 = grad + HL_RECURRENCE_GRAD_DH0,
                                       .dc0 = grad + HL_RECURRENCE_GRAD_DC0,
                                       .bias = HL_NONE,
                                       .w = HL_NONE,
                                       .w_hr = HL_NONE};
    if (run->needs_bias) HL_TRY(hl_build_sum(graph, hidden, rows, 2, false, &out_grads->bias));
    if (run->needs_w) {
        HL_TRY(build_states_before(graph, r, run->out, run->h0, run->lengths, &before));
        HL_TRY(build_weight_grad(graph, hidden, before, run->w, &out_grads->w));
    }
    if (!run->needs_w_hr) return HL_OK;
    HL_TRY(build_unprojected(graph, r, run->gates, run->cells, &full));
    return build_weight_grad(graph, grad + HL_RECURRENCE_GRAD_STATES, full, run->w_hr,
                             &out_grads->w_hr);
}

hl_status hl_vjp_recurrence(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                            hl_id *din)
{
    const hl_node node = graph->nodes[id];
    const hl_recurrence r = hl_recurrence_of(graph, &node);
    hl_id given[3];
    hl_recurrence_grads grads;
    if (dout[HL_RECURRENCE_GATES] != HL_NONE || dout[HL_RECURRENCE_CELLS] != HL_NONE)
        return hl_status_set(HL_ERROR_TRACE, "recurrence: gates and cells have no gradient");
    for (int i = 0; i < 3; i++) {
        given[i] = dout[i];
        if (dout[i] == HL_NONE) HL_TRY(build_zeros(graph, node.out + i, &given[i]));
    }
    const hl_recurrence_run run = {.attrs = node.attrs,
                                   .r = r,
                                   .w = node.in[HL_RECURRENCE_W],
                                   .h0 = node.in[HL_RECURRENCE_H0],
                                   .lengths = node.in[HL_RECURRENCE_LENGTHS],
                                   .c0 = r.c0 >= 0 ? node.in[r.c0] : (hl_id)HL_NONE,
                                   .w_hr = r.w_hr >= 0 ? node.in[r.w_hr] : (hl_id)HL_NONE,
                                   .out = node.out + HL_RECURRENCE_OUT,
                                   .gates = node.out + HL_RECURRENCE_GATES,
                                   .cells = node.out + HL_RECURRENCE_CELLS,
                                   .dout = given[0],
                                   .dh = given[1],
                                   .dc = given[2],
                                   .needs_w = need[HL_RECURRENCE_W],
                                   .needs_bias = r.bias >= 0 && need[r.bias],
                                   .needs_w_hr = r.w_hr >= 0 && need[r.w_hr]};
    HL_TRY(hl_build_recurrence_grads(graph, &run, &grads));
    din[HL_RECURRENCE_W] = grads.w;
    din[HL_RECURRENCE_Z] = grads.dz;
    din[HL_RECURRENCE_H0] = grads.dh0;
    if (r.c0 >= 0) din[r.c0] = grads.dc0;
    if (r.bias >= 0) din[r.bias] = grads.bias;
    if (r.w_hr >= 0) din[r.w_hr] = grads.w_hr;
    return HL_OK;
}

/* ---- step by step ---------------------------------------------------------------------------- */

/* A node taken apart; values of one step. */
typedef struct unrolled {
    hl_graph *graph;
    hl_node node;
    hl_recurrence r;
    hl_id valid; /* (N,1) bool: this step is one of the row's */
    int64_t t;
} unrolled;

static hl_status begin_step(unrolled *u, int lengths, int64_t step)
{
    hl_shape per_row = {2, {u->r.N, 1}};
    hl_id length;
    u->t = hl_recurrence_time(&u->r, step);
    HL_TRY(hl_build_reshape(u->graph, u->node.in[lengths], &per_row, &length));
    return hl_build_binary_number(u->graph, HL_OP_GT, length, (double)u->t, &u->valid);
}

/* Step t of (N,T,K): (N,K). */
static hl_status build_step(const unrolled *u, hl_id x, int64_t t, hl_id *out_id)
{
    hl_shape shape = {2, {u->r.N, hl_graph_shape(u->graph, x)->dim[2]}};
    HL_TRY(hl_build_slice(u->graph, x, 1, t, t + 1, out_id));
    return hl_build_reshape(u->graph, *out_id, &shape, out_id);
}

/* Gate g of (N,G H): (N,H). */
static hl_status build_gate(const unrolled *u, hl_id x, int g, hl_id *out_id)
{
    return hl_build_slice(u->graph, x, 1, g * u->r.H, (g + 1) * u->r.H, out_id);
}

static hl_status build_product(const unrolled *u, hl_id a, hl_id b, bool trans_b, hl_id *out_id)
{
    hl_dtype own = hl_graph_dtype(u->graph, a), narrow = hl_graph_dtype(u->graph, b);
    hl_attrs attrs = {.matmul = {.trans_b = trans_b, .float32_out = own != narrow}};
    if (own != narrow) HL_TRY(hl_build_cast(u->graph, a, narrow, &a));
    hl_id in[2] = {a, b};
    return hl_graph_add(u->graph, HL_OP_MATMUL, in, 2, &attrs, out_id);
}

/* The projection's weight, rounded where the other one is. */
static hl_status find_projection(const unrolled *u, hl_id *out_id)
{
    hl_dtype dtype = hl_graph_dtype(u->graph, u->node.in[HL_RECURRENCE_W]);
    *out_id = u->node.in[u->r.w_hr];
    return hl_build_cast(u->graph, *out_id, dtype, out_id);
}

static hl_status build_mul(const unrolled *u, hl_id a, hl_id b, hl_id *out_id)
{
    return hl_build_binary(u->graph, HL_OP_MUL, a, b, out_id);
}

static hl_status build_add(const unrolled *u, hl_id a, hl_id b, hl_id *out_id)
{
    return hl_build_binary(u->graph, HL_OP_ADD, a, b, out_id);
}

/* 1 - x */
static hl_status build_rest(const unrolled *u, hl_id x, hl_id *out_id)
{
    hl_id one;
    HL_TRY(hl_build_number_like(u->graph, x, 1, &one));
    return hl_build_binary(u->graph, HL_OP_SUB, one, x, out_id);
}

/* d (1 - y^2), d y (1 - y): through a tanh, and a sigmoid, whose result is y. */
static hl_status build_through_tanh(const unrolled *u, hl_id d, hl_id y, hl_id *out_id)
{
    hl_id square;
    HL_TRY(build_mul(u, y, y, &square));
    HL_TRY(build_rest(u, square, &square));
    return build_mul(u, d, square, out_id);
}

static hl_status build_through_sigmoid(const unrolled *u, hl_id d, hl_id y, hl_id *out_id)
{
    hl_id rest;
    HL_TRY(build_rest(u, y, &rest));
    HL_TRY(build_mul(u, y, rest, &rest));
    return build_mul(u, d, rest, out_id);
}

/* 0 at steps that are none of the row's. */
static hl_status keep_valid(const unrolled *u, hl_id x, hl_id *out_id)
{
    return hl_build_keep_if(u->graph, u->valid, x, out_id);
}

/* What a step makes, of `state` h and c, which become the next ones. */
typedef struct step {
    hl_id h, c, out, gates, cells;
} step;

static hl_status run_lstm(const unrolled *u, hl_id sums, step *s)
{
    static const hl_op functions[] = {HL_OP_SIGMOID, HL_OP_SIGMOID, HL_OP_TANH, HL_OP_SIGMOID};
    hl_id gate[4], kept, w_hr;
    for (int g = 0; g < 4; g++) {
        HL_TRY(build_gate(u, sums, g, &gate[g]));
        HL_TRY(hl_build_unary(u->graph, functions[g], gate[g], &gate[g]));
    }
    HL_TRY(build_mul(u, gate[1], s->c, &kept));
    HL_TRY(build_mul(u, gate[0], gate[2], &s->cells));
    HL_TRY(build_add(u, kept, s->cells, &s->cells));
    HL_TRY(hl_build_unary(u->graph, HL_OP_TANH, s->cells, &s->out));
    HL_TRY(build_mul(u, gate[3], s->out, &s->out));
    if (u->r.has_projection) {
        HL_TRY(find_projection(u, &w_hr));
        HL_TRY(build_product(u, s->out, w_hr, true, &s->out));
    }
    return build_concat(u->graph, gate, 4, 1, &s->gates);
}

static hl_status run_gru(const unrolled *u, hl_id z, hl_id products, step *s)
{
    hl_id gate[3], h[3], kept, rest;
    for (int g = 0; g < 3; g++) {
        HL_TRY(build_gate(u, z, g, &gate[g]));
        HL_TRY(build_gate(u, products, g, &h[g]));
    }
    for (int g = 0; g < 2; g++) {
        HL_TRY(build_add(u, gate[g], h[g], &gate[g]));
        HL_TRY(hl_build_unary(u->graph, HL_OP_SIGMOID, gate[g], &gate[g]));
    }
    s->cells = h[2];
    HL_TRY(build_mul(u, gate[0], h[2], &h[2]));
    HL_TRY(build_add(u, gate[2], h[2], &gate[2]));
    HL_TRY(hl_build_unary(u->graph, HL_OP_TANH, gate[2], &gate[2]));
    HL_TRY(build_rest(u, gate[1], &rest));
    HL_TRY(build_mul(u, rest, gate[2], &rest));
    HL_TRY(build_mul(u, gate[1], s->h, &kept));
    HL_TRY(build_add(u, rest, kept, &s->out));
    return build_concat(u->graph, gate, 3, 1, &s->gates);
}

static hl_status run_step(const unrolled *u, step *s)
{
    hl_id z, sums;
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_Z], u->t, &z));
    HL_TRY(build_product(u, s->h, u->node.in[HL_RECURRENCE_W], true, &sums));
    if (u->r.bias >= 0) HL_TRY(build_add(u, sums, u->node.in[u->r.bias], &sums));
    if (u->r.cell == HL_CELL_GRU) return run_gru(u, z, sums, s);
    HL_TRY(build_add(u, z, sums, &sums));
    if (u->r.cell == HL_CELL_LSTM) return run_lstm(u, sums, s);
    return hl_build_unary(u->graph, u->r.cell == HL_CELL_TANH ? HL_OP_TANH : HL_OP_RELU, sums,
                          &s->out);
}

/* Values of all steps, in the order of time, of those of each. */
static hl_status join_steps(hl_graph *graph, hl_id *list, int64_t n, hl_id *out_id)
{
    for (int64_t t = 0; t < n; t++) HL_TRY(build_as_step(graph, list[t], &list[t]));
    return build_concat(graph, list, (int)n, 1, out_id);
}

/* Room for `n` lists of a value for each step. */
static hl_status open_lists(hl_graph *graph, const hl_recurrence *r, int n, hl_id **out_lists)
{
    void *memory = NULL;
    HL_TRY(hl_arena_alloc(&graph->arena, (size_t)(r->T * n) * sizeof(hl_id), &memory));
    for (int i = 0; i < n; i++) out_lists[i] = (hl_id *)memory + i * r->T;
    return HL_OK;
}

/* Outputs over time without steps are empty, and those of cells that have none. */
static hl_status fill_empty(hl_graph *graph, hl_id out, int n, hl_id *out_values)
{
    for (int i = 0; i < n; i++)
        if (hl_shape_numel(hl_graph_shape(graph, out + i)) == 0)
            HL_TRY(build_zeros(graph, out + i, &out_values[i]));
    return HL_OK;
}

hl_status hl_lower_recurrence(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    unrolled u = {.graph = graph, .node = graph->nodes[id]};
    hl_id *list[3];
    hl_dtype dtype = hl_graph_dtype(graph, u.node.in[HL_RECURRENCE_Z]);
    if (hl_dtype_is_16_bit(dtype)) return hl_lower_widened(graph, id, out_values);
    u.r = hl_recurrence_of(graph, &u.node);
    step s = {.h = u.node.in[HL_RECURRENCE_H0],
              .c = u.r.c0 >= 0 ? u.node.in[u.r.c0] : (hl_id)HL_NONE};
    HL_TRY(open_lists(graph, &u.r, 3, list));
    for (int64_t i = 0; i < u.r.T; i++) {
        HL_TRY(begin_step(&u, HL_RECURRENCE_LENGTHS, i));
        HL_TRY(run_step(&u, &s));
        HL_TRY(hl_build_where(graph, u.valid, s.out, s.h, &s.h));
        if (s.c != HL_NONE) HL_TRY(hl_build_where(graph, u.valid, s.cells, s.c, &s.c));
        HL_TRY(keep_valid(&u, s.out, &list[0][u.t]));
        if (!hl_recurrence_keeps(&u.r)) continue;
        HL_TRY(keep_valid(&u, s.gates, &list[1][u.t]));
        HL_TRY(keep_valid(&u, s.cells, &list[2][u.t]));
    }
    out_values[HL_RECURRENCE_H] = s.h;
    out_values[HL_RECURRENCE_C] = s.c;
    if (u.r.T > 0) {
        HL_TRY(join_steps(graph, list[0], u.r.T, &out_values[HL_RECURRENCE_OUT]));
        if (hl_recurrence_keeps(&u.r)) {
            HL_TRY(join_steps(graph, list[1], u.r.T, &out_values[HL_RECURRENCE_GATES]));
            HL_TRY(join_steps(graph, list[2], u.r.T, &out_values[HL_RECURRENCE_CELLS]));
        }
    }
    return fill_empty(graph, u.node.out, HL_RECURRENCE_OUTPUTS, out_values);
}

/* What a step's gradient goes on with and gives: dh and dc are of the state behind the step, then
 * of that before it. */
typedef struct grad_step {
    hl_id dh, dc, dz, hidden, states;
} grad_step;

/* Step t of something, or of what was before the first one. */
static hl_status build_before(const unrolled *u, hl_id over_time, hl_id first, hl_id *out_id)
{
    int64_t before = u->r.is_reverse ? u->t + 1 : u->t - 1;
    hl_id length, begins, at_step;
    hl_shape per_row = {2, {u->r.N, 1}};
    if (before < 0 || before >= u->r.T) return *out_id = first, HL_OK;
    HL_TRY(build_step(u, over_time, before, &at_step));
    *out_id = at_step;
    if (!u->r.is_reverse) return HL_OK;
    HL_TRY(hl_build_reshape(u->graph, u->node.in[HL_RECURRENCE_GRAD_LENGTHS], &per_row, &length));
    HL_TRY(hl_build_binary_number(u->graph, HL_OP_EQ, length, (double)(u->t + 1), &begins));
    return hl_build_where(u->graph, begins, first, at_step, out_id);
}

static hl_status run_lstm_grad(const unrolled *u, hl_id dh, grad_step *s)
{
    hl_id all, gate[4], cells, before, tanh_c, d[4], dc, w_hr;
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_GATES], u->t, &all));
    for (int g = 0; g < 4; g++) HL_TRY(build_gate(u, all, g, &gate[g]));
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_CELLS], u->t, &cells));
    HL_TRY(build_before(u, u->node.in[HL_RECURRENCE_GRAD_CELLS], u->node.in[u->r.c0], &before));
    HL_TRY(hl_build_unary(u->graph, HL_OP_TANH, cells, &tanh_c));
    if (u->r.has_projection) {
        HL_TRY(keep_valid(u, dh, &s->states));
        HL_TRY(find_projection(u, &w_hr));
        HL_TRY(build_product(u, s->states, w_hr, false, &dh));
    }
    HL_TRY(build_mul(u, dh, gate[3], &dc));
    HL_TRY(build_through_tanh(u, dc, tanh_c, &dc));
    HL_TRY(build_add(u, dc, s->dc, &dc));
    HL_TRY(build_mul(u, dc, gate[2], &d[0]));
    HL_TRY(build_through_sigmoid(u, d[0], gate[0], &d[0]));
    HL_TRY(build_mul(u, dc, before, &d[1]));
    HL_TRY(build_through_sigmoid(u, d[1], gate[1], &d[1]));
    HL_TRY(build_mul(u, dc, gate[0], &d[2]));
    HL_TRY(build_through_tanh(u, d[2], gate[2], &d[2]));
    HL_TRY(build_mul(u, dh, tanh_c, &d[3]));
    HL_TRY(build_through_sigmoid(u, d[3], gate[3], &d[3]));
    HL_TRY(build_mul(u, dc, gate[1], &dc));
    HL_TRY(hl_build_where(u->graph, u->valid, dc, s->dc, &s->dc));
    return build_concat(u->graph, d, 4, 1, &s->dz);
}

/* *out_kept: what the state before gets of the state behind. */
static hl_status run_gru_grad(const unrolled *u, hl_id dh, grad_step *s, hl_id *out_kept)
{
    hl_id all, gate[3], product, before, d[3], rest;
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_GATES], u->t, &all));
    for (int g = 0; g < 3; g++) HL_TRY(build_gate(u, all, g, &gate[g]));
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_CELLS], u->t, &product));
    HL_TRY(build_before(u, u->node.in[HL_RECURRENCE_GRAD_OUT], u->node.in[HL_RECURRENCE_GRAD_H0],
                        &before));
    HL_TRY(hl_build_binary(u->graph, HL_OP_SUB, before, gate[2], &d[1]));
    HL_TRY(build_mul(u, dh, d[1], &d[1]));
    HL_TRY(build_through_sigmoid(u, d[1], gate[1], &d[1]));
    HL_TRY(build_rest(u, gate[1], &rest));
    HL_TRY(build_mul(u, dh, rest, &d[2]));
    HL_TRY(build_through_tanh(u, d[2], gate[2], &d[2]));
    HL_TRY(build_mul(u, d[2], product, &d[0]));
    HL_TRY(build_through_sigmoid(u, d[0], gate[0], &d[0]));
    HL_TRY(build_concat(u->graph, d, 3, 1, &s->dz));
    HL_TRY(build_mul(u, d[2], gate[0], &d[2]));
    HL_TRY(build_concat(u->graph, d, 3, 1, &s->hidden));
    return build_mul(u, dh, gate[1], out_kept);
}

static hl_status run_step_grad(const unrolled *u, grad_step *s)
{
    hl_id dh, out, products, kept = HL_NONE;
    HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_DOUT], u->t, &dh));
    HL_TRY(build_add(u, dh, s->dh, &dh));
    if (u->r.cell == HL_CELL_LSTM) {
        HL_TRY(run_lstm_grad(u, dh, s));
    } else if (u->r.cell == HL_CELL_GRU) {
        HL_TRY(run_gru_grad(u, dh, s, &kept));
        HL_TRY(keep_valid(u, s->hidden, &s->hidden));
    } else {
        HL_TRY(build_step(u, u->node.in[HL_RECURRENCE_GRAD_OUT], u->t, &out));
        if (u->r.cell == HL_CELL_TANH) {
            HL_TRY(build_through_tanh(u, dh, out, &s->dz));
        } else {
            HL_TRY(hl_build_binary_number(u->graph, HL_OP_GT, out, 0, &out));
            HL_TRY(hl_build_keep_if(u->graph, out, dh, &s->dz));
        }
    }
    HL_TRY(keep_valid(u, s->dz, &s->dz));
    HL_TRY(build_product(u, kept == HL_NONE ? s->dz : s->hidden, u->node.in[HL_RECURRENCE_GRAD_W],
                         false, &products));
    if (kept != HL_NONE) HL_TRY(build_add(u, products, kept, &products));
    return hl_build_where(u->graph, u->valid, products, s->dh, &s->dh);
}

hl_status hl_lower_recurrence_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    unrolled u = {.graph = graph, .node = graph->nodes[id]};
    hl_id *list[3];
    hl_dtype dtype = hl_graph_dtype(graph, u.node.in[HL_RECURRENCE_GRAD_OUT]);
    if (hl_dtype_is_16_bit(dtype)) return hl_lower_widened(graph, id, out_values);
    u.r = hl_recurrence_of(graph, &u.node);
    grad_step s = {.dh = u.node.in[HL_RECURRENCE_GRAD_DH], .dc = u.node.in[HL_RECURRENCE_GRAD_DC]};
    HL_TRY(open_lists(graph, &u.r, 3, list));
    for (int64_t i = u.r.T - 1; i >= 0; i--) {
        HL_TRY(begin_step(&u, HL_RECURRENCE_GRAD_LENGTHS, i));
        HL_TRY(run_step_grad(&u, &s));
        list[0][u.t] = s.dz;
        list[1][u.t] = s.hidden;
        list[2][u.t] = s.states;
    }
    out_values[HL_RECURRENCE_GRAD_DH0] = s.dh;
    out_values[HL_RECURRENCE_GRAD_DC0] = s.dc;
    if (u.r.T > 0) {
        HL_TRY(join_steps(graph, list[0], u.r.T, &out_values[HL_RECURRENCE_GRAD_DZ]));
        if (u.r.cell == HL_CELL_GRU)
            HL_TRY(join_steps(graph, list[1], u.r.T, &out_values[HL_RECURRENCE_GRAD_HIDDEN]));
        if (u.r.has_projection)
            HL_TRY(join_steps(graph, list[2], u.r.T, &out_values[HL_RECURRENCE_GRAD_STATES]));
    }
    return fill_empty(graph, u.node.out, HL_RECURRENCE_GRAD_OUTPUTS, out_values);
}
