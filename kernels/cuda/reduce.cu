/* Reductions and running sums.
 *
 * An array is seen as (O,N,I), N what is reduced. With I = 1 a group is a row, folded by a
 * cooperative group; else groups lie side by side, and a block takes up to 32 neighbouring columns,
 * its other threads every so many rows of them. Where there are few groups N is cut into parts,
 * each gives one partial result (O,parts,I), and a second call reduces those: the cut comes from
 * the shape, so the bits do not depend on the grid.
 *
 * A fold says what it starts from, how it takes in a batch of elements and how two results become
 * one. A thread loads a batch before it adds it up, so many bytes are on their way at once. Mean
 * and variance are such a fold too, read once: of a batch in registers first the mean, then the
 * squares of what is left; results are joined by Chan, Golub and LeVeque's formula (1979).
 *
 * Rejected: sums by atomics (other bits every run), "the last block merges" (needs memory that is
 * zero before the launch), statistics by two passes over memory.
 *
 * Launch: any grid; cooperative groups by by_block (fold.h), columns (I > 1) THREADS threads. part
 * >= 1. */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/pack.h"

enum { THREADS = HL_CUDA_REDUCE_THREADS };

/* ---- what is folded -------------------------------------------------------------------------- */

/* float and 16-bit floats are summed as float. */
template <class T> HL_DEVICE float upcast(T x)
{
    return hl_to_float(x);
}
HL_DEVICE double upcast(double x)
{
    return x;
}
template <class T> using number_of = decltype(upcast(T()));

/* Integers wrap. */
template <class V> HL_DEVICE V plus(V a, V b)
{
    return a + b;
}
HL_DEVICE int64_t plus(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
template <class V> HL_DEVICE V times(V a, V b)
{
    return a * b;
}
HL_DEVICE int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
template <class V> HL_DEVICE V least(V)
{
    return -hl_infinity();
}
HL_DEVICE int64_t least(int64_t)
{
    return INT64_MIN;
}
template <class V> HL_DEVICE V most(V)
{
    return hl_infinity();
}
HL_DEVICE int64_t most(int64_t)
{
    return INT64_MAX;
}

HL_DEVICE void store(void *out, int32_t dtype, int64_t i, float value)
{
    hl_write_float(out, dtype, i, value);
}
HL_DEVICE void store(void *out, int32_t, int64_t i, double value)
{
    ((double *)out)[i] = value;
}
HL_DEVICE void store(void *out, int32_t dtype, int64_t i, int64_t value)
{
    hl_write_int(out, dtype, i, value);
}

/* Takes elements in one after the other, as if each were a result. */
template <class F, class V> struct fold_each {
    typedef V state;
    typedef V element;
    template <int n> static HL_MEMBER void add(V &all, const V (&e)[n], int there)
    {
        HL_UNROLL
        for (int j = 0; j < n; j++)
            if (j < there) all = F::join(all, e[j]);
    }
};

#define FOLD(name, start, joined)                                                                  \
    template <class V> struct fold_##name : fold_each<fold_##name<V>, V> {                         \
        static HL_MEMBER V first()                                                                 \
        {                                                                                          \
            return start;                                                                          \
        }                                                                                          \
        static HL_MEMBER V join(V a, V b)                                                          \
        {                                                                                          \
            return joined;                                                                         \
        }                                                                                          \
    };
FOLD(sum, 0, plus(a, b))
FOLD(prod, 1, times(a, b))
/* A NaN stays. */
FOLD(max, least(V()), a != a || a > b ? a : b)
FOLD(min, most(V()), a != a || a < b ? a : b)

/* An element and where it stands. */
template <class V> struct ranked {
    V value;
    int64_t at; /* -1: nothing yet */
};

/* The first of equals wins; a NaN beats every number. sign 1: the largest, -1: the smallest. */
template <class V, int sign> struct fold_arg : fold_each<fold_arg<V, sign>, ranked<V>> {
    static HL_MEMBER ranked<V> first()
    {
        return {0, -1};
    }
    static HL_MEMBER ranked<V> join(ranked<V> a, ranked<V> b)
    {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        if (a_nan != b_nan) return a_nan ? a : b;
        if (!a_nan && a.value != b.value) return (a.value > b.value) == (sign > 0) ? a : b;
        return a.at < b.at ? a : b;
    }
};

