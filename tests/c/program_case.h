/* A pointwise program built instruction by instruction, with the operands of a case (case.h) that
 * runs it. */
#ifndef TESTS_C_PROGRAM_CASE_H
#define TESTS_C_PROGRAM_CASE_H

#include "tests/c/case.h"

typedef struct program_case {
    hl_program program;
    op_case c; /* its program is this one: the struct stays where it is */
} program_case;

static inline void program_begin(program_case *p, int rank, const int64_t *dim, int split)
{
    memset(p, 0, sizeof *p);
    p->program.shape = hl_shape_make(rank, dim);
    p->program.split = split;
    p->c.op = HL_OP_POINTWISE_FUSED;
    p->c.program = &p->program;
    p->c.tolerance = 1e-5;
    p->c.control.attempted = 7, p->c.control.micro_row = 30;
}

/* The register that it writes. */
static inline uint8_t program_emit(program_case *p, hl_pw_instr instr)
{
    instr.dst = (uint8_t)p->program.n_regs++;
    p->program.code[p->program.n_code++] = instr;
    return instr.dst;
}

static inline int program_add_in(program_case *p, hl_type type)
{
    p->c.in[p->c.n_in] = type;
    p->program.n_in = p->c.n_in + 1;
    return p->c.n_in++;
}

/* One more operand, with the iteration's dims where the bit of mask is set, else 1. The test fills
 * it. */
static inline uint8_t program_load(program_case *p, hl_dtype dtype, unsigned mask)
{
    hl_shape shape = p->program.shape;
    for (int d = 0; d < shape.rank; d++)
        if (!(mask >> d & 1)) shape.dim[d] = 1;
    int in = program_add_in(p, (hl_type){dtype, shape});
    return program_emit(p, (hl_pw_instr){.op = HL_PW_LOAD, .in = (uint8_t)in});
}

/* The control block as one more operand, for random numbers. */
static inline uint8_t program_add_control(program_case *p)
{
    int in = program_add_in(p, (hl_type){HL_DTYPE_U8, hl_shape_1d((int64_t)sizeof(hl_control))});
    p->c.is_control[in] = true;
    return (uint8_t)in;
}

static inline void program_put(program_case *p, uint8_t reg, hl_pw_reduce reduce, hl_dtype dtype)
{
    int j = p->c.n_out++, split = p->program.split;
    const hl_shape *shape = &p->program.shape;
    hl_type type = {dtype, *shape};
    if (reduce == HL_PW_SUM_ROWS)
        type.shape = hl_shape_make(shape->rank - split, shape->dim + split);
    if (reduce == HL_PW_SUM_COLS) type.shape = hl_shape_make(split, shape->dim);
    if (reduce == HL_PW_SUM_ALL) type.shape = hl_shape_scalar();
    p->c.out[j] = type;
    p->program.out[j].reg = reg, p->program.out[j].reduce = (uint8_t)reduce;
    p->program.n_out = p->c.n_out;
}

#endif
