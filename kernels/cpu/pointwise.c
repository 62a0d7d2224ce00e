/* The pointwise engine: runs pointwise programs (fused nodes, single pointwise nodes, sums) chunk
 * by chunk, so that everything between a program's loads and its stores stays in the first-level
 * cache.
 *
 * What does not change is computed once: numbers once per block of rows, values that repeat with
 * the row (normalisation scales, biases) once per block or per piece of a long row. Elements do
 * not depend on how they are cut. Sums over the outer dims are one partial per `grain` rows, in the
 * order of the rows, merged in a second phase in a fixed tree; other sums stay inside a row. */
#include "kernels/cpu/pointwise_plan.h"
#include "kernels/cpu/random.h"

typedef struct pw_run {
    const pw_plan *plan;
    void *const *args;
    unsigned char *scratch, *thread_scratch;
    pw_run_fn run;
    void *at[PW_VALUES]; /* addresses of the values for the current chunk */
    pw_random random;
    double row_sum[HL_PROGRAM_OUTS]; /* over the pieces of a long row (int64 in I64) */
} pw_run;

/* ---- operands that are laid out ---- */

static void fill_value(hl_pw_kind kind, unsigned char *dst, hl_dtype dtype, const void *src,
                       int64_t n)
{
    double value; /* room for any kind */
    HL_ISA_NAME(hl_pw_load)(kind, &value, dtype, src, 1);
    if (kind == HL_PW_F32) {
        float number;
        memcpy(&number, &value, sizeof number);
        hl_v all = hl_v_set1(number);
        /* Buffers have room for a vector more, which the next run overwrites. */
        for (int64_t i = 0; i < n; i += HL_VL) hl_v_store((float *)(void *)dst + i, all);
        return;
    }
    for (int64_t i = 0; i < n; i++) memcpy(dst + 8 * i, &value, 8);
}

/* Elements [start, start + n) of the iteration, from an operand of any broadcast form. */
static void expand_view(const pw_plan *plan, const pw_view *view, const unsigned char *src,
                        int64_t start, int64_t n, unsigned char *dst)
{
    int64_t index[HL_MAX_RANK], offset = 0, rest = start;
    int last = view->n_dims - 1;
    size_t src_bytes = hl_dtype_bytes(view->dtype), dst_bytes = plan->element_bytes;
    for (int d = last; d >= 0; d--) {
        index[d] = rest % view->dim[d];
        rest /= view->dim[d];
        offset += index[d] * view->stride[d];
    }
    while (n > 0) {
        int64_t run = hl_cpu_min(view->dim[last] - index[last], n);
        if (view->stride[last] == 0) {
            fill_value(plan->kind, dst, view->dtype, src + (size_t)offset * src_bytes, run);
        } else {
            HL_ISA_NAME(hl_pw_load)
            (plan->kind, dst, view->dtype, src + (size_t)offset * src_bytes, run);
        }
        n -= run;
        dst += (size_t)run * dst_bytes;
        offset -= index[last] * view->stride[last];
        index[last] = 0;
        for (int d = last - 1; d >= 0; d--) {
            offset += view->stride[d];
            if (++index[d] < view->dim[d]) break;
            offset -= view->dim[d] * view->stride[d];
            index[d] = 0;
        }
    }
}

static void load_operand(const pw_run *run, const pw_step *step, int64_t start, int64_t n)
{
    const pw_plan *plan = run->plan;
    const pw_view *view = &plan->view[step->in];
    const unsigned char *src = run->args[step->in];
    if (view->is_flat || view->n_dims == 0) {
        src += view->is_flat ? (size_t)start * hl_dtype_bytes(view->dtype) : 0;
        HL_ISA_NAME(hl_pw_load)(plan->kind, run->at[step->dst], view->dtype, src, n);
    } else {
        expand_view(plan, view, src, start, n, run->at[step->dst]);
    }
}

/* ---- one chunk ---- */

/* Runs the rest of a chunk after its whole groups, step by step. */
static void run_tail(const pw_run *run, const pw_item *item, int64_t done, int64_t n)
{
    const pw_plan *plan = run->plan;
    void *at[PW_VALUES];
    for (int s = item->first; s <= item->last; s++) {
        const pw_step *step = &plan->step[s];
        if (step->span != PW_EACH || step->op == HL_PW_LOAD) continue;
        const uint8_t operand[] = {step->a, step->b, step->c};
        for (int k = 0; k < 3; k++)
            at[operand[k]] = (float *)run->at[operand[k]] + (step->scalar >> k & 1 ? 0 : done);
        at[s] = (float *)run->at[s] + done;
        run->run(step, at, n - done, &run->random);
    }
}

