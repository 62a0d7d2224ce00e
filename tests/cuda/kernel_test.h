/* What tests of kernels share: guarded buffers, launches in several thread orders with the same
 * bits, comparison with fp64 by DESIGN's rule.
 *
 * Kernels are emulated. With HL_TEST_GPU the same tests launch them on a GPU (gpu_launch.h); the
 * emulation still knows their parameters, and the thread order is the GPU's own, three times. */
#ifndef HL_TESTS_KERNEL_TEST_H
#define HL_TESTS_KERNEL_TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/control.h"
#include "kernels/cuda/prim.h"
#ifdef HL_TEST_GPU
#include "tests/cuda/gpu_launch.h"
#endif

static int n_failures, n_checks;
static std::string case_name; /* of the running case, for messages */

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        n_failures++;                                                                              \
        printf("FAIL %s: ", case_name.c_str());                                                    \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
    } while (0)

__attribute__((format(printf, 1, 2))) static inline void start_case(const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    case_name = text;
}

/* ---- numbers ---- */

static uint64_t random_state = 88172645463325252ull;
static inline uint64_t random_bits()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}
/* In [-1, 1). */
static inline double random_number()
{
    return (double)(random_bits() >> 11) * 0x1p-52 - 1;
}
static inline int64_t random_below(int64_t n)
{
    return (int64_t)((random_bits() >> 16) % (uint64_t)n);
}

static inline double number(float x)
{
    return x;
}
static inline double number(hl_bf16 x)
{
    return hl_to_float(x);
}
static inline double number(hl_f16 x)
{
    return hl_to_float(x);
}
/* Half the distance from 1 to the next number. */
template <class T> static double roundoff()
{
    return std::is_same<T, float>::value     ? 0x1p-24
           : std::is_same<T, hl_bf16>::value ? 0x1p-8
                                             : 0x1p-11;
}
template <class T> static const char *suffix()
{
    return std::is_same<T, float>::value ? "f32" : std::is_same<T, hl_bf16>::value ? "bf16" : "f16";
}

/* ---- buffers: guard bytes on both sides, NaN (or -1) inside ---- */

enum { GUARD_BYTES = 256 };

#ifdef HL_TEST_GPU
/* Opened by the first buffer, closed by finish_tests: a destructor at exit would come after those
 * of the driver's own threads. */
static bool is_open;
static inline void open_gpu()
{
    if (is_open) return;
    if (hl_gpu_open()) {
        printf("FAIL no GPU: %s\n", hl_gpu_error());
        exit(1);
    }
    is_open = true;
}
template <class T> struct pinned {
    typedef T value_type;
    T *allocate(size_t n)
    {
        open_gpu();
        void *p = hl_gpu_alloc(n * sizeof(T));
        if (!p) throw std::bad_alloc();
        return (T *)p;
    }
    void deallocate(T *p, size_t)
    {
        hl_gpu_free(p);
    }
    bool operator==(const pinned &) const
    {
        return true;
    }
    bool operator!=(const pinned &) const
    {
        return false;
    }
};
typedef std::vector<unsigned char, pinned<unsigned char>> bytes_vector;
#else
typedef std::vector<unsigned char> bytes_vector;
#endif

struct memory {
    bytes_vector all;
    unsigned char *p;
    size_t n_bytes;
    static std::vector<memory *> &live()
    {
        static std::vector<memory *> list;
        return list;
    }
    explicit memory(size_t bytes) : n_bytes(bytes)
    {
        all.assign(bytes + 3 * GUARD_BYTES, 0xA5);
        uintptr_t at = ((uintptr_t)all.data() + GUARD_BYTES + 255) & ~(uintptr_t)255;
        p = (unsigned char *)at;
        memset(p, 0xFF, bytes);
        live().push_back(this);
    }
    memory(const memory &) = delete;
    ~memory()
    {
        for (size_t i = 0; i < live().size(); i++)
            if (live()[i] == this) live().erase(live().begin() + (ptrdiff_t)i);
    }
    bool is_guarded() const
    {
        for (const unsigned char *b = all.data(); b < all.data() + all.size(); b++)
            if ((b < p || b >= p + n_bytes) && *b != 0xA5) return false;
        return true;
    }
};

