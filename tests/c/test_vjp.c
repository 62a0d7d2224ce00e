/* Every gradient rule against central differences in float64 on the reference device, every
 * lowering against the op it stands for, and the gradients at the points where there is no
 * derivative. The loss is the sum of all outputs times fixed random weights, so that every output's
 * gradient flows. */
#include <math.h>

#include "ir/op.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "tests/c/eval.h"

enum { MAX_IN = 4, MAX_ELEMENTS = 256, MAX_OUT = 3 };

typedef enum fill { ANY, POSITIVE, INDEX } fill;

typedef struct spec {
    fill fill;
    int rank;
    int64_t dim[4];
    const int64_t *index; /* fill INDEX: an int64 operand */
} spec;

typedef struct vjp_case {
    hl_op op;
    int n_in;
    spec in[MAX_IN];
    hl_attrs attrs;
} vjp_case;

#define A(...)       {ANY, sizeof((int64_t[]){__VA_ARGS__}) / 8, {__VA_ARGS__}, NULL}
#define P(...)       {POSITIVE, sizeof((int64_t[]){__VA_ARGS__}) / 8, {__VA_ARGS__}, NULL}
#define I(data, ...) {INDEX, sizeof((int64_t[]){__VA_ARGS__}) / 8, {__VA_ARGS__}, data}
#define NUMBER       {ANY, 0, {0}, NULL}
#define NO_ATTRS                                                                                   \
    {                                                                                              \
        .matmul = {.trans_a = false }                                                              \
    }

static const int64_t twins[] = {2, 0, 2, 2}, grid[] = {1, 0, 3, 3, 1, 0},
                     rows[] = {1, 1, 0, 2, 1, 0}, classes[] = {3, 0, -100, 1};

