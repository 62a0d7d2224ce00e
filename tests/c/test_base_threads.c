/* The pool: every block exactly once, on threads with numbers of their own, at any thread count, in
 * a forked child too; mutex, condition and futex beneath it. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/float_mode.h"
#include "base/threads.h"
#include "tests/c/check.h"

enum { MAX_BLOCKS = 1000 };

typedef struct job {
    atomic_int visits[MAX_BLOCKS];
    int plain[MAX_BLOCKS]; /* written by blocks, read by the caller: the run orders them */
    atomic_int busy[16];   /* per thread number */
    int n_threads;
    int64_t spin;
} job;

static void visit_block(void *context, int64_t block, int thread)
{
    job *j = context;
    CHECK(thread >= 0 && thread < j->n_threads);
    CHECK_INT(atomic_fetch_add(&j->busy[thread], 1), 0);
    atomic_fetch_add(&j->visits[block], 1);
    j->plain[block]++;
    for (volatile int64_t i = 0; i < j->spin; i++) continue;
    atomic_fetch_sub(&j->busy[thread], 1);
}

static void check_runs(hl_pool *pool, int n_runs, int64_t spin)
{
    static job j;
    memset(&j, 0, sizeof j);
    j.n_threads = hl_pool_threads(pool);
    j.spin = spin;
    int want[MAX_BLOCKS] = {0};
    unsigned seed = 1;
    for (int run = 0; run < n_runs; run++) {
        seed = seed * 1103515245 + 12345;
        int64_t n_blocks = (seed >> 16) % (run % 50 == 0 ? MAX_BLOCKS : 12);
        hl_pool_run(pool, n_blocks, visit_block, &j);
        for (int64_t b = 0; b < n_blocks; b++) {
            want[b]++;
            if (j.plain[b] != want[b] || atomic_load(&j.visits[b]) != want[b]) {
                check_case("run %d of %lld blocks", run, (long long)n_blocks);
                CHECK_INT(j.plain[b], want[b]);
                CHECK_INT(j.visits[b], want[b]);
                return;
            }
        }
        if (run % 500 == 200) usleep(200); /* workers have gone to sleep */
    }
}

static void test_runs(void)
{
    const int counts[] = {1, 2, 3, 7, 16};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hl_pool *pool;
        CHECK_OK(hl_pool_create(counts[i], &pool));
        CHECK_INT(hl_pool_threads(pool), counts[i]);
        hl_pool_run(pool, 0, visit_block, NULL);
        check_runs(pool, counts[i] <= 2 ? 20000 : 4000, 0);
        check_runs(pool, 500, 2000);
        usleep(200); /* they sleep while the pool is destroyed */
        hl_pool_destroy(pool);
    }
    hl_pool_destroy(NULL);
}

static void hold_block(void *context, int64_t block, int thread)
{
    atomic_int *n_here = context;
    (void)block;
    (void)thread;
    /* Ends only when all are here: so the pool really runs that many at a time. */
    atomic_fetch_add(n_here, 1);
    int64_t deadline = hl_os_time_ns() + 20000000000;
    while (atomic_load(n_here) % 7 != 0 && hl_os_time_ns() < deadline) usleep(100);
    CHECK(hl_os_time_ns() < deadline);
}

static void check_all_take_part(void *context)
{
    hl_pool *pool = context;
    for (int i = 0; i < 5; i++) {
        atomic_int n_here = 0;
        hl_pool_run(pool, 7, hold_block, &n_here);
        CHECK_INT(n_here, 7);
    }
    hl_pool_destroy(pool);
}

static void test_all_take_part(void)
{
    hl_pool *pool;
    CHECK_OK(hl_pool_create(7, &pool));
    check_all_take_part(pool);
}

/* ---- the caller's floating-point mode -------------------------------------------------------- */

typedef struct mode_run {
    atomic_int n_here;
    double halves[7]; /* of the smallest normal number, which is subnormal */
} mode_run;

static void halve_block(void *context, int64_t block, int thread)
{
    mode_run *run = context;
    volatile float smallest = 0x1p-126f, half = 0.5f;
    hold_block(&run->n_here, block, thread); /* all threads take part */
    run->halves[block] = (double)(smallest * half);
}

static void test_float_mode(void)
{
    hl_pool *pool;
    CHECK_OK(hl_pool_create(7, &pool));
    const uint64_t before = hl_float_mode_get();
    for (int i = 0; i < 6; i++) { /* by turns: a run leaves nothing behind in a worker */
        mode_run run = {0};
        bool flushes = i % 2 && HL_FLOAT_MODE_FLUSHES;
        if (i % 2) CHECK(hl_float_mode_flush() == before);
        hl_pool_run(pool, 7, halve_block, &run);
        hl_float_mode_set(before);
        for (int b = 0; b < 7; b++) CHECK(run.halves[b] == (flushes ? 0 : 0x1p-127));
    }
    hl_pool_destroy(pool);
}

