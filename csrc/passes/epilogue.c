/* Epilogues: pointwise work around an anchor becomes programs that its node carries.
 *
 * An anchor is a node of an op for which the device has kernels that take programs. What is tried,
 * the most that one kernel could do first:
 *
 * - Mean and variance of the anchor's result over its rows: so are a batch norm's statistics made
 *   with what they are of. One that the device has a kernel for becomes pointwise work then.
 * - An activation and its gradient. The forward anchor saves what the gradient needs, relu's mask
 *   or gelu's operand, as an output of its epilogue, and the anchor that makes the gradient's dy
 *   reads it in its own. Both sides or none: what is saved is for who reads it.
 * - A chain of pointwise nodes behind it, each of which alone reads the one before it; or before
 *   its first operands, as a prologue.
 * - The sums over rows of a matrix that an anchor reads anyway, by a prologue: so does a bias
 *   gradient stand beside its weight gradient. Where that is refused, they stand with the
 *   gradient's anchor that makes the matrix.
 *
 * Only programs that a kernel names are tried, and the kernel is asked about the node as it would
 * stand in the graph: what it refuses stays as it was, and is fused like any pointwise work. A sum
 * whose matrix a pointwise node makes stays with that one, which passes over the matrix anyway. */
#include <string.h>

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/emit.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { MAX_GRADIENTS = 8, MAX_CHAIN = 4 };

/* An operand of a node that the pass has added. */
typedef struct added_use {
    hl_node_id node;
    int64_t next; /* of the same value; HL_NONE */
} added_use;

typedef struct epilogue_state {
    hl_graph *graph;
    hl_device *device;
    bool deterministic;
    hl_uses uses;   /* as they were when a sweep began, */
    int64_t n_used; /* of so many values: what is added has none yet */
    bool *replaced; /* by node, of those that were there when the sweep began: also what a chain
                       took */
    /* Which of the nodes added since read a value that was there: by value, the last one in
     * added_uses, HL_NONE: none. */
    int64_t *last_added;
    added_use *added_uses;
    int64_t n_added, cap_added;
    int64_t n_listed; /* nodes whose operands are listed, here or in uses */
    hl_emitter emitter;
    hl_node place; /* of the anchor: what it computes stands in its segment, behind its fence */
    hl_dtype rounds_to; /* casts to this type and to float32 are no steps; COUNT: all are */
    bool has_dropped;   /* there was one */
} epilogue_state;

/* ---- replacing, and back --------------------------------------------------------------------- */

/* Lists the operands of the nodes that were added since the last time. */
static hl_status list_added(epilogue_state *s)
{
    for (; s->n_listed < s->graph->n_nodes; s->n_listed++) {
        const hl_node *node = &s->graph->nodes[s->n_listed];
        for (int32_t j = 0; j < node->n_in; j++) {
            hl_id value = node->in[j];
            if (value >= s->n_used) continue;
            HL_TRY(hl_alloc_grow((void **)&s->added_uses, &s->cap_added, s->n_added + 1,
                                 sizeof *s->added_uses));
            s->added_uses[s->n_added] = (added_use){(hl_node_id)s->n_listed, s->last_added[value]};
            s->last_added[value] = s->n_added++;
        }
    }
    return HL_OK;
}

static void replace_operands(epilogue_state *s, hl_node_id id, hl_id from, hl_id to)
{
    /* The arena's operand list is const for readers; passes own the graph. */
    hl_id *in = (hl_id *)s->graph->nodes[id].in;
    for (int32_t j = 0; j < s->graph->nodes[id].n_in; j++)
        if (in[j] == from) in[j] = to;
}

/* Makes the readers of a value, old ones and those that were added since the sweep began, read `to`
 * in the place of `from`: one of the two is the value, the other what stands for it. What was added
 * to be an output of the anchor itself has no readers. */
static void redirect(epilogue_state *s, hl_id value, hl_id from, hl_id to)
{
    hl_graph *graph = s->graph;
    if (value >= s->n_used) return;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
        replace_operands(s, s->uses.list[u], from, to);
    for (int64_t u = s->last_added[value]; u != HL_NONE; u = s->added_uses[u].next)
        replace_operands(s, s->added_uses[u].node, from, to);
    if (!s->uses.kept[value]) return;
    for (int64_t i = 0; i < graph->n_commits; i++)
        if (graph->commits[i].value == from) graph->commits[i].value = to;
    for (int64_t i = 0; i < graph->n_outputs; i++)
        if (graph->outputs[i] == from) graph->outputs[i] = to;
}

/* What stands where a value was. */
typedef struct value_swap {
    hl_id old, now;
} value_swap;

/* `by` in the shape of the old value. */
static hl_status put_value(epilogue_state *s, hl_id old, hl_id by, value_swap *out_swap)
{
    hl_shape shape = *hl_graph_shape(s->graph, old);
    out_swap->old = old;
    HL_TRY(hl_build_reshape(s->graph, by, &shape, &out_swap->now));
    HL_TRY(list_added(s));
    redirect(s, old, old, out_swap->now);
    return HL_OK;
}

