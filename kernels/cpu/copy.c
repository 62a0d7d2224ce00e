/* Copies that only move elements: reshape, permute, expand, slice, flip, concat, written parts,
 * split, slice's gradient, pad and its gradient. Elements of any dtype move as 1, 2, 4 or 8 bytes.
 *
 * Permute, expand, slice and flip are one strided copy: each dim of the result has a stride in the
 * operand, and neighbouring dims that one stride describes are merged. Runs are copied whole; where
 * a dim other than the last has stride 1, the two are transposed in tiles, so that both sides are
 * touched a cache line at a time. */
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/cpu/rows.h"

enum { TILE = 16 };

/* ---- strided copies ---- */

typedef struct strided_state {
    size_t bytes; /* of an element */
    int32_t n_dims;
    int64_t dim[HL_MAX_RANK], stride[HL_MAX_RANK]; /* merged; stride in the operand, elements */
    int64_t first;                                 /* operand's element of the first one */
    bool is_row_wise;
} strided_state;

static int64_t clip_start(int64_t start, int64_t n)
{
    if (start < 0) start += n;
    return start < 0 ? 0 : start > n ? n : start;
}

/* Strides of the result's dims in the operand, and its first element. */
static int64_t find_operand_strides(const hl_graph *graph, const hl_node *node, int64_t *out_stride)
{
    const hl_shape *x = &hl_node_in_type(graph, node, 0)->shape;
    const hl_shape *out = &hl_node_out_type(graph, node, 0)->shape;
    int64_t own[HL_MAX_RANK] = {0}, first = 0;
    hl_shape_strides(x, own);
    if (node->op == HL_OP_PERMUTE) {
        for (int d = 0; d < out->rank; d++) out_stride[d] = own[hl_permute_attrs(node)->dims.at[d]];
        return 0;
    }
    if (node->op == HL_OP_EXPAND) {
        hl_shape_broadcast_strides(out, x, out_stride);
        return 0;
    }
    if (node->op == HL_OP_RESHAPE || node->op == HL_OP_DETACH) {
        hl_shape_strides(out, out_stride);
        return 0;
    }
    memcpy(out_stride, own, sizeof own);
    if (node->op == HL_OP_SLICE) {
        const hl_attrs_slice *slice = hl_slice_attrs(node);
        first = clip_start(slice->start, x->dim[slice->axis]) * own[slice->axis];
        out_stride[slice->axis] *= slice->step;
    } else {
        const hl_ints *axes = &hl_flip_attrs(node)->axes;
        for (int32_t a = 0; a < axes->n; a++) {
            int64_t axis = axes->at[a];
            first += (x->dim[axis] - 1) * own[axis];
            out_stride[axis] = -own[axis];
        }
    }
    return first;
}

static strided_state make_strided(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *out = hl_node_out_type(graph, node, 0);
    strided_state state = {.bytes = hl_dtype_bytes(x->dtype)};
    int64_t stride[HL_MAX_RANK] = {0};
    state.first = find_operand_strides(graph, node, stride);
    state.n_dims = hl_shape_merge(&out->shape, stride, state.dim, state.stride);
    if (state.n_dims == 0) state.dim[state.n_dims++] = 1;
    state.is_row_wise = state.dim[0] * state.stride[0] == hl_shape_numel(&x->shape);
    return state;
}

static void copy_one(unsigned char *dst, const unsigned char *src, size_t bytes)
{
    switch (bytes) {
    case 1: *dst = *src; break;
    case 2: memcpy(dst, src, 2); break;
    case 4: memcpy(dst, src, 4); break;
    default: memcpy(dst, src, 8); break;
    }
}

typedef uint32_t word_any __attribute__((may_alias));

static void fill_words(word_any *dst, uint32_t word, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = word;
}

/* n times one element. Zeros, as gradients of tables begin, go by memset, which writes large ones
 * without reading what they overwrite. */
