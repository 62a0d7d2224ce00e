/* Autodiff: reverse accumulation over the ops' own rules (hl_op_info.vjp).
 *
 * First, forward: which values depend on a wrt in a differentiable way. Then, backward from the
 * loss: each node whose outputs have a gradient adds its operands' shares. A value used several
 * times has its shares added in the reverse order of use, so the sum is the same in every run.
 * Shares that are 0 but for a part of the value, as of slices, wait until another share comes or
 * the sum is asked for, and are added together: a loop over the parts of a value costs what the
 * value does, not as many times that as there are parts. Gradient nodes carry the scope of the node
 * they are the gradient of, and the name of its op, so that a message or a profile names both. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ir/op.h"
#include "ops/build.h"
#include "ops/parts.h"

/* A share that waits, and the next one. */
typedef struct diff_part {
    hl_part part;
    int64_t next; /* HL_NONE: the last */
} diff_part;

/* The waiting shares of one value, in the order in which they were added. */
typedef struct diff_wait {
    int64_t first, last, n;
} diff_wait;

typedef struct diff_state {
    hl_graph *graph;
    int64_t n_values; /* of the forward part */
    int64_t n_nodes;
    bool *depends;    /* on a wrt, by value */
    hl_id *grads;     /* by value */
    diff_wait *waits; /* by value: what is not in its gradient yet */
    diff_part *parts;
    int64_t n_parts, cap_parts;
    bool *need; /* by operand of the node at hand */
    hl_id *din;
} diff_state;

static void free_state(diff_state *state)
{
    hl_free(state->depends);
    hl_free(state->grads);
    hl_free(state->waits);
    hl_free(state->parts);
    hl_free(state->need);
    hl_free(state->din);
}

static hl_status alloc_array(int64_t n, size_t element_bytes, void **out_ptr)
{
    size_t bytes;
    *out_ptr = NULL;
    if (!hl_mul_size((size_t)n, element_bytes, &bytes)) bytes = SIZE_MAX;
    return hl_alloc_zero(bytes, out_ptr);
}

/* On failure the caller frees what was allocated. */
static hl_status init_state(diff_state *state)
{
    const hl_graph *graph = state->graph;
    int64_t most_in = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].n_in > most_in) most_in = graph->nodes[i].n_in;
    state->n_values = graph->n_values;
    state->n_nodes = graph->n_nodes;
    void *memory;
    HL_TRY(alloc_array(state->n_values, sizeof(bool), &memory));
    state->depends = memory;
    HL_TRY(alloc_array(state->n_values, sizeof(hl_id), &memory));
    state->grads = memory;
    HL_TRY(alloc_array(state->n_values, sizeof(diff_wait), &memory));
    state->waits = memory;
    HL_TRY(alloc_array(most_in, sizeof(bool), &memory));
    state->need = memory;
    HL_TRY(alloc_array(most_in, sizeof(hl_id), &memory));
    state->din = memory;
    for (int64_t v = 0; v < state->n_values; v++) state->grads[v] = HL_NONE;
    return HL_OK;
}

static hl_status check_wrt(const hl_graph *graph, hl_id loss, hl_id seed, const hl_id *wrt,
                           int64_t n_wrt)
{
    hl_type loss_type = hl_graph_value(graph, loss)->type;
    char text[HL_TYPE_TEXT];
    if (!hl_dtype_is_float(loss_type.dtype))
        return hl_status_set(HL_ERROR_TRACE,
                             "autodiff: the loss must be of a floating dtype, got %s",
                             hl_type_format(&loss_type, text));
    if (loss_type.shape.rank > 0)
        return hl_status_set(HL_ERROR_SHAPE, "autodiff: the loss must be one number, got %s",
                             hl_type_format(&loss_type, text));
    if (seed != HL_NONE && !hl_type_equal(&loss_type, &graph->values[seed].type))
        return hl_status_set(HL_ERROR_INTERNAL,
                             "autodiff: the seed must have the loss' type, got %s",
                             hl_type_format(&graph->values[seed].type, text));
    for (int64_t i = 0; i < n_wrt; i++)
        if (!hl_dtype_is_float(hl_graph_dtype(graph, wrt[i])))
            return hl_status_set(HL_ERROR_TRACE,
                                 "autodiff: a gradient must be asked of a floating value, got %s",
                                 hl_type_format(&graph->values[wrt[i]].type, text));
    return HL_OK;
}

void hl_autodiff_mark(const hl_graph *graph, bool *depends)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        bool reached = false;
        for (int32_t k = 0; k < node->n_in; k++) reached |= depends[node->in[k]];
        if (!reached || !hl_op_get(node->op)->vjp) continue;
        for (int32_t j = 0; j < node->n_out; j++)
            if (hl_dtype_is_float(hl_graph_dtype(graph, node->out + j)))
                depends[node->out + j] = true;
    }
}

