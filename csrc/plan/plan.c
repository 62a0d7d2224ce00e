/* Plan: a graph through the passes, and every operand to an address. */
#include "plan/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"

/* ---- building -------------------------------------------------------------------------------- */

static hl_status run_passes(hl_graph *graph, hl_device *device, const hl_plan_options *options,
                            int32_t **out_fed)
{
    graph->benchmark = options->benchmark;
    HL_TRY(hl_graph_verify(graph));
    HL_TRY(hl_pass_guard(graph));
    if (options->fed) HL_TRY(hl_pass_feed(graph, out_fed));
    if (options->low != HL_DTYPE_F32 && device->float_type == HL_DTYPE_F64)
        return hl_status_set(HL_ERROR_CONFIG,
                             "plan: mixed precision needs a device that computes in float32, got "
                             "float64");
    HL_TRY(hl_pass_amp(graph, options->low, device->keeps_low));
    if (options->tf32) hl_pass_tf32(graph);
    if (device->float_type == HL_DTYPE_F64) HL_TRY(hl_pass_double(graph));
    if (options->fuse) HL_TRY(hl_pass_epilogue(graph, device, options->deterministic));
    HL_TRY(hl_pass_lower(graph, device, options->deterministic));
    HL_TRY(hl_pass_pack(graph, device));
    HL_TRY(hl_pass_hoist(graph));
    if (options->fuse) HL_TRY(hl_pass_fuse(graph, device));
    return hl_graph_verify(graph);
}

static hl_status make_stores(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    for (int64_t i = 0; i < graph->n_stores; i++)
        HL_TRY(hl_session_add_store(plan->session, graph->stores[i].name, graph->stores[i].dtype,
                                    graph->stores[i].n));
    return hl_session_add_store(plan->session, "control", HL_DTYPE_U8, sizeof(hl_control));
}

/* Bytes of all slots; a field begins where a vector may. */
static hl_status count_slots(const hl_plan *plan, int64_t *out_bytes)
{
    int64_t bytes = 0;
    bool fits = true;
    for (int32_t f = 0; f < plan->graph->n_inputs; f++) {
        int64_t field = (int64_t)hl_value_bytes(plan->graph, plan->inputs[f]);
        fits = fits && field <= INT64_MAX - HL_ALIGN &&
               !__builtin_add_overflow(bytes, hl_round_up(field, HL_ALIGN), &bytes);
    }
    *out_bytes = 0;
    if (!fits || __builtin_mul_overflow(bytes, (int64_t)plan->n_slots, out_bytes))
        return hl_status_set(HL_ERROR_MEMORY,
                             "plan: out of memory: batches must fit in 63 bits, got %d slots",
                             plan->n_slots);
    return HL_OK;
}

/* Input leaves in order of their number, and the ring of slots behind them. */
static hl_status make_slots(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    size_t n_fields = (size_t)graph->n_inputs, n_slots = (size_t)plan->n_slots;
    HL_TRY(hl_alloc_zero((n_fields + 1) * sizeof(hl_id), (void **)&plan->inputs));
    HL_TRY(hl_alloc_zero(((size_t)graph->n_sources + 1) * sizeof(void *), (void **)&plan->sources));
    HL_TRY(
        hl_alloc_zero(((size_t)graph->n_sources + 1) * sizeof(void *), (void **)&plan->source_at));
    HL_TRY(hl_alloc_zero((n_fields * n_slots + 1) * sizeof(void *), (void **)&plan->fields));
    for (int64_t v = 0; v < graph->n_values; v++)
        if (graph->values[v].kind == HL_VALUE_INPUT)
            plan->inputs[graph->values[v].store] = (hl_id)v;
    HL_TRY(count_slots(plan, &plan->slot_bytes));
    if (plan->slot_bytes) {
        hl_device *device = plan->session->device;
        HL_TRY(device->ops->memory_alloc(device, (size_t)plan->slot_bytes, &plan->slots));
        HL_TRY(device->ops->fill_zero(device, plan->slots, (size_t)plan->slot_bytes,
                                      plan->session->compute));
    }
    char *at = plan->slots;
    for (size_t s = 0; s < n_slots; s++)
        for (size_t f = 0; f < n_fields; f++) {
            plan->fields[s * n_fields + f] = at;
            at += hl_round_up((int64_t)hl_value_bytes(graph, plan->inputs[f]), HL_ALIGN);
        }
    return HL_OK;
}

