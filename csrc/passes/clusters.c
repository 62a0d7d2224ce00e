#include "passes/clusters.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "ir/op.h"

/* The gap between neighbours, into which a run of clusters fits; 31 bits of nodes allow it. */
static const int64_t ROOM = (int64_t)1 << 31;

/* ---- beginning ------------------------------------------------------------------------------- */

/* Depths go into `place`. Returns the deepest node. */
static hl_node_id find_depths(hl_clusters *c)
{
    hl_node_id deepest = 0;
    for (int64_t i = 0; i < c->graph->n_nodes; i++) {
        const hl_node *node = &c->graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = hl_graph_producer(c->graph, node->in[j]);
            if (p != HL_NONE && c->place[p] >= c->place[i]) c->place[i] = c->place[p] + 1;
        }
        if (c->place[i] > c->place[deepest]) deepest = (hl_node_id)i;
    }
    return deepest;
}

/* A place on the critical path is a depth: the path has one node of each. */
static void mark_critical_path(hl_clusters *c, hl_node_id deepest)
{
    hl_node_id node = deepest;
    while (node != HL_NONE) {
        const hl_node *n = &c->graph->nodes[node];
        hl_node_id above = HL_NONE;
        c->reaches[node] = c->reached[node] = (int32_t)c->place[node];
        for (int32_t j = 0; j < n->n_in && above == HL_NONE; j++) {
            hl_node_id p = hl_graph_producer(c->graph, n->in[j]);
            if (p != HL_NONE && c->place[p] == c->place[node] - 1) above = p;
        }
        node = above;
    }
}

static void spread_critical_path(hl_clusters *c)
{
    const hl_graph *graph = c->graph;
    for (int64_t i = 0; i < graph->n_nodes; i++)
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++) {
            hl_node_id p = hl_graph_producer(graph, graph->nodes[i].in[j]);
            if (p != HL_NONE && c->reached[p] > c->reached[i]) c->reached[i] = c->reached[p];
        }
    for (int64_t i = graph->n_nodes - 1; i >= 0; i--)
        for (int32_t j = 0; j < graph->nodes[i].n_in; j++) {
            hl_node_id p = hl_graph_producer(graph, graph->nodes[i].in[j]);
            if (p != HL_NONE && c->reaches[i] < c->reaches[p]) c->reaches[p] = c->reaches[i];
        }
}

static void number_order(hl_clusters *c)
{
    int32_t first = (int32_t)c->graph->n_nodes, last = first + 1;
    int64_t place = 0;
    for (int32_t i = first; i != last; i = c->later[i]) c->place[i] = place++ * ROOM;
    c->place[last] = place * ROOM;
}

/* Puts `node` behind `before`. */
static void link_behind(hl_clusters *c, int32_t node, int32_t before)
{
    c->earlier[node] = before;
    c->later[node] = c->later[before];
    c->earlier[c->later[node]] = c->later[before] = node;
}

static void unlink_node(hl_clusters *c, int32_t node)
{
    c->later[c->earlier[node]] = c->later[node];
    c->earlier[c->later[node]] = c->earlier[node];
}

/* Orders by depth, then by node. The memory of searches is not used yet: one half takes the counts,
 * the other the order. */
static void order_by_depth(hl_clusters *c)
{
    int64_t n = c->graph->n_nodes;
    hl_cluster_spot *sorted = c->found[0], *first = c->found[1];
    for (int64_t i = 0; i < n; i++) first[c->place[i] + 1].place++;
    for (int64_t d = 0; d < n; d++) first[d + 1].place += first[d].place;
    for (int64_t i = 0; i < n; i++) sorted[first[c->place[i]].place++].leader = (hl_node_id)i;
    c->later[n] = (int32_t)n + 1;
    c->earlier[n + 1] = (int32_t)n;
    for (int64_t i = 0; i < n; i++) link_behind(c, sorted[i].leader, c->earlier[n + 1]);
    number_order(c);
}

hl_status hl_clusters_init(const hl_graph *graph, const hl_uses *uses, hl_clusters *out_clusters)
{
    size_t n = (size_t)graph->n_nodes + 2;
    void *memory;
    *out_clusters = (hl_clusters){.graph = graph, .uses = uses};
    HL_TRY(hl_alloc_zero(n * (2 * sizeof(hl_cluster_spot) + sizeof(int64_t) + 8 * sizeof(int32_t)),
                         &memory));
    hl_clusters *c = out_clusters;
    c->memory = memory;
    c->found[0] = memory;
    c->found[1] = c->found[0] + n;
    c->place = (int64_t *)(c->found[1] + n);
    c->leader = (hl_node_id *)(c->place + n);
    c->next = c->leader + n;
    c->n_members = c->next + n;
    c->earlier = c->n_members + n;
    c->later = c->earlier + n;
    c->reaches = c->later + n;
    c->reached = c->reaches + n;
    c->seen = (uint32_t *)(c->reached + n);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        c->leader[i] = c->next[i] = (hl_node_id)i;
        c->n_members[i] = 1;
        c->reaches[i] = INT32_MAX;
        c->reached[i] = HL_NONE;
    }
    if (!graph->n_nodes) return HL_OK;
    mark_critical_path(c, find_depths(c));
    spread_critical_path(c);
    order_by_depth(c);
    return HL_OK;
}

void hl_clusters_deinit(hl_clusters *clusters)
{
    hl_free(clusters->memory);
    *clusters = (hl_clusters){0};
}

