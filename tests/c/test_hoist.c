/* Where nodes stand and what they read: what no micro-batch changes moves to BEGIN, and pointwise
 * nodes read values as they were before they were expanded. */
#include "ops/build.h"
#include "passes/passes.h"
#include "tests/c/check.h"
#include "tests/c/eval.h"

/* ---- hoisting -------------------------------------------------------------------------------- */

enum { N_TABLE = 40, N_INDEX = 3 };

typedef struct hoist_case {
    hl_graph *graph;
    hl_id index, src, zeros;
} hoist_case;

/* Zeros (N_TABLE), which are made in MICRO, and what INDEX_ADD adds to them. */
static hoist_case begin_hoist(void)
{
    hoist_case c;
    hl_type table = {HL_DTYPE_F32, hl_shape_1d(N_TABLE)};
    CHECK_OK(hl_graph_create(&c.graph));
    CHECK_OK(
        hl_graph_input(c.graph, "index", (hl_type){HL_DTYPE_I64, hl_shape_1d(N_INDEX)}, &c.index));
    CHECK_OK(hl_graph_input(c.graph, "src", (hl_type){HL_DTYPE_F32, hl_shape_1d(N_INDEX)}, &c.src));
    CHECK_OK(hl_build_full(c.graph, &table, 0, &c.zeros));
    return c;
}

static hl_id add_rows(hoist_case *c, hl_id to, hl_id index, hl_id src)
{
    hl_attrs axis = {.axis = {0}};
    hl_id out;
    CHECK_OK(hl_graph_add(c->graph, HL_OP_INDEX_ADD, (hl_id[]){to, index, src}, 3, &axis, &out));
    CHECK_OK(hl_graph_output(c->graph, out));
    return out;
}

static void end_hoist(hoist_case *c)
{
    CHECK_OK(hl_graph_verify(c->graph));
    hl_graph_destroy(c->graph);
}

/* The node that makes what a value is written over. */
static const hl_node *maker_of_base(const hl_graph *graph, hl_id value)
{
    const hl_node *writer = &graph->nodes[hl_graph_producer(graph, value)];
    return &graph->nodes[hl_graph_producer(graph, writer->in[0])];
}

/* Zeros that INDEX_ADD writes over stay where it is; what is only read is made once. */
static void test_hoist_leaves_what_is_overwritten(void)
{
    hoist_case c = begin_hoist();
    hl_id sum = add_rows(&c, c.zeros, c.index, c.src), read;
    hl_type table = {HL_DTYPE_F32, hl_shape_1d(N_TABLE)};
    CHECK_OK(hl_build_full(c.graph, &table, 2, &read));
    CHECK_OK(hl_graph_output(c.graph, read));
    CHECK_OK(hl_pass_hoist(c.graph));
    CHECK_INT(maker_of_base(c.graph, sum)->segment, HL_SEGMENT_MICRO);
    CHECK_INT(c.graph->nodes[hl_graph_producer(c.graph, read)].segment, HL_SEGMENT_BEGIN);
    CHECK_INT(c.graph->n_nodes, 3);
    end_hoist(&c);
}

/* Two that write over one value, or one over a view of it, over an output, or over what was made in
 * an earlier segment: each has a fill of its own, in its own segment. */
static void test_each_writer_has_its_own_fill(void)
{
    for (int variant = 0; variant < 5; variant++) {
        check_case("variant %d", variant);
        hoist_case c = begin_hoist();
        hl_id out[2], flat = c.zeros;
        hl_shape square = hl_shape_2d(4, N_TABLE / 4), line = hl_shape_1d(N_TABLE);
        if (variant == 1) {
            CHECK_OK(hl_build_reshape(c.graph, c.zeros, &square, &flat));
            CHECK_OK(hl_build_reshape(c.graph, flat, &line, &flat));
        }
        if (variant == 2) CHECK_OK(hl_graph_output(c.graph, c.zeros));
        if (variant == 3) c.graph->nodes[0].segment = HL_SEGMENT_BEGIN;
        if (variant == 4) c.graph->segment = HL_SEGMENT_APPLY;
        out[0] = add_rows(&c, flat, c.index, c.src);
        out[1] = variant ? HL_NONE : add_rows(&c, flat, c.index, c.src);
        c.graph->segment = HL_SEGMENT_MICRO;
        CHECK_OK(hl_pass_hoist(c.graph));
        for (int i = 0; i < 2 && out[i] != HL_NONE; i++) {
            const hl_node *fill = maker_of_base(c.graph, out[i]);
            CHECK_INT(fill->op, HL_OP_EXPAND);
            CHECK_INT(fill->segment, variant == 4 ? HL_SEGMENT_APPLY : HL_SEGMENT_MICRO);
            CHECK(variant != 2 || fill->out != c.zeros);
        }
        if (out[1] != HL_NONE)
            CHECK(maker_of_base(c.graph, out[0]) != maker_of_base(c.graph, out[1]));
        end_hoist(&c);
    }
}

