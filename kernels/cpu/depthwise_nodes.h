/* The kernels of convolutions of each channel by itself, written once for all types. A file that
 * includes this gives first:
 *
 * DTYPE, ELEMENT  that of x, dy and the weight; bias and results are float32
 * LOAD(p, n)      n of them as floats
 * TO_FLOAT(x)     one
 * KERNEL(name)    a kernel's whole name
 * KERNELS         the array of kernels
 *
 * Convolutions of each channel by itself (groups = C = O), and their gradients. Channels stand
 * last, and a vector has so many of them.
 *
 * Along a dim, a result reads a run of taps; of a transposed convolution without strides the same
 * is true with the taps in reverse, so that it is a convolution here. Results in the midst of a
 * row, which read all taps of it, are taken PIXELS at a time, with a weight loaded once for all of
 * them. Others go through a list of what they read. Both add up taps in the same order.
 *
 * The weight gradient sums over pixels: a task is some rows of the result for one vector of
 * channels; a row's sums stay in registers for the taps of one row of the kernel. Partial sums of
 * tasks are added in their order in a second phase. The division follows from the shape alone. */
enum {
    DIMS = HL_WINDOW_DIMS,
    PIXELS = 8,      /* results side by side */
    VECTORS = 4,     /* of channels, for one result */
    TAPS_MAX = 4096, /* in a kernel */
    LINE_TAPS = 8,   /* of the weight gradient, whose sums are in registers */
    TASKS = 32,      /* that there should be */
    ROWS_MAX = 256   /* of the result in a partial sum */
};

static const double NS_PER_MAC = 0.04, NS_PER_FLOAT = 0.5;

/* One dim: a result at r reads source r * stride - before + t * dilation for tap t; a transposed
 * one (r + before - t * dilation) / stride, where that leaves no remainder. */
typedef struct depth_dim {
    int64_t source, result, kernel, stride, dilation, before;
    bool is_transposed, is_reversed; /* taps of the weight */
} depth_dim;

typedef struct depth_state {
    depth_dim dim[DIMS];
    int64_t N, C, n_taps;
    int64_t n_rows; /* of results, of all images */
    hl_epilogue epilogue;
    int32_t result; /* number in args */
    hl_moments moments;
    int64_t n_vectors, share, n_shares; /* of the weight gradient: rows of results */
} depth_state;

/* What a result reads: elements from the source's first, and the tap. */
typedef struct depth_tap {
    int64_t source, tap;
} depth_tap;

static depth_dim make_dim(const hl_window *w, int d, bool transposed)
{
    depth_dim dim = {transposed ? w->out[d] : w->in[d],
                     transposed ? w->in[d] : w->out[d],
                     w->kernel[d],
                     w->stride[d],
                     w->dilation[d],
                     w->before[d],
                     transposed,
                     false};
    if (transposed && dim.stride == 1) {
        dim.before = (dim.kernel - 1) * dim.dilation - dim.before;
        dim.is_transposed = false, dim.is_reversed = true;
    }
    return dim;
}

static depth_state make_state(const hl_graph *graph, const hl_node *node)
{
    hl_conv conv = hl_conv_of(graph, node);
    const hl_window *w = &conv.window;
    bool transposed = node->op == HL_OP_CONV_TRANSPOSE;
    depth_state s = {.N = conv.N,
                     .C = conv.C,
                     .n_taps = 1,
                     .epilogue = hl_epilogue_make(graph, node),
                     .result = node->n_in};
    for (int i = 0; i < DIMS; i++) { /* the window's dims stand first, here they stand last */
        int d = i - (DIMS - w->n);
        s.dim[i] = d < 0 ? (depth_dim){1, 1, 1, 1, 1, 0, false, false} : make_dim(w, d, transposed);
        s.n_taps *= s.dim[i].kernel;
    }
    s.n_rows = s.N * s.dim[0].result * s.dim[1].result;
    s.moments = hl_moments_make(s.n_rows * s.dim[DIMS - 1].result, s.C, s.dim[DIMS - 1].result);
    s.n_vectors = hl_cpu_ceil_div(s.C, HL_VL);
    int64_t shares = hl_cpu_max(hl_cpu_ceil_div(TASKS, hl_cpu_max(s.n_vectors, 1)),
                                hl_cpu_ceil_div(s.n_rows, ROWS_MAX));
    s.share = hl_cpu_max(hl_cpu_ceil_div(s.n_rows, shares), 1);
    s.n_shares = hl_cpu_max(hl_cpu_ceil_div(s.n_rows, s.share), 1);
    return s;
}

