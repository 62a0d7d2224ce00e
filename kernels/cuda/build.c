/* The CUDA backend as this library was built: the fatbins that setup.py made, embedded one after
 * the other.
 *
 * HL_CUDA_FATBINS is the path of that file and HL_CUDA_TOOLKIT the CUDA version of the nvcc that
 * made it; a CPU-only build has neither, and the embedded range is empty. */
#include "kernels/cuda/cuda.h"

#ifdef HL_CUDA_FATBINS
#define CONTENT ".incbin \"" HL_CUDA_FATBINS "\"\n"
#else
#define CONTENT         ""
#define HL_CUDA_TOOLKIT 0
#endif

extern const unsigned char hl_cuda_fatbins[], hl_cuda_fatbins_end[];
__asm__(".pushsection .rodata, \"a\"\n"
        ".balign 64\n"
        ".globl hl_cuda_fatbins, hl_cuda_fatbins_end\n"
        ".hidden hl_cuda_fatbins, hl_cuda_fatbins_end\n"
        "hl_cuda_fatbins:\n" CONTENT "hl_cuda_fatbins_end:\n"
        ".byte 0\n"
        ".popsection\n");

const hl_cuda_build *hl_cuda_build_get(void)
{
    static const hl_cuda_build build = {
        .base = {.name = "cuda", .device_open = hl_cuda_device_open, .survey = hl_cuda_survey},
        .driver_open = hl_cuda_driver_open,
        .fatbins = hl_cuda_fatbins,
        .fatbins_end = hl_cuda_fatbins_end,
        .toolkit = HL_CUDA_TOOLKIT,
    };
    return &build;
}