/* n elements, their mean and the sum of the squares of their distances from it. */
struct moments {
    float n, mean, squares;
};

struct fold_moments {
    typedef moments state;
    typedef float element;
    static HL_MEMBER moments first()
    {
        return {0, 0, 0};
    }
    static HL_MEMBER moments join(moments a, moments b)
    {
        if (a.n == 0 || b.n == 0) return a.n == 0 ? b : a;
        float n = a.n + b.n, share = b.n / n, distance = b.mean - a.mean;
        return {n, a.mean + distance * share,
                a.squares + b.squares + distance * distance * (a.n * share)};
    }
    template <int n> static HL_MEMBER void add(moments &all, const float (&e)[n], int there)
    {
        moments batch = {(float)there, 0, 0};
        HL_UNROLL
        for (int j = 0; j < n; j++)
            if (j < there) batch.mean += e[j];
        batch.mean /= batch.n;
        HL_UNROLL
        for (int j = 0; j < n; j++)
            if (j < there) batch.squares += (e[j] - batch.mean) * (e[j] - batch.mean);
        all = join(all, batch);
    }
};
struct fold_parts : fold_each<fold_parts, moments> {
    static HL_MEMBER moments first()
    {
        return fold_moments::first();
    }
    static HL_MEMBER moments join(moments a, moments b)
    {
        return fold_moments::join(a, b);
    }
};

/* ---- reading --------------------------------------------------------------------------------- */

/* A whole batch is the common case, which the compiler then makes without conditions. */
template <class F, int n>
HL_DEVICE void add_batch(typename F::state &all, const typename F::element (&e)[n], int there)
{
    if (there == n)
        F::add(all, e, n);
    else
        F::add(all, e, there);
}

/* load(k) for k = first, first + step, ... below end. */
template <class F, class Load>
HL_DEVICE void visit_each(int64_t first, int64_t step, int64_t end, Load load,
                          typename F::state &all)
{
    enum { AHEAD = sizeof(typename F::element) > 4 ? 4 : 8 };
    for (int64_t k = first; k < end; k += AHEAD * step) {
        typename F::element e[AHEAD] = {};
        int there = 0;
        HL_UNROLL
        for (int j = 0; j < AHEAD; j++)
            if (k + j * step < end) {
                e[j] = load(k + j * step);
                there = j + 1;
            }
        add_batch<F>(all, e, there);
    }
}

/* x[0, n) by a cooperative group, 16 bytes a load. Which thread takes what comes from x's address,
 * and operands lie at multiples of 16: from the shape. */
template <class F, class T>
HL_DEVICE void visit_row(const hl_coop_group &coop, const T *x, int64_t n, typename F::state &all)
{
    enum { WIDTH = 16 / sizeof(T), AHEAD = sizeof(T) == 2 ? 2 : 4 };
    if (coop.size < 32) {
        visit_each<F>(coop.rank, coop.size, n, [=](int64_t k) { return upcast(x[k]); }, all);
        return;
    }
    int64_t head = (int64_t)((16 - (uintptr_t)x % 16) % 16 / sizeof(T));
    if (head > n) head = n;
    int64_t n_words = (n - head) / WIDTH;
    const hl_word4 *word = (const hl_word4 *)(const void *)(x + head);
    for (int64_t w = coop.rank; w < n_words; w += AHEAD * coop.size) {
        union {
            hl_word4 word;
            T x[WIDTH];
        } in[AHEAD] = {};
        number_of<T> e[AHEAD * WIDTH];
        int there = 0;
        HL_UNROLL
        for (int j = 0; j < AHEAD; j++)
            if (w + j * coop.size < n_words) {
                in[j].word = *hl_vector(word + w + j * coop.size);
                there = (j + 1) * WIDTH;
            }
        HL_UNROLL
        for (int j = 0; j < AHEAD * WIDTH; j++) e[j] = upcast(in[j / WIDTH].x[j % WIDTH]);
        add_batch<F>(all, e, there);
    }
    /* What stands before the first whole word and after the last: fewer than 32. */
    int64_t edge = coop.rank < head ? coop.rank : coop.rank + n_words * WIDTH;
    if (edge >= n) return;
    number_of<T> one[1] = {upcast(x[edge])};
    F::add(all, one, 1);
}

