#include "plan/fault.h"

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
    session->control->error_code = 0;
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
    const hl_op_info *info = hl_op_get(node->op);
    int64_t extent = hl_node_extent(graph, node), value = control->error_value;
    if (info->index.is_length && value >= 0 && value <= extent)
        return hl_status_set(
            HL_ERROR_DATA,
            "%s%s%s: lengths must be sorted, none more than the one before it, got "
            "%lld at position %lld",
            node->scope ? node->scope : "", node->scope ? ": " : "", info->name, (long long)value,
            (long long)control->error_row);
    return hl_status_set(HL_ERROR_DATA,
                         "%s%s%s: %s out of range, must be at least 0 and %s %lld, got %lld at "
                         "position %lld",
                         node->scope ? node->scope : "", node->scope ? ": " : "", info->name,
                         info->index.is_length ? "length" : "index",
                         info->index.is_length ? "at most" : "below", (long long)extent,
                         (long long)value, (long long)control->error_row);
}
