/* Launchers of norm.cu. */
#include "kernels/cuda/norm.h"

#include <stdio.h>

#include "kernels/cuda/reduce.h"

enum { MAX_WIDE = 2 };

/* The dtypes of the operands that may have 16 bits, x or dy and x, and of the first output. */
typedef struct norm_dtypes {
    int n;
    hl_dtype in[MAX_WIDE], out;
    char variant[24]; /* of kernels */
} norm_dtypes;

static norm_dtypes find_dtypes(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_BATCH_NORM_GRAD || node->op == HL_OP_LAYER_NORM_GRAD;
    norm_dtypes dtypes = {.n = 1 + is_grad, .out = hl_graph_dtype(graph, node->out)};
    char *at = dtypes.variant, *end = at + sizeof dtypes.variant;
    for (int i = 0; i <= dtypes.n; i++) {
        if (i < dtypes.n) dtypes.in[i] = hl_node_in_type(graph, node, i)->dtype;
        const char *suffix = hl_cuda_suffix(i < dtypes.n ? dtypes.in[i] : dtypes.out);
        at += snprintf(at, (size_t)(end - at), "%s%s", i ? "_" : "", suffix ? suffix : "");
    }
    return dtypes;
}

/* Each of those is float32 or of the one 16-bit type that all of them share; the others up to
 * `last` are float32. */
static bool has_kernel(const hl_graph *graph, const hl_node *node, int last, hl_reason *out_why_not)
{
    norm_dtypes dtypes = find_dtypes(graph, node);
    hl_dtype narrow = HL_DTYPE_F32;
    for (int i = 0; i <= dtypes.n; i++) {
        hl_dtype dtype = i < dtypes.n ? dtypes.in[i] : dtypes.out;
        if (!hl_cuda_suffix(dtype)) {
            hl_reason_set(out_why_not, "needs float32, bfloat16 or float16, got %s",
                          hl_dtype_name(dtype));
            return false;
        }
        if (dtype == HL_DTYPE_F32 || dtype == narrow) continue;
        if (narrow != HL_DTYPE_F32) {
            hl_reason_set(out_why_not, "needs one 16-bit type, got %s and %s",
                          hl_dtype_name(narrow), hl_dtype_name(dtype));
            return false;
        }
        narrow = dtype;
    }
    return hl_cuda_is_dtype(graph, node, dtypes.n, last, HL_DTYPE_F32, out_why_not);
}

/* In place of the operands whose elements have the size of what is given. */
static uint64_t find_places(const hl_graph *graph, const hl_node *node)
{
    norm_dtypes dtypes = find_dtypes(graph, node);
    uint64_t places = 0;
    for (int i = 0; i < dtypes.n; i++)
        if (dtypes.in[i] == dtypes.out) places |= (uint64_t)1 << i;
    return places;
}

/* ---- what a batch norm and its gradient carry -------------------------------------------------
 */

static const char *const fusions[] = {"", "relu(x)", "mul(x, dropout_mask(y))",
                                      "mul(relu(x), dropout_mask(y))", NULL};
static const char *const grad_fusions[] = {"", "a: relu_grad(x, y)",
                                           "a: relu_grad(mul(x, number), y)", NULL};

/* The first step of a program that is this one; NULL: none is. */
static const hl_pw_instr *find_step(const hl_program *program, hl_pw_op op)
{
    for (int32_t i = 0; program && i < program->n_code; i++)
        if (program->code[i].op == op) return &program->code[i];
    return NULL;
}

static hl_cuda_norm_epilogue find_epilogue(const hl_node *node)
{
    const hl_program *program = hl_node_epilogue(node);
    const hl_pw_instr *dropout = find_step(program, HL_PW_DROPOUT_MASK);
    hl_cuda_norm_epilogue epilogue = {.has_relu = find_step(program, HL_PW_RELU) != NULL,
                                      .has_dropout = dropout != NULL};
    if (!dropout) return epilogue;
    epilogue.key[0] = dropout->key.word[0], epilogue.key[1] = dropout->key.word[1];
    epilogue.threshold = hl_dropout_threshold(dropout->number);
    epilogue.scale = (float)hl_dropout_scale(dropout->number);
    return epilogue;
}

