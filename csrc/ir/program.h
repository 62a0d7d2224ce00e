/* Pointwise programs: what a fused node computes per element.
 *
 * A program is straight-line code over registers, one value a register, on an iteration shape.
 * Input i is read by NumPy broadcasting to that shape. Each output is one register, stored in full
 * or summed over part of the shape: the shape is seen as [rows, cols] with `split` leading dims in
 * rows. One program is one pass over memory: this is the only fusion mechanism for elementwise
 * work, on every device. The CPU interprets it block by block; CUDA compiles it. Every op with
 * HL_OP_POINTWISE that is not lowered has a micro-op of the same meaning here; the same table
 * serves fused nodes and single pointwise nodes (hl_program_from_node).
 *
 * A register is written before it is read, and once; a load stands for one input. Sums are of the
 * registers' values; a store rounds to the output's dtype. DROPOUT and UNIFORM: the sample is the
 * index in the iteration's first dim, the element the index within the sample. */
#ifndef HL_IR_PROGRAM_H
#define HL_IR_PROGRAM_H

#include "base/rng.h"
#include "ir/graph.h"

/* micro-op, operands. Comparisons give 1 or 0; a condition is true when it is not zero. */
#define HL_PW_OPS(X)                                                                               \
    X(LOAD, 0)                                                                                     \
    X(NUMBER, 0)                                                                                   \
    X(DROPOUT, 0)                                                                                  \
    X(UNIFORM, 0)                                                                                  \
    X(NEG, 1)                                                                                      \
    X(ABS, 1)                                                                                      \
    X(SIGN, 1)                                                                                     \
    X(EXP, 1)                                                                                      \
    X(EXPM1, 1)                                                                                    \
    X(LOG, 1)                                                                                      \
    X(LOG1P, 1)                                                                                    \
    X(SQRT, 1)                                                                                     \
    X(RSQRT, 1)                                                                                    \
    X(RECIPROCAL, 1)                                                                               \
    X(SIN, 1)                                                                                      \
    X(COS, 1)                                                                                      \
    X(TANH, 1)                                                                                     \
    X(SIGMOID, 1)                                                                                  \
    X(SOFTPLUS, 1)                                                                                 \
    X(ERF, 1)                                                                                      \
    X(RELU, 1)                                                                                     \
    X(FLOOR, 1)                                                                                    \
    X(CEIL, 1)                                                                                     \
    X(ROUND, 1)                                                                                    \
    X(ISFINITE, 1)                                                                                 \
    X(NOT, 1)                                                                                      \
    X(CAST, 1)                                                                                     \
    X(ADD, 2)                                                                                      \
    X(SUB, 2)                                                                                      \
    X(MUL, 2)                                                                                      \
    X(DIV, 2)                                                                                      \
    X(POW, 2)                                                                                      \
    X(MOD, 2)                                                                                      \
    X(MAXIMUM, 2)                                                                                  \
    X(MINIMUM, 2)                                                                                  \
    X(EQ, 2)                                                                                       \
    X(NE, 2)                                                                                       \
    X(LT, 2)                                                                                       \
    X(LE, 2)                                                                                       \
    X(GT, 2)                                                                                       \
    X(GE, 2)                                                                                       \
    X(AND, 2)                                                                                      \
    X(OR, 2)                                                                                       \
    X(WHERE, 3)                                                                                    \
    X(FMA, 3) /* a * b + c, rounded once; made by fusion from mul and add only where asked */

typedef enum hl_pw_op {
#define X(op, n_operands) HL_PW_##op,
    HL_PW_OPS(X)
#undef X
        HL_PW_COUNT
} hl_pw_op;

enum { HL_PROGRAM_REGS = 48, HL_PROGRAM_INS = 24, HL_PROGRAM_OUTS = 12, HL_PROGRAM_CODE = 96 };

typedef struct hl_pw_instr {
    uint8_t op;           /* hl_pw_op */
    uint8_t dst, a, b, c; /* registers */
    uint8_t in;           /* LOAD: input number. DROPOUT, UNIFORM: the control block's */
    double number;        /* NUMBER: its value. DROPOUT: probability of zero. CAST: hl_dtype */
    hl_rng_key key;       /* DROPOUT, UNIFORM */
} hl_pw_instr;

typedef enum hl_pw_reduce {
    HL_PW_FULL,     /* shape */
    HL_PW_SUM_ROWS, /* sum over the rows: result has the cols' dims */
    HL_PW_SUM_COLS, /* sum over the cols: result has the rows' dims */
    HL_PW_SUM_ALL
} hl_pw_reduce;

struct hl_program {
    hl_shape shape; /* of the iteration */
    int32_t split;  /* dims in rows */
    int32_t n_in, n_out, n_code, n_regs;
    hl_pw_instr code[HL_PROGRAM_CODE];
    struct {
        uint8_t reg;
        uint8_t reduce; /* hl_pw_reduce */
    } out[HL_PROGRAM_OUTS];
};

/* DROPOUT: 0 when the element's 16 bits are below threshold, else scale; the keep probability is
 * exact for the rounded threshold, so the mean is unbiased. */
static inline uint32_t hl_dropout_threshold(double p)
{
    return (uint32_t)(p * 65536.0 + 0.5);
}
static inline double hl_dropout_scale(double p)
{
    uint32_t threshold = hl_dropout_threshold(p);
    return threshold >= 65536 ? 0.0 : 65536.0 / (65536.0 - threshold);
}

int hl_pw_operands(hl_pw_op op);
const char *hl_pw_name(hl_pw_op op);
/* True when the step gives a real number whatever its operands are. A program without such a step,
 * of integers and bools alone, is computed in int64. */
bool hl_pw_is_real(const hl_pw_instr *instr);
/* The micro-op of a pointwise op; HL_PW_COUNT when it has none. */
hl_pw_op hl_pw_of_op(hl_op op);
/* The instruction of a pointwise node with a micro-op, its registers and input still 0. */
hl_pw_instr hl_pw_instr_of(const hl_node *node);
/* The program of one pointwise node, or of a sum over a leading group of axes, a trailing one or
 * all, by which unfused nodes run on the same engine. Input i is operand i; constants of one
 * element are numbers in the code. HL_ERROR_CONFIG for any other node. */
hl_status hl_program_from_node(const hl_graph *graph, hl_node_id node, hl_program *out_program);
/* HL_ERROR_INTERNAL unless the code is well-formed and outputs of these types come of it: numbers
 * of elements count, so a sum may keep dims of 1. */
hl_status hl_program_check(const hl_program *program, const hl_graph *graph, const hl_id *in,
                           int32_t n_in, const hl_type *out_types, int32_t n_out);

#endif
