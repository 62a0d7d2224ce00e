/* What products of bfloat16 take, by vectors (matmul_bf16.c) and by tiles (matmul_amx.c): results
 * are float32. */
#ifndef HL_KERNELS_CPU_MATMUL_BF16_H
#define HL_KERNELS_CPU_MATMUL_BF16_H

#include "kernels/cpu/matmul.h"

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

#endif
