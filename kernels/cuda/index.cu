/* Indexed access. An index outside [0, n) sets the error word (row: its place in the index array);
 * it reads as 0 and writes nothing. Negative indices are outside.
 *
 * Reading is one launch. Writing where the last of equal indices wins is two: every index claims
 * its target by an atomic maximum of positions, which has one result in any order, then every
 * target takes its winner. Adding is a stable radix sort of (target, position), eight bits a pass,
 * after which the columns of a run of equal targets are added by a thread each: the same bits every
 * run, and the time does not depend on the number of targets. The atomic sum is there for those who
 * do not ask for the same bits.
 *
 * A run may be long (half of a batch of tokens is padding), so the sorted pairs are cut into
 * segments, about as long as there are many. A run within one is added in index order; of one that
 * is cut each segment has a partial sum, in index order, and these are added in theirs. Where the
 * cuts are depends on the indices alone.
 *
 * Rejected: every target looking through all indices (targets x indices), a linked list per target
 * (its order is the order of threads), segments counted from the beginning of each run (every
 * thread would have to look for it).
 *
 * A batch is one launch, however many arrays it is gathered from.
 *
 * Launch: any grid, any threads, but sorting: HL_CUDA_SORT_THREADS. Arrays of 2^31 indices or
 * targets and more are refused by query; src may be larger. */
#include "kernels/cuda/index.h"

#include "kernels/cuda/any.h"

enum { THREADS = HL_CUDA_ELEMENT_THREADS };

struct index_array {
    const void *p;
    int32_t dtype;
    int64_t fault;
    hl_control *control;
    int64_t n; /* an index is below it */
};

HL_DEVICE index_array make_index(const hl_cuda_index_at &at, const hl_cuda_index_axis &axis)
{
    return {at.p, axis.dtype, at.fault, at.control, axis.n};
}

HL_DEVICE int64_t take_index(const index_array &index, int64_t i)
{
    int64_t k = hl_read_int(index.p, index.dtype, i);
    if (k >= 0 && k < index.n) return k;
    hl_fault_set(index.control, index.fault, i, k);
    return -1;
}

/* ---- reading ---- */

/* x (O,axis.n,I), whose rows are `step` words apart, by index (n) -> out (O,n,I) */
template <class W>
HL_DEVICE void select_rows(const W *x, const index_array &index, W *out, int64_t O, int64_t I,
                           int64_t step, int64_t n)
{
    bool is_short = hl_is_short(O * n * I);
    HL_FOR_GRID(i, O * n * I)
    {
        int64_t c, j, row = hl_divide(i, I, is_short, &c), o = hl_divide(row, n, is_short, &j);
        int64_t k = take_index(index, j);
        if (k < 0)
            out[i] = W();
        else
            out[i] = x[(o * index.n + k) * step + c];
    }
}

/* ---- the last of equal indices wins ---- */

HL_CUDA_ENTRY(fill, THREADS, p)
{
    HL_FOR_GRID(i, p.n) p.at.dst[i] = p.value;
}
HL_CUDA_ENTRY(index_claim, THREADS, p)
{
    index_array index = make_index(p.at.index, p.axis);
    HL_FOR_GRID(i, p.n)
    {
        int64_t k = take_index(index, i);
        if (k >= 0) hl_atomic_max(p.at.winner + k, (int32_t)i);
    }
}
HL_CUDA_ENTRY(scatter_claim, THREADS, p)
{
    index_array index = make_index(p.at.index, p.axis);
    HL_FOR_GRID(i, p.layout.n)
    {
        int64_t k = take_index(index, i);
        if (k < 0) continue;
        hl_atomic_max(p.at.winner + k * p.step + hl_layout_offset(p.layout, i), (int32_t)i);
    }
}

/* ---- sorting ---- */

