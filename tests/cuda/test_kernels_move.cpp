/* Kernels that move elements: strided copies, transposition, padding; indexed reading, writing and
 * adding. Exact: integers, or sums of small integers. */
#include <sys/mman.h>

#include "ir/control.h"
#include "ir/dtype.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/index.h"
#include "tests/cuda/kernel_test.h"

typedef std::vector<int64_t> dims;

static int64_t count(const dims &d)
{
    int64_t n = 1;
    for (int64_t v : d) n *= v;
    return n;
}
static dims strides_of(const dims &d)
{
    dims s(d.size());
    int64_t n = 1;
    for (size_t i = d.size(); i-- > 0;) s[i] = n, n *= d[i];
    return s;
}
static hl_cuda_layout make_layout(const dims &d, const dims &s)
{
    hl_cuda_layout layout;
    memset(&layout, 0xFF, sizeof layout); /* what a kernel must not read */
    layout.n = count(d), layout.rank = (int32_t)d.size();
    for (size_t i = 0; i < d.size(); i++) layout.dim[i] = d[i], layout.stride[i] = s[i];
    return layout;
}
/* Offset of element i of an array of `d` at strides `s`. */
static int64_t offset(const dims &d, const dims &s, int64_t i)
{
    int64_t at = 0;
    for (size_t k = d.size(); k-- > 0; i /= d[k]) at += i % d[k] * s[k];
    return at;
}
template <class W> static void fill_words(const buffer<W> &b)
{
    for (int64_t i = 0; i < b.n; i++) b[i] = (W)random_bits();
}
/* The variant of kernels that move words. */
template <class W> static std::string bytes_of()
{
    return std::to_string(sizeof(W));
}

/* ---- copies ---- */

template <class W> static void test_copy_strided()
{
    struct view {
        dims shape, strides;
        int64_t first, n_src;
    };
    const view views[] = {
        {{4, 3, 5}, {1, 20, 4}, 0, 60},  /* a permutation of (3,5,4) */
        {{2, 3, 4}, {0, 1, 0}, 0, 3},    /* expand */
        {{3, 4}, {20, 3}, 2, 60},        /* every third of a row, from 2 on */
        {{5, 2, 3}, {6, -3, -1}, 5, 30}, /* flip */
        {{}, {}, 0, 1},                  /* a scalar */
        {{0, 3}, {3, 1}, 0, 1},
        {{2, 2, 2, 2, 2, 2, 2, 2}, {1, 2, 4, 8, 16, 32, 64, 128}, 0, 256},
    };
    for (const view &v : views) {
        start_case("strided copy of %zu bytes, %zu dims, first %lld", sizeof(W), v.shape.size(),
                   (long long)v.first);
        hl_cuda_layout at = make_layout(v.shape, v.strides);
        buffer<W> src(v.n_src), dst(at.n), back(v.n_src);
        fill_words(src);
        memset(back.p, 0, back.n_bytes);
        run_orders({&dst, &back}, [&] {
            LAUNCH(copy, "from_" + bytes_of<W>(), 2, 32, {src.get(), dst.get()}, v.first, at);
            if (v.strides.empty() || v.strides[0] != 0)
                LAUNCH(copy, "to_" + bytes_of<W>(), 2, 32, {dst.get(), back.get()}, v.first, at);
        });
        std::vector<W> want(v.n_src, 0);
        for (int64_t i = 0; i < at.n; i++) {
            int64_t from = v.first + offset(v.shape, v.strides, i);
            check("from", dst[i] == src[from]);
            want[(size_t)from] = src[from];
        }
        if (v.strides.empty() || v.strides[0] != 0)
            check("to", !memcmp(want.data(), back.p, back.n_bytes));
    }
}

