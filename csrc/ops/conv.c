/* Convolutions (cross-correlations, as everywhere in this field). Three ops that are one another's
 * gradients; all have the attributes and the geometry (ir/window.h) of y = CONV(x, w):
 *
 *     CONV              x, w -> y    also the gradient of CONV_TRANSPOSE for its first operand
 *     CONV_TRANSPOSE    y, w -> x    the gradient of CONV for x
 *     CONV_WEIGHT_GRAD  y, x -> w    the gradient of both for w
 *
 * What the shape of y does not tell is in the attribute `size`: of CONV_TRANSPOSE the spatial dims
 * of x, of which several have one y where the stride is not 1; of CONV_WEIGHT_GRAD those of the
 * kernel.
 *
 * Channels of x and y stand second or, with channels_last, last; kernels say which they take. The
 * weight's order is always torch's: kernels pack it, which is a copy in any case. */
#include "base/alloc.h"
#include "ir/window.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"
#include "ops/window.h"

/* ---- types ----------------------------------------------------------------------------------- */

/* The result's: the operands', or float32 where 16-bit ones are to give it unrounded. */
static hl_dtype result_dtype(const hl_type *operand, const hl_attrs_conv *conv)
{
    return conv->float32_out && hl_dtype_is_16_bit(operand->dtype) ? HL_DTYPE_F32 : operand->dtype;
}

/* Both operands are of one floating dtype and have batch or channels and 1 to 3 spatial dims. */
static hl_status check_operands(const hl_type *a, const hl_type *b, const char *what_a,
                                const char *what_b, hl_attrs_conv *conv)
{
    HL_TRY(hl_check_float(a, what_a));
    HL_TRY(hl_check_dtype(b, a->dtype, what_b));
    HL_TRY(hl_check_window(a->shape.rank - 2, &conv->stride, &conv->dilation, &conv->before,
                           &conv->after));
    return hl_check_rank_exactly(b, a->shape.rank, what_b);
}

/* Channels in and out of a convolution against its groups and its weight's. */
static hl_status check_channels(int64_t C, int64_t O, int64_t per_group, int64_t groups)
{
    if (groups < 1 || C % groups != 0 || O % groups != 0)
        return hl_status_set(HL_ERROR_SHAPE,
                             "groups must divide the channels in, %lld, and out, %lld, got %lld",
                             (long long)C, (long long)O, (long long)groups);
    if (per_group != C / groups)
        return hl_status_set(HL_ERROR_SHAPE,
                             "the weight must have %lld channels in (%lld in %lld groups), got "
                             "%lld",
                             (long long)(C / groups), (long long)C, (long long)groups,
                             (long long)per_group);
    return HL_OK;
}

static hl_status count_outputs(const hl_attrs_conv *conv, const hl_ints *in, const hl_ints *kernel,
                               hl_ints *out_dims)
{
    return hl_count_windows(in, kernel, &conv->stride, &conv->dilation, &conv->before, &conv->after,
                            out_dims);
}

/* y's spatial dims must be those that x's and the kernel's give. */
static hl_status check_output(const hl_attrs_conv *conv, const hl_ints *in, const hl_ints *kernel,
                              const hl_ints *got, const char *what)
{
    hl_ints want;
    HL_TRY(count_outputs(conv, in, kernel, &want));
    for (int32_t d = 0; d < want.n; d++)
        if (got->at[d] != want.at[d])
            return hl_status_set(HL_ERROR_SHAPE,
                                 "%s must have size %lld along spatial dim %d, got "
                                 "%lld",
                                 what, (long long)want.at[d], (int)d, (long long)got->at[d]);
    return HL_OK;
}

static hl_status check_size(const hl_attrs_conv *conv, int32_t n)
{
    if (conv->size.n == n) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "size must have %d numbers, got %d", (int)n,
                         (int)conv->size.n);
}

