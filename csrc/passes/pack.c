/* Packing: right sides of matrix products in the device's own order, made once for all their
 * readers. */
#include "passes/passes.h"

#include <string.h>

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/rewrite.h"

typedef struct pack_state {
    hl_graph *graph;
    hl_id *map;
    hl_id (*packs)[2]; /* by matrix and orientation: its packed copy */
    uint8_t *changed;  /* by store */
} pack_state;

/* A matrix that was only rounded is packed from where it lies: rounding and packing are one pass.
 */
static hl_id skip_rounding(const hl_graph *graph, hl_id matrix)
{
    hl_node_id maker = hl_graph_producer(graph, matrix);
    if (maker == HL_NONE || graph->nodes[maker].op != HL_OP_CAST) return matrix;
    hl_id from = graph->nodes[maker].in[0];
    hl_dtype dtype = hl_graph_dtype(graph, matrix);
    bool rounds = hl_dtype_is_16_bit(dtype);
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
    place.fence = 0;
    if (maker != HL_NONE)
        place.segment = s->graph->nodes[maker].segment;
    else if (hl_rewrite_is_fixed(hl_graph_value(s->graph, matrix), s->changed, HL_SEGMENT_MICRO))
        place.segment = HL_SEGMENT_BEGIN;
    hl_graph_stand_by(s->graph, &place);
    if (*known == HL_NONE)
        HL_TRY(hl_graph_add(s->graph, HL_OP_MATMUL_PACK, &matrix, 1, &attrs, known));
    *out_pack = *known;
    return HL_OK;
}

/* A program of the product as one of its rows, which all leading dims are; false: its sums need
 * more. */
static bool flatten_program(const hl_program *program, const hl_shape *rows, hl_program *out)
{
    int32_t rank = program->shape.rank;
    bool is_whole = program->split[1] == rank;
    *out = *program;
    out->shape = *rows;
    hl_program_splits_set(out, (int32_t[]){1}, is_whole ? 0 : 1);
    return program->split[0] == 0 && (is_whole || program->split[1] == rank - 1);
}

/* The packed product with what the product carries: an epilogue, whose operands become rows. */
static hl_status add_packed(pack_state *s, const hl_node *node, const hl_id *own, int32_t n_own,
                            const hl_shape *rows, hl_id *out_first)
{
    hl_graph *graph = s->graph;
    hl_attrs attrs = {.matmul_packed = {rows->dim[1], node->attrs.matmul.float32_out}};
    hl_id in[HL_ANCHOR_INS];
    hl_type types[HL_PROGRAM_OUTS];
    hl_program program;
    memcpy(in, own, (size_t)n_own * sizeof *in);
    if (!node->program)
        return hl_graph_add(graph, HL_OP_MATMUL_PACKED, in, n_own, &attrs, out_first);
    flatten_program(node->program, rows, &program);
    for (int32_t i = n_own; i < node->n_in; i++) {
        in[i] = node->in[i];
        if (hl_shape_numel(hl_graph_shape(graph, in[i])) == hl_shape_numel(rows))
            HL_TRY(hl_build_reshape(graph, in[i], rows, &in[i]));
    }
    for (int32_t j = 0; j < program.n_out; j++) {
        types[j] = graph->values[node->out + j].type;
        if (program.out[j].sums == HL_PW_FULL) types[j].shape = *rows;
    }
    return hl_graph_add_anchor(graph, HL_OP_MATMUL_PACKED, in, node->n_in, &attrs,
                               &(hl_fusion){.epilogue = &program}, types, out_first);
}

static hl_status pack_matmul(pack_state *s, hl_node_id id)
{
    hl_graph *graph = s->graph;
    const hl_node node = graph->nodes[id];
    hl_shape a = *hl_graph_shape(graph, node.in[0]), out = *hl_graph_shape(graph, node.out);
    hl_shape rows = hl_shape_2d(hl_shape_span(&out, 0, out.rank - 1), out.dim[out.rank - 1]);
    hl_shape a2 = hl_shape_2d(hl_shape_span(&a, 0, a.rank - 1), a.dim[a.rank - 1]);
    int32_t n_own = hl_node_anchor_in(&node);
    hl_id own[3], packed;
    HL_TRY(pack_matrix(s, id, &own[1]));
    hl_graph_stand_by(graph, &node);
    HL_TRY(hl_build_reshape(graph, node.in[0], &a2, &own[0]));
    if (n_own == 3) own[2] = node.in[2];
    HL_TRY(add_packed(s, &node, own, n_own, &rows, &packed));
    for (int32_t j = 0; j < node.n_out; j++) {
        hl_shape shape = *hl_graph_shape(graph, node.out + j);
        HL_TRY(hl_build_reshape(graph, packed + j, &shape, &s->map[node.out + j]));
    }
    return HL_OK;
}

/* Is it a product of rows by one matrix, with nothing at its operands? */
static bool can_pack(const hl_graph *graph, const hl_node *node)
{
    hl_program program;
    hl_shape rows = {0};
    if (node->op != HL_OP_MATMUL || hl_matmul_attrs(node)->trans_a) return false;
    if (node->prologue[0] || node->prologue[1] || node->n_in > HL_ANCHOR_INS) return false;
    if (node->program && !flatten_program(node->program, &rows, &program)) return false;
    return hl_graph_shape(graph, node->in[1])->rank == 2 &&
           hl_graph_shape(graph, node->in[0])->rank >= 2;
}

hl_status hl_pass_pack(hl_graph *graph, hl_device *device)
{
    if (!device->packs) return HL_OK;
    pack_state s = {.graph = graph};
    int64_t n_map = graph->n_values, n_nodes = graph->n_nodes;
    hl_status status = HL_OK;
    HL_GOTO(hl_rewrite_map(graph, &s.map));
    HL_GOTO(hl_rewrite_changed_stores(graph, &s.changed));
    HL_GOTO(hl_alloc((size_t)n_map * sizeof *s.packs, (void **)&s.packs));
    for (int64_t v = 0; v < n_map; v++) s.packs[v][0] = s.packs[v][1] = HL_NONE;
    for (int64_t i = 0; i < n_nodes; i++) {
        if (can_pack(graph, &graph->nodes[i])) HL_GOTO(pack_matmul(&s, (hl_node_id)i));
    }
    hl_rewrite_replace(graph, s.map, n_map);
    HL_GOTO(hl_rewrite_sort(graph));
cleanup:
    hl_free(s.packs);
    hl_free(s.changed);
    hl_free(s.map);
    return status;
}
