/* Launchers of linalg.cu. */
#include "kernels/cuda/linalg.h"

#include "kernels/cuda/calls.h"

/* The matrices of an operand, as batches (n_matrices,rows,columns). */
typedef struct batch {
    int64_t n_matrices, rows, columns;
} batch;

static batch find_batch(const hl_graph *graph, const hl_node *node, int operand)
{
    const hl_shape *shape = &hl_node_in_type(graph, node, operand)->shape;
    int32_t rank = shape->rank;
    return (batch){hl_shape_span(shape, 0, rank - 2), shape->dim[rank - 2], shape->dim[rank - 1]};
}

static size_t count_panel_bytes(int64_t n)
{
    return (size_t)n * HL_CUDA_PANEL_STRIDE * sizeof(float);
}

static hl_status query_cholesky(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_cuda_is_dtype(graph, node, 0, 1, HL_DTYPE_F32, out_why_not)) return HL_ERROR_CONFIG;
    batch b = find_batch(graph, node, 0);
    size_t bytes = count_panel_bytes(b.columns);
    if (bytes > HL_CUDA_PANEL_BYTES) out_req->scratch_bytes = (size_t)b.n_matrices * bytes;
    out_req->in_place[0] = 1;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_cholesky(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_state *out_state)
{
    batch b = find_batch(graph, &graph->nodes[id], 0);
    size_t bytes = count_panel_bytes(b.columns);
    bool is_shared = bytes <= HL_CUDA_PANEL_BYTES;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_shape shape = hl_cuda_shape_blocks(device, b.n_matrices, HL_CUDA_LINALG_THREADS);
    if (is_shared) shape.shared_bytes = (unsigned)bytes;
    if (b.n_matrices > 0 && b.columns > 0)
        HL_CUDA_CALL(&calls, cholesky, NULL, shape,
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0),
                            is_shared ? (hl_cuda_word){0} : hl_cuda_scratch(0),
                            hl_cuda_control_block(), hl_cuda_fault_word(&calls)},
                     .n = b.columns, .n_matrices = b.n_matrices);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status query_solve(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    if (!hl_cuda_is_dtype(graph, &graph->nodes[id], 0, 2, HL_DTYPE_F32, out_why_not))
        return HL_ERROR_CONFIG;
    out_req->in_place[0] = 1 << 1;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_solve(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_attrs_triangular *attrs = hl_triangular_attrs(node);
    batch b = find_batch(graph, node, 1);
    int64_t n_strips = (b.columns + HL_CUDA_STRIP - 1) / HL_CUDA_STRIP;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (b.n_matrices * n_strips * b.rows > 0)
        HL_CUDA_CALL(&calls, triangular_solve, NULL,
                     hl_cuda_shape_blocks(device, b.n_matrices * n_strips, HL_CUDA_LINALG_THREADS),
                     .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_out(&calls, 0),
                            hl_cuda_control_block(), hl_cuda_fault_word(&calls)},
                     .n = b.rows, .K = b.columns, .n_matrices = b.n_matrices, .n_strips = n_strips,
                     .from_top = attrs->upper == attrs->trans, .trans = attrs->trans,
                     .unitriangular = attrs->unitriangular);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel cholesky =
    HL_CUDA_KERNEL(CHOLESKY, "cholesky", query_cholesky, prepare_cholesky);
static const hl_kernel triangular_solve =
    HL_CUDA_KERNEL(TRIANGULAR_SOLVE, "triangular_solve", query_solve, prepare_solve);

const hl_kernel *const hl_cuda_linalg_kernels[] = {&cholesky, &triangular_solve, NULL};
