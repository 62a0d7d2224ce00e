/* Shapes: size arithmetic, broadcasting, strides, text. */
#include "ir/shape.h"

#include <stdio.h>

#include "base/alloc.h"

int64_t hl_shape_numel(const hl_shape *shape)
{
    return hl_shape_span(shape, 0, shape->rank);
}

int64_t hl_shape_span(const hl_shape *shape, int begin, int end)
{
    int64_t span = 1;
    for (int d = begin; d < end; d++) span *= shape->dim[d];
    return span;
}

bool hl_shape_split(const hl_shape *shape, const int64_t *axes, int n_axes, int64_t *out_O,
                    int64_t *out_N, int64_t *out_I)
{
    int first = n_axes > 0 ? (int)axes[0] : 0, last = n_axes > 0 ? (int)axes[0] + 1 : shape->rank;
    bool together = true;
    for (int a = 1; a < n_axes; a++) {
        for (int d = last; d < axes[a]; d++) together = together && shape->dim[d] == 1;
        last = (int)axes[a] + 1;
    }
    *out_O = hl_shape_span(shape, 0, first);
    *out_N = hl_shape_span(shape, first, last);
    *out_I = hl_shape_span(shape, last, shape->rank);
    return together;
}

/* "<what>: " or nothing, for messages whose context is put in front by the caller. */
static hl_status fail_shape(const char *what, const char *rule, const char *got)
{
    hl_status status = hl_status_set(HL_ERROR_SHAPE, "%s, got %s", rule, got);
    return what ? hl_status_context(status, "%s", what) : status;
}

hl_status hl_shape_check(const hl_shape *shape, const char *what)
{
    char text[HL_SHAPE_TEXT];
    if (shape->rank < 0 || shape->rank > HL_MAX_RANK) {
        snprintf(text, sizeof text, "%d", shape->rank);
        return fail_shape(what, "a shape must have at most 8 dims", text);
    }
    /* A dim of 0 counts as 1, so that every span of the shape is safe, not only the whole. */
    int64_t bytes = 8;
    for (int d = 0; d < shape->rank; d++) {
        int64_t dim = shape->dim[d];
        if (dim < 0)
            return fail_shape(what, "dims must not be negative", hl_shape_format(shape, text));
        if (dim > 0 && !hl_mul_dim(bytes, dim, &bytes))
            return fail_shape(what, "the bytes must fit in 63 bits", hl_shape_format(shape, text));
    }
    return HL_OK;
}

bool hl_shape_equal(const hl_shape *a, const hl_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dim[d] != b->dim[d]) return false;
    return true;
}

hl_status hl_shape_broadcast(const hl_shape *a, const hl_shape *b, const char *what,
                             hl_shape *out_shape)
{
    hl_shape shape = {a->rank > b->rank ? a->rank : b->rank, {0}};
    for (int d = 1; d <= shape.rank; d++) {
        int64_t dim_a = d <= a->rank ? a->dim[a->rank - d] : 1;
        int64_t dim_b = d <= b->rank ? b->dim[b->rank - d] : 1;
        if (dim_a != dim_b && dim_a != 1 && dim_b != 1) {
            char text_a[HL_SHAPE_TEXT], text_b[HL_SHAPE_TEXT], got[2 * HL_SHAPE_TEXT + 8];
            snprintf(got, sizeof got, "%s and %s", hl_shape_format(a, text_a),
                     hl_shape_format(b, text_b));
            return fail_shape(what, "dims must be equal or 1, counted from the last", got);
        }
        shape.dim[shape.rank - d] = dim_a == 1 ? dim_b : dim_a;
    }
    HL_TRY(hl_shape_check(&shape, what));
    *out_shape = shape;
    return HL_OK;
}

hl_status hl_shape_axis(const hl_shape *shape, int64_t axis, const char *what, int *out_axis)
{
    *out_axis = 0;
    if (axis < -(int64_t)shape->rank || axis >= shape->rank) {
        char text[HL_SHAPE_TEXT], got[HL_SHAPE_TEXT + 40];
        snprintf(got, sizeof got, "%lld for %s", (long long)axis, hl_shape_format(shape, text));
        return fail_shape(what, "an axis must lie in -rank ... rank - 1", got);
    }
    *out_axis = (int)(axis < 0 ? axis + shape->rank : axis);
    return HL_OK;
}

void hl_shape_strides(const hl_shape *shape, int64_t *out_stride)
{
    int64_t step = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        out_stride[d] = step;
        step *= shape->dim[d];
    }
}

void hl_shape_broadcast_strides(const hl_shape *shape, const hl_shape *operand, int64_t *out_stride)
{
    int64_t own[HL_MAX_RANK];
    int lead = shape->rank - operand->rank;
    hl_shape_strides(operand, own);
    for (int d = 0; d < shape->rank; d++)
        out_stride[d] = d < lead || operand->dim[d - lead] == 1 ? 0 : own[d - lead];
}

int32_t hl_shape_merge(const hl_shape *shape, const int64_t *stride, int64_t *out_dim,
                       int64_t *out_stride)
{
    int32_t n = 0;
    for (int d = 0; d < shape->rank; d++) {
        int64_t dim = shape->dim[d];
        if (dim == 1) continue;
        if (n > 0 && out_stride[n - 1] == stride[d] * dim) {
            out_dim[n - 1] *= dim;
            out_stride[n - 1] = stride[d];
        } else {
            out_dim[n] = dim;
            out_stride[n++] = stride[d];
        }
    }
    return n;
}

const char *hl_shape_format(const hl_shape *shape, char *text)
{
    int rank = shape->rank < HL_MAX_RANK ? shape->rank : HL_MAX_RANK;
    int n = snprintf(text, HL_SHAPE_TEXT, "(");
    for (int d = 0; d < rank; d++) {
        const char *mark = d > 0 ? ", " : "";
        n += snprintf(text + n, (size_t)(HL_SHAPE_TEXT - n), "%s%lld", mark,
                      (long long)shape->dim[d]);
    }
    snprintf(text + n, (size_t)(HL_SHAPE_TEXT - n), rank == 1 ? ",)" : ")");
    return text;
}
