/* The tile iterator of pointwise kernels, interpreted or generated: it says which thread takes
 * which element, and makes sums over rows, columns or everything.
 *
 * The iteration is rows of `cols` elements. A tile is a block's: `steps` times `rows` rows, each of
 * `strips` strips of `lanes` threads with `width` neighbouring elements each. A thread keeps sums
 * of its columns over the tile's rows and, row by row, adds its values to the sum of its strip. The
 * sum of a tile (a strip) is one partial; where there are several, merge kernels iterate over the
 * partials in the same way. The partition comes from shape and types alone, and every fold is a
 * fixed tree: the same bits on any grid. Without sums over rows or columns the shape does not
 * matter, and a row is what a block takes at once.
 *
 * Where rows are summed batch by batch (over the middle one of three groups of dims), there are
 * `batches` of `height` rows, and the strips of a tile are of as many batches as it has room for.
 *
 * A program P is what is done to an element:
 *     typedef V; enum WIDTH, SUMS    what registers hold; most elements at a time, most sums
 *     enum UNROLL                    1: loops over these stay loops; else as many as there are
 *     int width(), n_sums()          how many of these there are: constants where they are known
 *     int reduce(s)                  HL_CUDA_SUM_*
 *     bool is_aligned()              true: take<WIDTH> may be called, at multiples of WIDTH
 *     void take<W>(i, V (*sum)[WIDTH])
 *                                    does elements i to i + W - 1: stores what is kept in full,
 *                                    hands what is summed over in sum[s][0] and behind it
 *     void put(s, at, value)         stores element `at` of result s
 *
 * Rejected: sums by atomics (other bits every run); generated kernels with an iterator of their own
 * (interpreted and compiled programs would differ). */
#ifndef HL_CUDA_TILE_ITERATOR_H
#define HL_CUDA_TILE_ITERATOR_H

#include <stdint.h>

enum { HL_CUDA_TILE_THREADS = 128, HL_CUDA_TILE_WIDTH = 8, HL_CUDA_TILE_SUMS = 12 };
/* Of a program, at most: inputs in order, then outputs. */
enum { HL_CUDA_OPERANDS = 36 };
/* The dims over which the tile iterator sums an output; the launcher merges the rest (hl_pw_sums).
 * ROWS: those of a batch. */
enum { HL_CUDA_SUM_NONE, HL_CUDA_SUM_ROWS, HL_CUDA_SUM_COLS, HL_CUDA_SUM_ALL };

typedef struct hl_cuda_tiles {
    int64_t n, cols;         /* elements; those of a row */
    int64_t batches, height; /* rows of a batch, or all */
    /* Sum s: where its partials begin in scratch, in elements; -1: it has only one, the result. */
    int64_t partial[HL_CUDA_TILE_SUMS];
    int32_t width, lanes, strips, rows; /* powers of 2; lanes * strips * rows threads */
    int32_t steps;
    int32_t n_tiles, n_col_tiles; /* tiles; how many lie side by side. 2^31 of them hold more than
                                     any memory does */
} hl_cuda_tiles;

#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/fold.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/micro.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/philox.h"

