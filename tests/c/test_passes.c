/* What passes are built on, held against the plain way to do the same: clusters against a search of
 * the whole graph, placing against a scan of all blocks. And single passes on graphs of a few
 * nodes. */
#include "ops/build.h"
#include "passes/clusters.h"
#include "passes/passes.h"
#include "passes/placing.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"

/* ---- clusters -------------------------------------------------------------------------------- */

enum { MOST_NODES = 64 };

/* Sums and additions; operands are mostly near, so that paths are long. */
static hl_graph *grow_graph(dice *d, int n_nodes)
{
    hl_graph *graph;
    hl_id values[MOST_NODES + 1];
    int n = 0;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(3)}, &values[n++]));
    while (graph->n_nodes < n_nodes) {
        int far = roll(d, 4) ? 3 : n;
        hl_id a = values[n - 1 - roll(d, far < n ? far : n)], b = values[roll(d, n)];
        if (roll(d, 4))
            CHECK_OK(hl_build_binary(graph, HL_OP_ADD, a, b, &values[n]));
        else
            CHECK_OK(hl_build_sum(graph, a, NULL, 0, false, &values[n]));
        n += values[n] != a;
    }
    return graph;
}

/* Is there a way from one cluster to another through a third, or along an edge out of a sum? */
static bool is_path(const hl_graph *graph, const int *cluster, int from, int to)
{
    bool reached[MOST_NODES] = {false};
    for (bool changed = true; changed;) {
        changed = false;
        for (int64_t i = 0; i < graph->n_nodes; i++) {
            int at = cluster[i];
            for (int32_t j = 0; j < graph->nodes[i].n_in; j++) {
                hl_node_id p = hl_graph_producer(graph, graph->nodes[i].in[j]);
                if (p == HL_NONE || cluster[p] == at) continue;
                bool right = cluster[p] == from && (at != to || graph->nodes[p].op == HL_OP_SUM);
                if (reached[at] || !(right || (cluster[p] != from && reached[cluster[p]])))
                    continue;
                reached[at] = changed = true;
            }
        }
    }
    return reached[to];
}

static void test_clusters(void)
{
    for (int seed = 0; seed < 400; seed++) {
        check_case("seed %d", seed);
        dice d = {hl_rng_key_make((uint64_t)seed, "clusters"), 0};
        int n = 2 + roll(&d, MOST_NODES - 2), cluster[MOST_NODES];
        hl_graph *graph = grow_graph(&d, n);
        hl_uses uses;
        hl_clusters clusters;
        CHECK_OK(hl_uses_init(graph, &uses));
        CHECK_OK(hl_clusters_init(graph, &uses, &clusters));
        for (int i = 0; i < n; i++) cluster[i] = i;
        for (int tries = 0; tries < 4 * n; tries++) {
            int a = roll(&d, n), b = roll(&d, 3) ? roll(&d, n) : (a + 1) % n;
            if (cluster[a] == cluster[b]) continue;
            int low = cluster[a] < cluster[b] ? cluster[a] : cluster[b];
            int high = cluster[a] + cluster[b] - low;
            bool free = !is_path(graph, cluster, low, high) && !is_path(graph, cluster, high, low);
            CHECK_INT(hl_clusters_join(&clusters, a, b), free);
            for (int i = 0; free && i < n; i++)
                if (cluster[i] == high) cluster[i] = low;
            for (int i = 0; i < n; i++) CHECK_INT(clusters.leader[i], cluster[i]);
        }
        hl_clusters_deinit(&clusters);
        hl_uses_deinit(&uses);
        hl_graph_destroy(graph);
    }
}

/* ---- placing --------------------------------------------------------------------------------- */

enum { MOST_BLOCKS = 200 };

static int64_t scan(const hl_span *spans, const hl_life *lives, int n, int64_t bytes, hl_life life)
{
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n; i++) {
            bool alive = lives[i].first <= life.last && life.first <= lives[i].last;
            if (!alive || offset >= spans[i].end || spans[i].begin >= offset + bytes) continue;
            offset = spans[i].end;
            moved = true;
        }
    }
    return offset;
}

static void test_placing(void)
{
    for (int seed = 0; seed < 200; seed++) {
        dice d = {hl_rng_key_make((uint64_t)seed, "placing"), 0};
        int32_t n_times = 1 + roll(&d, 60);
        hl_span spans[MOST_BLOCKS];
        hl_life lives[MOST_BLOCKS];
        hl_placing placing;
        CHECK_OK(hl_placing_init(n_times, &placing));
        for (int i = 0; i < MOST_BLOCKS; i++) {
            check_case("seed %d, block %d", seed, i);
            int64_t bytes = 64 * roll(&d, seed % 2 ? 9 : 3), got;
            int32_t first = roll(&d, n_times);
            int32_t longest = roll(&d, 3) ? 4 : n_times;
            int32_t last = first + roll(&d, longest < n_times - first ? longest : n_times - first);
            lives[i] = (hl_life){first, last};
            int64_t want = scan(spans, lives, i, bytes, lives[i]);
            CHECK_OK(hl_placing_add(&placing, bytes, lives[i], &got));
            CHECK_INT(got, want);
            spans[i] = (hl_span){want, want + bytes};
        }
        hl_placing_deinit(&placing);
    }
}