HL_CUDA_ENTRY(index_keys, THREADS, p)
{
    index_array index = make_index(p.at.index, p.axis);
    HL_FOR_GRID(i, p.n)
    {
        int64_t k = take_index(index, i);
        p.at.keys[i] = (uint32_t)(k < 0 ? p.axis.n : k);
        p.at.values[i] = (int32_t)i;
    }
}
HL_CUDA_ENTRY(scatter_keys, THREADS, p)
{
    index_array index = make_index(p.at.index, p.axis);
    HL_FOR_GRID(i, p.layout.n)
    {
        int64_t k = take_index(index, i);
        p.at.keys[i] = (uint32_t)(k < 0 ? p.n_targets : k * p.step + hl_layout_offset(p.layout, i));
        p.at.values[i] = (int32_t)i;
    }
}

enum {
    SORT_TILE = HL_CUDA_SORT_TILE,
    SORT_DIGITS = HL_CUDA_SORT_DIGITS,
    SORT_THREADS = HL_CUDA_SORT_THREADS,
    SORT_WARPS = SORT_THREADS / 32
};

HL_DEVICE uint32_t take_digit(uint32_t key, int shift)
{
    return key >> shift & (SORT_DIGITS - 1);
}

HL_CUDA_ENTRY(sort_count, SORT_THREADS, p)
{
    const uint32_t *keys = p.at.keys;
    uint32_t *counts = p.at.counts;
    int64_t n = p.n;
    HL_SHARED(uint32_t, count, SORT_DIGITS);
    int64_t n_tiles = (n + SORT_TILE - 1) / SORT_TILE;
    for (int64_t tile = hl_block_x(); tile < n_tiles; tile += hl_blocks_x()) {
        count[hl_thread()] = 0;
        hl_barrier();
        for (int64_t i = tile * SORT_TILE + hl_thread(); i < n && i < (tile + 1) * SORT_TILE;
             i += SORT_THREADS)
            hl_atomic_add(&count[take_digit(keys[i], p.shift)], 1u);
        hl_barrier();
        counts[hl_thread() * n_tiles + tile] = count[hl_thread()];
        hl_barrier();
    }
}

/* The sum of `own` over the threads before this one of SORT_THREADS, and over all of them. */
HL_DEVICE uint32_t scan_block(uint32_t own, uint32_t *out_all)
{
    HL_SHARED(uint32_t, total, SORT_WARPS);
    int lane = hl_thread() % 32, warp = hl_thread() / 32;
    uint32_t sum = own;
    for (int delta = 1; delta < 32; delta *= 2) {
        uint32_t before = hl_shuffle_up(HL_WARP_ALL, sum, delta);
        if (lane >= delta) sum += before;
    }
    hl_barrier(); /* the last scan's readers are through */
    if (lane == 31) total[warp] = sum;
    hl_barrier();
    uint32_t before = sum - own, all = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
        if (w < warp) before += total[w];
        all += total[w];
    }
    *out_all = all;
    return before;
}

/* A block for each digit; sort_move adds what is before the digit. */
HL_CUDA_ENTRY(sort_scan, SORT_THREADS, p)
{
    int64_t n_tiles = p.n_tiles;
    for (int digit = hl_block_x(); digit < SORT_DIGITS; digit += hl_blocks_x()) {
        uint32_t *counts = p.at.counts + digit * n_tiles, carry = 0, all;
        for (int64_t begin = 0; begin < n_tiles; begin += SORT_THREADS) {
            int64_t tile = begin + hl_thread();
            uint32_t before = scan_block(tile < n_tiles ? counts[tile] : 0, &all);
            if (tile < n_tiles) counts[tile] = carry + before;
            carry += all;
        }
        if (hl_thread() == 0) p.at.totals[digit] = carry;
    }
}

/* Lanes with the same digit as this one, of those that have one. */
HL_DEVICE uint32_t find_peers(uint32_t digit, bool is_active)
{
    uint32_t peers = hl_ballot(HL_WARP_ALL, is_active);
    for (int bit = 0; bit < 8; bit++) {
        bool is_set = digit >> bit & 1;
        uint32_t votes = hl_ballot(HL_WARP_ALL, is_set);
        peers &= is_set ? votes : ~votes;
    }
    return peers;
}

/* Moves a tile's pairs to where the scanned counts say, equal digits in their order: 256 at a time,
 * each thread's place is that of its digit, of the warps before, of the lanes before. */