template <class W> static void test_transpose(int64_t B, int64_t M, int64_t N)
{
    start_case("transpose of %zu bytes (%lld,%lld,%lld)", sizeof(W), (long long)B, (long long)M,
               (long long)N);
    buffer<W> src(B * M * N), dst(B * M * N);
    fill_words(src);
    run_orders({&dst}, [&] {
        LAUNCH(transpose, bytes_of<W>(), 3, HL_CUDA_TRANSPOSE_THREADS, {src.get(), dst.get()}, B, M,
               N);
    });
    bool is_right = true;
    for (int64_t i = 0; i < src.n; i++)
        is_right = is_right && dst[(i / (M * N) * N + i % N) * M + i / N % M] == src[i];
    check("every element", is_right);
}

static int64_t find_source(int mode, int64_t c, int64_t n)
{
    if (mode == 1) {
        if (n == 1) return 0;
        int64_t period = 2 * (n - 1), p = (c % period + period) % period;
        return p < n ? p : period - p;
    }
    if (mode == 2) return c < 0 ? 0 : c >= n ? n - 1 : c;
    if (mode == 3) return ((c % n) + n) % n;
    return c >= 0 && c < n ? c : -1;
}

static void test_pad(const dims &plain, const dims &pads, int mode)
{
    start_case("pad mode %d of %zu dims, %lld before", mode, plain.size(), (long long)pads[0]);
    hl_cuda_padding pad;
    memset(&pad, 0xFF, sizeof pad);
    pad.rank = (int32_t)plain.size(), pad.mode = mode;
    dims padded;
    for (size_t d = 0; d < plain.size(); d++) {
        padded.push_back(plain[d] + pads[2 * d] + pads[2 * d + 1]);
        pad.plain[d] = plain[d], pad.padded[d] = padded[d], pad.before[d] = pads[2 * d];
    }
    pad.n_plain = count(plain), pad.n_padded = count(padded);
    buffer<float> x(pad.n_plain), y(pad.n_padded), dy(pad.n_padded), dx(pad.n_plain);
    fill_random(x);
    for (int64_t i = 0; i < dy.n; i++) dy[i] = (float)random_below(9); /* sums are exact */
    run_orders({&y, &dx}, [&] {
        LAUNCH(pad, "4", 2, 32, {x.p, y.p}, pad, 7.5, HL_DTYPE_F32);
        LAUNCH_ONLY(pad_grad, 2, 32, {dy.get(), dx.get()}, pad);
    });
    std::vector<double> want(pad.n_plain);
    dims strides = strides_of(plain);
    for (int64_t i = 0; i < pad.n_padded; i++) {
        int64_t at = 0, rest = i;
        for (size_t d = plain.size(); d-- > 0; rest /= padded[d]) {
            int64_t c = find_source(mode, rest % padded[d] - pads[2 * d], plain[d]);
            at = c < 0 || at < 0 ? -1 : at + c * strides[d];
        }
        check("padded", y[i] == (at < 0 ? 7.5f : x[at]));
        if (at >= 0) want[(size_t)at] += dy[i];
    }
    for (int64_t i = 0; i < dx.n; i++) check("gradient", dx[i] == want[(size_t)i]);
}

/* ---- indexed ---- */

static hl_control *control; /* in a buffer of main's */
static void clear_control()
{
    memset(control, 0, sizeof *control);
}
#define FAULT hl_control_fault(5, 3)

/* Random indices below n; a wrong one at `bad` unless it is -1. */
template <class I> static void fill_index(const buffer<I> &index, int64_t n, int64_t bad)
{
    for (int64_t i = 0; i < index.n; i++) index[i] = (I)random_below(n);
    if (bad >= 0 && bad < index.n) index[bad] = (I)(bad % 2 ? -1 : n);
}
static void check_fault(int64_t bad, int64_t n)
{
    if (bad < 0) {
        check("no fault", control->error_code == 0);
        return;
    }
    check("fault", control->error_code == FAULT && control->error_row == bad &&
                       control->error_value == (bad % 2 ? -1 : n));
}

