/* GELU by its tanh: types, gradient, and lowering to pointwise ops that devices fuse.
 *
 * An op of its own, so that a product can end by it (passes/epilogue.c): libraries have this form,
 * and give its operand for the gradient. Where none takes it, it is a dozen micro-ops like any
 * others. The gradient computes the tanh again from the operand: a few more steps in registers for
 * two matrices less in memory. Operands of 16 bits are widened, and the result is rounded once.
 *
 * Not here: the exact form, by erf. No library ends by it, so it is composed where it is traced. */
#include "ops/build.h"
#include "ops/need.h"
#include "ops/ops.h"

/* Hendrycks and Gimpel 2016, section 2; SLOPE is sqrt(2 / pi). */
static const double CUBE = 0.044715, SLOPE = 0.79788456080286535588;

hl_status hl_infer_gelu(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    HL_TRY(hl_need_float(&out_types[0], "the operand"));
    if (node->n_in == 1) return HL_OK;
    return hl_need_type(hl_node_in_type(graph, node, 1), &out_types[0], "x");
}

hl_status hl_vjp_gelu(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                      hl_id *din)
{
    if (!need[0]) return HL_OK;
    return hl_build_binary(graph, HL_OP_GELU_GRAD, dout[0], graph->nodes[id].in[0], &din[0]);
}

/* ---- lowering -------------------------------------------------------------------------------- */

/* y = half * sum: half = x / 2, sum = 1 + tanh(slope * (x + cube * square * x)). Each number is
 * made once: it takes a register of the programs that all this becomes. */
typedef struct gelu_parts {
    hl_id cube_number, slope_number, half_number, one;
    hl_id square, half, tanh, sum;
} gelu_parts;

static hl_status build_parts(hl_graph *graph, hl_id x, gelu_parts *out)
{
    hl_id inner;
    HL_TRY(hl_build_number_like(graph, x, CUBE, &out->cube_number));
    HL_TRY(hl_build_number_like(graph, x, SLOPE, &out->slope_number));
    HL_TRY(hl_build_number_like(graph, x, 0.5, &out->half_number));
    HL_TRY(hl_build_number_like(graph, x, 1, &out->one));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, x, x, &out->square));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, out->square, x, &inner));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, inner, out->cube_number, &inner));
    HL_TRY(hl_build_binary(graph, HL_OP_ADD, x, inner, &inner));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, inner, out->slope_number, &inner));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, x, out->half_number, &out->half));
    HL_TRY(hl_build_unary(graph, HL_OP_TANH, inner, &out->tanh));
    return hl_build_binary(graph, HL_OP_ADD, out->tanh, out->one, &out->sum);
}

/* d * half * (1 - tanh^2) * slope: the gradient of what slope multiplies. */
static hl_status build_inner_grad(hl_graph *graph, hl_id d, const gelu_parts *parts, hl_id *out_d)
{
    hl_id bell;
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, parts->half, &d));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, parts->tanh, parts->tanh, &bell));
    HL_TRY(hl_build_binary(graph, HL_OP_SUB, parts->one, bell, &bell));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, bell, &d));
    return hl_build_binary(graph, HL_OP_MUL, d, parts->slope_number, out_d);
}

/* Adds the gradient of x + cube * square * x: of x itself, of the cube's x, of the square's two. */
static hl_status add_cubic_grad(hl_graph *graph, hl_id d, hl_id x, const gelu_parts *parts,
                                hl_id *sum)
{
    hl_id term;
    HL_TRY(hl_build_accumulate(graph, d, sum));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, parts->cube_number, &d));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, parts->square, &term));
    HL_TRY(hl_build_accumulate(graph, term, sum));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, x, &term));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, term, x, &term));
    HL_TRY(hl_build_accumulate(graph, term, sum));
    return hl_build_accumulate(graph, term, sum);
}

static hl_status widen(hl_graph *graph, hl_id value, hl_id *out_value)
{
    hl_dtype dtype = hl_graph_dtype(graph, value);
    bool is_low = dtype == HL_DTYPE_BF16 || dtype == HL_DTYPE_F16;
    return hl_build_cast(graph, value, is_low ? HL_DTYPE_F32 : dtype, out_value);
}

hl_status hl_lower_gelu(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    gelu_parts parts;
    hl_id x, y;
    HL_TRY(widen(graph, node.in[0], &x));
    HL_TRY(build_parts(graph, x, &parts));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, parts.half, parts.sum, &y));
    return hl_build_cast(graph, y, hl_graph_dtype(graph, node.out), &out_values[0]);
}

hl_status hl_lower_gelu_grad(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    gelu_parts parts;
    hl_id d, x, dx, inner;
    HL_TRY(widen(graph, node.in[0], &d));
    HL_TRY(widen(graph, node.in[1], &x));
    HL_TRY(build_parts(graph, x, &parts));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, d, parts.sum, &dx));
    HL_TRY(hl_build_binary(graph, HL_OP_MUL, dx, parts.half_number, &dx));
    HL_TRY(build_inner_grad(graph, d, &parts, &inner));
    HL_TRY(add_cubic_grad(graph, inner, x, &parts, &dx));
    return hl_build_cast(graph, dx, hl_graph_dtype(graph, node.out), &out_values[0]);
}
