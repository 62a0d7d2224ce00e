/* Mixed precision: which nodes work on 16 bits, and the casts between.
 *
 * The op table decides (hl_op_info.precision): products have reduced operands and sum in float32;
 * what follows (cheap pointwise work, copies, views) takes what its operands are; everything else
 * (norms, softmax, losses, reductions, optimizers) takes float32. Parameters, moments and
 * statistics stay float32: a product reads a rounded copy, made once for all its readers and, being
 * a function of parameters alone, moved to BEGIN by the hoisting pass; where the optimizer can
 * write it, passes/rounded.c takes it out of the step.
 *
 * What a product gives. Where the device keeps activations in float32 (the CPU, whose products
 * write float32 anyway), every product gives float32 (`float32_out`), and the pass adds nothing but
 * one cast per operand. Where it keeps them in 16 bits (a GPU, which is short of memory traffic), a
 * product gives 16 bits if a product or a norm reads it again, directly or through followers, and
 * float32 if all it leads to is other float32 work: so parameters' gradients and the losses' inputs
 * are never rounded. The bias of a 16-bit result is 16 bits as well, which is what libraries add.
 *
 * Norms compute in float32. They read what is made in 16 bits as it lies in memory (role 'w'),
 * which gives the bits of a cast before them, and never ask for a rounding of what is made in
 * float32; and they round what they give themselves (role 'g') where it leads to products alone,
 * sums (of a bias' gradient) and norms apart. A cast on either side would be a launch of its own.
 * Batch norm (role 'p') rounds wherever a product reads its result, whatever else does, as under
 * torch.autocast, where layer norm gives float32 and batch norm its input's type: a gate or a
 * residual that reads the result as well needs no copy of it in float32.
 *
 * The invariant: a value has at most one 16-bit copy in a segment, and no cast undoes another's
 * rounding into a product. The graph must be free of 16-bit products of the user's own making, or
 * they stay as they are.
 *
 * Rejected: casting at trace time, as torch.autocast does (autodiff would differentiate the casts,
 * and round gradients of parameters); a list of op names here (the op table is the only list). */
#include "base/alloc.h"
#include "base/half.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { MAX_VIEWS = 64 };

/* What the readers of a value are, its views' and followers' readers in their place. */
typedef enum fed {
    FED_OTHERS,  /* some that are neither products nor sums */
    FED_SUMS,    /* sums alone, or none */
    FED_PRODUCTS /* products, and perhaps sums */
} fed;

/* Who reads a value in 16 bits, directly or through followers: a product does before a norm. */
typedef enum want { WANTED_NOT, WANTED_BY_NORM, WANTED_BY_PRODUCT } want;

typedef struct amp_state {
    hl_graph *graph;
    hl_dtype reduced;
    bool keeps_reduced;
    int64_t n_values; /* before the pass */
    hl_id *copy;      /* by old value: its 16-bit form, HL_NONE: none yet */
    hl_segment *made; /* in which segment the copy stands */
    hl_id *map;       /* by old value: what float32 readers take */
    want *wanted; /* by old value; a norm's result is wanted by a product or not; of several results
                     one that nothing reads is wanted by all */
    fed *feeds;   /* by old value */
    hl_id *in;    /* room for the operands of any node */
} amp_state;

static bool has_flag(const hl_node *node, uint32_t flag)
{
    return hl_op_get(node->op)->flags & flag;
}

static bool is_follower(const hl_node *node)
{
    return hl_op_role_out(node->op, 0) == 'f';
}

static bool is_giver(const hl_node *node)
{
    char role = hl_op_role_out(node->op, 0);
    return role == 'g' || role == 'p';
}

static bool is_f32(const amp_state *s, hl_id id)
{
    return hl_graph_dtype(s->graph, id) == HL_DTYPE_F32;
}

/* A product of float32 operands, unless it keeps them: ones of another type are the user's own
 * choice. */
