/* Losses, random numbers, guarded updates and optimizers on the emulated GPU, against the reference
 * and, where bits are promised, against the CPU. */
#include "kernels/cpu/cpu.h"
#include "tests/c/update_cases.h"
#include "tests/cuda/device_case.h"

/* What a result of this dtype may be off by, of 1. */
static double roundoff(hl_dtype dtype)
{
    return dtype == HL_DTYPE_BF16 ? 0x1p-8 : dtype == HL_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

/* ---- cross-entropy ---- */

typedef struct loss_form {
    hl_dtype dtype, target;
    int64_t N, C;
    double smoothing;
    bool has_weight, has_fault, is_shared; /* is_shared: one gradient for all rows */
} loss_form;

/* Rows 1, 4, 7, ... are ignored; row 2 has a target that is no class, if asked. */
static void fill_targets(op_case *c, int i, const loss_form *form)
{
    case_fill(c, i, 0, (double)(form->C < 100 ? form->C : 100));
    for (int64_t n = 0; n < form->N; n++)
        if (n % 3 == 1) c->data[i][n] = (double)c->attrs.cross_entropy.ignore_index;
    if (form->has_fault) c->data[i][2] = (double)form->C;
}

static void check_loss(hl_op op, const loss_form *form)
{
    int logits = op == HL_OP_CROSS_ENTROPY_GRAD;
    op_case c = {.op = op, .n_in = logits + 2 + form->has_weight, .n_out = logits ? 1 : 2};
    c.attrs.cross_entropy.label_smoothing = form->smoothing;
    c.attrs.cross_entropy.ignore_index = form->target == HL_DTYPE_I64    ? -100
                                         : form->target == HL_DTYPE_BOOL ? 5
                                                                         : 1;
    if (logits) c.in[0] = flat_type(form->dtype, form->is_shared ? 1 : form->N);
    c.in[logits] = (hl_type){form->dtype, hl_shape_2d(form->N, form->C)};
    c.in[logits + 1] = flat_type(form->target, form->N);
    c.in[logits + 2] = flat_type(form->dtype, form->C);
    for (int j = 0; j < c.n_out; j++)
        c.out[j] = logits ? c.in[logits] : flat_type(form->dtype, form->N);
    for (int i = 0; i < c.n_in; i++) case_fill(&c, i, i == logits + 2 ? 0.2 : -3, i == 2 ? 1 : 3);
    fill_targets(&c, logits + 1, form);
    c.tolerance = roundoff(form->dtype) + (double)(form->C + 64) * 0x1p-23;
    check_case("%s %s target %s %lldx%lld smoothing %g weight %d fault %d", hl_op_get(op)->name,
               hl_dtype_name(form->dtype), hl_dtype_name(form->target), (long long)form->N,
               (long long)form->C, form->smoothing, form->has_weight, form->has_fault);
    case_check(&c);
    CHECK_INT(c.control_after[0].error_code, form->has_fault);
    CHECK_INT(c.control_after[0].error_code, c.control_after[1].error_code);
    CHECK_INT(c.control_after[0].error_row, c.control_after[1].error_row);
    CHECK_INT(c.control_after[0].error_value, c.control_after[1].error_value);
}

static void check_losses(loss_form form)
{
    for (int kind = 0; kind < 8; kind++) {
        form.smoothing = kind & 1 ? 0.1 : 0;
        form.has_weight = kind & 2;
        form.is_shared = kind & 4;
        if (!form.is_shared) check_loss(HL_OP_CROSS_ENTROPY, &form);
        check_loss(HL_OP_CROSS_ENTROPY_GRAD, &form);
    }
}

static void test_losses(void)
{
    static const hl_dtype floats[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    static const hl_dtype targets[] = {HL_DTYPE_I64, HL_DTYPE_I32, HL_DTYPE_I16, HL_DTYPE_I8,
                                       HL_DTYPE_U8};
    static const int64_t sizes[][2] = {{0, 3}, {1, 1}, {7, 2}, {33, 10}, {5, 1000}, {3, 1500}};
    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check_losses((loss_form){
                .dtype = floats[d], .target = HL_DTYPE_I64, .N = sizes[s][0], .C = sizes[s][1]});
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        check_losses((loss_form){.dtype = HL_DTYPE_F32, .target = targets[t], .N = 9, .C = 6});
        check_losses((loss_form){
            .dtype = HL_DTYPE_F32, .target = targets[t], .N = 9, .C = 6, .has_fault = true});
    }
    check_losses((loss_form){.dtype = HL_DTYPE_F32, .target = HL_DTYPE_BOOL, .N = 9, .C = 2});
}

/* ---- guarded updates ---- */

static void check_update(hl_op op, hl_dtype dtype, hl_dtype value_dtype, int64_t n, bool allows,
                         const hl_attrs *attrs)
{
    for (int apply = 0; apply < 2; apply++) {
        op_case c = {.op = op, .attrs = *attrs, .n_in = 2, .n_out = 1};
        c.segment = apply ? HL_SEGMENT_APPLY : HL_SEGMENT_MICRO;
        c.in[0] = c.out[0] = flat_type(dtype, n);
        c.in[1] = flat_type(value_dtype, n);
        case_fill(&c, 0, 0, 100), case_fill(&c, 1, 0, 100);
        add_control(&c, 3, allows);
        bool rounds = op != HL_OP_ASSIGN || value_dtype != dtype;
        c.tolerance = allows && rounds && hl_dtype_is_float(dtype)
                          ? 4 * (dtype == HL_DTYPE_F64 ? 0x1p-53 : roundoff(dtype))
                          : 0;
        check_case("%s %s from %s, n %lld, guard %d, apply %d", hl_op_get(op)->name,
                   hl_dtype_name(dtype), hl_dtype_name(value_dtype), (long long)n, !allows, apply);
        case_check(&c);
    }
}

static void test_updates(void)
{
    static const int64_t sizes[] = {0, 1, 1000};
    hl_attrs none = {.dtype = {0}}, ema = {.ema = {.decay = 0.9}};
    hl_attrs ramp = {.ema = {.decay = 0.9, .ramp = true}};
    hl_attrs blend = {.ema = {.decay = 0.9, .take = 0.25}};
    for (int to = 0; to < HL_DTYPE_COUNT; to++)
        for (int from = 0; from < HL_DTYPE_COUNT; from++)
            for (int k = 0; k < 6; k++) {
                hl_dtype state = (hl_dtype)to, value = (hl_dtype)from;
                int64_t n = sizes[k / 2];
                bool allows = k % 2;
                check_update(HL_OP_ASSIGN, state, value, n, allows, &none);
                check_update(HL_OP_ACCUMULATE, state, value, n, allows, &none);
                if (!hl_dtype_is_float(state)) continue;
                check_update(HL_OP_EMA, state, value, n, allows, &ema);
                check_update(HL_OP_EMA, state, value, n, allows, &blend);
                check_update(HL_OP_EMA, state, value, n, allows, &ramp);
            }
}

/* ---- the gradient's norm ---- */

static void check_norm(int64_t n, double clip, bool has_scale, double value)
{
    op_case c = {.op = HL_OP_GRADIENT_NORM, .attrs = {.gradient_norm = {clip}}, .n_out = 2};
    c.n_in = 2 + has_scale;
    for (int i = 0; i < 5; i++) {
        hl_type *type = i < 3 ? &c.in[i] : &c.out[i - 3];
        *type = i ? (hl_type){HL_DTYPE_F32, hl_shape_scalar()} : flat_type(HL_DTYPE_F32, n);
    }
    case_fill(&c, 0, -1, 1), case_fill(&c, 1, 0.1, 0.5), case_fill(&c, 2, 64, 64);
    if (n > 0) c.data[0][n - 1] = value;
    c.tolerance = 64 * 0x1p-24;
    check_case("gradient norm, n %lld, clip %g, scale %d, last %g", (long long)n, clip, has_scale,
               value);
    case_check(&c);
}

static void test_norm(void)
{
    static const int64_t sizes[] = {0, 1, 300, 32768, 32769, 100003};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int has_scale = 0; has_scale < 2; has_scale++)
            for (int clip = 0; clip < 3; clip++) {
                check_norm(sizes[s], clip == 2 ? 1e9 : 0.01 * clip, has_scale, 0.5);
                check_norm(sizes[s], clip == 2 ? 1e9 : 0.01 * clip, has_scale, INFINITY);
                check_norm(sizes[s], clip == 2 ? 1e9 : 0.01 * clip, has_scale, NAN);
            }
}

