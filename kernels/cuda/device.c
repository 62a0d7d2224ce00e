/* A CUDA device at work: memory, copies, streams, events, capture.
 *
 * The idea: every call enters (the context becomes the thread's, a lost device and a forked child
 * are refused), makes one driver call, and leaves. The first answer that says that the context is
 * lost is kept, and later calls return it without asking. What gives back goes on whatever the
 * driver answers: there is nobody who could do better. In a forked child the driver is not called
 * at all; only host memory is given back. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/autotune_cache.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/internal.h"

/* ---- entering, errors ------------------------------------------------------------------------ */

static hl_status report_loss(hl_cuda_device *device, CUresult error)
{
    char words[160];
    hl_cuda_error_text(&device->driver, error, words, sizeof words);
    return hl_status_set(HL_ERROR_DEVICE_LOST,
                         "cuda: the GPU must run without a fault, got %s; what it held is gone: "
                         "start a new process to use it again, or train on the CPU",
                         words);
}

hl_status hl_cuda_check(hl_device *base, CUresult error, const char *what)
{
    if (error == CUDA_SUCCESS) return HL_OK;
    hl_cuda_device *device = hl_cuda_of(base);
    if (hl_cuda_error_loses(error)) {
        device->lost = error;
        return hl_status_context(report_loss(device, error), "%s", what);
    }
    char words[160];
    hl_cuda_error_text(&device->driver, error, words, sizeof words);
    hl_status code = error == CUDA_ERROR_OUT_OF_MEMORY ? HL_ERROR_MEMORY : HL_ERROR_DEVICE;
    return hl_status_set(code, "cuda: %s must succeed, got %s", what, words);
}

static bool is_forked(const hl_cuda_device *device)
{
    return hl_os_fork_count() != device->fork_count;
}

static hl_status check_usable(hl_cuda_device *device)
{
    if (is_forked(device))
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: a GPU must be used by the process that opened it, got a forked "
                             "child; start it by 'spawn', or use the CPU in it");
    return device->lost ? report_loss(device, device->lost) : HL_OK;
}

hl_status hl_cuda_enter(hl_device *base)
{
    hl_cuda_device *device = hl_cuda_of(base);
    HL_TRY(check_usable(device));
    return hl_cuda_check(base, device->driver.cuCtxPushCurrent(device->context),
                         "making the context current");
}

void hl_cuda_leave(hl_device *base)
{
    CUcontext left;
    hl_cuda_of(base)->driver.cuCtxPopCurrent(&left);
}

/* One driver call between enter and leave, as a status. */
#define CALL(base, what, call)                                                                     \
    do {                                                                                           \
        HL_TRY(hl_cuda_enter(base));                                                               \
        CUresult call_error = hl_cuda_of(base)->driver.call;                                       \
        hl_cuda_leave(base);                                                                       \
        HL_TRY(hl_cuda_check(base, call_error, what));                                             \
    } while (0)

/* Frees: also on a lost device, whose driver still frees host memory. */
#define RELEASE(base, call)                                                                        \
    do {                                                                                           \
        hl_cuda_device *release_device = hl_cuda_of(base);                                         \
        if (is_forked(release_device)) break;                                                      \
        const hl_cuda_driver *release_driver = &release_device->driver;                            \
        bool release_entered =                                                                     \
            release_driver->cuCtxPushCurrent(release_device->context) == CUDA_SUCCESS;             \
        release_driver->call;                                                                      \
        if (release_entered) hl_cuda_leave(base);                                                  \
    } while (0)

/* ---- what kernels ask ------------------------------------------------------------------------ */

const hl_cuda_facts *hl_cuda_device_facts(const hl_device *device)
{
    return &((const hl_cuda_device *)device)->facts;
}

const hl_cuda_driver *hl_cuda_device_driver(const hl_device *device)
{
    return &((const hl_cuda_device *)device)->driver;
}

const hl_cuda_gpu *hl_cuda_device_gpu(const hl_device *device)
{
    return ((const hl_cuda_device *)device)->gpu;
}

CUstream hl_cuda_stream_handle(const hl_device *device, const hl_stream *stream)
{
    return stream ? stream->handle : ((const hl_cuda_device *)device)->stream.handle;
}

