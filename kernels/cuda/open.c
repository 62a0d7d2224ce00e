/* Opening a CUDA device: every reason why not has its own sentence, found in the order in which a
 * user can mend it: driver, its age, a GPU, the GPU's age, this build, memory, and at last a kernel
 * that really runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/dnn_attention.h"
#include "kernels/cuda/fatbin.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/lt_heuristics.h"
#include "kernels/cuda/probe.h"

/* Turing: the oldest that the kernels are compiled for. */
enum { OLDEST_ARCH = 75 };
/* What the symbols of driver.def need, and the driver release that brought it. */
enum { OLDEST_CUDA = 12000 };

/* The main stream saves the time of a launch that leaves it, and pays for the wait with an edge of
 * the graph, about a microsecond. A product of this size (512 x 512 x 64) takes several on the
 * fastest GPUs. An estimate: no GPU has been asked. */
static const double OVERLAP_FLOPS = 1 << 25;

/* ---- driver ---------------------------------------------------------------------------------- */

static const char *driver_release(int cuda)
{
    return cuda >= 13000 ? "580" : "525";
}

/* Machine code of one major version of CUDA needs a driver of that version at least. */
static hl_status check_driver_age(const hl_cuda_driver *driver, int toolkit)
{
    int needed = toolkit / 1000 * 1000;
    if (needed < OLDEST_CUDA) needed = OLDEST_CUDA;
    if (driver->version >= needed) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE,
                         "cuda: the NVIDIA driver must support CUDA %d.%d (release %s or newer), "
                         "got one for CUDA %d.%d; update the driver",
                         needed / 1000, needed % 1000 / 10, driver_release(needed),
                         driver->version / 1000, driver->version % 1000 / 10);
}

static hl_status report_no_gpu(bool *out_absent)
{
    *out_absent = true;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return hl_status_set(HL_ERROR_DEVICE, "cuda: the driver must see an NVIDIA GPU, got none%s%s%s",
                         visible ? " (CUDA_VISIBLE_DEVICES is \"" : "", visible ? visible : "",
                         visible ? "\")" : "");
}

static hl_status start_driver(const hl_cuda_driver *driver, bool *out_absent)
{
    CUresult error = driver->cuInit(0);
    if (error == CUDA_SUCCESS) return HL_OK;
    if (error == CUDA_ERROR_NO_DEVICE) return report_no_gpu(out_absent);
    /* What cuInit says nowhere else, be it another library that opened the GPU. */
    if (error == CUDA_ERROR_NOT_INITIALIZED)
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: a GPU must be used by the process that opened it first, got a "
                             "forked child; start it by 'spawn', or use the CPU in it");
    if (error == CUDA_ERROR_STUB_LIBRARY) {
        char path[HL_LIBRARY_PATH_BYTES];
        hl_os_library_path(driver->library, path, sizeof path);
        *out_absent = true;
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: the NVIDIA driver must be a GPU's, got the toolkit's stand-in "
                             "for linking, %s",
                             path);
    }
    char words[160];
    hl_cuda_error_text(driver, error, words, sizeof words);
    return hl_status_set(HL_ERROR_DEVICE, "cuda: the NVIDIA driver must start, got %s", words);
}

/* A driver that works, its version and how many GPUs it sees (at least one). *out_absent: nothing
 * of NVIDIA's is here. */
static hl_status open_driver(const hl_cuda_build *build, const hl_device_options *options,
                             hl_cuda_driver *out_driver, int *out_n_gpus, bool *out_absent)
{
    hl_library_search search = {options ? options->library_roots : NULL, 0};
    bool is_described = options && options->gpu;
    *out_n_gpus = 0;
    HL_TRY((is_described ? hl_cuda_gpus_driver_open : build->driver_open)(&search, out_driver,
                                                                          out_absent));
    hl_status status;
    HL_GOTO(start_driver(out_driver, out_absent));
    int version = 0, n_gpus = 0;
    if (out_driver->cuDriverGetVersion(&version) != CUDA_SUCCESS) version = 0;
    out_driver->version = version;
    HL_GOTO(check_driver_age(out_driver, build->toolkit));
    CUresult error = out_driver->cuDeviceGetCount(&n_gpus);
    if (error != CUDA_SUCCESS || n_gpus < 1) HL_GOTO(report_no_gpu(out_absent));
    *out_n_gpus = n_gpus;
cleanup:
    if (status != HL_OK) hl_cuda_driver_close(out_driver);
    return status;
}

