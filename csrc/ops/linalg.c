/* Cholesky factors and triangular systems: the solvers of symmetric positive definite matrices.
 *
 * Gradients are nodes: triangular solves with the factor that is there, products and masks (Murray,
 * Differentiation of the Cholesky decomposition, 2016). Their products keep float32 under mixed
 * precision, as the solves do: a condition number multiplies whatever they round.
 *
 * Systems with the matrix on the right, x a = b, are transposes of these, and so are factors of the
 * upper triangle.
 *
 * Rejected: a kernel for Cholesky's gradient. It would do the work of the solves again. */
#include <math.h>
#include <stdio.h>

#include "ir/control.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- operands -------------------------------------------------------------------------------- */

static hl_status check_square(const hl_type *type, const char *what)
{
    char got[HL_SHAPE_TEXT];
    HL_TRY(hl_check_float(type, what));
    HL_TRY(hl_check_rank(type, 2, what));
    int32_t rank = type->shape.rank;
    if (type->shape.dim[rank - 1] == type->shape.dim[rank - 2]) return HL_OK;
    return hl_status_set(HL_ERROR_SHAPE, "%s must be square in its last two dims, got shape %s",
                         what, hl_shape_format(&type->shape, got));
}

hl_status hl_infer_cholesky(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    out_types[0] = *hl_node_in_type(graph, node, 0);
    return check_square(&out_types[0], "the matrix");
}

hl_status hl_infer_triangular_solve(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *a = hl_node_in_type(graph, node, 0), *b = hl_node_in_type(graph, node, 1);
    HL_TRY(check_square(a, "the matrix"));
    HL_TRY(hl_check_dtype(b, a->dtype, "the right side"));
    HL_TRY(hl_check_rank_exactly(b, a->shape.rank, "the right side"));
    hl_shape want = a->shape;
    want.dim[want.rank - 1] = b->shape.dim[want.rank - 1];
    HL_TRY(hl_check_shape(b, &want, "the right side"));
    out_types[0] = *b;
    return HL_OK;
}

/* ---- cost ------------------------------------------------------------------------------------ */

hl_cost hl_cost_cholesky(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_shape *shape = hl_graph_shape(graph, node->in[0]);
    cost.flops = (double)hl_shape_numel(shape) * (double)shape->dim[shape->rank - 1] / 3;
    return cost;
}

hl_cost hl_cost_triangular_solve(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    const hl_shape *b = hl_graph_shape(graph, node->in[1]);
    cost.flops = (double)hl_shape_numel(b) * (double)b->dim[b->rank - 2];
    return cost;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static hl_status build_product(hl_graph *graph, hl_id a, hl_id b, bool trans_a, bool trans_b,
                               hl_id *out_id)
{
    hl_id in[] = {a, b};
    hl_attrs attrs = {.matmul = {.trans_a = trans_a, .trans_b = trans_b, .keeps_float32 = true}};
    return hl_graph_add(graph, HL_OP_MATMUL, in, 2, &attrs, out_id);
}

static hl_status build_solution(hl_graph *graph, hl_id a, hl_id b,
                                const hl_attrs_triangular *triangle, hl_id *out_id)
{
    hl_id in[] = {a, b};
    hl_attrs attrs = {.triangular = *triangle};
    return hl_graph_add(graph, HL_OP_TRIANGULAR_SOLVE, in, 2, &attrs, out_id);
}

static hl_status build_transposed(hl_graph *graph, hl_id x, hl_id *out_id)
{
    int64_t dims[HL_MAX_RANK];
    int32_t rank = hl_graph_shape(graph, x)->rank;
    for (int32_t d = 0; d < rank; d++) dims[d] = d;
    dims[rank - 2] = rank - 1, dims[rank - 1] = rank - 2;
    return hl_build_permute(graph, x, dims, out_id);
}

/* True (n,n) in one triangle, whose diagonal may be left out. */
static hl_status build_triangle(hl_graph *graph, int64_t n, bool upper, bool is_strict,
                                hl_id *out_id)
{
    hl_shape rows = {2, {n, 1}}, columns = {2, {1, n}};
    hl_id row, column;
    HL_TRY(hl_build_places(graph, &rows, &row));
    HL_TRY(hl_build_places(graph, &columns, &column));
    hl_op op = is_strict ? HL_OP_GT : HL_OP_GE;
    return hl_build_binary(graph, op, upper ? column : row, upper ? row : column, out_id);
}

/* L^-T P L^-1, where P is symmetric with the lower triangle of L^T dL, halved. Of dL it reads the
 * lower triangle alone. */
hl_status hl_vjp_cholesky(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                          hl_id *din)
{
    const hl_attrs_triangular transposed = {.trans = true};
    const hl_id factor = graph->nodes[id].out;
    const hl_shape *shape = hl_graph_shape(graph, factor);
    int64_t n = shape->dim[shape->rank - 1];
    hl_id lower, p, mirrored;
    if (!need[0]) return HL_OK;
    HL_TRY(build_triangle(graph, n, false, false, &lower));
    HL_TRY(build_product(graph, factor, dout[0], true, false, &p));
    HL_TRY(build_transposed(graph, p, &mirrored));
    HL_TRY(hl_build_where(graph, lower, p, mirrored, &p));
    HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, p, 0.5, &p));
    HL_TRY(build_solution(graph, factor, p, &transposed, &p));
    HL_TRY(build_transposed(graph, p, &p));
    return build_solution(graph, factor, p, &transposed, &din[0]);
}

