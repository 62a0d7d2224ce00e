/* Cholesky factors and triangular systems, a block a matrix, or a strip of its right side.
 *
 * Both go by panels of HL_CUDA_PANEL columns: a panel is solved in shared memory, and what it makes
 * is taken from the rest at once, so that the rest is read and written once a panel. A panel that
 * shared memory has no room for lies in scratch.
 *
 * A lane has a column of the right side throughout: within it no barrier is needed.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/linalg.h"

#include "kernels/cuda/fault.h"

#define EACH_THREAD(i, n) for (int64_t i = hl_thread(); i < (n); i += hl_threads())

/* ---- Cholesky ---- */

/* The panel (rows, columns) from its top on the diagonal. False where a pivot is not positive: then
 * *out_pivot is it, and *out_column whose. Uniform over the block. */
HL_DEVICE bool factor_panel(float *panel, int64_t rows, int64_t columns, float *out_pivot,
                            int64_t *out_column)
{
    const int S = HL_CUDA_PANEL_STRIDE;
    for (int64_t c = 0; c < columns; c++) {
        float pivot = panel[c * S + c];
        *out_pivot = pivot, *out_column = c;
        if (!(pivot > 0)) return false;
        float root = sqrtf(pivot);
        hl_barrier(); /* all have read the pivot */
        EACH_THREAD(i, rows - c)
        {
            float *x = &panel[(c + i) * S + c];
            *x = i == 0 ? root : *x / root;
        }
        hl_barrier();
        EACH_THREAD(i, rows - c - 1)
        {
            int64_t r = c + 1 + i;
            float x = panel[r * S + c];
            for (int64_t k = c + 1; k < columns && k <= r; k++)
                panel[r * S + k] -= x * panel[k * S + c];
        }
        hl_barrier();
    }
    return true;
}

/* Takes the panel's product with itself from the lower triangle of rest (m,m), which begins below
 * its first `columns` rows: a warp has a row. */
HL_DEVICE void subtract_panel(const float *panel, float *rest, int64_t n, int64_t m,
                              int64_t columns)
{
    const int S = HL_CUDA_PANEL_STRIDE;
    int warp = hl_thread() / 32, lane = hl_thread() % 32, warps = hl_threads() / 32;
    const float *rows = panel + columns * S;
    for (int64_t r = warp; r < m; r += warps) {
        float own[HL_CUDA_PANEL];
        HL_UNROLL
        for (int k = 0; k < HL_CUDA_PANEL; k++) own[k] = k < columns ? rows[r * S + k] : 0.0f;
        for (int64_t c = lane; c <= r; c += 32) {
            float sum = rest[r * n + c];
            HL_UNROLL
            for (int k = 0; k < HL_CUDA_PANEL; k++)
                if (k < columns) sum = fmaf(-own[k], rows[c * S + k], sum);
            rest[r * n + c] = sum;
        }
    }
}

HL_DEVICE void factor_matrix(const hl_cuda_cholesky_params &p, float *panel, float *factor,
                             int64_t matrix)
{
    const int S = HL_CUDA_PANEL_STRIDE;
    int64_t n = p.n;
    for (int64_t j = 0; j < n; j += HL_CUDA_PANEL) {
        int64_t rows = n - j, columns = rows < HL_CUDA_PANEL ? rows : (int64_t)HL_CUDA_PANEL,
                column;
        float *corner = factor + j * (n + 1), pivot;
        EACH_THREAD(i, rows * HL_CUDA_PANEL)
        {
            int64_t r = i / HL_CUDA_PANEL, c = i % HL_CUDA_PANEL;
            if (c < columns) panel[r * S + c] = corner[r * n + c];
        }
        hl_barrier();
        if (!factor_panel(panel, rows, columns, &pivot, &column)) {
            if (hl_thread() == 0)
                hl_fault_set(p.at.control, p.at.fault, matrix * n + j + column,
                             hl_control_number_bits(pivot));
            EACH_THREAD(i, n * n) factor[i] = hl_bits_float(0x7FC00000u);
            hl_barrier(); /* the panel is free */
            return;
        }
        EACH_THREAD(i, rows * HL_CUDA_PANEL)
        {
            int64_t r = i / HL_CUDA_PANEL, c = i % HL_CUDA_PANEL;
            if (c < columns && c <= r) corner[r * n + c] = panel[r * S + c];
        }
        subtract_panel(panel, corner + columns * (n + 1), n, rows - columns, columns);
        hl_barrier();
    }
}

HL_CUDA_ENTRY(cholesky, HL_CUDA_LINALG_THREADS, p)
{
    HL_SHARED_DYNAMIC(float, shared);
    int64_t n = p.n;
    for (int64_t m = hl_block_x(); m < p.n_matrices; m += hl_blocks_x()) {
        const float *a = p.at.a + m * n * n;
        float *factor = p.at.factor + m * n * n;
        float *panel = p.at.panel ? p.at.panel + m * n * HL_CUDA_PANEL_STRIDE : shared;
        EACH_THREAD(i, n * n) factor[i] = i % n <= i / n ? a[i] : 0.0f;
        hl_barrier();
        factor_matrix(p, panel, factor, m);
    }
}

