/* Run: what a region launches.
 *
 * A region's blocks are those of all of its chains, numbered through; a thread takes a block and
 * runs the chain's tasks on its rows. Behind the barrier come the further phases of those that have
 * some, one after the other, in blocks of their own.
 *
 * An asynchronous device has a queue in place of barriers. A task on the side stream waits for an
 * event that the main stream records where the task stands in the plan, and records one of its own,
 * for which the main stream waits where the schedule says so, at the end of what is queued at the
 * latest. A capture of the main stream takes the side stream in by the first of these events, and
 * has it joined by the last. */
#include "plan/run.h"

#include "base/float_mode.h"
#include "plan/lend.h"
#include "plan/poison.h"

typedef struct blocks_run {
    const hl_plan *plan;
    const hl_chain *chains; /* whose blocks are numbered through */
    void **args;
    bool lends; /* who reads a value runs with who makes it */
} blocks_run;

static hl_launch make_launch(const hl_plan *plan, const hl_instr *instr, int thread)
{
    return (hl_launch){.scratch = instr->scratch,
                       .thread_scratch =
                           (char *)plan->thread_scratch + thread * plan->memory.thread_stride,
                       .thread = thread,
                       .control = plan->control,
                       .plan = plan->number,
                       .node = instr->node,
                       .segment = instr->segment};
}

static void run_block(void *context, int64_t block, int thread)
{
    const blocks_run *run = context;
    const hl_plan *plan = run->plan;
    const hl_chain *chain = run->chains;
    while (block >= chain->n_blocks) block -= chain++->n_blocks;
    int64_t begin = hl_chain_row(chain, block), end = hl_chain_row(chain, block + 1);
    void *lent = NULL, *room[HL_LEND_ARGS];
    for (int32_t s = chain->first_task; s < chain->first_task + chain->n_tasks; s++) {
        const hl_instr *instr = &plan->instrs[s];
        if (hl_instr_is_skipped(plan, instr)) continue;
        int64_t per_row = plan->schedule.tasks[s].rows_per_block_row;
        hl_launch launch = make_launch(plan, instr, thread);
        void *const *args = run->args + instr->first_arg;
        if (instr->lends && run->lends) {
            const void *at =
                instr->kernel->lend(&instr->state, args, begin * per_row, end * per_row);
            lent = at ? hl_lent_base(instr, at, begin) : NULL;
            if (at) continue;
        }
        if (lent && instr->borrows) {
            const hl_node *node = &plan->graph->nodes[instr->node];
            args = hl_lend_args(instr, args, node->n_in + node->n_out, lent, room);
        }
        hl_poison_thread(plan, s, &launch);
        instr->kernel->block(&instr->state, args, begin * per_row, end * per_row, &launch);
    }
}

/* ---- phases behind the first ----------------------------------------------------------------- */

typedef struct phase_run {
    const hl_plan *plan;
    void **args;
    int32_t first_task, end_task, phase;
} phase_run;

/* Blocks of the phase that a task has. */
static int64_t count_phase_blocks(const phase_run *run, int32_t s)
{
    const hl_task *task = &run->plan->schedule.tasks[s];
    bool has = task->req.rows && run->phase < task->req.n_phases &&
               !hl_instr_is_skipped(run->plan, &run->plan->instrs[s]);
    return has ? task->n_phase_blocks : 0;
}

static void run_phase_block(void *context, int64_t block, int thread)
{
    const phase_run *run = context;
    int32_t s = run->first_task;
    for (int64_t n; block >= (n = count_phase_blocks(run, s)); s++) block -= n;
    const hl_task *task = &run->plan->schedule.tasks[s];
    const hl_instr *instr = &run->plan->instrs[s];
    int64_t n_blocks = task->n_phase_blocks, rows = task->req.phase_rows;
    hl_launch launch = make_launch(run->plan, instr, thread);
    launch.phase = run->phase;
    hl_poison_thread(run->plan, s, &launch);
    instr->kernel->block(&instr->state, run->args + instr->first_arg, block * rows / n_blocks,
                         (block + 1) * rows / n_blocks, &launch);
}

