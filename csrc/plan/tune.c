/* Tune: kernels choose their algorithms before the first step, in the memory where it is going to
 * run.
 *
 * Nothing lies there yet. A product of zeros, or of whatever the memory held, tells neither how
 * long it takes (a GPU lowers its clock by the power that it draws, and zeros draw little) nor
 * whether two runs have the same bits. So operands in the arena are filled with numbers. Stores,
 * batches and constants are the model's: another place in the arena stands for such an operand
 * where there is one, and else it is read as it is.
 *
 * A kernel may find out that it does not take its node (hl_kernel.tune): a library that said it
 * could cannot, or is slower than what it would save. It refuses such nodes from then on, and when
 * all tasks were tuned the plan is made again of its source. So whatever was fused for that
 * kernel's sake stands in the plan by itself again, and operands in a form of its own are plain
 * again. What is known by then is not measured twice.
 *
 * Rejected: a second kernel kept ready for each node (an epilogue that only a library has leaves
 * none), tuning while a plan is made (weights and memory are not there yet). */
#include "plan/tune.h"

#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "plan/bind.h"
#include "plan/build.h"
#include "plan/run.h"

enum { MAX_ARGS = 24, PATTERN = 1 << 14 };

/* What is taken of the arena. */
typedef struct span {
    char *begin, *end;
} span;

typedef struct operands {
    const hl_plan *plan;
    const hl_node *node;
    void *args[MAX_ARGS];
    span taken[2 * MAX_ARGS + 1];
    int n_taken;
    double *numbers; /* PATTERN of them */
    void *pattern;   /* the same as elements of a dtype */
} operands;

/* ---- places ---------------------------------------------------------------------------------- */

static bool is_in_arena(const hl_plan *plan, const void *at)
{
    const char *arena = plan->session->arena;
    return (const char *)at >= arena && (const char *)at < arena + plan->memory.arena_bytes;
}

static void take(operands *o, void *at, size_t bytes)
{
    o->taken[o->n_taken++] = (span){at, (char *)at + bytes};
}

static bool is_free(const operands *o, const char *begin, size_t bytes)
{
    const char *arena = o->plan->session->arena;
    bool fits = begin >= arena && bytes <= (size_t)o->plan->memory.arena_bytes &&
                begin <= arena + o->plan->memory.arena_bytes - bytes;
    for (int i = 0; i < o->n_taken && fits; i++)
        fits = begin + bytes <= o->taken[i].begin || begin >= o->taken[i].end;
    return fits;
}

/* A place in the arena behind what is taken; NULL: there is none. */
static void *find_place(const operands *o, size_t bytes)
{
    char *arena = o->plan->session->arena;
    size_t align = o->plan->device->alignment;
    if (is_free(o, arena, bytes)) return arena;
    for (int i = 0; i < o->n_taken; i++) {
        size_t offset = (size_t)(o->taken[i].end - arena);
        char *at = arena + (offset + align - 1) / align * align;
        if (is_free(o, at, bytes)) return at;
    }
    return NULL;
}

static hl_id value_of(const operands *o, int32_t arg)
{
    return arg < o->node->n_in ? o->node->in[arg] : o->node->out + arg - o->node->n_in;
}

static size_t bytes_of(const operands *o, int32_t arg)
{
    return hl_value_bytes(o->plan->graph, value_of(o, arg));
}

