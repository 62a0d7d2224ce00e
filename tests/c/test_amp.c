/* Mixed precision: what the pass leaves behind, that its emulation is exactly "rounded operands,
 * float32 sums", and the loss scale in whole training steps. Compiled per instruction set. */
#include <stdlib.h>

#include "base/half.h"
#include "tests/c/train.h"

enum { N_NETS = 60 };

static bool is_16(hl_dtype dtype)
{
    return dtype == HL_DTYPE_BF16 || dtype == HL_DTYPE_F16;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_graph *make_graph(uint64_t seed)
{
    hl_graph *graph;
    net n = net_roll(seed, 1);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(net_build(graph, &n));
    CHECK_OK(hl_pass_guard(graph));
    return graph;
}

static const hl_node *maker_of(const hl_graph *graph, hl_id id)
{
    const hl_value *value = hl_graph_value(graph, id);
    return value->kind == HL_VALUE_ACT ? &graph->nodes[value->node] : NULL;
}

static void check_cast(const hl_graph *graph, int64_t index)
{
    const hl_node *node = &graph->nodes[index];
    const hl_node *from = maker_of(graph, node->in[0]);
    if (!is_16(hl_graph_dtype(graph, node->out))) return;
    CHECK(!(from && from->op == HL_OP_CAST && is_16(hl_graph_dtype(graph, from->in[0]))));
    for (int64_t i = 0; i < index; i++) {
        const hl_node *other = &graph->nodes[i];
        CHECK(!(other->op == HL_OP_CAST && other->in[0] == node->in[0] &&
                other->segment == node->segment &&
                hl_graph_dtype(graph, other->out) == hl_graph_dtype(graph, node->out)));
    }
}

static void check_types(const hl_graph *graph, hl_dtype reduced, bool keeps_reduced)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        uint32_t flags = hl_op_get(node->op)->flags;
        check_case("node %d %s", (int)i, hl_op_get(node->op)->name);
        if (node->op == HL_OP_CAST) check_cast(graph, i);
        if (hl_op_is_product(node->op)) {
            hl_dtype result = hl_graph_dtype(graph, node->out);
            CHECK_INT(hl_graph_dtype(graph, node->in[0]), reduced);
            CHECK_INT(hl_graph_dtype(graph, node->in[1]), reduced);
            CHECK(result == HL_DTYPE_F32 || (keeps_reduced && result == reduced));
            if (node->n_in == 3) CHECK_INT(hl_graph_dtype(graph, node->in[2]), result);
        } else if (node->op != HL_OP_CAST && hl_op_role_out(node->op, 0) != 'f') {
            char role = hl_op_role_out(node->op, 0);
            bool is_norm = role == 'g' || role == 'p';
            for (int32_t j = 0; j < node->n_in; j++)
                CHECK(!is_16(hl_graph_dtype(graph, node->in[j])) ||
                      (keeps_reduced && is_norm && hl_op_role_in(node->op, j) == 'w'));
        }
        if (!keeps_reduced && !(flags & HL_OP_VIEW))
            CHECK(node->op == HL_OP_CAST || !is_16(hl_graph_dtype(graph, node->out)));
    }
    for (int64_t i = 0; i < graph->n_commits; i++)
        CHECK(!is_16(hl_graph_dtype(graph, graph->commits[i].value)));
    for (int64_t i = 0; i < graph->n_outputs; i++)
        CHECK(!is_16(hl_graph_dtype(graph, graph->outputs[i])));
}

static void test_pass(void)
{
    static const hl_dtype reduced_dtypes[] = {HL_DTYPE_BF16, HL_DTYPE_F16};
    for (uint64_t seed = 0; seed < N_NETS; seed++)
        for (int variant = 0; variant < 4; variant++) {
            hl_graph *graph = make_graph(seed);
            hl_dtype reduced = reduced_dtypes[variant % 2];
            check_case("net %d, %s, keeps_reduced %d", (int)seed, hl_dtype_name(reduced),
                       variant / 2);
            CHECK_OK(hl_pass_amp(graph, reduced, variant / 2));
            CHECK_OK(hl_graph_verify(graph));
            check_types(graph, reduced, variant / 2);
            hl_graph_destroy(graph);
        }
}

