/* Graph: SSA values and the ops that make them, in one arena, named by int32 ids.
 *
 * Leaves are views of persistent stores (parameters, state, the control block), batch slots or
 * constants; every other value is made by exactly one node. Ops are pure. State changes only
 * through the commit list: `target leaf <- value`, which takes effect after all reads of that leaf
 * in its segment. Nodes are kept in an order in which every operand comes first. A node's segment
 * says when it runs: BEGIN once per step (or once per run when nothing is trained), MICRO once per
 * micro-batch, APPLY once per step; it reads values of its own and of earlier segments. A leaf read
 * in a later segment sees earlier segments' commits.
 *
 * Fences divide a segment. A value may be computed twice, so that it needs no memory in between;
 * the second computation stands behind a higher fence, and so does all that reads it. Nodes behind
 * different fences never become one kernel and never run side by side, which would need both copies
 * at the same time. A loss that is computed chunk by chunk has a fence before each of them, and the
 * backward pass one before what it computes again (passes/recompute.c).
 *
 * Checkpoints are blocks of forward of which nothing is kept for the backward pass but what they
 * read and what is read outside of them: the rest is recomputed. They nest. A node knows the
 * innermost one that it was recorded in.
 *
 * A call that fails leaves the graph as it was. Ids stay valid; pointers into `values` and `nodes`
 * do not outlive the next call that adds.
 * Rejected: strided values (every kernel would need strides; the few copies this costs are named
 * ops that passes can see and remove). */
#ifndef HL_IR_GRAPH_H
#define HL_IR_GRAPH_H

#include <stdbool.h>

#include "base/arena.h"
#include "ir/attrs.h"
#include "ir/dtype.h"
#include "ir/shape.h"

typedef int32_t hl_id;      /* a value */
typedef int32_t hl_node_id; /* a node */
enum { HL_NONE = -1 };

typedef enum hl_op {
#define HL_OP(op, ...) HL_OP_##op,
#include "ir/ops.def"
#undef HL_OP
    HL_OP_COUNT
} hl_op;

typedef enum hl_segment {
    HL_SEGMENT_BEGIN,
    HL_SEGMENT_MICRO,
    HL_SEGMENT_APPLY,
    HL_SEGMENT_COUNT
} hl_segment;

typedef struct hl_type {
    hl_dtype dtype;
    hl_shape shape;
} hl_type;

/* "float32 (64, 29)"; text has room for HL_TYPE_TEXT bytes. Returns text. */
enum { HL_TYPE_TEXT = HL_SHAPE_TEXT + 16 };
const char *hl_type_format(const hl_type *type, char *text);
bool hl_type_equal(const hl_type *a, const hl_type *b);
size_t hl_type_bytes(const hl_type *type);

typedef enum hl_value_kind {
    HL_VALUE_PARAM,   /* view of a store: read by forward, written by the optimizer's commit */
    HL_VALUE_STATE,   /* view of a store: moments, running statistics, EMA, the control block */
    HL_VALUE_INPUT,   /* a batch slot's field */
    HL_VALUE_DATASET, /* a dataset of the caller, read-only: rows are gathered from it */
    HL_VALUE_SCALAR,  /* one number of the control block, set per step (learning rate) */
    HL_VALUE_CONST,   /* bytes in the graph's arena */
    HL_VALUE_ACT      /* made by a node */
} hl_value_kind;

typedef struct hl_value {
    hl_value_kind kind;
    hl_type type;
    hl_node_id node; /* ACT: its producer, HL_NONE when that was left out (dead) */
    int32_t output;  /* ACT: which output */
    /* ACT: the form in which its kernel saves it, for kernels that read that form, and the form's
     * size; 0: plain, as `type` says. Set when kernels are chosen (passes/select.c). */
    uint32_t form;
    int64_t form_bytes;
    /* PARAM, STATE, SCALAR: index into graph->stores. INPUT: field of the slot. DATASET: number. */
    int32_t store;
    /* PARAM, STATE, SCALAR: first element in the store (bytes for the control store). */
    int64_t offset;
    const char *name; /* qualified name; NULL for ACT unless the user named it */
    bool is_streamed; /* DATASET: its rows do not lie in memory, a source makes them */
    const void *data; /* CONST */
    /* CONST of a floating type: its values before rounding, for devices that compute in float64;
     * or NULL. */
    const double *doubles;
} hl_value;

/* Persistent memory that outlives plans: "param", "grad", "m", "v", "buffer", "ema", "control" */
typedef struct hl_store {
    const char *name;
    hl_dtype dtype;
    int64_t n; /* elements */
    /* The store whose elements these are, rounded; HL_NONE: it has elements of its own. */
    int32_t source;
} hl_store;

typedef struct hl_program hl_program; /* ir/program.h */

enum { HL_PROLOGUES = 2 };

