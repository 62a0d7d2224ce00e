/* Launchers of convolutions as implicit products (matmul.cu; windows.h has the idea).
 *
 * The weight is brought into the order of the product first, class by class: it is small, and its
 * rows are then read as they lie. The weight's gradient is summed in shares of the pixels, since
 * its product has few tiles and long sums; they are added up in order, and brought into the
 * weight's. */
#include "kernels/cuda/matmul.h"

#include <stdio.h>

#include "ir/window.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/copy.h"

enum { DIMS = HL_CUDA_WINDOWS_DIMS, MAX_BLOCKS = 0x7FFFFFFF };
/* Classes of pixels of a gradient for the input: each is a launch. */
enum { MAX_CLASSES = 64 };
/* Tiles, or threads, that a weight's gradient should have, and pixels that pay for a share. No
 * GPU's own numbers, so that sums have one order on all. */
enum { MANY_TILES = 512, SHARE_PIXELS = 1024, MANY_THREADS = 1 << 17, THREAD_PIXELS = 64 };
/* Channels of a group that leave most of a tile empty. */
enum { FEW_CHANNELS = 8 };
_Static_assert((int)DIMS == (int)HL_WINDOW_DIMS, "all dims fit");

/* A convolution node: of a group, channels of what is read and of the result. */
typedef struct conv_shape {
    hl_conv conv;
    bool is_transposed, is_grouped; /* is_grouped: groups have few channels */
    int64_t in, out, n_taps;
    hl_dtype dtype;
} conv_shape;

static conv_shape read_shape(const hl_graph *graph, const hl_node *node)
{
    conv_shape s = {.conv = hl_conv_of(graph, node),
                    .is_transposed = node->op == HL_OP_CONV_TRANSPOSE,
                    .dtype = hl_node_in_type(graph, node, 0)->dtype};
    const hl_conv *conv = &s.conv;
    s.in = (s.is_transposed ? conv->O : conv->C) / conv->groups;
    s.out = (s.is_transposed ? conv->C : conv->O) / conv->groups;
    s.n_taps = hl_window_span(conv->window.kernel);
    s.is_grouped = conv->groups > 1 && s.in <= FEW_CHANNELS && s.out <= FEW_CHANNELS;
    return s;
}

/* ---- query ----------------------------------------------------------------------------------- */

/* Does a window read its own pixel alone? Then the convolution is a product as it stands. */
static bool is_product(const hl_conv *conv)
{
    bool is_same = conv->groups == 1;
    for (int d = 0; d < DIMS; d++)
        is_same = is_same && conv->window.kernel[d] == 1 && conv->window.stride[d] == 1 &&
                  conv->window.before[d] == 0 && conv->window.in[d] == conv->window.out[d];
    return is_same;
}

static bool is_below_2_31(int64_t a, int64_t b)
{
    int64_t product;
    return hl_mul_dim(a, b, &product) && product <= INT32_MAX;
}

/* Numbers that the kernels hold in 32 bits: places of a dim, pixels, elements of a row. */
static bool is_short(const hl_conv *conv)
{
    const hl_window *w = &conv->window;
    bool fits = is_below_2_31(conv->N, hl_window_span(w->out)) &&
                is_below_2_31(conv->N, hl_window_span(w->in)) &&
                is_below_2_31(hl_window_span(w->kernel), conv->C / conv->groups) &&
                is_below_2_31(hl_window_span(w->kernel), conv->O / conv->groups);
    for (int d = 0; d < DIMS; d++)
        fits = fits && w->before[d] <= INT32_MAX / 4 && w->in[d] <= INT32_MAX / 4 &&
               w->stride[d] <= INT32_MAX / 4 && is_below_2_31(4 * w->out[d], w->stride[d]) &&
               is_below_2_31(4 * w->kernel[d], w->dilation[d]);
    return fits;
}

static int64_t count_classes(const hl_conv *conv)
{
    const int64_t *stride = conv->window.stride;
    return stride[0] > MAX_CLASSES || stride[1] > MAX_CLASSES || stride[2] > MAX_CLASSES
               ? INT64_MAX
               : stride[0] * stride[1] * stride[2];
}

