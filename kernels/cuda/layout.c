/* Layouts from shapes and strides. */
#include "kernels/cuda/layout.h"

_Static_assert((int)HL_CUDA_RANK == (int)HL_MAX_RANK, "a layout holds every shape");

void hl_cuda_strides(const hl_shape *shape, int64_t *out_stride)
{
    int64_t step = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        out_stride[d] = step;
        step *= shape->dim[d];
    }
}

hl_cuda_layout hl_cuda_layout_make(const hl_shape *shape, const int64_t *stride)
{
    hl_cuda_layout layout = {.n = hl_shape_numel(shape)};
    if (layout.n > 0) layout.rank = hl_shape_merge(shape, stride, layout.dim, layout.stride);
    return layout;
}

hl_cuda_layout hl_cuda_layout_broadcast(const hl_shape *shape, const hl_shape *x)
{
    int64_t own[HL_MAX_RANK], stride[HL_MAX_RANK] = {0};
    int lead = shape->rank - x->rank;
    hl_cuda_strides(x, own);
    for (int d = 0; d < x->rank; d++) stride[lead + d] = x->dim[d] == 1 ? 0 : own[d];
    return hl_cuda_layout_make(shape, stride);
}

bool hl_cuda_layout_is_whole(const hl_cuda_layout *layout)
{
    return layout->rank == 0 || (layout->rank == 1 && layout->stride[0] == 1);
}
