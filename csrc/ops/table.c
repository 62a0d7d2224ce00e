/* The op table, made from ops.def. */
#include <string.h>

#include "ops/ops.h"

static const hl_op_info op_table[HL_OP_COUNT] = {
#define HL_OP(op, name, min_in, max_in, n_out, flags, schema, infer, vjp, doc, ...)                \
    [HL_OP_##op] = {name,  min_in, max_in, n_out,      flags, HL_SCHEMA_##schema,                  \
                    infer, vjp,    doc,    __VA_ARGS__},
#include "ir/ops.def"
#undef HL_OP
};

const hl_op_info *hl_op_get(hl_op op)
{
    return &op_table[op];
}

hl_op hl_op_parse(const char *name)
{
    int op = 0;
    while (op < HL_OP_COUNT && strcmp(op_table[op].name, name) != 0) op++;
    return (hl_op)op;
}

static char read_role(const char *roles, const char *end, int index)
{
    int64_t n = end - roles;
    return n > 0 ? roles[index < n ? index : n - 1] : 's';
}

char hl_op_role_in(hl_op op, int operand)
{
    const char *roles = op_table[op].precision;
    return roles ? read_role(roles, strchr(roles, ':'), operand) : 's';
}

char hl_op_role_out(hl_op op, int result)
{
    const char *roles = op_table[op].precision;
    return roles ? read_role(strchr(roles, ':') + 1, roles + strlen(roles), result) : 's';
}

bool hl_op_is_fixed(hl_op op, int operand)
{
    return operand < 32 && op_table[op].fixed >> operand & 1;
}

bool hl_op_is_product(hl_op op)
{
    return hl_op_role_in(op, 0) == 'r';
}

bool hl_op_is_sum(hl_op op)
{
    return op_table[op].flags & HL_OP_SUMS;
}

int64_t hl_node_extent(const hl_graph *graph, const hl_node *node)
{
    hl_op_index index = op_table[node->op].index;
    if (!index.index) return 0;
    const hl_shape *shape = hl_graph_shape(graph, node->in[index.of]);
    int64_t axis = index.axis == HL_AXIS_ATTR ? hl_node_axes(node).at[0] : index.axis;
    if (axis < 0 || axis >= shape->rank) return 0;
    const hl_attr_info *window = hl_schema_find(op_table[node->op].schema, "window");
    int64_t length = window ? hl_attrs_int(&node->attrs, window) : 0;
    return length > 1 ? shape->dim[axis] - length + 1 : shape->dim[axis];
}

hl_ints hl_node_axes(const hl_node *node)
{
    hl_schema schema = op_table[node->op].schema;
    const hl_attr_info *axes = hl_schema_find(schema, "axes");
    const hl_attr_info *axis = hl_schema_find(schema, "axis");
    if (axes) return *hl_attrs_ints(&node->attrs, axes);
    if (!axis) return (hl_ints){0};
    return (hl_ints){1, {hl_attrs_int(&node->attrs, axis)}};
}

bool hl_node_joins(const hl_graph *graph, const hl_node *node, int32_t *out_operand,
                   int64_t *out_align)
{
    uint32_t flags = hl_op_get(node->op)->flags;
    *out_operand = 0, *out_align = 1;
    if (!(flags & HL_OP_JOINS)) return false;
    if (flags & HL_OP_UPDATES) {
        *out_operand = 1, *out_align = hl_write_parts_attrs(node)->align;
        return true;
    }
    return hl_shape_span(hl_graph_shape(graph, node->out), 0, (int)hl_node_axes(node).at[0]) == 1;
}

bool hl_node_axes_are_inner(const hl_graph *graph, const hl_node *node)
{
    hl_ints axes = hl_node_axes(node);
    int32_t last = hl_graph_shape(graph, node->in[0])->rank - 1;
    return axes.n > 0 && axes.at[0] > 0 && axes.at[axes.n - 1] < last;
}

hl_ints hl_node_axes_last(const hl_graph *graph, const hl_node *node)
{
    hl_ints axes = hl_node_axes(node), order = {.n = hl_graph_shape(graph, node->in[0])->rank};
    int32_t n_axes = 0, n_others = 0;
    for (int32_t d = 0; d < order.n; d++) {
        bool is_axis = n_axes < axes.n && axes.at[n_axes] == d;
        order.at[is_axis ? order.n - axes.n + n_axes : n_others] = d;
        n_axes += is_axis, n_others += !is_axis;
    }
    return order;
}
