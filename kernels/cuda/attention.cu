/* Attention without its scores in memory, forward and backward, as FlashAttention-2 has it (Dao,
 * 2023): softmax(q k^T scale + mask) v of q (B,H,L,E), k (B,Hk,S,E), v (B,Hk,S,Ev).
 *
 * A block holds a tile of queries and goes over the keys in tiles: scores stay in registers, with
 * each row's largest and its sum, and what has been summed is scaled where the largest grows. Kept
 * are the logarithms of the sums and what rounding took from them: beside a largest score of -1e9
 * all of it. The gradient makes each tile of scores again: once by blocks that hold queries, for
 * theirs, once by blocks that hold keys, for those of keys and values, over all heads that share
 * them. That is seven products where five would do, but nobody adds to what another has written:
 * the same bits every run, without atomics.
 *
 * Two kinds of tiles do the products, and the rest of a kernel is the same for both: 16 bits by
 * tensor cores, where a warp has 16 rows and what comes of one product is an operand of the next in
 * registers; float32 in plain fp32, no TF32, where 256 threads have 4 x 4 each of 64 x 64. Scores
 * and sums are float32; with 16 bits powers and the gradient of scores are rounded to them.
 *
 * Tiles that causality hides are not visited, and of the tiles on the diagonal a warp multiplies
 * what its rows see. Dropout's bits are those of random.cu: a tile's are drawn once by the block,
 * eight to a byte, since the eight that a counter gives lie in several threads' parts.
 *
 * Launch: a block a tile, or fewer: a block goes on by the grid; threads and shared memory as
 * attention.h has them. bf16 needs sm_80. */
#include "kernels/cuda/attention.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/philox.h"

#define LOG2_E 1.44269504088896341f

/* Rows of a head, of `width` elements each. */
template <class T> struct matrix {
    const T *at;
    int64_t n;
    int width;
};

template <class T> HL_DEVICE matrix<T> find_head(const void *at, int64_t head, int64_t n, int64_t w)
{
    return matrix<T>{(const T *)at + head * n * w, n, (int)w};
}

/* ---- tiles of 16 bits ------------------------------------------------------------------------ */

/* What the kernels ask of a kind of tiles:
 *     part<n>      what a thread holds of a tile of n columns: HELD rows, n / LANES columns;
 * element (i, j) is at (row(i), col(j)), and the LANES threads that have parts of a row are
 *                  neighbours
 *     tile, make   a tile of a matrix, and its room behind that of so many rows
 *     load         its rows from `first` on, on their way; ready<n>: all but the last n loads are
 *                  there, for all threads
 *     multiply     s = a b^T of tiles' rows, `width` wide
 *     add          sum += p b, of which `width` columns are
 *     first_row, end_row   the rows of which a warp has parts. Of a tile's columns it multiplies
 *                  those in [from, to) */
