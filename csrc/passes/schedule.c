/* Schedule: nodes into chains, chains into regions.
 *
 * List scheduling: while a region is open, the first ready node (in graph order) that can still
 * join it does; when none can, the region is closed, a barrier, and the first ready node opens the
 * next. A node joins a chain when all it reads from the open region comes row by row from that
 * chain, and it works on rows that fit; it opens a chain of its own in the region when it reads
 * nothing from the region. So the gradient of a weight, which needs all rows, runs beside the next
 * chain instead of before it. A guarded update waits, a barrier away, for every reader of what it
 * overwrites. A region has nodes behind one fence: what a fence keeps apart, so that one of them is
 * over and its memory free before the other begins, is not run side by side.
 * Rejected: levels by depth (breaks chains), and a task graph with a counter per block
 * (its bookkeeping costs more than the barriers it saves at these sizes).
 *
 * Side stream. The gradients of activations are a chain, each the operand of the next; a weight
 * gradient is read by updates alone, at the end. Where the device can run two kernels at a time
 * (hl_device.overlap_flops) large ones go to a second stream, each as soon as its operands are
 * there. The main stream waits for one before the first task that reads it or overwrites what it
 * reads, or before the second one behind it begins: so their operands, which nobody may overwrite
 * until then (memory.c), are those of HL_SIDE_AHEAD of them and not of the whole backward pass.
 * Invariant: the streams run side by side only between a task on the side and its join. Rejected:
 * streams for any independent tasks (branches of a model are seldom as long as each other, and what
 * is not a product takes the memory's bandwidth, of which there is one). */
#include "passes/schedule.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* Measured on a 3.7 GHz core: handing a region to a pool that spins costs about a microsecond. */
static const double SERIAL_NS = 4000.0;
static const double BLOCK_NS = 3000.0;
/* A run checks its deadline and for Ctrl-C between regions only. */
static const double REGION_NS = 10e6;
enum { BLOCKS_PER_THREAD = 4, BLOCK_BYTES = 256 * 1024, LOOKAHEAD = 256 };

/* An update waits for a reader of what it overwrites. */
typedef struct sched_wait {
    hl_node_id reader, update;
    int32_t next_of_reader, next_of_update;
} sched_wait;

typedef struct sched_state {
    const hl_graph *graph;
    hl_device *device;
    bool chain;
    hl_schedule *out;
    hl_uses uses;
    int32_t *n_waits; /* by node: operands and readers that are not placed yet */
    int32_t *n_fills; /* by node: how many of these are operands that wait to be wanted */
    sched_wait *waits;
    int64_t n_wait, cap_wait;
    int32_t *first_of_reader, *first_of_update; /* by node: into waits */
    int32_t *region_of;                         /* by node: HL_NONE until placed */
    int32_t *chain_of;
    int32_t *chain_next; /* by task in order of placing: next task of its chain */
    int32_t *chain_head, *chain_tail;
    bool *placed, *is_fill, *goes_last;    /* by node */
    bool *is_side;                         /* by node: it may go to the side stream */
    hl_node_id *ready_side;                /* in order: those that are ready, */
    int32_t n_ready_side, n_placed_side;   /* of which so many were placed */
    hl_node_id last;                       /* that was placed; HL_NONE */
    int32_t fence;                         /* of all nodes of the open region */
    hl_node_id *open_before, *open_behind; /* by node: nodes that are not placed, as a ring through
                                              n_nodes */
} sched_state;

/* ---- dependencies ---------------------------------------------------------------------------- */

static bool is_view(const hl_graph *graph, hl_node_id node)
{
    return hl_op_get(graph->nodes[node].op)->flags & HL_OP_VIEW;
}

/* A node reads elements [begin, end) of a store. */
typedef struct leaf_read {
    hl_segment segment;
    int32_t store;
    int64_t begin, end;
    int64_t reach; /* greatest end so far in its segment and store */
    hl_node_id node;
} leaf_read;