/* The state of the sums of one tile. */
template <class P> struct hl_tile_iterator {
    typedef typename P::V V;
    const P &program;
    const hl_cuda_tiles &tiles;
    V *scratch;

    HL_MEMBER void clear(V (*sum)[P::WIDTH]) const
    {
        HL_UNROLL_BY(P::UNROLL)
        for (int s = 0; s < P::SUMS; s++) {
            if (s >= program.n_sums()) break;
            HL_UNROLL_BY(P::UNROLL)
            for (int k = 0; k < P::WIDTH; k++) sum[s][k] = 0;
        }
    }
    /* Takes elements one by one. Indices stay constants, and a value that belongs to no element is
     * assigned again rather than skipped, or the arrays would lie in memory. */
    HL_MEMBER void take_each(int64_t i, int64_t n, V (*value)[P::WIDTH]) const
    {
        HL_UNROLL_BY(1)
        for (int k = 0; k < program.width() && k < n; k++) {
            V one[P::SUMS + 1][P::WIDTH];
            program.template take<1>(i + k, one);
            HL_UNROLL_BY(P::UNROLL)
            for (int s = 0; s < P::SUMS; s++) {
                if (s >= program.n_sums()) break;
                HL_UNROLL_BY(P::UNROLL)
                for (int j = 0; j < P::WIDTH; j++) value[s][j] = j == k ? one[s][0] : value[s][j];
            }
        }
    }
    HL_MEMBER V add_up(const V *value) const
    {
        V total = value[0];
        HL_UNROLL_BY(P::UNROLL)
        for (int k = 1; k < P::WIDTH; k++)
            if (k < program.width()) total = hl_pw_ADD(total, value[k]);
        return total;
    }
    HL_MEMBER void put(int s, int64_t at, V value) const
    {
        if (tiles.partial[s] < 0)
            program.put(s, at, value);
        else
            scratch[tiles.partial[s] + at] = value;
    }
    /* Over the threads of the same columns: within warps, then over the warps' results. */
    template <class R>
    HL_MEMBER void fold_rows(R &room, int s, int64_t at, int64_t n_left, V *sum) const
    {
        int t = hl_thread(), apart = tiles.lanes * tiles.strips, side = apart < 32 ? 32 : apart;
        HL_UNROLL_BY(P::UNROLL)
        for (int k = 0; k < P::WIDTH; k++) {
            if (k < program.width())
                for (int lanes = 16; lanes >= apart; lanes /= 2)
                    sum[k] = hl_pw_ADD(sum[k], hl_shuffle_xor(HL_WARP_ALL, sum[k], lanes));
        }
        if (side < HL_CUDA_TILE_THREADS) hl_barrier(); /* the last fold's readers are through */
        HL_UNROLL_BY(P::UNROLL)
        for (int k = 0; k < P::WIDTH; k++)
            if (k < program.width() && t >= side && t % side < apart)
                room[k * HL_CUDA_TILE_THREADS + t] = sum[k];
        if (side < HL_CUDA_TILE_THREADS) hl_barrier();
        if (t >= apart) return;
        HL_UNROLL_BY(P::UNROLL)
        for (int k = 0; k < P::WIDTH; k++) {
            if (k >= program.width()) break;
            for (int from = t + side; from < HL_CUDA_TILE_THREADS; from += side)
                sum[k] = hl_pw_ADD(sum[k], (V)room[k * HL_CUDA_TILE_THREADS + from]);
            if (k < n_left) put(s, at + k, sum[k]);
        }
    }
    /* Over the lanes of a strip; all lanes of the warp come here. */
    HL_MEMBER V fold_cols(const V *value) const
    {
        return hl_lanes_fold(HL_WARP_ALL, tiles.lanes, add_up(value),
                             [](V a, V b) { return hl_pw_ADD(a, b); });
    }
    template <class R> HL_MEMBER void fold_all(R &room, int s, int64_t at, const V *sum) const
    {
        V total = hl_warp_fold(add_up(sum), [](V a, V b) { return hl_pw_ADD(a, b); });
        hl_barrier();
        if (hl_thread() % 32 == 0) room[hl_thread() / 32] = total;
        hl_barrier();
        if (hl_thread() != 0) return;
        for (int w = 1; w < HL_CUDA_TILE_THREADS / 32; w++) total = hl_pw_ADD(total, (V)room[w]);
        put(s, at, total);
    }
};

/* Launch: any grid of HL_CUDA_TILE_THREADS threads. room: shared memory for the folds, an element
 * for each of a thread's width; none where nothing is summed. */
