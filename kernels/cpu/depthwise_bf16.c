/* Convolutions of each channel by itself, of bfloat16: read as floats, computed in float32. */
#include "base/half.h"
#include "ir/window.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/moments.h"

#define DTYPE        HL_DTYPE_BF16
#define ELEMENT      uint16_t
#define LOAD(p, n)   ((n) == HL_VL ? hl_v_load_bf16(p) : hl_v_load_bf16_n(p, n))
#define TO_FLOAT(x)  hl_bf16_to_f32(x)
#define KERNEL(name) HL_CPU_NAME(name ".bf16")
#define KERNELS      HL_ISA_NAME(hl_cpu_depthwise_bf16_kernels)

#include "kernels/cpu/depthwise_nodes.h"
