/* Cholesky factors, triangular systems and connectionist temporal classification, alone: the same
 * bits in every order of threads and with panels in shared memory or beside it, against fp64. */
#include "ir/dtype.h"
#include "kernels/cuda/ctc.h"
#include "kernels/cuda/linalg.h"
#include "tests/cuda/kernel_test.h"

enum { THREADS = 64, FAULT = 77 };

/* Symmetric, diagonally dominant. */
static void fill_positive(const buffer<float> &a, int64_t n)
{
    fill_random(a);
    for (int64_t i = 0; i < a.n; i++) {
        int64_t m = i / (n * n), r = i / n % n, c = i % n;
        if (r == c) a[i] = (float)n + 1;
        if (r < c) a[i] = a[(m * n + c) * n + r];
    }
}

static double multiply_row(const float *l, int64_t n, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += (double)l[i * n + k] * l[j * n + k];
    return sum;
}

static void factor(const buffer<float> &a, const buffer<float> &out, const buffer<float> *panel,
                   const buffer<hl_control> &control, int64_t n)
{
    hl_cuda_cholesky_params p = {
        {a.get(), out.get(), panel ? panel->get() : nullptr, control.get(), FAULT},
        n,
        a.n / (n * n)};
    size_t bytes = panel ? 0 : (size_t)(n * HL_CUDA_PANEL_STRIDE) * sizeof(float);
    launch_grid("hl_cuda_cholesky", {2, 1, 1}, THREADS, bytes, p);
}

static void test_cholesky(int64_t batch, int64_t n)
{
    start_case("cholesky of %d of %d", (int)batch, (int)n);
    buffer<float> a(batch * n * n), l(a.n), beside(a.n), panel(batch * n * HL_CUDA_PANEL_STRIDE);
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    fill_positive(a, n);
    run_orders({&l}, [&] { factor(a, l, nullptr, control, n); });
    run_orders({&beside}, [&] { factor(a, beside, &panel, control, n); });
    check_same("a panel beside shared memory", beside, l);
    check_close(
        "L L^T", a,
        [&](int64_t i) { return multiply_row(&l[i / (n * n) * n * n], n, i / n % n, i % n); },
        [&](int64_t) { return (double)(n + 2) * (double)(n + 1) * 0x1p-23; });
    check("no fault", control[0].error_code == 0);
    float *last = &a[(batch * n - 1) * n + n - 1];
    *last = -3;
    factor(a, l, nullptr, control, n);
    check("fault", control[0].error_code == FAULT && control[0].error_row == batch * n - 1 &&
                       hl_control_bits_number(control[0].error_value) <= -3);
    check("no factor", isnan(l[l.n - 1]) && isnan(l[l.n - n * n]));
}

static void test_solve(int64_t n, int64_t K, bool from_top, bool trans, bool unit)
{
    start_case("solve %d by %d, %d %d %d", (int)n, (int)K, from_top, trans, unit);
    buffer<float> a(2 * n * n), b(2 * n * K), x(b.n);
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    fill_random(a, 1.0 / (double)n);
    fill_random(b);
    for (int64_t i = 0; i < 2 * n; i++) a[i * n + i % n] = unit ? NAN : 2;
    int64_t strips = (K + HL_CUDA_STRIP - 1) / HL_CUDA_STRIP;
    run_orders({&x}, [&] {
        LAUNCH_ONLY(triangular_solve, 3, THREADS, {a.get(), b.get(), x.get(), control.get(), FAULT},
                    n, K, 2, strips, from_top, trans, unit);
    });
    auto product = [&](int64_t i) {
        int64_t m = i / (n * K), r = i / K % n, k = i % K;
        double sum = (unit ? 1.0 : 2.0) * x[i];
        for (int64_t c = 0; c < n; c++) {
            bool is_read = from_top ? c < r : c > r;
            const float *row = &a[m * n * n];
            if (is_read)
                sum += (double)(trans ? row[c * n + r] : row[r * n + c]) * x[(m * n + c) * K + k];
        }
        return sum;
    };
    check_close("a x", b, product, [&](int64_t) { return (double)(n + 2) * 8 * 0x1p-23; });
    check("no fault", control[0].error_code == 0);
    if (unit) return;
    a[n * n + (n - 1) * n + n - 1] = 0;
    LAUNCH_ONLY(triangular_solve, 3, THREADS, {a.get(), b.get(), x.get(), control.get(), FAULT}, n,
                K, 2, strips, from_top, trans, unit);
    check("fault", control[0].error_code == FAULT && control[0].error_row == 2 * n - 1);
}

/* Paths of every length, so that sums over all of them are known: uniform probabilities of C
 * classes at T times, and one target, which stands in T (T + 1) / 2 runs. */
static void test_ctc(int64_t T, int64_t N, int64_t C)
{
    start_case("ctc of %d times, %d classes", (int)T, (int)C);
    buffer<float> x(T * N * C), loss(N), alpha(N * T * 3), dloss(N), rows(N * 9), grad(x.n);
    buffer<int64_t> target(N), times(N), counts(N);
    buffer<int32_t> chain(N);
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    for (int64_t i = 0; i < x.n; i++) x[i] = -logf((float)C);
    for (int64_t n = 0; n < N; n++)
        target[n] = 1 + n % (C - 1), times[n] = T, counts[n] = 1, dloss[n] = 1;
    hl_cuda_ctc_rule rule = {T, N, C, 1, 0, HL_DTYPE_I64, HL_DTYPE_I64, HL_DTYPE_I64, 0};
    hl_cuda_ctc_at in = {x.get(), target.get(), times.get(), counts.get(), control.get(), FAULT};
    run_orders({&loss, &alpha},
               [&] { LAUNCH_ONLY(ctc_loss, 2, THREADS, {in, loss.get(), alpha.get()}, rule); });
    run_orders({&grad}, [&] {
        LAUNCH_ONLY(ctc_loss_grad, 2, THREADS,
                    {in, dloss.get(), alpha.get(), rows.get(), chain.get(), grad.get()}, rule);
    });
    double runs = (double)(T * (T + 1)) / 2;
    check_close(
        "loss", loss, [&](int64_t) { return (double)T * log((double)C) - log(runs); },
        [&](int64_t) { return 1e-6 * (double)(T * T); });
    check_close(
        "gradient", grad,
        [&](int64_t i) {
            int64_t t = i / (N * C), n = i / C % N, c = i % C;
            double through = (double)((t + 1) * (T - t)) / runs;
            double share = c == target[n] ? through : c == 0 ? 1 - through : 0;
            return 1 / (double)C - share;
        },
        [&](int64_t) { return 1e-6 * (double)(T * T); });
    target[N - 1] = 0;
    LAUNCH_ONLY(ctc_loss, 2, THREADS, {in, loss.get(), alpha.get()}, rule);
    check("fault", control[0].error_code == FAULT && control[0].error_row == 3 * (N - 1) + 2 &&
                       control[0].error_value == 0);
}

int main()
{
    static const int64_t sizes[] = {1, 5, 16, 17, 40};
    for (int64_t n : sizes) test_cholesky(1 + n % 3, n);
    for (int64_t n : sizes)
        for (int form = 0; form < 8; form++)
            test_solve(n, form % 2 ? 1 : 39, form & 1, form & 2, form & 4);
    test_ctc(1, 1, 2);
    test_ctc(9, 3, 5);
    test_ctc(20, 2, 70);
    return finish_tests("test_kernels_solve");
}
