/* Profile: how long each launch of a step takes, on any device.
 *
 * A step runs launch by launch, and each launch is timed at its place in the step, on its operands:
 * several times in a row, of which the mean is taken, in several rounds, of which the fastest
 * counts. On an asynchronous device the row is one capture between two events, since the host could
 * not queue short launches as fast as they run; elsewhere the host's clock is read. A launch reads
 * what the launch before it wrote, often from a cache, as it does in training.
 *
 * The invariant: values are those of training. Most launches may be repeated, their outputs depend
 * on inputs alone; a launch that writes over its inputs (updates, work in place, tasks that follow
 * one another) has them restored, and runs once more. All stores, the control block among them, are
 * copied to host memory and restored in the end.
 *
 * A launch alone is slower than in a chain on a CPU, where it finds its rows in cache: the step is
 * timed as a whole too, so that the difference shows. Rejected: timing inside of chains (the clock
 * costs more than a block of a small model), events between the nodes of one captured step (they
 * take as long as a short kernel), updates under a control block that holds them back (they take no
 * time). */
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/os.h"
#include "plan/backup.h"
#include "plan/bind.h"
#include "plan/run.h"

enum {
    ROUNDS = 3,
    MAX_REPEATS = 50,
    MAX_STEPS = 20 /* until one is applied: a loss scale starts at 2^16 and halves */
};
static const double ROUND_NS = 1e6;

typedef struct profiler profiler;
typedef hl_status (*launch_fn)(const profiler *p, int32_t number);
struct profiler {
    hl_plan *plan;
    hl_device *device;
    hl_stream *stream; /* NULL where the host's clock tells the time */
    hl_event *begin, *end;
    void **args;
    char *inputs; /* copies of what a launch writes over */
    int64_t capacity;
    hl_profile *out;
};

/* ---- time ------------------------------------------------------------------------------------ */

static hl_status launch_task(const profiler *p, int32_t task)
{
    return hl_plan_run_alone(p->plan, task, p->args, p->stream);
}

static hl_status launch_segment(const profiler *p, int32_t segment)
{
    const hl_schedule *schedule = &p->plan->schedule;
    int32_t first = schedule->segment_first[segment], end = schedule->segment_first[segment + 1];
    if (p->stream)
        return hl_plan_queue_regions(p->plan, first, end, p->args, &p->plan->session->streams);
    for (int32_t r = first; r < end; r++)
        HL_TRY(hl_plan_run_region(p->plan, &schedule->regions[r], p->args, NULL));
    return HL_OK;
}

static hl_status launch_times(const profiler *p, launch_fn launch, int32_t number, int n)
{
    for (int i = 0; i < n; i++) HL_TRY(launch(p, number));
    return HL_OK;
}

/* *out_capture is NULL where the device has no captures: launches are then queued one by one. After
 * an error the capture still has to be ended. */
static hl_status capture_times(const profiler *p, launch_fn launch, int32_t number, int n,
                               hl_capture **out_capture)
{
    const hl_device_ops *ops = p->device->ops;
    hl_status_record error = {.code = HL_OK};
    *out_capture = NULL;
    if (!p->stream || !ops->capture_begin) return HL_OK;
    HL_TRY(ops->capture_begin(p->device, p->stream));
    hl_status status = launch_times(p, launch, number, n);
    if (status != HL_OK) hl_status_save(status, &error);
    status = ops->capture_end(p->device, p->stream, out_capture);
    return error.code == HL_OK ? status : hl_status_raise(&error);
}

static hl_status time_once(const profiler *p, launch_fn launch, int32_t number, int n,
                           hl_capture *capture, double *out_ns)
{
    const hl_device_ops *ops = p->device->ops;
    int64_t began = hl_os_time_ns();
    if (p->stream) HL_TRY(ops->event_record(p->device, p->begin, p->stream));
    if (capture)
        HL_TRY(ops->capture_launch(p->device, capture, p->stream));
    else
        HL_TRY(launch_times(p, launch, number, n));
    *out_ns = (double)(hl_os_time_ns() - began);
    if (!p->stream) return HL_OK;
    HL_TRY(ops->event_record(p->device, p->end, p->stream));
    HL_TRY(ops->event_synchronize(p->device, p->end));
    return ops->event_elapsed(p->device, p->begin, p->end, out_ns);
}

/* ns of one launch of n in a row, in the fastest round. */
static hl_status time_rounds(const profiler *p, launch_fn launch, int32_t number, int n, int rounds,
                             double *out_ns)
{
    hl_capture *capture = NULL;
    double ns;
    hl_status status;
    HL_GOTO(capture_times(p, launch, number, n, &capture));
    for (int round = 0; round < rounds; round++) {
        HL_GOTO(time_once(p, launch, number, n, capture, &ns));
        if (round == 0 || ns / n < *out_ns) *out_ns = ns / n;
    }
cleanup:
    if (capture) p->device->ops->capture_destroy(p->device, capture);
    return status;
}

/* ---- state ----------------------------------------------------------------------------------- */

