/* Neighbours in memory that a thread moves 16 bytes at a time. */
#ifndef HL_CUDA_PACK_H
#define HL_CUDA_PACK_H

#include "kernels/cuda/prim.h"

template <class T, int W> struct hl_pack {
    enum { BYTES = sizeof(T) * W, ALIGN = BYTES < 16 ? BYTES : 16 };
    struct alignas(ALIGN) pack {
        T v[W];
    };
    static HL_MEMBER bool is_aligned(const void *p)
    {
        return ((uintptr_t)p & (ALIGN - 1)) == 0;
    }
};

/* p[0..W) as floats: at once where they are known to be aligned, else the first `there` of them one
 * by one, the others being 0. */
template <class T, int W>
HL_DEVICE void hl_read_pack(const T *p, bool is_aligned, float (&x)[W], int there = W)
{
    typedef typename hl_pack<T, W>::pack P;
    if (is_aligned) {
        P in = *hl_vector((const P *)(const void *)p);
        HL_UNROLL
        for (int k = 0; k < W; k++) x[k] = hl_to_float(in.v[k]);
        return;
    }
    HL_UNROLL
    for (int k = 0; k < W; k++) x[k] = k < there ? hl_read(p, k) : 0.0f;
}
template <class T, int W> HL_DEVICE void hl_fill_pack(T (&v)[W], const float (&x)[W])
{
    HL_UNROLL
    for (int k = 0; k + 1 < W; k += 2) hl_put_pair(v + k, x[k], x[k + 1]);
    if constexpr (W % 2 == 1) hl_put(v + W - 1, x[W - 1]);
}
template <class T, int W>
HL_DEVICE void hl_write_pack(T *p, bool is_aligned, const float (&x)[W], int there = W)
{
    typedef typename hl_pack<T, W>::pack P;
    if (is_aligned) {
        P out;
        hl_fill_pack(out.v, x);
        *hl_vector((P *)(void *)p) = out;
        return;
    }
    HL_UNROLL
    for (int k = 0; k < W; k++)
        if (k < there) hl_write(p, k, x[k]);
}

#endif
