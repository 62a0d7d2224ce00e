/* Views and copies: elements of any dtype move as bytes; only PAD's value and PAD_GRAD's sum are
 * numbers. */
#include <string.h>

#include "base/alloc.h"
#include "kernels/ref/ref.h"

static size_t element_bytes(const hl_type *type)
{
    return hl_dtype_bytes(type->dtype);
}

static void copy_element(void *dst, int64_t to, const void *src, int64_t from, size_t bytes)
{
    memcpy((char *)dst + (size_t)to * bytes, (const char *)src + (size_t)from * bytes, bytes);
}

/* out[i] = x[first + the sum of i's coordinates times stride]. */
static hl_status copy_strided(const hl_ref_call *call, void *const *args, int64_t first,
                              const int64_t *stride)
{
    const hl_shape *shape = &call->out[0].shape;
    int64_t n = hl_shape_numel(shape);
    for (int64_t i = 0; i < n; i++)
        copy_element(args[1], i, args[0], first + hl_ref_offset(shape, stride, i),
                     element_bytes(&call->out[0]));
    return HL_OK;
}

/* Python's rules for the start of a slice of n elements. */
static int64_t clip_start(int64_t start, int64_t n)
{
    if (start < 0) start += n;
    return start < 0 ? 0 : start > n ? n : start;
}

/* A step may be beyond any memory where only one element is taken. */
static int64_t widen_stride(int64_t stride, int64_t step, int64_t n_taken)
{
    return n_taken > 1 ? stride * step : 0;
}

/* Views: the plan need not launch them where the result may lie on its operand. */
static hl_status launch_view(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    size_t bytes = (size_t)hl_shape_numel(&call->out[0].shape) * element_bytes(&call->out[0]);
    if (bytes > 0) memmove(args[1], args[0], bytes);
    return HL_OK;
}

static hl_status launch_surrogate(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    size_t bytes = (size_t)hl_shape_numel(&call->out[0].shape) * element_bytes(&call->out[0]);
    if (bytes > 0) memcpy(args[2], args[0], bytes);
    return HL_OK;
}

static hl_status launch_permute(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    int64_t x_stride[HL_MAX_RANK], stride[HL_MAX_RANK];
    hl_shape_strides(&call->in[0].shape, x_stride);
    for (int d = 0; d < call->out[0].shape.rank; d++)
        stride[d] = x_stride[call->attrs.permute.dims.at[d]];
    return copy_strided(call, args, 0, stride);
}

static hl_status launch_expand(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *x = &call->in[0].shape;
    int lead = call->out[0].shape.rank - x->rank;
    int64_t x_stride[HL_MAX_RANK], stride[HL_MAX_RANK] = {0};
    hl_shape_strides(x, x_stride);
    for (int d = 0; d < x->rank; d++) stride[lead + d] = x->dim[d] == 1 ? 0 : x_stride[d];
    return copy_strided(call, args, 0, stride);
}

static hl_status launch_slice(const hl_kernel_state *state, void *const *args,
                              const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    int64_t axis = call->attrs.slice.axis, step = call->attrs.slice.step;
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(&call->in[0].shape, stride);
    int64_t start = clip_start(call->attrs.slice.start, call->in[0].shape.dim[axis]);
    int64_t first = start * stride[axis];
    stride[axis] = widen_stride(stride[axis], step, call->out[0].shape.dim[axis]);
    return copy_strided(call, args, first, stride);
}

static hl_status launch_flip(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    int64_t first = 0, stride[HL_MAX_RANK];
    hl_shape_strides(&call->in[0].shape, stride);
    for (int32_t a = 0; a < call->axes.n; a++) {
        int64_t axis = call->axes.at[a];
        first += (call->in[0].shape.dim[axis] - 1) * stride[axis];
        stride[axis] = -stride[axis];
    }
    return copy_strided(call, args, first, stride);
}

static hl_status launch_slice_grad(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *dy = &call->in[0].shape, *dx = &call->out[0].shape;
    const hl_attrs_slice_grad *slice = &call->attrs.slice_grad;
    int64_t axis = slice->axis, step = slice->step, size = slice->size;
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(dx, stride);
    int64_t first = clip_start(slice->start, size) * stride[axis];
    stride[axis] = widen_stride(stride[axis], step, dy->dim[axis]);
    size_t bytes = element_bytes(&call->out[0]), all = (size_t)hl_shape_numel(dx) * bytes;
    if (all > 0) memset(args[1], 0, all);
    int64_t n = hl_shape_numel(dy);
    for (int64_t i = 0; i < n; i++)
        copy_element(args[1], first + hl_ref_offset(dy, stride, i), args[0], i, bytes);
    return HL_OK;
}

static hl_status launch_concat(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *out = &call->out[0].shape;
    int64_t axis = call->attrs.axis.axis, begin = 0, stride[HL_MAX_RANK];
    hl_shape_strides(out, stride);
    for (int32_t j = 0; j < call->n_in; j++) {
        const hl_shape *x = &call->in[j].shape;
        int64_t n = hl_shape_numel(x);
        for (int64_t i = 0; i < n; i++)
            copy_element(args[call->n_in], begin * stride[axis] + hl_ref_offset(x, stride, i),
                         args[j], i, element_bytes(&call->out[0]));
        begin += x->dim[axis];
    }
    return HL_OK;
}

