/* Makes a pw_plan from a pointwise program. See pointwise_plan.h for the idea. */
#include "kernels/cpu/pointwise_plan.h"

enum {
    BUFFER_ALIGN = 64,
    PARTIAL_ELEMENTS = 1 << 22, /* that the partial sums of one output may take */
    GRAIN_ELEMENTS = 1 << 13    /* least of one partial, in three groups */
};

/* ---- operands ---- */

static void view_operand(const hl_shape *shape, const hl_type *type, pw_view *out_view)
{
    int64_t stride[HL_MAX_RANK];
    pw_view view = {.dtype = type->dtype};
    hl_shape_broadcast_strides(shape, &type->shape, stride);
    view.n_dims = hl_shape_merge(shape, stride, view.dim, view.stride);
    if (view.n_dims == 1 && view.stride[0] == 0) view.n_dims = 0;
    view.is_flat = view.n_dims == 1;
    view.period = 1;
    for (int d = view.n_dims > 1 && view.stride[0] == 0; d < view.n_dims; d++) {
        view.period *= view.dim[d];
    }
    *out_view = view;
}

/* True when the operand has all of the first k dims; *out_none when it has none of them. */
static bool has_leading_dims(const hl_shape *shape, const hl_shape *operand, int k, bool *out_none)
{
    bool has_all = true, has_none = true;
    for (int d = 0; d < k; d++) {
        if (shape->dim[d] == 1) continue;
        int own = d - (shape->rank - operand->rank);
        bool has = own >= 0 && operand->dim[own] != 1;
        has_all = has_all && has;
        has_none = has_none && !has;
    }
    *out_none = has_none;
    return has_all;
}

/* ---- cutting ---- */

/* True when no row of the work is a row of the operand, however few dims are cut. */
static bool lacks_first_dim(const hl_shape *shape, const hl_shape *operand)
{
    int d = 0;
    while (d < shape->rank - 1 && shape->dim[d] == 1) d++;
    int own = d - (shape->rank - operand->rank);
    return own < 0 || operand->dim[own] == 1;
}

/* The most leading dims that may be cut into rows: every operand must have all of them or none, so
 * that a row of the work is a row of each, and sums over columns must stay inside a row. Where the
 * rows of the outer groups are few those of the middle one are rows as well, whatever an operand
 * has that is no row of either. */
static int choose_row_dims(const hl_graph *graph, const hl_node *node, const hl_program *program,
                           const hl_program_groups *groups, const pw_plan *plan)
{
    const hl_shape *shape = &program->shape;
    int limit = shape->rank > 1 ? shape->rank - 1 : shape->rank;
    if (hl_shape_span(shape, 0, limit) == 1) limit = shape->rank;
    if (plan->has_row_sums)
        limit = (int)hl_cpu_min(limit, plan->by_outer ? groups->outer_dims : groups->row_dims);
    for (int k = limit; k > 0; k--) {
        bool agrees = true, has_none;
        for (int i = 0; i < program->n_in && agrees; i++) {
            if (plan->view[i].is_control) continue;
            const hl_shape *operand = &hl_node_in_type(graph, node, i)->shape;
            agrees = has_leading_dims(shape, operand, k, &has_none) || has_none ||
                     (plan->O != 1 && lacks_first_dim(shape, operand));
        }
        if (agrees) return k;
    }
    return 0;
}

/* Units in a chunk: what whole groups leave over is done step by step, so the count with the least
 * time per element. */
static int64_t choose_units(int64_t unit)
{
    static const double per_group = 12, per_vector = 2.5, per_chunk = 12; /* cycles of a step */
    int64_t best = 1;
    double least = 0;
    for (int64_t units = PW_CHUNK / unit; units > 0; units--) {
        int64_t n = units * unit, left = n % (PW_GROUP * HL_VL);
        double cycles = per_chunk + per_group * (double)(n / (PW_GROUP * HL_VL)) +
                        per_vector * (double)hl_cpu_ceil_div(left, HL_VL);
        if (least > 0 && cycles / (double)n >= least) continue;
        least = cycles / (double)n;
        best = units;
    }
    return best;
}