static hl_status check_bias(const hl_graph *graph, const hl_node *node, int64_t channels)
{
    if (node->n_in < 3) return HL_OK;
    hl_shape want = hl_shape_1d(channels);
    HL_TRY(hl_check_float(hl_node_in_type(graph, node, 2), "the bias"));
    return hl_check_shape(hl_node_in_type(graph, node, 2), &want, "the bias");
}

hl_status hl_infer_conv(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *w = hl_node_in_type(graph, node, 1);
    hl_attrs_conv *conv = &node->attrs.conv;
    bool last = conv->channels_last;
    HL_TRY(check_operands(x, w, "the input", "the weight", conv));
    HL_TRY(check_size(conv, 0));
    int64_t C = x->shape.dim[hl_channel_dim(&x->shape, last)], O = w->shape.dim[0];
    HL_TRY(check_channels(C, O, w->shape.dim[1], conv->groups));
    hl_ints in = hl_spatial_dims(&x->shape, last), kernel = hl_spatial_dims(&w->shape, false), out;
    HL_TRY(count_outputs(conv, &in, &kernel, &out));
    out_types[0] =
        (hl_type){result_dtype(x, conv), hl_spatial_shape(x->shape.dim[0], O, &out, last)};
    return check_bias(graph, node, O);
}

hl_status hl_infer_conv_transpose(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *y = hl_node_in_type(graph, node, 0), *w = hl_node_in_type(graph, node, 1);
    hl_attrs_conv *conv = &node->attrs.conv;
    bool last = conv->channels_last;
    HL_TRY(check_operands(y, w, "the input", "the weight", conv));
    HL_TRY(check_size(conv, y->shape.rank - 2));
    int64_t O = y->shape.dim[hl_channel_dim(&y->shape, last)], C;
    int64_t per_group = w->shape.dim[1];
    if (w->shape.dim[0] != O)
        return hl_status_set(HL_ERROR_SHAPE, "the weight must have %lld channels in, got %lld",
                             (long long)O, (long long)w->shape.dim[0]);
    if (conv->groups < 1 || !hl_mul_dim(per_group, conv->groups, &C))
        return hl_status_set(HL_ERROR_SHAPE,
                             "groups must be at least 1, and %lld channels of each "
                             "a size that fits, got %lld",
                             (long long)per_group, (long long)conv->groups);
    HL_TRY(check_channels(C, O, per_group, conv->groups));
    hl_ints kernel = hl_spatial_dims(&w->shape, false), out = hl_spatial_dims(&y->shape, last);
    HL_TRY(check_output(conv, &conv->size, &kernel, &out, "the input"));
    out_types[0] =
        (hl_type){result_dtype(y, conv), hl_spatial_shape(y->shape.dim[0], C, &conv->size, last)};
    return check_bias(graph, node, C);
}

hl_status hl_infer_conv_weight_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *y = hl_node_in_type(graph, node, 0), *x = hl_node_in_type(graph, node, 1);
    hl_attrs_conv *conv = &node->attrs.conv;
    bool last = conv->channels_last;
    HL_TRY(check_operands(y, x, "the output's gradient", "the input", conv));
    HL_TRY(check_size(conv, y->shape.rank - 2));
    int64_t O = y->shape.dim[hl_channel_dim(&y->shape, last)];
    int64_t C = x->shape.dim[hl_channel_dim(&x->shape, last)];
    if (y->shape.dim[0] != x->shape.dim[0])
        return hl_status_set(HL_ERROR_SHAPE,
                             "both operands must have one batch size, got %lld and "
                             "%lld",
                             (long long)y->shape.dim[0], (long long)x->shape.dim[0]);
    int64_t per_group = conv->groups < 1 ? 0 : C / conv->groups;
    HL_TRY(check_channels(C, O, per_group, conv->groups));
    hl_ints in = hl_spatial_dims(&x->shape, last), out = hl_spatial_dims(&y->shape, last);
    HL_TRY(check_output(conv, &in, &conv->size, &out, "the output's gradient"));
    out_types[0] =
        (hl_type){result_dtype(y, conv), hl_spatial_shape(O, per_group, &conv->size, false)};
    return HL_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static hl_status build_weight_grad(hl_graph *graph, const hl_attrs_conv *conv, hl_id y, hl_id x,
                                   hl_id weight, hl_id *out_id)
{
    hl_attrs attrs = {.conv = *conv};
    hl_id in[2] = {y, x};
    attrs.conv.size = hl_spatial_dims(hl_graph_shape(graph, weight), false);
    attrs.conv.float32_out = false;
    return hl_graph_add(graph, HL_OP_CONV_WEIGHT_GRAD, in, 2, &attrs, out_id);
}

