/* TurboJPEG: its table from the system's library, or from the one that was linked. */
#include "data/turbojpeg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HL_TURBOJPEG_STATIC

#define HL_TURBOJPEG_CALL(result, name, params) extern result name params;
#include "data/turbojpeg.def"

void hl_turbojpeg_open(hl_turbojpeg *out_turbojpeg)
{
    *out_turbojpeg = (hl_turbojpeg){.is_there = true};
#define HL_TURBOJPEG_CALL(result, name, params) out_turbojpeg->call.name = name;
#include "data/turbojpeg.def"
    hl_text_copy(out_turbojpeg->version, sizeof out_turbojpeg->version, HL_TURBOJPEG_STATIC);
}

#else

/* The name of a function that is missing, or NULL. */
static const char *fill_table(hl_turbojpeg *tj)
{
    void *symbol;
#define HL_TURBOJPEG_CALL(result, name, params)                                                    \
    symbol = hl_os_library_symbol(tj->library, #name);                                             \
    memcpy(&tj->call.name, &symbol, sizeof symbol);                                                \
    if (!symbol) return #name;
#include "data/turbojpeg.def"
    return NULL;
}

/* Who names a library means that one. */
static void open_library(hl_turbojpeg *tj)
{
    static const char *const names[] = {"libturbojpeg.so.0", "libturbojpeg.so"};
    const char *named = getenv("HOTLOOP_TURBOJPEG_PATH");
    if (named && *named) {
        hl_os_library_open(named, true, &tj->library, tj->why_not, sizeof tj->why_not);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !tj->library.handle; i++)
        hl_os_library_open(names[i], true, &tj->library, tj->why_not, sizeof tj->why_not);
}

void hl_turbojpeg_open(hl_turbojpeg *out_turbojpeg)
{
    hl_turbojpeg *tj = out_turbojpeg;
    *tj = (hl_turbojpeg){.is_there = false};
    open_library(tj);
    if (!tj->library.handle) return;
    hl_os_library_path(tj->library, tj->path, sizeof tj->path);
    const char *missing = fill_table(tj);
    if (missing) snprintf(tj->why_not, sizeof tj->why_not, "%.400s lacks %s", tj->path, missing);
    bool is_new = hl_os_library_symbol(tj->library, "tj3Init") != NULL;
    hl_text_copy(tj->version, sizeof tj->version, is_new ? "3.x" : "2.x");
    tj->is_there = !missing;
}

#endif

void hl_turbojpeg_close(hl_turbojpeg *turbojpeg)
{
    hl_os_library_close(&turbojpeg->library);
    turbojpeg->is_there = false;
}
