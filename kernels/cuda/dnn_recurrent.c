/* Nodes as recurrent layers of cuDNN: its RNN calls, which are older than its graphs and have no
 * heuristics. Four algorithms are asked for in turn; which do take a layer the library says when it
 * is described, and at last when it runs.
 *
 * Steps and rows lie as hotloop has them (batch-major, unpacked), and gates in the same order. The
 * library wants all weights in one block; where each lies there it is asked, and what lies one
 * behind the other in both is one copy. */
#include "kernels/cuda/dnn_recurrent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/dnn_plans.h"
#include "kernels/cuda/internal.h"

/* With fewer steps a layer is a few launches anyhow, and packing its weights is two more for each.
 * An estimate: what a GPU says of it is not known yet. */
enum { LEAST_STEPS = 4 };

static const struct {
    cudnnRNNAlgo_t algo;
    const char *name;
} algos[HL_DNN_RECURRENT_ALGOS] = {
    {CUDNN_RNN_ALGO_STANDARD, "standard"},
    {CUDNN_RNN_ALGO_PERSIST_STATIC, "persist_static"},
    {CUDNN_RNN_ALGO_PERSIST_DYNAMIC, "persist_dynamic"},
    {CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H, "persist_static_small_h"},
};

/* ---- the node -------------------------------------------------------------------------------- */

/* Is it this number for every row, whatever the step is given? */
static bool is_always(const hl_graph *graph, hl_id id, int64_t want)
{
    hl_node_id maker = hl_graph_producer(graph, id);
    while (maker != HL_NONE) {
        const hl_node *node = &graph->nodes[maker];
        if (node->op != HL_OP_EXPAND && !(hl_op_get(node->op)->flags & HL_OP_VIEW)) return false;
        id = node->in[0];
        maker = hl_graph_producer(graph, id);
    }
    const hl_value *value = hl_graph_value(graph, id);
    if (value->kind != HL_VALUE_CONST) return false;
    const int32_t *lengths = value->data;
    for (int64_t n = 0; n < hl_shape_numel(&value->type.shape); n++)
        if (lengths[n] != want) return false;
    return true;
}

static bool has_gradient(const hl_graph *graph, const hl_node *node)
{
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *other = &graph->nodes[i];
        if (other->op == HL_OP_RECURRENT_LAYER_GRAD &&
            other->in[HL_RECURRENT_GRAD_GATES] == node->out + HL_RECURRENCE_GATES)
            return true;
    }
    return false;
}

static bool is_small(const hl_dnn_recurrent *d)
{
    const int64_t sizes[] = {d->N, d->T, d->I, d->H, d->P};
    for (int i = 0; i < 5; i++)
        if (sizes[i] > INT32_MAX / 4) return false;
    return true;
}

static bool check_type(hl_device *device, hl_dtype dtype, hl_reason *out_why_not)
{
    int arch = hl_cuda_device_facts(device)->arch;
    if (!hl_cuda_suffix(dtype))
        hl_reason_set(out_why_not, "needs float32, bfloat16 or float16, got %s",
                      hl_dtype_name(dtype));
    else if (dtype == HL_DTYPE_BF16 && arch < HL_CUDA_OLDEST_BF16)
        hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", HL_CUDA_OLDEST_BF16, arch);
    else
        return true;
    return false;
}

