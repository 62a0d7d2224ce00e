/* Gradients of pointwise ops. Where the output serves as well as the input (exp, tanh, relu, ...)
 * the output is used: the input need not live until then. Masks choose by WHERE, never by a
 * product, so that an infinity or NaN on the other side does not leak. */
#include "ops/build.h"
#include "ops/ops.h"

/* Names of a unary op's operand, output and gradient. */
#define HL_UNARY_VJP(name)                                                                         \
    static hl_status build_##name(hl_graph *graph, hl_id x, hl_id y, hl_id d, hl_id *out_dx);      \
    HL_VJP(name)                                                                                   \
    {                                                                                              \
        const hl_node *node = &graph->nodes[id];                                                   \
        return need[0] ? build_##name(graph, node->in[0], node->out, dout[0], &din[0]) : HL_OK;    \
    }                                                                                              \
    static hl_status build_##name(hl_graph *graph, hl_id x, hl_id y, hl_id d, hl_id *out_dx)

HL_UNARY_VJP(neg)
{
    (void)x, (void)y;
    return hl_build_unary(graph, HL_OP_NEG, d, out_dx);
}

HL_UNARY_VJP(abs)
{
    (void)y;
    hl_id sign;
    HL_TRY(hl_build_unary(graph, HL_OP_SIGN, x, &sign));
    return hl_build_binary(graph, HL_OP_MUL, d, sign, out_dx);
}

HL_UNARY_VJP(exp)
{
    (void)x;
    return hl_build_binary(graph, HL_OP_MUL, d, y, out_dx);
}

HL_UNARY_VJP(expm1)
{
    (void)x;
    hl_id slope;
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, y, 1, &slope));
    return hl_build_binary(graph, HL_OP_MUL, d, slope, out_dx);
}

HL_UNARY_VJP(log)
{
    (void)y;
    return hl_build_binary(graph, HL_OP_DIV, d, x, out_dx);
}

HL_UNARY_VJP(log1p)
{
    (void)y;
    hl_id sum;
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, x, 1, &sum));
    return hl_build_binary(graph, HL_OP_DIV, d, sum, out_dx);
}

HL_UNARY_VJP(sqrt)
{
    (void)x;
    hl_id half;
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, d, 0.5, &half));
    return hl_build_binary(graph, HL_OP_DIV, half, y, out_dx);
}

/* d * -y^3 / 2 */
HL_UNARY_VJP(rsqrt)
{
    (void)x;
    hl_id cube, half;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, y, &cube));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, cube, y, &cube));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, d, -0.5, &half));
    return hl_build_binary(graph, HL_OP_MUL, half, cube, out_dx);
}

HL_UNARY_VJP(reciprocal)
{
    (void)x;
    hl_id square, product;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, y, &square));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, square, &product));
    return hl_build_unary(graph, HL_OP_NEG, product, out_dx);
}

HL_UNARY_VJP(sin)
{
    (void)y;
    hl_id cosine;
    HL_TRY(hl_build_unary(graph, HL_OP_COS, x, &cosine));
    return hl_build_binary(graph, HL_OP_MUL, d, cosine, out_dx);
}

HL_UNARY_VJP(cos)
{
    (void)y;
    hl_id sine, product;
    HL_TRY(hl_build_unary(graph, HL_OP_SIN, x, &sine));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, sine, &product));
    return hl_build_unary(graph, HL_OP_NEG, product, out_dx);
}

/* 1 - a */
static hl_status build_complement(hl_graph *graph, hl_id a, hl_id *out_id)
{
    hl_id one;
    HL_TRY(hl_build_number_like(graph, a, 1, &one));
    return hl_build_binary(graph, HL_OP_SUB, one, a, out_id);
}

HL_UNARY_VJP(tanh)
{
    (void)x;
    hl_id slope;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, y, &slope));
    HL_TRY(build_complement(graph, slope, &slope));
    return hl_build_binary(graph, HL_OP_MUL, d, slope, out_dx);
}

