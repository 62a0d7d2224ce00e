/* Layouts from shapes and strides. */
#include "kernels/cuda/layout.h"

_Static_assert((int)HL_CUDA_RANK == (int)HL_MAX_RANK, "a layout holds every shape");

hl_cuda_layout hl_cuda_layout_make(const hl_shape *shape, const int64_t *stride)
{
    hl_cuda_layout layout = {.n = hl_shape_numel(shape)};
    if (layout.n > 0) layout.rank = hl_shape_merge(shape, stride, layout.dim, layout.stride);
    return layout;
}

hl_cuda_layout hl_cuda_layout_broadcast(const hl_shape *shape, const hl_shape *x)
{
    int64_t stride[HL_MAX_RANK];
    hl_shape_broadcast_strides(shape, x, stride);
    return hl_cuda_layout_make(shape, stride);
}

bool hl_cuda_layout_is_whole(const hl_cuda_layout *layout)
{
    return layout->rank == 0 || (layout->rank == 1 && layout->stride[0] == 1);
}
