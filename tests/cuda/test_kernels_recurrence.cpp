/* Recurrences' kernels against fp64 of the same rounded operands, forward and backward: tiles of
 * few rows and of many, weights in shared memory and packed by a launch before, all of which give
 * the same bits. */
#include <algorithm>

#include "ir/dtype.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/recurrence.h"
#include "tests/cuda/kernel_test.h"

enum cell_kind { TANH, RELU, LSTM, GRU };

struct sizes {
    cell_kind cell;
    int64_t N, T, H;
    bool is_reverse, has_bias;
};
/* Some have more groups of units than a block has warps. */
static const sizes cases[] = {
    {TANH, 1, 1, 1, false, false}, {RELU, 5, 3, 33, true, false},  {TANH, 3, 2, 530, false, false},
    {LSTM, 1, 2, 1, true, false},  {LSTM, 5, 3, 33, false, false}, {LSTM, 17, 2, 140, true, false},
    {GRU, 2, 4, 7, false, false},  {GRU, 19, 3, 20, true, true},   {GRU, 3, 2, 290, false, true},
};

static int64_t count_gates(cell_kind cell)
{
    return cell == LSTM ? 4 : cell == GRU ? 3 : 1;
}
static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Operands of both kernels. X: of what lies over time. */
template <class T, class X> struct operands {
    const sizes n;
    int64_t G;
    buffer<T> w;
    buffer<X> z, h0, c0, bias, dout, dh, dc;
    buffer<int32_t> lengths;
    buffer<hl_control> control;

    explicit operands(const sizes &of)
        : n(of), G(count_gates(of.cell)), w(G * n.H * n.H), z(n.N * n.T * G * n.H), h0(n.N * n.H),
          c0(n.N * n.H), bias(G * n.H), dout(n.N * n.T * n.H), dh(n.N * n.H), dc(n.N * n.H),
          lengths(n.N), control(1)
    {
        fill_random(w, 1 / sqrt((double)n.H)), fill_random(z), fill_random(h0), fill_random(c0);
        fill_random(bias, 0.3), fill_random(dout), fill_random(dh), fill_random(dc);
        for (int64_t i = 0; i < n.N; i++)
            lengths[i] = (int32_t)(i == 0 ? n.T : i == 1 ? 0 : random_below(n.T + 1));
        memset(control.p, 0, control.n_bytes);
        /* A relu's sums stay away from 0, where a rounding would choose another derivative. */
        for (int64_t i = 0; n.cell == RELU && i < z.n; i++)
            hl_write(z.get(), i, (float)(number(z[i]) + (number(z[i]) < 0 ? -2 : 2)));
    }
};

typedef std::vector<double> numbers;

