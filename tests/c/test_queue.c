/* The queue: plans on an asynchronous device train bit for bit as on the same kernels run at once,
 * captured or not, and never wait for the device inside an epoch. */
#include <unistd.h>

#include "plan/bounce.h"
#include "tests/c/async_device.h"
#include "tests/c/train.h"

enum { N_NETS = 40, MAX_PARAMS = 4096 };

typedef struct outcome {
    double params[MAX_PARAMS];
    hl_control control;
    hl_run_end end;
    int64_t steps;
} outcome;

static trainer t;
static outcome want, got;

/* Where the data lies: as the plan's copy, resident, or on the host, which feeds it by so many
 * loaders; or nowhere, and a source makes it. */
typedef enum data_home {
    COPIED,
    RESIDENT,
    FED,
    FED_BY_2,
    STREAMED,
    STREAMED_BY_2,
    N_HOMES
} data_home;
static hl_resident *resident;

static void open_net(const hl_backend *backend, uint64_t seed, int k, bool capture, data_home home)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, k);
    trainer_capture = capture;
    trainer_fed = home == FED || home == FED_BY_2;
    trainer_streamed = home == STREAMED || home == STREAMED_BY_2;
    trainer_loaders = home == FED_BY_2 || home == STREAMED_BY_2 ? 2 : 0;
    trainer_open(&t, backend, 1);
    trainer_plan(&t, &t.net, k, true, true);
    trainer_fill(&t);
    if (home != RESIDENT) return;
    size_t bytes = (size_t)(DATA_ROWS * t.net.width[0]) * sizeof(float);
    CHECK_OK(hl_resident_create(t.device, t.data, bytes, &resident));
    memset(t.data, 0xFF, sizeof t.data); /* nobody looks here any more */
    CHECK_OK(hl_plan_dataset_resident(t.plan, 0, resident, DATA_ROWS));
}

static void close_net(void)
{
    hl_plan_destroy(t.plan);
    hl_resident_destroy(resident);
    t.plan = NULL;
    resident = NULL;
    trainer_close(&t);
}

static void read_outcome(outcome *out)
{
    memset(out->params, 0, sizeof out->params);
    CHECK_OK(hl_session_read(t.session, "param", 0, t.net.n_flat, HL_DTYPE_F64, out->params));
    CHECK_OK(hl_session_control_read(t.session, &out->control));
}

static void seek(uint64_t epoch, int64_t batch)
{
    t.epoch = epoch;
    CHECK_OK(hl_feed_seek(t.feed, epoch, batch));
}

/* Two epochs, in runs of `slice` steps, which waits for loaders may cut short. */
static void run_epochs(outcome *out, int64_t slice)
{
    out->steps = 0;
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        seek(epoch, 0);
        do {
            int64_t steps, deadline = trainer_loaders ? hl_os_time_ns() + 20 * 1000 : 0;
            CHECK_OK(hl_plan_run(t.plan, slice, deadline, NULL, &out->end, &steps));
            out->steps += steps;
        } while (out->end == HL_RUN_DONE || out->end == HL_RUN_DEADLINE);
    }
    read_outcome(out);
}

/* Short steps go many at once; what takes long does not, nor what is many launches. */
static void test_burst(void)
{
    hl_plan_info info = {.n_instructions = 20, .flops = 1.2e9, .arena_bytes = 4 << 20};
    info.store_bytes = 9 << 20; /* 784-512-256-10 of 512 rows */
    CHECK_INT(hl_queue_choose_burst(&info, 64), 32);
    CHECK_INT(hl_queue_choose_burst(&info, 9), 4);
    CHECK_INT(hl_queue_choose_burst(&info, 2), 1);
    info.n_instructions = 100;
    CHECK_INT(hl_queue_choose_burst(&info, 64), 8);
    info.n_instructions = 20, info.flops = 1e10; /* some ms on a slow GPU */
    CHECK_INT(hl_queue_choose_burst(&info, 64), 4);
    info.flops = 5e11;
    CHECK_INT(hl_queue_choose_burst(&info, 64), 1);
    info.flops = 0, info.arena_bytes = (int64_t)4 << 30;
    CHECK_INT(hl_queue_choose_burst(&info, 64), 1);
}

