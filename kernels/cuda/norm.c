/* Launchers of norm.cu. */
#include <stdio.h>

#include "kernels/cuda/reduce.h"

/* What is read, and what the first output is written in: the same or narrower. */
typedef struct norm_dtypes {
    hl_dtype in, out;
} norm_dtypes;

static norm_dtypes find_dtypes(const hl_graph *graph, const hl_node *node)
{
    return (norm_dtypes){hl_node_in_type(graph, node, 0)->dtype, hl_graph_dtype(graph, node->out)};
}

/* Elements of another size lie elsewhere. */
static uint64_t find_places(const hl_graph *graph, const hl_node *node, uint64_t places)
{
    norm_dtypes dtypes = find_dtypes(graph, node);
    return dtypes.in == dtypes.out ? places : 0;
}

static void call_named(hl_cuda_calls *calls, const char *what, norm_dtypes dtypes,
                       hl_cuda_shape shape)
{
    char name[64];
    bool rounds = dtypes.in != dtypes.out;
    snprintf(name, sizeof name, "hl_cuda_%s_%s%s%s", what, hl_cuda_suffix(dtypes.in),
             rounds ? "_" : "", rounds ? hl_cuda_suffix(dtypes.out) : "");
    hl_cuda_call_kernel(calls, name, shape);
}

/* ---- batch norm ---- */

/* Rows that a block holds in its registers; columns of a block (norm.cu). */
enum { MOST_HELD = 1024, HELD_COLUMNS = 32, HELD_THREADS = 1024 };

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
    batch.is_held = batch.S == 1 && batch.A > 0 && batch.A <= MOST_HELD;
    return batch;
}

static hl_status query_batch_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_low_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    batch_shape batch = find_batch(graph, node);
    out_req->scratch_bytes = batch.is_held ? 0 : hl_cuda_moments_bytes(&batch.groups);
    out_req->deterministic = true;
    /* The statistics or sums are made before an element is written, and element i is read where it
     * is written: of x, or of dy and x. */
    out_req->in_place[0] = find_places(graph, node, node->op == HL_OP_BATCH_NORM ? 1 : 3);
    return HL_OK;
}

/* One launch for what the op gives: its inputs, its outputs, in order. */
static void call_held(hl_cuda_calls *calls, const hl_node *node, norm_dtypes dtypes,
                      const batch_shape *batch)
{
    int64_t n_blocks = (batch->C + HELD_COLUMNS - 1) / HELD_COLUMNS;
    bool is_grad = node->op == HL_OP_BATCH_NORM_GRAD;
    call_named(calls, is_grad ? "batch_norm_grad_columns" : "batch_norm_columns", dtypes,
               hl_cuda_shape_blocks(calls->device, n_blocks, HELD_THREADS));
    for (int i = 0; i < node->n_in; i++) hl_cuda_pass_in(calls, i);
    for (int j = 0; j < node->n_out; j++) hl_cuda_pass_out(calls, j);
    HL_CUDA_PASS(calls, int64_t, batch->A);
    HL_CUDA_PASS(calls, int64_t, batch->C);
    HL_CUDA_PASS(calls, float, (float)hl_batch_norm_attrs(node)->eps);
}

static void call_cut(hl_cuda_calls *calls, norm_dtypes dtypes, const batch_shape *batch, double eps)
{
    int64_t n = batch->A * batch->C * batch->S;
    hl_cuda_moments_call(calls, dtypes.in, &batch->groups, batch->planes, 1);
    call_named(calls, "batch_norm", dtypes, hl_cuda_shape_elements(calls->device, n));
    hl_cuda_pass_in(calls, 0);
    hl_cuda_pass_out(calls, 1);
    hl_cuda_pass_out(calls, 2);
    hl_cuda_pass_in(calls, 1);
    hl_cuda_pass_in(calls, 2);
    hl_cuda_pass_out(calls, 0);
    HL_CUDA_PASS(calls, int64_t, n);
    HL_CUDA_PASS(calls, int64_t, batch->C);
    HL_CUDA_PASS(calls, int64_t, batch->S);
    HL_CUDA_PASS(calls, float, (float)eps);
}

static void call_grad_cut(hl_cuda_calls *calls, norm_dtypes dtypes, const batch_shape *batch,
                          double eps)
{
    int64_t n = batch->A * batch->C * batch->S;
    hl_cuda_norm_sums_call(calls, dtypes.in, &batch->groups, batch->S, (float)eps);
    call_named(calls, "batch_norm_dx", dtypes, hl_cuda_shape_elements(calls->device, n));
    for (int i = 0; i < 5; i++) hl_cuda_pass_in(calls, i);
    hl_cuda_pass_out(calls, 1);
    hl_cuda_pass_out(calls, 2);
    hl_cuda_pass_out(calls, 0);
    HL_CUDA_PASS(calls, int64_t, batch->A);
    HL_CUDA_PASS(calls, int64_t, batch->C);
    HL_CUDA_PASS(calls, int64_t, batch->S);
    HL_CUDA_PASS(calls, float, (float)eps);
}

static hl_status prepare_batch_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    norm_dtypes dtypes = find_dtypes(graph, node);
    batch_shape batch = find_batch(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (batch.is_held)
        call_held(&calls, node, dtypes, &batch);
    else if (node->op == HL_OP_BATCH_NORM)
        call_cut(&calls, dtypes, &batch, hl_batch_norm_attrs(node)->eps);
    else
        call_grad_cut(&calls, dtypes, &batch, hl_batch_norm_attrs(node)->eps);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- layer norm ---- */

static hl_status query_layer_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_low_float(graph, node, 0, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A team has read its row before it writes an element of it, and element c where it writes c.
     */
    out_req->in_place[0] = find_places(graph, node, node->op == HL_OP_LAYER_NORM ? 1 : 3);
    return HL_OK;
}

static hl_status prepare_layer_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *type = hl_node_in_type(graph, node, 0);
    bool is_grad = node->op == HL_OP_LAYER_NORM_GRAD;
    int rank = type->shape.rank, first = rank - (int)hl_layer_norm_attrs(node)->n_axes, by_block;
    int64_t R = hl_shape_span(&type->shape, 0, first), C = hl_shape_span(&type->shape, first, rank);
    hl_cuda_shape shape = hl_cuda_shape_teams(device, R, C, &by_block);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_named(&calls, hl_op_get(node->op)->name, find_dtypes(graph, node), shape);
    for (int i = 0; i < (is_grad ? 5 : 3); i++) hl_cuda_pass_in(&calls, i);
    for (int j = 0; j < node->n_out; j++) hl_cuda_pass_out(&calls, j);
    HL_CUDA_PASS(&calls, int64_t, R);
    HL_CUDA_PASS(&calls, int64_t, C);
    if (!is_grad) HL_CUDA_PASS(&calls, float, (float)hl_layer_norm_attrs(node)->eps);
    HL_CUDA_PASS(&calls, int, by_block);
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