/* Constants where the device can read them, and the queue that it works off. */
static hl_status make_queue(hl_plan *plan, bool capture)
{
    const hl_graph *graph = plan->graph;
    hl_session *session = plan->session;
    hl_device *device = session->device;
    int64_t bytes = 0;
    if (!hl_device_is_asynchronous(device)) return HL_OK;
    HL_TRY(hl_alloc_zero(((size_t)graph->n_values + 1) * sizeof(int64_t),
                         (void **)&plan->const_offset));
    HL_TRY(hl_alloc_zero(((size_t)graph->n_sources + 1) * sizeof(void *),
                         (void **)&plan->source_copies));
    for (int64_t v = 0; v < graph->n_values; v++) {
        if (graph->values[v].kind != HL_VALUE_CONST) continue;
        plan->const_offset[v] = bytes;
        bytes += hl_round_up((int64_t)hl_value_bytes(graph, (hl_id)v), HL_ALIGN);
    }
    if (bytes) HL_TRY(device->ops->memory_alloc(device, (size_t)bytes, (void **)&plan->consts));
    for (int64_t v = 0; v < graph->n_values; v++) {
        size_t value_bytes = hl_value_bytes(graph, (hl_id)v);
        if (graph->values[v].kind != HL_VALUE_CONST || !value_bytes) continue;
        HL_TRY(device->ops->copy(device, plan->consts + plan->const_offset[v],
                                 graph->values[v].data, value_bytes, HL_COPY_HOST_TO_DEVICE,
                                 session->compute));
    }
    HL_TRY(device->ops->synchronize(device, session->compute));
    return hl_queue_create(plan, capture, &plan->queue);
}

/* ---- steps of one launch --------------------------------------------------------------------- */

/* What a value takes of a store or of the arena; HL_NONE: it lies where no step writes. */
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

/* May it write what the other node reads or writes? */
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

/* Does the step go with the n before it, of these nodes? */
static bool goes_with(const hl_plan *plan, const hl_instr *instr, hl_node_id *nodes, int32_t n)
{
    const hl_kernel *kernel = instr[-n].kernel;
    if (instr->kernel->prepare_together != kernel->prepare_together ||
        instr->segment != instr[-n].segment)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (writes_into(plan, nodes[i], instr->node) || writes_into(plan, instr->node, nodes[i]))
            return false;
    nodes[n] = instr->node;
    return !kernel->is_together ||
           kernel->is_together(plan->session->device, plan->graph, nodes, n + 1);
}

/* How many steps from this one on are one launch; their nodes. */
static int32_t find_together(const hl_plan *plan, int32_t step,
                             hl_node_id out_nodes[HL_KERNEL_TOGETHER])
{
    const hl_instr *first = &plan->instrs[step];
    int32_t n = 0, most = plan->schedule.n_steps - step;
    if (most > HL_KERNEL_TOGETHER) most = HL_KERNEL_TOGETHER;
    while (n < most && goes_with(plan, first + n, out_nodes, n)) n++;
    return n ? n : 1;
}

static bool takes_next(const hl_plan *plan, int32_t step)
{
    const hl_instr *instr = &plan->instrs[step], *next = instr + 1;
    return instr->kernel->prepare_next && step + 1 < plan->schedule.n_steps &&
           next->segment == instr->segment &&
           plan->graph->nodes[next->node].op == instr->kernel->next_op;
}

static hl_status prepare_instructions(hl_plan *plan)
{
    hl_device *device = plan->session->device;
    int32_t n = 1;
    for (int32_t s = 0; s < plan->schedule.n_steps; s += n) {
        hl_instr *instr = &plan->instrs[s];
        const hl_kernel *kernel = instr->kernel;
        hl_node_id nodes[HL_KERNEL_TOGETHER];
        n = kernel->prepare_together ? find_together(plan, s, nodes) : 1;
        instr->state.kernel = kernel;
        if (takes_next(plan, s)) {
            n = 2;
            HL_TRY(kernel->prepare_next(device, plan->graph, instr->node, instr[1].node,
                                        &instr->state));
        } else if (n > 1) {
            HL_TRY(kernel->prepare_together(device, plan->graph, nodes, n, &instr->state));
        } else if (kernel->prepare) {
            HL_TRY(kernel->prepare(device, plan->graph, instr->node, &instr->state));
        }
        instr->prepared = n > 1 || kernel->prepare;
        for (int32_t i = 1; i < n; i++) plan->instrs[s + i].joined = true;
    }
    return HL_OK;
}

