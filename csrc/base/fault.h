/* Fault counter: makes the k-th of a kind of calls fail, so that a test can visit every place where
 * one may. Always compiled in: one relaxed load per call, and the tested code is the shipped
 * code. */
#ifndef HL_BASE_FAULT_H
#define HL_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct hl_fault {
    _Atomic int64_t countdown; /* 0: off; 1: the next call fails */
    _Atomic int64_t n_seen;
    atomic_bool is_sticky;
} hl_fault;

static inline int64_t hl_fault_set(hl_fault *fault, int64_t k, bool sticky)
{
    atomic_store(&fault->countdown, 0);
    atomic_store(&fault->is_sticky, sticky);
    atomic_store(&fault->countdown, k);
    return atomic_exchange(&fault->n_seen, 0);
}

/* True: this call must fail. */
static inline bool hl_fault_take(hl_fault *fault)
{
    atomic_fetch_add_explicit(&fault->n_seen, 1, memory_order_relaxed);
    int64_t left = atomic_load_explicit(&fault->countdown, memory_order_relaxed);
    while (left > 0) {
        if (left == 1 && atomic_load(&fault->is_sticky)) return true;
        if (atomic_compare_exchange_weak(&fault->countdown, &left, left - 1)) return left == 1;
    }
    return false;
}

#endif
