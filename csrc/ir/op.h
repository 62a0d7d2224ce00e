/* The op table: everything the core knows about an op, one line each in ops.def. */
#ifndef HL_IR_OP_H
#define HL_IR_OP_H

#include <assert.h>

#include "ir/graph.h"

/* Facts about an op that passes and kernels rely on. */
enum {
    HL_OP_POINTWISE = 1 << 0, /* out[i] from in[broadcast i]; has a micro-op in ir/program.h, so it
                                 can be fused, or is lowered to ops that have one */
    HL_OP_GENERATOR = 1 << 1, /* pointwise without data operands: each consumer rematerialises it */
    HL_OP_UPDATES = 1 << 2,   /* updates in[j] in place, as out[j]. in[j] is a PARAM or STATE leaf
                                 or another update's output in this segment. At most one update
                                 takes a value; its other readers run before that one. The last of
                                 updates in a row is committed to the leaf. Those that take the
                                 control block change nothing while it holds the step back */
    HL_OP_VIEW = 1 << 3,      /* same bytes, other shape: costs nothing */
    HL_OP_INTERNAL = 1 << 5,  /* made by passes alone: not offered to Python */
    HL_OP_RANDOM = 1 << 6,    /* has the attributes stream and seed */
    HL_OP_SUMS = 1 << 7,      /* out is the sum of in[0] over the attribute axes */
    HL_OP_JOINS = 1 << 8, /* out is made of operands one behind another: all, along the attribute
                             axis; of an UPDATES op those behind the first, which they are written
                             to at multiples of the attribute align */
    HL_OP_BATCH = 1 << 9, /* out is rows in[1] of dataset in[0], converted to the attribute dtype:
                             a batch, which the host gathers instead where the plan is fed */
    HL_OP_WRITES_FIRST = 1 << 10, /* out[0] is in[0] with a part of it overwritten: kernels work in
                                     place where the plan allows it */
    HL_OP_ANY_ORDER = 1 << 11,    /* devices that have a kernel take operands in every order that
                                     `permute` allows, so that layouts may pass through */
    HL_OP_WHOLE = 1 << 12, /* stands for several nodes, for kernels that compute all of them at once
                              or none (passes/whole.c) */
    HL_OP_DECIDES = 1 << 13, /* a step is applied only where all operands behind the first are
                                finite: loss, gradients, their norm. With JOINS: gradients, one
                                operand for each parameter */
    HL_OP_OPAQUE = 1 << 14,  /* out is in an order that only kernels know, which need not write all
                                of it */
};

/* Shape and dtype of every output from inputs and attributes; checks both; normalises attributes
 * (negative axes) so that a second call changes nothing. Writes "<rule>, got <value>" alone:
 * hl_graph_add puts scope, op and operands in front. Where the table has no number of outputs it is
 * called twice: with out_types NULL it sets node->n_out, then out_types has room for that many. */
typedef hl_status (*hl_op_infer_fn)(const hl_graph *graph, hl_node *node, hl_type *out_types);

/* Adds nodes for the gradients: dout[j] is the gradient of output j, or HL_NONE when nothing
 * depends on it (at least one is given); writes din[i] = the gradient of input i in its type. din
 * comes filled with HL_NONE, "no gradient", and may stay so where need[i] is false. */
typedef hl_status (*hl_op_vjp_fn)(hl_graph *graph, hl_node_id node, const hl_id *dout,
                                  const bool *need, hl_id *din);

/* Composite ops: adds nodes that compute the same outputs from ops with kernels on more devices.
 * Used after autodiff, for devices that have no kernel of their own for the node; what it adds may
 * have to be lowered again, but is always simpler. HL_ERROR_DEVICE when nothing simpler is left. */
typedef hl_status (*hl_op_lower_fn)(hl_graph *graph, hl_node_id node, hl_id *out_values);

/* Operations of a node and bytes that it moves: each operand and result once, the control block
 * not at all. */
typedef struct hl_cost {
    double flops, bytes;
    int64_t side; /* of a matrix product: the least of M, N and K; else 0 */
} hl_cost;
typedef hl_cost (*hl_op_cost_fn)(const hl_graph *graph, const hl_node *node);

/* The same node on permuted operands (passes/layout.c): given operands whose dim i was dim dims[i],
 * sets *attrs (on entry the node's own) so that the node computes the same elements, and out_dims
 * so that dim i of its results was dim out_dims[i]. False if it cannot. */
typedef bool (*hl_op_permute_fn)(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                                 hl_attrs *attrs, hl_ints *out_dims);

