/* The largest value of a row and the sum of e^(x - largest), in one pass: what softmax and the
 * cross-entropy share. */
#ifndef HL_CUDA_ROW_H
#define HL_CUDA_ROW_H

#include "kernels/cuda/fold.h"

struct hl_row_sum {
    float top, sum;
};

/* Of two parts of a row. Equal tops stay as they are: two of -infinity have no difference. A NaN is
 * no top (fmaxf) but comes into the sum. */
HL_DEVICE hl_row_sum hl_row_merge(hl_row_sum a, hl_row_sum b)
{
    float top = fmaxf(a.top, b.top);
    return {top, (a.top == top ? a.sum : a.sum * expf(a.top - top)) +
                     (b.top == top ? b.sum : b.sum * expf(b.top - top))};
}

/* -infinity counts as nothing, unless all of the row is: then the sum is 0, and top - top is NaN as
 * it should be. */
template <class T>
HL_DEVICE hl_row_sum hl_row_exponentials(const hl_team &team, const T *x, int64_t C)
{
    hl_row_sum row = {-hl_infinity(), 0.0f};
    for (int64_t c = team.rank; c < C; c += team.size) {
        float v = hl_read(x, c);
        if (v > row.top) {
            row.sum = row.sum * expf(row.top - v) + expf(v - v); /* infinity: NaN */
            row.top = v;
        } else if (v != -hl_infinity()) {
            row.sum += expf(v - row.top);
        }
    }
    return hl_team_fold(team, row, hl_row_merge);
}

#endif