/* What depends on constants alone goes with the zeros it is written over. */
static void test_hoist_takes_the_fill_along(void)
{
    int64_t places[N_INDEX] = {1, 7, 1};
    double numbers[N_INDEX] = {1, 2, 3};
    hl_id index, src, sum;
    hoist_case c = begin_hoist();
    CHECK_OK(
        hl_graph_const(c.graph, (hl_type){HL_DTYPE_I64, hl_shape_1d(N_INDEX)}, places, &index));
    CHECK_OK(hl_graph_const_round(c.graph, (hl_type){HL_DTYPE_F32, hl_shape_1d(N_INDEX)}, numbers,
                                  &src));
    sum = add_rows(&c, c.zeros, index, src);
    CHECK_OK(hl_pass_hoist(c.graph));
    CHECK_INT(c.graph->nodes[hl_graph_producer(c.graph, sum)].segment, HL_SEGMENT_BEGIN);
    CHECK_INT(maker_of_base(c.graph, sum)->segment, HL_SEGMENT_BEGIN);
    end_hoist(&c);
}

/* Zeros that are joined with other parts are filled where the result lies, if parts lie in it one
 * behind the other; else, or where somebody else reads them too, they are made once. */
static void test_hoist_leaves_what_is_joined(void)
{
    for (int variant = 0; variant < 3; variant++) {
        check_case("variant %d", variant);
        hl_graph *graph;
        hl_id x, joined, zeros;
        hl_type type = {HL_DTYPE_F32, hl_shape_2d(3, 4)};
        hl_attrs axis = {.axis = {variant == 1}};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", type, &x));
        CHECK_OK(hl_build_full(graph, &type, 0, &zeros));
        CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, (hl_id[]){x, zeros}, 2, &axis, &joined));
        CHECK_OK(hl_graph_output(graph, joined));
        if (variant == 2) CHECK_OK(hl_graph_output(graph, zeros));
        CHECK_OK(hl_pass_hoist(graph));
        CHECK_OK(hl_graph_verify(graph));
        hl_segment segment = graph->nodes[hl_graph_producer(graph, zeros)].segment;
        CHECK_INT(segment, variant ? HL_SEGMENT_BEGIN : HL_SEGMENT_MICRO);
        hl_graph_destroy(graph);
    }
}

/* ---- broadcasting ---------------------------------------------------------------------------- */

static int count_ops(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

/* A column (3,1), or a row (4), expanded to (3,4) and added to x, which is (3,4) or, so that the
 * expanded value alone gives the sum its shape, (1,4). `reads`: something else reads it too. */
static void test_broadcast(void)
{
    const float column[] = {1, 2, 3, 4}, numbers[] = {10, 20, 30, 40, 50, 60, 70, 80, 90, 1, 2, 3};
    for (int variant = 0; variant < 8; variant++) {
        bool is_row = variant & 1, is_narrow = variant & 2, reads = variant & 4;
        hl_shape small = is_row ? hl_shape_1d(4) : hl_shape_2d(3, 1), whole = hl_shape_2d(3, 4);
        hl_shape of_x = hl_shape_2d(is_narrow ? 1 : 3, 4);
        hl_graph *graph;
        hl_id a, x, spread, sum;
        evaluation e;
        check_case("variant %d", variant);
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "a", (hl_type){HL_DTYPE_F32, small}, &a));
        CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, of_x}, &x));
        CHECK_OK(hl_build_expand(graph, a, &whole, &spread));
        CHECK_OK(hl_build_binary(graph, HL_OP_ADD, x, spread, &sum));
        CHECK_OK(hl_graph_output(graph, sum));
        if (reads) CHECK_OK(hl_graph_output(graph, spread));
        CHECK_OK(hl_pass_broadcast(graph));
        CHECK_OK(hl_graph_verify(graph));
        sum = graph->outputs[0];
        bool stays = is_narrow && is_row; /* a column and a row have the shape of both */
        CHECK_INT(graph->nodes[hl_graph_producer(graph, sum)].in[1] == a, !stays);
        CHECK_INT(count_ops(graph, HL_OP_EXPAND), stays || reads);
        CHECK(hl_shape_equal(hl_graph_shape(graph, sum), &whole));
        CHECK_OK(eval_begin(&e, graph, (void *[]){(void *)column, (void *)numbers}));
        for (int i = 0; i < 12; i++) {
            float want = column[is_row ? i % 4 : i / 4] + numbers[is_narrow ? i % 4 : i];
            CHECK_INT((int64_t)((const float *)e.data[sum])[i], (int64_t)want);
        }
        eval_end(&e);
        hl_graph_destroy(graph);
    }
}

int main(void)
{
    test_hoist_leaves_what_is_overwritten();
    test_each_writer_has_its_own_fill();
    test_hoist_takes_the_fill_along();
    test_broadcast();
    test_hoist_leaves_what_is_joined();
    return CHECK_DONE();
}
