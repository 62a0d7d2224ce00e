/* Register tiles, between the loops around them (gemm_core.c) and the inner loops of each type
 * (gemm_f32.c, gemm_bf16.c): which tiles there are, what a tile is given, its epilogue, and what a
 * type is.
 *
 * A tile is `height` rows by `width` vectors of C, kept in registers over a block of K. The bigger
 * the tile, the fewer loads per multiply-add: 14 x 2 vectors fill 28 of AVX-512's 32 registers and
 * 6 x 2 fill 12 of AVX2's 16. Narrow C takes one tile of its own width (1, 3 or, with 32 registers,
 * 4 vectors), so that N = 50 is one pass over A and writes whole rows.
 *
 * Rejected: the inner loop of both types as one text with a macro for the multiplication (one loop
 * is in terms, the other in words of two; the text had more conditions than code). */
#ifndef HL_KERNELS_CPU_GEMM_TILE_H
#define HL_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/gemm.h"

#if HL_ISA_AVX512 || defined(__aarch64__)
#define REGISTERS_32 1
#else
#define REGISTERS_32 0
#endif

enum {
    WIDTH_MAX = REGISTERS_32 ? 4 : 3, /* vectors */
    HEIGHT_MAX = REGISTERS_32 ? 14 : 12
};

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- which tiles there are ---- */

/* The tiles that fit the registers: HEIGHT_OF[width] rows at most. */
#define HEIGHTS_4(X, w)  X(1, w) X(2, w) X(3, w) X(4, w)
#define HEIGHTS_6(X, w)  HEIGHTS_4(X, w) X(5, w) X(6, w)
#define HEIGHTS_7(X, w)  HEIGHTS_6(X, w) X(7, w)
#define HEIGHTS_9(X, w)  HEIGHTS_7(X, w) X(8, w) X(9, w)
#define HEIGHTS_12(X, w) HEIGHTS_9(X, w) X(10, w) X(11, w) X(12, w)
#define HEIGHTS_14(X, w) HEIGHTS_12(X, w) X(13, w) X(14, w)
#if REGISTERS_32
#define TILES(X) HEIGHTS_14(X, 1) HEIGHTS_14(X, 2) HEIGHTS_9(X, 3) HEIGHTS_7(X, 4)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 14, 14, 9, 7};
#else
#define TILES(X) HEIGHTS_12(X, 1) HEIGHTS_6(X, 2) HEIGHTS_4(X, 3)
static const int HEIGHT_OF[WIDTH_MAX + 1] = {0, 12, 6, 4};
#endif

/* Tiles of `rows` rows: the first `n_taller` have height + 1. */
typedef struct row_split {
    int64_t n_tiles, height, n_taller;
} row_split;

static inline row_split split_rows(int64_t rows, int64_t height_max)
{
    int64_t n_tiles = ceil_div(rows, height_max);
    return (row_split){n_tiles, rows / n_tiles, rows % n_tiles};
}

/* ---- what a tile is given ---- */

/* How a tile reads A. */
typedef enum hl_gemm_form { HL_GEMM_ROWS, HL_GEMM_COLUMNS, HL_GEMM_SEGMENTS } hl_gemm_form;

/* What its epilogue does: bits, so that a step costs one test of a register. */
enum {
    STEP_ALPHA = 1,
    STEP_ACCUMULATE = 2, /* C += */
    STEP_SCALE = 4,
    STEP_BIAS = 8,
    STEP_RESIDUAL = 16,
    STEP_RELU = 32,
    STEP_GELU = 64,
    STEP_CONTINUE = 128 /* C has the sums of the block before: sums += C, or begin with C */
};

/* 16 rows of A in one segment. */
typedef struct hl_gemm_view {
    const unsigned char *at, *tail; /* tail: words beyond the last whole tile, with zeros behind */
    int64_t stride, tail_stride;    /* bytes between rows */
    int64_t step;                   /* bytes between tiles */
} hl_gemm_view;

typedef struct hl_gemm_tile {
    hl_gemm_form form;
    unsigned steps;
    int64_t k;      /* word rows of B in a segment */
    int64_t k_each; /* of them at once, where sums are not made in vectors */
    /* Its first element; with segments its first row's pointer to the first segment. */
    const unsigned char *a;
    int64_t a_stride;       /* bytes between rows, between columns, between lists of pointers */
    int64_t n_segments;     /* 1 without segments */
    int64_t segment_offset; /* bytes, from each pointer */
    /* In place of a, where a type makes views: of 16 rows each, n_segments of them. */
    const hl_gemm_view *views;
    const hl_gemm_word *b;
    int64_t b_stride, b_pair; /* words between rows of B, and between pairs of vectors */
    float *c;
    int64_t ldc;
    int64_t last_lanes; /* columns in the last vector */
    float alpha;
    const float *scale, *bias, *residual; /* at the first element of the tile */
    int64_t ld_residual;
} hl_gemm_tile;

