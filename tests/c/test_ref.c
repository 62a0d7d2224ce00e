/* The reference backend, op by op, against values computed by hand. */
#include "tests/c/ref.h"

/* ---- the device ------------------------------------------------------------------------------ */

static void test_coverage(void)
{
    hl_device *device;
    const hl_backend *backend = hl_ref_backend();
    CHECK_ERROR(backend->device_open(backend, 2, NULL, &device), HL_ERROR_DEVICE, "got 2");
    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    CHECK(device->float_type == HL_DTYPE_F64 && !device->fuses && !device->packs);
    for (int op = 0; op < HL_OP_COUNT; op++) {
        const hl_kernel *const *list = device->ops->kernels(device, (hl_op)op);
        check_case("%s", hl_op_get((hl_op)op)->name);
        bool is_packed = op == HL_OP_MATMUL_PACK || op == HL_OP_MATMUL_PACKED;
        CHECK((list && list[0]) == !(is_packed || op == HL_OP_MATMUL_FUSED));
        if (!list || !list[0]) continue;
        CHECK(list[0]->op == (hl_op)op && !list[1]);
        CHECK(strncmp(list[0]->name, "ref.", 4) == 0);
        CHECK(strcmp(list[0]->name + 4, hl_op_get((hl_op)op)->name) == 0);
    }
    device->ops->destroy(device);

    float narrow[1] = {0};
    CHECK_ERROR(run(HL_OP_SOFTMAX, NULL, IN(OF(F32, narrow, 1)), OUT(OF(F32, narrow, 1))),
                HL_ERROR_DEVICE, "needs float64, got float32");
}

static hl_status run_softmax(void *context)
{
    double x[2] = {0}, y[2];
    (void)context;
    return run(HL_OP_SOFTMAX, NULL, IN(F64(x, 2)), OUT(F64(y, 2)));
}

static hl_status run_neg(void *context)
{
    double x[2] = {0}, y[2];
    (void)context;
    return run(HL_OP_NEG, NULL, IN(F64(x, 2)), OUT(F64(y, 2)));
}

static void test_faults(void)
{
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, run_softmax, NULL), 4);
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, run_neg, NULL), 4);
}

/* ---- pointwise ------------------------------------------------------------------------------- */

static double compute1(hl_op op, double x)
{
    double y = 99;
    CHECK_OK(run(op, NULL, IN(NUMBER(&x)), OUT(NUMBER(&y))));
    return y;
}

static double compute2(hl_op op, double a, double b)
{
    double y = 99;
    CHECK_OK(run(op, NULL, IN(NUMBER(&a), NUMBER(&b)), OUT(NUMBER(&y))));
    return y;
}

static bool test2(hl_op op, double a, double b)
{
    uint8_t y = 99;
    CHECK_OK(run(op, NULL, IN(NUMBER(&a), NUMBER(&b)), OUT({{HL_DTYPE_BOOL, {0, {0}}}, &y})));
    CHECK(y <= 1);
    return y;
}

