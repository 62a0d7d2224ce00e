/* Launchers of norm.cu. */
#include "kernels/cuda/norm.h"

#include <stdio.h>

#include "kernels/cuda/reduce.h"

/* The dtypes of the operands and of the first output: the same, or a reduced one. */
typedef struct norm_dtypes {
    hl_dtype in, out;
    char variant[16]; /* of kernels */
} norm_dtypes;

static norm_dtypes find_dtypes(const hl_graph *graph, const hl_node *node)
{
    norm_dtypes dtypes = {.in = hl_node_in_type(graph, node, 0)->dtype,
                          .out = hl_graph_dtype(graph, node->out)};
    bool rounds = dtypes.in != dtypes.out;
    snprintf(dtypes.variant, sizeof dtypes.variant, "%s%s%s", hl_cuda_suffix(dtypes.in),
             rounds ? "_" : "", rounds ? hl_cuda_suffix(dtypes.out) : "");
    return dtypes;
}

/* In place, unless the elements differ in size. */
static uint64_t find_places(const hl_graph *graph, const hl_node *node, uint64_t places)
{
    return hl_node_in_type(graph, node, 0)->dtype == hl_graph_dtype(graph, node->out) ? places : 0;
}

/* ---- batch norm ------------------------------------------------------------------------------ */

typedef struct batch_shape {
    int64_t A, C, S;
    hl_cuda_groups groups; /* of its statistics */
    int64_t planes;        /* A where they go by planes, else 0 */
    bool is_held;          /* one launch does all */
} batch_shape;

/* Of BATCH_NORM and BATCH_NORM_GRAD: input 0 has the shape of x. */
static batch_shape find_batch(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    batch_shape batch = {
        .A = shape->dim[0], .C = shape->dim[1], .S = hl_shape_span(shape, 2, shape->rank)};
    if (batch.S == 1) {
        batch.groups = hl_cuda_groups_make(1, batch.A, batch.C);
    } else {
        batch.groups = hl_cuda_groups_make(batch.C, batch.A * batch.S, 1);
        batch.planes = batch.A > 1 ? batch.A : 0;
    }
    batch.is_held = batch.S == 1 && batch.A > 0 && batch.A <= HL_CUDA_NORM_HELD;
    return batch;
}

static hl_status query_batch_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    batch_shape batch = find_batch(graph, node);
    out_req->scratch_bytes = batch.is_held ? 0 : hl_cuda_moments_bytes(&batch.groups);
    out_req->deterministic = true;
    /* The statistics or sums are made before an element is written, and element i is read where it
     * is written: of x, or of dy and x. */
    out_req->in_place[0] = find_places(graph, node, node->op == HL_OP_BATCH_NORM ? 1 : 3);
    return HL_OK;
}

/* One launch for all that the op gives. */
static void call_held(hl_cuda_calls *calls, const hl_node *node, const norm_dtypes *dtypes,
                      const batch_shape *batch)
{
    int64_t n_blocks = (batch->C + HL_CUDA_NORM_COLUMNS - 1) / HL_CUDA_NORM_COLUMNS;
    hl_cuda_shape shape = hl_cuda_shape_blocks(calls->device, n_blocks, HL_CUDA_NORM_THREADS);
    float eps = (float)hl_batch_norm_attrs(node)->eps;
    if (node->op == HL_OP_BATCH_NORM)
        HL_CUDA_CALL(calls, batch_norm_columns, dtypes->variant, shape,
                     .at.x = hl_cuda_in(calls, 0), .at.weight = hl_cuda_in(calls, 1),
                     .at.bias = hl_cuda_in(calls, 2), .at.y = hl_cuda_out(calls, 0),
                     .at.mean = hl_cuda_out(calls, 1), .at.var = hl_cuda_out(calls, 2),
                     .A = batch->A, .C = batch->C, .eps = eps);
    else
        HL_CUDA_CALL(calls, batch_norm_grad_columns, dtypes->variant, shape,
                     .at.dy = hl_cuda_in(calls, 0), .at.x = hl_cuda_in(calls, 1),
                     .at.weight = hl_cuda_in(calls, 2), .at.mean = hl_cuda_in(calls, 3),
                     .at.var = hl_cuda_in(calls, 4), .at.dx = hl_cuda_out(calls, 0),
                     .at.dweight = hl_cuda_out(calls, 1), .at.dbias = hl_cuda_out(calls, 2),
                     .A = batch->A, .C = batch->C, .eps = eps);
}

