/* The CUDA driver as a table of functions, without any CUDA header.
 *
 * Nothing of CUDA is linked: the table is filled by dlopen, so hotloop imports where there is no
 * driver and says so in a sentence, and by the tests' emulated driver, so that everything above it
 * runs without a GPU. The declarations are ours; tests/cuda/driver_check.c compiles them beside
 * NVIDIA's headers, so that none of them is wrong. Rejected: cudart (a second runtime to ship and
 * to match), linking libcuda (no import without a driver), cuGetProcAddress (newer than it is
 * worth: the symbols' own names carry the version). */
#ifndef HL_KERNELS_CUDA_DRIVER_H
#define HL_KERNELS_CUDA_DRIVER_H

#include "base/os.h"
#include "kernels/cuda/driver_types.h"
#include "kernels/cuda/library.h"

typedef struct hl_cuda_driver {
    hl_os_library library;
    int version; /* the newest CUDA it supports: 12040 is 12.4 */
#define HL_CUDA_CALL(name, suffix, since, params) CUresult(*name) params;
#include "kernels/cuda/driver.def"
} hl_cuda_driver;

/* Finds libcuda and fills the table. HL_ERROR_DEVICE with the sentence: there is no driver
 * (*out_absent), or it lacks a call (older than 525). */
hl_status hl_cuda_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                              bool *out_absent);
void hl_cuda_driver_close(hl_cuda_driver *driver);

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", in the driver's words where it has some. */
void hl_cuda_error_text(const hl_cuda_driver *driver, CUresult error, char *out_text, size_t bytes);
/* True when the error outlives the call: the context is lost, and with it all that it held. */
bool hl_cuda_error_loses(CUresult error);

#endif
