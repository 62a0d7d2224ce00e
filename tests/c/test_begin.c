/* What BEGIN makes of constants and of stores that no step changes lasts from run to run: it is
 * made again when such a store was written, when another plan has had the arena, and behind an
 * error; and not when a store is written that steps change. */
#include "ops/build.h"
#include "plan/session.h"
#include "tests/c/async_device.h"

enum { N = 4 };

static hl_device *device;
static hl_session *session;

static hl_id add_leaf(hl_graph *graph, const char *name, hl_value_kind kind)
{
    int32_t store;
    hl_id id;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(N)};
    CHECK_OK(hl_graph_store(graph, name, HL_DTYPE_F32, N, &store));
    CHECK_OK(hl_graph_leaf(graph, kind, type, store, 0, name, &id));
    return id;
}

/* total <- total + x * exp(param), of which exp(param) is BEGIN's. */
static hl_plan *make_plan(void)
{
    hl_graph *graph;
    hl_plan *plan;
    hl_id x, e, y;
    hl_plan_options options = {.n_slots = 1, .k = 1};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(N)}, &x));
    hl_id param = add_leaf(graph, "param", HL_VALUE_PARAM);
    hl_id total = add_leaf(graph, "total", HL_VALUE_STATE);
    CHECK_OK(hl_graph_add(graph, HL_OP_EXP, &param, 1, NULL, &e));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, e, &y));
    CHECK_OK(hl_graph_output(graph, y));
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, total, y, &y));
    CHECK_OK(hl_graph_commit(graph, total, y));
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    return plan;
}

static void write_store(const char *name, float value)
{
    float all[N] = {value, value, value, value};
    CHECK_OK(hl_session_write(session, name, 0, N, HL_DTYPE_F32, all));
}

static void give_input(hl_plan *plan, const float *all)
{
    hl_shape shape = hl_shape_1d(N);
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &shape, all));
}

static int n_begun;
static void count_begun(hl_op op, void *const *args)
{
    (void)args;
    n_begun += op == HL_OP_EXP;
}

/* How often BEGIN ran, of one run of so many steps whose output is x exp(param). */
static int run_plan(hl_plan *plan, int n, float x, float param)
{
    hl_run_end end;
    int64_t steps;
    float all[N] = {x, x, x, x}, out[N];
    n_begun = 0;
    async_watch = count_begun;
    give_input(plan, all);
    CHECK_OK(hl_plan_run(plan, n, 0, NULL, &end, &steps));
    CHECK_OK(hl_plan_output(plan, 0, HL_DTYPE_F32, out));
    async_watch = NULL;
    CHECK(fabsf(out[0] - x * expf(param)) < 1e-5F * fabsf(out[0]));
    return n_begun;
}

static void test_begun_once(const hl_backend *backend)
{
    hl_device_options options = {.n_threads = 1};
    CHECK_OK(backend->device_open(backend, 0, &options, &device));
    CHECK_OK(hl_session_create(device, &session));
    hl_plan *plan = make_plan(), *other = make_plan();
    write_store("param", 0.5F), write_store("total", 0);
    check_case("runs of %s", device->name);
    CHECK_INT(run_plan(plan, 1, 2, 0.5F), 1);
    CHECK_INT(run_plan(plan, 3, 3, 0.5F), 0);
    check_case("what steps change is written");
    write_store("total", 7);
    CHECK_INT(run_plan(plan, 1, 4, 0.5F), 0);
    check_case("what BEGIN reads is written");
    write_store("param", 1);
    CHECK_INT(run_plan(plan, 1, 5, 1), 1);
    CHECK_INT(run_plan(plan, 1, 6, 1), 0);
    check_case("another plan in between");
    CHECK_INT(run_plan(other, 2, 2, 1), 1);
    CHECK_INT(run_plan(plan, 1, 2, 1), 1);
    CHECK_INT(run_plan(plan, 1, 3, 1), 0);
    check_case("copied from another store");
    CHECK_OK(hl_session_store(session, "best", HL_DTYPE_F32, N));
    write_store("best", 2);
    CHECK_OK(hl_session_copy(session, "param", "best"));
    CHECK_INT(run_plan(plan, 1, 3, 2), 1);
    hl_plan_destroy(plan);
    hl_plan_destroy(other);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

/* Whatever call failed: BEGIN's values may not be there. */
static void test_begun_again_behind_errors(void)
{
    int n_failed = 0;
    for (int at = 1; at < 200; at++) {
        hl_device_options options = {.n_threads = 1};
        hl_run_end end;
        int64_t steps;
        float all[N] = {1, 1, 1, 1};
        check_case("call %d fails", at);
        CHECK_OK(async_backend()->device_open(async_backend(), 0, &options, &device));
        CHECK_OK(hl_session_create(device, &session));
        hl_plan *plan = make_plan();
        write_store("param", 0.5F), write_store("total", 0);
        give_input(plan, all);
        hl_fault_set(&async_fault, at, false);
        hl_status status = hl_plan_run(plan, 1, 0, NULL, &end, &steps);
        bool failed = hl_fault_set(&async_fault, 0, false) >= at;
        CHECK_INT(status != HL_OK, failed);
        n_failed += failed;
        run_plan(plan, 1, 3, 0.5F);
        hl_plan_destroy(plan);
        hl_session_destroy(session);
        device->ops->destroy(device);
        if (!failed) break;
    }
    CHECK(n_failed > 2);
}

int main(void)
{
    test_begun_once(async_backend());
    test_begun_again_behind_errors();
    return CHECK_DONE();
}
