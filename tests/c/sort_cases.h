/* Order along the last axis and places in sorted rows, as cases for any device (cpu_case.h,
 * tests/cuda/device_case.h): every dtype, rows around the lengths where kernels change their ways,
 * ties, extremes, zeros of both signs, NaN of both signs. Results are exact. */
#ifndef TESTS_C_SORT_CASES_H
#define TESTS_C_SORT_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

enum sort_fill { MIXED, TIED, EXTREME, WITH_NAN, RISING, SORT_FILLS };

/* What an element's dtype makes of it. */
static double round_element(hl_dtype dtype, double value)
{
    double memory;
    element_store(&memory, dtype, 0, value);
    return element_load(&memory, dtype, 0);
}

static void fill_order(op_case *c, int i, enum sort_fill fill)
{
    static const double extremes[] = {INFINITY, -INFINITY, 0, -0.0, 3e38, 1e-40};
    hl_dtype dtype = c->in[i].dtype;
    bool is_unsigned = dtype == HL_DTYPE_U8 || dtype == HL_DTYPE_BOOL;
    int64_t n = hl_shape_numel(&c->in[i].shape);
    case_fill(c, i, is_unsigned ? 0 : fill == TIED ? -2 : -99, fill == TIED ? 2 : 99);
    for (int64_t e = 0; e < n; e++) {
        double *value = &c->data[i][e];
        if (fill == TIED) *value = floor(*value);
        if (fill == RISING) *value = (double)e / 4;
        if (fill == RISING && !hl_dtype_is_float(dtype)) *value = (double)(e % 100);
        if (fill >= EXTREME && fill != RISING && hl_dtype_is_float(dtype)) {
            if (e % 3 == 1) *value = extremes[e / 3 % 6];
            if (fill == WITH_NAN && e % 7 == 2) *value = e % 2 ? NAN : -NAN;
        }
        *value = round_element(dtype, *value);
    }
}

static void check_sort(hl_dtype dtype, int64_t R, int64_t N, int64_t k, bool is_descending,
                       enum sort_fill fill)
{
    op_case c = {.op = HL_OP_SORT, .n_in = 1, .n_out = 2};
    c.attrs.sort = (hl_attrs_sort){.axis = 1, .descending = is_descending, .k = k};
    c.in[0] = (hl_type){dtype, hl_shape_2d(R, N)};
    c.out[0] = (hl_type){dtype, hl_shape_2d(R, k)};
    c.out[1] = (hl_type){HL_DTYPE_I64, hl_shape_2d(R, k)};
    fill_order(&c, 0, fill);
    check_case("sort of (%lld, %lld) %s, k %lld, descending %d, fill %d", (long long)R,
               (long long)N, hl_dtype_name(dtype), (long long)k, is_descending, (int)fill);
    case_check(&c);
}

static void test_sort_widths(const int64_t *widths, int n_widths, int64_t R)
{
    for (int w = 0; w < n_widths; w++) {
        int64_t ks[] = {widths[w], 1, widths[w] / 3, widths[w] / 20};
        for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++) {
            for (int form = 0; form < 2 * 4; form++) {
                enum sort_fill fill = (enum sort_fill)((form + dtype + w) % SORT_FILLS);
                check_sort((hl_dtype)dtype, R, widths[w], ks[form / 2], form % 2, fill);
            }
        }
    }
}

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    if (isnan(x) || isnan(y)) return !!isnan(x) - !!isnan(y);
    return (x > y) - (x < y);
}

/* One row for all values, or R rows of N for R rows of M. */
static void check_search(hl_dtype dtype, int64_t R, int64_t N, int64_t M, bool is_right,
                         enum sort_fill fill)
{
    op_case c = {.op = HL_OP_SEARCHSORTED, .n_in = 2, .n_out = 1};
    c.attrs.searchsorted = (hl_attrs_searchsorted){.right = is_right, .int32_out = N % 2};
    c.in[0] = (hl_type){dtype, R ? hl_shape_2d(R, N) : hl_shape_1d(N)};
    c.in[1] = (hl_type){dtype, R ? hl_shape_2d(R, M) : hl_shape_1d(M)};
    c.out[0] = (hl_type){N % 2 ? HL_DTYPE_I32 : HL_DTYPE_I64, c.in[1].shape};
    fill_order(&c, 0, fill), fill_order(&c, 1, fill);
    for (int64_t r = 0; r < (R ? R : 1) && N > 0; r++)
        qsort(c.data[0] + r * N, (size_t)N, sizeof(double), compare_numbers);
    check_case("search in (%lld, %lld) %s for %lld, right %d, fill %d", (long long)R, (long long)N,
               hl_dtype_name(dtype), (long long)M, is_right, (int)fill);
    case_check(&c);
}

static void test_search(void)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 15, 16, 100};
    for (int w = 0; w < 7; w++)
        for (int dtype = 0; dtype < HL_DTYPE_COUNT; dtype++)
            for (int form = 0; form < 4; form++)
                check_search((hl_dtype)dtype, form / 2 * 3, sizes[w], form / 2 ? 5 : 37, form % 2,
                             (enum sort_fill)((w + dtype + form) % RISING));
    check_search(HL_DTYPE_F32, 0, 10, 0, false, MIXED);
    check_search(HL_DTYPE_F32, 0, 10, 1200, true, MIXED);
}

static void test_nothing_to_sort(void)
{
    check_sort(HL_DTYPE_F32, 3, 5, 0, false, MIXED);
    check_sort(HL_DTYPE_F32, 0, 5, 5, false, MIXED);
    check_sort(HL_DTYPE_F32, 3, 0, 0, false, MIXED);
    check_sort(HL_DTYPE_I64, 3, 3000, 0, true, MIXED);
}

#endif