static bool is_reduced_product(const amp_state *s, const hl_node *node)
{
    if (!hl_op_is_product(node->op)) return false;
    const hl_attr_info *keeps = hl_schema_find(hl_op_get(node->op)->schema, "keeps_float32");
    if (keeps && hl_attrs_int(&node->attrs, keeps)) return false;
    for (int32_t i = 0; i < node->n_in; i++)
        if (hl_op_role_in(node->op, i) == 'r' && !is_f32(s, node->in[i])) return false;
    return true;
}

/* Does the node read the value as an operand of this role? */
static bool reads_as(const hl_node *node, hl_id value, char role)
{
    for (int32_t i = 0; i < node->n_in; i++)
        if (node->in[i] == value && hl_op_role_in(node->op, i) == role) return true;
    return false;
}

/* As operands of no other role? */
static bool reads_only_as(const hl_node *node, hl_id value, char role)
{
    for (int32_t i = 0; i < node->n_in; i++)
        if (node->in[i] == value && hl_op_role_in(node->op, i) != role) return false;
    return true;
}

static hl_status cast_to(amp_state *s, hl_id value, hl_dtype dtype, hl_id *out_value)
{
    hl_attrs attrs = {.dtype = {dtype}};
    return hl_graph_add(s->graph, HL_OP_CAST, &value, 1, &attrs, out_value);
}

/* ---- which values are read again in 16 bits -------------------------------------------------- */

/* Of all of the node's results, which are rounded together. */
static want find_results_wanted(const amp_state *s, const hl_node *node)
{
    want least = WANTED_BY_PRODUCT;
    for (int32_t j = 0; j < node->n_out; j++)
        if (s->wanted[node->out + j] < least) least = s->wanted[node->out + j];
    return least;
}

static want find_wanted(const amp_state *s, const hl_uses *uses, hl_id value)
{
    want most = WANTED_NOT;
    if (uses->kept[value] || !is_f32(s, value)) return WANTED_NOT;
    /* A result that nothing reads does not keep the node's other results in float32. */
    const hl_value *v = hl_graph_value(s->graph, value);
    if (!hl_uses_count(uses, value))
        return s->graph->nodes[v->node].n_out > 1 ? WANTED_BY_PRODUCT : WANTED_NOT;
    for (int32_t u = uses->start[value]; u < uses->start[value + 1]; u++) {
        const hl_node *user = &s->graph->nodes[uses->list[u]];
        want by_user = WANTED_NOT;
        if (is_reduced_product(s, user) && reads_as(user, value, 'r'))
            by_user = WANTED_BY_PRODUCT;
        else if (is_giver(user) && reads_as(user, value, 'w'))
            by_user = WANTED_BY_NORM;
        else if (is_follower(user) && reads_as(user, value, 'f'))
            by_user = find_results_wanted(s, user);
        if (by_user > most) most = by_user;
    }
    return most;
}

/* Will the follower take its operands in 16 bits if this one has 16? Others that are no numbers and
 * not drawn anew may be float32. */
static bool follows_alone(const amp_state *s, const hl_node *node, hl_id value)
{
    double number;
    if (!is_follower(node) || !reads_only_as(node, value, 'f')) return false;
    for (int32_t i = 0; i < node->n_in; i++) {
        hl_id in = node->in[i];
        hl_node_id maker = hl_graph_producer(s->graph, in);
        bool is_drawn = maker != HL_NONE && has_flag(&s->graph->nodes[maker], HL_OP_GENERATOR);
        if (in != value && hl_op_role_in(node->op, i) == 'f' && !is_drawn &&
            !hl_graph_number_read(s->graph, in, &number))
            return false;
    }
    return true;
}

/* What the node's results feed, all of them. */
static fed find_results_fed(const amp_state *s, const hl_node *node)
{
    fed least = FED_PRODUCTS;
    for (int32_t j = 0; j < node->n_out; j++)
        if (s->feeds[node->out + j] < least) least = s->feeds[node->out + j];
    return least;
}

