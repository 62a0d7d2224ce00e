/* The matrix of what a convolution's windows read, as an operand of a product that is not in memory
 * (an implicit product).
 *
 * Row (n, q) is what pixel q of image n of the result reads: along a dim, tap t reads element
 * q * step + first + t * apart of the source, 0 where it has none; a row is taps, and of each the
 * channels of a group. A convolution's gradient for its input is the same of its result's gradient:
 * pixels that are `stride` apart read it by the same taps, the others of the kernel having no part
 * in them, and steps are 1. So each of these classes of pixels is a product, whose rows lie apart
 * in the result, and nothing is multiplied that is known to be 0.
 *
 * Channels stand last. Pixels, elements of a row, and places along a dim are fewer than 2^31.
 *
 * Rejected: windows side by side in memory (as many times the source as there are taps); columns
 * channel by channel, as the weight has them (neighbours would lie a pixel apart). */
#ifndef HL_CUDA_WINDOWS_H
#define HL_CUDA_WINDOWS_H

#include "kernels/cuda/divisor.h"

enum { HL_CUDA_WINDOWS_DIMS = 3 };

typedef struct hl_cuda_windows {
    int64_t image, channels; /* elements of an image of the source, and of a place in it */
    int64_t n_pixels, n_run; /* rows and columns */
    /* Dims of pixels, of taps, and channels of a group, as divisors (hl_windows_divide). */
    uint64_t pixel[HL_CUDA_WINDOWS_DIMS][HL_CUDA_DIVISOR_WORDS];
    uint64_t tap[HL_CUDA_WINDOWS_DIMS][HL_CUDA_DIVISOR_WORDS];
    uint64_t channel[HL_CUDA_DIVISOR_WORDS];
    int32_t in[HL_CUDA_WINDOWS_DIMS], step[HL_CUDA_WINDOWS_DIMS];
    int32_t first[HL_CUDA_WINDOWS_DIMS], apart[HL_CUDA_WINDOWS_DIMS];
} hl_cuda_windows;

#if defined(__CUDACC__) || defined(HL_EMULATE)
/* i / divisor, which may be 1 and then has that as its second word alone, and the remainder. */
HL_DEVICE uint32_t hl_windows_divide(const uint64_t *divisor, uint32_t i, uint32_t *out_rest)
{
    *out_rest = 0;
    return divisor[1] == 1 ? i : hl_divide_by(divisor, i, out_rest);
}

/* A row of the matrix: its image, its pixel, and what the first tap reads along each dim. */
struct hl_windows_row {
    uint32_t image, q[HL_CUDA_WINDOWS_DIMS];

    HL_MEMBER void begin(const hl_cuda_windows &of, int64_t row)
    {
        image = (uint32_t)row;
        HL_UNROLL
        for (int d = HL_CUDA_WINDOWS_DIMS - 1; d >= 0; d--)
            image = hl_windows_divide(of.pixel[d], image, &q[d]);
    }
    HL_MEMBER void next(const hl_cuda_windows &of)
    {
        HL_UNROLL
        for (int d = HL_CUDA_WINDOWS_DIMS - 1; d >= 0; d--) {
            if (++q[d] < of.pixel[d][1]) return;
            q[d] = 0;
        }
        image++;
    }
    /* The place that a tap reads; -1: it reads 0. */
    HL_MEMBER int64_t find(const hl_cuda_windows &of,
                           const uint32_t (&tap)[HL_CUDA_WINDOWS_DIMS]) const
    {
        uint32_t place = 0;
        bool is_inside = true;
        HL_UNROLL
        for (int d = 0; d < HL_CUDA_WINDOWS_DIMS; d++) {
            int32_t at = (int32_t)q[d] * of.step[d] + of.first[d] + (int32_t)tap[d] * of.apart[d];
            is_inside = is_inside && (uint32_t)at < (uint32_t)of.in[d];
            place = place * (uint32_t)of.in[d] + (uint32_t)at;
        }
        return is_inside ? image * of.image + place * of.channels : -1;
    }
};

/* The tap of a number. */
HL_DEVICE void hl_windows_tap(const hl_cuda_windows &of, uint32_t number,
                              uint32_t (&tap)[HL_CUDA_WINDOWS_DIMS])
{
    HL_UNROLL
    for (int d = HL_CUDA_WINDOWS_DIMS - 1; d >= 0; d--)
        number = hl_windows_divide(of.tap[d], number, &tap[d]);
}

/* The matrix of windows, as products ask for an operand (matmul.cu), from row first_row on. */
template <class T> struct hl_windows {
    const T *x;
    int64_t first_row, n_rows, n_cols;
    const hl_cuda_windows &of;

    HL_MEMBER const T *find(int64_t row, int64_t col) const
    {
        if (row >= n_rows || col >= n_cols) return NULL;
        uint32_t channel, tap[HL_CUDA_WINDOWS_DIMS];
        hl_windows_row from;
        from.begin(of, first_row + row);
        hl_windows_tap(of, hl_windows_divide(of.channel, (uint32_t)col, &channel), tap);
        int64_t at = from.find(of, tap);
        return at < 0 ? NULL : x + at + channel;
    }
    HL_MEMBER bool is_by_row() const
    {
        return true;
    }
    HL_MEMBER bool is_wide() const
    {
        return of.channel[1] % 8 == 0 && of.channels % 8 == 0 && (uintptr_t)x % 16 == 0;
    }
};
#endif

#endif
