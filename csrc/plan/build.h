/* Makes a plan of a graph, and again where its kernels turn out to take other nodes. */
#ifndef HL_PLAN_BUILD_H
#define HL_PLAN_BUILD_H

#include "plan/session.h"

/* Makes the plan again of its source, for who has entered its session and before its first step.
 * Nothing of it is tuned then. On failure it is as it was. */
hl_status hl_plan_rebuild(hl_plan *plan);
/* The plan will not be made again. */
void hl_plan_drop_source(hl_plan *plan);

#endif
