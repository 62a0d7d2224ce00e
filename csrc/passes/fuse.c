/* Fusion: clusters of pointwise nodes (and the sums that end them) become one POINTWISE_FUSED node
 * each.
 *
 * Clusters grow along edges: producer and consumer join when they iterate over the same shape, the
 * program stays within its limits, and no path leads from one to the other through a node outside
 * (that would be a cycle). Sums over the same shape that share an operand join too, so that a
 * backward pass reads its data once. Sources (dropout masks) and numbers are never members: whoever
 * needs one recomputes it in registers. The same holds for a value that another cluster of the same
 * shape made in few cheap steps from operands this cluster reads anyway, or from small ones:
 * recomputing it costs less than a trip through memory.
 *
 * Rejected: fusing across different shapes (broadcast producers are small and stay nodes of their
 * own), and a cost model beyond counting: the one thing that matters here is bytes. */
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* Members and operands take a register each; some are left for what is recomputed. */
enum {
    MOST_REGISTERS = HL_PROGRAM_REGS - 10,
    MOST_LOADS = HL_PROGRAM_INS - 6,
    MOST_RECOMPUTE = 5,
    SMALL_FRACTION = 16
};

typedef struct fuse_state {
    hl_graph *graph;
    hl_uses uses;
    hl_node_id *leader;   /* of each node: its cluster, a node id; HL_NONE: not fusible */
    hl_node_id *next;     /* members of a cluster as a ring */
    int32_t *n_members;   /* by leader */
    int32_t *last_member; /* by leader: greatest node id */
    uint32_t *seen;       /* visit stamp per cluster or node */
    uint32_t stamp;
    hl_node_id *stack;
} fuse_state;

/* ---- what can be fused ----------------------------------------------------------------------- */

static bool is_float_or_bool(hl_dtype dtype)
{
    return hl_dtype_is_float(dtype) || dtype == HL_DTYPE_BOOL;
}

/* Axes of a SUM as a split of the shape: a leading group, a trailing group or all. */
static bool find_sum_split(const hl_graph *graph, const hl_node *node, int32_t *out_split,
                           hl_pw_reduce *out_reduce)
{
    const hl_shape *shape = hl_graph_shape(graph, node->in[0]);
    int32_t n = node->attrs.n_dims;
    if (n == shape->rank) {
        *out_split = HL_NONE;
        *out_reduce = HL_PW_SUM_ALL;
        return true;
    }
    bool leading = true, trailing = true;
    for (int32_t i = 0; i < n; i++) {
        leading &= node->attrs.dims[i] == i;
        trailing &= node->attrs.dims[i] == shape->rank - n + i;
    }
    *out_split = leading ? n : shape->rank - n;
    *out_reduce = leading ? HL_PW_SUM_ROWS : HL_PW_SUM_COLS;
    return n > 0 && (leading || trailing);
}

static bool is_fusible(const hl_graph *graph, const hl_node *node)
{
    const hl_op_info *op = hl_op_get(node->op);
    int32_t split;
    hl_pw_reduce reduce;
    if (op->flags & HL_OP_SOURCE) return false;
    if (!(op->flags & HL_OP_POINTWISE) &&
        !(node->op == HL_OP_SUM && find_sum_split(graph, node, &split, &reduce)))
        return false;
    if (!is_float_or_bool(hl_graph_dtype(graph, node->out))) return false;
    for (int32_t j = 0; j < node->n_in; j++)
        if (!is_float_or_bool(hl_graph_dtype(graph, node->in[j])) && node->op != HL_OP_CAST)
            return false;
    return true;
}

static const hl_shape *iteration_shape(const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    return hl_graph_shape(graph, node->op == HL_OP_SUM ? node->in[0] : node->out);
}

static bool is_source(const hl_graph *graph, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    return v->kind == HL_VALUE_ACT && hl_op_get(graph->nodes[v->node].op)->flags & HL_OP_SOURCE;
}

static bool is_number(const hl_graph *graph, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    return v->kind == HL_VALUE_CONST && v->type.shape.rank == 0 && hl_dtype_is_float(v->type.dtype);
}

