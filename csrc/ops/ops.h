/* The functions that ops.def names, one file per family. Contracts are in ir/op.h: this list exists
 * so that the compiler holds the table and the families together. */
#ifndef HL_OPS_OPS_H
#define HL_OPS_OPS_H

#include "ir/op.h"

#define HL_INFER(name)                                                                             \
    hl_status hl_infer_##name(const hl_graph *graph, hl_node *node, hl_type *out_types)
#define HL_VJP(name)                                                                               \
    hl_status hl_vjp_##name(hl_graph *graph, hl_node_id id, const hl_id *dout, const bool *need,   \
                            hl_id *din)
#define HL_LOWER(name) hl_status hl_lower_##name(hl_graph *graph, hl_node_id id, hl_id *out_values)

#define HL_COST(name) hl_cost hl_cost_##name(const hl_graph *graph, const hl_node *node)
#define HL_PERMUTE(name)                                                                           \
    bool hl_permute_##name(const hl_graph *graph, const hl_node *node, const hl_ints *dims,        \
                           hl_attrs *attrs, hl_ints *out_dims)
#define HL_CHANNELS(name)                                                                          \
    bool hl_channels_##name(const hl_graph *graph, const hl_node *node, int *out_result_dim,       \
                            int *out_weight_dim)

#define HL_FAULT(name)                                                                             \
    void hl_fault_##name(const hl_graph *graph, const hl_node *node, int64_t row, int64_t value,   \
                         char *out_text, size_t bytes)

/* cost.c; bytes: of operands and results alone */
HL_COST(bytes);
HL_COST(matmul);
HL_COST(reduce);
HL_COST(picked);
HL_COST(written);
HL_COST(none);
HL_COST(program);

/* widen.c */
HL_LOWER(widened);

/* permute.c */
HL_PERMUTE(same);
HL_PERMUTE(axes);
HL_PERMUTE(pads);
HL_PERMUTE(reduce);

/* pointwise.c */
HL_INFER(pointwise);
HL_INFER(cast);

/* pointwise_grad.c */
#define HL_PW(id, name, n, result, flags, vjp, ...) vjp
#define HL_PW_CAST(id, name, attrs, vjp, ...)       vjp
#define HL_PW_VJP(rule)                             HL_VJP(rule);
#define HL_PW_NO_VJP
#include "ir/pointwise.def"
#undef HL_PW_VJP
#undef HL_PW_NO_VJP

/* random.c */
HL_INFER(random);

/* matmul.c */
HL_INFER(matmul);
HL_INFER(matmul_pack);
HL_INFER(matmul_packed);
HL_VJP(matmul);
HL_LOWER(matmul);
HL_CHANNELS(matmul);

/* conv.c */
HL_INFER(conv);
HL_INFER(conv_transpose);
HL_INFER(conv_weight_grad);
HL_VJP(conv);
HL_VJP(conv_transpose);
HL_LOWER(conv);
HL_COST(conv);
HL_PERMUTE(channels);
HL_CHANNELS(conv);

/* unfold.c */
HL_INFER(unfold);
HL_INFER(fold);
HL_VJP(unfold);
HL_VJP(fold);

/* pool.c */
HL_INFER(max_pool);
HL_INFER(max_pool_index);
HL_INFER(max_pool_grad);
HL_VJP(max_pool);
HL_COST(pool);

/* resample.c */
HL_INFER(resample);
HL_VJP(resample);
HL_COST(resample);

/* reduce.c */
HL_INFER(reduce);
HL_INFER(prod_grad);
HL_INFER(argreduce);
HL_INFER(median);
HL_INFER(moments);
HL_INFER(scan);
HL_VJP(sum);
HL_VJP(prod);
HL_VJP(extreme);
HL_VJP(median);
HL_VJP(moments);
HL_VJP(cumsum);
HL_LOWER(reduce);
HL_LOWER(prod_grad);

/* sort.c */
HL_INFER(sort);
HL_INFER(searchsorted);
HL_VJP(sort);

