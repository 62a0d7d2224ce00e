/* Elements from one dtype to another, on the host: for what enters a session or a slot, or is read
 * from them. */
#ifndef HL_IR_CONVERT_H
#define HL_IR_CONVERT_H

#include "ir/dtype.h"

/* Float to integer truncates and saturates; NaN gives 0. */
void hl_convert(hl_dtype dst_dtype, void *dst, hl_dtype src_dtype, const void *src, int64_t n);

#endif