bool hl_dnn_recurrent_make(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_dnn_recurrent *d, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    const hl_recurrent l = hl_recurrent_of(graph, node);
    bool is_grad = node->op == HL_OP_RECURRENT_LAYER_GRAD;
    hl_dtype dtype = hl_node_in_type(graph, node, HL_RECURRENT_X)->dtype;
    hl_id lengths = node->in[is_grad ? HL_RECURRENT_GRAD_LENGTHS : HL_RECURRENT_LENGTHS];
    *d = (hl_dnn_recurrent){.is_training = is_grad || has_gradient(graph, node),
                            .has_bias = l.has_bias,
                            .has_state_bias = l.has_state_bias,
                            .has_projection = l.r.has_projection,
                            .tf32 = hl_recurrent_attrs(node)->tf32,
                            .cell = l.r.cell,
                            .N = l.r.N,
                            .T = l.r.T,
                            .I = l.I,
                            .H = l.r.H,
                            .P = l.r.P,
                            .G = l.r.G,
                            .type = dtype == HL_DTYPE_BF16  ? CUDNN_DATA_BFLOAT16
                                    : dtype == HL_DTYPE_F16 ? CUDNN_DATA_HALF
                                                            : CUDNN_DATA_FLOAT};
    if (!check_type(device, dtype, out_why_not)) return false;
    if (d->N * d->T * d->I * d->H * d->P == 0 || !is_small(d))
        hl_reason_set(out_why_not, "needs operands that are not empty, nor larger than int32");
    else if (l.r.is_reverse)
        hl_reason_set(out_why_not, "has no direction that goes back alone");
    else if (d->T < LEAST_STEPS)
        hl_reason_set(out_why_not, "saves nothing with fewer than %d steps, got %lld", LEAST_STEPS,
                      (long long)d->T);
    else if (d->has_projection && d->P >= d->H)
        hl_reason_set(out_why_not, "projects to fewer elements than there are units alone");
    else if (!is_always(graph, lengths, d->T))
        hl_reason_set(out_why_not, "wants lengths on the host, got some that a step makes");
    else
        return true;
    return false;
}

hl_problem hl_dnn_recurrent_problem(hl_device *device, const hl_dnn_recurrent *d)
{
    static const char *const cells[] = {"tanh", "relu", "lstm", "gru"};
    hl_problem problem = {.refusals = &hl_cuda_of(device)->cudnn->refusals};
    snprintf(problem.text, sizeof problem.text,
             "recurrent_layer%s %s %s %s n %lld t %lld i %lld h %lld p %lld bias %d %d",
             d->is_training ? "_train" : "", cells[d->cell],
             d->type == CUDNN_DATA_BFLOAT16 ? "bf16"
             : d->type == CUDNN_DATA_HALF   ? "f16"
                                            : "f32",
             d->tf32 ? "tf32" : "f32", (long long)d->N, (long long)d->T, (long long)d->I,
             (long long)d->H, (long long)d->P, d->has_bias, d->has_state_bias);
    return problem;
}

/* ---- its descriptors ------------------------------------------------------------------------- */

static size_t element_bytes(const hl_dnn_recurrent *d)
{
    return d->type == CUDNN_DATA_FLOAT ? 4 : 2;
}

/* Calls until one fails. */
#define TRY_DNN(call_)                                                                             \
    do {                                                                                           \
        cudnnStatus_t status_ = call_;                                                             \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                       \
    } while (0)

static cudnnStatus_t set_state(const hl_cudnn *dnn, cudnnTensorDescriptor_t *out_desc,
                               const hl_dnn_recurrent *d, int64_t columns)
{
    const int dims[] = {1, (int)d->N, (int)columns},
              strides[] = {(int)(d->N * columns), (int)columns, 1};
    TRY_DNN(dnn->call.cudnnCreateTensorDescriptor(out_desc));
    return dnn->call.cudnnSetTensorNdDescriptor(*out_desc, d->type, 3, dims, strides);
}

static cudnnStatus_t set_data(const hl_cudnn *dnn, cudnnRNNDataDescriptor_t *out_desc,
                              const hl_dnn_recurrent *d, int64_t size, const int *lengths)
{
    double zero = 0; /* of any type */
    TRY_DNN(dnn->call.cudnnCreateRNNDataDescriptor(out_desc));
    return dnn->call.cudnnSetRNNDataDescriptor(*out_desc, d->type,
                                               CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED,
                                               (int)d->T, (int)d->N, (int)size, lengths, &zero);
}