/* ---- an anchor with programs ----------------------------------------------------------------- */

/* A node with these programs in the place of an anchor. */
typedef struct attempt {
    hl_node_id anchor;
    hl_fusion fusion;
    hl_id in[HL_ANCHOR_INS];
    int32_t n_in;
    hl_type types[HL_PROGRAM_OUTS]; /* of the programs' outputs, as hl_graph_add_anchor has them */
    hl_id old[HL_PROGRAM_OUTS];     /* by output: what it takes the place of */
    value_swap swaps[HL_PROGRAM_OUTS];
    int32_t n_out;
} attempt;

/* Does a kernel of the device name what this node carries? */
static bool is_named(const epilogue_state *s, const hl_node *node)
{
    const hl_kernel *const *list = s->device->ops->kernels(s->device, node->op);
    for (; list && *list; list++)
        if (hl_fusion_find(s->graph, node, (*list)->fusions) >= 0) return true;
    return false;
}

static void undo(epilogue_state *s, const attempt *a)
{
    for (int32_t j = a->n_out - 1; j >= 0; j--)
        redirect(s, a->swaps[j].old, a->swaps[j].now, a->swaps[j].old);
    s->replaced[a->anchor] = false;
}

/* With the new node where the anchor was: does the anchor's own kernel take it? If not, all is as
 * it was: another kernel would lose more at the anchor than it gains beside it. */
static hl_status try_attempt(epilogue_state *s, attempt *a, bool *out_taken)
{
    hl_node anchor = s->graph->nodes[a->anchor], node = anchor;
    const hl_kernel *own, *kernel;
    hl_kernel_req req;
    hl_id first;
    node.in = a->in, node.n_in = a->n_in;
    node.program = a->fusion.epilogue;
    memcpy(node.prologue, a->fusion.prologue, sizeof node.prologue);
    *out_taken = false;
    if (!is_named(s, &node)) return HL_OK;
    HL_TRY(hl_kernel_find(s->device, s->graph, a->anchor, s->deterministic, &own, &req));
    hl_graph_stand_by(s->graph, &anchor);
    HL_TRY(hl_graph_add_anchor(s->graph, anchor.op, a->in, a->n_in, &anchor.attrs, &a->fusion,
                               a->types, &first));
    for (int32_t j = 0; j < a->n_out; j++) HL_TRY(put_value(s, a->old[j], first + j, &a->swaps[j]));
    s->replaced[a->anchor] = true;
    HL_TRY(hl_select_try(s->graph, s->device, hl_graph_producer(s->graph, first), s->deterministic,
                         &kernel));
    *out_taken = kernel && kernel == own;
    if (!*out_taken) undo(s, a);
    return HL_OK;
}

/* ---- programs from nodes --------------------------------------------------------------------- */

static hl_status refuse(epilogue_state *s)
{
    s->emitter.is_refused = true;
    return hl_status_set(HL_ERROR_INTERNAL, "epilogue: this is no program of the anchor's result");
}

static bool is_generator(const hl_node *node)
{
    return hl_op_get(node->op)->flags & HL_OP_GENERATOR;
}

/* A value, or what it is a reshape of, down to x. */
static hl_id skip_reshapes(const hl_graph *graph, hl_id value, hl_id x)
{
    for (;;) {
        hl_node_id maker = hl_graph_producer(graph, value);
        if (value == x || maker == HL_NONE || graph->nodes[maker].op != HL_OP_RESHAPE) return value;
        value = graph->nodes[maker].in[0];
    }
}

/* Is it made of x in at most so many pointwise steps? */
static bool comes_from(const hl_graph *graph, hl_id value, hl_id x, int n_steps)
{
    value = skip_reshapes(graph, value, x);
    hl_node_id maker = hl_graph_producer(graph, value);
    if (value == x) return true;
    if (!n_steps || maker == HL_NONE || hl_pw_of_op(graph->nodes[maker].op) == HL_PW_COUNT)
        return false;
    const hl_node *node = &graph->nodes[maker];
    for (int32_t i = 0; i < node->n_in && !is_generator(node); i++)
        if (comes_from(graph, node->in[i], x, n_steps - 1)) return true;
    return false;
}

/* An epilogue computes in float32 and rounds once, where its result is stored, a prologue not at
 * all: what a cast between rounds before, they do not. */
static bool is_dropped(const epilogue_state *s, const hl_node *node)
{
    if (node->op != HL_OP_CAST || s->rounds_to == HL_DTYPE_COUNT) return false;
    hl_dtype from = hl_graph_dtype(s->graph, node->in[0]), to = hl_graph_dtype(s->graph, node->out);
    return (from == s->rounds_to || from == HL_DTYPE_F32) &&
           (to == s->rounds_to || to == HL_DTYPE_F32);
}

