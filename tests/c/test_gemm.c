/* GEMM against a double-precision triple loop, and its promises: the same bits however rows and
 * panels are cut, nothing written outside C, nothing read from scratch before it was written,
 * epilogues in their order. Compiled once per instruction set, with that set's gemm.c. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/gemm.h"
#include "tests/c/check.h"

static uint64_t random_state = 1;

static float draw(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((double)(random_state >> 40) * 0x1p-24 - 0.5);
}

static const float GUARD = -12345;

/* Every matrix lies between guards and ends where its last row ends, so that a read beyond it is a
 * read of the guard, and of foreign memory for the address sanitizer. */
typedef struct matrix {
    int64_t rows, cols, ld;
    float *block, *at;
} matrix;

static matrix make_matrix(int64_t rows, int64_t cols, int64_t ld, bool random)
{
    matrix m = {.rows = rows, .cols = cols, .ld = ld};
    int64_t count = (rows - 1) * ld + cols;
    m.block = malloc((size_t)(count + 8) * sizeof(float));
    m.at = m.block + 8;
    for (int64_t i = 0; i < count + 8; i++) m.block[i] = GUARD;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) m.at[i * ld + j] = random ? draw() : NAN;
    return m;
}

static void free_matrix(matrix *m)
{
    for (int i = 0; i < 8; i++) CHECK(m->block[i] == GUARD);
    for (int64_t i = 0; i + 1 < m->rows; i++)
        for (int64_t j = m->cols; j < m->ld; j++) CHECK(m->at[i * m->ld + j] == GUARD);
    free(m->block);
}

/* 64-byte aligned, full of NaN. */
static float *make_buffer(size_t bytes)
{
    size_t count = bytes / sizeof(float);
    float *buffer = aligned_alloc(64, (bytes / 64 + 1) * 64);
    for (size_t i = 0; i < count; i++) buffer[i] = NAN;
    return buffer;
}

typedef struct gemm_case {
    int64_t m, n, k;
    bool a_by_column, b_transposed, bias, relu, accumulate;
    float alpha;
    int64_t pad; /* added to every leading dimension */
} gemm_case;

static void describe(const gemm_case *t)
{
    printf("  m=%d n=%d k=%d a_by_column=%d b_transposed=%d bias=%d relu=%d accumulate=%d "
           "alpha=%g pad=%d\n",
           (int)t->m, (int)t->n, (int)t->k, t->a_by_column, t->b_transposed, t->bias, t->relu,
           t->accumulate, (double)t->alpha, (int)t->pad);
}

/* |got - want| <= gamma(k + 4) * sum |a b|: the bound of any order of summation. */
static bool check_element(const gemm_case *t, float got, double sum, double size, float old,
                          float bias)
{
    double want = t->alpha * sum;
    size *= fabs((double)t->alpha);
    if (t->accumulate) want += old, size += fabs((double)old);
    if (t->bias) want += bias, size += fabs((double)bias);
    if (t->relu && want < 0) want = 0;
    return fabs(got - want) <= (double)(t->k + 4) * 0x1p-24 * size + 1e-30;
}