static void fill_run(unsigned char *dst, const unsigned char *value, int64_t n, size_t bytes)
{
    static const unsigned char zeros[8] = {0};
    uint32_t word;
    if (n > 0 && memcmp(value, zeros, bytes) == 0) {
        memset(dst, 0, (size_t)n * bytes);
    } else if (bytes == 4) {
        memcpy(&word, value, 4);
        fill_words((word_any *)(void *)dst, word, n);
    } else {
        for (int64_t i = 0; i < n; i++) copy_one(dst + (size_t)i * bytes, value, bytes);
    }
}

/* n elements that lie `stride` apart. */
static void copy_run(unsigned char *dst, const unsigned char *src, int64_t n, int64_t stride,
                     size_t bytes)
{
    if (stride == 0) {
        fill_run(dst, src, n, bytes);
        return;
    }
    if (stride == 1) {
        memcpy(dst, src, (size_t)n * bytes);
        return;
    }
    ptrdiff_t step = (ptrdiff_t)stride * (ptrdiff_t)bytes;
    for (int64_t i = 0; i < n; i++, src += step) copy_one(dst + (size_t)i * bytes, src, bytes);
}

typedef float four __attribute__((vector_size(16)));
typedef float four_any __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_mask __attribute__((vector_size(16)));

/* dst[r][c] = src[c][r], 4 x 4 words. */
HL_SIMD void transpose_four(unsigned char *dst, ptrdiff_t dst_step, const unsigned char *src,
                            ptrdiff_t src_step)
{
    four a = *(const four_any *)(const void *)src;
    four b = *(const four_any *)(const void *)(src + src_step);
    four c = *(const four_any *)(const void *)(src + 2 * src_step);
    four d = *(const four_any *)(const void *)(src + 3 * src_step);
    four ab_low = __builtin_shuffle(a, b, (four_mask){0, 4, 1, 5});
    four ab_high = __builtin_shuffle(a, b, (four_mask){2, 6, 3, 7});
    four cd_low = __builtin_shuffle(c, d, (four_mask){0, 4, 1, 5});
    four cd_high = __builtin_shuffle(c, d, (four_mask){2, 6, 3, 7});
    four_mask low = {0, 1, 4, 5}, high = {2, 3, 6, 7};
    *(four_any *)(void *)dst = __builtin_shuffle(ab_low, cd_low, low);
    *(four_any *)(void *)(dst + dst_step) = __builtin_shuffle(ab_low, cd_low, high);
    *(four_any *)(void *)(dst + 2 * dst_step) = __builtin_shuffle(ab_high, cd_high, low);
    *(four_any *)(void *)(dst + 3 * dst_step) = __builtin_shuffle(ab_high, cd_high, high);
}

/* n_rows x n_cols of the result; the operand has a row's elements src_step bytes apart and a
 * column's side by side. */
static void transpose_tile(unsigned char *dst, ptrdiff_t dst_step, const unsigned char *src,
                           ptrdiff_t src_step, int64_t n_rows, int64_t n_cols, size_t bytes)
{
    int64_t r = 0, n_fours = bytes == 4 ? n_cols / 4 * 4 : 0;
    for (; bytes == 4 && r + 4 <= n_rows; r += 4) {
        for (int64_t c = 0; c < n_fours; c += 4) {
            transpose_four(dst + r * dst_step + c * 4, dst_step, src + r * 4 + c * src_step,
                           src_step);
        }
        for (int64_t c = n_fours; c < n_cols; c++) {
            for (int64_t i = r; i < r + 4; i++) {
                copy_one(dst + i * dst_step + c * 4, src + i * 4 + c * src_step, 4);
            }
        }
    }
    for (; r < n_rows; r++) {
        for (int64_t c = 0; c < n_cols; c++) {
            ptrdiff_t wide = (ptrdiff_t)bytes;
            copy_one(dst + r * dst_step + c * wide, src + r * wide + c * src_step, bytes);
        }
    }
}

