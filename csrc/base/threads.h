/* The compute pool: one per CPU device, the caller is one of its threads.
 *
 * Callers may be many, each of a model of its own: the workers serve one of them at a time, run by
 * run. Who finds them taken begins with its blocks alone, and gives the workers what is left as
 * soon as they are free; so nobody waits for another's run, and nobody is left without progress.
 *
 * hl_pool_run hands out blocks by an atomic counter, so which thread runs a block is open and how
 * the work is cut is not: kernels must not depend on the thread. Workers spin at most 50 us after
 * work and then sleep on a futex; no OpenMP, so that fork and other libraries' pools are safe.
 * After a fork the child's pool has no threads and makes new ones at its next run. */
#ifndef HL_BASE_THREADS_H
#define HL_BASE_THREADS_H

#include <stdbool.h>

#include "base/status.h"

typedef struct hl_pool hl_pool;
typedef void (*hl_pool_fn)(void *context, int64_t block, int thread);

enum { HL_POOL_THREADS_MAX = 1024 };

/* n_threads 0: what affinity mask and cgroup quota leave, at most HOTLOOP_NUM_THREADS. */
hl_status hl_pool_create(int n_threads, HL_GIVE hl_pool **out_pool);
/* NULL is allowed. */
void hl_pool_destroy(HL_TAKE hl_pool *pool);
int hl_pool_threads(const hl_pool *pool);
/* Runs fn(context, b, thread) for b in [0, n_blocks), thread in [0, hl_pool_threads); returns when
 * all are done. From any thread, but not from fn; the caller takes part as its run's thread 0, and
 * its floating-point mode is that of all.
 * n_blocks 1 or one thread: no synchronisation at all. */
void hl_pool_run(hl_pool *pool, int64_t n_blocks, hl_pool_fn fn, void *context);

/* Blocking threads for loaders: never spin. A thread must not outlive what its context points to;
 * join waits for it (in a forked child, where it does not exist, join only frees). */
typedef struct hl_thread hl_thread;
hl_status hl_thread_start(void (*fn)(void *), void *context, HL_GIVE hl_thread **out_thread);
/* NULL is allowed. */
void hl_thread_join(HL_TAKE hl_thread *thread);

#endif
