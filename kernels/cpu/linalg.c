/* Cholesky factors and triangular systems, a matrix of the batch after another.
 *
 * Both are one inner loop: a tile of HEIGHT rows by two vectors stays in registers while the
 * product of what is solved already is taken from it, row by row of a packed strip. What is left
 * of the tile is a triangle of its own, solved where it is.
 *
 * Cholesky goes from the left, WIDTH columns at a time: their part of the factor so far is packed
 * transposed, the block on the diagonal is factored by rows of its transpose, and tiles below it
 * are solved by these rows. A system goes strip by strip of the right side, whose solution is the
 * packed strip. One that begins at the bottom is one that begins at the top with strides that run
 * back.
 *
 * Rejected: going to the right, which writes what is left of the matrix once for every block;
 * inverting the blocks on the diagonal, which is a product more and loses digits as the block's
 * condition. */
#include <math.h>

#include "kernels/cpu/rows.h"

enum { WIDTH = 2 * HL_VL, HEIGHT = HL_ISA_AVX512 ? 8 : 6 };

#define EACH_ROW _Pragma("GCC unroll 8") for (int r = 0; r < HEIGHT; r++)
#define EACH_VECTOR                                                                                \
    EACH_ROW                                                                                       \
    _Pragma("GCC unroll 2") for (int v = 0; v < width; v++)

/* Lanes of vector v of so many columns. */
static inline int64_t count_lanes(int64_t columns, int v)
{
    return hl_cpu_max(hl_cpu_min(columns - (int64_t)v * HL_VL, HL_VL), 0);
}

/* tile -= a (HEIGHT,depth) packed (depth,WIDTH); a's rows begin at `row`, its columns are `step`
 * apart. */
HL_SIMD void subtract_product(hl_v tile[HEIGHT][2], const int width, const float *const *row,
                              int64_t step, const float *packed, int64_t depth)
{
    for (int64_t k = 0, at = 0; k < depth; k++, at += step) {
        hl_v p[2] = {hl_v_load(packed + k * WIDTH)};
        if (width == 2) p[1] = hl_v_load(packed + k * WIDTH + HL_VL);
        EACH_ROW
        {
            hl_v a = hl_v_set1(row[r][at]);
            tile[r][0] = hl_v_fnma(a, p[0], tile[r][0]);
            if (width == 2) tile[r][1] = hl_v_fnma(a, p[1], tile[r][1]);
        }
    }
}

/* Rows beyond the last one repeat it. */
HL_SIMD void load_tile(hl_v tile[HEIGHT][2], const int width, const float *x, int64_t step,
                       int64_t rows, int64_t columns)
{
    EACH_VECTOR tile[r][v] = hl_v_load_n(x + hl_cpu_min(r, rows - 1) * step + (int64_t)v * HL_VL,
                                         count_lanes(columns, v));
}

HL_SIMD void store_tile(hl_v tile[HEIGHT][2], const int width, float *x, int64_t step, int64_t rows,
                        int64_t columns)
{
    EACH_VECTOR
    {
        if (r < rows)
            hl_v_store_n(x + r * step + (int64_t)v * HL_VL, tile[r][v], count_lanes(columns, v));
    }
}

/* ---- Cholesky -------------------------------------------------------------------------------- */

typedef struct cholesky_state {
    int64_t n, n_matrices;
} cholesky_state;

/* In thread scratch, behind the packed strip (n,WIDTH). */
typedef struct diagonal_block {
    float row[WIDTH][WIDTH];    /* of the factor's transpose, */
    float scaled[WIDTH][WIDTH]; /* over its diagonal, which is left out, as what is before it */
    float inverse[WIDTH];       /* of the diagonal */
} diagonal_block;

/* packed (j,WIDTH) from rows of the factor (columns,j), j a multiple of WIDTH; what is beyond
 * `columns` is 0. */