static void find_places(operands *o, int32_t task)
{
    const hl_instr *instr = &o->plan->instrs[task];
    int32_t n_in = o->node->n_in, n = n_in + o->node->n_out;
    for (int32_t i = 0; i < n; i++)
        if (is_in_arena(o->plan, o->args[i])) take(o, o->args[i], bytes_of(o, i));
    if (instr->scratch) take(o, instr->scratch, o->plan->schedule.tasks[task].req.scratch_bytes);
    for (int32_t i = 0; i < n_in; i++) {
        void *at = is_in_arena(o->plan, o->args[i]) ? NULL : find_place(o, bytes_of(o, i));
        if (!at) continue;
        o->args[i] = at;
        take(o, at, bytes_of(o, i));
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* PATTERN elements of an operand, from -1 to 1; of bools and of bits, any. False: it is read as it
 * is, since integers may be indices. */
static bool make_pattern(operands *o, int32_t arg, size_t *out_bytes)
{
    hl_dtype dtype = hl_graph_dtype(o->plan->graph, value_of(o, arg));
    unsigned most = hl_graph_form(o->plan->graph, value_of(o, arg)) ? 255 : 1;
    *out_bytes = PATTERN * hl_dtype_bytes(dtype);
    hl_rng_fill_uniform(hl_rng_key_make((uint64_t)arg, "tune"), -1, 1, o->numbers, PATTERN);
    if (hl_dtype_is_float(dtype)) hl_convert(dtype, o->pattern, HL_DTYPE_F64, o->numbers, PATTERN);
    for (int i = 0; i < PATTERN && dtype == HL_DTYPE_BOOL; i++)
        ((unsigned char *)o->pattern)[i] = (unsigned char)((o->numbers[i] + 1) / 2 * (most + 0.99));
    return hl_dtype_is_float(dtype) || dtype == HL_DTYPE_BOOL;
}

/* The pattern, again and again: the host sends it once. */
static hl_status fill(operands *o, int32_t arg)
{
    hl_device *device = o->plan->device;
    hl_stream *stream = o->plan->session->compute;
    size_t bytes = bytes_of(o, arg), n;
    if (!make_pattern(o, arg, &n)) return HL_OK;
    if (n > bytes) n = bytes;
    char *at = o->args[arg];
    HL_TRY(device->ops->copy(device, at, o->pattern, n, HL_COPY_HOST_TO_DEVICE, stream));
    for (size_t done = n; done < bytes; done += n) {
        n = done < bytes - done ? done : bytes - done;
        HL_TRY(device->ops->copy(device, at + done, at, n, HL_COPY_DEVICE_TO_DEVICE, stream));
    }
    return HL_OK;
}

/* Places for all operands of a task, inputs filled. */
static hl_status make_operands(operands *o, int32_t task)
{
    hl_status status;
    find_places(o, task);
    HL_GOTO(hl_alloc(PATTERN * sizeof *o->numbers, (void **)&o->numbers));
    HL_GOTO(hl_alloc(PATTERN * sizeof(double), &o->pattern));
    for (int32_t i = 0; i < o->node->n_in; i++)
        if (is_in_arena(o->plan, o->args[i])) HL_GOTO(fill(o, i));
cleanup:
    hl_free(o->numbers);
    hl_free(o->pattern);
    return status;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

static hl_status tune_task(const hl_plan *plan, int32_t task)
{
    const hl_instr *instr = &plan->instrs[task];
    const hl_node *node = &plan->graph->nodes[instr->node];
    int32_t n = node->n_in + node->n_out;
    void **args = plan->args + instr->first_arg;
    operands o = {.plan = plan, .node = node};
    if ((plan->graph->benchmark || plan->graph->deterministic) && n <= MAX_ARGS) {
        memcpy(o.args, args, (size_t)n * sizeof *args);
        HL_TRY(make_operands(&o, task));
        args = o.args;
    }
    return hl_plan_tune_task(plan, task, args, plan->session->compute);
}

/* Each time some kernel takes fewer nodes than before, so this ends. */
static hl_status make_again(hl_plan *plan)
{
    if (plan->n_rebuilt++ > plan->source->n_nodes)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "plan: a kernel must refuse what it said it does not take");
    HL_TRY(hl_plan_rebuild(plan));
    plan->is_outdated = false;
    return HL_OK;
}

hl_status hl_plan_tune_next(hl_plan *plan, bool *out_waited)
{
    *out_waited = plan->n_tuned == plan->schedule.n_tasks;
    if (*out_waited) return make_again(plan);
    const hl_instr *instr = &plan->instrs[plan->n_tuned];
    *out_waited = instr->kernel->tune && !instr->elided;
    if (*out_waited) {
        HL_TRY(hl_plan_bind(plan));
        plan->session->resident = 0;
        hl_status status = tune_task(plan, plan->n_tuned);
        plan->is_outdated |= status == HL_ERROR_CONFIG;
        if (status == HL_ERROR_CONFIG)
            hl_log(HL_LOG_DEBUG, "node %d: not %s: %s", (int)instr->node, instr->kernel->name,
                   hl_status_message());
        else
            HL_TRY(status);
    }
    plan->n_tuned++;
    if (hl_plan_is_tuned(plan)) hl_plan_drop_source(plan);
    return HL_OK;
}
