/* Reductions and running sums.
 *
 * An array is seen as (O,N,I), N what is reduced. Rows (I = 1) are folded by teams; columns (I > 1)
 * by blocks that own 32 neighbouring columns, every warp a share of the rows. Where there are few
 * groups N is cut into parts of a fixed length, each of which gives one partial result, and the
 * same kernel reduces the partials (O, parts, I): the cut comes from the shape, so the bits do not
 * depend on the grid. Statistics are made in two passes over a part (mean, then square distances),
 * and parts are merged in order by Chan, Golub and LeVeque's formula (1979).
 *
 * Rejected: sums by atomics (other bits every run), "the last block merges" (needs memory that is
 * zero before the launch).
 *
 * Launch: any grid; threads a multiple of 32 in rows, columns and teams; by_block 1: a block per
 * row, 0: a warp. part >= 1; out has max(1, ceil(N / part)) partials per group. Columns: 256
 * threads. */
#include "kernels/cuda/any.h"
#include "kernels/cuda/fold.h"

HL_DEVICE int64_t count_parts(int64_t N, int64_t part)
{
    return N > 0 ? (N + part - 1) / part : 1;
}

/* A fold: what it starts from, what an element counts as, how two values become one. A NaN stays;
 * integers wrap. */
struct fold_sum {
    static HL_MEMBER float first()
    {
        return 0;
    }
    static HL_MEMBER float take(float x)
    {
        return x;
    }
    static HL_MEMBER float join(float a, float b)
    {
        return a + b;
    }
    static HL_MEMBER int64_t join(int64_t a, int64_t b)
    {
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
};
struct fold_sumsq : fold_sum {
    static HL_MEMBER float take(float x)
    {
        return x * x;
    }
};
struct fold_prod : fold_sum {
    static HL_MEMBER float first()
    {
        return 1;
    }
    static HL_MEMBER float join(float a, float b)
    {
        return a * b;
    }
    static HL_MEMBER int64_t join(int64_t a, int64_t b)
    {
        return (int64_t)((uint64_t)a * (uint64_t)b);
    }
};
struct fold_max : fold_sum {
    static HL_MEMBER float first()
    {
        return -hl_infinity();
    }
    static HL_MEMBER float join(float a, float b)
    {
        return a != a || a > b ? a : b;
    }
    static HL_MEMBER int64_t join(int64_t a, int64_t b)
    {
        return a > b ? a : b;
    }
};
struct fold_min : fold_sum {
    static HL_MEMBER float first()
    {
        return hl_infinity();
    }
    static HL_MEMBER float join(float a, float b)
    {
        return a != a || a < b ? a : b;
    }
    static HL_MEMBER int64_t join(int64_t a, int64_t b)
    {
        return a < b ? a : b;
    }
};

template <class F, class T>
HL_DEVICE void fold_rows(const T *x, void *out, int32_t out_dtype, int64_t O, int64_t N,
                         int64_t part, int by_block)
{
    hl_team team = hl_team_make(by_block);
    int64_t n_parts = count_parts(N, part);
    for (int64_t v = team.first; v < O * n_parts; v += team.step) {
        int64_t o = v / n_parts, begin = v % n_parts * part;
        int64_t end = begin + part < N ? begin + part : N;
        float value = F::first();
        for (int64_t k = begin + team.rank; k < end; k += team.size)
            value = F::join(value, F::take(hl_read(x, o * N + k)));
        value = hl_team_fold(team, value, [](float a, float b) { return F::join(a, b); });
        if (team.rank == 0) hl_write_float(out, out_dtype, v, value);
    }
}

enum { TILE = 32, COLUMN_THREADS = 256, COLUMN_WARPS = COLUMN_THREADS / 32 };

template <class F, class T>
HL_DEVICE void fold_cols(const T *x, void *out, int32_t out_dtype, int64_t O, int64_t N, int64_t I,
                         int64_t part)
{
    HL_SHARED(float, room, COLUMN_THREADS);
    int warp = hl_thread() / 32, lane = hl_thread() % 32;
    int64_t n_parts = count_parts(N, part), n_tiles = (I + TILE - 1) / TILE;
    for (int64_t u = hl_block_x(); u < O * n_parts * n_tiles; u += hl_blocks_x()) {
        int64_t i = u % n_tiles * TILE + lane, v = u / n_tiles, begin = v % n_parts * part;
        int64_t end = begin + part < N ? begin + part : N;
        const T *from = x + v / n_parts * N * I;
        float value = F::first();
        if (i < I)
            for (int64_t k = begin + warp; k < end; k += COLUMN_WARPS)
                value = F::join(value, F::take(hl_read(from, k * I + i)));
        hl_barrier(); /* the last tile's reader is through */
        room[hl_thread()] = value;
        hl_barrier();
        if (warp > 0 || i >= I) continue;
        for (int w = 1; w < COLUMN_WARPS; w++) value = F::join(value, (float)room[w * 32 + lane]);
        hl_write_float(out, out_dtype, v * I + i, value);
    }
}

/* Integers of any width, one team a group; first: of N = 0, and of sums and products. */
template <class F>
HL_DEVICE void fold_ints(const void *x, int32_t dtype, void *out, int32_t out_dtype, int64_t O,
                         int64_t N, int64_t I, int64_t first, int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t g = team.first; g < O * I; g += team.step) {
        int64_t base = g / I * N * I + g % I, value = first;
        for (int64_t k = team.rank; k < N; k += team.size)
            value = F::join(value, hl_read_int(x, dtype, base + k * I));
        value = hl_team_fold(team, value, [](int64_t a, int64_t b) { return F::join(a, b); });
        if (team.rank == 0) hl_write_int(out, out_dtype, g, value);
    }
}

