/* The graph library: dtypes, shapes, the op table, building, printing, cloning, reordering,
 * programs of single nodes, what the verifier refuses, the structure of gradients, and every
 * allocation failing. What gradients are worth is test_vjp's. */
#include "ir/control.h"
#include "ir/op.h"
#include "ir/program.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "tests/c/check.h"

#define SHAPE(...) hl_shape_make(sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__})
#define FLOAT(...) ((hl_type){HL_DTYPE_F32, SHAPE(__VA_ARGS__)})
#define IDS(...)   (hl_id[]){__VA_ARGS__}, sizeof((hl_id[]){__VA_ARGS__}) / sizeof(hl_id)
#define ATTRS(...) (&(hl_attrs){__VA_ARGS__})

/* ---- dtypes and shapes ----------------------------------------------------------------------- */

static void test_dtype(void)
{
    static const struct {
        hl_dtype a, b, want;
    } rules[] = {
        {HL_DTYPE_BOOL, HL_DTYPE_I8, HL_DTYPE_I8},   {HL_DTYPE_I64, HL_DTYPE_F32, HL_DTYPE_F32},
        {HL_DTYPE_I64, HL_DTYPE_F16, HL_DTYPE_F16},  {HL_DTYPE_U8, HL_DTYPE_I8, HL_DTYPE_I16},
        {HL_DTYPE_U8, HL_DTYPE_I32, HL_DTYPE_I32},   {HL_DTYPE_BF16, HL_DTYPE_F16, HL_DTYPE_F32},
        {HL_DTYPE_BF16, HL_DTYPE_F64, HL_DTYPE_F64}, {HL_DTYPE_I16, HL_DTYPE_I64, HL_DTYPE_I64},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        CHECK_INT(hl_dtype_promote(rules[i].a, rules[i].b), rules[i].want);
        CHECK_INT(hl_dtype_promote(rules[i].b, rules[i].a), rules[i].want);
    }
    for (int d = 0; d < HL_DTYPE_COUNT; d++) {
        CHECK_INT(hl_dtype_parse(hl_dtype_name((hl_dtype)d)), d);
        CHECK_INT(hl_dtype_promote((hl_dtype)d, (hl_dtype)d), d);
    }
    CHECK_INT(hl_dtype_parse("float"), HL_DTYPE_COUNT);
}

static void test_shape(void)
{
    char text[HL_SHAPE_TEXT];
    hl_shape a = SHAPE(4, 1, 3), b = SHAPE(2, 1), out;
    CHECK_OK(hl_shape_broadcast(&a, &b, "add", &out));
    CHECK(strcmp(hl_shape_format(&out, text), "(4, 2, 3)") == 0);
    b = SHAPE(2, 2);
    CHECK_ERROR(hl_shape_broadcast(&a, &b, "add", &out), HL_ERROR_SHAPE,
                "add: dims must be equal or 1, counted from the last, got (4, 1, 3) and (2, 2)");
    hl_shape empty = SHAPE(0, 1), scalar = hl_shape_scalar(), one = SHAPE(7);
    CHECK_OK(hl_shape_broadcast(&empty, &scalar, NULL, &out));
    CHECK_INT(hl_shape_numel(&out), 0);
    CHECK(strcmp(hl_shape_format(&scalar, text), "()") == 0);
    CHECK(strcmp(hl_shape_format(&one, text), "(7,)") == 0);
    hl_shape huge = SHAPE(INT64_MAX, INT64_MAX), negative = SHAPE(3, -1);
    CHECK_ERROR(hl_shape_check(&huge, "x"), HL_ERROR_SHAPE, "x: the bytes must fit in 63 bits");
    /* An empty shape must not hide a span that overflows. */
    huge = SHAPE(0, INT64_MAX / 2, 3);
    CHECK_ERROR(hl_shape_check(&huge, NULL), HL_ERROR_SHAPE, "the bytes must fit in 63 bits");
    CHECK_ERROR(hl_shape_check(&negative, "x"), HL_ERROR_SHAPE, "got (3, -1)");
    int axis;
    CHECK_OK(hl_shape_axis(&a, -1, "sum", &axis));
    CHECK_INT(axis, 2);
    CHECK_ERROR(hl_shape_axis(&a, 3, "sum", &axis), HL_ERROR_SHAPE, "got 3 for (4, 1, 3)");
    CHECK_ERROR(hl_shape_axis(&scalar, 0, "sum", &axis), HL_ERROR_SHAPE, "got 0 for ()");
}

/* Element i of the shape in its order, by strides of `rank` dims. */
static int64_t find_element(int rank, const int64_t *dim, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; d--) {
        at += i % dim[d] * stride[d];
        i /= dim[d];
    }
    return at;
}

/* Merged, it has n dims and the same elements in the same order. */
static void check_merge(hl_shape shape, const int64_t *stride, int n)
{
    int64_t merged_dim[HL_MAX_RANK], merged[HL_MAX_RANK];
    int rank = hl_shape_merge(&shape, stride, merged_dim, merged);
    CHECK_INT(rank, n);
    for (int64_t i = 0; i < hl_shape_numel(&shape); i++)
        CHECK_INT(find_element(rank, merged_dim, merged, i),
                  find_element(shape.rank, shape.dim, stride, i));
    for (int d = 0; d < rank; d++) CHECK(merged_dim[d] != 1);
    for (int d = 1; d < rank; d++) CHECK(merged[d - 1] != merged[d] * merged_dim[d]);
}

