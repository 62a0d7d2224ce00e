/* The kernels of convolutions, written once for all types. A file that includes this gives first:
 *
 * TYPE           the GEMM core's type (gemm.h)
 * DTYPE, ELEMENT that of x and the weight; bias and result are float32
 * KERNEL(name)   a kernel's whole name
 * KERNELS        the array of kernels
 * NS_PER_MAC     a multiply-add on one core, ns, roughly
 *
 * Convolutions are products by the GEMM core: a row of A is a pixel of the result, a
 * segment of it what a tap reads, the channels of a group. Weights are packed in the first phase,
 * panels of all groups and classes of taps (taps.h); pixels are the rows of the second. Channels
 * stand last.
 *
 * Few channels make short segments: they are copied side by side first, so that a row of A is one
 * run. The results of a class that is not the only one do not lie evenly, and are copied to their
 * places from a tile. */
enum {
    ROWS_MAX = 10 * HL_GEMM_ROWS_BEST, /* pixels of a block of pointers */
    POINTER_BYTES = 64 * 1024,         /* that a block's pointers take, roughly */
    FEW_CHANNELS = 16,                 /* a run of fewer is copied */
    LINE_WORDS = 64 / sizeof(hl_gemm_word),
    WORD_ELEMENTS = sizeof(hl_gemm_word) / sizeof(ELEMENT)
};

/* Of packing a number, on one core, ns, roughly. */
static const double NS_PER_NUMBER = 0.5;

typedef struct conv_state {
    hl_taps taps;
    int64_t groups, in, out; /* channels of a group, of the source and of the result */
    int64_t words, run;      /* of a tap in a packed weight, and the channels that are so many */
    int64_t line_words;      /* of all taps, where lines are copied: without gaps between taps */
    int64_t line_stride;     /* elements between their rows, which begin cache lines */
    int64_t channels;        /* of the result */
    int64_t n_panels;        /* of a group's packed weight */
    int64_t n_rows;          /* of a block of pointers */
    bool is_matrix;          /* the source itself is what the only tap reads */
    bool copies;             /* the runs of a row side by side */
    bool by_lines;           /* lines of the kernel at once */
    hl_epilogue epilogue;
    int32_t result;     /* number in args */
    hl_moments moments; /* where they are asked for */
    size_t partials;    /* offset in the scratch of all threads, behind the packed weight */
    /* Elements between weights of neighbouring taps, channels of the source and of the result, and
     * groups. */
    int64_t k_stride, n_stride, group_stride;
    /* Offsets of parts of a thread's scratch. */
    size_t zeros, pointers, rows, turned, tile, gemm, thread_bytes;
} conv_state;

static size_t take(size_t *used, size_t bytes)
{
    size_t at = *used;
    *used += (bytes + HL_ALIGN - 1) / HL_ALIGN * HL_ALIGN;
    return at;
}

/* Word rows of a panel of so many taps. */
static int64_t count_words(const conv_state *s, int64_t n_taps)
{
    return s->by_lines ? s->line_words : n_taps * s->words;
}

static hl_gemm make_gemm(const conv_state *s, int64_t n_taps)
{
    bool is_run = s->copies || s->is_matrix || n_taps == 0; /* no taps: an empty run */
    int64_t n_segments = is_run ? 1 : n_taps, k = is_run ? n_taps * s->run : s->in;
    if (s->by_lines) k = s->line_words * WORD_ELEMENTS;
    return (hl_gemm){.type = TYPE,
                     .n = s->out,
                     .k = k,
                     .a_row = s->is_matrix  ? s->taps.channels
                              : s->by_lines ? s->line_stride
                                            : k,
                     .a_col = 1,
                     .n_segments = n_segments,
                     .ld_segments = s->n_rows,
                     .b_rows = count_words(s, n_taps),
                     .ldc = s->channels,
                     .first = true,
                     .last = true,
                     .epilogue.alpha = 1};
}

