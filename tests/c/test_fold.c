/* Folding (csrc/passes/fold.c): what follows a product and is the same in all steps becomes part of
 * it, with the same numbers (integers and powers of two, so that nothing rounds); and all the cases
 * in which the graph must stay as it is. */
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "tests/c/dice.h"
#include "tests/c/eval.h"

static hl_type f32(hl_shape shape)
{
    return (hl_type){HL_DTYPE_F32, shape};
}

/* What the reference device computes. */
static hl_type f64(hl_shape shape)
{
    return (hl_type){HL_DTYPE_F64, shape};
}

static hl_id add_binary(hl_graph *graph, hl_op op, hl_id a, hl_id b)
{
    hl_id out;
    CHECK_OK(hl_build_binary(graph, op, a, b, &out));
    return out;
}

static int count_op(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

/* Nodes that depend on the batch: what every step computes. */
static int count_steps(const hl_graph *graph)
{
    bool *depends = calloc((size_t)graph->n_values, sizeof *depends);
    int n = 0;
    for (int64_t v = 0; v < graph->n_values; v++)
        depends[v] = graph->values[v].kind == HL_VALUE_INPUT;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        bool any = false;
        for (int32_t j = 0; j < node->n_in; j++) any = any || depends[node->in[j]];
        for (int32_t j = 0; j < node->n_out; j++) depends[node->out + j] = any;
        n += any;
    }
    free(depends);
    return n;
}

/* ---- what is folded -------------------------------------------------------------------------- */

typedef struct product {
    const char *name;
    hl_op op;
    hl_shape x, weight;
    int64_t n; /* channels */
    int dim;   /* of the result */
    hl_attrs_matmul matmul;
    hl_attrs_conv conv;
} product;

static const product products[] = {
    {"linear", HL_OP_MATMUL, {2, {7, 8}}, {2, {8, 12}}, 12, 1, .matmul = {0}},
    {"linear of a transposed weight",
     HL_OP_MATMUL,
     {2, {7, 8}},
     {2, {12, 8}},
     12,
     1,
     .matmul = {.trans_b = true}},
    {"stack of rows", HL_OP_MATMUL, {3, {3, 7, 8}}, {2, {8, 12}}, 12, 2, .matmul = {0}},
    {"stack of weights", HL_OP_MATMUL, {3, {3, 7, 8}}, {3, {3, 8, 12}}, 12, 2, .matmul = {0}},
    {"stack of transposed weights",
     HL_OP_MATMUL,
     {2, {7, 8}},
     {3, {3, 12, 8}},
     12,
     2,
     .matmul = {.trans_b = true}},
    {"conv", HL_OP_CONV, {4, {2, 8, 6, 5}}, {4, {12, 8, 3, 2}}, 12, 1, .conv = {.groups = 1}},
    {"conv, channels last",
     HL_OP_CONV,
     {4, {2, 6, 5, 8}},
     {4, {12, 8, 3, 2}},
     12,
     3,
     .conv = {.groups = 1, .channels_last = true}},
    {"conv of a line", HL_OP_CONV, {3, {2, 8, 6}}, {3, {12, 8, 3}}, 12, 1, .conv = {.groups = 1}},
    {"conv in groups",
     HL_OP_CONV,
     {4, {2, 8, 6, 5}},
     {4, {12, 4, 3, 2}},
     12,
     1,
     .conv = {.groups = 2}},
    {"depthwise conv",
     HL_OP_CONV,
     {4, {2, 6, 5, 8}},
     {4, {8, 1, 3, 2}},
     8,
     3,
     .conv = {.groups = 8, .channels_last = true}},
    {"conv_transpose",
     HL_OP_CONV_TRANSPOSE,
     {4, {2, 8, 6, 5}},
     {4, {8, 12, 2, 2}},
     12,
     1,
     .conv = {.groups = 1, .size = {2, {7, 6}}}},
};
enum { N_PRODUCTS = sizeof products / sizeof *products };