template <class T, int D, int N_ROWS, int N_COLS> struct tensor_tiles {
    typedef T type;
    enum {
        ROWS = N_ROWS,
        COLS = N_COLS,
        WIDTH = D,
        HELD = 2,
        LANES = 4,
        THREADS = 2 * ROWS,
        PITCH = HL_CUDA_ATTENTION_PITCH(D)
    };
    template <int n> struct part {
        enum { N = n / LANES };
        float v[N / 2][4]; /* of products of fragments */
        HL_MEMBER float &at(int i, int j)
        {
            return v[j / 2][i * 2 + j % 2];
        }
    };
    typedef T *tile;

    static HL_MEMBER int first_row()
    {
        return hl_thread() / 32 * 16;
    }
    static HL_MEMBER int end_row()
    {
        return first_row() + 16;
    }
    static HL_MEMBER int row(int i)
    {
        return first_row() + hl_thread() % 32 / 4 + 8 * i;
    }
    static HL_MEMBER int col(int j)
    {
        return j / 2 * 8 + hl_thread() % 4 * 2 + j % 2;
    }
    static HL_MEMBER tile make(T *shared, int rows_before)
    {
        return shared + rows_before * PITCH;
    }
    /* As many columns as products read, zeros where the matrix ends. */
    static HL_MEMBER void load(tile &to, const matrix<T> &from, int64_t first, int n_rows)
    {
        int n_words = (from.width + 15) / 16 * 2;
        bool is_wide = from.width % 8 == 0 && (uintptr_t)from.at % 16 == 0;
        for (int e = hl_thread(); e < n_rows * n_words; e += THREADS) {
            int r = e / n_words, c = e % n_words * 8;
            bool is_in = first + r < from.n && c < from.width;
            const T *at = from.at + (first + r) * from.width + c;
            T *dst = to + r * PITCH + c;
            if (is_in && is_wide) {
                hl_async_copy16(dst, at);
                continue;
            }
            for (int k = 0; k < 8; k++) dst[k] = is_in && c + k < from.width ? at[k] : T{0};
        }
        hl_async_commit();
    }
    template <int left> static HL_MEMBER void ready()
    {
        hl_async_wait<left>();
        hl_barrier();
    }
    static HL_MEMBER void multiply(part<COLS> &s, tile a, tile b, int width, int from, int to)
    {
        const T *own = a + first_row() * PITCH;
        s = {};
        HL_UNROLL
        for (int k = 0; k < D; k += 16) {
            if (k >= width) continue;
            hl_fragment<T> x, y;
            hl_fragment_load(x, own + k, PITCH);
            HL_UNROLL
            for (int n = 0; n < COLS; n += 16) {
                if (n >= to || n + 16 <= from) continue;
                hl_fragment_load(y, b + n * PITCH + k, PITCH);
                hl_fragment_mma(s.v[n / 8], x, y.v[0], y.v[2]);
                hl_fragment_mma(s.v[n / 8 + 1], x, y.v[1], y.v[3]);
            }
        }
    }
    static HL_MEMBER void add(part<D> &sum, const part<COLS> &p, tile b, int width, int from,
                              int to)
    {
        HL_UNROLL
        for (int k = 0; k < COLS; k += 16) {
            if (k >= to || k + 16 <= from) continue;
            hl_fragment<T> x, y;
            HL_UNROLL
            for (int i = 0; i < 4; i++) {
                const float *two = p.v[k / 8 + i / 2] + i % 2 * 2;
                x.v[i] = hl_fragment_word<T>(two[0], two[1]);
            }
            HL_UNROLL
            for (int n = 0; n < D; n += 16) {
                if (n >= width) continue;
                hl_fragment_load_transposed(y, b + k * PITCH + n, PITCH);
                hl_fragment_mma(sum.v[n / 8], x, y.v[0], y.v[1]);
                hl_fragment_mma(sum.v[n / 8 + 1], x, y.v[2], y.v[3]);
            }
        }
    }
};

/* ---- tiles of float32 ------------------------------------------------------------------------ */