template <class W> static void test_select(int64_t O, int64_t A, int64_t I, int64_t n, int64_t bad)
{
    start_case("index_select of %zu bytes (%lld,%lld,%lld) by %lld, bad %lld", sizeof(W),
               (long long)O, (long long)A, (long long)I, (long long)n, (long long)bad);
    clear_control();
    buffer<W> x(O * A * I), out(O * n * I);
    buffer<int32_t> index(n);
    for (size_t i = 0; i < x.n_bytes; i++) x.p[i] = (unsigned char)random_bits();
    fill_index(index, A, bad);
    run_orders({&out}, [&] {
        LAUNCH(index_select, bytes_of<W>(), 2, 64, {{index.p, control, FAULT}, x.get(), out.get()},
               {A, HL_DTYPE_I32}, O, I, n);
    });
    check_fault(bad, A);
    const W zero = {};
    for (int64_t i = 0; i < out.n; i++) {
        int64_t row = i / I, k = index[row % n];
        const W *want = row % n == bad ? &zero : &x[(row / n * A + k) * I + i % I];
        check("element", !memcmp(&out[i], want, sizeof(W)));
    }
}

/* Shapes of x, index and src in an indexed access along an axis. */
struct along {
    dims x, index, src;
    size_t axis;
};
static const along alongs[] = {
    {{7}, {20}, {20}, 0},
    {{4, 9}, {3, 9}, {5, 9}, 0},
    {{4, 9, 3}, {4, 17, 2}, {4, 18, 3}, 1},
    {{2, 3, 1}, {2, 3, 40}, {2, 3, 40}, 2},
};
struct along_places {
    hl_cuda_layout at, from;
    int64_t axis_stride;
    dims x_strides, src_strides;
    explicit along_places(const along &a)
    {
        dims xs = strides_of(a.x);
        axis_stride = xs[a.axis];
        xs[a.axis] = 0;
        x_strides = xs, src_strides = strides_of(a.src);
        at = make_layout(a.index, x_strides), from = make_layout(a.index, src_strides);
    }
};

template <class W> static void test_gather_scatter(const along &a, int64_t bad)
{
    start_case("gather and scatter of %zu bytes along axis %zu, bad %lld", sizeof(W), a.axis,
               (long long)bad);
    int64_t n = count(a.index), n_axis = a.x[a.axis];
    along_places place(a);
    buffer<W> x(count(a.x)), src(count(a.src)), got(n), out(x.n);
    buffer<int64_t> index(n);
    buffer<int32_t> winner(x.n);
    fill_words(x), fill_words(src), fill_index(index, n_axis, bad);
    clear_control();
    run_orders({&got, &out}, [&] {
        hl_cuda_index_at read = {index.p, control, FAULT};
        hl_cuda_index_axis axis = {n_axis, HL_DTYPE_I64};
        LAUNCH(gather, bytes_of<W>(), 2, 32, {read, x.get(), got.get()}, axis, place.at,
               place.axis_stride);
        LAUNCH_ONLY(fill, 2, 32, {(uint32_t *)winner.p}, winner.n, 0xFFFFFFFFu);
        LAUNCH_ONLY(scatter_claim, 2, 32, {read, winner.get()}, axis, place.at, place.axis_stride);
        LAUNCH(scatter, bytes_of<W>(), 2, 32, {x.get(), src.get(), winner.get(), out.get()}, x.n,
               place.from);
    });
    check_fault(bad, n_axis);
    std::vector<W> want(x.get(), x.get() + x.n);
    for (int64_t i = 0; i < n; i++) {
        if (i == bad) {
            check("gathered 0", got[i] == 0);
            continue;
        }
        int64_t to = index[i] * place.axis_stride + offset(a.index, place.x_strides, i);
        check("gathered", got[i] == x[to]);
        want[(size_t)to] = src[offset(a.index, place.src_strides, i)];
    }
    check("scattered, the last wins", !memcmp(want.data(), out.p, out.n_bytes));
}

