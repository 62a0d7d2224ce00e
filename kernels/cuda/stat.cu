/* Statistics of channels, in float64: parts of the rows by any number of blocks, then their fold.
 *
 * A block has a part of the rows and a pair of strips of channels (stat.h). It brings panels of
 * rows of both, less the shift, into shared memory, rows that do not count as zeros, and each
 * thread adds to the products of one tile in registers. Where there are fewer tiles than threads,
 * as many groups of threads as fit have every so many rows of a panel each, and are added in order
 * at the end. Extremes and sums of a strip are taken by the threads that read it for its pair with
 * itself: a thread's channels are the same in every row.
 *
 * The fold adds the parts in slices of every so many, and the slices in order: bits depend on the
 * shape alone.
 *
 * Launch: any grid; channel_parts HL_CUDA_STAT_THREADS threads at most, a multiple of 32 that is
 * the same for one shape, channel_fold HL_CUDA_STAT_THREADS. */
#include "kernels/cuda/stat.h"

enum {
    TILE = HL_CUDA_STAT_TILE,
    THREADS = HL_CUDA_STAT_THREADS,
    PANEL = HL_CUDA_STAT_PANEL,
    OUTPUTS = HL_CUDA_STAT_FOLD_OUTPUTS,
    COLUMNS = 2 /* channels of a strip that a thread reads: lane, lane + 32 */
};

template <class T> HL_DEVICE float read_number(const T *p, int64_t i)
{
    return hl_read(p, i);
}
HL_DEVICE double read_number(const double *p, int64_t i)
{
    return p[i];
}
template <class T> using number_of = decltype(read_number((const T *)nullptr, 0));

template <class V> HL_DEVICE V least(V a, V b)
{
    return a != a || a < b ? a : b;
}
template <class V> HL_DEVICE V greatest(V a, V b)
{
    return a != a || a > b ? a : b;
}
HL_DEVICE double plus(double a, double b)
{
    return a + b;
}

/* What a thread has taken of one channel. */
template <class V> struct channel {
    V lowest, highest;
    double sum, square;
};

/* How the threads of a block read rows of a strip: `lanes` neighbours have a row. */
struct reading {
    int width, lanes, lane, row, rows; /* this thread's first row, of so many at a time */
};
HL_DEVICE reading make_reading(int width)
{
    int lanes = 32, thread = hl_thread();
    while (lanes / 2 >= width) lanes /= 2;
    return {width, lanes, thread % lanes, thread / lanes, hl_threads() / lanes};
}

/* Rows [first, first + n) of a strip into the panel (n,width). */
template <class T>
HL_DEVICE void fill_panel(const hl_cuda_channel_parts_params &p, const reading &by, int64_t strip,
                          int64_t first, int n, double *panel)
{
    const T *x = (const T *)p.at.x;
    HL_UNROLL
    for (int j = 0; j < COLUMNS; j++) {
        int c = by.lane + 32 * j;
        int64_t at = strip * by.width + c;
        if (c >= by.width) break;
        bool is_there = at < p.cut.C;
        double shift = is_there ? p.at.shift[at] : 0.0;
        for (int r = by.row; r < n; r += by.rows) {
            bool counts = is_there && (!p.at.mask || p.at.mask[first + r]);
            double x_r = counts ? (double)read_number(x, (first + r) * p.cut.C + at) - shift : 0.0;
            panel[r * by.width + c] = x_r;
        }
    }
}

/* The same, and takes the rows that count in; the panel may be NULL. */
template <class T>
HL_DEVICE void take_panel(const hl_cuda_channel_parts_params &p, const reading &by, int64_t strip,
                          int64_t first, int n, double *panel,
                          channel<number_of<T>> (&taken)[COLUMNS], double *count)
{
    const T *x = (const T *)p.at.x;
    HL_UNROLL_BY(1)
    for (int r = by.row; r < n; r += by.rows) {
        bool counts = !p.at.mask || p.at.mask[first + r];
        *count += counts ? 1 : 0;
        HL_UNROLL
        for (int j = 0; j < COLUMNS; j++) {
            int c = by.lane + 32 * j;
            int64_t at = strip * by.width + c;
            if (c >= by.width) break;
            double distance = 0;
            if (counts && at < p.cut.C) {
                number_of<T> value = read_number(x, (first + r) * p.cut.C + at);
                channel<number_of<T>> &to = taken[j];
                distance = (double)value - p.at.shift[at];
                to.lowest = least(to.lowest, value);
                to.highest = greatest(to.highest, value);
                to.sum += distance;
                if (!panel) to.square = fma(distance, distance, to.square);
            }
            if (panel) panel[r * by.width + c] = distance;
        }
    }
}

/* Joins what the threads of a lane have, in order; threads below by.lanes get it. */
template <class V, class F> HL_DEVICE V join_rows(const reading &by, V *room, V value, F join)
{
    hl_barrier(); /* the last values are read */
    room[hl_thread()] = value;
    hl_barrier();
    if (hl_thread() >= by.lanes) return value;
    for (int i = hl_thread() + by.lanes; i < hl_threads(); i += by.lanes)
        value = join(value, (V)room[i]);
    return value;
}