/* Operands come from memory in steps of K, not as whole tiles, so that any width fits. */
template <int D> struct plain_tiles {
    typedef float type;
    enum {
        ROWS = 64,
        COLS = 64,
        WIDTH = D,
        HELD = 4,
        LANES = 16,
        THREADS = 256,
        STEP = 16,
        PITCH = ROWS + 4,
        PITCH_WIDE = D + 4
    };
    template <int n> struct part {
        enum { N = n / LANES };
        float v[HELD][N];
        HL_MEMBER float &at(int i, int j)
        {
            return v[i][j];
        }
    };
    struct tile {
        matrix<float> of;
        int64_t first;
        HL_MEMBER float read(int r, int c) const
        {
            return first + r < of.n && c < of.width ? of.at[(first + r) * of.width + c] : 0.0f;
        }
    };

    static HL_MEMBER int first_row()
    {
        return 0;
    }
    static HL_MEMBER int end_row()
    {
        return ROWS;
    }
    static HL_MEMBER int row(int i)
    {
        return hl_thread() / LANES * HELD + i;
    }
    static HL_MEMBER int col(int j)
    {
        return j / 4 * COLS + hl_thread() % LANES * 4 + j % 4;
    }
    static HL_MEMBER tile make(float *, int)
    {
        return {};
    }
    static HL_MEMBER void load(tile &to, const matrix<float> &from, int64_t first, int)
    {
        to = {from, first};
    }
    template <int left> static HL_MEMBER void ready()
    {
        hl_barrier();
    }
    static HL_MEMBER void multiply(part<COLS> &s, const tile &a, const tile &b, int width, int, int)
    {
        HL_SHARED(float, ta, STEP *PITCH);
        HL_SHARED(float, tb, STEP *PITCH);
        int tr = row(0), tc = col(0);
        s = {};
        for (int k0 = 0; k0 < width; k0 += STEP) {
            for (int e = hl_thread(); e < STEP * ROWS; e += THREADS) {
                int k = e % STEP, i = e / STEP;
                ta[k * PITCH + i] = a.read(i, k0 + k);
                tb[k * PITCH + i] = b.read(i, k0 + k);
            }
            hl_barrier();
            for (int k = 0; k < STEP; k++) {
                float x[4], y[4];
                HL_UNROLL
                for (int i = 0; i < 4; i++) {
                    x[i] = ta[k * PITCH + tr + i];
                    y[i] = tb[k * PITCH + tc + i];
                }
                add_outer(s, 0, x, y);
            }
            hl_barrier();
        }
    }
    static HL_MEMBER void add(part<D> &sum, const part<COLS> &p, const tile &b, int width, int, int)
    {
        HL_SHARED(float, tp, COLS *PITCH);
        HL_SHARED(float, tb, STEP *PITCH_WIDE);
        int tr = row(0), tc = col(0);
        HL_UNROLL
        for (int i = 0; i < HELD; i++) {
            HL_UNROLL
            for (int j = 0; j < 4; j++) tp[(tc + j) * PITCH + tr + i] = p.v[i][j];
        }
        for (int k0 = 0; k0 < COLS; k0 += STEP) {
            for (int e = hl_thread(); e < STEP * D; e += THREADS)
                tb[e / D * PITCH_WIDE + e % D] = b.read(k0 + e / D, e % D);
            hl_barrier();
            for (int k = 0; k < STEP; k++) {
                float x[4], y[4];
                HL_UNROLL
                for (int i = 0; i < 4; i++) x[i] = tp[(k0 + k) * PITCH + tr + i];
                HL_UNROLL
                for (int c = 0; c < D; c += COLS) {
                    if (c >= width) continue;
                    HL_UNROLL
                    for (int i = 0; i < 4; i++) y[i] = tb[k * PITCH_WIDE + c + tc + i];
                    add_outer(sum, c / LANES, x, y);
                }
            }
            hl_barrier();
        }
    }

  private:
    template <class P>
    static HL_MEMBER void add_outer(P &sum, int first, const float (&x)[4], const float (&y)[4])
    {
        HL_UNROLL
        for (int i = 0; i < 4; i++) {
            HL_UNROLL
            for (int j = 0; j < 4; j++) sum.v[i][first + j] = fmaf(x[i], y[j], sum.v[i][first + j]);
        }
    }
};

/* ---- scores ---------------------------------------------------------------------------------- */

/* Where in the array of all scores a tile begins. */
struct place {
    int64_t b, h, l, s;
};

HL_DEVICE int64_t find_keys(const hl_cuda_attention &a, place at)
{
    return at.b * a.Hk + at.h / (a.H / a.Hk);
}

/* What a tile of products becomes: scores, -inf where a query does not see a key. has_keys: rows
 * are keys, columns queries. */
