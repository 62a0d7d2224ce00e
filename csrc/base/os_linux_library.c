/* Linux: shared libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

#include "base/os.h"

bool hl_os_library_open(const char *name, bool with_load, hl_os_library *out_library, char *out_why,
                        size_t bytes)
{
    out_library->handle = NULL;
    if (bytes) *out_why = '\0';
    int error = hl_os_fault_take();
    if (error) {
        hl_os_error_text(error, out_why, bytes);
        return false;
    }
    int mode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (with_load ? 0 : RTLD_NOLOAD);
    out_library->handle = dlopen(name, mode);
    if (out_library->handle) return true;
    const char *words = dlerror();
    hl_text_copy(out_why, bytes, words ? words : "not in this process");
    return false;
}

void *hl_os_library_symbol(hl_os_library library, const char *name)
{
    return library.handle ? dlsym(library.handle, name) : NULL;
}

void hl_os_library_path(hl_os_library library, char *out_path, size_t bytes)
{
    struct link_map *map = NULL;
    bool known = library.handle && dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 && map;
    hl_text_copy(out_path, bytes, known && map->l_name ? map->l_name : "");
}

void hl_os_library_close(hl_os_library *library)
{
    if (library->handle) dlclose(library->handle);
    library->handle = NULL;
}