/* The source of tap t for result r along a dim; -1: padding. */
static int64_t find_source(const depth_dim *dim, int64_t r, int64_t t)
{
    int64_t at = r * dim->stride - dim->before + t * dim->dilation;
    if (dim->is_transposed) {
        at = r + dim->before - t * dim->dilation;
        if (at < 0 || at % dim->stride != 0) return -1;
        at /= dim->stride;
    }
    return at >= 0 && at < dim->source ? at : -1;
}

static hl_status query_common(const hl_graph *graph, const hl_node *node, hl_kernel_req *out_req,
                              hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype != (i < 2 ? DTYPE : HL_DTYPE_F32))
            return hl_reason_set(out_why_not, "needs %s, got %s", hl_dtype_name(DTYPE),
                                 hl_dtype_name(dtype));
    }
    if (hl_node_out_type(graph, node, 0)->dtype != HL_DTYPE_F32)
        return hl_reason_set(out_why_not, "gives float32");
    hl_conv conv = hl_conv_of(graph, node);
    if (conv.groups != conv.C || conv.groups != conv.O || conv.groups == 1)
        return hl_reason_set(out_why_not, "needs each channel by itself");
    if (hl_window_span(conv.window.kernel) > TAPS_MAX)
        return hl_reason_set(out_why_not, "needs a kernel of %d elements or fewer", TAPS_MAX);
    out_req->deterministic = true;
    if (!conv.channels_last)
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
    return HL_OK;
}

