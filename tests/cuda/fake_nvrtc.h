/* An NVRTC for tests: the calls of kernels/cuda/nvrtc.def under their own names, in the table of a
 * test in C or as a library of its own for Python (HOTLOOP_NVRTC_PATH).
 *
 * It compiles with the headers that it is given, by g++ for the emulation (emu/twin.h), and what it
 * calls machine code is a shared library, which the emulated driver loads: so generated kernels run
 * under all checks of the emulation. Like NVRTC it takes nothing from the tree: a header that is
 * not handed over does not exist. Its version is one that NVIDIA never had. */
#ifndef HL_TESTS_CUDA_FAKE_NVRTC_H
#define HL_TESTS_CUDA_FAKE_NVRTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HL_KERNELS_CUDA_NVRTC_H
typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;
#endif
#define HL_NVRTC_CALL(name, params) nvrtcResult name params;
#include "kernels/cuda/nvrtc.def"

/* The k-th call from now fails with `error`, once or, if sticky, with all later ones; 0: none.
 * Returns how many calls were seen since the last call. */
int64_t hl_fake_nvrtc_fail(int64_t k, bool sticky, int error);
/* Programs compiled so far, and programs that are not destroyed. */
int64_t hl_fake_nvrtc_compiles(void);
int hl_fake_nvrtc_live(void);
/* What it says it is: 13000 is 13.0; the only architecture it knows. 0: 1.1; all that NVIDIA
 * has. */
void hl_fake_nvrtc_pretend(int version, int arch);
/* The option --gpu-architecture of the last compilation; "": none. */
const char *hl_fake_nvrtc_arch(void);

#ifdef __cplusplus
}
#endif

#endif