/* The sum of a gradient over everything but channels, in the bias' dtype. */
static hl_status build_bias_grad(hl_graph *graph, hl_id d, bool channels_last, hl_id bias,
                                 hl_id *out_id)
{
    const hl_shape *shape = hl_graph_shape(graph, d);
    int channel = hl_channel_dim(shape, channels_last);
    int64_t axes[HL_MAX_RANK];
    int32_t n = 0;
    for (int32_t i = 0; i < shape->rank; i++)
        if (i != channel) axes[n++] = i;
    HL_TRY(hl_build_sum(graph, d, axes, n, false, out_id));
    return hl_build_cast(graph, *out_id, hl_graph_dtype(graph, bias), out_id);
}

hl_status hl_vjp_conv(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    const hl_node node = graph->nodes[id];
    hl_id x = node.in[0], w = node.in[1], d = dout[0];
    hl_attrs attrs = node.attrs;
    bool last = attrs.conv.channels_last;
    if (node.n_in == 3 && need[2]) HL_TRY(build_bias_grad(graph, d, last, node.in[2], &din[2]));
    HL_TRY(hl_build_cast(graph, d, hl_graph_dtype(graph, x), &d)); /* of a float32 result */
    if (need[0]) {
        hl_id in[2] = {d, w};
        attrs.conv.size = hl_spatial_dims(hl_graph_shape(graph, x), last);
        attrs.conv.float32_out = false;
        HL_TRY(hl_graph_add(graph, HL_OP_CONV_TRANSPOSE, in, 2, &attrs, &din[0]));
    }
    return need[1] ? build_weight_grad(graph, &node.attrs.conv, d, x, w, &din[1]) : HL_OK;
}

hl_status hl_vjp_conv_transpose(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                                hl_id *din)
{
    const hl_node node = graph->nodes[id];
    hl_id y = node.in[0], w = node.in[1], d = dout[0];
    hl_attrs attrs = node.attrs;
    bool last = attrs.conv.channels_last;
    if (node.n_in == 3 && need[2]) HL_TRY(build_bias_grad(graph, d, last, node.in[2], &din[2]));
    HL_TRY(hl_build_cast(graph, d, hl_graph_dtype(graph, y), &d));
    if (need[0]) {
        hl_id in[2] = {d, w};
        attrs.conv.size.n = 0;
        attrs.conv.float32_out = false;
        HL_TRY(hl_graph_add(graph, HL_OP_CONV, in, 2, &attrs, &din[0]));
    }
    return need[1] ? build_weight_grad(graph, &node.attrs.conv, y, d, w, &din[1]) : HL_OK;
}

/* ---- orders of dims -------------------------------------------------------------------------- */

/* Channels from the second place to the last, or back. A weight stays as it is. */
bool hl_permute_channels(const hl_graph *graph, const hl_node *node, const hl_ints *dims,
                         hl_attrs *attrs, hl_ints *out_dims)
{
    const hl_attr_info *info = hl_schema_find(hl_op_get(node->op)->schema, "channels_last");
    bool last = hl_attrs_int(&node->attrs, info);
    hl_ints want = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, !last);
    if (dims->n != want.n) return false;
    for (int32_t d = 0; d < dims->n; d++)
        if (dims->at[d] != want.at[d]) return false;
    hl_attrs_int_set(attrs, info, !last);
    *out_dims = *dims;
    if (node->op == HL_OP_CONV_WEIGHT_GRAD)
        for (int32_t d = 0; d < dims->n; d++) out_dims->at[d] = d;
    return true;
}