template <class E, bool has_keys>
HL_DEVICE void hide(const hl_cuda_attention &a, const void *mask, place at,
                    typename E::template part<E::COLS> &s)
{
    typedef typename E::template part<E::COLS> part;
    enum { KEYS = has_keys ? E::ROWS : E::COLS };
    const int64_t *stride = a.mask_stride;
    int64_t from = at.b * stride[0] + at.h * stride[1];
    auto each = [&](auto fn) {
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) {
            HL_UNROLL
            for (int j = 0; j < part::N; j++)
                fn(s.at(i, j), at.l + (has_keys ? E::col(j) : E::row(i)),
                   at.s + (has_keys ? E::row(i) : E::col(j)));
        }
    };
    each([&](float &score, int64_t, int64_t) { score *= a.scale; });
    if (a.has_mask)
        each([&](float &score, int64_t l, int64_t k) {
            if (l >= a.L || k >= a.S) return;
            int64_t m = from + l * stride[2] + k * stride[3];
            if (!a.mask_is_bool)
                score += ((const float *)mask)[m];
            else if (!((const uint8_t *)mask)[m])
                score = -hl_infinity();
        });
    if (at.s + KEYS > a.S || (a.is_causal && at.s + KEYS > at.l + 1))
        each([&](float &score, int64_t l, int64_t k) {
            if (k >= a.S || (a.is_causal && k > l)) score = -hl_infinity();
        });
}

/* Dropout of a tile: a bit an element, 1: kept. `keep` has BYTES for each query, the bits of as
 * many counters as its keys may lie in. */
template <int QUERIES, int KEYS> struct dropout {
    enum { BYTES = KEYS / 8 + 1, SIZE = QUERIES * BYTES };

    static HL_MEMBER int64_t find(const hl_cuda_attention &a, place at, int query)
    {
        return (at.h * a.L + at.l + query) * a.S + at.s;
    }
    template <class K>
    static HL_MEMBER void draw(const hl_cuda_attention &a, const hl_control *control, place at,
                               K keep)
    {
        int64_t n = a.S - at.s < KEYS ? a.S - at.s : (int64_t)KEYS;
        for (int e = hl_thread(); a.drops && e < SIZE; e += hl_threads()) {
            int64_t first = find(a, at, e / BYTES), counter = first / 8 + e % BYTES;
            uint32_t kept = 0;
            if (at.l + e / BYTES < a.L && counter * 8 < first + n) {
                hl_word4 words =
                    hl_philox_block(a.key[0], a.key[1], (uint32_t)control->attempted,
                                    (uint64_t)(control->micro_row + at.b), (uint64_t)counter);
                HL_UNROLL
                for (int j = 0; j < 8; j++)
                    kept |= (uint32_t)(hl_philox_bits16(words, j) >= a.threshold) << j;
            }
            keep[e] = (uint8_t)kept;
        }
    }
    template <class K>
    static HL_MEMBER bool is_kept(const hl_cuda_attention &a, place at, K keep, int query, int key)
    {
        int bit = (int)(find(a, at, query) % 8) + key;
        return !a.drops || (keep[query * BYTES + bit / 8] >> bit % 8 & 1);
    }
};

/* fn of the values of the threads that share a row, with the same result for all of them. */
template <class E, class F> HL_DEVICE float fold_row(float x, F fn)
{
    HL_UNROLL
    for (int lanes = 1; lanes < E::LANES; lanes *= 2)
        x = fn(x, hl_shuffle_xor(HL_WARP_ALL, x, lanes));
    return x;
}
template <class E> HL_DEVICE float sum_row(float x)
{
    return fold_row<E>(x, [](float a, float b) { return a + b; });
}

/* e^(x - y); of x = -inf, or y = inf, 0. The difference comes first: products with LOG2_E would be
 * rounded as coarsely as x and y are large, or infinite. */
HL_DEVICE float find_power(float x, float y)
{
    return exp2f((x - y) * LOG2_E);
}

