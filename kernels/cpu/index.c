/* Indexed access: gather, scatter, rows by index, the batch's gather from resident data, and a
 * slice that is added to.
 *
 * An index out of range sets the error word, reads as 0 and writes nothing. Where several indices
 * may meet in one place (scatter, index_add) work is cut by destination: a block of rows reads the
 * whole index and does what falls to it, in the index' order, so that the result is the same for
 * any cut and no write is atomic. Rows that are fetched from anywhere are prefetched. */
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/cpu/rows.h"

enum { AHEAD = 8, AHEAD_LONG = 2, LINES_SHORT = 8, LINES_LONG = 64, N_CHUNK = 256 };
/* Of a row that is given in pieces, so that what reads it finds them in cache. */
enum { CUT_BYTES = 16 * 1024 };
static const double ROW_NS = 5; /* to find a row */

typedef struct index_state {
    hl_op op;
    hl_dtype dtype, index_dtype, out_dtype;
    size_t bytes;
    int axis;
    hl_shape x, index, src;
    int64_t n_index;
    int64_t O, N, I; /* x as (O,N,I), N the indexed axis */
    int64_t step;    /* elements from a row to the next, of which windows are I elements long */
    int64_t pieces;  /* of each selected row */
} index_state;

static int64_t read_index(const void *index, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)index)[i];
    case HL_DTYPE_I32: return ((const int32_t *)index)[i];
    case HL_DTYPE_I16: return ((const int16_t *)index)[i];
    case HL_DTYPE_I8: return ((const int8_t *)index)[i];
    default: return ((const uint8_t *)index)[i];
    }
}

/* -1 when out of range, which `reports` makes a fault: once per index, not once per block. */
static int64_t take_index(const index_state *s, const void *index, int64_t i, bool reports,
                          const hl_launch *launch)
{
    int64_t k = read_index(index, s->index_dtype, i);
    if (k >= 0 && k < s->N) return k;
    if (reports) hl_launch_fault(launch, i, k);
    return -1;
}

/* Long rows go into the second-level cache, which can wait for more lines at a time than the first;
 * short ones are too soon wanted for that. Inline: a call that does nothing but prefetch is one
 * that the compiler removes. */
