/* The search for NVIDIA's libraries; library.h has the order and the reasons. */
#include "kernels/cuda/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the libraries --------------------------------------------------------------------------- */

static void *symbol_of(hl_os_library library, const char *name, void *out_function)
{
    void *symbol = hl_os_library_symbol(library, name);
    memcpy(out_function, &symbol, sizeof symbol);
    return symbol;
}

static int read_driver_version(hl_os_library library)
{
    int (*get)(int *), version = 0;
    return symbol_of(library, "cuDriverGetVersion", &get) && get(&version) == 0 ? version : 0;
}

static int read_cublaslt_version(hl_os_library library)
{
    size_t (*get)(void);
    return symbol_of(library, "cublasLtGetVersion", &get) ? (int)get() : 0;
}

static int read_cudnn_version(hl_os_library library)
{
    size_t (*get)(void);
    return symbol_of(library, "cudnnGetVersion", &get) ? (int)get() : 0;
}

static int read_nvrtc_version(hl_os_library library)
{
    int (*get)(int *, int *), major = 0, minor = 0;
    if (!symbol_of(library, "nvrtcVersion", &get) || get(&major, &minor) != 0) return 0;
    return 1000 * major + 10 * minor;
}

/* 12040: 12.4 */
static void write_cuda_version(int version, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%d.%d", version / 1000, version % 1000 / 10);
}

