/* Queue: running plans on an asynchronous device, without waiting for it inside an epoch. A session
 * has one, through which its plans go one after another.
 *
 * Two streams of the session: batches are copied on one, computed on the other (some of it beside
 * that, plan/run.c; whoever waits for the second has waited for it, too). A slot is staging
 * memory that the feed fills, device memory that kernels read, and two events: `copied` lets
 * compute begin and gives the staging half back to the feed, `freed` lets the next copy begin. So
 * the caller is ahead of the device by as many batches as there are slots, and no further. Slots of
 * different plans lie over one another: where another plan's begin, the caller waits for the copies
 * of those before, and the next copy for the work that reads them.
 *
 * What segments launch is the same for a slot every time. Segments that follow one another on one
 * slot are deferred until the last of them is known, and are one piece of work: a step of one
 * micro-batch is begin, micro and apply at once. It is captured at its first run and replayed from
 * then on; a plan whose addresses moved captures again. Rejected: one capture for all slots with
 * the slot's address read from memory, which costs every kernel an indirection.
 *
 * Steps that run the same segments in neighbouring slots are deferred as well, until there are as
 * many as a burst holds: their batches are one copy, their launches one capture, and the host's
 * calls are a few for all of them. A plan with two slots has bursts of one. Steps that fill no
 * whole burst, at the end of a run or before a step of another plan, are launched one by one.
 *
 * The control block stays on the device. At the end of each burst its head is published: copied
 * into one of a few mirrors; before a mirror is used again the caller polls it. So it sees a stop
 * or a wrong index some steps late, which does no harm, because a stopped device changes nothing
 * any more and a window with a wrong index, or any after it, is not applied. */
#ifndef HL_PLAN_QUEUE_H
#define HL_PLAN_QUEUE_H

#include "plan/finite.h"
#include "plan/run.h"

typedef struct hl_queue hl_queue;

/* Steps to a burst: half of the slots at most, which are under way while the others are filled, and
 * no more than a slow GPU does in 20 ms, since what was queued cannot be stopped. A power of two:
 * so is a ring as a rule, and then no burst is cut short by its end. */
int32_t hl_queue_choose_burst(const hl_plan_info *info, int32_t n_slots);
/* Captures that a plan may have: places in plan->captured. */
int64_t hl_queue_count_captures(const hl_plan *plan);

/* Borrows the session's streams. */
hl_status hl_queue_create(const hl_streams *streams, hl_stream *copy, HL_GIVE hl_queue **out_queue);
/* Waits for what was queued. NULL is allowed. */
void hl_queue_destroy(HL_TAKE hl_queue *queue);
/* Events for so many slots. */
hl_status hl_queue_reserve(hl_queue *queue, int32_t n_slots);
/* Sets the two halves of the slots. Nothing may be under way. */
void hl_queue_set_slots(hl_queue *queue, void *slots, void *staging);
/* Where the control block lies. The host has written it, so the snapshot is out of date. */
void hl_queue_set_control(hl_queue *queue, hl_control *control);

/* The next calls are for this plan; steps of another one that were deferred are queued first. */
hl_status hl_queue_enter(hl_queue *queue, hl_plan *plan);
/* Waits for what was queued and drops the plan's captures. */
void hl_queue_leave(hl_queue *queue, hl_plan *plan);
/* Drops captures whose addresses have changed. */
void hl_queue_drop_captures(hl_queue *queue, hl_plan *plan);
/* Slots may be filled again, in any order, once the work that was queued is done. */
hl_status hl_queue_turn_slots(hl_queue *queue);
/* Until NULL is given, what is queued runs task by task, and the search looks at it. */
void hl_queue_set_finite(hl_queue *queue, hl_finite *finite);
/* Launches a run that ends in the middle of a window, before a batch is waited for. */
hl_status hl_queue_end_run(hl_queue *queue);
/* Returns when no batch waits in staging memory: the feed may write any slot. */
hl_status hl_queue_drain_copies(hl_queue *queue);
/* The next batch of the plan's feed into the plan's slot. */
hl_status hl_queue_take_batch(hl_queue *queue, bool *out_end);
/* The plan's segment on the plan's slot. */
void hl_queue_add_segment(hl_queue *queue, hl_segment segment);
hl_status hl_queue_end_step(hl_queue *queue);
/* Queues deferred steps that are complete on the device. */
hl_status hl_queue_flush(hl_queue *queue);
/* Waits until everything is done and polled. */
hl_status hl_queue_drain(hl_queue *queue);

/* The control block without its ring, as of the last step that was polled. */
const hl_control *hl_queue_snapshot(const hl_queue *queue);
/* Takes a new snapshot if the host has written the control block since the last one. */
hl_status hl_queue_refresh(hl_queue *queue);
/* Forgets the index out of range. */
hl_status hl_queue_clear_fault(hl_queue *queue);
/* Forgets the step that is not complete; in a window, permits the next one. */
hl_status hl_queue_give_up(hl_queue *queue, bool in_window);

#endif