/* Runs the steps of one span; start is the flat index of the first element (in a unit for COLS). */
static void run_steps(pw_run *run, pw_span span, int64_t start, int64_t n)
{
    const pw_plan *plan = run->plan;
    run->random.begin = start;
    for (int m = plan->moving_begin[span]; m < plan->moving_begin[span + 1]; m++) {
        int s = plan->moving[m];
        const pw_value *value = &plan->value[s];
        int arg = value->place == PW_OUTPUT ? plan->n_in + value->index : value->index;
        run->at[s] = (unsigned char *)run->args[arg] + (size_t)start * plan->element_bytes;
    }
    for (int t = plan->item_begin[span]; t < plan->item_begin[span + 1]; t++) {
        const pw_item *item = &plan->item[t];
        const pw_step *step = &plan->step[item->first];
        if (item->link >= 0) {
            int64_t done = HL_ISA_NAME(hl_pw_run_chain)(&plan->link[item->link], run->at, n);
            if (done < n) run_tail(run, item, done, n);
        } else if (step->op == HL_PW_LOAD) {
            load_operand(run, step, start, n);
        } else {
            run->run(step, run->at, n, &run->random);
        }
    }
}

/* ---- sums of a chunk: whole rows of (O,M,I), or a piece of one ---- */

/* The address of element `at` of output j. */
static unsigned char *find_output(const pw_run *run, int j, int64_t at)
{
    const pw_plan *plan = run->plan;
    unsigned char *dst = run->args[plan->n_in + j];
    return dst + (size_t)at * hl_dtype_bytes(plan->out[j].dtype);
}

static unsigned char *find_partial(const pw_run *run, const pw_output *out, int64_t partial)
{
    return run->scratch + out->partial + (size_t)partial * out->partial_bytes;
}

/* Sums over `length` neighbours; those of a long row come in pieces, one after the other. */
static void store_row_sums(pw_run *run, int j, int64_t start, int64_t n)
{
    const pw_plan *plan = run->plan;
    const pw_output *out = &plan->out[j];
    const void *value = run->at[out->value];
    unsigned char *dst = find_output(run, j, start / out->length);
    if (out->length > plan->chunk) {
        bool is_first = start % out->length == 0, is_last = (start + n) % out->length == 0;
        void *sum = &run->row_sum[j];
        HL_ISA_NAME(hl_pw_sum_cols)(plan->kind, sum, value, 1, n, !is_first);
        if (is_last) HL_ISA_NAME(hl_pw_store)(plan->kind, out->dtype, dst, sum, 1);
        return;
    }
    double sums[PW_CHUNK];
    int64_t n_rows = n / out->length;
    HL_ISA_NAME(hl_pw_sum_cols)(plan->kind, sums, value, n_rows, out->length, false);
    HL_ISA_NAME(hl_pw_store)(plan->kind, out->dtype, dst, sums, n_rows);
}

/* Sums over the rows, to a row of I. */
static void add_rows(const pw_run *run, const pw_output *out, unsigned char *sums, int64_t start,
                     int64_t n)
{
    const pw_plan *plan = run->plan;
    bool is_piece = plan->I > plan->chunk;
    size_t first = is_piece ? (size_t)(start % plan->I) * plan->element_bytes : 0;
    HL_ISA_NAME(hl_pw_sum_rows)
    (plan->kind, sums + first, run->at[out->value], is_piece ? 1 : n / plan->I,
     is_piece ? n : plan->I);
}

#define ADD_SCATTERED(T)                                                                           \
    for (int64_t r = 0; r < n_rows; r++) {                                                         \
        ((T *)(void *)sums)[m] += ((T *)row_sums)[r];                                              \
        if (++m == plan->M) m = 0;                                                                 \
    }

/* Sums over O and I: the sum of each row goes to its m. */
static void add_row_sums(const pw_run *run, const pw_output *out, unsigned char *sums,
                         int64_t start, int64_t n)
{
    const pw_plan *plan = run->plan;
    bool is_piece = plan->I > plan->chunk;
    int64_t n_rows = is_piece ? 1 : n / plan->I, m = start / plan->I % plan->M;
    double room[PW_CHUNK];
    void *row_sums = room;
    HL_ISA_NAME(hl_pw_sum_cols)
    (plan->kind, row_sums, run->at[out->value], n_rows, is_piece ? n : plan->I, false);
    if (plan->kind == HL_PW_F32) {
        ADD_SCATTERED(float)
    } else if (plan->kind == HL_PW_F64) {
        ADD_SCATTERED(double)
    } else {
        ADD_SCATTERED(int64_t)
    }
}

