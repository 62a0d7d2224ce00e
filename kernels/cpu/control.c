/* The control block's kernels, and guarded updates of state: assign, accumulate, ema.
 *
 * The transitions of the control block are the shared ones (ir/control.h): a few scalars,
 * launched whole. Updates are cut by element; when the guard is down nothing is written. */
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/host/control_kernels.h"

enum { N_CHUNK = 256 };

typedef struct update_state {
    hl_op op;
    hl_dtype dtype, value_dtype;
    bool is_integer, is_ramp;
    int64_t n;
    double decay, take;
} update_state;

/* average <- keep average + take value */
typedef struct blend {
    double keep, take;
} blend;

static hl_status query_update(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    const hl_type *target = hl_node_in_type(graph, node, 0);
    if (node->op == HL_OP_EMA && !hl_dtype_is_float(target->dtype)) {
        return hl_reason_set(out_why_not, "needs a floating average, got %s",
                             hl_dtype_name(target->dtype));
    }
    int64_t n = hl_shape_numel(&target->shape);
    out_req->rows = hl_cpu_max(n, 1);
    out_req->grain = n > 1 ? 1024 : 1;
    out_req->row_in = n > 1 ? 3 : 0;
    out_req->row_out = 1;
    out_req->row_cost = target->dtype == HL_DTYPE_F32 ? 0.3 : 1;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_update(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    const hl_type *target = hl_node_in_type(graph, node, 0);
    HL_TRY(hl_alloc_zero(sizeof(update_state), &out_state->impl));
    update_state *update = out_state->impl;
    update->op = node->op;
    update->dtype = target->dtype;
    update->value_dtype = hl_node_in_type(graph, node, 1)->dtype;
    update->is_integer =
        !hl_dtype_is_float(target->dtype) && !hl_dtype_is_float(update->value_dtype);
    update->n = hl_shape_numel(&target->shape);
    if (node->op == HL_OP_EMA) {
        update->decay = hl_ema_attrs(node)->decay;
        update->is_ramp = hl_ema_attrs(node)->ramp;
        update->take = hl_ema_attrs(node)->take;
    }
    return HL_OK;
}

static blend find_blend(const update_state *update, const hl_control *control)
{
    double n = (double)control->applied, keep = update->decay;
    if (update->is_ramp) keep = fmin(keep, (1 + n) / (10 + n));
    return (blend){keep, update->take != 0 ? update->take : 1 - keep};
}

/* target (+)= value for float32, the common case. */
static void update_f32(const update_state *update, float *target, const float *value, int64_t n,
                       blend by)
{
    float keep = (float)by.keep, take = (float)by.take;
    for (int64_t i = 0; i < n; i++) {
        target[i] =
            update->op == HL_OP_EMA ? keep * target[i] + take * value[i] : target[i] + value[i];
    }
}

/* Any dtypes, through float64 or int64. */
static void update_any(const update_state *update, unsigned char *target,
                       const unsigned char *value, int64_t n, blend by)
{
    hl_pw_kind kind = update->is_integer ? HL_PW_I64 : HL_PW_F64;
    size_t bytes = hl_dtype_bytes(update->dtype), value_bytes = hl_dtype_bytes(update->value_dtype);
    for (int64_t i = 0; i < n; i += N_CHUNK) {
        union {
            double number[N_CHUNK];
            int64_t integer[N_CHUNK];
        } old, new;
        int64_t count = hl_cpu_min(N_CHUNK, n - i);
        unsigned char *at = target + (size_t)i * bytes;
        HL_ISA_NAME(hl_pw_load)
        (kind, &new, update->value_dtype, value + (size_t)i * value_bytes, count);
        if (update->op != HL_OP_ASSIGN) {
            HL_ISA_NAME(hl_pw_load)(kind, &old, update->dtype, at, count);
            for (int64_t j = 0; j < count; j++) {
                if (update->is_integer) {
                    uint64_t sum = (uint64_t)old.integer[j] + (uint64_t) new.integer[j];
                    new.integer[j] = (int64_t)sum;
                } else if (update->op == HL_OP_EMA) {
                    new.number[j] = by.keep *old.number[j] + by.take *new.number[j];
                } else {
                    new.number[j] += old.number[j];
                }
            }
        }
        HL_ISA_NAME(hl_pw_store)(kind, update->dtype, at, &new, count);
    }
}

static void run_update(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    const update_state *update = state->impl;
    const hl_control *control = args[2];
    end = hl_cpu_min(end, update->n);
    if (begin >= end || hl_launch_blocked(launch, control)) return;
    size_t bytes = hl_dtype_bytes(update->dtype), value_bytes = hl_dtype_bytes(update->value_dtype);
    unsigned char *target = (unsigned char *)args[0] + (size_t)begin * bytes;
    const unsigned char *value = (const unsigned char *)args[1] + (size_t)begin * value_bytes;
    blend by = find_blend(update, control);
    bool is_same = update->dtype == update->value_dtype;
    if (is_same && update->op == HL_OP_ASSIGN) {
        memmove(target, value, (size_t)(end - begin) * bytes);
    } else if (is_same && update->dtype == HL_DTYPE_F32) {
        update_f32(update, (float *)(void *)target, (const float *)(const void *)value, end - begin,
                   by);
    } else {
        update_any(update, target, value, end - begin, by);
    }
}

static const hl_kernel begin_control =
    HL_CONTROL_KERNEL(BEGIN, HL_CPU_NAME("control_begin"), begin);
static const hl_kernel micro_control =
    HL_CONTROL_KERNEL(MICRO, HL_CPU_NAME("control_micro"), micro);
static const hl_kernel apply_control =
    HL_CONTROL_KERNEL(APPLY, HL_CPU_NAME("control_apply"), apply);

#define UPDATE(OP, text)                                                                           \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(text),                                                                    \
     .query = query_update,                                                                        \
     .prepare = prepare_update,                                                                    \
     .block = run_update}
static const hl_kernel assign = UPDATE(ASSIGN, "assign");
static const hl_kernel accumulate = UPDATE(ACCUMULATE, "accumulate");
static const hl_kernel ema = UPDATE(EMA, "ema");

const hl_kernel *const HL_ISA_NAME(hl_cpu_control_kernels)[] = {
    &begin_control, &micro_control, &apply_control, &assign, &accumulate, &ema, NULL};