/* One phase of all tasks of a region, which are independent of one another. */
static void run_phase(phase_run *run)
{
    hl_device *device = run->plan->device;
    int64_t n_blocks = 0, n_tasks = 0;
    for (int32_t s = run->first_task; s < run->end_task; s++) {
        n_blocks += count_phase_blocks(run, s);
        n_tasks += count_phase_blocks(run, s) > 0;
    }
    /* As many blocks as tasks: none is worth a barrier. */
    if (n_blocks == n_tasks)
        for (int64_t b = 0; b < n_blocks; b++) run_phase_block(run, b, 0);
    else
        device->ops->parallel(device, n_blocks, run_phase_block, run);
}

/* Launches that are not cut. */
static hl_status launch_chain(const hl_plan *plan, const hl_chain *chain, void **args,
                              hl_stream *stream)
{
    for (int32_t s = chain->first_task; s < chain->first_task + chain->n_tasks; s++) {
        const hl_instr *instr = &plan->instrs[s];
        if (hl_instr_is_skipped(plan, instr)) continue;
        hl_launch launch = make_launch(plan, instr, 0);
        if (plan->schedule.tasks[s].req.rows || !instr->kernel->launch) continue;
        hl_poison_thread(plan, s, &launch);
        HL_TRY(instr->kernel->launch(&instr->state, args + instr->first_arg, &launch, stream));
    }
    return HL_OK;
}

static void run_blocks(blocks_run *run, int64_t n_blocks, bool serial)
{
    hl_device *device = run->plan->device;
    if (serial)
        for (int64_t b = 0; b < n_blocks; b++) run_block(run, b, 0);
    else if (n_blocks)
        device->ops->parallel(device, n_blocks, run_block, run);
}

static hl_status run_region(const hl_plan *plan, const hl_region *region, void **args,
                            hl_stream *stream)
{
    const hl_chain *chains = &plan->schedule.chains[region->first_chain];
    hl_poison_region(plan, region, args);
    run_blocks(&(blocks_run){plan, chains, args, true}, region->n_blocks, region->serial);
    const hl_chain *last = &chains[region->n_chains - 1];
    phase_run run = {plan, args, chains->first_task, last->first_task + last->n_tasks, 1};
    for (; run.phase < region->n_phases; run.phase++) run_phase(&run);
    for (int32_t c = 0; c < region->n_chains; c++)
        HL_TRY(launch_chain(plan, &chains[c], args, stream));
    return HL_OK;
}

hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream)
{
    uint64_t mode = hl_float_mode_flush();
    hl_status status = run_region(plan, region, args, stream);
    hl_float_mode_set(mode);
    return status;
}

/* ---- two streams ----------------------------------------------------------------------------- */

hl_status hl_streams_init(hl_device *device, hl_stream *main, hl_streams *out_streams)
{
    const hl_device_ops *ops = device->ops;
    *out_streams = (hl_streams){.device = device, .main = main};
    if (device->overlap_flops <= 0) return HL_OK;
    hl_status status;
    HL_GOTO(ops->stream_create(device, &out_streams->side));
    HL_GOTO(ops->event_create(device, false, &out_streams->forked));
    for (int i = 0; i < HL_SIDE_AHEAD; i++)
        HL_GOTO(ops->event_create(device, false, &out_streams->done[i]));
cleanup:
    if (status != HL_OK) hl_streams_deinit(out_streams);
    return status;
}

void hl_streams_deinit(hl_streams *streams)
{
    if (!streams->side) return;
    const hl_device_ops *ops = streams->device->ops;
    (void)hl_streams_synchronize(streams);
    for (int i = 0; i < HL_SIDE_AHEAD; i++)
        if (streams->done[i]) ops->event_destroy(streams->device, streams->done[i]);
    if (streams->forked) ops->event_destroy(streams->device, streams->forked);
    ops->stream_destroy(streams->device, streams->side);
    streams->side = NULL;
}

