/* Kernels compiled while a plan is made: by NVRTC, once a source, and kept on disk.
 *
 * A device keeps what it has compiled until it is closed, as further libraries beside the fatbins:
 * kernels are found in all of them by name. On disk (base/cache.h) the key is the text that is
 * compiled, whose first line names the rest that the code depends on. Code that the driver does not
 * load is made anew, and none such is kept.
 *
 * Rejected: the driver's own cache (it keeps what it made of PTX, which NVRTC has to make first).
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cache.h"
#include "base/log.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/pointwise.h"

static const char CACHE_KIND[] = "kernel";

/* Searches for NVRTC once. */
static hl_status open_nvrtc(hl_cuda_device *device)
{
    hl_cuda_compiler *compiler = &device->compiler;
    if (compiler->nvrtc.version) return HL_OK;
    if (compiler->is_tried) return hl_status_raise(&compiler->why_not);
    compiler->is_tried = true;
    hl_library_search search = {device->library_roots, device->driver.version};
    hl_status status = hl_cuda_nvrtc_open(&search, &compiler->nvrtc);
    /* A driver runs what older compilers make, and newer ones of its own major version. */
    int version = compiler->nvrtc.version, newest = device->driver.version;
    if (status == HL_OK && version / 1000 > newest / 1000) {
        hl_cuda_nvrtc_close(&compiler->nvrtc);
        status = hl_status_set(HL_ERROR_DEVICE,
                               "NVRTC: must be of CUDA %d at most, as the driver is, got %d.%d",
                               newest / 1000, version / 1000, version % 1000 / 10);
    }
    if (status != HL_OK) hl_status_save(status, &compiler->why_not);
    return status;
}

/* All that the code depends on, as a text that is compiled itself. */
static hl_status write_text(const hl_cuda_device *device, const char *source, char **out_text)
{
    static const char *const options[] = {HL_CUDA_NVRTC_OPTIONS};
    char head[192];
    int version = device->compiler.nvrtc.version, n;
    n = snprintf(head, sizeof head, "// sm_%d, NVRTC %d.%d, headers %016llx,", device->facts.arch,
                 version / 1000, version % 1000 / 10,
                 (unsigned long long)hl_cuda_headers_get().hash);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        n += snprintf(head + n, sizeof head - (size_t)n, " %s", options[i]);
    size_t bytes = strlen(head) + strlen(source) + 2;
    HL_TRY(hl_alloc(bytes, (void **)out_text));
    snprintf(*out_text, bytes, "%s\n%s", head, source);
    return HL_OK;
}

static hl_status load_image(hl_cuda_device *device, const char *name, const hl_cuda_image *image)
{
    hl_device *base = &device->base;
    CUlibrary library = NULL;
    CUkernel kernel;
    HL_TRY(hl_alloc_grow((void **)&device->libraries, &device->cap_libraries,
                         device->n_libraries + 1, sizeof *device->libraries));
    HL_TRY(hl_cuda_enter(base));
    const hl_cuda_driver *driver = &device->driver;
    CUresult error =
        driver->cuLibraryLoadData(&library, image->bytes, NULL, NULL, 0, NULL, NULL, 0);
    if (error == CUDA_SUCCESS) {
        error = driver->cuLibraryGetKernel(&kernel, library, name);
        if (error == CUDA_SUCCESS)
            device->libraries[device->n_libraries++] = library;
        else
            driver->cuLibraryUnload(library);
    }
    hl_cuda_leave(base);
    return hl_cuda_check(base, error, "loading a compiled kernel");
}

static hl_status make_kernel(hl_cuda_device *device, const char *source, const char *name)
{
    char *text = NULL;
    hl_cuda_image image = {NULL, 0};
    HL_TRY(open_nvrtc(device));
    hl_status status;
    HL_GOTO(write_text(device, source, &text));
    if (hl_cache_read(CACHE_KIND, text, (void **)&image.bytes, &image.n_bytes)) {
        status = load_image(device, name, &image);
        if (status == HL_OK || status == HL_ERROR_DEVICE_LOST) goto cleanup;
        hl_free(image.bytes);
        image.bytes = NULL;
    }
    HL_GOTO(hl_cuda_nvrtc_compile(&device->compiler.nvrtc, text, device->facts.arch, &image));
    HL_GOTO(load_image(device, name, &image));
    hl_cache_write(CACHE_KIND, text, image.bytes, image.n_bytes);
cleanup:
    hl_free(image.bytes);
    hl_free(text);
    return status;
}

/* One sentence a device at the level of news: without NVRTC it would be the same one each time. */
static void report_failure(hl_cuda_compiler *compiler)
{
    hl_log(compiler->has_warned ? HL_LOG_DEBUG : HL_LOG_INFO,
           "cuda: a pointwise program is interpreted, which is slower: %s", hl_status_message());
    compiler->has_warned = true;
}

bool hl_cuda_can_compile(hl_device *base)
{
    hl_cuda_device *device = hl_cuda_of(base);
    if (base->is_described) return true;
    hl_mutex_lock(&device->compiler.lock);
    bool can = open_nvrtc(device) == HL_OK;
    hl_mutex_unlock(&device->compiler.lock);
    return can;
}

hl_status hl_cuda_compile(hl_device *base, const char *source, const char *name)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_mutex_lock(&device->compiler.lock);
    hl_status status = HL_OK;
    if (!hl_cuda_kernel_exists(base, name)) status = make_kernel(device, source, name);
    if (status == HL_ERROR_DEVICE) report_failure(&device->compiler);
    hl_mutex_unlock(&device->compiler.lock);
    return status;
}
