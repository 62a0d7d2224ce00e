/* Report: describes a plan, as numbers and as text. */
#include "plan/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"

/* Counts matrix products alone: other work is counted in bytes, not in operations. */
static void count_flops(const hl_graph *graph, int64_t side, hl_plan_info *info)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_cost cost = hl_node_cost(graph, &graph->nodes[i]);
        if (!hl_op_is_product(graph->nodes[i].op)) continue;
        info->flops += cost.flops;
        if (cost.side >= side) info->large_flops += cost.flops;
    }
}

/* Does a step launch the task itself? Rounded copies are current in all but the first one. */
static bool is_launched(const hl_instr *instr)
{
    return !instr->elided && !instr->joined && !instr->refreshes;
}

static void count_launches(const hl_plan *plan, hl_plan_info *info)
{
    for (int32_t s = 0; s < plan->schedule.n_tasks; s++) {
        const hl_instr *instr = &plan->instrs[s];
        info->n_kernels += is_launched(instr);
        info->n_to_autotune +=
            s >= plan->n_tuned && plan->graph->benchmark && instr->kernel->tune && !instr->elided;
    }
}

/* Operations of products that the launch of a task does. */
static double count_launch_flops(const hl_plan *plan, int32_t task)
{
    double flops = 0;
    for (int32_t s = task; s < plan->schedule.n_tasks; s++) {
        const hl_node *node = &plan->graph->nodes[plan->instrs[s].node];
        if (s > task && !plan->instrs[s].joined) break;
        if (hl_op_is_product(node->op)) flops += hl_node_cost(plan->graph, node).flops;
    }
    return flops;
}

/* When the last task ends where a launch takes as many units of time as it has operations, or one,
 * and the two streams wait for each other alone. */
static double find_path(const hl_plan *plan, bool by_flops)
{
    const hl_schedule *schedule = &plan->schedule;
    double now[2] = {0}, done[HL_SIDE_AHEAD] = {0}; /* on the main stream, on the side; of tasks */
    for (int32_t r = 0; r < schedule->n_regions; r++) {
        const hl_region *region = &schedule->regions[r];
        const hl_chain *chains = &schedule->chains[region->first_chain];
        const hl_chain *last = &chains[region->n_chains - 1];
        int32_t first_task = chains->first_task, side = schedule->tasks[first_task].side;
        double *at = &now[side != HL_NONE];
        if (region->awaits != HL_NONE) now[0] = fmax(now[0], done[region->awaits % HL_SIDE_AHEAD]);
        now[1] = side == HL_NONE ? now[1] : fmax(now[0], now[1]);
        for (int32_t s = first_task; s < last->first_task + last->n_tasks; s++)
            if (is_launched(&plan->instrs[s])) *at += by_flops ? count_launch_flops(plan, s) : 1;
        if (side != HL_NONE) done[side % HL_SIDE_AHEAD] = now[1];
    }
    return fmax(now[0], now[1]);
}

/* Bytes of its stores as a session holds them, and of the control block, which every plan has. */
static int64_t count_store_bytes(const hl_plan *plan)
{
    int64_t bytes = sizeof(hl_control);
    for (int64_t i = 0; i < plan->graph->n_stores; i++) {
        const hl_store *store = &plan->graph->stores[i];
        if (strcmp(store->name, "control") != 0)
            bytes +=
                store->n * (int64_t)hl_dtype_bytes(hl_session_dtype(plan->device, store->dtype));
    }
    return bytes;
}

void hl_plan_info_bytes(const hl_plan *plan, hl_plan_info *out_info)
{
    bool stages = hl_device_is_asynchronous(plan->device);
    *out_info = (hl_plan_info){
        .arena_bytes = plan->memory.arena_bytes,
        .slot_bytes = plan->slot_bytes * plan->n_slots,
        .staging_bytes = stages ? plan->slot_bytes * plan->n_slots : 0,
        .const_bytes = plan->const_bytes,
        .store_bytes = count_store_bytes(plan),
    };
}

void hl_plan_info_predict(const hl_plan *plan, hl_plan_info *out_info)
{
    hl_plan_info_bytes(plan, out_info);
    out_info->n_nodes = plan->graph->n_nodes;
    out_info->n_instructions = plan->schedule.n_tasks;
    out_info->n_chains = plan->schedule.n_chains;
    out_info->n_regions = plan->schedule.n_regions;
    count_flops(plan->graph, plan->device->reduced_side, out_info);
    count_launches(plan, out_info);
    out_info->n_path_kernels = (int64_t)find_path(plan, false);
    out_info->path_flops = find_path(plan, true);
    out_info->n_saved = plan->recomputed.n_saved;
    out_info->n_recomputed = plan->recomputed.n_made;
    out_info->n_recompute_choices = plan->recomputed.n_choices;
    out_info->recomputed_flops = plan->recomputed.flops;
    out_info->step_flops = plan->recomputed.step_flops;
}

void hl_plan_info_read(const hl_plan *plan, hl_plan_info *out_info)
{
    const hl_session *session = plan->session;
    hl_plan_info_predict(plan, out_info);
    if (!session) return;
    out_info->store_bytes = 0;
    for (int64_t i = 0; i < session->n_stores; i++)
        out_info->store_bytes +=
            session->stores[i].n * (int64_t)hl_dtype_bytes(session->stores[i].dtype);
}

typedef struct text {
    char *bytes;
    int64_t n, capacity;
} text;

