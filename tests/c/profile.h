/* What holds of a profile on every device: each launch of a step is timed once, whatever the plan
 * is, and nothing of it stays. */
#ifndef TESTS_C_PROFILE_H
#define TESTS_C_PROFILE_H

#include <stdlib.h>

#include "tests/c/train.h"

enum { MAX_STORE_BYTES = 1 << 18 };
static trainer t;

static void open_net(const hl_backend *backend, uint64_t seed, int k, bool scales)
{
    memset(&t, 0, sizeof t);
    t.net = net_roll(seed, k);
    t.net.spec.scales_loss = scales;
    trainer_isa = NULL;
    trainer_open(&t, backend, 1);
    trainer_plan(&t, &t.net, k, true, true);
    trainer_fill(&t);
}

/* All stores as the device has them, one after the other. */
static size_t read_stores(char *out)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < t.session->n_stores; i++) {
        const hl_session_store_entry *entry = &t.session->stores[i];
        size_t more = (size_t)entry->n * hl_dtype_bytes(entry->dtype);
        CHECK(bytes + more <= MAX_STORE_BYTES);
        CHECK_OK(hl_session_read(t.session, entry->name, 0, entry->n, entry->dtype, out + bytes));
        bytes += more;
    }
    return bytes;
}

static void run_steps(int64_t n)
{
    hl_run_end end;
    int64_t steps;
    CHECK_OK(hl_plan_run(t.plan, n, 0, NULL, &end, &steps));
}

/* Every task that a step runs stands in one launch, and its own runs are known. Rounded copies are
 * made anew only where they are not current; what is one launch runs at the same times. */
static void check_launches(const hl_profile *profile)
{
    int32_t n_nodes = 0, n_want = 0;
    double ns = 0, flops = 0;
    hl_plan_info info;
    hl_plan_info_read(t.plan, &info);
    const hl_instr *instr = t.plan->instrs, *first = instr;
    for (int32_t s = 0; s < t.plan->schedule.n_tasks; s++, instr++) {
        n_want += !instr->elided && !instr->refreshes;
        if (!instr->joined) first = instr;
        CHECK_INT(instr->segment, first->segment);
        CHECK_INT(instr->opens, first->opens);
        CHECK_INT(instr->refreshes, first->refreshes);
    }
    for (int32_t i = 0; i < profile->n_launches; i++) {
        const hl_launch_time *launch = &profile->launches[i];
        n_nodes += launch->n_nodes;
        ns += launch->ns * (double)launch->n_runs;
        if (launch->dtype != HL_DTYPE_COUNT) flops += launch->flops;
        CHECK(launch->ns >= 0 && launch->bytes >= 0);
        CHECK(i == 0 || launch->segment >= profile->launches[i - 1].segment);
        CHECK_INT(launch->n_runs, launch->segment == HL_SEGMENT_MICRO ? t.plan->k : 1);
    }
    CHECK_INT(n_nodes, n_want);
    CHECK(flops == info.flops);
    CHECK(profile->step_ns > 0);
    if (t.session->queue) CHECK(fabs(ns - profile->step_ns) < 1); /* the clock of tests is exact */
}

/* Stores before and after, and what further training makes of them. */
static inline void check_unchanged(const hl_backend *backend, uint64_t seed, int k, bool scales)
{
    static char want[MAX_STORE_BYTES], got[MAX_STORE_BYTES];
    hl_profile profile;
    for (int profiles = 0; profiles < 2; profiles++) {
        open_net(backend, seed, k, scales);
        if (scales) {
            hl_control control;
            CHECK_OK(hl_session_control_read(t.session, &control));
            control.scaling = 1, control.loss_scale = 0x1p28; /* comes down in some steps */
            CHECK_OK(hl_session_control_write(t.session, &control));
        }
        run_steps(2);
        if (profiles) {
            static char before[MAX_STORE_BYTES];
            size_t bytes = read_stores(before);
            CHECK_OK(hl_plan_profile(t.plan, &profile));
            check_launches(&profile);
            hl_profile_deinit(&profile);
            CHECK_INT(read_stores(got), bytes);
            CHECK_INT(memcmp(before, got, bytes), 0);
            CHECK_ERROR(hl_plan_output(t.plan, 0, HL_DTYPE_F64, got), HL_ERROR_CONFIG,
                        "after a run");
        }
        run_steps(1000);
        CHECK_OK(hl_feed_seek(t.feed, 1, 0));
        run_steps(1000);
        size_t bytes = read_stores(profiles ? got : want);
        if (profiles) CHECK_INT(memcmp(want, got, bytes), 0);
        trainer_close(&t);
    }
}

/* Training that ends with a profile, whatever call of it fails. */
static inline hl_status run_whole(void *backend)
{
    trainer_profiles = true;
    hl_status status = trainer_run_whole(&t, backend, true, 2 * t.net.rows);
    trainer_profiles = false;
    return status;
}

#endif
