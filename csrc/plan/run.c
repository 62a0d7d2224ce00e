/* Run: the loop over regions.
 *
 * A region's blocks are those of all of its chains, numbered through; a thread takes a block and
 * runs the chain's steps on its rows. Behind the barrier come the further phases of those that have
 * some, one after the other, in blocks of their own. Between regions the loop looks at the stop flag and the clock; a step that was
 * interrupted goes on where it stood. APPLY is never interrupted: nobody may give up a step whose
 * update has begun. */
#include <stddef.h>
#include <string.h>

#include "base/os.h"
#include "plan/internal.h"

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
    for (int32_t s = chain->first_step; s < chain->first_step + chain->n_steps; s++) {
        const hl_instr *instr = &plan->instrs[s];
        if (hl_instr_is_skipped(plan, instr)) continue;
        int64_t per_row = plan->schedule.steps[s].rows_per_block_row;
        hl_launch launch = make_launch(plan, instr, thread);
        instr->kernel->block(&instr->state, run->args + instr->first_arg, begin * per_row,
                             end * per_row, &launch);
    }
}

/* ---- phases behind the first ----------------------------------------------------------------- */

typedef struct phase_run {
    const hl_plan *plan;
    void **args;
    int32_t first_step, end_step, phase;
} phase_run;

/* Blocks of the phase that a step has. */
static int64_t count_phase_blocks(const phase_run *run, int32_t s)
{
    const hl_step *step = &run->plan->schedule.steps[s];
    bool has = step->req.rows && run->phase < step->req.n_phases &&
               !hl_instr_is_skipped(run->plan, &run->plan->instrs[s]);
    return has ? step->n_phase_blocks : 0;
}

static void run_phase_block(void *context, int64_t block, int thread)
{
    const phase_run *run = context;
    int32_t s = run->first_step;
    for (int64_t n; block >= (n = count_phase_blocks(run, s)); s++) block -= n;
    const hl_step *step = &run->plan->schedule.steps[s];
    const hl_instr *instr = &run->plan->instrs[s];
    int64_t n_blocks = step->n_phase_blocks, rows = step->req.phase_rows;
    hl_launch launch = make_launch(run->plan, instr, thread);
    launch.phase = run->phase;
    instr->kernel->block(&instr->state, run->args + instr->first_arg, block * rows / n_blocks,
                         (block + 1) * rows / n_blocks, &launch);
}

/* One phase of all steps of a region, which are independent of one another. */
static void run_phase(phase_run *run)
{
    hl_device *device = run->plan->session->device;
    int64_t n_blocks = 0, n_steps = 0;
    for (int32_t s = run->first_step; s < run->end_step; s++) {
        n_blocks += count_phase_blocks(run, s);
        n_steps += count_phase_blocks(run, s) > 0;
    }
    /* As many blocks as steps: none is worth a barrier. */
    if (n_blocks == n_steps)
        for (int64_t b = 0; b < n_blocks; b++) run_phase_block(run, b, 0);
    else
        device->ops->parallel(device, n_blocks, run_phase_block, run);
}

/* Launches that are not cut. */
static hl_status launch_chain(const hl_plan *plan, const hl_chain *chain, void **args,
                              hl_stream *stream)
{
    for (int32_t s = chain->first_step; s < chain->first_step + chain->n_steps; s++) {
        const hl_instr *instr = &plan->instrs[s];
        if (hl_instr_is_skipped(plan, instr)) continue;
        hl_launch launch = make_launch(plan, instr, 0);
        if (!plan->schedule.steps[s].req.rows && instr->kernel->launch)
            HL_TRY(instr->kernel->launch(&instr->state, args + instr->first_arg, &launch, stream));
    }
    return HL_OK;
}

static void run_blocks(blocks_run *run, int64_t n_blocks, bool serial)
{
    hl_device *device = run->plan->session->device;
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
    phase_run run = {plan, args, chains->first_step, last->first_step + last->n_steps, 1};
    for (; run.phase < region->n_phases; run.phase++) run_phase(&run);
    for (int32_t c = 0; c < region->n_chains; c++)
        HL_TRY(launch_chain(plan, &chains[c], args, stream));
    return HL_OK;
}

