/* Recurrences whose products are of bfloat16, on processors with AVX512_BF16 (see matmul_bf16.c);
 * all else is float32. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"

#if HL_ISA_AVX512

#define TYPE         (&hl_gemm_bf16)
#define DTYPE        HL_DTYPE_BF16
#define ELEMENT      uint16_t
#define KERNEL(name) "cpu." name ".avx512bf16"
#define KERNELS      hl_cpu_recurrence_bf16_kernels_avx512

static const double NS_PER_MAC = 0.0125;

HL_SIMD void store_terms(uint16_t *to, hl_v a, int64_t lanes)
{
    if (lanes == HL_VL)
        hl_v_store_bf16(to, a);
    else
        hl_v_store_bf16_n(to, a, lanes);
}

#include "kernels/cpu/recurrence_nodes.h"

#endif
