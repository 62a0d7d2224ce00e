/* GEMM against sums in doubles: ranges of the reduction, A by rows, columns and segments, packing
 * by three strides, every epilogue, products in a row, in float32 and, where the processor has it,
 * bfloat16. And its promises: the same bits however rows and columns are dealt, nothing written
 * outside C, nothing read from scratch before it was written. Compiled once per instruction set.
 *
 * Every buffer lies between guards of 0xFF, which is NaN in both types: a value read from there
 * shows in the result. Under the address sanitizer it ends where its last element ends. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd/math.h"
#include "tests/c/check.h"
#include "tests/c/dice.h"
#include "tests/c/element.h"

#if defined(__SANITIZE_ADDRESS__)
enum { TAIL = 0 };
#else
enum { TAIL = 64 };
#endif
enum { HEAD = 64 };

static const hl_gemm_type *type = &hl_gemm_f32;
static hl_dtype dtype = HL_DTYPE_F32;
static int64_t n_terms = 1; /* of k in a word */

/* ---- memory ---- */

typedef struct matrix {
    hl_dtype dtype;
    int64_t rows, cols, ld;
    size_t bytes;
    unsigned char *block;
    void *at;
} matrix;

static matrix make_matrix(hl_dtype of, int64_t rows, int64_t cols, int64_t ld)
{
    matrix m = {.dtype = of, .rows = rows, .cols = cols, .ld = ld};
    int64_t count = rows > 0 ? (rows - 1) * ld + cols : 0;
    m.bytes = (size_t)count * hl_dtype_bytes(of);
    m.block = malloc(HEAD + m.bytes + TAIL);
    memset(m.block, 0xFF, HEAD + m.bytes + TAIL);
    m.at = m.block + HEAD;
    return m;
}

static matrix make_random(hl_dtype of, int64_t rows, int64_t cols, int64_t ld)
{
    matrix m = make_matrix(of, rows, cols, ld);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) element_store(m.at, of, i * ld + j, dice_draw());
    return m;
}

static matrix copy_matrix(const matrix *from, int64_t ld)
{
    matrix m = make_matrix(from->dtype, from->rows, from->cols, ld);
    size_t bytes = hl_dtype_bytes(from->dtype);
    for (int64_t i = 0; i < m.rows; i++)
        memcpy((char *)m.at + (size_t)(i * ld) * bytes,
               (char *)from->at + (size_t)(i * from->ld) * bytes, (size_t)m.cols * bytes);
    return m;
}

static void free_matrix(matrix *m)
{
    size_t bytes = hl_dtype_bytes(m->dtype);
    bool is_whole = true;
    for (int i = 0; i < HEAD; i++) is_whole = is_whole && m->block[i] == 0xFF;
    for (int i = 0; i < TAIL; i++) is_whole = is_whole && m->block[HEAD + m->bytes + i] == 0xFF;
    for (int64_t i = 0; i + 1 < m->rows; i++)
        for (size_t b = (size_t)(i * m->ld + m->cols) * bytes;
             b < (size_t)((i + 1) * m->ld) * bytes; b++)
            is_whole = is_whole && m->block[HEAD + b] == 0xFF;
    CHECK(is_whole);
    free(m->block);
}

/* 64-byte aligned, full of NaN, of exactly so many bytes for the address sanitizer. */
static void *make_scratch(size_t bytes)
{
    void *scratch = NULL;
    if (posix_memalign(&scratch, 64, bytes ? bytes : 1) != 0) abort();
    memset(scratch, 0xFF, bytes);
    return scratch;
}

/* ---- what is asked ---- */

/* A range of a reduction: the product, and where in B it begins. */
typedef struct range {
    hl_gemm gemm;
    hl_gemm_b b;
    int64_t segment, k0;
} range;

static hl_gemm make_gemm(int64_t n, int64_t n_segments, int64_t k)
{
    return (hl_gemm){.type = type,
                     .n = n,
                     .k = k,
                     .n_segments = n_segments,
                     .first = true,
                     .last = true,
                     .epilogue.alpha = 1};
}

static hl_gemm_b make_b(const matrix *from, int64_t k, int64_t n, bool is_transposed)
{
    return (hl_gemm_b){.type = type,
                       .dtype = from->dtype,
                       .at = from->at,
                       .n_segments = 1,
                       .k = k,
                       .n = n,
                       .k_stride = is_transposed ? 1 : from->ld,
                       .n_stride = is_transposed ? from->ld : 1};
}

/* B packed, panel by panel from the last; the ranges of it point there. */
static matrix pack(const hl_gemm_b *b, range *ranges, int count)
{
    int64_t rows = hl_gemm_count_rows(type, b->n_segments, b->k);
    size_t bytes = hl_gemm_pack_bytes(type, b->n_segments, b->k, b->n);
    matrix packed = make_matrix(HL_DTYPE_F32, 1, (int64_t)bytes / 4, (int64_t)bytes / 4);
    for (int64_t p = hl_gemm_panels(b->n); p-- > 0;) hl_gemm_pack(b, p, p + 1, packed.at);
    for (int r = 0; r < count; r++) {
        int64_t row = hl_gemm_count_rows(type, ranges[r].segment, b->k) + ranges[r].k0 / n_terms;
        ranges[r].b = *b;
        ranges[r].gemm.b = (hl_gemm_word *)packed.at + row * HL_GEMM_PANEL;
        ranges[r].gemm.b_rows = rows;
    }
    return packed;
}