static void choose_unit(pw_plan *plan, int64_t total)
{
    plan->unit = plan->whole = 1;
    plan->chunk = PW_CHUNK;
    if (total == 0) return;
    for (int i = 0; i < plan->n_in; i++) {
        pw_view *view = &plan->view[i];
        bool repeats = !view->is_control && view->n_dims > 1 && view->stride[0] == 0;
        if (repeats && plan->cols % view->period == 0) {
            plan->unit = hl_cpu_max(plan->unit, view->period);
        }
    }
    if (plan->has_row_sums) plan->unit = plan->by_outer ? plan->M * plan->I : plan->I;
    for (int i = 0; i < plan->n_in; i++) {
        pw_view *view = &plan->view[i];
        if (view->is_control) continue;
        bool is_cols = plan->unit > 1 && view->period < total && plan->unit % view->period == 0;
        view->span = view->n_dims == 0 ? PW_ONE : is_cols ? PW_COLS : PW_EACH;
    }
    plan->whole = plan->unit;
    if (plan->unit <= PW_CHUNK) {
        plan->chunk = choose_units(plan->unit) * plan->unit;
    } else if (plan->by_outer && plan->I <= PW_CHUNK) {
        plan->chunk = hl_cpu_min(choose_units(plan->I), plan->M) * plan->I;
    } else {
        if (plan->by_outer) plan->whole = plan->I;
        int64_t n_pieces = hl_cpu_ceil_div(plan->whole, PW_CHUNK);
        plan->chunk = hl_round_up(hl_cpu_ceil_div(plan->whole, n_pieces), 16);
    }
}

/* ---- values ---- */

static void add_step(pw_plan *plan, const pw_step *step, pw_span span)
{
    int s = plan->n_steps++;
    plan->step[s] = *step;
    plan->step[s].dst = (uint8_t)s;
    plan->step[s].span = (uint8_t)span;
    plan->value[s] = (pw_value){.span = (uint8_t)span, .place = PW_BUFFER, .last_use = (int16_t)s};
}

static bool reads_register(const hl_pw_instr *instr, int reg)
{
    const uint8_t operand[3] = {instr->a, instr->b, instr->c};
    for (int k = 0; k < hl_pw_operands((hl_pw_op)instr->op); k++)
        if (operand[k] == reg) return true;
    return false;
}

/* The instruction to follow `last`: the first one that reads its result, so that chains are long,
 * else the first one that is ready. */
static int find_next(const hl_program *program, const bool *is_done, const bool *is_written,
                     int last)
{
    int first = -1;
    for (int s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[s];
        const uint8_t operand[3] = {instr->a, instr->b, instr->c};
        bool is_ready = !is_done[s];
        for (int k = 0; k < hl_pw_operands((hl_pw_op)instr->op); k++)
            is_ready = is_ready && is_written[operand[k]];
        if (!is_ready) continue;
        if (last >= 0 && reads_register(instr, program->code[last].dst)) return s;
        if (first < 0) first = s;
    }
    return first;
}

/* Leaves first, then one chain after the other. */
static void order_code(const hl_program *program, uint8_t *order)
{
    bool is_done[HL_PROGRAM_CODE] = {false}, is_written[256] = {false};
    int n = 0, last = -1;
    for (int s = 0; s < program->n_code; s++) {
        if (hl_pw_operands((hl_pw_op)program->code[s].op) > 0) continue;
        is_done[s] = is_written[program->code[s].dst] = true;
        order[n++] = (uint8_t)s;
    }
    while (n < program->n_code) {
        last = find_next(program, is_done, is_written, last);
        is_done[last] = is_written[program->code[last].dst] = true;
        order[n++] = (uint8_t)last;
    }
}

