/* The interpreter of pointwise programs: every micro-op's expression against the C library in
 * double, integers against the rules of kernels/ref/pointwise.c; broadcasting, casts, random steps,
 * long programs.
 */
#include "base/rng.h"
#include "ir/control.h"
#include "kernels/cuda/compiled.h"
#include "kernels/cuda/program.h"
#include "tests/cuda/kernel_test.h"

static int count_operands(int op)
{
    switch (op) {
#define HL_PW(id, name, n, ...)                                                                    \
    case HL_PW_##id: return n;
#define HL_PW_CAST(id, ...)                                                                        \
    case HL_PW_##id: return 1;
#include "ir/pointwise.def"
    default: return 0;
    }
}
static const char *name_of(int op)
{
    switch (op) {
#define HL_PW(id, name, ...)                                                                       \
    case HL_PW_##id: return name;
#define HL_PW_CAST(id, name, ...)                                                                  \
    case HL_PW_##id: return name;
#include "ir/pointwise.def"
    default: return "leaf";
    }
}

/* n elements, `width` to a thread, nothing summed. */
static hl_cuda_tiles make_flat_tiles(int64_t n, int width)
{
    hl_cuda_tiles tiles = {};
    tiles.n = n, tiles.width = width, tiles.steps = tiles.rows = 1;
    tiles.lanes = 32, tiles.strips = HL_CUDA_TILE_THREADS / 32;
    tiles.cols = (int64_t)HL_CUDA_TILE_THREADS * width;
    tiles.batches = 1, tiles.height = (n + tiles.cols - 1) / tiles.cols;
    tiles.n_col_tiles = 1, tiles.n_tiles = (n + tiles.cols - 1) / tiles.cols;
    return tiles;
}

struct builder {
    buffer<hl_cuda_program> room;
    hl_cuda_program *p;
    std::vector<int64_t> dim;
    int64_t n_elements = 1;
    explicit builder(const std::vector<int64_t> &shape) : room(1), p(room.get()), dim(shape)
    {
        memset(p, 0, sizeof *p);
        for (int64_t d : dim) n_elements *= d;
        p->sample_size = dim.empty() || dim[0] == 0 ? 1 : n_elements / dim[0];
    }
    /* An input of this shape, broadcast to the iteration's. */
    int load(hl_dtype dtype, const std::vector<int64_t> &shape)
    {
        int in = p->n_in++;
        hl_cuda_layout &at = p->in[in].at;
        p->in[in].dtype = dtype;
        p->in[in].is_whole = shape == dim;
        at.n = n_elements, at.rank = (int32_t)dim.size();
        int64_t stride = 1;
        for (size_t d = dim.size(), k = shape.size(); d-- > 0;) {
            at.dim[d] = dim[d];
            if (k == 0) continue;
            k--;
            at.stride[d] = shape[k] == 1 ? 0 : stride;
            stride *= shape[k];
        }
        return step(HL_PW_LOAD, 0, 0, 0, in);
    }
    int step(int op, int a = 0, int b = 0, int c = 0, int in = 0)
    {
        hl_cuda_step &s = p->code[p->n_code++];
        int n = count_operands(op);
        s.op = (uint8_t)op, s.dst = (uint8_t)p->n_regs++, s.a = (uint8_t)a;
        s.b = (uint8_t)(n > 1 ? b : a), s.c = (uint8_t)(n > 2 ? c : a), s.in = (uint8_t)in;
        return s.dst;
    }
    int number(double value)
    {
        int r = step(HL_PW_NUMBER);
        p->code[p->n_code - 1].number = value;
        return r;
    }
    void store(int reg, hl_dtype dtype)
    {
        p->out[p->n_out].reg = reg;
        p->out[p->n_out++].dtype = dtype;
    }
    void run(const char *kind, std::initializer_list<void *> operands,
             std::initializer_list<memory *> outs)
    {
        hl_cuda_pointwise_params params = {};
        int i = 0;
        for (void *operand : operands) params.at.operand[i++] = operand;
        params.at.program = p, params.tiles = make_flat_tiles(n_elements, 4);
        size_t bytes = (size_t)p->n_regs * HL_CUDA_TILE_THREADS * (strcmp(kind, "f32") ? 8 : 4);
        run_orders(outs, [&] {
            launch_grid(std::string("hl_cuda_pointwise_") + kind, {3, 1, 1}, HL_CUDA_TILE_THREADS,
                        bytes, params);
        });
    }
};