/* Writes what a thread has of rows from `first` on, each times factor(i). */
template <class E, class F>
HL_DEVICE void store(void *to, int32_t dtype, int64_t head, int64_t n_rows, int64_t first,
                     int64_t width, typename E::template part<E::WIDTH> &sum, F factor)
{
    typedef typename E::template part<E::WIDTH> part;
    HL_UNROLL
    for (int i = 0; i < E::HELD; i++) {
        int64_t r = first + E::row(i);
        HL_UNROLL
        for (int j = 0; j < part::N; j++)
            if (r < n_rows && E::col(j) < width)
                hl_write_float(to, dtype, (head * n_rows + r) * width + E::col(j),
                               sum.at(i, j) * factor(i));
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* A row's largest score and this thread's part of its sum, so far. */
struct row_state {
    float top, sum;
};

/* Scores to powers; what was summed before is scaled. */
template <class E>
HL_DEVICE void take_scores(typename E::template part<E::COLS> &s,
                           typename E::template part<E::WIDTH> &out, row_state *row)
{
    typedef typename E::template part<E::COLS> part;
    HL_UNROLL
    for (int i = 0; i < E::HELD; i++) {
        float largest = row[i].top;
        HL_UNROLL
        for (int j = 0; j < part::N; j++) largest = fmaxf(largest, s.at(i, j));
        largest = fold_row<E>(largest, [](float a, float b) { return fmaxf(a, b); });
        float base = largest == -hl_infinity() ? 0.0f : largest;
        float kept = find_power(row[i].top, base), sum = 0;
        HL_UNROLL
        for (int j = 0; j < part::N; j++) sum += s.at(i, j) = find_power(s.at(i, j), base);
        row[i] = {largest, row[i].sum * kept + sum};
        HL_UNROLL
        for (int j = 0; j < E::template part<E::WIDTH>::N; j++) out.at(i, j) *= kept;
    }
}

template <class E>
HL_DEVICE void attend(const hl_cuda_attention_params &p, typename E::type *shared)
{
    typedef typename E::type T;
    typedef typename E::template part<E::COLS> part;
    typedef dropout<E::ROWS, E::COLS> drops;
    const hl_cuda_attention &a = p.of;
    HL_SHARED(uint8_t, keep, drops::SIZE);
    typename E::tile q = E::make(shared, 0), k = E::make(shared, E::ROWS),
                     v = E::make(shared, E::ROWS + E::COLS);
    for (int64_t u = hl_block_x(); u < a.B * a.H * a.n_tiles; u += hl_blocks_x()) {
        int64_t head = u / a.n_tiles, t = a.n_tiles - 1 - u % a.n_tiles;
        place at = {head / a.H, head % a.H, t * E::ROWS, 0};
        matrix<T> keys = find_head<T>(p.at.k, find_keys(a, at), a.S, a.E),
                  values = find_head<T>(p.at.v, find_keys(a, at), a.S, a.Ev);
        int64_t end = a.is_causal && at.l + E::ROWS < a.S ? at.l + E::ROWS : a.S;
        part s;
        typename E::template part<E::WIDTH> out = {};
        row_state row[E::HELD];
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) row[i] = {-hl_infinity(), 0};
        E::load(q, find_head<T>(p.at.q, head, a.L, a.E), at.l, E::ROWS);
        E::load(k, keys, 0, E::COLS);
        for (; at.s < end; at.s += E::COLS) {
            int64_t seen = a.is_causal ? at.l + E::end_row() - at.s : a.S - at.s;
            int to = seen < E::COLS ? (int)seen : (int)E::COLS;
            E::load(v, values, at.s, E::COLS);
            drops::draw(a, p.at.control, at, keep);
            E::template ready<1>();
            E::multiply(s, q, k, (int)a.E, 0, to);
            hl_barrier();
            if (at.s + E::COLS < end) E::load(k, keys, at.s + E::COLS, E::COLS);
            hide<E, false>(a, p.at.mask, at, s);
            take_scores<E>(s, out, row);
            HL_UNROLL
            for (int i = 0; i < E::HELD; i++) {
                HL_UNROLL
                for (int j = 0; j < part::N; j++)
                    if (!drops::is_kept(a, at, keep, E::row(i), E::col(j))) s.at(i, j) = 0;
            }
            if (at.s + E::COLS < end)
                E::template ready<1>();
            else
                E::template ready<0>();
            E::add(out, s, v, (int)a.Ev, 0, to);
            hl_barrier();
        }
        float factor[E::HELD];
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) {
            /* A sum that is NaN is no row that sees nothing. */
            float sum = sum_row<E>(row[i].sum), top = row[i].top;
            bool is_empty = top == -hl_infinity() && sum == 0;
            float base = top == -hl_infinity() ? 0.0f : top, log_sum = logf(sum),
                  lse = base + log_sum;
            int64_t l = at.l + E::row(i), r = head * a.L + l;
            factor[i] = is_empty ? 0.0f : a.drop_scale / sum;
            if (l < a.L && E::col(0) == 0) {
                p.at.lse[r] = is_empty ? hl_infinity() : lse;
                p.at.lse[a.B * a.H * a.L + r] = is_empty ? 0.0f : log_sum - (lse - base);
            }
        }
        store<E>(p.at.out, p.out_dtype, head, a.L, at.l, a.Ev, out,
                 [&](int i) { return factor[i]; });
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* Of a row that forward has gone over: the logarithm of its sum, and dout times out; where powers
 * are to be divided by it, what rounding took from the logarithm. Beyond the last row powers are 0.
 */
struct summed_row {
    float lse, delta, rest;
};

/* Scores and g = dout v^T to powers, which values get, and to what scores get but for the scale,
 * power (d g - delta); d: what dropout multiplies by. find_row gives each element's row. */
template <class E, bool has_keys, class K, class R>
HL_DEVICE void take_gradients(const hl_cuda_attention &a, place at, K keep,
                              typename E::template part<E::COLS> &s,
                              typename E::template part<E::COLS> &g, R find_row)
{
    typedef typename E::template part<E::COLS> part;
    typedef dropout<has_keys ? E::COLS : E::ROWS, has_keys ? E::ROWS : E::COLS> drops;
    HL_UNROLL
    for (int j = 0; j < part::N; j++) {
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) {
            int l = has_keys ? E::col(j) : E::row(i), k = has_keys ? E::row(i) : E::col(j);
            summed_row row = find_row(i, j);
            float power = find_power(s.at(i, j) - row.lse, row.rest), gain = g.at(i, j);
            bool is_kept = drops::is_kept(a, at, keep, l, k);
            s.at(i, j) = is_kept ? power : 0.0f;
            g.at(i, j) = power * ((is_kept ? gain * a.drop_scale : 0.0f) - row.delta);
        }
    }
}

template <class E>
HL_DEVICE void sum_queries(const hl_cuda_attention_grad_queries_params &p, typename E::type *shared)
{
    typedef typename E::type T;
    typedef dropout<E::ROWS, E::COLS> drops;
    const hl_cuda_attention &a = p.of;
    HL_SHARED(uint8_t, keep, drops::SIZE);
    typename E::tile q = E::make(shared, 0), dout = E::make(shared, E::ROWS),
                     k = E::make(shared, 2 * E::ROWS), v = E::make(shared, 2 * E::ROWS + E::COLS);
    for (int64_t u = hl_block_x(); u < a.B * a.H * a.n_tiles; u += hl_blocks_x()) {
        int64_t head = u / a.n_tiles, t = a.n_tiles - 1 - u % a.n_tiles;
        place at = {head / a.H, head % a.H, t * E::ROWS, 0};
        matrix<T> keys = find_head<T>(p.at.k, find_keys(a, at), a.S, a.E),
                  values = find_head<T>(p.at.v, find_keys(a, at), a.S, a.Ev),
                  gains = find_head<T>(p.at.dout, head, a.L, a.Ev);
        int64_t end = a.is_causal && at.l + E::ROWS < a.S ? at.l + E::ROWS : a.S;
        typename E::template part<E::COLS> s, g;
        typename E::template part<E::WIDTH> dq = {};
        summed_row row[E::HELD];
        E::load(q, find_head<T>(p.at.q, head, a.L, a.E), at.l, E::ROWS);
        E::load(dout, gains, at.l, E::ROWS);
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) {
            int64_t l = at.l + E::row(i), r = head * a.L + l;
            float delta = 0;
            for (int c = hl_thread() % E::LANES; l < a.L && c < a.Ev; c += E::LANES)
                delta = fmaf(hl_read(gains.at, l * a.Ev + c),
                             hl_read_float(p.at.out, p.out_dtype, r * a.Ev + c), delta);
            delta = sum_row<E>(delta);
            row[i] = {l < a.L ? p.at.lse[r] : hl_infinity(), delta, 0};
            if (l < a.L && E::col(0) == 0) p.at.delta[r] = delta;
        }
        for (; at.s < end; at.s += E::COLS) {
            int64_t seen = a.is_causal ? at.l + E::end_row() - at.s : a.S - at.s;
            int to = seen < E::COLS ? (int)seen : (int)E::COLS;
            E::load(k, keys, at.s, E::COLS);
            E::load(v, values, at.s, E::COLS);
            drops::draw(a, p.at.control, at, keep);
            E::template ready<1>();
            E::multiply(s, q, k, (int)a.E, 0, to);
            E::template ready<0>();
            E::multiply(g, dout, v, (int)a.Ev, 0, to);
            hide<E, false>(a, p.at.mask, at, s);
            take_gradients<E, false>(a, at, keep, s, g, [&](int i, int) { return row[i]; });
            E::add(dq, g, k, (int)a.E, 0, to);
            hl_barrier();
        }
        /* What rounding took from the logarithms divides whole rows, here at once. */
        float factor[E::HELD];
        HL_UNROLL
        for (int i = 0; i < E::HELD; i++) {
            int64_t l = at.l + E::row(i), r = (a.B * a.H + head) * a.L + l;
            factor[i] = l < a.L ? a.scale * find_power(0, p.at.lse[r]) : 0.0f;
        }
        store<E>(p.at.dq, p.dq_dtype, head, a.L, at.l, a.E, dq, [&](int i) { return factor[i]; });
    }
}

