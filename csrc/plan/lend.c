#include "plan/lend.h"

#include "passes/rewrite.h"

/* Is it all of a value, by a view or as it is? */
static bool is_whole(const hl_plan *plan, hl_id id, hl_id value)
{
    return hl_graph_viewed(plan->graph, id) == value &&
           hl_value_bytes(plan->graph, id) == hl_value_bytes(plan->graph, value);
}

/* Does the task write over the value? That memory is written in any case, and a copy brings it into
 * the cache: there, a training step of small layers gained nothing by lending. */
static bool writes_over(const hl_plan *plan, const hl_node *node, hl_id value)
{
    const hl_place *places = plan->memory.places;
    for (int32_t j = 0; j < node->n_out; j++) {
        hl_id root = places[node->out + j].root;
        if (hl_graph_value(plan->graph, root)->kind == HL_VALUE_ACT &&
            places[root].offset == places[places[value].root].offset)
            return true;
    }
    return false;
}

/* Which inputs of a task have a value's rows; false: it reads that in another way. */
static bool find_inputs(const hl_plan *plan, int32_t s, hl_id value, uint64_t *out_inputs)
{
    const hl_task *task = &plan->schedule.tasks[s];
    const hl_node *node = &plan->graph->nodes[task->node];
    *out_inputs = 0;
    for (int32_t j = 0; j < node->n_in; j++) {
        if (hl_graph_viewed(plan->graph, node->in[j]) != value) continue;
        if (!is_whole(plan, node->in[j], value) || !hl_kernel_reads_rows(&task->req, j) ||
            node->n_in + node->n_out > HL_LEND_ARGS || writes_over(plan, node, value))
            return false;
        *out_inputs |= (uint64_t)1 << j;
    }
    return true;
}

/* Readers of a value in the chain, or -1 where there are others. */
static int32_t count_readers(const hl_plan *plan, const hl_uses *uses, hl_id value,
                             const hl_chain *chain)
{
    int32_t n = 0;
    if (uses->kept[value]) return -1;
    for (int32_t u = uses->start[value]; u < uses->start[value + 1]; u++) {
        hl_node_id reader = uses->list[u];
        const hl_node *node = &plan->graph->nodes[reader];
        if (hl_op_get(node->op)->flags & HL_OP_VIEW) {
            int32_t more = count_readers(plan, uses, node->out, chain);
            if (more < 0) return -1;
            n += more;
            continue;
        }
        int32_t s = plan->schedule.task_of_node[reader];
        if (s < chain->first_task || s >= chain->first_task + chain->n_tasks) return -1;
        n++;
    }
    return n;
}

/* Bytes of the value that a task can lend; 0: it has none. */
static int64_t lendable_bytes(const hl_plan *plan, const hl_uses *uses, int32_t s,
                              const hl_chain *chain)
{
    const hl_instr *instr = &plan->instrs[s];
    hl_id value = plan->graph->nodes[instr->node].out;
    uint64_t inputs;
    if (!instr->kernel->lend || instr->elided || count_readers(plan, uses, value, chain) < 1)
        return 0;
    for (int32_t b = s + 1; b < chain->first_task + chain->n_tasks; b++)
        if (!find_inputs(plan, b, value, &inputs)) return 0;
    return (int64_t)hl_value_bytes(plan->graph, value);
}

static void lend_in_chain(hl_plan *plan, const hl_uses *uses, const hl_chain *chain)
{
    int32_t lender = HL_NONE, end = chain->first_task + chain->n_tasks;
    int64_t most = 0;
    for (int32_t s = chain->first_task; s < end; s++) {
        int64_t bytes = lendable_bytes(plan, uses, s, chain);
        if (bytes > most) most = bytes, lender = s;
    }
    if (lender == HL_NONE) return;
    plan->instrs[lender].lends = true;
    plan->instrs[lender].lent_bytes = most / chain->rows;
    hl_id value = plan->graph->nodes[plan->instrs[lender].node].out;
    for (int32_t s = lender + 1; s < end; s++)
        (void)find_inputs(plan, s, value, &plan->instrs[s].borrows);
}

hl_status hl_plan_find_lenders(hl_plan *plan)
{
    hl_uses uses;
    bool is_lent = false;
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++)
        is_lent |= plan->instrs[s].kernel->lend != NULL;
    if (!is_lent) return HL_OK;
    HL_TRY(hl_uses_init(plan->graph, &uses));
    for (int32_t c = 0; c < plan->schedule.n_chains; c++) {
        const hl_chain *chain = &plan->schedule.chains[c];
        if (chain->rows) lend_in_chain(plan, &uses, chain);
    }
    hl_uses_deinit(&uses);
    return HL_OK;
}