static int compare_reads(const void *a, const void *b)
{
    const leaf_read *x = a, *y = b;
    if (x->segment != y->segment) return x->segment < y->segment ? -1 : 1;
    if (x->store != y->store) return x->store < y->store ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static int64_t end_of_leaf(const hl_value *value)
{
    return value->offset + hl_shape_numel(&value->type.shape);
}

/* All reads of what an update may overwrite, in order of segment, store and place. Scalars are not
 * among them: they move in CONTROL_BEGIN alone, before anything that reads them. */
static hl_status list_reads(const hl_graph *graph, leaf_read **out_reads, int64_t *out_n)
{
    int64_t n = 0, n_operands = 0;
    *out_n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n_operands += graph->nodes[i].n_in;
    HL_TRY(hl_alloc((size_t)n_operands * sizeof **out_reads, (void **)out_reads));
    leaf_read *reads = *out_reads;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in && !is_view(graph, (hl_node_id)i); j++) {
            const hl_value *leaf = hl_graph_value(graph, hl_graph_viewed(graph, node->in[j]));
            if (leaf->kind != HL_VALUE_PARAM && leaf->kind != HL_VALUE_STATE) continue;
            reads[n++] = (leaf_read){.segment = node->segment,
                                     .store = leaf->store,
                                     .begin = leaf->offset,
                                     .end = end_of_leaf(leaf),
                                     .node = (hl_node_id)i};
        }
    }
    if (n) qsort(reads, (size_t)n, sizeof *reads, compare_reads);
    for (int64_t r = 0; r < n; r++) {
        bool same =
            r && reads[r - 1].segment == reads[r].segment && reads[r - 1].store == reads[r].store;
        reads[r].reach =
            same && reads[r - 1].reach > reads[r].end ? reads[r - 1].reach : reads[r].end;
    }
    *out_n = n;
    return HL_OK;
}

/* The first read that could end behind `begin`; those before it do not. */
static int64_t find_read(const leaf_read *reads, int64_t n, hl_segment segment, int32_t store,
                         int64_t begin)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const leaf_read *r = &reads[middle];
        bool before = r->segment != segment ? r->segment < segment
                      : r->store != store   ? r->store < store
                                            : r->reach <= begin;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static hl_status add_wait(sched_state *s, hl_node_id reader, hl_node_id update)
{
    HL_TRY(hl_alloc_grow((void **)&s->waits, &s->cap_wait, s->n_wait + 1, sizeof *s->waits));
    s->waits[s->n_wait] =
        (sched_wait){reader, update, s->first_of_reader[reader], s->first_of_update[update]};
    s->first_of_reader[reader] = s->first_of_update[update] = (int32_t)s->n_wait++;
    s->n_waits[update]++;
    return HL_OK;
}

/* Who reads a leaf goes before the update that overwrites it. */
static hl_status add_leaf_waits(sched_state *s, const leaf_read *reads, int64_t n_reads,
                                const hl_value *leaf, hl_node_id update)
{
    hl_segment segment = s->graph->nodes[update].segment;
    int64_t r = find_read(reads, n_reads, segment, leaf->store, leaf->offset);
    for (; r < n_reads && reads[r].segment == segment && reads[r].store == leaf->store &&
           reads[r].begin < end_of_leaf(leaf);
         r++)
        if (reads[r].end > leaf->offset && reads[r].node != update)
            HL_TRY(add_wait(s, reads[r].node, update));
    return HL_OK;
}

/* Who reads the value of an update goes before the next in a row. */
static hl_status add_value_waits(sched_state *s, hl_id value, hl_node_id update)
{
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++) {
        hl_node_id user = s->uses.list[u];
        if (is_view(s->graph, user))
            HL_TRY(add_value_waits(s, s->graph->nodes[user].out, update));
        else if (user != update)
            HL_TRY(add_wait(s, user, update));
    }
    return HL_OK;
}