hl_status hl_plan_run_alone(const hl_plan *plan, int32_t step, void **args, hl_stream *stream)
{
    hl_chain chain = plan->schedule.chains[plan->schedule.steps[step].chain];
    chain.first_step = step, chain.n_steps = 1;
    run_blocks(&(blocks_run){plan, &chain, args}, chain.n_blocks,
               plan->schedule.regions[chain.region].serial);
    phase_run run = {plan, args, step, step + 1, 1};
    for (; run.phase < plan->schedule.steps[step].req.n_phases; run.phase++) run_phase(&run);
    return launch_chain(plan, &chain, args, stream);
}

/* The control block, on an asynchronous device as it was when last heard of. */
static const hl_control *read_control(const hl_plan *plan)
{
    return plan->queue ? hl_queue_heard(plan->queue) : plan->control;
}

/* An index out of range, in the words of the op that met it. */
static hl_status check_fault(hl_plan *plan)
{
    const hl_control *control = read_control(plan);
    if (!control->error_code) return HL_OK;
    const hl_node *node = &plan->graph->nodes[control->error_code - 1];
    if (plan->queue)
        HL_TRY(hl_queue_clear_fault(plan->queue));
    else
        plan->control->error_code = 0;
    return hl_status_set(HL_ERROR_DATA,
                         "%s%s%s: index out of range, must be at least 0 and below %lld, got %lld "
                         "at position %lld",
                         node->scope ? node->scope : "", node->scope ? ": " : "",
                         hl_op_get(node->op)->name, (long long)hl_node_extent(plan->graph, node),
                         (long long)control->error_value, (long long)control->error_row);
}

typedef struct run_limits {
    int64_t deadline_ns;
    const volatile int *stop;
} run_limits;

static bool is_over(const run_limits *limits, hl_run_end *out_end)
{
    if (limits->stop && __atomic_load_n(limits->stop, __ATOMIC_RELAXED))
        *out_end = HL_RUN_ASKED;
    else if (limits->deadline_ns && hl_os_time_ns() >= limits->deadline_ns)
        *out_end = HL_RUN_DEADLINE;
    else
        return false;
    return true;
}

/* The regions of the current segment from where the plan stands; *out_over: stopped in between. */
static hl_status run_segment(hl_plan *plan, const run_limits *limits, hl_run_end *out_end,
                             bool *out_over)
{
    int32_t end = plan->schedule.segment_first[plan->segment + 1];
    void **args = plan->args + plan->slot * plan->n_args;
    *out_over = false;
    if (plan->queue) {
        hl_queue_add_segment(plan->queue);
        return HL_OK;
    }
    while (plan->region < end) {
        HL_TRY(hl_plan_run_region(plan, &plan->schedule.regions[plan->region++], args, NULL));
        if (plan->region < end && plan->segment != HL_SEGMENT_APPLY && is_over(limits, out_end)) {
            *out_over = true;
            return HL_OK;
        }
    }
    return HL_OK;
}

static void enter_segment(hl_plan *plan, hl_segment segment)
{
    plan->segment = segment;
    plan->region = plan->schedule.segment_first[segment];
}

static hl_status take_batch(hl_plan *plan, bool *out_end)
{
    *out_end = false;
    if (plan->queue) return hl_queue_take_batch(plan->queue, out_end);
    if (!plan->feed) return HL_OK;
    return hl_feed_next(plan->feed, &plan->slot, NULL, out_end);
}

/* One step, or the rest of one. *out_end is HL_RUN_DONE when it is complete. */
static hl_status run_step(hl_plan *plan, const run_limits *limits, hl_run_end *out_end)
{
    bool over = false, feed_end;
    *out_end = HL_RUN_DONE;
    if (!plan->in_step) {
        HL_TRY(take_batch(plan, &feed_end));
        if (feed_end) {
            *out_end = HL_RUN_FEED_END;
            return HL_OK;
        }
        plan->in_step = true;
        plan->session->resident = plan->number;
        plan->micro = 0;
        /* Of a step that was given up, by another plan perhaps. */
        if (!plan->queue) plan->control->error_code = 0;
        enter_segment(plan, plan->begun && !plan->trains ? HL_SEGMENT_MICRO : HL_SEGMENT_BEGIN);
        plan->begun = true;
    }
    for (;;) {
        HL_TRY(run_segment(plan, limits, out_end, &over));
        if (over) return HL_OK;
        if (plan->segment == HL_SEGMENT_BEGIN) {
            enter_segment(plan, HL_SEGMENT_MICRO);
        } else if (plan->segment == HL_SEGMENT_MICRO) {
            feed_end = false;
            if (++plan->micro < plan->k) HL_TRY(take_batch(plan, &feed_end));
            if (plan->micro < plan->k && !feed_end)
                enter_segment(plan, HL_SEGMENT_MICRO);
            else if (plan->hold && !read_control(plan)->stopped) /* who stops closes the window */
                break;
            else /* a window that the epoch cuts short is applied with what it has */
                enter_segment(plan, HL_SEGMENT_APPLY);
        } else {
            break;
        }
    }
    plan->in_step = false;
    if (plan->queue) HL_TRY(hl_queue_end_step(plan->queue));
    return check_fault(plan);
}

