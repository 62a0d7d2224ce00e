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

enum { MAX_NODES = 64 };

/* Sums and additions; operands are mostly near, so that paths are long. */
static hl_graph *grow_graph(dice *d, int n_nodes)
{
    hl_graph *graph;
    hl_id values[MAX_NODES + 1];
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
    bool reached[MAX_NODES] = {false};
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
        int n = 2 + roll(&d, MAX_NODES - 2), cluster[MAX_NODES];
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

enum { MAX_BLOCKS = 200 };

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
        hl_span spans[MAX_BLOCKS];
        hl_life lives[MAX_BLOCKS];
        hl_placing placing;
        CHECK_OK(hl_placing_init(n_times, &placing));
        for (int i = 0; i < MAX_BLOCKS; i++) {
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

/* ---- parts ----------------------------------------------------------------------------------- */

enum { N_STEPS = 12 };

typedef struct parts_case {
    hl_graph *graph;
    hl_id x, loss, grad;
} parts_case;

static parts_case begin_parts(void)
{
    parts_case c = {.loss = HL_NONE};
    hl_type type = {HL_DTYPE_F32, {3, {2, N_STEPS, 5}}};
    CHECK_OK(hl_graph_create(&c.graph));
    CHECK_OK(hl_graph_input(c.graph, "x", type, &c.x));
    return c;
}

/* The loss grows by the sum of squares of a slice. */
static void read_part(parts_case *c, int axis, int64_t start, int64_t stop, int64_t step)
{
    hl_attrs attrs = {.slice = {axis, start, stop, step}};
    hl_id part;
    CHECK_OK(hl_graph_add(c->graph, HL_OP_SLICE, &c->x, 1, &attrs, &part));
    CHECK_OK(hl_build_binary(c->graph, HL_OP_MUL, part, part, &part));
    CHECK_OK(hl_build_sum(c->graph, part, NULL, 0, false, &part));
    CHECK_OK(hl_build_accumulate(c->graph, part, &c->loss));
}

static int count_op(const hl_graph *graph, hl_op op)
{
    int n = 0;
    for (int64_t i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op;
    return n;
}

static void check_parts(parts_case *c, int n_concats, int n_adds, int n_grads)
{
    CHECK_OK(hl_pass_autodiff(c->graph, c->loss, HL_NONE, &c->x, 1, &c->grad));
    CHECK_OK(hl_graph_output(c->graph, c->grad));
    CHECK(hl_type_equal(&c->graph->values[c->grad].type, &c->graph->values[c->x].type));
    CHECK_OK(hl_rewrite_sort(c->graph));
    CHECK_OK(hl_graph_verify(c->graph));
    CHECK_INT(count_op(c->graph, HL_OP_CONCAT), n_concats);
    CHECK_INT(count_op(c->graph, HL_OP_SLICE_ADD), n_adds);
    CHECK_INT(count_op(c->graph, HL_OP_SLICE_GRAD), n_grads);
    hl_graph_destroy(c->graph);
}

/* Side by side: one concat, with zeros where nothing was read. Few, strided, overlapping or along
 * several axes: each is added to one sum, and none is as large as all. */
static void test_gradients_of_parts(void)
{
    check_case("in a row");
    parts_case c = begin_parts();
    for (int t = 0; t < N_STEPS; t++) read_part(&c, 1, t, t + 1, 1);
    check_parts(&c, 1, 0, 0);
    check_case("with gaps");
    c = begin_parts();
    read_part(&c, 1, 1, 4, 1);
    read_part(&c, 1, 5, 9, 1);
    check_parts(&c, 1, 0, 0);
    check_case("half is read");
    c = begin_parts();
    read_part(&c, 1, 1, 4, 1);
    read_part(&c, 1, 5, 8, 1);
    check_parts(&c, 0, 1, 1);
    check_case("one");
    c = begin_parts();
    read_part(&c, 1, 0, 11, 1);
    check_parts(&c, 0, 0, 1);
    check_case("strided");
    c = begin_parts();
    read_part(&c, 1, 0, N_STEPS, 2);
    read_part(&c, 1, 1, N_STEPS, 2);
    check_parts(&c, 0, 1, 1);
    check_case("strided, and the rest");
    c = begin_parts();
    read_part(&c, 1, 0, 6, 2);
    read_part(&c, 1, 6, N_STEPS, 1);
    check_parts(&c, 0, 1, 1);
    check_case("overlapping");
    c = begin_parts();
    for (int t = 0; t < N_STEPS - 1; t++) read_part(&c, 1, t, t + 2, 1);
    check_parts(&c, 0, N_STEPS - 2, 1);
    check_case("two axes");
    c = begin_parts();
    read_part(&c, 0, 0, 1, 1);
    read_part(&c, 1, 1, N_STEPS, 1);
    check_parts(&c, 0, 1, 1);
}

/* What is joined goes into a sum that is there; a share of all comes after the parts before it. */
static void test_parts_among_other_shares(void)
{
    parts_case c = begin_parts();
    hl_id square;
    check_case("%s", "");
    read_part(&c, 1, 0, 6, 1);
    read_part(&c, 1, 6, N_STEPS, 1);
    CHECK_OK(hl_build_binary(c.graph, HL_OP_MUL, c.x, c.x, &square));
    CHECK_OK(hl_build_sum(c.graph, square, NULL, 0, false, &square));
    CHECK_OK(hl_build_accumulate(c.graph, square, &c.loss));
    read_part(&c, 1, 0, 6, 1);
    check_parts(&c, 1, 0, 1);
}

/* The gradient of parts of one size that are joined is a split; that of others, or where some want
 * none, is slices. */
static void test_gradient_of_a_concat(void)
{
    for (int variant = 0; variant < 3; variant++) {
        check_case("variant %d", variant);
        hl_graph *graph;
        hl_id x[3], all, grads[3];
        hl_attrs axis = {.axis = {1}};
        CHECK_OK(hl_graph_create(&graph));
        for (int i = 0; i < 3; i++) {
            hl_type type = {HL_DTYPE_F32, hl_shape_2d(2, i == 2 ? 1 : i == variant ? 3 : 2)};
            CHECK_OK(hl_graph_input(graph, "x", type, &x[i]));
        }
        CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, x, 3, &axis, &all));
        CHECK_OK(hl_build_binary(graph, HL_OP_MUL, all, all, &all));
        CHECK_OK(hl_build_sum(graph, all, NULL, 0, false, &all));
        CHECK_OK(hl_pass_autodiff(graph, all, HL_NONE, x, variant == 2 ? 2 : 3, grads));
        CHECK_INT(count_op(graph, HL_OP_SPLIT), 0);
        CHECK_INT(count_op(graph, HL_OP_SLICE), variant == 2 ? 2 : 3);
        hl_graph_destroy(graph);
    }
    check_case("equal parts");
    hl_graph *graph;
    hl_id x[3], all, grads[3];
    hl_attrs axis = {.axis = {1}};
    CHECK_OK(hl_graph_create(&graph));
    for (int i = 0; i < 3; i++)
        CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(2, i < 2 ? 2 : 1)},
                                &x[i]));
    CHECK_OK(hl_graph_add(graph, HL_OP_CONCAT, x, 3, &axis, &all));
    CHECK_OK(hl_build_sum(graph, all, NULL, 0, false, &all));
    CHECK_OK(hl_pass_autodiff(graph, all, HL_NONE, x, 3, grads));
    CHECK_INT(count_op(graph, HL_OP_SPLIT), 1);
    CHECK_INT(count_op(graph, HL_OP_SLICE), 0);
    hl_graph_destroy(graph);
}

