/* One kernel per primitive of prim.h: out says what it gave, test_emulation.cpp what it must give.
 */
#define HL_PRIM_MMA
#include "kernels/cuda/prim.h"

HL_KERNEL(prim_shuffles, 1024, const int32_t *in, int32_t *out)
{
    int n = hl_threads(), t = hl_thread();
    out[t] = hl_shuffle(HL_WARP_ALL, in[t], (t * 7) & 31);
    out[n + t] = hl_shuffle_xor(HL_WARP_ALL, in[t], 5);
    out[2 * n + t] = hl_shuffle_up(HL_WARP_ALL, in[t], 3);
}
struct prim_three {
    float a;
    int32_t b, c;
};
HL_KERNEL(prim_shuffle_bytes, 1024, const int64_t *in, int64_t *out)
{
    int n = hl_threads(), t = hl_thread();
    out[t] = hl_shuffle_xor(HL_WARP_ALL, in[t], 1);
    prim_three three = {(float)t, t + 1, t + 2};
    three = hl_shuffle_up(HL_WARP_ALL, three, 2);
    out[n + t] = (int64_t)three.a + 1000 * three.b + 1000000LL * three.c;
}
HL_KERNEL(prim_votes, 1024, const int32_t *in, uint32_t *out)
{
    int n = hl_threads(), t = hl_thread();
    out[t] = hl_ballot(HL_WARP_ALL, in[t] > 0);
    out[n + t] = t % 32 < 8 ? (uint32_t)hl_count_bits(hl_ballot(0xFFu, in[t] % 2 != 0)) : 0;
}
HL_KERNEL(prim_atomics, 1024, int32_t *sum, uint32_t *count, int32_t *most, int64_t *first,
          float *total)
{
    int i = hl_block_x() * hl_threads() + hl_thread();
    hl_atomic_add(sum, i - 5);
    hl_atomic_add(count, 2u);
    hl_atomic_max(most, (i * 37) % 101);
    hl_atomic_cas(first, 0, (int64_t)1 << 40);
    hl_atomic_add(total, 0.5f);
}
/* Sums of the neighbours by shared memory, over and over. */
HL_KERNEL(prim_barriers, 1024, const float *in, float *out, int rounds)
{
    HL_SHARED_DYNAMIC(float, s);
    int n = hl_threads(), t = hl_thread();
    float v = in[hl_block_x() * n + t];
    for (int i = 0; i < rounds; i++) {
        s[t] = v;
        hl_barrier();
        v += s[(t + 1) % n];
        hl_barrier();
    }
    out[hl_block_x() * n + t] = v;
}
/* Two stages of copies in flight. */
HL_KERNEL(prim_async, 64, const float *in, float *out, int n_tiles)
{
    HL_SHARED(float, s, 512);
    int t = hl_thread();
    hl_async_copy16((float *)s + 4 * t, in + 4 * t);
    hl_async_commit();
    for (int i = 0; i < n_tiles; i++) {
        if (i + 1 < n_tiles)
            hl_async_copy16((float *)s + (i + 1) % 2 * 256 + 4 * t, in + (i + 1) * 256 + 4 * t);
        hl_async_commit();
        hl_async_wait<1>();
        hl_barrier();
        for (int k = 0; k < 4; k++) out[i * 256 + k * 64 + t] = s[i % 2 * 256 + k * 64 + 63 - t];
        hl_barrier();
    }
    hl_async_wait<0>();
}
template <class T> HL_DEVICE void multiply(const T *a, const T *b, float *c, int ld)
{
    hl_tile_a<T> ta;
    hl_tile_b<T> tb;
    hl_tile_c tc;
    hl_mma_zero(tc);
    for (int k = 0; k < 32; k += 16) {
        hl_mma_load(ta, a + k, 32);
        hl_mma_load(tb, b + k * ld, ld);
        hl_mma(tc, ta, tb);
    }
    hl_mma_store(c, tc, ld);
}
HL_KERNEL(prim_mma_f16, 32, const hl_f16 *a, const hl_f16 *b, float *c, int ld)
{
    multiply(a, b, c, ld);
}
HL_KERNEL(prim_mma_bf16, 32, const hl_bf16 *a, const hl_bf16 *b, float *c, int ld)
{
    multiply(a, b, c, ld);
}
/* Of a (16 x 16), c(16 x 16) = a b, c + 256 = a b^T, by b as it lies and transposed; and a result
 * as an operand: c + 512 = (a b^T) b. */
template <class T> HL_DEVICE void multiply_fragments(const T *a, const T *b, float *c)
{
    enum { LD = 24 };
    HL_SHARED(T, s, 2 * 16 * LD);
    for (int e = hl_thread(); e < 256; e += 32) {
        s[e / 16 * LD + e % 16] = a[e];
        s[16 * LD + e / 16 * LD + e % 16] = b[e];
    }
    hl_barrier();
    hl_fragment<T> fa, fb, ft, fc;
    hl_fragment_load(fa, (const T *)s, LD);
    hl_fragment_load(ft, (const T *)s + 16 * LD, LD);
    hl_fragment_load_transposed(fb, (const T *)s + 16 * LD, LD);
    float sum[3][2][4] = {};
    for (int i = 0; i < 2; i++) {
        hl_fragment_mma(sum[0][i], fa, fb.v[2 * i], fb.v[2 * i + 1]);
        hl_fragment_mma(sum[1][i], fa, ft.v[i], ft.v[i + 2]);
    }
    for (int i = 0; i < 4; i++)
        fc.v[i] = hl_fragment_word<T>(sum[1][i / 2][i % 2 * 2], sum[1][i / 2][i % 2 * 2 + 1]);
    for (int i = 0; i < 2; i++) hl_fragment_mma(sum[2][i], fc, fb.v[2 * i], fb.v[2 * i + 1]);
    int g = hl_thread() / 4, t = hl_thread() % 4;
    for (int e = 0; e < 24; e++)
        c[e / 8 * 256 + (g + e / 2 % 2 * 8) * 16 + 2 * t + e % 2 + e / 4 % 2 * 8] =
            sum[e / 8][e / 4 % 2][e % 4];
}
HL_KERNEL(prim_fragments_f16, 32, const hl_f16 *a, const hl_f16 *b, float *c)
{
    multiply_fragments(a, b, c);
}
HL_KERNEL(prim_fragments_bf16, 32, const hl_bf16 *a, const hl_bf16 *b, float *c)
{
    multiply_fragments(a, b, c);
}
HL_KERNEL(prim_convert, 256, const float *in, hl_bf16 *b, hl_f16 *h, float *back, int n)
{
    HL_FOR_GRID(i, n)
    {
        b[i] = hl_to_bf16(in[i]);
        h[i] = hl_to_f16(in[i]);
        back[i] = hl_to_float(hl_to_f16(in[i]));
    }
}
HL_KERNEL(prim_where, 64, int32_t *out)
{
    int block = hl_block_y() * hl_blocks_x() + hl_block_x();
    out[block * hl_threads() + hl_thread()] =
        hl_blocks_y() * 100 + hl_block_y() * 10 + hl_block_x();
}
