/* Launchers of attention.cu. */
#include "kernels/cuda/attention.h"

#include <stdio.h>

#include "kernels/cuda/calls.h"

enum { MAX_BLOCKS = 0x7FFFFFFF };

/* A node, whose queries, keys and values stand at `first`, mask and control at `rest`. */
typedef struct node_sizes {
    hl_dtype dtype;
    int first, rest;
    int width; /* of the kernels that it takes; 0: it is too wide */
    hl_cuda_attention of;
} node_sizes;

static int find_width(const hl_cuda_attention *of, hl_dtype dtype)
{
    int64_t widest = of->E > of->Ev ? of->E : of->Ev;
#define FIND(size, ignored)                                                                        \
    if (widest <= size) return size;
    if (dtype == HL_DTYPE_F32) {
        HL_CUDA_ATTENTION_WIDTHS_F32(FIND, )
    } else {
        HL_CUDA_ATTENTION_WIDTHS(FIND, )
    }
#undef FIND
    return 0;
}

static node_sizes read_node(const hl_graph *graph, const hl_node *node)
{
    const hl_attrs_attention *attrs = hl_attention_attrs(node);
    bool is_grad = node->op == HL_OP_ATTENTION_GRAD;
    node_sizes n = {.first = is_grad, .rest = is_grad ? 6 : 3};
    const int64_t *q = hl_node_in_type(graph, node, n.first)->shape.dim,
                  *k = hl_node_in_type(graph, node, n.first + 1)->shape.dim,
                  *v = hl_node_in_type(graph, node, n.first + 2)->shape.dim;
    n.dtype = hl_node_in_type(graph, node, n.first)->dtype;
    n.of = (hl_cuda_attention){.B = q[0],
                               .H = q[1],
                               .L = q[2],
                               .E = q[3],
                               .Hk = k[1],
                               .S = k[2],
                               .Ev = v[3],
                               .scale = (float)attrs->scale,
                               .drop_scale = 1,
                               .is_causal = attrs->is_causal,
                               .has_mask = attrs->has_mask,
                               .drops = attrs->p > 0};
    n.width = find_width(&n.of, n.dtype);
    if (attrs->has_mask) {
        const hl_type *mask = hl_node_in_type(graph, node, n.rest);
        n.of.mask_is_bool = mask->dtype == HL_DTYPE_BOOL;
        for (int64_t d = 3, stride = 1; d >= 0; stride *= mask->shape.dim[d--])
            n.of.mask_stride[d] = mask->shape.dim[d] == 1 ? 0 : stride;
    }
    if (attrs->p > 0) {
        hl_rng_key key = hl_rng_key_make((uint64_t)attrs->seed, attrs->stream);
        n.of.key[0] = key.word[0], n.of.key[1] = key.word[1];
        n.of.threshold = hl_dropout_threshold(attrs->p);
        n.of.drop_scale = (float)hl_dropout_scale(attrs->p);
    }
    return n;
}

static hl_status query_attention(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    node_sizes n = read_node(graph, node);
    int arch = hl_cuda_device_facts(device)->arch;
    /* The gradient of the result is an operand of products, too. */
    if (!hl_cuda_is_same_float(graph, node, 0, n.first + 3, out_why_not)) return HL_ERROR_CONFIG;
    if (n.dtype == HL_DTYPE_BF16 && arch < HL_CUDA_OLDEST_BF16)
        return hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", HL_CUDA_OLDEST_BF16,
                             arch);
    if (!n.width)
        return hl_reason_set(out_why_not, "takes heads of at most %d, got %lld and %lld",
                             HL_CUDA_ATTENTION_WIDEST, (long long)n.of.E, (long long)n.of.Ev);
    for (int i = 0; i < n.first + 3; i++)
        if (hl_shape_numel(&hl_node_in_type(graph, node, i)->shape) == 0)
            return hl_reason_set(out_why_not, "needs operands that are not empty");
    if (n.first) out_req->scratch_bytes = (size_t)(n.of.B * n.of.H * n.of.L) * sizeof(float);
    out_req->deterministic = true;
    return HL_OK;
}

