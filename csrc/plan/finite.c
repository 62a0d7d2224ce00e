#include "plan/finite.h"

#include <string.h>

#include "base/alloc.h"
#include "passes/rewrite.h"
#include "plan/poison.h"
#include "plan/run.h"

enum { BLOCK = 1024 };

/* What a value holds that is not finite. */
typedef struct value_state {
    int64_t n_nan, n_infinite; /* elements */
    int64_t first;             /* of them */
    int64_t seen;              /* of a leaf: the segment before which it was looked through */
} value_state;

struct hl_finite {
    bool everything, is_scaled;
    const hl_plan *plan; /* whose values these are */
    hl_stream *stream;
    void **args;
    hl_uses uses;
    value_state *values; /* by value; views are what they are views of */
    bool *marks;         /* by value */
    int64_t n_segments;  /* that were run */
    int32_t n_micro;
    hl_id made; /* the first NaN that a node made in this segment; HL_NONE: none */
    void *host; /* a copy of what lies on the device */
    int64_t capacity;
    hl_not_finite found;
};

/* ---- life ------------------------------------------------------------------------------------ */

hl_status hl_finite_create(bool everything, bool is_scaled, hl_finite **out_finite)
{
    *out_finite = NULL;
    HL_TRY(hl_alloc_zero(sizeof **out_finite, (void **)out_finite));
    (*out_finite)->everything = everything;
    (*out_finite)->is_scaled = is_scaled;
    return HL_OK;
}

static void leave_plan(hl_finite *f)
{
    hl_uses_deinit(&f->uses);
    hl_free(f->values);
    hl_free(f->marks);
    f->values = NULL, f->marks = NULL;
    f->plan = NULL;
}

void hl_finite_destroy(hl_finite *finite)
{
    if (!finite) return;
    leave_plan(finite);
    hl_free(finite->host);
    hl_free(finite);
}

