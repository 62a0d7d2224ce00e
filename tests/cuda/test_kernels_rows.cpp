/* Kernels on rows against fp64: softmax, cross-entropy, layer norm. */
#include "ir/control.h"
#include "ir/dtype.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/softmax.h"
#include "tests/cuda/kernel_test.h"

/* Rows, columns, threads a block, by_block, blocks. */
struct row_case {
    int64_t R, C;
    unsigned threads;
    int by_block;
    unsigned blocks;
};
static const row_case row_cases[] = {{1, 1, 32, 0, 1},     {3, 2, 64, 0, 2},   {5, 33, 96, 0, 1},
                                     {7, 10, 128, 0, 3},   {2, 257, 64, 1, 2}, {3, 1000, 128, 1, 2},
                                     {1, 4097, 256, 1, 1}, {11, 3, 32, 4, 1},  {9, 10, 64, 16, 1}};

/* A kernel for each number of values that a thread holds (HL_CUDA_ROW_KEEPS): run(the end of its
 * name), the same bits from each, whether the row fits or not. */
template <class F> static void run_keeps(std::initializer_list<memory *> outs, F run)
{
    std::vector<std::vector<unsigned char>> first;
    for (const char *keep : {"_x1", "_x4", "_x32"}) {
        run_orders(outs, [&] { run(keep); });
        size_t i = 0;
        for (memory *m : outs) {
            if (first.size() < outs.size())
                first.emplace_back(m->p, m->p + m->n_bytes);
            else if (m->n_bytes && memcmp(first[i].data(), m->p, m->n_bytes))
                FAIL("other bits of output %zu by %s", i, keep);
            i++;
        }
    }
}

struct softmax_row {
    double top = -INFINITY, sum = 0;
};
template <class T> static softmax_row make_row(const buffer<T> &x, int64_t r, int64_t C)
{
    softmax_row row;
    for (int64_t c = 0; c < C; c++) row.top = fmax(row.top, number(x[r * C + c]));
    for (int64_t c = 0; c < C; c++) row.sum += exp(number(x[r * C + c]) - row.top);
    return row;
}

template <class T> static void test_softmax(const row_case &k, double scale)
{
    int64_t R = k.R, C = k.C, n = R * C;
    buffer<T> x(n), y(n), log_y(n), dy(n), dx(n), dlog(n);
    fill_random(x, scale), fill_random(dy);
    if (C > 2) hl_write(x.get(), 0, -INFINITY); /* masked */
    start_case("softmax %s %lldx%lld %u threads", suffix<T>(), (long long)R, (long long)C,
               k.threads);
    std::string name = suffix<T>();
    run_keeps({&y, &log_y}, [&](const char *keep) {
        LAUNCH(softmax, name + keep, k.blocks, k.threads, {x.get(), y.get()}, R, C, k.by_block);
        LAUNCH(softmax, "log_" + name + keep, k.blocks, k.threads, {x.get(), log_y.get()}, R, C,
               k.by_block);
    });
    std::vector<softmax_row> rows;
    for (int64_t r = 0; r < R; r++) rows.push_back(make_row(x, r, C));
    auto log_p = [&](int64_t i) {
        return number(x[i]) - rows[(size_t)(i / C)].top - log(rows[(size_t)(i / C)].sum);
    };
    /* e^a has the relative error of a's rounding; the sum that of its C terms. */
    double gamma = (double)(C + 8) * 0x1p-24;
    check_close(
        "softmax", y, [&](int64_t i) { return exp(log_p(i)); },
        [&](int64_t i) {
            double p = exp(log_p(i));
            return p > 0 ? p * (gamma + 0x1p-24 * (fabs(log_p(i)) + 4)) : 0;
        });
    check_close("log_softmax", log_y, log_p,
                [&](int64_t i) { return gamma + 0x1p-23 * fabs(log_p(i)); });
    if (C > 2) hl_write(log_y.get(), 0, -1e4f); /* finite, to have a gradient */
    run_keeps({&dx, &dlog}, [&](const char *keep) {
        LAUNCH(softmax_grad, name + keep, k.blocks, k.threads, {dy.get(), y.get(), dx.get()}, R, C,
               k.by_block);
        LAUNCH(softmax_grad, "log_" + name + keep, k.blocks, k.threads,
               {dy.get(), log_y.get(), dlog.get()}, R, C, k.by_block);
    });
    std::vector<double> dot(R), total(R), size(R), all(R);
    for (int64_t i = 0; i < n; i++) {
        double a = number(dy[i]) * number(y[i]), b = number(dy[i]);
        dot[i / C] += a, size[i / C] += fabs(a), total[i / C] += b, all[i / C] += fabs(b);
    }
    check_close(
        "softmax_grad", dx, [&](int64_t i) { return number(y[i]) * (number(dy[i]) - dot[i / C]); },
        [&](int64_t i) {
            return number(y[i]) * (gamma * size[i / C] + 0x1p-22 * (1 + fabs(dot[i / C])));
        });
    check_close(
        "log_softmax_grad", dlog,
        [&](int64_t i) { return number(dy[i]) - exp(number(log_y[i])) * total[i / C]; },
        [&](int64_t i) {
            double e = exp(number(log_y[i]));
            return (gamma + 0x1p-22) * (e * all[i / C] * (1 + fabs(number(log_y[i]))) + 1);
        });
}

