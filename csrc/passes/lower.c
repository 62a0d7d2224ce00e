/* Lowering: ops for which the device has no kernel are replaced by ops for which it has one, by the
 * table's rules. So is a node few of whose results are read, where that takes less time. A node
 * whose kernel takes dims in another order gets permutations around it, which the layout pass then
 * cancels against others. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/rewrite.h"

enum { MAX_ROUNDS = 8 };

/* Room for the outputs of any node. */
static hl_status alloc_outputs(const hl_graph *graph, HL_GIVE hl_id **out_ids)
{
    int32_t most = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].n_out > most) most = graph->nodes[i].n_out;
    return hl_alloc((size_t)most * sizeof **out_ids, (void **)out_ids);
}

static bool is_read(const hl_uses *uses, const hl_node *node, int32_t j)
{
    return uses->kept[node->out + j] || hl_uses_count(uses, node->out + j) > 0;
}

/* Is at least half of a variable number of results unread, or one that the kernel wants read? */
static bool is_unread(const hl_uses *uses, const hl_node *node, const hl_kernel_req *req)
{
    int32_t n_read = 0;
    for (int32_t j = 0; j < node->n_out; j++) {
        bool read = is_read(uses, node, j);
        n_read += read;
        if (!read && j < 32 && req->wants_read >> j & 1) return true;
    }
    return hl_op_get(node->op)->n_out < 0 && n_read <= node->n_out - n_read;
}

/* Lowers each node once; the next sweep sees the ops that this one made. */
static hl_status lower_once(hl_graph *graph, hl_device *device, bool deterministic,
                            bool *out_changed)
{
    hl_id *map = NULL, *out = NULL;
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    *out_changed = false;
    hl_uses uses = {0};
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &uses));
    HL_GOTO(hl_rewrite_map(graph, &map));
    HL_GOTO(alloc_outputs(graph, &out));
    for (int64_t i = 0; i < n_nodes; i++) {
        hl_node node = graph->nodes[i];
        const hl_op_info *op = hl_op_get(node.op);
        const hl_kernel *kernel;
        hl_kernel_req req;
        if (!op->lower && !op->permute) continue;
        HL_GOTO(hl_kernel_find_in_any_order(device, graph, (hl_node_id)i, deterministic, &kernel,
                                            &req));
        bool is_lowered = op->lower && (!kernel || is_unread(&uses, &node, &req));
        if (!is_lowered && req.order.n == 0) continue;
        hl_graph_stand_by(graph, &node);
        HL_GOTO(is_lowered ? op->lower(graph, (hl_node_id)i, out)
                           : hl_build_in_order(graph, (hl_node_id)i, &req.order, out));
        for (int32_t j = 0; j < node.n_out; j++) map[node.out + j] = out[j];
        *out_changed = true;
    }
    if (*out_changed) {
        hl_rewrite_replace(graph, map, n_map);
        HL_GOTO(hl_rewrite_sort(graph));
    }
cleanup:
    hl_uses_deinit(&uses);
    hl_free(map);
    hl_free(out);
    return status;
}

hl_status hl_pass_lower(hl_graph *graph, hl_device *device, bool deterministic)
{
    bool changed = true;
    for (int round = 0; changed && round < MAX_ROUNDS; round++)
        HL_TRY(lower_once(graph, device, deterministic, &changed));
    return HL_OK;
}
