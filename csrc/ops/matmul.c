/* Matrix products. Where B is one matrix, the leading dims of A are rows like any other, so the
 * gradients are made from 2-D views: one product, and dB sums over all rows inside it. */
#include "base/alloc.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ops.h"

/* ---- types ----------------------------------------------------------------------------------- */

/* The result's: the operands', or float32 where 16-bit ones are to give it unrounded. */
static hl_dtype result_dtype(hl_dtype operand, int64_t float32_out)
{
    return float32_out && hl_dtype_is_16_bit(operand) ? HL_DTYPE_F32 : operand;
}

/* Leading dims of a matrix operand. */
static hl_shape get_batch(const hl_shape *shape)
{
    return hl_shape_make(shape->rank - 2, shape->dim);
}

/* The product alone. */
static hl_status infer_product(const hl_graph *graph, const hl_node *node, hl_type *out_type)
{
    const hl_type *a = hl_node_in_type(graph, node, 0), *b = hl_node_in_type(graph, node, 1);
    bool trans_a = node->attrs.matmul.trans_a, trans_b = node->attrs.matmul.trans_b;
    HL_TRY(hl_check_float(a, "a"));
    HL_TRY(hl_check_dtype(b, a->dtype, "b"));
    HL_TRY(hl_check_rank(a, 2, "a"));
    HL_TRY(hl_check_rank(b, 2, "b"));
    const int64_t *dim_a = a->shape.dim + a->shape.rank - 2;
    const int64_t *dim_b = b->shape.dim + b->shape.rank - 2;
    if (dim_a[!trans_a] != dim_b[trans_b])
        return hl_status_set(HL_ERROR_SHAPE, "inner dims must be equal, got %lld and %lld",
                             (long long)dim_a[!trans_a], (long long)dim_b[trans_b]);
    hl_shape batch_a = get_batch(&a->shape), batch_b = get_batch(&b->shape);
    hl_shape *shape = &out_type->shape;
    out_type->dtype = result_dtype(a->dtype, node->attrs.matmul.float32_out);
    HL_TRY(hl_shape_broadcast(&batch_a, &batch_b, NULL, shape));
    shape->dim[shape->rank++] = dim_a[trans_a];
    shape->dim[shape->rank++] = dim_b[!trans_b];
    return HL_OK;
}

static hl_status check_bias(const hl_graph *graph, const hl_node *node, const hl_shape *result)
{
    if (node->n_in < 3) return HL_OK;
    hl_shape bias = hl_shape_1d(result->dim[result->rank - 1]);
    HL_TRY(hl_check_float(hl_node_in_type(graph, node, 2), "the bias"));
    return hl_check_shape(hl_node_in_type(graph, node, 2), &bias, "the bias");
}

hl_status hl_infer_matmul(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(infer_product(graph, node, &out_types[0]));
    return check_bias(graph, node, &out_types[0].shape);
}

int64_t hl_matmul_packed_elements(int64_t k, int64_t n)
{
    int64_t elements;
    bool fits = k <= INT64_MAX - 1 && n <= INT64_MAX - 31 &&
                hl_mul_dim(hl_round_up(k, 2), hl_round_up(n, 32), &elements);
    return fits ? elements : -1;
}

hl_status hl_infer_matmul_pack(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *b = hl_node_in_type(graph, node, 0);
    bool trans = hl_matmul_pack_attrs(node)->trans;
    HL_TRY(hl_check_float(b, "b"));
    HL_TRY(hl_check_rank_exactly(b, 2, "b"));
    hl_dtype dtype = hl_matmul_pack_attrs(node)->dtype;
    if (dtype != b->dtype && !(b->dtype == HL_DTYPE_F32 && hl_dtype_is_16_bit(dtype)))
        return hl_status_set(HL_ERROR_TRACE, "dtype must be b's or 16 bits of float32, got %s",
                             hl_dtype_name(dtype));
    int64_t elements = hl_matmul_packed_elements(b->shape.dim[trans], b->shape.dim[!trans]);
    out_types[0] = (hl_type){dtype, hl_shape_1d(elements)};
    return HL_OK;
}