static void test_merge(void)
{
    int64_t stride[HL_MAX_RANK];
    hl_shape shape = SHAPE(2, 3, 1, 4), one = SHAPE(1, 1), rows = SHAPE(3, 1, 4), last = SHAPE(4),
             middle = SHAPE(3, 1, 1), outer = SHAPE(2, 3, 1, 1), ends = SHAPE(2, 1, 1, 4);
    hl_shape_strides(&shape, stride);
    CHECK(stride[0] == 12 && stride[1] == 4 && stride[3] == 1);
    check_merge(shape, stride, 1);
    hl_shape_strides(&one, stride);
    check_merge(one, stride, 0);
    check_merge(hl_shape_scalar(), stride, 0);
    struct {
        hl_shape operand;
        int n;
    } broadcasts[] = {{shape, 1}, {rows, 2}, {last, 2}, {middle, 3},
                      {outer, 2}, {ends, 3}, {one, 1}};
    for (size_t b = 0; b < sizeof broadcasts / sizeof broadcasts[0]; b++) {
        hl_shape_broadcast_strides(&shape, &broadcasts[b].operand, stride);
        check_merge(shape, stride, broadcasts[b].n);
    }
    hl_shape_broadcast_strides(&shape, &middle, stride);
    CHECK(stride[0] == 0 && stride[1] == 1 && stride[2] == 0 && stride[3] == 0);
    /* Transposed, in steps, backwards, and with a dim that repeats within. */
    check_merge(SHAPE(4, 3), (int64_t[]){1, 4}, 2);
    check_merge(SHAPE(2, 3, 4), (int64_t[]){24, 8, 2}, 1);
    check_merge(SHAPE(2, 3, 4), (int64_t[]){-12, -4, -1}, 1);
    check_merge(SHAPE(2, 3, 4), (int64_t[]){12, 4, -1}, 2);
    check_merge(SHAPE(2, 3, 4), (int64_t[]){4, 0, 1}, 3);
    /* The stride of a dim of one element says nothing. */
    check_merge(SHAPE(2, 1, 4), (int64_t[]){4, 99, 1}, 1);
    /* Nothing lies in an empty shape, and its dims stay what they are. */
    int64_t dim[HL_MAX_RANK], merged[HL_MAX_RANK];
    hl_shape empty = SHAPE(3, 0);
    CHECK_INT(hl_shape_merge(&empty, (int64_t[]){0, 1}, dim, merged), 1);
    CHECK_INT(dim[0], 0);
}

/* ---- the op table ---------------------------------------------------------------------------- */

static void test_table(void)
{
    const hl_attr_info *attr = hl_schema_find(hl_op_get(HL_OP_ADAM)->schema, "eps");
    CHECK_INT(attr->kind, HL_ATTR_float);
    CHECK_INT(attr->offset, offsetof(hl_attrs_adam, eps));
    attr = hl_schema_find(hl_op_get(HL_OP_DROPOUT_MASK)->schema, "dtype");
    CHECK_INT(attr->kind, HL_ATTR_dtype);
    CHECK(!hl_schema_find(HL_SCHEMA_adam, "ep"));
    CHECK(!hl_schema_find(HL_SCHEMA_none, "ep"));
    hl_attrs attrs;
    hl_attrs_init(HL_SCHEMA_slice, &attrs);
    CHECK_INT(attrs.slice.stop, INT64_MAX);
    CHECK_INT(attrs.slice.step, 1);
    hl_attrs_init(HL_SCHEMA_adam, &attrs);
    CHECK(attrs.adam.beta1 == 0.9 && attrs.adam.beta2 == 0.999 && attrs.adam.eps == 1e-8);
    hl_attrs_init(HL_SCHEMA_matmul, &attrs);
    attr = hl_schema_find(HL_SCHEMA_matmul, "trans_b");
    hl_attrs_int_set(&attrs, attr, 5);
    CHECK(attrs.matmul.trans_b && !attrs.matmul.trans_a);
    CHECK_INT(hl_attrs_int(&attrs, attr), 1);
    CHECK_INT(hl_op_parse("no such op"), HL_OP_COUNT);
    for (int op = 0; op < HL_OP_COUNT; op++) {
        const hl_op_info *info = hl_op_get((hl_op)op);
        check_case("%s", info->name);
        CHECK_INT(hl_op_parse(info->name), op);
        CHECK(info->doc[0] != '\0');
        CHECK_INT(hl_pw_of_op((hl_op)op) != HL_PW_COUNT,
                  info->flags & HL_OP_POINTWISE && !info->lower);
    }
    check_case("%s", "");
}

/* ---- a small training graph ------------------------------------------------------------------ */

typedef struct model {
    hl_graph *graph;
    hl_id x, weight, bias, mean, control, out, loss, grads[2];
} model;

static hl_status build_leaves(model *m)
{
    int32_t params, state;
    HL_TRY(hl_graph_store(m->graph, "param", HL_DTYPE_F32, 12, &params));
    HL_TRY(hl_graph_store(m->graph, "buffer", HL_DTYPE_F32, 3, &state));
    HL_TRY(hl_graph_input(m->graph, "x", FLOAT(5, 3), &m->x));
    HL_TRY(
        hl_graph_leaf(m->graph, HL_VALUE_PARAM, FLOAT(3, 3), params, 0, "fc.weight", &m->weight));
    HL_TRY(hl_graph_leaf(m->graph, HL_VALUE_PARAM, FLOAT(3), params, 9, "fc.bias", &m->bias));
    HL_TRY(hl_graph_leaf(m->graph, HL_VALUE_STATE, FLOAT(3), state, 0, "bn.mean", &m->mean));
    return hl_graph_control(m->graph, &m->control);
}

