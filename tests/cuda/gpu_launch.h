/* The device's side of kernel_test.h: the same tests, their kernels launched on a GPU (or over any
 * driver that HOTLOOP_CUDA_PATH names) instead of emulated. Buffers are pinned host memory, which
 * has one address for both sides, so that a test reads and writes them as it always does. */
#ifndef HL_TESTS_GPU_LAUNCH_H
#define HL_TESTS_GPU_LAUNCH_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first GPU; 0, or -1 and hl_gpu_error() says why. Once, before all else. */
int hl_gpu_open(void);
void hl_gpu_close(void);
/* NULL: out of memory. */
void *hl_gpu_alloc(size_t bytes);
void hl_gpu_free(void *memory);
/* By name, out of the library's own fatbins; waits. 0, or -1 and hl_gpu_error() says why. */
int hl_gpu_launch(const char *kernel, const unsigned grid[3], unsigned threads, size_t shared_bytes,
                  void **args);
const char *hl_gpu_error(void);
const char *hl_gpu_name(void);
int hl_gpu_arch(void); /* 90: sm_90 */

#ifdef __cplusplus
}
#endif
#endif
