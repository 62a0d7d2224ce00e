/* Layer normalisation on rows (R,C) and its input gradient; batch normalisation and its gradients
 * on columns (A,C) in one launch where a block can hold its columns, and else their last steps, for
 * which kernels/cuda/reduce.cu makes the statistics and the sums.
 *
 * Mean first and then the mean square distance from it, as ref does, of a row in registers: memory
 * is read once. Rejected: sums of squares, which lose all digits where the mean is large.
 *
 * x, dy and what is given may have 16 bits, each by itself (X, D, Y); parameters, statistics and
 * sums are float32. A result of relu that a gradient reads has the type of what it gives.
 *
 * The last steps take windows of neighbours, 16 bytes or more at once, and of each channel what its
 * statistics were made into once (channel.h): an element costs no division and no root.
 *
 * Launch: any grid; threads a multiple of 32, HL_CUDA_NORM_THREADS where a block holds columns;
 * cooperative groups by by_block (fold.h). */
#include "kernels/cuda/norm.h"

#include "kernels/cuda/fold.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/philox.h"

enum {
    THREADS = HL_CUDA_NORM_THREADS,
    COLUMNS = HL_CUDA_NORM_COLUMNS,
    ROWS = HL_CUDA_NORM_ROWS,
    KEEP = HL_CUDA_NORM_KEEP,
    DRAWN = 8, /* elements of one random counter */
    WINDOW = HL_CUDA_NORM_WINDOW
};
static_assert((int)WINDOW == (int)DRAWN, "a window has the numbers of one random counter");

HL_DEVICE float read_or(const float *p, int64_t c, float otherwise)
{
    return p ? p[c] : otherwise;
}

template <class X, class Y> HL_DEVICE void run_layer_norm(const hl_cuda_layer_norm_params &p)
{
    const float *weight = p.at.weight, *bias = p.at.bias;
    int64_t C = p.C;
    hl_coop_group coop = hl_coop_make(p.by_block);
    for (int64_t r = coop.first; r < p.R; r += coop.step) {
        const X *x = (const X *)p.at.x + r * C;
        Y *y = (Y *)p.at.y + r * C;
        auto row = hl_coop_keep<32>(coop, C, [=](int64_t c) { return hl_read(x, c); });
        float sum = 0, squares = 0;
        row.each([&](int64_t, float v) { sum += v; });
        float middle = hl_coop_sum(coop, sum) / (float)C;
        row.each([&](int64_t, float v) { squares += (v - middle) * (v - middle); });
        float scale = hl_rsqrt(hl_coop_sum(coop, squares) / (float)C + p.eps);
        row.each([&](int64_t c, float v) {
            hl_write(y, c, (v - middle) * scale * read_or(weight, c, 1) + read_or(bias, c, 0));
        });
        if (coop.rank == 0) {
            p.at.mean[r] = middle;
            p.at.rstd[r] = scale;
        }
    }
}

struct grad_pair {
    float g, z;
};

