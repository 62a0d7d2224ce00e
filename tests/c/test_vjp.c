/* Every lowering, and every op on dims in another order, against the op that it stands for, and
 * gradients at the points where there is no derivative. Gradients where there is one are held
 * against differences in tests/ops; here they only bring the ops of backward graphs that have
 * lowerings. */
#include <math.h>
#include <string.h>

#include "ir/op.h"
#include "ir/recurrence.h"
#include "ir/window.h"
#include "ops/build.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "tests/c/eval.h"

enum { MAX_IN = 4, MAX_ELEMENTS = 256, MAX_OUT = 8 };

typedef struct op_node {
    hl_op op;
    int n_in;
    hl_shape in[MAX_IN];
    hl_attrs attrs;
} op_node;

#define A(...)                                                                                     \
    {                                                                                              \
        sizeof((int64_t[]){__VA_ARGS__}) / 8,                                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define NO_ATTRS                                                                                   \
    {                                                                                              \
        .matmul = {.trans_a = false }                                                              \
    }

static const op_node cases[] = {
    {HL_OP_GELU, 1, {A(3, 2)}, NO_ATTRS},
    {HL_OP_GELU_ERF, 1, {A(3, 2)}, NO_ATTRS},
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
    {HL_OP_MEDIAN, 1, {A(2, 3, 2)}, {.arg_reduce = {.axis = 0}}},
    {HL_OP_MEDIAN, 1, {A(2, 3, 2)}, {.arg_reduce = {.axis = 1, .keepdim = 1}}},
    {HL_OP_SORT, 1, {A(2, 3, 2)}, {.sort = {.axis = 0, .k = 2}}},
    {HL_OP_SORT, 1, {A(2, 5, 2)}, {.sort = {.axis = 1, .descending = 1, .k = 3}}},
    {HL_OP_MOMENTS, 1, {A(2, 3, 2, 2)}, {.axes = {.axes = {3, {0, 2, 3}}}}},
    {HL_OP_MOMENTS, 1, {A(2, 3, 2)}, {.axes = {.axes = {1, {1}}}}},
    {HL_OP_MOMENTS, 1, {A(3, 4)}, {.axes = {.axes = {1, {1}}}}},
    {HL_OP_ARGMAX, 1, {A(2, 3, 2)}, {.arg_reduce = {.axis = 0}}},
    {HL_OP_ARGMIN, 1, {A(2, 3, 2)}, {.arg_reduce = {.axis = 1, .keepdim = 1}}},
    {HL_OP_MAX, 1, {A(2, 3, 2, 4)}, {.reduce = {.axes = {2, {1, 3}}}}},
    {HL_OP_CUMSUM, 1, {A(2, 3, 4)}, {.scan = {.axis = 1}}},
    {HL_OP_DETACH, 1, {A(2, 3, 4)}, NO_ATTRS},
    {HL_OP_SURROGATE, 2, {A(2, 3), A(2, 3)}, NO_ATTRS},
    {HL_OP_SLICE, 1, {A(2, 3, 7)}, {.slice = {.axis = 2, .start = 1, .stop = 6, .step = 2}}},
    {HL_OP_SLICE_ADD,
     2,
     {A(2, 7, 3), A(2, 3, 3)},
     {.slice_add = {.axis = 1, .start = 1, .step = 2}}},
    {HL_OP_PAD, 1, {A(2, 3, 4)}, {.pad = {{3, {1, 0, 2}}, {3, {0, 3, 1}}, .value = 7}}},
    {HL_OP_PAD, 1, {A(3, 2, 4)}, {.pad = {{3, {1, 0, 2}}, {3, {0, 0, 1}}, .mode = 1}}},
    {HL_OP_FLIP, 1, {A(2, 3, 4)}, {.flip = {{2, {0, 2}}}}},
    {HL_OP_SPLIT, 1, {A(2, 7)}, {.split = {.axis = 1, .size = 3}}},
    {HL_OP_SPLIT, 1, {A(2, 7, 3)}, {.split = {.axis = 1, .size = 3}}},
    {HL_OP_BATCH_NORM, 3, {A(5, 3), A(3), A(3)}, {.batch_norm = {.eps = 1e-3}}},
    {HL_OP_BATCH_NORM, 3, {A(3, 2, 2, 2), A(2), A(2)}, {.batch_norm = {.eps = 1e-3}}},
    {HL_OP_LAYER_NORM, 1, {A(2, 5)}, {.layer_norm = {.n_axes = 1, .eps = 1e-3}}},
    {HL_OP_LAYER_NORM, 2, {A(2, 5), A(5)}, {.layer_norm = {.n_axes = 1, .eps = 1e-3}}},
    {HL_OP_LAYER_NORM,
     3,
     {A(2, 3, 4), A(3, 4), A(3, 4)},
     {.layer_norm = {.n_axes = 2, .eps = 1e-3}}},
    {HL_OP_CONV,
     3,
     {A(2, 4, 4, 3), A(6, 2, 3, 2), A(6)},
     {.conv = {.stride = {2, {2, 1}}, .before = {2, {1, 0}}, .after = {2, {0, 1}}, .groups = 2}}},
    {HL_OP_CONV,
     2,
     {A(1, 2, 3, 2, 4), A(2, 2, 2, 1, 2)},
     {.conv = {.dilation = {3, {1, 1, 2}}, .groups = 1}}},
    {HL_OP_CONV_TRANSPOSE,
     3,
     {A(2, 4, 2, 3), A(4, 3, 2, 2), A(6)},
     {.conv = {.stride = {2, {2, 1}}, .before = {2, {0, 1}}, .size = {2, {5, 3}}, .groups = 2}}},
    {HL_OP_MAX_POOL,
     1,
     {A(2, 3, 4, 3)},
     {.pool = {.kernel = {2, {2, 3}}, .stride = {2, {2, 1}}, .before = {2, {0, 1}}}}},
    {HL_OP_MAX_POOL_INDEX, 1, {A(2, 3, 4, 3)}, {.pool = {.kernel = {2, {2, 2}}}}},
    {HL_OP_RESAMPLE, 1, {A(2, 3, 4)}, {.axis = {.axis = 2}}},
    {HL_OP_DEFORMABLE,
     3,
     {A(1, 8, 2, 3), A(1, 2, 2, 2, 1, 2), A(1, 2, 2, 2, 1)},
     {.images = {.heights = {2, {2, 1}}, .widths = {2, {3, 2}}}}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

typedef struct trial {
    hl_graph *graph;
    void *data[MAX_IN];
    double floats[MAX_IN][MAX_ELEMENTS];
} trial;

/* 0.2 to 2.2 away from 0, no two alike. */
static double draw(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    double magnitude = 0.2 + 2 * ((double)(state >> 11) * 0x1p-53);
    return state & 1 ? -magnitude : magnitude;
}

static hl_status add_weighted_sum(hl_graph *graph, hl_id value, hl_id *loss)
{
    double weights[MAX_ELEMENTS];
    hl_type type = graph->values[value].type;
    for (int64_t i = 0; i < hl_shape_numel(&type.shape); i++) weights[i] = draw();
    hl_id weight, product;
    HL_TRY(hl_graph_const(graph, type, weights, &weight));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, value, weight, &product));
    HL_TRY(hl_build_sum(graph, product, NULL, 0, false, &product));
    return hl_build_accumulate(graph, product, loss);
}

/* Operands of RESAMPLE behind x: a map from 4 elements to 3 by 2 taps, and its transpose. */
static hl_status add_band(hl_graph *graph, hl_id in[5])
{
    static const int64_t starts[] = {0, 1, 2}, back_starts[] = {0, 0, 1, 2};
    static const double weights[] = {1, 2, 3, 4, 5, 6}, back_weights[] = {1, 0, 2, 3, 4, 5, 6, 0};
    HL_TRY(hl_graph_const(graph, (hl_type){HL_DTYPE_I64, hl_shape_1d(3)}, starts, &in[1]));
    HL_TRY(hl_graph_const(graph, (hl_type){HL_DTYPE_F64, hl_shape_1d(6)}, weights, &in[2]));
    HL_TRY(hl_graph_const(graph, (hl_type){HL_DTYPE_I64, hl_shape_1d(4)}, back_starts, &in[3]));
    return hl_graph_const(graph, (hl_type){HL_DTYPE_F64, hl_shape_1d(8)}, back_weights, &in[4]);
}

/* The op and its gradients; the loss is the sum of all floating outputs times fixed random weights.
 */
static hl_status build_trial(const op_node *c, trial *t)
{
    hl_id in[5], grads[MAX_IN], first, loss = HL_NONE;
    bool has_band = c->op == HL_OP_RESAMPLE;
    HL_TRY(hl_graph_create(&t->graph));
    for (int k = 0; k < c->n_in; k++) {
        hl_type type = {HL_DTYPE_F64, c->in[k]};
        for (int64_t i = 0; i < hl_shape_numel(&type.shape); i++) t->floats[k][i] = draw();
        t->data[k] = t->floats[k];
        HL_TRY(hl_graph_input(t->graph, "x", type, &in[k]));
    }
    if (has_band) HL_TRY(add_band(t->graph, in));
    HL_TRY(hl_graph_add(t->graph, c->op, in, has_band ? 5 : c->n_in, &c->attrs, &first));
    hl_node_id made = hl_graph_producer(t->graph, first);
    int32_t n_out = made == HL_NONE ? 1 : t->graph->nodes[made].n_out;
    for (int32_t j = 0; j < n_out; j++)
        if (hl_dtype_is_float(hl_graph_dtype(t->graph, first + j)))
            HL_TRY(add_weighted_sum(t->graph, first + j, &loss));
    if (loss != HL_NONE) HL_TRY(hl_pass_autodiff(t->graph, loss, HL_NONE, in, c->n_in, grads));
    return hl_graph_verify(t->graph);
}

/* ---- lowering -------------------------------------------------------------------------------- */

enum { MAX_PAIRS = 1024 };

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

/* The dims rotated, those behind the first alone (channels last), and back. */
static hl_ints find_order(int32_t rank, int number)
{
    hl_ints order = {.n = rank};
    if (number > 0) return hl_order_channels(rank, number == 1);
    for (int32_t d = 0; d < rank; d++) order.at[d] = (d + 1) % rank;
    return order;
}

static bool undoes_itself(const hl_ints *order)
{
    for (int32_t d = 0; d < order->n; d++)
        if (order->at[order->at[d]] != d) return false;
    return true;
}

/* Every node of a trial whose op takes other orders, in such an order. One that undoes itself
 * proves little: a way there could be taken for the way back. */
static void check_orders(hl_graph *graph, void *const *data, int number, bool *turned)
{
    lowered_pairs pairs = {.n = 0};
    evaluation e;
    int64_t n_nodes = graph->n_nodes;
    for (int64_t i = 0; i < n_nodes; i++) {
        hl_node node = graph->nodes[i];
        int32_t rank = node.n_in > 0 ? hl_graph_shape(graph, node.in[0])->rank : 0;
        hl_attrs attrs = node.attrs;
        hl_ints order, dims;
        hl_id out[MAX_OUT];
        if (!hl_op_get(node.op)->permute || rank < 2) continue;
        order = find_order(rank, number);
        if (!hl_node_permute(graph, &node, &order, &attrs, &dims)) continue;
        CHECK_OK(hl_build_in_order(graph, (hl_node_id)i, &order, out));
        turned[node.op] |= !undoes_itself(&order);
        for (int32_t j = 0; j < node.n_out && pairs.n < MAX_PAIRS; j++, pairs.n++)
            pairs.node[pairs.n] = node.out + j, pairs.lowered[pairs.n] = out[j];
    }
    CHECK_OK(hl_graph_verify(graph));
    CHECK_OK(eval_begin(&e, graph, data));
    for (int i = 0; i < pairs.n; i++) compare_pair(&e, pairs.node[i], pairs.lowered[i]);
    eval_end(&e);
}

static void test_orders(void)
{
    bool turned[HL_OP_COUNT] = {false};
    for (int i = 0; i < N_CASES; i++) {
        trial t = {0};
        check_case("%d %s in another order", i, hl_op_get(cases[i].op)->name);
        CHECK_OK(build_trial(&cases[i], &t));
        for (int number = 0; number < 3; number++) check_orders(t.graph, t.data, number, turned);
        hl_graph_destroy(t.graph);
    }
    for (int op = 0; op < HL_OP_COUNT; op++) {
        check_case("%s in another order", hl_op_get((hl_op)op)->name);
        CHECK(turned[op] || !hl_op_get((hl_op)op)->permute);
    }
    check_case("%s", "");
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
            for (int i = 0; i < 7; i++) grad[i] = 8 * draw();
            CHECK_OK(hl_graph_create(&graph));
            for (int i = 0; i < n_in; i++)
                CHECK_OK(hl_graph_input(graph, i ? i > 1 ? "scale" : "factor" : "grad", types[i],
                                        &in[i]));
            CHECK_OK(hl_graph_add(graph, HL_OP_GRADIENT_NORM, in, n_in, &attrs, out));
            CHECK_INT(check_lowering(graph, data), 2);
            hl_graph_destroy(graph);
        }
}