/* A value of the program, x being the anchor's result: computed if it is made of x, else loaded. */
static hl_status emit_value(epilogue_state *s, hl_id value, hl_id x, uint8_t *out_reg)
{
    const hl_graph *graph = s->graph;
    const hl_shape *shape = &s->emitter.program.shape;
    value = skip_reshapes(graph, value, x);
    if (hl_emit_find(&s->emitter, value, out_reg)) return HL_OK;
    if (hl_emit_is_number(graph, value)) return hl_emit_number(&s->emitter, value, out_reg);
    hl_node_id maker = hl_graph_producer(graph, value);
    uint8_t reg[3] = {0};
    if (maker != HL_NONE && is_generator(&graph->nodes[maker])) {
        if (!hl_shape_equal(hl_graph_shape(graph, value), shape)) return refuse(s);
        return hl_emit_node(&s->emitter, &graph->nodes[maker], reg, out_reg);
    }
    if (comes_from(graph, value, x, MAX_CHAIN)) {
        const hl_node *node = &graph->nodes[maker];
        if (node->segment != s->place.segment || node->fence != s->place.fence) return refuse(s);
        if (is_dropped(s, node)) {
            s->has_dropped = true;
            return emit_value(s, node->in[0], x, out_reg);
        }
        /* What is made of x first: so operands are loaded in the order of the text. */
        for (int made = 1; made >= 0; made--)
            for (int32_t i = 0; i < node->n_in; i++)
                if (comes_from(graph, node->in[i], x, MAX_CHAIN) == made)
                    HL_TRY(emit_value(s, node->in[i], x, &reg[i]));
        return hl_emit_node(&s->emitter, node, reg, out_reg);
    }
    const hl_shape *own = hl_graph_shape(graph, value);
    int64_t n = hl_shape_numel(own);
    if (n != 1 && n != hl_shape_numel(shape) && !hl_fusion_is_columns(own, shape)) return refuse(s);
    /* Loading widens. */
    return hl_emit_load(&s->emitter, hl_rewrite_narrow(graph, value), out_reg);
}

/* Appends the program's operands, but its first, to an attempt; those of all elements take the
 * program's shape. False: there are too many. */
static hl_status add_operands(epilogue_state *s, attempt *a, bool *out_added)
{
    hl_graph *graph = s->graph;
    const hl_program *program = &s->emitter.program;
    *out_added = a->n_in + program->n_in - 1 <= HL_ANCHOR_INS;
    /* Another result of the anchor is there when its kernel ends. */
    for (int32_t i = 1; i < program->n_in; i++)
        *out_added =
            *out_added &&
            hl_graph_producer(graph, hl_graph_viewed(graph, s->emitter.in[i])) != a->anchor;
    for (int32_t i = 1; i < program->n_in && *out_added; i++) {
        hl_id *in = &a->in[a->n_in++];
        *in = s->emitter.in[i];
        if (hl_shape_numel(hl_graph_shape(graph, *in)) == hl_shape_numel(&program->shape))
            HL_TRY(hl_build_reshape(graph, *in, &program->shape, in));
    }
    return HL_OK;
}

static bool copy_operands(const hl_node *node, attempt *a)
{
    if (node->n_in > HL_ANCHOR_INS) return false;
    memcpy(a->in, node->in, (size_t)node->n_in * sizeof *a->in);
    a->n_in = node->n_in;
    return true;
}

/* Fills in the epilogue that gives these values; false: there is no such program. */
static hl_status make_epilogue(epilogue_state *s, const hl_id *values, int n, attempt *a,
                               bool *out_made)
{
    hl_graph *graph = s->graph;
    hl_node anchor = graph->nodes[a->anchor];
    hl_shape shape = *hl_graph_shape(graph, anchor.out);
    uint8_t reg;
    bool is_rounded_once = true;
    s->rounds_to = hl_graph_dtype(graph, anchor.out);
    s->has_dropped = false;
    s->place = anchor;
    hl_emit_begin(&s->emitter, graph, &shape);
    hl_status status = hl_emit_load(&s->emitter, anchor.out, &reg);
    for (int j = 0; j < n && status == HL_OK; j++) {
        status = emit_value(s, values[j], anchor.out, &reg);
        if (status == HL_OK) status = hl_emit_output(&s->emitter, reg, HL_PW_FULL);
        a->types[j] = (hl_type){hl_graph_dtype(graph, values[j]), shape};
        is_rounded_once = is_rounded_once && a->types[j].dtype == s->rounds_to;
    }
    s->rounds_to = HL_DTYPE_COUNT;
    *out_made =
        status == HL_OK && (is_rounded_once || !s->has_dropped) && copy_operands(&anchor, a);
    if (!*out_made) return status == HL_OK || s->emitter.is_refused ? HL_OK : status;
    a->fusion = (hl_fusion){.epilogue = &s->emitter.program};
    return add_operands(s, a, out_made);
}

/* The anchor gives these values itself, in the places of the old ones and before its other
 * results. */