/* Sums over M, to a row of I for each o, which is kept until its last m. */
static void store_middle_sums(const pw_run *run, int j, int64_t start, int64_t n)
{
    const pw_plan *plan = run->plan;
    const pw_output *out = &plan->out[j];
    size_t bytes = plan->element_bytes;
    const unsigned char *value = run->at[out->value];
    int64_t unit = plan->M * plan->I;
    for (int64_t stop = start + n, taken; start < stop; start += taken) {
        int64_t at = start % unit, m = at / plan->I, i = at % plan->I;
        int64_t cols = hl_cpu_min(stop - start, plan->I - i);
        int64_t rows = cols < plan->I ? 1 : hl_cpu_min(stop - start, unit - at) / plan->I;
        unsigned char *sums = run->thread_scratch + out->running + (size_t)i * bytes;
        if (m == 0) memset(sums, 0, (size_t)cols * bytes);
        HL_ISA_NAME(hl_pw_sum_rows)(plan->kind, sums, value, rows, cols);
        if (m + rows == plan->M) {
            unsigned char *dst = find_output(run, j, start / unit * plan->I + i);
            HL_ISA_NAME(hl_pw_store)(plan->kind, out->dtype, dst, sums, cols);
        }
        taken = rows * cols;
        value += (size_t)taken * bytes;
    }
}

/* start: flat index of the chunk; partial: the grain that it belongs to. */
static void run_chunk(pw_run *run, int64_t start, int64_t n, int64_t partial)
{
    const pw_plan *plan = run->plan;
    run_steps(run, PW_EACH, start, n);
    for (int j = 0; j < plan->n_out; j++) {
        const pw_output *out = &plan->out[j];
        const void *value = run->at[out->value];
        unsigned char *sums = find_partial(run, out, partial), *dst;
        switch (out->sums) {
        case HL_PW_FULL:
            dst = find_output(run, j, start);
            if (!out->is_placed && dst != value)
                HL_ISA_NAME(hl_pw_store)(plan->kind, out->dtype, dst, value, n);
            break;
        case HL_PW_SUM_ALL: HL_ISA_NAME(hl_pw_sum_all)(plan->kind, sums, value, n); break;
        case HL_PW_SUM_ROWS: add_rows(run, out, sums, start, n); break;
        case HL_PW_SUM_OUTER | HL_PW_SUM_INNER: add_row_sums(run, out, sums, start, n); break;
        case HL_PW_SUM_MIDDLE: store_middle_sums(run, j, start, n); break;
        default: store_row_sums(run, j, start, n); break; /* INNER, or MIDDLE and INNER */
        }
    }
}

static void clear_partials(const pw_run *run, int64_t begin, int64_t end)
{
    for (int j = 0; j < run->plan->n_out; j++) {
        const pw_output *out = &run->plan->out[j];
        size_t bytes = (size_t)(end - begin) * out->partial_bytes;
        if (bytes > 0) memset(find_partial(run, out, begin), 0, bytes);
    }
}

/* ---- a block of rows ---- */

/* Elements [begin, end), within one grain where there are partial sums. */
static void run_short_units(pw_run *run, int64_t begin, int64_t end, int64_t partial)
{
    for (int64_t start = begin; start < end; start += run->plan->chunk) {
        run_chunk(run, start, hl_cpu_min(run->plan->chunk, end - start), partial);
    }
}

/* The elements of the piece that begins at `piece` in a unit. */
static int64_t measure_piece(const pw_plan *plan, int64_t piece)
{
    return hl_cpu_min(plan->chunk, plan->whole - piece % plan->whole);
}

/* One piece of every unit in [begin, end). */
static void run_piece(pw_run *run, int64_t begin, int64_t end, int64_t piece, int64_t grain)
{
    int64_t unit = run->plan->unit, n = measure_piece(run->plan, piece);
    run_steps(run, PW_COLS, piece, n);
    for (int64_t start = begin; start < end; start += unit) {
        run_chunk(run, start + piece, n, start / grain);
    }
}

