/* Launchers of sort.cu. */
#include "kernels/cuda/sort.h"

#include "kernels/cuda/calls.h"
#include "kernels/cuda/radix.h"

enum { TILE = HL_CUDA_TILE_SORT, TILE_BITS = 11, KEY_BITS = 32 };
_Static_assert((int)TILE == 1 << TILE_BITS, "a power of two");

/* Elements that are taken of a tile at most where more than one is sorted again: with every pass
 * there are half as many, or less. */
static const int64_t MAX_FEW = TILE / 2;

typedef struct sorting {
    hl_dtype dtype;
    size_t bytes; /* of an element */
    int64_t R, N, I, k;
    bool is_wide, by_radix;
    uint64_t mask;
} sorting;

static sorting make_sorting(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    const hl_attrs_sort *attrs = hl_sort_attrs(node);
    sorting s = {.dtype = x->dtype, .bytes = hl_dtype_bytes(x->dtype), .k = attrs->k};
    hl_shape_split(&x->shape, &attrs->axis, 1, &s.R, &s.N, &s.I);
    s.is_wide = s.bytes == 8;
    s.by_radix = s.N > TILE && s.k > MAX_FEW;
    if (attrs->descending) s.mask = s.is_wide ? UINT64_MAX : UINT32_MAX;
    return s;
}

/* ---- by tiles -------------------------------------------------------------------------------- */

static int find_tile_bits(int64_t N)
{
    int bits = 1;
    while (bits < TILE_BITS && (int64_t)1 << bits < N) bits++;
    return bits;
}

/* Entries that one pass over rows of n leaves of each, and the bytes that those of all rows take:
 * none where it is the last. */
static int64_t count_left(const sorting *s, int64_t n)
{
    return n > TILE ? (n + TILE - 1) / TILE * s->k : 0;
}
static size_t find_room(const sorting *s, int64_t n)
{
    size_t each = s->is_wide ? sizeof(hl_cuda_wide_entry) : sizeof(uint64_t);
    return (size_t)hl_round_up(s->R * n * (int64_t)each, HL_ALIGN);
}

/* Passes go from one room to the other, the first of which is the larger one. */
static void call_tiles(hl_cuda_calls *calls, const sorting *s)
{
    hl_cuda_word none = {0}, from = none;
    size_t room[2] = {0, find_room(s, count_left(s, s->N))};
    int turn = 0;
    for (int64_t n = s->N, left = 0; n > 0; n = left, turn = !turn) {
        left = count_left(s, n);
        int tile_bits = find_tile_bits(n);
        int64_t n_tiles = s->R * ((n + ((int64_t)1 << tile_bits) - 1) >> tile_bits);
        int64_t per_block = TILE >> tile_bits;
        hl_cuda_shape shape = hl_cuda_shape_blocks(
            calls->device, (n_tiles + per_block - 1) / per_block, HL_CUDA_TILE_SORT_THREADS);
        bool is_last = left == 0;
        hl_cuda_word to = is_last ? none : hl_cuda_scratch(room[turn]);
        HL_CUDA_CALL(calls, sort_tiles, s->is_wide ? "64" : "32", shape,
                     .at = {hl_cuda_in(calls, 0), from, to, is_last ? hl_cuda_out(calls, 0) : none,
                            is_last ? hl_cuda_out(calls, 1) : none},
                     .R = s->R, .X = s->N, .N = n, .k = s->k, .mask = s->mask,
                     .tile_bits = tile_bits, .dtype = (int32_t)s->dtype,
                     .bytes = (int32_t)s->bytes);
        from = to;
    }
}

/* ---- by radix -------------------------------------------------------------------------------- */

/* The first bit that matters: a 16-bit float's key is that of a float32, whose lower bits are a
 * function of the others. */
static int find_first_bit(const sorting *s)
{
    return s->dtype == HL_DTYPE_BF16 ? 16 : s->dtype == HL_DTYPE_F16 ? 8 : 0;
}

static int count_bits(int64_t most)
{
    int bits = 0;
    while (most >> bits > 0) bits++;
    return bits;
}

