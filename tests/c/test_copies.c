/* Rounded copies of a store: what a step reads of one is its source, rounded, as the step before
 * left it, whoever changed the source in between; and a copy that is current is not made anew.
 * Every device runs them, so this test makes the graph by hand: parameters that move by a fixed
 * step, and a state that keeps what micro-batches read. Compiled per instruction set. */
#include "base/half.h"
#include "ir/op.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kernel.h"
#include "ops/build.h"
#include "plan/session.h"
#include "tests/c/async_device.h"

enum { N = 24, N_TRAINED = 16, N_TABLE = 4, ROWS = 8, N_BATCHES = 64 };

static hl_device *device;
static hl_session *session;
static hl_graph *graph;
static hl_id guard;

/* ---- the graph ------------------------------------------------------------------------------- */

static hl_id add_leaf(const char *name, hl_dtype dtype, int64_t n_store, hl_shape shape,
                      hl_value_kind kind)
{
    int32_t store;
    hl_id id;
    CHECK_OK(hl_graph_store(graph, name, dtype, n_store, &store));
    CHECK_OK(hl_graph_leaf(graph, kind, (hl_type){dtype, shape}, store, 0, name, &id));
    return id;
}

static hl_id add_state(const char *name, int64_t n)
{
    hl_shape shape = n ? hl_shape_1d(n) : hl_shape_scalar();
    return add_leaf(name, HL_DTYPE_F32, n ? n : 1, shape, HL_VALUE_STATE);
}

static void add_transition(hl_op op, hl_segment segment, hl_id operand, const hl_attrs *attrs)
{
    hl_id control;
    graph->segment = segment;
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){control, operand}, 2, attrs, &guard));
    CHECK_OK(hl_graph_commit(graph, control, guard));
}

static hl_id add_update(hl_op op, hl_id state, hl_id value, hl_id by)
{
    hl_id out;
    CHECK_OK(hl_graph_add(graph, op, (hl_id[]){state, value, by}, 3, NULL, &out));
    CHECK_OK(hl_graph_commit(graph, state, out));
    return out;
}

/* The first n elements of the parameters' copy. */
static hl_id add_copy(int64_t n)
{
    int32_t store;
    hl_id id;
    hl_type type = {HL_DTYPE_BF16, hl_shape_1d(n)};
    CHECK_OK(
        hl_graph_store_rounded(graph, hl_graph_store_find(graph, "param"), HL_DTYPE_BF16, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, "copy", &id));
    return id;
}

/* Trains; without a copy micro-batches cast the parameters. */
static hl_plan *add_plan(bool has_copy, int32_t k, int32_t n_slots)
{
    static const hl_control up = {.window_ok = 1};
    hl_plan *plan;
    hl_id open, rounded, moved, rows;
    hl_plan_options options = {
        .n_slots = n_slots, .k = k, .fuse = true, .chain = true, .capture = true};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "rows", (hl_type){HL_DTYPE_I64, hl_shape_1d(ROWS)}, &rows));
    hl_id all = add_leaf("param", HL_DTYPE_F32, N, hl_shape_1d(N), HL_VALUE_PARAM);
    hl_id trained = add_leaf("param", HL_DTYPE_F32, N, hl_shape_1d(N_TRAINED), HL_VALUE_PARAM);
    hl_id table = add_leaf("table", HL_DTYPE_F64, N_TABLE, hl_shape_2d(1, N_TABLE), HL_VALUE_STATE);
    hl_id seen = add_state("seen", N), move = add_state("move", N_TRAINED);
    hl_id loss = add_state("loss", 0), square = add_state("square", 0);
    add_transition(HL_OP_CONTROL_BEGIN, HL_SEGMENT_BEGIN, table,
                   &(hl_attrs){.dtype = {HL_DTYPE_F32}});
    hl_type block = {HL_DTYPE_U8, hl_shape_1d(sizeof up)};
    CHECK_OK(hl_graph_const(graph, block, &up, &open));
    if (has_copy) add_update(HL_OP_ASSIGN, add_copy(N), all, open);
    graph->segment = HL_SEGMENT_MICRO;
    if (has_copy)
        rounded = add_copy(N);
    else
        CHECK_OK(hl_build_cast(graph, all, HL_DTYPE_BF16, &rounded));
    add_update(HL_OP_ASSIGN, seen, rounded, open);
    add_transition(HL_OP_CONTROL_MICRO, HL_SEGMENT_MICRO, loss, &(hl_attrs){.rows = {8}});
    add_transition(HL_OP_CONTROL_APPLY, HL_SEGMENT_APPLY, square, NULL);
    moved = add_update(HL_OP_ACCUMULATE, trained, move, guard);
    if (has_copy) add_update(HL_OP_ASSIGN, add_copy(N_TRAINED), moved, guard);
    graph->segment = HL_SEGMENT_MICRO;
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    return plan;
}

