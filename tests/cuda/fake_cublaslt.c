#include "tests/cuda/fake_cublaslt.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/cublaslt_types.h"
#include "tests/cuda/fake_hooks.h"
#include "tests/cuda/fake_numbers.h"

#define HL_CUBLASLT_CALL(result, name, params) result name params;
#include "kernels/cuda/cublaslt.def"
void hl_fake_lt_reset(const hl_fake_lt_config *config);
int64_t hl_fake_lt_fail(int64_t k, bool sticky, int status);
int64_t hl_fake_lt_live(void);
hl_fake_lt_counts hl_fake_lt_get_counts(void);
void hl_fake_lt_configure(const char *text);

/* ---- state ----------------------------------------------------------------------------------- */

enum { N_ALGOS = 7, MAGIC = 0x4C54 };

static hl_fake_lt_config config;
static hl_fake_lt_counts counts = {.last_algo = -1};
static bool is_loaded[N_ALGOS];
static double worked_ms; /* since reset */
static int64_t n_varied; /* products of an algorithm that varies */
enum { MAX_PROBLEMS = 4096 };
static uint64_t problem_hash[MAX_PROBLEMS]; /* counts.problems of them */

struct cublasLtContext {
    int kind;
};
struct hl_cublaslt_desc {
    int kind;
    cublasComputeType_t compute;
    int32_t trans_a, trans_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};
struct hl_cublaslt_layout {
    int kind;
    cudaDataType_t type;
    int64_t rows, cols, ld, stride;
    int32_t batch;
};
struct hl_cublaslt_preference {
    int kind;
    uint64_t workspace;
    uint32_t schemes, align[4];
};
enum { HANDLE = 0x11, DESC, LAYOUT, PREFERENCE };

void hl_fake_lt_reset(const hl_fake_lt_config *wanted)
{
    config = wanted ? *wanted : (hl_fake_lt_config){0};
    int64_t live = counts.live;
    counts = (hl_fake_lt_counts){.live = live, .last_algo = -1};
    memset(is_loaded, 0, sizeof is_loaded);
    worked_ms = 0, n_varied = 0;
    fail_from(0, false, 0);
}

void hl_fake_lt_configure(const char *text)
{
    hl_fake_lt_config wanted = {0};
    wanted.drops_nan = strcmp(text, "drops_nan=1") == 0;
    if (!wanted.drops_nan && sscanf(text, "failing=%d", &wanted.failing[0]) != 1 &&
        sscanf(text, "slow=%d:%lf", &wanted.slow_epilogue, &wanted.slowness) != 2 && *text)
        fprintf(stderr, "the fake cuBLASLt: not understood: %s\n", text);
    hl_fake_lt_reset(&wanted);
}

int64_t hl_fake_lt_fail(int64_t k, bool sticky, int status)
{
    return fail_from(k, sticky, status);
}

/* Of the counts, for Python. */
int64_t hl_fake_lt_live(void)
{
    return counts.live;
}

hl_fake_lt_counts hl_fake_lt_get_counts(void)
{
    return counts;
}

static cublasStatus_t complain(const char *what)
{
    char text[160];
    snprintf(text, sizeof text, "cuBLASLt: %s", what);
    driver.complain(text);
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* Every call that may fail. */
#define CALL                                                                                       \
    counts.calls++;                                                                                \
    if (must_fail()) return failure.status

/* ---- objects --------------------------------------------------------------------------------- */

static void *make(size_t bytes, int kind)
{
    int *object = calloc(1, bytes);
    *object = kind;
    counts.live++;
    return object;
}

static cublasStatus_t drop(void *object, int kind)
{
    if (!object || *(int *)object != kind) return complain("what is destroyed was never made");
    *(int *)object = 0;
    free(object);
    counts.live--;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case 0: return "CUBLAS_STATUS_SUCCESS";
    case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7: return "CUBLAS_STATUS_INVALID_VALUE";
    case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    CALL;
    if (config.is_silent) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!driver.has_context()) return complain("a handle without a context");
    *handle = make(sizeof **handle, HANDLE);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle, HANDLE);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    CALL;
    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
        scale != CUDA_R_32F)
        return complain("a product that is not summed in float32");
    *desc = make(sizeof **desc, DESC);
    (*desc)->compute = compute;
    (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return drop(desc, DESC);
}

