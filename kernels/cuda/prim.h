/* The only primitives that a CUDA kernel uses, generated kernels too.
 *
 * Each has two meanings: nvcc (or NVRTC) makes device code of it, and where HL_EMULATE names a
 * header with its twins a C++ compiler makes a function of the kernel that runs on the CPU, every
 * thread a fiber (tests/cuda/emu/twin.h; tests alone, never shipped). What is not here a kernel may
 * not use, except C's operators, <math.h>'s functions and csrc's inline functions made for both.
 *
 * Rules that the emulation holds: blocks are one-dimensional rows of threads; shared arrays have
 * one dimension and elements that are read and written whole; a mask names lanes that all arrive;
 * no thread leaves before the last barrier of its block; an asynchronous copy is waited for.
 *
 * A source that defines HL_PRIM_BLOCKS, and HL_PRIM_BLOCK_THREADS, has blocks that are parts of
 * one: it is launched as one block, whose threads find themselves in a grid of so many blocks of so
 * many threads, each with shared memory and barriers of its own. All of them are on one
 * multiprocessor, so that hl_barrier_all() can wait for the whole grid, whose writes it then sees.
 *
 * Rejected: cuda_fp16.h and cuda_bf16.h for storage types (they are not there under NVRTC, and
 * their operators hide conversions); cooperative_groups (a second way to say the same). */
#ifndef HL_CUDA_PRIM_H
#define HL_CUDA_PRIM_H

#include <stddef.h>
#include <stdint.h>

/* 16-bit floats as memory holds them; arithmetic is fp32's. */
struct hl_bf16 {
    static constexpr bool IS_BRAIN = true; /* the exponent of a float */
    uint16_t bits;
};
struct hl_f16 {
    static constexpr bool IS_BRAIN = false;
    uint16_t bits;
};
struct alignas(16) hl_word4 {
    uint32_t x, y, z, w;
};

/* What a lane holds of a 16 x 16 matrix of 16-bit floats T (hl_fragment_load). */
template <class T> struct hl_fragment {
    uint32_t v[4];
};

#define HL_WARP_ALL 0xFFFFFFFFu

#ifdef HL_EMULATE
#include HL_EMULATE
#else

/* A kernel: one name in the fatbin, at most max_threads threads a block. */
#define HL_KERNEL(name, max_threads, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(max_threads) name(__VA_ARGS__)
/* A parameter that is only read: it stays where the launch put it, however it is indexed. */
#define HL_CONSTANT     const __grid_constant__
#define HL_DEVICE       __device__ __forceinline__
#define HL_MEMBER       __device__ __forceinline__ /* of a struct */
#define HL_UNROLL       _Pragma("unroll")
/* By a constant that may depend on a template's parameters; 1: not. */
#define HL_UNROLL_BY(n) HL_PRAGMA(unroll(n))
#define HL_PRAGMA(text) _Pragma(#text)
/* Shared memory of a block: an array of a size known here, or of the size given at launch. */
#ifdef HL_PRIM_BLOCKS
#define HL_SHARED(T, name, n)                                                                      \
    __shared__ __align__(32) T hl_each_##name[HL_PRIM_BLOCKS][n];                                  \
    T *const name = hl_each_##name[hl_block_x()]
/* Equal parts of what is given at launch: multiples of 32 bytes. */
#define HL_SHARED_DYNAMIC(T, name)                                                                 \
    extern __shared__ __align__(32) unsigned char hl_dynamic_shared[];                             \
    T *const name = (T *)(hl_dynamic_shared + hl_block_x() * hl_dynamic_bytes())

#define hl_thread()   ((int)(threadIdx.x % HL_PRIM_BLOCK_THREADS))
#define hl_threads()  HL_PRIM_BLOCK_THREADS
#define hl_block_x()  ((int)(threadIdx.x / HL_PRIM_BLOCK_THREADS))
#define hl_block_y()  0
#define hl_blocks_x() HL_PRIM_BLOCKS
#define hl_blocks_y() 1

/* Barrier 0 is the whole block's. */
#define hl_barrier()                                                                               \
    asm volatile("bar.sync %0, %1;" ::"r"(hl_block_x() + 1), "n"(HL_PRIM_BLOCK_THREADS)            \
                 : "memor"                                                                         \
                   "y")
#define hl_barrier_all() __syncthreads()

HL_DEVICE int hl_dynamic_bytes()
{
    int bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes / HL_PRIM_BLOCKS;
}
#else
#define HL_SHARED(T, name, n) __shared__ __align__(32) T name[n]
#define HL_SHARED_DYNAMIC(T, name)                                                                 \
    extern __shared__ __align__(32) unsigned char hl_dynamic_shared[];                             \
    T *name = (T *)hl_dynamic_shared

