/* GEMM, bfloat16 with float32 sums, on processors with AMX: the inner loops.
 *
 * A processor's tile register has 16 rows of 64 bytes, and one instruction adds to a tile of 16 x
 * 16 sums the product of 16 rows of 32 terms of A with as many terms of 16 columns of B, eight
 * times as many multiply-adds as vectors make in that time. Packed B is what it takes: a word row
 * is a pair of terms of 32 columns, two tiles side by side. So packing is that of gemm_bf16.c. A is
 * read where it lies if 16 rows lie evenly; the rows of a convolution do, but for those near an
 * edge. Else, and where rows or terms are fewer, it is copied with zeros for what is missing, once
 * for all strips; and so it is where C has many columns, since tiles that lie one behind another
 * come faster from the second-level cache than rows. Segments shorter than a tile's row have tiles
 * of their length, so that nothing beyond them is read.
 *
 * Two tiles of rows by two of columns share what they load. Their sums go through memory to the
 * epilogue, which is that of vectors. A^T B needs rows of terms too: its block of A is transposed,
 * a pass for each tile of C.
 *
 * The instruction sums the even and the odd terms of a tile apart, then adds both; it flushes
 * subnormals, as that of AVX512_BF16 does. So bits are others than gemm_bf16.c's, and this is a set
 * of its own, "amx". Which rows a call gets, and whether they are copied, makes no difference. */
#include "kernels/cpu/gemm_tile.h"

#if HL_ISA_AVX512
#pragma GCC target("avx512bf16")
#include "kernels/cpu/gemm_pairs.h"

enum {
    TILE_ROWS = 16,
    TILE_WORDS = 16,    /* of K in a tile of A, and rows of one of B */
    TILE_BYTES = 64,    /* of a row */
    COPY_COLUMNS = 256, /* of C that pay for copying A tile by tile */
    SHORT_TILES = 7     /* of K, that take less time than to write C */
};

/* ---- tiles ---- */

/* What LDTILECFG reads. */
typedef struct tile_config {
    uint8_t palette, first_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* In place of the compiler's intrinsics, which do not say what memory they read and write. */
#define LOAD_TILE(tile, at, stride)                                                                \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((int64_t)(stride))          \
                     : "memory")
#define STORE_TILE(tile, at, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(stride))      \
                     : "memory")
#define MULTIPLY_TILES(sum, a, b)                                                                  \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)
#define ZERO_TILE(tile) __asm__ volatile("tilezero %%tmm" #tile ::)

/* Whole tiles, but for segments that are shorter: so no word beyond them is read. */
static int64_t configure_tiles(int64_t words)
{
    enum { FIRST_B = 4, FIRST_A = 6, TILES = 8 };
    int64_t each = words > 0 ? min64(words, TILE_WORDS) : TILE_WORDS;
    tile_config config = {.palette = 1};
    for (int t = 0; t < TILES; t++) config.bytes[t] = TILE_BYTES, config.rows[t] = TILE_ROWS;
    for (int t = FIRST_B; t < FIRST_A; t++) config.rows[t] = (uint8_t)each;
    for (int t = FIRST_A; t < TILES; t++)
        config.bytes[t] = (uint16_t)(each * (int64_t)sizeof(hl_gemm_word));
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
    return each;
}

static void release_tiles(void)
{
    __asm__ volatile("tilerelease" ::: "memory");
}

/* Up to 16 rows of A in a segment: where row i begins is first + i * stride or, with pointers,
 * pointers[i] + first. */
typedef struct row_view {
    const void *const *pointers;
    const unsigned char *first;
    int64_t stride, n;
    bool is_even; /* 16 rows that lie `stride` apart, from `first` on */
} row_view;

static const unsigned char *find_row(const row_view *view, int64_t i)
{
    if (view->is_even || !view->pointers) return view->first + i * view->stride;
    return (const unsigned char *)view->pointers[i] + (uintptr_t)view->first;
}

/* Rows [row, row + n) of the tile's A in segment s. */
static row_view view_rows(const hl_gemm_tile *tile, int64_t a_step, int64_t row, int64_t n,
                          int64_t s)
{
    if (tile->form == HL_GEMM_ROWS)
        return (row_view){NULL, tile->a + row * a_step, a_step, n, n == TILE_ROWS};
    const unsigned char *list = tile->a + s * tile->a_stride;
    const void *const *pointers = (const void *const *)(const void *)list + row;
    row_view view = {pointers, (const unsigned char *)(uintptr_t)tile->segment_offset, 0, n, false};
    if (n < TILE_ROWS) return view;
    const int64_t *at = (const int64_t *)(const void *)pointers;
    int64_t stride = at[1] - at[0];
    __m512i want = _mm512_setr_epi64(0, stride, 2 * stride, 3 * stride, 4 * stride, 5 * stride,
                                     6 * stride, 7 * stride);
    __m512i low = _mm512_add_epi64(want, _mm512_set1_epi64(at[0]));
    __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8 * stride));
    if (_mm512_cmpneq_epi64_mask(low, _mm512_loadu_si512(at)) |
        _mm512_cmpneq_epi64_mask(high, _mm512_loadu_si512(at + 8)))
        return view;
    view.first = (const unsigned char *)pointers[0] + tile->segment_offset;
    view.stride = stride, view.is_even = true;
    return view;
}

