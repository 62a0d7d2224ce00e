/* Building blocks of gradients and passes: one call adds one node, or a few that always come
 * together. *out_id is HL_NONE on failure. What does nothing adds no node (hl_graph_add). */
#ifndef HL_OPS_BUILD_H
#define HL_OPS_BUILD_H

#include "ir/graph.h"
#include "ir/op.h"

/* Any op of one or two operands that needs no attributes. */
hl_status hl_build_unary(hl_graph *graph, hl_op op, hl_id a, hl_id *out_id);
hl_status hl_build_binary(hl_graph *graph, hl_op op, hl_id a, hl_id b, hl_id *out_id);
/* Rank-0 constant in the dtype of `like`. */
hl_status hl_build_number_like(hl_graph *graph, hl_id like, double number, hl_id *out_id);
/* a op number, number in a's dtype. */
hl_status hl_build_binary_number(hl_graph *graph, hl_op op, hl_id a, double number, hl_id *out_id);
hl_status hl_build_where(hl_graph *graph, hl_id condition, hl_id a, hl_id b, hl_id *out_id);
/* keep_if: a where the condition holds, else 0; keep_unless: the reverse. A NaN of a stays out
 * where the result is 0. */
hl_status hl_build_keep_if(hl_graph *graph, hl_id condition, hl_id a, hl_id *out_id);
hl_status hl_build_keep_unless(hl_graph *graph, hl_id condition, hl_id a, hl_id *out_id);
hl_status hl_build_cast(hl_graph *graph, hl_id x, hl_dtype dtype, hl_id *out_id);
hl_status hl_build_full(hl_graph *graph, const hl_type *type, double number, hl_id *out_id);

/* 1, 2, ... n, float32, in a shape of one dim that is not 1. */
hl_status hl_build_places(hl_graph *graph, const hl_shape *shape, hl_id *out_id);

hl_status hl_build_reshape(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id);
/* dims[i] is the dim of x that becomes dim i. */
hl_status hl_build_permute(hl_graph *graph, hl_id x, const int64_t *dims, hl_id *out_id);
/* The node as hl_node_permute gives it for this order, between permutations: out_values[j] is its
 * output j as it was. HL_ERROR_INTERNAL when its op does not take another order. */
hl_status hl_build_in_order(hl_graph *graph, hl_node_id node, const hl_ints *order,
                            hl_id *out_values);
hl_status hl_build_expand(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id);
/* Elements [start, stop) along an axis. */
hl_status hl_build_slice(hl_graph *graph, hl_id x, int axis, int64_t start, int64_t stop,
                         hl_id *out_id);

/* A reduction with attributes axes and keepdim (SUM, PROD, MAX, MIN); n 0 means all axes. */
hl_status hl_build_reduce(hl_graph *graph, hl_op op, hl_id x, const int64_t *axes, int32_t n,
                          bool keepdim, hl_id *out_id);
hl_status hl_build_sum(hl_graph *graph, hl_id x, const int64_t *axes, int32_t n, bool keepdim,
                       hl_id *out_id);
/* x, reduced over axes of `full` with or without keepdim, in the shape that keepdim gives. */
hl_status hl_build_keep_dims(hl_graph *graph, hl_id x, const hl_shape *full, const int64_t *axes,
                             int32_t n, hl_id *out_id);
/* Undoes a broadcast: sums x over the dims that `shape` lacks or has as 1. */
hl_status hl_build_sum_to(hl_graph *graph, hl_id x, const hl_shape *shape, hl_id *out_id);
/* A gradient that has the broadcast, promoted type of an op's output, brought to the type of one of
 * the op's operands. */
hl_status hl_build_grad_for(hl_graph *graph, hl_id grad, hl_id operand, hl_id *out_id);
/* *sum += term; *sum HL_NONE stands for 0. */
hl_status hl_build_accumulate(hl_graph *graph, hl_id term, hl_id *sum);

hl_status hl_build_matmul(hl_graph *graph, hl_id a, hl_id b, bool trans_a, bool trans_b,
                          hl_id *out_id);

/* What a BATCH_NORM gives first, of mean and variance that are there: x normalised. */
hl_status hl_build_normalized(hl_graph *graph, hl_node_id norm, hl_id x, hl_id mean, hl_id var,
                              hl_id *out_y);

#endif
