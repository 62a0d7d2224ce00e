/* Ends of products: what a device's product does on its way out becomes part of its node.
 *
 * All of it is what a layer's forward and backward pass is made of. Relu or gelu of a product. A
 * product that relu's gradient lets through or not, for which the forward product then keeps a mask
 * of bits, or that gelu's gradient scales, for which it keeps gelu's operand. And the sums over
 * rows of a matrix that a product sums over as well, which is how a bias gradient stands beside its
 * weight gradient; where that is refused, they stand with the gradient's product that makes the
 * matrix. The device is asked for every node as it would stand in the graph (its memory decides
 * what it can); what it refuses stays as it was, and gelu is then lowered and fused like any
 * pointwise work. A sum whose matrix a pointwise node makes stays with that one, which passes over
 * the matrix anyway.
 *
 * Rejected: programs of any pointwise ops as ends, as fusion has (libraries have these few), and
 * the ends as attributes of MATMUL (they have a second result). */
#include <string.h>

#include "base/alloc.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { MOST_BACKS = 8 };

typedef struct end_state {
    hl_graph *graph;
    hl_device *device;
    bool deterministic;
    hl_uses uses;   /* as they were when a sweep began, */
    int64_t n_used; /* of so many values: what is added has none yet */
    hl_id *map;     /* everything to itself */
    int64_t n_map;
} end_state;

/* ---- replacing, and back --------------------------------------------------------------------- */

static hl_status reserve_map(end_state *s)
{
    int64_t n = s->n_map;
    HL_TRY(hl_alloc_grow((void **)&s->map, &s->n_map, s->graph->n_values, sizeof *s->map));
    for (; n < s->n_map; n++) s->map[n] = (hl_id)n;
    return HL_OK;
}

static hl_status replace_value(end_state *s, hl_id old, hl_id by)
{
    HL_TRY(reserve_map(s));
    s->map[old] = by;
    hl_rewrite_replace(s->graph, s->map, s->graph->n_values);
    s->map[old] = old;
    return HL_OK;
}

/* In the shape of another value. */
static hl_status shape_like(hl_graph *graph, hl_id value, hl_id other, hl_id *out_value)
{
    hl_shape shape = *hl_graph_shape(graph, other);
    *out_value = value;
    if (hl_shape_equal(&shape, hl_graph_shape(graph, value))) return HL_OK;
    hl_attrs attrs = {.shape = {hl_ints_of(&shape)}};
    return hl_graph_add(graph, HL_OP_RESHAPE, &value, 1, &attrs, out_value);
}

/* The product with an end (and what that reads, or HL_NONE), in segment and scope of what it
 * replaces. */
static hl_status add_fused(end_state *s, hl_node_id product, hl_matmul_end end, hl_id read,
                           hl_id *out_value)
{
    hl_node node = s->graph->nodes[product];
    hl_id in[3] = {node.in[0], node.in[1], node.n_in > 2 ? node.in[2] : read};
    hl_attrs attrs = node.attrs;
    attrs.matmul.end = end;
    hl_graph_stand_by(s->graph, &node);
    return hl_graph_add(s->graph, HL_OP_MATMUL_FUSED, in, in[2] == HL_NONE ? 2 : 3, &attrs,
                        out_value);
}

/* What stands where a value was. */
typedef struct end_swap {
    hl_id old, now;
} end_swap;

static hl_status put_value(end_state *s, hl_id old, hl_id by, end_swap *out_swap)
{
    out_swap->old = old;
    HL_TRY(shape_like(s->graph, by, old, &out_swap->now));
    return replace_value(s, old, out_swap->now);
}

static hl_status put_back(end_state *s, const end_swap *swap)
{
    return replace_value(s, swap->now, swap->old);
}

/* With `fused` where `old` was: does the device take it? If not, all is as it was. */
static hl_status try_value(end_state *s, hl_id old, hl_id fused, bool *out_taken,
                           end_swap *out_swap)
{
    const hl_kernel *kernel;
    hl_kernel_req req;
    HL_TRY(put_value(s, old, fused, out_swap));
    HL_TRY(hl_kernel_find(s->device, s->graph, hl_graph_producer(s->graph, fused), s->deterministic,
                          &kernel, &req));
    *out_taken = kernel != NULL;
    return *out_taken ? HL_OK : put_back(s, out_swap);
}

/* ---- where products are ---------------------------------------------------------------------- */

static hl_status begin_sweep(end_state *s)
{
    s->n_used = s->graph->n_values;
    return hl_uses_init(s->graph, &s->uses);
}

static hl_node_id find_only_user(const end_state *s, hl_id value)
{
    if (value >= s->n_used) return HL_NONE;
    if (s->uses.kept[value] || hl_uses_count(&s->uses, value) != 1) return HL_NONE;
    return s->uses.list[s->uses.start[value]];
}

