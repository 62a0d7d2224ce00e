/* Kernels that change a run's state, against fp64 and against ir/control.h and base/rng.h on the
 * host: optimizers, control block, guarded updates, random bits. */
#include "base/rng.h"
#include "ir/control.h"
#include "ir/dtype.h"
#include "kernels/cuda/control.h"
#include "kernels/cuda/optim.h"
#include "kernels/cuda/random.h"
#include "tests/cuda/kernel_test.h"

/* ---- optimizers: every step from the kernel's own fp32 state, in fp64 ---- */

enum { N = 5003, N_STATE = 3 };
/* begin, end, lr scale, weight decay, began; out of order, with holes, one of a single element. */
static const double table[][5] = {{2049, 4100, 0.5, 0.1, 0}, {0, 1000, 1, 0.01, 5},
                                  {1000, 2047, 1, 0, 6},     {4999, 5000, 2, 0.2, 2},
                                  {4100, 4100, 1, 1, 1},     {5001, 5003, 1, 0, 0}};
enum { BEFORE = 6 /* steps of the run before the first one here */ };
enum { N_SEGMENTS = sizeof table / sizeof *table };

struct optimizer {
    const char *name;
    int n_state;
    double f[3];
    int i;
};
static const optimizer optimizers[] = {
    {"sgd", 1, {0, 0, 0}, 0},
    {"sgd", 1, {0.9, 0.1, 0}, 0},
    {"sgd", 1, {0.9, 0, 0}, 1},
    {"adam", 2, {0.9, 0.999, 1e-8}, 0},
    {"adam", 2, {0.8, 0.95, 1e-6}, 1},
    {"rmsprop", 3, {0.99, 1e-8, 0}, 0},
    {"rmsprop", 3, {0.9, 1e-6, 0.5}, 1},
    {"lion", 1, {0.9, 0.99, 0}, 0},
};

struct element {
    double param, state[N_STATE];
    double slack = 0; /* of RMSprop's move: the difference in its variance loses digits */
};

static element step_element(const optimizer &o, element e, double g, double lr, double decay,
                            int64_t step)
{
    std::string name = o.name;
    if (name == "sgd") {
        g += decay * e.param;
        if (o.f[0] != 0) {
            e.state[0] = step == 1 ? g : o.f[0] * e.state[0] + (1 - o.f[1]) * g;
            g = o.i ? g + o.f[0] * e.state[0] : e.state[0];
        }
        e.param -= lr * g;
    } else if (name == "adam") {
        if (!o.i) g += decay * e.param;
        if (o.i) e.param *= 1 - lr * decay;
        e.state[0] = o.f[0] * e.state[0] + (1 - o.f[0]) * g;
        e.state[1] = o.f[1] * e.state[1] + (1 - o.f[1]) * g * g;
        double c1 = 1 - pow(o.f[0], (double)step), c2 = 1 - pow(o.f[1], (double)step);
        e.param -= lr / c1 * e.state[0] / (sqrt(e.state[1]) / sqrt(c2) + o.f[2]);
    } else if (name == "rmsprop") {
        g += decay * e.param;
        e.state[0] = o.f[0] * e.state[0] + (1 - o.f[0]) * g * g;
        double variance = e.state[0];
        if (o.i) {
            e.state[2] = o.f[0] * e.state[2] + (1 - o.f[0]) * g;
            variance -= e.state[2] * e.state[2];
        }
        double move = g / (sqrt(variance) + o.f[1]);
        e.slack = 8 * 0x1p-24 * fabs(move) * (2 * e.state[0] - variance) / variance;
        if (o.f[2] > 0) move = e.state[1] = o.f[2] * e.state[1] + move;
        e.param -= lr * move;
    } else {
        double d = o.f[0] * e.state[0] + (1 - o.f[0]) * g;
        e.param -= lr * ((d > 0) - (d < 0) + decay * e.param);
        e.state[0] = o.f[1] * e.state[0] + (1 - o.f[1]) * g;
    }
    return e;
}

static void launch_optimizer(const optimizer &o, const hl_cuda_optim_at &at, int is_f16,
                             float *const *s)
{
    std::string name = o.name;
    hl_cuda_optim_size size = {N, N_SEGMENTS, 1, is_f16};
    if (name == "sgd")
        LAUNCH_ONLY(sgd, 2, 96, {at, o.f[0] != 0 ? s[0] : nullptr}, size, o.f[0], o.f[1], o.i);
    else if (name == "adam")
        LAUNCH_ONLY(adam, 2, 96, {at, s[0], s[1]}, size, o.f[0], o.f[1], o.f[2], o.i);
    else if (name == "rmsprop")
        LAUNCH_ONLY(rmsprop, 2, 96, {at, s[0], o.f[2] > 0 ? s[1] : nullptr, o.i ? s[2] : nullptr},
                    size, o.f[0], o.f[1], o.f[2], o.i);
    else
        LAUNCH_ONLY(lion, 2, 96, {at, s[0]}, size, o.f[0], o.f[1]);
}