static conv_state make_state(const hl_graph *graph, const hl_node *node)
{
    hl_conv conv = hl_conv_of(graph, node);
    bool transposed = node->op == HL_OP_CONV_TRANSPOSE;
    conv_state s = {.taps = hl_taps_make(&conv, transposed),
                    .groups = conv.groups,
                    .in = (transposed ? conv.O : conv.C) / conv.groups,
                    .out = (transposed ? conv.C : conv.O) / conv.groups,
                    .channels = transposed ? conv.C : conv.O,
                    .epilogue = hl_epilogue_make(graph, node),
                    .result = node->n_in};
    int64_t n_taps = s.taps.n_taps;
    s.words = hl_gemm_count_rows(TYPE, 1, s.in);
    s.run = s.words * WORD_ELEMENTS;
    s.line_words = hl_gemm_count_rows(TYPE, 1, n_taps * s.in);
    s.line_stride = hl_cpu_ceil_div(s.line_words, LINE_WORDS) * LINE_WORDS * WORD_ELEMENTS;
    s.n_panels = hl_gemm_panels(s.out);
    s.n_rows = POINTER_BYTES / (n_taps * (int64_t)sizeof(void *)) / HL_GEMM_ROWS_BEST;
    s.n_rows = hl_cpu_min(hl_cpu_max(s.n_rows, 1) * HL_GEMM_ROWS_BEST, ROWS_MAX);
    s.is_matrix = hl_taps_are_pixels(&s.taps);
    s.copies = s.in < FEW_CHANNELS && !s.is_matrix;
    s.by_lines = s.copies && s.groups == 1 && hl_taps_are_runs(&s.taps);
    s.k_stride = transposed ? s.out * n_taps : n_taps;
    s.n_stride = transposed ? n_taps : s.in * n_taps;
    s.group_stride = s.in * s.out * n_taps;
    hl_gemm largest = make_gemm(&s, n_taps);
    s.zeros = take(&s.thread_bytes, (size_t)s.taps.channels * sizeof(ELEMENT));
    s.pointers = take(&s.thread_bytes, (size_t)(n_taps * s.n_rows) * sizeof(void *));
    if (s.copies)
        s.rows = take(&s.thread_bytes, (size_t)(largest.a_row * s.n_rows) * sizeof(ELEMENT));
    if (s.by_lines)
        s.turned = take(&s.thread_bytes, (size_t)(n_taps * s.in * HL_GEMM_PANEL) * sizeof(ELEMENT));
    s.gemm = take(&s.thread_bytes, hl_gemm_scratch_bytes(&largest));
    s.partials = (size_t)(s.groups * s.n_panels * count_words(&s, n_taps) * HL_GEMM_PANEL) *
                 sizeof(hl_gemm_word);
    s.moments = hl_moments_make(s.taps.n_rows, s.channels, HL_GEMM_ROWS_BEST);
    if (s.taps.n_classes > 1)
        s.tile = take(&s.thread_bytes, (size_t)(s.n_rows * s.out) * sizeof(float));
    return s;
}

/* The residual of results in another order than memory's would have to be brought into it. */
static hl_status require_epilogue(const hl_graph *graph, const hl_node *node, const conv_state *s,
                                  hl_reason *out_why_not)
{
    if (s->epilogue.residual && s->taps.n_classes > 1)
        return hl_reason_set(out_why_not, "needs no residual with strides");
    return hl_epilogue_require(graph, node, &s->epilogue, out_why_not);
}

static bool takes(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype == (i < 2 ? DTYPE : HL_DTYPE_F32)) continue;
        hl_reason_set(out_why_not, "needs %s, got %s", hl_dtype_name(DTYPE), hl_dtype_name(dtype));
        return false;
    }
    if (hl_node_out_type(graph, node, 0)->dtype == HL_DTYPE_F32) return true;
    hl_reason_set(out_why_not, "gives float32");
    return false;
}

