/* What a region and a step launch. */
#ifndef HL_PLAN_RUN_H
#define HL_PLAN_RUN_H

#include "plan/internal.h"

/* A region's blocks, and what is launched whole: on an asynchronous device it is queued. */
hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream);
/* One of its steps by itself. */
hl_status hl_plan_run_alone(const hl_plan *plan, int32_t step, void **args, hl_stream *stream);
/* The step's kernel chooses, and loads what it chose, on the operands of slot 0. */
hl_status hl_plan_tune(const hl_plan *plan, int32_t step, hl_stream *stream);

#endif
