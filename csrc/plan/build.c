/* Build: the passes turn a graph into instructions, and a prediction ends there; then the plan
 * enters a session. */
#include "plan/build.h"

#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "plan/bind.h"
#include "plan/dataset.h"
#include "plan/lend.h"
#include "plan/report.h"

/* ---- building -------------------------------------------------------------------------------- */

static hl_status run_passes(hl_graph *graph, hl_device *device, const hl_plan_options *options,
                            int32_t **out_fed, hl_recomputed *out_recomputed)
{
    graph->benchmark = options->benchmark;
    graph->deterministic = options->deterministic;
    HL_TRY(hl_graph_verify(graph));
    const hl_whole_options whole = {.deterministic = options->deterministic,
                                    .tf32 = options->tf32,
                                    .is_mixed = options->compute_dtype != HL_DTYPE_F32};
    HL_TRY(hl_pass_whole(graph, device, &whole));
    HL_TRY(hl_pass_guard(graph));
    HL_TRY(hl_pass_feed(graph, options->fed, out_fed));
    if (options->fuse) HL_TRY(hl_pass_fold(graph, device->scales_columns));
    if (options->compute_dtype != HL_DTYPE_F32 && device->float_type == HL_DTYPE_F64)
        return hl_status_set(HL_ERROR_CONFIG,
                             "plan: mixed precision needs a device that computes in float32, got "
                             "float64");
    HL_TRY(hl_pass_amp(graph, options->compute_dtype, device->keeps_reduced));
    if (options->tf32) hl_pass_tf32(graph);
    if (device->float_type == HL_DTYPE_F64) HL_TRY(hl_pass_double(graph));
    HL_TRY(hl_pass_lower(graph, device, options->deterministic));
    if (options->fuse) HL_TRY(hl_pass_layout(graph));
    if (options->fuse) HL_TRY(hl_pass_relu(graph));
    if (options->fuse) HL_TRY(hl_pass_epilogue(graph, device, options->deterministic));
    if (options->fuse) HL_TRY(hl_pass_pack(graph, device));
    if (options->fuse) HL_TRY(hl_pass_broadcast(graph));
    HL_TRY(hl_pass_hoist(graph));
    if (options->fuse) HL_TRY(hl_pass_rounded(graph, device, options->deterministic));
    if (options->fuse) HL_TRY(hl_pass_fuse(graph, device));
    HL_TRY(hl_pass_recompute(graph, options->recompute, out_recomputed));
    return hl_graph_verify(graph);
}

static hl_status make_stores(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    plan->session->has_copies |= plan->has_copies;
    for (int64_t i = 0; i < graph->n_stores; i++)
        HL_TRY(hl_session_add_store(plan->session, graph->stores[i].name, graph->stores[i].dtype,
                                    graph->stores[i].n));
    return hl_session_add_store(plan->session, "control", HL_DTYPE_U8, sizeof(hl_control));
}

/* Counts the bytes of a slot, whose fields begin at aligned offsets, and checks those of all
 * slots. */
static hl_status count_slots(hl_plan *plan)
{
    int64_t bytes = 0, all;
    bool fits = true;
    for (int32_t f = 0; f < plan->graph->n_inputs; f++) {
        int64_t field = (int64_t)hl_value_bytes(plan->graph, plan->inputs[f]);
        fits = fits && field <= INT64_MAX - HL_ALIGN &&
               !__builtin_add_overflow(bytes, hl_round_up(field, HL_ALIGN), &bytes);
    }
    if (!fits || __builtin_mul_overflow(bytes, (int64_t)plan->n_slots, &all))
        return hl_status_set(HL_ERROR_MEMORY,
                             "plan: out of memory: batches must fit in 63 bits, got %d slots",
                             plan->n_slots);
    plan->slot_bytes = bytes;
    return HL_OK;
}