/* The control block, for dropout; or nothing. */
static hl_cuda_word find_control(hl_cuda_calls *calls, const hl_node *node)
{
    bool has_dropout = find_step(hl_node_epilogue(node), HL_PW_DROPOUT_MASK);
    return has_dropout ? hl_cuda_in(calls, hl_node_epilogue_in(node)) : (hl_cuda_word){0};
}

/* The operand that is a result of relu; -1: there is none. */
static int32_t find_result(const hl_node *node)
{
    return node->prologue[0] ? hl_node_prologue_in(node, 0) : -1;
}

/* What dy is multiplied by where the result is positive. */
static float find_result_scale(const hl_node *node)
{
    const hl_pw_instr *scale = find_step(node->prologue[0], HL_PW_NUMBER);
    return scale ? (float)scale->number : 1.0f;
}

static hl_cuda_word find_result_word(hl_cuda_calls *calls, const hl_node *node)
{
    int32_t result = find_result(node);
    return result < 0 ? (hl_cuda_word){0} : hl_cuda_in(calls, result);
}

/* ---- batch norm ------------------------------------------------------------------------------ */

typedef struct batch_shape {
    int64_t A, C, S;
    hl_cuda_groups groups; /* of its statistics */
    int64_t planes;        /* A where they go by planes, else 0 */
    bool is_held;          /* one launch does all, else */
    size_t channels;       /* lie at this offset of scratch */
} batch_shape;

/* Of BATCH_NORM and BATCH_NORM_GRAD: input 0 has the shape of x. */
static batch_shape find_batch(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    int last = shape->rank - 1;
    batch_shape batch = {
        .A = shape->dim[0], .C = shape->dim[1], .S = hl_shape_span(shape, 2, shape->rank)};
    if (hl_batch_norm_attrs(node)->channels_last)
        batch.A = hl_shape_span(shape, 0, last), batch.C = shape->dim[last], batch.S = 1;
    if (batch.S == 1) {
        batch.groups = hl_cuda_groups_make(1, batch.A, batch.C);
    } else {
        batch.groups = hl_cuda_groups_make(batch.C, batch.A * batch.S, 1);
        batch.planes = batch.A > 1 ? batch.A : 0;
    }
    batch.is_held = batch.S == 1 && batch.A > 0 && batch.A <= HL_CUDA_NORM_HELD;
    size_t parts = hl_cuda_moments_bytes(&batch.groups), word = sizeof(hl_cuda_channel);
    batch.channels = (parts + word - 1) / word * word;
    return batch;
}

static hl_status query_batch_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    int32_t n_own = hl_node_anchor_in(node), result = find_result(node);
    if (!has_kernel(graph, node, n_own, out_why_not)) return HL_ERROR_CONFIG;
    if (result >= 0 && hl_node_in_type(graph, node, result)->dtype != find_dtypes(graph, node).out)
        return hl_reason_set(out_why_not, "needs a result of the type of what it gives");
    batch_shape batch = find_batch(graph, node);
    out_req->scratch_bytes =
        batch.is_held ? 0 : batch.channels + (size_t)batch.C * sizeof(hl_cuda_channel);
    out_req->deterministic = true;
    /* Two sums read dy and x once and write nothing; one launch is still less than theirs. */
    if (node->op == HL_OP_BATCH_NORM_GRAD && !batch.is_held) out_req->wants_read = 1 << 0;
    /* The statistics or sums are made before an element is written, and a thread reads its elements
     * of x, or of dy and x, before it writes them. */
    out_req->in_place[0] = find_places(graph, node);
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
                     .at.control = find_control(calls, node), .A = batch->A, .C = batch->C,
                     .eps = eps, .epilogue = find_epilogue(node));
    else
        HL_CUDA_CALL(calls, batch_norm_grad_columns, dtypes->variant, shape,
                     .at.dy = hl_cuda_in(calls, 0), .at.x = hl_cuda_in(calls, 1),
                     .at.weight = hl_cuda_in(calls, 2), .at.mean = hl_cuda_in(calls, 3),
                     .at.var = hl_cuda_in(calls, 4), .at.dx = hl_cuda_out(calls, 0),
                     .at.dweight = hl_cuda_out(calls, 1), .at.dbias = hl_cuda_out(calls, 2),
                     .at.result = find_result_word(calls, node), .A = batch->A, .C = batch->C,
                     .eps = eps, .result_scale = find_result_scale(node));
}

