#include "tests/cuda/fake_cudnn.h"

#include <stdlib.h>

#include "tests/cuda/fake_cudnn_desc.h"
#include "tests/cuda/fake_hooks.h"

#define HL_CUDNN_CALL(result, name, params) result name params;
#include "kernels/cuda/cudnn.def"
void hl_fake_dnn_reset(const hl_fake_dnn_config *config);
int64_t hl_fake_dnn_fail(int64_t k, bool sticky, int status);
int64_t hl_fake_dnn_live(void);
int64_t hl_fake_dnn_rnn_runs(int algo, bool is_forward);
hl_fake_dnn_counts hl_fake_dnn_get_counts(void);
void hl_fake_dnn_configure(const char *text);

/* ---- state ----------------------------------------------------------------------------------- */

enum { N_ENGINES = HL_FAKE_DNN_ENGINES, HANDLE = 0xD11, MAX_PROBLEMS = 4096 };

static hl_fake_dnn_config config;
static hl_fake_dnn_counts counts = {.last_engine = -1};
static bool is_loaded[N_ENGINES];
static int64_t n_varied; /* runs of an engine that varies */
static uint64_t problem_hash[MAX_PROBLEMS];

struct cudnnContext {
    int kind;
    CUstream stream;
};

void hl_fake_dnn_reset(const hl_fake_dnn_config *wanted)
{
    config = wanted ? *wanted : (hl_fake_dnn_config){0};
    int64_t live = counts.live;
    counts = (hl_fake_dnn_counts){.live = live, .last_engine = -1};
    memset(is_loaded, 0, sizeof is_loaded);
    n_varied = 0;
    fail_from(0, false, 0);
}

void hl_fake_dnn_configure(const char *text)
{
    hl_fake_dnn_config wanted = {.drops_nan = strcmp(text, "drops_nan=1") == 0,
                                 .has_no_steps = strcmp(text, "no_steps=1") == 0,
                                 .has_no_sums = strcmp(text, "no_sums=1") == 0,
                                 .runs_nothing = strcmp(text, "runs_nothing=1") == 0};
    double *ms = wanted.rnn_ms;
    bool of_layers = sscanf(text, "rnn_lacks=%u", &wanted.rnn_lacks) == 1 ||
                     sscanf(text, "rnn_refuses=%u", &wanted.rnn_refuses) == 1 ||
                     sscanf(text, "rnn_varies=%u", &wanted.rnn_varies) == 1 ||
                     sscanf(text, "rnn_ms=%lf,%lf,%lf,%lf", &ms[0], &ms[1], &ms[2], &ms[3]) == 4;
    if (*text && !wanted.drops_nan && !wanted.has_no_steps && !wanted.has_no_sums &&
        !wanted.runs_nothing && !of_layers)
        fprintf(stderr, "the fake cuDNN: not understood: %s\n", text);
    hl_fake_dnn_reset(&wanted);
}

int64_t hl_fake_dnn_fail(int64_t k, bool sticky, int status)
{
    return fail_from(k, sticky, status);
}

/* Of the counts, for Python. */
int64_t hl_fake_dnn_live(void)
{
    return counts.live;
}

int64_t hl_fake_dnn_rnn_runs(int algo, bool is_forward)
{
    return is_forward ? counts.forwards[algo] : counts.backwards[algo];
}

hl_fake_dnn_counts hl_fake_dnn_get_counts(void)
{
    return counts;
}

cudnnStatus_t hl_fake_dnn_complain(const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "cuDNN: %s", what);
    driver.complain(text);
    return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t hl_fake_dnn_begin(void)
{
    counts.calls++;
    return must_fail() ? failure.status : CUDNN_STATUS_SUCCESS;
}
#define CALL                                                                                       \
    do {                                                                                           \
        cudnnStatus_t status_ = hl_fake_dnn_begin();                                               \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                       \
    } while (0)

void hl_fake_dnn_count_live(int n)
{
    counts.live += n;
}

void hl_fake_dnn_count_rnn(int algo, bool is_forward)
{
    counts.forwards[algo] += is_forward;
    counts.backwards[algo] += !is_forward;
}

bool hl_fake_dnn_stream(cudnnHandle_t handle, CUstream *out_stream)
{
    bool is_there = handle && handle->kind == HANDLE;
    *out_stream = is_there ? handle->stream : NULL;
    return is_there;
}

