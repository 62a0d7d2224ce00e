/* Launchers of matmul.cu: any matrix product of one device type, as it stands.
 *
 * Transposed operands are strides and broadcast batches are layouts, so nothing is copied. A batch
 * whose right side is one matrix is one product of more rows. */
#include <stdio.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/layout.h"

enum { TILE = 64, OLDEST_BF16 = 80, MOST_BLOCKS = 0x7FFFFFFF };

static hl_status query_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_low_float(graph, node, 0, 2, out_why_not)) return HL_ERROR_CONFIG;
    if (node->n_in > 2 && !hl_cuda_is_low_float(graph, node, 2, 3, out_why_not))
        return HL_ERROR_CONFIG;
    int arch = hl_cuda_device_facts(device)->arch;
    if (hl_node_in_type(graph, node, 0)->dtype == HL_DTYPE_BF16 && arch < OLDEST_BF16)
        return hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", OLDEST_BF16, arch);
    out_req->deterministic = true;
    return HL_OK;
}

/* A (...,M,K) @ B (...,K,N), strides in elements. */
typedef struct product {
    int64_t M, N, K, a_row, a_k, b_k, b_col;
    hl_cuda_layout a, b; /* of matrices in the result's batch */
} product;

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

static product make_product(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape,
                   *out = &hl_node_out_type(graph, node, 0)->shape;
    bool trans_a = node->attrs.i[0] != 0, trans_b = node->attrs.i[1] != 0;
    product p = {.M = out->dim[out->rank - 2],
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

static hl_cuda_shape shape_tiles(const product *p, hl_dtype dtype)
{
    int64_t n = p->a.n * ((p->M + TILE - 1) / TILE) * ((p->N + TILE - 1) / TILE);
    unsigned threads = dtype == HL_DTYPE_F32 ? 256 : 128;
    return (hl_cuda_shape){
        {(unsigned)(n < MOST_BLOCKS ? n : MOST_BLOCKS), 1, 1}, {threads, 1, 1}, 0};
}

static hl_status prepare_matmul(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype;
    hl_dtype bias = node->n_in > 2 ? hl_node_in_type(graph, node, 2)->dtype : HL_DTYPE_F32;
    product p = make_product(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (p.a.n * p.M * p.N == 0) return hl_cuda_calls_end(&calls, out_state);
    char name[64];
    snprintf(name, sizeof name, "hl_cuda_matmul_%s", hl_cuda_suffix(dtype));
    hl_cuda_call_kernel(&calls, name, shape_tiles(&p, dtype));
    for (int i = 0; i < 3; i++) hl_cuda_pass_in(&calls, i);
    HL_CUDA_PASS(&calls, int32_t, bias);
    hl_cuda_pass_out(&calls, 0);
    HL_CUDA_PASS(&calls, int32_t, hl_node_out_type(graph, node, 0)->dtype);
    const int64_t numbers[] = {p.M, p.N, p.K, p.a_row, p.a_k, p.b_k, p.b_col};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        HL_CUDA_PASS(&calls, int64_t, numbers[i]);
    hl_cuda_pass(&calls, &p.a, sizeof p.a);
    hl_cuda_pass(&calls, &p.b, sizeof p.b);
    HL_CUDA_PASS(&calls, int, 0);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel matmul = HL_CUDA_KERNEL(MATMUL, "matmul", query_matmul, prepare_matmul);

const hl_kernel *const hl_cuda_matmul_kernels[] = {&matmul, NULL};