static void call_words(hl_cuda_calls *calls, const sorting *s, const hl_cuda_radix *radix, int half,
                       int word)
{
    HL_CUDA_CALL(calls, sort_words, NULL, hl_cuda_shape_elements(calls->device, s->R * s->N),
                 .at = {hl_cuda_in(calls, 0), hl_cuda_scratch(radix->keys[half]),
                        hl_cuda_scratch(radix->values[half])},
                 .R = s->R, .N = s->N, .mask = s->mask, .word = word, .dtype = (int32_t)s->dtype);
}

static void call_radix(hl_cuda_calls *calls, const sorting *s)
{
    hl_cuda_radix radix = hl_cuda_radix_make(s->R * s->N);
    call_words(calls, s, &radix, 0, HL_CUDA_SORT_LOW);
    int half = hl_cuda_radix_call(calls, &radix, 0, find_first_bit(s), KEY_BITS);
    if (s->is_wide) {
        call_words(calls, s, &radix, half, HL_CUDA_SORT_HIGH);
        half = hl_cuda_radix_call(calls, &radix, half, 0, KEY_BITS);
    }
    if (s->R > 1) {
        call_words(calls, s, &radix, half, HL_CUDA_SORT_ROW);
        half = hl_cuda_radix_call(calls, &radix, half, 0, count_bits(s->R - 1));
    }
    HL_CUDA_CALL(calls, sort_take, NULL, hl_cuda_shape_elements(calls->device, s->R * s->k),
                 .at = {hl_cuda_in(calls, 0), hl_cuda_scratch(radix.values[half]),
                        hl_cuda_out(calls, 0), hl_cuda_out(calls, 1)},
                 .R = s->R, .N = s->N, .k = s->k, .bytes = (int32_t)s->bytes);
}

/* ---- SORT ------------------------------------------------------------------------------------ */

static hl_status query_sort(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    sorting s = make_sorting(graph, &graph->nodes[id]);
    if (s.I != 1) out_req->order = hl_node_axes_last(graph, &graph->nodes[id]);
    if (s.N >= UINT32_MAX || (s.by_radix && s.R * s.I * s.N > INT32_MAX))
        return hl_reason_set(out_why_not,
                             "needs rows of fewer than 2^32 elements, and fewer than 2^31 in all "
                             "where more than %d of more than %d are wanted, got %lld of %lld",
                             (int)MAX_FEW, (int)TILE, (long long)s.k, (long long)s.N);
    int64_t left = count_left(&s, s.N);
    out_req->scratch_bytes = s.by_radix ? hl_cuda_radix_make(s.R * s.N).bytes
                                        : find_room(&s, left) + find_room(&s, count_left(&s, left));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_sort(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    sorting s = make_sorting(graph, &graph->nodes[id]);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (s.R > 0 && s.k > 0) (s.by_radix ? call_radix : call_tiles)(&calls, &s);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- SEARCHSORTED ---------------------------------------------------------------------------- */

static hl_status query_search(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)id, (void)out_why_not;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_search(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    const hl_type *sequence = hl_node_in_type(graph, node, 0);
    const hl_shape *values = &hl_node_in_type(graph, node, 1)->shape;
    int64_t n = hl_shape_numel(values);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    HL_CUDA_CALL(&calls, searchsorted, NULL, hl_cuda_shape_elements(device, n),
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_out(&calls, 0)},
                 .N = sequence->shape.dim[sequence->shape.rank - 1], .n = n,
                 .per_row = sequence->shape.rank == 1 ? n : values->dim[values->rank - 1],
                 .dtype = (int32_t)sequence->dtype,
                 .out_dtype = (int32_t)hl_node_out_type(graph, node, 0)->dtype,
                 .right = hl_searchsorted_attrs(node)->right);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel kernels[] = {
    HL_CUDA_KERNEL(SORT, "sort", query_sort, prepare_sort),
    HL_CUDA_KERNEL(SEARCHSORTED, "searchsorted", query_search, prepare_search),
};
const hl_kernel *const hl_cuda_sort_kernels[] = {&kernels[0], &kernels[1], NULL};