/* ---- GPU ------------------------------------------------------------------------------------- */

typedef struct gpu_facts {
    char name[64];
    int arch, n_multiprocessors, shared_bytes, memory_khz, memory_bits;
    size_t total_bytes;
} gpu_facts;

static CUresult read_gpu(const hl_cuda_driver *driver, int index, CUdevice *out_ordinal,
                         gpu_facts *out_facts)
{
    *out_facts = (gpu_facts){.arch = 0};
    *out_ordinal = 0;
    int major = 0, minor = 0;
    CUresult error = driver->cuDeviceGet(out_ordinal, index);
    CUdevice gpu = *out_ordinal;
#define ASK(call)                                                                                  \
    if (error == CUDA_SUCCESS) error = driver->call
    ASK(cuDeviceGetName(out_facts->name, (int)sizeof out_facts->name, gpu));
    ASK(cuDeviceTotalMem(&out_facts->total_bytes, gpu));
    ASK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu));
    ASK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu));
    ASK(cuDeviceGetAttribute(&out_facts->n_multiprocessors,
                             CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu));
    ASK(cuDeviceGetAttribute(&out_facts->shared_bytes,
                             CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, gpu));
#undef ASK
    out_facts->arch = 10 * major + minor;
    /* A GPU that shares the host's memory may not know. */
    if (driver->cuDeviceGetAttribute(&out_facts->memory_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE,
                                     gpu) != CUDA_SUCCESS)
        out_facts->memory_khz = 0;
    if (driver->cuDeviceGetAttribute(&out_facts->memory_bits,
                                     CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
                                     gpu) != CUDA_SUCCESS)
        out_facts->memory_bits = 0;
    return error;
}

static void name_device(hl_cuda_device *device, const gpu_facts *facts)
{
    snprintf(device->base.name, sizeof device->base.name, "%.60s, %.1f GiB, sm_%d", facts->name,
             (double)facts->total_bytes / (1 << 30), facts->arch);
    /* Two words a cycle. */
    double bytes_per_us = 2e-3 * facts->memory_khz * facts->memory_bits / 8;
    device->facts = (hl_cuda_facts){.arch = facts->arch,
                                    .n_multiprocessors = facts->n_multiprocessors,
                                    .shared_bytes_block = (size_t)facts->shared_bytes,
                                    .bytes_per_us = bytes_per_us};
    device->base.reduced_dtype = facts->arch >= HL_CUDA_OLDEST_BF16 ? HL_DTYPE_BF16 : HL_DTYPE_F16;
    device->base.keeps_reduced = true;
}

static hl_status find_gpu(hl_cuda_device *device, int index, int n_gpus)
{
    if (index < 0 || index >= n_gpus)
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: the number of a GPU must be below %d, how many there are, got "
                             "%d",
                             n_gpus, index);
    gpu_facts facts;
    HL_TRY(hl_cuda_check(&device->base, read_gpu(&device->driver, index, &device->ordinal, &facts),
                         "asking what the GPU is"));
    name_device(device, &facts);
    if (facts.arch >= OLDEST_ARCH) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE,
                         "cuda: the GPU must be sm_%d (Turing, such as a T4) or newer, got %s "
                         "(sm_%d)",
                         OLDEST_ARCH, facts.name, facts.arch);
}

static hl_status check_build(const hl_cuda_build *build, const hl_cuda_device *device)
{
    size_t bytes = (size_t)(build->fatbins_end - build->fatbins);
    if (!bytes)
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: %s needs a build of hotloop with CUDA, got one without; "
                             "install it where nvcc is found (HL_CUDA=1 says why it is not)",
                             device->base.name);
    hl_fatbin_fit fit;
    char archs[160];
    HL_TRY(hl_fatbin_check(build->fatbins, bytes, device->facts.arch, &fit, archs, sizeof archs));
    if (fit == HL_FATBIN_PTX && device->driver.version < build->toolkit)
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: for sm_%d this build has PTX of CUDA %d.%d alone, which the "
                             "driver must know, got a driver for CUDA %d.%d; build again with "
                             "HL_CUDA_ARCHS=%d, or update the driver",
                             device->facts.arch, build->toolkit / 1000, build->toolkit % 1000 / 10,
                             device->driver.version / 1000, device->driver.version % 1000 / 10,
                             device->facts.arch);
    if (fit != HL_FATBIN_NONE) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE,
                         "cuda: this build must have kernels for sm_%d, got %s; build again with "
                         "HL_CUDA_ARCHS=%d",
                         device->facts.arch, archs, device->facts.arch);
}