const hl_not_finite *hl_finite_found(const hl_finite *finite)
{
    return &finite->found;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool has_flags(const hl_node *node, uint32_t flags)
{
    return (hl_op_get(node->op)->flags & flags) == flags;
}

/* Does it put the gradients together? */
static bool is_gradient(const hl_node *node)
{
    return has_flags(node, HL_OP_DECIDES | HL_OP_JOINS);
}

static bool has_mark(const hl_finite *f, const hl_node *node)
{
    for (int32_t j = 0; j < node->n_out; j++)
        if (f->marks[node->out + j]) return true;
    return false;
}

/* Is what is not finite here the loss scale's? */
static bool is_of_scale(const hl_finite *f, const hl_node *node)
{
    return f->is_scaled &&
           (node->gradient_of || is_gradient(node) || node->segment == HL_SEGMENT_APPLY);
}

/* A plan that comes into a window finds nothing of its own in the arena. */
static hl_status enter_plan(hl_finite *f, const hl_plan *plan)
{
    const hl_graph *graph = plan->graph;
    size_t n_values = (size_t)graph->n_values + 1;
    if (f->plan == plan) return HL_OK;
    leave_plan(f);
    HL_TRY(hl_uses_init(graph, &f->uses));
    HL_TRY(hl_alloc_zero(n_values * sizeof *f->values, (void **)&f->values));
    HL_TRY(hl_alloc_zero(n_values * sizeof *f->marks, (void **)&f->marks));
    f->plan = plan;
    return HL_OK;
}

/* ---- looking through values ------------------------------------------------------------------ */

static void count(value_state *state, int64_t i, bool is_nan)
{
    if (!state->n_nan && !state->n_infinite) state->first = i;
    state->n_nan += is_nan;
    state->n_infinite += !is_nan;
}

/* The exponent of what is not finite has all bits, and an infinity nothing else but the sign. The
 * first loop has no branches, so that it becomes vector code. */
#define LOOK(type, exponent)                                                                       \
    do {                                                                                           \
        const type *x = data;                                                                      \
        for (int64_t begin = 0; begin < n; begin += BLOCK) {                                       \
            int64_t end = n - begin < BLOCK ? n : begin + BLOCK;                                   \
            type any = 0;                                                                          \
            for (int64_t i = begin; i < end; i++)                                                  \
                any |= (type)((x[i] & (exponent)) == (exponent));                                  \
            for (int64_t i = begin; any && i < end; i++)                                           \
                if ((x[i] & (exponent)) == (exponent))                                             \
                    count(state, i, (type)(x[i] << 1) != (type)((type)(exponent) << 1));           \
        }                                                                                          \
    } while (0)

static void look_through(hl_dtype dtype, const void *data, int64_t n, value_state *state)
{
    switch (dtype) {
    case HL_DTYPE_F64: LOOK(uint64_t, UINT64_C(0x7FF0000000000000)); break;
    case HL_DTYPE_F32: LOOK(uint32_t, UINT32_C(0x7F800000)); break;
    case HL_DTYPE_F16: LOOK(uint16_t, 0x7C00); break;
    default: LOOK(uint16_t, 0x7F80); /* bfloat16 */
    }
}

/* What lies there, in host memory. */
static hl_status fetch(hl_finite *f, const void *at, size_t bytes, const void **out_data)
{
    hl_device *device = f->plan->device;
    *out_data = at;
    if (!hl_device_is_asynchronous(device)) return HL_OK;
    HL_TRY(hl_alloc_grow(&f->host, &f->capacity, (int64_t)bytes, 1));
    HL_TRY(device->ops->copy(device, f->host, at, bytes, HL_COPY_DEVICE_TO_HOST, f->stream));
    *out_data = f->host;
    return device->ops->synchronize(device, f->stream);
}

static hl_status look_at(hl_finite *f, hl_id id, const void *at)
{
    const hl_type *type = &hl_graph_value(f->plan->graph, id)->type;
    value_state *state = &f->values[id];
    int64_t n = hl_shape_numel(&type->shape);
    const void *data;
    state->n_nan = state->n_infinite = 0;
    if (!n || !hl_dtype_is_float(type->dtype)) return HL_OK;
    HL_TRY(fetch(f, at, hl_type_bytes(type), &data));
    look_through(type->dtype, data, n, state);
    return HL_OK;
}

/* Leaves change between segments alone. A dataset is looked through where rows are gathered. */
static hl_status look_at_leaf(hl_finite *f, hl_id id, const void *at)
{
    id = hl_graph_viewed(f->plan->graph, id);
    const hl_value *value = hl_graph_value(f->plan->graph, id);
    if (value->kind == HL_VALUE_ACT || value->kind == HL_VALUE_DATASET ||
        f->values[id].seen == f->n_segments)
        return HL_OK;
    f->values[id].seen = f->n_segments;
    return look_at(f, id, at);
}

static const value_state *state_of(const hl_finite *f, hl_id id)
{
    return &f->values[hl_graph_viewed(f->plan->graph, id)];
}

/* A form that only kernels know: what its node read may be in it. */
static void pass_on(hl_finite *f, const hl_node *node, hl_id id)
{
    value_state *state = &f->values[id];
    state->n_nan = state->n_infinite = state->first = 0;
    for (int32_t j = 0; j < node->n_in; j++) {
        state->n_nan |= state_of(f, node->in[j])->n_nan;
        state->n_infinite |= state_of(f, node->in[j])->n_infinite;
    }
}

static hl_status look_at_result(hl_finite *f, const hl_node *node, hl_id id, const void *at)
{
    bool is_read = f->uses.kept[id] || hl_uses_count(&f->uses, id) > 0;
    bool is_plain = !hl_graph_value(f->plan->graph, id)->form && !has_flags(node, HL_OP_OPAQUE);
    if (!is_read) return HL_OK; /* kernels need not write it */
    if (is_plain) return look_at(f, id, at);
    pass_on(f, node, id);
    return HL_OK;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Notes the first result that has a NaN where no operand has one. */
static void note_made(hl_finite *f, const hl_node *node)
{
    if (!f->everything || f->made != HL_NONE || has_flags(node, HL_OP_BATCH) ||
        is_of_scale(f, node))
        return;
    for (int32_t j = 0; j < node->n_in; j++)
        if (state_of(f, node->in[j])->n_nan) return;
    for (int32_t j = node->n_out - 1; j >= 0; j--)
        if (f->values[node->out + j].n_nan) f->made = node->out + j;
}

static hl_status run_task(hl_finite *f, int32_t task)
{
    const hl_instr *instr = &f->plan->instrs[task];
    const hl_node *node = &f->plan->graph->nodes[instr->node];
    void **args = f->args + instr->first_arg;
    bool does_nothing = hl_instr_is_skipped(f->plan, instr) && !instr->elided && !instr->joined;
    if (f->found.what || does_nothing) return hl_plan_run_alone(f->plan, task, f->args, f->stream);
    for (int32_t j = 0; j < node->n_in; j++) HL_TRY(look_at_leaf(f, node->in[j], args[j]));
    HL_TRY(hl_plan_run_alone(f->plan, task, f->args, f->stream));
    for (int32_t j = 0; j < node->n_out; j++)
        HL_TRY(look_at_result(f, node, node->out + j, args[node->n_in + j]));
    note_made(f, node);
    return HL_OK;
}

/* The first task of a region or, behind the last one, the number of tasks. */
static int32_t first_task(const hl_plan *plan, int32_t region)
{
    const hl_schedule *schedule = &plan->schedule;
    if (region == schedule->n_regions) return schedule->n_tasks;
    return schedule->chains[schedule->regions[region].first_chain].first_task;
}

/* ---- the way back ---------------------------------------------------------------------------- */

static bool is_bad(const value_state *state, bool nan_only)
{
    return state->n_nan || (state->n_infinite && !nan_only);
}

/* Marks the operands that are bad; are there some? */
static bool mark_operands(hl_finite *f, const hl_node *node, bool nan_only)
{
    bool any = false;
    for (int32_t j = 0; j < node->n_in; j++) {
        hl_id id = hl_graph_viewed(f->plan->graph, node->in[j]);
        if (!is_bad(&f->values[id], nan_only)) continue;
        f->marks[id] = any = true;
    }
    return any;
}

static hl_id find_marked_leaf(const hl_finite *f, bool is_constant)
{
    const hl_graph *graph = f->plan->graph;
    for (int64_t v = 0; v < graph->n_values; v++) {
        hl_value_kind kind = graph->values[v].kind;
        if (f->marks[v] && kind != HL_VALUE_ACT && (kind == HL_VALUE_CONST) == is_constant)
            return (hl_id)v;
    }
    return HL_NONE;
}

static hl_id find_marked_result(const hl_finite *f, const hl_node *node)
{
    hl_id id = node->out;
    while (!f->marks[id]) id++;
    return id;
}

/* Where what is marked comes from: a leaf, or the first node whose operands are good. Constants
 * count for NaN alone. */
static hl_id find_origin(hl_finite *f, bool nan_only)
{
    const hl_graph *graph = f->plan->graph;
    hl_id made = HL_NONE;
    for (int64_t i = graph->n_nodes - 1; i >= 0; i--) {
        const hl_node *node = &graph->nodes[i];
        if (has_mark(f, node) && !mark_operands(f, node, nan_only))
            made = find_marked_result(f, node);
    }
    hl_id leaf = find_marked_leaf(f, false);
    if (leaf == HL_NONE && made == HL_NONE && nan_only) leaf = find_marked_leaf(f, true);
    return leaf == HL_NONE ? made : leaf;
}

/* The number of the row of the data, from the batch's row numbers; -1: not known. */
static hl_status read_row(hl_finite *f, const hl_value *numbers, const void *at, int64_t i,
                          int64_t *out_row)
{
    const void *data;
    *out_row = -1;
    if (numbers->kind != HL_VALUE_INPUT || numbers->type.dtype != HL_DTYPE_I64 ||
        i >= hl_shape_numel(&numbers->type.shape))
        return HL_OK;
    HL_TRY(fetch(f, (const int64_t *)at + i, sizeof *out_row, &data));
    memcpy(out_row, data, sizeof *out_row);
    return HL_OK;
}

/* A batch, gathered by the plan or by its feed: which data it is of, and which row. */
static hl_status describe_batch(hl_finite *f, hl_id id, hl_not_finite_value *out)
{
    const hl_plan *plan = f->plan;
    const hl_graph *graph = plan->graph;
    hl_node_id maker = hl_graph_producer(graph, id);
    int64_t n_rows = out->type.shape.rank ? out->type.shape.dim[0] : 0;
    int64_t row = n_rows ? out->first / (hl_shape_numel(&out->type.shape) / n_rows) : 0;
    out->is_batch = true;
    if (maker == HL_NONE) {
        int32_t slot = (int32_t)((f->args - plan->args) / (plan->n_args ? plan->n_args : 1));
        return read_row(f, hl_graph_value(graph, plan->inputs[0]),
                        plan->fields[slot * graph->n_inputs], row, &out->row);
    }
    const hl_node *node = &graph->nodes[maker];
    const hl_instr *instr = &plan->instrs[plan->schedule.task_of_node[maker]];
    out->name = hl_graph_value(graph, node->in[0])->name;
    return read_row(f, hl_graph_value(graph, node->in[1]), f->args[instr->first_arg + 1], row,
                    &out->row);
}

static hl_status describe(hl_finite *f, hl_id id, hl_not_finite_value *out)
{
    const hl_graph *graph = f->plan->graph;
    const hl_value *value = hl_graph_value(graph, id);
    const value_state *state = &f->values[id];
    hl_node_id maker = hl_graph_producer(graph, id);
    *out = (hl_not_finite_value){.kind = value->kind,
                                 .name = value->name,
                                 .type = value->type,
                                 .n_nan = state->n_nan,
                                 .n_infinite = state->n_infinite,
                                 .first = state->first,
                                 .row = -1};
    if (value->kind == HL_VALUE_INPUT) return describe_batch(f, id, out);
    if (maker == HL_NONE) return HL_OK;
    const hl_node *node = &graph->nodes[maker];
    out->op = hl_op_get(node->op)->name;
    out->scope = node->scope;
    out->segment = node->segment;
    out->gradient_of = node->gradient_of;
    return has_flags(node, HL_OP_BATCH) ? describe_batch(f, id, out) : HL_OK;
}

/* The way back from the value: where it began, and the node that made a NaN of an infinity. */
static hl_status trace(hl_finite *f, hl_id reached)
{
    const hl_graph *graph = f->plan->graph;
    bool is_nan = f->values[reached].n_nan > 0;
    memset(f->marks, 0, (size_t)graph->n_values);
    f->marks[reached] = true;
    hl_id origin = find_origin(f, is_nan), infinite = HL_NONE;
    if (origin == HL_NONE) origin = reached; /* of constants */
    HL_TRY(describe(f, origin, &f->found.first));
    hl_node_id maker = hl_graph_producer(graph, origin);
    if (maker == HL_NONE) return HL_OK;
    memset(f->marks, 0, (size_t)graph->n_values);
    f->found.first.reads_infinity = mark_operands(f, &graph->nodes[maker], false);
    if (f->found.first.reads_infinity) infinite = find_origin(f, false);
    if (infinite == HL_NONE) return HL_OK;
    f->found.nan = f->found.first;
    f->found.is_made_nan = true;
    return describe(f, infinite, &f->found.first);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* The first operand of the segment that decides about the step and is bad. of_gradients: of the
 * node that has the gradients, whose operand 1 is the first parameter's. */
static hl_id find_decisive(const hl_finite *f, int segment, bool of_gradients, int32_t *out_operand)
{
    const hl_plan *plan = f->plan;
    const int32_t *first = plan->schedule.segment_first + segment;
    for (int32_t s = first_task(plan, first[0]); s < first_task(plan, first[1]); s++) {
        const hl_node *node = &plan->graph->nodes[plan->instrs[s].node];
        if (!has_flags(node, HL_OP_DECIDES) || is_gradient(node) != of_gradients ||
            is_of_scale(f, node))
            continue;
        for (int32_t j = 1; j < node->n_in; j++) {
            *out_operand = j;
            if (is_bad(state_of(f, node->in[j]), false))
                return hl_graph_viewed(plan->graph, node->in[j]);
        }
    }
    return HL_NONE;
}

static hl_status conclude(hl_finite *f, int segment)
{
    int32_t operand;
    hl_not_finite_what what = segment == HL_SEGMENT_APPLY ? HL_NOT_FINITE_NORM : HL_NOT_FINITE_LOSS;
    hl_id reached = find_decisive(f, segment, false, &operand);
    if (reached == HL_NONE) {
        what = HL_NOT_FINITE_GRADIENT;
        reached = find_decisive(f, segment, true, &operand);
        f->found.param = operand - 1;
    }
    if (reached == HL_NONE) {
        what = HL_NOT_FINITE_VALUE;
        reached = f->made;
    }
    if (reached == HL_NONE) return HL_OK;
    f->found.what = what;
    f->found.micro = f->n_micro;
    return trace(f, reached);
}

static hl_status run_segment(hl_finite *f, int segment)
{
    const hl_plan *plan = f->plan;
    const int32_t *first = plan->schedule.segment_first + segment;
    f->n_segments++;
    f->made = HL_NONE;
    for (int32_t r = first[0]; r < first[1]; r++) {
        hl_poison_region(plan, &plan->schedule.regions[r], f->args);
        for (int32_t s = first_task(plan, r); s < first_task(plan, r + 1); s++)
            HL_TRY(run_task(f, s));
    }
    if (!f->found.what) HL_TRY(conclude(f, segment));
    f->n_micro += segment == HL_SEGMENT_MICRO;
    return HL_OK;
}

hl_status hl_finite_run(hl_finite *finite, const hl_plan *plan, int first, int end, void **args,
                        hl_stream *stream)
{
    finite->stream = stream;
    finite->args = args;
    HL_TRY(enter_plan(finite, plan));
    for (int segment = first; segment < end; segment++) HL_TRY(run_segment(finite, segment));
    return HL_OK;
}
