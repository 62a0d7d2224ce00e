/* The headers of generated kernels, embedded as the compiler found them: what is compiled at run
 * time and what was compiled with the library share one source. setup.py knows from headers.def
 * that this file reads them. */
#include "base/hash.h"
#include "kernels/cuda/nvrtc.h"

#define HL_CUDA_HEADER(symbol, name, path)                                                         \
    extern const char hl_cuda_header_##symbol[];                                                   \
    __asm__(".pushsection .rodata, \"a\"\n"                                                        \
            ".globl hl_cuda_header_" #symbol "\n"                                                  \
            ".hidden hl_cuda_header_" #symbol "\n"                                                 \
            "hl_cuda_header_" #symbol ":\n"                                                        \
            ".incbin \"" path "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".popsection\n");
#include "kernels/cuda/headers.def"

static const char *const names[] = {
    "stdbool.h",
    "stddef.h",
    "stdint.h",
    "math.h",
#define HL_CUDA_HEADER(symbol, name, path) name,
#include "kernels/cuda/headers.def"
};

static const char *const texts[] = {
    hl_cuda_header_rtc,
    hl_cuda_header_rtc,
    hl_cuda_header_rtc,
    hl_cuda_header_rtc,
#define HL_CUDA_HEADER(symbol, name, path) hl_cuda_header_##symbol,
#include "kernels/cuda/headers.def"
};

hl_cuda_headers hl_cuda_headers_get(void)
{
    hl_cuda_headers headers = {sizeof names / sizeof *names, names, texts, HL_HASH_START};
    for (int i = 0; i < headers.n; i++) {
        headers.hash = hl_hash_text(headers.hash, names[i]);
        headers.hash = hl_hash_text(headers.hash, texts[i]);
    }
    return headers;
}
