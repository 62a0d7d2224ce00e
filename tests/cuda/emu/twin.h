/* The emulated twin of every primitive in kernels/cuda/prim.h, which includes this file. */
#ifndef HL_TESTS_EMU_TWIN_H
#define HL_TESTS_EMU_TWIN_H

#include <math.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "tests/cuda/emu/emu.h"

namespace hl_emu
{

enum op : uint8_t {
    OP_NONE,
    OP_SHUFFLE,
    OP_SHUFFLE_XOR,
    OP_SHUFFLE_UP,
    OP_BALLOT,
    OP_SYNC,
    OP_MMA_LOAD,
    OP_MMA,
    OP_MMA_STORE,
    OP_FRAGMENT_MMA
};

/* Where in the source a thread waits; two are the same place if line and file are. */
struct place {
    const char *file;
    int line;
};
#define HL_EMU_HERE (hl_emu::place{__FILE__, __LINE__})

/* 16 x 16 values over 32 lanes: lane l holds elements 8 l to 8 l + 7, row by row. */
struct tile {
    float v[8];
};

/* Who touched an element of shared memory last, and in which stretch between two barriers of the
 * block, and between two collectives of its warp. */
struct cell {
    uint32_t write_block, write_warp, read_block, read_warp;
    int16_t writer, reader; /* thread; NOBODY: none, MANY: several of reader_warp */
    int16_t reader_warp;    /* MANY: of several warps */
};
enum : int16_t { NOBODY = -1, MANY = -2 };

struct shared_array {
    const void *key; /* NULL: the dynamic one, or a part of it: */
    int part;
    unsigned char *bytes;
    size_t n_bytes;
    const char *name;
    cell *cells;     /* one per element; NULL: not watched */
    bool has_leaked; /* a plain pointer to it is out: not every write is seen */
};

struct thread_id {
    int thread, threads;
    hl_emu_dim block, blocks;
};
const thread_id &self();
int lane();

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Of n threads, a multiple of a warp's or all, from `first` on. */
void barrier(place at, int first, int n);
/* The value of the lane that the op names; all lanes of the mask meet here. */
void shuffle(op o, uint32_t mask, const void *value, void *out, size_t bytes, int arg, place at);
uint32_t ballot(uint32_t mask, bool predicate, place at);
void warp_sync(uint32_t mask, place at);
void mma(tile *c, const tile *a, const tile *b, place at);
void mma_meet(op o, place at);
/* Of a lane's 8 numbers of a, 4 of b, and 4 of c, in the order of its words. */
void fragment_mma(float *c, const tile *a, const tile *b, place at);
shared_array *find_shared(const void *key, size_t bytes, size_t element, const char *name);
/* One of n equal parts. */
shared_array *find_dynamic(size_t element, const char *name, int part, int n);
void note_read(shared_array *array, size_t i);
void note_write(shared_array *array, size_t i);
/* dst reads as NaN until waited for, when the bytes are copied. */
void check_aligned(const void *p, size_t bytes);
void async_copy(void *dst, const void *src, size_t bytes);
void async_commit();
void async_wait(int left);

/* An element of shared memory: every read and write is checked for a missing barrier. */
template <class T> struct shared_element {
    shared_array *array;
    size_t i;
    T *at() const
    {
        return (T *)array->bytes + i;
    }
    operator T() const
    {
        note_read(array, i);
        return *at();
    }
    T operator=(T value) const
    {
        note_write(array, i);
        return *at() = value;
    }
    T operator=(const shared_element &other) const
    {
        return *this = (T)other;
    }
    T operator+=(T value) const
    {
        return *this = (T)((T) * this + value);
    }
    /* What happens through a plain pointer is not seen. */
    T *operator&() const
    {
        array->has_leaked = true;
        return at();
    }
};

/* A shared array: the index is checked; behind a plain pointer there are canaries alone. */
template <class T> struct shared_view {
    shared_array *array;
    template <class I> shared_element<T> operator[](I index) const
    {
        static_assert(std::is_integral<I>::value, "an index is an integer");
        if (index < 0 || (size_t)index >= array->n_bytes / sizeof(T))
            fail("%s[%lld] is outside its %zu elements", array->name, (long long)index,
                 array->n_bytes / sizeof(T));
        return {array, (size_t)index};
    }
    operator T *() const
    {
        array->has_leaked = true;
        return (T *)array->bytes;
    }
};

/* Of a part of a block (HL_PRIM_BLOCKS): a type of its own, so that what is a template of it is
 * another function than that of whole blocks. */
template <class T> struct part_view : shared_view<T> {
};

typedef void (*invoke_fn)(void (*)(), void **);
template <class... A, size_t... I>
void invoke_with(void (*f)(), void **p, std::index_sequence<I...>)
{
    (void)p;
    ((void (*)(A...))f)(*(A *)p[I]...);
}
template <class... A> void invoke(void (*f)(), void **p)
{
    invoke_with<A...>(f, p, std::index_sequence_for<A...>());
}
void add_kernel(const char *name, unsigned max_threads, void (*f)(), invoke_fn invoke,
                const size_t *sizes, int n);
void remove_kernel(const char *name, void (*f)());

/* A kernel is known while its object file is loaded: generated ones come and go by dlopen. */
struct registrar {
    const char *name;
    void (*f)();
    template <class... A>
    registrar(const char *kernel_name, unsigned max_threads, void (*kernel)(A...))
        : name(kernel_name), f((void (*)())kernel)
    {
        static const size_t sizes[] = {sizeof(A)..., 0};
        add_kernel(name, max_threads, f, invoke<A...>, sizes, sizeof...(A));
    }
    ~registrar()
    {
        remove_kernel(name, f);
    }
};

} // namespace hl_emu

