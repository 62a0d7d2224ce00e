/* Passes: each takes a graph from one legal form to the next; hl_graph_print shows it before and
 * after any of them.
 *
 * A training graph goes through reassociate, backward (autodiff) and training_step, which know no
 * device; a plan then applies, in this order: whole, guard, feed (where data stays on the host),
 * fold, amp or double (where the device computes in float64), lower, layout, relu, epilogue, pack,
 * broadcast, hoist, rounded, fuse, recompute, select, schedule, memory.
 */
#ifndef HL_PASSES_PASSES_H
#define HL_PASSES_PASSES_H

#include "backend/backend.h"

/* Reverse accumulation: adds nodes for the gradients of a rank-0 value times seed (a rank-0 value
 * of its dtype, or HL_NONE for 1). out_grads[i] is the gradient with respect to wrt[i], in its
 * shape, or HL_NONE when loss does not depend on it differentiably. Only nodes between wrt and loss
 * are visited. */
hl_status hl_pass_autodiff(hl_graph *graph, hl_id loss, hl_id seed, const hl_id *wrt, int64_t n_wrt,
                           hl_id *out_grads);

/* By value, of those marked: marks what depends on them in a differentiable way. */
void hl_autodiff_mark(const hl_graph *graph, bool *depends);

/* Of a forward graph: (x A) B becomes x (A B) where a step of training of wrt computes fewer
 * products so. Drops what no commit and no output needs. */
hl_status hl_pass_reassociate(hl_graph *graph, const hl_id *wrt, int64_t n_wrt);

/* Ops that stand for several nodes (HL_OP_WHOLE) become those nodes, unless the device has kernels
 * that take them as they are. */
typedef struct hl_whole_options {
    bool deterministic, tf32;
    bool is_mixed; /* mixed precision: all become their nodes */
} hl_whole_options;
hl_status hl_pass_whole(hl_graph *graph, hl_device *device, const hl_whole_options *options);

/* Turns commits of plain values into guarded ASSIGNs, so that a step that is not applied changes
 * nothing. */
hl_status hl_pass_guard(hl_graph *graph);

/* Batches gathered by input 0 from datasets that are streamed become inputs; with_all: from every
 * dataset. out_datasets, by input: the dataset whose rows fill it; HL_NONE for inputs that were
 * there before; NULL: there are no others. HL_ERROR_CONFIG where something else reads a streamed
 * one. */
hl_status hl_pass_feed(hl_graph *graph, bool with_all, HL_GIVE int32_t **out_datasets);

/* Factors and shifts per channel behind a product become part of it, where they are the same in all
 * steps of a run. scales_columns: kernels end products by a factor per column. */
hl_status hl_pass_fold(hl_graph *graph, bool scales_columns);

/* Mixed precision: products take operands of the reduced type, HL_DTYPE_BF16 or F16, and sum in
 * float32; HL_DTYPE_F32 changes nothing. keeps_reduced: what lies between products stays in the
 * reduced type too. */
hl_status hl_pass_amp(hl_graph *graph, hl_dtype reduced, bool keeps_reduced);
/* Products of float32 operands may round them to TF32. */
void hl_pass_tf32(hl_graph *graph);
/* The compute dtype of a node and the reason for it, for reports; HL_DTYPE_COUNT: no float. */
hl_dtype hl_amp_compute(const hl_graph *graph, hl_node_id node, const char **out_why);

/* Every float becomes float64: values, stores, constants, dtype attributes. Datasets keep
 * their dtype. */
hl_status hl_pass_double(hl_graph *graph);

/* Ops for which the device has no kernel (no deterministic one, if that is asked for) become those
 * it has, by the table's lower functions; so do splits of which at most half is read. Nodes get the
 * order of dims that their kernel wants (hl_kernel_req.order), permutations around them. */
hl_status hl_pass_lower(hl_graph *graph, hl_device *device, bool deterministic);

/* Permutations that cancel one another are taken out, and what lies in between works on its
 * operands in the order in which they lie. */
hl_status hl_pass_layout(hl_graph *graph);

/* Gradients of relu before dropout read dropout's result. */
hl_status hl_pass_relu(hl_graph *graph);

/* Pointwise work around a node for whose op the device has kernels that take programs becomes
 * programs of that node (ir/fusion.h). */
