/* The calls of the emulated driver, in the order of kernels/cuda/driver.def; fake_driver.h says
 * what is emulated. Device addresses are host addresses, closed ones (fake_memory.cpp). */
#include "tests/cuda/fake_driver.h"

#include <elf.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/cuda/fake_state.h"

using namespace fake;

namespace
{

thread_local std::vector<CUcontext> context_stack;

/* ---- every call passes here ------------------------------------------------------------------ */

enum Needs { NOTHING, DRIVER, CONTEXT };
/* Of a kernel, before CUDA 12.1. */
enum { PARAM_BYTES = 4096 };

/* No context because making it current was what failed: then what gives back still does. */
bool push_failed()
{
    const char *name = state().failed_call;
    return name && !strcmp(name, "cuCtxPushCurrent_v2");
}

bool must_fail(const char *name, CUresult *out_error)
{
    State &s = state();
    s.fail_seen++;
    bool by_count =
        s.fail_at && (s.fail_seen == s.fail_at || (s.fail_sticky && s.fail_seen > s.fail_at));
    bool by_name = !s.fail_name.empty() && s.fail_name == name;
    if (!by_count && !by_name) return false;
    s.failed_call = name;
    *out_error = by_count ? s.fail_error : s.fail_name_error;
    return true;
}

CUresult pass(const char *name, Needs needs)
{
    State &s = state();
    s.calls[name]++;
    CUresult error;
    if (must_fail(name, &error)) return error;
    if (needs == NOTHING) return CUDA_SUCCESS;
    if (s.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs == DRIVER) return CUDA_SUCCESS;
    if (context_stack.empty() && !push_failed())
        return complain(CUDA_ERROR_INVALID_CONTEXT, std::string(name) + " without a context");
    return s.dead;
}

/* CALL returns at once; RELEASE goes on and answers `result` in the end. Only what is called in the
 * process that began and with a context does anything. */
#define CALL(needs)                                                                                \
    std::lock_guard<std::recursive_mutex> hold(state().lock);                                      \
    State &s = state();                                                                            \
    (void)s;                                                                                       \
    if (CUresult refused = pass(__func__, needs)) return refused
#define RELEASE(needs)                                                                             \
    std::lock_guard<std::recursive_mutex> hold(state().lock);                                      \
    State &s = state();                                                                            \
    (void)s;                                                                                       \
    CUresult result = pass(__func__, needs);                                                       \
    if (result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT) return result

/* ---- running --------------------------------------------------------------------------------- */

void die(CUresult error, const std::string &what)
{
    State &s = state();
    if (!s.dead) s.dead = complain(error, what);
}

/* Until the mark is passed; all of it without one. What is queued after a fault is dropped, but
 * marks are passed, or nobody would ever stop waiting. */
void drain(CUstream stream, const Mark *mark)
{
    open_begin();
    while (state().streams.count(stream) && !stream->queue.empty() && !(mark && mark->done)) {
        auto work = std::move(stream->queue.front());
        stream->queue.pop_front();
        work();
    }
    open_end();
}

void drain_all()
{
    for (CUstream stream : std::set<CUstream>(state().streams)) drain(stream, nullptr);
}

/* Work of a stream: queued, or a node of the graph it is captured into. */
CUresult submit(CUstream stream, std::function<void()> work)
{
    State &s = state();
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "work for a stream that is not (the null one?)");
    if (!context_stack.empty() && stream->context != context_stack.back())
        return complain(CUDA_ERROR_INVALID_HANDLE, "work for a stream of another context");
    auto guarded = [work = std::move(work)] {
        if (!state().dead) work();
    };
    if (!stream->graph) {
        stream->queue.push_back(std::move(guarded));
        return CUDA_SUCCESS;
    }
    stream->graph->nodes.push_back({std::move(guarded), stream->after});
    stream->after = {stream->graph->nodes.size() - 1};
    return CUDA_SUCCESS;
}

/* What a thread-local capture forbids its thread. */
CUresult forbid_in_capture(const char *what)
{
    for (CUstream stream : state().streams) {
        if (!stream->graph || stream->graph->thread != std::this_thread::get_id()) continue;
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(what) + " in a capture");
    }
    return CUDA_SUCCESS;
}
#define NOT_IN_CAPTURE                                                                             \
    if (CUresult forbidden = forbid_in_capture(__func__)) return forbidden

