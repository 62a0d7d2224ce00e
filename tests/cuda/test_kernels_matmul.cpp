/* Plain matrix products against fp64 of the same rounded operands. */
#include <deque>

#include "ir/dtype.h"
#include "kernels/cuda/matmul.h"
#include "tests/cuda/kernel_test.h"

struct matmul_case {
    int64_t batches, M, N, K;
    int trans_a, trans_b;
    int64_t pad;                /* of the leading dims: rows that are not whole 16 bytes */
    bool has_bias, relu, one_b; /* one_b: all batches share b */
};
static const matmul_case cases[] = {
    {1, 1, 1, 1, 0, 0, 0, false, false, false},   {1, 65, 67, 33, 0, 0, 0, true, false, false},
    {1, 64, 64, 96, 0, 0, 0, true, true, false},  {1, 70, 130, 100, 0, 0, 4, false, true, false},
    {1, 33, 96, 65, 1, 0, 0, true, false, false}, {1, 96, 31, 40, 0, 1, 0, false, false, false},
    {1, 72, 40, 65, 1, 1, 8, true, false, false}, {3, 20, 17, 9, 0, 0, 0, true, false, true},
    {5, 8, 70, 32, 0, 1, 0, false, false, false}, {2, 5, 6, 0, 0, 0, 0, true, false, false},
    {1, 35, 40, 600, 1, 0, 0, true, true, false}, {1, 4, 5, 0, 0, 0, 0, true, false, false},
};

template <class T> static void test_matmul(const matmul_case &k)
{
    start_case("matmul %s %lldx %lldx%lldx%lld %s%s pad %lld", suffix<T>(), (long long)k.batches,
               (long long)k.M, (long long)k.N, (long long)k.K, k.trans_a ? "T" : "N",
               k.trans_b ? "T" : "N", (long long)k.pad);
    int64_t lda = (k.trans_a ? k.M : k.K) + k.pad, ldb = (k.trans_b ? k.K : k.N) + k.pad;
    int64_t a_size = lda * (k.trans_a ? k.K : k.M), b_size = ldb * (k.trans_b ? k.N : k.K);
    int64_t a_row = k.trans_a ? 1 : lda, a_k = k.trans_a ? lda : 1;
    int64_t b_k = k.trans_b ? 1 : ldb, b_col = k.trans_b ? ldb : 1;
    buffer<T> a(k.batches * a_size), b((k.one_b ? 1 : k.batches) * b_size);
    buffer<float> bias(k.N), c(k.batches * k.M * k.N), small(k.batches == 1 ? c.n : 0);
    buffer<hl_bf16> reduced(c.n);
    fill_random(a), fill_random(b), fill_random(bias);
    hl_cuda_layout a_batch = {}, b_batch;
    a_batch.n = a_batch.dim[0] = k.batches, a_batch.rank = 1, a_batch.stride[0] = a_size;
    b_batch = a_batch, b_batch.stride[0] = k.one_b ? 0 : b_size;
    unsigned blocks = (unsigned)(1 + k.M % 5); /* fewer than tiles, or more */
    const void *add = k.has_bias ? bias.get() : nullptr;
    unsigned threads = sizeof(T) == 4 ? HL_CUDA_MATMUL_F32_THREADS : HL_CUDA_MATMUL_REDUCED_THREADS;
    hl_cuda_matrix_product of = {k.M,   k.N,          k.K,          a_row,  a_k, b_k,
                                 b_col, HL_DTYPE_F32, HL_DTYPE_F32, k.relu, 0};
    hl_cuda_matrix_product rounded = of;
    rounded.c_dtype = HL_DTYPE_BF16;
    run_orders({&c, &reduced, &small}, [&] {
        LAUNCH(matmul, suffix<T>(), blocks, threads, {a.get(), b.get(), add, c.p, nullptr}, of,
               a_batch, b_batch);
        LAUNCH(matmul, suffix<T>(), blocks, threads, {a.get(), b.get(), add, reduced.p, nullptr},
               rounded, a_batch, b_batch);
        if (k.batches == 1)
            LAUNCH(matmul_small, suffix<T>(), blocks, HL_CUDA_MATMUL_SMALL_THREADS,
                   {a.get(), b.get(), add, small.p, nullptr}, of);
    });
    std::vector<double> want(c.n), size(c.n);
    for (int64_t i = 0; i < c.n; i++) {
        int64_t z = i / (k.M * k.N), row = i / k.N % k.M, col = i % k.N;
        double sum = k.has_bias ? bias[col] : 0, all = fabs(sum);
        for (int64_t p = 0; p < k.K; p++) {
            double v = number(a[z * a_size + row * a_row + p * a_k]) *
                       number(b[(k.one_b ? 0 : z * b_size) + p * b_k + col * b_col]);
            sum += v, all += fabs(v);
        }
        want[(size_t)i] = k.relu && sum < 0 ? 0 : sum;
        size[(size_t)i] = all;
    }
    auto bound = [&](int64_t i) { return (double)(k.K + 2) * 0x1p-24 * size[(size_t)i]; };
    check_close("c", c, [&](int64_t i) { return want[(size_t)i]; }, bound);
    check_close("c of small tiles", small, [&](int64_t i) { return want[(size_t)i]; }, bound);
    check_close("c in bf16", reduced, [&](int64_t i) { return want[(size_t)i]; }, bound);
}