/* ---- walking --------------------------------------------------------------------------------- */

/* One end of a search: the clusters it found, its start first, and how many of them it has passed
 * through. */
typedef struct search_end {
    hl_cluster_spot *found;
    int64_t n, n_passed;
    uint32_t mark;
} search_end;

static search_end begin_search(hl_clusters *c, int end, hl_node_id cluster)
{
    c->seen[cluster] = ++c->n_ends;
    c->found[end][0] = (hl_cluster_spot){c->place[cluster], cluster};
    return (search_end){c->found[end], 1, 0, c->n_ends};
}

/* Visits a cluster between both ends; true: the other end was there. */
static bool visit(hl_clusters *c, search_end *end, const search_end *other, hl_node_id cluster)
{
    if (c->seen[cluster] == other->mark) return true;
    if (c->seen[cluster] == end->mark) return false;
    c->seen[cluster] = end->mark;
    end->found[end->n++] = (hl_cluster_spot){c->place[cluster], cluster};
    return false;
}

/* Does an edge from this node straight to the other end count as inside the joined cluster? */
static bool is_inside(const hl_node *node, const search_end *end)
{
    return end->n_passed == 1 && !hl_op_is_sum(node->op);
}

/* Goes from the next cluster of the low end to its readers; true: there is a path. */
static bool step_down(hl_clusters *c, search_end *low, const search_end *high)
{
    hl_node_id at = low->found[low->n_passed++].leader, top = high->found[0].leader, m = at;
    do {
        const hl_node *node = &c->graph->nodes[m];
        int32_t end = c->uses->start[node->out + node->n_out];
        for (int32_t u = c->uses->start[node->out]; u < end; u++) {
            hl_node_id to = c->leader[c->uses->list[u]];
            if (c->place[to] > c->place[top] || (to == top && is_inside(node, low))) continue;
            if (to == at) continue;
            if (to == top || c->reaches[to] <= c->reached[top] || visit(c, low, high, to))
                return true;
        }
        m = c->next[m];
    } while (m != at);
    return false;
}

/* Goes from the next cluster of the high end to its operands. */
static bool step_up(hl_clusters *c, search_end *high, const search_end *low)
{
    hl_node_id at = high->found[high->n_passed++].leader, bottom = low->found[0].leader, m = at;
    do {
        const hl_node *node = &c->graph->nodes[m];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = hl_graph_producer(c->graph, node->in[j]);
            if (p == HL_NONE) continue;
            hl_node_id from = c->leader[p];
            if (c->place[from] < c->place[bottom]) continue;
            if (from == at || (from == bottom && is_inside(&c->graph->nodes[p], high))) continue;
            if (from == bottom || c->reaches[bottom] <= c->reached[from] ||
                visit(c, high, low, from))
                return true;
        }
        m = c->next[m];
    } while (m != at);
    return false;
}

/* Returns the end that has nowhere left to go, which proves that there is no path; NULL: there is
 * one. */
static search_end *search(hl_clusters *c, search_end *low, search_end *high)
{
    for (;;) {
        if (step_down(c, low, high)) return NULL;
        if (low->n_passed == low->n) return low;
        if (step_up(c, high, low)) return NULL;
        if (high->n_passed == high->n) return high;
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    int64_t x = ((const hl_cluster_spot *)a)->place, y = ((const hl_cluster_spot *)b)->place;
    return (x > y) - (x < y);
}

/* Moves the union, named `least`, to the place of the end whose search was not over; the clusters
 * that the other end's search found follow behind it in the order they had. */
static void move(hl_clusters *c, search_end *over, hl_node_id stays, hl_node_id least, bool down)
{
    hl_cluster_spot *run = over->found + 1;
    int64_t n = over->n - 1;
    for (int64_t i = 0; i < over->n; i++) unlink_node(c, over->found[i].leader);
    if (least != stays) {
        link_behind(c, least, stays);
        unlink_node(c, stays);
        c->place[least] = c->place[stays];
    }
    int32_t before = down ? least : c->earlier[least];
    int64_t room = c->place[c->later[before]] - c->place[before];
    if (room <= n) {
        number_order(c);
        room = ROOM;
    }
    qsort(run, (size_t)n, sizeof *run, compare_places);
    for (int64_t i = 0; i < n; i++) {
        link_behind(c, run[i].leader, before);
        c->place[run[i].leader] = c->place[before] + room / (n + 1);
        before = run[i].leader;
    }
}

bool hl_clusters_join(hl_clusters *c, hl_node_id a, hl_node_id b)
{
    a = c->leader[a];
    b = c->leader[b];
    bool swapped = c->place[a] > c->place[b];
    search_end low = begin_search(c, 0, swapped ? b : a),
               high = begin_search(c, 1, swapped ? a : b);
    search_end *over = search(c, &low, &high);
    if (!over) return false;
    hl_node_id least = a < b ? a : b, other = least == a ? b : a, m = other;
    move(c, over, (over == &low ? &high : &low)->found[0].leader, least, over == &low);
    c->n_members[least] += c->n_members[other];
    if (c->reaches[other] < c->reaches[least]) c->reaches[least] = c->reaches[other];
    if (c->reached[other] > c->reached[least]) c->reached[least] = c->reached[other];
    do {
        c->leader[m] = least;
        m = c->next[m];
    } while (m != other);
    hl_node_id next = c->next[least];
    c->next[least] = c->next[other];
    c->next[other] = next;
    return true;
}
