/* Indexed access. An index outside [0, n) sets the error word (row: its place in the index array);
 * it reads as 0 and writes nothing. Negative indices are outside. */
#include <string.h>

#include "kernels/ref/ref.h"

static bool take_index(const void *index, const hl_type *type, int64_t i, int64_t n,
                       const hl_launch *launch, int64_t *out_k)
{
    *out_k = hl_ref_load_int(index, type->dtype, i);
    if (*out_k >= 0 && *out_k < n) return true;
    hl_launch_fault(launch, i, *out_k);
    return false;
}

static void copy_elements(void *dst, int64_t to, const void *src, int64_t from, int64_t n,
                          hl_dtype dtype)
{
    size_t bytes = hl_dtype_bytes(dtype);
    if (n == 0 || (dst == src && to == from)) return;
    memcpy((char *)dst + (size_t)to * bytes, (const char *)src + (size_t)from * bytes,
           (size_t)n * bytes);
}

static void add_elements(void *dst, int64_t to, const void *src, int64_t from, int64_t n,
                         hl_dtype dtype)
{
    for (int64_t i = 0; i < n; i++) {
        if (hl_dtype_is_float(dtype))
            hl_ref_store(dst, dtype, to + i,
                         hl_ref_load(dst, dtype, to + i) + hl_ref_load(src, dtype, from + i));
        else
            hl_ref_store_int(dst, dtype, to + i,
                             (int64_t)((uint64_t)hl_ref_load_int(dst, dtype, to + i) +
                                       (uint64_t)hl_ref_load_int(src, dtype, from + i)));
    }
}

static void zero_elements(void *dst, int64_t to, int64_t n, hl_dtype dtype)
{
    for (int64_t i = 0; i < n; i++) hl_ref_store_int(dst, dtype, to + i, 0);
}

/* ---- by an index of the result's shape: gather, scatter -------------------------------------- */

/* Where the element at index's coordinates i, with k in place of its coordinate along the axis, is
 * in an array of this shape. */
static int64_t find_along(const hl_shape *array, const hl_shape *index, int64_t axis, int64_t i,
                          int64_t k)
{
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(array, stride);
    int64_t along = k * stride[axis];
    stride[axis] = 0;
    return along + hl_ref_offset(index, stride, i);
}

static hl_status launch_gather(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_type *x = &call->in[0], *index = &call->in[1];
    int64_t axis = call->attrs.axis.axis, n = hl_shape_numel(&index->shape), k;
    for (int64_t i = 0; i < n; i++) {
        if (take_index(args[1], index, i, x->shape.dim[axis], launch, &k))
            copy_elements(args[2], i, args[0], find_along(&x->shape, &index->shape, axis, i, k), 1,
                          x->dtype);
        else
            zero_elements(args[2], i, 1, x->dtype);
    }
    return HL_OK;
}

typedef void (*write_fn)(void *dst, int64_t to, const void *src, int64_t from, int64_t n,
                         hl_dtype dtype);

static hl_status scatter_elements(const hl_ref_call *call, void *const *args,
                                  const hl_launch *launch, write_fn write)
{
    const hl_type *x = &call->in[0], *index = &call->in[1], *src = &call->in[2];
    int64_t axis = call->attrs.axis.axis, n = hl_shape_numel(&index->shape), k;
    int64_t axis_stride = hl_shape_span(&index->shape, (int)axis + 1, index->shape.rank);
    copy_elements(args[3], 0, args[0], 0, hl_shape_numel(&x->shape), x->dtype);
    for (int64_t i = 0; i < n; i++) {
        if (!take_index(args[1], index, i, x->shape.dim[axis], launch, &k)) continue;
        int64_t own = i / axis_stride % index->shape.dim[axis];
        write(args[3], find_along(&x->shape, &index->shape, axis, i, k), args[2],
              find_along(&src->shape, &index->shape, axis, i, own), 1, x->dtype);
    }
    return HL_OK;
}

static hl_status launch_scatter(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return scatter_elements(state->impl, args, launch, copy_elements);
}

static hl_status launch_scatter_add(const hl_kernel_state *state, void *const *args,
                                    const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return scatter_elements(state->impl, args, launch, add_elements);
}

/* ---- by rows along an axis: index_select, index_add, index_copy, slice_add
 * ----------------------- */

/* x is seen as (n_outer, n_axis, n_inner); a row is n_inner elements. */
typedef struct axis_view {
    int64_t n_outer, n_axis, n_inner;
} axis_view;

static axis_view make_view(const hl_shape *x, int64_t axis)
{
    return (axis_view){hl_shape_span(x, 0, (int)axis), x->dim[axis],
                       hl_shape_span(x, (int)axis + 1, x->rank)};
}

