/* Launchers of recurrence.cu, and the shapes for which one launch over all of time pays. What does
 * not is lowered: step by step, with a product and a fused kernel for each step. */
#include "kernels/cuda/recurrence.h"

#include <stdio.h>

#include "ir/recurrence.h"
#include "kernels/cuda/calls.h"

/* By what the choice is made: rough figures of GPUs since sm_75, which a first GPU has to correct
 * (docs/design.md). A launch within a captured graph, from one's beginning to the next one's, and
 * how many a step has that is lowered (tests/train/test_gpu_launches.py counts them); what a step
 * of these kernels takes beside products, which are loads that nothing hides and the functions of
 * gates. Of one multiprocessor, each ns: bytes of its shared memory, bytes of the L2 cache where it
 * reads alone and where all do, multiply-adds of float32 and of 16 bits. */
static const double LAUNCH_NS = 1500, STEP_NS = 800, SHARED_BYTES = 180, CACHE_BYTES = 90,
                    CACHE_BYTES_EACH = 25, MACS_F32 = 100, MACS_16 = 400;
static const int LAUNCHES[HL_CELL_COUNT] = {4, 4, 10, 11},
                 LAUNCHES_GRAD[HL_CELL_COUNT] = {3, 3, 13, 14};

/* Rows of a block's tile, whether it keeps the weight, and ns of a step of all rows. */
typedef struct plan {
    int rows;
    bool is_resident;
    double step_ns;
    int64_t shared_bytes;
} plan;

typedef struct node_sizes {
    hl_recurrence r;
    bool is_grad, is_16_bit;
    hl_dtype w, x; /* types of the weight, and of what lies over time */
    hl_cuda_recurrence of;
    int n_products;
    plan plan; /* rows 0: there is no room */
} node_sizes;

static int64_t divide_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double count_macs(const node_sizes *n, int64_t rows)
{
    return (double)rows * (double)(n->r.G * n->r.H) * (double)n->r.H /
           (n->is_16_bit ? MACS_16 : MACS_F32);
}

/* A multiprocessor's registers have room for so many warps, which is the most of a block. */
static int count_most_warps(const node_sizes *n, int rows)
{
    return HL_CUDA_RECURRENCE_WARPS(n->is_16_bit, rows);
}

static int count_warps(const node_sizes *n, int rows)
{
    int most = count_most_warps(n, rows);
    return n->of.n_groups < most ? n->of.n_groups : most;
}

/* Blocks that are on a multiprocessor at once, of so many for it. */
static int64_t count_at_once(const hl_cuda_facts *facts, const node_sizes *n, const plan *p,
                             int64_t n_blocks)
{
    int64_t by_registers = count_most_warps(n, p->rows) / count_warps(n, p->rows),
            by_memory = (int64_t)facts->shared_bytes_block / p->shared_bytes;
    int64_t room = by_registers < by_memory ? by_registers : by_memory;
    return n_blocks < room ? n_blocks : room > 0 ? room : 1;
}

/* What blocks on a multiprocessor read and multiply adds up; what they wait for does not. */
static plan make_plan(const hl_cuda_facts *facts, const node_sizes *n, int rows, bool is_resident)
{
    hl_cuda_recurrence_room room =
        hl_cuda_recurrence_measure(&n->of, n->n_products, n->is_16_bit, rows);
    bool has_cells = n->is_grad && n->r.cell == HL_CELL_LSTM;
    int64_t n_blocks = divide_up(n->r.N, rows), n_sms = facts->n_multiprocessors,
            each = divide_up(n_blocks, n_sms), n_busy = n_blocks < n_sms ? n_blocks : n_sms;
    plan p = {.rows = rows,
              .is_resident = is_resident,
              .shared_bytes = (is_resident ? room.weight : 0) + 2 * room.operand +
                              (has_cells ? 2 : 1) * room.state};
    double alone_ns = (double)room.weight / (is_resident ? SHARED_BYTES : CACHE_BYTES),
           share = CACHE_BYTES_EACH * (double)n_sms / (double)n_busy,
           beside_ns = is_resident ? 0 : (double)room.weight / share;
    double work_ns = larger(larger(alone_ns, beside_ns), count_macs(n, rows));
    int64_t turns = divide_up(each, count_at_once(facts, n, &p, each));
    p.step_ns = (double)turns * STEP_NS + (double)each * work_ns;
    return p;
}

/* The one of the least time that has room. */
static plan choose(const hl_cuda_facts *facts, const node_sizes *n)
{
    plan best = {.rows = 0};
    for (int i = 0; i < 4; i++) {
        int few = HL_CUDA_RECURRENCE_FEW(n->is_16_bit);
        plan one = make_plan(facts, n, i / 2 ? 2 * few : few, i % 2 == 0);
        /* A block's lengths lie in shared memory, too. */
        if (one.shared_bytes + one.rows * (int64_t)sizeof(int32_t) >
            (int64_t)facts->shared_bytes_block)
            continue;
        if (!best.rows || one.step_ns < best.step_ns) best = one;
    }
    return best;
}

