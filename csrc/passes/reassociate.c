/* Reassociation: (x A) B becomes x (A B) where that takes fewer products, forward and backward.
 *
 * Of few columns between two matrices the product of rows with each in turn is the cheap way (a
 * low-rank adapter); of a projection and a square matrix behind it, x with the product of both: it
 * has one product of all rows in place of two, so has each gradient, and what lay between them is
 * neither computed nor kept for the backward pass. Which it is follows from the sizes, and from
 * where gradients go, and so it is counted for each pair. With x of R rows, A of K x M and B of
 * M x N, a product of all rows is one with K M, M N or K N products a row; A B and its gradients
 * take K M N each, once.
 *
 * Results differ in their last bits, as those of any order of summation do: both ways have the same
 * bound of errors, |x| |A| |B| times the length of the sums. Nothing but the matrices of two
 * products is combined. A factor or a shift that stands between them, or a bias, stays where it is:
 * subtracting a mean first keeps the digits that a product with it in the matrix would lose.
 *
 * A training step alone is rewritten, before its gradients are made. Predictions have rows by the
 * call, and a row must have the same result in batches of any size. */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* Of (x A) B: what makes both products. */
typedef struct chain {
    hl_node first, second;
} chain;

/* A product of rows with one matrix. */
static bool is_of_rows(const hl_graph *graph, const hl_node *node)
{
    return node->op == HL_OP_MATMUL && !node->attrs.matmul.trans_a &&
           !node->attrs.matmul.float32_out && hl_node_in_type(graph, node, 1)->shape.rank == 2;
}

/* False: the node is not the second of two products, of which nobody else reads the first. */
static bool find_chain(const hl_graph *graph, const hl_uses *uses, hl_node_id id, chain *out_chain)
{
    const hl_node *second = &graph->nodes[id];
    if (!is_of_rows(graph, second)) return false;
    hl_node_id maker = hl_graph_producer(graph, second->in[0]);
    if (maker == HL_NONE) return false;
    const hl_node *first = &graph->nodes[maker];
    *out_chain = (chain){*first, *second};
    return is_of_rows(graph, first) && first->n_in == 2 && hl_uses_count(uses, first->out) == 1 &&
           !uses->kept[first->out] && first->segment == second->segment &&
           first->fence == second->fence && first->checkpoint == second->checkpoint;
}

/* Products of numbers in a step, as it is and as x (A B). depends: on what is trained, by value. */
static bool is_cheaper(const hl_graph *graph, const chain *c, const bool *depends)
{
    const hl_shape *shape = hl_graph_shape(graph, c->second.out);
    const hl_shape *middle = hl_graph_shape(graph, c->first.out);
    const hl_shape *x = hl_graph_shape(graph, c->first.in[0]);
    double rows = (double)hl_shape_span(shape, 0, shape->rank - 1);
    double k = (double)x->dim[x->rank - 1], m = (double)middle->dim[middle->rank - 1],
           n = (double)shape->dim[shape->rank - 1];
    bool dx = depends[c->first.in[0]], da = depends[c->first.in[1]], db = depends[c->second.in[1]];
    double as_is = rows * (k * m * (1 + dx + da) + m * n * (1 + (dx || da) + db));
    double changed = rows * k * n * (1 + dx + (da || db)) + k * m * n * (1 + da + db);
    return changed < as_is;
}

static hl_status build_changed(hl_graph *graph, const chain *c, hl_id *out_id)
{
    hl_id in[3] = {c->first.in[0], HL_NONE, c->second.n_in == 3 ? c->second.in[2] : HL_NONE};
    hl_attrs attrs = c->second.attrs;
    attrs.matmul.trans_b = false;
    hl_graph_stand_by(graph, &c->second);
    HL_TRY(hl_build_matmul(graph, c->first.in[1], c->second.in[1], c->first.attrs.matmul.trans_b,
                           c->second.attrs.matmul.trans_b, &in[1]));
    return hl_graph_add(graph, HL_OP_MATMUL, in, c->second.n_in, &attrs, out_id);
}

/* One walk over the graph. Of three products in turn, a second walk sees the third. */
static hl_status walk(hl_graph *graph, const hl_id *wrt, int64_t n_wrt, bool *out_any)
{
    int64_t n_nodes = graph->n_nodes, n_values = graph->n_values;
    hl_uses uses = {0};
    hl_id *map = NULL;
    bool *depends = NULL;
    hl_status status;
    *out_any = false;
    HL_GOTO(hl_uses_init(graph, &uses));
    HL_GOTO(hl_rewrite_map(graph, &map));
    HL_GOTO(hl_alloc_zero((size_t)n_values + 1, (void **)&depends));
    for (int64_t i = 0; i < n_wrt; i++) depends[wrt[i]] = true;
    hl_autodiff_mark(graph, depends);
    for (int64_t i = 0; i < n_nodes; i++) {
        chain c;
        if (!find_chain(graph, &uses, (hl_node_id)i, &c) || map[c.first.out] != c.first.out ||
            !is_cheaper(graph, &c, depends))
            continue;
        HL_GOTO(build_changed(graph, &c, &map[c.second.out]));
        *out_any = true;
    }
    if (!*out_any) goto cleanup;
    hl_rewrite_replace(graph, map, n_values);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(depends);
    hl_free(map);
    hl_uses_deinit(&uses);
    return status;
}

hl_status hl_pass_reassociate(hl_graph *graph, const hl_id *wrt, int64_t n_wrt)
{
    const hl_node here = {.segment = graph->segment,
                          .fence = graph->fence,
                          .scope = graph->scope,
                          .gradient_of = graph->gradient_of,
                          .checkpoint = graph->checkpoint};
    hl_status status = HL_OK;
    for (bool any = true; any && status == HL_OK;) status = walk(graph, wrt, n_wrt, &any);
    hl_graph_stand_by(graph, &here);
    return status;
}
