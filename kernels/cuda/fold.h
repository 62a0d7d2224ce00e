/* Cooperative groups of threads that own a row, and how they fold values into one.
 *
 * A cooperative group is some lanes of a warp, a warp or a whole block, by the launcher's choice:
 * the longer the rows the larger. Every member gets the fold's result. Its tree depends on the
 * cooperative group's size alone, so one launch geometry gives the same bits every time. */
#ifndef HL_CUDA_FOLD_H
#define HL_CUDA_FOLD_H

#include "kernels/cuda/prim.h"

struct hl_coop_group {
    int rank, size;      /* of this thread, of the cooperative group */
    int64_t first, step; /* the cooperative group's rows: first, first + step, ... */
    bool is_block;
    uint32_t mask; /* its lanes in this thread's warp */
};

/* by_block 1: one cooperative group a block; 0: one a warp; 2, 4, 8, 16: so many lanes. Blocks hold
 * whole warps.
 */
HL_DEVICE hl_coop_group hl_coop_make(int by_block)
{
    int thread = hl_thread(), threads = hl_threads();
    if (by_block == 1) return {thread, threads, hl_block_x(), hl_blocks_x(), true, HL_WARP_ALL};
    int size = by_block == 0 ? 32 : by_block, n_coop_groups = threads / size;
    uint32_t mask = HL_WARP_ALL >> (32 - size) << thread % 32 / size * size;
    return {thread % size,
            size,
            (int64_t)hl_block_x() * n_coop_groups + thread / size,
            (int64_t)hl_blocks_x() * n_coop_groups,
            false,
            mask};
}

/* Folds over `size` neighbouring lanes of a warp, which the mask names. Where fold does not
 * commute, members get other bits than the first, here and below. */
template <class T, class F> HL_DEVICE T hl_lanes_fold(uint32_t mask, int size, T value, F fold)
{
    HL_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2)
        if (lanes < size) value = fold(value, hl_shuffle_xor(mask, value, lanes));
    return value;
}
template <class T, class F> HL_DEVICE T hl_warp_fold(T value, F fold)
{
    return hl_lanes_fold(HL_WARP_ALL, 32, value, fold);
}

template <class T, class F> HL_DEVICE T hl_coop_fold(const hl_coop_group &coop, T value, F fold)
{
    value = hl_lanes_fold(coop.mask, coop.size, value, fold);
    if (!coop.is_block) return value;
    HL_SHARED(T, part, 32);
    hl_barrier(); /* the last fold's readers are through */
    if (coop.rank % 32 == 0) part[coop.rank / 32] = value;
    hl_barrier();
    T all = part[0];
    for (int w = 1; w < coop.size / 32; w++) all = fold(all, (T)part[w]);
    return all;
}

HL_DEVICE float hl_coop_sum(const hl_coop_group &coop, float value)
{
    return hl_coop_fold(coop, value, [](float a, float b) { return a + b; });
}

/* A row as its cooperative group holds it: load(c) for this member's columns rank, rank + size, ...
 * of C, the first KEEP of them in registers, so that a row which fits is read once; the others are
 * loaded again each time. */
template <int KEEP, class Load> struct hl_coop_row {
    hl_coop_group coop;
    int64_t C;
    Load load;
    decltype(load(0)) kept[KEEP];

    HL_MEMBER hl_coop_row(const hl_coop_group &by, int64_t n, Load load_one)
        : coop(by), C(n), load(load_one)
    {
        int n_held = count_held(), c = coop.rank;
        HL_UNROLL
        for (int j = 0; j < KEEP; j++, c += coop.size) {
            if (c >= n_held) return;
            kept[j] = load(c);
        }
    }
    /* Columns in registers, as an int: 64-bit columns would take as many registers as the row. */
    HL_MEMBER int count_held() const
    {
        int most = KEEP * coop.size;
        return C < most ? (int)C : most;
    }
    /* visit(c, value) */
    template <class F> HL_MEMBER void each(F visit) const
    {
        int n_held = count_held(), c = coop.rank;
        HL_UNROLL
        for (int j = 0; j < KEEP; j++, c += coop.size) {
            if (c >= n_held) break;
            visit(c, kept[j]);
        }
        int64_t more = KEEP * coop.size + coop.rank;
        if constexpr (KEEP < 16) { /* there is a short rest, if any, not worth more registers */
            HL_UNROLL_BY(1)
            for (; more < C; more += coop.size) visit(more, load(more));
        } else {
            for (; more < C; more += coop.size) visit(more, load(more));
        }
    }
};
template <int KEEP, class Load>
HL_DEVICE hl_coop_row<KEEP, Load> hl_coop_keep(const hl_coop_group &coop, int64_t C, Load load)
{
    return hl_coop_row<KEEP, Load>(coop, C, load);
}

/* The gradient before relu, and dropout after it, whose result is given: dy * scale where the
 * result is positive, else 0, since what relu or dropout held back is 0. Without a result: dy. */
HL_DEVICE float hl_pass(float dy, float result, float scale)
{
    return result > 0 ? dy * scale : 0.0f;
}
template <class T, class R>
HL_DEVICE float hl_read_passed(const T *dy, const R *result, int64_t i, float scale)
{
    return result ? hl_pass(hl_read(dy, i), hl_read(result, i), scale) : hl_read(dy, i);
}

#endif
