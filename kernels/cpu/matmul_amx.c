/* Matrix products of bfloat16 on processors with AMX, by the GEMM core (gemm_amx.c). A set of its
 * own, "amx": the kernels of "avx512bf16" with these in place of its products. */
#include "kernels/cpu/matmul.h"

#if HL_ISA_AVX512

#define TYPE         (&hl_gemm_amx)
#define DTYPE        HL_DTYPE_BF16
#define KERNEL(name) "cpu." name ".amx"
#define KERNELS      hl_cpu_matmul_amx_kernels_avx512

static const double NS_PER_MAC = 0.002;

#include "kernels/cpu/matmul_bf16.h"
#include "kernels/cpu/matmul_nodes.h"

#endif
