/* The printer: leaves, then nodes under their segments, commits, outputs. One line a thing:
 *
 *   %12 = matmul(%3 x, %4 body.0.weight) trans_b=1 -> float32 (64, 128)  ; body.0
 *
 * Attributes stand where they are not what the schema says anyway. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ir/op.h"
#include "ir/program.h"

/* Text that grows; the first failure stays, and what follows it does nothing. */
typedef struct text_buffer {
    void *data;
    int64_t length, capacity;
    hl_status status;
} text_buffer;

static void write_text(text_buffer *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void write_text(text_buffer *text, const char *format, ...)
{
    if (text->status != HL_OK) return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    text->status = hl_alloc_grow(&text->data, &text->capacity, text->length + n + 1, 1);
    if (text->status == HL_OK)
        text->length += vsnprintf((char *)text->data + text->length, (size_t)n + 1, format, again);
    va_end(again);
}

static const char *const kind_names[] = {
    [HL_VALUE_PARAM] = "param",     [HL_VALUE_STATE] = "state",   [HL_VALUE_INPUT] = "input",
    [HL_VALUE_DATASET] = "dataset", [HL_VALUE_SCALAR] = "scalar", [HL_VALUE_CONST] = "const",
    [HL_VALUE_ACT] = "act"};
static const char *const segment_names[] = {"begin", "micro", "apply"};

/* "%3 x", "%7 0.5" or "%9". */
static void write_value(text_buffer *text, const hl_graph *graph, hl_id id)
{
    double number;
    const char *name = graph->values[id].name;
    write_text(text, "%%%d", id);
    if (name)
        write_text(text, " %s", name);
    else if (hl_graph_number_read(graph, id, &number))
        write_text(text, " %.9g", number);
}

static void write_leaf(text_buffer *text, const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    char type[HL_TYPE_TEXT];
    if (value->kind == HL_VALUE_ACT) return;
    write_text(text, "  %-6s ", kind_names[value->kind]);
    write_value(text, graph, id);
    write_text(text, " %s", hl_type_format(&value->type, type));
    if (value->is_streamed) write_text(text, " streamed");
    bool in_store = value->kind == HL_VALUE_PARAM || value->kind == HL_VALUE_STATE ||
                    value->kind == HL_VALUE_SCALAR;
    if (in_store)
        write_text(text, " at %s + %lld", graph->stores[value->store].name,
                   (long long)value->offset);
    write_text(text, "\n");
}

static void write_ints(text_buffer *text, const char *name, const hl_ints *list)
{
    write_text(text, " %s=[", name);
    for (int32_t i = 0; i < list->n; i++)
        write_text(text, "%s%lld", i > 0 ? ", " : "", (long long)list->at[i]);
    write_text(text, "]");
}

static void write_attr(text_buffer *text, const hl_attrs *attrs, const hl_attr_info *attr)
{
    if (attr->kind == HL_ATTR_ints) {
        const hl_ints *list = hl_attrs_ints(attrs, attr);
        if (attr->required || list->n > 0) write_ints(text, attr->name, list);
        return;
    }
    if (attr->kind == HL_ATTR_text) {
        const char *value = *hl_attrs_text(attrs, attr);
        if (!attr->required && !value) return;
        write_text(text, " %s=%s", attr->name, value ? value : "");
        return;
    }
    if (attr->kind == HL_ATTR_float) {
        double value = *hl_attrs_float(attrs, attr);
        if (attr->required || value != attr->default_float)
            write_text(text, " %s=%.9g", attr->name, value);
        return;
    }
    int64_t value = hl_attrs_int(attrs, attr);
    if (!attr->required && value == attr->default_int) return;
    if (attr->kind == HL_ATTR_dtype && value >= 0 && value < HL_DTYPE_COUNT)
        write_text(text, " %s=%s", attr->name, hl_dtype_name((hl_dtype)value));
    else
        write_text(text, " %s=%lld", attr->name, (long long)value);
}

static void write_attrs(text_buffer *text, const hl_node *node)
{
    int n;
    const hl_attr_info *attrs = hl_schema_attrs(hl_op_get(node->op)->schema, &n);
    for (int i = 0; i < n; i++) write_attr(text, &node->attrs, &attrs[i]);
}

static void write_instr(text_buffer *text, const hl_pw_instr *instr)
{
    const uint8_t operand[3] = {instr->a, instr->b, instr->c};
    write_text(text, "      r%d = %s", instr->dst, hl_pw_name(instr->op));
    for (int k = 0; k < hl_pw_operands(instr->op); k++) write_text(text, " r%d", operand[k]);
    switch (instr->op) {
    case HL_PW_LOAD: write_text(text, " in%d", instr->in); break;
    case HL_PW_NUMBER: write_text(text, " %.9g", instr->number); break;
    case HL_PW_CAST: write_text(text, " %s", hl_dtype_name((hl_dtype)instr->number)); break;
    case HL_PW_DROPOUT_MASK: write_text(text, " p=%.9g", instr->number); break;
    default: break;
    }
    write_text(text, "\n");
}

static void write_program(text_buffer *text, const hl_program *program)
{
    static const char *const sums[] = {
        "",
        " summed over outer",
        " summed over middle",
        " summed over rows",
        " summed over cols",
        " summed over outer and inner",
        " summed over middle and inner",
        " summed",
    };
    char shape[HL_SHAPE_TEXT];
    write_text(text, "      over %s, rows are %d dims", hl_shape_format(&program->shape, shape),
               program->split[1]);
    if (program->split[0] > 0) write_text(text, ", %d of them outer", program->split[0]);
    write_text(text, "\n");
    for (int32_t i = 0; i < program->n_code; i++) write_instr(text, &program->code[i]);
    for (int32_t j = 0; j < program->n_out; j++)
        write_text(text, "      out%d = r%d%s\n", j, program->out[j].reg,
                   sums[program->out[j].sums & HL_PW_SUM_ALL]);
}

static void write_node(text_buffer *text, const hl_graph *graph, const hl_node *node)
{
    char type[HL_TYPE_TEXT];
    write_text(text, "  ");
    for (int32_t j = 0; j < node->n_out; j++)
        write_text(text, "%s%%%d", j > 0 ? ", " : "", node->out + j);
    write_text(text, " = %s(", hl_op_get(node->op)->name);
    for (int32_t i = 0; i < node->n_in; i++) {
        if (i > 0) write_text(text, ", ");
        write_value(text, graph, node->in[i]);
    }
    write_text(text, ")");
    write_attrs(text, node);
    for (int32_t j = 0; j < node->n_out; j++)
        write_text(text, "%s%s", j > 0 ? ", " : " -> ",
                   hl_type_format(&graph->values[node->out + j].type, type));
    if (node->fence) write_text(text, "  | fence %d", node->fence);
    if (node->checkpoint) write_text(text, "  | checkpoint %d", node->checkpoint);
    if (node->scope) write_text(text, "  ; %s", node->scope);
    write_text(text, "\n");
    if (node->program) write_program(text, node->program);
    for (int k = 0; k < HL_PROLOGUES; k++) {
        if (!node->prologue[k]) continue;
        write_text(text, "      before operand %d\n", k);
        write_program(text, node->prologue[k]);
    }
}

static void write_graph(text_buffer *text, const hl_graph *graph)
{
    write_text(text, "leaves:\n");
    for (int64_t i = 0; i < graph->n_values; i++) write_leaf(text, graph, (hl_id)i);
    for (int segment = 0; segment < HL_SEGMENT_COUNT; segment++) {
        bool begun = false;
        for (int64_t i = 0; i < graph->n_nodes; i++) {
            if ((int)graph->nodes[i].segment != segment) continue;
            if (!begun) write_text(text, "%s:\n", segment_names[segment]);
            begun = true;
            write_node(text, graph, &graph->nodes[i]);
        }
    }
    if (graph->n_commits > 0) write_text(text, "commits:\n");
    for (int64_t i = 0; i < graph->n_commits; i++) {
        const hl_commit *commit = &graph->commits[i];
        write_text(text, "  %s: ", segment_names[commit->segment]);
        write_value(text, graph, commit->target);
        write_text(text, commit->added ? " <- + " : " <- ");
        write_value(text, graph, commit->value);
        write_text(text, "\n");
    }
    if (graph->n_outputs > 0) write_text(text, "outputs:\n");
    for (int64_t i = 0; i < graph->n_outputs; i++) {
        write_text(text, "  ");
        write_value(text, graph, graph->outputs[i]);
        write_text(text, "\n");
    }
}

hl_status hl_graph_print(const hl_graph *graph, char **out_text)
{
    text_buffer text = {.status = HL_OK};
    *out_text = NULL;
    write_graph(&text, graph);
    if (text.status != HL_OK) {
        hl_free(text.data);
        return text.status;
    }
    *out_text = text.data;
    return HL_OK;
}