/* Heads that share keys, a mask that is added, causal or not: of the result alone, for the
 * logarithms of sums have no gradient. */
static void check_attention(void)
{
    static const hl_shape shapes[] = {
        {4, {2, 4, 3, 5}}, {4, {2, 2, 4, 5}}, {4, {2, 2, 4, 3}}, {4, {1, 4, 3, 4}}};
    for (int causal = 0; causal < 2; causal++) {
        hl_graph *graph;
        hl_id in[4], out, loss = HL_NONE, grads[4];
        double numbers[4][160];
        void *data[4];
        hl_attrs attrs = {.attention = {.scale = 0.6, .is_causal = causal, .has_mask = true}};
        check_case("attention, causal %d", causal);
        CHECK_OK(hl_graph_create(&graph));
        for (int k = 0; k < 4; k++) {
            hl_type type = {HL_DTYPE_F64, shapes[k]};
            for (int64_t i = 0; i < hl_shape_numel(&shapes[k]); i++) numbers[k][i] = draw();
            data[k] = numbers[k];
            CHECK_OK(hl_graph_input(graph, "x", type, &in[k]));
        }
        CHECK_OK(hl_graph_add(graph, HL_OP_ATTENTION, in, 4, &attrs, &out));
        CHECK_OK(add_weighted_sum(graph, out, &loss));
        CHECK_OK(hl_pass_autodiff(graph, loss, HL_NONE, in, 4, grads));
        CHECK(check_lowering(graph, data) >= 5);
        hl_graph_destroy(graph);
    }
}