static void run_long_units(pw_run *run, int64_t begin, int64_t end, int64_t grain)
{
    const pw_plan *plan = run->plan;
    int64_t step = plan->is_row_major ? plan->unit : end - begin;
    for (int64_t start = begin; start < end; start += step) {
        for (int64_t piece = 0; piece < plan->unit; piece += measure_piece(plan, piece)) {
            run_piece(run, start, start + step, piece, grain);
        }
    }
}

static void start_run(pw_run *run, const pw_plan *plan, void *const *args, const hl_launch *launch)
{
    static const pw_run_fn run_of[] = {HL_ISA_NAME(hl_pw_run_f32), HL_ISA_NAME(hl_pw_run_f64),
                                       HL_ISA_NAME(hl_pw_run_i64)};
    run->plan = plan, run->args = args;
    run->scratch = launch->scratch, run->thread_scratch = launch->thread_scratch;
    run->run = run_of[plan->kind];
    for (int s = 0; s < plan->n_steps; s++) {
        run->at[s] = run->thread_scratch + plan->value[s].offset;
    }
    if (plan->has_random) {
        const hl_control *control = args[plan->control];
        run->random.step = (uint32_t)control->attempted;
        run->random.first_sample = (uint64_t)control->micro_row;
        run->random.per_sample = plan->per_sample;
    }
}

/* Nothing to iterate over: sums over it are zero all the same. */
static void finish_empty(const pw_run *run)
{
    const pw_plan *plan = run->plan;
    clear_partials(run, 0, plan->n_partials);
    for (int j = 0; j < plan->n_out; j++) {
        const pw_output *out = &plan->out[j];
        size_t bytes = (size_t)out->n * hl_dtype_bytes(out->dtype);
        bool is_kept = out->sums != HL_PW_FULL && !(out->sums & HL_PW_SUM_OUTER);
        if (is_kept && bytes > 0) memset(run->args[plan->n_in + j], 0, bytes);
    }
}

static void run_block(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const pw_plan *plan = state->impl;
    pw_run run;
    start_run(&run, plan, args, launch);
    if (plan->rows * plan->cols == 0) {
        finish_empty(&run);
        return;
    }
    run_steps(&run, PW_ONE, 0, 1);
    int64_t first = begin * plan->cols, last = end * plan->cols;
    int64_t grain = plan->has_partials ? plan->req.grain * plan->cols : last;
    if (plan->has_partials) clear_partials(&run, first / grain, hl_cpu_ceil_div(last, grain));
    if (plan->unit > PW_CHUNK) {
        run_long_units(&run, first, last, hl_cpu_max(grain, 1));
        return;
    }
    int64_t n_laid_out = hl_cpu_min(plan->chunk, last - first);
    run_steps(&run, PW_COLS, 0, n_laid_out);
    for (int64_t start = first; start < last;) {
        int64_t stop = plan->has_partials ? hl_cpu_min(last, (start / grain + 1) * grain) : last;
        run_short_units(&run, start, stop, plan->has_partials ? start / grain : 0);
        start = stop;
    }
}

/* ---- merging ---- */

enum { MERGED_COLUMNS = 256 }; /* that are a row of the second phase */

/* Columns [first, last) of n. */
#define MERGE(T)                                                                                   \
    for (int64_t step = 1; step < n_partials; step *= 2) {                                         \
        for (int64_t p = 0; p + step < n_partials; p += 2 * step) {                                \
            T *into = (T *)(void *)partials + p * n, *from = into + step * n;                      \
            for (int64_t i = first; i < last; i++) into[i] += from[i];                             \
        }                                                                                          \
    }

static void merge_partials(hl_pw_kind kind, unsigned char *partials, int64_t n_partials, int64_t n,
                           int64_t first, int64_t last)
{
    if (kind == HL_PW_F32) {
        MERGE(float)
    } else if (kind == HL_PW_F64) {
        MERGE(double)
    } else {
        MERGE(int64_t)
    }
}

