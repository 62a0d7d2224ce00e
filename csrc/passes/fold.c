/* Folding: a factor or a shift per channel behind a product goes into its weight and its bias.
 *
 * A product's result is linear in its weight (op table, column `channels`): w x * s = (w s) x, and
 * a shift is a bias. Where weight, bias and what they meet are the same in all steps of a run, the
 * new ones are made once, in BEGIN: so a batch norm with its running statistics, a scale per
 * channel or a plain number costs nothing. Results differ by the rounding of the weights.
 *
 * A graph that changes a parameter or a statistic folds nothing that comes of it. A training step
 * is such a graph: there the weight times the factor would be computed in each step, and what is
 * trained would be another function of the parameters in its last bits. Nor is anything folded
 * where somebody else reads the product's result. */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

typedef struct fold_state {
    hl_graph *graph;
    hl_uses uses;     /* as they were when the pass began, */
    int64_t n_values; /* of so many values */
    hl_id *map;       /* of hl_rewrite_replace */
    bool *is_fixed;   /* by value: the same in all steps of a run */
} fold_state;

/* ---- what does not change -------------------------------------------------------------------- */

static hl_status find_fixed(fold_state *s)
{
    const hl_graph *graph = s->graph;
    uint8_t *changed;
    HL_TRY(hl_alloc_zero((size_t)s->n_values + 1, (void **)&s->is_fixed));
    HL_TRY(hl_rewrite_changed_stores(graph, &changed));
    for (int64_t v = 0; v < s->n_values; v++)
        s->is_fixed[v] =
            hl_rewrite_is_fixed(hl_graph_value(graph, (hl_id)v), changed, HL_SEGMENT_APPLY);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        bool fixed = !(hl_op_get(node->op)->flags & (HL_OP_UPDATES | HL_OP_RANDOM));
        for (int32_t j = 0; j < node->n_in; j++) fixed = fixed && s->is_fixed[node->in[j]];
        for (int32_t j = 0; j < node->n_out; j++) s->is_fixed[node->out + j] = fixed;
    }
    hl_free(changed);
    return HL_OK;
}

/* ---- factors and shifts ---------------------------------------------------------------------- */

/* What an op does to a weight and to a bias: itself, with the same second operand, or nothing. */
typedef struct fold_rule {
    hl_op op;
    bool changes_weight, is_symmetric;
} fold_rule;
static const fold_rule rules[] = {{HL_OP_MUL, true, true},
                                  {HL_OP_DIV, true, false},
                                  {HL_OP_ADD, false, true},
                                  {HL_OP_SUB, false, false}};

static const fold_rule *find_rule(hl_op op)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].op == op) return &rules[i];
    return NULL;
}

/* Has it one value for each of `channels` of a dim of the result, or one for all? */
static bool is_per_channel(const hl_shape *shape, const hl_shape *result, int dim)
{
    int missing = result->rank - shape->rank;
    for (int d = 0; d < shape->rank; d++)
        if (shape->dim[d] != 1 && d + missing != dim) return false;
    return missing >= 0;
}

/* The product whose result is operand k, which nobody else reads; NULL: there is none, or its
 * weight or its bias changes. */
static const hl_node *find_product(const fold_state *s, const hl_node *node, int k,
                                   int *out_result_dim, int *out_weight_dim)
{
    const hl_graph *graph = s->graph;
    hl_id value = node->in[k];
    if (hl_uses_count(&s->uses, value) != 1 || s->uses.kept[value]) return NULL;
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker == HL_NONE) return NULL;
    const hl_node *first = &graph->nodes[maker]; /* what was folded already stands for it */
    const hl_node *product = &graph->nodes[hl_graph_producer(graph, s->map[value])];
    const hl_op_info *op = hl_op_get(product->op);
    if (product->segment != node->segment || product->fence != node->fence) return NULL;
    if (!op->channels || !op->channels(graph, product, out_result_dim, out_weight_dim)) return NULL;
    bool is_fixed = product != first;
    if (!is_fixed)
        is_fixed = s->is_fixed[first->in[1]] && (first->n_in < 3 || s->is_fixed[first->in[2]]);
    return is_fixed ? product : NULL;
}