/* Groups of a transposed convolution have the same places in the weight. */
bool hl_channels_conv(const hl_graph *graph, const hl_node *node, int *out_result_dim,
                      int *out_weight_dim)
{
    bool is_transposed = node->op == HL_OP_CONV_TRANSPOSE;
    *out_result_dim =
        hl_channel_dim(&hl_node_out_type(graph, node, 0)->shape, node->attrs.conv.channels_last);
    *out_weight_dim = is_transposed;
    return !is_transposed || node->attrs.conv.groups == 1;
}

/* ---- cost ------------------------------------------------------------------------------------ */

/* Each output times what it reads, padding included. */
hl_cost hl_cost_conv(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    hl_conv conv = hl_conv_of(graph, node);
    double pixels = (double)conv.N * (double)hl_window_span(conv.window.out);
    double taps = (double)hl_window_span(conv.window.kernel);
    int64_t in = conv.C / conv.groups, out = conv.O / conv.groups;
    cost.flops = 2 * pixels * taps * (double)in * (double)conv.O;
    /* Of the product that it is (pixels, taps x in, out); half the columns do, where all of them
     * are read for each of many taps. */
    double least = taps * (double)in < pixels ? taps * (double)in : pixels;
    cost.side = least < 2.0 * (double)out ? (int64_t)least : 2 * out;
    return cost;
}

/* ---- lowering: to products of windows side by side ------------------------------------------- */

/* The shapes of a convolution with channels last. */
typedef struct conv_shapes {
    hl_conv conv;
    int64_t pixels, taps, in, out; /* pixels of y; channels of a group */
    hl_shape windows, weight;      /* (N,out,taps,C), (O,C/groups,taps) */
} conv_shapes;

static conv_shapes read_shapes(const hl_graph *graph, const hl_node *node)
{
    conv_shapes s = {.conv = hl_conv_of(graph, node)};
    const hl_window *w = &s.conv.window;
    s.pixels = s.conv.N * hl_window_span(w->out);
    s.taps = hl_window_span(w->kernel);
    s.in = s.conv.C / s.conv.groups, s.out = s.conv.O / s.conv.groups;
    hl_ints out = hl_ints_make(w->out, w->n);
    s.windows = hl_spatial_shape(s.conv.N, s.taps, &out, true);
    s.windows.dim[s.windows.rank++] = s.conv.C;
    s.weight = (hl_shape){3, {s.conv.O, s.in, s.taps}};
    return s;
}

static hl_attrs unfold_attrs(const hl_attrs_conv *conv, const hl_window *w)
{
    return (hl_attrs){.unfold = {.kernel = hl_ints_make(w->kernel, w->n),
                                 .stride = conv->stride,
                                 .dilation = conv->dilation,
                                 .before = conv->before,
                                 .after = conv->after}};
}

/* (rows, groups, taps, channels) to (groups, rows, taps * channels), or back with from_groups; of
 * one group the elements lie alike. */
static hl_status build_groups(hl_graph *graph, hl_id x, int64_t rows, int64_t groups, int64_t run,
                              bool from_groups, hl_id *out_id)
{
    static const int64_t swap[] = {1, 0, 2};
    hl_shape from = {3, {rows, groups, run}};
    if (from_groups) from.dim[0] = groups, from.dim[1] = rows;
    HL_TRY(hl_build_reshape(graph, x, &from, &x));
    if (groups > 1) HL_TRY(hl_build_permute(graph, x, swap, &x));
    hl_shape to = hl_shape_2d(rows, run);
    if (groups > 1 || from_groups) {
        *out_id = x;
        return HL_OK;
    }
    return hl_build_reshape(graph, x, &to, out_id);
}