static void check_same(void)
{
    CHECK_INT(memcmp(want.params, got.params, sizeof want.params), 0);
    CHECK_INT(memcmp(&want.control, &got.control, sizeof want.control), 0);
    CHECK_INT(want.end, got.end);
}

/* Half of the slots, at most: steps of one micro-batch that are one capture. */
static int64_t find_burst(int k)
{
    return k == 1 && trainer_slots > 3 && !trainer_loaders ? trainer_slots / 2 : 1;
}

/* One capture is launched for each micro-batch, with begin or apply in it where they follow, or for
 * a burst; a window that an epoch cuts short has an apply of its own. */
static void check_replays(bool capture, int k)
{
    int64_t batches = DATA_ROWS / t.net.rows, cut = batches % k != 0, burst = find_burst(k);
    int64_t replays = batches / burst + batches % burst + cut;
    CHECK_INT(async_of(t.device)->n_replays, capture ? 2 * replays : 0);
}

static void check_way(uint64_t seed, int k, int way)
{
    bool capture = way % 2, slices = way / 2 % 2;
    data_home home = (data_home)(way / 4 % N_HOMES);
    trainer_slots = way / 4 / N_HOMES ? 8 : 2;
    async_eager = (int)seed % 8; /* compute, copies, what runs beside */
    check_case("net %d, k %d, capture %d, slices %d, home %d, slots %d", (int)seed, k, capture,
               slices, home, trainer_slots);
    open_net(async_backend(), seed, k, capture, home);
    run_epochs(&got, slices ? 2 : 1000);
    CHECK_INT(want.steps, got.steps);
    if (!slices || find_burst(k) == 1) check_replays(capture, k);
    close_net();
    trainer_slots = 2;
    check_same();
}

static void test_same_bits(void)
{
    /* Threads are the loaders' alone, and the same for every net. */
    const int stride = CHECK_UNDER_TSAN ? 5 : check_stride();
    for (uint64_t seed = 0; seed < N_NETS; seed += (uint64_t)stride)
        for (int k = 1; k <= 3; k += 2) {
            check_case("net %d, k %d", (int)seed, k);
            open_net(hl_ref_backend(), seed, k, false, COPIED);
            run_epochs(&want, 1000);
            close_net();
            for (int way = 0; way < 8 * N_HOMES; way++) check_way(seed, k, way);
        }
}

static void check_never_waits(data_home home)
{
    check_case("waits, home %d", home);
    uint64_t seed = 0;
    while (net_roll(seed, 1).rows > DATA_ROWS / 8) seed++;
    open_net(async_backend(), seed, 1, true, home);
    hl_run_end end;
    int64_t steps, before;
    CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    before = async_of(t.device)->n_syncs;
    for (int i = 0; i < 3; i++) CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_DONE);
    CHECK_INT(async_of(t.device)->n_syncs, before);
    close_net();
}

/* The host has polled a step when three are under way behind it, and no later. */
static void test_polls_in_time(void)
{
    check_case("polls in time, slots %d", trainer_slots);
    uint64_t seed = 0;
    while (net_roll(seed, 1).rows > DATA_ROWS / 8) seed++;
    open_net(async_backend(), seed, 1, true, COPIED);
    hl_run_end end;
    int64_t steps;
    hl_control control;
    for (int64_t i = 1; i <= 8; i++) {
        CHECK_OK(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps));
        CHECK_OK(hl_session_snapshot(t.session, &control));
        CHECK_INT(control.attempted, i > 3 ? i - 3 : 0);
    }
    close_net();
}

enum { MANY_WRITES = 3 * HL_BOUNCE_PIECES + 1 };

