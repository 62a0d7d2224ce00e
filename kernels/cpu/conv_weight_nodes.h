/* The kernel of convolutions' weight gradients, written once for all types. A file that includes
 * this gives first:
 *
 * TYPE           the GEMM core's type (gemm.h)
 * DTYPE, ELEMENT that of dy and x; the result is float32
 * KERNEL(name)   a kernel's whole name
 * KERNELS        the array of kernels
 * NS_PER_MAC     a multiply-add on one core, ns, roughly
 * TILE_IN        columns of B in a task, roughly: several taps of few channels
 *
 * The gradient is A^T B with a long reduction over pixels, where A has the
 * result's gradient and B what the taps read, by the GEMM core (gemm.h). Channels stand last.
 *
 * B does not lie in rows, but for a kernel of one element: a block of pixels is packed for some
 * taps, from a pointer for each, and multiplied while it is in cache; where channels are not whole
 * panels it is copied first. A task is a share of
 * the pixels for some taps and some channels of the result; there are several shares where weights
 * are few, whose partial sums are added in their order in a second phase, which also brings them
 * into the weight's order. Where there is one share and one tap, sums are made in their place. The
 * division follows from the shape alone. */
enum {
    BLOCK = 256,       /* pixels that are copied at a time */
    TILE_OUT = 256,    /* the most channels of the result in a task */
    FEW_CHANNELS = 16, /* below it lines of the kernel are copied at once */
    TASKS = 16,        /* that there should be */
    SHARE_MIN = 1024   /* pixels that pay for writing and adding up a partial sum */
};

static const double NS_PER_SUM = 1;

typedef struct weight_state {
    hl_taps taps;
    int64_t groups, in, out; /* channels of a group */
    int64_t O, n_taps;
    bool is_matrix; /* x itself is what the only tap reads */
    bool is_packed; /* from where the taps read */
    bool is_direct; /* sums are made in the weight */
    int64_t block;  /* pixels at a time */
    int64_t line;   /* taps of a line of the kernel, where lines are copied at once; else 0 */
    int64_t taps_each, n_parts; /* taps of a task, and how many such parts there are */
    int64_t out_each, n_outs;   /* channels of the result */
    int64_t share, n_shares;    /* pixels */
    hl_gemm_tn_plan plan;       /* of the largest task */
    size_t zeros, pointers, rows, sums, gemm, thread_bytes;
} weight_state;

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + HL_ALIGN - 1) / HL_ALIGN * HL_ALIGN;
    return at;
}

static void divide(weight_state *s)
{
    int64_t in = hl_cpu_max(s->in, 1), n_rows = s->taps.n_rows;
    s->taps_each = hl_cpu_min(hl_cpu_max(TILE_IN / in, 1), s->n_taps);
    if (s->groups == 1 && s->in < FEW_CHANNELS && hl_taps_are_runs(&s->taps))
        s->line = s->taps.window.kernel[s->taps.window.n - 1];
    if (s->line) s->taps_each = hl_cpu_max(s->taps_each / s->line, 1) * s->line;
    s->n_parts = hl_cpu_ceil_div(s->n_taps, s->taps_each);
    if (!s->line) s->taps_each = hl_cpu_ceil_div(s->n_taps, hl_cpu_max(s->n_parts, 1));
    s->n_outs = hl_cpu_ceil_div(hl_cpu_max(s->out, 1), TILE_OUT);
    s->out_each = hl_cpu_ceil_div(s->out, s->n_outs);
    int64_t tasks = s->groups * s->n_parts * s->n_outs;
    s->n_shares = hl_cpu_min(hl_cpu_ceil_div(TASKS, tasks), n_rows / SHARE_MIN);
    s->n_shares = hl_cpu_max(s->n_shares, 1);
    s->share = hl_cpu_ceil_div(hl_cpu_ceil_div(n_rows, s->n_shares), s->block) * s->block;
}