static hl_status add_update_waits(sched_state *s)
{
    const hl_graph *graph = s->graph;
    leaf_read *reads = NULL;
    int64_t n_reads;
    hl_status status = HL_OK;
    HL_GOTO(list_reads(graph, &reads, &n_reads));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (!(hl_op_get(node->op)->flags & HL_OP_UPDATES)) continue;
        for (int32_t j = 0; j < node->n_out; j++) {
            const hl_value *value = hl_graph_value(graph, node->in[j]);
            if (value->kind == HL_VALUE_ACT)
                HL_GOTO(add_value_waits(s, node->in[j], (hl_node_id)i));
            else
                HL_GOTO(add_leaf_waits(s, reads, n_reads, value, (hl_node_id)i));
        }
    }
cleanup:
    hl_free(reads);
    return status;
}

/* What reads constants alone could run at any time, and lies in memory from then on: it waits until
 * all else that one of its readers needs is there. A view lies nowhere. */
static bool waits_to_be_wanted(const sched_state *s, hl_node_id id)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[id];
    if (is_view(graph, id)) return false;
    for (int32_t j = 0; j < node->n_in; j++)
        if (hl_graph_value(graph, node->in[j])->kind != HL_VALUE_CONST) return false;
    int32_t first = s->uses.start[node->out], end = s->uses.start[node->out + node->n_out];
    for (int32_t u = first; u < end; u++)
        if (graph->nodes[s->uses.list[u]].segment != node->segment) return false;
    return first < end;
}

/* After operands and readers are counted. */
static void want_fills(sched_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    if (!s->n_fills[id] || s->n_waits[id] != s->n_fills[id]) return;
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_node_id p = hl_graph_producer(s->graph, node->in[j]);
        if (p != HL_NONE && s->is_fill[p]) s->n_waits[p] = 0;
    }
}

static void count_waits(sched_state *s)
{
    for (int64_t i = 0; i < s->graph->n_nodes; i++)
        s->is_fill[i] = waits_to_be_wanted(s, (hl_node_id)i);
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        const hl_node *node = &s->graph->nodes[i];
        s->n_waits[i] += s->is_fill[i];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = hl_graph_producer(s->graph, node->in[j]);
            s->n_waits[i] += p != HL_NONE;
            s->n_fills[i] += p != HL_NONE && s->is_fill[p];
        }
    }
}

static void place_node(sched_state *s, hl_node_id node, int32_t region, int32_t chain);

/* Lowers the count of everything that waited for this node; views are placed at once, they are
 * nothing to run. */
static void release_users(sched_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    for (int32_t o = 0; o < node->n_out; o++)
        for (int32_t u = s->uses.start[node->out + o]; u < s->uses.start[node->out + o + 1]; u++) {
            hl_node_id user = s->uses.list[u];
            s->n_fills[user] -= s->is_fill[id];
            if (--s->n_waits[user] == 0 && is_view(s->graph, user))
                place_node(s, user, HL_NONE, HL_NONE);
            else if (s->n_waits[user] == 0 && s->is_side[user])
                s->ready_side[s->n_ready_side++] = user;
            want_fills(s, user);
        }
    for (int32_t w = s->first_of_reader[id]; w != HL_NONE; w = s->waits[w].next_of_reader) {
        s->n_waits[s->waits[w].update]--;
        want_fills(s, s->waits[w].update);
    }
}

static void place_node(sched_state *s, hl_node_id node, int32_t region, int32_t chain)
{
    hl_node_id before = s->open_before[node], behind = s->open_behind[node];
    s->open_behind[before] = behind;
    s->open_before[behind] = before;
    s->placed[node] = true;
    s->region_of[node] = region;
    s->chain_of[node] = chain;
    release_users(s, node);
}

/* ---- joining --------------------------------------------------------------------------------- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Is the value, made in the open region, written row by row by a task of a chain? */
static bool is_row_wise_output(const sched_state *s, hl_id value)
{
    const hl_value *v = hl_graph_value(s->graph, value);
    const hl_task *task = &s->out->tasks[s->out->task_of_node[v->node]];
    return task->req.rows > 0 && hl_kernel_writes_rows(&task->req, v->output);
}

enum { JOIN_NO = -2, JOIN_NEW = -1 };

