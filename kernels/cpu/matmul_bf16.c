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

static bool takes(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype == (i < 2 ? HL_DTYPE_BF16 : HL_DTYPE_F32)) continue;
        hl_reason_set(out_why_not, "needs bfloat16 and a float32 bias, got %s",
                      hl_dtype_name(dtype));
        return false;
    }
    if (hl_node_out_type(graph, node, 0)->dtype == HL_DTYPE_F32) return true;
    hl_reason_set(out_why_not, "gives float32, asked for bfloat16");
    return false;
}

static bool takes_pack(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    hl_dtype from = hl_node_in_type(graph, node, 0)->dtype,
             to = hl_node_out_type(graph, node, 0)->dtype;
    if (to == HL_DTYPE_BF16 && (from == HL_DTYPE_BF16 || from == HL_DTYPE_F32)) return true;
    hl_reason_set(out_why_not, "packs bfloat16, got %s", hl_dtype_name(to));
    return false;
}

#include "kernels/cpu/matmul_nodes.h"

#endif