static void call_cut(hl_cuda_calls *calls, const norm_dtypes *dtypes, const batch_shape *batch,
                     float eps)
{
    int64_t n = batch->A * batch->C * batch->S;
    hl_cuda_moments_call(calls, dtypes->in, &batch->groups, batch->planes, 1);
    HL_CUDA_CALL(calls, batch_norm, dtypes->variant, hl_cuda_shape_elements(calls->device, n),
                 .at.x = hl_cuda_in(calls, 0), .at.mean = hl_cuda_out(calls, 1),
                 .at.var = hl_cuda_out(calls, 2), .at.weight = hl_cuda_in(calls, 1),
                 .at.bias = hl_cuda_in(calls, 2), .at.y = hl_cuda_out(calls, 0), .n = n,
                 .C = batch->C, .S = batch->S, .eps = eps);
}

static void call_grad_cut(hl_cuda_calls *calls, const norm_dtypes *dtypes, const batch_shape *batch,
                          float eps)
{
    hl_cuda_shape shape = hl_cuda_shape_elements(calls->device, batch->A * batch->C * batch->S);
    hl_cuda_norm_sums_call(calls, dtypes->in, &batch->groups, batch->S, eps);
    HL_CUDA_CALL(calls, batch_norm_dx, dtypes->variant, shape, .at.dy = hl_cuda_in(calls, 0),
                 .at.x = hl_cuda_in(calls, 1), .at.weight = hl_cuda_in(calls, 2),
                 .at.mean = hl_cuda_in(calls, 3), .at.var = hl_cuda_in(calls, 4),
                 .at.dweight = hl_cuda_out(calls, 1), .at.dbias = hl_cuda_out(calls, 2),
                 .at.dx = hl_cuda_out(calls, 0), .A = batch->A, .C = batch->C, .S = batch->S,
                 .eps = eps);
}

static hl_status prepare_batch_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    norm_dtypes dtypes = find_dtypes(graph, node);
    batch_shape batch = find_batch(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (batch.is_held)
        call_held(&calls, node, &dtypes, &batch);
    else if (node->op == HL_OP_BATCH_NORM)
        call_cut(&calls, &dtypes, &batch, (float)hl_batch_norm_attrs(node)->eps);
    else
        call_grad_cut(&calls, &dtypes, &batch, (float)hl_batch_norm_attrs(node)->eps);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

static hl_status query_layer_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A cooperative group has read its row before it writes an element of it, and element c where
     * it writes c.
     */
    out_req->in_place[0] = find_places(graph, node, node->op == HL_OP_LAYER_NORM ? 1 : 3);
    return HL_OK;
}

static hl_status prepare_layer_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *type = hl_node_in_type(graph, node, 0);
    int rank = type->shape.rank, first = rank - (int)hl_layer_norm_attrs(node)->n_axes, by_block;
    int64_t R = hl_shape_span(&type->shape, 0, first), C = hl_shape_span(&type->shape, first, rank);
    hl_cuda_shape shape = hl_cuda_shape_coop_groups(device, R, C, &by_block);
    norm_dtypes dtypes = find_dtypes(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (node->op == HL_OP_LAYER_NORM)
        HL_CUDA_CALL(&calls, layer_norm, dtypes.variant, shape, .at.x = hl_cuda_in(&calls, 0),
                     .at.weight = hl_cuda_in(&calls, 1), .at.bias = hl_cuda_in(&calls, 2),
                     .at.y = hl_cuda_out(&calls, 0), .at.mean = hl_cuda_out(&calls, 1),
                     .at.rstd = hl_cuda_out(&calls, 2), .R = R, .C = C,
                     .eps = (float)hl_layer_norm_attrs(node)->eps, .by_block = by_block);
    else
        HL_CUDA_CALL(&calls, layer_norm_grad, dtypes.variant, shape, .at.dy = hl_cuda_in(&calls, 0),
                     .at.x = hl_cuda_in(&calls, 1), .at.mean = hl_cuda_in(&calls, 2),
                     .at.rstd = hl_cuda_in(&calls, 3), .at.weight = hl_cuda_in(&calls, 4),
                     .at.dx = hl_cuda_out(&calls, 0), .R = R, .C = C, .by_block = by_block);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel batch_norm =
    HL_CUDA_KERNEL(BATCH_NORM, "batch_norm", query_batch_norm, prepare_batch_norm);
static const hl_kernel batch_norm_grad =
    HL_CUDA_KERNEL(BATCH_NORM_GRAD, "batch_norm_grad", query_batch_norm, prepare_batch_norm);
static const hl_kernel layer_norm =
    HL_CUDA_KERNEL(LAYER_NORM, "layer_norm", query_layer_norm, prepare_layer_norm);
static const hl_kernel layer_norm_grad =
    HL_CUDA_KERNEL(LAYER_NORM_GRAD, "layer_norm_grad", query_layer_norm, prepare_layer_norm);

const hl_kernel *const hl_cuda_norm_kernels[] = {&batch_norm, &batch_norm_grad, &layer_norm,
                                                 &layer_norm_grad, NULL};
