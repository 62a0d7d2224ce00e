/* How operands of a node will be aligned, for libraries that ask at plan time. */
#ifndef HL_KERNELS_CUDA_ALIGNMENT_H
#define HL_KERNELS_CUDA_ALIGNMENT_H

#include "backend/backend.h"

/* What every address that planning may give to a value is a multiple of. */
uint32_t hl_cuda_alignment(const hl_device *device, const hl_graph *graph, hl_id value);

#endif
