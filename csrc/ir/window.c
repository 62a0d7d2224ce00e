/* The geometry of sliding windows, from attributes that infer functions have completed. */
#include "ir/window.h"

#include "ir/op.h"

/* kernel: n sizes. */
static hl_window make_window(const hl_shape *x, const hl_shape *y, bool channels_last,
                             const int64_t *kernel, const hl_ints *stride, const hl_ints *dilation,
                             const hl_ints *before)
{
    hl_window window = {.n = x->rank - 2};
    int first = channels_last ? 1 : 2;
    for (int d = 0; d < HL_WINDOW_DIMS; d++) {
        bool has = d < window.n;
        window.in[d] = has ? x->dim[first + d] : 1;
        window.kernel[d] = has ? kernel[d] : 1;
        window.out[d] = has ? y->dim[first + d] : 1;
        window.stride[d] = has ? stride->at[d] : 1;
        window.dilation[d] = has ? dilation->at[d] : 1;
        window.before[d] = has ? before->at[d] : 0;
    }
    return window;
}

hl_window hl_unfold_make(const hl_attrs_unfold *attrs, const hl_shape *x, const hl_shape *windows)
{
    return make_window(x, windows, true, attrs->kernel.at, &attrs->stride, &attrs->dilation,
                       &attrs->before);
}

hl_pool hl_pool_make(const hl_attrs_pool *attrs, const hl_shape *x, const hl_shape *y)
{
    bool last = attrs->channels_last;
    return (hl_pool){.window = make_window(x, y, last, attrs->kernel.at, &attrs->stride,
                                           &attrs->dilation, &attrs->before),
                     .N = x->dim[0],
                     .C = x->dim[last ? x->rank - 1 : 1],
                     .channels_last = last};
}

hl_conv hl_conv_make(const hl_attrs_conv *attrs, const hl_shape *x, const hl_shape *weight,
                     const hl_shape *y)
{
    bool last = attrs->channels_last;
    return (hl_conv){.window = make_window(x, y, last, weight->dim + 2, &attrs->stride,
                                           &attrs->dilation, &attrs->before),
                     .N = x->dim[0],
                     .C = x->dim[last ? x->rank - 1 : 1],
                     .O = weight->dim[0],
                     .groups = attrs->groups,
                     .channels_last = last};
}

hl_conv hl_conv_of(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *a = hl_graph_shape(graph, node->in[0]), *b = hl_graph_shape(graph, node->in[1]);
    const hl_shape *out = hl_graph_shape(graph, node->out);
    const hl_attrs_conv *attrs = hl_conv_attrs(node);
    switch (node->op) {
    case HL_OP_CONV: return hl_conv_make(attrs, a, b, out);
    case HL_OP_CONV_TRANSPOSE: return hl_conv_make(attrs, out, b, a);
    default: return hl_conv_make(attrs, b, out, a); /* CONV_WEIGHT_GRAD */
    }
}

hl_ints hl_order_channels(int32_t rank, bool to_last)
{
    hl_ints order = {.n = rank};
    for (int32_t d = 1; d < rank; d++) order.at[d] = to_last ? d + 1 : d - 1;
    order.at[to_last ? rank - 1 : 1] = to_last ? 1 : rank - 1;
    return order;
}