/* Several weight gradients a^T b as one launch, each with sums of a's rows, of b's columns, or
 * none: one that is a tile, some that are more, fewer blocks than tiles among them. */
template <class T> static void test_list()
{
    static const int64_t sizes[][4] = {/* M, N, K, blocks */
                                       {3, 32, 100, 1},
                                       {130, 29, 77, 3},
                                       {70, 140, 64, 2},
                                       {64, 64, 333, 1}};
    enum { N = sizeof sizes / sizeof sizes[0] };
    start_case("list of products %s", suffix<T>());
    std::deque<buffer<T>> a, b; /* buffers stay where they are */
    std::deque<buffer<float>> c, sums;
    std::vector<memory *> outputs;
    hl_cuda_matmul_list_params params = {};
    params.n = N;
    for (int i = 0; i < N; i++) {
        int64_t M = sizes[i][0], n = sizes[i][1], K = sizes[i][2];
        int16_t which = (int16_t)(i % 3);
        a.emplace_back(K * M), b.emplace_back(K * n);
        fill_random(a.back()), fill_random(b.back());
        c.emplace_back(M * n);
        sums.emplace_back(which == HL_CUDA_SUMS_B ? n : M);
        params.of[i] = {M, n, K, 1, M, n, 1, HL_DTYPE_F32, HL_DTYPE_F32, 0, which};
        params.first_block[i + 1] = params.first_block[i] + (int32_t)sizes[i][3];
    }
    for (int i = 0; i < N; i++) {
        float *at = params.of[i].sums ? sums[(size_t)i].get() : nullptr;
        params.at.of[i] = {a[(size_t)i].get(), b[(size_t)i].get(), nullptr, c[(size_t)i].p, at};
        outputs.push_back(&c[(size_t)i]);
        if (at) outputs.push_back(&sums[(size_t)i]);
    }
    run_orders(outputs, [&] {
        launch(std::string("hl_cuda_matmul_list_") + suffix<T>(), (unsigned)params.first_block[N],
               HL_CUDA_MATMUL_SMALL_THREADS, params);
    });
    for (int i = 0; i < N; i++) {
        int64_t M = sizes[i][0], n = sizes[i][1], K = sizes[i][2];
        const buffer<T> &x = a[(size_t)i], &y = b[(size_t)i];
        auto product = [&](int64_t e, bool is_size) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) {
                double v = number(x[k * M + e / n]) * number(y[k * n + e % n]);
                sum += is_size ? fabs(v) : v;
            }
            return sum;
        };
        auto along = [&](int64_t e, bool is_size) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) {
                double v =
                    number(params.of[i].sums == HL_CUDA_SUMS_A ? x[k * M + e] : y[k * n + e]);
                sum += is_size ? fabs(v) : v;
            }
            return sum;
        };
        double eps = (double)(K + 2) * 0x1p-24;
        check_close(
            "c", c[(size_t)i], [&](int64_t e) { return product(e, false); },
            [&](int64_t e) { return eps * product(e, true); });
        if (params.of[i].sums)
            check_close(
                "sums", sums[(size_t)i], [&](int64_t e) { return along(e, false); },
                [&](int64_t e) { return eps * along(e, true); });
    }
}

static std::vector<uint64_t> take_digest(const buffer<float> &b)
{
    buffer<uint64_t> sums(HL_CUDA_DIGEST_BYTES / 8);
    run_orders({&sums}, [&] {
        LAUNCH_ONLY(digest, HL_CUDA_DIGEST_BLOCKS, HL_CUDA_DIGEST_THREADS,
                    {(const uint16_t *)(const void *)b.p, sums.get()}, 2 * b.n);
    });
    std::vector<uint64_t> taken;
    for (int64_t i = 0; i < sums.n; i++) taken.push_back(sums[i]);
    return taken;
}

/* One bit makes another digest, and so do two numbers that change places. */
static void test_digest()
{
    for (int64_t n : {1, 70, 5000, 20000}) {
        start_case("digest of %lld", (long long)n);
        buffer<float> b(n);
        fill_random(b);
        std::vector<uint64_t> first = take_digest(b);
        check("the same numbers have the same digest", take_digest(b) == first);
        for (int time = 0; time < 5; time++) {
            int64_t i = random_below(n), j = random_below(n);
            float kept = b[i];
            b[i] = nextafterf(kept, 2);
            check("a bit is in the digest", take_digest(b) != first);
            b[i] = b[j], b[j] = kept;
            check("places are in the digest", (take_digest(b) == first) == (b[i] == b[j]));
            b[j] = b[i], b[i] = kept;
        }
    }
}

int main()
{
    test_digest();
    for (const matmul_case &k : cases) {
        test_matmul<float>(k);
        if (has_bf16_mma()) test_matmul<hl_bf16>(k);
        test_matmul<hl_f16>(k);
    }
    test_list<float>();
    if (has_bf16_mma()) test_list<hl_bf16>();
    test_list<hl_f16>();
    return finish_tests("test_kernels_matmul");
}