#define hl_thread()   ((int)threadIdx.x)
#define hl_threads()  ((int)blockDim.x)
#define hl_block_x()  ((int)blockIdx.x)
#define hl_block_y()  ((int)blockIdx.y)
#define hl_blocks_x() ((int)gridDim.x)
#define hl_blocks_y() ((int)gridDim.y)

#define hl_barrier() __syncthreads()
#endif

#define hl_warp_sync(mask)         __syncwarp(mask)
#define hl_ballot(mask, predicate) __ballot_sync(mask, predicate)

/* Shuffles move any plain value of 4, 8, 12 or 16 bytes. A lane beyond the warp reads itself. */
template <class T, class F> HL_DEVICE T hl_shuffle_words(T value, F move)
{
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 16, "a shuffle moves 4 to 16 bytes");
    union {
        T value;
        uint32_t word[sizeof(T) / 4];
    } in, out;
    in.value = value;
    HL_UNROLL
    for (int i = 0; i < (int)(sizeof(T) / 4); i++) out.word[i] = move(in.word[i]);
    return out.value;
}
template <class T> HL_DEVICE T hl_shuffle(uint32_t mask, T value, int lane)
{
    return hl_shuffle_words(value, [=](uint32_t w) { return __shfl_sync(mask, w, lane); });
}
template <class T> HL_DEVICE T hl_shuffle_xor(uint32_t mask, T value, int lanes)
{
    return hl_shuffle_words(value, [=](uint32_t w) { return __shfl_xor_sync(mask, w, lanes); });
}
template <class T> HL_DEVICE T hl_shuffle_up(uint32_t mask, T value, int delta)
{
    return hl_shuffle_words(value,
                            [=](uint32_t w) { return __shfl_up_sync(mask, w, (unsigned)delta); });
}

/* Each returns the old value. Sums of floats depend on the order of threads: not deterministic. */
HL_DEVICE float hl_atomic_add(float *p, float v)
{
    return atomicAdd(p, v);
}
HL_DEVICE int32_t hl_atomic_add(int32_t *p, int32_t v)
{
    return atomicAdd(p, v);
}
HL_DEVICE uint32_t hl_atomic_add(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}
HL_DEVICE int32_t hl_atomic_max(int32_t *p, int32_t v)
{
    return atomicMax(p, v);
}
HL_DEVICE int64_t hl_atomic_cas(int64_t *p, int64_t expected, int64_t v)
{
    return (int64_t)atomicCAS((unsigned long long *)p, (unsigned long long)expected,
                              (unsigned long long)v);
}

HL_DEVICE uint32_t hl_float_bits(float x)
{
    return __float_as_uint(x);
}
HL_DEVICE float hl_bits_float(uint32_t bits)
{
    return __uint_as_float(bits);
}
HL_DEVICE double hl_bits_double(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}
HL_DEVICE float hl_rsqrt(float x)
{
    return rsqrtf(x);
}
HL_DEVICE uint32_t hl_mul_high(uint32_t a, uint32_t b)
{
    return __umulhi(a, b);
}
HL_DEVICE uint64_t hl_mul_high(uint64_t a, uint64_t b)
{
    return __umul64hi(a, b);
}
HL_DEVICE int hl_count_bits(uint32_t x)
{
    return __popc(x);
}
HL_DEVICE float hl_to_float(hl_f16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
HL_DEVICE hl_f16 hl_to_f16(float x)
{
    hl_f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

/* Where a vector lies, which has to be a multiple of its alignment: a GPU faults elsewhere. */
template <class V> HL_DEVICE V *hl_vector(V *p)
{
    return p;
}

/* 16 bytes from global to shared memory, both at multiples of 16: there once its group is waited
 * for, to this thread; to others after a barrier too. A plain copy before sm_80. */
HL_DEVICE void hl_async_copy16(void *dst, const void *src)
{
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)),
        "l"(src)
        : "memory");
#else
    *(hl_word4 *)dst = *(const hl_word4 *)src;
#endif
}
/* Ends a group of copies. */
HL_DEVICE void hl_async_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Returns when all but the last `left` groups are there. */
template <int left> HL_DEVICE void hl_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

/* ---- 16 x 16 x 16 matrix products by a whole warp, row-major, fp32 sums; HL_PRIM_MMA asks for
 * them. Leading dims count elements: multiples of 8 (of 4 for float); tiles begin at multiples of
 * 32 bytes. bf16 exists from sm_80 on: below, its kernel compiles to a trap and query must refuse.
 */