/* Classifies the readers of a value; what the readers' own results feed is known already. */
static fed find_fed(const amp_state *s, const hl_uses *uses, hl_id value)
{
    fed most = FED_SUMS;
    if (uses->kept[value] || !is_f32(s, value)) return FED_OTHERS;
    for (int32_t u = uses->start[value]; u < uses->start[value + 1]; u++) {
        const hl_node *user = &s->graph->nodes[uses->list[u]];
        bool passes_on = has_flag(user, HL_OP_VIEW) || follows_alone(s, user, value);
        fed by_user = passes_on ? find_results_fed(s, user)
                      : is_reduced_product(s, user) && reads_only_as(user, value, 'r')
                          ? FED_PRODUCTS
                      : reads_only_as(user, value, 'w') ? FED_SUMS
                                                        : FED_OTHERS;
        if (by_user == FED_OTHERS) return FED_OTHERS;
        if (by_user > most) most = by_user;
    }
    return most;
}

/* Consumers come later, so one sweep from the end sees all. */
static hl_status mark_wanted(amp_state *s)
{
    hl_uses uses;
    HL_TRY(hl_uses_init(s->graph, &uses));
    for (int64_t i = s->graph->n_nodes - 1; i >= 0; i--) {
        const hl_node *node = &s->graph->nodes[i];
        for (int32_t j = 0; j < node->n_out; j++) {
            s->wanted[node->out + j] = find_wanted(s, &uses, node->out + j);
            s->feeds[node->out + j] = find_fed(s, &uses, node->out + j);
        }
        if (!is_giver(node)) continue;
        bool rounds = hl_op_role_out(node->op, 0) == 'p' ? s->wanted[node->out] == WANTED_BY_PRODUCT
                                                         : s->feeds[node->out] == FED_PRODUCTS;
        s->wanted[node->out] = rounds ? WANTED_BY_PRODUCT : WANTED_NOT;
    }
    hl_uses_deinit(&uses);
    return HL_OK;
}

/* ---- 16-bit forms ---------------------------------------------------------------------------- */

static void keep_copy(amp_state *s, hl_id value, hl_id copy, hl_segment segment)
{
    if (value >= s->n_values) return;
    s->copy[value] = copy;
    s->made[value] = segment;
}

/* A copy of a leaf holds for its segment alone: a commit may change the leaf between two. */
static bool has_copy(const amp_state *s, hl_id value, hl_segment segment)
{
    if (value >= s->n_values || s->copy[value] == HL_NONE) return false;
    const hl_value *v = hl_graph_value(s->graph, value);
    return s->made[value] == segment ||
           (v->kind == HL_VALUE_ACT && s->graph->nodes[v->node].segment == s->made[value]);
}

/* The 16-bit form of a float32 value: of a view, the view of its source's, so that a matrix that is
 * read in two shapes is rounded once. */
