/* Run: what a region launches.
 *
 * A region's blocks are those of all of its chains, numbered through; a thread takes a block and
 * runs the chain's tasks on its rows. Behind the barrier come the further phases of those that have
 * some, one after the other, in blocks of their own. */
#include "plan/run.h"

typedef struct blocks_run {
    const hl_plan *plan;
    const hl_chain *chains; /* whose blocks are numbered through */
    void **args;
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
    for (int32_t s = chain->first_task; s < chain->first_task + chain->n_tasks; s++) {
        const hl_instr *instr = &plan->instrs[s];
        if (hl_instr_is_skipped(plan, instr)) continue;
        int64_t per_row = plan->schedule.tasks[s].rows_per_block_row;
        hl_launch launch = make_launch(plan, instr, thread);
        instr->kernel->block(&instr->state, run->args + instr->first_arg, begin * per_row,
                             end * per_row, &launch);
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
        if (!plan->schedule.tasks[s].req.rows && instr->kernel->launch)
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

hl_status hl_plan_run_region(const hl_plan *plan, const hl_region *region, void **args,
                             hl_stream *stream)
{
    const hl_chain *chains = &plan->schedule.chains[region->first_chain];
    run_blocks(&(blocks_run){plan, chains, args}, region->n_blocks, region->serial);
    const hl_chain *last = &chains[region->n_chains - 1];
    phase_run run = {plan, args, chains->first_task, last->first_task + last->n_tasks, 1};
    for (; run.phase < region->n_phases; run.phase++) run_phase(&run);
    for (int32_t c = 0; c < region->n_chains; c++)
        HL_TRY(launch_chain(plan, &chains[c], args, stream));
    return HL_OK;
}

hl_status hl_plan_run_alone(const hl_plan *plan, int32_t task, void **args, hl_stream *stream)
{
    hl_chain chain = plan->schedule.chains[plan->schedule.tasks[task].chain];
    chain.first_task = task, chain.n_tasks = 1;
    run_blocks(&(blocks_run){plan, &chain, args}, chain.n_blocks,
               plan->schedule.regions[chain.region].serial);
    phase_run run = {plan, args, task, task + 1, 1};
    for (; run.phase < plan->schedule.tasks[task].req.n_phases; run.phase++) run_phase(&run);
    return launch_chain(plan, &chain, args, stream);
}

hl_status hl_plan_tune_task(const hl_plan *plan, int32_t task, void *const *args, hl_stream *stream)
{
    const hl_instr *instr = &plan->instrs[task];
    hl_launch launch = make_launch(plan, instr, 0);
    return instr->kernel->tune(&instr->state, args, &launch, stream);
}
