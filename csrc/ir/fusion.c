/* Programs that a node carries: where their operands and results are, and their text. */
#include "ir/fusion.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/op.h"

/* ---- where things are ------------------------------------------------------------------------ */

const hl_program *hl_node_epilogue(const hl_node *node)
{
    return node->op == HL_OP_POINTWISE_FUSED ? NULL : node->program;
}

bool hl_node_is_anchor(const hl_node *node)
{
    bool is_anchor = hl_node_epilogue(node) != NULL;
    for (int k = 0; k < HL_PROLOGUES; k++) is_anchor = is_anchor || node->prologue[k];
    return is_anchor;
}

/* Inputs and outputs beyond the first, which is the anchor's. */
static int32_t count_more_in(const hl_program *program)
{
    return program ? program->n_in - 1 : 0;
}
static int32_t count_more_out(const hl_program *program)
{
    return program ? program->n_out - 1 : 0;
}

int32_t hl_node_anchor_in(const hl_node *node)
{
    int32_t n = node->n_in - count_more_in(hl_node_epilogue(node));
    for (int k = 0; k < HL_PROLOGUES; k++) n -= count_more_in(node->prologue[k]);
    return n;
}

int32_t hl_node_anchor_out(const hl_node *node)
{
    int32_t n = node->n_out - count_more_out(hl_node_epilogue(node));
    for (int k = 0; k < HL_PROLOGUES; k++) n -= count_more_out(node->prologue[k]);
    return n;
}

int32_t hl_node_epilogue_in(const hl_node *node)
{
    return hl_node_anchor_in(node);
}

int32_t hl_node_prologue_in(const hl_node *node, int32_t k)
{
    int32_t at = hl_node_anchor_in(node) + count_more_in(hl_node_epilogue(node));
    for (int32_t i = 0; i < k; i++) at += count_more_in(node->prologue[i]);
    return at;
}

int32_t hl_node_prologue_out(const hl_node *node, int32_t k)
{
    int32_t at = hl_node_anchor_out(node) + count_more_out(hl_node_epilogue(node));
    for (int32_t i = 0; i < k; i++) at += count_more_out(node->prologue[i]);
    return at;
}

/* ---- text ------------------------------------------------------------------------------------ */

typedef struct text_out {
    char *at;
    size_t room; /* 0: it is full */
} text_out;

