/* Nodes that carry programs, from their text: the inverse of hl_fusion_format (ir/fusion.h). */
#ifndef TESTS_C_FUSION_CASE_H
#define TESTS_C_FUSION_CASE_H

#include <stdlib.h>
#include <string.h>

#include "ir/fusion.h"
#include "ir/op.h"
#include "tests/c/check.h"

typedef struct fusion_text {
    const char *at;
    hl_program program;
    uint8_t loaded[4]; /* by input: its register + 1 */
} fusion_text;

static uint8_t fusion_emit(fusion_text *t, hl_pw_instr instr)
{
    instr.dst = (uint8_t)t->program.n_regs++;
    t->program.code[t->program.n_code++] = instr;
    return instr.dst;
}

static uint8_t fusion_load(fusion_text *t, uint8_t in)
{
    if (!t->loaded[in]) {
        t->loaded[in] = (uint8_t)(1 + fusion_emit(t, (hl_pw_instr){.op = HL_PW_LOAD, .in = in}));
        if (t->program.n_in <= in) t->program.n_in = in + 1;
    }
    return (uint8_t)(t->loaded[in] - 1);
}

static bool fusion_skip(fusion_text *t, const char *word)
{
    size_t n = strlen(word);
    bool is_there = strncmp(t->at, word, n) == 0;
    if (is_there) t->at += n;
    return is_there;
}

/* Does the text name this operand? */
__attribute__((unused)) static bool fusion_reads(const char *text, char name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    for (const char *at = text; (at = strchr(at, name)); at++)
        if ((at == text || !strchr(letters, at[-1])) && (!at[1] || !strchr(letters, at[1])))
            return true;
    return false;
}

static uint8_t fusion_expression(fusion_text *t)
{
    static const char names[] = "xyzw";
    const char *name = strchr(names, *t->at);
    char *end;
    if (fusion_skip(t, "columns(")) { /* which the operand's shape says */
        uint8_t reg = fusion_expression(t);
        CHECK(fusion_skip(t, ")"));
        return reg;
    }
    if (*t->at && name && !(t->at[1] >= 'a' && t->at[1] <= 'z')) {
        t->at++;
        return fusion_load(t, (uint8_t)(name - names));
    }
    for (int op = 0; op < HL_PW_COUNT; op++) {
        size_t n = strlen(hl_pw_name((hl_pw_op)op));
        if (strncmp(t->at, hl_pw_name((hl_pw_op)op), n) != 0 || t->at[n] != '(') continue;
        uint8_t reg[3] = {0};
        t->at += n + 1;
        for (int k = 0; k < hl_pw_operands((hl_pw_op)op); k++) {
            if (k) CHECK(fusion_skip(t, ", "));
            reg[k] = fusion_expression(t);
        }
        CHECK(fusion_skip(t, ")"));
        return fusion_emit(t,
                           (hl_pw_instr){.op = (uint8_t)op, .a = reg[0], .b = reg[1], .c = reg[2]});
    }
    double number = strtod(t->at, &end);
    if (end == t->at) check_fail(__FILE__, __LINE__, "no expression: %s", t->at);
    t->at = end;
    return fusion_emit(t, (hl_pw_instr){.op = HL_PW_NUMBER, .number = number});
}

/* Expressions up to the end or ';'; what they give of an operand of this type. */
static hl_program fusion_program(const char **text, const hl_type *type, hl_type *out_types)
{
    fusion_text t = {.at = *text};
    int32_t rank = type->shape.rank;
    static const char *const statistics[] = {"sum_rows(", "mean_rows(", "var_rows("};
    bool has_sums = false;
    t.program.shape = type->shape;
    fusion_load(&t, 0);
    do {
        int j = t.program.n_out++;
        bool is_sum = false, is_mask = strncmp(t.at, "gt(", 3) == 0;
        for (int k = 0; k < 3 && !is_sum; k++) {
            is_sum = fusion_skip(&t, statistics[k]);
            t.program.out[j].statistic = (uint8_t)(is_sum ? k : HL_PW_SUM);
        }
        t.program.out[j].reg = fusion_expression(&t);
        t.program.out[j].sums = is_sum ? HL_PW_SUM_ROWS : HL_PW_FULL;
        out_types[j] = *type;
        if (is_mask) out_types[j].dtype = HL_DTYPE_BOOL;
        if (is_sum) out_types[j] = (hl_type){HL_DTYPE_F32, hl_shape_1d(type->shape.dim[rank - 1])};
        if (is_sum) CHECK(fusion_skip(&t, ")"));
        has_sums = has_sums || is_sum;
    } while (fusion_skip(&t, ", "));
    hl_program_splits_set(&t.program, (int32_t[]){rank - 1}, has_sums);
    fusion_skip(&t, "; ");
    *text = t.at;
    return t.program;
}

/* A node of this op that carries what the text says; `in` has the programs' operands, too. */
__attribute__((unused)) static hl_status fusion_add(hl_graph *graph, hl_op op, const hl_id *in,
                                                    int32_t n_in, const hl_attrs *attrs,
                                                    const char *text, hl_id *out)
{
    hl_program programs[1 + HL_PROLOGUES];
    hl_type types[4 * HL_PROGRAM_OUTS];
    hl_fusion fusion = {.epilogue = NULL};
    const char *at = text;
    char got[HL_FUSION_TEXT];
    hl_id bare;
    int n = 0;
    if (!*text) return hl_graph_add(graph, op, in, n_in, attrs, out);
    int32_t n_own = n_in < hl_op_get(op)->min_in ? n_in : hl_op_get(op)->min_in;
    HL_TRY(hl_graph_add(graph, op, in, n_own, attrs, &bare));
    hl_type result = graph->values[bare].type;
    graph->n_nodes--, graph->n_values--; /* it was for the type alone */
    while (*at) {
        int k = at[0] && at[1] == ':' ? at[0] - 'a' : -1;
        hl_type made[HL_PROGRAM_OUTS];
        if (k >= 0) at += 3;
        hl_program *program = &programs[k + 1];
        *program = fusion_program(&at, k < 0 ? &result : &graph->values[in[k]].type, made);
        if (k < 0)
            fusion.epilogue = program;
        else
            fusion.prologue[k] = program;
        for (int j = k >= 0; j < program->n_out; j++) types[n++] = made[j];
    }
    HL_TRY(hl_graph_add_anchor(graph, op, in, n_in, attrs, &fusion, types, out));
    hl_fusion_format(graph, &graph->nodes[graph->n_nodes - 1], got);
    CHECK(strcmp(got, text) == 0);
    return HL_OK;
}

#endif
