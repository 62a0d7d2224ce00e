/* What infer functions of ops with sliding windows share: messages as in ops/check.h. */
#ifndef HL_OPS_WINDOW_H
#define HL_OPS_WINDOW_H

#include "ir/window.h"

/* Checks the attributes of a window over n spatial dims and completes empty lists. */
hl_status hl_check_window(int32_t n, hl_ints *stride, hl_ints *dilation, hl_ints *before,
                          hl_ints *after);
/* The spatial dims of the output: how often the kernel fits into the padded input. HL_ERROR_SHAPE
 * where it does not fit once. */
hl_status hl_count_windows(const hl_ints *in, const hl_ints *kernel, const hl_ints *stride,
                           const hl_ints *dilation, const hl_ints *before, const hl_ints *after,
                           hl_ints *out_dims);
/* The first spatial dim of a value, its channel dim, and its spatial dims. */
static inline int hl_first_spatial(bool channels_last)
{
    return channels_last ? 1 : 2;
}
static inline int hl_channel_dim(const hl_shape *shape, bool channels_last)
{
    return channels_last ? shape->rank - 1 : 1;
}
static inline hl_ints hl_spatial_dims(const hl_shape *shape, bool channels_last)
{
    return hl_ints_make(shape->dim + hl_first_spatial(channels_last), shape->rank - 2);
}
/* (n, channels, dims...), or (n, dims..., channels). */
hl_shape hl_spatial_shape(int64_t n, int64_t channels, const hl_ints *dims, bool channels_last);

#endif
