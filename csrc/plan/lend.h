/* Lending: a batch is not copied where its rows lie in the data as they are.
 *
 * Rows that are gathered in order (an evaluation's, those of a pass over all data, a part of a long
 * sample) are the same bytes in a row in the dataset. Where they are read in the chain that gathers
 * them, and nowhere else, and nobody writes over them, the tasks of a block read them there: the
 * gather says for each block whether they lie so (hl_kernel.lend), and writes them where they do
 * not. The value keeps its place in the arena, for such blocks and for runs of one task alone.
 *
 * Rejected: slots of a batch that lie in the dataset, whose addresses would change with the step
 * and so would all that is bound to them; kernels that take an index, each its own. */
#ifndef HL_PLAN_LEND_H
#define HL_PLAN_LEND_H

#include "plan/internal.h"

/* Operands and results of a task that borrows. */
enum { HL_LEND_ARGS = 32 };

/* Finds who lends and who borrows, at most one value in each chain, the largest. */
hl_status hl_plan_find_lenders(hl_plan *plan);

/* A block's address of the value that is lent: rows [begin, ...) of the chain lie at `at`. */
static inline void *hl_lent_base(const hl_instr *lender, const void *at, int64_t begin)
{
    return (void *)((uintptr_t)at - (uintptr_t)(begin * lender->lent_bytes));
}

/* The arguments of a task with the lent value among them. */
static inline void *const *hl_lend_args(const hl_instr *borrower, void *const *args, int32_t n,
                                        void *base, void **room)
{
    for (int32_t j = 0; j < n; j++) room[j] = borrower->borrows >> j & 1 ? base : args[j];
    return room;
}

#endif
