/* The reference backend where tests/ops does not look: what it has kernels for, memory that fails,
 * integers that no float64 holds, fused programs, rows of micro-batches, indices out of range. Its
 * values and gradients are held against NumPy and differences there. */
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
        CHECK((list && list[0]) == !is_packed);
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

/* ---- values ---------------------------------------------------------------------------------- */

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
    hl_program program = {.shape = {2, {2, 3}}, .split = {0, 1}, .n_in = 2, .n_out = 4};
    program.n_code = 5;
    program.n_regs = 5;
    program.code[0] = (hl_pw_instr){.op = HL_PW_LOAD, .dst = 0, .in = 0};
    program.code[1] = (hl_pw_instr){.op = HL_PW_LOAD, .dst = 1, .in = 1};
    program.code[2] = (hl_pw_instr){.op = HL_PW_NUMBER, .dst = 2, .number = 2};
    program.code[3] = (hl_pw_instr){.op = HL_PW_MUL, .dst = 3, .a = 0, .b = 2};
    program.code[4] = (hl_pw_instr){.op = HL_PW_ADD, .dst = 4, .a = 3, .b = 1};
    for (int j = 0; j < 4; j++) program.out[j].reg = 4;
    program.out[0].sums = HL_PW_FULL;
    program.out[1].sums = HL_PW_SUM_ROWS;
    program.out[2].sums = HL_PW_SUM_COLS;
    program.out[3].sums = HL_PW_SUM_ALL;
    check_case("fused");
    CHECK_OK(run_program(HL_OP_POINTWISE_FUSED, &program, NULL, IN(F64(x, 2, 3), F64(b, 3)),
                         OUT(F64(full, 2, 3), F64(rows, 3), F64(cols, 2), NUMBER(all))));
    CHECK_CLOSE(full, 12, 24, 36, 18, 30, 42);
    CHECK_CLOSE(rows, 30, 54, 78);
    CHECK_CLOSE(cols, 72, 90);
    CHECK_CLOSE(all, 162);
}