hl_status hl_infer_matmul_packed(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    const hl_type *a = hl_node_in_type(graph, node, 0), *packed = hl_node_in_type(graph, node, 1);
    int64_t n = hl_matmul_packed_attrs(node)->n;
    HL_TRY(hl_check_float(a, "a"));
    HL_TRY(hl_check_rank_exactly(a, 2, "a"));
    if (n < 0)
        return hl_status_set(HL_ERROR_SHAPE, "n must not be negative, got %lld", (long long)n);
    hl_type want = {a->dtype, hl_shape_1d(hl_matmul_packed_elements(a->shape.dim[1], n))};
    HL_TRY(hl_check_type(packed, &want, "packed b"));
    hl_dtype dtype = result_dtype(a->dtype, hl_matmul_packed_attrs(node)->float32_out);
    out_types[0] = (hl_type){dtype, hl_shape_2d(a->shape.dim[0], n)};
    if (node->n_in < 3) return HL_OK;
    hl_shape bias = hl_shape_1d(n);
    HL_TRY(hl_check_float(hl_node_in_type(graph, node, 2), "the bias"));
    return hl_check_shape(hl_node_in_type(graph, node, 2), &bias, "the bias");
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* (..., M, K) as (rows, K). */
static hl_status build_rows(hl_graph *graph, hl_id x, hl_id *out_id)
{
    hl_shape shape = *hl_graph_shape(graph, x);
    int last = shape.rank - 1;
    hl_shape rows = hl_shape_2d(hl_shape_span(&shape, 0, last), shape.dim[last]);
    return hl_build_reshape(graph, x, &rows, out_id);
}

/* With op(A) = A or A^T by trans_a: d op(A) = dC op(B)^T, d op(B) = op(A)^T dC. */
static hl_status build_da(hl_graph *graph, hl_id b, hl_id d, bool trans_a, bool trans_b,
                          hl_id *out_id)
{
    if (trans_a) return hl_build_matmul(graph, b, d, trans_b, true, out_id);
    return hl_build_matmul(graph, d, b, false, !trans_b, out_id);
}

static hl_status build_db(hl_graph *graph, hl_id a, hl_id d, bool trans_a, bool trans_b,
                          hl_id *out_id)
{
    if (trans_b) return hl_build_matmul(graph, d, a, true, trans_a, out_id);
    return hl_build_matmul(graph, a, d, !trans_a, false, out_id);
}

hl_status hl_vjp_matmul(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                        hl_id *din)
{
    hl_node node = graph->nodes[id];
    hl_id a = node.in[0], b = node.in[1], d = dout[0];
    bool trans_a = node.attrs.matmul.trans_a, trans_b = node.attrs.matmul.trans_b;
    hl_shape shape_a = *hl_graph_shape(graph, a), shape_b = *hl_graph_shape(graph, b);
    if (node.n_in == 3 && need[2]) HL_TRY(hl_build_grad_for(graph, d, node.in[2], &din[2]));
    HL_TRY(
        hl_build_cast(graph, d, hl_graph_dtype(graph, a), &d)); /* rounded, of a float32 result */
    if (!trans_a && shape_b.rank == 2) {
        HL_TRY(build_rows(graph, a, &a));
        HL_TRY(build_rows(graph, d, &d));
    }
    if (need[0]) {
        HL_TRY(build_da(graph, b, d, trans_a, trans_b, &din[0]));
        if (hl_shape_numel(hl_graph_shape(graph, din[0])) == hl_shape_numel(&shape_a))
            HL_TRY(hl_build_reshape(graph, din[0], &shape_a, &din[0]));
        else
            HL_TRY(hl_build_sum_to(graph, din[0], &shape_a, &din[0]));
    }
    if (!need[1]) return HL_OK;
    HL_TRY(build_db(graph, a, d, trans_a, trans_b, &din[1]));
    return hl_build_sum_to(graph, din[1], &shape_b, &din[1]);
}

/* ---- channels -------------------------------------------------------------------------------- */

bool hl_channels_matmul(const hl_graph *graph, const hl_node *node, int *out_result_dim,
                        int *out_weight_dim)
{
    int rank = hl_node_in_type(graph, node, 1)->shape.rank;
    *out_result_dim = hl_node_out_type(graph, node, 0)->shape.rank - 1;
    *out_weight_dim = node->attrs.matmul.trans_b ? rank - 2 : rank - 1;
    return true;
}

/* ---- lowering: to one matrix times one matrix, else to one batch dim, the same in both; 16-bit
 * operands at last to float32 ---- */

static hl_status build_batched(hl_graph *graph, hl_id x, const hl_shape *batch, hl_id *out_id)
{
    hl_shape have = *hl_graph_shape(graph, x), full = *batch;
    full.dim[full.rank++] = have.dim[have.rank - 2];
    full.dim[full.rank++] = have.dim[have.rank - 1];
    HL_TRY(hl_build_expand(graph, x, &full, &x));
    hl_shape flat = {3, {hl_shape_numel(batch), full.dim[full.rank - 2], full.dim[full.rank - 1]}};
    return hl_build_reshape(graph, x, &flat, out_id);
}

/* No kernel for 16 bits: what was rounded to them is multiplied in float32, which is what such a
 * kernel does too, in some order of its own. */
static hl_status lower_reduced(hl_graph *graph, const hl_node *node, hl_id *in, hl_id *out_value)
{
    hl_attrs attrs = node->attrs;
    attrs.matmul.float32_out = false;
    for (int i = 0; i < node->n_in; i++) HL_TRY(hl_build_cast(graph, in[i], HL_DTYPE_F32, &in[i]));
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL, in, node->n_in, &attrs, out_value));
    return hl_build_cast(graph, *out_value, hl_graph_dtype(graph, node->out), out_value);
}

hl_status hl_lower_matmul(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    hl_shape a = *hl_graph_shape(graph, node.in[0]), b = *hl_graph_shape(graph, node.in[1]);
    hl_shape out = *hl_graph_shape(graph, node.out), batch = get_batch(&out);
    hl_id in[3] = {node.in[0], node.in[1], node.n_in == 3 ? node.in[2] : HL_NONE};
    bool is_plain = a.rank == b.rank && (a.rank == 2 || (a.rank == 3 && a.dim[0] == b.dim[0]));
    if (a.rank > 2 && b.rank == 2 && !node.attrs.matmul.trans_a) {
        HL_TRY(build_rows(graph, in[0], &in[0]));
    } else if (!is_plain) {
        HL_TRY(build_batched(graph, in[0], &batch, &in[0]));
        HL_TRY(build_batched(graph, in[1], &batch, &in[1]));
    } else if (hl_dtype_is_16_bit(hl_graph_dtype(graph, in[0]))) {
        return lower_reduced(graph, &node, in, &out_values[0]);
    } else {
        return hl_status_set(HL_ERROR_DEVICE, "matmul: the device must have a kernel, got none");
    }
    HL_TRY(hl_graph_add(graph, HL_OP_MATMUL, in, node.n_in, &node.attrs, &in[0]));
    return hl_build_reshape(graph, in[0], &out, &out_values[0]);
}