static hl_status try_epilogue(epilogue_state *s, hl_node_id anchor, const hl_id *values,
                              const hl_id *old, int n, attempt *a, bool *out_taken)
{
    *a = (attempt){.anchor = anchor};
    const hl_node node = s->graph->nodes[anchor];
    hl_graph_stand_by(s->graph, &node);
    HL_TRY(make_epilogue(s, values, n, a, out_taken));
    *out_taken = *out_taken && n + node.n_out - 1 <= HL_PROGRAM_OUTS;
    if (!*out_taken) return HL_OK;
    for (int j = 0; j < n; j++) a->old[a->n_out++] = old[j];
    for (int32_t j = 1; j < node.n_out; j++) a->old[a->n_out++] = node.out + j;
    return try_attempt(s, a, out_taken);
}

/* ---- where anchors are ----------------------------------------------------------------------- */

static hl_status begin_sweep(epilogue_state *s)
{
    s->n_used = s->graph->n_values;
    s->n_listed = s->graph->n_nodes;
    s->n_added = 0;
    HL_TRY(hl_alloc_zero((size_t)s->graph->n_nodes + 1, (void **)&s->replaced));
    HL_TRY(hl_alloc(((size_t)s->n_used + 1) * sizeof *s->last_added, (void **)&s->last_added));
    for (int64_t v = 0; v < s->n_used; v++) s->last_added[v] = HL_NONE;
    return hl_uses_init(s->graph, &s->uses);
}

static void end_sweep(epilogue_state *s)
{
    hl_uses_deinit(&s->uses);
    hl_free(s->replaced);
    hl_free(s->last_added);
    s->replaced = NULL;
    s->last_added = NULL;
}

/* May this node still become one with programs? */
static bool is_open(const epilogue_state *s, hl_node_id id)
{
    const hl_node *node = &s->graph->nodes[id];
    const hl_kernel *const *list = s->device->ops->kernels(s->device, node->op);
    if (s->replaced[id] || hl_node_is_anchor(node)) return false;
    for (; list && *list; list++)
        if ((*list)->fusions) return true;
    return false;
}

static hl_node_id find_only_user(const epilogue_state *s, hl_id value)
{
    if (value >= s->n_used) return HL_NONE;
    if (s->uses.kept[value] || hl_uses_count(&s->uses, value) != 1) return HL_NONE;
    return s->uses.list[s->uses.start[value]];
}

/* A node's first result; where a reshape alone reads that, the reshape's. */
static hl_id find_result(const epilogue_state *s, hl_node_id anchor)
{
    hl_id x = s->graph->nodes[anchor].out;
    hl_node_id user = find_only_user(s, x);
    bool is_reshaped = user != HL_NONE && s->graph->nodes[user].op == HL_OP_RESHAPE;
    return is_reshaped ? s->graph->nodes[user].out : x;
}

/* The anchor, without programs so far, that makes this value for one reader alone; a reshape that
 * alone reads it may be in between. */
static hl_node_id find_anchor(const epilogue_state *s, hl_id value, hl_node_id reader)
{
    const hl_graph *graph = s->graph;
    if (find_only_user(s, value) != reader) return HL_NONE;
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker != HL_NONE && graph->nodes[maker].op == HL_OP_RESHAPE)
        maker = hl_graph_producer(graph, graph->nodes[maker].in[0]);
    if (maker == HL_NONE || !is_open(s, maker)) return HL_NONE;
    return find_result(s, maker) == value ? maker : (hl_node_id)HL_NONE;
}

/* ---- activations and their gradients --------------------------------------------------------- */

typedef struct activation {
    hl_op op, gradient; /* gradient: of dy and of the operand, or of the result */
    bool by_result;     /* and then of a mask, result > 0, in its place */
} activation;
static const activation activations[] = {{HL_OP_RELU, HL_OP_RELU_GRAD, true},
                                         {HL_OP_GELU, HL_OP_GELU_GRAD, false}};

static const activation *find_activation(hl_op op)
{
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (activations[i].op == op) return &activations[i];
    return NULL;
}

/* Gradients whose dy an anchor makes for them alone; `of`: their other operand. */
static int find_gradients(const epilogue_state *s, hl_op op, hl_id of, hl_node_id *out_gradients)
{
    int n = 0;
    for (int32_t u = s->uses.start[of]; u < s->uses.start[of + 1] && n < MAX_GRADIENTS; u++) {
        hl_node_id id = s->uses.list[u];
        const hl_node *node = &s->graph->nodes[id];
        if (node->op != op || node->in[1] != of || node->in[0] == of) continue;
        if (find_anchor(s, node->in[0], id) != HL_NONE) out_gradients[n++] = id;
    }
    return n;
}

/* What the gradient becomes where relu's result is known by a mask alone. */
static hl_status build_masked(epilogue_state *s, const hl_node *gradient, hl_id mask,
                              hl_id *out_value)
{
    hl_graph *graph = s->graph;
    hl_id dy = gradient->in[0], zero;
    hl_graph_stand_by(graph, gradient);
    HL_TRY(hl_graph_number(graph, hl_graph_dtype(graph, dy), 0, &zero));
    return hl_graph_add(graph, HL_OP_WHERE, (hl_id[]){mask, dy, zero}, 3, NULL, out_value);
}