/* All ranges of some rows and columns before the next ones. */
static void run_ranges(const range *ranges, int count, int64_t m, matrix *c, bool is_ragged)
{
    int64_t n = ranges[0].gemm.n, step = is_ragged ? 1 : m, columns = is_ragged ? HL_GEMM_PANEL : n;
    for (int64_t m1 = m; m1 > 0; m1 -= step, step = is_ragged ? step % 23 + 1 : m)
        for (int64_t n0 = 0; n0 < n; n0 += columns)
            for (int r = 0; r < count; r++) {
                hl_gemm gemm = ranges[r].gemm;
                void *scratch = make_scratch(hl_gemm_scratch_bytes(&gemm));
                gemm.c = c->at, gemm.ldc = c->ld;
                hl_gemm_run(&gemm, m1 > step ? m1 - step : 0, m1, n0, hl_cpu_min(n0 + columns, n),
                            scratch);
                free(scratch);
            }
}

/* ---- what is right ---- */

static double read_a(const hl_gemm *g, int64_t i, int64_t s, int64_t k)
{
    if (!g->segments) return element_load(g->a, dtype, i * g->a_row + k * g->a_col);
    return element_load(g->segments[s * g->ld_segments + i], dtype, g->segment_offset + k);
}

static double read_b(const hl_gemm_b *b, int64_t s, int64_t k, int64_t j)
{
    int64_t at = s * b->segment_stride + k * b->k_stride + j * b->n_stride;
    double value = element_load(b->at, b->dtype, at);
    return dtype == HL_DTYPE_BF16 ? (double)hl_bf16_to_f32(hl_f32_to_bf16((float)value)) : value;
}

static double gelu(double x)
{
    return x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* |got - want| <= gamma(terms) * sum |terms|, the bound of any order of summation. */
static bool is_close(const range *ranges, int count, int64_t i, int64_t j, double old, double got)
{
    double want = ranges[0].gemm.first ? 0 : old, size = fabs(want), terms = 8;
    for (int r = 0; r < count; r++) {
        const hl_gemm *g = &ranges[r].gemm;
        double alpha = (double)g->epilogue.alpha;
        for (int64_t s = 0; s < g->n_segments; s++)
            for (int64_t k = 0; k < g->k; k++) {
                double term = alpha * read_a(g, i, s, k) *
                              read_b(&ranges[r].b, ranges[r].segment + s, ranges[r].k0 + k, j);
                want += term, size += fabs(term), terms++;
            }
    }
    const hl_gemm_epilogue *e = &ranges[count - 1].gemm.epilogue;
    double scale = e->scale ? (double)e->scale[j] : 1, bias = e->bias ? (double)e->bias[j] : 0;
    double residual = e->residual ? (double)e->residual[i * e->ld_residual + j] : 0;
    want = want * scale + bias + residual;
    size = size * fabs(scale) + fabs(bias) + fabs(residual);
    if (e->activation == HL_GEMM_RELU && want < 0) want = 0;
    if (e->activation == HL_GEMM_GELU) want = gelu(want), size *= 1.2;
    return fabs(got - want) <= terms * 0x1p-24 * size + 1e-30;
}

/* Runs all, checks every element, and that ragged ranges give the same bits. c: what lies in C
 * before. */
static void check_ranges(const range *ranges, int count, const matrix *c)
{
    int64_t m = c->rows, n = c->cols;
    matrix whole = copy_matrix(c, c->ld), ragged = copy_matrix(c, n);
    run_ranges(ranges, count, m, &whole, false);
    run_ranges(ranges, count, m, &ragged, true);
    bool is_right = true, is_same = true;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double old = element_load(c->at, HL_DTYPE_F32, i * c->ld + j);
            double got = element_load(whole.at, HL_DTYPE_F32, i * whole.ld + j);
            float *here = (float *)whole.at + i * whole.ld + j,
                  *there = (float *)ragged.at + i * n + j;
            is_right = is_right && is_close(ranges, count, i, j, old, got);
            is_same = is_same && memcmp(here, there, 4) == 0;
        }
    CHECK(is_right);
    CHECK(is_same);
    free_matrix(&whole), free_matrix(&ragged);
}

/* ---- epilogues ---- */

/* Parts of an epilogue, drawn at random; bits say which. */
enum { SCALE = 1, BIAS = 2, RESIDUAL = 4, RELU = 8, GELU = 16, ALPHA = 32, ADD = 64, PARTS = 128 };
typedef struct parts {
    matrix scale, bias, residual;
} parts;

static parts give_parts(range *ranges, int count, int64_t m, int64_t n, unsigned which, int64_t pad)
{
    parts p = {make_random(HL_DTYPE_F32, 1, n, n), make_random(HL_DTYPE_F32, 1, n, n),
               make_random(HL_DTYPE_F32, m, n, n + pad)};
    hl_gemm_epilogue *e = &ranges[count - 1].gemm.epilogue;
    if (which & SCALE) e->scale = p.scale.at;
    if (which & BIAS) e->bias = p.bias.at;
    if (which & RESIDUAL) e->residual = p.residual.at, e->ld_residual = p.residual.ld;
    if (which & RELU) e->activation = HL_GEMM_RELU;
    if (which & GELU) e->activation = HL_GEMM_GELU;
    for (int r = 0; r < count; r++) {
        if (which & ALPHA) ranges[r].gemm.epilogue.alpha = -0.75f;
        ranges[r].gemm.first = r == 0 && !(which & ADD);
        ranges[r].gemm.last = r + 1 == count;
    }
    return p;
}

static void free_parts(parts *p)
{
    free_matrix(&p->scale), free_matrix(&p->bias), free_matrix(&p->residual);
}

/* ---- one range, A by rows or by columns ---- */

typedef struct gemm_case {
    int64_t m, n, k;
    bool a_by_column, b_transposed, b_float32;
    unsigned parts;
    int64_t pad; /* added to every leading dimension */
} gemm_case;