template <class T> struct buffer : memory {
    int64_t n;
    explicit buffer(int64_t count) : memory((size_t)count * sizeof(T)), n(count)
    {
    }
    T *get() const
    {
        return (T *)(void *)p;
    }
    T &operator[](int64_t i) const
    {
        return get()[i];
    }
};
template <class T> static void fill_random(const buffer<T> &b, double scale = 1, double shift = 0)
{
    for (int64_t i = 0; i < b.n; i++)
        hl_write(b.get(), i, (float)(shift + scale * random_number()));
}

/* ---- launches ---- */

static inline int launch_kernel(const hl_emu_kernel *k, hl_emu_dim grid, unsigned threads,
                                size_t shared_bytes, void **args)
{
#ifdef HL_TEST_GPU
    const unsigned dims[3] = {grid.x, grid.y, grid.z};
    std::vector<void *> ended(args, args + hl_emu_param_count(k));
    ended.push_back(nullptr);
    return hl_gpu_launch(hl_emu_name(k), dims, threads, shared_bytes, ended.data());
#else
    return hl_emu_launch(k, grid, {threads, 1, 1}, shared_bytes, args);
#endif
}
/* Whether the device has tensor cores' products of bfloat16; the emulation has. */
static inline bool has_bf16_mma()
{
#ifdef HL_TEST_GPU
    open_gpu();
    return hl_gpu_arch() >= 80;
#else
    return true;
#endif
}
static inline const char *launch_error()
{
#ifdef HL_TEST_GPU
    return hl_gpu_error();
#else
    return hl_emu_error();
#endif
}

template <class A> static bool add_arg(const hl_emu_kernel *k, int &i, void **p, A &a)
{
    p[i] = &a;
    return i < hl_emu_param_count(k) && hl_emu_param_bytes(k, i++) == sizeof(A);
}

