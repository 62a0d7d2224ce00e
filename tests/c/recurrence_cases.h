/* Cases of recurrences and their gradients for any device: all cells in both directions, rows of
 * all lengths, units that are no vectors, several tiles of rows; in reverse a row waits for its
 * first step with what scratch holds. */
#ifndef TESTS_C_RECURRENCE_CASES_H
#define TESTS_C_RECURRENCE_CASES_H

#include "ir/recurrence.h"
#include "tests/c/case.h"

static void case_check(op_case *c);

/* Of the weights, and of all else. */
static hl_dtype weights = HL_DTYPE_F32, floats = HL_DTYPE_F32;

typedef struct sizes {
    int64_t N, T, H, P; /* P: of an LSTM's projection */
} sizes;

static const sizes all_sizes[] = {
    {1, 1, 1, 1}, {2, 3, 4, 2}, {3, 5, 16, 5}, {5, 4, 33, 20}, {31, 2, 7, 3}, {70, 3, 40, 33},
};
enum { N_SIZES = sizeof all_sizes / sizeof *all_sizes };

typedef struct kind {
    hl_cell cell;
    bool has_bias, has_projection;
} kind;

static const kind all_kinds[] = {
    {HL_CELL_TANH, false, false}, {HL_CELL_RELU, false, false}, {HL_CELL_LSTM, false, false},
    {HL_CELL_LSTM, false, true},  {HL_CELL_GRU, false, false},  {HL_CELL_GRU, true, false},
};
enum { N_KINDS = sizeof all_kinds / sizeof *all_kinds };

static hl_type type_of(int rank, int64_t a, int64_t b, int64_t c)
{
    return (hl_type){floats, {rank, {a, b, c}}};
}

/* A state has P products of rounded factors, and T steps follow. */
static void set_attrs(op_case *c, const kind *k, bool reverse)
{
    hl_dtype rounded = floats == HL_DTYPE_F32 ? weights : floats;
    c->attrs.recurrence.cell = k->cell;
    c->attrs.recurrence.reverse = reverse;
    c->attrs.recurrence.has_projection = k->has_projection;
    c->tolerance = rounded == HL_DTYPE_F32 ? 1e-4 : rounded == HL_DTYPE_F16 ? 1e-2 : 8e-2;
}

/* Floats within [-1, 1], of which those of the weight and of the projection are small. */
static void fill(op_case *c, int lengths, int projection, int64_t T)
{
    for (int i = 0; i < c->n_in; i++) {
        float most = i == 0 || i == projection ? 0.3F : 1;
        if (i == lengths)
            case_fill(c, i, 0, T + 1);
        else
            case_fill(c, i, -most, most);
    }
}

static op_case make_forward(const sizes *n, const kind *k, bool reverse)
{
    op_case c = {.op = HL_OP_RECURRENCE, .n_in = 4, .n_out = HL_RECURRENCE_OUTPUTS};
    int64_t gates = hl_cell_gates(k->cell) * n->H, P = k->has_projection ? n->P : n->H;
    bool is_lstm = k->cell == HL_CELL_LSTM, keeps = is_lstm || k->cell == HL_CELL_GRU;
    set_attrs(&c, k, reverse);
    c.attrs.recurrence.has_bias = k->has_bias;
    c.in[HL_RECURRENCE_W] = (hl_type){weights, {2, {gates, P}}};
    c.in[HL_RECURRENCE_Z] = type_of(3, n->N, n->T, gates);
    c.in[HL_RECURRENCE_H0] = type_of(2, n->N, P, 0);
    c.in[HL_RECURRENCE_LENGTHS] = (hl_type){HL_DTYPE_I32, hl_shape_1d(n->N)};
    if (is_lstm) c.in[c.n_in++] = type_of(2, n->N, n->H, 0);
    if (k->has_bias) c.in[c.n_in++] = type_of(1, gates, 0, 0);
    if (k->has_projection) c.in[c.n_in++] = type_of(2, P, n->H, 0);
    fill(&c, HL_RECURRENCE_LENGTHS, k->has_projection ? c.n_in - 1 : -1, n->T);
    c.out[HL_RECURRENCE_OUT] = type_of(3, n->N, n->T, P);
    c.out[HL_RECURRENCE_H] = type_of(2, n->N, P, 0);
    c.out[HL_RECURRENCE_C] = type_of(2, n->N, is_lstm ? n->H : 0, 0);
    c.out[HL_RECURRENCE_GATES] = type_of(3, n->N, n->T, keeps ? gates : 0);
    c.out[HL_RECURRENCE_CELLS] = type_of(3, n->N, n->T, keeps ? n->H : 0);
    return c;
}