template <class P, class R>
HL_DEVICE void hl_iterate_tiles_in(R &room, const P &program, const hl_cuda_tiles &tiles,
                                   typename P::V *scratch)
{
    typedef typename P::V V;
    hl_tile_iterator<P> iterator = {program, tiles, scratch};
    int lane = hl_thread() % tiles.lanes, strip = hl_thread() / tiles.lanes % tiles.strips;
    int row = hl_thread() / tiles.lanes / tiles.strips;
    int64_t strip_cols = (int64_t)tiles.lanes * tiles.width;
    int64_t n_strips = (tiles.cols + strip_cols - 1) / strip_cols;
    bool is_aligned = program.is_aligned();
    for (int64_t tile = hl_block_x(); tile < tiles.n_tiles; tile += hl_blocks_x()) {
        int32_t tile_row = (int32_t)tile / tiles.n_col_tiles;
        int64_t strip_at = (int64_t)((int32_t)tile % tiles.n_col_tiles) * tiles.strips + strip;
        int64_t batch = tiles.batches > 1 ? strip_at / n_strips : 0;
        strip_at -= batch * n_strips;
        int64_t c = strip_at * strip_cols + (int64_t)lane * tiles.width;
        int64_t n_cols = batch < tiles.batches ? tiles.cols - c : 0; /* from c on */
        V sum[P::SUMS + 1][P::WIDTH];
        iterator.clear(sum);
        for (int step = 0; step < tiles.steps; step++) {
            int64_t at = ((int64_t)tile_row * tiles.steps + step) * tiles.rows + row;
            int64_t r = batch * tiles.height + at, i = r * tiles.cols + c;
            int64_t left = n_cols > 0 && at < tiles.height ? tiles.n - i : 0;
            V value[P::SUMS + 1][P::WIDTH];
            iterator.clear(value);
            if (is_aligned && left >= P::WIDTH)
                program.template take<P::WIDTH>(i, value);
            else
                iterator.take_each(i, left, value);
            HL_UNROLL_BY(P::UNROLL)
            for (int s = 0; s < P::SUMS; s++) {
                if (s >= program.n_sums()) break;
                if (program.reduce(s) == HL_CUDA_SUM_COLS) {
                    V total = iterator.fold_cols(value[s]);
                    if (lane == 0 && left > 0) iterator.put(s, r * n_strips + strip_at, total);
                    continue;
                }
                HL_UNROLL_BY(P::UNROLL)
                for (int k = 0; k < P::WIDTH; k++)
                    if (k < program.width()) sum[s][k] = hl_pw_ADD(sum[s][k], value[s][k]);
            }
        }
        HL_UNROLL_BY(P::UNROLL)
        for (int s = 0; s < P::SUMS; s++) {
            if (s >= program.n_sums()) break;
            if (program.reduce(s) == HL_CUDA_SUM_ROWS)
                iterator.fold_rows(room, s, (tile_row * tiles.batches + batch) * tiles.cols + c,
                                   n_cols, sum[s]);
            if (program.reduce(s) == HL_CUDA_SUM_ALL) iterator.fold_all(room, s, tile, sum[s]);
        }
    }
}

template <class P>
HL_DEVICE void hl_iterate_tiles(const P &program, const hl_cuda_tiles &tiles,
                                typename P::V *scratch)
{
    HL_SHARED(typename P::V, room, HL_CUDA_TILE_THREADS * P::WIDTH);
    hl_iterate_tiles_in(room, program, tiles, scratch);
}

/* ---- elements of memory ---------------------------------------------------------------------- */

/* What a dtype's elements are in memory. */
template <int DTYPE> struct hl_element;
#define HL_ELEMENT(DTYPE, type_)                                                                   \
    template <> struct hl_element<DTYPE> {                                                         \
        typedef type_ type;                                                                        \
    };
