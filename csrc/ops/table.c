/* The op table, made from ops.def, and the reader of attribute schemas. Schemas are short and read
 * while graphs are built, never while they run, so they are parsed anew each time. */
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

static const hl_op_info op_table[HL_OP_COUNT] = {
#define HL_OP(op, name, min_in, max_in, n_out, flags, attrs, infer, vjp, lower, doc)               \
    [HL_OP_##op] = {name, min_in, max_in, n_out, flags, attrs, infer, vjp, lower, doc},
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

int32_t hl_op_count_outputs(hl_op op, const hl_attrs *attrs)
{
    int n_out = op_table[op].n_out;
    return n_out >= 0 ? n_out : attrs->n_dims;
}

static int count_slot(const char *schema, const char *at, char kind)
{
    bool is_int = kind == 'i' || kind == 't';
    int slot = 0;
    for (const char *c = schema; c < at; c++)
        if (c[1] == ':' && (c == schema || c[-1] == ' '))
            slot += is_int ? *c == 'i' || *c == 't' : *c == kind;
    return slot;
}

static void read_default(const char *text, size_t length, hl_op_attr *out_attr)
{
    char value[32] = "";
    memcpy(value, text, length < sizeof value ? length : sizeof value - 1);
    if (out_attr->kind == 'i') out_attr->i = strtoll(value, NULL, 10);
    if (out_attr->kind == 't') out_attr->i = hl_dtype_parse(value);
    if (out_attr->kind == 'f') out_attr->f = strtod(value, NULL);
}

bool hl_op_attr_at(hl_op op, int index, hl_op_attr *out_attr)
{
    *out_attr = (hl_op_attr){0};
    const char *schema = op_table[op].attrs, *at = schema;
    for (int i = 0; i < index && *at; i++) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    if (!*at) return false;
    size_t end = strcspn(at, " "), name_end = strcspn(at, "= ");
    out_attr->kind = at[0];
    memcpy(out_attr->name, at + 2, name_end - 2);
    out_attr->slot = count_slot(schema, at, at[0]);
    out_attr->required = name_end == end;
    if (!out_attr->required) read_default(at + name_end + 1, end - name_end - 1, out_attr);
    return true;
}

bool hl_op_attr_slot(hl_op op, const char *name, char *out_kind, int *out_slot)
{
    hl_op_attr attr;
    for (int i = 0; hl_op_attr_at(op, i, &attr); i++) {
        if (strcmp(attr.name, name) != 0) continue;
        *out_kind = attr.kind;
        *out_slot = attr.slot;
        return true;
    }
    *out_kind = '\0';
    *out_slot = 0;
    return false;
}

void hl_op_attr_defaults(hl_op op, hl_attrs *out_attrs)
{
    *out_attrs = (hl_attrs){0};
    hl_op_attr attr;
    for (int i = 0; hl_op_attr_at(op, i, &attr); i++) {
        if (attr.kind == 'i' || attr.kind == 't') out_attrs->i[attr.slot] = attr.i;
        if (attr.kind == 'f') out_attrs->f[attr.slot] = attr.f;
    }
}