/* The MATMUL that makes this value, a reshape in between perhaps that alone reads it. */
static hl_node_id find_maker(const end_state *s, hl_id value)
{
    const hl_graph *graph = s->graph;
    hl_node_id maker = hl_graph_producer(graph, value);
    if (maker != HL_NONE && graph->nodes[maker].op == HL_OP_RESHAPE) {
        hl_id inner = graph->nodes[maker].in[0];
        if (find_only_user(s, inner) != maker) return HL_NONE;
        maker = hl_graph_producer(graph, inner);
    }
    bool is_product = maker != HL_NONE && graph->nodes[maker].op == HL_OP_MATMUL;
    return is_product ? maker : (hl_node_id)HL_NONE;
}

/* The same, for one reader alone. */
static hl_node_id find_product(const end_state *s, hl_id value, hl_node_id reader)
{
    return find_only_user(s, value) == reader ? find_maker(s, value) : (hl_node_id)HL_NONE;
}

/* A gradient that comes from a product without a bias. */
static hl_node_id find_back_product(const end_state *s, hl_id gradient, hl_node_id reader)
{
    hl_node_id product = find_product(s, gradient, reader);
    bool is_bare = product != HL_NONE && s->graph->nodes[product].n_in == 2;
    return is_bare ? product : (hl_node_id)HL_NONE;
}

/* ---- relu, forward and backward -------------------------------------------------------------- */

/* Gradients of an activation that products give: nodes of this op, of a product and of x. */
static int find_backs(const end_state *s, hl_op op, hl_id x, hl_node_id *out_backs)
{
    const hl_graph *graph = s->graph;
    int n = 0;
    for (int32_t u = s->uses.start[x]; u < s->uses.start[x + 1]; u++) {
        hl_node_id id = s->uses.list[u];
        const hl_node *node = &graph->nodes[id];
        if (node->op != op || node->in[1] != x || node->in[0] == x) continue;
        if (find_back_product(s, node->in[0], id) == HL_NONE || n == MOST_BACKS) continue;
        out_backs[n++] = id;
    }
    return n;
}

/* Both sides or none: what the forward product keeps is for who reads it. */
static hl_status fuse_with_mask(end_state *s, hl_node_id product, hl_id y, const hl_node_id *backs,
                                int n_backs, bool *out_taken)
{
    hl_id forward;
    end_swap front, swap;
    int n_taken = 0;
    HL_TRY(add_fused(s, product, HL_MATMUL_RELU_MASK, HL_NONE, &forward));
    HL_TRY(try_value(s, y, forward, out_taken, &front));
    for (int i = 0; i < n_backs && *out_taken; i++) {
        hl_node grad = s->graph->nodes[backs[i]];
        hl_node_id behind = find_back_product(s, grad.in[0], backs[i]);
        hl_id back;
        bool taken;
        HL_TRY(add_fused(s, behind, HL_MATMUL_MASKED, forward + 1, &back));
        HL_TRY(try_value(s, grad.out, back, &taken, &swap));
        n_taken += taken;
    }
    if (!*out_taken || n_taken) return HL_OK;
    *out_taken = false;
    return put_back(s, &front);
}

static hl_status fuse_relu(end_state *s, hl_node_id relu)
{
    hl_node_id product = find_product(s, s->graph->nodes[relu].in[0], relu), backs[MOST_BACKS];
    hl_id y = s->graph->nodes[relu].out, fused;
    end_swap swap;
    bool taken = false;
    if (product == HL_NONE) return HL_OK;
    int n_backs = find_backs(s, HL_OP_RELU_GRAD, y, backs);
    if (n_backs) HL_TRY(fuse_with_mask(s, product, y, backs, n_backs, &taken));
    if (taken) return HL_OK;
    HL_TRY(add_fused(s, product, HL_MATMUL_RELU, HL_NONE, &fused));
    return try_value(s, y, fused, &taken, &swap);
}

/* ---- gelu, forward and backward -------------------------------------------------------------- */