const hl_fake_dnn_config *hl_fake_dnn_asked(void)
{
    return &config;
}

size_t cudnnGetVersion(void)
{
    return 92801;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
    }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    CALL;
    if (config.is_silent) return CUDNN_STATUS_NOT_INITIALIZED;
    if (!driver.has_context()) return hl_fake_dnn_complain("a handle without a context");
    *handle = calloc(1, sizeof **handle);
    (*handle)->kind = HANDLE;
    counts.live++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    if (!handle || handle->kind != HANDLE)
        return hl_fake_dnn_complain("a handle that was never made");
    handle->kind = 0;
    free(handle);
    counts.live--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    CALL;
    if (!handle || handle->kind != HANDLE) return hl_fake_dnn_complain("a stream without a handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what descriptors are ----------------------------------------------------------------- */

static desc *check(cudnnBackendDescriptor_t opaque, int type)
{
    desc *d = opaque;
    return d && d->magic == MAGIC && (type < 0 || d->type == type) ? d : NULL;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out_desc)
{
    CALL;
    desc *d = calloc(1, sizeof *d);
    d->magic = MAGIC, d->type = (int)type;
    counts.live++;
    *out_desc = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t opaque)
{
    desc *d = check(opaque, -1);
    if (!d) return hl_fake_dnn_complain("what is destroyed was never made");
    d->magic = 0;
    free(d);
    counts.live--;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* Which attributes a type of descriptor has: CUDNN_TYPE_*, and the least and the most elements. */
typedef struct attribute_row {
    int desc, name, type, least, most;
} attribute_row;
#define LINK(desc, name)                                                                           \
    {CUDNN_BACKEND_##desc, CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1}
#define CONVOLUTION(kind, name, a, b, c)                                                           \
    LINK(OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, OPERATION_CONVOLUTION_##name##_CONV_DESC),     \
        LINK(OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, OPERATION_CONVOLUTION_##name##_##a),       \
        LINK(OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, OPERATION_CONVOLUTION_##name##_##b),       \
        LINK(OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, OPERATION_CONVOLUTION_##name##_##c),       \
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR,                                  \
         CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_ALPHA, CUDNN_TYPE_FLOAT, 1, 1},                 \
    {                                                                                              \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR,                                   \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_BETA, CUDNN_TYPE_FLOAT, 1, 1                 \
    }
#define ATTENTION(kind, name)                                                                      \
    LINK(OPERATION_SDPA_##kind##_DESCRIPTOR, OPERATION_SDPA_##kind##_##name##DESC)
#define ATTENTION_WITHIN(kind)                                                                     \
    LINK(OPERATION_SDPA_##kind##_DESCRIPTOR, OPERATION_SDPA_##kind##_SUBGRAPH),                    \
        {CUDNN_BACKEND_OPERATION_SDPA_##kind##_DESCRIPTOR,                                         \
         CUDNN_ATTR_OPERATION_SDPA_##kind##_SUBGRAPH_INPUT_UID, CUDNN_TYPE_INT64, 1, 1},           \
    {                                                                                              \
        CUDNN_BACKEND_OPERATION_SDPA_##kind##_DESCRIPTOR,                                          \
            CUDNN_ATTR_OPERATION_SDPA_##kind##_SUBGRAPH_OUTPUT_UID, CUDNN_TYPE_INT64, 1, 1         \
    }
static const attribute_row attribute_rows[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 5},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 5},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1},
    ATTENTION(FWD, Q),
    ATTENTION(FWD, K),
    ATTENTION(FWD, V),
    ATTENTION(FWD, O),
    ATTENTION(FWD, STATS),
    ATTENTION(FWD, SCALE),
    ATTENTION_WITHIN(FWD),
    ATTENTION(BWD, Q),
    ATTENTION(BWD, K),
    ATTENTION(BWD, V),
    ATTENTION(BWD, O),
    ATTENTION(BWD, STATS),
    ATTENTION(BWD, SCALE),
    ATTENTION(BWD, DQ),
    ATTENTION(BWD, DK),
    ATTENTION(BWD, DV),
    ATTENTION(BWD, DOD),
    ATTENTION_WITHIN(BWD),
    LINK(OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, OPERATION_DIAGONAL_BAND_MASK_XDESC),
    LINK(OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, OPERATION_DIAGONAL_BAND_MASK_BDESC),
    LINK(OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, OPERATION_DIAGONAL_BAND_MASK_YDESC),
    {CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
     1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_TYPE_CONVOLUTION_MODE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1,
     1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2,
     3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64,
     2, 3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2,
     3},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64,
     2, 3},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
     1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
     1},
    CONVOLUTION(FORWARD, FORWARD, X, W, Y),
    CONVOLUTION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    CONVOLUTION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    LINK(OPERATION_POINTWISE_DESCRIPTOR, OPERATION_POINTWISE_PW_DESCRIPTOR),
    LINK(OPERATION_POINTWISE_DESCRIPTOR, OPERATION_POINTWISE_XDESC),
    LINK(OPERATION_POINTWISE_DESCRIPTOR, OPERATION_POINTWISE_BDESC),
    LINK(OPERATION_POINTWISE_DESCRIPTOR, OPERATION_POINTWISE_YDESC),
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_MODE,
     CUDNN_TYPE_GENSTATS_MODE, 1, 1},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC,
     CUDNN_TYPE_DATA_TYPE, 1, 1},
    LINK(OPERATION_GEN_STATS_DESCRIPTOR, OPERATION_GENSTATS_XDESC),
    LINK(OPERATION_GEN_STATS_DESCRIPTOR, OPERATION_GENSTATS_SUMDESC),
    LINK(OPERATION_GEN_STATS_DESCRIPTOR, OPERATION_GENSTATS_SQSUMDESC),
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 2 + MAX_STEPS},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
     1, 1},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
     CUDNN_TYPE_CHAR, 1, 4096},
    LINK(ENGINEHEUR_DESCRIPTOR, ENGINEHEUR_DEVICEPROP),
    LINK(EXECUTION_PLAN_DESCRIPTOR, EXECUTION_PLAN_DEVICEPROP),
    LINK(ENGINEHEUR_DESCRIPTOR, ENGINEHEUR_OPERATION_GRAPH),
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1},
    LINK(EXECUTION_PLAN_DESCRIPTOR, EXECUTION_PLAN_ENGINE_CONFIG),
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
     1, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1,
     MAX_TENSORS},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 1, MAX_TENSORS},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
     1, 1},
};