template <class W>
static void test_index_copy(int64_t O, int64_t A, int64_t I, int64_t n, int64_t bad)
{
    start_case("index_copy of %zu bytes", sizeof(W));
    clear_control();
    buffer<W> x(O * A * I), src(O * n * I), out(x.n);
    buffer<uint8_t> index(n);
    buffer<int32_t> winner(A);
    fill_words(x), fill_words(src), fill_index(index, A, bad);
    run_orders({&out}, [&] {
        LAUNCH_ONLY(fill, 1, 32, {(uint32_t *)winner.p}, winner.n, 0xFFFFFFFFu);
        LAUNCH_ONLY(index_claim, 2, 32, {{index.p, control, FAULT}, winner.get()}, {A, HL_DTYPE_U8},
                    n);
        LAUNCH(index_copy, bytes_of<W>(), 2, 32, {x.get(), src.get(), winner.get(), out.get()}, O,
               A, I, n);
    });
    std::vector<W> want(x.get(), x.get() + x.n);
    for (int64_t i = 0; i < src.n; i++) {
        int64_t row = i / I;
        if (row % n != bad) want[(size_t)((row / n * A + index[row % n]) * I + i % I)] = src[i];
    }
    check("the last wins", !memcmp(want.data(), out.p, out.n_bytes));
}

/* What is not written has to stay: out begins as the state. */
template <class W>
static void test_index_assign(int64_t O, int64_t A, int64_t I, int64_t n, int64_t bad)
{
    start_case("index_assign of %zu bytes", sizeof(W));
    clear_control();
    buffer<W> src(O * n * I), out(O * A * I);
    buffer<uint8_t> index(n);
    buffer<int32_t> winner(A);
    fill_words(src), fill_words(out), fill_index(index, A, bad);
    std::vector<W> want(out.get(), out.get() + out.n);
    run_orders({&out}, [&] {
        LAUNCH_ONLY(fill, 1, 32, {(uint32_t *)winner.p}, winner.n, 0xFFFFFFFFu);
        LAUNCH_ONLY(index_claim, 2, 32, {{index.p, control, FAULT}, winner.get()}, {A, HL_DTYPE_U8},
                    n);
        LAUNCH(index_assign, bytes_of<W>(), 2, 32,
               {{index.p, control, FAULT}, src.get(), winner.get(), out.get()}, {A, HL_DTYPE_U8}, O,
               A, I, n);
    });
    for (int64_t i = 0; i < src.n; i++) {
        int64_t row = i / I;
        if (row % n != bad) want[(size_t)((row / n * A + index[row % n]) * I + i % I)] = src[i];
    }
    check("rows are written, the last wins", !memcmp(want.data(), out.p, out.n_bytes));
}

/* Sorts (keys, values) of n pairs; keys are at most `most`. Leaves them in keys, values. */
static void launch_sort(buffer<uint32_t> &keys, buffer<int32_t> &values, int64_t most,
                        unsigned blocks)
{
    int64_t n = keys.n, n_tiles = (n + HL_CUDA_SORT_TILE - 1) / HL_CUDA_SORT_TILE;
    buffer<uint32_t> other(n), counts(HL_CUDA_SORT_DIGITS * n_tiles), sums(HL_CUDA_SORT_DIGITS);
    buffer<int32_t> other_values(n);
    const uint32_t *totals = n_tiles > 1 ? sums.get() : counts.get();
    for (int shift = 0; n > 0 && shift < 32 && most >> shift > 0; shift += 8) {
        LAUNCH_ONLY(sort_count, blocks, HL_CUDA_SORT_THREADS, {keys.get(), counts.get()}, n, shift);
        if (n_tiles > 1)
            LAUNCH_ONLY(sort_scan, 3 * blocks, HL_CUDA_SORT_THREADS, {counts.get(), sums.get()},
                        n_tiles);
        LAUNCH_ONLY(
            sort_move, blocks, HL_CUDA_SORT_THREADS,
            {keys.get(), values.get(), other.get(), other_values.get(), counts.get(), totals}, n,
            shift);
        memcpy(keys.p, other.p, keys.n_bytes);
        memcpy(values.p, other_values.p, values.n_bytes);
    }
}

/* Adds runs of sorted pairs: rows of src by `from`, src_step apart along O. Whether runs are cut or
 * not, the same kernels. */
