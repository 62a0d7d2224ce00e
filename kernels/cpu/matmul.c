/* Matrix products of float32 by the GEMM core (gemm.h). */
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/gemm.h"

#define ELEMENT         float
#define WORD            float
#define GEMM            hl_gemm
#define GEMM_TN         hl_gemm_tn
#define GEMM_CALL(name) hl_gemm_##name
#define KERNEL(name)    HL_CPU_NAME(name)
#define KERNELS         HL_ISA_NAME(hl_cpu_matmul_kernels)

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

static hl_gemm make_gemm(int64_t n, int64_t k, int64_t a_row, int64_t a_col)
{
    return (hl_gemm){.n = n, .k = k, .a_row = a_row, .a_col = a_col, .ldc = n, .alpha = 1};
}

static hl_gemm_tn make_gemm_tn(int64_t m, int64_t n, int64_t k)
{
    return (hl_gemm_tn){.m = m, .n = n, .k = k, .lda = m, .ldb = n, .ldc = n, .alpha = 1};
}

static void pack_panels(const hl_matmul_pack *pack, const void *b, int64_t begin, int64_t end,
                        void *packed)
{
    hl_gemm_pack(pack->K, pack->N, b, pack->row_stride, pack->col_stride, begin, end, packed);
}

#include "kernels/cpu/matmul_nodes.h"
