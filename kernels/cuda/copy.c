/* Launchers of copy.cu.
 *
 * PERMUTE, EXPAND, SLICE and FLIP are one thing: the result's elements in order, read at strides of
 * their own; so is each output of SPLIT; CONCAT and SLICE_GRAD are the same the other way round.
 * What is left after merging is a transposition of matrices, or a strided copy in the widest words
 * of which all runs are made. */
#include "kernels/cuda/copy.h"

#include <stdio.h>

#include "kernels/cuda/calls.h"

enum { WORD = HL_CUDA_WIDEST_WORD, TILE = HL_CUDA_TRANSPOSE_TILE };
/* Matrices thinner than this would leave most of a tile empty. */
enum { TRANSPOSE_MIN = 8 };

/* Element i of a row-major array stands for element first + at(i) of another. */
typedef struct strided {
    int64_t first;
    hl_cuda_layout at;
} strided;

static strided make_strided(const hl_shape *shape, int64_t first, const int64_t *stride)
{
    return (strided){first, hl_cuda_layout_make(shape, stride)};
}

/* ---- strided copies -------------------------------------------------------------------------- */

static bool are_multiples(const strided *s, int64_t k)
{
    int last = s->at.rank - 1;
    if (s->first % k || s->at.dim[last] % k) return false;
    for (int d = 0; d < last; d++)
        if (s->at.stride[d] % k) return false;
    return true;
}

/* The same copy in words of several elements; returns their bytes. */
static size_t widen(strided *s, size_t bytes)
{
    int last = s->at.rank - 1;
    int64_t k = WORD / (int64_t)bytes;
    if (last < 0 || s->at.stride[last] != 1) return bytes;
    while (!are_multiples(s, k)) k /= 2;
    s->first /= k;
    s->at.n /= k;
    s->at.dim[last] /= k;
    for (int d = 0; d < last; d++) s->at.stride[d] /= k;
    return (size_t)k * bytes;
}

/* A kernel's variant: "from" or "to", and the bytes of its words; NULL: they alone. */
typedef struct variant {
    char text[24];
} variant;

static variant name_variant(const char *way, size_t bytes)
{
    variant name;
    snprintf(name.text, sizeof name.text, "%s%s%zu", way ? way : "", way ? "_" : "", bytes);
    return name;
}

static void call_words(hl_cuda_calls *calls, const char *way, int32_t input, int32_t output,
                       const strided *s, size_t bytes)
{
    HL_CUDA_CALL(calls, copy, name_variant(way, bytes).text,
                 hl_cuda_shape_elements(calls->device, s->at.n),
                 .at = {hl_cuda_in(calls, input), hl_cuda_out(calls, output)}, .first = s->first,
                 .layout = s->at);
}

static void call_strided(hl_cuda_calls *calls, const char *way, int32_t input, int32_t output,
                         const strided *s, size_t bytes)
{
    if (s->at.n == 0) return;
    strided wide = *s;
    size_t wide_bytes = widen(&wide, bytes);
    if (wide_bytes > bytes) {
        call_words(calls, way, input, output, &wide, wide_bytes);
        hl_cuda_call_aligned(calls, wide_bytes);
    }
    call_words(calls, way, input, output, s, bytes);
}

/* (B,M,N) read as (B,N,M)? */
static bool find_transpose(const strided *s, int64_t *out_B, int64_t *out_M, int64_t *out_N)
{
    const hl_cuda_layout *at = &s->at;
    int last = at->rank - 1;
    if (at->rank != 2 && at->rank != 3) return false;
    *out_B = at->rank == 3 ? at->dim[0] : 1;
    *out_N = at->dim[last - 1];
    *out_M = at->dim[last];
    if (*out_M < TRANSPOSE_MIN || *out_N < TRANSPOSE_MIN || s->first != 0) return false;
    if (at->rank == 3 && at->stride[0] != *out_M * *out_N) return false;
    return at->stride[last - 1] == 1 && at->stride[last] == *out_N;
}

static void call_transpose(hl_cuda_calls *calls, int64_t B, int64_t M, int64_t N, size_t bytes)
{
    int64_t n_tiles = B * ((M + TILE - 1) / TILE) * ((N + TILE - 1) / TILE);
    HL_CUDA_CALL(calls, transpose, name_variant(NULL, bytes).text,
                 hl_cuda_shape_blocks(calls->device, n_tiles, HL_CUDA_TRANSPOSE_THREADS),
                 .at = {hl_cuda_in(calls, 0), hl_cuda_out(calls, 0)}, .B = B, .M = M, .N = N);
}