static matrix make_a(hl_gemm *gemm, int64_t m, int64_t k, bool by_column, int64_t pad)
{
    matrix a = by_column ? make_random(dtype, k, m, m + pad) : make_random(dtype, m, k, k + pad);
    gemm->a = a.at;
    gemm->a_row = by_column ? 1 : a.ld, gemm->a_col = by_column ? a.ld : 1;
    return a;
}

static void check_gemm(const gemm_case *t)
{
    check_case("%s m=%d n=%d k=%d a_by_column=%d b_transposed=%d parts=%u pad=%d",
               hl_dtype_name(dtype), (int)t->m, (int)t->n, (int)t->k, t->a_by_column,
               t->b_transposed, t->parts, (int)t->pad);
    range r = {.gemm = make_gemm(t->n, 1, t->k)};
    hl_dtype of_b = t->b_float32 ? HL_DTYPE_F32 : dtype;
    matrix a = make_a(&r.gemm, t->m, t->k, t->a_by_column, t->pad);
    matrix b = t->b_transposed ? make_random(of_b, t->n, t->k, t->k + t->pad)
                               : make_random(of_b, t->k, t->n, t->n + t->pad);
    hl_gemm_b from = make_b(&b, t->k, t->n, t->b_transposed);
    matrix packed = pack(&from, &r, 1), c = make_matrix(HL_DTYPE_F32, t->m, t->n, t->n + t->pad);
    if (t->parts & ADD) free(c.block), c = make_random(HL_DTYPE_F32, t->m, t->n, t->n + t->pad);
    parts p = give_parts(&r, 1, t->m, t->n, t->parts, t->pad);
    check_ranges(&r, 1, &c);
    free_matrix(&a), free_matrix(&b), free_matrix(&c), free_matrix(&packed), free_parts(&p);
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
                gemm_case t = {sizes[i],      sizes[j],      sizes[k],        bits & 1,
                               bits >> 1 & 1, bits >> 7 & 1, bits >> 2 & 127, bits & 64 ? 3 : 0};
                check_gemm(&t);
            }
    /* Several blocks of K, row strides that share cache sets, an empty reduction. */
    static const gemm_case large[] = {
        {40, 140, 1024, .parts = BIAS | RELU | ADD},
        {150, 256, 512, .b_transposed = true, .parts = BIAS | ALPHA},
        {33, 70, 1500, true, true, .parts = SCALE | BIAS | RELU, .pad = 5},
        {300, 10, 784, .b_transposed = true, .parts = BIAS | RELU},
        {1, 515, 2000, .parts = ADD | RESIDUAL, .pad = 1},
        {29, 37, 513, .a_by_column = true, .parts = BIAS | RELU | ADD | ALPHA},
        {20, 140, 3072, .parts = BIAS | RESIDUAL | GELU},
        {20, 3, 2049, .parts = SCALE | BIAS | RESIDUAL | RELU},
        {5, 40, 0, .parts = BIAS | RESIDUAL},
        {5, 2, 0, .parts = BIAS | ADD},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) check_gemm(&large[i]);
}

/* Every combination, on whole and ragged tiles, on C of a few columns, over several blocks of K. */
static void test_epilogues(void)
{
    static const int64_t sizes[][3] = {{7, 3, 9}, {15, 2 * HL_GEMM_PANEL, 6}, {17, 37, 2100}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (unsigned which = 0; which < PARTS; which++) {
            if ((which & RELU && which & GELU) || (s == 2 && which % 5)) continue;
            gemm_case t = {.m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .parts = which};
            t.a_by_column = which % 3 == 0, t.pad = which % 2 * 3;
            check_gemm(&t);
        }
}

/* ---- the epilogue's order, bit by bit ---- */

static float gelu_by_steps(float x)
{
    float inner = x * x;
    inner = inner * x;
    inner = inner * 0.044715f;
    inner = x + inner;
    inner = inner * 0.79788456080286535588f;
    return x * 0.5f * (hl_v_tanh(hl_v_set1(inner))[0] + 1);
}

static float finish_by_steps(const hl_gemm *g, int64_t i, int64_t j, float v, float old)
{
    const hl_gemm_epilogue *e = &g->epilogue;
    v = v * e->alpha;
    if (!g->first) v = v + old;
    if (e->scale) v = v * e->scale[j];
    if (e->bias) v = v + e->bias[j];
    if (e->residual) v = v + e->residual[i * e->ld_residual + j];
    if (e->activation == HL_GEMM_RELU) return v > 0 ? v : 0;
    return e->activation == HL_GEMM_GELU ? gelu_by_steps(v) : v;
}

/* The product alone, and the steps on it one by one; and the residual in C's own place. */
static void check_order(int64_t m, int64_t n, unsigned which)
{
    enum { K = 33 };
    check_case("%s order m=%d n=%d parts=%u", hl_dtype_name(dtype), (int)m, (int)n, which);
    range r = {.gemm = make_gemm(n, 1, K)};
    matrix a = make_a(&r.gemm, m, K, false, 1), b = make_random(dtype, K, n, n);
    hl_gemm_b from = make_b(&b, K, n, false);
    matrix packed = pack(&from, &r, 1), sums = make_matrix(HL_DTYPE_F32, m, n, n);
    run_ranges(&r, 1, m, &sums, false);
    parts p = give_parts(&r, 1, m, n, which, 2);
    matrix c = make_random(HL_DTYPE_F32, m, n, n + 2), old = copy_matrix(&c, c.ld);
    matrix in_place = copy_matrix(&p.residual, p.residual.ld);
    run_ranges(&r, 1, m, &c, false);
    CHECK(hl_gemm_is_one_block(&r.gemm));
    range alone = r;
    alone.gemm.epilogue.residual = in_place.at, alone.gemm.epilogue.ld_residual = in_place.ld;
    if (which & RESIDUAL && !(which & ADD)) run_ranges(&alone, 1, m, &in_place, false);
    bool is_same = true, is_same_in_place = true;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float before = ((float *)old.at)[i * old.ld + j];
            float want = finish_by_steps(&r.gemm, i, j, ((float *)sums.at)[i * n + j], before);
            is_same = is_same && memcmp(&want, (float *)c.at + i * c.ld + j, 4) == 0;
            is_same_in_place = is_same_in_place &&
                               memcmp(&want, (float *)in_place.at + i * in_place.ld + j, 4) == 0;
        }
    CHECK(is_same);
    if (which & RESIDUAL && !(which & ADD)) CHECK(is_same_in_place);
    free_matrix(&a), free_matrix(&b), free_matrix(&packed), free_matrix(&sums);
    free_matrix(&c), free_matrix(&old), free_matrix(&in_place), free_parts(&p);
}

