/* Reference backend: the oracle that every other backend is held against.
 *
 * One naive loop per op, written from the op's line in ops.def and the paper it names, for
 * obviousness and nothing else; nothing here is shared with a fast kernel, so that a mistake cannot
 * be shared either (the control block's transitions, which must be one text, are the exception).
 * Floating values are float64: a pass converts the graph. Kernels have `launch` alone, keep a
 * description of their node as state, use no scratch (but for a recursion that runs back) and never
 * fail.
 *
 * Each family is one file that exports its kernels as a table; device.c joins the tables. */
#ifndef HL_KERNELS_REF_H
#define HL_KERNELS_REF_H

#include "backend/backend.h"
#include "ir/window.h"

const hl_backend *hl_ref_backend(void);

typedef struct hl_ref_family {
    const hl_kernel *kernels;
    int n;
} hl_ref_family;
extern const hl_ref_family hl_ref_pointwise, hl_ref_matmul, hl_ref_conv, hl_ref_unfold, hl_ref_pool,
    hl_ref_resample, hl_ref_reduce, hl_ref_softmax, hl_ref_loss, hl_ref_attention, hl_ref_copy,
    hl_ref_index, hl_ref_norm, hl_ref_control, hl_ref_optim, hl_ref_recurrence, hl_ref_ctc,
    hl_ref_linalg, hl_ref_stat, hl_ref_sort, hl_ref_deformable;

/* The state of a kernel: its node's operands in the order of args. */
typedef struct hl_ref_call {
    hl_attrs attrs; /* texts among them are the graph's */
    hl_ints axes;   /* hl_node_axes */
    int32_t n_in, n_out;
    const hl_type *in, *out;
} hl_ref_call;

/* Accepts any operands. */
hl_status hl_ref_query_any(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_kernel_req *out_req, hl_reason *out_why_not);
/* Accepts only operands that are float64 where they are floating. */
hl_status hl_ref_query_f64(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_kernel_req *out_req, hl_reason *out_why_not);
/* The state is a hl_ref_call. */
hl_status hl_ref_prepare(hl_device *device, const hl_graph *graph, hl_node_id node,
                         hl_kernel_state *out_state);

#define HL_REF_KERNEL(id, op_name, query_fn, launch_fn)                                            \
    {.op = HL_OP_##id,                                                                             \
     .name = "ref." op_name,                                                                       \
     .query = query_fn,                                                                            \
     .prepare = hl_ref_prepare,                                                                    \
     .launch = launch_fn}
#define HL_REF_FAMILY(table) {table, sizeof(table) / sizeof((table)[0])}

/* ---- elements of any dtype ------------------------------------------------------------------- */

double hl_ref_load(const void *data, hl_dtype dtype, int64_t i);
/* Rounds to the dtype; to an integer it truncates, as CAST does. */
void hl_ref_store(void *data, hl_dtype dtype, int64_t i, double value);
/* Exact for every integer and bool; a float is truncated. */
int64_t hl_ref_load_int(const void *data, hl_dtype dtype, int64_t i);
/* An integer wraps to the dtype; bool is value != 0. */
void hl_ref_store_int(void *data, hl_dtype dtype, int64_t i, int64_t value);
/* Truncates; NaN is 0, and what int64 cannot hold is its nearest end. */
int64_t hl_ref_truncate(double value);

/* ---- places in row-major arrays -------------------------------------------------------------- */

/* The place in memory of element `linear` (row-major) of a shape that is laid out by strides. */
int64_t hl_ref_offset(const hl_shape *shape, const int64_t *stride, int64_t linear);

/* An array seen as groups along some of its dims: element k of group g is at
 * hl_ref_offset(&kept, kept_stride, g) + hl_ref_offset(&reduced, reduced_stride, k). Groups stand
 * in the row-major order of the other dims. */
typedef struct hl_ref_groups {
    hl_shape kept, reduced;
    int64_t kept_stride[HL_MAX_RANK], reduced_stride[HL_MAX_RANK];
    int64_t n_groups, n_inside;
} hl_ref_groups;
/* n_axes 0: all dims are reduced. */
hl_ref_groups hl_ref_groups_make(const hl_shape *shape, const int64_t *axes, int32_t n_axes);
static inline int64_t hl_ref_groups_at(const hl_ref_groups *groups, int64_t g, int64_t k)
{
    return hl_ref_offset(&groups->kept, groups->kept_stride, g) +
           hl_ref_offset(&groups->reduced, groups->reduced_stride, k);
}

/* The spatial element that tap `tap` of output `pixel` reads, all counted in row-major order; -1:
 * padding. */
int64_t hl_ref_find_input(const hl_window *window, int64_t pixel, int64_t tap);

/* What the softmax of a row x (C) is made of: the largest is taken out of every power, so that none
 * overflows, and apart from the logarithm of the sum, so that it costs no digits. A row with +inf,
 * or of -inf alone, gives NaN. */
typedef struct hl_ref_row {
    double largest, log_sum;
} hl_ref_row;
hl_ref_row hl_ref_row_make(const double *x, int64_t C);
static inline double hl_ref_row_log_softmax(hl_ref_row row, double x)
{
    return x - row.largest - row.log_sum;
}

#endif
