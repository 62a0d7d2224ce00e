/* Linux: time, processor, threads, locks. Locks are words and futexes rather than pthread's, for a
 * pthread mutex that some thread held at a fork is lost in the child; ours carries the fork count
 * in its word, and a count that is not the process's own means free. */
#define _GNU_SOURCE
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/alloc.h"
#include "base/fault.h"

static hl_fault os_fault;
static atomic_int os_fault_error;
static _Atomic int64_t fork_count;

int64_t hl_os_fault(int64_t k, bool sticky, int error)
{
    os_fault_error = error;
    return hl_fault_set(&os_fault, k, sticky);
}

int hl_os_fault_take(void)
{
    return hl_fault_take(&os_fault) ? os_fault_error : 0;
}

static void count_fork(void)
{
    atomic_fetch_add(&fork_count, 1);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

int64_t hl_os_fork_count(void)
{
    return atomic_load_explicit(&fork_count, memory_order_relaxed);
}

int64_t hl_os_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void hl_os_want_large_pages(void *at, size_t bytes)
{
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* kernels without it say so, and nothing is lost */
}

int64_t hl_os_process_id(void)
{
    return getpid();
}

bool hl_os_process_alive(int64_t process_id)
{
    if (process_id <= 0 || process_id > INT_MAX) return false;
    return kill((pid_t)process_id, 0) == 0 || errno != ESRCH;
}

uint64_t hl_os_entropy(void)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits) return bits;
    return (uint64_t)hl_os_time_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid() << 32;
}

void hl_os_error_text(int error, char *out_text, size_t bytes)
{
    char buffer[128];
    hl_text_copy(out_text, bytes, strerror_r(error, buffer, sizeof buffer));
}

/* The processor count. */

/* Text of a small system file; false when there is none. */
static bool read_text(const char *path, char *out_text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, out_text, bytes - 1);
    close(fd);
    out_text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static int count_affinity(void)
{
    for (int n_cpus = 1024; n_cpus <= 1 << 20; n_cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n_cpus);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)n_cpus);
        int failed = sched_getaffinity(0, bytes, set);
        int error = errno, count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (!failed) return count;
        if (error != EINVAL) break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* Whole CPUs that the group in `directory` may use; INT_MAX when it sets no limit. */
static int read_group_quota(const char *directory)
{
    char path[PATH_MAX + 32], text[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", directory);
    if (read_text(path, text, sizeof text)) {
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) return INT_MAX;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory);
        if (!read_text(path, text, sizeof text) || sscanf(text, "%lld", &quota) != 1)
            return INT_MAX;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory);
        if (!read_text(path, text, sizeof text) || sscanf(text, "%lld", &period) != 1)
            return INT_MAX;
    }
    if (quota <= 0 || period <= 0) return INT_MAX;
    long long cpus = quota / period;
    return cpus < 1 ? 1 : cpus > INT_MAX ? INT_MAX : (int)cpus;
}

/* The least quota from the group at root/path up to root. */
static int read_hierarchy_quota(const char *root, const char *path)
{
    char directory[PATH_MAX];
    size_t root_length = strlen(root);
    snprintf(directory, sizeof directory, "%s%s", root, path);
    int least = INT_MAX;
    for (;;) {
        int quota = read_group_quota(directory);
        if (quota < least) least = quota;
        char *slash = strrchr(directory, '/');
        if (!slash || (size_t)(slash - directory) < root_length) return least;
        *slash = '\0';
    }
}

static int read_quota(void)
{
    char text[4096];
    int least = INT_MAX;
    if (!read_text("/proc/self/cgroup", text, sizeof text)) return least;
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        /* hierarchy:controllers:path, "0::path" in version 2 */
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        controllers++;
        int quota = INT_MAX;
        if (*controllers == '\0')
            quota = read_hierarchy_quota("/sys/fs/cgroup", path);
        else if (!strcmp(controllers, "cpu") || !strncmp(controllers, "cpu,", 4))
            quota = read_hierarchy_quota("/sys/fs/cgroup/cpu", path);
        if (quota < least) least = quota;
    }
    return least;
}

int hl_os_cpu_count(void)
{
    int count = count_affinity(), quota = read_quota();
    if (quota < count) count = quota;
    return count < 1 ? 1 : count;
}

#if defined(__x86_64__)
static uint64_t read_saved_state_mask(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* The system keeps tiles for processes that have asked for it (the kernel's Documentation, x86,
 * xstate). */
static bool may_use_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void hl_os_cpu_read(hl_os_cpu *out_cpu)
{
    *out_cpu = (hl_os_cpu){.name = "x86-64"};
    unsigned a, b, c, d;
    if (__get_cpuid(0x80000000, &a, &b, &c, &d) && a >= 0x80000004) {
        unsigned words[13] = {0};
        for (unsigned leaf = 0; leaf < 3; leaf++) {
            unsigned *w = words + 4 * leaf;
            __get_cpuid(0x80000002 + leaf, w, w + 1, w + 2, w + 3);
        }
        const char *name = (const char *)words;
        while (*name == ' ') name++;
        hl_text_copy(out_cpu->name, sizeof out_cpu->name, name);
        size_t length = strlen(out_cpu->name);
        while (length > 0 && out_cpu->name[length - 1] == ' ') out_cpu->name[--length] = '\0';
    }
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return;
    bool has_fma = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX);
    uint64_t saved = read_saved_state_mask(); /* what the system keeps over a task switch */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    bool has_tiles = (d & bit_AMX_TILE) && (d & bit_AMX_BF16) && (saved & 0x60000) == 0x60000;
    unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    out_cpu->avx2 = has_fma && (b & bit_AVX2) && (saved & 0x06) == 0x06;
    out_cpu->avx512 = out_cpu->avx2 && (b & wide) == wide && (saved & 0xE6) == 0xE6;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d)) return;
    out_cpu->avx512_bf16 = out_cpu->avx512 && (a & bit_AVX512BF16);
    out_cpu->amx = out_cpu->avx512_bf16 && has_tiles && may_use_tiles();
}
#else
void hl_os_cpu_read(hl_os_cpu *out_cpu)
{
    *out_cpu = (hl_os_cpu){.name = "unknown"};
}
#endif

