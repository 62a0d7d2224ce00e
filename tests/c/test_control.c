/* The control block's transitions (ir/control.h), each against what its contract says: every device
 * runs these functions, so that what is wrong in them is wrong everywhere alike, and a comparison
 * of two devices sees nothing. */
#include "ir/control.h"
#include "tests/c/check.h"

static hl_control make_control(void)
{
    hl_control control = {.window_ok = 1, .loss_scale = 1};
    for (int s = 0; s < HL_CONTROL_SCALARS; s++) control.factor[s] = 1;
    return control;
}

static const hl_control_log *last_entry(const hl_control *control)
{
    return &control->ring[(control->n_ring - 1) % HL_CONTROL_RING];
}

enum { N_SCALARS = 2, N_STEPS = 3 };
static const double tables[N_SCALARS * N_STEPS] = {0.5, 0.25, 0.125, 7, 8, 9};

static void begin(hl_control *control)
{
    hl_control_begin(control, tables, N_SCALARS, N_STEPS, true);
}

/* One step of one micro-batch of 4 rows. */
static void run_step(hl_control *control, double loss, double sumsq)
{
    begin(control);
    hl_control_micro(control, loss, 4);
    hl_control_apply(control, sumsq, 0, 0);
}

static void test_a_step(void)
{
    hl_control c = make_control();
    c.apply = 1;
    c.micro_row = c.n_micro = 99;
    c.window_ok = 0;
    begin(&c);
    CHECK_INT(c.attempted, 1);
    CHECK_INT(c.applied, 0);
    CHECK(c.micro_row == 0 && c.n_micro == 0 && c.window_ok == 1 && c.apply == 0);
    CHECK(hl_control_blocks_apply(&c) && !hl_control_blocks_micro(&c));
    hl_control_micro(&c, 3, 4);
    hl_control_micro(&c, 5, 2);
    CHECK(c.loss == 5 && c.micro_row == 6 && c.n_micro == 2 && c.window_ok == 1);
    hl_control_apply(&c, 9, 0, 0);
    CHECK(c.grad_norm == 3 && c.apply == 1 && c.window_ok == 1);
    CHECK(!hl_control_blocks_apply(&c) && !hl_control_blocks_micro(&c));
    CHECK(c.applied == 1 && c.skipped == 0 && c.n_ring == 1 && c.stopped == 0);
    const hl_control_log *entry = last_entry(&c);
    CHECK(entry->step == 1 && entry->loss == 5 && entry->grad_norm == 3 && entry->applied == 1);
    CHECK(entry->lr == 0.5);
}

/* Scalars go by optimizer steps, times the host's factor each; later steps keep the last ones. */
static void test_tables(void)
{
    hl_control c = make_control();
    c.nan_mode = HL_NAN_SKIP;
    c.factor[0] = 2, c.factor[1] = 10;
    static const double sumsq[] = {1, INFINITY, 1, 1, 1, 1};
    static const int at[] = {0, 1, 1, 2, 2, 2};
    for (int step = 0; step < 6; step++) {
        check_case("step %d", step);
        run_step(&c, 1, sumsq[step]);
        CHECK(c.scalar[0].d == 2 * tables[at[step]]);
        CHECK(c.scalar[1].d == 10 * tables[N_STEPS + at[step]]);
        CHECK(c.lr == c.scalar[0].d && last_entry(&c)->lr == c.lr);
        CHECK_INT(last_entry(&c)->step, step + 1);
        CHECK_INT(last_entry(&c)->applied, step != 1);
    }
    check_case("%s", "");
    CHECK(c.attempted == 6 && c.applied == 5 && c.skipped == 1);

    /* In float32; without a table nothing is read, but the scale is set. */
    c.loss_scale = 8;
    hl_control_begin(&c, tables, N_SCALARS, N_STEPS, false);
    CHECK(c.scalar[0].f == 0.25f && c.scalar[1].f == 90.0f && c.scale.f == 8.0f && c.lr == 0.25);
    hl_control_begin(&c, NULL, 0, 0, true);
    CHECK(c.scale.d == 8 && c.attempted == 8 && c.lr == 0.25);

    /* Tables that begin with a later step: before it the first holds, behind them the last. */
    for (int step = 0; step < 9; step++) {
        check_case("tables of steps 4 to 6, step %d", step);
        c.table_first = 4, c.applied = step;
        begin(&c);
        CHECK(c.lr == 2 * tables[step < 4 ? 0 : step < 6 ? step - 4 : 2]);
    }
    check_case("%s", "");
}

