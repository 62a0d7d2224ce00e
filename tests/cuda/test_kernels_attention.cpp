/* Attention's kernels against fp64 of the same rounded operands, forward and backward. */
#include <float.h>

#include "base/rng.h"
#include "ir/dtype.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/params.h"
#include "tests/cuda/kernel_test.h"

enum masking {
    NONE,
    ROWS /* bool, hides all of some rows */,
    KEYS /* bool (B,1,1,S) */,
    ADDED,
    LARGE /* added, to all of a row, and beside it nothing is left of scores */
};

struct sizes {
    int64_t B, H, Hk, L, S, E, Ev;
    masking mask;
    bool is_causal, drops;
    int shift; /* elements by which operands lie off */
};
static const sizes cases[] = {
    {1, 1, 1, 1, 1, 1, 1, NONE, false, false, 0},
    {2, 3, 3, 5, 7, 4, 6, ADDED, true, true, 1},
    {1, 2, 1, 70, 90, 32, 32, NONE, true, false, 0},
    {2, 4, 2, 33, 20, 16, 16, KEYS, false, true, 0},
    {1, 1, 1, 130, 130, 64, 64, NONE, true, true, 0},
    {1, 2, 1, 65, 130, 40, 64, ROWS, false, true, 0},
    {1, 1, 1, 20, 75, 96, 17, ROWS, true, false, 0},
    {1, 1, 1, 90, 70, 128, 128, ADDED, false, false, 0},
    {1, 1, 1, 40, 50, 200, 256, NONE, true, true, 0},
    {1, 2, 1, 70, 150, 32, 32, LARGE, false, false, 0},
    {1, 1, 1, 70, 90, 64, 64, LARGE, true, true, 0},
};

enum { ATTEMPTED = 3, MICRO_ROW = 40 };
static const hl_rng_key key = {{123, 456}};
static const uint32_t threshold = 19661; /* three of ten are dropped */
static const double scale_kept = 65536.0 / (65536 - threshold);

template <class T> struct operands {
    const sizes n;
    buffer<T> q, k, v, dout;
    buffer<uint8_t> seen;
    buffer<float> added;
    buffer<hl_control> control;
    int64_t stride[4];

    static int64_t of_mask(const sizes &n)
    {
        return n.mask == ROWS ? n.L * n.S : n.mask == KEYS ? n.B * n.S : n.H * n.L * n.S;
    }
    explicit operands(const sizes &of)
        : n(of), q(n.B * n.H * n.L * n.E + 1), k(n.B * n.Hk * n.S * n.E + 1),
          v(n.B * n.Hk * n.S * n.Ev + 1), dout(n.B * n.H * n.L * n.Ev + 1),
          seen(n.mask == ROWS || n.mask == KEYS ? of_mask(n) : 0),
          added(n.mask >= ADDED ? of_mask(n) : 0), control(1), stride()
    {
        fill_random(q, 2), fill_random(k, 2), fill_random(v), fill_random(dout);
        fill_random(added);
        for (int64_t i = 0; n.mask == LARGE && i < added.n; i++)
            added[i] = i / n.S % 3 == 0 ? 0x1p90f : i / n.S % 3 == 1 ? -0x1p90f : -FLT_MAX;
        for (int64_t i = 0; i < seen.n; i++)
            seen[i] = random_below(3) > 0 && !(n.mask == ROWS && i / n.S % 3 == 1);
        memset(control.p, 0, control.n_bytes);
        control[0].attempted = ATTEMPTED, control[0].micro_row = MICRO_ROW;
        if (n.mask == ROWS) stride[2] = n.S, stride[3] = 1;
        if (n.mask == KEYS) stride[0] = n.S, stride[3] = 1;
        if (n.mask >= ADDED) stride[1] = n.L * n.S, stride[2] = n.S, stride[3] = 1;
    }
    const void *mask() const
    {
        return n.mask == NONE ? nullptr : n.mask >= ADDED ? (void *)added.p : (void *)seen.p;
    }
    hl_cuda_attention describe(int64_t n_tiles) const
    {
        hl_cuda_attention a = {};
        a.B = n.B, a.H = n.H, a.L = n.L, a.E = n.E, a.Hk = n.Hk, a.S = n.S, a.Ev = n.Ev;
        a.n_tiles = n_tiles;
        memcpy(a.mask_stride, stride, sizeof stride);
        a.scale = 0.5f, a.drop_scale = n.drops ? (float)scale_kept : 1;
        a.key[0] = key.word[0], a.key[1] = key.word[1];
        a.threshold = threshold;
        a.is_causal = n.is_causal, a.has_mask = n.mask != NONE, a.mask_is_bool = n.mask < ADDED;
        a.drops = n.drops;
        return a;
    }
};

