/* Whole training steps on the emulated GPU: small random networks with every optimizer, dropout,
 * batch statistics and accumulation, in float32 and with 16-bit products. A plan that is captured
 * gives the bits of one that is run call by call, fused or not, and both are close to the
 * reference. A stop and a wrong index are polled without a wait inside an epoch; driver calls may
 * fail. */
#include <stdlib.h>

#include "tests/c/train.h"
#include "tests/cuda/fake_device.h"
#include "tests/cuda/fake_nvrtc.h"

enum { N_NETS = 16, MAX_NUMBERS = 8192, N_STEPS = 6 };

typedef struct outcome {
    int64_t n;
    double numbers[MAX_NUMBERS]; /* losses, parameters, average, statistics */
    hl_control control;
} outcome;

static outcome want, eager, captured;

static void open_net(trainer *t, const hl_backend *backend, uint64_t seed, int k, bool fuse)
{
    memset(t, 0, sizeof *t);
    t->net = net_roll(seed, k);
    trainer_isa = NULL;
    trainer_open(t, backend, 1);
    trainer_plan(t, &t->net, k, fuse, true);
    trainer_fill(t);
}

static void add_numbers(trainer *t, const char *store, int64_t n, outcome *out)
{
    if (n > 0)
        CHECK_OK(hl_session_read(t->session, store, 0, n, HL_DTYPE_F64, out->numbers + out->n));
    out->n += n;
}

/* Steps over two epochs; a batch that is not full ends one. */
static void train_net(const hl_backend *backend, uint64_t seed, bool fuse, outcome *out)
{
    static trainer t;
    hl_run_end end;
    int64_t steps;
    memset(out, 0, sizeof *out);
    open_net(&t, backend, seed, 1 + (int)seed % 3, fuse);
    for (int step = 0; step < N_STEPS; step++) {
        if (step % 3 == 0) CHECK_OK(hl_feed_seek(t.feed, (uint64_t)step, 0));
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
        if (end != HL_RUN_DONE) continue;
        CHECK_OK(hl_plan_output(t.plan, 0, HL_DTYPE_F64, out->numbers + out->n++));
    }
    CHECK(out->n > 0);
    add_numbers(&t, "param", t.net.n_flat, out);
    add_numbers(&t, "ema", t.net.spec.ema ? t.net.n_flat : 0, out);
    add_numbers(&t, "buffer", t.net.batch_norm ? t.net.width[1] : 0, out);
    CHECK_OK(hl_session_control_read(t.session, &out->control));
    trainer_close(&t);
}

static double find_gap(const outcome *a, const outcome *b)
{
    double worst = 0;
    CHECK_INT(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        double gap = fabs(a->numbers[i] - b->numbers[i]) / (1 + fabs(b->numbers[i]));
        worst = gap <= worst ? worst : gap; /* NaN is the worst */
    }
    return worst;
}

static void test_nets(void)
{
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        train_net(hl_ref_backend(), seed, false, &want);
        for (int fuse = 0; fuse < 2; fuse++) {
            check_case("net %d, fuse %d", (int)seed, fuse);
            hl_fake_reset(NULL);
            trainer_capture = false;
            train_net(hl_fake_backend(), seed, fuse, &eager);
            trainer_capture = true;
            train_net(hl_fake_backend(), seed, fuse, &captured);
            CHECK_INT(hl_fake_live_sum(), 0);
            CHECK_INT(memcmp(&eager, &captured, sizeof eager), 0);
            CHECK(find_gap(&eager, &want) <= 1e-3);
            CHECK_INT(eager.control.applied, want.control.applied);
        }
    }
}

/* The reference is not rounded, and so not as close. */
static void test_reduced(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_BF16, HL_DTYPE_F16};
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        check_case("net %d, products in %s", (int)seed, hl_dtype_name(dtypes[seed % 2]));
        hl_fake_reset(NULL);
        train_net(hl_ref_backend(), seed, false, &want);
        trainer_dtype = dtypes[seed % 2];
        trainer_capture = false;
        train_net(hl_fake_backend(), seed, true, &eager);
        trainer_capture = true;
        train_net(hl_fake_backend(), seed, true, &captured);
        CHECK_INT(memcmp(&eager, &captured, sizeof eager), 0);
        CHECK(find_gap(&eager, &want) < 0.05);
        trainer_dtype = HL_DTYPE_F32;
    }
}

static trainer t;