/* loss = sum(relu(x @ weight^T + bias) * mask); bn.mean <- the mean of the rows. */
static hl_status build_model(model *m)
{
    hl_id hidden, moments, mask;
    m->graph = NULL;
    HL_TRY(hl_graph_create(&m->graph));
    HL_TRY(build_leaves(m));
    HL_TRY(hl_graph_scope(m->graph, "fc"));
    HL_TRY(hl_graph_add(m->graph, HL_OP_MATMUL, IDS(m->x, m->weight, m->bias),
                        ATTRS(.matmul = {.trans_a = 0, .trans_b = 1}), &hidden));
    HL_TRY(hl_build_unary(m->graph, HL_OP_RELU, hidden, &m->out));
    HL_TRY(hl_graph_scope(m->graph, "drop"));
    HL_TRY(hl_graph_add(m->graph, HL_OP_DROPOUT_MASK, IDS(m->control),
                        ATTRS(.dropout_mask = {.shape = {2, {5, 3}}, .p = 0.25, .stream = "drop"}),
                        &mask));
    HL_TRY(hl_build_binary(m->graph, HL_OP_MUL, m->out, mask, &m->loss));
    HL_TRY(hl_graph_scope(m->graph, NULL));
    HL_TRY(hl_build_sum(m->graph, m->loss, NULL, 0, false, &m->loss));
    HL_TRY(hl_graph_add(m->graph, HL_OP_MOMENTS, IDS(hidden), ATTRS(.axes = {.axes = {1, {0}}}),
                        &moments));
    HL_TRY(hl_graph_commit(m->graph, m->mean, moments));
    HL_TRY(hl_graph_output(m->graph, m->loss));
    return hl_pass_autodiff(m->graph, m->loss, HL_NONE, (hl_id[]){m->weight, m->bias}, 2, m->grads);
}

static int count_op(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

static void test_autodiff(void)
{
    model m;
    CHECK_OK(build_model(&m));
    CHECK_OK(hl_graph_verify(m.graph));
    hl_graph *graph = m.graph;
    CHECK(hl_type_equal(&graph->values[m.grads[0]].type, &graph->values[m.weight].type));
    CHECK(hl_type_equal(&graph->values[m.grads[1]].type, &graph->values[m.bias].type));
    /* One product forward, one for the weight; x needs no gradient; no rule touched the moments. */
    CHECK_INT(count_op(graph, HL_OP_MATMUL), 2);
    CHECK_INT(count_op(graph, HL_OP_MOMENTS), 1);
    const hl_node *dweight = &graph->nodes[graph->values[m.grads[0]].node];
    CHECK(strcmp(dweight->scope, "fc") == 0);
    CHECK(graph->scope == NULL);

    /* A value used twice has its shares added, one that the loss does not reach has none. */
    hl_id square, sum, unused, grads[2];
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, m.bias, m.bias, &square));
    CHECK_OK(hl_build_sum(graph, square, NULL, 0, false, &sum));
    CHECK_OK(hl_graph_input(graph, "unused", FLOAT(2), &unused));
    int n_add = count_op(graph, HL_OP_ADD);
    CHECK_OK(hl_pass_autodiff(graph, sum, HL_NONE, (hl_id[]){m.bias, unused}, 2, grads));
    CHECK_INT(count_op(graph, HL_OP_ADD), n_add + 1);
    CHECK_INT(grads[1], HL_NONE);
    /* A wrt may be made by a node, and may be the loss itself. */
    CHECK_OK(hl_pass_autodiff(graph, sum, sum, (hl_id[]){square, sum}, 2, grads));
    CHECK(hl_type_equal(&graph->values[grads[0]].type, &graph->values[square].type));
    CHECK_INT(grads[1], sum);
    /* What is written as not differentiable stops the flow. */
    hl_id floor, stopped;
    CHECK_OK(hl_build_unary(graph, HL_OP_FLOOR, m.bias, &floor));
    CHECK_OK(hl_build_sum(graph, floor, NULL, 0, false, &stopped));
    CHECK_OK(hl_pass_autodiff(graph, stopped, HL_NONE, &m.bias, 1, grads));
    CHECK_INT(grads[0], HL_NONE);
    CHECK_ERROR(hl_pass_autodiff(graph, square, HL_NONE, &m.bias, 1, grads), HL_ERROR_SHAPE,
                "must be one number, got float32 (3,)");
    CHECK_ERROR(hl_pass_autodiff(graph, sum, HL_NONE, &m.control, 1, grads), HL_ERROR_TRACE,
                "must be asked of a floating value");
    CHECK_OK(hl_graph_verify(graph));
    hl_graph_destroy(graph);
}

static void test_print_and_clone(void)
{
    model m;
    hl_graph *copy;
    char *text, *text_copy;
    CHECK_OK(build_model(&m));
    CHECK_OK(hl_graph_print(m.graph, &text));
    static const char *const lines[] = {
        "  input  %0 x float32 (5, 3)\n",
        "  param  %1 fc.weight float32 (3, 3) at param + 0\n",
        " = matmul(%0 x, %1 fc.weight, %2 fc.bias) trans_b=1 -> float32 (5, 3)  ; fc\n",
        " = dropout_mask(%4 control) shape=[5, 3] p=0.25 stream=drop -> float32 (5, 3)  ; drop\n",
        "commits:\n  micro: %3 bn.mean <- ",
        "micro:\n",
        "outputs:\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        check_case("%s", lines[i]);
        CHECK(strstr(text, lines[i]) != NULL);
    }
    check_case("%s", "");
    CHECK_OK(hl_graph_clone(m.graph, &copy));
    hl_graph_destroy(m.graph);
    CHECK_OK(hl_graph_verify(copy));
    CHECK_OK(hl_graph_print(copy, &text_copy));
    CHECK(strcmp(text, text_copy) == 0);
    CHECK_OK(hl_graph_output(copy, m.weight)); /* the copy's lists are its own */
    hl_free(text);
    hl_free(text_copy);
    hl_graph_destroy(copy);
}