static hl_status make_instructions(hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    int64_t n_args = 0;
    for (int32_t s = 0; s < plan->schedule.n_steps; s++) {
        const hl_node *node = &graph->nodes[plan->schedule.steps[s].node];
        n_args += node->n_in + node->n_out;
    }
    plan->n_args = n_args;
    HL_TRY(hl_alloc_zero(((size_t)plan->schedule.n_steps + 1) * sizeof *plan->instrs,
                         (void **)&plan->instrs));
    HL_TRY(hl_alloc_zero(((size_t)n_args * (size_t)plan->n_slots + 1) * sizeof(void *),
                         (void **)&plan->args));
    int64_t first = 0;
    for (int32_t s = 0; s < plan->schedule.n_steps; s++) {
        hl_instr *instr = &plan->instrs[s];
        const hl_node *node = &graph->nodes[plan->schedule.steps[s].node];
        instr->kernel = plan->schedule.steps[s].kernel;
        instr->node = plan->schedule.steps[s].node;
        instr->segment = node->segment;
        instr->first_arg = first;
        instr->elided = plan->memory.elided[s];
        instr->opens =
            node->segment == HL_SEGMENT_BEGIN && hl_op_get(node->op)->flags & HL_OP_GUARDED;
        plan->trains |= node->op == HL_OP_CONTROL_BEGIN;
        first += node->n_in + node->n_out;
    }
    return prepare_instructions(plan);
}

/* Its place in the session, while nothing else runs there. */
static hl_status settle_plan(hl_plan *plan)
{
    hl_session *session = plan->session;
    if (session->n_plans == INT32_MAX)
        return hl_status_set(HL_ERROR_CONFIG, "plan: a session must have made fewer than 2^31");
    HL_TRY(make_stores(plan));
    plan->number = ++session->n_plans;
    plan->next = session->plans;
    session->plans = plan;
    if (session->arena_bytes < plan->memory.arena_bytes) session->resident = 0;
    return hl_session_reserve(session, plan->memory.arena_bytes);
}

/* Memory that is not there, beside what the plan would have taken. */
static hl_status explain_memory(const hl_plan *plan, hl_status status)
{
    int64_t store_bytes = 0;
    if (status != HL_ERROR_MEMORY || !plan || !plan->memory.places) return status;
    for (int64_t i = 0; i < plan->graph->n_stores; i++)
        store_bytes +=
            plan->graph->stores[i].n * (int64_t)hl_dtype_bytes(plan->graph->stores[i].dtype);
    return hl_status_context(status,
                             "plan: predicted are %lld bytes (%lld of activations and scratch, "
                             "%lld of batches, %lld of parameters and state)",
                             (long long)(plan->memory.arena_bytes + plan->slot_bytes + store_bytes),
                             (long long)plan->memory.arena_bytes, (long long)plan->slot_bytes,
                             (long long)store_bytes);
}

hl_status hl_plan_create(hl_session *session, hl_graph *graph, const hl_plan_options *options,
                         hl_plan **out_plan)
{
    hl_plan *plan = NULL;
    hl_status status = HL_OK;
    *out_plan = NULL;
    HL_GOTO(hl_alloc_zero(sizeof *plan, (void **)&plan));
    plan->session = session;
    plan->graph = graph;
    graph = NULL;
    plan->n_slots = options->n_slots > 0 ? options->n_slots : 1;
    plan->k = options->k > 0 ? options->k : 1;
    plan->low = options->low;
    plan->generation = -1;
    HL_GOTO(run_passes(plan->graph, session->device, options, &plan->fed));
    HL_GOTO(hl_pass_schedule(plan->graph, session->device, options->chain, options->deterministic,
                             &plan->schedule));
    HL_GOTO(hl_pass_memory(plan->graph, &plan->schedule, session->device, &plan->memory));
    hl_schedule_cut(plan->graph, session->device, plan->memory.elided, &plan->schedule);
    HL_GOTO(make_slots(plan));
    HL_GOTO(make_queue(plan, options->capture));
    HL_GOTO(make_instructions(plan));
    HL_GOTO(hl_session_enter(session, "plan"));
    status = settle_plan(plan);
    hl_session_leave(session);
    if (status != HL_OK) goto cleanup;
    *out_plan = plan;
    plan = NULL;
cleanup:
    explain_memory(plan, status);
    hl_graph_destroy(graph);
    hl_plan_destroy(plan);
    return status;
}

