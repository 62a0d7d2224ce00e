/* Parts: values that are elements of another one, along one of its axes. A slice is a part of its
 * operand, a split gives parts, a concat is made of them. */
#ifndef HL_OPS_PARTS_H
#define HL_OPS_PARTS_H

#include "ir/op.h"

/* Is output j of a node consecutive elements of operand 0, from *out_first on, as they are? */
bool hl_part_read(const hl_graph *graph, const hl_node *node, int32_t j, int64_t *out_first);
/* A share of a gradient: `value` at start, start + step, ... of `size` steps along an axis, and 0
 * elsewhere. */
typedef struct hl_part {
    hl_id value;
    hl_id share; /* the share itself, if there is one yet; else HL_NONE */
    int axis;
    int64_t start, step, size;
} hl_part;

/* Is a gradient such a share? */
bool hl_part_find(const hl_graph *graph, hl_id grad, hl_part *out_part);
/* *sum += the shares of n parts; *sum HL_NONE stands for 0. Every element gets its shares in the
 * order of the list. Parts that lie side by side, with gaps that are less than half, are joined;
 * others are added one after another, each to what the one before left. To add a zero is to add
 * nothing: the sum may be -0 where adding 0 would give 0. */
hl_status hl_build_add_parts(hl_graph *graph, const hl_part *parts, int64_t n, hl_id *sum);

#endif
