/* Opening a CUDA device: one sentence per reason why not, nothing left behind, forked children,
 * what a survey says. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/probe.h"
#include "tests/cuda/fake_device.h"

static hl_status open_index(const hl_backend *backend, int index)
{
    hl_device *device;
    HL_TRY(backend->device_open(backend, index, NULL, &device));
    device->ops->destroy(device);
    return HL_OK;
}

static void check_nothing_lives(void)
{
    CHECK_INT(hl_fake_live_sum(), 0);
}

static void test_opens(void)
{
    hl_device *device = fake_device_open(NULL);
    CHECK(strcmp(device->name, "Emulated GPU, 1.0 GiB, sm_90") == 0);
    CHECK_INT(hl_cuda_device_facts(device)->arch, 90);
    CHECK_INT(hl_cuda_device_facts(device)->n_multiprocessors, 4);
    CHECK_INT(device->alignment, 256);
    CHECK_INT(hl_fake_get_live().pushed, 0);
    hl_memory_stats memory;
    CHECK_OK(device->ops->memory_read(device, &memory));
    CHECK_INT(memory.total_bytes, 1 << 30);
    CHECK_INT(memory.free_bytes, (1 << 30) - (64 << 20));
    CHECK_INT(memory.current_bytes, 0);
    CHECK(memory.peak_bytes > 0); /* the probe's */
    fake_device_close(device);
    CHECK(!*hl_fake_message());
}

static void test_reasons(void)
{
    const hl_backend *backend = hl_fake_backend();
    hl_fake_reset(&(hl_fake_config){.n_devices = -1});
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE, "must see an NVIDIA GPU, got none");
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE, "(CUDA_VISIBLE_DEVICES is \"7\")");
    unsetenv("CUDA_VISIBLE_DEVICES");
    hl_fake_reset(&(hl_fake_config){.cuda = 12040});
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE,
                "must support CUDA 13.0 (release 580 or newer), got one for CUDA 12.4");
    hl_fake_reset(&(hl_fake_config){.arch = 60});
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE,
                "must be sm_75 (Turing, such as a T4) or newer, got Emulated GPU (sm_60)");
    hl_fake_reset(&(hl_fake_config){.n_devices = 2});
    CHECK_ERROR(open_index(backend, 2), HL_ERROR_DEVICE, "must be below 2, how many there are");
    CHECK_OK(open_index(backend, 1));
    hl_fake_reset(&(hl_fake_config){.memory_bytes = 1 << 20});
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_MEMORY, "must have memory left to begin with");
    hl_fake_reset(&(hl_fake_config){.memory_bytes = 1 << 20, .context_bytes = 1 << 20});
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_MEMORY, "where 0 of 1048576 are free");
    hl_fake_reset(NULL);
    hl_fake_fail_call("cuInit", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE,
                "must start, got CUDA_ERROR_SYSTEM_DRIVER_MISMATCH 803");
    hl_fake_fail_call("cuInit", CUDA_ERROR_STUB_LIBRARY);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE, "got the toolkit's stand-in for linking");
    hl_fake_fail_call("cuInit", CUDA_ERROR_NOT_INITIALIZED);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE, "got a forked child");
    hl_fake_fail_call("cuDevicePrimaryCtxRetain", CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE,
                "must be open to this process, got one that another process has for itself");
    check_nothing_lives();
    hl_fake_fail_call(NULL, CUDA_SUCCESS);
    CHECK_OK(open_index(backend, 0));
}

/* A build for other GPUs, for none, and one of garbage. */
static void test_builds(void)
{
    hl_cuda_build build = *(const hl_cuda_build *)hl_fake_backend();
    hl_fake_reset(&(hl_fake_config){.arch = 121});
    CHECK_OK(open_index(&build.base, 0)); /* by machine code of 120 */
    hl_fake_reset(&(hl_fake_config){.arch = 130});
    CHECK_OK(open_index(&build.base, 0)); /* by its PTX */
    build.toolkit = 13010;
    CHECK_ERROR(open_index(&build.base, 0), HL_ERROR_DEVICE,
                "for sm_130 this build has PTX of CUDA 13.1 alone, which the driver must know, got "
                "a driver for CUDA 13.0; build again with HL_CUDA_ARCHS=130");
    hl_fake_reset(&(hl_fake_config){.arch = 89});
    CHECK_OK(open_index(&build.base, 0)); /* machine code of any CUDA 13 */
    hl_fake_reset(&(hl_fake_config){.arch = 110});
    CHECK_ERROR(open_index(&build.base, 0), HL_ERROR_DEVICE,
                "must have kernels for sm_110, got sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, "
                "sm_120, compute_120; build again with HL_CUDA_ARCHS=110");
    hl_fake_reset(NULL);
    static _Alignas(8) unsigned char garbage[64] = {1, 2, 3};
    build.fatbins = garbage;
    build.fatbins_end = garbage + sizeof garbage;
    CHECK_ERROR(open_index(&build.base, 0), HL_ERROR_DEVICE, "must begin with its magic number");
    build.fatbins_end = build.fatbins;
    CHECK_ERROR(open_index(&build.base, 0), HL_ERROR_DEVICE, "needs a build of hotloop with CUDA");
    build.toolkit = 0;
    hl_fake_reset(&(hl_fake_config){.cuda = 11080});
    CHECK_ERROR(open_index(&build.base, 0), HL_ERROR_DEVICE,
                "must support CUDA 12.0 (release 525 or newer), got one for CUDA 11.8");
    check_nothing_lives();
}

