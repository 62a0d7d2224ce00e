/* Shapes: at most eight dims, row-major and contiguous everywhere; rank 0 is a scalar. */
#ifndef HL_IR_SHAPE_H
#define HL_IR_SHAPE_H

#include <stdbool.h>

#include "base/status.h"

enum { HL_MAX_RANK = 8 };

typedef struct hl_shape {
    int32_t rank;
    int64_t dim[HL_MAX_RANK];
} hl_shape;

/* Elements; only for shapes that passed hl_shape_check. */
int64_t hl_shape_numel(const hl_shape *shape);
/* Product of dims [begin, end). */
int64_t hl_shape_span(const hl_shape *shape, int begin, int end);
/* The shape as (O,N,I): the elements along the ascending axes (none: all dims), before and behind
 * them. False when the axes are not neighbours; dims of 1 between them do not count. */
bool hl_shape_split(const hl_shape *shape, const int64_t *axes, int n_axes, int64_t *out_O,
                    int64_t *out_N, int64_t *out_I);
/* HL_ERROR_SHAPE when a dim is negative or the elements times 8 bytes overflow int64. `what` stands
 * in front of the message, here and below; NULL: nothing does. */
hl_status hl_shape_check(const hl_shape *shape, const char *what);
bool hl_shape_equal(const hl_shape *a, const hl_shape *b);
/* NumPy broadcasting; HL_ERROR_SHAPE names both shapes; the result is checked. */
hl_status hl_shape_broadcast(const hl_shape *a, const hl_shape *b, const char *what,
                             hl_shape *out_shape);
/* -rank <= axis < rank to 0 <= axis < rank. */
hl_status hl_shape_axis(const hl_shape *shape, int64_t axis, const char *what, int *out_axis);
/* Row-major strides of the shape's own dims, in elements. */
void hl_shape_strides(const hl_shape *shape, int64_t *out_stride);
/* Strides in the operand of the dims of the shape that it is broadcast to: 0 where it repeats. */
void hl_shape_broadcast_strides(const hl_shape *shape, const hl_shape *operand,
                                int64_t *out_stride);
/* The shape's elements in their order, at these strides, in as few dims as possible: dims of one
 * element are left out, and neighbours become one dim where the outer stride is the inner one times
 * the inner dim (both 0 included). Strides may be 0 or negative. Returns the number of dims
 * written, 0 for one element. */
int32_t hl_shape_merge(const hl_shape *shape, const int64_t *stride, int64_t *out_dim,
                       int64_t *out_stride);
/* "(2, 3)", "(2,)", "()"; text has room for HL_SHAPE_TEXT bytes. Returns text. */
enum { HL_SHAPE_TEXT = 192 };
const char *hl_shape_format(const hl_shape *shape, char *text);

static inline hl_shape hl_shape_make(int32_t rank, const int64_t *dim)
{
    hl_shape shape = {rank, {0}};
    for (int32_t i = 0; i < rank; i++) shape.dim[i] = dim[i];
    return shape;
}
/* Variables, no compound literals: C++ has none, and CUDA kernels include this header too. */
static inline hl_shape hl_shape_scalar(void)
{
    hl_shape shape = {0, {0}};
    return shape;
}
static inline hl_shape hl_shape_1d(int64_t n)
{
    hl_shape shape = {1, {n}};
    return shape;
}
static inline hl_shape hl_shape_2d(int64_t rows, int64_t cols)
{
    hl_shape shape = {2, {rows, cols}};
    return shape;
}

#endif