static void leave_session(const hl_plan *plan)
{
    hl_plan **link = &plan->session->plans;
    while (*link && *link != plan) link = &(*link)->next;
    if (*link) *link = plan->next;
}

void hl_plan_destroy(hl_plan *plan)
{
    if (!plan) return;
    hl_device *device = plan->session->device;
    leave_session(plan);
    if (plan->feed) hl_feed_bind(plan->feed, NULL); /* its loaders end */
    hl_queue_destroy(plan->queue);
    hl_plan_free_sources(plan);
    if (plan->consts) device->ops->memory_free(device, plan->consts);
    for (int32_t s = 0; plan->instrs && s < plan->schedule.n_steps; s++) {
        hl_instr *instr = &plan->instrs[s];
        if (!instr->prepared) continue;
        if (instr->kernel->release)
            instr->kernel->release(&instr->state);
        else
            hl_free(instr->state.impl);
    }
    if (plan->slots) device->ops->memory_free(device, plan->slots);
    hl_free(plan->const_offset);
    hl_free(plan->source_copies);
    hl_free(plan->instrs);
    hl_free(plan->args);
    hl_free(plan->inputs);
    hl_free(plan->sources);
    hl_free(plan->source_at);
    hl_free(plan->fed);
    hl_free(plan->fields);
    hl_memory_deinit(&plan->memory);
    hl_schedule_deinit(&plan->schedule);
    hl_graph_destroy(plan->graph);
    hl_free(plan);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static hl_status find_leaf(const hl_plan *plan, hl_id id, int32_t slot, void **out_address)
{
    const hl_value *value = hl_graph_value(plan->graph, id);
    hl_session_store_entry *entry;
    *out_address = NULL;
    switch (value->kind) {
    case HL_VALUE_ACT:
        *out_address = (char *)plan->session->arena + plan->memory.places[id].offset;
        break;
    case HL_VALUE_INPUT:
        *out_address = plan->fields[slot * plan->graph->n_inputs + value->store];
        break;
    case HL_VALUE_CONST:
        *out_address = plan->consts ? plan->consts + plan->const_offset[id] : (void *)value->data;
        break;
    case HL_VALUE_SOURCE:
        *out_address = plan->source_at[value->store];
        if (!*out_address && hl_shape_numel(&value->type.shape))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "plan: source %d must be set before a run, got none",
                                 value->store);
        break;
    default:
        entry = hl_session_find(plan->session, plan->graph->stores[value->store].name);
        if (!entry)
            return hl_status_set(HL_ERROR_INTERNAL, "plan: store %s is gone",
                                 plan->graph->stores[value->store].name);
        *out_address = (char *)entry->data + (size_t)value->offset * hl_dtype_bytes(entry->dtype);
    }
    return HL_OK;
}

static hl_status find_address(const hl_plan *plan, hl_id id, int32_t slot, void **out_address)
{
    const hl_place *place = &plan->memory.places[id];
    HL_TRY(find_leaf(plan, place->root, slot, out_address));
    if (place->root != id) *out_address = (char *)*out_address + place->offset;
    return HL_OK;
}

hl_status hl_plan_bind(hl_plan *plan)
{
    hl_session *session = plan->session;
    const hl_schedule *schedule = &plan->schedule;
    if (plan->generation == session->generation && session->arena_bytes >= plan->memory.arena_bytes)
        return HL_OK;
    HL_TRY(hl_session_reserve(session, plan->memory.arena_bytes));
    for (int32_t slot = 0; slot < plan->n_slots; slot++)
        for (int32_t s = 0; s < schedule->n_steps; s++) {
            const hl_instr *instr = &plan->instrs[s];
            const hl_node *node = &plan->graph->nodes[instr->node];
            void **args = plan->args + slot * plan->n_args + instr->first_arg;
            for (int32_t j = 0; j < node->n_in; j++)
                HL_TRY(find_address(plan, node->in[j], slot, &args[j]));
            for (int32_t j = 0; j < node->n_out; j++)
                HL_TRY(find_address(plan, node->out + j, slot, &args[node->n_in + j]));
        }
    for (int32_t s = 0; s < schedule->n_steps; s++) {
        int64_t scratch = plan->memory.scratch[s];
        plan->instrs[s].scratch = scratch == HL_NONE ? NULL : (char *)session->arena + scratch;
    }
    plan->thread_scratch = (char *)session->arena + plan->memory.thread_scratch;
    plan->control = hl_session_find(session, "control")->data;
    plan->generation = session->generation;
    return HL_OK;
}