/* What is predicted takes no memory of the GPU's, nor page-locked memory, and is what creating the
 * plan takes; with NVRTC and without. */
static void test_predictions(void)
{
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    for (uint64_t seed = 0; seed < 2 * N_NETS; seed++) {
        hl_plan_options options = {.n_slots = 2 + (int)seed % 4, .k = 2, .fuse = true};
        net n = net_roll(seed, options.k);
        hl_plan_info predicted, created;
        hl_graph *graph;
        hl_device *device;
        hl_session *session;
        hl_plan *plan;
        check_case("prediction of net %d", (int)seed);
        hl_fake_reset(NULL);
        setenv("HOTLOOP_NVRTC_PATH", seed < N_NETS ? FAKE_NVRTC : "none", 1);
        CHECK_OK(hl_fake_backend()->device_open(hl_fake_backend(), 0, NULL, &device));
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(net_build(graph, &n));
        int64_t n_allocs = hl_fake_calls("cuMemAlloc_v2"),
                n_pinned = hl_fake_calls("cuMemHostAlloc");
        CHECK_OK(hl_plan_predict(device, graph, &options, &predicted, NULL));
        CHECK_INT(hl_fake_calls("cuMemAlloc_v2"), n_allocs);
        CHECK_INT(hl_fake_calls("cuMemHostAlloc"), n_pinned);
        CHECK_OK(hl_session_create(device, &session));
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(net_build(graph, &n));
        CHECK_OK(hl_plan_create(session, graph, &options, &plan));
        CHECK(hl_fake_calls("cuMemAlloc_v2") > n_allocs &&
              hl_fake_calls("cuMemHostAlloc") > n_pinned);
        hl_plan_info_read(plan, &created);
        CHECK(!memcmp(&predicted, &created, sizeof created));
        hl_plan_destroy(plan);
        hl_session_destroy(session);
        device->ops->destroy(device);
    }
    setenv("HOTLOOP_NVRTC_PATH", "none", 1);
}

/* Inside an epoch the host waits for no work but for what it queued some steps ago; nor does it
 * between epochs where it writes a little. */
static void test_never_waits(void)
{
    uint64_t seed = 0;
    hl_run_end end;
    int64_t steps, before;
    double value = 0.375, got;
    check_case("waits");
    hl_fake_reset(NULL);
    trainer_capture = true;
    while (net_roll(seed, 1).rows > DATA_ROWS / 8) seed++;
    open_net(&t, hl_fake_backend(), seed, 1, true);
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    before = hl_fake_calls("cuStreamSynchronize") + hl_fake_pageable();
    for (int i = 0; i < 6; i++) CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_DONE);
    CHECK_OK(hl_session_write(t.session, "param", 0, 1, HL_DTYPE_F64, &value));
    CHECK_INT(hl_fake_calls("cuStreamSynchronize") + hl_fake_pageable(), before);
    CHECK_OK(hl_session_read(t.session, "param", 0, 1, HL_DTYPE_F64, &got));
    CHECK(got == value);
    trainer_close(&t);
}

/* The loss of the first batch is no number: nothing changes any more. */
static void test_stop(void)
{
    hl_run_end end;
    int64_t steps;
    hl_control control;
    static double before[MAX_NUMBERS], after[MAX_NUMBERS];
    check_case("stop");
    open_net(&t, hl_fake_backend(), 5, 1, true);
    for (int64_t i = 0; i < DATA_ROWS * t.net.width[0]; i++) t.data[i] = NAN;
    CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F64, before));
    CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps));
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F64, after));
    CHECK_OK(hl_session_control_read(t.session, &control));
    CHECK_INT(end, HL_RUN_STOPPED);
    CHECK_INT(control.stopped_at, 1);
    CHECK_INT(control.applied, 0);
    CHECK_INT(memcmp(before, after, (size_t)t.net.n_flat * sizeof *before), 0);
    trainer_close(&t);
}

static hl_status fill_wrong(void *context, const hl_batch *batch, void *const *fields)
{
    int64_t *calls = context;
    memcpy(fields[0], batch->rows, (size_t)batch->n * sizeof *batch->rows);
    if (++*calls == 3) ((int64_t *)fields[0])[0] = DATA_ROWS + 7;
    return HL_OK;
}

