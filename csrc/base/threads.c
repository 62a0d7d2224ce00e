/* The compute pool.
 *
 * `owner` says whose run the workers serve: everything below it belongs to that caller. It holds
 * the process as well, since a fork may copy a pool whose owner stays behind.
 *
 * `remaining` counts down from n_blocks; who takes it from r > 0 to r - 1 owns block n_blocks - r.
 * That alone makes the job valid for the taker: it cannot end before his block has run, for the
 * caller waits until `pending` blocks are reported, so a thread that comes late, or looks at an old
 * job, finds nothing to take and needs no epoch, no check-in and no barrier. A run of which the
 * caller does all the blocks before a worker is awake costs no wait at all, which is what keeps
 * more threads than processors harmless.
 *
 * Two sleepers, each by the same rule: announce (n_sleeping, caller_sleeps), look once more, sleep;
 * the other side changes what is looked at, then reads the announcement. All four accesses are
 * sequentially consistent, so one of the two sees the other.
 *
 * Rejected: callers in a queue (a hand-over takes as long as a run of a small model, and a caller
 * who waits leaves a core to nobody), a mutex and a condition (2 to 10 us a run), a barrier of all
 * threads (waits for the thread that the system just took away), work stealing (the blocks are
 * even, and few). */
#include "base/threads.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/float_mode.h"
#include "base/log.h"
#include "base/os.h"

enum { SPIN_NS = 50000, LOOKS_PER_CLOCK = 16 };

typedef struct pool_worker {
    hl_pool *pool;
    int index; /* from 1; the caller is 0 */
    hl_os_thread thread;
} pool_worker;

struct hl_pool {
    _Alignas(HL_ALIGN) _Atomic int64_t owner; /* 1 + the owner's fork count; 0: nobody's run */

    /* One line: a worker that takes its first block gets the job with it. */
    _Alignas(HL_ALIGN) _Atomic int64_t remaining;
    int64_t n_blocks;
    hl_pool_fn fn;
    void *context;
    uint64_t float_mode; /* of the caller */

    _Alignas(HL_ALIGN) _Atomic int64_t pending;
    _Atomic uint32_t caller_sleeps;

    _Alignas(HL_ALIGN) _Atomic int32_t n_sleeping;
    _Atomic uint32_t wake_sequence;
    atomic_bool is_ending;

    _Alignas(HL_ALIGN) int n_threads;
    int n_workers;      /* running: n_threads - 1, fewer if a forked child got fewer */
    int64_t spin_ns;    /* 0 when there are more threads than processors */
    int64_t fork_count; /* of the process that the workers live in */
    pool_worker workers[];
};

static void run_blocks(hl_pool *pool, int thread)
{
    int64_t left = atomic_fetch_sub_explicit(&pool->remaining, 1, memory_order_acquire);
    if (left <= 0) return;
    const hl_pool_fn fn = pool->fn;
    void *const context = pool->context;
    const int64_t n_blocks = pool->n_blocks;
    int64_t n_done = 0;
    if (thread > 0) hl_float_mode_set(pool->float_mode);
    do {
        fn(context, n_blocks - left, thread);
        n_done++;
        left = atomic_fetch_sub_explicit(&pool->remaining, 1, memory_order_acquire);
    } while (left > 0);
    if (atomic_fetch_sub(&pool->pending, n_done) == n_done && atomic_load(&pool->caller_sleeps)) {
        atomic_store(&pool->caller_sleeps, 0);
        hl_os_futex_wake(&pool->caller_sleeps, 1);
    }
}

static bool has_work(hl_pool *pool)
{
    return atomic_load(&pool->remaining) > 0;
}

static bool has_ended(hl_pool *pool)
{
    return atomic_load(&pool->pending) == 0;
}

/* True as soon as `is_true`; false when the time is over. */
static bool spin_until(hl_pool *pool, bool (*is_true)(hl_pool *))
{
    if (pool->spin_ns == 0) return is_true(pool);
    int64_t deadline = 0;
    for (;;) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (is_true(pool)) return true;
            hl_os_cpu_relax();
        }
        int64_t now = hl_os_time_ns();
        if (deadline == 0) deadline = now + pool->spin_ns;
        if (now >= deadline) return false;
    }
}

static void *run_worker(void *context)
{
    const pool_worker *worker = context;
    hl_pool *pool = worker->pool;
    while (!atomic_load(&pool->is_ending)) {
        if (spin_until(pool, has_work)) {
            run_blocks(pool, worker->index);
            continue;
        }
        uint32_t sequence = atomic_load(&pool->wake_sequence);
        atomic_fetch_add(&pool->n_sleeping, 1);
        if (!has_work(pool) && !atomic_load(&pool->is_ending))
            hl_os_futex_wait(&pool->wake_sequence, sequence, -1);
        atomic_fetch_sub(&pool->n_sleeping, 1);
    }
    return NULL;
}

static void wake_workers(hl_pool *pool, int64_t n_wanted)
{
    atomic_fetch_add(&pool->wake_sequence, 1);
    hl_os_futex_wake(&pool->wake_sequence,
                     n_wanted < pool->n_workers ? (int)n_wanted : pool->n_workers);
}

static hl_status start_workers(hl_pool *pool)
{
    pool->fork_count = hl_os_fork_count();
    pool->n_workers = 0;
    while (pool->n_workers < pool->n_threads - 1) {
        pool_worker *worker = &pool->workers[pool->n_workers];
        worker->pool = pool;
        worker->index = pool->n_workers + 1;
        HL_TRY(hl_os_thread_start(run_worker, worker, &worker->thread));
        pool->n_workers++;
    }
    return HL_OK;
}

