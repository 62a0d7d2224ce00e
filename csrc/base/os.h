/* Operating system services. The implementations are os_linux.c (time, processor, threads),
 * os_linux_file.c and os_linux_library.c; no other file of the core calls the system. */
#ifndef HL_BASE_OS_H
#define HL_BASE_OS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"

int64_t hl_os_time_ns(void); /* monotonic */
int hl_os_cpu_count(void);   /* usable: affinity and cgroup quota, at least 1 */
int64_t hl_os_process_id(void);
/* A hint that this memory is gone through in order, so that the system may give it large pages. */
void hl_os_want_large_pages(void *at, size_t bytes);
/* False only when the system says that there is no such process. */
bool hl_os_process_alive(int64_t process_id);
/* How many forks lie between this process and the first one: what was stamped with another count
 * belongs to a process whose threads do not exist here. */
int64_t hl_os_fork_count(void);
/* 64 bits that no other process draws; for names, not for secrets. */
uint64_t hl_os_entropy(void);
/* The system's words for an error number. */
void hl_os_error_text(int error, char *out_text, size_t bytes);

/* Fault hook of the fallible calls below (thread start, hl_os_file_*, hl_os_directory_*,
 * hl_os_library_open): the k-th from now fails with `error`, once or, if sticky, with all later
 * ones; k = 0 turns it off. Returns how many calls were seen since the last call. */
int64_t hl_os_fault(int64_t k, bool sticky, int error);
/* For os_*.c alone: the error number that this call must fail with, or 0. */
int hl_os_fault_take(void);

/* A thread with every signal blocked that may be blocked: signals belong to the user's threads. */
typedef struct hl_os_thread {
    uint64_t handle;
} hl_os_thread;
hl_status hl_os_thread_start(void *(*fn)(void *), void *context, hl_os_thread *out_thread);
void hl_os_thread_join(hl_os_thread thread);
void hl_os_thread_yield(void);

/* Sleeps while *word == expected; false when timeout_ns (negative: none) passed. May wake for no
 * reason: look again. */
bool hl_os_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
void hl_os_futex_wake(_Atomic uint32_t *word, int n_threads);

static inline void hl_os_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Mutex and condition that survive a fork: in the child a mutex that another thread of the parent
 * held is free (what it guards may then be half changed; the guarded code must bear that). A
 * mutex of static storage is {0}. */
typedef struct hl_mutex {
    _Atomic uint32_t word;
} hl_mutex;
typedef struct hl_cond hl_cond;
hl_status hl_mutex_create(HL_GIVE hl_mutex **out_mutex);
void hl_mutex_destroy(HL_TAKE hl_mutex *mutex);
void hl_mutex_lock(hl_mutex *mutex);
void hl_mutex_unlock(hl_mutex *mutex);
hl_status hl_cond_create(HL_GIVE hl_cond **out_cond);
void hl_cond_destroy(HL_TAKE hl_cond *cond);
/* Wait may return for no reason: stand in a loop over what is waited for. */
void hl_cond_wait(hl_cond *cond, hl_mutex *mutex);
/* false when timeout_ns passed. */
bool hl_cond_wait_for(hl_cond *cond, hl_mutex *mutex, int64_t timeout_ns);
void hl_cond_broadcast(hl_cond *cond);

/* Files: each returns 0 or the system's error number. Descriptors are closed on exec. */
typedef struct hl_os_file {
    int descriptor; /* -1: none */
} hl_os_file;
int hl_os_directory_open(const char *path, hl_os_file *out_directory);
/* Where names begin that no '/' stands before: for opening, not to be closed. */
hl_os_file hl_os_directory_current(void);
/* With the parents that are missing, for the user alone; 0 where it is there already. */
int hl_os_directory_create(const char *path);
int hl_os_directory_sync(hl_os_file directory);
/* Calls fn for each name until it returns false. */
int hl_os_directory_list(hl_os_file directory, bool (*fn)(void *context, const char *name),
                         void *context);
/* Creates `name`, which must not exist (a symbolic link exists), for writing, mode 0600, and takes
 * a lock that ends with the process. */
int hl_os_file_create(hl_os_file directory, const char *name, hl_os_file *out_file);
/* An existing regular file (EISDIR, EINVAL: another kind), for reading, and its size. */
int hl_os_file_open(hl_os_file directory, const char *name, hl_os_file *out_file,
                    int64_t *out_bytes);
int hl_os_file_read(hl_os_file file, void *data, size_t bytes); /* all of it, else EIO */
int hl_os_file_read_at(hl_os_file file, int64_t at, void *data, size_t bytes); /* the same */
/* Lets the system read so much ahead, if it will. */
void hl_os_file_expect(hl_os_file file, int64_t at, int64_t bytes);
/* Removes a regular file if no living process holds hl_os_file_create's lock; best effort. */
void hl_os_file_sweep(hl_os_file directory, const char *name);
int hl_os_file_reserve(hl_os_file file, int64_t bytes);
int hl_os_file_write(hl_os_file file, const void *data, size_t bytes); /* all of it */
/* 0666 less the process's umask; stays as it is where the umask cannot be read. */
int hl_os_file_publish(hl_os_file file);
int hl_os_file_sync(hl_os_file file);
int hl_os_file_close(hl_os_file file);
int hl_os_file_rename(hl_os_file directory, const char *from, const char *to);
int hl_os_file_remove(hl_os_file directory, const char *name);

/* Shared libraries. One that was opened stays in the process after close: drivers leave threads and
 * exit handlers behind. */
typedef struct hl_os_library {
    void *handle; /* NULL: none */
} hl_os_library;
/* By path, or by name through the system's search. with_load false: only if the process has it
 * already. On failure the system's words are in out_why. */
bool hl_os_library_open(const char *name, bool with_load, hl_os_library *out_library, char *out_why,
                        size_t bytes);
void *hl_os_library_symbol(hl_os_library library, const char *name); /* NULL: it has none */
/* Where it was found; "" if the system does not say. */
void hl_os_library_path(hl_os_library library, char *out_path, size_t bytes);
void hl_os_library_close(hl_os_library *library);

/* Instruction sets the CPU and the operating system offer. Tiles of AMX want the system's leave,
 * which is asked for the process, once and for all its threads. */
typedef struct hl_os_cpu {
    char name[64];
    bool avx2;   /* with fma and f16c */
    bool avx512; /* f, bw, dq, vl */
    bool avx512_bf16;
    bool amx; /* tiles of bfloat16 */
} hl_os_cpu;
void hl_os_cpu_read(hl_os_cpu *out_cpu);

#endif