/* An index out of range: its window is not applied, and training can go on. */
static void test_fault(void)
{
    int64_t calls = 0, steps;
    hl_run_end end;
    hl_control control;
    check_case("fault");
    open_net(&t, hl_fake_backend(), 6, 1, true);
    hl_feed_options options = *hl_feed_settings(t.feed);
    options.fill = fill_wrong, options.context = &calls;
    CHECK_OK(hl_plan_feed(t.plan, NULL));
    hl_feed_destroy(t.feed);
    CHECK_OK(hl_feed_create(&options, &t.feed));
    CHECK_OK(hl_plan_feed(t.plan, t.feed));
    CHECK_ERROR(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps), HL_ERROR_DATA, "got 103");
    CHECK_OK(hl_session_control_read(t.session, &control));
    CHECK_INT(control.applied, 2);
    CHECK_OK(hl_feed_seek(t.feed, 1, 0));
    CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_FEED_END);
    trainer_close(&t);
}

/* ---- driver calls fail ----------------------------------------------------------------------- */

/* Most calls stand between one that enters and one that leaves: a stride that meets all of them. */
enum { STRIDE = 7 };

static hl_status run_whole(void *backend)
{
    return trainer_run_whole(&t, backend, true, 3 * t.net.rows);
}

static void test_driver_calls_fail(void)
{
    void *backend = (void *)hl_fake_backend();
    t.net = net_roll(6, 1);
    hl_fake_reset(NULL);
    int64_t n_sites =
        fake_walk_calls(CUDA_ERROR_OUT_OF_MEMORY, false, STRIDE, false, run_whole, backend);
    n_sites += fake_walk_calls(CUDA_ERROR_LAUNCH_FAILED, true, STRIDE, false, run_whole, backend);
    CHECK(n_sites > 100);
}

/* ---- batch sizes ----------------------------------------------------------------------------- */

enum { N_SIZED = 8 };

/* Parameters after some steps of a plan of rows[1], on a device that has one of rows[0] already;
 * returns how many kernels were compiled for it. */
static int64_t train_sized(uint64_t seed, const int64_t rows[2], bool has_nvrtc, float *out_param)
{
    net first = net_roll(seed, 1), n = first;
    hl_run_end end;
    int64_t steps;
    hl_graph *graph;
    hl_plan *plan;
    hl_plan_options options = {.n_slots = 2, .k = 1, .fuse = true, .chain = true};
    first.rows = rows[0], n.rows = rows[1];
    setenv("HOTLOOP_NVRTC_PATH", has_nvrtc ? FAKE_NVRTC : "none", 1);
    hl_fake_reset(NULL);
    memset(&t, 0, sizeof t);
    trainer_open(&t, hl_fake_backend(), 1);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &first));
    CHECK_OK(hl_plan_create(t.session, graph, &options, &plan));
    int64_t before = hl_fake_nvrtc_compiles();
    trainer_plan(&t, &n, 1, true, true);
    int64_t n_compiles = hl_fake_nvrtc_compiles() - before;
    t.net = n;
    trainer_fill(&t);
    CHECK_OK(hl_plan_run(t.plan, 2, 0, NULL, &end, &steps));
    CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, out_param));
    hl_plan_destroy(plan);
    trainer_close(&t);
    return n_compiles;
}

/* A plan of another batch size takes the kernels that were compiled for the first one, and has the
 * bits of one that is interpreted. Both sizes are on one side of the size up to which the loss is
 * one launch with its sums. */
static void test_batch_sizes(void)
{
    static const int64_t rows[][2] = {{24, 31}, {33, 40}};
    static float compiled[MAX_NUMBERS], interpreted[MAX_NUMBERS];
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    for (uint64_t seed = 0; seed < N_SIZED; seed++)
        for (int r = 0; r < 2; r++) {
            check_case("batch sizes, net %d, %d rows", (int)seed, (int)rows[r][1]);
            memset(compiled, 0, sizeof compiled), memset(interpreted, 0, sizeof interpreted);
            CHECK_INT(train_sized(seed, rows[r], true, compiled), 0);
            CHECK_INT(train_sized(seed, rows[r], false, interpreted), 0);
            CHECK(memcmp(compiled, interpreted, sizeof compiled) == 0);
        }
    CHECK(hl_fake_nvrtc_compiles() > N_SIZED);
    setenv("HOTLOOP_NVRTC_PATH", "none", 1);
}

int main(void)
{
    test_nets();
    test_reduced();
    test_predictions();
    test_never_waits();
    test_stop();
    test_fault();
    test_batch_sizes();
    test_driver_calls_fail();
    return CHECK_DONE();
}
