#include "plan/fault.h"

/* How many things the node's index chooses from. */
static int64_t count_choices(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_CROSS_ENTROPY_GRAD;
    const hl_shape *shape = &graph->values[node->in[is_grad]].type.shape;
    int64_t axis = 0;
    if (is_grad || node->op == HL_OP_CROSS_ENTROPY)
        axis = 1;
    else if (node->op != HL_OP_BATCH_GATHER)
        axis = hl_axis_attrs(node)->axis;
    return axis >= 0 && axis < shape->rank ? shape->dim[axis] : 0;
}

/* The node that met an index out of range; NULL: its plan is closed. */
static const hl_node *find_node(const hl_session *session, int64_t error_code,
                                const hl_graph **out_graph)
{
    const hl_plan *plan = session->plans;
    while (plan && plan->number != hl_control_fault_plan(error_code)) plan = plan->next;
    *out_graph = plan ? plan->graph : NULL;
    hl_node_id node = hl_control_fault_node(error_code);
    return plan && node < plan->graph->n_nodes ? &plan->graph->nodes[node] : NULL;
}

static hl_status forget_fault(hl_session *session)
{
    if (session->queue) return hl_queue_clear_fault(session->queue);
    ((hl_control *)hl_session_find(session, "control")->data)->error_code = 0;
    return HL_OK;
}

hl_status hl_session_check_fault(hl_session *session)
{
    const hl_control *control = hl_session_control(session);
    const hl_graph *graph;
    if (!control->error_code) return HL_OK;
    const hl_node *node = find_node(session, control->error_code, &graph);
    HL_TRY(forget_fault(session));
    if (!node)
        return hl_status_set(HL_ERROR_DATA,
                             "a plan that is closed: index out of range, must be at least 0 and "
                             "below the size of what it chooses from, got %lld at position %lld",
                             (long long)control->error_value, (long long)control->error_row);
    return hl_status_set(HL_ERROR_DATA,
                         "%s%s%s: index out of range, must be at least 0 and below %lld, got %lld "
                         "at position %lld",
                         node->scope ? node->scope : "", node->scope ? ": " : "",
                         hl_op_get(node->op)->name, (long long)count_choices(graph, node),
                         (long long)control->error_value, (long long)control->error_row);
}