/* Windows (N,out,taps,C) as (groups,pixels,taps * in), one group as (pixels,taps * in). */
static hl_status build_columns(hl_graph *graph, const conv_shapes *s, hl_id windows, hl_id *out_id)
{
    static const int64_t forward[] = {2, 0, 1, 3};
    hl_shape split = {4, {s->pixels, s->taps, s->conv.groups, s->in}};
    hl_shape matrix = {3, {s->conv.groups, s->pixels, s->taps * s->in}};
    HL_TRY(hl_build_reshape(graph, windows, &split, out_id));
    if (s->conv.groups == 1)
        matrix = hl_shape_2d(s->pixels, s->taps * s->in);
    else
        HL_TRY(hl_build_permute(graph, *out_id, forward, out_id));
    return hl_build_reshape(graph, *out_id, &matrix, out_id);
}

/* And back. */
static hl_status build_windows(hl_graph *graph, const conv_shapes *s, hl_id columns, hl_id *out_id)
{
    static const int64_t backward[] = {1, 2, 0, 3};
    hl_shape split = {4, {s->conv.groups, s->pixels, s->taps, s->in}};
    HL_TRY(hl_build_reshape(graph, columns, &split, out_id));
    if (s->conv.groups > 1) HL_TRY(hl_build_permute(graph, *out_id, backward, out_id));
    return hl_build_reshape(graph, *out_id, &s->windows, out_id);
}

/* The weight (O,in,taps) as (groups,out,taps * in), one group as (O,taps * in). */
static hl_status build_weight(hl_graph *graph, const conv_shapes *s, hl_id weight, hl_id *out_id)
{
    static const int64_t order[] = {0, 2, 1};
    hl_shape matrix = {3, {s->conv.groups, s->out, s->taps * s->in}};
    if (s->conv.groups == 1) matrix = hl_shape_2d(s->conv.O, s->taps * s->in);
    HL_TRY(hl_build_reshape(graph, weight, &s->weight, out_id));
    HL_TRY(hl_build_permute(graph, *out_id, order, out_id));
    return hl_build_reshape(graph, *out_id, &matrix, out_id);
}

/* y (N,out,O) as (groups,pixels,out), one group as (pixels,O). */
static hl_status build_rows(hl_graph *graph, const conv_shapes *s, hl_id y, hl_id *out_id)
{
    return build_groups(graph, y, s->pixels, s->conv.groups, s->out, false, out_id);
}

static hl_status build_product(hl_graph *graph, const hl_attrs_conv *conv, bool trans_a,
                               bool trans_b, bool float32_out, const hl_id *in, int32_t n_in,
                               hl_id *out_id)
{
    hl_attrs attrs = {.matmul = {.trans_a = trans_a,
                                 .trans_b = trans_b,
                                 .float32_out = float32_out,
                                 .tf32 = conv->tf32}};
    return hl_graph_add(graph, HL_OP_MATMUL, in, n_in, &attrs, out_id);
}

/* Are the windows the pixels as they lie? */
static bool is_pixels(const hl_window *w)
{
    bool is_same = true;
    for (int32_t d = 0; d < w->n; d++)
        is_same = is_same && w->kernel[d] == 1 && w->stride[d] == 1 && w->before[d] == 0 &&
                  w->in[d] == w->out[d];
    return is_same;
}

static hl_status build_unfolded(hl_graph *graph, const conv_shapes *s, const hl_attrs_conv *conv,
                                hl_id x, hl_id *out_id)
{
    hl_attrs attrs = unfold_attrs(conv, &s->conv.window);
    *out_id = x;
    if (!is_pixels(&s->conv.window))
        HL_TRY(hl_graph_add(graph, HL_OP_UNFOLD, &x, 1, &attrs, out_id));
    return build_columns(graph, s, *out_id, out_id);
}