/* Lists input leaves in order of their number, and makes room for their addresses. */
static hl_status make_slots(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    size_t n_fields = (size_t)graph->n_inputs, n_slots = (size_t)plan->n_slots;
    size_t n_datasets = (size_t)graph->n_datasets;
    HL_TRY(hl_alloc_zero((n_fields + 1) * sizeof(hl_id), (void **)&plan->inputs));
    HL_TRY(hl_alloc_zero((n_fields + 1) * sizeof *plan->given, (void **)&plan->given));
    HL_TRY(hl_alloc_zero((n_datasets + 1) * sizeof(void *), (void **)&plan->datasets));
    HL_TRY(hl_alloc_zero((n_datasets + 1) * sizeof(void *), (void **)&plan->dataset_at));
    HL_TRY(hl_alloc_zero((n_datasets + 1) * sizeof *plan->sources, (void **)&plan->sources));
    HL_TRY(hl_alloc_zero((n_fields * n_slots + 1) * sizeof(void *), (void **)&plan->fields));
    HL_TRY(hl_alloc_zero((n_fields * n_slots + 1) * sizeof(void *), (void **)&plan->staged));
    HL_TRY(hl_alloc_zero((n_datasets + 1) * sizeof(void *), (void **)&plan->dataset_copies));
    for (int64_t v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == HL_VALUE_INPUT)
            plan->inputs[graph->values[v].store] = (hl_id)v;
    return count_slots(plan);
}

/* Where the device cannot read the host's memory, constants and what kernels upload lie in one
 * block of its own. */
static hl_status place_constants(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    if (!hl_device_is_asynchronous(plan->device)) return HL_OK;
    HL_TRY(hl_alloc_zero(((size_t)graph->n_values + 1) * sizeof(int64_t),
                         (void **)&plan->const_offset));
    for (int64_t v = 0; v < graph->n_values; v++) {
        if (graph->values[v].kind != HL_VALUE_CONST) continue;
        plan->const_offset[v] = plan->const_bytes;
        plan->const_bytes += hl_round_up((int64_t)hl_value_bytes(graph, (hl_id)v), HL_ALIGN);
    }
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        plan->const_bytes += hl_round_up((int64_t)plan->instrs[s].state.upload_bytes, HL_ALIGN);
    return HL_OK;
}

/* ---- device memory --------------------------------------------------------------------------- */

static hl_status upload(const hl_plan *plan, int64_t offset, const void *data, size_t bytes)
{
    if (!bytes) return HL_OK;
    return plan->device->ops->copy(plan->device, plan->consts + offset, data, bytes,
                                   HL_COPY_HOST_TO_DEVICE, plan->session->compute);
}

static hl_status upload_constants(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    hl_device *device = plan->device;
    int64_t at = plan->const_bytes;
    if (!plan->const_bytes) return HL_OK;
    HL_TRY(device->ops->memory_alloc(device, (size_t)plan->const_bytes, (void **)&plan->consts));
    for (int64_t v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == HL_VALUE_CONST)
            HL_TRY(upload(plan, plan->const_offset[v], graph->values[v].data,
                          hl_value_bytes(graph, (hl_id)v)));
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        hl_kernel_state *state = &plan->instrs[s].state;
        at -= hl_round_up((int64_t)state->upload_bytes, HL_ALIGN);
        HL_TRY(upload(plan, at, state->upload, state->upload_bytes));
        state->uploaded = plan->consts + at;
    }
    return device->ops->synchronize(device, plan->session->compute);
}

/* ---- launches for several tasks ------------------------------------------------------------- */

/* The part of a store or of the arena that a value takes; HL_NONE: no task writes there. */
enum { IN_ARENA = -2 };
typedef struct store_part {
    int32_t store;
    int64_t begin, end; /* bytes */
} store_part;