/* ---- transitions: the reference's are ir/control.h's, bit for bit ---- */

static void check_transition(hl_op op, hl_type operand, const hl_attrs *attrs, double low,
                             double high)
{
    op_case c = {.op = op, .attrs = *attrs, .n_in = 2, .n_out = 1, .is_guarded = true};
    c.in[0] = c.out[0] = flat_type(HL_DTYPE_U8, (int64_t)sizeof(hl_control));
    c.is_control[0] = true;
    c.in[1] = operand;
    case_fill(&c, 1, low, high);
    c.control.applied = 2, c.control.n_micro = 1, c.control.window_ok = 1;
    c.control.loss_scale = 8, c.control.scaling = 1, c.control.n_ring = HL_CONTROL_RING - 1;
    for (int s = 0; s < HL_CONTROL_SCALARS; s++) c.control.factor[s] = 1 + s;
    check_case("%s of %s", hl_op_get(op)->name, hl_dtype_name(operand.dtype));
    case_check(&c);
    CHECK_INT(memcmp(&c.control_after[0], &c.control_after[1], sizeof c.control), 0);
    CHECK(memcmp(&c.control_after[0], &c.control, sizeof c.control) != 0);
}

static void test_transitions(void)
{
    static const hl_dtype floats[] = {HL_DTYPE_F32, HL_DTYPE_F64, HL_DTYPE_BF16, HL_DTYPE_F16};
    static const int64_t dims[][2] = {{1, 9}, {3, 2}, {3, 0}, {HL_CONTROL_SCALARS + 3, 4}};
    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++) {
        hl_type number = {floats[d], hl_shape_scalar()};
        check_transition(HL_OP_CONTROL_MICRO, number, &(hl_attrs){.rows = {.rows = 16}}, 1, 2);
        check_transition(HL_OP_CONTROL_MICRO, number, &(hl_attrs){.rows = {.rows = 16}}, NAN, NAN);
        hl_attrs betas = {.betas = {0.9, 0.999}};
        check_transition(HL_OP_CONTROL_APPLY, number, &betas, 1, 2);
        check_transition(HL_OP_CONTROL_APPLY, number, &betas, INFINITY, INFINITY);
    }
    for (size_t s = 0; s < sizeof dims / sizeof *dims; s++)
        for (int d = 0; d < 2; d++) {
            hl_type tables = {HL_DTYPE_F64, hl_shape_2d(dims[s][0], dims[s][1])};
            check_transition(HL_OP_CONTROL_BEGIN, tables,
                             &(hl_attrs){.dtype = {.dtype = floats[d]}}, 0, 1);
        }
}