/* The chain of the open region that the node may join, JOIN_NEW, or JOIN_NO. */
static int32_t find_chain(const sched_state *s, hl_node_id id, int32_t region)
{
    const hl_node *node = &s->graph->nodes[id];
    const hl_kernel_req *req = &s->out->tasks[s->out->task_of_node[id]].req;
    int32_t chain = JOIN_NEW;
    if (!req->rows || !s->chain) return JOIN_NO;
    for (int32_t w = s->first_of_update[id]; w != HL_NONE; w = s->waits[w].next_of_update)
        if (s->region_of[s->waits[w].reader] == region) return JOIN_NO;
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_id root = hl_graph_viewed(s->graph, node->in[j]);
        const hl_value *v = hl_graph_value(s->graph, root);
        if (v->kind != HL_VALUE_ACT || s->region_of[v->node] != region) continue;
        if (!hl_kernel_reads_rows(req, j) || !is_row_wise_output(s, root)) return JOIN_NO;
        if (chain != JOIN_NEW && chain != s->chain_of[v->node]) return JOIN_NO;
        chain = s->chain_of[v->node];
    }
    if (chain == JOIN_NEW) return chain;
    int64_t rows = s->out->chains[chain].rows;
    return req->rows % rows == 0 || rows % req->rows == 0 ? chain : JOIN_NO;
}

/* Fewer rows make coarser ones; a chain that is too coarse to share out is no gain. */
static bool rows_fit(const sched_state *s, int32_t chain, const hl_kernel_req *req)
{
    int64_t rows = s->out->chains[chain].rows;
    if (req->rows >= rows) return true;
    return req->rows >= 4 * s->device->n_threads;
}

/* ---- building -------------------------------------------------------------------------------- */

static int32_t open_chain(sched_state *s, int32_t region, int64_t rows)
{
    int32_t chain = s->out->n_chains++;
    s->out->chains[chain] = (hl_chain){.region = region, .rows = rows, .grain = 1};
    s->chain_head[chain] = s->chain_tail[chain] = HL_NONE;
    s->out->regions[region].n_chains++;
    return chain;
}

static void append_task(sched_state *s, hl_node_id id, int32_t region, int32_t chain)
{
    int32_t task = s->out->task_of_node[id];
    hl_chain *c = &s->out->chains[chain];
    if (s->out->tasks[task].req.rows && s->out->tasks[task].req.rows < c->rows)
        c->rows = s->out->tasks[task].req.rows;
    s->chain_next[task] = HL_NONE;
    if (s->chain_tail[chain] == HL_NONE)
        s->chain_head[chain] = task;
    else
        s->chain_next[s->chain_tail[chain]] = task;
    s->chain_tail[chain] = task;
    s->out->tasks[task].chain = chain;
    c->n_tasks++;
    place_node(s, id, region, chain);
}

static const hl_kernel *kernel_of(const sched_state *s, hl_node_id id)
{
    return s->out->tasks[s->out->task_of_node[id]].kernel;
}

/* What can be one launch with others and nobody waits for goes last, so that these stand in a row:
 * updates, and products that updates alone read, which are weight gradients. */
static bool find_last(const sched_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    if (is_view(s->graph, id) || !kernel_of(s, id)->prepare_horizontal) return false;
    if (hl_op_get(node->op)->flags & HL_OP_UPDATES) return true;
    if (!hl_op_is_product(node->op) || !hl_uses_by_updates(s->graph, &s->uses, node)) return false;
    const hl_kernel *kernel = kernel_of(s, id);
    return !kernel->is_horizontal || kernel->is_horizontal(s->device, s->graph, &id, 1);
}

/* A weight gradient that is long enough to run beside others, and not one launch with them. */
static bool find_side(const sched_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    double least = s->device->overlap_flops;
    return least > 0 && node->segment == HL_SEGMENT_MICRO && hl_op_is_product(node->op) &&
           !s->goes_last[id] && hl_node_cost(s->graph, node).flops >= least &&
           hl_uses_by_updates(s->graph, &s->uses, node);
}