/* From here on every step has a value of its own. */
static void add_code(pw_plan *plan, const hl_program *program)
{
    uint8_t value_of[256] = {0}, order[HL_PROGRAM_CODE];
    order_code(program, order);
    for (int s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[order[s]];
        const uint8_t reg[3] = {instr->a, instr->b, instr->c};
        pw_step step = {.op = instr->op, .in = instr->in, .number = instr->number};
        step.key = instr->key;
        uint8_t *operand[3] = {&step.a, &step.b, &step.c};
        pw_span span = PW_ONE;
        int n_operands = hl_pw_operands((hl_pw_op)instr->op);
        /* Operands that a micro-op lacks repeat its first, so that they may be read. */
        for (int i = 0; i < 3 && n_operands > 0; i++) {
            uint8_t value = value_of[reg[i < n_operands ? i : 0]];
            *operand[i] = value;
            if (plan->value[value].span == PW_ONE) step.scalar |= (uint8_t)(1 << i);
            if (plan->value[value].span > span) span = (pw_span)plan->value[value].span;
            plan->value[value].last_use = (int16_t)s;
        }
        if (instr->op == HL_PW_LOAD) span = plan->view[instr->in].span;
        if (instr->op == HL_PW_CAST) step.dtype = (uint8_t)instr->number;
        if (hl_pw_is_random(instr->op)) {
            step.threshold = hl_dropout_threshold(instr->number);
            step.number = hl_dropout_scale(instr->number);
            plan->has_random = true;
            plan->control = instr->in;
            span = PW_EACH;
        }
        value_of[instr->dst] = (uint8_t)s;
        add_step(plan, &step, span);
    }
    for (int j = 0; j < program->n_out; j++) {
        plan->out[j].value = value_of[program->out[j].reg];
        if (plan->value[plan->out[j].value].span != PW_ONE) continue;
        pw_step spread = {.op = PW_SPREAD, .a = plan->out[j].value, .scalar = 1};
        plan->value[spread.a].last_use = (int16_t)plan->n_steps;
        plan->out[j].value = (uint8_t)plan->n_steps;
        add_step(plan, &spread, PW_EACH);
    }
    for (int j = 0; j < program->n_out; j++) {
        plan->value[plan->out[j].value].last_use = (int16_t)plan->n_steps;
    }
}

static hl_dtype native_dtype(hl_pw_kind kind)
{
    return kind == HL_PW_F32 ? HL_DTYPE_F32 : kind == HL_PW_F64 ? HL_DTYPE_F64 : HL_DTYPE_I64;
}

/* Values that need no buffer: loads without conversion, and results computed where they belong. */
static void place_values(pw_plan *plan)
{
    hl_dtype native = native_dtype(plan->kind);
    for (int s = 0; s < plan->n_steps; s++) {
        pw_step *step = &plan->step[s];
        if (step->op != HL_PW_LOAD) continue;
        const pw_view *view = &plan->view[step->in];
        bool is_piece = plan->unit > PW_CHUNK && view->n_dims == 2 && view->period == plan->unit &&
                        view->span == PW_COLS;
        if (view->dtype != native || !(view->is_flat || is_piece)) continue;
        step->is_placed = true;
        plan->value[s].place = PW_INPUT;
        plan->value[s].index = step->in;
    }
    for (int j = 0; j < plan->n_out; j++) {
        pw_value *value = &plan->value[plan->out[j].value];
        /* A load may write beyond its last element, which a buffer has room for. */
        bool fits = plan->out[j].sums == HL_PW_FULL && plan->out[j].dtype == native &&
                    plan->step[plan->out[j].value].op != HL_PW_LOAD;
        if (!fits || value->span != PW_EACH || value->place != PW_BUFFER) continue;
        value->place = PW_OUTPUT;
        value->index = (uint8_t)j;
        plan->out[j].is_placed = true;
    }
}

