/* Attention as cuDNN describes it. */
#ifndef HL_KERNELS_CUDA_DNN_ATTENTION_H
#define HL_KERNELS_CUDA_DNN_ATTENTION_H

#include "kernels/cuda/dnn_plans.h"

enum { HL_DNN_ATTENTION_OLDEST = 80 }; /* sm_80 */
/* Tensors of a graph: argument i of the node has the unique id 1 + i. Behind them what is given by
 * value: the scale of scores, and what those get that causality hides. */
enum { HL_DNN_ATTENTION_ARGS = 9, HL_DNN_SCALE = 20, HL_DNN_HIDDEN };

/* No pointers, so that equal ones have equal texts; scale, which is not asked about, apart. */
typedef struct hl_dnn_attention {
    bool is_grad, is_causal;
    int64_t B, H, Hk, L, S, E, Ev;
    cudnnDataType_t type;
    uint32_t align[HL_DNN_ATTENTION_ARGS];
    float scale;
} hl_dnn_attention;

/* False and the reason: cuDNN has no such attention, or hotloop does not ask for it. */
bool hl_dnn_attention_make(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_dnn_attention *out_attention, hl_reason *out_why_not);
/* It lasts as long as the attention does. */
hl_dnn_question hl_dnn_attention_question(hl_device *device, const hl_dnn_attention *attention);
/* Where its tensors lie, of a node's arguments. */
hl_dnn_places hl_dnn_attention_places(const hl_dnn_attention *attention, void *const *args);

#endif
