/* Launchers of index.cu.
 *
 * An axis is seen as the middle of (O,A,I): rows of I elements, A of them along the axis, O times.
 * Whole rows move in the widest words of which they are made. */
#include "kernels/cuda/index.h"

#include <stdio.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/radix.h"

/* Positions and targets are int32 on the device. */
static const int64_t MAX_ELEMENTS = INT32_MAX;
enum { WORD = HL_CUDA_WIDEST_WORD };

_Static_assert((int)HL_CUDA_BATCH_PARTS == (int)HL_KERNEL_HORIZONTAL, "all fit");

typedef struct indexed {
    hl_dtype dtype, index_dtype;
    size_t bytes; /* of an element */
    int axis;
    int64_t O, A, I; /* of x */
    int64_t step;    /* elements from a row to the next, of which windows are I elements long */
    int64_t n;       /* indices */
} indexed;

static indexed make_indexed(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0), *index = hl_node_in_type(graph, node, 1);
    int axis = node->op == HL_OP_BATCH_GATHER ? 0 : (int)hl_axis_attrs(node)->axis;
    indexed s = {.dtype = x->dtype,
                 .index_dtype = index->dtype,
                 .bytes = hl_dtype_bytes(x->dtype),
                 .axis = axis,
                 .O = hl_shape_span(&x->shape, 0, axis),
                 .A = x->shape.dim[axis],
                 .I = hl_shape_span(&x->shape, axis + 1, x->shape.rank),
                 .n = hl_shape_numel(&index->shape)};
    s.step = s.I;
    if (node->op == HL_OP_BATCH_GATHER && hl_batch_attrs(node)->window > 0) {
        s.I *= hl_batch_attrs(node)->window;
        s.A = hl_node_extent(graph, node);
    }
    return s;
}

/* A kernel's variant: the bytes of its words. */
typedef struct variant {
    char text[8];
} variant;

static variant name_variant(size_t bytes)
{
    variant name;
    snprintf(name.text, sizeof name.text, "%d", (int)bytes);
    return name;
}

/* Input 1, and the words by which a fault in it is reported. */
static hl_cuda_index_at find_index(const hl_cuda_calls *calls)
{
    return (hl_cuda_index_at){hl_cuda_in(calls, 1), hl_cuda_control_block(),
                              hl_cuda_fault_word(calls)};
}
static hl_cuda_index_axis find_axis(const indexed *s)
{
    return (hl_cuda_index_axis){s->A, (int32_t)s->index_dtype};
}

