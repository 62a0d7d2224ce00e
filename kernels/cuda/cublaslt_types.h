/* Types and constants of cuBLASLt, as far as we use them; tests/cuda/driver_check.c holds them
 * against NVIDIA's cublasLt.h. Beside that header its own are taken. */
#ifndef HL_KERNELS_CUDA_CUBLASLT_TYPES_H
#define HL_KERNELS_CUDA_CUBLASLT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver_types.h"

#ifndef CUBLAS_VERSION
typedef int cublasStatus_t, cublasComputeType_t, cudaDataType_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t;
typedef CUstream cudaStream_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct hl_cublaslt_desc *cublasLtMatmulDesc_t;
typedef struct hl_cublaslt_layout *cublasLtMatrixLayout_t;
typedef struct hl_cublaslt_preference *cublasLtMatmulPreference_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;
#endif

/* name, value */
#define HL_CUBLASLT_CONSTANTS(C)                                                                   \
    C(CUBLAS_STATUS_SUCCESS, 0)                                                                    \
    C(CUBLAS_STATUS_NOT_INITIALIZED, 1)                                                            \
    C(CUBLAS_STATUS_ALLOC_FAILED, 3)                                                               \
    C(CUBLAS_STATUS_INVALID_VALUE, 7)                                                              \
    C(CUBLAS_STATUS_EXECUTION_FAILED, 13)                                                          \
    C(CUBLAS_STATUS_INTERNAL_ERROR, 14)                                                            \
    C(CUBLAS_STATUS_NOT_SUPPORTED, 15)                                                             \
    C(CUDA_R_32F, 0)                                                                               \
    C(CUDA_R_16F, 2)                                                                               \
    C(CUDA_R_16BF, 14)                                                                             \
    C(CUBLAS_COMPUTE_32F, 68)                                                                      \
    C(CUBLAS_COMPUTE_32F_FAST_TF32, 77)                                                            \
    C(CUBLAS_OP_N, 0)                                                                              \
    C(CUBLAS_OP_T, 1)                                                                              \
    C(CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                              \
    C(CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                              \
    C(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                                                            \
    C(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                                                        \
    C(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)                                               \
    C(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)                                                    \
    C(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)                                                       \
    C(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)                                              \
    C(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                                 \
    C(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                                               \
    C(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                               \
    C(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                               \
    C(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                               \
    C(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)                                               \
    C(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)                                                   \
    C(CUBLASLT_EPILOGUE_DEFAULT, 1)                                                                \
    C(CUBLASLT_EPILOGUE_RELU, 2)                                                                   \
    C(CUBLASLT_EPILOGUE_RELU_AUX, 130)                                                             \
    C(CUBLASLT_EPILOGUE_BIAS, 4)                                                                   \
    C(CUBLASLT_EPILOGUE_RELU_BIAS, 6)                                                              \
    C(CUBLASLT_EPILOGUE_RELU_AUX_BIAS, 134)                                                        \
    C(CUBLASLT_EPILOGUE_DRELU, 136)                                                                \
    C(CUBLASLT_EPILOGUE_DRELU_BGRAD, 152)                                                          \
    C(CUBLASLT_EPILOGUE_GELU, 32)                                                                  \
    C(CUBLASLT_EPILOGUE_GELU_AUX, 160)                                                             \
    C(CUBLASLT_EPILOGUE_GELU_BIAS, 36)                                                             \
    C(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164)                                                        \
    C(CUBLASLT_EPILOGUE_DGELU, 192)                                                                \
    C(CUBLASLT_EPILOGUE_DGELU_BGRAD, 208)                                                          \
    C(CUBLASLT_EPILOGUE_BGRADA, 256)                                                               \
    C(CUBLASLT_EPILOGUE_BGRADB, 512)

#ifndef CUBLAS_VERSION
#define HL_CUBLASLT_CONSTANT(name, value) name = value,
enum { HL_CUBLASLT_CONSTANTS(HL_CUBLASLT_CONSTANT) };
#undef HL_CUBLASLT_CONSTANT
#endif

#endif
