/* Nodes as attention of cuDNN, and their operation graphs: one operation, forward or backward,
 * which the library has for GPUs from sm_80 on and 16 bits. What hides keys from queries is a graph
 * within it, from scores to scores.
 *
 * Of the node's logarithms of sums it makes and reads the first half, which are its statistics; the
 * second, what rounding took from them, it has not.
 *
 * Rejected: the operations that older libraries know, products, softmax and a dozen pointwise steps
 * between, which they take in one arrangement alone; masks as a graph within (own kernels read
 * them); the library's dropout, which draws other bits. */
#include "kernels/cuda/dnn_attention.h"

#include <math.h>
#include <stdio.h>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/internal.h"

/* The first release whose backward operation has a graph within. */
enum { OLDEST = 92100, WIDTHS = 8 };
/* Ids within that graph. */
enum { SCORES = 100, SEEN };

/* ---- the node -------------------------------------------------------------------------------- */

static bool has_shape(const hl_graph *graph, const hl_node *node, hl_dtype dtype,
                      hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in + node->n_out; i++) {
        hl_type type =
            graph->values[i < node->n_in ? node->in[i] : node->out + i - node->n_in].type;
        bool is_lse = i == (node->op == HL_OP_ATTENTION_GRAD ? 5 : node->n_in + 1);
        if (hl_shape_numel(&type.shape) == 0)
            return hl_reason_set(out_why_not, "needs operands that are not empty"), false;
        if (!is_lse && type.dtype != dtype)
            return hl_reason_set(out_why_not, "needs one type for all, got %s and %s",
                                 hl_dtype_name(dtype), hl_dtype_name(type.dtype)),
                   false;
    }
    return true;
}

bool hl_dnn_attention_make(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_dnn_attention *a, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    const hl_attrs_attention *attrs = hl_attention_attrs(node);
    bool is_grad = node->op == HL_OP_ATTENTION_GRAD;
    const int64_t *q = hl_node_in_type(graph, node, is_grad)->shape.dim,
                  *k = hl_node_in_type(graph, node, is_grad + 1)->shape.dim,
                  *v = hl_node_in_type(graph, node, is_grad + 2)->shape.dim;
    hl_dtype dtype = hl_node_in_type(graph, node, is_grad)->dtype;
    int arch = hl_cuda_device_facts(device)->arch;
    *a = (hl_dnn_attention){.is_grad = is_grad,
                            .is_causal = attrs->is_causal,
                            .B = q[0],
                            .H = q[1],
                            .Hk = k[1],
                            .L = q[2],
                            .S = k[2],
                            .E = q[3],
                            .Ev = v[3],
                            .type = dtype == HL_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                            .scale = (float)attrs->scale};
    if (arch < HL_DNN_ATTENTION_OLDEST)
        return hl_reason_set(out_why_not, "needs sm_%d, got sm_%d", HL_DNN_ATTENTION_OLDEST, arch),
               false;
    if (dtype != HL_DTYPE_BF16 && dtype != HL_DTYPE_F16)
        return hl_reason_set(out_why_not, "needs bfloat16 or float16, got %s",
                             hl_dtype_name(dtype)),
               false;
    if (attrs->has_mask || attrs->p > 0)
        return hl_reason_set(out_why_not, "has no %s", attrs->has_mask ? "masks" : "dropout"),
               false;
    if (a->E % WIDTHS || a->Ev % WIDTHS)
        return hl_reason_set(out_why_not, "needs heads of multiples of %d, got %lld and %lld",
                             WIDTHS, (long long)a->E, (long long)a->Ev),
               false;
    if (is_grad && graph->deterministic)
        return hl_reason_set(out_why_not, "its sums have any order"), false;
    if (!has_shape(graph, node, dtype, out_why_not)) return false;
    int version = hl_cuda_of(device)->cudnn->version;
    if (version < OLDEST)
        return hl_reason_set(out_why_not, "attention needs cuDNN 9.21, got %d.%d", version / 10000,
                             version / 100 % 100),
               false;
    for (int i = 0; i < node->n_in + node->n_out; i++)
        a->align[i] = hl_cuda_alignment(
            device, graph, i < node->n_in ? node->in[i] : node->out + i - (hl_id)node->n_in);
    return true;
}

