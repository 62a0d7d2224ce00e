/* Lets the kernels of a plan choose their algorithms. */
#ifndef HL_PLAN_TUNE_H
#define HL_PLAN_TUNE_H

#include "plan/session.h"

/* May the plan run? On an asynchronous device its kernels are tuned first. */
static inline bool hl_plan_is_tuned(const hl_plan *plan)
{
    return plan->n_tuned == plan->schedule.n_tasks && !plan->is_outdated;
}
/* Tunes the next task of a plan that is not tuned, or makes the plan again; for who has entered its
 * session, outside of a step. What lies in the arena is lost. out_waited: it may have taken its
 * time. */
hl_status hl_plan_tune_next(hl_plan *plan, bool *out_waited);

#endif