/* float32 changes nothing; float64 is no 16-bit type. */
static void test_off(void)
{
    char *before, *after;
    hl_graph *graph = make_graph(3);
    CHECK_OK(hl_graph_print(graph, &before));
    CHECK_OK(hl_pass_amp(graph, HL_DTYPE_F32, true));
    CHECK_OK(hl_graph_print(graph, &after));
    CHECK(strcmp(before, after) == 0);
    CHECK_ERROR(hl_pass_amp(graph, HL_DTYPE_F64, true), HL_ERROR_CONFIG, "got float64");
    hl_free(before);
    hl_free(after);
    hl_graph_destroy(graph);
}

/* x (M,K) read by two products, once through a view: one cast. */
static void test_one_cast(void)
{
    hl_graph *graph;
    hl_id x, flat, w, a, b;
    int64_t n_casts = 0;
    hl_type three = {HL_DTYPE_F32, {3, {2, 3, 4}}}, square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
    hl_shape rows = hl_shape_2d(6, 4);
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", three, &x));
    CHECK_OK(hl_graph_input(graph, "w", square, &w));
    CHECK_OK(hl_build_reshape(graph, x, &rows, &flat));
    CHECK_OK(hl_build_matmul(graph, x, w, false, false, &a));
    CHECK_OK(hl_build_matmul(graph, flat, w, false, true, &b));
    CHECK_OK(hl_graph_output(graph, a));
    CHECK_OK(hl_graph_output(graph, b));
    CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, false));
    CHECK_OK(hl_graph_verify(graph));
    for (int64_t i = 0; i < graph->n_nodes; i++) n_casts += graph->nodes[i].op == HL_OP_CAST;
    CHECK_INT(n_casts, 2);
    hl_graph_destroy(graph);
}

/* A parameter, a value of its segment and products of both in two segments: an update between the
 * two may change the parameter, so that each segment rounds it anew; the value never changes, so
 * that it is rounded once. */
static void test_a_leaf_is_rounded_in_each_segment(void)
{
    hl_graph *graph;
    hl_id x, w, made, a, b;
    int32_t store;
    int64_t n_casts = 0;
    hl_type square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_store(graph, "param", HL_DTYPE_F32, 16, &store));
    CHECK_OK(hl_graph_input(graph, "x", square, &x));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_PARAM, square, store, 0, "w", &w));
    graph->segment = HL_SEGMENT_MICRO;
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &made));
    CHECK_OK(hl_build_matmul(graph, made, w, false, false, &a));
    graph->segment = HL_SEGMENT_APPLY;
    CHECK_OK(hl_build_matmul(graph, made, w, false, true, &b));
    CHECK_OK(hl_graph_output(graph, a));
    CHECK_OK(hl_graph_output(graph, b));
    CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, false));
    CHECK_OK(hl_graph_verify(graph));
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        n_casts += node->op == HL_OP_CAST;
        if (node->op != HL_OP_MATMUL) continue;
        const hl_node *left = maker_of(graph, node->in[0]), *right = maker_of(graph, node->in[1]);
        CHECK(left && left->op == HL_OP_CAST && left->segment == HL_SEGMENT_MICRO);
        CHECK(right && right->op == HL_OP_CAST && right->segment == node->segment);
    }
    CHECK_INT(n_casts, 3);
    hl_graph_destroy(graph);
}

/* What a caller reads is not rounded, though a product reads it too; what only a product reads is,
 * where activations stay in 16 bits. */
