/* Nodes as convolutions of cuDNN, and their operation graphs. */
#include "kernels/cuda/dnn_conv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pointwise.h"

/* ---- the convolution ------------------------------------------------------------------------- */

static cudnnDataType_t type_of(hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_BF16: return CUDNN_DATA_BFLOAT16;
    case HL_DTYPE_F16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
    }
}

static int64_t bytes_of(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

/* The padding behind that gives as many outputs: as much as before it, which every engine takes,
 * where that does. */
static int64_t find_after(const hl_window *w, int d, int64_t after)
{
    int64_t reach = w->in[d] + 2 * w->before[d] - w->dilation[d] * (w->kernel[d] - 1) - 1;
    return reach >= 0 && reach / w->stride[d] + 1 == w->out[d] ? w->before[d] : after;
}

/* What a node may carry, all of it in this order: a scale and a shift for each channel, a residual,
 * relu. Without the first ones ("alone") there may be a text for none. */
#define FORMS(alone, text, next)                                                                   \
    alone, "relu(" text ")", "add(" text ", " next ")", "relu(add(" text ", " next "))"
#define SCALED "mul(x, columns(y))"
const char *const hl_dnn_fusions[] = {
    FORMS("", "x", "y"),
    FORMS("add(x, columns(y))", "add(x, columns(y))", "z"),
    FORMS(SCALED, SCALED, "z"),
    FORMS("add(" SCALED ", columns(z))", "add(" SCALED ", columns(z))", "w"),
    "x, mean_rows(x), var_rows(x)",
    NULL};
enum { IS_RELU = 1, HAS_RESIDUAL = 2, HAS_SHIFT = 4, HAS_SCALE = 8, HAS_SUMS = 16 };
enum { OLDEST_SUMS = 80, LEAST_US = 10 };

static bool add_step(const hl_device *device, const hl_graph *graph, const hl_node *node,
                     cudnnPointwiseMode_t mode, int arg, bool per_channel, hl_dnn_conv *c,
                     hl_reason *out_why_not)
{
    hl_dnn_step *step = &c->step[c->n_steps++];
    *step = (hl_dnn_step){.mode = mode, .arg = arg, .per_channel = per_channel};
    if (arg < 0) return true;
    hl_dtype dtype = hl_node_in_type(graph, node, arg)->dtype;
    if (!hl_cuda_suffix(dtype)) {
        hl_reason_set(out_why_not, "needs float32, bfloat16 or float16, got %s",
                      hl_dtype_name(dtype));
        return false;
    }
    if (!per_channel && hl_shape_numel(hl_graph_shape(graph, node->in[arg])) !=
                            hl_shape_numel(hl_graph_shape(graph, node->out)))
        return hl_reason_set(out_why_not, "needs a residual of the result's shape"), false;
    step->type = type_of(dtype);
    step->align = hl_cuda_alignment(device, graph, node->in[arg]);
    return true;
}

/* Are sums of the result's channels worth a plan? cuDNN compiles it, which takes about half a
 * second in each process, and what is saved is one read of the result; where a block holds the
 * channels that it normalises (norm.c), none. What is left of the norm is a program, which NVRTC
 * compiles. */
static bool may_have_sums(hl_device *device, const hl_graph *graph, const hl_node *node,
                          hl_reason *out_why_not)
{
    const hl_cuda_facts *facts = hl_cuda_device_facts(device);
    const hl_type *type = hl_node_out_type(graph, node, 0);
    if (facts->arch < OLDEST_SUMS)
        hl_reason_set(out_why_not, "sums of channels need sm_%d, got sm_%d", OLDEST_SUMS,
                      facts->arch);
    else if (facts->bytes_per_us <= 0)
        hl_reason_set(out_why_not, "sums need a GPU that tells how fast its memory is");
    else if (hl_shape_span(&type->shape, 0, type->shape.rank - 1) <= HL_CUDA_NORM_HELD ||
             (double)hl_type_bytes(type) < facts->bytes_per_us * LEAST_US)
        hl_reason_set(out_why_not, "sums of so few elements save too little");
    else if (!hl_cuda_can_compile(device))
        hl_reason_set(out_why_not, "sums need NVRTC for what is left of a norm");
    else
        return true;
    return false;
}

static bool set_steps(hl_device *device, const hl_graph *graph, const hl_node *node, hl_dnn_conv *c,
                      hl_reason *out_why_not)
{
    static const struct {
        int bit;
        cudnnPointwiseMode_t mode;
        bool reads, per_channel;
    } parts[] = {{HAS_SCALE, CUDNN_POINTWISE_MUL, true, true},
                 {HAS_SHIFT, CUDNN_POINTWISE_ADD, true, true},
                 {HAS_RESIDUAL, CUDNN_POINTWISE_ADD, true, false},
                 {IS_RELU, CUDNN_POINTWISE_RELU_FWD, false, false}};
    int form = hl_fusion_find(graph, node, hl_dnn_fusions);
    int arg = form ? hl_node_epilogue_in(node) : -1;
    if (form & HAS_SUMS && !may_have_sums(device, graph, node, out_why_not)) return false;
    if (hl_node_anchor_in(node) > 2 &&
        !add_step(device, graph, node, CUDNN_POINTWISE_ADD, 2, true, c, out_why_not))
        return false;
    c->n_own = c->n_steps;
    for (int i = 0; i < 4; i++)
        if (form & parts[i].bit &&
            !add_step(device, graph, node, parts[i].mode, parts[i].reads ? arg++ : -1,
                      parts[i].per_channel, c, out_why_not))
            return false;
    if (form & IS_RELU) c->activation = "relu";
    c->has_sums = form & HAS_SUMS;
    /* A kernel in their place reads the result and perhaps a residual, and writes it; one for the
     * sums reads it alone. */
    if (form)
        c->apart_bytes = (form & HAS_SUMS       ? 1
                          : form & HAS_RESIDUAL ? 3
                                                : 2) *
                         bytes_of(c->result) *
                         hl_shape_numel(&hl_node_out_type(graph, node, 0)->shape);
    return true;
}

static bool is_empty(const hl_conv *conv)
{
    return conv->N * conv->C * conv->O * hl_window_span(conv->window.in) *
               hl_window_span(conv->window.out) * hl_window_span(conv->window.kernel) ==
           0;
}

/* A weight's gradient in float32 is asked for in the operands' type and widened: of engines that
 * store float32 there is one, for sm_90, and none before. It is summed in float32 all the same. */
bool hl_dnn_conv_make(hl_device *device, const hl_graph *graph, hl_node_id id, hl_dnn_conv *c,
                      hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    const hl_attrs_conv *attrs = hl_conv_attrs(node);
    const hl_id tensors[3] = {node->in[0], node->in[1], node->out};
    *c = (hl_dnn_conv){.op = node->op, .conv = hl_conv_of(graph, node), .tf32 = attrs->tf32};
    if (!hl_cuda_is_same_float(graph, node, 0, 2, out_why_not)) return false;
    hl_dtype operand = hl_node_in_type(graph, node, 0)->dtype;
    int arch = hl_cuda_device_facts(device)->arch;
    if (operand == HL_DTYPE_BF16 && arch < HL_CUDA_OLDEST_BF16)
        return hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", HL_CUDA_OLDEST_BF16,
                             arch),
               false;
    if (is_empty(&c->conv))
        return hl_reason_set(out_why_not, "needs operands that are not empty"), false;
    c->operand = type_of(operand);
    c->result = type_of(hl_node_out_type(graph, node, 0)->dtype);
    c->widens = node->op == HL_OP_CONV_WEIGHT_GRAD && c->result != c->operand;
    if (c->widens) c->result = c->operand;
    for (int d = 0; d < c->conv.window.n; d++)
        c->after[d] = find_after(&c->conv.window, d, attrs->after.at[d]);
    for (int i = 0; i < 3; i++) c->align[i] = hl_cuda_alignment(device, graph, tensors[i]);
    int packed = hl_dnn_conv_packed(c);
    if (packed >= 0) c->align[packed] = (uint32_t)device->alignment;
    return set_steps(device, graph, node, c, out_why_not);
}