/* Of a x = b: db solves a^T db = dx, and da = -db x^T; of a^T x = b: a db = dx, da = -x db^T. */
hl_status hl_vjp_triangular_solve(hl_graph *graph, hl_node_id id, const hl_id *dout,
                                  const bool *need, hl_id *din)
{
    const hl_node node = graph->nodes[id];
    const hl_attrs_triangular *own = &node.attrs.triangular;
    hl_attrs_triangular other = *own;
    const hl_shape *shape = hl_graph_shape(graph, node.in[0]);
    int64_t n = shape->dim[shape->rank - 1];
    hl_id db, da, triangle, x = node.out;
    other.trans = !own->trans;
    HL_TRY(build_solution(graph, node.in[0], dout[0], &other, &db));
    din[1] = db;
    if (!need[0]) return HL_OK;
    HL_TRY(build_product(graph, own->trans ? x : db, own->trans ? db : x, false, true, &da));
    HL_TRY(hl_build_unary(graph, HL_OP_NEG, da, &da));
    HL_TRY(build_triangle(graph, n, own->upper, own->unitriangular, &triangle));
    return hl_build_keep_if(graph, triangle, da, &din[0]);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* "the matrix", or "matrix 3 of the batch". */
static const char *name_matrix(const hl_shape *shape, int64_t number, char *text, size_t bytes)
{
    if (shape->rank == 2)
        snprintf(text, bytes, "the matrix");
    else
        snprintf(text, bytes, "matrix %lld of the batch", (long long)number);
    return text;
}

/* row: which row of which matrix, counted through; value: the pivot, as a float. */
void hl_fault_cholesky(const hl_graph *graph, const hl_node *node, int64_t row, int64_t value,
                       char *out_text, size_t bytes)
{
    char which[48];
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    int64_t n = shape->dim[shape->rank - 1];
    double pivot = hl_control_bits_number(value);
    snprintf(out_text, bytes,
             "%s must be positive definite, got %g for the pivot of its leading minor of order "
             "%lld%s",
             name_matrix(shape, row / n, which, sizeof which), pivot, (long long)(row % n + 1),
             isnan(pivot) ? "" : "; add a little to its diagonal");
}

void hl_fault_triangular_solve(const hl_graph *graph, const hl_node *node, int64_t row,
                               int64_t value, char *out_text, size_t bytes)
{
    char which[48];
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    int64_t n = shape->dim[shape->rank - 1];
    snprintf(out_text, bytes, "%s must not be singular, got %g on its diagonal in row %lld",
             name_matrix(shape, row / n, which, sizeof which), hl_control_bits_number(value),
             (long long)(row % n));
}