/* What a graph is set to goes with it. */
static void test_clone_keeps_settings(void)
{
    hl_graph *graph, *copy;
    hl_id x, scalar;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(2), &x));
    CHECK_OK(hl_graph_scalar(graph, "lr", &scalar));
    CHECK_OK(hl_graph_scope(graph, "body"));
    graph->segment = HL_SEGMENT_APPLY;
    graph->fence = 3;
    graph->float_dtype = HL_DTYPE_F64;
    graph->benchmark = true;
    CHECK_OK(hl_graph_clone(graph, &copy));
    CHECK(copy->scope != graph->scope && strcmp(copy->scope, "body") == 0);
    hl_graph_destroy(graph);
    CHECK_INT(copy->segment, HL_SEGMENT_APPLY);
    CHECK_INT(copy->fence, 3);
    CHECK_INT(copy->float_dtype, HL_DTYPE_F64);
    CHECK(copy->benchmark);
    CHECK_INT(copy->n_inputs, 1);
    CHECK_INT(copy->n_scalars, 1);
    CHECK_OK(hl_build_unary(copy, HL_OP_NEG, x, &x));
    CHECK_INT(copy->nodes[0].fence, 3);
    hl_graph_destroy(copy);
}

/* A node has as many outputs as it makes, and each is known by its place. */
static void test_many_outputs(void)
{
    enum { N = 1000 };
    hl_graph *graph, *copy;
    hl_id x, first, out;
    char *text;
    hl_attrs one = {.split = {.axis = -2, .size = 1}}, all = {.split = {.axis = 0, .size = N}};
    hl_attrs none = {.split = {.axis = 0, .size = 0}};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(N, 3), &x));
    CHECK_OK(hl_graph_add(graph, HL_OP_SPLIT, IDS(x), &one, &first));
    for (int j = 0; j < N; j++) {
        const hl_value *value = hl_graph_value(graph, first + j);
        CHECK_INT(value->output, j);
        CHECK_INT(value->type.shape.dim[0], 1);
    }
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, first + N - 1, first, &out));
    CHECK_OK(hl_graph_output(graph, out));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_OK(hl_graph_clone(graph, &copy));
    CHECK_OK(hl_graph_verify(copy));
    CHECK_OK(hl_graph_print(copy, &text));
    CHECK(strstr(text, " = split(%0 x) axis=0 size=1 -> float32 (1, 3), float32 (1, 3), ") != NULL);
    copy->nodes[0].attrs.split.size = 2;
    CHECK_ERROR(hl_graph_verify(copy), HL_ERROR_INTERNAL, "as many as the op makes, got 500");
    copy->nodes[0].attrs.split.size = 0;
    CHECK_ERROR(hl_graph_verify(copy), HL_ERROR_INTERNAL, "size must be at least 1, got 0");
    int64_t n_values = graph->n_values;
    CHECK_ERROR(hl_graph_add(graph, HL_OP_SPLIT, IDS(x), &none, &out), HL_ERROR_SHAPE,
                "split of float32 (1000, 3): size must be at least 1, got 0");
    CHECK_OK(hl_graph_add(graph, HL_OP_SPLIT, IDS(x), &all, &out));
    CHECK_INT(out, x);
    CHECK_INT(graph->n_values, n_values);
    hl_free(text);
    hl_graph_destroy(copy);
    hl_graph_destroy(graph);
}

/* A node stands behind the fences of its operands, of its own segment. */
static void test_fences(void)
{
    hl_graph *graph;
    hl_id x, a, b, c;
    char *text;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(2), &x));
    graph->fence = 2;
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &a));
    graph->fence = 0;
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, x, a, &b));
    graph->segment = HL_SEGMENT_APPLY;
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, b, &c));
    CHECK_INT(graph->nodes[1].fence, 2);
    CHECK_INT(graph->nodes[2].fence, 0);
    CHECK_OK(hl_graph_output(graph, c));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_OK(hl_graph_print(graph, &text));
    CHECK(strstr(text, "exp(%0 x) -> float32 (2,)  | fence 2\n") != NULL);
    graph->nodes[1].fence = 1;
    CHECK_ERROR(hl_graph_verify(graph), HL_ERROR_INTERNAL, "must not be behind a later fence");
    hl_free(text);
    hl_graph_destroy(graph);
}

/* ---- building: what is refused, what adds nothing -------------------------------------------- */

