/* What the kernels of one instruction set share: names, families, cutting, refusals.
 *
 * Each family's file is compiled once per instruction set and exports one NULL-terminated list,
 * HL_ISA_NAME(hl_cpu_<family>_kernels). device.c joins the lists of the chosen set and, after
 * them, the portable ones: the plain kernel that stands last is the same source without vectors. */
#ifndef HL_KERNELS_CPU_KERNEL_H
#define HL_KERNELS_CPU_KERNEL_H

#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"

/* clang-format off */
#define HL_CPU_FAMILIES(X, isa)                                                                    \
    X(pointwise, isa) X(control, isa) X(optim, isa) X(matmul, isa) X(depthwise, isa)               \
    X(depthwise_bf16, isa) X(conv, isa) X(conv_weight, isa) X(softmax, isa) X(loss, isa)           \
    X(norm, isa) X(unfold, isa) X(pool, isa) X(resample, isa) X(reduce, isa) X(copy, isa)          \
    X(index, isa) X(attention, isa) X(recurrence, isa) X(ctc, isa) X(linalg, isa) X(sort, isa)     \
    X(stat, isa) X(deformable, isa)
/* clang-format on */

#define HL_CPU_LIST(family, isa) extern const hl_kernel *const hl_cpu_##family##_kernels_##isa[];
HL_CPU_FAMILIES(HL_CPU_LIST, portable)
#if defined(__x86_64__)
HL_CPU_FAMILIES(HL_CPU_LIST, avx2)
HL_CPU_FAMILIES(HL_CPU_LIST, avx512)
HL_CPU_LIST(matmul_bf16, avx512)
HL_CPU_LIST(conv_bf16, avx512)
HL_CPU_LIST(conv_weight_bf16, avx512)
HL_CPU_LIST(recurrence_bf16, avx512)
HL_CPU_LIST(matmul_amx, avx512)
HL_CPU_LIST(conv_amx, avx512)
HL_CPU_LIST(conv_weight_amx, avx512)
HL_CPU_LIST(recurrence_amx, avx512)
#endif
#undef HL_CPU_LIST

#define HL_CPU_TEXT2(x) #x
#define HL_CPU_TEXT(x)  HL_CPU_TEXT2(x)
/* "cpu.softmax.avx2" */
#define HL_CPU_NAME(name) "cpu." name "." HL_CPU_TEXT(HL_ISA)

static inline int64_t hl_cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t hl_cpu_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t hl_cpu_ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Partial sums: at least 32 rows each, a power of two, and at most 64 of them, from the number of
 * rows alone, so that the tree that merges them is the same for any number of threads. */
enum { HL_CPU_PARTIALS = 64 };
static inline int64_t hl_cpu_grain(int64_t rows)
{
    int64_t grain = 32;
    while (grain * HL_CPU_PARTIALS < rows) grain *= 2;
    return grain;
}

/* Rows of a block at least, so that two threads do not write to the same cache line. */
static inline int64_t hl_cpu_line_grain(int64_t row_bytes)
{
    int64_t grain = 1;
    while (grain < HL_ALIGN && grain * row_bytes < HL_ALIGN) grain *= 2;
    return grain;
}

/* Bits 0 to n - 1: hl_kernel_req.row_in of n operands that are all read row by row. */
static inline uint64_t hl_cpu_bits(int n)
{
    return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
}

/* Makes a kernel's state of a copy of a plain struct. */
static inline hl_status hl_cpu_give_state(const void *state, size_t bytes,
                                          hl_kernel_state *out_state)
{
    HL_TRY(hl_alloc(bytes, &out_state->impl));
    memcpy(out_state->impl, state, bytes);
    return HL_OK;
}

#endif