/* A split is one node where most of its outputs are read, slices where not. */
static void test_splits_that_are_hardly_read(void)
{
    hl_device *device;
    CHECK_OK(hl_null_backend()->device_open(hl_null_backend(), 0, NULL, &device));
    for (int n_read = 1; n_read <= 4; n_read++) {
        check_case("%d of 4 are read", n_read);
        hl_graph *graph;
        hl_id x, first;
        hl_attrs split = {.split = {.axis = 0, .size = 3}};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_1d(11)}, &x));
        CHECK_OK(hl_graph_add(graph, HL_OP_SPLIT, &x, 1, &split, &first));
        for (int i = 0; i < n_read; i++) CHECK_OK(hl_graph_output(graph, first + 3 - i));
        CHECK_OK(hl_pass_lower(graph, device, false));
        CHECK_OK(hl_graph_verify(graph));
        CHECK_INT(count_op(graph, HL_OP_SPLIT), n_read > 2);
        CHECK_INT(count_op(graph, HL_OP_SLICE), n_read > 2 ? 0 : n_read);
        CHECK_INT(hl_graph_shape(graph, graph->outputs[0])->dim[0], 2);
        hl_graph_destroy(graph);
    }
    device->ops->destroy(device);
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

/* What has one place is joined, though what has another one stands in between. */
static void test_places_that_alternate(void)
{
    static const hl_op ops[] = {HL_OP_EXP, HL_OP_TANH, HL_OP_SIN, HL_OP_COS, HL_OP_NEG, HL_OP_ABS};
    for (int variant = 0; variant < 3; variant++) {
        check_case("variant %d", variant);
        hl_graph *graph;
        hl_id x, out;
        hl_type type = {HL_DTYPE_F32, hl_shape_2d(4, 5)};
        CHECK_OK(hl_graph_create(&graph));
        for (int i = 0; i < 6; i++) {
            CHECK_OK(hl_graph_input(graph, "x", type, &x));
            if (variant == 1) graph->fence = i % 2;
            if (variant == 2) graph->segment = i % 2 ? HL_SEGMENT_APPLY : HL_SEGMENT_MICRO;
            CHECK_OK(hl_build_unary(graph, ops[i], x, &out));
            CHECK_OK(hl_graph_output(graph, out));
        }
        fuse_all(graph);
        CHECK_INT(count_nodes(graph), variant ? 2 : 1);
        CHECK_INT(graph->n_nodes, variant ? 2 : 1);
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

/* ---- guards, packing, feeding ---------------------------------------------------------------- */

typedef enum commit_form {
    OF_A_VALUE,
    OF_A_SUM,         /* with the state: an addition */
    OF_A_SPREAD_SUM,  /* with a number, which is no update's operand */
    OF_AN_AVERAGE,    /* 0.75 state + 0.5 value */
    OF_ITS_AVERAGE,   /* the same, the other way round in sum and products */
    OF_A_GROWING_SUM, /* 2 state + 0.5 value: no average */
    OF_A_SPREAD_MEAN, /* 0.75 state + 0.5 number */
    OF_A_STATE,       /* nobody changes it */
    OF_CHANGED_STATE, /* of another store, which takes this one's value */
    N_COMMIT_FORMS
} commit_form;

static hl_id add_state(hl_graph *graph, const char *name)
{
    int32_t store;
    hl_id leaf;
    hl_type type = {HL_DTYPE_F32, hl_shape_1d(4)};
    CHECK_OK(hl_graph_store(graph, name, HL_DTYPE_F32, 4, &store));
    CHECK_OK(hl_graph_leaf(graph, HL_VALUE_STATE, type, store, 0, name, &leaf));
    return leaf;
}

/* keep state + take value; turned: as value take + state keep. */
static hl_id add_average(hl_graph *graph, hl_id state, double keep, hl_id value, double take,
                         bool turned)
{
    hl_id of[2] = {state, value}, by[2], sum;
    for (int j = 0; j < 2; j++) {
        CHECK_OK(hl_graph_number(graph, HL_DTYPE_F32, j ? take : keep, &by[j]));
        CHECK_OK(hl_build_binary(graph, HL_OP_MUL, turned ? by[j] : of[j], turned ? of[j] : by[j],
                                 &of[j]));
    }
    CHECK_OK(hl_build_binary(graph, HL_OP_ADD, of[turned], of[!turned], &sum));
    return sum;
}

static hl_op update_of(commit_form form)
{
    return form == OF_A_SUM                                  ? HL_OP_ACCUMULATE
           : form == OF_AN_AVERAGE || form == OF_ITS_AVERAGE ? HL_OP_EMA
                                                             : HL_OP_ASSIGN;
}

/* The op and the operand of a commit's update, which is in the commit's segment. */
static void test_commits_become_updates(void)
{
    for (int form = 0; form < N_COMMIT_FORMS; form++)
        for (int segment = 0; segment < HL_SEGMENT_COUNT; segment++) {
            check_case("form %d, segment %d", form, segment);
            hl_graph *graph;
            hl_id x, one, value;
            hl_type type = {HL_DTYPE_F32, hl_shape_1d(4)};
            hl_type number = {HL_DTYPE_F32, hl_shape_scalar()};
            CHECK_OK(hl_graph_create(&graph));
            CHECK_OK(hl_graph_input(graph, "x", type, &x));
            CHECK_OK(hl_graph_input(graph, "one", number, &one));
            hl_id state = add_state(graph, "state"), other = add_state(graph, "other");
            graph->segment = (hl_segment)segment;
            value = x;
            if (form == OF_A_SUM) CHECK_OK(hl_build_binary(graph, HL_OP_ADD, x, state, &value));
            if (form == OF_A_SPREAD_SUM)
                CHECK_OK(hl_build_binary(graph, HL_OP_ADD, one, state, &value));
            if (form == OF_AN_AVERAGE || form == OF_ITS_AVERAGE)
                value = add_average(graph, state, 0.75, x, 0.5, form == OF_ITS_AVERAGE);
            if (form == OF_A_GROWING_SUM) value = add_average(graph, state, 2, x, 0.5, false);
            if (form == OF_A_SPREAD_MEAN) value = add_average(graph, state, 0.75, one, 0.5, false);
            if (form >= OF_A_STATE) value = other;
            CHECK_OK(hl_graph_commit(graph, state, value));
            if (form == OF_CHANGED_STATE) CHECK_OK(hl_graph_commit(graph, other, state));
            graph->segment = HL_SEGMENT_MICRO;
            CHECK_OK(hl_pass_guard(graph));
            CHECK_OK(hl_graph_verify(graph));
            const hl_node *update =
                &graph->nodes[hl_graph_producer(graph, graph->commits[0].value)];
            CHECK_INT(update->op, update_of(form));
            if (update->op == HL_OP_EMA) {
                CHECK(hl_ema_attrs(update)->decay == 0.75);
                CHECK(hl_ema_attrs(update)->take == 0.5);
            }
            CHECK_INT(update->segment, segment);
            CHECK_INT(count_op(graph, HL_OP_CONCAT), form == OF_CHANGED_STATE ? 2 : 0);
            if (update->op != HL_OP_ASSIGN) value = x;
            CHECK_INT(update->in[1] == value, form != OF_CHANGED_STATE);
            hl_graph_destroy(graph);
        }
}

typedef enum write_form {
    OF_ROWS,
    OF_ROWS_THAT_ARE_READ, /* by others than the commit */
    OF_ROWS_GIVEN_OUT,
    OF_ROWS_BESIDE_THE_OLD, /* somebody sees the state as it was */
    OF_ROWS_AND_THE_OLD,    /* which is given out */
    OF_ROWS_FOR_TWO,
    OF_ROWS_OF_ANOTHER, /* state */
    OF_ROWS_OF_A_VALUE,
    OF_ADDED_ROWS,
    OF_ROWS_AFTER_A_LOSS,
    N_WRITE_FORMS
} write_form;

/* Rows are written where their state lies, if nobody sees what was there. */
static void test_rows_are_written_in_place(void)
{
    for (int form = 0; form < N_WRITE_FORMS; form++) {
        check_case("form %d", form);
        hl_graph *graph;
        hl_id x, rows, index, value, twice, loss;
        hl_attrs axis = {.axis = {0}};
        hl_type type = {HL_DTYPE_F32, hl_shape_1d(4)}, two = {HL_DTYPE_F32, hl_shape_1d(2)};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", type, &x));
        CHECK_OK(hl_graph_input(graph, "rows", two, &rows));
        CHECK_OK(hl_graph_input(graph, "index", (hl_type){HL_DTYPE_I64, two.shape}, &index));
        hl_id state = add_state(graph, "state"), other = add_state(graph, "other");
        hl_id from = form == OF_ROWS_OF_ANOTHER ? other : form == OF_ROWS_OF_A_VALUE ? x : state;
        hl_op op = form == OF_ADDED_ROWS ? HL_OP_INDEX_ADD : HL_OP_INDEX_COPY;
        CHECK_OK(hl_graph_add(graph, op, (hl_id[]){from, index, rows}, 3, &axis, &value));
        CHECK_OK(hl_graph_commit(graph, state, value));
        bool by_old = form == OF_ROWS_BESIDE_THE_OLD;
        CHECK_OK(hl_build_binary(graph, HL_OP_ADD, by_old ? state : value, x, &twice));
        if (form == OF_ROWS_THAT_ARE_READ || by_old) CHECK_OK(hl_graph_output(graph, twice));
        if (form == OF_ROWS_GIVEN_OUT) CHECK_OK(hl_graph_output(graph, value));
        if (form == OF_ROWS_AND_THE_OLD) CHECK_OK(hl_graph_output(graph, state));
        if (form == OF_ROWS_FOR_TWO) CHECK_OK(hl_graph_commit(graph, other, value));
        if (form == OF_ROWS_AFTER_A_LOSS) {
            hl_id control, in[2];
            hl_attrs by = {.rows = {1}};
            CHECK_OK(hl_graph_input(graph, "loss", (hl_type){HL_DTYPE_F32, {0}}, &loss));
            CHECK_OK(hl_graph_control(graph, &control));
            in[0] = control, in[1] = loss;
            CHECK_OK(hl_graph_add(graph, HL_OP_CONTROL_MICRO, in, 2, &by, &value));
            CHECK_OK(hl_graph_commit(graph, control, value));
        }
        CHECK_OK(hl_pass_guard(graph));
        CHECK_OK(hl_graph_verify(graph));
        bool in_place = form <= OF_ROWS_GIVEN_OUT;
        CHECK_INT(count_op(graph, HL_OP_INDEX_ASSIGN), in_place);
        CHECK_INT(count_op(graph, op), !in_place);
        CHECK_INT(count_op(graph, HL_OP_ASSIGN), in_place ? 0 : form == OF_ROWS_FOR_TWO ? 2 : 1);
        hl_graph_destroy(graph);
    }
}

/* A matrix is packed from the float32 that it was rounded from, and from nothing else. */
static void test_packs_of_rounded_matrices(void)
{
    static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_F64, HL_DTYPE_F16, HL_DTYPE_I64};
    for (int i = 0; i < 4; i++) {
        check_case("of %s", hl_dtype_name(dtypes[i]));
        hl_graph *graph;
        hl_id x, w, rounded, out;
        hl_device device = {.packs = true};
        CHECK_OK(hl_graph_create(&graph));
        CHECK_OK(hl_graph_input(graph, "x", (hl_type){HL_DTYPE_BF16, hl_shape_2d(3, 4)}, &x));
        CHECK_OK(hl_graph_input(graph, "w", (hl_type){dtypes[i], hl_shape_2d(4, 5)}, &w));
        CHECK_OK(hl_build_cast(graph, w, HL_DTYPE_BF16, &rounded));
        CHECK_OK(hl_build_matmul(graph, x, rounded, false, false, &out));
        CHECK_OK(hl_graph_output(graph, out));
        CHECK_OK(hl_pass_pack(graph, &device));
        CHECK_OK(hl_graph_verify(graph));
        CHECK_INT(count_op(graph, HL_OP_MATMUL_PACK), 1);
        CHECK_INT(count_op(graph, HL_OP_CAST), i > 0);
        hl_graph_destroy(graph);
    }
}

/* Rows by the batch's numbers are fed; by others, which the host learns too late, they are not. */
static void test_what_is_fed(void)
{
    hl_graph *graph;
    hl_id rows, others, x, out;
    int32_t *datasets;
    hl_attrs dtype = {.dtype = {HL_DTYPE_F32}};
    hl_type numbers = {HL_DTYPE_I64, hl_shape_1d(3)};
    check_case("%s", "");
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "rows", numbers, &rows));
    CHECK_OK(hl_graph_input(graph, "others", numbers, &others));
    CHECK_OK(hl_graph_dataset(graph, "x", (hl_type){HL_DTYPE_F32, hl_shape_2d(7, 2)}, &x));
    for (int i = 0; i < 2; i++) {
        hl_id in[2] = {x, i ? others : rows};
        CHECK_OK(hl_graph_add(graph, HL_OP_BATCH_GATHER, in, 2, &dtype, &out));
        CHECK_OK(hl_graph_output(graph, out));
    }
    CHECK_OK(hl_pass_feed(graph, true, &datasets));
    CHECK_OK(hl_graph_verify(graph));
    CHECK_INT(graph->n_inputs, 3);
    CHECK(datasets[0] == HL_NONE && datasets[1] == HL_NONE && datasets[2] == 0);
    CHECK_INT(count_op(graph, HL_OP_BATCH_GATHER), 1);
    hl_free(datasets);
    hl_graph_destroy(graph);
}