static size_t size_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64: return 8;
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE: return sizeof(void *);
    default: return 4; /* float, and enumerators */
    }
}

static const attribute *find(const desc *d, int name)
{
    for (int i = 0; i < d->n; i++)
        if (d->at[i].name == name) return &d->at[i];
    return NULL;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t opaque,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values)
{
    CALL;
    const size_t n_rows = sizeof attribute_rows / sizeof *attribute_rows;
    desc *d = check(opaque, -1);
    const attribute_row *row = attribute_rows, *end = row + n_rows;
    if (!d) return hl_fake_dnn_complain("an attribute of no descriptor");
    while (row < end && (row->desc != d->type || row->name != (int)name)) row++;
    if (row == end) return hl_fake_dnn_complain("an attribute that its descriptor has not");
    if (row->type != (int)type || n < row->least || n > row->most || !values)
        return hl_fake_dnn_complain("an attribute of another type or size");
    if (d->is_final) return hl_fake_dnn_complain("an attribute of what is finalized");
    if (find(d, name)) return hl_fake_dnn_complain("an attribute that is set twice");
    attribute *at = &d->at[d->n++];
    *at = (attribute){.name = (int)name, .type = (int)type, .n = n};
    if (type == CUDNN_TYPE_CHAR) return CUDNN_STATUS_SUCCESS; /* that it is there is all */
    memcpy(at->data, values, (size_t)n * size_of((int)type));
    for (int64_t i = 0; i < n && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++) {
        const desc *linked = check(((void **)at->data)[i], -1);
        if (!linked || !linked->is_final)
            return hl_fake_dnn_complain("a link to what is not finalized");
    }
    return CUDNN_STATUS_SUCCESS;
}

int64_t hl_fake_dnn_numbers(const desc *d, int name, int64_t *out)
{
    const attribute *at = find(d, name);
    for (int64_t i = 0; at && i < at->n; i++) {
        size_t bytes = size_of(at->type);
        int32_t word;
        memcpy(&word, at->data + (size_t)i * bytes, sizeof word);
        out[i] = bytes == 1 ? at->data[i] : bytes == 4 ? word : ((const int64_t *)at->data)[i];
    }
    return at ? at->n : 0;
}

const desc *hl_fake_dnn_link(const desc *d, int name, int type)
{
    const attribute *at = find(d, name);
    return at ? check(*(void *const *)at->data, type) : NULL;
}

