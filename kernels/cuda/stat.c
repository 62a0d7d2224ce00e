/* Launchers of stat.cu. */
#include "kernels/cuda/stat.h"

#include "kernels/cuda/calls.h"

/* Blocks that keep any GPU busy, and rows of a part that are worth its partial result. */
enum { BLOCKS = 1024, LEAST_ROWS = 256 };

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}
static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static hl_cuda_stat_cut make_cut(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *shape = hl_graph_shape(graph, node->in[0]);
    int32_t last = shape->rank - 1;
    hl_cuda_stat_cut cut = {.R = hl_shape_span(shape, 0, last), .C = shape->dim[last]};
    cut.products = hl_channel_statistics_attrs(node)->products;
    int64_t most = HL_CUDA_STAT_TILE * HL_CUDA_STAT_SIDE, C = max64(cut.C, 1);
    cut.n_strips = (int32_t)ceil_div(C, most);
    cut.m = (int32_t)ceil_div(ceil_div(C, cut.n_strips), HL_CUDA_STAT_TILE);
    int64_t n_parts = max64(BLOCKS / hl_cuda_stat_pairs(&cut), 1);
    cut.part = max64(ceil_div(cut.R, n_parts), LEAST_ROWS);
    cut.n_parts = max64(ceil_div(cut.R, cut.part), 1);
    return cut;
}

/* As many groups of threads as there are tiles in a pair of strips. */
static unsigned count_threads(const hl_cuda_stat_cut *cut)
{
    int64_t n_tiles = cut->m * (cut->m + 1) / 2, threads = HL_CUDA_STAT_THREADS;
    if (!cut->products || cut->n_strips > 1) return HL_CUDA_STAT_THREADS;
    return (unsigned)hl_round_up(threads / n_tiles * n_tiles, 32);
}

static hl_status query_channel_statistics(hl_device *device, const hl_graph *graph, hl_node_id id,
                                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    hl_cuda_stat_cut cut = make_cut(graph, &graph->nodes[id]);
    out_req->scratch_bytes = (size_t)(cut.n_parts * hl_cuda_stat_partial(&cut)) * sizeof(double);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_channel_statistics(hl_device *device, const hl_graph *graph, hl_node_id id,
                                            hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_dtype dtype = hl_node_in_type(graph, node, 0)->dtype;
    hl_cuda_stat_cut cut = make_cut(graph, node);
    int64_t n_outputs = 1 + 3 * cut.C + (cut.products ? cut.C * cut.C : cut.C);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(
        &calls, channel_parts, dtype == HL_DTYPE_F64 ? "f64" : hl_cuda_suffix(dtype),
        hl_cuda_shape_blocks(device, cut.n_parts * hl_cuda_stat_pairs(&cut), count_threads(&cut)),
        .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_in(&calls, 2),
               hl_cuda_scratch(0)},
        .cut = cut);
    HL_CUDA_CALL(&calls, channel_fold, NULL,
                 hl_cuda_shape_blocks(device, ceil_div(n_outputs, HL_CUDA_STAT_FOLD_OUTPUTS),
                                      HL_CUDA_STAT_THREADS),
                 .at = {hl_cuda_scratch(0), hl_cuda_out(&calls, 0), hl_cuda_out(&calls, 1),
                        hl_cuda_out(&calls, 2), hl_cuda_out(&calls, 3), hl_cuda_out(&calls, 4)},
                 .cut = cut);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel channel_statistics = HL_CUDA_KERNEL(
    CHANNEL_STATISTICS, "channel_statistics", query_channel_statistics, prepare_channel_statistics);

const hl_kernel *const hl_cuda_stat_kernels[] = {&channel_statistics, NULL};