/* ---- relu ------------------------------------------------------------------------------------ */

typedef enum dropout_form {
    IN_FLOAT32,
    IN_16_BITS,       /* widened for the products, which are rounded then */
    MASK_FIRST,       /* of the factors */
    ROW_OF_GRADIENTS, /* dy has one row, which the mask spreads */
    OTHER_MASK,       /* relu's result is multiplied by another mask than dy */
    NOT_DROPPED,      /* and by none */
    OTHER_SEGMENT,    /* the gradient is computed in other steps than dropout's result */
    N_DROPOUT_FORMS
} dropout_form;

static hl_id add_mask(hl_graph *graph, const hl_shape *shape, const char *stream)
{
    hl_attrs attrs;
    hl_id control, mask;
    hl_attrs_init(HL_SCHEMA_dropout_mask, &attrs);
    attrs.dropout_mask.shape = hl_ints_of(shape);
    attrs.dropout_mask.p = 0.75, attrs.dropout_mask.stream = stream;
    attrs.dropout_mask.dtype = HL_DTYPE_F32;
    CHECK_OK(hl_graph_control(graph, &control));
    CHECK_OK(hl_graph_add(graph, HL_OP_DROPOUT_MASK, &control, 1, &attrs, &mask));
    return mask;
}

static hl_id add_masked(hl_graph *graph, hl_id value, hl_id mask, dropout_form form)
{
    hl_dtype dtype = hl_graph_dtype(graph, value);
    hl_id out;
    CHECK_OK(hl_build_cast(graph, value, HL_DTYPE_F32, &out));
    hl_id factors[2] = {form == MASK_FIRST ? mask : out, form == MASK_FIRST ? out : mask};
    CHECK_OK(hl_graph_add(graph, HL_OP_MUL, factors, 2, NULL, &out));
    CHECK_OK(hl_build_cast(graph, out, dtype, &out));
    return out;
}

