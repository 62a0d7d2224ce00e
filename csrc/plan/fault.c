#include "plan/fault.h"

#include <stdio.h>

enum { FAULT_BYTES = 256 };

/* The node whose kernel noted the fault; NULL: its plan is closed. */
static const hl_node *find_node(const hl_session *session, int64_t error_code,
                                const hl_graph **out_graph)
{
    const hl_plan *plan = session->plans;
    while (plan && plan->number != hl_control_fault_plan(error_code)) plan = plan->next;
    *out_graph = plan ? plan->graph : NULL;
    hl_node_id node = hl_control_fault_node(error_code);
    return plan && node < plan->graph->n_nodes ? &plan->graph->nodes[node] : NULL;
}

static void describe_fault(const hl_graph *graph, const hl_node *node, int64_t row, int64_t value,
                           char *out_text)
{
    hl_op_fault_fn describe = hl_op_get(node->op)->fault;
    if (describe)
        describe(graph, node, row, value, out_text, FAULT_BYTES);
    else
        snprintf(out_text, FAULT_BYTES,
                 "index out of range, must be at least 0 and below %lld, got %lld at position %lld",
                 (long long)hl_node_extent(graph, node), (long long)value, (long long)row);
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
                             "a plan that is closed: an operand must be in range, got %lld at "
                             "position %lld",
                             (long long)control->error_value, (long long)control->error_row);
    char what[FAULT_BYTES];
    describe_fault(graph, node, control->error_row, control->error_value, what);
    return hl_status_set(HL_ERROR_DATA, "%s%s%s: %s", node->scope ? node->scope : "",
                         node->scope ? ": " : "", hl_op_get(node->op)->name, what);
}
