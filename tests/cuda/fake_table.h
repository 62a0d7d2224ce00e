/* The emulated driver in a table, and a build of the backend over it. */
#ifndef HL_TESTS_CUDA_FAKE_TABLE_H
#define HL_TESTS_CUDA_FAKE_TABLE_H

#include "kernels/cuda/cuda.h"
#include "tests/cuda/fake_driver.h"

/* A hl_cuda_build's driver_open. */
hl_status hl_fake_driver_open(const hl_library_search *search, hl_cuda_driver *out_driver,
                              bool *out_absent);
/* The backend over the emulated driver, with all emulated kernels, and a fatbin of no kernels for
 * sm_75 to sm_120. */
const hl_backend *hl_fake_backend(void);

#endif
