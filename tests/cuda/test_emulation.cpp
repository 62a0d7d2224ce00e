/* The emulation itself: every primitive gives what the device's gives, and every kernel of wrong.cu
 * gets its complaint. */
extern "C" {
#include "base/half.h"
}
#include "tests/cuda/kernel_test.h"

/* ---- primitives ---- */

static void test_shuffles()
{
    start_case("shuffles");
    enum { N = 96 };
    buffer<int32_t> in(N), out(3 * N);
    for (int i = 0; i < N; i++) in[i] = i * 11 - 40;
    run_orders({&out}, [&] { launch("prim_shuffles", 1, N, in.get(), out.get()); });
    for (int t = 0; t < N; t++) {
        int lane = t % 32, base = t - lane;
        check("shuffle", out[t] == in[base + (t * 7 & 31)]);
        check("shuffle_xor", out[N + t] == in[base + (lane ^ 5)]);
        check("shuffle_up", out[2 * N + t] == in[lane >= 3 ? t - 3 : t]);
    }
    start_case("shuffles of 8 and 12 bytes");
    buffer<int64_t> words(N), got(2 * N);
    for (int i = 0; i < N; i++) words[i] = (int64_t)random_bits();
    run_orders({&got}, [&] { launch("prim_shuffle_bytes", 1, N, words.get(), got.get()); });
    for (int t = 0; t < N; t++) {
        int from = t % 32 >= 2 ? t - 2 : t;
        check("of 8 bytes", got[t] == words[t ^ 1]);
        check("of 12 bytes", got[N + t] == from + 1000 * (from + 1) + 1000000LL * (from + 2));
    }
}

static void test_votes()
{
    start_case("votes");
    enum { N = 64 };
    buffer<int32_t> in(N);
    buffer<uint32_t> out(2 * N);
    for (int i = 0; i < N; i++) in[i] = i - 1;
    run_orders({&out}, [&] { launch("prim_votes", 1, N, in.get(), out.get()); });
    for (int t = 0; t < N; t++) {
        check("ballot", out[t] == (t < 32 ? 0xFFFFFFFCu : 0xFFFFFFFFu));
        check("part of a warp", out[N + t] == (t % 32 < 8 ? 4u : 0u));
    }
}

static void test_atomics()
{
    start_case("atomics, blocks side by side");
    enum { BLOCKS = 200, N = 64 };
    buffer<int32_t> sum(1), most(1);
    buffer<uint32_t> count(1);
    buffer<int64_t> first(1);
    buffer<float> total(1);
    for (int workers : {1, 4}) {
        hl_emu_set_workers(workers);
        sum[0] = 0, most[0] = -1, count[0] = 0, first[0] = 0, total[0] = 0;
        launch("prim_atomics", BLOCKS, N, sum.get(), count.get(), most.get(), first.get(),
               total.get());
        int64_t n = BLOCKS * N;
        check("add of int", sum[0] == n * (n - 1) / 2 - 5 * n);
        check("add of unsigned", count[0] == 2 * n);
        check("max", most[0] == 100);
        check("cas", first[0] == (int64_t)1 << 40);
        check("add of float", total[0] == (float)n / 2);
    }
    hl_emu_set_workers(0);
}

static void test_barriers()
{
    for (unsigned n : {1u, 33u, 1024u}) {
        start_case("barriers, %u threads", n);
        enum { BLOCKS = 5, ROUNDS = 7 };
        buffer<float> in(BLOCKS * n), out(BLOCKS * n);
        for (int64_t i = 0; i < in.n; i++) in[i] = (float)random_below(8);
        run_orders({&out}, [&] {
            launch_grid("prim_barriers", {BLOCKS, 1, 1}, n, n * 4, in.get(), out.get(), ROUNDS);
        });
        for (int b = 0; b < BLOCKS; b++) {
            std::vector<float> v(&in[b * n], &in[b * n] + n), next(n);
            for (int i = 0; i < ROUNDS; i++, v = next)
                for (unsigned t = 0; t < n; t++) next[t] = v[t] + v[(t + 1) % n];
            check("sums of neighbours", !memcmp(v.data(), &out[b * n], n * 4));
        }
    }
}

