/* Recurrent layers as the fake cuDNN knows them: one layer, one direction, rows of all steps, in
 * float32 sums by definition.
 *
 * Gates are numbered and weights of the standard algorithm lie as NVIDIA describes it: matrices of
 * the input, then those of the state, then the projection, then all biases. Other algorithms put a
 * gap behind each matrix and its bias beside it, so that whoever assumes a place finds something
 * else. A reserve says which algorithm made it and how far it is: gradients of weights want those
 * of the data before them, and a second backward pass finds it spent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake_cudnn.h"
#include "tests/cuda/fake_cudnn_job.h"
#include "tests/cuda/fake_hooks.h"

#define HL_CUDNN_CALL(result, name, params) result name params;
#include "kernels/cuda/cudnn.def"

enum { N_ALGOS = 4, TENSOR = 0x7E50, DROPOUT = 0xD0, RNN = 0x4E4E, DATA = 0xDA7A, MAX_DESC = 8 };
enum { HEADER = 64, GAP = 96, WORK = 1024 };

#define CALL                                                                                       \
    do {                                                                                           \
        cudnnStatus_t status_ = hl_fake_dnn_begin();                                               \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                       \
    } while (0)

/* ---- descriptors ----------------------------------------------------------------------------- */

struct cudnnTensorStruct {
    int magic, type, n, dim[MAX_DESC], stride[MAX_DESC];
};
struct cudnnDropoutStruct {
    int magic;
    bool is_set;
};
struct cudnnRNNStruct {
    int magic, algo, cell, bias, type, math;
    int64_t I, H, P, G;
    int64_t rows; /* it was built for; 0: it was not */
    bool is_set;
};
struct cudnnRNNDataStruct {
    int magic, type;
    int64_t T, N, size;
};

static cudnnStatus_t make(void **out, size_t bytes, int magic)
{
    *out = calloc(1, bytes);
    *(int *)*out = magic;
    hl_fake_dnn_count_live(1);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *desc, int magic)
{
    if (!desc || *(int *)desc != magic)
        return hl_fake_dnn_complain("what is destroyed was never made");
    *(int *)desc = 0;
    free(desc);
    hl_fake_dnn_count_live(-1);
    return CUDNN_STATUS_SUCCESS;
}

#define MADE_AND_DESTROYED(Name, type, magic)                                                      \
    cudnnStatus_t cudnnCreate##Name##Descriptor(type *desc)                                        \
    {                                                                                              \
        CALL;                                                                                      \
        return make((void **)desc, sizeof **desc, magic);                                          \
    }                                                                                              \
    cudnnStatus_t cudnnDestroy##Name##Descriptor(type desc)                                        \
    {                                                                                              \
        return destroy(desc, magic);                                                               \
    }
