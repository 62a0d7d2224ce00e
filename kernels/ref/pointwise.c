/* Pointwise and random ops, and fused programs: one evaluator of micro-ops, one scalar at a time.
 * Micro-ops are the expressions of ir/pointwise.def over the functions real_* and whole_* below.
 *
 * A program of integers alone (hl_program_kind) is evaluated in int64 and so is exact; any other in
 * double. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/float_mode.h"
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
    work->is_integer = hl_program_kind(&work->program, graph, n) == HL_PW_I64;
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

/* ---- the functions of expressions, in double ------------------------------------------------- */

#define REAL_1(name, expression)                                                                   \
    static double real_##name(double x)                                                            \
    {                                                                                              \
        return expression;                                                                         \
    }
#define REAL_2(name, expression)                                                                   \
    static double real_##name(double x, double y)                                                  \
    {                                                                                              \
        return expression;                                                                         \
    }
#define REAL_MASK(name, expression)                                                                \
    static bool real_##name(double x, double y)                                                    \
    {                                                                                              \
        return expression;                                                                         \
    }
REAL_1(set1, x)
REAL_1(neg, -x)
REAL_1(abs, fabs(x))
REAL_1(sqrt, sqrt(x))
REAL_1(rsqrt, 1 / sqrt(x))
REAL_1(exp, exp(x))
REAL_1(expm1, expm1(x))
REAL_1(log, log(hl_float_flushed(x)))
REAL_1(log1p, log1p(x))
REAL_1(sin, sin(x))
REAL_1(cos, cos(x))
REAL_1(tanh, tanh(x))
REAL_1(sigmoid, x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)))
REAL_1(erf, erf(x))
REAL_1(relu, x > 0 || isnan(x) ? x : 0)
REAL_1(floor, floor(x))
REAL_1(round, rint(x))
REAL_2(add, x + y)
REAL_2(sub, x - y)
REAL_2(mul, (x * y))
REAL_2(pow, pow(hl_float_flushed(x), hl_float_flushed(y)))
REAL_2(max, x > y ? x : y)
REAL_2(min, x < y ? x : y)
REAL_MASK(eq, x == y)
REAL_MASK(ne, x != y)
REAL_MASK(lt, x < y)
REAL_MASK(le, x <= y)
REAL_MASK(gt, x > y)
REAL_MASK(ge, x >= y)