typedef void (*hl_gemm_tile_fn)(const hl_gemm_tile *tile);

/* ---- sums, epilogue ---- */

/* For every vector of the tile: i its row, v its place in the row. */
#define EACH_VECTOR                                                                                \
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++)                                      \
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)
/* The same, with `row` the row's place in a matrix from `first` on. */
#define EACH_ROW(first, ld)                                                                        \
    const float *row = first;                                                                      \
    _Pragma("GCC unroll 14") for (int i = 0; i < height; i++, row = next_row(row, ld))             \
        _Pragma("GCC unroll 4") for (int v = 0; v < width; v++)

HL_SIMD void clear_tile(const int height, const int width, hl_v sum[][4])
{
    EACH_VECTOR sum[i][v] = hl_v_zero();
}

/* The row after this one. The compiler must not see through it: it would hold an address for every
 * vector of the tile, on the stack. */
static inline const float *next_row(const float *row, int64_t ld)
{
    row += ld;
    __asm__("" : "+r"(row));
    return row;
}

/* One pass over the registers per step. All vectors are whole, or the last of a row has
 * last_lanes. */
HL_SIMD void store_tile(const int height, const int width, const bool is_whole, hl_v sum[][4],
                        const hl_gemm_tile *tile)
{
    const unsigned steps = tile->steps;
    const int64_t ldc = tile->ldc, last_lanes = tile->last_lanes;
#define LOAD(at)                                                                                   \
    (is_whole || v + 1 < width ? hl_v_load((at) + v * HL_VL)                                       \
                               : hl_v_load_n((at) + v * HL_VL, last_lanes))
    if (steps & (STEP_ACCUMULATE | STEP_CONTINUE)) {
        EACH_ROW(tile->c, ldc) sum[i][v] = sum[i][v] + LOAD(row);
    }
    if (steps & STEP_SCALE) {
        const float *scale = tile->scale;
        EACH_VECTOR sum[i][v] = sum[i][v] * LOAD(scale);
    }
    if (steps & STEP_BIAS) {
        const float *bias = tile->bias;
        EACH_VECTOR sum[i][v] = sum[i][v] + LOAD(bias);
    }
    if (steps & STEP_RESIDUAL) {
        EACH_ROW(tile->residual, tile->ld_residual) sum[i][v] = sum[i][v] + LOAD(row);
    }
#undef LOAD
    if (steps & STEP_RELU) EACH_VECTOR sum[i][v] = hl_v_max(hl_v_zero(), sum[i][v]);
    EACH_ROW(tile->c, ldc)
    {
        if (is_whole || v + 1 < width)
            hl_v_store((float *)(uintptr_t)row + v * HL_VL, sum[i][v]);
        else
            hl_v_store_n((float *)(uintptr_t)row + v * HL_VL, sum[i][v], last_lanes);
    }
}

/* What happens to a tile's sums: the steps of gemm.h's head. Gelu goes over the tile once more,
 * where it lies in the first-level cache: unrolled it would be most of every tile's code. */
HL_SIMD void finish_tile(const int height, const int width, hl_v sum[][4], const hl_gemm_tile *tile)
{
    if (tile->steps & STEP_ALPHA) {
        hl_v alpha = hl_v_set1(tile->alpha);
        EACH_VECTOR sum[i][v] = sum[i][v] * alpha;
    }
    if (tile->last_lanes == HL_VL)
        store_tile(height, width, true, sum, tile);
    else
        store_tile(height, width, false, sum, tile);
    if (tile->steps & STEP_GELU)
        hl_gemm_gelu(height, (width - 1) * HL_VL + tile->last_lanes, tile->c, tile->ldc);
}

/* ---- a type ---- */

/* Columns of A as the tiles of one block of K read them. */
typedef struct hl_gemm_columns {
    const void *at;
    int64_t stride; /* bytes between columns */
    bool is_tiled;  /* columns of each tile on their own, TILE_GAP words between tiles */
    bool is_turned; /* rows of words of K, `stride` bytes apart, in place of columns */
} hl_gemm_columns;

/* Between packed tiles of A: the last column's store may run over by less than a vector. */
enum { TILE_GAP = HL_VL };

/* `lanes` numbers that lie `stride` apart; the other lanes are zero. */
HL_SIMD hl_v pick_lanes(const float *at, int64_t stride, int64_t lanes)
{
    enum { REACH = INT32_MAX / HL_VL };
    if (lanes >= HL_VL && stride > -REACH && stride < REACH)
        return hl_v_gather(at, hl_vi_mul(hl_vi_iota(), hl_vi_set1((int32_t)stride)));
    float picked[HL_VL];
    for (int64_t i = 0; i < HL_VL; i++) picked[i] = i < lanes ? at[i * stride] : 0;
    return hl_v_load(picked);
}

