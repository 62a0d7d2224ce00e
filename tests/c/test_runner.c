/* Runs over several plans of a session: windows of micro-batches of any of them, in any order, give
 * the same bits on every kind of device, cut at any place; and memory that is the largest plan's.
 */
#include "tests/c/async_device.h"
#include "tests/c/train.h"

enum { MAX_PLANS = 12, MAX_ENTRIES = 24, MAX_NUMBERS = 4096, N_ORDERS = 24 };

typedef struct outcome {
    double numbers[MAX_NUMBERS]; /* parameters, average, statistics */
    int64_t n, steps, batches;
    hl_control control;
} outcome;

/* A network with a plan for each of some numbers of rows, in one session. */
typedef struct several {
    trainer base; /* the session, the data, the first plan */
    trainer each[MAX_PLANS];
    int n_plans;
    hl_batches order[MAX_ENTRIES];
    int64_t n_order;
    hl_runner *runner;
} several;

static several s;
static outcome want, got;

static void add_plan(int64_t rows, int k)
{
    trainer *t = &s.each[s.n_plans];
    *t = s.base;
    t->net.rows = rows;
    t->net.accumulate = true;
    trainer_plan(t, &t->net, k, true, true);
    s.n_plans++;
}

static void open_session(const hl_backend *backend, uint64_t seed, int n_threads)
{
    memset(&s, 0, sizeof s);
    s.base.net = net_roll(seed, 2);
    trainer_open(&s.base, backend, n_threads);
}

/* After its plans are made. */
static void fill_session(int64_t k)
{
    s.base.plan = s.each[0].plan;
    s.base.net = s.each[0].net;
    trainer_fill(&s.base);
    for (int i = 0; i < s.n_plans; i++)
        CHECK_OK(hl_plan_dataset(s.each[i].plan, 0, s.base.data, DATA_ROWS));
    CHECK_OK(hl_runner_create(s.order, s.n_order, (int32_t)k, &s.runner));
}

static void close_session(void)
{
    hl_runner_destroy(s.runner);
    for (int i = 0; i < s.n_plans; i++) {
        hl_plan_destroy(s.each[i].plan);
        hl_feed_destroy(s.each[i].feed);
    }
    hl_session_destroy(s.base.session);
    s.base.device->ops->destroy(s.base.device);
}

static void read_store(outcome *out, const char *name, int64_t n)
{
    if (n)
        CHECK_OK(hl_session_read(s.base.session, name, 0, n, HL_DTYPE_F64, out->numbers + out->n));
    out->n += n;
}

static void read_outcome(outcome *out)
{
    const net *n = &s.base.net;
    out->n = 0;
    read_store(out, "param", n->n_flat);
    read_store(out, "ema", n->spec.ema ? n->n_flat : 0);
    read_store(out, "buffer", n->batch_norm ? n->width[1] : 0);
    CHECK_OK(hl_session_control_read(s.base.session, &out->control));
}

/* An epoch from this batch on, so many steps a call, each cut at every region if `cuts`. */
static void run_epoch(outcome *out, uint64_t epoch, int64_t batch, int64_t slice, bool cuts)
{
    hl_run_end end = HL_RUN_DONE;
    CHECK_OK(hl_runner_seek(s.runner, epoch, batch));
    for (int calls = 0; calls < 100000 && end != HL_RUN_FEED_END; calls++) {
        int64_t steps, batches;
        CHECK_OK(hl_runner_run(s.runner, slice, cuts, NULL, &end, &steps, &batches));
        out->steps += steps;
        out->batches += batches;
    }
}

/* Two to four plans, batches of each in turns of their own. */
static int64_t roll_order(dice *d)
{
    int n_plans = 2 + roll(d, 3);
    int64_t left[MAX_PLANS], k = 1 + roll(d, 4);
    for (int i = 0; i < n_plans; i++) {
        add_plan(3 + roll(d, 18), (int)k);
        left[i] = DATA_ROWS / s.each[i].net.rows;
    }
    s.n_order = 2 + roll(d, MAX_ENTRIES - 2);
    for (int64_t i = 0; i < s.n_order; i++) {
        int p = roll(d, n_plans);
        int64_t n = left[p] ? roll(d, (int)(left[p] < 4 ? left[p] + 1 : 4)) : 0;
        s.order[i] = (hl_batches){s.each[p].plan, n};
        left[p] -= n;
    }
    return k;
}

