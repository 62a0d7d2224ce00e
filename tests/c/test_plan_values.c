/* What plans of a session are given and give, while others use the memory that they share: inputs,
 * outputs, datasets, constants; and that they find their memory when it has moved. The same on
 * kernels that run at once and on an asynchronous device. */
#include <math.h>

#include "ops/build.h"
#include "plan/session.h"
#include "tests/c/async_device.h"

typedef struct bench {
    hl_device *device;
    hl_session *session;
} bench;

static const hl_type row = {HL_DTYPE_F32, {1, {4}}};

static bench open_bench(int asynchronous)
{
    bench b;
    const hl_backend *backend = asynchronous ? async_backend() : hl_ref_backend();
    CHECK_OK(backend->device_open(backend, 0, NULL, &b.device));
    CHECK_OK(hl_session_create(b.device, &b.session));
    return b;
}

static void close_bench(bench *b)
{
    hl_session_destroy(b->session);
    b->device->ops->destroy(b->device);
}

static hl_plan *make_plan(bench *b, hl_graph *graph, int32_t n_slots)
{
    hl_plan_options options = {
        .n_slots = n_slots, .k = 1, .fuse = true, .chain = true, .capture = true};
    hl_plan *plan;
    CHECK_OK(hl_plan_create(b->session, graph, &options, &plan));
    return plan;
}

/* x (n) -> x, tanh(x) */
static hl_plan *make_tanh(bench *b, int64_t n)
{
    hl_graph *graph;
    hl_id x;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(n)}, &x));
    CHECK_OK(hl_graph_output(graph, x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    return make_plan(b, graph, 1);
}

static void give(hl_plan *plan, int64_t n, float value)
{
    enum { MOST = 4096 };
    static float data[MOST];
    hl_shape shape = hl_shape_1d(n);
    CHECK(n <= MOST);
    for (int64_t i = 0; i < n; i++) data[i] = value;
    CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &shape, data));
}

static hl_status run(hl_plan *plan, int64_t n_steps)
{
    hl_run_end end;
    int64_t steps;
    return hl_plan_run(plan, n_steps, 0, NULL, &end, &steps);
}

static float read_first(hl_plan *plan, int32_t output)
{
    float out[64] = {0};
    CHECK_OK(hl_plan_output(plan, output, HL_DTYPE_F32, out));
    return out[0];
}

/* ---- inputs and outputs ---------------------------------------------------------------------- */

/* An input that is an output lies in a slot, where another plan's input replaces it; what was
 * computed lies elsewhere. */
static void test_an_input_as_output(int asynchronous)
{
    float out[4];
    bench b = open_bench(asynchronous);
    hl_plan *plan = make_tanh(&b, 4), *other = make_tanh(&b, 4);
    give(plan, 4, 0.5f);
    CHECK_OK(run(plan, 1));
    CHECK(read_first(plan, 0) == 0.5f);
    give(other, 4, 2);
    CHECK_ERROR(hl_plan_output(plan, 0, HL_DTYPE_F32, out), HL_ERROR_CONFIG,
                "before another plan of the model");
    CHECK(fabsf(read_first(plan, 1) - tanhf(0.5f)) < 1e-6f);
    hl_plan_destroy(plan);
    hl_plan_destroy(other);
    close_bench(&b);
}

/* Larger slots are other memory: what lay in the smaller ones is lost. */
static void test_larger_slots(int asynchronous)
{
    bench b = open_bench(asynchronous);
    hl_plan *plan = make_tanh(&b, 4);
    give(plan, 4, 0.5f);
    hl_plan *large = make_tanh(&b, 4096);
    CHECK_ERROR(run(plan, 1), HL_ERROR_CONFIG, "input x: must be given");
    give(plan, 4, 1);
    CHECK_OK(run(plan, 1));
    CHECK(fabsf(read_first(plan, 1) - tanhf(1)) < 1e-6f);
    hl_plan_destroy(plan);
    hl_plan_destroy(large);
    close_bench(&b);
}

static hl_feed *feed_rows(hl_plan *plan, int64_t n, int64_t batch, int32_t n_slots)
{
    hl_feed_options options = {.sampler = {.n = n}, .batch = batch, .count = n, .n_slots = n_slots};
    hl_feed *feed;
    CHECK_OK(hl_feed_create(&options, &feed));
    CHECK_OK(hl_plan_feed(plan, feed));
    return feed;
}

