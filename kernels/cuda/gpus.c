/* The descriptions of GPUs and their driver: gpus.h has the idea.
 *
 * The driver has no state but which contexts are a thread's, as any driver has: all threads may use
 * it at once, and a forked child is refused by the device, as on a real one. A context is its GPU's
 * description; the other handles are names for nothing. */
#include "kernels/cuda/gpus.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* ---- descriptions ---------------------------------------------------------------------------- */

#define HL_CUDA_GPU(symbol, name, path)                                                            \
    extern const char hl_cuda_gpu_##symbol[];                                                      \
    __asm__(".pushsection .rodata, \"a\"\n"                                                        \
            ".globl hl_cuda_gpu_" #symbol "\n"                                                     \
            ".hidden hl_cuda_gpu_" #symbol "\n"                                                    \
            "hl_cuda_gpu_" #symbol ":\n"                                                           \
            ".incbin \"" path "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".popsection\n");
#include "kernels/cuda/gpus.def"

const hl_cuda_gpu hl_cuda_gpus[] = {
#define HL_CUDA_GPU(symbol, name, path) {name, hl_cuda_gpu_##symbol},
#include "kernels/cuda/gpus.def"
    {NULL, NULL},
};

static int count_gpus(void)
{
    return (int)(sizeof hl_cuda_gpus / sizeof *hl_cuda_gpus) - 1;
}

static bool is_same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a >= 'a' && *a <= 'z' ? *a - 'a' + 'A' : *a) !=
            (*b >= 'a' && *b <= 'z' ? *b - 'a' + 'A' : *b))
            return false;
    return *a == *b;
}

hl_status hl_cuda_gpu_find(const char *name, int *out_index)
{
    char names[128] = "";
    size_t n = 0;
    for (*out_index = 0; *out_index < count_gpus(); ++*out_index) {
        const char *known = hl_cuda_gpus[*out_index].name;
        if (is_same_name(known, name)) return HL_OK;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", known);
    }
    return hl_status_set(HL_ERROR_CONFIG, "gpu: must be one that is described (%s), got '%s'",
                         names, name);
}

/* What stands behind a key; NULL: it is not there. */
static const char *find_value(const hl_cuda_gpu *gpu, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(gpu->text, quoted);
    if (!at) return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

int64_t hl_cuda_gpu_number(const hl_cuda_gpu *gpu, const char *key)
{
    const char *value = find_value(gpu, key);
    return value ? strtoll(value, NULL, 10) : -1;
}

/* ---- the driver: what it refuses ------------------------------------------------------------- */

/* Calls that are not answered below; nobody looks at what they are given. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define HL_CUDA_CALL(name, suffix, since, params)                                                  \
    static CUresult refuse_##name params                                                           \
    {                                                                                              \
        return CUDA_ERROR_NOT_SUPPORTED;                                                           \
    }
#include "kernels/cuda/driver.def"
#pragma GCC diagnostic pop

static CUresult name_error(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA error";
    return CUDA_SUCCESS;
}

static CUresult explain_error(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_NOT_SUPPORTED
                ? "the GPU is a description: plans are predicted for it, and nothing runs there"
                : "";
    return CUDA_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------- */

static CUresult start(unsigned int flags)
{
    (void)flags;
    return CUDA_SUCCESS;
}

/* As new as any build may ask for. */
static CUresult get_version(int *version)
{
    *version = INT_MAX;
    return CUDA_SUCCESS;
}

static CUresult get_count(int *count)
{
    *count = count_gpus();
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < count_gpus() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult get_name(char *name, int bytes, CUdevice device)
{
    const char *value = find_value(&hl_cuda_gpus[device], "deviceName");
    if (!value || *value != '"') return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)bytes, "%.*s", (int)strcspn(value + 1, "\""), value + 1);
    return CUDA_SUCCESS;
}

static CUresult get_total(size_t *bytes, CUdevice device)
{
    int64_t total = hl_cuda_gpu_number(&hl_cuda_gpus[device], "totalGlobalMem");
    *bytes = total > 0 ? (size_t)total : 0;
    return total > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const hl_cuda_gpu *gpu = &hl_cuda_gpus[device];
    int64_t number = -1, version = hl_cuda_gpu_number(gpu, "deviceVer"); /* 750: 7.5 */
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: number = version / 100; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: number = version / 10 % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        number = hl_cuda_gpu_number(gpu, "multiProcessorCount");
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        number = hl_cuda_gpu_number(gpu, "maxSharedMemoryPerBlockOptin");
        break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
        number = hl_cuda_gpu_number(gpu, "memClockRateKHz");
        break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
        number = hl_cuda_gpu_number(gpu, "memoryBusWidth");
        break;
    }
    *value = (int)number;
    return number >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* Those that a thread is in: calls within calls enter again. */
enum { MAX_CONTEXTS = 16 };
static _Thread_local struct {
    CUcontext context[MAX_CONTEXTS];
    int n;
} entered;

static CUresult retain_context(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)&hl_cuda_gpus[device];
    return CUDA_SUCCESS;
}