#ifdef HL_PRIM_MMA
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

template <class T> struct hl_mma_traits;
template <> struct hl_mma_traits<hl_bf16> {
    typedef __nv_bfloat16 type;
#if __CUDA_ARCH__ < 800
    static constexpr bool exists = false;
#else
    static constexpr bool exists = true;
#endif
};
template <> struct hl_mma_traits<hl_f16> {
    typedef __half type;
    static constexpr bool exists = true;
};
struct hl_no_tile {
};
template <class T, bool exists> struct hl_tiles {
    typedef typename hl_mma_traits<T>::type type;
    typedef nvcuda::wmma::row_major order;
    typedef nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, type, order> a;
    typedef nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, type, order> b;
};
template <class T> struct hl_tiles<T, false> {
    typedef hl_no_tile a, b;
};
template <class T> using hl_tile_a = typename hl_tiles<T, hl_mma_traits<T>::exists>::a;
template <class T> using hl_tile_b = typename hl_tiles<T, hl_mma_traits<T>::exists>::b;
typedef nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> hl_tile_c;

template <class F, class T> HL_DEVICE void hl_mma_load(F &tile, const T *src, int ld)
{
    if constexpr (hl_mma_traits<T>::exists)
        nvcuda::wmma::load_matrix_sync(tile, (const typename hl_mma_traits<T>::type *)src, ld);
}
template <class A, class B> HL_DEVICE void hl_mma(hl_tile_c &c, const A &a, const B &b)
{
    nvcuda::wmma::mma_sync(c, a, b, c);
}
HL_DEVICE void hl_mma(hl_tile_c &, const hl_no_tile &, const hl_no_tile &)
{
    __trap();
}
HL_DEVICE void hl_mma_zero(hl_tile_c &c)
{
    nvcuda::wmma::fill_fragment(c, 0.0f);
}
HL_DEVICE void hl_mma_store(float *dst, const hl_tile_c &c, int ld)
{
    nvcuda::wmma::store_matrix_sync(dst, c, ld, nvcuda::wmma::mem_row_major);
}
#endif

/* ---- products of fragments by a whole warp, fp32 sums: what each lane holds of a matrix is known,
 * so that a result becomes an operand without leaving registers. With g = lane / 4, t = lane % 4:
 *
 *     hl_fragment   16 x 16 of 16 bits, words of two neighbours in a row, the left one low: v[0] at
 *                   (g, 2 t), v[1] at (g + 8, 2 t), v[2] at (g, 2 t + 8), v[3] at (g + 8, 2 t + 8)
 *     c             16 x 8 floats: c[0], c[1] at (g, 2 t), c[2], c[3] at (g + 8, 2 t)
 *
 * load reads one from shared memory, row-major; transposed, the pair of a word are neighbours in a
 * column: v[0] at (2 t, g), v[1] at (2 t + 8, g), v[2] at (2 t, g + 8), v[3] at (2 t + 8, g + 8).
 * mma adds to c the product of a and a 16 x 8 whose words are b0 at rows 2 t, 2 t + 1, b1 eight
 * rows below, of column g: words 0, 2 (or 1, 3) of a fragment loaded from the matrix transposed,
 * words 0, 1 (or 2, 3) of one loaded transposed. Leading dims are multiples of 8 elements, tiles
 * begin at multiples of 16 bytes. bf16 exists from sm_80 on, as above. */
template <class T> HL_DEVICE void hl_fragment_load(hl_fragment<T> &f, const T *src, int ld)
{
    int lane = hl_thread() % 32;
    uint32_t at = (uint32_t)__cvta_generic_to_shared(src + lane % 16 * ld + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.v[0]), "=r"(f.v[1]), "=r"(f.v[2]), "=r"(f.v[3])
                 : "r"(at)
                 : "memory");
}
template <class T>
HL_DEVICE void hl_fragment_load_transposed(hl_fragment<T> &f, const T *src, int ld)
{
    int lane = hl_thread() % 32;
    uint32_t at = (uint32_t)__cvta_generic_to_shared(src + lane % 16 * ld + lane / 16 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.v[0]), "=r"(f.v[1]), "=r"(f.v[2]), "=r"(f.v[3])
                 : "r"(at)
                 : "memory");
}
#define HL_MMA_OPERANDS                                                                            \
    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]),                \
                                                                        "+f"(c[1]),                \
                                                                        "+f"(c[2]),                \
                                                                        "+f"(c[3])                 \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b0), "r"(b1)
