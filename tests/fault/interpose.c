/* Calls of the system that fail, for processes that write checkpoints: a library to preload
 * (tests/fault/test_save_calls.py).
 *
 * FAULT=call:k:what: the k-th call of that kind on a file below FAULT_FOLDER, once the first
 * checkpoint is on disk, does what is said. A number is its errno; "short": a half is written;
 * "kill", "killed-after": the process ends before it, or behind it. Sockets are counted wherever.
 *
 * FAULT_COUNTS=file: it gets a line for each call that counts, its kind, and "failed" for the k-th.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_bool is_armed;
static atomic_long n_seen;
static char wanted[32], what[32];
static long number;
static const char *folder, *counts;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("FAULT");
    folder = getenv("FAULT_FOLDER");
    counts = getenv("FAULT_COUNTS");
    if (text && sscanf(text, "%31[^:]:%ld:%31s", wanted, &number, what) != 3) abort();
}

static bool is_within(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    return folder && n > 0 && (path[n] = 0, strncmp(path, folder, strlen(folder)) == 0);
}

static void note(const char *call)
{
    static int file = -1;
    static ssize_t (*real)(int, const void *, size_t);
    if (!counts) return;
    if (file < 0) file = open(counts, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    char line[40];
    int n = snprintf(line, sizeof line, "%s\n", call);
    if (real(file, line, (size_t)n) != n) abort();
}

static void end_process(void)
{
    raise(SIGKILL);
}

/* Whether this call is the one. */
static bool is_it(const char *call, int fd)
{
    if (!is_armed || !is_within(fd)) return false;
    note(call);
    if (strcmp(call, wanted) != 0 || atomic_fetch_add(&n_seen, 1) + 1 != number) return false;
    note("failed");
    if (strcmp(what, "kill") == 0) end_process();
    return true;
}

static bool is_of(const char *kind)
{
    return strcmp(what, kind) == 0;
}

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t n)
{
    REAL(ssize_t, "write", int, const void *, size_t);
    if (!is_it("write", fd)) return real(fd, data, n);
    if (is_of("short")) return real(fd, data, n > 1 ? n / 2 : n);
    if (is_of("killed-after")) {
        if (real(fd, data, n) < 0) abort();
        end_process();
    }
    errno = atoi(what);
    return -1;
}

int fsync(int fd)
{
    REAL(int, "fsync", int);
    if (!is_it("fsync", fd)) return real(fd);
    if (is_of("killed-after")) {
        real(fd);
        end_process();
    }
    errno = atoi(what);
    return -1;
}

int openat(int directory, const char *name, int flags, ...)
{
    REAL(int, "openat", int, const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    /* Files that were left behind are looked for at the best. */
    bool creates = directory >= 0 && flags & O_CREAT;
    if (!creates || !is_it("openat", directory)) return real(directory, name, flags, mode);
    if (is_of("killed-after")) {
        real(directory, name, flags, mode);
        end_process();
    }
    errno = atoi(what);
    return -1;
}

int renameat(int from, const char *old_name, int to, const char *new_name)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    bool now = is_it("renameat", from);
    if (now && is_of("killed-after")) {
        real(from, old_name, to, new_name);
        end_process();
    }
    if (now) {
        errno = atoi(what);
        return -1;
    }
    int status = real(from, old_name, to, new_name);
    if (status == 0 && strncmp(new_name, "step-", 5) == 0) is_armed = true;
    return status;
}

int posix_fallocate(int fd, off_t from, off_t bytes)
{
    REAL(int, "posix_fallocate", int, off_t, off_t);
    return is_it("posix_fallocate", fd) ? atoi(what) : real(fd, from, bytes);
}

int socket(int domain, int type, int protocol)
{
    REAL(int, "socket", int, int, int);
    note("socket");
    return real(domain, type, protocol);
}