/* Elements [begin, end) of the A S that channel c of an array (A,C,S) has, W neighbours of a plane
 * at a time: load(place in the array, their values). A thread finds its first plane by a division
 * and steps from there. */
template <class F, int W, class Load>
HL_DEVICE void visit_planes_by(const hl_coop_group &coop, int64_t c, int64_t begin, int64_t end,
                               int64_t C, int64_t S, Load load, typename F::state &all)
{
    typedef typename F::element E;
    enum { AT_A_TIME = sizeof(E) > 4 ? 8 : 16, AHEAD = W == 1 ? AT_A_TIME / 2 : AT_A_TIME / W };
    bool is_short = end <= INT32_MAX && S <= INT32_MAX;
    int64_t step = (int64_t)W * coop.size, k = begin + (int64_t)W * coop.rank, s, step_s;
    int64_t a = hl_divide(k, S, is_short, &s), step_a = hl_divide(step, S, is_short, &step_s);
    while (k < end) {
        E e[AHEAD * W] = {};
        int there = 0;
        HL_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            if (k >= end) break;
            E some[W];
            load((a * C + c) * S + s, some);
            HL_UNROLL
            for (int i = 0; i < W; i++) e[j * W + i] = some[i];
            there = (j + 1) * W;
            k += step, a += step_a, s += step_s;
            if (s >= S) s -= S, a++;
        }
        add_batch<F>(all, e, there);
    }
}
/* begin is a multiple of 8, or of a plane's length. */
template <class F, class Load>
HL_DEVICE void visit_planes(const hl_coop_group &coop, int64_t c, int64_t begin, int64_t end,
                            int64_t C, int64_t S, Load load, typename F::state &all)
{
    if (S % 8 == 0)
        visit_planes_by<F, 8>(coop, c, begin, end, C, S, load, all);
    else if (S % 4 == 0)
        visit_planes_by<F, 4>(coop, c, begin, end, C, S, load, all);
    else
        visit_planes_by<F, 1>(coop, c, begin, end, C, S, load, all);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* visit(cooperative group, o, begin, end, result) takes row o's elements in; store(result's number,
 * result). */
template <class F, class Visit, class Store>
HL_DEVICE void fold_rows(const hl_cuda_groups &g, int by_block, Visit visit, Store store)
{
    typedef typename F::state V;
    hl_coop_group coop = hl_coop_make(by_block);
    int64_t N = g.N, part = g.part, n_parts = g.n_parts;
    for (int64_t v = coop.first; v < g.O * n_parts; v += coop.step) {
        int64_t begin = v % n_parts * part, end = begin + part < N ? begin + part : N;
        V all = F::first();
        visit(coop, v / n_parts, begin, end, all);
        all = hl_coop_fold(coop, all, [](V a, V b) { return F::join(a, b); });
        if (coop.rank == 0) store(v, all);
    }
}

/* load(o, k, i). */
template <class F, class Load, class Store>
HL_DEVICE void fold_cols(const hl_cuda_groups &g, Load load, Store store)
{
    typedef typename F::state V;
    HL_SHARED(V, room, THREADS);
    int64_t N = g.N, I = g.I, part = g.part, n_parts = g.n_parts;
    int width = hl_cuda_groups_width(I), t = hl_thread();
    int64_t n_tiles = (I + width - 1) / width;
    for (int64_t u = hl_block_x(); u < g.O * n_parts * n_tiles; u += hl_blocks_x()) {
        int64_t i = u % n_tiles * width + t % width, v = u / n_tiles, o = v / n_parts;
        int64_t begin = v % n_parts * part, end = begin + part < N ? begin + part : N;
        V all = F::first();
        if (i < I)
            visit_each<F>(
                begin + t / width, THREADS / width, end, [=](int64_t k) { return load(o, k, i); },
                all);
        hl_barrier(); /* the last tile's readers are through */
        room[t] = all;
        for (int half = THREADS / 2; half >= width; half /= 2) {
            hl_barrier();
            if (t < half) room[t] = F::join(room[t], room[t + half]);
        }
        if (t < width && i < I) store(v * I + i, (V)room[t]);
    }
}

