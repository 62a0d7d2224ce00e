/* Moments of columns: mean and sum of squared distances from it (M2), of blocks of rows while they
 * are in cache, merged by Chan, Golub and LeVeque's formula (1979) in a fixed tree.
 *
 * The blocks follow from the shape alone, so that bits are the same for any number of threads. Each
 * has a partial result, means (I) and then M2 (I). Who makes the rows may take them in as they
 * come, from a block's first row on: a kernel whose second phase goes by blocks, and whose third
 * merges. */
#ifndef HL_KERNELS_CPU_MOMENTS_H
#define HL_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/rows.h"

enum { HL_MOMENTS_ROWS = 32 }; /* in cache for a second pass */

typedef struct hl_moments {
    int64_t N, I;              /* rows and columns */
    int64_t grain, n_partials; /* rows of a block, and blocks: 1 at least */
} hl_moments;

/* Blocks are multiples of `unit` rows, HL_CPU_PARTIALS of them at most. */
static inline hl_moments hl_moments_make(int64_t N, int64_t I, int64_t unit)
{
    int64_t units = hl_cpu_ceil_div(hl_cpu_ceil_div(N, HL_CPU_PARTIALS), hl_cpu_max(unit, 1));
    int64_t grain = hl_cpu_max(units, 1) * hl_cpu_max(unit, 1);
    return (hl_moments){N, I, grain, hl_cpu_max(hl_cpu_ceil_div(N, grain), 1)};
}

static inline size_t hl_moments_bytes(const hl_moments *m)
{
    return (size_t)(m->n_partials * 2 * m->I) * sizeof(float);
}

/* The partial of the block that this row is in. */
static inline float *hl_moments_partial(const hl_moments *m, float *partials, int64_t row)
{
    return partials + row / m->grain * 2 * m->I;
}

/* The second and the third phase, in place of one by rows: blocks, and shares of the columns. */
static inline void hl_moments_require(const hl_moments *m, hl_kernel_req *out_req)
{
    out_req->scratch_bytes += hl_moments_bytes(m);
    out_req->n_phases = 3;
    out_req->phase_row_cost *= (double)out_req->phase_rows / (double)m->n_partials;
    out_req->phase_rows = m->n_partials;
}

/* mean, m2 of n_a rows take in those of n_b rows. */
HL_SIMD void hl_moments_join(float n_a, float n_b, hl_v *mean, hl_v *m2, hl_v mean_b, hl_v m2_b)
{
    hl_v delta = mean_b - *mean;
    float share = n_b / (n_a + n_b);
    *mean = *mean + delta * share;
    /* In this order the square of a first mean, times 0 rows, is 0 and not infinity times 0. */
    *m2 = (*m2 + m2_b) + delta * (n_a * share) * delta;
}

/* Columns [c, c + n) of n_rows rows behind `before` rows of their block. */
HL_SIMD void hl_moments_take_vector(const float *x, int64_t I, int64_t c, int64_t n, int64_t before,
                                    int64_t n_rows, float *partial)
{
    hl_v mean = hl_v_zero(), m2 = hl_v_zero();
    if (before) mean = hl_row_load(partial + c, n), m2 = hl_row_load(partial + I + c, n);
    for (int64_t first = 0; first < n_rows; first += HL_MOMENTS_ROWS) {
        int64_t last = hl_cpu_min(n_rows, first + HL_MOMENTS_ROWS);
        hl_v sum[2] = {{0}}, squares[2] = {{0}};
        for (int64_t r = first; r < last; r++) sum[r & 1] += hl_row_load(x + r * I + c, n);
        hl_v center = (sum[0] + sum[1]) * (1 / (float)(last - first));
        for (int64_t r = first; r < last; r++) {
            hl_v d = hl_row_load(x + r * I + c, n) - center;
            squares[r & 1] += d * d;
        }
        hl_moments_join((float)(before + first), (float)(last - first), &mean, &m2, center,
                        squares[0] + squares[1]);
    }
    hl_row_store(partial + c, mean, n);
    hl_row_store(partial + I + c, m2, n);
}

/* All columns of rows that lie one behind another. */
static inline void hl_moments_take(const float *x, int64_t I, int64_t before, int64_t n_rows,
                                   float *partial)
{
    int64_t c = 0;
    for (; c + HL_VL <= I; c += HL_VL)
        hl_moments_take_vector(x, I, c, HL_VL, before, n_rows, partial);
    if (c < I) hl_moments_take_vector(x, I, c, I - c, before, n_rows, partial);
}

/* Mean and population variance of columns [first, last), from partials of all; `first` is a
 * multiple of HL_VL. */
static inline void hl_moments_merge(const hl_moments *m, float *partials, int64_t first,
                                    int64_t last, float *mean, float *var)
{
    const int64_t N = m->N, I = m->I, grain = m->grain, n_partials = m->n_partials;
    for (int64_t step = 1; step < n_partials; step *= 2) {
        for (int64_t p = 0; p + step < n_partials; p += 2 * step) {
            float n_a = (float)(step * grain);
            float n_b = (float)(hl_cpu_min(N, (p + 2 * step) * grain) - (p + step) * grain);
            float *a = partials + p * 2 * I, *b = a + step * 2 * I;
            for (int64_t c = first; c < last; c += HL_VL) {
                int64_t n = hl_cpu_min(last - c, HL_VL);
                hl_v mean_a = hl_row_load(a + c, n), m2 = hl_row_load(a + I + c, n);
                hl_moments_join(n_a, n_b, &mean_a, &m2, hl_row_load(b + c, n),
                                hl_row_load(b + I + c, n));
                hl_row_store(a + c, mean_a, n);
                hl_row_store(a + I + c, m2, n);
            }
        }
    }
    for (int64_t c = first; c < last; c++) {
        mean[c] = N > 0 ? partials[c] : NAN;
        var[c] = N > 0 ? partials[I + c] / (float)N : NAN;
    }
}

/* The third phase's shares [begin, end) of the columns, of as many as there are blocks. */
static inline void hl_moments_share(const hl_moments *m, float *partials, int64_t begin,
                                    int64_t end, float *mean, float *var)
{
    int64_t n_vectors = hl_cpu_ceil_div(m->I, HL_VL);
    hl_moments_merge(m, partials, begin * n_vectors / m->n_partials * HL_VL,
                     hl_cpu_min(end * n_vectors / m->n_partials * HL_VL, m->I), mean, var);
}

#endif