template <class... A>
static bool launch_grid(const std::string &name, hl_emu_dim grid, unsigned threads,
                        size_t shared_bytes, A... args)
{
    const hl_emu_kernel *k = hl_emu_find(name.c_str());
    if (!k) {
        FAIL("no kernel %s", name.c_str());
        return false;
    }
    void *p[sizeof...(A) + 1];
    int i = 0;
    bool fits = hl_emu_param_count(k) == (int)sizeof...(A);
    bool each[] = {fits, (fits && add_arg(k, i, p, args))...};
    for (bool one : each) fits = fits && one;
    if (!fits) {
        FAIL("%s takes other parameters (%d of %d fit)", name.c_str(), i, hl_emu_param_count(k));
        return false;
    }
    n_checks++;
    if (launch_kernel(k, grid, threads, shared_bytes, p)) {
        FAIL("%s", launch_error());
        return false;
    }
    for (memory *m : memory::live())
        if (!m->is_guarded()) {
            FAIL("%s wrote beside a buffer of %zu bytes", name.c_str(), m->n_bytes);
            return false;
        }
    return true;
}
template <class... A>
static bool launch(const std::string &name, unsigned blocks, unsigned threads, A... args)
{
    return launch_grid(name, {blocks, 1, 1}, threads, 0, args...);
}
/* The kernel of a kind, by the members of its parameters. */
#define LAUNCH(kind, variant, blocks, threads, ...)                                                \
    launch(std::string("hl_cuda_" #kind "_") + (variant), blocks, threads,                         \
           hl_cuda_##kind##_params{__VA_ARGS__})
#define LAUNCH_ONLY(kind, blocks, threads, ...)                                                    \
    launch("hl_cuda_" #kind, blocks, threads, hl_cuda_##kind##_params{__VA_ARGS__})

/* Runs fn in several thread orders, each time from the same bytes in outs, and wants the same bytes
 * every time. */
template <class F> static void run_orders(const std::vector<memory *> &outs, F fn)
{
    std::vector<std::vector<unsigned char>> start, first;
    for (memory *m : outs) start.emplace_back(m->p, m->p + m->n_bytes);
    for (uint32_t order : {0u, 1u, 12345u}) {
        size_t i = 0;
        for (memory *m : outs) {
            if (m->n_bytes) memcpy(m->p, start[i].data(), m->n_bytes);
            i++;
        }
        hl_emu_set_order(order);
        fn();
        i = 0;
        for (memory *m : outs) {
            if (order == 0)
                first.emplace_back(m->p, m->p + m->n_bytes);
            else if (m->n_bytes && memcmp(first[i].data(), m->p, m->n_bytes))
                FAIL("other bits of output %zu in thread order %u", i, order);
            i++;
        }
    }
    hl_emu_set_order(HL_EMU_FORWARD);
}

/* ---- comparison ---- */

/* NaN where a number is wanted is as far as can be; wanted NaN and infinities must be there. */
static inline bool is_close(double got, double want, double bound)
{
    if (isnan(want)) return isnan(got);
    if (isinf(want)) return got == want;
    return fabs(got - want) <= bound;
}

/* got[i] against want(i) within bound(i), plus the rounding to T. */
template <class T, class W, class B>
static void check_close(const char *what, const buffer<T> &got, W want, B bound)
{
    n_checks++;
    for (int64_t i = 0; i < got.n; i++) {
        double w = want(i), limit = bound(i) + roundoff<T>() * fabs(w) + 0x1p-149;
        if (sizeof(T) == 2 && std::is_same<T, hl_f16>::value) limit += 0x1p-25;
        if (is_close(number(got[i]), w, limit)) continue;
        FAIL("%s[%lld] is %.9g, want %.9g within %.3g", what, (long long)i, number(got[i]), w,
             limit);
        return;
    }
}
/* A kernel that writes Y gives the bits of the one that writes float32, rounded: run(suffix, out).
 */
template <class Y, class F>
static void check_rounds_to(const char *what, const buffer<float> &values, F run)
{
    buffer<Y> got(values.n), want(values.n);
    run_orders({&got}, [&] { run(suffix<Y>(), got.get()); });
    for (int64_t i = 0; i < values.n; i++) hl_write(want.get(), i, values[i]);
    n_checks++;
    if (memcmp(got.p, want.p, got.n_bytes)) FAIL("%s: other bits in %s", what, suffix<Y>());
}
/* To T, or to both where that is float32. */
template <class T, class F>
static void check_rounds(const char *what, const buffer<float> &values, F run)
{
    if (!std::is_same<T, hl_f16>::value) check_rounds_to<hl_bf16>(what, values, run);
    if (!std::is_same<T, hl_bf16>::value) check_rounds_to<hl_f16>(what, values, run);
}
/* The same numbers as float32. */
template <class T> struct widened : buffer<float> {
    explicit widened(const buffer<T> &values) : buffer<float>(values.n)
    {
        for (int64_t i = 0; i < n; i++) get()[i] = (float)number(values[i]);
    }
};
static inline void check_same(const char *what, const memory &got, const memory &want)
{
    n_checks++;
    if (got.n_bytes != want.n_bytes || memcmp(got.p, want.p, got.n_bytes))
        FAIL("%s: other bits", what);
}
static inline void check(const char *what, bool holds)
{
    n_checks++;
    if (!holds) FAIL("%s", what);
}

static inline int finish_tests(const char *name)
{
#ifdef HL_TEST_GPU
    printf("%s %s on %s: %d checks, %d failures\n", n_failures ? "FAIL" : "ok  ", name,
           is_open ? hl_gpu_name() : "nothing", n_checks, n_failures);
    if (is_open) hl_gpu_close();
    return n_failures != 0;
#endif
    hl_emu_counts counts = hl_emu_counters();
    printf("%s %s: %d checks, %d failures, %llu launches, %llu threads\n",
           n_failures ? "FAIL" : "ok  ", name, n_checks, n_failures,
           (unsigned long long)counts.launches, (unsigned long long)counts.threads);
    return n_failures != 0;
}

#endif
