/* Pointwise and random ops, and fused programs: one evaluator of micro-ops, one scalar at a time.
 *
 * A program whose operands and results are all integers or bools, and which has no micro-op of a
 * real-valued result, is evaluated in int64 and so is exact; any other in double. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "kernels/ref/ref.h"

typedef struct pointwise {
    hl_program program;
    bool is_integer;
    hl_type in[HL_PROGRAM_INS], out[HL_PROGRAM_OUTS];
} pointwise;

/* One point of the iteration shape, and the registers of one of the two evaluators. */
typedef struct point {
    const pointwise *work;
    void *const *args;
    int64_t index; /* row-major */
    int64_t coordinate[HL_MAX_RANK];
    double reg[HL_PROGRAM_REGS];
    int64_t integer_reg[HL_PROGRAM_REGS];
} point;

/* ---- prepare --------------------------------------------------------------------------------- */

static bool is_integer_program(const pointwise *work)
{
    const hl_program *program = &work->program;
    for (int i = 0; i < program->n_code; i++) {
        const hl_pw_instr *code = &program->code[i];
        if (hl_pw_is_real(code)) return false;
        if (code->op == HL_PW_LOAD && hl_dtype_is_float(work->in[code->in].dtype)) return false;
    }
    for (int j = 0; j < program->n_out; j++)
        if (hl_dtype_is_float(work->out[j].dtype)) return false;
    return true;
}

static hl_status prepare_pointwise(hl_device *device, const hl_graph *graph, hl_node_id node,
                                   hl_kernel_state *out_state)
{
    (void)device;
    out_state->impl = NULL;
    const hl_node *n = &graph->nodes[node];
    hl_status status;
    void *memory = NULL;
    HL_TRY(hl_alloc_zero(sizeof(pointwise), &memory));
    pointwise *work = memory;
    if (n->program)
        work->program = *n->program;
    else
        HL_GOTO(hl_program_from_node(graph, node, &work->program));
    for (int32_t i = 0; i < n->n_in; i++) work->in[i] = graph->values[n->in[i]].type;
    for (int32_t j = 0; j < n->n_out; j++) work->out[j] = graph->values[n->out + j].type;
    work->is_integer = is_integer_program(work);
    out_state->impl = work;
    memory = NULL;
    status = HL_OK;
cleanup:
    hl_free(memory);
    return status;
}

/* ---- operands -------------------------------------------------------------------------------- */

/* NumPy broadcasting: trailing dims meet, a dim of 1 is read at 0. */
static int64_t find_element(const point *at, const hl_shape *shape)
{
    int lead = at->work->program.shape.rank - shape->rank;
    int64_t element = 0;
    for (int d = 0; d < shape->rank; d++)
        element = element * shape->dim[d] + (shape->dim[d] == 1 ? 0 : at->coordinate[lead + d]);
    return element;
}

/* The first dim of the iteration counts samples; an element's number is its place in its sample. */
static uint16_t draw_bits(const point *at, const hl_pw_instr *code)
{
    const hl_control *control = at->args[code->in];
    const hl_shape *shape = &at->work->program.shape;
    int64_t sample_size = hl_shape_span(shape, 1, shape->rank);
    int64_t row = shape->rank > 0 ? at->index / sample_size : 0;
    int64_t element = shape->rank > 0 ? at->index % sample_size : 0;
    return hl_rng_bits16(code->key, (uint32_t)control->attempted,
                         (uint64_t)(control->micro_row + row), (uint64_t)element);
}

/* ---- the micro-ops in double ----------------------------------------------------------------- */

static double sigmoid(double x)
{
    if (x >= 0) return 1 / (1 + exp(-x));
    return exp(x) / (1 + exp(x));
}