/* ---- context and kernels --------------------------------------------------------------------- */

static hl_status say_no_memory(const hl_cuda_device *device, hl_status status)
{
    if (status != HL_ERROR_MEMORY) return status;
    return hl_status_context(status, "cuda: %s must have memory left to begin with",
                             device->base.name);
}

static hl_status load_library(hl_cuda_device *device, const void *code)
{
    HL_TRY(hl_alloc_grow((void **)&device->libraries, &device->cap_libraries,
                         device->n_libraries + 1, sizeof *device->libraries));
    HL_TRY(hl_cuda_check(&device->base,
                         device->driver.cuLibraryLoadData(&device->libraries[device->n_libraries],
                                                          code, NULL, NULL, 0, NULL, NULL, 0),
                         "loading the kernels"));
    device->n_libraries++;
    return HL_OK;
}

/* The driver of descriptions asks for no code: a build without kernels predicts as any other. */
static hl_status load_kernels(const hl_cuda_build *build, hl_cuda_device *device)
{
    if (device->gpu) return load_library(device, NULL);
    hl_fatbin_cursor cursor =
        hl_fatbin_begin(build->fatbins, (size_t)(build->fatbins_end - build->fatbins));
    for (;;) {
        const void *code;
        HL_TRY(hl_fatbin_next(&cursor, &code));
        if (!code) return HL_OK;
        HL_TRY(load_library(device, code));
    }
}

enum { PROBE_VALUES = 1000 };

static hl_status launch_probe(hl_device *base, CUfunction kernel, void *dst, uint32_t seed)
{
    const unsigned threads = HL_CUDA_PROBE_THREADS;
    hl_cuda_shape shape = {.grid = {(PROBE_VALUES + threads - 1) / threads, 1, 1},
                           .block = {threads, 1, 1}};
    hl_cuda_probe_params params = {.at.dst.bits = (uintptr_t)dst, .n = PROBE_VALUES, .seed = seed};
    return hl_cuda_launch(base, kernel, &shape, NULL, (void *[]){&params, NULL});
}

static hl_status run_probe(hl_device *base)
{
    const hl_device_ops *ops = base->ops;
    uint32_t seed = (uint32_t)hl_os_entropy(), *got = NULL;
    size_t bytes = PROBE_VALUES * sizeof *got;
    void *dst = NULL;
    CUfunction kernel;
    HL_TRY(hl_cuda_kernel_get(base, "hl_cuda_probe", 0, &kernel));
    hl_status status;
    HL_GOTO(hl_alloc_zero(bytes, (void **)&got));
    HL_GOTO(ops->memory_alloc(base, bytes, &dst));
    HL_GOTO(ops->fill_zero(base, dst, bytes, NULL));
    HL_GOTO(launch_probe(base, kernel, dst, seed));
    HL_GOTO(ops->copy(base, got, dst, bytes, HL_COPY_DEVICE_TO_HOST, NULL));
    HL_GOTO(ops->synchronize(base, NULL));
    for (uint32_t i = 0; i < PROBE_VALUES && status == HL_OK; i++)
        if (got[i] != hl_cuda_probe_value(i, seed))
            status = hl_status_set(HL_ERROR_DEVICE, "cuda: value %u must be %#x, got %#x", i,
                                   hl_cuda_probe_value(i, seed), got[i]);
cleanup:
    ops->memory_free(base, dst);
    hl_free(got);
    return status;
}

