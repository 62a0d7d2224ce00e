/* The steps of a program, and its limits. */
#include "passes/emit.h"

#include <string.h>

#include "ir/op.h"

static hl_status check_room(hl_emitter *e, int32_t n, int32_t most)
{
    if (n < most) return HL_OK;
    e->is_refused = true;
    return hl_status_set(HL_ERROR_INTERNAL, "fuse: a program has room for %d, got more", most);
}

void hl_emit_begin(hl_emitter *e, const hl_graph *graph, const hl_shape *shape)
{
    memset(e, 0, sizeof *e);
    e->graph = graph;
    e->program.shape = *shape;
    hl_program_splits_set(&e->program, NULL, 0);
}

bool hl_emit_find(const hl_emitter *e, hl_id value, uint8_t *out_reg)
{
    for (int32_t r = 0; r < e->program.n_regs; r++) {
        if (e->value[r] != value) continue;
        *out_reg = (uint8_t)r;
        return true;
    }
    return false;
}

static hl_status find_input(hl_emitter *e, hl_id value, uint8_t *out_in)
{
    int32_t i = 0;
    while (i < e->program.n_in && e->in[i] != value) i++;
    if (i == e->program.n_in) {
        HL_TRY(check_room(e, i, HL_PROGRAM_INS));
        e->in[e->program.n_in++] = value;
    }
    *out_in = (uint8_t)i;
    return HL_OK;
}

static hl_status emit(hl_emitter *e, hl_id value, hl_pw_instr instr, uint8_t *out_reg)
{
    HL_TRY(check_room(e, e->program.n_regs, HL_PROGRAM_REGS));
    HL_TRY(check_room(e, e->program.n_code, HL_PROGRAM_CODE));
    *out_reg = (uint8_t)e->program.n_regs++;
    instr.dst = *out_reg;
    e->program.code[e->program.n_code++] = instr;
    e->value[*out_reg] = value;
    return HL_OK;
}

bool hl_emit_is_number(const hl_graph *graph, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    return v->kind == HL_VALUE_CONST && v->type.shape.rank == 0 && hl_dtype_is_float(v->type.dtype);
}

hl_status hl_emit_number(hl_emitter *e, hl_id value, uint8_t *out_reg)
{
    double number = 0;
    hl_graph_number_read(e->graph, value, &number);
    return emit(e, value, (hl_pw_instr){.op = HL_PW_NUMBER, .number = number}, out_reg);
}

hl_status hl_emit_load(hl_emitter *e, hl_id value, uint8_t *out_reg)
{
    hl_pw_instr load = {.op = HL_PW_LOAD};
    HL_TRY(find_input(e, value, &load.in));
    return emit(e, value, load, out_reg);
}

hl_status hl_emit_node(hl_emitter *e, const hl_node *node, const uint8_t *operands,
                       uint8_t *out_reg)
{
    hl_pw_instr instr = hl_pw_instr_make(node);
    if (hl_pw_is_random((hl_pw_op)instr.op))
        HL_TRY(find_input(e, node->in[0], &instr.in));
    else
        instr.a = operands[0], instr.b = operands[1], instr.c = operands[2];
    return emit(e, node->out, instr, out_reg);
}

hl_status hl_emit_output(hl_emitter *e, uint8_t reg, hl_pw_sums sums)
{
    HL_TRY(check_room(e, e->program.n_out, HL_PROGRAM_OUTS));
    e->program.out[e->program.n_out].reg = reg;
    e->program.out[e->program.n_out++].sums = (uint8_t)sums;
    return HL_OK;
}