/* Either, by elements. */
template <class F, class Load, class Store>
HL_DEVICE void fold_groups(const hl_cuda_groups &g, int by_block, Load load, Store store)
{
    typedef typename F::state V;
    if (g.I != 1) {
        fold_cols<F>(g, load, store);
        return;
    }
    fold_rows<F>(
        g, by_block,
        [=](const hl_coop_group &coop, int64_t o, int64_t begin, int64_t end, V &all) {
            visit_each<F>(
                begin + coop.rank, coop.size, end, [=](int64_t k) { return load(o, k, 0); }, all);
        },
        store);
}

/* Either, of an array of floats: rows by 16 bytes. */
template <class F, class T, class Store>
HL_DEVICE void fold_floats(const T *x, const hl_cuda_groups &g, int by_block, Store store)
{
    typedef typename F::state V;
    int64_t N = g.N, I = g.I;
    if (I != 1) {
        fold_cols<F>(
            g, [=](int64_t o, int64_t k, int64_t i) { return upcast(x[(o * N + k) * I + i]); },
            store);
        return;
    }
    fold_rows<F>(
        g, by_block,
        [=](const hl_coop_group &coop, int64_t o, int64_t begin, int64_t end, V &all) {
            visit_row<F>(coop, x + o * N + begin, end - begin, all);
        },
        store);
}

/* ---- sum, prod, max, min --------------------------------------------------------------------- */

#define FOLD_KERNEL(name, T, suffix)                                                               \
    HL_CUDA_ENTRY_OF(fold, name##_##suffix, THREADS, p)                                            \
    {                                                                                              \
        typedef number_of<T> V;                                                                    \
        void *out = p.at.out;                                                                      \
        int32_t out_dtype = p.out_dtype;                                                           \
        fold_floats<fold_##name<V>>((const T *)p.at.x, p.groups, p.by_block,                       \
                                    [=](int64_t v, V all) { store(out, out_dtype, v, all); });     \
    }
#define INT_KERNEL(name)                                                                           \
    HL_CUDA_ENTRY_OF(fold, name##_int, THREADS, p)                                                 \
    {                                                                                              \
        const void *x = p.at.x;                                                                    \
        void *out = p.at.out;                                                                      \
        int32_t dtype = p.dtype, out_dtype = p.out_dtype;                                          \
        int64_t N = p.groups.N, I = p.groups.I;                                                    \
        fold_groups<fold_##name<int64_t>>(                                                         \
            p.groups, p.by_block,                                                                  \
            [=](int64_t o, int64_t k, int64_t i) {                                                 \
                return hl_read_int(x, dtype, (o * N + k) * I + i);                                 \
            },                                                                                     \
            [=](int64_t v, int64_t all) { store(out, out_dtype, v, all); });                       \
    }
#define FOLD_KERNELS(T, suffix)                                                                    \
    FOLD_KERNEL(sum, T, suffix)                                                                    \
    FOLD_KERNEL(prod, T, suffix)                                                                   \
    FOLD_KERNEL(max, T, suffix)                                                                    \
    FOLD_KERNEL(min, T, suffix)
HL_FLOAT_TYPES(FOLD_KERNELS)
FOLD_KERNELS(double, f64)
INT_KERNEL(sum)
INT_KERNEL(prod)
INT_KERNEL(max)
INT_KERNEL(min)

/* ---- argmax, argmin -------------------------------------------------------------------------- */

/* The second call's candidates are the first one's results. */
template <class F, class Load> HL_DEVICE void find_places(Load load, const hl_cuda_arg_params &p)
{
    typedef typename F::state V;
    const int64_t *among = p.at.among;
    int64_t *out = p.at.out, M = p.M, N = p.groups.N, I = p.groups.I;
    fold_groups<F>(
        p.groups, p.by_block,
        [=](int64_t o, int64_t k, int64_t i) {
            if (among) k = among[(o * N + k) * I + i];
            return V{load((o * M + k) * I + i), k};
        },
        [=](int64_t v, V best) { out[v] = best.at; });
}

