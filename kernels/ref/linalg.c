/* Cholesky factors and triangular systems, element by element. */
#include <math.h>

#include "kernels/ref/ref.h"

static bool fill_column(const double *a, double *factor, int64_t n, int64_t j, double *out_pivot)
{
    for (int64_t i = j; i < n; i++) {
        double sum = a[i * n + j];
        for (int64_t k = 0; k < j; k++) sum -= factor[i * n + k] * factor[j * n + k];
        if (i == j) *out_pivot = sum;
        if (!(*out_pivot > 0)) return false;
        factor[i * n + j] = i == j ? sqrt(sum) : sum / factor[j * n + j];
    }
    return true;
}

static hl_status launch_cholesky(const hl_kernel_state *state, void *const *args,
                                 const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *shape = &call->in[0].shape;
    int64_t n = shape->dim[shape->rank - 1], n_matrices = hl_shape_span(shape, 0, shape->rank - 2);
    for (int64_t m = 0; m < n_matrices; m++) {
        const double *a = (const double *)args[0] + m * n * n;
        double *factor = (double *)args[1] + m * n * n, pivot = 1;
        int64_t j = 0;
        for (int64_t i = 0; i < n * n; i++) factor[i] = 0;
        while (j < n && fill_column(a, factor, n, j, &pivot)) j++;
        if (j == n) continue;
        hl_launch_fault(launch, m * n + j, hl_control_number_bits(pivot));
        for (int64_t i = 0; i < n * n; i++) factor[i] = NAN;
    }
    return HL_OK;
}

/* What is on the diagonal first, then what is left of each row: from the top where a, or its
 * transpose, is lower triangular, else from the bottom. */
static hl_status launch_triangular_solve(const hl_kernel_state *state, void *const *args,
                                         const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_attrs_triangular *attrs = &call->attrs.triangular;
    const hl_shape *b_shape = &call->in[1].shape;
    int32_t rank = b_shape->rank;
    int64_t n = b_shape->dim[rank - 2], K = b_shape->dim[rank - 1];
    int64_t n_matrices = hl_shape_span(b_shape, 0, rank - 2);
    bool from_top = attrs->upper == attrs->trans;
    for (int64_t m = 0; m < n_matrices; m++) {
        const double *a = (const double *)args[0] + m * n * n;
        const double *b = (const double *)args[1] + m * n * K;
        double *x = (double *)args[2] + m * n * K;
        for (int64_t step = 0; step < n; step++) {
            int64_t i = from_top ? step : n - 1 - step;
            double diagonal = attrs->unitriangular ? 1 : a[i * n + i];
            if (diagonal == 0) hl_launch_fault(launch, m * n + i, hl_control_number_bits(diagonal));
            for (int64_t k = 0; k < K; k++) {
                double sum = b[i * K + k];
                for (int64_t done = 0; done < step; done++) {
                    int64_t j = from_top ? done : n - 1 - done;
                    sum -= (attrs->trans ? a[j * n + i] : a[i * n + j]) * x[j * K + k];
                }
                x[i * K + k] = sum / diagonal;
            }
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(CHOLESKY, "cholesky", hl_ref_query_f64, launch_cholesky),
    HL_REF_KERNEL(TRIANGULAR_SOLVE, "triangular_solve", hl_ref_query_f64, launch_triangular_solve),
};
const hl_ref_family hl_ref_linalg = HL_REF_FAMILY(kernels);