template <class V>
HL_DEVICE void store_channels(const hl_cuda_stat_cut &cut, const reading &by, int64_t strip,
                              const channel<V> (&taken)[COLUMNS], double count, double *partial)
{
    HL_SHARED(double, room, THREADS);
    HL_SHARED(V, values, THREADS);
    int64_t n = hl_cuda_stat_channels(&cut);
    double *lowest = partial + 1 + strip * by.width, *highest = lowest + n, *sums = highest + n;
    count = join_rows<double>(by, room, count, plus);
    if (strip == 0 && hl_thread() == 0) *partial = count;
    HL_UNROLL
    for (int j = 0; j < COLUMNS; j++) {
        V low = join_rows<V>(by, values, taken[j].lowest, [](V a, V b) { return least(a, b); });
        V high =
            join_rows<V>(by, values, taken[j].highest, [](V a, V b) { return greatest(a, b); });
        double sum = join_rows<double>(by, room, taken[j].sum, plus);
        double square = join_rows<double>(by, room, taken[j].square, plus);
        int c = by.lane + 32 * j;
        if (hl_thread() >= by.lanes || c >= by.width) continue;
        lowest[c] = low, highest[c] = high, sums[c] = sum;
        if (!cut.products) sums[n + c] = square;
    }
}

/* i <= j of their place among those of n. */
HL_DEVICE void find_pair(int64_t place, int64_t n, int64_t *i, int64_t *j)
{
    int64_t row = 0;
    for (; place >= n - row; row++) place -= n - row;
    *i = row, *j = row + place;
}

/* Of this thread: its tile, and every so many rows of a panel. */
struct tile {
    int i, j, place, row, rows;
    bool is_there;
};
HL_DEVICE tile make_tile(int m, bool is_diagonal)
{
    int n = is_diagonal ? m * (m + 1) / 2 : m * m, thread = hl_thread();
    int rows = hl_threads() / n, place = thread % n;
    if (!is_diagonal) return {place / m, place % m, place, thread / n, rows, thread < n * rows};
    int64_t i, j;
    find_pair(place, m, &i, &j);
    return {(int)i, (int)j, place, thread / n, rows, thread < n * rows};
}

/* Adds n rows of the panels of both strips to the products of the tile. */
HL_DEVICE void add_tile(const tile &t, int m, const double *left, const double *right, int n,
                        double (&sum)[TILE * TILE])
{
    int step = t.rows * TILE * m;
    left += t.row * TILE * m + t.i, right += t.row * TILE * m + t.j;
    HL_UNROLL_BY(1)
    for (int r = t.row; r < n; r += t.rows, left += step, right += step) {
        double a[TILE], b[TILE];
        HL_UNROLL
        for (int k = 0; k < TILE; k++) a[k] = left[k * m], b[k] = right[k * m];
        HL_UNROLL
        for (int e = 0; e < TILE * TILE; e++) sum[e] = fma(a[e / TILE], b[e % TILE], sum[e]);
    }
}

/* The sums of all groups of threads, in order. */
HL_DEVICE void store_tile(const tile &t, int m, int n_tiles, const double (&sum)[TILE * TILE],
                          double *to)
{
    HL_SHARED(double, room, THREADS);
    HL_UNROLL
    for (int e = 0; e < TILE * TILE; e++) {
        hl_barrier(); /* the last sums are read */
        room[hl_thread()] = sum[e];
        hl_barrier();
        if (hl_thread() >= n_tiles) continue;
        double all = room[hl_thread()];
        for (int g = 1; g < t.rows; g++) all += room[hl_thread() + g * n_tiles];
        to[(int64_t)e * m * m + t.place] = all;
    }
}