/* ---- reading at strides: permute, expand, slice, flip, split --------------------------------- */

/* Where each element of the result lies in the operand. */
static strided find_operand_strides(const hl_graph *graph, const hl_node *node)
{
    hl_ints axes = hl_node_axes(node);
    const hl_shape *x = &hl_node_in_type(graph, node, 0)->shape;
    const hl_shape *out = &hl_node_out_type(graph, node, 0)->shape;
    int64_t own[HL_MAX_RANK], stride[HL_MAX_RANK], first = 0;
    hl_shape_strides(x, own);
    switch (node->op) {
    case HL_OP_EXPAND: return (strided){0, hl_cuda_layout_broadcast(out, x)};
    case HL_OP_PERMUTE:
        for (int d = 0; d < out->rank; d++) stride[d] = own[hl_permute_attrs(node)->dims.at[d]];
        return make_strided(out, 0, stride);
    case HL_OP_SLICE:
        first = hl_slice_attrs(node)->start * own[axes.at[0]];
        /* Where only one element is taken, the step may exceed any memory. */
        if (out->dim[axes.at[0]] > 1) own[axes.at[0]] *= hl_slice_attrs(node)->step;
        return make_strided(out, first, own);
    default: /* FLIP */
        for (int32_t a = 0; a < axes.n; a++) {
            first += (x->dim[axes.at[a]] - 1) * own[axes.at[a]];
            own[axes.at[a]] *= -1;
        }
        return make_strided(out, first, own);
    }
}

