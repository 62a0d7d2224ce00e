/* What a plan is made of, as numbers. */
#ifndef HL_PLAN_REPORT_H
#define HL_PLAN_REPORT_H

#include "plan/session.h"

/* hl_plan_info_read, less what the plan's session says: for plans that have none yet. */
void hl_plan_info_predict(const hl_plan *plan, hl_plan_info *out_info);

#endif