/* ---- every micro-op -------------------------------------------------------------------------- */

/* A number and the size of the terms that it is the sum of: where they cancel, roundings are of
 * these. */
struct sum {
    double value, size;
    sum(double x) : value(x), size(fabs(x))
    {
    }
    sum(double x, double terms) : value(x), size(terms)
    {
    }
    operator double() const
    {
        return value;
    }
};
#define SUM(sign, X, Y)                                                                            \
    static inline sum operator sign(X x, Y y)                                                      \
    {                                                                                              \
        double left = x, right = y;                                                                \
        return {left sign right, sum(x).size + sum(y).size};                                       \
    }
SUM(+, sum, sum)
SUM(+, sum, double)
SUM(+, double, sum)
SUM(-, sum, sum)
SUM(-, sum, double)
SUM(-, double, sum)

/* The functions of expressions, from the C library. */
struct wanted {
#define UNARY(name, expression)                                                                    \
    static sum name(double x)                                                                      \
    {                                                                                              \
        return expression;                                                                         \
    }
#define BINARY(T, name, expression)                                                                \
    static T name(double x, double y)                                                              \
    {                                                                                              \
        return expression;                                                                         \
    }
    UNARY(set1, x)
    UNARY(neg, -x)
    UNARY(abs, ::fabs(x))
    UNARY(truth, x)
    UNARY(relu, ::isnan(x) ? x : ::fmax(x, 0))
    UNARY(floor, ::floor(x))
    UNARY(round, ::nearbyint(x))
    UNARY(sqrt, ::sqrt(x))
    UNARY(rsqrt, 1 / ::sqrt(x))
    UNARY(exp, ::exp(x))
    UNARY(expm1, ::expm1(x))
    UNARY(log, ::log(x))
    UNARY(log1p, ::log1p(x))
    UNARY(sin, ::sin(x))
    UNARY(cos, ::cos(x))
    UNARY(tanh, ::tanh(x))
    UNARY(sigmoid, x >= 0 ? 1 / (1 + ::exp(-x)) : ::exp(x) / (1 + ::exp(x)))
    UNARY(erf, ::erf(x))
    BINARY(sum, add, x + y)
    BINARY(sum, sub, x - y)
    BINARY(sum, mul, (x * y))
    BINARY(sum, mod, ::fmod(x, y) + (::fmod(x, y) * y < 0 ? y : 0))
    BINARY(sum, pow, ::pow(x, y))
    BINARY(sum, max, x > y ? x : y)
    BINARY(sum, min, x < y ? x : y)
    BINARY(sum, cast, y == HL_DTYPE_I64 ? ::trunc(x) : NAN)
    BINARY(bool, eq, x == y)
    BINARY(bool, ne, x != y)
    BINARY(bool, lt, x < y)
    BINARY(bool, le, x <= y)
    BINARY(bool, gt, x > y)
    BINARY(bool, ge, x >= y)
    BINARY(bool, both, x != 0 && y != 0)
    BINARY(bool, either, x != 0 || y != 0)
    static sum select(bool mask, sum x, sum y)
    {
        return mask ? x : y;
    }
    static sum keep(bool mask, sum x)
    {
        return mask ? x : sum(0);
    }
#define REAL                     double
#define FUNCTION(name, operands) static double name operands
#define F(name)                  wanted::name
#include "ir/pointwise_functions.def"
#undef F
};