static void pack_rows(const float *factor, int64_t n, int64_t j, int64_t columns, float *packed)
{
    for (int64_t k = 0; k < j; k += HL_VL)
        for (int64_t c = 0; c < WIDTH; c += HL_VL) {
            hl_v square[HL_VL];
            for (int i = 0; i < HL_VL; i++)
                square[i] = c + i < columns ? hl_v_load(factor + (c + i) * n + k) : hl_v_zero();
            hl_v_transpose(square);
            for (int i = 0; i < HL_VL; i++) hl_v_store(packed + (k + i) * WIDTH + c, square[i]);
        }
}

static void transpose_block(float (*x)[WIDTH])
{
    for (int64_t i = 0; i < WIDTH; i += HL_VL)
        for (int64_t j = 0; j <= i; j += HL_VL) {
            hl_v a[HL_VL], b[HL_VL];
            for (int l = 0; l < HL_VL; l++) {
                a[l] = hl_v_load(x[i + l] + j);
                b[l] = hl_v_load(x[j + l] + i);
            }
            hl_v_transpose(a);
            hl_v_transpose(b);
            for (int l = 0; l < HL_VL; l++) {
                hl_v_store(x[j + l] + i, a[l]);
                hl_v_store(x[i + l] + j, b[l]);
            }
        }
}

/* The rows above become those of the factor's transpose. Returns the first column whose pivot is
 * not positive, or `columns`. */
static int64_t factor_block(diagonal_block *block, int64_t columns, float *out_pivot)
{
    for (int64_t k = 0; k < columns; k++) {
        float *row = block->row[k], pivot = row[k], root = sqrtf(pivot), inverse = 1 / root;
        if (!(pivot > 0)) {
            *out_pivot = pivot;
            return k;
        }
        hl_v scale = hl_v_set1(inverse), first = hl_v_load(row) * scale,
             last = hl_v_load(row + HL_VL) * scale;
        hl_v place = hl_vi_to_float(hl_vi_iota()), own = hl_v_set1((float)k);
        hl_v_store(row, first);
        hl_v_store(row + HL_VL, last);
        hl_v_store(block->scaled[k], hl_v_keep(hl_v_gt(place, own), first * scale));
        hl_v_store(block->scaled[k] + HL_VL,
                   hl_v_keep(hl_v_gt(place + hl_v_set1(HL_VL), own), last * scale));
        row[k] = root;
        block->inverse[k] = inverse;
        for (int64_t i = k + 1; i < columns; i++) {
            hl_v factor = hl_v_set1(row[i]);
            float *to = block->row[i];
            if (i < HL_VL) hl_v_store(to, hl_v_fnma(factor, first, hl_v_load(to)));
            hl_v_store(to + HL_VL, hl_v_fnma(factor, last, hl_v_load(to + HL_VL)));
        }
    }
    for (int64_t k = columns; k < WIDTH; k++) block->inverse[k] = 0;
    return columns;
}

/* tile <- tile U^-1: each column, over the diagonal, leaves those behind it. Division by the
 * diagonal is put off to the end. */
HL_SIMD void solve_tile(hl_v tile[HEIGHT][2], const diagonal_block *block, int64_t columns)
{
    for (int k = 0; k < hl_cpu_min(columns, HL_VL); k++) {
        hl_v first = hl_v_load(block->scaled[k]), last = hl_v_load(block->scaled[k] + HL_VL);
        EACH_ROW
        {
            hl_v x = hl_v_spread(tile[r][0], k);
            tile[r][0] = hl_v_fnma(x, first, tile[r][0]);
            tile[r][1] = hl_v_fnma(x, last, tile[r][1]);
        }
    }
    for (int k = HL_VL; k < columns; k++) {
        hl_v last = hl_v_load(block->scaled[k] + HL_VL);
        EACH_ROW tile[r][1] = hl_v_fnma(hl_v_spread(tile[r][1], k - HL_VL), last, tile[r][1]);
    }
    hl_v first = hl_v_load(block->inverse), last = hl_v_load(block->inverse + HL_VL);
    EACH_ROW
    {
        tile[r][0] *= first;
        tile[r][1] *= last;
    }
}