static hl_status copy(const profiler *p, void *device, char *host, size_t bytes, bool in)
{
    const hl_device_ops *ops = p->device->ops;
    if (!bytes) return HL_OK;
    if (in)
        HL_TRY(ops->copy(p->device, device, host, bytes, HL_COPY_HOST_TO_DEVICE, p->stream));
    else
        HL_TRY(ops->copy(p->device, host, device, bytes, HL_COPY_DEVICE_TO_HOST, p->stream));
    return ops->synchronize(p->device, p->stream);
}

/* The task after the last one whose work this task's launch does. */
static int32_t find_end(const hl_plan *plan, int32_t task)
{
    int32_t end = task + 1;
    while (end < plan->schedule.n_tasks && plan->instrs[end].joined) end++;
    return end;
}

/* Does one task write where another, or the same one, reads? */
static bool writes_over(const profiler *p, int32_t writer, int32_t reader)
{
    const hl_graph *graph = p->plan->graph;
    const hl_instr *from = &p->plan->instrs[writer], *to = &p->plan->instrs[reader];
    const hl_node *node = &graph->nodes[from->node], *other = &graph->nodes[to->node];
    for (int32_t o = 0; o < node->n_out; o++) {
        const char *out = p->args[from->first_arg + node->n_in + o];
        const char *end = out + hl_value_bytes(graph, node->out + o);
        for (int32_t i = 0; i < other->n_in; i++) {
            const char *in = p->args[to->first_arg + i];
            if (in < end && out < in + hl_value_bytes(graph, other->in[i])) return true;
        }
    }
    return false;
}

/* Does a launch write where it reads: updates, work in place, tasks that follow one another? */
static bool is_overwriting(const profiler *p, int32_t task)
{
    int32_t end = find_end(p->plan, task);
    for (int32_t s = task; s < end; s++)
        for (int32_t r = task; r < end; r++)
            if (writes_over(p, s, r)) return true;
    return false;
}

/* Copies the outputs of a launch to p->inputs, or back; the control block first, where repeats that
 * read what the launch wrote over may report an index out of range. */