HL_ELEMENT(HL_DTYPE_F32, float)
HL_ELEMENT(HL_DTYPE_F64, double)
HL_ELEMENT(HL_DTYPE_BF16, hl_bf16)
HL_ELEMENT(HL_DTYPE_F16, hl_f16)
HL_ELEMENT(HL_DTYPE_I64, int64_t)
HL_ELEMENT(HL_DTYPE_I32, int32_t)
HL_ELEMENT(HL_DTYPE_I16, int16_t)
HL_ELEMENT(HL_DTYPE_I8, int8_t)
HL_ELEMENT(HL_DTYPE_U8, uint8_t)
HL_ELEMENT(HL_DTYPE_BOOL, uint8_t)
#undef HL_ELEMENT

template <class V> struct hl_memory {
    static HL_MEMBER V read(const void *p, int32_t dtype, int64_t i)
    {
        return dtype == HL_DTYPE_F32 ? (V)((const float *)p)[i] : (V)hl_read_any(p, dtype, i);
    }
    static HL_MEMBER void write(void *p, int32_t dtype, int64_t i, V value)
    {
        if (dtype == HL_DTYPE_F32)
            ((float *)p)[i] = (float)value;
        else
            hl_write_any(p, dtype, i, (double)value);
    }
};
template <> struct hl_memory<int64_t> {
    static HL_MEMBER int64_t read(const void *p, int32_t dtype, int64_t i)
    {
        return hl_read_int(p, dtype, i);
    }
    static HL_MEMBER void write(void *p, int32_t dtype, int64_t i, int64_t value)
    {
        hl_write_int(p, dtype, i, value);
    }
};

template <int DTYPE, int W> using hl_pack_of = hl_pack<typename hl_element<DTYPE>::type, W>;

/* Elements at to at + W - 1. */
template <int DTYPE, int W, class V>
HL_DEVICE void hl_load_pack(const void *p, int64_t at, V (&x)[W])
{
    typedef typename hl_element<DTYPE>::type T;
    typedef typename hl_pack<T, W>::pack P;
    P in = *hl_vector((const P *)((const T *)p + at));
    HL_UNROLL
    for (int k = 0; k < W; k++) x[k] = hl_memory<V>::read(in.v, DTYPE, k);
}
template <int DTYPE, int W, class V>
HL_DEVICE void hl_store_pack(void *p, int64_t at, const V (&x)[W])
{
    typedef typename hl_element<DTYPE>::type T;
    typedef typename hl_pack<T, W>::pack P;
    P out;
    if constexpr (W % 2 == 0 && (DTYPE == HL_DTYPE_BF16 || DTYPE == HL_DTYPE_F16)) {
        HL_UNROLL
        for (int k = 0; k < W; k += 2) hl_put_pair(out.v + k, (float)x[k], (float)x[k + 1]);
    } else {
        HL_UNROLL
        for (int k = 0; k < W; k++) hl_memory<V>::write(out.v, DTYPE, k, x[k]);
    }
    *hl_vector((P *)((T *)p + at)) = out;
}
/* The same element W times. */
template <int DTYPE, int W, class V> HL_DEVICE void hl_spread(const void *p, int64_t at, V (&x)[W])
{
    V value = hl_memory<V>::read(p, DTYPE, at);
    HL_UNROLL
    for (int k = 0; k < W; k++) x[k] = value;
}

/* ---- random steps ---------------------------------------------------------------------------- */

/* 16 bits each for W neighbours from this element of a sample on, a multiple of W. */
template <int W>
HL_DEVICE void hl_draw(const void *control_block, uint32_t key0, uint32_t key1, int64_t sample,
                       int64_t element, uint32_t (&bits)[W])
{
    const hl_control *control = (const hl_control *)control_block;
    hl_word4 words =
        hl_philox_block(key0, key1, (uint32_t)control->attempted,
                        (uint64_t)(control->micro_row + sample), (uint64_t)element >> 3);
    HL_UNROLL
    for (int k = 0; k < W; k++) bits[k] = hl_philox_bits16(words, (int)(element & 7) + k);
}
/* (bits + 1/2) / 65536, exactly. */
template <class V> HL_DEVICE V hl_uniform(uint32_t bits)
{
    return ((V)bits + (V)0.5) * (V)(1.0 / 65536);
}
#endif

#endif