static void test_order(void)
{
    for (unsigned which = 0; which < PARTS; which++) {
        if (which & RELU && which & GELU) continue;
        check_order(13, 2, which);
        check_order(31, HL_GEMM_PANEL + 7, which);
    }
    hl_gemm large = make_gemm(64, 3, 700);
    large.a_row = 700, large.a_col = 1;
    CHECK(!hl_gemm_is_one_block(&large));
}

/* ---- ranges of the reduction ---- */

/* Three ranges of one B, divided at every two places. */
static void check_splits(int64_t m, int64_t n, int64_t k, int64_t step, bool by_column)
{
    range one = {.gemm = make_gemm(n, 1, k)};
    matrix a = make_a(&one.gemm, m, k, by_column, 0), b = make_random(dtype, k, n, n);
    matrix c = make_random(HL_DTYPE_F32, m, n, n + 1);
    hl_gemm_b from = make_b(&b, k, n, false);
    for (int64_t first = 0; first <= k; first += step)
        for (int64_t second = first; second <= k; second += step) {
            int64_t at[4] = {0, first, second, k};
            unsigned which = (unsigned)(first * 7 + second * 3) % PARTS;
            if (which & RELU) which &= ~(unsigned)GELU;
            check_case("%s splits m=%d n=%d k=%d at %d %d by_column=%d parts=%u",
                       hl_dtype_name(dtype), (int)m, (int)n, (int)k, (int)first, (int)second,
                       by_column, which);
            range ranges[3];
            for (int r = 0; r < 3; r++) {
                ranges[r] = one;
                ranges[r].k0 = at[r], ranges[r].gemm.k = at[r + 1] - at[r];
                const unsigned char *start = a.at;
                start += (size_t)(at[r] * one.gemm.a_col) * hl_dtype_bytes(dtype);
                ranges[r].gemm.a = start;
            }
            matrix packed = pack(&from, ranges, 3);
            parts p = give_parts(ranges, 3, m, n, which, 0);
            check_ranges(ranges, 3, &c);
            free_matrix(&packed), free_parts(&p);
        }
    free_matrix(&a), free_matrix(&b), free_matrix(&c);
}

/* x W + h U: two A and two B. */
static void check_cell(int64_t m, int64_t n, int64_t k_x, int64_t k_h)
{
    check_case("%s cell m=%d n=%d k=%d + %d", hl_dtype_name(dtype), (int)m, (int)n, (int)k_x,
               (int)k_h);
    range ranges[2] = {{.gemm = make_gemm(n, 1, k_x)}, {.gemm = make_gemm(n, 1, k_h)}};
    matrix x = make_a(&ranges[0].gemm, m, k_x, false, 0), c = make_matrix(HL_DTYPE_F32, m, n, n);
    matrix h = make_a(&ranges[1].gemm, m, k_h, false, 3), w = make_random(dtype, n, k_x, k_x);
    matrix u = make_random(dtype, n, k_h, k_h);
    hl_gemm_b from_w = make_b(&w, k_x, n, true), from_u = make_b(&u, k_h, n, true);
    matrix packed_w = pack(&from_w, &ranges[0], 1), packed_u = pack(&from_u, &ranges[1], 1);
    parts p = give_parts(ranges, 2, m, n, BIAS, 0);
    check_ranges(ranges, 2, &c);
    free_matrix(&x), free_matrix(&h), free_matrix(&w), free_matrix(&u), free_matrix(&c);
    free_matrix(&packed_w), free_matrix(&packed_u), free_parts(&p);
}

/* relu(a w) u on rows [row, row + m): the tile between the products is all that is kept of the
 * first. */
static void run_chain(const range *first, const range *second, int64_t row, int64_t m, matrix *c)
{
    range one = *first, two = *second;
    int64_t n = one.gemm.n;
    matrix tile = make_matrix(HL_DTYPE_F32, m, n, n), rounded = make_matrix(dtype, m, n, n);
    matrix rows = *c;
    one.gemm.a = (const char *)one.gemm.a + (size_t)(row * one.gemm.a_row) * hl_dtype_bytes(dtype);
    run_ranges(&one, 1, m, &tile, false);
    for (int64_t i = 0; i < m * n; i++)
        element_store(rounded.at, dtype, i, element_load(tile.at, HL_DTYPE_F32, i));
    two.gemm.a = rounded.at, two.gemm.a_row = n, two.gemm.a_col = 1;
    rows.at = (float *)c->at + row * c->ld;
    run_ranges(&two, 1, m, &rows, false);
    free_matrix(&tile), free_matrix(&rounded);
}

