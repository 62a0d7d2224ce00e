/* Connectionist temporal classification, a sequence after another: the recursions of
 * kernels/ref/ctc.c, in which a vector holds neighbouring places of one time.
 *
 * Sums of three powers take the largest out. A row of places has two of no path (-inf) at the end
 * that a step comes from, so that no step asks whether it is at the end. */
#include "kernels/cpu/rows.h"

enum { BESIDE = 2 /* places of no path beside a row */ };

typedef struct ctc_state {
    int64_t T, N, C, S, width; /* width: 2 S + 1, */
    int64_t padded;            /* and in whole vectors */
    int64_t blank;
    hl_dtype target_dtype, length_dtype[2];
    bool zero_infinity;
} ctc_state;

/* One sequence, in thread scratch. */
typedef struct sequence {
    int64_t time, places;
    int32_t *class;    /* of each place; the blank beyond the last */
    float *skip;       /* of each place, 0 or -inf: may a path come from the place before last? */
    float *row, *next; /* of places, and on both sides BESIDE more */
    float *share;      /* of the paths, each place's */
} sequence;

static int64_t read_integer(const void *p, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)p)[i];
    case HL_DTYPE_I32: return ((const int32_t *)p)[i];
    case HL_DTYPE_I16: return ((const int16_t *)p)[i];
    case HL_DTYPE_I8: return ((const int8_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

static size_t count_scratch(const ctc_state *s)
{
    return (size_t)(5 * s->padded + 4 * HL_VL) * sizeof(float);
}

/* Rows of places begin HL_VL into their room. */
static sequence place_sequence(const ctc_state *s, void *scratch)
{
    float *at = scratch;
    int64_t room = s->padded + 2 * HL_VL;
    return (sequence){.row = at + HL_VL,
                      .next = at + room + HL_VL,
                      .skip = at + 2 * room,
                      .share = at + 2 * room + s->padded,
                      .class = (int32_t *)(at + 2 * room + 2 * s->padded)};
}

static bool take_target(const ctc_state *s, const void *targets, int64_t at,
                        const hl_launch *launch, int32_t *out_class)
{
    int64_t c = read_integer(targets, s->target_dtype, at);
    *out_class = (int32_t)c;
    if (c >= 0 && c < s->C && c != s->blank) return true;
    hl_launch_fault(launch, 3 * at + 2, c);
    return false;
}

/* Sequence n; args: targets and both lengths. False where it counts 0: a fault. */
static bool take_sequence(const ctc_state *s, void *const *args, int64_t n, const hl_launch *launch,
                          sequence *q)
{
    int64_t length[2], most[] = {s->T, s->S};
    for (int i = 0; i < 2; i++) {
        length[i] = read_integer(args[1 + i], s->length_dtype[i], n);
        if (length[i] >= 0 && length[i] <= most[i]) continue;
        hl_launch_fault(launch, 3 * n + i, length[i]);
        return false;
    }
    q->time = length[0], q->places = 2 * length[1] + 1;
    for (int64_t i = 0; i < s->padded; i++) {
        q->class[i] = (int32_t)s->blank;
        q->skip[i] = -INFINITY;
    }
    for (int64_t i = 1; i < q->places; i += 2) {
        if (!take_target(s, args[0], n * s->S + i / 2, launch, &q->class[i])) return false;
        if (i == 1 || q->class[i] != q->class[i - 2]) q->skip[i] = 0;
    }
    for (int64_t i = -HL_VL; i < s->padded + HL_VL; i++) q->row[i] = q->next[i] = -INFINITY;
    return true;
}

/* log(e^a + e^b + e^c); -inf where all are. */
HL_SIMD hl_v add_logarithms(hl_v a, hl_v b, hl_v c)
{
    hl_v top = hl_v_max(hl_v_max(a, b), c);
    hl_v from = hl_v_select(hl_v_eq(top, hl_v_set1(-INFINITY)), hl_v_zero(), top);
    hl_v sum = hl_row_power(a - from) + hl_row_power(b - from) + hl_row_power(c - from);
    return hl_v_log(sum) + from;
}

HL_SIMD hl_v keep_places(const sequence *q, int64_t i, hl_v x)
{
    return hl_v_select(hl_vm_first(q->places - i), x, hl_v_set1(-INFINITY));
}

static void swap_rows(sequence *q)
{
    float *row = q->row;
    q->row = q->next, q->next = row;
}

/* From a time to the next one, whose log probabilities are x. */
static void step_on(const ctc_state *s, sequence *q, const float *x)
{
    for (int64_t i = 0; i < s->padded; i += HL_VL) {
        hl_v stays = hl_v_load(q->row + i), comes = hl_v_load(q->row + i - 1),
             skips = hl_v_load(q->row + i - 2) + hl_v_load(q->skip + i);
        hl_v sum = add_logarithms(stays, comes, skips) + hl_v_gather(x, hl_vi_load(q->class + i));
        hl_v_store(q->next + i, keep_places(q, i, sum));
    }
    swap_rows(q);
}

static float find_loss(const sequence *q, const float *last)
{
    if (q->time == 0) return q->places == 1 ? 0 : INFINITY;
    hl_v a = hl_v_set1(last[q->places - 1]), none = hl_v_set1(-INFINITY);
    hl_v b = q->places == 1 ? none : hl_v_set1(last[q->places - 2]);
    return -add_logarithms(a, b, none)[0];
}

static void run_loss(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const ctc_state *s = state->impl;
    const float *log_probs = args[0];
    float *loss = args[4];
    end = hl_cpu_min(end, s->N);
    for (int64_t n = begin; n < end; n++) {
        float *alpha = (float *)args[5] + n * s->T * s->width;
        sequence q = place_sequence(s, launch->thread_scratch);
        bool counts = take_sequence(s, args + 1, n, launch, &q);
        int64_t t = 0;
        q.row[-1] = counts ? 0 : -INFINITY; /* paths begin before the first place */
        for (; counts && t < q.time; t++) {
            step_on(s, &q, log_probs + (t * s->N + n) * s->C);
            q.row[-1] = q.next[-1] = -INFINITY;
            memcpy(alpha + t * s->width, q.row, (size_t)s->width * sizeof *alpha);
        }
        for (int64_t i = t * s->width; i < s->T * s->width; i++) alpha[i] = -INFINITY;
        loss[n] = counts ? find_loss(&q, q.row) : 0;
        if (s->zero_infinity && isinf(loss[n])) loss[n] = 0;
    }
}

/* One time of the gradient: row has the logarithms of the probabilities of going on from each
 * place, and then those of the time before; x the log probabilities, alpha the beginnings. */
static void step_back(const ctc_state *s, sequence *q, const float *x, const float *alpha,
                      float loss, float dloss, float *grad)
{
    hl_v scale = hl_v_set1(dloss), total = hl_v_set1(loss);
    for (int64_t c = 0; c < s->C; c += HL_VL) {
        int64_t lanes = hl_cpu_min(s->C - c, HL_VL);
        hl_row_store(grad + c, scale * hl_v_exp(hl_row_load(x + c, lanes)), lanes);
    }
    for (int64_t i = 0; i < q->places; i += HL_VL) {
        int64_t lanes = hl_cpu_min(q->places - i, HL_VL);
        hl_v begin = hl_row_load(alpha + i, lanes), beta = hl_v_load(q->row + i);
        hl_v_store(q->share + i, scale * hl_row_power(begin + beta + total));
        hl_v_store(q->row + i, keep_places(q, i, beta + hl_v_gather(x, hl_vi_load(q->class + i))));
    }
    float blank = 0;
    for (int64_t i = 0; i < q->places; i += 2) blank += q->share[i];
    grad[s->blank] -= blank;
    for (int64_t i = 1; i < q->places; i += 2) grad[q->class[i]] -= q->share[i];
    for (int64_t i = 0; i < q->places; i += HL_VL) {
        /* What may be skipped to stands two places on: beyond the last place nothing does. */
        hl_v skips = hl_v_load(q->row + i + 2) +
                     hl_row_load(q->skip + i + 2, hl_cpu_min(s->padded - i - 2, HL_VL));
        hl_v sum = add_logarithms(hl_v_load(q->row + i), hl_v_load(q->row + i + 1), skips);
        hl_v_store(q->next + i, keep_places(q, i, sum));
    }
    swap_rows(q);
}

static void run_grad(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const ctc_state *s = state->impl;
    const float *log_probs = args[1];
    float *grad = args[6];
    end = hl_cpu_min(end, s->N);
    for (int64_t n = begin; n < end; n++) {
        const float *alpha = (const float *)args[5] + n * s->T * s->width;
        float dloss = ((const float *)args[0])[n], loss = INFINITY;
        sequence q = place_sequence(s, launch->thread_scratch);
        int64_t time = 0;
        if (take_sequence(s, args + 2, n, launch, &q)) {
            loss = find_loss(&q, alpha + (q.time - 1) * s->width);
            time = isinf(loss) && s->zero_infinity ? 0 : q.time;
            if (isinf(loss)) dloss = NAN;
            for (int64_t i = hl_cpu_max(q.places - 2, 0); i < q.places; i++) q.row[i] = 0;
        }
        for (int64_t t = s->T - 1; t >= time; t--)
            memset(grad + (t * s->N + n) * s->C, 0, (size_t)s->C * sizeof *grad);
        for (int64_t t = time - 1; t >= 0; t--) {
            int64_t at = (t * s->N + n) * s->C;
            step_back(s, &q, log_probs + at, alpha + t * s->width, loss, dloss, grad + at);
        }
    }
}

static ctc_state make_state(const hl_graph *graph, const hl_node *node)
{
    int first = node->op == HL_OP_CTC_LOSS_GRAD;
    const int64_t *dim = hl_node_in_type(graph, node, first)->shape.dim;
    const hl_type *targets = hl_node_in_type(graph, node, first + 1);
    ctc_state s = {.T = dim[0],
                   .N = dim[1],
                   .C = dim[2],
                   .S = targets->shape.dim[1],
                   .blank = hl_ctc_attrs(node)->blank,
                   .target_dtype = targets->dtype,
                   .zero_infinity = hl_ctc_attrs(node)->zero_infinity};
    for (int i = 0; i < 2; i++)
        s.length_dtype[i] = hl_node_in_type(graph, node, first + 2 + i)->dtype;
    s.width = 2 * s.S + 1;
    s.padded = hl_cpu_ceil_div(s.width, HL_VL) * HL_VL;
    return s;
}

static hl_status query_ctc(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_grad = node->op == HL_OP_CTC_LOSS_GRAD;
    if (!hl_rows_is_f32(graph, node, 0, is_grad ? 2 : 1, out_why_not) ||
        (is_grad && !hl_rows_is_f32(graph, node, 5, 6, out_why_not)))
        return HL_ERROR_CONFIG;
    ctc_state s = make_state(graph, node);
    if (s.C > INT32_MAX) return hl_reason_set(out_why_not, "needs fewer classes");
    out_req->rows = hl_cpu_max(s.N, 1);
    out_req->grain = hl_cpu_line_grain(sizeof(float));
    /* All but log_probs and its gradient, which have times first. */
    out_req->row_in = is_grad ? 0x3D : 0xE;
    out_req->row_out = is_grad ? 0 : 3;
    out_req->thread_scratch_bytes = count_scratch(&s);
    out_req->row_cost = (double)s.T * (3.0 * (double)s.width + (is_grad ? (double)s.C : 0));
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_ctc(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_state *out_state)
{
    (void)device;
    ctc_state s = make_state(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

static const hl_kernel loss_kernel = {.op = HL_OP_CTC_LOSS,
                                      .name = HL_CPU_NAME("ctc_loss"),
                                      .query = query_ctc,
                                      .prepare = prepare_ctc,
                                      .block = run_loss};
static const hl_kernel grad_kernel = {.op = HL_OP_CTC_LOSS_GRAD,
                                      .name = HL_CPU_NAME("ctc_loss_grad"),
                                      .query = query_ctc,
                                      .prepare = prepare_ctc,
                                      .block = run_grad};

const hl_kernel *const HL_ISA_NAME(hl_cpu_ctc_kernels)[] = {&loss_kernel, &grad_kernel, NULL};