/* ---- sessions -------------------------------------------------------------------------------- */

static void write_float(const char *name, float value)
{
    CHECK_OK(hl_session_write(session, name, 0, 1, HL_DTYPE_F32, &value));
}

static void write_params(float from)
{
    float values[N];
    for (int i = 0; i < N; i++) values[i] = from + 0.37f * (float)i;
    CHECK_OK(hl_session_write(session, "param", 0, N, HL_DTYPE_F32, values));
}

/* After a plan is made, which brings the stores. */
static void fill_session(void)
{
    double table[N_TABLE] = {0};
    float move[N_TRAINED];
    for (int i = 0; i < N_TRAINED; i++) move[i] = 0.111f * (float)(i + 1);
    write_params(-3);
    CHECK_OK(hl_session_write(session, "move", 0, N_TRAINED, HL_DTYPE_F32, move));
    CHECK_OK(hl_session_write(session, "table", 0, N_TABLE, HL_DTYPE_F64, table));
    write_float("loss", 1);
    write_float("square", 1);
}

static void read_rounded(const char *name, double *out)
{
    CHECK_OK(hl_session_read(session, name, 0, N, HL_DTYPE_F64, out));
    for (int i = 0; i < N && device->float_type == HL_DTYPE_F32; i++)
        out[i] = hl_bf16_to_f32(hl_f32_to_bf16((float)out[i]));
}

static void check_seen(const double *want)
{
    double seen[N];
    CHECK_OK(hl_session_read(session, "seen", 0, N, HL_DTYPE_F64, seen));
    for (int i = 0; i < N; i++) {
        if (seen[i] == want[i]) continue;
        check_fail(__FILE__, __LINE__, "element %d: read %.9g, want %.9g", i, seen[i], want[i]);
        return;
    }
}

/* Steps of a plan read the parameters as they are before each. */
static void check_steps(hl_plan *plan, int n)
{
    for (int i = 0; i < n; i++) {
        double want[N];
        hl_run_end end;
        int64_t steps;
        read_rounded("param", want);
        CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
        CHECK_INT(steps, 1);
        check_seen(want);
    }
}

static void open_session(const hl_backend *backend)
{
    hl_device_options options = {.n_threads = 1, .isa = HL_CPU_TEXT(HL_ISA)};
    CHECK_OK(backend->device_open(backend, 0, &options, &device));
    CHECK_OK(hl_session_create(device, &session));
}

