/* Convolutions of each channel by itself, of float32. */
#include "ir/window.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/moments.h"

#define DTYPE        HL_DTYPE_F32
#define ELEMENT      float
#define LOAD(p, n)   hl_row_load(p, n)
#define TO_FLOAT(x)  (x)
#define KERNEL(name) HL_CPU_NAME(name)
#define KERNELS      HL_ISA_NAME(hl_cpu_depthwise_kernels)

#include "kernels/cpu/depthwise_nodes.h"