HL_UNARY_VJP(sigmoid)
{
    (void)x;
    hl_id slope;
    HL_TRY(build_complement(graph, y, &slope));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, slope, &slope));
    return hl_build_binary(graph, HL_OP_MUL, d, slope, out_dx);
}

HL_UNARY_VJP(softplus)
{
    (void)y;
    hl_id slope;
    HL_TRY(hl_build_unary(graph, HL_OP_SIGMOID, x, &slope));
    return hl_build_binary(graph, HL_OP_MUL, d, slope, out_dx);
}

/* d * 2 / sqrt(pi) * exp(-x^2) */
HL_UNARY_VJP(erf)
{
    (void)y;
    hl_id bell;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, x, x, &bell));
    HL_TRY(hl_build_unary(graph, HL_OP_NEG, bell, &bell));
    HL_TRY(hl_build_unary(graph, HL_OP_EXP, bell, &bell));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, bell, 1.12837916709551257390, &bell));
    return hl_build_binary(graph, HL_OP_MUL, d, bell, out_dx);
}

HL_UNARY_VJP(gelu)
{
    (void)y;
    return hl_build_binary(graph, HL_OP_GELU_GRAD, d, x, out_dx);
}

HL_UNARY_VJP(gelu_erf)
{
    (void)y;
    return hl_build_binary(graph, HL_OP_GELU_ERF_GRAD, d, x, out_dx);
}

HL_UNARY_VJP(relu)
{
    (void)x;
    return hl_build_binary(graph, HL_OP_RELU_GRAD, d, y, out_dx);
}

HL_UNARY_VJP(cast)
{
    (void)y;
    return hl_build_cast(graph, d, hl_graph_dtype(graph, x), out_dx);
}

/* ---- two operands: gradients are brought back to their types by hl_build_grad_for ---- */

hl_status hl_vjp_add(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    if (need[0]) HL_TRY(hl_build_grad_for(graph, dout[0], in[0], &din[0]));
    if (need[1]) HL_TRY(hl_build_grad_for(graph, dout[0], in[1], &din[1]));
    return HL_OK;
}

hl_status hl_vjp_sub(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    hl_id d;
    if (need[0]) HL_TRY(hl_build_grad_for(graph, dout[0], in[0], &din[0]));
    if (!need[1]) return HL_OK;
    /* Summed first: the negation then has the smaller operand's size. */
    HL_TRY(hl_build_grad_for(graph, dout[0], in[1], &d));
    return hl_build_unary(graph, HL_OP_NEG, d, &din[1]);
}

hl_status hl_vjp_mul(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    for (int i = 0; i < 2; i++) {
        if (!need[i]) continue;
        hl_id d;
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, dout[0], in[1 - i], &d));
        HL_TRY(hl_build_grad_for(graph, d, in[i], &din[i]));
    }
    return HL_OK;
}

/* da = d / b, db = -da * (a / b) */
hl_status hl_vjp_div(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    const hl_id *in = graph->nodes[id].in, y = graph->nodes[id].out;
    hl_id da, db;
    HL_TRY(hl_build_binary(graph, HL_OP_DIV, dout[0], in[1], &da));
    if (need[0]) HL_TRY(hl_build_grad_for(graph, da, in[0], &din[0]));
    if (!need[1]) return HL_OK;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, da, y, &db));
    HL_TRY(hl_build_grad_for(graph, db, in[1], &db));
    return hl_build_unary(graph, HL_OP_NEG, db, &din[1]);
}

/* Linear in a; b only chooses. */
hl_status hl_vjp_relu_grad(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    hl_id d;
    if (!need[0]) return HL_OK;
    HL_TRY(hl_build_binary(graph, HL_OP_RELU_GRAD, dout[0], in[1], &d));
    return hl_build_grad_for(graph, d, in[0], &din[0]);
}

