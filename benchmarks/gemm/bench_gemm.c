/* Timed loops around the GEMM core of one instruction set and around any CBLAS, for run.py. Each
 * function runs its work `reps` times and returns seconds per run; which one runs when, and what
 * is made of the numbers, is run.py's. */
#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/gemm.h"

static double read_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Makes the compiler believe that a register has changed. */
#if defined(__x86_64__)
#define KEEP(s) __asm__ volatile("" : "+v"(s))
#else
#define KEEP(s) __asm__ volatile("" : "+w"(s))
#endif

/* Fused multiply-adds per second that registers alone can feed, in flops: 12 chains. */
double bench_peak(void);
double bench_peak(void)
{
    enum { CHAINS = 12, ROUNDS = 1 << 20 };
    hl_v x = hl_v_set1(0.5f), y = hl_v_set1(0.25f);
    hl_v s0 = y, s1 = y, s2 = y, s3 = y, s4 = y, s5 = y, s6 = y, s7 = y, s8 = y, s9 = y, s10 = y,
         s11 = y;
    double start = read_clock();
    for (int round = 0; round < ROUNDS; round++) {
#define STEP(s)                                                                                    \
    s = hl_v_fma(s, x, y);                                                                         \
    KEEP(s);
        STEP(s0)
        STEP(s1)
        STEP(s2) STEP(s3) STEP(s4) STEP(s5) STEP(s6) STEP(s7) STEP(s8) STEP(s9) STEP(s10) STEP(s11)
#undef STEP
    }
    double seconds = read_clock() - start;
    float kept = 0;
    kept += hl_v_sum(s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11);
    return kept == -1 ? 0 : 2.0 * CHAINS * HL_VL * ROUNDS / seconds;
}

int bench_vector_lanes(void);
int bench_vector_lanes(void)
{
    return HL_VL;
}

/* C (M,N) = A (M,K) B; b is (K,N), or (N,K) when transposed. pack: in every run, or once before.
 * */
double bench_rows(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                  const float *bias, int transposed, int pack, int64_t reps);
double bench_rows(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                  const float *bias, int transposed, int pack, int64_t reps)
{
    const hl_gemm_type *type = &hl_gemm_f32;
    int64_t panels = hl_gemm_panels(n);
    hl_gemm_word *packed = aligned_alloc(64, hl_gemm_pack_bytes(type, 1, k, n) / 64 * 64 + 64);
    hl_gemm_b from = {.type = type,
                      .dtype = HL_DTYPE_F32,
                      .at = b,
                      .n_segments = 1,
                      .k = k,
                      .n = n,
                      .k_stride = transposed ? 1 : n,
                      .n_stride = transposed ? k : 1};
    hl_gemm g = {
        .type = type,
        .n = n,
        .k = k,
        .a = a,
        .a_row = k,
        .a_col = 1,
        .n_segments = 1,
        .b = packed,
        .b_rows = hl_gemm_count_rows(type, 1, k),
        .c = c,
        .ldc = n,
        .first = true,
        .last = true,
        .epilogue = {.alpha = 1, .bias = bias, .activation = bias ? HL_GEMM_RELU : HL_GEMM_NONE}};
    void *scratch = aligned_alloc(64, hl_gemm_scratch_bytes(&g) / 64 * 64 + 64);
    hl_gemm_pack(&from, 0, panels, packed);
    hl_gemm_run(&g, 0, m, 0, n, scratch);
    double start = read_clock();
    for (int64_t i = 0; i < reps; i++) {
        if (pack) hl_gemm_pack(&from, 0, panels, packed);
        hl_gemm_run(&g, 0, m, 0, n, scratch);
    }
    double seconds = (read_clock() - start) / (double)reps;
    free(packed), free(scratch);
    return seconds;
}

/* C (M,N) = A^T B, A (K,M), B (K,N). */
double bench_tn(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                int64_t reps);
double bench_tn(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *c,
                int64_t reps)
{
    hl_gemm_tn_plan plan;
    hl_gemm_tn_plan_make(m, n, k, 4, &plan); /* four tasks for the one thread */
    float *partials = aligned_alloc(64, (plan.partial_bytes + 127) / 64 * 64);
    void *scratch = aligned_alloc(64, (plan.scratch_bytes + 127) / 64 * 64);
    hl_gemm_tn g = {&hl_gemm_f32, m, n, k, a, m, b, n, c, n, 1, false};
    double start = 0;
    for (int64_t i = -1; i < reps; i++) {
        if (i == 0) start = read_clock();
        for (int64_t t = 0; t < plan.n_tiles; t++) hl_gemm_tn_tile(&g, &plan, t, partials, scratch);
        for (int64_t t = 0; t < plan.n_merges; t++) hl_gemm_tn_merge(&g, &plan, t, partials);
    }
    double seconds = (read_clock() - start) / (double)reps;
    free(partials), free(scratch);
    return seconds;
}

typedef void (*cblas_sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k,
                               float alpha, const float *a, int lda, const float *b, int ldb,
                               float beta, float *c, int ldc);

/* The same three products by a CBLAS: form is 0 (NN), 1 (NT) or 2 (TN). */
double bench_cblas(void *sgemm, int m, int n, int k, const float *a, const float *b, float *c,
                   int form, int64_t reps);
double bench_cblas(void *sgemm, int m, int n, int k, const float *a, const float *b, float *c,
                   int form, int64_t reps)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    cblas_sgemm_fn run;
    memcpy(&run, &sgemm, sizeof run);
    double start = 0;
    for (int64_t i = -1; i < reps; i++) {
        if (i == 0) start = read_clock();
        run(ROW_MAJOR, form == 2 ? TRANSPOSED : PLAIN, form == 1 ? TRANSPOSED : PLAIN, m, n, k, 1,
            a, form == 2 ? m : k, b, form == 1 ? k : n, 0, c, n);
    }
    return (read_clock() - start) / (double)reps;
}