#define FOLD_KERNELS(name, T, suffix)                                                              \
    HL_KERNEL(hl_cuda_##name##_rows_##suffix, 1024, const T *x, void *out, int32_t out_dtype,      \
              int64_t O, int64_t N, int64_t part, int by_block)                                    \
    {                                                                                              \
        fold_rows<fold_##name>(x, out, out_dtype, O, N, part, by_block);                           \
    }                                                                                              \
    HL_KERNEL(hl_cuda_##name##_cols_##suffix, COLUMN_THREADS, const T *x, void *out,               \
              int32_t out_dtype, int64_t O, int64_t N, int64_t I, int64_t part)                    \
    {                                                                                              \
        fold_cols<fold_##name>(x, out, out_dtype, O, N, I, part);                                  \
    }
#define FLOAT_KERNELS(T, suffix)                                                                   \
    FOLD_KERNELS(sum, T, suffix)                                                                   \
    FOLD_KERNELS(sumsq, T, suffix)                                                                 \
    FOLD_KERNELS(prod, T, suffix)                                                                  \
    FOLD_KERNELS(max, T, suffix)                                                                   \
    FOLD_KERNELS(min, T, suffix)
HL_FLOAT_TYPES(FLOAT_KERNELS)

#define INT_KERNEL(name, first)                                                                    \
    HL_KERNEL(hl_cuda_##name##_int, 1024, const void *x, int32_t dtype, void *out,                 \
              int32_t out_dtype, int64_t O, int64_t N, int64_t I, int by_block)                    \
    {                                                                                              \
        fold_ints<fold_##name>(x, dtype, out, out_dtype, O, N, I, first, by_block);                \
    }
INT_KERNEL(sum, 0)
INT_KERNEL(prod, 1)
INT_KERNEL(max, INT64_MIN)
INT_KERNEL(min, INT64_MAX)

/* ---- argmax, argmin: one team a group ---- */

template <class V> struct ranked {
    V value;
    int64_t at; /* -1: nothing yet */
};

/* The first of equals wins; a NaN beats every number. sign 1: the larger, -1: the smaller. */
template <class V> HL_DEVICE ranked<V> choose(ranked<V> a, ranked<V> b, int sign)
{
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.value != b.value) return (a.value > b.value) == (sign > 0) ? a : b;
    return a.at < b.at ? a : b;
}

template <class V, class Load>
HL_DEVICE void find_extreme(Load load, int64_t *out, int64_t O, int64_t N, int64_t I, int sign,
                            int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t g = team.first; g < O * I; g += team.step) {
        int64_t base = g / I * N * I + g % I;
        ranked<V> best = {0, -1};
        for (int64_t k = team.rank; k < N; k += team.size)
            best = choose(best, ranked<V>{load(base + k * I), k}, sign);
        best =
            hl_team_fold(team, best, [=](ranked<V> a, ranked<V> b) { return choose(a, b, sign); });
        if (team.rank == 0) out[g] = best.at;
    }
}

#define ARG_KERNEL(T, suffix)                                                                      \
    HL_KERNEL(hl_cuda_arg_##suffix, 1024, const T *x, int64_t *out, int64_t O, int64_t N,          \
              int64_t I, int sign, int by_block)                                                   \
    {                                                                                              \
        find_extreme<float>([=](int64_t i) { return hl_read(x, i); }, out, O, N, I, sign,          \
                            by_block);                                                             \
    }