static const double *find_segment(int64_t i)
{
    for (const double *s : table)
        if (i >= (int64_t)s[0] && i < (int64_t)s[1]) return s;
    return nullptr;
}

/* The copy is the parameter rounded where a segment lies, and was let alone elsewhere. */
template <class T> static void check_copy(buffer<T> &copy, const buffer<float> &param, bool written)
{
    T want;
    for (int64_t i = 0; i < N; i++) {
        hl_write(&want, 0, written && find_segment(i) ? param[i] : 7.0f);
        check("copy", memcmp(&want, &copy[i], sizeof want) == 0);
        hl_write(&copy[i], 0, 7.0f);
    }
}

static void test_optimizer(const optimizer &o)
{
    buffer<hl_bf16> bf16(N);
    buffer<hl_f16> f16(N);
    for (int64_t i = 0; i < N; i++) hl_write(&bf16[i], 0, 7.0f), hl_write(&f16[i], 0, 7.0f);
    buffer<float> param(N), a(N), b(N), c(N), grad(N), scale(1), lr(1);
    buffer<double> segments(5 * N_SEGMENTS);
    memcpy(segments.p, table, sizeof table);
    float *state[] = {a.get(), b.get(), c.get()};
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    fill_random(param);
    for (int64_t i = 0; i < N; i++) a[i] = b[i] = c[i] = 0;
    scale[0] = 0.75f, lr[0] = 0.01f;
    for (int64_t step = 0; step <= 3; step++) {
        start_case("%s (%g, %g, %g, %d) step %d", o.name, o.f[0], o.f[1], o.f[2], o.i, (int)step);
        fill_random(grad);
        control.apply = step > 0, control.applied = BEFORE + step;
        hl_control_raise(&control, o.f[0], o.f[1]);
        std::vector<element> want(N);
        for (int64_t i = 0; i < N; i++) {
            want[(size_t)i] = {param[i], {a[i], b[i], c[i]}};
            const double *s = find_segment(i);
            if (!s || step == 0) continue;
            want[(size_t)i] =
                step_element(o, want[(size_t)i], (double)grad[i] * scale[0], (double)lr[0] * s[2],
                             s[3], BEFORE + step - (int64_t)s[4]);
        }
        int is_f16 = step % 2 == 0; /* none in step 3 */
        void *copy = step == 3 ? nullptr : is_f16 ? (void *)f16.get() : bf16.get();
        run_orders({&param, &a, &b, &c}, [&] {
            launch_optimizer(
                o,
                {param.get(), grad.get(), segments.get(), scale.get(), lr.get(), room.get(), copy},
                is_f16, state);
        });
        check_copy(bf16, param, step == 1);
        check_copy(f16, param, step == 2);
        /* What is held back or in no segment keeps its bits. */
        auto bound = [&](int64_t i, double size) {
            if (step == 0 || !find_segment(i)) return 0.0;
            return 16 * 0x1p-24 * (0.1 + size) + want[(size_t)i].slack;
        };
        check_close(
            "param", param, [&](int64_t i) { return want[(size_t)i].param; },
            [&](int64_t i) { return bound(i, 0); });
        for (int k = 0; k < o.n_state; k++) {
            buffer<float> &s = k == 0 ? a : k == 1 ? b : c;
            check_close(
                "state", s, [&](int64_t i) { return want[(size_t)i].state[k]; },
                [&](int64_t i) { return bound(i, fabs(want[(size_t)i].state[k])); });
        }
    }
}

/* ---- control block ---- */

