/* Placing: buffer assignment of blocks, each of which lives for an interval of time.
 *
 * A block gets the lowest offset at which no block of an overlapping life lies. A segment tree over
 * time answers which offsets are taken: each node knows the offsets in use throughout its interval
 * (and not its parent's), and those in use at some time in it. A life is cut into few nodes; it is
 * blocked by offsets in use at some time in these nodes, and throughout in the nodes above them.
 * Offsets in use are spans that merge where they touch, so a thousand nested lives make few spans.
 *
 * Rejected: a scan of all blocks (quadratic: in the middle of a training step most of them live),
 * free lists by time (a long life is in all of them), a tree by offset (blocks that follow each
 * other at one offset have nothing else in common). */
#ifndef HL_PASSES_PLACING_H
#define HL_PASSES_PLACING_H

#include "ir/graph.h"

typedef struct hl_life {
    int32_t first, last; /* both included */
} hl_life;

typedef struct hl_span {
    int64_t begin, end;
} hl_span;

typedef struct hl_spans {
    hl_span *list; /* in order; none touches the next */
    int64_t n, capacity;
} hl_spans;

typedef struct hl_placing {
    hl_spans *throughout,
        *sometime; /* by node: 1 is the root, 2 n and 2 n + 1 are the halves of n */
    int64_t n_nodes;
    int32_t n_times;
} hl_placing;

/* Times are 0 ... n_times - 1. */
hl_status hl_placing_init(int32_t n_times, hl_placing *out_placing);
void hl_placing_deinit(hl_placing *placing);
/* Adds a block. *out_offset is HL_NONE, and nothing is added, when its end would be beyond 63 bits.
 */
hl_status hl_placing_add(hl_placing *placing, int64_t bytes, hl_life life, int64_t *out_offset);

#endif