static hl_status prepare(hl_device *device, const hl_graph *graph, hl_node_id id,
                         hl_kernel_state *out_state)
{
    (void)device;
    depth_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- results --------------------------------------------------------------------------------- */

static hl_status query_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    HL_TRY(query_common(graph, node, out_req, out_why_not));
    depth_state s = make_state(graph, node);
    out_req->scratch_bytes = (size_t)(s.n_taps * s.C) * sizeof(float);
    out_req->thread_scratch_bytes = 2 * (size_t)s.n_taps * sizeof(depth_tap); /* lines, taps */
    out_req->rows = hl_cpu_max(s.n_taps, 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_FLOAT * (double)s.C;
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(s.n_rows, 1);
    out_req->phase_row_cost =
        NS_PER_MAC * (double)s.C * (double)s.n_taps * (double)s.dim[DIMS - 1].result;
    if (s.epilogue.has_moments) hl_moments_require(&s.moments, out_req);
    return hl_epilogue_require(graph, node, &s.epilogue, out_why_not);
}

/* Taps [begin, end) of the weight (C,taps) as rows (taps,C), in the order in which they are read.
 */
static void turn_weight(const depth_state *s, const ELEMENT *weight, int64_t begin, int64_t end,
                        float *turned)
{
    end = hl_cpu_min(end, s->n_taps);
    for (int64_t tap = begin; tap < end; tap++) {
        int64_t rest = tap, place = 0, scale = 1;
        for (int d = DIMS - 1; d >= 0; d--) {
            int64_t t = rest % s->dim[d].kernel;
            place += (s->dim[d].is_reversed ? s->dim[d].kernel - 1 - t : t) * scale;
            scale *= s->dim[d].kernel;
            rest /= s->dim[d].kernel;
        }
        for (int64_t c = 0; c < s->C; c++)
            turned[tap * s->C + c] = TO_FLOAT(weight[c * s->n_taps + place]);
    }
}

/* The rows of the source that a row of results reads: of each its first element and first tap. */
static int64_t list_lines(const depth_state *s, int64_t row, depth_tap *lines)
{
    const depth_dim *dim = s->dim;
    int64_t r1 = row % dim[1].result, r0 = row / dim[1].result % dim[0].result, n = 0;
    int64_t image = row / dim[1].result / dim[0].result;
    for (int64_t a = 0; a < dim[0].kernel; a++)
        for (int64_t b = 0; b < dim[1].kernel; b++) {
            int64_t s0 = find_source(&dim[0], r0, a), s1 = find_source(&dim[1], r1, b);
            if (s0 < 0 || s1 < 0) continue;
            int64_t line = (image * dim[0].source + s0) * dim[1].source + s1;
            lines[n++] =
                (depth_tap){line * dim[2].source * s->C, (a * dim[1].kernel + b) * dim[2].kernel};
        }
    return n;
}

/* Adds a line to PIXELS sums. Of neighbouring results that read neighbours, each element is read
 * once: `taps` is the kernel's size then, else 0. */
HL_SIMD void add_pixels(const depth_dim *dim, int64_t C, const ELEMENT *x, const float *w,
                        const int taps, int64_t n, hl_v *sum)
{
    if (taps > 0) {
        hl_v factor[LINE_TAPS];
#pragma GCC unroll 8
        for (int t = 0; t < taps; t++) factor[t] = hl_row_load(w + t * C, n);
#pragma GCC unroll 16
        for (int j = 0; j < PIXELS + taps - 1; j++) {
            hl_v value = LOAD(x + j * C, n);
#pragma GCC unroll 8
            for (int t = 0; t < taps; t++)
                if (j - t >= 0 && j - t < PIXELS)
                    sum[j - t] = hl_v_fma(value, factor[t], sum[j - t]);
        }
        return;
    }
    for (int64_t t = 0; t < dim->kernel; t++, x += dim->dilation * C, w += C) {
        hl_v factor = hl_row_load(w, n);
        for (int i = 0; i < PIXELS; i++)
            sum[i] = hl_v_fma(LOAD(x + i * dim->stride * C, n), factor, sum[i]);
    }
}

/* What becomes of a result's sum for n channels; gelu goes over a whole row later. */
HL_SIMD hl_v end_sum(hl_v sum, const hl_gemm_epilogue *steps, int64_t r, int64_t c, int64_t n)
{
    if (steps->scale) sum = sum * hl_row_load(steps->scale + c, n);
    if (steps->bias) sum = sum + hl_row_load(steps->bias + c, n);
    if (steps->residual) sum = sum + hl_row_load(steps->residual + r * steps->ld_residual + c, n);
    return steps->activation == HL_GEMM_RELU ? hl_v_max(hl_v_zero(), sum) : sum;
}

/* PIXELS results side by side that read all taps of each line, for n channels from c on. */
HL_SIMD void run_pixels(const depth_state *s, const ELEMENT *source, const float *weight,
                        const hl_gemm_epilogue *steps, const depth_tap *lines, int64_t n_lines,
                        int64_t first, int64_t c, const int taps, int64_t n, float *to)
{
    const depth_dim *dim = &s->dim[DIMS - 1];
    const int64_t C = s->C;
    hl_v sum[PIXELS] = {{0}};
    for (int64_t l = 0; l < n_lines; l++)
        add_pixels(dim, C, source + lines[l].source + (first * dim->stride - dim->before) * C + c,
                   weight + lines[l].tap * C + c, taps, n, sum);
    for (int i = 0; i < PIXELS; i++)
        hl_row_store(to + (first + i) * C + c, end_sum(sum[i], steps, first + i, c, n), n);
}

/* Result r by the list of what it reads, for `vectors` vectors of channels from c on; n: of the
 * last one. */
HL_SIMD void run_pixel(const ELEMENT *source, const float *weight, const hl_gemm_epilogue *steps,
                       const depth_tap *taps, int64_t n_taps, int64_t C, int64_t r, int64_t c,
                       const int vectors, int64_t n, float *to)
{
    hl_v sum[VECTORS] = {{0}};
    for (int64_t k = 0; k < n_taps; k++)
        for (int v = 0; v < vectors; v++) {
            int64_t lanes = v + 1 < vectors ? HL_VL : n;
            sum[v] = hl_v_fma(LOAD(source + taps[k].source + c + v * HL_VL, lanes),
                              hl_row_load(weight + taps[k].tap * C + c + v * HL_VL, lanes), sum[v]);
        }
    for (int v = 0; v < vectors; v++) {
        int64_t lanes = v + 1 < vectors ? HL_VL : n, at = c + v * HL_VL;
        hl_row_store(to + r * C + at, end_sum(sum[v], steps, r, at, lanes), lanes);
    }
}

/* Result r of a row: its taps are listed behind the lines. */
static void run_single(const depth_state *s, const ELEMENT *source, const float *weight,
                       const hl_gemm_epilogue *steps, const depth_tap *lines, int64_t n_lines,
                       int64_t r, depth_tap *taps, float *to)
{
    const depth_dim *dim = &s->dim[DIMS - 1];
    int64_t n = 0, c = 0, C = s->C;
    for (int64_t l = 0; l < n_lines; l++)
        for (int64_t t = 0; t < dim->kernel; t++) {
            int64_t at = find_source(dim, r, t);
            if (at >= 0) taps[n++] = (depth_tap){lines[l].source + at * C, lines[l].tap + t};
        }
    for (; c + VECTORS * HL_VL <= C; c += VECTORS * HL_VL)
        run_pixel(source, weight, steps, taps, n, C, r, c, VECTORS, HL_VL, to);
    for (; c < C; c += HL_VL)
        run_pixel(source, weight, steps, taps, n, C, r, c, 1, hl_cpu_min(HL_VL, C - c), to);
}

/* The results of a row that read all taps of a line: [*out_first, *out_end). */
static void find_interior(const depth_dim *dim, int64_t *out_first, int64_t *out_end)
{
    int64_t reach = (dim->kernel - 1) * dim->dilation, room = dim->source + dim->before - reach;
    *out_first = hl_cpu_ceil_div(hl_cpu_max(dim->before, 0), dim->stride);
    *out_end = room > 0 ? hl_cpu_min(hl_cpu_ceil_div(room, dim->stride), dim->result) : 0;
    if (dim->is_transposed || *out_end < *out_first) *out_end = *out_first = 0;
}

/* Results [first, end) of a row, which read all taps of each line, for channels from c on. The last
 * ones may be taken again. */
HL_SIMD void run_interior(const depth_state *s, const ELEMENT *source, const float *weight,
                          const hl_gemm_epilogue *steps, const depth_tap *lines, int64_t n_lines,
                          int64_t first, int64_t end, int64_t c, const int taps, int64_t n,
                          float *to)
{
    for (int64_t r = first; r < end; r += PIXELS) {
        r = hl_cpu_min(r, end - PIXELS);
        run_pixels(s, source, weight, steps, lines, n_lines, r, c, taps, n, to);
    }
}

static void run_row(const depth_state *s, void *const *args, const float *weight, int64_t row,
                    depth_tap *lines)
{
    const depth_dim *dim = &s->dim[DIMS - 1];
    int64_t n_lines = list_lines(s, row, lines), first, end, C = s->C;
    float *to = (float *)args[s->result] + row * dim->result * C;
    const ELEMENT *source = args[0];
    hl_gemm_epilogue steps = hl_epilogue_steps(&s->epilogue, args, C);
    hl_epilogue_move(&steps, row * dim->result, 0);
    bool is_dense = dim->stride == 1 && dim->dilation == 1;
    find_interior(dim, &first, &end);
    if (end - first < PIXELS) first = end = 0;
    for (int64_t c = 0; c < C; c += HL_VL) {
        if (c + HL_VL > C)
            run_interior(s, source, weight, &steps, lines, n_lines, first, end, c, 0, C - c, to);
        else if (is_dense && dim->kernel == 3)
            run_interior(s, source, weight, &steps, lines, n_lines, first, end, c, 3, HL_VL, to);
        else if (is_dense && dim->kernel == 5)
            run_interior(s, source, weight, &steps, lines, n_lines, first, end, c, 5, HL_VL, to);
        else if (is_dense && dim->kernel == 7)
            run_interior(s, source, weight, &steps, lines, n_lines, first, end, c, 7, HL_VL, to);
        else
            run_interior(s, source, weight, &steps, lines, n_lines, first, end, c, 0, HL_VL, to);
    }
    for (int64_t r = 0; r < dim->result; r++)
        if (r < first || r >= end)
            run_single(s, source, weight, &steps, lines, n_lines, r, lines + n_lines, to);
    if (steps.activation == HL_GEMM_GELU) hl_gemm_gelu(dim->result, C, to, C);
}

/* Blocks of rows with the moments of each. */
static void run_blocks(const depth_state *s, void *const *args, int64_t begin, int64_t end,
                       const float *weight, float *partials, depth_tap *lines)
{
    const hl_moments *m = &s->moments;
    int64_t width = s->dim[DIMS - 1].result, first = begin * m->grain;
    for (; first < hl_cpu_min(end * m->grain, m->N); first += width) {
        run_row(s, args, weight, first / width, lines);
        hl_moments_take((const float *)args[s->result] + first * s->C, s->C, first % m->grain,
                        width, hl_moments_partial(m, partials, first));
    }
}

static void run_conv(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const depth_state *s = state->impl;
    float *turned = launch->scratch, *partials = turned + s->n_taps * s->C;
    if (launch->phase == 0) {
        turn_weight(s, args[1], begin, end, turned);
    } else if (launch->phase == 2) {
        hl_moments_share(&s->moments, partials, begin, end, args[s->result + 1],
                         args[s->result + 2]);
    } else if (s->epilogue.has_moments) {
        run_blocks(s, args, begin, end, turned, partials, launch->thread_scratch);
    } else {
        end = hl_cpu_min(end, s->n_rows);
        for (int64_t row = begin; row < end; row++)
            run_row(s, args, turned, row, launch->thread_scratch);
    }
}

/* ---- the weight gradient --------------------------------------------------------------------- */

static hl_status query_weight(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    HL_TRY(query_common(graph, node, out_req, out_why_not));
    depth_state s = make_state(graph, node);
    double per_row = (double)s.n_taps * (double)s.dim[DIMS - 1].result;
    out_req->scratch_bytes = (size_t)(s.n_shares * s.n_taps * s.C) * sizeof(float);
    out_req->thread_scratch_bytes = (size_t)s.n_taps * sizeof(depth_tap);
    out_req->rows = hl_cpu_max(s.n_shares * s.n_vectors, 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_MAC * HL_VL * per_row * (double)s.share;
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(s.C, 1);
    out_req->phase_row_cost = NS_PER_FLOAT * (double)(s.n_taps * s.n_shares);
    return HL_OK;
}

/* Adds to sums (taps,C) what a row of results gives for `taps` taps of a line, from tap `first`. */
HL_SIMD void add_line(const depth_dim *dim, int64_t C, const ELEMENT *x, const ELEMENT *dy,
                      int64_t first, const int taps, int64_t n, float *sums)
{
    hl_v sum[LINE_TAPS] = {{0}};
    const int64_t step = dim->dilation * C, stride = dim->stride * C;
    int64_t inner, end, r = 0;
    find_interior(dim, &inner, &end);
    x += (first * dim->dilation - dim->before) * C;
    for (; r < dim->result; r++) {
        if (r == inner)
            for (; r < end; r++) {
                hl_v d = LOAD(dy + r * C, n);
                for (int t = 0; t < taps; t++)
                    sum[t] = hl_v_fma(LOAD(x + r * stride + t * step, n), d, sum[t]);
            }
        if (r == dim->result) break;
        hl_v d = LOAD(dy + r * C, n);
        for (int t = 0; t < taps; t++)
            if (find_source(dim, r, first + t) >= 0)
                sum[t] = hl_v_fma(LOAD(x + r * stride + t * step, n), d, sum[t]);
    }
    for (int t = 0; t < taps; t++)
        hl_row_store(sums + t * C, hl_row_load(sums + t * C, n) + sum[t], n);
}

#define LINE(count)                                                                                \
    case count: add_line(dim, C, x, dy, first, count, n, sums); break

HL_SIMD void add_taps(const depth_dim *dim, int64_t C, const ELEMENT *x, const ELEMENT *dy,
                      int64_t n, float *sums)
{
    for (int64_t first = 0; first < dim->kernel; first += LINE_TAPS, sums += LINE_TAPS * C) {
        switch (hl_cpu_min(dim->kernel - first, LINE_TAPS)) {
            LINE(1);
            LINE(2);
            LINE(3);
            LINE(4);
            LINE(5);
            LINE(6);
            LINE(7);
            LINE(8);
        }
    }
}

/* Task i: a share of the rows for one vector of channels. */
static void run_share(const depth_state *s, void *const *args, int64_t i, float *partials,
                      depth_tap *lines)
{
    const depth_dim *dim = &s->dim[DIMS - 1];
    int64_t C = s->C, c = i % s->n_vectors * HL_VL, share = i / s->n_vectors;
    int64_t n = hl_cpu_min(C - c, HL_VL), end = hl_cpu_min((share + 1) * s->share, s->n_rows);
    const ELEMENT *dy = (const ELEMENT *)args[0] + c, *x = (const ELEMENT *)args[1] + c;
    float *sums = partials + share * s->n_taps * C + c;
    for (int64_t t = 0; t < s->n_taps; t++) hl_row_store(sums + t * C, hl_v_zero(), n);
    for (int64_t row = share * s->share; row < end; row++) {
        int64_t n_lines = list_lines(s, row, lines);
        const ELEMENT *own = dy + row * dim->result * C;
        for (int64_t l = 0; l < n_lines; l++) {
            float *to = sums + lines[l].tap * C;
            if (n == HL_VL)
                add_taps(dim, C, x + lines[l].source, own, HL_VL, to);
            else
                add_taps(dim, C, x + lines[l].source, own, n, to);
        }
    }
}

/* Rows [begin, end) of the weight (C,taps) from the shares' (taps,C). */
static void merge_shares(const depth_state *s, const float *partials, float *weight, int64_t begin,
                         int64_t end)
{
    end = hl_cpu_min(end, s->C);
    for (int64_t c = begin; c < end; c++)
        for (int64_t t = 0; t < s->n_taps; t++) {
            const float *at = partials + t * s->C + c;
            float sum = at[0];
            for (int64_t k = 1; k < s->n_shares; k++) sum += at[k * s->n_taps * s->C];
            weight[c * s->n_taps + t] = sum;
        }
}

static void run_weight(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const depth_state *s = state->impl;
    if (launch->phase == 1) {
        merge_shares(s, launch->scratch, args[2], begin, end);
        return;
    }
    end = hl_cpu_min(end, s->n_shares * s->n_vectors);
    for (int64_t i = begin; i < end; i++)
        run_share(s, args, i, launch->scratch, launch->thread_scratch);
}

#define DEPTHWISE(OP, text, texts, which)                                                          \
    {.op = HL_OP_##OP,                                                                             \
     .name = KERNEL(text),                                                                         \
     .fusions = texts,                                                                             \
     .query = query_##which,                                                                       \
     .prepare = prepare,                                                                           \
     .block = run_##which}
static const hl_kernel conv = DEPTHWISE(CONV, "conv.depthwise", hl_epilogue_moments_texts, conv);
static const hl_kernel transpose =
    DEPTHWISE(CONV_TRANSPOSE, "conv_transpose.depthwise", hl_epilogue_texts, conv);
static const hl_kernel weight_grad =
    DEPTHWISE(CONV_WEIGHT_GRAD, "conv_weight_grad.depthwise", NULL, weight);

const hl_kernel *const KERNELS[] = {&conv, &transpose, &weight_grad, NULL};
