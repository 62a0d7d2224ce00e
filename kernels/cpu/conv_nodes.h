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
 * Few channels make short segments. What a line of the kernel reads is one run where taps are
 * neighbours: lines of the source are copied with their padding, and segments are lines. Else runs
 * are copied side by side first, so that a row of A is one run. The results of a class that is not
 * the only one do not lie evenly, and are copied to their places from a tile.
 *
 * A transposed convolution that gives few channels would fill little of a panel. So it is the
 * product of a line of the source with a line of the kernel, for all of its taps at once, which is
 * added to the line of the result, where the taps of a pixel are one run. */
enum {
    POINTER_BYTES = 64 * 1024, /* that a block's pointers take, roughly */
    FEW_CHANNELS = 16,         /* a run of fewer is copied */
    PRODUCT_BYTES = 1 << 20,   /* the most of products of lines, that stay in cache */
    LINE_BLOCKS = 4,           /* of the GEMM core's blocks of rows, that share copied lines */
    WORD_ELEMENTS = sizeof(hl_gemm_word) / sizeof(ELEMENT)
};

/* Of packing a number, on one core, ns, roughly. */
static const double NS_PER_NUMBER = 0.5;

typedef struct conv_state {
    hl_taps taps;
    int64_t groups, in, out;    /* channels of a group, of the source and of the result */
    int64_t words, run;         /* of a tap in a packed weight, and the channels that are so many */
    int64_t line_taps, n_lines; /* of the kernel */
    int64_t spread;             /* channels of a pixel in a copied line: whole words */
    int64_t line_words;         /* of a line of the kernel, where lines are copied */
    int64_t line_bytes;         /* of a copied line of the source */
    int64_t channels;           /* of the result */
    int64_t n_panels;           /* of a group's packed weight */
    int64_t n_rows;             /* of a block of pointers */
    bool is_matrix;             /* the source itself is what the only tap reads */
    bool copies;                /* the runs of a row side by side */
    bool by_lines;              /* segments are lines of the kernel, of copied lines */
    bool adds_lines;            /* products of lines are added to lines of the result */
    hl_epilogue epilogue;
    int32_t result;     /* number in args */
    hl_moments moments; /* where they are asked for */
    size_t partials;    /* offset in the scratch of all threads, behind the packed weight */
    /* Elements between weights of neighbouring taps, channels of the source and of the result, and
     * groups. */
    int64_t k_stride, n_stride, group_stride;
    /* Offsets of parts of a thread's scratch. */
    size_t zeros, pointers, rows, lines, turned, tile, gemm, thread_bytes;
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
    if (s->by_lines) return s->n_lines * s->line_words;
    return s->adds_lines ? s->n_lines * s->words : n_taps * s->words;
}

/* Columns of a packed weight. */
static int64_t count_columns(const conv_state *s)
{
    return s->adds_lines ? s->line_taps * s->out : s->out;
}

static hl_gemm make_gemm(const conv_state *s, int64_t n_taps)
{
    bool is_run = s->copies || s->is_matrix || n_taps == 0; /* no taps: an empty run */
    /* Copied runs are of whole words; behind those of a matrix lies what is no term of theirs. */
    int64_t run = s->is_matrix ? s->in : s->run;
    int64_t n_segments = is_run ? 1 : n_taps, k = is_run ? n_taps * run : s->in;
    if (s->by_lines) n_segments = s->n_lines, k = s->line_taps * s->spread;
    if (s->adds_lines) n_segments = 1, k = s->in;
    return (hl_gemm){.type = TYPE,
                     .n = s->adds_lines ? s->n_panels * HL_GEMM_PANEL : s->out,
                     .k = k,
                     .a_row = s->is_matrix || s->adds_lines ? s->taps.channels : k,
                     .a_col = 1,
                     .n_segments = n_segments,
                     .ld_segments = s->n_rows,
                     .b_rows = s->adds_lines ? s->words : count_words(s, n_taps),
                     .ldc = s->adds_lines ? s->n_panels * HL_GEMM_PANEL : s->channels,
                     .first = true,
                     .last = true,
                     .epilogue.alpha = 1};
}