/* A tile of A, `words` words from byte `at` of the rows on, and zeros for what is missing. */
static void copy_tile(const row_view *view, int64_t at, int64_t words, unsigned char *copy)
{
    __mmask16 mask = (__mmask16)((1u << words) - 1);
    for (int64_t i = 0; i < TILE_ROWS; i++) {
        __m512i row = _mm512_setzero_si512();
        if (i < view->n) row = _mm512_maskz_loadu_epi32(mask, find_row(view, i) + at);
        _mm512_store_si512(copy + i * TILE_BYTES, row);
    }
}

/* ---- views: all strips of C read them ---- */

static int64_t round_words(int64_t words)
{
    return ceil_div(words, TILE_WORDS) * TILE_WORDS;
}

/* Words of so many rows of so many words, in whole tiles. */
static size_t view_bytes(int64_t rows, int64_t n_segments, int64_t words)
{
    int64_t n_views = ceil_div(rows, TILE_ROWS) * n_segments;
    int64_t table = ceil_div(n_views * (int64_t)sizeof(hl_gemm_view), TILE_BYTES) * TILE_BYTES;
    return (size_t)(table + n_views * round_words(words) * TILE_BYTES);
}

static void make_views(hl_gemm_tile *tile, int64_t rows, int64_t n, int64_t a_step, void *scratch)
{
    hl_gemm_view *views = scratch, *view = views;
    int64_t n_views = ceil_div(rows, TILE_ROWS) * tile->n_segments;
    int64_t table = ceil_div(n_views * (int64_t)sizeof *views, TILE_BYTES) * TILE_BYTES;
    int64_t whole = tile->k / tile->k_each * tile->k_each;
    unsigned char *copy = (unsigned char *)scratch + table;
    bool copies = n >= COPY_COLUMNS;
    for (int64_t row = 0; row < rows; row += TILE_ROWS)
        for (int64_t s = 0; s < tile->n_segments; s++, view++) {
            row_view from = view_rows(tile, a_step, row, min64(TILE_ROWS, rows - row), s);
            bool in_place = from.is_even && !copies;
            for (int64_t k = in_place ? whole : 0; k < tile->k; k += TILE_WORDS)
                copy_tile(&from, k * (int64_t)sizeof(hl_gemm_word), min64(TILE_WORDS, tile->k - k),
                          copy + k * TILE_BYTES);
            *view = (hl_gemm_view){.at = in_place ? from.first : copy,
                                   .tail = copy + whole * TILE_BYTES,
                                   .stride = in_place ? from.stride : TILE_BYTES,
                                   .tail_stride = TILE_BYTES,
                                   .step = in_place ? TILE_BYTES : TILE_ROWS * TILE_BYTES};
            copy += round_words(tile->k) * TILE_BYTES;
        }
    tile->views = views;
}

/* ---- sums ---- */

/* `words` word rows of a panel, and zeros. */
static const hl_gemm_word *copy_panel(const hl_gemm_word *b, int64_t words, hl_gemm_word *copy)
{
    memset(copy, 0, (size_t)(TILE_WORDS * HL_GEMM_PANEL) * sizeof *copy);
    memcpy(copy, b, (size_t)(words * HL_GEMM_PANEL) * sizeof *copy);
    return copy;
}

/* Tiles 0 to 3 have the sums, two columns to a row; 4 and 5 are of B, 6 and 7 of A. */
HL_SIMD void add_tile(const bool is_tall, const bool is_wide, const unsigned char *a0,
                      int64_t stride0, const unsigned char *a1, int64_t stride1,
                      const hl_gemm_word *b)
{
    enum { PANEL_BYTES = HL_GEMM_PANEL * sizeof(hl_gemm_word) };
    LOAD_TILE(4, b, PANEL_BYTES);
    LOAD_TILE(6, a0, stride0);
    MULTIPLY_TILES(0, 6, 4);
    if (is_wide) {
        LOAD_TILE(5, b + TILE_WORDS, PANEL_BYTES);
        MULTIPLY_TILES(1, 6, 5);
    }
    if (is_tall) {
        LOAD_TILE(7, a1, stride1);
        MULTIPLY_TILES(2, 7, 4);
        if (is_wide) MULTIPLY_TILES(3, 7, 5);
    }
}

