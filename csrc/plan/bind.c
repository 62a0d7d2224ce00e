#include "plan/bind.h"

#include "base/alloc.h"
#include "plan/dataset.h"

hl_status hl_plan_reserve(hl_plan *plan)
{
    hl_session *session = plan->session;
    int64_t slot_bytes = plan->slot_bytes * plan->n_slots;
    if (session->slot_bytes < slot_bytes) hl_plan_release_slots(session);
    if (session->queue) HL_TRY(hl_queue_reserve(session->queue, plan->n_slots));
    return hl_session_reserve(session, plan->memory.arena_bytes, slot_bytes);
}

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
    case HL_VALUE_DATASET:
        *out_address = plan->dataset_at[value->store];
        if (!*out_address && hl_shape_numel(&value->type.shape))
            return hl_status_set(HL_ERROR_CONFIG,
                                 "plan: dataset %d must be set before a run, got none",
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

hl_status hl_plan_find_address(const hl_plan *plan, hl_id id, int32_t slot, void **out_address)
{
    const hl_place *place = &plan->memory.places[id];
    HL_TRY(find_leaf(plan, place->root, slot, out_address));
    if (place->root != id) *out_address = (char *)*out_address + place->offset;
    return HL_OK;
}

/* A field begins where a vector may. Loaders of the plan's feed may be at it while nothing moved.
 */
static void bind_fields(hl_plan *plan)
{
    const hl_session *session = plan->session;
    const int32_t n_fields = plan->graph->n_inputs;
    int64_t at = 0;
    if (plan->slots_at == session->slots) return;
    plan->slots_at = session->slots;
    for (int32_t s = 0; s < plan->n_slots; s++)
        for (int32_t f = 0; f < n_fields; f++) {
            plan->fields[s * n_fields + f] = (char *)session->slots + at;
            if (session->staging) plan->staged[s * n_fields + f] = (char *)session->staging + at;
            at += hl_round_up((int64_t)hl_value_bytes(plan->graph, plan->inputs[f]), HL_ALIGN);
        }
}

static hl_status bind_args(hl_plan *plan, int32_t slot)
{
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        const hl_instr *instr = &plan->instrs[s];
        const hl_node *node = &plan->graph->nodes[instr->node];
        void **args = plan->args + slot * plan->n_args + instr->first_arg;
        for (int32_t j = 0; j < node->n_in; j++)
            HL_TRY(hl_plan_find_address(plan, node->in[j], slot, &args[j]));
        for (int32_t j = 0; j < node->n_out; j++)
            HL_TRY(hl_plan_find_address(plan, node->out + j, slot, &args[node->n_in + j]));
    }
    return HL_OK;
}

hl_status hl_plan_bind(hl_plan *plan)
{
    hl_session *session = plan->session;
    HL_TRY(hl_plan_reserve(plan));
    if (plan->generation == session->generation) return HL_OK;
    if (session->queue) hl_queue_drop_captures(session->queue, plan);
    bind_fields(plan);
    for (int32_t slot = 0; slot < plan->n_slots; slot++) HL_TRY(bind_args(plan, slot));
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        int64_t scratch = plan->memory.scratch[s];
        plan->instrs[s].scratch = scratch == HL_NONE ? NULL : (char *)session->arena + scratch;
    }
    plan->thread_scratch = (char *)session->arena + plan->memory.thread_scratch;
    plan->control = session->control;
    plan->generation = session->generation;
    return HL_OK;
}
