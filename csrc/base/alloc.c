/* Allocation. A 64-byte header in front of each block holds its size, so that free can count; the
 * block ends where the system's block ends, so that a sanitizer sees the first byte beyond it. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/os.h"

typedef struct block_header {
    _Alignas(HL_ALIGN) size_t bytes;
} block_header;
_Static_assert(sizeof(block_header) == HL_ALIGN, "a block must start on a cache line");

static _Atomic int64_t current_bytes, peak_bytes, n_live, n_total;
static hl_fault alloc_fault;

static void count_block(size_t bytes)
{
    int64_t now = atomic_fetch_add_explicit(&current_bytes, (int64_t)bytes, memory_order_relaxed) +
                  (int64_t)bytes;
    int64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now)) continue;
    atomic_fetch_add_explicit(&n_live, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_total, 1, memory_order_relaxed);
}

/* Large blocks lie in large pages, where the system has them on request: a pass over activations
 * else looks up a page for every 4 KB. */
enum { LARGE_PAGE = 2 << 20, LARGE_BLOCK = 4 << 20 };

static int allocate(size_t total, void **out_raw)
{
    if (total < LARGE_BLOCK) return posix_memalign(out_raw, HL_ALIGN, total);
    int error = posix_memalign(out_raw, LARGE_PAGE, total);
    if (!error) hl_os_want_large_pages(*out_raw, total / LARGE_PAGE * LARGE_PAGE);
    return error;
}

/* Under AddressSanitizer all that is not written is NaN, whatever the type of float: also what lies
 * between values in an arena, which no other tool knows from what was written. A kernel that reads
 * it and multiplies it by zero is found by that, not by a run in many whose memory held a NaN. */
static void fill_with_nan(void *raw, size_t total)
{
#ifdef __SANITIZE_ADDRESS__
    memset(raw, 0xFF, total);
#else
    (void)raw, (void)total;
#endif
}

hl_status hl_alloc(size_t bytes, void **out_ptr)
{
    *out_ptr = NULL;
    if (bytes == 0) return HL_OK;
    size_t total;
    void *raw = NULL;
    bool failed = hl_fault_take(&alloc_fault) ||
                  !hl_add_size(bytes, sizeof(block_header), &total) || allocate(total, &raw) != 0;
    if (failed) {
        return hl_status_set(HL_ERROR_MEMORY,
                             "memory: the system must have what is asked for, got a request for "
                             "%zu bytes beside %lld in use",
                             bytes, (long long)atomic_load(&current_bytes));
    }
    fill_with_nan(raw, total);
    block_header *header = raw;
    header->bytes = bytes;
    count_block(bytes);
    *out_ptr = header + 1;
    return HL_OK;
}

hl_status hl_alloc_zero(size_t bytes, void **out_ptr)
{
    HL_TRY(hl_alloc(bytes, out_ptr));
    if (bytes > 0) memset(*out_ptr, 0, bytes);
    return HL_OK;
}

void hl_free(void *ptr)
{
    if (!ptr) return;
    block_header *header = (block_header *)ptr - 1;
    atomic_fetch_sub_explicit(&current_bytes, (int64_t)header->bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
    free(header);
}

/* Room for twice as many. Under AddressSanitizer a short list has room for no more than was asked
 * for, so that every element that is added moves it: a pointer into one that is kept while it may
 * grow is then found by the first test that comes by, not by the one that adds the 9th element. */
static int64_t choose_capacity(int64_t capacity, int64_t n_min)
{
#ifdef __SANITIZE_ADDRESS__
    enum { MOST = 2048 }; /* a longer one would take tests quadratic time */
    if (n_min <= MOST) return n_min;
#endif
    int64_t n_new;
    if (!hl_mul_dim(capacity, 2, &n_new) || n_new < n_min) n_new = n_min;
    return n_new < 8 ? 8 : n_new;
}

hl_status hl_alloc_grow(void **ptr, int64_t *capacity, int64_t n_min, size_t element_bytes)
{
    if (n_min <= *capacity) return HL_OK;
    int64_t n_new = choose_capacity(*capacity, n_min);
    size_t bytes;
    if (!hl_mul_size((size_t)n_new, element_bytes, &bytes)) {
        return hl_status_set(HL_ERROR_SHAPE,
                             "memory: a size must fit in 64 bits, got %lld elements of %zu bytes",
                             (long long)n_new, element_bytes);
    }
    void *grown;
    HL_TRY(hl_alloc(bytes, &grown));
    if (*capacity > 0) memcpy(grown, *ptr, (size_t)*capacity * element_bytes);
    hl_free(*ptr);
    *ptr = grown;
    *capacity = n_new;
    return HL_OK;
}

hl_status hl_strdup(const char *text, char **out_text)
{
    *out_text = NULL;
    if (!text) return HL_OK;
    size_t bytes = strlen(text) + 1;
    void *copy;
    HL_TRY(hl_alloc(bytes, &copy));
    *out_text = memcpy(copy, text, bytes);
    return HL_OK;
}

void hl_alloc_stats_read(hl_alloc_stats *out_stats)
{
    out_stats->current_bytes = atomic_load(&current_bytes);
    out_stats->peak_bytes = atomic_load(&peak_bytes);
    out_stats->n_live = atomic_load(&n_live);
    out_stats->n_total = atomic_load(&n_total);
}

void hl_alloc_peak_reset(void)
{
    atomic_store(&peak_bytes, atomic_load(&current_bytes));
}

int64_t hl_alloc_fault(int64_t k, bool sticky)
{
    return hl_fault_set(&alloc_fault, k, sticky);
}