static void test_kept_is_float32(void)
{
    for (int kept = 0; kept < 2; kept++) {
        hl_graph *graph;
        hl_id x, w, a, b;
        hl_type square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", square, &x));
        CHECK_OK(hl_graph_input(graph, "w", square, &w));
        CHECK_OK(hl_build_matmul(graph, x, w, false, false, &a));
        CHECK_OK(hl_build_matmul(graph, a, w, false, false, &b));
        if (kept) CHECK_OK(hl_graph_output(graph, a));
        CHECK_OK(hl_graph_output(graph, b));
        CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, true));
        CHECK_OK(hl_graph_verify(graph));
        const hl_node *first = NULL;
        for (int64_t i = 0; i < graph->n_nodes && !first; i++)
            if (graph->nodes[i].op == HL_OP_MATMUL) first = &graph->nodes[i];
        CHECK(first != NULL);
        if (first)
            CHECK_INT(hl_graph_dtype(graph, first->out), kept ? HL_DTYPE_F32 : HL_DTYPE_BF16);
        hl_graph_destroy(graph);
    }
}

/* Between two products a number that 16 bits hold is multiplied in 16 bits; by one that they don't
 * hold, as the scale of a dropout mask may be, float32 is multiplied and the result rounded. */
static void test_numbers_are_exact(void)
{
    static const struct {
        double number;
        bool bf16, f16; /* holds it */
    } cases[] = {{0.5, true, true},           {1.25, true, true},  {1 + 0x1p-8, false, true},
                 {1 + 0x1p-11, false, false}, {0.1, false, false}, {0x1p20, true, false}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        hl_graph *graph;
        hl_id x, w, a, b;
        hl_dtype reduced = i % 2 ? HL_DTYPE_F16 : HL_DTYPE_BF16;
        bool holds = i % 2 ? cases[i / 2].f16 : cases[i / 2].bf16;
        hl_type square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
        check_case("%g in %s", cases[i / 2].number, hl_dtype_name(reduced));
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", square, &x));
        CHECK_OK(hl_graph_input(graph, "w", square, &w));
        CHECK_OK(hl_build_matmul(graph, x, w, false, false, &a));
        CHECK_OK(hl_build_binary_number(graph, HL_OP_MUL, a, cases[i / 2].number, &a));
        CHECK_OK(hl_build_matmul(graph, a, w, false, false, &b));
        CHECK_OK(hl_graph_output(graph, b));
        CHECK_OK(hl_pass_amp(graph, reduced, true));
        CHECK_OK(hl_graph_verify(graph));
        int64_t n_mul = 0;
        for (int64_t n = 0; n < graph->n_nodes; n++) {
            const hl_node *node = &graph->nodes[n];
            if (node->op != HL_OP_MUL) continue;
            n_mul++;
            for (int32_t j = 0; j < node->n_in; j++)
                CHECK_INT(hl_graph_dtype(graph, node->in[j]), holds ? reduced : HL_DTYPE_F32);
        }
        CHECK_INT(n_mul, 1);
        hl_graph_destroy(graph);
    }
    check_case("%s", "");
}

/* ---- norms ----------------------------------------------------------------------------------- */

enum {
    TO_PRODUCT = 1,
    TO_VIEW = 2,
    TO_SUM = 4,
    TO_RELU = 8,
    TO_ADDED = 16, /* to float32 */
    TO_OUTPUT = 32,
    TO_SOFTMAX = 64, /* behind the relu */
    N_READERS = 128
};

