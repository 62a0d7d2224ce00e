/* Devices of GPUs that are described: what is predicted for one is what the emulated driver with
 * the same properties predicts, nothing runs there, and no driver is asked; threads, forked
 * children and lack of memory are as on any device. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/gpus.h"
#include "tests/c/train.h"
#include "tests/cuda/fake_device.h"
#include "tests/cuda/fake_nvrtc.h"

enum { N_NETS = 6, N_THREADS = 4 };

static hl_status open_described(const char *name, hl_device **out_device)
{
    const hl_backend *backend = hl_fake_backend();
    return backend->device_open(backend, 0, &(hl_device_options){.gpu = name}, out_device);
}

static hl_device *open_gpu(const hl_cuda_gpu *gpu)
{
    hl_device *device = NULL;
    CHECK_OK(open_described(gpu->name, &device));
    return device;
}

static void test_names(void)
{
    hl_device *device;
    check_case("names");
    CHECK_OK(open_described("t4", &device));
    CHECK(strcmp(device->name, "Tesla T4, 14.6 GiB, sm_75") == 0);
    CHECK(strcmp(hl_cuda_device_gpu(device)->name, "T4") == 0);
    device->ops->destroy(device);
    static const char *const wrong[] = {"", "T", "T40", "T4 ", "H100"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_ERROR(open_described(wrong[i], &device), HL_ERROR_CONFIG,
                    "gpu: must be one that is described (T4, A100, H200), got '");
        CHECK(!device);
    }
    device = fake_device_open(NULL);
    CHECK(!device->is_described && !hl_cuda_device_gpu(device));
    fake_device_close(device);
}

/* Each has what the driver and a library read. */
static void test_properties(void)
{
    static const struct {
        int arch, n_multiprocessors;
        size_t shared_bytes, total_bytes, unasked_bytes; /* of cuBLASLt */
        hl_dtype reduced;
    } want[] = {{75, 40, 65536, 15655829504, 16 << 20, HL_DTYPE_F16},
                {80, 108, 166912, 85094825984, 16 << 20, HL_DTYPE_BF16},
                {90, 132, 232448, 150000000000, 64 << 20, HL_DTYPE_BF16}};
    int64_t i = 0, calls = hl_fake_calls(NULL);
    for (const hl_cuda_gpu *gpu = hl_cuda_gpus; gpu->name; gpu++, i++) {
        check_case("%s", gpu->name);
        hl_device *device = open_gpu(gpu);
        const hl_cuda_facts *facts = hl_cuda_device_facts(device);
        hl_memory_stats memory;
        CHECK_INT(facts->arch, want[i].arch);
        CHECK_INT(facts->n_multiprocessors, want[i].n_multiprocessors);
        CHECK_INT(facts->shared_bytes_block, want[i].shared_bytes);
        CHECK_INT(device->reduced_dtype, want[i].reduced);
        CHECK_INT(device->unasked[0].bytes, want[i].unasked_bytes);
        CHECK_INT(device->unasked[1].bytes, 128 << 20);
        CHECK_INT(device->unasked[2].bytes, facts->arch >= 80 ? 128 << 20 : 0);
        CHECK(device->is_described);
        CHECK_OK(device->ops->memory_read(device, &memory));
        CHECK_INT(memory.total_bytes, want[i].total_bytes);
        CHECK_INT(memory.free_bytes, want[i].total_bytes);
        CHECK(hl_cuda_gpu_number(gpu, "no such key") == -1 && gpu->text[0] == '{');
        device->ops->destroy(device);
    }
    CHECK_INT(i, 3);
    CHECK_INT(hl_fake_calls(NULL), calls);
}