static hl_status retain_context(hl_cuda_device *device)
{
    CUcontext context = NULL;
    CUresult error = device->driver.cuDevicePrimaryCtxRetain(&context, device->ordinal);
    if (error == CUDA_ERROR_DEVICE_UNAVAILABLE)
        return hl_status_set(HL_ERROR_DEVICE,
                             "cuda: %s must be open to this process, got one that another process "
                             "has for itself or nobody may use (its compute mode: nvidia-smi -q -d "
                             "COMPUTE)",
                             device->base.name);
    HL_TRY(hl_cuda_check(&device->base, error, "making a context"));
    device->context = context;
    return HL_OK;
}

static hl_status start_device(const hl_cuda_build *build, hl_cuda_device *device)
{
    hl_device *base = &device->base;
    HL_TRY(retain_context(device));
    HL_TRY(hl_cuda_enter(base));
    hl_status status = load_kernels(build, device);
    if (status == HL_OK)
        status = hl_cuda_check(
            base, device->driver.cuStreamCreate(&device->stream.handle, CU_STREAM_NON_BLOCKING),
            "making a stream");
    hl_cuda_leave(base);
    HL_TRY(status);
    if (device->gpu) return HL_OK; /* nothing runs there */
    status = run_probe(base);
    if (status == HL_ERROR_MEMORY) return status;
    return hl_status_context(status, "cuda: %s must run the probe kernel", base->name);
}

/* ---- kernels by op --------------------------------------------------------------------------- */

#define LIST_OF(family) hl_cuda_##family##_kernels,
static const hl_kernel *const *const families[] = {HL_CUDA_FAMILIES(LIST_OF) NULL};

/* Appends the kernels of one op, or only counts them; returns how many. */
static int64_t append_kernels(hl_op op, const hl_kernel **entries)
{
    int64_t n = 0;
    for (const hl_kernel *const *const *family = families; *family; family++) {
        for (const hl_kernel *const *kernel = *family; *kernel; kernel++) {
            if ((*kernel)->op != op) continue;
            if (entries) entries[n] = *kernel;
            n++;
        }
    }
    return n;
}

static hl_status build_lists(hl_cuda_device *device)
{
    int64_t n = 0;
    for (int op = 0; op < HL_OP_COUNT; op++) n += append_kernels((hl_op)op, NULL) + 1;
    HL_TRY(hl_alloc_zero((size_t)n * sizeof *device->entries, (void **)&device->entries));
    const hl_kernel **next = device->entries;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        int64_t n_op = append_kernels((hl_op)op, next);
        device->list[op] = n_op ? next : NULL;
        next += n_op + 1;
    }
    return HL_OK;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static hl_status copy_roots(hl_cuda_device *device, const hl_device_options *options)
{
    const char *roots = options ? options->library_roots : NULL;
    if (!roots) return HL_OK;
    size_t bytes = strlen(roots) + 1;
    HL_TRY(hl_alloc(bytes, (void **)&device->library_roots));
    memcpy(device->library_roots, roots, bytes);
    return HL_OK;
}

/* A GPU by its description, with the number that it has in the descriptions' driver. */
static hl_status find_description(hl_cuda_device *device, const char *name, int *out_index)
{
    HL_TRY(hl_cuda_gpu_find(name, out_index));
    device->gpu = &hl_cuda_gpus[*out_index];
    return HL_OK;
}

/* Workspaces that are not predicted: one for each stream that products run on. */
static void describe_device(hl_cuda_device *device)
{
    if (!device->gpu) return;
    hl_device *base = &device->base;
    base->is_described = true;
    base->unasked[0] = (hl_unasked){"cuda.matmul", "cuBLASLt", 2 * hl_lt_workspace_bytes(base)};
    base->unasked[1] = (hl_unasked){"cuda.conv", "cuDNN", 2 * HL_DNN_WORKSPACE};
    if (device->facts.arch >= HL_DNN_ATTENTION_OLDEST)
        base->unasked[2] = (hl_unasked){"cuda.attention", "cuDNN", 2 * HL_DNN_WORKSPACE};
}

