/* Kernels that sort rows and search in them: the same bits in every order of threads, in any grid,
 * against a stable sort of the standard library's. */
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/dtype.h"
#include "kernels/cuda/sort.h"
#include "tests/cuda/kernel_test.h"

enum { TILE = HL_CUDA_TILE_SORT, THREADS = HL_CUDA_TILE_SORT_THREADS };

/* NaN, infinities, zeros of both signs and ties among others. */
static double draw_element(int64_t i)
{
    static const double special[] = {NAN, -NAN, INFINITY, -INFINITY, 0, -0.0};
    return random_below(4) ? floor(8 * random_number()) : special[i % 6];
}
template <class T> static bool is_before(T a, T b)
{
    return a < b || (b != b && a == a);
}

/* The places of a row's elements in order. */
template <class T>
static std::vector<int64_t> sort_places(const T *row, int64_t n, bool is_descending)
{
    std::vector<int64_t> place((size_t)n);
    for (int64_t i = 0; i < n; i++) place[(size_t)i] = i;
    std::stable_sort(place.begin(), place.end(), [&](int64_t a, int64_t b) {
        return is_descending ? is_before(row[b], row[a]) : is_before(row[a], row[b]);
    });
    return place;
}

template <class T> static hl_dtype dtype_of()
{
    return std::is_same<T, float>::value     ? HL_DTYPE_F32
           : std::is_same<T, double>::value  ? HL_DTYPE_F64
           : std::is_same<T, int64_t>::value ? HL_DTYPE_I64
                                             : HL_DTYPE_I8;
}
template <class T> static uint64_t mask_of(bool is_descending)
{
    return !is_descending ? 0 : sizeof(T) == 8 ? UINT64_MAX : UINT32_MAX;
}

template <class T> static void fill_elements(const buffer<T> &x)
{
    for (int64_t i = 0; i < x.n; i++) {
        double value = draw_element(i);
        x[i] = std::is_floating_point<T>::value ? (T)value
               : std::isfinite(value)           ? (T)value
                                                : std::numeric_limits<T>::max();
    }
}

template <class T>
static void check_rows(const buffer<T> &x, const buffer<T> &values, const buffer<int64_t> &places,
                       int64_t R, int64_t N, int64_t k, bool is_descending)
{
    bool same_places = true, same_values = true;
    for (int64_t r = 0; r < R; r++) {
        std::vector<int64_t> want = sort_places(x.get() + r * N, N, is_descending);
        for (int64_t j = 0; j < k; j++) {
            same_places &= places[r * k + j] == want[(size_t)j];
            same_values &= !memcmp(&values[r * k + j], &x[r * N + want[(size_t)j]], sizeof(T));
        }
    }
    check("places in stable order", same_places);
    check("the elements that stood there", same_values);
}

/* One pass for rows of one tile, else one that leaves k of each tile and one that sorts those. */
template <class T>
static void test_tiles(int64_t R, int64_t N, int64_t k, int tile_bits, bool is_descending)
{
    start_case("tiles of 2^%d, %zu bytes, (%lld,%lld), k %lld, descending %d", tile_bits, sizeof(T),
               (long long)R, (long long)N, (long long)k, is_descending);
    const char *variant = sizeof(T) == 8 ? "64" : "32";
    int64_t tile = (int64_t)1 << tile_bits, n_tiles = (N + tile - 1) / tile;
    buffer<T> x(R * N), values(R * k);
    buffer<int64_t> places(R * k);
    buffer<hl_cuda_wide_entry> left(R * n_tiles * k);
    fill_elements(x);
    uint64_t mask = mask_of<T>(is_descending);
    int32_t bytes = (int32_t)sizeof(T);
    for (unsigned blocks = 1; blocks <= 3; blocks += 2) {
        run_orders({&values, &places, &left}, [&] {
            if (n_tiles == 1) {
                LAUNCH(sort_tiles, variant, blocks, THREADS,
                       {x.get(), nullptr, nullptr, values.get(), places.get()}, R, N, N, k, mask,
                       tile_bits, dtype_of<T>(), bytes);
                return;
            }
            LAUNCH(sort_tiles, variant, blocks, THREADS,
                   {x.get(), nullptr, left.get(), nullptr, nullptr}, R, N, N, k, mask, tile_bits,
                   dtype_of<T>(), bytes);
            LAUNCH(sort_tiles, variant, blocks, THREADS,
                   {x.get(), left.get(), nullptr, values.get(), places.get()}, R, N, n_tiles * k, k,
                   mask, 11, dtype_of<T>(), bytes);
        });
        check_rows(x, values, places, R, N, k, is_descending);
    }
}

