/* Folding: factors and shifts per channel behind a product become part of it, where they are the
 * same in all steps of a run: a batch norm with its running statistics, a scale per channel, a
 * number.
 *
 * A product's result is linear in its weight (op table, column `channels`), so all that follows it
 * is one factor and one shift for each channel: (w x + b) * s + t = (w * s) x + (b * s + t). Both
 * are made once, in BEGIN, and the shift is the product's bias. The factor goes
 *
 * - into the weight, where the device's kernels end no product by a scale: no step computes it, but
 *   each run makes a new weight, and the arena has its bytes;
 * - else behind the product, whose epilogue takes it for nothing.
 *
 * Results differ from those of the nodes one by one by the rounding of these few numbers. Which of
 * the two follows from the device alone, so that a row has the same result in batches of any size.
 *
 * A graph that changes a parameter or a statistic folds nothing that comes of it. A training step
 * is such a graph: there factor and shift would be another function of the parameters in its last
 * bits. Nor is anything folded where somebody else reads the product's result, or where weight,
 * bias and factor are not all of the result's dtype: what they give would be of another one. */
#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

/* What stands for a value: a product, then the factor and the shift (C); HL_NONE: there is none. */
typedef struct folded {
    hl_node_id product;
    int result_dim, weight_dim; /* its channels */
    hl_id scale, shift;
} folded;

typedef struct fold_state {
    hl_graph *graph;
    bool scales_columns;
    hl_uses uses;     /* as they were when the pass began, */
    int64_t n_values; /* of so many values */
    hl_id *map;       /* of hl_rewrite_replace */
    bool *is_fixed;   /* by value: the same in all steps of a run */
    folded *folded;   /* by value that was replaced */
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

/* What an op does to a factor and to a shift: itself, with the same second operand, or nothing. */
typedef struct fold_rule {
    hl_op op;
    bool scales, is_symmetric;
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

/* Has it one value for each index of this dim of the result, or one for all? */
static bool is_per_channel(const hl_shape *shape, const hl_shape *result, int dim)
{
    int missing = result->rank - shape->rank;
    for (int d = 0; d < shape->rank; d++)
        if (shape->dim[d] != 1 && d + missing != dim) return false;
    return missing >= 0;
}

/* The product that operand k is, which nobody else reads, with what was folded into it already.
 * False: it is none, or its weight or its bias changes. */
static bool find_product(const fold_state *s, const hl_node *node, int k, folded *out_product)
{
    const hl_graph *graph = s->graph;
    hl_id value = node->in[k];
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker == HL_NONE || hl_uses_count(&s->uses, value) != 1 || s->uses.kept[value])
        return false;
    bool is_first = s->map[value] == value;
    folded f = {.product = maker, .scale = HL_NONE, .shift = HL_NONE};
    if (!is_first) f = s->folded[value];
    const hl_node *product = &graph->nodes[f.product];
    const hl_op_info *op = hl_op_get(product->op);
    if (product->segment != node->segment || product->fence != node->fence) return false;
    if (is_first) {
        if (!op->channels || !op->channels(graph, product, &f.result_dim, &f.weight_dim))
            return false;
        if (product->n_in > 2) f.shift = product->in[2];
        if (!s->is_fixed[product->in[1]] || (f.shift != HL_NONE && !s->is_fixed[f.shift]))
            return false;
    }
    *out_product = f;
    return true;
}

/* a op (a value per channel), as (C). Without a: of 1 or 0, which change nothing. */
static hl_status build_factor(hl_graph *graph, const fold_rule *rule, hl_id a, int64_t channels,
                              hl_id by, hl_id *out_id)
{
    hl_shape shape = hl_shape_1d(channels),
             own = hl_shape_1d(hl_shape_numel(hl_graph_shape(graph, by)));
    HL_TRY(hl_build_reshape(graph, by, &own, &by));
    if (a == HL_NONE && (rule->op == HL_OP_MUL || rule->op == HL_OP_ADD)) {
        *out_id = by;
    } else {
        if (a == HL_NONE) HL_TRY(hl_build_number_like(graph, by, rule->scales, &a));
        HL_TRY(hl_build_binary(graph, rule->op, a, by, out_id));
    }
    return hl_build_expand(graph, *out_id, &shape, out_id);
}

/* A value per channel in a shape of which dim `dim` are the channels. */
static hl_status build_spread(hl_graph *graph, hl_id value, int rank, int dim, hl_id *out_id)
{
    hl_shape shape = {.rank = rank};
    for (int d = 0; d < rank; d++) shape.dim[d] = 1;
    shape.dim[dim] = hl_graph_shape(graph, value)->dim[0];
    return hl_build_reshape(graph, value, &shape, out_id);
}

/* The product with its factor and its shift. */
static hl_status build_product(fold_state *s, const folded *f, hl_id *out_id)
{
    hl_graph *graph = s->graph;
    const hl_node old = graph->nodes[f->product];
    int rank = hl_graph_shape(graph, old.out)->rank;
    bool is_behind = s->scales_columns && f->scale != HL_NONE;
    hl_id in[3] = {old.in[0], old.in[1], f->shift}, factor;
    if (f->scale != HL_NONE && !is_behind) {
        HL_TRY(build_spread(graph, f->scale, hl_graph_shape(graph, in[1])->rank, f->weight_dim,
                            &factor));
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, in[1], factor, &in[1]));
    }
    int32_t n_in = is_behind || f->shift == HL_NONE ? 2 : 3;
    HL_TRY(hl_graph_add(graph, old.op, in, n_in, &old.attrs, out_id));
    if (!is_behind) return HL_OK;
    HL_TRY(build_spread(graph, f->scale, rank, f->result_dim, &factor));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, *out_id, factor, out_id));
    if (f->shift == HL_NONE) return HL_OK;
    HL_TRY(build_spread(graph, f->shift, rank, f->result_dim, &factor));
    return hl_build_binary(graph, HL_OP_ADD, *out_id, factor, out_id);
}