/* All but the algorithms. Dropout of one layer is none, and has no state. */
static cudnnStatus_t describe(const hl_cudnn *dnn, hl_dnn_layer *layer, const int *lengths)
{
    const hl_dnn_recurrent *d = &layer->of;
    TRY_DNN(dnn->call.cudnnCreateDropoutDescriptor(&layer->dropout));
    TRY_DNN(dnn->call.cudnnSetDropoutDescriptor(layer->dropout, dnn->handle, 0, NULL, 0, 0));
    TRY_DNN(set_data(dnn, &layer->x, d, d->I, lengths));
    TRY_DNN(set_data(dnn, &layer->y, d, d->P, lengths));
    TRY_DNN(set_state(dnn, &layer->h, d, d->P));
    return d->cell == HL_CELL_LSTM ? set_state(dnn, &layer->c, d, d->H) : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_algo(const hl_cudnn *dnn, const hl_dnn_layer *layer, cudnnRNNAlgo_t which,
                              cudnnRNNDescriptor_t desc)
{
    static const cudnnRNNMode_t modes[] = {CUDNN_RNN_TANH, CUDNN_RNN_RELU, CUDNN_LSTM, CUDNN_GRU};
    const hl_dnn_recurrent *d = &layer->of;
    cudnnRNNBiasMode_t bias = d->has_bias && d->has_state_bias ? CUDNN_RNN_DOUBLE_BIAS
                              : d->has_bias                    ? CUDNN_RNN_SINGLE_INP_BIAS
                              : d->has_state_bias              ? CUDNN_RNN_SINGLE_REC_BIAS
                                                               : CUDNN_RNN_NO_BIAS;
    cudnnMathType_t math = d->type != CUDNN_DATA_FLOAT ? CUDNN_TENSOR_OP_MATH
                           : d->tf32                   ? CUDNN_DEFAULT_MATH
                                                       : CUDNN_FMA_MATH;
    return dnn->call.cudnnSetRNNDescriptor_v8(
        desc, which, modes[d->cell], bias, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, d->type,
        CUDNN_DATA_FLOAT, math, (int32_t)d->I, (int32_t)d->H, (int32_t)d->P, 1, layer->dropout,
        CUDNN_RNN_PADDED_IO_ENABLED);
}

/* ---- its weights ----------------------------------------------------------------------------- */

/* A matrix or bias of the weight space as hotloop has it: so many elements from `from` on of a
 * weight. */
static cudnnStatus_t add_piece(const hl_dnn_recurrent *d, hl_dnn_recurrent_algo *algo, int of,
                               int64_t from, int64_t n, uintptr_t at)
{
    size_t size = element_bytes(d);
    hl_dnn_piece piece = {of, (size_t)from * size, (size_t)at, (size_t)n * size};
    if (piece.at % size || piece.at > algo->weight_bytes ||
        piece.bytes > algo->weight_bytes - piece.at || algo->n_pieces == HL_DNN_PIECES)
        return CUDNN_STATUS_INTERNAL_ERROR;
    algo->piece[algo->n_pieces++] = piece;
    return CUDNN_STATUS_SUCCESS;
}

/* Elements that lie one behind another, as a descriptor says; 0: there is no such thing. */
static cudnnStatus_t count_elements(const hl_cudnn *dnn, cudnnTensorDescriptor_t desc,
                                    int64_t *out_n)
{
    enum { DIMS = 3 };
    cudnnDataType_t type;
    int n = 0, dims[DIMS] = {0}, strides[DIMS];
    TRY_DNN(dnn->call.cudnnGetTensorNdDescriptor(desc, DIMS, &type, &n, dims, strides));
    *out_n = n == DIMS ? (int64_t)dims[0] * dims[1] * dims[2] : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* Where parts of a weight space lie is asked for one that begins here, where no memory is. */
#define SPACE ((char *)(uintptr_t)HL_ALIGN)

/* Matrix and bias `number` of the library's, which are rows from `row` on of these weights; -1:
 * there is none. */
static cudnnStatus_t ask_pieces(const hl_cudnn *dnn, const hl_dnn_recurrent *d,
                                hl_dnn_recurrent_algo *algo, const cudnnTensorDescriptor_t desc[2],
                                int32_t number, int matrix, int bias, int64_t row)
{
    void *at[2] = {NULL, NULL};
    int64_t n, rows = matrix == HL_DNN_W_HR ? d->P : d->H,
               columns = matrix == HL_DNN_W_IH   ? d->I
                         : matrix == HL_DNN_W_HH ? d->P
                                                 : d->H;
    TRY_DNN(dnn->call.cudnnGetRNNWeightParams(dnn->handle, algo->desc, 0, algo->weight_bytes, SPACE,
                                              number, desc[0], &at[0], desc[1], &at[1]));
    TRY_DNN(count_elements(dnn, desc[0], &n));
    if (!at[0] || n != rows * columns) return CUDNN_STATUS_INTERNAL_ERROR;
    TRY_DNN(add_piece(d, algo, matrix, row * columns, n, (uintptr_t)((char *)at[0] - SPACE)));
    if (bias < 0) return CUDNN_STATUS_SUCCESS;
    TRY_DNN(count_elements(dnn, desc[1], &n));
    if (!at[1] || n != rows) return CUDNN_STATUS_INTERNAL_ERROR;
    return add_piece(d, algo, bias, row, n, (uintptr_t)((char *)at[1] - SPACE));
}

static int compare_pieces(const void *a, const void *b)
{
    const hl_dnn_piece *p = a, *q = b;
    if (p->of != q->of) return p->of < q->of ? -1 : 1;
    return p->from < q->from ? -1 : p->from > q->from;
}

/* What lies one behind the other in both is one piece. */
static void merge_pieces(hl_dnn_recurrent_algo *algo)
{
    int n = 0;
    qsort(algo->piece, (size_t)algo->n_pieces, sizeof *algo->piece, compare_pieces);
    for (int i = 0; i < algo->n_pieces; i++) {
        hl_dnn_piece *piece = &algo->piece[i], *last = n ? &algo->piece[n - 1] : NULL;
        if (last && last->of == piece->of && last->from + last->bytes == piece->from &&
            last->at + last->bytes == piece->at)
            last->bytes += piece->bytes;
        else
            algo->piece[n++] = *piece;
    }
    algo->n_pieces = n;
}

/* The library numbers the products with the input first, gate after gate, then those with the
 * state, then the projection. */
static cudnnStatus_t list_pieces(const hl_cudnn *dnn, const hl_dnn_recurrent *d,
                                 hl_dnn_recurrent_algo *algo, const cudnnTensorDescriptor_t desc[2])
{
    for (int32_t g = 0; g < (int32_t)d->G; g++) {
        TRY_DNN(ask_pieces(dnn, d, algo, desc, g, HL_DNN_W_IH, d->has_bias ? HL_DNN_BIAS : -1,
                           g * d->H));
        TRY_DNN(ask_pieces(dnn, d, algo, desc, (int32_t)d->G + g, HL_DNN_W_HH,
                           d->has_state_bias ? HL_DNN_STATE_BIAS : -1, g * d->H));
    }
    if (d->has_projection)
        TRY_DNN(ask_pieces(dnn, d, algo, desc, 2 * (int32_t)d->G, HL_DNN_W_HR, -1, 0));
    merge_pieces(algo);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t find_pieces(const hl_cudnn *dnn, const hl_dnn_recurrent *d,
                                 hl_dnn_recurrent_algo *algo)
{
    cudnnTensorDescriptor_t desc[2] = {NULL, NULL};
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < 2 && status == CUDNN_STATUS_SUCCESS; i++)
        status = dnn->call.cudnnCreateTensorDescriptor(&desc[i]);
    if (status == CUDNN_STATUS_SUCCESS) status = list_pieces(dnn, d, algo, desc);
    for (int i = 0; i < 2; i++)
        if (desc[i]) dnn->call.cudnnDestroyTensorDescriptor(desc[i]);
    return status;
}

/* ---- asking the library ---------------------------------------------------------------------- */

/* Workspace: no more than what stands for the layer elsewhere, the products of all steps, takes;
 * small ones may take what convolutions may. */
static size_t most_workspace(const hl_dnn_recurrent *d)
{
    size_t products = (size_t)(d->N * d->T * d->G * d->H) * element_bytes(d);
    return products > HL_DNN_WORKSPACE ? products : HL_DNN_WORKSPACE;
}

static cudnnStatus_t ask_algo(const hl_cudnn *dnn, const hl_dnn_layer *layer, int which,
                              hl_dnn_recurrent_algo *algo)
{
    const hl_dnn_recurrent *d = &layer->of;
    cudnnForwardMode_t mode = d->is_training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
    algo->name = algos[which].name;
    TRY_DNN(dnn->call.cudnnCreateRNNDescriptor(&algo->desc));
    TRY_DNN(set_algo(dnn, layer, algos[which].algo, algo->desc));
    TRY_DNN(dnn->call.cudnnGetRNNWeightSpaceSize(dnn->handle, algo->desc, &algo->weight_bytes));
    TRY_DNN(find_pieces(dnn, d, algo));
    if (algos[which].algo == CUDNN_RNN_ALGO_PERSIST_DYNAMIC)
        TRY_DNN(dnn->call.cudnnBuildRNNDynamic(dnn->handle, algo->desc, (int)d->N));
    TRY_DNN(dnn->call.cudnnGetRNNTempSpaceSizes(dnn->handle, algo->desc, mode, layer->x,
                                                &algo->work_bytes, &algo->reserve_bytes));
    return algo->work_bytes > most_workspace(d) ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

/* Does the library say of the problem, and not of memory or the GPU, that it can't? */
static bool is_no(cudnnStatus_t status)
{
    return status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000 ||
           status / 1000 == CUDNN_STATUS_BAD_PARAM / 1000 || status == CUDNN_STATUS_INTERNAL_ERROR;
}

static void grow(size_t *most, size_t bytes)
{
    if (bytes > *most) *most = bytes;
}

/* Lists the algorithms; a status that is no answer ends it. */
static cudnnStatus_t list_algos(const hl_cudnn *dnn, hl_dnn_layer *layer, bool all)
{
    for (int i = 0; i < HL_DNN_RECURRENT_ALGOS && (all || !layer->n); i++) {
        hl_dnn_recurrent_algo algo = {.desc = NULL};
        cudnnStatus_t status = ask_algo(dnn, layer, i, &algo);
        if (status != CUDNN_STATUS_SUCCESS) {
            if (algo.desc) dnn->call.cudnnDestroyRNNDescriptor(algo.desc);
            if (!is_no(status)) return status;
            layer->status = status;
            continue;
        }
        grow(&layer->weight_bytes, algo.weight_bytes);
        grow(&layer->work_bytes, algo.work_bytes);
        grow(&layer->reserve_bytes, algo.reserve_bytes);
        layer->algo[layer->n++] = algo;
    }
    return CUDNN_STATUS_SUCCESS;
}

static void drop_descriptors(const hl_cudnn *dnn, hl_dnn_layer *layer)
{
    while (layer->n) dnn->call.cudnnDestroyRNNDescriptor(layer->algo[--layer->n].desc);
    if (layer->x) dnn->call.cudnnDestroyRNNDataDescriptor(layer->x);
    if (layer->y) dnn->call.cudnnDestroyRNNDataDescriptor(layer->y);
    if (layer->h) dnn->call.cudnnDestroyTensorDescriptor(layer->h);
    if (layer->c) dnn->call.cudnnDestroyTensorDescriptor(layer->c);
    if (layer->dropout) dnn->call.cudnnDestroyDropoutDescriptor(layer->dropout);
    layer->x = layer->y = NULL;
    layer->h = layer->c = NULL;
    layer->dropout = NULL;
}

static void stop_layers(hl_cudnn *dnn)
{
    for (int64_t i = 0; i < dnn->n_layers; i++) drop_descriptors(dnn, dnn->layers[i]);
}

/* With the device entered and its libraries' lock held. */
static hl_status ask(hl_cudnn *dnn, hl_dnn_layer *layer, bool all)
{
    int *lengths;
    const hl_dnn_recurrent *d = &layer->of;
    HL_TRY(hl_alloc((size_t)d->N * sizeof *lengths, (void **)&lengths));
    for (int64_t n = 0; n < d->N; n++) lengths[n] = (int)d->T;
    hl_mutex_lock(&dnn->handle_lock);
    cudnnStatus_t status = describe(dnn, layer, lengths);
    if (status == CUDNN_STATUS_SUCCESS) status = list_algos(dnn, layer, all);
    if (is_no(status)) layer->status = status, status = CUDNN_STATUS_SUCCESS;
    if (status != CUDNN_STATUS_SUCCESS || !layer->n) drop_descriptors(dnn, layer);
    hl_mutex_unlock(&dnn->handle_lock);
    hl_free(lengths);
    return hl_cudnn_check(dnn, status, "describing a recurrent layer");
}

/* Whether plans are deterministic and measured is part of a layer's text: its algorithm is chosen
 * once for all nodes that have it. */
static hl_status find_or_ask(hl_cudnn *dnn, const hl_dnn_recurrent *d, const char *text, bool all,
                             hl_dnn_layer **out_layer)
{
    hl_dnn_layer *layer;
    for (int64_t i = 0; i < dnn->n_layers; i++)
        if (strcmp(dnn->layers[i]->text, text) == 0) return *out_layer = dnn->layers[i], HL_OK;
    HL_TRY(hl_alloc_grow((void **)&dnn->layers, &dnn->cap_layers, dnn->n_layers + 1,
                         sizeof *dnn->layers));
    HL_TRY(hl_alloc_zero(sizeof *layer, (void **)&layer));
    hl_text_copy(layer->text, sizeof layer->text, text);
    dnn->stop_layers = stop_layers;
    layer->of = *d;
    layer->chosen = -1;
    hl_status status = ask(dnn, layer, all);
    if (status == HL_OK)
        *out_layer = dnn->layers[dnn->n_layers++] = layer;
    else
        hl_free(layer);
    return status;
}

hl_status hl_dnn_layer_find(hl_device *base, const hl_dnn_recurrent *d, bool deterministic,
                            bool all, hl_dnn_layer **out_layer, hl_reason *out_why_not)
{
    hl_cuda_device *device = hl_cuda_of(base);
    hl_cudnn *dnn = device->cudnn;
    hl_problem problem = hl_dnn_recurrent_problem(base, d);
    char text[HL_DNN_LAYER_TEXT];
    *out_layer = NULL;
    if (!dnn->handle)
        return hl_reason_set(out_why_not,
                             "cuDNN tells the sizes of recurrent layers to GPUs alone");
    HL_TRY(hl_problem_recall(base, &problem));
    HL_TRY(hl_problem_check(base, &problem, deterministic, all, out_why_not));
    snprintf(text, sizeof text, "%s%s%s", problem.text, deterministic ? " repeats" : "",
             all ? " measured" : "");
    HL_TRY(hl_cuda_enter(base));
    hl_mutex_lock(&device->library_lock);
    hl_status status = find_or_ask(dnn, d, text, all, out_layer);
    hl_mutex_unlock(&device->library_lock);
    hl_cuda_leave(base);
    HL_TRY(status);
    if ((*out_layer)->n) return HL_OK;
    return hl_reason_set(out_why_not, "cuDNN has no algorithm for it (%s)",
                         dnn->call.cudnnGetErrorString((*out_layer)->status));
}

/* ---- running --------------------------------------------------------------------------------- */

static cudnnStatus_t run_forward(const hl_cudnn *dnn, const hl_dnn_layer *layer,
                                 const hl_dnn_recurrent_algo *algo, const hl_dnn_layer_args *a)
{
    bool trains = layer->of.is_training;
    return dnn->call.cudnnRNNForward(
        dnn->handle, algo->desc, trains ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
        a->lengths, layer->x, a->x, layer->y, a->out, layer->h, a->h0, a->h, layer->c, a->c0, a->c,
        algo->weight_bytes, a->weights, algo->work_bytes, algo->work_bytes ? a->work : NULL,
        trains ? algo->reserve_bytes : 0, trains ? a->reserve : NULL);
}

/* The gradients of weights need what those of the data leave in the reserve. */
static cudnnStatus_t run_backward(const hl_cudnn *dnn, const hl_dnn_layer *layer,
                                  const hl_dnn_recurrent_algo *algo, const hl_dnn_layer_args *a)
{
    void *work = algo->work_bytes ? a->work : NULL;
    TRY_DNN(dnn->call.cudnnRNNBackwardData_v8(
        dnn->handle, algo->desc, a->lengths, layer->y, a->out, a->dout, layer->x, a->dx, layer->h,
        a->h0, a->dh, a->dh0, layer->c, a->c0, a->dc, a->dc0, algo->weight_bytes, a->weights,
        algo->work_bytes, work, algo->reserve_bytes, a->reserve));
    return dnn->call.cudnnRNNBackwardWeights_v8(
        dnn->handle, algo->desc, CUDNN_WGRAD_MODE_ADD, a->lengths, layer->x, a->x, layer->h, a->h0,
        layer->y, a->out, algo->weight_bytes, a->dweights, algo->work_bytes, work,
        algo->reserve_bytes, a->reserve);
}

typedef cudnnStatus_t (*run_fn)(const hl_cudnn *dnn, const hl_dnn_layer *layer,
                                const hl_dnn_recurrent_algo *algo, const hl_dnn_layer_args *args);

static hl_status run(hl_device *device, run_fn fn, const hl_dnn_layer *layer, int which,
                     const hl_dnn_layer_args *args, hl_stream *stream, bool *out_refused)
{
    hl_cudnn *dnn = hl_cuda_of(device)->cudnn;
    HL_TRY(hl_cuda_enter(device));
    hl_mutex_lock(&dnn->handle_lock);
    cudnnStatus_t status =
        dnn->call.cudnnSetStream(dnn->handle, hl_cuda_stream_handle(device, stream));
    if (status == CUDNN_STATUS_SUCCESS) status = fn(dnn, layer, &layer->algo[which], args);
    hl_mutex_unlock(&dnn->handle_lock);
    hl_status checked = hl_cudnn_check(dnn, status, "a recurrent layer");
    *out_refused = checked == HL_ERROR_DEVICE;
    hl_cuda_leave(device);
    return checked;
}

hl_status hl_dnn_layer_forward(hl_device *device, const hl_dnn_layer *layer, int which,
                               const hl_dnn_layer_args *args, hl_stream *stream, bool *out_refused)
{
    return run(device, run_forward, layer, which, args, stream, out_refused);
}

hl_status hl_dnn_layer_backward(hl_device *device, const hl_dnn_layer *layer, int which,
                                const hl_dnn_layer_args *args, hl_stream *stream, bool *out_refused)
{
    return run(device, run_backward, layer, which, args, stream, out_refused);
}
