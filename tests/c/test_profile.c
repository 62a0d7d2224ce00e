/* Profiles: each launch timed on the operands that it has in training, and all put back. */
#include "tests/c/async_device.h"
#include "tests/c/profile.h"

enum { N_NETS = 20, MAX_NORMS = 4096 };

static void test_unchanged(void)
{
    /* Threads are the loaders' alone, and the same for every net. */
    const int stride = CHECK_UNDER_TSAN ? 5 : check_stride();
    for (uint64_t seed = 0; seed < N_NETS; seed += (uint64_t)stride)
        for (int k = 1; k <= 3; k += 2) {
            trainer_slots = 2, trainer_fed = trainer_capture = false;
            check_case("ref, net %d, k %d", (int)seed, k);
            check_unchanged(hl_ref_backend(), seed, k, false);
            check_case("cpu, net %d, k %d", (int)seed, k);
            trainer_dtype = seed % 2 ? HL_DTYPE_F16 : HL_DTYPE_F32;
            check_unchanged(hl_cpu_backend(), seed, k, seed % 2);
            trainer_dtype = HL_DTYPE_F32;
            for (int way = 0; way < 8; way++) {
                trainer_capture = way % 2, trainer_fed = way / 2 % 2;
                trainer_slots = way / 4 ? 8 : 2;
                async_eager = (int)seed % 3;
                async_launch_ns = seed % 2 ? 1e6 : 1e4; /* once, or many times in a row */
                check_case("async, net %d, k %d, way %d", (int)seed, k, way);
                check_unchanged(async_backend(), seed, k, false);
            }
        }
    async_eager = 0, async_launch_ns = 1e6;
    trainer_slots = 2, trainer_fed = false, trainer_capture = true;
}

/* What reaches CONTROL_APPLY: squared norms of gradients, and of which step. */
static double norms[MAX_NORMS];
static int64_t steps_of[MAX_NORMS];
static int n_norms;
static void watch_apply(hl_op op, void *const *args)
{
    if (op != HL_OP_CONTROL_APPLY || n_norms == MAX_NORMS) return;
    steps_of[n_norms] = ((const hl_control *)args[0])->attempted;
    norms[n_norms++] = *(double *)args[1];
}

/* With a learning rate of 0 every step is the same: so is the one that is measured, however often
 * its accumulations and what it does in place were repeated. */
static void test_same_step(void)
{
    int n_nets = 0;
    static char stores[MAX_STORE_BYTES];
    double rate[3] = {0};
    hl_profile profile;
    async_launch_ns = 1e4;
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        net rolled = net_roll(seed, 3);
        if (rolled.dropout) continue;
        check_case("same step, net %d", (int)seed);
        open_net(async_backend(), seed, 3, false);
        CHECK_OK(hl_session_write(t.session, "table", 0, 3, HL_DTYPE_F64, rate));
        run_steps(1);
        read_stores(stores); /* waits for it */
        n_norms = 0;
        async_watch = watch_apply;
        CHECK_OK(hl_plan_profile(t.plan, &profile));
        async_watch = NULL;
        CHECK(n_norms > 100); /* 3 rounds of 50 */
        for (int i = 1; i < n_norms; i++) CHECK(norms[i] == norms[0]);
        CHECK(norms[0] > 0);
        int64_t n_steps = 1; /* one as it is, one in pieces, three timed as a whole */
        for (int i = 1; i < n_norms; i++) n_steps += steps_of[i] == steps_of[i - 1] + 1;
        CHECK_INT(n_steps, 5);
        CHECK_INT(steps_of[n_norms - 1], steps_of[0] + 4);
        for (int32_t i = 0; i < profile.n_launches; i++) CHECK(profile.launches[i].ns == 1e4);
        hl_profile_deinit(&profile);
        trainer_close(&t);
        n_nets++;
    }
    CHECK(n_nets > 4);
    async_launch_ns = 1e6;
}

/* Bytes that a launch must move and operations that it must do, of one network known by heart. */
static void test_work(void)
{
    hl_profile profile;
    check_case("work");
    uint64_t seed = 0;
    while (net_roll(seed, 1).n_layers != 1 || net_roll(seed, 1).batch_norm) seed++;
    open_net(hl_ref_backend(), seed, 1, false);
    run_steps(1);
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    double m = (double)t.net.rows, n = t.net.width[1], k = t.net.width[0];
    int n_products = 0, n_gathers = 0;
    for (int32_t i = 0; i < profile.n_launches; i++) {
        const hl_launch_time *launch = &profile.launches[i];
        if (!strcmp(launch->op, "batch_gather")) {
            CHECK(launch->bytes == m * (8 + (4 + 8) * k)); /* rows alone of the 96 */
            n_gathers++;
        }
        if (strcmp(launch->op, "matmul") != 0) continue;
        CHECK(launch->flops == 2 * m * n * k);
        CHECK_INT(launch->dtype, HL_DTYPE_F64);
        double bias = n_products ? 0 : n; /* forward, then the weight's gradient */
        CHECK(launch->bytes == 8 * (m * k + m * n + n * k + bias));
        n_products++;
    }
    CHECK_INT(n_products, 2);
    CHECK_INT(n_gathers, 1);
    hl_profile_deinit(&profile);
    trainer_close(&t);
}