static void test_errors(void)
{
    hl_graph *graph;
    hl_id a, b, i, out;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "a", FLOAT(2, 3), &a));
    CHECK_OK(hl_graph_input(graph, "b", FLOAT(4, 5), &b));
    CHECK_OK(hl_graph_input(graph, "i", (hl_type){HL_DTYPE_I64, SHAPE(2, 3)}, &i));
    CHECK_OK(hl_graph_scope(graph, "body.0"));
    int64_t n_nodes = graph->n_nodes, n_values = graph->n_values;
    CHECK_ERROR(hl_graph_add(graph, HL_OP_MATMUL, IDS(a, b), NULL, &out), HL_ERROR_SHAPE,
                "body.0: matmul of float32 (2, 3), float32 (4, 5): inner dims must be equal, got "
                "3 and 4");
    CHECK_INT(out, HL_NONE);
    CHECK_ERROR(hl_graph_add(graph, HL_OP_MATMUL, IDS(a, i), NULL, &out), HL_ERROR_TRACE,
                "b must be float32, got int64");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_SOFTMAX, IDS(i), NULL, &out), HL_ERROR_TRACE,
                "must be of a floating dtype, got int64");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_ADD, IDS(a), NULL, &out), HL_ERROR_TRACE,
                "more operands are needed, got 1");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_ADD, IDS(a, a, a), NULL, &out), HL_ERROR_TRACE,
                "fewer operands are taken, got 3");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_ADD, IDS(a, 77), NULL, &out), HL_ERROR_INTERNAL,
                "got id 77");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_CAST, IDS(a), NULL, &out), HL_ERROR_CONFIG,
                "attribute dtype is required");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_CAST, IDS(a), ATTRS(.dtype = {.dtype = 99}), &out),
                HL_ERROR_TRACE, "got number 99");
    CHECK_ERROR(
        hl_graph_add(graph, HL_OP_RESHAPE, IDS(a), ATTRS(.shape = {.shape = {2, {4, -1}}}), &out),
        HL_ERROR_SHAPE, "the elements must stay 6, got shape (4, -1)");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_EXPAND, IDS(a),
                             ATTRS(.shape = {.shape = {3, {INT64_MAX, 2, 3}}}), &out),
                HL_ERROR_SHAPE, "the bytes must fit in 63 bits");
    CHECK_ERROR(
        hl_graph_add(graph, HL_OP_SUM, IDS(a), ATTRS(.reduce = {.axes = {2, {1, -1}}}), &out),
        HL_ERROR_SHAPE, "an axis must be given once, got 1 twice");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_SUM, IDS(a), ATTRS(.reduce = {.axes = {25, {0}}}), &out),
                HL_ERROR_SHAPE, "at most 8 entries");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_PAD, IDS(a),
                             ATTRS(.pad = {.before = {2, {0, 3}}, .after = {2, {0, 0}}, .mode = 1}),
                             &out),
                HL_ERROR_SHAPE, "got 3, 0 for dim 1");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_POINTWISE_FUSED, IDS(a), NULL, &out), HL_ERROR_INTERNAL,
                "with its program");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_BATCH_NORM_GRAD, IDS(b, a, a, a, a), NULL, &out),
                HL_ERROR_SHAPE, "dy must have shape (2, 3), got (4, 5)");
    CHECK_ERROR(hl_graph_add(graph, HL_OP_BATCH_NORM_GRAD, IDS(a, a, a, a, a), NULL, &out),
                HL_ERROR_SHAPE, "the weight must have shape (3,), got (2, 3)");
    CHECK_ERROR(hl_graph_number(graph, HL_DTYPE_U8, 256, &out), HL_ERROR_DATA, "got 256");
    CHECK_ERROR(hl_graph_number(graph, HL_DTYPE_I64, 0x1p63, &out), HL_ERROR_DATA, "int64");
    CHECK_INT(graph->n_nodes, n_nodes);
    CHECK_INT(graph->n_values, n_values);
    CHECK_ERROR(hl_graph_commit(graph, a, a), HL_ERROR_TRACE, "must be a parameter or a buffer");
    hl_graph_destroy(graph);
}

static void test_identities(void)
{
    hl_graph *graph;
    hl_id x, out;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(2, 3), &x));
    CHECK_OK(
        hl_graph_add(graph, HL_OP_RESHAPE, IDS(x), ATTRS(.shape = {.shape = {2, {-1, 3}}}), &out));
    CHECK_INT(out, x);
    CHECK_OK(
        hl_graph_add(graph, HL_OP_EXPAND, IDS(x), ATTRS(.shape = {.shape = {2, {-1, 3}}}), &out));
    CHECK_INT(out, x);
    CHECK_OK(hl_build_cast(graph, x, HL_DTYPE_F32, &out));
    CHECK_INT(out, x);
    CHECK_OK(hl_build_permute(graph, x, (int64_t[]){0, -1}, &out));
    CHECK_INT(out, x);
    CHECK_OK(hl_build_permute(graph, x, (int64_t[]){1, 0}, &out));
    CHECK(out != x);
    CHECK_INT(graph->n_nodes, 1);
    /* The result may stand where the operand stood. */
    CHECK_OK(hl_graph_add(graph, HL_OP_NEG, &out, 1, NULL, &out));
    CHECK_INT(graph->n_nodes, 2);
    hl_graph_destroy(graph);
}

static void test_leaves(void)
{
    hl_graph *graph;
    hl_id a, b, number;
    int32_t store, again;
    double value;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 8, &store));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 8, &again));
    CHECK_INT(again, store);
    CHECK_ERROR(hl_graph_store(graph, "param", HL_DTYPE_F32, 9, &again), HL_ERROR_INTERNAL,
                "must stay float32 of 8 elements");
    CHECK_ERROR(hl_graph_leaf(graph, HL_VALUE_PARAM, FLOAT(3, 2), store, 3, "w", &a),
                HL_ERROR_INTERNAL, "elements 3 to 9");
    CHECK_ERROR(hl_graph_leaf(graph, HL_VALUE_CONST, FLOAT(2), store, 0, "w", &a),
                HL_ERROR_INTERNAL, "must be parameter or state");
    CHECK_OK(hl_graph_scalar(graph, "lr", &a));
    CHECK_OK(hl_graph_scalar(graph, "tau", &b));
    CHECK_INT(graph->values[b].offset, offsetof(hl_control, scalar[1]));
    CHECK_OK(hl_graph_scalar(graph, "lr", &b));
    CHECK_INT(a, b);
    for (int i = graph->n_scalars; i < HL_CONTROL_SCALARS; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        CHECK_OK(hl_graph_scalar(graph, name, &b));
    }
    CHECK_ERROR(hl_graph_scalar(graph, "more", &b), HL_ERROR_CONFIG, "at most 32");
    for (int d = 0; d < HL_DTYPE_COUNT; d++) {
        CHECK_OK(hl_graph_number(graph, (hl_dtype)d, 1, &number));
        CHECK(hl_graph_number_read(graph, number, &value) && value == 1);
    }
    CHECK_OK(hl_graph_verify(graph));
    hl_graph_destroy(graph);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* Dims of one element belong to either side; three splits are too many, as is a sum that keeps the
 * outer one of three groups and nothing else. */