template <class T>
static void launch_add(const char *type, const buffer<uint32_t> &keys,
                       const buffer<int32_t> &values, const T *src, const buffer<T> &out,
                       const hl_cuda_runs &runs, const hl_cuda_layout &from, int64_t src_step,
                       unsigned blocks)
{
    int64_t n_segments = (runs.n >> runs.segment_bits) + 1;
    buffer<uint64_t> parts(n_segments * HL_CUDA_SEGMENT_PARTS * runs.O * runs.I);
    LAUNCH(add_runs, type, blocks, 64, {keys.get(), values.get(), src, out.get(), parts.get()},
           runs, from, src_step);
    LAUNCH(merge_runs, type, blocks + 1, 32, {keys.get(), parts.get(), out.get()}, runs);
}

static void test_sort(int64_t n, int64_t most, unsigned blocks)
{
    start_case("stable sort of %lld keys up to %lld, %u blocks", (long long)n, (long long)most,
               blocks);
    buffer<uint32_t> keys(n);
    buffer<int32_t> values(n);
    for (int64_t i = 0; i < n; i++) {
        keys[i] = (uint32_t)random_below(most + 1);
        values[i] = (int32_t)i;
    }
    std::vector<uint32_t> before(keys.get(), keys.get() + n);
    run_orders({&keys, &values}, [&] { launch_sort(keys, values, most, blocks); });
    bool is_sorted = true;
    for (int64_t i = 0; i < n; i++) {
        is_sorted =
            is_sorted && values[i] >= 0 && values[i] < n && keys[i] == before[(size_t)values[i]];
        if (i > 0)
            is_sorted = is_sorted && (keys[i - 1] < keys[i] ||
                                      (keys[i - 1] == keys[i] && values[i - 1] < values[i]));
    }
    check("sorted, equal ones in their order, each with its value", is_sorted);
}

/* Rows of src added at an index; T's sums here are exact. */
template <class T>
static void test_index_add(const char *type, int64_t O, int64_t A, int64_t I, int64_t n,
                           int64_t bad, int segment_bits)
{
    start_case("index_add %s (%lld,%lld,%lld) by %lld, segments of %d", type, (long long)O,
               (long long)A, (long long)I, (long long)n, 1 << segment_bits);
    clear_control();
    buffer<T> x(O * A * I), src(O * n * I), out(x.n);
    buffer<int64_t> index(n);
    buffer<uint32_t> keys(n);
    buffer<int32_t> values(n);
    for (int64_t i = 0; i < x.n; i++) x[i] = (T)random_below(10);
    for (int64_t i = 0; i < src.n; i++) src[i] = (T)(random_below(10) - 4);
    fill_index(index, A, bad);
    run_orders({&out}, [&] {
        LAUNCH_ONLY(index_keys, 2, 64, {{index.p, control, FAULT}, keys.get(), values.get()},
                    {A, HL_DTYPE_I64}, n);
        launch_sort(keys, values, A, 2);
        memcpy(out.p, x.p, x.n_bytes);
        launch_add<T>(type, keys, values, src.get(), out, {n, O, A, I, segment_bits},
                      make_layout({n}, {I}), n * I, 3);
    });
    check_fault(bad, A);
    std::vector<T> want(x.get(), x.get() + x.n);
    for (int64_t i = 0; i < src.n; i++) {
        int64_t row = i / I;
        if (row % n != bad) {
            T &to = want[(size_t)((row / n * A + index[row % n]) * I + i % I)];
            to = (T)(to + src[i]);
        }
    }
    check("sums", !memcmp(want.data(), out.p, out.n_bytes));
    if (!std::is_same<T, float>::value) return;
    memcpy(out.p, x.p, x.n_bytes);
    LAUNCH_ONLY(index_add_atomic, 3, 64,
                {{index.p, control, FAULT}, (const float *)src.p, (float *)out.p},
                {A, HL_DTYPE_I64}, O, I, n);
    check("sums by atomics", !memcmp(want.data(), out.p, out.n_bytes));
}

/* Both kinds of segments: as launches have them at the least, and such that nearly all runs are
 * cut.
 */
