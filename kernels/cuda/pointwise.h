/* What a pointwise node is on the device, before it is known who runs it: the interpreter of
 * pointwise.cu, or a kernel generated for it. */
#ifndef HL_CUDA_POINTWISE_H
#define HL_CUDA_POINTWISE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/program.h"

/* What registers hold. */
typedef enum hl_cuda_pw_kind { HL_CUDA_PW_F32, HL_CUDA_PW_F64, HL_CUDA_PW_I64 } hl_cuda_pw_kind;

typedef struct hl_cuda_pointwise {
    hl_cuda_program program;
    hl_cuda_pw_kind kind;
    hl_cuda_walk walk;
} hl_cuda_pointwise;

/* C++ source of a kernel that does what the interpreter does with the program, bit for bit: its
 * text, from hl_alloc, and its name, which comes from the text. Parameters: hl_cuda_operands,
 * hl_cuda_walk, scratch, and the random steps' keys as an array of uint32_t, two each and in the
 * order of the code, where there are any. */
enum { HL_CUDA_NAME_BYTES = 32 };
hl_status hl_cuda_generate(const hl_cuda_pointwise *work, HL_GIVE char **out_source,
                           char out_name[HL_CUDA_NAME_BYTES]);

/* Has the device a kernel generated for the program, and compiles it if need be. HL_ERROR_DEVICE
 * where NVRTC is absent or fails: the log says why, and the interpreter does the same. */
hl_status hl_cuda_compile(hl_device *device, const hl_cuda_pointwise *work,
                          char out_name[HL_CUDA_NAME_BYTES]);

#endif