/* A value per channel in a shape whose dim `dim` are the channels. */
static hl_status build_spread(hl_graph *graph, hl_id value, int rank, int dim, hl_id *out_id)
{
    hl_shape shape = {.rank = rank};
    for (int d = 0; d < rank; d++) shape.dim[d] = 1;
    shape.dim[dim] = hl_shape_numel(hl_graph_shape(graph, value));
    return hl_build_reshape(graph, value, &shape, out_id);
}

/* The bias with the rule's op; without one it is 0. */
static hl_status fold_bias(hl_graph *graph, const fold_rule *rule, hl_id bias, int64_t channels,
                           hl_id by, hl_id *out_id)
{
    hl_shape shape = hl_shape_1d(channels);
    if (bias == HL_NONE) HL_TRY(hl_build_number_like(graph, by, 0, &bias));
    HL_TRY(build_spread(graph, by, 1, 0, &by));
    HL_TRY(hl_build_binary(graph, rule->op, bias, by, out_id));
    return hl_build_expand(graph, *out_id, &shape, out_id);
}

/* The product with the rule's op, of this second operand, in its weight and bias. */
static hl_status fold(fold_state *s, const fold_rule *rule, const hl_node *product, int weight_dim,
                      int64_t channels, hl_id by, hl_id *out_id)
{
    hl_graph *graph = s->graph;
    const hl_node old = *product;
    hl_id in[3] = {old.in[0], old.in[1], old.n_in == 3 ? old.in[2] : HL_NONE}, spread;
    int rank = hl_graph_shape(graph, in[1])->rank;
    hl_graph_stand_by(graph, &old);
    if (in[2] != HL_NONE || !rule->changes_weight)
        HL_TRY(fold_bias(graph, rule, in[2], channels, by, &in[2]));
    if (rule->changes_weight) {
        HL_TRY(build_spread(graph, by, rank, weight_dim, &spread));
        HL_TRY(hl_build_binary(graph, rule->op, in[1], spread, &in[1]));
    }
    return hl_graph_add(graph, old.op, in, in[2] == HL_NONE ? 2 : 3, &old.attrs, out_id);
}

static hl_status fold_node(fold_state *s, hl_node_id id)
{
    const hl_graph *graph = s->graph;
    const hl_node node = graph->nodes[id];
    const fold_rule *rule = find_rule(node.op);
    for (int k = 0; rule && k < (rule->is_symmetric ? 2 : 1); k++) {
        int result_dim, weight_dim;
        hl_id by = node.in[1 - k];
        if (!s->is_fixed[by]) continue;
        const hl_node *product = find_product(s, &node, k, &result_dim, &weight_dim);
        if (!product) continue;
        const hl_type *result = hl_node_out_type(graph, product, 0);
        if (!hl_type_equal(result, hl_node_out_type(graph, &node, 0)) ||
            hl_graph_dtype(graph, by) != result->dtype ||
            hl_node_in_type(graph, product, 1)->dtype != result->dtype ||
            !is_per_channel(hl_graph_shape(graph, by), &result->shape, result_dim))
            continue;
        return fold(s, rule, product, weight_dim, result->shape.dim[result_dim], by,
                    &s->map[node.out]);
    }
    return HL_OK;
}

hl_status hl_pass_fold(hl_graph *graph)
{
    fold_state s = {.graph = graph, .n_values = graph->n_values};
    int64_t n_nodes = graph->n_nodes;
    hl_status status;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(find_fixed(&s));
    for (int64_t i = 0; i < n_nodes; i++) HL_GOTO(fold_node(&s, (hl_node_id)i));
    hl_rewrite_replace(graph, s.map, s.n_values);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.is_fixed);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
