/* Guarded updates and optimizers on the CPU against the reference: every attribute, segments that
 * leave gaps, and the guard: a blocked update changes not one bit. */
#include "tests/c/cpu_case.h"

static hl_type flat_type(hl_dtype dtype, int64_t n)
{
    return (hl_type){dtype, hl_shape_1d(n)};
}

static void add_control(op_case *c, int64_t applied, bool allows)
{
    int i = c->n_in++;
    c->in[i] = flat_type(HL_DTYPE_U8, (int64_t)sizeof(hl_control));
    c->is_control[i] = true;
    c->is_guarded = true;
    c->segment = HL_SEGMENT_APPLY;
    c->control.applied = applied;
    c->control.apply = allows;
    c->control.window_ok = allows;
}

/* With the guard down the result is the input, bit for bit (case_check compares with the
 * reference, whose guard has its own tests). */
static void check_update(hl_op op, hl_dtype dtype, hl_dtype value_dtype, int64_t n, int applied,
                         bool allows, const hl_attrs *attrs)
{
    op_case c = {.op = op, .attrs = *attrs, .n_in = 2, .n_out = 1};
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
    hl_attrs none = {.n_dims = 0}, ema = {.f = {0.9}}, ramp = {.i = {1}, .f = {0.9}};
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            for (int allows = 0; allows < 2; allows++) {
                hl_dtype to = pairs[p][0], from = pairs[p][1];
                check_update(HL_OP_ASSIGN, to, from, sizes[s], 3, allows, &none);
                check_update(HL_OP_ACCUMULATE, to, from, sizes[s], 3, allows, &none);
                if (p > 0) continue;
                check_update(HL_OP_EMA, to, from, sizes[s], 3, allows, &ema);
                check_update(HL_OP_EMA, to, from, sizes[s], 3, allows, &ramp);
                check_update(HL_OP_EMA, to, from, sizes[s], 3000, allows, &ramp);
            }
        }
    }
}

/* Segments: one, several with a gap and an end before n, ends off the vector's grid. */
static void fill_segments(op_case *c, int i, int64_t n, int form)
{
    double table[3][4] = {{0, (double)n, 1, 0.1}};
    int n_segments = 1;
    if (form == 1) {
        double parts[3][4] = {{0, (double)(n / 3), 1, 0},
                              {(double)(n / 3 + 5), (double)(n / 2 + 6), 0.5, 0.2},
                              {(double)(n / 2 + 6), (double)(n - 1), 2, 0.05}};
        memcpy(table, parts, sizeof table);
        n_segments = 3;
    }
    c->in[i] = (hl_type){HL_DTYPE_F64, hl_shape_2d(n_segments, 4)};
    case_fill(c, i, 0, 1);
    memcpy(c->data[i], table, (size_t)n_segments * 4 * sizeof(double));
}

static void check_optimizer(hl_op op, const hl_attrs *attrs, unsigned states, int64_t n, int form,
                            int applied, bool allows)
{
    int n_state = op == HL_OP_ADAM ? 2 : op == HL_OP_RMSPROP ? 3 : 1;
    op_case c = {.op = op, .attrs = *attrs, .n_out = 1 + n_state};
    for (int i = 0; i < n_state + 2; i++) {
        bool has = i == 0 || i > n_state || (states >> (i - 1) & 1);
        c.in[i] = flat_type(HL_DTYPE_F32, has ? n : 0);
        /* Second moments are positive, and larger than any squared mean where centred. */
        bool is_square = (op == HL_OP_ADAM && i == 2) || (op == HL_OP_RMSPROP && i == 1);
        case_fill(&c, i, is_square ? 2 : -1, is_square ? 3 : 1);
        if (i <= n_state) c.out[i] = c.in[i];
    }
    fill_segments(&c, n_state + 2, n, form);
    for (int i = n_state + 3; i < n_state + 5; i++) {
        c.in[i] = (hl_type){HL_DTYPE_F32, hl_shape_scalar()};
        case_fill(&c, i, 0.1, 0.5);
    }
    c.n_in = n_state + 5;
    add_control(&c, applied, allows);
    c.tolerance = allows ? 2e-6 : 0;
    check_case("op %d n %lld form %d applied %d guard %d attrs %g %g %g %lld", op, (long long)n,
               form, applied, !allows, attrs->f[0], attrs->f[1], attrs->f[2],
               (long long)attrs->i[0]);
    case_check(&c);
}

static void test_optimizers(void)
{
    static const struct {
        hl_op op;
        unsigned states;
        int64_t i;
        double f[3];
    } kinds[] = {{HL_OP_SGD, 0, 0, {0, 0, 0}},
                 {HL_OP_SGD, 1, 0, {0.9, 0, 0}},
                 {HL_OP_SGD, 1, 0, {0.9, 0.1, 0}},
                 {HL_OP_SGD, 1, 1, {0.9, 0, 0}},
                 {HL_OP_ADAM, 3, 0, {0.9, 0.999, 1e-8}},
                 {HL_OP_ADAM, 3, 1, {0.8, 0.99, 1e-6}},
                 {HL_OP_RMSPROP, 1, 0, {0.99, 1e-8, 0}},
                 {HL_OP_RMSPROP, 3, 0, {0.9, 1e-8, 0.5}},
                 {HL_OP_RMSPROP, 7, 1, {0.99, 1e-3, 0.9}},
                 {HL_OP_RMSPROP, 5, 1, {0.99, 1e-3, 0}},
                 {HL_OP_LION, 1, 0, {0.9, 0.99, 0}}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        hl_attrs attrs = {.i = {kinds[k].i}};
        memcpy(attrs.f, kinds[k].f, sizeof kinds[k].f);
        for (int form = 0; form < 2; form++) {
            for (int step = 1; step < 4; step++) {
                for (int allows = 0; allows < 2; allows++) {
                    check_optimizer(kinds[k].op, &attrs, kinds[k].states, 5003, form, step, allows);
                    check_optimizer(kinds[k].op, &attrs, kinds[k].states, 33, form, step, allows);
                }
            }
        }
    }
}

static void test_control(void)
{
    for (int applied = 0; applied < 5; applied++) {
        op_case c = {.op = HL_OP_CONTROL_BEGIN, .n_in = 2, .n_out = 1};
        c.attrs.i[0] = HL_DTYPE_F32;
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