static int64_t count_shares(const conv_shape *s)
{
    int64_t tile = HL_CUDA_MATMUL_TILE, run = s->n_taps * s->in;
    int64_t n_tiles = s->conv.groups * ((s->out + tile - 1) / tile) * ((run + tile - 1) / tile);
    int64_t n_pixels = s->conv.N * hl_window_span(s->conv.window.out);
    int64_t most = n_pixels / SHARE_PIXELS, n = n_tiles ? MANY_TILES / n_tiles : 1;
    if (s->is_grouped) most = n_pixels / THREAD_PIXELS, n = MANY_THREADS / (s->conv.O * run + 1);
    if (n > most) n = most;
    return n > 1 ? n : 1;
}

static hl_status query_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    bool is_grad = node->op == HL_OP_CONV_WEIGHT_GRAD;
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    if (node->n_in > 2 && !hl_cuda_is_same_float(graph, node, 2, 3, out_why_not))
        return HL_ERROR_CONFIG;
    conv_shape s = read_shape(graph, node);
    if (is_product(&s.conv)) return hl_reason_set(out_why_not, "it is a product as it stands");
    if (!is_short(&s.conv)) return hl_reason_set(out_why_not, "needs fewer than 2^31 pixels");
    if (s.is_transposed && count_classes(&s.conv) > MAX_CLASSES)
        return hl_reason_set(out_why_not, "needs strides of at most %d together", MAX_CLASSES);
    out_req->deterministic = true;
    if (!hl_conv_attrs(node)->channels_last) {
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
        return HL_OK;
    }
    size_t n_weights = (size_t)(s.conv.groups * s.in * s.out * s.n_taps);
    out_req->scratch_bytes = is_grad ? (size_t)count_shares(&s) * n_weights * sizeof(float)
                                     : n_weights * hl_dtype_bytes(s.dtype);
    return HL_OK;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Pixels and taps of one product, dim by dim; which pixels of the result they are. */
typedef struct conv_class {
    int64_t pixels[DIMS], taps[DIMS];
    int64_t step[DIMS], first[DIMS], apart[DIMS]; /* hl_cuda_windows */
    int64_t result_first[DIMS], result_step[DIMS];
    int64_t tap_first[DIMS], tap_step[DIMS]; /* of the kernel's */
} conv_class;

static conv_class find_whole(const hl_window *w)
{
    conv_class c;
    for (int d = 0; d < DIMS; d++) {
        c.pixels[d] = w->out[d], c.taps[d] = w->kernel[d];
        c.step[d] = w->stride[d], c.first[d] = -w->before[d], c.apart[d] = w->dilation[d];
        c.result_first[d] = 0, c.result_step[d] = 1;
        c.tap_first[d] = 0, c.tap_step[d] = 1;
    }
    return c;
}

static int64_t find_divisor(int64_t a, int64_t b)
{
    return b ? find_divisor(b, a % b) : a;
}

/* Of a gradient for the input: elements rest, rest + stride, ... of each dim. Tap k reads what is
 * at (element + before - k dilation) / stride, if that is whole: every stride / gcd-th tap from the
 * first on that is. */
static conv_class find_class(const hl_window *w, const int64_t *rest)
{
    conv_class c;
    for (int d = 0; d < DIMS; d++) {
        int64_t stride = w->stride[d], dilation = w->dilation[d], k = 0;
        int64_t divisor = find_divisor(stride, dilation), at = rest[d] + w->before[d];
        int64_t tap_step = stride / divisor;
        while (k < tap_step && (at - k * dilation) % stride != 0) k++;
        bool is_read = k < tap_step && k < w->kernel[d];
        c.pixels[d] = w->in[d] > rest[d] ? (w->in[d] - rest[d] + stride - 1) / stride : 0;
        c.taps[d] = is_read ? (w->kernel[d] - 1 - k) / tap_step + 1 : 0;
        c.step[d] = 1, c.apart[d] = -dilation / divisor;
        c.first[d] = is_read ? (at - k * dilation) / stride : 0;
        c.result_first[d] = rest[d], c.result_step[d] = stride;
        c.tap_first[d] = k, c.tap_step[d] = tap_step;
    }
    return c;
}

static void make_divisor(int64_t d, uint64_t *out_words)
{
    if (d > 1)
        hl_cuda_divisor_make(d, 31, out_words);
    else
        out_words[0] = out_words[2] = 0, out_words[1] = (uint64_t)d;
}