/* Rows with nothing, everything masked, infinities and NaN: as fp64 does it. */
static void test_softmax_edges()
{
    enum { C = 40 };
    const float inf = INFINITY, rows[5][3] = {{-inf, -inf, -inf},
                                              {inf, 0, 1},
                                              {NAN, 0, 1},
                                              {-inf, -inf, 2},
                                              {3e38f, -3e38f, 0}};
    for (int by_block = 0; by_block < 2; by_block++) {
        start_case("softmax of infinities and NaN, by_block %d", by_block);
        buffer<float> x(5 * C), y(5 * C);
        for (int64_t i = 0; i < x.n; i++) x[i] = rows[i / C][i % 3];
        run_keeps({&y}, [&](const char *keep) {
            LAUNCH(softmax, std::string("f32") + keep, 2, 64, {x.get(), y.get()}, 5, C, by_block);
        });
        std::vector<softmax_row> sums;
        for (int64_t r = 0; r < 5; r++) sums.push_back(make_row(x, r, C));
        check_close(
            "softmax", y,
            [&](int64_t i) {
                softmax_row s = sums[(size_t)(i / C)];
                return exp((double)x[i] - s.top) / s.sum;
            },
            [](int64_t) { return 1e-7; });
    }
    start_case("softmax without rows or columns");
    buffer<float> none(0);
    LAUNCH(softmax, "f32_x1", 1, 32, {none.get(), none.get()}, 0, 3, 0);
    LAUNCH(softmax, "f32_x1", 1, 64, {none.get(), none.get()}, 3, 0, 1);
}

/* ---- cross-entropy ---- */

struct loss_case {
    double smoothing;
    bool has_weight, is_shared;
};

template <class T, class I>
static void test_loss(const row_case &k, loss_case l, hl_dtype target_dtype)
{
    int64_t step = !l.is_shared; /* of the loss' gradient */
    int64_t N = k.R, C = k.C, ignored = target_dtype == HL_DTYPE_U8 ? 0 : -100;
    buffer<T> x(N * C), dx(N * C), w(C), loss(N), weight(N), dloss(N);
    buffer<I> target(N);
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    fill_random(x, 4), fill_random(dloss), fill_random(w, 0.4, 1);
    for (int64_t i = 0; i < N; i++) target[i] = (I)random_below(C > 200 ? 200 : C);
    if (N > 2) target[1] = (I)ignored;
    start_case("cross_entropy %s %lldx%lld %u threads, smoothing %g, weight %d, target %d",
               suffix<T>(), (long long)N, (long long)C, k.threads, l.smoothing, l.has_weight,
               (int)target_dtype);
    hl_cuda_loss_at in = {x.get(), target.p, l.has_weight ? w.get() : nullptr, control.get(),
                          hl_control_fault(2, 7)};
    hl_cuda_loss_rule rule = {N, C, ignored, (float)l.smoothing, (int32_t)target_dtype, k.by_block};
    std::string name = suffix<T>();
    run_keeps({&loss, &weight, &dx}, [&](const char *keep) {
        LAUNCH(cross_entropy, name + keep, k.blocks, k.threads, {in, loss.get(), weight.get()},
               rule);
        LAUNCH(cross_entropy_grad, name + keep, k.blocks, k.threads, {in, dloss.get(), dx.get()},
               rule, step);
    });
    check("no fault", control[0].error_code == 0);
    double s = (float)l.smoothing, all = 0, gamma = (double)(C + 16) * 0x1p-24;
    auto weigh = [&](int64_t c) { return l.has_weight ? number(w[c]) : 1.0; };
    for (int64_t c = 0; c < C; c++) all += weigh(c);
    std::vector<double> want(N), want_weight(N), want_dx(N * C);
    for (int64_t n = 0; n < N; n++) {
        int64_t t = (int64_t)target[n];
        softmax_row row = make_row(x, n, C);
        auto log_p = [&](int64_t c) { return number(x[n * C + c]) - row.top - log(row.sum); };
        if (t == ignored) continue;
        want_weight[n] = weigh(t);
        want[n] = -(1 - s) * weigh(t) * log_p(t);
        for (int64_t c = 0; c < C; c++) {
            double p = exp(log_p(c));
            want[n] -= s / (double)C * weigh(c) * log_p(c);
            want_dx[n * C + c] = number(dloss[n * step]) * ((1 - s) * weigh(t) * (p - (c == t)) +
                                                            s * (p * all - weigh(c)) / (double)C);
        }
    }
    check_close(
        "loss", loss, [&](int64_t i) { return want[i]; },
        [&](int64_t i) { return gamma * (16 + fabs(want[i])); });
    check_close(
        "weight", weight, [&](int64_t i) { return want_weight[i]; }, [](int64_t) { return 0; });
    check_close(
        "dlogits", dx, [&](int64_t i) { return want_dx[i]; }, [&](int64_t) { return gamma * 8; });
}