template <class T>
static void test_index_add(const char *type, int64_t O, int64_t A, int64_t I, int64_t n,
                           int64_t bad)
{
    for (int segment_bits : {2, 6, 20}) test_index_add<T>(type, O, A, I, n, bad, segment_bits);
}

/* The order of addition is the index's, segment by segment of the sorted pairs: numbers whose sum
 * depends on it, and on where the first addition begins. */
static void test_add_order(int segment_bits)
{
    start_case("index_add in index order, segments of %d", 1 << segment_bits);
    enum { COUNT = 3000, TARGETS = 4 };
    const int64_t ends[TARGETS] = {1000, 1010, 1011, COUNT}; /* of the runs */
    buffer<float> src(COUNT), out(TARGETS), x(TARGETS);
    buffer<uint32_t> keys(COUNT);
    buffer<int32_t> values(COUNT);
    fill_random(src), fill_random(x);
    std::vector<std::vector<int64_t>> places(TARGETS);
    for (int64_t i = 0; i < COUNT; i++) {
        int target = 0;
        while (ends[target] <= i * 7 % COUNT) target++;
        places[(size_t)target].push_back(i);
    }
    run_orders({&out, &keys, &values}, [&] {
        for (size_t t = 0; t < TARGETS; t++)
            for (int64_t i : places[t]) keys[i] = (uint32_t)t, values[i] = (int32_t)i;
        memcpy(out.p, x.p, x.n_bytes);
        launch_sort(keys, values, TARGETS, 2);
        launch_add<float>("f32", keys, values, src.get(), out, {COUNT, 1, TARGETS, 1, segment_bits},
                          make_layout({COUNT}, {1}), 0, 2);
    });
    for (size_t t = 0; t < TARGETS; t++) {
        int64_t first = t ? ends[t - 1] : 0, last = ends[t] - 1;
        bool is_cut = first >> segment_bits != last >> segment_bits;
        float want = x[(int64_t)t], part = 0;
        for (int64_t q = first; q <= last; q++) {
            float v = src[places[t][(size_t)(q - first)]];
            bool begins = q == first || q >> segment_bits != (q - 1) >> segment_bits;
            if (is_cut && begins && q > first) want += part;
            if (is_cut)
                part = begins ? v : part + v;
            else
                want += v;
        }
        if (is_cut) want += part;
        check("the same bits as one after another", out[(int64_t)t] == want);
    }
}

static void test_scatter_add(const along &a, int64_t bad)
{
    start_case("scatter_add along axis %zu, bad %lld", a.axis, (long long)bad);
    int64_t n = count(a.index), n_axis = a.x[a.axis];
    along_places place(a);
    buffer<hl_bf16> x(count(a.x)), src(count(a.src)), out(x.n);
    buffer<int16_t> index(n);
    buffer<uint32_t> keys(n);
    buffer<int32_t> values(n);
    for (int64_t i = 0; i < x.n; i++) hl_write(x.get(), i, (float)random_below(4));
    for (int64_t i = 0; i < src.n; i++) hl_write(src.get(), i, (float)(random_below(5) - 2));
    fill_index(index, n_axis, bad);
    clear_control();
    run_orders({&out}, [&] {
        LAUNCH_ONLY(scatter_keys, 2, 32, {{index.p, control, FAULT}, keys.get(), values.get()},
                    {n_axis, HL_DTYPE_I16}, place.at, place.axis_stride, x.n);
        launch_sort(keys, values, x.n, 2);
        memcpy(out.p, x.p, x.n_bytes);
        launch_add<hl_bf16>("bf16", keys, values, src.get(), out, {n, 1, x.n, 1, 3}, place.from, 0,
                            2);
    });
    check_fault(bad, n_axis);
    std::vector<double> want(x.n);
    for (int64_t i = 0; i < x.n; i++) want[(size_t)i] = number(x[i]);
    for (int64_t i = 0; i < n; i++)
        if (i != bad)
            want[(size_t)(index[i] * place.axis_stride + offset(a.index, place.x_strides, i))] +=
                number(src[offset(a.index, place.src_strides, i)]);
    for (int64_t i = 0; i < x.n; i++) check("sum", number(out[i]) == want[(size_t)i]);
}

