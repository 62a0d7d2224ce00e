/* An index out of range, from a kernel: the control block's error word keeps the first one, as
 * hl_launch_fault does on the host. */
#ifndef HL_CUDA_FAULT_H
#define HL_CUDA_FAULT_H

#include "ir/control.h"
#include "ir/dtype.h"
#include "kernels/cuda/prim.h"

/* fault: the launch's error word, hl_control_fault. control may be NULL. Of several threads one
 * wins. */
HL_DEVICE void hl_fault_set(hl_control *control, int64_t fault, int64_t row, int64_t value)
{
    if (!control || hl_atomic_cas(&control->error_code, 0, fault) != 0) return;
    control->error_row = row;
    control->error_value = value;
}

/* Element i of an array of integers or bools. */
HL_DEVICE int64_t hl_read_int(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)p)[i];
    case HL_DTYPE_I32: return ((const int32_t *)p)[i];
    case HL_DTYPE_I16: return ((const int16_t *)p)[i];
    case HL_DTYPE_I8: return ((const int8_t *)p)[i];
    case HL_DTYPE_BOOL: return ((const uint8_t *)p)[i] != 0;
    default: return ((const uint8_t *)p)[i];
    }
}

/* The segment's guard (ir/control.h). */
HL_DEVICE bool hl_is_blocked(const hl_control *control, int is_apply)
{
    return is_apply ? hl_control_blocks_apply(control) : hl_control_blocks_micro(control);
}

#endif