typedef enum ending {
    A_FACTOR,
    A_FACTOR_BEFORE, /* the product is the second operand */
    A_DIVISOR,
    A_SHIFT,
    A_SHIFT_DOWN,
    A_NUMBER,  /* a factor of rank 0 */
    ONE_SHIFT, /* of shape (1) */
    A_NORM,    /* whose factor and shift are made of statistics */
    CENTRED,   /* ((y - mean) / std) weight + bias */
    N_ENDINGS
} ending;

static bool has_factor(ending end)
{
    return end != A_SHIFT && end != A_SHIFT_DOWN && end != ONE_SHIFT;
}
static bool has_shift(ending end)
{
    return !has_factor(end) || end == A_NORM || end == CENTRED;
}

/* Integers from -3 to 3, or 0.5, 1 and 2. */
static hl_id add_const(hl_graph *graph, const hl_shape *shape, bool powers)
{
    enum { MOST = 1024 };
    double values[MOST];
    hl_id id;
    int64_t n = hl_shape_numel(shape);
    CHECK(n <= MOST);
    for (int64_t i = 0; i < n; i++) {
        int draw = (int)floor(3.5 * (dice_draw() + 1)) - 3;
        values[i] = powers ? ldexp(1, draw % 2) : draw;
    }
    CHECK_OK(hl_graph_const_round(graph, f64(*shape), values, &id));
    return id;
}

/* A value per channel, in a shape that spreads along the others. */
static hl_id add_channels(hl_graph *graph, const product *p, bool powers)
{
    int after = hl_graph_shape(graph, graph->nodes[0].out)->rank - 1 - p->dim;
    hl_shape shape = {.rank = 1 + after, .dim = {p->n}};
    for (int d = 1; d <= after; d++) shape.dim[d] = 1;
    return add_const(graph, &shape, powers);
}

static hl_id add_ending(hl_graph *graph, const product *p, ending end, hl_id y)
{
    hl_shape one = hl_shape_1d(1);
    hl_id a = end == ONE_SHIFT ? add_const(graph, &one, false)
                               : add_channels(graph, p, end == A_DIVISOR),
          std, scale, shift, mean;
    if (end == A_FACTOR) return add_binary(graph, HL_OP_MUL, y, a);
    if (end == A_FACTOR_BEFORE) return add_binary(graph, HL_OP_MUL, a, y);
    if (end == A_DIVISOR) return add_binary(graph, HL_OP_DIV, y, a);
    if (end == A_SHIFT || end == ONE_SHIFT) return add_binary(graph, HL_OP_ADD, a, y);
    if (end == A_SHIFT_DOWN) return add_binary(graph, HL_OP_SUB, y, a);
    if (end == A_NUMBER) {
        CHECK_OK(hl_graph_number(graph, HL_DTYPE_F64, 0.5, &a));
        return add_binary(graph, HL_OP_MUL, y, a);
    }
    std = add_channels(graph, p, true), mean = add_channels(graph, p, false);
    shift = add_channels(graph, p, false);
    if (end == CENTRED) {
        y = add_binary(graph, HL_OP_DIV, add_binary(graph, HL_OP_SUB, y, mean), std);
        return add_binary(graph, HL_OP_ADD, add_binary(graph, HL_OP_MUL, y, a), shift);
    }
    CHECK_OK(hl_build_unary(graph, HL_OP_RSQRT, add_binary(graph, HL_OP_MUL, std, std), &scale));
    scale = add_binary(graph, HL_OP_MUL, scale, a);
    shift = add_binary(graph, HL_OP_SUB, shift, add_binary(graph, HL_OP_MUL, mean, scale));
    return add_binary(graph, HL_OP_ADD, add_binary(graph, HL_OP_MUL, y, scale), shift);
}