/* More writes than the bounce buffer has pieces: none is lost, and the first wait for nothing. */
static void check_many_writes(hl_device *device, hl_session *session)
{
    float value, read[MANY_WRITES];
    CHECK_OK(hl_session_store(session, "many", HL_DTYPE_F32, MANY_WRITES));
    int64_t syncs = async_of(device)->n_syncs, done = async_of(device)->streams[0]->done;
    for (int i = 0; i < MANY_WRITES; i++) {
        value = (float)i + 1;
        CHECK_OK(hl_session_write(session, "many", i, 1, HL_DTYPE_F32, &value));
        if (i < HL_BOUNCE_PIECES) CHECK_INT(async_of(device)->streams[0]->done, done);
    }
    CHECK_INT(async_of(device)->n_syncs, syncs);
    CHECK_OK(hl_session_read(session, "many", 0, MANY_WRITES, HL_DTYPE_F32, read));
    for (int i = 0; i < MANY_WRITES; i++) CHECK(read[i] == (float)i + 1);
}

/* More than a piece, converted both ways. */
static void check_long_store(hl_session *session)
{
    enum { N = 2 * HL_BOUNCE_PIECES * HL_BOUNCE_ELEMENTS + 7 };
    double *in, *out;
    CHECK_OK(hl_alloc(2 * N * sizeof *in, (void **)&in));
    out = in + N;
    for (int i = 0; i < N; i++) in[i] = i;
    CHECK_OK(hl_session_store(session, "long", HL_DTYPE_F32, N));
    CHECK_OK(hl_session_write(session, "long", 0, N, HL_DTYPE_F64, in));
    CHECK_OK(hl_session_read(session, "long", 0, N, HL_DTYPE_F64, out));
    CHECK_INT(memcmp(in, out, N * sizeof *in), 0);
    hl_free(in);
}

/* What is written and copied between epochs is so in the stream's order: reading it is the first
 * to wait. */
static void test_stores_never_wait(void)
{
    check_case("waits for stores");
    async_eager = 0;
    hl_device *device;
    hl_session *session;
    double in[3] = {1, 2, 4}, out[3];
    float plain[3] = {8, 16, 32}, plain_out[3];
    CHECK_OK(async_backend()->device_open(async_backend(), 0, NULL, &device));
    CHECK_OK(hl_session_create(device, &session));
    CHECK_OK(hl_session_store(session, "a", HL_DTYPE_F32, 3));
    CHECK_OK(hl_session_store(session, "b", HL_DTYPE_F32, 3));
    int64_t before = async_of(device)->n_syncs;
    CHECK_OK(hl_session_write(session, "a", 0, 3, HL_DTYPE_F64, in));
    CHECK_OK(hl_session_copy(session, "b", "a"));
    CHECK_OK(hl_session_write(session, "a", 0, 3, HL_DTYPE_F32, plain));
    memset(in, 0, sizeof in), memset(plain, 0, sizeof plain);
    CHECK_INT(async_of(device)->n_syncs, before);
    CHECK_OK(hl_session_read(session, "b", 0, 3, HL_DTYPE_F64, out));
    CHECK_OK(hl_session_read(session, "a", 0, 3, HL_DTYPE_F32, plain_out));
    CHECK(out[0] == 1 && out[1] == 2 && out[2] == 4);
    CHECK(plain_out[0] == 8 && plain_out[1] == 16 && plain_out[2] == 32);
    check_many_writes(device, session);
    check_long_store(session);
    hl_session_destroy(session);
    device->ops->destroy(device);
}

static void test_never_waits(void)
{
    for (int home = COPIED; home < N_HOMES; home++) check_never_waits((data_home)home);
}

