/* The kernels of matrix products, written once for all types: nodes as calls of a GEMM core. A file
 * that includes this gives the core first:
 *
 * TYPE                the core's type (gemm.h)
 * DTYPE               that of an operand
 * KERNEL(name)        a kernel's whole name
 * KERNELS             the array of kernels
 * NS_PER_MAC          a multiply-add on one core, ns, roughly
 * takes, takes_pack   whether a product's types, a packing's, are its own, and why not
 *
 * MATMUL_PACK and MATMUL_PACKED are a weight's two halves: packed once a step, used by every block
 * of rows. A^T B of two matrices, the weight gradient, is partitioned into tiles of the result.
 * Every other product packs its B as it goes, a few panels at a time into the thread's scratch: by
 * rows of the result where there are few matrices, by matrix where there are many. */

/* Of moving a float, ns on one core, roughly. */
static const double NS_PER_FLOAT = 0.2;

static const int64_t ELEMENT_BYTES = DTYPE == HL_DTYPE_F32 ? 4 : 2;

/* ---- pack ---- */

static hl_status query_pack(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!takes_pack(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    hl_gemm_b b = hl_matmul_describe_weight(TYPE, graph, node);
    out_req->rows = hl_cpu_max(hl_gemm_panels(b.n), 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_FLOAT * (double)(b.k * HL_GEMM_PANEL);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_pack(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    hl_gemm_b b = hl_matmul_describe_weight(TYPE, graph, &graph->nodes[id]);
    return hl_cpu_give_state(&b, sizeof b, out_state);
}

static void run_pack(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    (void)launch;
    hl_gemm_b b = *(const hl_gemm_b *)state->impl;
    b.at = args[0];
    end = hl_cpu_min(end, hl_gemm_panels(b.n));
    if (begin < end && b.k != 0) hl_gemm_pack(&b, begin, end, args[1]);
}

/* ---- operands ---- */

static void set_args(hl_gemm *gemm, const hl_epilogue *epilogue, int32_t out, void *const *args)
{
    gemm->a = args[0], gemm->b = args[1], gemm->c = args[out];
    gemm->epilogue = hl_epilogue_steps(epilogue, args, gemm->n);
}

/* The residual is read row by row, and where the result may lie that is all of it. */
static hl_status require_epilogue(const hl_graph *graph, const hl_node *node, const hl_gemm *gemm,
                                  const hl_epilogue *epilogue, hl_kernel_req *out_req,
                                  hl_reason *out_why_not)
{
    HL_TRY(hl_epilogue_require(graph, node, epilogue, out_why_not));
    if (!epilogue->residual) return HL_OK;
    out_req->row_in |= (uint64_t)1 << epilogue->residual;
    if (hl_gemm_is_one_block(gemm)) out_req->in_place[0] = (uint64_t)1 << epilogue->residual;
    return HL_OK;
}

/* ---- packed: a (M,K) @ packed b (K,n) + bias (n) ---- */

typedef struct packed_state {
    hl_gemm gemm;
    int64_t M;
    hl_epilogue epilogue;
    int32_t out; /* number in args */
} packed_state;

static packed_state make_packed(const hl_graph *graph, const hl_node *node)
{
    const int64_t *dim = hl_node_in_type(graph, node, 0)->shape.dim;
    int64_t N = hl_matmul_packed_attrs(node)->n, K = dim[1];
    packed_state state = {.M = dim[0], .gemm = hl_matmul_make_gemm(TYPE, N, K, K, 1)};
    state.epilogue = hl_epilogue_make(graph, node);
    state.out = node->n_in;
    return state;
}

static hl_status query_packed(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!takes(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    packed_state state = make_packed(graph, node);
    out_req->thread_scratch_bytes = hl_gemm_scratch_bytes(&state.gemm);
    out_req->rows = hl_cpu_max(state.M, 1);
    out_req->grain = 1;
    out_req->row_in = out_req->row_out = 1;
    out_req->row_cost = NS_PER_MAC * (double)(state.gemm.n * state.gemm.k);
    out_req->deterministic = true;
    return require_epilogue(graph, node, &state.gemm, &state.epilogue, out_req, out_why_not);
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
    hl_gemm gemm = packed->gemm;
    set_args(&gemm, &packed->epilogue, packed->out, args);
    end = hl_cpu_min(end, packed->M);
    if (begin < end) hl_gemm_run(&gemm, begin, end, 0, gemm.n, launch->thread_scratch);
}

/* ---- A^T B: a (K,M), b (K,N), the weight gradient ---- */

/* A partial sum read and added on one core, ns, roughly. */
static const double NS_PER_SUM = 0.25;

typedef struct tn_state {
    hl_gemm_tn gemm;
    hl_gemm_tn_plan plan;
} tn_state;

/* Tiles for the threads there are; the bits are the same for any number of them. */
static tn_state make_tn(const hl_device *device, const hl_graph *graph, const hl_node *node)
{
    const int64_t *a = hl_node_in_type(graph, node, 0)->shape.dim;
    const int64_t *b = hl_node_in_type(graph, node, 1)->shape.dim;
    tn_state state = {.gemm = hl_matmul_make_tn(TYPE, a[1], b[1], a[0])};
    int64_t n_tasks = device->n_threads > 1 ? 3 * device->n_threads : 1;
    hl_gemm_tn_plan_make(a[1], b[1], a[0], n_tasks, &state.plan);
    return state;
}

static hl_status query_tn(hl_device *device, const hl_graph *graph, hl_node_id id,
                          hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (!takes(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape;
    bool fits = a->rank == 2 && b->rank == 2 && node->n_in == 2 && hl_matmul_attrs(node)->trans_a &&
                !hl_matmul_attrs(node)->trans_b;
    if (!fits || a->dim[0] == 0 || a->dim[1] == 0 || b->dim[1] == 0) {
        return hl_reason_set(out_why_not, "needs A^T B of two matrices that are not empty");
    }
    tn_state state = make_tn(device, graph, node);
    double macs = (double)state.gemm.m * (double)state.gemm.n * (double)state.gemm.k;
    out_req->scratch_bytes = state.plan.partial_bytes;
    out_req->thread_scratch_bytes = state.plan.scratch_bytes;
    out_req->rows = state.plan.n_tiles;
    out_req->grain = 1;
    out_req->row_cost = NS_PER_MAC * macs / (double)state.plan.n_tiles;
    out_req->deterministic = true;
    if (!state.plan.n_merges) return HL_OK;
    double sums = (double)state.plan.partial_bytes / sizeof(float);
    out_req->n_phases = 2;
    out_req->phase_rows = state.plan.n_merges;
    out_req->phase_row_cost = NS_PER_SUM * sums / (double)state.plan.n_merges;
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
    hl_gemm_tn gemm = tn->gemm;
    gemm.a = args[0], gemm.b = args[1], gemm.c = args[2];
    for (int64_t i = begin; i < end; i++) {
        if (launch->phase == 0)
            hl_gemm_tn_tile(&gemm, &tn->plan, i, launch->scratch, launch->thread_scratch);
        else
            hl_gemm_tn_merge(&gemm, &tn->plan, i, launch->scratch);
    }
}

/* ---- any other: a (...,M,K) @ b (...,K,N) + bias (N) ---- */

enum {
    MANY_MATRICES = 16,       /* from here on a matrix is a row of the work */
    GROUP_BYTES = 256 * 1024, /* of packed B at a time: half of a 512 KiB second-level cache */
    GRAIN_ROWS = 64           /* so that packing costs little beside multiplying */
};

typedef struct batch_state {
    hl_gemm gemm;
    int64_t M, n_batch;
    hl_gemm_b b;
    hl_shape batch;
    int64_t a_stride[HL_MAX_RANK], b_stride[HL_MAX_RANK]; /* of batch dims, 0: broadcast */
    bool by_matrix;
    hl_epilogue epilogue;
    int32_t out;      /* number in args */
    int64_t n_panels; /* in a group */
} batch_state;

static batch_state make_batch(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *a = &hl_node_in_type(graph, node, 0)->shape,
                   *b = &hl_node_in_type(graph, node, 1)->shape;
    const hl_shape *c = &hl_node_out_type(graph, node, 0)->shape;
    bool trans_a = hl_matmul_attrs(node)->trans_a, trans_b = hl_matmul_attrs(node)->trans_b;
    int64_t M = c->dim[c->rank - 2], N = c->dim[c->rank - 1];
    int64_t K = a->dim[a->rank - (trans_a ? 2 : 1)];
    batch_state state = {.M = M};
    state.batch = hl_shape_make(c->rank - 2, c->dim);
    state.n_batch = hl_shape_numel(&state.batch);
    hl_matmul_batch_strides(a, &state.batch, state.a_stride);
    hl_matmul_batch_strides(b, &state.batch, state.b_stride);
    if (b->rank == 2 && !trans_a && a->rank == c->rank) {
        state.M *= state.n_batch, state.n_batch = 1;
        state.batch.rank = 0;
    }
    state.gemm = hl_matmul_make_gemm(TYPE, N, K, trans_a ? 1 : K, trans_a ? M : 1);
    state.epilogue = hl_epilogue_make(graph, node);
    state.out = node->n_in;
    state.b = hl_matmul_make_b(TYPE, DTYPE, K, N, trans_b);
    state.by_matrix = state.n_batch >= MANY_MATRICES;
    int64_t panel_bytes = (int64_t)hl_gemm_pack_bytes(TYPE, 1, K, HL_GEMM_PANEL);
    int64_t fits = GROUP_BYTES / hl_cpu_max(panel_bytes, 1);
    state.n_panels = hl_cpu_min(hl_cpu_max(fits, 1), hl_gemm_panels(N));
    return state;
}

/* True when every batch dim is the operand's own, so that its parts are the matrices in order. */
static bool has_whole_batch(const batch_state *state, const int64_t *stride)
{
    for (int d = 0; d < state->batch.rank; d++) {
        if (stride[d] == 0 && state->batch.dim[d] != 1) return false;
    }
    return true;
}

static size_t count_pack_bytes(const batch_state *state)
{
    int64_t n = state->n_panels * HL_GEMM_PANEL;
    size_t bytes = hl_gemm_pack_bytes(TYPE, 1, state->gemm.k, hl_cpu_min(n, state->gemm.n));
    return (bytes + HL_ALIGN - 1) / HL_ALIGN * HL_ALIGN;
}

static hl_status query_batch(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!takes(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    batch_state state = make_batch(graph, node);
    int64_t rows = state.by_matrix ? state.n_batch : state.n_batch * state.M;
    bool a_rows = has_whole_batch(&state, state.a_stride);
    bool b_rows = has_whole_batch(&state, state.b_stride) && state.by_matrix;
    if (!state.by_matrix && hl_matmul_attrs(node)->trans_a) a_rows = false;
    double macs = (double)(state.gemm.n * state.gemm.k) * (double)(state.by_matrix ? state.M : 1);
    out_req->thread_scratch_bytes = count_pack_bytes(&state) + hl_gemm_scratch_bytes(&state.gemm);
    out_req->rows = hl_cpu_max(rows, 1);
    out_req->grain = state.by_matrix ? 1 : GRAIN_ROWS;
    out_req->row_in = (uint64_t)a_rows | (uint64_t)b_rows << 1;
    out_req->row_out = 1;
    out_req->row_cost = NS_PER_MAC * macs;
    out_req->deterministic = true;
    return require_epilogue(graph, node, &state.gemm, &state.epilogue, out_req, out_why_not);
}

static hl_status prepare_batch(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    batch_state state = make_batch(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

/* Rows [begin, end) of one matrix of the result, group of panels by group. */
static void run_matrix(const batch_state *state, const hl_gemm *gemm, const unsigned char *b,
                       int64_t begin, int64_t end, unsigned char *scratch)
{
    int64_t n_panels = hl_gemm_panels(gemm->n);
    void *gemm_scratch = scratch + count_pack_bytes(state);
    for (int64_t panel = 0; panel < n_panels; panel += state->n_panels) {
        int64_t col = panel * HL_GEMM_PANEL;
        hl_gemm part = *gemm;
        hl_gemm_b part_b = state->b;
        part.n = part_b.n = hl_cpu_min(state->n_panels * HL_GEMM_PANEL, gemm->n - col);
        part.c += col, part.b = (hl_gemm_word *)(void *)scratch;
        hl_epilogue_move(&part.epilogue, 0, col);
        part_b.at = b + col * part_b.n_stride * ELEMENT_BYTES;
        if (part.k != 0)
            hl_gemm_pack(&part_b, 0, hl_gemm_panels(part.n), (hl_gemm_word *)(void *)scratch);
        hl_gemm_run(&part, begin, end, 0, part.n, gemm_scratch);
    }
}

static void run_batch(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const batch_state *batch = state->impl;
    const int64_t size = batch->M * batch->gemm.n;
    int64_t scale = batch->by_matrix ? batch->M : 1;
    int64_t first = begin * scale, last = hl_cpu_min(end * scale, batch->n_batch * batch->M);
    while (first < last) {
        int64_t matrix = first / batch->M, row = first % batch->M;
        int64_t stop = hl_cpu_min(batch->M, row + last - first);
        int64_t a = hl_matmul_find(&batch->batch, batch->a_stride, matrix);
        int64_t b = hl_matmul_find(&batch->batch, batch->b_stride, matrix);
        hl_gemm gemm = batch->gemm;
        set_args(&gemm, &batch->epilogue, batch->out, args);
        gemm.a = (const unsigned char *)args[0] + a * ELEMENT_BYTES;
        gemm.c += matrix * size;
        hl_epilogue_move(&gemm.epilogue, matrix * batch->M, 0);
        run_matrix(batch, &gemm, (const unsigned char *)args[1] + b * ELEMENT_BYTES, row, stop,
                   launch->thread_scratch);
        first += stop - row;
    }
}

/* ---- kernels ---- */

static const hl_kernel pack = {.op = HL_OP_MATMUL_PACK,
                               .name = KERNEL("matmul.pack"),
                               .query = query_pack,
                               .prepare = prepare_pack,
                               .block = run_pack};
static const hl_kernel packed = {.op = HL_OP_MATMUL_PACKED,
                                 .name = KERNEL("matmul.packed"),
                                 .fusions = hl_epilogue_texts,
                                 .query = query_packed,
                                 .prepare = prepare_packed,
                                 .block = run_packed};
static const hl_kernel tiles = {.op = HL_OP_MATMUL,
                                .name = KERNEL("matmul.tiles"),
                                .query = query_tn,
                                .prepare = prepare_tn,
                                .block = run_tn};
static const hl_kernel batched = {.op = HL_OP_MATMUL,
                                  .name = KERNEL("matmul.batched"),
                                  .fusions = hl_epilogue_texts,
                                  .query = query_batch,
                                  .prepare = prepare_batch,
                                  .block = run_batch};

const hl_kernel *const KERNELS[] = {&pack, &packed, &tiles, &batched, NULL};
