/* Types and constants of the CUDA driver, as far as we use them; tests/cuda/driver_check.c holds
 * them against NVIDIA's cuda.h. Beside that header its own are taken. */
#ifndef HL_KERNELS_CUDA_DRIVER_TYPES_H
#define HL_KERNELS_CUDA_DRIVER_TYPES_H

#ifndef CUDA_VERSION
typedef int CUresult, CUdevice, CUdevice_attribute, CUjit_option, CUlibraryOption,
    CUfunction_attribute, CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
#endif

/* name, value */
#define HL_CUDA_CONSTANTS(C)                                                                       \
    C(CUDA_SUCCESS, 0)                                                                             \
    C(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    C(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    C(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    C(CUDA_ERROR_STUB_LIBRARY, 34)                                                                 \
    C(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                           \
    C(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    C(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    C(CUDA_ERROR_INVALID_IMAGE, 200)                                                               \
    C(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    C(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                           \
    C(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                           \
    C(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                                                        \
    C(CUDA_ERROR_CONTAINED, 226)                                                                   \
    C(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    C(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    C(CUDA_ERROR_NOT_READY, 600)                                                                   \
    C(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                             \
    C(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                              \
    C(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                        \
    C(CUDA_ERROR_ASSERT, 710)                                                                      \
    C(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                                        \
    C(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                                                         \
    C(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                                          \
    C(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                                                       \
    C(CUDA_ERROR_INVALID_PC, 718)                                                                  \
    C(CUDA_ERROR_LAUNCH_FAILED, 719)                                                               \
    C(CUDA_ERROR_NOT_SUPPORTED, 801)                                                               \
    C(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                                      \
    C(CUDA_ERROR_MPS_RPC_FAILURE, 806)                                                             \
    C(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                                                       \
    C(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                                  \
    C(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                                  \
    C(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)                                                        \
    C(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)                                                    \
    C(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)                                                     \
    C(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)                                                    \
    C(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                                     \
    C(CUDA_ERROR_CAPTURED_EVENT, 907)                                                              \
    C(CUDA_ERROR_EXTERNAL_DEVICE, 911)                                                             \
    C(CUDA_ERROR_UNKNOWN, 999)                                                                     \
    C(CU_STREAM_NON_BLOCKING, 1)                                                                   \
    C(CU_EVENT_BLOCKING_SYNC, 1)                                                                   \
    C(CU_EVENT_DISABLE_TIMING, 2)                                                                  \
    C(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                                      \
    C(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8)                                          \
    C(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 12)                                             \
    C(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                \
    C(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 36)                                                   \
    C(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 37)                                             \
    C(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                            \
    C(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                            \
    C(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)                                   \
    C(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)                                                  \
    C(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1)                                                      \
    C(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3)                                                       \
    C(CU_FUNC_ATTRIBUTE_NUM_REGS, 4)                                                               \
    C(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)

#ifndef CUDA_VERSION
#define HL_CUDA_CONSTANT(name, value) name = value,
enum { HL_CUDA_CONSTANTS(HL_CUDA_CONSTANT) };
#undef HL_CUDA_CONSTANT
#endif

#endif