/* ---- sums of shares -------------------------------------------------------------------------- */

static hl_status add_waiting(diff_state *state, hl_id value)
{
    diff_wait *wait = &state->waits[value];
    hl_part *parts;
    int64_t n = 0;
    if (!wait->n) return HL_OK;
    HL_TRY(hl_alloc((size_t)wait->n * sizeof *parts, (void **)&parts));
    for (int64_t i = wait->first; n < wait->n; i = state->parts[i].next)
        parts[n++] = state->parts[i].part;
    *wait = (diff_wait){0};
    hl_status status = hl_build_add_parts(state->graph, parts, n, &state->grads[value]);
    hl_free(parts);
    return status;
}

static hl_status add_share(diff_state *state, hl_id value, hl_id share)
{
    diff_wait *wait = &state->waits[value];
    diff_part added = {.next = HL_NONE};
    if (!hl_part_find(state->graph, share, &added.part)) {
        HL_TRY(add_waiting(state, value));
        return hl_build_accumulate(state->graph, share, &state->grads[value]);
    }
    HL_TRY(hl_alloc_grow((void **)&state->parts, &state->cap_parts, state->n_parts + 1,
                         sizeof *state->parts));
    state->parts[state->n_parts] = added;
    if (wait->n++)
        state->parts[wait->last].next = state->n_parts;
    else
        wait->first = state->n_parts;
    wait->last = state->n_parts++;
    return HL_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Adds what the node's rule gave to its operands' gradients. */
static hl_status collect_grads(diff_state *state, const hl_node *node)
{
    hl_graph *graph = state->graph;
    for (int32_t k = 0; k < node->n_in; k++) {
        hl_id operand = node->in[k], grad = state->din[k];
        if (!state->need[k] || grad == HL_NONE) continue;
        hl_type want = graph->values[operand].type, got = graph->values[grad].type;
        if (!hl_type_equal(&want, &got)) {
            char want_text[HL_TYPE_TEXT], got_text[HL_TYPE_TEXT];
            return hl_status_set(HL_ERROR_INTERNAL,
                                 "%s: the gradient of operand %d must be %s, got %s",
                                 hl_op_get(node->op)->name, k, hl_type_format(&want, want_text),
                                 hl_type_format(&got, got_text));
        }
        HL_TRY(add_share(state, operand, grad));
    }
    return HL_OK;
}

static hl_status diff_node(diff_state *state, hl_node_id id)
{
    hl_graph *graph = state->graph;
    hl_node node = graph->nodes[id];
    const hl_op_info *info = hl_op_get(node.op);
    const hl_id *dout = &state->grads[node.out];
    bool reached = false, needed = false;
    graph->scope = node.scope;
    graph->gradient_of = info->name;
    for (int32_t j = 0; j < node.n_out; j++) {
        HL_TRY(add_waiting(state, node.out + j));
        reached |= dout[j] != HL_NONE && state->depends[node.out + j];
    }
    if (!reached || !info->vjp) return HL_OK;
    for (int32_t k = 0; k < node.n_in; k++) {
        state->need[k] = state->depends[node.in[k]];
        state->din[k] = HL_NONE;
        needed |= state->need[k];
    }
    if (!needed) return HL_OK;
    HL_TRY(info->vjp(graph, id, dout, state->need, state->din));
    return collect_grads(state, &node);
}

hl_status hl_pass_autodiff(hl_graph *graph, hl_id loss, hl_id seed, const hl_id *wrt, int64_t n_wrt,
                           hl_id *out_grads)
{
    for (int64_t i = 0; i < n_wrt; i++) out_grads[i] = HL_NONE;
    HL_TRY(check_wrt(graph, loss, seed, wrt, n_wrt));
    const char *scope = graph->scope, *gradient_of = graph->gradient_of;
    diff_state state = {.graph = graph};
    hl_status status;
    HL_GOTO(init_state(&state));
    for (int64_t i = 0; i < n_wrt; i++) state.depends[wrt[i]] = true;
    hl_autodiff_mark(graph, state.depends);
    if (!state.depends[loss]) goto cleanup;
    if (seed == HL_NONE) HL_GOTO(hl_build_number_like(graph, loss, 1, &seed));
    state.grads[loss] = seed;
    for (int64_t i = state.n_nodes - 1; i >= 0; i--) HL_GOTO(diff_node(&state, (hl_node_id)i));
    graph->scope = scope;
    graph->gradient_of = "parameter"; /* sums of its shares */
    for (int64_t i = 0; i < n_wrt; i++) {
        HL_GOTO(add_waiting(&state, wrt[i]));
        out_grads[i] = state.grads[wrt[i]];
    }
cleanup:
    graph->scope = scope;
    graph->gradient_of = gradient_of;
    free_state(&state);
    return status;
}
