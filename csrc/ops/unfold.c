/* Windows side by side (im2col) and back (col2im): two linear maps that are one another's
 * transposes. Convolutions are products of them where a device has no kernel of its own. */
#include "base/alloc.h"
#include "ir/window.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/window.h"

/* The windows of an input with these spatial dims: their dims, and how many taps they have. */
static hl_status count_windows(hl_attrs_unfold *unfold, const hl_ints *in, hl_ints *out_dims,
                               int64_t *out_taps)
{
    HL_TRY(hl_check_window(in->n, &unfold->stride, &unfold->dilation, &unfold->before,
                           &unfold->after));
    if (unfold->kernel.n != in->n)
        return hl_status_set(HL_ERROR_SHAPE, "kernel must have %d numbers, got %d", (int)in->n,
                             (int)unfold->kernel.n);
    *out_taps = 1;
    HL_TRY(hl_count_windows(in, &unfold->kernel, &unfold->stride, &unfold->dilation,
                            &unfold->before, &unfold->after, out_dims));
    for (int32_t d = 0; d < in->n; d++)
        if (!hl_mul_dim(*out_taps, unfold->kernel.at[d], out_taps))
            return hl_status_set(HL_ERROR_SHAPE, "the kernel must have less than 2**63 elements, "
                                                 "got more");
    return HL_OK;
}

hl_status hl_infer_unfold(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    hl_attrs_unfold *unfold = &node->attrs.unfold;
    hl_ints dims;
    int64_t taps;
    HL_TRY(hl_check_rank(x, 3, "the input"));
    hl_ints in = hl_spatial_dims(&x->shape, true);
    HL_TRY(count_windows(unfold, &in, &dims, &taps));
    if (unfold->size.n != 0)
        return hl_status_set(HL_ERROR_SHAPE, "size must have 0 numbers, got %d",
                             (int)unfold->size.n);
    hl_shape shape = hl_spatial_shape(x->shape.dim[0], taps, &dims, true);
    shape.dim[shape.rank++] = x->shape.dim[x->shape.rank - 1];
    out_types[0] = (hl_type){x->dtype, shape};
    return HL_OK;
}

hl_status hl_infer_fold(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *windows = hl_node_in_type(graph, node, 0);
    hl_attrs_unfold *unfold = &node->attrs.unfold;
    hl_ints dims;
    int64_t taps;
    HL_TRY(hl_check_float(windows, "the input"));
    HL_TRY(count_windows(unfold, &unfold->size, &dims, &taps));
    int64_t n = windows->shape.dim[0], channels = windows->shape.dim[windows->shape.rank - 1];
    hl_type want = {windows->dtype, hl_spatial_shape(n, taps, &dims, true)};
    want.shape.dim[want.shape.rank++] = channels;
    HL_TRY(hl_check_rank_exactly(windows, want.shape.rank, "the input"));
    HL_TRY(hl_check_type(windows, &want, "the input"));
    out_types[0] = (hl_type){windows->dtype, hl_spatial_shape(n, channels, &unfold->size, true)};
    return HL_OK;
}

hl_status hl_vjp_unfold(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    (void)need;
    const hl_node node = graph->nodes[id];
    hl_attrs attrs = node.attrs;
    attrs.unfold.size = hl_spatial_dims(hl_graph_shape(graph, node.in[0]), true);
    return hl_graph_add(graph, HL_OP_FOLD, &dout[0], 1, &attrs, &din[0]);
}

hl_status hl_vjp_fold(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    (void)need;
    hl_attrs attrs = graph->nodes[id].attrs;
    attrs.unfold.size.n = 0;
    return hl_graph_add(graph, HL_OP_UNFOLD, &dout[0], 1, &attrs, &din[0]);
}