/* All cells in both directions, of rows of different lengths; an LSTM also with a projection, a GRU
 * with a bias of its own. */
static void check_recurrence(int cell, bool reverse, bool is_more)
{
    enum { N = 3, T = 3, H = 4, P = 2, FLOATS = 6 };
    static const int32_t lengths[N] = {3, 0, 2};
    int64_t gates = hl_cell_gates(cell) * H, width = is_more && cell == HL_CELL_LSTM ? P : H;
    bool has_bias = is_more && cell == HL_CELL_GRU, has_projection = width != H;
    hl_type types[7] = {{HL_DTYPE_F64, {2, {gates, width}}},
                        {HL_DTYPE_F64, {3, {N, T, gates}}},
                        {HL_DTYPE_F64, {2, {N, width}}},
                        {HL_DTYPE_I32, {1, {N}}}};
    hl_attrs attrs = {.recurrence = {.cell = cell,
                                     .reverse = reverse,
                                     .has_bias = has_bias,
                                     .has_projection = has_projection}};
    hl_graph *graph;
    hl_id in[7], floats[FLOATS], out, loss = HL_NONE, grads[FLOATS];
    double numbers[7][200];
    void *data[7];
    int n_in = 4, n_floats = 0;
    if (cell == HL_CELL_LSTM) types[n_in++] = (hl_type){HL_DTYPE_F64, {2, {N, H}}};
    if (has_bias) types[n_in++] = (hl_type){HL_DTYPE_F64, {1, {gates}}};
    if (has_projection) types[n_in++] = (hl_type){HL_DTYPE_F64, {2, {P, H}}};
    check_case("recurrence, cell %d, reverse %d, more %d", cell, reverse, is_more);
    CHECK_OK(hl_graph_create(&graph));
    for (int k = 0; k < n_in; k++) {
        for (int64_t i = 0; i < hl_shape_numel(&types[k].shape); i++) numbers[k][i] = draw();
        data[k] = numbers[k];
        CHECK_OK(hl_graph_input(graph, "x", types[k], &in[k]));
        if (k != 3) floats[n_floats++] = in[k];
    }
    memcpy(numbers[3], lengths, sizeof lengths);
    CHECK_OK(hl_graph_add(graph, HL_OP_RECURRENCE, in, n_in, &attrs, &out));
    for (int j = 0; j < (cell == HL_CELL_LSTM ? 3 : 2); j++)
        CHECK_OK(add_weighted_sum(graph, out + j, &loss));
    CHECK_OK(hl_pass_autodiff(graph, loss, HL_NONE, floats, n_floats, grads));
    CHECK(check_lowering(graph, data) >= 10);
    hl_graph_destroy(graph);
}