/* Of a product: its first result is linear in operand 1, the weight, and operand 2, where there is
 * one, is a bias per channel. Sets the dims of the result and of the weight that are the channels.
 * False: they are no dim of the weight. */
typedef bool (*hl_op_channels_fn)(const hl_graph *graph, const hl_node *node, int *out_result_dim,
                                  int *out_weight_dim);

/* Operand `index` holds positions along `axis` of operand `of`; kernels check them. index 0: the op
 * has no such operand. */
enum { HL_AXIS_ATTR = -1 }; /* the axis of the attributes */
typedef struct hl_op_index {
    int8_t index, of, axis;
} hl_op_index;

/* What the node's kernels found wrong in its operands, "<rule>, got <value>", by the row and value
 * that they noted (hl_launch_fault). */
typedef void (*hl_op_fault_fn)(const hl_graph *graph, const hl_node *node, int64_t row,
                               int64_t value, char *out_text, size_t bytes);

typedef struct hl_op_info {
    const char *name;
    int min_in, max_in; /* max_in -1: any number */
    int n_out;          /* -1: as many as infer, or the node's program, says */
    uint32_t flags;
    hl_schema schema; /* of its attributes */
    hl_op_infer_fn infer;
    hl_op_vjp_fn vjp; /* NULL: not differentiable (written so in the table) */
    const char *doc;
    hl_op_lower_fn lower; /* NULL: every backend has a kernel */
    /* Mixed precision (passes/amp.c): a letter for each operand, ':', a letter for each result; the
     * last of each repeats. NULL: all are float32.
     *
     * r  reduced: an operand is rounded to 16 bits; a result has the operands' type, or is float32
     *    by the attribute `float32_out`
     * o  an operand of the first result's type
     * f  follows: computed in the type of the operands
     * w  an operand that may have 16 bits; computed in float32. Of an op that gives g or p, a
     * product that makes it rounds it g  computed in float32, and rounded once to the attribute
     * dtype, to 16 bits where it leads to products alone p  the same, to 16 bits where any product
     * reads it, as what a product gives s  float32 */
    const char *precision;
    hl_op_cost_fn cost;       /* NULL: bytes, and one operation per element if it is pointwise */
    hl_op_permute_fn permute; /* NULL: pointwise ops but generators take any order, others none */
    uint32_t fixed; /* bit i: operand i keeps its order of dims where the others are permuted */
    hl_op_index index;
    hl_op_channels_fn channels; /* NULL: it is no product with a weight */
    hl_op_fault_fn fault;       /* NULL: an index out of range (`index`), or none */
} hl_op_info;

/* Bits of `fixed`. */
bool hl_op_is_fixed(hl_op op, int operand);
/* Letters of `precision`. */
char hl_op_role_in(hl_op op, int operand);
char hl_op_role_out(hl_op op, int result);
/* Is it a matrix product: are its operands of role r? */
bool hl_op_is_product(hl_op op);
/* Is its result the sum of its operand over the attribute axes? */
bool hl_op_is_sum(hl_op op);

const hl_op_info *hl_op_get(hl_op op);
/* HL_OP_COUNT when unknown. */
hl_op hl_op_parse(const char *name);

/* hl_matmul_attrs(node)->trans_a: the attributes of a node whose op has this schema. */
#define HL_ATTRS(name, fields)                                                                     \
    static inline const hl_attrs_##name *hl_##name##_attrs(const hl_node *node)                    \
    {                                                                                              \
        assert(hl_op_get(node->op)->schema == HL_SCHEMA_##name);                                   \
        return &node->attrs.name;                                                                  \
    }
#include "ir/attrs.def"
#undef HL_ATTRS

/* The axes that a node works along, by its attribute `axes` or `axis`; none if it has neither. */
hl_ints hl_node_axes(const hl_node *node);
/* Are there dims both before the first and behind the last of these axes? */
bool hl_node_axes_are_inner(const hl_graph *graph, const hl_node *node);
/* Are operands from number *out_operand on the elements of the node's output as they are, one
 * behind another, each from a multiple of *out_align elements on? */
bool hl_node_joins(const hl_graph *graph, const hl_node *node, int32_t *out_operand,
                   int64_t *out_align);
/* The order of the first operand's dims in which these axes come last. */
hl_ints hl_node_axes_last(const hl_graph *graph, const hl_node *node);
hl_cost hl_node_cost(const hl_graph *graph, const hl_node *node);
/* hl_op_info.permute, its default included. */
bool hl_node_permute(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                     hl_attrs *attrs, hl_ints *out_dims);
/* Bound of the node's index operand (hl_op_index): the size of that axis; 0: it has no index. */
int64_t hl_node_extent(const hl_graph *graph, const hl_node *node);

#endif
