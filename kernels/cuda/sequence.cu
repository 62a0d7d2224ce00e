/* Any sequence whose programs are interpreted (sequence.h).
 *
 * Launch: one block of HL_CUDA_SEQUENCE_THREADS; shared memory for each of the blocks in it: the
 * registers of the program that has most, and the room of its folds. */
#include "kernels/cuda/sequence.h"

#include "kernels/cuda/interpreter.h"

/* Shared memory from its element `first` on. */
template <class S> struct hl_shared_behind {
    S &all;
    int first;
    HL_MEMBER decltype(auto) operator[](int i) const
    {
        return all[first + i];
    }
};
/* Registers first, then the folds' room. */
HL_CUDA_STEP(pointwise_f32, pointwise)
{
    const hl_shared_behind<S> room = {shared, p.at.program->n_regs * HL_CUDA_TILE_THREADS};
    typedef hl_interpreted<float, S, HL_CUDA_TILE_SUMS> P;
    hl_iterate_tiles_in(room, P{p.at.program, p.at.operand, shared, p.tiles.width}, p.tiles,
                        (float *)0);
}

HL_CUDA_ENTRY(sequence, HL_CUDA_SEQUENCE_THREADS, p)
{
    HL_SHARED_DYNAMIC(float, shared);
    for (int i = 0; i < p.n; i++) {
        int first_byte = p.step[i].first_byte;
        if (i > 0) hl_barrier_all();
        switch (p.step[i].number) {
#define STEP(step, kind)                                                                           \
    case HL_CUDA_STEP_##step:                                                                      \
        hl_step_##step(hl_step_params<hl_cuda_##kind##_params>(p, first_byte), shared);            \
        break;
            HL_CUDA_STEPS(STEP)
        }
    }
}