static size_t round_scratch(int64_t n)
{
    return (size_t)hl_round_up(n * 4, HL_ALIGN);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Where the elements that an index of this shape stands at lie in x, coordinate 0 along the axis;
 * *out_step is a step of it. */
static hl_cuda_layout make_along(const hl_shape *index, const hl_shape *x, int axis,
                                 int64_t *out_step)
{
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(x, stride);
    *out_step = stride[axis];
    stride[axis] = 0;
    return hl_cuda_layout_make(index, stride);
}

static hl_status query_read(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)id, (void)out_why_not;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_gather(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    indexed s = make_indexed(graph, node);
    int64_t step;
    hl_cuda_layout at = make_along(&hl_node_in_type(graph, node, 1)->shape,
                                   &hl_node_in_type(graph, node, 0)->shape, s.axis, &step);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(&calls, gather, name_variant(s.bytes).text, hl_cuda_shape_elements(device, s.n),
                 .at = {find_index(&calls), hl_cuda_in(&calls, 0), hl_cuda_out(&calls, 0)},
                 .axis = find_axis(&s), .layout = at, .step = step);
    return hl_cuda_calls_end(&calls, out_state);
}

/* Rows as words of more bytes than an element, where they are whole. */
static bool widen(const indexed *s, indexed *out_wide)
{
    int64_t k = WORD / (int64_t)s->bytes;
    while (s->I % k) k /= 2;
    *out_wide = *s;
    out_wide->I /= k;
    out_wide->bytes *= (size_t)k;
    return k > 1;
}

static void call_select_words(hl_cuda_calls *calls, const indexed *s)
{
    HL_CUDA_CALL(calls, index_select, name_variant(s->bytes).text,
                 hl_cuda_shape_elements(calls->device, s->O * s->n * s->I),
                 .at = {find_index(calls), hl_cuda_in(calls, 0), hl_cuda_out(calls, 0)},
                 .axis = find_axis(s), .O = s->O, .I = s->I, .n = s->n);
}

static void call_select(hl_cuda_calls *calls, const indexed *s)
{
    indexed wide;
    if (widen(s, &wide)) {
        call_select_words(calls, &wide);
        hl_cuda_call_aligned(calls, wide.bytes);
    }
    call_select_words(calls, s);
}

static hl_status prepare_index_select(hl_device *device, const hl_graph *graph, hl_node_id id,
                                      hl_kernel_state *out_state)
{
    indexed s = make_indexed(graph, &graph->nodes[id]);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_select(&calls, &s);
    return hl_cuda_calls_end(&calls, out_state);
}

/* Of a launch whose node is `first`. */
static hl_cuda_batch_part make_part(const hl_graph *graph, hl_node_id id, hl_node_id first)
{
    const hl_node *node = &graph->nodes[id];
    indexed s = make_indexed(graph, node);
    hl_dtype dtype = hl_node_out_type(graph, node, 0)->dtype;
    return (hl_cuda_batch_part){.n_axis = s.A,
                                .I = s.I,
                                .n = s.n,
                                .step = s.step,
                                .row_bytes = dtype == s.dtype ? s.I * (int64_t)s.bytes : 0,
                                .src_dtype = (int32_t)s.dtype,
                                .index_dtype = (int32_t)s.index_dtype,
                                .out_dtype = (int32_t)dtype,
                                .node_step = id - first};
}

static hl_status prepare_batch(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                               int32_t n, hl_kernel_state *out_state)
{
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, ids[0]);
    hl_cuda_batch_gather_params params = {.at.control = hl_cuda_control_block(),
                                          .at.fault = hl_cuda_fault_word(&calls),
                                          .n_parts = n};
    int64_t most = 0;
    for (int32_t u = 0; u < n; u++) {
        hl_cuda_batch_part *part = &params.part[u];
        *part = make_part(graph, ids[u], ids[0]);
        int64_t words =
            part->row_bytes ? part->n * (part->row_bytes + WORD - 1) / WORD : part->n * part->I;
        if (words > most) most = words;
    }
    for (int32_t k = 0; k < n * HL_CUDA_BATCH_ARGS; k++) params.at.operand[k] = hl_cuda_arg(k);
    HL_CUDA_CALL_WITH(&calls, batch_gather, NULL, hl_cuda_shape_nodes(device, most, n), &params);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_batch_gather(hl_device *device, const hl_graph *graph, hl_node_id id,
                                      hl_kernel_state *out_state)
{
    return prepare_batch(device, graph, &id, 1, out_state);
}

/* ---- the last of equal indices wins: scratch is the winner of every target ------------------- */

/* What all kernels that write ask for: fewer than 2^31 indices and targets, and x in place, of
 * which a thread reads no element but the one that it writes, or which is copied first. */
static hl_status require_write(int64_t n, int64_t n_targets, size_t scratch_bytes,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    int64_t most = n > n_targets ? n : n_targets;
    if (most > MAX_ELEMENTS)
        return hl_reason_set(out_why_not, "needs fewer than 2^31 indices and targets, got %lld",
                             (long long)most);
    out_req->deterministic = true;
    out_req->in_place[0] = 1;
    out_req->scratch_bytes = scratch_bytes;
    return HL_OK;
}

static void call_no_winner(hl_cuda_calls *calls, int64_t n_targets)
{
    HL_CUDA_CALL(calls, fill, NULL, hl_cuda_shape_elements(calls->device, n_targets),
                 .at.dst = hl_cuda_scratch(0), .n = n_targets, .value = 0xFFFFFFFF);
}

static hl_status query_index_copy(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    indexed s = make_indexed(graph, &graph->nodes[id]);
    return require_write(s.n, s.A, round_scratch(s.A), out_req, out_why_not);
}

static void call_copy_rows(hl_cuda_calls *calls, const indexed *s)
{
    HL_CUDA_CALL(calls, index_copy, name_variant(s->bytes).text,
                 hl_cuda_shape_elements(calls->device, s->O * s->A * s->I),
                 .at.x = hl_cuda_in(calls, 0), .at.src = hl_cuda_in(calls, 2),
                 .at.winner = hl_cuda_scratch(0), .at.out = hl_cuda_out(calls, 0), .O = s->O,
                 .A = s->A, .I = s->I, .n = s->n);
}

static void call_assign_rows(hl_cuda_calls *calls, const indexed *s)
{
    HL_CUDA_CALL(
        calls, index_assign, name_variant(s->bytes).text,
        hl_cuda_shape_elements(calls->device, s->O * s->n * s->I),
        .at = {find_index(calls), hl_cuda_in(calls, 2), hl_cuda_scratch(0), hl_cuda_out(calls, 0)},
        .axis = find_axis(s), .O = s->O, .A = s->A, .I = s->I, .n = s->n);
}

static hl_status prepare_index_write(hl_device *device, const hl_graph *graph, hl_node_id id,
                                     void (*call)(hl_cuda_calls *calls, const indexed *s),
                                     hl_kernel_state *out_state)
{
    indexed s = make_indexed(graph, &graph->nodes[id]), wide;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_no_winner(&calls, s.A);
    HL_CUDA_CALL(&calls, index_claim, NULL, hl_cuda_shape_elements(device, s.n),
                 .at = {find_index(&calls), hl_cuda_scratch(0)}, .axis = find_axis(&s), .n = s.n);
    if (widen(&s, &wide)) {
        call(&calls, &wide);
        hl_cuda_call_aligned(&calls, wide.bytes);
    }
    call(&calls, &s);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_index_copy(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    return prepare_index_write(device, graph, id, call_copy_rows, out_state);
}

static hl_status prepare_index_assign(hl_device *device, const hl_graph *graph, hl_node_id id,
                                      hl_kernel_state *out_state)
{
    return prepare_index_write(device, graph, id, call_assign_rows, out_state);
}

/* Where what the indices bring lies in src. */
static hl_cuda_layout make_from(const hl_graph *graph, const hl_node *node)
{
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(&hl_node_in_type(graph, node, 2)->shape, stride);
    return hl_cuda_layout_make(&hl_node_in_type(graph, node, 1)->shape, stride);
}

static hl_status query_scatter(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    indexed s = make_indexed(graph, &graph->nodes[id]);
    int64_t n_targets = s.O * s.A * s.I;
    return require_write(s.n, n_targets, round_scratch(n_targets), out_req, out_why_not);
}

static hl_status prepare_scatter(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_shape *x = &hl_node_in_type(graph, node, 0)->shape;
    const hl_shape *index = &hl_node_in_type(graph, node, 1)->shape;
    indexed s = make_indexed(graph, node);
    int64_t step, n_targets = s.O * s.A * s.I;
    hl_cuda_layout at = make_along(index, x, s.axis, &step);
    hl_cuda_layout from = make_from(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_no_winner(&calls, n_targets);
    HL_CUDA_CALL(&calls, scatter_claim, NULL, hl_cuda_shape_elements(device, s.n),
                 .at = {find_index(&calls), hl_cuda_scratch(0)}, .axis = find_axis(&s),
                 .layout = at, .step = step);
    HL_CUDA_CALL(&calls, scatter, name_variant(s.bytes).text,
                 hl_cuda_shape_elements(device, n_targets), .at.x = hl_cuda_in(&calls, 0),
                 .at.src = hl_cuda_in(&calls, 2), .at.winner = hl_cuda_scratch(0),
                 .at.out = hl_cuda_out(&calls, 0), .n = n_targets, .from = from);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- adding in a fixed order: a sort, then runs of equal targets ------------------------------
 */

/* Up to so many pairs are one segment, and one launch adds them all. */
enum { MIN_SEGMENT_BITS = 6 };

/* Scratch: the sorted pairs, then the partial sums. */
typedef struct sort_room {
    hl_cuda_radix radix;
    size_t parts, bytes;
    int64_t n_segments;
    int32_t segment_bits;
} sort_room;

/* A segment's pairs are added one after another, and so are the segments of a run: both are about
 * the root of n at most. */
static int32_t find_segment_bits(int64_t n)
{
    int32_t bits = MIN_SEGMENT_BITS;
    while ((int64_t)1 << 2 * bits < n) bits++;
    return bits;
}

hl_cuda_radix hl_cuda_radix_make(int64_t n)
{
    int64_t n_tiles = (n + HL_CUDA_SORT_TILE - 1) / HL_CUDA_SORT_TILE;
    size_t each = round_scratch(n), counts = round_scratch(HL_CUDA_SORT_DIGITS * n_tiles);
    return (hl_cuda_radix){.keys = {0, 2 * each},
                           .values = {each, 3 * each},
                           .counts = 4 * each,
                           .totals =
                               4 * each + (n_tiles > 1 ? counts : 0), /* of one tile: the counts */
                           .bytes = 4 * each + counts + round_scratch(HL_CUDA_SORT_DIGITS),
                           .n = n,
                           .n_tiles = n_tiles};
}

/* For n pairs, each of which is so many columns. */
static sort_room make_room(int64_t n, int64_t n_columns, hl_dtype dtype)
{
    int32_t bits = find_segment_bits(n);
    int64_t n_segments = (n + ((int64_t)1 << bits) - 1) >> bits;
    bool is_narrow = hl_dtype_is_float(dtype) && dtype != HL_DTYPE_F64; /* its sums are floats */
    int64_t n_parts = n_segments > 1 ? n_segments * HL_CUDA_SEGMENT_PARTS * n_columns : 0;
    hl_cuda_radix radix = hl_cuda_radix_make(n);
    return (sort_room){.radix = radix,
                       .parts = radix.bytes,
                       .bytes = radix.bytes + round_scratch(is_narrow ? n_parts : 2 * n_parts),
                       .n_segments = n_segments,
                       .segment_bits = bits};
}

/* One stable pass by the digit at `shift`, out of half `from`. */
static void call_sort_pass(hl_cuda_calls *calls, const hl_cuda_radix *radix, int from, int shift)
{
    hl_cuda_shape tiles = hl_cuda_shape_blocks(calls->device, radix->n_tiles, HL_CUDA_SORT_THREADS);
    hl_cuda_shape digits =
        hl_cuda_shape_blocks(calls->device, HL_CUDA_SORT_DIGITS, HL_CUDA_SORT_THREADS);
    hl_cuda_word keys = hl_cuda_scratch(radix->keys[from]), counts = hl_cuda_scratch(radix->counts);
    hl_cuda_word totals = hl_cuda_scratch(radix->totals);
    HL_CUDA_CALL(calls, sort_count, NULL, tiles, .at = {keys, counts}, .n = radix->n,
                 .shift = shift);
    if (radix->n_tiles > 1)
        HL_CUDA_CALL(calls, sort_scan, NULL, digits, .at = {counts, totals},
                     .n_tiles = radix->n_tiles);
    HL_CUDA_CALL(calls, sort_move, NULL, tiles, .at.keys = keys,
                 .at.values = hl_cuda_scratch(radix->values[from]),
                 .at.out_keys = hl_cuda_scratch(radix->keys[!from]),
                 .at.out_values = hl_cuda_scratch(radix->values[!from]), .at.counts = counts,
                 .at.totals = totals, .n = radix->n, .shift = shift);
}

int hl_cuda_radix_call(hl_cuda_calls *calls, const hl_cuda_radix *radix, int half, int first,
                       int end)
{
    for (int shift = first; shift < end; shift += 8, half = !half)
        call_sort_pass(calls, radix, half, shift);
    return half;
}

/* Sorts by keys that are at most `most`; returns the half where they end. */
static int call_sort(hl_cuda_calls *calls, const sort_room *room, int64_t most)
{
    int bits = 0;
    while (most >> bits > 0) bits++;
    return hl_cuda_radix_call(calls, &room->radix, 0, 0, bits);
}

static const char *find_suffix(hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_F64: return "f64";
    case HL_DTYPE_I64: return "i64";
    case HL_DTYPE_I32: return "i32";
    case HL_DTYPE_I16: return "i16";
    case HL_DTYPE_I8: return "i8";
    case HL_DTYPE_U8: return "u8";
    case HL_DTYPE_BOOL: return "bool";
    default: return hl_cuda_suffix(dtype);
    }
}

/* out, which holds x as (O,A,I), += rows of src by the keys in scratch; `from` and src_step as in
 * hl_cuda_add_runs_params. */
static void call_add(hl_cuda_calls *calls, const sort_room *room, hl_dtype dtype, int64_t O,
                     int64_t A, int64_t I, const hl_cuda_layout *from, int64_t src_step)
{
    if (room->radix.n == 0) return;
    int half = call_sort(calls, room, A);
    hl_cuda_word keys = hl_cuda_scratch(room->radix.keys[half]), out = hl_cuda_out(calls, 0);
    hl_cuda_word parts = hl_cuda_scratch(room->parts);
    hl_cuda_runs runs = {room->radix.n, O, A, I, room->segment_bits};
    HL_CUDA_CALL(calls, add_runs, find_suffix(dtype),
                 hl_cuda_shape_elements(calls->device, room->radix.n * O * I), .at.keys = keys,
                 .at.values = hl_cuda_scratch(room->radix.values[half]),
                 .at.src = hl_cuda_in(calls, 2), .at.out = out, .at.parts = parts, .runs = runs,
                 .from = *from, .src_step = src_step);
    if (room->n_segments > 1)
        HL_CUDA_CALL(calls, merge_runs, find_suffix(dtype),
                     hl_cuda_shape_elements(calls->device, (room->n_segments - 1) * O * I),
                     .at = {keys, parts, out}, .runs = runs);
}

/* out <- x */
static void call_base(hl_cuda_calls *calls, const indexed *s)
{
    hl_cuda_call_copy(calls, hl_cuda_out(calls, 0), hl_cuda_in(calls, 0),
                      (size_t)(s->O * s->A * s->I) * s->bytes);
}

static hl_status query_index_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    indexed s = make_indexed(graph, &graph->nodes[id]);
    return require_write(s.n, s.A, make_room(s.n, s.O * s.I, s.dtype).bytes, out_req, out_why_not);
}

static hl_status prepare_index_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_state *out_state)
{
    indexed s = make_indexed(graph, &graph->nodes[id]);
    sort_room room = make_room(s.n, s.O * s.I, s.dtype);
    hl_shape rows = hl_shape_1d(s.n);
    hl_cuda_layout from = hl_cuda_layout_make(&rows, &s.I);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_base(&calls, &s);
    HL_CUDA_CALL(&calls, index_keys, NULL, hl_cuda_shape_elements(device, s.n),
                 .at = {find_index(&calls), hl_cuda_scratch(room.radix.keys[0]),
                        hl_cuda_scratch(room.radix.values[0])},
                 .axis = find_axis(&s), .n = s.n);
    call_add(&calls, &room, s.dtype, s.O, s.A, s.I, &from, s.n * s.I);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status query_scatter_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    indexed s = make_indexed(graph, &graph->nodes[id]);
    return require_write(s.n, s.O * s.A * s.I, make_room(s.n, 1, s.dtype).bytes, out_req,
                         out_why_not);
}

static hl_status prepare_scatter_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                     hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_shape *index = &hl_node_in_type(graph, node, 1)->shape;
    indexed s = make_indexed(graph, node);
    sort_room room = make_room(s.n, 1, s.dtype);
    int64_t step, n_targets = s.O * s.A * s.I;
    hl_cuda_layout at = make_along(index, &hl_node_in_type(graph, node, 0)->shape, s.axis, &step);
    hl_cuda_layout from = make_from(graph, node);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_base(&calls, &s);
    HL_CUDA_CALL(&calls, scatter_keys, NULL, hl_cuda_shape_elements(device, s.n),
                 .at = {find_index(&calls), hl_cuda_scratch(room.radix.keys[0]),
                        hl_cuda_scratch(room.radix.values[0])},
                 .axis = find_axis(&s), .layout = at, .step = step, .n_targets = n_targets);
    call_add(&calls, &room, s.dtype, 1, n_targets, 1, &from, 0);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- adding in any order --------------------------------------------------------------------- */

/* One launch in place of about ten. With more indices than targets many add to the same one, and
 * wait for each other. */
static hl_status query_atomic(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    indexed s = make_indexed(graph, node);
    if (!hl_cuda_is_dtype(graph, node, 0, 1, HL_DTYPE_F32, out_why_not)) return HL_ERROR_CONFIG;
    if (s.n > s.A)
        return hl_reason_set(out_why_not,
                             "needs at most as many indices as targets, got %lld, %lld",
                             (long long)s.n, (long long)s.A);
    out_req->in_place[0] = 1;
    out_req->deterministic = false;
    return HL_OK;
}

static hl_status prepare_atomic(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    indexed s = make_indexed(graph, &graph->nodes[id]);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    call_base(&calls, &s);
    HL_CUDA_CALL(&calls, index_add_atomic, NULL, hl_cuda_shape_elements(device, s.O * s.n * s.I),
                 .at = {find_index(&calls), hl_cuda_in(&calls, 2), hl_cuda_out(&calls, 0)},
                 .axis = find_axis(&s), .O = s.O, .I = s.I, .n = s.n);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- adding to a slice ----------------------------------------------------------------------- */

static hl_status query_slice_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)id, (void)out_why_not;
    out_req->deterministic = true;
    out_req->in_place[0] = 1;
    return HL_OK;
}