static hl_cuda_windows make_windows(const conv_shape *s, const conv_class *c, const int64_t *source)
{
    int64_t channels = s->in * s->conv.groups;
    hl_cuda_windows w = {.image = hl_window_span(source) * channels,
                         .channels = channels,
                         .n_pixels = s->conv.N * hl_window_span(c->pixels),
                         .n_run = hl_window_span(c->taps) * s->in};
    make_divisor(s->in, w.channel);
    for (int d = 0; d < DIMS; d++) {
        make_divisor(c->pixels[d], w.pixel[d]);
        make_divisor(c->taps[d], w.tap[d]);
        w.in[d] = (int32_t)source[d], w.step[d] = (int32_t)c->step[d];
        w.first[d] = (int32_t)c->first[d], w.apart[d] = (int32_t)c->apart[d];
    }
    return w;
}

/* ---- products -------------------------------------------------------------------------------- */

static hl_cuda_shape shape_tiles(int64_t n, hl_dtype dtype)
{
    unsigned threads =
        dtype == HL_DTYPE_F32 ? HL_CUDA_MATMUL_F32_THREADS : HL_CUDA_MATMUL_REDUCED_THREADS;
    return (hl_cuda_shape){{(unsigned)(n < MAX_BLOCKS ? n : MAX_BLOCKS), 1, 1}, {threads, 1, 1}, 0};
}

static int64_t count_tiles(const hl_cuda_matrix_product *of, int64_t n_batch)
{
    int64_t tile = HL_CUDA_MATMUL_TILE;
    return n_batch * ((of->M + tile - 1) / tile) * ((of->N + tile - 1) / tile);
}

/* The weight (O, C / groups, kernel) as (groups, taps of the class, in, out), or (taps of the
 * class, in, groups, out) where groups have few channels, into scratch. */
static void call_weight(hl_cuda_calls *calls, const conv_shape *s, const conv_class *c, size_t at)
{
    const int64_t *kernel = s->conv.window.kernel;
    int64_t row = s->conv.C / s->conv.groups * s->n_taps; /* of an output channel of conv */
    int64_t in_step = s->is_transposed ? row : s->n_taps;
    int64_t out_step = s->is_transposed ? s->n_taps : row;
    int64_t group = s->conv.O / s->conv.groups * row;
    int64_t tap[DIMS] = {kernel[1] * kernel[2], kernel[2], 1}, first = 0;
    int group_at = s->is_grouped ? DIMS + 1 : 0, taps_at = s->is_grouped ? 0 : 1;
    hl_shape shape = {.rank = DIMS + 3};
    int64_t stride[DIMS + 3];
    shape.dim[group_at] = s->conv.groups, stride[group_at] = group;
    shape.dim[taps_at + DIMS] = s->in, stride[taps_at + DIMS] = in_step;
    shape.dim[DIMS + 2] = s->out, stride[DIMS + 2] = out_step;
    for (int d = 0; d < DIMS; d++) {
        first += c->tap_first[d] * tap[d];
        shape.dim[taps_at + d] = c->taps[d];
        stride[taps_at + d] = c->tap_step[d] * tap[d];
    }
    hl_cuda_layout layout = hl_cuda_layout_make(&shape, stride);
    char variant[16];
    snprintf(variant, sizeof variant, "from_%zu", hl_dtype_bytes(s->dtype));
    if (layout.n > 0)
        HL_CUDA_CALL(calls, copy, variant, hl_cuda_shape_elements(calls->device, layout.n),
                     .at = {hl_cuda_in(calls, 1), hl_cuda_scratch(at)}, .first = first,
                     .layout = layout);
}

/* Where the pixels of a class lie in the result (N, dims, channels). */
static hl_cuda_layout lay_pixels(const conv_shape *s, const conv_class *c, const int64_t *dims,
                                 int64_t *out_first)
{
    int64_t stride[1 + DIMS], channels = s->out * s->conv.groups;
    hl_shape shape = {1 + DIMS, {s->conv.N, c->pixels[0], c->pixels[1], c->pixels[2]}};
    *out_first = 0;
    for (int d = DIMS - 1; d >= 0; d--) {
        stride[1 + d] = channels * c->result_step[d];
        *out_first += channels * c->result_first[d];
        channels *= dims[d];
    }
    stride[0] = channels;
    return hl_cuda_layout_make(&shape, stride);
}