HL_FLOAT_TYPES(ARG_KERNEL)
HL_KERNEL(hl_cuda_arg_int, 1024, const void *x, int32_t dtype, int64_t *out, int64_t O, int64_t N,
          int64_t I, int sign, int by_block)
{
    find_extreme<int64_t>([=](int64_t i) { return hl_read_int(x, dtype, i); }, out, O, N, I, sign,
                          by_block);
}

/* ---- running sums, and the product's gradient: one warp a group ---- */

/* Of the lanes up to and with this one. */
template <class V, class F> HL_DEVICE V scan_warp(V value, int lane, F join)
{
    HL_UNROLL
    for (int delta = 1; delta < 32; delta *= 2) {
        V before = hl_shuffle_up(HL_WARP_ALL, value, delta);
        if (lane >= delta) value = join(before, value);
    }
    return value;
}

/* store(i, what stands before i, that with element i), i from either end of every group. */
template <class V, class Load, class Join, class Store>
HL_DEVICE void scan_groups(int64_t O, int64_t N, int64_t I, bool is_reverse, V first, Load load,
                           Join join, Store store)
{
    hl_team team = hl_team_make(0);
    for (int64_t g = team.first; g < O * I; g += team.step) {
        int64_t base = g / I * N * I + g % I;
        V carry = first;
        for (int64_t begin = 0; begin < N; begin += 32) {
            int64_t k = begin + team.rank, i = base + (is_reverse ? N - 1 - k : k) * I;
            V with = scan_warp(k < N ? load(i) : first, team.rank, join);
            V before = hl_shuffle_up(HL_WARP_ALL, with, 1);
            if (k < N) store(i, team.rank > 0 ? join(carry, before) : carry, join(carry, with));
            carry = join(carry, hl_shuffle(HL_WARP_ALL, with, 31));
        }
    }
}

#define CUMSUM_KERNEL(T, suffix)                                                                   \
    HL_KERNEL(hl_cuda_cumsum_##suffix, 1024, const T *x, T *out, int64_t O, int64_t N, int64_t I,  \
              int is_reverse)                                                                      \
    {                                                                                              \
        scan_groups(                                                                               \
            O, N, I, is_reverse != 0, 0.0f, [=](int64_t i) { return hl_read(x, i); },              \
            [](float a, float b) { return a + b; },                                                \
            [=](int64_t i, float, float with) { hl_write(out, i, with); });                        \
    }
HL_FLOAT_TYPES(CUMSUM_KERNEL)
HL_KERNEL(hl_cuda_cumsum_int, 1024, const void *x, int32_t dtype, void *out, int32_t out_dtype,
          int64_t O, int64_t N, int64_t I, int is_reverse)
{
    scan_groups(
        O, N, I, is_reverse != 0, (int64_t)0, [=](int64_t i) { return hl_read_int(x, dtype, i); },
        [](int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); },
        [=](int64_t i, int64_t, int64_t with) { hl_write_int(out, out_dtype, i, with); });
}

/* dx = dprod * the product of all before * that of all after: no division, so zeros are no case. */
HL_KERNEL(hl_cuda_prod_grad, 1024, const float *x, const float *dprod, float *dx, int64_t O,
          int64_t N, int64_t I)
{
    auto load = [=](int64_t i) { return x[i]; };
    auto join = [](float a, float b) { return a * b; };
    scan_groups(O, N, I, false, 1.0f, load, join,
                [=](int64_t i, float before, float) { dx[i] = before; });
    hl_warp_sync(HL_WARP_ALL);
    scan_groups(O, N, I, true, 1.0f, load, join, [=](int64_t i, float after, float) {
        dx[i] *= after * dprod[i / (N * I) * I + i % I];
    });
}

/* ---- moments: mean and population variance ---- */

template <class T>
HL_DEVICE void find_moments(const T *x, float *mean, float *var, int64_t R, int64_t C, int by_block)
{
    hl_team team = hl_team_make(by_block);
    for (int64_t r = team.first; r < R; r += team.step) {
        float sum = 0, squares = 0;
        for (int64_t c = team.rank; c < C; c += team.size) sum += hl_read(x, r * C + c);
        float middle = hl_team_sum(team, sum) / (float)C;
        for (int64_t c = team.rank; c < C; c += team.size) {
            float distance = hl_read(x, r * C + c) - middle;
            squares += distance * distance;
        }
        squares = hl_team_sum(team, squares);
        if (team.rank == 0) {
            mean[r] = middle;
            var[r] = squares / (float)C;
        }
    }
}

