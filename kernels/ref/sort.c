/* Order: sorting along an axis and places in what is sorted, by comparing every pair of elements. A
 * NaN is the greatest, and zeros of both signs are equal. */
#include <math.h>

#include "kernels/ref/ref.h"

/* Below 0: element a of x is less than element b of y; above 0: it is greater. */
static int compare(hl_dtype dtype, const void *x, int64_t a, const void *y, int64_t b)
{
    if (!hl_dtype_is_float(dtype)) {
        int64_t va = hl_ref_load_int(x, dtype, a), vb = hl_ref_load_int(y, dtype, b);
        return (va > vb) - (va < vb);
    }
    double va = hl_ref_load(x, dtype, a), vb = hl_ref_load(y, dtype, b);
    if (isnan(va) || isnan(vb)) return !!isnan(va) - !!isnan(vb);
    return (va > vb) - (va < vb);
}

/* An element's place is the number of those that come before it. */
static hl_status launch_sort(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_attrs_sort *attrs = &call->attrs.sort;
    hl_ref_groups from = hl_ref_groups_make(&call->in[0].shape, &attrs->axis, 1);
    hl_ref_groups to = hl_ref_groups_make(&call->out[0].shape, &attrs->axis, 1);
    hl_dtype dtype = call->in[0].dtype;
    for (int64_t g = 0; g < from.n_groups; g++) {
        for (int64_t i = 0; i < from.n_inside; i++) {
            int64_t at = hl_ref_groups_at(&from, g, i), place = 0;
            for (int64_t j = 0; j < from.n_inside; j++) {
                int order = compare(dtype, args[0], hl_ref_groups_at(&from, g, j), args[0], at);
                if (attrs->descending) order = -order;
                place += order < 0 || (order == 0 && j < i);
            }
            if (place >= attrs->k) continue;
            int64_t out = hl_ref_groups_at(&to, g, place);
            if (hl_dtype_is_float(dtype))
                hl_ref_store(args[1], dtype, out, hl_ref_load(args[0], dtype, at));
            else
                hl_ref_store_int(args[1], dtype, out, hl_ref_load_int(args[0], dtype, at));
            hl_ref_store_int(args[2], call->out[1].dtype, out, i);
        }
    }
    return HL_OK;
}

static hl_status launch_searchsorted(const hl_kernel_state *state, void *const *args,
                                     const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    const hl_shape *sequence = &call->in[0].shape, *values = &call->in[1].shape;
    int64_t n = sequence->dim[sequence->rank - 1], n_values = hl_shape_numel(values);
    int64_t per_row = sequence->rank == 1 ? n_values : values->dim[values->rank - 1];
    for (int64_t i = 0; i < n_values; i++) {
        int64_t first = i / per_row * n, below = 0;
        for (int64_t k = first; k < first + n; k++) {
            int order = compare(call->in[0].dtype, args[0], k, args[1], i);
            below += order < 0 || (order == 0 && call->attrs.searchsorted.right);
        }
        hl_ref_store_int(args[2], call->out[0].dtype, i, below);
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(SORT, "sort", hl_ref_query_any, launch_sort),
    HL_REF_KERNEL(SEARCHSORTED, "searchsorted", hl_ref_query_any, launch_searchsorted),
};
const hl_ref_family hl_ref_sort = HL_REF_FAMILY(kernels);