typedef struct hl_node {
    hl_op op;
    hl_segment segment;
    int32_t fence; /* no lower than its operands' of the same segment; see the file's head */
    int32_t n_in, n_out;
    const hl_id *in; /* in the arena */
    hl_id out;       /* outputs are out, out + 1, ... */
    hl_attrs attrs;
    /* POINTWISE_FUSED: what it computes. Any other: its epilogue, and a program for each of its
     * first operands (ir/fusion.h); NULL: none. */
    const hl_program *program, *prologue[HL_PROLOGUES];
    const char *scope;       /* module path that made it, for messages ("body.0"), or NULL */
    const char *gradient_of; /* of the backward pass: the op whose gradient it is part of, by its
                                name in the table, or "parameter"; NULL: of none */
    int32_t checkpoint;      /* the innermost it is in, from 1; 0: none */
} hl_node;

typedef struct hl_commit {
    hl_id target; /* PARAM or STATE leaf */
    hl_id value;  /* same type; when added: same shape */
    hl_segment segment;
    bool added; /* target <- target + value, in the target's dtype */
} hl_commit;

typedef struct hl_graph {
    hl_arena arena;
    hl_value *values;
    int64_t n_values, cap_values;
    hl_node *nodes;
    int64_t n_nodes, cap_nodes;
    hl_commit *commits;
    int64_t n_commits, cap_commits;
    hl_store *stores;
    int64_t n_stores, cap_stores;
    hl_id *outputs; /* values that the caller reads after a run */
    int64_t n_outputs, cap_outputs;
    int32_t *checkpoints; /* of number i + 1: the one that it is in; 0: none */
    int64_t n_checkpoints, cap_checkpoints;
    hl_type *types; /* output types of the node that is being added */
    int64_t cap_types;
    int32_t n_inputs, n_datasets, n_scalars;
    hl_segment segment;              /* of nodes added from now on */
    int32_t fence;                   /* of nodes added from now on, at least */
    const char *scope, *gradient_of; /* of nodes added from now on */
    int32_t checkpoint;              /* of nodes added from now on */
    hl_id control;                   /* leaf of the control block, HL_NONE until asked for */
    hl_dtype float_dtype; /* what integers become where a float is made of them: float32 */
    bool benchmark;       /* kernels may be autotuned */
    bool deterministic;   /* and must give the same bits every run */
} hl_graph;

hl_status hl_graph_create(HL_GIVE hl_graph **out_graph);
void hl_graph_destroy(HL_TAKE hl_graph *graph);
/* Deep copy: values and nodes keep their ids. */
hl_status hl_graph_clone(const hl_graph *graph, HL_GIVE hl_graph **out_graph);

/* Makes room in `list`, one of the graph's arrays, for `more` entries beyond n; ids must fit in 31
 * bits. */
hl_status hl_graph_grow(void *list, int64_t *capacity, int64_t n, int64_t more, size_t bytes);

/* Adds a store, or finds the one of that name, whose dtype and size must be the same. */
hl_status hl_graph_store(hl_graph *graph, const char *name, hl_dtype dtype, int64_t n,
                         int32_t *out_store);
/* Adds the rounded copy of a store, "param.bfloat16". Plans of the session share it. One that
 * writes the store and has the copy keeps it rounded: an update in BEGIN makes it anew, which the
 * plan skips while the copy is current (plan/session.h), and what updates the store updates the
 * copy. */
hl_status hl_graph_store_rounded(hl_graph *graph, int32_t source, hl_dtype dtype,
                                 int32_t *out_store);
/* HL_NONE when there is no store of that name. */
int32_t hl_graph_store_find(const hl_graph *graph, const char *name);
/* PARAM or STATE: a view of a store. */
hl_status hl_graph_leaf(hl_graph *graph, hl_value_kind kind, hl_type type, int32_t store,
                        int64_t offset, const char *name, hl_id *out_id);
hl_status hl_graph_input(hl_graph *graph, const char *name, hl_type type, hl_id *out_id);
hl_status hl_graph_dataset(hl_graph *graph, const char *name, hl_type type, hl_id *out_id);
/* One whose rows a source makes (data/source.h): batches of them are gathered by the feed. */
hl_status hl_graph_streamed_dataset(hl_graph *graph, const char *name, hl_type type, hl_id *out_id);
/* A named number of the control block, float32 (); the same name gives the same leaf. */
hl_status hl_graph_scalar(hl_graph *graph, const char *name, hl_id *out_id);
/* The loss scale of the current step, float32 (): 1 where the precision has none. */
hl_status hl_graph_loss_scale(hl_graph *graph, hl_id *out_id);
/* Copies the bytes. */
hl_status hl_graph_const(hl_graph *graph, hl_type type, const void *data, hl_id *out_id);
/* A constant of a floating type, rounded from doubles, which are kept for float64 devices. */
hl_status hl_graph_const_round(hl_graph *graph, hl_type type, const double *values, hl_id *out_id);
/* Rank-0 constant of a dtype from a double; a floating one keeps the double too. */
hl_status hl_graph_number(hl_graph *graph, hl_dtype dtype, double number, hl_id *out_id);
/* True for a constant of one element: its value. */
bool hl_graph_number_read(const hl_graph *graph, hl_id id, double *out_number);
/* The control block: state of bytes in store "control". */
hl_status hl_graph_control(hl_graph *graph, hl_id *out_id);