/* ---- finalizing what describes a problem ----------------------------------------------------- */

static cudnnStatus_t finalize_tensor(desc *d)
{
    tensor *t = &d->as.tensor;
    t->rank = hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS, t->dim);
    if (!t->rank || hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_STRIDES, t->stride) != t->rank ||
        !hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, &t->id) ||
        !hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &t->align) ||
        !hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_DATA_TYPE, &t->type))
        return hl_fake_dnn_complain("a tensor that is not whole");
    (void)hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, &t->is_virtual);
    (void)hl_fake_dnn_numbers(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, &t->is_by_value);
    if (t->type != CUDNN_DATA_FLOAT && t->type != CUDNN_DATA_HALF && t->type != CUDNN_DATA_BFLOAT16)
        return hl_fake_dnn_complain("a tensor of another type");
    if (t->align < 1 || (t->align & (t->align - 1)) || (size_t)t->align < bytes_of(t->type))
        return hl_fake_dnn_complain("a tensor of no alignment");
    for (int64_t i = 0; i < t->rank; i++)
        if (t->dim[i] < 1 || t->stride[i] < 1) return hl_fake_dnn_complain("a tensor without size");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_geometry(desc *d)
{
    geometry *g = &d->as.geometry;
    int64_t compute = -1, mode = -1;
    hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &compute);
    hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, &mode);
    if (compute != CUDNN_DATA_FLOAT || mode != CUDNN_CROSS_CORRELATION ||
        !hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &g->n) ||
        hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, g->before) != g->n ||
        hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, g->after) != g->n ||
        hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, g->stride) != g->n ||
        hl_fake_dnn_numbers(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, g->dilation) != g->n)
        return hl_fake_dnn_complain("a convolution that is not whole");
    for (int64_t i = 0; i < g->n; i++)
        if (g->before[i] < 0 || g->after[i] < 0 || g->stride[i] < 1 || g->dilation[i] < 1)
            return hl_fake_dnn_complain("a convolution of no geometry");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_step(desc *d)
{
    int64_t compute = -1;
    hl_fake_dnn_numbers(d, CUDNN_ATTR_POINTWISE_MATH_PREC, &compute);
    if (!hl_fake_dnn_numbers(d, CUDNN_ATTR_POINTWISE_MODE, &d->as.mode) ||
        compute != CUDNN_DATA_FLOAT)
        return hl_fake_dnn_complain("a pointwise step that is not whole");
    return CUDNN_STATUS_SUCCESS;
}

