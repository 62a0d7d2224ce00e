/* Kernels of the emulated driver: what is loaded, what is found in it by name, and the launch,
 * which looks at grid, block, shared memory and parameters as a GPU would. Loading is lazy, as
 * drivers of CUDA 12.2 and later have it by default: a library and a handle are no code yet. */
#include <elf.h>

#include <cstring>
#include <string_view>

#include "tests/cuda/fake_state.h"

using namespace fake;

namespace
{

/* Of a kernel, before CUDA 12.1. */
enum { PARAM_BYTES = 4096 };

const char *refuse_code(void *, const hl_fake_launch *, void *const *)
{
    return "a GPU's machine code cannot run here";
}

/* Machine code of a GPU: a section .text.<name> is a kernel, which can be had but not launched. */
bool load_code(const void *code, size_t bytes)
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
CUresult load_generated(const void *code, CUlibrary *library)
{
    State &s = state();
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

bool has_kernel(CUlibrary library, const Kernel &kernel)
{
    return library->names ? library->names->count(kernel.name) : !kernel.is_generated;
}

std::vector<std::string> list_names(CUlibrary library)
{
    std::vector<std::string> names;
    for (const auto &entry : state().kernels)
        if (has_kernel(library, entry.second)) names.push_back(entry.first);
    return names;
}

} // namespace

extern "C" {

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
    return forget(library, s.live.libraries, result);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CALL(CONTEXT);
    auto found = s.kernels.find(name);
    if (found == s.kernels.end() || !has_kernel(library, found->second))
        return CUDA_ERROR_NOT_FOUND;
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

/* Those that depend on the code load it; registers and local memory are of no real kernel. */
CUresult cuFuncGetAttribute(int *out_value, CUfunction_attribute attribute, CUfunction function)
{
    CALL(CONTEXT);
    NOT_IN_CAPTURE;
    CUkernel kernel = (CUkernel)function;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *out_value = (int)kernel->kernel->max_threads;
        kernel->loaded.insert(current());
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *out_value = 32; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *out_value = 0; break;
    default: return complain(CUDA_ERROR_INVALID_VALUE, "an attribute that no function has");
    }
    return CUDA_SUCCESS;
}

/* Newer than what the library may call; gpu-check asks them (tests/gpu/resources.py). */
CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    CALL(CONTEXT);
    *count = (unsigned)list_names(library).size();
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary library)
{
    CALL(CONTEXT);
    for (const std::string &name : list_names(library)) {
        if (!n--) break;
        if (CUresult wrong = cuLibraryGetKernel(kernels++, library, name.c_str())) return wrong;
    }
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    CALL(CONTEXT);
    *name = kernel->kernel->name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **params, void **)
{
    CALL(CONTEXT);
    CUkernel kernel = (CUkernel)function;
    const Kernel *known = kernel->kernel;
    hl_fake_launch launch = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    bool grid_fits =
        grid_x && grid_y && grid_z && grid_x <= 0x7fffffff && grid_y <= 65535 && grid_z <= 65535;
    if (!grid_fits || !threads || threads > 1024 || block_z > 64)
        return complain(CUDA_ERROR_INVALID_VALUE, "a launch with an impossible grid or block");
    if (threads > known->max_threads)
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with more threads than the kernel takes: " + known->name);
    if (shared_bytes > kernel->shared_bytes)
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with more shared memory than asked for");
    size_t n_params = 0, param_bytes = 0;
    while (params[n_params]) n_params++;
    if (n_params != known->param_bytes.size())
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with another number of parameters: " + known->name);
    for (size_t i = 0; i < n_params; i++) param_bytes += known->param_bytes[i];
    if (param_bytes > PARAM_BYTES)
        return complain(CUDA_ERROR_INVALID_VALUE,
                        "a launch with more than 4096 bytes of parameters: " + known->name);
    if (s.streams.count(stream) && stream->graph && !kernel->loaded.count(current())) {
        stream->graph->broken = true;
        return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        "a kernel that would be loaded within a capture: " + known->name);
    }
    kernel->loaded.insert(current());
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

/* ---- for tests ------------------------------------------------------------------------------- */

void hl_fake_kernel(const char *name, hl_fake_kernel_fn fn, void *context, int n_params,
                    const size_t *param_bytes)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    std::vector<size_t> sizes(param_bytes, param_bytes + n_params);
    state().kernels[name] = Kernel{name, fn, context, sizes, state().loading != nullptr};
    if (state().loading) state().loading->insert(name);
}

void hl_fake_kernel_bound(const char *name, unsigned max_threads)
{
    std::lock_guard<std::recursive_mutex> hold(state().lock);
    state().kernels.at(name).max_threads = max_threads;
}

void hl_fake_loader(bool (*load)(const void *image, size_t bytes))
{
    state().load = load;
}

} // extern "C"