/* The step that stops is finished: it has its entry and counts as skipped. Nothing changes then. */
static void test_stop(void)
{
    for (int kind = 0; kind < 2; kind++) { /* by the loss, by the gradient */
        check_case("kind %d", kind);
        hl_control c = make_control();
        run_step(&c, 1, 1);
        begin(&c);
        hl_control_micro(&c, kind ? 2 : NAN, 4);
        CHECK_INT(c.stopped, !kind);
        CHECK(hl_control_blocks_micro(&c) == !kind);
        hl_control_micro(&c, 3, 4); /* of a stopped step: ignored */
        CHECK(kind ? c.loss == 3 && c.n_micro == 2 : isnan(c.loss) && c.n_micro == 1);
        hl_control_apply(&c, kind ? INFINITY : 1, 0, 0);
        CHECK(c.stopped == 1 && c.stopped_at == 2 && c.apply == 0);
        CHECK(c.attempted == 2 && c.applied == 1 && c.skipped == 1 && c.n_ring == 2);
        CHECK(last_entry(&c)->applied == 0 && last_entry(&c)->step == 2);
        hl_control before = c;
        run_step(&c, 7, 49);
        before.n_micro = 0; /* an empty window, by which apply knows that the step is over */
        CHECK(memcmp(&c, &before, sizeof c) == 0);
        c.apply = c.window_ok = 1;
        CHECK(hl_control_blocks_apply(&c) && hl_control_blocks_micro(&c));
    }
    check_case("%s", "");
}

static void test_skip(void)
{
    hl_control c = make_control();
    c.nan_mode = HL_NAN_SKIP;
    begin(&c);
    hl_control_micro(&c, NAN, 4);
    CHECK(!c.stopped && !c.window_ok && hl_control_blocks_micro(&c));
    hl_control_micro(&c, 1, 4); /* the window stays spoilt */
    CHECK(c.loss == 1 && c.micro_row == 8 && !c.window_ok);
    hl_control_apply(&c, 1, 0, 0);
    CHECK(!c.stopped && !c.apply && c.applied == 0 && c.skipped == 1);
    CHECK(c.window_ok == 1 && !hl_control_blocks_micro(&c) && hl_control_blocks_apply(&c));
    run_step(&c, 1, 1);
    CHECK(c.apply && c.applied == 1 && c.skipped == 1);
}

/* An index out of range spoils the window and stops nothing: the run reports it. */
static void test_fault(void)
{
    for (int mode = 0; mode < 2; mode++) {
        check_case("mode %d", mode);
        hl_control c = make_control();
        c.nan_mode = mode ? HL_NAN_SKIP : HL_NAN_STOP;
        c.loss_scale = 4, c.scaling = 1, c.good_steps = 5;
        begin(&c);
        c.error_code = 3;
        hl_control_micro(&c, 1, 4);
        CHECK(!c.window_ok && !c.stopped);
        hl_control_micro(&c, NAN, 4); /* what a wrong index reads may be anything */
        CHECK(!c.stopped);
        hl_control_apply(&c, INFINITY, 0, 0);
        CHECK(!c.stopped && !c.apply && c.skipped == 1 && c.applied == 0);
        CHECK(c.loss_scale == 4 && c.good_steps == 5);

        /* Found in apply itself, at a scale of 1, where an overflow would stop. */
        c.error_code = 0, c.loss_scale = 1;
        begin(&c);
        hl_control_micro(&c, 1, 4);
        c.error_code = 3;
        hl_control_apply(&c, 1, 0, 0);
        CHECK(!c.stopped && !c.apply && c.skipped == 2);
        CHECK(c.loss_scale == 1 && c.good_steps == 5);
    }
    check_case("%s", "");
}

/* Half on overflow, not below 1; twice after 2000 steps in a row without. */
static void test_loss_scale(void)
{
    hl_control c = make_control();
    c.loss_scale = 6, c.scaling = 1, c.good_steps = 1998;
    run_step(&c, 1, 1);
    CHECK(c.loss_scale == 6 && c.good_steps == 1999 && c.scale.d == 6);
    run_step(&c, 1, 1);
    CHECK(c.loss_scale == 12 && c.good_steps == 0 && c.scale.d == 6); /* from the next step on */
    run_step(&c, 1, 1);
    CHECK(c.loss_scale == 12 && c.good_steps == 1 && c.scale.d == 12);
    static const double scales[] = {6, 3, 1.5, 1};
    for (int i = 0; i < 4; i++) {
        check_case("overflow %d", i);
        run_step(&c, 1, INFINITY);
        CHECK(c.loss_scale == scales[i] && c.good_steps == 0 && !c.stopped && !c.apply);
    }
    check_case("%s", "");
    CHECK(c.skipped == 4 && c.applied == 3);
    run_step(&c, 1, INFINITY); /* at the floor it is the model's own */
    CHECK(c.loss_scale == 1 && c.stopped && c.stopped_at == 8 && c.skipped == 5);

    /* A loss that is not finite is not the scale's doing. */
    c = make_control();
    c.loss_scale = 6, c.scaling = 1, c.good_steps = 7, c.nan_mode = HL_NAN_SKIP;
    run_step(&c, NAN, INFINITY);
    CHECK(c.loss_scale == 6 && c.good_steps == 7 && c.skipped == 1);

    /* A scale that does not move. */
    c.scaling = 0;
    run_step(&c, 1, 1);
    run_step(&c, 1, INFINITY);
    CHECK(c.loss_scale == 6 && c.good_steps == 7 && c.applied == 1 && c.skipped == 2);
}