static const int *find_names(int type)
{
    static const int forward[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
                     data[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
                     filter[] = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? forward
           : type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? data
                                                                                  : filter;
}

static cudnnStatus_t check_convolution(const operation *op)
{
    const geometry *g = &op->of;
    const tensor *x = &op->t[X], *w = &op->t[W], *y = &op->t[Y];
    if (x->rank != g->n + 2 || w->rank != x->rank || y->rank != x->rank)
        return hl_fake_dnn_complain("a convolution of tensors of other ranks");
    if (x->dim[0] != y->dim[0] || w->dim[0] != y->dim[1] || x->dim[1] % w->dim[1] ||
        y->dim[1] % (x->dim[1] / w->dim[1]))
        return hl_fake_dnn_complain("channels that do not fit");
    for (int64_t d = 0; d < g->n; d++) {
        int64_t reach =
            x->dim[d + 2] + g->before[d] + g->after[d] - g->dilation[d] * (w->dim[d + 2] - 1) - 1;
        if (reach < 0 || reach / g->stride[d] + 1 != y->dim[d + 2])
            return hl_fake_dnn_complain("a result of another size than the geometry gives");
    }
    for (int i = 0; i < 3; i++)
        if (op->t[i].stride[1] != 1) return hl_fake_dnn_complain("channels that do not stand last");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_convolution(desc *d)
{
    operation *op = &d->as.op;
    const int *names = find_names(d->type);
    const desc *link[4];
    const attribute *alpha = find(d, names[4]), *beta = find(d, names[5]);
    for (int i = 0; i < 3; i++)
        link[i] = hl_fake_dnn_link(d, names[i], CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    link[3] = hl_fake_dnn_link(d, names[3], CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    for (int i = 0; i < 4; i++)
        if (!link[i]) return hl_fake_dnn_complain("an operation that is not whole");
    if (!alpha || !beta || *(const float *)alpha->data != 1 || *(const float *)beta->data != 0)
        return hl_fake_dnn_complain("a convolution that is scaled");
    op->type = d->type, op->mode = -1;
    op->of = link[3]->as.geometry;
    for (int i = 0; i < 3; i++) op->t[i] = link[i]->as.tensor;
    return check_convolution(op);
}

static cudnnStatus_t finalize_pointwise(desc *d)
{
    operation *op = &d->as.op;
    const desc *p = hl_fake_dnn_link(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                     CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
               *x = hl_fake_dnn_link(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                     CUDNN_BACKEND_TENSOR_DESCRIPTOR),
               *b = hl_fake_dnn_link(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                     CUDNN_BACKEND_TENSOR_DESCRIPTOR),
               *y = hl_fake_dnn_link(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                                     CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (!p || !x || !y) return hl_fake_dnn_complain("a step that is not whole");
    op->type = d->type, op->mode = p->as.mode, op->reads = b != NULL;
    op->t[X] = x->as.tensor, op->t[Y] = y->as.tensor;
    if (b) op->t[W] = b->as.tensor;
    bool is_binary = op->mode < CUDNN_POINTWISE_RELU_FWD;
    if (is_binary != (b != NULL))
        return hl_fake_dnn_complain("a step of another number of operands");
    for (int64_t i = 0; i < x->as.tensor.rank; i++) {
        int64_t n = x->as.tensor.dim[i];
        if (y->as.tensor.dim[i] != n || (b && op->t[W].dim[i] != n && op->t[W].dim[i] != 1))
            return hl_fake_dnn_complain("a step of other shapes");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_sums(desc *d)
{
    operation *op = &d->as.op;
    static const int names[] = {CUDNN_ATTR_OPERATION_GENSTATS_XDESC,
                                CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC,
                                CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC};
    int64_t mode = -1, compute = -1;
    hl_fake_dnn_numbers(d, CUDNN_ATTR_OPERATION_GENSTATS_MODE, &mode);
    hl_fake_dnn_numbers(d, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, &compute);
    if (mode != CUDNN_GENSTATS_SUM_SQSUM || compute != CUDNN_DATA_FLOAT)
        return hl_fake_dnn_complain("sums that are not whole");
    op->type = d->type, op->mode = -1;
    for (int i = 0; i < 3; i++) {
        const desc *link = hl_fake_dnn_link(d, names[i], CUDNN_BACKEND_TENSOR_DESCRIPTOR);
        if (!link) return hl_fake_dnn_complain("sums of nothing, or nowhere");
        op->t[i] = link->as.tensor;
    }
    for (int i = W; i <= Y; i++) {
        bool fits = op->t[i].rank == op->t[X].rank && op->t[i].type == CUDNN_DATA_FLOAT &&
                    !op->t[i].is_virtual;
        for (int64_t k = 0; fits && k < op->t[X].rank; k++)
            fits = op->t[i].dim[k] == (k == 1 ? op->t[X].dim[1] : 1);
        if (!fits) return hl_fake_dnn_complain("sums of another shape or type");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* A convolution, each further operation on the result of the one before; what lies between is
 * nowhere in memory, what lies at the ends is. Sums of the result may come last. */
static cudnnStatus_t finalize_graph(desc *d)
{
    problem *p = &d->as.graph;
    const attribute *ops = find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const attribute *handle = find(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    if (!ops || (handle && (*(struct cudnnContext *const *)handle->data)->kind != HANDLE))
        return hl_fake_dnn_complain("a graph without operations, or of no handle");
    const desc *only = *(desc *const *)ops->data;
    p->attention = only->type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR ||
                           only->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR ||
                           only->type == CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR
                       ? only->as.attention
                       : (attention){.n = 0};
    if (p->attention.type)
        return ops->n == 1 ? CUDNN_STATUS_SUCCESS : hl_fake_dnn_complain("attention with others");
    p->n = ops->n;
    for (int64_t i = 0; i < ops->n; i++) {
        const desc *op = ((desc *const *)ops->data)[i];
        p->op[i] = op->as.op;
        if (i > 0 && i == ops->n - 1 && op->type == CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
            p->n--, p->has_sums = 1;
    }
    for (int64_t i = 0; i < p->n; i++) {
        const desc *op = ((desc *const *)ops->data)[i];
        bool is_step = op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
        if (is_step != (i > 0))
            return hl_fake_dnn_complain("a graph that is no convolution with steps");
        const tensor *result = &p->op[i].t[find_result(&p->op[i])];
        if (result->is_virtual != (i < p->n - 1))
            return hl_fake_dnn_complain("a result that is, or is not, in memory");
        if (i > 0 && p->op[i].t[X].id != p->op[i - 1].t[find_result(&p->op[i - 1])].id)
            return hl_fake_dnn_complain("a step on something else");
    }
    const operation *last = &p->op[p->n - 1];
    if (p->has_sums && p->op[p->n].t[X].id != last->t[find_result(last)].id)
        return hl_fake_dnn_complain("sums of something else");
    return CUDNN_STATUS_SUCCESS;
}

/* ---- engines --------------------------------------------------------------------------------- */

typedef struct engine_row {
    int64_t workspace, align;
    double ms;
    unsigned notes; /* a bit each */
    bool compiles, is_refused_early, is_refused_late;
} engine_row;
enum {
    TENSOR_CORE = 1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    DOWN_CONVERT = 1 << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
    REDUCED_SUMS = 1 << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
    VARIES = 1 << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
    FALLBACK_ENGINE = N_ENGINES - 1
};
/* In the order of the heuristics; the last is that of the fallback mode. */
static const engine_row engine_table[N_ENGINES] = {
    {0, 1, 1.0, 0, false, true, false},          /* is not there after all */
    {4096, 1, 1.0, 0, false, false, false},      /* the first that is */
    {0, 1, 0.1, 0, false, false, true},          /* refuses when it runs */
    {1 << 20, 16, 0.25, 0, false, false, false}, /* fastest, of aligned tensors */
    {0, 1, 0.01, REDUCED_SUMS, false, false, false},
    {0, 1, 0.02, TENSOR_CORE | DOWN_CONVERT, false, false, false}, /* TF32, of float32 operands */
    {0, 1, 0.2, VARIES, false, false, false},
    {(int64_t)1 << 30, 1, 0.01, 0, false, false, false}, /* wants too much */
    {0, 1, 0.8, 0, true, false, false},
    {64, 1, 0.9, 0, true, false, false},
    {0, 1, 4.0, 0, false, false, false},
};

static int64_t count_workspace(const problem *p, int i)
{
    bool is_plain = p->n == 1 && !p->has_sums;
    return engine_table[i].workspace + (is_plain ? config.plain_bytes : 0);
}

static bool is_there(const problem *p, int i, int64_t mode)
{
    const engine_row *row = &engine_table[i];
    if ((mode == CUDNN_HEUR_MODE_FALLBACK) != (i == FALLBACK_ENGINE)) return false;
    if ((p->n > 1 && config.has_no_steps) || (p->has_sums && config.has_no_sums)) return false;
    if (row->notes & DOWN_CONVERT && (!p->n || p->op[0].t[X].type != CUDNN_DATA_FLOAT))
        return false;
    for (int64_t a = 0; a < p->attention.n; a++)
        if (p->attention.arg[a].align < row->align) return false;
    for (int64_t o = 0; o < p->n + p->has_sums; o++)
        for (int t = 0; t < 3; t++)
            if (p->op[o].t[t].rank && p->op[o].t[t].align < row->align) return false;
    return true;
}

static uint64_t hash_problem(const problem *p)
{
    uint64_t hash = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < sizeof *p; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 0x100000001B3ull;
    return hash;
}

static void count_problem(const problem *p)
{
    uint64_t hash = hash_problem(p);
    for (int64_t i = 0; i < counts.problems; i++)
        if (problem_hash[i] == hash) return;
    if (counts.problems < MAX_PROBLEMS) problem_hash[counts.problems++] = hash;
}

static cudnnStatus_t finalize_heuristics(desc *d)
{
    int64_t mode;
    const desc *graph = hl_fake_dnn_link(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                         CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (!graph || !hl_fake_dnn_numbers(d, CUDNN_ATTR_ENGINEHEUR_MODE, &mode))
        return hl_fake_dnn_complain("heuristics of nothing");
    if (!hl_fake_dnn_link(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                          CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) &&
        !driver.has_context())
        return hl_fake_dnn_complain("a search without a context");
    d->as.graph = graph->as.graph;
    d->heur_mode = (int)mode;
    counts.searches++;
    if (mode == CUDNN_HEUR_MODE_A) count_problem(&d->as.graph);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_plan(desc *d)
{
    const desc *configuration = hl_fake_dnn_link(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                                 CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!configuration || !find(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ==
                              !find(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP))
        return hl_fake_dnn_complain(
            "a plan without an engine, or for neither a handle nor a description");
    d->as.graph = configuration->as.graph;
    d->engine = configuration->engine;
    if (engine_table[d->engine].is_refused_early) return CUDNN_STATUS_NOT_SUPPORTED;
    if (engine_table[d->engine].notes & REDUCED_SUMS)
        return hl_fake_dnn_complain("sums in 16 bits");
    counts.plans++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_pack(desc *d)
{
    const attribute *ids = find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                    *pointers = find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (!ids || !pointers || ids->n != pointers->n || !find(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE))
        return hl_fake_dnn_complain("a variant pack that is not whole");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize(desc *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return finalize_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return finalize_geometry(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR: return finalize_step(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return finalize_pointwise(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return finalize_convolution(d);
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR: return finalize_sums(d);
    case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR: return hl_fake_dnn_finalize_attention(d);
    case CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR: return hl_fake_dnn_finalize_band(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return finalize_heuristics(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return finalize_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return finalize_pack(d);
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
        return d->n ? CUDNN_STATUS_SUCCESS : hl_fake_dnn_complain("a description of nothing");
    default: return hl_fake_dnn_complain("a descriptor that nobody finalizes");
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t opaque)
{
    CALL;
    desc *d = check(opaque, -1);
    if (!d || d->is_final) return hl_fake_dnn_complain("what is finalized is nothing, or final");
    cudnnStatus_t status = finalize(d);
    d->is_final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int64_t put_word(void *values, int64_t n_asked, int64_t i, int32_t word)
{
    if (i < n_asked) ((int32_t *)values)[i] = word;
    return i + 1;
}

/* Configurations, in descriptors that the caller has made. */
static cudnnStatus_t get_results(const desc *heur, int64_t n_asked, int64_t *n, void *values)
{
    for (int i = 0; i < N_ENGINES; i++) {
        if (!is_there(&heur->as.graph, i, heur->heur_mode)) continue;
        if (*n < n_asked) {
            desc *to = check(((void **)values)[*n], CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
            if (!to || to->is_final) return hl_fake_dnn_complain("no room for a configuration");
            to->as.graph = heur->as.graph, to->engine = i, to->is_final = true;
        }
        ++*n;
    }
    if (n_asked && *n > n_asked) *n = n_asked;
    return CUDNN_STATUS_SUCCESS;
}

/* An engine has as many knobs as its number, two at most. */
static cudnnStatus_t get_knobs(const desc *d, int64_t n_asked, int64_t *n, void *values)
{
    for (*n = 0; *n < 2 && *n < d->engine && *n < n_asked; ++*n) {
        desc *to = check(((void **)values)[*n], CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        if (!to) return hl_fake_dnn_complain("no room for a knob");
        to->knob[0] = *n, to->knob[1] = 10 * d->engine + *n, to->is_final = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const opaque,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n_asked,
                                       int64_t *n, void *values)
{
    CALL;
    desc *d = check(opaque, -1), *to;
    (void)type;
    if (!d || !d->is_final) return hl_fake_dnn_complain("reading what is not finalized");
    const engine_row *row = &engine_table[d->engine];
    *n = 0;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return get_results(d, n_asked, n, values);
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: return get_knobs(d, n_asked, n, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        to = check(*(void **)values, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        if (!to) return hl_fake_dnn_complain("no room for an engine");
        to->engine = d->engine, to->is_final = true;
        *n = 1;
        break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: *(int64_t *)values = d->engine, *n = 1; break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        for (int bit = 0; bit < 16; bit++)
            if (row->notes >> bit & 1) *n = put_word(values, n_asked, *n, bit);
        break;
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        if (row->compiles)
            *n = put_word(values, n_asked, *n, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
        break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: *n = put_word(values, 1, 0, (int32_t)d->knob[0]); break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: *(int64_t *)values = d->knob[1], *n = 1; break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = count_workspace(&d->as.graph, d->engine), *n = 1;
        break;
    default: return hl_fake_dnn_complain("an attribute that nobody reads");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Where each tensor lies, by the variant pack. */
static cudnnStatus_t find_tensor(const tensor *t, const desc *pack, void **out_at)
{
    const attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                    *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t n = 1;
    for (int64_t i = 0; i < ids->n; i++)
        if (((const int64_t *)ids->data)[i] == t->id) *out_at = ((void *const *)pointers->data)[i];
    for (int64_t d = 0; d < t->rank; d++) n += (t->dim[d] - 1) * t->stride[d];
    if (!*out_at || !driver.is_device(*out_at, (size_t)n * bytes_of(t->type)))
        return hl_fake_dnn_complain("a tensor that is not in the GPU's memory");
    if ((uintptr_t)*out_at % (uintptr_t)t->align)
        return hl_fake_dnn_complain("a tensor that is less aligned than was said");
    return CUDNN_STATUS_SUCCESS;
}

/* A number in the host's memory; 0 where the problem has none. */
static cudnnStatus_t find_number(const tensor *t, const desc *pack, float *out)
{
    const attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                    *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const float *at = NULL;
    for (int64_t i = 0; t->rank && i < ids->n; i++)
        if (((const int64_t *)ids->data)[i] == t->id) at = ((void *const *)pointers->data)[i];
    if (t->rank && (!at || driver.is_device(at, sizeof *at)))
        return hl_fake_dnn_complain("a number by value that is not in the host's memory");
    *out = at ? *at : 0;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t find_memory(job *j, const desc *pack)
{
    const attention *a = &j->p.attention;
    if (find_number(&a->scale, pack, &j->scale) || find_number(&a->hidden, pack, &j->hidden))
        return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; i < a->n; i++) {
        cudnnStatus_t status = find_tensor(&a->arg[i], pack, &j->arg[i]);
        if (status != CUDNN_STATUS_SUCCESS) return status;
    }
    for (int64_t o = 0; o < j->p.n + j->p.has_sums; o++)
        for (int t = 0; t < 3; t++) {
            const tensor *of = &j->p.op[o].t[t];
            cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
            if (of->rank && !of->is_virtual) status = find_tensor(of, pack, &j->at[o][t]);
            if (status != CUDNN_STATUS_SUCCESS) return status;
        }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t find_workspace(job *j, const desc *pack)
{
    j->workspace = *(void *const *)find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->data;
    j->workspace_bytes = count_workspace(&j->p, j->engine);
    if (!j->workspace_bytes) return CUDNN_STATUS_SUCCESS;
    if ((uintptr_t)j->workspace % 16 || !driver.is_device(j->workspace, (size_t)j->workspace_bytes))
        return hl_fake_dnn_complain("a workspace that is not in the GPU's memory, or not aligned");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t load_engine(int i, CUstream stream)
{
    if (engine_table[i].is_refused_late || config.runs_nothing) return CUDNN_STATUS_NOT_SUPPORTED;
    if (driver.is_capturing(stream) && !is_loaded[i])
        return hl_fake_dnn_complain("an engine that would be loaded within a capture");
    is_loaded[i] = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t opaque_plan,
                                  cudnnBackendDescriptor_t opaque_pack)
{
    CALL;
    const desc *plan = check(opaque_plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
               *pack = check(opaque_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    if (!handle || handle->kind != HANDLE) return hl_fake_dnn_complain("a run without a handle");
    if (!driver.has_context()) return hl_fake_dnn_complain("a run without a context");
    if (!plan || !plan->is_final || !pack || !pack->is_final)
        return hl_fake_dnn_complain("a run of what is not finalized");
    job j = {.p = plan->as.graph, .engine = plan->engine, .drops_nan = config.drops_nan};
    j.is_rounded = engine_table[j.engine].notes & DOWN_CONVERT;
    cudnnStatus_t status = load_engine(j.engine, handle->stream);
    if (status == CUDNN_STATUS_SUCCESS) status = find_memory(&j, pack);
    if (status == CUDNN_STATUS_SUCCESS) status = find_workspace(&j, pack);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    counts.runs++;
    counts.last_engine = j.engine;
    counts.n_steps = (int)j.p.n - 1;
    counts.has_sums = j.p.has_sums;
    if (config.varying >> j.engine & 1) j.shift = ++n_varied;
    double ms = config.ms[j.engine] > 0 ? config.ms[j.engine] : engine_table[j.engine].ms;
    if (j.p.n > 1 || j.p.has_sums) ms += config.step_ms;
    return driver.submit(handle->stream, ms, hl_fake_dnn_run, &j, sizeof j)
               ? CUDNN_STATUS_EXECUTION_FAILED
               : CUDNN_STATUS_SUCCESS;
}