static hl_status prepare_slice_add(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_attrs_slice_add *slice = hl_slice_add_attrs(node);
    const hl_type *x = hl_node_in_type(graph, node, 0);
    const hl_shape *src = &hl_node_in_type(graph, node, 1)->shape;
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(&x->shape, stride);
    int64_t first = slice->start * stride[slice->axis];
    stride[slice->axis] *= slice->step;
    hl_cuda_layout layout = hl_cuda_layout_make(src, stride);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_copy(&calls, hl_cuda_out(&calls, 0), hl_cuda_in(&calls, 0), hl_type_bytes(x));
    if (layout.n > 0)
        HL_CUDA_CALL(&calls, slice_add, find_suffix(x->dtype),
                     hl_cuda_shape_elements(device, layout.n), .at.src = hl_cuda_in(&calls, 1),
                     .at.out = hl_cuda_out(&calls, 0), .first = first, .layout = layout);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel kernels[] = {
    HL_CUDA_KERNEL(GATHER, "gather", query_read, prepare_gather),
    HL_CUDA_KERNEL(SCATTER, "scatter", query_scatter, prepare_scatter),
    HL_CUDA_KERNEL(SCATTER_ADD, "scatter_add", query_scatter_add, prepare_scatter_add),
    HL_CUDA_KERNEL(INDEX_SELECT, "index_select", query_read, prepare_index_select),
    HL_CUDA_KERNEL(INDEX_ADD, "index_add.atomic", query_atomic, prepare_atomic),
    HL_CUDA_KERNEL(INDEX_ADD, "index_add.sort", query_index_add, prepare_index_add),
    HL_CUDA_KERNEL(INDEX_COPY, "index_copy", query_index_copy, prepare_index_copy),
    HL_CUDA_KERNEL(INDEX_ASSIGN, "index_assign", query_index_copy, prepare_index_assign),
    HL_CUDA_KERNEL(SLICE_ADD, "slice_add", query_slice_add, prepare_slice_add),
    HL_CUDA_KERNEL_HORIZONTAL(BATCH_GATHER, "batch_gather", query_read, prepare_batch_gather,
                              prepare_batch),
};
const hl_kernel *const hl_cuda_index_kernels[] = {
    &kernels[0], &kernels[1], &kernels[2], &kernels[3], &kernels[4], &kernels[5],
    &kernels[6], &kernels[7], &kernels[8], &kernels[9], NULL};
