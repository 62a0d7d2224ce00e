/* A launch and the block that a host thread runs of it: what emu.cpp and block.cpp share. */
#ifndef HL_TESTS_EMU_BLOCK_H
#define HL_TESTS_EMU_BLOCK_H

#include <setjmp.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/prim.h"

#if !defined(__x86_64__) && !defined(HL_EMU_UCONTEXT)
#define HL_EMU_UCONTEXT 1
#endif
#ifdef HL_EMU_UCONTEXT
#include <ucontext.h>
#endif

struct hl_emu_kernel {
    std::string name;
    unsigned max_threads;
    void (*f)();
    hl_emu::invoke_fn invoke;
    const size_t *sizes;
    int n_params;
};

namespace hl_emu
{

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    MAX_WARPS = MAX_THREADS / WARP,
    STACK_BYTES = 128 << 10,
    STACK_GUARD = 1 << 20, /* below a stack: wider than any frame that may jump over it */
    CANARY_BYTES = 64,
    DYNAMIC_MAX = 227 << 10, /* sm_90; the launcher's business below */
    STATIC_MAX = 48 << 10,
    MAX_SHARED = 128,
    ARENA_BYTES = DYNAMIC_MAX + STATIC_MAX + MAX_SHARED * CANARY_BYTES
};
static const unsigned char CANARY = 0xA5;

struct job {
    const hl_emu_kernel *kernel;
    void **args;
    hl_emu_dim grid;
    unsigned n_threads;
    size_t dynamic_bytes;
    uint32_t order;
    uint64_t n_blocks, multiplier, shift;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> has_failed{false};
    std::mutex lock;
    uint64_t failed_at = UINT64_MAX;
    std::string message;
};

struct fiber {
    thread_id id;
    op waits_for;
    uint32_t mask, votes;
    int arg;
    unsigned char value[16], result[16];
    place at;
    const tile *a, *b;
    tile *c;
    float *of_fragment; /* c of a product of fragments */
    void *sp, *stack;
#ifdef __SANITIZE_ADDRESS__
    void *fake_stack;
#endif
};

struct async_op {
    void *dst;
    const void *src;
    size_t bytes;
    int owner, group;
};

/* A barrier of n threads from `first` on. */
struct barrier_state {
    int first, n, n_waiting;
    place at;
};

/* All of one block; each host thread has its own. */
struct block {
    job *work;
    uint64_t position; /* of the block in the launch's order */
    fiber *running;    /* NULL: none */
    fiber threads[MAX_THREADS];
    uint32_t ready[MAX_WARPS], started[MAX_WARPS], at_barrier[MAX_WARPS], meeting[MAX_WARPS];
    /* Since when a warp has met no barrier, no collective; the last number that a barrier gave. */
    uint32_t epoch[MAX_WARPS], warp_epoch[MAX_WARPS], last_epoch;
    uint32_t done[MAX_WARPS], rng;
    int n_threads, n_warps, n_done;
    barrier_state barriers[MAX_WARPS + 1]; /* by the first warp; the last: of the whole block */
    bool failed;
    hl_emu_counts counts;
    std::vector<void *> free_stacks;
    shared_array shared[MAX_SHARED];
    int n_shared;
    std::vector<async_op> pending;
    int groups[MAX_THREADS];
    unsigned char *arena;
    size_t arena_used;
    std::vector<cell> cells;
    size_t cells_used;
    sigjmp_buf escape;
    void *signal_stack, *main_sp;
#ifdef HL_EMU_UCONTEXT
    ucontext_t main_context;
#endif
#ifdef __SANITIZE_ADDRESS__
    const void *main_bottom;
    size_t main_bytes;
    void *main_fake;
#endif
};

/* This host thread's; NULL before its first block. */
extern __thread block *now;

/* Takes blocks of the job, one after another, until none is left or one has failed. */
void run_blocks(job *work);
/* Frees what this host thread holds for its blocks. */
void stop_worker();
/* Once per process, before the first block. */
void install_handler();

} // namespace hl_emu

#endif
