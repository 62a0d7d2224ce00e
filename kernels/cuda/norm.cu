/* Layer normalisation on rows (R,C) and its input gradient; batch normalisation and its gradients
 * on columns (A,C) in one launch where a block can hold its columns, and else their last steps, for
 * which kernels/cuda/reduce.cu makes the statistics and the sums.
 *
 * Mean first and then the mean square distance from it, as ref does, of a row in registers: memory
 * is read once. Rejected: sums of squares, which lose all digits where the mean is large.
 *
 * What is given may be narrower than what is read (Y, T); statistics and sums are not. A result of
 * relu that a gradient reads is as narrow as what it gives.
 *
 * Launch: any grid; threads a multiple of 32, HL_CUDA_NORM_THREADS where a block holds columns;
 * cooperative groups by by_block (fold.h). */
#include "kernels/cuda/norm.h"

#include "kernels/cuda/fold.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/philox.h"

enum {
    THREADS = HL_CUDA_NORM_THREADS,
    COLUMNS = HL_CUDA_NORM_COLUMNS,
    ROWS = HL_CUDA_NORM_ROWS,
    KEEP = HL_CUDA_NORM_KEEP,
    DRAWN = 8 /* elements of one random counter */
};

template <class T> HL_DEVICE float read_or(const T *p, int64_t c, float otherwise)
{
    return p ? hl_read(p, c) : otherwise;
}

template <class T, class Y>
HL_DEVICE void run_layer_norm(const T *src, const T *weight, const T *bias, Y *dst, T *mean,
                              T *rstd, int64_t R, int64_t C, float eps, int by_block)
{
    hl_coop_group coop = hl_coop_make(by_block);
    for (int64_t r = coop.first; r < R; r += coop.step) {
        const T *x = src + r * C;
        Y *y = dst + r * C;
        auto row = hl_coop_keep<32>(coop, C, [=](int64_t c) { return hl_read(x, c); });
        float sum = 0, squares = 0;
        row.each([&](int64_t, float v) { sum += v; });
        float middle = hl_coop_sum(coop, sum) / (float)C;
        row.each([&](int64_t, float v) { squares += (v - middle) * (v - middle); });
        float scale = hl_rsqrt(hl_coop_sum(coop, squares) / (float)C + eps);
        row.each([&](int64_t c, float v) {
            hl_write(y, c, (v - middle) * scale * read_or(weight, c, 1) + read_or(bias, c, 0));
        });
        if (coop.rank == 0) {
            hl_write(mean, r, middle);
            hl_write(rstd, r, scale);
        }
    }
}

struct grad_pair {
    float g, z;
};

/* With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). */
template <class T, class Y>
HL_DEVICE void run_layer_norm_grad(const T *dy, const T *src, const T *mean, const T *rstd,
                                   const T *weight, Y *dx, int64_t R, int64_t C, int by_block)
{
    hl_coop_group coop = hl_coop_make(by_block);
    for (int64_t r = coop.first; r < R; r += coop.step) {
        float middle = hl_read(mean, r), scale = hl_read(rstd, r), sum_g = 0, sum_gz = 0;
        auto row = hl_coop_keep<16>(coop, C, [=](int64_t c) {
            float g = hl_read(dy, r * C + c) * read_or(weight, c, 1);
            return grad_pair{g, (hl_read(src, r * C + c) - middle) * scale};
        });
        row.each([&](int64_t, grad_pair v) {
            sum_g += v.g;
            sum_gz += v.g * v.z;
        });
        sum_g = hl_coop_sum(coop, sum_g) / (float)C;
        sum_gz = hl_coop_sum(coop, sum_gz) / (float)C;
        row.each([&](int64_t c, grad_pair v) {
            hl_write(dx, r * C + c, scale * (v.g - sum_g - v.z * sum_gz));
        });
    }
}

/* What becomes of a normalised value; bits: its 16 random ones, where there is dropout. */
HL_DEVICE float finish(const hl_cuda_norm_epilogue &epilogue, float v, uint32_t bits)
{
    if (epilogue.has_relu && !(v > 0) && v == v) v = 0;
    if (epilogue.has_dropout) v *= bits < epilogue.threshold ? 0.0f : epilogue.scale;
    return v;
}

HL_DEVICE hl_word4 draw(const hl_cuda_norm_epilogue &epilogue, const hl_control *control,
                        int64_t sample, int64_t block)
{
    return hl_philox_block(epilogue.key[0], epilogue.key[1], (uint32_t)control->attempted,
                           (uint64_t)(control->micro_row + sample), (uint64_t)block);
}

/* x (A,C,S) -> (x - mean[c]) / sqrt(var[c] + eps) weight[c] + bias[c], and the epilogue. A thread
 * makes the elements of one random counter, or one without dropout. */