static void test_splits(hl_graph *graph)
{
    hl_id x, y, kept, z;
    hl_program program;
    CHECK_OK(hl_graph_input(graph, "splits", FLOAT(4, 1, 3, 1, 2, 5), &x));
    CHECK_OK(hl_build_sum(graph, x, (int64_t[]){0, 3, 4, 5}, 4, false, &y));
    CHECK_OK(hl_program_from_node(graph, graph->values[y].node, &program));
    CHECK_INT(program.split[0], 2);
    CHECK_INT(program.split[1], 4);
    CHECK_INT(program.out[0].sums, HL_PW_SUM_OUTER | HL_PW_SUM_INNER);
    CHECK_OK(hl_program_check(&program, graph, &x, 1, &graph->values[y].type, 1));
    CHECK_OK(hl_build_sum(graph, x, (int64_t[]){1, 3}, 2, false, &kept));
    CHECK_OK(hl_program_from_node(graph, graph->values[kept].node, &program));
    CHECK_INT(program.out[0].sums, HL_PW_FULL);
    CHECK_OK(hl_program_check(&program, graph, &x, 1, &graph->values[kept].type, 1));
    CHECK_OK(hl_build_sum(graph, x, (int64_t[]){0, 4}, 2, false, &z));
    CHECK_ERROR(hl_program_from_node(graph, graph->values[z].node, &program), HL_ERROR_CONFIG,
                "two groups of dims at most");
    CHECK_OK(hl_build_sum(graph, x, (int64_t[]){0}, 1, false, &y));
    CHECK_OK(hl_program_from_node(graph, graph->values[y].node, &program));
    program.split[0] = 1, program.split[1] = 3;
    program.out[0].sums = HL_PW_SUM_OUTER;
    CHECK_ERROR(hl_program_check(&program, graph, &x, 1, &graph->values[y].type, 1),
                HL_ERROR_INTERNAL, "must not be summed alone");
    program.split[0] = 4;
    CHECK_ERROR(hl_program_check(&program, graph, &x, 1, &graph->values[y].type, 1),
                HL_ERROR_INTERNAL, "in order");
}

static void test_programs(void)
{
    hl_graph *graph;
    hl_id x, control, sums[5], one, out;
    hl_program program;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(2, 3, 4), &x));
    CHECK_OK(hl_graph_control(graph, &control));
    for (int op = 0; op < HL_OP_COUNT; op++) {
        const hl_op_info *info = hl_op_get((hl_op)op);
        hl_id in[3] = {x, x, x};
        hl_attrs attrs = {.uniform = {.shape = {2, {2, 3}}, .stream = "stream"}};
        if (op == HL_OP_DROPOUT_MASK)
            attrs = (hl_attrs){.dropout_mask = {.shape = {2, {2, 3}}, .stream = "stream"}};
        if (hl_pw_of_op((hl_op)op) == HL_PW_COUNT || op == HL_OP_CAST) continue;
        if (info->flags & HL_OP_GENERATOR) in[0] = control;
        check_case("%s", info->name);
        CHECK_OK(hl_graph_add(graph, (hl_op)op, in, info->min_in, &attrs, &out));
        const hl_value *value = &graph->values[out];
        CHECK_OK(hl_program_from_node(graph, value->node, &program));
        /* Equal operands are loaded once. */
        CHECK_INT(program.n_code, info->flags & HL_OP_GENERATOR ? 1 : 2);
        CHECK_OK(hl_program_check(&program, graph, graph->nodes[value->node].in,
                                  graph->nodes[value->node].n_in, &value->type, 1));
    }
    check_case("%s", "");
    static const int64_t axes[][3] = {{0, 1}, {2}, {0, 1, 2}, {1}, {0, 2}};
    static const int n_axes[] = {2, 1, 3, 1, 2};
    static const int want[] = {HL_PW_SUM_ROWS, HL_PW_SUM_COLS, HL_PW_SUM_ALL, HL_PW_SUM_MIDDLE,
                               HL_PW_SUM_OUTER | HL_PW_SUM_INNER};
    for (int i = 0; i < 5; i++) {
        CHECK_OK(hl_build_sum(graph, x, axes[i], n_axes[i], i == 1, &sums[i]));
        hl_node_id node = graph->values[sums[i]].node;
        CHECK_OK(hl_program_from_node(graph, node, &program));
        CHECK_INT(program.out[0].sums, want[i]);
        CHECK_OK(hl_program_check(&program, graph, &x, 1, &graph->values[sums[i]].type, 1));
    }
    test_splits(graph);
    CHECK_OK(hl_build_number_like(graph, x, 0.5, &one));
    CHECK_OK(hl_build_binary(graph, HL_OP_MUL, x, one, &out));
    CHECK_OK(hl_program_from_node(graph, graph->values[out].node, &program));
    CHECK_INT(program.code[1].op, HL_PW_NUMBER);
    hl_type type = FLOAT(2, 3, 4);
    CHECK_OK(hl_graph_add_program(graph, IDS(x, one), &program, &type, 1, &out));
    CHECK_OK(hl_graph_verify(graph));
    program.code[2].a = 9;
    CHECK_ERROR(hl_graph_add_program(graph, IDS(x, one), &program, &type, 1, &out),
                HL_ERROR_INTERNAL, "written before it is read");
    hl_graph_destroy(graph);
}