/* Both sides or none, again. All who read x read the product's other output. */
static hl_status fuse_with_operand(end_state *s, hl_node_id product, hl_node_id gelu,
                                   const hl_node_id *backs, int n_backs)
{
    hl_id x = s->graph->nodes[gelu].in[0], forward;
    end_swap operand, front, swap;
    bool taken;
    int n_taken = 0;
    HL_TRY(add_fused(s, product, HL_MATMUL_GELU_BOTH, HL_NONE, &forward));
    HL_TRY(put_value(s, x, forward + 1, &operand));
    HL_TRY(try_value(s, s->graph->nodes[gelu].out, forward, &taken, &front));
    if (!taken) return put_back(s, &operand);
    for (int i = 0; i < n_backs; i++) {
        hl_node grad = s->graph->nodes[backs[i]];
        hl_node_id behind = find_back_product(s, grad.in[0], backs[i]);
        hl_id read, back;
        hl_graph_stand_by(s->graph, &grad);
        HL_TRY(shape_like(s->graph, operand.now, s->graph->nodes[behind].out, &read));
        HL_TRY(add_fused(s, behind, HL_MATMUL_GELU_GRAD, read, &back));
        HL_TRY(try_value(s, grad.out, back, &taken, &swap));
        n_taken += taken;
    }
    if (n_taken) return HL_OK;
    HL_TRY(put_back(s, &front));
    return put_back(s, &operand);
}

static hl_status fuse_gelu(end_state *s, hl_node_id gelu)
{
    hl_id x = s->graph->nodes[gelu].in[0], fused;
    hl_node_id product = x < s->n_used ? find_maker(s, x) : (hl_node_id)HL_NONE, backs[MOST_BACKS];
    end_swap swap;
    bool taken;
    if (product == HL_NONE || s->uses.kept[x]) return HL_OK;
    int n_backs = find_backs(s, HL_OP_GELU_GRAD, x, backs);
    if (n_backs) return fuse_with_operand(s, product, gelu, backs, n_backs);
    if (find_only_user(s, x) != gelu) return HL_OK;
    HL_TRY(add_fused(s, product, HL_MATMUL_GELU, HL_NONE, &fused));
    return try_value(s, s->graph->nodes[gelu].out, fused, &taken, &swap);
}

/* ---- sums beside a product ------------------------------------------------------------------- */

/* What a value is but for its shape, and for being widened. */
static hl_id find_origin(const hl_graph *graph, hl_id value)
{
    for (;;) {
        hl_node_id maker = hl_graph_producer(graph, value);
        if (maker == HL_NONE) return value;
        const hl_node *node = &graph->nodes[maker];
        bool widens = node->op == HL_OP_CAST && hl_graph_dtype(graph, value) == HL_DTYPE_F32 &&
                      hl_dtype_is_float(hl_graph_dtype(graph, node->in[0]));
        if (!widens && !(hl_op_get(node->op)->flags & HL_OP_VIEW)) return value;
        value = node->in[0];
    }
}

/* A float32 sum over all dims but the last. */
static bool is_sum_of_rows(const hl_graph *graph, const hl_node *node)
{
    if (node->op != HL_OP_SUM || hl_graph_dtype(graph, node->out) != HL_DTYPE_F32) return false;
    int32_t n = hl_graph_shape(graph, node->in[0])->rank - 1;
    const hl_ints *axes = &hl_reduce_attrs(node)->axes;
    if (n < 1 || axes->n != n) return false;
    for (int32_t d = 0; d < n; d++)
        if (axes->at[d] != d) return false;
    return true;
}

/* Sums by what they sum: by value, the node, or HL_NONE. */
static hl_status list_sums(const hl_graph *graph, hl_node_id **out_sums)
{
    HL_TRY(hl_alloc((size_t)graph->n_values * sizeof **out_sums, (void **)out_sums));
    for (int64_t v = 0; v < graph->n_values; v++) (*out_sums)[v] = HL_NONE;
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        const hl_node *node = &graph->nodes[i];
        if (is_sum_of_rows(graph, node))
            (*out_sums)[find_origin(graph, node->in[0])] = (hl_node_id)i;
    }
    return HL_OK;
}

/* Nothing that stands before the product reads the sum, so it may be made where the product is. */
static bool may_wait(const end_state *s, hl_node_id sum, hl_node_id product)
{
    hl_id value = s->graph->nodes[sum].out;
    for (int32_t u = s->uses.start[value]; u < s->uses.start[value + 1]; u++)
        if (s->uses.list[u] < product) return false;
    return s->graph->nodes[sum].segment == s->graph->nodes[product].segment;
}

/* The sum over K of an operand (0 or 1) of this product, or HL_NONE. */
static hl_node_id find_sum(const end_state *s, const hl_node_id *sums, hl_node_id id, int operand)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[id];
    bool sums_rows =
        operand == 0 ? hl_matmul_attrs(node)->trans_a : !hl_matmul_attrs(node)->trans_b;
    hl_id origin = find_origin(graph, node->in[operand]);
    if (!sums_rows || origin >= s->n_used) return HL_NONE;
    hl_node_id sum = sums[origin], maker = hl_graph_producer(graph, origin);
    if (sum == HL_NONE || !may_wait(s, sum, id)) return HL_NONE;
    if (maker != HL_NONE && hl_op_get(graph->nodes[maker].op)->flags & HL_OP_POINTWISE)
        return HL_NONE;
    const hl_shape *matrix = hl_graph_shape(graph, node->in[operand]),
                   *summed = hl_graph_shape(graph, graph->nodes[sum].in[0]);
    bool is_same = matrix->rank == 2 && matrix->dim[1] == summed->dim[summed->rank - 1] &&
                   hl_shape_numel(matrix) == hl_shape_numel(summed);
    return is_same ? sum : (hl_node_id)HL_NONE;
}