static cublasStatus_t set_field(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (!value || bytes != field_bytes) return complain("an attribute of another size");
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define FIELD(object, name) set_field(&(object)->name, sizeof(object)->name, value, bytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    CALL;
    if (desc->kind != DESC) return complain("not a product");
    switch ((int)attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return FIELD(desc, trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB: return FIELD(desc, trans_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return FIELD(desc, epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return FIELD(desc, bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return FIELD(desc, aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return FIELD(desc, aux_ld);
    default: return complain("an attribute of products that is not known");
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    CALL;
    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF)
        return complain("a layout of an unknown type");
    if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX || ld < (int64_t)rows)
        return complain("a layout whose columns overlap, or of no size");
    *layout = make(sizeof **layout, LAYOUT);
    (*layout)->type = type, (*layout)->batch = 1;
    (*layout)->rows = (int64_t)rows, (*layout)->cols = (int64_t)cols, (*layout)->ld = ld;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout, LAYOUT);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    CALL;
    if (layout->kind != LAYOUT) return complain("not a layout");
    switch ((int)attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return FIELD(layout, batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return FIELD(layout, stride);
    default: return complain("an attribute of layouts that is not known");
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    CALL;
    *preference = make(sizeof **preference, PREFERENCE);
    (*preference)->schemes = 7;
    for (int i = 0; i < 4; i++) (*preference)->align[i] = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference, PREFERENCE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    CALL;
    if (preference->kind != PREFERENCE) return complain("not a preference");
    switch ((int)attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return FIELD(preference, workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return FIELD(preference, schemes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return FIELD(preference, align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return FIELD(preference, align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return FIELD(preference, align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return FIELD(preference, align[3]);
    default: return complain("an attribute of preferences that is not known");
    }
}

/* ---- problems -------------------------------------------------------------------------------- */

typedef struct problem {
    struct hl_cublaslt_desc desc;
    struct hl_cublaslt_layout a, b, d;
    int64_t m, n, k;
} problem;

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* What epilogues are made of: the library's own bits. */
enum { RELU = 2, BIAS = 4, DRELU = 8, BGRAD = 16, GELU = 32, DGELU = 64, AUX = 128 };

static bool is_known(uint32_t e)
{
    uint32_t act = e & (RELU | GELU), back = e & (DRELU | DGELU);
    if (e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BGRADA ||
        e == CUBLASLT_EPILOGUE_BGRADB)
        return true;
    if (e >> 8 || e & 1 || act == (RELU | GELU) || back == (DRELU | DGELU)) return false;
    if (back) return !act && e & AUX && !(e & BIAS);
    return !(e & BGRAD) && (act || e == BIAS);
}
static bool has_sums(uint32_t e)
{
    return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}
static bool has_part(uint32_t e, uint32_t part)
{
    return e < CUBLASLT_EPILOGUE_BGRADA && e & part;
}
static bool has_vector(uint32_t e)
{
    return has_sums(e) || has_part(e, BIAS | BGRAD);
}
static bool has_mask(uint32_t e)
{
    return has_part(e, AUX) && has_part(e, RELU | DRELU);
}

/* The table of types in cuBLAS's manual, as far as sums are float32. */
static cublasStatus_t check_types(const problem *p)
{
    cudaDataType_t in = p->a.type, out = p->d.type;
    if (p->b.type != in) return complain("operands of two types");
    if (out != in && out != CUDA_R_32F) return complain("a result of another 16-bit type");
    if (p->desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && in != CUDA_R_32F)
        return complain("TF32 of operands that are not float32");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const problem *p)
{
    uint32_t e = p->desc.epilogue;
    uintptr_t aux = (uintptr_t)p->desc.aux;
    if (!is_known(e)) return complain("an epilogue that is not known");
    if (has_part(e, AUX) && p->desc.aux_ld < p->m) return complain("an aux whose columns overlap");
    if (has_mask(e) && p->desc.aux_ld % 128)
        return complain("a mask whose leading dim is not whole 128 bits of a column");
    if (has_part(e, AUX) && aux % 16) return complain("an aux matrix that is not at 16 bytes");
    if (has_part(e, AUX) && p->desc.aux_ld % 8)
        return complain("an aux matrix whose leading dim is not divisible by 8");
    if (has_part(e, AUX) && !aux) return complain("an aux of unknown alignment");
    if (has_vector(e) && (uintptr_t)p->desc.bias % 16)
        return complain("a bias or sums that are not at 16 bytes");
    if (p->d.batch > 1 && (has_part(e, AUX) || has_sums(e))) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof config.refused / sizeof *config.refused; i++)
        if (e == (uint32_t)config.refused[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_batch(const problem *p)
{
    int32_t n = p->d.batch;
    if (p->a.batch != n || p->b.batch != n || n < 1) return complain("batches of several sizes");
    if (n > 1 && p->d.stride < p->m * p->n) return complain("results that overlap");
    if (n > 1 && (p->a.stride < 0 || p->b.stride < 0)) return complain("a batch that goes back");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t make_problem(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                   cublasLtMatrixLayout_t d, problem *p)
{
    memset(p, 0, sizeof *p);
    if (desc->kind != DESC || a->kind != LAYOUT || b->kind != LAYOUT || c->kind != LAYOUT ||
        d->kind != LAYOUT)
        return complain("a product of things that are no descriptors");
    if (c != d) return complain("a summand that is not the result");
    p->desc = *desc, p->a = *a, p->b = *b, p->d = *d;
    p->m = desc->trans_a ? a->cols : a->rows, p->k = desc->trans_a ? a->rows : a->cols;
    p->n = desc->trans_b ? b->rows : b->cols;
    if ((desc->trans_b ? b->cols : b->rows) != p->k || d->rows != p->m || d->cols != p->n)
        return complain("matrices that do not fit");
    cublasStatus_t status = check_types(p);
    if (status == CUBLAS_STATUS_SUCCESS) status = check_batch(p);
    return status == CUBLAS_STATUS_SUCCESS ? check_epilogue(p) : status;
}

/* What an algorithm was asked for: all but the pointers. */
static uint64_t describe(problem p)
{
    p.desc.bias = NULL, p.desc.aux = NULL;
    uint64_t hash = 0xCBF29CE484222325ull;
    for (size_t i = 0; i < sizeof p; i++)
        hash = (hash ^ ((unsigned char *)&p)[i]) * 0x100000001B3ull;
    return hash;
}

/* ---- algorithms ------------------------------------------------------------------------------ */

typedef struct algo_row {
    size_t workspace;
    uint32_t align, scheme;
    double ms;
    bool is_refused; /* when it runs */
} algo_row;
static const algo_row algo_table[N_ALGOS] = {
    {0, 1, 0, 1.0, false},      {1 << 20, 1, 2, 0.5, false},   {0, 1, 0, 0.1, true},
    {4096, 16, 2, 0.25, false}, {64 << 20, 1, 2, 0.01, false}, {0, 1, 1, 0.01, false},
    {0, 1, 0, 2.0, false},
};

/* The largest power of two that an address is a multiple of, 256 at most. */
static uint64_t align_of(const void *p)
{
    uintptr_t bits = (uintptr_t)p | 256;
    return bits & -bits;
}

/* data: magic, number, description, what was said of alignment; the pointers' was seen. */
static bool offer(int i, const problem *p, cublasLtMatmulPreference_t preference,
                  cublasLtMatmulHeuristicResult_t *result)
{
    const algo_row *row = &algo_table[i];
    uint32_t least = preference->align[0];
    for (int o = 1; o < 4; o++)
        if (preference->align[o] < least) least = preference->align[o];
    if (row->workspace > preference->workspace || row->align > least ||
        (row->scheme && !(row->scheme & preference->schemes)))
        return false;
    memset(result, 0, sizeof *result);
    result->workspaceSize = row->workspace;
    result->algo.data[0] = MAGIC, result->algo.data[1] = (uint64_t)i;
    result->algo.data[2] = describe(*p);
    for (int o = 0; o < 4; o++) result->algo.data[3 + o] = preference->align[o];
    result->algo.data[7] = align_of(p->desc.bias) | align_of(p->desc.aux) << 32;
    return true;
}

static void count_problem(const problem *p, cublasLtMatmulPreference_t preference)
{
    const uint64_t said[] = {
        preference->align[0],  preference->align[1],
        preference->align[2],  preference->align[3],
        preference->workspace, align_of(p->desc.bias) | align_of(p->desc.aux) << 32};
    uint64_t hash = describe(*p);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        hash = (hash ^ said[i]) * 0x100000001B3ull;
    for (int64_t i = 0; i < counts.problems; i++)
        if (problem_hash[i] == hash) return;
    if (counts.problems < MAX_PROBLEMS) problem_hash[counts.problems++] = hash;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_asked,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *n_results)
{
    CALL;
    problem p;
    *n_results = 0;
    counts.searches++;
    if (!handle || handle->kind != HANDLE || preference->kind != PREFERENCE || n_asked < 1)
        return complain("a search without a handle, or for nothing");
    if (!driver.has_context()) return complain("a search without a context");
    cublasStatus_t status = make_problem(desc, a, b, c, d, &p);
    count_problem(&p, preference);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (int i = 0; i < N_ALGOS && *n_results < n_asked; i++)
        *n_results += offer(i, &p, preference, &results[*n_results]);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef struct job {
    problem p;
    const void *a, *b;
    void *d, *workspace;
    size_t workspace_bytes;
    int algo;
    int64_t shift; /* of where sums are cut */
    float alpha;
} job;

static float load(const void *p, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_16BF) return hl_bf16_to_f32(((const uint16_t *)p)[i]);
    if (type == CUDA_R_16F) return hl_f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

static void store(void *p, cudaDataType_t type, int64_t i, float value)
{
    if (type == CUDA_R_16BF)
        ((uint16_t *)p)[i] = hl_f32_to_bf16(value);
    else if (type == CUDA_R_16F)
        ((uint16_t *)p)[i] = hl_f32_to_f16(value);
    else
        ((float *)p)[i] = value;
}

/* An operand as it is multiplied. */
static float operand(const job *j, const void *p, const struct hl_cublaslt_layout *at, int trans,
                     int64_t row, int64_t col, int64_t z)
{
    int64_t i = (trans ? col + row * at->ld : row + col * at->ld) + z * at->stride;
    float value = load(p, at->type, i);
    return j->p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? round_to_tf32(value) : value;
}

/* Algorithms differ in where they cut the sum. */
static float sum_up(const job *j, int64_t row, int64_t col, int64_t z)
{
    float part[2] = {0, 0};
    int64_t cut = j->p.k / (1 + j->algo);
    if (j->shift && j->p.k > 2) cut = 1 + j->shift % (j->p.k - 1);
    for (int64_t k = 0; k < j->p.k; k++)
        part[k < cut] += operand(j, j->a, &j->p.a, j->p.desc.trans_a, row, k, z) *
                         operand(j, j->b, &j->p.b, j->p.desc.trans_b, k, col, z);
    return j->alpha * (part[0] + part[1]);
}

/* Bit of a mask, in an order of its own. */
static bool touch_mask(const job *j, int64_t row, int64_t col, bool writes, bool value)
{
    unsigned char *byte =
        (unsigned char *)j->p.desc.aux + (col * j->p.desc.aux_ld + (row ^ 77)) / 8;
    unsigned char bit = (unsigned char)(1 << (row ^ 77) % 8);
    if (writes) *byte = (unsigned char)(value ? *byte | bit : *byte & ~bit);
    return *byte & bit;
}

/* The manual's: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
static double gelu(double x)
{
    return x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.79788456080286535588 * (1 + 0.134145 * x * x);
}

/* An element of D before it is rounded; writes its part of an aux. */
static float finish(const job *j, int64_t row, int64_t col, int64_t z)
{
    const struct hl_cublaslt_desc *d = &j->p.desc;
    uint32_t e = d->epilogue;
    int64_t at = row + col * d->aux_ld;
    float value = sum_up(j, row, col, z);
    bool drops = config.drops_nan && has_part(e, RELU | GELU);
    if (has_part(e, BIAS)) value += load(d->bias, j->p.d.type, row);
    if (has_part(e, GELU) && has_part(e, AUX)) store(d->aux, j->p.d.type, at, value);
    if (has_part(e, GELU)) value = (float)gelu((double)value);
    if (has_part(e, DGELU))
        value = (float)((double)value * gelu_slope((double)load(d->aux, j->p.d.type, at)));
    if (has_part(e, RELU) && value < 0) value = 0;
    if (drops && isnan(value)) value = 0;
    if (has_part(e, RELU) && has_part(e, AUX)) touch_mask(j, row, col, true, value > 0);
    if (has_part(e, DRELU) && !touch_mask(j, row, col, false, false)) value = 0;
    return value;
}

/* Of an operand over k, in the mainloop. */
static void add_sums(const job *j)
{
    const problem *p = &j->p;
    bool of_a = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (int64_t i = 0; i < (of_a ? p->m : p->n); i++) {
        float sum = 0;
        for (int64_t k = 0; k < p->k; k++)
            sum += of_a ? operand(j, j->a, &p->a, p->desc.trans_a, i, k, 0)
                        : operand(j, j->b, &p->b, p->desc.trans_b, k, i, 0);
        store(p->desc.bias, p->d.type, i, sum);
    }
}

/* Of D's rows, on the way out. */
static void add_own_sums(const job *j)
{
    const problem *p = &j->p;
    for (int64_t row = 0; row < p->m; row++) {
        double sum = 0;
        for (int64_t col = 0; col < p->n; col++) sum += (double)finish(j, row, col, 0);
        store(p->desc.bias, p->d.type, row, (float)sum);
    }
}

static const char *run_job(void *context)
{
    const job *j = context;
    if (j->workspace_bytes) memset(j->workspace, 0xFF, j->workspace_bytes);
    for (int64_t z = 0; z < j->p.d.batch; z++)
        for (int64_t col = 0; col < j->p.n; col++)
            for (int64_t row = 0; row < j->p.m; row++)
                store(j->d, j->p.d.type, row + col * j->p.d.ld + z * j->p.d.stride,
                      finish(j, row, col, z));
    if (has_sums(j->p.desc.epilogue)) add_sums(j);
    if (has_part(j->p.desc.epilogue, BGRAD)) add_own_sums(j);
    return NULL;
}

static bool lies(const void *p, const struct hl_cublaslt_layout *at, uint64_t align)
{
    int64_t n = (at->batch - 1) * at->stride + (at->cols - 1) * at->ld + at->rows;
    return (uintptr_t)p % align == 0 && driver.is_device(p, (size_t)n * size_of(at->type));
}

static cublasStatus_t check_memory(const job *j, const cublasLtMatmulAlgo_t *algo)
{
    const problem *p = &j->p;
    uint32_t e = p->desc.epilogue;
    size_t aux_bytes = (size_t)(p->desc.aux_ld * p->n) * size_of(p->d.type);
    if (has_mask(e)) aux_bytes = (size_t)(p->desc.aux_ld / 8 * p->n);
    if (!lies(j->a, &p->a, algo->data[3]) || !lies(j->b, &p->b, algo->data[4]) ||
        !lies(j->d, &p->d, algo->data[6]))
        return complain("operands that are not where, or not as aligned as, was said");
    size_t n = (size_t)(e == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m);
    if (has_vector(e) && !driver.is_device(p->desc.bias, n * size_of(p->d.type)))
        return complain("a bias that is not in the GPU's memory");
    if (has_part(e, AUX) && !driver.is_device(p->desc.aux, aux_bytes))
        return complain("an aux that is not in the GPU's memory");
    if ((has_vector(e) && align_of(p->desc.bias) < (algo->data[7] & 0xFFFFFFFF)) ||
        (has_part(e, AUX) && align_of(p->desc.aux) < algo->data[7] >> 32))
        return complain("a bias or an aux that is less aligned than was shown");
    if (j->workspace_bytes < algo_table[j->algo].workspace)
        return complain("less workspace than the algorithm needs");
    if (j->workspace_bytes &&
        ((uintptr_t)j->workspace % 256 || !driver.is_device(j->workspace, j->workspace_bytes)))
        return complain("a workspace that is not in the GPU's memory, or not aligned");
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_algo(const problem *p, const cublasLtMatmulAlgo_t *algo,
                                 cudaStream_t stream)
{
    if (algo->data[0] != MAGIC || algo->data[1] >= N_ALGOS || algo->data[2] != describe(*p))
        return complain("an algorithm for another product");
    int i = (int)algo->data[1];
    if (i == 4 || i == 5) return complain("an algorithm that the preferences exclude");
    if (algo_table[i].is_refused || i < config.n_broken) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (size_t f = 0; f < sizeof config.failing / sizeof *config.failing; f++)
        if (p->desc.epilogue == (uint32_t)config.failing[f]) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (driver.is_capturing(stream) && !is_loaded[i])
        return complain("an algorithm that would be loaded within a capture");
    is_loaded[i] = true;
    return CUBLAS_STATUS_SUCCESS;
}

/* By the clock of a GPU that grows warm, or hot. */
static double take_time(const job *j)
{
    double ms = config.ms[j->algo] > 0 ? config.ms[j->algo] : algo_table[j->algo].ms;
    if (j->p.desc.epilogue == (uint32_t)config.slow_epilogue) ms *= config.slowness;
    ms *= (worked_ms < config.cold_ms ? 3 : 1) * (1 + config.drift * worked_ms);
    worked_ms += ms;
    return ms;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    CALL;
    job j = {.a = a, .b = b, .d = d, .workspace = workspace, .workspace_bytes = workspace_bytes};
    if (!handle || handle->kind != HANDLE || c != d) return complain("a product without a handle");
    if (!driver.has_context()) return complain("a product without a context");
    j.alpha = *(const float *)alpha;
    if ((j.alpha != 1 && !isnan(j.alpha)) || *(const float *)beta != 0)
        return complain("a scaled product");
    cublasStatus_t status = make_problem(desc, a_layout, b_layout, c_layout, d_layout, &j.p);
    if (status == CUBLAS_STATUS_SUCCESS) status = check_algo(&j.p, algo, stream);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    j.algo = (int)algo->data[1];
    status = check_memory(&j, algo);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    counts.products++;
    counts.last_algo = j.algo;
    if (config.varying >> j.algo & 1) j.shift = ++n_varied;
    return driver.submit(stream, take_time(&j), run_job, &j, sizeof j)
               ? CUBLAS_STATUS_EXECUTION_FAILED
               : CUBLAS_STATUS_SUCCESS;
}
