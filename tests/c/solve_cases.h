/* Cases of Cholesky factors, triangular systems and connectionist temporal classification, for any
 * device: sizes around a vector, a panel and a strip, batches, faults. */
#ifndef TESTS_C_SOLVE_CASES_H
#define TESTS_C_SOLVE_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

static const int64_t solve_sizes[] = {0, 1, 2, 7, 8, 15, 16, 17, 33, 40, 65};
enum { N_SOLVE_SIZES = sizeof solve_sizes / sizeof *solve_sizes };

static hl_type solve_type(int64_t batch, int64_t rows, int64_t columns)
{
    int64_t dim[] = {batch, rows, columns};
    return (hl_type){HL_DTYPE_F32, hl_shape_make(3, dim)};
}

/* Diagonally dominant. What a kernel does not read is NaN: the triangle above the diagonal. */
static void fill_positive(op_case *c, int64_t batch, int64_t n)
{
    case_fill(c, 0, -1, 1);
    for (int64_t i = 0; i < batch * n * n; i++) {
        int64_t row = i / n % n, column = i % n;
        if (row == column) c->data[0][i] = (double)(n + row % 3);
        if (row < column) c->data[0][i] = NAN;
    }
}

static void check_solve_fault(const op_case *c, int64_t row)
{
    for (int i = 0; i < 2; i++) {
        CHECK(c->control_after[i].error_code != 0);
        CHECK_INT(c->control_after[i].error_row, row);
    }
    CHECK_INT(c->control_after[0].error_value, c->control_after[1].error_value);
}

/* spoilt: the row, counted through the batch, where it stops to be positive definite; -1: none. */
static void test_cholesky_of(int64_t batch, int64_t n, int64_t spoilt)
{
    op_case c = {.op = HL_OP_CHOLESKY, .n_in = 1, .n_out = 1, .tolerance = 1e-5};
    c.in[0] = c.out[0] = solve_type(batch, n, n);
    fill_positive(&c, batch, n);
    if (spoilt >= 0) {
        double *row = c.data[0] + spoilt * n;
        for (int64_t k = 0; k < spoilt % n; k++) row[k] = 0; /* so that its pivot is exact */
        row[spoilt % n] = spoilt % 2 ? -1.5 : 0;
    }
    check_case("cholesky of %lld of %lld, spoilt %lld", (long long)batch, (long long)n,
               (long long)spoilt);
    case_check(&c);
    if (spoilt >= 0)
        check_solve_fault(&c, spoilt);
    else
        CHECK_INT(c.control_after[0].error_code, 0);
}

static void test_cholesky(int64_t large)
{
    for (int i = 0; i < N_SOLVE_SIZES; i++) {
        int64_t n = solve_sizes[i];
        test_cholesky_of(1 + i % 4, n, -1);
        if (n == 0) continue;
        test_cholesky_of(3, n, n + n / 2);
        test_cholesky_of(2, n, 2 * n - 1);
    }
    test_cholesky_of(0, 3, -1);
    if (large) test_cholesky_of(2, large, -1);
}

static void test_solve_of(int64_t batch, int64_t n, int64_t k, int form, int64_t singular)
{
    op_case c = {.op = HL_OP_TRIANGULAR_SOLVE, .n_in = 2, .n_out = 1, .tolerance = 2e-5};
    bool upper = form & 1, is_unit = form & 4;
    c.attrs.triangular = (hl_attrs_triangular){upper, form & 2, is_unit};
    c.in[0] = solve_type(batch, n, n);
    c.in[1] = c.out[0] = solve_type(batch, n, k);
    case_fill(&c, 0, -1, 1);
    case_fill(&c, 1, -2, 2);
    for (int64_t i = 0; i < batch * n * n; i++) {
        int64_t row = i / n % n, column = i % n;
        c.data[0][i] = ldexp(rint(c.data[0][i] * 256), -8 - (n > 1) * ilogb((double)n));
        if (row == column) c.data[0][i] = is_unit ? NAN : 1 + (double)(row % 3);
        if (upper ? row > column : row < column) c.data[0][i] = NAN;
    }
    if (singular >= 0) c.data[0][singular * n + singular % n] = 0;
    check_case("solve %lld of %lld by %lld, form %d, singular %lld", (long long)batch, (long long)n,
               (long long)k, form, (long long)singular);
    c.allows_any = singular >= 0;
    case_check(&c);
    if (singular >= 0)
        CHECK_INT(c.control_after[0].error_row, singular);
    else
        CHECK_INT(c.control_after[0].error_code, 0);
}

static void test_solve(void)
{
    static const int64_t sides[] = {1, 5, 16, 31, 33, 70, 0};
    for (int i = 0; i < N_SOLVE_SIZES; i++)
        for (int form = 0; form < 8; form++)
            test_solve_of(1 + (i + form) % 3, solve_sizes[i], sides[(i + form) % 7], form, -1);
    for (int form = 0; form < 8; form++) test_solve_of(1, 19, form < 4 ? 5 : 1, form % 4, 7);
}

/* ---- connectionist temporal classification --------------------------------------------------- */

typedef struct ctc_sizes {
    int64_t T, N, C, S, blank;
} ctc_sizes;

