/* What infer functions ask of their operands: each says "<what> must be ..., got ..." and returns
 * HL_ERROR_TRACE for a wrong dtype (a TypeError), HL_ERROR_SHAPE for a wrong shape. */
#ifndef HL_OPS_CHECK_H
#define HL_OPS_CHECK_H

#include "ir/op.h"

hl_status hl_check_float(const hl_type *type, const char *what);
/* Signed or unsigned; bool is no integer. */
hl_status hl_check_integer(const hl_type *type, const char *what);
/* Anything but bool. */
hl_status hl_check_number(const hl_type *type, const char *what);
hl_status hl_check_dtype(const hl_type *type, hl_dtype dtype, const char *what);
hl_status hl_check_shape(const hl_type *type, const hl_shape *shape, const char *what);
hl_status hl_check_type(const hl_type *type, const hl_type *want, const char *what);
hl_status hl_check_rank(const hl_type *type, int least, const char *what);
hl_status hl_check_rank_exactly(const hl_type *type, int rank, const char *what);
/* It must have the control block's type: a kernel would read beyond a smaller value. */
hl_status hl_check_control(const hl_type *type);
/* An attribute that is a dtype. */
hl_status hl_check_dtype_attr(hl_dtype dtype);
/* An attribute that is an axis of the shape: made non-negative. */
hl_status hl_check_axis(const hl_shape *shape, int64_t *axis);
/* A list of axes of the shape: made non-negative, sorted, checked for twins; none means all. */
hl_status hl_check_axes(const hl_shape *shape, hl_ints *axes);

#endif