static hl_status fold_into(fold_state *s, const fold_rule *rule, folded f, hl_id by, hl_id value)
{
    hl_graph *graph = s->graph;
    const hl_node product = graph->nodes[f.product];
    int64_t channels = hl_graph_shape(graph, product.out)->dim[f.result_dim];
    hl_graph_stand_by(graph, &product);
    if (rule->scales) HL_TRY(build_factor(graph, rule, f.scale, channels, by, &f.scale));
    if (f.shift != HL_NONE || !rule->scales)
        HL_TRY(build_factor(graph, rule, f.shift, channels, by, &f.shift));
    s->folded[value] = f;
    return build_product(s, &f, &s->map[value]);
}

static hl_status fold_node(fold_state *s, hl_node_id id)
{
    const hl_graph *graph = s->graph;
    const hl_node node = graph->nodes[id];
    const fold_rule *rule = find_rule(node.op);
    for (int k = 0; rule && k < (rule->is_symmetric ? 2 : 1); k++) {
        folded f;
        hl_id by = node.in[1 - k];
        if (!s->is_fixed[by] || !find_product(s, &node, k, &f)) continue;
        const hl_node *product = &graph->nodes[f.product];
        const hl_type *result = hl_node_out_type(graph, product, 0);
        if (hl_type_equal(result, hl_node_out_type(graph, &node, 0)) &&
            hl_graph_dtype(graph, by) == result->dtype &&
            (f.shift == HL_NONE || hl_graph_dtype(graph, f.shift) == result->dtype) &&
            hl_node_in_type(graph, product, 1)->dtype == result->dtype &&
            is_per_channel(hl_graph_shape(graph, by), &result->shape, f.result_dim))
            return fold_into(s, rule, f, by, node.out);
    }
    return HL_OK;
}

hl_status hl_pass_fold(hl_graph *graph, bool scales_columns)
{
    fold_state s = {.graph = graph, .scales_columns = scales_columns, .n_values = graph->n_values};
    int64_t n_nodes = graph->n_nodes;
    hl_status status;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(find_fixed(&s));
    HL_GOTO(hl_alloc_zero(((size_t)s.n_values + 1) * sizeof *s.folded, (void **)&s.folded));
    for (int64_t i = 0; i < n_nodes; i++) HL_GOTO(fold_node(&s, (hl_node_id)i));
    hl_rewrite_replace(graph, s.map, s.n_values);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.folded);
    hl_free(s.is_fixed);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
