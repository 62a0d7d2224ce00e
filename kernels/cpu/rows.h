/* One row of floats at a time: maxima, sums and moments, for softmax, losses and norms.
 *
 * A row shorter than a vector is one masked vector, so short rows cost a few instructions and no
 * loop; the functions are inlined so that neighbouring rows overlap in the pipeline. Orders of
 * addition depend on the row's length alone. */
#ifndef HL_KERNELS_CPU_ROWS_H
#define HL_KERNELS_CPU_ROWS_H

#include <math.h>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd/math.h"

/* A row-wise node seen as (R,C). */
typedef struct hl_rows {
    int64_t R, C;
} hl_rows;

/* The last n_axes dims are the row. */
static inline hl_rows hl_rows_make(const hl_shape *shape, int n_axes)
{
    int first = (int)hl_cpu_max(shape->rank - n_axes, 0);
    return (hl_rows){hl_shape_span(shape, 0, first), hl_shape_span(shape, first, shape->rank)};
}

/* What every row kernel asks for: all of `row_in` and `row_out` by row, nothing else. */
static inline void hl_rows_require(const hl_rows *rows, uint64_t row_in, uint64_t row_out,
                                   double ns_per_element, hl_kernel_req *out_req)
{
    out_req->rows = hl_cpu_max(rows->R, 1);
    out_req->grain = hl_cpu_line_grain(4 * hl_cpu_min(hl_cpu_max(rows->C, 1), 16));
    out_req->row_in = row_in;
    out_req->row_out = row_out;
    out_req->row_cost = 5 + ns_per_element * (double)rows->C;
    out_req->deterministic = true;
}

/* Node's operands are all float32 (the reason says which is not). */
static inline bool hl_rows_is_f32(const hl_graph *graph, const hl_node *node, int first, int last,
                                  hl_reason *out_why_not)
{
    for (int i = first; i < last; i++) {
        hl_dtype dtype = hl_node_in_type(graph, node, i)->dtype;
        if (dtype == HL_DTYPE_F32) continue;
        hl_reason_set(out_why_not, "needs float32, got %s", hl_dtype_name(dtype));
        return false;
    }
    return true;
}

/* The largest element. With a NaN in the row it may be a NaN or too small. */
HL_SIMD float hl_row_max(const float *x, int64_t n)
{
    hl_v low = hl_v_set1(-INFINITY);
    if (n <= HL_VL) return hl_v_max_lane(hl_v_select(hl_vm_first(n), hl_v_load_n(x, n), low));
    hl_v a = hl_v_load(x), b = a;
    int64_t i = HL_VL;
    for (; i + 2 * HL_VL <= n; i += 2 * HL_VL) {
        a = hl_v_max(a, hl_v_load(x + i));
        b = hl_v_max(b, hl_v_load(x + i + HL_VL));
    }
    if (i + HL_VL <= n) {
        a = hl_v_max(a, hl_v_load(x + i));
        i += HL_VL;
    }
    /* The last vector overlaps: a maximum may count twice. */
    b = hl_v_max(b, hl_v_load(x + n - HL_VL));
    return hl_v_max_lane(hl_v_max(a, b));
}

/* Sum over the row of fn(vector, lanes in use); lanes out of use must give 0. */
#define HL_ROW_SUM(n, at, lanes, expression)                                                       \
    __extension__({                                                                                \
        hl_v row_sum[2] = {{0}};                                                                   \
        int64_t at = 0;                                                                            \
        for (; at + 2 * HL_VL <= (n); at += HL_VL) {                                               \
            enum { lanes = HL_VL };                                                                \
            row_sum[0] += (expression);                                                            \
            at += HL_VL;                                                                           \
            row_sum[1] += (expression);                                                            \
        }                                                                                          \
        for (; at < (n); at += HL_VL) {                                                            \
            int64_t lanes = hl_cpu_min((n) - at, HL_VL);                                           \
            row_sum[0] += (expression);                                                            \
        }                                                                                          \
        hl_v_sum(row_sum[0] + row_sum[1]);                                                         \
    })

HL_SIMD hl_v hl_row_load(const float *p, int64_t n)
{
    return n == HL_VL ? hl_v_load(p) : hl_v_load_n(p, n);
}
HL_SIMD void hl_row_store(float *p, hl_v a, int64_t n)
{
    if (n == HL_VL) {
        hl_v_store(p, a);
    } else {
        hl_v_store_n(p, a, n);
    }
}

/* e^x of x <= 0, and 0 where that would be subnormal. Beside a row's largest power, which is 1,
 * that is nothing, while subnormal numbers take processors a hundred times as long, here and in
 * products that follow. A NaN stays one. */
HL_SIMD hl_v hl_row_power(hl_v x)
{
    hl_v least = hl_v_set1(-87.0f);
    hl_vm is_nothing = hl_v_lt(x, least);
    hl_v e = hl_v_exp(hl_v_select(is_nothing, least, x));
    return hl_v_select(is_nothing, hl_v_zero(), e);
}

/* dst = e^(x - largest), unless dst is NULL; returns the sum of these. */
HL_SIMD float hl_row_exp(const float *x, float largest, float *dst, int64_t n)
{
    hl_v top = hl_v_set1(largest), sum = hl_v_zero();
    int64_t i = 0;
    for (; i + HL_VL <= n; i += HL_VL) {
        hl_v e = hl_row_power(hl_v_load(x + i) - top);
        if (dst) hl_v_store(dst + i, e);
        sum += e;
    }
    if (i < n) {
        hl_v e = hl_row_power(hl_v_load_n(x + i, n - i) - top);
        if (dst) hl_v_store_n(dst + i, e, n - i);
        sum += hl_v_keep(hl_vm_first(n - i), e);
    }
    return hl_v_sum(sum);
}

/* A row of at most a vector, which stays in one: e^(x - its largest), 0 in the lanes beyond n. */
HL_SIMD hl_v hl_row_exp_short(const float *x, int64_t n)
{
    hl_vm used = hl_vm_first(n);
    hl_v v = hl_v_select(used, hl_v_load_n(x, n), hl_v_set1(-INFINITY));
    return hl_v_keep(used, hl_row_power(v - hl_v_set1(hl_v_max_lane(v))));
}

#endif