/* True when nothing reads input i of a chunk after output j of the chunk was written. */
static bool is_read_before_output(const pw_plan *plan, int i, int j)
{
    const pw_output *out = &plan->out[j];
    const pw_view *view = &plan->view[i];
    if (!view->is_flat || hl_dtype_bytes(view->dtype) != hl_dtype_bytes(out->dtype)) return false;
    for (int s = 0; s < plan->n_steps; s++) {
        if (plan->step[s].op != HL_PW_LOAD || plan->step[s].in != i) continue;
        int last = plan->step[s].is_placed ? plan->value[s].last_use : s;
        if (last == plan->n_steps && plan->n_out > 1) return false;
        if (out->is_placed && last > out->value) return false;
    }
    return true;
}

/* Output j may lie over a flat input of its size that it does not disturb. */
static uint64_t find_in_place(const hl_node *node, const pw_plan *plan, int j)
{
    uint64_t mask = 0;
    if (plan->out[j].sums != HL_PW_FULL) return 0;
    for (int i = 0; i < plan->n_in; i++) {
        bool fits = true;
        for (int other = 0; other < plan->n_in && fits; other++) {
            if (node->in[other] == node->in[i]) fits = is_read_before_output(plan, other, j);
        }
        if (fits) mask |= (uint64_t)1 << i;
    }
    return mask;
}

/* Offsets in the thread's scratch: numbers and row vectors keep theirs, the others give it back
 * after their last use. Micro-ops may write over an operand. */
static size_t assign_buffers(pw_plan *plan)
{
    size_t buffer_bytes = (PW_CHUNK + 16) * plan->element_bytes, used = 0;
    size_t free_list[PW_VALUES];
    int n_free = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        if (plan->value[s].span == PW_EACH || plan->value[s].place != PW_BUFFER) continue;
        plan->value[s].offset = used;
        used += plan->value[s].span == PW_ONE ? BUFFER_ALIGN : buffer_bytes;
    }
    for (int s = 0; s < plan->n_steps; s++) {
        for (int v = 0; v < s; v++) {
            const pw_value *dead = &plan->value[v];
            bool frees = dead->span == PW_EACH && dead->place == PW_BUFFER && dead->last_use == s;
            if (frees) free_list[n_free++] = dead->offset;
        }
        pw_value *value = &plan->value[s];
        if (value->span != PW_EACH || value->place != PW_BUFFER) continue;
        if (n_free > 0) {
            value->offset = free_list[--n_free];
        } else {
            value->offset = used;
            used += buffer_bytes;
        }
        if (value->last_use == s) free_list[n_free++] = value->offset;
    }
    for (int j = 0; j < plan->n_out; j++) {
        if (plan->out[j].sums != HL_PW_SUM_MIDDLE) continue;
        plan->out[j].running = used;
        used += (size_t)hl_round_up(plan->I * (int64_t)plan->element_bytes, BUFFER_ALIGN);
    }
    return used;
}

/* ---- what runs ---- */

static int count_uses(const pw_plan *plan, int value)
{
    int uses = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        const pw_step *step = &plan->step[s];
        const uint8_t operand[3] = {step->a, step->b, step->c};
        int n_operands = step->op == PW_SPREAD ? 1 : hl_pw_operands((hl_pw_op)step->op);
        for (int k = 0; k < n_operands; k++) uses += operand[k] == value;
    }
    for (int j = 0; j < plan->n_out; j++) uses += plan->out[j].value == value;
    return uses;
}

/* Where the step finds `value` (or, below 0, any whole operand) as its only use of the registers;
 * -1: it is no link. */
static int find_position(const pw_step *step, int value)
{
    const uint8_t operand[3] = {step->a, step->b, step->c};
    int found = -1;
    if (step->op >= HL_PW_COUNT) return -1;
    for (int k = 0; k < hl_pw_operands((hl_pw_op)step->op); k++) {
        bool fits = value < 0 ? !(step->scalar >> k & 1) : operand[k] == value;
        if (!fits || !HL_ISA_NAME(hl_pw_link_find)(step->op, k)) continue;
        if (value >= 0 && found >= 0) return -1;
        if (found < 0) found = k;
    }
    return found;
}

