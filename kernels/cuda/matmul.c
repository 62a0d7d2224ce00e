/* Launchers of matmul.cu: any matrix product of one type of operands, as it stands. Transposed
 * operands are strides and broadcast batches are layouts, so nothing is copied. */
#include "kernels/cuda/matmul.h"

#include "kernels/cuda/calls.h"

enum { TILE = HL_CUDA_MATMUL_TILE, MAX_BLOCKS = 0x7FFFFFFF };

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

static hl_status query_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    HL_TRY(hl_cuda_matmul_check(device, graph, id, out_why_not));
    if (node->n_in > 2 && !hl_cuda_is_same_float(graph, node, 2, 3, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->deterministic = true;
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

static hl_cuda_shape shape_tiles(const hl_cuda_product *p, hl_dtype dtype)
{
    int64_t n = p->a.n * ((p->M + TILE - 1) / TILE) * ((p->N + TILE - 1) / TILE);
    unsigned threads =
        dtype == HL_DTYPE_F32 ? HL_CUDA_MATMUL_F32_THREADS : HL_CUDA_MATMUL_REDUCED_THREADS;
    return (hl_cuda_shape){{(unsigned)(n < MAX_BLOCKS ? n : MAX_BLOCKS), 1, 1}, {threads, 1, 1}, 0};
}

static hl_status prepare_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype;
    hl_dtype bias = node->n_in > 2 ? hl_node_in_type(graph, node, 2)->dtype : HL_DTYPE_F32;
    hl_cuda_product p = hl_cuda_product_make(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (p.a.n * p.M * p.N == 0) return hl_cuda_calls_end(&calls, out_state);
    HL_CUDA_CALL(&calls, matmul, hl_cuda_suffix(dtype), shape_tiles(&p, dtype),
                 .at.a = hl_cuda_in(&calls, 0), .at.b = hl_cuda_in(&calls, 1),
                 .at.bias = hl_cuda_in(&calls, 2), .at.c = hl_cuda_out(&calls, 0), .product = p,
                 .bias_dtype = (int32_t)bias,
                 .c_dtype = (int32_t)hl_node_out_type(graph, node, 0)->dtype,
                 .relu = hl_node_is_anchor(node));
    return hl_cuda_calls_end(&calls, out_state);
}

static const char *const fusions[] = {"", "relu(x)", NULL};
/* Behind the library's. */
const hl_kernel hl_cuda_matmul_plain =
    HL_CUDA_KERNEL_FUSING(MATMUL, "matmul", query_matmul, prepare_matmul, fusions);