HL_CUDA_ENTRY(sort_move, SORT_THREADS, p)
{
    int64_t n = p.n;
    HL_SHARED(uint32_t, next, SORT_DIGITS);
    HL_SHARED(uint32_t, place, SORT_WARPS * SORT_DIGITS);
    int t = hl_thread(), lane = t % 32, warp = t / 32;
    int64_t n_tiles = (n + SORT_TILE - 1) / SORT_TILE;
    uint32_t all, before_digit = scan_block(p.at.totals[t], &all);
    for (int64_t tile = hl_block_x(); tile < n_tiles; tile += hl_blocks_x()) {
        next[t] = before_digit + (n_tiles > 1 ? p.at.counts[t * n_tiles + tile] : 0);
        for (int64_t begin = tile * SORT_TILE; begin < (tile + 1) * SORT_TILE;
             begin += SORT_THREADS) {
            int64_t i = begin + t;
            uint32_t key = i < n ? p.at.keys[i] : 0, digit = take_digit(key, p.shift);
            for (int w = 0; w < SORT_WARPS; w++) place[w * SORT_DIGITS + t] = 0;
            hl_barrier();
            uint32_t peers = find_peers(digit, i < n);
            int rank = hl_count_bits(peers & ((1u << lane) - 1));
            if (i < n && rank == 0)
                place[warp * SORT_DIGITS + digit] = (uint32_t)hl_count_bits(peers);
            hl_barrier();
            uint32_t at = next[t];
            for (int w = 0; w < SORT_WARPS; w++) {
                uint32_t count = place[w * SORT_DIGITS + t];
                place[w * SORT_DIGITS + t] = at;
                at += count;
            }
            next[t] = at;
            hl_barrier();
            if (i < n) {
                uint32_t to = place[warp * SORT_DIGITS + digit] + (uint32_t)rank;
                p.at.out_keys[to] = key;
                p.at.out_values[to] = p.at.values[i];
            }
            hl_barrier();
        }
    }
}

/* ---- adding ---- */

/* In what elements are added: a sum's type, an element as one, a sum as an element. */
template <class S, class T> struct sum_in {
    typedef S type;
    static HL_MEMBER S load(T x)
    {
        return (S)x;
    }
    static HL_MEMBER void store(T *to, S sum)
    {
        *to = (T)sum;
    }
};
template <class T> using int_sum = sum_in<uint64_t, T>;
typedef sum_in<double, double> double_sum;
template <class T> struct float_sum {
    typedef float type;
    static HL_MEMBER float load(T x)
    {
        return hl_to_float(x);
    }
    static HL_MEMBER void store(T *to, float sum)
    {
        hl_put(to, sum);
    }
};
struct bool_sum {
    typedef uint64_t type;
    static HL_MEMBER uint64_t load(uint8_t x)
    {
        return x;
    }
    static HL_MEMBER void store(uint8_t *to, uint64_t sum)
    {
        *to = sum != 0;
    }
};

/* Of sorted keys `step` apart: where behind the one at `first` another one stands, or limit. Pairs
 * are counted in 32 bits: there are fewer than 2^31. */
