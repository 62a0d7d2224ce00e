/* Kernels compiled while a plan is made: by NVRTC, once a source, and kept on disk.
 *
 * A device keeps what it has compiled until it is closed, as further libraries beside the fatbins:
 * kernels are found in all of them by name. On disk a kernel is a file in $HOTLOOP_CACHE, else
 * $XDG_CACHE_HOME/hotloop, else ~/.cache/hotloop, of a name made from all that the code depends on.
 * The file repeats that text beside the code, under a checksum: what was cut off, or belongs to
 * another text, is compiled again and written over. A folder that cannot be written costs the
 * compiler's time and no more. Code that the driver did not load is not kept.
 *
 * Rejected: the driver's own cache (it keeps what it made of PTX, which NVRTC has to make first),
 * one file for all kernels (processes would wait for each other). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/pointwise.h"

/* ---- the cache on disk ----------------------------------------------------------------------- */

enum { PATH_BYTES = 1024, MOST_FILE_BYTES = 64 << 20 };

typedef struct cache_head {
    char magic[8];
    uint64_t text_bytes, image_bytes, checksum; /* of the text, then the image */
} cache_head;
static const char magic[8] = "hlpwise1";

static uint64_t sum_up(const char *text, const hl_cuda_image *image)
{
    uint64_t hash = hl_hash_bytes(HL_HASH_START, text, strlen(text));
    return hl_hash_bytes(hash, image->bytes, image->n_bytes);
}

/* False where there is no place for a cache. */
static bool find_folder(char *out_path)
{
    const struct {
        const char *variable, *below;
    } places[] = {{"HOTLOOP_CACHE", "cuda"},
                  {"XDG_CACHE_HOME", "hotloop/cuda"},
                  {"HOME", ".cache/hotloop/cuda"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *root = getenv(places[i].variable);
        if (!root || !*root) continue;
        return snprintf(out_path, PATH_BYTES, "%s/%s", root, places[i].below) < PATH_BYTES - 64;
    }
    return false;
}

static bool find_file(const char *text, char *out_path)
{
    if (!find_folder(out_path)) return false;
    size_t used = strlen(out_path);
    uint64_t hash = hl_hash_text(HL_HASH_START, text);
    snprintf(out_path + used, PATH_BYTES - used, "/%016llx.kernel", (unsigned long long)hash);
    return true;
}

/* The whole file; NULL: there is none that can be read. */
static char *read_file(const char *path, int64_t *out_bytes)
{
    hl_os_file file;
    void *data = NULL;
    if (hl_os_file_open(path, &file, out_bytes) != 0) return NULL;
    bool is_read = *out_bytes > 0 && *out_bytes <= MOST_FILE_BYTES &&
                   hl_alloc((size_t)*out_bytes, &data) == HL_OK &&
                   hl_os_file_read(file, data, (size_t)*out_bytes) == 0;
    hl_os_file_close(file);
    if (is_read) return data;
    hl_free(data);
    return NULL;
}

/* True with what the file of this text holds, if it is all there. */
static bool read_cache(const char *text, hl_cuda_image *out_image)
{
    char path[PATH_BYTES];
    int64_t n;
    cache_head head;
    *out_image = (hl_cuda_image){NULL, 0};
    char *data = find_file(text, path) ? read_file(path, &n) : NULL;
    if (!data) return false;
    size_t text_bytes = strlen(text), bytes = (size_t)n;
    bool is_whole = bytes >= sizeof head;
    if (is_whole) memcpy(&head, data, sizeof head);
    is_whole = is_whole && memcmp(head.magic, magic, sizeof magic) == 0 &&
               head.text_bytes == text_bytes && bytes - sizeof head > text_bytes &&
               head.image_bytes == bytes - sizeof head - text_bytes &&
               memcmp(data + sizeof head, text, text_bytes) == 0;
    if (is_whole) {
        /* To the front, where it is aligned as an allocation is. */
        memmove(data, data + sizeof head + text_bytes, head.image_bytes);
        *out_image = (hl_cuda_image){data, head.image_bytes};
        is_whole = head.checksum == sum_up(text, out_image);
    }
    if (is_whole) return true;
    *out_image = (hl_cuda_image){NULL, 0};
    hl_free(data);
    hl_log(HL_LOG_INFO, "cuda: %s is not whole and is made anew", path);
    return false;
}

static hl_status write_file(const char *path, const char *text, const hl_cuda_image *image)
{
    cache_head head = {
        .text_bytes = strlen(text), .image_bytes = image->n_bytes, .checksum = sum_up(text, image)};
    memcpy(head.magic, magic, sizeof magic);
    hl_file_writer *writer;
    hl_status status;
    int64_t total = (int64_t)(sizeof head + head.text_bytes + head.image_bytes);
    HL_TRY(hl_file_writer_begin(path, total, &writer));
    HL_GOTO(hl_file_writer_write(writer, &head, sizeof head));
    HL_GOTO(hl_file_writer_write(writer, text, head.text_bytes));
    HL_GOTO(hl_file_writer_write(writer, image->bytes, image->n_bytes));
    status = hl_file_writer_commit(writer);
    writer = NULL;
cleanup:
    hl_file_writer_abort(writer);
    return status;
}

static void write_cache(const char *text, const hl_cuda_image *image)
{
    char path[PATH_BYTES], folder[PATH_BYTES];
    if (!find_file(text, path) || !find_folder(folder)) return;
    int error = hl_os_directory_make(folder);
    if (error == 0 && write_file(path, text, image) == HL_OK) return;
    char words[128] = "";
    if (error) hl_os_error_text(error, words, sizeof words);
    hl_log(HL_LOG_DEBUG, "cuda: a kernel is not kept in %s: %s", folder,
           error ? words : hl_status_message());
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* Looks for NVRTC once. */
static hl_status open_nvrtc(hl_cuda_device *device)
{
    const hl_cuda_build *build = (const hl_cuda_build *)device->base.backend;
    hl_cuda_compiler *compiler = &device->compiler;
    if (compiler->nvrtc.version) return HL_OK;
    if (compiler->is_tried) return hl_status_raise(&compiler->why_not);
    compiler->is_tried = true;
    hl_library_search search = {compiler->roots};
    hl_status status = build->nvrtc_open(&search, &compiler->nvrtc);
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
    if (read_cache(text, &image)) {
        status = load_image(device, name, &image);
        if (status == HL_OK || status == HL_ERROR_DEVICE_LOST) goto cleanup;
        hl_free(image.bytes);
        image.bytes = NULL;
    }
    HL_GOTO(hl_cuda_nvrtc_compile(&device->compiler.nvrtc, text, device->facts.arch, &image));
    HL_GOTO(load_image(device, name, &image));
    write_cache(text, &image);
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

hl_status hl_cuda_compile(hl_device *base, const hl_cuda_pointwise *work,
                          char out_name[HL_CUDA_NAME_BYTES])
{
    hl_cuda_device *device = hl_cuda_of(base);
    char *source;
    HL_TRY(hl_cuda_generate(work, &source, out_name));
    hl_mutex_lock(&device->compiler.lock);
    hl_status status = HL_OK;
    if (!hl_cuda_kernel_exists(base, out_name)) status = make_kernel(device, source, out_name);
    if (status == HL_ERROR_DEVICE) report_failure(&device->compiler);
    hl_mutex_unlock(&device->compiler.lock);
    hl_free(source);
    return status;
}