static pw_link make_link(const pw_step *step, int position)
{
    const uint8_t operand[3] = {step->a, step->b, step->c};
    pw_link link = {.fn = HL_ISA_NAME(hl_pw_link_find)(step->op, position)};
    for (int k = 0, n = 0; k < hl_pw_operands((hl_pw_op)step->op); k++) {
        if (k == position) continue;
        link.other[n] = operand[k];
        link.scalar |= (uint8_t)((step->scalar >> k & 1) << n);
        n++;
    }
    return link;
}

static void add_link(pw_plan *plan, int *n_links, pw_link_end end, int value)
{
    plan->link[(*n_links)++] =
        (pw_link){.fn = HL_ISA_NAME(hl_pw_link_end)(end), .other = {(uint8_t)value}};
}

/* The chain of `count` steps: a result goes to memory when more than the next link reads it. */
static void add_chain(pw_plan *plan, const uint8_t *steps, int count, int *n_links)
{
    for (int t = 0; t < count; t++) {
        const pw_step *step = &plan->step[steps[t]];
        int position = find_position(step, t > 0 ? steps[t - 1] : -1);
        const uint8_t operand[3] = {step->a, step->b, step->c};
        if (t == 0) add_link(plan, n_links, PW_LINK_LOAD, operand[position]);
        plan->link[(*n_links)++] = make_link(step, position);
        if (t + 1 == count || count_uses(plan, steps[t]) > 1)
            add_link(plan, n_links, PW_LINK_STORE, steps[t]);
    }
    add_link(plan, n_links, PW_LINK_RETURN, 0);
}

/* How many of the steps, from the first one on, make a chain. */
static int measure_chain(const pw_plan *plan, const uint8_t *steps, int count)
{
    if (plan->kind != HL_PW_F32 || find_position(&plan->step[steps[0]], -1) < 0) return 1;
    int n = 1;
    while (n < count && find_position(&plan->step[steps[n]], steps[n - 1]) >= 0) n++;
    return n;
}

static void make_items(pw_plan *plan)
{
    int n_moving = 0, n_items = 0, n_links = 0;
    for (int span = 0; span < PW_SPANS; span++) {
        uint8_t steps[PW_VALUES];
        int n = 0;
        plan->moving_begin[span] = (uint8_t)n_moving, plan->item_begin[span] = (uint8_t)n_items;
        for (int s = 0; s < plan->n_steps; s++) {
            if (plan->step[s].span != span) continue;
            if (plan->value[s].place != PW_BUFFER) plan->moving[n_moving++] = (uint8_t)s;
            if (!plan->step[s].is_placed) steps[n++] = (uint8_t)s;
        }
        for (int t = 0, count; t < n; t += count) {
            count = span == PW_EACH ? measure_chain(plan, steps + t, n - t) : 1;
            plan->item[n_items++] = (pw_item){.first = steps[t],
                                              .last = steps[t + count - 1],
                                              .link = (int16_t)(count > 1 ? n_links : -1)};
            if (count > 1) add_chain(plan, steps + t, count, &n_links);
        }
    }
    plan->moving_begin[PW_SPANS] = (uint8_t)n_moving;
    plan->item_begin[PW_SPANS] = (uint8_t)n_items;
}

/* ---- requirements ---- */

