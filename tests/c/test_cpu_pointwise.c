/* The pointwise engine against the reference's evaluator: every micro-op, every operand form,
 * every dtype, every kind of sum, random programs over all of them, random numbers bit by bit. */
#include "tests/c/cpu_case.h"
#include "tests/c/program_case.h"

static uint8_t emit(program_case *p, hl_pw_op op, uint8_t x, uint8_t y, uint8_t z, double number)
{
    return program_emit(p,
                        (hl_pw_instr){.op = (uint8_t)op, .a = x, .b = y, .c = z, .number = number});
}

/* Leading dims of 1 stand or fall by chance. */
static uint8_t load(program_case *p, hl_dtype dtype, unsigned mask, double low, double high)
{
    int in = p->c.n_in, lead = 0;
    uint8_t reg = program_load(p, dtype, mask);
    hl_shape shape = p->c.in[in].shape;
    while (lead < shape.rank && shape.dim[lead] == 1 && dice_draw() > 0) lead++;
    p->c.in[in].shape = hl_shape_make(shape.rank - lead, shape.dim + lead);
    case_fill(&p->c, in, low, high);
    return reg;
}

static uint8_t draw_random(program_case *p, hl_pw_op op, double probability)
{
    return program_emit(p, (hl_pw_instr){.op = (uint8_t)op,
                                         .in = program_add_control(p),
                                         .number = probability,
                                         .key = {{11, 22}}});
}

static const int64_t shapes[][4] = {{1, 1, 1, 1},  {1, 1, 1, 7},   {1, 1, 3, 5},    {1, 1, 40, 10},
                                    {1, 1, 9, 16}, {1, 1, 5, 513}, {1, 1, 3, 2000}, {1, 2, 3, 4},
                                    {3, 5, 7, 11}, {1, 4, 33, 99}, {1, 1, 1, 5000}, {1, 1, 700, 3},
                                    {1, 1, 0, 4},  {1, 1, 4, 0},   {1, 70, 1, 9},   {1, 1, 100, 1}};
static const int ranks[] = {0, 1, 2, 2, 2, 2, 2, 3, 4, 3, 1, 2, 2, 2, 3, 2};
enum { N_SHAPES = sizeof ranks / sizeof ranks[0] };

static void start_shape(program_case *b, int s, int split)
{
    program_begin(b, ranks[s], shapes[s] + 4 - ranks[s], split);
}

static void test_unary(void)
{
    for (int op = 0; op < HL_PW_COUNT; op++) {
        if (hl_pw_operands((hl_pw_op)op) != 1 || op == HL_PW_CAST) continue;
        for (int s = 0; s < N_SHAPES; s++) {
            program_case b;
            start_shape(&b, s, 0);
            double low = op == HL_PW_LOG || op == HL_PW_SQRT || op == HL_PW_RSQRT ? 0.01 : -0.9;
            uint8_t x = load(&b, HL_DTYPE_F32, 15, low, 3);
            program_put(&b, emit(&b, (hl_pw_op)op, x, 0, 0, 0), HL_PW_FULL, HL_DTYPE_F32);
            check_case("%d rank %d shape %d", op, ranks[s], s);
            b.c.tolerance = 4e-6;
            case_check(&b.c);
        }
    }
}

static void test_special_values(void)
{
    const double values[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.5, -2.5, 2.5, 1e-40};
    for (int op = 0; op < HL_PW_COUNT; op++) {
        if (hl_pw_operands((hl_pw_op)op) == 0 || hl_pw_operands((hl_pw_op)op) == 3) continue;
        if (op == HL_PW_CAST || op == HL_PW_SIN || op == HL_PW_COS) continue;
        program_case b;
        int64_t dim[1] = {81};
        program_begin(&b, 1, dim, 0);
        uint8_t x = load(&b, HL_DTYPE_F32, 1, 0, 1), y = load(&b, HL_DTYPE_F32, 1, 0, 1);
        for (int i = 0; i < 81; i++) {
            b.c.data[0][i] = (double)(float)values[i / 9], b.c.data[1][i] = values[i % 9];
        }
        b.c.data[1][80] = 3;
        for (int i = 0; i < 81; i++) b.c.data[1][i] = (double)(float)b.c.data[1][i];
        program_put(&b, emit(&b, (hl_pw_op)op, x, y, 0, 0), HL_PW_FULL, HL_DTYPE_F32);
        check_case("special values, op %s", hl_pw_name((hl_pw_op)op));
        b.c.tolerance = 1e-5;
        /* Beyond fp32's range the reference is finite where fp32 is not. */
        if (op == HL_PW_DIV || op == HL_PW_RECIPROCAL || op == HL_PW_POW || op == HL_PW_RSQRT ||
            op == HL_PW_MOD) {
            for (int i = 0; i < 81; i++) {
                for (int v = 0; v < 2; v++) {
                    if (b.c.data[v][i] > 0 && b.c.data[v][i] < 1e-30) b.c.data[v][i] = 4;
                }
            }
        }
        case_check(&b.c);
    }
}

