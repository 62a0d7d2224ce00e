/* Reassociation (csrc/passes/reassociate.c): of (x A) B and x (A B) a training step computes what
 * takes fewer products, counted in the graphs of both with their gradients; values and gradients
 * are those of before (of integers, so that nothing rounds); and all the cases in which the graph
 * must stay as it is. */
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"
#include "tests/c/eval.h"

static hl_type f64(hl_shape shape)
{
    return (hl_type){HL_DTYPE_F64, shape};
}

/* x (..., k) times A (k, m) times B (m, n), plus a bias. */
typedef struct sizes {
    hl_shape rows; /* leading dims of x */
    int64_t k, m, n;
    bool trans_a, trans_b; /* A and B lie transposed */
    bool has_bias;
    bool dx, da, db; /* what is trained */
} sizes;

typedef struct layer {
    hl_graph *graph;
    hl_id x, a, b, y, loss;
    hl_id wrt[4]; /* what is trained: the bias always, if there is one, so that something is */
    int64_t n_wrt;
} layer;

static hl_id add_matrix(hl_graph *graph, const char *name, int64_t n, int64_t m, bool transposed)
{
    hl_id id;
    hl_shape shape = transposed ? hl_shape_2d(m, n) : hl_shape_2d(n, m);
    CHECK_OK(hl_graph_input(graph, name, f64(shape), &id));
    return id;
}

/* The sum of y y, of which each is wanted. */
static void finish(layer *net)
{
    hl_id square;
    CHECK_OK(hl_build_binary(net->graph, HL_OP_MUL, net->y, net->y, &square));
    CHECK_OK(hl_build_sum(net->graph, square, NULL, 0, false, &net->loss));
    CHECK_OK(hl_graph_output(net->graph, net->loss));
}

static layer make_net(const sizes *s, bool at_once)
{
    layer net = {0};
    hl_shape shape = s->rows;
    hl_id in[3];
    hl_attrs attrs = {0};
    shape.dim[shape.rank++] = s->k;
    CHECK_OK(hl_graph_create(&net.graph));
    CHECK_OK(hl_graph_input(net.graph, "x", f64(shape), &net.x));
    net.a = add_matrix(net.graph, "a", s->k, s->m, s->trans_a);
    net.b = add_matrix(net.graph, "b", s->m, s->n, s->trans_b);
    CHECK_OK(hl_graph_input(net.graph, "bias", f64(hl_shape_1d(s->n)), &in[2]));
    CHECK_OK(hl_graph_scope(net.graph, "body"));
    if (at_once) {
        in[0] = net.x;
        CHECK_OK(hl_build_matmul(net.graph, net.a, net.b, s->trans_a, s->trans_b, &in[1]));
    } else {
        CHECK_OK(hl_build_matmul(net.graph, net.x, net.a, false, s->trans_a, &in[0]));
        in[1] = net.b;
        attrs.matmul.trans_b = s->trans_b;
    }
    CHECK_OK(hl_graph_add(net.graph, HL_OP_MATMUL, in, 2 + s->has_bias, &attrs, &net.y));
    if (s->dx) net.wrt[net.n_wrt++] = net.x;
    if (s->da) net.wrt[net.n_wrt++] = net.a;
    if (s->db) net.wrt[net.n_wrt++] = net.b;
    if (s->has_bias) net.wrt[net.n_wrt++] = in[2];
    finish(&net);
    return net;
}

static double count_products(const hl_graph *graph)
{
    double n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op != HL_OP_MATMUL) continue;
        const hl_shape *a = hl_graph_shape(graph, node->in[0]);
        n += (double)hl_shape_numel(hl_graph_shape(graph, node->out)) *
             (double)a->dim[a->rank - (node->attrs.matmul.trans_a ? 2 : 1)];
    }
    return n;
}

/* Gradients become outputs, and what nobody needs goes. */
static void add_gradients(layer *net)
{
    hl_id grads[4];
    CHECK_OK(hl_pass_autodiff(net->graph, net->loss, HL_NONE, net->wrt, net->n_wrt, grads));
    for (int64_t i = 0; i < net->n_wrt; i++) CHECK_OK(hl_graph_output(net->graph, grads[i]));
    CHECK_OK(hl_rewrite_sort(net->graph));
    CHECK_OK(hl_graph_verify(net->graph));
}

enum { MOST = 4096 };