static hl_status copy_outputs(profiler *p, int32_t task, bool in)
{
    const hl_plan *plan = p->plan;
    int64_t at = sizeof *plan->control;
    HL_TRY(hl_alloc_grow((void **)&p->inputs, &p->capacity, at, 1));
    HL_TRY(copy(p, plan->control, p->inputs, sizeof *plan->control, in));
    for (int32_t s = task; s < find_end(plan, task); s++) {
        const hl_node *node = &plan->graph->nodes[plan->instrs[s].node];
        void **out = p->args + plan->instrs[s].first_arg + node->n_in;
        for (int32_t o = 0; o < node->n_out; o++) {
            size_t bytes = hl_value_bytes(plan->graph, node->out + o);
            HL_TRY(hl_alloc_grow((void **)&p->inputs, &p->capacity, at + (int64_t)bytes, 1));
            HL_TRY(copy(p, out[o], p->inputs + at, bytes, in));
            at += (int64_t)bytes;
        }
    }
    return HL_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

static void count_work(const hl_graph *graph, const hl_node *node, hl_launch_time *time)
{
    hl_cost cost = hl_node_cost(graph, node);
    time->bytes += cost.bytes;
    time->flops += cost.flops;
    if (!hl_op_is_product(node->op)) return;
    const hl_attr_info *tf32 = hl_schema_find(hl_op_get(node->op)->schema, "tf32");
    time->dtype = hl_graph_dtype(graph, node->in[0]);
    time->tf32 = tf32 && hl_attrs_int(&node->attrs, tf32);
}

static int64_t count_runs(const hl_plan *plan, hl_segment segment)
{
    if (segment == HL_SEGMENT_MICRO) return plan->k;
    return segment == HL_SEGMENT_BEGIN && !plan->trains ? 0 : 1;
}

static void describe(const hl_plan *plan, int32_t task, hl_launch_time *out)
{
    const hl_instr *instr = &plan->instrs[task];
    const hl_node *node = &plan->graph->nodes[instr->node];
    *out = (hl_launch_time){.op = hl_op_get(node->op)->name,
                            .kernel = instr->kernel->name,
                            .scope = node->scope,
                            .segment = instr->segment,
                            .n_nodes = find_end(plan, task) - task,
                            .n_runs = count_runs(plan, instr->segment),
                            .dtype = HL_DTYPE_COUNT};
    if (instr->kernel->describe)
        instr->kernel->describe(&instr->state, out->algorithm, sizeof out->algorithm);
    for (int32_t s = task; s < task + out->n_nodes; s++)
        count_work(plan->graph, &plan->graph->nodes[plan->instrs[s].node], out);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Runs and times a launch. */
static hl_status measure(profiler *p, int32_t task, hl_launch_time *out)
{
    bool overwrites = is_overwriting(p, task);
    double ns;
    describe(p->plan, task, out);
    if (overwrites) HL_TRY(copy_outputs(p, task, false));
    HL_TRY(time_once(p, launch_task, task, 1, NULL, &ns));
    int n = ns * MAX_REPEATS < ROUND_NS ? MAX_REPEATS : (int)(ROUND_NS / ns);
    HL_TRY(time_rounds(p, launch_task, task, n > 0 ? n : 1, ROUNDS, &out->ns));
    if (!overwrites) return HL_OK;
    HL_TRY(copy_outputs(p, task, true));
    return launch_task(p, task);
}

static hl_status measure_launches(profiler *p)
{
    const hl_plan *plan = p->plan;
    p->out->n_launches = 0;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        if (!hl_instr_is_skipped(plan, &plan->instrs[s]))
            HL_TRY(measure(p, s, &p->out->launches[p->out->n_launches++]));
    return HL_OK;
}

/* Runs one step. */
static hl_status run_step(const profiler *p)
{
    for (int32_t s = 0; s < HL_SEGMENT_COUNT; s++) HL_TRY(launch_segment(p, s));
    return HL_OK;
}

/* Times each segment apart, since one of them runs k times. */
static hl_status measure_step(const profiler *p, double *out_ns)
{
    double ns, fastest[HL_SEGMENT_COUNT] = {0};
    for (int round = 0; round < ROUNDS; round++)
        for (int32_t s = 0; s < HL_SEGMENT_COUNT; s++) {
            HL_TRY(time_rounds(p, launch_segment, s, 1, 1, &ns));
            if (round == 0 || ns < fastest[s]) fastest[s] = ns;
        }
    *out_ns = 0;
    for (int32_t s = 0; s < HL_SEGMENT_COUNT; s++)
        *out_ns += fastest[s] * (double)count_runs(p->plan, (hl_segment)s);
    return HL_OK;
}

static hl_status read_control(const profiler *p, bool *out_applied, bool *out_stopped)
{
    hl_control control;
    *out_applied = true, *out_stopped = false;
    if (!p->plan->trains) return HL_OK;
    HL_TRY(copy(p, p->plan->control, (char *)&control, offsetof(hl_control, ring), false));
    *out_applied = control.apply;
    *out_stopped = control.stopped;
    return HL_OK;
}

/* Runs steps until one is applied, then measures one launch by launch, which must be applied
 * too. */
static hl_status measure_all(profiler *p)
{
    bool applied = false, stopped = false, measured = false;
    /* In the first step alone: what is measured is like the steps behind it. */
    p->plan->refreshes = true;
    for (int n = 0; n < MAX_STEPS && !stopped; n++) {
        measured = applied;
        HL_TRY(applied ? measure_launches(p) : run_step(p));
        p->plan->refreshes = false;
        HL_TRY(read_control(p, &applied, &stopped));
        if (measured && applied) return measure_step(p, &p->out->step_ns);
    }
    return hl_status_set(HL_ERROR_NOT_FINITE,
                         "profile: a step must be applied to be measured, got a loss or gradients "
                         "that are not finite%s",
                         stopped ? " (the run has stopped)" : "");
}

static hl_status profile_plan(profiler *p)
{
    hl_plan *plan = p->plan;
    hl_session *session = plan->session;
    hl_backup backup = {0};
    hl_status status;
    if (!plan->begun || session->slots_of != plan || session->unfinished)
        return hl_status_set(HL_ERROR_CONFIG,
                             "profile: the plan must have run a step to its end, before another "
                             "plan of the model, got %s",
                             session->unfinished ? "one left in the middle"
                             : plan->begun       ? "another plan since"
                                                 : "none");
    HL_TRY(hl_plan_bind(plan));
    if (session->queue) HL_TRY(hl_queue_enter(session->queue, plan));
    if (session->queue) HL_TRY(hl_queue_drain(session->queue));
    plan->continues = false;
    p->device = session->device;
    p->stream = session->compute;
    p->args = plan->args + plan->slot * plan->n_args;
    session->resident = 0;
    HL_GOTO(hl_alloc_zero(((size_t)plan->schedule.n_tasks + 1) * sizeof *p->out->launches,
                          (void **)&p->out->launches));
    if (p->stream) HL_GOTO(p->device->ops->event_create(p->device, true, &p->begin));
    if (p->stream) HL_GOTO(p->device->ops->event_create(p->device, true, &p->end));
    HL_GOTO(hl_backup_init(session, &backup));
    status = hl_backup_restore(&backup, measure_all(p));
cleanup:
    if (p->begin) p->device->ops->event_destroy(p->device, p->begin);
    if (p->end) p->device->ops->event_destroy(p->device, p->end);
    hl_backup_deinit(&backup);
    hl_free(p->inputs);
    return status;
}

hl_status hl_plan_profile(hl_plan *plan, hl_profile *out_profile)
{
    profiler p = {.plan = plan, .out = out_profile};
    *out_profile = (hl_profile){0};
    HL_TRY(hl_session_enter(plan->session, "profile"));
    hl_status status = profile_plan(&p);
    if (status != HL_OK) hl_session_drop_copies(plan->session);
    hl_session_leave(plan->session);
    if (status != HL_OK) hl_profile_deinit(out_profile);
    return status;
}

void hl_profile_deinit(hl_profile *profile)
{
    hl_free(profile->launches);
    *profile = (hl_profile){0};
}