/* Finds a kernel in any of the libraries. */
static CUresult find_kernel(hl_cuda_device *device, const char *name, CUkernel *out_kernel)
{
    for (int64_t i = 0; i < device->n_libraries; i++) {
        CUresult error = device->driver.cuLibraryGetKernel(out_kernel, device->libraries[i], name);
        if (error != CUDA_ERROR_NOT_FOUND) return error;
    }
    return CUDA_ERROR_NOT_FOUND;
}

/* The most that a launch may ask for; never less than what an earlier caller was promised. */
static CUresult raise_shared(hl_cuda_device *device, CUkernel kernel, size_t shared_bytes)
{
    int now = 0;
    CUresult error = device->driver.cuKernelGetAttribute(
        &now, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, device->ordinal);
    if (error != CUDA_SUCCESS || (size_t)now >= shared_bytes) return error;
    return device->driver.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                               (int)shared_bytes, kernel, device->ordinal);
}

bool hl_cuda_kernel_exists(hl_device *base, const char *name)
{
    CUkernel kernel;
    if (hl_cuda_enter(base) != HL_OK) return false;
    CUresult error = find_kernel(hl_cuda_of(base), name, &kernel);
    hl_cuda_leave(base);
    return error == CUDA_SUCCESS;
}

/* A driver that loads lazily gives a handle without the code behind it. How many threads a block
 * may have depends on that code, so asking loads it (cuFuncLoad is newer than release 525). */
static CUresult load_kernel(hl_cuda_device *device, const char *name, size_t shared_bytes,
                            CUfunction *out_kernel)
{
    int max_threads;
    CUkernel kernel = NULL;
    CUresult error = find_kernel(device, name, &kernel);
    if (error == CUDA_SUCCESS && shared_bytes) error = raise_shared(device, kernel, shared_bytes);
    if (error == CUDA_SUCCESS) error = device->driver.cuKernelGetFunction(out_kernel, kernel);
    if (error != CUDA_SUCCESS) return error;
    return device->driver.cuFuncGetAttribute(&max_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                             *out_kernel);
}

hl_status hl_cuda_kernel_get(hl_device *base, const char *name, size_t shared_bytes,
                             CUfunction *out_kernel)
{
    hl_cuda_device *device = hl_cuda_of(base);
    CUfunction kernel = NULL;
    *out_kernel = NULL;
    if (shared_bytes > device->facts.shared_bytes_block)
        return hl_status_set(HL_ERROR_DEVICE,
                             "%s: needs at most %zu bytes of shared memory, got %zu", name,
                             device->facts.shared_bytes_block, shared_bytes);
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->compiler.lock);
    CUresult error = load_kernel(device, name, shared_bytes, &kernel);
    hl_mutex_unlock(&device->compiler.lock);
    hl_cuda_leave(base);
    HL_TRY(hl_status_context(hl_cuda_check(base, error, "loading the kernel"), "%s", name));
    *out_kernel = kernel;
    return HL_OK;
}

hl_status hl_cuda_launch(hl_device *base, CUfunction kernel, const hl_cuda_shape *shape,
                         hl_stream *stream, void **params)
{
    const unsigned *grid = shape->grid, *block = shape->block;
    CALL(base, "launching a kernel",
         cuLaunchKernel(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                        shape->shared_bytes, hl_cuda_stream_handle(base, stream), params, NULL));
    return HL_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static hl_status report_no_memory(hl_cuda_device *device, size_t bytes)
{
    size_t n_free = 0, total = 0;
    bool known = device->driver.cuMemGetInfo(&n_free, &total) == CUDA_SUCCESS;
    if (!known)
        return hl_status_set(HL_ERROR_MEMORY,
                             "cuda: the GPU must have what is asked for, got a request for %zu "
                             "bytes beside %lld in use by this device",
                             bytes, (long long)device->current_bytes);
    return hl_status_set(HL_ERROR_MEMORY,
                         "cuda: the GPU must have what is asked for, got a request for %zu bytes "
                         "where %zu of %zu are free and %lld are hotloop's",
                         bytes, n_free, total, (long long)device->current_bytes);
}

/* Makes room for one more block in the list, so that adding it cannot fail. */
static hl_status reserve_block(hl_cuda_device *device)
{
    return hl_alloc_grow((void **)&device->blocks, &device->cap_blocks, device->n_blocks + 1,
                         sizeof *device->blocks);
}

static void note_block(hl_cuda_device *device, void *ptr, size_t bytes)
{
    device->blocks[device->n_blocks++] = (hl_cuda_block){ptr, bytes};
    device->current_bytes += (int64_t)bytes;
    if (device->current_bytes > device->peak_bytes) device->peak_bytes = device->current_bytes;
}

static hl_status alloc_memory(hl_device *base, size_t bytes, void **out_ptr)
{
    hl_cuda_device *device = hl_cuda_of(base);
    *out_ptr = NULL;
    if (!bytes) return HL_OK;
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->lock);
    CUdeviceptr ptr = 0;
    hl_status status = reserve_block(device);
    if (status == HL_OK) {
        CUresult error = device->driver.cuMemAlloc(&ptr, bytes);
        if (error == CUDA_SUCCESS) {
            note_block(device, (void *)(uintptr_t)ptr, bytes);
            *out_ptr = (void *)(uintptr_t)ptr;
        } else if (error == CUDA_ERROR_OUT_OF_MEMORY) {
            status = report_no_memory(device, bytes);
        } else {
            status = hl_cuda_check(base, error, "allocating memory");
        }
    }
    hl_mutex_unlock(&device->lock);
    hl_cuda_leave(base);
    return status;
}

