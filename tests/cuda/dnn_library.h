/* The fake cuDNN as a test asks it: the calls of fake_cudnn.h in the library that a device loads.
 */
#ifndef HL_TESTS_CUDA_DNN_LIBRARY_H
#define HL_TESTS_CUDA_DNN_LIBRARY_H

#include <dlfcn.h>
#include <stdlib.h>

#include "tests/c/check.h"
#include "tests/cuda/fake_cudnn.h"
#include "tests/cuda/fake_device.h"

static hl_fake_dnn_reset_fn dnn_reset;
static hl_fake_dnn_fail_fn dnn_fail;
static hl_fake_dnn_counts_fn dnn_counts;

static inline void dnn_library_find(void)
{
    void *library = dlopen(FAKE_DNN, RTLD_NOW);
    CHECK(library != NULL);
    void *symbols[] = {dlsym(library, "hl_fake_dnn_reset"), dlsym(library, "hl_fake_dnn_fail"),
                       dlsym(library, "hl_fake_dnn_get_counts")};
    memcpy(&dnn_reset, &symbols[0], sizeof dnn_reset);
    memcpy(&dnn_fail, &symbols[1], sizeof dnn_fail);
    memcpy(&dnn_counts, &symbols[2], sizeof dnn_counts);
}

/* A device whose library is set up so; closing it, all that the library gave is back. */
static inline hl_device *dnn_device_open(const hl_fake_dnn_config *config)
{
    dnn_reset(config);
    setenv("HOTLOOP_CUDNN_PATH", FAKE_DNN, 1);
    return fake_device_open(NULL);
}

static inline void dnn_device_close(hl_device *device)
{
    fake_device_close(device);
    CHECK_INT(dnn_counts().live, 0);
    CHECK(strcmp(hl_fake_message(), "") == 0);
}

#endif