static node_sizes read_node(const hl_device *device, const hl_graph *graph, const hl_node *node)
{
    node_sizes n = {.r = hl_recurrence_of(graph, node),
                    .is_grad = node->op == HL_OP_RECURRENCE_GRAD,
                    .w = hl_node_in_type(graph, node, HL_RECURRENCE_W)->dtype};
    n.x = hl_node_out_type(graph, node, 0)->dtype;
    n.is_16_bit = hl_dtype_is_16_bit(n.w);
    n.n_products = n.is_grad ? 1 : (int)n.r.G;
    int64_t step = HL_CUDA_RECURRENCE_TERMS(n.is_16_bit), terms = divide_up(n.r.H, step) * step;
    n.of = (hl_cuda_recurrence){
        .N = n.r.N,
        .T = n.r.T,
        .H = (int32_t)n.r.H,
        .n_groups = (int32_t)divide_up(n.r.H, HL_CUDA_RECURRENCE_UNITS(n.is_16_bit)),
        .n_terms = (int32_t)(n.is_grad ? n.r.G * terms : terms),
        .is_relu = n.r.cell == HL_CELL_RELU,
        .is_reverse = n.r.is_reverse,
        .is_sorted = n.r.is_sorted,
        .is_narrow = hl_dtype_is_16_bit(n.x)};
    if (n.r.N > 0 && n.r.H > 0) n.plan = choose(hl_cuda_device_facts(device), &n);
    n.of.is_resident = n.plan.is_resident;
    return n;
}

/* Of the form step by step, with products of the whole GPU. */
static double find_stepwise_ns(const hl_cuda_facts *facts, const node_sizes *n)
{
    int launches = (n->is_grad ? LAUNCHES_GRAD : LAUNCHES)[n->r.cell];
    return launches * LAUNCH_NS + count_macs(n, n->r.N) / facts->n_multiprocessors;
}

static hl_status check_types(int arch, const node_sizes *n, hl_reason *out_why_not)
{
    if (!hl_cuda_suffix(n->w) || !hl_cuda_suffix(n->x))
        return hl_reason_set(out_why_not, "takes float32, bfloat16 and float16, got %s and %s",
                             hl_dtype_name(n->w), hl_dtype_name(n->x));
    if (n->w == HL_DTYPE_BF16 && arch < HL_CUDA_OLDEST_BF16)
        return hl_reason_set(out_why_not, "bfloat16 needs sm_%d, got sm_%d", HL_CUDA_OLDEST_BF16,
                             arch);
    return HL_OK;
}

static hl_status check_shapes(const hl_cuda_facts *facts, const node_sizes *n,
                              hl_reason *out_why_not)
{
    const hl_recurrence *r = &n->r;
    if (r->has_projection)
        return hl_reason_set(out_why_not, "takes states without a projection, got one of %lld",
                             (long long)r->P);
    if (r->N * r->T * r->H == 0)
        return hl_reason_set(out_why_not, "needs operands that are not empty");
    double stepwise_ns = find_stepwise_ns(facts, n);
    if (!n->plan.rows)
        return hl_reason_set(out_why_not,
                             "a block's states do not fit into %zu bytes of shared memory, got "
                             "%lld units",
                             facts->shared_bytes_block, (long long)r->H);
    if (n->plan.step_ns > stepwise_ns)
        return hl_reason_set(out_why_not,
                             "reads its weight at every step, some %.1f us of %lld units for %lld "
                             "rows, and launches for each step take %.1f",
                             n->plan.step_ns * 1e-3, (long long)r->H, (long long)r->N,
                             stepwise_ns * 1e-3);
    return HL_OK;
}

static hl_status query_recurrence(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    const hl_cuda_facts *facts = hl_cuda_device_facts(device);
    node_sizes n = read_node(device, graph, node);
    bool keeps = hl_recurrence_keeps(&n.r);
    HL_TRY(check_types(facts->arch, &n, out_why_not));
    HL_TRY(check_shapes(facts, &n, out_why_not));
    if (!n.plan.is_resident)
        out_req->scratch_bytes =
            (size_t)hl_cuda_recurrence_measure(&n.of, n.n_products, n.is_16_bit, n.plan.rows)
                .weight;
    /* Whoever writes an element is who has read what lies in its place. */
    if (n.is_grad)
        out_req->in_place[HL_RECURRENCE_GRAD_DZ] =
            1u << (keeps ? HL_RECURRENCE_GRAD_GATES : HL_RECURRENCE_GRAD_DOUT);
    else
        out_req->in_place[keeps ? HL_RECURRENCE_GATES : HL_RECURRENCE_OUT] = 1u << HL_RECURRENCE_Z;
    out_req->deterministic = true;
    return HL_OK;
}