bool is_pinned(const void *ptr, size_t bytes)
{
    State &s = state();
    auto next = s.pinned.upper_bound((uintptr_t)ptr);
    if (next == s.pinned.begin()) return false;
    --next;
    return (uintptr_t)ptr + bytes <= next->first + next->second;
}

/* One copy when its turn has come. Device addresses are looked at again: a graph may outlive the
 * memory that it was captured with. */
void run_copy(void *dst, const void *src, size_t bytes)
{
    bool good = (!is_reserved(dst) || is_device(dst, bytes)) &&
                (!is_reserved(src) || is_device(src, bytes));
    if (good)
        memcpy(dst, src, bytes);
    else
        die(CUDA_ERROR_ILLEGAL_ADDRESS, "a copy that runs after its memory was freed");
}

CUresult copy(void *dst, const void *src, size_t bytes, CUstream stream)
{
    State &s = state();
    bool from_host = !is_reserved(src);
    if (s.streams.count(stream) && stream->graph &&
        ((from_host && !is_pinned(src, bytes)) || (!is_reserved(dst) && !is_pinned(dst, bytes)))) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "pageable memory in a capture");
    }
    if (!from_host || is_pinned(src, bytes))
        return submit(stream, [=] { run_copy(dst, src, bytes); });
    std::vector<char> data((const char *)src, (const char *)src + bytes);
    return submit(stream, [=] { run_copy(dst, data.data(), bytes); });
}

void *host(CUdeviceptr ptr)
{
    return (void *)(uintptr_t)ptr;
}

CUresult check_device(CUdeviceptr ptr, size_t bytes)
{
    if (is_device(host(ptr), bytes)) return CUDA_SUCCESS;
    return complain(CUDA_ERROR_INVALID_VALUE,
                    "an address that is not within a block of the device");
}

} // namespace

namespace fake
{

State &state()
{
    static State *made = new State; /* never destroyed: calls may come while the process ends */
    return *made;
}

CUresult complain(CUresult error, const std::string &what)
{
    if (state().message.empty()) state().message = what;
    return error;
}

} // namespace fake

