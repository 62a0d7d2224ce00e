/* What a region and a task launch. */
#ifndef HL_PLAN_RUN_H
#define HL_PLAN_RUN_H

#include "plan/internal.h"

/* Runs a region's blocks, and launches what is not cut; on an asynchronous device it queues
 * them. */
hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream);
/* Runs one of its tasks by itself. */
hl_status hl_plan_run_alone(const hl_plan *plan, int32_t task, void **args, hl_stream *stream);
/* Autotunes and loads the kernel of a task, which has hl_kernel's tune, on these operands. */
hl_status hl_plan_tune_task(const hl_plan *plan, int32_t task, void *const *args,
                            hl_stream *stream);

#endif
