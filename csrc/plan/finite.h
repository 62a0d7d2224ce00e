/* Finite: what of a step is not finite, and where that began.
 *
 * A step runs task by task. Before a task the leaves that it reads are looked through, behind it
 * its results: how many elements are NaN, how many infinite, which one is the first. Behind a
 * segment the operands that decide about the step (HL_OP_DECIDES) are looked at: the loss, then
 * gradients, then their norm. From one that is not finite the way goes back over operands that are
 * not finite either, as far as there are some: there it began.
 *
 * The way back from a NaN is over NaN alone, to the node that made it, and from there over infinite
 * operands: an exponential that overflows is the beginning, not the division behind it. Constants
 * are no beginning of an infinity: they are written so, as in the masks of attention.
 *
 * A search through everything also finds the NaN that never comes to the loss, in the node that
 * makes it of operands without one. An infinity that does not come there is as it should be: the
 * logarithm of 0 behind a where, a mask. What the data or the weights hold counts where it arrives.
 *
 * With a loss scale other than 1 what is not finite behind the loss is the scale's, as for the
 * control block (ir/control.h), and is left alone.
 *
 * Rejected: counting nodes in the graph (they keep values alive, so that the plan is another one),
 * and looking on the device, which would be one more kernel for each of them, for what is rare. */
#ifndef HL_PLAN_FINITE_H
#define HL_PLAN_FINITE_H

#include "plan/internal.h"

/* A search in one step, whose micro-batches may be of several plans. */
typedef struct hl_finite hl_finite;

/* everything: NaN that do not come to the loss, too. is_scaled: the loss scale is not 1. */
hl_status hl_finite_create(bool everything, bool is_scaled, HL_GIVE hl_finite **out_finite);
/* NULL is allowed. */
void hl_finite_destroy(HL_TAKE hl_finite *finite);
/* Runs segments [first, end) of the plan on the operands of a slot, and looks. Waits for the
 * stream. */
hl_status hl_finite_run(hl_finite *finite, const hl_plan *plan, int first, int end, void **args,
                        hl_stream *stream);
/* What was found; its texts are the plan's. */
const hl_not_finite *hl_finite_found(const hl_finite *finite);

#endif