extern "C" {

/* ---- driver, devices, contexts --------------------------------------------------------------- */

CUresult cuInit(unsigned)
{
    CALL(NOTHING);
    if (s.process && s.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!s.config.n_devices) hl_fake_reset(nullptr);
    if (s.config.n_devices < 0) return CUDA_ERROR_NO_DEVICE;
    s.process = getpid();
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    CALL(NOTHING);
    if (!s.config.n_devices) hl_fake_reset(nullptr);
    *version = s.config.cuda;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    CALL(NOTHING);
    *text = nullptr;
#define NAME(name, value)                                                                          \
    if (!strncmp(#name, "CUDA_", 5) && error == value) return *text = #name, CUDA_SUCCESS;
    HL_CUDA_CONSTANTS(NAME)
#undef NAME
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult, const char **text)
{
    CALL(NOTHING);
    *text = "emulated";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CALL(DRIVER);
    *count = s.config.n_devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CALL(DRIVER);
    if (ordinal < 0 || ordinal >= s.config.n_devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice)
{
    CALL(DRIVER);
    snprintf(name, (size_t)bytes, "Emulated GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice)
{
    CALL(DRIVER);
    *bytes = s.config.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice)
{
    CALL(DRIVER);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = s.config.arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = s.config.arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 64 << 10; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CALL(DRIVER);
    CUcontext &made = s.contexts[device];
    if (!made) {
        if (s.config.context_bytes > s.config.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
        made = new CUctx_st{device, 0};
        s.used_bytes[device] += s.config.context_bytes;
        s.live.contexts++;
    }
    made->retained++;
    *context = made;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    RELEASE(DRIVER);
    auto found = s.contexts.find(device);
    if (found == s.contexts.end() || !found->second)
        return complain(CUDA_ERROR_INVALID_CONTEXT, "a context is released that is not retained");
    if (--found->second->retained) return result;
    delete found->second;
    s.contexts.erase(found);
    s.used_bytes[device] -= s.config.context_bytes;
    s.live.contexts--;
    if (s.contexts.empty()) s.dead = CUDA_SUCCESS;
    return result;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CALL(DRIVER);
    auto found = s.contexts.find(context->device);
    if (found == s.contexts.end() || found->second != context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    s.live.pushed++;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    RELEASE(DRIVER);
    if (context_stack.empty())
        return complain(CUDA_ERROR_INVALID_CONTEXT, "a context is popped that was not pushed");
    *context = context_stack.back();
    context_stack.pop_back();
    s.live.pushed--;
    return result;
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const char *refuse_code(void *, const hl_fake_launch *, void *const *)
{
    return "a GPU's machine code cannot run here";
}

/* Machine code of a GPU: a section .text.<name> is a kernel, which can be had but not launched. */
static bool load_code(const void *code, size_t bytes)
{
    const std::string_view image((const char *)code, bytes), mark(".text.");
    for (size_t at = image.find(mark); at != image.npos; at = image.find(mark, at)) {
        at += mark.size();
        hl_fake_kernel(std::string(image.substr(at, image.find('\0', at) - at)).c_str(),
                       refuse_code, nullptr, 0, nullptr);
    }
    return true;
}

/* What NVRTC made: a shared library, if it was the emulated one. It stays in the process, and what
 * is compiled twice is loaded once. */
static CUresult load_generated(const void *code, CUlibrary *library)
{
    fake::State &s = fake::state();
    Elf64_Ehdr head;
    memcpy(&head, code, sizeof head);
    bool is_code = head.e_machine == EM_CUDA;
    if (is_code ? !s.config.takes_code : !s.load) return CUDA_ERROR_INVALID_IMAGE;
    size_t bytes = head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
    std::string image((const char *)code, bytes);
    auto known = s.generated.find(image);
    if (known == s.generated.end()) {
        std::set<std::string> names;
        s.loading = &names;
        bool is_loaded = is_code ? load_code(code, bytes) : s.load(code, bytes);
        s.loading = nullptr;
        if (!is_loaded) return complain(CUDA_ERROR_INVALID_IMAGE, "a library does not load");
        known = s.generated.emplace(image, names).first;
    }
    *library = new CUlib_st;
    (*library)->names = &known->second;
    s.live.libraries++;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *, void **, unsigned,
                           CUlibraryOption *, void **, unsigned)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    uint32_t magic;
    memcpy(&magic, code, sizeof magic);
    if (magic == 0x464C457F) return load_generated(code, library);
    if (magic != 0xBA55ED50)
        return complain(CUDA_ERROR_INVALID_IMAGE, "what is loaded is no fatbin");
    *library = new CUlib_st;
    s.live.libraries++;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    RELEASE(CONTEXT);
    drain_all();
    delete library;
    s.live.libraries--;
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CALL(CONTEXT);
    auto found = s.kernels.find(name);
    if (found == s.kernels.end()) return CUDA_ERROR_NOT_FOUND;
    bool is_its = library->names ? library->names->count(name) : !found->second.is_generated;
    if (!is_its) return CUDA_ERROR_NOT_FOUND;
    auto &made = library->kernels[name];
    if (!made) made.reset(new CUkern_st);
    made->kernel = &found->second;
    *kernel = made.get();
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *out_value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice)
{
    CALL(CONTEXT);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return complain(CUDA_ERROR_INVALID_VALUE, "an attribute that no kernel has");
    *out_value = (int)kernel->shared_bytes;
    return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice)
{
    CALL(CONTEXT);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > 64 << 10)
        return complain(CUDA_ERROR_INVALID_VALUE, "an attribute, or a value, that no kernel has");
    kernel->shared_bytes = (unsigned)value;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **params, void **)
{
    CALL(CONTEXT);
    CUkernel kernel = (CUkernel)function;
    hl_fake_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    bool grid_fits =
        grid_x && grid_y && grid_z && grid_x <= 0x7fffffff && grid_y <= 65535 && grid_z <= 65535;
    if (!grid_fits || !threads || threads > 1024 || block_z > 64)
        return complain(CUDA_ERROR_INVALID_VALUE, "a launch with an impossible grid or block");
    if (shared_bytes > kernel->shared_bytes)
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with more shared memory than asked for");
    const Kernel *known = kernel->kernel;
    size_t n_params = 0, param_bytes = 0;
    while (params[n_params]) n_params++;
    if (n_params != known->param_bytes.size())
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with another number of parameters: " + known->name);
    for (size_t i = 0; i < n_params; i++) param_bytes += known->param_bytes[i];
    if (param_bytes > PARAM_BYTES)
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with more than 4096 bytes of parameters: " + known->name);
    std::vector<std::vector<char>> copies;
    for (size_t i = 0; i < n_params; i++)
        copies.emplace_back((char *)params[i], (char *)params[i] + known->param_bytes[i]);
    return submit(stream, [=]() mutable {
        std::vector<void *> pointers;
        for (auto &value : copies) pointers.push_back(value.data());
        state().clock_ms++;
        const char *wrong = known->fn(known->context, &launch, pointers.data());
        if (wrong) die(CUDA_ERROR_LAUNCH_FAILED, wrong);
    });
}

/* ---- memory ---------------------------------------------------------------------------------- */

CUresult cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
    CALL(CONTEXT);
    *out_total = s.config.memory_bytes;
    *out_free = *out_total - s.used_bytes[context_stack.back()->device];
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    return block_alloc(context_stack.back(), bytes, ptr);
}

/* The real one waits for the device too. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    RELEASE(CONTEXT);
    NOT_IN_CAPTURE;
    drain_all();
    CUresult freed = block_free(ptr);
    return result ? result : freed;
}

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (!bytes || flags)
        return complain(CUDA_ERROR_INVALID_VALUE, "pinned memory of nothing, or of another kind");
    *ptr = malloc(bytes);
    if (!*ptr) return CUDA_ERROR_OUT_OF_MEMORY;
    s.pinned[(uintptr_t)*ptr] = bytes;
    s.live.pinned++;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *ptr)
{
    RELEASE(CONTEXT);
    NOT_IN_CAPTURE;
    drain_all();
    if (!s.pinned.erase((uintptr_t)ptr))
        return complain(CUDA_ERROR_INVALID_VALUE, "pinned memory is freed that is not allocated");
    free(ptr);
    s.live.pinned--;
    return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    if (is_reserved(src))
        return complain(CUDA_ERROR_INVALID_VALUE, "a device address for a host's");
    return copy(host(dst), src, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(src, bytes)) return wrong;
    if (is_reserved(dst))
        return complain(CUDA_ERROR_INVALID_VALUE, "a device address for a host's");
    return copy(dst, host(src), bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    if (CUresult wrong = check_device(src, bytes)) return wrong;
    return copy(host(dst), host(src), bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    CALL(CONTEXT);
    if (CUresult wrong = check_device(dst, bytes)) return wrong;
    return submit(stream, [=] {
        if (is_device(host(dst), bytes))
            memset(host(dst), value, bytes);
        else
            die(CUDA_ERROR_ILLEGAL_ADDRESS, "a fill that runs after its memory was freed");
    });
}

/* ---- streams and events ---------------------------------------------------------------------- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CALL(CONTEXT);
    if (flags != CU_STREAM_NON_BLOCKING)
        return complain(CUDA_ERROR_INVALID_VALUE, "a stream that waits for the null stream");
    *stream = new CUstream_st;
    (*stream)->context = context_stack.back();
    s.streams.insert(*stream);
    s.live.streams++;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    RELEASE(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a stream is destroyed that is not");
    drain(stream, nullptr);
    if (stream->graph) {
        stream->graph->broken = true;
        stream->graph->members.erase(stream);
        complain(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a stream is destroyed in its capture");
    }
    s.streams.erase(stream);
    delete stream;
    s.live.streams--;
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a wait for a stream that is not");
    s.syncs++;
    drain(stream, nullptr);
    return s.dead;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "a wait on a stream that is not");
    if (event->graph) {
        if (stream->graph && stream->graph != event->graph)
            return complain(CUDA_ERROR_STREAM_CAPTURE_MERGE, "an event joins two captures");
        if (!stream->graph) {
            stream->graph = event->graph;
            stream->after.clear();
            event->graph->members.insert(stream);
        }
        stream->after.insert(event->after.begin(), event->after.end());
        return CUDA_SUCCESS;
    }
    if (stream->graph) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                        "a captured stream waits for an event from outside");
    }
    if (!event->mark) return CUDA_SUCCESS;
    std::shared_ptr<Mark> mark = event->mark;
    stream->queue.push_back([mark] {
        if (!mark->done) drain(mark->stream, mark.get());
    });
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream) || stream->graph || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "a capture of the null stream, within another, or not of one thread");
    stream->graph = new CUgraph_st;
    stream->graph->origin = stream;
    stream->graph->members = {stream};
    stream->graph->thread = std::this_thread::get_id();
    stream->after.clear();
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *out_graph)
{
    RELEASE(CONTEXT);
    *out_graph = nullptr;
    CUgraph graph = stream->graph;
    if (!graph) return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (graph->origin != stream)
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "a capture ends on another stream");
    std::set<size_t> last;
    for (size_t i = 0; i < graph->nodes.size(); i++) last.insert(i);
    for (const Node &node : graph->nodes)
        for (size_t before : node.after) last.erase(before);
    for (size_t end : stream->after) last.erase(end);
    if (!last.empty() && !result)
        result = complain(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a captured stream never joins");
    if (graph->thread != std::this_thread::get_id() && !result)
        result =
            complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a capture ends on another thread");
    if (graph->broken && !result) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (CUstream member : graph->members) member->graph = nullptr;
    if (result) {
        delete graph;
        return result;
    }
    s.live.graphs++;
    *out_graph = graph;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CALL(CONTEXT);
    if (flags & ~(unsigned)(CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC))
        return complain(CUDA_ERROR_INVALID_VALUE, "an event with unknown flags");
    *event = new CUevent_st;
    (*event)->flags = flags;
    s.live.events++;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    RELEASE(CONTEXT);
    delete event;
    s.live.events--;
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CALL(CONTEXT);
    if (!s.streams.count(stream))
        return complain(CUDA_ERROR_INVALID_HANDLE, "an event is recorded on a stream that is not");
    event->graph = stream->graph;
    event->after = stream->after;
    event->mark = nullptr;
    if (stream->graph) return CUDA_SUCCESS;
    auto mark = std::make_shared<Mark>();
    mark->stream = stream;
    event->mark = mark;
    stream->queue.push_back([mark] {
        mark->done = true;
        mark->ms = state().clock_ms;
    });
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (event->graph) return complain(CUDA_ERROR_CAPTURED_EVENT, "a wait for a captured event");
    s.syncs++;
    if (event->mark && !event->mark->done) drain(event->mark->stream, event->mark.get());
    return s.dead;
}

/* Asked again and again it must come true some time: the second look lets the stream run. */
CUresult cuEventQuery(CUevent event)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    if (event->graph) return complain(CUDA_ERROR_CAPTURED_EVENT, "a look at a captured event");
    if (!event->mark || event->mark->done) return s.dead;
    if (event->mark->looks++) drain(event->mark->stream, event->mark.get());
    return CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    CALL(CONTEXT);
    if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
        return complain(CUDA_ERROR_INVALID_HANDLE, "the time between events that keep none");
    if (!from->mark || !to->mark)
        return complain(CUDA_ERROR_INVALID_HANDLE, "the time between events not recorded");
    if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
    *ms = (float)(to->mark->ms - from->mark->ms);
    return CUDA_SUCCESS;
}

/* ---- fake libraries -------------------------------------------------------------------------- */

CUresult hl_fake_submit(CUstream stream, double ms, hl_fake_work_fn run, const void *data,
                        size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    std::vector<char> copy((const char *)data, (const char *)data + bytes);
    return submit(stream, [=]() mutable {
        const char *wrong = run(copy.data());
        state().clock_ms += ms;
        if (wrong) die(CUDA_ERROR_LAUNCH_FAILED, wrong);
    });
}

bool hl_fake_is_device(const void *ptr, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    return is_device(ptr, bytes);
}

bool hl_fake_is_capturing(CUstream stream)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    return state().streams.count(stream) && stream->graph;
}

bool hl_fake_has_context(void)
{
    return !context_stack.empty();
}

void hl_fake_complain(const char *what)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    complain(CUDA_ERROR_INVALID_VALUE, what);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    *exec = new CUgraphExec_st{graph->nodes};
    s.live.execs++;
    return CUDA_SUCCESS;
}

/* Nodes in an order that their edges allow: a pick among the ready ones, another at each launch. */
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CALL(CONTEXT);
    if (s.streams.count(stream) && stream->graph) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a graph is launched in a capture");
    }
    uint64_t pick = s.replay_order++;
    std::set<size_t> done;
    while (done.size() < exec->nodes.size()) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < exec->nodes.size(); i++) {
            bool is_ready = !done.count(i);
            for (size_t before : exec->nodes[i].after) is_ready = is_ready && done.count(before);
            if (is_ready) ready.push_back(i);
        }
        pick = pick * 6364136223846793005u + 1442695040888963407u;
        size_t next = ready[(pick >> 33) % ready.size()];
        done.insert(next);
        if (CUresult wrong = submit(stream, exec->nodes[next].run)) return wrong;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    RELEASE(CONTEXT);
    drain_all();
    delete exec;
    s.live.execs--;
    return result;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    RELEASE(CONTEXT);
    delete graph;
    s.live.graphs--;
    return result;
}

