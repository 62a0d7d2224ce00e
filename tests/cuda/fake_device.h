/* A device over the emulated driver, for a test in C: opened in a new machine, given back with
 * nothing left, and driver calls that fail one after another. */
#ifndef HL_TESTS_CUDA_FAKE_DEVICE_H
#define HL_TESTS_CUDA_FAKE_DEVICE_H

#include "tests/c/check.h"
#include "tests/cuda/fake_table.h"

/* config: as hl_fake_reset has it. */
static inline hl_device *fake_device_open(const hl_fake_config *config)
{
    const hl_backend *backend = hl_fake_backend();
    hl_device *device = NULL;
    hl_fake_reset(config);
    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    return device;
}

static inline void fake_device_close(hl_device *device)
{
    device->ops->destroy(device);
    CHECK_INT(hl_fake_live_sum(), 0);
}

/* Every stride-th driver call of the entry fails, alone or (sticky) with all later ones, a run each
 * until one meets no failure and succeeds: nothing is left behind, no status is made up and, if
 * asked, the entry works again. A failure of what gives back, or of what only informs, may pass
 * unheard. Returns how many calls failed. */
static inline int64_t fake_walk_calls(CUresult error, bool sticky, int stride, bool again,
                                      check_entry entry, void *context)
{
    int64_t n_sites = 0;
    for (int64_t k = 1 + sticky % stride;; k += stride) {
        hl_alloc_stats before, after;
        hl_alloc_stats_read(&before);
        hl_fake_fail(k, sticky, error);
        hl_status status = entry(context);
        const char *failed = hl_fake_failed_call();
        check_case("call %lld (%s), sticky %d, error %d", (long long)k, failed ? failed : "none",
                   sticky, error);
        hl_fake_fail(0, false, CUDA_SUCCESS);
        hl_alloc_stats_read(&after);
        CHECK_INT(after.n_live, before.n_live);
        CHECK_INT(hl_fake_live_sum(), 0);
        CHECK(status == HL_OK || status == HL_ERROR_DEVICE || status == HL_ERROR_MEMORY ||
              status == HL_ERROR_DEVICE_LOST);
        if (!failed) {
            CHECK_OK(status);
            break;
        }
        n_sites++;
        if (again) CHECK_OK(entry(context));
    }
    check_case("%s", "");
    return n_sites;
}

#endif
