/* NVIDIA's libraries at run time: one search for all of them.
 *
 * Nothing of NVIDIA's is linked or shipped. A library is looked for in this order: the file or
 * folder that HOTLOOP_<LIB>_PATH names (and then nowhere else: who names one means that one); what
 * the process has already loaded, so that torch and hotloop share one copy; the nvidia-* wheels
 * below the given roots; the system's search. Names of CUDA 13 come before those of CUDA 12, but
 * for a driver of CUDA 12, which CUDA 13's libraries do not run on.
 * Whether found or not, a sentence says so. */
#ifndef HL_KERNELS_CUDA_LIBRARY_H
#define HL_KERNELS_CUDA_LIBRARY_H

#include "base/os.h"

enum { HL_LIBRARY_NAMES = 3, HL_LIBRARY_PATH_BYTES = 1024, HL_LIBRARY_WHY_BYTES = 512 };

typedef struct hl_library_kind {
    const char *name;                      /* "cuBLASLt" */
    const char *variable;                  /* "HOTLOOP_CUBLASLT_PATH" */
    const char *sonames[HL_LIBRARY_NAMES]; /* best first, NULL-terminated if shorter */
    const char *folders[HL_LIBRARY_NAMES]; /* of the wheel of each soname, below nvidia/ */
    int cuda[HL_LIBRARY_NAMES];            /* that each soname is of: 13000; 0: any */
    const char *part; /* (optional) of its folder, which it loads when it is called, and ends the
                         process where that fails */
    int (*version)(hl_os_library library); /* 0: it does not say */
    void (*version_text)(int version, char *out_text, size_t bytes);
} hl_library_kind;

extern const hl_library_kind hl_library_cuda, hl_library_cublaslt, hl_library_cudnn,
    hl_library_nvrtc;
/* NULL-terminated: all of them, the driver first. */
extern const hl_library_kind *const hl_library_kinds[];

typedef struct hl_library_search {
    const char *roots; /* folders that may hold `nvidia/`, with ':' between them; NULL: none */
    int driver;        /* the newest CUDA that it supports, 12040; 0: any */
} hl_library_search;

typedef struct hl_library_found {
    hl_os_library library; /* handle NULL: not found */
    char path[HL_LIBRARY_PATH_BYTES];
    int version;
    char version_text[32];
    char why_not[HL_LIBRARY_WHY_BYTES];
} hl_library_found;

/* Never fails: what was not found has why_not. The caller closes found.library. */
void hl_library_find(const hl_library_kind *kind, const hl_library_search *search,
                     hl_library_found *out_found);

#endif