static hl_status launch_index_select(const hl_kernel_state *state, void *const *args,
                                     const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_type *x = &call->in[0], *index = &call->in[1];
    axis_view view = make_view(&x->shape, call->attrs.axis.axis);
    int64_t n = hl_shape_numel(&index->shape), k;
    for (int64_t o = 0; o < view.n_outer; o++) {
        for (int64_t i = 0; i < n; i++) {
            int64_t to = (o * n + i) * view.n_inner;
            if (take_index(args[1], index, i, view.n_axis, launch, &k))
                copy_elements(args[2], to, args[0], (o * view.n_axis + k) * view.n_inner,
                              view.n_inner, x->dtype);
            else
                zero_elements(args[2], to, view.n_inner, x->dtype);
        }
    }
    return HL_OK;
}

static hl_status write_rows(const hl_ref_call *call, void *const *args, const hl_launch *launch,
                            write_fn write)
{
    const hl_type *x = &call->in[0], *index = &call->in[1];
    axis_view view = make_view(&x->shape, call->attrs.axis.axis);
    int64_t n = hl_shape_numel(&index->shape), k;
    copy_elements(args[3], 0, args[0], 0, hl_shape_numel(&x->shape), x->dtype);
    for (int64_t o = 0; o < view.n_outer; o++) {
        for (int64_t i = 0; i < n; i++) {
            if (!take_index(args[1], index, i, view.n_axis, launch, &k)) continue;
            write(args[3], (o * view.n_axis + k) * view.n_inner, args[2],
                  (o * n + i) * view.n_inner, view.n_inner, x->dtype);
        }
    }
    return HL_OK;
}

static hl_status launch_index_add(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return write_rows(state->impl, args, launch, add_elements);
}

static hl_status launch_index_copy(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    return write_rows(state->impl, args, launch, copy_elements);
}

static hl_status launch_slice_add(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_attrs_slice_add *slice = &call->attrs.slice_add;
    const hl_type *x = &call->in[0];
    axis_view view = make_view(&x->shape, slice->axis);
    int64_t n = call->in[1].shape.dim[slice->axis];
    copy_elements(args[2], 0, args[0], 0, hl_shape_numel(&x->shape), x->dtype);
    for (int64_t o = 0; o < view.n_outer; o++)
        for (int64_t i = 0; i < n; i++)
            add_elements(args[2], (o * view.n_axis + slice->start + i * slice->step) * view.n_inner,
                         args[1], (o * n + i) * view.n_inner, view.n_inner, x->dtype);
    return HL_OK;
}

/* ---- batch_gather ---------------------------------------------------------------------------- */

static hl_status launch_batch_gather(const hl_kernel_state *state, void *const *args,
                                     const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_type *source = &call->in[0], *index = &call->in[1], *out = &call->out[0];
    axis_view view = make_view(&source->shape, 0);
    bool is_exact = !hl_dtype_is_float(source->dtype) && !hl_dtype_is_float(out->dtype);
    int64_t B = hl_shape_numel(&index->shape), k;
    int64_t row = hl_shape_span(&out->shape, 1, out->shape.rank);
    int64_t window = call->attrs.batch.window;
    int64_t n_rows = window ? view.n_axis - window + 1 : view.n_axis;
    for (int64_t b = 0; b < B; b++) {
        bool exists = take_index(args[1], index, b, n_rows, launch, &k);
        for (int64_t i = 0; i < row; i++) {
            int64_t to = b * row + i, from = k * view.n_inner + i;
            if (!exists)
                hl_ref_store_int(args[2], out->dtype, to, 0);
            else if (is_exact)
                hl_ref_store_int(args[2], out->dtype, to,
                                 hl_ref_load_int(args[0], source->dtype, from));
            else
                hl_ref_store(args[2], out->dtype, to, hl_ref_load(args[0], source->dtype, from));
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(GATHER, "gather", hl_ref_query_any, launch_gather),
    HL_REF_KERNEL(SCATTER, "scatter", hl_ref_query_any, launch_scatter),
    HL_REF_KERNEL(SCATTER_ADD, "scatter_add", hl_ref_query_any, launch_scatter_add),
    HL_REF_KERNEL(INDEX_SELECT, "index_select", hl_ref_query_any, launch_index_select),
    HL_REF_KERNEL(INDEX_ADD, "index_add", hl_ref_query_any, launch_index_add),
    HL_REF_KERNEL(SLICE_ADD, "slice_add", hl_ref_query_any, launch_slice_add),
    HL_REF_KERNEL(INDEX_COPY, "index_copy", hl_ref_query_any, launch_index_copy),
    HL_REF_KERNEL(INDEX_ASSIGN, "index_assign", hl_ref_query_any, launch_index_copy),
    HL_REF_KERNEL(BATCH_GATHER, "batch_gather", hl_ref_query_any, launch_batch_gather),
};
const hl_ref_family hl_ref_index = HL_REF_FAMILY(kernels);
