/* Sliding windows: which elements of an input a convolution or a pooling reads for an output.
 *
 * Output o reads, for tap k of the kernel, input o * stride - before + k * dilation along each
 * spatial dim; what lies outside the input is padding. `after` has no part in that: it only makes
 * room for more outputs. Backward ops have the geometry of their forward op, so that "input" and
 * "output" are the forward op's in all of them. */
#ifndef HL_IR_WINDOW_H
#define HL_IR_WINDOW_H

#include "ir/graph.h"

enum { HL_WINDOW_DIMS = 3 };
/* The most that sizes of kernels, strides, dilations and paddings may be: their products fit. */
#define HL_WINDOW_MAX ((int64_t)INT32_MAX)

typedef struct hl_window {
    int32_t n; /* spatial dims, 1 to HL_WINDOW_DIMS; the arrays have 1, and 0 of padding, beyond */
    int64_t in[HL_WINDOW_DIMS], kernel[HL_WINDOW_DIMS], out[HL_WINDOW_DIMS];
    int64_t stride[HL_WINDOW_DIMS], dilation[HL_WINDOW_DIMS], before[HL_WINDOW_DIMS];
} hl_window;

/* Elements of the input, the kernel and the output, of one channel. */
static inline int64_t hl_window_span(const int64_t *dims)
{
    return dims[0] * dims[1] * dims[2];
}

/* Where tap k of output o reads along dim d; negative or in[d] and beyond: padding. */
static inline int64_t hl_window_at(const hl_window *w, int d, int64_t o, int64_t k)
{
    return o * w->stride[d] - w->before[d] + k * w->dilation[d];
}

/* A convolution: x (N,C,in), weight (O,C/groups,kernel), y (N,O,out); with channels_last x (N,in,C)
 * and y (N,out,O). */
typedef struct hl_conv {
    hl_window window;
    int64_t N, C, O, groups;
    bool channels_last;
} hl_conv;

/* Of a node of the family conv. */
hl_conv hl_conv_of(const hl_graph *graph, const hl_node *node);
/* From the shapes of the forward op's x, weight and y. */
hl_conv hl_conv_make(const hl_attrs_conv *attrs, const hl_shape *x, const hl_shape *weight,
                     const hl_shape *y);

/* Windows side by side: x (N,in,C), windows (N,out,taps,C). */
hl_window hl_unfold_make(const hl_attrs_unfold *attrs, const hl_shape *x, const hl_shape *windows);

/* A pooling: x (N,C,in) to y (N,C,out); with channels_last x (N,in,C) to y (N,out,C). */
typedef struct hl_pool {
    hl_window window;
    int64_t N, C;
    bool channels_last;
} hl_pool;
hl_pool hl_pool_make(const hl_attrs_pool *attrs, const hl_shape *x, const hl_shape *y);

/* The order of dims that brings the channels of a value of this rank from the second place to the
 * last, or back. */
hl_ints hl_order_channels(int32_t rank, bool to_last);

#endif
