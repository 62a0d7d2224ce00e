/* Nodes as products of cuBLASLt, and its descriptors. */
#include "kernels/cuda/lt_product.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/internal.h"
#include "kernels/cuda/matmul.h"

/* ---- the product ----------------------------------------------------------------------------- */

static cudaDataType_t type_of(hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_BF16: return CUDA_R_16BF;
    case HL_DTYPE_F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

static int64_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* Elements from one matrix of a batch to the next; false: they are not evenly apart. */
static bool find_stride(const hl_cuda_layout *batch, int64_t *out_stride)
{
    int64_t want = 0, n = 1;
    bool is_even = true;
    for (int d = batch->rank - 1; d >= 0; d--) {
        if (batch->dim[d] == 1) continue;
        if (n == 1) want = batch->stride[d];
        is_even = is_even && batch->stride[d] == want * n;
        n *= batch->dim[d];
    }
    *out_stride = want;
    return is_even;
}

/* Where a product's epilogue finds what it reads or writes beside: the epilogue's first operand, or
 * the node's second output. */
typedef enum beside { NOWHERE, READ, MADE } beside;

/* What a node carries, in the library's words. What it sums and adds is one vector; its aux is a
 * mask of bits, or gelu's operand in the result's type. */
typedef struct lt_epilogue {
    uint32_t bare, biased; /* without and with a bias; 0: not with one */
    beside vector, aux;
    bool is_mask; /* the aux */
    int summed;   /* operand whose rows are summed as it is read, or -1 */
    /* Matrices of the result's size that kernels in its place read and write. An activation that
     * saves something is fused on both sides or on none, so both sides count for each: the
     * activation's operand and result; its gradient's two operands and result. */
    int passes;
    const char *activation;
} lt_epilogue;

#define CUBLASLT_EPILOGUE_DEFAULT_BIAS CUBLASLT_EPILOGUE_BIAS
#define BOTH(name)                     CUBLASLT_EPILOGUE_##name, CUBLASLT_EPILOGUE_##name##_BIAS
#define BARE(name)                     CUBLASLT_EPILOGUE_##name, 0
const char *const hl_lt_fusions[] = {"",
                                     "relu(x)",
                                     "relu(x), gt(x, 0)",
                                     "where(y, x, 0)",
                                     "where(y, x, 0), sum_rows(where(y, x, 0))",
                                     "a: x, sum_rows(x)",
                                     "b: x, sum_rows(x)",
                                     "gelu(x)",
                                     "gelu(x), x",
                                     "gelu_grad(x, y)",
                                     "gelu_grad(x, y), sum_rows(gelu_grad(x, y))",
                                     NULL};
static const lt_epilogue lt_epilogues[] = {
    {BOTH(DEFAULT), NOWHERE, NOWHERE, false, -1, 0, NULL},
    {BOTH(RELU), NOWHERE, NOWHERE, false, -1, 2, "relu"},
    {BOTH(RELU_AUX), NOWHERE, MADE, true, -1, 5, "relu"},
    {BARE(DRELU), NOWHERE, READ, true, -1, 5, NULL},
    {BARE(DRELU_BGRAD), MADE, READ, true, -1, 5, NULL},
    {BARE(BGRADB), MADE, NOWHERE, false, 0, 0, NULL},
    {BARE(BGRADA), MADE, NOWHERE, false, 1, 0, NULL},
    {BOTH(GELU), NOWHERE, NOWHERE, false, -1, 2, "gelu"},
    {BOTH(GELU_AUX), NOWHERE, MADE, false, -1, 5, "gelu"},
    {BARE(DGELU), NOWHERE, READ, false, -1, 5, NULL},
    {BARE(DGELU_BGRAD), MADE, READ, false, -1, 5, NULL},
};

/* Number in args; -1: nowhere. */
static int number_of(const hl_node *node, beside place)
{
    return place == NOWHERE ? -1 : place == READ ? hl_node_epilogue_in(node) : node->n_in + 1;
}

static hl_id value_at(const hl_node *node, int number)
{
    return number < node->n_in ? node->in[number] : node->out + number - node->n_in;
}

/* The library keeps a mask as bits, 16 bytes for each 128 columns. */
static bool check_aux(const hl_graph *graph, const hl_node *node, const lt_epilogue *epilogue,
                      hl_lt_product *p, hl_reason *out_why_not)
{
    uint32_t form = epilogue->is_mask ? HL_CUDA_FORM_RELU_BITS : 0;
    if (p->aux_arg < 0) return true;
    p->aux_ld = epilogue->is_mask ? hl_round_up(p->m, 128) : p->m;
    if (epilogue->aux == READ) {
        hl_type want = *hl_node_out_type(graph, node, 0),
                got = *hl_node_in_type(graph, node, p->aux_arg);
        if (epilogue->is_mask) want.dtype = HL_DTYPE_BOOL;
        if (!hl_type_equal(&want, &got))
            return hl_reason_set(out_why_not, "needs what its own kernel saved"), false;
        p->form_in = form;
    }
    if (epilogue->aux == MADE && epilogue->is_mask)
        p->saved = (hl_saved){form, p->n * p->aux_ld / 8};
    if (p->aux_ld % 8 != 0)
        return hl_reason_set(out_why_not, "needs rows of 8, 16, ... elements for gelu's operand"),
               false;
    return true;
}

/* The epilogue and its operands' numbers in args; false and the reason: it is not the library's. */
static bool set_epilogue(const hl_graph *graph, const hl_node *node, hl_lt_product *p,
                         hl_reason *out_why_not)
{
    const lt_epilogue *epilogue = &lt_epilogues[hl_fusion_find(graph, node, hl_lt_fusions)];
    bool has_bias = hl_node_anchor_in(node) > 2;
    p->epilogue = has_bias ? epilogue->biased : epilogue->bare;
    p->bare = has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    p->activation = epilogue->activation;
    p->apart_bytes = epilogue->passes * p->m * p->n * bytes_of(p->result);
    if (epilogue->summed >= 0)
        p->apart_bytes = p->k * (epilogue->summed ? p->m : p->n) * bytes_of(p->operand);
    p->vector_arg = has_bias ? 2 : number_of(node, epilogue->vector);
    p->aux_arg = number_of(node, epilogue->aux);
    if (!p->epilogue)
        return hl_reason_set(out_why_not, "needs no bias beside this epilogue"), false;
    bool is_inner = epilogue->summed == 0   ? hl_matmul_attrs(node)->trans_a
                    : epilogue->summed == 1 ? !hl_matmul_attrs(node)->trans_b
                                            : true;
    if (!is_inner)
        return hl_reason_set(out_why_not, "needs rows that are summed by the product too"), false;
    if (!check_aux(graph, node, epilogue, p, out_why_not)) return false;
    if (p->vector_arg < 0) return true;
    hl_dtype vector = hl_graph_dtype(graph, value_at(node, p->vector_arg));
    if (type_of(vector) != p->result || vector == HL_DTYPE_F64)
        return hl_reason_set(out_why_not, "needs a bias or sums of the result's type"), false;
    return true;
}

/* What lies beside the matrices is read and written as vectors, and no preference says how it is
 * aligned: kernels of the library fail on less. */
enum { ALIGN_BESIDE = 16 };

static bool set_alignment(const hl_device *device, const hl_graph *graph, const hl_node *node,
                          hl_lt_product *p, hl_reason *out_why_not)
{
    p->align_a = hl_cuda_alignment(device, graph, node->in[1]);
    p->align_b = hl_cuda_alignment(device, graph, node->in[0]);
    p->align_d = hl_cuda_alignment(device, graph, node->out);
    if (p->vector_arg >= 0)
        p->align_vector = hl_cuda_alignment(device, graph, value_at(node, p->vector_arg));
    if (p->aux_arg >= 0)
        p->align_aux = hl_cuda_alignment(device, graph, value_at(node, p->aux_arg));
    uint32_t least = p->vector_arg >= 0 ? p->align_vector : ALIGN_BESIDE;
    if (p->aux_arg >= 0 && p->align_aux < least) least = p->align_aux;
    if (least >= ALIGN_BESIDE) return true;
    return hl_reason_set(out_why_not, "needs a bias, sums or aux at whole %d bytes, got %u",
                         (int)ALIGN_BESIDE, least),
           false;
}

bool hl_lt_product_make(const hl_device *device, const hl_graph *graph, hl_node_id id,
                        hl_lt_product *p, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype operand = hl_node_in_type(graph, node, 0)->dtype;
    hl_cuda_product q = hl_cuda_product_make(graph, node);
    bool trans_a = hl_matmul_attrs(node)->trans_a, trans_b = hl_matmul_attrs(node)->trans_b;
    *p = (hl_lt_product){.compute = hl_matmul_attrs(node)->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F,
                         .operand = type_of(operand),
                         .result = type_of(hl_node_out_type(graph, node, 0)->dtype),
                         .op_a = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                         .op_b = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                         .m = q.N,
                         .n = q.M,
                         .k = q.K,
                         .lda = trans_b ? q.K : q.N,
                         .ldb = trans_a ? q.M : q.K,
                         .n_batch = (int32_t)q.a.n};
    if (q.M == 0 || q.N == 0 || q.K == 0 || q.a.n == 0)
        return hl_reason_set(out_why_not, "needs operands that are not empty"), false;
    if (q.a.n > INT32_MAX || !find_stride(&q.a, &p->stride_a) || !find_stride(&q.b, &p->stride_b))
        return hl_reason_set(out_why_not, "needs batches that are evenly apart"), false;
    int64_t stride = p->stride_a; /* of our a, the library's b */
    p->stride_a = p->stride_b, p->stride_b = stride;
    if (p->n_batch > 1 && hl_node_is_anchor(node))
        return hl_reason_set(out_why_not, "needs one pair of matrices for an epilogue"), false;
    return set_epilogue(graph, node, p, out_why_not) &&
           set_alignment(device, graph, node, p, out_why_not);
}

hl_lt_product hl_lt_product_bare(const hl_lt_product *product)
{
    hl_lt_product p = *product;
    bool has_bias = p.bare == CUBLASLT_EPILOGUE_BIAS;
    p.epilogue = p.bare;
    p.aux_arg = -1, p.align_aux = 0;
    p.vector_arg = has_bias ? p.vector_arg : -1;
    p.align_vector = has_bias ? p.align_vector : 0;
    p.activation = NULL, p.apart_bytes = 0;
    return p;
}

static const char *type_text(cudaDataType_t type)
{
    return type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "f16" : "f32";
}

hl_problem hl_lt_product_problem(hl_device *device, const hl_lt_product *p)
{
    hl_problem problem = {.refusals = &hl_cuda_of(device)->cublaslt->refusals,
                          .activation = p->activation,
                          .apart_bytes = p->apart_bytes};
    snprintf(problem.text, sizeof problem.text,
             "%s %s %s %c%c %lldx%lldx%lld ld %lld %lld batch %d %lld %lld align %u %u %u %u "
             "%u epilogue %u",
             type_text(p->operand), type_text(p->result),
             p->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32" : "f32", p->op_a ? 't' : 'n',
             p->op_b ? 't' : 'n', (long long)p->m, (long long)p->n, (long long)p->k,
             (long long)p->lda, (long long)p->ldb, (int)p->n_batch, (long long)p->stride_a,
             (long long)p->stride_b, p->align_a, p->align_b, p->align_d, p->align_vector,
             p->align_aux, p->epilogue);
    return problem;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static hl_status make_layout(const hl_cublaslt *lt, const hl_lt_product *p, cudaDataType_t type,
                             int64_t rows, int64_t cols, int64_t ld, int64_t stride,
                             cublasLtMatrixLayout_t *out_layout)
{
    HL_TRY(hl_cublaslt_check(
        lt,
        lt->call.cublasLtMatrixLayoutCreate(out_layout, type, (uint64_t)rows, (uint64_t)cols, ld),
        "a layout"));
    if (p->n_batch == 1) return HL_OK;
    cublasStatus_t status = lt->call.cublasLtMatrixLayoutSetAttribute(
        *out_layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p->n_batch, sizeof p->n_batch);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = lt->call.cublasLtMatrixLayoutSetAttribute(
            *out_layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    return hl_cublaslt_check(lt, status, "a batch");
}

static hl_status set_attribute(const hl_cublaslt *lt, const hl_lt_descs *descs,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes)
{
    return hl_cublaslt_check(
        lt, lt->call.cublasLtMatmulDescSetAttribute(descs->product, attribute, value, bytes),
        "setting up a product");
}

static hl_status make_descs(const hl_cublaslt *lt, const hl_lt_product *p, hl_lt_descs *descs)
{
    bool ta = p->op_a == CUBLAS_OP_T, tb = p->op_b == CUBLAS_OP_T;
    HL_TRY(make_layout(lt, p, p->operand, ta ? p->k : p->m, ta ? p->m : p->k, p->lda, p->stride_a,
                       &descs->a));
    HL_TRY(make_layout(lt, p, p->operand, tb ? p->n : p->k, tb ? p->k : p->n, p->ldb, p->stride_b,
                       &descs->b));
    HL_TRY(make_layout(lt, p, p->result, p->m, p->n, p->m, p->m * p->n, &descs->d));
    HL_TRY(hl_cublaslt_check(
        lt, lt->call.cublasLtMatmulDescCreate(&descs->product, p->compute, CUDA_R_32F),
        "a product"));
    HL_TRY(set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_TRANSA, &p->op_a, sizeof p->op_a));
    HL_TRY(set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_TRANSB, &p->op_b, sizeof p->op_b));
    HL_TRY(
        set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
    if (p->aux_arg >= 0)
        HL_TRY(set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->aux_ld,
                             sizeof p->aux_ld));
    return hl_lt_descs_point(lt, p, descs, (void *)(uintptr_t)p->align_vector,
                             (void *)(uintptr_t)p->align_aux);
}

hl_status hl_lt_descs_init(const hl_cublaslt *lt, const hl_lt_product *p, hl_lt_descs *out_descs)
{
    *out_descs = (hl_lt_descs){0};
    hl_status status = make_descs(lt, p, out_descs);
    if (status != HL_OK) hl_lt_descs_deinit(lt, out_descs);
    return status;
}

void hl_lt_descs_deinit(const hl_cublaslt *lt, hl_lt_descs *descs)
{
    if (descs->product) lt->call.cublasLtMatmulDescDestroy(descs->product);
    if (descs->a) lt->call.cublasLtMatrixLayoutDestroy(descs->a);
    if (descs->b) lt->call.cublasLtMatrixLayoutDestroy(descs->b);
    if (descs->d) lt->call.cublasLtMatrixLayoutDestroy(descs->d);
    *descs = (hl_lt_descs){0};
}

hl_status hl_lt_descs_point(const hl_cublaslt *lt, const hl_lt_product *p, const hl_lt_descs *descs,
                            const void *vector, const void *aux)
{
    if (p->vector_arg >= 0)
        HL_TRY(set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    if (p->aux_arg >= 0)
        HL_TRY(
            set_attribute(lt, descs, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux));
    return HL_OK;
}
