/* The emulated driver as a library of its own, which HOTLOOP_CUDA_PATH names: hotloop opens it as
 * it would open libcuda. HL_FAKE describes the machine: "devices=0", "arch=60", "cuda=11040",
 * "memory=1048576", "multiprocessors=132", "code=1", "fail=cuMemAlloc_v2:2", with ',' between. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake_driver.h"

/* What is loaded later, generated kernels, finds the emulation here. */
static void show_symbols(void)
{
    Dl_info own;
    if (dladdr((void *)show_symbols, &own))
        dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

__attribute__((constructor)) static void set_up(void)
{
    show_symbols();
    hl_fake_config config = {0};
    const char *text = getenv("HL_FAKE");
    char fail[64] = "";
    int error = 0;
    for (const char *at = text; at && *at; at += strcspn(at, ","), at += *at == ',') {
        long long value;
        if (sscanf(at, "devices=%lld", &value) == 1)
            config.n_devices = value ? (int)value : -1;
        else if (sscanf(at, "arch=%lld", &value) == 1)
            config.arch = (int)value;
        else if (sscanf(at, "cuda=%lld", &value) == 1)
            config.cuda = (int)value;
        else if (sscanf(at, "multiprocessors=%lld", &value) == 1)
            config.n_multiprocessors = (int)value;
        else if (sscanf(at, "code=%lld", &value) == 1)
            config.takes_code = value != 0;
        else if (sscanf(at, "memory=%lld", &value) == 1)
            config.memory_bytes = (size_t)value;
        else if (sscanf(at, "fail=%63[^:]:%d", fail, &error) != 2)
            fprintf(stderr, "HL_FAKE: not understood: %s\n", at);
    }
    hl_fake_reset(&config);
    if (*fail) hl_fake_fail_call(fail, error);
    hl_fake_kernels_register();
}