/* The gradients, each with the anchor that makes its dy, now that the forward anchor has saved what
 * they need. */
static hl_status fuse_gradients(epilogue_state *s, const activation *act, hl_id saved,
                                const hl_node_id *gradients, int n, int *out_n_taken)
{
    *out_n_taken = 0;
    for (int i = 0; i < n; i++) {
        const hl_node gradient = s->graph->nodes[gradients[i]];
        hl_id value = gradient.out;
        attempt a;
        bool taken;
        if (act->by_result) HL_TRY(build_masked(s, &gradient, saved, &value));
        hl_node_id anchor = find_anchor(s, gradient.in[0], gradients[i]);
        HL_TRY(try_epilogue(s, anchor, &value, &gradient.out, 1, &a, &taken));
        *out_n_taken += taken;
    }
    return HL_OK;
}

/* The activation in its forward anchor, and its gradients in theirs. */
static hl_status fuse_with_gradients(epilogue_state *s, const activation *act, hl_node_id anchor,
                                     hl_node_id node, const hl_node_id *gradients, int n,
                                     bool *out_taken)
{
    hl_graph *graph = s->graph;
    hl_id x = graph->nodes[node].in[0], y = graph->nodes[node].out, saved = x, zero;
    attempt a;
    int n_taken;
    if (act->by_result) {
        hl_graph_stand_by(graph, &graph->nodes[anchor]);
        HL_TRY(hl_graph_number(graph, hl_graph_dtype(graph, x), 0, &zero));
        HL_TRY(hl_build_binary(graph, HL_OP_GT, x, zero, &saved));
    }
    HL_TRY(try_epilogue(s, anchor, (hl_id[]){y, saved}, (hl_id[]){y, saved}, 2, &a, out_taken));
    if (!*out_taken) return HL_OK;
    HL_TRY(fuse_gradients(s, act, a.swaps[1].now, gradients, n, &n_taken));
    *out_taken = n_taken > 0;
    if (!n_taken) undo(s, &a);
    return HL_OK;
}

/* The activation that reads the anchor's result x, and nobody else but its gradients where those
 * read x too. */
static hl_status fuse_activation(epilogue_state *s, hl_node_id anchor, hl_id x, bool *out_taken)
{
    const hl_graph *graph = s->graph;
    hl_node_id gradients[MAX_GRADIENTS];
    *out_taken = false;
    if (x >= s->n_used || s->uses.kept[x]) return HL_OK;
    for (int32_t u = s->uses.start[x]; u < s->uses.start[x + 1]; u++) {
        hl_node_id id = s->uses.list[u];
        const activation *act = find_activation(graph->nodes[id].op);
        if (!act || (act->by_result && find_only_user(s, x) != id)) continue;
        hl_id of = act->by_result ? graph->nodes[id].out : x;
        int n = find_gradients(s, act->gradient, of, gradients);
        return n ? fuse_with_gradients(s, act, anchor, id, gradients, n, out_taken) : HL_OK;
    }
    return HL_OK;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* Nodes that read the anchor's result one after another, each alone: as many as one kernel takes.
 */
static hl_status fuse_chain(epilogue_state *s, hl_node_id anchor, hl_id x)
{
    hl_id ends[MAX_CHAIN], value = x;
    int n = 0;
    bool taken = false;
    for (; n < MAX_CHAIN; n++) {
        hl_node_id user = find_only_user(s, value);
        if (user == HL_NONE || hl_pw_of_op(s->graph->nodes[user].op) == HL_PW_COUNT) break;
        if (s->replaced[user]) break; /* it went with its other operand's anchor */
        const hl_node *node = &s->graph->nodes[user];
        if (!hl_shape_equal(hl_graph_shape(s->graph, node->out), hl_graph_shape(s->graph, x)))
            break;
        ends[n] = value = node->out;
    }
    for (; n > 0 && !taken; n--) {
        attempt a;
        HL_TRY(try_epilogue(s, anchor, &ends[n - 1], &ends[n - 1], 1, &a, &taken));
        for (int i = 0; i < n && taken; i++)
            s->replaced[hl_graph_producer(s->graph, ends[i])] = true;
    }
    return HL_OK;
}

/* ---- chains before an operand ---------------------------------------------------------------- */

/* The operand of a pointwise node that a chain goes on to: the first in full that memory holds. */
static hl_id find_base(const hl_graph *graph, const hl_node *node)
{
    for (int32_t i = 0; i < node->n_in; i++) {
        hl_node_id maker = hl_graph_producer(graph, node->in[i]);
        bool is_drawn = maker != HL_NONE && is_generator(&graph->nodes[maker]);
        if (!is_drawn &&
            hl_shape_equal(hl_graph_shape(graph, node->in[i]), hl_graph_shape(graph, node->out)))
            return node->in[i];
    }
    return HL_NONE;
}

/* Lists values from which a chain of pointwise nodes, each read by the next alone, computes operand
 * k: the chain to the first one has one node, the chain to each further one another. */
static int find_bases(const epilogue_state *s, hl_node_id anchor, int32_t k, hl_id *out_bases)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[anchor];
    hl_id value = node->in[k];
    hl_node_id reader = anchor;
    int n = 0;
    while (n < MAX_CHAIN) {
        hl_node_id maker = hl_graph_producer(graph, value);
        if (maker == HL_NONE || find_only_user(s, value) != reader) break;
        const hl_node *made = &graph->nodes[maker];
        if (hl_pw_of_op(made->op) == HL_PW_COUNT || is_generator(made)) break;
        value = find_base(graph, made);
        if (value == HL_NONE) break;
        reader = maker;
        out_bases[n++] = value;
    }
    return n;
}