template <class T>
HL_DEVICE void hl_fragment_mma(float *c, const hl_fragment<T> &a, uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (T::IS_BRAIN)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 " HL_MMA_OPERANDS);
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " HL_MMA_OPERANDS);
#else
    if constexpr (T::IS_BRAIN)
        __trap();
    else
        for (int k = 0; k < 2; k++)
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                         "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(a.v[2 * k]), "r"(a.v[2 * k + 1]), "r"(k ? b1 : b0));
#endif
}
#undef HL_MMA_OPERANDS

#endif /* HL_EMULATE */

/* ---- both halves ---- */

HL_DEVICE float hl_infinity()
{
    return hl_bits_float(0x7F800000u);
}
HL_DEVICE float hl_to_float(float x)
{
    return x;
}
HL_DEVICE float hl_to_float(hl_bf16 x)
{
    return hl_bits_float((uint32_t)x.bits << 16);
}
/* To nearest even, as hl_f32_to_bf16 of base/half.h; but any NaN becomes 0x7FFF, which is what the
 * instruction makes of it (hl_to_f16, too), so that integers before sm_80 give the same bits. */
HL_DEVICE hl_bf16 hl_to_bf16(float x)
{
#if !defined(HL_EMULATE) && __CUDA_ARCH__ >= 800
    hl_bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
#else
    uint32_t bits = hl_float_bits(x);
    bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return hl_bf16{(uint16_t)(is_nan ? 0x7FFFu : rounded)};
#endif
}

HL_DEVICE void hl_put(float *p, float x)
{
    *p = x;
}
HL_DEVICE void hl_put(hl_bf16 *p, float x)
{
    *p = hl_to_bf16(x);
}
HL_DEVICE void hl_put(hl_f16 *p, float x)
{
    *p = hl_to_f16(x);
}
/* Two neighbours, which from sm_80 on are one conversion: the upper half comes first in PTX. */
template <class T> HL_DEVICE void hl_put_pair(T *p, float x, float y)
{
#if !defined(HL_EMULATE) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 2) {
        uint32_t both;
        if constexpr (T::IS_BRAIN)
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
        else
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
        p[0].bits = (uint16_t)both, p[1].bits = (uint16_t)(both >> 16);
        return;
    }
#endif
    hl_put(p, x);
    hl_put(p + 1, y);
}
/* Two neighbours as a word of a fragment. */
template <class T> HL_DEVICE uint32_t hl_fragment_word(float x, float y)
{
    T both[2];
    hl_put_pair(both, x, y);
    return both[0].bits | (uint32_t)both[1].bits << 16;
}
template <class T> HL_DEVICE float hl_read(const T *p, int64_t i)
{
    return hl_to_float(p[i]);
}
template <class T> HL_DEVICE void hl_write(T *p, int64_t i, float x)
{
    hl_put(p + i, x);
}

/* One line per storage type of floats: X(type, suffix of the kernel's name). */
#define HL_FLOAT_TYPES(X) X(float, f32) X(hl_bf16, bf16) X(hl_f16, f16)
/* Two or three operands, each float or of the one 16-bit type that all of them share. */
#define HL_FLOAT_PAIRS_OF(X, T, t) X(float, T, f32_##t) X(T, float, t##_f32) X(T, T, t##_##t)
#define HL_FLOAT_PAIRS(X)                                                                          \
    X(float, float, f32_f32) HL_FLOAT_PAIRS_OF(X, hl_bf16, bf16) HL_FLOAT_PAIRS_OF(X, hl_f16, f16)
#define HL_FLOAT_TRIPLES_OF(X, T, t)                                                               \
    X(float, float, T, f32_f32_##t)                                                                \
    X(float, T, float, f32_##t##_f32)                                                              \
    X(float, T, T, f32_##t##_##t)                                                                  \
    X(T, float, float, t##_f32_f32)                                                                \
    X(T, float, T, t##_f32_##t)                                                                    \
    X(T, T, float, t##_##t##_f32)                                                                  \
    X(T, T, T, t##_##t##_##t)
#define HL_FLOAT_TRIPLES(X)                                                                        \
    X(float, float, float, f32_f32_f32)                                                            \
    HL_FLOAT_TRIPLES_OF(X, hl_bf16, bf16) HL_FLOAT_TRIPLES_OF(X, hl_f16, f16)

/* Elements [first, n) by steps of the whole grid: any grid computes the same. */
#define HL_GRID_FIRST     ((int64_t)hl_block_x() * hl_threads() + hl_thread())
#define HL_GRID_STEP      ((int64_t)hl_blocks_x() * hl_threads())
#define HL_FOR_GRID(i, n) for (int64_t i = HL_GRID_FIRST; i < (n); i += HL_GRID_STEP)

#endif