static op_case make_gradient(const sizes *n, const kind *k, bool reverse)
{
    op_case c = {.op = HL_OP_RECURRENCE_GRAD,
                 .n_in = HL_RECURRENCE_GRAD_INPUTS,
                 .n_out = HL_RECURRENCE_GRAD_OUTPUTS};
    int64_t gates = hl_cell_gates(k->cell) * n->H, P = k->has_projection ? n->P : n->H;
    bool is_lstm = k->cell == HL_CELL_LSTM, keeps = is_lstm || k->cell == HL_CELL_GRU;
    hl_type states = type_of(3, n->N, n->T, P), state = type_of(2, n->N, P, 0),
            cell = type_of(2, n->N, is_lstm ? n->H : 0, 0);
    set_attrs(&c, k, reverse);
    c.in[HL_RECURRENCE_GRAD_W] = (hl_type){weights, {2, {gates, P}}};
    c.in[HL_RECURRENCE_GRAD_DOUT] = c.in[HL_RECURRENCE_GRAD_OUT] = states;
    c.in[HL_RECURRENCE_GRAD_DH] = c.in[HL_RECURRENCE_GRAD_H0] = state;
    c.in[HL_RECURRENCE_GRAD_DC] = cell;
    c.in[HL_RECURRENCE_GRAD_GATES] = type_of(3, n->N, n->T, keeps ? gates : 0);
    c.in[HL_RECURRENCE_GRAD_CELLS] = type_of(3, n->N, n->T, keeps ? n->H : 0);
    c.in[HL_RECURRENCE_GRAD_LENGTHS] = (hl_type){HL_DTYPE_I32, hl_shape_1d(n->N)};
    if (is_lstm) c.in[c.n_in++] = cell;
    if (k->has_projection) c.in[c.n_in++] = type_of(2, P, n->H, 0);
    fill(&c, HL_RECURRENCE_GRAD_LENGTHS, k->has_projection ? c.n_in - 1 : -1, n->T);
    c.out[HL_RECURRENCE_GRAD_DZ] = type_of(3, n->N, n->T, gates);
    c.out[HL_RECURRENCE_GRAD_DH0] = state;
    c.out[HL_RECURRENCE_GRAD_DC0] = cell;
    c.out[HL_RECURRENCE_GRAD_HIDDEN] = type_of(3, n->N, n->T, k->cell == HL_CELL_GRU ? gates : 0);
    c.out[HL_RECURRENCE_GRAD_STATES] = type_of(3, n->N, n->T, k->has_projection ? P : 0);
    return c;
}

static void test_recurrence(const sizes *n, const kind *k, bool reverse)
{
    op_case forward = make_forward(n, k, reverse), gradient = make_gradient(n, k, reverse);
    check_case("cell %d, bias %d, projection %d, reverse %d, %s and %s, %lld x %lld x %lld",
               k->cell, k->has_bias, k->has_projection, reverse, hl_dtype_name(weights),
               hl_dtype_name(floats), (long long)n->N, (long long)n->T, (long long)n->H);
    case_check(&forward);
    case_check(&gradient);
}

#endif