/* A wrong dataset of a fed plan is refused where it is found. */
static void test_fed_datasets(void)
{
    check_case("fed datasets");
    hl_run_end end;
    int64_t steps;
    open_net(async_backend(), 6, 1, true, FED);
    CHECK_ERROR(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS - 1), HL_ERROR_SHAPE, "rows");
    CHECK_ERROR(hl_plan_dataset(t.plan, 1, t.data, DATA_ROWS), HL_ERROR_CONFIG, "datasets");
    CHECK_OK(hl_resident_create(t.device, t.data, 8, &resident));
    CHECK_ERROR(hl_plan_dataset_resident(t.plan, 0, resident, DATA_ROWS), HL_ERROR_CONFIG,
                "must be resident");
    CHECK_OK(hl_plan_dataset(t.plan, 0, NULL, DATA_ROWS));
    CHECK_ERROR(hl_plan_run(t.plan, 1, 0, NULL, &end, &steps), HL_ERROR_CONFIG, "must be set");
    CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
    hl_feed_options options = *hl_feed_settings(t.feed);
    options.sampler = (hl_sampler){.n = DATA_ROWS + 1};
    options.first = DATA_ROWS + 1 - options.batch, options.count = options.batch;
    CHECK_OK(hl_plan_feed(t.plan, NULL));
    hl_feed_destroy(t.feed);
    CHECK_OK(hl_feed_create(&options, &t.feed));
    CHECK_OK(hl_plan_feed(t.plan, t.feed));
    CHECK_ERROR(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps), HL_ERROR_DATA,
                "must be at least 0 and below 96, got 96 at position");
    close_net();
}

/* An epoch that is left early for another one: what was sent before is what the device gets, though
 * loaders fill the slots anew. */
static void run_cut_epoch(outcome *out)
{
    int64_t steps;
    CHECK_OK(hl_plan_run(t.plan, 3, 0, NULL, &out->end, &steps));
    CHECK_INT(steps, 3);
    seek(7, 1);
    /* Loaders have the time to fill every slot. */
    if (trainer_loaders) usleep(20000);
    CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &out->end, &out->steps));
    read_outcome(out);
}

static void test_seek_while_batches_are_queued(void)
{
    uint64_t seed = 0;
    while (net_roll(seed, 1).rows > DATA_ROWS / 8) seed++;
    open_net(hl_ref_backend(), seed, 1, false, COPIED);
    run_cut_epoch(&want);
    close_net();
    for (int home = COPIED; home < N_HOMES; home++)
        for (async_eager = 0; async_eager < 3; async_eager++) {
            check_case("seek, home %d, eager %d, slots %d", home, async_eager, trainer_slots);
            open_net(async_backend(), seed, 1, true, (data_home)home);
            run_cut_epoch(&got);
            close_net();
            check_same();
            CHECK_INT(want.steps, got.steps);
        }
    async_eager = 0;
}

/* The host polls a stop some steps late, and those steps have changed nothing. */
static void test_stop(void)
{
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        check_case("stop, asynchronous %d, slots %d", asynchronous, trainer_slots);
        open_net(asynchronous ? async_backend() : hl_ref_backend(), 5, 1, true, COPIED);
        for (int64_t i = 0; i < DATA_ROWS * t.net.width[0]; i++) t.data[i] = NAN;
        CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
        outcome *out = asynchronous ? &got : &want;
        run_epochs(out, 1000);
        CHECK_INT(out->end, HL_RUN_STOPPED);
        CHECK_INT(out->control.stopped_at, 1);
        close_net();
    }
    want.control.n_micro = got.control.n_micro; /* 0 in the queued steps that did nothing */
    check_same();
}

static hl_status fill_wrong(void *context, const hl_batch *batch, void *const *fields)
{
    int64_t *calls = context;
    memcpy(fields[0], batch->rows, (size_t)batch->n * sizeof *batch->rows);
    if (++*calls == 3) ((int64_t *)fields[0])[0] = DATA_ROWS + 7;
    return HL_OK;
}

/* The plan's feed again, with an index out of range in it; so many batches, 0: as many as before.
 */
static void feed_wrong(int64_t *calls, int64_t n_batches)
{
    hl_feed_options options = *hl_feed_settings(t.feed);
    options.fill = fill_wrong, options.context = calls;
    if (n_batches) options.count = n_batches * options.batch;
    CHECK_OK(hl_plan_feed(t.plan, NULL));
    hl_feed_destroy(t.feed);
    CHECK_OK(hl_feed_create(&options, &t.feed));
    CHECK_OK(hl_plan_feed(t.plan, t.feed));
}