/* Rows from i on of the columns from j on, less what the factor before these columns makes. */
HL_SIMD void make_tile(hl_v tile[HEIGHT][2], const float *a, const float *factor,
                       const float *packed, int64_t n, int64_t i, int64_t j, int64_t rows,
                       int64_t columns)
{
    const float *row[HEIGHT];
    EACH_ROW row[r] = factor + (i + hl_cpu_min(r, rows - 1)) * n;
    load_tile(tile, 2, a + i * n + j, n, rows, columns);
    subtract_product(tile, 2, row, 1, packed, j);
}

/* Writes rows of the factor on the diagonal, and the zeros behind it. */
static void store_block(diagonal_block *block, float *factor, int64_t n, int64_t j, int64_t columns)
{
    transpose_block(block->row);
    for (int64_t r = 0; r < columns; r++) {
        float *to = factor + (j + r) * n + j;
        memcpy(to, block->row[r], (size_t)(r + 1) * sizeof *to);
        memset(to + r + 1, 0, (size_t)(n - j - r - 1) * sizeof *to);
    }
}

/* Returns the first column whose pivot is not positive, or n. */
static int64_t factor_matrix(const float *a, float *factor, int64_t n, float *packed,
                             diagonal_block *block, float *out_pivot)
{
    for (int64_t j = 0; j < n; j += WIDTH) {
        int64_t columns = hl_cpu_min(WIDTH, n - j);
        hl_v tile[HEIGHT][2];
        pack_rows(factor + j * n, n, j, columns, packed);
        memset(block->row, 0, sizeof block->row);
        for (int64_t i = 0; i < columns; i += HEIGHT) {
            int64_t rows = hl_cpu_min(HEIGHT, columns - i);
            make_tile(tile, a, factor, packed, n, j + i, j, rows, columns);
            store_tile(tile, 2, block->row[i], WIDTH, rows, columns);
        }
        transpose_block(block->row);
        int64_t done = factor_block(block, columns, out_pivot);
        if (done < columns) return j + done;
        for (int64_t i = j + columns; i < n; i += HEIGHT) {
            int64_t rows = hl_cpu_min(HEIGHT, n - i);
            make_tile(tile, a, factor, packed, n, i, j, rows, columns);
            solve_tile(tile, block, columns);
            store_tile(tile, 2, factor + i * n + j, n, rows, columns);
        }
        store_block(block, factor, n, j, columns);
    }
    return n;
}

static void run_cholesky(const hl_kernel_state *state, void *const *args, int64_t begin,
                         int64_t end, const hl_launch *launch)
{
    const cholesky_state *s = state->impl;
    int64_t n = s->n;
    diagonal_block *block = launch->thread_scratch;
    float *packed = (float *)(block + 1);
    end = hl_cpu_min(end, s->n_matrices);
    for (int64_t m = begin; m < end; m++) {
        float *factor = (float *)args[1] + m * n * n, pivot = 1;
        int64_t done =
            factor_matrix((const float *)args[0] + m * n * n, factor, n, packed, block, &pivot);
        if (done == n) continue;
        hl_launch_fault(launch, m * n + done, hl_control_number_bits(pivot));
        for (int64_t i = 0; i < n * n; i++) factor[i] = NAN;
    }
}

static cholesky_state make_cholesky(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *shape = &hl_node_in_type(graph, node, 0)->shape;
    return (cholesky_state){.n = shape->dim[shape->rank - 1],
                            .n_matrices = hl_shape_span(shape, 0, shape->rank - 2)};
}