/* In fp64. */
template <class T, class X> struct answers {
    const operands<T, X> &o;
    int64_t N, S, H, G;
    numbers out, h, c, gates, cells, dz, dh, dc, hidden;
    double gain;

    explicit answers(const operands<T, X> &of)
        : o(of), N(of.n.N), S(of.n.T), H(of.n.H), G(of.G), gain(1)
    {
        out.resize((size_t)(N * S * H)), cells = dz = out;
        gates.resize((size_t)(N * S * G * H)), dz = hidden = gates;
        for (int64_t i = 0; i < N * H; i++) {
            h.push_back(number(o.h0[i])), c.push_back(number(o.c0[i]));
            dh.push_back(number(o.dh[i])), dc.push_back(number(o.dc[i]));
        }
        for (int64_t row = 0; row < G * H; row++) {
            double sum = 1;
            for (int64_t k = 0; k < H; k++) sum += fabs(number(o.w[row * H + k]));
            gain = std::max(gain, sum);
        }
        for (int64_t n = 0; n < N; n++) {
            for (int64_t i = 0; i < o.lengths[n]; i++) run(n, find_time(n, i));
            for (int64_t i = o.lengths[n] - 1; i >= 0; i--) run_grad(n, find_time(n, i), i == 0);
        }
    }
    int64_t find_time(int64_t n, int64_t i) const
    {
        return o.n.is_reverse ? o.lengths[n] - 1 - i : i;
    }
    void run(int64_t n, int64_t t)
    {
        numbers next((size_t)H);
        for (int64_t j = 0; j < H; j++) {
            double sum[4] = {}, product[4] = {};
            for (int64_t g = 0; g < G; g++) {
                for (int64_t k = 0; k < H; k++)
                    product[g] += number(o.w[(g * H + j) * H + k]) * h[(size_t)(n * H + k)];
                if (o.n.has_bias) product[g] += number(o.bias[g * H + j]);
                sum[g] = number(o.z[((n * S + t) * G + g) * H + j]) + product[g];
            }
            double y[4] = {sigmoid(sum[0]), sigmoid(sum[1]), tanh(sum[2]), sigmoid(sum[3])};
            double &cell = c[(size_t)(n * H + j)], &kept = cells[(size_t)((n * S + t) * H + j)];
            if (o.n.cell == GRU) {
                y[2] = tanh(sum[2] - product[2] + y[0] * product[2]);
                kept = product[2];
                next[(size_t)j] = (1 - y[1]) * y[2] + y[1] * h[(size_t)(n * H + j)];
            } else if (o.n.cell == LSTM) {
                kept = cell = y[1] * cell + y[0] * y[2];
                next[(size_t)j] = y[3] * tanh(cell);
            } else {
                next[(size_t)j] = o.n.cell == TANH ? tanh(sum[0]) : std::max(sum[0], 0.0);
            }
            for (int64_t g = 0; g < G; g++) gates[(size_t)(((n * S + t) * G + g) * H + j)] = y[g];
        }
        for (int64_t j = 0; j < H; j++)
            h[(size_t)(n * H + j)] = out[(size_t)((n * S + t) * H + j)] = next[(size_t)j];
    }
    double find_before(const numbers &over_time, const buffer<X> &first, int64_t n, int64_t t,
                       int64_t j, bool is_first) const
    {
        if (is_first) return number(first[n * H + j]);
        return over_time[(size_t)((n * S + t + (o.n.is_reverse ? 1 : -1)) * H + j)];
    }
    void run_grad(int64_t n, int64_t t, bool is_first)
    {
        for (int64_t j = 0; j < H; j++) {
            int64_t one = (n * S + t) * H + j;
            double d[4] = {}, y[4] = {}, *of_state = &dh[(size_t)(n * H + j)],
                   *of_cell = &dc[(size_t)(n * H + j)], kept = cells[(size_t)one];
            double in = *of_state + number(o.dout[one]), top = tanh(kept);
            for (int64_t g = 0; g < G; g++) y[g] = gates[(size_t)(((n * S + t) * G + g) * H + j)];
            *of_state = 0;
            if (o.n.cell == LSTM) {
                double sum = *of_cell + in * y[3] * (1 - top * top);
                d[0] = sum * y[2] * y[0] * (1 - y[0]);
                d[1] = sum * find_before(cells, o.c0, n, t, j, is_first) * y[1] * (1 - y[1]);
                d[2] = sum * y[0] * (1 - y[2] * y[2]);
                d[3] = in * top * y[3] * (1 - y[3]);
                *of_cell = sum * y[1];
            } else if (o.n.cell == GRU) {
                d[1] = in * (find_before(out, o.h0, n, t, j, is_first) - y[2]) * y[1] * (1 - y[1]);
                d[2] = in * (1 - y[1]) * (1 - y[2] * y[2]);
                d[0] = d[2] * kept * y[0] * (1 - y[0]);
                *of_state = in * y[1];
            } else {
                double state = out[(size_t)one];
                d[0] = o.n.cell == TANH ? in * (1 - state * state) : state > 0 ? in : 0;
            }
            for (int64_t g = 0; g < G; g++) {
                size_t at = (size_t)(((n * S + t) * G + g) * H + j);
                dz[at] = d[g];
                hidden[at] = o.n.cell == GRU && g == 2 ? d[2] * y[0] : d[g];
            }
        }
        for (int64_t row = 0; row < G * H; row++)
            for (int64_t k = 0; k < H; k++)
                dh[(size_t)(n * H + k)] +=
                    hidden[(size_t)((n * S + t) * G * H + row)] * number(o.w[row * H + k]);
    }
};