static hl_problem make_problem(hl_device *device, const hl_dnn_attention *a)
{
    hl_problem problem = {.refusals = &hl_cuda_of(device)->cudnn->refusals};
    int n =
        snprintf(problem.text, sizeof problem.text,
                 "attention%s %s n %lld h %lld %lld l %lld %lld e %lld %lld%s align",
                 a->is_grad ? "_grad" : "", a->type == CUDNN_DATA_HALF ? "f16" : "bf16",
                 (long long)a->B, (long long)a->H, (long long)a->Hk, (long long)a->L,
                 (long long)a->S, (long long)a->E, (long long)a->Ev, a->is_causal ? " causal" : "");
    for (int i = 0; i < HL_DNN_ATTENTION_ARGS && a->align[i]; i++)
        n += snprintf(problem.text + n, sizeof problem.text - (size_t)n, " %u", a->align[i]);
    return problem;
}

/* ---- its operation graph --------------------------------------------------------------------- */

/* Row-major, of four dims. */
static cudnnBackendDescriptor_t make_tensor(hl_cudnn_descs *descs, int64_t id, const int64_t *dim,
                                            cudnnDataType_t type, int64_t align,
                                            cudnnBackendAttributeName_t is)
{
    const bool yes = true;
    int64_t stride[4] = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1};
    cudnnBackendDescriptor_t t = hl_cudnn_desc_make(descs, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    hl_cudnn_desc_set(descs, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is) hl_cudnn_desc_set(descs, t, is, CUDNN_TYPE_BOOLEAN, 1, &yes);
    hl_cudnn_desc_finalize(descs, t, "a tensor");
    return t;
}