static void test_placing_beyond_63_bits(void)
{
    int64_t offset;
    hl_placing placing;
    CHECK_OK(hl_placing_init(3, &placing));
    CHECK_OK(hl_placing_add(&placing, INT64_MAX - 64, (hl_life){0, 1}, &offset));
    CHECK_INT(offset, 0);
    CHECK_OK(hl_placing_add(&placing, 128, (hl_life){1, 2}, &offset));
    CHECK_INT(offset, HL_NONE);
    CHECK_OK(hl_placing_add(&placing, 64, (hl_life){1, 2}, &offset));
    CHECK_INT(offset, INT64_MAX - 64);
    CHECK_OK(hl_placing_add(&placing, 128, (hl_life){2, 2}, &offset));
    CHECK_INT(offset, 0);
    hl_placing_deinit(&placing);
}

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
 * an earlier segment: each has a fill of its own. */
static void test_each_writer_has_its_own_fill(void)
{
    for (int variant = 0; variant < 4; variant++) {
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
        out[0] = add_rows(&c, flat, c.index, c.src);
        out[1] = variant ? HL_NONE : add_rows(&c, flat, c.index, c.src);
        CHECK_OK(hl_pass_hoist(c.graph));
        for (int i = 0; i < 2 && out[i] != HL_NONE; i++) {
            const hl_node *fill = maker_of_base(c.graph, out[i]);
            CHECK_INT(fill->op, HL_OP_EXPAND);
            CHECK_INT(fill->segment, HL_SEGMENT_MICRO);
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

/* ---- fences ---------------------------------------------------------------------------------- */

static int count_nodes(const hl_graph *graph)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == HL_OP_POINTWISE_FUSED;
    return n;
}

static hl_status refuse_stream(hl_device *device, hl_stream **out_stream)
{
    (void)device, (void)out_stream;
    return HL_ERROR_INTERNAL;
}

/* On a device where each node is a launch, so that what has one shape is joined. */
static void fuse_all(hl_graph *graph)
{
    static const hl_device_ops ops = {.stream_create = refuse_stream};
    hl_device device = {.ops = &ops, .fuses = true};
    CHECK_OK(hl_pass_fuse(graph, &device));
    CHECK_OK(hl_graph_verify(graph));
}

/* A value and its second computation read the same operand, and what reads the second is a cluster
 * with that one alone. */
static void test_copies_stay_apart(void)
{
    for (int fence = 0; fence < 2; fence++) {
        check_case("fence %d", fence);
        hl_graph *graph;
        hl_id x, out[2];
        hl_type type = {HL_DTYPE_F32, hl_shape_2d(4, 5)};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", type, &x));
        for (int i = 0; i < 2; i++) {
            graph->fence = i * fence;
            CHECK_OK(hl_build_unary(graph, HL_OP_EXP, x, &out[i]));
            CHECK_OK(hl_build_unary(graph, HL_OP_TANH, out[i], &out[i]));
            CHECK_OK(hl_graph_output(graph, out[i]));
        }
        fuse_all(graph);
        CHECK_INT(count_nodes(graph), 1 + fence);
        for (int64_t i = 0; i < graph->n_nodes; i++) CHECK_INT(graph->nodes[i].fence, i);
        CHECK_INT(graph->n_nodes, 1 + fence);
        hl_graph_destroy(graph);
    }
}

/* A value that is cheap to compute again from what a cluster reads anyway: the cluster loads it
 * when it comes from the other side of a fence. */
static void test_fences_keep_what_is_kept(void)
{
    for (int fence = 0; fence < 2; fence++) {
        check_case("fence %d", fence);
        hl_graph *graph;
        hl_id x, y, kept, read, soft;
        hl_type type = {HL_DTYPE_F32, hl_shape_2d(4, 5)};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", type, &x));
        CHECK_OK(hl_graph_input(graph, "y", type, &y));
        CHECK_OK(hl_build_unary(graph, HL_OP_NEG, x, &kept));
        CHECK_OK(hl_build_unary(graph, HL_OP_SOFTMAX, kept, &soft));
        graph->fence = fence;
        CHECK_OK(hl_build_binary(graph, HL_OP_MUL, soft, kept, &read));
        CHECK_OK(hl_build_binary(graph, HL_OP_ADD, read, x, &read));
        CHECK_OK(hl_graph_output(graph, read));
        fuse_all(graph);
        const hl_node *last = &graph->nodes[graph->n_nodes - 1];
        CHECK_INT(last->op, HL_OP_POINTWISE_FUSED);
        CHECK_INT(last->n_in, 2 + fence);
        hl_graph_destroy(graph);
    }
}

int main(void)
{
    test_copies_stay_apart();
    test_fences_keep_what_is_kept();
    test_hoist_leaves_what_is_overwritten();
    test_each_writer_has_its_own_fill();
    test_hoist_takes_the_fill_along();
    test_clusters();
    test_placing();
    test_placing_beyond_63_bits();
    return CHECK_DONE();
}