static store_part find_part(const hl_plan *plan, hl_id id)
{
    const hl_place *place = &plan->memory.places[id];
    const hl_value *root = hl_graph_value(plan->graph, place->root);
    bool is_made = root->kind == HL_VALUE_ACT;
    if (!is_made && root->kind != HL_VALUE_PARAM && root->kind != HL_VALUE_STATE)
        return (store_part){.store = HL_NONE};
    int64_t begin = is_made ? plan->memory.places[place->root].offset
                            : root->offset * (int64_t)hl_dtype_bytes(root->type.dtype);
    if (place->root != id) begin += place->offset;
    return (store_part){is_made ? IN_ARENA : root->store, begin,
                        begin + (int64_t)hl_value_bytes(plan->graph, id)};
}

static bool is_touched(const hl_plan *plan, const store_part *part, hl_id id)
{
    store_part other = find_part(plan, id);
    return other.store == part->store && other.begin < part->end && part->begin < other.end;
}

/* May the writer write what the other node reads or writes? */
static bool writes_into(const hl_plan *plan, hl_node_id writer, hl_node_id other)
{
    const hl_node *node = &plan->graph->nodes[writer], *to = &plan->graph->nodes[other];
    for (int32_t o = 0; o < node->n_out; o++) {
        store_part part = find_part(plan, node->out + o);
        if (part.store == HL_NONE) return true;
        for (int32_t j = 0; j < to->n_in; j++)
            if (is_touched(plan, &part, to->in[j])) return true;
        for (int32_t j = 0; j < to->n_out; j++)
            if (is_touched(plan, &part, to->out + j)) return true;
    }
    return false;
}

/* Does the task run whenever the other one does, and at no other time? */
static bool runs_with(const hl_instr *instr, const hl_instr *other)
{
    return instr->segment == other->segment && instr->opens == other->opens &&
           instr->refreshes == other->refreshes && !instr->elided;
}

/* Can the task be one launch with the n before it, of these nodes? */
static bool goes_with(const hl_plan *plan, const hl_instr *instr, hl_node_id *nodes, int32_t n)
{
    const hl_kernel *kernel = instr[-n].kernel;
    if (instr->kernel->prepare_horizontal != kernel->prepare_horizontal ||
        !runs_with(instr, instr - n))
        return false;
    for (int32_t i = 0; i < n; i++)
        if (writes_into(plan, nodes[i], instr->node) || writes_into(plan, instr->node, nodes[i]))
            return false;
    nodes[n] = instr->node;
    return !kernel->is_horizontal || kernel->is_horizontal(plan->device, plan->graph, nodes, n + 1);
}

/* Can the task be a step of the launch of the n before it? */
static bool goes_behind(const hl_plan *plan, const hl_instr *instr, hl_node_id *nodes, int32_t n)
{
    const hl_kernel *kernel = instr->kernel;
    const hl_instr *first = instr - n;
    if (!kernel->prepare_sequence || kernel->prepare_sequence != first->kernel->prepare_sequence ||
        !runs_with(instr, first))
        return false;
    nodes[n] = instr->node;
    return kernel->is_sequence(plan->device, plan->graph, nodes, n + 1);
}

typedef bool (*goes_fn)(const hl_plan *plan, const hl_instr *instr, hl_node_id *nodes, int32_t n);

/* Counts how many tasks from this one on are one launch, and lists their nodes. */
static int32_t count_joined(const hl_plan *plan, int32_t task, goes_fn goes,
                            hl_node_id out_nodes[HL_KERNEL_HORIZONTAL])
{
    const hl_instr *first = &plan->instrs[task];
    int32_t n = 0, most = plan->schedule.n_tasks - task;
    if (most > HL_KERNEL_HORIZONTAL) most = HL_KERNEL_HORIZONTAL;
    while (n < most && goes(plan, first + n, out_nodes, n)) n++;
    return n ? n : 1;
}

static bool takes_next(const hl_plan *plan, int32_t task)
{
    const hl_instr *instr = &plan->instrs[task], *next = instr + 1;
    return instr->kernel->prepare_next && task + 1 < plan->schedule.n_tasks &&
           runs_with(next, instr) &&
           instr->kernel->takes_next(plan->graph, instr->node, next->node);
}