/* y = columns weight^T + bias, where groups have a product each and the bias is added behind. */
static hl_status lower_forward(hl_graph *graph, const hl_node *node, hl_id *out_value)
{
    conv_shapes s = read_shapes(graph, node);
    hl_shape shape = *hl_graph_shape(graph, node->out);
    hl_id in[3] = {HL_NONE, HL_NONE, node->n_in == 3 ? node->in[2] : HL_NONE};
    bool is_one = s.conv.groups == 1;
    HL_TRY(build_unfolded(graph, &s, &node->attrs.conv, node->in[0], &in[0]));
    HL_TRY(build_weight(graph, &s, node->in[1], &in[1]));
    HL_TRY(build_product(graph, &node->attrs.conv, false, true, node->attrs.conv.float32_out, in,
                         is_one ? node->n_in : 2, out_value));
    if (!is_one)
        HL_TRY(build_groups(graph, *out_value, s.pixels, s.conv.groups, s.out, true, out_value));
    HL_TRY(hl_build_reshape(graph, *out_value, &shape, out_value));
    if (is_one || node->n_in < 3) return HL_OK;
    HL_TRY(hl_build_cast(graph, in[2], hl_graph_dtype(graph, *out_value), &in[2]));
    return hl_build_binary(graph, HL_OP_ADD, *out_value, in[2], out_value);
}

/* x = what the columns y weight add up to, in float32 or wider, + bias. Columns that are pixels add
 * up to themselves. */
static hl_status lower_transpose(hl_graph *graph, const hl_node *node, hl_id *out_value)
{
    conv_shapes s = read_shapes(graph, node);
    hl_dtype dtype = hl_graph_dtype(graph, node->out);
    hl_shape shape = *hl_graph_shape(graph, node->out);
    hl_attrs attrs = unfold_attrs(&node->attrs.conv, &s.conv.window);
    bool adds_up = !is_pixels(&s.conv.window);
    hl_id in[2], bias = node->n_in == 3 ? node->in[2] : HL_NONE;
    attrs.unfold.size = node->attrs.conv.size;
    HL_TRY(build_rows(graph, &s, node->in[0], &in[0]));
    HL_TRY(build_weight(graph, &s, node->in[1], &in[1]));
    HL_TRY(build_product(graph, &node->attrs.conv, false, false,
                         adds_up || node->attrs.conv.float32_out, in, 2, out_value));
    HL_TRY(build_windows(graph, &s, *out_value, out_value));
    if (adds_up)
        HL_TRY(hl_graph_add(graph, HL_OP_FOLD, out_value, 1, &attrs, out_value));
    else
        HL_TRY(hl_build_reshape(graph, *out_value, &shape, out_value));
    if (bias != HL_NONE) {
        HL_TRY(hl_build_cast(graph, bias, hl_graph_dtype(graph, *out_value), &bias));
        HL_TRY(hl_build_binary(graph, HL_OP_ADD, *out_value, bias, out_value));
    }
    return hl_build_cast(graph, *out_value, dtype, out_value);
}

/* w = y^T columns, brought into the weight's order. */
static hl_status lower_weight(hl_graph *graph, const hl_node *node, hl_id *out_value)
{
    static const int64_t order[] = {0, 2, 1};
    conv_shapes s = read_shapes(graph, node);
    hl_shape shape = *hl_graph_shape(graph, node->out), turned = {3, {s.conv.O, s.taps, s.in}};
    hl_id in[2];
    HL_TRY(build_rows(graph, &s, node->in[0], &in[0]));
    HL_TRY(build_unfolded(graph, &s, &node->attrs.conv, node->in[1], &in[1]));
    HL_TRY(build_product(graph, &node->attrs.conv, true, false, node->attrs.conv.float32_out, in, 2,
                         out_value));
    HL_TRY(hl_build_reshape(graph, *out_value, &turned, out_value));
    HL_TRY(hl_build_permute(graph, *out_value, order, out_value));
    return hl_build_reshape(graph, *out_value, &shape, out_value);
}

hl_status hl_lower_conv(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    const hl_node node = graph->nodes[id];
    if (!node.attrs.conv.channels_last) {
        hl_ints order = hl_order_channels(hl_graph_shape(graph, node.in[0])->rank, true);
        return hl_build_in_order(graph, id, &order, out_values);
    }
    switch (node.op) {
    case HL_OP_CONV: return lower_forward(graph, &node, out_values);
    case HL_OP_CONV_TRANSPOSE: return lower_transpose(graph, &node, out_values);
    default: return lower_weight(graph, &node, out_values);
    }
}
