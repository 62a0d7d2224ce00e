/* Memory of plans: what is predicted without a call to the device's allocators is what creating the
 * plan takes, byte for byte; what plans need only while they run, they share. */
#include "plan/captures.h"
#include "tests/c/async_device.h"
#include "tests/c/grow.h"
#include "tests/c/train.h"

enum { N_GRAPHS = CHECK_UNDER_TSAN ? 60 : 1000, MAX_BLOCKS = 4096 };

/* ---- a device that counts -------------------------------------------------------------------- */

typedef struct block {
    void *at;
    int64_t bytes;
} block;

/* Of device memory, and of page-locked host memory. */
typedef struct counter {
    block blocks[MAX_BLOCKS];
    int n;
    int64_t bytes, peak;
} counter;

static counter device_memory, host_memory;
static hl_device_ops counted;
static const hl_device_ops *real;
static bool is_forbidden; /* predicting */

static void note(counter *c, void *at, size_t bytes)
{
    if (!at) return;
    CHECK(c->n < MAX_BLOCKS);
    c->blocks[c->n++] = (block){at, (int64_t)bytes};
    c->bytes += (int64_t)bytes;
    if (c->bytes > c->peak) c->peak = c->bytes;
}
static void forget(counter *c, const void *at)
{
    for (int i = 0; at && i < c->n; i++) {
        if (c->blocks[i].at != at) continue;
        c->bytes -= c->blocks[i].bytes;
        c->blocks[i] = c->blocks[--c->n];
        return;
    }
    CHECK(!at);
}

static hl_status count_alloc(hl_device *device, size_t bytes, void **out_ptr)
{
    CHECK(!is_forbidden);
    HL_TRY(real->memory_alloc(device, bytes, out_ptr));
    note(&device_memory, *out_ptr, bytes);
    return HL_OK;
}
static void count_free(hl_device *device, void *ptr)
{
    CHECK(!is_forbidden || !ptr);
    forget(&device_memory, ptr);
    real->memory_free(device, ptr);
}
static hl_status count_host_alloc(hl_device *device, size_t bytes, void **out_ptr)
{
    CHECK(!is_forbidden);
    HL_TRY(real->host_alloc(device, bytes, out_ptr));
    note(&host_memory, *out_ptr, bytes);
    return HL_OK;
}
static void count_host_free(hl_device *device, void *ptr)
{
    CHECK(!is_forbidden);
    forget(&host_memory, ptr);
    real->host_free(device, ptr);
}

static hl_status count_copy(hl_device *device, void *dst, const void *src, size_t bytes,
                            hl_copy kind, hl_stream *stream)
{
    CHECK(!is_forbidden);
    return real->copy(device, dst, src, bytes, kind, stream);
}

static void count_device(hl_device *device)
{
    memset(&device_memory, 0, sizeof device_memory);
    memset(&host_memory, 0, sizeof host_memory);
    real = device->ops;
    counted = *real;
    counted.memory_alloc = count_alloc;
    counted.memory_free = count_free;
    counted.copy = count_copy;
    if (real->host_alloc) counted.host_alloc = count_host_alloc;
    if (real->host_free) counted.host_free = count_host_free;
    device->ops = &counted;
}

static void stop_counting(hl_device *device)
{
    CHECK_INT(device_memory.n, 0);
    CHECK_INT(host_memory.n, 0);
    device->ops = real;
}

/* ---- predicted and created ------------------------------------------------------------------- */

static hl_graph *make_step(uint64_t seed, int k)
{
    hl_graph *graph;
    net n = net_roll(seed, k);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &n));
    return graph;
}

/* A training step or a graph of any ops; the same for the same seed. */
static hl_graph *make_any(uint64_t seed, int k)
{
    return seed % 3 ? make_graph(seed, 2 + (int)(seed % 50)) : make_step(seed, k);
}