static hl_pw_kind kind_of(hl_graph *graph, hl_id value)
{
    hl_program program;
    hl_node_id node = graph->values[value].node;
    CHECK_OK(hl_program_from_node(graph, node, &program));
    return hl_program_kind(&program, graph, &graph->nodes[node]);
}

static hl_pw_kind kind_of_binary(hl_graph *graph, hl_op op, hl_id a, hl_id b)
{
    hl_id out;
    CHECK_OK(hl_graph_add(graph, op, IDS(a, b), NULL, &out));
    return kind_of(graph, out);
}

/* What the code loads, does and gives decides; a number that it holds does not. */
static void test_program_kinds(void)
{
    hl_graph *graph;
    hl_id x, i, doubles, one, one_double, number, half, number_64, cast;
    const hl_type scalar = {HL_DTYPE_F32, hl_shape_scalar()};
    const hl_type double_scalar = {HL_DTYPE_F64, hl_shape_scalar()};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(5), &x));
    CHECK_OK(hl_graph_input(graph, "i", (hl_type){HL_DTYPE_I64, SHAPE(5)}, &i));
    CHECK_OK(hl_graph_input(graph, "doubles", (hl_type){HL_DTYPE_F64, SHAPE(5)}, &doubles));
    CHECK_OK(hl_graph_input(graph, "one", scalar, &one));
    CHECK_OK(hl_graph_input(graph, "one_double", double_scalar, &one_double));
    CHECK_OK(hl_graph_const_round(graph, scalar, (double[]){3}, &number));
    CHECK_OK(hl_graph_const_round(graph, scalar, (double[]){0.5}, &half));
    CHECK_OK(hl_graph_const_round(graph, double_scalar, (double[]){0.1}, &number_64));
    CHECK_OK(hl_graph_add(graph, HL_OP_CAST, IDS(i), ATTRS(.dtype = {HL_DTYPE_F64}), &cast));
    CHECK_INT(kind_of(graph, cast), HL_PW_F64);
    CHECK_INT(kind_of_binary(graph, HL_OP_ADD, i, i), HL_PW_I64);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, i, number), HL_PW_I64);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, i, half), HL_PW_F32);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, i, one), HL_PW_F32);
    CHECK_INT(kind_of_binary(graph, HL_OP_DIV, i, i), HL_PW_F32);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, x, doubles), HL_PW_F64);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, x, one_double), HL_PW_F32);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, one, one_double), HL_PW_F64);
    CHECK_INT(kind_of_binary(graph, HL_OP_GT, one, number_64), HL_PW_F32);
    hl_graph_destroy(graph);
}

/* ---- order and the verifier ------------------------------------------------------------------ */

static void test_reorder(void)
{
    hl_graph *graph;
    hl_id x, a, b, c;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", FLOAT(2), &x));
    CHECK_OK(hl_build_unary(graph, HL_OP_NEG, x, &a));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &b));
    CHECK_OK(hl_build_unary(graph, HL_OP_SIN, b, &c));
    CHECK_OK(hl_graph_output(graph, c));
    CHECK_OK(hl_graph_reorder(graph, (hl_node_id[]){1, 2}, 2));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_INT(graph->values[c].node, 1);
    CHECK_INT(graph->values[a].node, HL_NONE);
    CHECK_OK(hl_build_unary(graph, HL_OP_COS, a, &a));
    CHECK_ERROR(hl_graph_verify(graph), HL_ERROR_INTERNAL, "an operand must be alive");
    CHECK_OK(hl_graph_reorder(graph, (hl_node_id[]){1, 0}, 2));
    CHECK_ERROR(hl_graph_verify(graph), HL_ERROR_INTERNAL, "operands must come first");
    CHECK_ERROR(hl_graph_reorder(graph, (hl_node_id[]){5}, 1), HL_ERROR_INTERNAL, "got 5");
    hl_graph_destroy(graph);
}

/* Breaks one thing of a good graph, checks the verifier's message, mends it. */
#define CHECK_BROKEN(place, value, text)                                                           \
    do {                                                                                           \
        __typeof__(place) check_kept = (place);                                                    \
        (place) = (value);                                                                         \
        CHECK_ERROR(hl_graph_verify(m.graph), HL_ERROR_INTERNAL, text);                            \
        (place) = check_kept;                                                                      \
        CHECK_OK(hl_graph_verify(m.graph));                                                        \
    } while (0)

