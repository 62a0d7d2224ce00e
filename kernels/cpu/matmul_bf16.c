/* Matrix products of bfloat16 on processors with AVX512_BF16, by the GEMM core (gemm.h). Results
 * are float32 (`float32_out`); what these kernels refuse is lowered to float32.
 *
 * A set of its own, "avx512bf16": the float32 kernels of "avx512" and these before them, so that
 * HOTLOOP_CPU=avx512 gives the bits of any AVX-512 machine. */
#include "kernels/cpu/matmul.h"

#if HL_ISA_AVX512

#define TYPE         (&hl_gemm_bf16)
#define DTYPE        HL_DTYPE_BF16
#define KERNEL(name) "cpu." name ".avx512bf16"
#define KERNELS      hl_cpu_matmul_bf16_kernels_avx512

static const double NS_PER_MAC = 0.0125;

#include "kernels/cpu/matmul_bf16.h"
#include "kernels/cpu/matmul_nodes.h"

#endif