template <class T, class Y>
HL_DEVICE void run_batch_norm(const T *src, const T *mean, const T *var, const T *weight,
                              const T *bias, Y *dst, const hl_control *control, int64_t n,
                              int64_t C, int64_t S, float eps,
                              const hl_cuda_norm_epilogue &epilogue)
{
    /* Divisions of 64 bits are long on a GPU. */
    bool is_short = hl_is_short(n);
    auto make = [&](int64_t i, uint32_t bits) {
        int64_t c = is_short ? (uint32_t)i / (uint32_t)S % (uint32_t)C : i / S % C;
        float z = (hl_read(src, i) - hl_read(mean, c)) * hl_rsqrt(hl_read(var, c) + eps);
        hl_write(dst, i, finish(epilogue, z * hl_read(weight, c) + hl_read(bias, c), bits));
    };
    if (!epilogue.has_dropout) {
        HL_FOR_GRID(i, n) make(i, 0);
        return;
    }
    int64_t per_sample = C * S, n_blocks = (per_sample + DRAWN - 1) / DRAWN;
    HL_FOR_GRID(i, n / per_sample * n_blocks)
    {
        int64_t block, sample = hl_divide(i, n_blocks, is_short, &block);
        hl_word4 words = draw(epilogue, control, sample, block);
        HL_UNROLL
        for (int j = 0; j < DRAWN; j++)
            if (DRAWN * block + j < per_sample)
                make(sample * per_sample + DRAWN * block + j, hl_philox_bits16(words, j));
    }
}

/* Of the threads of a column, who all get it. */
HL_DEVICE float add_column(float value)
{
    HL_SHARED(float, part, THREADS);
    int t = hl_thread();
    hl_barrier(); /* the last sum's readers are through */
    part[t] = value;
    for (int half = THREADS / 2; half >= COLUMNS; half /= 2) {
        hl_barrier();
        if (t < half) part[t] = part[t] + part[t + half];
    }
    hl_barrier();
    return part[t % COLUMNS];
}

template <class T, class Y>
HL_DEVICE void run_batch_norm_columns(const T *src, const T *weight, const T *bias, Y *dst, T *mean,
                                      T *var, const hl_control *control, int64_t A, int64_t C,
                                      float eps, const hl_cuda_norm_epilogue &epilogue)
{
    int row = hl_thread() / COLUMNS, lane = hl_thread() % COLUMNS;
    for (int64_t tile = hl_block_x(); tile * COLUMNS < C; tile += hl_blocks_x()) {
        int64_t c = tile * COLUMNS + hl_thread() % COLUMNS;
        int64_t n = c < C ? A : 0;
        float x[KEEP], sum = 0, squares = 0;
        HL_UNROLL
        for (int j = 0; j < KEEP; j++) {
            int64_t r = row + j * ROWS;
            x[j] = r < n ? hl_read(src, r * C + c) : 0.0f;
        }
        HL_UNROLL
        for (int j = 0; j < KEEP; j++) sum += x[j];
        float middle = add_column(sum) / (float)A;
        HL_UNROLL
        for (int j = 0; j < KEEP; j++)
            if (row + j * ROWS < n) squares += (x[j] - middle) * (x[j] - middle);
        float variance = add_column(squares) / (float)A;
        if (row == 0 && n > 0) {
            hl_write(mean, c, middle);
            hl_write(var, c, variance);
        }
        float scale = hl_rsqrt(variance + eps);
        float w = n > 0 ? hl_read(weight, c) : 0, b = n > 0 ? hl_read(bias, c) : 0;
        /* Eight lanes draw the numbers of their columns in eight rows, a row each. */
        HL_UNROLL
        for (int j0 = 0; j0 < KEEP; j0 += DRAWN) {
            hl_word4 words = {0, 0, 0, 0};
            if (epilogue.has_dropout && j0 * ROWS < A)
                words = draw(epilogue, control, row + (j0 + lane % DRAWN) * ROWS,
                             tile * (COLUMNS / DRAWN) + lane / DRAWN);
            HL_UNROLL
            for (int j = j0; j < j0 + DRAWN; j++) {
                int64_t r = row + j * ROWS;
                uint32_t bits = 0;
                if (epilogue.has_dropout && j0 * ROWS < A)
                    bits = hl_philox_bits16(
                        hl_shuffle(HL_WARP_ALL, words, lane / DRAWN * DRAWN + j - j0),
                        lane % DRAWN);
                float y = finish(epilogue, (x[j] - middle) * scale * w + b, bits);
                if (r < n) hl_write(dst, r * C + c, y);
            }
        }
    }
}

/* The input gradient from the others, element by element: dx = weight / std (dy - dbias / n - z
 * dweight / n), z = (x - mean) / std, n = A S. */
template <class T, class Y>
HL_DEVICE void run_batch_norm_dx(const T *dy, const T *src, const T *weight, const T *mean,
                                 const T *var, const T *dweight, const T *dbias, const Y *result,
                                 Y *dx, int64_t A, int64_t C, int64_t S, float eps,
                                 float result_scale)
{
    int64_t n = A * C * S;
    float per_channel = (float)(A * S);
    HL_FOR_GRID(i, n)
    {
        int64_t c = n <= 0x7FFFFFFF ? (uint32_t)i / (uint32_t)S % (uint32_t)C : i / S % C;
        float rstd = hl_rsqrt(hl_read(var, c) + eps);
        float z = (hl_read(src, i) - hl_read(mean, c)) * rstd;
        float g = hl_read_passed(dy, result, i, result_scale) - hl_read(dbias, c) / per_channel;
        g -= z * (hl_read(dweight, c) / per_channel);
        hl_write(dx, i, hl_read(weight, c) * rstd * g);
    }
}