/* In a forked child: the parent's workers are not here, and may have been counted in anything. */
static void revive_pool(hl_pool *pool)
{
    atomic_store(&pool->remaining, 0);
    atomic_store(&pool->pending, 0);
    atomic_store(&pool->caller_sleeps, 0);
    atomic_store(&pool->n_sleeping, 0);
    hl_status status = start_workers(pool);
    if (status != HL_OK)
        hl_log(HL_LOG_WARNING, "threads: a forked process runs on %d of %d threads (%s)",
               pool->n_workers + 1, pool->n_threads, hl_status_message());
}

static hl_status choose_thread_count(int n_threads, int n_cpus, int *out_count)
{
    *out_count = n_threads;
    if (n_threads < 0 || n_threads > HL_POOL_THREADS_MAX) {
        return hl_status_set(HL_ERROR_CONFIG, "threads: must be 0 to %d, got %d",
                             HL_POOL_THREADS_MAX, n_threads);
    }
    if (n_threads > 0) return HL_OK;
    *out_count = n_cpus < HL_POOL_THREADS_MAX ? n_cpus : HL_POOL_THREADS_MAX;
    const char *text = getenv("HOTLOOP_NUM_THREADS");
    if (!text || !*text) return HL_OK;
    char *end;
    long cap = strtol(text, &end, 10);
    if (*end != '\0' || cap < 1) {
        return hl_status_set(HL_ERROR_CONFIG,
                             "HOTLOOP_NUM_THREADS: must be a whole number from 1, got '%s'", text);
    }
    if (cap < *out_count) *out_count = (int)cap;
    return HL_OK;
}

hl_status hl_pool_create(int n_threads, hl_pool **out_pool)
{
    *out_pool = NULL;
    hl_status status = HL_OK;
    int n_cpus = hl_os_cpu_count();
    HL_TRY(choose_thread_count(n_threads, n_cpus, &n_threads));
    void *zeroed;
    HL_TRY(hl_alloc_zero(sizeof(hl_pool) + (size_t)n_threads * sizeof(pool_worker), &zeroed));
    hl_pool *pool = zeroed;
    pool->n_threads = n_threads;
    pool->spin_ns = n_threads > n_cpus ? 0 : SPIN_NS;
    HL_GOTO(start_workers(pool));
    *out_pool = pool;
    pool = NULL;
cleanup:
    hl_pool_destroy(pool);
    return status;
}

void hl_pool_destroy(hl_pool *pool)
{
    if (!pool) return;
    if (pool->fork_count == hl_os_fork_count()) {
        atomic_store(&pool->is_ending, true);
        wake_workers(pool, pool->n_workers);
        for (int i = 0; i < pool->n_workers; i++) hl_os_thread_join(pool->workers[i].thread);
    }
    hl_free(pool);
}

int hl_pool_threads(const hl_pool *pool)
{
    return pool->n_threads;
}

/* An owner of another process than this one has been left behind by a fork. */
static bool take_workers(hl_pool *pool)
{
    int64_t mine = 1 + hl_os_fork_count();
    int64_t owner = atomic_load_explicit(&pool->owner, memory_order_relaxed);
    return owner != mine &&
           atomic_compare_exchange_strong_explicit(&pool->owner, &owner, mine, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* Blocks [first, n_blocks), by the owner and the workers. */
static void share_blocks(hl_pool *pool, int64_t first, int64_t n_blocks, hl_pool_fn fn,
                         void *context)
{
    if (pool->fork_count != hl_os_fork_count()) revive_pool(pool);
    pool->fn = fn;
    pool->context = context;
    pool->n_blocks = n_blocks;
    pool->float_mode = hl_float_mode_get();
    atomic_store_explicit(&pool->pending, n_blocks - first, memory_order_relaxed);
    atomic_store(&pool->remaining, n_blocks - first);
    if (atomic_load(&pool->n_sleeping) > 0) wake_workers(pool, n_blocks - first - 1);
    run_blocks(pool, 0);
    while (!spin_until(pool, has_ended)) {
        atomic_store(&pool->caller_sleeps, 1);
        if (!has_ended(pool)) hl_os_futex_wait(&pool->caller_sleeps, 1, -1);
    }
    atomic_store_explicit(&pool->caller_sleeps, 0, memory_order_relaxed);
}

void hl_pool_run(hl_pool *pool, int64_t n_blocks, hl_pool_fn fn, void *context)
{
    int64_t first = 0;
    for (; first < n_blocks; first++) {
        bool shares = pool->n_threads > 1 && n_blocks - first > 1 && take_workers(pool);
        if (shares) break;
        fn(context, first, 0);
    }
    if (first == n_blocks) return;
    share_blocks(pool, first, n_blocks, fn, context);
    atomic_store_explicit(&pool->owner, 0, memory_order_release);
}

struct hl_thread {
    void (*fn)(void *);
    void *context;
    hl_os_thread thread;
    int64_t fork_count;
};

static void *run_thread(void *context)
{
    const hl_thread *thread = context;
    thread->fn(thread->context);
    return NULL;
}

hl_status hl_thread_start(void (*fn)(void *), void *context, hl_thread **out_thread)
{
    *out_thread = NULL;
    hl_status status = HL_OK;
    void *zeroed;
    HL_TRY(hl_alloc_zero(sizeof(hl_thread), &zeroed));
    hl_thread *thread = zeroed;
    thread->fn = fn;
    thread->context = context;
    thread->fork_count = hl_os_fork_count();
    HL_GOTO(hl_os_thread_start(run_thread, thread, &thread->thread));
    *out_thread = thread;
    thread = NULL;
cleanup:
    hl_free(thread);
    return status;
}

void hl_thread_join(hl_thread *thread)
{
    if (!thread) return;
    if (thread->fork_count == hl_os_fork_count()) hl_os_thread_join(thread->thread);
    hl_free(thread);
}
