/* Pointwise programs: what a fused node computes per element.
 *
 * A program is straight-line code over registers, one value a register, on an iteration shape.
 * Input i is read by NumPy broadcasting to that shape. Each output is one register, stored in full
 * or summed over part of the shape: two splits divide the dims into three groups, outer, middle and
 * inner, and an output names those that it is summed over. So a bias gradient of (N,C,H,W), which
 * keeps C, and a mean over time of (B,T,C) end the program that makes their operand. One program is
 * one pass over memory: this is the only fusion mechanism for elementwise work, on every device.
 * The CPU interprets it block by block; CUDA compiles it. Every op with HL_OP_POINTWISE that is not
 * lowered has a micro-op of the same meaning here; the same table serves fused nodes and single
 * pointwise nodes (hl_program_from_node).
 *
 * A register is written before it is read, and once; a load stands for one input. Sums are of the
 * registers' values; a store rounds to the output's dtype. DROPOUT_MASK and UNIFORM are random: the
 * sample is the index in the iteration's first dim, the element the index within the sample. */
#ifndef HL_IR_PROGRAM_H
#define HL_IR_PROGRAM_H

#include "base/rng.h"
#include "ir/graph.h"

/* Micro-ops: leaves first, then those of pointwise.def in its order. Comparisons give 1 or 0; a
 * condition is true when it is not zero. */
typedef enum hl_pw_op {
    HL_PW_LOAD,
    HL_PW_NUMBER,
#define HL_PW_DRAW(id, ...) HL_PW_##id,
#include "ir/pointwise.def"
#define HL_PW(id, ...)      HL_PW_##id,
#define HL_PW_CAST(id, ...) HL_PW_##id,
#include "ir/pointwise.def"
    HL_PW_COUNT
} hl_pw_op;

/* The dtype of a pointwise op's result: see pointwise.def. */
typedef enum hl_pw_result {
    HL_PW_RESULT_ANY,
    HL_PW_RESULT_NUMBER,
    HL_PW_RESULT_FIRST,
    HL_PW_RESULT_CHOSEN,
    HL_PW_RESULT_FLOAT,
    HL_PW_RESULT_BOOL
} hl_pw_result;

/* What registers hold. */
typedef enum hl_pw_kind { HL_PW_F32, HL_PW_F64, HL_PW_I64 } hl_pw_kind;

/* What a micro-op costs the CPU's vector units. */
typedef enum hl_pw_cost {
    HL_PW_COST_CHEAP,  /* less than the loads and stores around it: it stands in chains */
    HL_PW_COST_SERIES, /* a polynomial */
    HL_PW_COST_LANES   /* element by element */
} hl_pw_cost;

enum { HL_PROGRAM_REGS = 48, HL_PROGRAM_INS = 24, HL_PROGRAM_OUTS = 12, HL_PROGRAM_CODE = 96 };

typedef struct hl_pw_instr {
    uint8_t op;           /* hl_pw_op */
    uint8_t dst, a, b, c; /* registers */
    uint8_t in;     /* number of an input. LOAD: the one it reads. Random: the control block */
    double number;  /* NUMBER: its value. DROPOUT_MASK: probability of zero. CAST: hl_dtype */
    hl_rng_key key; /* of random steps */
} hl_pw_instr;

/* Groups of dims that an output is summed over, as a mask. Where no sum needs three groups the
 * outer one is empty: then there are rows (outer and middle) and columns (inner). */
typedef enum hl_pw_sums {
    HL_PW_FULL = 0, /* every element is stored */
    HL_PW_SUM_OUTER = 1,
    HL_PW_SUM_MIDDLE = 2,
    HL_PW_SUM_INNER = 4,
    HL_PW_SUM_ROWS = HL_PW_SUM_OUTER | HL_PW_SUM_MIDDLE,
    HL_PW_SUM_COLS = HL_PW_SUM_INNER,
    HL_PW_SUM_ALL = HL_PW_SUM_ROWS | HL_PW_SUM_COLS
} hl_pw_sums;

/* What an output is of the elements over the groups of dims that it names. All but sums are of
 * programs that anchors carry alone (ir/fusion.h); a variance is that of the population. */