__attribute__((format(printf, 2, 3))) static hl_status add_text(text *t, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) return hl_status_set(HL_ERROR_INTERNAL, "plan: text could not be formatted");
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    HL_TRY(hl_alloc_grow((void **)&t->bytes, &t->capacity, t->n + n + 1, 1));
    memcpy(t->bytes + t->n, line, (size_t)n + 1);
    t->n += n;
    return HL_OK;
}

static hl_status add_value(text *t, const hl_plan *plan, hl_id id)
{
    const hl_value *value = hl_graph_value(plan->graph, id);
    const hl_place *place = &plan->memory.places[id];
    char shape[HL_SHAPE_TEXT];
    HL_TRY(add_text(t, " %%%d", id));
    if (value->name) HL_TRY(add_text(t, " %s", value->name));
    HL_TRY(add_text(t, " %s%s", hl_dtype_name(value->type.dtype),
                    hl_shape_format(&value->type.shape, shape)));
    const hl_value *root = &plan->graph->values[place->root];
    bool is_stored = root->kind == HL_VALUE_PARAM || root->kind == HL_VALUE_STATE;
    if (is_stored && value->kind == HL_VALUE_ACT)
        return add_text(
            t, "@%s+%lld", plan->graph->stores[root->store].name,
            (long long)(root->offset * (int64_t)hl_dtype_bytes(root->type.dtype) + place->offset));
    if (root->kind != HL_VALUE_ACT) return HL_OK;
    int64_t base = plan->memory.places[place->root].offset;
    return add_text(t, "@%lld", (long long)(base + (place->root == id ? 0 : place->offset)));
}

static hl_status add_task(text *t, const hl_plan *plan, int32_t s)
{
    const hl_task *task = &plan->schedule.tasks[s];
    const hl_node *node = &plan->graph->nodes[task->node];
    HL_TRY(add_text(t, "      %s%s:", task->kernel->name,
                    plan->instrs[s].elided      ? " (in place)"
                    : plan->instrs[s].joined    ? " (with the one before)"
                    : plan->instrs[s].lends     ? " (where rows are not in order)"
                    : plan->instrs[s].refreshes ? " (where the copy is not current)"
                    : task->side != HL_NONE     ? " (beside the next ones)"
                                                : ""));
    for (int32_t j = 0; j < node->n_in; j++) HL_TRY(add_value(t, plan, node->in[j]));
    HL_TRY(add_text(t, " ->"));
    for (int32_t j = 0; j < node->n_out; j++) HL_TRY(add_value(t, plan, node->out + j));
    if (hl_node_is_anchor(node)) {
        char programs[HL_FUSION_TEXT];
        hl_fusion_format(plan->graph, node, programs);
        HL_TRY(add_text(t, " {%s}", programs));
    } else if (node->program) {
        HL_TRY(add_text(t, " {%d steps}", node->program->n_code));
    }
    if (task->kernel->describe && s < plan->n_tuned) {
        char algorithm[96];
        task->kernel->describe(&plan->instrs[s].state, algorithm, sizeof algorithm);
        HL_TRY(add_text(t, " {%s}", algorithm));
    }
    if (plan->compute_dtype != HL_DTYPE_F32) {
        const char *why;
        hl_dtype dtype = hl_amp_compute(plan->graph, task->node, &why);
        if (dtype != HL_DTYPE_COUNT) HL_TRY(add_text(t, "  [%s: %s]", hl_dtype_name(dtype), why));
    }
    return add_text(t, "%s%s\n", node->scope ? "  ; " : "", node->scope ? node->scope : "");
}

static hl_status add_region(text *t, const hl_plan *plan, int32_t r)
{
    const hl_region *region = &plan->schedule.regions[r];
    HL_TRY(add_text(t, "  region %d%s%s\n", r, region->serial ? " (serial)" : "",
                    region->awaits != HL_NONE ? " (waits for what runs beside it)" : ""));
    for (int32_t c = region->first_chain; c < region->first_chain + region->n_chains; c++) {
        const hl_chain *chain = &plan->schedule.chains[c];
        HL_TRY(add_text(t, "    chain of %lld rows in %lld blocks\n", (long long)chain->rows,
                        (long long)chain->n_blocks));
        for (int32_t s = chain->first_task; s < chain->first_task + chain->n_tasks; s++)
            HL_TRY(add_task(t, plan, s));
    }
    return HL_OK;
}

hl_status hl_plan_print(const hl_plan *plan, char **out_text)
{
    static const char *const segments[] = {"begin", "micro", "apply"};
    const hl_schedule *schedule = &plan->schedule;
    text t = {0};
    hl_status status = HL_OK;
    *out_text = NULL;
    HL_GOTO(add_text(&t, "plan on %s: %d instructions, %d regions, arena %lld bytes\n",
                     plan->device->name, schedule->n_tasks, schedule->n_regions,
                     (long long)plan->memory.arena_bytes));
    if (plan->compute_dtype != HL_DTYPE_F32)
        HL_GOTO(add_text(&t, "products in %s, all else in float32\n",
                         hl_dtype_name(plan->compute_dtype)));
    for (int s = 0; s < HL_SEGMENT_COUNT; s++) {
        HL_GOTO(add_text(&t, "%s\n", segments[s]));
        for (int32_t r = schedule->segment_first[s]; r < schedule->segment_first[s + 1]; r++)
            HL_GOTO(add_region(&t, plan, r));
    }
    *out_text = t.bytes;
    t.bytes = NULL;
cleanup:
    hl_free(t.bytes);
    return status;
}