MADE_AND_DESTROYED(Tensor, cudnnTensorDescriptor_t, TENSOR)
MADE_AND_DESTROYED(Dropout, cudnnDropoutDescriptor_t, DROPOUT)
MADE_AND_DESTROYED(RNN, cudnnRNNDescriptor_t, RNN)
MADE_AND_DESTROYED(RNNData, cudnnRNNDataDescriptor_t, DATA)

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t desc, cudnnDataType_t type, int n,
                                         const int *dims, const int *strides)
{
    CALL;
    if (!desc || desc->magic != TENSOR || n < 3 || n > MAX_DESC)
        return hl_fake_dnn_complain("a tensor of no dims");
    desc->type = (int)type, desc->n = n;
    for (int i = 0; i < n; i++) {
        desc->dim[i] = dims[i], desc->stride[i] = strides[i];
        if (dims[i] < 1 || strides[i] < 1) return hl_fake_dnn_complain("a tensor without size");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t desc, int n_asked,
                                         cudnnDataType_t *type, int *n, int *dims, int *strides)
{
    CALL;
    if (!desc || desc->magic != TENSOR) return hl_fake_dnn_complain("reading no tensor");
    *type = desc->type, *n = desc->n;
    for (int i = 0; i < n_asked && i < desc->n; i++)
        dims[i] = desc->dim[i], strides[i] = desc->stride[i];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t desc, cudnnHandle_t handle,
                                        float p, void *states, size_t bytes,
                                        unsigned long long seed)
{
    CALL;
    CUstream stream;
    (void)seed;
    if (!hl_fake_dnn_stream(handle, &stream) || !desc || desc->magic != DROPOUT)
        return hl_fake_dnn_complain("dropout without a handle");
    if (p != 0 || states || bytes) return hl_fake_dnn_complain("dropout that is some");
    desc->is_set = true;
    return CUDNN_STATUS_SUCCESS;
}

static bool is_type(int type)
{
    return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(
    cudnnRNNDescriptor_t desc, cudnnRNNAlgo_t algo, cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
    cudnnDirectionMode_t direction, cudnnRNNInputMode_t input, cudnnDataType_t type,
    cudnnDataType_t precision, cudnnMathType_t math, int32_t input_size, int32_t hidden_size,
    int32_t projected_size, int32_t n_layers, cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    CALL;
    int math_type = (int)math;
    if (!desc || desc->magic != RNN || !dropout || dropout->magic != DROPOUT || !dropout->is_set)
        return hl_fake_dnn_complain("a recurrent layer without dropout's descriptor");
    if (direction != CUDNN_UNIDIRECTIONAL || input != CUDNN_LINEAR_INPUT || n_layers != 1 ||
        !is_type((int)type) || precision != CUDNN_DATA_FLOAT ||
        flags != CUDNN_RNN_PADDED_IO_ENABLED || input_size < 1 || hidden_size < 1 ||
        projected_size < 1 || projected_size > hidden_size ||
        (projected_size < hidden_size && cell != CUDNN_LSTM))
        return hl_fake_dnn_complain("a recurrent layer of another kind");
    if ((type != CUDNN_DATA_FLOAT) != (math_type == CUDNN_TENSOR_OP_MATH))
        return hl_fake_dnn_complain("a recurrent layer of another math");
    if (hl_fake_dnn_asked()->rnn_lacks >> algo & 1) return CUDNN_STATUS_NOT_SUPPORTED;
    if (algo != CUDNN_RNN_ALGO_STANDARD && projected_size < hidden_size)
        return CUDNN_STATUS_NOT_SUPPORTED;
    desc->algo = (int)algo, desc->cell = (int)cell, desc->bias = (int)bias;
    desc->type = (int)type, desc->math = math_type;
    desc->I = input_size, desc->H = hidden_size, desc->P = projected_size;
    desc->G = cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1;
    desc->is_set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t desc, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int most_steps, int rows,
                                        int size, const int *lengths, void *fill)
{
    CALL;
    if (!desc || desc->magic != DATA || !is_type((int)type) || most_steps < 1 || rows < 1 ||
        size < 1 || !fill || layout != CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED)
        return hl_fake_dnn_complain("steps of no kind");
    for (int n = 0; n < rows; n++)
        if (lengths[n] != most_steps) return hl_fake_dnn_complain("rows of other lengths");
    desc->type = (int)type, desc->T = most_steps, desc->N = rows, desc->size = size;
    return CUDNN_STATUS_SUCCESS;
}

static bool is_rnn(cudnnRNNDescriptor_t d)
{
    return d && d->magic == RNN && d->is_set;
}

cudnnStatus_t cudnnBuildRNNDynamic(cudnnHandle_t handle, cudnnRNNDescriptor_t desc, int rows)
{
    CALL;
    CUstream stream;
    if (!hl_fake_dnn_stream(handle, &stream) || !is_rnn(desc) ||
        desc->algo != CUDNN_RNN_ALGO_PERSIST_DYNAMIC)
        return hl_fake_dnn_complain("building what is not dynamic");
    desc->rows = rows;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- sizes and weights ----------------------------------------------------------------------- */

static bool has_bias(const struct cudnnRNNStruct *d, bool of_state)
{
    return d->bias == CUDNN_RNN_DOUBLE_BIAS ||
           d->bias == (of_state ? CUDNN_RNN_SINGLE_REC_BIAS : CUDNN_RNN_SINGLE_INP_BIAS);
}

static int64_t count_matrices(const struct cudnnRNNStruct *d)
{
    return 2 * d->G + (d->P < d->H);
}

static int64_t matrix_rows(const struct cudnnRNNStruct *d, int64_t number)
{
    return number == 2 * d->G ? d->P : d->H;
}

static int64_t matrix_columns(const struct cudnnRNNStruct *d, int64_t number)
{
    return number < d->G ? d->I : number < 2 * d->G ? d->P : d->H;
}

static bool bias_is_there(const struct cudnnRNNStruct *d, int64_t number)
{
    return number < 2 * d->G && has_bias(d, number >= d->G);
}

/* Where a matrix, or its bias, begins; past the last one: how many bytes there are. */
static size_t find_weight(const struct cudnnRNNStruct *d, int64_t number, bool bias)
{
    size_t at = 0, size = bytes_of(d->type);
    bool apart = d->algo != CUDNN_RNN_ALGO_STANDARD;
    int64_t n = count_matrices(d);
    for (int64_t i = 0; i < n && (apart || bias || number == n || i < number); i++) {
        size_t matrix = (size_t)(matrix_rows(d, i) * matrix_columns(d, i)) * size;
        if (apart && i == number) return bias ? at + matrix : at;
        at += matrix;
        if (apart) at += (size_t)d->H * size + GAP;
    }
    if (apart) return at;
    for (int64_t i = 0; i < n && (bias || number == n) && i < number; i++)
        if (bias_is_there(d, i)) at += (size_t)d->H * size;
    return at;
}

static size_t weight_bytes(const struct cudnnRNNStruct *d)
{
    return find_weight(d, count_matrices(d), false);
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t desc,
                                         size_t *bytes)
{
    CALL;
    CUstream stream;
    if (!hl_fake_dnn_stream(handle, &stream) || !is_rnn(desc))
        return hl_fake_dnn_complain("weights of no layer");
    *bytes = weight_bytes(desc);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t desc,
                                      int32_t layer, size_t bytes, const void *weights,
                                      int32_t number, cudnnTensorDescriptor_t matrix,
                                      void **matrix_at, cudnnTensorDescriptor_t bias,
                                      void **bias_at)
{
    CALL;
    CUstream stream;
    if (!hl_fake_dnn_stream(handle, &stream) || !is_rnn(desc) || layer != 0 ||
        bytes != weight_bytes(desc) || !weights || number < 0 || number >= count_matrices(desc) ||
        !matrix || matrix->magic != TENSOR || !bias || bias->magic != TENSOR)
        return hl_fake_dnn_complain("a matrix that the layer has not");
    char *space = (char *)(uintptr_t)weights;
    *matrix_at = space + find_weight(desc, number, false);
    matrix->type = desc->type, matrix->n = 3, matrix->dim[0] = 1;
    matrix->dim[1] = (int)matrix_rows(desc, number);
    matrix->dim[2] = (int)matrix_columns(desc, number);
    bool is_there = bias_is_there(desc, number);
    *bias_at = is_there ? space + find_weight(desc, number, true) : NULL;
    bias->type = desc->type, bias->n = is_there ? 3 : 0;
    bias->dim[0] = bias->dim[2] = 1, bias->dim[1] = (int)desc->H;
    return CUDNN_STATUS_SUCCESS;
}

/* Floats of a row's step in a reserve: gates, the cell or a GRU's product, gradients of gates, of
 * their products with the state, of a projected state. */
static int64_t step_floats(const struct cudnnRNNStruct *d)
{
    return 3 * d->G * d->H + d->H + d->P;
}

static size_t reserve_bytes(const struct cudnnRNNStruct *d, int64_t N, int64_t T)
{
    return HEADER + (size_t)(N * T * step_floats(d)) * sizeof(float) + 256 * (size_t)d->algo;
}

static size_t work_bytes(const struct cudnnRNNStruct *d)
{
    int64_t more = hl_fake_dnn_asked()->rnn_work_bytes;
    return (size_t)(d->algo == CUDNN_RNN_ALGO_PERSIST_STATIC ? 0 : WORK + more);
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t desc,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t *out_work, size_t *out_reserve)
{
    CALL;
    CUstream stream;
    if (!hl_fake_dnn_stream(handle, &stream) || !is_rnn(desc) || !x || x->magic != DATA ||
        x->size != desc->I)
        return hl_fake_dnn_complain("sizes of no layer");
    *out_work = work_bytes(desc);
    *out_reserve = mode == CUDNN_FWD_MODE_TRAINING ? reserve_bytes(desc, x->N, x->T) : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- computing ------------------------------------------------------------------------------- */

typedef enum part { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS } part;

typedef struct rnn_job {
    struct cudnnRNNStruct d;
    part part;
    bool trains, varies;
    int64_t N, T;
    const int32_t *lengths;
    const void *x, *hx, *cx, *y_in, *dy, *dhy, *dcy, *weights;
    void *y, *hy, *cy, *dx, *dhx, *dcx, *dweights, *work;
    char *reserve;
} rnn_job;

enum { MAX_UNITS = 512 };

typedef struct reserve_header {
    int32_t magic, algo, stage;
} reserve_header;

static float load(const rnn_job *j, const void *p, int64_t i)
{
    return p ? hl_fake_dnn_load(p, j->d.type, i) : 0;
}

static float load_weight(const rnn_job *j, int64_t number, int64_t row, int64_t column)
{
    return load(j, (const char *)j->weights + find_weight(&j->d, number, false),
                row * matrix_columns(&j->d, number) + column);
}

static float load_bias(const rnn_job *j, int64_t number, int64_t row)
{
    if (!bias_is_there(&j->d, number)) return 0;
    return load(j, (const char *)j->weights + find_weight(&j->d, number, true), row);
}

static float *find_step(const rnn_job *j, int64_t n, int64_t t)
{
    return (float *)(void *)(j->reserve + HEADER) + (n * j->T + t) * step_floats(&j->d);
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Unit `u` of a step, before any projection. gates, *aux: as in a reserve. */
static float run_unit(const rnn_job *j, int64_t at, const float *h, const float *c, int64_t u,
                      float *gates, float *aux)
{
    const struct cudnnRNNStruct *d = &j->d;
    float in[4], state[4];
    for (int64_t g = 0; g < d->G; g++) {
        in[g] = load_bias(j, g, u), state[g] = load_bias(j, d->G + g, u);
        for (int64_t i = 0; i < d->I; i++)
            in[g] += load_weight(j, g, u, i) * load(j, j->x, at * d->I + i);
        for (int64_t p = 0; p < d->P; p++) state[g] += load_weight(j, d->G + g, u, p) * h[p];
    }
    if (d->cell == CUDNN_RNN_TANH) return tanhf(in[0] + state[0]);
    if (d->cell == CUDNN_RNN_RELU) {
        float sum = in[0] + state[0];
        return sum > 0 || isnan(sum) ? sum : 0;
    }
    float gate[4] = {sigmoid(in[0] + state[0]), sigmoid(in[1] + state[1])}, result;
    if (d->cell == CUDNN_LSTM) {
        gate[2] = tanhf(in[2] + state[2]), gate[3] = sigmoid(in[3] + state[3]);
        *aux = gate[1] * c[u] + gate[0] * gate[2];
        result = gate[3] * tanhf(*aux);
    } else {
        gate[2] = tanhf(in[2] + gate[0] * state[2]);
        *aux = state[2];
        result = (1 - gate[1]) * gate[2] + gate[1] * h[u];
    }
    for (int64_t g = 0; g < d->G; g++) gates[g * d->H + u] = gate[g];
    return result;
}

static void run_row(const rnn_job *j, int64_t n)
{
    const struct cudnnRNNStruct *d = &j->d;
    float h[MAX_UNITS], c[MAX_UNITS], full[MAX_UNITS], kept[5 * MAX_UNITS];
    for (int64_t p = 0; p < d->P; p++) h[p] = load(j, j->hx, n * d->P + p);
    for (int64_t u = 0; u < d->H; u++) c[u] = load(j, j->cx, n * d->H + u);
    for (int64_t t = 0; t < j->T; t++) {
        float *gates = j->trains ? find_step(j, n, t) : kept, *aux = gates + d->G * d->H;
        for (int64_t u = 0; u < d->H; u++)
            full[u] = run_unit(j, n * j->T + t, h, c, u, gates, aux + u);
        for (int64_t u = 0; u < d->H && d->cell == CUDNN_LSTM; u++) c[u] = aux[u];
        for (int64_t p = 0; p < d->P; p++) {
            float sum = full[p];
            if (d->P < d->H) {
                sum = 0;
                for (int64_t u = 0; u < d->H; u++) sum += load_weight(j, 2 * d->G, p, u) * full[u];
            }
            hl_fake_dnn_store(j->y, d->type, (n * j->T + t) * d->P + p, sum);
        }
        for (int64_t p = 0; p < d->P; p++) h[p] = load(j, j->y, (n * j->T + t) * d->P + p);
    }
    for (int64_t p = 0; p < d->P && j->hy; p++)
        hl_fake_dnn_store(j->hy, d->type, n * d->P + p, h[p]);
    for (int64_t u = 0; u < d->H && j->cy; u++)
        hl_fake_dnn_store(j->cy, d->type, n * d->H + u, c[u]);
}

static float state_before(const rnn_job *j, int64_t n, int64_t t, int64_t p)
{
    if (t == 0) return load(j, j->hx, n * j->d.P + p);
    return load(j, j->y_in, (n * j->T + t - 1) * j->d.P + p);
}

/* What a unit's gates get: dz, and of their products with the state: hidden. */
static void run_unit_back(const rnn_job *j, int64_t n, int64_t t, int64_t u, float dh, float *dc,
                          float *dz, float *hidden, float *kept)
{
    const struct cudnnRNNStruct *d = &j->d;
    const float *gates = find_step(j, n, t), *aux = gates + d->G * d->H;
    float gate[4] = {0};
    for (int64_t g = 0; g < d->G; g++) gate[g] = gates[g * d->H + u];
    *kept = 0;
    if (d->cell == CUDNN_LSTM) {
        float top = tanhf(aux[u]),
              before = t ? (find_step(j, n, t - 1) + d->G * d->H)[u] : load(j, j->cx, n * d->H + u);
        float cell = *dc + dh * gate[3] * (1 - top * top);
        dz[0] = cell * gate[2] * gate[0] * (1 - gate[0]);
        dz[1] = cell * before * gate[1] * (1 - gate[1]);
        dz[2] = cell * gate[0] * (1 - gate[2] * gate[2]);
        dz[3] = dh * top * gate[3] * (1 - gate[3]);
        *dc = cell * gate[1];
    } else if (d->cell == CUDNN_GRU) {
        dz[1] = dh * (state_before(j, n, t, u) - gate[2]) * gate[1] * (1 - gate[1]);
        dz[2] = dh * (1 - gate[1]) * (1 - gate[2] * gate[2]);
        dz[0] = dz[2] * aux[u] * gate[0] * (1 - gate[0]);
        *kept = dh * gate[1];
    } else {
        float y = load(j, j->y_in, (n * j->T + t) * d->P + u);
        dz[0] = d->cell == CUDNN_RNN_TANH ? dh * (1 - y * y) : y > 0 ? dh : 0;
    }
    for (int64_t g = 0; g < d->G; g++) hidden[g] = dz[g];
    if (d->cell == CUDNN_GRU) hidden[2] = dz[2] * gate[0];
}

static void run_row_back(const rnn_job *j, int64_t n)
{
    const struct cudnnRNNStruct *d = &j->d;
    float dh[MAX_UNITS], dc[MAX_UNITS], full[MAX_UNITS], next[MAX_UNITS];
    for (int64_t p = 0; p < d->P; p++) dh[p] = load(j, j->dhy, n * d->P + p);
    for (int64_t u = 0; u < d->H; u++) dc[u] = load(j, j->dcy, n * d->H + u);
    for (int64_t t = j->T - 1; t >= 0; t--) {
        float *dz = find_step(j, n, t) + d->G * d->H + d->H, *hidden = dz + d->G * d->H,
              *projected = hidden + d->G * d->H;
        for (int64_t p = 0; p < d->P; p++)
            projected[p] = dh[p] + load(j, j->dy, (n * j->T + t) * d->P + p);
        for (int64_t u = 0; u < d->H; u++) {
            full[u] = d->P == d->H ? projected[u] : 0;
            for (int64_t p = 0; p < d->P && d->P < d->H; p++)
                full[u] += load_weight(j, 2 * d->G, p, u) * projected[p];
        }
        memset(next, 0, sizeof next);
        for (int64_t u = 0; u < d->H; u++) {
            float of_gate[4], of_hidden[4], kept;
            run_unit_back(j, n, t, u, full[u], &dc[u], of_gate, of_hidden, &kept);
            next[u] += kept;
            for (int64_t g = 0; g < d->G; g++)
                dz[g * d->H + u] = of_gate[g], hidden[g * d->H + u] = of_hidden[g];
        }
        for (int64_t p = 0; p < d->P; p++) {
            dh[p] = next[p];
            for (int64_t g = 0; g < d->G; g++)
                for (int64_t u = 0; u < d->H; u++)
                    dh[p] += load_weight(j, d->G + g, u, p) * hidden[g * d->H + u];
        }
        for (int64_t i = 0; i < d->I; i++) {
            float sum = 0;
            for (int64_t g = 0; g < d->G; g++)
                for (int64_t u = 0; u < d->H; u++)
                    sum += load_weight(j, g, u, i) * dz[g * d->H + u];
            hl_fake_dnn_store(j->dx, d->type, (n * j->T + t) * d->I + i, sum);
        }
    }
    for (int64_t p = 0; p < d->P && j->dhx; p++)
        hl_fake_dnn_store(j->dhx, d->type, n * d->P + p, dh[p]);
    for (int64_t u = 0; u < d->H && j->dcx; u++)
        hl_fake_dnn_store(j->dcx, d->type, n * d->H + u, dc[u]);
}

static void add_to(const rnn_job *j, size_t at, int64_t i, float sum)
{
    char *to = (char *)j->dweights + at;
    hl_fake_dnn_store(to, j->d.type, i, hl_fake_dnn_load(to, j->d.type, i) + sum);
}

/* Of row `u` of matrix `number`, the factor that step (n,t) gives; and of its column. */
static float row_factor(const rnn_job *j, int64_t number, int64_t n, int64_t t, int64_t u)
{
    const struct cudnnRNNStruct *d = &j->d;
    const float *dz = find_step(j, n, t) + d->G * d->H + d->H, *hidden = dz + d->G * d->H;
    if (number == 2 * d->G) return hidden[d->G * d->H + u];
    return number < d->G ? dz[number * d->H + u] : hidden[(number - d->G) * d->H + u];
}

static float column_factor(const rnn_job *j, int64_t number, int64_t n, int64_t t, int64_t k)
{
    const struct cudnnRNNStruct *d = &j->d;
    if (number < d->G) return load(j, j->x, (n * j->T + t) * d->I + k);
    if (number < 2 * d->G) return state_before(j, n, t, k);
    const float *gates = find_step(j, n, t);
    return gates[3 * d->H + k] * tanhf(gates[d->G * d->H + k]);
}

static void add_weights(const rnn_job *j)
{
    const struct cudnnRNNStruct *d = &j->d;
    int64_t rows = j->N * j->T;
    for (int64_t number = 0; number < count_matrices(d); number++)
        for (int64_t u = 0; u < matrix_rows(d, number); u++) {
            int64_t columns = matrix_columns(d, number);
            for (int64_t k = 0; k < columns; k++) {
                float sum = j->varies ? 1e-3f * (float)(rand() % 100) : 0;
                for (int64_t r = 0; r < rows; r++)
                    sum += row_factor(j, number, r / j->T, r % j->T, u) *
                           column_factor(j, number, r / j->T, r % j->T, k);
                add_to(j, find_weight(d, number, false), u * columns + k, sum);
            }
            if (!bias_is_there(d, number)) continue;
            float sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += row_factor(j, number, r / j->T, r % j->T, u);
            add_to(j, find_weight(d, number, true), u, sum);
        }
}

/* A stream's work. */
static const char *run_rnn(void *context)
{
    const rnn_job *j = context;
    reserve_header *header = (reserve_header *)(void *)j->reserve;
    if (work_bytes(&j->d)) memset(j->work, 0xFF, work_bytes(&j->d));
    for (int64_t n = 0; n < j->N; n++)
        if (j->lengths[n] != j->T) return "cuDNN: lengths on the GPU that are not the host's";
    if (j->trains && j->part != FORWARD &&
        (header->magic != RNN || header->algo != j->d.algo || header->stage != (int)j->part - 1))
        return "cuDNN: a reserve of another algorithm, or spent";
    if (j->part == BACKWARD_WEIGHTS) add_weights(j);
    for (int64_t n = 0; n < j->N && j->part == FORWARD; n++) run_row(j, n);
    for (int64_t n = 0; n < j->N && j->part == BACKWARD_DATA; n++) run_row_back(j, n);
    if (j->trains) *header = (reserve_header){RNN, j->d.algo, (int)j->part};
    return NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

static bool lies(const void *p, size_t bytes)
{
    return p && (uintptr_t)p % 16 == 0 && driver.is_device(p, bytes);
}

static bool is_state(cudnnTensorDescriptor_t t, const rnn_job *j, int64_t columns)
{
    return t && t->magic == TENSOR && t->n == 3 && t->type == j->d.type && t->dim[0] == 1 &&
           t->dim[1] == j->N && t->dim[2] == columns && t->stride[1] == columns;
}

/* Everything that all three calls are given. */
static cudnnStatus_t check(rnn_job *j, cudnnRNNDescriptor_t desc, cudnnRNNDataDescriptor_t x,
                           cudnnRNNDataDescriptor_t y, cudnnTensorDescriptor_t h,
                           cudnnTensorDescriptor_t c, size_t n_weights, size_t n_work,
                           size_t n_reserve)
{
    if (!is_rnn(desc) || !x || x->magic != DATA || !y || y->magic != DATA)
        return hl_fake_dnn_complain("a run of no layer");
    j->d = *desc, j->N = x->N, j->T = x->T;
    size_t size = bytes_of(desc->type), rows = (size_t)(j->N * j->T);
    bool is_lstm = desc->cell == CUDNN_LSTM;
    if (x->size != desc->I || y->size != desc->P || y->N != x->N || y->T != x->T ||
        x->type != desc->type || y->type != desc->type || !is_state(h, j, desc->P) ||
        (is_lstm && j->part != BACKWARD_WEIGHTS && !is_state(c, j, desc->H)) || (!is_lstm && c))
        return hl_fake_dnn_complain("a run of other sizes");
    if (desc->H > MAX_UNITS) return CUDNN_STATUS_NOT_SUPPORTED;
    if (n_weights != weight_bytes(desc) || n_work != work_bytes(desc) ||
        n_reserve != (j->trains ? reserve_bytes(desc, j->N, j->T) : 0))
        return hl_fake_dnn_complain("spaces of other sizes");
    if (!lies(j->part == BACKWARD_WEIGHTS ? j->dweights : j->weights, n_weights) ||
        (n_work && !lies(j->work, n_work)) || (n_reserve && !lies(j->reserve, n_reserve)) ||
        !lies(j->lengths, (size_t)j->N * 4))
        return hl_fake_dnn_complain("spaces that are not in the GPU's memory");
    const struct {
        const void *at;
        size_t n;
        bool wanted;
    } tensors[] = {{j->x, rows * (size_t)desc->I * size, j->part != BACKWARD_DATA},
                   {j->part == FORWARD ? j->y : j->y_in, rows * (size_t)desc->P * size, true},
                   {j->dy, rows * (size_t)desc->P * size, j->part == BACKWARD_DATA},
                   {j->dx, rows * (size_t)desc->I * size, j->part == BACKWARD_DATA}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (tensors[i].wanted && !lies(tensors[i].at, tensors[i].n))
            return hl_fake_dnn_complain("steps that are not in the GPU's memory");
    const void *const states[] = {j->hx, j->hy, j->dhy, j->dhx};
    const void *const cells[] = {j->cx, j->cy, j->dcy, j->dcx};
    for (int i = 0; i < 4; i++)
        if ((states[i] && !lies(states[i], (size_t)(j->N * desc->P) * size)) ||
            (cells[i] && !lies(cells[i], (size_t)(j->N * desc->H) * size)))
            return hl_fake_dnn_complain("states that are not in the GPU's memory");
    if (desc->algo == CUDNN_RNN_ALGO_PERSIST_DYNAMIC && desc->rows != j->N)
        return hl_fake_dnn_complain("a dynamic layer that was not built for so many rows");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t submit(cudnnHandle_t handle, rnn_job *j)
{
    static const double usual[N_ALGOS] = {0.4, 0.3, 0.5, 0.1};
    const hl_fake_dnn_config *asked = hl_fake_dnn_asked();
    int algo = j->d.algo;
    CUstream stream;
    if (!hl_fake_dnn_stream(handle, &stream) || !driver.has_context())
        return hl_fake_dnn_complain("a run without a handle or a context");
    if (asked->runs_nothing || asked->rnn_refuses >> algo & 1) return CUDNN_STATUS_NOT_SUPPORTED;
    /* Of small states: on a stream of its own, which a capture does not know. */
    if (driver.is_capturing(stream) && algo == CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H)
        return CUDNN_STATUS_EXECUTION_FAILED;
    j->varies = asked->rnn_varies >> algo & 1;
    hl_fake_dnn_count_rnn(algo, j->part == FORWARD);
    double ms = asked->rnn_ms[algo] > 0 ? asked->rnn_ms[algo] : usual[algo];
    return driver.submit(stream, ms, run_rnn, j, sizeof *j) ? CUDNN_STATUS_EXECUTION_FAILED
                                                            : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t desc,
                              cudnnForwardMode_t mode, const int32_t *lengths,
                              cudnnRNNDataDescriptor_t x_desc, const void *x,
                              cudnnRNNDataDescriptor_t y_desc, void *y,
                              cudnnTensorDescriptor_t h_desc, const void *hx, void *hy,
                              cudnnTensorDescriptor_t c_desc, const void *cx, void *cy,
                              size_t n_weights, const void *weights, size_t n_work, void *work,
                              size_t n_reserve, void *reserve)
{
    CALL;
    rnn_job j = {.part = FORWARD, .trains = mode == CUDNN_FWD_MODE_TRAINING, .lengths = lengths};
    j.x = x, j.y = y, j.hx = hx, j.hy = hy, j.cx = cx, j.cy = cy;
    j.weights = weights, j.work = work, j.reserve = reserve;
    cudnnStatus_t status =
        check(&j, desc, x_desc, y_desc, h_desc, c_desc, n_weights, n_work, n_reserve);
    return status == CUDNN_STATUS_SUCCESS ? submit(handle, &j) : status;
}

cudnnStatus_t cudnnRNNBackwardData_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t desc, const int32_t *lengths,
    cudnnRNNDataDescriptor_t y_desc, const void *y, const void *dy, cudnnRNNDataDescriptor_t x_desc,
    void *dx, cudnnTensorDescriptor_t h_desc, const void *hx, const void *dhy, void *dhx,
    cudnnTensorDescriptor_t c_desc, const void *cx, const void *dcy, void *dcx, size_t n_weights,
    const void *weights, size_t n_work, void *work, size_t n_reserve, void *reserve)
{
    CALL;
    rnn_job j = {.part = BACKWARD_DATA, .trains = true, .lengths = lengths};
    j.y_in = y, j.dy = dy, j.dx = dx, j.hx = hx, j.dhy = dhy, j.dhx = dhx;
    j.cx = cx, j.dcy = dcy, j.dcx = dcx, j.weights = weights, j.work = work, j.reserve = reserve;
    cudnnStatus_t status =
        check(&j, desc, x_desc, y_desc, h_desc, c_desc, n_weights, n_work, n_reserve);
    return status == CUDNN_STATUS_SUCCESS ? submit(handle, &j) : status;
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t desc,
                                         cudnnWgradMode_t mode, const int32_t *lengths,
                                         cudnnRNNDataDescriptor_t x_desc, const void *x,
                                         cudnnTensorDescriptor_t h_desc, const void *hx,
                                         cudnnRNNDataDescriptor_t y_desc, const void *y,
                                         size_t n_weights, void *dweights, size_t n_work,
                                         void *work, size_t n_reserve, void *reserve)
{
    CALL;
    rnn_job j = {.part = BACKWARD_WEIGHTS, .trains = true, .lengths = lengths};
    if (mode != CUDNN_WGRAD_MODE_ADD) return CUDNN_STATUS_NOT_SUPPORTED;
    j.x = x, j.hx = hx, j.y_in = y, j.dweights = dweights, j.work = work, j.reserve = reserve;
    cudnnStatus_t status =
        check(&j, desc, x_desc, y_desc, h_desc, NULL, n_weights, n_work, n_reserve);
    return status == CUDNN_STATUS_SUCCESS ? submit(handle, &j) : status;
}
