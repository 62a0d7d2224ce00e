/* NVRTC: finding it, and compiling with it. */
#include "kernels/cuda/nvrtc.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* ---- finding --------------------------------------------------------------------------------- */

static hl_status fill_table(hl_cuda_nvrtc *nvrtc)
{
#define HL_NVRTC_CALL(name, params)                                                                \
    do {                                                                                           \
        void *symbol = hl_os_library_symbol(nvrtc->library, #name);                                \
        if (!symbol)                                                                               \
            return hl_status_set(HL_ERROR_DEVICE, "NVRTC: must have %s, got a library without",    \
                                 #name);                                                           \
        memcpy(&nvrtc->name, &symbol, sizeof symbol);                                              \
    } while (0);
#include "kernels/cuda/nvrtc.def"
    return HL_OK;
}

/* NVRTC's second half, which it asks the system's search for by name while it compiles: in a wheel
 * it lies beside the first, where that search does not look, and is found once it is loaded. */
static void open_builtins(hl_cuda_nvrtc *nvrtc, const char *path)
{
    char name[HL_LIBRARY_PATH_BYTES], why[HL_LIBRARY_WHY_BYTES];
    const char *slash = strrchr(path, '/');
    if (!slash) return;
    int n = snprintf(name, sizeof name, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path),
                     path, nvrtc->version / 1000, nvrtc->version % 1000 / 10);
    if (n < (int)sizeof name) hl_os_library_open(name, true, &nvrtc->builtins, why, sizeof why);
}

hl_status hl_cuda_nvrtc_open(const hl_library_search *search, hl_cuda_nvrtc *out_nvrtc)
{
    hl_library_found found;
    memset(out_nvrtc, 0, sizeof *out_nvrtc);
    hl_library_find(&hl_library_nvrtc, search, &found);
    if (!found.library.handle)
        return hl_status_set(HL_ERROR_DEVICE, "NVRTC: must be found, got none: %s", found.why_not);
    out_nvrtc->library = found.library;
    hl_status status = fill_table(out_nvrtc);
    if (status == HL_OK && found.version == 0)
        status = hl_status_set(HL_ERROR_DEVICE, "NVRTC: must say its version, got nothing");
    if (status != HL_OK) {
        hl_cuda_nvrtc_close(out_nvrtc);
        return status;
    }
    out_nvrtc->version = found.version;
    open_builtins(out_nvrtc, found.path);
    return HL_OK;
}

void hl_cuda_nvrtc_close(hl_cuda_nvrtc *nvrtc)
{
    hl_os_library_close(&nvrtc->builtins);
    hl_os_library_close(&nvrtc->library);
    nvrtc->version = 0;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static hl_status check(nvrtcResult result, const char *what)
{
    if (result == 0) return HL_OK;
    return hl_status_set(HL_ERROR_DEVICE, "NVRTC: %s must succeed, got error %d", what, result);
}

/* The architecture to ask for: the GPU's own as machine code, or the newest one below it that this
 * NVRTC knows, as PTX. */
static hl_status choose_arch(const hl_cuda_nvrtc *nvrtc, int arch, int *out_arch, bool *out_is_ptx)
{
    int n = 0, *known = NULL, best = 0;
    *out_arch = 0, *out_is_ptx = false;
    HL_TRY(check(nvrtc->nvrtcGetNumSupportedArchs(&n), "asking for architectures"));
    if (n > 0) HL_TRY(hl_alloc((size_t)n * sizeof *known, (void **)&known));
    hl_status status = HL_OK;
    if (n > 0) status = check(nvrtc->nvrtcGetSupportedArchs(known), "asking for architectures");
    for (int i = 0; i < n && status == HL_OK; i++)
        if (known[i] <= arch && known[i] > best) best = known[i];
    hl_free(known);
    HL_TRY(status);
    if (best == 0)
        return hl_status_set(HL_ERROR_DEVICE,
                             "NVRTC: must compile for sm_%d, got one that does not", arch);
    *out_arch = best;
    *out_is_ptx = best != arch;
    return HL_OK;
}

/* The first lines of what the compiler says, as an error. */
static hl_status report_log(const hl_cuda_nvrtc *nvrtc, nvrtcProgram program, nvrtcResult result)
{
    char *log = NULL;
    size_t bytes = 0;
    if (nvrtc->nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes > 1 &&
        hl_alloc_zero(bytes + 1, (void **)&log) == HL_OK &&
        nvrtc->nvrtcGetProgramLog(program, log) != 0)
        log[0] = '\0';
    hl_status status =
        hl_status_set(HL_ERROR_DEVICE, "NVRTC: compiling must succeed, got error %d%s%.400s",
                      result, log && *log ? ": " : "", log ? log : "");
    hl_free(log);
    return status;
}

static hl_status read_image(const hl_cuda_nvrtc *nvrtc, nvrtcProgram program, bool is_ptx,
                            hl_cuda_image *out_image)
{
    size_t bytes = 0;
    char *image = NULL;
    HL_TRY(check(is_ptx ? nvrtc->nvrtcGetPTXSize(program, &bytes)
                        : nvrtc->nvrtcGetCUBINSize(program, &bytes),
                 "asking for the code's size"));
    if (bytes == 0) return hl_status_set(HL_ERROR_DEVICE, "NVRTC: code must be made, got none");
    HL_TRY(hl_alloc(bytes, (void **)&image));
    hl_status status =
        check(is_ptx ? nvrtc->nvrtcGetPTX(program, image) : nvrtc->nvrtcGetCUBIN(program, image),
              "fetching the code");
    if (status != HL_OK) {
        hl_free(image);
        return status;
    }
    *out_image = (hl_cuda_image){image, bytes};
    return HL_OK;
}

hl_status hl_cuda_nvrtc_compile(const hl_cuda_nvrtc *nvrtc, const char *source, int arch,
                                HL_GIVE hl_cuda_image *out_image)
{
    int target;
    bool is_ptx;
    *out_image = (hl_cuda_image){NULL, 0};
    HL_TRY(choose_arch(nvrtc, arch, &target, &is_ptx));
    char option[48];
    snprintf(option, sizeof option, "--gpu-architecture=%s_%d", is_ptx ? "compute" : "sm", target);
    const char *const options[] = {option, HL_CUDA_NVRTC_OPTIONS};
    hl_cuda_headers headers = hl_cuda_headers_get();
    nvrtcProgram program = NULL;
    HL_TRY(check(nvrtc->nvrtcCreateProgram(&program, source, "pointwise.cu", headers.n,
                                           headers.texts, headers.names),
                 "making a program"));
    hl_status status;
    nvrtcResult result =
        nvrtc->nvrtcCompileProgram(program, sizeof options / sizeof *options, options);
    status = result == 0 ? read_image(nvrtc, program, is_ptx, out_image)
                         : report_log(nvrtc, program, result);
    nvrtc->nvrtcDestroyProgram(&program);
    return status;
}