static sum expect(int op, sum a, sum b, sum c)
{
    const int dtype = HL_DTYPE_I64;
    switch (op) {
#define F(name) wanted::name
#define HL_PW(id, name, n, result, flags, vjp, cost, expression, doc)                              \
    case HL_PW_##id: return expression;
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc)                                    \
    case HL_PW_##id: return expression;
#include "ir/pointwise.def"
#undef F
    default: return NAN;
    }
}

static const float specials[] = {0,      -0.0f, 1,   -1, 0.5f,     2.5f,      -3.5f, 1e-8f,
                                 -1e-8f, 80,    -80, 7,  INFINITY, -INFINITY, NAN,   1e30f};
enum { N_SPECIAL = sizeof specials / sizeof *specials };

template <class V> static void test_floats(const char *kind, hl_dtype dtype, double eps)
{
    enum { N = N_SPECIAL * N_SPECIAL + 200 };
    buffer<V> a(N), b(N), c(N), out(N);
    for (int64_t i = 0; i < N; i++) {
        bool is_special = i < N_SPECIAL * N_SPECIAL;
        a[i] = is_special ? (V)specials[i / N_SPECIAL] : (V)(float)(4 * random_number());
        b[i] = is_special ? (V)specials[i % N_SPECIAL] : (V)(float)(4 * random_number());
        c[i] = (V)(float)random_number();
    }
    for (int op = 0; op < HL_PW_COUNT; op++) {
        if (count_operands(op) == 0) continue;
        start_case("micro-op %s in %s", name_of(op), kind);
        builder program({N});
        int n = count_operands(op), ra = program.load(dtype, {N});
        int rb = n > 1 ? program.load(dtype, {N}) : 0, rc = n > 2 ? program.load(dtype, {N}) : 0;
        int r = program.step(op, ra, rb, rc);
        program.p->code[program.p->n_code - 1].dtype = HL_DTYPE_I64; /* CAST */
        program.store(r, dtype);
        if (n == 1) program.run(kind, {a.p, out.p}, {&out});
        if (n == 2) program.run(kind, {a.p, b.p, out.p}, {&out});
        if (n == 3) program.run(kind, {a.p, b.p, c.p, out.p}, {&out});
        for (int64_t i = 0; i < N; i++) {
            if (op == HL_PW_CAST && !(fabs((double)a[i]) < 0x1p62)) continue;
            sum all = expect(op, (double)a[i], (double)b[i], (double)c[i]);
            double want = (double)(V)all.value;
            /* Below 0 a sum of 1 and a tanh or erf cancels. */
            double terms = op == HL_PW_GELU || op == HL_PW_GELU_ERF ? fabs(a[i])
                           : op == HL_PW_GELU_GRAD || op == HL_PW_GELU_ERF_GRAD
                               ? fabs(a[i]) * (1 + fmin(fabs(b[i]), 9) * fmin(fabs(b[i]), 9))
                               : all.size;
            if (is_close(out[i], want, 8 * eps * terms + 1e-38)) continue;
            FAIL("of %g, %g, %g is %.9g, want %.9g", (double)a[i], (double)b[i], (double)c[i],
                 (double)out[i], want);
            break;
        }
    }
}