/* The remainder of floored division, exactly: fmod has a's sign, the result b's. */
static double remainder_floored(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double cast_number(double x, hl_dtype dtype)
{
    double memory; /* of any dtype */
    hl_ref_store(&memory, dtype, 0, x);
    return hl_ref_load(&memory, dtype, 0);
}

static double compute_leaf(const point *at, const hl_pw_instr *code)
{
    switch (code->op) {
    case HL_PW_LOAD: {
        const hl_type *type = &at->work->in[code->in];
        return hl_ref_load(at->args[code->in], type->dtype, find_element(at, &type->shape));
    }
    case HL_PW_DROPOUT:
        return draw_bits(at, code) < hl_dropout_threshold(code->number)
                   ? 0
                   : hl_dropout_scale(code->number);
    case HL_PW_UNIFORM: return (draw_bits(at, code) + 0.5) / 65536;
    default: return code->number;
    }
}

static double compute_unary(const hl_pw_instr *code, double x)
{
    switch (code->op) {
    case HL_PW_NEG: return -x;
    case HL_PW_ABS: return fabs(x);
    case HL_PW_SIGN: return (x > 0) - (x < 0);
    case HL_PW_EXP: return exp(x);
    case HL_PW_EXPM1: return expm1(x);
    case HL_PW_LOG: return log(x);
    case HL_PW_LOG1P: return log1p(x);
    case HL_PW_SQRT: return sqrt(x);
    case HL_PW_RSQRT: return 1 / sqrt(x);
    case HL_PW_RECIPROCAL: return 1 / x;
    case HL_PW_SIN: return sin(x);
    case HL_PW_COS: return cos(x);
    case HL_PW_TANH: return tanh(x);
    case HL_PW_SIGMOID: return sigmoid(x);
    case HL_PW_SOFTPLUS: return fmax(x, 0) + log1p(exp(-fabs(x)));
    case HL_PW_ERF: return erf(x);
    case HL_PW_RELU: return x > 0 || isnan(x) ? x : 0;
    case HL_PW_FLOOR: return floor(x);
    case HL_PW_CEIL: return ceil(x);
    case HL_PW_ROUND: return rint(x);
    case HL_PW_ISFINITE: return isfinite(x) != 0;
    case HL_PW_NOT: return x == 0;
    default: return cast_number(x, (hl_dtype)code->number);
    }
}

static double compute_binary(const hl_pw_instr *code, double a, double b)
{
    switch (code->op) {
    case HL_PW_ADD: return a + b;
    case HL_PW_SUB: return a - b;
    case HL_PW_MUL: return a * b;
    case HL_PW_DIV: return a / b;
    case HL_PW_POW: return pow(a, b);
    case HL_PW_MOD: return remainder_floored(a, b);
    case HL_PW_MAXIMUM: return isnan(a) || a > b ? a : b;
    case HL_PW_MINIMUM: return isnan(a) || a < b ? a : b;
    case HL_PW_EQ: return a == b;
    case HL_PW_NE: return a != b;
    case HL_PW_LT: return a < b;
    case HL_PW_LE: return a <= b;
    case HL_PW_GT: return a > b;
    case HL_PW_GE: return a >= b;
    case HL_PW_AND: return a != 0 && b != 0;
    default: return a != 0 || b != 0; /* OR */
    }
}

static double compute_double(const point *at, const hl_pw_instr *code)
{
    const double *reg = at->reg;
    switch (hl_pw_operands((hl_pw_op)code->op)) {
    case 0: return compute_leaf(at, code);
    case 1: return compute_unary(code, reg[code->a]);
    case 2: return compute_binary(code, reg[code->a], reg[code->b]);
    default:
        if (code->op == HL_PW_FMA) return fma(reg[code->a], reg[code->b], reg[code->c]);
        return reg[code->a] != 0 ? reg[code->b] : reg[code->c];
    }
}

/* ---- the micro-ops in int64: sums and products wrap ------------------------------------------ */

static int64_t add_wrapped(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t negate_wrapped(int64_t a)
{
    return (int64_t)(0 - (uint64_t)a);
}

static int64_t multiply_wrapped(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* By 0, where there is no remainder, it is 0 as in NumPy. */
static int64_t remainder_integer(int64_t a, int64_t b)
{
    if (b == 0 || b == -1) return 0;
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int64_t cast_integer(int64_t x, hl_dtype dtype)
{
    int64_t memory; /* of any integer dtype */
    hl_ref_store_int(&memory, dtype, 0, x);
    return hl_ref_load_int(&memory, dtype, 0);
}

static int64_t compute_integer(const point *at, const hl_pw_instr *code)
{
    const int64_t *reg = at->integer_reg;
    int64_t a = reg[code->a], b = reg[code->b], c = reg[code->c];
    switch (code->op) {
    case HL_PW_LOAD: {
        const hl_type *type = &at->work->in[code->in];
        return hl_ref_load_int(at->args[code->in], type->dtype, find_element(at, &type->shape));
    }
    case HL_PW_NUMBER: return (int64_t)code->number;
    case HL_PW_NEG: return negate_wrapped(a);
    case HL_PW_ABS: return a < 0 ? negate_wrapped(a) : a;
    case HL_PW_SIGN: return (a > 0) - (a < 0);
    case HL_PW_RELU: return a > 0 ? a : 0;
    case HL_PW_FLOOR:
    case HL_PW_CEIL:
    case HL_PW_ROUND: return a;
    case HL_PW_ISFINITE: return 1;
    case HL_PW_NOT: return a == 0;
    case HL_PW_CAST: return cast_integer(a, (hl_dtype)code->number);
    case HL_PW_ADD: return add_wrapped(a, b);
    case HL_PW_SUB: return add_wrapped(a, negate_wrapped(b));
    case HL_PW_MUL: return multiply_wrapped(a, b);
    case HL_PW_MOD: return remainder_integer(a, b);
    case HL_PW_MAXIMUM: return a > b ? a : b;
    case HL_PW_MINIMUM: return a < b ? a : b;
    case HL_PW_EQ: return a == b;
    case HL_PW_NE: return a != b;
    case HL_PW_LT: return a < b;
    case HL_PW_LE: return a <= b;
    case HL_PW_GT: return a > b;
    case HL_PW_GE: return a >= b;
    case HL_PW_AND: return a != 0 && b != 0;
    case HL_PW_OR: return a != 0 || b != 0;
    case HL_PW_FMA: return add_wrapped(multiply_wrapped(a, b), c);
    default: return a != 0 ? b : c; /* WHERE */
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Where output j keeps this point's value: in full, or in the sum over the point's rows or cols. */
static int64_t find_output(const hl_program *program, int j, int64_t index)
{
    int64_t n_cols = hl_shape_span(&program->shape, program->split, program->shape.rank);
    switch (program->out[j].reduce) {
    case HL_PW_SUM_ROWS: return index % n_cols;
    case HL_PW_SUM_COLS: return index / n_cols;
    case HL_PW_SUM_ALL: return 0;
    default: return index;
    }
}

static void evaluate_double(point *at, void *const *out)
{
    const hl_program *program = &at->work->program;
    for (int i = 0; i < program->n_code; i++)
        at->reg[program->code[i].dst] = compute_double(at, &program->code[i]);
    for (int j = 0; j < program->n_out; j++) {
        hl_dtype dtype = at->work->out[j].dtype;
        int64_t place = find_output(program, j, at->index);
        double value = at->reg[program->out[j].reg];
        if (program->out[j].reduce != HL_PW_FULL) value += hl_ref_load(out[j], dtype, place);
        hl_ref_store(out[j], dtype, place, value);
    }
}

static void evaluate_integer(point *at, void *const *out)
{
    const hl_program *program = &at->work->program;
    for (int i = 0; i < program->n_code; i++)
        at->integer_reg[program->code[i].dst] = compute_integer(at, &program->code[i]);
    for (int j = 0; j < program->n_out; j++) {
        hl_dtype dtype = at->work->out[j].dtype;
        int64_t place = find_output(program, j, at->index);
        int64_t value = at->integer_reg[program->out[j].reg];
        if (program->out[j].reduce != HL_PW_FULL)
            value = add_wrapped(value, hl_ref_load_int(out[j], dtype, place));
        hl_ref_store_int(out[j], dtype, place, value);
    }
}

static hl_status launch_pointwise(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const pointwise *work = state->impl;
    const hl_program *program = &work->program;
    void *const *out = args + program->n_in;
    for (int j = 0; j < program->n_out; j++) {
        size_t bytes =
            (size_t)hl_shape_numel(&work->out[j].shape) * hl_dtype_bytes(work->out[j].dtype);
        if (program->out[j].reduce != HL_PW_FULL && bytes > 0) memset(out[j], 0, bytes);
    }
    point at = {.work = work, .args = args};
    int64_t n = hl_shape_numel(&program->shape);
    for (; at.index < n; at.index++) {
        if (work->is_integer)
            evaluate_integer(&at, out);
        else
            evaluate_double(&at, out);
        for (int d = program->shape.rank - 1; d >= 0; d--) {
            if (++at.coordinate[d] < program->shape.dim[d]) break;
            at.coordinate[d] = 0;
        }
    }
    return HL_OK;
}

/* ---- gelu ------------------------------------------------------------------------------------ */

static const double GELU_CUBE = 0.044715;

static double gelu_tanh(double x)
{
    return tanh(sqrt(2 / acos(-1)) * (x + GELU_CUBE * x * x * x));
}

static hl_status launch_gelu(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const double *x = args[0];
    double *y = args[1];
    for (int64_t i = 0; i < hl_shape_numel(&call->in[0].shape); i++)
        y[i] = x[i] / 2 * (1 + gelu_tanh(x[i]));
    return HL_OK;
}

static hl_status launch_gelu_grad(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const double *dy = args[0], *x = args[1];
    double *dx = args[2], k = sqrt(2 / acos(-1));
    for (int64_t i = 0; i < hl_shape_numel(&call->in[0].shape); i++) {
        double t = gelu_tanh(x[i]), inner = k * (1 + 3 * GELU_CUBE * x[i] * x[i]);
        dx[i] = dy[i] * ((1 + t) / 2 + x[i] / 2 * (1 - t * t) * inner);
    }
    return HL_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define POINTWISE(id, op_name)                                                                     \
    {.op = HL_OP_##id,                                                                             \
     .name = "ref." op_name,                                                                       \
     .query = hl_ref_query_any,                                                                    \
     .prepare = prepare_pointwise,                                                                 \
     .launch = launch_pointwise}

static const hl_kernel kernels[] = {
    POINTWISE(NEG, "neg"),
    POINTWISE(ABS, "abs"),
    POINTWISE(SIGN, "sign"),
    POINTWISE(EXP, "exp"),
    POINTWISE(EXPM1, "expm1"),
    POINTWISE(LOG, "log"),
    POINTWISE(LOG1P, "log1p"),
    POINTWISE(SQRT, "sqrt"),
    POINTWISE(RSQRT, "rsqrt"),
    POINTWISE(RECIPROCAL, "reciprocal"),
    POINTWISE(SIN, "sin"),
    POINTWISE(COS, "cos"),
    POINTWISE(TANH, "tanh"),
    POINTWISE(SIGMOID, "sigmoid"),
    POINTWISE(SOFTPLUS, "softplus"),
    POINTWISE(ERF, "erf"),
    POINTWISE(RELU, "relu"),
    HL_REF_KERNEL(GELU, "gelu", hl_ref_query_f64, launch_gelu),
    HL_REF_KERNEL(GELU_GRAD, "gelu_grad", hl_ref_query_f64, launch_gelu_grad),
    POINTWISE(FLOOR, "floor"),
    POINTWISE(CEIL, "ceil"),
    POINTWISE(ROUND, "round"),
    POINTWISE(ISFINITE, "isfinite"),
    POINTWISE(NOT, "logical_not"),
    POINTWISE(CAST, "cast"),
    POINTWISE(ADD, "add"),
    POINTWISE(SUB, "sub"),
    POINTWISE(MUL, "mul"),
    POINTWISE(DIV, "div"),
    POINTWISE(POW, "pow"),
    POINTWISE(MOD, "remainder"),
    POINTWISE(MAXIMUM, "maximum"),
    POINTWISE(MINIMUM, "minimum"),
    POINTWISE(EQ, "eq"),
    POINTWISE(NE, "ne"),
    POINTWISE(LT, "lt"),
    POINTWISE(LE, "le"),
    POINTWISE(GT, "gt"),
    POINTWISE(GE, "ge"),
    POINTWISE(AND, "logical_and"),
    POINTWISE(OR, "logical_or"),
    POINTWISE(WHERE, "where"),
    POINTWISE(DROPOUT_MASK, "dropout_mask"),
    POINTWISE(UNIFORM, "uniform"),
    POINTWISE(POINTWISE_FUSED, "pointwise"),
};
const hl_ref_family hl_ref_pointwise = HL_REF_FAMILY(kernels);