static void test_counts(void)
{
    hl_pool *pool;
    int n_cpus = hl_os_cpu_count();
    CHECK(n_cpus >= 1);
    unsetenv("HOTLOOP_NUM_THREADS");
    CHECK_OK(hl_pool_create(0, &pool));
    CHECK_INT(hl_pool_threads(pool), n_cpus);
    hl_pool_destroy(pool);
    setenv("HOTLOOP_NUM_THREADS", "1", 1);
    CHECK_OK(hl_pool_create(0, &pool));
    CHECK_INT(hl_pool_threads(pool), 1);
    hl_pool_destroy(pool);
    setenv("HOTLOOP_NUM_THREADS", "9999", 1);
    CHECK_OK(hl_pool_create(0, &pool));
    CHECK_INT(hl_pool_threads(pool), n_cpus);
    hl_pool_destroy(pool);
    const char *const wrong[] = {"0", "-2", "two", "2x", " "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("HOTLOOP_NUM_THREADS", wrong[i], 1);
        CHECK_ERROR(hl_pool_create(0, &pool), HL_ERROR_CONFIG, wrong[i]);
        CHECK(!pool);
    }
    unsetenv("HOTLOOP_NUM_THREADS");
    CHECK_ERROR(hl_pool_create(-1, &pool), HL_ERROR_CONFIG, "got -1");
    CHECK_ERROR(hl_pool_create(HL_POOL_THREADS_MAX + 1, &pool), HL_ERROR_CONFIG, "got 1025");
}

/* Runs fn in a forked child; true when it ended by itself and found nothing wrong. */
static bool runs_in_child(void (*fn)(void *), void *context)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        atomic_store(&check_failures, 0);
        fn(context);
        _exit(atomic_load(&check_failures) ? 1 : 0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void use_pool(void *pool)
{
    check_runs(pool, 2000, 0);
    hl_pool_destroy(pool);
}

static void use_pool_and_fork(void *pool)
{
    check_runs(pool, 200, 0);
    CHECK(runs_in_child(use_pool, pool));
    check_runs(pool, 200, 0);
    hl_pool_destroy(pool);
}

static void destroy_pool(void *pool)
{
    hl_pool_destroy(pool);
}

static void test_fork(void)
{
    hl_pool *pool;
    CHECK_OK(hl_pool_create(3, &pool));
    CHECK(runs_in_child(use_pool, pool)); /* before first use */
    check_runs(pool, 1000, 0);
    CHECK(runs_in_child(use_pool_and_fork, pool));
    CHECK(runs_in_child(destroy_pool, pool));
    check_runs(pool, 1000, 0);
    hl_pool_destroy(pool);
    CHECK_OK(hl_pool_create(7, &pool));
    CHECK(runs_in_child(check_all_take_part, pool));
    hl_pool_destroy(pool);
}

/* Threads that use the pool at the same time: each run is whole, and none waits for ever. */
static void *run_jobs(void *context)
{
    hl_pool *pool = context;
    job *j = calloc(1, sizeof *j);
    j->n_threads = hl_pool_threads(pool);
    enum { BLOCKS = 24 };
    for (int run = 1; run <= (CHECK_UNDER_TSAN ? 300 : 2000); run++) {
        hl_pool_run(pool, BLOCKS, visit_block, j);
        for (int b = 0; b < BLOCKS; b++)
            if (j->plain[b] != run) check_fail(__FILE__, __LINE__, "block %d of run %d", b, run);
    }
    free(j);
    return NULL;
}

static void test_many_callers(void)
{
    enum { CALLERS = 4 };
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        pthread_t threads[CALLERS];
        hl_pool *pool;
        CHECK_OK(hl_pool_create(n_threads, &pool));
        for (int i = 0; i < CALLERS; i++)
            CHECK_INT(pthread_create(&threads[i], NULL, run_jobs, pool), 0);
        for (int i = 0; i < CALLERS; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
        hl_pool_destroy(pool);
    }
}

typedef struct runner {
    hl_pool *pool;
    atomic_bool is_over;
} runner;

static void keep_running(void *context)
{
    runner *r = context;
    while (!atomic_load(&r->is_over)) check_runs(r->pool, 20, 100);
}

/* The fork falls into the middle of a run of another thread. */
static void test_fork_in_run(void)
{
    runner r = {0};
    CHECK_OK(hl_pool_create(2, &r.pool));
    hl_thread *thread;
    CHECK_OK(hl_thread_start(keep_running, &r, &thread));
    for (int i = 0; i < 50; i++) {
        check_case("fork %d", i);
        CHECK(runs_in_child(use_pool, r.pool));
    }
    check_case("%s", "");
    atomic_store(&r.is_over, true);
    hl_thread_join(thread);
    hl_pool_destroy(r.pool);
}

typedef struct shared {
    hl_mutex *mutex;
    hl_cond *cond;
    int64_t count;
    atomic_bool is_held;
    hl_thread *thread;
} shared;

static void hold_mutex(void *context)
{
    shared *s = context;
    hl_mutex_lock(s->mutex);
    atomic_store(&s->is_held, true);
    while (atomic_load(&s->is_held)) usleep(100);
    hl_mutex_unlock(s->mutex);
}

static void lock_in_child(void *context)
{
    shared *s = context;
    hl_mutex_lock(s->mutex);
    hl_mutex_unlock(s->mutex);
    hl_mutex_lock(s->mutex);
    hl_thread_join(s->thread); /* not here: only frees */
}

static void create_locks(shared *s)
{
    memset(s, 0, sizeof *s);
    CHECK_OK(hl_mutex_create(&s->mutex));
    CHECK_OK(hl_cond_create(&s->cond));
}

static void destroy_locks(shared *s)
{
    hl_mutex_destroy(s->mutex);
    hl_cond_destroy(s->cond);
}

static void test_mutex_fork(void)
{
    shared s;
    create_locks(&s);
    CHECK_OK(hl_thread_start(hold_mutex, &s, &s.thread));
    while (!atomic_load(&s.is_held)) usleep(100);
    if (!CHECK_UNDER_TSAN) CHECK(runs_in_child(lock_in_child, &s));
    atomic_store(&s.is_held, false);
    hl_thread_join(s.thread);
    destroy_locks(&s);
}

static void count_up(void *context)
{
    shared *s = context;
    for (int i = 0; i < 20000; i++) {
        hl_mutex_lock(s->mutex);
        s->count++;
        if (s->count % 1000 == 0) hl_cond_broadcast(s->cond);
        hl_mutex_unlock(s->mutex);
    }
}

static void test_mutex(void)
{
    shared s;
    create_locks(&s);
    hl_thread *threads[5];
    for (int i = 0; i < 5; i++) CHECK_OK(hl_thread_start(count_up, &s, &threads[i]));
    hl_mutex_lock(s.mutex);
    while (s.count < 100000) hl_cond_wait(s.cond, s.mutex);
    int64_t before = hl_os_time_ns();
    while (hl_cond_wait_for(s.cond, s.mutex, 20000000)) continue;
    CHECK(hl_os_time_ns() - before >= 20000000);
    hl_mutex_unlock(s.mutex);
    for (int i = 0; i < 5; i++) hl_thread_join(threads[i]);
    CHECK_INT(s.count, 100000);
    destroy_locks(&s);
}

static hl_status make_everything(void *context)
{
    (void)context;
    hl_status status = HL_OK;
    hl_pool *pool = NULL;
    hl_mutex *mutex = NULL;
    hl_cond *cond = NULL;
    hl_thread *thread = NULL;
    shared s = {0};
    HL_GOTO(hl_pool_create(4, &pool));
    check_runs(pool, 20, 0);
    HL_GOTO(hl_mutex_create(&mutex));
    HL_GOTO(hl_cond_create(&cond));
    s.mutex = mutex;
    s.cond = cond;
    HL_GOTO(hl_thread_start(count_up, &s, &thread));
cleanup:
    hl_thread_join(thread);
    hl_cond_destroy(cond);
    hl_mutex_destroy(mutex);
    hl_pool_destroy(pool);
    return status;
}

static void test_faults(void)
{
    CHECK_INT(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, make_everything, NULL), 8);
    CHECK_INT(check_walk_faults(CHECK_FAULT_OS, HL_ERROR_DEVICE, 11, make_everything, NULL), 8);
}