/* ---- for tests ------------------------------------------------------------------------------- */

void hl_fake_reset(const hl_fake_config *config)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    State &s = state();
    blocks_forget();
    hl_fake_config given = config ? *config : hl_fake_config{};
    s.config = {given.n_devices ? given.n_devices : 1,
                given.arch ? given.arch : 90,
                given.cuda ? given.cuda : 13000,
                given.memory_bytes ? given.memory_bytes : (size_t)1 << 30,
                given.context_bytes ? given.context_bytes : (size_t)64 << 20,
                given.takes_code};
    s.process = 0;
    s.live = {};
    s.calls.clear();
    s.syncs = 0;
    s.dead = CUDA_SUCCESS;
    s.message.clear();
    s.contexts.clear();
    s.pinned.clear();
    s.streams.clear();
    hl_fake_fail(0, false, CUDA_SUCCESS);
    hl_fake_fail_call(nullptr, CUDA_SUCCESS);
}

int64_t hl_fake_fail(int64_t k, bool sticky, CUresult error)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    State &s = state();
    int64_t seen = s.fail_seen;
    s.fail_at = k;
    s.fail_sticky = sticky;
    s.fail_error = error;
    s.fail_seen = 0;
    s.failed_call = nullptr;
    return seen;
}

void hl_fake_fail_call(const char *symbol, CUresult error)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    state().fail_name = symbol ? symbol : "";
    state().fail_name_error = error;
}

