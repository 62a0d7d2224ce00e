/* Parameters of kernels, declared once for both sides.
 *
 * The kernels hl_cuda_<kind>_<variant> of a kind take one struct by value, hl_cuda_<kind>_params,
 * which the family's header declares beside the family's constants. Its first member, `at`, is of
 * 8-byte words alone: what is known at the launch, which are addresses and the error word. What
 * follows is known when the call is written down. On the device a word is what its declaration
 * says; on the host it is a hl_cuda_word, which says what the launch puts there (calls.h).
 *
 * Both sides name the kind, and both the kernel's name and the type of its parameters are made of
 * it: HL_CUDA_ENTRY here, HL_CUDA_CALL in calls.h. So a launcher that gives what a kernel does not
 * take does not compile.
 *
 * Rejected: a parameter for each value (a second list on the host, in the same order and without
 * types). */
#ifndef HL_CUDA_PARAMS_H
#define HL_CUDA_PARAMS_H

#include <stdint.h>

/* Threads of a block where each takes elements by the grid (HL_FOR_GRID), and at most where
 * cooperative groups take rows (fold.h). */
enum { HL_CUDA_ELEMENT_THREADS = 256, HL_CUDA_COOP_THREADS = 256 };

/* A kernel on rows that cooperative groups hold in registers is made for each number of values that
 * a thread may have room for (hl_cuda_row_keep chooses): with room for a long row, a short one
 * would leave registers empty that other warps could use. The bits are the same. X(values, ...) */
#define HL_CUDA_ROW_KEEPS(X, ...) X(1, __VA_ARGS__) X(4, __VA_ARGS__) X(32, __VA_ARGS__)

/* A member of `at`: where something lies that is of type T to the kernel; a number. */
#ifdef __cplusplus
#define HL_CUDA_AT(T)  T *
#define HL_CUDA_NUMBER int64_t
#else
typedef struct hl_cuda_word {
    uint64_t bits; /* as calls.h has it; of a launch that is in no list, the word itself */
} hl_cuda_word;
#define HL_CUDA_AT(T)  hl_cuda_word
#define HL_CUDA_NUMBER hl_cuda_word
#endif

/* HL_CUDA_BOTH: a function for both sides. */
#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/prim.h"

#define HL_CUDA_BOTH HL_DEVICE

/* The kernel of a kind, or one of its variants; p: its parameters. */
#define HL_CUDA_ENTRY(kind, max_threads, p)                                                        \
    HL_KERNEL(hl_cuda_##kind, max_threads, HL_CONSTANT hl_cuda_##kind##_params p)
#define HL_CUDA_ENTRY_OF(kind, variant, max_threads, p)                                            \
    HL_KERNEL(hl_cuda_##kind##_##variant, max_threads, HL_CONSTANT hl_cuda_##kind##_params p)
#else
#define HL_CUDA_BOTH static inline
#endif

#endif