static hl_region *region_of(const hl_plan *plan, int32_t task)
{
    const hl_schedule *schedule = &plan->schedule;
    return &schedule->regions[schedule->chains[schedule->tasks[task].chain].region];
}

/* The first task's launch does the other's work, and waits for what the other would. */
static void join_launch(const hl_plan *plan, int32_t first, int32_t other)
{
    int32_t awaits = region_of(plan, other)->awaits;
    if (awaits > region_of(plan, first)->awaits) region_of(plan, first)->awaits = awaits;
    plan->instrs[other].joined = true;
}

/* Prepares the launch of a task, and of as many behind it as can be one with it. Tasks that do not
 * wait for each other run side by side where that takes as many. */
static hl_status prepare_launch(hl_plan *plan, int32_t task, int32_t *out_n)
{
    hl_device *device = plan->device;
    const hl_graph *graph = plan->graph;
    hl_instr *instr = &plan->instrs[task];
    const hl_kernel *kernel = instr->kernel;
    hl_node_id beside[HL_KERNEL_HORIZONTAL], behind[HL_KERNEL_HORIZONTAL];
    int32_t n_beside = 1, n_behind = 1;
    bool joins = plan->options.fuse;
    if (joins && kernel->prepare_horizontal) n_beside = count_joined(plan, task, goes_with, beside);
    if (joins && kernel->prepare_sequence) n_behind = count_joined(plan, task, goes_behind, behind);
    *out_n = n_behind > n_beside ? n_behind : n_beside;
    if (joins && takes_next(plan, task)) {
        *out_n = 2;
        return kernel->prepare_next(device, graph, instr->node, instr[1].node, &instr->state);
    }
    if (n_behind > n_beside)
        return kernel->prepare_sequence(device, graph, behind, n_behind, &instr->state);
    if (n_beside > 1)
        return kernel->prepare_horizontal(device, graph, beside, n_beside, &instr->state);
    return kernel->prepare ? kernel->prepare(device, graph, instr->node, &instr->state) : HL_OK;
}

static hl_status prepare_instructions(hl_plan *plan)
{
    int32_t n;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s += n) {
        hl_instr *instr = &plan->instrs[s];
        instr->state.kernel = instr->kernel;
        HL_TRY(prepare_launch(plan, s, &n));
        instr->prepared = n > 1 || instr->kernel->prepare;
        for (int32_t i = 1; i < n; i++) join_launch(plan, s, s + i);
    }
    return HL_OK;
}

/* Does the node make a rounded copy anew? */
static bool is_refreshing(const hl_graph *graph, const hl_node *node)
{
    if (node->segment != HL_SEGMENT_BEGIN || !(hl_op_get(node->op)->flags & HL_OP_UPDATES))
        return false;
    hl_id leaf = hl_graph_updated(graph, node->in[0]);
    return graph->stores[hl_graph_value(graph, leaf)->store].source != HL_NONE;
}

static hl_status make_instructions(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    int64_t n_args = 0;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        const hl_node *node = &graph->nodes[plan->schedule.tasks[s].node];
        n_args += node->n_in + node->n_out;
    }
    plan->n_args = n_args;
    HL_TRY(hl_alloc_zero(((size_t)plan->schedule.n_tasks + 1) * sizeof *plan->instrs,
                         (void **)&plan->instrs));
    HL_TRY(hl_alloc_zero(((size_t)n_args * (size_t)plan->n_slots + 1) * sizeof(void *),
                         (void **)&plan->args));
    int64_t first = 0;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        hl_instr *instr = &plan->instrs[s];
        const hl_node *node = &graph->nodes[plan->schedule.tasks[s].node];
        instr->kernel = plan->schedule.tasks[s].kernel;
        instr->node = plan->schedule.tasks[s].node;
        instr->segment = node->segment;
        instr->first_arg = first;
        instr->elided = plan->memory.elided[s];
        instr->refreshes = is_refreshing(graph, node);
        instr->opens = node->segment == HL_SEGMENT_BEGIN && !instr->refreshes &&
                       hl_op_get(node->op)->flags & HL_OP_UPDATES;
        plan->trains |= instr->opens;
        plan->has_copies |= instr->refreshes;
        first += node->n_in + node->n_out;
    }
    return prepare_instructions(plan);
}