/* Two products in a row through a tile of any height: the same bits as through a whole matrix. */
static void check_chain(int64_t m, int64_t k, int64_t middle, int64_t n, int64_t step)
{
    check_case("%s chain m=%d k=%d middle=%d n=%d step=%d", hl_dtype_name(dtype), (int)m, (int)k,
               (int)middle, (int)n, (int)step);
    range first = {.gemm = make_gemm(middle, 1, k)}, second = {.gemm = make_gemm(n, 1, middle)};
    matrix a = make_a(&first.gemm, m, k, false, 0), w = make_random(dtype, k, middle, middle);
    matrix u = make_random(dtype, middle, n, n), whole = make_matrix(HL_DTYPE_F32, m, n, n + 3);
    matrix tiled = make_matrix(HL_DTYPE_F32, m, n, n + 3);
    hl_gemm_b from_w = make_b(&w, k, middle, false), from_u = make_b(&u, middle, n, false);
    matrix packed_w = pack(&from_w, &first, 1), packed_u = pack(&from_u, &second, 1);
    first.gemm.epilogue.activation = HL_GEMM_RELU;
    run_chain(&first, &second, 0, m, &whole);
    for (int64_t row = 0; row < m; row += step)
        run_chain(&first, &second, row, hl_cpu_min(step, m - row), &tiled);
    CHECK(memcmp(whole.at, tiled.at, whole.bytes) == 0);
    free_matrix(&a), free_matrix(&w), free_matrix(&u), free_matrix(&whole), free_matrix(&tiled);
    free_matrix(&packed_w), free_matrix(&packed_u);
}

static void test_ranges(void)
{
    check_splits(7, 3, 13, n_terms, false);
    check_splits(7, 20, 13, n_terms, true);
    check_splits(16, 50, 12, n_terms, false);
    check_splits(3, 33, 2500, 500, false);
    check_cell(5, 16, 9, 6);
    check_cell(33, 4 * HL_GEMM_PANEL, 29, 128);
    check_cell(20, 70, 1300, 700);
    check_chain(40, 13, 50, 7, 1);
    check_chain(61, 64, 96, 33, 14);
    check_chain(50, 700, 1500, 20, 23);
}

/* ---- segments: convolutions ---- */

typedef struct conv_case {
    int64_t images, height, width, channels, out, rows, cols; /* rows, cols: of the kernel */
    int64_t stride, dilation, pad, groups;
} conv_case;

/* Output pixels along a side. */
static int64_t count_out(const conv_case *t, int64_t side, int64_t kernel)
{
    return (side + 2 * t->pad - t->dilation * (kernel - 1) - 1) / t->stride + 1;
}

/* Where output o of a side reads the input under a tap: -1, outside. */
static int64_t find_in(const conv_case *t, int64_t o, int64_t tap, int64_t side)
{
    int64_t at = o * t->stride - t->pad + tap * t->dilation;
    return at < 0 || at >= side ? -1 : at;
}

/* For every tap and every pixel of a (images, sides) the pixel of the other side that meets it, or
 * zeros: forward from output to input, backward from input to output. */
static const void **list_segments(const conv_case *t, const matrix *pixels, const matrix *zeros,
                                  bool is_backward)
{
    int64_t oh = count_out(t, t->height, t->rows), ow = count_out(t, t->width, t->cols);
    int64_t from_h = is_backward ? t->height : oh, from_w = is_backward ? t->width : ow;
    int64_t m = t->images * from_h * from_w, taps = t->rows * t->cols;
    const void **list = malloc((size_t)(taps * m) * sizeof *list);
    for (int64_t i = 0; i < taps * m; i++) list[i] = zeros->at;
    size_t bytes = (size_t)pixels->ld * hl_dtype_bytes(dtype);
    for (int64_t image = 0; image < t->images; image++)
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t y = 0; y < oh; y++)
                for (int64_t x = 0; x < ow; x++) {
                    int64_t in_y = find_in(t, y, tap / t->cols, t->height);
                    int64_t in_x = find_in(t, x, tap % t->cols, t->width);
                    if (in_y < 0 || in_x < 0) continue;
                    int64_t in = (image * t->height + in_y) * t->width + in_x;
                    int64_t out = (image * oh + y) * ow + x;
                    const char *at = pixels->at;
                    list[tap * m + (is_backward ? in : out)] =
                        at + (size_t)(is_backward ? out : in) * bytes;
                }
    return list;
}

static double read_pixel(const matrix *m, int64_t pixel, int64_t channel)
{
    return element_load(m->at, dtype, pixel * m->ld + channel);
}

/* weight (O,I,kh,kw), float32: I channels of a group. */
static double read_weight(const conv_case *t, const matrix *w, int64_t o, int64_t i, int64_t tap)
{
    int64_t taps = t->rows * t->cols;
    double value = (double)((const float *)w->at)[(o * (t->channels / t->groups) + i) * taps + tap];
    return dtype == HL_DTYPE_BF16 ? (double)hl_bf16_to_f32(hl_f32_to_bf16((float)value)) : value;
}

/* The convolution by its definition into sums and sizes: forward of x into (output pixels, O),
 * backward of dy into (input pixels, I). */
static void convolve(const conv_case *t, const matrix *pixels, const matrix *w, bool is_backward,
                     double *sum, double *size)
{
    int64_t oh = count_out(t, t->height, t->rows), ow = count_out(t, t->width, t->cols);
    int64_t per_group = t->channels / t->groups, out_group = t->out / t->groups;
    for (int64_t p = 0; p < t->images * oh * ow; p++)
        for (int64_t tap = 0; tap < t->rows * t->cols; tap++) {
            int64_t y = find_in(t, p / ow % oh, tap / t->cols, t->height);
            int64_t x = find_in(t, p % ow, tap % t->cols, t->width);
            if (y < 0 || x < 0) continue;
            int64_t in = (p / ow / oh * t->height + y) * t->width + x;
            for (int64_t o = 0; o < t->out; o++)
                for (int64_t i = 0; i < per_group; i++) {
                    int64_t channel = o / out_group * per_group + i;
                    int64_t to = is_backward ? in * t->channels + channel : p * t->out + o;
                    double term = read_weight(t, w, o, i, tap);
                    term *=
                        is_backward ? read_pixel(pixels, p, o) : read_pixel(pixels, in, channel);
                    sum[to] += term, size[to] += fabs(term);
                }
        }
}

