/* Clusters: groups of a graph's nodes, each of which can become one node without a cycle.
 *
 * Two clusters may be joined unless a path leads from one to the other through a third. Every node
 * is a cluster at first, and clusters count as one node each. Three things keep the question local:
 *
 * - All clusters stand in a topological order, so a path from one to another passes only through
 *   clusters between them, and a join moves nothing else (an online topological order, Pearce and
 *   Kelly 2006). At first the order is by depth: clusters that are worth joining are closer then
 *   than by node id, where a backward pass is far from the values it reads.
 * - The search goes from both ends in turn and is over when either has nowhere left to go; only the
 *   clusters that this end found have to move to the other side. So the order is a list of numbers
 *   with gaps; without gaps both ends would have to be known.
 * - Each cluster knows the first place on the graph's critical path (its longest path) that it
 *   leads to and the last that leads to it: where the first is not behind the last, there is a
 *   path without a search. From a forward pass to its backward pass that is the rule.
 *
 * Rejected: a search of the whole graph per question (quadratic), and the transitive closure as a
 * matrix of bits (quadratic memory, of which each join changes much). */
#ifndef HL_PASSES_CLUSTERS_H
#define HL_PASSES_CLUSTERS_H

#include "passes/rewrite.h"

typedef struct hl_cluster_spot {
    int64_t place;
    hl_node_id leader;
} hl_cluster_spot;

typedef struct hl_clusters {
    const hl_graph *graph;
    const hl_uses *uses;
    hl_node_id *leader; /* of every node: the least node of its cluster */
    hl_node_id *next;   /* a cluster's members as a ring */
    /* By leader: */
    int32_t *n_members;
    int64_t *place;           /* grows along the order */
    int32_t *earlier, *later; /* neighbours in the order, between n_nodes and n_nodes + 1 */
    int32_t *reaches; /* first place on the critical path that it leads to, INT32_MAX: none */
    int32_t *reached; /* last place on the critical path that leads to it, HL_NONE: none */
    /* Of a search: */
    uint32_t *seen; /* by leader: which end of which search met it */
    uint32_t n_ends;
    hl_cluster_spot *found[2];
    void *memory;
} hl_clusters;

/* Borrows both until deinit; the graph's nodes are in order. */
hl_status hl_clusters_init(const hl_graph *graph, const hl_uses *uses, hl_clusters *out_clusters);
void hl_clusters_deinit(hl_clusters *clusters);
/* Joins the clusters of two nodes, which are different ones; false, and nothing changes, when that
 * would make a cycle. The result of a SUM exists only after the pass over memory, so an edge from
 * it counts as a path outside. */
bool hl_clusters_join(hl_clusters *clusters, hl_node_id a, hl_node_id b);

#endif