typedef enum way { IN_ONE, IN_SLICES, IN_PIECES } way;

static void run_order(const hl_backend *backend, uint64_t seed, int n_threads, way w, outcome *out)
{
    dice d = {hl_rng_key_make(seed, "order"), 0};
    memset(out, 0, sizeof *out);
    open_session(backend, seed, n_threads);
    fill_session(roll_order(&d));
    run_epoch(out, 0, 0, w == IN_ONE ? 1000 : 2, w == IN_PIECES);
    run_epoch(out, 1, 0, w == IN_ONE ? 1000 : 2, w == IN_PIECES);
    read_outcome(out);
    close_session();
}

static void check_same(void)
{
    CHECK_INT(got.n, want.n);
    CHECK_INT(got.steps, want.steps);
    CHECK_INT(got.batches, want.batches);
    CHECK_INT(memcmp(want.numbers, got.numbers, (size_t)want.n * sizeof *want.numbers), 0);
    CHECK_INT(memcmp(&want.control, &got.control, sizeof want.control), 0);
}

/* Cut between any two regions, or not: on the CPU, at any number of threads. */
static void test_pieces(void)
{
    for (uint64_t seed = 0; seed < N_ORDERS; seed++) {
        check_case("order %d", (int)seed);
        run_order(hl_cpu_backend(), seed, 1, IN_ONE, &want);
        CHECK(want.steps > 0);
        run_order(hl_cpu_backend(), seed, 2, IN_SLICES, &got);
        check_same();
        run_order(hl_cpu_backend(), seed, 3, IN_PIECES, &got);
        check_same();
    }
}

/* On an asynchronous device: captured or not, fed or not, by loaders, in bursts. */
static void test_asynchronous(void)
{
    const uint64_t n_orders = CHECK_UNDER_TSAN ? 4 : N_ORDERS;
    for (uint64_t seed = 0; seed < n_orders; seed++) {
        check_case("order %d", (int)seed);
        run_order(hl_ref_backend(), seed, 1, IN_ONE, &want);
        for (int variant = 0; variant < 24; variant++) {
            trainer_capture = variant % 2;
            trainer_slots = variant / 2 % 2 ? 8 : 2;
            trainer_fed = variant / 4 % 3 > 0;
            trainer_loaders = variant / 4 % 3 == 2 ? 2 : 0;
            async_eager = (int)seed % 3;
            check_case("order %d, variant %d", (int)seed, variant);
            run_order(async_backend(), seed, 1, variant / 12 ? IN_SLICES : IN_ONE, &got);
            check_same();
        }
        trainer_capture = trainer_fed = false;
        trainer_loaders = 0, trainer_slots = 2;
    }
}

/* An order of one plan is the plan's own run. */
static void test_one_plan(void)
{
    for (int k = 1; k <= 3; k++) {
        check_case("k %d", k);
        for (int by_runner = 0; by_runner < 2; by_runner++) {
            outcome *out = by_runner ? &got : &want;
            hl_run_end end;
            memset(out, 0, sizeof *out);
            open_session(hl_cpu_backend(), 7, 2);
            add_plan(7, k);
            s.order[0] = (hl_batches){s.each[0].plan, DATA_ROWS / 7};
            s.n_order = 1;
            fill_session(k);
            if (by_runner) {
                run_epoch(out, 3, 0, 1000, false);
            } else {
                CHECK_OK(hl_feed_seek(s.each[0].feed, 3, 0));
                CHECK_OK(hl_plan_run(s.each[0].plan, 1000, 0, NULL, &end, &out->steps));
                out->batches = DATA_ROWS / 7;
            }
            read_outcome(out);
            close_session();
        }
        check_same();
    }
}

static void open_two(const hl_backend *backend, int64_t k)
{
    open_session(backend, 4, 2);
    add_plan(16, (int)k);
    add_plan(7, (int)k);
    s.order[0] = (hl_batches){s.each[0].plan, 5};
    s.order[1] = (hl_batches){s.each[1].plan, 2};
    s.n_order = 2;
    fill_session(k);
}

/* A window takes its micro-batches from the first plan, then from the second, and is one step: what
 * two plans do is what the sum of their gradients does. */