static CUresult release_context(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
    if (entered.n == MAX_CONTEXTS) return CUDA_ERROR_NOT_SUPPORTED;
    entered.context[entered.n++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop_context(CUcontext *context)
{
    if (!entered.n) return CUDA_ERROR_INVALID_CONTEXT;
    *context = entered.context[--entered.n];
    return CUDA_SUCCESS;
}

/* Nothing else is there: what a context takes of a real one, and other programs, is not known. */
static CUresult get_memory(size_t *out_free, size_t *out_total)
{
    if (!entered.n) return CUDA_ERROR_INVALID_CONTEXT;
    const hl_cuda_gpu *gpu = (const hl_cuda_gpu *)(uintptr_t)entered.context[entered.n - 1];
    CUresult error = get_total(out_total, (CUdevice)(gpu - hl_cuda_gpus));
    *out_free = *out_total;
    return error;
}

/* ---- code ------------------------------------------------------------------------------------ */

/* What handles point to, so that they are not NULL. */
static char nothing;

static CUresult load_library(CUlibrary *library, const void *code, CUjit_option *jit_options,
                             void **jit_values, unsigned int n_jit, CUlibraryOption *options,
                             void **values, unsigned int n)
{
    (void)code, (void)jit_options, (void)jit_values, (void)n_jit;
    (void)options, (void)values, (void)n;
    *library = (CUlibrary)(void *)&nothing;
    return CUDA_SUCCESS;
}

static CUresult unload_library(CUlibrary library)
{
    (void)library;
    return CUDA_SUCCESS;
}

/* Every kernel is in every library: those of the build, and what NVRTC would have made. */
static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    (void)library, (void)name;
    *kernel = (CUkernel)(void *)&nothing;
    return CUDA_SUCCESS;
}

static CUresult get_function(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

/* How much memory and how many threads code takes is known when it is compiled: as if it took
 * none. The device has its own bound of shared memory. */
static CUresult get_kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                     CUdevice device)
{
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_SUCCESS;
}

static CUresult get_function_attribute(int *value, CUfunction_attribute attribute,
                                       CUfunction function)
{
    (void)attribute, (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}

/* ---- what a session holds -------------------------------------------------------------------- */

/* The host's memory is there, locked or not. */
static CUresult alloc_host(void **ptr, size_t bytes, unsigned int flags)
{
    (void)flags;
    return hl_alloc(bytes, ptr) == HL_OK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult free_host(void *ptr)
{
    hl_free(ptr);
    return CUDA_SUCCESS;
}

static CUresult create_stream(CUstream *stream, unsigned int flags)
{
    (void)flags;
    *stream = (CUstream)(void *)&nothing;
    return CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned int flags)
{
    (void)flags;
    *event = (CUevent)(void *)&nothing;
    return CUDA_SUCCESS;
}

/* Nothing is ever queued, so that all of it is done. */
static CUresult finish_stream(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult finish_event(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

/* ---- the table ------------------------------------------------------------------------------- */

hl_status hl_cuda_gpus_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                                   bool *out_absent)
{
    (void)search;
    *out_absent = false;
    *out_driver = (hl_cuda_driver){
#define HL_CUDA_CALL(name, suffix, since, params) .name = refuse_##name,
#include "kernels/cuda/driver.def"
    };
    out_driver->cuInit = start;
    out_driver->cuDriverGetVersion = get_version;
    out_driver->cuGetErrorName = name_error;
    out_driver->cuGetErrorString = explain_error;
    out_driver->cuDeviceGetCount = get_count;
    out_driver->cuDeviceGet = get_device;
    out_driver->cuDeviceGetName = get_name;
    out_driver->cuDeviceTotalMem = get_total;
    out_driver->cuDeviceGetAttribute = get_attribute;
    out_driver->cuDevicePrimaryCtxRetain = retain_context;
    out_driver->cuDevicePrimaryCtxRelease = release_context;
    out_driver->cuCtxPushCurrent = push_context;
    out_driver->cuCtxPopCurrent = pop_context;
    out_driver->cuMemGetInfo = get_memory;
    out_driver->cuLibraryLoadData = load_library;
    out_driver->cuLibraryUnload = unload_library;
    out_driver->cuLibraryGetKernel = get_kernel;
    out_driver->cuKernelGetFunction = get_function;
    out_driver->cuKernelGetAttribute = get_kernel_attribute;
    out_driver->cuKernelSetAttribute = set_kernel_attribute;
    out_driver->cuFuncGetAttribute = get_function_attribute;
    out_driver->cuMemHostAlloc = alloc_host;
    out_driver->cuMemFreeHost = free_host;
    out_driver->cuStreamCreate = create_stream;
    out_driver->cuStreamDestroy = finish_stream;
    out_driver->cuStreamSynchronize = finish_stream;
    out_driver->cuEventCreate = create_event;
    out_driver->cuEventDestroy = finish_event;
    out_driver->cuEventSynchronize = finish_event;
    out_driver->cuEventQuery = finish_event;
    return HL_OK;
}