/* Outputs: dropout(relu(x)) and relu's gradient. */
static hl_graph *make_dropout(dropout_form form)
{
    hl_dtype dtype = form == IN_16_BITS ? HL_DTYPE_BF16 : HL_DTYPE_F32;
    hl_type full = {dtype, hl_shape_2d(4, 5)}, row = {dtype, hl_shape_2d(1, 5)};
    hl_graph *graph;
    hl_id x, dy, mask, other, out;
    CHECK_OK(hl_graph_create(&graph));
    CHECK_OK(hl_graph_input(graph, "x", full, &x));
    CHECK_OK(hl_graph_input(graph, "dy", form == ROW_OF_GRADIENTS ? row : full, &dy));
    CHECK_OK(hl_build_unary(graph, HL_OP_RELU, x, &x));
    other = mask = add_mask(graph, &full.shape, "drop");
    if (form == OTHER_MASK) other = add_mask(graph, &full.shape, "other");
    out = form == NOT_DROPPED ? x : add_masked(graph, x, other, form);
    CHECK_OK(hl_graph_output(graph, out));
    if (form == OTHER_SEGMENT) graph->segment = HL_SEGMENT_APPLY;
    dy = add_masked(graph, dy, mask, form);
    CHECK_OK(hl_build_binary(graph, HL_OP_RELU_GRAD, dy, x, &out));
    CHECK_OK(hl_graph_output(graph, out));
    return graph;
}

