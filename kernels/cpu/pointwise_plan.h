/* A pointwise program made ready for the CPU: how the iteration is cut, where each value lives,
 * what runs how often. Made by pointwise_plan.c, run by pointwise.c.
 *
 * The iteration [rows, cols] is traversed in flat order, in chunks of at most PW_CHUNK elements.
 * Its `unit` is the length after which row vectors repeat (1 when there are none). A short unit: a
 * chunk is as many whole units as fit, so a row vector is laid out once per block of work. A long
 * unit: a chunk is a piece of one unit, and all rows of a block take a piece before the next one
 * begins, for the same reason.
 *
 * Sums see the iteration as (O,M,I), O = 1 where there are no three groups of dims. A chunk is
 * whole rows of I elements or a piece of one row. Where a sum's result has a part for each o, the
 * unit is (M,I), so that no chunk is of two of them unless it has them whole. */
#ifndef HL_KERNELS_CPU_POINTWISE_PLAN_H
#define HL_KERNELS_CPU_POINTWISE_PLAN_H

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/pointwise_chunk.h"

/* How often a value changes. */
typedef enum pw_span {
    PW_ONE,  /* one number for the whole launch */
    PW_COLS, /* repeats with the unit */
    PW_EACH,
    PW_SPANS
} pw_span;

/* An operand as the flat iteration reads it: neighbouring dims that one stride describes are
 * merged. Strides are in elements; the innermost is 0 or 1. */
typedef struct pw_view {
    hl_dtype dtype;
    pw_span span;
    bool is_control;
    bool is_flat; /* element i is at address i */
    int32_t n_dims;
    int64_t dim[HL_MAX_RANK], stride[HL_MAX_RANK];
    int64_t period; /* element i equals element i % period */
} pw_view;

typedef enum pw_place { PW_BUFFER, PW_INPUT, PW_OUTPUT } pw_place;
typedef struct pw_value {
    uint8_t span;
    uint8_t place;
    uint8_t index;    /* PW_INPUT, PW_OUTPUT: which; PW_BUFFER: by its offset below */
    int16_t last_use; /* step; n_steps: an output */
    size_t offset;    /* in the thread's scratch */
} pw_value;

typedef struct pw_output {
    uint8_t value;
    uint8_t sums;   /* as hl_program_groups has them, FULL where nothing is to be added */
    bool is_placed; /* the value is computed in the output itself */
    hl_dtype dtype;
    int64_t n;            /* elements of the output */
    int64_t length;       /* of neighbours that a sum takes together: I, or (M,I) */
    size_t partial;       /* of a sum over O: offset of its partial sums in the scratch */
    size_t partial_bytes; /* of one */
    size_t running;       /* SUM_MIDDLE: offset of the I sums under way in the thread's scratch */
} pw_output;

/* What runs for a chunk: a step alone, or a chain of consecutive ones of the same span. */
typedef struct pw_item {
    uint8_t first, last; /* steps */
    int16_t link;        /* the chain's first one; -1: none */
} pw_item;

typedef struct pw_plan {
    hl_pw_kind kind;
    size_t element_bytes; /* of a value */
    int64_t rows, cols;   /* as the plan is cut; total = rows * cols */
    int64_t unit;
    int64_t chunk;      /* elements of a chunk: units, or a piece of one */
    int64_t whole;      /* no piece crosses a multiple of this: a unit, or a row of it */
    int64_t n_partials; /* of grain rows each */
    int64_t O, M, I;
    int64_t per_sample;
    bool is_row_major; /* a long unit's pieces follow each other within a row */
    bool by_outer;     /* a sum's result has a part for each o */
    bool has_random, has_partials, has_row_sums;
    int32_t control; /* input of the control block */
    int32_t n_in, n_out, n_steps;
    pw_view view[HL_PROGRAM_INS];
    pw_step step[PW_VALUES];
    pw_value value[PW_VALUES];
    /* By span, [begin[span], begin[span + 1]): the steps whose place in memory moves with the
     * chunk, and what runs. */
    uint8_t moving[PW_VALUES], moving_begin[PW_SPANS + 1];
    pw_item item[PW_VALUES];
    uint8_t item_begin[PW_SPANS + 1];
    pw_link link[PW_LINKS];
    pw_output out[HL_PROGRAM_OUTS];
    hl_kernel_req req;
} pw_plan;

/* HL_ERROR_CONFIG with the reason when the node is not for this engine. */
hl_status HL_ISA_NAME(hl_pw_plan_make)(const hl_graph *graph, hl_node_id node, pw_plan *out_plan,
                                       hl_reason *out_why_not);

#endif
