/* Cases of attention and its gradient for any device: heads that share keys, widths that are no
 * vectors, several tiles of queries and keys, masks, causality, dropout. What no key's gradient
 * sees, and what no query sees, must be written all the same: outputs and scratch begin as NaN. */
#ifndef TESTS_C_ATTENTION_CASES_H
#define TESTS_C_ATTENTION_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

#define F32 HL_DTYPE_F32

/* Of queries, keys and values; results are float32, so that only what is rounded on the way makes
 * a difference, or of the same type. */
static hl_dtype floats = F32, results = F32;

typedef struct sizes {
    int64_t B, H, Hk, L, S, E, Ev;
} sizes;

static const sizes all_sizes[] = {
    {1, 1, 1, 1, 1, 1, 1},     {2, 3, 3, 5, 7, 4, 6},      {2, 4, 2, 9, 9, 8, 8},
    {3, 2, 1, 33, 20, 16, 16}, {1, 2, 2, 65, 130, 17, 33}, {1, 2, 1, 75, 300, 8, 5},
    {1, 1, 1, 60, 600, 4, 3},  {1, 1, 1, 200, 70, 20, 64},
};
enum { N_SIZES = sizeof all_sizes / sizeof *all_sizes };

/* MASK_ROWS: a bool mask that hides all of some rows; MASK_LARGE: one that adds a large number to
 * all scores of a row, beside which nothing is left of them, nor of the logarithm of their number.
 */
typedef enum masking { MASK_NONE, MASK_ROWS, MASK_KEYS, MASK_ADDED, MASK_LARGE, MASKINGS } masking;

/* What MASK_LARGE adds to a row: so much that float64 forgets of scores what float32 does. */
static double find_large(int64_t row)
{
    static const double large[] = {-0x1p90, 0x1p90, -0x1.fffffep127};
    return large[row % 3];
}

static hl_type make_log_sums(const sizes *n)
{
    return (hl_type){F32, {4, {2, n->B, n->H, n->L}}};
}

static hl_type make_type(hl_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (hl_type){dtype, {4, {a, b, c, d}}};
}

static void add_mask(op_case *c, const sizes *n, masking kind)
{
    int i = c->n_in++;
    c->attrs.attention.has_mask = true;
    c->in[i] = kind == MASK_ROWS   ? make_type(HL_DTYPE_BOOL, 1, 1, n->L, n->S)
               : kind == MASK_KEYS ? make_type(HL_DTYPE_BOOL, n->B, 1, 1, n->S)
                                   : make_type(F32, 1, n->H, n->L, n->S);
    case_fill(c, i, kind >= MASK_ADDED ? -1 : 0, kind >= MASK_ADDED ? 1 : 2);
    for (int64_t e = 0; kind == MASK_LARGE && e < n->H * n->L * n->S; e++)
        c->data[i][e] = find_large(e / n->S);
    for (int64_t e = 0; kind == MASK_ROWS && e < n->L * n->S; e++)
        if (e / n->S % 3 == 1) c->data[i][e] = 0;
}

/* Operands from number `first` on: queries, keys, values. */
static void add_operands(op_case *c, const sizes *n, int first)
{
    c->in[first] = make_type(floats, n->B, n->H, n->L, n->E);
    c->in[first + 1] = make_type(floats, n->B, n->Hk, n->S, n->E);
    c->in[first + 2] = make_type(floats, n->B, n->Hk, n->S, n->Ev);
}

static void finish(op_case *c, const sizes *n, masking mask, bool is_causal, bool drops)
{
    for (int i = 0; i < c->n_in; i++) case_fill(c, i, -1, 1);
    c->attrs.attention.scale = 0.7;
    c->attrs.attention.is_causal = is_causal;
    c->attrs.attention.float32_out = floats != F32 && results == F32;
    c->tolerance = floats == F32 ? 2e-4 : floats == HL_DTYPE_F16 ? 1e-2 : 5e-2;
    if (mask != MASK_NONE) add_mask(c, n, mask);
    if (!drops) return;
    c->attrs.attention.p = 0.3, c->attrs.attention.stream = "a", c->attrs.attention.seed = 5;
    c->control.attempted = 3, c->control.micro_row = 40;
    c->in[c->n_in] = (hl_type){HL_DTYPE_U8, hl_shape_1d(sizeof(hl_control))};
    c->is_control[c->n_in++] = true;
}

static void test_attention(const sizes *n, masking mask, bool is_causal, bool drops)
{
    op_case c = {.op = HL_OP_ATTENTION, .n_in = 3, .n_out = 2};
    add_operands(&c, n, 0);
    finish(&c, n, mask, is_causal, drops);
    c.out[0] = make_type(results, n->B, n->H, n->L, n->Ev);
    c.out[1] = make_log_sums(n);
    case_check(&c);
}

static void test_attention_grad(const sizes *n, masking mask, bool is_causal, bool drops)
{
    op_case c = {.op = HL_OP_ATTENTION_GRAD, .n_in = 6, .n_out = 3};
    c.in[0] = c.in[4] = make_type(floats, n->B, n->H, n->L, n->Ev);
    c.in[5] = make_log_sums(n);
    add_operands(&c, n, 1);
    finish(&c, n, mask, is_causal, drops);
    case_fill(&c, 5, 3, 4); /* so that all powers are at most 1 */
    /* The logarithm is in one number, or where it is beside a large one in the other. */
    for (int64_t r = 0, n_rows = n->B * n->H * n->L; r < n_rows; r++)
        c.data[5][mask == MASK_LARGE ? r : n_rows + r] =
            mask == MASK_LARGE ? find_large(r % (n->H * n->L)) : 0;
    for (int j = 0; j < 3; j++) c.out[j] = (hl_type){results, c.in[1 + j].shape};
    case_check(&c);
}

/* One of `step` combinations: another one for each size. */
__attribute__((unused)) static void test_all_attention(int step)
{
    for (int i = 0; i < N_SIZES; i++)
        for (int mask = 0; mask < MASKINGS; mask++)
            for (int kind = 0; kind < 4; kind++) {
                bool is_causal = kind & 1, drops = kind & 2;
                if ((i + 4 * mask + kind) % step) continue;
                check_case("%s, sizes %d, mask %d, causal %d, dropout %d", hl_dtype_name(floats), i,
                           mask, is_causal, drops);
                test_attention(&all_sizes[i], (masking)mask, is_causal, drops);
                test_attention_grad(&all_sizes[i], (masking)mask, is_causal, drops);
            }
}

#endif