static hl_status launch_write_parts(const hl_kernel_state *state, void *const *args,
                                    const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    size_t bytes = element_bytes(&call->out[0]);
    int64_t first = 0;
    for (int32_t j = 1; j < call->n_in; j++) {
        int64_t n = hl_shape_numel(&call->in[j].shape);
        first = hl_round_up(first, call->attrs.write_parts.align);
        memmove((char *)args[call->n_in] + (size_t)first * bytes, args[j], (size_t)n * bytes);
        first += n;
    }
    return HL_OK;
}

static hl_status launch_split(const hl_kernel_state *state, void *const *args,
                              const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    int64_t axis = call->attrs.split.axis, begin = 0, stride[HL_MAX_RANK];
    hl_shape_strides(&call->in[0].shape, stride);
    for (int32_t j = 0; j < call->n_out; j++) {
        const hl_shape *out = &call->out[j].shape;
        int64_t n = hl_shape_numel(out);
        for (int64_t i = 0; i < n; i++)
            copy_element(args[1 + j], i, args[0],
                         begin * stride[axis] + hl_ref_offset(out, stride, i),
                         element_bytes(&call->in[0]));
        begin += out->dim[axis];
    }
    return HL_OK;
}

/* ---- pad ------------------------------------------------------------------------------------- */

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

/* The coordinate in [0, n) that a padded one repeats; -1: none, the constant stands there. */
static int64_t find_source(int64_t mode, int64_t coordinate, int64_t n)
{
    switch (mode) {
    case PAD_REFLECT:
        while (n > 1 && (coordinate < 0 || coordinate >= n))
            coordinate = coordinate < 0 ? -coordinate : 2 * (n - 1) - coordinate;
        return n > 1 ? coordinate : 0;
    case PAD_REPLICATE: return coordinate < 0 ? 0 : coordinate >= n ? n - 1 : coordinate;
    case PAD_CIRCULAR: return (coordinate % n + n) % n;
    default: return coordinate >= 0 && coordinate < n ? coordinate : -1;
    }
}

/* The element of `plain` that element i of `padded` repeats, or -1. */
static int64_t find_padded(const hl_shape *padded, const hl_shape *plain, const hl_attrs_pad *pad,
                           int64_t i)
{
    int64_t element = 0, scale = 1;
    for (int d = padded->rank - 1; d >= 0; d--) {
        int64_t coordinate = i % padded->dim[d] - pad->before.at[d];
        int64_t source = find_source(pad->mode, coordinate, plain->dim[d]);
        if (source < 0) return -1;
        element += source * scale;
        scale *= plain->dim[d];
        i /= padded->dim[d];
    }
    return element;
}

static hl_status launch_pad(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_type *x = &call->in[0], *out = &call->out[0];
    int64_t n = hl_shape_numel(&out->shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t source = find_padded(&out->shape, &x->shape, &call->attrs.pad, i);
        if (source < 0)
            hl_ref_store(args[1], out->dtype, i, call->attrs.pad.value);
        else
            copy_element(args[1], i, args[0], source, element_bytes(x));
    }
    return HL_OK;
}

static hl_status launch_pad_grad(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *padded = &call->in[0].shape, *plain = &call->out[0].shape;
    const double *dy = args[0];
    double *dx = args[1];
    int64_t n_plain = hl_shape_numel(plain), n = hl_shape_numel(padded);
    for (int64_t i = 0; i < n_plain; i++) dx[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t source = find_padded(padded, plain, &call->attrs.pad, i);
        if (source >= 0) dx[source] += dy[i];
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(RESHAPE, "reshape", hl_ref_query_any, launch_view),
    HL_REF_KERNEL(DETACH, "detach", hl_ref_query_any, launch_view),
    HL_REF_KERNEL(SURROGATE, "surrogate", hl_ref_query_any, launch_surrogate),
    HL_REF_KERNEL(PERMUTE, "permute", hl_ref_query_any, launch_permute),
    HL_REF_KERNEL(EXPAND, "expand", hl_ref_query_any, launch_expand),
    HL_REF_KERNEL(CONCAT, "concat", hl_ref_query_any, launch_concat),
    HL_REF_KERNEL(WRITE_PARTS, "write_parts", hl_ref_query_any, launch_write_parts),
    HL_REF_KERNEL(SLICE, "slice", hl_ref_query_any, launch_slice),
    HL_REF_KERNEL(SLICE_GRAD, "slice_grad", hl_ref_query_any, launch_slice_grad),
    HL_REF_KERNEL(SPLIT, "split", hl_ref_query_any, launch_split),
    HL_REF_KERNEL(PAD, "pad", hl_ref_query_any, launch_pad),
    HL_REF_KERNEL(PAD_GRAD, "pad_grad", hl_ref_query_f64, launch_pad_grad),
    HL_REF_KERNEL(FLIP, "flip", hl_ref_query_any, launch_flip),
};
const hl_ref_family hl_ref_copy = HL_REF_FAMILY(kernels);
