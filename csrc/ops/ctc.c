/* Connectionist temporal classification (Graves et al. 2006): the loss of a sequence of log
 * probabilities whose targets are known but not when each of them comes.
 *
 * Targets l_1 ... l_U stand between blanks: blank, l_1, blank, ..., l_U, blank. A beginning is how
 * far of these 2 U + 1 an alignment has come at a time. Their probabilities are kept for the
 * gradient, as logarithms and in float32 or wider whatever the operands are: the loss is read from
 * the last ones, so a rounded loss costs the gradient nothing.
 *
 * The gradient is torch's: that of what log softmax was taken of, e^log_probs minus the
 * probability of each class at each time over all alignments. The gradient of log softmax leaves
 * it as it is, since it adds up to 0 at each time. */
#include <stdio.h>

#include "ops/check.h"
#include "ops/ops.h"

/* Log probabilities, targets and both lengths stand at `first` and after it. */
static hl_status check_operands(const hl_graph *graph, const hl_node *node, int first,
                                hl_type *out_paths)
{
    static const char *const lengths[] = {"the input lengths", "the target lengths"};
    const hl_type *log_probs = hl_node_in_type(graph, node, first);
    const hl_type *targets = hl_node_in_type(graph, node, first + 1);
    HL_TRY(hl_check_float(log_probs, "log_probs"));
    HL_TRY(hl_check_rank_exactly(log_probs, 3, "log_probs"));
    HL_TRY(hl_check_integer(targets, "the targets"));
    HL_TRY(hl_check_rank_exactly(targets, 2, "the targets"));
    int64_t T = log_probs->shape.dim[0], N = log_probs->shape.dim[1], C = log_probs->shape.dim[2];
    int64_t S = targets->shape.dim[1], blank = hl_ctc_attrs(node)->blank;
    hl_shape rows = hl_shape_1d(N), want = hl_shape_2d(N, S);
    HL_TRY(hl_check_shape(targets, &want, "the targets"));
    for (int i = 0; i < 2; i++) {
        const hl_type *length = hl_node_in_type(graph, node, first + 2 + i);
        HL_TRY(hl_check_integer(length, lengths[i]));
        HL_TRY(hl_check_shape(length, &rows, lengths[i]));
    }
    if (blank < 0 || blank >= C)
        return hl_status_set(HL_ERROR_CONFIG,
                             "blank must be a class, at least 0 and below %lld, got %lld",
                             (long long)C, (long long)blank);
    if (S > (INT32_MAX - 1) / 2)
        return hl_status_set(HL_ERROR_SHAPE, "there must be at most %d targets, got %lld",
                             (INT32_MAX - 1) / 2, (long long)S);
    hl_dtype own = log_probs->dtype == HL_DTYPE_F64 ? HL_DTYPE_F64 : HL_DTYPE_F32;
    *out_paths = (hl_type){own, {3, {N, T, 2 * S + 1}}};
    return HL_OK;
}

hl_status hl_infer_ctc_loss(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    HL_TRY(check_operands(graph, node, 0, &out_types[1]));
    const hl_type *log_probs = hl_node_in_type(graph, node, 0);
    out_types[0] = (hl_type){log_probs->dtype, hl_shape_1d(log_probs->shape.dim[1])};
    return HL_OK;
}

/* In: dloss, log_probs, targets, both lengths, beginnings. */
hl_status hl_infer_ctc_loss_grad(const hl_graph *graph, hl_node *node, hl_type *out_types)
{
    hl_type paths;
    HL_TRY(check_operands(graph, node, 1, &paths));
    const hl_type *log_probs = hl_node_in_type(graph, node, 1);
    hl_type loss = {log_probs->dtype, hl_shape_1d(log_probs->shape.dim[1])};
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 0), &loss, "the loss' gradient"));
    HL_TRY(hl_check_type(hl_node_in_type(graph, node, 5), &paths, "the beginnings"));
    out_types[0] = *log_probs;
    return HL_OK;
}

hl_status hl_vjp_ctc_loss(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,
                          hl_id *din)
{
    if (dout[0] == HL_NONE || !need[0]) return HL_OK;
    const hl_node node = graph->nodes[id];
    hl_id in[] = {dout[0], node.in[0], node.in[1], node.in[2], node.in[3], node.out + 1};
    return hl_graph_add(graph, HL_OP_CTC_LOSS_GRAD, in, 6, &node.attrs, &din[0]);
}

/* Three powers and a logarithm for each beginning. */
hl_cost hl_cost_ctc(const hl_graph *graph, const hl_node *node)
{
    hl_cost cost = hl_cost_bytes(graph, node);
    bool is_grad = node->op == HL_OP_CTC_LOSS_GRAD;
    hl_id paths = is_grad ? node->in[5] : node->out + 1;
    cost.flops = 40 * (double)hl_shape_numel(hl_graph_shape(graph, paths));
    if (is_grad) cost.flops += 10 * (double)hl_shape_numel(hl_graph_shape(graph, node->in[1]));
    return cost;
}

/* row: three times the place in its operand, plus 0 for an input length, 1 for a target length, 2
 * for a target. Of targets one behind another there are as many as the operand is wide, and where
 * their lengths have another sum F.ctc_loss makes each of them INT64_MIN plus that sum. */
void hl_fault_ctc_loss(const hl_graph *graph, const hl_node *node, int64_t row, int64_t value,
                       char *out_text, size_t bytes)
{
    int first = node->op == HL_OP_CTC_LOSS_GRAD;
    const hl_shape *log_probs = &hl_node_in_type(graph, node, first)->shape;
    int64_t T = log_probs->dim[0], C = log_probs->dim[2], place = row / 3;
    int64_t S = hl_node_in_type(graph, node, first + 1)->shape.dim[1];
    if (row % 3 == 2)
        snprintf(out_text, bytes,
                 "a target must be a class, at least 0 and below %lld, and not the blank %lld, got "
                 "%lld at position %lld of row %lld of the batch",
                 (long long)C, (long long)hl_ctc_attrs(node)->blank, (long long)value,
                 (long long)(place % S), (long long)(place / S));
    else if (value < INT64_MIN / 2)
        snprintf(out_text, bytes,
                 "target_lengths must add up to the %lld targets, which stand one behind another, "
                 "got %lld",
                 (long long)S, (long long)(value - INT64_MIN));
    else
        snprintf(
            out_text, bytes,
            "%s_lengths must be at least 0 and at most %lld, got %lld in row %lld of the batch",
            row % 3 ? "target" : "input", (long long)(row % 3 ? S : T), (long long)value,
            (long long)place);
}
