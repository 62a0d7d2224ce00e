/* Gives every operand of a plan an address. */
#ifndef HL_PLAN_BIND_H
#define HL_PLAN_BIND_H

#include "plan/session.h"

/* Makes room for the plan in its session. */
hl_status hl_plan_reserve(hl_plan *plan);
/* Sets the addresses of all operands, again when the session's memory has moved. */
hl_status hl_plan_bind(hl_plan *plan);
/* The address of a value; of an input, in this slot. */
hl_status hl_plan_find_address(const hl_plan *plan, hl_id id, int32_t slot, void **out_address);

#endif