hl_dnn_conv hl_dnn_conv_bare(const hl_dnn_conv *conv)
{
    hl_dnn_conv c = *conv;
    memset(c.step + c.n_own, 0, sizeof *c.step * (size_t)(c.n_steps - c.n_own));
    c.n_steps = c.n_own;
    c.activation = NULL, c.apart_bytes = 0, c.has_sums = false;
    return c;
}

int hl_dnn_conv_packed(const hl_dnn_conv *c)
{
    bool is_turned = hl_window_span(c->conv.window.kernel) > 1 && c->conv.C > c->conv.groups;
    return !is_turned && !c->widens ? -1 : c->op == HL_OP_CONV_WEIGHT_GRAD ? 2 : 1;
}

int64_t hl_dnn_conv_weight_bytes(const hl_dnn_conv *c)
{
    const hl_conv *conv = &c->conv;
    return conv->O * (conv->C / conv->groups) * hl_window_span(conv->window.kernel) *
           bytes_of(c->op == HL_OP_CONV_WEIGHT_GRAD ? c->result : c->operand);
}

/* Of the result. */
static int64_t count_channels(const hl_dnn_conv *c)
{
    return c->op == HL_OP_CONV_TRANSPOSE ? c->conv.C : c->conv.O;
}

int64_t hl_dnn_conv_sums_bytes(const hl_dnn_conv *c)
{
    return count_channels(c) * (int64_t)sizeof(float);
}