hl_status hl_cuda_device_open(const hl_backend *base, int index, const hl_device_options *options,
                              HL_GIVE hl_device **out_device)
{
    const hl_cuda_build *build = (const hl_cuda_build *)base;
    hl_cuda_device *device;
    int n_gpus;
    bool is_absent;
    *out_device = NULL;
    HL_TRY(hl_alloc_zero(sizeof *device, (void **)&device));
    device->base = (hl_device){.ops = &hl_cuda_device_ops,
                               .backend = base,
                               .n_threads = 1,
                               .float_type = HL_DTYPE_F32,
                               .fuses = true,
                               .keeps_reduced = true,
                               .overlap_flops = OVERLAP_FLOPS,
                               .alignment = 256};
    device->fork_count = hl_os_fork_count();
    hl_status status;
    HL_GOTO(copy_roots(device, options));
    if (options && options->gpu) HL_GOTO(find_description(device, options->gpu, &index));
    HL_GOTO(open_driver(build, options, &device->driver, &n_gpus, &is_absent));
    HL_GOTO(find_gpu(device, index, n_gpus));
    if (!device->gpu) HL_GOTO(check_build(build, device));
    describe_device(device);
    HL_GOTO(say_no_memory(device, start_device(build, device)));
    HL_GOTO(build_lists(device));
    *out_device = &device->base;
    device = NULL;
cleanup:
    if (device) hl_cuda_device_ops.destroy(&device->base);
    return status;
}

static void describe_gpu(const hl_cuda_driver *driver, int index, hl_device_info *info)
{
    CUdevice ordinal;
    gpu_facts facts;
    if (read_gpu(driver, index, &ordinal, &facts) != CUDA_SUCCESS) return;
    snprintf(info->name, sizeof info->name, "%s", facts.name);
    snprintf(info->architecture, sizeof info->architecture, "sm_%d", facts.arch);
    info->total_bytes = (int64_t)facts.total_bytes;
}

static void try_gpu(const hl_backend *backend, int index, const hl_device_options *options,
                    hl_device_info *info)
{
    hl_device *device;
    hl_memory_stats memory;
    hl_status status = hl_cuda_device_open(backend, index, options, &device);
    if (status == HL_OK) {
        status = device->ops->memory_read(device, &memory);
        if (status == HL_OK) info->free_bytes = memory.free_bytes;
        device->ops->destroy(device);
    }
    if (status != HL_OK) hl_text_copy(info->why_not, sizeof info->why_not, hl_status_message());
}

static void describe_library(const hl_library_kind *kind, const hl_library_search *search,
                             hl_library_info *info)
{
    hl_library_found found;
    hl_library_find(kind, search, &found);
    snprintf(info->name, sizeof info->name, "%s", kind->name);
    snprintf(info->version, sizeof info->version, "%s", found.version_text);
    hl_text_copy(info->path, sizeof info->path, found.path);
    hl_text_copy(info->why_not, sizeof info->why_not, found.why_not);
    hl_os_library_close(&found.library);
}

/* driver_version 0: there is no driver that works. */
static void describe_libraries(const hl_device_options *options, int driver_version,
                               hl_survey *survey)
{
    hl_library_search search = {options ? options->library_roots : NULL, driver_version};
    while (hl_library_kinds[survey->n_libraries]) {
        describe_library(hl_library_kinds[survey->n_libraries], &search,
                         &survey->libraries[survey->n_libraries]);
        survey->n_libraries++;
    }
}

void hl_cuda_survey(const hl_backend *base, const hl_device_options *options, bool with_open,
                    hl_survey *out_survey)
{
    hl_cuda_driver driver;
    int n_gpus;
    *out_survey = (hl_survey){0};
    if (open_driver((const hl_cuda_build *)base, options, &driver, &n_gpus,
                    &out_survey->is_absent) != HL_OK)
        hl_text_copy(out_survey->why_none, sizeof out_survey->why_none, hl_status_message());
    if (with_open) describe_libraries(options, driver.version, out_survey);
    if (*out_survey->why_none) return;
    if (n_gpus > HL_SURVEY_DEVICES) n_gpus = HL_SURVEY_DEVICES;
    for (int i = 0; i < n_gpus; i++) {
        describe_gpu(&driver, i, &out_survey->devices[i]);
        if (with_open) try_gpu(base, i, options, &out_survey->devices[i]);
    }
    out_survey->n_devices = n_gpus;
    hl_cuda_driver_close(&driver);
}