/* Of the products of lines that a line of the result is the sum of. */
static int64_t count_product_bytes(const conv_state *s)
{
    int64_t row = hl_gemm_panels(s->line_taps * s->out) * HL_GEMM_PANEL;
    return s->n_lines * s->taps.source[s->taps.window.n - 1] * row * (int64_t)sizeof(float);
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
    s.line_taps = s.taps.window.kernel[s.taps.window.n - 1];
    s.n_lines = n_taps / s.line_taps;
    s.words = hl_gemm_count_rows(TYPE, 1, s.in);
    s.run = s.words * WORD_ELEMENTS;
    int64_t rows_best = hl_gemm_rows_best(TYPE);
    int64_t rows_most = hl_gemm_rows_most(TYPE);
    s.is_matrix = hl_taps_are_pixels(&s.taps);
    s.by_lines = !transposed && s.in < FEW_CHANNELS && s.groups == 1 && s.in > 0 && !s.is_matrix &&
                 hl_taps_are_runs(&s.taps);
    s.adds_lines = transposed && s.out < FEW_CHANNELS && s.groups == 1 && s.line_taps > 1 &&
                   s.taps.window.dilation[s.taps.window.n - 1] == 1 &&
                   count_product_bytes(&s) <= PRODUCT_BYTES;
    s.copies = s.in < FEW_CHANNELS && !s.is_matrix && !s.by_lines && !s.adds_lines;
    s.spread = s.in;
    if (s.line_taps * s.in % WORD_ELEMENTS) s.spread += s.in % WORD_ELEMENTS;
    s.line_words = hl_gemm_count_rows(TYPE, 1, s.line_taps * s.spread);
    s.n_panels = hl_gemm_panels(count_columns(&s));
    int64_t n_segments = s.by_lines ? s.n_lines : n_taps;
    if (s.by_lines) rows_most *= LINE_BLOCKS;
    s.n_rows = POINTER_BYTES / (n_segments * (int64_t)sizeof(void *)) / rows_best;
    s.n_rows = hl_cpu_min(hl_cpu_max(s.n_rows, 1) * rows_best, rows_most);
    s.line_bytes = hl_taps_line_pixels(&s.taps, s.n_rows) * s.spread * (int64_t)sizeof(ELEMENT);
    s.line_bytes = hl_cpu_ceil_div(s.line_bytes, HL_ALIGN) * HL_ALIGN;
    s.k_stride = transposed ? s.out * n_taps : n_taps;
    s.n_stride = transposed ? n_taps : s.in * n_taps;
    s.group_stride = s.in * s.out * n_taps;
    hl_gemm largest = make_gemm(&s, n_taps);
    s.zeros = take(&s.thread_bytes, (size_t)s.taps.channels * sizeof(ELEMENT));
    s.pointers = take(&s.thread_bytes, (size_t)(n_segments * s.n_rows) * sizeof(void *));
    if (s.copies)
        s.rows = take(&s.thread_bytes, (size_t)(largest.a_row * s.n_rows) * sizeof(ELEMENT));
    if (s.by_lines) {
        s.lines =
            take(&s.thread_bytes, (size_t)(hl_taps_count_lines(&s.taps, s.n_rows) * s.line_bytes));
        s.turned =
            take(&s.thread_bytes,
                 (size_t)(s.n_lines * s.line_taps * s.spread * HL_GEMM_PANEL) * sizeof(ELEMENT));
    }
    if (s.adds_lines) {
        s.tile = take(&s.thread_bytes, (size_t)count_product_bytes(&s));
        s.turned = take(&s.thread_bytes, (size_t)(s.in * count_columns(&s)) * sizeof(ELEMENT));
    }
    s.gemm = take(&s.thread_bytes, hl_gemm_scratch_bytes(&largest));
    s.partials = (size_t)(s.groups * s.n_panels * count_words(&s, n_taps) * HL_GEMM_PANEL) *
                 sizeof(hl_gemm_word);
    s.moments = hl_moments_make(s.taps.n_rows, s.channels, rows_best);
    if (s.taps.n_classes > 1 && !s.adds_lines)
        s.tile = take(&s.thread_bytes, (size_t)(s.n_rows * s.out) * sizeof(float));
    return s;
}