static void forget_block(hl_cuda_device *device, const void *ptr)
{
    hl_mutex_lock(&device->lock);
    for (int64_t i = 0; i < device->n_blocks; i++) {
        if (device->blocks[i].ptr != ptr) continue;
        device->current_bytes -= (int64_t)device->blocks[i].bytes;
        device->blocks[i] = device->blocks[--device->n_blocks];
        break;
    }
    hl_mutex_unlock(&device->lock);
}

static void free_memory(hl_device *base, HL_TAKE void *ptr)
{
    if (!ptr) return;
    forget_block(hl_cuda_of(base), ptr);
    RELEASE(base, cuMemFree((CUdeviceptr)(uintptr_t)ptr));
}

static hl_status read_memory(hl_device *base, hl_memory_stats *out_stats)
{
    hl_cuda_device *device = hl_cuda_of(base);
    size_t n_free = 0, total = 0;
    *out_stats = (hl_memory_stats){0};
    CALL(base, "asking for the free memory", cuMemGetInfo(&n_free, &total));
    hl_mutex_lock(&device->lock);
    *out_stats = (hl_memory_stats){device->current_bytes, device->peak_bytes, (int64_t)n_free,
                                   (int64_t)total};
    hl_mutex_unlock(&device->lock);
    return HL_OK;
}

static void reset_peak(hl_device *base)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_mutex_lock(&device->lock);
    device->peak_bytes = device->current_bytes;
    hl_mutex_unlock(&device->lock);
}

static hl_status alloc_host(hl_device *base, size_t bytes, void **out_ptr)
{
    *out_ptr = NULL;
    if (!bytes) return HL_OK;
    HL_TRY(hl_cuda_enter(base));
    CUresult error = hl_cuda_of(base)->driver.cuMemHostAlloc(out_ptr, bytes, 0);
    hl_cuda_leave(base);
    if (error == CUDA_SUCCESS) return HL_OK;
    *out_ptr = NULL;
    if (error != CUDA_ERROR_OUT_OF_MEMORY)
        return hl_cuda_check(base, error, "allocating page-locked memory");
    return hl_status_set(HL_ERROR_MEMORY,
                         "cuda: the system must have what is asked for, got a request for %zu "
                         "bytes of page-locked memory",
                         bytes);
}

static void free_host(hl_device *base, HL_TAKE void *ptr)
{
    if (ptr) RELEASE(base, cuMemFreeHost(ptr));
}

/* ---- work on streams ------------------------------------------------------------------------- */

static hl_status copy_bytes(hl_device *base, void *dst, const void *src, size_t bytes, hl_copy kind,
                            hl_stream *stream)
{
    if (!bytes) return HL_OK;
    CUdeviceptr to = (uintptr_t)dst, from = (uintptr_t)src;
    CUstream handle = hl_cuda_stream_handle(base, stream);
    if (kind == HL_COPY_HOST_TO_DEVICE)
        CALL(base, "copying to the GPU", cuMemcpyHtoDAsync(to, src, bytes, handle));
    else if (kind == HL_COPY_DEVICE_TO_HOST)
        CALL(base, "copying from the GPU", cuMemcpyDtoHAsync(dst, from, bytes, handle));
    else
        CALL(base, "copying on the GPU", cuMemcpyDtoDAsync(to, from, bytes, handle));
    return HL_OK;
}