/* Are all outputs those of the other graph? Small integers, whose sums are exact in any order. */
static bool is_same(hl_graph *a, hl_graph *b)
{
    static double inputs[4][MOST];
    evaluation one, other;
    bool same = a->n_outputs == b->n_outputs;
    for (int f = 0; f < 4; f++)
        for (int i = 0; i < MOST; i++) inputs[f][i] = (double)((i * 5 + f) % 7 - 3);
    void *fields[] = {inputs[0], inputs[1], inputs[2], inputs[3]};
    CHECK_OK(eval_begin(&one, a, fields));
    CHECK_OK(eval_begin(&other, b, fields));
    for (int64_t i = 0; same && i < a->n_outputs; i++) {
        const double *p = one.data[a->outputs[i]], *q = other.data[b->outputs[i]];
        int64_t n = hl_shape_numel(hl_graph_shape(a, a->outputs[i]));
        same = hl_shape_equal(hl_graph_shape(a, a->outputs[i]), hl_graph_shape(b, b->outputs[i]));
        for (int64_t k = 0; same && k < n; k++) same = p[k] == q[k];
    }
    eval_end(&one);
    eval_end(&other);
    return same;
}

static bool check_case_of(const sizes *s)
{
    layer before = make_net(s, false), after = make_net(s, false), other = make_net(s, true);
    CHECK_OK(hl_pass_reassociate(after.graph, after.wrt, after.n_wrt));
    CHECK_OK(hl_graph_verify(after.graph));
    after.loss = after.graph->outputs[0];
    add_gradients(&before);
    add_gradients(&after);
    add_gradients(&other);
    double as_is = count_products(before.graph), at_once = count_products(other.graph);
    CHECK(count_products(after.graph) == (at_once < as_is ? at_once : as_is));
    CHECK(is_same(before.graph, after.graph));
    hl_graph_destroy(before.graph);
    hl_graph_destroy(after.graph);
    hl_graph_destroy(other.graph);
    return at_once < as_is;
}

/* Every choice of what is trained, of matrices that lie transposed, and of a bias. */
static void test_what_takes_fewer_products(void)
{
    static const sizes shapes[] = {
        {.rows = {1, {60}}, .k = 8, .m = 5, .n = 5},
        {.rows = {1, {60}}, .k = 5, .m = 8, .n = 8},
        {.rows = {1, {60}}, .k = 12, .m = 2, .n = 12},
        {.rows = {1, {60}}, .k = 3, .m = 12, .n = 3},
        {.rows = {3, {2, 5, 7}}, .k = 6, .m = 6, .n = 6},
        {.rows = {1, {3}}, .k = 6, .m = 6, .n = 6},
        {.rows = {1, {1}}, .k = 3, .m = 12, .n = 3},
        {.rows = {2, {4, 16}}, .k = 4, .m = 3, .n = 9},
        {.rows = {1, {0}}, .k = 4, .m = 8, .n = 4},
        {.rows = {1, {60}}, .k = 1, .m = 5, .n = 1},
    };
    int n_changed = 0, n = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 1; form < 64; form++) {
            sizes s = shapes[i];
            s.dx = form & 1, s.da = form & 2, s.db = form & 4;
            s.has_bias = form & 8, s.trans_a = form & 16, s.trans_b = form & 32;
            if (!(form & 15)) continue;
            check_case("shapes %d, form %d", (int)i, form);
            n_changed += check_case_of(&s);
            n++;
        }
    CHECK(n_changed > n / 5 && n_changed < n * 4 / 5);
}

static void test_products_in_turn(void)
{
    enum { N = 5 };
    layer net = {0};
    hl_id matrices[N];
    CHECK_OK(hl_graph_create(&net.graph));
    CHECK_OK(hl_graph_input(net.graph, "x", f64(hl_shape_2d(500, 6)), &net.x));
    net.y = net.x;
    for (int i = 0; i < N; i++) {
        matrices[i] = add_matrix(net.graph, "w", 6, 6, false);
        CHECK_OK(hl_build_matmul(net.graph, net.y, matrices[i], false, false, &net.y));
    }
    finish(&net);
    CHECK_OK(hl_pass_reassociate(net.graph, &matrices[2], 1));
    CHECK_OK(hl_graph_verify(net.graph));
    int n_of_rows = 0;
    for (int64_t i = 0; i < net.graph->n_nodes; i++)
        n_of_rows += hl_graph_shape(net.graph, net.graph->nodes[i].out)->dim[0] == 500 &&
                     net.graph->nodes[i].op == HL_OP_MATMUL;
    CHECK_INT(n_of_rows, 1);
    hl_graph_destroy(net.graph);
}

/* ---- what stays ------------------------------------------------------------------------------ */

typedef enum layer_form {
    PLAIN, /* is changed */
    READ_TWICE,
    AN_OUTPUT,
    COMMITTED,
    WITH_A_BIAS,
    A_FACTOR_BETWEEN,
    IN_A_CHECKPOINT,
    BEHIND_A_FENCE,
    IN_ANOTHER_SEGMENT,
    A_STACK_OF_MATRICES,
    ROWS_TRANSPOSED,
    SECOND_OPERAND,
    N_FORMS
} layer_form;

