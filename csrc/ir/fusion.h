/* Fusion: pointwise programs that a node of another op, the anchor, carries, so that its kernel
 * does their work while it has the values at hand.
 *
 * An epilogue takes the anchor's first result, before that is rounded to its dtype, and makes the
 * node's first outputs from it: all elements, or sums over rows. A prologue takes one operand of
 * the anchor's; its first output is what the anchor reads, and is stored nowhere; the others are
 * outputs of the node. Input 0 of a program is that result or operand; the others are operands of
 * the node behind the anchor's own: those of the epilogue, then those of the prologues in order.
 * The node's outputs are the epilogue's, or without one the anchor's first result; then the
 * anchor's other results; then those of the prologues in order.
 *
 * A kernel takes the fusions that it names, by the text that hl_fusion_format gives:
 *
 *     relu(x)                    the epilogue, x being the anchor's result
 *     relu(x), gt(x, 0)          an epilogue of two outputs
 *     mul(x, number)             any number but 0, which the kernel reads from the program
 *     add(x, y)                  y, z, w: further operands, in the order in which they are loaded
 *     mul(x, columns(y))         of y one element for each column, the last dim of the program
 *     sum_rows(where(y, x, 0))   a sum over all dims but those of the program's columns
 *     x, mean_rows(x), var_rows(x)
 *                                the same dims, mean and variance of the population
 *     a: x, sum_rows(x)          a prologue of operand 0 (b: of operand 1), x being the operand
 *     relu(x); a: x, sum_rows(x) both
 *
 * Of a sum or a product of two, what is made of x stands first, whichever it was. */
#ifndef HL_IR_FUSION_H
#define HL_IR_FUSION_H

#include "ir/program.h"

typedef struct hl_fusion {
    const hl_program *epilogue; /* NULL: none */
    const hl_program *prologue[HL_PROLOGUES];
} hl_fusion;

/* Does the node carry programs? A POINTWISE_FUSED node does not: it is its program. */
bool hl_node_is_anchor(const hl_node *node);
/* NULL where there is none. */
const hl_program *hl_node_epilogue(const hl_node *node);
/* Operands and results of the anchor itself. */
int32_t hl_node_anchor_in(const hl_node *node);
int32_t hl_node_anchor_out(const hl_node *node);
/* The operand, by number, that is input 1 of the epilogue, or of the prologue of operand k. */
int32_t hl_node_epilogue_in(const hl_node *node);
int32_t hl_node_prologue_in(const hl_node *node, int32_t k);
/* The output, by number, that is output 1 of the prologue of operand k. */
int32_t hl_node_prologue_out(const hl_node *node, int32_t k);

/* HL_ANCHOR_INS: the most operands, those of its programs included, that passes give a node. */
enum { HL_FUSION_TEXT = 192, HL_ANCHOR_INS = 8, HL_ANCHOR_OUTS = 8 };
/* "" for a node without programs. A text that is too long is cut, and no kernel names it. */
void hl_fusion_format(const hl_graph *graph, const hl_node *node, char out_text[HL_FUSION_TEXT]);
/* The index of the node's text in a list that ends with NULL, or -1. Without a list: 0 if the node
 * has no programs. */
int hl_fusion_find(const hl_graph *graph, const hl_node *node, const char *const *texts);
/* Has an operand of this shape one element for each column of a program of that one? */
bool hl_fusion_is_columns(const hl_shape *operand, const hl_shape *program);

/* Adds a node that carries programs, which are copied. types: of the epilogue's outputs, then of
 * each prologue's outputs but its first. */
hl_status hl_graph_add_anchor(hl_graph *graph, hl_op op, const hl_id *in, int32_t n_in,
                              const hl_attrs *attrs, const hl_fusion *fusion, const hl_type *types,
                              hl_id *out_first);
/* The types of a node's outputs: those that the anchor infers, and those given for its programs,
 * which are checked. out_types has room for all; on entry those of the programs are set. */
hl_status hl_fusion_infer(const hl_graph *graph, const hl_node *node, hl_type *out_types);

#endif