/* With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)). */
template <class D, class X, class Y>
HL_DEVICE void run_layer_norm_grad(const hl_cuda_layer_norm_grad_params &p)
{
    const D *dy = (const D *)p.at.dy;
    const X *src = (const X *)p.at.x;
    const float *weight = p.at.weight;
    Y *dx = (Y *)p.at.dx;
    int64_t C = p.C;
    hl_coop_group coop = hl_coop_make(p.by_block);
    for (int64_t r = coop.first; r < p.R; r += coop.step) {
        float middle = p.at.mean[r], scale = p.at.rstd[r], sum_g = 0, sum_gz = 0;
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

/* A window of an array (A,C,S): where it begins, in the array, in its sample's windows and in a
 * plane of channel c; how many elements it has. */
struct window {
    int64_t at, sample, block, c, s;
    int there;
};

HL_DEVICE uint64_t divide(const uint64_t *divisor, int64_t i, uint64_t *out_rest)
{
    *out_rest = 0;
    return divisor[1] == 1 ? (uint64_t)i : hl_divide_by(divisor, (uint64_t)i, out_rest);
}

template <class F> HL_DEVICE void for_each_window(const hl_cuda_norm_windows &windows, F visit)
{
    int64_t per_sample = windows.C * windows.S;
    HL_FOR_GRID(i, windows.n)
    {
        uint64_t block, s;
        int64_t sample = (int64_t)divide(windows.per_sample, i, &block);
        int64_t first = WINDOW * (int64_t)block, left = per_sample - first;
        int64_t c = (int64_t)divide(windows.per_plane, first, &s);
        visit(window{sample * per_sample + first, sample, (int64_t)block, c, (int64_t)s,
                     left < WINDOW ? (int)left : (int)WINDOW});
    }
}

/* visit(j, channel) for all of a window; beyond its end by any channel. */
template <class F>
HL_DEVICE void for_each_element(const hl_cuda_channel *channels, const window &w, int64_t S,
                                F visit)
{
    int64_t c = w.c, s = w.s;
    hl_cuda_channel of = channels[c];
    HL_UNROLL
    for (int j = 0; j < WINDOW; j++) {
        visit(j, of);
        if (++s == S && j + 1 < w.there) {
            s = 0;
            of = channels[++c];
        }
    }
}

template <class X, class Y> HL_DEVICE void run_batch_norm(const hl_cuda_batch_norm_params &p)
{
    const X *src = (const X *)p.at.x;
    Y *dst = (Y *)p.at.y;
    const hl_cuda_norm_epilogue &epilogue = p.epilogue;
    bool is_aligned = p.windows.is_whole && hl_pack<X, WINDOW>::is_aligned(src) &&
                      hl_pack<Y, WINDOW>::is_aligned(dst);
    for_each_window(p.windows, [&](const window &w) {
        float x[WINDOW];
        hl_word4 words = {0, 0, 0, 0};
        hl_read_pack(src + w.at, is_aligned, x, w.there);
        if (epilogue.has_dropout) words = draw(epilogue, p.at.control, w.sample, w.block);
        for_each_element(p.at.channels, w, p.windows.S, [&](int j, const hl_cuda_channel &of) {
            float y = (x[j] - of.mean) * of.scale + of.shift;
            x[j] = finish(epilogue, y, hl_philox_bits16(words, j));
        });
        hl_write_pack(dst + w.at, is_aligned, x, w.there);
    });
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

template <class X, class Y>
HL_DEVICE void run_batch_norm_columns(const hl_cuda_batch_norm_columns_params &p)
{
    const X *src = (const X *)p.at.x;
    Y *dst = (Y *)p.at.y;
    int64_t A = p.A, C = p.C;
    const hl_cuda_norm_epilogue &epilogue = p.epilogue;
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
            p.at.mean[c] = middle;
            p.at.var[c] = variance;
        }
        float scale = n > 0 ? hl_rsqrt(variance + p.eps) * p.at.weight[c] : 0;
        float shift = n > 0 ? p.at.bias[c] : 0;
        /* Eight lanes draw the numbers of their columns in eight rows, a row each. */
        HL_UNROLL
        for (int j0 = 0; j0 < KEEP; j0 += DRAWN) {
            hl_word4 words = {0, 0, 0, 0};
            if (epilogue.has_dropout && j0 * ROWS < A)
                words = draw(epilogue, p.at.control, row + (j0 + lane % DRAWN) * ROWS,
                             tile * (COLUMNS / DRAWN) + lane / DRAWN);
            HL_UNROLL
            for (int j = j0; j < j0 + DRAWN; j++) {
                int64_t r = row + j * ROWS;
                uint32_t bits = 0;
                if (epilogue.has_dropout && j0 * ROWS < A)
                    bits = hl_philox_bits16(
                        hl_shuffle(HL_WARP_ALL, words, lane / DRAWN * DRAWN + j - j0),
                        lane % DRAWN);
                float y = finish(epilogue, (x[j] - middle) * scale + shift, bits);
                if (r < n) hl_write(dst, r * C + c, y);
            }
        }
    }
}

/* The input gradient from the others: dx = weight / std (g - dbias / n - z dweight / n), z = (x -
 * mean) / std, n = A S. */
template <class D, class X, class Y>
HL_DEVICE void run_batch_norm_dx(const hl_cuda_batch_norm_dx_params &p)
{
    const D *dy = (const D *)p.at.dy;
    const X *src = (const X *)p.at.x;
    const Y *result = (const Y *)p.at.result;
    Y *dx = (Y *)p.at.dx;
    bool is_aligned = p.windows.is_whole && hl_pack<D, WINDOW>::is_aligned(dy) &&
                      hl_pack<X, WINDOW>::is_aligned(src) &&
                      hl_pack<Y, WINDOW>::is_aligned(result) && hl_pack<Y, WINDOW>::is_aligned(dx);
    for_each_window(p.windows, [&](const window &w) {
        float g[WINDOW], x[WINDOW], r[WINDOW] = {};
        hl_read_pack(dy + w.at, is_aligned, g, w.there);
        hl_read_pack(src + w.at, is_aligned, x, w.there);
        if (result) hl_read_pack(result + w.at, is_aligned, r, w.there);
        for_each_element(p.at.channels, w, p.windows.S, [&](int j, const hl_cuda_channel &of) {
            if (result) g[j] = hl_pass(g[j], r[j], p.result_scale);
            x[j] = of.scale * (g[j] - of.shift - (x[j] - of.mean) * of.slope);
        });
        hl_write_pack(dx + w.at, is_aligned, x, w.there);
    });
}

/* All three gradients in one launch; a column's threads are a cooperative group
 * for hl_coop_row, which reads rows beyond those it holds once more. */
template <class D, class X, class Y>
HL_DEVICE void run_batch_norm_grad_columns(const hl_cuda_batch_norm_grad_columns_params &p)
{
    const D *dy = (const D *)p.at.dy;
    const X *src = (const X *)p.at.x;
    const Y *result = (const Y *)p.at.result;
    Y *dx = (Y *)p.at.dx;
    int64_t A = p.A, C = p.C;
    float result_scale = p.result_scale;
    hl_coop_group column = {hl_thread() / COLUMNS, ROWS, 0, 0, true, HL_WARP_ALL};
    for (int64_t tile = hl_block_x(); tile * COLUMNS < C; tile += hl_blocks_x()) {
        int64_t c = tile * COLUMNS + hl_thread() % COLUMNS;
        int64_t n = c < C ? A : 0;
        float middle = n ? p.at.mean[c] : 0, sum_g = 0, sum_gz = 0;
        float rstd = n ? hl_rsqrt(p.at.var[c] + p.eps) : 0;
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
            p.at.dweight[c] = sum_gz;
            p.at.dbias[c] = sum_g;
        }
        float scale = p.at.weight[c] * rstd;
        sum_g /= (float)A, sum_gz /= (float)A;
        rows.each([&](int64_t r, grad_pair v) {
            hl_write(dx, r * C + c, scale * (v.g - sum_g - v.z * sum_gz));
        });
    }
}

