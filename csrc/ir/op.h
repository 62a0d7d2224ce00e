/* The op table: everything the core knows about an op, one line each in ops.def. */
#ifndef HL_IR_OP_H
#define HL_IR_OP_H

#include "ir/graph.h"

/* Facts about an op that passes and kernels rely on. */
enum {
    HL_OP_POINTWISE = 1 << 0, /* out[i] from in[broadcast i]; has a micro-op in ir/program.h, so it can be fused */
    HL_OP_SOURCE = 1 << 1,    /* pointwise without data operands: recomputed in each consumer, never stored */
    HL_OP_GUARDED = 1 << 2,   /* last operand is the control block; out[j] is in[j] updated in place, and left as it
                                 is when the step is not applied. Only valid as the value of a commit */
    HL_OP_VIEW = 1 << 3,      /* same bytes, other shape: costs nothing */
    HL_OP_COMMUTES = 1 << 4,  /* in[0] and in[1] may be swapped */
    HL_OP_INTERNAL = 1 << 5,  /* made by passes alone: not offered to Python */
    HL_OP_LOW = 1 << 6,       /* amp: computes in 16 bits where the precision is mixed; all others in fp32 */
    HL_OP_RANDOM = 1 << 7,    /* attrs.name is its stream */
};

/* Shape and dtype of every output from inputs and attributes; checks both; normalises attributes (negative axes). */
typedef hl_status (*hl_op_infer_fn)(const hl_graph *graph, hl_node *node, hl_type *out_types);

/* Adds nodes for the gradients: dout[j] is the gradient of output j or HL_NONE when nothing depends on it; writes
 * din[i] = the gradient of input i in its shape, or HL_NONE for "none"; need[i] false: may be left HL_NONE. */
typedef hl_status (*hl_op_vjp_fn)(hl_graph *graph, hl_node_id node, const hl_id *dout, const bool *need, hl_id *din);

/* Composite ops: adds nodes that compute the same outputs from ops with kernels on every device. Used after
 * autodiff, for devices that have no kernel of their own for the op. */
typedef hl_status (*hl_op_lower_fn)(hl_graph *graph, hl_node_id node, hl_id *out_values);

typedef struct hl_op_info {
    const char *name;
    int min_in, max_in; /* max_in -1: any number */
    int n_out;
    uint32_t flags;
    /* Attribute schema: "kind:name[=default]" separated by blanks, in slot order per kind. Kinds: i int64, f double,
     * d list of int64 (one per op), t dtype (stored as int), s string (one per op). No default: required. */
    const char *attrs;
    hl_op_infer_fn infer;
    hl_op_vjp_fn vjp; /* NULL: not differentiable (written so in the table) */
    hl_op_lower_fn lower;
    const char *doc;
} hl_op_info;

const hl_op_info *hl_op_get(hl_op op);
/* HL_OP_COUNT when unknown. */
hl_op hl_op_parse(const char *name);

/* Slot of a named attribute: *out_kind as in the schema, slot index within its kind; false when there is none. */
bool hl_op_attr_slot(hl_op op, const char *name, char *out_kind, int *out_slot);
/* Defaults of the schema; the caller then sets what the user gave. */
void hl_op_attr_defaults(hl_op op, hl_attrs *out_attrs);

#endif
