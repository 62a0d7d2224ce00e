/* The op table: everything the core knows about an op, one line each in ops.def. */
#ifndef HL_IR_OP_H
#define HL_IR_OP_H

#include <assert.h>

#include "ir/graph.h"

/* Facts about an op that passes and kernels rely on. */
enum {
    HL_OP_POINTWISE = 1 << 0, /* out[i] from in[broadcast i]; has a micro-op in ir/program.h, so it
                                 can be fused, or is lowered to ops that have */
    HL_OP_SOURCE = 1 << 1,    /* pointwise without data operands: recomputed in each consumer, never
                                 stored */
    HL_OP_GUARDED = 1 << 2,   /* reads the control block; out[j] is in[j] updated in place, and left
                                 as it is when the step is held back. in[j] is a PARAM or STATE leaf
                                 or the output of another update in the same segment, which no
                                 third goes on from and nobody reads later; the last of such a row
                                 is committed to the leaf */
    HL_OP_VIEW = 1 << 3,      /* same bytes, other shape: costs nothing */
    HL_OP_COMMUTES = 1 << 4,  /* in[0] and in[1] may be swapped */
    HL_OP_INTERNAL = 1 << 5,  /* made by passes alone: not offered to Python */
    /* Mixed precision (passes/amp.c): LOW takes 16-bit operands; FOLLOWS computes in the type of
     * its operands; all others compute in float32. */
    HL_OP_LOW = 1 << 6,
    HL_OP_RANDOM = 1 << 7, /* has the attributes stream and seed */
    HL_OP_FOLLOWS = 1 << 8,
    HL_OP_GIVES_LOW = 1 << 9, /* computes in float32; its attribute dtype may make 16 bits of its
                                 first output, rounded once, as a cast behind it would */
};

/* What MATMUL_FUSED does beside a product c of rows x columns; output 1 is empty but where said.
 * Masks are in an order of the device's own, bits of 128 columns in 16 bytes: who writes one and
 * who reads it are kernels of one make. */
typedef enum hl_matmul_end {
    HL_MATMUL_PLAIN,     /* nothing: MATMUL */
    HL_MATMUL_RELU,      /* c = max(c, 0) */
    HL_MATMUL_RELU_MASK, /* the same; output 1: the mask of c > 0, uint8 (rows, 16 ceil(N / 128)) */
    HL_MATMUL_MASKED,    /* in[2] is a mask, no bias: c = 0 where it has none */
    HL_MATMUL_SUM_A,     /* no bias; output 1: float32 sums over K of a as it is multiplied, (M) */
    HL_MATMUL_SUM_B,     /* no bias; output 1: float32 sums over K of b as it is multiplied, (N) */
    HL_MATMUL_GELU,      /* c = gelu(c), GELU's */
    HL_MATMUL_GELU_BOTH, /* the same; output 1: c before it */
    HL_MATMUL_GELU_GRAD, /* in[2] is x, of c's type, no bias: c = gelu_grad(c, x) */
    HL_MATMUL_MASKED_SUM,    /* MASKED; output 1: float32 sums over the rows of c, (N) */
    HL_MATMUL_GELU_GRAD_SUM, /* GELU_GRAD and these sums */
    HL_MATMUL_END_COUNT
} hl_matmul_end;
static inline hl_matmul_end hl_matmul_end_of(const hl_node *node)
{
    return node->op == HL_OP_MATMUL_FUSED ? (hl_matmul_end)node->attrs.matmul.end : HL_MATMUL_PLAIN;
}

/* Shape and dtype of every output from inputs and attributes; checks both; normalises attributes
 * (negative axes), and is then a fixed point. Writes "<rule>, got <value>" alone: hl_graph_add puts
 * scope, op and operands in front. */
typedef hl_status (*hl_op_infer_fn)(const hl_graph *graph, hl_node *node, hl_type *out_types);

/* Adds nodes for the gradients: dout[j] is the gradient of output j or HL_NONE when nothing depends
 * on it (one at least is there); writes din[i] = the gradient of input i in its type. din comes
 * filled with HL_NONE, which stands for "none"; need[i] false: may be left so. */
typedef hl_status (*hl_op_vjp_fn)(hl_graph *graph, hl_node_id node, const hl_id *dout,
                                  const bool *need, hl_id *din);

/* Composite ops: adds nodes that compute the same outputs from ops with kernels on more devices.
 * Used after autodiff, for devices that have no kernel of their own for the node; what it adds may
 * have to be lowered again, but is always simpler. HL_ERROR_DEVICE when nothing simpler is left. */
typedef hl_status (*hl_op_lower_fn)(hl_graph *graph, hl_node_id node, hl_id *out_values);

typedef struct hl_op_info {
    const char *name;
    int min_in, max_in; /* max_in -1: any number */
    int n_out;
    uint32_t flags;
    hl_schema schema; /* of its attributes */
    hl_op_infer_fn infer;
    hl_op_vjp_fn vjp; /* NULL: not differentiable (written so in the table) */
    hl_op_lower_fn lower;
    const char *doc;
} hl_op_info;

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

/* The axes that a node works along: of its attribute `axes` or `axis`; none: it has neither. */
hl_ints hl_node_axes(const hl_node *node);

#endif
