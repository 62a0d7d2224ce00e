/* Matrix products of bfloat16 on processors with AVX512_BF16: nodes as calls of gemm_bf16.h. The
 * same four kernels as matmul.c has, float32 results (`wide`) alone; what they refuse is lowered to
 * float32.
 *
 * A set of its own, "avx512bf16": the float32 kernels of "avx512" and these before them, so that
 * HOTLOOP_CPU=avx512 gives the bits of any AVX-512 machine. */
#include "kernels/cpu/gemm_bf16.h"

#include "kernels/cpu/matmul.h"

#if HL_ISA_AVX512

#define NAME(name) "cpu." name ".avx512bf16"

/* As in matmul.c; twice the multiply-adds in a nanosecond. */
static const double NS_PER_MAC = 0.0125, NS_PER_FLOAT = 0.2;

static bool is_bf16(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype == (i < 2 ? HL_DTYPE_BF16 : HL_DTYPE_F32)) continue;
        hl_reason_set(out_why_not, "needs bfloat16 and a float32 bias, got %s",
                      hl_dtype_name(dtype));
        return false;
    }
    if (hl_node_out_type(graph, node, 0)->dtype == HL_DTYPE_F32) return true;
    hl_reason_set(out_why_not, "gives float32, asked for bfloat16");
    return false;
}

/* ---- pack: b (K,N), or (N,K) with trans, float32 or bfloat16 ---- */

typedef struct pack_state {
    int64_t K, N, row_stride, col_stride;
    bool rounds;
} pack_state;

static pack_state make_pack(const hl_graph *graph, const hl_node *node)
{
    const hl_type *b = hl_node_in_type(graph, node, 0);
    const int64_t *dim = b->shape.dim;
    bool rounds = b->dtype == HL_DTYPE_F32;
    if (node->attrs.i[0]) return (pack_state){dim[1], dim[0], 1, dim[1], rounds};
    return (pack_state){dim[0], dim[1], dim[1], 1, rounds};
}

