/* The reference backend's control ops, guarded updates and optimizers, against values computed by
 * hand. */
#include "tests/c/ref.h"

/* The block as it is in the apply segment of its n-th optimizer step. */
static void allow(int64_t n)
{
    control = (hl_control){.apply = 1, .applied = n, .window_ok = 1, .loss_scale = 1};
    segment = HL_SEGMENT_APPLY;
}

static void test_control_ops(void)
{
    control = (hl_control){.loss_scale = 1};
    for (int s = 0; s < HL_CONTROL_SCALARS; s++) control.factor[s] = 1;
    double tables[4] = {0.5, 0.25, 3, 4}, loss = 2, sumsq = 9;
    CHECK_OK(run(HL_OP_CONTROL_BEGIN, ATTRS(.dtype = {.dtype = HL_DTYPE_F64}),
                 IN(CONTROL, F64(tables, 2, 2)), OUT(CONTROL)));
    CHECK(control.scalar[0].d == 0.5 && control.scalar[1].d == 3);
    CHECK_OK(run(HL_OP_CONTROL_MICRO, ATTRS(.rows = {.rows = 16}), IN(CONTROL, NUMBER(&loss)),
                 OUT(CONTROL)));
    CHECK_INT(control.micro_row, 16);
    CHECK_OK(run(HL_OP_CONTROL_APPLY, NULL, IN(CONTROL, NUMBER(&sumsq)), OUT(CONTROL)));
    CHECK(control.apply && control.grad_norm == 3);
    CHECK_INT(control.applied, 1);
    float narrow = 4; /* as the plans of other devices have it */
    operand f32[] = {CONTROL, {{HL_DTYPE_F32, {0, {0}}}, &narrow}};
    CHECK_OK(run(HL_OP_CONTROL_APPLY, NULL, f32, 2, OUT(CONTROL)));
    CHECK(control.grad_norm == 2);
    CHECK_OK(run(HL_OP_CONTROL_BEGIN, ATTRS(.dtype = {.dtype = HL_DTYPE_F32}),
                 IN(CONTROL, F64(tables, 2, 2)), OUT(CONTROL)));
    CHECK(control.scalar[1].f == 4);
    CHECK_ERROR(run(HL_OP_CONTROL_BEGIN, ATTRS(.dtype = {.dtype = HL_DTYPE_BF16}),
                    IN(CONTROL, F64(tables, 2, 2)), OUT(CONTROL)),
                HL_ERROR_DEVICE, "got bfloat16");
}

