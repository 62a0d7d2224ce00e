/* Every operand of a plan to an address. */
#ifndef HL_PLAN_BIND_H
#define HL_PLAN_BIND_H

#include "plan/session.h"

/* Makes room for the plan in its session. */
hl_status hl_plan_reserve(hl_plan *plan);
/* Addresses of all operands, again when the session's memory moved. */
hl_status hl_plan_bind(hl_plan *plan);
/* Of a value; an input's in this slot. */
hl_status hl_plan_find_address(const hl_plan *plan, hl_id id, int32_t slot, void **out_address);

#endif