static void test_verify(void)
{
    model m;
    CHECK_OK(build_model(&m));
    hl_graph *graph = m.graph;
    hl_node *last = &graph->nodes[graph->n_nodes - 1];
    CHECK_BROKEN(graph->values[m.weight].offset, 4, "it must lie in its store");
    CHECK_BROKEN(graph->values[m.weight].store, 9, "its store must exist");
    CHECK_BROKEN(graph->values[m.weight].type.dtype, HL_DTYPE_F64, "its dtype must be its store's");
    CHECK_BROKEN(graph->values[m.x].store, 1, "its slot field must exist");
    CHECK_BROKEN(graph->values[m.out].type.shape.dim[0], 4, "must be float32 (5, 3)");
    CHECK_BROKEN(graph->values[m.out].output, 1, "must be an output of its node");
    CHECK_BROKEN(graph->values[m.out].kind, HL_VALUE_PARAM, "its store must exist");
    CHECK_BROKEN(last->op, HL_OP_NEG, "as many as the op takes");
    CHECK_BROKEN(last->segment, HL_SEGMENT_BEGIN, "must not be of a later segment");
    CHECK_BROKEN(last->n_out, 2, "as many as the op makes");
    CHECK_BROKEN(graph->commits[0].target, m.x, "target must be a store's");
    CHECK_BROKEN(graph->commits[0].value, m.out, "a commit must keep the type");
    CHECK_BROKEN(graph->commits[0].segment, HL_SEGMENT_BEGIN, "must not be before its value");
    CHECK_BROKEN(graph->outputs[0], 999, "an output must exist");

    /* Guarded updates: committed where they are, or gone on from. */
    hl_id once, twice, third;
    hl_type state = FLOAT(3);
    hl_id other;
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, state, 1, 0, "other", &other));
    CHECK_OK(hl_graph_add(graph, HL_OP_ACCUMULATE, IDS(other, m.bias, m.control), NULL, &once));
    CHECK_ERROR(hl_graph_verify(graph), HL_ERROR_INTERNAL, "must be committed where it is");
    CHECK_OK(hl_graph_add(graph, HL_OP_ACCUMULATE, IDS(once, m.bias, m.control), NULL, &twice));
    CHECK_OK(hl_graph_commit(graph, other, twice));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_ERROR(hl_graph_commit(graph, other, once), HL_ERROR_TRACE, "got other a second time");
    CHECK_BROKEN(graph->commits[1].target, m.mean, "one commit a segment");

    /* In a row: one after another, in one segment, and nobody sees a value that is overwritten. */
    CHECK_OK(hl_graph_add(graph, HL_OP_ACCUMULATE, IDS(twice, m.bias, m.control), NULL, &third));
    graph->commits[1].value = third;
    CHECK_OK(hl_graph_verify(graph));
    last = &graph->nodes[graph->n_nodes - 1];
    CHECK_BROKEN(((hl_id *)last->in)[0], once, "one update may go on from a value");
    CHECK_BROKEN(last->segment, HL_SEGMENT_APPLY, "updates in a row must be of one segment");
    CHECK_BROKEN(graph->commits[1].value, twice, "the last update in a row is committed");
    CHECK_BROKEN(graph->outputs[0], twice, "an output must not be overwritten");
    graph->segment = HL_SEGMENT_APPLY;
    CHECK_OK(hl_graph_commit(graph, m.mean, third));
    CHECK_BROKEN(graph->commits[2].value, twice, "a commit must not be of what is overwritten");
    CHECK_OK(hl_graph_add(graph, HL_OP_NEG, IDS(third), NULL, &once));
    last = &graph->nodes[graph->n_nodes - 1];
    CHECK_BROKEN(((hl_id *)last->in)[0], twice, "what it reads must not be overwritten");
    graph->segment = HL_SEGMENT_MICRO;
    CHECK_OK(hl_graph_add(graph, HL_OP_ACCUMULATE, IDS(m.out, m.out, m.control), NULL, &once));
    CHECK_ERROR(hl_graph_verify(graph), HL_ERROR_INTERNAL, "what it updates must be a store's");
    hl_graph_destroy(graph);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static hl_status run_everything(void *context)
{
    model m;
    hl_graph *copy = NULL;
    char *text = NULL;
    hl_program program;
    hl_id out;
    (void)context;
    hl_status status;
    HL_GOTO(build_model(&m));
    const hl_value relu = m.graph->values[m.out];
    HL_GOTO(hl_program_from_node(m.graph, relu.node, &program));
    HL_GOTO(hl_graph_add_program(m.graph, m.graph->nodes[relu.node].in, 1, &program, &relu.type, 1,
                                 &out));
    HL_GOTO(hl_graph_clone(m.graph, &copy));
    HL_GOTO(hl_graph_print(copy, &text));
    HL_GOTO(hl_graph_reorder(copy, (hl_node_id[]){0, 1}, 2));
    HL_GOTO(hl_graph_verify(m.graph));
cleanup:
    hl_free(text);
    hl_graph_destroy(copy);
    hl_graph_destroy(m.graph);
    return status;
}

/* A failed call leaves a graph that verifies and goes on. */
static void test_usable_after_fault(void)
{
    for (int64_t k = 1; k < 12; k++) {
        model m;
        CHECK_OK(build_model(&m));
        hl_alloc_fault(k, true);
        hl_id out = m.out;
        hl_status status = HL_OK;
        for (int i = 0; i < 400 && status == HL_OK; i++)
            status = hl_build_binary_number(m.graph, HL_OP_ADD, out, i, &out);
        hl_alloc_fault(0, false);
        check_case("fault %d", (int)k);
        CHECK_INT(status, HL_ERROR_MEMORY);
        CHECK_INT(out, HL_NONE);
        CHECK_OK(hl_graph_verify(m.graph));
        CHECK_OK(hl_build_unary(m.graph, HL_OP_NEG, m.out, &out));
        CHECK_OK(hl_graph_verify(m.graph));
        hl_graph_destroy(m.graph);
    }
    check_case("%s", "");
}

int main(void)
{
    test_dtype();
    test_shape();
    test_merge();
    test_table();
    test_autodiff();
    test_print_and_clone();
    test_clone_keeps_settings();
    test_many_outputs();
    test_fences();
    test_errors();
    test_identities();
    test_leaves();
    test_programs();
    test_program_kinds();
    test_reorder();
    test_verify();
    test_usable_after_fault();
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, run_everything, NULL) > 20);
    return CHECK_DONE();
}