static const char *write_zeros(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context, (void)launch, (void)params;
    return NULL;
}

static const char *fault(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context, (void)launch, (void)params;
    return "a fault in the probe";
}

static void test_probe(void)
{
    const hl_backend *backend = hl_fake_backend();
    static const size_t bytes[] = {sizeof(hl_cuda_probe_params)};
    hl_fake_reset(NULL);
    hl_fake_kernel("hl_cuda_probe", write_zeros, NULL, 1, bytes);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE, "must run the probe kernel: cuda: value");
    hl_fake_kernel("hl_cuda_probe", fault, NULL, 1, bytes);
    CHECK_ERROR(open_index(backend, 0), HL_ERROR_DEVICE_LOST, "got CUDA_ERROR_LAUNCH_FAILED 719");
    check_nothing_lives();
    hl_fake_kernel_restore("hl_cuda_probe");
    CHECK_OK(open_index(backend, 0));
}

/* Status of a child that runs fn: 0 when its checks held. */
static int run_child(void (*fn)(void *context), void *context)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        fn(context);
        _exit(atomic_load(&check_failures) != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void use_in_child(void *context)
{
    hl_device *device = context;
    int64_t calls = hl_fake_calls(NULL);
    void *ptr;
    CHECK_ERROR(device->ops->memory_alloc(device, 16, &ptr), HL_ERROR_DEVICE, "got a forked child");
    CHECK_ERROR(device->ops->synchronize(device, NULL), HL_ERROR_DEVICE, "'spawn'");
    device->ops->destroy(device);
    CHECK_INT(hl_fake_calls(NULL), calls);
    CHECK_ERROR(open_index(hl_fake_backend(), 0), HL_ERROR_DEVICE, "got a forked child");
}

static void test_fork(void)
{
    hl_device *device = fake_device_open(NULL);
    CHECK_INT(run_child(use_in_child, device), 0);
    CHECK_OK(device->ops->synchronize(device, NULL));
    fake_device_close(device);
}

static void test_survey(void)
{
    static hl_survey survey;
    const hl_backend *backend = hl_fake_backend();
    hl_fake_reset(&(hl_fake_config){.n_devices = 2});
    backend->survey(backend, NULL, true, &survey);
    CHECK_INT(survey.n_devices, 2);
    CHECK(strcmp(survey.devices[1].name, "Emulated GPU") == 0);
    CHECK(strcmp(survey.devices[1].architecture, "sm_90") == 0);
    CHECK(!*survey.devices[1].why_not && !*survey.why_none);
    CHECK_INT(survey.devices[0].free_bytes, (1 << 30) - (64 << 20));
    CHECK_INT(survey.n_libraries, 4);
    CHECK(strcmp(survey.libraries[1].name, "cuBLASLt") == 0);
    CHECK(strcmp(survey.libraries[2].name, "cuDNN") == 0);
    hl_fake_reset(&(hl_fake_config){.arch = 61});
    backend->survey(backend, NULL, true, &survey);
    CHECK(strstr(survey.devices[0].why_not, "got Emulated GPU (sm_61)") != NULL);
    hl_fake_reset(&(hl_fake_config){.n_devices = -1});
    backend->survey(backend, NULL, true, &survey);
    CHECK_INT(survey.n_devices, 0);
    CHECK(strstr(survey.why_none, "must see an NVIDIA GPU") != NULL && survey.is_absent);
    hl_fake_reset(&(hl_fake_config){.cuda = 12000});
    backend->survey(backend, NULL, false, &survey);
    CHECK(strstr(survey.why_none, "got one for CUDA 12.0") != NULL && !survey.is_absent);
    hl_fake_reset(&(hl_fake_config){.arch = 61});
    backend->survey(backend, NULL, false, &survey);
    CHECK(survey.n_devices == 1 && !*survey.devices[0].why_not && survey.n_libraries == 0);
    check_nothing_lives();
}

static hl_status open_once(void *context)
{
    (void)context;
    hl_status status = open_index(hl_fake_backend(), 0);
    CHECK_INT(hl_fake_live_sum(), 0);
    return status;
}

static void test_host_memory_fails(void)
{
    hl_fake_reset(NULL);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, open_once, NULL) >= 8);
}

int main(void)
{
    test_opens();
    test_reasons();
    test_builds();
    test_probe();
    test_fork();
    test_survey();
    test_host_memory_fails();
    return CHECK_DONE();
}