static void test_blocks()
{
    enum { BLOCKS = 4, N = 64, ALL = BLOCKS * N };
    start_case("several blocks in one");
    buffer<float> in(ALL), out(ALL);
    for (int i = 0; i < ALL; i++) in[i] = (float)random_below(8);
    run_orders({&out}, [&] {
        launch_grid("prim_blocks", {1, 1, 1}, ALL, ALL * 4, out.get(), (const float *)in.get());
    });
    for (int b = 0; b < BLOCKS; b++) {
        std::vector<float> v(&in[b * N], &in[b * N] + N), next(N);
        for (int i = 0; i < b; i++, v = next)
            for (int t = 0; t < N; t++) next[t] = v[t] + v[(t + 1) % N];
        for (int t = 0; t < N; t++)
            check("sums of its own neighbours, seen by all", out[ALL - 1 - b * N - t] == v[t]);
    }
}

static void test_async()
{
    start_case("asynchronous copies");
    enum { TILES = 5 };
    buffer<float> in(256 * TILES), out(256 * TILES);
    fill_random(in);
    run_orders({&out}, [&] { launch("prim_async", 1, 64, in.get(), out.get(), (int)TILES); });
    for (int i = 0; i < out.n; i++)
        check("reversed in 64", out[i] == in[i / 64 * 64 + 63 - i % 64]);
}

template <class T> static void test_mma(const char *name)
{
    start_case("%s", name);
    enum { LD = 24 };
    buffer<T> a(16 * 32), b(32 * LD);
    buffer<float> c(16 * LD);
    fill_random(a), fill_random(b);
    run_orders({&c}, [&] { launch(name, 1, 32, a.get(), b.get(), c.get(), (int)LD); });
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            double sum = 0;
            for (int k = 0; k < 32; k++) sum += number(a[i * 32 + k]) * number(b[k * LD + j]);
            check("product", is_close(c[i * LD + j], sum, 1e-5));
        }
    check("nothing beside the tile", isnan(c[16]));
}

template <class T> static void test_fragments(const char *name)
{
    start_case("%s", name);
    buffer<T> a(256), b(256);
    buffer<float> c(3 * 256);
    fill_random(a), fill_random(b);
    run_orders({&c}, [&] { launch(name, 1, 32, a.get(), b.get(), c.get()); });
    for (int i = 0; i < 256; i++) {
        double sum[3] = {0};
        for (int k = 0; k < 16; k++) {
            T rounded;
            hl_put(&rounded, c[256 + i / 16 * 16 + k]);
            sum[0] += number(a[i / 16 * 16 + k]) * number(b[k * 16 + i % 16]);
            sum[1] += number(a[i / 16 * 16 + k]) * number(b[i % 16 * 16 + k]);
            sum[2] += number(rounded) * number(b[k * 16 + i % 16]);
        }
        for (int j = 0; j < 3; j++) check("product", is_close(c[j * 256 + i], sum[j], 1e-5));
    }
}

/* The twins of conversions against base/half.h, which has its own tests. */
static void test_convert(uint32_t factor, uint32_t low)
{
    start_case("conversions, low bits i * %u + 0x%x", factor, low);
    enum { N = 1 << 16 };
    buffer<float> in(N), back(N);
    buffer<hl_bf16> b(N);
    buffer<hl_f16> h(N);
    for (int i = 0; i < N; i++)
        in[i] = hl_bits_float((uint32_t)i << 16 | (((uint32_t)i * factor + low) & 0xFFFFu));
    launch("prim_convert", 64, 256, in.get(), b.get(), h.get(), back.get(), (int)N);
    for (int i = 0; i < N; i++) {
        check("bf16", b[i].bits == (isnan(in[i]) ? 0x7FFF : hl_f32_to_bf16(in[i])));
        check("f16",
              isnan(in[i]) ? (h[i].bits & 0x7FFF) > 0x7C00 : h[i].bits == hl_f32_to_f16(in[i]));
        check("back", isnan(in[i]) ? isnan(back[i]) : back[i] == hl_f16_to_f32(h[i].bits));
    }
}

