/* What passes are built on, held against the plain way to do the same: clusters against a search of
 * the whole graph, placing against a scan of all blocks. */
#include "ops/build.h"
#include "passes/clusters.h"
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

int main(void)
{
    test_clusters();
    test_placing();
    test_placing_beyond_63_bits();
    return CHECK_DONE();
}