static hl_status fill_zero(hl_device *base, void *dst, size_t bytes, hl_stream *stream)
{
    if (!bytes) return HL_OK;
    CALL(base, "filling memory",
         cuMemsetD8Async((uintptr_t)dst, 0, bytes, hl_cuda_stream_handle(base, stream)));
    return HL_OK;
}

static hl_status synchronize(hl_device *base, hl_stream *stream)
{
    CALL(base, "waiting for the GPU", cuStreamSynchronize(hl_cuda_stream_handle(base, stream)));
    return HL_OK;
}

static hl_status create_stream(hl_device *base, hl_stream **out_stream)
{
    hl_stream *stream;
    *out_stream = NULL;
    HL_TRY(hl_alloc_zero(sizeof *stream, (void **)&stream));
    hl_status status;
    HL_GOTO(hl_cuda_enter(base));
    CUresult error =
        hl_cuda_of(base)->driver.cuStreamCreate(&stream->handle, CU_STREAM_NON_BLOCKING);
    hl_cuda_leave(base);
    HL_GOTO(hl_cuda_check(base, error, "making a stream"));
    *out_stream = stream;
    stream = NULL;
cleanup:
    hl_free(stream);
    return status;
}

static void destroy_stream(hl_device *base, HL_TAKE hl_stream *stream)
{
    if (!stream) return;
    RELEASE(base, cuStreamDestroy(stream->handle));
    hl_free(stream);
}

/* Waiting for an event sleeps rather than spins: it is how the host waits for long, and it has a
 * core for others then. A context's own setting is torch's as well, and stays as it is. */
static hl_status create_event(hl_device *base, bool is_timed, hl_event **out_event)
{
    hl_event *event;
    *out_event = NULL;
    HL_TRY(hl_alloc_zero(sizeof *event, (void **)&event));
    hl_status status;
    HL_GOTO(hl_cuda_enter(base));
    unsigned int flags = CU_EVENT_BLOCKING_SYNC | (is_timed ? 0 : CU_EVENT_DISABLE_TIMING);
    CUresult error = hl_cuda_of(base)->driver.cuEventCreate(&event->handle, flags);
    hl_cuda_leave(base);
    HL_GOTO(hl_cuda_check(base, error, "making an event"));
    *out_event = event;
    event = NULL;
cleanup:
    hl_free(event);
    return status;
}

static void destroy_event(hl_device *base, HL_TAKE hl_event *event)
{
    if (!event) return;
    RELEASE(base, cuEventDestroy(event->handle));
    hl_free(event);
}

static hl_status record_event(hl_device *base, hl_event *event, hl_stream *stream)
{
    CALL(base, "recording an event",
         cuEventRecord(event->handle, hl_cuda_stream_handle(base, stream)));
    return HL_OK;
}

static hl_status wait_event(hl_device *base, hl_event *event, hl_stream *stream)
{
    CALL(base, "waiting for an event on a stream",
         cuStreamWaitEvent(hl_cuda_stream_handle(base, stream), event->handle, 0));
    return HL_OK;
}

static hl_status synchronize_event(hl_device *base, hl_event *event)
{
    CALL(base, "waiting for an event", cuEventSynchronize(event->handle));
    return HL_OK;
}

static hl_status query_event(hl_device *base, hl_event *event, bool *out_done)
{
    *out_done = false;
    HL_TRY(hl_cuda_enter(base));
    CUresult error = hl_cuda_of(base)->driver.cuEventQuery(event->handle);
    hl_cuda_leave(base);
    if (error == CUDA_ERROR_NOT_READY) return HL_OK;
    HL_TRY(hl_cuda_check(base, error, "looking at an event"));
    *out_done = true;
    return HL_OK;
}

static hl_status measure_events(hl_device *base, hl_event *from, hl_event *to, double *out_ns)
{
    float ms = 0;
    *out_ns = 0;
    CALL(base, "measuring time", cuEventElapsedTime(&ms, from->handle, to->handle));
    *out_ns = 1e6 * (double)ms;
    return HL_OK;
}

/* ---- capture --------------------------------------------------------------------------------- */

