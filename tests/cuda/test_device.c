/* A CUDA device at work over the emulated driver: memory, order on streams, events, capture, lost
 * devices, and every driver call made to fail, once and for good. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/fake_device.h"

enum { N = 300 };

/* ---- a kernel: dst[i] = a * src[i] + b ------------------------------------------------------- */

static const char *run_line(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context, (void)launch;
    float *dst = (float *)(uintptr_t) * (CUdeviceptr *)params[0];
    const float *src = (const float *)(uintptr_t) * (CUdeviceptr *)params[1];
    float a = *(float *)params[2], b = *(float *)params[3];
    for (int i = 0; i < N; i++) dst[i] = a * src[i] + b;
    return NULL;
}

static const char *run_fault(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context, (void)launch, (void)params;
    return "test_fault: a fault on purpose";
}

static CUfunction line_kernel; /* loaded with the device, before any capture */

static hl_device *open_device(void)
{
    static const size_t bytes[] = {8, 8, 4, 4};
    hl_fake_kernel("test_line", run_line, NULL, 4, bytes);
    hl_fake_kernel("test_fault", run_fault, NULL, 0, bytes);
    hl_device *device = fake_device_open(NULL);
    CHECK_OK(hl_cuda_kernel_get(device, "test_line", 0, &line_kernel));
    return device;
}

static hl_status launch_line(hl_device *device, void *dst, void *src, float a, float b,
                             hl_stream *stream)
{
    hl_cuda_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
    CUdeviceptr to = (uintptr_t)dst, from = (uintptr_t)src;
    return hl_cuda_launch(device, line_kernel, &shape, stream,
                          (void *[]){&to, &from, &a, &b, NULL});
}

static void *alloc_device(hl_device *device)
{
    void *ptr = NULL;
    CHECK_OK(device->ops->memory_alloc(device, N * sizeof(float), &ptr));
    return ptr;
}

