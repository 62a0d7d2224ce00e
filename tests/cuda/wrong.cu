/* Kernels with one mistake each, for the emulation to find: test_emulation.cpp has the complaint
 * that each must get. All of them compile for the device, where each is wrong too. Launched with
 * two blocks of 64 threads (wrong_partial_warp: 48), out (2,64), in (2,64). */
#include "kernels/cuda/prim.h"

#define KERNEL(name) HL_KERNEL(name, 64, float *out, const float *in)

KERNEL(wrong_exit_before_barrier)
{
    if (hl_thread() >= 40 && hl_thread() < 50) return;
    hl_barrier();
    out[hl_thread()] = in[hl_thread()];
}
KERNEL(wrong_exit_after_others_wait)
{
    if (hl_thread() < 63) hl_barrier();
    out[hl_thread()] = in[hl_thread()];
}
KERNEL(wrong_two_barriers)
{
    if (hl_thread() < 32) {
        out[hl_thread()] = 1;
        hl_barrier();
    } else {
        out[hl_thread()] = in[0];
        hl_barrier();
    }
}
KERNEL(wrong_barrier_and_shuffle)
{
    float v = in[hl_thread()];
    if (hl_thread() % 32 == 0)
        hl_barrier();
    else
        v = hl_shuffle_xor(HL_WARP_ALL, v, 1);
    out[hl_thread()] = v;
}
KERNEL(wrong_mask_without_self)
{
    out[hl_thread()] = hl_shuffle(0xFFFFu, in[hl_thread()], 0);
}
KERNEL(wrong_mask_too_wide)
{
    float v = in[hl_thread()];
    if (hl_thread() % 32 < 20) v = hl_shuffle_xor(HL_WARP_ALL, v, 1);
    hl_barrier();
    out[hl_thread()] = v;
}
KERNEL(wrong_mask_names_exited)
{
    if (hl_thread() == 63) return;
    out[hl_thread()] = hl_shuffle_up(HL_WARP_ALL, in[hl_thread()], 1);
}
KERNEL(wrong_masks_differ)
{
    uint32_t mask = hl_thread() % 32 == 5 ? HL_WARP_ALL : 0x7FFFFFFFu;
    float v = 0;
    if (hl_thread() % 32 != 31) v = hl_shuffle(mask & HL_WARP_ALL, in[hl_thread()], 0);
    out[hl_thread()] = v;
}
KERNEL(wrong_collectives_differ)
{
    float v = in[hl_thread()];
    if (hl_thread() % 32 < 16)
        v = hl_shuffle_xor(HL_WARP_ALL, v, 1);
    else
        v = hl_ballot(HL_WARP_ALL, v > 0) ? 1 : 0;
    out[hl_thread()] = v;
}
KERNEL(wrong_shuffle_source)
{
    if (hl_thread() % 32 < 16) out[hl_thread()] = hl_shuffle(0xFFFFu, in[hl_thread()], 16);
}
KERNEL(wrong_partial_warp)
{
    out[hl_thread()] = (float)hl_ballot(HL_WARP_ALL, in[hl_thread()] > 0);
}
KERNEL(wrong_shared_index)
{
    HL_SHARED(float, s, 63);
    s[hl_thread()] = in[hl_thread()];
    out[hl_thread()] = s[hl_thread()];
}
KERNEL(wrong_shared_negative)
{
    HL_SHARED(float, s, 64);
    s[hl_thread()] = in[hl_thread()];
    hl_barrier();
    out[hl_thread()] = s[hl_thread() - 1];
}
KERNEL(wrong_shared_pointer)
{
    HL_SHARED(float, s, 63);
    float *p = s;
    p[hl_thread()] = in[hl_thread()];
    out[hl_thread()] = p[hl_thread()];
}
KERNEL(wrong_dynamic_size)
{
    HL_SHARED_DYNAMIC(float, s);
    s[hl_thread()] = in[hl_thread()];
    out[hl_thread()] = s[hl_thread()];
}
KERNEL(wrong_unwritten)
{
    HL_SHARED(float, s, 64);
    if (hl_thread() != 7) s[hl_thread()] = in[hl_thread()];
    hl_barrier();
    out[hl_thread()] = s[hl_thread()];
}
/* Neighbours: gives right bits in neither order, and a race is what it is. */
KERNEL(wrong_read_without_barrier)
{
    HL_SHARED(float, s, 64);
    s[hl_thread()] = in[hl_thread()];
    out[hl_thread()] = s[hl_thread() > 0 ? hl_thread() - 1 : 0];
}
/* The classic: the array is written again while others still read. */
KERNEL(wrong_reuse_without_barrier)
{
    HL_SHARED(float, s, 64);
    float sum = 0;
    for (int i = 0; i < 2; i++) {
        s[hl_thread()] = in[hl_thread()] + (float)i;
        hl_barrier();
        sum += s[63 - hl_thread()];
    }
    out[hl_thread()] = sum;
}
KERNEL(wrong_two_writers)
{
    HL_SHARED(float, s, 1);
    s[0] = in[hl_thread()];
    hl_barrier();
    out[hl_thread()] = s[0];
}
/* A fold across warps by a warp's means. */
KERNEL(wrong_warp_sync_for_block)
{
    HL_SHARED(float, s, 64);
    s[hl_thread()] = in[hl_thread()];
    hl_warp_sync(HL_WARP_ALL);
    out[hl_thread()] = s[hl_thread() ^ 32];
}
KERNEL(wrong_async_never_waited)
{
    HL_SHARED(float, s, 256);
    hl_async_copy16((float *)s + 4 * hl_thread(), in);
    hl_async_commit();
    out[hl_thread()] = 0;
}
KERNEL(wrong_async_misaligned)
{
    HL_SHARED(float, s, 512);
    hl_async_copy16((float *)s + hl_thread(), in);
    hl_async_commit();
    hl_async_wait<0>();
    out[hl_thread()] = 0;
}
KERNEL(wrong_vector)
{
    *hl_vector((hl_word4 *)(out + hl_thread())) = hl_word4{};
    out[hl_thread()] = in[hl_thread()];
}
/* No complaint, but NaN, which no test takes for a result. */
KERNEL(wrong_async_read_early)
{
    HL_SHARED(float, s, 256);
    hl_async_copy16((float *)s + 4 * hl_thread(), in);
    hl_async_commit();
    float v = s[4 * hl_thread()];
    hl_async_wait<0>();
    out[hl_thread()] = v;
}
KERNEL(wrong_async_group)
{
    HL_SHARED(float, s, 256);
    hl_async_copy16((float *)s + 4 * hl_thread(), in);
    hl_async_commit();
    hl_async_wait<1>();
    out[hl_thread()] = s[4 * hl_thread()];
    hl_async_wait<0>();
}
/* Faults of the host. */
KERNEL(wrong_null)
{
    const float *p = hl_thread() == 9 ? (const float *)0 : in;
    out[hl_thread()] = p[hl_thread()];
}
KERNEL(wrong_divide)
{
    int zero = (int)(in[hl_thread()] * 0.5f); /* in (-1, 1) */
    out[hl_thread()] = (float)(hl_thread() / zero);
}
/* Beyond the end of out: the guard bytes of the test see it. */
KERNEL(wrong_global_index)
{
    out[hl_block_x() * 64 + hl_thread() + 1] = in[hl_thread()];
}
/* The same place by the order of threads. */
KERNEL(wrong_order)
{
    hl_atomic_add(out, in[hl_thread()]);
    if (hl_thread() > 0) out[hl_thread()] = 0;
}