#define ARG_KERNEL(name, sign, T, suffix)                                                          \
    HL_CUDA_ENTRY_OF(arg, name##_##suffix, THREADS, p)                                             \
    {                                                                                              \
        const T *x = (const T *)p.at.x;                                                            \
        find_places<fold_arg<number_of<T>, sign>>([=](int64_t at) { return upcast(x[at]); }, p);   \
    }
#define ARG_INT_KERNEL(name, sign)                                                                 \
    HL_CUDA_ENTRY_OF(arg, name##_int, THREADS, p)                                                  \
    {                                                                                              \
        const void *x = p.at.x;                                                                    \
        int32_t dtype = p.dtype;                                                                   \
        find_places<fold_arg<int64_t, sign>>(                                                      \
            [=](int64_t at) { return hl_read_int(x, dtype, at); }, p);                             \
    }
#define ARG_KERNELS(T, suffix)                                                                     \
    ARG_KERNEL(max, 1, T, suffix)                                                                  \
    ARG_KERNEL(min, -1, T, suffix)
HL_FLOAT_TYPES(ARG_KERNELS)
ARG_KERNELS(double, f64)
ARG_INT_KERNEL(max, 1)
ARG_INT_KERNEL(min, -1)

/* ---- median ---------------------------------------------------------------------------------- */

/* A radix select: every element has a key, an integer of its order, and the digits of the median's
 * key are found from the highest one down, each by counting the elements that have the digits so
 * far by their next one. It ends at the last digit, or where one element is left. A cooperative
 * group holds what it can of its row in registers, so most rows are read from memory once. Digits
 * have two bits, as in PyTorch's select: a longer digit saves passes over registers, but its
 * counters would have to be shared. Rejected: several blocks a row, which is a launch a digit. */

/* Counts of elements whose digit is 0, at most 1, at most 2. */
struct digit_counts {
    uint32_t zero, one, two;
};

/* Finds the first key that has these bits under the mask; C: there is none. */
template <class K, class Row> HL_DEVICE int64_t find_first(const Row &row, K bits, K mask)
{
    int64_t first = row.C;
    row.each([&](int64_t c, K key) {
        if ((key & mask) == bits && c < first) first = c;
    });
    return hl_coop_fold(row.coop, first, [](int64_t a, int64_t b) { return a < b ? a : b; });
}

template <class K, class Row> HL_DEVICE int64_t find_median(const Row &row)
{
    K bits = 0, mask = 0;
    uint32_t n = (uint32_t)row.C, place = (n - 1) / 2; /* of the median among the n that are left */
    for (int shift = 8 * (int)sizeof(K) - 2; shift >= 0 && n > 1; shift -= 2) {
        digit_counts upto = {0, 0, 0};
        row.each([&](int64_t, K key) {
            int digit = (key & mask) == bits ? (int)(key >> shift & 3) : 3;
            upto.zero += digit == 0;
            upto.one += digit <= 1;
            upto.two += digit <= 2;
        });
        upto = hl_coop_fold(row.coop, upto, [](digit_counts a, digit_counts b) {
            return digit_counts{a.zero + b.zero, a.one + b.one, a.two + b.two};
        });
        int digit = (place >= upto.zero) + (place >= upto.one) + (place >= upto.two);
        uint32_t below = digit == 0 ? 0 : digit == 1 ? upto.zero : digit == 2 ? upto.one : upto.two;
        n = (digit == 0 ? upto.zero : digit == 1 ? upto.one : digit == 2 ? upto.two : n) - below;
        place -= below;
        bits |= (K)digit << shift;
        mask |= (K)3 << shift;
    }
    return find_first(row, bits, mask);
}

/* load(i): the key of x[i]; store(r, i): row r's median is x[i]. */
template <class K, bool has_nan, class Load, class Store>
HL_DEVICE void run_medians(const hl_cuda_median_params &p, Load load, Store store)
{
    enum { KEEP = sizeof(K) == 8 ? 12 : 32 }; /* 16 of 8 bytes would spill on sm_75 */
    hl_coop_group coop = hl_coop_make(p.by_block);
    int64_t N = p.N;
    for (int64_t r = coop.first; r < p.R; r += coop.step) {
        auto row = hl_coop_keep<KEEP>(coop, N, [=](int64_t c) { return load(r * N + c); });
        int64_t place = has_nan ? find_first(row, ~(K)0, ~(K)0) : N;
        if (place == N) place = find_median<K>(row);
        if (coop.rank > 0) continue;
        p.at.places[r] = place;
        store(r, r * N + place);
    }
}

#define MEDIAN_KERNEL(T, suffix)                                                                   \
    HL_CUDA_ENTRY_OF(median, suffix, THREADS, p)                                                   \
    {                                                                                              \
        const T *x = (const T *)p.at.x;                                                            \
        T *values = (T *)p.at.values;                                                              \
        run_medians<decltype(hl_order_key(upcast(T()))), true>(                                    \
            p, [=](int64_t i) { return hl_order_key(upcast(x[i])); },                              \
            [=](int64_t r, int64_t i) { values[r] = x[i]; });                                      \
    }
HL_FLOAT_TYPES(MEDIAN_KERNEL)
MEDIAN_KERNEL(double, f64)
HL_CUDA_ENTRY_OF(median, int, THREADS, p)
{
    const void *x = p.at.x;
    void *values = p.at.values;
    int32_t dtype = p.dtype;
    run_medians<uint64_t, false>(
        p, [=](int64_t i) { return hl_order_key(hl_read_int(x, dtype, i)); },
        [=](int64_t r, int64_t i) { store(values, dtype, r, hl_read_int(x, dtype, i)); });
}

/* ---- moments: mean and population variance --------------------------------------------------- */

/* A part's sum of squares, or the variance where the part is all. */
template <class P> HL_DEVICE void store_moments(const P &p, int64_t v, moments all, bool is_whole)
{
    float var = is_whole ? all.squares / all.n : all.squares;
    hl_write_float(p.at.mean, p.out_dtype, v, all.mean);
    hl_write_float(p.at.var, p.out_dtype, v, var);
    hl_channel_put(p.at.channel, v, all.mean, var, p.eps);
}

/* Partials of moments_*, (O,parts,I), of `part` elements each, the last of the rest of N. */
HL_CUDA_ENTRY(moments_merge, THREADS, p)
{
    const float *part_mean = p.at.part_mean, *part_squares = p.at.part_squares;
    int64_t N = p.groups.N, I = p.groups.I, part = p.groups.part, n_parts = p.groups.n_parts;
    fold_groups<fold_parts>(
        hl_cuda_groups{p.groups.O, n_parts, I, n_parts, 1}, p.by_block,
        [=](int64_t o, int64_t k, int64_t i) {
            int64_t at = (o * n_parts + k) * I + i, before = k * part;
            int64_t n = before + part < N ? part : N - before;
            return moments{(float)n, part_mean[at], part_squares[at]};
        },
        [&](int64_t v, moments all) { store_moments(p, v, all, true); });
}

#define MOMENT_KERNELS(T, suffix)                                                                  \
    HL_CUDA_ENTRY_OF(moments, suffix, THREADS, p)                                                  \
    {                                                                                              \
        bool is_whole = p.groups.n_parts == 1;                                                     \
        fold_floats<fold_moments>(                                                                 \
            (const T *)p.at.x, p.groups, p.by_block,                                               \
            [&](int64_t v, moments all) { store_moments(p, v, all, is_whole); });                  \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(plane_moments, suffix, THREADS, p)                                            \
    {                                                                                              \
        const T *x = (const T *)p.at.x;                                                            \
        bool is_whole = p.groups.n_parts == 1, is_aligned = hl_pack<T, 8>::is_aligned(x);          \
        auto load = [=](int64_t at, auto &e) { hl_read_pack(x + at, is_aligned, e); };             \
        fold_rows<fold_moments>(                                                                   \
            p.groups, p.by_block,                                                                  \
            [&](const hl_coop_group &coop, int64_t c, int64_t begin, int64_t end, moments &all) {  \
                visit_planes<fold_moments>(coop, c, begin, end, p.groups.O, p.S, load, all);       \
            },                                                                                     \
            [&](int64_t v, moments all) { store_moments(p, v, all, is_whole); });                  \
    }
HL_FLOAT_TYPES(MOMENT_KERNELS)

/* ---- the sums of batch norm's gradient ------------------------------------------------------- */

/* Of dy, and of dy (x - mean). */
struct grad_sums {
    float g, gc;
};
struct fold_grads : fold_each<fold_grads, grad_sums> {
    static HL_MEMBER grad_sums first()
    {
        return {0, 0};
    }
    static HL_MEMBER grad_sums join(grad_sums a, grad_sums b)
    {
        return {a.g + b.g, a.gc + b.gc};
    }
};

/* The channel's gradients: dbias, and dweight = gc / std. */
template <class P> HL_DEVICE void store_grads(const P &p, int64_t c, grad_sums all, int64_t n)
{
    float rstd = hl_rsqrt(p.at.var[c] + p.eps), dweight = all.gc * rstd;
    p.at.dbias[c] = all.g;
    p.at.dweight[c] = dweight;
    hl_channel_put_grad(p.at.channel, c, p.at.mean[c], rstd, dweight, all.g, (float)n);
}

/* Partials of batch_norm_sums_*, (O,parts,I). */
HL_CUDA_ENTRY(batch_norm_sums_merge, THREADS, p)
{
    const float *part_g = p.at.part_g, *part_gc = p.at.part_gc;
    int64_t N = p.groups.N, I = p.groups.I;
    fold_groups<fold_grads>(
        p.groups, p.by_block,
        [=](int64_t o, int64_t k, int64_t i) {
            int64_t at = (o * N + k) * I + i;
            return grad_sums{part_g[at], part_gc[at]};
        },
        [&](int64_t c, grad_sums all) { store_grads(p, c, all, p.n); });
}

/* Neighbours of a channel. */
template <class D, class X, class R, int W>
HL_DEVICE void load_grads(const D *dy, const X *x, const R *result, float scale, float mean,
                          bool is_aligned, grad_sums (&e)[W])
{
    float g[W], v[W], r[W] = {};
    hl_read_pack(dy, is_aligned, g);
    hl_read_pack(x, is_aligned, v);
    if (result) hl_read_pack(result, is_aligned, r);
    HL_UNROLL
    for (int j = 0; j < W; j++) {
        if (result) g[j] = hl_pass(g[j], r[j], scale);
        e[j] = grad_sums{g[j], g[j] * (v[j] - mean)};
    }
}

template <class D, class X, class R>
HL_DEVICE void run_grad_sums(const hl_cuda_batch_norm_sums_params &p)
{
    const D *dy = (const D *)p.at.dy;
    const X *x = (const X *)p.at.x;
    const R *result = (const R *)p.at.result;
    const float *mean = p.at.mean;
    float scale = p.result_scale;
    int64_t C = p.groups.O * p.groups.I;
    bool is_aligned = hl_pack<D, 8>::is_aligned(dy) && hl_pack<X, 8>::is_aligned(x) &&
                      hl_pack<R, 8>::is_aligned(result);
    auto put = [&](int64_t v, grad_sums all) {
        if (p.groups.n_parts == 1) {
            store_grads(p, v, all, p.groups.N);
        } else {
            p.at.dbias[v] = all.g;
            p.at.dweight[v] = all.gc;
        }
    };
    if (p.groups.I != 1) {
        fold_cols<fold_grads>(
            p.groups,
            [=](int64_t, int64_t k, int64_t c) {
                grad_sums one[1];
                int64_t at = k * C + c;
                load_grads(dy + at, x + at, result ? result + at : result, scale, mean[c], false,
                           one);
                return one[0];
            },
            put);
        return;
    }
    fold_rows<fold_grads>(
        p.groups, p.by_block,
        [&](const hl_coop_group &coop, int64_t c, int64_t begin, int64_t end, grad_sums &all) {
            float middle = mean[c];
            auto load = [=](int64_t at, auto &e) {
                load_grads(dy + at, x + at, result ? result + at : result, scale, middle,
                           is_aligned, e);
            };
            visit_planes<fold_grads>(coop, c, begin, end, C, p.S, load, all);
        },
        put);
}

#define GRAD_KERNEL(D, X, R, variant)                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_sums, variant, THREADS, p)                                         \
    {                                                                                              \
        run_grad_sums<D, X, R>(p);                                                                 \
    }
HL_FLOAT_TRIPLES(GRAD_KERNEL)

/* ---- running sums, and the product's gradient ------------------------------------------------ */

/* Of the lanes up to and with this one. */
template <class F, class V> HL_DEVICE V scan_warp(V value, int lane)
{
    HL_UNROLL
    for (int delta = 1; delta < 32; delta *= 2) {
        V before = hl_shuffle_up(HL_WARP_ALL, value, delta);
        if (lane >= delta) value = F::join(before, value);
    }
    return value;
}

/* [begin, end) of a group whose element k lies at base + k I, from either end: store(place, what
 * stands before it, that with it). By a warp. */
template <class F, class V, class Load, class Store>
HL_DEVICE void scan_row(int64_t base, int64_t begin, int64_t end, int64_t I, bool is_reverse,
                        V carry, Load load, Store store)
{
    int lane = hl_thread() % 32;
    auto place = [=](int64_t k) { return base + (is_reverse ? end - 1 - (k - begin) : k) * I; };
    V next = begin + lane < end ? load(place(begin + lane)) : F::first();
    for (int64_t k = begin + lane; k - lane < end; k += 32) {
        V value = next;
        next = k + 32 < end ? load(place(k + 32)) : F::first(); /* on its way meanwhile */
        V with = scan_warp<F>(value, lane), before = hl_shuffle_up(HL_WARP_ALL, with, 1);
        if (k < end)
            store(place(k), lane > 0 ? F::join(carry, before) : carry, F::join(carry, with));
        carry = F::join(carry, hl_shuffle(HL_WARP_ALL, with, 31));
    }
}

/* Short rows side by side go by a thread a column, else a warp takes a part. */
template <class V, class Load, class Store>
HL_DEVICE void run_cumsum(Load load, Store store, const hl_cuda_cumsum_params &p)
{
    typedef fold_sum<V> F;
    const V *before = (const V *)p.at.before;
    int64_t N = p.groups.N, I = p.groups.I, part = p.groups.part, n_parts = p.groups.n_parts;
    bool is_reverse = p.is_reverse != 0, by_column = I >= HL_CUDA_REDUCE_COLUMNS;
    int64_t per = by_column ? 1 : 32;
    for (int64_t u = HL_GRID_FIRST / per; u < p.groups.O * n_parts * I; u += HL_GRID_STEP / per) {
        int64_t i = u % I, v = u / I, own = v % n_parts, other = is_reverse ? own + 1 : own - 1;
        int64_t begin = own * part, end = begin + part < N ? begin + part : N;
        int64_t base = v / n_parts * N * I + i;
        V carry =
            before && other >= 0 && other < n_parts ? before[u + (other - own) * I] : F::first();
        auto put = [=](int64_t at, V, V with) { store(at, with); };
        if (!by_column) {
            scan_row<F>(base, begin, end, I, is_reverse, carry, load, put);
            continue;
        }
        for (int64_t k = begin; k < end; k++) {
            int64_t at = base + (is_reverse ? end - 1 - (k - begin) : k) * I;
            carry = F::join(carry, load(at));
            store(at, carry);
        }
    }
}

#define CUMSUM_KERNEL(T, suffix)                                                                   \
    HL_CUDA_ENTRY_OF(cumsum, suffix, THREADS, p)                                                   \
    {                                                                                              \
        typedef number_of<T> V;                                                                    \
        const T *x = (const T *)p.at.x;                                                            \
        void *out = p.at.out;                                                                      \
        int32_t out_dtype = p.out_dtype;                                                           \
        run_cumsum<V>([=](int64_t i) { return upcast(x[i]); },                                     \
                      [=](int64_t i, V sum) { store(out, out_dtype, i, sum); }, p);                \
    }
HL_FLOAT_TYPES(CUMSUM_KERNEL)
CUMSUM_KERNEL(double, f64)
HL_CUDA_ENTRY_OF(cumsum, int, THREADS, p)
{
    const void *x = p.at.x;
    void *out = p.at.out;
    int32_t dtype = p.dtype, out_dtype = p.out_dtype;
    run_cumsum<int64_t>([=](int64_t i) { return hl_read_int(x, dtype, i); },
                        [=](int64_t i, int64_t sum) { store(out, out_dtype, i, sum); }, p);
}

/* dx = dprod * the product of all before * that of all after: no division, so zeros are no case. A
 * warp a group. */
HL_CUDA_ENTRY(prod_grad, THREADS, p)
{
    hl_coop_group coop = hl_coop_make(0);
    const float *x = p.at.x;
    float *dx = p.at.dx;
    int64_t N = p.N, I = p.I;
    auto load = [=](int64_t i) { return x[i]; };
    for (int64_t g = coop.first; g < p.O * I; g += coop.step) {
        int64_t base = g / I * N * I + g % I;
        float d = p.at.dprod[g];
        scan_row<fold_prod<float>>(base, 0, N, I, false, 1.0f, load,
                                   [=](int64_t i, float before, float) { dx[i] = before; });
        hl_warp_sync(HL_WARP_ALL);
        scan_row<fold_prod<float>>(base, 0, N, I, true, 1.0f, load,
                                   [=](int64_t i, float after, float) { dx[i] *= after * d; });
    }
}