/* rows (2), z (4) -> rows, z + z, in two slots: outputs are of the last batch, and what no feed
 * fills is zeros in each slot, whatever another plan left there. */
static void test_every_slot(int asynchronous)
{
    bench b = open_bench(asynchronous);
    hl_graph *graph;
    hl_id rows, z;
    hl_plan *other = make_tanh(&b, 256);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "rows", (hl_type){HL_DTYPE_I64, hl_shape_1d(2)}, &rows));
    CHECK_OK(hl_graph_input(graph, "z", row, &z));
    CHECK_OK(hl_graph_output(graph, rows));
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, z, z, &z));
    CHECK_OK(hl_graph_output(graph, z));
    hl_plan *plan = make_plan(&b, graph, 2);
    hl_feed *feed = feed_rows(plan, 8, 2, 2);
    give(other, 256, 7);
    for (int step = 0; step < 4; step++) {
        int64_t got[2];
        CHECK_OK(run(plan, 1));
        CHECK_OK(hl_plan_output(plan, 0, HL_DTYPE_I64, got));
        CHECK(got[0] == 2 * step && got[1] == 2 * step + 1);
        CHECK(read_first(plan, 1) == 0);
    }
    hl_plan_destroy(plan);
    hl_plan_destroy(other);
    hl_feed_destroy(feed);
    close_bench(&b);
}

/* What depends on parameters alone is computed anew in each run: w (4), x (4) -> x exp(w). */
static void test_parameters_between_runs(int asynchronous)
{
    bench b = open_bench(asynchronous);
    hl_graph *graph;
    hl_id x, w;
    int32_t store;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 4, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_PARAM, row, store, 0, "w", &w));
    CHECK_OK(hl_graph_input(graph, "x", row, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, w, &w));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, w, &x));
    CHECK_OK(hl_graph_output(graph, x));
    hl_plan *plan = make_plan(&b, graph, 1);
    CHECK(plan->schedule.segment_first[HL_SEGMENT_MICRO] > 0); /* exp(w) comes before */
    give(plan, 4, 3);
    for (int i = 0; i < 3; i++) {
        float value = (float)i, w_now[4] = {value, value, value, value};
        CHECK_OK(hl_session_write(b.session, "param", 0, 4, HL_DTYPE_F32, w_now));
        CHECK_OK(run(plan, 2));
        CHECK(fabsf(read_first(plan, 0) - 3 * expf(value)) < 1e-4f);
    }
    hl_plan_destroy(plan);
    close_bench(&b);
}

/* ---- datasets -------------------------------------------------------------------------------- */

enum { N_ROWS = 4 };

/* rows (2), x (N_ROWS,4) -> the rows of x */
static hl_plan *make_gather(bench *b)
{
    hl_graph *graph;
    hl_id rows, x;
    hl_attrs dtype = {.dtype = {HL_DTYPE_F32}};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "rows", (hl_type){HL_DTYPE_I64, hl_shape_1d(2)}, &rows));
    CHECK_OK(hl_graph_dataset(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(N_ROWS, 4)}, &x));
    CHECK_OK(hl_graph_add(graph, HL_OP_BATCH_GATHER, (hl_id[]){x, rows}, 2, &dtype, &x));
    CHECK_OK(hl_graph_output(graph, x));
    return make_plan(b, graph, 1);
}

/* A plan reads the data that it was given last, in the host's memory or the device's. */
static void test_other_data(int asynchronous)
{
    static const bool is_resident[] = {false, false, true, true, false};
    enum { N = sizeof is_resident };
    static float data[N][N_ROWS * 4];
    int64_t rows[2] = {3, 1};
    hl_shape shape = hl_shape_1d(2);
    hl_resident *resident[N] = {NULL};
    bench b = open_bench(asynchronous);
    hl_plan *plan = make_gather(&b);
    for (int i = 0; i < N; i++) {
        check_case("asynchronous %d, data %d", asynchronous, i);
        for (int j = 0; j < N_ROWS * 4; j++) data[i][j] = (float)(100 * i + j);
        if (is_resident[i]) {
            CHECK_OK(hl_resident_create(b.device, data[i], sizeof data[i], &resident[i]));
            CHECK_OK(hl_plan_dataset_resident(plan, 0, resident[i], N_ROWS));
        } else {
            CHECK_OK(hl_plan_dataset(plan, 0, data[i], N_ROWS));
        }
        if (!i) CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_I64, &shape, rows));
        CHECK_OK(run(plan, 1));
        CHECK(read_first(plan, 0) == data[i][3 * 4]);
    }
    hl_plan_destroy(plan);
    for (int i = 0; i < N; i++) hl_resident_destroy(resident[i]);
    close_bench(&b);
}

