/* Where a plan's batches come from, and whose lie in the session's slots. */
#ifndef HL_PLAN_SOURCE_H
#define HL_PLAN_SOURCE_H

#include "plan/session.h"

/* Copies of sources, before the rest of the plan. */
void hl_plan_free_sources(hl_plan *plan);
/* Does the plan's feed fill this input? */
bool hl_plan_is_fed(const hl_plan *plan, int32_t input);
/* The slots, at the addresses that the plan was bound to, hold this plan's batches from now on;
 * what was given by hand before is 0. */
hl_status hl_plan_take_slots(hl_plan *plan);
/* They hold nobody's: loader threads end, a step that was left in the middle is lost. */
void hl_plan_release_slots(hl_session *session);

#endif
