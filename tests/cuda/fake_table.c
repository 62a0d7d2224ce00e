/* The emulated driver in a table. */
#include "tests/cuda/fake_table.h"

#include <stdlib.h>

#define HL_CUDA_CALL(name, suffix, since, params) extern CUresult name##suffix params;
#include "kernels/cuda/driver.def"

hl_status hl_fake_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                              bool *out_absent)
{
    (void)search;
    *out_absent = false;
    *out_driver = (hl_cuda_driver){0};
#define HL_CUDA_CALL(name, suffix, since, params) out_driver->name = name##suffix;
#include "kernels/cuda/driver.def"
    return HL_OK;
}

/* A container with one empty image per architecture, machine code each and PTX for the newest: what
 * is said about a build can be tested without nvcc. */
enum { N_IMAGES = 8, IMAGE_BYTES = 64 };
static _Alignas(64) unsigned char fatbin[16 + N_IMAGES * IMAGE_BYTES];

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> 8 * i);
}

static void write_fatbin(void)
{
    static const int archs[N_IMAGES] = {75, 80, 86, 89, 90, 100, 120, 120};
    put(fatbin, 0xBA55ED50, 4);
    put(fatbin + 4, 1, 2);
    put(fatbin + 6, 16, 2);
    put(fatbin + 8, N_IMAGES * IMAGE_BYTES, 8);
    for (int i = 0; i < N_IMAGES; i++) {
        unsigned char *image = fatbin + 16 + i * IMAGE_BYTES;
        put(image, i == N_IMAGES - 1 ? 1 : 2, 2);
        put(image + 4, IMAGE_BYTES, 4);
        put(image + 28, (uint64_t)archs[i], 4);
    }
}

const hl_backend *hl_fake_backend(void)
{
    static const hl_cuda_build build = {
        .base = {.name = "cuda", .device_open = hl_cuda_device_open, .survey = hl_cuda_survey},
        .driver_open = hl_fake_driver_open,
        .fatbins = fatbin,
        .fatbins_end = fatbin + sizeof fatbin,
        .toolkit = 13000,
    };
    write_fatbin();
    /* Not what the machine may have: its code is for GPUs. */
    setenv("HOTLOOP_NVRTC_PATH", "none", 0);
    hl_fake_kernels_register();
    return &build.base;
}