static hl_status find_copy(amp_state *s, hl_id value, hl_segment segment, hl_id *out_copy)
{
    hl_graph *graph = s->graph;
    hl_id chain[MAX_VIEWS];
    int depth = 0;
    for (; !has_copy(s, value, segment); depth++) {
        const hl_value *v = hl_graph_value(graph, value);
        bool is_view = v->kind == HL_VALUE_ACT && has_flag(&graph->nodes[v->node], HL_OP_VIEW);
        if (!is_view || depth == MAX_VIEWS) break;
        chain[depth] = value;
        segment = graph->nodes[v->node].segment;
        value = graph->nodes[v->node].in[0];
    }
    hl_id narrow = hl_rewrite_narrow(graph, value);
    if (has_copy(s, value, segment)) {
        *out_copy = s->copy[value];
    } else if (hl_graph_dtype(graph, narrow) == s->reduced) {
        *out_copy = narrow; /* it was widened from there */
    } else {
        hl_node_id maker = hl_graph_producer(graph, value);
        hl_node place = {
            .segment = segment, .scope = graph->scope, .gradient_of = graph->gradient_of};
        if (maker != HL_NONE) place.segment = graph->nodes[maker].segment;
        hl_graph_stand_by(graph, &place);
        HL_TRY(cast_to(s, value, s->reduced, out_copy));
        keep_copy(s, value, *out_copy, graph->segment);
    }
    while (depth--) {
        hl_node view = graph->nodes[hl_graph_value(graph, chain[depth])->node];
        view.scope = graph->scope;
        hl_graph_stand_by(graph, &view);
        HL_TRY(hl_graph_add(graph, view.op, out_copy, 1, &view.attrs, out_copy));
        keep_copy(s, chain[depth], *out_copy, view.segment);
    }
    return HL_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Output j is `made` from now on, which is in 16 bits; whoever needs float32 takes it widened. */
static hl_status replace_reduced(amp_state *s, const hl_node *node, int32_t j, hl_id made)
{
    keep_copy(s, node->out + j, made, node->segment);
    hl_graph_stand_by(s->graph, node);
    return cast_to(s, made, HL_DTYPE_F32, &s->map[node->out + j]);
}

/* The node that stands for this one has made its outputs, from `made` on: those that are in 16 bits
 * now are known as such. */
static hl_status replace_outputs(amp_state *s, const hl_node *node, hl_id made)
{
    for (int32_t j = 0; j < node->n_out; j++) {
        bool rounded = is_f32(s, node->out + j) && hl_graph_dtype(s->graph, made + j) == s->reduced;
        if (rounded)
            HL_TRY(replace_reduced(s, node, j, made + j));
        else
            s->map[node->out + j] = made + j;
    }
    return HL_OK;
}

/* Two factors are rounded, and what is added to their product has the product's type. */
static hl_status rewrite_product(amp_state *s, const hl_node *node)
{
    hl_id out;
    bool rounds = s->keeps_reduced && s->wanted[node->out];
    hl_attrs attrs = node->attrs;
    hl_attrs_int_set(&attrs, hl_schema_find(hl_op_get(node->op)->schema, "float32_out"), !rounds);
    for (int32_t i = 0; i < node->n_in; i++) {
        s->in[i] = node->in[i];
        char role = hl_op_role_in(node->op, i);
        bool follows = role == 'o' && rounds && is_f32(s, node->in[i]);
        if (role == 'r' || follows) HL_TRY(find_copy(s, node->in[i], node->segment, &s->in[i]));
    }
    hl_graph_stand_by(s->graph, node);
    HL_TRY(hl_graph_add(s->graph, node->op, s->in, node->n_in, &attrs, &out));
    return replace_outputs(s, node, out);
}

/* What was made in 16 bits, as it was made; else the value. */
static hl_id find_made(const amp_state *s, hl_id value)
{
    return value < s->n_values ? hl_rewrite_narrow(s->graph, s->map[value]) : value;
}

static bool is_made_narrow(const amp_state *s, hl_id value)
{
    return hl_graph_dtype(s->graph, find_made(s, value)) == s->reduced;
}

/* A norm reads what was made in 16 bits as it is, and rounds what it gives to products. */
static hl_status rewrite_giver(amp_state *s, const hl_node *node)
{
    const hl_attr_info *dtype = hl_schema_find(hl_op_get(node->op)->schema, "dtype");
    hl_id out;
    hl_attrs attrs = node->attrs;
    bool changes = s->wanted[node->out];
    for (int32_t i = 0; i < node->n_in; i++) {
        s->in[i] = node->in[i];
        if (hl_op_role_in(node->op, i) != 'w' || !is_made_narrow(s, node->in[i])) continue;
        s->in[i] = find_made(s, node->in[i]);
        changes = true;
    }
    if (!changes) return HL_OK;
    if (s->wanted[node->out]) hl_attrs_int_set(&attrs, dtype, s->reduced);
    hl_graph_stand_by(s->graph, node);
    HL_TRY(hl_graph_add(s->graph, node->op, s->in, node->n_in, &attrs, &out));
    return replace_outputs(s, node, out);
}

/* Kinds of operands of a follower. */
typedef enum operand_kind {
    OPERAND_REDUCED, /* of 16 bits */
    OPERAND_HELD,    /* a number that 16 bits hold exactly, or no float */
    OPERAND_ANEW,    /* a number that they do not hold, or random values, made at every use */
    OPERAND_F32
} operand_kind;

static bool holds(hl_dtype reduced, double number)
{
    float value = (float)number;
    float held = reduced == HL_DTYPE_BF16 ? hl_bf16_to_f32(hl_f32_to_bf16(value))
                                          : hl_f16_to_f32(hl_f32_to_f16(value));
    return (double)held == number;
}

/* For a product's sake a follower takes the copies that products read, for a norm's alone what was
 * made in 16 bits. */
static operand_kind kind_of(const amp_state *s, hl_id value, hl_segment segment, want by)
{
    double number;
    const hl_value *v = hl_graph_value(s->graph, value);
    if (has_copy(s, value, segment) && (by != WANTED_BY_NORM || is_made_narrow(s, value)))
        return OPERAND_REDUCED;
    if (!hl_dtype_is_float(v->type.dtype)) return OPERAND_HELD;
    if (hl_graph_number_read(s->graph, value, &number))
        return holds(s->reduced, number) ? OPERAND_HELD : OPERAND_ANEW;
    bool anew = v->kind == HL_VALUE_ACT && has_flag(&s->graph->nodes[v->node], HL_OP_GENERATOR);
    return anew ? OPERAND_ANEW : OPERAND_F32;
}

/* The operand in 16 bits. */
static hl_status round_operand(amp_state *s, hl_id value, hl_segment segment, hl_id *out_value)
{
    double number;
    *out_value = value;
    if (!is_f32(s, value)) return HL_OK;
    if (has_copy(s, value, segment)) return find_copy(s, value, segment, out_value);
    hl_shape shape = *hl_graph_shape(s->graph, value);
    hl_graph_number_read(s->graph, value, &number);
    return hl_graph_const_round(s->graph, (hl_type){s->reduced, shape}, &number, out_value);
}

/* A follower among 16-bit values works on them and gives one; operands whose type it does not
 * follow are taken as they are. Beside a random operand, or a number that 16 bits don't hold, it
 * works on float32 and its result is rounded: the same bytes, and the scale of a dropout mask is
 * exact. */
static hl_status rewrite_follower(amp_state *s, const hl_node *node)
{
    hl_id out;
    bool any_reduced = false, all_reduced = true;
    want by = find_results_wanted(s, node);
    for (int32_t i = 0; i < node->n_in; i++) {
        if (hl_op_role_in(node->op, i) != 'f') continue;
        operand_kind kind = kind_of(s, node->in[i], node->segment, by);
        if (kind == OPERAND_F32) return HL_OK;
        any_reduced |= kind == OPERAND_REDUCED;
        all_reduced &= kind == OPERAND_REDUCED || kind == OPERAND_HELD;
    }
    bool gives_float = hl_dtype_is_float(hl_graph_dtype(s->graph, node->out));
    bool is_copy = !has_flag(node, HL_OP_POINTWISE);
    if (!any_reduced || (gives_float && by == WANTED_NOT)) return HL_OK;
    if (all_reduced || is_copy || !gives_float) {
        if (!all_reduced && !gives_float) return HL_OK;
        for (int32_t i = 0; i < node->n_in; i++) {
            s->in[i] = node->in[i];
            bool is_rounded = hl_op_role_in(node->op, i) == 'f' ||
                              kind_of(s, node->in[i], node->segment, by) == OPERAND_REDUCED;
            if (is_rounded) HL_TRY(round_operand(s, node->in[i], node->segment, &s->in[i]));
        }
        hl_graph_stand_by(s->graph, node);
        HL_TRY(hl_graph_add(s->graph, node->op, s->in, node->n_in, &node->attrs, &out));
        return replace_outputs(s, node, out);
    }
    hl_graph_stand_by(s->graph, node);
    HL_TRY(hl_graph_add(s->graph, node->op, node->in, node->n_in, &node->attrs, &out));
    HL_TRY(cast_to(s, out, s->reduced, &out));
    return replace_outputs(s, node, out);
}

static hl_status rewrite_nodes(amp_state *s)
{
    int64_t n_nodes = s->graph->n_nodes;
    for (int64_t i = 0; i < n_nodes; i++) {
        hl_node node = s->graph->nodes[i];
        s->graph->scope = node.scope;
        s->graph->gradient_of = node.gradient_of;
        if (is_reduced_product(s, &node))
            HL_TRY(rewrite_product(s, &node));
        else if (s->keeps_reduced && is_follower(&node))
            HL_TRY(rewrite_follower(s, &node));
        else if (s->keeps_reduced && is_giver(&node))
            HL_TRY(rewrite_giver(s, &node));
    }
    return HL_OK;
}

/* The largest number of operands that a node has. */
static size_t count_operands(const hl_graph *graph)
{
    int32_t most = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].n_in > most) most = graph->nodes[i].n_in;
    return (size_t)most;
}