/* Words of keys, and the results of a sort that the host makes of them. */
template <class T> static void test_radix(int64_t R, int64_t N, int64_t k, bool is_descending)
{
    start_case("words of %zu bytes, (%lld,%lld), k %lld, descending %d", sizeof(T), (long long)R,
               (long long)N, (long long)k, is_descending);
    int64_t n = R * N;
    buffer<T> x(n), values(R * k);
    buffer<uint32_t> keys(n);
    buffer<int32_t> from(n);
    buffer<int64_t> places(R * k);
    fill_elements(x);
    auto sort_word = [&](int word) {
        run_orders({&keys, &from}, [&] {
            LAUNCH_ONLY(sort_words, 3, 64, {x.get(), keys.get(), from.get()}, R, N,
                        mask_of<T>(is_descending), word, dtype_of<T>());
        });
        std::vector<std::pair<uint32_t, int32_t>> pairs;
        for (int64_t i = 0; i < n; i++) pairs.emplace_back(keys[i], from[i]);
        std::stable_sort(pairs.begin(), pairs.end(),
                         [](auto &a, auto &b) { return a.first < b.first; });
        for (int64_t i = 0; i < n; i++) from[i] = pairs[(size_t)i].second;
    };
    sort_word(HL_CUDA_SORT_LOW);
    if (sizeof(T) == 8) sort_word(HL_CUDA_SORT_HIGH);
    sort_word(HL_CUDA_SORT_ROW);
    run_orders({&values, &places}, [&] {
        LAUNCH_ONLY(sort_take, 2, 64, {x.get(), from.get(), values.get(), places.get()}, R, N, k,
                    (int32_t)sizeof(T));
    });
    check_rows(x, values, places, R, N, k, is_descending);
}

template <class T> static void test_search(int64_t R, int64_t N, int64_t M, int right)
{
    start_case("search, %zu bytes, %lld rows of %lld, %lld values, right %d", sizeof(T),
               (long long)R, (long long)N, (long long)M, right);
    buffer<T> rows(R * N), values(R * M);
    buffer<int32_t> out(R * M);
    fill_elements(rows), fill_elements(values);
    for (int64_t r = 0; r < R; r++)
        std::stable_sort(rows.get() + r * N, rows.get() + (r + 1) * N, is_before<T>);
    run_orders({&out}, [&] {
        LAUNCH_ONLY(searchsorted, 2, 64, {rows.get(), values.get(), out.p}, N, R * M, M,
                    dtype_of<T>(), HL_DTYPE_I32, right);
    });
    bool is_right = true;
    for (int64_t i = 0; i < R * M; i++) {
        const T *row = rows.get() + i / M * N;
        int64_t want = right ? std::upper_bound(row, row + N, values[i], is_before<T>) - row
                             : std::lower_bound(row, row + N, values[i], is_before<T>) - row;
        is_right &= out[i] == want;
    }
    check("as many as come before", is_right);
}

template <class T> static void test_type()
{
    for (int down = 0; down < 2; down++) {
        test_tiles<T>(1, 1, 1, 1, down), test_tiles<T>(5, 2, 2, 1, down);
        test_tiles<T>(150, 29, 29, 5, down), test_tiles<T>(40, 64, 7, 6, down);
        test_tiles<T>(9, 129, 129, 8, down), test_tiles<T>(3, 1000, 10, 10, down);
        test_tiles<T>(2, TILE, TILE, 11, down);
        test_tiles<T>(2, TILE + 1, 5, 11, down), test_tiles<T>(1, 3 * TILE - 7, 600, 11, down);
        test_radix<T>(3, 50, 50, down), test_radix<T>(1, 300, 7, down);
    }
    for (int right = 0; right < 2; right++) {
        test_search<T>(1, 0, 5, right), test_search<T>(1, 1, 9, right);
        test_search<T>(1, 100, 300, right), test_search<T>(4, 33, 20, right);
    }
}

int main()
{
    test_type<float>();
    test_type<double>();
    test_type<int64_t>();
    test_type<int8_t>();
    return finish_tests("test_kernels_sort");
}