static void test_ints()
{
    const int64_t values[] = {0, 1, -1, 5, -7, 1000, INT64_MAX, INT64_MIN, ((int64_t)1 << 53) + 1};
    const int ops[] = {HL_PW_NEG,     HL_PW_ABS,   HL_PW_SIGN,    HL_PW_RELU, HL_PW_NOT,
                       HL_PW_ADD,     HL_PW_SUB,   HL_PW_MUL,     HL_PW_MOD,  HL_PW_MAXIMUM,
                       HL_PW_MINIMUM, HL_PW_EQ,    HL_PW_LT,      HL_PW_GE,   HL_PW_AND,
                       HL_PW_OR,      HL_PW_FLOOR, HL_PW_ISFINITE};
    enum { V = sizeof values / sizeof *values, N = V * V };
    buffer<int64_t> a(N), b(N), out(N);
    for (int64_t i = 0; i < N; i++) a[i] = values[i / V], b[i] = values[i % V];
    for (int op : ops) {
        start_case("micro-op %s in int64", name_of(op));
        builder program({N});
        int ra = program.load(HL_DTYPE_I64, {N});
        int rb = count_operands(op) > 1 ? program.load(HL_DTYPE_I64, {N}) : 0;
        program.store(program.step(op, ra, rb), HL_DTYPE_I64);
        if (count_operands(op) > 1)
            program.run("i64", {a.p, b.p, out.p}, {&out});
        else
            program.run("i64", {a.p, out.p}, {&out});
        for (int64_t i = 0; i < N; i++) {
            uint64_t x = (uint64_t)a[i], y = (uint64_t)b[i];
            int64_t want =
                op == HL_PW_NEG   ? (int64_t)(0 - x)
                : op == HL_PW_ABS ? (int64_t)(a[i] < 0 ? 0 - x : x)
                : op == HL_PW_ADD ? (int64_t)(x + y)
                : op == HL_PW_SUB ? (int64_t)(x - y)
                : op == HL_PW_MUL ? (int64_t)(x * y)
                : op == HL_PW_MOD
                    ? (b[i] == 0 || b[i] == -1
                           ? 0
                           : (a[i] % b[i] +
                              (a[i] % b[i] != 0 && (a[i] % b[i] < 0) != (b[i] < 0) ? b[i] : 0)))
                : op == HL_PW_SIGN     ? (a[i] > 0) - (a[i] < 0)
                : op == HL_PW_RELU     ? (a[i] > 0 ? a[i] : 0)
                : op == HL_PW_NOT      ? a[i] == 0
                : op == HL_PW_MAXIMUM  ? (a[i] > b[i] ? a[i] : b[i])
                : op == HL_PW_MINIMUM  ? (a[i] < b[i] ? a[i] : b[i])
                : op == HL_PW_EQ       ? a[i] == b[i]
                : op == HL_PW_LT       ? a[i] < b[i]
                : op == HL_PW_GE       ? a[i] >= b[i]
                : op == HL_PW_AND      ? a[i] && b[i]
                : op == HL_PW_OR       ? a[i] || b[i]
                : op == HL_PW_ISFINITE ? 1
                                       : a[i];
            check("result", out[i] == want);
        }
    }
}

/* ---- whole programs -------------------------------------------------------------------------- */

/* (x * scale + bias > 0) ? cast to bf16 : 0.25, of a (4,3,5) iteration; two outputs. */
static void test_broadcast()
{
    start_case("broadcasting, casts, two outputs");
    buffer<float> x(60), bias(5), out(60);
    buffer<hl_f16> scale(12);
    buffer<uint8_t> flag(60);
    fill_random(x), fill_random(bias), fill_random(scale);
    builder program({4, 3, 5});
    int rx = program.load(HL_DTYPE_F32, {4, 3, 5}), rs = program.load(HL_DTYPE_F16, {4, 3, 1});
    int rb = program.load(HL_DTYPE_F32, {5}), zero = program.number(0),
        quarter = program.number(0.25);
    int y = program.step(HL_PW_ADD, program.step(HL_PW_MUL, rx, rs), rb),
        positive = program.step(HL_PW_GT, y, zero);
    int rounded = program.step(HL_PW_CAST, y);
    program.p->code[program.p->n_code - 1].dtype = HL_DTYPE_BF16;
    program.store(program.step(HL_PW_WHERE, positive, rounded, quarter), HL_DTYPE_F32);
    program.store(positive, HL_DTYPE_BOOL);
    program.run("f32", {x.p, scale.p, bias.p, out.p, flag.p}, {&out, &flag});
    for (int64_t i = 0; i < 60; i++) {
        float v = x[i] * hl_to_float(scale[i / 5]) + bias[i % 5];
        check("value", out[i] == (v > 0 ? hl_to_float(hl_to_bf16(v)) : 0.25f));
        check("flag", flag[i] == (v > 0));
    }
}