/* ---- where things lie ------------------------------------------------------------------------ */

/* x (4) -> (a number of elements that is none of x's) the sum of x, spread and squared. */
static hl_plan *make_spread(bench *b, int64_t n)
{
    hl_graph *graph;
    hl_id x;
    hl_shape shape = hl_shape_1d(n);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", row, &x));
    CHECK_OK(hl_build_sum(graph, x, NULL, 0, false, &x));
    CHECK_OK(hl_build_expand(graph, x, &shape, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    return make_plan(b, graph, 1);
}

/* The arena grows for another plan, and the slots do not: the first one, whose launches were
 * captured, runs in the new memory. */
static void test_the_arena_moves(int asynchronous)
{
    bench b = open_bench(asynchronous);
    hl_plan *plan = make_spread(&b, 64), *other = NULL;
    for (int i = 0; i < 3; i++) {
        check_case("asynchronous %d, run %d", asynchronous, i);
        if (i == 2) other = make_spread(&b, 1 << 16);
        give(plan, 4, 0.25f);
        CHECK_OK(run(plan, 1));
        CHECK(read_first(plan, 0) == 1.0f / 64);
        const char *first = b.session->arena, *end = first + b.session->arena_bytes;
        const char *at = plan->args[plan->n_args - 1];
        CHECK(first <= at && at < end);
    }
    hl_plan_destroy(plan);
    hl_plan_destroy(other);
    close_bench(&b);
}

/* Constants begin where a vector may. */
static void test_constants_are_aligned(void)
{
    static const double numbers[7] = {1, 2, 3, 4, 5, 6, 7};
    bench b = open_bench(true);
    hl_graph *graph;
    hl_id x, number;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(2, 1)}, &x));
    for (int64_t n = 3; n <= 7; n += 2) {
        hl_id out;
        hl_type type = {HL_DTYPE_F32, hl_shape_1d(n)};
        CHECK_OK(hl_graph_const_round(graph, type, numbers, &number));
        CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, number, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    hl_plan *plan = make_plan(&b, graph, 1);
    int n_consts = 0;
    for (int64_t v = 0; v < plan->graph->n_values; v++) {
        if (plan->graph->values[v].kind != HL_VALUE_CONST) continue;
        CHECK_INT(plan->const_offset[v] % HL_ALIGN, 0);
        n_consts++;
    }
    CHECK_INT(n_consts, 3);
    hl_plan_destroy(plan);
    close_bench(&b);
}

/* Memory that the device reads by itself is the caller's again when a write returns. */
static void test_the_callers_memory_is_free(void)
{
    enum { N = 5000 }; /* too many to go by memory of the session's; in the store's own dtype */
    static double got[N];
    bench b = open_bench(true);
    void *memory;
    CHECK_OK(b.device->ops->host_alloc(b.device, N * sizeof *got, &memory));
    double *data = memory;
    for (int i = 0; i < N; i++) data[i] = i;
    CHECK_OK(hl_session_store(b.session, "s", HL_DTYPE_F64, N));
    CHECK_OK(hl_session_write(b.session, "s", 0, N, HL_DTYPE_F64, data));
    memset(data, 0xFF, N * sizeof *data);
    CHECK_OK(hl_session_read(b.session, "s", 0, N, HL_DTYPE_F64, got));
    for (int i = 0; i < N; i++) CHECK(got[i] == i);
    b.device->ops->host_free(b.device, memory);
    close_bench(&b);
}

int main(void)
{
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        check_case("asynchronous %d", asynchronous);
        test_an_input_as_output(asynchronous);
        test_larger_slots(asynchronous);
        test_every_slot(asynchronous);
        test_parameters_between_runs(asynchronous);
        test_other_data(asynchronous);
        test_the_arena_moves(asynchronous);
    }
    test_constants_are_aligned();
    test_the_callers_memory_is_free();
    return CHECK_DONE();
}