hl_status hl_streams_synchronize(const hl_streams *streams)
{
    const hl_device_ops *ops = streams->device->ops;
    if (streams->side) HL_TRY(ops->synchronize(streams->device, streams->side));
    return ops->synchronize(streams->device, streams->main);
}

/* Numbers of tasks on the side stream, of those that one call queues. */
typedef struct side_run {
    int32_t begun;   /* the last one that was queued, perhaps in part */
    int32_t awaited; /* the last one that the main stream waits for */
} side_run;

static hl_status await_side(const hl_streams *streams, side_run *side, int32_t number)
{
    hl_event *done = streams->done[number % HL_SIDE_AHEAD];
    HL_TRY(streams->device->ops->event_wait(streams->device, done, streams->main));
    side->awaited = number;
    return HL_OK;
}

static hl_status queue_on_side(const hl_plan *plan, const hl_task *task, const hl_region *region,
                               void **args, const hl_streams *streams, side_run *side)
{
    const hl_device_ops *ops = streams->device->ops;
    HL_TRY(ops->event_record(streams->device, streams->forked, streams->main));
    HL_TRY(ops->event_wait(streams->device, streams->forked, streams->side));
    side->begun = task->side;
    HL_TRY(hl_plan_run_region(plan, region, args, streams->side));
    return ops->event_record(streams->device, streams->done[task->side % HL_SIDE_AHEAD],
                             streams->side);
}

static hl_status queue_regions(const hl_plan *plan, int32_t first, int32_t end, void **args,
                               const hl_streams *streams, side_run *side)
{
    for (int32_t r = first; r < end; r++) {
        const hl_region *region = &plan->schedule.regions[r];
        const hl_chain *chain = &plan->schedule.chains[region->first_chain];
        const hl_task *task = &plan->schedule.tasks[chain->first_task];
        /* What was queued by an earlier call has been waited for by that. */
        if (region->awaits > side->awaited && region->awaits <= side->begun)
            HL_TRY(await_side(streams, side, region->awaits));
        if (task->side == HL_NONE)
            HL_TRY(hl_plan_run_region(plan, region, args, streams->main));
        else
            HL_TRY(queue_on_side(plan, task, region, args, streams, side));
    }
    return side->begun > side->awaited ? await_side(streams, side, side->begun) : HL_OK;
}

hl_status hl_plan_queue_regions(const hl_plan *plan, int32_t first, int32_t end, void **args,
                                const hl_streams *streams)
{
    const hl_device_ops *ops = streams->device->ops;
    side_run side = {HL_NONE, HL_NONE};
    hl_status_record error;
    hl_status status = queue_regions(plan, first, end, args, streams, &side);
    if (status == HL_OK || side.begun == HL_NONE) return status;
    /* A device that fails here, too, has nothing more to lose. */
    hl_status_save(status, &error);
    if (ops->event_record(streams->device, streams->done[0], streams->side) == HL_OK)
        (void)ops->event_wait(streams->device, streams->done[0], streams->main);
    return hl_status_raise(&error);
}

/* ---- one task -------------------------------------------------------------------------------- */

hl_status hl_plan_run_alone(const hl_plan *plan, int32_t task, void **args, hl_stream *stream)
{
    hl_chain chain = plan->schedule.chains[plan->schedule.tasks[task].chain];
    uint64_t mode = hl_float_mode_flush();
    chain.first_task = task, chain.n_tasks = 1;
    run_blocks(&(blocks_run){plan, &chain, args, false}, chain.n_blocks,
               plan->schedule.regions[chain.region].serial);
    phase_run run = {plan, args, task, task + 1, 1};
    for (; run.phase < plan->schedule.tasks[task].req.n_phases; run.phase++) run_phase(&run);
    hl_status status = launch_chain(plan, &chain, args, stream);
    hl_float_mode_set(mode);
    return status;
}

hl_status hl_plan_tune_task(const hl_plan *plan, int32_t task, void *const *args, hl_stream *stream)
{
    const hl_instr *instr = &plan->instrs[task];
    hl_launch launch = make_launch(plan, instr, 0);
    return instr->kernel->tune(&instr->state, args, &launch, stream);
}