/* The ring has the last entries, each at its number. */
static void test_ring(void)
{
    hl_control c = make_control();
    for (int step = 0; step < HL_CONTROL_RING + 5; step++) run_step(&c, step, 1);
    CHECK_INT(c.n_ring, HL_CONTROL_RING + 5);
    for (int i = 5; i < HL_CONTROL_RING + 5; i++) {
        const hl_control_log *entry = &c.ring[i % HL_CONTROL_RING];
        CHECK(entry->loss == i && entry->step == i + 1);
    }
}

static void raise_step(hl_control *control, double sumsq, double beta1, double beta2)
{
    begin(control);
    hl_control_micro(control, 1, 4);
    hl_control_apply(control, sumsq, beta1, beta2);
}

/* Adam's powers are products of as many factors as there were optimizer steps, and the same bits
 * whether a run made all of them or was set to a step. */
static void test_powers(void)
{
    enum { STEPS = 3000, LAST = STEPS + 1 };
    static double power[LAST + 1][2];
    hl_control c = make_control(), set = make_control(), other = make_control();
    c.nan_mode = HL_NAN_SKIP;
    power[0][0] = power[0][1] = 1;
    for (int t = 1; t <= LAST; t++)
        power[t][0] = power[t - 1][0] * 0.9, power[t][1] = power[t - 1][1] * 0.999;
    for (int t = 1; t <= STEPS; t++) {
        if (t % 7 == 0) raise_step(&c, INFINITY, 0.9, 0.999); /* skipped: not a step */
        raise_step(&c, 1, 0.9, 0.999);
        CHECK(c.applied == t && c.powered == t);
        CHECK(c.power[0] == power[t][0] && c.power[1] == power[t][1]);
        CHECK(c.correction[0] == 1 / (1 - power[t][0]));
        CHECK(c.correction[1] == 1 / sqrt(1 - power[t][1]));
    }
    set.applied = STEPS;
    raise_step(&set, 1, 0.9, 0.999);
    CHECK(set.power[0] == power[LAST][0] && set.power[1] == power[LAST][1]);
    set.applied = 4; /* back */
    raise_step(&set, 1, 0.9, 0.999);
    CHECK(set.power[0] == power[5][0] && set.power[1] == power[5][1]);
    raise_step(&set, 1, 0.5, 0.75);
    raise_step(&other, 1, 0.5, 0.75);
    CHECK(set.applied == 6 && other.power[0] == 0.5 && other.power[1] == 0.75);
    CHECK(set.power[0] == 0x1p-6 && set.power[1] == 0x1p-12 * 729);
    set.applied = (int64_t)1 << 62; /* no factor counts any more */
    raise_step(&set, 1, 0.5, 0.75);
    CHECK(set.correction[0] == 1 && set.correction[1] == 1);
}

/* Moments that began within the run are corrected by their own age; those of its beginning have the
 * running product, with its bits. */
static void test_moments_that_began_later(void)
{
    enum { STEPS = 1000 };
    hl_control c = make_control();
    double correction[2];
    for (int t = 1; t <= STEPS; t++) raise_step(&c, 1, 0.9, 0.999);
    hl_control_correct(&c, hl_control_age(&c, 0), correction);
    CHECK(correction[0] == c.correction[0] && correction[1] == c.correction[1]);
    CHECK(hl_control_power(&c, 0, STEPS) == c.power[0]);
    for (int age = 1; age < STEPS; age++) {
        CHECK_INT(hl_control_age(&c, STEPS - age), age);
        hl_control_correct(&c, age, correction);
        CHECK(fabs(correction[0] * (1 - pow(0.9, age)) - 1) < 1e-13);
        CHECK(fabs(correction[1] * sqrt(1 - pow(0.999, age)) - 1) < 1e-12);
    }
    hl_control_correct(&c, 1, correction);
    CHECK(correction[0] == 1 / (1 - 0.9) && correction[1] == 1 / sqrt(1 - 0.999));
}

int main(void)
{
    test_powers();
    test_moments_that_began_later();
    test_a_step();
    test_tables();
    test_stop();
    test_skip();
    test_fault();
    test_loss_scale();
    test_ring();
    return CHECK_DONE();
}