static hl_node_id producer_of(const hl_graph *graph, hl_id value)
{
    const hl_value *v = hl_graph_value(graph, value);
    return v->kind == HL_VALUE_ACT ? v->node : HL_NONE;
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* A cluster's split from its sums; false when they disagree. */
static bool merge_split(const fuse_state *s, hl_node_id leader, int32_t *split)
{
    hl_node_id m = leader;
    do {
        const hl_node *node = &s->graph->nodes[m];
        int32_t own;
        hl_pw_reduce reduce;
        if (node->op == HL_OP_SUM && find_sum_split(s->graph, node, &own, &reduce) &&
            own != HL_NONE) {
            if (*split != HL_NONE && *split != own) return false;
            *split = own;
        }
        m = s->next[m];
    } while (m != leader);
    return true;
}

static bool is_in(const fuse_state *s, hl_node_id node, hl_node_id a, hl_node_id b)
{
    return s->leader[node] == a || s->leader[node] == b;
}

/* Would the union of two clusters fit a program: distinct operands from outside, numbers among
 * them, and members? */
static bool is_small_enough(fuse_state *s, hl_node_id a, hl_node_id b)
{
    hl_id load[MOST_REGISTERS];
    int n = 0, n_members = s->n_members[a] + s->n_members[b], n_loads = 0;
    for (int side = 0; side < 2; side++) {
        hl_node_id leader = side ? b : a, m = leader;
        do {
            const hl_node *node = &s->graph->nodes[m];
            for (int32_t j = 0; j < node->n_in; j++) {
                hl_node_id p = producer_of(s->graph, node->in[j]);
                if (p != HL_NONE && is_in(s, p, a, b)) continue;
                int known = 0;
                while (known < n && load[known] != node->in[j]) known++;
                if (known < n) continue;
                n_loads += !is_number(s->graph, node->in[j]);
                if (n + 1 + n_members > MOST_REGISTERS || n_loads > MOST_LOADS) return false;
                load[n++] = node->in[j];
            }
            m = s->next[m];
        } while (m != leader);
    }
    return n + n_members <= MOST_REGISTERS;
}

/* Is there a path from cluster a to cluster b through a node of neither? Clusters count as one node
 * each, so a path may run through node ids beyond both: nothing can be cut short by id. */
static bool is_path_outside(fuse_state *s, hl_node_id a, hl_node_id b)
{
    int64_t n_stack = 0;
    s->stamp++;
    s->stack[n_stack++] = a;
    s->seen[a] = s->stamp;
    for (bool first = true; n_stack; first = false) {
        hl_node_id cluster = s->stack[--n_stack], m = cluster;
        do {
            const hl_node *node = &s->graph->nodes[m];
            for (int32_t o = 0; o < node->n_out; o++)
                for (int32_t u = s->uses.start[node->out + o]; u < s->uses.start[node->out + o + 1];
                     u++) {
                    hl_node_id user = s->uses.list[u];
                    hl_node_id to = s->leader[user] == HL_NONE ? user : s->leader[user];
                    if (to == a) continue;
                    /* What a sum gives exists after the pass over memory: no edge inside. */
                    if (first && to == b && node->op != HL_OP_SUM) continue;
                    if (to == b) return true;
                    if (s->seen[to] == s->stamp) continue;
                    s->seen[to] = s->stamp;
                    s->stack[n_stack++] = to;
                }
            m = s->leader[cluster] == HL_NONE ? cluster : s->next[m];
        } while (m != cluster);
    }
    return false;
}

static void try_join(fuse_state *s, hl_node_id from, hl_node_id to)
{
    if (s->leader[from] == HL_NONE || s->leader[to] == HL_NONE) return;
    hl_node_id a = s->leader[from], b = s->leader[to];
    int32_t split = HL_NONE;
    if (a == b || s->graph->nodes[a].segment != s->graph->nodes[b].segment) return;
    if (!hl_shape_equal(iteration_shape(s->graph, a), iteration_shape(s->graph, b))) return;
    if (!merge_split(s, a, &split) || !merge_split(s, b, &split)) return;
    if (!is_small_enough(s, a, b)) return;
    if (is_path_outside(s, a, b) || is_path_outside(s, b, a)) return;
    hl_node_id m = b;
    do {
        s->leader[m] = a;
        m = s->next[m];
    } while (m != b);
    hl_node_id next = s->next[a];
    s->next[a] = s->next[b];
    s->next[b] = next;
    s->n_members[a] += s->n_members[b];
    if (s->last_member[b] > s->last_member[a]) s->last_member[a] = s->last_member[b];
}

static void grow_clusters(fuse_state *s)
{
    const hl_graph *graph = s->graph;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_node_id p = producer_of(graph, node->in[j]);
            /* The value of a sum has another shape than its iteration: nobody joins behind it. */
            if (p != HL_NONE && graph->nodes[p].op != HL_OP_SUM) try_join(s, p, (hl_node_id)i);
        }
    }
    /* Sums that read the same value: one pass for all of them. */
    for (int64_t v = 0; v < s->graph->n_values; v++) {
        hl_node_id first = HL_NONE;
        for (int32_t u = s->uses.start[v]; u < s->uses.start[v + 1]; u++) {
            hl_node_id user = s->uses.list[u];
            if (s->leader[user] == HL_NONE) continue;
            if (!hl_shape_equal(iteration_shape(graph, user), hl_graph_shape(graph, (hl_id)v)))
                continue;
            if (first == HL_NONE)
                first = user;
            else
                try_join(s, first, user);
        }
    }
}

