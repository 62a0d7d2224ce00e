/* Runs of training plans: what is left in the middle, given up, spoiled by a NaN or a wrong index,
 * or followed by another plan of the session. */
#include "tests/c/train.h"

static trainer t;

/* A network whose step has several regions in every segment. */
static void open_step(int k)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(4, k);
    trainer_open(&t, hl_cpu_backend(), 2);
    trainer_plan(&t, &t.net, k, true, true);
    trainer_fill(&t);
}

static hl_control read_control(void)
{
    hl_control control;
    CHECK_OK(hl_session_control_read(t.session, &control));
    return control;
}

static void set_nan_mode(hl_nan_mode mode)
{
    hl_control control = read_control();
    control.nan_mode = mode;
    CHECK_OK(hl_session_control_write(t.session, &control));
}

static void spoil_data(void)
{
    for (int64_t i = 0; i < DATA_ROWS * t.net.width[0]; i++) t.data[i] = NAN;
}

/* From deadline to deadline: one region a call. */
static hl_run_end run_region_by_region(int64_t n_calls)
{
    hl_run_end end = HL_RUN_DEADLINE;
    int64_t steps;
    for (int64_t i = 0; i < n_calls && end == HL_RUN_DEADLINE; i++) {
        CHECK_OK(hl_plan_run(t.plan, 1, 1, NULL, &end, &steps));
        bool cuts_apply = hl_plan_is_unfinished(t.plan) && t.plan->run.segment == HL_SEGMENT_APPLY;
        CHECK(!cuts_apply);
    }
    return end;
}

/* Another plan of the session: x (3) -> tanh(x); with a metric: its sum is added up. */
static hl_plan *make_other(int64_t n, bool has_metric)
{
    hl_graph *graph;
    hl_plan *plan;
    hl_id x, sum, metric;
    int32_t store;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(n)}, number = {HL_DTYPE_F64, hl_shape_scalar()};
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    if (has_metric) {
        CHECK_OK(hl_graph_store(graph, "metric", HL_DTYPE_F64, 1, &store));
        CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, number, store, 0, "metric", &metric));
        CHECK_OK(hl_build_unary(graph, HL_OP_ISFINITE, x, &sum));
        CHECK_OK(hl_build_cast(graph, sum, HL_DTYPE_F32, &sum));
        CHECK_OK(hl_build_sum(graph, sum, NULL, 0, false, &sum));
        CHECK_OK(hl_graph_accumulate(graph, metric, sum));
    }
    CHECK_OK(hl_plan_create(t.session, graph, &options, &plan));
    return plan;
}

static hl_status run_other(hl_plan *plan)
{
    hl_run_end end;
    int64_t steps;
    return hl_plan_run(plan, 1, 0, NULL, &end, &steps);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

static void test_the_stopping_step_is_finished(void)
{
    open_step(2);
    spoil_data();
    CHECK_INT(run_region_by_region(10000), HL_RUN_STOPPED);
    CHECK(!hl_plan_is_unfinished(t.plan));
    hl_control control = read_control();
    CHECK_INT(control.attempted, 1);
    CHECK_INT(control.skipped, 1);
    CHECK_INT(control.n_ring, 1);
    trainer_close(&t);
}

/* A skipped step holds back its own commits, not the next plan's. */
static void test_metrics_after_a_skipped_step(void)
{
    hl_run_end end;
    int64_t steps;
    double metric = 0;
    for (int gives_up = 0; gives_up < 2; gives_up++) {
        open_step(2);
        set_nan_mode(HL_NAN_SKIP);
        spoil_data();
        if (gives_up) {
            while (read_control().window_ok) CHECK_INT(run_region_by_region(1), HL_RUN_DEADLINE);
            CHECK_OK(hl_plan_abandon(t.plan));
        } else {
            CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
            CHECK_INT(read_control().skipped, 1);
        }
        hl_plan *other = make_other(3, true);
        CHECK_OK(run_other(other));
        CHECK_OK(hl_session_read(t.session, "metric", 0, 1, HL_DTYPE_F64, &metric));
        CHECK_INT((int64_t)metric, 3);
        hl_plan_destroy(other);
        trainer_close(&t);
    }
}

/* ---- a feed that does not fit ---------------------------------------------------------------- */

static void test_a_feed_must_fit(void)
{
    open_step(1);
    hl_feed_options options = {
        .sampler = {.n = DATA_ROWS}, .batch = t.net.rows, .count = DATA_ROWS, .n_slots = 3};
    hl_run_end end;
    int64_t steps;
    hl_feed *feed;
    CHECK_OK(hl_feed_create(&options, &feed));
    CHECK_ERROR(hl_plan_feed(t.plan, feed), HL_ERROR_CONFIG, "2, at most, got 3");
    hl_feed_destroy(feed);
    options.n_slots = 2;
    options.batch = t.net.rows + 1;
    CHECK_OK(hl_feed_create(&options, &feed));
    CHECK_ERROR(hl_plan_feed(t.plan, feed), HL_ERROR_SHAPE, "input 0 must take its row numbers");
    hl_feed_destroy(feed);
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps)); /* by the feed it had */
    CHECK_INT(steps, 1);
    trainer_close(&t);
}

/* ---- a wrong index --------------------------------------------------------------------------- */

static void set_wrong_index(void)
{
    int64_t rows[64] = {DATA_ROWS};
    hl_shape shape = hl_shape_1d(t.net.rows);
    CHECK_OK(hl_plan_feed(t.plan, NULL));
    CHECK_OK(hl_plan_input(t.plan, 0, HL_DTYPE_I64, &shape, rows));
}

