/* Values: what a plan is given by hand, and what it gives. */
#include "base/alloc.h"
#include "plan/bind.h"
#include "plan/dataset.h"

/* Bytes in the leaf's dtype. */
static hl_status copy_input(hl_plan *plan, int32_t index, const void *data)
{
    hl_device *device = plan->device;
    HL_TRY(device->ops->copy(device, plan->fields[index], data,
                             hl_value_bytes(plan->graph, plan->inputs[index]),
                             HL_COPY_HOST_TO_DEVICE, plan->session->compute));
    return device->ops->synchronize(device, plan->session->compute);
}

static hl_status set_input(hl_plan *plan, int32_t index, hl_dtype dtype, const void *data)
{
    const hl_type *type = &hl_graph_value(plan->graph, plan->inputs[index])->type;
    void *converted;
    HL_TRY(hl_plan_bind(plan));
    HL_TRY(hl_plan_take_slots(plan));
    plan->given[index] = HL_GIVEN;
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

/* Does it still lie where the plan's last run left it? */
static bool is_there(const hl_plan *plan, hl_id id)
{
    switch (hl_graph_value(plan->graph, plan->memory.places[id].root)->kind) {
    case HL_VALUE_ACT: return plan->session->resident == plan->number;
    case HL_VALUE_INPUT: return plan->session->slots_of == plan;
    default: return true;
    }
}

static hl_status copy_output(hl_plan *plan, hl_id id, hl_dtype dtype, void *dst)
{
    hl_device *device = plan->device;
    size_t bytes = hl_value_bytes(plan->graph, id);
    void *address, *copy = NULL;
    hl_status status = HL_OK;
    if (!is_there(plan, id))
        HL_GOTO(hl_status_set(HL_ERROR_CONFIG, "output: must be read after a run of its plan and "
                                               "before another plan of the model, got neither"));
    HL_GOTO(hl_plan_bind(plan));
    HL_GOTO(hl_plan_find_address(plan, id, plan->slot, &address));
    HL_GOTO(hl_alloc(bytes, &copy));
    HL_GOTO(device->ops->copy(device, copy, address, bytes, HL_COPY_DEVICE_TO_HOST,
                              plan->session->compute));
    HL_GOTO(device->ops->synchronize(device, plan->session->compute));
    hl_convert(dtype, dst, hl_graph_dtype(plan->graph, id), copy,
               hl_shape_numel(hl_graph_shape(plan->graph, id)));
cleanup:
    hl_free(copy);
    return status;
}

hl_status hl_plan_output(hl_plan *plan, int32_t index, hl_dtype dtype, void *dst)
{
    if (index < 0 || index >= plan->graph->n_outputs)
        return hl_status_set(HL_ERROR_CONFIG, "plan: has %lld outputs, got number %d",
                             (long long)plan->graph->n_outputs, index);
    hl_id id = plan->graph->outputs[index];
    if (!hl_shape_numel(hl_graph_shape(plan->graph, id))) return HL_OK;
    HL_TRY(hl_session_enter(plan->session, "output"));
    hl_status status = copy_output(plan, id, dtype, dst);
    hl_session_leave(plan->session);
    return status;
}