/* Of a tile of keys: the gradients of keys, of values, or of both. */
template <class E, bool of_keys, bool of_values>
HL_DEVICE void sum_keys(const hl_cuda_attention_grad_keys_params &p, typename E::type *shared,
                        int64_t u)
{
    typedef typename E::type T;
    typedef dropout<E::COLS, E::ROWS> drops;
    const hl_cuda_attention &a = p.of;
    HL_SHARED(uint8_t, keep, drops::SIZE);
    HL_SHARED(float, row_lse, E::COLS);
    HL_SHARED(float, row_rest, E::COLS);
    HL_SHARED(float, row_delta, E::COLS);
    int64_t n_shared = a.H / a.Hk, head_k = u / a.n_tiles;
    place at = {head_k / a.Hk, head_k % a.Hk * n_shared, 0, u % a.n_tiles * E::ROWS};
    typename E::tile k = E::make(shared, 0), v = E::make(shared, E::ROWS),
                     q = E::make(shared, 2 * E::ROWS),
                     dout = E::make(shared, 2 * E::ROWS + E::COLS);
    typename E::template part<E::COLS> s, g = {};
    typename E::template part<E::WIDTH> dk = {}, dv = {};
    E::load(k, find_head<T>(p.at.k, head_k, a.S, a.E), at.s, E::ROWS);
    if (of_keys) E::load(v, find_head<T>(p.at.v, head_k, a.S, a.Ev), at.s, E::ROWS);
    for (int64_t end = at.h + n_shared; at.h < end; at.h++) {
        int64_t head = at.b * a.H + at.h;
        for (at.l = a.is_causal ? at.s / E::COLS * E::COLS : 0; at.l < a.L; at.l += E::COLS) {
            int64_t hidden = a.is_causal ? at.s + E::first_row() - at.l : 0, left = a.L - at.l;
            int from = hidden < E::COLS ? (int)hidden : (int)E::COLS;
            int to = left < E::COLS ? (int)left : (int)E::COLS;
            E::load(q, find_head<T>(p.at.q, head, a.L, a.E), at.l, E::COLS);
            E::load(dout, find_head<T>(p.at.dout, head, a.L, a.Ev), at.l, E::COLS);
            drops::draw(a, p.at.control, at, keep);
            for (int c = hl_thread(); c < E::COLS; c += E::THREADS) {
                int64_t r = head * a.L + at.l + c;
                bool is_in = c < left;
                row_lse[c] = is_in ? p.at.lse[r] : hl_infinity();
                row_rest[c] = is_in ? p.at.lse[a.B * a.H * a.L + r] : 0.0f;
                row_delta[c] = is_in ? p.at.delta[r] : 0.0f;
            }
            E::template ready<1>();
            E::multiply(s, k, q, (int)a.E, from, to);
            E::template ready<0>();
            if (of_keys) E::multiply(g, v, dout, (int)a.Ev, from, to);
            hide<E, true>(a, p.at.mask, at, s);
            take_gradients<E, true>(a, at, keep, s, g, [&](int, int j) {
                int c = E::col(j);
                return summed_row{row_lse[c], row_delta[c], row_rest[c]};
            });
            if (of_values) E::add(dv, s, dout, (int)a.Ev, from, to);
            if (of_keys) E::add(dk, g, q, (int)a.E, from, to);
            hl_barrier();
        }
    }
    if (of_keys)
        store<E>(p.at.dk, p.dtype, head_k, a.S, at.s, a.E, dk, [&](int) { return a.scale; });
    if (of_values)
        store<E>(p.at.dv, p.dtype, head_k, a.S, at.s, a.Ev, dv, [&](int) { return a.drop_scale; });
    hl_async_wait<0>();
    hl_barrier();
}

