/* The emulated driver as fakes of libraries see it, wherever it is. */
#ifndef HL_TESTS_CUDA_FAKE_HOOKS_H
#define HL_TESTS_CUDA_FAKE_HOOKS_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda/fake_driver.h"

static struct {
    CUresult (*submit)(CUstream, double, hl_fake_work_fn, const void *, size_t);
    bool (*is_device)(const void *, size_t);
    bool (*is_capturing)(CUstream);
    bool (*has_context)(void);
    void (*complain)(const char *);
} driver;

/* In a library that Python loaded, or in the program itself. */
__attribute__((constructor)) static void find_driver(void)
{
    void *library = dlopen("libcuda_fake.so", RTLD_NOLOAD | RTLD_NOW);
    if (!library) library = RTLD_DEFAULT;
    static const char *const names[] = {"hl_fake_submit", "hl_fake_is_device",
                                        "hl_fake_is_capturing", "hl_fake_has_context",
                                        "hl_fake_complain"};
    void *symbols[5];
    for (int i = 0; i < 5; i++) symbols[i] = dlsym(library, names[i]);
    _Static_assert(sizeof symbols == sizeof driver, "one pointer each");
    memcpy(&driver, symbols, sizeof driver);
}

/* Calls that can fail: the k-th does, or (sticky) it and all later ones. */
static struct {
    int64_t at, seen;
    bool sticky;
    int status;
} failure;

static inline int64_t fail_from(int64_t k, bool sticky, int status)
{
    int64_t seen = failure.seen;
    failure.at = k, failure.seen = 0, failure.sticky = sticky, failure.status = status;
    return seen;
}

static inline bool must_fail(void)
{
    failure.seen++;
    return failure.at &&
           (failure.seen == failure.at || (failure.sticky && failure.seen > failure.at));
}

#endif