static hl_graph *make_graph(const product *p, ending end, bool has_bias)
{
    hl_graph *graph;
    hl_shape channels = hl_shape_1d(p->n);
    hl_id in[3], y;
    hl_attrs attrs;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_scope(graph, "body.0"));
    hl_attrs_init(hl_op_get(p->op)->schema, &attrs);
    if (p->op == HL_OP_MATMUL)
        attrs.matmul = p->matmul;
    else
        attrs.conv = p->conv;
    CHECK_OK(hl_graph_input(graph, "x", f64(p->x), &in[0]));
    in[1] = add_const(graph, &p->weight, false);
    in[2] = has_bias ? add_const(graph, &channels, false) : HL_NONE;
    CHECK_OK(hl_graph_add(graph, p->op, in, 2 + has_bias, &attrs, &y));
    CHECK_OK(hl_graph_scope(graph, "body.1"));
    CHECK_OK(hl_graph_output(graph, add_ending(graph, p, end, y)));
    return graph;
}

/* The output's numbers: the caller frees them. */
static double *run(hl_graph *graph, const product *p)
{
    int64_t n = hl_shape_numel(&p->x);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (double)(i * 5 % 9 - 4);
    evaluation e;
    CHECK_OK(eval_begin(&e, graph, (void *[]){x}));
    hl_id out = graph->outputs[0];
    size_t bytes = hl_type_bytes(&graph->values[out].type);
    double *copy = malloc(bytes);
    memcpy(copy, e.data[out], bytes);
    eval_end(&e);
    free(x);
    return copy;
}

/* The output is the product itself, or the product's columns times a factor and a shift. */
static void check_form(const hl_graph *graph, const product *p, bool behind, bool shifted)
{
    const hl_node *node = &graph->nodes[hl_graph_producer(graph, graph->outputs[0])];
    CHECK_INT(count_steps(graph), behind ? 2 + shifted : 1);
    if (behind && shifted) {
        CHECK_INT(node->op, HL_OP_ADD);
        node = &graph->nodes[hl_graph_producer(graph, node->in[0])];
    }
    if (behind) {
        CHECK_INT(node->op, HL_OP_MUL);
        node = &graph->nodes[hl_graph_producer(graph, node->in[0])];
    }
    CHECK_INT(node->op, p->op);
    CHECK_INT(node->n_in, 2 + (shifted && !behind));
    CHECK(node->scope && strcmp(node->scope, "body.0") == 0);
}

static void test_products_take_what_follows(void)
{
    for (int i = 0; i < N_PRODUCTS; i++)
        for (int end = 0; end < N_ENDINGS; end++)
            for (int form = 0; form < 4; form++) {
                const product *p = &products[i];
                bool has_bias = form & 1, scales = form & 2;
                check_case("%s, ending %d, form %d", p->name, end, form);
                hl_graph *graph = make_graph(p, (ending)end, has_bias);
                hl_type type = graph->values[graph->outputs[0]].type;
                double *want = run(graph, p);
                CHECK(count_steps(graph) > 1);
                CHECK_OK(hl_pass_fold(graph, scales));
                CHECK_OK(hl_graph_verify(graph));
                CHECK(hl_type_equal(&graph->values[graph->outputs[0]].type, &type));
                check_form(graph, p, scales && has_factor(end), has_bias || has_shift(end));
                double *got = run(graph, p);
                bool is_same = true; /* but for the sign of 0 */
                for (int64_t k = 0; k < hl_shape_numel(&type.shape); k++)
                    is_same = is_same && got[k] == want[k];
                CHECK(is_same);
                free(want);
                free(got);
                hl_graph_destroy(graph);
            }
}

/* ---- what is not ----------------------------------------------------------------------------- */