static const vjp_case cases[] = {
    {HL_OP_NEG, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_ABS, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_EXP, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_EXPM1, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_LOG, 1, {P(3, 2)}, NO_ATTRS},
    {HL_OP_LOG1P, 1, {P(3, 2)}, NO_ATTRS},
    {HL_OP_SQRT, 1, {P(3, 2)}, NO_ATTRS},
    {HL_OP_RSQRT, 1, {P(3, 2)}, NO_ATTRS},
    {HL_OP_RECIPROCAL, 1, {P(3, 2)}, NO_ATTRS},
    {HL_OP_SIN, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_COS, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_TANH, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_SIGMOID, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_SOFTPLUS, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_ERF, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_RELU, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_GELU, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_CAST, 1, {A(3, 2)}, {.dtype = {.dtype = HL_DTYPE_F64}}},
    {HL_OP_ADD, 2, {A(3, 2), A(2)}, NO_ATTRS},
    {HL_OP_ADD, 2, {NUMBER, A(2, 1, 3)}, NO_ATTRS},
    {HL_OP_SUB, 2, {A(3, 1), A(1, 2)}, NO_ATTRS},
    {HL_OP_MUL, 2, {A(3, 2), A(1, 2)}, NO_ATTRS},
    {HL_OP_DIV, 2, {A(3, 2), P(3, 1)}, NO_ATTRS},
    {HL_OP_POW, 2, {P(3, 2), A(2)}, NO_ATTRS},
    {HL_OP_MAXIMUM, 2, {A(3, 2), A(2)}, NO_ATTRS},
    {HL_OP_MINIMUM, 2, {A(2), A(3, 2)}, NO_ATTRS},
    {HL_OP_WHERE, 3, {I(twins, 2, 2), A(2), A(2, 1)}, NO_ATTRS},
    {HL_OP_MATMUL, 3, {A(3, 4), A(4, 2), A(2)}, NO_ATTRS},
    {HL_OP_MATMUL, 2, {A(4, 3), A(4, 2)}, {.matmul = {.trans_a = 1, .trans_b = 0}}},
    {HL_OP_MATMUL, 2, {A(3, 4), A(2, 4)}, {.matmul = {.trans_a = 0, .trans_b = 1}}},
    {HL_OP_MATMUL, 2, {A(4, 3), A(2, 4)}, {.matmul = {.trans_a = 1, .trans_b = 1}}},
    {HL_OP_MATMUL, 3, {A(2, 3, 4), A(4, 2), A(2)}, NO_ATTRS},
    {HL_OP_MATMUL, 2, {A(2, 3, 4), A(2, 4)}, {.matmul = {.trans_a = 0, .trans_b = 1}}},
    {HL_OP_MATMUL, 2, {A(2, 4, 3), A(4, 2)}, {.matmul = {.trans_a = 1, .trans_b = 0}}},
    {HL_OP_MATMUL, 2, {A(2, 1, 3, 4), A(3, 4, 2)}, NO_ATTRS},
    {HL_OP_MATMUL, 2, {A(2, 4, 3), A(2, 2, 4)}, {.matmul = {.trans_a = 1, .trans_b = 1}}},
    {HL_OP_MATMUL, 2, {A(3, 4), A(2, 4, 2)}, NO_ATTRS},
    {HL_OP_SUM, 1, {A(2, 3, 2)}, {.reduce = {.axes = {2, {0, 2}}}}},
    {HL_OP_SUM, 1, {A(2, 3, 2)}, {.reduce = {.axes = {1, {1}}, .keepdim = 1}}},
    {HL_OP_SUM, 1, {A(2, 3)}, NO_ATTRS},
    {HL_OP_PROD, 1, {A(2, 3, 2)}, {.reduce = {.axes = {2, {0, 2}}}}},
    {HL_OP_PROD, 1, {A(2, 3, 2)}, {.reduce = {.axes = {1, {1}}, .keepdim = 1}}},
    {HL_OP_MAX, 1, {A(2, 3, 2)}, {.reduce = {.axes = {2, {0, 2}}}}},
    {HL_OP_MIN, 1, {A(2, 3, 2)}, {.reduce = {.axes = {1, {1}}, .keepdim = 1}}},
    {HL_OP_MOMENTS, 1, {A(2, 3, 2, 2)}, {.axes = {.axes = {3, {0, 2, 3}}}}},
    {HL_OP_MOMENTS, 1, {A(2, 3, 2)}, {.axes = {.axes = {1, {1}}}}},
    {HL_OP_MOMENTS, 1, {A(3, 4)}, {.axes = {.axes = {1, {1}}}}},
    {HL_OP_CUMSUM, 1, {A(2, 3)}, {.scan = {.axis = 1, .reverse = 0}}},
    {HL_OP_CUMSUM, 1, {A(2, 3)}, {.scan = {.axis = 0, .reverse = 1}}},
    {HL_OP_SOFTMAX, 1, {A(2, 3)}, NO_ATTRS},
    {HL_OP_LOG_SOFTMAX, 1, {A(2, 3)}, NO_ATTRS},
    {HL_OP_CROSS_ENTROPY, 2, {A(4, 5), I(classes, 4)}, {.cross_entropy = {.ignore_index = -100}}},
    {HL_OP_CROSS_ENTROPY,
     2,
     {A(4, 5), I(classes, 4)},
     {.cross_entropy = {.label_smoothing = 0.1, .ignore_index = -100}}},
    {HL_OP_RESHAPE, 1, {A(2, 3)}, {.shape = {.shape = {2, {3, -1}}}}},
    {HL_OP_PERMUTE, 1, {A(2, 3, 4)}, {.permute = {.dims = {3, {2, 0, 1}}}}},
    {HL_OP_EXPAND, 1, {A(3, 1)}, {.shape = {.shape = {3, {2, -1, 4}}}}},
    {HL_OP_CONCAT, 3, {A(2, 1), A(2, 3), A(2, 2)}, {.axis = {.axis = -1}}},
    {HL_OP_SLICE, 1, {A(7, 2)}, {.slice = {.axis = 0, .start = 1, .stop = -1, .step = 2}}},
    {HL_OP_PAD,
     1,
     {A(3, 4)},
     {.pad = {.before = {2, {1, -1}}, .after = {2, {2, -2}}, .value = 0.5}}},
    {HL_OP_PAD, 1, {A(3, 4)}, {.pad = {.before = {2, {2, 3}}, .after = {2, {1, 0}}, .mode = 1}}},
    {HL_OP_PAD, 1, {A(3, 4)}, {.pad = {.before = {2, {2, 3}}, .after = {2, {1, 0}}, .mode = 2}}},
    {HL_OP_PAD, 1, {A(3, 4)}, {.pad = {.before = {2, {2, 3}}, .after = {2, {1, 4}}, .mode = 3}}},
    {HL_OP_FLIP, 1, {A(2, 3)}, {.flip = {.axes = {1, {-1}}}}},
    {HL_OP_GATHER, 2, {A(4, 3), I(grid, 2, 3)}, NO_ATTRS},
    {HL_OP_SCATTER, 3, {A(4, 3), I(grid, 3, 2), A(3, 2)}, NO_ATTRS},
    {HL_OP_SCATTER, 3, {A(2, 4), I(grid, 2, 3), A(2, 3)}, {.axis = {.axis = 1}}},
    {HL_OP_SCATTER_ADD, 3, {A(4, 3), I(grid, 3, 2), A(3, 2)}, NO_ATTRS},
    {HL_OP_INDEX_SELECT, 2, {A(2, 3, 2), I(rows, 2, 3)}, {.axis = {.axis = 1}}},
    {HL_OP_INDEX_ADD, 3, {A(2, 3), I(twins, 4), A(2, 4)}, {.axis = {.axis = 1}}},
    {HL_OP_INDEX_COPY, 3, {A(2, 3), I(twins, 4), A(2, 4)}, {.axis = {.axis = 1}}},
    {HL_OP_INDEX_COPY, 3, {A(3, 2), I(twins, 4), A(4, 2)}, {.axis = {.axis = 0}}},
    {HL_OP_BATCH_NORM, 3, {A(5, 3), A(3), A(3)}, {.batch_norm = {.eps = 1e-3}}},
    {HL_OP_BATCH_NORM, 3, {A(3, 2, 2, 2), A(2), A(2)}, {.batch_norm = {.eps = 1e-3}}},
    {HL_OP_LAYER_NORM, 1, {A(2, 5)}, {.layer_norm = {.n_axes = 1, .eps = 1e-3}}},
    {HL_OP_LAYER_NORM, 2, {A(2, 5), A(5)}, {.layer_norm = {.n_axes = 1, .eps = 1e-3}}},
    {HL_OP_LAYER_NORM,
     3,
     {A(2, 3, 4), A(3, 4), A(3, 4)},
     {.layer_norm = {.n_axes = 2, .eps = 1e-3}}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct trial {
    hl_graph *graph;
    hl_id in[MAX_IN], loss, grads[MAX_IN];
    void *data[MAX_IN];
    double floats[MAX_IN][MAX_ELEMENTS];
} trial;

/* In (0.2, 2.2), no two alike; of both signs for ANY. */
static double draw(fill kind)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    double u = (double)(state >> 11) * 0x1p-53;
    double magnitude = 0.2 + 2 * u;
    return kind == ANY && (state & 1) ? -magnitude : magnitude;
}

static hl_status add_weighted_sum(hl_graph *graph, hl_id value, hl_id *loss)
{
    double weights[MAX_ELEMENTS];
    hl_type type = graph->values[value].type;
    for (int64_t i = 0; i < hl_shape_numel(&type.shape); i++) weights[i] = draw(ANY);
    hl_id weight, product;
    HL_TRY(hl_graph_const(graph, type, weights, &weight));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, value, weight, &product));
    HL_TRY(hl_build_sum(graph, product, NULL, 0, false, &product));
    return hl_build_accumulate(graph, product, loss);
}