static void test_loss_fault()
{
    int64_t N = 6, C = 5;
    start_case("cross_entropy, a target that is no class");
    buffer<float> x(N * C), dx(N * C), loss(N), weight(N), dloss(N);
    buffer<int32_t> target(N);
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    fill_random(x), fill_random(dloss);
    for (int64_t i = 0; i < N; i++) target[i] = i == 4 ? 5 : 1;
    hl_cuda_loss_at in = {x.get(), target.p, nullptr, control.get(), hl_control_fault(2, 7)};
    hl_cuda_loss_rule rule = {N, C, -100, 0.1f, HL_DTYPE_I32, 0};
    LAUNCH(cross_entropy, "f32_x1", 2, 64, {in, loss.get(), weight.get()}, rule);
    check("code", control[0].error_code == hl_control_fault(2, 7));
    check("row", control[0].error_row == 4);
    check("value", control[0].error_value == 5);
    check("loss and weight are 0", loss[4] == 0 && weight[4] == 0 && loss[3] > 0);
    in.fault = hl_control_fault(1, 9);
    LAUNCH(cross_entropy_grad, "f32_x1", 2, 64, {in, dloss.get(), dx.get()}, rule, 1);
    check("the first one stays", control[0].error_code == hl_control_fault(2, 7));
    for (int64_t c = 0; c < C; c++) check("gradient is 0", dx[4 * C + c] == 0);
}

/* ---- layer norm ---- */

