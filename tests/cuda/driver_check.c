/* Holds kernels/cuda/driver.def and driver_types.h against NVIDIA's headers: compiles only if every
 * prototype and constant of ours is theirs, and every symbol is one that the oldest supported
 * driver has. With cublasLt.h (HL_CHECK_CUBLASLT) the same for cublaslt.def, with cudnn.h
 * (HL_CHECK_CUDNN) for cudnn.def, with nvrtc.h (HL_CHECK_NVRTC) for nvrtc.def. Nothing is linked.
 */
#include <cuda.h>
#include <cudaTypedefs.h>
#ifdef HL_CHECK_CUBLASLT
#include <cublasLt.h>
#endif
#ifdef HL_CHECK_CUDNN
#include <cudnn.h>
#endif
#ifdef HL_CHECK_NVRTC
#include <nvrtc.h>
#endif

#include "kernels/cuda/driver_types.h"

enum { OLDEST_DRIVER = 12000 };

/* cudaTypedefs.h has one type per function and version: PFN_cuMemAlloc_v3020. */
#define HL_CUDA_CALL(name, suffix, since, params)                                                  \
    _Static_assert(since <= OLDEST_DRIVER, #name);                                                 \
    _Static_assert(__builtin_types_compatible_p(CUresult(*) params, PFN_##name##_v##since), #name);
#include "kernels/cuda/driver.def"

#define CHECK_CONSTANT(name, value) _Static_assert((int)name == value, #name);
HL_CUDA_CONSTANTS(CHECK_CONSTANT)

#ifdef HL_CHECK_CUBLASLT
#include "kernels/cuda/cublaslt_types.h"

#define HL_CUBLASLT_CALL(result, name, params)                                                     \
    _Static_assert(__builtin_types_compatible_p(result(*) params, __typeof__(&name)), #name);
#include "kernels/cuda/cublaslt.def"
HL_CUBLASLT_CONSTANTS(CHECK_CONSTANT)

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "an algorithm is kept as 8 numbers");
#endif

#ifdef HL_CHECK_CUDNN
#include "kernels/cuda/cudnn_types.h"

#define HL_CUDNN_CALL(result, name, params)                                                        \
    _Static_assert(__builtin_types_compatible_p(result(*) params, __typeof__(&name)), #name);
#include "kernels/cuda/cudnn.def"
HL_CUDNN_CONSTANTS(CHECK_CONSTANT)

_Static_assert(sizeof(cudnnStatus_t) == sizeof(int), "an enumerator is an int");
#endif

#ifdef HL_CHECK_NVRTC
#define HL_NVRTC_CALL(name, params)                                                                \
    _Static_assert(__builtin_types_compatible_p(nvrtcResult(*) params, __typeof__(&name)), #name);
#include "kernels/cuda/nvrtc.def"
_Static_assert(NVRTC_SUCCESS == 0, "success is 0");
#endif