/* ---- programs -------------------------------------------------------------------------------- */

typedef struct emit_state {
    fuse_state *fuse;
    hl_node_id cluster;
    hl_program program;
    hl_id in[HL_PROGRAM_INS];
    hl_id reg_value[HL_PROGRAM_REGS]; /* which value a register holds */
    int32_t n_in;
    bool full; /* the program is at one of its limits: the cluster's nodes stay as they are */
} emit_state;

static hl_status check_room(emit_state *e, int32_t n, int32_t most)
{
    if (n < most) return HL_OK;
    e->full = true;
    return hl_status_set(HL_ERROR_INTERNAL, "fuse: a program has room for %d, got more", most);
}

static hl_status find_input(emit_state *e, hl_id value, uint8_t *out_in)
{
    int32_t i = 0;
    while (i < e->n_in && e->in[i] != value) i++;
    if (i == e->n_in) {
        HL_TRY(check_room(e, e->n_in, HL_PROGRAM_INS));
        e->in[e->n_in++] = value;
    }
    *out_in = (uint8_t)i;
    return HL_OK;
}

/* Appends an instruction that makes `value`; its operands are registers already. */
static hl_status emit(emit_state *e, hl_id value, hl_pw_instr instr, uint8_t *out_reg)
{
    HL_TRY(check_room(e, e->program.n_regs, HL_PROGRAM_REGS));
    HL_TRY(check_room(e, e->program.n_code, HL_PROGRAM_CODE));
    *out_reg = (uint8_t)e->program.n_regs++;
    instr.dst = *out_reg;
    e->program.code[e->program.n_code++] = instr;
    e->reg_value[*out_reg] = value;
    return HL_OK;
}

static bool is_loaded_or_small(const emit_state *e, hl_id value)
{
    const hl_graph *graph = e->fuse->graph;
    int64_t n = hl_shape_numel(hl_graph_shape(graph, value));
    if (is_number(graph, value) || n * SMALL_FRACTION <= hl_shape_numel(&e->program.shape))
        return true;
    for (int32_t r = 0; r < e->program.n_regs; r++)
        if (e->reg_value[r] == value) return true;
    hl_node_id m = e->cluster;
    do {
        const hl_node *node = &e->fuse->graph->nodes[m];
        for (int32_t j = 0; j < node->n_in; j++)
            if (node->in[j] == value) return true;
        m = e->fuse->next[m];
    } while (m != e->cluster);
    return false;
}

/* What a recomputation may still cost. */
typedef struct recompute_budget {
    int steps;
    int loads; /* one operand that lies in memory anyway may be read in the value's place */
} recompute_budget;

/* Is it cheaper to compute a foreign value here than to have it stored and load it? */
static bool is_worth_recomputing(const emit_state *e, hl_id value, recompute_budget *budget)
{
    const hl_graph *graph = e->fuse->graph;
    hl_node_id p = producer_of(graph, value);
    if (p == HL_NONE || e->fuse->leader[p] == HL_NONE || graph->nodes[p].op == HL_OP_SUM)
        return false;
    if (!hl_shape_equal(hl_graph_shape(graph, value), &e->program.shape)) return false;
    if (graph->nodes[p].segment != graph->nodes[e->cluster].segment) return false;
    if (--budget->steps < 0) return false;
    const hl_node *node = &graph->nodes[p];
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_node_id maker = producer_of(graph, node->in[j]);
        if (is_source(graph, node->in[j])) return false;
        if (is_loaded_or_small(e, node->in[j])) continue;
        if (is_worth_recomputing(e, node->in[j], budget)) continue;
        bool in_memory = maker == HL_NONE || e->fuse->leader[maker] == HL_NONE;
        if (!in_memory || --budget->loads < 0) return false;
    }
    return true;
}