/* Where two sums do not fit into registers, half of the blocks' work is each one's. */
template <class E>
HL_DEVICE void sum_all_keys(const hl_cuda_attention_grad_keys_params &p, typename E::type *shared)
{
    constexpr bool is_apart = HL_CUDA_ATTENTION_APART(E::WIDTH);
    int64_t n = p.of.B * p.of.Hk * p.of.n_tiles;
    for (int64_t u = hl_block_x(); u < (is_apart ? 2 * n : n); u += hl_blocks_x()) {
        if constexpr (!is_apart)
            sum_keys<E, true, true>(p, shared, u);
        else if (u < n)
            sum_keys<E, true, false>(p, shared, u);
        else
            sum_keys<E, false, true>(p, shared, u - n);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define KERNELS(width, T, suffix, FORWARD, GRAD)                                                   \
    HL_CUDA_ENTRY_OF(attention, suffix##_##width,                                                  \
                     HL_CUDA_ATTENTION_THREADS(sizeof(T) == 2, width), p)                          \
    {                                                                                              \
        HL_SHARED_DYNAMIC(T, shared);                                                              \
        attend<FORWARD>(p, shared);                                                                \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(attention_grad_queries, suffix##_##width,                                     \
                     HL_CUDA_ATTENTION_THREADS(sizeof(T) == 2, width), p)                          \
    {                                                                                              \
        HL_SHARED_DYNAMIC(T, shared);                                                              \
        sum_queries<GRAD>(p, shared);                                                              \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(attention_grad_keys, suffix##_##width,                                        \
                     HL_CUDA_ATTENTION_THREADS(sizeof(T) == 2, width), p)                          \
    {                                                                                              \
        HL_SHARED_DYNAMIC(T, shared);                                                              \
        sum_all_keys<GRAD>(p, shared);                                                             \
    }
#define TILES(T, width, COLS)                                                                      \
    tensor_tiles<T, width, HL_CUDA_ATTENTION_ROWS(true, width), COLS(true, width)>
template <class T, int D> using forward_tiles = TILES(T, D, HL_CUDA_ATTENTION_COLS);
template <class T, int D> using grad_tiles = TILES(T, D, HL_CUDA_ATTENTION_GRAD_COLS);
#define OF_16_BITS(width, T, suffix)                                                               \
    typedef forward_tiles<T, width> forward_##suffix##_##width;                                    \
    typedef grad_tiles<T, width> grad_##suffix##_##width;                                          \
    KERNELS(width, T, suffix, forward_##suffix##_##width, grad_##suffix##_##width)
#define OF_FLOAT32(width, T, suffix)                                                               \
    KERNELS(width, T, suffix, plain_tiles<width>, plain_tiles<width>)
HL_CUDA_ATTENTION_WIDTHS(OF_16_BITS, hl_bf16, bf16)
HL_CUDA_ATTENTION_WIDTHS(OF_16_BITS, hl_f16, f16)
HL_CUDA_ATTENTION_WIDTHS_F32(OF_FLOAT32, float, f32)
