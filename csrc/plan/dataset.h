/* Where a plan's batches come from, and which plan owns the session's slots. */
#ifndef HL_PLAN_DATASET_H
#define HL_PLAN_DATASET_H

#include "plan/session.h"

/* Frees the copies of datasets, before the rest of the plan. */
void hl_plan_free_datasets(hl_plan *plan);
/* Does the plan's feed fill this input? */
bool hl_plan_is_fed(const hl_plan *plan, int32_t input);
/* Takes the slots from the plan's feed, whose loaders end, and gives those that the plan owns
 * back. */
void hl_plan_unbind_feed(hl_plan *plan);
void hl_plan_bind_feed(hl_plan *plan);
/* Makes the plan the owner of the slots, at the addresses that it was bound to; inputs that were
 * given by hand before are 0. */
hl_status hl_plan_take_slots(hl_plan *plan);
/* Takes the slots from their owner: its loader threads end, a step left in the middle is lost. */
void hl_plan_release_slots(hl_session *session);

#endif