/* The tile's A from this row on: views of its segments, or that of A^T B, in whole tiles. */
static const hl_gemm_view *find_views(const hl_gemm_tile *tile, int64_t a_step, int64_t row,
                                      hl_gemm_view *own)
{
    if (tile->views) return tile->views + row / TILE_ROWS * tile->n_segments;
    const unsigned char *at = tile->a + row * a_step;
    int64_t tail = tile->k / TILE_WORDS * TILE_ROWS * TILE_BYTES; /* whole: no A^T B has less */
    *own = (hl_gemm_view){at, at + tail, TILE_BYTES, TILE_BYTES, TILE_ROWS * TILE_BYTES};
    return own;
}

/* to = from + A B or, without `from`, A B, for one or two tiles of rows and of columns. */
HL_SIMD void sum_tiles(const bool is_tall, const bool is_wide, int64_t a_step,
                       const hl_gemm_tile *tile, const float *from, int64_t from_bytes, float *to,
                       int64_t to_bytes)
{
    _Alignas(64) hl_gemm_word panel[TILE_WORDS * HL_GEMM_PANEL];
    const hl_gemm_word *b = tile->b;
    const int64_t each = tile->k_each;
    hl_gemm_view own[2];
    const hl_gemm_view *top = find_views(tile, a_step, 0, &own[0]), *bottom = top;
    if (is_tall) bottom = find_views(tile, a_step, TILE_ROWS, &own[1]);
    if (from) {
        LOAD_TILE(0, from, from_bytes);
        if (is_wide) LOAD_TILE(1, from + HL_VL, from_bytes);
        from = (const float *)(uintptr_t)((uintptr_t)from + (uintptr_t)(TILE_ROWS * from_bytes));
        if (is_tall) LOAD_TILE(2, from, from_bytes);
        if (is_tall && is_wide) LOAD_TILE(3, from + HL_VL, from_bytes);
    } else {
        ZERO_TILE(0);
        ZERO_TILE(1);
        ZERO_TILE(2);
        ZERO_TILE(3);
    }
    for (int64_t s = 0; s < tile->n_segments; s++, top++, bottom++) {
        const unsigned char *a0 = top->at, *a1 = bottom->at;
        int64_t words = tile->k;
        for (; words >= each; words -= each, a0 += top->step, a1 += bottom->step) {
            add_tile(is_tall, is_wide, a0, top->stride, a1, bottom->stride, b);
            b += each * HL_GEMM_PANEL;
        }
        if (!words) continue;
        add_tile(is_tall, is_wide, top->tail, top->tail_stride, bottom->tail, bottom->tail_stride,
                 copy_panel(b, words, panel));
        b += words * HL_GEMM_PANEL;
    }
    STORE_TILE(0, to, to_bytes);
    if (is_wide) STORE_TILE(1, to + HL_VL, to_bytes);
    to = (float *)(uintptr_t)((uintptr_t)to + (uintptr_t)(TILE_ROWS * to_bytes));
    if (is_tall) STORE_TILE(2, to, to_bytes);
    if (is_tall && is_wide) STORE_TILE(3, to + HL_VL, to_bytes);
}

static void choose_tiles(bool is_tall, bool is_wide, int64_t a_step, const hl_gemm_tile *tile,
                         const float *from, int64_t from_bytes, float *to, int64_t to_bytes)
{
    if (is_tall && is_wide)
        sum_tiles(true, true, a_step, tile, from, from_bytes, to, to_bytes);
    else if (is_tall)
        sum_tiles(true, false, a_step, tile, from, from_bytes, to, to_bytes);
    else if (is_wide)
        sum_tiles(false, true, a_step, tile, from, from_bytes, to, to_bytes);
    else
        sum_tiles(false, false, a_step, tile, from, from_bytes, to, to_bytes);
}

/* `rows` rows of C as they are in sums, the rest of them is zero. */
static void load_sums(int width, int64_t rows, const hl_gemm_tile *tile, float *sums)
{
    int64_t n = (width - 1) * HL_VL + tile->last_lanes;
    memset(sums, 0, sizeof(float) * HL_GEMM_SUM_ROWS * HL_GEMM_PANEL);
    for (int64_t i = 0; i < rows; i++)
        memcpy(sums + i * HL_GEMM_PANEL, tile->c + i * tile->ldc, (size_t)n * sizeof(float));
}

