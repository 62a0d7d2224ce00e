/* The geometry of sliding windows, from attributes that infer functions have completed. */
#include "ir/window.h"

#include "ir/op.h"

hl_conv hl_conv_make(const hl_attrs_conv *attrs, const hl_shape *x, const hl_shape *weight,
                     const hl_shape *y)
{
    int channel = attrs->channels_last ? x->rank - 1 : 1, first = attrs->channels_last ? 1 : 2;
    hl_conv conv = {.window = {.n = x->rank - 2},
                    .N = x->dim[0],
                    .C = x->dim[channel],
                    .O = weight->dim[0],
                    .groups = attrs->groups,
                    .channels_last = attrs->channels_last};
    for (int d = 0; d < HL_WINDOW_DIMS; d++) {
        bool has = d < conv.window.n;
        conv.window.in[d] = has ? x->dim[first + d] : 1;
        conv.window.kernel[d] = has ? weight->dim[2 + d] : 1;
        conv.window.out[d] = has ? y->dim[first + d] : 1;
        conv.window.stride[d] = has ? attrs->stride.at[d] : 1;
        conv.window.dilation[d] = has ? attrs->dilation.at[d] : 1;
        conv.window.before[d] = has ? attrs->before.at[d] : 0;
    }
    return conv;
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
