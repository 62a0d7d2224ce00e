/* NVRTC, CUDA's compiler as a library, as a table of functions filled as the driver's is
 * (driver.h): nothing of it is linked, and tests put one of their own into the table. The
 * declarations are ours; tests/cuda/nvrtc_check.c compiles them beside NVIDIA's. */
#ifndef HL_KERNELS_CUDA_NVRTC_H
#define HL_KERNELS_CUDA_NVRTC_H

#include "kernels/cuda/library.h"

#ifndef __NVRTC_H__
typedef int nvrtcResult; /* 0: success */
typedef struct _nvrtcProgram *nvrtcProgram;
#endif

typedef struct hl_cuda_nvrtc {
    hl_os_library library, builtins;
    int version; /* 13000: of CUDA 13.0; 0: there is none */
#define HL_NVRTC_CALL(name, params) nvrtcResult(*name) params;
#include "kernels/cuda/nvrtc.def"
} hl_cuda_nvrtc;

/* Finds NVRTC and fills the table. HL_ERROR_DEVICE with the sentence where there is none. */
hl_status hl_cuda_nvrtc_open(const hl_library_search *search, hl_cuda_nvrtc *out_nvrtc);
void hl_cuda_nvrtc_close(hl_cuda_nvrtc *nvrtc);

/* A source compiled for an architecture: machine code, or PTX where this NVRTC is older than the
 * architecture, of the newest one that it knows. */
typedef struct hl_cuda_image {
    char *bytes; /* from hl_alloc */
    size_t n_bytes;
} hl_cuda_image;
/* Options beside the architecture. Without fmad a product and a sum are rounded apart, as in the
 * interpreter, where each is a step of its own. */
#define HL_CUDA_NVRTC_OPTIONS "--std=c++17", "--fmad=false", "--device-as-default-execution-space"
/* HL_ERROR_DEVICE with NVRTC's own first words when the source does not compile. */
hl_status hl_cuda_nvrtc_compile(const hl_cuda_nvrtc *nvrtc, const char *source, int arch,
                                HL_GIVE hl_cuda_image *out_image);

/* What generated sources may include (headers.def), as this library was built with them, and a
 * number that changes with them. */
typedef struct hl_cuda_headers {
    int n;
    const char *const *names, *const *texts;
    uint64_t hash;
} hl_cuda_headers;
hl_cuda_headers hl_cuda_headers_get(void);

#endif