static hl_status build_trial(const vjp_case *c, trial *t)
{
    hl_id first, wrt[MAX_IN], grads[MAX_IN];
    int n_wrt = 0;
    t->loss = HL_NONE;
    HL_TRY(hl_graph_create(&t->graph));
    for (int k = 0; k < c->n_in; k++) {
        const spec *s = &c->in[k];
        hl_type type = {s->fill == INDEX ? HL_DTYPE_I64 : HL_DTYPE_F64,
                        hl_shape_make(s->rank, s->dim)};
        for (int64_t i = 0; i < hl_shape_numel(&type.shape); i++) t->floats[k][i] = draw(s->fill);
        t->data[k] = s->fill == INDEX ? (void *)s->index : t->floats[k];
        HL_TRY(hl_graph_input(t->graph, "x", type, &t->in[k]));
        if (s->fill != INDEX) wrt[n_wrt++] = t->in[k];
    }
    HL_TRY(hl_graph_add(t->graph, c->op, t->in, c->n_in, &c->attrs, &first));
    for (int j = 0; j < hl_op_get(c->op)->n_out; j++)
        HL_TRY(add_weighted_sum(t->graph, first + j, &t->loss));
    HL_TRY(hl_pass_autodiff(t->graph, t->loss, HL_NONE, wrt, n_wrt, grads));
    for (int k = 0, n = 0; k < c->n_in; k++)
        t->grads[k] = c->in[k].fill == INDEX ? HL_NONE : grads[n++];
    return hl_graph_verify(t->graph);
}