/* All three gradients in one launch; a column's threads are a cooperative group
 * for hl_coop_row, which reads rows beyond those it holds once more. */
template <class T, class Y>
HL_DEVICE void run_batch_norm_grad_columns(const T *dy, const T *src, const T *weight,
                                           const T *mean, const T *var, const Y *result, Y *dx,
                                           T *dweight, T *dbias, int64_t A, int64_t C, float eps,
                                           float result_scale)
{
    hl_coop_group column = {hl_thread() / COLUMNS, ROWS, 0, 0, true, HL_WARP_ALL};
    for (int64_t tile = hl_block_x(); tile * COLUMNS < C; tile += hl_blocks_x()) {
        int64_t c = tile * COLUMNS + hl_thread() % COLUMNS;
        int64_t n = c < C ? A : 0;
        float middle = n ? hl_read(mean, c) : 0, sum_g = 0, sum_gz = 0;
        float rstd = n ? hl_rsqrt(hl_read(var, c) + eps) : 0;
        auto rows = hl_coop_keep<16>(column, n, [=](int64_t r) {
            int64_t at = r * C + c;
            return grad_pair{hl_read_passed(dy, result, at, result_scale),
                             (hl_read(src, at) - middle) * rstd};
        });
        rows.each([&](int64_t, grad_pair v) {
            sum_g += v.g;
            sum_gz += v.g * v.z;
        });
        sum_g = add_column(sum_g);
        sum_gz = add_column(sum_gz);
        if (n == 0) continue;
        if (column.rank == 0) {
            hl_write(dweight, c, sum_gz);
            hl_write(dbias, c, sum_g);
        }
        float scale = hl_read(weight, c) * rstd;
        sum_g /= (float)A, sum_gz /= (float)A;
        rows.each([&](int64_t r, grad_pair v) {
            hl_write(dx, r * C + c, scale * (v.g - sum_g - v.z * sum_gz));
        });
    }
}

#define KERNELS(T, Y, suffix)                                                                      \
    HL_CUDA_ENTRY_OF(layer_norm, suffix, THREADS, p)                                               \
    {                                                                                              \
        run_layer_norm((const T *)p.at.x, (const T *)p.at.weight, (const T *)p.at.bias,            \
                       (Y *)p.at.y, (T *)p.at.mean, (T *)p.at.rstd, p.R, p.C, p.eps, p.by_block);  \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(layer_norm_grad, suffix, THREADS, p)                                          \
    {                                                                                              \
        run_layer_norm_grad((const T *)p.at.dy, (const T *)p.at.x, (const T *)p.at.mean,           \
                            (const T *)p.at.rstd, (const T *)p.at.weight, (Y *)p.at.dx, p.R, p.C,  \
                            p.by_block);                                                           \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm, suffix, THREADS, p)                                               \
    {                                                                                              \
        run_batch_norm((const T *)p.at.x, (const T *)p.at.mean, (const T *)p.at.var,               \
                       (const T *)p.at.weight, (const T *)p.at.bias, (Y *)p.at.y, p.at.control,    \
                       p.n, p.C, p.S, p.eps, p.epilogue);                                          \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_columns, suffix, THREADS, p)                                       \
    {                                                                                              \
        run_batch_norm_columns((const T *)p.at.x, (const T *)p.at.weight, (const T *)p.at.bias,    \
                               (Y *)p.at.y, (T *)p.at.mean, (T *)p.at.var, p.at.control, p.A, p.C, \
                               p.eps, p.epilogue);                                                 \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_dx, suffix, THREADS, p)                                            \
    {                                                                                              \
        run_batch_norm_dx((const T *)p.at.dy, (const T *)p.at.x, (const T *)p.at.weight,           \
                          (const T *)p.at.mean, (const T *)p.at.var, (const T *)p.at.dweight,      \
                          (const T *)p.at.dbias, (const Y *)p.at.result, (Y *)p.at.dx, p.A, p.C,   \
                          p.S, p.eps, p.result_scale);                                             \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_grad_columns, suffix, THREADS, p)                                  \
    {                                                                                              \
        run_batch_norm_grad_columns((const T *)p.at.dy, (const T *)p.at.x, (const T *)p.at.weight, \
                                    (const T *)p.at.mean, (const T *)p.at.var,                     \
                                    (const Y *)p.at.result, (Y *)p.at.dx, (T *)p.at.dweight,       \
                                    (T *)p.at.dbias, p.A, p.C, p.eps, p.result_scale);             \
    }
KERNELS(float, float, f32)
KERNELS(hl_bf16, hl_bf16, bf16)
KERNELS(hl_f16, hl_f16, f16)
KERNELS(float, hl_bf16, f32_bf16)
KERNELS(float, hl_f16, f32_f16)