static void test_where()
{
    start_case("places in a grid");
    buffer<int32_t> out(3 * 5 * 4);
    run_orders({&out}, [&] { launch_grid("prim_where", {5, 3, 1}, 4, 0, out.get()); });
    for (int i = 0; i < out.n; i++) {
        int b = i / 4;
        check("x, y", out[i] == 300 + b / 5 * 10 + b % 5);
    }
}

/* ---- wrong kernels ---- */

/* Not in wrong.cu: a device has another stack. */
HL_KERNEL(wrong_stack, 64, float *out, const float *in)
{
    volatile float much[1 << 16];
    for (int i = 0; i < 1 << 16; i++) much[i] = in[hl_thread()];
    out[hl_thread()] = much[hl_thread()];
}

struct wrong_kernel {
    const char *name, *complaint; /* a part of it */
    unsigned threads;
    bool is_fault; /* of the host: a sanitizer ends the process instead */
};
static const wrong_kernel wrong_kernels[] = {
    {"wrong_exit_before_barrier", "threads 40-49 (10 threads) have exited|wait at the barrier", 64,
     false},
    {"wrong_exit_after_others_wait", "wait at the barrier|waits at the barrier", 64, false},
    {"wrong_two_barriers", "others wait at line", 64, false},
    {"wrong_barrier_and_shuffle", "deadlock", 64, false},
    {"wrong_mask_without_self", "leaves out its own lane", 64, false},
    {"wrong_mask_too_wide", "deadlock", 64, false},
    {"wrong_mask_names_exited", "that have exited|exits while lane", 64, false},
    {"wrong_masks_differ", "while lane|deadlock|exits while|that have exited", 64, false},
    {"wrong_collectives_differ", "while lane", 64, false},
    {"wrong_shuffle_source", "reads lane 16, which mask 0x0000ffff leaves out", 64, false},
    {"wrong_partial_warp", "that the block of 48 threads lacks", 48, false},
    {"wrong_shared_index", "s[63] is outside its 63 elements", 64, false},
    {"wrong_shared_negative", "s[-1] is outside its 64 elements", 64, false},
    {"wrong_shared_pointer", "s (252 bytes) was written outside its bounds", 64, false},
    {"wrong_dynamic_size", "is outside its 63 elements", 64, false},
    {"wrong_unwritten", "reads s[7], which nothing has written", 64, false},
    {"wrong_read_without_barrier",
     "wrote with no barrier|which nothing has written|read with no barrier", 64, false},
    {"wrong_reuse_without_barrier", "read with no barrier between|wrote with no barrier between",
     64, false},
    {"wrong_two_writers", "wrote with no barrier between", 64, false},
    {"wrong_warp_sync_for_block", "wrote with no barrier|nothing has written|read with no barrier",
     64, false},
    {"wrong_async_never_waited", "never waited for", 64, false},
    {"wrong_async_misaligned", "is misaligned", 64, false},
    {"wrong_block_without_barrier",
     "wrote with no barrier|which nothing has written|read with no barrier", 256, false},
    {"wrong_block_alone", "have exited|exits while threads", 256, false},
    {"wrong_half_block", "deadlock", 256, false},
    {"wrong_vector", "a vector of 16 bytes is misaligned", 64, false},
    {"wrong_null", "thread 9: touches address", 64, true},
    {"wrong_stack", "overflows its stack", 64, true},
    {"wrong_divide", "divides an integer by zero", 64, true},
};

static bool has_complaint(const char *text, const char *parts)
{
    std::string rest = parts;
    for (;;) {
        size_t bar = rest.find('|');
        if (strstr(text, rest.substr(0, bar).c_str())) return true;
        if (bar == std::string::npos) return false;
        rest = rest.substr(bar + 1);
    }
}