/* y = x w + b, (4, 5), then y * s; and what of that is otherwise. */
typedef enum net_form {
    PLAIN, /* is folded */
    /* Somebody else wants y. */
    READ_TWICE,
    BOTH_OPERANDS,
    AN_OUTPUT,
    COMMITTED,
    /* The factor's node stands elsewhere. */
    IN_ANOTHER_SEGMENT,
    BEHIND_A_FENCE,
    /* Something changes from step to step. */
    FACTOR_OF_THE_BATCH,
    FACTOR_FROM_THE_BATCH,
    FACTOR_RANDOM,
    FACTOR_SET_PER_STEP,
    FACTOR_CHANGED_IN_BEGIN,
    FACTOR_CHANGED_IN_MICRO,
    FACTOR_CHANGED_IN_APPLY,
    FACTOR_FROM_CHANGED_STATE,
    WEIGHT_OF_THE_BATCH,
    WEIGHT_CHANGED,
    BIAS_OF_THE_BATCH,
    BIAS_CHANGED,
    /* Types that do not fit. */
    FACTOR_OF_FLOAT64,
    FACTOR_OF_FLOAT16,
    WEIGHT_OF_16_BITS,
    BIAS_OF_FLOAT64,
    /* No value per channel. */
    FACTOR_PER_ROW,
    FACTOR_PER_ELEMENT,
    FACTOR_THAT_SPREADS,
    FACTOR_OF_HIGHER_RANK,
    ONE_CHANNEL_THAT_SPREADS, /* y is (4, 1) */
    /* No factor and no shift. */
    Y_DIVIDES,
    Y_IS_SUBTRACTED,
    A_MAXIMUM,
    NO_PRODUCT,
    N_FORMS
} net_form;

static hl_id add_leaf(hl_graph *graph, hl_value_kind kind, const char *name, hl_type type)
{
    int32_t store;
    hl_id id;
    int64_t n = hl_shape_numel(&type.shape);
    if (kind == HL_VALUE_INPUT) {
        CHECK_OK(hl_graph_input(graph, name, type, &id));
    } else {
        CHECK_OK(hl_graph_store(graph, name, type.dtype, n, &store));
        CHECK_OK(hl_graph_leaf(graph, kind, type, store, 0, name, &id));
    }
    return id;
}

static hl_id add_random(hl_graph *graph)
{
    hl_attrs attrs;
    hl_id control, out;
    hl_attrs_init(HL_SCHEMA_uniform, &attrs);
    attrs.uniform.shape = (hl_ints){1, {5}}, attrs.uniform.stream = "factor";
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_add(graph, HL_OP_UNIFORM, &control, 1, &attrs, &out));
    return out;
}

static hl_type type_of_factor(net_form f)
{
    hl_type type = f32(hl_shape_1d(5));
    if (f == FACTOR_OF_FLOAT64) type.dtype = HL_DTYPE_F64;
    if (f == FACTOR_OF_FLOAT16) type.dtype = HL_DTYPE_F16;
    if (f == FACTOR_PER_ROW) type.shape = hl_shape_2d(4, 1);
    if (f == FACTOR_PER_ELEMENT) type.shape = hl_shape_2d(4, 5);
    if (f == FACTOR_THAT_SPREADS) type.shape = (hl_shape){3, {2, 1, 5}};
    if (f == FACTOR_OF_HIGHER_RANK) type.shape = (hl_shape){3, {1, 1, 5}};
    return type;
}

static void change(hl_graph *graph, hl_id state, hl_segment segment)
{
    hl_id next;
    graph->segment = segment;
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, state, &next));
    CHECK_OK(hl_graph_commit(graph, state, next));
    graph->segment = HL_SEGMENT_MICRO;
}

static hl_id add_factor(hl_graph *graph, net_form f)
{
    hl_value_kind kind =
        f == FACTOR_OF_THE_BATCH || f == FACTOR_FROM_THE_BATCH ? HL_VALUE_INPUT : HL_VALUE_STATE;
    hl_id s;
    if (f == FACTOR_RANDOM) return add_random(graph);
    if (f == FACTOR_SET_PER_STEP) {
        CHECK_OK(hl_graph_scalar(graph, "lr", &s));
        return s;
    }
    s = add_leaf(graph, kind, "s", type_of_factor(f));
    if (f == FACTOR_CHANGED_IN_BEGIN) change(graph, s, HL_SEGMENT_BEGIN);
    if (f == FACTOR_CHANGED_IN_MICRO || f == FACTOR_FROM_CHANGED_STATE)
        change(graph, s, HL_SEGMENT_MICRO);
    if (f == FACTOR_CHANGED_IN_APPLY) change(graph, s, HL_SEGMENT_APPLY);
    if (f == FACTOR_FROM_THE_BATCH || f == FACTOR_FROM_CHANGED_STATE)
        CHECK_OK(hl_build_unary(graph, HL_OP_EXP, s, &s));
    return s;
}

