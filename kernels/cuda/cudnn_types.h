/* Types and constants of cuDNN, as far as we use them; tests/cuda/driver_check.c holds them against
 * NVIDIA's cudnn.h. Beside that header its own are taken. */
#ifndef HL_KERNELS_CUDA_CUDNN_TYPES_H
#define HL_KERNELS_CUDA_CUDNN_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver_types.h"

#ifndef CUDNN_VERSION
typedef int cudnnStatus_t, cudnnDataType_t, cudnnBackendDescriptorType_t,
    cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, cudnnBackendNumericalNote_t,
    cudnnBackendKnobType_t, cudnnBackendHeurMode_t, cudnnConvolutionMode_t, cudnnPointwiseMode_t,
    cudnnGenStatsMode_t, cudnnRNNAlgo_t, cudnnRNNMode_t, cudnnRNNBiasMode_t, cudnnDirectionMode_t,
    cudnnRNNInputMode_t, cudnnMathType_t, cudnnRNNDataLayout_t, cudnnForwardMode_t,
    cudnnWgradMode_t;
typedef CUstream cudaStream_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef struct cudnnRNNStruct *cudnnRNNDescriptor_t;
typedef struct cudnnRNNDataStruct *cudnnRNNDataDescriptor_t;
#endif

/* name, value */
#define HL_CUDNN_CONSTANTS(C)                                                                      \
    C(CUDNN_STATUS_SUCCESS, 0)                                                                     \
    C(CUDNN_STATUS_NOT_INITIALIZED, 1001)                                                          \
    C(CUDNN_STATUS_BAD_PARAM, 2000)                                                                \
    C(CUDNN_STATUS_NOT_SUPPORTED, 3000)                                                            \
    C(CUDNN_STATUS_INTERNAL_ERROR, 4000)                                                           \
    C(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003)                                    \
    C(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004)                                  \
    C(CUDNN_STATUS_EXECUTION_FAILED, 5000)                                                         \
    C(CUDNN_DATA_FLOAT, 0)                                                                         \
    C(CUDNN_DATA_HALF, 2)                                                                          \
    C(CUDNN_DATA_BFLOAT16, 9)                                                                      \
    C(CUDNN_RNN_ALGO_STANDARD, 0)                                                                  \
    C(CUDNN_RNN_ALGO_PERSIST_STATIC, 1)                                                            \
    C(CUDNN_RNN_ALGO_PERSIST_DYNAMIC, 2)                                                           \
    C(CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H, 3)                                                    \
    C(CUDNN_RNN_RELU, 0)                                                                           \
    C(CUDNN_RNN_TANH, 1)                                                                           \
    C(CUDNN_LSTM, 2)                                                                               \
    C(CUDNN_GRU, 3)                                                                                \
    C(CUDNN_RNN_NO_BIAS, 0)                                                                        \
    C(CUDNN_RNN_SINGLE_INP_BIAS, 1)                                                                \
    C(CUDNN_RNN_DOUBLE_BIAS, 2)                                                                    \
    C(CUDNN_RNN_SINGLE_REC_BIAS, 3)                                                                \
    C(CUDNN_UNIDIRECTIONAL, 0)                                                                     \
    C(CUDNN_LINEAR_INPUT, 0)                                                                       \
    C(CUDNN_DEFAULT_MATH, 0)                                                                       \
    C(CUDNN_TENSOR_OP_MATH, 1)                                                                     \
    C(CUDNN_FMA_MATH, 3)                                                                           \
    C(CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED, 2)                                               \
    C(CUDNN_RNN_PADDED_IO_ENABLED, 1)                                                              \
    C(CUDNN_FWD_MODE_INFERENCE, 0)                                                                 \
    C(CUDNN_FWD_MODE_TRAINING, 1)                                                                  \
    C(CUDNN_WGRAD_MODE_ADD, 0)                                                                     \
    C(CUDNN_CROSS_CORRELATION, 1)                                                                  \
    C(CUDNN_GENSTATS_SUM_SQSUM, 0)                                                                 \
    C(CUDNN_POINTWISE_ADD, 0)                                                                      \
    C(CUDNN_POINTWISE_MUL, 1)                                                                      \
    C(CUDNN_POINTWISE_RELU_FWD, 100)                                                               \
    C(CUDNN_POINTWISE_CMP_GE, 303)                                                                 \
    C(CUDNN_HEUR_MODE_FALLBACK, 2)                                                                 \
    C(CUDNN_HEUR_MODE_A, 3)                                                                        \
    C(CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0)                                                         \
    C(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)                                                 \
    C(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2)                                         \
    C(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 4)                                                    \
    C(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, 0)                                                  \
    C(CUDNN_TYPE_HANDLE, 0)                                                                        \
    C(CUDNN_TYPE_DATA_TYPE, 1)                                                                     \
    C(CUDNN_TYPE_BOOLEAN, 2)                                                                       \
    C(CUDNN_TYPE_INT64, 3)                                                                         \
    C(CUDNN_TYPE_FLOAT, 4)                                                                         \
    C(CUDNN_TYPE_VOID_PTR, 6)                                                                      \
    C(CUDNN_TYPE_CONVOLUTION_MODE, 7)                                                              \
    C(CUDNN_TYPE_HEUR_MODE, 8)                                                                     \
    C(CUDNN_TYPE_KNOB_TYPE, 9)                                                                     \
    C(CUDNN_TYPE_NUMERICAL_NOTE, 11)                                                               \
    C(CUDNN_TYPE_POINTWISE_MODE, 14)                                                               \
    C(CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)                                                           \
    C(CUDNN_TYPE_GENSTATS_MODE, 16)                                                                \
    C(CUDNN_TYPE_BEHAVIOR_NOTE, 19)                                                                \
    C(CUDNN_TYPE_CHAR, 24)                                                                         \
    C(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                                                       \
    C(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, 1)                                                     \
    C(CUDNN_BACKEND_ENGINE_DESCRIPTOR, 2)                                                          \
    C(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                                                       \
    C(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                                                      \
    C(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                                                  \
    C(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, 7)                                                     \
    C(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10)                                  \
    C(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11)                          \
    C(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12)                            \
    C(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                                            \
    C(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, 14)                                            \
    C(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                                                 \
    C(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                                                   \
    C(CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                                                         \
    C(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, 38)                                                     \
    C(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, 41)                                             \
    C(CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, 43)                                             \
    C(CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, 44)                                   \
    C(CUDNN_ATTR_POINTWISE_MODE, 0)                                                                \
    C(CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                                                           \
    C(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, 100)                                                       \
    C(CUDNN_ATTR_CONVOLUTION_CONV_MODE, 101)                                                       \
    C(CUDNN_ATTR_CONVOLUTION_DILATIONS, 102)                                                       \
    C(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 103)                                                  \
    C(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 104)                                                   \
    C(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 105)                                                    \
    C(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 106)                                                    \
    C(CUDNN_ATTR_ENGINEHEUR_MODE, 200)                                                             \
    C(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                                                  \
    C(CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                                                          \
    C(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, 204)                                                       \
    C(CUDNN_ATTR_ENGINECFG_ENGINE, 300)                                                            \
    C(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, 302)                                                      \
    C(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                                                       \
    C(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                                                \
    C(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                                               \
    C(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, 407)                                                   \
    C(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 600)                                                       \
    C(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 601)                                                      \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)                                         \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 701)                                          \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 702)                                     \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, 703)                                             \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, 704)                                             \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, 705)                                             \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 706)                                        \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 707)                                         \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, 708)                                    \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, 709)                                            \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, 710)                                           \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, 711)                                           \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 712)                                      \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 713)                                       \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, 714)                                  \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, 715)                                         \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, 716)                                          \
    C(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, 717)                                         \
    C(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                                           \
    C(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                                                   \
    C(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                                                   \
    C(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                                                   \
    C(CUDNN_ATTR_OPERATION_GENSTATS_MODE, 770)                                                     \
    C(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, 771)                                                \
    C(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, 772)                                                    \
    C(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, 773)                                                  \
    C(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, 774)                                                \
    C(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                                                       \
    C(CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                                                          \
    C(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)                                                       \
    C(CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                                                            \
    C(CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                                                           \
    C(CUDNN_ATTR_TENSOR_STRIDES, 903)                                                              \
    C(CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                                                            \
    C(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                                                           \
    C(CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908)                                                          \
    C(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                                                    \
    C(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                                                 \
    C(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)                                                     \
    C(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1301)                                                        \
    C(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303)                                                      \
    C(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 1305)                                                       \
    C(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)                                             \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, 2800)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, 2801)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, 2802)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, 2803)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, 2804)                                               \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, 2805)                                               \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, 2811)                                                \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID, 2812)                                      \
    C(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, 2813)                                     \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, 2851)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, 2852)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, 2853)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, 2854)                                                   \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, 2855)                                               \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, 2856)                                               \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, 2859)                                                  \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, 2860)                                                  \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, 2861)                                                  \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, 2862)                                                 \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH, 2867)                                                \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID, 2868)                                      \
    C(CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, 2869)                                     \
    C(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, 3000)                                         \
    C(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, 3005)                                         \
    C(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, 3006)                                         \
    C(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, 3007)

#ifndef CUDNN_VERSION
#define HL_CUDNN_CONSTANT(name, value) name = value,
enum { HL_CUDNN_CONSTANTS(HL_CUDNN_CONSTANT) };
#undef HL_CUDNN_CONSTANT
#endif

#endif
