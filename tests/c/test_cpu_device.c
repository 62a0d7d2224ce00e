/* Opening the CPU device: the choice of the instruction set, its errors, the order of the kernels,
 * and nothing lost when an allocation or a thread fails. */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "tests/c/check.h"

static hl_status open_once(void *context)
{
    const hl_device_options *options = context;
    hl_device *device;
    HL_TRY(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, options, &device));
    device->ops->destroy(device);
    return HL_OK;
}

static void test_choice(void)
{
    hl_device_options options = {.n_threads = 2, .isa = "sse9"};
    CHECK_ERROR(open_once(&options), HL_ERROR_CONFIG, "portable), got \"sse9\"");
    options.isa = NULL;
    setenv("HOTLOOP_CPU", "mmx", 1);
    CHECK_ERROR(open_once(&options), HL_ERROR_CONFIG, "got \"mmx\"");
    setenv("HOTLOOP_CPU", "portable", 1);
    hl_device *device;
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &device));
    CHECK(strstr(device->name, ", 2 threads, portable") != NULL);
    CHECK_INT(device->n_threads, 2);
    device->ops->destroy(device);
    unsetenv("HOTLOOP_CPU");
    CHECK_ERROR(hl_cpu_backend()->device_open(hl_cpu_backend(), 1, &options, &device),
                HL_ERROR_DEVICE, "there is one device, 0, got 1");
}

/* The last kernel of every list is a portable one: it runs on any machine. */
static void test_lists(void)
{
    hl_device *device;
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, NULL, &device));
    for (int op = 0; op < HL_OP_COUNT; op++) {
        const hl_kernel *const *list = device->ops->kernels(device, (hl_op)op);
        if (!list) continue;
        int n = 0;
        for (; list[n]; n++) CHECK_INT(list[n]->op, op);
        CHECK(strstr(list[n - 1]->name, ".portable") != NULL);
    }
    device->ops->destroy(device);
}

static void count_block(void *context, int64_t block, int thread)
{
    (void)thread;
    atomic_fetch_add(&((atomic_int *)context)[block], 1);
}

static void test_parallel(void)
{
    hl_device_options options = {.n_threads = 3};
    hl_device *device;
    atomic_int count[100] = {0};
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &device));
    device->ops->parallel(device, 100, count_block, count);
    for (int i = 0; i < 100; i++) CHECK_INT(count[i], 1);
    device->ops->destroy(device);
}

int main(void)
{
    unsetenv("HOTLOOP_CPU");
    test_choice();
    test_lists();
    test_parallel();
    hl_device_options options = {.n_threads = 2};
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, open_once, &options) > 0);
    return CHECK_DONE();
}
