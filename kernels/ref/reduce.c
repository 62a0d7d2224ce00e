/* Reductions and scans: every group is read in row-major order. Integers are reduced in int64. */
#include <math.h>

#include "kernels/ref/ref.h"

static hl_ref_groups make_groups(const hl_ref_call *call)
{
    return hl_ref_groups_make(&call->in[0].shape, call->axes.at, call->axes.n);
}

static bool is_integer_call(const hl_ref_call *call)
{
    return !hl_dtype_is_float(call->in[0].dtype) && !hl_dtype_is_float(call->out[0].dtype);
}

/* ---- sum, prod, max, min: a fold of two numbers from a first one ----------------------------- */

typedef double (*fold_fn)(double a, double b);
typedef int64_t (*fold_int_fn)(int64_t a, int64_t b);

static double fold_sum(double a, double b)
{
    return a + b;
}
static double fold_prod(double a, double b)
{
    return a * b;
}
static double fold_max(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}
static double fold_min(double a, double b)
{
    return isnan(a) || a < b ? a : b;
}
static int64_t fold_int_sum(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static int64_t fold_int_prod(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static int64_t fold_int_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static int64_t fold_int_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static hl_status fold_groups(const hl_ref_call *call, void *const *args, double first, fold_fn fold,
                             int64_t first_int, fold_int_fn fold_int)
{
    hl_ref_groups groups = make_groups(call);
    hl_dtype x_dtype = call->in[0].dtype, out_dtype = call->out[0].dtype;
    for (int64_t g = 0; g < groups.n_groups; g++) {
        double total = first;
        int64_t total_int = first_int;
        for (int64_t k = 0; k < groups.n_inside; k++) {
            int64_t at = hl_ref_groups_at(&groups, g, k);
            if (is_integer_call(call))
                total_int = fold_int(total_int, hl_ref_load_int(args[0], x_dtype, at));
            else
                total = fold(total, hl_ref_load(args[0], x_dtype, at));
        }
        if (is_integer_call(call))
            hl_ref_store_int(args[1], out_dtype, g, total_int);
        else
            hl_ref_store(args[1], out_dtype, g, total);
    }
    return HL_OK;
}

static hl_status launch_sum(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return fold_groups(state->impl, args, 0, fold_sum, 0, fold_int_sum);
}

static hl_status launch_prod(const hl_kernel_state *state, void *const *args,
                             const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return fold_groups(state->impl, args, 1, fold_prod, 1, fold_int_prod);
}

static hl_status launch_max(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return fold_groups(state->impl, args, -INFINITY, fold_max, INT64_MIN, fold_int_max);
}

static hl_status launch_min(const hl_kernel_state *state, void *const *args,
                            const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return fold_groups(state->impl, args, INFINITY, fold_min, INT64_MAX, fold_int_min);
}

/* dx = dprod * the product of the group's other elements: that of all before, gathered on the way
 * up, times that of all after, gathered on the way down; no division, so zeros are no case. */
static hl_status launch_prod_grad(const hl_kernel_state *state, void *const *args,
                                  const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    hl_ref_groups groups = make_groups(state->impl);
    const double *x = args[0], *dprod = args[2];
    double *dx = args[3];
    for (int64_t g = 0; g < groups.n_groups; g++) {
        double before = 1, after = 1;
        for (int64_t k = 0; k < groups.n_inside; k++) {
            int64_t at = hl_ref_groups_at(&groups, g, k);
            dx[at] = before;
            before *= x[at];
        }
        for (int64_t k = groups.n_inside - 1; k >= 0; k--) {
            int64_t at = hl_ref_groups_at(&groups, g, k);
            dx[at] *= after * dprod[g];
            after *= x[at];
        }
    }
    return HL_OK;
}

/* ---- argmax, argmin -------------------------------------------------------------------------- */

/* Whether element `a` beats element `b`, which stands before it: strictly, so that the first of
 * equals wins; a NaN beats every number. */
static bool beats(const hl_ref_call *call, const void *x, int64_t a, int64_t b, int sign)
{
    hl_dtype dtype = call->in[0].dtype;
    if (!hl_dtype_is_float(dtype)) {
        int64_t va = hl_ref_load_int(x, dtype, a), vb = hl_ref_load_int(x, dtype, b);
        return sign > 0 ? va > vb : va < vb;
    }
    double va = hl_ref_load(x, dtype, a), vb = hl_ref_load(x, dtype, b);
    if (isnan(va) || isnan(vb)) return !isnan(vb);
    return sign > 0 ? va > vb : va < vb;
}

static hl_status find_extreme(const hl_ref_call *call, void *const *args, int sign)
{
    hl_ref_groups groups = make_groups(call);
    for (int64_t g = 0; g < groups.n_groups; g++) {
        int64_t best = 0;
        for (int64_t k = 1; k < groups.n_inside; k++)
            if (beats(call, args[0], hl_ref_groups_at(&groups, g, k),
                      hl_ref_groups_at(&groups, g, best), sign))
                best = k;
        hl_ref_store_int(args[1], call->out[0].dtype, g, best);
    }
    return HL_OK;
}

static hl_status launch_argmax(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return find_extreme(state->impl, args, 1);
}

static hl_status launch_argmin(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    return find_extreme(state->impl, args, -1);
}

/* ---- median ---------------------------------------------------------------------------------- */

/* Below 0: element `a` is less than element `b`; above 0: it is greater. */
static int compare(const hl_ref_call *call, const void *x, int64_t a, int64_t b)
{
    hl_dtype dtype = call->in[0].dtype;
    if (!hl_dtype_is_float(dtype)) {
        int64_t va = hl_ref_load_int(x, dtype, a), vb = hl_ref_load_int(x, dtype, b);
        return (va > vb) - (va < vb);
    }
    double va = hl_ref_load(x, dtype, a), vb = hl_ref_load(x, dtype, b);
    return (va > vb) - (va < vb);
}

/* The median has at most `middle` elements below it, and more than that up to it. Elements are
 * tried in order, but for those that lie beyond one which was too low or too high. */
static int64_t find_median(const hl_ref_call *call, const hl_ref_groups *groups, const void *x,
                           int64_t g)
{
    int64_t n = groups->n_inside, middle = (n - 1) / 2, low = -1, high = -1;
    for (int64_t k = 0; k < n; k++)
        if (isnan(hl_ref_load(x, call->in[0].dtype, hl_ref_groups_at(groups, g, k)))) return k;
    for (int64_t k = 0;; k++) {
        int64_t at = hl_ref_groups_at(groups, g, k), below = 0, upto = 0;
        if (low >= 0 && compare(call, x, at, low) <= 0) continue;
        if (high >= 0 && compare(call, x, at, high) >= 0) continue;
        for (int64_t i = 0; i < n; i++) {
            int order = compare(call, x, hl_ref_groups_at(groups, g, i), at);
            below += order < 0;
            upto += order <= 0;
        }
        if (below <= middle && middle < upto) return k;
        if (below > middle)
            high = at;
        else
            low = at;
    }
}

static hl_status launch_median(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    hl_ref_groups groups = make_groups(call);
    hl_dtype dtype = call->in[0].dtype;
    for (int64_t g = 0; g < groups.n_groups; g++) {
        int64_t place = find_median(call, &groups, args[0], g);
        int64_t at = hl_ref_groups_at(&groups, g, place);
        if (hl_dtype_is_float(dtype))
            hl_ref_store(args[1], dtype, g, hl_ref_load(args[0], dtype, at));
        else
            hl_ref_store_int(args[1], dtype, g, hl_ref_load_int(args[0], dtype, at));
        hl_ref_store_int(args[2], call->out[1].dtype, g, place);
    }
    return HL_OK;
}

/* ---- moments, cumsum ------------------------------------------------------------------------- */

/* Two passes: the mean first, then the mean square distance from it. */
static hl_status launch_moments(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    hl_ref_groups groups = make_groups(state->impl);
    const double *x = args[0];
    double *mean = args[1], *var = args[2];
    for (int64_t g = 0; g < groups.n_groups; g++) {
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < groups.n_inside; k++) sum += x[hl_ref_groups_at(&groups, g, k)];
        mean[g] = sum / (double)groups.n_inside;
        for (int64_t k = 0; k < groups.n_inside; k++) {
            double distance = x[hl_ref_groups_at(&groups, g, k)] - mean[g];
            squares += distance * distance;
        }
        var[g] = squares / (double)groups.n_inside;
    }
    return HL_OK;
}

static hl_status launch_cumsum(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    hl_ref_groups groups = make_groups(call);
    hl_dtype x_dtype = call->in[0].dtype, out_dtype = call->out[0].dtype;
    bool is_reverse = call->attrs.scan.reverse;
    for (int64_t g = 0; g < groups.n_groups; g++) {
        double sum = 0;
        int64_t sum_int = 0;
        for (int64_t step = 0; step < groups.n_inside; step++) {
            int64_t k = is_reverse ? groups.n_inside - 1 - step : step;
            int64_t at = hl_ref_groups_at(&groups, g, k);
            if (is_integer_call(call)) {
                sum_int = fold_int_sum(sum_int, hl_ref_load_int(args[0], x_dtype, at));
                hl_ref_store_int(args[1], out_dtype, at, sum_int);
            } else {
                sum += hl_ref_load(args[0], x_dtype, at);
                hl_ref_store(args[1], out_dtype, at, sum);
            }
        }
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(SUM, "sum", hl_ref_query_any, launch_sum),
    HL_REF_KERNEL(PROD, "prod", hl_ref_query_any, launch_prod),
    HL_REF_KERNEL(PROD_GRAD, "prod_grad", hl_ref_query_f64, launch_prod_grad),
    HL_REF_KERNEL(MAX, "amax", hl_ref_query_any, launch_max),
    HL_REF_KERNEL(MIN, "amin", hl_ref_query_any, launch_min),
    HL_REF_KERNEL(ARGMAX, "argmax", hl_ref_query_any, launch_argmax),
    HL_REF_KERNEL(ARGMIN, "argmin", hl_ref_query_any, launch_argmin),
    HL_REF_KERNEL(MEDIAN, "median", hl_ref_query_any, launch_median),
    HL_REF_KERNEL(MOMENTS, "moments", hl_ref_query_f64, launch_moments),
    HL_REF_KERNEL(CUMSUM, "cumsum", hl_ref_query_any, launch_cumsum),
};
const hl_ref_family hl_ref_reduce = HL_REF_FAMILY(kernels);