static void add_nodes(layer *net, layer_form form)
{
    hl_graph *graph = net->graph;
    hl_shape b = form == A_STACK_OF_MATRICES ? (hl_shape){3, {1, 6, 6}} : hl_shape_2d(6, 6);
    hl_id in[3], middle, state;
    CHECK_OK(
        hl_graph_input(graph, "x", f64(hl_shape_2d(form == ROWS_TRANSPOSED ? 6 : 60, 6)), &net->x));
    net->a = add_matrix(graph, "a", 6, 6, false);
    CHECK_OK(hl_graph_input(graph, "b", f64(b), &net->b));
    CHECK_OK(hl_graph_input(graph, "bias", f64(hl_shape_1d(6)), &in[2]));
    in[0] = net->x, in[1] = net->a;
    hl_attrs attrs = {.matmul = {.trans_a = form == ROWS_TRANSPOSED}};
    if (form == IN_A_CHECKPOINT) CHECK_OK(hl_graph_checkpoint_begin(graph));
    CHECK_OK(hl_graph_add(graph, HL_OP_MATMUL, in, 2 + (form == WITH_A_BIAS), &attrs, &middle));
    if (form == IN_A_CHECKPOINT) hl_graph_checkpoint_end(graph);
    if (form == A_FACTOR_BETWEEN)
        CHECK_OK(hl_build_binary(graph, HL_OP_MUL, middle, in[2], &middle));
    if (form == BEHIND_A_FENCE) graph->fence++;
    if (form == IN_ANOTHER_SEGMENT) graph->segment = HL_SEGMENT_APPLY;
    if (form == SECOND_OPERAND)
        CHECK_OK(hl_build_matmul(graph, net->b, middle, false, true, &net->y));
    else
        CHECK_OK(hl_build_matmul(graph, middle, net->b, false, false, &net->y));
    if (form == READ_TWICE) CHECK_OK(hl_build_binary(graph, HL_OP_ADD, net->y, middle, &net->y));
    if (form == AN_OUTPUT) CHECK_OK(hl_graph_output(graph, middle));
    if (form != COMMITTED) return;
    int32_t store;
    CHECK_OK(hl_graph_store(graph, "s", HL_DTYPE_F64, 360, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, f64(hl_shape_2d(60, 6)), store, 0, "s", &state));
    CHECK_OK(hl_graph_commit(graph, state, middle));
}

static void test_what_stays(void)
{
    for (int form = 0; form < N_FORMS; form++) {
        layer net = {0};
        check_case("form %d", form);
        CHECK_OK(hl_graph_create(&net.graph));
        add_nodes(&net, (layer_form)form);
        finish(&net);
        int64_t n = net.graph->n_nodes, n_values = net.graph->n_values;
        CHECK_OK(hl_pass_reassociate(net.graph, &net.b, 1));
        CHECK_OK(hl_graph_verify(net.graph));
        CHECK_INT(net.graph->n_nodes, n);
        CHECK((net.graph->n_values > n_values) == (form == PLAIN));
        CHECK_INT(net.graph->segment,
                  form == IN_ANOTHER_SEGMENT ? HL_SEGMENT_APPLY : HL_SEGMENT_MICRO);
        hl_graph_destroy(net.graph);
    }
}

/* New nodes stand where the second product stood, and nodes that come later where they would have.
 */
static void test_where_they_stand(void)
{
    const sizes s = {.rows = {1, {60}}, .k = 5, .m = 8, .n = 5, .db = true};
    layer net = make_net(&s, false);
    CHECK_OK(hl_graph_scope(net.graph, "behind"));
    const char *scope = net.graph->scope;
    CHECK_OK(hl_pass_reassociate(net.graph, net.wrt, net.n_wrt));
    CHECK(net.graph->scope == scope);
    for (int64_t i = 0; i < net.graph->n_nodes; i++)
        CHECK(net.graph->nodes[i].scope && !strcmp(net.graph->nodes[i].scope, "body"));
    hl_graph_destroy(net.graph);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static hl_status reassociate_copy(void *context)
{
    const layer *net = context;
    hl_graph *copy;
    HL_TRY(hl_graph_clone(net->graph, &copy));
    hl_status status = hl_pass_reassociate(copy, net->wrt, net->n_wrt);
    hl_graph_destroy(copy);
    return status;
}

static void test_faults(void)
{
    const sizes s = {.rows = {1, {60}}, .k = 5, .m = 8, .n = 5, .db = true};
    layer net = make_net(&s, false);
    CHECK(check_walk_faults(CHECK_FAULT_ALLOC, HL_ERROR_MEMORY, 0, reassociate_copy, &net) > 0);
    hl_graph_destroy(net.graph);
}

int main(void)
{
    test_what_takes_fewer_products();
    test_products_in_turn();
    test_what_stays();
    test_where_they_stand();
    test_faults();
    return CHECK_DONE();
}