template <class T> HL_DEVICE void find_parts(const hl_cuda_channel_parts_params &p)
{
    typedef number_of<T> V;
    HL_SHARED(double, left, PANEL);
    HL_SHARED(double, right, PANEL);
    const hl_cuda_stat_cut &cut = p.cut;
    int m = cut.m, width = TILE * m, n_rows = PANEL / width;
    reading by = make_reading(width);
    int64_t n_pairs = hl_cuda_stat_pairs(&cut);
    for (int64_t v = hl_block_x(); v < cut.n_parts * n_pairs; v += hl_blocks_x()) {
        int64_t pair = v % n_pairs, part = v / n_pairs, I = pair, J = pair;
        if (cut.products) find_pair(pair, cut.n_strips, &I, &J);
        bool is_diagonal = I == J;
        tile t = make_tile(m, is_diagonal);
        V most = hl_infinity();
        channel<V> taken[COLUMNS] = {{most, -most, 0, 0}, {most, -most, 0, 0}};
        double sum[TILE * TILE] = {}, count = 0;
        int64_t end = (part + 1) * cut.part < cut.R ? (part + 1) * cut.part : cut.R;
        for (int64_t first = part * cut.part; first < end; first += n_rows) {
            int n = end - first < n_rows ? (int)(end - first) : n_rows;
            hl_barrier(); /* the last panel is read */
            if (is_diagonal) {
                double *panel = left;
                take_panel<T>(p, by, I, first, n, cut.products ? panel : nullptr, taken, &count);
            } else {
                fill_panel<T>(p, by, I, first, n, left);
                fill_panel<T>(p, by, J, first, n, right);
            }
            hl_barrier();
            const double *beside = right;
            if (is_diagonal) beside = left;
            if (cut.products && t.is_there) add_tile(t, m, left, beside, n, sum);
        }
        double *partial = p.at.partials + part * hl_cuda_stat_partial(&cut);
        if (is_diagonal) store_channels(cut, by, I, taken, count, partial);
        if (cut.products)
            store_tile(t, m, is_diagonal ? m * (m + 1) / 2 : m * m, sum,
                       partial + hl_cuda_stat_at_products(&cut) +
                           pair * hl_cuda_stat_pair_size(&cut));
    }
}

#define PARTS(T, suffix)                                                                           \
    HL_CUDA_ENTRY_OF(channel_parts, suffix, HL_CUDA_STAT_THREADS, p)                               \
    {                                                                                              \
        find_parts<T>(p);                                                                          \
    }
HL_FLOAT_TYPES(PARTS)
PARTS(double, f64)

/* ---- the fold -------------------------------------------------------------------------------- */

/* Where the product of channels c and d is in a part's result: the same for d and c. */
HL_DEVICE int64_t find_product(const hl_cuda_stat_cut &cut, int64_t c, int64_t d)
{
    int64_t m = cut.m, width = TILE * m, at = hl_cuda_stat_at_products(&cut);
    if (c > d) {
        int64_t other = c;
        c = d, d = other;
    }
    int64_t I = c / width, J = d / width, a = c % width, b = d % width;
    int64_t i = a % m, j = b % m, k = a / m, l = b / m, place = i * m + j;
    if (I == J && i > j) {
        int64_t other = i;
        i = j, j = other;
        other = k, k = l, l = other;
    }
    if (I == J) place = hl_cuda_stat_pair(m, i, j);
    return at + hl_cuda_stat_pair(cut.n_strips, I, J) * hl_cuda_stat_pair_size(&cut) +
           (k * TILE + l) * m * m + place;
}

enum fold_kind { ADD, LEAST, GREATEST };

HL_DEVICE double fold_two(fold_kind kind, double a, double b)
{
    return kind == ADD ? a + b : kind == LEAST ? least(a, b) : greatest(a, b);
}

/* A block has OUTPUTS of all results, which stand one behind another: count, lowest, highest, sums,
 * products. */
HL_CUDA_ENTRY(channel_fold, HL_CUDA_STAT_THREADS, p)
{
    HL_SHARED(double, room, THREADS);
    const hl_cuda_stat_cut &cut = p.cut;
    int64_t C = cut.C, channels = hl_cuda_stat_channels(&cut), size = hl_cuda_stat_partial(&cut);
    int64_t n = 1 + 3 * C + (cut.products ? C * C : C);
    int lane = hl_thread() % OUTPUTS, slice = hl_thread() / OUTPUTS;
    int n_slices = hl_threads() / OUTPUTS;
    for (int64_t first = (int64_t)hl_block_x() * OUTPUTS; first < n;
         first += (int64_t)hl_blocks_x() * OUTPUTS) {
        bool is_there = first + lane < n;
        int64_t k = is_there ? first + lane - 1 : -1, array = k < 0 ? 0 : k / C, at = 0;
        fold_kind kind = k < 0 || array > 1 ? ADD : array == 0 ? LEAST : GREATEST;
        double *to = p.at.count;
        if (k >= 0 && k < 3 * C) {
            at = 1 + array * channels + k % C;
            to = (array == 0 ? p.at.lowest : array == 1 ? p.at.highest : p.at.sums) + k % C;
        } else if (k >= 0) {
            int64_t i = k - 3 * C;
            at =
                cut.products ? find_product(cut, i / C, i % C) : hl_cuda_stat_at_products(&cut) + i;
            to = p.at.products + i;
        }
        double start = kind == ADD ? 0.0 : kind == LEAST ? hl_infinity() : -hl_infinity();
        double all = start;
        for (int64_t part = slice; part < cut.n_parts; part += n_slices)
            all = fold_two(kind, all, p.at.partials[part * size + at]);
        hl_barrier(); /* the last slices are read */
        room[hl_thread()] = all;
        hl_barrier();
        if (slice > 0 || !is_there) continue;
        for (int s = 1; s < n_slices; s++) all = fold_two(kind, all, room[lane + s * OUTPUTS]);
        *to = all;
    }
}
