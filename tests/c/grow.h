/* Random graphs for tests: products, sums, concats, rows added and pointwise ops on a few shapes,
 * with commits. */
#ifndef TESTS_C_GROW_H
#define TESTS_C_GROW_H

#include "ops/build.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"

/* A value of the given shape from a pool of those that exist. */
static inline hl_id pick(dice *d, const hl_id *pool, int n)
{
    return pool[roll(d, n)];
}

enum { ROWS = 24, COLS = 6, MAX_VALUES = 64, N_INDEX = 5 };

/* Thirds in another order, one of them changed: their bytes begin where operands may. */
static inline hl_status turn_thirds(hl_graph *graph, dice *d, hl_id x, hl_id *out_id)
{
    hl_attrs split = {.split = {0, ROWS / 3}}, axis = {.axis = {0}};
    hl_id third, parts[3];
    HL_TRY(hl_graph_add(graph, HL_OP_SPLIT, &x, 1, &split, &third));
    int first = roll(d, 3), changed = roll(d, 3);
    for (int i = 0; i < 3; i++) {
        parts[i] = third + (first + i) % 3;
        if (i == changed) HL_TRY(hl_build_unary(graph, HL_OP_SOFTMAX, parts[i], &parts[i]));
        if (roll(d, 2)) HL_TRY(hl_build_unary(graph, HL_OP_TANH, parts[i], &parts[i]));
    }
    return hl_graph_add(graph, HL_OP_CONCAT, parts, 3, &axis, out_id);
}

/* Zeros or a value with rows of another added, now and then into what is already a sum. */
static inline hl_status add_rows(hl_graph *graph, dice *d, hl_id to, hl_id from, hl_id *out_id)
{
    hl_type full = {HL_DTYPE_F32, hl_shape_2d(ROWS, COLS)};
    hl_type index = {HL_DTYPE_I64, hl_shape_1d(N_INDEX)};
    int64_t rows[N_INDEX];
    hl_id in[3] = {to};
    hl_attrs axis = {.axis = {0}};
    for (int i = 0; i < N_INDEX; i++) rows[i] = roll(d, ROWS);
    if (roll(d, 2)) HL_TRY(hl_build_full(graph, &full, 0, &in[0]));
    HL_TRY(hl_graph_const(graph, index, rows, &in[1]));
    HL_TRY(hl_build_slice(graph, from, 0, 1, 1 + N_INDEX, &in[2]));
    HL_TRY(hl_graph_add(graph, HL_OP_INDEX_ADD, in, 3, &axis, out_id));
    if (roll(d, 3)) return HL_OK;
    if (roll(d, 2)) in[0] = *out_id;
    hl_id again;
    HL_TRY(hl_graph_add(graph, HL_OP_INDEX_ADD, in, 3, &axis, &again));
    return hl_build_binary(graph, HL_OP_ADD, again, *out_id, out_id);
}

/* Ops on (ROWS, COLS) values, column vectors and row vectors, with commits and outputs. */
static inline hl_status grow_graph(hl_graph *graph, dice *d, int n_ops)
{
    hl_id full[MAX_VALUES], rows[MAX_VALUES];
    int n_full = 0, n_rows = 0;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(ROWS, COLS)}, row = {HL_DTYPE_F32, hl_shape_1d(COLS)};
    hl_type square = {HL_DTYPE_F32, hl_shape_2d(COLS, COLS)};
    int32_t store;
    hl_id weight, state;
    HL_TRY(hl_graph_input(graph, "x", type, &full[n_full++]));
    HL_TRY(hl_graph_store(graph, "param", HL_DTYPE_F32, COLS * COLS, &store));
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_PARAM, square, store, 0, "w", &weight));
    HL_TRY(hl_graph_store(graph, "state", HL_DTYPE_F32, COLS, &store));
    HL_TRY(hl_graph_leaf(graph, HL_VALUE_STATE, row, store, 0, "s", &state));
    rows[n_rows++] = state;
    for (int i = 0; i < n_ops && n_full < MAX_VALUES && n_rows < MAX_VALUES; i++) {
        hl_id a = pick(d, full, n_full), out;
        hl_attrs axis = {.axis = {0}};
        int64_t start;
        switch (roll(d, 9)) {
        case 0:
            HL_TRY(hl_graph_add(graph, HL_OP_TANH, &a, 1, NULL, &full[n_full]));
            n_full++;
            break;
        case 1:
            HL_TRY(hl_graph_add(graph, HL_OP_ADD, (hl_id[]){a, pick(d, full, n_full)}, 2, NULL,
                                &full[n_full]));
            n_full++;
            break;
        case 2:
            HL_TRY(hl_graph_add(graph, HL_OP_MUL, (hl_id[]){a, pick(d, rows, n_rows)}, 2, NULL,
                                &full[n_full]));
            n_full++;
            break;
        case 3:
            HL_TRY(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){a, weight}, 2, NULL, &full[n_full]));
            n_full++;
            break;
        case 4:
            HL_TRY(hl_build_sum(graph, a, (int64_t[]){0}, 1, false, &rows[n_rows]));
            n_rows++;
            break;
        case 5:
            HL_TRY(hl_graph_add(graph, HL_OP_CONCAT, (hl_id[]){a, pick(d, full, n_full)}, 2, &axis,
                                &out));
            start = roll(d, ROWS);
            HL_TRY(hl_build_slice(graph, out, 0, start, start + ROWS, &full[n_full]));
            n_full++;
            break;
        case 6:
            HL_TRY(add_rows(graph, d, a, pick(d, full, n_full), &full[n_full]));
            n_full++;
            break;
        case 7:
            HL_TRY(turn_thirds(graph, d, a, &full[n_full]));
            n_full++;
            break;
        default: HL_TRY(hl_graph_add(graph, HL_OP_SOFTMAX, &a, 1, NULL, &full[n_full])); n_full++;
        }
    }
    HL_TRY(hl_graph_commit(graph, state, rows[n_rows - 1]));
    HL_TRY(hl_graph_output(graph, full[n_full - 1]));
    return hl_graph_output(graph, rows[roll(d, n_rows)]);
}

static inline hl_graph *make_graph(uint64_t seed, int n_ops)
{
    dice d = {hl_rng_key_make(seed, "graph"), 0};
    hl_graph *graph;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(grow_graph(graph, &d, n_ops));
    return graph;
}

#endif