/* Is a mask drawn for this value, or for what it is computed from? */
static bool reads_mask(const hl_graph *graph, hl_id value)
{
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker == HL_NONE) return false;
    const hl_node *node = &graph->nodes[maker];
    bool found = node->op == HL_OP_DROPOUT_MASK;
    for (int32_t j = 0; j < node->n_in; j++) found |= reads_mask(graph, node->in[j]);
    return found;
}

static void test_relu_before_dropout(void)
{
    for (int form = 0; form < N_DROPOUT_FORMS; form++) {
        check_case("form %d", form);
        hl_graph *graph = make_dropout((dropout_form)form);
        hl_type type = graph->values[graph->outputs[1]].type;
        CHECK_OK(hl_pass_relu(graph));
        CHECK(hl_type_equal(&graph->values[graph->outputs[1]].type, &type));
        const hl_node *gradient = &graph->nodes[hl_graph_producer(graph, graph->outputs[1])];
        CHECK_INT(gradient->op, HL_OP_RELU_GRAD);
        CHECK_INT(reads_mask(graph, gradient->in[0]), form >= ROW_OF_GRADIENTS);
        CHECK_INT(gradient->in[1] == graph->outputs[0],
                  form < ROW_OF_GRADIENTS || form == NOT_DROPPED);
        hl_graph_destroy(graph);
    }
}