template <class T> static void test_layer_norm(const row_case &k, double shift, bool has_weight)
{
    int64_t R = k.R, C = k.C, n = R * C;
    start_case("layer_norm %s %lldx%lld %u threads, mean %g, weight %d", suffix<T>(), (long long)R,
               (long long)C, k.threads, shift, has_weight);
    buffer<T> x(n), dy(n);
    buffer<float> y(n), dx(n), weight(C), bias(C), mean(R), rstd(R), other(n);
    fill_random(x, 1, shift), fill_random(dy), fill_random(weight), fill_random(bias);
    widened<T> wide_x(x), wide_dy(dy);
    const float *w = has_weight ? weight.get() : nullptr, *b = has_weight ? bias.get() : nullptr;
    float eps = 1e-5f;
    auto run_of = [&](const memory &src, const std::string &variant, void *out) {
        LAUNCH(layer_norm, variant, k.blocks, k.threads, {src.p, w, b, out, mean.get(), rstd.get()},
               R, C, eps, k.by_block);
    };
    auto run_grad_of = [&](const memory &d, const memory &src, const std::string &variant,
                           void *out) {
        LAUNCH(layer_norm_grad, variant, k.blocks, k.threads,
               {d.p, src.p, mean.get(), rstd.get(), w, out}, R, C, k.by_block);
    };
    const std::string own = std::string(suffix<T>()) + "_";
    auto run = [&](const std::string &to, void *out) { run_of(x, own + to, out); };
    auto run_grad = [&](const std::string &to, void *out) {
        run_grad_of(dy, x, own + own + to, out);
    };
    run_orders({&y, &mean, &rstd, &dx}, [&] { run("f32", y.p), run_grad("f32", dx.p); });
    check_rounds<T>("y", y, run);
    check_rounds<T>("dx", dx, run_grad);
    run_of(wide_x, "f32_f32", other.p);
    check_same("y of x widened", other, y);
    run_grad_of(wide_dy, x, "f32_" + own + "f32", other.p);
    check_same("dx of dy widened", other, dx);
    run_grad_of(dy, wide_x, own + "f32_f32", other.p);
    check_same("dx of x widened", other, dx);
    check_rounds<T>("dx of dy widened", dx, [&](const std::string &to, void *out) {
        run_grad_of(wide_dy, x, "f32_" + own + to, out);
    });
    check_rounds<T>("dx of x widened", dx, [&](const std::string &to, void *out) {
        run_grad_of(dy, wide_x, own + "f32_" + to, out);
    });
    std::vector<double> m(R), s(R), g_mean(R), gz_mean(R);
    auto scaled = [&](int64_t i) {
        return number(dy[i]) * (has_weight ? number(weight[i % C]) : 1);
    };
    for (int64_t i = 0; i < n; i++) m[i / C] += number(x[i]) / (double)C;
    for (int64_t i = 0; i < n; i++)
        s[i / C] += (number(x[i]) - m[i / C]) * (number(x[i]) - m[i / C]) / (double)C;
    for (int64_t r = 0; r < R; r++) s[r] = 1 / sqrt(s[r] + eps);
    /* The gradient takes mean and rstd as they are stored. */
    auto z_of = [&](int64_t i) {
        return (number(x[i]) - number(mean[i / C])) * number(rstd[i / C]);
    };
    for (int64_t i = 0; i < n; i++) {
        g_mean[i / C] += scaled(i) / (double)C;
        gz_mean[i / C] += scaled(i) * z_of(i) / (double)C;
    }
    double gamma = (double)(C / k.threads + 40) * 0x1p-24, off = gamma * (1 + fabs(shift));
    check_close("mean", mean, [&](int64_t r) { return m[r]; }, [&](int64_t) { return off; });
    /* A mean that is off by e adds e^2 to the variance, and x - mean rounds by |x| eps. */
    check_close(
        "rstd", rstd, [&](int64_t r) { return s[r]; },
        [&](int64_t r) { return s[r] * (gamma + s[r] * s[r] * off * off + s[r] * off); });
    check_close(
        "y", y,
        [&](int64_t i) {
            return (number(x[i]) - m[i / C]) * s[i / C] * (has_weight ? number(weight[i % C]) : 1) +
                   (has_weight ? number(bias[i % C]) : 0);
        },
        [&](int64_t i) {
            double z = fabs(number(x[i]) - m[i / C]) * s[i / C], e = s[i / C] * off;
            return 2 * (e + z * (gamma + e)) + gamma;
        });
    check_close(
        "dx", dx,
        [&](int64_t i) {
            return number(rstd[i / C]) * (scaled(i) - g_mean[i / C] - z_of(i) * gz_mean[i / C]);
        },
        [&](int64_t i) {
            double e = number(rstd[i / C]) * 0x1p-24 * (1 + fabs(shift));
            return 8 * number(rstd[i / C]) * (gamma + e) * (1 + fabs(z_of(i)));
        });
}

template <class T> static void test_type()
{
    for (const row_case &k : row_cases) {
        test_layer_norm<T>(k, 0, true);
        test_layer_norm<T>(k, 100, false);
        test_softmax<T>(k, 1);
        test_softmax<T>(k, 30);
        test_loss<T, int64_t>(k, {0, false, false}, HL_DTYPE_I64);
        test_loss<T, int32_t>(k, {0.1, false, true}, HL_DTYPE_I32);
        test_loss<T, int16_t>(k, {0, true, true}, HL_DTYPE_I16);
        test_loss<T, uint8_t>(k, {0.25, true, false}, HL_DTYPE_U8);
    }
}

int main()
{
    test_type<float>();
    test_type<hl_bf16>();
    test_type<hl_f16>();
    test_softmax_edges();
    test_loss_fault();
    return finish_tests("test_kernels_rows");
}