static void put_text(text_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put_text(text_out *out, const char *format, ...)
{
    va_list args;
    if (!out->room) return;
    va_start(args, format);
    int n = vsnprintf(out->at, out->room, format, args);
    va_end(args);
    size_t took = n < 0 || (size_t)n >= out->room ? out->room : (size_t)n;
    out->at += took, out->room -= took;
}

/* A program and its operands: those beyond the first are the node's from number more_in on. */
typedef struct text_program {
    const hl_program *program;
    const hl_graph *graph;
    const hl_node *node;
    int32_t more_in;
} text_program;

bool hl_fusion_is_columns(const hl_shape *operand, const hl_shape *program)
{
    if (operand->rank < 1 || operand->rank > program->rank) return false;
    int64_t n = program->dim[program->rank - 1];
    return n != 1 && n != hl_shape_numel(program) && operand->dim[operand->rank - 1] == n &&
           hl_shape_numel(operand) == n;
}

static void put_input(text_out *out, int input)
{
    static const char names[] = "xyzw";
    if (input < 4)
        put_text(out, "%c", names[input]);
    else
        put_text(out, "x%d", input);
}

static void put_load(text_out *out, const text_program *text, int input)
{
    int number = text->more_in + input - 1;
    bool is_columns =
        input && hl_fusion_is_columns(&hl_node_in_type(text->graph, text->node, number)->shape,
                                      &text->program->shape);
    if (is_columns) put_text(out, "columns(");
    put_input(out, input);
    if (is_columns) put_text(out, ")");
}

static const hl_pw_instr *find_instr(const hl_program *program, int reg)
{
    const hl_pw_instr *instr = program->code;
    while (instr->dst != reg) instr++;
    return instr;
}

/* Is a register made of input 0? Registers are written in order. */
static bool is_made_of_first(const hl_program *program, int reg)
{
    bool made[HL_PROGRAM_REGS] = {false};
    for (int32_t i = 0; i < program->n_code; i++) {
        const hl_pw_instr *instr = &program->code[i];
        const uint8_t operand[3] = {instr->a, instr->b, instr->c};
        made[instr->dst] = instr->op == HL_PW_LOAD && instr->in == 0;
        for (int k = 0; k < hl_pw_operands((hl_pw_op)instr->op); k++)
            made[instr->dst] = made[instr->dst] || made[operand[k]];
    }
    return made[reg];
}

/* The expression of a register. */
static void put_register(text_out *out, const text_program *text, int reg)
{
    const hl_program *program = text->program;
    const hl_pw_instr *instr = find_instr(program, reg);
    hl_pw_op op = (hl_pw_op)instr->op;
    uint8_t operand[3] = {instr->a, instr->b, instr->c};
    int n = hl_pw_operands(op);
    if (!out->room) return; /* an expression can be much longer than its code */
    bool is_symmetric = op == HL_PW_ADD || op == HL_PW_MUL;
    if (is_symmetric && !is_made_of_first(program, instr->a) && is_made_of_first(program, instr->b))
        operand[0] = instr->b, operand[1] = instr->a;
    if (op == HL_PW_LOAD) {
        put_load(out, text, instr->in);
    } else if (op == HL_PW_NUMBER) {
        put_text(out, instr->number == 0 && !signbit(instr->number) ? "0" : "number");
    } else {
        put_text(out, "%s(", hl_pw_name(op));
        for (int k = 0; k < n; k++) {
            if (k) put_text(out, ", ");
            put_register(out, text, operand[k]);
        }
        if (op == HL_PW_CAST) put_text(out, ", %s", hl_dtype_name((hl_dtype)instr->number));
        if (hl_pw_is_random(op)) put_input(out, instr->in);
        put_text(out, ")");
    }
}

static void put_program(text_out *out, const text_program *text)
{
    static const char *const statistics[] = {
        [HL_PW_SUM] = "sum", [HL_PW_MEAN] = "mean", [HL_PW_VARIANCE] = "var"};
    static const char *const groups[] = {[HL_PW_SUM_ROWS] = "_rows",
                                         [HL_PW_SUM_COLS] = "_cols",
                                         [HL_PW_SUM_ALL] = "",
                                         [HL_PW_SUM_OUTER] = "_outer",
                                         [HL_PW_SUM_MIDDLE] = "_middle",
                                         [HL_PW_SUM_OUTER | HL_PW_SUM_INNER] = "_outer_inner",
                                         [HL_PW_SUM_MIDDLE | HL_PW_SUM_INNER] = "_middle_inner"};
    const hl_program *program = text->program;
    for (int32_t j = 0; j < program->n_out; j++) {
        int which = program->out[j].sums & HL_PW_SUM_ALL;
        if (j) put_text(out, ", ");
        if (which) put_text(out, "%s%s(", statistics[program->out[j].statistic], groups[which]);
        put_register(out, text, program->out[j].reg);
        if (which) put_text(out, ")");
    }
}

void hl_fusion_format(const hl_graph *graph, const hl_node *node, char out_text[HL_FUSION_TEXT])
{
    text_out out = {out_text, HL_FUSION_TEXT};
    const hl_program *epilogue = hl_node_epilogue(node);
    out_text[0] = 0;
    text_program text = {epilogue, graph, node, hl_node_epilogue_in(node)};
    if (epilogue) put_program(&out, &text);
    for (int k = 0; k < HL_PROLOGUES; k++) {
        if (!node->prologue[k]) continue;
        put_text(&out, "%s%c: ", out.at > out_text ? "; " : "", 'a' + k);
        text.program = node->prologue[k], text.more_in = hl_node_prologue_in(node, k);
        put_program(&out, &text);
    }
    if (!out.room) memcpy(out_text + HL_FUSION_TEXT - 4, "...", 4);
}

int hl_fusion_find(const hl_graph *graph, const hl_node *node, const char *const *texts)
{
    char text[HL_FUSION_TEXT];
    if (!hl_node_is_anchor(node) && !texts) return 0;
    hl_fusion_format(graph, node, text);
    for (int i = 0; texts && texts[i]; i++)
        if (strcmp(texts[i], text) == 0) return i;
    return -1;
}

/* ---- types ----------------------------------------------------------------------------------- */

static hl_status check_program(const hl_graph *graph, const hl_node *node,
                               const hl_program *program, const hl_type *first, int32_t more_in,
                               const hl_type *out_types)
{
    hl_type in[HL_PROGRAM_INS] = {*first};
    if (program->n_in < 1 || program->n_in > HL_PROGRAM_INS)
        return hl_status_set(HL_ERROR_INTERNAL, "%s: a program has 1 ... %d inputs, got %d",
                             hl_op_get(node->op)->name, HL_PROGRAM_INS, program->n_in);
    if (!hl_shape_equal(&program->shape, &first->shape))
        return hl_status_set(HL_ERROR_INTERNAL, "%s: a program must have its operand's shape",
                             hl_op_get(node->op)->name);
    for (int32_t i = 1; i < program->n_in; i++)
        in[i] = *hl_node_in_type(graph, node, more_in + i - 1);
    return hl_program_check_types(program, in, program->n_in, out_types, program->n_out);
}

hl_status hl_fusion_infer(const hl_graph *graph, const hl_node *node, hl_type *out_types)
{
    const hl_op_info *info = hl_op_get(node->op);
    const hl_program *epilogue = hl_node_epilogue(node);
    int32_t n_own = hl_node_anchor_out(node), shift = count_more_out(epilogue);
    hl_type own[HL_ANCHOR_OUTS];
    hl_node anchor = *node;
    anchor.n_in = hl_node_anchor_in(node), anchor.n_out = n_own;
    anchor.program = NULL;
    if (anchor.n_in < info->min_in || n_own != info->n_out || n_own > HL_ANCHOR_OUTS)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "%s: it must have the anchor's operands and results, got %d and %d",
                             info->name, anchor.n_in, n_own);
    HL_TRY(info->infer(graph, &anchor, own));
    if (!epilogue) out_types[0] = own[0];
    for (int32_t j = 1; j < n_own; j++) out_types[shift + j] = own[j];
    if (epilogue)
        HL_TRY(check_program(graph, node, epilogue, &own[0], hl_node_epilogue_in(node), out_types));
    for (int32_t k = 0; k < HL_PROLOGUES; k++) {
        const hl_program *program = node->prologue[k];
        hl_type types[HL_PROGRAM_OUTS];
        if (!program) continue;
        types[0] = *hl_node_in_type(graph, node, k);
        for (int32_t j = 1; j < program->n_out && j < HL_PROGRAM_OUTS; j++)
            types[j] = out_types[hl_node_prologue_out(node, k) + j - 1];
        HL_TRY(check_program(graph, node, program, &types[0], hl_node_prologue_in(node, k), types));
    }
    return HL_OK;
}