/* Dim `d` of the result has stride 1 in the operand, the last dim a larger one. */
static void transpose_plane(const strided_state *s, int d, const int64_t *dim, unsigned char *dst,
                            const unsigned char *src)
{
    ptrdiff_t bytes = (ptrdiff_t)s->bytes, dst_step = bytes;
    int last = s->n_dims - 1;
    for (int i = d + 1; i < s->n_dims; i++) dst_step *= dim[i];
    ptrdiff_t src_step = (ptrdiff_t)s->stride[last] * bytes;
    for (int64_t c = 0; c < dim[last]; c += TILE) {
        int64_t n_cols = hl_cpu_min(TILE, dim[last] - c);
        for (int64_t r = 0; r < dim[d]; r += TILE) {
            transpose_tile(dst + r * dst_step + c * bytes, dst_step, src + r * bytes + c * src_step,
                           src_step, hl_cpu_min(TILE, dim[d] - r), n_cols, s->bytes);
        }
    }
}

/* Iterates over the dims from `d` on, without `skip` and the last: those are one plane or one run.
 */
static void copy_dims(const strided_state *s, const int64_t *dim, int skip, int d,
                      unsigned char *dst, const unsigned char *src)
{
    int last = s->n_dims - 1;
    if (d == skip) d++;
    if (d >= last) {
        if (skip >= 0) {
            transpose_plane(s, skip, dim, dst, src);
        } else {
            copy_run(dst, src, dim[last], s->stride[last], s->bytes);
        }
        return;
    }
    ptrdiff_t dst_step = (ptrdiff_t)s->bytes, src_step = (ptrdiff_t)s->bytes * s->stride[d];
    for (int i = d + 1; i <= last; i++) dst_step *= dim[i];
    for (int64_t i = 0; i < dim[d]; i++) {
        copy_dims(s, dim, skip, d + 1, dst + i * dst_step, src + i * src_step);
    }
}

static void run_strided(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    (void)launch;
    const strided_state *s = state->impl;
    int64_t dim[HL_MAX_RANK], inner = 1;
    int skip = -1, last = s->n_dims - 1;
    end = hl_cpu_min(end, s->dim[0]);
    memcpy(dim, s->dim, sizeof dim);
    dim[0] = end - begin;
    for (int d = 0; d <= last; d++) {
        if (d > 0) inner *= dim[d];
        if (d < last && s->stride[d] == 1 && s->stride[last] > 1) skip = d;
    }
    if (dim[0] <= 0 || inner == 0) return;
    const unsigned char *src = args[0];
    src += (ptrdiff_t)s->bytes * (s->first + begin * s->stride[0]);
    unsigned char *dst = args[1];
    dst += (size_t)(begin * inner) * s->bytes;
    if (src == dst && s->n_dims == 1 && s->stride[0] == 1) return;
    copy_dims(s, dim, skip, 0, dst, src);
}

static hl_status query_strided(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    strided_state state = make_strided(graph, node);
    int64_t n = hl_shape_numel(&hl_node_out_type(graph, node, 0)->shape);
    out_req->rows = hl_cpu_max(state.dim[0], 1);
    int64_t row = n / out_req->rows;
    out_req->grain = hl_cpu_line_grain((int64_t)state.bytes * hl_cpu_max(row, 1));
    out_req->row_in = state.is_row_wise && state.dim[0] > 1;
    out_req->row_out = 1;
    out_req->row_cost = 0.4 * (double)row;
    out_req->deterministic = true;
    if (node->op == HL_OP_RESHAPE || node->op == HL_OP_DETACH) out_req->in_place[0] = 1;
    return HL_OK;
}