enum { HL_GEMM_TAPS_MAX = 27 };

/* How B is packed from one type of element (gemm_pack.h). `b` is where the first element lies that
 * the call reads, `packed` where the first panel lies that it writes. */
typedef struct hl_gemm_packer {
    /* Columns side by side: whole panels, panel_words apart, or some lanes of one. */
    void (*rows)(int64_t k, int64_t n_panels, int64_t panel_words, const void *b, int64_t k_stride,
                 hl_gemm_word *packed);
    void (*edge)(int64_t k, int64_t lanes, const void *b, int64_t k_stride, hl_gemm_word *packed);
    /* One panel, from rows that each begin `offset` elements behind a pointer of their own. */
    void (*runs)(int64_t k, const void *const *rows, int64_t offset, hl_gemm_word *packed);
    /* Terms of k side by side. */
    void (*transposed)(int64_t k, int64_t lanes, const void *b, int64_t n_stride,
                       hl_gemm_word *packed);
    /* Neither: one panel of all segments, by the strides of `how`. HL_GEMM_TAPS_MAX segments at
     * most may lie side by side between terms or between columns. */
    void (*between_terms)(const hl_gemm_b *how, int64_t lanes, const void *b, hl_gemm_word *packed);
    void (*between_columns)(const hl_gemm_b *how, int64_t lanes, const void *b,
                            hl_gemm_word *packed);
    void (*scattered)(const hl_gemm_b *how, int64_t lanes, const void *b, hl_gemm_word *packed);
} hl_gemm_packer;

struct hl_gemm_type {
    int64_t bytes;              /* of an element */
    int64_t terms;              /* of k in a word of packed B: 1 or 2 */
    int64_t rows_best, m_block; /* rows of C: in a tile, and in a block, which is several tiles */
    int64_t k_block, tn_block;  /* words of K in a pass */
    hl_gemm_tile_fn tiles[WIDTH_MAX + 1][HEIGHT_MAX + 1];
    const hl_gemm_packer *pack_f32, *pack_bf16; /* from these elements; NULL: none */
    /* Columns of A (k,m), for a tile of C (m,n): where they lie, or in `packed`, which has room for
     * m columns of the words of k and a gap each. */
    hl_gemm_columns (*view_columns)(int64_t k, int64_t m, int64_t n, const void *a, int64_t lda,
                                    hl_gemm_word *packed);
    /* Rows of C where it has at most thin_max columns, so that tiles would be mostly empty. */
    int64_t thin_max;
    void (*run_thin)(const hl_gemm *gemm, int64_t m0, int64_t m1);
    /* Where sums are not made in vectors: sum_products makes those of up to HL_GEMM_SUM_ROWS rows
     * and two vectors, rows HL_GEMM_PANEL apart, between begin_sums and end_sums, takes the steps
     * that it does out of the tile's, and says whether the rest is left to `tiles`, or C is
     * written. NULL: `tiles` make the sums. begin_sums gives k_each for segments of so many words,
     * and make_views prepares A of a block for so many columns. */
    size_t (*view_bytes)(int64_t rows, int64_t n_segments, int64_t words);
    void (*make_views)(hl_gemm_tile *tile, int64_t rows, int64_t n, int64_t a_step, void *scratch);
    int64_t (*begin_sums)(int64_t words);
    bool (*sum_products)(int width, int64_t rows, int64_t a_step, hl_gemm_tile *tile, float *sums);
    void (*end_sums)(void);
};
enum { HL_GEMM_SUM_ROWS = 32, HL_GEMM_VIEW_ROWS = 16 };

/* The tiles of a type, from its add_rows, add_columns and add_segments: functions of constant
 * height and width, which share an epilogue, and their places in the table. */
#define TILE_FUNCTION(h, w)                                                                        \
    static void run_tile_##h##x##w(const hl_gemm_tile *tile)                                       \
    {                                                                                              \
        hl_v sum[HEIGHT_MAX][4];                                                                   \
        clear_tile(h, w, sum);                                                                     \
        if (tile->form == HL_GEMM_ROWS)                                                            \
            add_rows(h, w, sum, tile);                                                             \
        else if (tile->form == HL_GEMM_COLUMNS)                                                    \
            add_columns(h, w, sum, tile);                                                          \
        else                                                                                       \
            add_segments(h, w, sum, tile);                                                         \
        finish_tile(h, w, sum, tile);                                                              \
    }
#define TILE_ENTRY(h, w) [w][h] = run_tile_##h##x##w,

#endif