static weight_state make_state(const hl_graph *graph, const hl_node *node)
{
    hl_conv conv = hl_conv_of(graph, node);
    weight_state s = {.taps = hl_taps_make(&conv, false),
                      .groups = conv.groups,
                      .in = conv.C / conv.groups,
                      .out = conv.O / conv.groups,
                      .O = conv.O};
    s.n_taps = s.taps.n_taps;
    s.is_matrix = hl_taps_are_pixels(&s.taps);
    s.block = s.is_matrix ? 4 * BLOCK : BLOCK;
    divide(&s);
    s.is_direct = s.n_taps == 1 && s.n_shares == 1;
    s.is_packed = s.in > 0 && s.in % HL_GEMM_PANEL == 0 && !s.is_matrix && !s.line;
    hl_gemm_tn_plan_make(s.out_each, s.taps_each * s.in, s.block, 1, &s.plan);
    s.zeros = take(&s.thread_bytes, (size_t)conv.C * sizeof(ELEMENT));
    s.pointers = take(&s.thread_bytes, (size_t)(s.taps_each * BLOCK) * sizeof(void *));
    if (!s.is_packed)
        s.rows = take(&s.thread_bytes, (size_t)(s.taps_each * s.in * BLOCK) * sizeof(ELEMENT));
    s.sums = take(&s.thread_bytes, (size_t)(s.in * s.n_taps) * sizeof(float));
    s.gemm = take(&s.thread_bytes, s.plan.scratch_bytes);
    return s;
}

static hl_status query_weight(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    for (int i = 0; i < 2; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype != DTYPE)
            return hl_reason_set(out_why_not, "needs %s, got %s", hl_dtype_name(DTYPE),
                                 hl_dtype_name(dtype));
    }
    if (hl_node_out_type(graph, node, 0)->dtype != HL_DTYPE_F32)
        return hl_reason_set(out_why_not, "gives float32");
    out_req->deterministic = true;
    if (!hl_conv_attrs(node)->channels_last) {
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
        return HL_OK;
    }
    weight_state s = make_state(graph, node);
    double n_weights = (double)(s.groups * s.in * s.out) * (double)s.n_taps;
    int64_t n_tasks = s.groups * s.n_parts * s.n_outs * s.n_shares;
    if (!s.is_direct)
        out_req->scratch_bytes =
            (size_t)(s.n_shares * s.groups * s.in * s.out * s.n_taps) * sizeof(float);
    out_req->thread_scratch_bytes = s.thread_bytes;
    out_req->rows = hl_cpu_max(n_tasks, 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_MAC * n_weights * (double)s.taps.n_rows / (double)out_req->rows;
    out_req->n_phases = s.is_direct ? 1 : 2;
    out_req->phase_rows = hl_cpu_max(s.O, 1);
    out_req->phase_row_cost = NS_PER_SUM * (double)(s.in * s.n_taps * s.n_shares);
    return HL_OK;
}

static hl_status prepare_weight(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    weight_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- sums over pixels ------------------------------------------------------------------------ */

/* What a task sums: channels [out0, out0 + n_out) of a group's result times taps [tap0, tap0 +
 * n_taps), over pixels [row0, row1). */
typedef struct weight_task {
    int64_t group, out0, n_out, tap0, n_taps, row0, row1;
    float *c; /* (n_out, n_taps * in), rows ldc apart */
    int64_t ldc;
} weight_task;

static weight_task find_task(const weight_state *s, int64_t i, float *partials)
{
    weight_task task = {0};
    int64_t part = i % s->n_parts, share;
    i /= s->n_parts;
    task.out0 = i % s->n_outs * s->out_each;
    i /= s->n_outs;
    task.group = i % s->groups;
    share = i / s->groups;
    task.tap0 = part * s->taps_each;
    task.n_taps = hl_cpu_min(s->taps_each, s->n_taps - task.tap0);
    task.n_out = hl_cpu_min(s->out_each, s->out - task.out0);
    task.row0 = hl_cpu_min(share * s->share, s->taps.n_rows);
    task.row1 = hl_cpu_min(task.row0 + s->share, s->taps.n_rows);
    task.ldc = s->n_taps * s->in;
    task.c = partials +
             ((share * s->O + task.group * s->out + task.out0) * s->n_taps + task.tap0) * s->in;
    return task;
}

/* What the task's taps read for n pixels, tap by tap side by side. */
static void copy_rows(const weight_state *s, const weight_task *task, const void **pointers,
                      int64_t n, ELEMENT *to)
{
    const size_t bytes = (size_t)s->in * sizeof(ELEMENT);
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < task->n_taps; t++, to += s->in) {
            const ELEMENT *from = pointers[t * BLOCK + i];
            memcpy(to, from + task->group * s->in, bytes);
        }
}