/* The lower, the sooner: of what goes last, what can be one launch with the node before. */
static int rank_node(const sched_state *s, hl_node_id id)
{
    if (!s->goes_last[id]) return 0;
    bool follows = s->last != HL_NONE && kernel_of(s, s->last)->prepare_horizontal ==
                                             kernel_of(s, id)->prepare_horizontal;
    return follows ? 1 : 2;
}

/* A weight gradient that goes last, but before what a fence divides from it: beyond that it would
 * keep its operands, which is what the fence is for. */
static bool is_late_gradient(const sched_state *s, hl_node_id id)
{
    return s->goes_last[id] && !(hl_op_get(s->graph->nodes[id].op)->flags & HL_OP_UPDATES);
}

/* The next node to run: one for the side stream; one that joins the open region if there is one
 * near; else the first that is ready, however many updates that wait for their readers stand before
 * it. */
static hl_node_id pick_node(sched_state *s, hl_segment segment, int32_t region, int32_t *out_chain)
{
    const hl_node *nodes = s->graph->nodes;
    hl_node_id first = HL_NONE, gradient = HL_NONE;
    hl_node_id end = (hl_node_id)s->graph->n_nodes, i = s->open_behind[end];
    if (s->n_placed_side < s->n_ready_side && segment == HL_SEGMENT_MICRO) {
        *out_chain = JOIN_NO;
        return s->ready_side[s->n_placed_side++];
    }
    for (int seen = 1; i != end; i = s->open_behind[i], seen++) {
        if (nodes[i].segment > segment) break;
        if (seen > LOOKAHEAD && first != HL_NONE) break;
        if (s->n_waits[i]) continue;
        if (gradient != HL_NONE && s->goes_last[first] && nodes[i].fence > nodes[gradient].fence) {
            first = gradient;
            break;
        }
        if (gradient == HL_NONE && is_late_gradient(s, i)) gradient = i;
        if (first == HL_NONE || rank_node(s, i) < rank_node(s, first)) first = i;
        if (region == HL_NONE && !s->goes_last[first]) break;
        if (region == HL_NONE || nodes[i].fence != s->fence) continue;
        int32_t chain = find_chain(s, i, region);
        if (chain >= 0 && !rows_fit(s, chain, &s->out->tasks[s->out->task_of_node[i]].req))
            chain = JOIN_NO;
        if (chain == JOIN_NO) continue;
        *out_chain = chain;
        return i;
    }
    *out_chain = JOIN_NO;
    return first;
}

static void build_segment(sched_state *s, hl_segment segment)
{
    int32_t region = HL_NONE, chain;
    double cost = 0; /* of the open region */
    s->out->segment_first[segment] = s->out->n_regions;
    for (;;) {
        hl_node_id id = pick_node(s, segment, region, &chain);
        if (id == HL_NONE) break;
        const hl_kernel_req *req = &s->out->tasks[s->out->task_of_node[id]].req;
        if (chain == JOIN_NO) {
            region = s->out->n_regions++;
            s->out->regions[region] = (hl_region){.awaits = HL_NONE};
            s->fence = s->graph->nodes[id].fence;
            chain = JOIN_NEW;
            cost = 0;
        }
        if (chain == JOIN_NEW) chain = open_chain(s, region, req->rows);
        append_task(s, id, region, chain);
        s->last = id;
        cost += req->row_cost * (double)req->rows / s->device->n_threads;
        if (cost > REGION_NS) region = HL_NONE;
    }
    s->out->segment_first[segment + 1] = s->out->n_regions;
}

/* Tasks into the order of regions and chains; chains are made in order of regions already. */
static hl_status order_tasks(sched_state *s)
{
    hl_schedule *out = s->out;
    hl_task *sorted;
    int32_t n = 0;
    HL_TRY(hl_alloc((size_t)(out->n_tasks + 1) * sizeof *sorted, (void **)&sorted));
    for (int32_t c = 0; c < out->n_chains; c++) {
        out->chains[c].first_task = n;
        for (int32_t task = s->chain_head[c]; task != HL_NONE; task = s->chain_next[task]) {
            out->task_of_node[out->tasks[task].node] = n;
            sorted[n++] = out->tasks[task];
        }
    }
    bool complete = n == out->n_tasks;
    hl_free(out->tasks);
    out->tasks = sorted;
    out->n_tasks = n;
    if (!complete)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "schedule: an update and its readers wait for each other");
    for (int32_t r = 0, c = 0; r < out->n_regions; r++) {
        out->regions[r].first_chain = c;
        c += out->regions[r].n_chains;
    }
    return HL_OK;
}