typedef enum hl_pw_statistic { HL_PW_SUM, HL_PW_MEAN, HL_PW_VARIANCE } hl_pw_statistic;

enum { HL_PROGRAM_SPLITS = 2 };

struct hl_program {
    hl_shape shape;                   /* of the iteration */
    int32_t split[HL_PROGRAM_SPLITS]; /* dims before the middle group, dims before the inner one */
    int32_t n_in, n_out, n_code, n_regs;
    hl_pw_instr code[HL_PROGRAM_CODE];
    struct {
        uint8_t reg;
        uint8_t sums;      /* hl_pw_sums; with three groups not OUTER alone */
        uint8_t statistic; /* hl_pw_statistic, where it is over some */
    } out[HL_PROGRAM_OUTS];
};

/* DROPOUT_MASK: 0 when the element's 16 bits are below threshold, else scale; the keep probability
 * is exact for the rounded threshold, so the mean is unbiased. */
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
/* "RELU", and the op's name, "relu". */
const char *hl_pw_id(hl_pw_op op);
const char *hl_pw_name(hl_pw_op op);
hl_pw_cost hl_pw_cost_of(hl_pw_op op);
/* Of a micro-op that has operands, CAST apart. */
hl_pw_result hl_pw_result_of(hl_pw_op op);
static inline bool hl_pw_is_random(hl_pw_op op)
{
    return op == HL_PW_DROPOUT_MASK || op == HL_PW_UNIFORM;
}
/* Does the step give a floating-point number whatever its operands are? */
bool hl_pw_is_real(const hl_pw_instr *instr);
/* The micro-op of a pointwise op; HL_PW_COUNT when it has none. */
hl_pw_op hl_pw_of_op(hl_op op);
/* The step of a pointwise node: what its attributes say. Registers and `in` are the caller's. */
hl_pw_instr hl_pw_instr_make(const hl_node *node);
/* Adds to the sorted splits those that a sum over the axes needs: the places where summed dims and
 * others meet, dims of one element ignored. False, and nothing added, where that makes more than
 * HL_PROGRAM_SPLITS. */
bool hl_program_splits_add(const hl_shape *shape, const hl_ints *axes, int32_t *splits,
                           int32_t *n_splits);
/* The program's groups by the splits that its sums need, and the mask of a sum over these axes. */
void hl_program_splits_set(hl_program *program, const int32_t *splits, int32_t n_splits);
hl_pw_sums hl_program_sums(const hl_program *program, const hl_ints *axes);

/* Elements of the groups, as an engine sees them. Where a group has one element, the other two are
 * middle and inner, `outer` is 1, and a sum is FULL, ROWS, COLS or ALL. */
typedef struct hl_program_groups {
    int64_t outer, middle, inner;
    int32_t outer_dims, row_dims; /* dims before the middle group, and before the inner one */
    uint8_t sums[HL_PROGRAM_OUTS];
} hl_program_groups;
hl_program_groups hl_program_groups_make(const hl_program *program);

/* The program of one pointwise node, or of a sum with at most two splits, by which unfused nodes
 * run on the same engine. Input i is operand i; constants of one element are numbers in the code.
 * HL_ERROR_CONFIG for any other node. */
hl_status hl_program_from_node(const hl_graph *graph, hl_node_id node, hl_program *out_program);
/* What the registers of a node's program hold, on every device, by its code alone: operands that it
 * does not load are numbers in it. I64 where all inputs and outputs are integers and bools and no
 * step is real, so that all is exact. F64 where it casts to float64 or has a float64 input or
 * output, inputs of one element among many apart, since float64 is slow. Else F32. */
hl_pw_kind hl_program_kind(const hl_program *program, const hl_graph *graph, const hl_node *node);
/* HL_ERROR_INTERNAL unless the code is well-formed and outputs of these types come of inputs of
 * those: numbers of elements count, so a sum may keep dims of 1. */
hl_status hl_program_check_types(const hl_program *program, const hl_type *in_types, int32_t n_in,
                                 const hl_type *out_types, int32_t n_out);
/* The same for values of a graph. */
hl_status hl_program_check(const hl_program *program, const hl_graph *graph, const hl_id *in,
                           int32_t n_in, const hl_type *out_types, int32_t n_out);

#endif