/* Rough ns per element on one core, from measured throughput of the AVX2 and AVX-512 kernels. */
static double estimate_cost(const pw_plan *plan)
{
    static const double ns[] = {
        [HL_PW_COST_CHEAP] = 0.07, [HL_PW_COST_SERIES] = 0.6, [HL_PW_COST_LANES] = 8};
    double cost = 0;
    for (int s = 0; s < plan->n_steps; s++) {
        uint8_t op = plan->step[s].op;
        if (plan->step[s].span != PW_EACH) continue;
        if (op == HL_PW_LOAD)
            cost += 0.1;
        else if (hl_pw_is_random(op))
            cost += 0.5;
        else if (op < HL_PW_COUNT && hl_pw_cost_of(op) != HL_PW_COST_CHEAP)
            cost += ns[hl_pw_cost_of(op)];
        else
            cost += plan->kind == HL_PW_F32 ? ns[HL_PW_COST_CHEAP] : 0.5;
    }
    return cost + 0.1 * plan->n_out;
}

/* Rows of one partial. In three groups a row may be long: then a few make one, as many as outweigh
 * the sums themselves. */
static int64_t choose_grain(const pw_plan *plan)
{
    int64_t grain = hl_cpu_grain(plan->rows), widest = hl_cpu_max(plan->I, 1);
    if (plan->O == 1) {
        while (grain < plan->rows && plan->rows / grain * widest > PARTIAL_ELEMENTS) grain *= 2;
        return grain;
    }
    for (int j = 0; j < plan->n_out; j++)
        if (plan->out[j].sums & HL_PW_SUM_OUTER) widest = hl_cpu_max(widest, plan->out[j].n);
    int64_t least = hl_cpu_max(GRAIN_ELEMENTS, 16 * widest);
    grain = 1;
    while (grain < plan->rows &&
           (grain * HL_CPU_PARTIALS < plan->rows || grain * plan->cols < least))
        grain *= 2;
    return grain;
}

static void set_partials(pw_plan *plan)
{
    size_t used = 0;
    plan->req.grain = hl_cpu_line_grain(4 * hl_cpu_min(hl_cpu_max(plan->cols, 1), 16));
    plan->n_partials = 1;
    if (plan->has_partials) {
        plan->req.grain = choose_grain(plan);
        plan->n_partials = hl_cpu_ceil_div(plan->rows, plan->req.grain);
    }
    for (int j = 0; j < plan->n_out; j++) {
        pw_output *out = &plan->out[j];
        if (!(out->sums & HL_PW_SUM_OUTER)) continue;
        out->partial = used;
        out->partial_bytes = out->sums == HL_PW_SUM_ALL ? 8 : (size_t)out->n * plan->element_bytes;
        size_t bytes = out->partial_bytes * (size_t)plan->n_partials;
        used += (size_t)hl_round_up((int64_t)bytes, HL_ALIGN);
    }
    plan->req.scratch_bytes = used;
}

static void set_row_masks(const hl_graph *graph, const hl_node *node, const hl_program *program,
                          int k, pw_plan *plan)
{
    for (int i = 0; i < plan->n_in; i++) {
        bool has_none;
        if (plan->view[i].is_control) continue;
        const hl_shape *operand = &hl_node_in_type(graph, node, i)->shape;
        bool has_all = has_leading_dims(&program->shape, operand, k, &has_none);
        if (has_all) plan->req.row_in |= (uint64_t)1 << i;
    }
    for (int j = 0; j < plan->n_out; j++) {
        if (!(plan->out[j].sums & HL_PW_SUM_OUTER)) plan->req.row_out |= (uint64_t)1 << j;
    }
}

static hl_status read_program(const hl_graph *graph, hl_node_id id, hl_program *out_program,
                              hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (node->op == HL_OP_POINTWISE_FUSED) {
        *out_program = *node->program;
        return HL_OK;
    }
    if (hl_program_from_node(graph, id, out_program) == HL_OK) return HL_OK;
    return hl_reason_set(out_why_not, "needs a pointwise program, got %s", hl_status_message());
}

