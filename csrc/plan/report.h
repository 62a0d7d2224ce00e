/* What a plan is made of, as numbers. */
#ifndef HL_PLAN_REPORT_H
#define HL_PLAN_REPORT_H

#include "plan/session.h"

/* hl_plan_info_read, less what the plan's session says: for plans that have none yet. */
void hl_plan_info_predict(const hl_plan *plan, hl_plan_info *out_info);
/* Floating operations of a matrix product, 0 of any other node; are its sides all long? */
double hl_plan_count_product(const hl_graph *graph, const hl_node *node, bool *out_is_large);

#endif