static hl_status try_prologue(epilogue_state *s, hl_node_id anchor, int32_t k, hl_id base,
                              bool *out_taken)
{
    hl_graph *graph = s->graph;
    const hl_node node = graph->nodes[anchor];
    hl_id operand = node.in[k];
    attempt a = {.anchor = anchor};
    uint8_t reg;
    *out_taken = false;
    if (hl_graph_dtype(graph, base) != hl_graph_dtype(graph, operand)) return HL_OK;
    if (!copy_operands(&node, &a)) return HL_OK;
    hl_graph_stand_by(graph, &node);
    s->place = node;
    s->rounds_to = hl_graph_dtype(graph, operand);
    hl_emit_begin(&s->emitter, graph, hl_graph_shape(graph, operand));
    hl_status status = hl_emit_load(&s->emitter, base, &reg);
    if (status == HL_OK) status = emit_value(s, operand, base, &reg);
    if (status == HL_OK) status = hl_emit_output(&s->emitter, reg, HL_PW_FULL);
    s->rounds_to = HL_DTYPE_COUNT;
    if (status != HL_OK) return s->emitter.is_refused ? HL_OK : status;
    a.in[k] = base;
    a.fusion.prologue[k] = &s->emitter.program;
    HL_TRY(add_operands(s, &a, out_taken));
    if (!*out_taken || node.n_out > HL_PROGRAM_OUTS) return HL_OK;
    for (int32_t j = 0; j < node.n_out; j++) a.old[a.n_out++] = node.out + j;
    return try_attempt(s, &a, out_taken);
}

/* As many nodes before one of the operands as one kernel takes. */
static hl_status fuse_operands(epilogue_state *s, hl_node_id anchor)
{
    for (int32_t k = 0; k < HL_PROLOGUES && k < s->graph->nodes[anchor].n_in; k++) {
        hl_id bases[MAX_CHAIN];
        bool taken = false;
        for (int n = find_bases(s, anchor, k, bases); n > 0 && !taken; n--)
            HL_TRY(try_prologue(s, anchor, k, bases[n - 1], &taken));
        if (taken) return HL_OK;
    }
    return HL_OK;
}

/* ---- sums over rows -------------------------------------------------------------------------- */

/* What a value is but for its shape, and for being widened. */
static hl_id find_origin(const hl_graph *graph, hl_id value)
{
    for (;;) {
        value = hl_rewrite_narrow(graph, value);
        hl_node_id maker = hl_graph_producer(graph, value);
        if (maker == HL_NONE || !(hl_op_get(graph->nodes[maker].op)->flags & HL_OP_VIEW))
            return value;
        value = graph->nodes[maker].in[0];
    }
}

/* Does a node work along all dims but the last? */
static bool goes_over_rows(const hl_graph *graph, const hl_node *node)
{
    int32_t n = hl_graph_shape(graph, node->in[0])->rank - 1;
    hl_ints axes = hl_node_axes(node);
    if (n < 1 || axes.n != n) return false;
    for (int32_t d = 0; d < n; d++)
        if (axes.at[d] != d) return false;
    return true;
}

/* A float32 sum over all dims but the last. */
static bool is_sum_of_rows(const hl_graph *graph, const hl_node *node)
{
    return hl_op_is_sum(node->op) && hl_graph_dtype(graph, node->out) == HL_DTYPE_F32 &&
           goes_over_rows(graph, node);
}

/* out_sums: for each value the node that sums it over its rows, or HL_NONE. */
static hl_status list_sums(const hl_graph *graph, hl_node_id **out_sums)
{
    HL_TRY(hl_alloc((size_t)graph->n_values * sizeof **out_sums, (void **)out_sums));
    for (int64_t v = 0; v < graph->n_values; v++) (*out_sums)[v] = HL_NONE;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (is_sum_of_rows(graph, node))
            (*out_sums)[find_origin(graph, node->in[0])] = (hl_node_id)i;
    }
    return HL_OK;
}

/* Nothing that stands before the anchor reads the sum, so it may be made there. */
static bool may_wait(const epilogue_state *s, hl_node_id sum, hl_node_id anchor)
{
    hl_id value = s->graph->nodes[sum].out;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
        if (s->uses.list[u] < anchor) return false;
    return s->graph->nodes[sum].segment == s->graph->nodes[anchor].segment;
}