/* What a sum of groups comes to, where one of rows and columns has a single element. */
static hl_pw_sums simplify_sums(const pw_plan *plan, hl_pw_sums sums)
{
    if (plan->O != 1) return sums;
    if (sums == HL_PW_SUM_COLS && plan->I == 1) return HL_PW_FULL;
    if (sums == HL_PW_SUM_ROWS && plan->M == 1) return HL_PW_FULL;
    if (sums == HL_PW_SUM_ROWS && plan->I == 1) return HL_PW_SUM_ALL;
    return sums;
}

static void read_outputs(const hl_graph *graph, const hl_node *node, const hl_program *program,
                         const hl_program_groups *groups, pw_plan *plan)
{
    plan->O = groups->outer, plan->M = groups->middle, plan->I = groups->inner;
    for (int j = 0; j < program->n_out; j++) {
        const hl_type *type = hl_node_out_type(graph, node, j);
        hl_pw_sums sums = simplify_sums(plan, (hl_pw_sums)groups->sums[j]);
        bool keeps_outer = plan->O != 1 && !(sums & HL_PW_SUM_OUTER);
        pw_output *out = &plan->out[j];
        *out = (pw_output){.sums = (uint8_t)sums, .dtype = type->dtype, .length = plan->I};
        out->n = hl_shape_numel(&type->shape);
        if (sums == HL_PW_FULL) continue;
        plan->has_partials = plan->has_partials || sums & HL_PW_SUM_OUTER;
        plan->has_row_sums = plan->has_row_sums || sums != HL_PW_SUM_ALL;
        plan->is_row_major = plan->is_row_major || !(sums & HL_PW_SUM_OUTER);
        plan->by_outer = plan->by_outer || (keeps_outer && sums & HL_PW_SUM_MIDDLE);
        if (keeps_outer && sums == (HL_PW_SUM_MIDDLE | HL_PW_SUM_INNER))
            out->length = plan->M * plan->I;
    }
}

hl_status HL_ISA_NAME(hl_pw_plan_make)(const hl_graph *graph, hl_node_id id, pw_plan *out_plan,
                                       hl_reason *out_why_not)
{
    hl_program program;
    HL_TRY(read_program(graph, id, &program, out_why_not));
    const hl_node *node = &graph->nodes[id];
    pw_plan *plan = out_plan;
    memset(plan, 0, sizeof *plan);
    plan->n_in = program.n_in, plan->n_out = program.n_out;
    plan->control = -1;
    for (int s = 0; s < program.n_code; s++) {
        const hl_pw_instr *instr = &program.code[s];
        if (hl_pw_is_random(instr->op)) plan->view[instr->in].is_control = true;
    }
    int64_t total = hl_shape_numel(&program.shape);
    for (int i = 0; i < plan->n_in; i++) {
        if (plan->view[i].is_control) continue;
        view_operand(&program.shape, hl_node_in_type(graph, node, i), &plan->view[i]);
    }
    hl_program_groups groups = hl_program_groups_make(&program);
    read_outputs(graph, node, &program, &groups, plan);
    plan->kind = hl_program_kind(&program, graph, node);
    plan->element_bytes = plan->kind == HL_PW_F32 ? 4 : 8;
    int k = total > 0 ? choose_row_dims(graph, node, &program, &groups, plan) : 0;
    plan->rows = hl_shape_span(&program.shape, 0, k);
    plan->cols = total / plan->rows;
    plan->per_sample =
        program.shape.rank > 1 ? hl_shape_span(&program.shape, 1, program.shape.rank) : 1;
    choose_unit(plan, total);
    add_code(plan, &program);
    place_values(plan);
    plan->req.rows = plan->rows;
    plan->req.deterministic = true;
    for (int j = 0; j < plan->n_out && total > 0; j++)
        plan->req.in_place[j] = find_in_place(node, plan, j);
    plan->req.thread_scratch_bytes = assign_buffers(plan);
    make_items(plan);
    plan->req.row_cost = estimate_cost(plan) * (double)plan->cols;
    set_partials(plan);
    set_row_masks(graph, node, &program, k, plan);
    return HL_OK;
}
