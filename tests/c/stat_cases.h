/* Statistics of channels, as cases for any device (cpu_case.h, tests/cuda/device_case.h): every
 * floating dtype, channels around vectors and tiles, rows around panels and parts, masks. */
#ifndef TESTS_C_STAT_CASES_H
#define TESTS_C_STAT_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

enum stat_mask { NO_MASK, HALF, FEW, NO_ROW, STAT_MASKS };

static void check_statistics(hl_dtype dtype, int64_t R, int64_t C, enum stat_mask mask,
                             bool products, bool is_wild)
{
    op_case c = {.op = HL_OP_CHANNEL_STATISTICS, .n_in = mask == NO_MASK ? 2 : 3, .n_out = 5};
    c.attrs.channel_statistics.products = products;
    c.in[0] = (hl_type){dtype, hl_shape_2d(R, C)};
    c.in[1] = (hl_type){HL_DTYPE_F64, hl_shape_1d(C)};
    c.in[2] = (hl_type){HL_DTYPE_BOOL, hl_shape_1d(R)};
    c.out[0] = (hl_type){HL_DTYPE_F64, {0, {0}}};
    for (int j = 1; j < 5; j++) c.out[j] = c.in[1];
    if (products) c.out[4].shape = hl_shape_2d(C, C);
    case_fill(&c, 0, -1, 3), case_fill(&c, 1, 0, 2);
    if (mask != NO_MASK) case_fill(&c, 2, 0, 2);
    for (int64_t r = 0; r < R && mask != NO_MASK; r++) {
        if (mask == FEW) c.data[2][r] = r % 37 == 5;
        if (mask == NO_ROW) c.data[2][r] = 0;
    }
    /* A NaN, infinities of both signs, and in rows that are left out anything. */
    for (int64_t i = 0; i < R * C && is_wild; i++) {
        bool counts = mask == NO_MASK || c.data[2][i / C] != 0;
        if (!counts || i == R * C / 2) c.data[0][i] = NAN;
        if (counts && i == R * C / 3) c.data[0][i] = INFINITY;
        if (counts && i == R * C / 4) c.data[0][i] = -INFINITY;
    }
    c.tolerance = 1e-11;
    check_case("statistics of (%lld, %lld) %s, mask %d, products %d, wild %d", (long long)R,
               (long long)C, hl_dtype_name(dtype), (int)mask, products, is_wild);
    case_check(&c);
}

/* form: which of all masks, products and wild numbers. */
enum { STAT_FORMS = 4 * STAT_MASKS };
static void check_statistics_form(hl_dtype dtype, int64_t R, int64_t C, int form)
{
    check_statistics(dtype, R, C, (enum stat_mask)(form / 4), form & 1, form & 2);
}

static void test_statistics(const int64_t *channels, int n_channels, const int64_t *rows,
                            int n_rows)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_F64, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (int d = 0; d < 4; d++) {
        for (int w = 0; w < n_channels; w++)
            for (int form = 0; form < STAT_FORMS; form++)
                check_statistics_form(dtypes[d], 40 + 7 * w % 60, channels[w], form);
        for (int r = 0; r < n_rows; r++)
            for (int form = 0; form < STAT_FORMS; form++)
                check_statistics_form(dtypes[d], rows[r], 9 + r, form);
    }
}

static void test_no_statistics(void)
{
    for (int form = 0; form < STAT_FORMS; form++) {
        check_statistics_form(HL_DTYPE_F32, 0, 5, form);
        check_statistics_form(HL_DTYPE_F32, 5, 0, form);
        check_statistics_form(HL_DTYPE_F32, 0, 0, form);
    }
}

#endif
