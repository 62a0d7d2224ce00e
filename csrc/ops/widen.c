/* Lowering of ops whose kernels take no 16-bit floats: as norms and losses under mixed precision,
 * they compute in float32, and their results are rounded. */
#include "ops/build.h"
#include "ops/ops.h"

enum { MOST_OPERANDS = 12 };

hl_status hl_lower_widened(hl_graph *graph, hl_node_id id, hl_id *out_values)
{
    hl_node node = graph->nodes[id];
    hl_id in[MOST_OPERANDS], out;
    bool is_widened = false;
    for (int32_t i = 0; i < node.n_in; i++) {
        hl_dtype dtype = hl_graph_dtype(graph, node.in[i]);
        bool is_16_bit = hl_dtype_is_16_bit(dtype);
        is_widened |= is_16_bit;
        in[i] = node.in[i];
        if (is_16_bit) HL_TRY(hl_build_cast(graph, in[i], HL_DTYPE_F32, &in[i]));
    }
    if (!is_widened)
        return hl_status_set(HL_ERROR_DEVICE, "%s: the device must have a kernel, got none for %s",
                             hl_op_get(node.op)->name,
                             hl_dtype_name(hl_graph_dtype(graph, node.in[0])));
    HL_TRY(hl_graph_add(graph, node.op, in, node.n_in, &node.attrs, &out));
    for (int32_t j = 0; j < node.n_out; j++)
        HL_TRY(hl_build_cast(graph, out + j, hl_graph_dtype(graph, node.out + j), &out_values[j]));
    return HL_OK;
}