static void test_windows_of_two_plans(void)
{
    open_two(hl_cpu_backend(), 3);
    memset(&want, 0, sizeof want);
    run_epoch(&want, 0, 0, 1000, false);
    CHECK_INT(want.steps, 3); /* 16 16 16 | 16 16 7 | 7 */
    CHECK_INT(want.batches, 7);
    read_outcome(&want);
    CHECK_INT(want.control.attempted, 3);
    CHECK_INT(want.control.applied, 3);
    CHECK_INT(want.control.n_ring, 3);
    CHECK_INT(want.control.micro_row, 7);
    close_session();
}

/* Going to a batch in the middle gives what comes behind it, in the same windows. */
static void test_seek(void)
{
    for (int64_t batch = 0; batch <= 7; batch++) {
        check_case("from batch %d", (int)batch);
        open_two(hl_cpu_backend(), 1);
        memset(&got, 0, sizeof got);
        run_epoch(&got, 2, batch, 2, false);
        CHECK_INT(got.batches, 7 - batch);
        read_outcome(&got);
        memset(&want, 0, sizeof want);
        CHECK_OK(hl_runner_seek(s.runner, 2, 0));
        close_session();
        open_two(hl_cpu_backend(), 1);
        for (int64_t b = batch; b < 7; b++) {
            hl_run_end end;
            int64_t steps, plan = b >= 5;
            CHECK_OK(hl_feed_seek(s.each[plan].feed, 2, plan ? b - 5 : b));
            CHECK_OK(hl_plan_run(s.each[plan].plan, 1, 0, NULL, &end, &steps));
            want.steps += steps;
        }
        want.batches = 7 - batch;
        read_outcome(&want);
        close_session();
        check_same();
    }
}

/* An order that is given later, in the middle of a step too, runs as one that was there at first.
 */
static void test_reorder(void)
{
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        const hl_backend *backend = asynchronous ? async_backend() : hl_cpu_backend();
        hl_batches other[3];
        hl_run_end end;
        int64_t steps, batches;
        check_case("asynchronous %d", asynchronous);
        for (int is_later = 0; is_later < 2; is_later++) {
            outcome *out = is_later ? &got : &want;
            memset(out, 0, sizeof *out);
            open_two(backend, 2);
            other[0] = (hl_batches){s.each[1].plan, 1};
            other[1] = (hl_batches){s.each[0].plan, 3};
            other[2] = (hl_batches){s.each[1].plan, 1};
            if (is_later) {
                CHECK_OK(hl_runner_seek(s.runner, 0, 0));
                CHECK_OK(hl_runner_run(s.runner, 0, 1, NULL, &end, &steps, &batches));
                CHECK_OK(hl_runner_reorder(s.runner, other, 3));
            } else {
                hl_runner_destroy(s.runner);
                CHECK_OK(hl_runner_create(other, 3, 2, &s.runner));
            }
            run_epoch(out, 1, 0, 1, !asynchronous);
            read_outcome(out);
            CHECK_INT(out->batches, 5);
            if (is_later) {
                s.order[0].n = -1;
                CHECK_ERROR(hl_runner_reorder(s.runner, s.order, 2), HL_ERROR_CONFIG, "got -1");
                CHECK_ERROR(hl_runner_reorder(s.runner, s.order, 0), HL_ERROR_CONFIG,
                            "must have an entry");
            }
            close_session();
        }
        check_same();
    }
}

/* It begins at its beginning, wherever the one before stood. */
static void test_reorder_from_the_end(void)
{
    hl_run_end end;
    int64_t steps, batches;
    check_case("from the end");
    open_two(hl_cpu_backend(), 1);
    hl_batches other[] = {{s.each[0].plan, 1}, {s.each[1].plan, 1}};
    CHECK_OK(hl_runner_seek(s.runner, 0, 7));
    for (int i = 0; i < 2; i++) CHECK_OK(hl_feed_seek(s.each[i].feed, 0, 0));
    CHECK_OK(hl_runner_reorder(s.runner, other, 2));
    CHECK_OK(hl_runner_run(s.runner, 9, 0, NULL, &end, &steps, &batches));
    CHECK_INT(end, HL_RUN_FEED_END);
    CHECK_INT(batches, 2);
    close_session();
}

/* An order of plans that the runner was not made with. */
static void test_reorder_refuses_others(void)
{
    hl_batches other[2];
    hl_runner *one;
    check_case("another plan");
    open_two(hl_cpu_backend(), 1);
    CHECK_OK(hl_runner_create(s.order, 1, 1, &one));
    other[0] = s.order[0];
    other[1] = s.order[1];
    CHECK_ERROR(hl_runner_reorder(one, other, 2), HL_ERROR_CONFIG, "got another at place 1");
    hl_runner_destroy(one);
    close_session();
}