#define HL_KERNEL(name, max_threads, ...)                                                          \
    extern "C" void name(__VA_ARGS__);                                                             \
    static hl_emu::registrar hl_registrar_##name(#name, max_threads, name);                        \
    extern "C" void name(__VA_ARGS__)
#define HL_CONSTANT const
#define HL_DEVICE   static inline __attribute__((unused))
#define HL_MEMBER   inline
#define HL_UNROLL
#define HL_UNROLL_BY(n)
#define hl_barrier_all() hl_emu::barrier(HL_EMU_HERE, 0, hl_emu::self().threads)
#ifdef HL_PRIM_BLOCKS
#define HL_SHARED(T, name, n)                                                                      \
    static const char hl_key_##name[HL_PRIM_BLOCKS] = {0};                                         \
    const hl_emu::part_view<T> name = {                                                            \
        {hl_emu::find_shared(&hl_key_##name[hl_block_x()], (n) * sizeof(T), sizeof(T), #name)}}
#define HL_SHARED_DYNAMIC(T, name)                                                                 \
    const hl_emu::part_view<T> name = {                                                            \
        {hl_emu::find_dynamic(sizeof(T), #name, hl_block_x(), HL_PRIM_BLOCKS)}}

#define hl_thread()   (hl_emu::self().thread % HL_PRIM_BLOCK_THREADS)
#define hl_threads()  HL_PRIM_BLOCK_THREADS
#define hl_block_x()  (hl_emu::self().thread / HL_PRIM_BLOCK_THREADS)
#define hl_block_y()  0
#define hl_blocks_x() HL_PRIM_BLOCKS
#define hl_blocks_y() 1

#define hl_barrier()                                                                               \
    hl_emu::barrier(HL_EMU_HERE, hl_block_x() * HL_PRIM_BLOCK_THREADS, HL_PRIM_BLOCK_THREADS)
#else
#define HL_SHARED(T, name, n)                                                                      \
    static const char hl_key_##name = 0;                                                           \
    const hl_emu::shared_view<T> name = {                                                          \
        hl_emu::find_shared(&hl_key_##name, (n) * sizeof(T), sizeof(T), #name)}
#define HL_SHARED_DYNAMIC(T, name)                                                                 \
    const hl_emu::shared_view<T> name = {hl_emu::find_dynamic(sizeof(T), #name, 0, 1)}

#define hl_thread()   (hl_emu::self().thread)
#define hl_threads()  (hl_emu::self().threads)
#define hl_block_x()  ((int)hl_emu::self().block.x)
#define hl_block_y()  ((int)hl_emu::self().block.y)
#define hl_blocks_x() ((int)hl_emu::self().blocks.x)
#define hl_blocks_y() ((int)hl_emu::self().blocks.y)

#define hl_barrier() hl_barrier_all()
#endif
#define hl_warp_sync(mask)         hl_emu::warp_sync(mask, HL_EMU_HERE)
#define hl_ballot(mask, predicate) hl_emu::ballot(mask, predicate, HL_EMU_HERE)

template <class T>
static inline T hl_emu_shuffle(hl_emu::op o, uint32_t mask, T value, int arg, hl_emu::place at)
{
    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 16, "a shuffle moves 4 to 16 bytes");
    T out;
    hl_emu::shuffle(o, mask, &value, &out, sizeof value, arg, at);
    return out;
}
#define hl_shuffle(mask, v, lane) hl_emu_shuffle(hl_emu::OP_SHUFFLE, mask, v, lane, HL_EMU_HERE)
#define hl_shuffle_xor(mask, v, lanes)                                                             \
    hl_emu_shuffle(hl_emu::OP_SHUFFLE_XOR, mask, v, lanes, HL_EMU_HERE)
#define hl_shuffle_up(mask, v, delta)                                                              \
    hl_emu_shuffle(hl_emu::OP_SHUFFLE_UP, mask, v, delta, HL_EMU_HERE)

HL_DEVICE float hl_atomic_add(float *p, float v)
{
    uint32_t old = __atomic_load_n((uint32_t *)(void *)p, __ATOMIC_RELAXED), wanted;
    float was, sum;
    do {
        memcpy(&was, &old, 4);
        sum = was + v;
        memcpy(&wanted, &sum, 4);
    } while (!__atomic_compare_exchange_n((uint32_t *)(void *)p, &old, wanted, false,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return was;
}
HL_DEVICE int32_t hl_atomic_add(int32_t *p, int32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
HL_DEVICE uint32_t hl_atomic_add(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
HL_DEVICE int32_t hl_atomic_max(int32_t *p, int32_t v)
{
    int32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v &&
           !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
HL_DEVICE int64_t hl_atomic_cas(int64_t *p, int64_t expected, int64_t v)
{
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

HL_DEVICE uint32_t hl_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
HL_DEVICE float hl_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
HL_DEVICE double hl_bits_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
HL_DEVICE float hl_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}
HL_DEVICE uint32_t hl_mul_high(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
HL_DEVICE uint64_t hl_mul_high(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}
HL_DEVICE int hl_count_bits(uint32_t x)
{
    return __builtin_popcount(x);
}
HL_DEVICE float hl_to_float(hl_f16 x)
{
    uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, e = x.bits >> 10 & 31, m = x.bits & 0x3FF;
    if (e == 31) return hl_bits_float(sign | 0x7F800000u | m << 13);
    if (e == 0) return hl_bits_float(sign | hl_float_bits((float)m * 0x1p-24f));
    return hl_bits_float(sign | (e + 112) << 23 | m << 13);
}
/* NaN: the device's canonical one. */
HL_DEVICE hl_f16 hl_to_f16(float x)
{
    uint32_t bits = hl_float_bits(x), sign = bits >> 16 & 0x8000, a = bits & 0x7FFFFFFF;
    if (a > 0x7F800000u) return hl_f16{0x7FFF};
    if (a >= 0x477FF000u) return hl_f16{(uint16_t)(sign | 0x7C00)};
    if (a < 0x38800000u)
        return hl_f16{(uint16_t)(sign | (uint32_t)lrintf(hl_bits_float(a) * 0x1p24f))};
    return hl_f16{(uint16_t)(sign | ((a + 0xFFF + (a >> 13 & 1) - 0x38000000u) >> 13))};
}

template <class V> HL_DEVICE V *hl_vector(V *p)
{
    hl_emu::check_aligned((const void *)p, alignof(V));
    return p;
}

HL_DEVICE void hl_async_copy16(void *dst, const void *src)
{
    hl_emu::async_copy(dst, src, 16);
}
HL_DEVICE void hl_async_commit()
{
    hl_emu::async_commit();
}
template <int left> HL_DEVICE void hl_async_wait()
{
    hl_emu::async_wait(left);
}

template <class T> struct hl_tile_a : hl_emu::tile {
};
template <class T> struct hl_tile_b : hl_emu::tile {
};
typedef hl_emu::tile hl_tile_c;
HL_DEVICE float hl_to_float(hl_bf16 x);
template <class T>
static inline void hl_emu_mma_load(hl_emu::tile &t, const T *src, int ld, hl_emu::place at)
{
    if (ld % 8 || (uintptr_t)src % 32)
        hl_emu::fail("line %d: a tile at address %% 32 = %d with leading dim %d", at.line,
                     (int)((uintptr_t)src % 32), ld);
    hl_emu::mma_meet(hl_emu::OP_MMA_LOAD, at);
    for (int i = 0, e = hl_emu::lane() * 8; i < 8; i++, e++)
        t.v[i] = hl_to_float(src[e / 16 * ld + e % 16]);
}
static inline void hl_emu_mma_store(float *dst, const hl_tile_c &c, int ld, hl_emu::place at)
{
    if (ld % 4 || (uintptr_t)dst % 32)
        hl_emu::fail("line %d: a tile at address %% 32 = %d with leading dim %d", at.line,
                     (int)((uintptr_t)dst % 32), ld);
    hl_emu::mma_meet(hl_emu::OP_MMA_STORE, at);
    for (int i = 0, e = hl_emu::lane() * 8; i < 8; i++, e++) dst[e / 16 * ld + e % 16] = c.v[i];
}
HL_DEVICE void hl_mma_zero(hl_tile_c &c)
{
    memset(&c, 0, sizeof c);
}

template <class T>
static inline void hl_emu_fragment_load(hl_fragment<T> &f, const T *src, int ld, bool transposed,
                                        hl_emu::place at)
{
    if (ld % 8 || (uintptr_t)src % 16)
        hl_emu::fail("line %d: a fragment at address %% 16 = %d with leading dim %d", at.line,
                     (int)((uintptr_t)src % 16), ld);
    hl_emu::mma_meet(hl_emu::OP_MMA_LOAD, at);
    int g = hl_emu::lane() / 4, t = hl_emu::lane() % 4;
    for (int i = 0; i < 4; i++) {
        const T *from = src + i % 2 * 8 * ld + i / 2 * 8;
        const T *low = from + (transposed ? 2 * t * ld + g : g * ld + 2 * t);
        f.v[i] = low[0].bits | (uint32_t)low[transposed ? ld : 1].bits << 16;
    }
}
template <class T>
static inline void hl_emu_fragment_mma(float *c, const hl_fragment<T> &a, uint32_t b0, uint32_t b1,
                                       hl_emu::place at)
{
    hl_emu::tile of_a, of_b;
    const uint32_t b[2] = {b0, b1};
    for (int i = 0; i < 8; i++) of_a.v[i] = hl_to_float(T{(uint16_t)(a.v[i / 2] >> i % 2 * 16)});
    for (int i = 0; i < 4; i++) of_b.v[i] = hl_to_float(T{(uint16_t)(b[i / 2] >> i % 2 * 16)});
    hl_emu::fragment_mma(c, &of_a, &of_b, at);
}
#define hl_fragment_load(f, src, ld)            hl_emu_fragment_load(f, src, ld, false, HL_EMU_HERE)
#define hl_fragment_load_transposed(f, src, ld) hl_emu_fragment_load(f, src, ld, true, HL_EMU_HERE)
#define hl_fragment_mma(c, a, b0, b1)           hl_emu_fragment_mma(c, a, b0, b1, HL_EMU_HERE)

#define hl_mma_load(tile, src, ld)  hl_emu_mma_load(tile, src, ld, HL_EMU_HERE)
#define hl_mma_store(dst, tile, ld) hl_emu_mma_store(dst, tile, ld, HL_EMU_HERE)
#define hl_mma(c, a, b)             hl_emu::mma(&(c), &(a), &(b), HL_EMU_HERE)

#endif