/* Lines of the result, of all images. */
static int64_t count_results(const conv_state *s)
{
    int64_t n = s->taps.N;
    for (int d = 0; d < s->taps.window.n - 1; d++) n *= s->taps.result[d];
    return n;
}

/* The residual of results in another order than memory's would have to be brought into it. */
static hl_status require_epilogue(const hl_graph *graph, const hl_node *node, const conv_state *s,
                                  hl_reason *out_why_not)
{
    if (s->epilogue.residual && s->taps.n_classes > 1 && !s->adds_lines)
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
    if (s.adds_lines) out_req->rows = hl_cpu_max(s.n_lines, 1);
    out_req->grain = 1;
    out_req->row_cost = NS_PER_NUMBER * (double)per_panel;
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(s.taps.n_rows, 1);
    out_req->phase_row_cost =
        NS_PER_MAC * (double)s.channels * (double)(s.in * s.taps.n_taps) / s.taps.n_classes;
    if (s.adds_lines) {
        out_req->phase_rows = hl_cpu_max(count_results(&s), 1);
        out_req->phase_row_cost *= (double)s.taps.n_rows / (double)out_req->phase_rows;
    }
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

/* Lines of the kernel as those of the source are copied: rows of k, which are packed like those of
 * a matrix. */
static void pack_lines(const conv_state *s, const ELEMENT *weight, int64_t panel, ELEMENT *turned,
                       hl_gemm_word *packed)
{
    const int64_t col = panel * HL_GEMM_PANEL, k = s->taps.n_taps * s->spread;
    hl_gemm_b b = {.type = TYPE,
                   .dtype = DTYPE,
                   .at = turned,
                   .n_segments = s->n_lines,
                   .k = s->line_taps * s->spread,
                   .n = hl_cpu_min(s->out - col, HL_GEMM_PANEL),
                   .segment_stride = s->line_taps * s->spread,
                   .k_stride = 1,
                   .n_stride = k};
    for (int64_t j = 0; j < b.n; j++) {
        const ELEMENT *from = weight + (col + j) * s->n_stride;
        for (int64_t c = 0; c < s->spread; c++)
            for (int64_t t = 0; t < s->taps.n_taps; t++)
                turned[j * k + t * s->spread + c] = c < s->in ? from[c * s->k_stride + t] : 0;
    }
    hl_gemm_pack(&b, 0, 1, packed + panel * s->n_lines * s->line_words * HL_GEMM_PANEL);
}

/* A line of the kernel as a matrix: what a pixel of the source adds to the run of pixels that its
 * taps reach. */
static void pack_line(const conv_state *s, const ELEMENT *weight, int64_t line, ELEMENT *turned,
                      hl_gemm_word *packed)
{
    const int64_t n = count_columns(s);
    hl_gemm_b b = {.type = TYPE,
                   .dtype = DTYPE,
                   .at = turned,
                   .n_segments = 1,
                   .k = s->in,
                   .n = n,
                   .k_stride = n,
                   .n_stride = 1};
    for (int64_t i = 0; i < s->in; i++)
        for (int64_t t = 0; t < s->line_taps; t++)
            for (int64_t c = 0; c < s->out; c++)
                turned[i * n + t * s->out + c] =
                    weight[i * s->k_stride + c * s->n_stride + line * s->line_taps + t];
    hl_gemm_pack(&b, 0, s->n_panels, packed + line * s->n_panels * s->words * HL_GEMM_PANEL);
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
    ELEMENT *turned = (ELEMENT *)((unsigned char *)launch->thread_scratch + s->turned);
    end = hl_cpu_min(end, s->adds_lines ? s->n_lines : per_class * s->taps.n_classes);
    if (s->adds_lines) {
        for (int64_t i = begin; i < end; i++) pack_line(s, args[1], i, turned, scratch);
        return;
    }
    if (s->by_lines) {
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
    if (s->by_lines)
        hl_taps_point_lines(&s->taps, row, n, args[0], s->in * (int64_t)sizeof(ELEMENT),
                            s->spread * (int64_t)sizeof(ELEMENT), own + s->lines, s->line_bytes,
                            pointers, s->n_rows);
    else if (!s->is_matrix)
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

/* ---- lines ----------------------------------------------------------------------------------- */

/* A line of the result is the sum of what taps t of pixels x of the source, the products of n_lines
 * lines with one of the kernel each, add to its pixels x * stride - before + t. */
static void sum_lines(const conv_state *s, const float *products, int64_t n_lines, float *result)
{
    const hl_window *w = &s->taps.window;
    const int last = w->n - 1;
    const int64_t stride = w->stride[last], row = s->n_panels * HL_GEMM_PANEL;
    const int64_t n = s->taps.source[last], step = stride * s->out - row;
    for (int64_t i = 0; i < s->taps.result[last]; i++, result += s->out) {
        int64_t place = i + w->before[last];
        int64_t x = hl_cpu_min(hl_cpu_max(place, 0) / stride, n - 1);
        int64_t first = place - x * stride; /* its tap; the pixels before x have later ones */
        int64_t n_taps = place < 0 ? 0 : hl_cpu_ceil_div(s->line_taps - first, stride);
        n_taps = hl_cpu_min(n_taps, x + 1);
        for (int64_t c = 0; c < s->out; c += HL_VL) {
            int64_t lanes = hl_cpu_min(s->out - c, HL_VL);
            hl_v sum = hl_v_zero();
            for (int64_t line = 0; line < n_lines; line++) {
                const float *from = products + (line * n + x) * row + first * s->out + c;
                for (int64_t t = 0; t < n_taps; t++, from += step) sum += hl_row_load(from, lanes);
            }
            hl_row_store(result + c, sum, lanes);
        }
    }
}

static bool has_steps(const hl_epilogue *e)
{
    return e->scale || e->shift || e->residual || e->activation != HL_GEMM_NONE;
}

/* Line `line` of the result, among those of all images. */
static void run_line(const conv_state *s, int64_t line, void *const *args, void *scratch,
                     unsigned char *own)
{
    const int last = s->taps.window.n - 1;
    const int64_t width = s->taps.result[last], row = line * width;
    float *to = (float *)args[s->result] + row * s->channels, *products = (float *)(own + s->tile);
    const hl_taps_class all = hl_taps_all(&s->taps);
    int64_t n_products = 0;
    hl_gemm gemm = make_gemm(s, s->taps.n_taps);
    int64_t pixel[HL_WINDOW_DIMS] = {0}, image = line;
    for (int d = last - 1; d >= 0; d--) {
        pixel[d] = image % s->taps.result[d];
        image /= s->taps.result[d];
    }
    gemm.c = products;
    for (int64_t t = 0; t < s->n_lines; t++) {
        gemm.a = hl_taps_find_line(&s->taps, &all, t, image, pixel, args[0],
                                   s->taps.channels * (int64_t)sizeof(ELEMENT));
        if (!gemm.a) continue;
        gemm.b = (hl_gemm_word *)scratch + t * s->n_panels * s->words * HL_GEMM_PANEL;
        hl_gemm_run(&gemm, 0, s->taps.source[last], 0, gemm.n, own + s->gemm);
        gemm.c += s->taps.source[last] * gemm.ldc;
        n_products++;
    }
    sum_lines(s, products, n_products, to);
    if (!has_steps(&s->epilogue)) return;
    /* The epilogue of what there is: a product of no terms is added to it. */
    gemm.n = s->out, gemm.k = 0, gemm.a = args[0], gemm.first = false;
    gemm.c = to, gemm.ldc = s->channels;
    gemm.epilogue = hl_epilogue_steps(&s->epilogue, args, s->channels);
    hl_epilogue_move(&gemm.epilogue, row, 0);
    hl_gemm_run(&gemm, 0, width, 0, gemm.n, own + s->gemm);
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
    else if (s->adds_lines)
        for (int64_t i = begin; i < hl_cpu_min(end, count_results(s)); i++)
            run_line(s, i, args, launch->scratch, launch->thread_scratch);
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
