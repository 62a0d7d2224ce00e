/* The largest value of a row and the sum of e^(x - largest): what softmax and the cross-entropy
 * share. The row is held in registers, so the three passes over it read memory once. */
#ifndef HL_CUDA_ROW_H
#define HL_CUDA_ROW_H

#include "kernels/cuda/fold.h"

struct hl_row_sum {
    float top, sum;
};

/* -infinity counts as nothing, unless all of the row is: then x - top is NaN, as it should be. A
 * NaN is no top (fmaxf) but comes into the sum. */
template <class Row> HL_DEVICE hl_row_sum hl_row_exponentials(const Row &row)
{
    float top = -hl_infinity(), sum = 0;
    row.each([&](int64_t, float v) { top = fmaxf(top, v); });
    top = hl_coop_fold(row.coop, top, [](float a, float b) { return fmaxf(a, b); });
    row.each([&](int64_t, float v) { sum += expf(v - top); });
    return {top, hl_coop_sum(row.coop, sum)};
}

#endif
