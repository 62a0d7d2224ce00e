/* Matrix products of float32 by the GEMM core (gemm.h). */
#include "kernels/cpu/matmul.h"

#define TYPE         (&hl_gemm_f32)
#define DTYPE        HL_DTYPE_F32
#define KERNEL(name) HL_CPU_NAME(name)
#define KERNELS      HL_ISA_NAME(hl_cpu_matmul_kernels)

/* An AVX-512 core gets through 30 to 60 in a nanosecond on matrices of these sizes. */
static const double NS_PER_MAC = 0.025;

static bool takes(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    for (int i = 0; i < node->n_in; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype == HL_DTYPE_F32) continue;
        hl_reason_set(out_why_not, "needs float32, got %s", hl_dtype_name(dtype));
        return false;
    }
    return true;
}

static bool takes_pack(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    hl_dtype to = hl_node_out_type(graph, node, 0)->dtype;
    if (!takes(graph, node, out_why_not)) return false;
    if (to == HL_DTYPE_F32) return true;
    hl_reason_set(out_why_not, "packs float32, asked for %s", hl_dtype_name(to));
    return false;
}

#include "kernels/cpu/matmul_nodes.h"