/* Every pair of operand forms, so that each layout is met in each place. */
static void test_binary_forms(void)
{
    for (int s = 0; s < N_SHAPES; s++) {
        unsigned n_masks = 1u << ranks[s];
        for (unsigned m = 0; m < n_masks * n_masks; m++) {
            program_case b;
            start_shape(&b, s, 0);
            uint8_t x = load(&b, HL_DTYPE_F32, m % n_masks, -2, 2);
            uint8_t y = load(&b, HL_DTYPE_F32, m / n_masks, -2, 2);
            static const hl_pw_op ops[] = {
                HL_PW_ADD, HL_PW_SUB, HL_PW_MUL, HL_PW_MAXIMUM, HL_PW_MINIMUM, HL_PW_EQ, HL_PW_NE,
                HL_PW_LT,  HL_PW_LE,  HL_PW_GT,  HL_PW_GE,      HL_PW_AND,     HL_PW_OR};
            int op = ops[(m + (unsigned)s) % (sizeof ops / sizeof *ops)];
            program_put(&b, emit(&b, (hl_pw_op)op, x, y, 0, 0), HL_PW_FULL, HL_DTYPE_F32);
            check_case("op %d shape %d masks %u", op, s, m);
            case_check(&b.c);
        }
    }
}

static void test_dtypes(void)
{
    for (int from = 0; from < HL_DTYPE_COUNT; from++) {
        for (int to = 0; to < HL_DTYPE_COUNT; to++) {
            for (unsigned mask = 0; mask < 4; mask++) {
                program_case b;
                int64_t dim[2] = {37, 21};
                program_begin(&b, 2, dim, 1);
                bool is_unsigned =
                    from == HL_DTYPE_U8 || to == HL_DTYPE_U8 || from == HL_DTYPE_BOOL;
                uint8_t x = load(&b, (hl_dtype)from, mask, is_unsigned ? 0 : -100, 100);
                uint8_t y = emit(&b, HL_PW_CAST, x, 0, 0, to);
                program_put(&b, y, HL_PW_FULL, (hl_dtype)to);
                check_case("cast %d to %d mask %u", from, to, mask);
                b.c.tolerance = to == HL_DTYPE_BF16 ? 0.004 : to == HL_DTYPE_F16 ? 6e-4 : 1e-6;
                case_check(&b.c);
            }
        }
    }
}

static void test_integers(void)
{
    for (int op = 0; op < HL_PW_COUNT; op++) {
        bool is_real = hl_pw_result_of((hl_pw_op)op) == HL_PW_RESULT_FLOAT;
        if (hl_pw_operands((hl_pw_op)op) != 2 || is_real) continue;
        program_case b;
        int64_t dim[2] = {50, 30};
        program_begin(&b, 2, dim, 1);
        uint8_t x = load(&b, HL_DTYPE_I64, 3, -50, 50), y = load(&b, HL_DTYPE_I32, 2, -5, 5);
        uint8_t z = emit(&b, (hl_pw_op)op, x, y, 0, 0);
        program_put(&b, z, HL_PW_FULL, HL_DTYPE_I64);
        program_put(&b, z, HL_PW_SUM_ROWS, HL_DTYPE_I64);
        program_put(&b, z, HL_PW_SUM_COLS, HL_DTYPE_I64);
        program_put(&b, z, HL_PW_SUM_ALL, HL_DTYPE_I64);
        check_case("integers, op %d", op);
        b.c.tolerance = 0;
        case_check(&b.c);
    }
}