static void test_a_step_with_a_wrong_index_changes_nothing(void)
{
    enum { MAX_ELEMENTS = 4096 };
    float before[MAX_ELEMENTS], after[MAX_ELEMENTS];
    hl_run_end end;
    int64_t steps;
    open_step(1);
    set_wrong_index();
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F32, before));
    CHECK_INT(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps), HL_ERROR_DATA);
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F32, after));
    CHECK(!memcmp(before, after, (size_t)t.net.n_flat * sizeof *before));
    CHECK_INT(read_control().skipped, 1);
    CHECK_INT(read_control().stopped, 0);
    CHECK_OK(hl_plan_feed(t.plan, t.feed));
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    CHECK_INT(read_control().applied, 1);
    trainer_close(&t);
}

/* Its node number means nothing to a plan with fewer nodes. */
static void test_a_fault_ends_with_its_step(void)
{
    open_step(1);
    set_wrong_index();
    while (!read_control().error_code) CHECK_INT(run_region_by_region(1), HL_RUN_DEADLINE);
    CHECK_OK(hl_plan_abandon(t.plan));
    hl_plan *other = make_other(3, false);
    CHECK_OK(run_other(other));
    hl_plan_destroy(other);
    trainer_close(&t);
}

/* ---- plans that share the arena -------------------------------------------------------------- */

static void test_a_step_left_in_the_middle_is_lost_to_another_plan(void)
{
    hl_run_end end;
    int64_t steps;
    float given[3] = {1, 2, 3};
    hl_shape shape = hl_shape_1d(3);
    for (int variant = 0; variant < 3; variant++) {
        check_case("variant %d", variant);
        open_step(2);
        run_region_by_region(3);
        CHECK(hl_plan_is_unfinished(t.plan));
        hl_plan *other = make_other(variant ? 3 : 1 << 20, false); /* needs a larger arena */
        if (variant == 1) CHECK_OK(run_other(other));
        if (variant == 2) CHECK_OK(hl_plan_input(other, 0, HL_DTYPE_F32, &shape, given));
        CHECK_INT(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps), HL_ERROR_CONFIG);
        CHECK(!hl_plan_is_unfinished(t.plan));
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
        CHECK_INT(steps, 1);
        hl_plan_destroy(other);
        trainer_close(&t);
    }
    check_case("%s", "");
}

static void test_outputs_are_of_the_last_run(void)
{
    hl_run_end end;
    int64_t steps;
    float loss;
    open_step(1);
    CHECK_INT(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &loss), HL_ERROR_CONFIG);
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &loss));
    hl_plan *other = make_other(3, false);
    CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &loss));
    CHECK_OK(run_other(other));
    CHECK_INT(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &loss), HL_ERROR_CONFIG);
    hl_plan_destroy(other);
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    other = make_other(1 << 20, false); /* the arena grows: what lay in it is gone */
    CHECK_INT(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &loss), HL_ERROR_CONFIG);
    hl_plan_destroy(other);
    trainer_close(&t);
}

/* Every way to use the session, while another thread does. */
static void check_entries_are_busy(void)
{
    hl_run_end end;
    int64_t steps, rows[64] = {0};
    float number;
    hl_control control;
    hl_profile profile;
    hl_shape shape = hl_shape_1d(t.net.rows);
    CHECK_INT(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_profile(t.plan, &profile), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_input(t.plan, 0, HL_DTYPE_I64, &shape, rows), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_output(t.plan, 0, HL_DTYPE_F32, &number), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_feed(t.plan, NULL), HL_ERROR_BUSY);
    CHECK_INT(hl_feed_seek(t.feed, 1, 0), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_set_k(t.plan, 2), HL_ERROR_BUSY);
    CHECK_INT(hl_session_snapshot(t.session, &control), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_abandon(t.plan), HL_ERROR_BUSY);
    CHECK_INT(hl_session_write(t.session, "param", 0, 1, HL_DTYPE_F32, &number), HL_ERROR_BUSY);
    CHECK_INT(hl_session_read(t.session, "param", 0, 1, HL_DTYPE_F32, &number), HL_ERROR_BUSY);
    CHECK_INT(hl_session_copy(t.session, "param", "param"), HL_ERROR_BUSY);
    CHECK_INT(hl_session_control_read(t.session, &control), HL_ERROR_BUSY);
    CHECK_INT(hl_session_control_write(t.session, &control), HL_ERROR_BUSY);
}

/* Stores and the arena move for nobody while a plan runs. */
static void test_a_running_session_is_left_alone(void)
{
    hl_graph *graph;
    hl_plan *plan;
    hl_id x;
    int32_t store;
    hl_plan_options options = {.n_slots = 1, .k = 1};
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(3)};
    hl_run_end end;
    int64_t steps;
    open_step(1);
    int64_t n_stores = t.session->n_stores;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "new", HL_DTYPE_F32, 3, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, "new", &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    CHECK_OK(hl_session_enter(t.session, "run"));
    CHECK_INT(hl_session_store(t.session, "other", HL_DTYPE_F32, 3), HL_ERROR_BUSY);
    CHECK_INT(hl_plan_create(t.session, graph, &options, &plan), HL_ERROR_BUSY);
    CHECK_INT(t.session->n_stores, n_stores);
    check_entries_are_busy();
    hl_session_leave(t.session);
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    trainer_close(&t);
}

int main(void)
{
    test_the_stopping_step_is_finished();
    test_metrics_after_a_skipped_step();
    test_a_feed_must_fit();
    test_a_step_with_a_wrong_index_changes_nothing();
    test_a_fault_ends_with_its_step();
    test_a_step_left_in_the_middle_is_lost_to_another_plan();
    test_outputs_are_of_the_last_run();
    test_a_running_session_is_left_alone();
    return CHECK_DONE();
}