static void check_info(const hl_plan_info *want, const hl_plan_info *got)
{
    CHECK_INT(want->arena_bytes, got->arena_bytes);
    CHECK_INT(want->slot_bytes, got->slot_bytes);
    CHECK_INT(want->staging_bytes, got->staging_bytes);
    CHECK_INT(want->const_bytes, got->const_bytes);
    CHECK_INT(want->store_bytes, got->store_bytes);
    CHECK(!memcmp(want, got, sizeof *want));
}

static void check_prediction(hl_device *device, uint64_t seed)
{
    dice d = {hl_rng_key_make(seed, "options"), 0};
    hl_plan_options options = {.n_slots = 1 + roll(&d, 9),
                               .k = 1 + roll(&d, 3),
                               .fuse = roll(&d, 4),
                               .chain = roll(&d, 4),
                               .capture = roll(&d, 2),
                               .overlap = roll(&d, 2),
                               .fed = roll(&d, 2)};
    hl_plan_info predicted, created;
    char *text, *created_text;
    hl_session *session;
    hl_plan *plan;
    count_device(device);
    is_forbidden = true;
    CHECK_OK(hl_plan_predict(device, make_any(seed, options.k), &options, &predicted, &text));
    is_forbidden = false;
    CHECK_OK(hl_session_create(device, &session));
    int64_t host_before = host_memory.bytes;
    CHECK_INT(device_memory.bytes, 0);
    CHECK_OK(hl_plan_create(session, make_any(seed, options.k), &options, &plan));
    hl_plan_info_read(plan, &created);
    check_info(&predicted, &created);
    CHECK(predicted.arena_bytes > 0 && predicted.n_kernels > 0);
    CHECK_INT(device_memory.bytes, predicted.arena_bytes + predicted.slot_bytes +
                                       predicted.const_bytes + predicted.store_bytes);
    CHECK_INT(host_memory.bytes - host_before, predicted.staging_bytes);
    CHECK_INT(device_memory.peak, device_memory.bytes);
    CHECK_OK(hl_plan_print(plan, &created_text));
    CHECK_INT(strcmp(text, created_text), 0);
    hl_free(text);
    hl_free(created_text);
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    stop_counting(device);
}

static void test_predictions(void)
{
    const hl_backend *backends[] = {hl_cpu_backend(), hl_ref_backend(), hl_null_backend(),
                                    async_backend()};
    for (int b = 0; b < 4; b++) {
        hl_device *device;
        hl_device_options options = {.n_threads = 2, .isa = trainer_isa};
        CHECK_OK(backends[b]->device_open(backends[b], 0, &options, &device));
        for (uint64_t seed = 0; seed < N_GRAPHS; seed++) {
            check_case("%s, graph %d", backends[b]->name, (int)seed);
            check_prediction(device, seed);
        }
        device->ops->destroy(device);
    }
}

/* A batch, or values in 6 x 2^59 elements: more than 63 bits count. */
static hl_graph *make_huge(bool is_batch)
{
    hl_graph *graph;
    hl_id x, y;
    hl_shape shape = hl_shape_2d((int64_t)1 << 57, 4);
    hl_type type = {HL_DTYPE_F32, is_batch ? shape : hl_shape_1d(4)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    if (is_batch) {
        CHECK_OK(hl_build_sum(graph, x, NULL, 0, false, &y));
        CHECK_OK(hl_graph_output(graph, y));
        return graph;
    }
    CHECK_OK(hl_build_expand(graph, x, &shape, &x));
    for (int i = 0; i < 6; i++) {
        CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, x, &x));
        CHECK_OK(hl_graph_output(graph, x));
    }
    return graph;
}

/* Sizes that do not fit in 63 bits are memory that is not there, for predictions too. */
static void test_sizes_that_overflow(void)
{
    for (int is_batch = 0; is_batch < 2; is_batch++) {
        hl_plan_options options = {.n_slots = is_batch ? 16 : 1, .k = 1, .chain = true};
        hl_plan_info info;
        hl_device *device;
        hl_session *session;
        hl_plan *plan;
        check_case("is_batch %d", is_batch);
        CHECK_OK(hl_null_backend()->device_open(hl_null_backend(), 0, NULL, &device));
        CHECK_INT(hl_plan_predict(device, make_huge(is_batch), &options, &info, NULL),
                  HL_ERROR_MEMORY);
        CHECK_INT(info.arena_bytes, 0);
        CHECK_OK(hl_session_create(device, &session));
        CHECK_INT(hl_plan_create(session, make_huge(is_batch), &options, &plan), HL_ERROR_MEMORY);
        CHECK(plan == NULL);
        hl_session_destroy(session);
        device->ops->destroy(device);
    }
}