/* A stop is finished with the window, whichever plan it came from. */
static void test_stop(void)
{
    hl_run_end end;
    int64_t steps, batches;
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        check_case("asynchronous %d", asynchronous);
        open_two(asynchronous ? async_backend() : hl_cpu_backend(), 7);
        for (int64_t i = 0; i < DATA_ROWS * s.base.net.width[0]; i++) s.base.data[i] = NAN;
        for (int i = 0; i < 2; i++)
            CHECK_OK(hl_plan_dataset(s.each[i].plan, 0, s.base.data, DATA_ROWS));
        CHECK_OK(hl_runner_seek(s.runner, 0, 0));
        CHECK_OK(hl_runner_run(s.runner, 5, 0, NULL, &end, &steps, &batches));
        CHECK_INT(end, HL_RUN_STOPPED);
        CHECK_INT(steps, 1);
        read_outcome(&got);
        CHECK_INT(got.control.attempted, 1);
        CHECK_INT(got.control.skipped, 1);
        CHECK_INT(got.control.n_ring, 1);
        close_session();
    }
}

static void test_refused(void)
{
    hl_run_end end;
    int64_t steps, batches;
    hl_runner *runner;
    check_case("refused");
    open_two(hl_cpu_backend(), 2);
    CHECK_ERROR(hl_runner_create(s.order, 0, 1, &runner), HL_ERROR_CONFIG, "must have an entry");
    s.order[1].n = -1;
    CHECK_ERROR(hl_runner_create(s.order, 2, 1, &runner), HL_ERROR_CONFIG, "got -1");
    s.order[1].n = 2;
    CHECK_ERROR(hl_runner_seek(s.runner, 0, 8), HL_ERROR_CONFIG, "got 8");
    CHECK_ERROR(hl_runner_seek(s.runner, 0, -1), HL_ERROR_CONFIG, "got -1");
    hl_batches mixed[] = {s.order[0], {make_tanh(s.base.session), 1}};
    CHECK_ERROR(hl_runner_create(mixed, 2, 1, &runner), HL_ERROR_CONFIG, "all train or none");
    hl_plan_destroy(mixed[1].plan);
    CHECK_OK(hl_session_enter(s.base.session, "test"));
    CHECK_INT(hl_runner_run(s.runner, 1, 0, NULL, &end, &steps, &batches), HL_ERROR_BUSY);
    CHECK_INT(hl_runner_seek(s.runner, 0, 0), HL_ERROR_BUSY);
    CHECK_INT(hl_runner_abandon(s.runner), HL_ERROR_BUSY);
    hl_session_leave(s.base.session);
    /* The order promises more than the feed has. */
    hl_runner_destroy(s.runner);
    s.order[0].n = DATA_ROWS / 16 + 1;
    CHECK_OK(hl_runner_create(s.order, 2, 2, &s.runner));
    CHECK_ERROR(hl_runner_run(s.runner, 1000, 0, NULL, &end, &steps, &batches), HL_ERROR_CONFIG,
                "a feed must have the batches of the order");
    CHECK(!hl_runner_is_unfinished(s.runner));
    /* And where the second one's has not: the first one's stays where it was. */
    hl_runner_destroy(s.runner);
    s.order[0].n = 5;
    s.order[1].n = DATA_ROWS / 7 + 1;
    CHECK_OK(hl_runner_create(s.order, 2, 2, &s.runner));
    CHECK_OK(hl_runner_seek(s.runner, 0, 2));
    CHECK_ERROR(hl_runner_seek(s.runner, 1, 5 + s.order[1].n), HL_ERROR_CONFIG,
                "a feed must have the batches of the order, got 13 of 14");
    CHECK_OK(hl_runner_run(s.runner, 1, 0, NULL, &end, &steps, &batches));
    CHECK_INT(hl_feed_slot(s.each[0].feed), 4 % hl_feed_settings(s.each[0].feed)->n_slots);
    close_session();
}

/* A window in which the next plan cannot go on: what was not queued yet of its step is forgotten,
 * and the next step is whole. */