/* The sum over the rows of an operand (0 or 1) that could stand with this node, or HL_NONE. */
static hl_node_id find_sum(const epilogue_state *s, const hl_node_id *sums, hl_node_id id,
                           int operand)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[id];
    hl_id origin = find_origin(graph, node->in[operand]);
    if (origin >= s->n_used) return HL_NONE;
    hl_node_id sum = sums[origin], maker = hl_graph_producer(graph, origin);
    if (sum == HL_NONE || !may_wait(s, sum, id)) return HL_NONE;
    if (maker != HL_NONE && hl_op_get(graph->nodes[maker].op)->flags & HL_OP_POINTWISE)
        return HL_NONE;
    const hl_shape *matrix = hl_graph_shape(graph, node->in[operand]),
                   *summed = hl_graph_shape(graph, graph->nodes[sum].in[0]);
    bool is_same = matrix->rank == 2 && matrix->dim[1] == summed->dim[summed->rank - 1] &&
                   hl_shape_numel(matrix) == hl_shape_numel(summed);
    return is_same ? sum : (hl_node_id)HL_NONE;
}

/* The sums of an operand's rows with the anchor that reads it: a prologue that changes nothing. */
static hl_status fuse_operand_sum(epilogue_state *s, hl_node_id *sums, hl_node_id anchor)
{
    const hl_graph *graph = s->graph;
    bool taken = false;
    for (int k = 0; k < HL_PROLOGUES && k < graph->nodes[anchor].n_in && !taken; k++) {
        const hl_node *node = &graph->nodes[anchor];
        hl_node_id sum = find_sum(s, sums, anchor, k);
        hl_id origin = find_origin(graph, node->in[k]);
        uint8_t reg;
        attempt a = {.anchor = anchor, .n_out = 2};
        if (sum == HL_NONE || node->n_out != 1 || !copy_operands(node, &a)) continue;
        const hl_shape *shape = hl_graph_shape(graph, node->in[k]);
        hl_emit_begin(&s->emitter, graph, shape);
        hl_program_splits_set(&s->emitter.program, (int32_t[]){shape->rank - 1}, 1);
        HL_TRY(hl_emit_load(&s->emitter, node->in[k], &reg));
        HL_TRY(hl_emit_output(&s->emitter, reg, HL_PW_FULL));
        HL_TRY(hl_emit_output(&s->emitter, reg, HL_PW_SUM_ROWS));
        a.fusion.prologue[k] = &s->emitter.program;
        a.types[0] = graph->values[graph->nodes[sum].out].type;
        a.old[0] = node->out, a.old[1] = graph->nodes[sum].out;
        HL_TRY(try_attempt(s, &a, &taken));
        if (taken) sums[origin] = HL_NONE;
    }
    return HL_OK;
}

/* A sum that found no place there: with the anchor whose epilogue makes the matrix. */
static hl_status fuse_own_sum(epilogue_state *s, hl_node_id *sums, hl_node_id anchor)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[anchor];
    hl_program *program = &s->emitter.program;
    bool taken;
    if (!hl_node_epilogue(node) || node->program->n_out != 1 || node->n_out != 1) return HL_OK;
    hl_node_id sum = sums[node->out];
    if (sum == HL_NONE || graph->nodes[sum].segment != node->segment) return HL_OK;
    const hl_shape *matrix = hl_graph_shape(graph, node->out),
                   *summed = hl_graph_shape(graph, graph->nodes[sum].in[0]);
    if (matrix->dim[matrix->rank - 1] != summed->dim[summed->rank - 1]) return HL_OK;
    attempt a = {.anchor = anchor, .fusion = {.epilogue = program}, .n_out = 2};
    if (!copy_operands(node, &a)) return HL_OK;
    s->emitter.program = *node->program;
    hl_program_splits_set(program, (int32_t[]){matrix->rank - 1}, 1);
    HL_TRY(hl_emit_output(&s->emitter, program->out[0].reg, HL_PW_SUM_ROWS));
    a.types[0] = graph->values[node->out].type;
    a.types[1] = graph->values[graph->nodes[sum].out].type;
    a.old[0] = node->out, a.old[1] = graph->nodes[sum].out;
    return try_attempt(s, &a, &taken);
}

/* ---- moments over rows ----------------------------------------------------------------------- */

/* Does the node make mean and variance of its first operand over its rows? */
static bool makes_moments(const hl_graph *graph, const hl_node *node)
{
    if (node->op == HL_OP_MOMENTS) return goes_over_rows(graph, node);
    return node->op == HL_OP_BATCH_NORM && !hl_node_is_anchor(node) &&
           (node->attrs.batch_norm.channels_last || hl_graph_shape(graph, node->in[0])->rank == 2);
}

/* What makes moments of the anchor's result and stands where the anchor may, or HL_NONE. */
static hl_node_id find_moments(const epilogue_state *s, hl_node_id anchor)
{
    const hl_graph *graph = s->graph;
    hl_id x = graph->nodes[anchor].out;
    if (x >= s->n_used) return HL_NONE;
    for (int32_t u = s->uses.start[x]; u < s->uses.start[x + 1]; u++) {
        hl_node_id id = s->uses.list[u];
        const hl_node *node = &graph->nodes[id];
        if (node->in[0] == x && node->segment == graph->nodes[anchor].segment &&
            node->fence == graph->nodes[anchor].fence && makes_moments(graph, node))
            return id;
    }
    return HL_NONE;
}

