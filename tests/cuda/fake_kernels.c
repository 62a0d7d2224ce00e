/* The kernels of kernels/cuda, emulated, for the emulated driver. */
#include "tests/cuda/emu/emu.h"
#include "tests/cuda/fake_driver.h"

enum { MOST_PARAMS = 64 };

static const char *run_kernel(void *context, const hl_fake_launch *launch, void *const *params)
{
    hl_emu_dim grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    hl_emu_dim block = {launch->block[0], launch->block[1], launch->block[2]};
    if (hl_emu_launch(context, grid, block, launch->shared_bytes, (void **)params) == 0)
        return NULL;
    return hl_emu_error();
}

void hl_fake_kernels_register(void)
{
    const hl_emu_kernel *kernel;
    for (int i = 0; (kernel = hl_emu_at(i)); i++) {
        size_t bytes[MOST_PARAMS];
        int n = hl_emu_param_count(kernel);
        for (int k = 0; k < n && k < MOST_PARAMS; k++) bytes[k] = hl_emu_param_bytes(kernel, k);
        hl_fake_kernel(hl_emu_name(kernel), run_kernel, (void *)kernel, n, bytes);
    }
}
