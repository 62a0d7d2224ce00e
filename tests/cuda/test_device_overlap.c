/* Weight gradients on a second stream of the emulated GPU, as products of a cuBLASLt: training has
 * the bits of one stream, captured, where each replay takes another legal order, and call by call,
 * where the second stream works as late as may be. Every driver call may fail. A launch that does
 * the work of several waits for what any of them reads. */
#include <stdlib.h>

#include "tests/c/train.h"
#include "tests/cuda/lt_library.h"

enum { N_NETS = 12, MAX_NUMBERS = 8192, STRIDE = 7 };

static trainer t;

static int count_side(const hl_plan *plan)
{
    int n = 0;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        n += plan->schedule.tasks[s].side != HL_NONE;
    return n;
}

/* Two epochs; returns how many tasks were on the side. */
static int train_net(uint64_t seed, hl_dtype dtype, double *out)
{
    hl_run_end end;
    int64_t steps;
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, 1 + (int)seed % 2);
    for (int i = 0; i <= t.net.n_layers; i++) t.net.width[i] = hl_round_up(t.net.width[i], 8);
    trainer_dtype = dtype;
    lt_reset(NULL);
    trainer_open(&t, hl_fake_backend(), 1);
    t.device->overlap_flops = 1;
    trainer_plan(&t, &t.net, 1 + (int)seed % 2, true, true);
    trainer_fill(&t);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        CHECK_OK(hl_feed_seek(t.feed, epoch, 0));
        CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps));
        CHECK_INT(end, HL_RUN_FEED_END);
    }
    CHECK(t.net.n_flat <= MAX_NUMBERS);
    memset(out, 0, MAX_NUMBERS * sizeof *out);
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F64, out));
    int n = count_side(t.plan);
    trainer_close(&t);
    CHECK_INT(hl_fake_live_sum(), 0);
    CHECK(strcmp(hl_fake_message(), "") == 0);
    return n;
}

static void test_same_bits(void)
{
    static double want[MAX_NUMBERS], got[MAX_NUMBERS];
    int n = 0;
    hl_fake_reset(NULL);
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        hl_dtype dtype = seed % 3 ? HL_DTYPE_F32 : HL_DTYPE_BF16;
        trainer_overlap = trainer_capture = false;
        CHECK_INT(train_net(seed, dtype, want), 0);
        trainer_overlap = true;
        for (int capture = 0; capture < 2; capture++) {
            check_case("net %d, captured %d", (int)seed, capture);
            trainer_capture = capture;
            n += train_net(seed, dtype, got);
            CHECK_INT(memcmp(want, got, sizeof want), 0);
        }
    }
    trainer_dtype = HL_DTYPE_F32;
    check_case("%s", "");
    CHECK(n > N_NETS);
}

/* ---- small weight gradients ------------------------------------------------------------------ */

/* Plans a net of so many layers; returns how many weight gradients are products of ours. */
static int count_own(int n_layers, double overlap_flops)
{
    int n = 0;
    memset(&t, 0, sizeof t);
    t.net = (net){.n_layers = n_layers, .rows = 16, .n_terms = 1};
    t.net.spec.optimizer = HL_OP_SGD;
    for (int i = 0; i <= n_layers; i++) t.net.width[i] = 8;
    lt_reset(NULL);
    trainer_open(&t, hl_fake_backend(), 1);
    t.device->overlap_flops = overlap_flops;
    trainer_plan(&t, &t.net, 1, true, true);
    for (int32_t s = 0; s < t.plan->schedule.n_tasks; s++) {
        const hl_task *task = &t.plan->schedule.tasks[s];
        bool is_product = hl_op_is_product(t.plan->graph->nodes[task->node].op);
        n += is_product && strcmp(task->kernel->name, "cuda.matmul") == 0;
    }
    trainer_close(&t);
    return n;
}

/* Two and more are one launch of ours; one is the library's, and so is what runs beside others. */
static void test_small_weight_gradients(void)
{
    hl_fake_reset(NULL);
    trainer_overlap = trainer_capture = true;
    CHECK_INT(count_own(1, 1e9), 0);
    CHECK_INT(count_own(2, 1e9), 2);
    CHECK_INT(count_own(3, 1e9), 3);
    CHECK_INT(count_own(3, 0), 3);
    CHECK_INT(count_own(3, 2.0 * 16 * 8 * 8), 0);
    CHECK_INT(count_own(3, 2.0 * 16 * 8 * 8 + 1), 3);
}