/* A number that is given by value. */
static cudnnBackendDescriptor_t make_number(hl_cudnn_descs *descs, int64_t id)
{
    return make_tensor(descs, id, (const int64_t[]){1, 1, 1, 1}, CUDNN_DATA_FLOAT, sizeof(float),
                       CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

static cudnnBackendDescriptor_t make_graph(hl_cudnn_descs *descs, cudnnBackendDescriptor_t op,
                                           bool has_handle)
{
    cudnnBackendDescriptor_t graph =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    hl_cudnn_desc_link(descs, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
    if (has_handle && descs->dnn->handle)
        hl_cudnn_desc_set(descs, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                          &descs->dnn->handle);
    hl_cudnn_desc_finalize(descs, graph, "a graph");
    return graph;
}

/* Scores of keys up to the query's own place, and what is hidden behind it. */
static cudnnBackendDescriptor_t make_causal(hl_cudnn_descs *descs, const hl_dnn_attention *a)
{
    const int64_t dim[] = {a->B, a->H, a->L, a->S};
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_CMP_GE;
    cudnnBackendDescriptor_t x = make_tensor(descs, SCORES, dim, CUDNN_DATA_FLOAT, 16,
                                             CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                             y = make_tensor(descs, SEEN, dim, CUDNN_DATA_FLOAT, 16,
                                             CUDNN_ATTR_TENSOR_IS_VIRTUAL),
                             hidden = make_number(descs, HL_DNN_HIDDEN);
    cudnnBackendDescriptor_t op =
        hl_cudnn_desc_make(descs, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, x);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, hidden);
    hl_cudnn_desc_link(descs, op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, y);
    hl_cudnn_desc_set(descs, op, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE,
                      CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    hl_cudnn_desc_finalize(descs, op, "a mask's operation");
    return make_graph(descs, op, false);
}

/* Attributes of an operation: those of the node's arguments in order, each with its shape; 0: none
 * follow. */
enum { OF_Q, OF_K, OF_V, OF_OUT, OF_LSE };
typedef struct operation_row {
    cudnnBackendDescriptorType_t type;
    struct {
        cudnnBackendAttributeName_t name;
        int of;
    } arg[HL_DNN_ATTENTION_ARGS];
    cudnnBackendAttributeName_t scale, within, from, to;
} operation_row;

#define OPERATION(name, ...)                                                                       \
    {CUDNN_BACKEND_OPERATION_SDPA_##name##_DESCRIPTOR,                                             \
     {__VA_ARGS__},                                                                                \
     CUDNN_ATTR_OPERATION_SDPA_##name##_SCALEDESC,                                                 \
     CUDNN_ATTR_OPERATION_SDPA_##name##_SUBGRAPH,                                                  \
     CUDNN_ATTR_OPERATION_SDPA_##name##_SUBGRAPH_INPUT_UID,                                        \
     CUDNN_ATTR_OPERATION_SDPA_##name##_SUBGRAPH_OUTPUT_UID}
static const operation_row operations[] = {
    OPERATION(FWD, {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, OF_Q},
              {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, OF_K},
              {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, OF_V},
              {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, OF_OUT},
              {CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, OF_LSE}),
    OPERATION(
        BWD, {CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, OF_OUT},
        {CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, OF_Q}, {CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, OF_K},
        {CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, OF_V}, {CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, OF_OUT},
        {CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, OF_LSE},
        {CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, OF_Q}, {CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, OF_K},
        {CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, OF_V}),
};

static cudnnBackendDescriptor_t build(hl_cudnn_descs *descs, const void *of)
{
    const hl_dnn_attention *a = of;
    const operation_row *row = &operations[a->is_grad];
    const int64_t from = SCORES, to = SEEN,
                  dim[][4] = {[OF_Q] = {a->B, a->H, a->L, a->E},
                              [OF_K] = {a->B, a->Hk, a->S, a->E},
                              [OF_V] = {a->B, a->Hk, a->S, a->Ev},
                              [OF_OUT] = {a->B, a->H, a->L, a->Ev},
                              [OF_LSE] = {a->B, a->H, a->L, 1}};
    cudnnBackendDescriptor_t t[HL_DNN_ATTENTION_ARGS], scale = make_number(descs, HL_DNN_SCALE),
                                                       within = NULL;
    for (int i = 0; i < HL_DNN_ATTENTION_ARGS && row->arg[i].name; i++)
        t[i] = make_tensor(descs, 1 + i, dim[row->arg[i].of],
                           row->arg[i].of == OF_LSE ? CUDNN_DATA_FLOAT : a->type, a->align[i], 0);
    if (a->is_causal) within = make_causal(descs, a);
    cudnnBackendDescriptor_t op = hl_cudnn_desc_make(descs, row->type);
    for (int i = 0; i < HL_DNN_ATTENTION_ARGS && row->arg[i].name; i++)
        hl_cudnn_desc_link(descs, op, row->arg[i].name, t[i]);
    hl_cudnn_desc_link(descs, op, row->scale, scale);
    if (a->is_causal) {
        hl_cudnn_desc_link(descs, op, row->within, within);
        hl_cudnn_desc_set(descs, op, row->from, CUDNN_TYPE_INT64, 1, &from);
        hl_cudnn_desc_set(descs, op, row->to, CUDNN_TYPE_INT64, 1, &to);
    }
    hl_cudnn_desc_finalize(descs, op, "attention's operation");
    cudnnBackendDescriptor_t graph = make_graph(descs, op, true);
    return descs->status == CUDNN_STATUS_SUCCESS ? graph : NULL;
}

hl_dnn_question hl_dnn_attention_question(hl_device *device, const hl_dnn_attention *a)
{
    return (hl_dnn_question){.problem = make_problem(device, a), .of = a, .build = build};
}

hl_dnn_places hl_dnn_attention_places(const hl_dnn_attention *a, void *const *args)
{
    static const float hidden = -INFINITY;
    hl_dnn_places places = {0};
    for (int i = 0; i < HL_DNN_ATTENTION_ARGS && a->align[i]; i++)
        hl_dnn_place(&places, 1 + i, args[i]);
    hl_dnn_place(&places, HL_DNN_SCALE, (void *)(uintptr_t)&a->scale);
    if (a->is_causal) hl_dnn_place(&places, HL_DNN_HIDDEN, (void *)(uintptr_t)&hidden);
    return places;
}