/* ---- the side stream ------------------------------------------------------------------------- */

static int32_t region_of_task(const sched_state *s, int32_t task)
{
    return s->out->chains[s->out->tasks[task].chain].region;
}

/* The first region that reads the value, or `region` if that is before. */
static int32_t find_first_reader(const sched_state *s, hl_id value, int32_t region)
{
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++) {
        hl_node_id user = s->uses.list[u];
        if (is_view(s->graph, user))
            region = find_first_reader(s, s->graph->nodes[user].out, region);
        else if (s->region_of[user] < region)
            region = s->region_of[user];
    }
    return region;
}

/* The region before which a task on the side has to be over: the first that reads what it makes or
 * overwrites what it reads, or the end of the segment. */
static int32_t find_latest_join(const sched_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    int32_t region = s->out->segment_first[node->segment + 1];
    for (int32_t j = 0; j < node->n_out; j++) region = find_first_reader(s, node->out + j, region);
    for (int32_t w = s->first_of_reader[id]; w != HL_NONE; w = s->waits[w].next_of_reader)
        if (s->region_of[s->waits[w].update] < region) region = s->region_of[s->waits[w].update];
    return region;
}

/* Of the tasks that may, those go to the side stream beside which the main one has a product to
 * run; the last of a backward pass has none. Returns how many go. */
static int32_t choose_side(const sched_state *s)
{
    int32_t n = 0, next_product = s->out->n_regions; /* on the main stream */
    for (int32_t i = s->out->n_tasks; i-- > 0;) {
        hl_task *task = &s->out->tasks[i];
        if (!hl_op_is_product(s->graph->nodes[task->node].op)) continue;
        int32_t join = s->is_side[task->node] ? find_latest_join(s, task->node) : HL_NONE;
        if (join <= next_product) {
            next_product = region_of_task(s, i);
            continue;
        }
        task->side = n++; /* numbered in order later */
        task->join = join;
    }
    return n;
}