static void upload(hl_device *device, void *dst, float value)
{
    float src[N];
    for (int i = 0; i < N; i++) src[i] = value + (float)i;
    CHECK_OK(device->ops->copy(device, dst, src, sizeof src, HL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(device->ops->synchronize(device, NULL));
}

/* The last value; all others follow it. */
static float download(hl_device *device, void *src)
{
    float got[N];
    CHECK_OK(device->ops->copy(device, got, src, sizeof got, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_OK(device->ops->synchronize(device, NULL));
    return got[N - 1] - (N - 1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_memory(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    void *a = alloc_device(device), *b = alloc_device(device), *none;
    upload(device, a, 3);
    CHECK_OK(ops->copy(device, b, a, N * sizeof(float), HL_COPY_DEVICE_TO_DEVICE, NULL));
    CHECK(download(device, b) == 3);
    CHECK_OK(ops->fill_zero(device, b, N * sizeof(float), NULL));
    CHECK(download(device, b) == -(N - 1));
    CHECK_OK(ops->memory_alloc(device, 0, &none));
    CHECK(none == NULL);
    hl_memory_stats memory;
    CHECK_OK(ops->memory_read(device, &memory));
    CHECK_INT(memory.current_bytes, 2 * N * 4);
    ops->memory_free(device, b);
    CHECK_OK(ops->memory_read(device, &memory));
    CHECK_INT(memory.current_bytes, N * 4);
    CHECK(memory.peak_bytes >= 2 * N * 4);
    CHECK_ERROR(ops->memory_alloc(device, (size_t)1 << 40, &none), HL_ERROR_MEMORY,
                "a request for 1099511627776 bytes where 1006631");
    CHECK(strstr(hl_status_message(), "of 1073741824 are free and 1200 are hotloop's") != NULL);
    b = alloc_device(device);
    ops->memory_free(device, a);
    ops->memory_free(device, b);
    ops->memory_free(device, NULL);
    CHECK(!*hl_fake_message());
    fake_device_close(device);
}

/* The host reads, and writes past the end of, device memory: both must be faults. */
static void test_memory_is_closed(void)
{
    hl_device *device = open_device();
    float *a = alloc_device(device);
    upload(device, a, 1);
    fflush(stdout);
    for (int case_ = 0; case_ < 2; case_++) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            if (case_) hl_fake_open_begin();
            volatile float *at = case_ ? a + 64 * ((N + 63) / 64) : a;
            *at = *at + 1;
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    hl_fake_open_begin();
    CHECK(a[1] == 2);
    a[N] = 0; /* beside the block, on its last page */
    hl_fake_open_end();
    device->ops->memory_free(device, a);
    CHECK(strcmp(hl_fake_message(), "device memory was written beside a block") == 0);
    fake_device_close(device);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_streams(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    void *a = alloc_device(device), *b = alloc_device(device);
    hl_stream *copy;
    hl_event *event;
    bool done;
    CHECK_OK(ops->stream_create(device, &copy));
    CHECK_OK(ops->event_create(device, false, &event));
    CHECK_OK(ops->event_query(device, event, &done));
    CHECK(done);
    upload(device, a, 1);
    for (int with_event = 0; with_event < 2; with_event++) {
        float *pinned;
        CHECK_OK(ops->host_alloc(device, N * sizeof(float), (void **)&pinned));
        for (int i = 0; i < N; i++) pinned[i] = 10.0f + (float)i;
        upload(device, a, 1);
        CHECK_OK(ops->copy(device, a, pinned, N * 4, HL_COPY_HOST_TO_DEVICE, copy));
        CHECK_OK(ops->event_record(device, event, copy));
        if (with_event) CHECK_OK(ops->event_wait(device, event, NULL));
        CHECK_OK(launch_line(device, b, a, 1, 100, NULL));
        CHECK(download(device, b) == (with_event ? 110 : 101));
        CHECK_OK(ops->event_synchronize(device, event));
        CHECK_OK(ops->event_query(device, event, &done));
        CHECK(done);
        ops->host_free(device, pinned);
    }
    ops->event_destroy(device, event);
    ops->stream_destroy(device, copy);
    ops->memory_free(device, a);
    ops->memory_free(device, b);
    CHECK(!*hl_fake_message());
    fake_device_close(device);
}

/* Pinned memory that the host changes too early is read changed; pageable memory was read. */
static void test_pinned(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    void *a = alloc_device(device);
    float *pinned, pageable[N];
    hl_event *event;
    bool done = true;
    CHECK_OK(ops->event_create(device, false, &event));
    CHECK_OK(ops->host_alloc(device, sizeof pageable, (void **)&pinned));
    for (int is_pinned = 0; is_pinned < 2; is_pinned++) {
        float *src = is_pinned ? pinned : pageable;
        for (int i = 0; i < N; i++) src[i] = 5.0f + (float)i;
        CHECK_OK(ops->copy(device, a, src, sizeof pageable, HL_COPY_HOST_TO_DEVICE, NULL));
        CHECK_OK(ops->event_record(device, event, NULL));
        CHECK_OK(ops->event_query(device, event, &done));
        for (int i = 0; i < N && !done; i++) src[i] = 6.0f + (float)i;
        for (int k = 0; k < 4 && !done; k++) CHECK_OK(ops->event_query(device, event, &done));
        CHECK(done);
        CHECK(download(device, a) == 5 + is_pinned);
    }
    ops->host_free(device, pinned);
    ops->event_destroy(device, event);
    ops->memory_free(device, a);
    fake_device_close(device);
}

/* ---- capture --------------------------------------------------------------------------------- */

/* b = 2 a + 1 on one stream, c = 3 a on another, a = b + c; three times. */
static hl_status queue_step(hl_device *device, void *a, void *b, void *c, hl_stream *side,
                            hl_event *fork_event, hl_event *join_event)
{
    const hl_device_ops *ops = device->ops;
    HL_TRY(ops->event_record(device, fork_event, NULL));
    HL_TRY(ops->event_wait(device, fork_event, side));
    HL_TRY(launch_line(device, c, a, 3, 0, side));
    HL_TRY(launch_line(device, b, a, 2, 1, NULL));
    HL_TRY(ops->event_record(device, join_event, side));
    HL_TRY(ops->event_wait(device, join_event, NULL));
    HL_TRY(launch_line(device, a, b, 1, 0, NULL));
    HL_TRY(launch_line(device, a, a, 1, 0.5f, NULL));
    return launch_line(device, b, c, 1, 0, NULL);
}

typedef struct stage {
    hl_device *device;
    void *a, *b, *c;
    hl_stream *side;
    hl_event *forked, *joined;
    hl_capture *capture;
} stage;

static void destroy_stage(stage *s)
{
    const hl_device_ops *ops = s->device->ops;
    ops->capture_destroy(s->device, s->capture);
    ops->event_destroy(s->device, s->joined);
    ops->event_destroy(s->device, s->forked);
    ops->stream_destroy(s->device, s->side);
    ops->memory_free(s->device, s->c);
    ops->memory_free(s->device, s->b);
    ops->memory_free(s->device, s->a);
}

static hl_status create_stage(hl_device *device, stage *out_stage)
{
    const hl_device_ops *ops = device->ops;
    *out_stage = (stage){.device = device};
    HL_TRY(ops->memory_alloc(device, N * sizeof(float), &out_stage->a));
    HL_TRY(ops->memory_alloc(device, N * sizeof(float), &out_stage->b));
    HL_TRY(ops->memory_alloc(device, N * sizeof(float), &out_stage->c));
    HL_TRY(ops->stream_create(device, &out_stage->side));
    HL_TRY(ops->event_create(device, false, &out_stage->forked));
    return ops->event_create(device, false, &out_stage->joined);
}

static hl_status queue_stage(stage *s)
{
    return queue_step(s->device, s->a, s->b, s->c, s->side, s->forked, s->joined);
}

/* End follows begin whatever happened between. */
static hl_status capture_stage(stage *s)
{
    const hl_device_ops *ops = s->device->ops;
    HL_TRY(ops->capture_begin(s->device, NULL));
    hl_status queued = queue_stage(s);
    hl_status ended = ops->capture_end(s->device, NULL, &s->capture);
    return queued != HL_OK ? queued : ended;
}

static void test_capture(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    float a[2], b[2];
    for (int captured = 0; captured < 2; captured++) {
        stage s;
        CHECK_OK(create_stage(device, &s));
        upload(device, s.a, 1);
        if (captured) CHECK_OK(capture_stage(&s));
        int64_t syncs = hl_fake_syncs();
        for (int k = 0; k < 6; k++)
            CHECK_OK(captured ? ops->capture_launch(device, s.capture, NULL) : queue_stage(&s));
        CHECK_INT(hl_fake_syncs(), syncs);
        a[captured] = download(device, s.a);
        b[captured] = download(device, s.b);
        destroy_stage(&s);
    }
    CHECK(a[0] == a[1] && b[0] == b[1]);
    CHECK(!*hl_fake_message());
    fake_device_close(device);
}

/* A branch that is read before it is joined: some replay takes the other order. */
static void test_missing_edge(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    stage s;
    bool was_early = false, was_late = false;
    CHECK_OK(create_stage(device, &s));
    upload(device, s.a, 1);
    CHECK_OK(ops->capture_begin(device, NULL));
    CHECK_OK(ops->event_record(device, s.forked, NULL));
    CHECK_OK(ops->event_wait(device, s.forked, s.side));
    CHECK_OK(launch_line(device, s.c, s.a, 1, 10, s.side));
    CHECK_OK(launch_line(device, s.b, s.c, 1, 0, NULL));
    CHECK_OK(ops->event_record(device, s.joined, s.side));
    CHECK_OK(ops->event_wait(device, s.joined, NULL));
    CHECK_OK(ops->capture_end(device, NULL, &s.capture));
    for (int k = 0; k < 20; k++) {
        upload(device, s.c, 0);
        CHECK_OK(ops->capture_launch(device, s.capture, NULL));
        float got = download(device, s.b);
        CHECK(got == 0 || got == 11);
        was_early |= got == 0;
        was_late |= got == 11;
    }
    CHECK(was_early && was_late);
    destroy_stage(&s);
    fake_device_close(device);
}

/* What capture forbids is refused, and the stream is as good as before once capture has ended. */
static void test_capture_refusals(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    stage s;
    void *ptr;
    float pageable[N] = {0};
    CHECK_OK(create_stage(device, &s));
    upload(device, s.a, 1);
    CHECK_OK(ops->event_record(device, s.forked, s.side));
    for (int k = 0; k < 6; k++) {
        CUfunction kernel;
        hl_fake_message_clear();
        CHECK_OK(ops->capture_begin(device, NULL));
        const char *text = "STREAM_CAPTURE_UNSUPPORTED";
        if (k == 0) CHECK_ERROR(ops->memory_alloc(device, 64, &ptr), HL_ERROR_DEVICE, text);
        if (k == 1) CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE, text);
        if (k == 2)
            CHECK_ERROR(
                ops->copy(device, s.a, pageable, sizeof pageable, HL_COPY_HOST_TO_DEVICE, NULL),
                HL_ERROR_DEVICE, text);
        if (k == 3)
            CHECK_ERROR(ops->event_wait(device, s.forked, NULL), HL_ERROR_DEVICE,
                        "STREAM_CAPTURE_ISOLATION");
        if (k == 5)
            CHECK_ERROR(hl_cuda_kernel_get(device, "test_line", 0, &kernel), HL_ERROR_DEVICE, text);
        if (k == 4) { /* a side stream that never joins */
            CHECK_OK(ops->event_record(device, s.joined, NULL));
            CHECK_OK(ops->event_wait(device, s.joined, s.side));
            CHECK_OK(launch_line(device, s.c, s.a, 1, 0, s.side));
        }
        CHECK_ERROR(ops->capture_end(device, NULL, &s.capture), HL_ERROR_DEVICE,
                    k == 4 ? "STREAM_CAPTURE_UNJOINED" : "STREAM_CAPTURE_INVALIDATED");
        CHECK(s.capture == NULL);
        CHECK_OK(launch_line(device, s.b, s.a, 1, 0, NULL));
        CHECK(download(device, s.b) == 1);
    }
    destroy_stage(&s);
    fake_device_close(device);
}

/* An event that was recorded in a capture is nothing to wait for when that has ended, until it is
 * recorded again. */
static void test_events_of_a_capture(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    stage s;
    CHECK_OK(create_stage(device, &s));
    upload(device, s.a, 1);
    CHECK_OK(capture_stage(&s));
    CHECK_ERROR(ops->event_wait(device, s.joined, NULL), HL_ERROR_DEVICE, "CAPTURED_EVENT");
    CHECK_OK(ops->event_record(device, s.joined, s.side));
    CHECK_OK(ops->event_wait(device, s.joined, NULL));
    destroy_stage(&s);
    hl_fake_message_clear();
    fake_device_close(device);
}

/* A driver loads a kernel's code when something first depends on it, and in a capture it may not:
 * a handle alone is no code, what hl_cuda_kernel_get gives is loaded. */
static void test_loading(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    const hl_cuda_driver *driver = hl_cuda_device_driver(device);
    const hl_cuda_build *build = (const hl_cuda_build *)hl_fake_backend();
    void *a = alloc_device(device), *b = alloc_device(device);
    CUfunction loaded = line_kernel;
    CUlibrary library;
    CUkernel kernel;
    hl_capture *capture;
    upload(device, a, 3);
    for (int asked = 0; asked < 2; asked++) {
        int max_threads;
        CHECK_OK(hl_cuda_enter(device));
        CHECK_INT(driver->cuLibraryLoadData(&library, build->fatbins, NULL, NULL, 0, NULL, NULL, 0),
                  CUDA_SUCCESS);
        CHECK_INT(driver->cuLibraryGetKernel(&kernel, library, "test_line"), CUDA_SUCCESS);
        CHECK_INT(driver->cuKernelGetFunction(&line_kernel, kernel), CUDA_SUCCESS);
        if (asked)
            CHECK_INT(driver->cuFuncGetAttribute(
                          &max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, line_kernel),
                      CUDA_SUCCESS);
        hl_cuda_leave(device);
        CHECK_OK(ops->capture_begin(device, NULL));
        if (asked)
            CHECK_OK(launch_line(device, b, a, 1, 1, NULL));
        else
            CHECK_ERROR(launch_line(device, b, a, 1, 1, NULL), HL_ERROR_DEVICE,
                        "STREAM_CAPTURE_UNSUPPORTED");
        if (asked)
            CHECK_OK(ops->capture_end(device, NULL, &capture));
        else
            CHECK_ERROR(ops->capture_end(device, NULL, &capture), HL_ERROR_DEVICE, "INVALIDATED");
        CHECK(!!strstr(hl_fake_message(), "loaded within a capture: test_line") == !asked);
        hl_fake_message_clear();
        if (capture) ops->capture_destroy(device, capture);
        CHECK_OK(hl_cuda_enter(device));
        CHECK_INT(driver->cuLibraryUnload(library), CUDA_SUCCESS);
        hl_cuda_leave(device);
    }
    line_kernel = loaded; /* never launched before */
    CHECK_OK(ops->capture_begin(device, NULL));
    CHECK_OK(launch_line(device, b, a, 1, 1, NULL));
    CHECK_OK(ops->capture_end(device, NULL, &capture));
    CHECK_OK(ops->capture_launch(device, capture, NULL));
    CHECK(download(device, b) == 4);
    ops->capture_destroy(device, capture);
    ops->memory_free(device, a);
    ops->memory_free(device, b);
    fake_device_close(device);
}

/* A graph that outlives the memory it was captured with. */
static void test_use_after_free(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    void *a = alloc_device(device), *b = alloc_device(device);
    hl_capture *capture;
    CHECK_OK(ops->capture_begin(device, NULL));
    CHECK_OK(ops->copy(device, b, a, N * 4, HL_COPY_DEVICE_TO_DEVICE, NULL));
    CHECK_OK(ops->capture_end(device, NULL, &capture));
    ops->memory_free(device, a);
    CHECK_OK(ops->capture_launch(device, capture, NULL));
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST, "ILLEGAL_ADDRESS");
    CHECK(strcmp(hl_fake_message(), "a copy that runs after its memory was freed") == 0);
    ops->capture_destroy(device, capture);
    ops->memory_free(device, b);
    fake_device_close(device);
}

/* What a driver would take for granted, or see at the launch. */
static void test_launch_refusals(void)
{
    hl_device *device = open_device(), *other = NULL;
    const hl_backend *backend = hl_fake_backend();
    hl_cuda_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
    CUfunction large;
    CUdeviceptr to = 0, from = 0;
    float a = 1, b = 0;
    static const size_t bytes[] = {4000, 100};
    CHECK_ERROR(hl_cuda_launch(device, line_kernel, &shape, NULL, (void *[]){&to, &from, &a, NULL}),
                HL_ERROR_DEVICE, "INVALID_VALUE");
    CHECK(strcmp(hl_fake_message(), "a launch with another number of parameters: test_line") == 0);
    hl_fake_message_clear();
    CHECK_ERROR(
        hl_cuda_launch(device, line_kernel, &shape, NULL, (void *[]){&to, &from, &a, &b, &b, NULL}),
        HL_ERROR_DEVICE, "INVALID_VALUE");
    CHECK(strstr(hl_fake_message(), "another number of parameters") != NULL);
    hl_fake_message_clear();
    shape.block[0] = 64;
    hl_fake_kernel_bound("test_line", 63);
    CHECK_ERROR(
        hl_cuda_launch(device, line_kernel, &shape, NULL, (void *[]){&to, &from, &a, &b, NULL}),
        HL_ERROR_DEVICE, "INVALID_VALUE");
    CHECK(strstr(hl_fake_message(), "more threads than the kernel takes: test_line") != NULL);
    hl_fake_message_clear();
    hl_fake_kernel("test_large", run_line, NULL, 2, bytes);
    CHECK_OK(hl_cuda_kernel_get(device, "test_large", 0, &large));
    CHECK_ERROR(hl_cuda_launch(device, large, &shape, NULL, (void *[]){&to, &from, NULL}),
                HL_ERROR_DEVICE, "INVALID_VALUE");
    CHECK(strstr(hl_fake_message(), "more than 4096 bytes of parameters") != NULL);
    fake_device_close(device);

    hl_fake_reset(&(hl_fake_config){.n_devices = 2});
    hl_fake_kernel("test_line", run_line, NULL, 4, (const size_t[]){8, 8, 4, 4});
    hl_stream *stream;
    CHECK_OK(backend->device_open(backend, 0, NULL, &device));
    CHECK_OK(backend->device_open(backend, 1, NULL, &other));
    CHECK_OK(hl_cuda_kernel_get(device, "test_line", 0, &line_kernel));
    CHECK_OK(other->ops->stream_create(other, &stream));
    CHECK_ERROR(launch_line(device, NULL, NULL, 1, 0, stream), HL_ERROR_DEVICE, "INVALID_HANDLE");
    CHECK(strstr(hl_fake_message(), "a stream of another context") != NULL);
    other->ops->stream_destroy(other, stream);
    other->ops->destroy(other);
    fake_device_close(device);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void test_lost(void)
{
    hl_device *device = open_device();
    const hl_device_ops *ops = device->ops;
    stage s;
    void *ptr;
    CUfunction kernel;
    CHECK_OK(create_stage(device, &s));
    CHECK_OK(hl_cuda_kernel_get(device, "test_fault", 0, &kernel));
    hl_cuda_shape shape = {{1, 1, 1}, {32, 1, 1}, 0};
    CHECK_OK(hl_cuda_launch(device, kernel, &shape, NULL, (void *[]){NULL}));
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST,
                "CUDA_ERROR_LAUNCH_FAILED 719 (emulated); what it held is gone");
    int64_t allocs = hl_fake_calls("cuMemAlloc_v2"), pushes = hl_fake_calls("cuCtxPushCurrent_v2");
    CHECK_ERROR(ops->memory_alloc(device, 64, &ptr), HL_ERROR_DEVICE_LOST, "what it held is gone");
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST, "719");
    CHECK_ERROR(launch_line(device, s.b, s.a, 1, 0, NULL), HL_ERROR_DEVICE_LOST, "719");
    CHECK_ERROR(capture_stage(&s), HL_ERROR_DEVICE_LOST, "719");
    CHECK_INT(hl_fake_calls("cuMemAlloc_v2"), allocs);
    CHECK_INT(hl_fake_calls("cuCtxPushCurrent_v2"), pushes);
    destroy_stage(&s);
    fake_device_close(device);
    device = open_device();
    hl_fake_fail_call("cuCtxPushCurrent_v2", CUDA_ERROR_INVALID_CONTEXT); /* cudaDeviceReset */
    CHECK_ERROR(ops->memory_alloc(device, 64, &ptr), HL_ERROR_DEVICE_LOST, "201");
    hl_fake_fail_call(NULL, CUDA_SUCCESS);
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST, "201");
    fake_device_close(device);
}

/* All that a training does, in small. */
static hl_status run_all(void *context)
{
    const hl_backend *backend = context;
    hl_device *device;
    void *pinned = NULL;
    bool done;
    hl_memory_stats memory;
    HL_TRY(backend->device_open(backend, 0, NULL, &device));
    const hl_device_ops *ops = device->ops;
    stage s = {.device = device};
    hl_status status;
    HL_GOTO(hl_cuda_kernel_get(device, "test_line", 0, &line_kernel));
    HL_GOTO(create_stage(device, &s));
    HL_GOTO(ops->host_alloc(device, N * sizeof(float), &pinned));
    memset(pinned, 0, N * sizeof(float));
    HL_GOTO(ops->copy(device, s.a, pinned, N * 4, HL_COPY_HOST_TO_DEVICE, s.side));
    HL_GOTO(ops->event_record(device, s.forked, s.side));
    HL_GOTO(ops->event_wait(device, s.forked, NULL));
    HL_GOTO(ops->fill_zero(device, s.b, N * 4, NULL));
    HL_GOTO(capture_stage(&s));
    HL_GOTO(ops->capture_launch(device, s.capture, NULL));
    HL_GOTO(queue_stage(&s));
    HL_GOTO(ops->copy(device, s.c, s.b, N * 4, HL_COPY_DEVICE_TO_DEVICE, NULL));
    HL_GOTO(ops->copy(device, pinned, s.c, N * 4, HL_COPY_DEVICE_TO_HOST, NULL));
    HL_GOTO(ops->event_record(device, s.joined, NULL));
    HL_GOTO(ops->event_query(device, s.joined, &done));
    HL_GOTO(ops->event_synchronize(device, s.joined));
    HL_GOTO(ops->memory_read(device, &memory));
    HL_GOTO(ops->synchronize(device, NULL));
cleanup:
    ops->host_free(device, pinned);
    destroy_stage(&s);
    ops->destroy(device);
    return status;
}

static void test_every_call_fails(void)
{
    static const CUresult errors[] = {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY,
                                      CUDA_ERROR_LAUNCH_FAILED};
    const hl_backend *backend = hl_fake_backend();
    fake_device_close(open_device());
    int64_t n_sites = 0;
    for (int e = 0; e < 3; e++)
        for (int sticky = 0; sticky < 2; sticky++)
            n_sites += fake_walk_calls(errors[e], sticky, 1, true, run_all, (void *)backend);
    CHECK(n_sites > 1000);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, run_all, (void *)backend) > 10);
    printf("%lld calls failed\n", (long long)n_sites);
}

int main(void)
{
    test_launch_refusals();
    test_memory();
    test_memory_is_closed();
    test_streams();
    test_pinned();
    test_capture();
    test_missing_edge();
    test_capture_refusals();
    test_events_of_a_capture();
    test_loading();
    test_use_after_free();
    test_lost();
    test_every_call_fails();
    return CHECK_DONE();
}
