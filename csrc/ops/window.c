/* Checks of sliding windows. */
#include "ops/window.h"

static hl_status check_list(hl_ints *list, int32_t n, int64_t missing, const char *what)
{
    if (list->n == 0) {
        list->n = n;
        for (int32_t d = 0; d < n; d++) list->at[d] = missing;
    }
    if (list->n != n)
        return hl_status_set(HL_ERROR_SHAPE, "%s must have %d numbers, got %d", what, (int)n,
                             (int)list->n);
    for (int32_t d = 0; d < n; d++)
        if (list->at[d] < missing || list->at[d] > HL_WINDOW_MAX)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "%s must be at least %lld and less than 2**31, "
                                 "got %lld",
                                 what, (long long)missing, (long long)list->at[d]);
    return HL_OK;
}

hl_status hl_check_window(int32_t n, hl_ints *stride, hl_ints *dilation, hl_ints *before,
                          hl_ints *after)
{
    if (n < 1 || n > HL_WINDOW_DIMS)
        return hl_status_set(HL_ERROR_SHAPE,
                             "the input must have 1 to %d spatial dims behind "
                             "batch and channels, got %d",
                             HL_WINDOW_DIMS, (int)n);
    HL_TRY(check_list(stride, n, 1, "stride"));
    HL_TRY(check_list(dilation, n, 1, "dilation"));
    HL_TRY(check_list(before, n, 0, "padding"));
    return check_list(after, n, 0, "padding");
}

hl_status hl_count_windows(const hl_ints *in, const hl_ints *kernel, const hl_ints *stride,
                           const hl_ints *dilation, const hl_ints *before, const hl_ints *after,
                           hl_ints *out_dims)
{
    out_dims->n = in->n;
    for (int32_t d = 0; d < in->n; d++) {
        if (kernel->at[d] < 1 || kernel->at[d] > HL_WINDOW_MAX)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "the kernel must be at least 1 and less than "
                                 "2**31, got %lld",
                                 (long long)kernel->at[d]);
        /* Each is below 2**62: a shape's elements, 8 bytes each, fit int64. */
        int64_t span = dilation->at[d] * (kernel->at[d] - 1) + 1;
        int64_t padded = in->at[d] + before->at[d] + after->at[d];
        if (span > padded)
            return hl_status_set(HL_ERROR_SHAPE,
                                 "the kernel must fit into the padded input along "
                                 "spatial dim %d, got a span of %lld of %lld",
                                 (int)d, (long long)span, (long long)padded);
        out_dims->at[d] = (padded - span) / stride->at[d] + 1;
    }
    return HL_OK;
}

hl_shape hl_spatial_shape(int64_t n, int64_t channels, const hl_ints *dims, bool channels_last)
{
    hl_shape shape = {.rank = dims->n + 2, .dim = {n}};
    shape.dim[hl_channel_dim(&shape, channels_last)] = channels;
    for (int32_t d = 0; d < dims->n; d++)
        shape.dim[hl_first_spatial(channels_last) + d] = dims->at[d];
    return shape;
}
