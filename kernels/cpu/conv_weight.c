/* Weight gradients of convolutions of float32 by the GEMM core. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/taps.h"

#define TYPE         (&hl_gemm_f32)
#define DTYPE        HL_DTYPE_F32
#define ELEMENT      float
#define KERNEL(name) HL_CPU_NAME(name)
#define KERNELS      HL_ISA_NAME(hl_cpu_conv_weight_kernels)

static const double NS_PER_MAC = 0.025;
enum { TILE_IN = 320 };

#include "kernels/cpu/conv_weight_nodes.h"