static hl_status query_pack(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    hl_dtype from = hl_node_in_type(graph, node, 0)->dtype,
             to = hl_node_out_type(graph, node, 0)->dtype;
    if (to != HL_DTYPE_BF16 || (from != HL_DTYPE_BF16 && from != HL_DTYPE_F32))
        return hl_reason_set(out_why_not, "packs bfloat16, got %s", hl_dtype_name(to));
    pack_state state = make_pack(graph, node);
    out_req->rows = hl_cpu_max(hl_gemm_panels(state.N), 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_FLOAT * (double)(state.K * HL_GEMM_PANEL);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_pack(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    pack_state state = make_pack(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

static void run_pack(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    const pack_state *pack = state->impl;
    end = hl_cpu_min(end, hl_gemm_panels(pack->N));
    if (begin >= end || pack->K == 0) return;
    if (pack->rounds)
        hl_gemm_bf16_pack_f32(pack->K, pack->N, args[0], pack->row_stride, pack->col_stride, begin,
                              end, args[1]);
    else
        hl_gemm_bf16_pack(pack->K, pack->N, args[0], pack->row_stride, pack->col_stride, begin, end,
                          args[1]);
}

/* ---- packed: a (M,K) @ packed b (K,n) + bias (n) ---- */

typedef struct packed_state {
    hl_gemm_bf16 gemm;
    int64_t M;
    bool has_bias;
} packed_state;

static packed_state make_packed(const hl_graph *graph, const hl_node *node)
{
    const int64_t *dim = hl_node_in_type(graph, node, 0)->shape.dim;
    int64_t N = node->attrs.i[0], K = dim[1];
    packed_state state = {.M = dim[0], .has_bias = node->n_in > 2};
    state.gemm = (hl_gemm_bf16){.n = N, .k = K, .a_row = K, .a_col = 1, .ldc = N};
    state.gemm.relu = node->attrs.i[1] != 0;
    return state;
}

static hl_status query_packed(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!is_bf16(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    packed_state state = make_packed(graph, node);
    out_req->thread_scratch_bytes = hl_gemm_bf16_scratch_bytes(&state.gemm);
    out_req->rows = hl_cpu_max(state.M, 1);
    out_req->grain = 1;
    out_req->row_in = out_req->row_out = 1;
    out_req->row_cost = NS_PER_MAC * (double)(state.gemm.n * state.gemm.k);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_packed(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    packed_state state = make_packed(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

static void run_packed(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const packed_state *packed = state->impl;
    hl_gemm_bf16 gemm = packed->gemm;
    gemm.a = args[0], gemm.b = args[1];
    gemm.bias = packed->has_bias ? args[2] : NULL;
    gemm.c = args[packed->has_bias ? 3 : 2];
    end = hl_cpu_min(end, packed->M);
    if (begin >= end || gemm.n == 0) return;
    if (gemm.k == 0)
        hl_matmul_fill_bias(gemm.c + begin * gemm.n, gemm.bias, end - begin, gemm.n, gemm.relu);
    else
        hl_gemm_bf16_rows(&gemm, begin, end, launch->thread_scratch);
}

/* ---- A^T B: a (K,M), b (K,N), the weight gradient ---- */

typedef struct tn_state {
    hl_gemm_bf16_tn gemm;
    hl_gemm_tn_plan plan;
} tn_state;

/* The float32 plan: its cut decides bits, and follows from the shape here too. */
static tn_state make_tn(const hl_device *device, const hl_graph *graph, const hl_node *node)
{
    const int64_t *a = hl_node_in_type(graph, node, 0)->shape.dim;
    const int64_t *b = hl_node_in_type(graph, node, 1)->shape.dim;
    tn_state state = {.gemm = {.m = a[1], .n = b[1], .k = a[0]}};
    int64_t n_tasks = device->n_threads > 1 ? 3 * device->n_threads : 1;
    hl_gemm_tn_plan_make(a[1], b[1], a[0], n_tasks, &state.plan);
    return state;
}

static hl_status query_tn(hl_device *device, const hl_graph *graph, hl_node_id id,
                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (!is_bf16(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape;
    bool fits =
        a->rank == 2 && b->rank == 2 && node->n_in == 2 && node->attrs.i[0] && !node->attrs.i[1];
    if (!fits || a->dim[0] == 0 || a->dim[1] == 0 || b->dim[1] == 0)
        return hl_reason_set(out_why_not, "needs A^T B of two matrices that are not empty");
    tn_state state = make_tn(device, graph, node);
    double macs = (double)state.gemm.m * (double)state.gemm.n * (double)state.gemm.k;
    out_req->scratch_bytes = state.plan.partial_bytes;
    out_req->thread_scratch_bytes = state.plan.scratch_bytes;
    out_req->rows = state.plan.n_tiles;
    out_req->grain = 1;
    out_req->row_cost = NS_PER_MAC * macs / (double)state.plan.n_tiles;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_tn(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_state *out_state)
{
    tn_state state = make_tn(device, graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

static void run_tn(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                   const hl_launch *launch)
{
    const tn_state *tn = state->impl;
    hl_gemm_bf16_tn gemm = tn->gemm;
    gemm.a = args[0], gemm.b = args[1], gemm.c = args[2];
    for (int64_t tile = begin; tile < end; tile++)
        hl_gemm_bf16_tn_tile(&gemm, &tn->plan, tile, launch->scratch, launch->thread_scratch);
}

static void finish_tn(const hl_kernel_state *state, void *const *args, const hl_launch *launch)
{
    const tn_state *tn = state->impl;
    const hl_gemm_bf16_tn *g = &tn->gemm;
    hl_gemm_tn sums = {.m = g->m, .n = g->n, .k = g->k, .c = args[2], .ldc = g->n, .alpha = 1};
    for (int64_t merge = 0; merge < tn->plan.n_merges; merge++)
        hl_gemm_tn_merge(&sums, &tn->plan, merge, launch->scratch);
}

/* ---- any other: a (...,M,K) @ b (...,K,N) + bias (N), a matrix of the result at a time ---- */

typedef struct batch_state {
    hl_gemm_bf16 gemm;
    int64_t M, n_batch, b_row, b_col;
    hl_shape batch;
    int64_t a_stride[HL_MAX_RANK], b_stride[HL_MAX_RANK]; /* of batch dims, 0: broadcast */
    bool has_bias;
} batch_state;

static batch_state make_batch(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape;
    const hl_shape *out = &hl_node_out_type(graph, node, 0)->shape;
    bool trans_a = node->attrs.i[0] != 0, trans_b = node->attrs.i[1] != 0;
    int64_t M = out->dim[out->rank - 2], N = out->dim[out->rank - 1];
    int64_t K = a->dim[a->rank - (trans_a ? 2 : 1)];
    batch_state state = {.M = M, .has_bias = node->n_in > 2};
    state.batch = hl_shape_make(out->rank - 2, out->dim);
    state.n_batch = hl_shape_numel(&state.batch);
    hl_matmul_batch_strides(a, &state.batch, state.a_stride);
    hl_matmul_batch_strides(b, &state.batch, state.b_stride);
    state.gemm = (hl_gemm_bf16){.n = N, .k = K, .ldc = N};
    state.gemm.a_row = trans_a ? 1 : K, state.gemm.a_col = trans_a ? M : 1;
    state.b_row = trans_b ? 1 : N, state.b_col = trans_b ? K : 1;
    return state;
}

static size_t count_pack_bytes(const batch_state *state)
{
    size_t bytes = hl_gemm_bf16_pack_bytes(state->gemm.k, state->gemm.n);
    return (bytes + HL_ALIGN - 1) / HL_ALIGN * HL_ALIGN;
}

static hl_status query_batch(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!is_bf16(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    batch_state state = make_batch(graph, node);
    double macs = (double)state.M * (double)(state.gemm.n * state.gemm.k);
    out_req->thread_scratch_bytes =
        count_pack_bytes(&state) + hl_gemm_bf16_scratch_bytes(&state.gemm);
    out_req->rows = hl_cpu_max(state.n_batch, 1);
    out_req->grain = 1;
    out_req->row_out = 1;
    out_req->row_cost = NS_PER_MAC * macs;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_batch(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    batch_state state = make_batch(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

static void run_batch(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const batch_state *batch = state->impl;
    hl_gemm_bf16 gemm = batch->gemm;
    float *c = args[batch->has_bias ? 3 : 2];
    hl_bf16_pair *packed = launch->thread_scratch;
    gemm.bias = batch->has_bias ? args[2] : NULL;
    gemm.b = packed;
    end = hl_cpu_min(end, batch->n_batch);
    if (batch->M == 0 || gemm.n == 0) return;
    for (int64_t i = begin; i < end; i++) {
        gemm.a = (const uint16_t *)args[0] + hl_matmul_find(&batch->batch, batch->a_stride, i);
        gemm.c = c + i * batch->M * gemm.n;
        if (gemm.k == 0) {
            hl_matmul_fill_bias(gemm.c, gemm.bias, batch->M, gemm.n, false);
            continue;
        }
        hl_gemm_bf16_pack(gemm.k, gemm.n,
                          (const uint16_t *)args[1] +
                              hl_matmul_find(&batch->batch, batch->b_stride, i),
                          batch->b_row, batch->b_col, 0, hl_gemm_panels(gemm.n), packed);
        hl_gemm_bf16_rows(&gemm, 0, batch->M,
                          (unsigned char *)launch->thread_scratch + count_pack_bytes(batch));
    }
}

/* ---- kernels ---- */

static const hl_kernel pack = {.op = HL_OP_MATMUL_PACK,
                               .name = NAME("matmul.pack"),
                               .query = query_pack,
                               .prepare = prepare_pack,
                               .block = run_pack};
static const hl_kernel packed = {.op = HL_OP_MATMUL_PACKED,
                                 .name = NAME("matmul.packed"),
                                 .query = query_packed,
                                 .prepare = prepare_packed,
                                 .block = run_packed};
static const hl_kernel tiles = {.op = HL_OP_MATMUL,
                                .name = NAME("matmul.tiles"),
                                .query = query_tn,
                                .prepare = prepare_tn,
                                .block = run_tn,
                                .finish = finish_tn};
static const hl_kernel batched = {.op = HL_OP_MATMUL,
                                  .name = NAME("matmul.batched"),
                                  .query = query_batch,
                                  .prepare = prepare_batch,
                                  .block = run_batch};

const hl_kernel *const hl_cpu_matmul_bf16_kernels_avx512[] = {&pack, &packed, &tiles, &batched,
                                                              NULL};

#endif
