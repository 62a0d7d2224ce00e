/* Weight gradients of convolutions of bfloat16 on processors with AVX512_BF16 (see matmul_bf16.c);
 * results are float32. What these kernels refuse is lowered. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/taps.h"

#if HL_ISA_AVX512

#define TYPE         (&hl_gemm_bf16)
#define DTYPE        HL_DTYPE_BF16
#define ELEMENT      uint16_t
#define KERNEL(name) "cpu." name ".avx512bf16"
#define KERNELS      hl_cpu_conv_weight_bf16_kernels_avx512

static const double NS_PER_MAC = 0.0125;
enum { TILE_IN = 320 };

#include "kernels/cpu/conv_weight_nodes.h"

#endif