static hl_status prepare_strided(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    (void)device;
    strided_state state = make_strided(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

/* ---- concat, parts, split and slice's gradient: (O, N, I) with an axis N in pieces ---- */

/* Steps of an operand along the axis, and where the first of them lies. */
typedef struct axis_piece {
    int64_t first, n;
} axis_piece;

typedef struct axis_state {
    int64_t O, N;       /* N: along the axis of the whole */
    size_t inner_bytes; /* of one step along the axis */
    int32_t n_in;
    int64_t start, step, n_kept; /* slice's gradient */
    int64_t size;                /* split: steps of a piece */
    bool by_axis;                /* rows are steps along the axis, because O is 1 */
    axis_piece *pieces;          /* concat and parts: of each operand, behind this struct */
} axis_state;

static int find_axis(const hl_node *node)
{
    return node->op == HL_OP_WRITE_PARTS ? 0 : (int)hl_node_axes(node).at[0];
}

static axis_state make_axis(const hl_graph *graph, const hl_node *node)
{
    bool is_split = node->op == HL_OP_SPLIT;
    const hl_type *all =
        is_split ? hl_node_in_type(graph, node, 0) : hl_node_out_type(graph, node, 0);
    int axis = find_axis(node);
    axis_state state = {.n_in = node->n_in, .N = all->shape.dim[axis]};
    state.O = hl_shape_span(&all->shape, 0, axis);
    int64_t inner = hl_shape_span(&all->shape, axis + 1, all->shape.rank);
    state.inner_bytes = (size_t)inner * hl_dtype_bytes(all->dtype);
    if (is_split) {
        state.size = hl_split_attrs(node)->size;
        state.by_axis = state.O == 1;
    }
    if (node->op == HL_OP_SLICE_GRAD) {
        state.start = clip_start(hl_slice_grad_attrs(node)->start, state.N);
        state.step = hl_slice_grad_attrs(node)->step;
        state.n_kept = hl_node_in_type(graph, node, 0)->shape.dim[axis];
        state.by_axis = state.O == 1;
    }
    return state;
}

static void run_concat(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    (void)launch;
    const axis_state *axis = state->impl;
    end = hl_cpu_min(end, axis->O);
    for (int64_t o = begin; o < end; o++) {
        unsigned char *whole = args[axis->n_in];
        for (int32_t i = 0; i < axis->n_in; i++) {
            const axis_piece *piece = &axis->pieces[i];
            size_t bytes = (size_t)piece->n * axis->inner_bytes;
            const unsigned char *src = (const unsigned char *)args[i] + (size_t)o * bytes;
            unsigned char *dst = whole + (size_t)(o * axis->N + piece->first) * axis->inner_bytes;
            /* One that was made where it has to be stays. */
            if (bytes > 0 && src != dst) memcpy(dst, src, bytes);
        }
    }
}

/* Steps [begin, end) along the axis of one outer index, to the pieces that have them. */
static void share_out(const axis_state *axis, const unsigned char *src, void *const *pieces,
                      int64_t o, int64_t begin, int64_t end)
{
    size_t bytes = axis->inner_bytes;
    while (begin < end && bytes > 0) {
        int64_t piece = begin / axis->size, first = piece * axis->size;
        int64_t n_piece = hl_cpu_min(axis->size, axis->N - first);
        int64_t n = hl_cpu_min(end, first + n_piece) - begin;
        unsigned char *dst = pieces[piece];
        memcpy(dst + (size_t)(o * n_piece + begin - first) * bytes,
               src + (size_t)(o * axis->N + begin) * bytes, (size_t)n * bytes);
        begin += n;
    }
}

static void run_split(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    (void)launch;
    const axis_state *axis = state->impl;
    if (axis->by_axis) {
        share_out(axis, args[0], args + 1, 0, begin, hl_cpu_min(end, axis->N));
        return;
    }
    end = hl_cpu_min(end, axis->O);
    for (int64_t o = begin; o < end; o++) share_out(axis, args[0], args + 1, o, 0, axis->N);
}

/* Steps [begin, end) along the axis of one outer index. */
static void spread_slice(const axis_state *axis, const unsigned char *src, unsigned char *dst,
                         int64_t begin, int64_t end)
{
    size_t bytes = axis->inner_bytes;
    if (bytes > 0) memset(dst + (size_t)begin * bytes, 0, (size_t)(end - begin) * bytes);
    int64_t k = hl_cpu_max(hl_cpu_ceil_div(begin - axis->start, axis->step), 0);
    for (; k < axis->n_kept && axis->start + k * axis->step < end; k++) {
        size_t to = (size_t)(axis->start + k * axis->step) * bytes;
        if (bytes > 0) memcpy(dst + to, src + (size_t)k * bytes, bytes);
    }
}

static void run_slice_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                           int64_t end, const hl_launch *launch)
{
    (void)launch;
    const axis_state *axis = state->impl;
    const unsigned char *src = args[0];
    unsigned char *dst = args[1];
    if (axis->by_axis) {
        end = hl_cpu_min(end, axis->N);
        if (begin < end) spread_slice(axis, src, dst, begin, end);
        return;
    }
    end = hl_cpu_min(end, axis->O);
    for (int64_t o = begin; o < end; o++) {
        spread_slice(axis, src + (size_t)(o * axis->n_kept) * axis->inner_bytes,
                     dst + (size_t)(o * axis->N) * axis->inner_bytes, 0, axis->N);
    }
}

static hl_status query_axis(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    const hl_node *node = &graph->nodes[id];
    axis_state state = make_axis(graph, node);
    int64_t rows = state.by_axis ? state.N : state.O;
    int64_t row_bytes = (int64_t)state.inner_bytes * (state.by_axis ? 1 : state.N);
    out_req->rows = hl_cpu_max(rows, 1);
    out_req->grain = hl_cpu_line_grain(hl_cpu_max(row_bytes, 1));
    out_req->row_in = state.by_axis || rows <= 1 ? 0 : hl_cpu_bits(node->n_in);
    out_req->row_out = 1;
    out_req->row_cost = 4 + 0.1 * (double)row_bytes;
    out_req->deterministic = true;
    return HL_OK;
}

/* Rows are of the whole; where they are steps along the axis, pieces are not cut by them. */
static hl_status query_split(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    HL_TRY(query_axis(device, graph, id, out_req, out_why_not));
    axis_state state = make_axis(graph, &graph->nodes[id]);
    out_req->row_in = out_req->rows > 1;
    out_req->row_out = state.by_axis ? 0 : hl_cpu_bits(graph->nodes[id].n_out);
    return HL_OK;
}

static hl_status prepare_axis(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    size_t list_bytes = (size_t)node->n_in * sizeof(axis_piece);
    bool writes = node->op == HL_OP_WRITE_PARTS;
    int64_t align = writes ? hl_write_parts_attrs(node)->align : 1, first = 0;
    HL_TRY(hl_alloc(sizeof(axis_state) + list_bytes, &out_state->impl));
    axis_state *state = out_state->impl;
    *state = make_axis(graph, node);
    state->pieces = (axis_piece *)(void *)(state + 1);
    for (int32_t i = 0; i < node->n_in; i++) {
        const hl_shape *x = &hl_node_in_type(graph, node, i)->shape;
        int64_t n = writes && i == 0 ? 0 : x->dim[find_axis(node)];
        first = hl_round_up(first, align);
        state->pieces[i] = (axis_piece){first, n};
        first += n;
    }
    return HL_OK;
}

/* ---- pad ---- */

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

typedef struct pad_state {
    hl_shape padded, plain;
    int64_t before[HL_MAX_RANK];
    int64_t mode;
    hl_dtype dtype;
    double value;
    int row_dims; /* leading dims without padding, cut into rows */
    bool is_row_wise;
} pad_state;

static pad_state make_pad(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_PAD_GRAD;
    const hl_type *in = hl_node_in_type(graph, node, 0), *out = hl_node_out_type(graph, node, 0);
    const hl_attrs_pad *pad = hl_pad_attrs(node);
    pad_state state = {.padded = is_grad ? in->shape : out->shape,
                       .plain = is_grad ? out->shape : in->shape,
                       .mode = pad->mode,
                       .dtype = in->dtype,
                       .value = pad->value};
    int rank = state.padded.rank;
    for (int d = 0; d < rank; d++) state.before[d] = pad->before.at[d];
    while (state.row_dims < rank - 1 && pad->before.at[state.row_dims] == 0 &&
           pad->after.at[state.row_dims] == 0)
        state.row_dims++;
    state.is_row_wise = hl_shape_span(&state.plain, 0, state.row_dims) > 1;
    if (!state.is_row_wise) state.row_dims = is_grad || rank == 0 ? 0 : 1;
    return state;
}

/* The coordinate in [0, n) that a padded one repeats; -1: none, the constant stands there. */
static int64_t find_source(int64_t mode, int64_t coordinate, int64_t n)
{
    if (coordinate >= 0 && coordinate < n) return coordinate;
    switch (mode) {
    case PAD_REFLECT:
        while (n > 1 && (coordinate < 0 || coordinate >= n)) {
            coordinate = coordinate < 0 ? -coordinate : 2 * (n - 1) - coordinate;
        }
        return n > 1 ? coordinate : 0;
    case PAD_REPLICATE: return coordinate < 0 ? 0 : n - 1;
    case PAD_CIRCULAR: return (coordinate % n + n) % n;
    default: return -1;
    }
}

/* Place in `plain` of a padded line's first unpadded element; -1: the line is all padding. */
static int64_t find_line(const pad_state *pad, int64_t line)
{
    int64_t element = 0, scale = pad->plain.dim[pad->plain.rank - 1];
    for (int d = pad->padded.rank - 2; d >= 0; d--) {
        int64_t coordinate = line % pad->padded.dim[d] - pad->before[d];
        int64_t source = find_source(pad->mode, coordinate, pad->plain.dim[d]);
        if (source < 0) return -1;
        element += source * scale;
        scale *= pad->plain.dim[d];
        line /= pad->padded.dim[d];
    }
    return element;
}

/* Writes places [begin, end) of a line, one by one. */
static void pad_ends(const pad_state *pad, const unsigned char *src, unsigned char *dst,
                     const void *value, size_t bytes, int64_t begin, int64_t end)
{
    int last = pad->padded.rank - 1;
    for (int64_t i = begin; i < end; i++) {
        int64_t source = find_source(pad->mode, i - pad->before[last], pad->plain.dim[last]);
        const void *from = source < 0 ? value : src + (size_t)source * bytes;
        copy_one(dst + (size_t)i * bytes, from, bytes);
    }
}

static void pad_line(const pad_state *pad, const unsigned char *src, unsigned char *dst,
                     const void *value, size_t bytes)
{
    int last = pad->padded.rank - 1;
    int64_t width = pad->padded.dim[last], before = pad->before[last];
    int64_t begin = hl_cpu_min(hl_cpu_max(before, 0), width);
    int64_t end = hl_cpu_max(hl_cpu_min(before + pad->plain.dim[last], width), begin);
    pad_ends(pad, src, dst, value, bytes, 0, begin);
    if (end > begin) {
        memcpy(dst + (size_t)begin * bytes, src + (size_t)(begin - before) * bytes,
               (size_t)(end - begin) * bytes);
    }
    pad_ends(pad, src, dst, value, bytes, end, width);
}

/* Lines of the padded array that rows [begin, end) of the work have. */
static int64_t lines_per_row(const pad_state *pad)
{
    int rank = pad->padded.rank;
    return hl_shape_span(&pad->padded, pad->row_dims, (int)hl_cpu_max(rank - 1, pad->row_dims));
}

static void run_pad(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                    const hl_launch *launch)
{
    (void)launch;
    const pad_state *pad = state->impl;
    size_t bytes = hl_dtype_bytes(pad->dtype);
    const unsigned char *x = args[0];
    unsigned char *out = args[1];
    uint64_t value = 0;
    HL_ISA_NAME(hl_pw_store)(HL_PW_F64, pad->dtype, &value, &pad->value, 1);
    int rank = pad->padded.rank;
    if (rank == 0) {
        copy_one(out, x, bytes);
        return;
    }
    /* A 1-d array is one line, whatever the rows. */
    int64_t n_lines = hl_shape_span(&pad->padded, 0, rank - 1);
    int64_t per_row = rank == 1 ? 1 : lines_per_row(pad), width = pad->padded.dim[rank - 1];
    if (hl_shape_numel(&pad->padded) == 0) return;
    for (int64_t line = begin * per_row; line < hl_cpu_min(end * per_row, n_lines); line++) {
        int64_t source = find_line(pad, line);
        unsigned char *dst = out + (size_t)(line * width) * bytes;
        if (source < 0) {
            fill_run(dst, (const unsigned char *)&value, width, bytes);
        } else {
            pad_line(pad, x + (size_t)source * bytes, dst, &value, bytes);
        }
    }
}

static void run_pad_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                         int64_t end, const hl_launch *launch)
{
    (void)launch;
    const pad_state *pad = state->impl;
    const float *dy = args[0];
    float *dx = args[1];
    int rank = pad->padded.rank, last = rank - 1;
    int64_t plain_row = hl_shape_span(&pad->plain, pad->row_dims, rank);
    end = hl_cpu_min(end, hl_shape_span(&pad->plain, 0, pad->row_dims));
    for (int64_t i = begin * plain_row; i < end * plain_row; i++) dx[i] = 0;
    if (rank == 0) {
        dx[0] = dy[0];
        return;
    }
    int64_t per_row = lines_per_row(pad), width = pad->padded.dim[last];
    for (int64_t line = begin * per_row; line < end * per_row; line++) {
        int64_t to = find_line(pad, line);
        if (to < 0) continue;
        for (int64_t i = 0; i < width; i++) {
            int64_t source = find_source(pad->mode, i - pad->before[last], pad->plain.dim[last]);
            if (source >= 0) dx[to + source] += dy[line * width + i];
        }
    }
}