/* What would do work says that there is nobody to do it; what only names it is given. */
static void test_nothing_runs(void)
{
    static const char words[] = "801 (the GPU is a description";
    hl_device *device = open_gpu(hl_cuda_gpus);
    const hl_device_ops *ops = device->ops;
    hl_stream *stream;
    hl_event *event;
    hl_session *session;
    hl_capture *capture;
    CUfunction kernel;
    char host[16];
    void *ptr;
    bool is_done = false;
    check_case("work");
    CHECK_OK(ops->stream_create(device, &stream));
    CHECK_OK(ops->event_create(device, true, &event));
    CHECK_OK(ops->host_alloc(device, 64, &ptr));
    memset(ptr, 1, 64);
    ops->host_free(device, ptr);
    CHECK_OK(ops->synchronize(device, stream));
    CHECK_OK(ops->event_query(device, event, &is_done));
    CHECK(is_done);
    CHECK_ERROR(ops->memory_alloc(device, 64, &ptr), HL_ERROR_DEVICE, words);
    CHECK_ERROR(ops->copy(device, host, host, 16, HL_COPY_HOST_TO_DEVICE, stream), HL_ERROR_DEVICE,
                words);
    CHECK_ERROR(ops->fill_zero(device, host, 16, stream), HL_ERROR_DEVICE, words);
    CHECK_ERROR(ops->event_record(device, event, stream), HL_ERROR_DEVICE, words);
    CHECK_ERROR(ops->event_wait(device, event, stream), HL_ERROR_DEVICE, words);
    CHECK_ERROR(ops->capture_begin(device, stream), HL_ERROR_DEVICE, words);
    CHECK_ERROR(ops->capture_end(device, stream, &capture), HL_ERROR_DEVICE, words);
    CHECK_OK(hl_cuda_kernel_get(device, "any name", 1 << 10, &kernel));
    CHECK_ERROR(hl_cuda_launch(device, kernel, &(hl_cuda_shape){{1, 1, 1}, {1, 1, 1}, 0}, stream,
                               (void *[]){NULL}),
                HL_ERROR_DEVICE, words);
    CHECK_ERROR(hl_cuda_kernel_get(device, "any name", 1 << 20, &kernel), HL_ERROR_DEVICE,
                "needs at most 65536 bytes of shared memory, got 1048576");
    CHECK_OK(hl_session_create(device, &session));
    CHECK_ERROR(hl_session_store(session, "param", HL_DTYPE_F32, 4), HL_ERROR_DEVICE, words);
    hl_session_destroy(session);
    const hl_cublaslt *lt;
    hl_reason why_not = {""};
    CHECK_INT(hl_cublaslt_get(device, &lt, &why_not), HL_ERROR_CONFIG);
    CHECK(strstr(why_not.text, "cuBLASLt chooses on the GPU, got a description") != NULL);
    const hl_cudnn *dnn;
    CHECK_INT(hl_cudnn_get(device, &dnn, &why_not), HL_ERROR_CONFIG);
    ops->event_destroy(device, event);
    ops->stream_destroy(device, stream);
    ops->destroy(device);
}

/* A thread that enters again is in until it has left as often. */
static void test_contexts(void)
{
    hl_device *device = open_gpu(hl_cuda_gpus), *other = open_gpu(hl_cuda_gpus + 1);
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    size_t n_free, total;
    check_case("contexts");
    CHECK_OK(hl_cuda_enter(device));
    CHECK_OK(hl_cuda_enter(other));
    CHECK_INT(driver->cuMemGetInfo(&n_free, &total), CUDA_SUCCESS);
    CHECK_INT(total, hl_cuda_gpu_number(hl_cuda_gpus + 1, "totalGlobalMem"));
    hl_cuda_leave(other);
    CHECK_INT(driver->cuMemGetInfo(&n_free, &total), CUDA_SUCCESS);
    CHECK_INT(total, hl_cuda_gpu_number(hl_cuda_gpus, "totalGlobalMem"));
    hl_cuda_leave(device);
    CHECK_INT(driver->cuMemGetInfo(&n_free, &total), CUDA_ERROR_INVALID_CONTEXT);
    device->ops->destroy(device);
    other->ops->destroy(other);
}

/* A build without kernels, and one of any toolkit, predicts as well. */
static void test_builds(void)
{
    hl_cuda_build build = *(const hl_cuda_build *)hl_fake_backend();
    hl_device *device;
    check_case("builds");
    build.fatbins_end = build.fatbins;
    build.toolkit = 0;
    for (int i = 0; i < 2; i++, build.toolkit = 99010) {
        CHECK_OK(
            build.base.device_open(&build.base, 0, &(hl_device_options){.gpu = "A100"}, &device));
        device->ops->destroy(device);
    }
}

/* ---- predictions ----------------------------------------------------------------------------- */

static void predict(hl_device *device, uint64_t seed, hl_plan_info *out_info)
{
    hl_plan_options options = {
        .n_slots = 2 + (int)seed % 4, .k = 2, .fuse = true, .chain = true, .overlap = true};
    net n = net_roll(seed, options.k);
    hl_graph *graph;
    options.compute_dtype = seed % 2 ? device->reduced_dtype : HL_DTYPE_F32;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &n));
    CHECK_OK(hl_plan_predict(device, graph, &options, out_info, NULL));
}

