/* Packing: right sides of matrix products in the device's own order, made once for all their
 * readers. */
#include "passes/passes.h"

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/rewrite.h"

typedef struct pack_state {
    hl_graph *graph;
    hl_uses uses;
    hl_id *map;
    hl_id (*packs)[2]; /* by matrix and orientation: its packed copy */
    bool *changed;     /* by store */
} pack_state;

/* A matrix that was only rounded is packed from where it lies: rounding and packing are one pass.
 */
static hl_id skip_rounding(const hl_graph *graph, hl_id matrix)
{
    hl_node_id maker = hl_graph_producer(graph, matrix);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_CAST) return matrix;
    hl_id from = graph->nodes[maker].in[0];
    hl_dtype dtype = hl_graph_dtype(graph, matrix);
    bool rounds = dtype == HL_DTYPE_BF16 || dtype == HL_DTYPE_F16;
    return rounds && hl_graph_dtype(graph, from) == HL_DTYPE_F32 ? from : matrix;
}

/* One packed copy per matrix and orientation, as early as the matrix is there. */
static hl_status pack_matrix(pack_state *s, hl_node_id id, hl_id *out_pack)
{
    const hl_node *node = &s->graph->nodes[id];
    hl_id *known = &s->packs[node->in[1]][hl_matmul_attrs(node)->trans_b];
    hl_id matrix = skip_rounding(s->graph, node->in[1]);
    hl_attrs attrs = {
        .matmul_pack = {hl_matmul_attrs(node)->trans_b, hl_graph_dtype(s->graph, node->in[1])}};
    hl_node_id maker = hl_graph_producer(s->graph, matrix);
    hl_node place = *node;
    place.fence = maker != HL_NONE ? s->graph->nodes[maker].fence : 0;
    if (maker != HL_NONE)
        place.segment = s->graph->nodes[maker].segment;
    else if (hl_rewrite_is_fixed(hl_graph_value(s->graph, matrix), s->changed))
        place.segment = HL_SEGMENT_BEGIN;
    hl_graph_stand_by(s->graph, &place);
    if (*known == HL_NONE)
        HL_TRY(hl_graph_add(s->graph, HL_OP_MATMUL_PACK, &matrix, 1, &attrs, known));
    *out_pack = *known;
    return HL_OK;
}

/* The RELU that alone reads this value, or HL_NONE. */
static hl_node_id find_only_relu(const hl_graph *graph, const hl_uses *uses, hl_id value)
{
    if (value >= graph->n_values || uses->kept[value] || hl_uses_count(uses, value) != 1)
        return HL_NONE;
    hl_node_id user = uses->list[uses->start[value]];
    return graph->nodes[user].op == HL_OP_RELU ? user : HL_NONE;
}

static hl_status pack_matmul(pack_state *s, hl_node_id id)
{
    hl_graph *graph = s->graph;
    hl_node node = graph->nodes[id];
    hl_shape a = *hl_graph_shape(graph, node.in[0]), out = *hl_graph_shape(graph, node.out);
    int64_t k = a.dim[a.rank - 1], n = out.dim[out.rank - 1];
    hl_id in[3], packed;
    HL_TRY(pack_matrix(s, id, &in[1]));
    hl_graph_stand_by(graph, &node);
    hl_shape a2 = hl_shape_2d(hl_shape_span(&a, 0, a.rank - 1), k);
    HL_TRY(hl_build_reshape(graph, node.in[0], &a2, &in[0]));
    if (node.n_in == 3) in[2] = node.in[2];
    hl_node_id relu = find_only_relu(graph, &s->uses, node.out);
    hl_attrs attrs = {.matmul_packed = {n, relu != HL_NONE, node.attrs.matmul.wide}};
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL_PACKED, in, node.n_in, &attrs, &packed));
    HL_TRY(hl_build_reshape(graph, packed, &out, &packed));
    s->map[node.out] = packed;
    if (relu != HL_NONE) s->map[graph->nodes[relu].out] = packed;
    return HL_OK;
}

hl_status hl_pass_pack(hl_graph *graph, hl_device *device)
{
    if (!device->packs) return HL_OK;
    pack_state s = {.graph = graph};
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    hl_status status = HL_OK;
    HL_GOTO(hl_uses_init(graph, &s.uses));
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(hl_rewrite_changed_stores(graph, &s.changed));
    HL_GOTO(hl_alloc((size_t)n_map * sizeof *s.packs, (void **)&s.packs));
    for (int64_t v = 0; v < n_map; v++) s.packs[v][0] = s.packs[v][1] = HL_NONE;
    for (int64_t i = 0; i < n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (node->op != HL_OP_MATMUL || hl_matmul_attrs(node)->trans_a) continue;
        if (hl_graph_shape(graph, node->in[1])->rank != 2 ||
            hl_graph_shape(graph, node->in[0])->rank < 2)
            continue;
        HL_GOTO(pack_matmul(&s, (hl_node_id)i));
    }
    hl_rewrite_replace(graph, s.map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.packs);
    hl_free(s.changed);
    hl_free(s.map);
    hl_uses_deinit(&s.uses);
    return status;
}
