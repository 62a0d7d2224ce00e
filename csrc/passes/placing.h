/* Placing: blocks in one memory, each for a stretch of time.
 *
 * A block comes to the lowest offset at which nothing lies that lives at the same time. What is in
 * the way is asked of a tree of times, whose nodes halve them: a node knows which offsets are in
 * use throughout its time (and not its parent's), and which at some time in it. A life is cut into
 * few nodes; in the way is what is in use in these at some time, and above them throughout. Offsets
 * in use are spans that merge where they touch, so a stack of a thousand nested lives is a handful
 * of them.
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
