/* The fake cuBLASLt as a test asks it: the calls of fake_cublaslt.h in the library that a device
 * loads. */
#ifndef HL_TESTS_CUDA_LT_LIBRARY_H
#define HL_TESTS_CUDA_LT_LIBRARY_H

#include <dlfcn.h>
#include <stdlib.h>

#include "tests/c/check.h"
#include "tests/cuda/fake_cublaslt.h"
#include "tests/cuda/fake_device.h"

static hl_fake_lt_reset_fn lt_reset;
static hl_fake_lt_fail_fn lt_fail;
static hl_fake_lt_counts_fn lt_counts;

static inline void lt_library_find(void)
{
    void *library = dlopen(FAKE_LT, RTLD_NOW);
    CHECK(library != NULL);
    void *symbols[] = {dlsym(library, "hl_fake_lt_reset"), dlsym(library, "hl_fake_lt_fail"),
                       dlsym(library, "hl_fake_lt_get_counts")};
    memcpy(&lt_reset, &symbols[0], sizeof lt_reset);
    memcpy(&lt_fail, &symbols[1], sizeof lt_fail);
    memcpy(&lt_counts, &symbols[2], sizeof lt_counts);
}

/* A device whose library is set up so; closing it, all that the library gave is back. */
static inline hl_device *lt_device_open(const hl_fake_lt_config *config)
{
    lt_reset(config);
    setenv("HOTLOOP_CUBLASLT_PATH", FAKE_LT, 1);
    return fake_device_open(NULL);
}

static inline void lt_device_close(hl_device *device)
{
    fake_device_close(device);
    CHECK_INT(lt_counts().live, 0);
    CHECK(strcmp(hl_fake_message(), "") == 0);
}

#endif