static hl_status predict_step(void *device)
{
    hl_plan_options options = {.n_slots = 2, .k = 2, .fuse = true, .chain = true};
    hl_plan_info info;
    char *text = NULL;
    hl_graph *graph;
    net n = net_roll(4, 2);
    HL_TRY(hl_graph_create(&graph));
    hl_status status = net_build(graph, &n);
    if (status != HL_OK) {
        hl_graph_destroy(graph);
        return status;
    }
    status = hl_plan_predict(device, graph, &options, &info, &text);
    hl_free(text);
    return status;
}

static void test_every_allocation_of_a_prediction_may_fail(void)
{
    hl_device *device;
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, NULL, &device));
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, predict_step, device) > 100);
    device->ops->destroy(device);
}

/* ---- many shapes in turn --------------------------------------------------------------------- */

enum { N_SHAPES = 12 };

/* Trains two epochs over plans of these rows; the most that the device ever held, and of that what
 * lies in constants, which are each plan's own. */
static int64_t measure_peak(const hl_backend *backend, const int64_t *rows, int n_shapes,
                            int64_t *out_consts, int64_t *out_host)
{
    static trainer base, each[N_SHAPES];
    hl_batches order[N_SHAPES];
    hl_runner *runner;
    memset(&base, 0, sizeof base);
    base.net = net_roll(10, 2);
    trainer_open(&base, backend, 2);
    hl_session_destroy(base.session);
    count_device(base.device);
    CHECK_OK(hl_session_create(base.device, &base.session));
    *out_consts = 0;
    for (int i = 0; i < n_shapes; i++) {
        hl_plan_info info;
        each[i] = base;
        each[i].net.rows = rows[i];
        trainer_plan(&each[i], &each[i].net, 2, true, true);
        hl_plan_info_read(each[i].plan, &info);
        *out_consts += info.const_bytes;
        order[i] = (hl_batches){each[i].plan, DATA_ROWS / rows[i]};
        if (i == 0) trainer_fill(&each[0]);
        CHECK_OK(hl_plan_dataset(each[i].plan, 0, each[0].data, DATA_ROWS));
    }
    CHECK_OK(hl_runner_create(order, n_shapes, 2, &runner));
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        hl_run_end end;
        int64_t steps, batches;
        CHECK_OK(hl_runner_seek(runner, epoch, 0));
        CHECK_OK(hl_runner_run(runner, 1000, 0, NULL, &end, &steps, &batches));
        CHECK_INT(end, HL_RUN_FEED_END);
        CHECK(steps > n_shapes / 2);
    }
    hl_runner_destroy(runner);
    for (int i = 0; i < n_shapes; i++) {
        hl_plan_destroy(each[i].plan);
        hl_feed_destroy(each[i].feed);
    }
    hl_session_destroy(base.session);
    int64_t peak = device_memory.peak;
    *out_host = host_memory.peak;
    stop_counting(base.device);
    base.device->ops->destroy(base.device);
    return peak;
}

static void test_many_shapes(void)
{
    const hl_backend *backends[] = {hl_cpu_backend(), hl_ref_backend(), async_backend()};
    int64_t rows[N_SHAPES], consts, own_consts, host, own_host;
    trainer_capture = trainer_fed = true; /* no plan has a copy of the data */
    for (int b = 0; b < 3; b++)
        for (int order = 0; order < 3; order++) {
            check_case("%s, order %d", backends[b]->name, order);
            for (int i = 0; i < N_SHAPES; i++)
                rows[i] = 4 + 3 * (order == 0   ? i
                                   : order == 1 ? N_SHAPES - 1 - i
                                                : i * 5 % N_SHAPES);
            int64_t largest = 4 + 3 * (N_SHAPES - 1);
            int64_t peak = measure_peak(backends[b], rows, N_SHAPES, &consts, &host);
            int64_t alone = measure_peak(backends[b], &largest, 1, &own_consts, &own_host);
            CHECK_INT(peak - consts, alone - own_consts);
            CHECK_INT(host, own_host);
        }
    trainer_capture = trainer_fed = false;
}

