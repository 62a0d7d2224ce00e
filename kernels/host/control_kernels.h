/* The kernels of CONTROL_BEGIN, CONTROL_MICRO and CONTROL_APPLY for every device whose memory the
 * host can read: they carry operands to the transitions of ir/control.h. */
#ifndef HL_KERNELS_HOST_CONTROL_KERNELS_H
#define HL_KERNELS_HOST_CONTROL_KERNELS_H

#include "backend/backend.h"
#include "base/alloc.h"

typedef struct control_call {
    int64_t n_scalars, n_steps; /* BEGIN: dims of the tables */
    int64_t rows;               /* MICRO */
    bool is_f64;                /* BEGIN: the scalars' dtype. MICRO, APPLY: the operand's */
    hl_attrs_betas betas;       /* APPLY */
} control_call;

static inline hl_status query_control(hl_device *device, const hl_graph *graph, hl_node_id node,
                                      hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *n = &graph->nodes[node];
    hl_dtype dtype =
        n->op == HL_OP_CONTROL_BEGIN ? hl_dtype_attrs(n)->dtype : hl_graph_dtype(graph, n->in[1]);
    if (dtype != HL_DTYPE_F32 && dtype != HL_DTYPE_F64)
        return hl_reason_set(out_why_not, "needs float32 or float64, got %s", hl_dtype_name(dtype));
    out_req->deterministic = true;
    return HL_OK;
}

static inline hl_status prepare_control(hl_device *device, const hl_graph *graph, hl_node_id node,
                                        hl_kernel_state *out_state)
{
    (void)device;
    out_state->impl = NULL;
    const hl_node *n = &graph->nodes[node];
    const hl_type *operand = &graph->values[n->in[1]].type;
    void *memory;
    HL_TRY(hl_alloc_zero(sizeof(control_call), &memory));
    control_call *call = memory;
    if (n->op == HL_OP_CONTROL_BEGIN) {
        call->n_scalars = operand->shape.dim[0];
        call->n_steps = operand->shape.dim[1];
        call->is_f64 = hl_dtype_attrs(n)->dtype == HL_DTYPE_F64;
    } else {
        if (n->op == HL_OP_CONTROL_MICRO) call->rows = hl_rows_attrs(n)->rows;
        if (n->op == HL_OP_CONTROL_APPLY) call->betas = *hl_betas_attrs(n);
        call->is_f64 = operand->dtype == HL_DTYPE_F64;
    }
    out_state->impl = call;
    return HL_OK;
}

static inline double read_control_operand(const control_call *call, const void *operand)
{
    return call->is_f64 ? *(const double *)operand : (double)*(const float *)operand;
}

static inline hl_status launch_control_begin(const hl_kernel_state *state, void *const *args,
                                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const control_call *call = state->impl;
    hl_control_begin(args[0], args[1], call->n_scalars, call->n_steps, call->is_f64);
    return HL_OK;
}

static inline hl_status launch_control_micro(const hl_kernel_state *state, void *const *args,
                                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const control_call *call = state->impl;
    hl_control_micro(args[0], read_control_operand(call, args[1]), call->rows);
    return HL_OK;
}

static inline hl_status launch_control_apply(const hl_kernel_state *state, void *const *args,
                                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const control_call *call = state->impl;
    hl_control_apply(args[0], read_control_operand(call, args[1]), call->betas.beta1,
                     call->betas.beta2);
    return HL_OK;
}

/* One line of a kernel table: HL_CONTROL_KERNEL(BEGIN, "ref.control_begin", begin). */
#define HL_CONTROL_KERNEL(id, kernel_name, fn)                                                     \
    {.op = HL_OP_CONTROL_##id,                                                                     \
     .name = kernel_name,                                                                          \
     .query = query_control,                                                                       \
     .prepare = prepare_control,                                                                   \
     .launch = launch_control_##fn}

#endif