/* Where there is no NVRTC programs are constants of the plan. */
static void test_predictions(bool compiles)
{
    setenv("HOTLOOP_CACHE_PATH", "", 1);
    setenv("HOTLOOP_NVRTC_PATH", compiles ? FAKE_NVRTC : "none", 1);
    for (const hl_cuda_gpu *gpu = hl_cuda_gpus; gpu->name; gpu++) {
        hl_device *described = open_gpu(gpu);
        const hl_cuda_facts *facts = hl_cuda_device_facts(described);
        hl_device *emulated = fake_device_open(
            &(hl_fake_config){.arch = facts->arch,
                              .n_multiprocessors = facts->n_multiprocessors,
                              .memory_bytes = (size_t)hl_cuda_gpu_number(gpu, "totalGlobalMem")});
        for (uint64_t seed = 0; seed < (compiles ? 1 : N_NETS); seed++) {
            hl_plan_info want, got;
            check_case("net %d for %s, NVRTC %d", (int)seed, gpu->name, compiles);
            predict(emulated, seed, &want);
            int64_t calls = hl_fake_calls(NULL);
            predict(described, seed, &got);
            CHECK_INT(hl_fake_calls(NULL), calls);
            CHECK(got.arena_bytes > 0 && got.const_bytes <= want.const_bytes);
            if (!compiles) got.const_bytes = want.const_bytes;
            CHECK(!memcmp(&got, &want, sizeof want));
        }
        fake_device_close(emulated);
        described->ops->destroy(described);
    }
    setenv("HOTLOOP_NVRTC_PATH", "none", 1);
}

/* ---- threads, children, memory --------------------------------------------------------------- */

typedef struct thread_work {
    pthread_t thread;
    hl_device *shared;
    const hl_cuda_gpu *own;
    hl_plan_info got[2];
} thread_work;

static void *predict_in_thread(void *context)
{
    thread_work *work = context;
    hl_device *own = open_gpu(work->own);
    for (uint64_t seed = 0; seed < N_NETS; seed++) {
        predict(work->shared, seed, &work->got[0]);
        predict(own, seed, &work->got[1]);
    }
    own->ops->destroy(own);
    return NULL;
}

static void test_threads(void)
{
    static thread_work work[N_THREADS];
    hl_device *shared = open_gpu(hl_cuda_gpus);
    hl_plan_info want;
    for (int i = 0; i < N_THREADS; i++) {
        work[i] = (thread_work){.shared = shared, .own = &hl_cuda_gpus[i % 3]};
        pthread_create(&work[i].thread, NULL, predict_in_thread, &work[i]);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(work[i].thread, NULL);
    for (int i = 0; i < N_THREADS; i++) {
        check_case("thread %d", i);
        predict(shared, N_NETS - 1, &want);
        CHECK(!memcmp(&work[i].got[0], &want, sizeof want));
        hl_device *own = open_gpu(work[i].own);
        predict(own, N_NETS - 1, &want);
        CHECK(!memcmp(&work[i].got[1], &want, sizeof want));
        own->ops->destroy(own);
    }
    shared->ops->destroy(shared);
}

static void use_in_child(hl_device *device)
{
    hl_memory_stats memory;
    hl_plan_info info;
    CHECK_ERROR(device->ops->memory_read(device, &memory), HL_ERROR_DEVICE, "got a forked child");
    device->ops->destroy(device);
    device = open_gpu(hl_cuda_gpus);
    predict(device, 0, &info);
    CHECK(info.arena_bytes > 0);
    device->ops->destroy(device);
}

static void test_fork(void)
{
    hl_device *device = open_gpu(hl_cuda_gpus);
    int status = -1;
    check_case("a forked child");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        use_in_child(device);
        _exit(atomic_load(&check_failures) != 0);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    device->ops->destroy(device);
}

static hl_status open_session(void *context)
{
    hl_device *device;
    hl_session *session;
    (void)context;
    HL_TRY(open_described("H200", &device));
    hl_status status = hl_session_create(device, &session);
    hl_session_destroy(session);
    device->ops->destroy(device);
    return status;
}

static void test_memory_fails(void)
{
    check_case("lack of memory");
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, open_session, NULL) >= 20);
}

int main(void)
{
    setenv("HOTLOOP_CUBLASLT_PATH", "none", 1);
    setenv("HOTLOOP_CUDNN_PATH", "none", 1);
    hl_fake_reset(NULL);
    test_names();
    test_properties();
    test_nothing_runs();
    test_contexts();
    test_builds();
    test_predictions(false);
    test_predictions(true);
    test_threads();
    test_fork();
    test_memory_fails();
    return CHECK_DONE();
}