/* Where sums are short the time goes into writing C: so it is asked for before they are made. */
static void prefetch_c(int width, int64_t rows, const hl_gemm_tile *tile)
{
    for (int64_t i = 0; i < rows; i++)
        for (int v = 0; v < width; v++) __builtin_prefetch(tile->c + i * tile->ldc + v * HL_VL, 1);
}

/* Where C has the sums of the block before, those of this one begin with them, unless they are
 * scaled first. Whole tiles without an epilogue are made in C. */
static bool sum_products(int width, int64_t rows, int64_t a_step, hl_gemm_tile *tile, float *sums)
{
    enum { SUMS_BYTES = HL_GEMM_PANEL * sizeof(float) };
    bool is_tall = rows > TILE_ROWS, is_wide = width > 1;
    bool is_whole = rows % TILE_ROWS == 0 && tile->last_lanes == HL_VL;
    bool adds = (tile->steps & (STEP_CONTINUE | STEP_ALPHA)) == STEP_CONTINUE;
    const int64_t c_bytes = tile->ldc * (int64_t)sizeof(float);
    const float *from = adds ? is_whole ? tile->c : sums : NULL;
    if (adds) tile->steps &= ~(unsigned)STEP_CONTINUE;
    if (adds && !is_whole) load_sums(width, rows, tile, sums);
    bool is_done = is_whole && !tile->steps;
    bool is_short = tile->n_segments * tile->k <= SHORT_TILES * tile->k_each;
    if (!adds && is_short) prefetch_c(width, rows, tile);
    choose_tiles(is_tall, is_wide, a_step, tile, from, is_whole ? c_bytes : SUMS_BYTES,
                 is_done ? tile->c : sums, is_done ? c_bytes : SUMS_BYTES);
    return !is_done;
}

/* ---- epilogue: A of these tiles are sums ---- */

#define SUMS_FUNCTION(h, w)                                                                        \
    static void run_tile_##h##x##w(const hl_gemm_tile *tile)                                       \
    {                                                                                              \
        const int height = h, width = w;                                                           \
        hl_v sum[HEIGHT_MAX][4];                                                                   \
        const float *from = (const float *)(const void *)tile->a;                                  \
        EACH_VECTOR sum[i][v] = hl_v_load(from + i * HL_GEMM_PANEL + v * HL_VL);                   \
        finish_tile(height, width, sum, tile);                                                     \
    }
#define SUMS_TILES(X) HEIGHTS_14(X, 1) HEIGHTS_14(X, 2)
SUMS_TILES(SUMS_FUNCTION)

/* ---- A^T B ---- */

/* A (k,m) as rows (m,words), tile after tile. */
static hl_gemm_columns view_columns(int64_t k, int64_t m, int64_t n, const void *a, int64_t lda,
                                    hl_gemm_word *packed)
{
    (void)n;
    const uint16_t *from = a;
    const hl_gemm_word *first = packed;
    int64_t words = round_words(ceil_div(k, 2));
    for (int64_t i = 0; i < m; i += HL_VL)
        for (int64_t t = 0; t < words; t += TILE_WORDS, packed += TILE_ROWS * TILE_WORDS) {
            int64_t lanes = min64(HL_VL, m - i);
            hl_v square[HL_VL];
#pragma GCC unroll 16
            for (int64_t j = 0; j < HL_VL; j++) {
                int64_t row = 2 * (t + j);
                square[j] = hl_v_zero();
                if (row < k) square[j] = load_row_bf16(from + row * lda + i, lda, lanes, k - row);
            }
            hl_v_transpose(square);
            for (int64_t j = 0; j < HL_VL; j++)
                hl_v_store((float *)(void *)(packed + j * TILE_WORDS), square[j]);
        }
    int64_t stride = words * (int64_t)sizeof(hl_gemm_word);
    return (hl_gemm_columns){.at = first, .stride = stride, .is_turned = true};
}

/* ---- the type ---- */

/* A block of K and a panel of B are 32 KB, which stay in the first-level cache. */
const hl_gemm_type hl_gemm_amx = {
    .bytes = sizeof(uint16_t),
    .terms = TERMS,
    .rows_best = HL_GEMM_SUM_ROWS,
    .m_block = 5 * HL_GEMM_SUM_ROWS,
    .k_block = 256,
    .tn_block = 256,
    .tiles = {SUMS_TILES(TILE_ENTRY)},
    .pack_f32 = &packer_f32,
    .pack_bf16 = &packer_bf16,
    .view_columns = view_columns,
    .view_bytes = view_bytes,
    .make_views = make_views,
    .begin_sums = configure_tiles,
    .sum_products = sum_products,
    .end_sums = release_tiles,
};

#endif