/* Threads. */

hl_status hl_os_thread_start(void *(*fn)(void *), void *context, hl_os_thread *out_thread)
{
    out_thread->handle = 0;
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int own_fault[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    for (size_t i = 0; i < sizeof own_fault / sizeof *own_fault; i++)
        sigdelset(&blocked, own_fault[i]);
    pthread_t thread;
    int error = hl_os_fault_take();
    if (!error) {
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
        error = pthread_create(&thread, NULL, fn, context);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (error) {
        char text[128];
        hl_os_error_text(error, text, sizeof text);
        return hl_status_set(HL_ERROR_DEVICE, "threads: the system must start a thread, got '%s'",
                             text);
    }
    pthread_setname_np(thread, "hotloop");
    out_thread->handle = (uint64_t)thread;
    return HL_OK;
}

void hl_os_thread_join(hl_os_thread thread)
{
    pthread_join((pthread_t)thread.handle, NULL);
}

void hl_os_thread_yield(void)
{
    sched_yield();
}

bool hl_os_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    long failed = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected,
                          timeout_ns < 0 ? NULL : &timeout, NULL, 0);
    return !(failed && errno == ETIMEDOUT);
}

void hl_os_futex_wake(_Atomic uint32_t *word, int n_threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n_threads, NULL, NULL, 0);
}

/* A mutex's word: fork count << 2 | state. */
enum { MUTEX_FREE, MUTEX_HELD, MUTEX_WAITED_FOR, MUTEX_STATE = 3 };

hl_status hl_mutex_create(hl_mutex **out_mutex)
{
    void *mutex;
    *out_mutex = NULL;
    HL_TRY(hl_alloc_zero(sizeof **out_mutex, &mutex));
    *out_mutex = mutex;
    return HL_OK;
}

void hl_mutex_destroy(hl_mutex *mutex)
{
    hl_free(mutex);
}

void hl_mutex_lock(hl_mutex *mutex)
{
    uint32_t era = (uint32_t)hl_os_fork_count() << 2;
    uint32_t state = MUTEX_HELD; /* once we slept others may sleep too: take it as waited for */
    uint32_t word = atomic_load_explicit(&mutex->word, memory_order_relaxed);
    for (;;) {
        if ((word & MUTEX_STATE) == MUTEX_FREE || (word & ~(uint32_t)MUTEX_STATE) != era) {
            if (atomic_compare_exchange_weak_explicit(&mutex->word, &word, era | state,
                                                      memory_order_acquire, memory_order_relaxed))
                return;
            continue;
        }
        state = MUTEX_WAITED_FOR;
        if (word != (era | state) &&
            !atomic_compare_exchange_weak_explicit(&mutex->word, &word, era | state,
                                                   memory_order_relaxed, memory_order_relaxed))
            continue;
        hl_os_futex_wait(&mutex->word, era | state, -1);
        word = atomic_load_explicit(&mutex->word, memory_order_relaxed);
    }
}

void hl_mutex_unlock(hl_mutex *mutex)
{
    uint32_t word = atomic_exchange_explicit(&mutex->word, MUTEX_FREE, memory_order_release);
    if ((word & MUTEX_STATE) == MUTEX_WAITED_FOR) hl_os_futex_wake(&mutex->word, 1);
}

/* A sleeper waits for the sequence to move on; it reads it under the mutex, so a broadcast after
 * that is never missed. */
struct hl_cond {
    _Atomic uint32_t sequence;
};

hl_status hl_cond_create(hl_cond **out_cond)
{
    void *cond;
    *out_cond = NULL;
    HL_TRY(hl_alloc_zero(sizeof **out_cond, &cond));
    *out_cond = cond;
    return HL_OK;
}

void hl_cond_destroy(hl_cond *cond)
{
    hl_free(cond);
}

void hl_cond_wait(hl_cond *cond, hl_mutex *mutex)
{
    hl_cond_wait_for(cond, mutex, -1);
}

bool hl_cond_wait_for(hl_cond *cond, hl_mutex *mutex, int64_t timeout_ns)
{
    uint32_t sequence = atomic_load(&cond->sequence);
    hl_mutex_unlock(mutex);
    bool in_time = hl_os_futex_wait(&cond->sequence, sequence, timeout_ns);
    hl_mutex_lock(mutex);
    return in_time;
}

void hl_cond_broadcast(hl_cond *cond)
{
    atomic_fetch_add(&cond->sequence, 1);
    hl_os_futex_wake(&cond->sequence, INT_MAX);
}