/* The first result of a batch norm whose statistics the anchor makes. */
static hl_status put_normalized(epilogue_state *s, hl_node_id norm, const attempt *a)
{
    value_swap swap;
    hl_id y;
    hl_graph_stand_by(s->graph, &s->graph->nodes[norm]);
    HL_TRY(
        hl_build_normalized(s->graph, norm, a->swaps[0].now, a->swaps[1].now, a->swaps[2].now, &y));
    s->replaced[norm] = true;
    return put_value(s, s->graph->nodes[norm].out, y, &swap);
}

/* Mean and variance of the anchor's result, which others read too. */
static hl_status fuse_moments(epilogue_state *s, hl_node_id anchor)
{
    static const hl_pw_statistic statistics[] = {HL_PW_MEAN, HL_PW_VARIANCE};
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[anchor];
    hl_program *program = &s->emitter.program;
    hl_node_id id = find_moments(s, anchor);
    attempt a = {.anchor = anchor, .fusion = {.epilogue = program}, .n_out = 3};
    bool taken;
    uint8_t reg;
    if (id == HL_NONE || node->n_out != 1 || !copy_operands(node, &a)) return HL_OK;
    const hl_shape *shape = hl_graph_shape(graph, node->out);
    bool is_norm = graph->nodes[id].op == HL_OP_BATCH_NORM;
    hl_emit_begin(&s->emitter, graph, shape);
    hl_program_splits_set(program, (int32_t[]){shape->rank - 1}, 1);
    HL_TRY(hl_emit_load(&s->emitter, node->out, &reg));
    HL_TRY(hl_emit_output(&s->emitter, reg, HL_PW_FULL));
    a.types[0] = graph->values[node->out].type;
    a.old[0] = node->out;
    for (int j = 0; j < 2; j++) {
        HL_TRY(hl_emit_output(&s->emitter, reg, HL_PW_SUM_ROWS));
        program->out[1 + j].statistic = (uint8_t)statistics[j];
        a.old[1 + j] = graph->nodes[id].out + is_norm + j;
        a.types[1 + j] = graph->values[a.old[1 + j]].type;
    }
    HL_TRY(try_attempt(s, &a, &taken));
    return taken && is_norm ? put_normalized(s, id, &a) : HL_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status fuse_statistics(epilogue_state *s)
{
    int64_t n = s->graph->n_nodes;
    hl_status status;
    HL_GOTO(begin_sweep(s));
    for (int64_t i = 0; i < n; i++)
        if (is_open(s, (hl_node_id)i)) HL_GOTO(fuse_moments(s, (hl_node_id)i));
    HL_GOTO(hl_rewrite_sort(s->graph));
cleanup:
    end_sweep(s);
    return status;
}

static hl_status fuse_results(epilogue_state *s)
{
    int64_t n = s->graph->n_nodes;
    hl_status status;
    HL_GOTO(begin_sweep(s));
    for (int64_t i = 0; i < n; i++) {
        hl_node_id anchor = (hl_node_id)i;
        bool taken;
        if (!is_open(s, anchor)) continue;
        hl_id x = find_result(s, anchor);
        HL_GOTO(fuse_activation(s, anchor, x, &taken));
        if (!taken) HL_GOTO(fuse_chain(s, anchor, x));
        if (is_open(s, anchor)) HL_GOTO(fuse_operands(s, anchor));
    }
    HL_GOTO(hl_rewrite_sort(s->graph));
cleanup:
    end_sweep(s);
    return status;
}

static hl_status fuse_sums(epilogue_state *s)
{
    int64_t n = s->graph->n_nodes;
    hl_node_id *sums = NULL;
    hl_status status;
    HL_GOTO(begin_sweep(s));
    HL_GOTO(list_sums(s->graph, &sums));
    for (int64_t i = 0; i < n; i++)
        if (is_open(s, (hl_node_id)i)) HL_GOTO(fuse_operand_sum(s, sums, (hl_node_id)i));
    for (int64_t i = 0; i < n; i++) HL_GOTO(fuse_own_sum(s, sums, (hl_node_id)i));
    HL_GOTO(hl_rewrite_sort(s->graph));
cleanup:
    hl_free(sums);
    end_sweep(s);
    return status;
}

hl_status hl_pass_epilogue(hl_graph *graph, hl_device *device, bool deterministic)
{
    epilogue_state s = {.graph = graph,
                        .device = device,
                        .deterministic = deterministic,
                        .rounds_to = HL_DTYPE_COUNT};
    hl_status status = fuse_statistics(&s);
    if (status == HL_OK) status = fuse_results(&s);
    if (status == HL_OK) status = fuse_sums(&s);
    hl_free(s.added_uses);
    return status;
}