hl_status hl_pass_amp(hl_graph *graph, hl_dtype reduced, bool keeps_reduced)
{
    amp_state s = {.graph = graph,
                   .reduced = reduced,
                   .keeps_reduced = keeps_reduced,
                   .n_values = graph->n_values};
    if (reduced == HL_DTYPE_F32) return HL_OK;
    if (reduced != HL_DTYPE_BF16 && reduced != HL_DTYPE_F16)
        return hl_status_set(HL_ERROR_CONFIG,
                             "mixed precision: must be of bfloat16 or float16, got %s",
                             hl_dtype_name(reduced));
    size_t n = (size_t)graph->n_values + 1, n_in = count_operands(graph);
    hl_status status = HL_OK;
    void *memory = NULL;
    HL_TRY(hl_alloc_zero(n * (2 * sizeof(hl_id) + sizeof(hl_segment) + sizeof(fed) + sizeof(want)) +
                             n_in * sizeof(hl_id),
                         &memory));
    s.copy = memory;
    s.map = s.copy + n;
    s.in = s.map + n;
    s.made = (hl_segment *)(s.in + n_in);
    s.feeds = (fed *)(s.made + n);
    s.wanted = (want *)(s.feeds + n);
    for (int64_t v = 0; v < s.n_values; v++) s.copy[v] = HL_NONE, s.map[v] = (hl_id)v;
    if (keeps_reduced) HL_GOTO(mark_wanted(&s));
    HL_GOTO(rewrite_nodes(&s));
    hl_rewrite_replace(graph, s.map, s.n_values);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(memory);
    return status;
}