/* Memory that is there where it is touched: more of it than a test should take. */
static uint8_t *map_sparse(size_t bytes)
{
#ifdef HL_TEST_GPU
    open_gpu();
    return (uint8_t *)hl_gpu_alloc(bytes);
#else
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : (uint8_t *)p;
#endif
}
static void unmap_sparse(uint8_t *p, size_t bytes)
{
#ifdef HL_TEST_GPU
    (void)bytes;
    hl_gpu_free(p);
#else
    munmap(p, bytes);
#endif
}

/* Few indices, but one of their sources lies beyond 2^31 elements: rows of a larger array's. */
static void test_far_source()
{
    start_case("scatter_add of a source beyond 2^31");
    const int64_t COLUMNS = (INT64_C(1) << 31) + 9;
    size_t bytes = (size_t)COLUMNS + 2;
    uint8_t *src = map_sparse(bytes);
    check("memory", src != NULL);
    if (!src) return;
    src[0] = 3, src[1] = 5, src[COLUMNS] = 4, src[COLUMNS + 1] = 6;
    buffer<uint8_t> out(4);
    buffer<int64_t> index(4);
    buffer<uint32_t> keys(4);
    buffer<int32_t> values(4);
    for (int64_t i = 0; i < 4; i++) index[i] = i / 2, out[i] = (uint8_t)(10 * i);
    clear_control();
    hl_cuda_layout at = make_layout({2, 2}, {0, 1}), from = make_layout({2, 2}, {COLUMNS, 1});
    LAUNCH_ONLY(scatter_keys, 1, 32, {{index.p, control, FAULT}, keys.get(), values.get()},
                {2, HL_DTYPE_I64}, at, 2, 4);
    launch_add<uint8_t>("u8", keys, values, src, out, {4, 1, 4, 1, 6}, from, 0, 1);
    check("sums", out[0] == 3 && out[1] == 15 && out[2] == 24 && out[3] == 36);
    unmap_sparse(src, bytes);
}

/* Two parts of one batch: converted rows, and rows as they are, of so many bytes each; or windows
 * of so many rows. */
template <class S, class D>
static void test_batch(hl_dtype from, hl_dtype to, int64_t bad, int64_t row_bytes,
                       int64_t window = 1)
{
    start_case("batch_gather %d to %d, %lld rows of %lld bytes", (int)from, (int)to,
               (long long)window, (long long)row_bytes);
    enum { ROWS = 20, STEP = 7, B = 33 };
    int64_t n = ROWS - window + 1, I = STEP * window, taken_bytes = row_bytes * window;
    clear_control();
    buffer<S> x(ROWS * STEP);
    buffer<D> out(B * I);
    buffer<uint8_t> whole(ROWS * row_bytes), copies(B * taken_bytes);
    buffer<int64_t> index(B);
    for (int64_t i = 0; i < x.n; i++)
        x[i] = (S)(random_below(100) - (std::is_signed<S>::value ? 50 : 0));
    for (int64_t i = 0; i < whole.n; i++) whole[i] = (uint8_t)random_bits();
    fill_index(index, n, bad);
    hl_cuda_batch_gather_params params = {};
    params.at = {control, FAULT - 1, {x.p, index.p, out.p, whole.p, index.p, copies.p}};
    params.part[0] = {n, I, B, STEP, 0, from, HL_DTYPE_I64, to, 1};
    params.part[1] = {n,           taken_bytes,  B,           row_bytes, taken_bytes,
                      HL_DTYPE_U8, HL_DTYPE_I64, HL_DTYPE_U8, 1};
    params.n_parts = 2;
    run_orders({&out, &copies},
               [&] { launch_grid("hl_cuda_batch_gather", {2, 2, 1}, 64, 0, params); });
    check_fault(bad, n);
    for (int64_t i = 0; i < out.n; i++)
        check("element",
              (double)out[i] == (i / I == bad ? 0.0 : (double)x[index[i / I] * STEP + i % I]));
    for (int64_t i = 0; i < copies.n; i++)
        check("byte",
              copies[i] == (i / taken_bytes == bad
                                ? 0
                                : whole[index[i / taken_bytes] * row_bytes + i % taken_bytes]));
}

