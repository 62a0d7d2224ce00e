/* One device, several threads: models of their own run side by side, each with the bits that it has
 * alone; plans and runners of a model go while another thread runs it. */
#include <pthread.h>

#include "kernels/cpu/cpu.h"
#include "ops/build.h"
#include "plan/session.h"
#include "tests/c/check.h"

enum { ROWS = 384, COLS = 96, N_STEPS = CHECK_UNDER_TSAN ? 60 : 400, N_RUNS = 3, N_MODELS = 3 };

typedef struct model {
    hl_device *device;
    hl_session *session;
    hl_plan *plan;
    float weight; /* what makes it another model */
    float state[ROWS * COLS];
} model;

/* state (ROWS, COLS) <- tanh(state @ w), which the pool cuts into blocks. */
static hl_graph *make_graph(void)
{
    hl_graph *graph;
    hl_id state, w, next;
    int32_t store;
    hl_type type = {HL_DTYPE_F32, hl_shape_2d(ROWS, COLS)};
    hl_type square = {HL_DTYPE_F32, hl_shape_2d(COLS, COLS)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "state", HL_DTYPE_F32, ROWS * COLS, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, "state", &state));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, COLS * COLS, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_PARAM, square, store, 0, "w", &w));
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){state, w}, 2, NULL, &next));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, next, &next));
    CHECK_OK(hl_graph_commit(graph, state, next));
    CHECK_OK(hl_graph_output(graph, next));
    return graph;
}

static void open_model(model *m, hl_device *device, float weight)
{
    hl_plan_options options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    m->device = device;
    m->weight = weight;
    CHECK_OK(hl_session_create(device, &m->session));
    CHECK_OK(hl_plan_create(m->session, make_graph(), &options, &m->plan));
}

static void close_model(model *m)
{
    hl_plan_destroy(m->plan);
    hl_session_destroy(m->session);
}

/* From the same values, some hundred steps in several runs. */
static void *run_model(void *context)
{
    model *m = context;
    static const float scale = 6.0f / COLS; /* so that no state dies away */
    float w[COLS * COLS];
    hl_run_end end;
    int64_t steps;
    for (int64_t i = 0; i < COLS * COLS; i++)
        w[i] = scale * m->weight * (float)((i * 37 + i / 7) % 29 - 14);
    for (int64_t i = 0; i < ROWS * COLS; i++) m->state[i] = (float)(i % 31) / 31 - 0.4f;
    CHECK_OK(hl_session_write(m->session, "param", 0, COLS * COLS, HL_DTYPE_F32, w));
    CHECK_OK(hl_session_write(m->session, "state", 0, ROWS * COLS, HL_DTYPE_F32, m->state));
    for (int run = 0; run < N_RUNS; run++)
        CHECK_OK(hl_plan_run(m->plan, N_STEPS / N_RUNS, 0, NULL, &end, &steps));
    CHECK_OK(hl_session_read(m->session, "state", 0, ROWS * COLS, HL_DTYPE_F32, m->state));
    return NULL;
}

static bool uses_pool(const hl_plan *plan)
{
    for (int32_t r = 0; r < plan->schedule.n_regions; r++)
        if (plan->schedule.regions[r].n_blocks > 1) return true;
    return false;
}

static void test_models_side_by_side(void)
{
    static model models[N_MODELS];
    static float want[N_MODELS][ROWS * COLS];
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        hl_device *device;
        pthread_t threads[N_MODELS];
        hl_device_options options = {.n_threads = n_threads};
        check_case("%d threads of the pool", n_threads);
        CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &device));
        for (int i = 0; i < N_MODELS; i++) {
            open_model(&models[i], device, 1 + 0.1f * (float)i);
            CHECK(uses_pool(models[i].plan));
            run_model(&models[i]);
            memcpy(want[i], models[i].state, sizeof want[i]);
        }
        CHECK(memcmp(want[0], want[1], sizeof want[0]) != 0);
        for (int i = 0; i < N_MODELS; i++)
            CHECK_INT(pthread_create(&threads[i], NULL, run_model, &models[i]), 0);
        for (int i = 0; i < N_MODELS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < N_MODELS; i++) {
            CHECK_INT(memcmp(want[i], models[i].state, sizeof want[i]), 0);
            close_model(&models[i]);
        }
        device->ops->destroy(device);
    }
}

static void *run_calls(void *context)
{
    const model *m = context;
    hl_run_end end;
    int64_t steps;
    for (int i = 0; i < N_STEPS; i++) {
        hl_status status;
        do /* what goes has the session for a moment */
            status = hl_plan_run(m->plan, 1, 0, NULL, &end, &steps);
        while (status == HL_ERROR_BUSY);
        CHECK_OK(status);
    }
    return NULL;
}

static void test_what_goes_meanwhile(void)
{
    enum { N_GONE = 20 };
    hl_plan_options plan_options = {.n_slots = 1, .k = 1, .fuse = true, .chain = true};
    hl_device_options options = {.n_threads = 2};
    static model m;
    hl_plan *plans[N_GONE];
    hl_runner *runners[N_GONE];
    hl_device *device;
    pthread_t thread;
    check_case("%s", "plans and runners that go meanwhile");
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &device));
    open_model(&m, device, 1);
    for (int i = 0; i < N_GONE; i++) {
        CHECK_OK(hl_plan_create(m.session, make_graph(), &plan_options, &plans[i]));
        CHECK_OK(hl_runner_create(&(hl_batches){plans[i], 1}, 1, 1, &runners[i]));
    }
    CHECK_INT(pthread_create(&thread, NULL, run_calls, &m), 0);
    for (int i = 0; i < N_GONE; i++) {
        hl_runner_destroy(runners[i]);
        hl_plan_destroy(plans[i]);
    }
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK(m.session->plans == m.plan && m.plan->next == NULL);
    close_model(&m);
    device->ops->destroy(device);
}

int main(void)
{
    test_models_side_by_side();
    test_what_goes_meanwhile();
    return CHECK_DONE();
}