const char *hl_fake_failed_call(void)
{
    return state().failed_call;
}
hl_fake_live hl_fake_get_live(void)
{
    return state().live;
}

int hl_fake_live_sum(void)
{
    const hl_fake_live &live = state().live;
    return live.contexts + live.pushed + live.libraries + live.memory + live.pinned + live.streams +
           live.events + live.graphs + live.execs;
}

int64_t hl_fake_calls(const char *symbol)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    if (symbol) return state().calls[symbol];
    int64_t sum = 0;
    for (const auto &entry : state().calls) sum += entry.second;
    return sum;
}

int64_t hl_fake_syncs(void)
{
    return state().syncs;
}
const char *hl_fake_message(void)
{
    return state().message.c_str();
}
void hl_fake_message_clear(void)
{
    state().message.clear();
}

void hl_fake_kernel(const char *name, hl_fake_kernel_fn fn, void *context, int n_params,
                    const size_t *param_bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    std::vector<size_t> sizes(param_bytes, param_bytes + n_params);
    state().kernels[name] = Kernel{name, fn, context, sizes, state().loading != nullptr};
    if (state().loading) state().loading->insert(name);
}

void hl_fake_loader(bool (*load)(const void *image, size_t bytes))
{
    state().load = load;
}

} // extern "C"