/* ---- captures -------------------------------------------------------------------------------- */

static hl_status make_capture(hl_device *device, hl_stream *stream, hl_capture **out)
{
    HL_TRY(device->ops->capture_begin(device, stream));
    return device->ops->capture_end(device, stream, out);
}

/* Those of the plan that launches stay; of the others, what was replayed longest ago goes. */
static void test_captures(void)
{
    enum { N = 6, EACH = HL_CAPTURES_LAUNCHES / 4 };
    hl_device *device;
    hl_stream *stream;
    hl_captures *captures;
    hl_captured *home[N] = {NULL};
    int owners[2];
    check_case("captures");
    CHECK_OK(async_backend()->device_open(async_backend(), 0, NULL, &device));
    CHECK_OK(device->ops->stream_create(device, &stream));
    CHECK_OK(hl_captures_create(device, &captures));
    for (int i = 0; i < 4; i++) {
        hl_capture *capture;
        CHECK_OK(make_capture(device, stream, &capture));
        CHECK_OK(hl_captures_add(captures, &owners[0], capture, EACH, &home[i]));
    }
    CHECK(home[0] && home[1] && home[2] && home[3]);
    CHECK_OK(hl_captures_launch(captures, home[0], stream));
    for (int i = 4; i < N; i++) {
        hl_capture *capture;
        CHECK_OK(make_capture(device, stream, &capture));
        CHECK_OK(hl_captures_add(captures, &owners[1], capture, EACH, &home[i]));
    }
    CHECK(home[0] && !home[1] && !home[2] && home[3] && home[4] && home[5]);
    hl_capture *large;
    CHECK_OK(make_capture(device, stream, &large));
    CHECK_OK(hl_captures_add(captures, &owners[1], large, 5 * EACH, &home[1]));
    CHECK(!home[0] && home[1] && !home[3] && home[4] && home[5]);
    hl_captures_drop(captures, &owners[1]);
    CHECK(!home[1] && !home[4] && !home[5]);
    hl_captures_destroy(captures);
    device->ops->stream_destroy(device, stream);
    device->ops->destroy(device);
}

/* ---- poison ---------------------------------------------------------------------------------- */

/* Kernels that write nothing give NaN in the second step too, where builds have plans poison what a
 * region is going to write (plan/poison.h). */
static void test_what_nobody_wrote_is_nan(void)
{
#ifdef __SANITIZE_ADDRESS__
    enum { N = 3, STEPS = 2 };
    check_case("poison");
    hl_plan_options options = {.n_slots = 1, .k = 1};
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(N)};
    hl_device *device;
    hl_session *session;
    hl_graph *graph;
    hl_plan *plan;
    hl_id x;
    CHECK_OK(hl_null_backend()->device_open(hl_null_backend(), 0, NULL, &device));
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", type, &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_TANH, x, &x));
    CHECK_OK(hl_graph_output(graph, x));
    CHECK_OK(hl_plan_create(session, graph, &options, &plan));
    for (int i = 0; i < STEPS; i++) {
        float y[N] = {0};
        hl_run_end end;
        int64_t steps;
        CHECK_OK(hl_plan_run(plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_plan_output(plan, 0, HL_DTYPE_F32, y));
        for (int j = 0; j < N; j++) CHECK(isnan(y[j]));
    }
    hl_plan_destroy(plan);
    hl_session_destroy(session);
    device->ops->destroy(device);
#endif
}

int main(void)
{
    test_predictions();
    test_what_nobody_wrote_is_nan();
    test_sizes_that_overflow();
    test_every_allocation_of_a_prediction_may_fail();
    test_many_shapes();
    test_captures();
    return CHECK_DONE();
}
