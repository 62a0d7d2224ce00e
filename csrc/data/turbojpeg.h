/* TurboJPEG: the decoder of libjpeg-turbo, through one table of its functions.
 *
 * A build from source finds the library when it runs (no header and no linker knows it): the file
 * that HOTLOOP_TURBOJPEG_PATH names, and then no other, else the system's. A build with
 * HL_TURBOJPEG_STATIC, such as a wheel's, has it inside. Nobody but this table calls it. */
#ifndef HL_DATA_TURBOJPEG_H
#define HL_DATA_TURBOJPEG_H

#include "base/os.h"

typedef void *tjhandle;

/* Values of turbojpeg.h (TJPF_*, TJFLAG_*), the same in 2.x and 3.x. */
enum {
    HL_TJ_RGB = 0,
    HL_TJ_GREY = 6,
    HL_TJ_CMYK = 11,
    HL_TJ_STOP_ON_WARNING = 8192,
    HL_TJ_LIMIT_SCANS = 32768 /* a few hundred bytes may ask for thousands; before 2.1: ignored */
};

typedef struct hl_turbojpeg {
    struct {
#define HL_TURBOJPEG_CALL(result, name, params) result(*name) params;
#include "data/turbojpeg.def"
    } call;
    hl_os_library library;
    bool is_there;
    char version[16];  /* "2.x", "3.x": the API has no function that says more */
    char path[512];    /* of the library; "" inside of a build that has it */
    char why_not[512]; /* where it is not there */
} hl_turbojpeg;

/* Never fails: is_there says. */
void hl_turbojpeg_open(hl_turbojpeg *out_turbojpeg);
void hl_turbojpeg_close(hl_turbojpeg *turbojpeg);

#endif