static hl_id add_product(hl_graph *graph, net_form f)
{
    bool is_short = f == WEIGHT_OF_16_BITS;
    hl_type x = f32(hl_shape_2d(4, 3)), w = f32(hl_shape_2d(3, 5)), b = f32(hl_shape_1d(5));
    hl_attrs attrs;
    hl_id in[3], y;
    if (is_short) x.dtype = w.dtype = HL_DTYPE_BF16;
    if (f == ONE_CHANNEL_THAT_SPREADS) w.shape = hl_shape_2d(3, 1), b.shape = hl_shape_1d(1);
    if (f == BIAS_OF_FLOAT64) b.dtype = HL_DTYPE_F64;
    in[0] = add_leaf(graph, HL_VALUE_INPUT, "x", x);
    in[1] = add_leaf(graph, f == WEIGHT_OF_THE_BATCH ? HL_VALUE_INPUT : HL_VALUE_PARAM, "w", w);
    in[2] = add_leaf(graph, f == BIAS_OF_THE_BATCH ? HL_VALUE_INPUT : HL_VALUE_PARAM, "b", b);
    if (f == WEIGHT_CHANGED) change(graph, in[1], HL_SEGMENT_APPLY);
    if (f == BIAS_CHANGED) change(graph, in[2], HL_SEGMENT_APPLY);
    hl_attrs_init(HL_SCHEMA_matmul, &attrs);
    attrs.matmul.float32_out = is_short;
    if (f == NO_PRODUCT)
        y = add_binary(graph, HL_OP_MAXIMUM,
                       add_leaf(graph, HL_VALUE_INPUT, "y", f32(hl_shape_2d(4, 5))), in[2]);
    else
        CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, in, 3, &attrs, &y));
    return y;
}

static hl_graph *make_form(net_form f)
{
    hl_graph *graph;
    hl_id out;
    CHECK_OK(hl_graph_create(&graph));
    hl_id y = add_product(graph, f), s = add_factor(graph, f);
    if (f == AN_OUTPUT) CHECK_OK(hl_graph_output(graph, y));
    if (f == COMMITTED)
        CHECK_OK(hl_graph_commit(
            graph, add_leaf(graph, HL_VALUE_STATE, "last", f32(hl_shape_2d(4, 5))), y));
    if (f == IN_ANOTHER_SEGMENT) graph->segment = HL_SEGMENT_APPLY;
    if (f == BEHIND_A_FENCE) graph->fence = 1;
    if (f == BOTH_OPERANDS)
        out = add_binary(graph, HL_OP_MUL, y, y);
    else if (f == Y_DIVIDES)
        out = add_binary(graph, HL_OP_DIV, s, y);
    else if (f == Y_IS_SUBTRACTED)
        out = add_binary(graph, HL_OP_SUB, s, y);
    else
        out = add_binary(graph, f == A_MAXIMUM ? HL_OP_MAXIMUM : HL_OP_MUL, y, s);
    if (f == READ_TWICE) out = add_binary(graph, HL_OP_SUB, out, y);
    CHECK_OK(hl_graph_output(graph, out));
    CHECK_OK(hl_graph_verify(graph));
    return graph;
}

static void check_stays(hl_graph *graph, bool scales)
{
    char *before, *after;
    CHECK_OK(hl_rewrite_sort(graph));
    CHECK_OK(hl_graph_print(graph, &before));
    CHECK_OK(hl_pass_fold(graph, scales));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_OK(hl_graph_print(graph, &after));
    CHECK(strcmp(before, after) == 0);
    hl_free(before);
    hl_free(after);
}