void hl_pass_tf32(hl_graph *graph)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node *node = &graph->nodes[i];
        const hl_attr_info *tf32 = hl_schema_find(hl_op_get(node->op)->schema, "tf32");
        if (tf32 && hl_graph_dtype(graph, node->in[0]) == HL_DTYPE_F32)
            hl_attrs_int_set(&node->attrs, tf32, true);
    }
}

/* ---- in words -------------------------------------------------------------------------------- */

static bool has_16_bits(const hl_graph *graph, hl_id id)
{
    return hl_dtype_is_16_bit(hl_graph_dtype(graph, id));
}

hl_dtype hl_amp_compute(const hl_graph *graph, hl_node_id id, const char **out_why)
{
    const hl_node *node = &graph->nodes[id];
    const hl_op_info *op = hl_op_get(node->op);
    hl_dtype widest = HL_DTYPE_COUNT;
    for (int32_t i = 0; i < node->n_in + node->n_out; i++) {
        hl_id value = i < node->n_in ? node->in[i] : node->out + i - node->n_in;
        hl_dtype dtype = hl_graph_dtype(graph, value);
        if (!hl_dtype_is_float(dtype)) continue;
        widest = widest == HL_DTYPE_COUNT ? dtype : hl_dtype_promote(widest, dtype);
    }
    bool is_product = hl_op_is_product(node->op);
    bool rounds = !is_product && node->n_in == 1 && has_16_bits(graph, node->out) &&
                  !has_16_bits(graph, node->in[0]);
    if (is_product)
        *out_why = has_16_bits(graph, node->in[0]) ? "product, summed in float32"
                                                   : "product without a 16-bit kernel";
    else if (node->program && !hl_node_is_anchor(node))
        *out_why = "pointwise program: registers are float32";
    else if (rounds)
        *out_why = "rounds its operand";
    else if (is_follower(node))
        *out_why = "follows its operands";
    else if (op->flags & HL_OP_UPDATES)
        *out_why = "state and updates stay float32";
    else
        *out_why = "norms, losses and sums stay float32";
    if (is_product) return hl_graph_dtype(graph, node->in[0]);
    return rounds ? hl_graph_dtype(graph, node->out) : widest;
}
