/* Operations and bytes of nodes, for predictions, profiles and the choice of kernels. An estimate
 * of what cannot be done without: caches, packing and scratch are the kernels' own business. */
#include <string.h>

#include "ir/program.h"
#include "ops/ops.h"

static bool is_control(const hl_graph *graph, hl_id id)
{
    hl_id leaf = hl_graph_updated(graph, hl_graph_viewed(graph, id));
    if (leaf == HL_NONE || graph->values[leaf].kind != HL_VALUE_STATE) return false;
    return strcmp(graph->stores[graph->values[leaf].store].name, "control") == 0;
}

static double count_value(const hl_graph *graph, hl_id id)
{
    return is_control(graph, id) ? 0 : (double)hl_type_bytes(&graph->values[id].type);
}

/* A value that is given twice is read once. */
static double count_operand(const hl_graph *graph, const hl_node *node, int32_t operand)
{
    for (int32_t i = 0; i < operand; i++)
        if (node->in[i] == node->in[operand]) return 0;
    return count_value(graph, node->in[operand]);
}

hl_cost hl_cost_bytes(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = {0};
    for (int32_t i = 0; i < node->n_in; i++) cost.bytes += count_operand(graph, node, i);
    for (int32_t j = 0; j < node->n_out; j++) cost.bytes += count_value(graph, node->out + j);
    return cost;
}

hl_cost hl_node_cost(const hl_graph *graph, const hl_node *node)
{
    const hl_op_info *op = hl_op_get(node->op);
    if (op->cost) return op->cost(graph, node);
    hl_cost cost = hl_cost_bytes(graph, node);
    if (op->flags & HL_OP_POINTWISE)
        cost.flops = (double)hl_shape_numel(hl_graph_shape(graph, node->out));
    return cost;
}

/* (..., M, K) @ (..., K, N), K by the elements of a: its orientation does not matter. */
hl_cost hl_cost_matmul(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_shape *a = hl_graph_shape(graph, node->in[0]), *out = hl_graph_shape(graph, node->out);
    int64_t rows = out->dim[out->rank - 2], cols = out->dim[out->rank - 1];
    int64_t matrix = a->dim[a->rank - 2] * a->dim[a->rank - 1];
    int64_t terms = rows > 0 ? matrix / rows : 0;
    cost.side = rows < cols ? rows : cols;
    if (terms < cost.side) cost.side = terms;
    cost.flops = 2 * (double)terms * (double)hl_shape_numel(out);
    return cost;
}

hl_cost hl_cost_reduce(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    cost.flops = (double)hl_shape_numel(hl_graph_shape(graph, node->in[0]));
    return cost;
}

/* Of the first operand as much is read as comes of it. */
hl_cost hl_cost_picked(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_type *from = hl_node_in_type(graph, node, 0);
    int64_t n = hl_shape_numel(&from->shape),
            most = hl_shape_numel(hl_graph_shape(graph, node->out));
    if (most < n) cost.bytes -= (double)(n - most) * (double)hl_dtype_bytes(from->dtype);
    return cost;
}

/* Of the first operand as much is written as the last one has. */
hl_cost hl_cost_written(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    double state = (double)hl_type_bytes(hl_node_in_type(graph, node, 0));
    double rows = (double)hl_type_bytes(hl_node_in_type(graph, node, node->n_in - 1));
    cost.bytes -= 2 * state - rows;
    return cost;
}

hl_cost hl_cost_none(const hl_graph *graph, const hl_node *node)
{
    (void)graph, (void)node;
    return (hl_cost){0};
}

hl_cost hl_cost_program(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_program *program = node->program;
    int32_t n = 0;
    for (int32_t i = 0; i < program->n_code; i++)
        n += hl_pw_operands((hl_pw_op)program->code[i].op) > 0;
    for (int32_t o = 0; o < program->n_out; o++) n += program->out[o].sums != HL_PW_FULL;
    cost.flops = (double)n * (double)hl_shape_numel(&program->shape);
    return cost;
}
