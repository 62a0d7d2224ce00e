/* Teams of threads that own a row, and how they fold values into one.
 *
 * A team is a warp or a whole block, by the launcher's choice: warps for short rows, blocks for
 * long ones. Every member gets the fold's result. Its tree depends on the team's size alone, so one
 * launch geometry gives the same bits every time. */
#ifndef HL_CUDA_FOLD_H
#define HL_CUDA_FOLD_H

#include "kernels/cuda/prim.h"

struct hl_team {
    int rank, size;      /* of this thread, of the team */
    int64_t first, step; /* the team's rows: first, first + step, ... */
    bool is_block;
};

/* by_block: one team a block, else one a warp; then blocks hold whole warps. */
HL_DEVICE hl_team hl_team_make(int by_block)
{
    if (by_block) return {hl_thread(), hl_threads(), hl_block_x(), hl_blocks_x(), true};
    int n_warps = hl_threads() / 32;
    return {hl_thread() % 32, 32, (int64_t)hl_block_x() * n_warps + hl_thread() / 32,
            (int64_t)hl_blocks_x() * n_warps, false};
}

template <class T, class F> HL_DEVICE T hl_warp_fold(T value, F fold)
{
    HL_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value = fold(value, hl_shuffle_xor(HL_WARP_ALL, value, lanes));
    return value;
}

/* fold must commute, or the lanes of a warp would end with different bits. */
template <class T, class F> HL_DEVICE T hl_team_fold(const hl_team &team, T value, F fold)
{
    value = hl_warp_fold(value, fold);
    if (!team.is_block) return value;
    HL_SHARED(T, part, 32);
    hl_barrier(); /* the last fold's readers are through */
    if (team.rank % 32 == 0) part[team.rank / 32] = value;
    hl_barrier();
    T all = part[0];
    for (int w = 1; w < team.size / 32; w++) all = fold(all, (T)part[w]);
    return all;
}

HL_DEVICE float hl_team_sum(const hl_team &team, float value)
{
    return hl_team_fold(team, value, [](float a, float b) { return a + b; });
}

#endif