/* One direction: pixels (.,from channels) through w to c (m,to channels), group by group. */
static void check_direction(const conv_case *t, const matrix *w, bool is_backward)
{
    int64_t oh = count_out(t, t->height, t->rows), ow = count_out(t, t->width, t->cols);
    int64_t n_in = t->images * t->height * t->width, n_out = t->images * oh * ow;
    int64_t m = is_backward ? n_in : n_out, taps = t->rows * t->cols;
    int64_t per_group = t->channels / t->groups, out_group = t->out / t->groups;
    int64_t k = is_backward ? out_group : per_group, n = is_backward ? per_group : out_group;
    matrix pixels = make_random(dtype, is_backward ? n_out : n_in, k * t->groups,
                                k * t->groups + (t->groups == 1 ? 2 : 0));
    matrix zeros = make_matrix(dtype, 1, k * t->groups, k * t->groups);
    memset(zeros.at, 0, zeros.bytes);
    const void **list = list_segments(t, &pixels, &zeros, is_backward);
    matrix c = make_matrix(HL_DTYPE_F32, m, n * t->groups, n * t->groups);
    for (int64_t g = 0; g < t->groups; g++) {
        hl_gemm_b b = {.type = type,
                       .dtype = HL_DTYPE_F32,
                       .at = (const float *)w->at + g * out_group * per_group * taps,
                       .n_segments = taps,
                       .k = k,
                       .n = n,
                       .segment_stride = 1,
                       .k_stride = is_backward ? per_group * taps : taps,
                       .n_stride = is_backward ? taps : per_group * taps};
        range r = {.gemm = make_gemm(n, taps, k)};
        r.gemm.segments = list, r.gemm.ld_segments = m, r.gemm.segment_offset = g * k;
        matrix packed = pack(&b, &r, 1), part = make_matrix(HL_DTYPE_F32, m, n, n);
        check_ranges(&r, 1, &part);
        matrix to = {.dtype = HL_DTYPE_F32, .rows = m, .cols = n, .ld = c.ld};
        to.at = (float *)c.at + g * n;
        run_ranges(&r, 1, m, &to, true);
        free_matrix(&packed), free_matrix(&part);
    }
    double *sum = calloc((size_t)(m * c.cols), sizeof(double)),
           *size = malloc((size_t)(m * c.cols) * sizeof(double));
    memset(size, 0, (size_t)(m * c.cols) * sizeof(double));
    convolve(t, &pixels, w, is_backward, sum, size);
    bool is_right = true;
    for (int64_t e = 0; e < m * c.cols; e++) {
        double error = fabs((double)((float *)c.at)[e] - sum[e]);
        is_right = is_right && error <= (double)(taps * k + 8) * 0x1p-24 * size[e] + 1e-30;
    }
    CHECK(is_right);
    free(sum), free(size), free(list);
    free_matrix(&pixels), free_matrix(&zeros), free_matrix(&c);
}

static void test_convolutions(void)
{
    static const conv_case cases[] = {
        {2, 5, 4, 5, 7, 3, 3, 1, 1, 1, 1},     /* odd channels, ragged columns */
        {1, 9, 7, 16, 33, 3, 3, 2, 1, 1, 1},   /* stride */
        {1, 9, 8, 8, 40, 3, 3, 1, 2, 2, 1},    /* dilation */
        {1, 11, 9, 3, 20, 7, 7, 2, 1, 3, 1},   /* a stem */
        {2, 6, 6, 20, 6, 1, 1, 2, 1, 0, 1},    /* one tap */
        {1, 6, 5, 12, 8, 3, 2, 1, 1, 1, 2},    /* groups */
        {1, 4, 4, 70, 35, 5, 5, 1, 1, 2, 1},   /* segments in several blocks of K */
        {1, 3, 2, 1100, 4, 1, 2, 1, 1, 0, 1},  /* a segment in several blocks */
        {1, 3, 2, 1101, 40, 1, 2, 1, 1, 0, 1}, /* and of odd length */
        {1, 4, 3, 6, 2, 3, 3, 1, 1, 1, 1},     /* C of a few columns */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const conv_case *t = &cases[i];
        int64_t count = t->out * (t->channels / t->groups) * t->rows * t->cols;
        matrix w = make_random(HL_DTYPE_F32, 1, count, count);
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            check_case("%s convolution %d, backward %d", hl_dtype_name(dtype), (int)i, is_backward);
            check_direction(t, &w, is_backward);
        }
        free_matrix(&w);
    }
}