/* The same of whole layers, every one with a bias. */
static void check_layer(int cell, bool reverse, bool is_more)
{
    enum { N = 3, T = 3, I = 5, H = 4, P = 2 };
    static const int32_t lengths[N] = {3, 0, 2};
    int64_t gates = hl_cell_gates(cell) * H, width = is_more && cell == HL_CELL_LSTM ? P : H;
    bool has_state_bias = is_more && cell == HL_CELL_GRU, has_projection = width != H;
    hl_type types[9] = {{HL_DTYPE_F64, {3, {N, T, I}}},
                        {HL_DTYPE_F64, {2, {gates, I}}},
                        {HL_DTYPE_F64, {2, {gates, width}}},
                        {HL_DTYPE_F64, {2, {N, width}}},
                        {HL_DTYPE_I32, {1, {N}}}};
    hl_attrs attrs = {.recurrent = {.cell = cell,
                                    .reverse = reverse,
                                    .has_bias = true,
                                    .has_state_bias = has_state_bias,
                                    .has_projection = has_projection}};
    hl_graph *graph;
    hl_id in[9], floats[9], out, loss = HL_NONE, grads[9];
    double numbers[9][200];
    void *data[9];
    int n_in = HL_RECURRENT_INPUTS, n_floats = 0;
    if (cell == HL_CELL_LSTM) types[n_in++] = (hl_type){HL_DTYPE_F64, {2, {N, H}}};
    types[n_in++] = (hl_type){HL_DTYPE_F64, {1, {gates}}};
    if (has_state_bias) types[n_in++] = (hl_type){HL_DTYPE_F64, {1, {gates}}};
    if (has_projection) types[n_in++] = (hl_type){HL_DTYPE_F64, {2, {P, H}}};
    check_case("layer, cell %d, reverse %d, more %d", cell, reverse, is_more);
    CHECK_OK(hl_graph_create(&graph));
    for (int k = 0; k < n_in; k++) {
        for (int64_t i = 0; i < hl_shape_numel(&types[k].shape); i++) numbers[k][i] = draw();
        data[k] = numbers[k];
        CHECK_OK(hl_graph_input(graph, "x", types[k], &in[k]));
        if (k != HL_RECURRENT_LENGTHS) floats[n_floats++] = in[k];
    }
    memcpy(numbers[HL_RECURRENT_LENGTHS], lengths, sizeof lengths);
    CHECK_OK(hl_graph_add(graph, HL_OP_RECURRENT_LAYER, in, n_in, &attrs, &out));
    for (int j = 0; j < (cell == HL_CELL_LSTM ? 3 : 2); j++)
        CHECK_OK(add_weighted_sum(graph, out + j, &loss));
    CHECK_OK(hl_pass_autodiff(graph, loss, HL_NONE, floats, n_floats, grads));
    CHECK(check_lowering(graph, data) >= 10);
    hl_graph_destroy(graph);
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
    check_gradient_norm();
    check_attention();
    for (int i = 0; i < 4 * HL_CELL_COUNT; i++) {
        check_recurrence(i / 4, i / 2 % 2, i % 2);
        check_layer(i / 4, i / 2 % 2, i % 2);
    }
    seen[HL_OP_RECURRENT_LAYER] = seen[HL_OP_RECURRENT_LAYER_GRAD] = true;
    seen[HL_OP_RECURRENCE] = seen[HL_OP_RECURRENCE_GRAD] = true;
    seen[HL_OP_GRADIENT_NORM] = seen[HL_OP_ATTENTION] = seen[HL_OP_ATTENTION_GRAD] = true;
    for (int op = 0; op < HL_OP_COUNT; op++) {
        check_case("%s", hl_op_get((hl_op)op)->name);
        hl_op_lower_fn lower = hl_op_get((hl_op)op)->lower;
        /* The reference has no 16 bits: tests/api/test_eager.py holds that one. */
        CHECK(seen[op] || !lower || lower == hl_lower_widened);
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
    CHECK_UNARY(MEDIAN, 4, LIST(1, 3, 3, 2), LIST(0, 0, 0, 1));
    CHECK_UNARY(MEDIAN, 5, LIST(1, 3, 5, 3, 3), LIST(0, 1, 0, 0, 0));
    CHECK_UNARY(MEDIAN, 4, LIST(5, NAN, 1, NAN), LIST(0, 1, 0, 0));
    check_points(__LINE__, HL_OP_SORT, &(hl_attrs){.sort = {.descending = 1, .k = 2}}, 4,
                 LIST(1, 3, 3, 3), NULL, LIST(0, 1, 1, 0), NULL);
    CHECK_UNARY(PROD, 3, LIST(2, 0, 3), LIST(0, 6, 0));
    CHECK_UNARY(PROD, 3, LIST(0, 5, 0), LIST(0, 0, 0));
    CHECK_UNARY(PROD, 3, LIST(2, 4, 3), LIST(12, 6, 8));
    CHECK_BINARY(POW, 5, LIST(0, 0, -2, 4, 0), LIST(0, 2, 3, 0.5, 1), LIST(0, 0, 12, 0.25, 1),
                 NULL);
    CHECK_BINARY(POW, 3, LIST(0, 0, 1), LIST(0, 2, 3), NULL, LIST(0, 0, 0));
    CHECK_UNARY(SOFTPLUS, 3, LIST(-800, 0, 800), LIST(0, 0.5, 1));
    CHECK_BINARY(LOGADDEXP, 6, LIST(0, -800, INFINITY, -INFINITY, -INFINITY, 3e38),
                 LIST(0, 800, INFINITY, -INFINITY, 5, -3e38), LIST(0.5, 0, 0.5, 0.5, 0, 1),
                 LIST(0.5, 1, 0.5, 0.5, 1, 0));
    CHECK_UNARY(SIGMOID, 3, LIST(-800, 0, 800), LIST(0, 0.25, 0));
}

int main(void)
{
    test_lowering();
    test_orders();
    test_points();
    return CHECK_DONE();
}