/* What registers hold is by one rule for all devices. */
static void test_kinds(void)
{
    const int64_t dim[] = {40};
    for (int rank = 0; rank < 2; rank++) {
        program_case b;
        check_case("beside a number, rank %d", rank);
        program_compare_beside_number(&b, rank, dim);
        case_check(&b.c);
        check_case("integers divided, rank %d", rank);
        program_divide_integers(&b, rank, dim);
        case_check(&b.c);
    }
}

static void test_random(void)
{
    for (int s = 0; s < N_SHAPES; s++) {
        for (int p = 0; p < 5; p++) {
            static const double probability[] = {0, 0.1, 0.5, 0.999, 1};
            program_case b;
            start_shape(&b, s, 0);
            uint8_t mask = draw_random(&b, HL_PW_DROPOUT_MASK, probability[p]);
            uint8_t uniform = draw_random(&b, HL_PW_UNIFORM, 0);
            program_put(&b, mask, HL_PW_FULL, HL_DTYPE_F32);
            program_put(&b, uniform, HL_PW_FULL, HL_DTYPE_F32);
            b.c.tolerance = 1e-7;
            check_case("random, shape %d, p %g", s, probability[p]);
            case_check(&b.c);
        }
    }
}

static int pick(int n)
{
    return (int)((dice_draw() + 1) / 2 * n);
}

/* Straight-line code over operands of any form and dtype, with every kind of output. */
static void check_random_program(int number)
{
    static const uint8_t ops[] = {
        HL_PW_NEG, HL_PW_ABS, HL_PW_TANH,    HL_PW_SIGMOID, HL_PW_RELU,  HL_PW_ADD, HL_PW_SUB,
        HL_PW_MUL, HL_PW_ADD, HL_PW_MAXIMUM, HL_PW_MINIMUM, HL_PW_WHERE, HL_PW_GT,  HL_PW_NUMBER};
    static const hl_dtype dtypes[] = {HL_DTYPE_F32,  HL_DTYPE_F32, HL_DTYPE_F32,
                                      HL_DTYPE_BOOL, HL_DTYPE_I32, HL_DTYPE_BF16};
    program_case b;
    int s = number % N_SHAPES;
    dice_state = 0x9E3779B97F4A7C15ull * (uint64_t)(number + 1); /* whatever ran before */
    start_shape(&b, s, pick(ranks[s] + 1));
    int n_loads = 1 + pick(5);
    for (int i = 0; i < n_loads; i++) load(&b, dtypes[pick(6)], (unsigned)pick(16), -2, 2);
    if (number % 3 == 0) draw_random(&b, HL_PW_DROPOUT_MASK, 0.3);
    int n_ops = 1 + pick(25);
    for (int i = 0; i < n_ops && b.program.n_regs < HL_PROGRAM_REGS - 2; i++) {
        int n = b.program.n_regs, recent = n < 6 ? n : 6;
        int x = n - 1 - pick(recent), y = n - 1 - pick(recent), z = pick(n);
        int op = ops[pick(sizeof ops)];
        int reg = emit(&b, (hl_pw_op)op, x, y, z, dice_draw());
        if (op == HL_PW_MUL) emit(&b, HL_PW_TANH, reg, 0, 0, 0);
    }
    int n_outs = 1 + pick(4);
    for (int j = 0; j < n_outs; j++) {
        int reg = b.program.n_regs - 1 - pick((b.program.n_regs + 1) / 2);
        program_put(&b, reg, (hl_pw_reduce)pick(4), HL_DTYPE_F32);
    }
    /* fp32 rounding through up to 50 operations and sums of up to 5000 elements. */
    b.c.tolerance = 2e-3;
    check_case("random program %d", number);
    case_check(&b.c);
}

int main(void)
{
    case_open();
    test_unary();
    test_special_values();
    test_binary_forms();
    test_dtypes();
    test_integers();
    test_kinds();
    test_random();
    for (int i = 0; i < 600; i++) check_random_program(i);
    case_close();
    return CHECK_DONE();
}