template <class W> static void test_words()
{
    test_copy_strided<W>();
    test_transpose<W>(1, 1, 1), test_transpose<W>(3, 40, 65), test_transpose<W>(1, 32, 33);
    for (const along &a : alongs) test_gather_scatter<W>(a, -1), test_gather_scatter<W>(a, 4);
    test_index_copy<W>(2, 9, 5, 30, -1), test_index_copy<W>(1, 200, 1, 40, 6);
    test_index_assign<W>(2, 9, 5, 30, -1), test_index_assign<W>(1, 200, 1, 40, 6);
    test_select<W>(1, 50, 7, 33, -1), test_select<W>(3, 5, 4, 11, 7);
}

static void test_all()
{
    buffer<hl_control> room(1);
    control = room.get();
    test_words<uint8_t>();
    test_words<uint16_t>();
    test_words<uint32_t>();
    test_words<uint64_t>();
    test_select<hl_word4>(1, 20, 3, 50, 4);
    for (int mode = 0; mode < 4; mode++) {
        test_pad({5, 4}, {2, 1, 3, 0}, mode);
        test_pad({7}, {4, 6}, mode);
        test_pad({2, 3, 4}, {0, 0, 1, 2, 2, 2}, mode);
    }
    test_pad({8, 6}, {-2, 3, -1, -2}, 0);
    test_sort(1, 1, 1), test_sort(1000, 3, 1), test_sort(5000, 255, 3);
    test_sort(2049, 70000, 2), test_sort(3000, 0xFFFFFFFF, 5), test_sort(4097, 256, 5);
    test_sort(300 * HL_CUDA_SORT_TILE + 5, 255, 40); /* more tiles than threads of the scan */
    test_index_add<float>("f32", 1, 30, 5, 200, -1);
    test_index_add<float>("f32", 3, 300, 2, 50, 6);
    test_index_add<float>("f32", 1, 1, 3, 2100, -1);
    test_index_add<int64_t>("i64", 2, 7, 3, 40, 5);
    test_index_add<int32_t>("i32", 1, 7, 33, 40, -1);
    test_index_add<int16_t>("i16", 1, 7, 3, 40, -1);
    test_index_add<int8_t>("i8", 1, 7, 3, 40, -1);
    test_index_add<uint8_t>("u8", 1, 7, 3, 40, -1);
    test_index_add<double>("f64", 2, 7, 3, 40, 3);
    test_index_add<float>("f32", 1, 2, 3, 128, -1); /* whole segments */
    test_index_add<float>("f32", 1, 3, 2, 1, -1), test_index_add<float>("f32", 1, 3, 2, 0, -1);
    for (int segment_bits : {3, 6, 12}) test_add_order(segment_bits);
    test_far_source();
    for (const along &a : alongs) test_scatter_add(a, -1), test_scatter_add(a, 5);
    test_batch<float, float>(HL_DTYPE_F32, HL_DTYPE_F32, -1, 32);
    test_batch<uint8_t, float>(HL_DTYPE_U8, HL_DTYPE_F32, 4, 24);
    test_batch<int64_t, int32_t>(HL_DTYPE_I64, HL_DTYPE_I32, -1, 28);
    test_batch<double, float>(HL_DTYPE_F64, HL_DTYPE_F32, 9, 6);
    test_batch<int16_t, double>(HL_DTYPE_I16, HL_DTYPE_F64, -1, 7);
    /* Windows of a length whose words are wider than a row's. */
    test_batch<float, float>(HL_DTYPE_F32, HL_DTYPE_F32, -1, 12, 4);
    test_batch<uint8_t, float>(HL_DTYPE_U8, HL_DTYPE_F32, 4, 16, 3);
    test_batch<double, float>(HL_DTYPE_F64, HL_DTYPE_F32, -1, 1, 20);
}

int main()
{
    test_all();
    return finish_tests("test_kernels_move");
}
