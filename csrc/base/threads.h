/* The compute pool: one per CPU device, the caller is one of its threads.
 *
 * hl_pool_run hands out blocks by an atomic counter, so which thread runs a block is open and how the work is cut is
 * not: kernels must not depend on the thread. Workers spin at most 20 us after work and then sleep on a futex; no
 * OpenMP, so that fork and other libraries' pools are safe. After a fork the child's pool has no threads and makes
 * new ones at its next run. */
#ifndef HL_BASE_THREADS_H
#define HL_BASE_THREADS_H

#include <stdbool.h>

#include "base/status.h"

typedef struct hl_pool hl_pool;
typedef void (*hl_pool_fn)(void *context, int64_t block, int thread);

/* n_threads 0: what HOTLOOP_NUM_THREADS, the affinity mask and the cgroup quota leave. */
hl_status hl_pool_create(int n_threads, HL_GIVE hl_pool **out_pool);
void hl_pool_destroy(HL_TAKE hl_pool *pool);
int hl_pool_threads(const hl_pool *pool);
/* Runs fn(context, b, thread) for b in [0, n_blocks), thread in [0, hl_pool_threads); returns when all are done.
 * One caller at a time; the caller takes part as thread 0. n_blocks 1 or one thread: no synchronisation at all. */
void hl_pool_run(hl_pool *pool, int64_t n_blocks, hl_pool_fn fn, void *context);
/* Puts every worker to sleep now: call before a foreign library starts threads of its own. */
void hl_pool_park(hl_pool *pool);

/* Blocking threads for loaders: never spin. */
typedef struct hl_thread hl_thread;
hl_status hl_thread_start(void (*fn)(void *), void *context, HL_GIVE hl_thread **out_thread);
void hl_thread_join(HL_TAKE hl_thread *thread);

#endif