/* gelu''(x) = (1 - t^2) (u' + x / 2 (u'' - 2 t u'^2)), t = tanh(u), u = slope (x + cube x^3) */
static hl_status build_gelu_curvature(hl_graph *graph, hl_id x, hl_id *out_id)
{
    const double cube = 0.044715, slope = 0.79788456080286535588;
    hl_id square, u1, u, t, bell, bend, turn;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, x, x, &square));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, square, slope * cube, &u));
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, u, slope, &u));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, u, x, &u));
    HL_TRY(hl_build_unary(graph, HL_OP_TANH, u, &t));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, square, 3 * slope * cube, &u1));
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, u1, slope, &u1));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, t, t, &bell));
    HL_TRY(build_complement(graph, bell, &bell));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, u1, u1, &turn));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, turn, t, &turn));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, turn, x, &turn)); /* x / 2 * 2 t u'^2 */
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, square, 3 * slope * cube, &bend));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, bend, turn, &bend));
    HL_TRY(hl_build_binary(graph, HL_OP_ADD, bend, u1, &bend));
    return hl_build_binary(graph, HL_OP_MUL, bell, bend, out_id);
}

/* (2 - x^2) e^(-x^2 / 2) / sqrt(2 pi) */
static hl_status build_gelu_erf_curvature(hl_graph *graph, hl_id x, hl_id *out_id)
{
    hl_id square, bell, rest;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, x, x, &square));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, square, -0.5, &bell));
    HL_TRY(hl_build_unary(graph, HL_OP_EXP, bell, &bell));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, bell, 0.39894228040143267794, &bell));
    HL_TRY(hl_build_unary(graph, HL_OP_NEG, square, &rest));
    HL_TRY(hl_build_binary_number(graph, HL_OP_ADD, rest, 2, &rest));
    return hl_build_binary(graph, HL_OP_MUL, bell, rest, out_id);
}

/* Of either form: linear in dy, and in x dy times the function's second derivative. */
static hl_status build_gelu_grad_grad(hl_graph *graph, hl_node_id id, hl_id dout, const bool *need,
                                      hl_status (*curvature)(hl_graph *, hl_id, hl_id *),
                                      hl_id *din)
{
    const hl_op op = graph->nodes[id].op;
    const hl_id dy = graph->nodes[id].in[0], x = graph->nodes[id].in[1];
    hl_id d;
    if (need[0]) {
        HL_TRY(hl_build_binary(graph, op, dout, x, &d));
        HL_TRY(hl_build_grad_for(graph, d, dy, &din[0]));
    }
    if (!need[1]) return HL_OK;
    HL_TRY(curvature(graph, x, &d));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, dy, &d));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, dout, &d));
    return hl_build_grad_for(graph, d, x, &din[1]);
}

hl_status hl_vjp_gelu_grad(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    return build_gelu_grad_grad(graph, id, dout[0], need, build_gelu_curvature, din);
}

hl_status hl_vjp_gelu_erf_grad(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                               hl_id *din)
{
    return build_gelu_grad_grad(graph, id, dout[0], need, build_gelu_erf_curvature, din);
}

/* d * b * a^(b - 1), and 0 where b is 0 (a^-1 may be infinite there). */
static hl_status build_pow_base(hl_graph *graph, hl_id a, hl_id b, hl_id d, hl_id *out_id)
{
    double exponent;
    bool is_number = hl_graph_number_read(graph, b, &exponent);
    hl_id power = a, scaled, is_zero;
    if (!is_number || exponent != 2) {
        HL_TRY(hl_build_binary_number(graph, HL_OP_SUB, b, 1, &power));
        HL_TRY(hl_build_binary(graph, HL_OP_POW, a, power, &power));
    }
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, b, &scaled));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, scaled, power, out_id));
    if (is_number && exponent != 0) return HL_OK;
    HL_TRY(hl_build_binary_number(graph, HL_OP_EQ, b, 0, &is_zero));
    return hl_build_keep_unless(graph, is_zero, *out_id, out_id);
}