static void test_unary(void)
{
    static const struct {
        hl_op op;
        double x, want;
    } cases[] = {
        {HL_OP_NEG, 2, -2},
        {HL_OP_ABS, -2.5, 2.5},
        {HL_OP_SIGN, -3, -1},
        {HL_OP_SIGN, 0, 0},
        {HL_OP_EXP, 1, 2.718281828459045},
        {HL_OP_EXPM1, 1e-20, 1e-20},
        {HL_OP_LOG, 2, 0.6931471805599453},
        {HL_OP_LOG1P, 1e-20, 1e-20},
        {HL_OP_LOG, 0, -INFINITY},
        {HL_OP_SQRT, 2, 1.4142135623730951},
        {HL_OP_RSQRT, 4, 0.5},
        {HL_OP_RECIPROCAL, 8, 0.125},
        {HL_OP_SIN, 1, 0.8414709848078965},
        {HL_OP_COS, 1, 0.5403023058681398},
        {HL_OP_TANH, 0.5, 0.46211715726000976},
        {HL_OP_SIGMOID, 2, 0.8807970779778823},
        {HL_OP_SIGMOID, -745, 5e-324},
        {HL_OP_SIGMOID, 800, 1},
        {HL_OP_SOFTPLUS, 0, 0.6931471805599453},
        {HL_OP_SOFTPLUS, 1000, 1000},
        {HL_OP_SOFTPLUS, -1000, 0},
        {HL_OP_ERF, 0.5, 0.5204998778130465},
        {HL_OP_RELU, -1, 0},
        {HL_OP_RELU, 3, 3},
        {HL_OP_RELU, NAN, NAN},
        {HL_OP_FLOOR, -1.5, -2},
        {HL_OP_CEIL, -1.5, -1},
        {HL_OP_ROUND, 2.5, 2},
        {HL_OP_ROUND, 3.5, 4},
        {HL_OP_ROUND, -0.6, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double got = compute1(cases[i].op, cases[i].x);
        CHECK_CLOSE(&got, cases[i].want);
    }
    CHECK(compute1(HL_OP_SIGMOID, -745) > 0);
    CHECK(fabs(compute1(HL_OP_EXPM1, 1e-20) / 1e-20 - 1) < 1e-15);

    double x[4] = {NAN, INFINITY, 0, 3};
    uint8_t y[4];
    CHECK_OK(run(HL_OP_ISFINITE, NULL, IN(F64(x, 4)), OUT(OF(BOOL, y, 4))));
    CHECK(!y[0] && !y[1] && y[2] == 1 && y[3] == 1);
    CHECK_OK(run(HL_OP_NOT, NULL, IN(F64(x, 4)), OUT(OF(BOOL, y, 4))));
    CHECK(!y[0] && !y[1] && y[2] == 1 && !y[3]);
}

static void test_binary(void)
{
    static const struct {
        hl_op op;
        double a, b, want;
    } cases[] = {
        {HL_OP_ADD, 1, 2, 3},         {HL_OP_SUB, 1, 2, -1},
        {HL_OP_MUL, 3, 2, 6},         {HL_OP_DIV, 1, 4, 0.25},
        {HL_OP_DIV, 1, 0, INFINITY},  {HL_OP_POW, 2, 0.5, 1.4142135623730951},
        {HL_OP_POW, -8, 3, -512},     {HL_OP_MOD, 7, 3, 1},
        {HL_OP_MOD, -7, 3, 2},        {HL_OP_MOD, 7, -3, -2},
        {HL_OP_MOD, -7.5, -2, -1.5},  {HL_OP_MAXIMUM, 1, 2, 2},
        {HL_OP_MAXIMUM, NAN, 2, NAN}, {HL_OP_MAXIMUM, 2, NAN, NAN},
        {HL_OP_MINIMUM, 1, 2, 1},     {HL_OP_MINIMUM, NAN, 2, NAN},
        {HL_OP_MINIMUM, 2, NAN, NAN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double got = compute2(cases[i].op, cases[i].a, cases[i].b);
        CHECK_CLOSE(&got, cases[i].want);
    }
    CHECK(test2(HL_OP_EQ, 2, 2) && !test2(HL_OP_EQ, 1, 2) && !test2(HL_OP_EQ, NAN, NAN));
    CHECK(test2(HL_OP_NE, 1, 2) && !test2(HL_OP_NE, 2, 2) && test2(HL_OP_NE, NAN, NAN));
    CHECK(test2(HL_OP_LT, 1, 2) && !test2(HL_OP_LT, 2, 2));
    CHECK(test2(HL_OP_LE, 2, 2) && !test2(HL_OP_LE, 3, 2) && !test2(HL_OP_LE, NAN, 2));
    CHECK(test2(HL_OP_GT, 3, 2) && !test2(HL_OP_GT, 2, 2));
    CHECK(test2(HL_OP_GE, 2, 2) && !test2(HL_OP_GE, 1, 2));
    CHECK(test2(HL_OP_AND, 2, -1) && !test2(HL_OP_AND, 2, 0));
    CHECK(test2(HL_OP_OR, 0, -1) && !test2(HL_OP_OR, 0, 0));
}

static void test_broadcast(void)
{
    double a[3] = {1, 2, 3}, b[2] = {10, 20}, y[6];
    CHECK_OK(run(HL_OP_ADD, NULL, IN(F64(a, 3), F64(b, 2, 1)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 11, 12, 13, 21, 22, 23);
    uint8_t choose[2] = {1, 0};
    CHECK_OK(run(HL_OP_WHERE, NULL, IN(OF(BOOL, choose, 2, 1), F64(a, 3), F64(b, 2, 1)),
                 OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 1, 2, 3, 20, 20, 20);
    CHECK_OK(run(HL_OP_ADD, NULL, IN(F64(a, 0, 3), F64(b, 1)), OUT(F64(y, 0, 3))));
    CHECK_CLOSE(y, 1, 2, 3, 20, 20, 20); /* nothing was written */
}

static void test_integers(void)
{
    int64_t big = ((int64_t)1 << 53) + 1, one = 1, y;
    operand in[] = {{{HL_DTYPE_I64, {0, {0}}}, &big}, {{HL_DTYPE_I64, {0, {0}}}, &one}};
    operand out[] = {{{HL_DTYPE_I64, {0, {0}}}, &y}};
    CHECK_OK(run(HL_OP_SUB, NULL, in, 2, out, 1));
    CHECK_INT(y, (int64_t)1 << 53); /* a double would say one less */
    CHECK_OK(run(HL_OP_MAXIMUM, NULL, in, 2, out, 1));
    CHECK_INT(y, big);
    CHECK_OK(run(HL_OP_NEG, NULL, in, 1, out, 1));
    CHECK_INT(y, -big);

    int64_t a[5] = {7, -7, 7, -7, 5}, b[5] = {3, 3, -3, -3, 0}, r[5];
    CHECK_OK(run(HL_OP_MOD, NULL, IN(I64(a, 5), I64(b, 5)), OUT(I64(r, 5))));
    CHECK_INTS(r, 1, 2, -2, -1, 0);
    int64_t low[1] = {INT64_MIN}, minus[1] = {-1};
    CHECK_OK(run(HL_OP_ADD, NULL, IN(I64(low, 1), I64(minus, 1)), OUT(I64(r, 1))));
    CHECK_INTS(r, INT64_MAX);
    CHECK_OK(run(HL_OP_MOD, NULL, IN(I64(low, 1), I64(minus, 1)), OUT(I64(r, 1))));
    CHECK_INTS(r, 0);
    CHECK_OK(run(HL_OP_ABS, NULL, IN(I64(low, 1)), OUT(I64(r, 1))));
    CHECK_INTS(r, INT64_MIN);

    uint8_t u[1] = {250}, v[1] = {10}, w[1];
    CHECK_OK(run(HL_OP_ADD, NULL, IN(OF(U8, u, 1), OF(U8, v, 1)), OUT(OF(U8, w, 1))));
    CHECK_INT(w[0], 4);
    uint8_t t[1] = {1};
    CHECK_OK(run(HL_OP_ADD, NULL, IN(OF(BOOL, t, 1), OF(BOOL, t, 1)), OUT(OF(BOOL, w, 1))));
    CHECK_INT(w[0], 1);
    double half[1] = {0.5}, d[1];
    int32_t three[1] = {3};
    CHECK_OK(run(HL_OP_ADD, NULL, IN(OF(I32, three, 1), F64(half, 1)), OUT(F64(d, 1))));
    CHECK_CLOSE(d, 3.5);
    CHECK_OK(run(HL_OP_DIV, NULL, IN(OF(I32, three, 1), I64(minus, 1)), OUT(F64(d, 1))));
    CHECK_CLOSE(d, -3);
}

static void test_cast(void)
{
    double x[5] = {2.9, -2.9, NAN, 1e30, 300}, y[5];
    int64_t i[5];
    uint8_t u[5];
    CHECK_OK(
        run(HL_OP_CAST, ATTRS(.dtype = {.dtype = HL_DTYPE_I64}), IN(F64(x, 5)), OUT(I64(i, 5))));
    CHECK_INTS(i, 2, -2, 0, INT64_MAX, 300);
    CHECK_OK(
        run(HL_OP_CAST, ATTRS(.dtype = {.dtype = HL_DTYPE_U8}), IN(F64(x, 5)), OUT(OF(U8, u, 5))));
    CHECK_INT(u[4], 44);
    CHECK_OK(run(HL_OP_CAST, ATTRS(.dtype = {.dtype = HL_DTYPE_BOOL}), IN(F64(x, 5)),
                 OUT(OF(BOOL, u, 5))));
    CHECK(u[0] == 1 && u[2] == 1);
    CHECK_OK(
        run(HL_OP_CAST, ATTRS(.dtype = {.dtype = HL_DTYPE_F64}), IN(I64(i, 2)), OUT(F64(y, 2))));
    CHECK_CLOSE(y, 2, -2);
    float f[1];
    double third[1] = {1.0 / 3};
    CHECK_OK(run(HL_OP_CAST, ATTRS(.dtype = {.dtype = HL_DTYPE_F32}), IN(F64(third, 1)),
                 OUT(OF(F32, f, 1))));
    CHECK(f[0] == 1.0f / 3);
}

/* Sums over rows, over columns and over all, beside a full output, of one program. */
static void test_fused(void)
{
    double x[6] = {1, 2, 3, 4, 5, 6}, b[3] = {10, 20, 30}, full[6], rows[3], cols[2], all[1];
    hl_program program = {.shape = {2, {2, 3}}, .split = 1, .n_in = 2, .n_out = 4};
    program.n_code = 4;
    program.n_regs = 4;
    program.code[0] = (hl_pw_instr){.op = HL_PW_LOAD, .dst = 0, .in = 0};
    program.code[1] = (hl_pw_instr){.op = HL_PW_LOAD, .dst = 1, .in = 1};
    program.code[2] = (hl_pw_instr){.op = HL_PW_NUMBER, .dst = 2, .number = 2};
    program.code[3] = (hl_pw_instr){.op = HL_PW_FMA, .dst = 3, .a = 0, .b = 2, .c = 1};
    for (int j = 0; j < 4; j++) program.out[j].reg = 3;
    program.out[0].reduce = HL_PW_FULL;
    program.out[1].reduce = HL_PW_SUM_ROWS;
    program.out[2].reduce = HL_PW_SUM_COLS;
    program.out[3].reduce = HL_PW_SUM_ALL;
    check_case("fused");
    CHECK_OK(run_program(HL_OP_POINTWISE_FUSED, &program, NULL, IN(F64(x, 2, 3), F64(b, 3)),
                         OUT(F64(full, 2, 3), F64(rows, 3), F64(cols, 2), NUMBER(all))));
    CHECK_CLOSE(full, 12, 24, 36, 18, 30, 42);
    CHECK_CLOSE(rows, 30, 54, 78);
    CHECK_CLOSE(cols, 72, 90);
    CHECK_CLOSE(all, 162);
}

static void test_random(void)
{
    hl_control saved = control;
    control.attempted = 5;
    control.micro_row = 100;
    hl_rng_key key = hl_rng_key_make(42, "drop1");
    double mask[2 * 3 * 7];
    hl_attrs attrs = {
        .dropout_mask = {.shape = {3, {2, 3, 7}}, .p = 0.25, .stream = "drop1", .seed = 42}};
    double *p = &attrs.dropout_mask.p;
    CHECK_OK(run(HL_OP_DROPOUT_MASK, &attrs, IN(CONTROL), OUT(F64(mask, 2, 3, 7))));
    int n_kept = 0;
    for (int i = 0; i < 42; i++) {
        uint16_t bits = hl_rng_bits16(key, 5, 100 + (uint64_t)i / 21, (uint64_t)i % 21);
        CHECK(mask[i] == (bits < 16384 ? 0 : 4.0 / 3));
        n_kept += mask[i] != 0;
    }
    CHECK(n_kept > 20 && n_kept < 42);
    *p = hl_rng_bits16(key, 5, 100, 0) / 65536.0; /* bits at the threshold are kept */
    CHECK_OK(run(HL_OP_DROPOUT_MASK, &attrs, IN(CONTROL), OUT(F64(mask, 2, 3, 7))));
    CHECK_CLOSE(mask, 1 / (1 - *p));
    *p = 1;
    CHECK_OK(run(HL_OP_DROPOUT_MASK, &attrs, IN(CONTROL), OUT(F64(mask, 2, 3, 7))));
    for (int i = 0; i < 42; i++) CHECK(mask[i] == 0);

    double second[7]; /* the second sample alone: the same numbers at a row offset one further */
    CHECK_OK(run(HL_OP_UNIFORM,
                 ATTRS(.uniform = {.shape = {2, {2, 7}}, .stream = "drop1", .seed = 42}),
                 IN(CONTROL), OUT(F64(mask, 2, 7))));
    CHECK(mask[0] == (hl_rng_bits16(key, 5, 100, 0) + 0.5) / 65536);
    control.micro_row = 101;
    CHECK_OK(run(HL_OP_UNIFORM,
                 ATTRS(.uniform = {.shape = {2, {1, 7}}, .stream = "drop1", .seed = 42}),
                 IN(CONTROL), OUT(F64(second, 1, 7))));
    CHECK(memcmp(second, mask + 7, sizeof second) == 0);
    control = saved;
}

/* ---- matmul ---------------------------------------------------------------------------------- */

static void test_matmul(void)
{
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {7, 8, 9, 10, 11, 12}, bias[2] = {100, 200}, y[8];
    CHECK_OK(run(HL_OP_MATMUL, NULL, IN(F64(a, 2, 3), F64(b, 3, 2)), OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 58, 64, 139, 154);
    CHECK_OK(
        run(HL_OP_MATMUL, NULL, IN(F64(a, 2, 3), F64(b, 3, 2), F64(bias, 2)), OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 158, 264, 239, 354);
    double a_t[6] = {1, 4, 2, 5, 3, 6}, b_t[6] = {7, 9, 11, 8, 10, 12};
    CHECK_OK(run(HL_OP_MATMUL, ATTRS(.matmul = {.trans_a = 1, .trans_b = 1}),
                 IN(F64(a_t, 3, 2), F64(b_t, 2, 3)), OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 58, 64, 139, 154);
    /* (2,1,1,2) @ (2,2,1) -> (2,2,1,1) */
    double p[4] = {1, 2, 3, 4}, q[4] = {5, 6, 7, 8};
    CHECK_OK(
        run(HL_OP_MATMUL, NULL, IN(F64(p, 2, 1, 1, 2), F64(q, 2, 2, 1)), OUT(F64(y, 2, 2, 1, 1))));
    CHECK_CLOSE(y, 17, 23, 39, 53);
    double none[1];
    CHECK_OK(run(HL_OP_MATMUL, NULL, IN(F64(none, 2, 0), F64(none, 0, 2), F64(bias, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 100, 200, 100, 200);
}

/* ---- reduce ---------------------------------------------------------------------------------- */

static void test_reduce(void)
{
    double x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[12];
    CHECK_OK(run(HL_OP_SUM, ATTRS(.reduce = {.axes = {2, {0, 2}}}), IN(F64(x, 2, 3, 2)),
                 OUT(F64(y, 3))));
    CHECK_CLOSE(y, 18, 26, 34);
    CHECK_OK(run(HL_OP_SUM, ATTRS(.reduce = {.axes = {1, {1}}}), IN(F64(x, 2, 3, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 9, 12, 27, 30);
    CHECK_OK(run(HL_OP_SUM, NULL, IN(F64(x, 2, 3, 2)), OUT(NUMBER(y))));
    CHECK_CLOSE(y, 78);
    CHECK_OK(
        run(HL_OP_PROD, ATTRS(.reduce = {.axes = {1, {1}}}), IN(F64(x, 4, 3)), OUT(F64(y, 4))));
    CHECK_CLOSE(y, 6, 120, 504, 1320);
    double z[6] = {3, NAN, -1, 2, NAN, 1};
    CHECK_OK(run(HL_OP_MAX, ATTRS(.reduce = {.axes = {1, {1}}}), IN(F64(z, 3, 2)), OUT(F64(y, 3))));
    CHECK_CLOSE(y, NAN, 2, NAN);
    CHECK_OK(run(HL_OP_MIN, ATTRS(.reduce = {.axes = {1, {1}}}), IN(F64(z, 3, 2)), OUT(F64(y, 3))));
    CHECK_CLOSE(y, NAN, -1, NAN);
    CHECK_OK(run(HL_OP_SUM, ATTRS(.reduce = {.axes = {1, {0}}}), IN(F64(x, 0, 2)), OUT(F64(y, 2))));
    CHECK_CLOSE(y, 0, 0);

    int64_t i[4] = {((int64_t)1 << 53), 1, -5, -7}, n[2];
    CHECK_OK(run(HL_OP_SUM, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, ((int64_t)1 << 53) + 1, -12);
    CHECK_OK(run(HL_OP_MAX, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, (int64_t)1 << 53, -5);
    CHECK_OK(run(HL_OP_MIN, ATTRS(.reduce = {.axes = {1, {0}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, -5, -7);
    CHECK_OK(
        run(HL_OP_PROD, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, (int64_t)1 << 53, 35);
    uint8_t b[3] = {1, 1, 0};
    CHECK_OK(run(HL_OP_SUM, NULL, IN(OF(BOOL, b, 3)), OUT({{HL_DTYPE_I64, {0, {0}}}, n})));
    CHECK_INTS(n, 2);
}

static void test_prod_grad(void)
{
    double x[8] = {2, 3, 4, 5, 0, 3, 0, 0}, p[4] = {6, 20, 0, 0}, d[4] = {1, 2, 1, 1}, y[8];
    CHECK_OK(run(HL_OP_PROD_GRAD, ATTRS(.axes = {.axes = {1, {1}}}),
                 IN(F64(x, 4, 2), F64(p, 4, 1), F64(d, 4, 1)), OUT(F64(y, 4, 2))));
    CHECK_CLOSE(y, 3, 2, 10, 8, 3, 0, 0, 0);
    double c[3] = {2, 3, 4}, all[1] = {24}, one[1] = {0.5};
    CHECK_OK(run(HL_OP_PROD_GRAD, ATTRS(.axes = {.axes = {1, {0}}}),
                 IN(F64(c, 3), F64(all, 1), F64(one, 1)), OUT(F64(y, 3))));
    CHECK_CLOSE(y, 6, 4, 3);
}

static void test_argreduce(void)
{
    double x[8] = {1, 3, 3, 2, 5, NAN, 1, NAN};
    int64_t y[4];
    CHECK_OK(run(HL_OP_ARGMAX, ATTRS(.arg_reduce = {.axis = 1}), IN(F64(x, 2, 4)), OUT(I64(y, 2))));
    CHECK_INTS(y, 1, 1);
    CHECK_OK(run(HL_OP_ARGMIN, ATTRS(.arg_reduce = {.axis = 1}), IN(F64(x, 2, 4)), OUT(I64(y, 2))));
    CHECK_INTS(y, 0, 1);
    CHECK_OK(run(HL_OP_ARGMAX, ATTRS(.arg_reduce = {.axis = 0}), IN(F64(x, 2, 4)), OUT(I64(y, 4))));
    CHECK_INTS(y, 1, 1, 0, 1);
    int64_t top = ((int64_t)1 << 53) + 1, big[3] = {top - 1, top, top};
    CHECK_OK(run(HL_OP_ARGMAX, ATTRS(.arg_reduce = {.axis = 0}), IN(I64(big, 3)), OUT(I64(y, 1))));
    CHECK_INTS(y, 1);
    CHECK_OK(
        run(HL_OP_ARGMIN, ATTRS(.arg_reduce = {.axis = 0}), IN(I64(big + 1, 2)), OUT(I64(y, 1))));
    CHECK_INTS(y, 0);
}

static void test_moments_cumsum(void)
{
    double x[6] = {1, 2, 3, 5, 7, 9}, mean[3], var[3], y[6];
    CHECK_OK(run(HL_OP_MOMENTS, ATTRS(.axes = {.axes = {1, {1}}}), IN(F64(x, 2, 3)),
                 OUT(F64(mean, 2), F64(var, 2))));
    CHECK_CLOSE(mean, 2, 7);
    CHECK_CLOSE(var, 2.0 / 3, 8.0 / 3);
    double far[2] = {1e9 + 1, 1e9 + 3};
    CHECK_OK(run(HL_OP_MOMENTS, NULL, IN(F64(far, 2)), OUT(NUMBER(mean), NUMBER(var))));
    CHECK_CLOSE(var, 1);
    CHECK_OK(run(HL_OP_CUMSUM, ATTRS(.scan = {.axis = 1, .reverse = 0}), IN(F64(x, 2, 3)),
                 OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 1, 3, 6, 5, 12, 21);
    CHECK_OK(run(HL_OP_CUMSUM, ATTRS(.scan = {.axis = 0, .reverse = 1}), IN(F64(x, 2, 3)),
                 OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 6, 9, 12, 5, 7, 9);
}

/* ---- softmax and loss ------------------------------------------------------------------------ */

static void test_softmax(void)
{
    double ln2 = 0.6931471805599453, x[6] = {0, ln2, 0, 1000, 1000, -INFINITY}, y[6], z[6];
    CHECK_OK(run(HL_OP_SOFTMAX, NULL, IN(F64(x, 2, 3)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 0.25, 0.5, 0.25, 0.5, 0.5, 0);
    CHECK_OK(run(HL_OP_LOG_SOFTMAX, NULL, IN(F64(x, 2, 3)), OUT(F64(z, 2, 3))));
    CHECK_CLOSE(z, -2 * ln2, -ln2, -2 * ln2, -ln2, -ln2, -INFINITY);
    double dy[3] = {1, 2, 4}, dx[3];
    CHECK_OK(run(HL_OP_SOFTMAX_GRAD, NULL, IN(F64(dy, 1, 3), F64(y, 1, 3)), OUT(F64(dx, 1, 3))));
    CHECK_CLOSE(dx, 0.25 * (1 - 2.25), 0.5 * (2 - 2.25), 0.25 * (4 - 2.25));
    CHECK_OK(
        run(HL_OP_LOG_SOFTMAX_GRAD, NULL, IN(F64(dy, 1, 3), F64(z, 1, 3)), OUT(F64(dx, 1, 3))));
    CHECK_CLOSE(dx, 1 - 0.25 * 7, 2 - 0.5 * 7, 4 - 0.25 * 7);
    double bad[4] = {INFINITY, 0, NAN, 0};
    CHECK_OK(run(HL_OP_SOFTMAX, NULL, IN(F64(bad, 2, 2)), OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, NAN, NAN, NAN, NAN);
}

/* Rows of logits whose softmax is (1/4, 1/2, 1/4). */
static void test_cross_entropy(void)
{
    double ln2 = 0.6931471805599453, x[9] = {0, ln2, 0, 0, ln2, 0, 0, ln2, 0};
    double w[3] = {1, 2, 4}, loss[3], weight[3], dx[9], dloss[3] = {1, 10, 1};
    int64_t t[3] = {0, 1, -100};
    hl_attrs attrs = {.cross_entropy = {.ignore_index = -100}};
    CHECK_OK(run(HL_OP_CROSS_ENTROPY, &attrs, IN(F64(x, 3, 3), I64(t, 3)),
                 OUT(F64(loss, 3), F64(weight, 3))));
    CHECK_CLOSE(loss, 2 * ln2, ln2, 0);
    CHECK_CLOSE(weight, 1, 1, 0);
    CHECK_OK(run(HL_OP_CROSS_ENTROPY_GRAD, &attrs, IN(F64(dloss, 3), F64(x, 3, 3), I64(t, 3)),
                 OUT(F64(dx, 3, 3))));
    CHECK_CLOSE(dx, -0.75, 0.5, 0.25, 2.5, -5, 2.5, 0, 0, 0);
    CHECK_OK(run(HL_OP_CROSS_ENTROPY_GRAD, &attrs, IN(F64(dloss + 1, 1), F64(x, 3, 3), I64(t, 3)),
                 OUT(F64(dx, 3, 3))));
    CHECK_CLOSE(dx, -7.5, 5, 2.5, 2.5, -5, 2.5, 0, 0, 0);

    /* Smoothing 0.3 with weights: 0.7 w[t] nll + 0.1 (w . nll), nll = (2, 1, 2) ln 2: w . nll = 12
     * ln 2. */
    attrs.cross_entropy.label_smoothing = 0.3;
    CHECK_OK(run(HL_OP_CROSS_ENTROPY, &attrs, IN(F64(x, 3, 3), I64(t, 3), F64(w, 3)),
                 OUT(F64(loss, 3), F64(weight, 3))));
    CHECK_CLOSE(loss, (0.7 * 2 + 1.2) * ln2, (0.7 * 2 + 1.2) * ln2, 0);
    CHECK_CLOSE(weight, 1, 2, 0);
    CHECK_OK(run(HL_OP_CROSS_ENTROPY_GRAD, &attrs,
                 IN(F64(dloss, 3), F64(x, 3, 3), I64(t, 3), F64(w, 3)), OUT(F64(dx, 3, 3))));
    /* soft part 0.1 (7 p - w) = 0.1 (0.75, 1.5, -2.25); hard 0.7 w[t] (p - onehot) */
    CHECK_CLOSE(dx, 0.075 - 0.525, 0.15 + 0.35, -0.225 + 0.175, 0.75 + 3.5, 1.5 - 7, -2.25 + 3.5, 0,
                0, 0);

    int64_t outside[3] = {0, 3, -1};
    CHECK_OK(run(HL_OP_CROSS_ENTROPY, &attrs, IN(F64(x, 3, 3), I64(outside, 3)),
                 OUT(F64(loss, 3), F64(weight, 3))));
    CHECK_FAULT(1, 3);
    CHECK(loss[1] == 0 && weight[1] == 0 && loss[2] == 0 && weight[2] == 0 && weight[0] == 1);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void test_copies(void)
{
    int16_t x[6] = {1, 2, 3, 4, 5, 6}, y[24];
#define CHECK_SHORTS(...)                                                                          \
    CHECK(memcmp(y, ((int16_t[]){__VA_ARGS__}), sizeof((int16_t[]){__VA_ARGS__})) == 0)
    CHECK_OK(run(HL_OP_RESHAPE, NULL, IN(OF(I16, x, 2, 3)), OUT(OF(I16, y, 6))));
    CHECK_SHORTS(1, 2, 3, 4, 5, 6);
    CHECK_OK(run(HL_OP_PERMUTE, ATTRS(.permute = {.dims = {2, {1, 0}}}), IN(OF(I16, x, 2, 3)),
                 OUT(OF(I16, y, 3, 2))));
    CHECK_SHORTS(1, 4, 2, 5, 3, 6);
    CHECK_OK(run(HL_OP_PERMUTE, ATTRS(.permute = {.dims = {3, {2, 0, 1}}}), IN(OF(I16, x, 1, 2, 3)),
                 OUT(OF(I16, y, 3, 1, 2))));
    CHECK_SHORTS(1, 4, 2, 5, 3, 6);
    CHECK_OK(run(HL_OP_EXPAND, NULL, IN(OF(I16, x, 3, 1)), OUT(OF(I16, y, 2, 3, 2))));
    CHECK_SHORTS(1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3);
    CHECK_OK(run(HL_OP_CONCAT, ATTRS(.axis = {.axis = 1}), IN(OF(I16, x, 2, 1), OF(I16, x, 2, 2)),
                 OUT(OF(I16, y, 2, 3))));
    CHECK_SHORTS(1, 1, 2, 2, 3, 4);
    CHECK_OK(run(HL_OP_SLICE, ATTRS(.slice = {.axis = 1, .start = 0, .stop = 3, .step = 2}),
                 IN(OF(I16, x, 2, 3)), OUT(OF(I16, y, 2, 2))));
    CHECK_SHORTS(1, 3, 4, 6);
    CHECK_OK(run(HL_OP_SLICE, ATTRS(.slice = {.axis = 0, .start = 2, .stop = 3, .step = INT64_MAX}),
                 IN(OF(I16, x, 3, 2)), OUT(OF(I16, y, 1, 2))));
    CHECK_SHORTS(5, 6);
    CHECK_OK(run(HL_OP_SLICE,
                 ATTRS(.slice = {.axis = 0, .start = -2, .stop = INT64_MAX, .step = 1}),
                 IN(OF(I16, x, 3, 2)), OUT(OF(I16, y, 2, 2))));
    CHECK_SHORTS(3, 4, 5, 6);
    CHECK_OK(run(HL_OP_SLICE_GRAD,
                 ATTRS(.slice_grad = {.axis = 1, .start = 1, .step = 2, .size = 5}),
                 IN(OF(I16, x, 2, 2)), OUT(OF(I16, y, 2, 5))));
    CHECK_SHORTS(0, 1, 0, 2, 0, 0, 3, 0, 4, 0);
    CHECK_OK(run(HL_OP_FLIP, ATTRS(.flip = {.axes = {1, {1}}}), IN(OF(I16, x, 2, 3)),
                 OUT(OF(I16, y, 2, 3))));
    CHECK_SHORTS(3, 2, 1, 6, 5, 4);
    CHECK_OK(run(HL_OP_FLIP, ATTRS(.flip = {.axes = {2, {0, 1}}}), IN(OF(I16, x, 2, 3)),
                 OUT(OF(I16, y, 2, 3))));
    CHECK_SHORTS(6, 5, 4, 3, 2, 1);
#undef CHECK_SHORTS
}

static void test_pad(void)
{
    double x[4] = {1, 2, 3, 4}, y[24];
    CHECK_OK(run(HL_OP_PAD, ATTRS(.pad = {.before = {1, {2}}, .after = {1, {1}}, .value = 9}),
                 IN(F64(x, 3)), OUT(F64(y, 6))));
    CHECK_CLOSE(y, 9, 9, 1, 2, 3, 9);
    CHECK_OK(run(HL_OP_PAD, ATTRS(.pad = {.before = {1, {-1}}, .after = {1, {1}}, .value = 9}),
                 IN(F64(x, 3)), OUT(F64(y, 3))));
    CHECK_CLOSE(y, 2, 3, 9);
    hl_attrs attrs = {.pad = {.before = {1, {2}}, .after = {1, {2}}, .mode = 1}};
    CHECK_OK(run(HL_OP_PAD, &attrs, IN(F64(x, 4)), OUT(F64(y, 8))));
    CHECK_CLOSE(y, 3, 2, 1, 2, 3, 4, 3, 2);
    double dy[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    CHECK_OK(run(HL_OP_PAD_GRAD, &attrs, IN(F64(dy, 8)), OUT(F64(y, 4))));
    CHECK_CLOSE(y, 4, 2 + 8 + 128, 1 + 16 + 64, 32);
    attrs.pad.mode = 2;
    CHECK_OK(run(HL_OP_PAD, &attrs, IN(F64(x, 4)), OUT(F64(y, 8))));
    CHECK_CLOSE(y, 1, 1, 1, 2, 3, 4, 4, 4);
    CHECK_OK(run(HL_OP_PAD_GRAD, &attrs, IN(F64(dy, 8)), OUT(F64(y, 4))));
    CHECK_CLOSE(y, 7, 8, 16, 224);
    attrs.pad.mode = 3;
    CHECK_OK(run(HL_OP_PAD, &attrs, IN(F64(x, 4)), OUT(F64(y, 8))));
    CHECK_CLOSE(y, 3, 4, 1, 2, 3, 4, 1, 2);
    CHECK_OK(run(HL_OP_PAD, ATTRS(.pad = {.before = {2, {1, 0}}, .after = {2, {0, 1}}}),
                 IN(F64(x, 2, 2)), OUT(F64(y, 3, 3))));
    CHECK_CLOSE(y, 0, 0, 0, 1, 2, 0, 3, 4, 0);
}

/* ---- indexed access -------------------------------------------------------------------------- */

static void test_gather_scatter(void)
{
    double x[6] = {1, 2, 3, 4, 5, 6}, y[6], src[4] = {10, 20, 30, 40};
    int32_t at[4] = {2, 0, 1, 1};
    CHECK_OK(run(HL_OP_GATHER, ATTRS(.axis = {.axis = 1}), IN(F64(x, 2, 3), OF(I32, at, 2, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 1, 5, 5);
    int64_t row[2] = {1, 0}; /* an index narrower than x */
    CHECK_OK(run(HL_OP_GATHER, ATTRS(.axis = {.axis = 0}), IN(F64(x, 2, 3), I64(row, 1, 2)),
                 OUT(F64(y, 1, 2))));
    CHECK_CLOSE(y, 4, 2);
    CHECK_OK(run(HL_OP_SCATTER, ATTRS(.axis = {.axis = 1}),
                 IN(F64(x, 2, 3), OF(I32, at, 2, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 20, 2, 10, 4, 40, 6);
    CHECK_OK(run(HL_OP_SCATTER_ADD, ATTRS(.axis = {.axis = 1}),
                 IN(F64(x, 2, 3), OF(I32, at, 2, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 21, 2, 13, 4, 75, 6);
    CHECK_OK(run(HL_OP_SCATTER_ADD, ATTRS(.axis = {.axis = 0}),
                 IN(F64(x, 2, 3), I64(row, 1, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 1, 22, 3, 14, 5, 6);

    int64_t rows[4] = {1, 0, 0, 0};
    CHECK_OK(run(HL_OP_SCATTER, ATTRS(.axis = {.axis = 0}),
                 IN(F64(x, 2, 3), I64(rows, 2, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 30, 40, 3, 10, 5, 6);

    int32_t bad[4] = {2, -1, 1, 3};
    CHECK_OK(run(HL_OP_GATHER, ATTRS(.axis = {.axis = 1}), IN(F64(x, 2, 3), OF(I32, bad, 2, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 0, 5, 0);
    CHECK_FAULT(1, -1);
    CHECK_OK(run(HL_OP_SCATTER, ATTRS(.axis = {.axis = 1}),
                 IN(F64(x, 2, 3), OF(I32, bad, 2, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 1, 2, 10, 4, 30, 6);
    CHECK_FAULT(1, -1);
}

static void test_index_rows(void)
{
    double x[6] = {1, 2, 3, 4, 5, 6}, y[12], src[6] = {10, 20, 30, 40, 50, 60};
    int64_t at[4] = {2, 0, 0, 1}, twice[3] = {1, 0, 1}, bad[2] = {1, 3};
    CHECK_OK(run(HL_OP_INDEX_SELECT, ATTRS(.axis = {.axis = 0}), IN(F64(x, 3, 2), I64(at, 2, 2)),
                 OUT(F64(y, 2, 2, 2))));
    CHECK_CLOSE(y, 5, 6, 1, 2, 1, 2, 3, 4);
    CHECK_OK(run(HL_OP_INDEX_SELECT, ATTRS(.axis = {.axis = 1}), IN(F64(x, 2, 3), I64(at, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 1, 6, 4);
    CHECK_OK(run(HL_OP_INDEX_ADD, ATTRS(.axis = {.axis = 0}),
                 IN(F64(x, 3, 2), I64(twice, 3), F64(src, 3, 2)), OUT(F64(y, 3, 2))));
    CHECK_CLOSE(y, 31, 42, 63, 84, 5, 6);
    CHECK_OK(run(HL_OP_INDEX_COPY, ATTRS(.axis = {.axis = 1}),
                 IN(F64(x, 2, 3), I64(twice, 3), F64(src, 2, 3)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 20, 30, 3, 50, 60, 6);
    CHECK_OK(run(HL_OP_INDEX_SELECT, ATTRS(.axis = {.axis = 0}), IN(F64(x, 3, 2), I64(bad, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 4, 0, 0);
    CHECK_FAULT(1, 3);
    int8_t i[3] = {1, 2, 3}, add[2] = {10, 100}, z[3];
    CHECK_OK(run(HL_OP_INDEX_ADD, ATTRS(.axis = {.axis = 0}),
                 IN(OF(I8, i, 3), I64(bad, 2), OF(I8, add, 2)), OUT(OF(I8, z, 3))));
    CHECK(z[0] == 1 && z[1] == 12 && z[2] == 3);
    CHECK_FAULT(1, 3);
}

static void test_batch_gather(void)
{
    uint8_t images[6] = {1, 2, 3, 4, 250, 255};
    int64_t at[2] = {2, 0}, bad[2] = {0, -2};
    double y[4];
    CHECK_OK(
        run(HL_OP_BATCH_GATHER, NULL, IN(OF(U8, images, 3, 2), I64(at, 2)), OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 250, 255, 1, 2);
    float f[2] = {0.5f, 1.5f};
    CHECK_OK(run(HL_OP_BATCH_GATHER, NULL, IN(OF(F32, f, 2), I64(bad, 2)), OUT(F64(y, 2))));
    CHECK_CLOSE(y, 0.5, 0);
    CHECK_FAULT(1, -2);
    int32_t labels[2] = {7, 8};
    int64_t out[2], swap[2] = {1, 0};
    CHECK_OK(run(HL_OP_BATCH_GATHER, NULL, IN(OF(I32, labels, 2), I64(swap, 2)), OUT(I64(out, 2))));
    CHECK_INTS(out, 8, 7);
}

/* ---- normalisation --------------------------------------------------------------------------- */

static void test_norm(void)
{
    /* channel 0: 1 3 5 7 (mean 4, var 5); channel 1: 2 2 2 2 */
    double x[8] = {1, 3, 2, 2, 5, 7, 2, 2}, w[2] = {2, 3}, b[2] = {10, 20}, y[8], mean[2], var[2];
    CHECK_OK(run(HL_OP_BATCH_NORM, ATTRS(.batch_norm = {.eps = 4}),
                 IN(F64(x, 2, 2, 2), F64(w, 2), F64(b, 2)),
                 OUT(F64(y, 2, 2, 2), F64(mean, 2), F64(var, 2))));
    CHECK_CLOSE(mean, 4, 2);
    CHECK_CLOSE(var, 5, 0);
    CHECK_CLOSE(y, 8, 10 - 2.0 / 3, 20, 20, 10 + 2.0 / 3, 12, 20, 20);

    double z[4] = {1, 3, 5, 7}, lw[4] = {1, 2, 1, 2}, lb[4] = {0, 0, 1, 1}, rstd[2];
    CHECK_OK(run(HL_OP_LAYER_NORM, ATTRS(.layer_norm = {.n_axes = 2, .eps = 4}),
                 IN(F64(z, 1, 2, 2)), OUT(F64(y, 1, 2, 2), F64(mean, 1), F64(rstd, 1))));
    CHECK_CLOSE(y, -1, -1.0 / 3, 1.0 / 3, 1);
    CHECK_CLOSE(mean, 4);
    CHECK_CLOSE(rstd, 1.0 / 3);
    CHECK_OK(run(HL_OP_LAYER_NORM, ATTRS(.layer_norm = {.n_axes = 1, .eps = 4}),
                 IN(F64(z, 1, 4), F64(lw, 4)), OUT(F64(y, 1, 4), F64(mean, 1), F64(rstd, 1))));
    CHECK_CLOSE(y, -1, -2.0 / 3, 1.0 / 3, 2);
    CHECK_OK(run(HL_OP_LAYER_NORM, ATTRS(.layer_norm = {.n_axes = 1, .eps = 4}),
                 IN(F64(z, 1, 4), F64(lw, 4), F64(lb, 4)),
                 OUT(F64(y, 1, 4), F64(mean, 1), F64(rstd, 1))));
    CHECK_CLOSE(y, -1, -2.0 / 3, 4.0 / 3, 3);
}

/* Against central differences of LAYER_NORM itself. */
static void test_layer_norm_grad(void)
{
    enum { R = 2, C = 3 };
    double x[R * C] = {0.3, -1.2, 2, 0.1, 0.9, -0.4}, w[C] = {1.5, -0.5, 2};
    double dy[R * C] = {1, -2, 0.5, 3, 0.25, -1}, y[R * C], dx[R * C], mean[R], rstd[R];
    hl_attrs attrs = {.layer_norm = {.n_axes = 1, .eps = 1e-5}};
    CHECK_OK(run(HL_OP_LAYER_NORM, &attrs, IN(F64(x, R, C), F64(w, C)),
                 OUT(F64(y, R, C), F64(mean, R), F64(rstd, R))));
    CHECK_OK(run(HL_OP_LAYER_NORM_GRAD, ATTRS(.layer_norm = {.n_axes = 1}),
                 IN(F64(dy, R, C), F64(x, R, C), F64(mean, R), F64(rstd, R), F64(w, C)),
                 OUT(F64(dx, R, C))));
    for (int i = 0; i < R * C; i++) {
        double saved = x[i], h = 1e-6, slope = 0;
        for (int side = -1; side <= 1; side += 2) {
            x[i] = saved + side * h;
            CHECK_OK(run(HL_OP_LAYER_NORM, &attrs, IN(F64(x, R, C), F64(w, C)),
                         OUT(F64(y, R, C), F64(mean, R), F64(rstd, R))));
            for (int j = 0; j < R * C; j++) slope += side * y[j] * dy[j] / (2 * h);
        }
        x[i] = saved;
        CHECK(fabs(slope - dx[i]) < 1e-8 * (1 + fabs(slope)));
    }
}

/* sum(y dy) of BATCH_NORM. */
static double sum_batch_norm(double *x, double *w, double *b, const double *dy)
{
    double y[12], mean[2], var[2], sum = 0;
    CHECK_OK(run(HL_OP_BATCH_NORM, ATTRS(.batch_norm = {.eps = 1e-2}),
                 IN(F64(x, 3, 2, 2), F64(w, 2), F64(b, 2)),
                 OUT(F64(y, 3, 2, 2), F64(mean, 2), F64(var, 2))));
    for (int i = 0; i < 12; i++) sum += y[i] * dy[i];
    return sum;
}

/* Against central differences of BATCH_NORM itself: of x, of the weight, of the bias. */
static void test_batch_norm_grad(void)
{
    double x[12] = {0.3, -1.2, 2, 0.1, 0.9, -0.4, 3, 1, -2, 0.7, 0.2, -0.6}, w[2] = {1.5, -0.5};
    double b[2] = {0.25, 2}, dy[12] = {1, -2, 0.5, 3, 0.25, -1, 2, -3, 0.75, 1.5, -0.5, 4};
    double y[12], mean[2], var[2], dx[12], dweight[2], dbias[2];
    struct {
        double *at, *gradient;
        int n;
    } parts[] = {{x, dx, 12}, {w, dweight, 2}, {b, dbias, 2}};
    CHECK_OK(run(HL_OP_BATCH_NORM, ATTRS(.batch_norm = {.eps = 1e-2}),
                 IN(F64(x, 3, 2, 2), F64(w, 2), F64(b, 2)),
                 OUT(F64(y, 3, 2, 2), F64(mean, 2), F64(var, 2))));
    CHECK_OK(run(HL_OP_BATCH_NORM_GRAD, ATTRS(.batch_norm = {.eps = 1e-2}),
                 IN(F64(dy, 3, 2, 2), F64(x, 3, 2, 2), F64(w, 2), F64(mean, 2), F64(var, 2)),
                 OUT(F64(dx, 3, 2, 2), F64(dweight, 2), F64(dbias, 2))));
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < parts[p].n; i++) {
            double saved = parts[p].at[i], h = 1e-6, slope = 0;
            for (int side = -1; side <= 1; side += 2) {
                parts[p].at[i] = saved + side * h;
                slope += side * sum_batch_norm(x, w, b, dy) / (2 * h);
            }
            parts[p].at[i] = saved;
            CHECK(fabs(slope - parts[p].gradient[i]) < 1e-8 * (1 + fabs(slope)));
        }
}

int main(void)
{
    test_coverage();
    test_faults();
    test_unary();
    test_binary();
    test_broadcast();
    test_integers();
    test_cast();
    test_fused();
    test_random();
    test_matmul();
    test_reduce();
    test_prod_grad();
    test_argreduce();
    test_moments_cumsum();
    test_softmax();
    test_cross_entropy();
    test_copies();
    test_pad();
    test_gather_scatter();
    test_index_rows();
    test_batch_gather();
    test_norm();
    test_batch_norm_grad();
    test_layer_norm_grad();
    return CHECK_DONE();
}
