/* Profiles on the emulated GPU: times by its events, every launch in its turn, captured or not, in
 * bursts, with accumulation and 16-bit products; nothing of it stays, and calls may fail. */
#include "tests/c/profile.h"
#include "tests/cuda/fake_device.h"

enum { N_NETS = 3, STRIDE = 61 };

static void test_unchanged(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (uint64_t seed = 0; seed < N_NETS; seed++)
        for (int way = 0; way < 4; way++) {
            int k = 1 + (int)seed % 3;
            trainer_capture = way % 2, trainer_slots = way / 2 ? 8 : 2;
            trainer_fed = trainer_slots == 2 && seed % 2;
            trainer_dtype = dtypes[seed % 3];
            check_case("net %d, k %d, way %d", (int)seed, k, way);
            hl_fake_reset(NULL);
            check_unchanged(hl_fake_backend(), seed, k, trainer_dtype == HL_DTYPE_F16);
            CHECK_INT(hl_fake_live_sum(), 0);
        }
    trainer_slots = 2, trainer_fed = false, trainer_dtype = HL_DTYPE_F32;
}

/* One launch waits for as few things as it can: its rounds, and what is put back. */
static void test_events(void)
{
    hl_profile profile;
    check_case("events");
    hl_fake_reset(NULL);
    trainer_capture = true;
    open_net(hl_fake_backend(), 6, 1, false);
    run_steps(1);
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    check_launches(&profile);
    hl_profile_deinit(&profile);
    int64_t made = hl_fake_calls("cuEventCreate"), asked = hl_fake_calls("cuEventElapsedTime");
    CHECK_OK(hl_plan_profile(t.plan, &profile));
    CHECK_INT(hl_fake_calls("cuEventCreate") - made, 2);
    CHECK_INT(hl_fake_calls("cuEventElapsedTime") - asked, 4 * profile.n_launches + 9);
    hl_profile_deinit(&profile);
    trainer_close(&t);
}

static void test_driver_calls_fail(void)
{
    void *backend = (void *)hl_fake_backend();
    t.net = net_roll(6, 1);
    hl_fake_reset(NULL);
    int64_t n_sites =
        fake_walk_calls(CUDA_ERROR_OUT_OF_MEMORY, false, STRIDE, false, run_whole, backend);
    n_sites += fake_walk_calls(CUDA_ERROR_LAUNCH_FAILED, true, STRIDE, false, run_whole, backend);
    CHECK(n_sites > 40);
}

int main(void)
{
    test_unchanged();
    test_events();
    test_driver_calls_fail();
    return CHECK_DONE();
}