static void close_session(hl_plan *a, hl_plan *b)
{
    hl_plan_destroy(a);
    hl_plan_destroy(b);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

/* ---- who changes parameters ------------------------------------------------------------------ */

static void test_changes_from_outside(const hl_backend *backend)
{
    open_session(backend);
    hl_plan *plan = add_plan(true, 1, 1);
    float wrong[N] = {0};
    fill_session();
    check_case("%s: steps", device->name);
    check_steps(plan, 3);
    check_case("%s: parameters are written", device->name);
    write_params(5);
    check_steps(plan, 2);
    check_case("%s: one parameter is written", device->name);
    write_float("param", 77);
    check_steps(plan, 2);
    check_case("%s: parameters are copied", device->name);
    CHECK_OK(hl_session_store(session, "best.param", HL_DTYPE_F32, N));
    CHECK_OK(hl_session_copy(session, "param", "best.param"));
    check_steps(plan, 2);
    check_case("%s: the copy is written", device->name);
    CHECK_OK(hl_session_write(session, "param.bfloat16", 0, N, HL_DTYPE_F32, wrong));
    check_steps(plan, 2);
    close_session(plan, NULL);
}

static void test_several_plans(const hl_backend *backend)
{
    for (int has_copy = 0; has_copy < 2; has_copy++) {
        open_session(backend);
        hl_plan *plan = add_plan(true, 1, 1), *other = add_plan(has_copy, 1, 1);
        fill_session();
        check_case("%s: another plan, which has a copy: %d", device->name, has_copy);
        for (int i = 0; i < 3; i++) {
            check_steps(plan, 2);
            check_steps(other, 1 + i % 2);
        }
        close_session(plan, other);
    }
}

/* Steps that are not applied change neither. */
static void test_skipped_steps(const hl_backend *backend)
{
    open_session(backend);
    hl_plan *plan = add_plan(true, 1, 1);
    hl_control control;
    fill_session();
    CHECK_OK(hl_session_control_read(session, &control));
    control.nan_mode = HL_NAN_SKIP;
    CHECK_OK(hl_session_control_write(session, &control));
    check_case("%s: skipped steps", device->name);
    for (int i = 0; i < 6; i++) {
        write_float("square", i % 3 == 1 ? INFINITY : 1);
        write_float("loss", i % 3 == 2 ? NAN : 1);
        check_steps(plan, 1);
    }
    CHECK_OK(hl_session_control_read(session, &control));
    CHECK_INT(control.skipped, 4);
    close_session(plan, NULL);
}

/* A window that a plan without copy opens and spoils: the plan that comes into it makes the copy,
 * though every guard of the window is down. */
static void test_spoilt_window(const hl_backend *backend)
{
    open_session(backend);
    hl_plan *plain = add_plan(false, 2, 1), *plan = add_plan(true, 2, 1);
    hl_batches order[] = {{plain, 1}, {plan, 1}};
    hl_runner *runner;
    hl_control control;
    hl_run_end end;
    int64_t steps, batches;
    double want[N];
    fill_session();
    check_case("%s: a spoilt window of two plans", device->name);
    CHECK_OK(hl_runner_create(order, 2, 2, &runner));
    CHECK_OK(hl_session_control_read(session, &control));
    control.nan_mode = HL_NAN_SKIP;
    CHECK_OK(hl_session_control_write(session, &control));
    write_float("loss", NAN);
    read_rounded("param", want);
    CHECK_OK(hl_runner_run(runner, 1, 0, NULL, &end, &steps, &batches));
    CHECK_INT(batches, 2);
    check_seen(want);
    write_float("loss", 1);
    check_steps(plan, 2);
    CHECK_OK(hl_session_control_read(session, &control));
    CHECK_INT(control.skipped, 1);
    hl_runner_destroy(runner);
    close_session(plain, plan);
}

/* ---- steps that do not end ------------------------------------------------------------------- */

/* Left between two regions, and then given up, or gone on with after parameters were written. */
static void test_unfinished(const hl_backend *backend)
{
    for (int regions = 0; regions < 8; regions++)
        for (int way = 0; way < 4; way++) {
            open_session(backend);
            hl_plan *plan = add_plan(true, 2, 1);
            hl_run_end end = HL_RUN_DEADLINE;
            int64_t steps;
            fill_session();
            check_case("%s: left %d times, way %d", device->name, regions + 1, way);
            if (way & 1) check_steps(plan, 2);
            write_params(9);
            for (int i = 0; i <= regions && end == HL_RUN_DEADLINE; i++)
                CHECK_OK(hl_plan_run(plan, 1, 1, NULL, &end, &steps));
            if (way & 2) CHECK_OK(hl_plan_abandon(plan));
            write_params(11);
            if (!(way & 2) && hl_plan_is_unfinished(plan))
                CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
            check_steps(plan, 2);
            close_session(plan, NULL);
        }
}

/* Each call of the device fails once, those that launch what was deferred to the end of a run among
 * them: whatever the run had done by then, the next one is right. */
static void test_failing_calls(void)
{
    int n_failed = 0;
    for (int at = 1; at < 200; at++) {
        open_session(async_backend());
        hl_plan *plan = add_plan(true, 1, 8);
        hl_run_end end;
        int64_t steps;
        fill_session();
        check_case("call %d fails", at);
        check_steps(plan, 1);
        write_params(2);
        hl_fault_set(&async_fault, at, false);
        hl_status status = hl_plan_run(plan, 1, 0, NULL, &end, &steps);
        bool failed = hl_fault_set(&async_fault, 0, false) >= at;
        CHECK_INT(status != HL_OK, failed);
        n_failed += failed;
        check_steps(plan, 2);
        close_session(plan, NULL);
        if (!failed) break;
    }
    CHECK(n_failed > 10);
}

/* ---- launches -------------------------------------------------------------------------------- */

static int n_assigned;
static void count_assigned(hl_op op, void *const *args)
{
    (void)args;
    n_assigned += op == HL_OP_ASSIGN;
}

static int count_of_run(hl_plan *plan, int n)
{
    hl_run_end end;
    int64_t steps;
    n_assigned = 0;
    CHECK_OK(hl_plan_run(plan, n, 0, NULL, &end, &steps));
    CHECK_INT(steps, n);
    CHECK_OK(device->ops->synchronize(device, session->compute));
    return n_assigned;
}

/* The first parameter that an ASSIGN took since this was set to 0. */
static double first_taken;
static void note_first(hl_op op, void *const *args)
{
    if (op == HL_OP_ASSIGN && first_taken == 0) first_taken = *(const double *)args[1];
}

static hl_feed *give_feed(hl_plan *plan, int32_t n_slots)
{
    hl_feed *feed;
    hl_feed_options options = {.sampler = {.n = ROWS * N_BATCHES},
                               .batch = ROWS,
                               .count = ROWS * N_BATCHES,
                               .n_slots = n_slots};
    CHECK_OK(hl_feed_create(&options, &feed));
    CHECK_OK(hl_plan_feed(plan, feed));
    return feed;
}

/* Two a step, and one where the copy is not current, in bursts as well. */
static void test_made_once(int32_t n_slots)
{
    open_session(async_backend());
    hl_plan *plan = add_plan(true, 1, n_slots), *other = add_plan(true, 1, n_slots);
    hl_feed *feed = give_feed(plan, n_slots), *more = give_feed(other, n_slots);
    hl_plan_info info;
    fill_session();
    async_watch = count_assigned;
    check_case("a current copy is not made anew, %d slots", (int)n_slots);
    CHECK_INT(count_of_run(plan, 9), 19);
    CHECK_INT(count_of_run(plan, 9), 18);
    CHECK_INT(count_of_run(other, 9), 18);
    write_float("loss", 2);
    CHECK_INT(count_of_run(plan, 1), 2);
    write_params(1);
    CHECK_INT(count_of_run(other, 9), 19);
    CHECK_INT(count_of_run(plan, 2), 4);
    async_watch = NULL;
    hl_plan_info_read(plan, &info);
    CHECK_INT(info.n_kernels, info.n_instructions - 1);
    hl_plan_destroy(plan);
    hl_plan_destroy(other);
    hl_feed_destroy(feed);
    hl_feed_destroy(more);
    close_session(NULL, NULL);
}

/* A profile measures steps that find the copy current, and makes it so first. */
static void test_profile(void)
{
    open_session(async_backend());
    hl_plan *plan = add_plan(true, 1, 1);
    hl_feed *feed = give_feed(plan, 1);
    hl_profile profile;
    hl_plan_info info;
    fill_session();
    check_steps(plan, 1);
    hl_plan_info_read(plan, &info);
    for (int i = 1; i < 3; i++) {
        check_case("profile %d", i);
        write_params((float)(4 * i));
        first_taken = 0;
        async_watch = note_first;
        CHECK_OK(hl_plan_profile(plan, &profile));
        async_watch = NULL;
        CHECK(first_taken == 4 * i);
        CHECK_INT(profile.n_launches, info.n_kernels);
        hl_profile_deinit(&profile);
        if (i == 2) check_steps(plan, 2);
    }
    hl_plan_destroy(plan);
    hl_feed_destroy(feed);
    close_session(NULL, NULL);
}

/* A profile that fails, when it puts the stores back too. Returns how many calls it made. */
static int64_t fail_profile(int64_t at)
{
    open_session(async_backend());
    hl_plan *plan = add_plan(true, 1, 1);
    hl_feed *feed = give_feed(plan, 1);
    hl_profile profile;
    fill_session();
    check_steps(plan, 1);
    check_case("call %lld of a profile fails", (long long)at);
    hl_fault_set(&async_fault, at, false);
    hl_status status = hl_plan_profile(plan, &profile);
    int64_t n_calls = hl_fault_set(&async_fault, 0, false);
    CHECK_INT(status != HL_OK, n_calls >= at);
    hl_profile_deinit(&profile);
    check_steps(plan, 1);
    hl_plan_destroy(plan);
    hl_feed_destroy(feed);
    close_session(NULL, NULL);
    return n_calls;
}

static void test_failing_profile(void)
{
    int64_t n_calls = fail_profile(INT64_MAX);
    for (int64_t at = n_calls; at > 0; at -= at > n_calls - 30 ? 1 : n_calls / 30) fail_profile(at);
}

int main(void)
{
    const hl_backend *backends[] = {hl_ref_backend(), hl_cpu_backend(), async_backend()};
    for (int b = 0; b < 3; b++) {
        test_changes_from_outside(backends[b]);
        test_several_plans(backends[b]);
        test_skipped_steps(backends[b]);
        test_spoilt_window(backends[b]);
        if (b < 2) test_unfinished(backends[b]);
    }
    test_failing_calls();
    test_made_once(1);
    test_made_once(8);
    test_profile();
    test_failing_profile();
    return CHECK_DONE();
}