HL_SIMD void prefetch_row(const unsigned char *row, size_t bytes)
{
    for (size_t at = 0; at < bytes && at < LINES_SHORT * HL_ALIGN; at += HL_ALIGN) {
        __builtin_prefetch(row + at, 0, 3);
    }
    for (size_t at = LINES_SHORT * HL_ALIGN; at < bytes && at < LINES_LONG * HL_ALIGN;
         at += HL_ALIGN) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

/* dst += src; 16-bit floats through fp32, integers wrap. */
static void add_row(hl_dtype dtype, void *dst, const void *src, int64_t n)
{
    if (dtype == HL_DTYPE_F32) {
        float *to = dst;
        const float *from = src;
        for (int64_t i = 0; i < n; i++) to[i] += from[i];
        return;
    }
    bool is_float = hl_dtype_is_float(dtype);
    hl_pw_kind kind = is_float ? HL_PW_F64 : HL_PW_I64;
    size_t bytes = hl_dtype_bytes(dtype);
    for (int64_t i = 0; i < n; i += N_CHUNK) {
        union {
            double number[N_CHUNK];
            int64_t integer[N_CHUNK];
        } a, b;
        int64_t count = hl_cpu_min(N_CHUNK, n - i);
        unsigned char *to = (unsigned char *)dst + (size_t)i * bytes;
        HL_ISA_NAME(hl_pw_load)(kind, &a, dtype, to, count);
        HL_ISA_NAME(hl_pw_load)
        (kind, &b, dtype, (const unsigned char *)src + (size_t)i * bytes, count);
        for (int64_t j = 0; j < count; j++) {
            if (is_float) {
                a.number[j] += b.number[j];
            } else {
                a.integer[j] = (int64_t)((uint64_t)a.integer[j] + (uint64_t)b.integer[j]);
            }
        }
        HL_ISA_NAME(hl_pw_store)(kind, dtype, to, &a, count);
    }
}

/* ---- rows by index: index_select, batch_gather ---- */

static void copy_row(void *dst, const void *src, size_t bytes)
{
    if (bytes == 4) {
        memcpy(dst, src, 4);
    } else if (bytes == 8) {
        memcpy(dst, src, 8);
    } else if (bytes > 0) { /* an empty row may lie nowhere */
        memcpy(dst, src, bytes);
    }
}

/* n elements in another dtype. Floats and integers to fp32 directly, everything else through 64
 * bits. */
static void convert_row(const index_state *s, unsigned char *dst, const unsigned char *src,
                        int64_t n)
{
    if (s->dtype == s->out_dtype) {
        copy_row(dst, src, (size_t)n * s->bytes);
        return;
    }
    if (s->out_dtype == HL_DTYPE_F32) {
        HL_ISA_NAME(hl_pw_load)(HL_PW_F32, dst, s->dtype, src, n);
        return;
    }
    bool is_exact = !hl_dtype_is_float(s->dtype) && !hl_dtype_is_float(s->out_dtype);
    hl_pw_kind kind = is_exact ? HL_PW_I64 : HL_PW_F64;
    size_t out_bytes = hl_dtype_bytes(s->out_dtype);
    for (int64_t i = 0; i < n; i += N_CHUNK) {
        double value[N_CHUNK];
        int64_t count = hl_cpu_min(N_CHUNK, n - i);
        HL_ISA_NAME(hl_pw_load)(kind, value, s->dtype, src + (size_t)i * s->bytes, count);
        HL_ISA_NAME(hl_pw_store)(kind, s->out_dtype, dst + (size_t)i * out_bytes, value, count);
    }
}

/* Pieces [begin, end) of the selected rows, from one (N,I) array. */
static void select_rows(const index_state *s, const unsigned char *x, const void *index,
                        int64_t begin, int64_t end, unsigned char *out, bool reports,
                        const hl_launch *launch)
{
    size_t row_bytes = (size_t)s->I * s->bytes, step = (size_t)s->step * s->bytes;
    int64_t piece = s->I / s->pieces, first = begin % s->pieces;
    size_t out_bytes = (size_t)piece * hl_dtype_bytes(s->out_dtype);
    int64_t ahead = row_bytes > LINES_SHORT * HL_ALIGN ? AHEAD_LONG : AHEAD;
    for (int64_t at = begin, i = begin / s->pieces, n; at < end; at += n, i++, first = 0) {
        n = hl_cpu_min(s->pieces - first, end - at);
        if ((i + ahead) * s->pieces < end) {
            int64_t next = read_index(index, s->index_dtype, i + ahead);
            if (next >= 0 && next < s->N) prefetch_row(x + (size_t)next * step, row_bytes);
        }
        int64_t k = take_index(s, index, i, reports && first == 0, launch);
        unsigned char *to = out + (size_t)at * out_bytes;
        if (k >= 0) {
            size_t skipped = (size_t)(first * piece) * s->bytes;
            convert_row(s, to, x + (size_t)k * step + skipped, n * piece);
        } else {
            memset(to, 0, (size_t)n * out_bytes);
        }
    }
}

static void run_select(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const index_state *s = state->impl;
    const unsigned char *x = args[0];
    unsigned char *out = args[2];
    if (s->O == 1) {
        end = hl_cpu_min(end, s->n_index * s->pieces);
        select_rows(s, x, args[1], begin, end, out, true, launch);
        return;
    }
    size_t x_bytes = (size_t)(s->N * s->I) * s->bytes;
    size_t out_bytes = (size_t)(s->n_index * s->I) * hl_dtype_bytes(s->out_dtype);
    end = hl_cpu_min(end, s->O);
    for (int64_t o = begin; o < end; o++) {
        select_rows(s, x + (size_t)o * x_bytes, args[1], 0, s->n_index, out + (size_t)o * out_bytes,
                    o == 0, launch);
    }
}

/* Rows that follow one another in x, and more behind them. */
static const void *lend_rows(const hl_kernel_state *state, void *const *args, int64_t begin,
                             int64_t end)
{
    const index_state *s = state->impl;
    const unsigned char *x = args[0];
    int64_t first = begin / s->pieces, last = (end - 1) / s->pieces, piece = s->I / s->pieces;
    if (s->O != 1 || s->dtype != s->out_dtype || begin >= end || end > s->n_index * s->pieces ||
        (s->step != s->I && first != last))
        return NULL;
    int64_t k = read_index(args[1], s->index_dtype, first);
    if (k < 0 || k + (last - first) >= s->N) return NULL;
    for (int64_t i = first + 1; i <= last; i++)
        if (read_index(args[1], s->index_dtype, i) != k + (i - first)) return NULL;
    int64_t at = k * s->step + (begin - first * s->pieces) * piece;
    int64_t left = hl_shape_numel(&s->x) - at - (end - begin) * piece;
    return left * (int64_t)s->bytes < HL_ALIGN ? NULL : x + (size_t)at * s->bytes;
}

/* ---- rows into places: index_add, index_copy ---- */

static void write_row(const index_state *s, unsigned char *dst, const unsigned char *src, int64_t n)
{
    if (s->op == HL_OP_INDEX_ADD || s->op == HL_OP_SCATTER_ADD) {
        add_row(s->dtype, dst, src, n);
    } else {
        memcpy(dst, src, (size_t)n * s->bytes);
    }
}

static void copy_base(unsigned char *dst, const unsigned char *src, size_t bytes)
{
    if (dst != src && bytes > 0) memcpy(dst, src, bytes);
}

/* Writes those elements that belong to rows [low, high) along the axis of one (N,I) array. */
static void write_rows(const index_state *s, const void *index, const unsigned char *src,
                       unsigned char *out, int64_t low, int64_t high, bool reports,
                       const hl_launch *launch)
{
    size_t row_bytes = (size_t)s->I * s->bytes;
    for (int64_t i = 0; i < s->n_index; i++) {
        int64_t k = take_index(s, index, i, reports, launch);
        if (k < low || k >= high) continue;
        write_row(s, out + (size_t)k * row_bytes, src + (size_t)i * row_bytes, s->I);
    }
}

static void run_write(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const index_state *s = state->impl;
    const unsigned char *x = args[0], *src = args[2];
    unsigned char *out = args[3];
    size_t row_bytes = (size_t)s->I * s->bytes;
    if (s->O == 1) {
        end = hl_cpu_min(end, s->N);
        bool reports = begin == 0;
        if (begin < end) {
            size_t at = (size_t)begin * row_bytes;
            copy_base(out + at, x + at, (size_t)(end - begin) * row_bytes);
        }
        write_rows(s, args[1], src, out, begin, end, reports, launch);
        return;
    }
    end = hl_cpu_min(end, s->O);
    for (int64_t o = begin; o < end; o++) {
        size_t at = (size_t)(o * s->N) * row_bytes, from = (size_t)(o * s->n_index) * row_bytes;
        copy_base(out + at, x + at, (size_t)s->N * row_bytes);
        write_rows(s, args[1], src + from, out + at, 0, s->N, o == 0, launch);
    }
}

/* The state lies where its result does: only what is written is touched. */
static void run_assign(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const index_state *s = state->impl;
    const unsigned char *src = args[2];
    unsigned char *out = args[3];
    size_t row_bytes = (size_t)s->I * s->bytes;
    end = hl_cpu_min(end, s->O);
    for (int64_t o = begin; o < end; o++) {
        size_t at = (size_t)(o * s->N) * row_bytes, from = (size_t)(o * s->n_index) * row_bytes;
        write_rows(s, args[1], src + from, out + at, 0, s->N, o == 0, launch);
    }
}

/* ---- a slice that is added to ---- */

typedef struct slice_state {
    hl_dtype dtype;
    size_t bytes;               /* of an element */
    int64_t O, N, I;            /* x as (O,N,I), N the sliced axis */
    int64_t start, step, n_src; /* of the slice */
} slice_state;

/* Adds to rows [low, high) along the axis of one (N,I) array. */
static void add_slice(const slice_state *s, const unsigned char *src, unsigned char *out,
                      int64_t low, int64_t high)
{
    size_t row_bytes = (size_t)s->I * s->bytes;
    int64_t k = hl_cpu_max(hl_cpu_ceil_div(low - s->start, s->step), 0);
    int64_t end = hl_cpu_min(hl_cpu_max(hl_cpu_ceil_div(high - s->start, s->step), 0), s->n_src);
    /* Neighbouring rows are one. */
    int64_t n = s->step == 1 ? end - k : 1;
    for (; k < end; k += n) {
        add_row(s->dtype, out + (size_t)(s->start + k * s->step) * row_bytes,
                src + (size_t)k * row_bytes, n * s->I);
    }
}

static void run_slice_add(const hl_kernel_state *state, void *const *args, int64_t begin,
                          int64_t end, const hl_launch *launch)
{
    (void)launch;
    const slice_state *s = state->impl;
    const unsigned char *x = args[0], *src = args[1];
    unsigned char *out = args[2];
    size_t row_bytes = (size_t)s->I * s->bytes;
    if (s->O == 1) {
        end = hl_cpu_min(end, s->N);
        if (begin >= end) return;
        size_t at = (size_t)begin * row_bytes;
        copy_base(out + at, x + at, (size_t)(end - begin) * row_bytes);
        add_slice(s, src, out, begin, end);
        return;
    }
    end = hl_cpu_min(end, s->O);
    for (int64_t o = begin; o < end; o++) {
        size_t at = (size_t)(o * s->N) * row_bytes, from = (size_t)(o * s->n_src) * row_bytes;
        copy_base(out + at, x + at, (size_t)s->N * row_bytes);
        add_slice(s, src + from, out + at, 0, s->N);
    }
}

/* ---- element by element: gather, scatter ---- */

/* Where one line of the index, along its last dim, lies in an array. */
typedef struct line_layout {
    int64_t base;      /* of the line's first element, its coordinate along the axis left out */
    int64_t axis_step; /* in the array, per step of the axis */
    int64_t step;      /* in the array, per element of the line; 0 when the axis is the last dim */
    int64_t own;       /* coordinate along the axis of the line's first element */
} line_layout;

static line_layout make_line_layout(const index_state *s, const hl_shape *array, int64_t line)
{
    line_layout layout = {0};
    int last = s->index.rank - 1;
    int64_t scale = 1;
    if (last < 0) return (line_layout){.axis_step = 1};
    for (int d = last; d >= 0; d--) {
        int64_t coordinate = d == last ? 0 : line % s->index.dim[d];
        if (d < last) line /= s->index.dim[d];
        if (d == s->axis) {
            layout.axis_step = scale;
            layout.own = coordinate;
        } else {
            layout.base += coordinate * scale;
            if (d == last) layout.step = scale;
        }
        scale *= array->dim[d];
    }
    return layout;
}

static int64_t line_length(const index_state *s)
{
    return s->index.rank > 0 ? s->index.dim[s->index.rank - 1] : 1;
}

static void run_gather(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const index_state *s = state->impl;
    const unsigned char *x = args[0];
    unsigned char *out = args[2];
    int64_t width = line_length(s);
    int64_t rows = s->index.rank > 1 ? s->index.dim[0] : 1;
    if (s->n_index == 0) return;
    int64_t per_row = s->n_index / width / rows;
    for (int64_t line = begin * per_row; line < end * per_row; line++) {
        line_layout layout = make_line_layout(s, &s->x, line);
        for (int64_t j = 0; j < width; j++) {
            int64_t i = line * width + j, k = take_index(s, args[1], i, true, launch);
            unsigned char *to = out + (size_t)i * s->bytes;
            int64_t from = layout.base + k * layout.axis_step + j * layout.step;
            if (k >= 0) {
                copy_row(to, x + (size_t)from * s->bytes, s->bytes);
            } else {
                memset(to, 0, s->bytes);
            }
        }
    }
}

/* Writes of the index' lines [first, last) whose row of the result (the first dim's coordinate)
 * is in [low, high). */
static void scatter_lines(const index_state *s, void *const *args, int64_t first, int64_t last,
                          int64_t low, int64_t high, bool reports, const hl_launch *launch)
{
    const unsigned char *src = args[2];
    unsigned char *out = args[3];
    int64_t width = line_length(s);
    for (int64_t line = first; line < last; line++) {
        line_layout to = make_line_layout(s, &s->x, line),
                    from = make_line_layout(s, &s->src, line);
        for (int64_t j = 0; j < width; j++) {
            int64_t k = take_index(s, args[1], line * width + j, reports, launch);
            if (k < 0 || (s->axis == 0 && (k < low || k >= high))) continue;
            bool is_last = s->axis == s->index.rank - 1;
            int64_t own = is_last ? j : from.own;
            int64_t at = to.base + k * to.axis_step + j * to.step;
            int64_t source = from.base + own * from.axis_step + j * from.step;
            write_row(s, out + (size_t)at * s->bytes, src + (size_t)source * s->bytes, 1);
        }
    }
}

static void run_scatter(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    const index_state *s = state->impl;
    const unsigned char *x = args[0];
    unsigned char *out = args[3];
    int64_t rows = s->x.rank > 0 ? s->x.dim[0] : 1, width = line_length(s);
    end = hl_cpu_min(end, rows);
    int64_t row = rows > 0 ? hl_shape_numel(&s->x) / rows : 0;
    if (begin < end) {
        size_t at = (size_t)(begin * row) * s->bytes;
        copy_base(out + at, x + at, (size_t)((end - begin) * row) * s->bytes);
    }
    if (s->n_index == 0) return;
    int64_t n_lines = s->n_index / width;
    if (s->axis == 0) {
        scatter_lines(s, args, 0, n_lines, begin, end, begin == 0, launch);
        return;
    }
    int64_t per_row = n_lines / s->index.dim[0];
    end = hl_cpu_min(end, s->index.dim[0]);
    scatter_lines(s, args, begin * per_row, end * per_row, 0, rows, true, launch);
}

/* ---- queries ---- */

/* A long row is cut at the ends of its last dims, as many as fill a cache line: there, most often,
 * so are the rows of what reads it. */
static int64_t count_pieces(const index_state *s, const hl_shape *out)
{
    bool is_selection = s->op == HL_OP_BATCH_GATHER || s->op == HL_OP_INDEX_SELECT;
    int64_t piece = 1;
    if (!is_selection || s->O != 1 || s->I * (int64_t)s->bytes < CUT_BYTES) return 1;
    for (int axis = out->rank - 1; axis >= s->index.rank; axis--) {
        piece *= out->dim[axis];
        if (piece * (int64_t)s->bytes >= HL_ALIGN) break;
    }
    return s->I / piece;
}

static index_state make_index(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *index = hl_node_in_type(graph, node, 1);
    index_state s = {.op = node->op, .dtype = x->dtype, .index_dtype = index->dtype};
    s.out_dtype = hl_node_out_type(graph, node, 0)->dtype;
    s.bytes = hl_dtype_bytes(x->dtype);
    s.axis = node->op == HL_OP_BATCH_GATHER ? 0 : (int)hl_axis_attrs(node)->axis;
    s.x = x->shape, s.index = index->shape;
    if (node->n_in > 2) s.src = hl_node_in_type(graph, node, 2)->shape;
    s.n_index = hl_shape_numel(&index->shape);
    s.O = hl_shape_span(&x->shape, 0, s.axis);
    s.N = x->shape.rank > 0 ? x->shape.dim[s.axis] : 1;
    s.I = hl_shape_span(&x->shape, (int)hl_cpu_min(s.axis + 1, x->shape.rank), x->shape.rank);
    s.step = s.I;
    if (node->op == HL_OP_BATCH_GATHER && hl_batch_attrs(node)->window > 0) {
        s.I *= hl_batch_attrs(node)->window;
        s.N = hl_node_extent(graph, node);
    }
    s.pieces = count_pieces(&s, &hl_node_out_type(graph, node, 0)->shape);
    return s;
}

static void require_rows(int64_t rows, int64_t n_elements, uint64_t row_in, size_t bytes,
                         hl_kernel_req *out_req)
{
    out_req->rows = hl_cpu_max(rows, 1);
    int64_t row = n_elements / out_req->rows;
    out_req->grain = hl_cpu_line_grain(hl_cpu_max(row * (int64_t)bytes, 1));
    out_req->row_in = rows > 1 ? row_in : 0;
    out_req->row_out = 1;
    out_req->row_cost = ROW_NS + 0.2 * (double)row;
    out_req->deterministic = true;
}

static hl_status query_select(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    index_state s = make_index(graph, node);
    int64_t n = hl_shape_numel(&hl_node_out_type(graph, node, 0)->shape);
    bool by_index = s.O == 1;
    uint64_t row_in = !by_index ? 1 : s.pieces == 1 ? 2 : 0;
    require_rows(by_index ? s.n_index * s.pieces : s.O, n, row_in, hl_dtype_bytes(s.out_dtype),
                 out_req);
    out_req->row_cost += ROW_NS / (double)s.pieces - ROW_NS; /* once for all pieces */
    return HL_OK;
}

static hl_status query_write(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    index_state s = make_index(graph, node);
    require_rows(s.O == 1 ? s.N : s.O, hl_shape_numel(&s.x), s.O == 1 ? 1 : 5, s.bytes, out_req);
    out_req->in_place[0] = 1;
    /* Every block reads the whole index. */
    if (s.O == 1) out_req->grain = hl_cpu_max(out_req->grain, hl_cpu_ceil_div(s.N, 64));
    return HL_OK;
}

/* A block writes a share of the rows of src, not of the state. */
static hl_status query_assign(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    index_state s = make_index(graph, node);
    require_rows(s.O, hl_shape_numel(&s.src), s.O == 1 ? 0 : 5, s.bytes, out_req);
    return HL_OK;
}

static hl_status query_gather(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    index_state s = make_index(graph, &graph->nodes[id]);
    int64_t rows = s.index.rank > 1 ? s.index.dim[0] : 1;
    bool by_row = s.axis > 0 && s.x.dim[0] == rows;
    require_rows(rows, s.n_index, by_row ? 3 : 2, s.bytes, out_req);
    out_req->row_cost = 2 * (double)s.n_index / (double)out_req->rows;
    return HL_OK;
}

static hl_status query_scatter(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    index_state s = make_index(graph, &graph->nodes[id]);
    int64_t rows = s.x.rank > 0 ? s.x.dim[0] : 1;
    uint64_t row_in = 1;
    if (s.axis > 0) {
        if (s.index.dim[0] == rows) row_in |= 2;
        if (s.src.dim[0] == rows) row_in |= 4;
    }
    require_rows(rows, hl_shape_numel(&s.x), row_in, s.bytes, out_req);
    out_req->row_cost += 3 * (double)s.n_index / (double)out_req->rows;
    out_req->in_place[0] = 1;
    if (s.axis == 0) out_req->grain = hl_cpu_max(out_req->grain, hl_cpu_ceil_div(rows, 64));
    return HL_OK;
}

static slice_state make_slice(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    const hl_attrs_slice_add *slice = hl_slice_add_attrs(node);
    int axis = (int)slice->axis;
    return (slice_state){.dtype = x->dtype,
                         .bytes = hl_dtype_bytes(x->dtype),
                         .O = hl_shape_span(&x->shape, 0, axis),
                         .N = x->shape.dim[axis],
                         .I = hl_shape_span(&x->shape, axis + 1, x->shape.rank),
                         .start = slice->start,
                         .step = slice->step,
                         .n_src = hl_node_in_type(graph, node, 1)->shape.dim[axis]};
}

static hl_status query_slice(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    slice_state s = make_slice(graph, &graph->nodes[id]);
    require_rows(s.O == 1 ? s.N : s.O, s.O * s.N * s.I, s.O == 1 ? 1 : 3, s.bytes, out_req);
    out_req->in_place[0] = 1;
    return HL_OK;
}

static hl_status prepare_slice(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    slice_state s = make_slice(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

static hl_status prepare_index(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    index_state s = make_index(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

#define KERNEL(id, OP, text, family, ...)                                                          \
    static const hl_kernel id = {.op = HL_OP_##OP,                                                 \
                                 .name = HL_CPU_NAME(text),                                        \
                                 .query = query_##family,                                          \
                                 .prepare = prepare_index,                                         \
                                 .block = run_##family,                                            \
                                 __VA_ARGS__};
KERNEL(gather, GATHER, "gather", gather)
KERNEL(scatter, SCATTER, "scatter", scatter)
KERNEL(scatter_add, SCATTER_ADD, "scatter_add", scatter)
KERNEL(index_select, INDEX_SELECT, "index_select", select)
KERNEL(index_add, INDEX_ADD, "index_add", write)
KERNEL(index_copy, INDEX_COPY, "index_copy", write)
KERNEL(index_assign, INDEX_ASSIGN, "index_assign", assign)
KERNEL(batch_gather, BATCH_GATHER, "batch_gather", select, .lend = lend_rows)

static const hl_kernel slice_add = {.op = HL_OP_SLICE_ADD,
                                    .name = HL_CPU_NAME("slice_add"),
                                    .query = query_slice,
                                    .prepare = prepare_slice,
                                    .block = run_slice_add};

const hl_kernel *const HL_ISA_NAME(hl_cpu_index_kernels)[] = {
    &gather,     &scatter,      &scatter_add,  &index_select, &index_add,
    &index_copy, &index_assign, &batch_gather, &slice_add,    NULL};