/* Thread-local: another thread (a loader, another library) may allocate meanwhile. */
static hl_status begin_capture(hl_device *base, hl_stream *stream)
{
    CALL(base, "beginning a capture",
         cuStreamBeginCapture(hl_cuda_stream_handle(base, stream),
                              CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    return HL_OK;
}

/* The capture is ended on every path, lost device included: what a stream is captured for forbids
 * giving anything back. */
static hl_status end_capture(hl_device *base, hl_stream *stream, hl_capture **out_capture)
{
    *out_capture = NULL;
    const hl_cuda_driver *driver = &hl_cuda_of(base)->driver;
    hl_capture *capture = NULL;
    CUgraph graph = NULL;
    bool entered = false;
    hl_status status = check_usable(hl_cuda_of(base));
    if (!is_forked(hl_cuda_of(base))) {
        CUresult pushed = driver->cuCtxPushCurrent(hl_cuda_of(base)->context);
        entered = pushed == CUDA_SUCCESS;
        CUresult error = driver->cuStreamEndCapture(hl_cuda_stream_handle(base, stream), &graph);
        if (status == HL_OK)
            status = hl_cuda_check(base, entered ? error : pushed, "ending a capture");
    }
    if (status != HL_OK) goto cleanup;
    HL_GOTO(hl_alloc_zero(sizeof *capture, (void **)&capture));
    HL_GOTO(hl_cuda_check(base, driver->cuGraphInstantiateWithFlags(&capture->handle, graph, 0),
                          "making a graph"));
    *out_capture = capture;
    capture = NULL;
cleanup:
    if (graph) driver->cuGraphDestroy(graph);
    if (entered) hl_cuda_leave(base);
    hl_free(capture);
    return status;
}

static hl_status launch_capture(hl_device *base, hl_capture *capture, hl_stream *stream)
{
    CALL(base, "launching a graph",
         cuGraphLaunch(capture->handle, hl_cuda_stream_handle(base, stream)));
    return HL_OK;
}

static void destroy_capture(hl_device *base, HL_TAKE hl_capture *capture)
{
    if (!capture) return;
    RELEASE(base, cuGraphExecDestroy(capture->handle));
    hl_free(capture);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Also destroys a device that open.c did not finish. */
static void destroy_device(HL_TAKE hl_device *base)
{
    hl_cuda_device *device = hl_cuda_of(base);
    const hl_cuda_driver *driver = &device->driver;
    if (device->context && !is_forked(device)) {
        CUcontext left;
        bool entered = driver->cuCtxPushCurrent(device->context) == CUDA_SUCCESS;
        hl_cublaslt_stop(device->cublaslt);
        hl_cudnn_stop(device->cudnn);
        if (device->stream.handle) driver->cuStreamDestroy(device->stream.handle);
        for (int64_t i = 0; i < device->n_libraries; i++)
            driver->cuLibraryUnload(device->libraries[i]);
        if (entered) driver->cuCtxPopCurrent(&left);
        driver->cuDevicePrimaryCtxRelease(device->ordinal);
    }
    hl_cuda_nvrtc_close(&device->compiler.nvrtc);
    hl_cublaslt_destroy(device->cublaslt);
    hl_cudnn_destroy(device->cudnn);
    hl_cuda_driver_close(&device->driver);
    hl_free(device->library_roots);
    hl_free(device->autotuned);
    hl_free(device->libraries);
    hl_free(device->blocks);
    hl_free(device->entries);
    hl_free(device);
}

static const hl_kernel *const *list_kernels(const hl_device *base, hl_op op)
{
    return (unsigned)op < HL_OP_COUNT ? ((const hl_cuda_device *)base)->list[op] : NULL;
}

const hl_device_ops hl_cuda_device_ops = {
    .destroy = destroy_device,
    .memory_alloc = alloc_memory,
    .memory_free = free_memory,
    .copy = copy_bytes,
    .fill_zero = fill_zero,
    .synchronize = synchronize,
    .kernels = list_kernels,
    .memory_read = read_memory,
    .memory_peak_reset = reset_peak,
    .host_alloc = alloc_host,
    .host_free = free_host,
    .stream_create = create_stream,
    .stream_destroy = destroy_stream,
    .event_create = create_event,
    .event_destroy = destroy_event,
    .event_record = record_event,
    .event_wait = wait_event,
    .event_synchronize = synchronize_event,
    .event_query = query_event,
    .event_elapsed = measure_events,
    .capture_begin = begin_capture,
    .capture_end = end_capture,
    .capture_launch = launch_capture,
    .capture_destroy = destroy_capture,
    .autotune_print = hl_cuda_autotune_print,
    .autotune_read = hl_cuda_autotune_read,
};