/* ---- its text -------------------------------------------------------------------------------- */

static const char *type_text(cudnnDataType_t type)
{
    return type == CUDNN_DATA_BFLOAT16 ? "bf16" : type == CUDNN_DATA_HALF ? "f16" : "f32";
}

static void add_text(hl_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add_text(hl_problem *problem, const char *format, ...)
{
    size_t n = strlen(problem->text);
    va_list args;
    va_start(args, format);
    vsnprintf(problem->text + n, sizeof problem->text - n, format, args);
    va_end(args);
}

static void add_dims(hl_problem *problem, const char *what, const int64_t *dims, int n)
{
    add_text(problem, " %s ", what);
    for (int d = 0; d < n; d++) add_text(problem, "%s%lld", d ? "x" : "", (long long)dims[d]);
}

static hl_problem make_problem(hl_device *device, const hl_dnn_conv *c)
{
    const hl_window *w = &c->conv.window;
    hl_problem problem = {.refusals = &hl_cuda_of(device)->cudnn->refusals,
                          .activation = c->activation,
                          .apart_bytes = c->apart_bytes};
    const struct {
        const char *what;
        const int64_t *dims;
    } dims[] = {{"x", w->in},          {"w", w->kernel},          {"y", w->out},
                {"stride", w->stride}, {"dilation", w->dilation}, {"pad", w->before},
                {"-", c->after}};
    add_text(&problem, "%s %s %s %s n %lld c %lld o %lld g %lld", hl_op_get(c->op)->name,
             type_text(c->operand), type_text(c->result), c->tf32 ? "tf32" : "f32",
             (long long)c->conv.N, (long long)c->conv.C, (long long)c->conv.O,
             (long long)c->conv.groups);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        add_dims(&problem, dims[i].what, dims[i].dims, w->n);
    add_text(&problem, " align %u %u %u", c->align[0], c->align[1], c->align[2]);
    for (int i = 0; i < c->n_steps; i++) {
        const hl_dnn_step *step = &c->step[i];
        add_text(&problem, " %d", (int)step->mode);
        if (step->arg >= 0)
            add_text(&problem, "%s%s%u", step->per_channel ? "c" : "", type_text(step->type),
                     step->align);
    }
    if (c->has_sums) add_text(&problem, " sums");
    return problem;
}

/* ---- its operation graph --------------------------------------------------------------------- */

/* cuDNN's convolutions have two or three spatial dims: one dim is rows of one image line. */
enum { MAX_DIMS = 2 + HL_WINDOW_DIMS };

static int spread(const hl_window *w, const int64_t *dims, int64_t fill, int64_t *out_dims)
{
    int lead = w->n == 1;
    if (lead) out_dims[0] = fill;
    for (int d = 0; d < w->n; d++) out_dims[lead + d] = dims[d];
    return lead + w->n;
}

/* (n,c,spatial), of which c lies closest; is_virtual: it is nowhere in memory. */
static cudnnBackendDescriptor_t make_tensor(hl_cudnn_descs *descs, int64_t id, int64_t n, int64_t c,
                                            const int64_t *spatial, int n_spatial,
                                            cudnnDataType_t type, int64_t align, bool is_virtual)
{
    int64_t dim[MAX_DIMS] = {n, c}, stride[MAX_DIMS], step = c;
    int rank = 2 + n_spatial;
    stride[1] = 1;
    for (int d = rank - 1; d > 1; d--) {
        dim[d] = spatial[d - 2];
        stride[d] = step;
        step *= dim[d];
    }
    stride[0] = step;
    cudnnBackendDescriptor_t t = hl_cudnn_desc_make(descs, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dim);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    hl_cudnn_desc_finalize(descs, t, "a tensor");
    return t;
}

typedef enum tensor_role { ROLE_X, ROLE_W, ROLE_Y } tensor_role;

static cudnnBackendDescriptor_t make_role(hl_cudnn_descs *descs, const hl_dnn_conv *c,
                                          tensor_role role, int64_t id, cudnnDataType_t type,
                                          uint32_t align, bool is_virtual)
{
    const hl_conv *conv = &c->conv;
    const hl_window *w = &conv->window;
    int64_t spatial[HL_WINDOW_DIMS];
    int n = spread(w, role == ROLE_X ? w->in : role == ROLE_W ? w->kernel : w->out, 1, spatial);
    return make_tensor(descs, id, role == ROLE_W ? conv->O : conv->N,
                       role == ROLE_X   ? conv->C
                       : role == ROLE_W ? conv->C / conv->groups
                                        : conv->O,
                       spatial, n, type, align, is_virtual);
}

static cudnnBackendDescriptor_t make_geometry(hl_cudnn_descs *descs, const hl_dnn_conv *c)
{
    const hl_window *w = &c->conv.window;
    const struct {
        cudnnBackendAttributeName_t name;
        const int64_t *dims;
        int64_t fill;
    } lists[] = {{CUDNN_ATTR_CONVOLUTION_DILATIONS, w->dilation, 1},
                 {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, w->stride, 1},
                 {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, w->before, 0},
                 {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, c->after, 0}};
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims[HL_WINDOW_DIMS], n = w->n == 1 ? 2 : w->n;
    cudnnBackendDescriptor_t g = hl_cudnn_desc_make(descs, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    hl_cudnn_desc_set(descs, g, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                      &compute);
    hl_cudnn_desc_set(descs, g, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
                      &mode);
    hl_cudnn_desc_set(descs, g, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        (void)spread(w, lists[i].dims, lists[i].fill, dims);
        hl_cudnn_desc_set(descs, g, lists[i].name, CUDNN_TYPE_INT64, n, dims);
    }
    hl_cudnn_desc_finalize(descs, g, "a convolution");
    return g;
}

/* The attributes of one of the three operations; tensors: the node's operands and its result. */
typedef struct operation_row {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t tensor[3], geometry, alpha, beta;
    tensor_role role[3];
} operation_row;

static const operation_row *find_row(hl_op op)
{
    static const operation_row forward = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                          {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                           CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                                          {ROLE_X, ROLE_W, ROLE_Y}},
                               data = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                       {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX},
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                                       {ROLE_Y, ROLE_W, ROLE_X}},
                               weight = {
                                   CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                   {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                   {ROLE_Y, ROLE_X, ROLE_W}};
    return op == HL_OP_CONV ? &forward : op == HL_OP_CONV_TRANSPOSE ? &data : &weight;
}

/* Ids of what lies between steps. */
enum { VIRTUAL = 100 };

/* The result of step i, of which -1 is the convolution; the last one is the node's. What lies
 * between is float32. */
static cudnnBackendDescriptor_t make_result(hl_cudnn_descs *descs, const hl_dnn_conv *c, int i)
{
    tensor_role role = find_row(c->op)->role[2];
    bool is_last = i == c->n_steps - 1;
    return make_role(descs, c, role, is_last ? HL_DNN_RESULT : VIRTUAL + i,
                     is_last ? c->result : CUDNN_DATA_FLOAT, is_last ? c->align[2] : 16, !is_last);
}

static cudnnBackendDescriptor_t make_convolution(hl_cudnn_descs *descs, const hl_dnn_conv *c,
                                                 cudnnBackendDescriptor_t result)
{
    const operation_row *row = find_row(c->op);
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t geometry = make_geometry(descs, c), operand[2];
    for (int i = 0; i < 2; i++)
        operand[i] =
            make_role(descs, c, row->role[i], HL_DNN_FIRST + i, c->operand, c->align[i], false);
    cudnnBackendDescriptor_t op = hl_cudnn_desc_make(descs, row->type);
    hl_cudnn_desc_link(descs, op, row->geometry, geometry);
    for (int i = 0; i < 2; i++) hl_cudnn_desc_link(descs, op, row->tensor[i], operand[i]);
    hl_cudnn_desc_link(descs, op, row->tensor[2], result);
    hl_cudnn_desc_set(descs, op, row->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    hl_cudnn_desc_set(descs, op, row->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    hl_cudnn_desc_finalize(descs, op, "a convolution's operation");
    return op;
}

/* One number for each of the result's channels. */
static cudnnBackendDescriptor_t make_channels(hl_cudnn_descs *descs, const hl_dnn_conv *c,
                                              int64_t id, cudnnDataType_t type, uint32_t align)
{
    const int64_t ones[HL_WINDOW_DIMS] = {1, 1, 1};
    return make_tensor(descs, id, 1, count_channels(c), ones,
                       c->conv.window.n == 1 ? 2 : c->conv.window.n, type, align, false);
}

/* What step i reads beside: values of the result's shape, or one for each of its channels. */
static cudnnBackendDescriptor_t make_beside(hl_cudnn_descs *descs, const hl_dnn_conv *c, int i)
{
    const hl_dnn_step *step = &c->step[i];
    if (step->per_channel)
        return make_channels(descs, c, HL_DNN_BESIDE + i, step->type, step->align);
    return make_role(descs, c, find_row(c->op)->role[2], HL_DNN_BESIDE + i, step->type, step->align,
                     false);
}

/* Sums of the result's channels, and of their squares. */
static cudnnBackendDescriptor_t make_sums(hl_cudnn_descs *descs, const hl_dnn_conv *c,
                                          cudnnBackendDescriptor_t x)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnBackendDescriptor_t sums = make_channels(descs, c, HL_DNN_SUMS, compute, HL_ALIGN),
                             squares = make_channels(descs, c, HL_DNN_SQUARES, compute, HL_ALIGN);
    cudnnBackendDescriptor_t op =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    hl_cudnn_desc_set(descs, op, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1,
                      &mode);
    hl_cudnn_desc_set(descs, op, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
                      &compute);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, x);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
    hl_cudnn_desc_finalize(descs, op, "sums of channels");
    return op;
}

static cudnnBackendDescriptor_t make_step(hl_cudnn_descs *descs, const hl_dnn_conv *c, int i,
                                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    const hl_dnn_step *step = &c->step[i];
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t p = hl_cudnn_desc_make(descs, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    hl_cudnn_desc_set(descs, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
                      &step->mode);
    hl_cudnn_desc_set(descs, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    hl_cudnn_desc_finalize(descs, p, "a pointwise step");
    cudnnBackendDescriptor_t beside = step->arg >= 0 ? make_beside(descs, c, i) : NULL;
    cudnnBackendDescriptor_t op =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (beside) hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, beside);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    hl_cudnn_desc_finalize(descs, op, "a pointwise operation");
    return op;
}

static cudnnBackendDescriptor_t build(hl_cudnn_descs *descs, const void *of)
{
    const hl_dnn_conv *c = of;
    cudnnBackendDescriptor_t ops[2 + HL_DNN_STEPS], x = make_result(descs, c, -1);
    int n = 1 + c->n_steps;
    ops[0] = make_convolution(descs, c, x);
    for (int i = 0; i < c->n_steps; i++) {
        cudnnBackendDescriptor_t y = make_result(descs, c, i);
        ops[1 + i] = make_step(descs, c, i, x, y);
        x = y;
    }
    if (c->has_sums) ops[n++] = make_sums(descs, c, x);
    cudnnBackendDescriptor_t graph =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    hl_cudnn_desc_set(descs, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
                      ops);
    if (descs->dnn->handle)
        hl_cudnn_desc_set(descs, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                          &descs->dnn->handle);
    hl_cudnn_desc_finalize(descs, graph, "a graph");
    return descs->status == CUDNN_STATUS_SUCCESS ? graph : NULL;
}

hl_dnn_question hl_dnn_conv_question(hl_device *device, const hl_dnn_conv *conv)
{
    return (hl_dnn_question){.problem = make_problem(device, conv),
                             .of = conv,
                             .build = build,
                             .is_exact = conv->operand == CUDNN_DATA_FLOAT && !conv->tf32};
}
