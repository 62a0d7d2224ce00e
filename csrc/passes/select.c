/* Selection: the kernel of every node, once nothing changes the graph any more.
 *
 * Nodes are asked in order, so that who reads a saved value is asked when its form is known. Passes
 * that rewrite a node for a kernel's sake (epilogue.c) ask in the same way, by hl_select_try; the
 * answers are the same again here.
 *
 * Weight gradients are the exception. Nobody waits for one, so several small ones can be one
 * launch, which is less than the best kernel for each of them alone. */
#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

static void set_forms(hl_graph *graph, const hl_node *node, const hl_kernel_req *req)
{
    for (int32_t j = 0; j < node->n_out && j < HL_KERNEL_PLACES; j++) {
        hl_value *value = &graph->values[node->out + j];
        value->form = req->saved[j].form;
        value->form_bytes = req->saved[j].bytes;
    }
}

hl_status hl_select_try(hl_graph *graph, hl_device *device, hl_node_id node, bool deterministic,
                        const hl_kernel **out_kernel)
{
    hl_kernel_req req;
    HL_TRY(hl_kernel_find(device, graph, node, deterministic, out_kernel, &req));
    if (*out_kernel) set_forms(graph, &graph->nodes[node], &req);
    return HL_OK;
}

/* Callers and commits read values as their types say. */
static hl_status check_kept(const hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_outputs; i++)
        if (graph->values[graph->outputs[i]].form)
            return hl_status_set(HL_ERROR_INTERNAL, "select: an output must be in plain form");
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (graph->values[graph->commits[i].value].form)
            return hl_status_set(HL_ERROR_INTERNAL, "select: a commit must be in plain form");
    return HL_OK;
}

/* The kernel by which a weight gradient is one launch with others; NULL: by none. */
static hl_status find_beside(const hl_graph *graph, hl_device *device, const hl_uses *uses,
                             hl_node_id id, bool deterministic, hl_choice *out_choice)
{
    const hl_node *node = &graph->nodes[id];
    *out_choice = (hl_choice){0};
    if (!hl_op_is_product(node->op) || !hl_uses_by_updates(graph, uses, node)) return HL_OK;
    return hl_kernel_find_beside(device, graph, id, deterministic, &out_choice->kernel,
                                 &out_choice->req);
}

/* Where there are at least two of a segment. */
static hl_status choose_beside(hl_graph *graph, hl_device *device, bool deterministic,
                               hl_choice *choices)
{
    hl_uses uses;
    hl_status status = HL_OK;
    hl_choice choice;
    int32_t n[HL_SEGMENT_COUNT] = {0};
    HL_TRY(hl_uses_init(graph, &uses));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        HL_GOTO(find_beside(graph, device, &uses, (hl_node_id)i, deterministic, &choice));
        n[graph->nodes[i].segment] += choice.kernel != NULL;
    }
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        if (n[graph->nodes[i].segment] < 2) continue;
        HL_GOTO(find_beside(graph, device, &uses, (hl_node_id)i, deterministic, &choice));
        if (!choice.kernel || choice.kernel == choices[i].kernel) continue;
        choices[i] = choice;
        set_forms(graph, &graph->nodes[i], &choice.req);
    }
cleanup:
    hl_uses_deinit(&uses);
    return status;
}

hl_status hl_pass_select(hl_graph *graph, hl_device *device, bool deterministic,
                         hl_choice **out_choices)
{
    hl_choice *choices;
    hl_status status = HL_OK;
    *out_choices = NULL;
    HL_TRY(hl_alloc_zero(((size_t)graph->n_nodes + 1) * sizeof *choices, (void **)&choices));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_choice *choice = &choices[i];
        const hl_node *node = &graph->nodes[i];
        if (hl_op_get(node->op)->flags & HL_OP_VIEW) continue;
        HL_GOTO(hl_kernel_select(device, graph, (hl_node_id)i, deterministic, &choice->kernel,
                                 &choice->req));
        if (!device->ops->parallel) choice->req.rows = 0;
        set_forms(graph, node, &choice->req);
    }
    /* Where a device runs blocks itself there are no launches. */
    if (!device->ops->parallel) HL_GOTO(choose_beside(graph, device, deterministic, choices));
    HL_GOTO(check_kept(graph));
    *out_choices = choices;
    choices = NULL;
cleanup:
    hl_free(choices);
    return status;
}