/* Sum of a column's values over the block's warps, to all of its threads. */
HL_DEVICE float sum_warps(float value)
{
    HL_SHARED(float, room, COLUMN_THREADS);
    hl_barrier();
    room[hl_thread()] = value;
    hl_barrier();
    float sum = room[hl_thread() % 32];
    for (int w = 1; w < COLUMN_WARPS; w++) sum += room[w * 32 + hl_thread() % 32];
    return sum;
}

/* x (N,C): mean and squares (parts, C) of every part's rows. */
template <class T>
HL_DEVICE void find_column_moments(const T *x, float *mean, float *squares, int64_t N, int64_t C,
                                   int64_t part)
{
    int warp = hl_thread() / 32;
    int64_t n_parts = count_parts(N, part), n_tiles = (C + TILE - 1) / TILE;
    for (int64_t u = hl_block_x(); u < n_parts * n_tiles; u += hl_blocks_x()) {
        int64_t c = u % n_tiles * TILE + hl_thread() % 32, p = u / n_tiles, begin = p * part;
        int64_t end = begin + part < N ? begin + part : N;
        float sum = 0, distances = 0;
        if (c < C)
            for (int64_t k = begin + warp; k < end; k += COLUMN_WARPS) sum += hl_read(x, k * C + c);
        float middle = sum_warps(sum) / (float)(end - begin);
        if (c < C)
            for (int64_t k = begin + warp; k < end; k += COLUMN_WARPS) {
                float distance = hl_read(x, k * C + c) - middle;
                distances += distance * distance;
            }
        distances = sum_warps(distances);
        if (warp > 0 || c >= C) continue;
        mean[p * C + c] = middle;
        squares[p * C + c] = distances;
    }
}

/* x (A,C,S): over A and S, in parts of `part` of their A * S elements; a team a part and channel.
 */
template <class T>
HL_DEVICE void find_plane_moments(const T *x, float *mean, float *squares, int64_t A, int64_t C,
                                  int64_t S, int64_t part, int by_block)
{
    hl_team team = hl_team_make(by_block);
    int64_t N = A * S, n_parts = count_parts(N, part);
    for (int64_t v = team.first; v < n_parts * C; v += team.step) {
        int64_t c = v % C, begin = v / C * part, end = begin + part < N ? begin + part : N;
        float sum = 0, distances = 0;
        for (int64_t k = begin + team.rank; k < end; k += team.size)
            sum += hl_read(x, (k / S * C + c) * S + k % S);
        float middle = hl_team_sum(team, sum) / (float)(end - begin);
        for (int64_t k = begin + team.rank; k < end; k += team.size) {
            float distance = hl_read(x, (k / S * C + c) * S + k % S) - middle;
            distances += distance * distance;
        }
        distances = hl_team_sum(team, distances);
        if (team.rank > 0) continue;
        mean[v] = middle;
        squares[v] = distances;
    }
}

/* The parts' mean and squares (parts, C), of `part` elements each, the last of the rest of N. */
HL_KERNEL(hl_cuda_moments_merge, 256, const float *part_mean, const float *part_squares,
          float *mean, float *var, int64_t N, int64_t C, int64_t part)
{
    int64_t n_parts = count_parts(N, part);
    HL_FOR_GRID(c, C)
    {
        float middle = part_mean[c], squares = part_squares[c];
        int64_t n = part < N ? part : N;
        for (int64_t p = 1; p < n_parts; p++) {
            int64_t more = n + part <= N ? part : N - n;
            float distance = part_mean[p * C + c] - middle, share = (float)more / (float)(n + more);
            middle += distance * share;
            squares += part_squares[p * C + c] + distance * distance * (float)n * share;
            n += more;
        }
        mean[c] = middle;
        var[c] = squares / (float)N;
    }
}

#define MOMENT_KERNELS(T, suffix)                                                                  \
    HL_KERNEL(hl_cuda_moments_rows_##suffix, 1024, const T *x, float *mean, float *var, int64_t R, \
              int64_t C, int by_block)                                                             \
    {                                                                                              \
        find_moments(x, mean, var, R, C, by_block);                                                \
    }                                                                                              \
    HL_KERNEL(hl_cuda_moments_cols_##suffix, COLUMN_THREADS, const T *x, float *mean,              \
              float *squares, int64_t N, int64_t C, int64_t part)                                  \
    {                                                                                              \
        find_column_moments(x, mean, squares, N, C, part);                                         \
    }                                                                                              \
    HL_KERNEL(hl_cuda_moments_planes_##suffix, 1024, const T *x, float *mean, float *squares,      \
              int64_t A, int64_t C, int64_t S, int64_t part, int by_block)                         \
    {                                                                                              \
        find_plane_moments(x, mean, squares, A, C, S, part, by_block);                             \
    }
HL_FLOAT_TYPES(MOMENT_KERNELS)