static hl_status query_cholesky(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    cholesky_state s = make_cholesky(graph, node);
    double n = (double)s.n;
    out_req->rows = hl_cpu_max(s.n_matrices, 1);
    out_req->grain = 1;
    out_req->row_in = out_req->row_out = 1;
    out_req->in_place[0] = 1;
    out_req->row_cost = 20 + 20 * n + 0.01 * n * n * n;
    out_req->thread_scratch_bytes = sizeof(diagonal_block) + (size_t)s.n * WIDTH * sizeof(float);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_cholesky(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_state *out_state)
{
    (void)device;
    cholesky_state s = make_cholesky(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- triangular systems ---------------------------------------------------------------------- */

typedef struct solve_state {
    int64_t n, K, n_matrices, n_strips;
    bool from_top, trans, unitriangular;
} solve_state;

/* One strip, as a lower triangular system: row i of the matrix is at a + i row, and of b and x at
 * i side; rows and columns may run back. */
typedef struct strip {
    const float *a, *b;
    float *x, *packed;
    int64_t row, column, side, columns;
} strip;

/* tile <- the solution by the triangle on the diagonal. */
HL_SIMD void solve_triangle(hl_v tile[HEIGHT][2], const int width, const float *const *row,
                            int64_t step, const float *inverse, int64_t rows)
{
    EACH_ROW
    {
        if (r >= rows) break;
        hl_v scale = hl_v_set1(inverse[r]);
        _Pragma("GCC unroll 2") for (int v = 0; v < width; v++) tile[r][v] *= scale;
        _Pragma("GCC unroll 8") for (int q = r + 1; q < HEIGHT; q++)
        {
            hl_v a = hl_v_set1(row[q][r * step]);
            _Pragma("GCC unroll 2") for (int v = 0; v < width; v++) tile[q][v] =
                hl_v_fnma(a, tile[r][v], tile[q][v]);
        }
    }
}

/* Returns the first row with 0 on the diagonal, or n; the rest is solved all the same. */
HL_SIMD int64_t solve_strip(const solve_state *s, const strip *p, const int width)
{
    int64_t n = s->n, singular = n;
    for (int64_t i = 0; i < n; i += HEIGHT) {
        int64_t rows = hl_cpu_min(HEIGHT, n - i);
        const float *row[HEIGHT], *diagonal[HEIGHT];
        float inverse[HEIGHT];
        hl_v tile[HEIGHT][2];
        EACH_ROW
        {
            int64_t at = i + hl_cpu_min(r, rows - 1);
            row[r] = p->a + at * p->row;
            diagonal[r] = row[r] + i * p->column;
            float own = s->unitriangular ? 1 : row[r][at * p->column];
            if (own == 0 && singular == n) singular = at;
            inverse[r] = 1 / own;
        }
        load_tile(tile, width, p->b + i * p->side, p->side, rows, p->columns);
        subtract_product(tile, width, row, p->column, p->packed, i);
        solve_triangle(tile, width, diagonal, p->column, inverse, rows);
        EACH_VECTOR
        {
            if (r < rows) hl_v_store(p->packed + (i + r) * WIDTH + (int64_t)v * HL_VL, tile[r][v]);
        }
        store_tile(tile, width, p->x + i * p->side, p->side, rows, p->columns);
    }
    return singular;
}

/* One right side, which would leave a tile's vectors all but empty: sums along a's rows, or, where
 * it is transposed, what an element leaves of those that are to come. Returns as solve_strip, in
 * a's own rows. */
static int64_t solve_vector(const solve_state *s, const float *a, const float *b, float *x)
{
    int64_t n = s->n, singular = n;
    if (x != b) memcpy(x, b, (size_t)n * sizeof *x);
    for (int64_t step = 0; step < n; step++) {
        int64_t i = s->from_top ? step : n - 1 - step;
        float own = s->unitriangular ? 1 : a[i * n + i];
        bool before = s->from_top != s->trans; /* of the row, what is before the diagonal */
        const float *row = a + i * n + (before ? 0 : i + 1);
        float *others = x + (before ? 0 : i + 1);
        int64_t count = before ? i : n - 1 - i;
        if (own == 0 && singular == n) singular = i;
        if (!s->trans)
            x[i] -= HL_ROW_SUM(count, c, m, hl_row_load(row + c, m) * hl_row_load(others + c, m));
        x[i] /= own;
        hl_v from = hl_v_set1(x[i]);
        for (int64_t c = 0; s->trans && c < count; c += HL_VL) {
            int64_t m = hl_cpu_min(count - c, HL_VL);
            hl_v rest = hl_v_fnma(from, hl_row_load(row + c, m), hl_row_load(others + c, m));
            hl_row_store(others + c, rest, m);
        }
    }
    return singular;
}

static void run_solve(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                      const hl_launch *launch)
{
    const solve_state *s = state->impl;
    int64_t n = s->n, K = s->K, sign = s->from_top ? 1 : -1, last = s->from_top ? 0 : n - 1;
    end = hl_cpu_min(end, s->n_matrices * s->n_strips);
    if (n == 0) return;
    for (int64_t i = begin; i < end; i++) {
        int64_t m = i / s->n_strips, first = i % s->n_strips * WIDTH,
                at = (m * n + last) * K + first, row;
        const float *a = (const float *)args[0] + m * n * n, *b = (const float *)args[1] + at;
        strip p = {.a = a + last * (n + 1),
                   .b = b,
                   .x = (float *)args[2] + at,
                   .packed = launch->thread_scratch,
                   .row = sign * (s->trans ? 1 : n),
                   .column = sign * (s->trans ? n : 1),
                   .side = sign * K,
                   .columns = hl_cpu_min(WIDTH, K - first)};
        if (K == 1) {
            row = solve_vector(s, a, b - last, p.x - last);
        } else {
            row = p.columns > HL_VL ? solve_strip(s, &p, 2) : solve_strip(s, &p, 1);
            if (row < n && !s->from_top) row = n - 1 - row;
        }
        if (row < n) hl_launch_fault(launch, m * n + row, hl_control_number_bits(0));
    }
}

static solve_state make_solve(const hl_graph *graph, const hl_node *node)
{
    const hl_shape *b = &hl_node_in_type(graph, node, 1)->shape;
    const hl_attrs_triangular *attrs = hl_triangular_attrs(node);
    int64_t K = b->dim[b->rank - 1];
    return (solve_state){.n = b->dim[b->rank - 2],
                         .K = K,
                         .n_matrices = hl_shape_span(b, 0, b->rank - 2),
                         .n_strips = hl_cpu_ceil_div(K, WIDTH),
                         .from_top = attrs->upper == attrs->trans,
                         .trans = attrs->trans,
                         .unitriangular = attrs->unitriangular};
}

static hl_status query_solve(hl_device *device, const hl_graph *graph, hl_node_id id,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, 2, out_why_not)) return HL_ERROR_CONFIG;
    solve_state s = make_solve(graph, node);
    out_req->rows = hl_cpu_max(s.n_matrices * s.n_strips, 1);
    out_req->grain = 1;
    if (s.n_strips == 1) out_req->row_in = 3, out_req->row_out = 1;
    out_req->in_place[0] = 1 << 1;
    out_req->row_cost = 20 + 2 * (double)s.n + 0.3 * (double)s.n * (double)s.n;
    out_req->thread_scratch_bytes = (size_t)s.n * WIDTH * sizeof(float);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_solve(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_state *out_state)
{
    (void)device;
    solve_state s = make_solve(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

static const hl_kernel cholesky = {.op = HL_OP_CHOLESKY,
                                   .name = HL_CPU_NAME("cholesky"),
                                   .query = query_cholesky,
                                   .prepare = prepare_cholesky,
                                   .block = run_cholesky};
static const hl_kernel triangular_solve = {.op = HL_OP_TRIANGULAR_SOLVE,
                                           .name = HL_CPU_NAME("triangular_solve"),
                                           .query = query_solve,
                                           .prepare = prepare_solve,
                                           .block = run_solve};

const hl_kernel *const HL_ISA_NAME(hl_cpu_linalg_kernels)[] = {&cholesky, &triangular_solve, NULL};