#define KERNELS(X, Y, variant)                                                                     \
    HL_CUDA_ENTRY_OF(layer_norm, variant, THREADS, p)                                              \
    {                                                                                              \
        run_layer_norm<X, Y>(p);                                                                   \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm, variant, HL_CUDA_ELEMENT_THREADS, p)                              \
    {                                                                                              \
        run_batch_norm<X, Y>(p);                                                                   \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_columns, variant, THREADS, p)                                      \
    {                                                                                              \
        run_batch_norm_columns<X, Y>(p);                                                           \
    }
HL_FLOAT_PAIRS(KERNELS)

#define GRAD_KERNELS(D, X, Y, variant)                                                             \
    HL_CUDA_ENTRY_OF(layer_norm_grad, variant, THREADS, p)                                         \
    {                                                                                              \
        run_layer_norm_grad<D, X, Y>(p);                                                           \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_dx, variant, HL_CUDA_ELEMENT_THREADS, p)                           \
    {                                                                                              \
        run_batch_norm_dx<D, X, Y>(p);                                                             \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(batch_norm_grad_columns, variant, THREADS, p)                                 \
    {                                                                                              \
        run_batch_norm_grad_columns<D, X, Y>(p);                                                   \
    }
HL_FLOAT_TRIPLES(GRAD_KERNELS)