/* A range may be some of the segments. */
static void test_segment_ranges(void)
{
    enum { M = 9, N = 37, K = 6, S = 5 };
    matrix a = make_random(dtype, M, S * K, S * K), b = make_random(dtype, S * K, N, N);
    matrix c = make_matrix(HL_DTYPE_F32, M, N, N);
    const void *list[S][M];
    for (int s = 0; s < S; s++)
        for (int i = 0; i < M; i++)
            list[s][i] = (char *)a.at + (size_t)(i * S * K + s * K) * hl_dtype_bytes(dtype);
    hl_gemm_b from = make_b(&b, K, N, false);
    from.n_segments = S, from.segment_stride = K * N;
    for (int split = 0; split <= S; split++) {
        check_case("%s segments split at %d", hl_dtype_name(dtype), split);
        range ranges[2] = {{.gemm = make_gemm(N, split, K)},
                           {.gemm = make_gemm(N, S - split, K), .segment = split}};
        for (int r = 0; r < 2; r++)
            ranges[r].gemm.segments = list[r * split < S ? r * split : 0],
            ranges[r].gemm.ld_segments = M;
        matrix packed = pack(&from, ranges, 2);
        parts p = give_parts(ranges, 2, M, N, SCALE | BIAS | RELU, 0);
        check_ranges(ranges, 2, &c);
        free_matrix(&packed), free_parts(&p);
    }
    free_matrix(&a), free_matrix(&b), free_matrix(&c);
}

/* ---- every tile ---- */

/* Small integers are exact in every order, so any mistake shows as a wrong bit. */
static void check_tile(int64_t m, int64_t n, int form)
{
    enum { K = 5, S = 2 };
    int64_t n_segments = form == 2 ? S : 1, k = form == 2 ? K : S * K;
    check_case("%s tile m=%d n=%d form=%d", hl_dtype_name(dtype), (int)m, (int)n, form);
    range r = {.gemm = make_gemm(n, n_segments, k)};
    matrix a = make_a(&r.gemm, m, S * K, form == 1, 1), b = make_random(dtype, S * K, n, n);
    matrix c = make_matrix(HL_DTYPE_F32, m, n, n);
    const void **list = malloc((size_t)(S * m) * sizeof *list);
    for (int64_t i = 0; i < m; i++)
        for (int64_t e = 0; e < S * K; e++)
            element_store(a.at, dtype, i * r.gemm.a_row + e * r.gemm.a_col,
                          (double)((i * 7 + e * 5) % 15 - 7));
    for (int64_t e = 0; e < S * K * n; e++)
        element_store(b.at, dtype, e, (double)(e * 11 % 17 - 8));
    for (int64_t i = 0; i < S * m; i++)
        list[i] = (char *)a.at + (size_t)(i % m * a.ld + i / m * K) * hl_dtype_bytes(dtype);
    hl_gemm_b from = make_b(&b, k, n, false);
    if (form == 2) {
        r.gemm.segments = list, r.gemm.ld_segments = m;
        from.n_segments = S, from.segment_stride = K * n;
    }
    matrix packed = pack(&from, &r, 1);
    run_ranges(&r, 1, m, &c, false);
    bool is_exact = true;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t e = 0; e < S * K; e++)
                sum += read_a(&r.gemm, i, e / k, e % k) * read_b(&from, e / k, e % k, j);
            is_exact = is_exact && ((float *)c.at)[i * n + j] == (float)sum;
        }
    CHECK(is_exact);
    free(list), free_matrix(&a), free_matrix(&b), free_matrix(&c), free_matrix(&packed);
}

static void test_tiles(void)
{
    for (int64_t m = 1; m <= 2 * HL_GEMM_ROWS_BEST + 1; m++)
        for (int64_t n = 1; n <= 5 * HL_VL + 1; n += n % HL_VL == 1   ? 1
                                                     : n % HL_VL == 2 ? HL_VL - 3
                                                                      : 1)
            for (int form = 0; form < 3; form++) check_tile(m, n, form);
}

/* ---- packing ---- */

/* A word's term: 0 for float32, the halves of bfloat16. */
static double read_word(const hl_gemm_word *word, int64_t term)
{
    return element_load(word, dtype, term);
}

/* (S,K,N) in one order of the strides, every word by its definition. */
static void check_pack(int64_t S, int64_t K, int64_t N, int order, bool from_float32)
{
    check_case("%s pack %d x %d x %d order %d float32 %d", hl_dtype_name(dtype), (int)S, (int)K,
               (int)N, order, from_float32);
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    int64_t dim[3] = {S, K, N}, stride[3], step = 1;
    for (int d = 2; d >= 0; d--) stride[orders[order][d]] = step, step *= dim[orders[order][d]];
    matrix source = make_random(from_float32 ? HL_DTYPE_F32 : dtype, 1, S * K * N, S * K * N);
    hl_gemm_b b = {type, source.dtype, source.at, S, K, N, stride[0], stride[1], stride[2]};
    range none;
    matrix packed = pack(&b, &none, 0);
    int64_t rows = hl_gemm_count_rows(type, 1, K), panels = hl_gemm_panels(N);
    CHECK_INT(packed.cols, panels * S * rows * HL_GEMM_PANEL);
    bool is_right = true;
    for (int64_t e = 0; e < packed.cols * n_terms; e++) {
        int64_t word = e / n_terms, row = word / HL_GEMM_PANEL, s = row / rows % S;
        int64_t k = row % rows * n_terms + e % n_terms;
        int64_t j = row / rows / S * HL_GEMM_PANEL + word % HL_GEMM_PANEL;
        double want = k < K && j < N ? read_b(&b, s, k, j) : 0;
        is_right = is_right && read_word((hl_gemm_word *)packed.at + word, e % n_terms) == want;
    }
    CHECK(is_right);
    /* All panels in one call. */
    matrix again = make_matrix(HL_DTYPE_F32, 1, packed.cols, packed.cols);
    hl_gemm_pack(&b, 0, panels, again.at);
    CHECK(memcmp(again.at, packed.at, packed.bytes) == 0);
    free_matrix(&source), free_matrix(&packed), free_matrix(&again);
}

