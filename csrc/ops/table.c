/* The op table, made from ops.def. */
#include <string.h>

#include "ops/ops.h"

static const hl_op_info op_table[HL_OP_COUNT] = {
#define HL_OP(op, name, min_in, max_in, n_out, flags, schema, infer, vjp, lower, doc)              \
    [HL_OP_##op] = {name, min_in, max_in, n_out, flags, HL_SCHEMA_##schema, infer, vjp, lower, doc},
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

hl_ints hl_node_axes(const hl_node *node)
{
    hl_schema schema = op_table[node->op].schema;
    const hl_attr_info *axes = hl_schema_find(schema, "axes");
    const hl_attr_info *axis = hl_schema_find(schema, "axis");
    if (axes) return *hl_attrs_ints(&node->attrs, axes);
    if (!axis) return (hl_ints){0};
    return (hl_ints){1, {hl_attrs_int(&node->attrs, axis)}};
}