/* ---- random numbers: the CPU's bits ---- */

static hl_device *cpu;

static void check_random(hl_op op, hl_dtype dtype, hl_shape shape, double p)
{
    char text[HL_SHAPE_TEXT];
    op_case c = {.op = op, .n_in = 1, .n_out = 1};
    c.in[0] = flat_type(HL_DTYPE_U8, (int64_t)sizeof(hl_control));
    c.is_control[0] = true;
    c.out[0] = (hl_type){dtype, shape};
    if (op == HL_OP_DROPOUT_MASK)
        c.attrs.dropout_mask = (hl_attrs_dropout_mask){hl_ints_of(&shape), p, "body.0", 7, dtype};
    else
        c.attrs.uniform = (hl_attrs_uniform){hl_ints_of(&shape), "body.0", 7, dtype};
    c.control.attempted = 12345, c.control.micro_row = ((int64_t)3 << 32) + 17;
    check_case("%s %s %s p %g", hl_op_get(op)->name, hl_dtype_name(dtype),
               hl_shape_format(&shape, text), p);
    unsigned char *first[CASE_MAX] = {NULL}, *want[CASE_MAX] = {NULL};
    hl_kernel_req ignored;
    if (case_run_gpu(&c, first) && case_run_once(&c, cpu, 1, CASE_APART, want, &ignored))
        CHECK_INT(memcmp(first[0], want[0], case_bytes(&c.out[0])), 0);
    free(first[0]), free(want[0]);
    case_forget(&c);
}

static void test_random(void)
{
    static const hl_dtype floats[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    static const double p[] = {0, 0.1, 0.5, 0.9, 1};
    static const hl_shape shapes[] = {{0, {0}},        {1, {1}},     {1, {9}},    {2, {5, 13}},
                                      {2, {64, 128}},  {2, {0, 4}},  {2, {4, 0}}, {3, {7, 3, 5}},
                                      {2, {1, 10007}}, {2, {999, 3}}};
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, NULL, &cpu));
    for (size_t d = 0; d < sizeof floats / sizeof *floats; d++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            check_random(HL_OP_UNIFORM, floats[d], shapes[s], 0);
            for (size_t k = 0; k < sizeof p / sizeof *p; k++)
                check_random(HL_OP_DROPOUT_MASK, floats[d], shapes[s], p[k]);
        }
    cpu->ops->destroy(cpu);
}

int main(void)
{
    case_open();
    test_losses();
    test_updates();
    test_optimizers();
    test_norm();
    test_transitions();
    test_random();
    case_close();
    return CHECK_DONE();
}