/* A double would take these for one another. */
static void test_large_integers(void)
{
    int64_t top = ((int64_t)1 << 53) + 1, i[4] = {top - 1, 1, -5, -7}, n[2];
    CHECK_OK(run(HL_OP_SUM, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, top, -12);
    CHECK_OK(run(HL_OP_MAX, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, top - 1, -5);
    CHECK_OK(run(HL_OP_MIN, ATTRS(.reduce = {.axes = {1, {0}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, -5, -7);
    CHECK_OK(
        run(HL_OP_PROD, ATTRS(.reduce = {.axes = {1, {1}}}), IN(I64(i, 2, 2)), OUT(I64(n, 2))));
    CHECK_INTS(n, top - 1, 35);
    int64_t big[3] = {top - 1, top, top};
    CHECK_OK(run(HL_OP_ARGMAX, ATTRS(.arg_reduce = {.axis = 0}), IN(I64(big, 3)), OUT(I64(n, 1))));
    CHECK_INTS(n, 1);
    CHECK_OK(
        run(HL_OP_ARGMIN, ATTRS(.arg_reduce = {.axis = 0}), IN(I64(big + 1, 2)), OUT(I64(n, 1))));
    CHECK_INTS(n, 0);
}

/* The sigmoid of a very small number is the smallest there is, not 0. */
static void test_underflow(void)
{
    double x[2] = {-745, -746}, y[2];
    CHECK_OK(run(HL_OP_SIGMOID, NULL, IN(F64(x, 2)), OUT(F64(y, 2))));
    CHECK(y[0] == 5e-324 && y[1] == 0);
}

/* Samples are counted from the micro-batch's first row: the second one alone has the same numbers
 * at a row offset one further. */
static void test_micro_rows(void)
{
    hl_control saved = control;
    double all[14], second[7];
    hl_rng_key key = hl_rng_key_make(42, "drop1");
    control.attempted = 5;
    control.micro_row = 100;
    CHECK_OK(run(HL_OP_UNIFORM,
                 ATTRS(.uniform = {.shape = {2, {2, 7}}, .stream = "drop1", .seed = 42}),
                 IN(CONTROL), OUT(F64(all, 2, 7))));
    CHECK(all[0] == (hl_rng_bits16(key, 5, 100, 0) + 0.5) / 65536);
    control.micro_row = 101;
    CHECK_OK(run(HL_OP_UNIFORM,
                 ATTRS(.uniform = {.shape = {2, {1, 7}}, .stream = "drop1", .seed = 42}),
                 IN(CONTROL), OUT(F64(second, 1, 7))));
    CHECK(memcmp(second, all + 7, sizeof second) == 0);

    /* Bits at the threshold are kept. */
    double mask[42];
    hl_attrs attrs = {.dropout_mask = {.shape = {3, {2, 3, 7}}, .stream = "drop1", .seed = 42}};
    double *p = &attrs.dropout_mask.p;
    control.micro_row = 100;
    *p = hl_rng_bits16(key, 5, 100, 0) / 65536.0;
    CHECK_OK(run(HL_OP_DROPOUT_MASK, &attrs, IN(CONTROL), OUT(F64(mask, 2, 3, 7))));
    CHECK_CLOSE(mask, 1 / (1 - *p));
    control = saved;
}

/* One gradient for all rows of logits, whose softmax is (1/4, 1/2, 1/4). */
static void test_loss_of_one_gradient(void)
{
    double ln2 = 0.6931471805599453, x[9] = {0, ln2, 0, 0, ln2, 0, 0, ln2, 0}, dloss[1] = {10};
    double dx[9];
    int64_t t[3] = {0, 1, -100};
    CHECK_OK(run(HL_OP_CROSS_ENTROPY_GRAD, ATTRS(.cross_entropy = {.ignore_index = -100}),
                 IN(F64(dloss, 1), F64(x, 3, 3), I64(t, 3)), OUT(F64(dx, 3, 3))));
    CHECK_CLOSE(dx, -7.5, 5, 2.5, 2.5, -5, 2.5, 0, 0, 0);
}

/* The first index out of range is on record with its row; what it would have read is 0, what it
 * would have written is left. */
static void test_index_faults(void)
{
    double x[6] = {1, 2, 3, 4, 5, 6}, y[6], src[4] = {10, 20, 30, 40};
    int32_t at[4] = {2, -1, 1, 3};
    CHECK_OK(run(HL_OP_GATHER, ATTRS(.axis = {.axis = 1}), IN(F64(x, 2, 3), OF(I32, at, 2, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 0, 5, 0);
    CHECK_FAULT(1, -1);
    CHECK_OK(run(HL_OP_SCATTER, ATTRS(.axis = {.axis = 1}),
                 IN(F64(x, 2, 3), OF(I32, at, 2, 2), F64(src, 2, 2)), OUT(F64(y, 2, 3))));
    CHECK_CLOSE(y, 1, 2, 10, 4, 30, 6);
    CHECK_FAULT(1, -1);

    int64_t rows[2] = {1, 3};
    CHECK_OK(run(HL_OP_INDEX_SELECT, ATTRS(.axis = {.axis = 0}), IN(F64(x, 3, 2), I64(rows, 2)),
                 OUT(F64(y, 2, 2))));
    CHECK_CLOSE(y, 3, 4, 0, 0);
    CHECK_FAULT(1, 3);
    int8_t i[3] = {1, 2, 3}, add[2] = {10, 100}, z[3];
    CHECK_OK(run(HL_OP_INDEX_ADD, ATTRS(.axis = {.axis = 0}),
                 IN(OF(I8, i, 3), I64(rows, 2), OF(I8, add, 2)), OUT(OF(I8, z, 3))));
    CHECK(z[0] == 1 && z[1] == 12 && z[2] == 3);
    CHECK_FAULT(1, 3);

    float f[2] = {0.5f, 1.5f};
    int64_t bad[2] = {0, -2}, outside[3] = {0, 3, -1};
    CHECK_OK(run(HL_OP_BATCH_GATHER, NULL, IN(OF(F32, f, 2), I64(bad, 2)), OUT(F64(y, 2))));
    CHECK_CLOSE(y, 0.5, 0);
    CHECK_FAULT(1, -2);
    double logits[9] = {0}, loss[3], weight[3];
    CHECK_OK(run(HL_OP_CROSS_ENTROPY, ATTRS(.cross_entropy = {.ignore_index = -100}),
                 IN(F64(logits, 3, 3), I64(outside, 3)), OUT(F64(loss, 3), F64(weight, 3))));
    CHECK_FAULT(1, 3);
    CHECK(loss[1] == 0 && weight[1] == 0 && loss[2] == 0 && weight[2] == 0 && weight[0] == 1);
}

int main(void)
{
    test_coverage();
    test_faults();
    test_integers();
    test_cast();
    test_fused();
    test_large_integers();
    test_underflow();
    test_micro_rows();
    test_loss_of_one_gradient();
    test_index_faults();
    return CHECK_DONE();
}
