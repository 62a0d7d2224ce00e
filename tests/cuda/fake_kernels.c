/* The kernels of kernels/cuda, and generated ones, emulated, for the emulated driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/emu/emu.h"
#include "tests/cuda/fake_driver.h"

enum { MAX_PARAMS = 64 };

static const char *run_kernel(void *context, const hl_fake_launch *launch, void *const *params)
{
    hl_emu_dim grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    hl_emu_dim block = {launch->block[0], launch->block[1], launch->block[2]};
    if (hl_emu_launch(context, grid, block, launch->shared_bytes, (void **)params) == 0)
        return NULL;
    return hl_emu_error();
}

static void register_kernel(const hl_emu_kernel *kernel)
{
    size_t bytes[MAX_PARAMS];
    int n = hl_emu_param_count(kernel);
    for (int k = 0; k < n && k < MAX_PARAMS; k++) bytes[k] = hl_emu_param_bytes(kernel, k);
    hl_fake_kernel(hl_emu_name(kernel), run_kernel, (void *)kernel, n, bytes);
    hl_fake_kernel_bound(hl_emu_name(kernel), (unsigned)hl_emu_max_threads(kernel));
}

static void register_new(void)
{
    const hl_emu_kernel *kernel;
    while ((kernel = hl_emu_take_new())) register_kernel(kernel);
}

/* By a file that is gone when it is loaded. Its kernels come by the library's constructors
 * (emu/twin.h). */
static bool load_library(const void *image, size_t bytes)
{
    char path[] = "/tmp/hl-generated-XXXXXX";
    void *library = NULL;
    int fd = mkstemp(path);
    if (fd < 0) return false;
    bool is_written = write(fd, image, bytes) == (ssize_t)bytes;
    close(fd);
    if (is_written) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (is_written && !library) fprintf(stderr, "a generated kernel: %s\n", dlerror());
    unlink(path);
    if (library) register_new();
    return library != NULL;
}

void hl_fake_kernel_restore(const char *name)
{
    register_kernel(hl_emu_find(name));
}

void hl_fake_kernels_register(void)
{
    hl_fake_loader(load_library);
    register_new();
}