static double eval_loss(trial *t)
{
    evaluation e;
    CHECK_OK(eval_begin(&e, t->graph, t->data));
    double loss = *(double *)e.data[t->loss];
    eval_end(&e);
    return loss;
}

static void check_gradient(trial *t, int k)
{
    const double step = 1e-5;
    int64_t n = hl_shape_numel(hl_graph_shape(t->graph, t->in[k]));
    double got[MAX_ELEMENTS];
    evaluation e;
    CHECK(t->grads[k] != HL_NONE);
    if (t->grads[k] == HL_NONE) return;
    CHECK_OK(eval_begin(&e, t->graph, t->data));
    memcpy(got, e.data[t->grads[k]], (size_t)n * sizeof(double));
    eval_end(&e);
    for (int64_t i = 0; i < n; i++) {
        double x = t->floats[k][i];
        t->floats[k][i] = x + step;
        double above = eval_loss(t);
        t->floats[k][i] = x - step;
        double below = eval_loss(t);
        t->floats[k][i] = x;
        double want = (above - below) / (2 * step);
        if (!(fabs(got[i] - want) <= 1e-6 * (1 + fabs(want))))
            check_fail(__FILE__, __LINE__, "operand %d, element %lld: got %.9g, want %.9g", k,
                       (long long)i, got[i], want);
    }
}

static void test_gradients(void)
{
    for (int i = 0; i < N_CASES; i++) {
        trial t = {0};
        check_case("%d %s", i, hl_op_get(cases[i].op)->name);
        hl_status status = build_trial(&cases[i], &t);
        CHECK_OK(status);
        for (int k = 0; status == HL_OK && k < cases[i].n_in; k++)
            if (cases[i].in[k].fill != INDEX) check_gradient(&t, k);
        hl_graph_destroy(t.graph);
    }
    for (int op = 0; op < HL_OP_COUNT; op++) {
        int i = 0;
        while (i < N_CASES && (int)cases[i].op != op) i++;
        check_case("%s", hl_op_get(op)->name);
        CHECK(i < N_CASES || !hl_op_get(op)->vjp);
    }
    check_case("%s", "");
}

/* ---- lowering -------------------------------------------------------------------------------- */

enum { MAX_PAIRS = 256 };

typedef struct lowered_pairs {
    hl_id node[MAX_PAIRS], lowered[MAX_PAIRS];
    int n;
} lowered_pairs;

/* Lowers every node, and what comes of it, until nothing simpler is left. */
static void lower_all(hl_graph *graph, lowered_pairs *pairs)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        hl_node node = graph->nodes[i];
        const hl_op_info *info = hl_op_get(node.op);
        hl_id out[MAX_OUT];
        if (!info->lower) continue;
        hl_status status = info->lower(graph, (hl_node_id)i, out);
        if (status != HL_OK) CHECK_INT(status, HL_ERROR_DEVICE);
        if (status != HL_OK) continue;
        for (int32_t j = 0; j < node.n_out; j++, pairs->n++) {
            CHECK(pairs->n < MAX_PAIRS);
            if (pairs->n >= MAX_PAIRS) return;
            pairs->node[pairs->n] = node.out + j;
            pairs->lowered[pairs->n] = out[j];
        }
    }
}