static void test_pack(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1},   {1, 7, 5},   {1, 33, 10 * HL_GEMM_PANEL + 3},
                                       {9, 4, 40},  {9, 5, 33},  {4, 17, HL_GEMM_PANEL},
                                       {49, 3, 20}, {2, 64, 64}, {3, 35, HL_VL}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int order = 0; order < 6; order++)
            for (int from_float32 = 0; from_float32 < 2; from_float32++)
                check_pack(sizes[s][0], sizes[s][1], sizes[s][2], order, from_float32);
}

/* ---- A^T B ---- */

static void run_tn(const hl_gemm_tn *gemm, int64_t n_tasks, matrix *c)
{
    hl_gemm_tn g = *gemm;
    hl_gemm_tn_plan plan;
    hl_gemm_tn_plan_make(g.m, g.n, g.k, n_tasks, &plan);
    float *partials = make_scratch(plan.partial_bytes);
    void *scratch = make_scratch(plan.scratch_bytes);
    g.c = c->at, g.ldc = c->ld;
    for (int64_t i = plan.n_tiles; i-- > 0;) hl_gemm_tn_tile(&g, &plan, i, partials, scratch);
    for (int64_t i = plan.n_merges; i-- > 0;) hl_gemm_tn_merge(&g, &plan, i, partials);
    free(partials), free(scratch);
}

static void check_tn(int64_t m, int64_t n, int64_t k, int64_t pad, bool accumulate)
{
    check_case("%s tn m=%d n=%d k=%d pad=%d accumulate=%d", hl_dtype_name(dtype), (int)m, (int)n,
               (int)k, (int)pad, accumulate);
    matrix a = make_random(dtype, k, m, m + pad), b = make_random(dtype, k, n, n + pad);
    matrix old = make_random(HL_DTYPE_F32, m, n, n + pad), c = copy_matrix(&old, n + pad);
    matrix again = copy_matrix(&old, n);
    hl_gemm_tn g = {.type = type, .m = m, .n = n, .k = k, .a = a.at, .lda = a.ld};
    g.b = b.at, g.ldb = b.ld, g.alpha = 0.5f, g.accumulate = accumulate;
    run_tn(&g, 1, &c);
    run_tn(&g, 64, &again); /* for many threads: the same bits */
    range r = {.gemm = make_gemm(n, 1, k), .b = make_b(&b, k, n, false)};
    r.gemm.a = a.at, r.gemm.a_row = 1, r.gemm.a_col = a.ld;
    r.gemm.first = !accumulate, r.gemm.epilogue.alpha = 0.5f;
    bool is_right = true, is_same = true;
    for (int64_t i = 0; i < m; i++) {
        float *row = (float *)c.at + i * c.ld, *before = (float *)old.at + i * old.ld;
        is_same = is_same && !memcmp((float *)again.at + i * n, row, (size_t)n * sizeof(float));
        for (int64_t j = 0; j < n; j++)
            is_right = is_right && is_close(&r, 1, i, j, (double)before[j], (double)row[j]);
    }
    CHECK(is_right);
    CHECK(is_same);
    free_matrix(&a), free_matrix(&b), free_matrix(&c), free_matrix(&old), free_matrix(&again);
}

static void test_tn(void)
{
    static const int64_t sizes[] = {1, 2, 7, 14, 15, 20, 31, 32, 33, 50, 65, 130};
    enum { N = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            check_tn(sizes[i], sizes[j], sizes[(i * 5 + j * 7) % N] * (i % 2 ? 1 : 9), j % 3,
                     (i + j) % 2);
    check_tn(50, 50, 5000, 0, true);
    check_tn(10, 256, 2100, 1, false);
    check_tn(150, 300, 700, 0, true);
    check_tn(3, 2, 20000, 0, false);
    check_tn(14, 64, 0x1000, 0, false);
    check_tn(1024, 170, 30, 0, false);
}

/* ---- values that are not finite ---- */

/* NaN and infinity pass through; ReLU keeps a NaN; a tile's padding never leaks into C. */
static void test_not_finite(void)
{
    check_case("%s", "not finite");
    static const double values[2][2] = {{NAN, 1}, {1, INFINITY}};
    range r = {.gemm = make_gemm(2, 1, 1)};
    matrix a = make_a(&r.gemm, 2, 1, false, 0), b = make_random(dtype, 1, 2, 2);
    matrix c = make_matrix(HL_DTYPE_F32, 2, 2, 2);
    for (int i = 0; i < 2; i++) {
        element_store(a.at, dtype, i, values[0][i]);
        element_store(b.at, dtype, i, values[1][i]);
    }
    hl_gemm_b from = make_b(&b, 1, 2, false);
    matrix packed = pack(&from, &r, 1);
    r.gemm.epilogue.activation = HL_GEMM_RELU;
    run_ranges(&r, 1, 2, &c, false);
    const float *got = c.at;
    CHECK(isnan(got[0]) && isnan(got[1]) && got[2] == 1 && isinf(got[3]));
    free_matrix(&a), free_matrix(&b), free_matrix(&c), free_matrix(&packed);
}

static void test_all(void)
{
    test_not_finite();
    test_tiles();
    test_pack();
    test_rows();
    test_epilogues();
    test_order();
    test_ranges();
    test_convolutions();
    test_segment_ranges();
    test_tn();
}

int main(void)
{
    test_all();
#if HL_ISA_AVX512
    hl_os_cpu machine;
    hl_os_cpu_read(&machine);
    const hl_gemm_type *types[] = {machine.avx512_bf16 ? &hl_gemm_bf16 : NULL,
                                   machine.amx ? &hl_gemm_amx : NULL};
    dtype = HL_DTYPE_BF16, n_terms = 2;
    for (int i = 0; i < 2; i++) {
        type = types[i];
        if (type) test_all();
        if (!type) CHECK_SKIP("the processor has no products of bfloat16 of this kind");
    }
#endif
    return CHECK_DONE();
}