/* An index out of range: the error comes, its window is not applied, and training can go on. */
static void test_fault(void)
{
    check_case("fault, slots %d", trainer_slots);
    open_net(async_backend(), 6, 1, true, COPIED);
    int64_t calls = 0, steps;
    hl_run_end end;
    feed_wrong(&calls, 0);
    CHECK_INT(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps), HL_ERROR_DATA);
    CHECK(strstr(hl_status_message(), "got 103") != NULL);
    read_outcome(&got);
    CHECK_INT(got.control.applied, 2);
    CHECK_INT(got.control.error_code, 0);
    seek(1, 0);
    CHECK_OK(hl_plan_run(t.plan, 1000, 0, NULL, &end, &steps));
    CHECK_INT(end, HL_RUN_FEED_END);
    /* The last batch of an epoch, though no further one is asked for. */
    calls = 0;
    feed_wrong(&calls, 3);
    CHECK_INT(hl_plan_run(t.plan, 3, 0, NULL, &end, &steps), HL_ERROR_DATA);
    close_net();
}

/* An index out of range, which the last step queued by the network met, is polled first in a run of
 * another plan of the session: that one has no node of that number. */
static void test_fault_of_another_plan(void)
{
    for (int is_closed = 0; is_closed < 2; is_closed++) {
        check_case("fault of another plan, closed %d, slots %d", is_closed, trainer_slots);
        open_net(async_backend(), 6, 1, true, COPIED);
        int64_t calls = 0, steps;
        hl_run_end end;
        feed_wrong(&calls, 0);
        CHECK_OK(hl_plan_run(t.plan, 3, 0, NULL, &end, &steps)); /* not polled yet */
        hl_plan *small = make_tanh(t.session);
        if (is_closed) {
            hl_plan_destroy(t.plan);
            t.plan = NULL;
        }
        CHECK_ERROR(hl_plan_run(small, 1, 0, NULL, &end, &steps), HL_ERROR_DATA,
                    is_closed ? "a plan that is closed: an operand must be in range"
                              : "batch_gather: index out of range");
        CHECK(strstr(hl_status_message(), "got 103") != NULL);
        CHECK_OK(hl_plan_run(small, 1, 0, NULL, &end, &steps));
        hl_plan_destroy(small);
        close_net();
    }
}

/* One call fails, then that one and all after it, as often as it takes. */
static void test_device_calls_fail(void)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(6, 1);
    async_eager = 0;
    for (int sticky = 0; sticky < 2; sticky++)
        for (int64_t k = 1;; k += check_stride()) {
            hl_alloc_stats before, after;
            check_case("device call %d fails, sticky %d, slots %d", (int)k, sticky, trainer_slots);
            hl_alloc_stats_read(&before);
            hl_fault_set(&async_fault, k, sticky);
            hl_status status = trainer_run_whole(&t, async_backend(), false, DATA_ROWS);
            int64_t n_seen = hl_fault_set(&async_fault, 0, false);
            hl_alloc_stats_read(&after);
            CHECK_INT(after.current_bytes, before.current_bytes);
            if (n_seen < k) {
                CHECK_OK(status);
                CHECK(k > 100);
                break;
            }
            if (status != HL_OK) CHECK_INT(status, HL_ERROR_DEVICE);
        }
}

int main(void)
{
    test_burst();
    test_same_bits();
    test_fed_datasets();
    for (trainer_slots = 2; trainer_slots <= 8; trainer_slots += 6) {
        test_never_waits();
        test_polls_in_time();
        test_stores_never_wait();
        test_seek_while_batches_are_queued();
        test_stop();
        test_fault();
        test_fault_of_another_plan();
        test_device_calls_fail();
    }
    return CHECK_DONE();
}
