/* What of a step is not finite: it is found where it began, on every device, and looking for it
 * changes nothing. */
#include "tests/c/async_device.h"
#include "tests/c/profile.h"

enum { N_NETS = 20 };

static hl_runner *runner;
static hl_not_finite found;

/* A network in a plan with or without fusion, and a runner over its feed. */
static void open_check(const hl_backend *backend, uint64_t seed, int k, bool fuse)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, k);
    trainer_isa = NULL;
    trainer_open(&t, backend, 1);
    trainer_plan(&t, &t.net, k, fuse, fuse);
    trainer_fill(&t);
    CHECK_OK(hl_runner_create(&(hl_batches){t.plan, DATA_ROWS / t.net.rows}, 1, k, &runner));
}

static void close_check(void)
{
    hl_runner_destroy(runner);
    trainer_close(&t);
}

static int64_t run_to(int64_t n)
{
    hl_run_end end;
    int64_t steps, batches;
    CHECK_OK(hl_runner_run(runner, n, 0, NULL, &end, &steps, &batches));
    return steps;
}

static hl_control read_control(void)
{
    hl_control control;
    CHECK_OK(hl_session_control_read(t.session, &control));
    return control;
}

static void write_control(const hl_control *control)
{
    CHECK_OK(hl_session_control_write(t.session, control));
}

/* ---- nothing changes ------------------------------------------------------------------------- */

/* A run with a check before each step, or without: all stores in the end. */
static void check_unchanged_by(const hl_backend *backend, uint64_t seed, int k, bool fuse)
{
    static char want[MAX_STORE_BYTES], got[MAX_STORE_BYTES], before[MAX_STORE_BYTES];
    for (int checks = 0; checks < 2; checks++) {
        open_check(backend, seed, k, fuse);
        int64_t n_steps = DATA_ROWS / t.net.rows / k;
        for (int64_t step = 0; step < n_steps; step++) {
            if (checks) {
                size_t bytes = read_stores(before);
                CHECK_OK(hl_runner_check(runner, step + 1, true, &found));
                CHECK_INT(found.what, HL_NOT_FINITE_NOTHING);
                CHECK_INT(read_stores(got), bytes);
                CHECK_INT(memcmp(before, got, bytes), 0);
                CHECK_OK(hl_runner_seek(runner, 0, step * k));
            }
            CHECK_INT(run_to(1), 1);
        }
        CHECK_INT(read_control().attempted, n_steps);
        size_t bytes = read_stores(checks ? got : want);
        if (checks) CHECK_INT(memcmp(want, got, bytes), 0);
        close_check();
    }
}

static void test_unchanged(void)
{
    const int stride = CHECK_UNDER_TSAN ? 5 : check_stride();
    for (uint64_t seed = 0; seed < N_NETS; seed += (uint64_t)stride)
        for (int k = 1; k <= 3; k += 2)
            for (int fuse = 0; fuse < 2; fuse++) {
                trainer_slots = 2, trainer_fed = trainer_capture = false;
                check_case("ref, net %d, k %d, fuse %d", (int)seed, k, fuse);
                check_unchanged_by(hl_ref_backend(), seed, k, fuse);
                check_case("cpu, net %d, k %d, fuse %d", (int)seed, k, fuse);
                check_unchanged_by(hl_cpu_backend(), seed, k, fuse);
                for (int way = 0; way < 8; way++) {
                    trainer_capture = way % 2, trainer_fed = way / 2 % 2;
                    trainer_slots = way / 4 ? 8 : 2;
                    async_eager = (int)seed % 3;
                    check_case("async, net %d, k %d, fuse %d, way %d", (int)seed, k, fuse, way);
                    check_unchanged_by(async_backend(), seed, k, fuse);
                }
            }
    async_eager = 0;
    trainer_slots = 2, trainer_fed = false, trainer_capture = true;
}

/* What reaches CONTROL_APPLY last. */
static double norm;
static int64_t attempted;
static void watch_apply(hl_op op, void *const *args)
{
    if (op != HL_OP_CONTROL_APPLY) return;
    attempted = ((const hl_control *)args[0])->attempted;
    norm = *(double *)args[1];
}

/* The step that is checked is the one that was run: of the same number, with the same masks, and
 * with other ones as another step. */
static void test_same_step(void)
{
    int n_nets = 0;
    async_watch = watch_apply;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        net rolled = net_roll(seed, 1);
        if (!rolled.dropout || rolled.n_layers < 2) continue;
        check_case("same step, net %d", (int)seed);
        open_check(async_backend(), seed, 1, true);
        run_to(1);
        hl_control control = read_control();
        double want = norm;
        control.applied = 0;
        write_control(&control);
        CHECK_OK(hl_runner_seek(runner, 0, 0));
        trainer_fill(&t);
        CHECK_OK(hl_runner_check(runner, 1, false, &found));
        CHECK_INT(attempted, 1);
        if (!t.net.batch_norm) CHECK(norm == want);
        CHECK_OK(hl_runner_seek(runner, 0, 0));
        CHECK_OK(hl_runner_check(runner, 7, false, &found));
        CHECK_INT(attempted, 7);
        n_nets += norm != want;
        close_check();
    }
    async_watch = NULL;
    CHECK(n_nets > 2);
}