/* softmax.c */
HL_INFER(softmax);
HL_INFER(softmax_grad);
HL_VJP(softmax);
HL_VJP(log_softmax);

/* loss.c */
HL_INFER(cross_entropy);
HL_INFER(cross_entropy_grad);
HL_VJP(cross_entropy);

/* ctc.c */
HL_INFER(ctc_loss);
HL_INFER(ctc_loss_grad);
HL_VJP(ctc_loss);
HL_COST(ctc);
HL_FAULT(ctc_loss);

/* linalg.c */
HL_INFER(cholesky);
HL_INFER(triangular_solve);
HL_VJP(cholesky);
HL_VJP(triangular_solve);
HL_COST(cholesky);
HL_COST(triangular_solve);
HL_FAULT(cholesky);
HL_FAULT(triangular_solve);

/* stat.c */
HL_INFER(channel_statistics);
HL_COST(channel_statistics);

/* deformable.c */
HL_INFER(deformable);
HL_INFER(deformable_grad);
HL_VJP(deformable);
HL_COST(deformable);
enum { HL_DEFORMABLE_SIDE = 1 << 24 }; /* what float32 counts */

/* attention.c */
HL_INFER(attention);
HL_INFER(attention_grad);
HL_VJP(attention);
HL_LOWER(attention);
HL_LOWER(attention_grad);
HL_COST(attention);
HL_COST(attention_grad);

/* recurrence.c */
HL_INFER(recurrence);
HL_INFER(recurrence_grad);
HL_VJP(recurrence);
HL_LOWER(recurrence);
HL_LOWER(recurrence_grad);
HL_COST(recurrence);
HL_FAULT(recurrence);

/* recurrent.c */
HL_INFER(recurrent_layer);
HL_INFER(recurrent_layer_grad);
HL_VJP(recurrent_layer);
HL_LOWER(recurrent_layer);
HL_LOWER(recurrent_layer_grad);
HL_COST(recurrent_layer);

/* view.c */
HL_INFER(same);
HL_INFER(reshape);
HL_INFER(permute);
HL_INFER(expand);
HL_INFER(concat);
HL_INFER(write_parts);
HL_INFER(slice);
HL_INFER(slice_grad);
HL_INFER(slice_add);
HL_INFER(split);
HL_INFER(surrogate);
HL_INFER(pad);
HL_INFER(pad_grad);
HL_INFER(flip);
HL_VJP(reshape);
HL_VJP(permute);
HL_VJP(expand);
HL_VJP(concat);
HL_VJP(slice);
HL_VJP(split);
HL_VJP(surrogate);
HL_LOWER(split);
HL_LOWER(surrogate);
HL_VJP(pad);
HL_VJP(flip);

/* index.c */
HL_INFER(gather);
HL_INFER(scatter);
HL_INFER(index_select);
HL_INFER(index_write);
HL_INFER(batch_gather);
HL_VJP(gather);
HL_VJP(scatter);
HL_VJP(scatter_add);
HL_VJP(index_select);
HL_VJP(index_add);
HL_VJP(index_copy);

/* norm.c */
HL_INFER(batch_norm);
HL_INFER(batch_norm_grad);
HL_INFER(layer_norm);
HL_INFER(layer_norm_grad);
HL_VJP(batch_norm);
HL_VJP(layer_norm);
HL_LOWER(batch_norm);
HL_LOWER(batch_norm_grad);
HL_LOWER(layer_norm);

/* control.c */
HL_INFER(control);
HL_INFER(update);

/* optim.c */
HL_INFER(gradient_norm);
HL_INFER(optimizer);
HL_LOWER(gradient_norm);

/* Elements of a packed (K, N) matrix: room for panels of 8, 16 or 32 columns, K rounded up to pairs
 * (a device whose order needs more says no to MATMUL_PACK). */
int64_t hl_matmul_packed_elements(int64_t k, int64_t n);

#endif