static void run_case(const gemm_case *t)
{
    matrix a = t->a_by_column ? make_matrix(t->k, t->m, t->m + t->pad, true)
                              : make_matrix(t->m, t->k, t->k + t->pad, true);
    matrix b = t->b_transposed ? make_matrix(t->n, t->k, t->k + t->pad, true)
                               : make_matrix(t->k, t->n, t->n + t->pad, true);
    matrix c = make_matrix(t->m, t->n, t->n + t->pad, t->accumulate), bias, old, again;
    bias = make_matrix(1, t->n, t->n, true);
    old = make_matrix(t->m, t->n, t->n, false), again = make_matrix(t->m, t->n, t->n, false);
    for (int64_t i = 0; i < t->m; i++) {
        memcpy(old.at + i * t->n, c.at + i * c.ld, (size_t)t->n * sizeof(float));
        memcpy(again.at + i * t->n, c.at + i * c.ld, (size_t)t->n * sizeof(float));
    }
    float *packed = make_buffer(hl_gemm_pack_bytes(t->k, t->n));
    int64_t row = t->b_transposed ? 1 : b.ld, col = t->b_transposed ? b.ld : 1;
    int64_t panels = hl_gemm_panels(t->n);
    for (int64_t p = panels; p-- > 0;) hl_gemm_pack(t->k, t->n, b.at, row, col, p, p + 1, packed);

    hl_gemm g = {.n = t->n,
                 .k = t->k,
                 .a = a.at,
                 .a_row = t->a_by_column ? 1 : a.ld,
                 .a_col = t->a_by_column ? a.ld : 1,
                 .b = packed,
                 .c = c.at,
                 .ldc = c.ld,
                 .alpha = t->alpha,
                 .accumulate = t->accumulate,
                 .relu = t->relu,
                 .bias = t->bias ? bias.at : NULL};
    float *scratch = make_buffer(hl_gemm_scratch_bytes(&g));
    hl_gemm_rows(&g, 0, t->m, scratch);

    /* Again in ragged ranges, last first: the same bits. */
    g.c = again.at, g.ldc = t->n;
    for (int64_t m1 = t->m, step = 1; m1 > 0; step = step % 23 + 1) {
        int64_t m0 = m1 > step ? m1 - step : 0;
        hl_gemm_rows(&g, m0, m1, scratch);
        m1 = m0;
    }
    bool right = true, same = true;
    for (int64_t i = 0; i < t->m; i++) {
        same = same && !memcmp(again.at + i * t->n, c.at + i * c.ld, (size_t)t->n * sizeof(float));
        for (int64_t j = 0; j < t->n; j++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < t->k; k++) {
                double term = (double)g.a[i * g.a_row + k * g.a_col] * b.at[k * row + j * col];
                sum += term, size += fabs(term);
            }
            right = right && check_element(t, c.at[i * c.ld + j], sum, size, old.at[i * t->n + j],
                                           bias.at[j]);
        }
    }
    if (!right || !same) describe(t);
    CHECK(right);
    CHECK(same);
    free(packed), free(scratch);
    free_matrix(&a), free_matrix(&b), free_matrix(&c);
    free_matrix(&bias), free_matrix(&old), free_matrix(&again);
}

static void test_rows(void)
{
    static const int64_t sizes[] = {1,  2,  3,  5,  7,  8,  13, 14, 15, 16, 17, 20,
                                    29, 31, 32, 33, 47, 50, 63, 64, 65, 97, 130};
    enum { N = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int pick = 0; pick < 3; pick++) {
                int k = (i * 7 + j * 3 + pick * 11) % N;
                uint32_t bits = (uint32_t)(i * 131 + j * 31 + pick * 17);
                gemm_case t = {sizes[i],         sizes[j],      sizes[k],
                               bits & 1,         bits >> 1 & 1, bits >> 2 & 1,
                               bits >> 3 & 1,    bits >> 4 & 1, bits & 32 ? 1 : -0.75f,
                               bits & 64 ? 3 : 0};
                run_case(&t);
            }
    /* Several blocks of K, row strides that share cache sets, every epilogue. */
    static const gemm_case large[] = {
        {40, 140, 1024, false, false, true, true, true, 1, 0},
        {150, 256, 512, false, true, true, false, false, 0.5f, 0},
        {33, 70, 1500, true, true, true, true, false, 1, 5},
        {300, 10, 784, false, true, true, true, false, 1, 0},
        {1, 515, 2000, false, false, false, false, true, 1, 1},
        {29, 37, 513, true, false, true, true, true, 2, 0},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) run_case(&large[i]);
}