/* What a block reads as its weight: the operand, or scratch, into which a launch before it packs.
 */
static hl_cuda_word place_weight(hl_cuda_calls *calls, const hl_device *device, const node_sizes *n)
{
    hl_cuda_word w = hl_cuda_in(calls, HL_RECURRENCE_W);
    if (n->plan.is_resident) return w;
    int64_t bytes =
        hl_cuda_recurrence_measure(&n->of, n->n_products, n->is_16_bit, n->plan.rows).weight;
    HL_CUDA_CALL(calls, recurrence_pack, hl_cuda_suffix(n->w),
                 hl_cuda_shape_elements(device, bytes / HL_CUDA_RECURRENCE_WORD_BYTES),
                 .at = {w, hl_cuda_scratch(0)}, .of = n->of, .G = (int32_t)n->r.G,
                 .is_grad = n->is_grad);
    return hl_cuda_scratch(0);
}

static hl_cuda_shape shape_blocks(const node_sizes *n)
{
    return (hl_cuda_shape){{(unsigned)divide_up(n->r.N, n->plan.rows), 1, 1},
                           {32 * (unsigned)count_warps(n, n->plan.rows), 1, 1},
                           (unsigned)n->plan.shared_bytes};
}

static void write_variant(const node_sizes *n, char out_variant[16])
{
    bool is_few = n->plan.rows == HL_CUDA_RECURRENCE_FEW(n->is_16_bit);
    snprintf(out_variant, 16, "%s_%d_%s", hl_cuda_suffix(n->w), (int)n->r.G,
             is_few ? "few" : "many");
}

static hl_status prepare_recurrence(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    node_sizes n = read_node(device, graph, &graph->nodes[id]);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word w = place_weight(&calls, device, &n), none = {0};
    char variant[16];
    write_variant(&n, variant);
    HL_CUDA_CALL(
        &calls, recurrence, variant, shape_blocks(&n),
        .at = {w, hl_cuda_in(&calls, HL_RECURRENCE_Z), hl_cuda_in(&calls, HL_RECURRENCE_H0),
               hl_cuda_in(&calls, HL_RECURRENCE_LENGTHS),
               n.r.c0 >= 0 ? hl_cuda_in(&calls, n.r.c0) : none,
               n.r.bias >= 0 ? hl_cuda_in(&calls, n.r.bias) : none, hl_cuda_control_block(),
               hl_cuda_fault_word(&calls), hl_cuda_out(&calls, HL_RECURRENCE_OUT),
               hl_cuda_out(&calls, HL_RECURRENCE_H), hl_cuda_out(&calls, HL_RECURRENCE_C),
               hl_cuda_out(&calls, HL_RECURRENCE_GATES), hl_cuda_out(&calls, HL_RECURRENCE_CELLS)},
        .of = n.of);
    return hl_cuda_calls_end(&calls, out_state);
}

static hl_status prepare_recurrence_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                         hl_kernel_state *out_state)
{
    node_sizes n = read_node(device, graph, &graph->nodes[id]);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_word w = place_weight(&calls, device, &n), none = {0};
    char variant[16];
    write_variant(&n, variant);
    HL_CUDA_CALL(&calls, recurrence_grad, variant, shape_blocks(&n),
                 .at = {w, hl_cuda_in(&calls, HL_RECURRENCE_GRAD_DOUT),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_DH),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_DC),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_OUT),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_GATES),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_CELLS),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_H0),
                        hl_cuda_in(&calls, HL_RECURRENCE_GRAD_LENGTHS),
                        n.r.c0 >= 0 ? hl_cuda_in(&calls, n.r.c0) : none, hl_cuda_control_block(),
                        hl_cuda_fault_word(&calls), hl_cuda_out(&calls, HL_RECURRENCE_GRAD_DZ),
                        hl_cuda_out(&calls, HL_RECURRENCE_GRAD_DH0),
                        hl_cuda_out(&calls, HL_RECURRENCE_GRAD_DC0),
                        hl_cuda_out(&calls, HL_RECURRENCE_GRAD_HIDDEN)},
                 .of = n.of);
    return hl_cuda_calls_end(&calls, out_state);
}

static const hl_kernel recurrence =
    HL_CUDA_KERNEL(RECURRENCE, "recurrence", query_recurrence, prepare_recurrence);
static const hl_kernel recurrence_grad =
    HL_CUDA_KERNEL(RECURRENCE_GRAD, "recurrence_grad", query_recurrence, prepare_recurrence_grad);

const hl_kernel *const hl_cuda_recurrence_kernels[] = {&recurrence, &recurrence_grad, NULL};
