#include "plan/poison.h"

#ifdef __SANITIZE_ADDRESS__
#include <string.h>

static void poison(void *at, size_t bytes)
{
    enum { NAN_BYTE = 0xFF };
    if (bytes) memset(at, NAN_BYTE, bytes);
}

/* Does a task in front of the region's touch this memory? */
static bool lives_before(const hl_plan *plan, hl_id root, int32_t first_task)
{
    const hl_graph *graph = plan->graph;
    for (int32_t s = 0; s < first_task; s++) {
        const hl_node *node = &graph->nodes[plan->schedule.tasks[s].node];
        for (int32_t j = 0; j < node->n_in; j++)
            if (plan->memory.places[node->in[j]].root == root) return true;
        for (int32_t j = 0; j < node->n_out; j++)
            if (plan->memory.places[node->out + j].root == root) return true;
    }
    return false;
}

static void poison_results(const hl_plan *plan, int32_t task, int32_t first_task, void **args)
{
    const hl_node *node = &plan->graph->nodes[plan->schedule.tasks[task].node];
    for (int32_t j = 0; j < node->n_out; j++) {
        hl_id out = node->out + j, root = plan->memory.places[out].root;
        if (hl_graph_value(plan->graph, root)->kind != HL_VALUE_ACT) continue;
        if (lives_before(plan, root, first_task)) continue;
        char *at = args[plan->instrs[task].first_arg + node->n_in + j];
        if (root != out) at -= plan->memory.places[out].offset;
        poison(at, hl_value_bytes(plan->graph, root));
    }
}

void hl_poison_region(const hl_plan *plan, const hl_region *region, void **args)
{
    if (hl_device_is_asynchronous(plan->device)) return; /* its memory is not ours to write */
    const hl_chain *chains = &plan->schedule.chains[region->first_chain];
    const hl_chain *last = &chains[region->n_chains - 1];
    for (int32_t s = chains->first_task; s < last->first_task + last->n_tasks; s++) {
        poison_results(plan, s, chains->first_task, args);
        if (plan->instrs[s].scratch)
            poison(plan->instrs[s].scratch, plan->schedule.tasks[s].req.scratch_bytes);
    }
}

void hl_poison_thread(const hl_plan *plan, int32_t task, const hl_launch *launch)
{
    if (hl_device_is_asynchronous(plan->device)) return;
    poison(launch->thread_scratch, plan->schedule.tasks[task].req.thread_scratch_bytes);
}
#endif