/* What a kernel writes; what was before it are the answers, rounded. */
template <class X> struct results {
    buffer<X> out, h, c, gates, cells, dz, dh0, dc0, hidden;
    explicit results(const sizes &n, int64_t G)
        : out(n.N * n.T * n.H), h(n.N * n.H), c(n.N * n.H), gates(n.N * n.T * G * n.H),
          cells(out.n), dz(gates.n), dh0(h.n), dc0(h.n), hidden(gates.n)
    {
    }
};

template <class X> static void put(const buffer<X> &to, const numbers &from)
{
    for (int64_t i = 0; i < to.n; i++) hl_write(to.get(), i, (float)from[(size_t)i]);
}

/* A way to launch the same: rows of a tile, where the weight lies. */
struct form {
    int rows;
    bool is_resident;
};

template <class T, class X> struct launcher {
    const operands<T, X> &o;
    hl_cuda_recurrence of;
    int rows;
    unsigned threads, blocks;
    std::string variant;

    launcher(const operands<T, X> &operands_of, form f) : o(operands_of), of(), rows(f.rows)
    {
        const sizes &n = o.n;
        int terms = HL_CUDA_RECURRENCE_TERMS(sizeof(T) == 2),
            units = HL_CUDA_RECURRENCE_UNITS(sizeof(T) == 2),
            most = HL_CUDA_RECURRENCE_WARPS(sizeof(T) == 2, rows);
        of.N = n.N, of.T = n.T, of.H = (int32_t)n.H;
        of.n_groups = (int32_t)((n.H + units - 1) / units);
        of.n_terms = (int32_t)((n.H + terms - 1) / terms * terms);
        of.is_relu = n.cell == RELU, of.is_reverse = n.is_reverse;
        of.is_narrow = sizeof(X) == 2, of.is_resident = f.is_resident;
        threads = 32 * (unsigned)(of.n_groups < most ? of.n_groups : most);
        blocks = (unsigned)((n.N + rows - 1) / rows);
        variant = std::string("_") + suffix<T>() + "_" + std::to_string(o.G) +
                  (rows > HL_CUDA_RECURRENCE_FEW(sizeof(T) == 2) ? "_many" : "_few");
    }
    const void *pack(const buffer<hl_word4> &packed, bool is_grad) const
    {
        if (of.is_resident) return o.w.p;
        hl_cuda_recurrence_pack_params p = {{o.w.p, packed.p}, of, (int32_t)o.G, is_grad};
        launch(std::string("hl_cuda_recurrence_pack_") + suffix<T>(), 3, 64, p);
        return packed.p;
    }
    hl_cuda_recurrence_room measure(bool is_grad) const
    {
        return hl_cuda_recurrence_measure(&of, is_grad ? 1 : (int)o.G, sizeof(T) == 2, rows);
    }
    void run(results<X> &r)
    {
        hl_cuda_recurrence_room room = measure(false);
        buffer<hl_word4> packed(of.is_resident ? 0 : room.weight / 16);
        run_orders({&r.out, &r.h, &r.c, &r.gates, &r.cells}, [&] {
            hl_cuda_recurrence_params p = {{pack(packed, false), o.z.p, o.h0.p, o.lengths.get(),
                                            o.c0.p, o.n.has_bias ? o.bias.p : nullptr,
                                            o.control.get(), 1, r.out.p, r.h.p, r.c.p, r.gates.p,
                                            r.cells.p},
                                           of};
            launch_grid(
                "hl_cuda_recurrence" + variant, {blocks, 1, 1}, threads,
                (size_t)((of.is_resident ? room.weight : 0) + 2 * room.operand + room.state), p);
        });
    }
    /* `r` has what came forward. */
    void run_grad(results<X> &r)
    {
        of.n_terms *= (int32_t)o.G;
        hl_cuda_recurrence_room room = measure(true);
        buffer<hl_word4> packed(of.is_resident ? 0 : room.weight / 16);
        run_orders({&r.dz, &r.dh0, &r.dc0, &r.hidden}, [&] {
            hl_cuda_recurrence_grad_params p = {{pack(packed, true), o.dout.p, o.dh.p, o.dc.p,
                                                 r.out.p, r.gates.p, r.cells.p, o.h0.p,
                                                 o.lengths.get(), o.c0.p, o.control.get(), 1,
                                                 r.dz.p, r.dh0.p, r.dc0.p, r.hidden.p},
                                                of};
            launch_grid(
                "hl_cuda_recurrence_grad" + variant, {blocks, 1, 1}, threads,
                (size_t)((of.is_resident ? room.weight : 0) + 2 * room.operand + 2 * room.state),
                p);
        });
    }
};