static void test_given_up_in_a_window(void)
{
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        hl_run_end end;
        int64_t steps, batches;
        check_case("given up, asynchronous %d", asynchronous);
        open_session(asynchronous ? async_backend() : hl_ref_backend(), 4, 1);
        add_plan(16, 3);
        add_plan(7, 3);
        s.order[0] = (hl_batches){s.each[0].plan, 1};
        s.order[1] = (hl_batches){s.each[1].plan, 2};
        s.n_order = 2;
        fill_session(3);
        for (int epoch = 0; epoch < 3; epoch++) {
            /* In the first one kernels are made ready, for which every plan must be. */
            if (epoch == 1) {
                CHECK_OK(hl_plan_dataset(s.each[1].plan, 0, NULL, DATA_ROWS));
                CHECK_OK(hl_runner_seek(s.runner, 1, 0));
                CHECK_ERROR(hl_runner_run(s.runner, 1, 0, NULL, &end, &steps, &batches),
                            HL_ERROR_CONFIG, "must be set before a run");
                CHECK_OK(hl_plan_dataset(s.each[1].plan, 0, s.base.data, DATA_ROWS));
            } else {
                run_epoch(&got, (uint64_t)epoch, 0, 1000, false);
            }
            read_outcome(&got);
            CHECK_INT(got.control.applied, (epoch + 2) / 2);
            /* What runs at once has begun the step. */
            CHECK_INT(got.control.attempted, epoch + 1 - (asynchronous && epoch));
        }
        close_session();
    }
}

/* A step left in the middle is lost to another run of the session, and can be given up. */
static void test_unfinished(void)
{
    hl_run_end end;
    int64_t steps, batches;
    for (int variant = 0; variant < 4; variant++) {
        check_case("variant %d", variant);
        open_two(hl_cpu_backend(), 7);
        CHECK_OK(hl_runner_seek(s.runner, 0, 0));
        CHECK_OK(hl_runner_run(s.runner, 1, 1, NULL, &end, &steps, &batches));
        CHECK_INT(end, HL_RUN_DEADLINE);
        CHECK(hl_runner_is_unfinished(s.runner));
        if (variant == 0) { /* another run */
            CHECK_OK(hl_plan_run(s.each[1].plan, 1, 0, NULL, &end, &steps));
            CHECK_ERROR(hl_runner_run(s.runner, 1, 0, NULL, &end, &steps, &batches),
                        HL_ERROR_CONFIG, "cannot go on");
        } else if (variant == 1) {
            CHECK_OK(hl_runner_abandon(s.runner));
        } else if (variant == 2) { /* nobody knows of a runner that is gone */
            hl_runner_destroy(s.runner);
            CHECK(!s.base.session->unfinished);
            CHECK_OK(hl_runner_create(s.order, s.n_order, 7, &s.runner));
        } else {
            CHECK_OK(hl_runner_seek(s.runner, 0, 0));
        }
        CHECK(!hl_runner_is_unfinished(s.runner));
        CHECK_OK(hl_runner_seek(s.runner, 0, 0));
        CHECK_OK(hl_runner_run(s.runner, 1, 0, NULL, &end, &steps, &batches));
        CHECK_INT(steps, 1);
        CHECK_INT(batches, 7);
        close_session();
    }
}

/* ---- inputs by hand -------------------------------------------------------------------------- */

/* The slots are shared: what was given to a plan is gone when another one took them. */
static void test_given_inputs(void)
{
    hl_run_end end;
    int64_t steps, rows[16] = {1, 2, 3};
    hl_shape shape = hl_shape_1d(16);
    check_case("given inputs");
    open_two(hl_cpu_backend(), 1);
    hl_plan *plan = s.each[0].plan, *other = s.each[1].plan;
    CHECK_OK(hl_plan_feed(plan, NULL));
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_I64, &shape, rows));
    CHECK_OK(hl_plan_run(plan, 2, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_run(other, 1, 0, NULL, &end, &steps));
    CHECK_ERROR(hl_plan_run(plan, 1, 0, NULL, &end, &steps), HL_ERROR_CONFIG,
                "input rows: must be given");
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_I64, &shape, rows));
    CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_feed(plan, s.each[0].feed));
    CHECK_OK(hl_plan_run(other, 1, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps)); /* by its feed */
    close_session();
}

int main(void)
{
    test_pieces();
    test_asynchronous();
    test_one_plan();
    test_windows_of_two_plans();
    test_seek();
    test_reorder();
    test_reorder_from_the_end();
    test_reorder_refuses_others();
    test_stop();
    test_refused();
    test_given_up_in_a_window();
    test_unfinished();
    test_given_inputs();
    return CHECK_DONE();
}