static hl_status emit_value(emit_state *e, hl_id value, uint8_t *out_reg);

static hl_status emit_node(emit_state *e, hl_node_id id, uint8_t *out_reg)
{
    const hl_node *node = &e->fuse->graph->nodes[id];
    hl_pw_instr instr = {.op = (uint8_t)hl_pw_of_op(node->op)};
    if (hl_op_get(node->op)->flags & HL_OP_SOURCE) {
        HL_TRY(find_input(e, node->in[0], &instr.in));
        instr.number = node->attrs.f[0];
        instr.key = hl_rng_key_make((uint64_t)node->attrs.i[0], node->attrs.name);
        return emit(e, node->out, instr, out_reg);
    }
    uint8_t reg[3] = {0};
    for (int32_t j = 0; j < node->n_in; j++) HL_TRY(emit_value(e, node->in[j], &reg[j]));
    instr.a = reg[0], instr.b = reg[1], instr.c = reg[2];
    if (node->op == HL_OP_CAST) instr.number = (double)node->attrs.i[0];
    return emit(e, node->out, instr, out_reg);
}

static hl_status emit_value(emit_state *e, hl_id value, uint8_t *out_reg)
{
    const hl_graph *graph = e->fuse->graph;
    for (int32_t r = 0; r < e->program.n_regs; r++)
        if (e->reg_value[r] == value) {
            *out_reg = (uint8_t)r;
            return HL_OK;
        }
    if (is_number(graph, value)) {
        double number;
        hl_graph_number_read(graph, value, &number);
        return emit(e, value, (hl_pw_instr){.op = HL_PW_NUMBER, .number = number}, out_reg);
    }
    hl_node_id p = producer_of(graph, value);
    recompute_budget budget = {MOST_RECOMPUTE, 1};
    bool member =
        p != HL_NONE && e->fuse->leader[p] == e->cluster && graph->nodes[p].op != HL_OP_SUM;
    bool same_shape = hl_shape_equal(hl_graph_shape(graph, value), &e->program.shape);
    if (member || (is_source(graph, value) && same_shape) ||
        is_worth_recomputing(e, value, &budget))
        return emit_node(e, p, out_reg);
    hl_pw_instr load = {.op = HL_PW_LOAD};
    HL_TRY(find_input(e, value, &load.in));
    return emit(e, value, load, out_reg);
}

/* Which members' values are read outside: by another kind of node, or by a cluster that will load
 * them. */
static bool is_read_outside(const fuse_state *s, hl_id value, const bool *loaded)
{
    if (s->uses.kept[value] || loaded[value]) return true;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
        if (s->leader[s->uses.list[u]] == HL_NONE) return true;
    return false;
}

static hl_status emit_cluster(fuse_state *s, hl_node_id cluster, const bool *loaded, emit_state *e,
                              hl_type *out_types, hl_id *out_values)
{
    memset(e, 0, sizeof *e);
    e->fuse = s;
    e->cluster = cluster;
    e->program.shape = *iteration_shape(s->graph, cluster);
    int32_t split = HL_NONE;
    merge_split(s, cluster, &split);
    e->program.split = split == HL_NONE ? e->program.shape.rank : split;
    /* Members in node order, so that operands come first. */
    for (int64_t i = cluster; i <= s->last_member[cluster]; i++) {
        const hl_node *node = &s->graph->nodes[i];
        if (s->leader[i] != cluster || (loaded && !is_read_outside(s, node->out, loaded))) continue;
        uint8_t reg;
        int32_t own;
        hl_pw_reduce reduce = HL_PW_FULL;
        if (node->op == HL_OP_SUM) {
            find_sum_split(s->graph, node, &own, &reduce);
            HL_TRY(emit_value(e, node->in[0], &reg));
        } else {
            HL_TRY(emit_value(e, node->out, &reg));
        }
        if (!loaded) continue;
        HL_TRY(check_room(e, e->program.n_out, HL_PROGRAM_OUTS));
        e->program.out[e->program.n_out].reg = reg;
        e->program.out[e->program.n_out].reduce = (uint8_t)reduce;
        out_types[e->program.n_out] = s->graph->values[node->out].type;
        out_values[e->program.n_out++] = node->out;
    }
    e->program.n_in = e->n_in;
    return HL_OK;
}

