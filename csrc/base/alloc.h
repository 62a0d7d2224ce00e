/* Allocation: the only way the core gets memory.
 *
 * Every block is 64-byte aligned (one cache line, one zmm register), counted, and can be made to
 * fail: the tests fail the k-th allocation of every public entry. Sizes are size_t bytes made by
 * the checked functions below from int64 dims; an overflow is HL_ERROR_SHAPE, never a small block.
 * The counters are process-wide, because the peak that a user is told is that of all devices and
 * plans together. */
#ifndef HL_BASE_ALLOC_H
#define HL_BASE_ALLOC_H

#include <stdbool.h>

#include "base/status.h"

enum { HL_ALIGN = 64 };

/* *out_ptr is NULL when bytes is 0 or on failure (HL_ERROR_MEMORY; the text says how much was
 * asked for). */
hl_status hl_alloc(size_t bytes, HL_GIVE void **out_ptr);
hl_status hl_alloc_zero(size_t bytes, HL_GIVE void **out_ptr);
/* Grows *ptr from *capacity to at least n_min elements (doubling); on failure *ptr stays valid. */
hl_status hl_alloc_grow(void **ptr, int64_t *capacity, int64_t n_min, size_t element_bytes);
/* NULL is allowed. */
void hl_free(HL_TAKE void *ptr);
/* A NULL text gives NULL. */
hl_status hl_strdup(const char *text, HL_GIVE char **out_text);

typedef struct hl_alloc_stats {
    int64_t current_bytes; /* live now, without headers */
    int64_t peak_bytes;    /* since the last reset */
    int64_t n_live;
    int64_t n_total; /* successful allocations since the process began */
} hl_alloc_stats;
void hl_alloc_stats_read(hl_alloc_stats *out_stats);
void hl_alloc_peak_reset(void);

/* Fault hook: the k-th allocation from now fails (k = 1 is the next), once or, if sticky, it and
 * all later ones; k = 0 turns it off. Returns how many allocations were seen since the last
 * call. */
int64_t hl_alloc_fault(int64_t k, bool sticky);

/* Checked size arithmetic: false on overflow, *out untouched. */
static inline bool hl_mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}
static inline bool hl_add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}
static inline bool hl_mul_dim(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}
static inline int64_t hl_round_up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

#endif