/* ---- making ---------------------------------------------------------------------------------- */

static bool has_tunable(const hl_plan *plan)
{
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        if (plan->instrs[s].kernel->tune && !plan->instrs[s].elided) return true;
    return false;
}

/* Builds a plan without its memory on the device. Takes the graph, on failure too. */
static hl_status build_once(hl_device *device, hl_graph *graph, const hl_plan_options *options,
                            hl_plan **out_plan)
{
    hl_plan *plan = NULL;
    hl_choice *choices = NULL;
    hl_status status;
    HL_GOTO(hl_alloc_zero(sizeof *plan, (void **)&plan));
    plan->device = device;
    plan->graph = graph;
    graph = NULL;
    plan->options = *options;
    plan->n_slots = options->n_slots > 0 ? options->n_slots : 1;
    plan->k = options->k > 0 ? options->k : 1;
    plan->compute_dtype = options->compute_dtype;
    plan->generation = -1;
    plan->captures = options->capture && device->ops->capture_begin;
    HL_GOTO(run_passes(plan->graph, device, options, &plan->fed, &plan->recomputed));
    HL_GOTO(hl_pass_select(plan->graph, device, options->deterministic, &choices));
    HL_GOTO(hl_pass_schedule(plan->graph, device, choices, options->chain, options->overlap,
                             &plan->schedule));
    HL_GOTO(hl_pass_memory(plan->graph, &plan->schedule, device, &plan->memory));
    hl_schedule_partition(plan->graph, device, plan->memory.elided, &plan->schedule);
    HL_GOTO(make_slots(plan));
    HL_GOTO(make_instructions(plan));
    HL_GOTO(hl_plan_find_lenders(plan));
    HL_GOTO(place_constants(plan));
cleanup:
    hl_free(choices);
    hl_graph_destroy(graph);
    *out_plan = plan; /* on failure too: what it knows explains the error */
    return status;
}

static int64_t count_refusals(const hl_device *device)
{
    return __atomic_load_n(&device->n_refusals, __ATOMIC_ACQUIRE);
}

/* Like it. Passes and selection ask kernels about the same nodes, and between two of them another
 * thread's plan may find out that a kernel does not take one: then all of them ask again.
 * keeps_source: the plan is going to be tuned, and may have to be made again. */
static hl_status build_plan(hl_device *device, hl_graph *graph, const hl_plan_options *options,
                            bool keeps_source, hl_plan **out_plan)
{
    hl_graph *source = NULL;
    hl_status status = HL_OK;
    *out_plan = NULL;
    if (!hl_device_is_asynchronous(device)) return build_once(device, graph, options, out_plan);
    HL_GOTO(hl_graph_clone(graph, &source));
    for (bool is_done = false; !is_done;) {
        int64_t n = count_refusals(device);
        status = build_once(device, graph, options, out_plan);
        graph = NULL;
        is_done = status != HL_ERROR_DEVICE || n == count_refusals(device);
        if (is_done) continue;
        hl_plan_destroy(*out_plan);
        *out_plan = NULL;
        HL_GOTO(hl_graph_clone(source, &graph));
    }
    if (status == HL_OK && keeps_source && has_tunable(*out_plan)) {
        (*out_plan)->source = source;
        source = NULL;
    }
cleanup:
    hl_graph_destroy(graph);
    hl_graph_destroy(source);
    return status;
}