hl_status hl_pass_epilogue(hl_graph *graph, hl_device *device, bool deterministic);

/* Matrix products with a two-dimensional right side use a packed copy of it. For devices that
 * pack. */
hl_status hl_pass_pack(hl_graph *graph, hl_device *device);

/* Pointwise nodes read what was expanded in place of what it was expanded to. */
hl_status hl_pass_broadcast(hl_graph *graph);

/* Nodes that depend on constants, and on parameters and state that no micro-batch changes, move
 * from MICRO to BEGIN. */
hl_status hl_pass_hoist(hl_graph *graph);

/* Where the optimizer's kernel can write the parameters rounded to 16 bits too, no step casts them.
 */
hl_status hl_pass_rounded(hl_graph *graph, hl_device *device, bool deterministic);

/* Clusters of pointwise nodes become POINTWISE_FUSED nodes. For devices that fuse. */
hl_status hl_pass_fuse(hl_graph *graph, hl_device *device);

/* Of a training step. */
typedef struct hl_recomputed {
    int64_t n_saved;   /* values that lie in memory from forward to the backward pass, small ones
                          apart */
    int64_t n_made;    /* of these, made again */
    int64_t n_choices; /* of the list that a share is taken of */
    double flops;      /* of what is made again, */
    double step_flops; /* and of the step without it */
} hl_recomputed;
/* Values of forward that the backward pass reads are made again by nodes of their own instead of
 * being kept: those of checkpoints, and a share, 0 to 1, of the others, in the order in which it is
 * worth it. All nodes keep their bits. A graph without a backward pass stays as it is. */
hl_status hl_pass_recompute(hl_graph *graph, double share, hl_recomputed *out_recomputed);

/* The kernel of a node; NULL: of a view, which needs none. */
typedef struct hl_choice {
    const hl_kernel *kernel;
    hl_kernel_req req;
} hl_choice;
/* By node. Values that a kernel saves in a form of its own get that form and its size.
 * HL_ERROR_DEVICE when a node has no kernel (no deterministic one, if that is asked for). */
hl_status hl_pass_select(hl_graph *graph, hl_device *device, bool deterministic,
                         HL_GIVE hl_choice **out_choices);
/* The kernel that hl_pass_select would choose for this node, or NULL. What it saves gets its form.
 */
hl_status hl_select_try(hl_graph *graph, hl_device *device, hl_node_id node, bool deterministic,
                        const hl_kernel **out_kernel);

/* One loss of a training step: a sum and what divides it. */
typedef struct hl_step_term {
    hl_id sum;         /* rank 0; without a denominator: a mean over the micro-batch's rows */
    hl_id denominator; /* rank 0, or HL_NONE */
    double weight;
} hl_step_term;

typedef struct hl_step_spec {
    const hl_step_term *terms;
    int64_t n_terms;
    const hl_id *params; /* trainable PARAM leaves: together elements [0, n) of store "param" */
    int64_t n_params;
    int64_t rows;           /* samples in a micro-batch */
    hl_op optimizer;        /* SGD, ADAM, RMSPROP or LION */
    hl_attrs attrs;         /* of the optimizer op */
    const double *segments; /* (n_segments, 5): begin, end, lr scale, weight decay, began */
    int64_t n_segments;
    int64_t n_table_rows, n_table_cols; /* scalar tables (S, T): store "table" */
    double clip_norm;                   /* 0: none */
    double clip_value;                  /* 0: none */
    double ema;                         /* decay; 0: none. Store "ema" */
    bool ema_ramp;
    bool accumulate;  /* several micro-batches may form a step: gradients are summed in store "grad"
                       */
    bool scales_loss; /* backward works on the loss times the control block's loss scale; the sum of
                         squares, clipping and the optimizer see gradients without it */
} hl_step_spec;

/* Adds backward pass, accumulation, clipping, optimizer, EMA and the control nodes to a forward
 * graph. out_loss is the micro-batch's weighted loss; out_has_grad[i] is false for a parameter that
 * the loss does not reach. */
hl_status hl_pass_training_step(hl_graph *graph, const hl_step_spec *spec, hl_id *out_loss,
                                bool *out_has_grad);

#endif