static void test_updates(void)
{
    double state[2] = {1, 2}, value[2] = {10, 20};
    int64_t count[1] = {(int64_t)1 << 53}, one[1] = {1};
    allow(1);
    CHECK_OK(
        run(HL_OP_ASSIGN, NULL, IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 10, 20);
    CHECK_OK(
        run(HL_OP_ACCUMULATE, NULL, IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 20, 40);
    CHECK_OK(
        run(HL_OP_ACCUMULATE, NULL, IN(I64(count, 1), I64(one, 1), CONTROL), OUT(I64(count, 1))));
    CHECK_INTS(count, ((int64_t)1 << 53) + 1);
    CHECK_OK(run(HL_OP_ASSIGN, NULL, IN(I64(one, 1), I64(count, 1), CONTROL), OUT(I64(one, 1))));
    CHECK_INTS(one, ((int64_t)1 << 53) + 1);
    CHECK_OK(run(HL_OP_EMA, ATTRS(.ema = {.decay = 0.75}),
                 IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 17.5, 35);
    allow(2); /* ramp: min(0.75, 3/12) */
    CHECK_OK(run(HL_OP_EMA, ATTRS(.ema = {.decay = 0.75, .ramp = 1}),
                 IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 0.25 * 17.5 + 7.5, 0.25 * 35 + 15);
    double before[2] = {state[0], state[1]};
    CHECK_OK(run(HL_OP_EMA, ATTRS(.ema = {.decay = 0.5, .take = 2}),
                 IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 0.5 * before[0] + 2 * value[0], 0.5 * before[1] + 2 * value[1]);

    /* Held back: in the apply segment by apply, in others by the window; always by a stop. */
    double kept[2] = {state[0], state[1]};
    control.apply = 0;
    for (int blocked = 0; blocked < 3; blocked++) {
        CHECK_OK(
            run(HL_OP_ASSIGN, NULL, IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
        CHECK_OK(run(HL_OP_ACCUMULATE, NULL, IN(F64(state, 2), F64(value, 2), CONTROL),
                     OUT(F64(state, 2))));
        CHECK_OK(run(HL_OP_EMA, ATTRS(.ema = {.decay = 0.5}),
                     IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
        CHECK(memcmp(state, kept, sizeof kept) == 0);
        allow(2);
        if (blocked == 0) segment = HL_SEGMENT_MICRO, control.window_ok = 0;
        if (blocked == 1) control.stopped = 1;
    }
    control = (hl_control){.window_ok = 1};
    segment = HL_SEGMENT_MICRO;
    CHECK_OK(
        run(HL_OP_ASSIGN, NULL, IN(F64(state, 2), F64(value, 2), CONTROL), OUT(F64(state, 2))));
    CHECK_CLOSE(state, 10, 20);
}

/* ---- optimizers ------------------------------------------------------------------------------ */

/* Four parameters: 0 with half the rate and decay 0.5, 1 and 2 plain, 3 in no segment. */
static double segments[10] = {0, 1, 0.5, 0.5, 0, 1, 3, 1, 0, 0};
static double grad[4], param[4], state0[4], state1[4], state2[4], grad_scale = 0.5, lr = 0.1;

static void reset(void)
{
    for (int i = 0; i < 4; i++) {
        grad[i] = 4; /* 2 once it is scaled */
        param[i] = 1;
        state0[i] = state1[i] = state2[i] = 0;
    }
}

#define OPTIMIZER_TAIL F64(grad, 4), F64(segments, 2, 5), NUMBER(&grad_scale), NUMBER(&lr), CONTROL

static void run_sgd(const hl_attrs *attrs, int64_t step)
{
    allow(step);
    CHECK_OK(run(HL_OP_SGD, attrs, IN(F64(param, 4), F64(state0, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4))));
    CHECK(param[3] == 1 && state0[3] == 0);
}

static void test_sgd(void)
{
    reset();
    double none[1] = {77};
    allow(1);
    CHECK_OK(run(HL_OP_SGD, NULL, IN(F64(param, 4), F64(none, 0), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(none, 0))));
    CHECK_CLOSE(param, 1 - 0.05 * 2.5, 0.8, 0.8, 1);
    CHECK(none[0] == 77);

    hl_attrs attrs = {.sgd = {.momentum = 0.5, .dampening = 0.25}};
    reset();
    run_sgd(&attrs, 1); /* the buffer is the gradient, undamped */
    CHECK_CLOSE(param, 1 - 0.05 * 2.5, 0.8);
    CHECK_CLOSE(state0, 2.5, 2, 2, 0);
    run_sgd(&attrs, 2); /* 0.5 * 2 + 0.75 * 2 */
    CHECK_CLOSE(state0 + 1, 2.5);
    CHECK_CLOSE(param + 1, 0.8 - 0.25);
    CHECK_CLOSE(state0, 0.5 * 2.5 + 0.75 * (2 + 0.5 * 0.875));
    attrs = (hl_attrs){.sgd = {.momentum = 0.5, .nesterov = true}};
    reset();
    run_sgd(&attrs, 1); /* Nesterov: 2 + 0.5 * 2 */
    CHECK_CLOSE(param + 1, 0.7);
}

static void run_adam(int64_t decoupled, int64_t step)
{
    allow(step);
    hl_attrs attrs = {.adam = {0.5, 0.75, 0.5, decoupled}};
    hl_control_raise(&control, 0.5, 0.75);
    CHECK_OK(run(HL_OP_ADAM, &attrs,
                 IN(F64(param, 4), F64(state0, 4), F64(state1, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4), F64(state1, 4))));
    CHECK(param[3] == 1 && state0[3] == 0 && state1[3] == 0);
}

static void test_adam(void)
{
    reset();
    run_adam(0, 1); /* corrected m = g, v = g * g: the step is g / (g + eps) */
    CHECK_CLOSE(param, 1 - 0.05 * 2.5 / 3, 1 - 0.1 * 2 / 2.5, 0.92, 1);
    CHECK_CLOSE(state0, 1.25, 1, 1, 0);
    CHECK_CLOSE(state1, 0.25 * 6.25, 1, 1, 0);
    run_adam(0, 2); /* m = 1.5 of 0.75, v = 1.75 of 0.4375: both corrected to 2 and 4 */
    CHECK_CLOSE(param + 1, 0.92 - 0.1 * 2 / 2.5);
    reset();
    run_adam(1, 1); /* decay beside the moments: 1 - 0.05 * 0.5 */
    CHECK_CLOSE(param, 0.975 - 0.05 * 2 / 2.5, 0.92);
    CHECK_CLOSE(state0, 1);
}

static void run_rmsprop(const hl_attrs *attrs)
{
    allow(1);
    CHECK_OK(run(HL_OP_RMSPROP, attrs,
                 IN(F64(param, 4), F64(state0, 4), F64(state1, 4), F64(state2, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4), F64(state1, 4), F64(state2, 4))));
    CHECK(param[3] == 1 && state0[3] == 0);
}

static void test_rmsprop(void)
{
    hl_attrs attrs = {.rmsprop = {.alpha = 0.75, .eps = 0.5}};
    reset();
    run_rmsprop(&attrs); /* square average 0.25 * 4 = 1: 2 / (1 + 0.5) */
    CHECK_CLOSE(param, 1 - 0.05 * 2.5 / (1.25 + 0.5), 1 - 0.1 * 2 / 1.5);
    CHECK_CLOSE(state0, 0.25 * 6.25, 1);
    CHECK(state1[1] == 0 && state2[1] == 0);
    attrs.rmsprop.momentum = 0.5;
    attrs.rmsprop.centered = true;
    reset();
    state1[1] = 4;
    run_rmsprop(&attrs); /* centred: 1 - 0.5 * 0.5; momentum: 0.5 * 4 + step */
    double velocity = 2 + 2 / (sqrt(0.75) + 0.5);
    CHECK_CLOSE(state1 + 1, velocity);
    CHECK_CLOSE(state2 + 1, 0.5);
    CHECK_CLOSE(param + 1, 1 - 0.1 * velocity);
}

static void test_lion(void)
{
    hl_attrs attrs = {.lion = {0.5, 0.75}};
    reset();
    state0[1] = -8; /* 0.5 * -8 + 0.5 * 2 < 0 */
    state0[2] = -2; /* exactly 0 */
    allow(1);
    CHECK_OK(run(HL_OP_LION, &attrs, IN(F64(param, 4), F64(state0, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4))));
    CHECK_CLOSE(param, 1 - 0.05 * (1 + 0.5), 1.1, 1, 1);
    CHECK_CLOSE(state0, 0.5, -5.5, -1, 0);
}

static void test_optimizer_guard(void)
{
    reset();
    double kept[4];
    memcpy(kept, param, sizeof kept);
    allow(1);
    control.apply = 0;
    CHECK_OK(run(HL_OP_LION, NULL, IN(F64(param, 4), F64(state0, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4))));
    allow(1);
    control.stopped = 1;
    CHECK_OK(run(HL_OP_SGD, ATTRS(.sgd = {.momentum = 0.5}),
                 IN(F64(param, 4), F64(state0, 4), OPTIMIZER_TAIL),
                 OUT(F64(param, 4), F64(state0, 4))));
    CHECK(memcmp(param, kept, sizeof kept) == 0 && state0[1] == 0);
}

int main(void)
{
    test_control_ops();
    test_updates();
    test_sgd();
    test_adam();
    test_rmsprop();
    test_lion();
    test_optimizer_guard();
    return CHECK_DONE();
}