/* Leaders must be the least member: emission walks upwards from there. */
static void lower_leaders(fuse_state *s)
{
    for (int64_t i = s->graph->n_nodes - 1; i >= 0; i--) {
        if (s->leader[i] == HL_NONE) continue;
        hl_node_id old = s->leader[i], least = old, m = old;
        do {
            if (m < least) least = m;
            m = s->next[m];
        } while (m != old);
        if (least == old) continue;
        int32_t n = s->n_members[old], last = s->last_member[old];
        m = least;
        do {
            s->leader[m] = least;
            m = s->next[m];
        } while (m != least);
        s->n_members[least] = n;
        s->last_member[least] = last;
    }
}

/* The cluster's nodes stay single: as if they had never been fusible. */
static void dissolve(fuse_state *s, hl_node_id cluster)
{
    hl_node_id m = cluster;
    do {
        s->leader[m] = HL_NONE;
        m = s->next[m];
    } while (m != cluster);
}

static hl_status rewrite_clusters(fuse_state *s)
{
    hl_graph *graph = s->graph;
    int64_t n_nodes = graph->n_nodes, n_map = graph->n_values;
    hl_id *map = NULL;
    bool *loaded = NULL;
    emit_state *e = NULL;
    hl_status status = HL_OK;
    HL_GOTO(hl_alloc((size_t)n_map * sizeof *map, (void **)&map));
    HL_GOTO(hl_alloc_zero((size_t)n_map, (void **)&loaded));
    HL_GOTO(hl_alloc(sizeof *e, (void **)&e));
    for (int64_t v = 0; v < n_map; v++) map[v] = (hl_id)v;
    hl_type types[HL_PROGRAM_OUTS];
    hl_id values[HL_PROGRAM_OUTS];
    /* First round: what each cluster will load from others, given what it recomputes. */
    for (int64_t i = 0; i < n_nodes; i++) {
        if (s->leader[i] != i) continue;
        status = emit_cluster(s, (hl_node_id)i, NULL, e, types, values);
        if (status != HL_OK && e->full) {
            dissolve(s, (hl_node_id)i);
            continue;
        }
        HL_GOTO(status);
        for (int32_t j = 0; j < e->n_in; j++) loaded[e->in[j]] = true;
    }
    for (int64_t i = 0; i < n_nodes; i++) {
        if (s->leader[i] != i) continue;
        status = emit_cluster(s, (hl_node_id)i, loaded, e, types, values);
        if (status != HL_OK && e->full) continue;
        HL_GOTO(status);
        if (!e->program.n_out) continue;
        hl_id first;
        graph->segment = graph->nodes[i].segment;
        graph->scope = graph->nodes[i].scope;
        HL_GOTO(hl_graph_add_program(graph, e->in, e->n_in, &e->program, types, e->program.n_out,
                                     &first));
        for (int32_t j = 0; j < e->program.n_out; j++) map[values[j]] = first + j;
    }
    status = HL_OK;
    hl_rewrite_replace(graph, map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(map);
    hl_free(loaded);
    hl_free(e);
    return status;
}

hl_status hl_pass_fuse(hl_graph *graph, hl_device *device)
{
    if (!device->fuses || !graph->n_nodes) return HL_OK;
    size_t n = (size_t)graph->n_nodes;
    fuse_state s = {.graph = graph};
    void *memory = NULL;
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(
        hl_alloc_zero(n * (4 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(hl_node_id)), &memory));
    s.leader = memory;
    s.next = s.leader + n;
    s.n_members = s.next + n;
    s.last_member = s.n_members + n;
    s.seen = (uint32_t *)(s.last_member + n);
    s.stack = (hl_node_id *)(s.seen + n);
    for (size_t i = 0; i < n; i++) {
        s.leader[i] = is_fusible(graph, &graph->nodes[i]) ? (hl_node_id)i : HL_NONE;
        s.next[i] = s.last_member[i] = (hl_node_id)i;
        s.n_members[i] = 1;
    }
    grow_clusters(&s);
    lower_leaders(&s);
    HL_GOTO(rewrite_clusters(&s));
cleanup:
    hl_uses_deinit(&s.uses);
    hl_free(memory);
    return status;
}
