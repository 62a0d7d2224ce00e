/* Helpers of passes that change a graph: uses, replacement of values, and a stable order without
 * dead code. */
#ifndef HL_PASSES_REWRITE_H
#define HL_PASSES_REWRITE_H

#include "ir/graph.h"

/* Consumers of every value: users of value v are list[start[v]] ... list[start[v + 1] - 1] (node
 * ids, one entry per operand); kept[v]: a commit or an output needs it. */
typedef struct hl_uses {
    int32_t *start;
    hl_node_id *list;
    bool *kept;
    void *memory;
} hl_uses;
hl_status hl_uses_init(const hl_graph *graph, hl_uses *out_uses);
void hl_uses_deinit(hl_uses *uses);
static inline int32_t hl_uses_count(const hl_uses *uses, hl_id value)
{
    return uses->start[value + 1] - uses->start[value];
}
/* Do updates alone read the values that a node makes? So it is with the gradient of a weight. */
bool hl_uses_by_updates(const hl_graph *graph, const hl_uses *uses, const hl_node *node);

/* An identity map for hl_rewrite_replace. */
hl_status hl_rewrite_map(const hl_graph *graph, HL_GIVE hl_id **out_map);
/* By store: bit s is set where commits of segment s change it. */
hl_status hl_rewrite_changed_stores(const hl_graph *graph, HL_GIVE uint8_t **out_changed);
/* A constant, or a parameter or state that no segment up to this one changes. */
bool hl_rewrite_is_fixed(const hl_value *value, const uint8_t *changed, hl_segment last);

/* Replaces every use of value v by map[v] (map[v] = v: keep; chains are followed). map has n_map
 * entries; newer values stand for themselves. */
void hl_rewrite_replace(hl_graph *graph, hl_id *map, int64_t n_map);

/* The value of 16 bits that this float32 one was widened from; the value itself: it was not. */
hl_id hl_rewrite_narrow(const hl_graph *graph, hl_id value);

/* Reads a floating number, in double precision where its double is known; false: it is none. */
bool hl_rewrite_number(const hl_graph *graph, hl_id value, double *out_number);

/* Drops nodes that nothing needs and restores the order: segments in turn, in each fences
 * in turn, operands first, otherwise as before. */
hl_status hl_rewrite_sort(hl_graph *graph);
/* Puts nodes in this order, those left out that nothing needs, too. */
hl_status hl_rewrite_reorder(hl_graph *graph, hl_node_id *order, int64_t n);

#endif