static const ctc_sizes all_ctc[] = {{1, 1, 2, 1, 0},  {6, 3, 4, 3, 0},    {9, 2, 3, 0, 2},
                                    {20, 5, 7, 8, 3}, {40, 3, 40, 17, 0}, {3, 2, 5, 40, 1},
                                    {0, 2, 3, 1, 0},  {4, 0, 3, 2, 1}};
enum { N_CTC = sizeof all_ctc / sizeof *all_ctc };

/* Log probabilities, targets and lengths from operand `first` on. wrong: 0 nothing, 1 an input
 * length, 2 a target length, 3 a target that is the blank, 4 one that is no class; in the last
 * sequence. */
static void add_ctc(op_case *c, const ctc_sizes *n, int first, int wrong)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_I64, HL_DTYPE_I32, HL_DTYPE_I16, HL_DTYPE_I8};
    hl_dtype dtype = dtypes[wrong % 4];
    int64_t dim[] = {n->T, n->N, n->C}, last = n->N - 1;
    c->in[first] = (hl_type){HL_DTYPE_F32, hl_shape_make(3, dim)};
    c->in[first + 1] = (hl_type){dtype, hl_shape_2d(n->N, n->S)};
    c->in[first + 2] = c->in[first + 3] = (hl_type){HL_DTYPE_I64, hl_shape_1d(n->N)};
    c->in[first + 2].dtype = dtype;
    case_fill(c, first, -4, 0);
    for (int i = 1; i < 4; i++) case_fill(c, first + i, 0, 2);
    for (int64_t i = 0; i < n->N * n->S; i++) {
        int64_t to = (i / 2 * 5 + i / 7) % (n->C - 1); /* neighbours are often the same */
        c->data[first + 1][i] = (double)(to + (to >= n->blank));
    }
    for (int64_t i = 0; i < n->N; i++) {
        int64_t time = n->T - (i * 2 < n->T ? i * 2 : 0);
        c->data[first + 2][i] = (double)time;
        c->data[first + 3][i] = (double)(i % 3 == 2 ? n->S / 2 : n->S);
    }
    if (wrong == 1) c->data[first + 2][last] = (double)n->T + 1;
    if (wrong == 2) c->data[first + 3][last] = -1;
    if (wrong > 2) {
        c->data[first + 3][last] = (double)n->S;
        c->data[first + 1][n->N * n->S - 1] = wrong == 3 ? (double)n->blank : (double)n->C;
    }
}

static hl_type ctc_paths(const ctc_sizes *n)
{
    int64_t dim[] = {n->N, n->T, 2 * n->S + 1};
    return (hl_type){HL_DTYPE_F32, hl_shape_make(3, dim)};
}

static void check_ctc_fault(const op_case *c, const ctc_sizes *n, int wrong)
{
    int64_t last = n->N - 1, rows[] = {0, 3 * last, 3 * last + 1, 3 * (n->N * n->S - 1) + 2};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(c->control_after[i].error_code != 0, wrong != 0);
        if (wrong) CHECK_INT(c->control_after[i].error_row, rows[wrong < 3 ? wrong : 3]);
    }
}

/* The gradient reads the beginnings that the loss gives. */
static void test_ctc_of(const ctc_sizes *n, bool zeroes, int wrong)
{
    op_case c = {.op = HL_OP_CTC_LOSS, .n_in = 4, .n_out = 2, .tolerance = 1e-5};
    op_case g = {.op = HL_OP_CTC_LOSS_GRAD, .n_in = 6, .n_out = 1, .tolerance = 1e-4};
    c.attrs.ctc = g.attrs.ctc = (hl_attrs_ctc){n->blank, zeroes};
    add_ctc(&c, n, 0, wrong);
    c.out[0] = g.in[0] = (hl_type){HL_DTYPE_F32, hl_shape_1d(n->N)};
    c.out[1] = ctc_paths(n);
    check_case("ctc %lld %lld %lld %lld, zeroes %d, wrong %d", (long long)n->T, (long long)n->N,
               (long long)n->C, (long long)n->S, zeroes, wrong);
    add_ctc(&g, n, 1, wrong);
    for (int i = 0; i < 4; i++) {
        int64_t size = hl_shape_numel(&c.in[i].shape);
        memcpy(g.data[1 + i], c.data[i], (size_t)size * sizeof(double));
    }
    g.in[5] = c.out[1], g.out[0] = g.in[1];
    case_fill(&g, 0, 0.5, 1.5);
    case_fill(&g, 5, -1, 0);
    hl_kernel_req req;
    CHECK(case_run_once(&c, case_ref, 1, CASE_APART, NULL, &req));
    for (int64_t i = 0; i < hl_shape_numel(&g.in[5].shape); i++)
        g.data[5][i] = (double)(float)c.want[1][i];
    case_check(&c);
    check_ctc_fault(&c, n, wrong);
    check_case("ctc gradient %lld %lld %lld %lld, zeroes %d, wrong %d", (long long)n->T,
               (long long)n->N, (long long)n->C, (long long)n->S, zeroes, wrong);
    case_check(&g);
    check_ctc_fault(&g, n, wrong);
}

static void test_ctc(void)
{
    for (int i = 0; i < N_CTC; i++)
        for (int wrong = 0; wrong < 5; wrong++) {
            if (wrong && (all_ctc[i].N == 0 || all_ctc[i].S == 0)) continue;
            test_ctc_of(&all_ctc[i], wrong == 0, wrong);
            if (wrong == 0) test_ctc_of(&all_ctc[i], false, 0);
        }
}

#endif
