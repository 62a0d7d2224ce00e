/* A recurrent layer as cuDNN describes it. */
#ifndef HL_KERNELS_CUDA_DNN_RECURRENT_H
#define HL_KERNELS_CUDA_DNN_RECURRENT_H

#include <stdatomic.h>

#include "ir/recurrence.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/tune.h"

/* No pointers, so that equal ones have equal texts. */
typedef struct hl_dnn_recurrent {
    bool is_training; /* something is kept for a gradient */
    bool has_bias, has_state_bias, has_projection, tf32;
    hl_cell cell;
    int64_t N, T, I, H, P, G;
    cudnnDataType_t type;
} hl_dnn_recurrent;

/* Weights by what they are; pieces of them lie in the library's weight space, bytes [at, at +
 * bytes) there being bytes [from, from + bytes) of the weight. */
enum { HL_DNN_W_IH, HL_DNN_W_HH, HL_DNN_BIAS, HL_DNN_STATE_BIAS, HL_DNN_W_HR, HL_DNN_WEIGHTS };
typedef struct hl_dnn_piece {
    int of;
    size_t from, at, bytes;
} hl_dnn_piece;

enum { HL_DNN_RECURRENT_ALGOS = 4, HL_DNN_PIECES = 4 * HL_DNN_WEIGHTS };
typedef struct hl_dnn_recurrent_algo {
    const char *name;
    cudnnRNNDescriptor_t desc;
    size_t weight_bytes, work_bytes, reserve_bytes;
    int n_pieces;
    hl_dnn_piece piece[HL_DNN_PIECES];
    _Atomic bool is_probed; /* a launch of it was captured */
} hl_dnn_recurrent_algo;

enum { HL_DNN_LAYER_TEXT = HL_PROBLEM_TEXT + 32 };
/* What the library said of one, kept as long as the device. A forward kernel's reserve is its
 * algorithm's own, so that the layer, not a node, has chosen one. */
typedef struct hl_dnn_layer {
    char text[HL_DNN_LAYER_TEXT];
    hl_dnn_recurrent of;
    cudnnStatus_t status; /* of the last algorithm that it has not */
    cudnnDropoutDescriptor_t dropout;
    cudnnRNNDataDescriptor_t x, y;
    cudnnTensorDescriptor_t h, c;
    int n;
    hl_dnn_recurrent_algo algo[HL_DNN_RECURRENT_ALGOS];
    size_t weight_bytes, work_bytes, reserve_bytes; /* what the one takes that wants most */
    _Atomic int chosen;                             /* -1: none yet */
} hl_dnn_layer;

/* False and the reason: cuDNN has no such layer, or hotloop does not ask for it. */
bool hl_dnn_recurrent_make(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_dnn_recurrent *out_recurrent, hl_reason *out_why_not);
hl_problem hl_dnn_recurrent_problem(hl_device *device, const hl_dnn_recurrent *recurrent);
/* HL_ERROR_CONFIG and the reason: the library has no algorithm for it, or tuning has found that it
 * may not be taken. all: every algorithm, else the first that there is. */
hl_status hl_dnn_layer_find(hl_device *device, const hl_dnn_recurrent *recurrent,
                            bool deterministic, bool all, hl_dnn_layer **out_layer,
                            hl_reason *out_why_not);

/* Where everything lies; c0, c and their gradients NULL: it has no cells. */
typedef struct hl_dnn_layer_args {
    const void *x, *h0, *c0;
    const int32_t *lengths;
    void *out, *h, *c;
    void *weights, *reserve, *work;
    const void *dout, *dh, *dc;
    void *dx, *dh0, *dc0, *dweights;
} hl_dnn_layer_args;
/* Queue an algorithm. out_refused: the library did not take it. */
hl_status hl_dnn_layer_forward(hl_device *device, const hl_dnn_layer *layer, int which,
                               const hl_dnn_layer_args *args, hl_stream *stream, bool *out_refused);
/* Behind it. dweights hold 0 before; the reserve is spent. */
hl_status hl_dnn_layer_backward(hl_device *device, const hl_dnn_layer *layer, int which,
                                const hl_dnn_layer_args *args, hl_stream *stream,
                                bool *out_refused);

#endif