HL_DEVICE uint32_t find_end(const uint32_t *keys, uint32_t step, uint32_t first, uint32_t limit)
{
    uint32_t key = keys[first * step], low = first + 1, high = limit;
    if (low < high && keys[low * step] != key) return low; /* most runs are of one */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (keys[middle * step] == key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
/* Is this pair the first of its run? */
HL_DEVICE bool begins_run(const uint32_t *keys, uint32_t at)
{
    return at == 0 || keys[at - 1] != keys[at];
}

/* A thread has one column of the run that begins at its pair, or goes on there in a segment. */
template <class Sum, class T> HL_DEVICE void add_runs(const hl_cuda_add_runs_params &p)
{
    const uint32_t *keys = p.at.keys;
    const int32_t *values = p.at.values;
    typename Sum::type *parts = (typename Sum::type *)p.at.parts;
    int64_t I = p.runs.I, n_columns = p.runs.O * I, row = p.from.stride[0];
    bool is_short = hl_is_short(p.runs.n * n_columns), is_plain = p.from.rank == 1;
    HL_FOR_GRID(u, p.runs.n * n_columns)
    {
        int64_t column, c;
        uint32_t first = (uint32_t)hl_divide(u, n_columns, is_short, &column), key = keys[first];
        if (key >= p.runs.A) continue;
        uint32_t segment = first >> p.runs.segment_bits, n = (uint32_t)p.runs.n;
        bool begins = begins_run(keys, first);
        if (!begins && first != segment << p.runs.segment_bits) continue;
        uint32_t limit = (segment + 1) << p.runs.segment_bits;
        uint32_t end = find_end(keys, 1, first, limit < n ? limit : n);
        bool is_cut = !begins || (end < n && keys[end] == key);
        int64_t o = hl_divide(column, I, is_short, &c);
        T *to = (T *)p.at.out + (o * p.runs.A + key) * I + c;
        const T *src = (const T *)p.at.src + o * p.src_step + c;
        auto take = [&](uint32_t q) {
            int64_t at = values[q];
            return Sum::load(src[is_plain ? at * row : hl_layout_offset(p.from, at)]);
        };
        auto sum = is_cut ? take(first) : Sum::load(*to);
        if (is_cut) first++;
        if (is_plain) /* apart, so that it is unrolled and its loads overlap */
            for (; first < end; first++) sum += Sum::load(src[values[first] * row]);
        for (; first < end; first++) sum += take(first);
        if (is_cut)
            parts[(segment * (int64_t)HL_CUDA_SEGMENT_PARTS + begins) * n_columns + column] = sum;
        else
            Sum::store(to, sum);
    }
}

/* A thread has one column of the run that a segment's end cuts first. */
template <class Sum, class T> HL_DEVICE void merge_runs(const hl_cuda_merge_runs_params &p)
{
    const uint32_t *keys = p.at.keys;
    const typename Sum::type *parts = (const typename Sum::type *)p.at.parts;
    uint32_t length = 1u << p.runs.segment_bits;
    uint32_t n_segments = (uint32_t)((p.runs.n + length - 1) >> p.runs.segment_bits);
    int64_t I = p.runs.I, n_columns = p.runs.O * I, step = HL_CUDA_SEGMENT_PARTS * n_columns;
    bool is_short = hl_is_short(n_segments * n_columns);
    HL_FOR_GRID(u, ((int64_t)n_segments - 1) * n_columns)
    {
        int64_t column, c;
        uint32_t segment = (uint32_t)hl_divide(u, n_columns, is_short, &column);
        uint32_t first = segment * length, cut = first + length, key = keys[cut];
        if (key >= p.runs.A || begins_run(keys, cut)) continue;
        if (keys[first] == key && !begins_run(keys, first)) continue;
        int64_t o = hl_divide(column, I, is_short, &c);
        T *to = (T *)p.at.out + (o * p.runs.A + key) * I + c;
        uint32_t end = find_end(keys, length, segment + 1, n_segments);
        auto sum = Sum::load(*to) + parts[segment * step + n_columns + column];
        for (uint32_t s = segment + 1; s < end; s++) sum += parts[s * step + column];
        Sum::store(to, sum);
    }
}

#define ADD_KERNELS(Sum, T, suffix)                                                                \
    HL_CUDA_ENTRY_OF(add_runs, suffix, THREADS, p)                                                 \
    {                                                                                              \
        add_runs<Sum, T>(p);                                                                       \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(merge_runs, suffix, THREADS, p)                                               \
    {                                                                                              \
        merge_runs<Sum, T>(p);                                                                     \
    }
#define ADD_FLOAT(T, suffix) ADD_KERNELS(float_sum<T>, T, suffix)
#define ADD_INT(T, suffix)   ADD_KERNELS(int_sum<T>, T, suffix)
HL_FLOAT_TYPES(ADD_FLOAT)
ADD_KERNELS(double_sum, double, f64)
ADD_INT(int64_t, i64)
ADD_INT(int32_t, i32)
ADD_INT(int16_t, i16)
ADD_INT(int8_t, i8)
ADD_INT(uint8_t, u8)
ADD_KERNELS(bool_sum, uint8_t, bool)

/* In any order. */
HL_CUDA_ENTRY(index_add_atomic, THREADS, p)
{
    index_array index = make_index(p.at.index, p.axis);
    int64_t O = p.O, I = p.I, n = p.n;
    bool is_short = hl_is_short(O * n * I);
    HL_FOR_GRID(i, O * n * I)
    {
        int64_t c, j, row = hl_divide(i, I, is_short, &c), o = hl_divide(row, n, is_short, &j);
        int64_t k = take_index(index, j);
        if (k >= 0) hl_atomic_add(p.at.out + (o * p.axis.n + k) * I + c, p.at.src[i]);
    }
}

template <class Sum, class T> HL_DEVICE void add_slice(const hl_cuda_slice_add_params &p)
{
    const T *src = (const T *)p.at.src;
    HL_FOR_GRID(i, p.layout.n)
    {
        T *to = (T *)p.at.out + p.first + hl_layout_offset(p.layout, i);
        Sum::store(to, Sum::load(*to) + Sum::load(src[i]));
    }
}
#define SLICE_ADD_KERNEL(Sum, T, suffix)                                                           \
    HL_CUDA_ENTRY_OF(slice_add, suffix, THREADS, p)                                                \
    {                                                                                              \
        add_slice<Sum, T>(p);                                                                      \
    }
#define SLICE_ADD_FLOAT(T, suffix) SLICE_ADD_KERNEL(float_sum<T>, T, suffix)
HL_FLOAT_TYPES(SLICE_ADD_FLOAT)
SLICE_ADD_KERNEL(double_sum, double, f64)

/* ---- a batch: rows of resident data, converted where its type is another ---- */

HL_DEVICE void convert_rows(const void *src, const index_array &index, void *out,
                            const hl_cuda_batch_part &part)
{
    bool is_exact = !hl_is_float(part.src_dtype) && !hl_is_float(part.out_dtype);
    bool is_narrow = !is_exact && hl_is_float(part.out_dtype) &&
                     (part.src_dtype == HL_DTYPE_F32 || part.src_dtype == HL_DTYPE_U8);
    bool is_short = hl_is_short(part.n * part.I);
    HL_FOR_GRID(i, part.n * part.I)
    {
        int64_t c, row = hl_divide(i, part.I, is_short, &c);
        int64_t k = take_index(index, row), from = k * part.step + c;
        if (k < 0)
            hl_write_any(out, part.out_dtype, i, 0);
        else if (is_narrow) /* images and tables, without double arithmetic */
            hl_write_float(out, part.out_dtype, i,
                           part.src_dtype == HL_DTYPE_U8 ? (float)((const uint8_t *)src)[from]
                                                         : ((const float *)src)[from]);
        else if (is_exact)
            hl_write_int(out, part.out_dtype, i, hl_read_int(src, part.src_dtype, from));
        else
            hl_write_any(out, part.out_dtype, i, hl_read_any(src, part.src_dtype, from));
    }
}

/* As they are, by the widest words that rows are whole in and addresses allow. */
template <class W>
HL_DEVICE void copy_words(const void *src, const index_array &index, void *out,
                          const hl_cuda_batch_part &part)
{
    int64_t words = part.row_bytes / (int64_t)sizeof(W), step = words * part.step / part.I;
    select_rows((const W *)src, index, (W *)out, 1, words, step, part.n);
}
HL_DEVICE void copy_part(const void *src, const index_array &index, void *out,
                         const hl_cuda_batch_part &part)
{
    int64_t step = part.row_bytes / part.I * part.step; /* in bytes, as rows are copied */
    uint64_t ends = (uintptr_t)src | (uintptr_t)out | (uint64_t)part.row_bytes | (uint64_t)step;
    if (ends % 16 == 0)
        copy_words<hl_word4>(src, index, out, part);
    else if (ends % 8 == 0)
        copy_words<uint64_t>(src, index, out, part);
    else if (ends % 4 == 0)
        copy_words<uint32_t>(src, index, out, part);
    else if (ends % 2 == 0)
        copy_words<uint16_t>(src, index, out, part);
    else
        copy_words<uint8_t>(src, index, out, part);
}

/* Parts of a batch, each by a row of the grid. */
HL_CUDA_ENTRY(batch_gather, THREADS, p)
{
    for (int u = hl_block_y(); u < p.n_parts; u += hl_blocks_y()) {
        const hl_cuda_batch_part part = p.part[u];
        void *const *operand = p.at.operand + HL_CUDA_BATCH_ARGS * u;
        index_array index = {operand[1], part.index_dtype, p.at.fault + part.node_step,
                             p.at.control, part.n_axis};
        if (part.row_bytes)
            copy_part(operand[0], index, operand[2], part);
        else
            convert_rows(operand[0], index, operand[2], part);
    }
}

#define WORD_KERNELS(W, bytes)                                                                     \
    HL_CUDA_ENTRY_OF(gather, bytes, THREADS, p)                                                    \
    {                                                                                              \
        index_array index = make_index(p.at.index, p.axis);                                        \
        const W *x = (const W *)p.at.x;                                                            \
        W *out = (W *)p.at.out;                                                                    \
        HL_FOR_GRID(i, p.layout.n)                                                                 \
        {                                                                                          \
            int64_t k = take_index(index, i);                                                      \
            out[i] = k < 0 ? (W)0 : x[k * p.step + hl_layout_offset(p.layout, i)];                 \
        }                                                                                          \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(scatter, bytes, THREADS, p)                                                   \
    {                                                                                              \
        const W *x = (const W *)p.at.x, *src = (const W *)p.at.src;                                \
        W *out = (W *)p.at.out;                                                                    \
        HL_FOR_GRID(i, p.n)                                                                        \
        {                                                                                          \
            int64_t w = p.at.winner[i];                                                            \
            out[i] = w < 0 ? x[i] : src[hl_layout_offset(p.from, w)];                              \
        }                                                                                          \
    }
#define ROW_KERNELS(W, bytes)                                                                      \
    HL_CUDA_ENTRY_OF(index_select, bytes, THREADS, p)                                              \
    {                                                                                              \
        select_rows((const W *)p.at.x, make_index(p.at.index, p.axis), (W *)p.at.out, p.O, p.I,    \
                    p.I, p.n);                                                                     \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(index_copy, bytes, THREADS, p)                                                \
    {                                                                                              \
        const W *x = (const W *)p.at.x, *src = (const W *)p.at.src;                                \
        W *out = (W *)p.at.out;                                                                    \
        const int32_t *winner = p.at.winner;                                                       \
        int64_t O = p.O, A = p.A, I = p.I, n = p.n;                                                \
        bool is_short = hl_is_short(O * A * I);                                                    \
        HL_FOR_GRID(i, O *A *I)                                                                    \
        {                                                                                          \
            int64_t c, k, row = hl_divide(i, I, is_short, &c);                                     \
            int64_t o = hl_divide(row, A, is_short, &k), w = winner[k];                            \
            out[i] = w < 0 ? x[i] : src[(o * n + w) * I + c];                                      \
        }                                                                                          \
    }                                                                                              \
    /* x is out: of the targets those that are written, by their winners */                        \
    HL_CUDA_ENTRY_OF(index_assign, bytes, THREADS, p)                                              \
    {                                                                                              \
        const W *src = (const W *)p.at.src;                                                        \
        W *out = (W *)p.at.out;                                                                    \
        int64_t O = p.O, A = p.A, I = p.I, n = p.n;                                                \
        bool is_short = hl_is_short(O * n * I);                                                    \
        HL_FOR_GRID(i, O *n *I)                                                                    \
        {                                                                                          \
            int64_t c, j, row = hl_divide(i, I, is_short, &c),                                     \
                          o = hl_divide(row, n, is_short, &j);                                     \
            int64_t k = take_index(make_index(p.at.index, p.axis), j);                             \
            if (k >= 0 && p.at.winner[k] == j) out[(o * A + k) * I + c] = src[i];                  \
        }                                                                                          \
    }
HL_WORD_TYPES(WORD_KERNELS)
HL_WORD_TYPES(ROW_KERNELS)
ROW_KERNELS(hl_word4, 16) /* rows of whole, aligned 16 bytes */