static void compare_pair(const evaluation *e, hl_id node, hl_id lowered)
{
    const hl_type *want = &e->graph->values[node].type, *got = &e->graph->values[lowered].type;
    CHECK(hl_type_equal(want, got));
    for (int64_t i = 0; i < hl_shape_numel(&want->shape); i++) {
        double a = hl_ref_load(e->data[node], want->dtype, i);
        double b = hl_ref_load(e->data[lowered], got->dtype, i);
        if (!(fabs(a - b) <= 1e-12 * (1 + fabs(a))))
            check_fail(__FILE__, __LINE__, "%%%d is %.17g, lowered %%%d %.17g", node, a, lowered,
                       b);
    }
}

static int check_lowering(hl_graph *graph, void *const *data)
{
    lowered_pairs pairs = {.n = 0};
    evaluation e;
    lower_all(graph, &pairs);
    CHECK_OK(hl_graph_verify(graph));
    CHECK_OK(eval_begin(&e, graph, data));
    for (int i = 0; i < pairs.n; i++) compare_pair(&e, pairs.node[i], pairs.lowered[i]);
    eval_end(&e);
    return pairs.n;
}

/* Without clipping, with a norm above what it is clipped to, and below; unscaled and scaled. */
static void check_gradient_norm(void)
{
    static const double clips[] = {0, 0.25, 1000};
    for (int c = 0; c < 3; c++)
        for (int n_in = 2; n_in <= 3; n_in++) {
            double grad[7], factor = 0.5, scale = 8;
            void *data[3] = {grad, &factor, &scale};
            hl_type types[3] = {{HL_DTYPE_F64, {1, {7}}}, {HL_DTYPE_F64, {0}}, {HL_DTYPE_F64, {0}}};
            hl_graph *graph;
            hl_id in[3], out[2];
            hl_attrs attrs = {.gradient_norm = {clips[c]}};
            check_case("gradient_norm, clip %g, %d inputs", clips[c], n_in);
            for (int i = 0; i < 7; i++) grad[i] = 8 * draw(ANY);
            CHECK_OK(hl_graph_create(&graph));
            for (int i = 0; i < n_in; i++)
                CHECK_OK(hl_graph_input(graph, i ? i > 1 ? "scale" : "factor" : "grad", types[i],
                                        &in[i]));
            CHECK_OK(hl_graph_add(graph, HL_OP_GRADIENT_NORM, in, n_in, &attrs, out));
            CHECK_INT(check_lowering(graph, data), 2);
            hl_graph_destroy(graph);
        }
}

static void test_lowering(void)
{
    bool seen[HL_OP_COUNT] = {false};
    for (int i = 0; i < N_CASES; i++) {
        trial t = {0};
        check_case("%d %s", i, hl_op_get(cases[i].op)->name);
        CHECK_OK(build_trial(&cases[i], &t));
        for (int64_t k = 0; k < t.graph->n_nodes; k++) seen[t.graph->nodes[k].op] = true;
        check_lowering(t.graph, t.data);
        hl_graph_destroy(t.graph);
    }
    for (int axis = 0; axis < 3; axis++)
        for (int op = HL_OP_ARGMAX; op <= HL_OP_ARGMIN; op++) {
            double x[2 * 3 * 2];
            for (int i = 0; i < 12; i++) x[i] = draw(ANY);
            void *data[1] = {x};
            hl_graph *graph;
            hl_id in, out;
            hl_attrs attrs = {.arg_reduce = {axis, axis == 1}};
            check_case("%s, axis %d", hl_op_get((hl_op)op)->name, axis);
            CHECK_OK(hl_graph_create(&graph));
            hl_type type = {HL_DTYPE_F64, {3, {2, 3, 2}}};
            CHECK_OK(hl_graph_input(graph, "x", type, &in));
            CHECK_OK(hl_graph_add(graph, (hl_op)op, &in, 1, &attrs, &out));
            CHECK_INT(check_lowering(graph, data), axis == 2 ? 0 : 1);
            seen[op] = true;
            hl_graph_destroy(graph);
        }
    check_gradient_norm();
    seen[HL_OP_GRADIENT_NORM] = true;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        check_case("%s", hl_op_get((hl_op)op)->name);
        CHECK(seen[op] || !hl_op_get((hl_op)op)->lower);
    }
    check_case("%s", "");
}

/* ---- where there is no derivative ------------------------------------------------------------ */