static void call_cut(hl_cuda_calls *calls, const hl_node *node, const norm_dtypes *dtypes,
                     const batch_shape *batch)
{
    hl_cuda_channels channels = {batch->channels, (float)hl_batch_norm_attrs(node)->eps};
    hl_cuda_norm_windows windows = hl_cuda_norm_windows_make(batch->A, batch->C, batch->S);
    hl_cuda_moments_call(calls, dtypes->in[0], HL_DTYPE_F32, &batch->groups, batch->planes, 1,
                         &channels);
    HL_CUDA_CALL(calls, batch_norm, dtypes->variant,
                 hl_cuda_shape_elements(calls->device, windows.n), .at.x = hl_cuda_in(calls, 0),
                 .at.channels = hl_cuda_scratch(batch->channels), .at.y = hl_cuda_out(calls, 0),
                 .at.control = find_control(calls, node), .windows = windows,
                 .epilogue = find_epilogue(node));
}

static void call_grad_cut(hl_cuda_calls *calls, const hl_node *node, const norm_dtypes *dtypes,
                          const batch_shape *batch)
{
    hl_cuda_word result = find_result_word(calls, node);
    float result_scale = find_result_scale(node);
    hl_cuda_channels channels = {batch->channels, (float)hl_batch_norm_attrs(node)->eps};
    hl_cuda_norm_windows windows = hl_cuda_norm_windows_make(batch->A, batch->C, batch->S);
    hl_cuda_norm_sums_call(calls, dtypes->variant, &batch->groups, batch->S, result, result_scale,
                           &channels);
    HL_CUDA_CALL(calls, batch_norm_dx, dtypes->variant,
                 hl_cuda_shape_elements(calls->device, windows.n), .at.dy = hl_cuda_in(calls, 0),
                 .at.x = hl_cuda_in(calls, 1), .at.channels = hl_cuda_scratch(batch->channels),
                 .at.result = result, .at.dx = hl_cuda_out(calls, 0), .windows = windows,
                 .result_scale = result_scale);
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
        call_cut(&calls, node, &dtypes, &batch);
    else
        call_grad_cut(&calls, node, &dtypes, &batch);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- layer norm ------------------------------------------------------------------------------ */

static hl_status query_layer_norm(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!has_kernel(graph, node, node->n_in, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    /* A cooperative group has read its row before it writes an element of it, and element c where
     * it writes c.
     */
    out_req->in_place[0] = find_places(graph, node);
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
    HL_CUDA_KERNEL_FUSING(BATCH_NORM, "batch_norm", query_batch_norm, prepare_batch_norm, fusions);
static const hl_kernel batch_norm_grad = HL_CUDA_KERNEL_FUSING(
    BATCH_NORM_GRAD, "batch_norm_grad", query_batch_norm, prepare_batch_norm, grad_fusions);
static const hl_kernel layer_norm =
    HL_CUDA_KERNEL(LAYER_NORM, "layer_norm", query_layer_norm, prepare_layer_norm);
static const hl_kernel layer_norm_grad =
    HL_CUDA_KERNEL(LAYER_NORM_GRAD, "layer_norm_grad", query_layer_norm, prepare_layer_norm);

const hl_kernel *const hl_cuda_norm_kernels[] = {&batch_norm, &batch_norm_grad, &layer_norm,
                                                 &layer_norm_grad, NULL};
