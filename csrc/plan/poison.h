/* Poison: what a region is going to write begins as NaN, in builds with AddressSanitizer.
 *
 * A kernel that reads what nobody wrote gives the right result as long as chance has numbers there:
 * zeros of new pages, or what the step before left. Here its results are NaN, in any test that
 * compares them. Memory of integers is -1, which an index is not. */
#ifndef HL_PLAN_POISON_H
#define HL_PLAN_POISON_H

#include "plan/internal.h"

#ifdef __SANITIZE_ADDRESS__
/* Values that first live in the region, and scratch of its tasks. */
void hl_poison_region(const hl_plan *plan, const hl_region *region, void **args);
/* Scratch of the thread that is going to run a block of the task. */
void hl_poison_thread(const hl_plan *plan, int32_t task, const hl_launch *launch);
#else
static inline void hl_poison_region(const hl_plan *plan, const hl_region *region, void **args)
{
    (void)plan, (void)region, (void)args;
}
static inline void hl_poison_thread(const hl_plan *plan, int32_t task, const hl_launch *launch)
{
    (void)plan, (void)task, (void)launch;
}
#endif

#endif