/* x (6,4) -> a norm, its first output read by these. */
static void build_norm(hl_graph *graph, hl_op op, int readers)
{
    static const hl_op grads[] = {HL_OP_BATCH_NORM_GRAD, HL_OP_LAYER_NORM_GRAD};
    hl_id in[5], w, y[3], out, relu = HL_NONE;
    hl_type x = {HL_DTYPE_F32, hl_shape_2d(6, 4)}, channel = {HL_DTYPE_F32, hl_shape_1d(4)};
    hl_type row = {HL_DTYPE_F32, hl_shape_1d(6)}, square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
    hl_attrs attrs;
    bool is_grad = op == grads[0] || op == grads[1];
    for (int i = 0; i < 5; i++) {
        bool is_row = op == grads[1] && (i == 2 || i == 3);
        hl_type type = i == 0 || (is_grad && i == 1) ? x : is_row ? row : channel;
        CHECK_OK(hl_graph_input(graph, "in", type, &in[i]));
    }
    CHECK_OK(hl_graph_input(graph, "w", square, &w));
    hl_attrs_init(hl_op_get(op)->schema, &attrs);
    CHECK_OK(hl_graph_add(graph, op, in, is_grad ? 5 : 3, &attrs, y));
    hl_shape flat = {3, {2, 3, 4}};
    const int64_t axis = 0;
    if (readers & TO_PRODUCT) {
        CHECK_OK(hl_build_matmul(graph, y[0], w, false, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_VIEW) {
        CHECK_OK(hl_build_reshape(graph, y[0], &flat, &out));
        CHECK_OK(hl_build_matmul(graph, out, w, false, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_SUM) {
        CHECK_OK(hl_build_sum(graph, y[0], &axis, 1, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_RELU) {
        CHECK_OK(hl_build_unary(graph, HL_OP_RELU, y[0], &relu));
        CHECK_OK(hl_build_matmul(graph, relu, w, false, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_RELU && readers & TO_SOFTMAX) {
        CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, relu, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_ADDED) {
        CHECK_OK(hl_build_binary(graph, HL_OP_ADD, y[0], in[0], &out));
        CHECK_OK(hl_build_matmul(graph, out, w, false, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    if (readers & TO_OUTPUT) CHECK_OK(hl_graph_output(graph, y[0]));
    if (hl_op_get(op)->n_out > 1) CHECK_OK(hl_graph_output(graph, y[0] + 1));
}

/* Rounded by the norm where products read it, relu in between or not, and nothing else but sums; by
 * batch norm whatever else reads it. Where the device keeps 16 bits. Its other outputs stay. */
static void test_norms(void)
{
    static const hl_op ops[] = {HL_OP_BATCH_NORM, HL_OP_BATCH_NORM_GRAD, HL_OP_LAYER_NORM,
                                HL_OP_LAYER_NORM_GRAD};
    for (int o = 0; o < 4; o++)
        for (int readers = 0; readers < N_READERS; readers++)
            for (int variant = 0; variant < 4; variant++) {
                hl_dtype reduced = variant & 1 ? HL_DTYPE_F16 : HL_DTYPE_BF16;
                bool keeps_reduced = variant & 2;
                bool multiplied = readers & (TO_PRODUCT | TO_VIEW | TO_RELU);
                bool is_read_else =
                    readers & (TO_ADDED | TO_OUTPUT) || (readers & TO_RELU && readers & TO_SOFTMAX);
                bool rounds = keeps_reduced && multiplied && !is_read_else;
                bool is_unread = !(readers & ~TO_SOFTMAX);
                if (ops[o] == HL_OP_BATCH_NORM)
                    rounds = keeps_reduced && !(readers & TO_OUTPUT) &&
                             (multiplied || readers & TO_ADDED || is_unread);
                hl_graph *graph;
                check_case("%s, readers %d, keeps_reduced %d", hl_op_get(ops[o])->name, readers,
                           keeps_reduced);
                CHECK_OK(hl_graph_create(&graph));
                build_norm(graph, ops[o], readers);
                CHECK_OK(hl_pass_amp(graph, reduced, keeps_reduced));
                CHECK_OK(hl_graph_verify(graph));
                for (int64_t i = 0; i < graph->n_nodes; i++) {
                    const hl_node *node = &graph->nodes[i];
                    if (node->op != ops[o] && node->op != HL_OP_CAST) continue;
                    const hl_node *from = maker_of(graph, node->in[0]);
                    bool narrows =
                        node->op == HL_OP_CAST && is_16(hl_graph_dtype(graph, node->out));
                    CHECK(!(rounds && narrows && from && from->op == ops[o]));
                    if (node->op != ops[o]) continue;
                    CHECK_INT(hl_graph_dtype(graph, node->out), rounds ? reduced : HL_DTYPE_F32);
                    for (int32_t j = 1; j < node->n_out; j++)
                        CHECK_INT(hl_graph_dtype(graph, node->out + j), HL_DTYPE_F32);
                }
                hl_graph_destroy(graph);
            }
}

/* What stands between a product and what reads it. */
typedef enum between { DIRECT, VIEWED, FOLLOWED, ADDED, SUMMED, KEPT, N_BETWEEN } between;

static hl_id add_between(hl_graph *graph, between what, hl_id product, hl_id other)
{
    hl_shape flat = {3, {2, 3, 4}};
    hl_id out = product;
    if (what == VIEWED) CHECK_OK(hl_build_reshape(graph, product, &flat, &out));
    if (what == FOLLOWED) CHECK_OK(hl_build_unary(graph, HL_OP_RELU, product, &out));
    if (what == ADDED) CHECK_OK(hl_build_binary(graph, HL_OP_ADD, product, other, &out));
    if (what == KEPT) CHECK_OK(hl_graph_output(graph, product));
    return out;
}

/* A norm reads what a product gives in 16 bits, through views and followers too, and so does its
 * gradient with dy; what is made in float32 it reads as it is, though a product takes a rounded
 * copy of it. A sum is no norm. Statistics and parameters stay float32. */
static void test_norms_read_16_bits(void)
{
    static const hl_op ops[] = {HL_OP_BATCH_NORM, HL_OP_LAYER_NORM, HL_OP_BATCH_NORM_GRAD,
                                HL_OP_LAYER_NORM_GRAD};
    for (int o = 0; o < 4; o++)
        for (int what = 0; what < N_BETWEEN; what++)
            for (int variant = 0; variant < 4; variant++) {
                hl_dtype reduced = variant & 1 ? HL_DTYPE_F16 : HL_DTYPE_BF16;
                bool keeps = variant & 2, is_grad = o >= 2, by_rows = o & 1;
                hl_type square = {HL_DTYPE_F32, hl_shape_2d(6, 4)}, w = {HL_DTYPE_F32, {2, {4, 4}}};
                hl_graph *graph;
                hl_id x, weight, product, read, in[5], y, sum;
                hl_attrs attrs;
                check_case("%s behind a product, %d between, %s, keeps_reduced %d",
                           hl_op_get(ops[o])->name, what, hl_dtype_name(reduced), keeps);
                CHECK_OK(hl_graph_create(&graph));
                CHECK_OK(hl_graph_input(graph, "x", square, &x));
                CHECK_OK(hl_graph_input(graph, "w", w, &weight));
                CHECK_OK(hl_build_matmul(graph, x, weight, false, false, &product));
                read = add_between(graph, (between)what, product, x);
                hl_shape shape = *hl_graph_shape(graph, read);
                hl_shape stats =
                    by_rows ? hl_shape_make(shape.rank - 1, shape.dim) : hl_shape_1d(shape.dim[1]);
                hl_shape params = by_rows ? hl_shape_1d(4) : hl_shape_1d(shape.dim[1]);
                int32_t n_in = 0;
                in[n_in++] = read;
                /* dy by a product, x in float32. */
                if (is_grad)
                    CHECK_OK(
                        hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, shape}, &in[n_in++]));
                for (; n_in < (is_grad ? 5 : 3); n_in++) {
                    bool is_param = !is_grad || n_in == (by_rows ? 4 : 2);
                    CHECK_OK(hl_graph_input(
                        graph, "p", (hl_type){HL_DTYPE_F32, is_param ? params : stats}, &in[n_in]));
                }
                hl_attrs_init(hl_op_get(ops[o])->schema, &attrs);
                if (what == SUMMED)
                    CHECK_OK(hl_build_sum(graph, read, NULL, 0, false, &sum));
                else
                    CHECK_OK(hl_graph_add(graph, ops[o], in, n_in, &attrs, &y));
                CHECK_OK(hl_graph_output(graph, what == SUMMED ? sum : y));
                CHECK_OK(hl_pass_amp(graph, reduced, keeps));
                CHECK_OK(hl_graph_verify(graph));
                bool product_16 = keeps && what != SUMMED && what != KEPT;
                bool norm_16 = product_16 && what != ADDED;
                for (int64_t i = 0; i < graph->n_nodes; i++) {
                    const hl_node *node = &graph->nodes[i];
                    if (node->op == HL_OP_MATMUL)
                        CHECK_INT(hl_graph_dtype(graph, node->out),
                                  product_16 ? reduced : HL_DTYPE_F32);
                    if (node->op != ops[o]) continue;
                    for (int32_t j = 0; j < node->n_in; j++)
                        CHECK_INT(hl_graph_dtype(graph, node->in[j]),
                                  j == 0 && norm_16 ? reduced : HL_DTYPE_F32);
                    for (int32_t j = 0; j < node->n_out; j++)
                        CHECK_INT(hl_graph_dtype(graph, node->out + j), HL_DTYPE_F32);
                }
                hl_graph_destroy(graph);
            }
}

/* x is read by a product, which takes it rounded, and by a norm, which does not. */
static void test_norms_ask_for_no_rounding(void)
{
    hl_graph *graph;
    hl_id in[3], w, product, y;
    hl_type x = {HL_DTYPE_F32, hl_shape_2d(6, 4)}, channel = {HL_DTYPE_F32, hl_shape_1d(4)};
    check_case("x of a product and a norm");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", x, &in[0]));
    CHECK_OK(hl_graph_input(graph, "w", (hl_type){HL_DTYPE_F32, hl_shape_2d(4, 4)}, &w));
    for (int i = 1; i < 3; i++) CHECK_OK(hl_graph_input(graph, "p", channel, &in[i]));
    CHECK_OK(hl_build_unary(graph, HL_OP_EXP, in[0], &in[0]));
    CHECK_OK(hl_build_matmul(graph, in[0], w, false, false, &product));
    CHECK_OK(hl_graph_add(graph, HL_OP_LAYER_NORM, in, 3, NULL, &y));
    CHECK_OK(hl_graph_output(graph, product));
    CHECK_OK(hl_graph_output(graph, y));
    CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, true));
    CHECK_OK(hl_graph_verify(graph));
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == HL_OP_LAYER_NORM)
            CHECK_INT(hl_graph_dtype(graph, graph->nodes[i].in[0]), HL_DTYPE_F32);
    hl_graph_destroy(graph);
    check_case("%s", "");
}

/* ---- training -------------------------------------------------------------------------------- */

enum { MAX_FLAT = 4096 };

typedef struct outcome {
    int64_t n;
    float param[MAX_FLAT];
    hl_control control;
} outcome;

static bool keeps_reduced; /* as a GPU: activations in 16 bits */

static void train(net n, int steps, bool fuse, bool chain, const hl_control *start, outcome *out)
{
    trainer t;
    hl_run_end end;
    int64_t ran;
    trainer_open(&t, hl_cpu_backend(), 2);
    t.device->keeps_reduced = keeps_reduced;
    trainer_plan(&t, &n, 1, fuse, chain);
    t.net = n;
    trainer_fill(&t);
    CHECK_OK(hl_session_control_read(t.session, &out->control));
    if (start) {
        out->control.loss_scale = start->loss_scale, out->control.scaling = start->scaling;
        out->control.good_steps = start->good_steps, out->control.nan_mode = start->nan_mode;
        CHECK_OK(hl_session_control_write(t.session, &out->control));
    }
    while (steps > 0) {
        CHECK_OK(hl_plan_run(t.plan, steps, 0, NULL, &end, &ran));
        steps -= (int)ran;
        if (end != HL_RUN_FEED_END) break;
        CHECK_OK(hl_feed_seek(t.feed, 0, 0));
    }
    out->n = n.n_flat;
    CHECK_OK(hl_session_read(t.session, "param", 0, n.n_flat, HL_DTYPE_F32, out->param));
    CHECK_OK(hl_session_control_read(t.session, &out->control));
    trainer_close(&t);
}

static bool same_bits(const outcome *a, const outcome *b)
{
    return a->n == b->n && memcmp(a->param, b->param, (size_t)a->n * sizeof(float)) == 0;
}

/* The same however steps are fused and chained, up to where a fused chain keeps float32; near
 * float32. */
static void test_training(void)
{
    static const hl_dtype reduced_dtypes[] = {HL_DTYPE_BF16, HL_DTYPE_F16};
    static outcome full, one, other;
    for (uint64_t seed = 0; seed < 12; seed++)
        for (int l = 0; l < 2; l++) {
            net n = net_roll(seed, 1);
            double worst = 0;
            check_case("net %d, %s", (int)seed, hl_dtype_name(reduced_dtypes[l]));
            trainer_dtype = HL_DTYPE_F32;
            train(n, 2, true, true, NULL, &full);
            trainer_dtype = reduced_dtypes[l];
            train(n, 2, true, true, NULL, &one);
            train(n, 2, false, false, NULL, &other);
            trainer_dtype = HL_DTYPE_F32;
            for (int64_t i = 0; i < one.n; i++) {
                double gap = fabs((double)one.param[i] - (double)full.param[i]);
                worst = gap > worst ? gap : worst;
                gap = fabs((double)one.param[i] - (double)other.param[i]);
                CHECK(gap < (keeps_reduced ? 0.05 : 1e-5));
            }
            CHECK(worst < 0.05);
            CHECK_INT(one.control.applied, 2);
        }
}

/* In float32 a power of two is free: with a scale every step has the same bits as without. */
static void test_scale_is_exact(void)
{
    static outcome plain, scaled;
    hl_control start = {.loss_scale = HL_LOSS_SCALE_START, .scaling = 1};
    for (uint64_t seed = 0; seed < 12; seed++) {
        net n = net_roll(seed, 1);
        check_case("net %d", (int)seed);
        train(n, 3, true, true, NULL, &plain);
        n.spec.scales_loss = true;
        train(n, 3, true, true, &start, &scaled);
        CHECK(same_bits(&plain, &scaled));
        CHECK(scaled.control.loss_scale == HL_LOSS_SCALE_START);
        CHECK_INT(scaled.control.good_steps, 3);
    }
}

/* float16 overflows at 65504: a huge scale is halved until the gradients fit. Skipped steps change
 * nothing, and the first applied one is that of a run that had the right scale from the start. */
static void test_overflow(void)
{
    static outcome later, none;
    trainer_dtype = HL_DTYPE_F16;
    for (uint64_t seed = 0; seed < 12; seed++) {
        net n = net_roll(seed, 1);
        n.dropout = false;  /* its masks count attempted steps */
        n.rows = DATA_ROWS; /* every batch is the same rows */
        n.batch_norm = false;
        n.spec.scales_loss = true;
        hl_control huge = {.loss_scale = 0x1p60, .scaling = 1, .good_steps = 9};
        check_case("net %d", (int)seed);
        train(n, 0, true, true, &huge, &none);
        train(n, 1, true, true, &huge, &later);
        CHECK(same_bits(&none, &later));
        CHECK_INT(later.control.skipped, 1);
        CHECK_INT(later.control.applied, 0);
        CHECK_INT(later.control.good_steps, 0);
        CHECK(later.control.loss_scale == 0x1p59 && !later.control.stopped);
        for (int steps = 2; steps < 62 && !later.control.applied; steps++)
            train(n, steps, true, true, &huge, &later);
        CHECK_INT(later.control.applied, 1);
        CHECK(later.control.loss_scale == ldexp(0x1p60, -(int)later.control.skipped));
    }
    trainer_dtype = HL_DTYPE_F32;
}

/* Once more with the processor's own bfloat16 products. */
static void test_own_products(void)
{
    hl_os_cpu machine;
    hl_os_cpu_read(&machine);
    if (strcmp(HL_CPU_TEXT(HL_ISA), "avx512") != 0) return;
    if (!machine.avx512_bf16) {
        CHECK_SKIP("the processor has no avx512_bf16");
        return;
    }
    trainer_isa = "avx512bf16";
    test_training();
    test_overflow();
}

/* What follows its operands does so in all of its results, or where a caller reads one in none;
 * what nobody reads does not matter. */
static void test_many_results_follow(void)
{
    for (int n_products = 98; n_products <= 100; n_products++) {
        enum { N = 100 };
        bool is_kept = n_products == 99;
        hl_graph *graph;
        hl_id x, w, all, part, out;
        hl_type square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
        hl_type rows = {HL_DTYPE_F32, hl_shape_2d(N * 4, 4)};
        hl_attrs split = {.split = {0, 4}};
        check_case("%d of 100 are multiplied", n_products);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", rows, &x));
        CHECK_OK(hl_graph_input(graph, "w", square, &w));
        CHECK_OK(hl_build_matmul(graph, x, w, false, false, &all));
        CHECK_OK(hl_graph_add(graph, HL_OP_SPLIT, &all, 1, &split, &part));
        for (int i = 0; i < n_products; i++) {
            CHECK_OK(hl_build_matmul(graph, part + i, w, false, false, &out));
            CHECK_OK(hl_graph_output(graph, out));
        }
        if (is_kept) CHECK_OK(hl_graph_output(graph, part + N - 1));
        CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, true));
        CHECK_OK(hl_graph_verify(graph));
        int64_t n_splits = 0, n_casts = 0;
        for (int64_t i = 0; i < graph->n_nodes; i++) {
            const hl_node *node = &graph->nodes[i];
            n_casts += node->op == HL_OP_CAST;
            n_splits += node->op == HL_OP_SPLIT;
            for (int32_t j = 0; node->op == HL_OP_SPLIT && j < N; j++)
                CHECK_INT(hl_graph_dtype(graph, node->out + j),
                          is_kept ? HL_DTYPE_F32 : HL_DTYPE_BF16);
        }
        CHECK_INT(n_splits, 1);
        CHECK_INT(n_casts, is_kept ? 2 + n_products : 2);
        hl_graph_destroy(graph);
    }
}

/* What follows its operands does so whatever their number. */
static void test_many_operands_follow(void)
{
    enum { N = 100 };
    hl_graph *graph;
    hl_id x, w, part[N], all, out;
    hl_attrs axis = {.axis = {0}};
    hl_type square = {HL_DTYPE_F32, hl_shape_2d(4, 4)};
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", square, &x));
    CHECK_OK(hl_graph_input(graph, "w", square, &w));
    for (int i = 0; i < N; i++) CHECK_OK(hl_build_matmul(graph, x, w, false, false, &part[i]));
    CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, part, N, &axis, &all));
    CHECK_OK(hl_build_matmul(graph, all, w, false, false, &out));
    CHECK_OK(hl_graph_output(graph, out));
    CHECK_OK(hl_pass_amp(graph, HL_DTYPE_BF16, true));
    CHECK_OK(hl_graph_verify(graph));
    for (int64_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == HL_OP_CONCAT)
            CHECK_INT(hl_graph_dtype(graph, graph->nodes[i].out), HL_DTYPE_BF16);
    hl_graph_destroy(graph);
}

int main(void)
{
    test_many_operands_follow();
    test_many_results_follow();
    test_pass();
    test_off();
    test_one_cast();
    test_a_leaf_is_rounded_in_each_segment();
    test_kept_is_float32();
    test_numbers_are_exact();
    test_norms();
    test_norms_read_16_bits();
    test_norms_ask_for_no_rounding();
    test_training();
    test_scale_is_exact();
    test_overflow();
    keeps_reduced = true;
    test_training();
    keeps_reduced = false;
    test_own_products();
    return CHECK_DONE();
}
