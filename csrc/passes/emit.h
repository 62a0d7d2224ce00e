/* Emission: a pointwise program from nodes of a graph, step by step. Where the program is at one of
 * its limits, or a pass finds that it cannot be written, the call fails and is_refused is set, so
 * that the pass can leave the nodes as they are. */
#ifndef HL_PASSES_EMIT_H
#define HL_PASSES_EMIT_H

#include "ir/program.h"

typedef struct hl_emitter {
    const hl_graph *graph;
    hl_program program;
    hl_id in[HL_PROGRAM_INS];     /* by input of the program */
    hl_id value[HL_PROGRAM_REGS]; /* by register: the value that it holds */
    bool is_refused;
} hl_emitter;

void hl_emit_begin(hl_emitter *e, const hl_graph *graph, const hl_shape *shape);
/* The register that holds the value; false: none does. */
bool hl_emit_find(const hl_emitter *e, hl_id value, uint8_t *out_reg);
/* A floating number, which is part of the code. */
bool hl_emit_is_number(const hl_graph *graph, hl_id value);
hl_status hl_emit_number(hl_emitter *e, hl_id value, uint8_t *out_reg);
/* A value as an input of the program. */
hl_status hl_emit_load(hl_emitter *e, hl_id value, uint8_t *out_reg);
/* The step of a pointwise node, its operands being in these registers; a generator op has none. */
hl_status hl_emit_node(hl_emitter *e, const hl_node *node, const uint8_t *operands,
                       uint8_t *out_reg);
hl_status hl_emit_output(hl_emitter *e, uint8_t reg, hl_pw_sums sums);

#endif
