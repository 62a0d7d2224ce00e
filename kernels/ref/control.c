/* Control block and guarded updates: a state keeps its bits when its segment's guard is down. */
#include <math.h>
#include <string.h>

#include "kernels/host/control_kernels.h"
#include "kernels/ref/ref.h"

/* state <- value, in the state's dtype */
static hl_status launch_assign(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    if (hl_launch_blocked(launch, args[2])) return HL_OK;
    hl_dtype to = call->in[0].dtype, from = call->in[1].dtype;
    bool is_exact = !hl_dtype_is_float(to) && !hl_dtype_is_float(from);
    int64_t n = hl_shape_numel(&call->in[0].shape);
    for (int64_t i = 0; i < n; i++) {
        if (is_exact)
            hl_ref_store_int(args[0], to, i, hl_ref_load_int(args[1], from, i));
        else
            hl_ref_store(args[0], to, i, hl_ref_load(args[1], from, i));
    }
    return HL_OK;
}

static hl_status launch_accumulate(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    if (hl_launch_blocked(launch, args[2])) return HL_OK;
    hl_dtype to = call->in[0].dtype, from = call->in[1].dtype;
    bool is_exact = !hl_dtype_is_float(to) && !hl_dtype_is_float(from);
    int64_t n = hl_shape_numel(&call->in[0].shape);
    for (int64_t i = 0; i < n; i++) {
        if (is_exact)
            hl_ref_store_int(args[0], to, i,
                             (int64_t)((uint64_t)hl_ref_load_int(args[0], to, i) +
                                       (uint64_t)hl_ref_load_int(args[1], from, i)));
        else
            hl_ref_store(args[0], to, i,
                         hl_ref_load(args[0], to, i) + hl_ref_load(args[1], from, i));
    }
    return HL_OK;
}

static hl_status launch_ema(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_control *control = args[2];
    if (hl_launch_blocked(launch, control)) return HL_OK;
    const hl_attrs_ema *attrs = &call->attrs.ema;
    double *average = args[0], d = attrs->decay;
    double step = (double)control->applied;
    if (attrs->ramp) d = fmin(d, (1 + step) / (10 + step));
    double take = attrs->take != 0 ? attrs->take : 1 - d;
    int64_t n = hl_shape_numel(&call->in[0].shape);
    for (int64_t i = 0; i < n; i++)
        average[i] = d * average[i] + take * hl_ref_load(args[1], call->in[1].dtype, i);
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_CONTROL_KERNEL(BEGIN, "ref.control_begin", begin),
    HL_CONTROL_KERNEL(MICRO, "ref.control_micro", micro),
    HL_CONTROL_KERNEL(APPLY, "ref.control_apply", apply),
    HL_REF_KERNEL(ASSIGN, "assign", hl_ref_query_any, launch_assign),
    HL_REF_KERNEL(ACCUMULATE, "accumulate", hl_ref_query_any, launch_accumulate),
    HL_REF_KERNEL(EMA, "ema", hl_ref_query_f64, launch_ema),
};
const hl_ref_family hl_ref_control = HL_REF_FAMILY(kernels);