/* Groups [begin, end) of the columns of every sum. */
static void merge_sums(const pw_plan *plan, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    for (int j = 0; j < plan->n_out; j++) {
        const pw_output *out = &plan->out[j];
        if (!(out->sums & HL_PW_SUM_OUTER)) continue;
        /* The sum of everything is kept in eight bytes whatever the program computes in. */
        bool is_all = out->sums == HL_PW_SUM_ALL;
        hl_pw_kind kind = is_all && plan->kind == HL_PW_F32 ? HL_PW_F64 : plan->kind;
        unsigned char *partials = (unsigned char *)launch->scratch + out->partial;
        int64_t first = begin * MERGED_COLUMNS, last = hl_cpu_min(out->n, end * MERGED_COLUMNS);
        if (first >= last) continue;
        size_t sum_bytes = kind == HL_PW_F32 ? sizeof(float) : sizeof(double);
        char *to = (char *)args[plan->n_in + j] + (size_t)first * hl_dtype_bytes(out->dtype);
        merge_partials(kind, partials, plan->n_partials, out->n, first, last);
        HL_ISA_NAME(hl_pw_store)
        (kind, out->dtype, to, partials + (size_t)first * sum_bytes, last - first);
    }
}

static void run_sums(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    if (launch->phase == 0)
        run_block(state, args, begin, end, launch);
    else
        merge_sums(state->impl, args, begin, end, launch);
}

/* ---- kernels ---- */

static hl_status query_sums(hl_device *device, const hl_graph *graph, hl_node_id node,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    pw_plan plan;
    int64_t most = 1;
    hl_status status = HL_ISA_NAME(hl_pw_plan_make)(graph, node, &plan, out_why_not);
    if (status == HL_ERROR_CONFIG && graph->nodes[node].op == HL_OP_SUM &&
        hl_node_axes_are_inner(graph, &graph->nodes[node])) {
        out_req->order = hl_node_axes_last(graph, &graph->nodes[node]);
        out_req->deterministic = true;
        return HL_OK;
    }
    HL_TRY(status);
    *out_req = plan.req;
    for (int j = 0; j < plan.n_out; j++)
        if (plan.out[j].sums & HL_PW_SUM_OUTER) most = hl_cpu_max(most, plan.out[j].n);
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_ceil_div(most, MERGED_COLUMNS);
    out_req->phase_row_cost = 0.2 * MERGED_COLUMNS * (double)(plan.n_partials * plan.n_out);
    return HL_OK;
}

/* Of one phase, so that nothing has to wait after it. */
static hl_status query_rows(hl_device *device, const hl_graph *graph, hl_node_id node,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    pw_plan plan;
    HL_TRY(HL_ISA_NAME(hl_pw_plan_make)(graph, node, &plan, out_why_not));
    if (plan.has_partials) return hl_reason_set(out_why_not, "needs outputs by row, got a sum");
    *out_req = plan.req;
    return HL_OK;
}

static hl_status prepare_pointwise(hl_device *device, const hl_graph *graph, hl_node_id node,
                                   hl_kernel_state *out_state)
{
    (void)device;
    hl_reason why_not;
    HL_TRY(hl_alloc(sizeof(pw_plan), &out_state->impl));
    hl_status status = HL_ISA_NAME(hl_pw_plan_make)(graph, node, out_state->impl, &why_not);
    if (status != HL_OK) {
        hl_free(out_state->impl);
        out_state->impl = NULL;
    }
    return status;
}

#define KERNEL(OP)                                                                                 \
    static const hl_kernel kernel_##OP = {.op = HL_OP_##OP,                                        \
                                          .name = HL_CPU_NAME("pointwise"),                        \
                                          .query = query_rows,                                     \
                                          .prepare = prepare_pointwise,                            \
                                          .block = run_block};
#define SUM_KERNEL(OP)                                                                             \
    static const hl_kernel kernel_sum_##OP = {.op = HL_OP_##OP,                                    \
                                              .name = HL_CPU_NAME("pointwise.sum"),                \
                                              .query = query_sums,                                 \
                                              .prepare = prepare_pointwise,                        \
                                              .block = run_sums};
#define HL_PW(id, ...)      KERNEL(id)
#define HL_PW_CAST(id, ...) KERNEL(id)
#define HL_PW_DRAW(id, ...) KERNEL(id)
#include "ir/pointwise.def"
KERNEL(SUM)
KERNEL(POINTWISE_FUSED)
SUM_KERNEL(SUM)
SUM_KERNEL(POINTWISE_FUSED)

const hl_kernel *const HL_ISA_NAME(hl_cpu_pointwise_kernels)[] = {
#define HL_PW(id, ...)      &kernel_##id,
#define HL_PW_CAST(id, ...) &kernel_##id,
#define HL_PW_DRAW(id, ...) &kernel_##id,
#include "ir/pointwise.def"
    &kernel_SUM, &kernel_POINTWISE_FUSED, &kernel_sum_SUM, &kernel_sum_POINTWISE_FUSED, NULL};