static void run_tn_case(int64_t m, int64_t n, int64_t k, int64_t pad, bool accumulate)
{
    gemm_case t = {.m = m, .n = n, .k = k, .accumulate = accumulate, .alpha = 0.5f, .pad = pad};
    matrix a = make_matrix(k, m, m + pad, true), b = make_matrix(k, n, n + pad, true);
    matrix c = make_matrix(m, n, n + pad, accumulate), old = make_matrix(m, n, n, false);
    matrix again = make_matrix(m, n, n, false);
    for (int64_t i = 0; i < m; i++) {
        memcpy(old.at + i * n, c.at + i * c.ld, (size_t)n * sizeof(float));
        memcpy(again.at + i * n, c.at + i * c.ld, (size_t)n * sizeof(float));
    }
    hl_gemm_tn_plan plan;
    hl_gemm_tn_plan_make(m, n, k, 1, &plan);
    float *partials = make_buffer(plan.partial_bytes), *scratch = make_buffer(plan.scratch_bytes);
    hl_gemm_tn g = {m, n, k, a.at, a.ld, b.at, b.ld, c.at, c.ld, t.alpha, accumulate};
    for (int64_t i = plan.n_tiles; i-- > 0;) hl_gemm_tn_tile(&g, &plan, i, partials, scratch);
    for (int64_t i = plan.n_merges; i-- > 0;) hl_gemm_tn_merge(&g, &plan, i, partials);
    free(partials), free(scratch);

    /* Cut for many threads: the same bits. */
    hl_gemm_tn_plan_make(m, n, k, 64, &plan);
    partials = make_buffer(plan.partial_bytes), scratch = make_buffer(plan.scratch_bytes);
    g.c = again.at, g.ldc = n;
    for (int64_t i = 0; i < plan.n_tiles; i++) hl_gemm_tn_tile(&g, &plan, i, partials, scratch);
    for (int64_t i = 0; i < plan.n_merges; i++) hl_gemm_tn_merge(&g, &plan, i, partials);
    bool right = true, same = true;
    for (int64_t i = 0; i < m; i++) {
        same = same && !memcmp(again.at + i * n, c.at + i * c.ld, (size_t)n * sizeof(float));
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t r = 0; r < k; r++) {
                double term = (double)a.at[r * a.ld + i] * b.at[r * b.ld + j];
                sum += term, size += fabs(term);
            }
            right = right && check_element(&t, c.at[i * c.ld + j], sum, size, old.at[i * n + j], 0);
        }
    }
    if (!right || !same) describe(&t);
    CHECK(right);
    CHECK(same);
    free(partials), free(scratch);
    free_matrix(&a), free_matrix(&b), free_matrix(&c), free_matrix(&old), free_matrix(&again);
}

static void test_tn(void)
{
    static const int64_t sizes[] = {1, 2, 7, 14, 15, 20, 31, 32, 33, 50, 65, 130};
    enum { N = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            run_tn_case(sizes[i], sizes[j], sizes[(i * 5 + j * 7) % N] * (i % 2 ? 1 : 9), j % 3,
                        (i + j) % 2);
    run_tn_case(50, 50, 5000, 0, true);
    run_tn_case(10, 256, 2100, 1, false);
    run_tn_case(150, 300, 700, 0, true);
    run_tn_case(3, 2, 20000, 0, false);
    run_tn_case(14, 64, 0x1000, 0, false);
}

/* Small integers are exact in every order, so any mistake shows as a wrong bit. */
static void test_exact(void)
{
    enum { M = 61, N = 77, K = 600 };
    static float a[M * K], b[K * N], c[M * N];
    for (int i = 0; i < M * K; i++) a[i] = (float)(i * 7 % 15 - 7);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i * 11 % 17 - 8);
    float *packed = make_buffer(hl_gemm_pack_bytes(K, N));
    hl_gemm_pack(K, N, b, N, 1, 0, hl_gemm_panels(N), packed);
    hl_gemm g = {
        .n = N, .k = K, .a = a, .a_row = K, .a_col = 1, .b = packed, .c = c, .ldc = N, .alpha = 1};
    float *scratch = make_buffer(hl_gemm_scratch_bytes(&g));
    hl_gemm_rows(&g, 0, M, scratch);
    bool exact = true;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int sum = 0;
            for (int k = 0; k < K; k++) sum += (int)a[i * K + k] * (int)b[k * N + j];
            exact = exact && c[i * N + j] == (float)sum;
        }
    CHECK(exact);
    free(packed), free(scratch);
}

/* NaN and infinity pass through; ReLU keeps a NaN; a tile's padding never leaks into C. */
static void test_not_finite(void)
{
    float a[2] = {NAN, 1}, b[2] = {1, INFINITY}, c[4];
    float *packed = make_buffer(hl_gemm_pack_bytes(1, 2));
    hl_gemm_pack(1, 2, b, 2, 1, 0, 1, packed);
    hl_gemm g = {.n = 2,
                 .k = 1,
                 .a = a,
                 .a_row = 1,
                 .a_col = 1,
                 .b = packed,
                 .c = c,
                 .ldc = 2,
                 .alpha = 1,
                 .relu = true};
    hl_gemm_rows(&g, 0, 2, NULL);
    CHECK(isnan(c[0]) && isnan(c[1]) && c[2] == 1 && isinf(c[3]));
    free(packed);
}

int main(void)
{
    test_exact();
    test_not_finite();
    test_rows();
    test_tn();
    return CHECK_DONE();
}