/* The remainder of floored division, exactly: fmod has x's sign, the result y's. */
static double real_mod(double x, double y)
{
    double r = fmod(hl_float_flushed(x), hl_float_flushed(y));
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static double real_select(bool mask, double x, double y)
{
    return mask ? x : y;
}

static double real_keep(bool mask, double x)
{
    return mask ? x : 0;
}

static double real_cast(double x, hl_dtype dtype)
{
    double memory; /* of any dtype */
    hl_ref_store(&memory, dtype, 0, x);
    return hl_ref_load(&memory, dtype, 0);
}

static bool real_both(bool m, bool n)
{
    return m && n;
}
static bool real_either(bool m, bool n)
{
    return m || n;
}
static double real_truth(bool mask)
{
    return mask;
}

#define REAL                     double
#define FUNCTION(name, operands) static double real_##name operands
#define F(name)                  real_##name
#include "ir/pointwise_functions.def"
#undef F

/* ---- the same in int64: sums and products wrap ----------------------------------------------- */

#define WHOLE_1(name, expression)                                                                  \
    static int64_t whole_##name(int64_t x)                                                         \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }
#define WHOLE_2(name, expression)                                                                  \
    static int64_t whole_##name(int64_t x, int64_t y)                                              \
    {                                                                                              \
        return (int64_t)(expression);                                                              \
    }
#define WHOLE_MASK(name, expression)                                                               \
    static bool whole_##name(int64_t x, int64_t y)                                                 \
    {                                                                                              \
        return expression;                                                                         \
    }
WHOLE_1(set1, x)
WHOLE_1(neg, 0 - (uint64_t)x)
WHOLE_1(abs, x < 0 ? 0 - (uint64_t)x : (uint64_t)x)
WHOLE_1(relu, x > 0 ? x : 0)
WHOLE_1(floor, x)
WHOLE_1(round, x)
WHOLE_2(add, (uint64_t)x + (uint64_t)y)
WHOLE_2(sub, (uint64_t)x - (uint64_t)y)
WHOLE_2(mul, ((uint64_t)x * (uint64_t)y))
WHOLE_2(max, x > y ? x : y)
WHOLE_2(min, x < y ? x : y)
WHOLE_MASK(eq, x == y)
WHOLE_MASK(ne, x != y)
WHOLE_MASK(lt, x < y)
WHOLE_MASK(le, x <= y)
WHOLE_MASK(gt, x > y)
WHOLE_MASK(ge, x >= y)

/* By 0, where there is no remainder, it is 0 as in NumPy. */
static int64_t whole_mod(int64_t x, int64_t y)
{
    if (y == 0 || y == -1) return 0;
    int64_t r = x % y;
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static int64_t whole_select(bool mask, int64_t x, int64_t y)
{
    return mask ? x : y;
}

static int64_t whole_keep(bool mask, int64_t x)
{
    return mask ? x : 0;
}

static int64_t whole_cast(int64_t x, hl_dtype dtype)
{
    int64_t memory; /* of any integer dtype */
    hl_ref_store_int(&memory, dtype, 0, x);
    return hl_ref_load_int(&memory, dtype, 0);
}

static bool whole_both(bool m, bool n)
{
    return m && n;
}
static bool whole_either(bool m, bool n)
{
    return m || n;
}
static int64_t whole_truth(bool mask)
{
    return mask;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static double compute_double(const point *at, const hl_pw_instr *code)
{
    double a = at->reg[code->a], b = at->reg[code->b], c = at->reg[code->c];
    switch (code->op) {
#define F(name) real_##name
#define HL_PW(id, name, n, result, flags, vjp, cost, expression, doc)                              \
    case HL_PW_##id: return expression;
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc)                                    \
    case HL_PW_##id: {                                                                             \
        hl_dtype dtype = (hl_dtype)code->number;                                                   \
        return expression;                                                                         \
    }
#include "ir/pointwise.def"
#undef F
    case HL_PW_LOAD: {
        const hl_type *type = &at->work->in[code->in];
        return hl_ref_load(at->args[code->in], type->dtype, find_element(at, &type->shape));
    }
    case HL_PW_DROPOUT_MASK:
        return draw_bits(at, code) < hl_dropout_threshold(code->number)
                   ? 0
                   : hl_dropout_scale(code->number);
    case HL_PW_UNIFORM: return (draw_bits(at, code) + 0.5) / 65536;
    default: return code->number;
    }
}

/* No program of integers has a FLOAT op. */
#define WHOLE_ANY(id, expression)                                                                  \
    case HL_PW_##id: return expression;
#define WHOLE_NUMBER(id, expression) WHOLE_ANY(id, expression)
#define WHOLE_FIRST(id, expression)  WHOLE_ANY(id, expression)
#define WHOLE_CHOSEN(id, expression) WHOLE_ANY(id, expression)
#define WHOLE_BOOL(id, expression)   WHOLE_ANY(id, expression)
#define WHOLE_FLOAT(id, expression)

static int64_t compute_integer(const point *at, const hl_pw_instr *code)
{
    const int64_t *reg = at->integer_reg;
    int64_t a = reg[code->a], b = reg[code->b], c = reg[code->c];
    switch (code->op) {
#define F(name)                                                       whole_##name
#define HL_PW(id, name, n, result, flags, vjp, cost, expression, doc) WHOLE_##result(id, expression)
#define HL_PW_CAST(id, name, attrs, vjp, cost, expression, doc)                                    \
    case HL_PW_##id: {                                                                             \
        hl_dtype dtype = (hl_dtype)code->number;                                                   \
        return expression;                                                                         \
    }
#include "ir/pointwise.def"
#undef F
    case HL_PW_LOAD: {
        const hl_type *type = &at->work->in[code->in];
        return hl_ref_load_int(at->args[code->in], type->dtype, find_element(at, &type->shape));
    }
    default: return (int64_t)code->number;
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Where output j keeps this point's value: its place among the groups that are not summed. */
static int64_t find_output(const hl_program *program, int j, int64_t index)
{
    const hl_shape *shape = &program->shape;
    const int32_t bounds[] = {0, program->split[0], program->split[1], shape->rank};
    int64_t place = 0, step = 1;
    for (int g = 2; g >= 0; g--) {
        int64_t n = hl_shape_span(shape, bounds[g], bounds[g + 1]);
        if (!(program->out[j].sums >> g & 1)) {
            place += index % n * step;
            step *= n;
        }
        index /= n;
    }
    return place;
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
        if (program->out[j].sums != HL_PW_FULL) value += hl_ref_load(out[j], dtype, place);
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
        if (program->out[j].sums != HL_PW_FULL)
            value = whole_add(value, hl_ref_load_int(out[j], dtype, place));
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
        if (program->out[j].sums != HL_PW_FULL && bytes > 0) memset(out[j], 0, bytes);
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

/* ---- the table ------------------------------------------------------------------------------- */

#define POINTWISE(id, op_name)                                                                     \
    {.op = HL_OP_##id,                                                                             \
     .name = "ref." op_name,                                                                       \
     .query = hl_ref_query_any,                                                                    \
     .prepare = prepare_pointwise,                                                                 \
     .launch = launch_pointwise},

static const hl_kernel kernels[] = {
#define HL_PW(id, name, ...)      POINTWISE(id, name)
#define HL_PW_CAST(id, name, ...) POINTWISE(id, name)
#define HL_PW_DRAW(id, name, ...) POINTWISE(id, name)
#include "ir/pointwise.def"
    POINTWISE(POINTWISE_FUSED, "pointwise")};
const hl_ref_family hl_ref_pointwise = HL_REF_FAMILY(kernels);