/* ---- what is found --------------------------------------------------------------------------- */

/* A number of the data of a row of a micro-batch. */
static void spoil_data(int64_t batch, int64_t row, int64_t column, float value)
{
    static int64_t order[DATA_ROWS];
    const hl_sampler *sampler = &hl_feed_settings(t.feed)->sampler;
    hl_sampler_order epoch;
    hl_sampler_order_init(sampler, 0, &epoch);
    hl_sampler_order_fill(sampler, &epoch, 0, DATA_ROWS, order);
    int64_t of_data = order[batch * t.net.rows + row];
    t.data[of_data * t.net.width[0] + column] = value;
    CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
    check_case("row %d of the data", (int)of_data);
}

static uint64_t find_seed(int k, int n_layers, int64_t n_batches)
{
    uint64_t seed = 0;
    for (;; seed++) {
        net n = net_roll(seed, k);
        if (n.n_layers == n_layers && !n.batch_norm && n.rows > 2 &&
            DATA_ROWS / n.rows >= n_batches)
            return seed;
    }
}

static void test_data(void)
{
    for (int way = 0; way < 8; way++) {
        const hl_backend *backend = way / 4 ? async_backend() : hl_ref_backend();
        int k = way % 2 ? 3 : 1;
        trainer_fed = way / 2 % 2;
        check_case("data, way %d", way);
        open_check(backend, find_seed(k, 2, 6), k, false);
        spoil_data(k + k - 1, 2, t.net.width[0] - 1, NAN);
        run_to(1000);
        CHECK_INT(read_control().stopped_at, 2);
        CHECK_OK(hl_runner_seek(runner, 0, k));
        CHECK_OK(hl_runner_check(runner, 2, false, &found));
        CHECK_INT(found.what, HL_NOT_FINITE_LOSS);
        CHECK_INT(found.micro, k - 1);
        CHECK(found.first.is_batch);
        CHECK(!strcmp(found.first.name, "x"));
        CHECK_INT(found.first.n_nan, 1);
        CHECK_INT(found.first.n_infinite, 0);
        CHECK_INT(found.first.first, 3 * t.net.width[0] - 1);
        CHECK(found.first.row >= 0);
        CHECK(isnan(t.data[(found.first.row + 1) * t.net.width[0] - 1]));
        CHECK(!found.is_made_nan);
        CHECK_INT(read_control().stopped_at, 2);
        CHECK_INT(read_control().stopped, 1);
        /* A NaN of the data is nobody's making: it counts where it arrives. */
        CHECK_OK(hl_runner_seek(runner, 0, k));
        CHECK_OK(hl_runner_check(runner, 2, true, &found));
        CHECK_INT(found.what, HL_NOT_FINITE_LOSS);
        close_check();
    }
    trainer_fed = false;
}

/* The step that ends an epoch stops the run: who counts batches has no reason to ask again. */
static void test_last_step(void)
{
    for (int k = 1; k <= 2; k++) {
        hl_run_end end = HL_RUN_DEADLINE;
        int64_t steps, batches, done = 0;
        check_case("last step, k %d", k);
        open_check(async_backend(), find_seed(k, 2, 4), k, false);
        const int64_t n_batches = DATA_ROWS / t.net.rows;
        spoil_data(n_batches - 1, 0, 0, NAN);
        while (done < n_batches) {
            CHECK_INT(end, HL_RUN_DEADLINE);
            CHECK_OK(hl_runner_run(runner, 1000, 1, NULL, &end, &steps, &batches));
            done += batches;
        }
        CHECK_INT(end, HL_RUN_STOPPED);
        close_check();
    }
}

/* Weights that are not finite, and weights of which a product makes infinities. */
static void test_weights(void)
{
    static const float values[] = {NAN, -INFINITY, 3e38f};
    for (int way = 0; way < 5; way++) { /* float64 does not overflow */
        const hl_backend *backend = way % 2 ? async_backend() : hl_cpu_backend();
        check_case("weights, way %d", way);
        open_check(backend, find_seed(1, 1, 2), 1, false);
        CHECK_OK(hl_session_write(t.session, "param", 0, 1, HL_DTYPE_F32, &values[way / 2]));
        for (int64_t i = 0; i < DATA_ROWS * t.net.width[0]; i++) t.data[i] = 2;
        CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
        CHECK_OK(hl_runner_check(runner, 1, false, &found));
        CHECK_INT(found.what, HL_NOT_FINITE_LOSS);
        if (way / 2 < 2) {
            CHECK_INT(found.first.kind, HL_VALUE_PARAM);
            CHECK(!strcmp(found.first.name, "p") && !found.first.op);
            CHECK_INT(found.first.n_nan, way / 2 == 0);
            CHECK_INT(found.first.n_infinite, way / 2 == 1);
            CHECK_INT(found.first.first, 0);
        } else {
            CHECK_INT(found.first.kind, HL_VALUE_ACT);
            CHECK(!strcmp(found.first.op, "matmul") && !found.first.gradient_of);
            CHECK_INT(found.first.n_infinite, t.net.rows);
            CHECK_INT(found.first.first, 0);
        }
        close_check();
    }
}