static void test_random()
{
    start_case("dropout and uniform steps");
    enum { B = 5, C = 19 };
    buffer<hl_control> control(1);
    memset(control.p, 0, control.n_bytes);
    control[0].attempted = 77, control[0].micro_row = 40;
    hl_rng_key key = hl_rng_key{{123u, 456u}};
    buffer<float> mask(B * C), uniform(B * C);
    builder program({B, C});
    program.p->n_in = 1;
    for (int op : {HL_PW_DROPOUT_MASK, HL_PW_UNIFORM}) {
        program.store(program.step(op), HL_DTYPE_F32);
        hl_cuda_step &s = program.p->code[program.p->n_code - 1];
        s.key[0] = key.word[0], s.key[1] = key.word[1];
        s.threshold = 20000, s.number = 1.5;
    }
    program.run("f32", {control.p, mask.p, uniform.p}, {&mask, &uniform});
    for (int64_t i = 0; i < B * C; i++) {
        uint16_t bits = hl_rng_bits16(key, 77, (uint64_t)(40 + i / C), (uint64_t)(i % C));
        check("mask", mask[i] == (bits < 20000 ? 0.0f : 1.5f));
        check("uniform", uniform[i] == (float)((bits + 0.5) / 65536));
    }
}

/* As many registers and steps as a program may have. */
static void test_long()
{
    start_case("the longest program");
    enum { N = 130 };
    buffer<float> x(N), out(N);
    fill_random(x);
    builder program({N});
    program.load(HL_DTYPE_F32, {N});
    for (int i = 1; i < HL_PROGRAM_REGS; i++) program.step(HL_PW_ADD, i - 1, 0);
    program.store(HL_PROGRAM_REGS - 1, HL_DTYPE_F32);
    program.run("f32", {x.p, out.p}, {&out});
    for (int64_t i = 0; i < N; i++) {
        float sum = x[i];
        for (int k = 1; k < HL_PROGRAM_REGS; k++) sum += x[i];
        check("sum", out[i] == sum);
    }
}

/* ---- what generated kernels divide by -------------------------------------------------------- */

template <class I> static void test_divisor(int64_t d, int bits)
{
    const int64_t most = (int64_t)(((uint64_t)1 << bits) - 1);
    uint64_t words[HL_CUDA_DIVISOR_WORDS];
    hl_cuda_divisor_make(d, bits, words);
    auto check_at = [&](int64_t i) {
        I rest, quotient = hl_divide_by(words, (I)i, &rest);
        n_checks++;
        if ((int64_t)quotient != i / d || (int64_t)rest != i % d)
            FAIL("%lld / %lld in %d bits", (long long)i, (long long)d, bits);
    };
    for (int64_t i : {(int64_t)0, (int64_t)1, d - 1, most / d * d - 1, most / d * d, most})
        check_at(i);
    if (d < most) check_at(d), check_at(most / 2 / d * d), check_at(most / 2 / d * d + d - 1);
    for (int k = 0; k < 20; k++) check_at((int64_t)(random_bits() & (uint64_t)most));
}

static void test_divisors()
{
    start_case("divisors");
    for (int bits : {31, 63}) {
        auto check_one = [&](int64_t d) {
            if (bits == 31)
                test_divisor<uint32_t>(d, bits);
            else
                test_divisor<uint64_t>(d, bits);
        };
        for (int64_t d = 2; d < 300; d++) check_one(d);
        for (int log = 2; log < bits; log++)
            for (int64_t off : {-1, 0, 1}) check_one(((int64_t)1 << log) + off);
        check_one((int64_t)(((uint64_t)1 << bits) - 1));
        for (int k = 0; k < 300; k++)
            check_one(2 + (int64_t)(random_bits() & (((uint64_t)1 << bits) - 1)) / 3);
    }
}

int main()
{
    test_divisors();
    test_floats<float>("f32", HL_DTYPE_F32, 0x1p-24);
    test_floats<double>("f64", HL_DTYPE_F64, 0x1p-53);
    test_ints();
    test_broadcast();
    test_random();
    test_long();
    return finish_tests("test_kernels_pointwise");
}
