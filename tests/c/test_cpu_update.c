/* Guarded updates and optimizers on the CPU against the reference: every attribute, segments that
 * leave gaps, and the guard: a blocked update changes not one bit. */
#include "tests/c/cpu_case.h"
#include "tests/c/update_cases.h"

/* With the guard down the result is the input, bit for bit (case_check compares with the
 * reference, whose guard has its own tests). */
static void check_update(hl_op op, hl_dtype dtype, hl_dtype value_dtype, int64_t n, int applied,
                         bool allows, const hl_attrs *attrs)
{
    op_case c = {.op = op, .attrs = *attrs, .n_in = 2, .n_out = 1};
    c.segment = HL_SEGMENT_APPLY;
    c.in[0] = c.out[0] = flat_type(dtype, n);
    c.in[1] = flat_type(value_dtype, n);
    case_fill(&c, 0, 0, 100), case_fill(&c, 1, 0, 100);
    add_control(&c, applied, allows);
    c.tolerance = dtype == HL_DTYPE_BF16 ? 0.01 : 1e-6;
    check_case("op %d dtypes %d %d n %lld applied %d guard %d", op, dtype, value_dtype,
               (long long)n, applied, !allows);
    case_check(&c);
}

static void test_updates(void)
{
    static const hl_dtype pairs[][2] = {{HL_DTYPE_F32, HL_DTYPE_F32},
                                        {HL_DTYPE_F64, HL_DTYPE_F32},
                                        {HL_DTYPE_I64, HL_DTYPE_I64},
                                        {HL_DTYPE_I64, HL_DTYPE_BOOL},
                                        {HL_DTYPE_F32, HL_DTYPE_F64}};
    static const int64_t sizes[] = {0, 1, 5, 1000, 5000};
    hl_attrs none = {.dtype = {0}}, ema = {.ema = {.decay = 0.9}};
    hl_attrs ramp = {.ema = {.decay = 0.9, .ramp = true}};
    hl_attrs blend = {.ema = {.decay = 0.9, .take = 0.25}};
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            for (int allows = 0; allows < 2; allows++) {
                hl_dtype to = pairs[p][0], from = pairs[p][1];
                check_update(HL_OP_ASSIGN, to, from, sizes[s], 3, allows, &none);
                check_update(HL_OP_ACCUMULATE, to, from, sizes[s], 3, allows, &none);
                if (p > 0) continue;
                check_update(HL_OP_EMA, to, from, sizes[s], 3, allows, &ema);
                check_update(HL_OP_EMA, to, from, sizes[s], 3, allows, &blend);
                check_update(HL_OP_EMA, to, from, sizes[s], 3, allows, &ramp);
                check_update(HL_OP_EMA, to, from, sizes[s], 3000, allows, &ramp);
            }
        }
    }
}

static void test_control(void)
{
    for (int applied = 0; applied < 5; applied++) {
        op_case c = {.op = HL_OP_CONTROL_BEGIN, .n_in = 2, .n_out = 1};
        c.attrs.dtype.dtype = HL_DTYPE_F32;
        c.in[0] = c.out[0] = flat_type(HL_DTYPE_U8, (int64_t)sizeof(hl_control));
        c.is_control[0] = c.is_guarded = true;
        c.in[1] = (hl_type){HL_DTYPE_F64, hl_shape_2d(2, 3)};
        case_fill(&c, 1, 0, 1);
        c.control.applied = applied;
        c.control.factor[0] = 0.5, c.control.factor[1] = 2;
        double want = c.data[1][applied < 3 ? applied : 2] * 0.5;
        case_check(&c);
        CHECK(c.control_after[0].scalar[0].f == (float)want);
        CHECK_INT(c.control_after[0].attempted, 1);
    }
}

int main(void)
{
    case_open();
    test_updates();
    test_optimizers();
    test_control();
    case_close();
    return CHECK_DONE();
}