/* With a loss scale other than 1 gradients that overflow are the scale's fault, a loss is not. */
static void test_scale(void)
{
    for (int of_loss = 0; of_loss < 2; of_loss++) {
        check_case("scale, of the loss %d", of_loss);
        memset(&t, 0, sizeof t);
        t.net = net_roll(find_seed(1, 2, 2), 1);
        t.net.spec.scales_loss = true;
        trainer_open(&t, hl_cpu_backend(), 1);
        trainer_plan(&t, &t.net, 1, false, false);
        trainer_fill(&t);
        CHECK_OK(hl_runner_create(&(hl_batches){t.plan, 2}, 1, 1, &runner));
        hl_control control = read_control();
        control.scaling = 1, control.loss_scale = 0x1p200; /* infinite in float32 */
        write_control(&control);
        if (of_loss) spoil_data(0, 0, 0, NAN);
        for (int everything = 0; everything < 2; everything++) {
            CHECK_OK(hl_runner_seek(runner, 0, 0));
            CHECK_OK(hl_runner_check(runner, 1, everything, &found));
            CHECK_INT(found.what, of_loss ? HL_NOT_FINITE_LOSS : HL_NOT_FINITE_NOTHING);
        }
        CHECK_OK(hl_runner_seek(runner, 0, 0));
        run_to(1);
        CHECK_INT(read_control().skipped, 1);
        CHECK_INT(read_control().stopped, of_loss);
        close_check();
    }
}

/* ---- what is refused, what fails ------------------------------------------------------------- */

static void test_refused(void)
{
    hl_run_end end;
    int64_t steps, batches;
    int stop = 1;
    check_case("refused");
    open_check(hl_ref_backend(), 5, 1, false);
    CHECK_OK(hl_runner_run(runner, 1, 0, &stop, &end, &steps, &batches));
    if (hl_runner_is_unfinished(runner))
        CHECK_ERROR(hl_runner_check(runner, 1, false, &found), HL_ERROR_CONFIG,
                    "left in the middle");
    CHECK_OK(hl_runner_abandon(runner));
    CHECK_OK(hl_session_enter(t.session, "test"));
    CHECK_ERROR(hl_runner_check(runner, 1, false, &found), HL_ERROR_BUSY, "check");
    hl_session_leave(t.session);
    CHECK_OK(hl_runner_seek(runner, 0, DATA_ROWS / t.net.rows));
    CHECK_OK(hl_runner_check(runner, 1, false, &found)); /* there is no step */
    CHECK_INT(found.what, HL_NOT_FINITE_NOTHING);
    close_check();
}

static hl_status check_once(void *context)
{
    (void)context;
    HL_TRY(hl_runner_seek(runner, 0, 0));
    return hl_runner_check(runner, 1, true, &found);
}

/* A call of the device fails: all is put back, unless it is that which fails. */
static void test_calls_fail(void)
{
    static char before[MAX_STORE_BYTES], after[MAX_STORE_BYTES];
    open_check(async_backend(), 6, 1, false);
    run_to(2);
    size_t bytes = read_stores(before);
    CHECK_OK(check_once(NULL));
    hl_fault_set(&async_fault, INT64_MAX, false);
    CHECK_OK(check_once(NULL));
    int64_t n_calls = hl_fault_set(&async_fault, 0, false);
    CHECK(n_calls > 100);
    for (int64_t k = 1; k <= n_calls; k += check_stride()) {
        check_case("call %d of %d fails", (int)k, (int)n_calls);
        hl_fault_set(&async_fault, k, false);
        hl_status status = check_once(NULL);
        hl_fault_set(&async_fault, 0, false);
        CHECK_INT(status, HL_ERROR_DEVICE);
        CHECK(strstr(hl_status_message(), "was asked to fail") != NULL);
        CHECK_INT(read_stores(after), bytes);
        if (k <= n_calls - 2 * t.session->n_stores) CHECK_INT(memcmp(before, after, bytes), 0);
        CHECK_OK(hl_session_write(t.session, "param", 0, 0, HL_DTYPE_F32, &k));
    }
    CHECK_OK(check_once(NULL));
    close_check();
}

static void test_memory_fails(void)
{
    check_case("memory fails");
    open_check(hl_cpu_backend(), 6, 1, false);
    run_to(2);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, check_once, NULL) > 4);
    close_check();
}

int main(void)
{
    test_unchanged();
    test_same_step();
    test_data();
    test_last_step();
    test_weights();
    test_scale();
    test_refused();
    test_calls_fail();
    test_memory_fails();
    return CHECK_DONE();
}