static void test_what_stays(void)
{
    for (int scales = 0; scales < 2; scales++)
        for (int f = 0; f < N_FORMS; f++) {
            check_case("form %d, scales %d", f, scales);
            hl_graph *graph = make_form((net_form)f);
            if (f == PLAIN) {
                CHECK_OK(hl_pass_fold(graph, scales));
                CHECK_OK(hl_graph_verify(graph));
                CHECK_INT(count_steps(graph), scales ? 3 : 1);
            } else {
                check_stays(graph, scales);
            }
            hl_graph_destroy(graph);
        }
}

/* Channels stand where the convolution says; groups of a transposed one share places of the weight.
 * All dims that may be meant have 4 elements. */
static void test_channels_of_convolutions(void)
{
    for (int last = 0; last < 2; last++)
        for (int form = 0; form < 4; form++) {
            bool is_transposed = form > 1;
            int64_t groups = form == 3 ? 2 : 1;
            check_case("channels last %d, form %d", last, form);
            hl_graph *graph;
            hl_id in[2], y;
            hl_attrs attrs;
            hl_attrs_init(HL_SCHEMA_conv, &attrs);
            attrs.conv.channels_last = last, attrs.conv.groups = groups;
            if (is_transposed) attrs.conv.size = (hl_ints){2, {4, 4}};
            CHECK_OK(hl_graph_create(&graph));
            in[0] = add_leaf(graph, HL_VALUE_INPUT, "x", f32((hl_shape){4, {4, 4, 4, 4}}));
            in[1] = add_leaf(graph, HL_VALUE_PARAM, "w", f32((hl_shape){4, {4, 4 / groups, 1, 1}}));
            CHECK_OK(hl_graph_add(graph, is_transposed ? HL_OP_CONV_TRANSPOSE : HL_OP_CONV, in, 2,
                                  &attrs, &y));
            hl_shape shape = (form == 1) == (last == 1) ? (hl_shape){3, {4, 1, 1}} : hl_shape_1d(4);
            hl_id s = add_leaf(graph, HL_VALUE_STATE, "s", f32(shape));
            CHECK_OK(hl_graph_output(graph, add_binary(graph, HL_OP_MUL, y, s)));
            if (form % 2) {
                check_stays(graph, false);
            } else {
                CHECK_OK(hl_pass_fold(graph, false));
                CHECK_OK(hl_graph_verify(graph));
                CHECK_INT(count_steps(graph), 1);
            }
            hl_graph_destroy(graph);
        }
}

/* What was folded ends where somebody reads it, or where another op stands in between. */
static void test_chains_that_end(void)
{
    for (int form = 0; form < 3; form++) {
        check_case("form %d", form);
        hl_graph *graph;
        CHECK_OK(hl_graph_create(&graph));
        hl_id y = add_product(graph, PLAIN), s = add_factor(graph, PLAIN), z, out;
        z = add_binary(graph, HL_OP_MUL, y, s);
        if (form == 0) CHECK_OK(hl_graph_output(graph, z));
        if (form == 1) CHECK_OK(hl_build_unary(graph, HL_OP_RELU, z, &z));
        out = add_binary(graph, HL_OP_MUL, z, s);
        if (form == 2) out = add_binary(graph, HL_OP_ADD, out, z);
        CHECK_OK(hl_graph_output(graph, out));
        CHECK_OK(hl_pass_fold(graph, false));
        CHECK_OK(hl_graph_verify(graph));
        CHECK_INT(count_op(graph, HL_OP_MATMUL), 1);
        CHECK_INT(count_steps(graph), form ? 3 : 2);
        hl_graph_destroy(graph);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static hl_status fold_copy(void *context)
{
    hl_graph *copy;
    HL_TRY(hl_graph_clone(context, &copy));
    hl_status status = hl_pass_fold(copy, false);
    hl_graph_destroy(copy);
    return status;
}

static void test_faults(void)
{
    hl_graph *graph = make_graph(&products[0], A_NORM, true);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, fold_copy, graph) > 0);
    hl_graph_destroy(graph);
}

int main(void)
{
    test_products_take_what_follows();
    test_what_stays();
    test_channels_of_convolutions();
    test_chains_that_end();
    test_faults();
    return CHECK_DONE();
}