/* 120803 of cuBLAS 12, 90801 of cuDNN 9: major, minor, patch in two digits each */
static void write_patch_version(int version, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

const hl_library_kind hl_library_cuda = {
    .name = "CUDA driver",
    .variable = "HOTLOOP_CUDA_PATH",
    .sonames = {"libcuda.so.1"},
    .version = read_driver_version,
    .version_text = write_cuda_version,
};
const hl_library_kind hl_library_cublaslt = {
    .name = "cuBLASLt",
    .variable = "HOTLOOP_CUBLASLT_PATH",
    .sonames = {"libcublasLt.so.13", "libcublasLt.so.12"},
    .folders = {"cu13/lib", "cublas/lib"},
    .cuda = {13000, 12000},
    .version = read_cublaslt_version,
    .version_text = write_patch_version,
};
const hl_library_kind hl_library_cudnn = {
    .name = "cuDNN",
    .variable = "HOTLOOP_CUDNN_PATH",
    .sonames = {"libcudnn.so.9"},
    .folders = {"cudnn/lib"},
    .part = "libcudnn_graph.so.9",
    .version = read_cudnn_version,
    .version_text = write_patch_version,
};
const hl_library_kind hl_library_nvrtc = {
    .name = "NVRTC",
    .variable = "HOTLOOP_NVRTC_PATH",
    .sonames = {"libnvrtc.so.13", "libnvrtc.so.12"},
    .folders = {"cu13/lib", "cuda_nvrtc/lib"},
    .cuda = {13000, 12000},
    .version = read_nvrtc_version,
    .version_text = write_cuda_version,
};
const hl_library_kind *const hl_library_kinds[] = {&hl_library_cuda, &hl_library_cublaslt,
                                                   &hl_library_cudnn, &hl_library_nvrtc, NULL};

/* ---- the search ------------------------------------------------------------------------------ */

static bool open_path(const char *path, bool with_load, hl_library_found *found)
{
    return hl_os_library_open(path, with_load, &found->library, found->why_not,
                              sizeof found->why_not);
}

/* The i-th soname is there, and of a CUDA that the driver supports. */
static bool is_wanted(const hl_library_kind *kind, const hl_library_search *search, int i)
{
    if (i == HL_LIBRARY_NAMES || !kind->sonames[i]) return false;
    return !search || !search->driver || kind->cuda[i] <= search->driver;
}

/* "libnvrtc.so.13 or libnvrtc.so.12" */
static void write_names(const hl_library_kind *kind, const hl_library_search *search,
                        char *out_names, size_t bytes)
{
    *out_names = '\0';
    for (int i = 0; i < HL_LIBRARY_NAMES; i++) {
        size_t used = strlen(out_names);
        if (!is_wanted(kind, search, i)) continue;
        snprintf(out_names + used, bytes - used, "%s%s", used ? " or " : "", kind->sonames[i]);
    }
}

/* What a named folder has: each soname, and the last by name of the library's other versions. */
typedef struct folder_content {
    const hl_library_kind *kind;
    bool has[HL_LIBRARY_NAMES];
    char other[64];
} folder_content;

static bool note_name(void *context, const char *name)
{
    folder_content *content = context;
    const char *const *sonames = content->kind->sonames;
    size_t stem = (size_t)(strstr(sonames[0], ".so") - sonames[0]) + strlen(".so");
    for (int i = 0; is_wanted(content->kind, NULL, i); i++)
        if (strcmp(name, sonames[i]) == 0) content->has[i] = true;
    if (strncmp(name, sonames[0], stem) == 0 && strcmp(name, content->other) > 0)
        hl_text_copy(content->other, sizeof content->other, name);
    return true;
}

static bool read_folder(const char *path, folder_content *content)
{
    hl_os_file folder;
    if (hl_os_directory_open(path, &folder)) return false;
    int error = hl_os_directory_list(folder, note_name, content);
    hl_os_file_close(folder);
    return !error;
}

/* What HOTLOOP_<LIB>_PATH names: the library itself, or the folder that it lies in. */
static bool try_named(const hl_library_kind *kind, const char *named, hl_library_found *found)
{
    if (open_path(named, true, found)) return true;
    char words[HL_LIBRARY_WHY_BYTES / 2], path[HL_LIBRARY_PATH_BYTES], names[96];
    hl_text_copy(words, sizeof words, found->why_not);
    folder_content content = {.kind = kind};
    bool is_folder = read_folder(named, &content), is_broken = false;
    for (int i = 0; is_wanted(kind, NULL, i); i++) {
        int n = snprintf(path, sizeof path, "%s/%s", named, kind->sonames[i]);
        if (n < (int)sizeof path && open_path(path, true, found)) return true;
        if (content.has[i] && !is_broken) hl_text_copy(words, sizeof words, found->why_not);
        is_broken = is_broken || content.has[i];
    }
    write_names(kind, NULL, names, sizeof names);
    if (is_folder && !is_broken)
        snprintf(found->why_not, sizeof found->why_not, "%s names a folder with %s%sno %s: %s",
                 kind->variable, content.other, *content.other ? " but " : "", names, named);
    else
        snprintf(found->why_not, sizeof found->why_not, "%s does not name it: %s", kind->variable,
                 words);
    return false;
}

/* In the wheels below one root. */
static bool try_root(const hl_library_kind *kind, const hl_library_search *search, const char *root,
                     int root_bytes, hl_library_found *found)
{
    char path[HL_LIBRARY_PATH_BYTES];
    for (int i = 0; i < HL_LIBRARY_NAMES; i++) {
        if (!is_wanted(kind, search, i) || !kind->folders[i]) continue;
        int n = snprintf(path, sizeof path, "%.*s/nvidia/%s/%s", root_bytes, root, kind->folders[i],
                         kind->sonames[i]);
        if (n < (int)sizeof path && open_path(path, true, found)) return true;
    }
    return false;
}

static bool try_wheels(const hl_library_kind *kind, const hl_library_search *search,
                       hl_library_found *found)
{
    const char *roots = search ? search->roots : NULL;
    while (roots && *roots) {
        int bytes = (int)strcspn(roots, ":");
        if (bytes && try_root(kind, search, roots, bytes, found)) return true;
        roots += bytes + (roots[bytes] == ':');
    }
    return false;
}

static bool try_names(const hl_library_kind *kind, const hl_library_search *search, bool with_load,
                      hl_library_found *found)
{
    for (int i = 0; i < HL_LIBRARY_NAMES; i++)
        if (is_wanted(kind, search, i) && open_path(kind->sonames[i], with_load, found))
            return true;
    return false;
}

static void describe_absence(const hl_library_kind *kind, const hl_library_search *search,
                             hl_library_found *found)
{
    char names[96];
    write_names(kind, search, names, sizeof names);
    snprintf(found->why_not, sizeof found->why_not,
             "%s is not in this process,%s and the system does not find it; %s may name it", names,
             kind->folders[0] ? " in no nvidia wheel of this Python," : "", kind->variable);
}

/* A part that lies beside the library is loaded by its path: then the library finds it in the
 * process, and where it cannot be loaded that is said here. One that lies elsewhere is left to the
 * library. False: it does not load. */
static bool load_part(const hl_library_kind *kind, hl_library_found *found)
{
    char path[HL_LIBRARY_PATH_BYTES], words[HL_LIBRARY_WHY_BYTES / 2];
    const char *slash = strrchr(found->path, '/');
    folder_content content = {.kind = &(hl_library_kind){.sonames = {kind->part}}};
    hl_os_library part;
    if (!kind->part || !slash) return true;
    snprintf(path, sizeof path, "%.*s", (int)(slash - found->path), found->path);
    if (!read_folder(path, &content) || !content.has[0]) return true;
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", kind->part);
    if (hl_os_library_open(path, true, &part, words, sizeof words)) {
        hl_os_library_close(&part);
        return true;
    }
    hl_os_library_close(&found->library);
    snprintf(found->why_not, sizeof found->why_not, "its part does not load: %s", words);
    return false;
}

void hl_library_find(const hl_library_kind *kind, const hl_library_search *search,
                     hl_library_found *out_found)
{
    memset(out_found, 0, sizeof *out_found);
    const char *named = getenv(kind->variable);
    if (named && *named) {
        if (!try_named(kind, named, out_found)) return;
    } else if (!try_names(kind, search, false, out_found) && !try_wheels(kind, search, out_found) &&
               !try_names(kind, search, true, out_found)) {
        describe_absence(kind, search, out_found);
        return;
    }
    out_found->why_not[0] = '\0';
    hl_os_library_path(out_found->library, out_found->path, sizeof out_found->path);
    if (!load_part(kind, out_found)) return;
    out_found->version = kind->version(out_found->library);
    if (out_found->version)
        kind->version_text(out_found->version, out_found->version_text,
                           sizeof out_found->version_text);
}
