/* An emulated GPU for tests: runs the kernels that kernels/cuda/prim.h made of .cu files under
 * HL_EMULATE. This is its face for tests and for the emulated driver; twin.h is the kernels' side.
 *
 * A block's threads are fibers of one host thread; a thread runs until it waits at a barrier or at
 * a collective of its warp, so which ready thread goes on is ours to choose: forward, reverse, or
 * shuffled by a seed. A kernel whose bits depend on the order lacks a barrier. Several host threads
 * take a block each. Whatever a kernel does wrong ends the launch with a sentence that names
 * kernel, block and thread; the process and the next launch go on. */
#ifndef HL_TESTS_EMU_H
#define HL_TESTS_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_emu_dim {
    unsigned x, y, z;
} hl_emu_dim;
typedef struct hl_emu_kernel hl_emu_kernel;
typedef struct hl_emu_counts {
    uint64_t launches, blocks, threads, switches;
} hl_emu_counts;

/* Order of blocks, warps and lanes; 2 and up: the seed of a shuffle, which is the same at any
 * number of host threads. */
enum { HL_EMU_FORWARD = 0, HL_EMU_REVERSE = 1 };
void hl_emu_set_order(uint32_t order);
/* Host threads; 0: as many as there are cores, at most 8 (the start value); 1: one block after
 * another, so that sums by atomics repeat. */
void hl_emu_set_workers(int n);

/* NULL when there is none. */
const hl_emu_kernel *hl_emu_find(const char *name);
/* In the order of names; NULL beyond the last. */
const hl_emu_kernel *hl_emu_at(int index);
/* One that has come since the last call; NULL: no more. */
const hl_emu_kernel *hl_emu_take_new(void);
const char *hl_emu_name(const hl_emu_kernel *kernel);
int hl_emu_max_threads(const hl_emu_kernel *kernel);
int hl_emu_param_count(const hl_emu_kernel *kernel);
size_t hl_emu_param_bytes(const hl_emu_kernel *kernel, int i);

/* args[i] points at the i-th parameter. 0, or -1 and hl_emu_error() says why. */
int hl_emu_launch(const hl_emu_kernel *kernel, hl_emu_dim grid, hl_emu_dim block,
                  size_t shared_bytes, void **args);
const char *hl_emu_error(void);
hl_emu_counts hl_emu_counters(void);

#ifdef __cplusplus
}
#endif
#endif
