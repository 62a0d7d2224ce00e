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

/* x (int64, what float32 can't hold) > 2^24, beside a float32 operand that the code holds as a
 * number: exact in integers. */
static inline void program_compare_beside_number(program_case *p, int rank, const int64_t *dim)
{
    program_begin(p, rank, dim, rank);
    uint8_t x = program_load(p, HL_DTYPE_I64, ~0u);
    program_add_in(p, (hl_type){HL_DTYPE_F32, hl_shape_scalar()});
    for (int in = 0; in < 2; in++) case_fill(&p->c, in, 0x1p24 - 4, 0x1p24 + 4);
    uint8_t number = program_emit(p, (hl_pw_instr){.op = HL_PW_NUMBER, .number = 0x1p24});
    uint8_t is_above = program_emit(p, (hl_pw_instr){.op = HL_PW_GT, .a = x, .b = number});
    program_put(p, is_above, HL_PW_FULL, HL_DTYPE_BOOL);
    p->c.tolerance = 0;
}

/* Integers divided in float64, as a floor division is, and compared: nothing but the code is
 * float64. */
static inline void program_divide_integers(program_case *p, int rank, const int64_t *dim)
{
    program_begin(p, rank, dim, rank);
    uint8_t x = program_load(p, HL_DTYPE_I64, ~0u), y = program_load(p, HL_DTYPE_I64, 0);
    case_fill(&p->c, 0, 3 * 0x1p25 - 4, 3 * 0x1p25 + 4);
    case_fill(&p->c, 1, 3, 4);
    hl_pw_instr cast = {.op = HL_PW_CAST, .a = x, .number = HL_DTYPE_F64};
    uint8_t above = program_emit(p, cast);
    cast.a = y;
    uint8_t below = program_emit(p, cast);
    uint8_t ratio = program_emit(p, (hl_pw_instr){.op = HL_PW_DIV, .a = above, .b = below});
    uint8_t number = program_emit(p, (hl_pw_instr){.op = HL_PW_NUMBER, .number = 0x1p25});
    uint8_t is_above = program_emit(p, (hl_pw_instr){.op = HL_PW_GT, .a = ratio, .b = number});
    program_put(p, is_above, HL_PW_FULL, HL_DTYPE_BOOL);
    p->c.tolerance = 0;
}

#endif