/* In fp64, with all scores in memory. */
template <class T> struct answers {
    std::vector<double> out, lse /* and what rounding took */, dq, dk, dv, size_out, size_dq,
        size_dk, size_dv;

    explicit answers(const operands<T> &o)
    {
        const sizes &n = o.n;
        out.resize((size_t)(n.B * n.H * n.L * n.Ev)), lse.resize((size_t)(2 * n.B * n.H * n.L));
        dq.resize((size_t)(n.B * n.H * n.L * n.E)), dk.resize((size_t)(n.B * n.Hk * n.S * n.E));
        dv.resize((size_t)(n.B * n.Hk * n.S * n.Ev));
        size_out = out, size_dq = dq, size_dk = dk, size_dv = dv;
        std::vector<double> w((size_t)n.S), g((size_t)n.S), d((size_t)n.S);
        for (int64_t r = 0; r < n.B * n.H * n.L; r++) {
            int64_t l = r % n.L, h = r / n.L % n.H, b = r / n.L / n.H;
            int64_t of = (b * n.Hk + h / (n.H / n.Hk)) * n.S;
            double top = -INFINITY, sum = 0, delta = 0;
            for (int64_t s = 0; s < n.S; s++) {
                double x = 0;
                int64_t m = b * o.stride[0] + h * o.stride[1] + l * o.stride[2] + s * o.stride[3];
                for (int64_t e = 0; e < n.E; e++)
                    x += number(o.q[n.shift + r * n.E + e]) *
                         number(o.k[n.shift + (of + s) * n.E + e]);
                x *= 0.5;
                if (n.mask >= ADDED) x += o.added[m];
                if ((n.mask == ROWS || n.mask == KEYS) && !o.seen[m]) x = -INFINITY;
                if (n.is_causal && s > l) x = -INFINITY;
                w[(size_t)s] = x;
                if (x > top) top = x;
            }
            for (int64_t s = 0; s < n.S; s++) sum += exp(w[(size_t)s] - top);
            bool is_empty = top == -INFINITY;
            double rounded = top + log(sum);
            lse[(size_t)r] = is_empty ? INFINITY : rounded;
            lse[(size_t)(n.B * n.H * n.L + r)] = is_empty ? 0 : log(sum) - (rounded - top);
            for (int64_t s = 0; s < n.S; s++) {
                uint16_t bits = hl_rng_bits16(key, ATTEMPTED, (uint64_t)(MICRO_ROW + b),
                                              (uint64_t)((h * n.L + l) * n.S + s));
                bool is_dropped = n.drops && bits < threshold;
                d[(size_t)s] = is_dropped ? 0 : n.drops ? scale_kept : 1;
                w[(size_t)s] = is_empty ? 0 : exp(w[(size_t)s] - top) / sum;
                g[(size_t)s] = 0;
                for (int64_t e = 0; e < n.Ev; e++) {
                    double v = number(o.v[n.shift + (of + s) * n.Ev + e]),
                           dy = number(o.dout[n.shift + r * n.Ev + e]);
                    out[(size_t)(r * n.Ev + e)] += w[(size_t)s] * d[(size_t)s] * v;
                    size_out[(size_t)(r * n.Ev + e)] += w[(size_t)s] * d[(size_t)s] * fabs(v);
                    dv[(size_t)((of + s) * n.Ev + e)] += w[(size_t)s] * d[(size_t)s] * dy;
                    size_dv[(size_t)((of + s) * n.Ev + e)] +=
                        w[(size_t)s] * d[(size_t)s] * fabs(dy);
                    g[(size_t)s] += d[(size_t)s] * v * dy;
                }
                delta += w[(size_t)s] * g[(size_t)s];
            }
            for (int64_t s = 0; s < n.S; s++) {
                double ds = w[(size_t)s] * (g[(size_t)s] - delta) * 0.5,
                       size = w[(size_t)s] * (fabs(g[(size_t)s]) + fabs(delta) + 1) * 0.5;
                for (int64_t e = 0; e < n.E; e++) {
                    double q = number(o.q[n.shift + r * n.E + e]),
                           k = number(o.k[n.shift + (of + s) * n.E + e]);
                    dq[(size_t)(r * n.E + e)] += ds * k;
                    dk[(size_t)((of + s) * n.E + e)] += ds * q;
                    size_dq[(size_t)(r * n.E + e)] += size * fabs(k);
                    size_dk[(size_t)((of + s) * n.E + e)] += size * fabs(q);
                }
            }
        }
    }
};

template <class T> static int find_width(const sizes &n)
{
    int64_t widest = n.E > n.Ev ? n.E : n.Ev;
    return widest <= 32 && sizeof(T) == 2 ? 32 : widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
}