hl_status hl_plan_predict(hl_device *device, hl_graph *graph, const hl_plan_options *options,
                          hl_plan_info *out_info, char **out_text)
{
    hl_plan *plan;
    *out_info = (hl_plan_info){0};
    if (out_text) *out_text = NULL;
    hl_status status = build_plan(device, graph, options, false, &plan);
    if (status == HL_OK) hl_plan_info_read(plan, out_info);
    if (status == HL_OK && out_text) status = hl_plan_print(plan, out_text);
    hl_plan_destroy(plan);
    return status;
}

/* Decides how many steps are one burst. */
static void choose_burst(hl_plan *plan)
{
    hl_plan_info info;
    plan->burst = 1;
    if (!plan->session->queue || !plan->captures || !plan->slot_bytes) return;
    hl_plan_info_predict(plan, &info);
    plan->burst = hl_queue_choose_burst(&info, plan->n_slots);
}

static hl_status make_captures(hl_plan *plan)
{
    choose_burst(plan);
    if (!plan->session->queue) return HL_OK;
    return hl_alloc_zero((size_t)hl_queue_count_captures(plan) * sizeof *plan->captured,
                         (void **)&plan->captured);
}

/* Enters the plan in the session, while nothing else runs there. */
static hl_status register_plan(hl_plan *plan, hl_session *session)
{
    if (session->n_plans == INT32_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "plan: a session must have made fewer than 2^31");
    plan->session = session;
    plan->number = ++session->n_plans;
    plan->next = session->plans;
    session->plans = plan;
    HL_TRY(make_captures(plan));
    HL_TRY(make_stores(plan));
    HL_TRY(upload_constants(plan));
    return hl_plan_reserve(plan);
}

/* Adds the predicted bytes to the error for lack of memory. */
static hl_status explain_memory(const hl_plan *plan, hl_status status)
{
    hl_plan_info info;
    if (status != HL_ERROR_MEMORY || !plan || !plan->memory.places) return status;
    hl_plan_info_bytes(plan, &info);
    return hl_status_context(
        status,
        "plan: predicted are %lld bytes (%lld of activations and scratch, %lld of batches, %lld of "
        "parameters and state)",
        (long long)(info.arena_bytes + info.slot_bytes + info.const_bytes + info.store_bytes),
        (long long)info.arena_bytes, (long long)info.slot_bytes, (long long)info.store_bytes);
}

static hl_status create_once(hl_session *session, hl_graph *graph, const hl_plan_options *options,
                             hl_plan **out_plan)
{
    hl_plan *plan = NULL;
    hl_status status;
    *out_plan = NULL;
    HL_GOTO(build_plan(session->device, graph, options, hl_device_is_asynchronous(session->device),
                       &plan));
    HL_GOTO(hl_session_enter(session, "plan"));
    status = register_plan(plan, session);
    hl_session_leave(session);
    if (status != HL_OK) goto cleanup;
    *out_plan = plan;
    plan = NULL;
cleanup:
    explain_memory(plan, status);
    hl_plan_destroy(plan);
    return status;
}

/* What runs beside the backward pass keeps its operands for longer. Where there is no memory for
 * that, the plan is made without. */
hl_status hl_plan_create(hl_session *session, hl_graph *graph, const hl_plan_options *options,
                         hl_plan **out_plan)
{
    hl_plan_options in_order = *options;
    hl_graph *again = NULL;
    hl_status status;
    *out_plan = NULL;
    in_order.overlap = false;
    if (!options->overlap || session->device->overlap_flops <= 0)
        return create_once(session, graph, options, out_plan);
    HL_GOTO(hl_graph_clone(graph, &again));
    status = create_once(session, graph, options, out_plan);
    graph = NULL;
    if (status != HL_ERROR_MEMORY) goto cleanup;
    status = create_once(session, again, &in_order, out_plan);
    again = NULL;
cleanup:
    hl_graph_destroy(graph);
    hl_graph_destroy(again);
    return status;
}

/* ---- making again ---------------------------------------------------------------------------- */

