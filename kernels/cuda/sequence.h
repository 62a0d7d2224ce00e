/* A sequence: nodes that follow one another in a plan, each of them so little work that a launch
 * costs more, are one launch of one block, which does one after the other.
 *
 * To a step the block is a grid of HL_PRIM_BLOCKS blocks (prim.h), so that the device functions are
 * those of the steps' own kernels, which any grid runs with the same bits; a barrier of all of them
 * stands between two steps, behind which each sees what the other wrote.
 *
 * Each step is a call of a list (calls.h), whose parameters lie one after the other behind the
 * head. hl_cuda_sequence walks the list, and interprets programs; where there is NVRTC a kernel is
 * generated that has the steps and their programs in its code (generate.c), with the same bits.
 *
 * Rejected: a grid of several blocks with a barrier across multiprocessors, which takes about as
 * long as a launch; kernels for the sequences that are frequent, of which there is one for each
 * loss. */
#ifndef HL_CUDA_SEQUENCE_H
#define HL_CUDA_SEQUENCE_H

#define HL_PRIM_BLOCKS        8
#define HL_PRIM_BLOCK_THREADS 128

#include "kernels/cuda/compiled.h"
#include "kernels/cuda/control.h"
#include "kernels/cuda/loss.h"

enum {
    HL_CUDA_SEQUENCE_THREADS = HL_PRIM_BLOCKS * HL_PRIM_BLOCK_THREADS,
    HL_CUDA_SEQUENCE_STEPS = 32,
    /* Passes over memory that the block makes at most beyond those of its own launch's blocks,
     * which run side by side. One waits for memory about half a microsecond: with more of them a
     * step takes longer than the launch that it saves. */
    HL_CUDA_SEQUENCE_PASSES = 3,
    /* Dynamic shared memory: what sm_75 has for a block, but for what kernels have of their own. */
    HL_CUDA_SEQUENCE_SHARED = 56 << 10
};

/* What hl_cuda_sequence has as steps: X(step, kind of its parameters). The step is named as the
 * kernel that does the same alone. */
#define HL_CUDA_STEPS(X)                                                                           \
    X(cross_entropy_f32_x1, cross_entropy)                                                         \
    X(cross_entropy_f32_x4, cross_entropy)                                                         \
    X(cross_entropy_grad_f32_x1, cross_entropy_grad)                                               \
    X(cross_entropy_grad_f32_x4, cross_entropy_grad)                                               \
    X(control_begin, control_begin)                                                                \
    X(control_micro, control_micro)                                                                \
    X(control_apply, control_apply)                                                                \
    X(pointwise_f32, pointwise)

enum {
#define HL_CUDA_STEP_NUMBER(step, kind) HL_CUDA_STEP_##step,
    HL_CUDA_STEPS(HL_CUDA_STEP_NUMBER)
#undef HL_CUDA_STEP_NUMBER
        HL_CUDA_STEP_program /* a generated one, in generated kernels alone */
};

typedef struct hl_cuda_sequence_params {
    int32_t n;
    struct {
        uint16_t number, first_byte; /* HL_CUDA_STEP_*; of its parameters, from n on */
    } step[HL_CUDA_SEQUENCE_STEPS];
    uint64_t params[494]; /* as many as fit into a kernel's */
} hl_cuda_sequence_params;

#if defined(__CUDACC__) || defined(HL_EMULATE)
static_assert((int)HL_PRIM_BLOCK_THREADS == (int)HL_CUDA_TILE_THREADS, "blocks are as tiles");

template <class T>
HL_DEVICE const T &hl_step_params(const hl_cuda_sequence_params &p, int first_byte)
{
    return *(const T *)((const unsigned char *)&p + first_byte);
}

/* shared: HL_SHARED_DYNAMIC's. */
#define HL_CUDA_STEP(step, kind)                                                                   \
    template <class S>                                                                             \
    HL_DEVICE void hl_step_##step(const hl_cuda_##kind##_params &p, [[maybe_unused]] S &shared)

HL_CUDA_STEP(cross_entropy_f32_x1, cross_entropy)
{
    hl_loss_run<float, 1>(p);
}
HL_CUDA_STEP(cross_entropy_f32_x4, cross_entropy)
{
    hl_loss_run<float, 4>(p);
}
HL_CUDA_STEP(cross_entropy_grad_f32_x1, cross_entropy_grad)
{
    hl_loss_run_gradient<float, 1>(p);
}
HL_CUDA_STEP(cross_entropy_grad_f32_x4, cross_entropy_grad)
{
    hl_loss_run_gradient<float, 4>(p);
}
HL_CUDA_STEP(control_begin, control_begin)
{
    hl_control_run(p);
}
HL_CUDA_STEP(control_micro, control_micro)
{
    hl_control_run(p);
}
HL_CUDA_STEP(control_apply, control_apply)
{
    hl_control_run(p);
}

/* Shared memory is room for the folds. */
template <class P, class S>
HL_DEVICE void hl_step_program(const hl_cuda_compiled_params &p, S &shared)
{
    hl_iterate_tiles_in(shared, P{p.at.operand, p.number}, p.tiles, (typename P::V *)0);
}
#endif

#endif
