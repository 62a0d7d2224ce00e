/* Launchers of matmul.cu: any matrix product of one type of operands, as it stands. Transposed
 * operands are strides and broadcast batches are layouts, so nothing is copied. */
#include "kernels/cuda/matmul.h"

#include "ir/fusion.h"
#include "kernels/cuda/calls.h"

enum { MAX_BLOCKS = 0x7FFFFFFF };
/* A product of fewer tiles than a large GPU has multiprocessors is small. The number is no GPU's
 * own, so that sums have one order on all. */
enum { SMALL_TILES = 128 };
/* Of products that are one launch: longer sums take longer than the launches that are saved. */
enum { MAX_HORIZONTAL_K = 8192 };

hl_status hl_cuda_matmul_check(const hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_same_float(graph, node, 0, 2, out_why_not)) return HL_ERROR_CONFIG;
    int arch = hl_cuda_device_facts(device)->arch;
    if (hl_node_in_type(graph, node, 0)->dtype == HL_DTYPE_BF16 && arch < HL_CUDA_OLDEST_BF16)
        return hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", HL_CUDA_OLDEST_BF16,
                             arch);
    return HL_OK;
}

/* Where an operand's matrices lie, by the result's batch dims; 0: broadcast. */
static hl_cuda_layout lay_batch(const hl_shape *operand, const hl_shape *out)
{
    hl_cuda_layout layout = {.n = hl_shape_span(out, 0, out->rank - 2), .rank = out->rank - 2};
    int lead = out->rank - operand->rank;
    for (int d = 0; d < layout.rank; d++) {
        bool is_held = d < lead || operand->dim[d - lead] == 1;
        layout.dim[d] = out->dim[d];
        layout.stride[d] = is_held ? 0 : hl_shape_span(operand, d - lead + 1, operand->rank);
    }
    return layout;
}

hl_cuda_product hl_cuda_product_make(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape,
                   *out = &hl_node_out_type(graph, node, 0)->shape;
    bool trans_a = hl_matmul_attrs(node)->trans_a, trans_b = hl_matmul_attrs(node)->trans_b;
    hl_cuda_product p = {.M = out->dim[out->rank - 2],
                         .N = out->dim[out->rank - 1],
                         .K = a->dim[a->rank - (trans_a ? 2 : 1)],
                         .a = lay_batch(a, out),
                         .b = lay_batch(b, out)};
    p.a_row = trans_a ? 1 : p.K, p.a_k = trans_a ? p.M : 1;
    p.b_k = trans_b ? 1 : p.N, p.b_col = trans_b ? p.K : 1;
    if (b->rank == 2 && a->rank == out->rank && !trans_a) {
        p.M *= p.a.n;
        p.a = p.b = (hl_cuda_layout){.n = 1};
    }
    return p;
}

/* ---- one product, or several as one launch --------------------------------------------------- */

enum { EPILOGUE_NONE, EPILOGUE_RELU, PROLOGUE_SUM_A, PROLOGUE_SUM_B };
static const char *const fusions[] = {
    [EPILOGUE_NONE] = "",
    [EPILOGUE_RELU] = "relu(x)",
    [PROLOGUE_SUM_A] = "a: x, sum_rows(x)",
    [PROLOGUE_SUM_B] = "b: x, sum_rows(x)",
    NULL,
};

/* A product's numbers, and its operands among the args of a launch, of which the node's begin at
 * first_arg. */
typedef struct product {
    hl_dtype dtype;
    hl_cuda_product p;
    hl_cuda_matrix_product of;
    hl_cuda_matmul_at at;
} product;

static product make_product(const hl_graph *graph, const hl_node *node, int first_arg)
{
    int fusion = hl_fusion_find(graph, node, fusions), bias = 2, n_own = hl_node_anchor_in(node);
    product made = {.dtype = hl_node_in_type(graph, node, 0)->dtype,
                    .p = hl_cuda_product_make(graph, node)};
    const hl_cuda_product *p = &made.p;
    made.of = (hl_cuda_matrix_product){
        .M = p->M,
        .N = p->N,
        .K = p->K,
        .a_row = p->a_row,
        .a_k = p->a_k,
        .b_k = p->b_k,
        .b_col = p->b_col,
        .c_dtype = (int32_t)hl_node_out_type(graph, node, 0)->dtype,
        .relu = fusion == EPILOGUE_RELU,
        .sums = fusion == PROLOGUE_SUM_A   ? HL_CUDA_SUMS_A
                : fusion == PROLOGUE_SUM_B ? HL_CUDA_SUMS_B
                                           : HL_CUDA_SUMS_NONE,
    };
    made.at.a = hl_cuda_arg(first_arg);
    made.at.b = hl_cuda_arg(first_arg + 1);
    made.at.c = hl_cuda_arg(first_arg + node->n_in);
    if (n_own > bias) {
        made.of.bias_dtype = (int32_t)hl_node_in_type(graph, node, bias)->dtype;
        made.at.bias = hl_cuda_arg(first_arg + bias);
    }
    if (made.of.sums) made.at.sums = hl_cuda_arg(first_arg + node->n_in + 1);
    return made;
}

static int64_t count_tiles(const product *made, int64_t size)
{
    const hl_cuda_product *p = &made->p;
    return p->a.n * ((p->M + size - 1) / size) * ((p->N + size - 1) / size);
}

static bool is_small(const product *made)
{
    return made->p.a.n == 1 && count_tiles(made, HL_CUDA_MATMUL_TILE) <= SMALL_TILES;
}