static hl_status query_copy(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)id, (void)out_why_not;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_read(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    size_t bytes = hl_dtype_bytes(hl_node_in_type(graph, node, 0)->dtype);
    strided s = find_operand_strides(graph, node);
    int64_t B, M, N;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (find_transpose(&s, &B, &M, &N))
        call_transpose(&calls, B, M, N, bytes);
    else
        call_strided(&calls, "from", 0, 0, &s, bytes);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_split(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *x = hl_node_in_type(graph, node, 0);
    int64_t axis = hl_split_attrs(node)->axis, begin = 0, stride[HL_MAX_RANK];
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_shape_strides(&x->shape, stride);
    for (int32_t j = 0; j < node->n_out; j++) {
        const hl_shape *out = &hl_node_out_type(graph, node, j)->shape;
        strided s = make_strided(out, begin * stride[axis], stride);
        call_strided(&calls, "from", 0, j, &s, hl_dtype_bytes(x->dtype));
        begin += out->dim[axis];
    }
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- writing at strides: concat, slice's gradient -------------------------------------------- */

static hl_status prepare_concat(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *out = hl_node_out_type(graph, node, 0);
    int64_t axis = hl_axis_attrs(node)->axis, begin = 0, stride[HL_MAX_RANK];
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_shape_strides(&out->shape, stride);
    for (int32_t i = 0; i < node->n_in; i++) {
        const hl_shape *x = &hl_node_in_type(graph, node, i)->shape;
        strided s = make_strided(x, begin * stride[axis], stride);
        call_strided(&calls, "to", i, 0, &s, hl_dtype_bytes(out->dtype));
        begin += x->dim[axis];
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_write_parts(hl_device *device, const hl_graph *graph, hl_node_id id,
                                     hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    size_t bytes = hl_dtype_bytes(hl_node_out_type(graph, node, 0)->dtype);
    int64_t first = 0, stride = 1;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    for (int32_t i = 1; i < node->n_in; i++) {
        const hl_shape *part = &hl_node_in_type(graph, node, i)->shape;
        first = hl_round_up(first, hl_write_parts_attrs(node)->align);
        strided s = make_strided(part, first, &stride);
        call_strided(&calls, "to", i, 0, &s, bytes);
        first += part->dim[0];
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_slice_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_shape *dy = &hl_node_in_type(graph, node, 0)->shape;
    const hl_type *dx = hl_node_out_type(graph, node, 0);
    const hl_attrs_slice_grad *slice = hl_slice_grad_attrs(node);
    int64_t axis = slice->axis, stride[HL_MAX_RANK];
    hl_shape_strides(&dx->shape, stride);
    int64_t first = slice->start * stride[axis];
    if (dy->dim[axis] > 1) stride[axis] *= slice->step;
    strided s = make_strided(dy, first, stride);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_zero(&calls, hl_cuda_out(&calls, 0), hl_type_bytes(dx));
    call_strided(&calls, "to", 0, 0, &s, hl_dtype_bytes(dx->dtype));
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- views, where a plan cannot do without the copy ------------------------------------------ */

static hl_status query_view(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)id, (void)out_why_not;
    out_req->deterministic = true;
    out_req->in_place[0] = 1;
    return HL_OK;
}

static hl_status prepare_view(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_copy(&calls, hl_cuda_out(&calls, 0), hl_cuda_in(&calls, 0),
                      hl_type_bytes(hl_node_out_type(graph, &graph->nodes[id], 0)));
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- pad ------------------------------------------------------------------------------------- */

/* Neighbouring dims that are not padded are one. */
static hl_cuda_padding make_padding(const hl_shape *padded, const hl_shape *plain,
                                    const hl_attrs_pad *attrs)
{
    hl_cuda_padding pad = {.n_padded = hl_shape_numel(padded),
                           .n_plain = hl_shape_numel(plain),
                           .mode = (int32_t)attrs->mode};
    bool was_padded = true;
    for (int d = 0; d < padded->rank; d++) {
        int64_t before = attrs->before.at[d];
        bool is_padded = before != 0 || attrs->after.at[d] != 0;
        if (is_padded || was_padded) {
            pad.padded[pad.rank] = padded->dim[d];
            pad.plain[pad.rank] = plain->dim[d];
            pad.before[pad.rank++] = before;
        } else {
            pad.padded[pad.rank - 1] *= padded->dim[d];
            pad.plain[pad.rank - 1] *= plain->dim[d];
        }
        was_padded = is_padded;
    }
    return pad;
}

static hl_status prepare_pad(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *x = hl_node_in_type(graph, node, 0), *out = hl_node_out_type(graph, node, 0);
    hl_cuda_padding padding = make_padding(&out->shape, &x->shape, hl_pad_attrs(node));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(&calls, pad, name_variant(NULL, hl_dtype_bytes(x->dtype)).text,
                 hl_cuda_shape_elements(device, padding.n_padded),
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0)}, .padding = padding,
                 .value = hl_pad_attrs(node)->value, .dtype = (int32_t)x->dtype);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status query_pad_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    if (!hl_cuda_is_dtype(graph, &graph->nodes[id], 0, 1, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_pad_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_cuda_padding padding =
        make_padding(&hl_node_in_type(graph, node, 0)->shape,
                     &hl_node_out_type(graph, node, 0)->shape, hl_pad_attrs(node));
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(&calls, pad_grad, NULL, hl_cuda_shape_elements(device, padding.n_plain),
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0)}, .padding = padding);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel kernels[] = {
    HL_CUDA_KERNEL(RESHAPE, "reshape", query_view, prepare_view),
    HL_CUDA_KERNEL(DETACH, "detach", query_view, prepare_view),
    HL_CUDA_KERNEL(PERMUTE, "permute", query_copy, prepare_read),
    HL_CUDA_KERNEL(EXPAND, "expand", query_copy, prepare_read),
    HL_CUDA_KERNEL(SLICE, "slice", query_copy, prepare_read),
    HL_CUDA_KERNEL(FLIP, "flip", query_copy, prepare_read),
    HL_CUDA_KERNEL(CONCAT, "concat", query_copy, prepare_concat),
    HL_CUDA_KERNEL(WRITE_PARTS, "write_parts", query_copy, prepare_write_parts),
    HL_CUDA_KERNEL(SLICE_GRAD, "slice_grad", query_copy, prepare_slice_grad),
    HL_CUDA_KERNEL(SPLIT, "split", query_copy, prepare_split),
    HL_CUDA_KERNEL(PAD, "pad", query_copy, prepare_pad),
    HL_CUDA_KERNEL(PAD_GRAD, "pad_grad", query_pad_grad, prepare_pad_grad),
};
const hl_kernel *const hl_cuda_copy_kernels[] = {
    &kernels[0], &kernels[1], &kernels[2], &kernels[3],  &kernels[4],  &kernels[5], &kernels[6],
    &kernels[7], &kernels[8], &kernels[9], &kernels[10], &kernels[11], NULL};