static bool is_same_control(const hl_control &a, const hl_control &b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void test_control()
{
    enum { S = 3, T = 4 };
    buffer<double> tables(S * T);
    for (int64_t i = 0; i < tables.n; i++) tables[i] = 0.1 * (double)(i + 1);
    buffer<float> loss(1), sumsq(1);
    buffer<hl_control> block(1);
    hl_control &got = block[0], want;
    for (int mode = 0; mode < 4; mode++) {
        start_case("control block, case %d", mode);
        memset(&want, 0, sizeof want);
        want.nan_mode = mode % 2 ? HL_NAN_SKIP : HL_NAN_STOP;
        want.loss_scale = mode >= 2 ? 1024 : 1;
        for (double &f : want.factor) f = 0.5;
        got = want;
        for (int step = 0; step < 8; step++) {
            loss[0] = step == 5 ? NAN : 1.0f / (float)(step + 1);
            sumsq[0] = step == 3 ? INFINITY : (float)step;
            LAUNCH_ONLY(control_begin, 1, 1, {&got, tables.get()}, S, T, 0);
            LAUNCH_ONLY(control_micro, 1, 1, {&got, loss.p}, 16, HL_DTYPE_F32);
            LAUNCH_ONLY(control_apply, 1, 1, {&got, sumsq.p}, 0.9, 0.999, HL_DTYPE_F32);
            hl_control_begin(&want, tables.get(), S, T, false);
            hl_control_micro(&want, loss[0], 16);
            hl_control_apply(&want, sumsq[0], 0.9, 0.999);
            check("same bytes as the host", is_same_control(got, want));
        }
        check("stops only when asked", want.stopped == (mode % 2 == 0));
    }
}

/* Updates of one launch. */
struct update_list {
    hl_cuda_update_states_params params = {};

    void add(int32_t kind, void *state, hl_dtype state_dtype, const void *value,
             hl_dtype value_dtype, int64_t count, double decay = 0, int ramp = 0)
    {
        int u = params.n_updates++;
        params.at.operand[HL_CUDA_UPDATE_ARGS * u] = state;
        params.at.operand[HL_CUDA_UPDATE_ARGS * u + 1] = (void *)value;
        params.of[u] = {count, decay, 0, kind, ramp, (int32_t)state_dtype, (int32_t)value_dtype};
    }
    void run(const hl_control *control, int is_apply, unsigned rows)
    {
        params.at.control = control, params.is_apply = is_apply;
        launch_grid("hl_cuda_update_states", {3, rows, 1}, 64, 0, params);
    }
};

template <class T> static hl_dtype dtype_of()
{
    return sizeof(T) == 4 ? HL_DTYPE_F32 : suffix<T>()[0] == 'b' ? HL_DTYPE_BF16 : HL_DTYPE_F16;
}

/* The state is let alone, in both segments, unless its guard is up. */
template <class T> static void test_accumulate()
{
    enum { COUNT = 1000 };
    start_case("accumulate %s", suffix<T>());
    buffer<float> state(COUNT), before(COUNT);
    buffer<T> value(COUNT);
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    fill_random(before), fill_random(value);
    update_list list;
    list.add(HL_CUDA_ACCUMULATE, state.p, HL_DTYPE_F32, value.p, dtype_of<T>(), COUNT);
    for (int is_apply = 0; is_apply < 2; is_apply++)
        for (int is_free = 0; is_free < 2; is_free++) {
            control.window_ok = control.apply = is_free;
            memcpy(state.p, before.p, before.n_bytes);
            run_orders({&state}, [&] { list.run(&control, is_apply, 1); });
            check_close(
                "sum", state,
                [&](int64_t i) { return before[i] + (is_free ? number(value[i]) : 0.0); },
                [](int64_t) { return 0; });
        }
}

template <class W> static void test_assign(hl_dtype dtype)
{
    enum { COUNT = 1000 };
    start_case("assign by %d bytes", (int)sizeof(W));
    buffer<W> state(COUNT), before(COUNT), value(COUNT);
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    for (int64_t i = 0; i < COUNT; i++) {
        before[i] = (W)(0x0102030405060708u * (uint64_t)(i + 1));
        value[i] = (W)(0xF1E2D3C4B5A69788u * (uint64_t)(i + 3));
    }
    update_list list;
    list.add(HL_CUDA_ASSIGN, state.p, dtype, value.p, dtype, COUNT);
    for (int is_apply = 0; is_apply < 2; is_apply++)
        for (int is_free = 0; is_free < 2; is_free++) {
            control.window_ok = control.apply = is_free;
            memcpy(state.p, before.p, before.n_bytes);
            run_orders({&state}, [&] { list.run(&control, is_apply, 2); });
            const buffer<W> &want = is_free ? value : before;
            check("every bit", memcmp(state.p, want.p, want.n_bytes) == 0);
        }
}

/* Of many kinds and sizes in one launch, with a row of blocks each, or fewer. */
static void test_many()
{
    enum { COUNT = 100, FEW = 7, SINGLES = 5 };
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    control.window_ok = 1;
    buffer<int64_t> counter(COUNT), single(SINGLES);
    buffer<uint8_t> flag(COUNT);
    buffer<double> wide(COUNT), from(FEW), to(FEW);
    for (unsigned rows = 1; rows <= 9; rows += 4) {
        start_case("updates of any dtype by %u rows of blocks", rows);
        update_list list;
        for (int64_t i = 0; i < COUNT; i++) {
            counter[i] = ((int64_t)1 << 60) + i;
            flag[i] = i % 3 == 0;
            wide[i] = (double)i;
        }
        for (int64_t i = 0; i < FEW; i++) from[i] = 1.0 / (double)(i + 1), to[i] = -1;
        list.add(HL_CUDA_ACCUMULATE, counter.p, HL_DTYPE_I64, flag.p, HL_DTYPE_BOOL, COUNT);
        list.add(HL_CUDA_EMA, wide.p, HL_DTYPE_F64, flag.p, HL_DTYPE_BOOL, COUNT, 0.75);
        list.add(HL_CUDA_ASSIGN, to.p, HL_DTYPE_F64, from.p, HL_DTYPE_F64, FEW);
        for (int64_t i = 0; i < SINGLES; i++) {
            single[i] = 10 * i;
            list.add(HL_CUDA_ACCUMULATE, &single[i], HL_DTYPE_I64, &flag[i], HL_DTYPE_BOOL, 1);
        }
        run_orders({&counter, &wide, &to, &single}, [&] { list.run(&control, 0, rows); });
        for (int64_t i = 0; i < COUNT; i++) {
            double average = 0.75 * (double)i + 0.25 * (i % 3 == 0);
            check("int64 exact", counter[i] == ((int64_t)1 << 60) + i + (i % 3 == 0));
            check("average of bools in double", wide[i] == average);
        }
        for (int64_t i = 0; i < FEW; i++) check("assigned", to[i] == 1.0 / (double)(i + 1));
        for (int64_t i = 0; i < SINGLES; i++) check("counted", single[i] == 10 * i + (i % 3 == 0));
    }
}

static void test_ema()
{
    enum { COUNT = 300 };
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    control.apply = 1, control.applied = 4;
    buffer<float> average(COUNT), before(COUNT), value(COUNT);
    fill_random(before), fill_random(value);
    for (int ramp = 0; ramp < 2; ramp++) {
        start_case("ema, ramp %d", ramp);
        update_list list;
        list.add(HL_CUDA_EMA, average.p, HL_DTYPE_F32, value.p, HL_DTYPE_F32, COUNT, 0.99, ramp);
        memcpy(average.p, before.p, before.n_bytes);
        run_orders({&average}, [&] { list.run(&control, 1, 1); });
        double d = ramp ? 5.0 / 14 : 0.99;
        check_close(
            "average", average, [&](int64_t i) { return d * before[i] + (1 - d) * value[i]; },
            [](int64_t) { return 3 * 0x1p-24; });
    }
}

/* ---- random ---- */

template <class T> static void test_random(int64_t n_samples, int64_t per_sample)
{
    start_case("dropout %s %lldx%lld", suffix<T>(), (long long)n_samples, (long long)per_sample);
    buffer<hl_control> room(1);
    hl_control &control = room[0];
    memset(&control, 0, sizeof control);
    control.attempted = 12345, control.micro_row = ((int64_t)3 << 32) + 17;
    hl_rng_key key = {{0x9E3779B9u, 0x243F6A88u}};
    uint32_t threshold = 6554;
    float scale = (float)(65536.0 / (65536.0 - threshold));
    buffer<T> mask(n_samples * per_sample), uniform(n_samples * per_sample);
    std::string name = suffix<T>();
    hl_cuda_draws draws = {n_samples, per_sample, {key.word[0], key.word[1]}};
    run_orders({&mask, &uniform}, [&] {
        LAUNCH(dropout_mask, name, 2, 64, {mask.get(), room.get()}, draws, threshold, scale);
        LAUNCH(uniform, name, 2, 64, {uniform.get(), room.get()}, draws);
    });
    auto bits = [&](int64_t i) {
        return hl_rng_bits16(key, 12345, (uint64_t)(control.micro_row + i / per_sample),
                             (uint64_t)(i % per_sample));
    };
    check_close(
        "mask", mask, [&](int64_t i) { return bits(i) < threshold ? 0.0 : (double)scale; },
        [](int64_t) { return 0; });
    check_close(
        "uniform", uniform, [&](int64_t i) { return (bits(i) + 0.5) / 65536; },
        [](int64_t) { return 0; });
}

int main()
{
    for (const optimizer &o : optimizers) test_optimizer(o);
    test_control();
    test_assign<uint8_t>(HL_DTYPE_U8);
    test_assign<uint16_t>(HL_DTYPE_BF16);
    test_assign<uint32_t>(HL_DTYPE_I32);
    test_assign<uint64_t>(HL_DTYPE_F64);
    test_accumulate<float>();
    test_accumulate<hl_bf16>();
    test_accumulate<hl_f16>();
    test_many();
    test_ema();
    test_random<float>(7, 13);
    test_random<float>(1, 1);
    test_random<hl_bf16>(3, 64);
    test_random<hl_f16>(5, 100);
    return finish_tests("test_kernels_update");
}