static void run_task(const weight_state *s, const weight_task *task, const ELEMENT *dy,
                     const ELEMENT *x, unsigned char *own)
{
    const hl_taps_class *class = &s->taps.classes[0];
    const void **pointers = (const void **)(own + s->pointers);
    ELEMENT *rows = (ELEMENT *)(own + s->rows);
    hl_gemm_tn gemm = {.type = TYPE,
                       .m = task->n_out,
                       .n = task->n_taps * s->in,
                       .lda = s->O,
                       .b = rows,
                       .ldb = task->n_taps * s->in,
                       .ld_segments = BLOCK,
                       .segment_n = s->in,
                       .segment_offset = task->group * s->in,
                       .c = task->c,
                       .ldc = task->ldc,
                       .alpha = 1};
    hl_gemm_tn_plan plan;
    int64_t row = task->row0;
    if (s->is_packed) gemm.segments = pointers;
    do { /* once for no pixels too: the sums are to be written */
        gemm.k = hl_cpu_min(s->block, task->row1 - row);
        gemm.a = dy + row * s->O + task->group * s->out + task->out0;
        if (s->is_matrix) {
            gemm.b = x + row * s->taps.channels + task->group * s->in;
            gemm.ldb = s->taps.channels;
        } else if (s->line) {
            hl_taps_copy_lines(&s->taps, row, gemm.k, task->tap0 / s->line,
                               (task->tap0 + task->n_taps) / s->line, x, sizeof(ELEMENT), rows,
                               gemm.ldb * (int64_t)sizeof(ELEMENT));
        } else {
            hl_taps_point(&s->taps, class, row, gemm.k, task->tap0, task->tap0 + task->n_taps, x,
                          sizeof(ELEMENT), own + s->zeros, pointers, BLOCK);
            if (!s->is_packed) copy_rows(s, task, pointers, gemm.k, rows);
        }
        hl_gemm_tn_plan_make(gemm.m, gemm.n, s->block, 1, &plan);
        for (int64_t i = 0; i < plan.n_tiles; i++)
            hl_gemm_tn_tile(&gemm, &plan, i, NULL, own + s->gemm);
        gemm.accumulate = true;
        row += s->block;
    } while (row < task->row1);
}

static void run_tasks(const weight_state *s, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    unsigned char *own = launch->thread_scratch;
    end = hl_cpu_min(end, s->groups * s->n_parts * s->n_outs * s->n_shares);
    if (begin < end) memset(own + s->zeros, 0, (size_t)s->taps.channels * sizeof(ELEMENT));
    for (int64_t i = begin; i < end; i++) {
        weight_task task = find_task(s, i, s->is_direct ? args[2] : launch->scratch);
        run_task(s, &task, args[0], args[1], own);
    }
}

/* to (cols,rows) = the transpose of from (rows,cols) */
static void turn(int64_t rows, int64_t cols, const float *from, float *to)
{
    for (int64_t j = 0; j < cols; j += HL_VL)
        for (int64_t i = 0; i < rows; i += HL_VL) {
            int64_t height = hl_cpu_min(rows - i, HL_VL), width = hl_cpu_min(cols - j, HL_VL);
            hl_v square[HL_VL];
            for (int64_t r = 0; r < HL_VL; r++)
                square[r] =
                    r < height ? hl_v_load_n(from + (i + r) * cols + j, width) : hl_v_zero();
            hl_v_transpose(square);
            for (int64_t c = 0; c < width; c++)
                hl_v_store_n(to + (j + c) * rows + i, square[c], height);
        }
}

/* Rows [begin, end) of the weight (O,in,taps) from the shares' (O,taps,in). */
static void merge_shares(const weight_state *s, const float *partials, float *weight, int64_t begin,
                         int64_t end, float *sums)
{
    const int64_t row = s->in * s->n_taps;
    end = hl_cpu_min(end, s->O);
    for (int64_t o = begin; o < end; o++) {
        const float *from = partials + o * row;
        float *to = weight + o * row;
        if (s->n_shares > 1) {
            memcpy(sums, from, (size_t)row * sizeof *sums);
            for (int64_t k = 1; k < s->n_shares; k++) {
                from += s->O * row;
                for (int64_t i = 0; i < row; i++) sums[i] += from[i];
            }
            from = sums;
        }
        turn(s->n_taps, s->in, from, to);
    }
}

static void run_weight(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const weight_state *s = state->impl;
    if (launch->phase == 0)
        run_tasks(s, args, begin, end, launch);
    else
        merge_shares(s, launch->scratch, args[2], begin, end,
                     (float *)((unsigned char *)launch->thread_scratch + s->sums));
}

static const hl_kernel weight_grad = {.op = HL_OP_CONV_WEIGHT_GRAD,
                                      .name = KERNEL("conv_weight_grad"),
                                      .query = query_weight,
                                      .prepare = prepare_weight,
                                      .block = run_weight};

const hl_kernel *const KERNELS[] = {&weight_grad, NULL};