static hl_status query_pad(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_grad = node->op == HL_OP_PAD_GRAD;
    if (is_grad && !hl_rows_is_f32(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    pad_state state = make_pad(graph, node);
    bool is_line = !state.is_row_wise && state.padded.rank <= 1;
    int64_t rows = is_line ? 1 : hl_shape_span(&state.padded, 0, state.row_dims);
    int64_t n = hl_shape_numel(&state.padded);
    out_req->rows = hl_cpu_max(rows, 1);
    out_req->grain = hl_cpu_line_grain(hl_cpu_max(n / out_req->rows, 1));
    out_req->row_in = state.is_row_wise;
    out_req->row_out = 1;
    out_req->row_cost = (double)n / (double)out_req->rows * (is_grad ? 2 : 0.5);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_pad(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_state *out_state)
{
    (void)device;
    pad_state state = make_pad(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&state, sizeof state, out_state);
}

/* ---- kernels ---- */

#define KERNEL(id, OP, family, text)                                                               \
    static const hl_kernel id = {.op = HL_OP_##OP,                                                 \
                                 .name = HL_CPU_NAME(text),                                        \
                                 .query = query_##family,                                          \
                                 .prepare = prepare_##family,                                      \
                                 .block = run_##id};
#define STRIDED(id, OP, text)                                                                      \
    static const hl_kernel id = {.op = HL_OP_##OP,                                                 \
                                 .name = HL_CPU_NAME(text),                                        \
                                 .query = query_strided,                                           \
                                 .prepare = prepare_strided,                                       \
                                 .block = run_strided};
STRIDED(reshape, RESHAPE, "reshape")
STRIDED(detach, DETACH, "detach")
STRIDED(permute, PERMUTE, "permute")
STRIDED(expand, EXPAND, "expand")
STRIDED(slice, SLICE, "slice")
STRIDED(flip, FLIP, "flip")
KERNEL(concat, CONCAT, axis, "concat")
static const hl_kernel write_parts = {.op = HL_OP_WRITE_PARTS,
                                      .name = HL_CPU_NAME("write_parts"),
                                      .query = query_axis,
                                      .prepare = prepare_axis,
                                      .block = run_concat};
KERNEL(slice_grad, SLICE_GRAD, axis, "slice_grad")
static const hl_kernel split = {.op = HL_OP_SPLIT,
                                .name = HL_CPU_NAME("split"),
                                .query = query_split,
                                .prepare = prepare_axis,
                                .block = run_split};
KERNEL(pad, PAD, pad, "pad")
KERNEL(pad_grad, PAD_GRAD, pad, "pad_grad")

const hl_kernel *const HL_ISA_NAME(hl_cpu_copy_kernels)[] = {
    &reshape,     &detach,     &permute, &expand, &slice,    &flip, &concat,
    &write_parts, &slice_grad, &split,   &pad,    &pad_grad, NULL};