/* Sums of H products at each step, whose errors the next steps may make larger; rounded factors and
 * results are as far off as their types say. */
template <class T, class X>
static void compare(const answers<T, X> &want, const results<X> &got, bool is_grad)
{
    const sizes &n = want.o.n;
    bool keeps = n.cell == LSTM || n.cell == GRU;
    double u = std::max(sizeof(T) == 2 ? roundoff<T>() : 0, sizeof(X) == 2 ? roundoff<X>() : 0);
    auto check_one = [&](const char *what, const buffer<X> &values, const numbers &numbers_of) {
        double most = 1;
        for (double x : numbers_of) most = std::max(most, fabs(x));
        for (int64_t i = 0; i < want.o.z.n; i++) most = std::max(most, fabs(number(want.o.z[i])));
        double each = u + (double)(n.H + 12) * (is_grad ? (double)want.G : 1) * 0x1p-24;
        double bound = (double)(n.T + 1) * each * want.gain * (1 + most);
        check_close(
            what, values, [&](int64_t i) { return numbers_of[(size_t)i]; },
            [&](int64_t) { return bound; });
    };
    if (is_grad) {
        check_one("dz", got.dz, want.dz), check_one("dh0", got.dh0, want.dh);
        if (n.cell == LSTM) check_one("dc0", got.dc0, want.dc);
        if (n.cell == GRU) check_one("hidden", got.hidden, want.hidden);
        return;
    }
    check_one("out", got.out, want.out), check_one("h", got.h, want.h);
    if (n.cell == LSTM) check_one("c", got.c, want.c);
    if (keeps) check_one("gates", got.gates, want.gates), check_one("cells", got.cells, want.cells);
}

template <class T, class X> static void test_recurrence(const sizes &n)
{
    enum { FEW = HL_CUDA_RECURRENCE_FEW(sizeof(T) == 2) };
    static const form forms[] = {{FEW, true}, {2 * FEW, true}, {FEW, false}, {2 * FEW, false}};
    start_case("recurrence %d %s %s %lldx%lldx%lld reverse %d bias %d", n.cell, suffix<T>(),
               suffix<X>(), (long long)n.N, (long long)n.T, (long long)n.H, n.is_reverse,
               n.has_bias);
    operands<T, X> o(n);
    answers<T, X> want(o);
    results<X> first(n, o.G);
    bool is_first = true;
    for (form f : forms) {
        results<X> got(n, o.G);
        launcher<T, X> l(o, f);
        /* A GPU has not enough shared memory for every weight. */
        if (f.is_resident && l.measure(false).weight > 64 << 10) continue;
        l.run(got);
        compare(want, got, false);
        if (is_first) memcpy(first.out.p, got.out.p, got.out.n_bytes);
        check_same("out", got.out, first.out);
        put(got.out, want.out), put(got.gates, want.gates), put(got.cells, want.cells);
        l.run_grad(got);
        compare(want, got, true);
        if (is_first) memcpy(first.dz.p, got.dz.p, got.dz.n_bytes);
        check_same("dz", got.dz, first.dz);
        is_first = false;
    }
    check("no fault", o.control[0].error_code == 0);
}

int main()
{
    for (const sizes &n : cases) {
        test_recurrence<float, float>(n);
        test_recurrence<hl_f16, float>(n);
        test_recurrence<hl_f16, hl_f16>(n);
        if (!has_bf16_mma()) continue;
        test_recurrence<hl_bf16, float>(n);
        test_recurrence<hl_bf16, hl_bf16>(n);
    }
    return finish_tests("test_kernels_recurrence");
}
