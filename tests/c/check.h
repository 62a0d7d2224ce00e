/* The tests' harness: one program per file, main ends with `return CHECK_DONE();`.
 *
 * A failed CHECK prints one line (place, condition, the case set by check_case) and goes on; the
 * last line says how to run this test alone. check_walk_faults fails each allocation or each system
 * call of an entry in turn, once and for good, and holds it to: the right error, no leak, and
 * success once nothing fails any more. */
#ifndef TESTS_C_CHECK_H
#define TESTS_C_CHECK_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"
#include "base/status.h"

#if defined(__SANITIZE_THREAD__)
enum { CHECK_UNDER_TSAN = 1, CHECK_UNDER_SANITIZER = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { CHECK_UNDER_TSAN = 0, CHECK_UNDER_SANITIZER = 1 };
#else
enum { CHECK_UNDER_TSAN = 0, CHECK_UNDER_SANITIZER = 0 };
#endif

enum { CHECK_MAX_LINES = 20 };

/* How the tests of a folder are run. */
#ifndef CHECK_REPRO
#define CHECK_REPRO "make -C tests/c run"
#endif

static atomic_int check_failures;
static char check_case_text[256];

/* The case that the next checks belong to, so that a failure names its numbers. */
__attribute__((format(printf, 1, 2), unused)) static void check_case(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(check_case_text, sizeof check_case_text, format, args);
    va_end(args);
}

__attribute__((format(printf, 3, 4), unused)) static void check_fail(const char *file, int line,
                                                                     const char *format, ...)
{
    if (atomic_fetch_add(&check_failures, 1) >= CHECK_MAX_LINES) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%s:%d: %s%s%s\n", file, line, text, check_case_text[0] ? "; case: " : "",
           check_case_text);
    fflush(stdout);
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) check_fail(__FILE__, __LINE__, "%s", #condition);                        \
    } while (0)

#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long check_got = (long long)(got), check_want = (long long)(want);                    \
        if (check_got != check_want)                                                               \
            check_fail(__FILE__, __LINE__, "%s: got %lld, want %lld", #got, check_got,             \
                       check_want);                                                                \
    } while (0)

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        if ((call) != HL_OK) check_fail(__FILE__, __LINE__, "%s: %s", #call, hl_status_message()); \
    } while (0)

/* The call fails with this code and its message holds this text. */
#define CHECK_ERROR(call, code, text)                                                              \
    do {                                                                                           \
        hl_status check_status = (call);                                                           \
        if (check_status != (code) || !strstr(hl_status_message(), (text)))                        \
            check_fail(__FILE__, __LINE__, "%s: got %s '%s', want %s '%s'", #call,                 \
                       hl_status_name(check_status), hl_status_message(), hl_status_name(code),    \
                       (text));                                                                    \
    } while (0)

/* Of many random cases take every one, but every fifth under sanitizers, which need ten times as
 * long and look at what a case touches, not at its numbers. HOTLOOP_PROOF: every one. What a case
 * takes from its number (seed % 2, seed % 3) still comes in all forms. */
__attribute__((unused)) static int check_stride(void)
{
    return CHECK_UNDER_SANITIZER && !getenv("HOTLOOP_PROOF") ? 5 : 1;
}

/* Says so in the output: a test that silently does nothing looks like one that passed. */
#define CHECK_SKIP(reason) printf("SKIP %s: %s\n", __func__, (reason))

/* A test that starts no thread is left out under the thread sanitizer (THREADLESS in the Makefile):
 * there the linker sends pthread_create here. */
#ifdef CHECK_THREADLESS
int __wrap_pthread_create(void *thread, const void *attributes, void *(*start)(void *), void *arg);
int __real_pthread_create(void *thread, const void *attributes, void *(*start)(void *), void *arg);
int __wrap_pthread_create(void *thread, const void *attributes, void *(*start)(void *), void *arg)
{
    check_fail(__FILE__, __LINE__, "a thread was started: take this test out of THREADLESS");
    return __real_pthread_create(thread, attributes, start, arg);
}
#endif

static inline int check_done(const char *file)
{
    int n_failures = atomic_load(&check_failures);
    if (n_failures == 0) return 0;
    const char *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    printf("%d checks failed; repro: " CHECK_REPRO " TESTS=%.*s\n", n_failures,
           (int)strcspn(name, "."), name);
    return 1;
}
#define CHECK_DONE() check_done(__FILE__)

typedef enum check_fault { CHECK_FAULT_ALLOC, CHECK_FAULT_OS } check_fault;

/* Must free what it got and return the first error. */
typedef hl_status (*check_entry)(void *context);

__attribute__((unused)) static int64_t check_set_fault(check_fault kind, int64_t k, bool sticky,
                                                       int os_error)
{
    if (kind == CHECK_FAULT_ALLOC) return hl_alloc_fault(k, sticky);
    return hl_os_fault(k, sticky, os_error);
}

/* Returns how many places were made to fail. `code` is what each failure must give; HL_OK: any,
 * success included (a best-effort call may be the one that failed). */
__attribute__((unused)) static int64_t
check_walk_faults(check_fault kind, hl_status code, int os_error, check_entry entry, void *context)
{
    int64_t n_sites = 0;
    for (int sticky = 0; sticky < 2; sticky++) {
        for (int64_t k = 1;; k++) {
            hl_alloc_stats before, after;
            hl_alloc_stats_read(&before);
            check_set_fault(kind, k, sticky, os_error);
            hl_status status = entry(context);
            int64_t n_seen = check_set_fault(kind, 0, false, 0);
            hl_alloc_stats_read(&after);
            check_case("fault kind %d, call %lld, sticky %d", kind, (long long)k, sticky);
            CHECK_INT(after.n_live, before.n_live);
            CHECK_INT(after.current_bytes, before.current_bytes);
            if (n_seen < k) {
                CHECK_OK(status);
                break;
            }
            if (code != HL_OK) CHECK_INT(status, code);
            n_sites++;
        }
    }
    check_case("%s", "");
    return n_sites;
}

#endif