/* Adds a node: checks arity, infers, gives the first output's id. in and attrs are copied, and
 * *out_first may be one of in; attrs NULL = defaults. Any error names scope, op and the operands'
 * types. What would change nothing (reshape, expand, slice to the same shape, cast to the same
 * dtype, the identical permutation, a sum, product or flip of no axes, a split into one) adds no
 * node and gives the operand itself. */
hl_status hl_graph_add(hl_graph *graph, hl_op op, const hl_id *in, int32_t n_in,
                       const hl_attrs *attrs, hl_id *out_first);
/* Adds a fused node with a program and given output types (checked against it). */
hl_status hl_graph_add_program(hl_graph *graph, const hl_id *in, int32_t n_in,
                               const hl_program *program, const hl_type *out_types, int32_t n_out,
                               hl_id *out_first);
/* target <- value in the graph's current segment; one commit per target and segment. */
hl_status hl_graph_commit(hl_graph *graph, hl_id target, hl_id value);
/* A commit that adds: running sums, in a dtype of their own (float64, int64). */
hl_status hl_graph_accumulate(hl_graph *graph, hl_id target, hl_id value);
/* The same value may be an output several times. */
hl_status hl_graph_output(hl_graph *graph, hl_id value);
/* Nodes added from now on stand where this one stands: segment, fence, scope, gradient and
 * checkpoint. */
void hl_graph_stand_by(hl_graph *graph, const hl_node *node);
/* The node once more, on other operands of the same types: what it computes, and where it stands.
 */
hl_status hl_graph_repeat(hl_graph *graph, hl_node_id node, const hl_id *in, hl_id *out_first);
/* Sets the scope of nodes added from now on; the text is copied, NULL or "" is none. */
hl_status hl_graph_scope(hl_graph *graph, const char *scope);
/* A checkpoint of nodes added from now on, within the one that is open; end goes back to that one.
 */
hl_status hl_graph_checkpoint_begin(hl_graph *graph);
void hl_graph_checkpoint_end(hl_graph *graph);

/* Text of the whole graph, one node a line, allocated. */
hl_status hl_graph_print(const hl_graph *graph, HL_GIVE char **out_text);
/* Operands precede, ids are in range, commits and guards are legal, types are what infer says.
 * HL_ERROR_INTERNAL names the node: a graph that fails here is our mistake, not the user's. */
hl_status hl_graph_verify(const hl_graph *graph);
/* Puts nodes[order[i]] at place i and renumbers nodes; values keep their ids. order may leave nodes
 * out: their values are dead and must not be used. hl_graph_verify checks the order. */
hl_status hl_graph_reorder(hl_graph *graph, const hl_node_id *order, int64_t n);

/* The value that a view is of, through views of views; a value that is no view itself. */
hl_id hl_graph_viewed(const hl_graph *graph, hl_id id);
/* hl_value.form, of a view that of the value that it is of. */
uint32_t hl_graph_form(const hl_graph *graph, hl_id id);
/* The PARAM or STATE leaf that guarded updates, one after another, turn into this value in place; a
 * leaf of these kinds is its own. HL_NONE: there is none. */
hl_id hl_graph_updated(const hl_graph *graph, hl_id id);

static inline const hl_value *hl_graph_value(const hl_graph *graph, hl_id id)
{
    return &graph->values[id];
}
static inline const hl_shape *hl_graph_shape(const hl_graph *graph, hl_id id)
{
    return &graph->values[id].type.shape;
}
static inline hl_dtype hl_graph_dtype(const hl_graph *graph, hl_id id)
{
    return graph->values[id].type.dtype;
}
/* Types of a node's operands. */
static inline const hl_type *hl_node_in_type(const hl_graph *graph, const hl_node *node, int i)
{
    return &graph->values[node->in[i]].type;
}
static inline const hl_type *hl_node_out_type(const hl_graph *graph, const hl_node *node, int j)
{
    return &graph->values[node->out + j].type;
}
/* The node that makes a value; HL_NONE: a leaf. */
static inline hl_node_id hl_graph_producer(const hl_graph *graph, hl_id id)
{
    const hl_value *value = &graph->values[id];
    return value->kind == HL_VALUE_ACT ? value->node : (hl_node_id)HL_NONE;
}

#endif