static hl_status query_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!takes(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    out_req->deterministic = true;
    if (!hl_conv_attrs(node)->channels_last) {
        out_req->order = hl_order_channels(hl_graph_shape(graph, node->in[0])->rank, true);
        return HL_OK;
    }
    conv_state s = make_state(graph, node);
    int64_t per_panel = count_words(&s, s.taps.n_taps) * HL_GEMM_PANEL;
    out_req->scratch_bytes = s.partials;
    out_req->thread_scratch_bytes = s.thread_bytes;
    out_req->rows = hl_cpu_max(s.groups * s.n_panels * s.taps.n_classes, 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_NUMBER * (double)per_panel;
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(s.taps.n_rows, 1);
    out_req->phase_row_cost =
        NS_PER_MAC * (double)s.channels * (double)(s.in * s.taps.n_taps) / s.taps.n_classes;
    if (s.epilogue.has_moments) hl_moments_require(&s.moments, out_req);
    return require_epilogue(graph, node, &s, out_why_not);
}

static hl_status prepare_conv(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    conv_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Where the packed weight of a group and a class begins. */
static hl_gemm_word *find_packed(const conv_state *s, void *scratch, int64_t group,
                                 const hl_taps_class *class)
{
    int64_t per_tap = s->n_panels * s->words * HL_GEMM_PANEL;
    return (hl_gemm_word *)scratch + (group * s->taps.n_taps + class->first_tap) * per_tap;
}

/* Taps of all channels as they are copied, channel by channel within a tap: rows of k, which are
 * packed like those of a matrix. */
static void pack_lines(const conv_state *s, const ELEMENT *weight, int64_t panel, ELEMENT *turned,
                       void *scratch)
{
    const int64_t col = panel * HL_GEMM_PANEL, k = s->taps.n_taps * s->in;
    hl_gemm_b b = {.type = TYPE,
                   .dtype = DTYPE,
                   .at = turned,
                   .n_segments = 1,
                   .k = k,
                   .n = hl_cpu_min(s->out - col, HL_GEMM_PANEL),
                   .k_stride = 1,
                   .n_stride = k};
    for (int64_t j = 0; j < b.n; j++) {
        const ELEMENT *from = weight + (col + j) * s->n_stride;
        for (int64_t c = 0; c < s->in; c++)
            for (int64_t t = 0; t < s->taps.n_taps; t++)
                turned[j * k + t * s->in + c] = from[c * s->k_stride + t];
    }
    hl_gemm_word *to = find_packed(s, scratch, 0, &s->taps.classes[0]);
    hl_gemm_pack(&b, 0, 1, to + panel * s->line_words * HL_GEMM_PANEL);
}

/* One panel of a group's taps of a class. Taps that are not all of the kernel's are packed one by
 * one: they do not lie evenly. */
static void pack_panel(const conv_state *s, const ELEMENT *weight, int64_t group,
                       const hl_taps_class *class, int64_t panel, void *scratch)
{
    int64_t col = panel * HL_GEMM_PANEL, per_tap = s->words * HL_GEMM_PANEL;
    bool is_even = s->taps.n_classes == 1;
    hl_gemm_b b = {.type = TYPE,
                   .dtype = DTYPE,
                   .n_segments = is_even ? class->n_taps : 1,
                   .k = s->in,
                   .n = hl_cpu_min(s->out - col, HL_GEMM_PANEL),
                   .segment_stride = s->taps.transposed ? -1 : 1,
                   .k_stride = s->k_stride,
                   .n_stride = s->n_stride};
    hl_gemm_word *to = find_packed(s, scratch, group, class) + panel * class->n_taps * per_tap;
    const ELEMENT *from = weight + group * s->group_stride + col * s->n_stride;
    for (int64_t t = 0; t < class->n_taps; t += b.n_segments) {
        b.at = from + hl_taps_place(&s->taps, class, t);
        hl_gemm_pack(&b, 0, 1, to + t * per_tap);
    }
}

static void pack_panels(const conv_state *s, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    int64_t per_class = s->groups * s->n_panels;
    void *scratch = launch->scratch;
    end = hl_cpu_min(end, per_class * s->taps.n_classes);
    if (s->by_lines) {
        ELEMENT *turned = (ELEMENT *)((unsigned char *)launch->thread_scratch + s->turned);
        for (int64_t i = begin; i < end; i++) pack_lines(s, args[1], i, turned, scratch);
        return;
    }
    for (int64_t i = begin; i < end; i++)
        pack_panel(s, args[1], i % per_class / s->n_panels, &s->taps.classes[i / per_class],
                   i % s->n_panels, scratch);
}

/* ---- pixels ---------------------------------------------------------------------------------- */

/* The runs of a group side by side, row by row, each of them of whole words. */
static void copy_rows(const conv_state *s, const void **pointers, int64_t n_taps, int64_t n,
                      int64_t first_channel, ELEMENT *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < n_taps; t++) {
            const ELEMENT *from = (const ELEMENT *)pointers[t * s->n_rows + i] + first_channel;
            for (int64_t c = 0; c < s->in; c++) *to++ = from[c];
            for (int64_t c = s->in; c < s->run; c++) *to++ = 0;
        }
}

/* Rows [row, row + n) of a class. */
static void run_rows(const conv_state *s, const hl_taps_class *class, int64_t row, int64_t n,
                     void *const *args, void *scratch, unsigned char *own)
{
    const void **pointers = (const void **)(own + s->pointers);
    float *result = args[s->result], *tile = (float *)(own + s->tile);
    bool is_only = s->taps.n_classes == 1;
    hl_gemm gemm = make_gemm(s, class->n_taps);
    if (!s->by_lines && !s->is_matrix)
        hl_taps_point(&s->taps, class, row, n, 0, class->n_taps, args[0], sizeof(ELEMENT),
                      own + s->zeros, pointers, s->n_rows);
    for (int64_t g = 0; g < s->groups; g++) {
        gemm.b = find_packed(s, scratch, g, class);
        gemm.epilogue = hl_epilogue_steps(&s->epilogue, args, s->channels);
        hl_epilogue_move(&gemm.epilogue, row, g * s->out);
        gemm.c = is_only ? result + row * s->channels + g * s->out : tile;
        gemm.ldc = is_only ? s->channels : s->out;
        gemm.segment_offset = g * s->in;
        gemm.segments = s->copies || s->is_matrix || class->n_taps == 0 ? NULL : pointers;
        if (!gemm.segments) gemm.a = own + s->rows;
        if (s->is_matrix) {
            gemm.a = (const ELEMENT *)args[0] + row * s->taps.channels + g * s->in;
        } else if (s->by_lines) {
            int64_t n_lines = class->n_taps / s->taps.window.kernel[s->taps.window.n - 1];
            hl_taps_copy_lines(&s->taps, row, n, 0, n_lines, args[0], sizeof(ELEMENT),
                               own + s->rows, gemm.a_row * (int64_t)sizeof(ELEMENT));
        } else if (s->copies) {
            copy_rows(s, pointers, class->n_taps, n, g * s->in, (ELEMENT *)(own + s->rows));
        }
        hl_gemm_run(&gemm, 0, n, 0, gemm.n, own + s->gemm);
        for (int64_t i = 0; i < n && !is_only; i++) {
            int64_t place = hl_taps_result(&s->taps, class, row + i);
            memcpy(result + place * s->channels + g * s->out, tile + i * s->out,
                   (size_t)s->out * sizeof(float));
        }
    }
}

static float *find_partials(const conv_state *s, void *scratch)
{
    return (float *)(void *)((unsigned char *)scratch + s->partials);
}

/* Of rows that were made just now and lie in one block. */
static void take_moments(const conv_state *s, const float *result, int64_t row, int64_t n,
                         void *scratch)
{
    const hl_moments *m = &s->moments;
    hl_moments_take(result + row * s->channels, s->channels, row % m->grain, n,
                    hl_moments_partial(m, find_partials(s, scratch), row));
}

static void run_pixels(const conv_state *s, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    unsigned char *own = launch->thread_scratch;
    end = hl_cpu_min(end, s->taps.n_rows);
    if (begin < end) memset(own + s->zeros, 0, (size_t)s->taps.channels * sizeof(ELEMENT));
    while (begin < end) {
        const hl_taps_class *class = hl_taps_find(&s->taps, begin);
        int64_t row = begin - class->first_row;
        int64_t n = hl_cpu_min(hl_cpu_min(end - begin, class->n_rows - row), s->n_rows);
        if (s->epilogue.has_moments) n = hl_cpu_min(n, s->moments.grain - row % s->moments.grain);
        run_rows(s, class, row, n, args, launch->scratch, own);
        if (s->epilogue.has_moments) take_moments(s, args[s->result], row, n, launch->scratch);
        begin += n;
    }
}

/* The phases behind packing of a convolution with moments. */
static void run_moments(const conv_state *s, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    if (launch->phase == 1)
        run_pixels(s, args, begin * s->moments.grain, end * s->moments.grain, launch);
    else
        hl_moments_share(&s->moments, find_partials(s, launch->scratch), begin, end,
                         args[s->result + 1], args[s->result + 2]);
}

static void run_conv(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const conv_state *s = state->impl;
    if (launch->phase == 0)
        pack_panels(s, args, begin, end, launch);
    else if (s->epilogue.has_moments)
        run_moments(s, args, begin, end, launch);
    else
        run_pixels(s, args, begin, end, launch);
}

#define CONV(OP, text, texts)                                                                      \
    {.op = HL_OP_##OP,                                                                             \
     .name = KERNEL(text),                                                                         \
     .fusions = texts,                                                                             \
     .query = query_conv,                                                                          \
     .prepare = prepare_conv,                                                                      \
     .block = run_conv}
static const hl_kernel conv = CONV(CONV, "conv", hl_epilogue_moments_texts);
static const hl_kernel transpose = CONV(CONV_TRANSPOSE, "conv_transpose", hl_epilogue_texts);

const hl_kernel *const KERNELS[] = {&conv, &transpose, NULL};