static void plan_side(const sched_state *s)
{
    int32_t n = choose_side(s), next_join = s->out->n_regions, begins[HL_SIDE_AHEAD];
    for (int i = 0; i < HL_SIDE_AHEAD; i++) begins[i] = s->out->n_regions;
    for (int32_t i = s->out->n_tasks; n && i-- > 0;) {
        hl_task *task = &s->out->tasks[i];
        if (task->side == HL_NONE) continue;
        int32_t *begin = &begins[--n % HL_SIDE_AHEAD];
        task->side = n;
        /* Whoever waits for a task on the side waits for those before it. */
        if (next_join < task->join) task->join = next_join;
        if (*begin < task->join) task->join = *begin;
        *begin = region_of_task(s, i);
        next_join = task->join;
        if (task->join < s->out->n_regions && s->out->regions[task->join].awaits < n)
            s->out->regions[task->join].awaits = n;
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int64_t task_row_bytes(const hl_graph *graph, const hl_task *task)
{
    const hl_node *node = &graph->nodes[task->node];
    int64_t bytes = 0;
    for (int32_t j = 0; j < node->n_in; j++)
        if (hl_kernel_reads_rows(&task->req, j))
            bytes += (int64_t)hl_value_bytes(graph, node->in[j]);
    for (int32_t j = 0; j < node->n_out; j++)
        if (hl_kernel_writes_rows(&task->req, j))
            bytes += (int64_t)hl_value_bytes(graph, node->out + j);
    return bytes;
}

typedef struct partition_state {
    const hl_graph *graph;
    const hl_schedule *schedule;
    const bool *elided;
    int n_threads;
} partition_state;

static double count_cost(const partition_state *s, const hl_chain *chain)
{
    double cost = 0;
    for (int32_t i = chain->first_task; i < chain->first_task + chain->n_tasks; i++) {
        const hl_kernel_req *req = &s->schedule->tasks[i].req;
        if (!s->elided[i]) cost += req->row_cost * (double)req->rows;
    }
    return cost;
}

static void partition_chain(const partition_state *s, hl_chain *chain, bool serial)
{
    int64_t bytes = 0;
    int32_t n_tasks = 0;
    for (int32_t i = chain->first_task; i < chain->first_task + chain->n_tasks; i++) {
        hl_task *task = &s->schedule->tasks[i];
        if (s->elided[i]) continue;
        n_tasks++;
        task->rows_per_block_row = task->req.rows / chain->rows;
        int64_t grain = task->req.grain / gcd(task->req.grain, task->rows_per_block_row);
        /* Grains without a common multiple below the chain's rows leave one block. */
        if (__builtin_mul_overflow(chain->grain / gcd(chain->grain, grain), grain, &chain->grain) ||
            chain->grain > chain->rows)
            chain->grain = chain->rows;
        bytes += task_row_bytes(s->graph, task);
    }
    if (!n_tasks) return;
    int64_t blocks = serial ? 1 : (int64_t)(count_cost(s, chain) / BLOCK_NS);
    int64_t most = (int64_t)s->n_threads * BLOCKS_PER_THREAD;
    if (blocks > most) blocks = most;
    if (n_tasks > 1 && blocks < bytes / BLOCK_BYTES) blocks = bytes / BLOCK_BYTES;
    if (blocks > s->n_threads) blocks = hl_round_up(blocks, s->n_threads);
    chain->n_grains = (chain->rows + chain->grain - 1) / chain->grain;
    chain->n_blocks = blocks < 1 ? 1 : blocks < chain->n_grains ? blocks : chain->n_grains;
}

/* Phases behind the first have nothing to chain with: blocks are worth a barrier or are one. */
static void partition_phases(const partition_state *s, hl_region *region, const hl_chain *chain)
{
    for (int32_t i = chain->first_task; i < chain->first_task + chain->n_tasks; i++) {
        hl_task *task = &s->schedule->tasks[i];
        const hl_kernel_req *req = &task->req;
        if (s->elided[i] || !req->rows || req->n_phases < 2) continue;
        double cost = req->phase_row_cost * (double)req->phase_rows;
        int64_t most = (int64_t)s->n_threads * BLOCKS_PER_THREAD;
        int64_t blocks = cost < SERIAL_NS || s->n_threads == 1 ? 1 : (int64_t)(cost / BLOCK_NS);
        if (blocks > most) blocks = most;
        if (blocks > req->phase_rows) blocks = req->phase_rows;
        task->n_phase_blocks = blocks > 1 ? blocks : 1;
        if (req->n_phases > region->n_phases) region->n_phases = req->n_phases;
    }
}

void hl_schedule_partition(const hl_graph *graph, const hl_device *device, const bool *elided,
                           hl_schedule *schedule)
{
    partition_state s = {graph, schedule, elided, device->n_threads};
    for (int32_t r = 0; r < schedule->n_regions; r++) {
        hl_region *region = &schedule->regions[r];
        hl_chain *chains = &schedule->chains[region->first_chain];
        double cost = 0;
        for (int32_t c = 0; c < region->n_chains; c++) cost += count_cost(&s, &chains[c]);
        region->serial = cost < SERIAL_NS || device->n_threads == 1;
        for (int32_t c = 0; c < region->n_chains; c++) {
            if (chains[c].rows) partition_chain(&s, &chains[c], region->serial);
            region->n_blocks += chains[c].n_blocks;
            partition_phases(&s, region, &chains[c]);
        }
    }
}

/* ---- entry ----------------------------------------------------------------------------------- */

static void list_tasks(sched_state *s, const hl_choice *choices)
{
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        s->out->task_of_node[i] = HL_NONE;
        if (is_view(s->graph, (hl_node_id)i)) continue;
        hl_task *task = &s->out->tasks[s->out->n_tasks];
        *task = (hl_task){.node = (hl_node_id)i,
                          .kernel = choices[i].kernel,
                          .req = choices[i].req,
                          .side = HL_NONE,
                          .join = HL_NONE};
        s->out->task_of_node[i] = s->out->n_tasks++;
    }
    for (int64_t i = 0; i < s->graph->n_nodes; i++) {
        s->goes_last[i] = find_last(s, (hl_node_id)i);
        s->is_side[i] = find_side(s, (hl_node_id)i);
    }
}

static hl_status alloc_schedule(sched_state *s, void **out_memory)
{
    size_t n = (size_t)s->graph->n_nodes + 1;
    HL_TRY(hl_alloc_zero(n * sizeof(hl_task), (void **)&s->out->tasks));
    HL_TRY(hl_alloc_zero(n * sizeof(hl_chain), (void **)&s->out->chains));
    HL_TRY(hl_alloc_zero(n * sizeof(hl_region), (void **)&s->out->regions));
    HL_TRY(hl_alloc_zero(n * sizeof(int32_t), (void **)&s->out->task_of_node));
    HL_TRY(hl_alloc_zero(n * (12 * sizeof(int32_t) + 4 * sizeof(bool)), out_memory));
    s->n_waits = *out_memory;
    s->n_fills = s->n_waits + n;
    s->region_of = s->n_fills + n;
    s->chain_of = s->region_of + n;
    s->chain_next = s->chain_of + n;
    s->chain_head = s->chain_next + n;
    s->chain_tail = s->chain_head + n;
    s->first_of_reader = s->chain_tail + n;
    s->first_of_update = s->first_of_reader + n;
    s->open_before = s->first_of_update + n;
    s->open_behind = s->open_before + n;
    s->ready_side = s->open_behind + n;
    s->placed = (bool *)(s->ready_side + n);
    s->is_fill = s->placed + n;
    s->goes_last = s->is_fill + n;
    s->is_side = s->goes_last + n;
    s->last = HL_NONE;
    for (size_t i = 0; i < n; i++) {
        s->region_of[i] = s->chain_of[i] = s->first_of_reader[i] = s->first_of_update[i] = HL_NONE;
        s->open_before[i] = (hl_node_id)(i ? i - 1 : n - 1);
        s->open_behind[i] = (hl_node_id)(i + 1 < n ? i + 1 : 0);
    }
    return HL_OK;
}

hl_status hl_pass_schedule(const hl_graph *graph, hl_device *device, const hl_choice *choices,
                           bool chain, bool overlap, hl_schedule *out_schedule)
{
    *out_schedule = (hl_schedule){0};
    sched_state s = {.graph = graph, .device = device, .chain = chain, .out = out_schedule};
    void *memory = NULL;
    hl_status status = HL_OK;
    HL_GOTO(alloc_schedule(&s, &memory));
    HL_GOTO(hl_uses_init(graph, &s.uses));
    list_tasks(&s, choices);
    count_waits(&s);
    HL_GOTO(add_update_waits(&s));
    for (int64_t i = 0; i < graph->n_nodes; i++) want_fills(&s, (hl_node_id)i);
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (is_view(graph, (hl_node_id)i) && !s.n_waits[i] && !s.placed[i])
            place_node(&s, (hl_node_id)i, HL_NONE, HL_NONE);
    for (int segment = 0; segment < HL_SEGMENT_COUNT; segment++)
        build_segment(&s, (hl_segment)segment);
    HL_GOTO(order_tasks(&s));
    if (overlap) plan_side(&s);
cleanup:
    hl_uses_deinit(&s.uses);
    hl_free(s.waits);
    hl_free(memory);
    if (status != HL_OK) hl_schedule_deinit(out_schedule);
    return status;
}

void hl_schedule_deinit(hl_schedule *schedule)
{
    hl_free(schedule->tasks);
    hl_free(schedule->chains);
    hl_free(schedule->regions);
    hl_free(schedule->task_of_node);
    *schedule = (hl_schedule){0};
}