#define SWAP(a, b, member)                                                                         \
    do {                                                                                           \
        char hl_kept[sizeof(a)->member];                                                           \
        memcpy(hl_kept, &(a)->member, sizeof hl_kept);                                             \
        memcpy(&(a)->member, &(b)->member, sizeof hl_kept);                                        \
        memcpy(&(b)->member, hl_kept, sizeof hl_kept);                                             \
    } while (0)

/* All that depends on which kernel has which node. Slots, feed and datasets depend on the inputs,
 * which are those of the source. */
static void swap_built(hl_plan *a, hl_plan *b)
{
    SWAP(a, b, graph);
    SWAP(a, b, schedule);
    SWAP(a, b, memory);
    SWAP(a, b, instrs);
    SWAP(a, b, args);
    SWAP(a, b, n_args);
    SWAP(a, b, inputs);
    SWAP(a, b, consts);
    SWAP(a, b, const_bytes);
    SWAP(a, b, const_offset);
    SWAP(a, b, has_copies);
}

hl_status hl_plan_rebuild(hl_plan *plan)
{
    hl_graph *graph;
    hl_plan *made = NULL;
    HL_TRY(hl_graph_clone(plan->source, &graph));
    hl_status status;
    HL_GOTO(build_plan(plan->device, graph, &plan->options, false, &made));
    made->session = plan->session;
    HL_GOTO(make_stores(made));
    HL_GOTO(upload_constants(made));
    hl_plan_unbind_feed(plan); /* its loaders read the graph */
    swap_built(plan, made);
    hl_plan_bind_feed(plan);
    plan->generation = -1;
    plan->n_tuned = 0;
    choose_burst(plan);
cleanup:
    /* It was never entered into the session. */
    if (made && made->consts) plan->device->ops->memory_free(plan->device, made->consts);
    if (made) made->session = NULL;
    hl_plan_destroy(made);
    return status;
}

void hl_plan_drop_source(hl_plan *plan)
{
    hl_graph_destroy(plan->source);
    plan->source = NULL;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Nothing of the session is the plan's any more. */
static void leave_session(hl_plan *plan)
{
    hl_session *session = plan->session;
    hl_plan **link = &session->plans;
    hl_session_await(session);
    if (session->slots_of == plan) hl_plan_release_slots(session);
    hl_plan_unbind_feed(plan);
    if (session->unfinished && session->unfinished->plan == plan) session->unfinished = NULL;
    if (session->queue) hl_queue_leave(session->queue, plan);
    while (*link && *link != plan) link = &(*link)->next;
    if (*link) *link = plan->next;
    hl_plan_free_datasets(plan);
    if (plan->consts) plan->device->ops->memory_free(plan->device, plan->consts);
    hl_session_leave(session);
}

static void release_instructions(hl_plan *plan)
{
    for (int32_t s = 0; plan->instrs && s < plan->schedule.n_tasks; s++) {
        hl_instr *instr = &plan->instrs[s];
        if (!instr->prepared) continue;
        if (instr->kernel->release)
            instr->kernel->release(&instr->state);
        else
            hl_free(instr->state.impl);
    }
    hl_free(plan->instrs);
}

void hl_plan_destroy(hl_plan *plan)
{
    if (!plan) return;
    if (plan->session) leave_session(plan);
    release_instructions(plan);
    hl_free(plan->captured);
    hl_free(plan->const_offset);
    hl_free(plan->dataset_copies);
    hl_free(plan->args);
    hl_free(plan->inputs);
    hl_free(plan->given);
    hl_free(plan->datasets);
    hl_free(plan->dataset_at);
    hl_free(plan->sources);
    hl_free(plan->fed);
    hl_free(plan->fields);
    hl_free(plan->staged);
    hl_memory_deinit(&plan->memory);
    hl_schedule_deinit(&plan->schedule);
    hl_plan_drop_source(plan);
    hl_graph_destroy(plan->graph);
    hl_free(plan);
}