/* d * a^b * log a; 0^b log 0 counts as 0. Negative a gives NaN: there a^b is no function of b. */
static hl_status build_pow_exponent(hl_graph *graph, hl_id a, hl_id y, hl_id d, hl_id *out_id)
{
    hl_id is_zero, one, log;
    HL_TRY(hl_build_binary_number(graph, HL_OP_EQ, a, 0, &is_zero));
    HL_TRY(hl_build_number_like(graph, a, 1, &one));
    HL_TRY(hl_build_where(graph, is_zero, one, a, &log));
    HL_TRY(hl_build_unary(graph, HL_OP_LOG, log, &log));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, y, log, &log));
    return hl_build_binary(graph, HL_OP_MUL, d, log, out_id);
}

hl_status hl_vjp_pow(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                     hl_id *din)
{
    const hl_id *in = graph->nodes[id].in, y = graph->nodes[id].out;
    hl_id d;
    if (need[0]) {
        HL_TRY(build_pow_base(graph, in[0], in[1], dout[0], &d));
        HL_TRY(hl_build_grad_for(graph, d, in[0], &din[0]));
    }
    if (!need[1]) return HL_OK;
    HL_TRY(build_pow_exponent(graph, in[0], y, dout[0], &d));
    return hl_build_grad_for(graph, d, in[1], &din[1]);
}

/* da = d / (1 + e^(b - a)), db = d / (1 + e^(a - b)). Equal operands share d, infinities too: their
 * difference would be NaN. */
hl_status hl_vjp_logaddexp(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                           hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    hl_id same, gap, d;
    HL_TRY(hl_build_binary(graph, HL_OP_EQ, in[0], in[1], &same));
    for (int i = 0; i < 2; i++) {
        if (!need[i]) continue;
        HL_TRY(hl_build_binary(graph, HL_OP_SUB, in[i], in[1 - i], &gap));
        HL_TRY(hl_build_keep_unless(graph, same, gap, &gap));
        HL_TRY(hl_build_unary(graph, HL_OP_SIGMOID, gap, &d));
        HL_TRY(hl_build_binary(graph, HL_OP_MUL, dout[0], d, &d));
        HL_TRY(hl_build_grad_for(graph, d, in[i], &din[i]));
    }
    return HL_OK;
}

/* `wins` compares a with b so that it holds where a is chosen or equal. */
static hl_status build_extremum(hl_graph *graph, hl_node_id id, hl_id dout, const bool *need,
                                hl_op wins, hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    hl_id tie, half, shared;
    HL_TRY(hl_build_binary(graph, HL_OP_EQ, in[0], in[1], &tie));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, dout, 0.5, &half));
    HL_TRY(hl_build_where(graph, tie, half, dout, &shared));
    for (int i = 0; i < 2; i++) {
        if (!need[i]) continue;
        hl_id chosen, d;
        HL_TRY(hl_build_binary(graph, wins, in[i], in[1 - i], &chosen));
        HL_TRY(hl_build_keep_if(graph, chosen, shared, &d));
        HL_TRY(hl_build_grad_for(graph, d, in[i], &din[i]));
    }
    return HL_OK;
}

hl_status hl_vjp_maximum(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    return build_extremum(graph, id, dout[0], need, HL_OP_GE, din);
}

hl_status hl_vjp_minimum(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                         hl_id *din)
{
    return build_extremum(graph, id, dout[0], need, HL_OP_LE, din);
}

hl_status hl_vjp_where(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                       hl_id *din)
{
    const hl_id *in = graph->nodes[id].in;
    hl_id d;
    if (need[1]) {
        HL_TRY(hl_build_keep_if(graph, in[0], dout[0], &d));
        HL_TRY(hl_build_grad_for(graph, d, in[1], &din[1]));
    }
    if (!need[2]) return HL_OK;
    HL_TRY(hl_build_keep_unless(graph, in[0], dout[0], &d));
    return hl_build_grad_for(graph, d, in[2], &din[2]);
}