/* Returns the bytes of scratch that it takes. */
static size_t call_class(hl_cuda_calls *calls, const conv_shape *s, const conv_class *c,
                         const hl_graph *graph, const hl_node *node, size_t at)
{
    const hl_window *w = &s->conv.window;
    const int64_t *source = s->is_transposed ? w->out : w->in;
    const int64_t *result = s->is_transposed ? w->in : w->out;
    int64_t first;
    hl_cuda_layout rows = lay_pixels(s, c, result, &first);
    hl_cuda_matrix_product of = {.M = rows.n,
                                 .N = s->out,
                                 .K = hl_window_span(c->taps) * s->in,
                                 .c_dtype = (int32_t)hl_graph_dtype(graph, node->out)};
    if (node->n_in > 2) of.bias_dtype = (int32_t)hl_graph_dtype(graph, node->in[2]);
    int64_t n_tiles = count_tiles(&of, s->conv.groups);
    if (n_tiles == 0) return 0;
    call_weight(calls, s, c, at);
    hl_cuda_conv_params params = {.at = {hl_cuda_in(calls, 0), hl_cuda_scratch(at),
                                         hl_cuda_in(calls, 2), hl_cuda_out(calls, 0)},
                                  .of = of,
                                  .windows = make_windows(s, c, source),
                                  .groups = s->conv.groups,
                                  .in = s->in,
                                  .first = first,
                                  .rows = rows};
    const char *suffix = hl_cuda_suffix(s->dtype);
    if (s->is_grouped)
        HL_CUDA_CALL_WITH(calls, conv_grouped, suffix,
                          hl_cuda_shape_elements(calls->device, rows.n * s->conv.groups * s->out),
                          &params);
    else
        HL_CUDA_CALL_WITH(calls, conv, suffix, shape_tiles(n_tiles, s->dtype), &params);
    return (size_t)(s->conv.groups * of.K * of.N) * hl_dtype_bytes(s->dtype);
}

static hl_status prepare_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    conv_shape s = read_shape(graph, node);
    const hl_window *w = &s.conv.window;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    int64_t n = s.is_transposed ? count_classes(&s.conv) : 1;
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t rest[] = {i / w->stride[2] / w->stride[1], i / w->stride[2] % w->stride[1],
                          i % w->stride[2]};
        conv_class c = s.is_transposed ? find_class(w, rest) : find_whole(w);
        at += call_class(&calls, &s, &c, graph, node, at);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_weight_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                     hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    conv_shape s = read_shape(graph, node);
    conv_class c = find_whole(&s.conv.window);
    hl_cuda_windows windows = make_windows(&s, &c, s.conv.window.in);
    int64_t shares = count_shares(&s), groups = s.conv.groups;
    hl_cuda_matrix_product of = {.M = s.out,
                                 .N = windows.n_run,
                                 .K = (windows.n_pixels + shares - 1) / shares,
                                 .a_k = s.conv.O,
                                 .c_dtype = HL_DTYPE_F32};
    hl_shape weight = {3, {s.conv.O, s.in, s.n_taps}};
    /* Where an element of the weight lies in a part. */
    int64_t by_row[] = {windows.n_run, 1, s.in}, by_channel[] = {1, s.conv.O, s.in * s.conv.O};
    int64_t n_tiles = count_tiles(&of, groups * shares);
    const char *suffix = hl_cuda_suffix(s.dtype);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_conv_weight_grad_params params = {
        .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_scratch(0)},
        .of = of,
        .windows = windows,
        .groups = groups,
        .in = s.in,
        .shares = shares};
    if (n_tiles > 0) {
        hl_cuda_layout layout = hl_cuda_layout_make(&weight, s.is_grouped ? by_channel : by_row);
        if (s.is_grouped)
            HL_CUDA_CALL_WITH(&calls, conv_grouped_weight_grad, suffix,
                              hl_cuda_shape_elements(device, layout.n * shares), &params);
        else
            HL_CUDA_CALL_WITH(&calls, conv_weight_grad, suffix, shape_tiles(n_tiles, s.dtype),
                              &params);
        HL_CUDA_CALL(&calls, conv_merge, NULL, hl_cuda_shape_elements(device, layout.n),
                     .at = {hl_cuda_scratch(0), hl_cuda_out(&calls, 0)}, .weight = layout,
                     .n = layout.n, .shares = shares,
                     .dtype = (int32_t)hl_graph_dtype(graph, node->out));
    }
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel conv = HL_CUDA_KERNEL(CONV, "conv", query_conv, prepare_conv);
static const hl_kernel transpose =
    HL_CUDA_KERNEL(CONV_TRANSPOSE, "conv_transpose", query_conv, prepare_conv);
static const hl_kernel weight_grad =
    HL_CUDA_KERNEL(CONV_WEIGHT_GRAD, "conv_weight_grad", query_conv, prepare_weight_grad);

const hl_kernel *const hl_cuda_conv_kernels[] = {&conv, &transpose, &weight_grad, NULL};