bool hl_cuda_matmul_is_small(const hl_graph *graph, hl_node_id id)
{
    product made = make_product(graph, &graph->nodes[id], 0);
    return is_small(&made);
}

static int64_t count_small_tiles(const product *made)
{
    return count_tiles(made, HL_CUDA_MATMUL_SMALL_TILE);
}

static hl_cuda_shape shape_blocks(int64_t n, unsigned threads)
{
    return (hl_cuda_shape){{(unsigned)(n < MAX_BLOCKS ? n : MAX_BLOCKS), 1, 1}, {threads, 1, 1}, 0};
}

static hl_cuda_shape shape_small(int64_t n)
{
    return shape_blocks(n, HL_CUDA_MATMUL_SMALL_THREADS);
}

/* Sums are taken along K, of one matrix. */
static bool takes_sums(const hl_graph *graph, const hl_node *node)
{
    product made = make_product(graph, node, 0);
    if (!made.of.sums) return true;
    const hl_attrs_matmul *attrs = hl_matmul_attrs(node);
    bool along_k = made.of.sums == HL_CUDA_SUMS_A ? attrs->trans_a : !attrs->trans_b;
    return along_k && made.p.a.n == 1 && hl_node_out_type(graph, node, 1)->dtype == HL_DTYPE_F32;
}

static hl_status query_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    if (hl_node_anchor_in(node) > 2 && !hl_cuda_is_same_float(graph, node, 2, 3, out_why_not))
        return HL_ERROR_CONFIG;
    if (!takes_sums(graph, node))
        return hl_reason_set(out_why_not, "sums are taken along K of single matrices, in float32");
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    product made = make_product(graph, &graph->nodes[id], 0);
    const char *suffix = hl_cuda_suffix(made.dtype);
    unsigned threads =
        made.dtype == HL_DTYPE_F32 ? HL_CUDA_MATMUL_F32_THREADS : HL_CUDA_MATMUL_REDUCED_THREADS;
    int64_t n_tiles = count_tiles(&made, HL_CUDA_MATMUL_TILE);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (n_tiles > 0 && is_small(&made))
        HL_CUDA_CALL(&calls, matmul_small, suffix, shape_small(count_small_tiles(&made)),
                     .at = made.at, .of = made.of);
    else if (n_tiles > 0)
        HL_CUDA_CALL(&calls, matmul, suffix, shape_blocks(n_tiles, threads), .at = made.at,
                     .of = made.of, .a = made.p.a, .b = made.p.b);
    return hl_cuda_calls_end(&calls, out_state);
}

_Static_assert((int)HL_CUDA_PRODUCTS == (int)HL_KERNEL_HORIZONTAL, "all fit");

/* Does it take long enough to run beside others on a stream of its own? Then a launch that is saved
 * is less than what a library's kernel saves. */
static bool is_long(const hl_device *device, const product *made)
{
    double flops = 2.0 * (double)made->of.M * (double)made->of.N * (double)made->of.K;
    return device->overlap_flops > 0 && flops >= device->overlap_flops;
}

/* Products of small matrices, of no more blocks together than a launch has to keep the device busy:
 * alone each leaves most of it idle. */
static bool is_horizontal(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                          int32_t n)
{
    int64_t n_tiles = 0;
    hl_dtype dtype = hl_node_in_type(graph, &graph->nodes[ids[0]], 0)->dtype;
    for (int32_t i = 0; i < n; i++) {
        product made = make_product(graph, &graph->nodes[ids[i]], 0);
        int64_t own = count_small_tiles(&made);
        if (own == 0 || !is_small(&made) || is_long(device, &made) || made.dtype != dtype ||
            made.of.K > MAX_HORIZONTAL_K)
            return false;
        n_tiles += own;
    }
    int threads = HL_CUDA_MATMUL_SMALL_THREADS;
    return hl_cuda_shape_blocks(device, n_tiles, threads).grid[0] == n_tiles;
}

static hl_status prepare_list(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                              int32_t n, hl_kernel_state *out_state)
{
    hl_cuda_matmul_list_params params = {.n = n};
    hl_dtype dtype = hl_node_in_type(graph, &graph->nodes[ids[0]], 0)->dtype;
    int64_t n_blocks = 0;
    int first_arg = 0;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, ids[0]);
    for (int32_t i = 0; i < n; i++) {
        const hl_node *node = &graph->nodes[ids[i]];
        product made = make_product(graph, node, first_arg);
        params.at.of[i] = made.at, params.of[i] = made.of;
        params.first_block[i] = (int32_t)n_blocks;
        n_blocks += count_small_tiles(&made);
        first_arg += node->n_in + node->n_out;
    }
    params.first_block[n] = (int32_t)n_blocks;
    HL_CUDA_CALL_WITH(&calls, matmul_list, hl_cuda_suffix(dtype), shape_small(n_blocks), &params);
    return hl_cuda_calls_end(&calls, out_state);
}

/* Behind the library's. */
const hl_kernel hl_cuda_matmul_plain = {.op = HL_OP_MATMUL,
                                        .name = "cuda.matmul",
                                        .fusions = fusions,
                                        .query = query_matmul,
                                        .prepare = prepare_matmul,
                                        .prepare_horizontal = prepare_list,
                                        .is_horizontal = is_horizontal,
                                        .launch = hl_cuda_calls_launch,
                                        .release = hl_cuda_calls_release};
