/* The checks that infer functions share. */
#include "ops/check.h"

#include "ir/control.h"

static hl_status fail_dtype(const char *what, const char *rule, hl_dtype got)
{
    return hl_status_set(HL_ERROR_TRACE, "%s must be %s, got %s", what, rule, hl_dtype_name(got));
}

hl_status hl_check_float(const hl_type *type, const char *what)
{
    if (hl_dtype_is_float(type->dtype)) return HL_OK;
    return fail_dtype(what, "of a floating dtype", type->dtype);
}

hl_status hl_check_integer(const hl_type *type, const char *what)
{
    char kind = hl_dtype_kind(type->dtype);
    if (kind == 'i' || kind == 'u') return HL_OK;
    return fail_dtype(what, "of an integer dtype", type->dtype);
}

hl_status hl_check_number(const hl_type *type, const char *what)
{
    if (type->dtype != HL_DTYPE_BOOL) return HL_OK;
    return fail_dtype(what, "a number", type->dtype);
}

hl_status hl_check_dtype(const hl_type *type, hl_dtype dtype, const char *what)
{
    if (type->dtype == dtype) return HL_OK;
    return fail_dtype(what, hl_dtype_name(dtype), type->dtype);
}

hl_status hl_check_shape(const hl_type *type, const hl_shape *shape, const char *what)
{
    if (hl_shape_equal(&type->shape, shape)) return HL_OK;
    char want[HL_SHAPE_TEXT], got[HL_SHAPE_TEXT];
    return hl_status_set(HL_ERROR_SHAPE, "%s must have shape %s, got %s", what,
                         hl_shape_format(shape, want), hl_shape_format(&type->shape, got));
}

hl_status hl_check_type(const hl_type *type, const hl_type *want, const char *what)
{
    HL_TRY(hl_check_dtype(type, want->dtype, what));
    return hl_check_shape(type, &want->shape, what);
}

hl_status hl_check_control(const hl_type *type)
{
    hl_type control = {HL_DTYPE_U8, hl_shape_1d(sizeof(hl_control))};
    return hl_check_type(type, &control, "the control block");
}

hl_status hl_check_rank(const hl_type *type, int least, const char *what)
{
    if (type->shape.rank >= least) return HL_OK;
    char got[HL_SHAPE_TEXT];
    return hl_status_set(HL_ERROR_SHAPE, "%s must have at least %d dims, got %s", what, least,
                         hl_shape_format(&type->shape, got));
}

hl_status hl_check_rank_exactly(const hl_type *type, int rank, const char *what)
{
    if (type->shape.rank == rank) return HL_OK;
    char got[HL_SHAPE_TEXT];
    return hl_status_set(HL_ERROR_SHAPE, "%s must have %d dims, got %s", what, rank,
                         hl_shape_format(&type->shape, got));
}

hl_status hl_check_dtype_attr(hl_dtype dtype)
{
    if ((int)dtype >= 0 && dtype < HL_DTYPE_COUNT) return HL_OK;
    return hl_status_set(HL_ERROR_TRACE, "dtype must be one that hotloop has, got number %d",
                         (int)dtype);
}

hl_status hl_check_axis(const hl_shape *shape, int64_t *axis)
{
    int known;
    HL_TRY(hl_shape_axis(shape, *axis, NULL, &known));
    *axis = known;
    return HL_OK;
}

hl_status hl_check_axes(const hl_shape *shape, hl_ints *axes)
{
    bool chosen[HL_MAX_RANK] = {false};
    for (int32_t i = 0; i < axes->n; i++) {
        int axis;
        HL_TRY(hl_shape_axis(shape, axes->at[i], NULL, &axis));
        if (chosen[axis])
            return hl_status_set(HL_ERROR_SHAPE, "an axis must be given once, got %d twice", axis);
        chosen[axis] = true;
    }
    bool all = axes->n == 0;
    axes->n = 0;
    for (int d = 0; d < shape->rank; d++)
        if (all || chosen[d]) axes->at[axes->n++] = d;
    return HL_OK;
}
