/* Recurrences of float32. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"

#define TYPE         (&hl_gemm_f32)
#define DTYPE        HL_DTYPE_F32
#define ELEMENT      float
#define KERNEL(name) HL_CPU_NAME(name)
#define KERNELS      HL_ISA_NAME(hl_cpu_recurrence_kernels)

static const double NS_PER_MAC = 0.025;

HL_SIMD void store_terms(float *to, hl_v a, int64_t lanes)
{
    hl_row_store(to, a, lanes);
}

#include "kernels/cpu/recurrence_nodes.h"
