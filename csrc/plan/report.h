/* Describes a plan in numbers. */
#ifndef HL_PLAN_REPORT_H
#define HL_PLAN_REPORT_H

#include "plan/session.h"

/* Bytes alone, of a plan that was built at least to its buffer assignment. */
void hl_plan_info_bytes(const hl_plan *plan, hl_plan_info *out_info);
/* hl_plan_info_read without what the session says: for plans that have none yet. */
void hl_plan_info_predict(const hl_plan *plan, hl_plan_info *out_info);

#endif