/* The product with sums beside it, in the place of both. */
static hl_status try_sum(end_state *s, hl_node_id product, hl_matmul_end end, hl_node_id *sum,
                         bool *out_taken)
{
    hl_id fused;
    end_swap total, swap;
    HL_TRY(add_fused(s, product, end, HL_NONE, &fused));
    HL_TRY(put_value(s, s->graph->nodes[*sum].out, fused + 1, &total));
    HL_TRY(try_value(s, s->graph->nodes[product].out, fused, out_taken, &swap));
    if (!*out_taken) return put_back(s, &total);
    *sum = HL_NONE;
    return HL_OK;
}

static hl_status fuse_sum(end_state *s, hl_node_id *sums, hl_node_id product)
{
    const hl_node *node = &s->graph->nodes[product];
    bool taken = false;
    if (node->n_in != 2 || hl_graph_dtype(s->graph, node->out) != HL_DTYPE_F32) return HL_OK;
    for (int operand = 0; operand < 2 && !taken; operand++) {
        if (find_sum(s, sums, product, operand) == HL_NONE) continue;
        hl_id origin = find_origin(s->graph, s->graph->nodes[product].in[operand]);
        HL_TRY(try_sum(s, product, operand ? HL_MATMUL_SUM_B : HL_MATMUL_SUM_A, &sums[origin],
                       &taken));
    }
    return HL_OK;
}

/* A sum that found no place there: with the product that makes the matrix. */
static hl_status fuse_own_sum(end_state *s, hl_node_id *sums, hl_node_id product)
{
    const hl_graph *graph = s->graph;
    const hl_node *node = &graph->nodes[product];
    hl_matmul_end end = hl_matmul_end_of(node);
    bool is_masked = end == HL_MATMUL_MASKED, taken;
    if (!is_masked && end != HL_MATMUL_GELU_GRAD) return HL_OK;
    hl_node_id sum = sums[node->out];
    if (sum == HL_NONE || graph->nodes[sum].segment != node->segment) return HL_OK;
    const hl_shape *matrix = hl_graph_shape(graph, node->out),
                   *summed = hl_graph_shape(graph, graph->nodes[sum].in[0]);
    if (matrix->dim[matrix->rank - 1] != summed->dim[summed->rank - 1]) return HL_OK;
    return try_sum(s, product, is_masked ? HL_MATMUL_MASKED_SUM : HL_MATMUL_GELU_GRAD_SUM,
                   &sums[node->out], &taken);
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status fuse_activations(end_state *s)
{
    int64_t n = s->graph->n_nodes;
    HL_TRY(begin_sweep(s));
    hl_status status = HL_OK;
    for (int64_t i = 0; i < n && status == HL_OK; i++) {
        if (s->graph->nodes[i].op == HL_OP_RELU) status = fuse_relu(s, (hl_node_id)i);
        if (s->graph->nodes[i].op == HL_OP_GELU) status = fuse_gelu(s, (hl_node_id)i);
    }
    hl_uses_deinit(&s->uses);
    return status == HL_OK ? hl_rewrite_sort(s->graph) : status;
}

static hl_status fuse_sums(end_state *s)
{
    int64_t n = s->graph->n_nodes;
    hl_node_id *sums = NULL;
    hl_status status;
    HL_GOTO(begin_sweep(s));
    HL_GOTO(list_sums(s->graph, &sums));
    for (int64_t i = 0; i < n; i++)
        if (s->graph->nodes[i].op == HL_OP_MATMUL) HL_GOTO(fuse_sum(s, sums, (hl_node_id)i));
    for (int64_t i = 0; i < n; i++) HL_GOTO(fuse_own_sum(s, sums, (hl_node_id)i));
    HL_GOTO(hl_rewrite_sort(s->graph));
cleanup:
    hl_free(sums);
    hl_uses_deinit(&s->uses);
    return status;
}

hl_status hl_pass_epilogue(hl_graph *graph, hl_device *device, bool deterministic)
{
    const hl_kernel *const *kernels = device->ops->kernels(device, HL_OP_MATMUL_FUSED);
    end_state s = {.graph = graph, .device = device, .deterministic = deterministic};
    if (!kernels || !*kernels) return HL_OK;
    hl_status status = fuse_activations(&s);
    if (status == HL_OK) status = fuse_sums(&s);
    hl_free(s.map);
    return status;
}