/* ---- one launch for several tasks ------------------------------------------------------------ */

enum { N = 64 };

static hl_id add_state(hl_graph *graph, const char *name, hl_shape shape)
{
    int32_t store;
    hl_id id;
    CHECK_OK(hl_graph_store(graph, name, HL_DTYPE_F32, hl_shape_numel(&shape), &store));
    CHECK_OK(
        hl_graph_leaf(graph, HL_VALUE_STATE, (hl_type){HL_DTYPE_F32, shape}, store, 0, name, &id));
    return id;
}

static hl_id multiply(hl_graph *graph, hl_id a, hl_id b)
{
    hl_id out;
    hl_attrs attrs = {.matmul = {.trans_a = true}};
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, (hl_id[]){a, b}, 2, &attrs, &out));
    return out;
}

/* "first" <- x, which could be at once, and "second" <- x^T x, which runs beside another product.
 */
static hl_graph *make_updates(void)
{
    hl_graph *graph;
    hl_shape shape = hl_shape_2d(N, N);
    hl_id x, product;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, shape}, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &x));
    hl_id first = add_state(graph, "first", shape), second = add_state(graph, "second", shape);
    CHECK_OK(hl_graph_commit(graph, first, x));
    CHECK_OK(hl_graph_commit(graph, second, multiply(graph, x, x)));
    product = multiply(graph, x, multiply(graph, x, x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, product, &product));
    CHECK_OK(hl_graph_output(graph, product));
    return graph;
}

static void run_updates(bool overlap, bool capture, float *out)
{
    hl_device *device = lt_device_open(NULL);
    hl_session *session;
    hl_plan *plan;
    hl_run_end end;
    int64_t steps;
    hl_shape shape = hl_shape_2d(N, N);
    float in[N * N];
    hl_plan_options options = {
        .n_slots = 1, .k = 1, .fuse = true, .chain = true, .capture = capture, .overlap = overlap};
    for (int i = 0; i < N * N; i++) in[i] = (float)(i * 7 % 23) / 23 - 1;
    device->overlap_flops = 1;
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_plan_create(session, make_updates(), &options, &plan));
    CHECK_INT(count_side(plan), overlap);
    for (int step = 0; step < 8; step++) {
        for (int i = 0; i < N * N; i++) in[i] = -in[i] / 2;
        CHECK_OK(hl_plan_input(plan, 0, HL_DTYPE_F32, &shape, in));
        CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_read(session, "second", 0, N * N, HL_DTYPE_F32, out + step * N * N));
    }
    bool is_one = false;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) is_one |= plan->instrs[s].joined;
    CHECK(is_one);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    lt_device_close(device);
}

static void test_one_launch_for_several(void)
{
    static float want[8 * N * N], got[8 * N * N];
    run_updates(false, false, want);
    for (int capture = 0; capture < 2; capture++) {
        check_case("one launch for two updates, captured %d", capture);
        run_updates(true, capture, got);
        CHECK_INT(memcmp(want, got, sizeof want), 0);
    }
    check_case("%s", "");
}

/* ---- driver calls fail ----------------------------------------------------------------------- */

static hl_status run_whole(void *context)
{
    (void)context;
    lt_reset(NULL);
    return trainer_run_whole(&t, hl_fake_backend(), true, 2 * t.net.rows);
}

static void test_driver_calls_fail(void)
{
    uint64_t seed = 0;
    while (net_roll(seed, 1).n_layers < 3) seed++;
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, 1);
    hl_fake_reset(NULL);
    CHECK(fake_walk_calls(CUDA_ERROR_OUT_OF_MEMORY, false, STRIDE, false, run_whole, NULL) > 50);
    CHECK(fake_walk_calls(CUDA_ERROR_LAUNCH_FAILED, true, STRIDE, false, run_whole, NULL) > 50);
}

int main(void)
{
    lt_library_find();
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    setenv("HOTLOOP_CUBLASLT_PATH", FAKE_LT, 1);
    test_same_bits();
    test_small_weight_gradients();
    test_one_launch_for_several();
    test_driver_calls_fail();
    return CHECK_DONE();
}
