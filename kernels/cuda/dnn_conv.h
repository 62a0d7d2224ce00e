/* A convolution as cuDNN describes it. */
#ifndef HL_KERNELS_CUDA_DNN_CONV_H
#define HL_KERNELS_CUDA_DNN_CONV_H

#include "ir/window.h"
#include "kernels/cuda/dnn_plans.h"

/* Tensors of a graph; their numbers are their unique ids. The three of the convolution stand in the
 * order of the node's operands and its result; then the sums that it makes, and what its steps
 * read. */
enum { HL_DNN_FIRST = 1, HL_DNN_SECOND, HL_DNN_RESULT, HL_DNN_SUMS, HL_DNN_SQUARES, HL_DNN_BESIDE };
enum { HL_DNN_STEPS = 5, HL_DNN_TENSORS = HL_DNN_BESIDE + HL_DNN_STEPS };

/* Pointwise work behind the convolution. */
typedef struct hl_dnn_step {
    cudnnPointwiseMode_t mode;
    int arg;          /* number in args of what it reads; -1: nothing */
    bool per_channel; /* that is one number for each channel */
    cudnnDataType_t type;
    uint32_t align;
} hl_dnn_step;

/* No pointers but to constants, so that equal convolutions have equal texts. Channels stand last;
 * the weight lies as (O,kernel,C/groups), which is torch's order where it has one tap or channel.
 */
typedef struct hl_dnn_conv {
    hl_op op; /* CONV, CONV_TRANSPOSE or CONV_WEIGHT_GRAD */
    hl_conv conv;
    int64_t after[HL_WINDOW_DIMS]; /* padding behind */
    cudnnDataType_t operand, result;
    bool tf32;
    bool widens; /* the node's result is float32, made from what the library rounds to 16 bits */
    uint32_t align[3]; /* of both operands and the result */
    int n_steps;
    hl_dnn_step step[HL_DNN_STEPS];
    bool has_sums;          /* it gives the sums of its channels and of their squares, in float32 */
    const char *activation; /* as of hl_problem */
    int64_t apart_bytes;
    int n_own; /* steps that are not of programs but the op's: its bias */
} hl_dnn_conv;

/* The fusions that convolutions take (hl_kernel.fusions). */
extern const char *const hl_dnn_fusions[];

/* False and the reason: cuDNN has no such convolution. A node whose channels stand second is
 * described as it will be when they stand last. */
bool hl_dnn_conv_make(hl_device *device, const hl_graph *graph, hl_node_id node,
                      hl_dnn_conv *out_conv, hl_reason *out_why_not);
/* The convolution without the programs that its node carries. */
hl_dnn_conv hl_dnn_conv_bare(const hl_dnn_conv *conv);
/* The tensor that lies in scratch in a form of the library's own, the weight; -1: none does. */
int hl_dnn_conv_packed(const hl_dnn_conv *conv);
int64_t hl_dnn_conv_weight_bytes(const hl_dnn_conv *conv);
int64_t hl_dnn_conv_sums_bytes(const hl_dnn_conv *conv);
/* It lasts as long as the convolution does. */
hl_dnn_question hl_dnn_conv_question(hl_device *device, const hl_dnn_conv *conv);

#endif
