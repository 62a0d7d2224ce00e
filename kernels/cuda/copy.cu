/* Copies: elements move as words of 1, 2, 4 or 8 bytes, whatever their dtype, and runs of them as
 * words of 16.
 *
 * PERMUTE, EXPAND, SLICE, FLIP and SPLIT (a launch for each output) read at strides; CONCAT (a
 * launch for each input) and SLICE_GRAD (after zeroing) write at strides. A permutation that swaps
 * two groups of dims is a transposition of matrices and goes through tiles in shared memory, so
 * that both sides are read and written in rows.
 *
 * Launch: any grid, any threads; transpose: HL_CUDA_TRANSPOSE_THREADS. */
#include "kernels/cuda/copy.h"

#include "kernels/cuda/any.h"

enum {
    TILE = HL_CUDA_TRANSPOSE_TILE,
    TILE_THREADS = HL_CUDA_TRANSPOSE_THREADS,
    PITCH = TILE + 1 /* a column of a tile in 32 banks */
};

template <class W> HL_DEVICE void transpose(const W *src, W *dst, int64_t B, int64_t M, int64_t N)
{
    HL_SHARED(W, tile, TILE * PITCH);
    int64_t n_down = (M + TILE - 1) / TILE, n_across = (N + TILE - 1) / TILE;
    int lane = hl_thread() % TILE, warp = hl_thread() / TILE;
    for (int64_t u = hl_block_x(); u < B * n_down * n_across; u += hl_blocks_x()) {
        int64_t b = u / (n_down * n_across), m0 = u / n_across % n_down * TILE;
        int64_t n0 = u % n_across * TILE;
        for (int r = warp; r < TILE; r += TILE_THREADS / TILE)
            if (m0 + r < M && n0 + lane < N)
                tile[r * PITCH + lane] = src[(b * M + m0 + r) * N + n0 + lane];
        hl_barrier();
        for (int r = warp; r < TILE; r += TILE_THREADS / TILE)
            if (n0 + r < N && m0 + lane < M)
                dst[(b * N + n0 + r) * M + m0 + lane] = tile[lane * PITCH + r];
        hl_barrier();
    }
}

/* ---- pad ---- */

enum { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_CIRCULAR };

/* The coordinate in [0, n) that a padded one repeats; -1: none, the constant stands there. */
HL_DEVICE int64_t find_source(int mode, int64_t coordinate, int64_t n)
{
    switch (mode) {
    case PAD_REFLECT:
        while (n > 1 && (coordinate < 0 || coordinate >= n))
            coordinate = coordinate < 0 ? -coordinate : 2 * (n - 1) - coordinate;
        return n > 1 ? coordinate : 0;
    case PAD_REPLICATE: return coordinate < 0 ? 0 : coordinate >= n ? n - 1 : coordinate;
    case PAD_CIRCULAR: return (coordinate % n + n) % n;
    default: return coordinate >= 0 && coordinate < n ? coordinate : -1;
    }
}

/* The element of the plain array that element i of the padded one repeats, or -1. */
HL_DEVICE int64_t find_padded(const hl_cuda_padding &pad, int64_t i)
{
    bool is_short = hl_is_short(pad.n_padded);
    int64_t element = 0, scale = 1, coordinate;
    for (int d = pad.rank - 1; d >= 0; d--) {
        i = hl_divide(i, pad.padded[d], is_short, &coordinate);
        int64_t source = find_source(pad.mode, coordinate - pad.before[d], pad.plain[d]);
        if (source < 0) return -1;
        element += source * scale;
        scale *= pad.plain[d];
    }
    return element;
}

/* Padded coordinates that may repeat coordinate c: its own, then all of both margins. */
HL_DEVICE int64_t count_candidates(const hl_cuda_padding &pad, int d)
{
    int64_t margins = pad.mode == PAD_CONSTANT ? 0 : pad.padded[d] - pad.plain[d];
    return 1 + margins;
}
/* Candidate j, or -1 where it repeats another coordinate. */
HL_DEVICE int64_t find_candidate(const hl_cuda_padding &pad, int d, int64_t c, int64_t j)
{
    int64_t p = c + pad.before[d];
    if (j > 0) p = j - 1 < pad.before[d] ? j - 1 : j - 1 + pad.plain[d];
    if (p < 0 || p >= pad.padded[d]) return -1;
    return find_source(pad.mode, p - pad.before[d], pad.plain[d]) == c ? p : -1;
}

/* The sum of all padded gradients of one plain element, in a fixed order. */
HL_DEVICE float sum_padded(const hl_cuda_padding &pad, const float *dy, int64_t element)
{
    int64_t n = 1;
    for (int d = 0; d < pad.rank; d++) n *= count_candidates(pad, d);
    float sum = 0;
    for (int64_t all = 0; all < n; all++) {
        int64_t j = all, c = element, at = 0, scale = 1;
        bool exists = true;
        for (int d = pad.rank - 1; d >= 0 && exists; d--) {
            int64_t count = count_candidates(pad, d);
            int64_t p = find_candidate(pad, d, c % pad.plain[d], j % count);
            exists = p >= 0;
            at += p * scale;
            scale *= pad.padded[d];
            c /= pad.plain[d];
            j /= count;
        }
        if (exists) sum += dy[at];
    }
    return sum;
}

HL_CUDA_ENTRY(pad_grad, HL_CUDA_ELEMENT_THREADS, p)
{
    HL_FOR_GRID(i, p.padding.n_plain) p.at.dx[i] = sum_padded(p.padding, p.at.dy, i);
}

#define COPY_KERNELS(W, bytes)                                                                     \
    HL_CUDA_ENTRY_OF(copy, from_##bytes, HL_CUDA_ELEMENT_THREADS, p)                               \
    {                                                                                              \
        const W *src = (const W *)p.at.src;                                                        \
        W *dst = (W *)p.at.dst;                                                                    \
        HL_FOR_GRID(i, p.layout.n)                                                                 \
        *hl_vector(dst + i) = *hl_vector(src + p.first + hl_layout_offset(p.layout, i));           \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(copy, to_##bytes, HL_CUDA_ELEMENT_THREADS, p)                                 \
    {                                                                                              \
        const W *src = (const W *)p.at.src;                                                        \
        W *dst = (W *)p.at.dst;                                                                    \
        HL_FOR_GRID(i, p.layout.n)                                                                 \
        *hl_vector(dst + p.first + hl_layout_offset(p.layout, i)) = *hl_vector(src + i);           \
    }
#define KERNELS(W, bytes)                                                                          \
    HL_CUDA_ENTRY_OF(transpose, bytes, TILE_THREADS, p)                                            \
    {                                                                                              \
        transpose((const W *)p.at.src, (W *)p.at.dst, p.B, p.M, p.N);                              \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(pad, bytes, HL_CUDA_ELEMENT_THREADS, p)                                       \
    {                                                                                              \
        const W *src = (const W *)p.at.src;                                                        \
        W *dst = (W *)p.at.dst;                                                                    \
        HL_FOR_GRID(i, p.padding.n_padded)                                                         \
        {                                                                                          \
            int64_t source = find_padded(p.padding, i);                                            \
            if (source < 0)                                                                        \
                hl_write_any(dst, p.dtype, i, p.value);                                            \
            else                                                                                   \
                dst[i] = src[source];                                                              \
        }                                                                                          \
    }
HL_WORD_TYPES(COPY_KERNELS)
COPY_KERNELS(hl_word4, 16)
HL_WORD_TYPES(KERNELS)