/* Adam reads the powers of its own betas. */
static void test_adam_wants_its_powers(void)
{
    static const double segment[5] = {0, 3, 1, 0, 0};
    hl_type flat = {HL_DTYPE_F32, hl_shape_1d(3)}, number = {HL_DTYPE_F32, hl_shape_scalar()};
    hl_type table = {HL_DTYPE_F64, hl_shape_2d(1, 5)};
    for (int other = 0; other < 3; other++) {
        hl_graph *graph;
        hl_id in[8], out, control, decided, square;
        hl_attrs adam = {.adam = {0.9, 0.99, 1e-8, false}};
        hl_attrs betas = {.betas = {other == 1 ? 0.8 : 0.9, other == 2 ? 0.999 : 0.99}};
        CHECK_OK(hl_graph_create(&graph));
        graph->segment = HL_SEGMENT_APPLY;
        CHECK_OK(hl_graph_control(graph, &control));
        CHECK_OK(hl_graph_input(graph, "square", number, &square));
        CHECK_OK(hl_graph_add(graph, HL_OP_CONTROL_APPLY, (hl_id[]){control, square}, 2, &betas,
                              &decided));
        for (int i = 0; i < 3; i++) {
            static const char *const names[] = {"param", "optimizer.0", "optimizer.1"};
            int32_t store;
            CHECK_OK(hl_graph_store(graph, names[i], HL_DTYPE_F32, 3, &store));
            CHECK_OK(hl_graph_leaf(graph, i ? HL_VALUE_STATE : HL_VALUE_PARAM, flat, store, 0,
                                   names[i], &in[i]));
        }
        CHECK_OK(hl_graph_input(graph, "grad", flat, &in[3]));
        CHECK_OK(hl_graph_const(graph, table, segment, &in[4]));
        CHECK_OK(hl_graph_input(graph, "scale", number, &in[5]));
        CHECK_OK(hl_graph_input(graph, "lr", number, &in[6]));
        in[7] = decided;
        hl_status status = hl_graph_add(graph, HL_OP_ADAM, in, 8, &adam, &out);
        if (other)
            CHECK_ERROR(status, HL_ERROR_CONFIG, "must keep the powers of its betas 0.9 and 0.99");
        else
            CHECK_OK(status);
        hl_graph_destroy(graph);
    }
}

int main(void)
{
    test_relu_before_dropout();
    test_copies_stay_apart();
    test_places_that_alternate();
    test_fences_keep_what_is_kept();
    test_commits_become_updates();
    test_rows_are_written_in_place();
    test_packs_of_rounded_matrices();
    test_what_is_fed();
    test_gradients_of_parts();
    test_parts_among_other_shares();
    test_gradient_of_a_concat();
    test_splits_that_are_hardly_read();
    test_clusters();
    test_placing();
    test_placing_beyond_63_bits();
    test_adam_wants_its_powers();
    return CHECK_DONE();
}
