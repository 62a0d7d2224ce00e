/* Feed: batches that the host makes and sends: of data that is not resident on the device, and of
 * rows that do not lie in memory at all.
 *
 * A row of a dataset is read by HL_OP_BATCH alone. Where its index is the batch's row
 * numbers (input 0), the node becomes an input of its own, which the feed fills: the dataset's rows
 * in whichever is narrower, its own dtype or the graph's, so that images travel as bytes; a cast
 * does the rest. What else reads row numbers, or gathers by other ones, stays as it is.
 *
 * Rejected: tracing a second time with inputs in the place of datasets. The plan decides where data
 * lies, when it knows what fits, and takes the same graph for both. */
#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

static bool is_fed(const hl_graph *graph, const hl_node *node, bool with_all)
{
    if (!(hl_op_get(node->op)->flags & HL_OP_BATCH)) return false;
    const hl_value *dataset = hl_graph_value(graph, node->in[0]);
    const hl_value *index = hl_graph_value(graph, node->in[1]);
    return dataset->kind == HL_VALUE_DATASET && (with_all || dataset->is_streamed) &&
           index->kind == HL_VALUE_INPUT && index->store == 0;
}

/* Rows that a source makes can be had in batches alone. */
static hl_status check_streamed(const hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        bool is_gathered = (hl_op_get(node->op)->flags & HL_OP_BATCH) &&
                           hl_node_in_type(graph, node, 0)->shape.rank ==
                               hl_node_out_type(graph, node, 0)->shape.rank;
        for (int32_t j = 0; j < node->n_in; j++) {
            const hl_value *value = hl_graph_value(graph, node->in[j]);
            if (!value->is_streamed || (is_gathered && is_fed(graph, node, false))) continue;
            return hl_status_set(HL_ERROR_CONFIG,
                                 "dataset %s: is streamed, so that its rows must be gathered by "
                                 "the batch's row numbers, one each, got op %s",
                                 value->name ? value->name : "?", hl_op_get(node->op)->name);
        }
    }
    return HL_OK;
}

/* The batch of one dataset as an input, in the dtype of the gather's result. */
static hl_status add_field(hl_graph *graph, const hl_node *node, hl_id *out_value)
{
    const hl_value *dataset = hl_graph_value(graph, node->in[0]);
    hl_type type = *hl_node_out_type(graph, node, 0);
    hl_dtype wanted = type.dtype;
    if (dataset->is_streamed || hl_dtype_bytes(dataset->type.dtype) < hl_dtype_bytes(wanted))
        type.dtype = dataset->type.dtype;
    HL_TRY(hl_graph_input(graph, dataset->name, type, out_value));
    hl_attrs attrs = {.dtype = {wanted}};
    hl_graph_stand_by(graph, node);
    return hl_graph_add(graph, HL_OP_CAST, out_value, 1, &attrs, out_value);
}

hl_status hl_pass_feed(hl_graph *graph, bool with_all, int32_t **out_datasets)
{
    int64_t n_values = graph->n_values, n_nodes = graph->n_nodes, n_fed = 0;
    int32_t *datasets = NULL;
    hl_id *map = NULL;
    hl_status status;
    *out_datasets = NULL;
    HL_TRY(check_streamed(graph));
    for (int64_t i = 0; i < n_nodes; i++) n_fed += is_fed(graph, &graph->nodes[i], with_all);
    if (!n_fed && !with_all) return HL_OK;
    HL_GOTO(
        hl_alloc((size_t)(graph->n_inputs + n_nodes + 1) * sizeof *datasets, (void **)&datasets));
    HL_GOTO(hl_rewrite_map(graph, &map));
    for (int32_t i = 0; i < graph->n_inputs; i++) datasets[i] = HL_NONE;
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node node = graph->nodes[i];
        if (!is_fed(graph, &node, with_all)) continue;
        datasets[graph->n_inputs] = hl_graph_value(graph, node.in[0])->store;
        HL_GOTO(add_field(graph, &node, &map[node.out]));
    }
    hl_rewrite_replace(graph, map, n_values);
    HL_GOTO(hl_rewrite_sort(graph));
    *out_datasets = datasets;
    datasets = NULL;
cleanup:
    hl_free(map);
    hl_free(datasets);
    return status;
}