/* ---- triangular systems ---- */

/* A strip as a lower triangular system: row i of a is `row` floats behind the one before, of x
 * `side`; both may run back. */
struct strip {
    const float *a;
    float *x;
    int64_t row, column, side, columns;
};

/* The triangle on the diagonal, by the first warp. Returns whether 0 is on it, for the first such
 * row. */
HL_DEVICE int64_t solve_panel(const float *triangle, float *x, int64_t rows, bool is_unit)
{
    const int S = HL_CUDA_PANEL_STRIDE;
    int64_t lane = hl_thread(), singular = rows;
    for (int64_t r = 0; r < rows; r++) {
        float sum = x[r * HL_CUDA_STRIP + lane];
        for (int64_t k = 0; k < r; k++)
            sum = fmaf(-triangle[r * S + k], x[k * HL_CUDA_STRIP + lane], sum);
        float diagonal = is_unit ? 1.0f : triangle[r * S + r];
        if (diagonal == 0 && singular == rows) singular = r;
        x[r * HL_CUDA_STRIP + lane] = sum / diagonal;
    }
    return singular;
}

/* The first row whose diagonal is 0, to the first thread; or n. */
HL_DEVICE int64_t solve_strip(const strip &s, int64_t n, bool is_unit)
{
    const int S = HL_CUDA_PANEL_STRIDE;
    HL_SHARED(float, triangle, HL_CUDA_PANEL *HL_CUDA_PANEL_STRIDE);
    HL_SHARED(float, x, HL_CUDA_PANEL *HL_CUDA_STRIP);
    int warp = hl_thread() / 32, lane = hl_thread() % 32, warps = hl_threads() / 32;
    int64_t singular = n;
    for (int64_t i = 0; i < n; i += HL_CUDA_PANEL) {
        int64_t rows = n - i < HL_CUDA_PANEL ? n - i : (int64_t)HL_CUDA_PANEL;
        EACH_THREAD(e, rows * rows)
        {
            int64_t r = e / rows, c = e % rows;
            if (c <= r) triangle[r * S + c] = s.a[(i + r) * s.row + (i + c) * s.column];
        }
        for (int64_t r = warp; r < rows; r += warps)
            x[r * HL_CUDA_STRIP + lane] = lane < s.columns ? s.x[(i + r) * s.side + lane] : 0.0f;
        hl_barrier();
        if (warp == 0) {
            int64_t row = solve_panel(triangle, x, rows, is_unit);
            if (row < rows && singular == n) singular = i + row;
        }
        hl_barrier();
        for (int64_t r = warp; r < n - i && lane < s.columns; r += warps) {
            float *to = s.x + (i + r) * s.side + lane, sum = *to;
            if (r < rows) {
                *to = x[r * HL_CUDA_STRIP + lane];
                continue;
            }
            for (int64_t k = 0; k < rows; k++)
                sum = fmaf(-s.a[(i + r) * s.row + (i + k) * s.column], x[k * HL_CUDA_STRIP + lane],
                           sum);
            *to = sum;
        }
        hl_barrier();
    }
    return singular;
}

HL_CUDA_ENTRY(triangular_solve, HL_CUDA_LINALG_THREADS, p)
{
    int64_t n = p.n, K = p.K, sign = p.from_top ? 1 : -1, last = p.from_top ? 0 : n - 1;
    for (int64_t i = hl_block_x(); i < p.n_matrices * p.n_strips; i += hl_blocks_x()) {
        int64_t m = i / p.n_strips, first = i % p.n_strips * HL_CUDA_STRIP;
        int64_t columns = K - first < HL_CUDA_STRIP ? K - first : (int64_t)HL_CUDA_STRIP;
        const float *b = p.at.b + m * n * K + first;
        float *x = p.at.x + m * n * K + first;
        EACH_THREAD(e, n * HL_CUDA_STRIP)
        {
            int64_t r = e / HL_CUDA_STRIP, c = e % HL_CUDA_STRIP;
            if (c < columns) x[r * K + c] = b[r * K + c];
        }
        hl_barrier();
        strip s = {p.at.a + m * n * n + last * (n + 1),
                   x + last * K,
                   sign * (p.trans ? 1 : n),
                   sign * (p.trans ? n : 1),
                   sign * K,
                   columns};
        int64_t row = solve_strip(s, n, p.unitriangular != 0);
        if (row < n && hl_thread() == 0)
            hl_fault_set(p.at.control, p.at.fault, m * n + (p.from_top ? row : n - 1 - row),
                         hl_control_number_bits(0));
    }
}