static void test_refused(void)
{
    hl_profile profile;
    hl_run_end end;
    int64_t steps;
    int stop = 1;
    check_case("refused");
    open_net(hl_ref_backend(), 5, 1, false);
    CHECK_ERROR(hl_plan_profile(t.plan, &profile), HL_ERROR_CONFIG, "got none");
    CHECK_OK(hl_plan_run(t.plan, 1, 0, &stop, &end, &steps));
    if (hl_plan_is_unfinished(t.plan))
        CHECK_ERROR(hl_plan_profile(t.plan, &profile), HL_ERROR_CONFIG, "left in the middle");
    run_steps(1);
    CHECK_OK(hl_session_enter(t.session, "test"));
    CHECK_ERROR(hl_plan_profile(t.plan, &profile), HL_ERROR_BUSY, "profile");
    hl_session_leave(t.session);
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    hl_profile_deinit(&profile);
    trainer_close(&t);
}

/* Steps that are not applied, and a run that has stopped. */
static void test_not_finite(void)
{
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        static char before[MAX_STORE_BYTES], after[MAX_STORE_BYTES];
        hl_profile profile;
        hl_control control;
        check_case("not finite, asynchronous %d", asynchronous);
        open_net(asynchronous ? async_backend() : hl_ref_backend(), 5, 1, false);
        for (int64_t i = 0; i < DATA_ROWS * t.net.width[0]; i++) t.data[i] = NAN;
        CHECK_OK(hl_plan_dataset(t.plan, 0, t.data, DATA_ROWS));
        for (int mode = HL_NAN_SKIP; mode >= HL_NAN_STOP; mode--) {
            CHECK_OK(hl_session_control_read(t.session, &control));
            control.nan_mode = mode;
            CHECK_OK(hl_session_control_write(t.session, &control));
            run_steps(1);
            size_t bytes = read_stores(before);
            CHECK_ERROR(hl_plan_profile(t.plan, &profile), HL_ERROR_NOT_FINITE,
                        mode == HL_NAN_STOP ? "has stopped" : "not finite");
            CHECK(!profile.launches);
            CHECK_INT(read_stores(after), bytes);
            CHECK_INT(memcmp(before, after, bytes), 0);
        }
        trainer_close(&t);
    }
}

/* A call of the device fails: what was measured is given up, what was there is put back, unless it
 * is that which fails. */
static void check_call_fails(int64_t k, int64_t n_calls)
{
    static char before[MAX_STORE_BYTES], after[MAX_STORE_BYTES];
    hl_profile profile;
    size_t bytes = read_stores(before);
    hl_fault_set(&async_fault, k, false);
    hl_status status = hl_plan_profile(t.plan, &profile);
    hl_fault_set(&async_fault, 0, false);
    CHECK_INT(status, HL_ERROR_DEVICE);
    CHECK(strstr(hl_status_message(), "was asked to fail") != NULL);
    bool restored = k <= n_calls - 2 * t.session->n_stores;
    CHECK_INT(read_stores(after), bytes);
    if (restored) CHECK_INT(memcmp(before, after, bytes), 0);
}

static void test_calls_fail(void)
{
    hl_profile profile;
    open_net(async_backend(), 6, 1, false);
    run_steps(1);
    CHECK_OK(hl_plan_profile(t.plan, &profile)); /* waits for the run */
    hl_profile_deinit(&profile);
    hl_fault_set(&async_fault, INT64_MAX, false);
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    int64_t n_calls = hl_fault_set(&async_fault, 0, false);
    hl_profile_deinit(&profile);
    CHECK(n_calls > 200);
    for (int64_t k = 1; k <= n_calls; k += check_stride()) {
        check_case("call %d of %d fails", (int)k, (int)n_calls);
        check_call_fails(k, n_calls);
    }
    run_steps(1);
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    hl_profile_deinit(&profile);
    trainer_close(&t);
    for (int64_t k = 1; k < 2 * n_calls + 400; k += 11) {
        check_case("call %d and all after it fail", (int)k);
        hl_alloc_stats before, after;
        hl_alloc_stats_read(&before);
        hl_fault_set(&async_fault, k, true);
        hl_status status = run_whole((void *)async_backend());
        int64_t n_seen = hl_fault_set(&async_fault, 0, false);
        hl_alloc_stats_read(&after);
        CHECK_INT(after.n_live, before.n_live);
        CHECK(status == HL_OK || status == HL_ERROR_DEVICE);
        if (n_seen < k) CHECK_OK(status);
    }
}

static hl_status profile_once(void *context)
{
    hl_profile profile;
    hl_status status = hl_plan_profile(context, &profile);
    hl_profile_deinit(&profile);
    return status;
}

static void test_memory_fails(void)
{
    open_net(hl_cpu_backend(), 6, 1, false);
    run_steps(1);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, profile_once, t.plan) > 4);
    trainer_close(&t);
}

int main(void)
{
    test_unchanged();
    test_same_step();
    test_work();
    test_refused();
    test_not_finite();
    test_calls_fail();
    test_memory_fails();
    return CHECK_DONE();
}