/* A child that gets no threads still computes, on the caller alone. */
static void run_without_threads(void *pool)
{
    hl_os_fault(1, true, 11);
    check_runs(pool, 200, 0);
    hl_pool_destroy(pool);
}

static void test_fork_faults(void)
{
    hl_pool *pool;
    CHECK_OK(hl_pool_create(3, &pool));
    CHECK(runs_in_child(run_without_threads, pool));
    hl_pool_destroy(pool);
}

static void read_signal_mask(void *context)
{
    pthread_sigmask(SIG_BLOCK, NULL, context);
}

/* Signals are for the user's threads. */
static void test_signals_blocked(void)
{
    sigset_t mask;
    sigemptyset(&mask);
    hl_thread *thread;
    CHECK_OK(hl_thread_start(read_signal_mask, &mask, &thread));
    hl_thread_join(thread);
    CHECK(sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM));
    CHECK(!sigismember(&mask, SIGSEGV));
}

static void test_cpu(void)
{
    hl_os_cpu cpu;
    hl_os_cpu_read(&cpu);
    CHECK(cpu.name[0] != '\0');
#if defined(__x86_64__)
    CHECK_INT(cpu.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    CHECK_INT(cpu.avx512, __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512dq"));
    CHECK_INT(cpu.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
    CHECK(!cpu.amx || cpu.avx512_bf16); /* the system may keep no tiles */
#endif
}

int main(void)
{
    test_cpu();
    test_counts();
    test_runs();
    test_all_take_part();
    test_float_mode();
    test_many_callers();
    test_mutex();
    test_mutex_fork();
    test_signals_blocked();
    test_faults();
    if (CHECK_UNDER_TSAN) {
        CHECK_SKIP("threads in a forked child are beyond the thread sanitizer");
    } else {
        test_fork();
        test_fork_in_run();
        test_fork_faults();
    }
    return CHECK_DONE();
}