/* Gradients of sum(op(a, b)); b NULL: one operand. */
static void check_points(int line, hl_op op, const hl_attrs *attrs, int64_t n, double *a, double *b,
                         const double *want_a, const double *want_b)
{
    hl_graph *graph;
    hl_id in[2], loss, grads[2] = {HL_NONE, HL_NONE};
    void *data[2] = {a, b};
    int n_in = b ? 2 : 1;
    evaluation e;
    check_case("%s, line %d", hl_op_get(op)->name, line);
    CHECK_OK(hl_graph_create(&graph));
    hl_type type = {HL_DTYPE_F64, hl_shape_1d(n)};
    for (int k = 0; k < n_in; k++) CHECK_OK(hl_graph_input(graph, "x", type, &in[k]));
    CHECK_OK(hl_graph_add(graph, op, in, n_in, attrs, &loss));
    CHECK_OK(hl_build_sum(graph, loss, NULL, 0, false, &loss));
    CHECK_OK(hl_pass_autodiff(graph, loss, HL_NONE, in, n_in, grads));
    lowered_pairs pairs = {.n = 0};
    lower_all(graph, &pairs);
    CHECK_OK(eval_begin(&e, graph, data));
    for (int i = 0; i < pairs.n; i++) compare_pair(&e, pairs.node[i], pairs.lowered[i]);
    for (int k = 0; k < n_in; k++) {
        const double *want = k ? want_b : want_a, *got = e.data[grads[k]];
        for (int64_t i = 0; want && i < n; i++)
            if (!(fabs(got[i] - want[i]) <= 1e-12))
                check_fail(__FILE__, line, "operand %d, element %d: got %g, want %g", k, (int)i,
                           got[i], want[i]);
    }
    eval_end(&e);
    hl_graph_destroy(graph);
    check_case("%s", "");
}
#define LIST(...) ((double[]){__VA_ARGS__})
#define CHECK_UNARY(op, n, a, da)                                                                  \
    check_points(__LINE__, HL_OP_##op, &(hl_attrs)NO_ATTRS, n, a, NULL, da, NULL)
#define CHECK_BINARY(op, n, a, b, da, db)                                                          \
    check_points(__LINE__, HL_OP_##op, &(hl_attrs)NO_ATTRS, n, a, b, da, db)

static void test_points(void)
{
    CHECK_UNARY(RELU, 4, LIST(-1, 0, 2, NAN), LIST(0, 0, 1, 0));
    CHECK_UNARY(ABS, 3, LIST(-1, 0, 2), LIST(-1, 0, 1));
    CHECK_BINARY(MAXIMUM, 3, LIST(1, 2, 3), LIST(2, 2, 2), LIST(0, 0.5, 1), LIST(1, 0.5, 0));
    CHECK_BINARY(MINIMUM, 3, LIST(1, 2, 3), LIST(2, 2, 2), LIST(1, 0.5, 0), LIST(0, 0.5, 1));
    CHECK_UNARY(MAX, 4, LIST(1, 3, 3, 2), LIST(0, 0.5, 0.5, 0));
    CHECK_UNARY(MIN, 4, LIST(1, 3, 3, 1), LIST(0.5, 0, 0, 0.5));
    CHECK_UNARY(PROD, 3, LIST(2, 0, 3), LIST(0, 6, 0));
    CHECK_UNARY(PROD, 3, LIST(0, 5, 0), LIST(0, 0, 0));
    CHECK_UNARY(PROD, 3, LIST(2, 4, 3), LIST(12, 6, 8));
    CHECK_BINARY(POW, 5, LIST(0, 0, -2, 4, 0), LIST(0, 2, 3, 0.5, 1), LIST(0, 0, 12, 0.25, 1),
                 NULL);
    CHECK_BINARY(POW, 3, LIST(0, 0, 1), LIST(0, 2, 3), NULL, LIST(0, 0, 0));
    CHECK_UNARY(SOFTPLUS, 3, LIST(-800, 0, 800), LIST(0, 0.5, 1));
    CHECK_UNARY(SIGMOID, 3, LIST(-800, 0, 800), LIST(0, 0.25, 0));
}

int main(void)
{
    test_gradients();
    test_lowering();
    test_points();
    return CHECK_DONE();
}