static void test_wrong(bool is_loud)
{
#ifdef __SANITIZE_ADDRESS__
    const bool is_sanitized = true;
#else
    const bool is_sanitized = false;
#endif
    buffer<float> out(512), in(256);
    fill_random(in);
    void *p = out.p, *q = in.p, *args[] = {&p, &q};
    for (uint32_t order : {0u, 1u, 7u, 12345u})
        for (const wrong_kernel &w : wrong_kernels) {
            if (w.is_fault && is_sanitized) continue;
            start_case("%s in thread order %u", w.name, order);
            hl_emu_set_order(order);
            n_checks++;
            const hl_emu_kernel *k = hl_emu_find(w.name);
            size_t shared = strstr(w.name, "dynamic") ? 63 * 4 : 0;
            if (!k || hl_emu_launch(k, {2, 1, 1}, {w.threads, 1, 1}, shared, args) == 0)
                FAIL("nobody noticed");
            else if (!has_complaint(hl_emu_error(), w.complaint) ||
                     !strstr(hl_emu_error(), w.name) || !strstr(hl_emu_error(), "block ("))
                FAIL("the complaint is: %s", hl_emu_error());
            if (is_loud && order == 0) printf("  %s\n", hl_emu_error());
        }
    hl_emu_set_order(HL_EMU_FORWARD);
}

/* What is found in results: NaN, guard bytes, other bits. */
static void test_wrong_results()
{
    start_case("wrong results");
    buffer<float> in(256);
    fill_random(in);
    {
        buffer<float> out(128);
        launch("wrong_async_read_early", 1, 64, out.get(), (const float *)in.get());
        check("a copy read before its wait is NaN", isnan(out[3]));
        launch("wrong_async_group", 1, 64, out.get(), (const float *)in.get());
        check("a copy whose group is not waited for is NaN", isnan(out[3]));
    }
    {
        buffer<float> out(128);
        void *p = out.p, *q = in.p, *args[] = {&p, &q};
        hl_emu_launch(hl_emu_find("wrong_global_index"), {2, 1, 1}, {64, 1, 1}, 0, args);
        check("guard bytes see a write beside a buffer", !out.is_guarded());
    }
    {
        buffer<float> out(64);
        float first = 0;
        bool differs = false;
        for (uint32_t order = 0; order < 8; order++) {
            hl_emu_set_order(order);
            out[0] = 0;
            launch("wrong_order", 1, 64, out.get(), (const float *)in.get());
            if (order == 0) first = out[0];
            differs = differs || out[0] != first;
        }
        hl_emu_set_order(HL_EMU_FORWARD);
        check("sums by the order of threads differ", differs);
    }
    check("NaN is not close to a number", !is_close(NAN, 1, INFINITY));
}

/* What a launcher does wrong. */
static void test_wrong_launch()
{
    start_case("wrong launches");
    buffer<float> out(128), in(128);
    void *p = out.p, *q = in.p, *args[] = {&p, &q};
    const hl_emu_kernel *k = hl_emu_find("wrong_order");
    check("too many threads", hl_emu_launch(k, {1, 1, 1}, {65, 1, 1}, 0, args) < 0);
    check("says so", strstr(hl_emu_error(), "65 threads a block, at most 64") != nullptr);
    check("no blocks", hl_emu_launch(k, {0, 1, 1}, {64, 1, 1}, 0, args) < 0);
    check("a high grid", hl_emu_launch(k, {1, 65536, 1}, {64, 1, 1}, 0, args) < 0);
    check("two-dimensional blocks", hl_emu_launch(k, {1, 1, 1}, {8, 8, 1}, 0, args) < 0);
    check("shared memory", hl_emu_launch(k, {1, 1, 1}, {64, 1, 1}, 1 << 20, args) < 0);
    check("no such kernel", !hl_emu_find("hl_cuda_none") && !hl_emu_at(1 << 20));
    check("by place", hl_emu_at(0) && hl_emu_find(hl_emu_name(hl_emu_at(0))) == hl_emu_at(0));
}

int main(int argc, char **argv)
{
    (void)argv;
    test_shuffles();
    test_votes();
    test_atomics();
    test_barriers();
    test_blocks();
    test_async();
    test_mma<hl_f16>("prim_mma_f16");
    test_mma<hl_bf16>("prim_mma_bf16");
    test_fragments<hl_f16>("prim_fragments_f16");
    test_fragments<hl_bf16>("prim_fragments_bf16");
    test_convert(40503, 0);
    /* Halfway between two numbers of bf16, of f16, and one beside it. */
    test_convert(0, 0x8000), test_convert(0, 0x1000), test_convert(0, 0x3000);
    test_convert(0, 0x7FFF);
    test_where();
    test_wrong(argc > 1);
    test_wrong_results();
    test_wrong_launch();
    return finish_tests("test_emulation");
}
