/* An emulated CUDA driver, for tests: the calls of kernels/cuda/driver.def under their own names,
 * so that it can fill the table of a test in C, or stand as a library of its own for Python
 * (HOTLOOP_CUDA_PATH).
 *
 * It is as late as the contract allows: a stream runs only when something waits for it, so work
 * that lacks an event or a wait reads stale data here, where a GPU would only sometimes. Device
 * memory is closed to the host except while device work runs; a block ends at a page that is never
 * open, is filled with NaN when new, and its address is not used again when it is freed. Pinned
 * memory is read when the work runs, pageable memory at the call, which counts as a wait. A graph
 * replays in another legal order each time. A kernel's code is loaded when something first depends
 * on it, an attribute or a launch, and a capture is too late for that. What a driver would refuse
 * is refused, with a sentence in hl_fake_message. */
#ifndef HL_TESTS_CUDA_FAKE_DRIVER_H
#define HL_TESTS_CUDA_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_fake_config {
    int n_devices, arch, cuda; /* 1, 90, 13000 */
    size_t memory_bytes;       /* of each device; 1 GiB */
    size_t context_bytes;      /* what a context takes of it; 64 MiB */
    int n_multiprocessors;     /* 4 */
    int memory_khz;            /* 1, of one byte: so slow that it is worth while to save a read; -1:
                                  the driver does not know */
    bool takes_code;           /* a GPU's machine code is loaded too, though it cannot run */
} hl_fake_config;
/* A new machine; what lived in the old one is forgotten. A zero means the default, n_devices -1
 * none. Kernels stay registered. */
void hl_fake_reset(const hl_fake_config *config);

/* ---- failures -------------------------------------------------------------------------------- */

/* The k-th call from now fails with `error`, once or, if sticky, with all later ones; 0: none.
 * Calls that give back do so all the same. Returns how many calls were seen since the last call. */
int64_t hl_fake_fail(int64_t k, bool sticky, CUresult error);
/* Every call of this name fails, until NULL. */
void hl_fake_fail_call(const char *symbol, CUresult error);
/* The symbol of the last call that was made to fail; NULL: none since hl_fake_fail. */
const char *hl_fake_failed_call(void);

/* Calls this function in the k-th call from now, once, as another thread might do something then;
 * 0: none. Whether the last one was called. */
bool hl_fake_hook(int64_t k, void (*hook)(void *), void *context);

/* Asked in every call from now; an answer other than 0 is a complaint: "<symbol> with <what>". Both
 * must live on. NULL: no longer asked. */
void hl_fake_forbid(int (*is_held)(void), const char *what);

/* ---- what was seen --------------------------------------------------------------------------- */

typedef struct hl_fake_live {
    int contexts, pushed, libraries, memory, pinned, streams, events, graphs, execs;
} hl_fake_live;
hl_fake_live hl_fake_get_live(void);
int hl_fake_live_sum(void);
int64_t hl_fake_calls(const char *symbol); /* since reset; NULL: all */
/* Times the host waited for the device, since reset. */
int64_t hl_fake_syncs(void);
/* Copies of pageable host memory, since reset: the driver may wait for the stream to make one. */
int64_t hl_fake_pageable(void);
/* The first complaint since reset or hl_fake_message_clear; "": none. */
const char *hl_fake_message(void);
void hl_fake_message_clear(void);

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct hl_fake_launch {
    unsigned grid[3], block[3], shared_bytes;
} hl_fake_launch;
/* Runs the kernel with device memory open. Returns NULL, or what went wrong: the device is then
 * lost. params: as cuLaunchKernel has them, copies of what was given at the launch. */
typedef const char *(*hl_fake_kernel_fn)(void *context, const hl_fake_launch *launch,
                                         void *const *params);
/* Makes a kernel known by its extern "C" name; the strings and sizes are copied. */
void hl_fake_kernel(const char *name, hl_fake_kernel_fn fn, void *context, int n_params,
                    const size_t *param_bytes);
/* The most threads of a block that a known kernel may be launched with; 1024 until it is said. */
void hl_fake_kernel_bound(const char *name, unsigned max_threads);
/* How a shared library of fake_nvrtc's becomes kernels: load makes them known by hl_fake_kernel, or
 * returns false. Until it is set such a library is no code. */
void hl_fake_loader(bool (*load)(const void *image, size_t bytes));
/* All kernels of kernels/cuda, by the emulation in emu/ (fake_kernels.c). */
void hl_fake_kernels_register(void);
/* One of them, after a test put its own in its place. */
void hl_fake_kernel_restore(const char *name);

/* ---- for fake libraries ---------------------------------------------------------------------- */

/* Work of a library's on a stream: runs with device memory open, on a copy of what `data` holds,
 * and takes so many milliseconds by the events' clock. Returns NULL, or what went wrong. */
typedef const char *(*hl_fake_work_fn)(void *data);
CUresult hl_fake_submit(CUstream stream, double ms, hl_fake_work_fn run, const void *data,
                        size_t bytes);
bool hl_fake_is_device(const void *ptr, size_t bytes); /* wholly inside one live block */
bool hl_fake_is_capturing(CUstream stream);
bool hl_fake_has_context(void);
void hl_fake_complain(const char *what);

/* Device memory open to the host, for a test that looks into it: begin and end may nest. */
void hl_fake_open_begin(void);
void hl_fake_open_end(void);

#ifdef __cplusplus
}
#endif

#endif