/* A block for each tile of n_rows in a head; of n_held and n_passing rows in shared memory. */
static hl_cuda_shape shape_tiles(node_sizes *n, int64_t n_heads, int64_t n_rows, int n_held,
                                 int n_passing)
{
    bool is_16_bit = n->dtype != HL_DTYPE_F32;
    int rows = HL_CUDA_ATTENTION_ROWS(is_16_bit, n->width);
    int bytes = (n_held + n_passing) * HL_CUDA_ATTENTION_PITCH(n->width) * 2;
    n->of.n_tiles = (n_rows + rows - 1) / rows;
    int64_t n_blocks = n_heads * n->of.n_tiles;
    return (hl_cuda_shape){{(unsigned)(n_blocks < MAX_BLOCKS ? n_blocks : MAX_BLOCKS), 1, 1},
                           {(unsigned)HL_CUDA_ATTENTION_THREADS(is_16_bit, n->width), 1, 1},
                           is_16_bit ? (unsigned)bytes : 0};
}

static void write_variant(const node_sizes *n, char out_variant[16])
{
    snprintf(out_variant, 16, "%s_%d", hl_cuda_suffix(n->dtype), n->width);
}

static hl_status prepare_forward(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    node_sizes n = read_node(graph, node);
    bool is_16_bit = n.dtype != HL_DTYPE_F32;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word none = {0};
    char variant[16];
    write_variant(&n, variant);
    hl_cuda_shape shape =
        shape_tiles(&n, n.of.B * n.of.H, n.of.L, HL_CUDA_ATTENTION_ROWS(is_16_bit, n.width),
                    2 * HL_CUDA_ATTENTION_COLS(is_16_bit, n.width));
    HL_CUDA_CALL(&calls, attention, variant, shape,
                 .at = {hl_cuda_in(&calls, 0), hl_cuda_in(&calls, 1), hl_cuda_in(&calls, 2),
                        n.of.has_mask ? hl_cuda_in(&calls, n.rest) : none,
                        n.of.drops ? hl_cuda_in(&calls, node->n_in - 1) : none,
                        hl_cuda_out(&calls, 0), hl_cuda_out(&calls, 1)},
                 .of = n.of, .out_dtype = (int32_t)hl_node_out_type(graph, node, 0)->dtype);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    node_sizes n = read_node(graph, node);
    bool is_16_bit = n.dtype != HL_DTYPE_F32;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word none = {0}, dout = hl_cuda_in(&calls, 0), q = hl_cuda_in(&calls, 1),
                 k = hl_cuda_in(&calls, 2), v = hl_cuda_in(&calls, 3), lse = hl_cuda_in(&calls, 5),
                 mask = n.of.has_mask ? hl_cuda_in(&calls, n.rest) : none,
                 control = n.of.drops ? hl_cuda_in(&calls, node->n_in - 1) : none;
    int held = 2 * HL_CUDA_ATTENTION_ROWS(is_16_bit, n.width),
        passing = 2 * HL_CUDA_ATTENTION_GRAD_COLS(is_16_bit, n.width);
    int32_t dtype = (int32_t)hl_node_out_type(graph, node, 0)->dtype;
    char variant[16];
    write_variant(&n, variant);
    hl_cuda_shape shape = shape_tiles(&n, n.of.B * n.of.H, n.of.L, held, passing);
    HL_CUDA_CALL(&calls, attention_grad_queries, variant, shape,
                 .at = {dout, q, k, v, hl_cuda_in(&calls, 4), lse, mask, control,
                        hl_cuda_out(&calls, 0), hl_cuda_scratch(0)},
                 .of = n.of, .out_dtype = (int32_t)hl_node_in_type(graph, node, 4)->dtype,
                 .dq_dtype = dtype);
    int64_t n_sums = HL_CUDA_ATTENTION_APART(n.width) ? 2 : 1;
    shape = shape_tiles(&n, n_sums * n.of.B * n.of.Hk, n.of.S, held, passing);
    HL_CUDA_CALL(&calls, attention_grad_keys, variant, shape,
                 .at = {dout, q, k, v, lse, mask, control, hl_cuda_scratch(0),
                        hl_cuda_out(&calls, 1), hl_cuda_out(&calls, 2)},
                 .of = n.of, .dtype = dtype);
    return hl_cuda_calls_end(&calls, out_state);
}

/* Behind the library's (attention_dnn.c). */
const hl_kernel hl_cuda_attention_own =
    HL_CUDA_KERNEL(ATTENTION, "attention", query_attention, prepare_forward);
const hl_kernel hl_cuda_attention_grad_own =
    HL_CUDA_KERNEL(ATTENTION_GRAD, "attention_grad", query_attention, prepare_grad);
