/* Convolutions of bfloat16 on processors with AMX (see matmul_amx.c). */
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/taps.h"

#if HL_ISA_AVX512

#define TYPE         (&hl_gemm_amx)
#define DTYPE        HL_DTYPE_BF16
#define ELEMENT      uint16_t
#define KERNEL(name) "cpu." name ".amx"
#define KERNELS      hl_cpu_conv_amx_kernels_avx512

static const double NS_PER_MAC = 0.002;

#include "kernels/cpu/conv_nodes.h"

#endif