/* ---- in and out ------------------------------------------------------------------------------ */

/* Bytes in the leaf's dtype. */
static hl_status copy_input(hl_plan *plan, int32_t index, const void *data)
{
    hl_device *device = plan->session->device;
    HL_TRY(device->ops->copy(device, plan->fields[index], data,
                             hl_value_bytes(plan->graph, plan->inputs[index]),
                             HL_COPY_HOST_TO_DEVICE, plan->session->compute));
    return device->ops->synchronize(device, plan->session->compute);
}

static hl_status set_input(hl_plan *plan, int32_t index, hl_dtype dtype, const void *data)
{
    const hl_type *type = &hl_graph_value(plan->graph, plan->inputs[index])->type;
    void *converted;
    if (dtype == type->dtype) return copy_input(plan, index, data);
    HL_TRY(hl_alloc(hl_type_bytes(type), &converted));
    hl_convert(type->dtype, converted, dtype, data, hl_shape_numel(&type->shape));
    hl_status status = copy_input(plan, index, converted);
    hl_free(converted);
    return status;
}

hl_status hl_plan_input(hl_plan *plan, int32_t index, hl_dtype dtype, const hl_shape *shape,
                        const void *data)
{
    char got[HL_SHAPE_TEXT], want[HL_SHAPE_TEXT];
    if (index < 0 || index >= plan->graph->n_inputs)
        return hl_status_set(HL_ERROR_CONFIG, "plan: has %d inputs, got number %d",
                             plan->graph->n_inputs, index);
    const hl_value *value = hl_graph_value(plan->graph, plan->inputs[index]);
    if (!hl_shape_equal(shape, &value->type.shape))
        return hl_status_set(
            HL_ERROR_SHAPE, "input %s: must have shape %s, got %s", value->name ? value->name : "?",
            hl_shape_format(&value->type.shape, want), hl_shape_format(shape, got));
    if (!hl_shape_numel(shape)) return HL_OK;
    HL_TRY(hl_session_enter(plan->session, "input"));
    hl_status status = set_input(plan, index, dtype, data);
    hl_session_leave(plan->session);
    return status;
}

hl_status hl_plan_output(hl_plan *plan, int32_t index, hl_dtype dtype, void *dst)
{
    hl_device *device = plan->session->device;
    void *address, *copy = NULL;
    if (index < 0 || index >= plan->graph->n_outputs)
        return hl_status_set(HL_ERROR_CONFIG, "plan: has %lld outputs, got number %d",
                             (long long)plan->graph->n_outputs, index);
    hl_id id = plan->graph->outputs[index];
    int64_t n = hl_shape_numel(hl_graph_shape(plan->graph, id));
    size_t bytes = hl_value_bytes(plan->graph, id);
    if (!n) return HL_OK;
    bool is_made = plan->graph->values[plan->memory.places[id].root].kind == HL_VALUE_ACT;
    HL_TRY(hl_session_enter(plan->session, "output"));
    hl_status status = HL_OK;
    if (is_made && plan->session->resident != plan->number)
        HL_GOTO(hl_status_set(HL_ERROR_CONFIG, "output: must be read after a run of its plan and "
                                               "before another plan of the model, got neither"));
    HL_GOTO(hl_plan_bind(plan));
    HL_GOTO(find_address(plan, id, plan->slot, &address));
    HL_GOTO(hl_alloc(bytes, &copy));
    HL_GOTO(device->ops->copy(device, copy, address, bytes, HL_COPY_DEVICE_TO_HOST,
                              plan->session->compute));
    HL_GOTO(device->ops->synchronize(device, plan->session->compute));
    hl_convert(dtype, dst, hl_graph_dtype(plan->graph, id), copy, n);
cleanup:
    hl_session_leave(plan->session);
    hl_free(copy);
    return status;
}

void hl_plan_window(hl_plan *plan, bool join, bool hold)
{
    plan->join = join;
    plan->hold = hold;
}

hl_status hl_plan_set_k(hl_plan *plan, int32_t k)
{
    HL_TRY(hl_session_enter(plan->session, "k"));
    plan->k = k > 0 ? k : 1;
    hl_session_leave(plan->session);
    return HL_OK;
}