/* A window without an end holds back nothing that comes after it. */
static void give_up_step(hl_plan *plan)
{
    bool in_window = plan->in_step && plan->trains;
    if (plan->queue) /* a device that fails here fails the next run too */
        (void)hl_queue_give_up(plan->queue, in_window);
    else if (in_window)
        plan->control->window_ok = 1;
    plan->in_step = false;
}

/* Kernels choose, and load what they chose, in the memory where the first step is going to run. */
static hl_status tune_kernels(hl_plan *plan, const run_limits *limits, hl_run_end *out_end,
                              bool *out_over)
{
    *out_over = false;
    for (; plan->n_tuned < plan->schedule.n_steps && !*out_over; plan->n_tuned++) {
        const hl_instr *instr = &plan->instrs[plan->n_tuned];
        if (!instr->kernel->tune || instr->elided) continue;
        hl_launch launch = make_launch(plan, instr, 0);
        plan->session->resident = 0;
        HL_TRY(instr->kernel->tune(&instr->state, plan->args + instr->first_arg, &launch,
                                   plan->session->compute));
        *out_over = is_over(limits, out_end);
    }
    return HL_OK;
}

static hl_status run_steps(hl_plan *plan, int64_t n_steps, const run_limits *limits,
                           hl_run_end *out_end, int64_t *out_steps)
{
    if (plan->in_step && plan->session->resident != plan->number)
        return hl_status_set(HL_ERROR_CONFIG, "run: a step was left in the middle and another plan "
                                              "of the model has run since: it cannot go on");
    HL_TRY(hl_plan_bind(plan));
    if (plan->queue) HL_TRY(hl_queue_refresh(plan->queue));
    *out_end = HL_RUN_DONE;
    if (plan->queue) {
        bool over;
        HL_TRY(tune_kernels(plan, limits, out_end, &over));
        if (over) return HL_OK;
    }
    while (*out_steps < n_steps) {
        /* The step that stops is finished first: it has its place in the log. */
        if (read_control(plan)->stopped && !plan->in_step) {
            *out_end = HL_RUN_STOPPED;
            return HL_OK;
        }
        HL_TRY(run_step(plan, limits, out_end));
        if (*out_end == HL_RUN_FEED_END) break;
        if (*out_end != HL_RUN_DONE) return HL_OK;
        ++*out_steps;
        if (*out_steps < n_steps && is_over(limits, out_end)) return HL_OK;
    }
    /* An epoch's end, or steps whose batches the caller makes one by one, is a place to wait. */
    if (plan->queue && (!plan->feed || hl_feed_is_over(plan->feed))) {
        HL_TRY(hl_queue_settle(plan->queue));
        HL_TRY(check_fault(plan));
    }
    if (read_control(plan)->stopped && !plan->in_step) *out_end = HL_RUN_STOPPED;
    return HL_OK;
}

hl_status hl_plan_run(hl_plan *plan, int64_t n_steps, int64_t deadline_ns, const volatile int *stop,
                      hl_run_end *out_end, int64_t *out_steps)
{
    run_limits limits = {deadline_ns, stop};
    *out_end = HL_RUN_DONE;
    *out_steps = 0;
    HL_TRY(hl_session_enter(plan->session, "run"));
    plan->begun &= plan->in_step;
    hl_status status = run_steps(plan, n_steps, &limits, out_end, out_steps);
    if (status == HL_OK && plan->queue) status = hl_queue_flush(plan->queue);
    if (status != HL_OK) give_up_step(plan);
    hl_session_leave(plan->session);
    return status;
}

void hl_plan_heard(const hl_plan *plan, hl_control *out_control)
{
    const hl_control *control = read_control(plan);
    memset(out_control, 0, sizeof *out_control);
    if (control) memcpy(out_control, control, offsetof(hl_control, ring));
}

bool hl_plan_is_unfinished(const hl_plan *plan)
{
    return plan->in_step;
}

void hl_plan_abandon(hl_plan *plan)
{
    give_up_step(plan);
}