template <class T> static void test_attention(const sizes &n)
{
    enum { IS_16 = sizeof(T) == 2 };
    start_case(
        "attention %s %lld (%lld,%lld) %lldx%lld, widths %lld %lld, mask %d causal %d drop %d",
        suffix<T>(), (long long)n.B, (long long)n.H, (long long)n.Hk, (long long)n.L,
        (long long)n.S, (long long)n.E, (long long)n.Ev, n.mask, n.is_causal, n.drops);
    operands<T> o(n);
    answers<T> want(o);
    int width = find_width<T>(n), rows = HL_CUDA_ATTENTION_ROWS(IS_16, width);
    unsigned threads = HL_CUDA_ATTENTION_THREADS(IS_16, width);
    size_t row_bytes = IS_16 ? HL_CUDA_ATTENTION_PITCH(width) * 2 : 0;
    size_t bytes = row_bytes * (size_t)(rows + 2 * HL_CUDA_ATTENTION_COLS(IS_16, width));
    size_t grad_bytes = row_bytes * 2 * (size_t)(rows + HL_CUDA_ATTENTION_GRAD_COLS(IS_16, width));
    std::string name = std::string(suffix<T>()) + "_" + std::to_string(width);
    int32_t type = std::is_same<T, float>::value     ? HL_DTYPE_F32
                   : std::is_same<T, hl_bf16>::value ? HL_DTYPE_BF16
                                                     : HL_DTYPE_F16;
    unsigned blocks = (unsigned)(1 + n.L % 3); /* fewer than tiles, or more */
    hl_cuda_attention of = o.describe((n.L + rows - 1) / rows),
                      of_keys = o.describe((n.S + rows - 1) / rows);
    int64_t n_rows = n.B * n.H * n.L;
    buffer<float> out(n_rows * n.Ev), lse(2 * n_rows), delta(n_rows);
    buffer<T> rounded(out.n);
    buffer<float> dq(n_rows * n.E), dk(n.B * n.Hk * n.S * n.E), dv(n.B * n.Hk * n.S * n.Ev);
    buffer<T> small_dk(dk.n), small_dv(dv.n), small_dq(dq.n);
    const T *q = o.q.get() + n.shift, *k = o.k.get() + n.shift, *v = o.v.get() + n.shift,
            *dout = o.dout.get() + n.shift;
    run_orders({&out, &lse, &rounded}, [&] {
        hl_cuda_attention_params p = {
            {q, k, v, o.mask(), o.control.get(), out.p, lse.get()}, of, HL_DTYPE_F32};
        launch_grid("hl_cuda_attention_" + name, {blocks, 1, 1}, threads, bytes, p);
        p.at.out = rounded.p, p.out_dtype = type;
        launch_grid("hl_cuda_attention_" + name, {blocks, 1, 1}, threads, bytes, p);
    });
    run_orders({&dq, &dk, &dv, &small_dq, &small_dk, &small_dv, &delta}, [&] {
        for (bool is_wide : {true, false}) {
            int32_t dtype = is_wide ? (int32_t)HL_DTYPE_F32 : type;
            hl_cuda_attention_grad_queries_params p = {{dout, q, k, v, out.p, lse.get(), o.mask(),
                                                        o.control.get(),
                                                        is_wide ? dq.p : small_dq.p, delta.get()},
                                                       of,
                                                       HL_DTYPE_F32,
                                                       dtype};
            hl_cuda_attention_grad_keys_params of_k = {
                {dout, q, k, v, lse.get(), o.mask(), o.control.get(), delta.get(),
                 is_wide ? dk.p : small_dk.p, is_wide ? dv.p : small_dv.p},
                of_keys,
                dtype};
            launch_grid("hl_cuda_attention_grad_queries_" + name, {blocks, 1, 1}, threads,
                        grad_bytes, p);
            launch_grid("hl_cuda_attention_grad_keys_" + name, {blocks, 1, 1}, threads, grad_bytes,
                        of_k);
        }
    });
    /* Of 16 bits, powers and the gradients of scores are rounded, too. */
    double u = IS_16 ? roundoff<T>() : 0, terms = (double)(n.E + n.S + n.L * n.H + 64) * 0x1p-22;
    double bound = 2 * u + terms;
    auto compare = [&](const char *what, const auto &got, const std::vector<double> &w,
                       const std::vector<double> &size) {
        check_close(
            what, got, [&](int64_t i) { return w[(size_t)i]; },
            [&](int64_t i) { return bound * size[(size_t)i] + (IS_16 ? 0x1p-20 : 0); });
    };
    check_close(
        "lse", lse, [&](int64_t i) { return want.lse[(size_t)i]; },
        [&](int64_t) { return (double)(n.E + n.S) * 0x1p-21; });
    compare("out", out, want.out, want.size_out);
    compare("rounded out", rounded, want.out, want.size_out);
    compare("dq", dq, want.dq, want.size_dq), compare("dk", dk, want.dk, want.size_dk);
    compare("dv", dv, want.dv, want.size_dv);
    compare("rounded dq", small_dq, want.dq, want.size_dq);
    compare("rounded dk", small_dk, want.dk, want.size_dk);
    compare("rounded dv", small_dv, want.dv, want.size_dv);
}

int main()
{
    for (const sizes &n : cases) {
        test_attention<float>(n);
        test_attention<hl_f16>(n);
        if (has_bf16_mma()) test_attention<hl_bf16>(n);
    }
    return finish_tests("test_kernels_attention");
}
