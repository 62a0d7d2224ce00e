/* What a region and a task launch, and on which stream. */
#ifndef HL_PLAN_RUN_H
#define HL_PLAN_RUN_H

#include "plan/internal.h"

/* The streams of an asynchronous device on which a plan runs, and the events between them. */
typedef struct hl_streams {
    hl_device *device;
    hl_stream *main;
    hl_stream *side; /* NULL: the device has no use for a second one */
    hl_event *forked, *done[HL_SIDE_AHEAD];
} hl_streams;

/* Borrows the main stream. */
hl_status hl_streams_init(hl_device *device, hl_stream *main, hl_streams *out_streams);
/* Waits for both. Of a device that is lost too, and what hl_streams_init did not finish. */
void hl_streams_deinit(hl_streams *streams);
hl_status hl_streams_synchronize(const hl_streams *streams);

/* Runs a region's blocks, and launches what is not cut; on an asynchronous device it queues
 * them. */
hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream);
/* Queues regions [first, end), which are whole segments. What is queued on the main stream behind
 * them, and on failure too, begins when all of them are over. */
hl_status hl_plan_queue_regions(const hl_plan *plan, int32_t first, int32_t end, void **args,
                                const hl_streams *streams);
/* Runs one of its tasks by itself. */
hl_status hl_plan_run_alone(const hl_plan *plan, int32_t task, void **args, hl_stream *stream);
/* Autotunes and loads the kernel of a task, which has hl_kernel's tune, on these operands. */
hl_status hl_plan_tune_task(const hl_plan *plan, int32_t task, void *const *args,
                            hl_stream *stream);

#endif
